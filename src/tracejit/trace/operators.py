"""Operators and subscripts re-expressed over Python's protocols: each dunder written in Python is called recorded."""

from __future__ import annotations

import collections
import operator
import re
import types
from collections.abc import Callable
from typing import Any

from tracejit.ir.symint import SymInt
from tracejit.trace import computed
from tracejit.trace.attributes import CONTAINERS, Function, is_base, is_number, offer_index, old_iterator, plain
from tracejit.trace.domain import is_library
from tracejit.trace.iteration import iterate
from tracejit.trace.objects import ABSENT, FRESH_ITERATORS, IMMUTABLE, VIEWS, describe, is_namedtuple
from tracejit.trace.recorder import Recorder, active
from tracejit.trace.scalars import OPAQUE, OpaqueInt, OpaqueText
from tracejit.trace.writes import hashable_key, length, mutate, present, store_item

_NAMES = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "truediv", "floordiv": "floordiv", "mod": "mod", "pow": "pow",
    "matmul": "matmul", "lshift": "lshift", "rshift": "rshift", "and_": "and", "or_": "or", "xor": "xor",
}  # fmt: skip
_REFLECTED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}


def binary(operands: tuple[Any, Any, Callable[[Any, Any], Any]]) -> Any:
    """a op b"""
    a, b, op = operands
    r = active()
    return op(a, b) if r is None else apply_binary(r, a, b, op)


def apply_binary(r: Recorder, a: Any, b: Any, op: Callable[[Any, Any], Any]) -> Any:
    """a op b, in place where op is."""
    if type(a) in OPAQUE or type(b) in OPAQUE or type(b) is tuple:
        if type(a) in (str, OpaqueText) and (text := _text(r, a, b, op)) is not None:
            return text
        if (value := of_opaque(r, a, b, op)) is not ABSENT:
            return value
        a, b = r.reveal(a), r.reveal(b)
    ta, tb = type(a), type(b)
    if ta in IMMUTABLE and tb in IMMUTABLE:
        return op(a, b)
    if is_number(r, a) and is_number(r, b):
        for x in (a, b):
            if r.is_tensor(x):
                r.touch(x)
        return plain(r, op, a, b)
    inplace = op.__name__[0] == "i" and op.__name__ not in ("index", "inv", "invert")
    name = op.__name__[1:] if inplace else op.__name__
    name = _NAMES.get(name.rstrip("_"), _NAMES.get(name, _NAMES.get(name + "_", name)))
    builtin = all(t in CONTAINERS or is_number(r, x) or is_namedtuple(t) for t, x in ((ta, a), (tb, b)))
    if builtin:
        if inplace and (ta in _CHANGED) and r.outside(a):
            return mutate(r, a, f"__i{name}__", (b,), {})
        (r.deep if ta is str or ta in (set, frozenset) else r.shallow)(a)
        (r.deep if ta is str or r.is_tensor(a) else r.shallow)(b)
        return r.made(plain(r, op, a, b))
    r.type_of(a)
    r.type_of(b)
    if inplace:
        method = r.lookup(ta, f"__i{name}__")
        if isinstance(method, Function):
            if (v := r.invoke(method, (a, b))) is not NotImplemented:
                return v
        elif method is not ABSENT:
            return _opaque_operator(r, a, b, op)
    left, right = r.lookup(ta, f"__{name}__"), r.lookup(tb, f"__r{name}__")
    if not isinstance(left, Function) and not isinstance(right, Function):
        r.deep(a)
        r.deep(b)
        return r.made(plain(r, op, a, b))
    order = [(left, a, b), (right, b, a)]
    if ta is not tb and issubclass(tb, ta) and right is not ABSENT and right is not r.lookup(ta, f"__r{name}__"):
        order.reverse()
    elif ta is tb:
        order.pop()
    for method, x, y in order:
        if method is ABSENT:
            continue
        if not isinstance(method, Function):
            if type(x) in IMMUTABLE and type(x) not in (str, bytes):
                continue  # builtin numbers and text return NotImplemented for a class of the user's
            return _opaque_operator(r, a, b, op)
        if r.is_tensor(x) and not r.is_tensor(y) and is_library(method.__module__) and is_plain_object(type(y)):
            continue  # tensors leave objects that are neither numbers nor arrays to the reflected method
        if (v := r.invoke(method, (x, y))) is not NotImplemented:
            return v
    raise TypeError(f"unsupported operand type(s) for {op.__name__}: {ta.__name__!r} and {tb.__name__!r}")


