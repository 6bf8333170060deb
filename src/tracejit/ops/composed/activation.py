"""Activation functions: pointwise, safe at both ends of the real line in value and gradient.

`sigmoid` is an op of its own: written as 1 / (1 + exp(-x)) its gradient is 0 * inf = NaN for very negative x.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tracejit.errors import DTypeError, OpError
from tracejit.ir import dtype as dt
from tracejit.ir.dim import same
from tracejit.ir.node import Node, Value
from tracejit.ir.op import Array, At, Op, Reduce, Sample
from tracejit.ir.types import TensorType, Type
from tracejit.ops.composed.axes import axis_of, floating, rank, same_dtype
from tracejit.ops.composed.elementwise import abs, erf, exp, expm1, log1p, sign, tanh, where
from tracejit.ops.composed.movement import chunk, reshape
from tracejit.ops.composed.whole import whole
from tracejit.ops.control import stop_gradient
from tracejit.ops.pointwise import compute

__all__ = [
    "celu", "elu", "gelu", "glu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "logsigmoid",
    "mish", "prelu", "relu", "relu6", "selu", "sigmoid", "silu", "softplus", "softshrink", "softsign", "tanhshrink",
    "threshold",
]  # fmt: skip


def _sigmoid(x: Array) -> Array:
    return np.reciprocal(1 + np.exp(-x))  # exp(-x) = inf gives 0, which is right


class Sigmoid(Op):
    """y = 1 / (1 + exp(-x))."""

    name = "sigmoid"

    def infer(self, *types: TensorType) -> Type:
        (x,) = types
        if not x.dtype.is_floating_point:
            raise DTypeError(f"sigmoid of {x}: wanted a float type")
        return x

    def eval(self, *arrays: Array) -> Any:
        return compute(_sigmoid, *arrays)

    def vjp(self, g: Any, out: Any, *inputs: Any) -> tuple[Any, ...]:
        return (g * (out * (1 - out)),)

    def element(self, at: At, *inputs: Callable[[At], Node]) -> Node | Reduce:
        (x,) = inputs
        return 1.0 / (1.0 + exp(-x(at)))

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterator[Sample]:
        for d in (dt.float32, dt.float64):
            yield Sample(cls(), (rng.standard_normal((3, 5)).astype(d.numpy),), dims=((0, 0, "n"),))
            yield Sample(cls(), (np.zeros((0, 2), d.numpy),))
            yield Sample(
                cls(), (np.array([-np.inf, -1e30, -100, -0.0, 0, 100, np.inf, np.nan], d.numpy),), differentiable=False
            )


def sigmoid(x: Value) -> Any:
    """1 / (1 + exp(-x))."""
    return Sigmoid()(floating(x))


@whole
def relu(x: Value) -> Any:
    """max(x, 0), where -0.0 stays; the gradient at 0 is 0."""
    # Selects, not maximum: NaN and -0.0 stay, and the gradient at a tie is not halved.
    return where(x <= 0, where(x < 0, 0, stop_gradient(x)), x)


def relu6(x: Value) -> Any:
    """x limited to [0, 6]."""
    return hardtanh(x, 0, 6)


def _number(x: Value, value: float) -> float:
    """`value` as x's dtype takes it: cut for integers, whose result stays an integer."""
    return value if x.type.dtype.is_floating_point else int(value)


@whole
def hardtanh(x: Value, min_val: float = -1.0, max_val: float = 1.0) -> Any:
    """x limited to [min_val, max_val]; the gradient at the limits is 0."""
    low, high = _number(x, min_val), _number(x, max_val)
    return where(x <= low, low, where(x >= high, high, x))


@whole
def threshold(x: Value, threshold: float, value: float) -> Any:
    """x where x > threshold, else value."""
    return where(x <= _number(x, threshold), _number(x, value), x)


@whole
def leaky_relu(x: Value, negative_slope: float = 0.01) -> Any:
    """x where x > 0, else negative_slope * x."""
    return where(x > 0, x, x * negative_slope)


