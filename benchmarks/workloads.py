"""Fused and library workloads: tracejit compiled, PyTorch eager and compiled, jax.jit, and the limits of the machine.

    python benchmarks/workloads.py [gelu softmax ...] [--rounds 9] [--threads 2] [--torch-compile] [--small]

A workload is written once, over two namespaces: `T` (tracejit, torch, numpy or jax.numpy) and `F` (their functions by
the names of nn.functional). Every contender's result is held against NumPy's in float64 before anything is timed.
The limit is the time in which NumPy, a slice per thread, moves the bytes that have to be moved, or does the arithmetic
of the products: what is larger. It takes turns with the contenders. Winograd needs fewer products, and may exceed it.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from measuring import Call, Cell, Table, collect, installed, milliseconds, ratio, turns

Array = np.ndarray[Any, np.dtype[Any]]
Outputs = tuple[Any, ...]

ERROR = 1e-4  # at most, relative to the largest value of an output


@dataclass(frozen=True)
class Workload:
    """`run(T, F, *inputs)`; with `wrt`, also the gradients of its result for that many of the inputs."""

    inputs: tuple[Array, ...]
    run: Callable[..., Any]
    moved: int = 0  # bytes: each input read once, each output written once
    flops: int = 0  # of the products
    wrt: int = 0
    cotangent: Array | None = None  # of a result that is not a number
    gradients: Callable[..., Outputs] | None = None  # NumPy's, of (cotangent, *inputs)
    jax: Callable[..., Any] | None = None  # where JAX has to be told otherwise


# -- the workloads


def gelu(n: int = 4 << 20) -> Workload:
    """gelu (tanh form), 4M floats"""
    return Workload((normal(n),), lambda T, F, x: F.gelu(x, approximate="tanh"), moved=8 * n)


def black_scholes(n: int = 1 << 20) -> Workload:
    """Black-Scholes, call and put, 1M options"""

    def run(T: Any, F: Any, price: Any, strike: Any, years: Any) -> Any:
        spread = 0.2 * T.sqrt(years)
        d = (T.log(price / strike) + 0.07 * years) / spread
        below, above = (0.5 + 0.5 * T.erf(z * math.sqrt(0.5)) for z in (d - spread, d))
        paid = strike * T.exp(-0.05 * years)
        call = price * above - paid * below
        return call, call - price + paid

    return Workload((uniform(10, 100, n), uniform(10, 100, n), uniform(0.1, 2, n)), run, moved=20 * n)


def chain(n: int = 16 << 20) -> Workload:
    """20 pointwise ops, 16M floats"""

    def run(T: Any, F: Any, x: Any) -> Any:
        y = x * 0.3 - 0.7
        for c in (0.11, 0.9, -0.45, 0.62, -0.21, 0.08, -0.33, 0.57, 0.19):
            y = y * x + c
        return y

    return Workload((uniform(-1, 1, n),), run, moved=8 * n)


def softmax(rows: int = 4096) -> Workload:
    """softmax of rows, 4096 x 1024"""
    return Workload((3 * normal(rows, 1024),), lambda T, F, x: F.softmax(x, -1), moved=8 * rows * 1024)


def layer_norm(rows: int = 4096) -> Workload:
    """layer norm, forward and backward, 4096 x 1024"""

    def gradients(g: Array, x: Array, w: Array, b: Array) -> Outputs:
        centred = x - x.mean(1, keepdims=True)
        inverse = 1 / np.sqrt(np.square(centred).mean(1, keepdims=True) + 1e-5)
        unit, scaled = centred * inverse, g * w
        along = scaled.mean(1, keepdims=True) + unit * (scaled * unit).mean(1, keepdims=True)
        return inverse * (scaled - along), (g * unit).sum(0), g.sum(0)

    return Workload(
        (normal(rows, 1024), normal(1024), normal(1024)),
        lambda T, F, x, w, b: F.layer_norm(x, (1024,), w, b),
        moved=16 * rows * 1024, wrt=3, cotangent=normal(rows, 1024), gradients=gradients,
    )  # fmt: skip


def statistics(rows: int = 4096) -> Workload:
    """logsumexp and variance of rows, 4096 x 1024"""
    return Workload(
        (normal(rows, 1024),),
        lambda T, F, x: (T.logsumexp(x, 1), T.var(x, 1, correction=0)),
        moved=4 * rows * 1024 + 8 * rows,
    )


def column_sum(rows: int = 8192) -> Workload:
    """sum over axis 0, 8192 x 2048"""
    return Workload((normal(rows, 2048),), lambda T, F, x: x.sum(0), moved=4 * rows * 2048 + 4 * 2048)


def cross_entropy(rows: int = 4096) -> Workload:
    """cross-entropy, forward and backward, 4096 x 1000"""

    def gradients(g: Array, x: Array, labels: Array) -> Outputs:
        return ((softmax_of(x) - np.eye(1000)[labels]) / len(x),)

    labels = np.random.default_rng(1).integers(0, 1000, rows)
    return Workload(
        (normal(rows, 1000), labels),
        lambda T, F, x, labels: F.cross_entropy(x, labels),
        moved=8 * rows * 1000 + 8 * rows, wrt=1, gradients=gradients,
    )  # fmt: skip


def linear(n: int = 1024) -> Workload:
    """relu(A @ B + bias), 1024 cubed"""
    return Workload(
        (normal(n, n), normal(n, n), normal(n)),
        lambda T, F, a, b, bias: F.relu(a @ b + bias),
        moved=12 * n * n, flops=2 * n**3,
    )  # fmt: skip


def conv(batch: int = 8) -> Workload:
    """3x3 convolution, 64 to 64 channels, 8 images of 56 x 56"""
    return Workload(
        (normal(batch, 64, 56, 56), normal(64, 64, 3, 3)),
        lambda T, F, x, w: F.conv2d(x, w, padding=1),
        moved=8 * batch * 64 * 56 * 56, flops=2 * batch * 64 * 64 * 9 * 56 * 56,
    )  # fmt: skip


def branches(n: int = 1 << 16) -> Workload:
    """if, while and if on data, 64K floats"""

    def run(T: Any, F: Any, x: Any) -> Any:
        x = x * x + 4 if x.sum() > 0 else -(x * x)
        while True:
            y = x * 0.5 + 1
            moved = T.sqrt(((y - x) ** 2).sum())
            x = y
            if moved < 0.05:
                break
        return T.exp(x - 2) * 3 if x.mean() > 2 else T.tanh(x)

    def for_jax(T: Any, F: Any, x: Any) -> Any:
        lax = importlib.import_module("jax.lax")

        def body(state: Any) -> Any:
            x, _ = state
            y = x * 0.5 + 1
            return y, T.sqrt(((y - x) ** 2).sum())

        x = lax.cond(x.sum() > 0, lambda x: x * x + 4, lambda x: -(x * x), x)
        x, _ = lax.while_loop(lambda state: state[1] >= 0.05, body, (x, T.float32(math.inf)))
        return lax.cond(x.mean() > 2, lambda x: T.exp(x - 2) * 3, T.tanh, x)

    # Each of 14 trips reads and writes x, in a cache that is shared at best: no limit that memory sets.
    return Workload((uniform(0, 1, n),), run, jax=for_jax)


# Name -> what makes it, of its full size; and the size with which it is checked and its compile time is measured.
WORKLOADS: dict[str, Callable[..., Workload]] = {
    f.__name__: f
    for f in (
        gelu, black_scholes, chain, softmax, layer_norm, statistics, column_sum, cross_entropy, linear, conv, branches,
    )
}  # fmt: skip
SMALL = {
    "gelu": 1 << 16, "black_scholes": 1 << 16, "chain": 1 << 16, "softmax": 64, "layer_norm": 64, "statistics": 64,
    "column_sum": 256, "cross_entropy": 64, "linear": 256, "conv": 1, "branches": 1 << 12,
}  # fmt: skip


def make(name: str, small: bool) -> Workload:
    """The workload of that name."""
    return WORKLOADS[name](SMALL[name]) if small else WORKLOADS[name]()


def normal(*shape: int) -> Array:
    return np.random.default_rng(math.prod(shape)).standard_normal(shape, np.float32)


def uniform(low: float, high: float, n: int) -> Array:
    return np.random.default_rng(int(100 * (low + high))).uniform(low, high, n).astype(np.float32)


# -- the namespaces that are not PyTorch's already


def softmax_of(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def numpy_spaces() -> tuple[Any, Any]:
    def layer_norm(x: Array, shape: Any, w: Array, b: Array) -> Array:
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * w + b

    def conv2d(x: Array, w: Array, padding: int) -> Array:
        padded = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], (2, 3))
        return np.moveaxis(np.tensordot(windows, w, ((1, 4, 5), (1, 2, 3))), 3, 1)

    T = SimpleNamespace(
        sqrt=np.sqrt, log=np.log, exp=np.exp, tanh=np.tanh, erf=np.vectorize(math.erf, otypes=[np.float64]),
        logsumexp=lambda x, axis: np.log(np.exp(x).sum(axis)), var=lambda x, axis, correction: x.var(axis),
    )  # fmt: skip
    F = SimpleNamespace(
        gelu=lambda x, approximate: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        softmax=lambda x, axis: softmax_of(x), relu=lambda x: np.maximum(x, 0), layer_norm=layer_norm, conv2d=conv2d,
        cross_entropy=lambda x, labels: -np.log(softmax_of(x)[np.arange(len(x)), labels]).mean(),
    )  # fmt: skip
    return T, F


def jax_spaces() -> tuple[Any, Any]:
    jax = importlib.import_module("jax")
    jnp = jax.numpy

    def layer_norm(x: Any, shape: Any, w: Any, b: Any) -> Any:
        return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * w + b

    def cross_entropy(x: Any, labels: Any) -> Any:
        return -jnp.take_along_axis(jax.nn.log_softmax(x), labels[:, None], 1).mean()

    T = SimpleNamespace(
        sqrt=jnp.sqrt, log=jnp.log, exp=jnp.exp, tanh=jnp.tanh, erf=jax.scipy.special.erf, float32=jnp.float32,
        logsumexp=jax.scipy.special.logsumexp, var=lambda x, axis, correction: jnp.var(x, axis),
    )  # fmt: skip
    F = SimpleNamespace(
        gelu=lambda x, approximate: jax.nn.gelu(x, approximate=True), softmax=jax.nn.softmax, relu=jax.nn.relu,
        conv2d=lambda x, w, padding: jax.lax.conv(x, w, (1, 1), "SAME"),
        layer_norm=layer_norm, cross_entropy=cross_entropy,
    )  # fmt: skip
    return T, F


# -- contenders: functions without arguments that give a tuple


def exact(work: Workload) -> Outputs:
    """NumPy's result in float64."""
    wide = [x.astype(np.float64) if x.dtype == np.float32 else x for x in work.inputs]
    out = as_tuple(work.run(*numpy_spaces(), *wide))
    return out + work.gradients(work.cotangent, *wide) if work.gradients else out


