"""The garbage collector rests: while a call is recorded, for what a collection runs is Python code that is none of the
call's, and while code is made, for it would go through a hundred thousand objects that all live."""

from __future__ import annotations

import gc
import os
import threading

__all__ = ["resting"]


class _Collector:
    """Of this process: whoever wants it to rest, by thread. An interrupt may cut off any of this, so all of it may be
    done again."""

    def __init__(self) -> None:
        self.lock, self.works = threading.RLock(), False
        self.wishes: dict[int, int] = {}  # id of who wants it -> thread

    def rest(self, wish: resting) -> None:
        with self.lock:
            if not self.wishes:
                self.works = gc.isenabled()
            self.wishes[id(wish)] = threading.get_ident()
            gc.disable()

    def wake(self, wish: resting) -> None:
        with self.lock:
            if id(wish) in self.wishes:
                if len(self.wishes) == 1 and self.works:
                    gc.enable()
                del self.wishes[id(wish)]

    def in_child(self) -> None:
        """After a fork: other threads and their wishes are not there."""
        self.lock = threading.RLock()
        mine = {k: t for k, t in self.wishes.items() if t == threading.get_ident()}
        if self.wishes and not mine and self.works:
            gc.enable()
        self.wishes = mine


_collector = _Collector()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_collector.in_child)


class resting:
    """`with resting():` nothing is collected. Where an interrupt cuts its end off, it ends with this object."""

    __slots__ = ()

    def __enter__(self) -> None:
        _collector.rest(self)

    def __exit__(self, *exc: object) -> None:
        _collector.wake(self)

    def __del__(self) -> None:
        _collector.wake(self)
