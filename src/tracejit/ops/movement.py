"""Ops that move elements without computing: what changes is where an element is read from.

`eval` returns NumPy views wherever NumPy can, because eager views (x[1:], x.T) are views of memory. In a kernel they
cost nothing at all: `element` only rewrites the index.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tracejit.errors import OpError
from tracejit.ir import dtype as dt
from tracejit.ir.dim import Extent, Shape, Sym, product, same
from tracejit.ir.index import Index
from tracejit.ir.node import Node, Value
from tracejit.ir.op import Array, At, Op, Reader, Reduce, Sample
from tracejit.ir.types import TensorType, Type
from tracejit.ops.address import as_node, clamped, divided, linear, merged, pick, shifted, split, within
from tracejit.ops.pointwise import eq, select
from tracejit.ops.source import const, ints, zeros_like
from tracejit.records import dataclass

__all__ = [
    "Broadcast", "Concat", "Flip", "Fold", "Pad", "Reshape", "Slice", "Transpose", "Unfold", "UpdateSlice",
    "broadcast", "concat", "flip", "fold", "pad", "reshape", "slice_", "transpose", "unfold", "update_slice", "windows",
]  # fmt: skip


def _sum(g: Any, axes: Sequence[int]) -> Any:
    """By name: ops.reduce stands on this module, broadcasting the gradients of its sums."""
    return Op.registry["reduce_sum"](tuple(axes))(g) if axes else g  # type: ignore[call-arg]


def is_fixed(d: Extent, value: int) -> bool:
    """True where the extent is known to be `value`."""
    return isinstance(d, int) and d == value


@dataclass(frozen=True)
class Reshape(Op):
    """The same elements, row-major, in another shape."""

    name = "reshape"
    shape: Shape

    def infer(self, x: TensorType) -> Type:
        if not same(x.size, product(self.shape)):
            raise OpError(f"reshape of {x} to {list(self.shape)}: {x.size} and {product(self.shape)} elements")
        return x.with_shape(self.shape)

    def eval(self, x: Array) -> Array:
        shape: Any = self.shape
        return x.reshape(shape)

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (reshape(g, x.type.shape),)

    def element(self, at: At, x: Reader) -> Node:
        if any(is_fixed(n, 0) for n in self.shape):  # never asked for; there is nothing to divide by
            return x((Index.at(0),) * x.type.rank)
        index: list[Index | Node] = []
        for ours, theirs in merged(x.type.shape, self.shape):
            flat = linear([at[k] for k in theirs], tuple(self.shape[k] for k in theirs))
            index += split(flat, tuple(x.type.shape[k] for k in ours))
        return x(tuple(index))

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterator[Sample]:
        for before, after in (
            ((6,), (2, 3)),
            ((2, 3, 4), (6, 4)),
            ((2, 3, 4), (3, 8)),
            ((4, 6), (2, 2, 3, 2)),
            ((1,), ()),
            ((), (1, 1)),
            ((2, 0), (0, 5)),
            ((3, 1, 2), (1, 3, 2, 1)),
        ):
            yield Sample(cls(after), (rng.normal(size=before),))
        yield Sample(cls((3, 8)), (np.asfortranarray(rng.normal(size=(4, 6))),), note="not contiguous")
        n = Sym("n")
        yield Sample(cls((n * 3, 2)), (rng.normal(size=(4, 3, 2)),), ((0, 0, "n"),))
        yield Sample(cls((n, 3, 2)), (rng.normal(size=(4, 6)),), ((0, 0, "n"),))
        yield from each_dtype(cls((3, 2)), (2, 3), rng)


@dataclass(frozen=True)
class Transpose(Op):
    """y's axis i is x's axis perm[i]."""

    name = "transpose"
    perm: tuple[int, ...]

    def infer(self, x: TensorType) -> Type:
        if sorted(self.perm) != list(range(x.rank)):
            raise OpError(f"transpose of {x} by {list(self.perm)}, which is no permutation of its axes")
        return x.with_shape([x.shape[p] for p in self.perm])

    def eval(self, x: Array) -> Array:
        return x.transpose(self.perm)

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (transpose(g, inverse(self.perm)),)

    def element(self, at: At, x: Reader) -> Node:
        return x(tuple(at[p] for p in inverse(self.perm)))

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterator[Sample]:
        for shape, perm in (
            ((2, 3), (1, 0)),
            ((2, 3, 4), (2, 0, 1)),
            ((), ()),
            ((0, 3), (1, 0)),
            ((1, 1, 5), (1, 2, 0)),
        ):
            yield Sample(cls(perm), (rng.normal(size=shape),))
        yield Sample(cls((1, 0)), (rng.normal(size=(4, 3)),), ((0, 0, "n"),))
        yield from each_dtype(cls((1, 0)), (2, 3), rng)


@dataclass(frozen=True)
class Broadcast(Op):
    """x's axis i becomes axis dims[i] of `shape`; the other axes repeat. Axes are added, never stretched."""

    name = "broadcast"
    shape: Shape
    dims: tuple[int, ...]

    def infer(self, x: TensorType) -> Type:
        ok = len(self.dims) == x.rank and all(0 <= d < len(self.shape) for d in self.dims)
        if not ok or list(self.dims) != sorted(set(self.dims)):
            raise OpError(
                f"broadcast of {x} to {list(self.shape)} with dims={list(self.dims)}: one rising axis for each of x's"
            )
        for i, d in enumerate(self.dims):
            if not same(x.shape[i], self.shape[d]):
                raise OpError(
                    f"broadcast of {x} to {list(self.shape)}: extents {x.shape[i]} and {self.shape[d]} differ"
                )
        return x.with_shape(self.shape)

    def eval(self, x: Array) -> Array:
        strides = [0] * len(self.shape)
        for i, d in enumerate(self.dims):
            if x.shape[i] != self.shape[d]:  # strides would reach past the memory of x
                raise OpError(f"broadcast of {list(x.shape)} to {list(self.shape)}: axis {i} does not fit")
            strides[d] = x.strides[i]
        if x.flags.c_contiguous and x.dtype.kind != "V":  # 1 us where as_strided takes 7; V is bfloat16, no buffer
            y = np.ndarray(self.shape, x.dtype, x, 0, strides)  # type: ignore[arg-type]
            y.flags.writeable = False
            return y
        return as_strided(x, self.shape, strides, writeable=False)  # type: ignore[arg-type]

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (_sum(g, [a for a in range(len(self.shape)) if a not in self.dims]),)

    def element(self, at: At, x: Reader) -> Node:
        return x(tuple(at[d] for d in self.dims))

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterator[Sample]:
        for before, after, dims in (
            ((3,), (2, 3), (1,)),
            ((2,), (2, 3), (0,)),
            ((), (2, 3), ()),
            ((2, 3), (2, 4, 3), (0, 2)),
            ((3,), (0, 3), (1,)),
            ((0,), (2, 0), (1,)),
            ((), (), ()),
            ((1,), (1, 1), (0,)),
        ):
            yield Sample(cls(after, dims), (rng.normal(size=before),))
        yield Sample(cls((3, 2, 4), (0, 2)), (rng.normal(size=(4, 3)).T,), note="not contiguous")
        yield Sample(cls((Sym("n"), 5), (0,)), (rng.normal(size=(4,)),), ((0, 0, "n"),))
        yield from each_dtype(cls((2, 3), (1,)), (3,), rng)


