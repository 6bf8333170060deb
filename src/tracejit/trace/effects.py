"""The audited table: what each C callable that traced code may call does to the world.

This is the trusted base, so it is short and says no by default: a callable that is not here refuses the recording. An entry
means that the callable reads nothing but its arguments, in the way its group says, and changes nothing but `self` of a
MUTATES method. Every name here is covered by a test that changes what it reads.

Callables that call back into Python, iterate, or look at attributes are not here but re-expressed over the hooks
(`hooks.MODELS`), so that what they run is recorded too.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

__all__ = ["DEEP", "EXCEPTIONS", "FRAMES", "METHODS", "NEWABLE"]

# Read their arguments as deep as they go; the result is new.
DEEP: frozenset[Callable[..., Any]] = frozenset(
    [
        abs, round, divmod, pow, repr, ascii, ord, chr, format, bin, hex, oct, int, float, complex, bool, str, bytes, range, slice,
        operator.index, operator.itemgetter, operator.attrgetter,
        math.acos, math.acosh, math.asin, math.asinh, math.atan, math.atan2, math.atanh, math.ceil, math.comb, math.copysign, math.cos,
        math.cosh, math.degrees, math.dist, math.erf, math.erfc, math.exp, math.expm1, math.fabs, math.factorial, math.floor, math.fmod,
        math.frexp, math.fsum, math.gamma, math.gcd, math.hypot, math.isclose, math.isfinite, math.isinf, math.isnan, math.isqrt,
        math.lcm, math.ldexp, math.lgamma, math.log, math.log10, math.log1p, math.log2, math.modf, math.nextafter, math.perm, math.pow,
        math.prod, math.radians, math.remainder, math.sin, math.sinh, math.sqrt, math.tan, math.tanh, math.trunc, math.ulp,
    ]
)  # fmt: skip

# Look at the caller's frame: emulated so that the call is right, and refused.
FRAMES: frozenset[str] = frozenset(
    ("eval", "exec", "locals", "globals", "dir", "vars", "_getframe", "__import__", "breakpoint", "input")
)

EXCEPTIONS: type = BaseException

# Types whose C-level __new__ makes an object that holds its arguments and nothing else.
NEWABLE: frozenset[type] = frozenset((object, tuple, list, dict, set, frozenset, int, float, str, bytes))

# How a method of a builtin type treats `self` (and its arguments, read as deep as they go):
#   pure     reads immutable self              shallow  reads the elements of self
#   deep     compares elements of self         mutates  changes self
_PURE = dict.fromkeys(
    [
        "as_integer_ratio",
        "bit_count",
        "bit_length",
        "conjugate",
        "from_bytes",
        "fromhex",
        "hex",
        "is_integer",
        "to_bytes",
        "capitalize",
        "casefold",
        "center",
        "count",
        "decode",
        "encode",
        "endswith",
        "expandtabs",
        "find",
        "index",
        "isalnum",
        "isalpha",
        "isascii",
        "isdecimal",
        "isdigit",
        "isidentifier",
        "islower",
        "isnumeric",
        "isprintable",
        "isspace",
        "istitle",
        "isupper",
        "ljust",
        "lower",
        "lstrip",
        "partition",
        "removeprefix",
        "removesuffix",
        "replace",
        "rfind",
        "rindex",
        "rjust",
        "rpartition",
        "rsplit",
        "rstrip",
        "split",
        "splitlines",
        "startswith",
        "strip",
        "swapcase",
        "title",
        "translate",
        "upper",
        "zfill",
        "maketrans",
        "__add__",
        "__radd__",
        "__sub__",
        "__rsub__",
        "__mul__",
        "__rmul__",
        "__truediv__",
        "__rtruediv__",
        "__floordiv__",
        "__rfloordiv__",
        "__mod__",
        "__rmod__",
        "__pow__",
        "__rpow__",
        "__neg__",
        "__pos__",
        "__abs__",
        "__invert__",
        "__and__",
        "__or__",
        "__xor__",
        "__lshift__",
        "__rshift__",
        "__lt__",
        "__le__",
        "__gt__",
        "__ge__",
        "__eq__",
        "__ne__",
        "__int__",
        "__float__",
        "__index__",
        "__bool__",
        "__hash__",
        "__str__",
        "__repr__",
        "__len__",
        "__contains__",
        "__getitem__",
        "__format__",
        "__round__",
        "__trunc__",
        "__floor__",
        "__ceil__",
        "__divmod__",
        "indices",
    ],
    "pure",
)
_SEQUENCE = {
    "__len__": "shallow",
    "__getitem__": "shallow",
    "__iter__": "shallow",
    "__reversed__": "shallow",
    "copy": "shallow",
} | dict.fromkeys(
    [
        "index",
        "count",
        "__contains__",
        "__eq__",
        "__ne__",
        "__lt__",
        "__le__",
        "__gt__",
        "__ge__",
        "__repr__",
        "__str__",
        "__add__",
        "__mul__",
        "__rmul__",
        "__hash__",
    ],
    "deep",
)
_SET = {"copy": "shallow", "__len__": "shallow", "__iter__": "shallow"} | dict.fromkeys(
    ["union", "intersection", "difference", "symmetric_difference", "issubset", "issuperset", "isdisjoint", "__contains__", "__eq__", "__ne__", "__le__", "__lt__", "__ge__", "__gt__", "__or__", "__and__", "__sub__", "__xor__", "__repr__"], "deep"
)  # fmt: skip
METHODS: dict[type, dict[str, str]] = {
    **dict.fromkeys((int, float, complex, bool, str, bytes, range, slice), _PURE),
    tuple: _SEQUENCE,
    list: _SEQUENCE
    | dict.fromkeys(
        ["append", "extend", "insert", "pop", "remove", "clear", "reverse", "__setitem__", "__delitem__", "__iadd__", "__imul__", "__init__"], "mutates"
    ),
    dict: {"copy": "shallow", "keys": "shallow", "values": "shallow", "items": "shallow", "__len__": "shallow", "__iter__": "shallow",
           "__reversed__": "shallow", "fromkeys": "pure", "__eq__": "deep", "__ne__": "deep", "__repr__": "deep", "__or__": "deep"}
    | dict.fromkeys(["pop", "popitem", "clear", "update", "move_to_end", "__setitem__", "__delitem__", "__ior__", "__init__"], "mutates"),
    frozenset: _SET,
    set: _SET
    | dict.fromkeys(["add", "discard", "remove", "pop", "clear", "update", "intersection_update", "difference_update", "symmetric_difference_update", "__init__"], "mutates"),
}  # fmt: skip
