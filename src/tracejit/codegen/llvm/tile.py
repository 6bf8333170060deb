"""The micro-kernel under matmul and convolution: a tile of C in vector registers, and the packing that feeds it.

    C[rows, columns] (+)= A[rows, k] B[k, columns]        rows <= 6, columns = 2 vectors on AVX2

For every k one row of B is `vectors` vector loads and each row of A one broadcast; the tile itself never leaves the
registers until k is done. A is read where its rows begin and by steps from k to k, so it may be packed, plain,
transposed or patches of an image; rows of B must be contiguous, so B is packed into panels of `columns` unless it lies
that way already. Packing repeats the last valid row or column in place of missing ones: tile lanes do not mix, and
those lanes are never stored.

Each element of C is one chain of fused multiply-adds over k, whatever tile it falls into: results do not depend on
how the work was split. A finished tile may go through an epilogue before it is stored: a bias is added, then relu
taken, as two passes over C would. Which of them is said at run time, so one kernel serves all.

What several library modules call is compiled once, in modules of its own: `tiles_text`, `pack_text`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache

from tracejit.codegen.llvm.text import Function, Module, Type, Value, i64, of, ptr
from tracejit.records import dataclass

__all__ = [
    "ACCUMULATE", "BIAS", "BIAS_ROWS", "RELU", "Tiling", "call_tile", "define_pack", "epilogue", "pack_symbol",
    "pack_text", "tell", "tell_rows", "tell_strides", "tile_symbol", "tiles_text", "tiling", "told",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tiling:
    """Shape of the register tile and of the blocks around it."""

    dtype: str
    lanes: int  # of one vector
    rows: int  # of A in a tile
    vectors: int  # of B in a tile
    k_block: int  # a panel of B, k_block x columns, fills half the first-level cache
    m_block: int  # a block of A, m_block x k_block, fills two fifths of the second-level cache
    n_block: int

    @property
    def columns(self) -> int:
        """Columns of B in a tile."""
        return self.lanes * self.vectors

    @property
    def scalar(self) -> Type:
        """LLVM type of an element."""
        return of(self.dtype)

    @property
    def vector(self) -> Type:
        """LLVM type of a register."""
        return of(self.dtype, self.lanes)


def tiling(dtype: str, vector_bits: int) -> Tiling:
    """The tile of a machine: 12 accumulators in 16 registers, 24 in 32."""
    size = of(dtype).bytes
    return Tiling(
        dtype,
        lanes=vector_bits // (8 * size),
        rows=12 if vector_bits == 512 else 6,
        vectors=2,
        k_block=256,
        m_block=192 * 4 // size,
        n_block=1024 * 4 // size,
    )


# Flags of a tile call.
ACCUMULATE = 1  # C holds the sum over earlier k
BIAS = 2  # this is the last of k: add a bias[n],
RELU = 4  # and set to zero what is below
BIAS_ROWS = 8  # bias[m, n] instead, where a row has the columns of a whole tile


def epilogue(f: Function, flags: Value, xs: Sequence[Value], biases: Callable[[], Sequence[Value]]) -> list[Value]:
    """Finished sums after the bias and relu that `flags` ask for; `biases` loads one for each."""
    with f.choose((flags & BIAS).ne(0), xs) as biased:
        biased.carry = [x + y for x, y in zip(xs, biases(), strict=True)]
    with f.choose((flags & RELU).ne(0), biased.carry) as bent:
        bent.carry = [(x < 0.0).select(0.0, x) for x in biased.carry]  # nan and -0.0 stay
    return bent.carry


def tile_symbol(t: Tiling, rows: int) -> str:
    """The symbol of the micro-kernel of `rows` rows."""
    return f"tj_tile{rows}_{t.dtype}"


def _finish_symbol(t: Tiling) -> str:
    """The symbol of `_define_finish`'s function."""
    return f"tj_finish_{t.dtype}"


def pack_symbol(t: Tiling, width: int) -> str:
    """The symbol of `define_pack`'s function."""
    return f"tj_pack{width}_{t.dtype}"


