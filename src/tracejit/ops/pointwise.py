"""Elementwise ops: equal types in, one element out for one element of each input.

Broadcasting, promotion and casts are nodes of their own, so every class here has the one type rule of `Pointwise`; what
differs is the NumPy function, the dtypes it takes (`kinds`) and the gradient. float16 and bfloat16 are computed in
float32 and rounded once. Nothing warns: log(-1) is nan, 1/0 is inf.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar

import numpy as np

from tracejit.errors import DTypeError, OpError
from tracejit.ir import dtype as dt
from tracejit.ir.dtype import DType
from tracejit.ir.node import Node, Value, binary
from tracejit.ir.op import Array, At, Op, Reader, Sample
from tracejit.ir.types import TensorType, Type, same_type
from tracejit.ops import special
from tracejit.ops.source import const, zeros_like
from tracejit.records import dataclass

__all__ = [
    "Abs", "Add", "Atan2", "BitAnd", "BitNot", "BitOr", "BitXor", "Cast", "Ceil", "Cos", "Div", "Eq", "Erf", "Exp",
    "Expm1", "Floor", "FloorDiv", "Le", "Lgamma", "Log", "Log1p", "Lt", "Maximum", "Minimum", "Mod", "Mul", "Neg",
    "Pointwise", "Polygamma", "Pow", "Round", "Select", "ShiftLeft", "ShiftRight", "Sign", "Sin", "Sqrt", "Sub",
    "Tanh", "abs", "atan2", "bit_not", "cast", "ceil", "cos", "digamma", "eq", "erf", "exp", "expm1", "floor",
    "lgamma", "log", "log1p", "maximum", "minimum", "neg", "polygamma", "round", "select", "sign", "sin", "sqrt",
    "tanh",
]  # fmt: skip

Domain = tuple[float, float]
SPECIAL = (math.nan, math.inf, -math.inf, -0.0, 0.0, 1.0, -1.0, 0.5, -2.0, 1e-40, 1e30, -1e30, 88.0, -104.0, 2.5)


@np.errstate(all="ignore")
def compute(f: Callable[..., Any], *xs: Array) -> Array:
    """f(*xs) without warnings, as an array; 2-byte floats through float32."""
    d = xs[0].dtype
    if d.itemsize == 2 and d.kind in "fV":  # NumPy calls bfloat16 a void type
        y = np.asarray(f(*(x.astype(np.float32) for x in xs)))
        return y.astype(d) if y.dtype == np.float32 else y
    return np.asarray(f(*xs))


class Pointwise(Op):
    """y[i] = ufunc(x[i], ...)."""

    kinds: ClassVar[str] = "f"  # of dtype: f, i, u, b
    domains: ClassVar[tuple[Domain, ...]] = ((-2.0, 2.0),)  # one per input: where the gradient is smooth
    ufunc: ClassVar[Callable[..., Any]]
    result: ClassVar[DType | None] = None  # the result's dtype, where it is not the inputs'

    def infer(self, *types: TensorType) -> Type:
        first = types[0]
        if len(types) != len(self.domains):
            raise OpError(f"{self.name} takes {len(self.domains)} operands, got {len(types)}")
        if any(not same_type(t, first) for t in types):
            raise OpError(f"{self.name} wants equal types, got {' and '.join(map(str, types))}")
        if first.dtype.kind not in self.kinds:
            raise DTypeError(f"{self.name} has no meaning for {first}")
        return first.with_dtype(self.result) if self.result else first

    def eval(self, *xs: Array) -> Array:
        return compute(self.ufunc, *xs)

    def element(self, at: At, *xs: Reader) -> Node:
        return self(*(x(at) for x in xs))

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterator[Sample]:
        return pointwise_samples(cls(), rng)


def pointwise_samples(op: Pointwise, rng: np.random.Generator) -> Iterator[Sample]:
    """Each dtype, sizes 0 and 1 and rank 0, a symbolic axis, every pair of special values, integer extremes."""
    n = len(op.domains)

    def draw(shape: tuple[int, ...], dtype: DType = dt.float64) -> tuple[Array, ...]:
        if dtype.kind == "f":
            return tuple(rng.uniform(*d, size=shape).astype(dtype.numpy) for d in op.domains)
        low, high = (0, 2) if dtype.kind == "b" else (0, 9) if dtype.kind == "u" else (-9, 9)
        return tuple(rng.integers(low, high, size=shape).astype(dtype.numpy) for _ in range(n))

    for dtype in dt.ALL:
        if dtype.kind in op.kinds:
            yield Sample(op, draw((3, 5), dtype), differentiable=dtype.kind == "f", tolerance=TOLERANCE[dtype])
    float_ok = "f" in op.kinds
    shape_dtype = dt.float64 if float_ok else dt.int64
    for shape in ((), (0,), (1,), (2, 0, 3), (37,)):
        yield Sample(op, draw(shape, shape_dtype), differentiable=float_ok)
    yield Sample(op, draw((4, 3), shape_dtype), tuple((i, 0, "n") for i in range(n)), differentiable=float_ok)
    if float_ok:
        for dtype in (dt.float32, dt.float64, dt.float16, dt.bfloat16):
            with np.errstate(all="ignore"):
                grid = np.meshgrid(*[np.array(SPECIAL).astype(dtype.numpy).astype(np.float64)] * n)
                xs = tuple(np.ascontiguousarray(g.ravel()).astype(dtype.numpy) for g in grid)
            yield Sample(op, xs, differentiable=False, tolerance=TOLERANCE[dtype], note="special values")
    for dtype in (dt.int8, dt.int32, dt.int64, dt.uint8):
        if dtype.kind in op.kinds:
            info = np.iinfo(dtype.numpy)
            row = np.array([info.min, info.min + 1, 0, 1, 2, 7, info.max - 1, info.max], dtype.numpy)
            row = np.concatenate([row, np.array([-1, -2, -7] if info.min else [3, 5, 9], dtype.numpy)])
            xs = tuple(np.ascontiguousarray(g.ravel()) for g in np.meshgrid(*[row] * n))
            yield Sample(op, xs, differentiable=False, note="extreme integers")


TOLERANCE = {dt.float64: 1e-12, dt.float32: 1e-5, dt.float16: 2e-3, dt.bfloat16: 2e-2} | {
    d: 0.0 for d in dt.ALL if d.kind != "f"
}

# --- one input ------------------------------------------------------------------------------------------------------


class Neg(Pointwise):
    """y = -x."""

    name = "neg"
    kinds = "fiu"
    ufunc = np.negative

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (-g,)


class Abs(Pointwise):
    """y = |x|; the gradient at 0 is 0."""

    name = "abs"
    kinds = "fiu"
    domains = ((0.1, 2.0),)
    ufunc = np.abs

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (g * sign(x),)


class Sign(Pointwise):
    """-1, 0 or 1; 0 for nan, as PyTorch."""

    name = "sign"
    kinds = "fiu"
    domains = ((0.1, 2.0),)

    @staticmethod
    def ufunc(x: Array) -> Array:
        return np.subtract(x > 0, x < 0, dtype=np.int8).astype(x.dtype)

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (zeros_like(x),)


class Floor(Pointwise):
    """The largest integer <= x."""

    name = "floor"
    domains = ((0.1, 0.4),)
    ufunc = np.floor

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (zeros_like(x),)


class Ceil(Pointwise):
    """The smallest integer >= x."""

    name = "ceil"
    domains = ((0.1, 0.4),)
    ufunc = np.ceil

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (zeros_like(x),)


class Round(Pointwise):
    """The nearest integer, ties to even."""

    name = "round"
    domains = ((0.1, 0.4),)
    ufunc = np.rint

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (zeros_like(x),)


class Exp(Pointwise):
    """y = e^x."""

    name = "exp"
    ufunc = np.exp

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (g * y,)


class Expm1(Pointwise):
    """y = e^x - 1, exact near 0."""

    name = "expm1"
    ufunc = np.expm1

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (g * (y + 1),)


class Log(Pointwise):
    """The natural logarithm."""

    name = "log"
    domains = ((0.1, 3.0),)
    ufunc = np.log

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (g / x,)


class Log1p(Pointwise):
    """y = log(1 + x), exact near 0."""

    name = "log1p"
    domains = ((-0.8, 3.0),)
    ufunc = np.log1p

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (g / (x + 1),)


class Sqrt(Pointwise):
    """The square root."""

    name = "sqrt"
    domains = ((0.1, 3.0),)
    ufunc = np.sqrt

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (g / (y * 2),)


class Sin(Pointwise):
    """The sine of x in radians."""

    name = "sin"
    ufunc = np.sin

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (g * cos(x),)


class Cos(Pointwise):
    """The cosine of x in radians."""

    name = "cos"
    ufunc = np.cos

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (-(g * sin(x)),)


class Tanh(Pointwise):
    """The hyperbolic tangent."""

    name = "tanh"
    ufunc = np.tanh

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (g * (1 - y * y),)


class Erf(Pointwise):
    """y = 2/sqrt(pi) * integral of e^(-t^2) from 0 to x."""

    name = "erf"
    ufunc = staticmethod(special.erf)

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (g * (exp(-(x * x)) * (2 / math.sqrt(math.pi))),)


class Lgamma(Pointwise):
    """y = log |gamma(x)|."""

    name = "lgamma"
    domains = ((0.3, 4.0),)
    ufunc = staticmethod(special.lgamma)

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (g * polygamma(0, x),)


@dataclass(frozen=True)
class Polygamma(Pointwise):
    """The n-th derivative of digamma; n = 0 is digamma itself."""

    name = "polygamma"
    domains = ((0.3, 4.0),)
    n: int

    def infer(self, *types: TensorType) -> Type:
        if self.n < 0:
            raise OpError(f"polygamma of order {self.n}: the order is at least 0")
        return super().infer(*types)

    def eval(self, *xs: Array) -> Array:
        return compute(partial(special.polygamma, self.n), *xs)

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (g * polygamma(self.n + 1, x),)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterator[Sample]:
        for n in (0, 1, 2):
            yield from pointwise_samples(cls(n), rng)


class BitNot(Pointwise):
    """Every bit inverted; logical not of bools."""

    name = "bit_not"
    kinds = "iub"
    ufunc = np.invert

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        return (None,)


@dataclass(frozen=True)
class Cast(Op):
    """x as `dtype`: floats truncate, integers wrap, all but 0 is True. Floats out of an integer's range: undefined."""

    name = "cast"
    dtype: DType

    def infer(self, x: TensorType) -> Type:
        return x.with_dtype(self.dtype)

    @np.errstate(all="ignore")
    def eval(self, x: Array) -> Array:
        return np.asarray(x.astype(self.dtype.numpy))

    def vjp(self, g: Any, y: Any, x: Any) -> tuple[Any, ...]:
        both = self.dtype.is_floating_point and x.type.dtype.is_floating_point
        return (Cast(x.type.dtype)(g) if both else None,)

    def element(self, at: At, x: Reader) -> Node:
        return self(x(at))

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterator[Sample]:
        for a in dt.ALL:
            for b in dt.ALL:
                low = 0 if "u" in (a.kind, b.kind) else -100
                x = rng.uniform(low, 100, size=(7,)).astype(a.numpy)
                yield Sample(cls(b), (x,), differentiable=a is b is dt.float64)
        special = np.array([math.nan, math.inf, -math.inf, -0.0, 0.0, 1e-45, 65520.0, 1e39, 0.1])
        for a, b in (
            (dt.float64, dt.float32),
            (dt.float64, dt.float16),
            (dt.float32, dt.bfloat16),
            (dt.float64, dt.bool_),
        ):
            with np.errstate(all="ignore"):
                yield Sample(cls(b), (special.astype(a.numpy),), differentiable=False)
        yield Sample(cls(dt.int8), (np.array([128, -129, 255, 2**40 + 3], np.int64),), note="wraps")
        yield Sample(cls(dt.float32), (np.zeros((0, 3)),), differentiable=False)
        yield Sample(cls(dt.float32), (np.asarray(1.5),), differentiable=False)
        yield Sample(cls(dt.int64), (np.ones((2, 3), np.float32),), ((0, 1, "n"),))


