"""Normalisations: subtract a mean, divide by a deviation, scale and shift. Half types are computed in float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes

from tracejit.errors import OpError
from tracejit.ir import dtype as dt
from tracejit.ir.dim import product, same
from tracejit.ir.node import Value, cast, expand_to
from tracejit.ops.composed.axes import rank, spread
from tracejit.ops.composed.elementwise import rsqrt
from tracejit.ops.composed.movement import reshape
from tracejit.ops.reduce import ReduceSum

__all__ = ["group_norm", "layer_norm", "local_response_norm", "rms_norm"]


def _wide(x: Value) -> Any:
    return cast(x, dt.float32) if x.type.dtype in (dt.float16, dt.bfloat16) else x


def moments(x: Value, axes: Sequence[int]) -> tuple[Any, Any, Any]:
    """Mean and biased variance over `axes` (dropped), and x - mean, by two passes."""
    axes = tuple(axes)
    n = product(tuple(x.type.shape[i] for i in axes))
    mean = ReduceSum(axes)(x) / n
    away = x - spread(mean, x, axes)
    return mean, ReduceSum(axes)(away * away) / n, away


def _scaled(y: Any, weight: Value | None, bias: Value | None) -> Any:
    if weight is not None:
        y = y * weight
    return y if bias is None else y + bias


def _inner_axes(name: str, x: Value, normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    tail = x.type.shape[rank(x) - len(shape) :]
    if not shape or len(shape) > rank(x) or not all(map(same, tail, shape)):
        raise OpError(f"{name} of {x.type} over {list(shape)}: the last extents must be {list(shape)}")
    return tuple(range(rank(x) - len(shape), rank(x)))


def layer_norm(
    input: Value,
    normalized_shape: int | Sequence[int],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
) -> Any:
    """(x - mean) / sqrt(var + eps) * weight + bias over the last axes, which have `normalized_shape`."""
    axes = _inner_axes("layer_norm", input, normalized_shape)
    x = _wide(input)
    _, var, away = moments(x, axes)
    return cast(_scaled(away * spread(rsqrt(var + eps), x, axes), weight, bias), input.type.dtype)


def rms_norm(
    input: Value, normalized_shape: int | Sequence[int], weight: Value | None = None, eps: float | None = None
) -> Any:
    """x / sqrt(mean x^2 + eps) * weight over the last axes; eps is the type's epsilon unless given."""
    axes = _inner_axes("rms_norm", input, normalized_shape)
    if eps is None:
        eps = float(ml_dtypes.finfo(input.type.dtype.numpy).eps)
    x = _wide(input)
    n = product(tuple(x.type.shape[i] for i in axes))
    scale = rsqrt(ReduceSum(axes)(x * x) / n + eps)
    return cast(_scaled(x * spread(scale, x, axes), weight, None), input.type.dtype)


def group_norm(
    input: Value, num_groups: int, weight: Value | None = None, bias: Value | None = None, eps: float = 1e-5
) -> Any:
    """Normalisation over groups of channels (axis 1) and all spatial axes, for each sample."""
    if rank(input) < 2:
        raise OpError(f"group_norm wants [batch, channels, ...], got {input.type}")
    n, c, *space = input.type.shape
    if num_groups < 1 or c % num_groups:
        raise OpError(f"group_norm of {input.type}: {c} channels do not divide into {num_groups} groups")
    x = reshape(_wide(input), (n, num_groups, c // num_groups, *space))
    axes = tuple(range(2, rank(x)))
    _, var, away = moments(x, axes)
    y = reshape(away * spread(rsqrt(var + eps), x, axes), input.type.shape)
    return cast(scale_channels(y, weight, bias), input.type.dtype)


def _per_channel(v: Value | None, x: Any) -> Any:
    """A vector over channels, spread to x's shape (channels on axis 1)."""
    return None if v is None else expand_to(reshape(v, (-1, *(1,) * (rank(x) - 2))), x.type.shape)


def batch_moments(x: Value) -> tuple[Any, Any, Any]:
    """Mean, biased variance and count of each channel (axis 1) over all other axes, in float32 for half types."""
    axes = (0, *range(2, rank(x)))
    mean, var, _ = moments(_wide(x), axes)
    return mean, var, product(tuple(x.type.shape[i] for i in axes))


def normalize_channels(x: Value, mean: Any, var: Any, weight: Value | None, bias: Value | None, eps: float) -> Any:
    """(x - mean) / sqrt(var + eps) * weight + bias, all given for each channel (axis 1)."""
    wide = _wide(x)
    y = (wide - _per_channel(mean, wide)) * _per_channel(rsqrt(var + eps), wide)
    return cast(scale_channels(y, weight, bias), x.type.dtype)


def scale_channels(y: Value, weight: Value | None, bias: Value | None) -> Any:
    """y * weight + bias, both given for each channel (axis 1)."""
    return _scaled(y, _per_channel(weight, y), _per_channel(bias, y))


def local_response_norm(input: Value, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Any:
    """x / (k + alpha * mean of x^2 over `size` neighbouring channels) ** beta."""
    from tracejit.ops.composed.convolution import zero_padded
    from tracejit.ops.composed.movement import slice_along

    low, high = size // 2, (size - 1) // 2
    lead = (0,) * (rank(input) - 2)
    squares = zero_padded(input * input, (low, *lead), (high, *lead))
    c = input.type.shape[1]
    total: Any = slice_along(squares, 1, 0, c)
    for i in range(1, size):
        total = total + slice_along(squares, 1, i, i + c)
    return input / (total * (alpha / size) + k) ** beta
