"""Where lanes are: an affine index as the position of lane 0, or of every lane.

Along the vector axes most indices move evenly, so lane 0 and a step say all. Where several short axes are cut as one
and an index walks them unevenly, each lane's coordinates are worked out by division, once per scope.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tracejit.codegen.kernel import extent
from tracejit.codegen.lanes import step
from tracejit.codegen.llvm.frame import Frame
from tracejit.codegen.llvm.text import Type, Value, i1, i32, i64
from tracejit.codegen.place import bounds
from tracejit.ir.index import Axis, Index
from tracejit.ops.loop import Inside

__all__ = ["along", "is_inside", "is_small", "origin", "positions", "row_major"]


def origin(frame: Frame, index: Index) -> Value:
    """The position of lane 0; of an uneven index, without the vector axes."""
    out: Value | int = extent(index.constant)
    for axis, c in index.terms:
        if axis not in frame.vector:
            out = frame.axes[axis] * extent(c) + out if extent(c) != 1 else frame.axes[axis] + out
    if by := along(frame, index):
        assert frame.at is not None
        out = frame.at * by + out if by != 1 else frame.at + out
    return frame.f.value(out, i64)


def along(frame: Frame, index: Index) -> int | None:
    """How far the index moves from lane to lane; None where that is uneven."""
    return step(index, frame.vector)


def lane_numbers(frame: Frame, type: Type, step: int) -> Value:
    """0, step, 2 step, ...: how far each lane is from lane 0."""
    if frame.width == 1:
        return frame.f.value(0, type)
    numbers = ", ".join(f"{type.scalar} {step * k}" for k in range(frame.width))
    return Value(frame.f, f"<{numbers}>", type.wide(frame.width))


def positions(frame: Frame, index: Index, type: Type = i64) -> Value:
    """The position of each lane."""
    out = origin(frame, index).cast(type).splat(frame.width)
    by = along(frame, index)
    if by is not None:
        return out + lane_numbers(frame, type, by) if by else out
    for axis, c in index.terms:
        if axis in frame.vector:
            place = coordinate(frame, axis).cast(type)
            out = out + (place * extent(c) if extent(c) != 1 else place)
    return out


def coordinate(frame: Frame, axis: Axis) -> Value:
    """Each lane's place along one of several vector axes."""
    known = frame.coordinates[-1]
    if axis not in known:
        assert frame.at is not None
        t = i32 if frame.cut.length < 1 << 30 else i64
        v = frame.at.cast(t).splat(frame.width) + lane_numbers(frame, t, 1)
        k = frame.vector.index(axis)
        below = prod(extent(a.extent) for a in frame.vector[k + 1 :])
        if below > 1:
            v = frame.f.emit(f"udiv {v.type} {v.name}, {v.type.constant(below)}", v.type)
        if k:
            v = frame.f.emit(f"urem {v.type} {v.name}, {v.type.constant(extent(axis.extent))}", v.type)
        known[axis] = v
    return known[axis]


def is_inside(frame: Frame, op: Inside) -> Value:
    """The mask of the lanes where all its conditions hold."""
    out: Value | None = None
    for index, lowest, limit in op.conditions:
        at = positions(frame, index, i32 if extent(limit) < 1 << 30 and is_small(index) else i64)
        # One unsigned comparison tests both ends.
        offset = at - extent(lowest) if extent(lowest) else at
        bound = frame.f.value(extent(limit) - extent(lowest), offset.type)
        ok = frame.f.emit(f"icmp ult {offset.type} {offset.name}, {bound.name}", offset.type.mask)
        out = ok if out is None else out & ok
    return out if out is not None else frame.f.value(1, i1.wide(frame.width))


def is_small(index: Index) -> bool:
    """True where 32 bits hold the index and each of its terms, with room for lanes past the end."""
    low, high = bounds(index)
    return -(1 << 29) < low <= high < 1 << 29 and all(abs(extent(c)) < 1 << 20 for _, c in index.terms)


def row_major(axes: Sequence[Axis]) -> Index:
    """The number of a point of a nest."""
    out = Index.at(0)
    for a in axes:
        out = out * extent(a.extent) + Index.of(a)
    return out