@cache
def tiles_text(dtype: str, vector_bits: int) -> str:
    """LLVM text of the micro-kernels of all numbers of rows."""
    module, t = Module(), tiling(dtype, vector_bits)
    for rows in range(1, t.rows + 1):
        _define_tile(module, t, rows)
    _define_finish(module, t)
    return module.text()


@cache
def pack_text(dtype: str, vector_bits: int) -> str:
    """LLVM text of the function that packs panels of B."""
    module, t = Module(), tiling(dtype, vector_bits)
    define_pack(module, t, t.columns)
    return module.text()


_UNROLL = 4  # k in a turn of the inner loop

# What micro-kernels are told in memory, once for many calls. Arguments are only where A and C begin: pushing
# ten more took 3 % of a product with k = 16.
_TOLD = {
    "k": i64,  # how many
    "a_k": ptr,  # how far it is from each k of A to the next,
    "a_step": i64,  # by a table (1), or one stride (0), said _UNROLL times
    "b": ptr,
    "b_k": i64,
    "c_row": i64,
    "columns": i64,  # of C that are valid, from the tile's first on
    "flags": i64,
    "bias": ptr,
}
_STRIDE = len(_TOLD)  # room for a stride
_ROWS = _STRIDE + _UNROLL  # how far rows of A lie from the tile's first, from the second row on


def told(f: Function, t: Tiling, **values: Value) -> Value:
    """Memory for what micro-kernels are told, with some of it."""
    memory = f.room(i64, _ROWS + t.rows - 1)
    tell(f, memory, **values)
    return memory


def tell(f: Function, told: Value, **values: Value) -> None:
    """Write some of what micro-kernels are told."""
    for name, value in values.items():
        f.store(value, _told_at(f, told, name))


def tell_rows(f: Function, told: Value, offsets: Iterable[Value]) -> None:
    """Tell where rows of A begin after a tile's first one."""
    for r, offset in enumerate(offsets):
        f.store(offset, f.element(told, _ROWS + r, i64))


def tell_strides(f: Function, t: Tiling, told: Value, a_row: Value, a_k: Value) -> None:
    """Tell that A is read by two strides."""
    stride = f.element(told, _STRIDE, i64)
    for i in range(_UNROLL):
        f.store(a_k, f.element(stride, i, i64))
    tell(f, told, a_k=stride, a_step=f.value(0, i64))
    tell_rows(f, told, (a_row * r for r in range(1, t.rows)))


def _told_at(f: Function, told: Value, name: str) -> Value:
    return f.element(told, list(_TOLD).index(name), i64)


def _ask(f: Function, told: Value, *names: str) -> list[Value]:
    return [f.load(_TOLD[name], _told_at(f, told, name)) for name in names]


def _define_tile(module: Module, t: Tiling, rows: int) -> None:
    """Define the micro-kernel of `rows` rows: `tile(told, a, c)`. Strides count elements."""
    f = module.function(tile_symbol(t, rows), None, {"told": ptr, "a": ptr, "c": ptr})
    told, a, c = f.args
    k, way, a_step, b, b_k, c_row = _ask(f, told, "k", "a_k", "a_step", "b", "b_k", "c_row")
    # Opaque, or every row's address is made from the one before it: a chain of additions as long as the arithmetic.
    offsets = [f.load(i64, f.element(told, _ROWS + r, i64)) for r in range(rows - 1)]
    starts = [a, *(f.opaque(f.element(a, offset, t.scalar)) for offset in offsets)]
    # C is met last, far from the tile before: asked for now, it is there by then.
    for r in range(rows):
        f.prefetch(f.element(c, c_row * r if r else 0, t.scalar), is_write=True)
    zero = f.value(0.0, t.vector)
    tile = [zero] * (rows * t.vectors)

    def step(tile: Sequence[Value], at: Value, row: Value) -> list[Value]:
        b_vectors = [f.load(t.vector, f.element(row, v * t.lanes, t.scalar)) for v in range(t.vectors)]
        out: list[Value] = []
        for r, start in enumerate(starts):
            x = f.load(t.scalar, f.element(start, at, t.scalar)).splat(t.lanes)
            out += [f.fma(x, y, tile[r * t.vectors + v]) for v, y in enumerate(b_vectors)]
        return out

    # One stride has a loop of its own: a load for each step took 3 % of a product.
    stride, zero = f.load(i64, way), f.value(0, i64)
    by_stride = a_step.eq(0).select(k & -_UNROLL, zero)
    main = k & -_UNROLL
    carry = [zero, way, b, *tile]
    for lo, hi, times in ((zero, by_stride, _UNROLL), (by_stride, main, _UNROLL), (main, k, 1)):
        with f.carrying(lo, hi, carry, times) as loop:
            at, way, row, *tile = loop.carry
            for i in range(times):
                tile = step(tile, at, row)
                at = f.opaque(at + (stride if hi is by_stride else f.load(i64, f.element(way, i, i64))))
                row = f.element(row, b_k, t.scalar)
            loop.carry = [at, way if hi is by_stride else f.element(way, a_step * times, i64), row, *tile]
        carry = loop.carry
    _store_tile(f, t, carry[3:], told, c)
    f.ret()


