"""Sums, means, variances, norms, softmax: reductions in PyTorch's words, few nodes each and careful at the edges.

Half types are accumulated in float32, as PyTorch does.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from tracejit.errors import DTypeError, IndexOutOfRange, OpError
from tracejit.ir import dtype as dt
from tracejit.ir.dim import product, same
from tracejit.ir.dtype import DType
from tracejit.ir.node import Value, cast, constant, expand_to
from tracejit.ops.composed.axes import Dims, axes_of, axis_of, floating, fresh, keep, rank, require, spread
from tracejit.ops.composed.elementwise import (
    abs,
    ceil,
    clamp,
    eq,
    exp,
    floor,
    isinf,
    isnan,
    log,
    maximum,
    minimum,
    ne,
    round,
    sqrt,
    where,
)  # fmt: skip
from tracejit.ops.composed.movement import diagonal, movedim, ravel, reshape, slice_along, transpose, unsqueeze
from tracejit.ops.composed.whole import whole
from tracejit.ops.control import StopGradient
from tracejit.ops.order import CumMax, CumProd, CumSum
from tracejit.ops.reduce import ArgMax, ArgMin, ReduceMax, ReduceMin, ReduceProd, ReduceSum
from tracejit.ops.source import Iota

__all__ = [
    "all", "amax", "amin", "aminmax", "any", "argmax", "argmin", "corrcoef", "count_nonzero", "cov", "cummax",
    "cummin", "cumprod", "cumsum", "cumulative_trapezoid", "diff", "dist", "log_softmax", "logcumsumexp", "logsumexp",
    "max", "mean", "min", "nanmean", "nanmedian", "nanquantile", "nansum", "norm", "prod", "quantile", "renorm",
    "softmax", "softmin", "std", "std_mean", "sum", "trapezoid", "trapz", "var", "var_mean", "vector_norm",
]  # fmt: skip


class Extreme(NamedTuple):
    """Values and their positions along the reduced dim."""

    values: Any
    indices: Any


def _accumulated(x: Value) -> Any:
    """x in the type that sums are made in: float32 for the half types."""
    return cast(x, dt.float32) if x.type.dtype in (dt.float16, dt.bfloat16) else x


def _count(x: Value, axes: Sequence[int]) -> Any:
    return product(tuple(x.type.shape[i] for i in axes))


def _float_only(name: str, x: Value) -> None:
    if not x.type.dtype.is_floating_point:
        raise DTypeError(f"{name} of {x.type}: wanted a float type, cast it first")


# --- sums and means ------------------------------------------------------------------------------------------------


def sum(x: Value, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None) -> Any:
    """The sum over `dim`; of integers and bools in int64."""
    axes = axes_of(dim, rank(x))
    x = cast(x, dtype) if dtype else x if x.type.dtype.is_floating_point else cast(x, dt.int64)
    return keep(ReduceSum(axes)(x), x, axes, keepdim) if axes else fresh(x)


def nansum(x: Value, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None) -> Any:
    """The sum over `dim` with NaN as zero."""
    return sum(where(isnan(x), 0, x) if x.type.dtype.is_floating_point else x, dim, keepdim, dtype=dtype)


def prod(x: Value, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None) -> Any:
    """The product over `dim`; of integers and bools in int64."""
    axes = axes_of(dim, rank(x))
    x = cast(x, dtype) if dtype else x if x.type.dtype.is_floating_point else cast(x, dt.int64)
    return keep(ReduceProd(axes)(x), x, axes, keepdim) if axes else fresh(x)


def mean(x: Value, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None) -> Any:
    """The mean over `dim`; of floats only unless `dtype` says otherwise."""
    x = cast(x, dtype) if dtype else x
    _float_only("mean", x)
    axes = axes_of(dim, rank(x))
    wide = _accumulated(x)  # in f16 the sum overflows at 65504 where the mean does not
    return cast(keep(ReduceSum(axes)(wide) / _count(x, axes), x, axes, keepdim), x.type.dtype) if axes else fresh(x)


def nanmean(x: Value, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None) -> Any:
    """The mean over `dim` of what is not NaN."""
    _float_only("nanmean", x)
    return nansum(x, dim, keepdim, dtype=dtype) / sum(~isnan(x), dim, keepdim)


def count_nonzero(x: Value, dim: Dims = None) -> Any:
    """How many elements over `dim` are not zero."""
    return sum(ne(x, 0), dim)


def _spread_of(
    x: Value, dim: Dims | bool, unbiased: bool | None, correction: float | None, keepdim: bool
) -> tuple[Any, Any]:
    """Variance and mean, by two passes."""
    _float_only("var", x)
    if isinstance(dim, bool):  # PyTorch's old form var(unbiased)
        dim, unbiased = None, dim
    by = correction if correction is not None else 1 if unbiased is None or unbiased else 0
    axes = axes_of(dim, rank(x))
    wide, n = _accumulated(x), _count(x, axes)
    center = ReduceSum(axes)(wide) / n if axes else wide
    away = wide - spread(center, x, axes)
    squares = ReduceSum(axes)(away * away) if axes else away * away
    freedom = n - by
    variance = squares / (freedom if freedom > 0 else 0.0)
    return tuple(cast(keep(y, x, axes, keepdim), x.type.dtype) for y in (variance, center))  # type: ignore[return-value]


def var(
    x: Value,
    dim: Dims | bool = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Any:
    """sum (x - mean)^2 / (n - correction) over `dim`; correction is 1 unless given."""
    return _spread_of(x, dim, unbiased, correction, keepdim)[0]


def var_mean(
    x: Value,
    dim: Dims | bool = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Any, Any]:
    """Variance and mean over `dim`."""
    return _spread_of(x, dim, unbiased, correction, keepdim)


def std(
    x: Value,
    dim: Dims | bool = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Any:
    """The square root of the variance; its gradient is 0 where it is 0."""
    return _root(_spread_of(x, dim, unbiased, correction, keepdim)[0])


def std_mean(
    x: Value,
    dim: Dims | bool = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Any, Any]:
    """Standard deviation and mean over `dim`."""
    variance, center = _spread_of(x, dim, unbiased, correction, keepdim)
    return _root(variance), center


def _root(x: Any) -> Any:
    """sqrt(x) with gradient 0 at 0."""
    zero = x <= 0
    return where(zero, 0, sqrt(where(zero, 1, x)))


def norm(
    x: Value, p: float | str | None = "fro", dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Any:
    """(sum |x|^p)^(1/p) over `dim`; "fro" and None are 2."""
    if isinstance(p, str) and p != "fro":
        raise OpError(f"norm p is {p!r}, wanted a number or 'fro'")
    return vector_norm(x, 2.0 if p is None or isinstance(p, str) else p, dim, keepdim, dtype=dtype)


def vector_norm(
    x: Value, ord: float = 2, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Any:
    """(sum |x|^ord)^(1/ord) over `dim`; inf, -inf and 0 give the largest, the smallest and the count of nonzeros."""
    x = cast(x, dtype) if dtype else x
    _float_only("norm", x)
    axes = axes_of(dim, rank(x))
    if not math.isinf(ord):
        wide = _accumulated(x)
        return cast(keep(_power_norm(wide, float(ord), axes), x, axes, keepdim), x.type.dtype)
    size = abs(x)
    if not axes:
        return size
    return keep((ReduceMax if ord > 0 else ReduceMin)(axes)(size), x, axes, keepdim)


def _power_norm(x: Any, p: float, axes: tuple[int, ...]) -> Any:
    def total(y: Any) -> Any:
        return ReduceSum(axes)(y) if axes else y

    if p == 0:
        return total(where(ne(x, 0), 1, x * 0))  # a constant, but one that has a gradient: 0
    if p == 1:
        return total(abs(x))
    if p == 2:
        return _root(total(x * x))
    size = total(abs(x) ** p)
    zero = size <= 0
    return where(zero, 0, where(zero, 1, size) ** (1 / p))


# --- extremes ------------------------------------------------------------------------------------------------------


def _extreme(op: Any, name: str, x: Value, axes: tuple[int, ...], keepdim: bool) -> Any:
    if builtins.any(same(x.type.shape[i], 0) for i in axes):
        raise IndexOutOfRange(f"{name} of {x.type} over dims {list(axes)}: an empty range has no extreme")
    return keep(op(axes)(x), x, axes, keepdim) if axes else fresh(x)


def amax(x: Value, dim: Dims = None, keepdim: bool = False) -> Any:
    """The largest over `dim`, NaN if there is one; the gradient is split evenly among equals."""
    return _extreme(ReduceMax, "amax", x, axes_of(dim, rank(x)), keepdim)


def amin(x: Value, dim: Dims = None, keepdim: bool = False) -> Any:
    """The smallest over `dim`, NaN if there is one; the gradient is split evenly among equals."""
    return _extreme(ReduceMin, "amin", x, axes_of(dim, rank(x)), keepdim)


def aminmax(x: Value, *, dim: int | None = None, keepdim: bool = False) -> tuple[Any, Any]:
    """The smallest and the largest."""
    return amin(x, dim, keepdim), amax(x, dim, keepdim)


def max(x: Value, dim: int | Value | None = None, keepdim: bool = False) -> Any:
    """The largest of all; over one `dim` with its positions; or, given a tensor, the elementwise maximum."""
    if isinstance(dim, Value):
        return maximum(x, dim)
    return amax(x) if dim is None else _picked(ArgMax, "max", x, dim, keepdim)


def min(x: Value, dim: int | Value | None = None, keepdim: bool = False) -> Any:
    """The smallest of all; over one `dim` with its positions; or, given a tensor, the elementwise minimum."""
    if isinstance(dim, Value):
        return minimum(x, dim)
    return amin(x) if dim is None else _picked(ArgMin, "min", x, dim, keepdim)


def _picked(op: Any, name: str, x: Value, dim: int, keepdim: bool) -> Extreme:
    from tracejit.ops.indexing import TakeAlong

    axis = axis_of(dim, rank(x))
    if not rank(x):
        return Extreme(fresh(x), constant(x, 0, dt.int64))
    if same(x.type.shape[axis], 0):
        raise IndexOutOfRange(f"{name} of {x.type} over dim {dim}: an empty range has no extreme")
    at = op(axis)(x)
    column = keep(at, x, (axis,), True)
    values = TakeAlong(axis)(x, column)
    if keepdim:
        return Extreme(values, column)
    return Extreme(reshape(values, at.type.shape), at)


def argmax(x: Value, dim: int | None = None, keepdim: bool = False) -> Any:
    """The position of the first largest over `dim`, or in the flattened tensor; NaN counts as largest."""
    return _position(ArgMax, "argmax", x, dim, keepdim)


def argmin(x: Value, dim: int | None = None, keepdim: bool = False) -> Any:
    """The position of the first smallest over `dim`, or in the flattened tensor; NaN counts as smallest."""
    return _position(ArgMin, "argmin", x, dim, keepdim)


def _position(op: Any, name: str, x: Value, dim: int | None, keepdim: bool) -> Any:
    if dim is None:
        if same(product(x.type.shape), 0):
            raise IndexOutOfRange(f"{name} of {x.type}: an empty tensor has no extreme")
        return keep(op(0)(ravel(x)), x, range(rank(x)), keepdim)
    axis = axis_of(dim, rank(x))
    if not rank(x):
        return constant(x, 0, dt.int64)
    if same(x.type.shape[axis], 0):
        raise IndexOutOfRange(f"{name} of {x.type} over dim {dim}: an empty range has no extreme")
    return keep(op(axis)(x), x, (axis,), keepdim)


def any(x: Value, dim: Dims = None, keepdim: bool = False) -> Any:
    """True where one over `dim` is not zero."""
    return _truth(ReduceMax, False, x, dim, keepdim)


def all(x: Value, dim: Dims = None, keepdim: bool = False) -> Any:
    """True where none over `dim` is zero."""
    return _truth(ReduceMin, True, x, dim, keepdim)


def _truth(op: Any, empty: bool, x: Value, dim: Dims, keepdim: bool) -> Any:
    axes = axes_of(dim, rank(x))
    kind = dt.uint8 if x.type.dtype is dt.uint8 else dt.bool_  # PyTorch's only exception
    x = cast(x, dt.bool_)
    if not axes:
        return cast(x, kind)
    if builtins.any(same(x.type.shape[i], 0) for i in axes):
        rest = tuple(d for i, d in enumerate(x.type.shape) if i not in axes)
        return cast(keep(expand_to(constant(x, empty, dt.bool_), rest), x, axes, keepdim), kind)
    return cast(keep(op(axes)(x), x, axes, keepdim), kind)


# --- running reductions --------------------------------------------------------------------------------------------


def cumsum(x: Value, dim: int, *, dtype: DType | None = None) -> Any:
    """y[i] = x[0] + ... + x[i] along `dim`; of integers and bools in int64."""
    x = cast(x, dtype) if dtype else x if x.type.dtype.is_floating_point else cast(x, dt.int64)
    axis = axis_of(dim, rank(x))
    return CumSum(axis)(x) if rank(x) else fresh(x)


def cumprod(x: Value, dim: int, *, dtype: DType | None = None) -> Any:
    """y[i] = x[0] * ... * x[i] along `dim`; of integers and bools in int64."""
    x = cast(x, dtype) if dtype else x if x.type.dtype.is_floating_point else cast(x, dt.int64)
    axis = axis_of(dim, rank(x))
    return CumProd(axis)(x) if rank(x) else fresh(x)


def cummax(x: Value, dim: int) -> Extreme:
    """The largest so far along `dim`, and where it stands."""
    axis = axis_of(dim, rank(x))
    if not rank(x):
        return Extreme(fresh(x), constant(x, 0, dt.int64))
    from tracejit.ops.indexing import TakeAlong

    # PyTorch gives the last position among equals: a position counts where x has reached the running maximum.
    best = CumMax(axis)(StopGradient()(x))
    reached = (x >= best) | isnan(x)
    at = x.emit(Iota(x.type.shape, axis, dt.int64), ())
    indices = CumMax(axis)(where(reached, at, 0))
    return Extreme(TakeAlong(axis)(x, indices), indices)


def cummin(x: Value, dim: int) -> Extreme:
    """The smallest so far along `dim`, and where it stands."""
    if x.type.dtype is dt.bool_:
        values, indices = cummax(~x, dim)
        return Extreme(~values, indices)
    values, indices = cummax(-x if x.type.dtype.is_signed else 255 - x, dim)
    return Extreme(-values if x.type.dtype.is_signed else 255 - values, indices)


def logcumsumexp(x: Value, dim: int) -> Any:
    """log of the running sum of e^x along `dim`."""
    x = floating(x)
    axis = axis_of(dim, rank(x))
    if not rank(x):
        return fresh(x)
    top = _finite_top(x, (axis,))
    return log(CumSum(axis)(exp(x - spread(top, x, (axis,))))) + spread(top, x, (axis,))


def diff(x: Value, n: int = 1, dim: int = -1, prepend: Value | None = None, append: Value | None = None) -> Any:
    """x[1:] - x[:-1] along `dim`, n times."""
    from tracejit.ops.composed.movement import cat

    if not rank(x):
        raise OpError(f"diff of {x.type}: wanted rank 1 or more")
    axis = axis_of(dim, rank(x))
    if prepend is not None or append is not None:
        x = cat([v for v in (prepend, x, append) if v is not None], axis)
    for _ in range(n):
        size = x.type.shape[axis]
        after, before = (
            slice_along(x, axis, builtins.min(1, size), size),
            slice_along(x, axis, 0, builtins.max(size - 1, 0)),
        )
        x = ne(after, before) if x.type.dtype is dt.bool_ else after - before
    return x


# --- statistics ----------------------------------------------------------------------------------------------------


def dist(x: Value, other: Value, p: float = 2) -> Any:
    """The p-norm of x - other."""
    return vector_norm(x - other, p)


def renorm(x: Value, p: float, dim: int, maxnorm: float) -> Any:
    """x with every slice of `dim` whose p-norm is larger than `maxnorm` shortened to it."""
    axis = axis_of(dim, rank(x))
    if rank(x) < 2 or p <= 0 or maxnorm < 0:
        raise OpError(
            f"renorm of {x.type} with p={p} and maxnorm={maxnorm}: wanted rank 2, p above 0, maxnorm of 0 or more"
        )
    size = vector_norm(x, p, tuple(i for i in range(rank(x)) if i != axis), keepdim=True)
    return x * where(size > maxnorm, maxnorm / (size + 1e-7), 1)


def trapezoid(y: Value, x: Value | None = None, *, dx: float = 1.0, dim: int = -1) -> Any:
    """The integral of samples y along `dim` by the trapezoid rule, at places x or `dx` apart."""
    return sum(_trapezoids(y, x, dx, dim), dim)


trapz = trapezoid


def cumulative_trapezoid(y: Value, x: Value | None = None, *, dx: float = 1.0, dim: int = -1) -> Any:
    """The running integral of samples y along `dim`."""
    return cumsum(_trapezoids(y, x, dx, dim), dim)


def _trapezoids(y: Value, x: Value | None, dx: float, dim: int) -> Any:
    axis = axis_of(dim, rank(y))
    n = y.type.shape[axis]
    heights = (slice_along(y, axis, builtins.min(1, n), n) + slice_along(y, axis, 0, builtins.max(n - 1, 0))) * 0.5
    if x is None:
        return heights * dx
    if not same(x.type.shape[-1 if rank(x) == 1 else axis - rank(y)], n):
        raise OpError(f"trapezoids of {y.type} at the places {x.type}: extents differ along dim {dim}")
    steps = diff(x, 1, -1 if rank(x) == 1 else axis - rank(y))
    return heights * (reshape(steps, (-1, *(1,) * (rank(y) - axis - 1))) if rank(x) == 1 else steps)


def cov(x: Value, *, correction: int = 1, fweights: Value | None = None, aweights: Value | None = None) -> Any:
    """The covariance matrix of variables in rows, observations in columns; weights count or rate observations."""
    if rank(x) > 2:
        raise OpError(f"cov of {x.type}: wanted rank 2 or less")
    rows = reshape(x, (1, -1)) if rank(x) < 2 else x
    w: Any = None
    for v in (fweights, aweights):
        if v is not None:
            if rank(v) != 1 or not same(v.type.shape[0], rows.type.shape[1]):
                raise OpError(f"cov of {x.type}: weights {v.type} do not fit the observations")
            w = v if w is None else w * v
    rows = floating(rows)
    w = w if w is None else cast(w, rows.type.dtype)
    count: Any = rows.type.shape[1] if w is None else sum(w)
    center = sum(rows if w is None else rows * w, 1, keepdim=True) / count
    away = rows - center
    if aweights is not None and w is not None and correction:
        freedom: Any = count - correction * sum(w * aweights) / count
    else:
        freedom = count - correction
    freedom = clamp(freedom, min=0) if isinstance(freedom, Value) else builtins.max(freedom, 0)
    product_ = (away if w is None else away * w) @ transpose(away, 0, 1)
    out = product_ / freedom if isinstance(freedom, Value) or freedom else product_ / 0.0
    return reshape(out, ()) if same(rows.type.shape[0], 1) else out


def corrcoef(x: Value) -> Any:
    """The matrix of correlation coefficients of variables in rows, limited to [-1, 1]."""
    c = cov(x)
    if not rank(c):
        return c / c
    deviation = sqrt(diagonal(c))
    return clamp(c / unsqueeze(deviation, 1) / unsqueeze(deviation, 0), -1, 1)


def quantile(
    x: Value, q: Value | float, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Any:
    """The q-th quantiles (0 .. 1) along `dim`, or of all; a vector q gives a new first axis; NaN if there is one."""
    return _quantile("quantile", x, q, dim, keepdim, interpolation, False)


def nanquantile(
    x: Value, q: Value | float, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Any:
    """As `quantile`, of what is not NaN."""
    return _quantile("nanquantile", x, q, dim, keepdim, interpolation, True)


def _quantile(
    name: str, x: Value, q: Value | float, dim: int | None, keepdim: bool, interpolation: str, ignore_nan: bool
) -> Any:
    from tracejit.ops.composed.selection import sort
    from tracejit.ops.indexing import TakeAlong

    _float_only(name, x)
    if interpolation not in ("linear", "lower", "higher", "midpoint", "nearest"):
        raise OpError(f"{name} interpolation is {interpolation!r}, wanted linear, lower, higher, midpoint or nearest")
    at: Any = q if isinstance(q, Value) else constant(x, q, x.type.dtype)
    if rank(at) > 1 or at.type.dtype is not x.type.dtype:
        raise OpError(f"{name} of {x.type} at {at.type}: wanted a number or a vector of the same dtype")
    if same(product(x.type.shape), 0):
        raise OpError(f"{name} of {x.type}: an empty tensor has none")
    require((at >= 0) & (at <= 1), f"{name} wants q in 0 .. 1", OpError)
    rows = ravel(x) if dim is None else movedim(x if rank(x) else reshape(x, (1,)), dim, -1)
    rows = sort(rows, -1).values  # NaN is last
    n, last = rows.type.shape[-1], rank(rows) - 1
    bad = isnan(rows)
    known = sum(~bad, -1, keepdim=True) if ignore_nan else None
    place = (
        reshape(at, (-1,)) * (n - 1)
        if known is None
        else reshape(at, (-1,)) * cast(clamp(known - 1, min=0), x.type.dtype)
    )
    place = expand_to(place, (*rows.type.shape[:-1], place.type.shape[-1]))
    if interpolation == "nearest":
        low = high = cast(round(place), dt.int64)
    else:
        low, high = cast(floor(place), dt.int64), cast(ceil(place), dt.int64)
        low, high = (
            (high, high) if interpolation == "higher" else (low, low) if interpolation == "lower" else (low, high)
        )
    a, b = TakeAlong(last)(rows, low), TakeAlong(last)(rows, high)
    share = 0.5 if interpolation == "midpoint" else place - cast(low, x.type.dtype)
    out = a if low is high else where(eq(low, high), a, a + share * (b - a))
    if not ignore_nan:
        out = where(any(bad, -1, keepdim=True), math.nan, out)
    out = movedim(out, -1, 0)
    if keepdim:
        out = reshape(out, (out.type.shape[0], *((1,) * rank(x))) if dim is None else out.type.shape)
        out = out if dim is None else unsqueeze(out, axis_of(dim, rank(x)) + 1) if rank(x) else reshape(out, (-1,))
    return out if rank(at) else reshape(out, out.type.shape[1:])


def nanmedian(x: Value, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower median of what is not NaN: of all, or along `dim` with its position."""
    from tracejit.ops.composed.selection import sort

    if dim is None:
        return nanmedian(ravel(x), 0).values
    axis = axis_of(dim, rank(x))
    if not rank(x):
        return Extreme(fresh(x), constant(x, 0, dt.int64))
    if same(x.type.shape[axis], 0):
        raise IndexOutOfRange(f"nanmedian of {x.type} at dim {dim}: an empty range has no median")
    from tracejit.ops.indexing import TakeAlong

    values, order = sort(x, axis, stable=True)
    middle = clamp(sum(~isnan(x), axis, keepdim=True) - 1, min=0) // 2
    pair = (TakeAlong(axis)(values, middle), TakeAlong(axis)(order, middle))
    return Extreme(*(v if keepdim else reshape(v, x.type.without((axis,)).shape) for v in pair))


