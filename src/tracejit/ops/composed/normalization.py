"""Normalisations: subtract a mean, divide by a deviation, scale and shift. Half types are computed in float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracejit.errors import DTypeError, OpError
from tracejit.ir import dtype as dt
from tracejit.ir.dim import product, same
from tracejit.ir.node import Value, cast
from tracejit.ops.composed.axes import rank, spread
from tracejit.ops.composed.elementwise import rsqrt
from tracejit.ops.composed.movement import reshape
from tracejit.ops.composed.whole import whole
from tracejit.ops.control import StopGradient
from tracejit.ops.movement import Broadcast
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


def _scaled(name: str, x: Value, y: Any, weight: Value | None, bias: Value | None, axes: Sequence[int]) -> Any:
    """y * weight + bias, both over `axes` of x."""
    weight, bias = (v if v is None else _over(name, x, v, axes) for v in (weight, bias))
    if weight is not None:
        y = y * weight
    return y if bias is None else y + bias


def _over(name: str, x: Value, v: Value, axes: Sequence[int]) -> Any:
    """v, one number for each position of `axes`, spread to x's shape. Raises where it has another shape or dtype."""
    want = tuple(x.type.shape[i] for i in axes)
    if len(v.type.shape) != len(want) or not all(map(same, v.type.shape, want)):
        raise OpError(f"{name} of {x.type} with {v.type}: wanted {list(want)}")
    return Broadcast(x.type.shape, tuple(axes))(v) if len(want) < rank(x) else v


def _same_float(name: str, x: Value, *others: Value | None) -> None:
    """Raise unless x is of a float type, and the others of the same one, or float32 beside a half type."""
    if not x.type.dtype.is_floating_point:
        raise DTypeError(f"{name} of {x.type}: wanted a float type")
    for v in others:
        if v is not None and v.type.dtype not in (x.type.dtype, _wide(x).type.dtype):
            raise DTypeError(f"{name} of {x.type} with {v.type}: the dtypes differ, cast one side")


def _inner_axes(name: str, x: Value, normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    tail = x.type.shape[rank(x) - len(shape) :]
    if not shape or len(shape) > rank(x) or not all(map(same, tail, shape)):
        raise OpError(f"{name} of {x.type} over {list(shape)}: the last extents must be {list(shape)}")
    return tuple(range(rank(x) - len(shape), rank(x)))


@whole
def layer_norm(
    input: Value,
    normalized_shape: int | Sequence[int],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
) -> Any:
    """(x - mean) / sqrt(var + eps) * weight + bias over the last axes, which have `normalized_shape`."""
    axes = _inner_axes("layer_norm", input, normalized_shape)
    _same_float("layer_norm", input, weight, bias)
    x = _wide(input)
    _, var, away = moments(x, axes)
    y = away * spread(rsqrt(var + eps), x, axes)
    return cast(_scaled("layer_norm", input, y, weight, bias, axes), input.type.dtype)


@whole
def rms_norm(
    input: Value, normalized_shape: int | Sequence[int], weight: Value | None = None, eps: float | None = None
) -> Any:
    """x / sqrt(mean x^2 + eps) * weight over the last axes; eps is the type's epsilon unless given."""
    axes = _inner_axes("rms_norm", input, normalized_shape)
    _same_float("rms_norm", input)
    if eps is None:
        eps = float(input.type.dtype.finfo.eps)
    x = _wide(input)
    n = product(tuple(x.type.shape[i] for i in axes))
    scale = rsqrt(ReduceSum(axes)(x * x) / n + eps)
    return cast(_scaled("rms_norm", input, x * spread(scale, x, axes), weight, None, axes), input.type.dtype)


@whole
def group_norm(
    input: Value, num_groups: int, weight: Value | None = None, bias: Value | None = None, eps: float = 1e-5
) -> Any:
    """Normalisation over groups of channels (axis 1) and all spatial axes, for each sample."""
    if rank(input) < 2:
        raise OpError(f"group_norm wants [batch, channels, ...], got {input.type}")
    n, c, *space = input.type.shape
    if num_groups < 1 or c % num_groups:
        raise OpError(f"group_norm of {input.type}: {c} channels do not divide into {num_groups} groups")
    _same_float("group_norm", input, weight, bias)
    x = reshape(_wide(input), (n, num_groups, c // num_groups, *space))
    axes = tuple(range(2, rank(x)))
    _, var, away = moments(x, axes)
    y = reshape(away * spread(rsqrt(var + eps), x, axes), input.type.shape)
    return cast(_scaled("group_norm", input, y, weight, bias, (1,)), input.type.dtype)


def check_channels(name: str, x: Value, *vectors: Value) -> None:
    """Raise unless each vector has one entry for each channel (axis 1) of x, and its dtype."""
    _same_float(name, x, *vectors)
    for v in vectors:
        if rank(v) != 1 or not same(v.type.shape[0], x.type.shape[1]):
            raise OpError(f"{name} of {x.type} with {v.type}: wanted {[x.type.shape[1]]}")


def batch_moments(x: Value) -> tuple[Any, Any, Any]:
    """Mean, biased variance and count of each channel (axis 1) over all other axes, in float32 for half types."""
    axes = (0, *range(2, rank(x)))
    mean, var, _ = moments(_wide(x), axes)
    return mean, var, product(tuple(x.type.shape[i] for i in axes))


@whole
def batch_normalized(x: Value, weight: Value | None, bias: Value | None, eps: float) -> tuple[Any, Any, Any]:
    """x normalised by mean and variance of each channel (axis 1), and these two."""
    mean, var, _ = batch_moments(x)
    return normalize_channels(x, mean, var, weight, bias, eps), mean, var


@whole
def moved(running: Value, new: Value, momentum: Any, factor: float = 1) -> Any:
    """A running statistic after one more batch, in which it was `new` times `factor`."""
    found: Any = StopGradient()(new)
    found = found if factor == 1 else found * factor
    return cast(running * (1 - momentum) + found * momentum, running.type.dtype)


@whole
def normalize_channels(x: Value, mean: Any, var: Any, weight: Value | None, bias: Value | None, eps: float) -> Any:
    """(x - mean) / sqrt(var + eps) * weight + bias, all given for each channel (axis 1)."""
    wide, name = _wide(x), "batch_norm"
    _same_float(name, x, mean, var, weight, bias)
    weight, bias = (v if v is None else reshape(v, (-1,)) for v in (weight, bias))
    y = (wide - _over(name, x, mean, (1,))) * _over(name, x, rsqrt(var + eps), (1,))
    return cast(_scaled(name, x, y, weight, bias, (1,)), x.type.dtype)


def scale_channels(y: Value, weight: Value | None, bias: Value | None) -> Any:
    """y * weight + bias, both given for each channel (axis 1)."""
    return _scaled("instance_norm", y, y, weight, bias, (1,))


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
