"""Rules about values: arithmetic, comparisons, casts, choices. The contract of every rule here and in `movement`:

1. The type is unchanged, symbolic dims included.
2. The replacement costs no more, so rewriting terminates. A rule that only tidies (constants to the right) goes one
   way.
3. `exact=True` keeps every bit, on infinities, -0.0, subnormals and integer overflow too; a nan stays a nan, but its
   sign and payload may change, since neither IEEE 754 nor NumPy fixes them. Anything else is `exact=False` and runs
   only where the caller allows other roundings. (`x + 0.0` is not `x`: -0.0. `x * 0` is not `0`: nan, inf. `x - x`
   neither.)
4. No general commutativity or associativity: where both orders occur, write the second rule.
5. The line above it says why it pays.
"""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# (the variables of a pattern are any values; saying so in each would bury the mathematics)

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tracejit.ir.dtype import DType, bool_, float32, float64
from tracejit.ir.node import Node
from tracejit.ir.op import ArrayConst
from tracejit.ops.pointwise import (
    Add,
    BitAnd,
    BitNot,
    BitOr,
    BitXor,
    Cast,
    Div,
    Eq,
    Le,
    Lt,
    Mul,
    abs,
    ceil,
    eq,
    exp,
    expm1,
    floor,
    log,
    log1p,
    maximum,
    minimum,
    round,
    select,
    sqrt,
)
from tracejit.ops.source import Const, const, full
from tracejit.passes.rewrite import Bool, PatternRule, RootRule, Rule, rule, rule_on

__all__ = ["RULES", "collect"]


def like(x: Any, value: bool | int | float) -> Any:
    """`value` as a constant of the dtype of x."""
    return const(x, value, x.type.dtype)


# --- signs ----------------------------------------------------------------------------------------------------------


# Each pair of negations is a no-op.
@rule(exact=True)
def double_neg(x):
    return -(-x), x  # noqa: B002


# One op instead of two, here and in the next four.
@rule(exact=True)
def add_neg(x, y):
    return x + -y, x - y


@rule(exact=True)
def neg_add(x, y):
    return -x + y, y - x


@rule(exact=True)
def sub_neg(x, y):
    return x - -y, x + y


@rule(exact=True)
def mul_neg_neg(x, y):
    return -x * -y, x * y


@rule(exact=True, kinds="f")
def div_neg_neg(x, y):
    return -x / -y, x / y


# Integers only: where x == y the float difference is 0.0 and its negative -0.0.
@rule(exact=True, kinds="iu")
def neg_sub(x, y):
    return -(x - y), y - x


# The sign is dropped anyway; the unsigned have none to drop.
@rule(exact=True, kinds="fi")
def abs_neg(x):
    return abs(-x), abs(x)


# The second time changes nothing, here and in the next three.
@rule(exact=True)
def abs_abs(x):
    return abs(abs(x)), abs(x)


@rule(exact=True)
def floor_floor(x):
    return floor(floor(x)), floor(x)


@rule(exact=True)
def ceil_ceil(x):
    return ceil(ceil(x)), ceil(x)


@rule(exact=True)
def round_round(x):
    return round(round(x)), round(x)


# --- neutral and absorbing elements ---------------------------------------------------------------------------------


# A pass over memory for nothing, here and in the next ones.
@rule(exact=True)
def mul_one(x):
    return x * like(x, 1), x


@rule(exact=True, kinds="f")
def div_one(x):
    return x / like(x, 1), x


# +0.0 only: -0.0 - -0.0 is 0.0.
@rule(exact=True, kinds="fiu")
def sub_zero(x):
    return x - like(x, 0), x


# The neutral element of float addition is -0.0: -0.0 + 0.0 is 0.0.
@rule(exact=True, kinds="f")
def add_minus_zero(x):
    return x + like(x, -0.0), x


@rule(exact=True, kinds="iub")
def add_zero(x):
    return x + like(x, 0), x


@rule(exact=True, kinds="iu")
def floordiv_one(x):
    return x // like(x, 1), x


@rule(exact=True, kinds="iu")
def shift_left_zero(x):
    return x << like(x, 0), x


@rule(exact=True, kinds="iu")
def shift_right_zero(x):
    return x >> like(x, 0), x


@rule(exact=True)
def pow_one(x):
    return x ** like(x, 1), x


# Even nan to the power 0 is 1.
@rule(exact=True)
def pow_zero(x):
    return x ** like(x, 0), like(x, 1)


# Negating is a flipped bit, no multiplication.
@rule(exact=True, kinds="fiu")
def mul_minus_one(x):
    return x * like(x, -1), -x


# Nothing of x is left; integers only: nan and inf times 0 are nan.
@rule(exact=True, kinds="iub")
def mul_zero(x):
    return x * like(x, 0), like(x, 0)


@rule(exact=True, kinds="iu")
def sub_self(x):
    return x - x, like(x, 0)


@rule(exact=True, kinds="iu")
def mod_one(x):
    return x % like(x, 1), like(x, 0)


