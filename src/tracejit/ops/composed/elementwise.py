"""Elementwise mathematics: the pointwise primitives with PyTorch's promotion, and what is made of them.

Functions of a real argument turn integers and bools into the default float first.
"""

from __future__ import annotations

import math
from typing import Any

from tracejit.errors import DTypeError, OpError
from tracejit.ir import dtype as dt
from tracejit.ir.node import Scalar, Value, binary, broadcast_shapes, cast, common_dtype, constant, expand_to
from tracejit.ops import pointwise as p
from tracejit.ops.composed.axes import floating, fresh, same_dtype

__all__ = [
    "abs", "absolute", "acos", "acosh", "add", "addcdiv", "addcmul", "angle", "arccos", "arccosh", "arcsin",
    "arcsinh", "arctan", "arctan2", "arctanh", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and",
    "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "ceil", "clamp",
    "clamp_max", "clamp_min", "clip", "conj", "conj_physical", "copysign", "cos", "cosh", "deg2rad", "digamma", "div",
    "divide", "eq", "erf", "erfc", "exp", "exp2", "expm1", "fix", "float_power", "floor", "floor_divide", "fmax",
    "fmin", "fmod", "frac", "ge", "greater", "greater_equal", "gt", "heaviside", "hypot", "isclose", "isfinite",
    "isinf", "isnan", "isneginf", "isposinf", "isreal", "ldexp", "le", "lerp", "less", "less_equal", "lgamma", "log",
    "log10", "log1p", "log2", "logaddexp", "logaddexp2", "logical_and", "logical_not", "logical_or", "logical_xor",
    "logit", "lt", "masked_fill", "maximum", "minimum", "mul", "multiply", "mvlgamma", "nan_to_num", "ne", "neg",
    "negative", "not_equal", "polygamma", "positive", "pow", "rad2deg", "real", "reciprocal", "remainder",
    "resolve_conj", "resolve_neg", "round", "rsqrt", "rsub", "sgn", "sign", "signbit", "sin", "sinc", "sinh", "sqrt",
    "square", "sub", "subtract", "tan", "tanh", "true_divide", "trunc", "where", "xlogy",
]  # fmt: skip

Operand = Value | Scalar


def _like(*operands: Operand) -> Value:
    for x in operands:
        if isinstance(x, Value):
            return x
    raise OpError("at least one operand must be a tensor")


def _value(x: Operand, like: Value, dtype: dt.DType) -> Any:
    return cast(x, dtype) if isinstance(x, Value) else constant(like, x, dtype)


def _together(*operands: Operand, dtype: dt.DType | None = None) -> tuple[Any, ...]:
    """The operands promoted to one dtype and broadcast to one shape."""
    like, dtype = _like(*operands), dtype or common_dtype(*operands)
    xs = [_value(x, like, dtype) for x in operands]
    shape = broadcast_shapes(*(x.type.shape for x in xs))
    return tuple(expand_to(x, shape) for x in xs)


def _binary(name: str, a: Any, b: Any) -> Any:
    out = binary(name, a, b) if isinstance(a, Value) or isinstance(b, Value) else NotImplemented
    if out is NotImplemented:
        raise TypeError(f"{name} of {type(a).__name__} and {type(b).__name__}: wanted tensors or numbers")
    return out


# --- arithmetic ----------------------------------------------------------------------------------------------------


def add(x: Operand, other: Operand, *, alpha: Scalar = 1) -> Any:
    """x + alpha * other."""
    return _binary("add", x, other if alpha == 1 else _scaled(other, alpha))


def sub(x: Operand, other: Operand, *, alpha: Scalar = 1) -> Any:
    """x - alpha * other; not for bools."""
    if isinstance(x, Value) and isinstance(other, Value) and x.type.dtype is other.type.dtype is dt.bool_:
        raise DTypeError(f"subtraction of {x.type} and {other.type}: use ^ or logical_xor for bools")
    return _binary("sub", x, other if alpha == 1 else _scaled(other, alpha))


def _scaled(x: Operand, alpha: Scalar) -> Any:
    if isinstance(alpha, float) and isinstance(x, Value) and not x.type.dtype.is_floating_point:
        raise DTypeError(f"alpha={alpha} with {x.type}: an integer tensor wants an integer alpha")
    return x * alpha


def rsub(x: Value, other: Operand, *, alpha: Scalar = 1) -> Any:
    """other - alpha * x."""
    return sub(other, x, alpha=alpha)


