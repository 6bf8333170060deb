"""The threads that help a program: started at its first wide step, asleep when idle, gone before the process ends.

One team serves one caller at a time; a caller that finds it busy runs alone, with the same result. A forked child has
no helpers and starts its own when it needs them. What they do is in `walker.py`.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import threading
import time
from functools import cache
from typing import Final

from tracejit import config
from tracejit.runtime.walker import TEAM, WORKER, has_threads, native

__all__ = ["Team", "current", "size_now", "words"]

# Looks at the ticket before a helper sleeps: some 50 us, the gap between two calls of a training loop. Waking a
# sleeper takes about as long, and a busy neighbour loses no more than that to us.
SPIN = 2000
LIMIT = 1024  # helpers; a ticket has room for 65535 slices


class Team:
    """`size` threads, the caller's among them. `address` is what the native walker takes."""

    def __init__(self, size: int) -> None:
        assert 2 <= size <= LIMIT, f"a team of {size} threads"
        stride = len(WORKER)
        first = -(-(TEAM["claims"] + size) // 8) * 8  # workers begin on a cache line
        self._memory = ctypes.create_string_buffer(8 * (first + stride * size) + 64)
        self.address = -(-ctypes.addressof(self._memory) // 64) * 64
        self.words = (ctypes.c_int64 * (first + stride * size)).from_address(self.address)
        self.words[TEAM["spin"]] = SPIN
        self._workers: list[int] = []
        for number in range(1, size):
            at = first + stride * (number - 1)
            self.words[at + WORKER["team"]] = self.address
            self.words[at + WORKER["id"]] = number
            worker = self.address + 8 * at
            if not _start(worker):
                break  # the system allows no more threads: a smaller team
            self._workers.append(worker)
        self.size = self.words[TEAM["size"]] = len(self._workers) + 1

    def stop(self) -> None:
        """End the helpers. The lock stays taken: who still holds this team runs alone."""
        walker = native()
        while not walker.acquire(self.address, 0):  # a caller is at work
            time.sleep(0)
        self.words[TEAM["stop"]] = 1
        self.words[TEAM["ticket"]] += 1 << 16
        walker.wake(self.address)
        for worker in self._workers:
            walker.join(worker)
        self._workers.clear()


def current() -> Team | None:
    """The team of the configured size, started now if need be; None where a program runs on its caller's thread."""
    wanted = size_now()
    return _team if wanted == _team_size else _resize(wanted)


# The threads of the process are state of the process.
_team: Team | None = None
_team_size = 0  # as asked for; -1 when the process is ending
_changing = threading.Lock()
# The same for native code: size as asked for, address, object. Another size is written first, so that none goes with
# another team's address.
words: Final = (ctypes.c_int64 * 3)()


def _set(team: Team | None, size: int) -> None:
    global _team, _team_size
    words[0] = -2
    words[1], words[2] = (0, 0) if team is None else (team.address, id(team))
    _team, _team_size = team, size
    words[0] = size


def size_now() -> int:
    """How many threads the configuration asks for."""
    return config.current().threads or _cores()


def _resize(wanted: int) -> Team | None:
    with _changing:
        if _team_size in (wanted, -1):
            return _team
        if (before := _team) is not None:
            _set(None, 0)
            before.stop()
        _set(Team(min(wanted, LIMIT)) if wanted > 1 and has_threads() else None, wanted)
        return _team


def _stop_at_exit() -> None:
    with _changing:
        if _team is not None:
            _team.stop()
        _set(None, -1)


def _forget_in_child() -> None:
    global _changing
    _set(None, 0)
    _changing = threading.Lock()


atexit.register(_stop_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


def _start(worker: int) -> bool:
    """Start a helper that takes no signals: those are for Python's threads."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        return native().start(worker) == 0
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@cache
def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
