"""What instrumented code does at each hook: tell the recorder what is read, then do exactly what Python would have done.

With no recording open every hook is the plain operation. Hooks run no user code of their own accord: attribute lookup is
re-expressed over static MRO lookups, and whatever Python function an operation would call is called through `call`, so that
it runs instrumented. What cannot be re-expressed is refused and done plainly: a refused recording still gives right answers.

`run` opens a recording around a call, with a profile function as the net: a Python frame that is neither instrumented nor
below our own library refuses the recording.
"""

from __future__ import annotations

import abc
import builtins
import collections
import functools
import operator
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tracejit.errors import NotCompilable
from tracejit.trace import effects, instrument
from tracejit.trace.domain import is_library, is_recorder
from tracejit.trace.instrument import NULL, VERSION, is_instrumented
from tracejit.trace.recorder import (
    ABSENT,
    FRESH_ITERATORS,
    IMMUTABLE,
    Recorder,
    active,
    describe,
    is_namedtuple,
    opened,
)

__all__ = ["call", "run"]

Function = types.FunctionType
_C_METHODS = (
    types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType, types.BuiltinFunctionType,
)  # fmt: skip
_C_CALLABLES = (
    types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType, types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
)  # fmt: skip
_TupleGetter = type(collections.namedtuple("_", "field").field)  # type: ignore[attr-defined]  # reads a field of a namedtuple
_PLAIN_ATTRIBUTES = frozenset(
    (*IMMUTABLE, list, dict, tuple, set, frozenset, slice, types.BuiltinFunctionType, types.MethodWrapperType,
     types.MethodDescriptorType, types.WrapperDescriptorType, types.GenericAlias, types.MappingProxyType, *FRESH_ITERATORS)
)  # fmt: skip


# ------------------------------------------------------------------------------------------------ help


