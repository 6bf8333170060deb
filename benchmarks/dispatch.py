"""What a compiled call costs beside its kernels: guards on everything it read, and all the rest of the call.

    python benchmarks/dispatch.py [--rounds 15]

    cells     facts the recording relied on              rows     words of memory that stand for them
    guards    us to check them, natively                 Python   ... by the generated text alone, as where words fail
    call      us for the whole call, kernels included    through  ... where it has to go through Python, no native entry
    kernels   us for its kernels alone                   numpy    us for the same ops of NumPy
    torch     us for a call compiled by a backend that returns a constant: guards and dispatch, nothing else
    theirs    us for PyTorch to check the guards of that call natively: its own guard manager, as it decides whether a
              compiled function may be used, asked about the same arguments. Both checks are one call of a C function
              from Python (0.1 us of ours) with caches warm, both are of all that was read of the same model; ours
              leaves the arguments to the call, theirs includes them
    jax       us for the jitted function, waiting for its result; for models a jitted call that uses as many arrays

The bars at the end are the project's own: a call with 2 tensors 20 times cheaper than torch.compile's and 5 times
cheaper than jax.jit's, guards of 100 parameters below 1 us and 50 times cheaper than torch.compile's.

Contenders take turns, one slice each per round; a number is the median over rounds of the best of a slice. Tensors are
tiny. PyTorch and JAX take part where they are installed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import types
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from measuring import Call, Cell, Table, collect, installed, ratio, shown

import tracejit as tj
from tracejit.runtime import buffer, guards
from tracejit.tools.demo import Net
from tracejit.trace.guard import Checker
from tracejit.trace.key import flatten
from tracejit.trace.tree import resolve

torch, jax = installed("torch"), installed("jax")


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
        logits = model(x)
        loss = tj.nn.functional.cross_entropy(logits.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        return loss

    return step


def function(T: Any) -> Callable[[Any, Any], Any]:
    """Three ops."""
    return lambda a, b: T.relu(a * b + b)


def cases(T: Any) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """name -> (function, arguments)."""
    return {
        "2 tensors, 3 ops": (function(T), (tensors(T, 8), tensors(T, 8))),
        "3-layer MLP": (mlp(T), (tensors(T, 2, 8),)),
        "transformer, 100 parameters": (transformer(T), (tensors(T, 1, 4, 8),)),
    }


def ours(f: Any, args: tuple[Any, ...]) -> tuple[int, int, dict[str, Call]]:
    """(cells, rows, what to time)."""
    compiled, slow = tj.compile(f), tj.compile(f)
    for _ in range(14):
        compiled(*args)
        slow(*args)
    trace = max(compiled.traces(), key=lambda t: t.hits)
    assert any(trace is t for t, _ in compiled.front.directs), f"no native entry: {trace.unsaid}"
    guard = trace.recording.guard
    checker = getattr(guard.check, "__self__", None)
    calls: dict[str, Call] = {
        "call": lambda: compiled(*args),
        "through": lambda: type(slow).__call__(slow, *args),
        "kernels": kernels(trace, compiled.domain, args),
        "Python": guard.python,
    }
    if trace.recording.updates:  # two train steps would take turns with one model, and each see it move
        del calls["through"]
    rows, walk = 0, guards.first_difference()
    if isinstance(checker, Checker) and checker.laid and walk is not None:
        table = checker.laid[0]
        rows, where = len(table.owner), table.place
        calls["guards"] = lambda: walk(*where)
    return len(guard.rows), rows, calls


def kernels(trace: Any, domain: Any, args: tuple[Any, ...]) -> Call:
    """The trace's program on memory of its own."""
    tensors = resolve(domain, trace.recording, flatten(domain, args, {}, ()))
    e = trace.executable
    outputs = [buffer.empty(shape, dtype) for shape, dtype in (*e.output_types, *e.temp_types)]
    places = [*(domain.array(t).copy() for t in tensors), *e.plan.constants, *outputs]
    return lambda: e.plain.run_arrays(places, [])


def constant(f: Any, args: tuple[Any, ...]) -> Call:
    """The function compiled by PyTorch with kernels that do nothing."""

    def backend(graph: Any, inputs: Any) -> Callable[..., Any]:
        out = graph(*inputs)
        return lambda *_: out

    compiled = torch.compile(f, backend=backend)
    with torch.no_grad():
        compiled(*args)
    return lambda: compiled(*args)