# --- two inputs -----------------------------------------------------------------------------------------------------

PAIR: tuple[Domain, ...] = ((-2.0, 2.0), (-2.0, 2.0))


class Add(Pointwise):
    """y = a + b; logical or of bools."""

    name = "add"
    kinds = "fiub"
    domains = PAIR
    ufunc = np.add

    def vjp(self, g: Any, y: Any, a: Any, b: Any) -> tuple[Any, ...]:
        return g, g


class Sub(Pointwise):
    """y = a - b."""

    name = "sub"
    kinds = "fiu"
    domains = PAIR
    ufunc = np.subtract

    def vjp(self, g: Any, y: Any, a: Any, b: Any) -> tuple[Any, ...]:
        return g, -g


class Mul(Pointwise):
    """y = a * b; logical and of bools."""

    name = "mul"
    kinds = "fiub"
    domains = PAIR
    ufunc = np.multiply

    def vjp(self, g: Any, y: Any, a: Any, b: Any) -> tuple[Any, ...]:
        return g * b, g * a


class Div(Pointwise):
    """y = a / b."""

    name = "div"
    domains = ((-2.0, 2.0), (0.5, 2.0))
    ufunc = np.divide

    def vjp(self, g: Any, y: Any, a: Any, b: Any) -> tuple[Any, ...]:
        return g / b, -(g * (y / b))


