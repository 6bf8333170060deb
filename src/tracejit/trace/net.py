"""Opening a recording around a call, with a watch over all Python frames as the net under it.

The net refuses a recording in which a Python frame ran that is neither instrumented nor the library's: C code called
back into Python where no hook saw it.
"""

from __future__ import annotations

import enum
import functools
import os
import sys
import threading
import types
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from tracejit.runtime.collector import resting
from tracejit.trace import calls
from tracejit.trace import hooks as hooks  # fills the table of hooks
from tracejit.trace.domain import is_library, is_recorder
from tracejit.trace.instrument import is_instrumented
from tracejit.trace.recorder import Recorder, active, opened
from tracejit.trace.watch import Watcher, tower

__all__ = ["run"]


class Net:
    """Refuses recording r where a Python frame starts that nobody recorded."""

    def __init__(self, r: Recorder) -> None:
        self.r = r
        self.known: dict[int, bool] = {}  # id of code object -> fine wherever it is called
        self.watcher = Watcher(self.seen, self.too_deep)

    def open(self) -> None:
        """Start watching this thread."""
        if not tower.open(self.watcher):
            self.r.refuse("nothing is left to watch this thread by: other threads record, or other tools monitor")

    def unwatched(self, f: Callable[..., Any], *args: Any) -> Any:
        """f(*args), our own work."""
        paused = tower.pause()
        try:
            return f(*args)
        finally:
            tower.resume(paused)

    def seen(self, code: types.CodeType, globals: Any, above: types.FrameType | None) -> bool:
        """A frame starts: whether its code is fine wherever it is called."""
        if self.is_fine(code, globals):
            return True
        while above is not None and not self.is_fine(above.f_code, above.f_globals):
            above = above.f_back  # NumPy's and the standard library's own frames are fine right below our library
        if above is None or not is_library(above.f_globals.get("__name__")) or not _is_support(globals.get("__name__")):
            self.r.refuse(f"Python code ran unseen: {code.co_qualname}")
        return False

    def is_fine(self, code: types.CodeType, globals: Any) -> bool:
        """Whether code is instrumented, or the library's or the recorder's own."""
        if (fine := self.known.get(id(code))) is None:
            name = globals.get("__name__")
            fine = (type(name) is str and _runs_plain(name)) or is_instrumented(code) or code in _PURE
            self.known[id(code)] = fine
            self.r.keep.append(code)
        return fine

    def too_deep(self) -> None:
        """The stack has no room for a recording."""
        self.r.refuse("calls go too deep to be recorded")


_SUPPORT = frozenset(
    """
    numpy ml_dtypes functools contextlib abc enum dataclasses collections typing weakref threading os genericpath
    posixpath operator importlib copy copyreg warnings math itertools
""".split()
)


@lru_cache(maxsize=4096)
def _runs_plain(module: str) -> bool:
    """Modules that run no code of the user's unseen. Of those that are not ours, a collection may free machine code at
    any time, by llvmlite, and drop it from a weak dictionary; `from package import name` looks whether it is there."""
    return (
        is_library(module)
        or is_recorder(module)
        or module.partition(".")[0] in ("abc", "llvmlite", "weakref", "_weakrefset")
        or module in ("importlib._bootstrap", "_frozen_importlib")
    )


# Called by C code for classes whose whole contents are then guarded: they read what never changes.
_PURE: frozenset[types.CodeType] = frozenset((enum.Enum.__hash__.__code__,))


def _is_support(module: Any) -> bool:
    """Whether the library may use a module: its frames are fine right below ours."""
    return isinstance(module, str) and (module.partition(".")[0] in _SUPPORT or module.startswith("namedtuple_"))


class _Limit:
    """The limit of recursion, which there is one of for all threads, changed while anyone records: a hook is three
    Python frames, and deep recursion of the user's must not notice them.

    A KeyboardInterrupt may cut off any of this, so all of it may be done again.
    """

    def __init__(self) -> None:
        self.lock, self.limit = threading.RLock(), 0
        self.recordings: set[Recorder] = set()

    def enter(self, r: Recorder) -> None:
        """The first recording to begin raises it."""
        with self.lock:
            if not self.recordings:
                self.limit = sys.getrecursionlimit()
            self.recordings.add(r)
            if len(self.recordings) == 1:
                sys.setrecursionlimit(self.raised)

    @property
    def raised(self) -> int:
        """The limit meanwhile."""
        return min(4 * self.limit, 2**31 - 1)

    def leave(self, r: Recorder) -> None:
        """The last recording to end puts it back, unless someone set it meanwhile."""
        with self.lock:
            if self.recordings == {r}:
                self.restore()
            self.recordings.discard(r)

    def restore(self) -> None:
        if sys.getrecursionlimit() == self.raised:
            sys.setrecursionlimit(self.limit)

    def in_child(self) -> None:
        """After a fork: the recordings of other threads are not there."""
        mine = active()
        if self.recordings and mine is None:
            self.restore()
        self.lock, self.recordings = threading.RLock(), set() if mine is None else {mine}
        tower.in_child()


_limit = _Limit()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_limit.in_child)


def run(r: Recorder, f: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], *, net: bool) -> Any:
    """f(*args, **kwargs) inside recording r, with the net under it or not."""
    r.invoke = functools.partial(calls.call, r)
    watch = Net(r) if net else None
    if watch is not None:
        r.unwatched = watch.unwatched

    def put_back() -> None:
        if watch is not None:
            tower.close()
        if active() is r:  # nobody records inside a recording, so there was none before
            opened(None).__enter__()
        _limit.leave(r)

    try:
        with resting():  # to the end: what is collected then is none of the call's
            try:
                _limit.enter(r)
                with opened(r):
                    if watch is not None:
                        watch.open()
                    return r.invoke(f, args, kwargs)
            finally:
                put_back()
    finally:  # again, where an interrupt has cut that short
        put_back()
        r.__dict__.pop("invoke", None)  # cycles would keep what the recording saw alive
        r.__dict__.pop("unwatched", None)
        if watch is not None:
            watch.__dict__.pop("watcher", None)
