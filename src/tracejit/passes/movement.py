"""Rules about where elements are: movement, structure, and reductions over nothing. The contract is in `algebra`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracejit.ir.dim import Extent, same
from tracejit.ir.dtype import int64
from tracejit.ir.node import Node
from tracejit.ir.op import Op
from tracejit.ops.control import StopGradient, ToDevice, stop_gradient
from tracejit.ops.copy import Copy
from tracejit.ops.indexing import DynamicSlice, DynamicUpdateSlice
from tracejit.ops.movement import (
    Broadcast,
    Concat,
    Flip,
    Pad,
    Reshape,
    Slice,
    Transpose,
    UpdateSlice,
    reshape,
)
from tracejit.ops.reduce import ReduceMax, ReduceMin, ReduceProd, ReduceSum, others, reduce_sum
from tracejit.ops.source import const
from tracejit.passes.algebra import collect, like, scalar
from tracejit.passes.rewrite import rule_on

__all__ = ["RULES"]


def _same_shape(a: Sequence[Extent], b: Sequence[Extent]) -> bool:
    return len(a) == len(b) and all(map(same, a, b))


# --- nothing moves --------------------------------------------------------------------------------------------------


# A graph's values have no address, so a copy is the value.
@rule_on(Copy, exact=True, example=lambda x: Copy()(x))
def copy_nothing(node: Node) -> Node | None:
    return node.inputs[0]


# Not even a view is needed.
@rule_on(
    Reshape, Broadcast, exact=True, example=[lambda x: Reshape(x.shape)(x), lambda x: Broadcast(x.shape, (0, 1, 2))(x)]
)
def same_shape(node: Node) -> Node | None:
    (x,) = node.inputs
    return x if _same_shape(x.shape, node.shape) else None


@rule_on(Transpose, exact=True, example=lambda x: Transpose((0, 1, 2))(x))
def transpose_nothing(node: Node) -> Node | None:
    return node.inputs[0] if node.op.perm == tuple(range(len(node.shape))) else None  # type: ignore[attr-defined]


@rule_on(Slice, exact=True, example=lambda x: Slice((0, 0, 0), x.shape, (1, 1, 1))(x))
def slice_whole(node: Node) -> Node | None:
    (x,) = node.inputs
    return x if _same_shape(x.shape, node.shape) else None


@rule_on(Pad, exact=True, example=lambda x: Pad((0, 0, 0), (0, 0, 0), (0, 0, 0))(x, like(x, 0)))
def pad_nothing(node: Node) -> Node | None:
    op: Any = node.op
    amounts = (*op.low, *op.high, *op.interior)
    return node.inputs[0] if all(same(a, 0) for a in amounts) else None


@rule_on(Flip, exact=True, example=lambda x: Flip(())(x))
def flip_nothing(node: Node) -> Node | None:
    (x,) = node.inputs
    axes: tuple[int, ...] = node.op.axes  # type: ignore[attr-defined]
    return x if all(same(x.shape[a], 1) for a in axes) else None


@rule_on(Concat, exact=True, example=lambda x: Concat(1)(x))
def concat_one(node: Node) -> Node | None:
    return node.inputs[0] if len(node.inputs) == 1 else None


# --- two steps in one -----------------------------------------------------------------------------------------------


def _inner(node: Node, op: type[Op]) -> Any:
    """The op of the first input where it is an `op`."""
    return inner if isinstance(inner := node.inputs[0].op, op) else None


@rule_on(Reshape, exact=True, example=lambda x: Reshape((24,))(Reshape((4, 6))(x)))
def reshape_reshape(node: Node) -> Node | None:
    return Node.of(node.op, node.inputs[0].inputs) if _inner(node, Reshape) else None


@rule_on(Transpose, exact=True, example=lambda x: Transpose((1, 0, 2))(Transpose((2, 0, 1))(x)))
def transpose_transpose(node: Node) -> Node | None:
    if (inner := _inner(node, Transpose)) is None:
        return None
    perm = tuple(inner.perm[p] for p in node.op.perm)  # type: ignore[attr-defined]
    return Node.of(Transpose(perm), node.inputs[0].inputs)


@rule_on(
    Broadcast, exact=True, example=lambda x: Broadcast((5, 2, 6, 3, 4), (1, 3, 4))(Broadcast((2, 3, 4), (0, 1, 2))(x))
)
def broadcast_broadcast(node: Node) -> Node | None:
    if (inner := _inner(node, Broadcast)) is None:
        return None
    op: Any = node.op
    return Node.of(Broadcast(op.shape, tuple(op.dims[d] for d in inner.dims)), node.inputs[0].inputs)


# A filled scalar has the same elements in any order.
@rule_on(Reshape, Transpose, Slice, Flip, exact=True, example=lambda x: Flip((0,))(Broadcast((3, 2), ())(_first(x))))
def move_filled(node: Node) -> Node | None:
    inner = _inner(node, Broadcast)
    return Node.of(Broadcast(node.shape, ()), node.inputs[0].inputs) if inner and not inner.dims else None


def _first(x: Node) -> Any:
    return reshape(Slice((0, 0, 0), (1, 1, 1), (1, 1, 1))(x), ())


@rule_on(Flip, exact=True, example=lambda x: Flip((0, 2))(Flip((0,))(x)))
def flip_flip(node: Node) -> Node | None:
    if (inner := _inner(node, Flip)) is None:
        return None
    op: Any = node.op
    axes = tuple(sorted(set(inner.axes) ^ set(op.axes)))
    return Node.of(Flip(axes), node.inputs[0].inputs)


@rule_on(
    Slice,
    exact=True,
    example=lambda x: Slice((0, 1, 1), (2, 2, 2), (1, 1, 2))(Slice((0, 0, 1), (2, 3, 4), (1, 1, 2))(x)),
)
def slice_slice(node: Node) -> Node | None:
    if (inner := _inner(node, Slice)) is None:
        return None
    op: Any = node.op
    starts = tuple(a + b * s for a, b, s in zip(inner.starts, op.starts, inner.strides, strict=True))
    strides = tuple(s * t for s, t in zip(inner.strides, op.strides, strict=True))
    limits: list[Extent] = []
    for a, n, s in zip(starts, node.shape, strides, strict=True):
        if s == 1 or same(n, 0):
            limits.append(a + n)
        elif isinstance(n, int):  # one past the last element taken, which may be short of a whole stride
            limits.append(a + (n - 1) * s + 1)
        else:
            return None
    return Node.of(Slice(starts, tuple(limits), strides), node.inputs[0].inputs)


# One concat of everything reads each element once.
@rule_on(Concat, exact=True, example=lambda x: Concat(1)(x, Concat(1)(x, x), x))
def concat_concat(node: Node) -> Node | None:
    if not any(_is_concat_like(i, node.op) for i in node.inputs):
        return None
    flat = [j for i in node.inputs for j in (i.inputs if _is_concat_like(i, node.op) else (i,))]
    return Node.of(node.op, flat)


def _is_concat_like(n: Node, op: Any) -> bool:
    return isinstance(n.op, Concat) and n.op.axis == op.axis


# --- taking back what was put together ------------------------------------------------------------------------------


# Reads the part itself, and the concat may vanish.
@rule_on(Slice, exact=True, example=lambda x: Slice((0, 4, 0), (2, 6, 4), (1, 1, 1))(Concat(1)(x, x, x)))
def slice_concat(node: Node) -> Node | None:
    if (inner := _inner(node, Concat)) is None:
        return None
    op: Any = node.op
    axis: int = inner.axis
    start, limit = op.starts[axis], op.limits[axis]
    if not isinstance(start, int) or not isinstance(limit, int):
        return None
    begin = 0
    for part in node.inputs[0].inputs:
        extent: Extent = part.shape[axis]
        if not isinstance(extent, int):
            return None
        if begin <= start and limit <= begin + extent:
            starts, limits = list(op.starts), list(op.limits)
            starts[axis], limits[axis] = start - begin, limit - begin
            return Node.of(Slice(tuple(starts), tuple(limits), op.strides), (part,))
        begin += extent
    return None


# Neighbours cut from one value are one cut: `cat(chunk(x))` is x.
@rule_on(
    Concat,
    exact=True,
    example=lambda x: Concat(2)(Slice((0, 0, 1), (2, 3, 3), (1, 1, 1))(x), Slice((0, 0, 3), (2, 3, 4), (1, 1, 1))(x)),
)
def concat_slices(node: Node) -> Node | None:
    axis: int = node.op.axis  # type: ignore[attr-defined]
    kept: list[Node] = []
    for n in node.inputs:
        joined = _neighbours(kept[-1], n, axis) if kept else None
        if joined is None:
            kept.append(n)
        else:
            kept[-1] = joined
    return None if len(kept) == len(node.inputs) else Node.of(node.op, kept)


def _neighbours(a: Node, b: Node, axis: int) -> Node | None:
    if not isinstance(a.op, Slice) or not isinstance(b.op, Slice) or a.inputs != b.inputs:
        return None
    p, q = a.op, b.op
    if p.strides[axis] != 1 or q.strides[axis] != 1 or not same(p.limits[axis], q.starts[axis]):
        return None
    for i in range(len(p.starts)):
        if i != axis and not (
            same(p.starts[i], q.starts[i]) and same(p.limits[i], q.limits[i]) and p.strides[i] == q.strides[i]
        ):
            return None
    limits = tuple(q.limits[i] if i == axis else d for i, d in enumerate(p.limits))
    return Node.of(Slice(p.starts, limits, p.strides), a.inputs)


# Cropping off what was padded on, as the gradient of a padded convolution does.
@rule_on(
    Slice,
    exact=True,
    example=lambda x: Slice((1, 0, 2), (3, 3, 6), (1, 1, 1))(Pad((1, 0, 2), (1, 0, 0), (0, 0, 0))(x, like(x, 0))),
)
def slice_pad(node: Node) -> Node | None:
    if (inner := _inner(node, Pad)) is None:
        return None
    op: Any = node.op
    (x, _) = node.inputs[0].inputs
    whole = all(i == 0 and s == 1 for i, s in zip(inner.interior, op.strides, strict=True))
    whole = whole and all(same(a, low) for a, low in zip(op.starts, inner.low, strict=True))
    return x if whole and _same_shape(x.shape, node.shape) else None


# --- windows written in place -----------------------------------------------------------------------------------------


def _window(x: Any) -> Any:
    return Slice((0, 0, 0), (2, 2, 2), (1, 1, 1))(x)


def _at(x: Any, *starts: int) -> list[Any]:
    return [const(x, s, int64) for s in starts]


# An affine window is an address; a dynamic one is clamped and loaded at run time.
@rule_on(DynamicSlice, exact=True, example=lambda x: DynamicSlice((2, 1, 3))(x, *_at(x, -1, 1, 9)))
def dynamic_slice_of_constants(node: Node) -> Node | None:
    x, *starts = node.inputs
    at = _fixed(x.shape, node.shape, starts)
    if at is None:
        return None
    limits = tuple(a + n for a, n in zip(at, node.shape, strict=True))
    return Node.of(Slice(at, limits, (1,) * len(at)), (x,))


@rule_on(DynamicUpdateSlice, exact=True, example=lambda x: DynamicUpdateSlice()(x, _window(x), *_at(x, 0, 1, 9)))
def dynamic_update_slice_of_constants(node: Node) -> Node | None:
    x, update, *starts = node.inputs
    at = _fixed(x.shape, update.shape, starts)
    return None if at is None else Node.of(UpdateSlice(at, (1,) * len(at)), (x, update))


def _fixed(extents: Sequence[Extent], sizes: Sequence[Extent], starts: Sequence[Node]) -> tuple[int, ...] | None:
    """Where a window at constant `starts` lies once clamped, None where that is not known."""
    out: list[int] = []
    for extent, size, start in zip(extents, sizes, starts, strict=True):
        value, room = scalar(start), extent - size
        if value is None or (not isinstance(room, int) and value > 0):
            return None
        out.append(max(0, min(value, room)) if isinstance(room, int) else 0)
    return tuple(out)


# What was written is what is read: `x[1:] += y` followed by `x[1:]`.
@rule_on(
    Slice,
    exact=True,
    example=lambda x: Slice((0, 1, 0), (2, 3, 3), (1, 1, 2))(UpdateSlice((0, 1, 0), (1, 1, 2))(x, _window(x))),
)
def slice_update_slice(node: Node) -> Node | None:
    op: Any = node.op
    if (inner := _inner(node, UpdateSlice)) is None:
        return None
    _, update = node.inputs[0].inputs
    same_window = _same_shape(inner.starts, op.starts) and inner.strides == op.strides
    return update if same_window and _same_shape(update.shape, node.shape) else None


# Nothing of x is left.
@rule_on(UpdateSlice, exact=True, example=lambda x: UpdateSlice((0, 0, 0), (1, 1, 1))(x, Flip((0,))(x)))
def update_whole(node: Node) -> Node | None:
    x, update = node.inputs
    return update if _same_shape(x.shape, update.shape) else None


# What is written twice was written once.
@rule_on(
    UpdateSlice,
    exact=True,
    example=lambda x: UpdateSlice((0, 1, 0), (1, 1, 2))(
        UpdateSlice((0, 1, 0), (1, 1, 2))(x, _window(x)), Flip((0,))(_window(x))
    ),
)
def update_slice_twice(node: Node) -> Node | None:
    op: Any = node.op
    if (inner := _inner(node, UpdateSlice)) is None:
        return None
    (x, hidden), update = node.inputs[0].inputs, node.inputs[1]
    same_window = _same_shape(inner.starts, op.starts) and inner.strides == op.strides
    return Node.of(op, (x, update)) if same_window and _same_shape(hidden.shape, update.shape) else None


# --- reductions -----------------------------------------------------------------------------------------------------


# One element is its own largest.
@rule_on(ReduceMax, ReduceMin, ReduceProd, exact=True, example=lambda x: ReduceMax((1,))(Reshape((2, 1, 12))(x)))
def reduce_one(node: Node) -> Node | None:
    return _reduce_one(node)


# And its own sum, but for -0.0, whose sum a kernel may start from 0.0.
@rule_on(ReduceSum, exact=True, example=lambda x: reduce_sum(Reshape((2, 1, 12))(x), (1,)))
def sum_one_integer(node: Node) -> Node | None:
    return None if node.dtype.is_floating_point else _reduce_one(node)


@rule_on(ReduceSum, exact=False, example=lambda x: reduce_sum(Reshape((2, 1, 12))(x), (1,)))
def sum_one_float(node: Node) -> Node | None:
    return _reduce_one(node) if node.dtype.is_floating_point else None


def _reduce_one(node: Node) -> Node | None:
    (x,) = node.inputs
    axes: tuple[int, ...] = node.op.axes  # type: ignore[attr-defined]
    return reshape(x, node.shape) if all(same(x.shape[a], 1) for a in axes) else None


# One pass over memory instead of two. The largest is the largest in any order; integers wrap alike; floats round.
@rule_on(ReduceMax, ReduceMin, exact=True, example=lambda x: ReduceMax((0,))(ReduceMax((1,))(x)))
def reduce_reduce(node: Node) -> Node | None:
    return _reduce_reduce(node)


@rule_on(ReduceSum, ReduceProd, exact=True, example=lambda x: reduce_sum(reduce_sum(x, (1,)), (0,)))
def reduce_reduce_integers(node: Node) -> Node | None:
    return None if node.dtype.is_floating_point else _reduce_reduce(node)


@rule_on(ReduceSum, ReduceProd, exact=False, example=lambda x: reduce_sum(reduce_sum(x, (1,)), (0,)))
def reduce_reduce_floats(node: Node) -> Node | None:
    return _reduce_reduce(node) if node.dtype.is_floating_point else None


def _reduce_reduce(node: Node) -> Node | None:
    if (inner := _inner(node, type(node.op))) is None:
        return None
    (x,) = node.inputs[0].inputs
    kept = others(len(x.shape), inner.axes)
    outer: tuple[int, ...] = node.op.axes  # type: ignore[attr-defined]
    return Node.of(type(node.op)(tuple(sorted({*inner.axes, *(kept[a] for a in outer)}))), (x,))  # type: ignore[call-arg]


# --- markers --------------------------------------------------------------------------------------------------------


# Once is enough. A single stop_gradient stays: the gradient may be taken after this pass.
@rule_on(StopGradient, exact=True, example=lambda x: stop_gradient(stop_gradient(x)))
def stop_gradient_twice(node: Node) -> Node | None:
    return node.inputs[0] if isinstance(node.inputs[0].op, StopGradient) else None


@rule_on(ToDevice, exact=True, example=lambda x: ToDevice(x.type.device)(x))
def to_same_device(node: Node) -> Node | None:
    (x,) = node.inputs
    return x if x.type.device == node.type.device else None


RULES = collect(globals())