class FloorDiv(Pointwise):
    """The floor of a / b. Integers by 0 give 0, the smallest integer by -1 gives itself: the caller checks first."""

    name = "floordiv"
    kinds = "fiu"
    domains = ((0.1, 0.9), (1.0, 2.0))
    ufunc = np.floor_divide

    def vjp(self, g: Any, y: Any, a: Any, b: Any) -> tuple[Any, ...]:
        return zeros_like(a), zeros_like(b)


class Mod(Pointwise):
    """a - floor(a / b) * b: the sign of b, as Python's %. Integers by zero give 0."""

    name = "mod"
    kinds = "fiu"
    domains = ((2.1, 2.9), (1.0, 1.05))
    ufunc = np.remainder

    def vjp(self, g: Any, y: Any, a: Any, b: Any) -> tuple[Any, ...]:
        return g, -(g * FloorDiv()(a, b))


class Pow(Pointwise):
    """y = a ** b. Integers to a negative power give 0, except those of 1 and -1."""

    name = "pow"
    kinds = "fiu"
    domains = ((0.3, 2.0), (-2.0, 2.0))

    @staticmethod
    def ufunc(a: Array, b: Array) -> Array:
        if a.dtype.kind not in "iu":
            return np.power(a, b)
        y = np.power(a, np.maximum(b, 0))
        odd = np.where(b & 1, a, a * a)  # what a power of 1 or -1 is
        return np.where(b >= 0, y, np.where(np.abs(a) == 1, odd, 0)).astype(a.dtype)

    def vjp(self, g: Any, y: Any, a: Any, b: Any) -> tuple[Any, ...]:
        # The exponent 0 and the base 0 are replaced before pow and log see them, not masked after: a masked infinity
        # still makes nan when this gradient is differentiated.
        down = select(eq(b, 0), const(b, 1, b.type.dtype, b.type.shape), b) - 1
        base = select(eq(a, 0) & (b >= 0), const(a, 1, a.type.dtype, a.type.shape), a)
        return g * (b * (a**down)), g * (y * log(base))


