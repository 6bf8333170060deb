"""C[b, m, n] = A[b, m, k] B[b, k, n] for f32 and f64: blocks, packs and hands tiles to the micro-kernel of `tile.py`.

One kernel serves every shape: extents, strides and block sizes are arguments. `plan` chooses the blocks and what is
worth packing from the shape alone, so that results never depend on the number of threads. A and B have any strides,
two batch axes each; rows of C are contiguous. A product with one row or one column is `gemv`, which reads the matrix
once as it lies. Other element types multiply by plain loops.

Where the same B is multiplied many times, `plan_panels` packs all of it ahead, and `plan(..., ready=True)` reads the
panels in its place.

Work is split over batches, and within a large product along its longer side: each thread then packs all of the smaller
operand but only its share of the larger one.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracejit.codegen.llvm.text import OUTER, Function, Module, Slots, Type, Value, f32, i64, of, ptr
from tracejit.codegen.llvm.tile import (
    ACCUMULATE,
    Tiling,
    call_tile,
    define_pack,
    pack_symbol,
    pack_text,
    tell,
    tell_strides,
    tiles_text,
    tiling,
    told,
)
from tracejit.records import dataclass

__all__ = ["Call", "Matrices", "blocks", "kernel", "kernel_texts", "plan", "plan_panels", "round_up"]


@dataclass(frozen=True, slots=True)
class Matrices:
    """A batched product. `batch` is (outer, inner); strides count elements: (outer, inner, row, column)."""

    m: int
    n: int
    k: int
    a: tuple[int, int, int, int]
    b: tuple[int, int, int, int]
    c: tuple[int, int, int]  # columns of C are contiguous
    batch: tuple[int, int] = (1, 1)

    def swapped(self) -> Matrices:
        """The transposed product C' = B' A', for C of one column."""
        (a0, a1, am, ak), (b0, b1, bk, bn) = self.a, self.b
        c = (*self.c[:2], 1)
        return Matrices(self.n, self.m, self.k, (b0, b1, bn, bk), (a0, a1, ak, am), c, self.batch)


@dataclass(frozen=True, slots=True)
class Call:
    """One step: `symbol(args, lo, hi, scratch)` with the pointers named in `pointers` first, then the integers."""

    symbol: str
    pointers: tuple[str, ...]
    integers: tuple[int, ...]
    extent: int
    grain: int
    scratch: int


# Integer arguments of both kernels, after the pointers c, a, b and bias.
_SHAPE = ("m", "n", "k", "inner", "parts", "part", "by_column")
_STRIDES = ("a0", "a1", "am", "ak", "b0", "b1", "bk", "bn", "c0", "c1", "cm")
_BLOCKS = ("mb", "nb", "kb", "pack_a", "pack_b", "b_offset", "epilogue")
_POINTERS = ("c", "a", "b", "bias")

_READY = 2  # a value of pack_b: it is packed already

_NEAR = 256 << 10  # bytes of B that stay in the second-level cache beside a block of A

_CHUNK = 200_000  # floating-point operations worth waking another thread for: 2 us