# --- softmax and its family ----------------------------------------------------------------------------------------


def _finite_top(x: Any, axes: tuple[int, ...]) -> Any:
    """The largest over `axes` as a constant for the gradient, 0 where it is infinite (inf - inf would be NaN)."""
    top = StopGradient()(ReduceMax(axes)(x))
    return where(isinf(top), 0, top)


def _prepared(name: str, x: Value, dim: int | None, dtype: DType | None) -> tuple[Any, DType, tuple[int, ...]]:
    x = cast(x, dtype) if dtype else x
    _float_only(name, x)
    if dim is None:
        dim = 0 if rank(x) in (0, 1, 3) else 1  # PyTorch's implicit choice
    axis = axis_of(dim, rank(x))
    if not rank(x):
        return reshape(_accumulated(x), (1,)), x.type.dtype, (0,)
    return _accumulated(x), x.type.dtype, (axis,)


@whole
def softmax(x: Value, dim: int | None = None, *, dtype: DType | None = None) -> Any:
    """e^x / sum e^x along `dim`, from x - max(x)."""
    wide, kind, axes = _prepared("softmax", x, dim, dtype)
    if same(product(wide.type.shape), 0):
        return cast(wide, kind)
    e = exp(wide - spread(StopGradient()(ReduceMax(axes)(wide)), wide, axes))
    return reshape(cast(e / spread(ReduceSum(axes)(e), e, axes), kind), x.type.shape)