@dataclass(frozen=True)
class Slice(Op):
    """y[i] = x[starts + i * strides] up to `limits`; strides are positive."""

    name = "slice"
    starts: Shape
    limits: Shape
    strides: tuple[int, ...]

    def infer(self, x: TensorType) -> Type:
        if not len(self.starts) == len(self.limits) == len(self.strides) == x.rank:
            raise OpError(f"slice of {x} wants {x.rank} starts, limits and strides")
        for d, a, b, s in zip(x.shape, self.starts, self.limits, self.strides):
            if s < 1 or _below(a, 0) or _below(b, a) or _below(d, b):
                raise OpError(
                    f"slice of {x} from {a} to {b} by {s}: wanted 0 <= start <= limit <= {d} and a positive stride"
                )
        return x.with_shape([_ceil_div(b - a, s) for a, b, s in zip(self.starts, self.limits, self.strides)])

    def eval(self, x: Array) -> Array:
        y: Array = x[tuple(map(slice, self.starts, self.limits, self.strides))]  # type: ignore[arg-type]
        return np.asarray(y) if self.starts else x

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        high = _rest(x.type.shape, self.starts, self.strides, y.type.shape)
        return (pad(g, self.starts, high, [s - 1 for s in self.strides]),)

    def element(self, at: At, x: Reader) -> Node:
        return x(tuple(shifted(i, a, s) for i, a, s in zip(at, self.starts, self.strides)))

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterator[Sample]:
        for shape, a, b, s in (
            ((5,), (1,), (4,), (1,)),
            ((5,), (0,), (5,), (2,)),
            ((7, 6), (1, 2), (7, 6), (3, 2)),
            ((), (), (), ()),
            ((4,), (2,), (2,), (1,)),
            ((4,), (4,), (4,), (3,)),
            ((0, 2), (0, 0), (0, 2), (1, 1)),
            ((1,), (0,), (1,), (5,)),
            ((5,), (0,), (1,), (1,)),
        ):
            yield Sample(cls(a, b, s), (rng.normal(size=shape),))
        n = Sym("n")
        yield Sample(cls((0, 1), (n, 3), (1, 1)), (rng.normal(size=(4, 3)),), ((0, 0, "n"),))
        yield Sample(cls((1,), (n - 1,), (1,)), (rng.normal(size=(5,)),), ((0, 0, "n"),))
        yield from each_dtype(cls((1, 0), (2, 3), (1, 2)), (2, 3), rng)


