"""Attribute access re-expressed over static MRO lookups.

So every place where Python looks is recorded, and no user code runs unseen. Also what the library is given and gives
back.
"""

from __future__ import annotations

import collections
import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tracejit.ir.symint import SymInt
from tracejit.trace.domain import is_library
from tracejit.trace.objects import ABSENT, FRESH_ITERATORS, IMMUTABLE, describe, instance_dict, is_namedtuple
from tracejit.trace.recorder import Recorder, active
from tracejit.trace.scalars import OPAQUE, OpaqueInt

Function = types.FunctionType
C_METHODS: tuple[type, ...] = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.BuiltinFunctionType,
)
C_CALLABLES: tuple[type, ...] = (*C_METHODS, types.MethodWrapperType)
CONTAINERS: frozenset[type] = frozenset((list, tuple, dict, set, frozenset, collections.deque, bytearray))
# Types whose attributes are methods and constants of the type itself.
PLAIN_ATTRIBUTES: frozenset[type] = frozenset(
    (*IMMUTABLE, *CONTAINERS, slice, *C_CALLABLES, types.GenericAlias, types.MappingProxyType, *FRESH_ITERATORS)
)
_TupleGetter: type = type(collections.namedtuple("_", "field").field)  # type: ignore[attr-defined]  # reads a field
# Classes that look attributes up as `object` does, each under a slot of its own.
_USUAL: tuple[type, ...] = (object, types.SimpleNamespace, tuple, list, dict, set, frozenset, int, float, str, bytes)
GENERIC = frozenset(c.__dict__["__getattribute__"] for c in _USUAL if "__getattribute__" in c.__dict__)


