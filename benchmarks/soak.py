"""Does a process that compiles for ever keep a flat memory?

    python benchmarks/soak.py --minutes 10

Each turn meets what no turn met before: a shape, a constant, a closure, a module, a function made of new source, a
compiled function that lives for a moment, a branch. Resident memory is read after a collection, once in a while; the
slope after the first fifth is what leaks.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tracejit as tj
from tracejit.runtime import store

CALLS = 5  # recorded twice, compiled, run twice


@dataclass
class Service:
    """A long-lived compiled function and the world it reads."""

    scale: list[float] = field(default_factory=lambda: [1.0])
    layer: Any = field(default_factory=lambda: tj.nn.Linear(4, 4))

    def __post_init__(self) -> None:
        self.body = tj.compile(lambda x: (x * self.scale[0]).relu() + x.sum())
        self.branch = tj.compile(lambda x, k: x + 1 if x.sum() > k else x - 1)
        self.forward = tj.compile(lambda x: self.layer(x))


def new_shape(s: Service, i: int) -> None:
    """The same function, another shape."""
    x = tj.ones(1 + i % 4099, 2)
    for _ in range(CALLS):
        s.body(x)


def new_constant(s: Service, i: int) -> None:
    """A number that the function reads has changed."""
    s.scale[0] = float(i)
    for _ in range(CALLS):
        s.body(tj.ones(3))


def new_branch(s: Service, i: int) -> None:
    """Data leads the other way."""
    x = tj.ones(3) * (1 - 2 * (i % 2))
    for _ in range(CALLS):
        s.branch(x, float(i % 7))


def new_layer(s: Service, i: int) -> None:
    """A module is replaced."""
    s.layer = tj.nn.Linear(4, 4)
    for _ in range(CALLS):
        s.forward(tj.ones(2, 4))


def new_closure(s: Service, i: int) -> None:
    """A compiled closure that lives for one turn."""
    f = tj.compile(lambda x: x * i + 1)
    for _ in range(CALLS):
        f(tj.ones(1 + i % 97))


def new_source(s: Service, i: int) -> None:
    """Source text compiled by Python, then by us: new code objects."""
    space: dict[str, Any] = {}
    exec(compile(f"def f(x):\n    return x * {i} + x.exp() * {i % 13}\n", f"<soak {i}>", "exec"), space)
    f = tj.compile(space["f"])
    for _ in range(CALLS):
        f(tj.ones(4))


def new_step(s: Service, i: int) -> None:
    """A train step of its own: gradients, an optimizer, updates."""
    layer = tj.nn.Linear(3, 1 + i % 5)
    optimizer = tj.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = layer(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    f = tj.compile(step)
    for _ in range(CALLS + 2):
        f(tj.ones(2, 3))


TURNS: tuple[Callable[[Service, int], None], ...] = (
    new_shape, new_constant, new_branch, new_layer, new_closure, new_source, new_step,
)  # fmt: skip


def rss() -> int:
    """Resident bytes, after what can be given back was; the store keeps up to 8 MB in memory besides."""
    store.current().forget()
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def soak(turns: Sequence[Callable[[Service, int], None]], until: Callable[[int], bool], every: int) -> list[int]:
    """Resident bytes after each `every` rounds of `turns`, until `until(round)`."""
    service, found, i = Service(), list[int](), 0
    while not until(i):
        for turn in turns:
            turn(service, i)
        i += 1
        if i % every == 0:
            found.append(rss())
    return found


def slope(readings: Sequence[int], every: int) -> float:
    """Bytes per round after the first fifth, by least squares."""
    y = readings[len(readings) // 5 :]
    x = [every * k for k in range(len(y))]
    mx, my = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mx) * (b - my) for a, b in zip(x, y)) / max(sum((a - mx) ** 2 for a in x), 1)


def main() -> None:
    """Print what each turn leaves behind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--only", choices=[t.__name__ for t in TURNS])
    parser.add_argument("--each", action="store_true", help="every turn on its own, sharing the time")
    options = parser.parse_args()
    chosen = tuple(t for t in TURNS if options.only in (None, t.__name__))
    sets = [(t,) for t in chosen] if options.each else [chosen]
    print(f"{'turn':24} {'rounds':>7} {'MB before':>10} {'MB after':>9} {'bytes per round':>16}")
    for turns in sets:
        end = time.monotonic() + 60 * options.minutes / len(sets)
        every = 20
        readings = soak(turns, lambda _, end=end: time.monotonic() > end, every)
        name = turns[0].__name__ if len(turns) == 1 else "all"
        first, last = readings[len(readings) // 5] / 2**20, readings[-1] / 2**20
        rounds = every * len(readings)
        print(f"{name:24} {rounds:7} {first:10.1f} {last:9.1f} {slope(readings, every):16.0f}", flush=True)


if __name__ == "__main__":
    main()
