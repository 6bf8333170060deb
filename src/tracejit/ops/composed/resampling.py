"""Interpolation: along each axis in turn, a weighted sum of takes.

Positions and weights ("taps") follow from the sizes alone, so they are constants; a mode is a kernel function and its
reach.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracejit.errors import DTypeError, OpError
from tracejit.ir.node import Value, expand_to
from tracejit.ir.op import Array
from tracejit.ops.composed.axes import rank
from tracejit.ops.composed.movement import reshape
from tracejit.ops.composed.pooling import adaptive_avg_pool
from tracejit.ops.composed.selection import repeat_interleave, table
from tracejit.ops.indexing import Take
from tracejit.records import dataclass

__all__ = ["interpolate"]


@dataclass(frozen=True)
class Kernel:
    """The weight of a neighbour at a distance, zero from `reach` on."""

    weight: Callable[[Array], Array]
    reach: int


def _cubic(a: float) -> Kernel:
    """Keys' cubic convolution kernel (1981) with parameter a."""

    def weight(d: Array) -> Array:
        d = np.abs(d)
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return np.where(d <= 1, near, np.where(d < 2, far, 0))

    return Kernel(weight, 2)


_TRIANGLE = Kernel(lambda d: np.maximum(1 - np.abs(d), 0), 1)
# mode -> spatial axes, kernel, and the kernel with antialias: PyTorch's parameters differ between the two
_MODES = {
    "linear": (1, _TRIANGLE, _TRIANGLE),
    "bilinear": (2, _TRIANGLE, _TRIANGLE),
    "trilinear": (3, _TRIANGLE, _TRIANGLE),
    "bicubic": (2, _cubic(-0.75), _cubic(-0.5)),
}


def interpolate(
    input: Value,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Any:
    """The spatial axes (from the third on) resampled to `size` or by `scale_factor`, in PyTorch's modes."""
    space = rank(input) - 2
    have = input.type.shape[2:]
    if space < 1:
        raise OpError(f"interpolate wants [batch, channels, ...], got {input.type}")
    if (size is None) == (scale_factor is None):
        raise OpError("interpolate wants either size or scale_factor")
    scales: list[float | None] = [None] * space
    if size is not None:
        out = (size,) * space if isinstance(size, int) else tuple(size)
    else:
        assert scale_factor is not None
        factors = (
            [float(scale_factor)] * space if isinstance(scale_factor, (int, float)) else [*map(float, scale_factor)]
        )
        out = tuple(math.floor(d * f) for d, f in zip(have, factors, strict=False))
        scales = [None] * space if recompute_scale_factor else [1 / f for f in factors]
    if len(out) != space or len(scales) != space:
        raise OpError(f"interpolate of {input.type} wants {space} sizes or factors, got {len(out)}")
    if mode in ("nearest", "nearest-exact", "area"):
        if align_corners is not None:
            raise OpError(f"interpolate mode {mode!r} has no align_corners")
        if mode == "area":
            return adaptive_avg_pool(input, out)
    elif mode not in _MODES:
        raise OpError(f"interpolate mode is {mode!r}, wanted nearest, nearest-exact, area, {', '.join(_MODES)}")
    elif _MODES[mode][0] != space:
        raise OpError(f"interpolate mode {mode!r} wants {_MODES[mode][0]} spatial axes, got {input.type}")
    elif not input.type.dtype.is_floating_point:
        raise DTypeError(f"interpolate of {input.type} in mode {mode!r}: wanted a float type")
    if antialias and mode not in ("bilinear", "bicubic"):
        raise OpError(f"interpolate has antialias for bilinear and bicubic, not for {mode!r}")
    x: Any = input
    for i, (n, m, scale) in enumerate(zip(have, out, scales, strict=True)):
        if m < 1 or n < 1:
            raise OpError(f"interpolate of {input.type} to {list(out)}: wanted sizes above 0")
        step = n / m if scale is None else scale
        if mode not in _MODES:
            x = _nearest(x, i + 2, n, m, step, mode)
            continue
        if align_corners:
            step = (n - 1) / (m - 1) if m > 1 else 0.0
        if m == n and step == 1:
            continue
        _, kernel, smooth = _MODES[mode]
        x = _weighted(
            x, i + 2, *(_wide_taps(n, m, step, smooth) if antialias else _taps(n, m, step, kernel, bool(align_corners)))
        )
    return x


def _nearest(x: Any, axis: int, n: int, m: int, step: float, mode: str) -> Any:
    if m == n and step == 1:
        return x
    if m % n == 0 and step == n / m:
        return repeat_interleave(x, m // n, axis)  # whole factors need no table
    shift = 0.5 if mode == "nearest-exact" else 0.0
    at = np.floor((np.arange(m, dtype=np.float32) + np.float32(shift)) * np.float32(step)).astype(np.int64)
    return Take(axis)(x, table(x, np.minimum(at, n - 1)))


def _taps(n: int, m: int, step: float, kernel: Kernel, align_corners: bool) -> tuple[Array, Array]:
    """For each output (columns), the positions it reads and their weights; beyond the edge the edge is repeated."""
    i = np.arange(m, dtype=np.float64)
    place = i * step if align_corners else (i + 0.5) * step - 0.5
    if kernel.reach == 1:
        place = np.maximum(place, 0)
    low = np.floor(place)
    at = low + np.arange(1 - kernel.reach, 1 + kernel.reach)[:, None]
    return np.clip(at, 0, n - 1).astype(np.int64), kernel.weight(at - place)


def _wide_taps(n: int, m: int, step: float, kernel: Kernel) -> tuple[Array, Array]:
    """As `_taps`, with the kernel widened to the step where that is more than 1: a low-pass filter."""
    stretch = max(step, 1.0)
    center = (np.arange(m) + 0.5) * step
    first = np.maximum((center - kernel.reach * stretch + 0.5).astype(np.int64), 0)
    last = np.minimum((center + kernel.reach * stretch + 0.5).astype(np.int64), n)
    at = first + np.arange(int((last - first).max()))[:, None]
    weight = np.where(at < last, kernel.weight((at - center + 0.5) / stretch), 0)
    return np.minimum(at, n - 1), weight / weight.sum(0)


def _weighted(x: Any, axis: int, at: Array, weight: Array) -> Any:
    """The sum over the taps of x at their positions along `axis`, times their weights."""
    column = (at.shape[1], *(1,) * (rank(x) - axis - 1))
    shape = (*x.type.shape[:axis], at.shape[1], *x.type.shape[axis + 1 :])
    total: Any = None
    for places, weights in zip(at, weight.astype(x.type.dtype.numpy), strict=True):
        term = Take(axis)(x, table(x, places)) * expand_to(reshape(table(x, weights), column), shape)
        total = term if total is None else total + term
    return total
