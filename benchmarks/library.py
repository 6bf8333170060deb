"""Library kernels on one thread beside NumPy and PyTorch: matmul, and convolution with both of its gradients.

    python benchmarks/library.py [matmul] [conv] [--seconds 0.5]

Contenders take turns within one process; each number is the best of many rounds, the ratios are time over ours. Ours is
called as a program calls it, on buffers that exist; NumPy and PyTorch write into existing ones where they can (matmul).
"""

from __future__ import annotations

import argparse
import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from measuring import Cell, Table, collect, fastest, installed

from tracejit.codegen.llvm import conv, matmul, winograd
from tracejit.codegen.llvm.matmul import Call
from tracejit.runtime import buffer, engine

Array = np.ndarray[Any, np.dtype[Any]]
BITS = engine.vector_bits()

SIZES = [
    (64, 64, 64), (256, 256, 256), (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (64, 256, 784),
    (128, 10, 256), (128, 1536, 384), (1024, 256, 1024), (8192, 64, 64), (1, 768, 3072),
]  # fmt: skip
# images, channels, size, outputs, window, stride, padding
IMAGES = [
    (64, 1, 8, 16, 3, 1, 0), (64, 16, 8, 32, 3, 1, 0), (64, 3, 32, 16, 3, 1, 1), (8, 64, 28, 64, 3, 1, 1),
    (8, 64, 28, 128, 3, 2, 1), (8, 64, 28, 64, 1, 1, 0), (8, 64, 56, 64, 3, 1, 1), (32, 16, 32, 16, 3, 1, 1),
]  # fmt: skip


def strides(x: Array) -> tuple[int, ...]:
    return tuple(s // x.itemsize for s in x.strides)


def bound(
    texts: tuple[str, ...], call: Call, pointers: dict[str, Array], offsets: dict[str, int] | None = None
) -> Callable[[], object]:
    code = engine.link([engine.assemble(t) for t in texts], (call.symbol,))
    step = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)(
        code.address(call.symbol)
    )
    args = np.array(
        [
            *(
                pointers[p].ctypes.data + (offsets or {}).get(p, 0) * pointers[p].itemsize if p in pointers else 0
                for p in call.pointers
            ),
            *call.integers,
        ],
        np.int64,
    )
    scratch = buffer.empty((call.scratch + 64,), np.dtype(np.uint8))

    at, memory = args.ctypes.data, scratch.ctypes.data  # looked up once: it takes longer than a small kernel

    def run(keep: object = (code, args, scratch, pointers)) -> None:
        step(at, 0, call.extent, memory)

    return run


Case = tuple[str, float, dict[str, Callable[[], object]]]  # what it is, its flops, the contenders


def matmuls(torch: Any, layouts: Sequence[str]) -> Iterator[Case]:
    rng = np.random.default_rng(0)
    for dtype, t in (("f32", np.float32), ("f64", np.float64)):
        for m, n, k in SIZES if dtype == "f32" else SIZES[:3]:
            for layout in layouts:
                a = rng.standard_normal((k, m) if layout[0] == "T" else (m, k)).astype(t)
                b = rng.standard_normal((n, k) if layout[1] == "T" else (k, n)).astype(t)
                a, b = a.T if layout[0] == "T" else a, b.T if layout[1] == "T" else b
                c, d, e = (buffer.empty((m, n), np.dtype(t)) for _ in range(3))
                x = matmul.Matrices(m, n, k, (0, 0, *strides(a)), (0, 0, *strides(b)), (0, 0, n))  # type: ignore[arg-type]
                call = matmul.plan(dtype, x, BITS)
                runs = {"ours": bound(matmul.kernel_texts(dtype, BITS), call, {"a": a, "b": b, "c": c})}
                runs["numpy"] = partial(np.matmul, a, b, out=d)
                if torch:
                    ta, tb, te = map(torch.from_numpy, (a, b, e))
                    runs["torch"] = partial(torch.mm, ta, tb, out=te)
                yield f"{dtype} {layout} {m} x {n} x {k}", 2 * m * n * k, runs


def spatial(values: tuple[int, ...]) -> tuple[int, int, int]:
    h, w = values
    return (1, h, w)


def convolution(
    x: Array, w: Array, y: Array, stride: int, dilation: int, low: int, high: int, base: int
) -> Callable[[], object]:
    def around(value: int, fill: int) -> tuple[int, int, int]:
        return (fill, value, value)

    (xn, xg, xc, xh, xw), (wg, wo, wc, wh, ww) = strides(x), strides(w)
    v = conv.Convolution(
        x.shape[0], x.shape[1], w.shape[1], x.shape[2], spatial(x.shape[3:]), spatial(w.shape[3:]),
        around(stride, 1), around(dilation, 1), around(low, 0), around(high, 0), around(base, 1),
        (xn, xg, xc, 0, xh, xw), (wg, wo, wc, 0, wh, ww),
        (*strides(y)[:3], 0, *strides(y)[3:]),
    )  # fmt: skip
    runs: list[Callable[[], object]] = []
    for p in conv.parts(v):
        fast = winograd.plan("f32", p.conv, BITS)
        texts = (winograd if fast else conv).kernel_texts("f32", BITS)
        call = fast or conv.plan("f32", p.conv, BITS)
        runs.append(bound(texts, call, {"x": x, "w": w, "y": y}, {"w": p.w, "y": p.y}))

    def run() -> None:
        for part in runs:
            part()

    return run


def convolutions(torch: Any) -> Iterator[Case]:
    rng = np.random.default_rng(0)
    for n, c, size, o, k, s, p in IMAGES:
        out = (size + 2 * p - k) // s + 1
        left = (size + 2 * p - k) % s  # columns that no window reaches
        x, w, g = (
            rng.standard_normal(d).astype(np.float32)
            for d in ((n, 1, c, size, size), (1, o, c, k, k), (n, 1, o, out, out))
        )
        y, dx, dw = (buffer.empty(d, np.dtype(np.float32)) for d in (g.shape, x.shape, (c, 1, o, k, k)))
        runs = {
            "forward": convolution(x, w, y, s, 1, p, p, 1),
            "gradient of x": convolution(
                g, w[..., ::-1, ::-1].swapaxes(1, 2), dx, 1, 1, k - 1 - p, k - 1 - p + left, s
            ),
            "gradient of w": convolution(x.swapaxes(0, 2), g.swapaxes(0, 1).swapaxes(1, 2), dw, 1, s, p, p - left, 1),
        }
        for what, run in runs.items():
            contenders = {"ours": run}
            if torch:
                plain = [torch.from_numpy(t) for t in (x[:, 0], w[0], g[:, 0])]
                last = [t.contiguous(memory_format=torch.channels_last) for t in plain]
                contenders["torch"] = torch_convolution(torch, what, s, p, *plain)
                contenders["torch channels last"] = torch_convolution(torch, what, s, p, *last)
            yield f"{n}x{c}x{size} o{o} k{k}s{s}p{p} {what}", 2 * n * o * out**2 * c * k * k, contenders


def torch_convolution(torch: Any, what: str, s: int, p: int, x: Any, w: Any, g: Any) -> Callable[[], object]:
    if what == "forward":
        return partial(torch.conv2d, x, w, stride=s, padding=p)
    mask = [what == "gradient of x", what == "gradient of w", False]
    back = torch.ops.aten.convolution_backward
    return partial(back, g, x, w, [0], [s, s], [p, p], [1, 1], False, [0, 0], 1, mask)


LAYOUTS = ("NN", "NT", "TN")
PEERS = ("numpy", "torch", "torch channels last")


def table(what: Sequence[str] = ("matmul", "conv"), seconds: float = 0.5, layouts: Sequence[str] = LAYOUTS) -> Table:
    """A row for each product (with `layouts`: N as it lies, T transposed) and convolution."""
    torch = installed("torch")
    if torch:
        torch.set_num_threads(1)
    cases = {"matmul": matmuls(torch, layouts), "conv": convolutions(torch)}

    def row(title: str, flops: float, contenders: dict[str, Callable[[], object]]) -> list[Cell]:
        times = fastest(contenders, seconds)
        ours = times["ours"]
        ratios = [times[peer] / ours if peer in times else None for peer in PEERS]
        return [title, ours * 1e6, flops / ours / 1e9, *ratios]

    header = ("kernel", "ours, us", "GFLOP/s", "NumPy / ours", "PyTorch / ours", "PyTorch channels last / ours")
    return collect(header, (row(*case) for kind in what for case in cases[kind]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["matmul", "conv"], choices=["matmul", "conv"])
    parser.add_argument("--seconds", type=float, default=0.5, help="for each line")
    table(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
