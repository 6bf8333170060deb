"""Parts of the optimizers' rules, as functions of values: what a step of Adam does with a parameter."""

from __future__ import annotations

from typing import Any

from tracejit.ir.dtype import float64
from tracejit.ir.node import Value, cast
from tracejit.ops.composed.elementwise import lerp, sqrt
from tracejit.ops.composed.whole import whole

__all__ = ["adam_corrections", "adam_means", "adam_move", "adam_spread"]


@whole
def adam_means(mean: Value, square: Value, grad: Value, beta1: float, beta2: float) -> Any:
    """The running means of the gradient and of its square, one step on."""
    return lerp(mean, grad, 1 - beta1), square * beta2 + grad * grad * (1 - beta2)


@whole
def adam_corrections(step: Value, beta1: float, beta2: float) -> Any:
    """(1 - beta1^step, sqrt(1 - beta2^step)): what the two running means are too small by, the second as a root.

    In float64: 1 - beta2^step loses half of float32's digits in the first steps."""
    count = cast(step, float64)
    return 1 - beta1**count, sqrt(1 - beta2**count)


@whole
def adam_spread(square: Value, root: Value) -> Any:
    """sqrt(square) / root."""
    return sqrt(square) / cast(root, square.type.dtype)


@whole
def adam_move(p: Value, mean: Value, spread: Value, size: Value) -> Any:
    """p - mean / spread * size."""
    return p - mean / spread * cast(size, p.type.dtype)
