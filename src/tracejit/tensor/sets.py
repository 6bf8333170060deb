"""Functions whose result's size depends on data: distinct elements, counts, histograms.

They look at a number (a count, a largest element) to know the size; a recording guards on that number.
"""

from __future__ import annotations

from typing import Any

from tracejit.errors import DTypeError, OpError
from tracejit.ir import dtype as dt
from tracejit.ir.node import cast
from tracejit.ops import composed
from tracejit.tensor.creation import arange, ones, zeros
from tracejit.tensor.indexing import nonzero
from tracejit.tensor.tensor import Tensor

__all__ = ["argwhere", "bincount", "combinations", "histc", "unique", "unique_consecutive"]


def unique(
    input: Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """The distinct elements (or slices of `dim`) in ascending order; with inverse positions and counts where asked."""
    rows, n = _rows(input, dim)
    order: Any = arange(n)
    for column in reversed(range(rows.shape[1])):  # the first column decides last: a stable sort keeps what was sorted
        order = order[composed.argsort(rows[order, column], stable=True)]  # type: ignore[index]
    group, starts = _groups(rows[order])  # type: ignore[index]
    at = order[starts]
    values = composed.index_select(input, dim, at) if dim is not None else composed.reshape(input, (-1,))[at]
    inverse = composed.scatter(zeros(n, dtype=dt.int64), 0, order, group)
    return _answer(input, dim, values, inverse, starts, n, return_inverse, return_counts)


def unique_consecutive(
    input: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """Equal neighbours (elements, or slices of `dim`) merged; with inverse positions and counts where asked."""
    rows, n = _rows(input, dim)
    group, starts = _groups(rows)
    values = composed.index_select(input, dim, starts) if dim is not None else composed.reshape(input, (-1,))[starts]
    return _answer(input, dim, values, group, starts, n, return_inverse, return_counts)


def _rows(x: Tensor, dim: int | None) -> tuple[Any, int]:
    """What is compared, as rows: the elements, or the slices of `dim`; and their number."""
    y: Any = composed.reshape(x, (-1, 1)) if dim is None else composed.movedim(x, dim, 0)
    n = y.shape[0]
    return (y if dim is None else composed.reshape(y, (n, y.numel() // n if n else 0))), n


def _groups(rows: Any) -> tuple[Any, Any]:
    """The number of the run of equal rows that each belongs to, and where the runs start."""
    n = rows.shape[0]
    new = composed.any(composed.ne(rows[1:], rows[:-1]), 1) if n > 1 else zeros(0, dtype=dt.bool_)
    first = composed.cat([ones(min(n, 1), dtype=dt.bool_), new])
    return composed.cumsum(first, 0) - 1, composed.reshape(nonzero(first), (-1,))


def _answer(
    x: Tensor,
    dim: int | None,
    values: Any,
    inverse: Any,
    starts: Any,
    n: int,
    return_inverse: bool,
    return_counts: bool,
) -> Any:
    out = [values]
    if return_inverse:
        out.append(composed.reshape(inverse, tuple(x.shape)) if dim is None else inverse)
    if return_counts:
        ends = composed.cat([starts[1:], starts[:1] * 0 + n]) if n else starts
        out.append(ends - starts)
    return out[0] if len(out) == 1 else tuple(out)


def argwhere(input: Tensor) -> Tensor:
    """Positions of the elements that are not zero, [count, rank] i64."""
    return nonzero(input)


def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each of 0, 1, 2, ... occurs, or the sum of its weights (in float64 where they are not float32)."""
    if input.ndim != 1 or input.dtype.kind not in "iu":
        raise OpError(f"bincount wants a vector of integers, got {input.type}")
    if minlength < 0:
        raise OpError(f"bincount minlength is {minlength}, wanted 0 or more")
    if weights is not None and weights.shape != input.shape:
        raise OpError(f"bincount of {input.type} with weights {weights.type}: shapes differ")
    size = max(minlength, int(composed.amax(input)) + 1 if input._array.size else 0)
    kind = dt.int64 if weights is None else weights.dtype if weights.dtype is dt.float32 else dt.float64
    add: Any = ones(*input.shape, dtype=kind) if weights is None else cast(weights, kind)
    return composed.index_add(zeros(size, dtype=kind), 0, input, add)


def histc(input: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """How many elements fall into each of `bins` equal parts of [min, max], by default of the data's own range."""
    if not input.dtype.is_floating_point:
        raise DTypeError(f"histc of {input.type}: wanted a float type")
    if bins < 1:
        raise OpError(f"histc bins is {bins}, wanted 1 or more")
    x: Any = composed.reshape(input, (-1,)).detach()
    low, high = float(min), float(max)
    if low == high and x.numel():
        low, high = float(composed.amin(x)), float(composed.amax(x))
    if low == high:
        low, high = low - 1, high + 1
    if not low < high or high - low == float("inf"):
        raise OpError(f"histc wants a finite range, got {low} .. {high}")
    inside = (x >= low) & (x <= high)
    place = composed.where(inside, (x - low) * (bins / (high - low)), 0.0)
    at = composed.clamp(cast(composed.floor(place), dt.int64), 0, bins - 1)
    return composed.index_add(zeros(bins, dtype=input.dtype), 0, at, cast(inside, input.dtype))


def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All choices of r elements of a vector, in order, [count, r]."""
    import itertools

    if input.ndim != 1 or r < 0:
        raise OpError(f"combinations of {r} out of {input.type}: wanted a vector and r of 0 or more")
    pick = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    chosen = list(pick(range(input.shape[0]), r)) if r else []
    if not chosen:
        return composed.reshape(input[:0], (0, r) if r else (0,))  # type: ignore[index]
    from tracejit.tensor.creation import tensor

    return input[tensor(chosen)]  # type: ignore[index]
