"""`copy`: the same values in memory of their own. In a graph it is the identity; eager code sees fresh memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tracejit.ir.node import Node
from tracejit.ir.op import Array, Op, Sample
from tracejit.ir.types import TensorType, Type

__all__ = ["Copy"]


class Copy(Op):
    """y = x."""

    name = "copy"

    def infer(self, *types: TensorType) -> Type:
        return types[0]

    def eval(self, *arrays: Array) -> Array:
        return np.array(arrays[0], order="C")

    def vjp(self, g: Any, out: Any, *inputs: Any) -> tuple[Any, ...]:
        return (g,)

    def element(self, at: Any, *inputs: Callable[[Any], Node]) -> Node:
        return inputs[0](at)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterator[Sample]:
        for shape in ((), (0,), (3, 2)):
            yield Sample(cls(), (rng.normal(size=shape),))
        yield Sample(cls(), (np.array([np.nan, np.inf, -0.0]),), differentiable=False)
