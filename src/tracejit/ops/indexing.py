"""Ops whose places are data: gather (take, take_along, dynamic_slice) and its adjoints (scatter...).

Indices are i64, not negative and in range; `eval` checks and names the first bad one. Writes happen in row-major order
of the indices, so "set" keeps the last and "add" is the same sum every time. 2-byte floats are added up in float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tracejit.errors import IndexOutOfRange, OpError
from tracejit.ir import dtype as dt
from tracejit.ir.dim import Extent, Shape, same
from tracejit.ir.index import Index
from tracejit.ir.node import Node
from tracejit.ir.op import Array, At, Op, Reader, Sample
from tracejit.ir.types import TensorType, Type
from tracejit.ops.address import as_node, clamped, pick, shifted, within
from tracejit.ops.movement import broadcast, is_fixed, reshape
from tracejit.ops.pointwise import eq, select
from tracejit.ops.source import const, iota, zeros_like
from tracejit.records import dataclass

__all__ = [
    "DynamicSlice", "DynamicUpdateSlice", "Scatter", "ScatterAlong", "Take", "TakeAlong",
    "dynamic_slice", "dynamic_update_slice", "scatter", "scatter_along", "take", "take_along",
]  # fmt: skip


def check_range(what: str, indices: Array, extent: int, axis: int) -> None:
    """Raises IndexOutOfRange naming the first index outside [0, extent)."""
    # Seen as unsigned, negative indices are huge: one pass finds both kinds.
    if indices.size and int(np.ascontiguousarray(indices).view(np.uint64).max()) >= extent:
        bad = indices[(indices < 0) | (indices >= extent)].flat[0]
        raise IndexOutOfRange(f"{what}: index {bad} is out of range for axis {axis} of extent {extent}")


def _check_axis(what: str, x: TensorType, indices: TensorType, axis: int) -> None:
    if not 0 <= axis < x.rank:
        raise IndexOutOfRange(f"{what} of {x} along axis {axis}: wanted an axis in 0 .. {x.rank - 1}")
    if indices.dtype is not dt.int64:
        raise OpError(f"{what} of {x} wants its indices as i64, got {indices}")


def _check_mode(what: str, mode: str) -> None:
    if mode not in ("add", "set"):
        raise OpError(f'{what} has the modes "add" and "set", got {mode!r}')


def _wide(x: Array) -> Array:
    return x.astype(np.float32) if x.dtype.itemsize == 2 and x.dtype.kind in "fV" else x.copy()


@dataclass(frozen=True)
class Take(Op):
    """y[*a, *i, *b] = x[*a, indices[*i], *b], where axis `axis` stands between a and b."""

    name = "take"
    axis: int

    def infer(self, x: TensorType, indices: TensorType) -> Type:
        _check_axis("take", x, indices, self.axis)
        return x.with_shape((*x.shape[: self.axis], *indices.shape, *x.shape[self.axis + 1 :]))

    def eval(self, x: Array, indices: Array) -> Array:
        check_range("take", indices, x.shape[self.axis], self.axis)
        return np.asarray(np.take(x, indices, self.axis))

    def vjp(self, g: Any, y: Any, x: Any, indices: Any) -> tuple[Any, ...]:
        return Scatter(self.axis, "add")(zeros_like(x), indices, g), None

    def element(self, at: At, x: Reader, indices: Reader) -> Node:
        end = self.axis + indices.type.rank
        return x((*at[: self.axis], indices(at[self.axis : end]), *at[end:]))

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterator[Sample]:
        for shape, axis, ids in (
            ((5,), 0, (3,)),
            ((5, 2), 0, (2, 2)),
            ((2, 5), 1, (4,)),
            ((2, 5, 3), 1, (1,)),
            ((5,), 0, ()),
            ((5, 2), 0, (0,)),
            ((1, 0), 0, (3,)),
            ((1,), 0, (4,)),
            ((5, 9), 0, (3,)),
        ):
            yield Sample(cls(axis), (rng.normal(size=shape), rng.integers(0, shape[axis], size=ids)))
        yield Sample(cls(0), (rng.normal(size=(4, 3)), np.array([0, 3, 0])), ((0, 0, "v"), (1, 0, "n")))
        for dtype in dt.ALL:
            x = rng.integers(0, 2, size=(4, 2)).astype(dtype.numpy)
            yield Sample(cls(0), (x, np.array([[3, 0, 3]])), differentiable=dtype.kind == "f")
        yield Sample(cls(0), (np.array([np.nan, -0.0, np.inf]), np.array([2, 1, 0, 0])), differentiable=False)


@dataclass(frozen=True)
class TakeAlong(Op):
    """y[..., i, ...] = x[..., indices[..., i, ...], ...] along `axis`; the other extents are equal."""

    name = "take_along"
    axis: int

    def infer(self, x: TensorType, indices: TensorType) -> Type:
        _check_axis("take_along", x, indices, self.axis)
        _check_others("take_along", x, indices, self.axis)
        return x.with_shape(indices.shape)

    def eval(self, x: Array, indices: Array) -> Array:
        check_range("take_along", indices, x.shape[self.axis], self.axis)
        return np.take_along_axis(x, indices, self.axis)

    def vjp(self, g: Any, y: Any, x: Any, indices: Any) -> tuple[Any, ...]:
        shape: Shape = x.type.shape
        if is_fixed(indices.type.shape[self.axis], 1):
            # One per row: comparing positions fuses with what follows, where a scatter would be a step of its own.
            chosen = eq(iota(x, shape, self.axis), _along(indices, shape, self.axis))
            return select(chosen, _along(g, shape, self.axis), zeros_like(x)), None
        return ScatterAlong(self.axis, "add")(zeros_like(x), indices, g), None

    def element(self, at: At, x: Reader, indices: Reader) -> Node:
        return x((*at[: self.axis], indices(at), *at[self.axis + 1 :]))

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterator[Sample]:
        for shape, axis, k in (
            ((5,), 0, 3),
            ((3, 5), 1, 1),
            ((3, 5), 1, 7),
            ((3, 5, 2), 1, 2),
            ((3, 2), 0, 0),
            ((0, 2), 1, 1),
            ((1,), 0, 1),
        ):
            wanted = tuple(k if a == axis else n for a, n in enumerate(shape))
            yield Sample(cls(axis), (rng.normal(size=shape), rng.integers(0, shape[axis], size=wanted)))
        pair = (rng.normal(size=(4, 3)), rng.integers(0, 3, size=(4, 1)))
        yield Sample(cls(1), pair, ((0, 0, "n"), (1, 0, "n")))
        for dtype in dt.ALL:
            x = rng.integers(0, 2, size=(2, 4)).astype(dtype.numpy)
            yield Sample(cls(1), (x, np.array([[3, 0, 3], [1, 1, 2]])), differentiable=dtype.kind == "f")


def _check_others(what: str, x: TensorType, indices: TensorType, axis: int) -> None:
    if x.rank != indices.rank or any(
        not same(a, b) for i, (a, b) in enumerate(zip(x.shape, indices.shape)) if i != axis
    ):
        raise OpError(f"{what} of {x} with indices {indices}: only the extents along axis {axis} may differ")


def _along(x: Any, shape: Shape, axis: int) -> Any:
    """x, of extent 1 along `axis`, repeated to `shape`."""
    kept = [a for a in range(len(shape)) if a != axis]
    return broadcast(reshape(x, [shape[a] for a in kept]), shape, kept)


@dataclass(frozen=True)
class Scatter(Op):
    """y = x, then y[*a, indices[*i], *b] (+)= updates[*a, *i, *b]: the adjoint of take.

    `mode` is "add", or "set": the last write of a place wins.
    """

    name = "scatter"
    library = "scatter"
    axis: int
    mode: str

    def infer(self, x: TensorType, indices: TensorType, updates: TensorType) -> Type:
        _check_axis("scatter", x, indices, self.axis)
        _check_mode("scatter", self.mode)
        wanted = (*x.shape[: self.axis], *indices.shape, *x.shape[self.axis + 1 :])
        if updates.dtype is not x.dtype or len(wanted) != updates.rank or not all(map(same, wanted, updates.shape)):
            raise OpError(f"scatter into {x} at {indices} wants updates {x.with_shape(wanted)}, got {updates}")
        return x

    def eval(self, x: Array, indices: Array, updates: Array) -> Array:
        check_range("scatter", indices, x.shape[self.axis], self.axis)
        y = x.copy() if self.mode == "set" else _wide(x)
        rows = np.moveaxis(y, self.axis, 0)
        k = indices.ndim
        new = np.moveaxis(updates, range(self.axis, self.axis + k), range(k)).reshape((indices.size, *rows.shape[1:]))
        at = indices.reshape(-1)
        if self.mode == "set":
            rows[at] = new
        elif new.size > 16 * at.size:  # ufunc.at visits single elements; whole rows are quicker one by one
            for i, row in zip(at, new):
                rows[i] += row
        else:
            np.add.at(rows, at, new.astype(rows.dtype, copy=False))
        return y.astype(x.dtype, copy=False)

    def vjp(self, g: Any, y: Any, x: Any, indices: Any, updates: Any) -> tuple[Any, ...]:
        back = Take(self.axis)(g, indices)
        if self.mode == "add":
            return g, None, back
        # Where an index occurs twice only the last write is seen, so only it gets a gradient.
        extent = x.type.shape[self.axis]
        order = reshape(iota(indices, (indices.type.size,), 0), indices.type.shape)
        last = Scatter(0, "set")(const(indices, 0, dt.int64, (extent,)), indices, order)
        seen = eq(Take(0)(last, indices), order)
        rank = indices.type.rank
        mask = broadcast(seen, updates.type.shape, range(self.axis, self.axis + rank))
        return self(g, indices, zeros_like(updates)), None, select(mask, back, zeros_like(updates))

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterator[Sample]:
        for mode in ("add", "set"):
            for shape, axis, ids in (
                ((5,), 0, (7,)),
                ((5, 2), 0, (2, 2)),
                ((2, 5), 1, (4,)),
                ((2, 5, 3), 1, (1,)),
                ((5,), 0, ()),
                ((5, 2), 0, (0,)),
                ((1, 0), 0, (3,)),
                ((1,), 0, (4,)),
                ((5, 20), 0, (9,)),
            ):
                indices = rng.integers(0, shape[axis], size=ids)
                updates = rng.normal(size=(*shape[:axis], *ids, *shape[axis + 1 :]))
                yield Sample(cls(axis, mode), (rng.normal(size=shape), indices, updates))
            triple = (rng.normal(size=(4, 3)), np.array([0, 3, 0]), rng.normal(size=(3, 3)))
            yield Sample(cls(0, mode), triple, ((0, 0, "v"), (1, 0, "n"), (2, 0, "n")))
            for dtype in dt.ALL:
                x, u = (rng.integers(0, 2, size=s).astype(dtype.numpy) for s in ((4, 2), (3, 2)))
                yield Sample(
                    cls(0, mode), (x, np.array([3, 0, 3]), u), differentiable=dtype.kind == "f", tolerance=2e-2
                )


@dataclass(frozen=True)
class ScatterAlong(Op):
    """y = x, then y[..., indices[..., i, ...], ...] (+)= updates[..., i, ...]: the adjoint of take_along.

    `mode` is "add", or "set": the last write of a place wins.
    """

    name = "scatter_along"
    library = "scatter_along"
    axis: int
    mode: str

    def infer(self, x: TensorType, indices: TensorType, updates: TensorType) -> Type:
        _check_axis("scatter_along", x, indices, self.axis)
        _check_mode("scatter_along", self.mode)
        _check_others("scatter_along", x, indices, self.axis)
        if (
            updates.dtype is not x.dtype
            or updates.rank != indices.rank
            or not all(map(same, indices.shape, updates.shape))
        ):
            raise OpError(
                f"scatter_along into {x} at {indices} wants updates {x.with_shape(indices.shape)}, got {updates}"
            )
        return x

    def eval(self, x: Array, indices: Array, updates: Array) -> Array:
        check_range("scatter_along", indices, x.shape[self.axis], self.axis)
        if self.mode == "set":
            y = x.copy()
            np.put_along_axis(y, indices, updates, self.axis)
            return y
        y = _wide(x)
        grid = list(np.ogrid[tuple(map(slice, indices.shape))])
        grid[self.axis] = indices
        np.add.at(y, tuple(grid), updates.astype(y.dtype, copy=False))
        return y.astype(x.dtype, copy=False)

    def vjp(self, g: Any, y: Any, x: Any, indices: Any, updates: Any) -> tuple[Any, ...]:
        back = TakeAlong(self.axis)(g, indices)
        if self.mode == "add":
            return g, None, back
        order = iota(indices, indices.type.shape, self.axis)
        last = self(const(indices, 0, dt.int64, x.type.shape), indices, order)
        seen = eq(TakeAlong(self.axis)(last, indices), order)
        return self(g, indices, zeros_like(updates)), None, select(seen, back, zeros_like(updates))

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterator[Sample]:
        for mode in ("add", "set"):
            for shape, axis, k in (
                ((5,), 0, 3),
                ((3, 5), 1, 1),
                ((3, 5), 1, 7),
                ((3, 5, 2), 1, 2),
                ((3, 2), 0, 0),
                ((0, 2), 1, 1),
                ((1,), 0, 1),
            ):
                wanted = tuple(k if a == axis else n for a, n in enumerate(shape))
                indices = rng.integers(0, shape[axis], size=wanted)
                yield Sample(cls(axis, mode), (rng.normal(size=shape), indices, rng.normal(size=wanted)))
            triple = (rng.normal(size=(4, 3)), rng.integers(0, 3, size=(4, 2)), rng.normal(size=(4, 2)))
            yield Sample(cls(1, mode), triple, ((0, 0, "n"), (1, 0, "n"), (2, 0, "n")))
            for dtype in dt.ALL:
                x, u = (rng.integers(0, 2, size=s).astype(dtype.numpy) for s in ((2, 4), (2, 3)))
                indices = np.array([[3, 0, 3], [1, 1, 2]])
                yield Sample(cls(1, mode), (x, indices, u), differentiable=dtype.kind == "f", tolerance=2e-2)


def _check_starts(what: str, x: TensorType, starts: Sequence[TensorType]) -> None:
    if len(starts) != x.rank or any(s.dtype is not dt.int64 or s.rank for s in starts):
        raise OpError(f"{what} of {x} wants {x.rank} starts of type i64[], got {', '.join(map(str, starts)) or 'none'}")


def _starts(extents: Sequence[int], sizes: Sequence[int], starts: Sequence[Array]) -> list[int]:
    return [min(max(int(s), 0), n - k) for n, k, s in zip(extents, sizes, starts)]


def _start(n: Extent, k: Extent, start: Reader) -> Node:
    """The clamped start of a window of k in n."""
    i = clamped(start(()), 0, n - k + 1)
    assert isinstance(i, Node)
    return i


@dataclass(frozen=True)
class DynamicSlice(Op):
    """y[i] = x[start + i], a window of `sizes`; the starts (i64[], one per axis) are clamped so that it fits."""

    name = "dynamic_slice"
    sizes: Shape

    def infer(self, x: TensorType, *starts: TensorType) -> Type:
        _check_starts("dynamic_slice", x, starts)
        _check_window("dynamic_slice", x, self.sizes)
        return x.with_shape(self.sizes)

    def eval(self, x: Array, *starts: Array) -> Array:
        sizes: Any = self.sizes
        return np.asarray(x[tuple(slice(s, s + k) for s, k in zip(_starts(x.shape, sizes, starts), sizes))])

    def vjp(self, g: Any, y: Any, x: Any, *starts: Any) -> tuple[Any, ...]:
        return DynamicUpdateSlice()(zeros_like(x), g, *starts), *(None for _ in starts)

    def element(self, at: At, x: Reader, *starts: Reader) -> Node:
        shape = x.type.shape
        return x(tuple(shifted(_start(n, k, s), i) for i, n, k, s in zip(at, shape, self.sizes, starts)))

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterator[Sample]:
        for shape, sizes, starts in dynamic_cases():
            yield Sample(cls(sizes), (rng.normal(size=shape), *(np.array(s) for s in starts)))
        x = rng.normal(size=(4, 3))
        yield Sample(cls((2, 3)), (x, np.array(1), np.array(0)), ((0, 0, "n"),), note="clamped against a symbol")
        for dtype in dt.ALL:
            x = rng.integers(0, 2, size=(4,)).astype(dtype.numpy)
            yield Sample(cls((2,)), (x, np.array(1)), differentiable=dtype.kind == "f")


def dynamic_cases() -> Iterator[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
    """(shape, window, starts): inside, clamped at both ends, whole, empty, rank 0."""
    yield (5,), (2,), (1,)
    yield (5,), (2,), (4,)
    yield (5,), (2,), (-3,)
    yield (4, 6), (2, 6), (1, 9)
    yield (3,), (3,), (0,)
    yield (3,), (0,), (7,)
    yield (0, 2), (0, 1), (0, 1)
    yield (1,), (1,), (0,)
    yield (), (), ()


def _check_window(what: str, x: TensorType, window: Shape) -> None:
    if len(window) != x.rank or any(isinstance(d := n - k, int) and d < 0 for n, k in zip(x.shape, window)):
        raise OpError(f"{what} of {x}: a window of {list(window)} does not fit")


class DynamicUpdateSlice(Op):
    """x with the window at the starts (i64[], one per axis, clamped so that it fits) replaced by `update`."""

    name = "dynamic_update_slice"

    def infer(self, x: TensorType, update: TensorType, *starts: TensorType) -> Type:
        _check_starts("dynamic_update_slice", x, starts)
        _check_window("dynamic_update_slice", x, update.shape)
        if update.dtype is not x.dtype:
            raise OpError(f"dynamic_update_slice of {x} with {update}: dtypes differ")
        return x

    def eval(self, x: Array, update: Array, *starts: Array) -> Array:
        y = x.copy()
        y[tuple(slice(s, s + k) for s, k in zip(_starts(x.shape, update.shape, starts), update.shape))] = update
        return y

    def vjp(self, g: Any, y: Any, x: Any, update: Any, *starts: Any) -> tuple[Any, ...]:
        du = DynamicSlice(update.type.shape)(g, *starts)
        return self(g, zeros_like(update), *starts), du, *(None for _ in starts)

    def element(self, at: At, x: Reader, update: Reader, *starts: Reader) -> Node:
        window = update.type.shape
        if any(is_fixed(k, 0) for k in window):
            return x(at)
        index: list[Index | Node] = []
        conditions: list[tuple[Index | Node, Extent, Extent]] = []
        for i, n, k, s in zip(at, x.type.shape, window, starts):
            if same(n, k):
                index.append(i)
                continue
            i = as_node(i) - _start(n, k, s)
            conditions.append((i, 0, k))
            index.append(clamped(i, 0, k))
        return pick(within(conditions), update(tuple(index)), x(at)) if conditions else update(tuple(index))

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterator[Sample]:
        for shape, sizes, starts in dynamic_cases():
            yield Sample(cls(), (rng.normal(size=shape), rng.normal(size=sizes), *(np.array(s) for s in starts)))
        pair = (rng.normal(size=(4, 3)), rng.normal(size=(4, 1)))
        yield Sample(cls(), (*pair, np.array(0), np.array(2)), ((0, 0, "n"), (1, 0, "n")))
        for dtype in dt.ALL:
            x, u = (rng.integers(0, 2, size=(n,)).astype(dtype.numpy) for n in (4, 2))
            yield Sample(cls(), (x, u, np.array(1)), differentiable=dtype.kind == "f")


def take(x: Any, indices: Any, axis: int) -> Any:
    """x at `indices` along one axis; the axes of `indices` take its place."""
    return Take(axis)(x, indices)


def take_along(x: Any, indices: Any, axis: int) -> Any:
    """x at `indices`, of x's shape but along `axis`."""
    return TakeAlong(axis)(x, indices)


def scatter(x: Any, indices: Any, updates: Any, axis: int, mode: str = "add") -> Any:
    """x with `updates` added (or set) at `indices` of one axis."""
    return Scatter(axis, mode)(x, indices, updates)


def scatter_along(x: Any, indices: Any, updates: Any, axis: int, mode: str = "add") -> Any:
    """x with `updates` added (or set) at `indices`, which have x's shape but along `axis`."""
    return ScatterAlong(axis, mode)(x, indices, updates)


def dynamic_slice(x: Any, starts: Sequence[Any], sizes: Sequence[Extent]) -> Any:
    """The window of `sizes` at `starts`, i64[] each, clamped."""
    return DynamicSlice(tuple(sizes))(x, *starts)


def dynamic_update_slice(x: Any, update: Any, starts: Sequence[Any]) -> Any:
    """x with the window at `starts`, i64[] each, clamped, replaced by `update`."""
    return DynamicUpdateSlice()(x, update, *starts)