def on_tensors(lib: ModuleType, work: Workload, forward: Callable[[Any], Any], whole: Callable[[Any], Any]) -> Any:
    """The workload on torch's or tracejit's tensors: `forward` may compile its run, `whole` the gradients with it."""
    F = importlib.import_module(f"{lib.__name__}.nn.functional")
    tensors = [lib.from_numpy(x) for x in work.inputs]
    leaves = [t.requires_grad_() for t in tensors[: work.wrt]]
    cotangent = None if work.cotangent is None else lib.from_numpy(work.cotangent)

    @forward
    def run(*inputs: Any) -> Any:
        return work.run(lib, F, *inputs)

    @whole
    def outputs(*inputs: Any) -> Outputs:
        for leaf in leaves:
            leaf.grad = None
        out = run(*inputs)
        if work.wrt:
            out.backward(cotangent)
        return as_tuple(out) + tuple(leaf.grad for leaf in leaves)

    def call() -> Outputs:
        return outputs(*tensors)

    call.compiled = outputs
    return call


def plain(f: Any) -> Any:
    return f


def ours(work: Workload, compile: Callable[[Any], Any] | None = None) -> Any:
    """tracejit's contender; `call.compiled` is the compiled function."""
    import tracejit as tj

    return on_tensors(tj, work, plain, compile or tj.compile)


