"""Opening a recording around a call, with a profile function as the net under it.

The net refuses a recording in which a Python frame ran that is neither instrumented nor the library's: C code called
back into Python where no hook saw it.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import gc
import os
import sys
import threading
import types
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from tracejit.runtime import engine
from tracejit.trace import calls
from tracejit.trace import hooks as hooks  # fills the table of hooks
from tracejit.trace.domain import is_library, is_recorder
from tracejit.trace.instrument import is_instrumented
from tracejit.trace.recorder import Recorder, active, opened

__all__ = ["run"]


_SLOTS = 4096
# int profile(PyObject *(table, ask), PyFrameObject *frame, int what, PyObject *): asks about frames of unknown code.
# A recording of one train step is 300 000 events; as a Python function this was two thirds of its time.
_TEXT = f"""
declare ptr @PyFrame_GetCode(ptr)
declare void @Py_DecRef(ptr)
declare ptr @PyTuple_GetItem(ptr, i64)
declare ptr @PyLong_AsVoidPtr(ptr)
declare ptr @PyObject_CallOneArg(ptr, ptr)

define i32 @tj_net(ptr %self, ptr %frame, i32 %what, ptr %arg) nounwind {{
entry:
  %is.call = icmp eq i32 %what, 0
  br i1 %is.call, label %call, label %fine
call:
  %code = call ptr @PyFrame_GetCode(ptr %frame)
  call void @Py_DecRef(ptr %code)
  %table.o = call ptr @PyTuple_GetItem(ptr %self, i64 0)
  %table = call ptr @PyLong_AsVoidPtr(ptr %table.o)
  %key = ptrtoint ptr %code to i64
  %start = lshr i64 %key, 4
  br label %probe
probe:
  %h = phi i64 [ %start, %call ], [ %h.next, %next ]
  %slot = and i64 %h, {_SLOTS - 1}
  %slot.p = getelementptr i64, ptr %table, i64 %slot
  %found = load i64, ptr %slot.p
  %hit = icmp eq i64 %found, %key
  br i1 %hit, label %fine, label %other
other:
  %free = icmp eq i64 %found, 0
  br i1 %free, label %ask, label %next
next:
  %h.next = add i64 %h, 1
  br label %probe
ask:
  %ask.o = call ptr @PyTuple_GetItem(ptr %self, i64 1)
  %answer = call ptr @PyObject_CallOneArg(ptr %ask.o, ptr %frame)
  %failed = icmp eq ptr %answer, null
  br i1 %failed, label %error, label %answered
answered:
  call void @Py_DecRef(ptr %answer)
  br label %fine
error:
  ret i32 -1
fine:
  ret i32 0
}}
"""


@cache
def _native() -> tuple[Any, int]:
    """(the code, the address of the profile function)"""
    code = engine.compile(_TEXT)
    return code, code.address("tj_net")


def _set_profile(function: int | None, argument: Any) -> None:
    set_profile: Any = ctypes.pythonapi.PyEval_SetProfile
    set_profile.argtypes, set_profile.restype = (ctypes.c_void_p, ctypes.c_void_p), None
    set_profile(function, None if argument is None else id(argument))


class Net:
    """Refuses recording r where a Python frame starts that nobody recorded."""

    def __init__(self, r: Recorder) -> None:
        self.r = r
        self.known: dict[int, bool] = {}  # id of code object -> fine wherever it is called
        self.fine = (ctypes.c_int64 * _SLOTS)()  # the fine ones again, hashed by address
        self.count = 0
        self.argument = (ctypes.addressof(self.fine), self.seen)

    def open(self) -> None:
        """Start watching this thread."""
        _set_profile(_native()[1], self.argument)

    def close(self) -> None:
        """Stop watching."""
        _set_profile(None, None)

    def unwatched(self, f: Callable[..., Any], *args: Any) -> Any:
        """f(*args), our own work."""
        self.close()
        try:
            return f(*args)
        finally:
            self.open()

    def seen(self, frame: types.FrameType) -> None:
        """A frame starts whose code is not in the table."""
        code, known = frame.f_code, self.known
        if (fine := known.get(id(code))) is None:
            name = frame.f_globals.get("__name__")
            fine = known[id(code)] = (
                is_instrumented(code) or is_library(name) or is_recorder(name) or _is_ours(name) or code in _PURE
            )
            self.r.keep.append(code)
            if fine and self.count < _SLOTS // 2:
                self._add(id(code))
        if fine:
            return
        above: Any = frame.f_back  # NumPy's and the standard library's own frames are fine right below our library
        while above is not None and not known.get(id(above.f_code), False):
            above = above.f_back
        if (
            above is None
            or not is_library(above.f_globals.get("__name__"))
            or not _is_support(frame.f_globals.get("__name__"))
        ):
            self.r.refuse(f"Python code ran unseen: {code.co_qualname}")

    def _add(self, key: int) -> None:
        slot = key >> 4
        while self.fine[slot % _SLOTS]:
            slot += 1
        self.fine[slot % _SLOTS] = key
        self.count += 1


_SUPPORT = frozenset(
    """
    numpy ml_dtypes functools contextlib abc enum dataclasses collections typing weakref threading os genericpath
    posixpath operator importlib copy copyreg warnings math itertools