def _store_tile(f: Function, t: Tiling, tile: Sequence[Value], told: Value, c: Value) -> None:
    """Store whole rows, after what the flags ask for; put others aside, where `finish` goes on."""
    rows = len(tile) // t.vectors
    columns, c_row, flags = _ask(f, told, "columns", "c_row", "flags")
    with f.either(columns >= t.columns) as sides:
        for is_whole in sides:
            if is_whole:
                places = _places(f, t, c, c_row, rows)
                with f.choose((flags & ACCUMULATE).ne(0), tile) as more:
                    more.carry = [x + f.load(t.vector, at) for x, at in zip(tile, places, strict=True)]
                done = epilogue(f, flags, more.carry, lambda: _biases(f, t, flags, told, rows))
                for x, at in zip(done, places, strict=True):
                    f.store(x, at)
            else:
                aside = f.room(t.scalar, rows * t.columns)
                for x, at in zip(tile, _places(f, t, aside, f.value(t.columns, i64), rows), strict=True):
                    f.store(x, at)
                f.call(_finish_symbol(t), None, told, aside, f.value(rows, i64), c)


def _places(f: Function, t: Tiling, base: Value, row: Value, rows: int) -> list[Value]:
    """The addresses of a tile's vectors."""
    starts = [f.element(base, row * r if r else 0, t.scalar) for r in range(rows)]
    return [f.element(start, v * t.lanes, t.scalar) for start in starts for v in range(t.vectors)]


def _biases(f: Function, t: Tiling, flags: Value, told: Value, rows: int) -> list[Value]:
    (bias,) = _ask(f, told, "bias")
    places = _places(f, t, bias, _bias_row(f, t, flags), rows)
    return [f.load(t.vector, at) for at in places]


def _bias_row(f: Function, t: Tiling, flags: Value) -> Value:
    return (flags & BIAS_ROWS).ne(0).select(t.columns, f.value(0, i64))


def _define_finish(module: Module, t: Tiling) -> None:
    """Define `finish(told, tile, rows, c)`: the rest of the way of a tile into few columns.

    Add what C holds if asked, run the epilogue if asked, and store. It goes vector by vector: in every micro-kernel,
    all rows at once, this took as many instructions as the sums.
    """
    f = module.function(_finish_symbol(t), None, {"told": ptr, "tile": ptr, "rows": i64, "c": ptr})
    told, tile, rows, c = f.args
    c_row, columns, flags, bias = _ask(f, told, "c_row", "columns", "flags", "bias")
    bias_row = _bias_row(f, t, flags)
    with f.loop(0, columns, t.lanes) as n, f.loop(0, rows) as r:
        at, at_bias = f.element(c, c_row * r + n, t.scalar), f.element(bias, bias_row * r + n, t.scalar)
        x = f.load(t.vector, f.element(tile, r * t.columns + n, t.scalar))
        left = columns - n
        mask = f.first(left, t.lanes)
        with f.either(left >= t.lanes) as sides:
            for full in sides:

                def load(at: Value, full: bool = full) -> Value:
                    return f.load(t.vector, at) if full else f.masked_load(t.vector, at, mask)

                with f.choose((flags & ACCUMULATE).ne(0), [x]) as more:
                    more.carry = [x + load(at)]
                (y,) = epilogue(f, flags, more.carry, lambda load=load: [load(at_bias)])
                f.store(y, at) if full else f.masked_store(y, at, mask)
    f.ret()


