"""Library kernels (matmul, conv, scatter, cumulative, sort) against NumPy: odd shapes, strides, cuts of the work."""

from __future__ import annotations

import ctypes
import re
import sys
from functools import cache
from typing import Any

import numpy as np
import pytest

from tracejit.codegen.llvm import attention, conv, matmul, order, scatter, winograd
from tracejit.codegen.llvm.matmul import Call
from tracejit.codegen.llvm.tile import BIAS, RELU, pack_symbol, tile_symbol, tiling
from tracejit.ir import dtype as dt
from tracejit.runtime import engine

Array = np.ndarray[Any, np.dtype[Any]]
Rng = np.random.Generator

BITS = engine.vector_bits()
EPSILON = {"f32": 1e-6, "f64": 1e-14}
ALL = {name: d.numpy for name, d in dt.BY_NAME.items()}


# Writing a kernel's text takes longer than a call of it.
MATMUL, CONV, SCATTER = cache(matmul.kernel_texts), cache(conv.kernel_texts), cache(scatter.kernel_text)
WINOGRAD = cache(winograd.kernel_texts)


@cache
def compiled(texts: str | tuple[str, ...], symbol: str) -> engine.Code:
    return engine.link([engine.assemble(t) for t in ([texts] if isinstance(texts, str) else texts)], (symbol,))


