"""Choosing elements by position: gather, scatter, sort, one_hot, triangles, embedding.

Positions that the user gives are checked once (`require`, which the recorder turns into a guard), made non-negative,
and only then handed to the indexing primitives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracejit.errors import DTypeError, OpError
from tracejit.ir import dtype as dt
from tracejit.ir.dim import product, same
from tracejit.ir.node import (
    Node,
    Scalar,
    Value,
    broadcast_shapes,
    cast,
    common_dtype,
    constant,
    expand_to,
    scalar_dtype,
)
from tracejit.ir.op import ArrayConst
from tracejit.ir.types import TensorType
from tracejit.ops.composed import movement
from tracejit.ops.composed.axes import axis_of, fresh, keep, rank, require, same_dtype
from tracejit.ops.composed.elementwise import div, eq, isnan, maximum, minimum, ne, where
from tracejit.ops.composed.movement import flatten, movedim, narrow, ravel, reshape, slice_along, squeeze, unsqueeze
from tracejit.ops.composed.reduction import Extreme, amax, sum
from tracejit.ops.control import StopGradient
from tracejit.ops.indexing import Scatter, ScatterAlong, Take, TakeAlong
from tracejit.ops.movement import Broadcast, Pad, UpdateSlice
from tracejit.ops.order import CumMax, Sort
from tracejit.ops.reduce import ArgMax
from tracejit.ops.source import Const, Iota

__all__ = [
    "argsort", "bucketize", "diag", "diag_embed", "diagflat", "embedding", "gather", "index_add", "index_copy",
    "index_fill", "index_reduce", "index_select", "isin", "kthvalue", "median", "mode", "msort", "one_hot",
    "repeat_interleave", "scatter", "scatter_add", "scatter_reduce", "searchsorted", "sort", "take", "take_along_dim",
    "topk", "trace", "tril", "triu", "unravel_index",
]  # fmt: skip


def table(like: Value, array: Any) -> Any:
    """A NumPy array as a constant in the domain of `like`."""
    dtype = dt.from_numpy(array.dtype)
    assert dtype is not None
    return like.emit(Const(ArrayConst(array), TensorType(dtype, array.shape, like.type.device)), ())


def positions(index: Value, extent: Any, what: str, *, negative: bool = False) -> Any:
    """`index` as int64 positions below `extent`, checked; counted from the end where negative ones are allowed."""
    if index.type.dtype.kind not in "iu":
        raise DTypeError(f"{what} wants integer indices, got {index.type}")
    at = cast(index, dt.int64)
    low = -extent if negative else 0
    require((at >= low) & (at < extent), f"{what}: an index lies outside {low} .. {extent - 1}")
    return where(at < 0, at + extent, at) if negative else at


# --- by positions --------------------------------------------------------------------------------------------------


def index_select(x: Value, dim: int, index: Value) -> Any:
    """The slices of x at the positions `index` (a vector) of `dim`."""
    if rank(index) > 1:
        raise OpError(f"index_select wants a vector of indices, got {index.type}")
    axis = axis_of(dim, rank(x))
    if not rank(x):
        if not same(product(index.type.shape), 1):
            raise OpError(f"index_select of {x.type} by {index.type}: a rank-0 tensor has one position")
        positions(index, 1, f"index_select of {x.type}")
        return fresh(x)
    at = positions(index, x.type.shape[axis], f"index_select of {x.type} at dim {dim}")
    return Take(axis)(x, reshape(at, (-1,)) if not rank(index) else at)


def take(x: Value, index: Value) -> Any:
    """The elements of x, seen as one row, at `index`."""
    row = ravel(x)
    return Take(0)(row, positions(index, row.type.shape[0], f"take of {x.type}", negative=True))


def embedding(input: Value, weight: Value, padding_idx: int | None = None, scale_grad_by_freq: bool = False) -> Any:
    """The rows of `weight` at the positions `input`; the row `padding_idx` gets no gradient.

    With `scale_grad_by_freq` the gradient of a row is divided by how often it is read.
    """
    if rank(weight) != 2:
        raise OpError(f"embedding wants a matrix of weights, got {weight.type}")
    rows = weight.type.shape[0]
    at = positions(input, rows, f"embedding of {weight.type}")
    out = Take(0)(weight, at)
    if scale_grad_by_freq:
        ones = expand_to(constant(weight, 1, weight.type.dtype), at.type.shape)
        none = expand_to(constant(weight, 0, weight.type.dtype), (rows,))
        read = Take(0)(Scatter(0, "add")(none, ravel(at), ravel(ones)), at)
        fixed = StopGradient()(out)
        out = fixed + (out - fixed) / expand_to(unsqueeze(read, -1), out.type.shape)
    if padding_idx is None:
        return out
    if not -rows <= padding_idx < rows:
        raise OpError(f"embedding padding_idx {padding_idx} is not a row of {weight.type}")
    padded = expand_to(unsqueeze(eq(at, padding_idx % rows), -1), out.type.shape)
    return where(padded, StopGradient()(out), out)


def _fit(x: Any, shape: Sequence[Any], axis: int | None = None) -> Any:
    """x cut to the leading `shape`, except along `axis`."""
    for i, d in enumerate(shape):
        if i != axis and not same(d, x.type.shape[i]):
            x = slice_along(x, i, 0, d)
    return x


def _along(name: str, x: Value, dim: int, index: Value) -> tuple[int, Any]:
    if rank(x) != rank(index) and rank(x) and rank(index) and not same(product(index.type.shape), 0):
        raise OpError(f"{name} of {x.type} by {index.type}: ranks {rank(x)} and {rank(index)} differ")
    axis = axis_of(dim, rank(x))
    for i, (d, n) in enumerate(zip(index.type.shape, x.type.shape, strict=False)):
        if i != axis and isinstance(d, int) and isinstance(n, int) and d > n:
            raise OpError(f"{name} of {x.type} by {index.type}: index has {d} positions at dim {i}, the tensor {n}")
    n = x.type.shape[axis] if rank(x) else 1
    return axis, positions(index, n, f"{name} of {x.type} at dim {dim}")


def gather(x: Value, dim: int, index: Value) -> Any:
    """y[i, j] = x[index[i, j], j] for dim 0, and so on; index may be smaller than x in the other dims."""
    axis, at = _along("gather", x, dim, index)
    if rank(x) != rank(index) or not rank(x):
        return reshape(Take(0)(ravel(x), at), index.type.shape)
    return TakeAlong(axis)(_fit(x, index.type.shape, axis), at)


def take_along_dim(x: Value, indices: Value, dim: int | None = None) -> Any:
    """As gather, with both sides broadcast; over the flattened tensor without `dim`."""
    if dim is None:
        return gather(ravel(x), 0, ravel(indices))
    if rank(x) != rank(indices):
        raise OpError(f"take_along_dim of {x.type} by {indices.type}: ranks {rank(x)} and {rank(indices)} differ")
    axis = axis_of(dim, rank(x))
    drop = [tuple(1 if i == axis else d for i, d in enumerate(v.type.shape)) for v in (x, indices)]
    shape = broadcast_shapes(*drop)
    x, indices = (
        expand_to(v, tuple(v.type.shape[axis] if i == axis else d for i, d in enumerate(shape))) for v in (x, indices)
    )
    return TakeAlong(axis)(x, positions(indices, x.type.shape[axis], f"take_along_dim of {x.type}", negative=True))


def scatter(x: Value, dim: int, index: Value, src: Value | Scalar, *, reduce: str | None = None) -> Any:
    """x with y[index[i, j], j] = src[i, j] for dim 0, and so on; `reduce` is None, "add" or "multiply"."""
    if reduce not in (None, "add", "multiply"):
        raise OpError(f"scatter reduce is {reduce!r}, wanted None, 'add' or 'multiply'")
    if reduce == "multiply":
        factor: Any = src if isinstance(src, Value) else expand_to(constant(x, src, x.type.dtype), index.type.shape)
        return scatter_reduce(x, dim, index, factor, "prod")
    axis, at = _along("scatter", x, dim, index)
    if isinstance(src, Value):
        if rank(src) != rank(index) and rank(src) and rank(index):
            raise OpError(f"scatter of {src.type} by {index.type}: ranks {rank(src)} and {rank(index)} differ")
        if src.type.dtype is not x.type.dtype:
            raise DTypeError(f"scatter of {src.type} into {x.type}: dtypes differ, cast one side")
        updates = _fit(src, index.type.shape)
    else:
        updates = expand_to(constant(x, src, x.type.dtype), index.type.shape)
    mode = "add" if reduce == "add" else "set"
    if not rank(x) or not rank(index):
        out = ScatterAlong(0, mode)(reshape(x, (-1,)), reshape(at, (-1,)), reshape(updates, (-1,)))
        return reshape(out, x.type.shape)
    part = _fit(x, index.type.shape, axis)
    out = ScatterAlong(axis, mode)(part, at, updates)
    return out if part is x else UpdateSlice((0,) * rank(x), (1,) * rank(x))(x, out)


def scatter_add(x: Value, dim: int, index: Value, src: Value) -> Any:
    """x with src[i, j] added at [index[i, j], j] for dim 0, and so on."""
    return scatter(x, dim, index, src, reduce="add")


_COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "prod": lambda a, b: a & b if a.type.dtype is dt.bool_ else a * b,
    "amax": maximum,
    "amin": minimum,
}


def scatter_reduce(x: Value, dim: int, index: Value, src: Value, reduce: str, *, include_self: bool = True) -> Any:
    """x with src[i, j] combined at [index[i, j], j] for dim 0, and so on: sum, mean, prod, amax or amin.

    Without `include_self` the combined places hold nothing of x.
    """
    if reduce not in ("sum", "mean", *_COMBINE):
        raise OpError(f"scatter_reduce reduce is {reduce!r}, wanted sum, mean, prod, amax or amin")
    same_dtype("scatter_reduce", x, src)
    if rank(src) != rank(index) and rank(src) and rank(index):
        raise OpError(f"scatter_reduce of {src.type} by {index.type}: ranks {rank(src)} and {rank(index)} differ")
    axis, at = _along("scatter_reduce", x, dim, index)
    if not rank(x) or not rank(index):
        row, at = reshape(x, (-1,)), reshape(at, (-1,))
        return reshape(_reduced(row, 0, at, reshape(src, (-1,)), reduce, include_self), x.type.shape)
    part = _fit(x, index.type.shape, axis)
    out = _reduced(part, axis, at, _fit(src, index.type.shape), reduce, include_self)
    return out if part is x else UpdateSlice((0,) * rank(x), (1,) * rank(x))(x, out)


def _reduced(x: Any, axis: int, at: Any, u: Any, reduce: str, include_self: bool) -> Any:
    def filled(value: Scalar, shape: Sequence[Any], dtype: dt.DType) -> Any:
        return expand_to(constant(x, value, dtype), tuple(shape))

    hit = ScatterAlong(axis, "set")(filled(False, x.type.shape, dt.bool_), at, filled(True, at.type.shape, dt.bool_))
    if reduce in _COMBINE:
        at, u = _runs(axis, at, u, _COMBINE[reduce])
        total = ScatterAlong(axis, "set")(x, at, u)  # the last of a run is written last, and holds all of it
        return where(hit, _COMBINE[reduce](x, total), x) if include_self else total
    base = x if include_self else where(hit, False if x.type.dtype is dt.bool_ else 0, x)
    total = ScatterAlong(axis, "add")(base, at, u)
    if reduce == "sum":
        return total
    own = filled(1, x.type.shape, dt.int64) if include_self else cast(~hit, dt.int64)
    count = ScatterAlong(axis, "add")(own, at, filled(1, at.type.shape, dt.int64))
    return div(total, cast(count, x.type.dtype), rounding_mode=None if x.type.dtype.is_floating_point else "floor")


def _runs(axis: int, at: Any, u: Any, combine: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    """Positions in order, and the updates so combined that the last of a run of equal positions holds all of it."""
    at, order = Sort(axis, False, True)(at)
    u = TakeAlong(axis)(u, order)
    place = u.emit(Iota(at.type.shape, axis, dt.int64), ())
    step = 1
    while step < at.type.shape[axis]:  # a scan by doubling: after k rounds an element holds 2^k of its run
        inside = eq(movement.roll(at, step, axis), at) & (place >= step)
        u = where(inside, combine(movement.roll(u, step, axis), u), u)
        step *= 2
    return at, u


def index_reduce(x: Value, dim: int, index: Value, source: Value, reduce: str, *, include_self: bool = True) -> Any:
    """x with source[k] combined with its slice index[k] of `dim`: mean, prod, amax or amin."""
    if reduce not in ("mean", *_COMBINE):
        raise OpError(f"index_reduce reduce is {reduce!r}, wanted mean, prod, amax or amin")
    if rank(source) != rank(x):
        raise OpError(f"index_reduce of {source.type} into {x.type}: ranks differ")
    axis, at = _slices("index_reduce", x, dim, index)
    row, source = (v if rank(v) else reshape(v, (1,)) for v in (x, source))
    want = tuple(at.type.shape[0] if i == axis else d for i, d in enumerate(row.type.shape))
    if len(want) != rank(source) or not all(map(same, want, source.type.shape)):
        raise OpError(f"index_reduce of {x.type} at dim {dim} wants a source of {list(want)}, got {source.type}")
    spread = Broadcast(want, (axis,))(at)
    return reshape(scatter_reduce(row, axis, spread, source, reduce, include_self=include_self), x.type.shape)


def _slices(name: str, x: Value, dim: int, index: Value) -> tuple[int, Any]:
    if rank(index) > 1:
        raise OpError(f"{name} wants a vector of indices, got {index.type}")
    axis = axis_of(dim, rank(x))
    n = x.type.shape[axis] if rank(x) else 1
    return axis, reshape(positions(index, n, f"{name} of {x.type} at dim {dim}", negative=True), (-1,))


def _scattered(mode: str, x: Value, axis: int, at: Any, source: Any) -> Any:
    row, part = (v if rank(v) else reshape(v, (1,)) for v in (x, source))
    want = tuple(at.type.shape[0] if i == axis else d for i, d in enumerate(row.type.shape))
    if rank(part) != len(want) or not all(map(same, part.type.shape, want)):
        raise OpError(f"{at.type.shape[0]} slices of {x.type} at dim {axis} want {list(want)}, got {source.type}")
    return reshape(Scatter(axis, mode)(row, at, part), x.type.shape)


def index_add(x: Value, dim: int, index: Value, source: Value, *, alpha: Scalar = 1) -> Any:
    """x with alpha * source[k] added to its slice index[k] of `dim`."""
    same_dtype("index_add", x, source)
    if rank(source) != rank(x):
        raise OpError(f"index_add of {source.type} into {x.type}: ranks differ")
    axis, at = _slices("index_add", x, dim, index)
    return _scattered("add", x, axis, at, cast(source if alpha == 1 else source * alpha, x.type.dtype))


def index_copy(x: Value, dim: int, index: Value, source: Value) -> Any:
    """x with its slice index[k] of `dim` replaced by source[k]."""
    same_dtype("index_copy", x, source)
    axis, at = _slices("index_copy", x, dim, index)
    return _scattered("set", x, axis, at, source)


def index_fill(x: Value, dim: int, index: Value, value: Value | Scalar) -> Any:
    """x with its slices at `index` of `dim` filled with `value`."""
    axis, at = _slices("index_fill", x, dim, index)
    if isinstance(value, Value) and rank(value):
        raise OpError(f"index_fill wants a number or a rank-0 value, got {value.type}")
    fill = cast(value, x.type.dtype) if isinstance(value, Value) else constant(x, value, x.type.dtype)
    row = x if rank(x) else reshape(x, (1,))
    shape = tuple(at.type.shape[0] if i == axis else d for i, d in enumerate(row.type.shape))
    return reshape(Scatter(axis, "set")(row, at, expand_to(fill, shape)), x.type.shape)


# --- by order ------------------------------------------------------------------------------------------------------


def sort(x: Value, dim: int = -1, descending: bool = False, *, stable: bool = False) -> Extreme:
    """x in order along `dim`, and the positions it came from; NaN is the largest."""
    axis = axis_of(dim, rank(x))
    if not rank(x):
        return Extreme(fresh(x), constant(x, 0, dt.int64))
    return Extreme(*Sort(axis, descending, stable)(x))


def argsort(x: Value, dim: int = -1, descending: bool = False, *, stable: bool = False) -> Any:
    """The positions that put x in order along `dim`."""
    return sort(x, dim, descending, stable=stable).indices


def msort(x: Value) -> Any:
    """x in order along its first axis."""
    return sort(x, 0).values


def topk(x: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Extreme:
    """The k largest (or smallest) along `dim`, in order, and their positions."""
    axis = axis_of(dim, rank(x))
    n = x.type.shape[axis] if rank(x) else 1
    if not 0 <= k <= n:
        raise OpError(f"topk of {x.type} at dim {dim}: k = {k} is not in 0 .. {n}")
    values, indices = sort(x, dim, largest)
    return Extreme(values, indices) if not rank(x) else Extreme(narrow(values, axis, 0, k), narrow(indices, axis, 0, k))


def kthvalue(x: Value, k: int, dim: int = -1, keepdim: bool = False) -> Extreme:
    """The k-th smallest along `dim`, k from 1, and its position."""
    axis = axis_of(dim, rank(x))
    n = x.type.shape[axis] if rank(x) else 1
    if not 1 <= k <= n:
        raise OpError(f"kthvalue of {x.type} at dim {dim}: k = {k} is not in 1 .. {n}")
    pair = sort(x, dim)
    if not rank(x):
        return pair
    return Extreme(*(v if keepdim else squeeze(v, axis) for v in (narrow(y, axis, k - 1, 1) for y in pair)))


def median(x: Value, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower median of all, or along `dim` with its position; NaN if there is one."""
    if dim is None:
        return median(ravel(x), 0).values
    axis = axis_of(dim, rank(x))
    n = x.type.shape[axis] if rank(x) else 1
    if n == 0:
        raise OpError(f"median of {x.type} at dim {dim}: an empty range has no median")
    middle = kthvalue(x, (n + 1) // 2, dim, keepdim)
    if not x.type.dtype.is_floating_point:
        return middle
    last = kthvalue(x, n, dim, keepdim)  # NaN sorts last
    bad = ~eq(last.values, last.values)
    return Extreme(where(bad, last.values, middle.values), where(bad, last.indices, middle.indices))


def searchsorted(
    sorted_sequence: Value, input: Value | Scalar, *, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: Value | None = None,
) -> Any:  # fmt: skip
    """Where to insert `input` into the ordered last axis to keep its order: before equals, or behind where `right`."""
    if side not in (None, "left", "right") or (right and side == "left"):
        raise OpError(f"searchsorted side is {side!r} with right={right}, wanted left or right")
    v: Any = input if isinstance(input, Value) else constant(sorted_sequence, input, scalar_dtype(input))
    seq = sorted_sequence
    if sorter is not None:
        if len(sorter.type.shape) != rank(seq) or not all(map(same, sorter.type.shape, seq.type.shape)):
            raise OpError(f"searchsorted of {seq.type} with sorter {sorter.type}: shapes differ")
        seq = TakeAlong(rank(seq) - 1)(seq, positions(sorter, seq.type.shape[-1], "searchsorted's sorter"))
    if rank(seq) != 1 and (rank(v) != rank(seq) or not all(map(same, v.type.shape[:-1], seq.type.shape[:-1]))):
        raise OpError(f"searchsorted of {v.type} in {seq.type}: the leading extents differ")
    n, after = seq.type.shape[-1], right or side == "right"
    flat = rank(seq) == 1
    want = reshape(v, (-1,)) if flat else v
    dtype = common_dtype(seq, want)
    seq, want = cast(seq, dtype), cast(want, dtype)
    found = want.emit(Const(0, TensorType(dt.int64, want.type.shape, want.type.device)), ())
    step = 1 << int(n).bit_length() >> 1 if n else 0
    while step:  # a binary search, all elements in step: `found` positions are known to lie before
        probe = found + step
        at = where(probe <= n, probe, n) - 1
        there = TakeAlong(rank(seq) - 1)(seq, at)
        before = (there <= want) if after else (there < want)
        if dtype.is_floating_point:  # NaN is larger than all numbers
            before = before | (isnan(want) & (~isnan(there) | after))
        found = where((probe <= n) & before, probe, found)
        step >>= 1
    return cast(reshape(found, v.type.shape), dt.int32 if out_int32 else dt.int64)


def bucketize(input: Value | Scalar, boundaries: Value, *, out_int32: bool = False, right: bool = False) -> Any:
    """The bucket between `boundaries` that each element falls into."""
    if rank(boundaries) != 1:
        raise OpError(f"bucketize wants a vector of boundaries, got {boundaries.type}")
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


def isin(
    elements: Value | Scalar, test_elements: Value | Scalar, *, assume_unique: bool = False, invert: bool = False
) -> Any:
    """Whether each element is one of `test_elements`."""
    like = elements if isinstance(elements, Value) else test_elements
    if not isinstance(like, Value):
        raise TypeError("isin: elements or test_elements must be a Tensor")
    x, y = (v if isinstance(v, Value) else constant(like, v, scalar_dtype(v)) for v in (elements, test_elements))
    dtype = common_dtype(x, y)
    row = sort(cast(ravel(y), dtype), 0).values
    n = row.type.shape[0]
    if n == 0:
        out = ne(x, x) & eq(x, x)
    else:
        x = cast(x, dtype)
        at = searchsorted(row, x)
        out = eq(Take(0)(row, where(at < n, at, n - 1)), x)
    return ~out if invert else out


def mode(x: Value, dim: int = -1, keepdim: bool = False) -> Extreme:
    """The most frequent value along `dim` (the smallest of them), and its last position."""
    axis = axis_of(dim, rank(x))
    if not rank(x):
        return Extreme(fresh(x), constant(x, 0, dt.int64))
    n = x.type.shape[axis]
    if n == 0:
        raise OpError(f"mode of {x.type} at dim {dim}: an empty range has none")
    values, order = Sort(axis, False, True)(x)
    place = x.emit(Iota(x.type.shape, axis, dt.int64), ())
    before = movement.roll(values, 1, axis)
    starts = where(ne(values, before) | eq(place, 0), place, 0)
    run = place - CumMax(axis)(starts)  # how many equals stand before, within the run
    at = keep(ArgMax(axis)(run), x, (axis,), True)
    pair = (TakeAlong(axis)(values, at), TakeAlong(axis)(order, at))
    return Extreme(*(v if keepdim else squeeze(v, axis) for v in pair))


def unravel_index(indices: Value, shape: int | Sequence[int]) -> tuple[Any, ...]:
    """Positions in the flattened tensor as one index for each axis of `shape`."""
    extents = (shape,) if isinstance(shape, int) else tuple(shape)
    if indices.type.dtype.kind not in "iu":
        raise DTypeError(f"unravel_index wants integers, got {indices.type}")
    out: list[Any] = []
    rest: Any = indices
    for d in reversed(extents):
        out.append(rest % d)
        rest = rest // d
    return tuple(reversed(out))


# --- made of positions ---------------------------------------------------------------------------------------------


def one_hot(x: Value, num_classes: int = -1) -> Any:
    """int64[..., num_classes] with 1 at position x; the number is 1 + max(x) unless given."""
    if num_classes < 0:
        if isinstance(x, Node):
            raise OpError("one_hot in a graph wants num_classes: the largest index is not known")
        num_classes = int(amax(x)) + 1
    at = positions(x, num_classes, f"one_hot with {num_classes} classes")
    shape = (*x.type.shape, num_classes)
    classes = x.emit(Iota(shape, len(shape) - 1, dt.int64), ())
    return cast(eq(classes, unsqueeze(at, -1)), dt.int64)


def _triangle(x: Value, diagonal: int, lower: bool) -> Any:
    if rank(x) < 2:
        raise OpError(f"{'tril' if lower else 'triu'} of {x.type}: wanted rank 2 or more")
    shape = x.type.shape[-2:]
    row, column = (x.emit(Iota(shape, i, dt.int64), ()) for i in (0, 1))
    inside = column - row <= diagonal if lower else column - row >= diagonal
    return where(inside, x, False if x.type.dtype is dt.bool_ else 0)


def tril(x: Value, diagonal: int = 0) -> Any:
    """x with zeros above the `diagonal`-th diagonal."""
    return _triangle(x, diagonal, True)


def triu(x: Value, diagonal: int = 0) -> Any:
    """x with zeros below the `diagonal`-th diagonal."""
    return _triangle(x, diagonal, False)


def diag_embed(x: Value, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    """Matrices over dim1, dim2 whose `offset`-th diagonal is the last axis of x, zero elsewhere."""
    *batch, n = x.type.shape
    size = n + (offset if offset > 0 else -offset)
    across = len(batch) if offset >= 0 else len(batch) + 1  # the row number equals the position above, the column below
    widths = (0,) * len(batch)
    long = Pad((*widths, 0), (*widths, size - n), (0,) * rank(x))(x, constant(x, 0, x.type.dtype)) if offset else x
    shape = (*batch, size, size)
    spread = Broadcast(shape, (*range(len(batch)), across))(long)
    row, column = (x.emit(Iota(shape, i, dt.int64), ()) for i in (len(batch), len(batch) + 1))
    matrices = where(eq(column - row, offset), spread, False if x.type.dtype is dt.bool_ else 0)
    return movedim(matrices, (-2, -1), (dim1, dim2))


def diag(x: Value, diagonal: int = 0) -> Any:
    """A vector as a diagonal matrix, or the diagonal of a matrix."""
    if rank(x) == 1:
        return diag_embed(x, diagonal)
    if rank(x) != 2:
        raise OpError(f"diag of {x.type}: wanted a vector or a matrix")
    return fresh(movement.diagonal(x, diagonal))


def diagflat(x: Value, offset: int = 0) -> Any:
    """A matrix whose diagonal is x as one row."""
    return diag_embed(ravel(x), offset)


def trace(x: Value) -> Any:
    """The sum of the diagonal of a matrix."""
    if rank(x) != 2:
        raise OpError(f"trace of {x.type}: wanted a matrix")
    return sum(movement.diagonal(x))


def repeat_interleave(x: Value, repeats: int | Value, dim: int | None = None, *, output_size: int | None = None) -> Any:
    """Each slice of `dim` repeated in place: all `repeats` times, or each its own number. `output_size` is a hint."""
    if dim is None:
        x, dim = flatten(x), 0
    axis = axis_of(dim, rank(x))
    if isinstance(repeats, int):
        if repeats < 0:
            raise OpError(f"repeat_interleave by {repeats}: wanted 0 or more")
        shape = x.type.shape
        wide = (*shape[: axis + 1], repeats, *shape[axis + 1 :])
        kept = tuple(i for i in range(len(wide)) if i != axis + 1)
        return reshape(Broadcast(wide, kept)(x), (*shape[:axis], shape[axis] * repeats, *shape[axis + 1 :]))
    if isinstance(repeats, Node):
        raise OpError("repeat_interleave in a graph wants an integer count: the result's size depends on data")
    counts = np.asarray(repeats.tolist(), np.int64)  # type: ignore[attr-defined]
    counts = np.broadcast_to(counts, (x.type.shape[axis],))
    return Take(axis)(x, table(x, np.repeat(np.arange(len(counts)), counts)))
