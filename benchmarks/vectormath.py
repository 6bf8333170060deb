"""Vector math: the largest error found (ULP) and the speed of each function, beside NumPy and PyTorch on one thread.

    python benchmarks/vectormath.py [--points 1000000] [--seconds 0.3]

Errors are against NumPy in the next wider type (erf in f64: against libm, which may itself be one ULP off), over random
bits and over the range where the function is interesting. Speeds are of 64 Ki elements, the best of
many rounds in which contenders take turns.
"""

from __future__ import annotations

import argparse
import ctypes
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from measuring import Cell, Table, collect, fastest, installed

from tracejit.codegen.llvm import vectormath
from tracejit.codegen.llvm.text import Module, i64, of, ptr
from tracejit.runtime import engine

Array = np.ndarray[Any, np.dtype[Any]]
DTYPES = {"f32": np.float32, "f64": np.float64}
RANGE = {
    "atan2": (-3, 3), "cos": (-1000, 1000), "erf": (-5, 5), "exp": (-80, 80), "expm1": (-20, 80), "log": (0, 100),
    "log1p": (-1, 3), "pow": (0, 10), "rsqrt": (0, 1000), "sigmoid": (-80, 80), "sin": (-1000, 1000), "tanh": (-12, 12),
}  # fmt: skip


def sigmoid(x: Array) -> Array:
    e = np.exp(-abs(x))
    return np.where(x < 0, e / (1 + e), 1 / (1 + e))


NUMPY: dict[str, Callable[..., Array]] = {
    "atan2": np.arctan2, "cos": np.cos, "exp": np.exp, "expm1": np.expm1, "log": np.log, "log1p": np.log1p,
    "erf": lambda x: np.vectorize(math.erf, otypes=[np.float64])(x.astype(np.float64)),
    "pow": np.power, "rsqrt": lambda x: 1 / np.sqrt(x), "sigmoid": sigmoid, "sin": np.sin, "tanh": np.tanh,
}  # fmt: skip


def compile_function(name: str, dtype: str) -> Callable[[list[Array], Array], None]:
    """`f(arguments, out)` for lengths that are multiples of 16."""
    lanes = 64 // of(dtype).bytes
    library = engine.compile(vectormath.module([(name, dtype, lanes)]))
    module, t, symbol = Module(), of(dtype, lanes), vectormath.symbol(name, dtype, lanes)
    f = module.function("run", None, {"out": ptr, "x": ptr, "y": ptr, "n": i64})
    out, x, y, n = f.args
    with f.loop(0, n, lanes) as i:
        args = [f.load(t, f.element(p, i, t)) for p in (x, y)[: vectormath.arity(name)]]
        f.store(f.call(symbol, t, *args), f.element(out, i, t))
    f.ret()
    code = engine.compile(module.text(), symbols={symbol: library.address(symbol)}, needs=(library,))
    pointer = ctypes.c_void_p
    run = ctypes.CFUNCTYPE(None, pointer, pointer, pointer, ctypes.c_int64)(code.address("run"))

    def call(args: list[Array], out: Array, code: engine.Code = code) -> None:
        run(out.ctypes.data, args[0].ctypes.data, args[-1].ctypes.data, len(out))

    return call


def error(name: str, f: Callable[..., None], args: list[Array]) -> float:
    out = np.empty_like(args[0])
    f(args, out)
    wide = np.float64 if out.dtype == np.float32 else np.longdouble
    with np.errstate(all="ignore"):
        exact = NUMPY[name](*(a.astype(wide) for a in args))
        rounded = exact.astype(out.dtype)
    finite = np.isfinite(rounded) & np.isfinite(out)
    return float(np.max(abs(out[finite] - exact[finite]) / np.spacing(abs(rounded[finite])), initial=0))


def torch_functions() -> dict[str, Callable[..., Any]]:
    torch = installed("torch")
    if torch is None:
        return {}
    torch.set_num_threads(1)
    table = {n: getattr(torch, n) for n in RANGE if hasattr(torch, n)}
    return {n: lambda *a, f=f: f(*map(torch.from_numpy, a)) for n, f in table.items()}


def table(points: int = 1 << 20, seconds: float = 0.3) -> Table:
    """A row for each function and type."""
    rng, peers = np.random.default_rng(0), torch_functions()
    points = points // 16 * 16

    def row(name: str, dtype: str) -> list[Cell]:
        t, f, arity = DTYPES[dtype], compile_function(name, dtype), vectormath.arity(name)
        bits = rng.integers(0, 256, (2, points, np.dtype(t).itemsize), dtype=np.uint8).reshape(2, -1).view(t)
        inside = [rng.uniform(*RANGE[name], points).astype(t), rng.uniform(-20, 20, points).astype(t)]
        errors = [error(name, f, list(args[:arity])) for args in (bits, inside)]
        short = [a[: 1 << 16] for a in inside[:arity]]
        out = np.empty_like(short[0])
        runs: dict[str, Callable[[], object]] = {"ours": partial(f, short, out), "numpy": partial(NUMPY[name], *short)}
        if name in peers:
            runs["torch"] = partial(peers[name], *short)
        with np.errstate(all="ignore"):
            times = fastest(runs, seconds)
        ours = times["ours"]
        ratios = [times[who] / ours if who in times else None for who in ("numpy", "torch")]
        return [f"{name} {dtype}", *errors, len(out) / ours / 1e9, *ratios]

    header = ("function", "ULP, all bits", "ULP, range", "ours, 1e9 elements/s", "NumPy / ours", "PyTorch / ours")
    return collect(header, (row(name, dtype) for name in sorted(vectormath.FUNCTIONS) for dtype in DTYPES))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=1 << 20)
    parser.add_argument("--seconds", type=float, default=0.3, help="for each line")
    table(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