def on_jax(work: Workload) -> Call:
    jax = importlib.import_module("jax")
    spaces, run = jax_spaces(), work.jax or work.run

    @jax.jit
    def outputs(cotangent: Any, *inputs: Any) -> Outputs:
        if not work.wrt:
            return as_tuple(run(*spaces, *inputs))
        out, back = jax.vjp(lambda *leaves: run(*spaces, *leaves, *inputs[work.wrt :]), *inputs[: work.wrt])
        return (out, *back(jax.numpy.ones_like(out) if cotangent is None else cotangent))

    inputs = [None if x is None else jax.numpy.asarray(x) for x in (work.cotangent, *work.inputs)]
    return lambda: jax.block_until_ready(outputs(*inputs))


def as_tuple(out: Any) -> Outputs:
    return tuple(out) if isinstance(out, tuple | list) else (out,)


def contenders(work: Workload, threads: int, torch_compile: bool = False) -> dict[str, Call]:
    """Ours, and the peers that are installed."""
    import tracejit as tj

    tj.set_num_threads(threads)
    found: dict[str, Call] = {"ours": ours(work)}
    if torch := installed("torch"):
        torch.set_num_threads(threads)
        found["torch"] = on_tensors(torch, work, plain, plain)
        if torch_compile:
            found["torch.compile"] = on_tensors(torch, work, torch.compile, plain)
    if installed("jax"):
        found["jax"] = on_jax(work)
    return found


