"""Reductions: many elements of the input make one of the result; `axes` are dropped.

float16 and bfloat16 are accumulated in float32 and rounded once. Integer sums keep their dtype: whoever wants i64 casts
first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from tracejit.errors import DTypeError, IndexOutOfRange, OpError
from tracejit.ir import dtype as dt
from tracejit.ir.dim import Shape, product
from tracejit.ir.index import Index
from tracejit.ir.op import Array, At, Op, Reader, Reduce, Sample
from tracejit.ir.types import TensorType, Type
from tracejit.ops.movement import broadcast, concat, inverse, is_fixed, reshape, slice_axis, transpose
from tracejit.ops.pointwise import TOLERANCE, cast, compute, eq, select
from tracejit.ops.source import const, zeros_like
from tracejit.records import dataclass

__all__ = [
    "ArgMax", "ArgMin", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "argmax", "argmin",
    "exclusive_products", "others", "reduce_max", "reduce_min", "reduce_prod", "reduce_sum", "spread",
]  # fmt: skip


def others(rank: int, axes: Sequence[int]) -> tuple[int, ...]:
    """The axes of a rank that are not among `axes`."""
    return tuple(a for a in range(rank) if a not in axes)


def spread(y: Any, shape: Shape, axes: Sequence[int]) -> Any:
    """A reduction's result repeated along the `axes` it dropped from `shape`."""
    return broadcast(y, shape, others(len(shape), axes))


_FEW = 16


@dataclass(frozen=True)
class _Reduction(Op):
    axes: tuple[int, ...]
    kinds: ClassVar[str] = "fiub"
    kind: ClassVar[str]  # what `Reduce` calls it
    ufunc: ClassVar[Any]
    has_identity: ClassVar[bool] = True

    def infer(self, x: TensorType) -> Type:
        if any(not 0 <= a < x.rank for a in self.axes) or list(self.axes) != sorted(set(self.axes)):
            raise IndexOutOfRange(
                f"{self.name} of {x} over axes {list(self.axes)}: wanted rising axes in 0 .. {x.rank - 1}"
            )
        if x.dtype.kind not in self.kinds:
            raise DTypeError(f"{self.name} has no meaning for {x}")
        if not self.has_identity and any(is_fixed(x.shape[a], 0) for a in self.axes):
            raise OpError(f"{self.name} of {x} over axes {list(self.axes)}: nothing to choose from, an extent is 0")
        return x.without(self.axes)

    def eval(self, x: Array) -> Array:
        return compute(self._eval, x)

    def _eval(self, x: Array) -> Array:
        count = math.prod(x.shape[a] for a in self.axes)
        if 1 < count <= _FEW and x.size >= 64 * count:
            # A pooling window: NumPy starts a loop for each result (3.5 ms for 32k of 2x2), this one for each
            # element of the window (0.2 ms).
            rows = x.transpose((*self.axes, *others(x.ndim, self.axes)))
            y = None
            for at in np.ndindex(*rows.shape[: len(self.axes)]):
                y = rows[at].copy() if y is None else self.ufunc(y, rows[at], out=y)
            return np.asarray(y)
        return self.ufunc.reduce(x, axis=self.axes, dtype=x.dtype)  # NumPy would widen small integers

    def element(self, at: At, x: Reader) -> Reduce:
        shape = x.type.shape
        return Reduce(self.kind, tuple(shape[a] for a in self.axes), lambda r: x(between(at, r, self.axes)))

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterator[Sample]:
        cases: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
            ((5,), (0,)), ((2, 3), (1,)), ((2, 3), (0,)), ((2, 3, 4), (0, 2)), ((2, 3), (0, 1)), ((2, 3), ()), ((), ()),
            ((1, 1), (0,)), ((0, 3), (1,)), ((3, 130), (1,)), ((130, 3), (0,)),
            ((5, 13, 2, 3), (2, 3)), ((2, 3, 70), (0, 1)),
        ]  # fmt: skip
        if cls.has_identity:
            cases += [((0, 3), (0,)), ((0,), (0,)), ((2, 0), (0, 1))]
        for shape, axes in cases:
            yield Sample(cls(axes), (rng.uniform(0.5, 1.5, size=shape),))
        yield Sample(cls((1,)), (rng.normal(size=(4, 3)),), ((0, 0, "n"),))
        yield Sample(cls((0,)), (rng.normal(size=(4, 3)),), ((0, 0, "n"),))
        yield Sample(cls((0,)), (rng.normal(size=(4, 3)).T,), note="not contiguous")
        for dtype in dt.ALL:
            if dtype.kind in cls.kinds:
                x = rng.integers(0, 2, size=(3, 4)).astype(dtype.numpy)
                yield Sample(cls((1,)), (x,), differentiable=False, tolerance=TOLERANCE[dtype])
        row = np.array([[1.0, np.nan, 3.0], [np.inf, -np.inf, 0.0], [-0.0, 0.0, -1.0], [np.inf, 1.0, 2.0]], np.float32)
        yield Sample(cls((1,)), (row,), differentiable=False, note="special values")


