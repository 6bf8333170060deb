"""The effects of a recording as a compiled call runs them: after its last check and its writes to tensors, in order.

What an effect is given are entries of the recording's plan, so a tensor that is returned and kept in a list is one
tensor, and a list that was made in the call and stored outside is new in every call. Up to the first write a call can
still be given up for plain Python; from there on all that can fail is the world, a closed file: then, as in plain
Python, what came before has happened. An interrupt waits until all has happened (`runtime/interrupts.py`), unless it
comes while Python of the user's runs, a callback: then it is raised there.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from functools import partial
from operator import call
from typing import Any

from tracejit.errors import CallbackError
from tracejit.records import dataclass
from tracejit.trace import marks
from tracejit.trace.guard import Guard, build
from tracejit.trace.objects import describe, elements
from tracejit.trace.outputs import Planner, watch
from tracejit.trace.recorder import Recorder

__all__ = ["CALLBACKS", "Deed", "Steady", "close", "ready", "run", "safe_stream", "steady"]


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
        if e.operands and e.f not in TARGETLESS:
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
TARGETLESS: tuple[Any, ...] = (print, *CALLBACKS)  # effects that change nothing by themselves
_WRITERS = (io.TextIOWrapper.write, io.StringIO.write)


def safe_stream(s: Any) -> bool:
    """Whether writing text to s runs no code of the user's."""
    return s is None or getattr(type(s), "write", None) in _WRITERS


def ready(deeds: Sequence[Deed]) -> str | None:
    """Why the effects may not be run now; None where they may."""
    if any(d.f is print for d in deeds) and not safe_stream(sys.stdout):
        return "print() would run code of the user's"
    return None


def run(
    deeds: Sequence[Deed],
    made: Sequence[Any],
    steady: Steady | None,
    tensors: Sequence[Any],
    done: list[Any],
    at: int,
) -> None:
    """Do those that are not noted in `done` from `at` on, see `interrupts.py`; where one fails, `done` is emptied.
    `tensors` are those behind the call's parameters."""

    ready: list[Callable[[], Any]] = []
    for d in deeds[len(done) - at :]:
        operands = [made[i] for i in d.operands]
        keywords = {k: made[i] for k, i in d.keywords} if d.keywords else {}
        if steady is not None and d.f in CALLBACKS:
            ready.append(partial(steady.watching, tensors, d.f, *operands, **keywords))
        else:
            ready.append(partial(d.f, *operands, **keywords))
    left: Any = iter(ready)
    steps = map(call, left)
    try:
        done.extend(steps)
    except BaseException as e:
        over = len(done) - at
        if len(deeds) - left.__length_hint__() > over:  # it was raised inside of the first one that is not noted
            if deeds[over].f is print and not isinstance(e, Exception):
                done.append(None)  # an interrupt while it waited for the stream
            else:
                done.clear()
        raise


@dataclass(frozen=True, eq=False)
class Steady:
    """What callbacks must leave as it is."""

    guard: Guard  # facts that the call itself does not change
    watched: tuple[marks.Watch, ...]

    def watching(self, tensors: Sequence[Any], f: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Run a callback. CallbackError if it changes what it must not."""
        before = self.state(tensors)
        f(*args, **kwargs)
        if (changed := self.changed(before, tensors)) is not None:
            raise CallbackError(f"a callback changed what the compiled function reads or writes: {changed}")

    def state(self, tensors: Sequence[Any]) -> list[Any]:
        """What is compared: the watched, and how often each tensor was written."""
        return [*(w.read(None) for w in self.watched), *(t._version.n for t in tensors)]

    def changed(self, before: Sequence[Any], tensors: Sequence[Any]) -> str | None:
        """What differs, in words."""
        now = self.state(tensors)
        for k, (a, b) in enumerate(zip(before, now, strict=True)):
            if not marks.unchanged(a, b):
                return self.watched[k].name if k < len(self.watched) else "a tensor"
        row = self.guard.check()
        return None if row < 0 else str(self.guard.reason(row))


def steady(r: Recorder, deeds: Sequence[Deed], link: Callable[[Any], None]) -> Steady | None:
    """What the callbacks among the effects must leave as it is; refuses where they did not. None where there are
    none."""
    if r.reasons or not any(d.f in CALLBACKS for d in deeds):
        return None
    journal = r.journal
    cells = [c for c in r.cells.values() if not r.written(c.kind, c.owner, c.key) and id(c.owner) not in journal.before]
    guard = build(cells, r.domain, link)
    if (row := guard.check()) >= 0:
        r.refuse(f"a callback changes what the call reads: {guard.reason(row)}")
    return Steady(guard, tuple(marks.watches(r, lambda x: watch(x, link))))
