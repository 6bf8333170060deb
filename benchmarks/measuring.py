"""What the benchmarks share: contenders that take turns, and tables of what was found.

A column whose header holds a `/` is a ratio of times, the peer's over ours: above 1 is in our favour.
"""

from __future__ import annotations

import importlib
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

SLICE = 0.05  # seconds of one contender in one round
WARM = 8  # calls, after which whatever compiles has compiled
PARK = 0.04  # seconds until the threads of the contender before wait no longer by spinning: OpenBLAS's take 0.03

Call = Callable[[], object]
Cell = str | int | float | None


@dataclass(frozen=True)
class Table:
    """Rows of cells under a header, the first cell a name; `busy` is how many cores others used meanwhile."""

    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    busy: float = 0.0

    @property
    def ratios(self) -> tuple[int, ...]:
        """The columns that are ratios and have any."""
        return tuple(k for k, name in enumerate(self.header) if "/" in name and any(self.column(k)))

    def column(self, k: int) -> list[Any]:
        """The cells of one column."""
        return [row[k] for row in self.rows]

    def mean(self, k: int) -> float:
        """The geometric mean of a column of ratios, over the rows that have one."""
        return math.exp(sum(map(math.log, found := list(filter(None, self.column(k))))) / len(found))

    def markdown(self) -> str:
        """The table as Markdown."""
        return "\n".join([*_head(self.header), *map(_line, self.rows)])


def collect(header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Table:
    """The table of `rows`, each printed as it comes."""
    print(*_head(header), sep="\n", flush=True)
    found: list[tuple[Cell, ...]] = []
    wall, used, own = time.perf_counter(), _seconds_of_cores(), _own_seconds()
    for row in rows:
        print(_line(row), flush=True)
        found.append(tuple(row))
    others = (_seconds_of_cores() - used) - (_own_seconds() - own)
    busy = max(0.0, others / (time.perf_counter() - wall))
    print(f"Others kept {busy:.2f} of {os.cpu_count()} cores busy.", flush=True)
    return Table(tuple(header), tuple(found), busy)


def _head(header: Sequence[str]) -> tuple[str, str]:
    return _line(header), "|---" + "|---:" * (len(header) - 1) + "|"


def _line(cells: Sequence[Cell]) -> str:
    return "| " + " | ".join(map(shown, cells)) + " |"


def shown(cell: Cell) -> str:
    """Three digits of a number, all of an integer."""
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 100 else f"{cell:.3g}"
    return f"{cell:,}" if isinstance(cell, int) else cell


def turns(calls: Mapping[str, Call], rounds: int, seconds: float = SLICE, warm: int = WARM) -> dict[str, list[float]]:
    """Seconds a call: in each round, one slice of each contender, after `warm` calls of each."""
    counts = {name: _calls_in(seconds, call, warm) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            time.sleep(PARK)
            call()  # the caches are this contender's again
            start = time.perf_counter()
            for _ in range(counts[name]):
                call()
            times[name].append((time.perf_counter() - start) / counts[name])
    return times


def _calls_in(seconds: float, call: Call, warm: int) -> int:
    for _ in range(warm):
        call()
    start = time.perf_counter()
    call()
    return max(1, round(seconds / (time.perf_counter() - start)))


def fastest(calls: Mapping[str, Call], seconds: float) -> dict[str, float]:
    """Seconds of this thread (others may be busy) for the fastest of many calls, taken in turn."""
    times = dict.fromkeys(calls, math.inf)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or math.inf in times.values():
        for name, call in calls.items():
            start = time.thread_time()
            call()
            times[name] = min(times[name], time.thread_time() - start)
    return times


def ratio(times: Mapping[str, Sequence[float]], above: str, below: str) -> float | None:
    """The median of the ratio within a round; None where either did not take part."""
    if above not in times or below not in times:
        return None
    return median(a / b for a, b in zip(times[above], times[below], strict=True))


def milliseconds(times: Mapping[str, Sequence[float]], name: str) -> float | None:
    """The median; None where `name` did not take part."""
    return median(times[name]) * 1e3 if name in times else None


def installed(name: str) -> Any:
    """The module of a peer, or None."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _own_seconds() -> float:
    """CPU seconds of this process and of those it has waited for."""
    return sum(os.times()[:4])


def _seconds_of_cores() -> float:
    """CPU seconds of the whole machine; where the system does not tell, this process's."""
    try:
        with open("/proc/stat") as file:
            user, nice, system, *_ = map(int, file.readline().split()[1:])
    except OSError:
        return _own_seconds()
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")