def run(
    texts: str | tuple[str, ...],
    call: Call,
    pointers: dict[str, Array | None],
    slices: int = 1,
    offsets: dict[str, int] | None = None,
) -> None:
    """Call a kernel over its extent in slices, its scratch memory between guards; `offsets` count elements."""
    code = compiled(texts, call.symbol)
    step = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)(
        code.address(call.symbol)
    )
    starts = offsets or {}
    addresses = [
        0 if (x := pointers.get(p)) is None else x.ctypes.data + starts.get(p, 0) * x.itemsize for p in call.pointers
    ]
    args = np.array([*addresses, *call.integers], np.int64)
    memory = np.full(call.scratch + 192, 0xCD, np.uint8)
    at = -memory.ctypes.data % 64
    size = max(1, -(-call.extent // slices))
    for lo in range(0, call.extent, size):
        step(args.ctypes.data, lo, min(call.extent, lo + size), memory.ctypes.data + at)
    assert (memory[:at] == 0xCD).all()
    assert (memory[at + call.scratch :] == 0xCD).all(), "scratch memory overrun"


def elements(x: Array) -> tuple[int, ...]:
    return tuple(s // x.itemsize for s in x.strides)


def values(rng: Rng, shape: tuple[int, ...], dtype: str) -> Array:
    t = ALL[dtype]
    if dt.BY_NAME[dtype].kind == "f":
        return rng.standard_normal(shape).astype(t)
    return rng.integers(0, 2 if dtype == "bool" else 20, shape).astype(t)


def test_modules_that_are_linked_together_share_their_parts_and_define_nothing_twice() -> None:
    texts = [*CONV("f32", BITS), *CONV("f64", BITS), *WINOGRAD("f32", BITS), *attention.kernel_texts(BITS)]
    texts += [t for name in ("matmul_f32", "matmul_f64", "gemv_f32") for t in MATMUL(name[-3:], BITS, name)]
    defined = [s for t in dict.fromkeys(texts) for s in re.findall(r"^define (?!internal)[^@]*@([\w.]+)", t, re.M)]
    assert sorted(set(defined)) == sorted(defined)
    tile, pack = tile_symbol(tiling("f32", BITS), 1), pack_symbol(tiling("f32", BITS), tiling("f32", BITS).columns)
    assert {tile, pack, "matmul_f32", "conv_f32", "winograd_f32", "attention_f32", "matmul_f64"} <= set(defined)


# ---------------------------------------------------------------- matmul


def strided(rng: Rng, x: Array) -> Array:
    """The same values, laid out plainly, transposed, with gaps, or backwards."""
    match int(rng.integers(4)):
        case 0:
            return np.ascontiguousarray(x)
        case 1:
            return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
        case 2:
            gaps = np.zeros((*x.shape[:-1], 2 * x.shape[-1] + 3), x.dtype)
            gaps[..., 1 : 1 + 2 * x.shape[-1] : 2] = x
            return gaps[..., 1 : 1 + 2 * x.shape[-1] : 2]
        case _:
            return np.ascontiguousarray(x[..., ::-1, ::-1])[..., ::-1, ::-1]


def four(x: Array) -> Array:
    return x.reshape((1,) * (4 - x.ndim) + x.shape) if x.ndim < 4 else x


def multiply(dtype: str, a: Array, b: Array, c: Array, slices: int = 1, epilogue: int = 0, **bias: Array) -> None:
    (a4, b4, c4) = map(four, (a, b, c))
    x = matmul.Matrices(
        a4.shape[2], b4.shape[3], a4.shape[3], elements(a4), elements(b4), elements(c4)[:3], a4.shape[:2]
    )
    call = matmul.plan(dtype, x, BITS, epilogue)
    run(MATMUL(dtype, BITS), call, {"a": a, "b": b, "c": c, **bias}, slices)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "i64"])
def test_matmul_of_any_shape_and_strides(dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(20):
        m, n, k = (int(rng.choice([rng.integers(0, 21), rng.choice([31, 33, 48, 49, 65, 97, 130])])) for _ in range(3))
        batch = [(), (3,), (2, 3), (1, 9)][rng.integers(4)] if m * n * k < 200_000 else ()
        a, b = (strided(rng, values(rng, (*batch, *s), dtype)) for s in ((m, k), (k, n)))
        guarded = np.full((*batch, m + 2, n + 5), 99, ALL[dtype])
        c = guarded[..., 1 : m + 1, 2 : n + 2]
        multiply(dtype, a, b, c, int(rng.integers(1, 5)))
        exact = a.astype(np.float64) @ b.astype(np.float64)
        bound = EPSILON.get(dtype, 0) * (abs(a.astype(np.float64)) @ abs(b.astype(np.float64)))
        assert (abs(c - exact) <= bound).all(), (batch, m, n, k, a.strides, b.strides)
        once = c.copy()
        c[...] = 99
        assert (guarded == 99).all(), "wrote outside of C"
        multiply(dtype, a, b, c)
        np.testing.assert_array_equal(c, once)  # however the work is cut


@pytest.mark.parametrize("shape", [(70, 40, 1300), (3, 2500, 20), (200, 260, 520), (1, 5000, 9), (9, 1, 3000)])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_matmul_over_several_blocks(dtype: str, shape: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(0)
    m, n, k = shape
    for transposed in (False, True):
        a, b = values(rng, (k, m) if transposed else (m, k), dtype), values(rng, (k, n), dtype)
        a = a.T if transposed else a
        c = np.empty((m, n), ALL[dtype])
        multiply(dtype, a, b, c, 3)
        np.testing.assert_allclose(c, a.astype(np.float64) @ b, rtol=0, atol=EPSILON[dtype] * 3 * k**0.5 * 10)


def test_matmul_keeps_nan_and_infinity_in_their_rows_and_columns() -> None:
    a, b = np.ones((7, 5), np.float32), np.ones((5, 19), np.float32)
    a[2, 3], b[1, 18] = np.inf, np.nan
    c = np.empty((7, 19), np.float32)
    multiply("f32", a, b, c)
    np.testing.assert_array_equal(c, a @ b)


@pytest.mark.parametrize("shape", [(1, 5, 3), (7, 33, 600), (64, 64, 64), (3, 1, 2), (5, 40, 0)])
@pytest.mark.parametrize("epilogue", [BIAS, RELU, BIAS | RELU])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_matmul_epilogue_runs_once_after_the_last_block(dtype: str, epilogue: int, shape: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(0)
    m, n, k = shape
    a, b, bias = values(rng, (m, k), dtype), values(rng, (k, n), dtype), values(rng, (n,), dtype)
    c = np.empty((m, n), ALL[dtype])
    multiply(dtype, a, b, c, 2, epilogue, bias=bias)
    want = a.astype(np.float64) @ b + (bias if epilogue & BIAS else 0)
    want = np.maximum(want, 0) if epilogue & RELU else want
    np.testing.assert_allclose(c, want, rtol=0, atol=EPSILON[dtype] * 100)


# ---------------------------------------------------------------- conv


def three(axes: tuple[int, ...], fill: int) -> tuple[int, int, int]:
    a, b, c = (fill,) * (3 - len(axes)) + axes
    return a, b, c


def convolve(
    dtype: str, x: Array, w: Array, y: Array, stride: Any, dilation: Any, low: Any, high: Any, base: Any, slices: int
) -> str:
    v = conv.Convolution(
        x.shape[0], x.shape[1], w.shape[1], x.shape[2],
        three(x.shape[3:], 1), three(w.shape[3:], 1), three(stride, 1), three(dilation, 1),
        three(low, 0), three(high, 0), three(base, 1),
        (*elements(x)[:3], *three(elements(x)[3:], 0)), (*elements(w)[:3], *three(elements(w)[3:], 0)),
        (*elements(y)[:3], *three(elements(y)[3:], 0)),
    )  # fmt: skip
    assert v.out == three(y.shape[3:], 1)
    symbols: list[str] = []
    for part in conv.parts(v):
        call = conv.plan(dtype, part.conv, BITS)
        symbols.append(call.symbol)
        run(CONV(dtype, BITS), call, {"x": x, "w": w, "y": y}, slices, {"w": part.w, "y": part.y})
    return symbols[0]


def padded(x: Array, low: Any, high: Any, base: Any) -> Array:
    """x with zeros around (negative: cropped) and between, in float64."""
    extents = [lo + (s - 1) * b + 1 + hi for lo, s, b, hi in zip(low, x.shape[3:], base, high)]
    wide = np.zeros((*x.shape[:3], *(e + 16 for e in extents)))
    wide[(..., *(slice(8 + lo, 9 + lo + (s - 1) * b, b) for lo, s, b in zip(low, x.shape[3:], base)))] = x
    return wide[(..., *(slice(8, 8 + e) for e in extents))]


def direct(x: Array, w: Array, stride: Any, dilation: Any) -> Array:
    out = [(p - (k - 1) * d - 1) // s + 1 for p, k, s, d in zip(x.shape[3:], w.shape[3:], stride, dilation)]
    y = np.zeros((x.shape[0], x.shape[1], w.shape[1], *out))
    for q in np.ndindex(*w.shape[3:]):
        window = tuple(slice(k * d, k * d + (o - 1) * s + 1, s) for k, d, o, s in zip(q, dilation, out, stride))
        y += np.einsum("ngc...,goc->ngo...", x[(..., *window)], w[(..., *q)].astype(np.float64))
    return y


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_conv_of_any_shape_padding_and_strides(dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rank = 1 + seed % 3

    def axes(lo: int, hi: int, often: float, otherwise: int) -> tuple[int, ...]:
        return tuple(int(i) for i in rng.integers(lo, hi + 1, rank)) if rng.random() < often else (otherwise,) * rank

    for _ in range(8):
        n, g, o, c = (
            int(i) for i in (rng.integers(1, 6), rng.integers(1, 3), rng.integers(1, 21), rng.integers(1, 10))
        )
        window, size = axes(1, 4, 0.9, 1), axes(1, {1: 50, 2: 18, 3: 7}[rank], 1, 1)
        stride, dilation, base = axes(1, 3, 0.5, 1), axes(1, 2, 0.3, 1), axes(1, 3, 0.3, 1)
        low, high = axes(-1, 3, 0.5, 0), axes(-1, 3, 0.5, 0)
        extents = [lo + (s - 1) * b + 1 + hi for lo, s, b, hi in zip(low, size, base, high)]
        out = [(p - (k - 1) * d - 1) // s + 1 for p, k, s, d in zip(extents, window, stride, dilation)]
        if min(out) <= 0 or min(extents) <= 0:
            continue
        x, w = values(rng, (n, g, c, *size), dtype), values(rng, (g, o, c, *window), dtype)
        if rng.random() < 0.5:
            x = np.ascontiguousarray(x.swapaxes(0, 2)).swapaxes(0, 2)
        if rng.random() < 0.5:  # as the gradient of x has it: swapped and flipped
            flipped = (..., *(slice(None, None, -1),) * rank)
            w = np.ascontiguousarray(w.swapaxes(1, 2)[flipped])[flipped].swapaxes(1, 2)
        guarded = np.full((n + 1, g, o + 1, *out), 99, ALL[dtype])
        y = guarded[:n, :, :o]
        arguments = (stride, dilation, low, high, base)
        convolve(dtype, x, w, y, *arguments, int(rng.integers(1, 5)))
        wide = padded(x, low, high, base)
        bound = EPSILON[dtype] * direct(abs(wide), abs(w), stride, dilation)
        assert (abs(y - direct(wide, w, stride, dilation)) <= bound).all(), (x.shape, w.shape, arguments)
        once = y.copy()
        y[...] = 99
        assert (guarded == 99).all(), "wrote outside of y"
        convolve(dtype, x, w, y, *arguments, 1)
        np.testing.assert_array_equal(y, once)


@pytest.mark.parametrize("bits", [128, 512])
def test_tiles_of_other_machines_give_the_same(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "BITS", bits)  # which any machine can run, if slowly
    for seed in range(4):
        test_matmul_of_any_shape_and_strides("f32", seed)
        test_conv_of_any_shape_padding_and_strides("f32", seed)
    test_matmul_epilogue_runs_once_after_the_last_block("f32", BIAS | RELU, (7, 33, 600))
    test_gradient_of_weights_takes_the_kernel_with_outputs_as_rows(2)


@pytest.mark.parametrize("stride", [1, 2])
def test_gradient_of_weights_takes_the_kernel_with_outputs_as_rows(stride: int) -> None:
    rng = np.random.default_rng(0)
    out = (13 - 3) // stride + 1
    x, g = values(rng, (20, 1, 5, 13, 13), "f32"), values(rng, (20, 1, 40, out, out), "f32")
    xs, gs = x.swapaxes(0, 2), g.swapaxes(0, 1).swapaxes(1, 2)  # the batch is what is summed over
    dw = np.empty((5, 1, 40, 3, 3), np.float32)
    crop = -((13 - 3) % stride)
    symbol = convolve("f32", xs, gs, dw, (1, 1), (stride, stride), (0, 0), (crop, crop), (1, 1), 2)
    assert symbol == "conv_rows_f32"
    exact = direct(padded(xs, (0, 0), (crop, crop), (1, 1)), gs, (1, 1), (stride, stride))
    np.testing.assert_allclose(dw, exact, rtol=0, atol=1e-3)


def test_conv_of_nothing_is_zero() -> None:
    x, w = np.zeros((2, 1, 0, 4, 4), np.float32), np.zeros((1, 3, 0, 3, 3), np.float32)
    y = np.full((2, 1, 3, 2, 2), 99, np.float32)
    convolve("f32", x, w, y, (1, 1), (1, 1), (0, 0), (0, 0), (1, 1), 1)
    assert (y == 0).all()


# ---------------------------------------------------------------- winograd


def by_tiles(x: Array, w: Array, y: Array, low: tuple[int, int], high: tuple[int, int], slices: int = 1) -> None:
    v = conv.Convolution(
        x.shape[0], x.shape[1], w.shape[1], x.shape[2],
        three(x.shape[3:], 1), (1, 3, 3), (1, 1, 1), (1, 1, 1), (0, *low), (0, *high), (1, 1, 1),
        (*elements(x)[:3], 0, *elements(x)[3:]), (*elements(w)[:3], 0, *elements(w)[3:]),
        (*elements(y)[:3], 0, *elements(y)[3:]),
    )  # fmt: skip
    call = winograd.plan("f32", v, BITS)
    assert call is not None
    run(WINOGRAD("f32", BITS), call, {"x": x, "w": w, "y": y}, slices)


@pytest.mark.parametrize("seed", range(12))
def test_winograd_of_any_shape_padding_and_strides(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(3):
        n, g = int(rng.integers(1, 4)), int(rng.integers(1, 3))
        o, c = (int(i) for i in rng.integers(16, 50, 2))
        wide = int(rng.choice([13, 14, 15, 16, 28, 29, 30, 31, 32, 60]))
        low, high = (tuple(int(i) for i in rng.integers(-1, 4, 2)) for _ in range(2))
        size = (int(rng.integers(3, 40)), wide + 2 - low[1] - high[1])
        out = tuple(s + lo + hi - 2 for s, lo, hi in zip(size, low, high))
        if min(out) <= 0:
            continue
        x, w = values(rng, (n, g, c, *size), "f32"), values(rng, (g, o, c, 3, 3), "f32")
        if rng.random() < 0.5:
            x = strided(rng, x)
        if rng.random() < 0.5:
            w = np.ascontiguousarray(w.swapaxes(1, 2)[..., ::-1, ::-1])[..., ::-1, ::-1].swapaxes(1, 2)
        guarded = np.full((n + 1, g, o + 1, *out), 99, np.float32)
        y = guarded[:n, :, :o]
        by_tiles(x, w, y, low, high, int(rng.integers(1, 5)))
        around = padded(x, low, high, (1, 1))
        bound = 2e-6 * direct(abs(around), abs(w), (1, 1), (1, 1))
        assert (abs(y - direct(around, w, (1, 1), (1, 1))) <= bound).all(), (x.shape, w.shape, low, high)
        once = y.copy()
        y[...] = 99
        assert (guarded == 99).all(), "wrote outside of y"
        by_tiles(x, w, y, low, high)
        np.testing.assert_array_equal(y, once)


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan, 3e38])
def test_winograd_takes_infinities_as_far_as_a_plain_sum_does(special: float) -> None:
    rng = np.random.default_rng(0)
    x, w = values(rng, (2, 1, 16, 9, 32), "f32"), values(rng, (1, 16, 16, 3, 3), "f32")
    x[0, 0, 3, 4, 7], x[1, 0, 5, 0, 31], w[0, 2, 3, 1, 1] = special, -special, 0
    y, plain = np.empty((2, 1, 16, 9, 32), np.float32), np.empty((2, 1, 16, 9, 32), np.float32)
    by_tiles(x, w, y, (1, 1), (1, 1))
    convolve("f32", x, w, plain, (1, 1), (1, 1), (1, 1), (1, 1), (1, 1), 1)
    np.testing.assert_array_equal(np.isfinite(y), np.isfinite(plain))
    np.testing.assert_array_equal(y[~np.isfinite(y)], plain[~np.isfinite(y)])
    np.testing.assert_allclose(y, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("channels", [16, 64, 512])
def test_winograd_is_as_near_to_float64_as_torch_asks_of_a_convolution(channels: int) -> None:
    rng = np.random.default_rng(0)
    x = values(rng, (1, 1, channels, 16, 16), "f32")
    w = (values(rng, (1, 32, channels, 3, 3), "f32") / np.sqrt(9 * channels)).astype(np.float32)
    y = np.empty((1, 1, 32, 16, 16), np.float32)
    by_tiles(x, w, y, (1, 1), (1, 1))
    np.testing.assert_allclose(y, direct(padded(x, (1, 1), (1, 1), (1, 1)), w, (1, 1), (1, 1)), rtol=1.3e-6, atol=1e-5)


# ---------------------------------------------------------------- scatter, cumulative, sort

NARROW = ("f16", "bf16")  # summed in f32, so without native sums
SHAPES = [((5,), 0), ((40, 3), 0), ((2, 9, 20), 1), ((3, 33), 1), ((4, 1), 1)]


@pytest.mark.parametrize("along", [False, True])
@pytest.mark.parametrize("mode", ["add", "set"])
@pytest.mark.parametrize("dtype", [d for d in ALL if d not in NARROW])
def test_scatter_applies_updates_in_order(dtype: str, mode: str, along: bool) -> None:
    rng = np.random.default_rng(0)
    for shape, axis in SHAPES:
        for count in (0, 1, 11):
            wanted = (*shape[:axis], count, *shape[axis + 1 :])
            x, updates = values(rng, shape, dtype), values(rng, wanted, dtype)
            indices = rng.integers(0, shape[axis], wanted if along else count)
            exact = x.copy()
            for at in np.ndindex(*wanted):
                to = list(at)
                to[axis] = indices[at] if along else indices[at[axis]]
                old = exact[tuple(to)]
                with np.errstate(over="ignore"):
                    exact[tuple(to)] = updates[at] if mode == "set" else old + updates[at]
            y = np.empty_like(x)
            text, call = SCATTER(dtype, mode, along, BITS), scatter.plan(dtype, mode, along, shape, axis, count)
            run(text, call, {"y": y, "x": x, "indices": indices, "updates": updates}, 3)
            np.testing.assert_array_equal(y, exact)


def test_scatter_skips_indices_outside_and_may_begin_from_zero() -> None:
    indices, updates = np.array([7, -1, 2]), np.ones((3, 4), np.float32)
    guarded = np.full((5, 4), 99, np.float32)
    call = scatter.plan("f32", "add", False, (3, 4), 0, 3, from_zero=True)
    pointers = {"y": guarded[1:4], "x": None, "indices": indices, "updates": updates}
    run(SCATTER("f32", "add", False, BITS), call, pointers)
    np.testing.assert_array_equal(guarded[:, 0], [99, 0, 0, 1, 99])


@pytest.mark.parametrize(("op", "ufunc"), [("cumsum", np.add), ("cumprod", np.multiply), ("cummax", np.maximum)])
@pytest.mark.parametrize("dtype", [d for d in ALL if d not in (*NARROW, "bool")])
def test_cumulative_equals_numpy(dtype: str, op: str, ufunc: np.ufunc) -> None:
    rng = np.random.default_rng(0)
    for shape, axis in [*SHAPES, ((0, 3), 0), ((3, 0), 1)]:
        x, y = values(rng, shape, dtype), np.empty(shape, ALL[dtype])
        if dt.BY_NAME[dtype].kind == "f" and x.size > 4:
            x.flat[3] = np.nan
        run(order.cumulative_text(dtype, op, BITS), order.plan_cumulative(dtype, op, shape, axis), {"y": y, "x": x}, 3)
        np.testing.assert_array_equal(y, ufunc.accumulate(x, axis, dtype=x.dtype))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", ALL)
def test_sort_is_stable_with_nan_as_largest(dtype: str, descending: bool) -> None:
    rng = np.random.default_rng(0)
    for shape, axis in [*SHAPES, ((700,), 0), ((0, 3), 0), ((3, 0), 1)]:
        x = values(rng, shape, dtype)
        if dt.BY_NAME[dtype].kind == "f" and x.size > 8:
            x.flat[:8] = [np.nan, 0.0, -0.0, np.inf, -np.inf, -np.nan, -0.0, 0.0]
        keys = x.astype(np.float64)
        if descending:
            where = np.flip(shape[axis] - 1 - np.argsort(np.flip(keys, axis), axis, kind="stable"), axis)
        else:
            where = np.argsort(keys, axis, kind="stable")
        y, indices = np.empty_like(x), np.empty(shape, np.int64)
        call = order.plan_sort(dtype, descending, shape, axis)
        run(order.sort_text(dtype, descending), call, {"y": y, "indices": indices, "x": x}, 3)
        np.testing.assert_array_equal(indices, where)
        np.testing.assert_array_equal(y.view(np.uint8), np.take_along_axis(x, where, axis).view(np.uint8))
