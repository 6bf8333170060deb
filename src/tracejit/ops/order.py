"""Ops along one axis in which every element may depend on all others: sort and the cumulative ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from tracejit.errors import DTypeError, IndexOutOfRange
from tracejit.ir import dtype as dt
from tracejit.ir.dim import Shape
from tracejit.ir.op import Array, Op, Sample
from tracejit.ir.types import TensorType, TupleType, Type
from tracejit.ops.indexing import scatter_along
from tracejit.ops.movement import broadcast, flip
from tracejit.ops.pointwise import TOLERANCE, compute, eq, select
from tracejit.ops.reduce import reduce_sum
from tracejit.ops.source import const, iota, zeros_like
from tracejit.records import dataclass

__all__ = ["CumMax", "CumProd", "CumSum", "Sort", "cummax", "cumprod", "cumsum", "sort"]


@dataclass(frozen=True)
class Sort(Op):
    """(values, indices) along `axis`, rising or falling. nan counts as largest; equal elements keep their order.

    Ours is always stable; the flag is what the user asked for.
    """

    name = "sort"
    library = "sort"
    axis: int
    descending: bool = False
    stable: bool = True

    def infer(self, x: TensorType) -> Type:
        if not 0 <= self.axis < x.rank:
            raise IndexOutOfRange(f"sort of {x} along axis {self.axis}: wanted an axis in 0 .. {x.rank - 1}")
        return TupleType((x, x.with_dtype(dt.int64)))

    def eval(self, x: Array) -> tuple[Array, Array]:
        keys = x.astype(np.float32) if x.dtype.kind == "V" else x
        if self.descending:  # the stable rising order of the mirror image, read backwards
            mirror = np.argsort(np.flip(keys, self.axis), self.axis, kind="stable")
            order = np.flip(x.shape[self.axis] - 1 - mirror, self.axis)
        else:
            order = np.argsort(keys, self.axis, kind="stable")
        return np.take_along_axis(x, order, self.axis), np.ascontiguousarray(order, np.int64)

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        if g[0] is None:
            return (None,)
        return (scatter_along(zeros_like(x), y[1], g[0], self.axis, "set"),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterator[Sample]:
        for descending in (False, True):
            for shape, axis in (
                ((5,), 0),
                ((3, 4), 1),
                ((3, 4), 0),
                ((2, 3, 2), 1),
                ((1,), 0),
                ((0,), 0),
                ((2, 0), 0),
                ((2, 70), 1),
            ):
                yield Sample(cls(axis, descending), (rng.permutation(np.prod(shape, dtype=int)).reshape(shape) + 0.5,))
            yield Sample(cls(1, descending), (rng.normal(size=(4, 3)),), ((0, 0, "n"),))
            for dtype in dt.ALL:
                x = rng.integers(0, 3, size=(2, 9)).astype(dtype.numpy)
                yield Sample(cls(1, descending), (x,), differentiable=False, note="ties keep their order")
            for d in (np.float32, np.float64, np.float16):
                x = np.array([1, np.nan, -0.0, np.inf, 0.0, np.nan, -np.inf, -0.0, 2], d)
                yield Sample(cls(0, descending), (x,), differentiable=False, note="special values")


@dataclass(frozen=True)
class _Cumulative(Op):
    axis: int
    kinds: ClassVar[str] = "fiu"
    ufunc: ClassVar[Any]
    library = "cumulative"

    def infer(self, x: TensorType) -> Type:
        if not 0 <= self.axis < x.rank:
            raise IndexOutOfRange(f"{self.name} of {x} along axis {self.axis}: wanted an axis in 0 .. {x.rank - 1}")
        if x.dtype.kind not in self.kinds:
            raise DTypeError(f"{self.name} has no meaning for {x}")
        return x

    def eval(self, x: Array) -> Array:
        return compute(self._eval, x)

    def _eval(self, x: Array) -> Array:
        return self.ufunc.accumulate(x, self.axis, dtype=x.dtype)  # NumPy would widen small integers

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterator[Sample]:
        for shape, axis in (
            ((5,), 0),
            ((3, 4), 1),
            ((3, 4), 0),
            ((2, 3, 2), 1),
            ((1,), 0),
            ((0,), 0),
            ((2, 0), 0),
            ((2, 37), 1),
        ):
            yield Sample(cls(axis), (rng.uniform(0.5, 1.5, size=shape),))
        yield Sample(cls(1), (rng.normal(size=(4, 3)),), ((0, 0, "n"),))
        yield Sample(cls(0), (rng.normal(size=(4, 3)),), ((0, 0, "n"),))
        for dtype in dt.ALL:
            if dtype.kind in cls.kinds:
                x = rng.integers(0, 3, size=(2, 7)).astype(dtype.numpy)
                yield Sample(cls(1), (x,), differentiable=False, tolerance=TOLERANCE[dtype])
        x = np.array([[1, np.nan, 2], [np.inf, -np.inf, 0], [-0.0, 0.0, -0.0]], np.float32)
        yield Sample(cls(1), (x,), differentiable=False, note="special values")


class CumSum(_Cumulative):
    """y[k] = x[0] + ... + x[k] along `axis`."""

    name = "cumsum"
    ufunc = np.add

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (flip(self(flip(g, (self.axis,))), (self.axis,)),)


class CumProd(_Cumulative):
    """y[k] = x[0] * ... * x[k] along `axis`. The gradient is right where elements are 0."""

    name = "cumprod"
    ufunc = np.multiply

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        # dx[k] = sum over j >= k of g[j] * (the product of x[0..j] but x[k]). Without division that is a table over
        # (k, j), cumulative along j of x with x[k] replaced by 1: n^2 memory, as PyTorch takes for second derivatives.
        shape: Shape = x.type.shape
        k, j = self.axis, self.axis + 1
        table = (
            *shape[:j],
            shape[k],
            *shape[j:],
        )  # axis k: which element is left out; axis j: how far the product goes
        without_k = [a for a in range(len(table)) if a != k]
        row, column = iota(x, table, k), iota(x, table, j)
        wide = broadcast(x, table, without_k)
        products = CumProd(j)(select(eq(row, column), const(x, 1, x.type.dtype, table), wide))
        terms = broadcast(g, table, without_k) * products
        return (reduce_sum(select(row <= column, terms, zeros_like(terms)), (j,)),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterator[Sample]:
        yield from super().samples(rng)
        x = rng.normal(size=(3, 5))
        x[1, 2] = x[2, 0] = x[2, 3] = 0
        yield Sample(cls(1), (x,), note="no zero, one zero, two zeros")


class CumMax(_Cumulative):
    """y[k] = the largest of x[0], ..., x[k] along `axis`, nan from the first nan on.

    Of equal ones the last gets the gradient.
    """

    name = "cummax"
    kinds = "fiub"
    ufunc = np.maximum

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        where = iota(x, x.type.shape, self.axis)
        winner = self(select(eq(x, y), where, zeros_like(where)))  # the place of the newest largest so far
        return (scatter_along(zeros_like(x), winner, g, self.axis),)


def sort(x: Any, axis: int, descending: bool = False, stable: bool = True) -> Any:
    """(values, indices) of x sorted along `axis`."""
    return Sort(axis, descending, stable)(x)


def cumsum(x: Any, axis: int) -> Any:
    """Running sums along `axis`."""
    return CumSum(axis)(x)


def cumprod(x: Any, axis: int) -> Any:
    """Running products along `axis`."""
    return CumProd(axis)(x)


def cummax(x: Any, axis: int) -> Any:
    """Running maxima along `axis`."""
    return CumMax(axis)(x)
