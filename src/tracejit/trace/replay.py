"""The effects of a recording as a compiled call runs them: after its last check and its writes to tensors, in order.

What an effect is given are entries of the recording's plan, so a tensor that is returned and kept in a list is one
tensor, and a list that was made in the call and stored outside is new in every call. Up to the first effect a call can
still be given up for plain Python; from there on all that can fail is the world: a closed file, an interrupt. Then, as
in plain Python, what came before has happened.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tracejit.trace.outputs import Planner
from tracejit.trace.recorder import Recorder, describe

__all__ = ["Deed", "close", "ready", "run", "safe_stream"]


@dataclass(frozen=True, slots=True)
class Deed:
    """f of plan entries."""

    f: Callable[..., Any]
    operands: tuple[int, ...]
    keywords: tuple[tuple[str, int], ...]


def close(r: Recorder, planner: Planner) -> tuple[Deed, ...]:
    """The effects of a recording that is over, their operands planned."""
    for t, n in r.journal.frozen:
        if t._version.n != n:
            r.refuse("shows a tensor as text and writes it later")
    deeds: list[Deed] = []
    for e in r.journal.effects:
        if e.operands and e.f not in SHOWS:
            target, *rest = e.operands
            operands = (planner.target(target), *map(planner.entry, rest))
        else:
            operands = tuple(map(planner.entry, e.operands))
        deeds.append(Deed(e.f, operands, tuple((k, planner.entry(v)) for k, v in e.keywords.items())))
    return tuple(deeds)


def signature(deeds: Sequence[Deed]) -> str:
    """Text that differs where two recordings of one path did different things."""
    return repr([(describe(d.f), d.operands, d.keywords) for d in deeds])


SHOWS: tuple[Any, ...] = (print,)
_WRITERS = (io.TextIOWrapper.write, io.StringIO.write)


def safe_stream(s: Any) -> bool:
    """Whether writing text to s runs no code of the user's."""
    return s is None or getattr(type(s), "write", None) in _WRITERS


def ready(deeds: Sequence[Deed]) -> str | None:
    """Why the effects may not be run now; None where they may."""
    if any(d.f is print for d in deeds) and not safe_stream(sys.stdout):
        return "print() would run code of the user's"
    return None


def run(deeds: Sequence[Deed], made: Sequence[Any]) -> None:
    """Do them."""
    for d in deeds:
        d.f(*[made[i] for i in d.operands], **{k: made[i] for k, i in d.keywords})