def _text(r: Recorder, a: str, b: Any, op: Callable[[Any, Any], Any]) -> str | None:
    """a + b or a % b where opaque parts go into the text; None where they must be looked at."""
    if op in (operator.add, operator.iadd) and type(b) in (str, OpaqueText):
        return computed.text(r, operator.add, a, b)
    parts = b if type(b) is tuple else (b,)
    if op not in (operator.mod, operator.imod) or not any(type(p) in OPAQUE for p in parts):
        return None
    if not all(type(p) in OPAQUE or type(p) in IMMUTABLE for p in parts):
        return None
    asked = r.unwatched(re.findall, r"%[-+ #0-9.]*(.)", a)
    floats = all(type(p) is not OpaqueInt for p in parts)
    return computed.text(r, _percent, a, *parts, raises=not (set(asked) <= set("feEgGsr%" if floats else "dsr%")))


def _percent(text: str, *parts: Any) -> str:
    return text % parts


_CHANGED: frozenset[type] = CONTAINERS - {tuple, frozenset}
_NUMBERS: frozenset[type] = frozenset((*OPAQUE, float, int, bool))
# All they do with a number is to cast it.
_WITH_TENSORS = frozenset("add sub mul truediv pow lt le gt ge eq ne".split())


def of_opaque(r: Recorder, a: Any, b: Any, op: Callable[[Any, Any], Any]) -> Any:
    """a op b where one is an opaque number and the other a number or a tensor; ABSENT where it must be looked at."""
    if type(a) in _NUMBERS and type(b) in _NUMBERS:
        return computed.scalar(r, op, a, b)
    name = op.__name__ if op.__name__ in _WITH_TENSORS else op.__name__[1:]
    if name not in _WITH_TENSORS:
        return ABSENT
    for x, t in ((a, b), (b, a)):
        if type(x) in OPAQUE and type(x) is not OpaqueText and r.is_tensor(t) and is_library(type(t).__module__):
            r.touch(t)
            if (stand_in := computed.number_tensor(r, x, t, name)) is None:
                return ABSENT
            return plain(r, op, *((stand_in, t) if x is a else (t, stand_in)))
    return ABSENT


def is_plain_object(t: type) -> bool:
    """Whether class t and all its bases were written in Python."""
    return all(c is object or c.__flags__ & 1 << 9 for c in t.__mro__)


def _opaque_operator(r: Recorder, a: Any, b: Any, op: Callable[[Any, Any], Any]) -> Any:
    r.refuse(f"{op.__name__} of {describe(a)} and {describe(b)}")
    return op(a, b)


def unary(operands: tuple[Any, Callable[[Any], Any]]) -> Any:
    """op x"""
    x, op = operands
    if (r := active()) is None or type(x) in IMMUTABLE:
        return op(x)
    if type(x) in OPAQUE:
        return computed.scalar(r, op, x)
    if is_number(r, x):
        r.deep(x)
        return plain(r, op, x)
    method = r.lookup(
        type(x), {"neg": "__neg__", "invert": "__invert__", "inv": "__invert__", "pos": "__pos__"}[op.__name__]
    )
    if isinstance(method, Function):
        r.type_of(x)
        return r.invoke(method, (x,))
    r.refuse(f"{op.__name__} of {describe(x)}")
    return op(x)


def compare(operands: tuple[Any, Any, Callable[[Any, Any], Any]]) -> Any:
    """a op b, one of the six comparisons"""
    a, b, op = operands
    r = active()
    return op(a, b) if r is None else apply_compare(r, a, b, op)


def is_shape(x: Any) -> bool:
    """Whether x is a tuple of extents."""
    return isinstance(x, tuple) and bool(x) and all(type(d) is SymInt or type(d) is int for d in x)  # pyright: ignore[reportUnknownVariableType]


