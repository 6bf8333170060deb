"""Transforms of one item, called as functions and chained by Compose. Images are [channels, height, width].

Random ones draw from the default generator, which each worker process seeds for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracejit.data.sampler import draw_seed
from tracejit.ops.composed import flip
from tracejit.tensor import Tensor
from tracejit.tensor.creation import from_numpy, tensor

__all__ = ["Compose", "Lambda", "Normalize", "RandomCrop", "RandomHorizontalFlip", "ToTensor"]


class Compose:
    """Applies `transforms` one after the other."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = list(transforms)

    def __call__(self, x: Any) -> Any:
        for transform in self.transforms:
            x = transform(x)
        return x


class Lambda:
    """Applies a function."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def __call__(self, x: Any) -> Any:
        return self.function(x)


class ToTensor:
    """An array of [height, width] or [height, width, channels] as a tensor [channels, height, width].

    Bytes become float32 in [0, 1]; other dtypes keep their values.
    """

    def __call__(self, image: Any) -> Tensor:
        x = np.asarray(image)
        if x.ndim not in (2, 3):
            raise ValueError(f"an image has 2 or 3 axes, this array has shape {x.shape}")
        x = x[None] if x.ndim == 2 else x.transpose(2, 0, 1)
        return from_numpy(np.ascontiguousarray(x.astype(np.float32) / 255 if x.dtype == np.uint8 else x))


class Normalize:
    """(x - mean) / std for each channel."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        if not all(std):
            raise ValueError(f"std {list(std)} contains zero")
        self.mean, self.std = list(mean), list(std)

    def __call__(self, x: Tensor) -> Tensor:
        mean, std = (tensor([[[v]] for v in values], dtype=x.dtype) for values in (self.mean, self.std))
        return (x - mean) / std


class RandomCrop:
    """A random window of `size`, after `padding` zeros on every side."""

    def __init__(self, size: int | tuple[int, int], padding: int = 0) -> None:
        self.size = (size, size) if isinstance(size, int) else size
        self.padding = padding

    def __call__(self, x: Tensor) -> Tensor:
        p, (height, width) = self.padding, self.size
        a = np.pad(x.numpy(), [(0, 0)] * (x.ndim - 2) + [(p, p), (p, p)])
        if a.shape[-2] < height or a.shape[-1] < width:
            raise ValueError(f"no window of {height} x {width} in {a.shape[-2]} x {a.shape[-1]}")
        draw = np.random.Generator(np.random.Philox(draw_seed()))
        top, left = draw.integers(a.shape[-2] - height + 1), draw.integers(a.shape[-1] - width + 1)
        return from_numpy(np.ascontiguousarray(a[..., top : top + height, left : left + width]))


class RandomHorizontalFlip:
    """The mirror image, with probability `p`."""

    def __init__(self, p: float = 0.5) -> None:
        self.p = p

    def __call__(self, x: Tensor) -> Tensor:
        return flip(x, (-1,)) if draw_seed() < self.p * (2**31 - 1) else x
