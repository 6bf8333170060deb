"""What a compiled call costs before its first kernel: the key of its arguments and the guards on everything it read.

    python benchmarks/dispatch.py [--rounds 15]

    cells     facts the recording relied on              rows     words of memory that stand for them
    guards    us to check them, natively                 Python   ... by the generated text alone, as where words fail
    key       us to sort out the arguments               call     us for the whole compiled call
    torch     us for a call compiled by a backend that returns a constant: guards and dispatch, nothing else
    jax       us for a jitted call that uses every leaf of its arguments

Contenders take turns, one slice each per round; a number is the median over rounds of the best of a slice. Tensors are
tiny. PyTorch and JAX take part where they are installed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

import tracejit as tj
from tracejit.tools.demo import Net
from tracejit.trace.guard import Checker
from tracejit.trace.key import flatten

try:
    import torch
except ImportError:
    torch = None
try:
    import jax
except ImportError:
    jax = None

Call = Callable[[], Any]


def mlp(T: Any) -> Any:
    """Three linear layers."""
    n = T.nn
    return n.Sequential(n.Linear(8, 8), n.ReLU(), n.Linear(8, 8), n.ReLU(), n.Linear(8, 4))


def transformer(T: Any) -> Any:
    """Six layers, 100 parameters."""

    class Layer(T.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.out = (T.nn.Linear(8, 8) for _ in range(4))
            self.up, self.down = T.nn.Linear(8, 16), T.nn.Linear(16, 8)
            self.norm1, self.norm2 = T.nn.LayerNorm(8), T.nn.LayerNorm(8)

        def forward(self, x: Any) -> Any:
            h = self.norm1(x)
            scores = self.q(h) @ self.k(h).transpose(-1, -2) / 8**0.5
            x = x + self.out(T.softmax(scores, -1) @ self.v(h))
            return x + self.down(T.relu(self.up(self.norm2(x))))

    class Model(T.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = T.nn.ModuleList([Layer() for _ in range(6)])
            self.norm, self.head = T.nn.LayerNorm(8), T.nn.Linear(8, 4)

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return self.head(self.norm(x))

    return Model()


def tensors(T: Any, *shape: int) -> Any:
    """Ones."""
    return T.ones(*shape)


def train_step(model: Any, optimizer: Any) -> Callable[..., Any]:
    """The demo's step."""

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = tj.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def add(a: Any, b: Any) -> Any:
    """a + b"""
    return a + b


def cases(T: Any) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """name -> (function, arguments)."""
    return {
        "2 tensors": (add, (tensors(T, 2), tensors(T, 2))),
        "3-layer MLP": (mlp(T), (tensors(T, 2, 8),)),
        "transformer, 100 parameters": (transformer(T), (tensors(T, 1, 4, 8),)),
    }


def ours(f: Any, args: tuple[Any, ...]) -> tuple[int, int, dict[str, Call]]:
    """(cells, rows, what to time)."""
    compiled = tj.compile(f)
    with tj.no_grad() if f is add or not hasattr(f, "__code__") else tj.enable_grad():
        for _ in range(14):
            compiled(*args)
    trace = max(compiled.traces(), key=lambda t: t.hits)
    guard, domain = trace.recording.guard, compiled.domain
    checker = getattr(guard.check, "__self__", None)
    rows = len(checker.laid[0].owner) if isinstance(checker, Checker) and checker.laid else 0
    grad = tj.enable_grad if hasattr(f, "__code__") and f is not add else tj.no_grad

    def call() -> None:
        with grad():
            compiled(*args)

    return (
        len(guard.rows),
        rows,
        {
            "guards": guard.check,
            "Python": guard.python,
            "key": lambda: flatten(domain, args, {}, ()),
            "call": call,
        },
    )


def constant(f: Any, args: tuple[Any, ...]) -> Call:
    """The function compiled by PyTorch with kernels that do nothing."""

    def backend(graph: Any, inputs: Any) -> Callable[..., Any]:
        out = graph(*inputs)
        return lambda *_: out

    compiled = torch.compile(f, backend=backend)

    def call() -> None:
        with torch.no_grad():
            compiled(*args)

    call()
    return call


def leaves(count: int) -> Call:
    """A jitted sum over `count` arrays in a list."""
    f = jax.jit(lambda xs: sum(x[0] for x in xs))
    xs = [jax.numpy.ones(2) for _ in range(count)]
    f(xs).block_until_ready()
    return lambda: f(xs)


def best(call: Call, seconds: float = 0.01) -> float:
    """Microseconds per call, the best of some batches."""
    n, spent, least = 1, 0.0, float("inf")
    while spent < seconds:
        start = time.perf_counter()
        for _ in range(n):
            call()
        took = time.perf_counter() - start
        spent, least = spent + took, min(least, took / n)
        n = min(max(n, int(0.001 / max(took / n, 1e-8))), 10_000)
    return least * 1e6


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    columns = ("guards", "Python", "key", "call", "torch", "jax")
    todo: list[tuple[str, int, int, dict[str, Call]]] = []
    theirs = cases(torch) if torch else {}
    for (name, (f, args)), count in zip(cases(tj).items(), (2, 6, 100)):
        cells, rows, calls = ours(f, args)
        if torch:
            calls["torch"] = constant(*theirs[name])
        if jax:
            calls["jax"] = leaves(count)
        todo.append((name, cells, rows, calls))
    model = Net(8, 8, 10)
    batch = tj.tensor(np.ones((64, 1, 8, 8), np.float32)), tj.tensor(np.zeros(64, np.int64))
    todo.append(("the demo's train step", *ours(train_step(model, tj.optim.Adam(model.parameters())), batch)))
    print(f"{'':<28} {'cells':>6} {'rows':>6}", *(f"{c:>9}" for c in columns))
    for name, cells, rows, calls in todo:
        times: dict[str, list[float]] = {c: [] for c in calls}
        for _ in range(rounds):
            for column, call in calls.items():
                times[column].append(best(call))
        shown = (f"{statistics.median(times[c]):9.2f}" if c in times else f"{'-':>9}" for c in columns)
        print(f"{name:<28} {cells:>6} {rows:>6}", *shown)


if __name__ == "__main__":
    main()
