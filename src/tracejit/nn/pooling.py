"""Pooling, dropout, padding and resampling as layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracejit.nn import functional as F
from tracejit.nn.module import Module
from tracejit.tensor.tensor import Tensor

__all__ = [
    "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "AdaptiveMaxPool1d", "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d", "AlphaDropout", "AvgPool1d", "AvgPool2d", "AvgPool3d", "ChannelShuffle", "CircularPad1d",
    "CircularPad2d", "CircularPad3d", "ConstantPad1d", "ConstantPad2d", "ConstantPad3d", "Dropout", "Dropout1d",
    "Dropout2d", "Dropout3d", "Fold", "LPPool1d", "LPPool2d", "LPPool3d", "MaxPool1d", "MaxPool2d", "MaxPool3d",
    "PixelShuffle", "PixelUnshuffle", "ReflectionPad1d", "ReflectionPad2d", "ReflectionPad3d", "ReplicationPad1d",
    "ReplicationPad2d", "ReplicationPad3d", "Unfold", "Upsample", "UpsamplingBilinear2d", "UpsamplingNearest2d",
    "ZeroPad1d", "ZeroPad2d", "ZeroPad3d",
]  # fmt: skip

Size = int | Sequence[int]


class _MaxPool(Module):
    pool: Any = None

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        dilation: Size = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, kernel_size if stride is None else stride, padding
        self.dilation, self.return_indices, self.ceil_mode = dilation, return_indices, ceil_mode

    def forward(self, input: Tensor) -> Any:
        """The largest of each window."""
        return type(self).pool(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices
        )

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, dilation={self.dilation}, "
            f"ceil_mode={self.ceil_mode}"
        )


class MaxPool1d(_MaxPool):
    """The largest of each window of the last axis."""

    pool = staticmethod(F.max_pool1d)


class MaxPool2d(_MaxPool):
    """The largest of each window of the last two axes."""

    pool = staticmethod(F.max_pool2d)


class MaxPool3d(_MaxPool):
    """The largest of each window of the last three axes."""

    pool = staticmethod(F.max_pool3d)


class AvgPool1d(Module):
    """The mean of each window of the last axis."""

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, kernel_size if stride is None else stride, padding
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad

    def forward(self, input: Tensor) -> Tensor:
        """The mean of each window."""
        return F.avg_pool1d(input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class _AvgPool(Module):
    pool: Any = None

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, kernel_size if stride is None else stride, padding
        self.ceil_mode, self.count_include_pad, self.divisor_override = ceil_mode, count_include_pad, divisor_override

    def forward(self, input: Tensor) -> Tensor:
        """The mean of each window."""
        return type(self).pool(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
            self.divisor_override,
        )

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool2d(_AvgPool):
    """The mean of each window of the last two axes."""

    pool = staticmethod(F.avg_pool2d)


class AvgPool3d(_AvgPool):
    """The mean of each window of the last three axes."""

    pool = staticmethod(F.avg_pool3d)


class _LPPool(Module):
    pool: Any = None

    def __init__(
        self, norm_type: float, kernel_size: Size, stride: Size | None = None, ceil_mode: bool = False
    ) -> None:
        super().__init__()
        self.norm_type, self.kernel_size, self.stride, self.ceil_mode = norm_type, kernel_size, stride, ceil_mode

    def forward(self, input: Tensor) -> Tensor:
        """The norm of each window."""
        return type(self).pool(input, self.norm_type, self.kernel_size, self.stride, self.ceil_mode)

    def extra_repr(self) -> str:
        return f"norm_type={self.norm_type}, kernel_size={self.kernel_size}, stride={self.stride}"


class LPPool1d(_LPPool):
    """The norm of each window of the last axis."""

    pool = staticmethod(F.lp_pool1d)


class LPPool2d(_LPPool):
    """The norm of each window of the last two axes."""

    pool = staticmethod(F.lp_pool2d)


class LPPool3d(_LPPool):
    """The norm of each window of the last three axes."""

    pool = staticmethod(F.lp_pool3d)


class _Adaptive(Module):
    pool: Any = None

    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, input: Tensor) -> Any:
        """One value for each of nearly equal windows."""
        return type(self).pool(input, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveAvgPool1d(_Adaptive):
    """Means over `output_size` windows of the last axis."""

    pool = staticmethod(F.adaptive_avg_pool1d)


class AdaptiveAvgPool2d(_Adaptive):
    """Means over a grid of windows of the last two axes."""

    pool = staticmethod(F.adaptive_avg_pool2d)


class AdaptiveAvgPool3d(_Adaptive):
    """Means over a grid of windows of the last three axes."""

    pool = staticmethod(F.adaptive_avg_pool3d)


class _AdaptiveMax(_Adaptive):
    def __init__(self, output_size: Any, return_indices: bool = False) -> None:
        super().__init__(output_size)
        self.return_indices = return_indices

    def forward(self, input: Tensor) -> Any:
        """The largest of nearly equal windows."""
        return type(self).pool(input, self.output_size, self.return_indices)


class AdaptiveMaxPool1d(_AdaptiveMax):
    """The largest of `output_size` windows of the last axis."""

    pool = staticmethod(F.adaptive_max_pool1d)


class AdaptiveMaxPool2d(_AdaptiveMax):
    """The largest of a grid of windows of the last two axes."""

    pool = staticmethod(F.adaptive_max_pool2d)


class AdaptiveMaxPool3d(_AdaptiveMax):
    """The largest of a grid of windows of the last three axes."""

    pool = staticmethod(F.adaptive_max_pool3d)


# --- dropout -------------------------------------------------------------------------------------------------------


class Dropout(Module):
    """In training each element 0 with probability p, else divided by 1 - p."""

    drop: Any = staticmethod(F.dropout)

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"the probability of dropout is {p}, wanted 0 .. 1")
        self.p, self.inplace = p, inplace

    def forward(self, input: Tensor) -> Tensor:
        """The input, thinned in training."""
        return type(self).drop(input, self.p, self.training, self.inplace)

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


class Dropout1d(Dropout):
    """Whole channels of [n, c, l] dropped."""

    drop = staticmethod(F.dropout1d)


class Dropout2d(Dropout):
    """Whole channels of [n, c, h, w] dropped."""

    drop = staticmethod(F.dropout2d)


class Dropout3d(Dropout):
    """Whole channels of [n, c, d, h, w] dropped."""

    drop = staticmethod(F.dropout3d)


class AlphaDropout(Dropout):
    """Dropout that keeps the mean and variance of selu activations."""

    drop = staticmethod(F.alpha_dropout)


# --- padding -------------------------------------------------------------------------------------------------------


class _Pad(Module):
    space = 0
    mode = "constant"

    def __init__(self, padding: Size) -> None:
        super().__init__()
        self.padding = (padding,) * (2 * self.space) if isinstance(padding, int) else tuple(padding)
        self.value = 0.0

    def forward(self, input: Tensor) -> Tensor:
        """The padded input."""
        return F.pad(input, self.padding, mode=self.mode, value=self.value)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class _ConstantPad(_Pad):
    def __init__(self, padding: Size, value: float) -> None:
        super().__init__(padding)
        self.value = value

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class ConstantPad1d(_ConstantPad):
    """`value` around the last axis."""

    space = 1


class ConstantPad2d(_ConstantPad):
    """`value` around the last two axes."""

    space = 2


class ConstantPad3d(_ConstantPad):
    """`value` around the last three axes."""

    space = 3


class ZeroPad1d(_Pad):
    """Zeros around the last axis."""

    space = 1


class ZeroPad2d(_Pad):
    """Zeros around the last two axes."""

    space = 2


class ZeroPad3d(_Pad):
    """Zeros around the last three axes."""

    space = 3


class ReflectionPad1d(_Pad):
    """The last axis mirrored at its ends."""

    space, mode = 1, "reflect"


class ReflectionPad2d(_Pad):
    """The last two axes mirrored at their ends."""

    space, mode = 2, "reflect"


class ReflectionPad3d(_Pad):
    """The last three axes mirrored at their ends."""

    space, mode = 3, "reflect"


class ReplicationPad1d(_Pad):
    """The ends of the last axis repeated."""

    space, mode = 1, "replicate"


class ReplicationPad2d(_Pad):
    """The ends of the last two axes repeated."""

    space, mode = 2, "replicate"


class ReplicationPad3d(_Pad):
    """The ends of the last three axes repeated."""

    space, mode = 3, "replicate"


class CircularPad1d(_Pad):
    """The last axis continued from its other end."""

    space, mode = 1, "circular"


class CircularPad2d(_Pad):
    """The last two axes continued from their other ends."""

    space, mode = 2, "circular"


class CircularPad3d(_Pad):
    """The last three axes continued from their other ends."""

    space, mode = 3, "circular"


# --- resampling and windows ----------------------------------------------------------------------------------------


class Upsample(Module):
    """The spatial axes resampled to `size` or by `scale_factor`."""

    def __init__(
        self,
        size: Any = None,
        scale_factor: Any = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        super().__init__()
        self.size, self.scale_factor, self.mode = size, scale_factor, mode
        self.align_corners, self.recompute_scale_factor = align_corners, recompute_scale_factor

    def forward(self, input: Tensor) -> Tensor:
        """The resampled input."""
        return F.interpolate(
            input, self.size, self.scale_factor, self.mode, self.align_corners, self.recompute_scale_factor
        )

    def extra_repr(self) -> str:
        by = f"size={self.size}" if self.scale_factor is None else f"scale_factor={self.scale_factor}"
        return f"{by}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """Two spatial axes resampled by the nearest element."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor)