def plain(r: Recorder, f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run library or C code. An error out of it may depend on data that no guard watches, so it refuses."""
    try:
        return f(*args, **kwargs)
    except Exception as e:
        name = f.func if isinstance(f, functools.partial) else f
        r.refuse(f"{type(e).__name__} raised by {getattr(name, '__qualname__', name)}")
        raise


def is_number(r: Recorder, x: Any) -> bool:
    """Whether x is a tensor or an immutable value: operators on these run no user code."""
    return type(x) in IMMUTABLE or (r.is_tensor(x) and is_library(type(x).__module__)) or r.is_value(x)


def inlined(t: type) -> Any:
    """How to get at the function behind an object of class t, where that is a compiled function; else None."""
    for c in t.__mro__:  # not getattr: the class may have a metaclass of the user's
        if (found := c.__dict__.get("_tracejit_inline")) is not None:
            return found.__func__
    return None


def is_base(t: type, kind: type, name: str) -> bool:
    """Whether class t takes dunder `name` from builtin type `kind`."""
    for c in t.__mro__:
        if name in c.__dict__:
            return c is kind
    return False


def load_global(name: str) -> Any:
    """The value of a global or builtin name."""
    frame = sys._getframe(1)
    space, r = frame.f_globals, active()
    found = space.get(name, ABSENT)
    if found is not ABSENT:
        return found if r is None else r.read("item", space, name, found)
    found = frame.f_builtins.get(name, ABSENT)
    if r is not None:
        r.cell("item", space, name, ABSENT)
        r.cell("item", frame.f_builtins, name, found)
    if found is ABSENT:
        raise NameError(f"name {name!r} is not defined", name=name)
    return found


def load_attr(operands: tuple[Any, str]) -> Any:
    """x.name"""
    x, name = operands
    r = active()
    return getattr(x, name) if r is None else attribute(r, x, name)


def attribute(r: Recorder, x: Any, name: str) -> Any:
    """x.name"""
    x = r.reveal(x)
    t = type(x)
    if r.is_tensor(x):
        return _tensor_attribute(r, x, t, name)
    if t in PLAIN_ATTRIBUTES:
        return getattr(x, name)
    if (inner := inlined(t)) is not None:
        if hasattr(t, name) or name in x.__dict__:
            r.refuse(f"reads {name} of a compiled function")
            return getattr(x, name)
        return attribute(r, inner(x), name)
    if t is types.ModuleType:
        return _module_attribute(r, x, name)
    if isinstance(x, type):
        return _class_attribute(r, x, name)
    if t is super:
        return _super_attribute(r, x, name)
    if t is types.MethodType:
        if name in ("__func__", "__self__"):
            return getattr(x, name)
        return attribute(r, x.__func__, name)
    if t is Function:
        if not r.is_old(x):
            return getattr(x, name)
        if name in x.__dict__:
            return r.read("ivar", x, name, x.__dict__[name])
        if not hasattr(x, name):
            r.cell("ivar", x, name, ABSENT)
        return r.cell("fattr", x, name, getattr(x, name))
    if t is functools.partial:
        return getattr(x, name) if name in ("func", "args", "keywords") else _odd(r, x, name)
    if r.is_value(x) or _is_library_object(t):
        if r.is_value(x) or r.is_old(x):
            return _library_attribute(r, x, name)
        return plain(r, getattr, x, name)
    return instance_attribute(r, x, t, name)


def _is_library_object(t: type) -> bool:
    return is_library(t.__module__)


def _library_attribute(r: Recorder, x: Any, name: str) -> Any:
    """An attribute of an old object of a library class: data is read through cells, methods report for themselves."""
    if r.is_value(x):
        return getattr(x, name)
    return instance_attribute(r, x, type(x), name)


def _odd(r: Recorder, x: Any, name: str) -> Any:
    r.refuse(f"reads attribute {name} of {describe(x)}")
    return getattr(x, name)


def _tensor_attribute(r: Recorder, x: Any, t: type, name: str) -> Any:
    raw = r.lookup(t, name)
    home = next((c for c in t.__mro__ if name in c.__dict__), None)
    if home is None or not is_library(home.__module__):  # a subclass of the user's, or an attribute the user gave it
        return instance_attribute(r, x, t, name, raw)
    r.touch(x)
    if name[0] == "_" and name[:2] != "__":
        r.refuse(f"reads the private field {name} of a tensor")
    if isinstance(raw, Function):
        return types.MethodType(raw, x)
    return library_result(r, plain(r, getattr, x, name), (x,))


def _module_attribute(r: Recorder, x: Any, name: str) -> Any:
    space = x.__dict__
    r.cell("type", x, None, types.ModuleType)
    if name in space:
        return r.read("item", space, name, space[name])
    if name in ("__dict__", "__class__"):
        return _odd(r, x, name)
    r.cell("item", space, name, ABSENT)
    if isinstance(fallback := space.get("__getattr__"), Function):
        r.cell("item", space, "__getattr__", fallback)
        return r.invoke(fallback, (name,))
    return missing(r, x, name)


def _class_attribute(r: Recorder, x: type, name: str) -> Any:
    meta = type(x)
    from_meta = r.lookup(meta, name)
    if from_meta is not ABSENT and is_data_descriptor(r, from_meta):
        if isinstance(from_meta, (types.GetSetDescriptorType, types.MemberDescriptorType)) and name != "__dict__":
            return (
                r.cell("fattr", x, name, getattr(x, name)) if name != "__mro__" else r.cell("mro", x, None, x.__mro__)
            )
        if isinstance(from_meta, property):
            return r.invoke(from_meta.fget, (x,))
        return _odd(r, x, name)
    if not isinstance(r.lookup(meta, "__getattribute__"), types.WrapperDescriptorType):
        return _odd(r, x, name)
    raw = r.lookup(x, name)
    if raw is not ABSENT:
        if isinstance(raw, (Function, property, types.MemberDescriptorType, types.GetSetDescriptorType)):
            return raw
        return bind(r, raw, None, x)
    if from_meta is not ABSENT:
        return bind(r, from_meta, x, meta)
    if isinstance(fallback := r.lookup(meta, "__getattr__"), Function):
        return r.invoke(fallback, (x, name))
    return missing(r, x, name)


def _super_attribute(r: Recorder, s: Any, name: str) -> Any:
    owner, x, t = s.__thisclass__, s.__self__, s.__self_class__
    if t is None or name == "__class__":
        return getattr(s, name)
    r.cell("mro", t, None, t.__mro__)
    for c in t.__mro__[t.__mro__.index(owner) + 1 :]:
        raw = c.__dict__.get(name, ABSENT)
        r.cell("class", c, name, raw)
        if raw is not ABSENT:
            return bind(r, raw, None if x is t else x, t)
    return missing(r, s, name)


def instance_attribute(r: Recorder, x: Any, t: type, name: str, raw: Any = None) -> Any:
    """Python's default lookup: data descriptor, instance __dict__, class attribute, __getattr__."""
    r.type_of(x)
    generic = r.lookup(t, "__getattribute__") in GENERIC or isinstance(x, BaseException) or r.is_tensor(x)
    if not generic:
        return _odd(r, x, name)
    raw = r.lookup(t, name) if raw is None else raw
    if name == "__class__" and raw is object.__dict__["__class__"]:
        return t
    if name == "__dict__":
        return _instance_dict(r, x, raw)
    if raw is not ABSENT and is_data_descriptor(r, raw):
        if isinstance(raw, property):
            return r.invoke(raw.fget, (x,))
        if isinstance(raw, types.MemberDescriptorType):
            value = getattr(x, name, ABSENT)
            if r.is_old(x):
                value = r.read("member", x, raw, value)
            return getattr(x, name) if value is ABSENT else value
        if isinstance(raw, types.GetSetDescriptorType):
            if isinstance(x, BaseException) and name in ("args", "__cause__", "__context__", "__traceback__"):
                return getattr(x, name)
            return _odd(r, x, name)
        if isinstance(raw, _TupleGetter) and isinstance(x, tuple):
            return getattr(x, name)
        return bind(r, raw, x, t)
    if (space := instance_dict(x)) is not None:
        value = space.get(name, ABSENT)
        if r.is_old(x):
            value = r.read("ivar", x, name, value)
        if value is not ABSENT:
            return value
    if raw is not ABSENT:
        return bind(r, raw, x, t)
    if isinstance(fallback := r.lookup(t, "__getattr__"), Function):
        return r.invoke(fallback, (x, name))
    if fallback is not ABSENT:
        return _odd(r, x, name)
    return missing(r, x, name)


def missing(r: Recorder, x: Any, name: str) -> Any:
    """The AttributeError Python would raise; if it finds something all the same, we did not understand the object."""
    value = getattr(x, name)
    r.refuse(f"reads attribute {name} of {describe(x)}")
    return value


def _instance_dict(r: Recorder, x: Any, raw: Any) -> Any:
    space = instance_dict(x)
    if space is None or not isinstance(raw, types.GetSetDescriptorType):
        return _odd(r, x, "__dict__")
    if r.is_old(x):
        r.dict_owner[id(space)] = x
        r.keep.append(space)
    else:
        r.made(space)
    return space


def is_data_descriptor(r: Recorder, raw: Any) -> bool:
    """Whether a class attribute comes before the instance's own."""
    t = type(raw)
    if t is Function or t in OPAQUE:
        return False
    if t in (property, types.MemberDescriptorType, types.GetSetDescriptorType):
        return True
    return r.lookup(t, "__set__") is not ABSENT or r.lookup(t, "__delete__") is not ABSENT


def bind(r: Recorder, raw: Any, x: Any, t: type) -> Any:
    """The value of class attribute `raw` read through instance x (None: through class t itself)."""
    kind = type(raw)
    if kind is Function:
        return raw if x is None else types.MethodType(raw, x)
    if kind in OPAQUE:
        return raw
    if kind is staticmethod:
        return raw.__func__
    if kind is classmethod:
        return types.MethodType(raw.__func__, t) if isinstance(raw.__func__, Function) else raw.__get__(x, t)
    if kind is property:
        return raw if x is None else r.invoke(raw.fget, (x,))
    if isinstance(raw, C_METHODS):
        return raw.__get__(x, t) if kind is not types.BuiltinFunctionType else raw
    if inlined(kind) is not None and isinstance(raw.__dict__.get("function"), Function):
        return raw if x is None else types.MethodType(raw, x)
    getter = r.lookup(kind, "__get__")
    if getter is ABSENT:
        return raw
    if isinstance(getter, Function):
        return r.invoke(getter, (raw, x, t))
    r.refuse(f"descriptor {describe(raw)} of {describe(t)}")
    return raw.__get__(x, t)


def load_super(operands: tuple[Any, ...]) -> Any:
    """super(cls, x).name"""
    f, cls, x, name = operands
    r = active()
    s = f(cls, x) if r is None or f is super else r.invoke(f, (cls, x))
    return getattr(s, name) if r is None else attribute(r, s, name)


def home_of(t: type, name: str) -> Any:
    """The module of the class in the MRO of t that defines `name`."""
    return next((c.__module__ for c in t.__mro__ if name in c.__dict__), None)


def old_iterator(r: Recorder, x: Any) -> None:
    """Advancing an iterator changes it."""
    if r.is_old(x):
        r.refuse(f"uses {describe(x)} made outside")


def offer_index(r: Recorder, key: Any) -> None:
    """`offer` for an index of a tensor, in which numbers may stay what they are."""
    for k in key if type(key) is tuple else (key,):
        parts = (k.start, k.stop, k.step) if type(k) is slice else (k,)
        for p in parts:
            if type(p) is not OpaqueInt:
                offer(r, p)


def offer(r: Recorder, x: Any, depth: int = 0) -> None:
    """x is handed to the library, which may read it as deep as it goes but without Python frames that the net sees."""
    t = type(x)
    if t is SymInt:
        return
    if t in OPAQUE or t in IMMUTABLE or r.is_tensor(x) or r.is_value(x) or isinstance(x, type):
        r.deep(x)
    elif t in CONTAINERS or is_namedtuple(t):
        r.shallow(x)
        if depth > 6:
            r.refuse("hands a deeply nested container to the library")
            return
        for v in (*x.keys(), *x.values()) if t is dict else tuple(x):
            offer(r, v, depth + 1)
    elif t in FRESH_ITERATORS:
        old_iterator(r, x)
    elif t is slice:
        for v in (x.start, x.stop, x.step):
            offer(r, v, depth + 1)
    elif is_library(t.__module__):
        if r.is_old(
            x
        ):  # the library reads the tensors in its own objects, such as a generator's state, without saying so
            for name, v in (instance_dict(x) or {}).items():
                if r.is_tensor(v):
                    r.cell("ivar", x, name, v)
    elif isinstance(x, (int, float, str)):
        r.deep(x)
    elif not isinstance(x, np.generic):
        r.refuse(f"hands {describe(x)} to the library")


def library_result(r: Recorder, x: Any, given: tuple[Any, ...]) -> Any:
    """Containers that the library returns are new, unless it was given them."""
    if type(x) in (list, dict, set) and not any(x is g for g in _deep(given)):
        r.made(x)
        for v in x.values() if type(x) is dict else x:
            library_result(r, v, given)
    elif isinstance(x, tuple):
        for v in x:
            library_result(r, v, given)
    elif type(x) is types.GeneratorType:
        r.made(x)
    return x


def _deep(x: Any, depth: int = 0) -> Iterator[Any]:
    yield x
    if depth < 8 and type(x) in (list, tuple):
        for v in x:
            yield from _deep(v, depth + 1)
    elif depth < 8 and type(x) is dict:
        for v in x.values():
            yield from _deep(v, depth + 1)