def plain(r: Recorder, f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run library or C code. An error out of it may depend on data that no guard watches, so it refuses the recording."""
    try:
        return f(*args, **kwargs)
    except Exception as e:
        r.refuse(f"{type(e).__name__} raised by {getattr(f, '__qualname__', f)}")
        raise


def is_number(r: Recorder, x: Any) -> bool:
    """Whether x is a tensor or an immutable value: operators on these run no user code."""
    return type(x) in IMMUTABLE or r.is_tensor(x) and is_library(type(x).__module__) or r.is_value(x)


def python_method(r: Recorder, t: type, name: str) -> Any:
    """The Python function behind a dunder of class t; None where the class has none; ABSENT where it is something else."""
    raw = r.lookup(t, name)
    if raw is ABSENT or raw is None:
        return None
    return raw if isinstance(raw, Function) else ABSENT


def is_base(t: type, kind: type, name: str) -> bool:
    """Whether class t takes dunder `name` from builtin type `kind`."""
    for c in t.__mro__:
        if name in c.__dict__:
            return c is kind
    return False


# ------------------------------------------------------------------------------------------------ names and attributes


def load_global(name: str) -> Any:
    frame = sys._getframe(1)
    space, r = frame.f_globals, active()
    found = space.get(name, ABSENT)
    if found is not ABSENT:
        return found if r is None else r.cell("item", space, name, found)
    found = frame.f_builtins.get(name, ABSENT)
    if r is not None:
        r.cell("item", space, name, ABSENT)
        r.cell("item", frame.f_builtins, name, found)
    if found is ABSENT:
        raise NameError(f"name {name!r} is not defined", name=name)
    return found


def load_attr(operands: tuple[Any, str]) -> Any:
    x, name = operands
    r = active()
    return getattr(x, name) if r is None else attribute(r, x, name)


def attribute(r: Recorder, x: Any, name: str) -> Any:
    """x.name"""
    t = type(x)
    if r.is_tensor(x):
        return _tensor_attribute(r, x, t, name)
    if t in _PLAIN_ATTRIBUTES:
        return getattr(x, name)
    if (inner := getattr(t, "_tracejit_inline", None)) is not None:
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
        return r.cell("fattr", x, name, getattr(x, name)) if r.is_old(x) else getattr(x, name)
    if t is functools.partial:
        return getattr(x, name) if name in ("func", "args", "keywords") else _odd(r, x, name)
    if r.is_value(x) or _is_library_object(t):
        if r.is_value(x) or r.is_old(x):
            return _library_attribute(r, x, name)
        return plain(r, getattr, x, name)
    return _instance_attribute(r, x, t, name)


def _is_library_object(t: type) -> bool:
    return is_library(t.__module__)


def _library_attribute(r: Recorder, x: Any, name: str) -> Any:
    """An attribute of an old object of a library class: data is read through cells, methods report for themselves."""
    if r.is_value(x):
        return getattr(x, name)
    return _instance_attribute(r, x, type(x), name)


def _odd(r: Recorder, x: Any, name: str) -> Any:
    r.refuse(f"reads attribute {name} of {describe(x)}")
    return getattr(x, name)


def _tensor_attribute(r: Recorder, x: Any, t: type, name: str) -> Any:
    raw = r.lookup(t, name)
    home = next((c for c in t.__mro__ if name in c.__dict__), None)
    if home is None or not is_library(home.__module__):  # a subclass of the user's, or an attribute the user gave it
        return _instance_attribute(r, x, t, name, raw)
    r.touch(x)
    if isinstance(raw, Function):
        return types.MethodType(raw, x)
    return library_result(r, plain(r, getattr, x, name), (x,))


def _module_attribute(r: Recorder, x: Any, name: str) -> Any:
    space = x.__dict__
    if name in space:
        return r.cell("item", space, name, space[name])
    if name in ("__dict__", "__class__"):
        return _odd(r, x, name)
    r.cell("item", space, name, ABSENT)
    if isinstance(fallback := space.get("__getattr__"), Function):
        r.cell("item", space, "__getattr__", fallback)
        return call(r, fallback, (name,))
    return getattr(x, name)


def _class_attribute(r: Recorder, x: type, name: str) -> Any:
    meta = type(x)
    from_meta = r.lookup(meta, name)
    if from_meta is not ABSENT and is_data_descriptor(r, from_meta):
        if isinstance(from_meta, (types.GetSetDescriptorType, types.MemberDescriptorType)) and name != "__dict__":
            return r.cell("fattr", x, name, getattr(x, name)) if name != "__mro__" else r.cell("mro", x, None, x.__mro__)
        if isinstance(from_meta, property):
            return call(r, from_meta.fget, (x,))
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
        return call(r, fallback, (x, name))
    return getattr(x, name)


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
    return getattr(s, name)


def _instance_attribute(r: Recorder, x: Any, t: type, name: str, raw: Any = None) -> Any:
    """Python's default lookup: data descriptor, instance __dict__, class attribute, __getattr__."""
    r.type_of(x)
    if r.lookup(t, "__getattribute__") is not object.__dict__["__getattribute__"]:
        if not (isinstance(x, BaseException) or r.is_tensor(x)):
            return _odd(r, x, name)
    raw = r.lookup(t, name) if raw is None else raw
    if name == "__class__" and raw is object.__dict__["__class__"]:
        return t
    if name == "__dict__":
        return _instance_dict(r, x, raw)
    if raw is not ABSENT and is_data_descriptor(r, raw):
        if isinstance(raw, property):
            return call(r, raw.fget, (x,))
        if isinstance(raw, types.MemberDescriptorType):
            value = getattr(x, name, ABSENT)
            if r.is_old(x):
                r.cell("member", x, raw, value)
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
            r.cell("ivar", x, name, value)
        if value is not ABSENT:
            return value
    if raw is not ABSENT:
        return bind(r, raw, x, t)
    if isinstance(fallback := r.lookup(t, "__getattr__"), Function):
        return call(r, fallback, (x, name))
    if fallback is not ABSENT:
        return _odd(r, x, name)
    return getattr(x, name)  # raises what Python would


def instance_dict(x: Any) -> dict[str, Any] | None:
    """The __dict__ of an object, found without running user code."""
    for c in type(x).__mro__:
        raw = c.__dict__.get("__dict__")
        if isinstance(raw, types.GetSetDescriptorType):
            return raw.__get__(x)
    return None


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
    if t is Function:
        return False
    if t in (property, types.MemberDescriptorType, types.GetSetDescriptorType):
        return True
    return r.lookup(t, "__set__") is not ABSENT or r.lookup(t, "__delete__") is not ABSENT


def bind(r: Recorder, raw: Any, x: Any, t: type) -> Any:
    """The value of class attribute `raw` read through instance x (None: through class t itself)."""
    kind = type(raw)
    if kind is Function:
        return raw if x is None else types.MethodType(raw, x)
    if kind is staticmethod:
        return raw.__func__
    if kind is classmethod:
        return types.MethodType(raw.__func__, t) if isinstance(raw.__func__, Function) else raw.__get__(x, t)
    if kind is property:
        return raw if x is None else call(r, raw.fget, (x,))
    if isinstance(raw, _C_METHODS):
        return raw.__get__(x, t) if kind is not types.BuiltinFunctionType else raw
    getter = r.lookup(kind, "__get__")
    if getter is ABSENT:
        return raw
    if isinstance(getter, Function):
        return call(r, getter, (raw, x, t))
    r.refuse(f"descriptor {describe(raw)} of {describe(t)}")
    return raw.__get__(x, t)


def load_super(operands: tuple[Any, ...]) -> Any:
    f, cls, x, name = operands
    r = active()
    s = f(cls, x) if r is None or f is super else call(r, f, (cls, x))
    return getattr(s, name) if r is None else attribute(r, s, name)


def store_attr(operands: tuple[Any, Any, str]) -> None:
    value, x, name = operands
    r = active()
    if r is None:
        setattr(x, name, value)
    else:
        set_attribute(r, x, name, value)


def set_attribute(r: Recorder, x: Any, name: str, value: Any) -> None:
    """x.name = value"""
    t = type(x)
    if getattr(t, "_tracejit_inline", None) is not None:
        r.refuse("sets an attribute of a compiled function")
        setattr(x, name, value)
        return
    if r.is_tensor(x) and isinstance(raw := r.lookup(t, name), property) and is_library(_home(t, name)):
        r.touch(x)
        offer(r, value)
        plain(r, setattr, x, name, value)
        return
    if isinstance(x, (type, types.ModuleType)):
        r.effect(x, f"sets {name}")
        setattr(x, name, value)
        return
    r.type_of(x)
    setter = r.lookup(t, "__setattr__")
    if isinstance(setter, Function):
        call(r, setter, (x, name, value))
        return
    raw = r.lookup(t, name)
    if isinstance(raw, property) and raw.fset is not None:
        call(r, raw.fset, (x, value))
        return
    if raw is not ABSENT and isinstance(set_ := r.lookup(type(raw), "__set__"), Function):
        call(r, set_, (raw, x, value))
        return
    if setter is not object.__dict__["__setattr__"] or name in ("__class__", "__dict__"):
        r.refuse(f"sets attribute {name} of {describe(x)}")
    r.effect(x, f"sets {name}")
    setattr(x, name, value)


def _home(t: type, name: str) -> Any:
    return next((c.__module__ for c in t.__mro__ if name in c.__dict__), None)


def delete_attr(operands: tuple[Any, str]) -> None:
    x, name = operands
    if (r := active()) is not None:
        deleter = r.lookup(type(x), "__delattr__") if not isinstance(x, type) else ABSENT
        if isinstance(deleter, Function):
            call(r, deleter, (x, name))
            return
        raw = r.lookup(type(x), name)
        if r.is_tensor(x) or raw is not ABSENT and not isinstance(raw, (Function, types.MemberDescriptorType)):
            r.refuse(f"deletes attribute {name} of {describe(x)}")
        r.effect(x, f"deletes {name}")
    delattr(x, name)


# ------------------------------------------------------------------------------------------------ items


def load_item(operands: tuple[Any, Any]) -> Any:
    x, key = operands
    r = active()
    return x[key] if r is None else item(r, x, key)


def item(r: Recorder, x: Any, key: Any) -> Any:
    """x[key]"""
    t = type(x)
    if r.is_tensor(x):
        offer(r, key)
        r.touch(x)
        return plain(r, operator.getitem, x, key)
    if t is tuple or t in IMMUTABLE or isinstance(x, tuple) and is_base(t, tuple, "__getitem__") or isinstance(x, r.domain.constants):
        r.deep(key)
        return x[key] if type(key) in IMMUTABLE else plain(r, operator.getitem, x, key)
    if isinstance(x, dict) and is_base(t, dict, "__getitem__"):
        return _dict_item(r, x, t, key)
    if t is list:
        r.deep(key)
        r.shallow(x)
        value = x[key] if type(key) in IMMUTABLE else plain(r, operator.getitem, x, key)
        return r.made(value) if type(key) is slice else value
    if isinstance(x, type):
        getter = r.lookup(x, "__class_getitem__")
        if isinstance(r.lookup(type(x), "__getitem__"), Function):
            return call(r, r.lookup(type(x), "__getitem__"), (x, key))
        if getter is not ABSENT and not isinstance(getter, classmethod):
            return x[key]
        r.refuse(f"subscript of class {describe(x)}")
        return x[key]
    r.type_of(x)
    getter = python_method(r, t, "__getitem__")
    if getter:
        if getter is not ABSENT:
            return call(r, getter, (x, key))
        r.refuse(f"subscript of {describe(x)}")
    elif getter is ABSENT or getter is None:
        r.refuse(f"subscript of {describe(x)}")
    return x[key]


def hashable_key(r: Recorder, key: Any) -> Any:
    """Dict and set look-ups hash and compare keys: fine for values, and for objects compared by identity."""
    if type(key) in IMMUTABLE or isinstance(key, (type, Function, *r.domain.constants)) or r.is_tensor(key):
        return key
    r.deep(key)
    return key


def _dict_item(r: Recorder, x: dict[Any, Any], t: type, key: Any) -> Any:
    hashable_key(r, key)
    value = dict.get(x, key, ABSENT)
    if r.is_old(x):
        r.cell("item", x, key, value)
    if value is not ABSENT:
        return value
    missing = r.lookup(t, "__missing__")
    if isinstance(missing, Function):
        return call(r, missing, (x, key))
    if missing is not ABSENT:
        r.effect(x, "adds a default")
        r.refuse("calls the default factory of a defaultdict") if not _safe_factory(x) else None
    return r.made(x[key]) if missing is not ABSENT else x[key]


def _safe_factory(x: Any) -> bool:
    return getattr(x, "default_factory", None) in (list, dict, set, int, float, str, tuple)


def store_item(operands: tuple[Any, Any, Any]) -> None:
    value, x, key = operands
    if (r := active()) is None:
        x[key] = value
        return
    t = type(x)
    if r.is_tensor(x):
        offer(r, key)
        offer(r, value)
        r.touch(x)
        plain(r, operator.setitem, x, key, value)
        return
    if t is not list and t is not dict:
        r.type_of(x)
        setter = r.lookup(t, "__setitem__")
        if isinstance(setter, Function):
            call(r, setter, (x, key, value))
            return
        if not isinstance(x, (list, dict)):
            r.refuse(f"item assignment on {describe(x)}")
    hashable_key(r, key)
    r.effect(x, "sets an item")
    x[key] = value


def delete_item(operands: tuple[Any, Any]) -> None:
    x, key = operands
    if (r := active()) is not None:
        deleter = r.lookup(type(x), "__delitem__")
        if isinstance(deleter, Function):
            call(r, deleter, (x, key))
            return
        hashable_key(r, key)
        if not isinstance(x, (list, dict)):
            r.refuse(f"item deletion on {describe(x)}")
        r.effect(x, "deletes an item")
    del x[key]


# ------------------------------------------------------------------------------------------------ operators

_NAMES = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "truediv", "floordiv": "floordiv", "mod": "mod", "pow": "pow",
    "matmul": "matmul", "lshift": "lshift", "rshift": "rshift", "and_": "and", "or_": "or", "xor": "xor",
}  # fmt: skip
_REFLECTED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}
_CONTAINERS = frozenset((list, tuple, dict, set, frozenset))