def round_up(x: int, multiple: int) -> int:
    """The next multiple that is not smaller."""
    return -(-x // multiple) * multiple


def blocks(extent: int, limit: int, multiple: int) -> int:
    """The block size that splits an extent evenly into as few blocks as `limit` allows."""
    extent = max(extent, 1)
    pieces = -(-extent // limit)
    return min(round_up(-(-extent // pieces), multiple), limit)


def plan(dtype: str, x: Matrices, vector_bits: int, epilogue: int = 0, *, ready: bool = False) -> Call:
    """How to run a product with the kernels of `kernel_texts(dtype, vector_bits)`.

    `epilogue` are flags of `tile.py`, for f32 and f64: bias[n] is added to C, relu taken. `ready` says that B are the
    panels of `plan_panels`.
    """
    if dtype not in ("f32", "f64"):
        return _plan_plain(dtype, x)
    if not epilogue and x.n == 1 and x.m > 1 and x.c[2] == 1:
        call = plan(dtype, x.swapped(), vector_bits)
        names = {"a": "b", "b": "a"}
        return Call(call.symbol, tuple(names.get(p, p) for p in call.pointers), *_rest(call))
    t = tiling(dtype, vector_bits)
    if not epilogue and x.m == 1:
        return _plan_gemv(dtype, x, t)
    return _plan_tiles(dtype, x, t, epilogue, ready)


def plan_panels(dtype: str, x: Matrices, vector_bits: int) -> tuple[Call, int] | None:
    """How to pack all of B ahead of products with it, and the bytes that takes; None where they would not read it."""
    if dtype not in ("f32", "f64") or x.batch != (1, 1) or min(x.m, x.n, x.k) < 2:
        return None
    t = tiling(dtype, vector_bits)
    count = -(-x.n // t.columns)
    grain = max(1, _CHUNK // (4 * x.k * t.columns))
    call = Call(f"panels_{dtype}", ("panels", "b"), (x.n, x.k, *x.b[2:]), count, grain, 0)
    return call, count * t.columns * x.k * t.scalar.bytes


def _rest(call: Call) -> tuple[tuple[int, ...], int, int, int]:
    return call.integers, call.extent, call.grain, call.scratch


def _plan_tiles(dtype: str, x: Matrices, t: Tiling, epilogue: int, ready: bool) -> Call:
    size = t.scalar.bytes
    batch = x.batch[0] * x.batch[1]
    by_column = x.n > x.m
    part = t.columns if by_column else t.rows
    parts = -(-(x.n if by_column else x.m) // part)
    if batch >= 8:
        part, parts = max(x.n if by_column else x.m, 1), 1
    mb = blocks(x.m, t.m_block, 1)
    nb = blocks(x.n, t.n_block, t.columns)
    kb = blocks(x.k, t.k_block, 4)
    # Unpacked, every row of B costs one cache line per tile again and every element of A a page when k strides far.
    pack_b = x.b[3] != 1 or x.m > 48
    pack_a = x.m > 48 and (x.n >= 192 or (x.a[3] != 1 and x.a[3] * size >= 2048))
    a_bytes = round_up(round_up(x.m if x.m < mb else mb, t.rows) * kb * size, 64) + t.rows * kb * size if pack_a else 0
    b_bytes = nb * kb * size if pack_b else t.columns * kb * size
    flops = 2 * x.k * (x.m * part if by_column else x.n * part)
    sizes = (mb, nb, kb, int(pack_a), _READY if ready else int(pack_b), round_up(a_bytes, 64), epilogue)
    integers = (x.m, x.n, x.k, x.batch[1], parts, part, int(by_column), *x.a, *x.b, *x.c, *sizes)
    extent = batch * parts if x.m and x.n else 0
    grain = max(1, -(-_CHUNK // max(flops, 1)))
    return Call(f"matmul_{dtype}", _POINTERS, integers, extent, grain, round_up(a_bytes, 64) + b_bytes)


def kernel_texts(dtype: str, vector_bits: int, only: str = "") -> tuple[str, ...]:
    """LLVM modules of the kernels for one element type, or of the one named `only`."""
    module = Module()
    if dtype not in ("f32", "f64"):
        _define_plain(module, dtype)
        return (module.text(),)
    t = tiling(dtype, vector_bits)
    if only in ("", f"gemv_{dtype}"):
        _define_gemv(module, t, f"gemv_{dtype}")
    if only == f"gemv_{dtype}":  # it needs no tiles, and takes a quarter of the time
        return (module.text(),)
    define_pack(module, t, t.rows, "internal nounwind")
    _define_pack_block(module, t)
    _define_pack_panels(module, t)
    _define_region(module, t)
    _define_matmul(module, t, f"matmul_{dtype}")
    _define_panels(module, t, f"panels_{dtype}")
    return module.text(), tiles_text(dtype, vector_bits), pack_text(dtype, vector_bits)


def kernel(
    module: Module, name: str, pointers: Sequence[str], integers: Sequence[str], attributes: str = "nounwind"
) -> tuple[Function, dict[str, Value]]:
    """Begin a function of the kernel ABI; its slots by name, and lo, hi and scratch."""
    f = module.function(name, None, {"args": ptr, "lo": i64, "hi": i64, "scratch": ptr}, attributes)
    slots = Slots(f, f.args[0], dict.fromkeys(pointers, ptr) | dict.fromkeys(integers, i64))
    slots.update(lo=f.args[1], hi=f.args[2], scratch=f.args[3])
    return f, slots


def _define_matmul(module: Module, t: Tiling, name: str) -> None:
    """Units lo..hi: unit u is part u % parts of matrix u / parts."""
    f, s = kernel(module, name, _POINTERS, (*_SHAPE, *_STRIDES, *_BLOCKS), OUTER)
    lo, hi, parts, part = s["lo"], s["hi"], s["parts"], s["part"]
    by_column = s["by_column"].ne(0)
    limit = by_column.select(s["n"], s["m"])
    with f.loop(lo // parts, (hi + parts - 1) // parts) as matrix:
        first = f.maximum(lo - matrix * parts, 0) * part
        last = f.minimum(f.minimum(hi - matrix * parts, parts) * part, limit)
        outer, inner = matrix // s["inner"], matrix % s["inner"]
        a, b, c = (f.element(s[p], outer * s[p + "0"] + inner * s[p + "1"], t.scalar) for p in ("a", "b", "c"))
        m0, m1 = by_column.select(0, first), by_column.select(s["m"], last)
        n0, n1 = by_column.select(first, 0 * first), by_column.select(last, s["n"])
        strides = [s[x] for x in ("am", "ak", "bk", "bn", "cm")]
        sizes = [s[x] for x in _BLOCKS]
        f.call("region", None, c, a, b, s["bias"], s["scratch"], m0, m1, n0, n1, s["k"], *strides, *sizes)
    f.ret()


def _define_pack_block(module: Module, t: Tiling) -> None:
    """Pack the tiles of a block of A: tile i has base rows, the first `extra` ones one more."""
    integers = ("am", "ak", "tiles", "base", "extra", "k")
    f = module.function(
        "pack_block", None, {"panels": ptr, "a": ptr} | dict.fromkeys(integers, i64), "internal nounwind"
    )
    panels, a, am, ak, tiles, base, extra, k = f.args
    # Transposed A is read row by row over all tiles: tile by tile would fetch each cache line once per tile. Six rows
    # are copied whatever a tile has, so the last tile, which must not be read past, goes the other way.
    whole = am.eq(1).select(tiles - 1, 0 * tiles)
    lanes = of(t.dtype, t.rows)
    with f.loop(0, k) as j:
        source, target = f.element(a, j * ak, t.scalar), f.element(panels, j * t.rows, t.scalar)
        with f.loop(0, whole) as i:
            row = i * base + f.minimum(i, extra)
            f.store(f.load(lanes, f.element(source, row, t.scalar)), f.element(target, i * k * t.rows, t.scalar))
    with f.loop(whole, tiles) as i:
        row = i * base + f.minimum(i, extra)
        rows = base + (i < extra).cast(i64)
        source, panel = f.element(a, row * am, t.scalar), f.element(panels, i * k * t.rows, t.scalar)
        f.call(pack_symbol(t, t.rows), None, panel, source, am, ak, rows, k)
    f.ret()


def _define_pack_panels(module: Module, t: Tiling) -> None:
    """Pack n columns of B into panels, side by side where rows are contiguous: one alone uses a line of each page."""
    args = {"panels": ptr, "b": ptr} | dict.fromkeys(("bn", "bk", "n", "k"), i64)
    f = module.function("pack_panels", None, args, "internal nounwind")
    panels, b, bn, bk, n, k = f.args
    together, row = 4, of(t.dtype, t.columns)
    main = bn.eq(1).select(n - n % (together * t.columns), 0 * n)
    with f.loop(0, main, together * t.columns) as i, f.loop(0, k) as j:
        source, target = f.element(b, j * bk + i, t.scalar), f.element(panels, i * k + j * t.columns, t.scalar)
        for p in range(together):
            x = f.load(row, f.element(source, p * t.columns, t.scalar))
            f.store(x, f.element(target, k * (p * t.columns), t.scalar))
    with f.loop(main, n, t.columns) as i:
        target, source = f.element(panels, i * k, t.scalar), f.element(b, i * bn, t.scalar)
        f.call(pack_symbol(t, t.columns), None, target, source, bn, bk, n - i, k)
    f.ret()


def _define_panels(module: Module, t: Tiling, name: str) -> None:
    """Panels lo..hi of B: `columns` columns each, row after row, the last one as `pack` fills it."""
    f, s = kernel(module, name, ("panels", "b"), ("n", "k", "bk", "bn"), OUTER)
    with f.loop(s["lo"], s["hi"]) as panel:
        first = panel * t.columns
        target, source = f.element(s["panels"], first * s["k"], t.scalar), f.element(s["b"], first * s["bn"], t.scalar)
        f.call(pack_symbol(t, t.columns), None, target, source, s["bn"], s["bk"], s["n"] - first, s["k"])
    f.ret()


def _define_region(module: Module, t: Tiling) -> None:
    """Rows m0..m1 and columns n0..n1 of one product: loops over blocks around the micro-kernel."""
    names = ("m0", "m1", "n0", "n1", "k", "am", "ak", "bk", "bn", "cm", *_BLOCKS)
    args: dict[str, Type] = {"c": ptr, "a": ptr, "b": ptr, "bias": ptr, "scratch": ptr}
    args.update(dict.fromkeys(names, i64))
    f = module.function("region", None, args, "internal nounwind")
    c, a, b, bias, scratch, m0, m1, n0, n1, k, am, ak, bk, bn, cm, *sizes = f.args
    mb, nb, kb, pack_a, pack_b, b_offset, epilogue = sizes
    b_panels = f.offset(scratch, b_offset)
    packs_a, packs_b, is_ready = pack_a.ne(0), pack_b.eq(1), pack_b.eq(_READY)
    tile = told(f, t, c_row=cm)
    tell_strides(f, t, tile, packs_a.select(1, am), packs_a.select(t.rows, ak))
    with f.loop(n0, n1, nb) as jc, f.loop(0, f.maximum(k, 1), kb) as pc:
        nc, kc = f.minimum(n1 - jc, nb), f.minimum(k - pc, kb)
        flags = (pc > 0).select(ACCUMULATE, 0 * pc) | (pc + kc >= k).select(epilogue, 0 * pc)
        b_block = f.element(b, pc * bk + jc * bn, t.scalar)
        tell(f, tile, k=kc, flags=flags)
        # Without packing only a last, partial panel is copied, so that whole vectors can be read everywhere.
        whole = nc - nc % t.columns
        first = is_ready.select(nc, packs_b.select(0, whole))
        f.call("pack_panels", None, b_panels, f.element(b_block, first * bn, t.scalar), bn, bk, nc - first, kc)
        with f.loop(m0, m1, mb) as ic:
            mc = f.minimum(m1 - ic, mb)
            tiles = (mc + t.rows - 1) // t.rows  # as equal as can be: 8 rows are 4 + 4, not 6 + 2
            base = mc // tiles
            extra = mc - base * tiles
            # Each tile asks for its share of the next panel where all panels together do not stay near the core.
            is_far = (packs_b | is_ready) & (nc * kc * t.scalar.bytes >= _NEAR)
            share = is_far.select(kc // tiles + 1, 0)
            a_block = f.element(a, ic * am + pc * ak, t.scalar)
            with f.when(packs_a):
                f.call("pack_block", None, scratch, a_block, am, ak, tiles, base, extra, kc)
            with f.loop(0, nc, t.columns) as j:
                packed = packs_b | (j >= whole)
                b_tile = packed.select(
                    f.element(b_panels, packs_b.select(j, 0 * j) * kc, t.scalar), f.element(b_block, j, t.scalar)
                )
                b_tile = is_ready.select(f.element(b, (jc + j) * k + pc * t.columns, t.scalar), b_tile)
                b_k = (packed | is_ready).select(t.columns, bk)
                tell(f, tile, b=b_tile, b_k=b_k, columns=nc - j, bias=f.element(bias, jc + j, t.scalar))
                following = f.opaque(f.element(b_tile, kc * t.columns, t.scalar))
                c_panel = f.opaque(f.element(c, ic * cm + jc + j, t.scalar))
                with f.loop(0, tiles) as i:
                    start = f.opaque(i * share)
                    with f.loop(start, f.minimum(start + share, kc)) as r:
                        f.prefetch(f.element(following, r * t.columns, t.scalar), is_write=False)
                    row = f.opaque(i * base) + f.minimum(i, extra)
                    rows = base + (i < extra).cast(i64)
                    a_tile = packs_a.select(
                        f.element(scratch, i * kc * t.rows, t.scalar), f.element(a_block, row * am, t.scalar)
                    )
                    c_tile = f.element(c_panel, row * cm, t.scalar)
                    call_tile(f, t, rows, tile, a_tile, c_tile)
    f.ret()


# ---------------------------------------------------------------- matrix times vector


def _plan_gemv(dtype: str, x: Matrices, t: Tiling) -> Call:
    """One row of C: c[n] = sum_k a[k] b[k, n]; a unit is `part` columns."""
    batch = x.batch[0] * x.batch[1]
    part = 8 * t.lanes
    parts = -(-x.n // part)
    shape = (x.m, x.n, x.k, x.batch[1], parts, part, 1)
    integers = (*shape, *x.a, *x.b, *x.c)
    grain = max(1, -(-_CHUNK // max(2 * x.k * part * 4, 1)))  # bound by memory: four times fewer
    return Call(f"gemv_{dtype}", _POINTERS, integers, batch * parts, grain, x.k * t.scalar.bytes + 64)


def _define_gemv(module: Module, t: Tiling, name: str) -> None:
    f, s = kernel(module, name, _POINTERS, (*_SHAPE, *_STRIDES))
    lo, hi, parts, part, k = s["lo"], s["hi"], s["parts"], s["part"], s["k"]
    with f.loop(lo // parts, (hi + parts - 1) // parts) as matrix:
        first = f.maximum(lo - matrix * parts, 0) * part
        last = f.minimum(f.minimum(hi - matrix * parts, parts) * part, s["n"])
        outer, inner = matrix // s["inner"], matrix % s["inner"]
        a, b, c = (f.element(s[p], outer * s[p + "0"] + inner * s[p + "1"], t.scalar) for p in ("a", "b", "c"))
        with f.loop(0, k) as j:  # the row of A, contiguous
            f.store(f.load(t.scalar, f.element(a, j * s["ak"], t.scalar)), f.element(s["scratch"], j, t.scalar))
        with f.either(s["bk"].eq(1)) as sides:
            for dots in sides:
                (_dots if dots else _combine)(f, t, (c, s["scratch"], b, first, last, k, s["bk"], s["bn"]))
    f.ret()


def _dots(f: Function, t: Tiling, args: Sequence[Value]) -> None:
    """Columns of B are contiguous: four dot products at a time, two vector sums each."""
    c, a, b, first, last, k, _, bn = args
    depth = 2 * t.lanes
    main = k - k % depth
    zero = f.value(0.0, t.vector)
    with f.loop(first, last, 4) as n:
        # Past the last column, repeat it: the same value is stored again.
        columns = [f.minimum(n + i, last - 1) for i in range(4)]
        starts = [f.element(b, column * bn, t.scalar) for column in columns]
        with f.carrying(0, main, [zero] * 8, depth) as loop:
            for h in range(2):
                x = f.load(t.vector, f.element(a, loop.index + h * t.lanes, t.scalar))
                for i, start in enumerate(starts):
                    y = f.load(t.vector, f.element(start, loop.index + h * t.lanes, t.scalar))
                    loop.carry[2 * i + h] = f.fma(x, y, loop.carry[2 * i + h])
        sums = [_sum_lanes(loop.carry[2 * i] + loop.carry[2 * i + 1]) for i in range(4)]
        with f.carrying(main, k, sums) as rest:
            x = f.load(t.scalar, f.element(a, rest.index, t.scalar))
            for i, start in enumerate(starts):
                y = f.load(t.scalar, f.element(start, rest.index, t.scalar))
                rest.carry[i] = f.fma(x, y, rest.carry[i])
        for column, y in zip(columns, rest.carry, strict=True):
            f.store(y, f.element(c, column, t.scalar))


def _sum_lanes(x: Value) -> Value:
    """The sum of the lanes as a fixed tree of halves."""
    width = x.type.width
    while width > 1:
        width //= 2
        x = x.shuffle(x, range(width)) + x.shuffle(x, range(width, 2 * width)) if width > 1 else x.lane(0) + x.lane(1)
    return x


def _combine(f: Function, t: Tiling, args: Sequence[Value]) -> None:
    """Rows of B are contiguous, or nothing is: c is the sum of whole rows of B."""
    c, a, b, first, last, k, bk, bn = args
    # Blocks of columns stay in the first-level cache of c while rows of B stream by, four at a time.
    block, deep = 2048 * 4 // t.scalar.bytes, k - k % 4
    main = bn.eq(1).select(last - (last - first) % t.lanes, first)
    with f.loop(first, main, block) as n0:
        n1 = f.minimum(n0 + block, main)
        with f.loop(n0, n1, t.lanes) as n:
            f.store(f.value(0.0, t.vector), f.element(c, n, t.scalar))
        for lo, hi, rows in ((f.value(0, i64), deep, 4), (deep, k, 1)):
            with f.loop(lo, hi, rows) as j:
                x = [f.load(t.scalar, f.element(a, j + r, t.scalar)).splat(t.lanes) for r in range(rows)]
                starts = [f.opaque(f.element(b, (j + r) * bk, t.scalar)) for r in range(rows)]
                with f.loop(n0, n1, t.lanes) as n:
                    y = f.load(t.vector, f.element(c, n, t.scalar))
                    for r in range(rows):
                        y = f.fma(x[r], f.load(t.vector, f.element(starts[r], n, t.scalar)), y)
                    f.store(y, f.element(c, n, t.scalar))
    with f.loop(main, last) as n:
        with f.carrying(0, k, [f.value(0.0, t.scalar)]) as one:
            x = f.load(t.scalar, f.element(a, one.index, t.scalar))
            y = f.load(t.scalar, f.element(b, one.index * bk + n * bn, t.scalar))
            one.carry = [f.fma(x, y, one.carry[0])]
        f.store(one.carry[0], f.element(c, n, t.scalar))


# ---------------------------------------------------------------- other element types


def _plan_plain(dtype: str, x: Matrices) -> Call:
    """A unit is one row of C."""
    batch = x.batch[0] * x.batch[1]
    integers = (x.m, x.n, x.k, x.batch[1], x.m, 1, 0, *x.a, *x.b, *x.c)
    grain = max(1, -(-_CHUNK // max(20 * x.k * x.n, 1)))
    return Call(f"matmul_{dtype}", _POINTERS, integers, batch * x.m, grain, 0)


def _define_plain(module: Module, dtype: str) -> None:
    t = of(dtype)
    accumulate = f32 if t.is_float else t  # f16 and bf16 sum in f32; integers wrap
    f, s = kernel(module, f"matmul_{dtype}", _POINTERS, (*_SHAPE, *_STRIDES))
    with f.loop(s["lo"], s["hi"]) as unit:
        matrix, row = unit // s["m"], unit % s["m"]
        outer, inner = matrix // s["inner"], matrix % s["inner"]
        a, b, c = (f.element(s[p], outer * s[p + "0"] + inner * s[p + "1"], t) for p in ("a", "b", "c"))
        with f.loop(0, s["n"]) as n:
            with f.carrying(0, s["k"], [f.value(0, accumulate)]) as loop:
                k = loop.index
                x = f.load(t, f.element(a, row * s["am"] + k * s["ak"], t)).cast(accumulate)
                y = f.load(t, f.element(b, k * s["bk"] + n * s["bn"], t)).cast(accumulate)
                loop.carry = [_multiply_add(f, x, y, loop.carry[0], dtype)]
            f.store(loop.carry[0].cast(t), f.element(c, row * s["cm"] + n, t))
    f.ret()


def _multiply_add(f: Function, x: Value, y: Value, total: Value, dtype: str) -> Value:
    if dtype == "bool":
        return total | (x & y)
    return f.fma(x, y, total) if _is_float(total.type) else total + x * y


def _is_float(type: Type) -> bool:
    return type.is_float
