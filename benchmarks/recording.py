"""What recording a call costs beside running it: the forward pass of a transformer of 100 parameters, on tiny tensors.

    python benchmarks/recording.py [--rounds 15]

    eager     ms of a plain call
    first     ... of a recording with the net under it, code already rewritten (the first of a path)
    second    ... without the net (the one that confirms it)
    cold      ... of the very first recording of a process's functions: their code is rewritten, or found in the store

CPU time of this thread. Contenders take turns, one call each per round; a number is the median over rounds of its
ratio to the plain calls around it.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from dispatch import transformer
from measuring import Cell, Table, collect

import tracejit as tj
from tracejit.tensor.jit import DOMAIN
from tracejit.trace import instrument
from tracejit.trace.key import flatten
from tracejit.trace.recording import Recording, record


def cpu_ms(f: Callable[[], Any]) -> float:
    """Milliseconds of CPU that f took."""
    start = time.thread_time()
    f()
    return (time.thread_time() - start) * 1e3


def rows(rounds: int) -> Iterator[list[Cell]]:
    """What was found, once all is measured."""
    model, x = transformer(tj), tj.randn(2, 4, 8)

    def run(net: bool) -> None:
        call = flatten(DOMAIN, (x,), {}, ())
        _, found = record(DOMAIN, model, (x,), {}, call, "model", net=net)
        assert isinstance(found, Recording), found
        if net:
            found.seal(DOMAIN)

    def cold() -> None:
        instrument.forget()
        run(True)

    kinds: dict[str, Callable[[], None]] = {"first": lambda: run(True), "second": lambda: run(False), "cold": cold}
    model(x), cold()
    took: dict[str, list[float]] = {name: [] for name in ("eager", *kinds)}
    ratios: dict[str, list[float]] = {name: [] for name in kinds}
    gc.disable()
    for _ in range(rounds):
        for name, f in kinds.items():
            before = min(cpu_ms(lambda: model(x)) for _ in range(3))
            ms = cpu_ms(f)
            eager = min(before, *(cpu_ms(lambda: model(x)) for _ in range(3)))
            took["eager"].append(eager)
            took[name].append(ms)
            ratios[name].append(ms / eager)
        gc.collect()
    for name, ms in took.items():
        yield [name, statistics.median(ms), statistics.median(ratios[name]) if name in ratios else None]


def table(rounds: int = 15) -> Table:
    """A row for each kind of call."""
    return collect(("call", "CPU, ms", "recording / plain"), rows(rounds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    table(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