def error(call: Callable[[], Outputs], reference: Outputs) -> float:
    """The largest error of any output, relative to the largest value of it."""
    worst = 0.0
    for got, wanted in zip(call(), reference, strict=True):
        got = np.asarray(got.detach() if hasattr(got, "detach") else got, np.float64)
        assert got.shape == np.shape(wanted), f"shape {got.shape}, not {np.shape(wanted)}"
        worst = max(worst, float(np.max(abs(got - wanted)) / np.max(abs(wanted))))
    return worst


# -- what the machine can do


def limits(threads: int, small: bool) -> tuple[dict[str, Call], dict[str, float]]:
    """Contenders that move memory and multiply matrices, and how many bytes and flops a call of each is."""
    n, side = (1 << 20, 256) if small else (16 << 20, 1024)
    a, b, c = (np.full(n, v, np.float32) for v in (1, 2, 0))
    x, y, z = (np.full((side, side), v, np.float32) for v in (1, 2, 0))
    pool, parts = ThreadPoolExecutor(threads), [slice(n * k // threads, n * (k + 1) // threads) for k in range(threads)]
    calls: dict[str, Call] = {
        "copy": lambda: list(pool.map(lambda at: np.copyto(c[at], a[at]), parts)),
        "add": lambda: list(pool.map(lambda at: np.add(a[at], b[at], out=c[at]), parts)),
        "sgemm": lambda: np.matmul(x, y, out=z),
    }
    return calls, {"copy": 8 * n, "add": 12 * n, "sgemm": 2 * side**3}


def share(work: Workload, times: dict[str, list[float]], amounts: dict[str, float]) -> tuple[float | None, str]:
    """How much of the limit that binds ours reaches in the median round, in per cent, and which limit it is."""
    reached: dict[str, list[float]] = {"memory": [], "sgemm": []}
    for k, ours in enumerate(times["ours"]):
        rate = {name: amount / times[name][k] for name, amount in amounts.items()}
        reached["memory"].append(work.moved / max(rate["copy"], rate["add"]) / ours * 100)
        reached["sgemm"].append(work.flops / rate["sgemm"] / ours * 100)
    found = {name: float(np.median(values)) for name, values in reached.items()}
    binding = max(found, key=lambda name: found[name])
    return (found[binding], binding) if found[binding] else (None, "-")


def table(
    names: Sequence[str] = (), rounds: int = 9, threads: int = 0, torch_compile: bool = False, small: bool = False
) -> Table:
    """A row for each workload. Raises AssertionError where a contender's result is wrong."""
    threads = threads or os.cpu_count() or 1
    peers = {"torch": "PyTorch eager / ours", "torch.compile": "torch.compile / ours", "jax": "jax.jit / ours"}
    if not torch_compile:
        del peers["torch.compile"]

    def row(name: str) -> list[Cell]:
        work = make(name, small)
        calls, reference = contenders(work, threads, torch_compile), exact(work)
        for who, call in calls.items():
            for _ in range(5):  # plain, recorded, compiled
                found = error(call, reference)  # type: ignore[arg-type]
            assert found < ERROR, f"{name} by {who} is wrong by {found:.1e} of its largest value"
        machine, amounts = limits(threads, small)
        times = turns(calls | machine, rounds)
        percent, which = share(work, times, amounts)
        title = f"{name}, small" if small else WORKLOADS[name].__doc__
        return [title, milliseconds(times, "ours"), *(ratio(times, peer, "ours") for peer in peers), percent, which]

    return collect(("workload", "ours, ms", *peers.values(), "% of the limit", "limit"), map(row, names or WORKLOADS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(WORKLOADS)}; all by default")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=0, help="as many as there are cores by default")
    parser.add_argument("--torch-compile", action="store_true", help="beside torch.compile, which compiles for minutes")
    parser.add_argument("--small", action="store_true", help="small inputs: a check, not a measurement")
    options = parser.parse_args()
    if unknown := set(options.names) - set(WORKLOADS):
        parser.error(f"no workload {unknown.pop()!r}; there are {', '.join(WORKLOADS)}")
    table(**vars(options))


if __name__ == "__main__":
    main()