class Atan2(Pointwise):
    """The angle of the point (b, a), in (-pi, pi]."""

    name = "atan2"
    domains = ((0.2, 2.0), (-2.0, 2.0))
    ufunc = np.arctan2

    def vjp(self, g: Any, y: Any, a: Any, b: Any) -> tuple[Any, ...]:
        r = g / (a * a + b * b)
        return r * b, -(r * a)


class Maximum(Pointwise):
    """The larger of a and b, nan if either is; where they are equal each gets half the gradient."""

    name = "maximum"
    kinds = "fiub"
    domains = ((-2.0, 0.0), (0.1, 2.0))
    ufunc = np.maximum

    def vjp(self, g: Any, y: Any, a: Any, b: Any) -> tuple[Any, ...]:
        return _share(g, a, b, a < b), _share(g, a, b, b < a)


class Minimum(Pointwise):
    """The smaller of a and b, nan if either is; where they are equal each gets half the gradient."""

    name = "minimum"
    kinds = "fiub"
    domains = ((-2.0, 0.0), (0.1, 2.0))
    ufunc = np.minimum

    def vjp(self, g: Any, y: Any, a: Any, b: Any) -> tuple[Any, ...]:
        return _share(g, a, b, b < a), _share(g, a, b, a < b)


def _share(g: Any, a: Any, b: Any, lost: Any) -> Any:
    return select(lost, zeros_like(g), select(eq(a, b), g * 0.5, g))


