"""Pooling: windows by `unfold`, then a reduction over them.

Max pooling finds the first maximum of each window and selects it by comparing positions, so that the gradient goes to
that element alone and no scatter is needed: `fold` of a select.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracejit.errors import OpError
from tracejit.ir import dtype as dt
from tracejit.ir.dim import product
from tracejit.ir.node import Value
from tracejit.ops.composed.axes import axis_of, one_per, rank
from tracejit.ops.composed.convolution import zero_padded
from tracejit.ops.composed.elementwise import abs, div, eq, pow, where
from tracejit.ops.composed.movement import cat, movedim, permute, reshape, slice_along, unsqueeze
from tracejit.ops.composed.reduction import max, mean
from tracejit.ops.composed.selection import table
from tracejit.ops.composed.whole import whole
from tracejit.ops.movement import Broadcast, Fold, Unfold
from tracejit.ops.reduce import ArgMax, ReduceSum
from tracejit.ops.source import Iota

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d",
    "adaptive_max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "col2im", "im2col", "lp_pool1d", "lp_pool2d",
    "lp_pool3d", "max_pool1d", "max_pool2d", "max_pool3d", "unfold",
]  # fmt: skip

Size = int | Sequence[int]


def _setup(
    name: str, space: int, x: Value, kernel: Size, stride: Size | None, padding: Size, dilation: Size, ceil_mode: bool
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Kernel, stride, padding, dilation, and how far the last window reaches past the padding behind."""
    if rank(x) not in (space + 1, space + 2):
        raise OpError(f"{name} wants an input of rank {space + 1} or {space + 2}, got {x.type}")
    k = one_per(kernel, space, "kernel_size")
    s = k if stride is None or (not isinstance(stride, int) and not len(stride)) else one_per(stride, space, "stride")
    p, d = one_per(padding, space, "padding"), one_per(dilation, space, "dilation")
    if min(*k, *s, *d) < 1:
        raise OpError(f"{name} wants positive kernel, stride and dilation, got {list(k)}, {list(s)}, {list(d)}")
    if any(a < 0 or 2 * a > b for a, b in zip(p, k, strict=True)):
        raise OpError(f"{name} padding {list(p)} must be at most half of the kernel {list(k)}")
    extra: list[int] = []
    for n, ki, si, pi, di in zip(x.type.shape[-space:], k, s, p, d, strict=True):
        room = n + 2 * pi - di * (ki - 1) - 1
        if isinstance(room, int) and room < 0 and not ceil_mode:
            raise OpError(f"{name} of {x.type}: the kernel {list(k)} is larger than the padded input")
        more = 0
        if ceil_mode:
            out = -(-room // si) + 1
            if (out - 1) * si >= n + pi:  # a window must begin inside the input or the padding in front
                out -= 1
            more = builtins.max((out - 1) * si + di * (ki - 1) + 1 - n - 2 * pi, 0)
        extra.append(more)
    return k, s, p, d, tuple(extra)


def _lowest(x: Value) -> float | int | bool:
    kind = x.type.dtype
    if kind.is_floating_point:
        return float("-inf")
    return False if kind is dt.bool_ else int(np.iinfo(kind.numpy).min)


def _max_pool(
    space: int,
    x: Value,
    kernel: Size,
    stride: Size | None,
    padding: Size,
    dilation: Size,
    ceil_mode: bool,
    return_indices: bool,
) -> Any:
    k, s, p, d, extra = _setup(f"max_pool{space}d", space, x, kernel, stride, padding, dilation, ceil_mode)
    padded = zero_padded(x, p, [a + b for a, b in zip(p, extra, strict=True)], fill=_lowest(x))
    grid = Unfold(k, s, d)(padded)
    flat = reshape(grid, (*grid.type.shape[:-space], product(k)))
    last = rank(flat) - 1
    at = ArgMax(last)(flat)
    number = flat.emit(Iota(flat.type.shape, last, dt.int64), ())
    chosen = eq(number, Broadcast(flat.type.shape, tuple(range(last)))(at))
    values = ReduceSum((last,))(where(chosen, flat, 0))
    return (values, _input_positions(at, x.type.shape[-space:], k, s, p, d)) if return_indices else values


def _input_positions(at: Any, extents: Sequence[int], k: Any, s: Any, p: Any, d: Any) -> Any:
    """The number in the unpadded, flattened spatial axes of the window's element `at`."""
    space = len(extents)
    total: Any = None
    for i in range(space):
        inside = at // int(np.prod(k[i + 1 :], dtype=np.int64)) % k[i]
        out = at.emit(Iota(at.type.shape, rank(at) - space + i, dt.int64), ())
        place = (out * s[i] + inside * d[i] - p[i]) * int(np.prod(extents[i + 1 :], dtype=np.int64))
        total = place if total is None else total + place
    return total


@whole
def max_pool1d(
    input: Value,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    dilation: Size = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest of each window of the last axis, and where it stands if asked; the gradient goes to the first one."""
    return _max_pool(1, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


@whole
def max_pool2d(
    input: Value,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    dilation: Size = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """max_pool1d over the last two axes."""
    return _max_pool(2, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


@whole
def max_pool3d(
    input: Value,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    dilation: Size = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """max_pool1d over the last three axes."""
    return _max_pool(3, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def _avg_pool(
    space: int,
    x: Value,
    kernel: Size,
    stride: Size | None,
    padding: Size,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None = None,
) -> Any:
    k, s, p, _, extra = _setup(f"avg_pool{space}d", space, x, kernel, stride, padding, 1, ceil_mode)
    if divisor == 0:
        raise OpError(f"avg_pool{space}d divisor_override is 0")
    padded = zero_padded(x, p, [a + b for a, b in zip(p, extra, strict=True)])
    grid = Unfold(k, s, (1,) * space)(padded)
    total = ReduceSum(tuple(range(rank(grid) - space, rank(grid))))(grid)
    whole = None if x.type.dtype.is_floating_point else "trunc"
    if divisor:
        return div(total, divisor, rounding_mode=whole)
    if not any(extra) and (count_include_pad or not any(p)):
        return div(total, int(np.prod(k)), rounding_mode=whole)
    return div(total, table(x, _window_sizes(x, k, s, p, extra, count_include_pad)), rounding_mode=whole)


def _window_sizes(x: Value, k: Any, s: Any, p: Any, extra: Any, count_include_pad: bool) -> Any:
    """How many positions of each window count: those in the input, and in the padding if asked."""
    sizes: Any = np.ones((), x.type.dtype.numpy)
    for n, ki, si, pi, more in zip(x.type.shape[-len(k) :], k, s, p, extra, strict=True):
        start = np.arange(0, n + 2 * pi + more - ki + 1, si) - pi
        low, high = (-pi, n + pi) if count_include_pad else (0, n)
        sizes = np.multiply.outer(sizes, np.minimum(start + ki, high) - np.maximum(start, low))
    return sizes.astype(x.type.dtype.numpy)


@whole
def avg_pool1d(
    input: Value,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Any:
    """The mean of each window of the last axis."""
    return _avg_pool(1, input, kernel_size, stride, padding, ceil_mode, count_include_pad)


@whole
def avg_pool2d(
    input: Value,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """The mean of each window of the last two axes."""
    return _avg_pool(2, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


@whole
def avg_pool3d(
    input: Value,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """The mean of each window of the last three axes."""
    return _avg_pool(3, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


def _lp_pool(space: int, x: Value, norm_type: float, kernel: Size, stride: Size | None, ceil_mode: bool) -> Any:
    k, s, p, d, extra = _setup(f"lp_pool{space}d", space, x, kernel, stride, 0, 1, ceil_mode)
    if math.isinf(norm_type):
        return _max_pool(space, abs(x), k, s, 0, 1, ceil_mode, False)
    if any(extra):  # PyTorch scales the mean by the whole kernel, also where the window reaches past the end
        return (_avg_pool(space, pow(x, norm_type), k, s, 0, ceil_mode, True) * product(k)) ** (1 / norm_type)
    grid = Unfold(k, s, d)(zero_padded(pow(x, norm_type), p, extra))
    total = ReduceSum(tuple(range(rank(grid) - space, rank(grid))))(grid)
    return pow(total, 1 / norm_type)  # NaN for a negative sum of odd powers, as in PyTorch


def lp_pool1d(
    input: Value, norm_type: float, kernel_size: Size, stride: Size | None = None, ceil_mode: bool = False
) -> Any:
    """The norm of each window of the last axis."""
    return _lp_pool(1, input, norm_type, kernel_size, stride, ceil_mode)


def lp_pool2d(
    input: Value, norm_type: float, kernel_size: Size, stride: Size | None = None, ceil_mode: bool = False
) -> Any:
    """The norm of each window of the last two axes."""
    return _lp_pool(2, input, norm_type, kernel_size, stride, ceil_mode)


def lp_pool3d(
    input: Value, norm_type: float, kernel_size: Size, stride: Size | None = None, ceil_mode: bool = False
) -> Any:
    """The norm of each window of the last three axes."""
    return _lp_pool(3, input, norm_type, kernel_size, stride, ceil_mode)


# --- adaptive ------------------------------------------------------------------------------------------------------


def _sizes(space: int, x: Value, output_size: int | Sequence[int | None]) -> tuple[int, ...]:
    want = (output_size,) * space if isinstance(output_size, int) else tuple(output_size)
    if len(want) != space or rank(x) not in (space + 1, space + 2):
        raise OpError(
            f"adaptive pooling of {x.type} to {list(want)}: wanted {space} sizes and rank {space + 1} or {space + 2}"
        )
    return tuple(n if w is None else w for n, w in zip(x.type.shape[-space:], want, strict=True))


def adaptive_avg_pool(input: Value, output_size: Sequence[int]) -> Any:
    """Means over output_size[i] nearly equal windows of each of the last axes."""
    x: Any = input
    for i, m in enumerate(output_size):
        axis = rank(x) - len(output_size) + i
        n = x.type.shape[axis]
        if m == n:
            continue
        if m == 1:
            x = mean(x, axis, keepdim=True)
        elif m and n % m == 0:
            x = mean(reshape(x, (*x.type.shape[:axis], m, n // m, *x.type.shape[axis + 1 :])), axis + 1)
        else:
            x = (
                cat([mean(slice_along(x, axis, a, b), axis, keepdim=True) for a, b in _bounds(n, m)], axis)
                if m
                else slice_along(x, axis, 0, 0)
            )
    return x


def _bounds(n: int, m: int) -> list[tuple[int, int]]:
    return [(i * n // m, -(-(i + 1) * n // m)) for i in range(m)]


def adaptive_avg_pool1d(input: Value, output_size: int | Sequence[int | None]) -> Any:
    """Means over that many nearly equal windows of the last axis."""
    return adaptive_avg_pool(input, _sizes(1, input, output_size))


def adaptive_avg_pool2d(input: Value, output_size: int | Sequence[int | None]) -> Any:
    """Means over a grid of nearly equal windows of the last two axes; None keeps an extent."""
    return adaptive_avg_pool(input, _sizes(2, input, output_size))


def adaptive_avg_pool3d(input: Value, output_size: int | Sequence[int | None]) -> Any:
    """Means over a grid of nearly equal windows of the last three axes; None keeps an extent."""
    return adaptive_avg_pool(input, _sizes(3, input, output_size))


def _adaptive_max(space: int, x: Value, output_size: int | Sequence[int | None], return_indices: bool) -> Any:
    want = _sizes(space, x, output_size)
    have = x.type.shape[-space:]
    if all(m and n % m == 0 for n, m in zip(have, want, strict=True)):
        kernel = [n // m for n, m in zip(have, want, strict=True)]
        return _max_pool(space, x, kernel, kernel, 0, 1, False, return_indices)
    if return_indices:
        raise OpError(f"adaptive_max_pool of {list(have)} to {list(want)} gives no indices: the windows are uneven")
    y: Any = x
    for i, (n, m) in enumerate(zip(have, want, strict=True)):
        axis = rank(x) - space + i
        y = cat([_first_max(slice_along(y, axis, a, b), axis) for a, b in _bounds(n, m)], axis)
    return y


def _first_max(x: Any, axis: int) -> Any:
    return max(x, axis, keepdim=True).values


def adaptive_max_pool1d(input: Value, output_size: int | Sequence[int | None], return_indices: bool = False) -> Any:
    """The largest of that many nearly equal windows of the last axis."""
    return _adaptive_max(1, input, output_size, return_indices)


def adaptive_max_pool2d(input: Value, output_size: int | Sequence[int | None], return_indices: bool = False) -> Any:
    """The largest of a grid of nearly equal windows of the last two axes."""
    return _adaptive_max(2, input, output_size, return_indices)


def adaptive_max_pool3d(input: Value, output_size: int | Sequence[int | None], return_indices: bool = False) -> Any:
    """The largest of a grid of nearly equal windows of the last three axes."""
    return _adaptive_max(3, input, output_size, return_indices)


# --- windows themselves --------------------------------------------------------------------------------------------


def unfold(x: Value, dimension: int, size: int, step: int) -> Any:
    """All windows of `size` every `step` along one dim, as a new last axis."""
    axis = axis_of(dimension, rank(x))
    n = x.type.shape[axis] if rank(x) else 1
    if size > n or size < 0 or step < 1:
        raise OpError(
            f"unfold of {x.type} at dim {dimension}: size {size} must be at most {n} and step {step} positive"
        )
    if not rank(x):
        return reshape(x, (1,)) if size else slice_along(reshape(x, (1,)), 0, 0, 0)
    grid = Unfold((size,), (step,), (1,))(movedim(x, axis, -1))
    return movedim(grid, rank(grid) - 2, axis)


def im2col(input: Value, kernel_size: Size, dilation: Size = 1, padding: Size = 0, stride: Size = 1) -> Any:
    """[n, c, h, w] as [n, c * kernel, windows]: every window a column."""
    x: Any = input if rank(input) == 4 else unsqueeze(input, 0)
    k, s = one_per(kernel_size, 2, "kernel_size"), one_per(stride, 2, "stride")
    p, d = one_per(padding, 2, "padding"), one_per(dilation, 2, "dilation")
    grid = Unfold(k, s, d)(zero_padded(x, p, p))
    n, c, oh, ow, kh, kw = grid.type.shape
    out = reshape(permute(grid, (0, 1, 4, 5, 2, 3)), (n, c * kh * kw, oh * ow))
    return out if rank(input) == 4 else reshape(out, out.type.shape[1:])


def col2im(
    input: Value, output_size: Size, kernel_size: Size, dilation: Size = 1, padding: Size = 0, stride: Size = 1
) -> Any:
    """The adjoint of im2col: overlapping windows are added."""
    x: Any = input if rank(input) == 3 else unsqueeze(input, 0)
    (h, w), (kh, kw) = one_per(output_size, 2, "output_size"), one_per(kernel_size, 2, "kernel_size")
    s, p, d = one_per(stride, 2, "stride"), one_per(padding, 2, "padding"), one_per(dilation, 2, "dilation")
    n, columns, count = x.type.shape
    oh, ow = (
        (e + 2 * pi - di * (ki - 1) - 1) // si + 1 for e, pi, di, ki, si in zip((h, w), p, d, (kh, kw), s, strict=True)
    )
    if columns % (kh * kw) or count != oh * ow:
        raise OpError(f"fold of {input.type}: wanted {kh * kw} * channels rows and {oh * ow} windows")
    grid = permute(reshape(x, (n, columns // (kh * kw), kh, kw, oh, ow)), (0, 1, 4, 5, 2, 3))
    out = zero_padded(Fold((h + 2 * p[0], w + 2 * p[1]), s, d)(grid), [-a for a in p], [-a for a in p])
    return out if rank(input) == 3 else reshape(out, out.type.shape[1:])