def mul(x: Operand, other: Operand) -> Any:
    """x * other."""
    return _binary("mul", x, other)


def div(x: Operand, other: Operand, *, rounding_mode: str | None = None) -> Any:
    """x / other, rounded towards zero ("trunc") or down ("floor") if asked; true division of integers gives floats."""
    if rounding_mode is None:
        return _binary("div", x, other)
    if rounding_mode == "floor":
        return _binary("floordiv", x, other)
    if rounding_mode != "trunc":
        raise OpError(f"rounding_mode is {rounding_mode!r}, wanted None, 'trunc' or 'floor'")
    if common_dtype(x, other).is_floating_point:
        return trunc(_binary("div", x, other))
    q, r = _binary("floordiv", x, other), _binary("mod", x, other)
    negative: Any = (x < 0) ^ (other < 0)
    return q + cast(logical_and(negative, ne(r, 0)), q.type.dtype)


def floor_divide(x: Operand, other: Operand) -> Any:
    """floor(x / other)."""
    return _binary("floordiv", x, other)


def remainder(x: Operand, other: Operand) -> Any:
    """x - other * floor(x / other): the sign of `other`."""
    return _binary("mod", x, other)


def fmod(x: Value, other: Operand) -> Any:
    """x - other * trunc(x / other): the sign of x."""
    a, b = _together(x, other)
    r = p.Mod()(p.Abs()(a), p.Abs()(b)) if a.type.dtype.is_signed else p.Mod()(a, b)
    return where(a < 0, -r, r) if a.type.dtype.is_signed else r


def pow(x: Operand, exponent: Operand) -> Any:
    """x ** exponent; small whole exponents become products."""
    if isinstance(x, Value) and isinstance(exponent, (int, float)) and not isinstance(exponent, bool):
        if not x.type.dtype.is_floating_point and isinstance(exponent, int) and exponent < 0:
            raise OpError(f"{x.type} ** {exponent}: integers to negative powers are not integers, cast to float first")
        if exponent == 2 and (x.type.dtype.is_floating_point or isinstance(exponent, int)):
            return x * x
        if exponent == 1 and (x.type.dtype.is_floating_point or isinstance(exponent, int)):
            return x * 1
    return _binary("pow", x, exponent)


def float_power(x: Operand, exponent: Operand) -> Any:
    """x ** exponent in float64."""
    a, b = _together(x, exponent, dtype=dt.float64)
    return p.Pow()(a, b)


def neg(x: Value) -> Any:
    """-x."""
    if x.type.dtype is dt.bool_:
        raise DTypeError(f"negation of {x.type}: use ~ or logical_not for bools")
    return -x


def positive(x: Value) -> Any:
    """x."""
    return +x


def abs(x: Value) -> Any:
    """|x|."""
    return p.Abs()(x) if x.type.dtype.is_signed else fresh(x)


def square(x: Value) -> Any:
    """x * x."""
    return x * x if x.type.dtype is not dt.bool_ else cast(x, dt.int64)


def reciprocal(x: Value) -> Any:
    """1 / x."""
    return 1.0 / floating(x)


def addcmul(x: Value, tensor1: Value, tensor2: Value, *, value: Scalar = 1) -> Any:
    """x + value * tensor1 * tensor2."""
    product = tensor1 * tensor2
    return x + (product if value == 1 else product * value)


def addcdiv(x: Value, tensor1: Value, tensor2: Value, *, value: Scalar = 1) -> Any:
    """x + value * tensor1 / tensor2."""
    if not common_dtype(tensor1, tensor2).is_floating_point:
        raise DTypeError(
            f"addcdiv of {tensor1.type} and {tensor2.type}: integer division needs an explicit rounding mode, use div"
        )
    quotient = tensor1 / tensor2
    return x + (quotient if value == 1 else quotient * value)


def lerp(x: Value, end: Value, weight: Operand) -> Any:
    """x + weight * (end - x), exact at both ends."""
    same_dtype("lerp", x, end, *([weight] if isinstance(weight, Value) else []))
    if isinstance(weight, Value):
        near = p.Lt()(*_together(abs(weight), 0.5))
        return where(near, x + weight * (end - x), end - (end - x) * (1 - weight))
    return x + weight * (end - x) if -0.5 < weight < 0.5 else end - (end - x) * (1 - weight)