@rule(exact=True)
def maximum_self(x):
    return maximum(x, x), x


@rule(exact=True)
def minimum_self(x):
    return minimum(x, x), x


# relu(relu(x)).
@rule(exact=True)
def maximum_maximum(x, y):
    return maximum(maximum(x, y), y), maximum(x, y)


@rule(exact=True)
def minimum_minimum(x, y):
    return minimum(minimum(x, y), y), minimum(x, y)


# --- bits and bools -------------------------------------------------------------------------------------------------


# A pass over memory for nothing, here and in the next ones.
@rule(exact=True)
def double_not(x):
    return ~~x, x


@rule(exact=True)
def and_self(x):
    return x & x, x


@rule(exact=True)
def or_self(x):
    return x | x, x


@rule(exact=True, kinds="iu")
def and_ones(x):
    return x & like(x, -1), x


@rule(exact=True, kinds="b")
def and_true(x):
    return x & like(x, True), x


@rule(exact=True, kinds="iub")
def or_zero(x):
    return x | like(x, 0), x


@rule(exact=True, kinds="iub")
def xor_zero(x):
    return x ^ like(x, 0), x


# Nothing of x is left.
@rule(exact=True, kinds="iub")
def and_zero(x):
    return x & like(x, 0), like(x, 0)


@rule(exact=True)
def xor_self(x):
    return x ^ x, like(x, 0)


# A comparison with True is the bool itself.
@rule(exact=True, kinds="b")
def eq_true(x):
    return eq(x, like(x, True)), x


@rule(exact=True, kinds="b")
def eq_false(x):
    return eq(x, like(x, False)), ~x


# Integers only: nan is not equal to itself.
@rule(exact=True, kinds="iub")
def eq_self(x):
    return eq(x, x), const(x, True, bool_)


@rule(exact=True, kinds="iub")
def le_self(x):
    return x <= x, const(x, True, bool_)


# Nothing is below itself, nan included.
@rule(exact=True)
def lt_self(x):
    return x < x, const(x, False, bool_)


# --- choices --------------------------------------------------------------------------------------------------------


# Both ways lead to x.
@rule(exact=True)
def select_same(c: Bool, x):
    return select(c, x, x), x


@rule(exact=True)
def select_true(x, y):
    return select(const(x, True, bool_), x, y), x


@rule(exact=True)
def select_false(x, y):
    return select(const(x, False, bool_), x, y), y


# Swapping is free, inverting is not.
@rule(exact=True)
def select_not(c: Bool, x, y):
    return select(~c, x, y), select(c, y, x)


# Where c was decided once it need not be again.
@rule(exact=True)
def select_select(c: Bool, x, y, z):
    return select(c, select(c, x, y), z), select(c, x, z)


@rule(exact=True)
def select_else_select(c: Bool, x, y, z):
    return select(c, x, select(c, y, z)), select(c, x, z)


@rule(exact=True, kinds="b")
def select_bools(c):
    return select(c, like(c, True), like(c, False)), c


# --- where attributes or values decide ------------------------------------------------------------------------------


def scalar(x: Node) -> Any:
    """The value of a filled constant, else None."""
    return x.op.value if isinstance(x.op, Const) and not isinstance(x.op.value, ArrayConst) else None


def filled(x: Node, value: bool | int | float) -> Any:
    """`value` in the type of x."""
    return full(x, value, x.type)


# Tidies, so that the rules above need one order only. Not maximum: whether it gives 0.0 or -0.0 may depend on the
# order.
@rule_on(
    Add, Mul, BitAnd, BitOr, BitXor, Eq, exact=True, example=[lambda x: filled(x, 3) * x, lambda x: eq(filled(x, 1), x)]
)
def constants_right(node: Node) -> Node | None:
    a, b = node.inputs
    return Node.of(node.op, (b, a)) if isinstance(a.op, Const) and not isinstance(b.op, Const) else None


# One pass instead of two. Integers wrap, so their order never matters; floats round, see `join_rounded_constants`.
@rule_on(Add, Mul, BitAnd, BitOr, BitXor, exact=True, example=[lambda x: x * filled(x, 3) * filled(x, 5)])
def join_constants(node: Node) -> Node | None:
    return None if node.dtype.is_floating_point else _joined(node)


@rule_on(Add, Mul, exact=False, example=lambda x: x * filled(x, 3) * filled(x, 0.25))
def join_rounded_constants(node: Node) -> Node | None:
    return _joined(node) if node.dtype.is_floating_point else None


def _joined(node: Node) -> Node | None:
    a, b = node.inputs
    if type(a.op) is not type(node.op) or not isinstance(b.op, Const) or not isinstance(a.inputs[1].op, Const):
        return None
    inner = a.inputs[1]
    if (p := scalar(inner)) is None or (q := scalar(b)) is None:
        return None
    dtype = node.dtype.numpy
    joined = node.op.eval(np.asarray(p, dtype), np.asarray(q, dtype))
    return Node.of(node.op, (a.inputs[0], filled(node, joined.item() if node.dtype.kind != "f" else float(joined))))


