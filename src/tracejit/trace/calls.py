"""Calls: Python functions run as instrumented copies, the library plain, C callables by the effects table.

All else is refused.
"""

from __future__ import annotations

import functools
import operator
import sys
import types
from collections.abc import Mapping
from typing import Any

from tracejit.errors import NotCompilable
from tracejit.trace import computed, effects, instrument
from tracejit.trace.attributes import (
    C_CALLABLES,
    CONTAINERS,
    Function,
    attribute,
    inlined,
    instance_dict,
    is_number,
    library_result,
    offer,
    old_iterator,
    plain,
)
from tracejit.trace.domain import is_library, is_recorder
from tracejit.trace.instrument import NULL, VERSION, is_instrumented
from tracejit.trace.iteration import format, iterate
from tracejit.trace.marks import MARKED
from tracejit.trace.models import FUNCTION_MODELS, KEEP_OPAQUE, METHOD_MODELS, MODELS, MOVES, OBJECT_METHODS
from tracejit.trace.objects import ABSENT, FRESH_ITERATORS, IMMUTABLE, describe
from tracejit.trace.operators import item
from tracejit.trace.recorder import Recorder, active
from tracejit.trace.scalars import FUNCTIONS, OPAQUE, plain_number
from tracejit.trace.writes import hashable_key, mutate