def hypot(x: Value, other: Value) -> Any:
    """sqrt(x^2 + other^2), scaled so that neither square overflows."""
    a, b = (p.Abs()(v) for v in _together(x, other))
    big, small = p.Maximum()(a, b), p.Minimum()(a, b)
    zero = big <= 0
    ratio = small / where(zero, 1.0, big)
    return where(isinf(a) | isinf(b), math.inf, big * sqrt(1 + ratio * ratio))


# --- comparison and logic ------------------------------------------------------------------------------------------


def eq(x: Value, other: Operand) -> Any:
    """x == other, elementwise."""
    return _binary("eq", x, other)


def ne(x: Value, other: Operand) -> Any:
    """x != other, elementwise; true for NaN."""
    return p.BitNot()(_binary("eq", x, other))


def lt(x: Value, other: Operand) -> Any:
    """x < other."""
    return _binary("lt", x, other)


def le(x: Value, other: Operand) -> Any:
    """x <= other."""
    return _binary("le", x, other)


def gt(x: Value, other: Operand) -> Any:
    """x > other."""
    return _binary("lt", other, x)


def ge(x: Value, other: Operand) -> Any:
    """x >= other."""
    return _binary("le", other, x)


def _truth(x: Operand, like: Value) -> Any:
    return (
        constant(like, bool(x), dt.bool_)
        if not isinstance(x, Value)
        else x
        if x.type.dtype is dt.bool_
        else cast(x, dt.bool_)
    )


def logical_not(x: Value) -> Any:
    """True where x is zero."""
    return p.BitNot()(_truth(x, x))


def logical_and(x: Value, other: Value) -> Any:
    """True where both are nonzero."""
    return _truth(x, x) & _truth(other, x)


def logical_or(x: Value, other: Value) -> Any:
    """True where one or both are nonzero."""
    return _truth(x, x) | _truth(other, x)


def logical_xor(x: Value, other: Value) -> Any:
    """True where exactly one is nonzero."""
    return _truth(x, x) ^ _truth(other, x)


def bitwise_not(x: Value) -> Any:
    """~x."""
    return ~x


def bitwise_and(x: Operand, other: Operand) -> Any:
    """x & other."""
    return _binary("bit_and", x, other)


def bitwise_or(x: Operand, other: Operand) -> Any:
    """x | other."""
    return _binary("bit_or", x, other)


def bitwise_xor(x: Operand, other: Operand) -> Any:
    """x ^ other."""
    return _binary("bit_xor", x, other)


def bitwise_left_shift(x: Operand, other: Operand) -> Any:
    """x << other."""
    return _binary("shift_left", x, other)


def bitwise_right_shift(x: Operand, other: Operand) -> Any:
    """x >> other."""
    return _binary("shift_right", x, other)


def isnan(x: Value) -> Any:
    """True for NaN."""
    return p.BitNot()(p.Eq()(x, x))


def isinf(x: Value) -> Any:
    """True for both infinities."""
    return eq(abs(x), math.inf) if x.type.dtype.is_floating_point else ne(x, x)


def isposinf(x: Value) -> Any:
    """True for +inf."""
    return eq(x, math.inf) if x.type.dtype.is_floating_point else ne(x, x)


def isneginf(x: Value) -> Any:
    """True for -inf."""
    return eq(x, -math.inf) if x.type.dtype.is_floating_point else ne(x, x)


def isfinite(x: Value) -> Any:
    """False for NaN and infinities."""
    return lt(abs(x), math.inf) if x.type.dtype.is_floating_point else eq(x, x)


