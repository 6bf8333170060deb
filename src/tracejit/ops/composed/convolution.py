"""Convolutions as PyTorch names them: pad, reshape into groups, and the one primitive `conv`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracejit.errors import OpError
from tracejit.ir.dim import same
from tracejit.ir.node import Value, constant, expand_to
from tracejit.ops.composed.axes import one_per, rank, same_dtype
from tracejit.ops.composed.movement import reshape
from tracejit.ops.composed.whole import whole
from tracejit.ops.conv import Conv
from tracejit.ops.movement import Flip, Pad, Transpose

__all__ = ["conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"]

Size = int | Sequence[int]


def zero_padded(
    x: Value, low: Sequence[int], high: Sequence[int], interior: Sequence[int] | None = None, fill: float = 0
) -> Any:
    """x with its last axes padded; negative widths cut."""
    lead = (0,) * (rank(x) - len(low))
    gaps = tuple(interior) if interior else (0,) * len(low)
    if not any(low) and not any(high) and not any(gaps):
        return x
    return Pad((*lead, *low), (*lead, *high), (*lead, *gaps))(x, constant(x, fill, x.type.dtype))


def _batched(name: str, x: Value, space: int) -> tuple[Any, bool]:
    if rank(x) == space + 1:
        return reshape(x, (1, *x.type.shape)), True
    if rank(x) != space + 2:
        raise OpError(f"{name} wants an input of rank {space + 1} or {space + 2}, got {x.type}")
    return x, False


def _biased(out: Any, bias: Value | None, single: bool) -> Any:
    if bias is not None:
        channels = out.type.shape[1]
        if rank(bias) != 1 or not same(bias.type.shape[0], channels):
            raise OpError(f"bias {bias.type} does not fit {channels} output channels")
        out = out + expand_to(reshape(bias, (channels, *(1,) * (rank(out) - 2))), out.type.shape)
    return reshape(out, out.type.shape[1:]) if single else out


def _conv(
    space: int,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Size,
    padding: Size | str,
    dilation: Size,
    groups: int,
) -> Any:
    name = f"conv{space}d"
    same_dtype(name, x, weight, *([] if bias is None else [bias]))
    x, single = _batched(name, x, space)
    if rank(weight) != space + 2:
        raise OpError(f"{name} wants a weight of rank {space + 2}, got {weight.type}")
    strides, dilations = one_per(stride, space, "stride"), one_per(dilation, space, "dilation")
    if groups < 1 or min(strides) < 1 or min(dilations) < 1:
        raise OpError(
            f"{name} wants positive groups, stride and dilation, got {groups}, {list(strides)}, {list(dilations)}"
        )
    kernel = weight.type.shape[2:]
    n, c, *extents = x.type.shape
    o, per_group, *_ = weight.type.shape
    if c != per_group * groups or o % groups:
        raise OpError(
            f"{name} of {x.type} with weight {weight.type} and groups={groups}: "
            f"channels {c} are not {per_group} * {groups}, "
            f"or {o} outputs do not divide into the groups"
        )
    low, high = _padding(name, padding, kernel, dilations, strides)
    for d, k, a, b, e in zip(extents, kernel, low, high, dilations, strict=True):
        if isinstance(d, int) and d + a + b < e * (k - 1) + 1:
            raise OpError(f"{name} of {x.type} with weight {weight.type}: the kernel is larger than the padded input")
    x = zero_padded(x, low, high)
    grouped = reshape(x, (n, groups, c // groups, *x.type.shape[2:]))
    out = Conv(strides, dilations)(grouped, reshape(weight, (groups, o // groups, *weight.type.shape[1:])))
    return _biased(reshape(out, (n, o, *out.type.shape[3:])), bias, single)


def _padding(
    name: str, padding: Size | str, kernel: Sequence[int], dilation: Sequence[int], stride: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Widths before and behind each spatial axis."""
    if padding == "valid":
        return (0,) * len(kernel), (0,) * len(kernel)
    if padding == "same":
        if any(s != 1 for s in stride):
            raise OpError(f"{name} with padding='same' wants stride 1, got {list(stride)}")
        total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        return tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
    if isinstance(padding, str):
        raise OpError(f"{name} padding is {padding!r}, wanted numbers, 'same' or 'valid'")
    widths = one_per(padding, len(kernel), "padding")
    if min(widths) < 0:
        raise OpError(f"{name} padding is {list(widths)}, wanted 0 or more")
    return widths, widths


@whole
def conv1d(
    input: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Any:
    """y[n, o, s] = sum_ck input[n, c, s * stride + k * dilation - padding] weight[o, c, k] + bias[o]."""
    return _conv(1, input, weight, bias, stride, padding, dilation, groups)


@whole
def conv2d(
    input: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Any:
    """conv1d over two spatial axes."""
    return _conv(2, input, weight, bias, stride, padding, dilation, groups)


@whole
def conv3d(
    input: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Any:
    """conv1d over three spatial axes."""
    return _conv(3, input, weight, bias, stride, padding, dilation, groups)


def _conv_transpose(
    space: int,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Size,
    padding: Size,
    output_padding: Size,
    groups: int,
    dilation: Size,
) -> Any:
    """The gradient of conv with respect to its input: gaps between the elements, kernel flipped, channels exchanged."""
    name = f"conv_transpose{space}d"
    same_dtype(name, x, weight, *([] if bias is None else [bias]))
    x, single = _batched(name, x, space)
    if rank(weight) != space + 2:
        raise OpError(f"{name} wants a weight of rank {space + 2}, got {weight.type}")
    strides, dilations = one_per(stride, space, "stride"), one_per(dilation, space, "dilation")
    widths, extra = one_per(padding, space, "padding"), one_per(output_padding, space, "output_padding")
    for e, s, d in zip(extra, strides, dilations, strict=True):
        if e >= max(s, d):
            raise OpError(
                f"{name} output_padding {list(extra)} must be smaller than stride {list(strides)} "
                f"or dilation {list(dilations)}"
            )
    n, c, *_ = x.type.shape
    _, per_group, *kernel = weight.type.shape
    if c != weight.type.shape[0] or c % groups:
        raise OpError(
            f"{name} of {x.type} with weight {weight.type} and groups={groups}: "
            f"channels {c} and {weight.type.shape[0]} differ"
        )
    edges = [d * (k - 1) - w for d, k, w in zip(dilations, kernel, widths, strict=True)]
    x = zero_padded(x, edges, [a + e for a, e in zip(edges, extra, strict=True)], [s - 1 for s in strides])
    spatial = tuple(range(3, space + 3))
    grouped = reshape(x, (n, groups, c // groups, *x.type.shape[2:]))
    kernels = Transpose((0, 2, 1, *spatial))(reshape(weight, (groups, c // groups, per_group, *kernel)))
    out = Conv((1,) * space, dilations)(grouped, Flip(spatial)(kernels))
    return _biased(reshape(out, (n, groups * per_group, *out.type.shape[3:])), bias, single)


@whole
def conv_transpose1d(
    input: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Any:
    """The transposed convolution: the gradient of conv1d with respect to its input."""
    return _conv_transpose(1, input, weight, bias, stride, padding, output_padding, groups, dilation)


@whole
def conv_transpose2d(
    input: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Any:
    """conv_transpose1d over two spatial axes."""
    return _conv_transpose(2, input, weight, bias, stride, padding, output_padding, groups, dilation)


@whole
def conv_transpose3d(
    input: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Any:
    """conv_transpose1d over three spatial axes."""
    return _conv_transpose(3, input, weight, bias, stride, padding, output_padding, groups, dilation)