class _Bits(Pointwise):
    kinds = "iub"
    domains = PAIR

    def vjp(self, g: Any, y: Any, a: Any, b: Any) -> tuple[Any, ...]:
        return None, None


class BitAnd(_Bits):
    """a & b; logical and of bools."""

    name = "bit_and"
    ufunc = np.bitwise_and


class BitOr(_Bits):
    """a | b; logical or of bools."""

    name = "bit_or"
    ufunc = np.bitwise_or


class BitXor(_Bits):
    """a ^ b."""

    name = "bit_xor"
    ufunc = np.bitwise_xor


class ShiftLeft(_Bits):
    """a << b; 0 where b is negative or not below the number of bits."""

    name = "shift_left"
    kinds = "iu"
    ufunc = np.left_shift


class ShiftRight(_Bits):
    """a >> b, keeping the sign; 0 (or -1 for negative a) where b is negative or not below the number of bits."""

    name = "shift_right"
    kinds = "iu"
    ufunc = np.right_shift


class _Comparison(Pointwise):
    kinds = "fiub"
    domains = PAIR
    result = dt.bool_

    def vjp(self, g: Any, y: Any, a: Any, b: Any) -> tuple[Any, ...]:
        return None, None


class Eq(_Comparison):
    """a == b; nan equals nothing."""

    name = "eq"
    ufunc = np.equal


class Lt(_Comparison):
    """a < b."""

    name = "lt"
    ufunc = np.less


class Le(_Comparison):
    """a <= b."""

    name = "le"
    ufunc = np.less_equal