class UpsamplingBilinear2d(Upsample):
    """Two spatial axes resampled bilinearly, corners aligned."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, "bilinear", True)


class PixelShuffle(Module):
    """[*, c*r*r, h, w] as [*, c, h*r, w*r]."""

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.upscale_factor = upscale_factor

    def forward(self, input: Tensor) -> Tensor:
        """Channels as pixels."""
        return F.pixel_shuffle(input, self.upscale_factor)

    def extra_repr(self) -> str:
        return f"upscale_factor={self.upscale_factor}"


class PixelUnshuffle(Module):
    """[*, c, h*r, w*r] as [*, c*r*r, h, w]."""

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        self.downscale_factor = downscale_factor

    def forward(self, input: Tensor) -> Tensor:
        """Pixels as channels."""
        return F.pixel_unshuffle(input, self.downscale_factor)

    def extra_repr(self) -> str:
        return f"downscale_factor={self.downscale_factor}"


class ChannelShuffle(Module):
    """The channels of `groups` groups interleaved."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, input: Tensor) -> Tensor:
        """The channels in another order."""
        return F.channel_shuffle(input, self.groups)

    def extra_repr(self) -> str:
        return f"groups={self.groups}"


class Unfold(Module):
    """[n, c, h, w] as [n, c * kernel, windows]."""

    def __init__(self, kernel_size: Size, dilation: Size = 1, padding: Size = 0, stride: Size = 1) -> None:
        super().__init__()
        self.kernel_size, self.dilation, self.padding, self.stride = kernel_size, dilation, padding, stride

    def forward(self, input: Tensor) -> Tensor:
        """The windows as columns."""
        return F.unfold(input, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, dilation={self.dilation}, padding={self.padding}, stride={self.stride}"


class Fold(Module):
    """The adjoint of Unfold."""

    def __init__(
        self, output_size: Size, kernel_size: Size, dilation: Size = 1, padding: Size = 0, stride: Size = 1
    ) -> None:
        super().__init__()
        self.output_size = output_size
        self.kernel_size, self.dilation, self.padding, self.stride = kernel_size, dilation, padding, stride

    def forward(self, input: Tensor) -> Tensor:
        """Overlapping windows added."""
        return F.fold(input, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}, kernel_size={self.kernel_size}, stride={self.stride}"