@whole
def prelu(x: Value, weight: Value) -> Any:
    """As leaky_relu, with one slope, or one for each channel (axis 1)."""
    same_dtype("prelu", x, weight)
    if rank(weight) > 1 or (rank(weight) and not any(same(weight.type.shape[0], d) for d in (1, *x.type.shape[1:2]))):
        raise OpError(f"prelu of {x.type} with slopes {weight.type}: wanted one, or one for each channel")
    if rank(weight):
        weight = reshape(weight, () if weight.type.shape[0] == 1 else (-1, *(1,) * (rank(x) - 2)))
    return where(x > 0, x, weight * x)


def _low(x: Any) -> Any:
    """x where negative, else 0: exp must not overflow in the branch not taken, whose gradient would be NaN."""
    return where(x > 0, 0, x)


@whole
def elu(x: Value, alpha: float = 1.0) -> Any:
    """x where x > 0, else alpha * (e^x - 1)."""
    return where(x > 0, x, expm1(_low(x)) * alpha)


@whole
def celu(x: Value, alpha: float = 1.0) -> Any:
    """x where x > 0, else alpha * (e^(x / alpha) - 1)."""
    return where(x > 0, x, expm1(_low(x) * (1 / alpha)) * alpha)


@whole
def selu(x: Value) -> Any:
    """Self-normalising elu: scale * elu(x, alpha) with the constants of the paper."""
    alpha, scale = 1.6732632423543772, 1.0507009873554805
    return where(x > 0, x, expm1(_low(x)) * alpha) * scale


@whole
def gelu(x: Value, approximate: str = "none") -> Any:
    """x * Phi(x), Phi the normal distribution function; "tanh" is the usual approximation."""
    if not x.type.dtype.is_floating_point:
        raise DTypeError(f"gelu of {x.type}: wanted a float type")
    if approximate == "none":
        return x * 0.5 * (1 + erf(x * math.sqrt(0.5)))
    if approximate != "tanh":
        raise OpError(f"gelu approximate is {approximate!r}, wanted 'none' or 'tanh'")
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))
    return x * 0.5 * (1 + tanh(inner))


@whole
def silu(x: Value) -> Any:
    """x * sigmoid(x)."""
    return x * sigmoid(x)


@whole
def mish(x: Value) -> Any:
    """x * tanh(softplus(x))."""
    return x * tanh(softplus(x))


@whole
def softplus(x: Value, beta: float = 1.0, threshold: float = 20.0) -> Any:
    """log(1 + e^(beta x)) / beta; x itself where beta x > threshold."""
    scaled = x if beta == 1 else x * beta
    far = scaled > threshold
    soft = log1p(exp(where(far, 0, scaled)))
    return where(far, x, soft if beta == 1 else soft * (1 / beta))


@whole
def logsigmoid(x: Value) -> Any:
    """log(sigmoid(x)) without underflow."""
    negative = x < 0
    return where(negative, x, 0) - log1p(exp(where(negative, x, -x)))


@whole
def softsign(x: Value) -> Any:
    """x / (1 + |x|)."""
    return x / (1 + abs(x))


@whole
def tanhshrink(x: Value) -> Any:
    """x - tanh(x)."""
    return x - tanh(x)


@whole
def hardshrink(x: Value, lambd: float = 0.5) -> Any:
    """x where |x| > lambd, else 0."""
    return where((x >= -lambd) & (x <= lambd), 0, x)


@whole
def softshrink(x: Value, lambd: float = 0.5) -> Any:
    """x moved by lambd towards 0."""
    if lambd < 0:
        raise OpError(f"softshrink lambd is {lambd}, wanted 0 or more")
    return where((x >= -lambd) & (x <= lambd), 0, x - sign(x) * lambd)


@whole
def hardsigmoid(x: Value) -> Any:
    """x / 6 + 1/2 limited to [0, 1]."""
    return where(x <= -3, 0, where(x >= 3, 1, x * (1 / 6) + 0.5))


@whole
def hardswish(x: Value) -> Any:
    """x * hardsigmoid(x)."""
    return where(x <= -3, 0, where(x >= 3, x, x * (x + 3) * (1 / 6)))


@whole
def glu(x: Value, dim: int = -1) -> Any:
    """a * sigmoid(b), a and b the halves of x along `dim`."""
    n = x.type.shape[axis_of(dim, rank(x))] if rank(x) else 1
    if n % 2:
        raise OpError(f"glu of {x.type} at dim {dim}: extent {n} cannot be halved")
    a, b = chunk(x, 2, dim)
    return a * sigmoid(b)