def _callee(stack: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """(callee, arguments) from the stack entries of a CALL."""
    if VERSION < (3, 13):
        return (stack[1], stack[2:]) if stack[0] is NULL else (stack[0], stack[1:])
    return (stack[0], stack[2:]) if stack[1] is NULL else (stack[0], stack[1:])


def _invoke(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    r = active()
    return f(*args, **kwargs) if r is None else call(r, f, args, kwargs)


def call_hook(operands: tuple[tuple[Any, ...], tuple[str, ...] | None]) -> Any:
    """CALL: the last arguments may have names."""
    stack, names = operands
    f, args = _callee(stack)
    if not names:
        return _invoke(f, args, {})
    k = len(names)
    return _invoke(f, args[:-k], dict(zip(names, args[-k:])))


def call_kw(stack: tuple[Any, ...]) -> Any:
    """CALL_KW: names on top of the arguments."""
    f, args = _callee(stack[:-1])
    k = len(stack[-1])
    return _invoke(f, args[:-k], dict(zip(stack[-1], args[-k:])))


def call_ex(stack: tuple[Any, ...]) -> Any:
    """f(*args, **kwargs)"""
    f = stack[1] if stack[0] is NULL else stack[0]
    args, kwargs = tuple(iterate(stack[2])), stack[3]
    if (r := active()) is not None and kwargs is not None:
        if isinstance(kwargs, dict):
            r.shallow(kwargs)
        else:
            r.refuse(f"** of {describe(kwargs)}")
    return _invoke(f, args, dict(kwargs) if kwargs is not None else {})


def call_super(stack: tuple[Any, ...]) -> Any:
    """super() without arguments, inside a method."""
    f, _ = _callee(stack[:2])
    return super(stack[2], stack[3]) if f is super else _invoke(f, (), {})


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
    if isinstance(f, C_CALLABLES):
        return call_builtin(r, f, args, kwargs)
    if t is functools.partial:
        if r.is_old(f):
            r.cell("fattr", f, "func", f.func)
            r.cell("fattr", f, "args", f.args)
            r.cell("fattr", f, "keywords", f.keywords)
        if r.is_old(f.keywords):
            r.cell("dict", f.keywords, None, tuple(f.keywords.items()))
        return call(r, f.func, (*f.args, *args), {**f.keywords, **kwargs})
    if t is operator.methodcaller and len(args) == 1 and not kwargs:
        name, *given = f.__reduce__()[1]
        if f.__reduce__()[0] is operator.methodcaller:
            return call(r, attribute(r, args[0], name), tuple(given))
    if t in (operator.attrgetter, operator.itemgetter) and len(args) == 1 and not kwargs:
        return _getter(r, f, args[0])
    if (inner := inlined(t)) is not None:
        return call(r, inner(f), args, kwargs)
    r.type_of(f)
    method = r.lookup(t, "__call__")
    if isinstance(method, Function):
        return call(r, method, (f, *args), kwargs)
    r.refuse(f"calls {describe(f)}")
    return plainly(r, f, args, kwargs)


def plainly(r: Recorder, f: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """f(*args, **kwargs) in a recording that was just refused: what we made up stays with us."""
    return f(*map(r.settle, args), **{k: r.settle(v) for k, v in kwargs.items()})


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
    if (mark := f.__dict__.get("_tracejit_mark")) is not None and is_library(f.__globals__.get("__name__")):
        return MARKED[mark](r, f, args, kwargs)
    if (model := FUNCTION_MODELS.get(f)) is not None:
        _identify(r, f)
        return model(r, *args, **kwargs)
    if is_library(f.__globals__.get("__name__")) and not _wraps_user_code(f):
        if is_refused(f):
            r.refuse(f"calls {f.__qualname__}")
        _identify(r, f)
        if f.__qualname__ == "Tensor.item" and len(args) == 1 and not kwargs and r.is_tensor(args[0]):
            return r.item(functools.partial(plain, r, f), args[0])
        args = _with_number(r, f, args, kwargs)
        args, kwargs = tuple(map(r.hand, args)), {k: r.hand(v) for k, v in kwargs.items()}
        for a in (*args, *kwargs.values()):
            if f.__qualname__ not in _KEEPS_FUNCTIONS or r.is_tensor(a):
                offer(r, a)
        return library_result(r, plain(r, f, *args, **kwargs), (*args, *kwargs.values()))
    if is_recorder(f.__globals__.get("__name__")):
        if id(f) not in r.fresh:
            r.refuse(f"calls {getattr(f, '__qualname__', f)}, which is kept out of recordings")
        return f(*args, **kwargs)
    code = f.__code__ if is_instrumented(f.__code__) else instrument.made(f.__code__)
    if code is None:
        try:
            code = r.unwatched(instrument.instrument, f.__code__)
        except NotCompilable as e:
            r.refuse(str(e))
        except (TypeError, ValueError, LookupError, AttributeError) as e:  # by builtins that somebody has replaced
            r.refuse(f"the code of {f.__qualname__} cannot be rewritten: {type(e).__name__}: {e}")
    if code is None:
        return plainly(r, f, args, kwargs)
    if code is not f.__code__:  # else it was made by code that is already here
        r.codes[id(f.__code__)] = f.__code__
    _identify(r, f, hooked=True)
    copy = Function(code, f.__globals__, f.__name__, f.__defaults__, f.__closure__)
    copy.__kwdefaults__ = f.__kwdefaults__
    copy.__qualname__ = f.__qualname__
    r.entered += 1
    r.activations.append((code, r.entered))
    try:
        out = copy(*args, **kwargs)
    finally:
        r.turning.pop(r.activations.pop()[1], None)
    if type(out) is types.GeneratorType and is_instrumented(out.gi_code):
        r.made(out)
    return out


_ELEMENTWISE = {"add": "add", "sub": "sub", "mul": "mul", "div": "truediv"}


def _with_number(r: Recorder, f: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """(x, number) of x.mul_(number) and its kin as (x, tensor) where the number is opaque."""
    if len(args) != 2 or kwargs or type(args[1]) not in OPAQUE or not r.is_tensor(args[0]):
        return args
    name = _ELEMENTWISE.get(f.__name__.rstrip("_"))
    if name is None or r.domain.tensor.__dict__.get(f.__name__) is not f:
        return args
    r.touch(args[0])
    stand_in = computed.number_tensor(r, args[1], args[0], name)
    return args if stand_in is None else (args[0], stand_in)


def _wraps_user_code(f: Any) -> bool:
    """Whether a function of the library is a decorator's wrapper around a function that is not."""
    inner = f.__dict__.get("__wrapped__")
    return isinstance(inner, Function) and not is_library(inner.__globals__.get("__name__"))


def _identify(r: Recorder, f: Any, *, hooked: bool = False) -> None:
    """Guard on what an outside function is: its code, defaults and closure. Where its code is `hooked`, a variable is
    noted when it is read."""
    if id(f) in r.fresh:
        return
    r.cell("function", f, None, (f.__code__, f.__defaults__, tuple((f.__kwdefaults__ or {}).items())))
    for c in f.__closure__ or ():
        if id(c) in r.fresh:
            continue
        r.outer_cells[id(c)] = c
        try:
            contents = c.cell_contents
            if not hooked:
                r.cell("closure", c, None, contents)
        except ValueError:
            r.cell("closure", c, None, ABSENT)


# Library functions that only keep or pass on a function they are given; hooks are called by `Recorder.run_hook`.
_KEEPS_FUNCTIONS = frozenset(
    ("Tensor.register_hook", "Tensor.register_post_accumulate_grad_hook", "Function.apply", "Region.forget")
)
_REFUSED = frozenset(
    (
        "Tensor.detach_",
        "initial_seed",
        "Generator.initial_seed",
        "storage_offset",
        "update",
        "override",
    )
)


def is_refused(f: Any) -> bool:
    """Library functions that change state which no recording models."""
    return f.__qualname__ in _REFUSED


def construct(r: Recorder, cls: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """cls(*args, **kwargs)"""
    model = MODELS.get(cls)
    if len(args) == 1 and type(args[0]) in OPAQUE and not kwargs:
        if cls is type:
            return type(plain_number(args[0]))
        if cls in (float, int, bool):
            return computed.scalar(r, cls, args[0])
    if cls is float and len(args) == 1 and not kwargs and type(args[0]) is r.domain.tensor:
        array = r.domain.array(args[0])
        if array.size == 1 and array.dtype.kind == "f":  # what item() gives
            return r.item(functools.partial(plain, r, r.domain.tensor.item), args[0])
    if model is not None and cls is str:
        return model(r, *args, **kwargs)
    if model is not None or cls in effects.DEEP or issubclass(cls, BaseException) or is_library(cls.__module__):
        args, kwargs = tuple(map(r.reveal, args)), {k: r.reveal(v) for k, v in kwargs.items()}
    if model is not None:
        return model(r, *args, **kwargs)
    if cls in effects.DEEP:
        for a in (*args, *kwargs.values()):
            guard_conversion(r, cls, a)
            r.deep(a)
        return r.made(plain(r, cls, *args, **kwargs) if any(map(r.is_tensor, args)) else cls(*args, **kwargs))
    if issubclass(cls, BaseException) and cls.__module__ == "builtins":
        return r.made(cls(*args, **kwargs))
    meta = r.lookup(type(cls), "__call__")
    if isinstance(meta, Function):
        return call(r, meta, (cls, *args), kwargs)
    if meta is not type.__dict__["__call__"]:
        r.refuse(f"calls the class {describe(cls)} through {describe(type(cls))}")
        return plainly(r, cls, args, kwargs)
    if is_library(cls.__module__):
        for a in (*args, *kwargs.values()):
            offer(r, a)
        return r.made(plain(r, cls, *args, **kwargs))
    return make_instance(r, cls, args, kwargs)


def make_instance(r: Recorder, cls: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A new instance as type.__call__ makes it: __new__, then __init__."""
    new, init = r.lookup(cls, "__new__"), r.lookup(cls, "__init__")
    if isinstance(new, staticmethod):
        new = new.__func__
    default_new = object.__dict__["__new__"]
    if new is default_new:
        if init is object.__dict__["__init__"] and (args or kwargs):
            return cls(*args, **kwargs)  # raises
        x = own(r, object.__new__(cls))
        if all(c is object or c.__flags__ & HEAP for c in cls.__mro__):
            r.instances.add(id(x))
    elif isinstance(new, Function):
        x = call(r, new, (cls, *args), kwargs)
    elif (isinstance(new, types.BuiltinFunctionType) and new.__self__ in effects.NEWABLE) or issubclass(
        cls, BaseException
    ):
        for a in (*args, *kwargs.values()):
            r.deep(a) if not issubclass(cls, BaseException) else None
        if not isinstance(init, Function):
            x = cls(*args, **kwargs)
            return own(r, x)
        x = cls.__new__(cls, *args, **kwargs)
        own(r, x)
    else:
        r.refuse(f"constructs {describe(cls)}")
        return plainly(r, cls, args, kwargs)
    if isinstance(x, cls):
        init = r.lookup(type(x), "__init__")
        if isinstance(init, Function):
            call(r, init, (x, *args), kwargs)
        elif (init is not object.__dict__["__init__"] and not isinstance(new, Function)) or (
            init is not object.__dict__["__init__"] and not isinstance(x, tuple)
        ):
            r.refuse(f"initialises {describe(x)}")
            type(x).__init__(x, *args, **kwargs)
    return x


def own(r: Recorder, x: Any) -> Any:
    """A new object and its __dict__ are fresh."""
    r.made(x)
    if r.lookup(type(x), "__del__") is not ABSENT:
        r.refuse(f"makes {describe(x)}, whose __del__ may do anything")
    if (space := instance_dict(x)) is not None:
        r.made(space)
    return x


HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE: classes made in Python
_CALLABLE = (Function, types.MethodType)
NUMBERS: frozenset[type] = frozenset((*OPAQUE, float, int, bool))


def guard_conversion(r: Recorder, cls: Any, x: Any) -> None:
    """int(x), str(x), ... of an object of the user's calls its dunders from C."""
    if is_number(r, x) or type(x) in CONTAINERS or isinstance(x, (type, *_CALLABLE)):
        return
    if cls in (str, bytes):
        format(x)
    elif cls in (int, float, complex, bool):
        for name in ("__int__", "__index__", "__trunc__", "__float__", "__complex__", "__bool__", "__len__"):
            if isinstance(r.lookup(type(x), name), Function):
                r.refuse(f"converts {describe(x)}")


def call_builtin(r: Recorder, f: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A C function or method: by its model, or by its entry in the effects table."""
    try:
        model = MODELS.get(f)
        known = f in effects.DEEP
    except TypeError:  # bound to an unhashable self
        model, known = None, False
    if f is isinstance and model is not None and args and type(args[0]) in OPAQUE:
        return model(r, plain_number(args[0]), *args[1:])  # its type is no secret
    if known or model is not None:
        opaque = any(type(a) in OPAQUE for a in args)
        if opaque and not kwargs and f in FUNCTIONS and all(type(a) in NUMBERS for a in args):
            return computed.scalar(r, f, *args)
        if model is not None and f in KEEP_OPAQUE:
            return model(r, *args, **kwargs)
    if model is not None or known:
        args, kwargs = tuple(map(r.reveal, args)), {k: r.reveal(v) for k, v in kwargs.items()}
    if model is not None:
        return model(r, *args, **kwargs)
    if known:
        for a in (*args, *kwargs.values()):
            guard_conversion(r, str if f in (repr, ascii) else None, a)
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
        return plainly(r, f, args, kwargs)
    if isinstance(x, type):
        if name == "__new__":
            return _call_new(r, f, args, kwargs)
        return call_method(r, x, name, x, args, kwargs, f, ())
    home = (
        f.__objclass__
        if isinstance(f, types.MethodWrapperType)
        else next((c for c in type(x).__mro__ if c in effects.METHODS), type(x))
    )
    return call_method(r, home, name, x, args, kwargs, f, ())


def _call_new(r: Recorder, f: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    if f.__self__ is type or f.__self__ not in effects.NEWABLE:
        r.refuse(f"calls {f.__qualname__}")
        return f(*args, **kwargs)
    args = tuple(map(r.reveal, args))
    rest = tuple(list(iterate(a)) if f.__self__ in (tuple, list) and a is not args[0] else a for a in args)
    for a in rest[1:]:
        r.shallow(a) if type(a) in CONTAINERS else r.deep(a)
    return own(r, f(*rest, **kwargs))


def call_method(
    r: Recorder,
    home: type,
    name: str,
    x: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    f: Any,
    front: tuple[Any, ...],
) -> Any:
    """Method `name` of builtin class `home` on x; `front + args` is what f itself takes."""
    if home is object and (model := OBJECT_METHODS.get(name)) is not None:
        return model(r, x, *args)
    special = METHOD_MODELS.get((home, name))
    if special is not None and (home, name) in MOVES:
        return special(r, x, *args, **kwargs)
    changes = effects.METHODS.get(home, {}).get(name) == "mutates" and isinstance(x, home)
    if changes and r.outside(x):
        return mutate(r, x, name, args, dict(kwargs))
    if not (home is list and name in ("append", "insert", "extend") and id(x) in r.fresh):
        args, kwargs = tuple(map(r.settle, args)), {k: r.settle(v) for k, v in kwargs.items()}
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
        args = tuple(
            r.made(list(iterate(a))) if name in ("extend", "update") and type(a) in FRESH_ITERATORS else a for a in args
        )
        for a in args:
            r.deep(a) if name in ("remove", "__init__") else r.shallow(a) if type(a) in CONTAINERS else None
        if (
            name in ("add", "discard", "remove", "pop", "__setitem__", "__delitem__")
            and args
            and isinstance(x, (dict, set))
        ):
            hashable_key(r, args[0])
        if name in ("extend", "update", "__init__"):
            for a in args:
                if type(a) not in CONTAINERS and type(a) not in IMMUTABLE:
                    r.refuse(f"{name} with {describe(a)}")
    else:
        (r.deep if kind == "deep" else r.shallow)(x)
        for a in args:
            r.deep(a)
    for a in kwargs.values():
        r.deep(a)
    v = f(*front, *args, **kwargs)
    if kind == "mutates" or name == "__getitem__":
        return v  # may be something that was in x
    return r.made(v) if type(v) in (list, dict, set) or type(v) in FRESH_ITERATORS else v


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
    # From 3.13 on `f_locals` is the frame itself, and `locals()` a copy of it.
    variables = frame.f_locals if VERSION < (3, 13) else dict(frame.f_locals)
    if name in ("locals", "vars") and not args:
        return variables
    if name == "dir" and not args:
        return sorted(variables)
    if name in ("eval", "exec") and len(args) == 1 and not kwargs:
        return f(args[0], frame.f_globals, variables)
    if name == "_getframe":
        depth: Any = args[0] if args else 0
        for _ in range(depth):
            frame = frame.f_back
            while frame is not None and is_recorder(frame.f_globals.get("__name__")):
                frame = frame.f_back
            if frame is None:
                raise ValueError("call stack is not deep enough")
        return frame
    if name == "__import__" and len(args) == 1 and not kwargs:
        return f(args[0], frame.f_globals)
    return f(*args, **kwargs)