def call_tile(f: Function, t: Tiling, rows: Value, told: Value, a: Value, c: Value) -> None:
    """Call the micro-kernel for a number of rows known at run time: it reads A from `a` and writes C from `c` on."""
    for n in f.cases(rows, range(1, t.rows + 1)):
        f.call(tile_symbol(t, n), None, told, a, c)


# ---------------------------------------------------------------- packing


def define_pack(module: Module, t: Tiling, width: int, attributes: str = "nounwind") -> None:
    """Define `pack(panel, x, x_lane, x_k, valid, k)`: panel[j, i] = x[i * x_lane + j * x_k] for i < width, j < k.

    Lanes from `valid` (at least 1) on repeat the last valid one. Contiguous lanes are copied, contiguous k is
    transposed in registers, anything else goes one by one.
    """
    args = {"panel": ptr, "x": ptr, "x_lane": i64, "x_k": i64, "valid": i64, "k": i64}
    f = module.function(pack_symbol(t, width), None, args, attributes)
    panel, x, x_lane, x_k, valid, k = f.args
    whole = of(t.dtype, width)
    with f.either(x_lane.eq(1) & (valid >= width)) as sides:
        for contiguous in sides:
            if contiguous:
                with f.loop(0, k) as j:
                    row = f.load(whole, f.element(x, j * x_k, t.scalar))
                    f.store(row, f.element(panel, j * width, t.scalar))
            else:
                _pack_lanes(f, t, width)
    f.ret()


def _pack_lanes(f: Function, t: Tiling, width: int) -> None:
    """By groups of as many lanes as a vector has, or what is left."""
    whole = width - width % t.lanes
    if whole:
        with f.loop(0, whole, t.lanes) as start:
            _pack_group(f, t, width, start, t.lanes)
    if whole < width:
        _pack_group(f, t, width, f.value(whole, i64), width - whole)


def _pack_group(f: Function, t: Tiling, width: int, start: Value, count: int) -> None:
    panel, x, x_lane, x_k, valid, k = f.args
    out = f.opaque(f.element(panel, start, t.scalar))
    places = [f.minimum(start + i, valid - 1) for i in range(count)]
    lanes = [f.opaque(f.element(x, place * x_lane, t.scalar)) for place in places]
    blocks = x_k.eq(1).select(k & -t.lanes, 0 * k)
    with f.loop(0, blocks, t.lanes) as j:
        rows = [f.load(t.vector, f.element(p, j, t.scalar)) for p in lanes]
        for i, column in enumerate(transpose(rows + rows[-1:] * (t.lanes - count))):
            part = column if count == t.lanes else column.shuffle(column, range(count))
            f.store(part, f.element(out, (j + i) * width, t.scalar))
    with f.loop(blocks, k) as j:
        for i, p in enumerate(lanes):
            f.store(f.load(t.scalar, f.element(p, j * x_k, t.scalar)), f.element(out, j * width + i, t.scalar))


def transpose(rows: Sequence[Value]) -> list[Value]:
    """The square of vectors transposed: butterflies that swap ever larger blocks across the diagonal."""
    out, n = list(rows), len(rows)
    step = 1
    while step < n:
        for i in range(n):
            if i & step:
                continue
            a, b = out[i], out[i + step]
            out[i] = a.shuffle(b, [lane if not lane & step else n + lane - step for lane in range(n)])
            out[i + step] = a.shuffle(b, [lane + step if not lane & step else n + lane for lane in range(n)])
        step *= 2
    return out
