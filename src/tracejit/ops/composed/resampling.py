"""Interpolation: along each axis in turn, a weighted sum of takes at positions known from the sizes alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracejit.errors import OpError
from tracejit.ir.node import Value, expand_to
from tracejit.ops.composed.axes import one_per, rank
from tracejit.ops.composed.movement import reshape
from tracejit.ops.composed.pooling import adaptive_avg_pool
from tracejit.ops.composed.selection import repeat_interleave, table
from tracejit.ops.indexing import Take

__all__ = ["interpolate"]

_LINEAR = {"linear": 1, "bilinear": 2, "trilinear": 3}


def interpolate(
    input: Value,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
) -> Any:
    """The spatial axes (from the third on) resampled to `size` or by `scale_factor`; modes as in PyTorch without "bicubic"."""
    space = rank(input) - 2
    have = input.type.shape[2:]
    if (size is None) == (scale_factor is None):
        raise OpError("interpolate wants either size or scale_factor")
    scales: list[float | None] = [None] * space
    if size is not None:
        out = one_per(size, space, "size")
    else:
        assert scale_factor is not None
        factors = (
            [float(scale_factor)] * space
            if isinstance(scale_factor, (int, float))
            else [float(f) for f in scale_factor]
        )
        out = tuple(math.floor(d * f) for d, f in zip(have, factors, strict=True))
        scales = [None] * space if recompute_scale_factor else [1 / f for f in factors]
    if mode == "area":
        return adaptive_avg_pool(input, out)
    if mode in _LINEAR and _LINEAR[mode] != space:
        raise OpError(f"interpolate mode {mode!r} wants {_LINEAR[mode]} spatial axes, got {input.type}")
    if mode not in ("nearest", "nearest-exact", *_LINEAR):
        raise OpError(
            f"interpolate mode is {mode!r}, wanted nearest, nearest-exact, linear, bilinear, trilinear or area"
        )
    x: Any = input
    for i, (n, m, scale) in enumerate(zip(have, out, scales, strict=True)):
        step = n / m if scale is None else scale
        x = (
            _nearest(x, i + 2, n, m, step, mode)
            if "nearest" in mode
            else _linear(x, i + 2, n, m, step, bool(align_corners))
        )
    return x


def _nearest(x: Any, axis: int, n: int, m: int, step: float, mode: str) -> Any:
    if m == n:
        return x
    if m % n == 0 and step == n / m:
        return repeat_interleave(x, m // n, axis)  # whole factors need no table
    shift = 0.5 if mode == "nearest-exact" else 0.0
    at = np.floor((np.arange(m, dtype=np.float32) + np.float32(shift)) * np.float32(step)).astype(np.int64)
    return Take(axis)(x, table(x, np.minimum(at, n - 1)))


def _linear(x: Any, axis: int, n: int, m: int, step: float, align_corners: bool) -> Any:
    if m == n and (align_corners or step == 1):
        return x
    i = np.arange(m, dtype=np.float64)
    where = i * ((n - 1) / (m - 1) if m > 1 else 0.0) if align_corners else np.maximum((i + 0.5) * step - 0.5, 0)
    low = np.minimum(np.floor(where).astype(np.int64), n - 1)
    high = np.minimum(low + 1, n - 1)
    column = (m, *(1,) * (rank(x) - axis - 1))
    weight = expand_to(
        reshape(table(x, (where - low).astype(x.type.dtype.numpy)), column),
        (*x.type.shape[:axis], m, *x.type.shape[axis + 1 :]),
    )
    a, b = Take(axis)(x, table(x, low)), Take(axis)(x, table(x, high))
    return a * (1 - weight) + b * weight
