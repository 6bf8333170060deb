"""Normalisation layers. BatchNorm keeps running statistics as buffers, written in place in training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracejit.ir import dtype as dt
from tracejit.ir.dtype import DType
from tracejit.nn import functional as F
from tracejit.nn import init
from tracejit.nn.module import Module
from tracejit.nn.parameter import Parameter
from tracejit.tensor.creation import empty, ones, zeros
from tracejit.tensor.tensor import Tensor

__all__ = [
    "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "GroupNorm", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d",
    "LayerNorm", "LocalResponseNorm", "RMSNorm",
]  # fmt: skip


class _Running(Module):
    """Scale and shift, and running statistics, of each channel."""

    ranks: tuple[int, ...] = ()

    def _setup(
        self,
        num_features: int,
        eps: float,
        momentum: float | None,
        affine: bool,
        track_running_stats: bool,
        dtype: DType | None,
        bias: bool,
    ) -> None:
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        if affine:
            self.weight = Parameter(empty(num_features, dtype=dtype))
        else:
            self.register_parameter("weight", None)
        self.register_parameter("bias", Parameter(empty(num_features, dtype=dtype)) if affine and bias else None)
        if track_running_stats:
            self.register_buffer("running_mean", zeros(num_features, dtype=dtype))
            self.register_buffer("running_var", ones(num_features, dtype=dtype))
            self.register_buffer("num_batches_tracked", zeros((), dtype=dt.int64))
        else:
            self.register_buffer("running_mean", None)
            self.register_buffer("running_var", None)
            self.register_buffer("num_batches_tracked", None)
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """Mean 0, variance 1, nothing seen."""
        if self.track_running_stats:
            self.running_mean.zero_()
            self.running_var.fill_(1)
            self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        """Scale 1, shift 0, statistics reset."""
        self.reset_running_stats()
        if self.affine:
            init.ones_(self.weight)
            if self.bias is not None:
                init.zeros_(self.bias)

    def _check(self, input: Tensor) -> None:
        if input.ndim not in self.ranks:
            raise ValueError(f"{type(self).__name__} wants rank {' or '.join(map(str, self.ranks))}, got {input.type}")

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_Running):
    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: DType | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self._setup(num_features, eps, momentum, affine, track_running_stats, dtype, bias)

    def forward(self, input: Tensor) -> Tensor:
        """The input normalised by the batch in training, by the running statistics otherwise."""
        self._check(input)
        momentum: Any = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:  # the plain average over all batches
                momentum = 1.0 / self.num_batches_tracked.to(self.running_mean.dtype)
        by_batch = self.training or self.running_mean is None
        keep = not self.training or self.track_running_stats
        return F.batch_norm(
            input,
            self.running_mean if keep else None,
            self.running_var if keep else None,
            self.weight,
            self.bias,
            by_batch,
            momentum,
            self.eps,
        )


class BatchNorm1d(_BatchNorm):
    """Channels of [n, c] or [n, c, l] normalised over the batch."""

    ranks = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Channels of [n, c, h, w] normalised over the batch."""

    ranks = (4,)


class BatchNorm3d(_BatchNorm):
    """Channels of [n, c, d, h, w] normalised over the batch."""

    ranks = (5,)


class _InstanceNorm(_Running):
    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: Any = None,
        dtype: DType | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self._setup(num_features, eps, momentum, affine, track_running_stats, dtype, bias)

    def forward(self, input: Tensor) -> Tensor:
        """The input normalised over its spatial axes, sample by sample."""
        self._check(input)
        single = input.ndim == self.ranks[0]
        x: Any = input.unsqueeze(0) if single else input  # type: ignore[attr-defined]
        by_input = self.training or not self.track_running_stats
        out: Any = F.instance_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, by_input, self.momentum or 0.0, self.eps
        )
        return out.squeeze(0) if single else out


class InstanceNorm1d(_InstanceNorm):
    """Channels of [n, c, l] normalised sample by sample."""

    ranks = (2, 3)


class InstanceNorm2d(_InstanceNorm):
    """Channels of [n, c, h, w] normalised sample by sample."""

    ranks = (3, 4)


class InstanceNorm3d(_InstanceNorm):
    """Channels of [n, c, d, h, w] normalised sample by sample."""

    ranks = (4, 5)


class LayerNorm(Module):
    """The last axes, of `normalized_shape`, normalised, scaled and shifted."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        self.register_parameter(
            "weight", Parameter(empty(*self.normalized_shape, dtype=dtype)) if elementwise_affine else None
        )
        has_bias = elementwise_affine and bias
        self.register_parameter("bias", Parameter(empty(*self.normalized_shape, dtype=dtype)) if has_bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Scale 1, shift 0."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        """The normalised input."""
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class RMSNorm(Module):
    """The last axes divided by their root mean square, and scaled."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        self.register_parameter(
            "weight", Parameter(empty(*self.normalized_shape, dtype=dtype)) if elementwise_affine else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Scale 1."""
        if self.weight is not None:
            init.ones_(self.weight)

    def forward(self, input: Tensor) -> Tensor:
        """The normalised input."""
        return F.rms_norm(input, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class GroupNorm(Module):
    """Groups of channels normalised sample by sample."""

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: DType | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if num_channels % num_groups:
            raise ValueError(f"{num_channels} channels do not divide into {num_groups} groups")
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        self.register_parameter("weight", Parameter(empty(num_channels, dtype=dtype)) if affine else None)
        self.register_parameter("bias", Parameter(empty(num_channels, dtype=dtype)) if affine and bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Scale 1, shift 0."""
        if self.affine:
            init.ones_(self.weight)
            if self.bias is not None:
                init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        """The normalised input."""
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"


class LocalResponseNorm(Module):
    """Channels divided by a power of the mean square of their neighbours."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, input: Tensor) -> Tensor:
        """The normalised input."""
        return F.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"