def softmin(x: Value, dim: int | None = None, *, dtype: DType | None = None) -> Any:
    """softmax(-x)."""
    return softmax(-x, dim, dtype=dtype)


@whole
def log_softmax(x: Value, dim: int | None = None, *, dtype: DType | None = None) -> Any:
    """x - log sum e^x along `dim`."""
    wide, kind, axes = _prepared("log_softmax", x, dim, dtype)
    if same(product(wide.type.shape), 0):
        return cast(wide, kind)
    z = wide - spread(StopGradient()(ReduceMax(axes)(wide)), wide, axes)
    return reshape(cast(z - spread(log(ReduceSum(axes)(exp(z))), z, axes), kind), x.type.shape)


@whole
def logsumexp(x: Value, dim: Dims = None, keepdim: bool = False) -> Any:
    """log sum e^x over `dim`, without overflow; -inf where all are -inf."""
    x = floating(x)
    axes = axes_of(dim, rank(x))
    if not axes:
        return fresh(x)
    wide = _accumulated(x)
    if builtins.any(same(x.type.shape[i], 0) for i in axes):
        return cast(keep(log(ReduceSum(axes)(exp(wide))), x, axes, keepdim), x.type.dtype)
    top = _finite_top(wide, axes)
    total = log(ReduceSum(axes)(exp(wide - spread(top, wide, axes)))) + top
    return cast(keep(total, x, axes, keepdim), x.type.dtype)