def apply_compare(r: Recorder, a: Any, b: Any, op: Callable[[Any, Any], Any]) -> Any:
    """a op b for the six comparisons."""
    if (type(a) in OPAQUE or type(b) in OPAQUE) and (value := of_opaque(r, a, b, op)) is not ABSENT:
        return value
    a, b = r.reveal(a), r.reveal(b)
    ta, tb = type(a), type(b)
    if ta in IMMUTABLE and tb in IMMUTABLE:
        return op(a, b)
    if is_shape(a) and is_shape(b):
        return op(a, b)  # extents note what they are compared with
    if is_number(r, a) and is_number(r, b):
        for x in (a, b):
            if r.is_tensor(x):
                r.touch(x)
        return plain(r, op, a, b)
    name = op.__name__
    methods = (r.lookup(ta, f"__{name}__"), r.lookup(tb, f"__{_REFLECTED[name]}__"))
    if not any(isinstance(m, Function) for m in methods):
        r.deep(a)
        r.deep(b)
        return plain(r, op, a, b)
    r.type_of(a)
    r.type_of(b)
    order = [(methods[0], a, b), (methods[1], b, a)]
    if ta is not tb and issubclass(tb, ta):
        order.reverse()
    for method, x, y in order:
        if isinstance(method, Function):
            if (v := r.invoke(method, (x, y))) is not NotImplemented:
                return v
        elif method is ABSENT or method is object.__dict__.get(f"__{name}__") or type(x) in IMMUTABLE:
            eq = r.lookup(type(x), "__eq__") if method is not ABSENT and name == "ne" else ABSENT
            v = r.invoke(eq, (x, y)) if isinstance(eq, Function) else NotImplemented  # object.__ne__ inverts __eq__
            if v is not NotImplemented:
                return not truth(v)
        else:
            return _opaque_operator(r, a, b, op)
    if name in ("eq", "ne"):
        return (a is b) is (name == "eq")
    raise TypeError(f"{name!r} not supported between instances of {ta.__name__!r} and {tb.__name__!r}")


def contains(operands: tuple[Any, Any, bool]) -> bool:
    """x in box, or not in"""
    x, box, negated = operands
    r = active()
    found = x in box if r is None else contains_in(r, x, box)
    return found is not negated


def contains_in(r: Recorder, x: Any, box: Any) -> bool:
    """x in box"""
    x, box = r.reveal(x), r.reveal(box)
    t = type(box)
    if isinstance(box, dict) and is_base(t, dict, "__contains__"):
        hashable_key(r, x)
        found = dict.get(box, x, ABSENT)
        if r.outside(box):
            present(r, "item", box, x, found)
        return found is not ABSENT
    if t in FRESH_ITERATORS and t not in VIEWS:
        return any(x is v or truth(apply_compare(r, v, x, operator.eq)) for v in iterate(box))
    if (
        t in CONTAINERS
        or is_number(r, box)
        or t in VIEWS
        or (isinstance(box, list) and is_base(t, list, "__contains__"))
    ):
        if t in VIEWS:
            old_iterator(r, box)
        r.deep(x)
        r.deep(box)
        return plain(r, operator.contains, box, x)
    if isinstance(box, type):
        meta = r.lookup(t, "__contains__")
        if isinstance(meta, Function):
            return truth(r.invoke(meta, (box, x)))
        r.refuse(f"`in` on class {describe(box)}")
        return x in box
    r.type_of(box)
    method = r.lookup(t, "__contains__")
    if isinstance(method, Function):
        return truth(r.invoke(method, (box, x)))
    if method is ABSENT and isinstance(r.lookup(t, "__iter__"), Function):
        return any(x is v or truth(apply_compare(r, v, x, operator.eq)) for v in iterate(box))
    r.refuse(f"`in` on {describe(box)}")
    return x in box


_SINGLETONS = (None, True, False, Ellipsis, NotImplemented)


def identical(operands: tuple[Any, Any, bool]) -> bool:
    """a is b, or is not"""
    a, b, negated = operands
    if (r := active()) is not None:
        _check_identity(r, a, b)
    return (a is b) is not negated


def _check_identity(r: Recorder, a: Any, b: Any) -> None:
    """Guards hold objects by identity, but numbers and text by value, and argument containers by structure."""
    if any(a is s or b is s for s in _SINGLETONS):
        return
    for x, y in ((a, b), (b, a)):
        if id(x) in r.guarded and id(y) not in r.guarded and id(y) not in r.fresh and type(x) is type(y):
            r.refuse("compares the identity of an argument that is a container")
        if id(x) in r.dict_owner:
            r.refuse("compares the identity of a __dict__")
    if type(a) in OPAQUE or type(b) in OPAQUE:
        r.refuse("compares the identity of a number")
    if type(a) is type(b) and (type(a) in IMMUTABLE or isinstance(a, (tuple, types.MethodType))):
        r.refuse(f"compares the identity of two {type(a).__name__} values")


