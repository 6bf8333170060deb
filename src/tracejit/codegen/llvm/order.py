"""Kernels along one axis in which every element may depend on all before it: cumulative sums and their kin, and sort.

x is [outer, extent, inner], contiguous; a unit is one column (outer, inner), so threads share nothing. Cumulative
kernels walk down the axis with vectors of neighbouring columns. Sort maps each element to an integer that sorts like
it (nan last,
-0.0 as 0.0), then merges runs of (key, index) bottom up: stable, without branches on the data.
"""

from __future__ import annotations

from math import prod

from tracejit.codegen.llvm.matmul import Call, kernel
from tracejit.codegen.llvm.text import Function, Module, Value, f32, i1, i64, of

__all__ = ["cumulative_text", "plan_cumulative", "plan_sort", "sort_text"]

_CHUNK = 16_384  # elements worth waking another thread for
_INTEGERS = ("extent", "inner")


def _split(shape: tuple[int, ...], axis: int) -> tuple[int, int, int]:
    return prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])


# ---------------------------------------------------------------- cumulative


def plan_cumulative(dtype: str, op: str, shape: tuple[int, ...], axis: int) -> Call:
    """How to run "cumsum", "cumprod" or "cummax" along `axis`; y may be x."""
    outer, extent, inner = _split(shape, axis)
    grain = max(1, -(-_CHUNK // max(extent, 1)))
    return Call(f"{op}_{dtype}", ("y", "x"), (extent, inner), outer * inner if extent else 0, grain, 0)


def cumulative_text(dtype: str, op: str, vector_bits: int) -> str:
    """LLVM text of one cumulative kernel. f16 and bf16 have none: their running sum needs more precision than y."""
    module, t = Module(), of(dtype)
    lanes = vector_bits // (8 * t.bytes)
    f, s = kernel(module, f"{op}_{dtype}", ("y", "x"), _INTEGERS)
    extent, inner, lo, hi = s["extent"], s["inner"], s["lo"], s["hi"]
    with f.loop(lo // inner, (hi + inner - 1) // inner) as a:
        first = f.maximum(lo - a * inner, 0)
        last = f.minimum(hi - a * inner, inner)
        main = last - (last - first) % lanes
        for start, stop, width in ((first, main, lanes), (main, last, 1)):
            with f.loop(start, stop, width) as b:
                begin = f.load(t.wide(width), f.element(s["x"], a * extent * inner + b, t))
                f.store(begin, f.element(s["y"], a * extent * inner + b, t))
                with f.carrying(1, extent, [begin]) as loop:
                    at = (a * extent + loop.index) * inner + b
                    x = f.load(t.wide(width), f.element(s["x"], at, t))
                    loop.carry = [_step(op, dtype, loop.carry[0], x)]
                    f.store(loop.carry[0], f.element(s["y"], at, t))
    f.ret()
    return module.text()


def _step(op: str, dtype: str, total: Value, x: Value) -> Value:
    if op == "cumsum":
        return total + x
    if op == "cumprod":
        return total * x
    if x.type.is_float:  # nan from the first one on
        return ((total >= x) | total.is_nan()).select(total, x)
    flip = -128 if dtype == "u8" else 0  # unsigned numbers sort like signed ones with the top bit turned
    return ((total ^ flip) >= (x ^ flip)).select(total, x)


# ---------------------------------------------------------------- sort


def plan_sort(dtype: str, descending: bool, shape: tuple[int, ...], axis: int) -> Call:
    """How to sort along `axis` into y and, as i64, the places the elements came from; neither may be x."""
    outer, extent, inner = _split(shape, axis)
    work = extent * max(extent.bit_length(), 1) * 2
    grain = max(1, -(-_CHUNK // max(work, 1)))
    scratch = 32 * extent  # two arrays of keys, two of indices
    units = outer * inner if extent else 0
    return Call(_sort_symbol(dtype, descending), ("y", "indices", "x"), (extent, inner), units, grain, scratch)


def _sort_symbol(dtype: str, descending: bool) -> str:
    return f"sort_{'descending_' if descending else ''}{dtype}"


def sort_text(dtype: str, descending: bool) -> str:
    """LLVM text of one sort kernel; every element type has one."""
    module, t = Module(), of(dtype)
    f, s = kernel(module, _sort_symbol(dtype, descending), ("y", "indices", "x"), _INTEGERS)
    extent, inner = s["extent"], s["inner"]
    keys = s["scratch"]
    order = f.element(keys, extent, i64)
    with f.loop(s["lo"], s["hi"]) as unit:
        start = unit // inner * extent * inner + unit % inner
        with f.loop(0, extent) as e:
            x = f.load(t, f.element(s["x"], start + e * inner, t))
            key = _key(x, dtype)
            f.store(~key if descending else key, f.element(keys, e, i64))
            f.store(e, f.element(order, e, i64))
        # Runs of 1, 2, 4 ... are merged from one half of scratch to the other.
        levels = _levels(f, extent)
        with f.carrying(0, levels, [f.value(1, i64), keys, f.element(keys, extent * 2, i64)]) as loop:
            run, source, target = loop.carry
            with f.loop(0, extent, run * 2) as lo:
                mid, hi = f.minimum(lo + run, extent), f.minimum(lo + run * 2, extent)
                _merge(f, extent, source, target, lo, mid, hi)
            loop.carry = [run * 2, target, source]
        done = f.element(loop.carry[1], extent, i64)
        with f.loop(0, extent) as e:
            place = f.load(i64, f.element(done, e, i64))
            f.store(place, f.element(s["indices"], start + e * inner, i64))
            x = f.load(t, f.element(s["x"], start + place * inner, t))
            f.store(x, f.element(s["y"], start + e * inner, t))
    f.ret()
    return module.text()


def _key(x: Value, dtype: str) -> Value:
    """An i64 that sorts like x."""
    if dtype in ("u8", "bool"):
        return x.cast(i64) & 255
    if not x.type.is_float:
        return x.cast(i64)
    if x.type.bits == 16:
        x = x.cast(f32)
    bits = (x + 0.0).bitcast(x.type.integer).cast(i64)  # -0.0 becomes 0.0
    mirrored = bits ^ ((bits >> 63) & 0x7FFFFFFFFFFFFFFF)  # below zero, larger bits are smaller numbers
    return x.is_nan().select((1 << 63) - 1, mirrored)


def _levels(f: Function, extent: Value) -> Value:
    """How often a run of 1 doubles until it holds everything."""
    unused = f.call("llvm.ctlz.i64", i64, extent - 1, f.value(False, i1))
    return (extent <= 1).select(0, 64 - unused)


def _merge(f: Function, extent: Value, source: Value, target: Value, lo: Value, mid: Value, hi: Value) -> None:
    with f.carrying(lo, hi, [lo, mid]) as loop:
        i, j = loop.carry
        left = f.load(i64, f.element(source, f.minimum(i, extent - 1), i64))
        right = f.load(i64, f.element(source, f.minimum(j, extent - 1), i64))
        takes_right = (j < hi) & ((i >= mid) | (right < left))  # of equal keys the left one comes first
        at = takes_right.select(j, i)
        f.store(takes_right.select(right, left), f.element(target, loop.index, i64))
        f.store(f.load(i64, f.element(source, extent + at, i64)), f.element(target, extent + loop.index, i64))
        step = takes_right.cast(i64)
        loop.carry = [i + (1 - step), j + step]
