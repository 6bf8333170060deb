"""No fork while code is made or modules are imported for it: the child would inherit locks, of LLVM, of the import
system, that nobody in it will ever release."""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import Any

__all__ = ["building", "hold"]

_PATIENCE = 10.0  # seconds that a fork waits for the others

_gate = threading.Lock()  # held during a fork
_open: dict[int, weakref.ref[building]] = {}  # works under way, in all threads
_locks: list[Any] = []


class building:
    """`with building():` a fork of the process waits until this is over.

    Made for interrupts, which may cut off both methods: no lock is left held, for only C takes it and lets it go, and a
    work whose end was cut off is over when its object is gone.
    """

    __slots__ = ("__weakref__", "thread")

    def __enter__(self) -> None:
        self.thread = threading.get_ident()
        if _is_working(self.thread):  # a fork that waits for this thread has the gate
            _open[id(self)] = weakref.ref(self)
            return
        with _gate:
            _open[id(self)] = weakref.ref(self)

    def __exit__(self, *exc: object) -> None:
        _open.pop(id(self), None)


def _is_working(me: int, *, others: bool = False) -> bool:
    """Whether this thread, or one of the others, has a work under way."""
    works = [ref() for ref in tuple(_open.values())]
    return any(w is not None and (w.thread == me) is not others for w in works)


def hold(lock: Any) -> None:
    """Hold `lock`, a context manager for anyone, during forks: it is free in the child."""
    _locks.append(lock)


def _before() -> None:
    _gate.acquire()  # until the fork is over nobody begins
    me, end = threading.get_ident(), time.monotonic() + _PATIENCE
    while _is_working(me, others=True) and time.monotonic() < end:
        time.sleep(0.001)
    for lock in _locks:
        lock.__enter__()


def _in_parent() -> None:
    for lock in _locks:
        lock.__exit__(None, None, None)
    _gate.release()


def _in_child() -> None:
    global _gate
    for lock in _locks:
        lock.__exit__(None, None, None)
    _gate = threading.Lock()
    me = threading.get_ident()
    for k, ref in tuple(_open.items()):
        if (work := ref()) is None or work.thread != me:
            del _open[k]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