def binary(operands: tuple[Any, Any, Callable[[Any, Any], Any]]) -> Any:
    a, b, op = operands
    r = active()
    return op(a, b) if r is None else apply_binary(r, a, b, op)


def apply_binary(r: Recorder, a: Any, b: Any, op: Callable[[Any, Any], Any]) -> Any:
    """a op b, in place where op is."""
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
    builtin = all(t in _CONTAINERS or is_number(r, x) or is_namedtuple(t) for t, x in ((ta, a), (tb, b)))
    if builtin:
        if inplace and ta in (list, dict, set):
            r.effect(a, f"{op.__name__}")
        (r.deep if ta is str or ta in (set, frozenset) else r.shallow)(a)
        (r.deep if ta is str or r.is_tensor(a) else r.shallow)(b)
        return r.made(plain(r, op, a, b))
    r.type_of(a), r.type_of(b)
    if inplace:
        method = r.lookup(ta, f"__i{name}__")
        if isinstance(method, Function):
            if (v := call(r, method, (a, b))) is not NotImplemented:
                return v
        elif method is not ABSENT:
            return _opaque_operator(r, a, b, op)
    left, right = r.lookup(ta, f"__{name}__"), r.lookup(tb, f"__r{name}__")
    order = [(left, a, b), (right, b, a)]
    if ta is not tb and issubclass(tb, ta) and right is not ABSENT and right is not r.lookup(ta, f"__r{name}__"):
        order.reverse()
    elif ta is tb:
        order.pop()
    for method, x, y in order:
        if method is ABSENT:
            continue
        if not isinstance(method, Function):
            if type(x) in IMMUTABLE:
                continue  # builtin numbers and text return NotImplemented for a class of the user's
            return _opaque_operator(r, a, b, op)
        if (v := call(r, method, (x, y))) is not NotImplemented:
            return v
    raise TypeError(f"unsupported operand type(s) for {op.__name__}: {ta.__name__!r} and {tb.__name__!r}")


def _opaque_operator(r: Recorder, a: Any, b: Any, op: Callable[[Any, Any], Any]) -> Any:
    r.refuse(f"{op.__name__} of {describe(a)} and {describe(b)}")
    return op(a, b)


def unary(operands: tuple[Any, Callable[[Any], Any]]) -> Any:
    x, op = operands
    if (r := active()) is None or type(x) in IMMUTABLE:
        return op(x)
    if is_number(r, x):
        r.deep(x)
        return plain(r, op, x)
    method = r.lookup(type(x), {"neg": "__neg__", "invert": "__invert__", "inv": "__invert__", "pos": "__pos__"}[op.__name__])
    if isinstance(method, Function):
        r.type_of(x)
        return call(r, method, (x,))
    r.refuse(f"{op.__name__} of {describe(x)}")
    return op(x)


def compare(operands: tuple[Any, Any, Callable[[Any, Any], Any]]) -> Any:
    a, b, op = operands
    r = active()
    return op(a, b) if r is None else apply_compare(r, a, b, op)


def apply_compare(r: Recorder, a: Any, b: Any, op: Callable[[Any, Any], Any]) -> Any:
    """a op b for the six comparisons."""
    ta, tb = type(a), type(b)
    if ta in IMMUTABLE and tb in IMMUTABLE:
        return op(a, b)
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
    r.type_of(a), r.type_of(b)
    order = [(methods[0], a, b), (methods[1], b, a)]
    if ta is not tb and issubclass(tb, ta):
        order.reverse()
    for method, x, y in order:
        if isinstance(method, Function):
            if (v := call(r, method, (x, y))) is not NotImplemented:
                return v
        elif method is ABSENT or method is object.__dict__.get(f"__{name}__") or type(x) in IMMUTABLE:
            if method is not ABSENT and name == "ne" and isinstance(eq := r.lookup(type(x), "__eq__"), Function):
                if (v := call(r, eq, (x, y))) is not NotImplemented:  # object.__ne__ inverts __eq__
                    return not truth(v)
        else:
            return _opaque_operator(r, a, b, op)
    if name in ("eq", "ne"):
        return (a is b) is (name == "eq")
    raise TypeError(f"{name!r} not supported between instances of {ta.__name__!r} and {tb.__name__!r}")


def contains(operands: tuple[Any, Any, bool]) -> bool:
    x, box, negated = operands
    r = active()
    found = x in box if r is None else _contains(r, x, box)
    return found is not negated


def _contains(r: Recorder, x: Any, box: Any) -> bool:
    t = type(box)
    if isinstance(box, dict) and is_base(t, dict, "__contains__"):
        hashable_key(r, x)
        found = dict.get(box, x, ABSENT)
        if r.is_old(box):
            r.cell("item", box, x, found)
        return found is not ABSENT
    if t in _CONTAINERS or is_number(r, box) or t in FRESH_ITERATORS:
        if t in FRESH_ITERATORS:
            old_iterator(r, box)
        r.deep(x)
        r.deep(box)
        return plain(r, operator.contains, box, x)
    if isinstance(box, type):
        meta = r.lookup(t, "__contains__")
        if isinstance(meta, Function):
            return truth(call(r, meta, (box, x)))
        r.refuse(f"`in` on class {describe(box)}")
        return x in box
    r.type_of(box)
    method = r.lookup(t, "__contains__")
    if isinstance(method, Function):
        return truth(call(r, method, (box, x)))
    if method is ABSENT and isinstance(r.lookup(t, "__iter__"), Function):
        return any(x is v or truth(apply_compare(r, v, x, operator.eq)) for v in iterate(box))
    r.refuse(f"`in` on {describe(box)}")
    return x in box


_SINGLETONS = (None, True, False, Ellipsis, NotImplemented)


def identical(operands: tuple[Any, Any, bool]) -> bool:
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
    if type(a) is type(b) and (type(a) in IMMUTABLE or isinstance(a, (tuple, types.MethodType))):
        r.refuse(f"compares the identity of two {type(a).__name__} values")


def truth(x: Any) -> bool:
    r = active()
    if r is None or x is True or x is False or type(x) in IMMUTABLE:
        return bool(x)
    t = type(x)
    if is_number(r, x):
        r.deep(x)
        return plain(r, bool, x)
    if t in _CONTAINERS or is_namedtuple(t):
        r.shallow(x)
        return bool(x)
    if isinstance(x, dict) and is_base(t, dict, "__len__") and r.lookup(t, "__bool__") is ABSENT:
        r.shallow(x)
        return bool(x)
    r.type_of(x)
    for name in ("__bool__", "__len__"):
        method = r.lookup(t, name)
        if isinstance(method, Function):
            v = call(r, method, (x,))
            return bool(v) if type(v) in IMMUTABLE else bool(x)
        if method is not ABSENT:
            r.refuse(f"truth of {describe(x)}")
            return bool(x)
    return True


