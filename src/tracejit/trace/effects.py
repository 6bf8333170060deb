"""The audited table: what each C callable that traced code may call does to the world.

This is the trusted base, so it is short and says no by default: a callable that is not here refuses the recording. An
entry means that the callable reads nothing but its arguments, in the way its group says, and changes nothing but
`self` of a "mutates" method.

Callables that call back into Python, iterate, or look at attributes are not here but re-expressed in `models.py`, so
that what they run is recorded too.
"""

from __future__ import annotations

import math
import operator
from collections import deque
from collections.abc import Callable
from typing import Any

__all__ = ["DEEP", "FRAMES", "METHODS", "NEWABLE"]

_MATH = """
    acos acosh asin asinh atan atan2 atanh ceil comb copysign cos cosh degrees dist erf erfc exp expm1 fabs factorial
    floor fmod frexp fsum gamma gcd hypot isclose isfinite isinf isnan isqrt lcm ldexp lgamma log log10 log1p log2
    modf nextafter perm pow prod radians remainder sin sinh sqrt tan tanh trunc ulp
"""

# Read their arguments as deep as they go; the result is new.
DEEP: frozenset[Callable[..., Any]] = frozenset(
    [
        *(abs, round, divmod, pow, repr, ascii, ord, chr, format, bin, hex, oct),
        *(int, float, complex, bool, str, bytes, range, slice),
        *(operator.index, operator.itemgetter, operator.attrgetter, operator.methodcaller),
        *(getattr(math, name) for name in _MATH.split()),
    ]
)

# Look at the caller's frame: emulated so that the call is right, and refused.
_FRAMES = "eval exec locals globals dir vars _getframe __import__ breakpoint input"
FRAMES = frozenset(_FRAMES.split())

# Types whose C-level __new__ makes an object that holds its arguments and nothing else.
NEWABLE: frozenset[Any] = frozenset((object, tuple, list, dict, set, frozenset, int, float, str, bytes))

# How a method of a builtin type treats `self` (and its arguments, read as deep as they go):
#   pure     reads immutable self              shallow  reads the elements of self
#   deep     compares elements of self         mutates  changes self
_PURE = """
    as_integer_ratio bit_count bit_length conjugate from_bytes fromhex hex is_integer to_bytes capitalize casefold
    center count decode encode endswith expandtabs find index isalnum isalpha isascii isdecimal isdigit isidentifier
    islower isnumeric isprintable isspace istitle isupper ljust lower lstrip partition removeprefix removesuffix
    replace rfind rindex rjust rpartition rsplit rstrip split splitlines startswith strip swapcase title translate
    upper zfill maketrans indices __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__
    __floordiv__ __rfloordiv__ __mod__ __rmod__ __pow__ __rpow__ __neg__ __pos__ __abs__ __invert__ __and__ __or__
    __xor__ __lshift__ __rshift__ __lt__ __le__ __gt__ __ge__ __eq__ __ne__ __int__ __float__ __index__ __bool__
    __hash__ __str__ __repr__ __len__ __contains__ __getitem__ __format__ __round__ __trunc__ __floor__ __ceil__
    __divmod__
"""
_COMPARES = "__eq__ __ne__ __lt__ __le__ __gt__ __ge__ __repr__ __str__ __contains__"
_SEQUENCE = "index count __add__ __mul__ __rmul__ __hash__ " + _COMPARES
_SET = (
    """
    union intersection difference symmetric_difference issubset issuperset isdisjoint __or__ __and__ __sub__ __xor__
"""
    + _COMPARES
)
_SET_CHANGES = """
    add discard remove pop clear update intersection_update difference_update symmetric_difference_update __init__
"""
_DEQUE = """
    append appendleft extend extendleft pop popleft remove clear reverse rotate insert __setitem__ __delitem__ __iadd__
"""
_WALKS = "copy __len__ __iter__ __reversed__"


def _kind(kind: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), kind)


_sequence = _kind("deep", _SEQUENCE) | _kind("shallow", _WALKS + " __getitem__")
_set = _kind("deep", _SET) | _kind("shallow", _WALKS)
METHODS: dict[type, dict[str, str]] = {
    **dict.fromkeys((int, float, complex, bool, str, bytes, range, slice), _kind("pure", _PURE)),
    tuple: _sequence,
    list: _sequence
    | _kind("mutates", "append extend insert pop remove clear reverse")
    | _kind("mutates", "__setitem__ __delitem__ __iadd__ __imul__ __init__"),
    dict: _kind("deep", "__or__ " + _COMPARES)
    | _kind("shallow", "keys values items " + _WALKS)
    | _kind("pure", "fromkeys")
    | _kind("mutates", "pop popitem clear update move_to_end __setitem__ __delitem__ __ior__ __init__"),
    deque: _sequence | _kind("mutates", _DEQUE),
    bytearray: _sequence
    | _kind("shallow", "decode find startswith endswith hex strip split isalnum lower upper")
    | _kind("mutates", "append extend clear pop remove reverse __setitem__ __delitem__ __iadd__"),
    frozenset: _set,
    set: _set | _kind("mutates", _SET_CHANGES),
}
