"""Python objects as the recorder sees them: what they are, what is in them, and by what name a fact about them goes.

Nothing here runs code of the user's.
"""

from __future__ import annotations

import itertools
import struct
import types
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

from tracejit.trace.scalars import OPAQUE, plain_number

HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE: classes whose contents can change
IMMUTABLE: frozenset[type] = frozenset(
    (int, float, complex, bool, str, bytes, type(None), type(Ellipsis), type(NotImplemented), range)
)


class Absent:
    """The value of a key that is not there."""

    def __repr__(self) -> str:
        return "<absent>"


ABSENT = Absent()

_ORDERED: Any = OrderedDict()
_ITERATED: tuple[Any, ...] = (
    [],
    (),
    {},
    {}.values(),
    {}.items(),
    set(),
    range(0),
    range(2**70),
    "",
    b"",
    bytearray(),
    _ORDERED,
    _ORDERED.values(),
)
VIEWS: frozenset[type] = frozenset(type(v) for d in ({}, _ORDERED) for v in (d.keys(), d.values(), d.items()))  # type: ignore[misc]
FRESH_ITERATORS: frozenset[type] = VIEWS | frozenset(
    (
        *(types.GeneratorType, map, filter, zip, enumerate, reversed, type(reversed([])), type(reversed({}))),
        *(type(iter(x)) for x in _ITERATED),
        *(type(iter(deque[int]())), type(reversed(deque[int]()))),
        *(itertools.count, itertools.accumulate, itertools.chain, itertools.zip_longest, itertools.product),
        *(itertools.islice, itertools.cycle, itertools.pairwise, itertools.permutations, itertools.combinations),
        *(itertools.combinations_with_replacement, itertools.repeat, itertools.starmap, itertools.takewhile),
        *(itertools.dropwhile, itertools.filterfalse),
    )
)


_MAY_HOLD: frozenset[type] = frozenset((*OPAQUE, list, dict, tuple, slice))


def plain_numbers(x: Any, memo: dict[int, Any], number: Callable[[Any], Any] = plain_number) -> Any:
    """x with every opaque number in its lists, dicts, tuples and slices replaced; lists and dicts are changed in
    place."""
    t = type(x)
    if t in OPAQUE:
        return number(x)
    if id(x) in memo:
        return memo[id(x)]
    if t is list:
        memo[id(x)] = x
        for i, v in enumerate(x):
            if type(v) in _MAY_HOLD or is_namedtuple(type(v)):
                x[i] = plain_numbers(v, memo, number)
    elif t is dict:
        memo[id(x)] = x
        for k, v in x.items():
            if type(v) in _MAY_HOLD or is_namedtuple(type(v)):
                x[k] = plain_numbers(v, memo, number)
    elif t is slice:
        parts = (x.start, x.stop, x.step)
        if any(type(v) in OPAQUE for v in parts):
            return slice(*map(number, parts))
    elif t is tuple or is_namedtuple(t):
        new = [plain_numbers(v, memo, number) for v in x]
        same = all(a is b for a, b in zip(new, x))
        memo[id(x)] = x = x if same else tuple.__new__(t, new)
    return x


def bits(x: Any) -> Any:
    """A key equal for values of the same type and bits only: 1 is not True or 1.0, 0.0 is not -0.0, nan is nan."""
    t = type(x)
    if t is float:
        return (t, struct.pack("<d", x))
    if t is complex:
        return (t, struct.pack("<2d", x.real, x.imag))
    if t is tuple:
        return (t, *map(bits, x))
    return (t, x)


PAYLOADS: frozenset[type] = frozenset((object, int, float, str))  # what they hold never changes
_KINDS: dict[type, str] = {list: "list", set: "set", frozenset: "set", deque: "deque", bytearray: "bytes"}


def kind_of(x: Any) -> str | None:
    """The kind of the cell that guards all elements of builtin container x."""
    return "dict" if isinstance(x, dict) else "list" if isinstance(x, list) else _KINDS.get(type(x))


def items_of(x: dict[Any, Any]) -> Any:
    """The entries of a dict in order; an OrderedDict keeps its own, which move_to_end changes alone."""
    return OrderedDict.items(x) if isinstance(x, OrderedDict) else dict.items(x)


def elements(x: Any) -> Any:
    """The value of that cell."""
    if isinstance(x, list):  # not by its class's own iterator
        return tuple(list.__iter__(x))
    return tuple(items_of(x)) if isinstance(x, dict) else bytes(x) if type(x) is bytearray else tuple(x)


def instance_dict(x: Any) -> dict[str, Any] | None:
    """The __dict__ of an object, found without running user code."""
    for c in type(x).__mro__:
        raw = c.__dict__.get("__dict__")
        if isinstance(raw, (types.GetSetDescriptorType, types.MemberDescriptorType)):
            return raw.__get__(x)
    return None


def slots_of(x: Any) -> dict[str, Any]:
    """The slots of x that hold something."""
    names = [n for c in type(x).__mro__ for n, d in c.__dict__.items() if isinstance(d, types.MemberDescriptorType)]
    return {n: getattr(x, n) for n in names if n not in ("__dict__", "__weakref__") and hasattr(x, n)}


def place_of(kind: str, owner: Any, key: Any) -> tuple[Any, ...]:
    """The name of a fact that is the same by whatever way it is read: an attribute is an entry of its object's
    __dict__, and a dict's entry is one under all keys that are equal: 1, True and 1.0."""
    if kind == "ivar" and (space := instance_dict(owner)) is not None:
        return ("item", id(space), key)
    if kind in ("item", "has") and is_plain_key(key):
        return ("item", id(owner), key)
    return (kind, id(owner), (type(key), key) if type(key) in IMMUTABLE else id(key))


def is_plain_key(key: Any) -> bool:
    """Whether a key is an immutable value, or a tuple of such."""
    return all(map(is_plain_key, key)) if type(key) is tuple else type(key) in IMMUTABLE


def describe(x: Any) -> str:
    """A short name for an object, running none of its code."""
    t = type(x)
    if isinstance(x, (type, types.FunctionType, types.BuiltinFunctionType)):
        return f"{x.__module__}.{x.__qualname__}"
    return f"a {t.__qualname__}" if t.__module__ == "builtins" else f"a {t.__module__}.{t.__qualname__}"


def is_namedtuple(t: type) -> bool:
    """True for classes made by collections.namedtuple, and other tuples without fields of their own."""
    return issubclass(t, tuple) and t.__itemsize__ == tuple.__itemsize__ and t.__dictoffset__ == 0


def is_opaque_method(v: Any) -> bool:
    """True for entries of a class that C code would call without a Python frame being seen."""
    if isinstance(v, (staticmethod, classmethod)):
        v = v.__func__
    return callable(v) and not isinstance(v, (types.FunctionType, type))


def of_payload(v: Any) -> bool:
    """Whether v is a method of int, float or str, which an enumeration has by its own name."""
    if isinstance(v, (types.WrapperDescriptorType, types.MethodDescriptorType)):
        return v.__objclass__ in PAYLOADS
    return type(v) is types.BuiltinFunctionType and isinstance(v.__self__, type) and v.__self__ in PAYLOADS


def stamp_of(t: type) -> tuple[Any, ...]:
    """What changes when anything in the classes behind t changes."""
    meta: type = type(t)
    classes: tuple[type, ...] = (*t.__mro__, *meta.__mro__)
    return tuple(
        (c, tuple((k, v) for k, v in c.__dict__.items() if k not in ("__abstractmethods__", "_abc_impl")))
        for c in classes
        if c.__flags__ & HEAP
    )