""".split()
)


def _is_ours(module: Any) -> bool:
    """Modules that run no code of the user's unseen: a collection may free machine code of ours at any time, by
    llvmlite, and drop it from a weak dictionary; `from package import name` looks whether it is there."""
    return isinstance(module, str) and (
        module.partition(".")[0] in ("abc", "llvmlite", "weakref", "_weakrefset")
        or module in ("importlib._bootstrap", "_frozen_importlib")
    )


# Called by C code for classes whose whole contents are then guarded: they read what never changes.
_PURE: frozenset[types.CodeType] = frozenset((enum.Enum.__hash__.__code__,))


def _is_support(module: Any) -> bool:
    """Whether the library may use a module: its frames are fine right below ours."""
    return isinstance(module, str) and (module.partition(".")[0] in _SUPPORT or module.startswith("namedtuple_"))


class _Alone:
    """What there is one of for all threads, changed while anyone records: the limit of recursion and the collector.

    A KeyboardInterrupt may cut off any of this, so all of it may be done again.
    """

    def __init__(self) -> None:
        self.lock, self.limit, self.collects = threading.RLock(), 0, False
        self.recordings: set[Recorder] = set()

    def enter(self, r: Recorder) -> None:
        """A hook is three Python frames, and deep recursion of the user's must not notice them; what a collection runs
        is Python code that is none of the call's."""
        with self.lock:
            if not self.recordings:
                self.limit, self.collects = sys.getrecursionlimit(), gc.isenabled()
            self.recordings.add(r)
            if len(self.recordings) == 1:
                sys.setrecursionlimit(self.raised)
                gc.disable()

    @property
    def raised(self) -> int:
        """The limit meanwhile."""
        return min(4 * self.limit, 2**31 - 1)

    def leave(self, r: Recorder) -> None:
        """The last recording to end puts both back, but for a limit that someone set meanwhile."""
        with self.lock:
            if self.recordings == {r}:
                self.restore()
            self.recordings.discard(r)

    def restore(self) -> None:
        if sys.getrecursionlimit() == self.raised:
            sys.setrecursionlimit(self.limit)
        if self.collects:
            gc.enable()

    def in_child(self) -> None:
        """After a fork: the recordings of other threads are not there."""
        mine = active()
        if self.recordings and mine is None:
            self.restore()
        self.lock, self.recordings = threading.RLock(), set() if mine is None else {mine}


_alone = _Alone()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_alone.in_child)


def run(r: Recorder, f: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], *, net: bool) -> Any:
    """f(*args, **kwargs) inside recording r, with the net under it or not."""
    profile = sys.getprofile()
    r.invoke = functools.partial(calls.call, r)
    watch = Net(r) if net else None
    if watch is not None:
        r.unwatched = watch.unwatched
        _native()

    def put_back() -> None:
        if watch is not None:
            watch.close()
            sys.setprofile(profile)
        if active() is r:  # nobody records inside a recording, so there was none before
            opened(None).__enter__()
        _alone.leave(r)

    try:
        try:
            _alone.enter(r)
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
            watch.__dict__.pop("argument", None)