def truth(x: Any) -> bool:
    """bool(x)"""
    r = active()
    if r is None or x is True or x is False or type(x) in IMMUTABLE:
        return bool(x)
    if type(x) in OPAQUE:
        return computed.scalar(r, bool, x)
    t = type(x)
    if is_number(r, x):
        r.deep(x)
        return plain(r, bool, x)
    if t in CONTAINERS or is_namedtuple(t):
        return truth(len(x) if isinstance(x, tuple) else length(r, x))
    kind = dict if isinstance(x, dict) else list if isinstance(x, list) else None
    if kind is not None and is_base(t, kind, "__len__") and r.lookup(t, "__bool__") is ABSENT:
        r.type_of(x)
        return truth(length(r, x))
    r.type_of(x)
    for name in ("__bool__", "__len__"):
        method = r.lookup(t, name)
        if isinstance(method, Function):
            v = r.invoke(method, (x,))
            return bool(v) if type(v) in IMMUTABLE else bool(x)
        if method is not ABSENT:
            r.refuse(f"truth of {describe(x)}")
            return bool(x)
    return True


def load_item(operands: tuple[Any, Any]) -> Any:
    """x[key]"""
    x, key = operands
    r = active()
    return x[key] if r is None else item(r, x, key)


def item(r: Recorder, x: Any, key: Any) -> Any:
    """x[key]"""
    x = r.reveal(x)
    t = type(x)
    if r.is_tensor(x):
        key = r.index(x, key)
        offer_index(r, key)
        r.touch(x)
        return plain(r, operator.getitem, x, key)
    key = r.reveal(key)
    if (
        t is tuple
        or t in IMMUTABLE
        or (isinstance(x, tuple) and is_base(t, tuple, "__getitem__"))
        or isinstance(x, r.domain.constants)
    ):
        r.deep(key)
        return x[key] if type(key) in IMMUTABLE else plain(r, operator.getitem, x, key)
    if isinstance(x, dict) and is_base(t, dict, "__getitem__"):
        return _dict_item(r, x, t, key)
    if t in (collections.deque, bytearray) or (isinstance(x, list) and is_base(t, list, "__getitem__")):
        r.type_of(x)
        r.deep(key)
        r.shallow(x)
        value = x[key] if type(key) in IMMUTABLE else plain(r, operator.getitem, x, key)
        return r.made(value) if type(key) is slice else value
    if isinstance(x, type):
        getter, cls = r.lookup(x, "__class_getitem__"), x
        if isinstance(r.lookup(type(x), "__getitem__"), Function):
            return r.invoke(r.lookup(type(x), "__getitem__"), (x, key))
        if getter is not ABSENT and not isinstance(getter, classmethod):
            return operator.getitem(cls, key)  # type: ignore[call-overload]
        r.refuse(f"subscript of class {describe(x)}")
        return operator.getitem(cls, key)  # type: ignore[call-overload]
    r.type_of(x)
    getter = r.lookup(t, "__getitem__")
    if isinstance(getter, Function):
        return r.invoke(getter, (x, key))
    r.refuse(f"subscript of {describe(x)}")
    return x[key]


def _dict_item(r: Recorder, x: dict[Any, Any], t: type, key: Any) -> Any:
    hashable_key(r, key)
    value = dict.get(x, key, ABSENT)
    if r.outside(x):
        value = r.read("item", x, key, value)
    if value is not ABSENT:
        return value
    missing = r.lookup(t, "__missing__")
    if isinstance(missing, Function):
        return r.invoke(missing, (x, key))
    if missing is ABSENT:
        return x[key]  # raises
    factory = getattr(x, "default_factory", None)
    if r.outside(x):
        r.cell("fattr", x, "default_factory", factory)
    if factory is None:
        return x[key]  # raises
    if not (factory in _FACTORIES or isinstance(factory, Function)):
        r.refuse("calls the default factory of a defaultdict")
        return r.made(x[key])
    value = r.invoke(factory, ())
    if r.outside(x):
        store_item(r, x, key, value)
    else:
        x[key] = value
    return value


_FACTORIES = (list, dict, set, int, float, str, tuple)
