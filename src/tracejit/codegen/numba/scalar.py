"""What neither Python's operators nor `math` say as the IR means it: plain Python functions over scalars.

Numba compiles each once for the CPU and once for CUDA; the simulator runs them as they stand. They take and return
float64 or int64 only, so one signature serves all dtypes: the kernel casts. None raises, whatever it is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from tracejit.ops import special

__all__ = [
    "ceil", "divide_int", "floor", "floor_divide", "modulo", "modulo_int", "plain", "power_int",
    "random_word", "rint", "round_bf16", "round_f16",
]  # fmt: skip

Float = np.float64 | float
Int = np.int64 | int

WHOLE = 4503599627370496.0  # 2**52: from here on, every float64 is a whole number


def floor(x: Float) -> Float:
    """The largest whole number <= x."""
    if not abs(x) < WHOLE:
        return x
    whole = np.float64(np.int64(x))
    return math.copysign(whole - 1.0 if whole > x else whole, x)


def ceil(x: Float) -> Float:
    """The smallest whole number >= x."""
    if not abs(x) < WHOLE:
        return x
    whole = np.float64(np.int64(x))
    return math.copysign(whole + 1.0 if whole < x else whole, x)


def rint(x: Float) -> Float:
    """The nearest whole number, ties to even."""
    if not abs(x) < WHOLE:
        return x
    # The sum has no bits for a fraction, and is rounded to even.
    return math.copysign((abs(x) + WHOLE) - WHOLE, x)


def floor_divide(a: Float, b: Float) -> Float:
    """The floor of a / b, by way of the exact remainder, as NumPy has it."""
    if b == 0.0:
        return a / b
    if not math.isfinite(a):
        return math.nan
    if math.isinf(b):
        return -1.0 if a != 0.0 and (a < 0.0) != (b < 0.0) else math.copysign(0.0, a / b)
    quotient = (a - a % b) / b
    if quotient == 0.0:
        return math.copysign(0.0, a / b)
    if not abs(quotient) < WHOLE:
        return quotient
    # It is a rounding error away from a whole number.
    return math.copysign((abs(quotient) + WHOLE) - WHOLE, quotient)


def modulo(a: Float, b: Float) -> Float:
    """a - floor(a / b) * b: the sign of b; nan where b is 0."""
    if b == 0.0 or not math.isfinite(a):
        return math.nan
    rest = a % b
    return math.copysign(0.0, b) if rest == 0.0 else rest


def divide_int(a: Int, b: Int) -> Int:
    """The floor of a / b; 0 where b is 0, the lowest integer by -1 is itself."""
    if b == 0:
        return 0
    return -a if b == -1 else a // b


def modulo_int(a: Int, b: Int) -> Int:
    """a modulo b with the sign of b; 0 where b is 0."""
    return 0 if b == 0 or b == -1 else a % b


def power_int(a: Int, b: Int) -> Int:
    """a ** b, wrapping; to a negative power 0, except for 1 and -1."""
    if b < 0:
        return a if a == 1 or (a == -1 and b & 1) else 1 if a == -1 else 0
    y = np.int64(1)
    while b:
        if b & 1:
            y *= a
        a *= a
        b >>= 1
    return y


def round_f16(x: Float) -> Float:
    """The nearest float16, ties to even."""
    if x == 0.0 or not math.isfinite(x):
        return x
    _, exponent = math.frexp(x)
    step = math.ldexp(1.0, exponent - 11 if exponent > -13 else -24)
    y = ((abs(x) / step + WHOLE) - WHOLE) * step
    return math.copysign(math.inf if y > 65504.0 else y, x)


def round_bf16(x: Float) -> Float:
    """The nearest bfloat16, ties to even."""
    if x == 0.0 or not math.isfinite(x):
        return x
    _, exponent = math.frexp(x)
    step = math.ldexp(1.0, exponent - 8 if exponent > -125 else -133)
    y = ((abs(x) / step + WHOLE) - WHOLE) * step
    return math.copysign(math.inf if y > 3.3895313892515355e38 else y, x)


def random_word(i: Int, seed: Int, offset: Int) -> Int:
    """Word i % 4 of the Philox block offset + i // 4 with key seed, as a signed 32-bit number."""
    low = 0xFFFFFFFF
    block = (i >> 2) + offset
    a, b, c, d = block & low, (block >> 32) & low, 0, 0
    k, m = seed & low, (seed >> 32) & low
    for r in range(10):
        if r > 0:
            k, m = (k + 0x9E3779B9) & low, (m + 0xBB67AE85) & low
        # Products of words as sums of halves: no language in between gets to see a 64th bit.
        p_low, p_high = 0xD2511F53 * (a & 0xFFFF), 0xD2511F53 * (a >> 16)
        q_low, q_high = 0xCD9E8D57 * (c & 0xFFFF), 0xCD9E8D57 * (c >> 16)
        p, q = p_low + ((p_high & 0xFFFF) << 16), q_low + ((q_high & 0xFFFF) << 16)
        p_top, q_top = (p_high >> 16) + (p >> 32), (q_high >> 16) + (q >> 32)
        a, b, c, d = q_top ^ b ^ k, q & low, p_top ^ d ^ m, p & low
    which = i & 3
    word = a if which == 0 else b if which == 1 else c if which == 2 else d
    return word - (word >> 31 << 32)


@cache
def plain() -> Mapping[str, Any]:
    """What a kernel's names mean where nothing is compiled: NumPy's scalars, which overflow as machine numbers do."""

    def lifted(f: Callable[..., Any]) -> Callable[[Any], Any]:
        return lambda x: f(np.asarray(x))[()]

    numpy = {f: getattr(np, f) for f in ("exp", "expm1", "log", "log1p", "sqrt", "sin", "cos", "tanh")}
    others = {"atan2": np.arctan2, "erf": lifted(special.erf), "lgamma": lifted(special.lgamma)}
    own = (
        ceil,
        divide_int,
        floor,
        floor_divide,
        modulo,
        modulo_int,
        power_int,
        random_word,
        rint,
        round_bf16,
        round_f16,
    )
    return {"np": np, **numpy, **others, **{f.__name__: f for f in own}}
