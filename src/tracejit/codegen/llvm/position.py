"""Where lanes are: an affine index as the position of lane 0, or of every lane.

Along the vector axes most indices move evenly, so lane 0 and a step say all. Where several short axes are cut as one
and an index walks them unevenly, each lane's coordinates are worked out by division, once per scope.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracejit.codegen.lanes import step
from tracejit.codegen.llvm.frame import Frame
from tracejit.codegen.llvm.text import Type, Value, i1, i32, i64
from tracejit.codegen.place import bounds
from tracejit.ir.dim import Extent, at_least, product, same
from tracejit.ir.index import Axis, Index
from tracejit.ops.loop import Inside

__all__ = ["along", "is_inside", "is_small", "lane_numbers", "origin", "positions", "row_major"]


def origin(frame: Frame, index: Index) -> Value:
    """The position of lane 0; of an uneven index, without the vector axes."""
    out: Value | int = frame.number(index.constant)
    for axis, c in index.terms:
        if axis not in frame.vector:
            out = frame.axes[axis] * frame.number(c) + out if not same(c, 1) else frame.axes[axis] + out
    if (by := along(frame, index)) is not None and not same(by, 0):
        assert frame.at is not None
        out = frame.at * frame.number(by) + out if not same(by, 1) else frame.at + out
    return frame.f.value(out, i64)


def along(frame: Frame, index: Index) -> Extent | None:
    """How far the index moves from lane to lane; None where that is uneven, or in what direction is not known."""
    by = step(index, frame.vector)
    is_known = isinstance(by, int) or (by is not None and (at_least(by, 1) or at_least(-by, 1)))
    return by if is_known else None


def lane_numbers(frame: Frame, type: Type, step: Extent) -> Value:
    """0, step, 2 step, ...: how far each lane is from lane 0."""
    if frame.width == 1:
        return frame.f.value(0, type)
    if not isinstance(step, int):
        t = type.wide(frame.width)
        return lane_numbers(frame, type, 1) * frame.wide(step, t)
    numbers = ", ".join(f"{type.scalar} {step * k}" for k in range(frame.width))
    return Value(frame.f, f"<{numbers}>", type.wide(frame.width))


def positions(frame: Frame, index: Index, type: Type = i64) -> Value:
    """The position of each lane."""
    out = origin(frame, index).cast(type).splat(frame.width)
    by = along(frame, index)
    if by is not None:
        return out + lane_numbers(frame, type, by) if not same(by, 0) else out
    for axis, c in index.terms:
        if axis in frame.vector:
            place = coordinate(frame, axis).cast(type)
            out = out + (place * frame.wide(c, place.type) if not same(c, 1) else place)
    return out


def coordinate(frame: Frame, axis: Axis) -> Value:
    """Each lane's place along one of several vector axes."""
    known = frame.coordinates[-1]
    if axis not in known:
        assert frame.at is not None
        t = i32 if is_below(frame.cut.length, 1 << 30) else i64
        v = frame.at.cast(t).splat(frame.width) + lane_numbers(frame, t, 1)
        k = frame.vector.index(axis)
        below = product(a.extent for a in frame.vector[k + 1 :])
        if not same(below, 1):
            v = frame.f.emit(f"udiv {v.type} {v.name}, {frame.wide(below, v.type).name}", v.type)
        if k:
            v = frame.f.emit(f"urem {v.type} {v.name}, {frame.wide(axis.extent, v.type).name}", v.type)
        known[axis] = v
    return known[axis]


def is_inside(frame: Frame, op: Inside) -> Value:
    """The mask of the lanes where all its conditions hold."""
    out: Value | None = None
    for index, lowest, limit in op.conditions:
        at = positions(frame, index, i32 if is_below(limit, 1 << 30) and is_small(index) else i64)
        # One unsigned comparison tests both ends.
        offset = at - frame.wide(lowest, at.type) if not same(lowest, 0) else at
        bound = frame.wide(limit - lowest, offset.type)
        ok = frame.f.emit(f"icmp ult {offset.type} {offset.name}, {bound.name}", offset.type.mask)
        out = ok if out is None else out & ok
    return out if out is not None else frame.f.value(1, i1.wide(frame.width))


def is_small(index: Index) -> bool:
    """True where 32 bits hold the index and each of its terms, with room for lanes past the end."""
    if not all(isinstance(x, int) for a, c in index.terms for x in (a.extent, c)):
        return isinstance(index.constant, int)  # an index of general extents is: see `families.py`
    low, high = bounds(index)
    return is_below(high, 1 << 29) and is_below(-low, 1 << 29) and all(is_below(c, 1 << 20) for _, c in index.terms)


def is_below(x: Extent, limit: int) -> bool:
    """True where |x| is below a limit which the sizes of general extents do not reach."""
    return abs(x) < limit if isinstance(x, int) else True


def row_major(axes: Sequence[Axis]) -> Index:
    """The number of a point of a nest."""
    out = Index.at(0)
    for a in axes:
        out = out * a.extent + Index.of(a)
    return out
