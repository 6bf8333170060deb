"""One step of recurrent layers, after the products: from the input's and the state's parts of the gates."""

from __future__ import annotations

from typing import Any

from tracejit.ir.node import Value
from tracejit.ops.composed.activation import relu, sigmoid
from tracejit.ops.composed.elementwise import tanh
from tracejit.ops.composed.movement import chunk
from tracejit.ops.composed.whole import whole

__all__ = ["gru_step", "lstm_step", "relu_step", "tanh_step"]


@whole
def tanh_step(x: Value, h: Value) -> Any:
    """tanh(x + h), both with their biases."""
    return tanh(x + h)


@whole
def relu_step(x: Value, h: Value) -> Any:
    """relu(x + h), both with their biases."""
    return relu(x + h)


@whole
def lstm_step(x: Value, h: Value, c: Any) -> tuple[Any, Any]:
    """New (h, c)."""
    i, f, g, o = chunk(x + h, 4, -1)
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


@whole
def gru_step(x: Value, h: Value, state: Any) -> Any:
    """The new state."""
    xr, xz, xn = chunk(x, 3, -1)
    hr, hz, hn = chunk(h, 3, -1)
    n = tanh(xn + sigmoid(xr + hr) * hn)
    return n + sigmoid(xz + hz) * (state - n)
