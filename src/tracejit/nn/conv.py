"""Convolution layers; the arithmetic is in ops/composed/convolution.py."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tracejit.ir.dtype import DType
from tracejit.nn import functional as F
from tracejit.nn import init
from tracejit.nn.module import Module
from tracejit.nn.parameter import Parameter
from tracejit.ops.composed.axes import one_per
from tracejit.tensor.creation import empty
from tracejit.tensor.tensor import Tensor

__all__ = ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]

Size = int | Sequence[int]


class _Conv(Module):
    space = 0
    transposed = False

    def _setup(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size,
        padding: Size | str,
        dilation: Size,
        output_padding: Size,
        groups: int,
        bias: bool,
        padding_mode: str,
        dtype: DType | None,
    ) -> None:
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ValueError(f"channels {in_channels} and {out_channels} do not divide into {groups} groups")
        if padding_mode not in ("zeros", "reflect", "replicate", "circular"):
            raise ValueError(f"padding_mode is {padding_mode!r}, wanted 'zeros', 'reflect', 'replicate' or 'circular'")
        self.in_channels, self.out_channels, self.groups, self.padding_mode = (
            in_channels,
            out_channels,
            groups,
            padding_mode,
        )
        self.kernel_size = one_per(kernel_size, self.space, "kernel_size")
        self.stride, self.dilation = one_per(stride, self.space, "stride"), one_per(dilation, self.space, "dilation")
        if isinstance(padding, str):
            if padding not in ("same", "valid"):
                raise ValueError(f"padding is {padding!r}, wanted numbers, 'same' or 'valid'")
            if padding == "same" and any(s != 1 for s in self.stride):
                raise ValueError(f"padding='same' wants stride 1, got {list(self.stride)}")
            self.padding: Any = padding
        else:
            self.padding = one_per(padding, self.space, "padding")
        self.output_padding = one_per(output_padding, self.space, "output_padding")
        first, second = (
            (in_channels, out_channels // groups) if self.transposed else (out_channels, in_channels // groups)
        )
        self.weight = Parameter(empty(first, second, *self.kernel_size, dtype=dtype))
        self.register_parameter("bias", Parameter(empty(out_channels, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform on +-1/sqrt(fan in)."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            fan_in = self.weight.shape[1] * math.prod(self.kernel_size)
            if fan_in:
                init.uniform_(self.bias, -1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in))

    def _padded(self, input: Tensor) -> tuple[Tensor, Any]:
        """The input after padding modes that `conv` does not know, and the padding left for it."""
        if self.padding_mode == "zeros":
            return input, self.padding
        if self.padding == "valid":
            return input, 0
        widths: list[int] = []
        for i in reversed(range(self.space)):
            if self.padding == "same":
                total = self.dilation[i] * (self.kernel_size[i] - 1)
                widths += [total // 2, total - total // 2]
            else:
                widths += [self.padding[i], self.padding[i]]
        return F.pad(input, widths, mode=self.padding_mode), 0

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        if self.padding != (0,) * self.space:
            text += f", padding={self.padding!r}"
        if self.dilation != (1,) * self.space:
            text += f", dilation={self.dilation}"
        if self.transposed and self.output_padding != (0,) * self.space:
            text += f", output_padding={self.output_padding}"
        if self.groups != 1:
            text += f", groups={self.groups}"
        if self.bias is None:
            text += ", bias=False"
        return text if self.padding_mode == "zeros" else f"{text}, padding_mode={self.padding_mode}"


class _Forward(_Conv):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self._setup(
            in_channels, out_channels, kernel_size, stride, padding, dilation, 0, groups, bias, padding_mode, dtype
        )


class Conv1d(_Forward):
    """Convolution over [n, c, l]."""

    space = 1

    def forward(self, input: Tensor) -> Tensor:
        """The convolved input."""
        x, padding = self._padded(input)
        return F.conv1d(x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)


class Conv2d(_Forward):
    """Convolution over [n, c, h, w]."""

    space = 2

    def forward(self, input: Tensor) -> Tensor:
        """The convolved input."""
        x, padding = self._padded(input)
        return F.conv2d(x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)


class Conv3d(_Forward):
    """Convolution over [n, c, d, h, w]."""

    space = 3

    def forward(self, input: Tensor) -> Tensor:
        """The convolved input."""
        x, padding = self._padded(input)
        return F.conv3d(x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)


class _Transposed(_Conv):
    transposed = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size = 0,
        output_padding: Size = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Size = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        if padding_mode != "zeros":
            raise ValueError(f"transposed convolutions pad with zeros only, got padding_mode={padding_mode!r}")
        self._setup(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            output_padding,
            groups,
            bias,
            padding_mode,
            dtype,
        )

    def _extra(self, input: Tensor, output_size: Sequence[int] | None) -> tuple[int, ...]:
        """output_padding, or what makes the output `output_size`."""
        if output_size is None:
            return self.output_padding
        extra: list[int] = []
        for n, want, s, p, k, d in zip(
            input.shape[-self.space :],
            tuple(output_size)[-self.space :],
            self.stride,
            self.padding,
            self.kernel_size,
            self.dilation,
        ):
            least = (n - 1) * s - 2 * p + d * (k - 1) + 1
            if not least <= want < least + s:
                raise ValueError(f"output_size {want} is out of reach: wanted {least} .. {least + s - 1}")
            extra.append(want - least)
        return tuple(extra)


class ConvTranspose1d(_Transposed):
    """Transposed convolution over [n, c, l]."""

    space = 1

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """The input spread by the kernel."""
        extra = self._extra(input, output_size)
        return F.conv_transpose1d(
            input, self.weight, self.bias, self.stride, self.padding, extra, self.groups, self.dilation
        )


class ConvTranspose2d(_Transposed):
    """Transposed convolution over [n, c, h, w]."""

    space = 2

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """The input spread by the kernel."""
        extra = self._extra(input, output_size)
        return F.conv_transpose2d(
            input, self.weight, self.bias, self.stride, self.padding, extra, self.groups, self.dilation
        )


class ConvTranspose3d(_Transposed):
    """Transposed convolution over [n, c, d, h, w]."""

    space = 3

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """The input spread by the kernel."""
        extra = self._extra(input, output_size)
        return F.conv_transpose3d(
            input, self.weight, self.bias, self.stride, self.padding, extra, self.groups, self.dilation
        )
