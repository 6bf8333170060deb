"""y = softmax(scale q k') v row block by row block, with a running maximum and sum: the scores are never stored.

A unit is a block of rows of one matrix. For each block of keys its scores are made in cache by the register tile of
`tile.py`, become weights relative to the largest score so far, and are multiplied into the block's sums, which are
scaled down where that maximum grew. Blocks depend on shapes alone, so bits do not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import inf

from tracejit.codegen.llvm import vectormath
from tracejit.codegen.llvm.matmul import Call, blocks, kernel, round_up
from tracejit.codegen.llvm.text import Function, Module, Value, f32, i32, i64, ptr
from tracejit.codegen.llvm.tile import (
    ACCUMULATE,
    Tiling,
    call_tile,
    pack_symbol,
    pack_text,
    tell,
    tell_strides,
    tiles_text,
    tiling,
    told,
)
from tracejit.records import dataclass

__all__ = ["Heads", "kernel_texts", "plan"]

_ROWS, _KEYS = 128, 128  # of a block at most: scores, weights and panels stay in the second-level cache


@dataclass(frozen=True, slots=True)
class Heads:
    """Batched attention of q[m, d], k[n, d], v[n, e]. Strides count elements: (outer, inner, row, column)."""

    m: int
    n: int
    d: int
    e: int
    scale: int  # the bits of an f32
    is_causal: bool
    q: tuple[int, int, int, int]
    k: tuple[int, int, int, int]
    v: tuple[int, int, int, int]
    batch: tuple[int, int]


_POINTERS = ("y", "q", "k", "v")
_INTEGERS = (
    *("m", "n", "d", "e", "scale", "is_causal", "inner", "rows", "blocks"),
    *(f"{x}_{axis}" for x in "qkv" for axis in ("outer", "inner", "row", "column")),
    *("wide", "at_k", "at_v", "at_sums", "at_rows", "at_unseen"),
)


def plan(x: Heads, vector_bits: int) -> Call:
    """How to run it; y is row-major."""
    t = tiling("f32", vector_bits)
    wide = round_up(x.e, t.columns)
    rows = blocks(x.m, _ROWS, t.rows)
    values = {
        "m": x.m, "n": x.n, "d": x.d, "e": x.e, "scale": x.scale, "is_causal": int(x.is_causal), "inner": x.batch[1],
        "rows": rows, "blocks": -(-x.m // rows), "wide": wide,
    }  # fmt: skip
    for name, strides in (("q", x.q), ("k", x.k), ("v", x.v)):
        values |= {f"{name}_{a}": s for a, s in zip(("outer", "inner", "row", "column"), strides, strict=True)}
    scratch = 4 * _ROWS * _KEYS
    for name, elements in (
        ("k", _KEYS * x.d), ("v", _KEYS * wide), ("sums", _ROWS * wide), ("rows", 2 * _ROWS), ("unseen", wide),
    ):  # fmt: skip
        values[f"at_{name}"] = scratch
        scratch += round_up(4 * elements + 64, 64)
    integers = tuple(values[name] for name in _INTEGERS)
    return Call("attention_f32", _POINTERS, integers, x.batch[0] * x.batch[1] * values["blocks"], 1, scratch)


def kernel_texts(vector_bits: int) -> tuple[str, ...]:
    """LLVM modules of the kernel."""
    module, t = Module(), tiling("f32", vector_bits)
    _define_weigh(module, t)
    _define_units(module, t)
    return module.text(), tiles_text("f32", vector_bits), pack_text("f32", vector_bits)


def _define_units(module: Module, t: Tiling) -> None:
    f, s = kernel(module, "attention_f32", _POINTERS, _INTEGERS)
    scores = s["scratch"]
    k_panels, v_panels, sums, rows_at, unseen = (
        f.offset(s["scratch"], s["at_" + a]) for a in ("k", "v", "sums", "rows", "unseen")
    )
    scale = s["scale"].cast(i32).bitcast(f32)
    zero = f.value(0, i64)
    with f.loop(s["lo"], s["hi"]) as unit:
        matrix, r0 = unit // s["blocks"], unit % s["blocks"] * s["rows"]
        outer, inner = matrix // s["inner"], matrix % s["inner"]
        q, k, v = (f.element(s[x], outer * s[x + "_outer"] + inner * s[x + "_inner"], f32) for x in "qkv")
        rows = f.minimum(s["m"] - r0, s["rows"])
        with f.loop(0, rows * s["wide"], t.lanes) as i:
            f.store(f.value(0.0, t.vector), f.element(sums, i, f32))
        with f.loop(0, rows) as r:
            f.store(f.value(-inf, f32), f.element(rows_at, r * 2, f32))
            f.store(f.value(0.0, f32), f.element(rows_at, r * 2 + 1, f32))
        # Keys after the last row's own are seen by none.
        seen = s["is_causal"].ne(0).select(f.minimum(s["n"], r0 + rows), s["n"])
        with f.loop(0, seen, _KEYS) as j0:
            keys = f.minimum(seen - j0, _KEYS)
            k_block = f.element(k, j0 * s["k_row"], f32)
            with f.loop(0, keys, t.columns) as j:
                panel, x = f.element(k_panels, j * s["d"], f32), f.element(k_block, j * s["k_row"], f32)
                f.call(pack_symbol(t, t.columns), None, panel, x, s["k_row"], s["k_column"], keys - j, s["d"])
            q_block = f.element(q, r0 * s["q_row"], f32)
            _multiply(f, t, (q_block, s["q_row"], s["q_column"], k_panels, scores, zero + _KEYS),
                      (rows, keys, s["d"], zero))  # fmt: skip
            first = s["is_causal"].ne(0).select(r0 - j0 + 1, zero + (1 << 40))  # keys that the first row sees
            f.call("weigh", None, scores, rows_at, sums, rows, keys, s["wide"], first, scale)
            v_block = f.element(v, j0 * s["v_row"], f32)
            with f.loop(0, s["e"], t.columns) as c:
                panel, x = f.element(v_panels, c * keys, f32), f.element(v_block, c * s["v_column"], f32)
                f.call(pack_symbol(t, t.columns), None, panel, x, s["v_column"], s["v_row"], s["e"] - c, keys)
            _multiply(f, t, (scores, zero + _KEYS, zero + 1, v_panels, sums, s["wide"]),
                      (rows, s["e"], keys, zero + ACCUMULATE))  # fmt: skip
        with f.when(seen < s["n"]):
            _add_unseen(f, t, s, (v, v_panels, unseen, sums, rows, seen))
        y = f.element(s["y"], (matrix * s["m"] + r0) * s["e"], f32)
        with f.loop(0, rows) as r:
            total = f.load(f32, f.element(rows_at, r * 2 + 1, f32))
            source, out = f.element(sums, r * s["wide"], f32), f.element(y, r * s["e"], f32)
            with f.loop(0, s["e"], t.lanes) as c:
                x = f.load(t.vector, f.element(source, c, f32)) / total.splat(t.lanes)
                f.masked_store(x, f.element(out, c, f32), f.first(s["e"] - c, t.lanes))
    f.ret()


def _add_unseen(f: Function, t: Tiling, s: dict[str, Value], args: Sequence[Value]) -> None:
    """Add 0 times the values that no row of the block sees, as a plain product does: an infinity among them shows."""
    v, panels, unseen, sums, rows, seen = args
    with f.loop(0, s["wide"], t.lanes) as c:
        f.store(f.value(0.0, t.vector), f.element(unseen, c, f32))
    with f.loop(seen, s["n"], _KEYS) as j0, f.loop(0, s["e"], t.columns) as c:
        keys = f.minimum(s["n"] - j0, _KEYS)
        x = f.element(v, j0 * s["v_row"] + c * s["v_column"], f32)
        f.call(pack_symbol(t, t.columns), None, panels, x, s["v_column"], s["v_row"], s["e"] - c, keys)
        with f.loop(0, t.columns, t.lanes) as k:
            at = f.element(unseen, c + k, f32)
            with f.carrying(0, keys, [f.load(t.vector, at)]) as loop:
                y = f.load(t.vector, f.element(panels, loop.index * t.columns + k, f32))
                loop.carry = [f.fma(y, 0.0, loop.carry[0])]
            f.store(loop.carry[0], at)
    with f.loop(0, rows) as r, f.loop(0, s["wide"], t.lanes) as c:
        at = f.element(sums, r * s["wide"] + c, f32)
        f.store(f.load(t.vector, at) + f.load(t.vector, f.element(unseen, c, f32)), at)


def _multiply(f: Function, t: Tiling, places: Sequence[Value], shape: Sequence[Value]) -> None:
    """c[rows, columns] (+)= a[rows, k] times panels of b."""
    a, a_row, a_k, panels, c, c_row = places
    rows, columns, k, flags = shape
    tiles = (rows + t.rows - 1) // t.rows
    base = rows // tiles
    extra = rows - base * tiles
    whole = f.value(t.columns, i64)
    tile = told(f, t, k=k, b_k=whole, c_row=c_row, columns=whole, flags=flags)
    tell_strides(f, t, tile, a_row, a_k)
    with f.loop(0, columns, t.columns) as j, f.loop(0, tiles) as i:
        row = i * base + f.minimum(i, extra)
        tell(f, tile, b=f.element(panels, j * k, f32))
        call_tile(
            f, t, base + (i < extra).cast(i64), tile, f.element(a, row * a_row, f32),
            f.element(c, row * c_row + j, f32),
        )  # fmt: skip


def _define_weigh(module: Module, t: Tiling) -> None:
    """Scores become weights relative to the largest so far; what was summed before is scaled to it.

    Row r sees `first` + r keys of the block, at most `keys`; the weights of others, and of lanes behind, are 0.
    """
    names = ("rows", "keys", "wide", "first")
    args = {"scores": ptr, "state": ptr, "sums": ptr} | dict.fromkeys(names, i64) | {"scale": f32}
    f = module.function("weigh", None, args, "internal nounwind")
    scores, state, sums, rows, keys, wide, first, scale = f.args
    lowest = f.value(-inf, t.vector)
    exp = vectormath.FUNCTIONS["exp"]
    end = (keys + (t.columns - 1)) & -t.columns
    with f.loop(0, rows) as r:
        row = f.element(scores, r * _KEYS, f32)
        seen = f.maximum(f.minimum(first + r, keys), 0)
        old = f.load(f32, f.element(state, r * 2, f32))
        with f.carrying(0, end, [lowest] * t.vectors, t.columns) as loop:
            for k, top in enumerate(loop.carry):
                lane = loop.index + k * t.lanes
                x = f.load(t.vector, f.element(row, lane, f32)) * scale.splat(t.lanes)
                x = f.first(f.maximum(seen - lane, 0), t.lanes).select(x, lowest)
                f.store(x, f.element(row, lane, f32))
                loop.carry[k] = _larger(x, top)
        new = _larger(_across(loop.carry, _larger), old)
        base = new.eq(-inf).select(0.0, new).splat(t.lanes)  # of nothing seen yet, all weights are 0
        with f.carrying(0, end, [f.value(0.0, t.vector)] * t.vectors, t.columns) as loop:
            for k, total in enumerate(loop.carry):
                at = f.element(row, loop.index + k * t.lanes, f32)
                p = exp(f.load(t.vector, at) - base)
                f.store(p, at)
                loop.carry[k] = total + p
        total = _across(loop.carry, lambda a, b: a + b)
        before = f.load(f32, f.element(state, r * 2 + 1, f32))
        f.store(new, f.element(state, r * 2, f32))
        with f.choose(new.ne(old), [before]) as grown:
            shrunk = exp(old.splat(t.lanes) - base)
            with f.loop(0, wide, t.lanes) as c:
                at = f.element(sums, r * wide + c, f32)
                f.store(f.load(t.vector, at) * shrunk, at)
            grown.carry = [before * shrunk.lane(0)]
        f.store(grown.carry[0] + total, f.element(state, r * 2 + 1, f32))
    f.ret()


def _larger(a: Value, b: Value) -> Value:
    """The larger; b where a is NaN, which shows in the sum of weights anyway."""
    return (a > b).select(a, b)


def _across(vectors: Sequence[Value], combine: Callable[[Value, Value], Value]) -> Value:
    """All lanes combined, by halves."""
    out = reduce(combine, vectors)
    width = out.type.width
    while width > 2:
        width //= 2
        out = combine(out.shuffle(out, range(width)), out.shuffle(out, range(width, 2 * width)))
    return combine(out.lane(0), out.lane(1))