def checked(f: Any, args: tuple[Any, ...]) -> Call:
    """PyTorch's check of the guards of a call that `constant` has compiled, as it makes it before each such call."""
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list
    from torch._dynamo.external_utils import wrap_inline

    is_function = isinstance(f, types.FunctionType)
    function, given = (f, args) if is_function else (type(f).forward, (f, *args))
    names = dict(zip(function.__code__.co_varnames, given))
    names |= {k: c.cell_contents for k, c in zip(function.__code__.co_freevars, function.__closure__ or ())}
    as_layer = wrap_inline(f).__code__  # what is compiled in place of a layer of PyTorch's own
    for code, known in ((function.__code__, names), (as_layer, {"fn": f, "args": args, "kwargs": {}})):
        for entry in _debug_get_cache_entry_list(code):
            check = entry.guard_manager.root.check
            with torch.no_grad():
                if check(known):
                    assert not check({**known, next(reversed(known)): None}), "guards that nothing can fail"
                    return lambda: check(known)
    raise LookupError(f"no compiled code of PyTorch's for {function.__qualname__}")


def jitted(count: int) -> Call:
    """The first case's function, or a sum over `count` arrays in a list."""
    if count == 2:
        f = jax.jit(lambda a, b: jax.nn.relu(a * b + b))
        a, b = jax.numpy.ones(8), jax.numpy.ones(8)
        return lambda: f(a, b).block_until_ready()
    g = jax.jit(lambda xs: sum(x[0] for x in xs))
    xs = [jax.numpy.ones(2) for _ in range(count)]
    return lambda: g(xs).block_until_ready()


def plain() -> Call:
    """The first case's function in NumPy."""
    a, b = np.ones(8, np.float32), np.ones(8, np.float32)
    return lambda: np.maximum(a * b + b, 0)


def best(call: Call, seconds: float = 0.02) -> float:
    """Microseconds per call, the best of many short batches: a busy machine leaves some of them alone."""
    call()
    start = time.perf_counter()
    call()
    n = max(1, min(200, int(1e-4 / max(time.perf_counter() - start, 1e-7))))
    spent, least = 0.0, float("inf")
    while spent < seconds:
        start = time.perf_counter()
        for _ in range(n):
            call()
        took = time.perf_counter() - start
        spent, least = spent + took, min(least, took / n)
    return least * 1e6


COLUMNS = ("guards", "Python", "call", "through", "kernels", "numpy", "torch", "theirs", "jax")
RATIOS = {
    "NumPy / call": ("numpy", "call"),
    "torch.compile / call": ("torch", "call"),
    "jax.jit / call": ("jax", "call"),
    "torch.compile's guards / guards": ("theirs", "guards"),
}


def rows(rounds: int) -> Iterator[list[Cell]]:
    """What is timed, case by case."""
    theirs = cases(torch) if torch else {}
    for (name, (f, args)), count in zip(cases(tj).items(), (2, 6, 100)):
        with tj.no_grad():
            cells, words, calls = ours(f, args)
        if torch:
            calls["torch"] = constant(*theirs[name])
            calls["theirs"] = checked(*theirs[name])
        if jax:
            calls["jax"] = jitted(count)
        if count == 2:
            calls["numpy"] = plain()
        yield row(name, False, cells, words, calls, rounds)
    model = Net(8, 8, 10)
    batch = tj.tensor(np.ones((2, 1, 8, 8), np.float32)), tj.tensor(np.zeros(2, np.int64))
    step = train_step(model, tj.optim.Adam(model.parameters()))
    yield row("the demo's train step", True, *ours(step, batch), rounds)
    model = transformer(tj)
    batch = tensors(tj, 1, 4, 8), tj.tensor([[0, 1, 2, 3]])
    step = train_step(model, tj.optim.Adam(model.parameters()))
    yield row("train step of the transformer", True, *ours(step, batch), rounds)


def row(name: str, grad: bool, cells: int, words: int, calls: dict[str, Call], rounds: int) -> list[Cell]:
    """Microseconds, the median over rounds."""
    times: dict[str, list[float]] = {c: [] for c in calls}
    with tj.set_grad_enabled(grad), torch.set_grad_enabled(grad) if torch else nullcontext():
        for _ in range(rounds):
            for column, call in calls.items():
                times[column].append(best(call))
    shown = [statistics.median(times[c]) if c in times else None for c in COLUMNS]
    return [name, cells, words, *shown, *(ratio(times, *pair) for pair in RATIOS.values())]


def table(rounds: int = 15) -> Table:
    """A row for each compiled function."""
    header = ("compiled call", "cells", "rows", *(f"{c}, us" for c in COLUMNS), *RATIOS)
    found = collect(header, rows(rounds))
    small, *_, large = (dict(zip(header, row)) for row in found.rows[:3])
    for name, value, wanted in (
        ("2 tensors: torch.compile / call", small["torch.compile / call"], "at least 20"),
        ("2 tensors: jax.jit / call", small["jax.jit / call"], "at least 5"),
        ("100 parameters: guards, us", large["guards, us"], "below 1"),
        ("100 parameters: torch.compile's guards / guards", large["torch.compile's guards / guards"], "at least 50"),
    ):
        print(f"{name}: {shown(value)} ({wanted})", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    table(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