class Select(Op):
    """y[i] = a[i] where condition[i], else b[i]."""

    name = "select"

    def infer(self, condition: TensorType, a: TensorType, b: TensorType) -> Type:
        if not same_type(a, b) or not same_type(condition, a.with_dtype(dt.bool_)):
            raise OpError(f"select wants bool[...] and two equal types of its shape, got {condition}, {a} and {b}")
        return a

    def eval(self, condition: Array, a: Array, b: Array) -> Array:
        return np.where(condition, a, b)

    def vjp(self, g: Any, y: Any, condition: Any, a: Any, b: Any) -> tuple[Any, ...]:
        zero = zeros_like(g)
        return None, select(condition, g, zero), select(condition, zero, g)

    def element(self, at: At, condition: Reader, a: Reader, b: Reader) -> Node:
        return self(condition(at), a(at), b(at))

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterator[Sample]:
        def draw(shape: tuple[int, ...], dtype: DType = dt.float64) -> tuple[Array, ...]:
            pair = [(9 * rng.random(shape)).astype(dtype.numpy) for _ in range(2)]
            return (rng.random(shape) < 0.5, *pair)

        for dtype in dt.ALL:
            yield Sample(cls(), draw((3, 5), dtype), differentiable=dtype.kind == "f")
        for shape in ((), (0,), (1,), (2, 0)):
            yield Sample(cls(), draw(shape))
        yield Sample(cls(), draw((4, 3)), tuple((i, 0, "n") for i in range(3)))
        a = np.array([math.nan, -0.0, math.inf, 1.0])
        yield Sample(cls(), (np.array([True, True, False, False]), a, a[::-1]), differentiable=False)


# --- the same, as functions -----------------------------------------------------------------------------------------


def exp(x: Value) -> Any:
    """e^x."""
    return Exp()(x)


def expm1(x: Value) -> Any:
    """e^x - 1, exact near 0."""
    return Expm1()(x)


def log(x: Value) -> Any:
    """The natural logarithm."""
    return Log()(x)


def log1p(x: Value) -> Any:
    """log(1 + x), exact near 0."""
    return Log1p()(x)


def sqrt(x: Value) -> Any:
    """The square root."""
    return Sqrt()(x)


def sin(x: Value) -> Any:
    """The sine."""
    return Sin()(x)


def cos(x: Value) -> Any:
    """The cosine."""
    return Cos()(x)


def tanh(x: Value) -> Any:
    """The hyperbolic tangent."""
    return Tanh()(x)


def erf(x: Value) -> Any:
    """The error function."""
    return Erf()(x)


def lgamma(x: Value) -> Any:
    """log |gamma(x)|."""
    return Lgamma()(x)


def polygamma(n: int, x: Value) -> Any:
    """The n-th derivative of digamma."""
    return Polygamma(n)(x)


def digamma(x: Value) -> Any:
    """The derivative of lgamma."""
    return Polygamma(0)(x)


def neg(x: Value) -> Any:
    """-x."""
    return Neg()(x)


def abs(x: Value) -> Any:
    """|x|."""
    return Abs()(x)


def sign(x: Value) -> Any:
    """-1, 0 or 1."""
    return Sign()(x)


def floor(x: Value) -> Any:
    """The largest integer <= x."""
    return Floor()(x)


def ceil(x: Value) -> Any:
    """The smallest integer >= x."""
    return Ceil()(x)


def round(x: Value) -> Any:
    """The nearest integer, ties to even."""
    return Round()(x)


def bit_not(x: Value) -> Any:
    """~x."""
    return BitNot()(x)


def cast(x: Any, dtype: DType) -> Any:
    """x as `dtype`; x itself where it already is."""
    return x if x.type.dtype is dtype else Cast(dtype)(x)


def select(condition: Value, a: Value, b: Value) -> Any:
    """a where the condition holds, else b; all of one shape."""
    return Select()(condition, a, b)


def eq(a: Any, b: Any) -> Any:
    """a == b, promoted and broadcast; b may be a scalar."""
    return binary("eq", a, b)


def maximum(a: Any, b: Any) -> Any:
    """The larger of a and b, promoted and broadcast."""
    return binary("maximum", a, b)


def minimum(a: Any, b: Any) -> Any:
    """The smaller of a and b, promoted and broadcast."""
    return binary("minimum", a, b)


def atan2(a: Any, b: Any) -> Any:
    """The angle of the point (b, a), promoted and broadcast."""
    return binary("atan2", a, b)
