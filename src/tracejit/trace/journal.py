"""What an open recording did to objects outside, in order.

An effect is a call of a C function that is known to do one thing (`list.append`, `object.__setattr__`, `print`) with
the operands that the recorded code gave it, opaque numbers and all; `replay.py` makes it a deed of a compiled call.
What was written is known to the recording from then on: a later read finds it here and wants no guard, and a container
that is looked at as a whole after a write is guarded as it was before the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from tracejit.records import dataclass

__all__ = ["Effect", "Journal"]


@dataclass(frozen=True, slots=True)
class Effect:
    """f(*operands, **keywords)"""

    f: Callable[..., Any]
    operands: tuple[Any, ...]
    keywords: Mapping[str, Any]


@dataclass(slots=True)
class Journal:
    """The writes of one recording. Containers by id: the recorder keeps them alive."""

    effects: list[Effect] = field(default_factory=list[Effect])
    written: dict[Any, Any] = field(default_factory=dict[Any, Any])  # place of a cell -> what the recording reads there
    places: dict[Any, tuple[str, Any, Any]] = field(default_factory=dict[Any, tuple[str, Any, Any]])  # ... -> the cell
    before: dict[int, Any] = field(default_factory=dict[int, Any])  # written container -> its elements at the beginning
    containers: dict[int, Any] = field(default_factory=dict[int, Any])  # ... -> the container
    known: set[int] = field(default_factory=set[int])  # written containers whose contents need no further guard
    whole: set[int] = field(default_factory=set[int])  # containers that were looked at as a whole
    hidden: dict[int, list[Any]] = field(default_factory=dict[int, list[Any]])  # ... -> opaque values that lie in it
    shuffled: set[int] = field(default_factory=set[int])  # written containers that did not only grow
    anchors: set[int] = field(default_factory=set[int])  # objects found through guarded code: globals of a function
    frozen: list[tuple[Any, Any]] = field(
        default_factory=list[tuple[Any, Any]]
    )  # what must stay; its version or elements
    # The .grad slots and tensors that were written before the first callback.
    early: tuple[frozenset[tuple[int, int]], frozenset[int]] | None = None