def between(at: At, r: Sequence[Index], axes: Sequence[int]) -> At:
    """The full index: r at `axes`, `at` at the others, in order."""
    kept, dropped = iter(at), iter(r)
    return tuple(next(dropped) if a in axes else next(kept) for a in range(len(at) + len(r)))


class ReduceSum(_Reduction):
    """y[i] = sum_r x[i, r] over `axes`, which are dropped."""

    name = "reduce_sum"
    kinds = "fiu"
    kind = "sum"
    ufunc = np.add

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (spread(g, x.type.shape, self.axes),)


class ReduceProd(_Reduction):
    """y[i] = prod_r x[i, r] over `axes`, which are dropped. The gradient is right where elements are 0."""

    name = "reduce_prod"
    kinds = "fiu"
    kind = "prod"
    ufunc = np.multiply

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        if not self.axes:
            return (g,)
        # One axis, at the end, of everything reduced; the product of all others is that of those before and behind.
        shape: Shape = x.type.shape
        kept = others(len(shape), self.axes)
        perm = (*kept, *self.axes)
        moved = tuple(shape[p] for p in perm)
        flat = (*(shape[k] for k in kept), product(tuple(shape[a] for a in self.axes)))
        rest = exclusive_products(reshape(transpose(x, perm), flat), len(kept))
        rest = transpose(reshape(rest, moved), inverse(perm))
        return (spread(g, shape, self.axes) * rest,)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterator[Sample]:
        yield from super().samples(rng)
        x = rng.normal(size=(4, 5))
        x[1, 2] = x[2, 0] = x[2, 3] = 0
        yield Sample(cls((1,)), (x,), note="no zero, one zero, two zeros")
        yield Sample(cls((0, 1)), (np.array([[2.0, 0.0], [3.0, 4.0]]),))


def exclusive_products(x: Any, axis: int) -> Any:
    """y[k] = the product of all x along `axis` but x[k], without division."""
    up = _shifted_products(x, axis)
    flip = Op.registry["flip"]((axis,))  # type: ignore[call-arg]
    return up * flip(_shifted_products(flip(x), axis))


def _shifted_products(x: Any, axis: int) -> Any:
    """y[k] = x[0] * ... * x[k - 1]."""
    shape: Shape = x.type.shape
    if is_fixed(shape[axis], 0):
        return x
    column = tuple(1 if a == axis else n for a, n in enumerate(shape))
    before = concat([const(x, 1, x.type.dtype, column), slice_axis(x, axis, 0, shape[axis] - 1)], axis)
    return Op.registry["cumprod"](axis)(before)  # type: ignore[call-arg]


class ReduceMax(_Reduction):
    """The largest over `axes`, nan if any is; equal ones share the gradient."""

    name = "reduce_max"
    kind = "max"
    ufunc = np.maximum
    has_identity = False

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (_shared(g, y, x, self.axes),)