# Multiplying is several times faster than dividing. Exact where the reciprocal is: powers of two, neither it nor the
# divisor subnormal.
@rule_on(Div, exact=True, example=lambda x: x / filled(x, 4))
def div_by_power_of_two(node: Node) -> Node | None:
    x, by = node.inputs
    value = scalar(by)
    if value is None or not math.isfinite(value) or math.frexp(value)[0] not in (0.5, -0.5):
        return None
    fits = node.dtype.finfo
    if not all(float(fits.smallest_normal) <= math.fabs(v) <= float(fits.max) for v in (value, 1 / value)):
        return None
    return Mul()(x, filled(node, 1 / value))


@rule_on(Div, exact=False, example=lambda x: x / filled(x, 3))
def div_by_constant(node: Node) -> Node | None:
    x, by = node.inputs
    value = scalar(by)
    return Mul()(x, filled(node, 1 / value)) if value and math.isfinite(value) else None


# One comparison instead of two ops; integers only: all comparisons with nan are False.
@rule_on(BitNot, exact=True, example=[lambda x: ~(x < filled(x, 1)), lambda x: ~(x <= filled(x, 1))])
def not_less(node: Node) -> Node | None:
    (compared,) = node.inputs
    if not isinstance(compared.op, (Lt, Le)) or compared.inputs[0].dtype.is_floating_point:
        return None
    x, y = compared.inputs
    return y <= x if isinstance(compared.op, Lt) else y < x


# A cast less, or none.
@rule_on(Cast, exact=True, example=[lambda x: Cast(x.dtype)(x), lambda x: Cast(x.dtype)(Cast(float64)(x))])
def cast_cast(node: Node) -> Node | None:
    (x,) = node.inputs
    if node.dtype is x.dtype:
        return x
    if not isinstance(x.op, Cast) or not _holds(x.dtype, x.inputs[0].dtype):
        return None
    (source,) = x.inputs
    if source.dtype is node.dtype:
        return source
    return Cast(node.dtype)(source) if _same_in_one_step(source.dtype, x.dtype, node.dtype) else None


_BITS = {"f64": (53, 11), "f32": (24, 8), "f16": (11, 5), "bf16": (8, 8)}  # significant bits and exponent bits


def _holds(wide: DType, narrow: DType) -> bool:
    """True where every value of `narrow` is one of `wide`."""
    if wide is narrow or narrow.kind == "b":
        return True
    if wide.kind == "f" and narrow.kind == "f":
        return all(w >= n for w, n in zip(_BITS[wide.name], _BITS[narrow.name], strict=True))
    if narrow.kind == "f" or wide.kind == "b":
        return False
    bits = 8 * narrow.itemsize - (narrow.kind == "i")
    if wide.kind == "f":
        return bits <= _BITS[wide.name][0]
    return not (narrow.kind == "i" and wide.kind == "u") and bits <= 8 * wide.itemsize - (wide.kind == "i")


def _same_in_one_step(source: DType, via: DType, to: DType) -> bool:
    """Given that `via` holds every value of `source`: whether source -> to gives what source -> via -> to does."""
    if to.kind == "b":
        return True
    if to.kind == "f":  # rounded once either way, but NumPy may take integers to the 2-byte floats through a third type
        return source.kind == "f" or to in (float32, float64) or _holds(to, source)
    # To integers: floats out of range are undefined, so the way matters; integers wrap alike.
    return source.kind != "f" and (via.kind != "f" or _holds(to, source))


# --- other roundings ------------------------------------------------------------------------------------------------


# exp and log cost tens of multiplications; differs where exp overflows or underflows.
@rule(exact=False, kinds="f")
def log_exp(x):
    return log(exp(x)), x


@rule(exact=False, kinds="f")
def exp_log(x):
    return exp(log(x)), x


# Better than what was asked near 0.
@rule(exact=False, kinds="f")
def log_one_plus(x):
    return log(x + like(x, 1)), log1p(x)


@rule(exact=False, kinds="f")
def exp_minus_one(x):
    return exp(x) - like(x, 1), expm1(x)


# pow costs about thirty multiplications, and rounds differently.
@rule(exact=False, kinds="f")
def pow_two(x):
    return x ** like(x, 2), x * x


@rule(exact=False, kinds="f")
def pow_half(x):
    return x ** like(x, 0.5), sqrt(x)


def collect(names: Mapping[str, Any]) -> tuple[Rule, ...]:
    """The rules among the names of a module, in order of definition."""
    out: list[Rule] = []
    for value in names.values():
        if isinstance(value, PatternRule):
            out.append(value)
        elif isinstance(value, tuple):
            out += [r for r in value if isinstance(r, RootRule)]  # pyright: ignore[reportUnknownVariableType]
    return tuple(out)


RULES = collect(globals())
