"""No fork while code is made or modules are imported for it: the child would inherit locks, of LLVM, of the import
system, that nobody in it will ever release."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

__all__ = ["building", "hold"]

_PATIENCE = 10.0  # seconds that a fork waits for the others


class _Mine(threading.local):
    depth = 0


_mine = _Mine()
_count = 0  # of works under way, in all threads
_changed = threading.Condition(threading.Lock())
_locks: list[Any] = []


class building:
    """`with building():` a fork of the process waits until this is over."""

    def __enter__(self) -> None:
        global _count
        with _changed:
            _count += 1
        _mine.depth += 1

    def __exit__(self, *exc: object) -> None:
        global _count
        _mine.depth -= 1
        with _changed:
            _count -= 1
            _changed.notify_all()


def hold(lock: Any) -> None:
    """Hold `lock`, a context manager for anyone, during forks: it is free in the child."""
    _locks.append(lock)


def _before() -> None:
    _changed.acquire()  # until the fork is over nobody begins
    end = time.monotonic() + _PATIENCE
    while _count > _mine.depth and (left := end - time.monotonic()) > 0:
        _changed.wait(left)
    for lock in _locks:
        lock.__enter__()


def _in_parent() -> None:
    for lock in _locks:
        lock.__exit__(None, None, None)
    _changed.release()


def _in_child() -> None:
    global _count, _changed
    for lock in _locks:
        lock.__exit__(None, None, None)
    _count, _changed = _mine.depth, threading.Condition(threading.Lock())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
