"""`x[index]` and `x[index] = value`, as slice, reshape, take and scatter.

Ints, slices, `None` and `...` give views; index tensors and masks then act on what is left, PyTorch's order: ints
select first, adjacent index tensors keep their place, scattered ones move to the front. Negative indices count from the
end, and an index out of range raises IndexOutOfRange (a recording checks it in the compiled call as well).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from tracejit.errors import DTypeError, IndexOutOfRange, OpError
from tracejit.ir import dtype as dt
from tracejit.ir.dim import same_shape
from tracejit.ir.node import broadcast_shapes
from tracejit.ir.op import Op
from tracejit.ir.symint import SymInt
from tracejit.records import dataclass
from tracejit.tensor.tensor import Tensor, apply, assign, wrap, wrap_scalar
from tracejit.trace import recorder as recording
from tracejit.trace.scalars import OpaqueInt

__all__ = ["getitem", "nonzero", "setitem"]


@dataclass(frozen=True, slots=True)
class Plan:
    """A basic index: slice, then reshape; `advanced` maps axes of the reshaped tensor to index tensors."""

    starts: tuple[int, ...]
    limits: tuple[int, ...]
    strides: tuple[int, ...]
    shape: tuple[int, ...]
    advanced: tuple[tuple[int, Tensor], ...]


def getitem(x: Tensor, index: Any) -> Tensor:
    """x[index]; a view where only ints, slices, None and Ellipsis occur."""
    plan = plan_of(x, index)
    y = _basic(x, plan)
    return _gather(y, plan.advanced) if plan.advanced else y


def setitem(x: Tensor, index: Any, value: Any) -> None:
    """x[index] = value, in place."""
    plan = plan_of(x, index)
    y = _basic(x, plan)
    if not plan.advanced:
        assign(y, value)
        return
    value = value if isinstance(value, Tensor) else wrap_scalar(x, value)
    lead = 0  # an assignment takes values with extra axes of extent 1 in front
    while lead < value._array.ndim and value._array.shape[lead] == 1:
        lead += 1
    value = value if not lead else apply(Op.registry["reshape"](tuple(value.shape[lead:])), (value,))  # type: ignore[call-arg]
    assign(y, _scattered(y, plan.advanced, value))


def plan_of(x: Tensor, index: Any) -> Plan:
    """Read an index against the shape of `x`. Raises IndexOutOfRange, DTypeError for floats, OpError for masks that
    do not fit."""
    items = list(index) if isinstance(index, tuple) else [index]
    items = [_as_index(i) for i in items]
    rank, extents = x._array.ndim, tuple(x.shape)
    used = sum(_axes_used(i) for i in items)
    if used > rank:
        raise IndexOutOfRange(f"too many indices ({used}) for a tensor of rank {rank}")
    dots = [k for k, i in enumerate(items) if i is Ellipsis]
    if len(dots) > 1:
        raise IndexOutOfRange("an index can hold one Ellipsis (...) only")
    at = dots[0] if dots else len(items)
    items[at : at + len(dots)] = [slice(None)] * (rank - used)
    window: list[tuple[int, int, int]] = []  # start, limit, stride of each axis of x
    shape: list[int] = []
    advanced: list[tuple[int, Tensor]] = []
    axis = 0
    for item in items:
        if item is None:
            shape.append(1)
            continue
        if isinstance(item, Tensor):
            for t in _index_tensors(item, extents[axis : axis + max(1, _axes_used(item))], axis):
                advanced.append((len(shape), t))
                size = extents[axis] if _axes_used(item) else 1
                if _axes_used(item):
                    window.append((0, size, 1))
                    axis += 1
                shape.append(size)
            continue
        n = extents[axis]
        if isinstance(item, slice):
            if _is_moving(item):
                start, count = cast("Any", recording.active()).span(item, n)
                window.append((start, start + count, 1))
                shape.append(count)
                axis += 1
                continue
            start, stop, step = bounds(item, n)
            if step < 0:
                raise OpError("slices with a negative step are not supported; use flip()")
            count = max(0, -(-(stop - start) // step))
            window.append((start, max(start, stop), step))
            shape.append(count)
        elif _is_moving(item):
            item = cast("Any", recording.active()).place(item, n, axis)
            window.append((item, item + 1, 1))
        else:
            if not -n <= item < n:
                raise IndexOutOfRange(f"index {item} is out of range for axis {axis} of extent {n}")
            item = item + n if item < 0 else item
            window.append((item, item + 1, 1))
        axis += 1
    starts, limits, strides = (tuple(w[k] for w in window) for k in range(3))
    return Plan(starts, limits, strides, tuple(shape), tuple(advanced))


def bounds(s: slice, n: int) -> tuple[int, int, int]:
    """`s.indices(n)` for a positive step, asking in Python, so that an extent notes what it is asked."""
    if type(n) is int and not any(isinstance(v, SymInt) for v in (s.start, s.stop)):
        return s.indices(n)
    step = 1 if s.step is None else s.step
    if step < 0:
        return 0, 0, step

    def at(v: Any, default: int) -> int:
        if v is None:
            return default
        v = v + n if v < 0 else v
        return 0 if v < 0 else n if v > n else v

    return at(s.start, 0), at(s.stop, n), step


def _as_index(i: Any) -> Any:
    """One entry of an index as int, slice of ints, None, Ellipsis or an index Tensor."""
    if i is None or i is Ellipsis or _is_moving(i):
        return i
    if isinstance(i, slice):
        return slice(*(None if v is None else operator.index(v) for v in (i.start, i.stop, i.step)))
    if isinstance(i, Tensor):
        if i.dtype.is_floating_point:
            raise DTypeError(f"tensors used as indices must be integers or bool, got {i.type}")
        return i if i._array.ndim or i.dtype is dt.bool_ else operator.index(i)
    if isinstance(i, (bool, np.bool_)):
        return wrap(np.array(bool(i)))
    if isinstance(i, (list, tuple, np.ndarray)):
        if (r := recording.active()) is not None and isinstance(i, np.ndarray):
            r.refuse("indexes with a NumPy array")
        from tracejit.tensor.creation import tensor

        t = tensor(i)
        if t._array.size == 0 and isinstance(i, (list, tuple)):
            t = tensor(i, dtype=dt.int64)
        return _as_index(t)
    return operator.index(i)


def _is_moving(i: Any) -> bool:
    """Whether an entry of an index is a number that a recording has as an input, or a slice with one."""
    return type(i) is OpaqueInt or (type(i) is slice and (type(i.start) is OpaqueInt or type(i.stop) is OpaqueInt))


def _axes_used(i: Any) -> int:
    if i is None or i is Ellipsis:
        return 0
    return i._array.ndim if isinstance(i, Tensor) and i.dtype is dt.bool_ else 1


def _basic(x: Tensor, plan: Plan) -> Tensor:
    shape = tuple(x.shape)
    if any(plan.starts) or not same_shape(plan.limits, shape) or plan.strides != (1,) * len(shape):
        x = apply(Op.registry["slice"](plan.starts, plan.limits, plan.strides), (x,))  # type: ignore[call-arg]
    elif same_shape(plan.shape, shape) and not plan.advanced:
        return apply(Op.registry["reshape"](shape), (x,))  # type: ignore[call-arg]  # x[:] is a new view
    if not same_shape(tuple(x.shape), plan.shape):
        x = apply(Op.registry["reshape"](plan.shape), (x,))  # type: ignore[call-arg]
    return x


def _index_tensors(i: Tensor, extents: Sequence[int], axis: int) -> list[Tensor]:
    """The i64 index tensors, one for each axis that `i` covers, non-negative and in range."""
    if i.dtype is not dt.bool_:
        return [_in_range(i, extents[0], axis)]
    if i._array.ndim == 0:  # x[True] adds an axis of extent 1 or 0
        return [wrap(np.zeros(int(bool(i)), np.int64))]
    if i._array.shape != tuple(extents):
        raise IndexOutOfRange(
            f"mask of shape {list(i.shape)} does not fit axes of extents {list(extents)} at axis {axis}"
        )
    found = nonzero(i)
    return [found[:, k] for k in range(i._array.ndim)]


def _in_range(i: Tensor, extent: int, axis: int) -> Tensor:
    a, n = i._array, int.__int__(extent)  # the number, without a look: a recording checks it below
    if a.size and (a.min() < -n or a.max() >= n):
        bad = int(a[(a < -n) | (a >= n)].flat[0])
        raise IndexOutOfRange(f"index {bad} is out of range for axis {axis} of extent {extent}")
    i = i if i.dtype is dt.int64 else apply(Op.registry["cast"](dt.int64), (i,))  # type: ignore[call-arg]
    r = recording.active()
    if r is not None and a.size:
        fits = (i >= -extent) & (i < extent)
        low = apply(Op.registry["reduce_min"](tuple(range(fits.ndim))), (fits,)) if fits.ndim else fits  # type: ignore[call-arg]
        bool(low)  # a value guard: an index out of range leaves the compiled code before anything is written
    if r is None and (not a.size or a.min() >= 0):
        return i
    select = Op.registry["select"]()
    wrapped = i + extent
    zero = apply(Op.registry["const"](0, i.type), ())  # type: ignore[call-arg]
    return apply(select, (i < zero, wrapped, i))


def nonzero(mask: Tensor) -> Tensor:
    """Positions of the true elements, [count, rank] i64. A recording guards on the count."""
    flat = mask if mask.dtype is dt.bool_ else mask != 0
    count = apply(
        Op.registry["reduce_sum"](tuple(range(flat.ndim))),  # type: ignore[call-arg]
        (apply(Op.registry["cast"](dt.int64), (flat,)),),  # type: ignore[call-arg]
    )
    return apply(Op.registry["nonzero"](int(count)), (flat,))  # type: ignore[call-arg]


def _common(index: Sequence[Tensor]) -> tuple[list[Tensor], tuple[int, ...]]:
    try:
        np.broadcast_shapes(*(t._array.shape for t in index))
        shape = broadcast_shapes(*(tuple(t.shape) for t in index))
    except ValueError:
        names = ", ".join(str(list(t.shape)) for t in index)
        raise IndexOutOfRange(f"index tensors of shapes {names} do not broadcast together") from None
    from tracejit.ir.node import expand_to

    return [expand_to(t, shape) for t in index], shape  # type: ignore[return-value]


def _front(x: Tensor, axes: Sequence[int]) -> tuple[Tensor, tuple[int, ...]]:
    """`x` with the indexed axes merged into one, in place where adjacent else in front; and their extents."""
    adjacent = list(axes) == list(range(axes[0], axes[0] + len(axes)))
    rest = [k for k in range(x._array.ndim) if k not in axes]
    at = axes[0] if adjacent else 0
    order = rest[:at] + list(axes) + rest[at:]
    if order != list(range(len(order))):
        x = apply(Op.registry["transpose"](tuple(order)), (x,))  # type: ignore[call-arg]
    return x, tuple(order)


def _linear(index: Sequence[Tensor], extents: Sequence[int]) -> Tensor:
    out = index[0]
    for t, n in zip(index[1:], extents[1:], strict=True):
        out = out * n + t
    return out


def _merged(x: Tensor, advanced: Sequence[tuple[int, Tensor]]) -> tuple[Tensor, Tensor, int, tuple[int, ...]]:
    """(x with the indexed axes merged, linear index, merged axis, axis order of x)."""
    axes = [a for a, _ in advanced]
    index, _ = _common([t for _, t in advanced])
    x, order = _front(x, axes)
    at = order.index(axes[0])
    extents = x.shape[at : at + len(axes)]
    if len(axes) > 1:
        shape = (*x.shape[:at], math.prod(extents), *x.shape[at + len(axes) :])
        x = apply(Op.registry["reshape"](shape), (x,))  # type: ignore[call-arg]
    return x, _linear(index, extents), at, order


def _gather(x: Tensor, advanced: Sequence[tuple[int, Tensor]]) -> Tensor:
    x, linear, at, _ = _merged(x, advanced)
    return apply(Op.registry["take"](at), (x, linear))  # type: ignore[call-arg]


def _scattered(x: Tensor, advanced: Sequence[tuple[int, Tensor]], value: Tensor, mode: str = "set") -> Tensor:
    """`x` with `value` at the indexed positions, as a new tensor of x's shape."""
    from tracejit.ir.node import cast, expand_to

    shape = tuple(x.shape)
    merged, linear, at, order = _merged(x, advanced)
    want = (*merged.shape[:at], *linear.shape, *merged.shape[at + 1 :])
    value = expand_to(cast(value, x.dtype), want)
    out = apply(Op.registry["scatter"](at, mode), (merged, linear, value))  # type: ignore[call-arg]
    permuted = tuple(shape[k] for k in order)
    if not same_shape(tuple(out.shape), permuted):
        out = apply(Op.registry["reshape"](permuted), (out,))  # type: ignore[call-arg]
    if order != tuple(range(len(order))):
        out = apply(Op.registry["transpose"](tuple(int(i) for i in np.argsort(order))), (out,))  # type: ignore[call-arg]
    return out


def index_put(x: Tensor, indices: Sequence[Tensor], values: Tensor, accumulate: bool = False) -> Tensor:
    """`x` with values written (or added) at the positions named by index tensors."""
    plan = plan_of(x, tuple(indices))
    if values.dtype is not x.dtype:
        raise DTypeError(f"index_put of {values.type} into {x.type}: dtypes differ, cast one side")
    if not plan.advanced:
        raise OpError("index_put wants at least one index tensor")
    return _scattered(_basic(x, plan), plan.advanced, values, "add" if accumulate else "set")