def _below(a: Extent, b: Extent) -> bool:
    """a < b for certain."""
    d = b - a
    return isinstance(d, int) and d > 0


def _ceil_div(n: Extent, s: int) -> Extent:
    return n if s == 1 else -(-n // s)


def _rest(whole: Shape, starts: Shape, strides: Sequence[int], taken: Shape) -> list[Extent]:
    """What lies behind the last of `taken` elements, `strides` apart from `starts` on, on each axis."""
    return [n - a if is_fixed(k, 0) else n - a - (k - 1) * s - 1 for n, a, s, k in zip(whole, starts, strides, taken)]


@dataclass(frozen=True)
class Pad(Op):
    """x with `fill` around it: `interior` between elements, `low` before and `high` behind; negative edges crop."""

    name = "pad"
    low: Shape
    high: Shape
    interior: tuple[int, ...]

    def infer(self, x: TensorType, fill: TensorType) -> Type:
        if not len(self.low) == len(self.high) == len(self.interior) == x.rank:
            raise OpError(f"pad of {x} wants {x.rank} low, high and interior amounts")
        if fill.rank or fill.dtype is not x.dtype:
            raise OpError(f"pad of {x} wants its fill as {x.dtype.name}[], got {fill}")
        shape = [a + b + _spread(n, i) for n, a, b, i in zip(x.shape, self.low, self.high, self.interior)]
        if any(i < 0 for i in self.interior) or any(_below(d, 0) for d in shape):
            raise OpError(
                f"pad of {x} by low={list(self.low)}, high={list(self.high)}, interior={list(self.interior)}: "
                "an extent is below 0"
            )
        return x.with_shape(shape)

    def eval(self, x: Array, fill: Array) -> Array:
        low: Any = self.low
        shape = [a + b + _spread(n, i) for n, a, b, i in zip(x.shape, self.low, self.high, self.interior)]
        y = np.empty(shape, x.dtype)  # type: ignore[arg-type]
        y[...] = fill
        source: list[slice] = []
        target: list[slice] = []
        for n, a, size, i in zip(x.shape, low, y.shape, self.interior):
            step = i + 1
            first = -(a // step) if a < 0 else 0  # the first element of x not cropped
            last = min(n, max(first, (size - 1 - a) // step + 1))
            source.append(slice(first, last))
            target.append(
                slice(a + first * step, a + (last - 1) * step + 1 if last > first else a + first * step, step)
            )
        y[tuple(target)] = x[tuple(source)]
        return y

    def vjp(self, g: Any, y: Any, x: Any, fill: Any) -> tuple[Any, ...]:
        dx = unpad(g, self.low, self.high, self.interior)
        if isinstance(fill, Node) and fill.op.name == "const":
            return dx, None
        inside = const(x, True, dt.bool_, x.type.shape)
        mask = Pad(self.low, self.high, self.interior)(inside, const(x, False, dt.bool_))
        return dx, _sum(select(mask, zeros_like(g), g), range(g.type.rank))

    def element(self, at: At, x: Reader, fill: Reader) -> Node:
        if any(is_fixed(n, 0) for n in x.type.shape):
            return fill(())
        index: list[Index | Node] = []
        conditions: list[tuple[Index | Node, Extent, Extent]] = []
        between: list[Node] = []
        for i, n, a, b, gap in zip(at, x.type.shape, self.low, self.high, self.interior):
            i = shifted(i, -a)
            if gap:
                i, rest = divided(i, gap + 1)
                between.append(eq(as_node(rest), 0))
            if gap or not (is_fixed(a, 0) and is_fixed(b, 0)):
                conditions.append((i, 0, n))
            index.append(clamped(i, 0, n))
        if not conditions and not between:
            return x(tuple(index))
        inside = within(conditions)
        for b in between:
            inside = inside & b
        return pick(inside, x(tuple(index)), fill(()))

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterator[Sample]:
        def sample(shape: tuple[int, ...], low: Any, high: Any, gap: Any, dims: Any = ()) -> Sample:
            return Sample(cls(low, high, gap), (rng.normal(size=shape), np.asarray(rng.normal())), dims)

        yield sample((3,), (1,), (2,), (0,))
        yield sample((3, 2), (1, 0), (0, 2), (0, 0))
        yield sample((3,), (0,), (0,), (2,))
        yield sample((3, 4), (2, 1), (1, 0), (1, 2))
        yield sample((5,), (-1,), (-2,), (0,))
        yield sample((5, 4), (-1, 2), (1, -1), (0, 0))
        yield sample((4,), (-2,), (-1,), (2,))
        yield sample((4,), (-3,), (2,), (1,))
        yield sample((3,), (-3,), (2,), (0,))
        yield sample((3,), (-4,), (6,), (0,))
        yield sample((3,), (5,), (-4,), (1,))
        yield sample((0,), (1,), (2,), (0,))
        yield sample((0, 2), (1, 0), (2, 1), (1, 1))
        yield sample((1,), (0,), (0,), (3,))
        yield sample((), (), (), ())
        yield sample((4, 3), (1, 0), (1, 2), (0, 0), ((0, 0, "n"),))
        for dtype in dt.ALL:
            x = rng.integers(0, 2, size=(2, 3)).astype(dtype.numpy)
            one = np.ones((), dtype.numpy)
            yield Sample(cls((1, 0), (0, 1), (0, 1)), (x, one), differentiable=dtype.kind == "f")


def _spread(n: Extent, interior: int) -> Extent:
    return n if not interior or is_fixed(n, 0) else n + (n - 1) * interior


def unpad(g: Any, low: Shape, high: Shape, interior: Sequence[int]) -> Any:
    """The elements of g where `pad` put x; zeros for those it cropped."""
    if any(_below(a, 0) for a in (*low, *high)):
        g = pad(g, [-a for a in low], [-a for a in high])
        low = high = (0,) * len(low)
    shape: Shape = g.type.shape
    if all(same(a, 0) for a in (*low, *high)) and not any(interior):
        return g
    limits = [n - b for n, b in zip(shape, high)]
    return slice_(g, low, limits, [i + 1 for i in interior])


@dataclass(frozen=True)
class Flip(Op):
    """x backwards along `axes`."""

    name = "flip"
    axes: tuple[int, ...]

    def infer(self, x: TensorType) -> Type:
        if any(not 0 <= a < x.rank for a in self.axes) or len(set(self.axes)) < len(self.axes):
            raise OpError(f"flip of {x} along axes {list(self.axes)}: wanted distinct axes in 0 .. {x.rank - 1}")
        return x

    def eval(self, x: Array) -> Array:
        back = slice(None, None, -1)
        return x[tuple(back if a in self.axes else slice(None) for a in range(x.ndim))] if self.axes else x

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (flip(g, self.axes),)

    def element(self, at: At, x: Reader) -> Node:
        shape = x.type.shape
        return x(tuple(shifted(i, shape[a] - 1, -1) if a in self.axes else i for a, i in enumerate(at)))

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterator[Sample]:
        for shape, axes in (
            ((5,), (0,)),
            ((2, 3), (1,)),
            ((2, 3, 4), (0, 2)),
            ((0, 2), (0,)),
            ((1,), (0,)),
            ((), ()),
            ((3,), ()),
        ):
            yield Sample(cls(axes), (rng.normal(size=shape),))
        yield Sample(cls((0,)), (rng.normal(size=(4, 3)),), ((0, 0, "n"),))
        yield from each_dtype(cls((1,)), (2, 3), rng)


@dataclass(frozen=True)
class Concat(Op):
    """The inputs one behind the other along `axis`."""

    name = "concat"
    axis: int

    def infer(self, *xs: TensorType) -> Type:
        if not xs:
            raise OpError("concat of nothing")
        first = xs[0]
        for x in xs:
            fits = x.rank == first.rank and x.dtype is first.dtype and x.device == first.device
            if not fits or any(not same(a, b) for i, (a, b) in enumerate(zip(x.shape, first.shape)) if i != self.axis):
                raise OpError(f"concat of {first} and {x} along axis {self.axis}: only that extent may differ")
        if not 0 <= self.axis < first.rank:
            raise OpError(f"concat of {first} along axis {self.axis}: there is no such axis")
        total: Extent = 0
        for x in xs:
            total = total + x.shape[self.axis]
        return first.with_shape([total if i == self.axis else d for i, d in enumerate(first.shape)])

    def eval(self, *xs: Array) -> Array:
        return np.concatenate(xs, self.axis)

    def vjp(self, g: Any, y: Any, *xs: Any) -> tuple[Any, ...]:
        out: list[Any] = []
        start: Extent = 0
        for x in xs:
            n = x.type.shape[self.axis]
            out.append(slice_axis(g, self.axis, start, start + n))
            start = start + n
        return tuple(out)

    def element(self, at: At, *xs: Reader) -> Node:
        pieces: list[tuple[Extent, Extent, Reader]] = []
        start: Extent = 0
        for x in xs:
            n = x.type.shape[self.axis]
            if not is_fixed(n, 0):
                pieces.append((start, n, x))
            start = start + n
        if not pieces:
            return xs[0](at)

        def read(piece: tuple[Extent, Extent, Reader]) -> Node:
            start, n, x = piece
            i = clamped(shifted(at[self.axis], -start), 0, n)
            return x((*at[: self.axis], i, *at[self.axis + 1 :]))

        # From the back, and each under a test of its own place: a load under `inside` may not leave its buffer.
        y = read(pieces[-1])
        if len(pieces) > 1:
            start, n, _ = pieces[-1]
            y = pick(within([(at[self.axis], start, start + n)]), y, const(y, 0, y.type.dtype))
        for start, n, x in pieces[-2::-1]:
            y = pick(within([(at[self.axis], start, start + n)]), read((start, n, x)), y)
        return y

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterator[Sample]:
        for axis, shapes in (
            (0, ((2,), (3,))),
            (1, ((2, 1), (2, 3), (2, 2))),
            (0, ((0, 2), (1, 2))),
            (0, ((3,),)),
            (1, ((2, 0), (2, 0))),
            (0, ((1,), (1,), (1,), (1,))),
        ):
            yield Sample(cls(axis), tuple(rng.normal(size=s) for s in shapes))
        pair = (rng.normal(size=(4, 3)), rng.normal(size=(2, 3)))
        yield Sample(cls(0), pair, ((0, 0, "n"),))
        yield Sample(cls(1), (rng.normal(size=(4, 3)), rng.normal(size=(4, 1))), ((0, 0, "n"), (1, 0, "n")))
        for dtype in dt.ALL:
            xs = tuple(rng.integers(0, 2, size=(2, k)).astype(dtype.numpy) for k in (1, 2))
            yield Sample(cls(1), xs, differentiable=dtype.kind == "f")


@dataclass(frozen=True)
class UpdateSlice(Op):
    """x with x[starts + k * strides] = update[k]: writing into a strided window."""

    name = "update_slice"
    starts: Shape
    strides: tuple[int, ...]

    def infer(self, x: TensorType, update: TensorType) -> Type:
        if update.dtype is not x.dtype or update.rank != x.rank or not len(self.starts) == len(self.strides) == x.rank:
            raise OpError(
                f"update_slice of {x} with {update}: wanted equal dtypes and ranks, and a start and stride per axis"
            )
        for n, k, a, s in zip(x.shape, update.shape, self.starts, self.strides):
            if s < 1 or _below(a, 0) or (not is_fixed(k, 0) and _below(n, a + (k - 1) * s + 1)):
                raise OpError(f"update_slice of {x} with {update}: {k} elements from {a} by {s} do not fit in {n}")
        return x

    def _window(self, shape: Shape) -> list[slice]:
        starts, sizes = ints(self.starts), ints(shape)
        return [slice(a, a + max(0, (k - 1) * s + 1), s) for a, k, s in zip(starts, sizes, self.strides)]

    def eval(self, x: Array, update: Array) -> Array:
        y = x.copy()
        y[tuple(self._window(update.shape))] = update
        return y

    def vjp(self, g: Any, y: Any, x: Any, update: Any) -> tuple[Any, ...]:
        shape = update.type.shape
        limits = [a if is_fixed(k, 0) else a + (k - 1) * s + 1 for a, k, s in zip(self.starts, shape, self.strides)]
        return self(g, zeros_like(update)), slice_(g, self.starts, limits, self.strides)

    def element(self, at: At, x: Reader, update: Reader) -> Node:
        if any(is_fixed(k, 0) for k in update.type.shape):
            return x(at)
        index: list[Index | Node] = []
        conditions: list[tuple[Index | Node, Extent, Extent]] = []
        between: list[Node] = []
        for i, n, k, a, s in zip(at, x.type.shape, update.type.shape, self.starts, self.strides):
            if is_fixed(a, 0) and s == 1 and same(n, k):
                index.append(i)
                continue
            i = shifted(i, -a)
            if s > 1:
                i, rest = divided(i, s)
                between.append(eq(as_node(rest), 0))
            conditions.append((i, 0, k))
            index.append(clamped(i, 0, k))
        if not conditions:
            return update(tuple(index))
        inside = within(conditions)
        for b in between:
            inside = inside & b
        return pick(inside, update(tuple(index)), x(at))

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterator[Sample]:
        for shape, window, a, s in (
            ((5,), (2,), (1,), (1,)),
            ((5,), (2,), (1,), (2,)),
            ((4, 6), (2, 3), (1, 0), (2, 2)),
            ((), (), (), ()),
            ((3,), (0,), (3,), (1,)),
            ((3,), (3,), (0,), (1,)),
            ((0, 2), (0, 1), (0, 1), (1, 1)),
            ((7,), (2,), (2,), (4,)),
        ):
            yield Sample(cls(a, s), (rng.normal(size=shape), rng.normal(size=window)))
        pair = (rng.normal(size=(4, 3)), rng.normal(size=(4, 1)))
        yield Sample(cls((0, 2), (1, 1)), pair, ((0, 0, "n"), (1, 0, "n")))
        for dtype in dt.ALL:
            xs = tuple(rng.integers(0, 2, size=(2, k)).astype(dtype.numpy) for k in (3, 1))
            yield Sample(cls((0, 1), (1, 1)), xs, differentiable=dtype.kind == "f")


# --- windows ---------------------------------------------------------------------------------------------------------


def windows(
    extents: Sequence[Extent], sizes: Sequence[Extent], strides: Sequence[int], dilations: Sequence[int]
) -> list[Extent]:
    """How many windows fit on each axis: (extent - (size - 1) * dilation - 1) // stride + 1."""
    out: list[Extent] = []
    for n, k, s, d in zip(extents, sizes, strides, dilations):
        room = n - (k - 1) * d - 1
        if isinstance(room, int) and room < 0:
            raise OpError(f"a window of {k} with dilation {d} is wider than the extent {n}")
        out.append((room if s == 1 else room // s) + 1)
    return out


def window_view(x: Array, sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> Array:
    """A read-only view [..., *out, *sizes] of the windows over the last axes of x."""
    n = len(sizes)
    out: Any = windows(x.shape[x.ndim - n :], sizes, strides, dilations)
    lead, step = x.strides[: x.ndim - n], x.strides[x.ndim - n :]
    return as_strided(
        x,
        (*x.shape[: x.ndim - n], *out, *sizes),
        (*lead, *(a * s for a, s in zip(step, strides)), *(a * d for a, d in zip(step, dilations))),
        writeable=False,
    )


@dataclass(frozen=True)
class Unfold(Op):
    """Windows over the last len(sizes) axes: y[..., o, k] = x[..., o * strides + k * dilations].

    x[..., *s] gives [..., *out, *sizes]: the window axes come last, pooling reduces over them. Padding is a pad before.
    """

    name = "unfold"
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]

    def infer(self, x: TensorType) -> Type:
        n = len(self.sizes)
        if (
            not n == len(self.strides) == len(self.dilations) <= x.rank
            or min((1, *self.sizes, *self.strides, *self.dilations)) < 1
        ):
            raise OpError(
                f"unfold of {x} wants a positive size, stride and dilation for each of its last axes, got {self}"
            )
        split = x.rank - n
        out = windows(x.shape[split:], self.sizes, self.strides, self.dilations)
        return x.with_shape([*x.shape[:split], *out, *self.sizes])

    def eval(self, x: Array) -> Array:
        return window_view(x, self.sizes, self.strides, self.dilations)

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        shape = x.type.shape
        return (fold(g, shape[len(shape) - len(self.sizes) :], self.strides, self.dilations),)

    def element(self, at: At, x: Reader) -> Node:
        n = len(self.sizes)
        lead = len(at) - 2 * n
        places = zip(at[lead : lead + n], at[lead + n :], self.strides, self.dilations)
        return x((*at[:lead], *(shifted(shifted(k, 0, d), shifted(o, 0, s)) for o, k, s, d in places)))

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterator[Sample]:
        for shape, sizes, strides, dilations in window_cases():
            yield Sample(cls(sizes, strides, dilations), (rng.normal(size=shape),))
        yield Sample(cls((2,), (2,), (1,)), (rng.normal(size=(4, 6)),), ((0, 0, "n"),))
        yield from each_dtype(cls((2,), (1,), (1,)), (2, 3), rng)


def window_cases() -> Iterator[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
    """(shape, sizes, strides, dilations): overlapping, gapped, dilated, whole, empty."""
    yield (7,), (3,), (1,), (1,)
    yield (2, 7), (2,), (3,), (1,)
    yield (2, 8), (3,), (2,), (2,)
    yield (2, 5, 6), (2, 3), (1, 2), (2, 1)
    yield (2, 4, 4), (2, 2), (2, 2), (1, 1)
    yield (2, 3, 4, 5), (2, 1, 2), (1, 1, 2), (1, 1, 2)
    yield (1,), (1,), (1,), (1,)
    yield (3,), (3,), (1,), (1,)
    yield (0, 4), (2,), (1,), (1,)
    yield (3,), (), (), ()


@dataclass(frozen=True)
class Fold(Op):
    """The adjoint of unfold: y[..., p] = sum of x[..., o, k] over p = o * strides + k * dilations.

    `extents` are those of y's last axes.
    """

    name = "fold"
    extents: Shape
    strides: tuple[int, ...]
    dilations: tuple[int, ...]

    def _sizes(self, shape: Shape) -> Shape:
        return shape[len(shape) - len(self.extents) :]

    def infer(self, x: TensorType) -> Type:
        n = len(self.extents)
        if not (n == len(self.strides) == len(self.dilations) and 2 * n <= x.rank) or x.dtype.kind == "b":
            raise OpError(
                f"fold of {x} wants [..., *out, *sizes] and an extent, stride and dilation per axis, got {self}"
            )
        lead = x.rank - 2 * n
        out = windows(self.extents, self._sizes(x.shape), self.strides, self.dilations)
        if any(not same(a, b) for a, b in zip(out, x.shape[lead : lead + n])):
            raise OpError(
                f"fold of {x} to {list(self.extents)}: {list(x.shape[lead : lead + n])} windows, wanted {out}"
            )
        return x.with_shape([*x.shape[:lead], *self.extents])

    def eval(self, x: Array) -> Array:
        n = len(self.extents)
        lead = x.ndim - 2 * n
        wide = np.float32 if x.dtype.itemsize == 2 and x.dtype.kind in "fV" else x.dtype
        y = np.zeros((*x.shape[:lead], *self.extents), wide)  # type: ignore[arg-type]
        out = x.shape[lead : lead + n]
        for k in np.ndindex(*x.shape[lead + n :]):
            begin = [i * d for i, d in zip(k, self.dilations)]
            place = [slice(b, b + max(0, (o - 1) * s + 1), s) for b, o, s in zip(begin, out, self.strides)]
            y[(..., *place)] += x[(..., *k)] if n else x
        return y.astype(x.dtype, copy=False)

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (unfold(g, ints(self._sizes(x.type.shape)), self.strides, self.dilations),)

    def element(self, at: At, x: Reader) -> Reduce:
        n = len(self.extents)
        lead = len(at) - n
        shape = x.type.shape
        sizes, out = self._sizes(shape), shape[lead : lead + n]

        def window(ks: tuple[Index, ...]) -> Node:
            index: list[Index | Node] = []
            conditions: list[tuple[Index | Node, Extent, Extent]] = []
            between: list[Node] = []
            for p, k, o, s, d in zip(at[lead:], ks, out, self.strides, self.dilations):
                i = shifted(shifted(k, 0, -d), p)
                if s > 1:
                    i, rest = divided(i, s)
                    between.append(eq(as_node(rest), 0))
                conditions.append((i, 0, o))
                index.append(clamped(i, 0, o))
            if not conditions:
                return x((*at[:lead],))
            inside = within(conditions)
            for b in between:
                inside = inside & b
            y = x((*at[:lead], *index, *ks))
            return pick(inside, y, const(y, 0, y.type.dtype))

        return Reduce("sum", sizes, window)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterator[Sample]:
        for shape, sizes, strides, dilations in window_cases():
            n = len(sizes)
            extents = shape[len(shape) - n :]
            out: Any = windows(extents, sizes, strides, dilations)
            x = rng.normal(size=(*shape[: len(shape) - n], *out, *sizes))
            yield Sample(cls(extents, strides, dilations), (x,))
        yield Sample(cls((6,), (2,), (1,)), (rng.normal(size=(4, 3, 2)),), ((0, 0, "n"),))
        for dtype in dt.ALL:
            if dtype.kind != "b":
                x = rng.integers(0, 5, size=(2, 2, 2)).astype(dtype.numpy)
                yield Sample(cls((3,), (1,), (1,)), (x,), differentiable=dtype.kind == "f")


# --- helpers, and the same as functions -------------------------------------------------------------------------------


def each_dtype(op: Op, shape: tuple[int, ...], rng: np.random.Generator) -> Iterator[Sample]:
    """`op` on one input of each dtype, and on the values that must be moved unchanged."""
    for dtype in dt.ALL:
        yield Sample(op, (rng.integers(0, 2, size=shape).astype(dtype.numpy),), differentiable=dtype.kind == "f")
    x = np.resize(np.array([np.nan, -0.0, np.inf, -np.inf, 1.0]), shape)
    yield Sample(op, (x,), differentiable=False, note="moved unchanged")


def inverse(perm: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes `perm`."""
    return tuple(perm.index(i) for i in range(len(perm)))


def reshape(x: Any, shape: Sequence[Extent]) -> Any:
    """x in another shape; x itself where nothing changes."""
    shape, have = tuple(shape), x.type.shape
    return x if len(shape) == len(have) and all(map(same, have, shape)) else Reshape(shape)(x)


def transpose(x: Any, perm: Sequence[int]) -> Any:
    """x with axis i taken from perm[i]; x itself where nothing changes."""
    perm = tuple(perm)
    return x if perm == tuple(range(len(perm))) else Transpose(perm)(x)


def broadcast(x: Any, shape: Sequence[Extent], dims: Sequence[int]) -> Any:
    """x with its axes at `dims` of `shape`; x itself where no axis is added."""
    return x if len(shape) == x.type.rank else Broadcast(tuple(shape), tuple(dims))(x)


def slice_(x: Value, starts: Sequence[Extent], limits: Sequence[Extent], strides: Sequence[int] | None = None) -> Any:
    """x[starts : limits : strides] on every axis."""
    return Slice(tuple(starts), tuple(limits), tuple(strides or (1,) * len(starts)))(x)


def slice_axis(x: Any, axis: int, start: Extent, limit: Extent) -> Any:
    """x[start:limit] along one axis."""
    shape: Shape = x.type.shape
    return slice_(
        x,
        [start if a == axis else 0 for a in range(len(shape))],
        [limit if a == axis else n for a, n in enumerate(shape)],
    )


def pad(
    x: Any, low: Sequence[Extent], high: Sequence[Extent], interior: Sequence[int] | None = None, value: float = 0
) -> Any:
    """x with `value` around it and between its elements; x itself where nothing changes."""
    gaps = tuple(interior or (0,) * len(low))
    if all(same(a, 0) for a in (*low, *high)) and not any(gaps):
        return x
    return Pad(tuple(low), tuple(high), gaps)(x, const(x, value, x.type.dtype))


def flip(x: Value, axes: Sequence[int]) -> Any:
    """x backwards along `axes`."""
    return Flip(tuple(axes))(x)


def concat(xs: Sequence[Any], axis: int) -> Any:
    """The inputs one behind the other along `axis`."""
    return Concat(axis)(*xs)


def update_slice(x: Value, update: Value, starts: Sequence[Extent], strides: Sequence[int] | None = None) -> Any:
    """x with the window from `starts` by `strides` replaced by `update`."""
    return UpdateSlice(tuple(starts), tuple(strides or (1,) * len(starts)))(x, update)


def unfold(x: Value, sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> Any:
    """Windows over the last len(sizes) axes: x.shape[:-n] + out + sizes."""
    return Unfold(tuple(sizes), tuple(strides), tuple(dilations))(x)


def fold(x: Value, extents: Sequence[Extent], strides: Sequence[int], dilations: Sequence[int]) -> Any:
    """Windows [..., *out, *sizes] added up into [..., *extents]."""
    return Fold(tuple(extents), tuple(strides), tuple(dilations))(x)
