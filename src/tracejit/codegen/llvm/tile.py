"""The micro-kernel under matmul and convolution: a tile of C in vector registers, and the packing that feeds it.

    C[rows, columns] (+)= A[rows, k] B[k, columns]        rows <= 6, columns = 2 vectors on AVX2

For every k one row of B is `vectors` vector loads and each row of A one broadcast; the tile itself never leaves the
registers until k is done. A is read through any two strides, so it may be packed, plain or transposed; rows of B must
be contiguous, so B is packed into panels of `columns` unless it lies that way already. Packing repeats the last valid
row or column in place of missing ones: tile lanes do not mix, and those lanes are never stored.

Each element of C is one chain of fused multiply-adds over k, whatever tile it falls into: results do not depend on
how the work was split. A finished tile may go through an epilogue before it is stored: a bias is added, then relu
taken, as two passes over C would. Which of them is said at run time, so one kernel serves all.

What several library modules call is compiled once, in modules of its own: `tiles_text`, `pack_text`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from tracejit.codegen.llvm.text import Function, Module, Type, Value, i64, of, ptr
from tracejit.records import dataclass

__all__ = [
    "ACCUMULATE", "BIAS", "RELU", "Tiling", "call_tile", "define_pack", "define_tile", "epilogue", "pack_symbol",
    "pack_text", "tile_symbol", "tiles_text", "tiling",
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
BIAS = 2  # this is the last of k: add a bias,
RELU = 4  # and set to zero what is below


def epilogue(f: Function, flags: Value, xs: Sequence[Value], biases: Callable[[], Sequence[Value]]) -> list[Value]:
    """Finished sums after the bias and relu that `flags` ask for; `biases` loads one for each."""
    with f.choose((flags & BIAS).ne(0), xs) as biased:
        biased.carry = [x + y for x, y in zip(xs, biases(), strict=True)]
    with f.choose((flags & RELU).ne(0), biased.carry) as bent:
        bent.carry = [(x < 0.0).select(0.0, x) for x in biased.carry]  # nan and -0.0 stay
    return bent.carry


def tile_symbol(t: Tiling, rows: int, *, indexed: bool = False) -> str:
    """The symbol of the micro-kernel of `rows` rows."""
    return f"tj_tile{rows}_{t.dtype}{'_indexed' if indexed else ''}"


def pack_symbol(t: Tiling, width: int) -> str:
    """The symbol of `define_pack`'s function."""
    return f"tj_pack{width}_{t.dtype}"


@cache
def tiles_text(dtype: str, vector_bits: int) -> str:
    """LLVM text of the micro-kernels of all numbers of rows that read A by two strides; the bias lies along rows."""
    module, t = Module(), tiling(dtype, vector_bits)
    for rows in range(1, t.rows + 1):
        define_tile(module, t, rows, bias_along="rows")
    return module.text()


@cache
def pack_text(dtype: str, vector_bits: int) -> str:
    """LLVM text of the function that packs panels of B."""
    module, t = Module(), tiling(dtype, vector_bits)
    define_pack(module, t, t.columns)
    return module.text()


def define_tile(
    module: Module, t: Tiling, rows: int, *, bias_along: str, indexed: bool = False, attributes: str = "nounwind"
) -> None:
    """Define the micro-kernel of `rows` rows. Strides count elements.

    In its epilogue the bias lies along "rows" (bias[n]) or "columns" (bias[m]) of C, as `bias_along` says.
    An `indexed` kernel finds A[r, k] at a[a_row[r] + a_k[k]] by two tables of i64, where the plain one has two strides.
    """
    way = ptr if indexed else i64
    args = {"k": i64, "a": ptr, "a_row": way, "a_k": way, "b": ptr, "b_k": i64}
    args |= {"c": ptr, "c_row": i64, "columns": i64, "flags": i64, "bias": ptr}
    f = module.function(tile_symbol(t, rows, indexed=indexed), None, args, attributes)
    k, a, a_row, a_k, b, b_k, c, c_row, columns, flags, bias = f.args
    # Opaque, or every row's address is made from the one before it: a chain of additions as long as the arithmetic.
    offsets = [f.load(i64, f.element(a_row, r, i64)) if indexed else a_row * r for r in range(rows)]
    starts = [f.opaque(f.element(a, offset, t.scalar)) for offset in offsets]
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

    unroll = 4
    main = k & -unroll
    carry = [a_k if indexed else f.value(0, i64), b, *tile]
    for lo, hi, times in ((f.value(0, i64), main, unroll), (main, k, 1)):
        with f.carrying(lo, hi, carry, times) as loop:
            at, row, *tile = loop.carry
            for _ in range(times):
                tile = step(tile, f.load(i64, at) if indexed else at, row)
                at = f.element(at, 1, i64) if indexed else f.opaque(at + a_k)
                row = f.element(row, b_k, t.scalar)
            loop.carry = [at, row, *tile]
        carry = loop.carry
    _finish_tile(f, t, bias_along, carry[2:], (c, c_row, columns, flags, bias))
    f.ret()


