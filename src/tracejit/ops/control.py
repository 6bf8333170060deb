"""Ops about the computation rather than its values: where the gradient ends, and on which device a value lives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracejit.ir import dtype as dt
from tracejit.ir.node import Node
from tracejit.ir.op import Array, At, Op, Reader, Sample
from tracejit.ir.types import TensorType, Type

__all__ = ["StopGradient", "ToDevice", "stop_gradient", "to_device"]


class StopGradient(Op):
    """y = x, and no gradient flows back."""

    name = "stop_gradient"

    def infer(self, x: TensorType) -> Type:
        return x

    def eval(self, x: Array) -> Array:
        return x

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (None,)

    def element(self, at: At, x: Reader) -> Node:
        return x(at)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterator[Sample]:
        for dtype in dt.ALL:
            yield Sample(cls(), (np.ones((2, 3), dtype.numpy),), differentiable=False)
        yield Sample(cls(), (rng.normal(size=(0, 3)),), ((0, 1, "n"),), differentiable=False)


@dataclass(frozen=True)
class ToDevice(Op):
    """y = x, on another device. Where both are memory of this process nothing is copied."""

    name = "to_device"
    device: str

    def infer(self, x: TensorType) -> Type:
        return TensorType(x.dtype, x.shape, self.device)

    def eval(self, x: Array) -> Array:
        return x

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (to_device(g, x.type.device),)

    def element(self, at: At, x: Reader) -> Node:
        return x(at)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterator[Sample]:
        for dtype in dt.ALL:
            yield Sample(cls("cpu"), (np.ones((2, 3), dtype.numpy),), differentiable=dtype.kind == "f")


def stop_gradient(x: Any) -> Any:
    """x, through which no gradient flows."""
    return StopGradient()(x)


def to_device(x: Any, device: str) -> Any:
    """x on `device`; x itself where it already is."""
    return x if x.type.device == device else ToDevice(device)(x)
