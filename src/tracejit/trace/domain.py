"""What tracing must know about tensors: `trace` lies below `tensor`, so the Tensor layer hands this in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tracejit.ir.graph import Graph
from tracejit.ir.node import Node
from tracejit.records import dataclass

__all__ = ["Anatomy", "Array", "Domain", "Replay", "Tape", "is_library", "is_recorder"]

Array = np.ndarray[Any, np.dtype[Any]]

# Packages whose Python code reports what it reads to the recorder, so it runs plain. nn, optim, data and all user
# code are instrumented instead. nn.functional is functions of arguments and modes only.
_FOLDERS = """
    tensor ops ir passes codegen runtime cached config errors importing logs records nn.functional nn.parameter
    trace.builder
"""
_LIBRARY = frozenset(("tracejit", *(f"tracejit.{name}" for name in _FOLDERS.split())))
_BELOW = tuple(f"tracejit.{name}." for name in _FOLDERS.split())


def is_library(module: Any) -> bool:
    """True for names of modules that run plain and report their own reads."""
    return isinstance(module, str) and (module in _LIBRARY or module.startswith(_BELOW))


def is_recorder(module: Any) -> bool:
    """True for names of modules of the recorder itself."""
    return isinstance(module, str) and module.startswith("tracejit.trace.") and not is_library(module)


@dataclass(frozen=True)
class Anatomy:
    """Which slots of a tensor hold what: lets guards compare memory instead of asking."""

    slots: Mapping[str, Any]  # name -> descriptor
    array: str
    grad: str
    hooks: str  # None in it: there are none
    leaf: str  # True in it: it asks for gradients itself
    parent: str  # None in it: it is no view
    tape: (
        str  # None in it: no op on the tape made it; right for a view if `seen` holds what `number` of its version does
    )
    seen: str
    version: str  # an object with slots that all tensors over its memory share
    number: Any  # descriptor of that object's slot: how often the memory was written
    where: Any  # ... and by what last
    modes: tuple[str, ...]  # slots of `config.Modes` that hold what `Domain.modes` says
    facts: Callable[[Any], tuple[str, ...] | None]  # slots that hold None, True or False and, with the class and the
    # array's dtype, shape, strides and writeable flag, decide `Domain.facts`; None where more does


@dataclass(frozen=True, eq=False)
class Replay:
    """How to compute a segment's gradients on the tape, for gradients of gradients."""

    graph: Graph  # (cotangents, parameters) -> gradients, then whatever `off_tape` counts on
    off_tape: Mapping[Node, Node | None]
    sources: Mapping[Node, int]  # the value behind an edge of the segment -> the edge


@dataclass(frozen=True)
class Tape:
    """Cutting the gradient tape of a recording, and rebuilding it: see tensor/domain.py."""

    position: Callable[[], int]
    kept_behind: Callable[[Sequence[Any], int], list[tuple[Any, list[Any]]]]
    record_backward: Callable[[Any, Sequence[Any], int], Sequence[Any]]
    attach_segment: Callable[..., Any]
    attach_rule: Callable[..., Any]
    attach_failed: Callable[..., Any]
    fill_rule: Callable[..., None]
    hook_on: Callable[..., None]
    stand_at: Callable[..., None]


@dataclass(frozen=True)
class Domain:
    """The tensor type and what can be asked of a tensor."""

    tensor: type
    array: Callable[[Any], Array]  # its memory, now
    facts: Callable[[Any], tuple[Any, ...]]  # what an op on it may depend on besides its elements, hashable
    needs_grad: Callable[[Any], bool]
    has_tape: Callable[[Any], bool]  # made by an op on the gradient tape
    edge: Callable[[Any], Any]  # its place on the tape: (entry, result), itself where it is a leaf, or None
    wrap: Callable[[Array, bool], Any]  # a fresh leaf over an array, requiring grad or not
    view: Callable[[Any, Any, bool], Any]  # (parent, view op, on the tape): the view
    count: Callable[[Any], int]  # how often its memory was written
    written: Callable[[Any, int, str | None], None]  # ... is so often now, last there
    parent: Callable[[Any], tuple[Any, Any] | None]  # (tensor, view op) of a view
    get_grad: Callable[[Any], Any]
    set_grad: Callable[[Any, Any], None]
    get_hooks: Callable[[Any], Any]
    constants: tuple[type, ...]  # immutable values of the library: dtypes, devices
    library_tensors: Callable[[], tuple[Any, ...]]  # state that the library owns: the default generator's
    modes: Callable[[], tuple[Any, ...]]  # what changes the meaning of ops: grad mode
    tape: Tape
    compile: Callable[..., Any]  # (function, hot, backend, verify, background): compiled; pickles by name
    anatomy: Anatomy | None = None  # None: tensors are asked, not read