def _finish_tile(f: Function, t: Tiling, bias_along: str, tile: Sequence[Value], args: Sequence[Value]) -> None:
    """Add what C holds if asked, run the epilogue if asked, and store, within the valid columns."""
    c, c_row, columns, flags, bias = args
    rows = len(tile) // t.vectors
    with f.either(columns >= t.columns) as sides:
        for full in sides:
            masks = [] if full else [f.first(columns - v * t.lanes, t.lanes) for v in range(t.vectors)]

            def load(base: Value, v: int, full: bool = full, masks: list[Value] = masks) -> Value:
                address = f.element(base, v * t.lanes, t.scalar)
                return f.load(t.vector, address) if full else f.masked_load(t.vector, address, masks[v])

            def store(x: Value, base: Value, v: int, full: bool = full, masks: list[Value] = masks) -> None:
                address = f.element(base, v * t.lanes, t.scalar)
                f.store(x, address) if full else f.masked_store(x, address, masks[v])

            def biases(load: Callable[[Value, int], Value] = load) -> list[Value]:
                if bias_along == "rows":
                    return [load(bias, v) for v in range(t.vectors)] * rows
                down = [f.load(t.scalar, f.element(bias, r, t.scalar)).splat(t.lanes) for r in range(rows)]
                return [down[i // t.vectors] for i in range(len(tile))]

            bases = [f.element(c, c_row * r if r else 0, t.scalar) for r in range(rows)]
            with f.choose((flags & ACCUMULATE).ne(0), tile) as more:
                more.carry = [x + load(bases[i // t.vectors], i % t.vectors) for i, x in enumerate(tile)]
            done = epilogue(f, flags, more.carry, biases)
            for i, x in enumerate(done):
                store(x, bases[i // t.vectors], i % t.vectors)


def call_tile(f: Function, t: Tiling, rows: Value, *args: Value, indexed: bool = False) -> None:
    """Call the micro-kernel for a number of rows known at run time."""
    for n in f.cases(rows, range(1, t.rows + 1)):
        f.call(tile_symbol(t, n, indexed=indexed), None, *args)


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
    panel, x, x_lane, x_k, valid, k = f.args
    last = valid - 1
    lanes = [f.element(x, f.minimum(f.value(i, i64), last) * x_lane, t.scalar) for i in range(width)]
    blocks = x_k.eq(1).select(k & -t.lanes, 0 * k)
    with f.loop(0, blocks, t.lanes) as j:
        for start in range(0, width, t.lanes):
            count = min(t.lanes, width - start)
            group = [lanes[min(start + i, width - 1)] for i in range(t.lanes)]
            square = transpose([f.load(t.vector, f.element(p, j, t.scalar)) for p in group])
            for i, column in enumerate(square):
                part = column if count == t.lanes else column.shuffle(column, range(count))
                f.store(part, f.element(panel, (j + i) * width + start, t.scalar))
    with f.loop(blocks, k) as j:
        for i, p in enumerate(lanes):
            f.store(f.load(t.scalar, f.element(p, j * x_k, t.scalar)), f.element(panel, j * width + i, t.scalar))


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