# ------------------------------------------------------------------------------------------------ iteration


def old_iterator(r: Recorder, x: Any) -> None:
    """Advancing an iterator changes it."""
    if r.is_old(x):
        r.refuse(f"uses {describe(x)} made outside")


def iterate(x: Any) -> Any:
    """Something whose C-level iteration gives what iterating x would."""
    r = active()
    if r is None:
        return x
    t = type(x)
    if r.is_tensor(x):
        r.touch(x)
        return r.made(plain(r, iter, x))
    if t in IMMUTABLE or isinstance(x, tuple) and is_base(t, tuple, "__iter__"):
        return x
    if t in FRESH_ITERATORS:
        old_iterator(r, x)
        return x
    if t in (list, set, frozenset) or isinstance(x, dict) and is_base(t, dict, "__iter__"):
        r.shallow(x)
        return x
    if isinstance(x, type):
        method = r.lookup(t, "__iter__")
        return driven(r, call(r, method, (x,))) if isinstance(method, Function) else _opaque_iteration(r, x)
    r.type_of(x)
    method = r.lookup(t, "__iter__")
    if isinstance(method, Function):
        return driven(r, call(r, method, (x,)))
    return _opaque_iteration(r, x)


def _opaque_iteration(r: Recorder, x: Any) -> Any:
    r.refuse(f"iterates {describe(x)}")
    return x


def driven(r: Recorder, it: Any) -> Any:
    """An iterator as C code can advance it: one written in Python is advanced through `call`."""
    t = type(it)
    if t in FRESH_ITERATORS:
        old_iterator(r, it)
        return it
    step = r.lookup(t, "__next__")
    if not isinstance(step, Function):
        return _opaque_iteration(r, it)
    return r.made(_drive(it, step))


def _drive(it: Any, step: Any) -> Iterator[Any]:
    while True:
        r = active()
        try:
            v = step(it) if r is None else call(r, step, (it,))
        except StopIteration:
            return
        yield v


def delegate(x: Any) -> Any:
    """`yield from x`"""
    r = active()
    if r is not None and type(x) is types.GeneratorType:
        old_iterator(r, x)
        return x
    return iterate(x)


def unpack(x: Any) -> Any:
    """A sequence is about to be unpacked, or measured by a match statement."""
    r = active()
    if r is None or type(x) in IMMUTABLE or isinstance(x, (tuple, list)) and type(x).__iter__ in (tuple.__iter__, list.__iter__):
        if r is not None and type(x) is list:
            r.shallow(x)
        return x
    if isinstance(x, dict) or not (r.is_tensor(x) or type(x) in FRESH_ITERATORS or type(x) in (set, frozenset)):
        if not isinstance(x, dict) and isinstance(r.lookup(type(x), "__iter__"), Function):
            return list(iterate(x))
        r.deep(x)
        return x
    return iterate(x)


def update(x: Any) -> Any:
    """x is about to be poured into a new list, set or dict."""
    r = active()
    if r is None:
        return x
    if isinstance(x, dict) and is_base(type(x), dict, "__getitem__") and is_base(type(x), dict, "__iter__"):
        r.shallow(x)
        return x
    return iterate(x)


def format(x: Any) -> Any:
    """x is about to be turned into text, or read by a match statement."""
    r = active()
    if r is None or type(x) in IMMUTABLE:
        return x
    if r.is_tensor(x):
        r.touch(x)
        return x
    method = r.lookup(type(x), "__format__")
    if isinstance(method, Function) or any(isinstance(r.lookup(type(x), n), Function) for n in ("__str__", "__repr__")):
        r.refuse(f"formats {describe(x)}")
    r.deep(x)
    return x