def isclose(x: Value, other: Value, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
    """|x - other| <= atol + rtol * |other|; infinities are close to themselves only."""
    if x.type.dtype is not other.type.dtype:
        raise DTypeError(f"isclose of {x.type} and {other.type}: dtypes differ, cast one side")
    if rtol < 0 or atol < 0:
        raise OpError(f"isclose rtol={rtol}, atol={atol}: wanted 0 or more")
    near = eq(x, other)
    if equal_nan and x.type.dtype.is_floating_point:
        near = near | (isnan(x) & isnan(other))
    if rtol == 0 and atol == 0:
        return near
    a, b = floating(x), floating(other)
    gap = abs(a - b)
    return near | (isfinite(gap) & (gap <= atol + abs(rtol * b)))


def signbit(x: Value) -> Any:
    """True for negative values and -0.0."""
    if not x.type.dtype.is_floating_point:
        return x < 0 if x.type.dtype.is_signed else ne(x, x)
    return (x < 0) | (eq(x, 0.0) & (1.0 / x < 0))


# --- choice --------------------------------------------------------------------------------------------------------


def where(condition: Value, x: Operand, other: Operand) -> Any:
    """x where `condition`, else `other`."""
    if condition.type.dtype is not dt.bool_:
        if condition.type.dtype is not dt.uint8:
            raise DTypeError(f"where wants a bool condition, got {condition.type}")
        condition = cast(condition, dt.bool_)
    dtype = common_dtype(x, other)
    shape = broadcast_shapes(*(v.type.shape for v in (condition, x, other) if isinstance(v, Value)))
    a, b = (
        expand_to(cast(v, dtype), shape) if isinstance(v, Value) else condition.beside(v, dtype, shape)
        for v in (x, other)
    )
    return p.Select()(expand_to(condition, shape), a, b)


def masked_fill(x: Value, mask: Value, value: Operand) -> Any:
    """`value` where `mask`, else x; in x's dtype."""
    if mask.type.dtype is not dt.bool_:
        raise DTypeError(f"masked_fill wants a bool mask, got {mask.type}")
    if isinstance(value, Value) and value.type.shape:
        raise OpError(f"masked_fill wants a number or a rank-0 value, got {value.type}")
    return where(mask, _value(value, x, x.type.dtype), x)


def maximum(x: Value, other: Value) -> Any:
    """The larger of both; NaN where either is."""
    return p.Maximum()(*_together(x, other))


def minimum(x: Value, other: Value) -> Any:
    """The smaller of both; NaN where either is."""
    return p.Minimum()(*_together(x, other))


def fmax(x: Value, other: Value) -> Any:
    """The larger of both, ignoring NaN where one is a number."""
    a, b = _together(x, other)
    return (
        where(isnan(a), b, where(isnan(b), a, where(b > a, b, a)))
        if a.type.dtype.is_floating_point
        else p.Maximum()(a, b)
    )


def fmin(x: Value, other: Value) -> Any:
    """The smaller of both, ignoring NaN where one is a number."""
    a, b = _together(x, other)
    return (
        where(isnan(a), b, where(isnan(b), a, where(b < a, b, a)))
        if a.type.dtype.is_floating_point
        else p.Minimum()(a, b)
    )


def clamp(x: Value, min: Operand | None = None, max: Operand | None = None) -> Any:
    """x limited to [min, max]; NaN stays, and the gradient passes at the limits."""
    if min is None and max is None:
        raise OpError("clamp wants min, max or both")
    # Selects, because the gradient of maximum would be halved where x equals the limit.
    if min is not None:
        x = where(_binary("lt", x, min), min, x)
    if max is not None:
        x = where(_binary("lt", max, x), max, x)
    return x


clip = clamp


def clamp_min(x: Value, min: Operand) -> Any:
    """max(x, min)."""
    return clamp(x, min=min)


def clamp_max(x: Value, max: Operand) -> Any:
    """min(x, max)."""
    return clamp(x, max=max)


def nan_to_num(x: Value, nan: float | None = 0.0, posinf: float | None = None, neginf: float | None = None) -> Any:
    """x with NaN, +inf and -inf replaced; the infinities by the largest finite values unless given."""
    if not x.type.dtype.is_floating_point:
        return fresh(x)
    largest = float(x.type.dtype.finfo.max)
    y = where(isnan(x), _value(nan or 0.0, x, x.type.dtype), x)
    y = where(isposinf(x), _value(largest if posinf is None else posinf, x, x.type.dtype), y)
    return where(isneginf(x), _value(-largest if neginf is None else neginf, x, x.type.dtype), y)


def heaviside(x: Value, values: Value) -> Any:
    """0 below zero, 1 above, `values` at zero."""
    same_dtype("heaviside", x, values)
    a, b = _together(x, values)
    step = cast(a > 0, a.type.dtype)
    return where(eq(a, 0), b, where(isnan(a), a, step) if a.type.dtype.is_floating_point else step)


def copysign(x: Value, other: Operand) -> Any:
    """|x| with the sign of `other`."""
    a, b = (floating(v) for v in _together(x, other))
    return where(signbit(b), -abs(a), abs(a))


# --- rounding and sign ---------------------------------------------------------------------------------------------


def _rounding(op: type[Any], x: Value) -> Any:
    return op()(x) if x.type.dtype.is_floating_point else fresh(x)


def floor(x: Value) -> Any:
    """The largest whole number <= x."""
    return _rounding(p.Floor, x)


def ceil(x: Value) -> Any:
    """The smallest whole number >= x."""
    return _rounding(p.Ceil, x)


def round(x: Value, *, decimals: int = 0) -> Any:
    """The nearest whole number, halves to even; `decimals` digits after the point are kept."""
    if decimals == 0 or not x.type.dtype.is_floating_point:
        return _rounding(p.Round, x)
    scale = 10.0 ** (decimals if decimals > 0 else -decimals)
    return p.Round()(x * scale) / scale if decimals > 0 else p.Round()(x / scale) * scale


def trunc(x: Value) -> Any:
    """x without its fraction."""
    return where(x < 0, p.Ceil()(x), p.Floor()(x)) if x.type.dtype.is_floating_point else fresh(x)


fix = trunc


def frac(x: Value) -> Any:
    """x - trunc(x)."""
    return x - trunc(x)


def sign(x: Value) -> Any:
    """-1, 0 or 1."""
    return p.Sign()(x) if x.type.dtype.is_signed else cast(ne(x, 0), x.type.dtype)


sgn = sign


# --- functions of a real argument ----------------------------------------------------------------------------------


def exp(x: Value) -> Any:
    """e ** x."""
    return p.Exp()(floating(x))


def exp2(x: Value) -> Any:
    """2 ** x."""
    x = floating(x)
    return p.Pow()(*_together(2.0, x))


def expm1(x: Value) -> Any:
    """e ** x - 1, accurate near 0."""
    return p.Expm1()(floating(x))


def log(x: Value) -> Any:
    """The natural logarithm."""
    return p.Log()(floating(x))


def log1p(x: Value) -> Any:
    """log(1 + x), accurate near 0."""
    return p.Log1p()(floating(x))


def log2(x: Value) -> Any:
    """The logarithm to base 2."""
    return log(x) * (1 / math.log(2))


def log10(x: Value) -> Any:
    """The logarithm to base 10."""
    return log(x) * (1 / math.log(10))


def sqrt(x: Value) -> Any:
    """The square root; NaN below zero."""
    return p.Sqrt()(floating(x))


def rsqrt(x: Value) -> Any:
    """1 / sqrt(x)."""
    return 1.0 / sqrt(x)


def sin(x: Value) -> Any:
    """sin(x)."""
    return p.Sin()(floating(x))


def cos(x: Value) -> Any:
    """cos(x)."""
    return p.Cos()(floating(x))


def tan(x: Value) -> Any:
    """sin(x) / cos(x)."""
    return sin(x) / cos(x)


def asin(x: Value) -> Any:
    """The angle in [-pi/2, pi/2] whose sine is x."""
    x = floating(x)
    return p.Atan2()(x, sqrt((1 - x) * (1 + x)))


def acos(x: Value) -> Any:
    """The angle in [0, pi] whose cosine is x."""
    x = floating(x)
    return p.Atan2()(sqrt((1 - x) * (1 + x)), x)


def atan(x: Value) -> Any:
    """The angle in [-pi/2, pi/2] whose tangent is x."""
    return p.Atan2()(*_together(floating(x), 1.0))


def atan2(x: Value, other: Value) -> Any:
    """The angle of the point (other, x)."""
    a, b = _together(x, other)
    return p.Atan2()(floating(a), floating(b))


def sinh(x: Value) -> Any:
    """(e^x - e^-x) / 2, accurate near 0."""
    up, down = expm1(x), expm1(-floating(x))
    return (up - down) * 0.5


def cosh(x: Value) -> Any:
    """(e^x + e^-x) / 2."""
    return (exp(x) + exp(-floating(x))) * 0.5


def tanh(x: Value) -> Any:
    """The hyperbolic tangent."""
    return p.Tanh()(floating(x))


def asinh(x: Value) -> Any:
    """log(x + sqrt(x^2 + 1)), odd and accurate near 0."""
    x = floating(x)
    a = where(x < 0, -x, x)
    big = a > 1e8  # beyond, a^2 + 1 rounds to a^2, and overflows later
    s = where(big, 1.0, a)
    small = log1p(s + s * s / (1 + sqrt(s * s + 1)))
    return where(x < 0, -1.0, 1.0) * where(big, log(where(big, a, 1.0)) + math.log(2), small)


def acosh(x: Value) -> Any:
    """log(x + sqrt(x^2 - 1)) for x >= 1."""
    x = floating(x)
    big = x > 1e8
    t = where(big, 1.0, x - 1)
    return where(big, log(where(big, x, 1.0)) + math.log(2), log1p(t + sqrt(t * (t + 2))))


def atanh(x: Value) -> Any:
    """log((1 + x) / (1 - x)) / 2, accurate near 0."""
    x = floating(x)
    return (log1p(x) - log1p(-x)) * 0.5


def erf(x: Value) -> Any:
    """The error function."""
    return p.Erf()(floating(x))


def erfc(x: Value) -> Any:
    """1 - erf(x)."""
    return 1 - erf(x)


def lgamma(x: Value) -> Any:
    """log |gamma(x)|."""
    return p.Lgamma()(floating(x))


def polygamma(n: int, x: Value) -> Any:
    """The n-th derivative of digamma."""
    return p.Polygamma(n)(floating(x))


def digamma(x: Value) -> Any:
    """The derivative of lgamma."""
    return p.Polygamma(0)(floating(x))


def logaddexp(x: Value, other: Value) -> Any:
    """log(e^x + e^other) without overflow."""
    a, b = _together(x, other)
    big, gap = where(a < b, b, a), abs(a - b)
    return where(eq(a, b) & isinf(a), a, big + log1p(exp(-gap)))


def logaddexp2(x: Value, other: Value) -> Any:
    """log2(2^x + 2^other) without overflow."""
    return logaddexp(x * math.log(2), other * math.log(2)) * (1 / math.log(2))


def xlogy(x: Operand, other: Operand) -> Any:
    """x * log(other), 0 where x is 0 and `other` is not NaN."""
    a, b = (floating(v) for v in _together(x, other))
    zero = eq(a, 0) & ~isnan(b)
    return where(zero, 0.0, a * log(where(zero, 1.0, b)))


def logit(x: Value, eps: float | None = None) -> Any:
    """log(x / (1 - x)), x limited to [eps, 1 - eps] where eps is given."""
    x = floating(x)
    x = x if eps is None else clamp(x, eps, 1 - eps)
    return log(x / (1 - x))


def sinc(x: Value) -> Any:
    """sin(pi x) / (pi x), 1 at 0."""
    x = floating(x) * math.pi
    zero = eq(x, 0)
    return where(zero, 1.0, sin(x) / where(zero, 1.0, x))


def deg2rad(x: Value) -> Any:
    """Degrees as radians."""
    return floating(x) * (math.pi / 180)


def rad2deg(x: Value) -> Any:
    """Radians as degrees."""
    return floating(x) * (180 / math.pi)


def ldexp(x: Value, other: Value) -> Any:
    """x * 2^other."""
    return x * p.Pow()(*_together(2.0, floating(other)))


def mvlgamma(x: Value, p: int) -> Any:
    """The logarithm of the multivariate gamma function of dimension p."""
    if p < 1:
        raise OpError(f"mvlgamma of {x.type}: p is {p}, wanted 1 or more")
    x = floating(x)
    return sum((lgamma(x - 0.5 * i) for i in range(p)), start=0.25 * p * (p - 1) * math.log(math.pi))


# --- of complex numbers, which real ones are -----------------------------------------------------------------------


def real(x: Value) -> Any:
    """x itself: there are no complex types."""
    return x


conj = resolve_conj = resolve_neg = real


def conj_physical(x: Value) -> Any:
    """x in memory of its own."""
    return fresh(x)


def isreal(x: Value) -> Any:
    """True everywhere."""
    return eq(cast(x, dt.bool_), cast(x, dt.bool_))


def angle(x: Value) -> Any:
    """pi for negative numbers, else 0; NaN stays."""
    x = floating(x)
    return where(isnan(x), x, where(x < 0, math.pi, x * 0))


# PyTorch's second names
absolute, negative, multiply, divide, true_divide, subtract, not_equal = abs, neg, mul, div, div, sub, ne
greater, greater_equal, less, less_equal = gt, ge, lt, le
arcsin, arccos, arctan, arctan2, arcsinh, arccosh, arctanh = asin, acos, atan, atan2, asinh, acosh, atanh
