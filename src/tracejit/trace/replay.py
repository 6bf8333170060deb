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

from tracejit.errors import CallbackError
from tracejit.trace import marks
from tracejit.trace.outputs import Planner
from tracejit.trace.recorder import Cell, Recorder, describe, elements

__all__ = ["CALLBACKS", "Deed", "close", "ready", "run", "safe_stream", "steady"]


@dataclass(frozen=True, slots=True)
class Deed:
    """f of plan entries."""

    f: Callable[..., Any]
    operands: tuple[int, ...]
    keywords: tuple[tuple[str, int], ...]


def close(r: Recorder, planner: Planner) -> tuple[Deed, ...]:
    """The effects of a recording that is over, their operands planned."""
    for x, state in r.journal.frozen:
        if (x._version.n if r.is_tensor(x) else elements(x)) != state:
            r.refuse(f"writes {describe(x)} after it was shown or handed to a callback")
    if r.journal.early is not None and r.journal.early != marks.written(r):
        r.refuse("writes a tensor or a .grad after a callback")
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


CALLBACKS: tuple[Any, ...] = (marks.called, marks.called_by_name)
SHOWS: tuple[Any, ...] = (print,)  # effects without a target
_WRITERS = (io.TextIOWrapper.write, io.StringIO.write)


def safe_stream(s: Any) -> bool:
    """Whether writing text to s runs no code of the user's."""
    return s is None or getattr(type(s), "write", None) in _WRITERS


def ready(deeds: Sequence[Deed]) -> str | None:
    """Why the effects may not be run now; None where they may."""
    if any(d.f is print for d in deeds) and not safe_stream(sys.stdout):
        return "print() would run code of the user's"
    return None


def run(deeds: Sequence[Deed], made: Sequence[Any], settled: Callable[[], str | None]) -> None:
    """Do them. `settled` says what a callback has changed that the call relied on."""
    for d in deeds:
        d.f(*[made[i] for i in d.operands], **{k: made[i] for k, i in d.keywords})
        if d.f in CALLBACKS and (changed := settled()) is not None:
            raise CallbackError(f"a callback changed what the compiled function reads: {changed}")


def steady(r: Recorder) -> tuple[Cell, ...]:
    """The facts that must still hold after a callback: those that the call itself does not change."""
    journal = r.journal
    return tuple(c for k, c in r.cells.items() if k not in journal.written and id(c.owner) not in journal.before)