def match(operands: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    """`case cls(...)`: isinstance, then attributes."""
    x, cls, names = operands
    if (r := active()) is not None:
        check_isinstance(r, x, cls)
        positional = r.lookup(cls, "__match_args__") if isinstance(cls, type) else ABSENT
        if isinstance(x, cls) and type(x) not in IMMUTABLE and type(x) not in _CONTAINERS:
            wanted = (*(positional if isinstance(positional, tuple) else ()), *names)
            for name in wanted:
                raw = r.lookup(type(x), name)
                if raw is not ABSENT and is_data_descriptor(r, raw) and not isinstance(raw, types.MemberDescriptorType):
                    r.refuse(f"matches on the computed attribute {name}")
                elif raw is ABSENT and r.lookup(type(x), "__getattr__") is not ABSENT:
                    r.refuse(f"matches on the computed attribute {name}")
                else:
                    try:
                        attribute(r, x, name)
                    except AttributeError:
                        continue
    return operands


# ------------------------------------------------------------------------------------------------ the rest


def import_name(name: str) -> None:
    if (r := active()) is None:
        return
    parts = name.split(".")
    for i in range(1, len(parts) + 1):
        part = ".".join(parts[:i])
        if part not in sys.modules:
            r.refuse(f"imports {part} for the first time")
        r.cell("item", sys.modules, part, sys.modules.get(part, ABSENT))
    r.cell("item", builtins.__dict__, "__import__", builtins.__import__)


def import_from(operands: tuple[Any, str]) -> Any:
    module, name = operands
    r = active()
    try:
        return getattr(module, name) if r is None else attribute(r, module, name)
    except AttributeError:
        full = f"{getattr(module, '__name__', '')}.{name}"
        if full in sys.modules:
            return sys.modules[full] if r is None else r.cell("item", sys.modules, full, sys.modules[full])
        raise ImportError(f"cannot import name {name!r} from {getattr(module, '__name__', module)!r}") from None


def make_function(f: Any) -> Any:
    if (r := active()) is not None:
        r.made(f)
        for c in f.__closure__ or ():
            if id(c) not in r.outer_cells:
                r.made(c)
    return f


def make_container(x: Any) -> Any:
    r = active()
    return x if r is None else r.made(x)


def store_cell(operands: tuple[Any, str]) -> None:
    cell, name = operands
    if (r := active()) is not None and id(cell) not in r.fresh:
        r.refuse(f"assigns the variable {name!r} of a function outside")


def effect(what: str) -> None:
    if (r := active()) is not None:
        r.refuse(what)


def catch(cls: Any) -> Any:
    if (r := active()) is not None:
        for c in cls if isinstance(cls, tuple) else (cls,):
            if isinstance(c, type):
                r.cell("mro", c, None, c.__mro__)
    return cls


def enter(manager: Any) -> tuple[Any, Any]:
    """`with manager`: (what __enter__ returned, what to call at the end)."""
    r = active()
    t = type(manager)
    if r is None:
        leave = types.MethodType(t.__exit__, manager)
        return t.__enter__(manager), leave
    r.type_of(manager)
    begin, end = r.lookup(t, "__enter__"), r.lookup(t, "__exit__")
    if not (isinstance(begin, Function) and isinstance(end, Function)):
        r.refuse(f"`with` on {describe(manager)}")
        return t.__enter__(manager), functools.partial(t.__exit__, manager)

    def leave(*exc: Any) -> Any:  # called by CALL and by WITH_EXCEPT_START alike
        now = active()
        return end(manager, *exc) if now is None else call(now, end, (manager, *exc))

    return call(r, begin, (manager,)), r.made(leave)


# ------------------------------------------------------------------------------------------------ calls


def _callee(stack: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """(callee, arguments) from the stack entries of a CALL."""
    if VERSION < (3, 13):
        return (stack[1], stack[2:]) if stack[0] is NULL else (stack[0], stack[1:])
    return (stack[0], stack[2:]) if stack[1] is NULL else (stack[0], stack[1:])


def _invoke(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    r = active()
    return f(*args, **kwargs) if r is None else call(r, f, args, kwargs)


def call_hook(operands: tuple[tuple[Any, ...], tuple[str, ...] | None]) -> Any:
    stack, names = operands
    f, args = _callee(stack)
    if not names:
        return _invoke(f, args, {})
    k = len(names)
    return _invoke(f, args[:-k], dict(zip(names, args[-k:])))


def call_kw(stack: tuple[Any, ...]) -> Any:
    f, args = _callee(stack[:-1])
    k = len(stack[-1])
    return _invoke(f, args[:-k], dict(zip(stack[-1], args[-k:])))


def call_ex(stack: tuple[Any, ...]) -> Any:
    f = stack[1] if stack[0] is NULL else stack[0]
    args, kwargs = tuple(iterate(stack[2])), stack[3]
    if (r := active()) is not None and kwargs is not None:
        if isinstance(kwargs, dict):
            r.shallow(kwargs)
        else:
            r.refuse(f"** of {describe(kwargs)}")
    return _invoke(f, args, dict(kwargs) if kwargs is not None else {})


def call_super(stack: tuple[Any, ...]) -> Any:
    f, _ = _callee(stack[:2])
    return super(*stack[2:]) if f is super else _invoke(f, (), {})


def call(r: Recorder, f: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> Any:
    """f(*args, **kwargs), recorded."""
    kwargs = kwargs or {}
    t = type(f)
    if t is Function:
        return call_function(r, f, args, kwargs)
    if t is types.MethodType:
        return call(r, f.__func__, (f.__self__, *args), kwargs)
    if isinstance(f, type):
        return construct(r, f, args, kwargs)
    if isinstance(f, _C_CALLABLES):
        return call_builtin(r, f, args, kwargs)
    if t is functools.partial:
        if r.is_old(f.keywords):
            r.cell("dict", f.keywords, None, tuple(f.keywords.items()))
        return call(r, f.func, (*f.args, *args), {**f.keywords, **kwargs})
    if t in (operator.attrgetter, operator.itemgetter) and len(args) == 1 and not kwargs:
        return _getter(r, f, args[0])
    if (inner := getattr(t, "_tracejit_inline", None)) is not None:
        return call(r, inner(f), args, kwargs)
    r.type_of(f)
    method = r.lookup(t, "__call__")
    if isinstance(method, Function):
        return call(r, method, (f, *args), kwargs)
    r.refuse(f"calls {describe(f)}")
    return f(*args, **kwargs)


def _getter(r: Recorder, f: Any, x: Any) -> Any:
    names = f.__reduce__()[1]
    out: list[Any] = []
    for name in names:
        v = x
        if type(f) is operator.itemgetter:
            v = item(r, v, name)
        else:
            for part in name.split("."):
                v = attribute(r, v, part)
        out.append(v)
    return out[0] if len(out) == 1 else tuple(out)


def call_function(r: Recorder, f: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A Python function: the library's runs plain, any other as an instrumented copy."""
    if is_library(f.__globals__.get("__name__")):
        if is_refused(f):
            r.refuse(f"calls {f.__qualname__}")
        _identify(r, f)
        for a in (*args, *kwargs.values()):
            offer(r, a)
        return library_result(r, plain(r, f, *args, **kwargs), (*args, *kwargs.values()))
    if is_recorder(f.__globals__.get("__name__")):
        if id(f) not in r.fresh:
            r.refuse(f"calls {getattr(f, '__qualname__', f)}, which is kept out of recordings")
        return f(*args, **kwargs)
    net = sys.getprofile()
    sys.setprofile(None)  # rewriting bytecode is our own work
    try:
        code = f.__code__ if is_instrumented(f.__code__) else instrument.instrument(f.__code__)
    except NotCompilable as e:
        code = None
        r.refuse(str(e))
    finally:
        sys.setprofile(net)
    if code is None:
        return f(*args, **kwargs)
    _identify(r, f)
    copy = Function(code, f.__globals__, f.__name__, f.__defaults__, f.__closure__)
    copy.__kwdefaults__ = f.__kwdefaults__
    copy.__qualname__ = f.__qualname__
    out = copy(*args, **kwargs)
    if type(out) is types.GeneratorType and is_instrumented(out.gi_code):
        r.made(out)
    return out


def _identify(r: Recorder, f: Any) -> None:
    """Guard on what an outside function is: its code, defaults and closure."""
    if id(f) in r.fresh:
        return
    r.cell("function", f, None, (f.__code__, f.__defaults__, tuple((f.__kwdefaults__ or {}).items())))
    for c in f.__closure__ or ():
        if id(c) in r.fresh:
            continue
        r.outer_cells[id(c)] = c
        try:
            r.cell("closure", c, None, c.cell_contents)
        except ValueError:
            r.cell("closure", c, None, ABSENT)


_REFUSED = frozenset(
    ("Tensor.detach_", "Tensor.retain_grad", "register_hook", "Tensor.register_hook", "Tensor.share_memory_", "update", "override")
)


def is_refused(f: Any) -> bool:
    """Library functions that change state which no recording models."""
    return f.__qualname__ in _REFUSED


def offer(r: Recorder, x: Any, depth: int = 0) -> None:
    """x is handed to the library, which may read it as deep as it goes but without Python frames that the net sees."""
    t = type(x)
    if t in IMMUTABLE or r.is_tensor(x) or r.is_value(x) or isinstance(x, type):
        r.deep(x)
    elif t in (list, tuple, dict, set, frozenset) or is_namedtuple(t):
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
    elif not is_library(t.__module__):
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


# ------------------------------------------------------------------------------------------------ classes


def construct(r: Recorder, cls: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """cls(*args, **kwargs)"""
    model = MODELS.get(cls)
    if model is not None:
        return model(r, *args, **kwargs)
    if cls in effects.DEEP:
        for a in (*args, *kwargs.values()):
            _guard_conversion(r, cls, a)
            r.deep(a)
        return r.made(plain(r, cls, *args, **kwargs) if any(map(r.is_tensor, args)) else cls(*args, **kwargs))
    if issubclass(cls, BaseException) and cls.__module__ == "builtins":
        return r.made(cls(*args, **kwargs))
    meta = r.lookup(type(cls), "__call__")
    if isinstance(meta, Function):
        return call(r, meta, (cls, *args), kwargs)
    if meta is not type.__dict__["__call__"]:
        r.refuse(f"calls the class {describe(cls)} through {describe(type(cls))}")
        return cls(*args, **kwargs)
    if is_library(cls.__module__):
        for a in (*args, *kwargs.values()):
            offer(r, a)
        return r.made(plain(r, cls, *args, **kwargs))
    return _construct(r, cls, args, kwargs)


def _construct(r: Recorder, cls: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    new, init = r.lookup(cls, "__new__"), r.lookup(cls, "__init__")
    if isinstance(new, staticmethod):
        new = new.__func__
    default_new = object.__dict__["__new__"]
    if new is default_new:
        if init is object.__dict__["__init__"] and (args or kwargs):
            return cls(*args, **kwargs)  # raises
        x = object.__new__(cls)
        _own(r, x)
    elif isinstance(new, Function):
        x = call(r, new, (cls, *args), kwargs)
    elif isinstance(new, types.BuiltinFunctionType) and new.__self__ in effects.NEWABLE or issubclass(cls, BaseException):
        for a in (*args, *kwargs.values()):
            r.deep(a) if not issubclass(cls, BaseException) else None
        if not isinstance(init, Function):
            x = cls(*args, **kwargs)
            return _own(r, x)
        x = cls.__new__(cls, *args, **kwargs)
        _own(r, x)
    else:
        r.refuse(f"constructs {describe(cls)}")
        return cls(*args, **kwargs)
    if isinstance(x, cls):
        init = r.lookup(type(x), "__init__")
        if isinstance(init, Function):
            call(r, init, (x, *args), kwargs)
        elif init is not object.__dict__["__init__"] and not isinstance(new, Function):
            r.refuse(f"initialises {describe(x)}")
            type(x).__init__(x, *args, **kwargs)
        elif init is not object.__dict__["__init__"] and not isinstance(x, tuple):
            r.refuse(f"initialises {describe(x)}")
            type(x).__init__(x, *args, **kwargs)
    return x


def _own(r: Recorder, x: Any) -> Any:
    """A new object and its __dict__ are fresh."""
    r.made(x)
    if (space := instance_dict(x)) is not None:
        r.made(space)
    return x


def _guard_conversion(r: Recorder, cls: Any, x: Any) -> None:
    """int(x), str(x), ... of an object of the user's calls its dunders from C."""
    if cls in (int, float, complex, bool, str, bytes) and not is_number(r, x) and type(x) not in _CONTAINERS:
        if type(x) is not types.MethodType and not isinstance(x, (type, Function)):
            format(x)


# ------------------------------------------------------------------------------------------------ C callables


def call_builtin(r: Recorder, f: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A C function or method: by its model, or by its entry in the effects table."""
    try:
        model = MODELS.get(f)
        known = f in effects.DEEP
    except TypeError:  # bound to an unhashable self
        model, known = None, False
    if model is not None:
        return model(r, *args, **kwargs)
    if known:
        for a in (*args, *kwargs.values()):
            _guard_conversion(r, str if f in (repr, ascii) else None, a)
            r.deep(a)
        return r.made(plain(r, f, *args, **kwargs) if any(map(r.is_tensor, args)) else f(*args, **kwargs))
    name = f.__name__
    if name in effects.FRAMES and type(f) is types.BuiltinFunctionType and f.__module__ in ("builtins", "sys"):
        return _frame_call(r, f, args, kwargs)
    x = getattr(f, "__self__", None)
    if isinstance(f, (types.MethodDescriptorType, types.WrapperDescriptorType)):
        if not args:
            return f()
        return call_method(r, f.__objclass__, name, args[0], args[1:], kwargs, f, (args[0],))
    if isinstance(x, types.ModuleType) or x is None:
        r.refuse(f"calls {f.__module__}.{f.__qualname__}, whose effects are not known")
        return f(*args, **kwargs)
    if isinstance(x, type):
        if name == "__new__":
            return _call_new(r, f, args, kwargs)
        return call_method(r, x, name, x, args, kwargs, f, ())
    home = f.__objclass__ if isinstance(f, types.MethodWrapperType) else next((c for c in type(x).__mro__ if c in effects.METHODS), type(x))
    return call_method(r, home, name, x, args, kwargs, f, ())


def _call_new(r: Recorder, f: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    if f.__self__ is type or f.__self__ not in effects.NEWABLE:
        r.refuse(f"calls {f.__qualname__}")
        return f(*args, **kwargs)
    rest = tuple(list(iterate(a)) if f.__self__ in (tuple, list) and a is not args[0] else a for a in args)
    for a in rest[1:]:
        r.shallow(a) if type(a) in _CONTAINERS else r.deep(a)
    return _own(r, f(*rest, **kwargs))


def call_method(
    r: Recorder, home: type, name: str, x: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], f: Any, front: tuple[Any, ...]
) -> Any:
    """Method `name` of builtin class `home` on x; `front + args` is what f itself takes."""
    if home is object and (model := OBJECT_METHODS.get(name)) is not None:
        return model(r, x, *args)
    special = METHOD_MODELS.get((home, name))
    if special is not None:
        return special(r, x, *args, **kwargs)
    if x is not None and type(x) is types.GeneratorType:
        old_iterator(r, x)
        return f(*front, *args, **kwargs)
    kind = effects.METHODS.get(home, {}).get(name)
    if kind is None and isinstance(x, dict) and home.__module__ == "collections":
        kind = effects.METHODS[dict].get(name)
    if kind is None:
        if isinstance(x, BaseException) and name in ("__init__", "with_traceback", "add_note", "__str__"):
            return f(*front, *args, **kwargs)
        r.refuse(f"calls {home.__module__}.{home.__qualname__}.{name}, whose effects are not known")
        return f(*front, *args, **kwargs)
    if kind == "mutates":
        r.effect(x, name)
        args = tuple(r.made(list(iterate(a))) if name in ("extend", "update") and type(a) in FRESH_ITERATORS else a for a in args)
        for a in args:
            r.deep(a) if name in ("remove", "__init__") else r.shallow(a) if type(a) in _CONTAINERS else None
        if name in ("add", "discard", "remove", "pop", "__setitem__", "__delitem__") and args and isinstance(x, (dict, set)):
            hashable_key(r, args[0])
        if name in ("extend", "update", "__init__"):
            for a in args:
                if type(a) not in _CONTAINERS and type(a) not in IMMUTABLE:
                    r.refuse(f"{name} with {describe(a)}")
    else:
        (r.deep if kind == "deep" else r.shallow)(x)
        for a in args:
            r.deep(a)
    for a in kwargs.values():
        r.deep(a)
    v = f(*front, *args, **kwargs)
    return v if kind == "mutates" else r.made(v) if type(v) in (list, dict, set) or type(v) in FRESH_ITERATORS else v


def _frame_call(r: Recorder, f: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """eval, locals, ...: they look at the calling frame, which is a hook's; give them the user's."""
    frame: Any = sys._getframe(1)
    while not is_instrumented(frame.f_code):
        frame = frame.f_back
    name = f.__name__
    if name == "vars" and len(args) == 1:
        return attribute(r, args[0], "__dict__")
    r.refuse(f"looks at frames: {name}")
    if name == "globals":
        return frame.f_globals
    if name in ("locals", "vars") and not args:
        return frame.f_locals
    if name == "dir" and not args:
        return sorted(frame.f_locals)
    if name in ("eval", "exec") and len(args) == 1 and not kwargs:
        return f(args[0], frame.f_globals, frame.f_locals)
    if name == "_getframe":
        for _ in range(args[0] if args else 0):
            frame = frame.f_back
            while frame is not None and is_recorder(frame.f_globals.get("__name__")):
                frame = frame.f_back
            if frame is None:
                raise ValueError("call stack is not deep enough")
        return frame
    if name == "__import__" and len(args) < 2 and not kwargs:
        return f(args[0], frame.f_globals)
    return f(*args, **kwargs)


# ------------------------------------------------------------------------------------------------ builtins over hooks


def wrapped(r: Recorder, f: Any, result: Callable[[Any], Any] = lambda v: v) -> Any:
    """A callback as C code may call it."""
    if f is None or isinstance(f, type) and f in effects.DEEP:
        return f

    def callback(*args: Any) -> Any:
        now = active()
        return result(f(*args) if now is None else call(now, f, args))

    return callback


def _read(v: Any) -> Any:
    if (r := active()) is not None:
        r.deep(v)
    return v


def _len(r: Recorder, x: Any) -> Any:
    if r.is_tensor(x):
        r.touch(x)
        return plain(r, len, x)
    t = type(x)
    if t in IMMUTABLE or isinstance(x, tuple) or t in _CONTAINERS or t in FRESH_ITERATORS or isinstance(x, dict) and is_base(t, dict, "__len__"):
        if t in FRESH_ITERATORS:
            old_iterator(r, x)
        r.shallow(x) if not isinstance(x, tuple) and t not in FRESH_ITERATORS else None
        return len(x)
    r.type_of(x)
    method = r.lookup(t, "__len__")
    if isinstance(method, Function):
        return call(r, method, (x,))
    r.refuse(f"len of {describe(x)}")
    return len(x)


def _iter(r: Recorder, x: Any, *sentinel: Any) -> Any:
    if sentinel:
        r.refuse("iter with a sentinel")
        return iter(x, *sentinel)
    return r.made(iter(iterate(x)))


def _next(r: Recorder, it: Any, *default: Any) -> Any:
    t = type(it)
    if t in FRESH_ITERATORS:
        old_iterator(r, it)
        return next(it, *default)
    r.type_of(it)
    step = r.lookup(t, "__next__")
    if not isinstance(step, Function):
        r.refuse(f"next() on {describe(it)}")
        return next(it, *default)
    try:
        return call(r, step, (it,))
    except StopIteration:
        if default:
            return default[0]
        raise


def _any(r: Recorder, xs: Any) -> bool:
    return any(truth(x) for x in iterate(xs))


def _all(r: Recorder, xs: Any) -> bool:
    return all(truth(x) for x in iterate(xs))


def _sum(r: Recorder, xs: Any, /, start: Any = 0) -> Any:
    items = list(iterate(xs))
    if all(type(x) in IMMUTABLE for x in items) and type(start) in IMMUTABLE:
        return sum(items, start)  # C's own summation of floats is not a plain loop
    for x in items:
        start = apply_binary(r, start, x, operator.add)
    return start


def _extreme(which: Any) -> Any:
    def model(r: Recorder, *args: Any, key: Any = None, **kwargs: Any) -> Any:
        items = list(iterate(args[0])) if len(args) == 1 else list(args)
        if key is None:
            for x in items:
                r.deep(x)
        if "default" in kwargs and not items:
            return kwargs["default"]
        return plain(r, which, items, key=wrapped(r, key, _read)) if items else which(items)

    return model


def _sorted(r: Recorder, xs: Any, /, *, key: Any = None, reverse: Any = False) -> Any:
    items = list(iterate(xs))
    if key is None:
        for x in items:
            r.deep(x)
    return r.made(plain(r, sorted, items, key=wrapped(r, key, _read), reverse=truth(reverse)))


def _map(r: Recorder, f: Any, *xs: Any) -> Any:
    return r.made(map(wrapped(r, f), *(iterate(x) for x in xs)))


def _filter(r: Recorder, f: Any, xs: Any) -> Any:
    return r.made(filter(truth if f is None else wrapped(r, f, truth), iterate(xs)))


def _zip(r: Recorder, *xs: Any, **kwargs: Any) -> Any:
    return r.made(zip(*(iterate(x) for x in xs), **kwargs))


def _enumerate(r: Recorder, iterable: Any, start: Any = 0) -> Any:
    return r.made(enumerate(iterate(iterable), start))


def _reversed(r: Recorder, x: Any) -> Any:
    t = type(x)
    if t in _CONTAINERS or t is range or t in (type({}.keys()), type({}.values()), type({}.items())):
        iterate(x)
        return r.made(reversed(x))
    method = r.lookup(t, "__reversed__")
    if isinstance(method, Function):
        r.type_of(x)
        return driven(r, call(r, method, (x,)))
    r.refuse(f"reversed of {describe(x)}")
    return reversed(x)


def _container(cls: type) -> Any:
    def model(r: Recorder, *args: Any, **kwargs: Any) -> Any:
        if cls is dict and args:
            if not isinstance(args[0], dict):
                args = ([tuple(iterate(pair)) for pair in iterate(args[0])],)
            else:
                r.shallow(args[0])
                args = (dict(dict.items(args[0])),) if is_base(type(args[0]), dict, "__iter__") else args
        else:
            args = tuple(list(iterate(a)) for a in args)
        if cls in (set, frozenset, dict):
            for a in args:
                for v in a:
                    hashable_key(r, v if cls is not dict else v[0] if type(a) is list else v)
        return r.made(cls(*args, **kwargs))

    return model


def _isinstance(r: Recorder, x: Any, cls: Any) -> bool:
    check_isinstance(r, x, cls)
    return isinstance(x, cls)


def check_isinstance(r: Recorder, x: Any, cls: Any) -> None:
    """Record what isinstance(x, cls) depends on."""
    r.type_of(x)
    if type(x) not in IMMUTABLE and r.lookup(type(x), "__class__") is not object.__dict__["__class__"]:
        r.refuse(f"isinstance of {describe(x)}, whose __class__ is computed")
    if r.is_tensor(x):
        r.touch(x)
    _check_class(r, type(x), cls)


def _check_class(r: Recorder, t: type, cls: Any) -> None:
    if isinstance(cls, tuple):
        for c in cls:
            _check_class(r, t, c)
        return
    if isinstance(cls, types.UnionType):
        for c in cls.__args__:
            _check_class(r, t, c)
        return
    if not isinstance(cls, type):
        r.refuse(f"isinstance with {describe(cls)}")
        return
    if t.__flags__ & 1 << 9:
        r.cell("mro", t, None, t.__mro__)
    check = r.lookup(type(cls), "__instancecheck__")
    if check is type.__dict__["__instancecheck__"]:
        return
    if type(cls).__module__ == "abc" or type(cls).__module__ == "_abc":
        r.cell("abc", None, None, abc.get_cache_token())
        r.stamp(t)
        r.stamp(cls)
        if getattr(cls.__subclasshook__, "__func__", None) is not None and cls.__module__ not in ("collections.abc", "numbers", "typing"):
            r.refuse(f"isinstance with {describe(cls)}, which has a __subclasshook__")
        return
    r.refuse(f"isinstance with {describe(cls)}, whose metaclass decides")


def _issubclass(r: Recorder, t: Any, cls: Any) -> bool:
    if isinstance(t, type):
        _check_class(r, t, cls)
        for c in cls if isinstance(cls, tuple) else (cls,):
            if isinstance(r.lookup(type(c), "__subclasscheck__"), Function) and type(c).__module__ != "abc":
                r.refuse(f"issubclass with {describe(c)}")
    else:
        r.refuse(f"issubclass of {describe(t)}")
    return issubclass(t, cls)


def _getattr(r: Recorder, x: Any, name: Any, *default: Any) -> Any:
    try:
        return attribute(r, x, name)
    except AttributeError:
        if default:
            return default[0]
        raise


def _hasattr(r: Recorder, x: Any, name: Any) -> bool:
    try:
        attribute(r, x, name)
    except AttributeError:
        return False
    return True


def _setattr(r: Recorder, x: Any, name: Any, value: Any) -> None:
    set_attribute(r, x, name, value)


def _delattr(r: Recorder, x: Any, name: Any) -> None:
    delete_attr((x, name))


def _type(r: Recorder, *args: Any, **kwargs: Any) -> Any:
    if len(args) == 1:
        if r.is_tensor(args[0]):
            r.touch(args[0])
        return r.type_of(args[0])
    r.refuse("makes a class")
    return type(*args, **kwargs)


def _super(r: Recorder, *args: Any) -> Any:
    if len(args) == 2:
        t = args[1] if isinstance(args[1], type) else r.type_of(args[1])
        r.cell("mro", t, None, t.__mro__)
        return super(*args)
    r.refuse("super() of an unusual form")
    return super(*args)


def _callable(r: Recorder, x: Any) -> bool:
    r.lookup(r.type_of(x), "__call__")
    return callable(x)


def _hash(r: Recorder, x: Any) -> int:
    if type(x) not in IMMUTABLE:
        r.refuse(f"hash of {describe(x)}")
    return hash(x)


def _reduce(r: Recorder, f: Any, xs: Any, *initial: Any) -> Any:
    it = iter(iterate(xs))
    acc = initial[0] if initial else next(it, ABSENT)
    if acc is ABSENT:
        raise TypeError("reduce() of empty iterable with no initial value")
    for x in it:
        acc = call(r, f, (acc, x))
    return acc


def _object(r: Recorder) -> Any:
    return r.made(object())


def _partial(r: Recorder, f: Any, /, *args: Any, **kwargs: Any) -> Any:
    v = r.made(functools.partial(f, *args, **kwargs))
    r.made(v.keywords)
    return v


def _join(r: Recorder, sep: str, parts: Any) -> str:
    return sep.join(list(iterate(parts)))


def _str_format(r: Recorder, text: str, *args: Any, **kwargs: Any) -> str:
    for a in (*args, *kwargs.values()):
        if type(a) not in IMMUTABLE and not r.is_tensor(a):
            r.refuse("str.format of objects, which may read their attributes")
        r.deep(a)
    return plain(r, text.format, *args, **kwargs)


def _list_sort(r: Recorder, x: list[Any], *, key: Any = None, reverse: Any = False) -> None:
    r.effect(x, "sort")
    if key is None:
        r.deep(x)
    plain(r, list.sort, x, key=wrapped(r, key, _read), reverse=truth(reverse))


def _dict_get(r: Recorder, x: dict[Any, Any], key: Any, default: Any = None) -> Any:
    hashable_key(r, key)
    value = dict.get(x, key, ABSENT)
    if r.is_old(x):
        r.cell("item", x, key, value)
    return default if value is ABSENT else value


def _dict_getitem(r: Recorder, x: dict[Any, Any], key: Any) -> Any:
    value = _dict_get(r, x, key, ABSENT)
    return dict.__getitem__(x, key) if value is ABSENT else value


def _dict_contains(r: Recorder, x: dict[Any, Any], key: Any) -> bool:
    return _dict_get(r, x, key, ABSENT) is not ABSENT


def _dict_setdefault(r: Recorder, x: dict[Any, Any], key: Any, default: Any = None) -> Any:
    value = _dict_get(r, x, key, ABSENT)
    if value is ABSENT:
        r.effect(x, "setdefault")
        return x.setdefault(key, default)
    return value


MODELS: dict[Any, Callable[..., Any]] = {
    len: _len, iter: _iter, next: _next, any: _any, all: _all, sum: _sum, min: _extreme(min), max: _extreme(max), sorted: _sorted,
    map: _map, filter: _filter, zip: _zip, enumerate: _enumerate, reversed: _reversed, isinstance: _isinstance, issubclass: _issubclass,
    getattr: _getattr, hasattr: _hasattr, setattr: _setattr, delattr: _delattr, type: _type, super: _super, callable: _callable,
    hash: _hash, functools.reduce: _reduce, object: _object, functools.partial: _partial, list: _container(list), tuple: _container(tuple),
    set: _container(set), frozenset: _container(frozenset), dict: _container(dict),
    operator.getitem: item, operator.contains: lambda r, box, x: _contains(r, x, box), operator.truth: lambda r, x: truth(x),
    operator.not_: lambda r, x: not truth(x), operator.neg: lambda r, x: unary((x, operator.neg)),
    **{f: (lambda r, a, b, f=f: apply_binary(r, a, b, f)) for f in instrument.BINARY.values()},
    **{f: (lambda r, a, b, f=f: apply_compare(r, a, b, f)) for f in instrument.COMPARE.values()},
}  # fmt: skip

METHOD_MODELS: dict[tuple[type, str], Callable[..., Any]] = {
    (str, "join"): _join, (str, "format"): _str_format, (list, "sort"): _list_sort, (dict, "get"): _dict_get,
    (dict, "__getitem__"): _dict_getitem, (dict, "__contains__"): _dict_contains, (dict, "setdefault"): _dict_setdefault,
    (type, "mro"): lambda r, x: list(r.cell("mro", x, None, x.__mro__)),
    (type, "__call__"): lambda r, x, *a, **k: _construct(r, x, a, k),
}  # fmt: skip

OBJECT_METHODS: dict[str, Callable[..., Any]] = {
    "__init__": lambda r, x, *args: None,
    "__getattribute__": lambda r, x, name: _instance_attribute(r, x, type(x), name),
    "__setattr__": lambda r, x, name, value: _object_setattr(r, x, name, value),
    "__init_subclass__": lambda r, x: None,
}


def _object_setattr(r: Recorder, x: Any, name: str, value: Any) -> None:
    raw = r.lookup(type(x), name)
    if isinstance(raw, property) and raw.fset is not None:
        if is_library(raw.fset.__module__):
            set_attribute(r, x, name, value) if r.is_tensor(x) else object.__setattr__(x, name, value)
        else:
            call(r, raw.fset, (x, value))
        return
    if raw is not ABSENT and not isinstance(raw, types.MemberDescriptorType) and is_data_descriptor(r, raw):
        r.refuse(f"sets the computed attribute {name} of {describe(x)}")
    r.effect(x, f"sets {name}")
    object.__setattr__(x, name, value)


instrument.install(
    {
        "load_global": load_global, "load_attr": load_attr, "load_super": load_super, "store_attr": store_attr,
        "delete_attr": delete_attr, "load_item": load_item, "store_item": store_item, "delete_item": delete_item, "call": call_hook,
        "call_kw": call_kw, "call_ex": call_ex, "call_super": call_super, "binary": binary, "unary": unary, "compare": compare,
        "contains": contains, "identical": identical, "truth": truth, "iterate": iterate, "delegate": delegate, "unpack": unpack,
        "update": update, "format": format, "import_name": import_name, "import_from": import_from, "make_function": make_function,
        "make_container": make_container, "enter": enter, "store_cell": store_cell, "effect": effect, "match": match, "catch": catch,
    }
)  # fmt: skip


# ------------------------------------------------------------------------------------------------ the net


def _net(r: Recorder) -> Callable[[types.FrameType, str, Any], None]:
    """A profile function that refuses Python frames nobody recorded."""
    known: dict[int, bool] = {}  # id of code object -> fine wherever it is called
    keep = r.keep

    def seen(frame: types.FrameType, event: str, arg: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        if (fine := known.get(id(code))) is None:
            name = frame.f_globals.get("__name__")
            fine = known[id(code)] = is_instrumented(code) or is_library(name) or is_recorder(name) or name == "abc"
            keep.append(code)
        if fine:
            return
        above: Any = frame.f_back  # NumPy's and the standard library's own frames are fine right below our library
        while above is not None and not known.get(id(above.f_code), False):
            above = above.f_back
        if above is None or not is_library(above.f_globals.get("__name__")) or not _is_support(frame.f_globals.get("__name__")):
            r.refuse(f"Python code ran unseen: {code.co_qualname}")

    return seen


def _is_support(module: Any) -> bool:
    return isinstance(module, str) and module.partition(".")[0] in (
        "numpy", "ml_dtypes", "functools", "contextlib", "abc", "enum", "dataclasses", "collections", "typing", "weakref", "threading",
        "os", "genericpath", "posixpath", "operator", "importlib", "copy", "copyreg", "warnings", "math", "itertools",
    )  # fmt: skip


def run(r: Recorder, f: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """f(*args, **kwargs) inside recording r."""
    profile, limit = sys.getprofile(), sys.getrecursionlimit()
    with opened(r):
        # A hook is three Python frames; user code that recurses deep must not notice them.
        sys.setrecursionlimit(limit * 4)
        sys.setprofile(_net(r))
        try:
            return call(r, f, args, kwargs)
        finally:
            sys.setprofile(profile)
            sys.setrecursionlimit(limit)