class ReduceMin(_Reduction):
    """The smallest over `axes`, nan if any is; equal ones share the gradient."""

    name = "reduce_min"
    kind = "min"
    ufunc = np.minimum
    has_identity = False

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (_shared(g, y, x, self.axes),)


def _shared(g: Any, y: Any, x: Any, axes: tuple[int, ...]) -> Any:
    shape: Shape = x.type.shape
    chosen = eq(x, spread(y, shape, axes))
    count = reduce_sum(cast(chosen, x.type.dtype), axes)
    return select(chosen, spread(g / count, shape, axes), zeros_like(x))


@dataclass(frozen=True)
class _ArgReduction(Op):
    axis: int
    kind: ClassVar[str]
    position: ClassVar[Callable[..., Any]]

    def infer(self, x: TensorType) -> Type:
        if not 0 <= self.axis < x.rank:
            raise IndexOutOfRange(f"{self.name} of {x} along axis {self.axis}: wanted an axis in 0 .. {x.rank - 1}")
        if is_fixed(x.shape[self.axis], 0):
            raise OpError(f"{self.name} of {x} along axis {self.axis}: nothing to choose from, the extent is 0")
        return x.without((self.axis,)).with_dtype(dt.int64)

    def eval(self, x: Array) -> Array:
        if x.dtype.kind == "V":
            x = x.astype(np.float32)
        return np.asarray(self.position(x, self.axis), np.int64)

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (None,)

    def element(self, at: At, x: Reader) -> Reduce:
        return Reduce(self.kind, (x.type.shape[self.axis],), lambda r: x(between(at, r, (self.axis,))))

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterator[Sample]:
        for shape, axis in (((5,), 0), ((2, 3), 1), ((2, 3, 4), 1), ((1,), 0), ((0, 3), 1), ((3, 130), 1)):
            yield Sample(cls(axis), (rng.normal(size=shape),), differentiable=False)
        yield Sample(cls(1), (rng.normal(size=(4, 3)),), ((0, 0, "n"),), differentiable=False)
        for dtype in dt.ALL:
            x = rng.integers(0, 2, size=(3, 7)).astype(dtype.numpy)
            yield Sample(cls(1), (x,), differentiable=False, note="ties: the first")
        for d in (np.float32, np.float64):
            row = np.array([[1, np.nan, 3, np.nan], [np.inf, -np.inf, np.inf, -np.inf], [-0.0, 0.0, -0.0, 0.0]], d)
            yield Sample(cls(1), (row,), differentiable=False, note="special values")


class ArgMax(_ArgReduction):
    """The first position of the largest along `axis`, which is dropped; nan counts as largest."""

    name = "argmax"
    kind = "argmax"
    position = staticmethod(np.argmax)


class ArgMin(_ArgReduction):
    """The first position of the smallest along `axis`, which is dropped; nan counts as smallest."""

    name = "argmin"
    kind = "argmin"
    position = staticmethod(np.argmin)


def reduce_sum(x: Any, axes: Sequence[int]) -> Any:
    """The sum over `axes`; x itself where there are none."""
    return ReduceSum(tuple(axes))(x) if axes else x


def reduce_prod(x: Any, axes: Sequence[int]) -> Any:
    """The product over `axes`."""
    return ReduceProd(tuple(axes))(x) if axes else x


def reduce_max(x: Any, axes: Sequence[int]) -> Any:
    """The largest over `axes`."""
    return ReduceMax(tuple(axes))(x) if axes else x


def reduce_min(x: Any, axes: Sequence[int]) -> Any:
    """The smallest over `axes`."""
    return ReduceMin(tuple(axes))(x) if axes else x


def argmax(x: Any, axis: int) -> Any:
    """The first position of the largest along `axis`."""
    return ArgMax(axis)(x)


def argmin(x: Any, axis: int) -> Any:
    """The first position of the smallest along `axis`."""
    return ArgMin(axis)(x)
