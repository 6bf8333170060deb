"""Builtins that call back, iterate or look at attributes, re-expressed over the hooks; methods of builtin types.

A model takes the recorder and the call's arguments, and gives what the builtin would.
"""

from __future__ import annotations

import _string  # type: ignore[import-not-found]  # what string.Formatter stands on
import abc
import builtins
import collections
import copy
import functools
import itertools
import operator
import sys
import types
from collections.abc import Callable
from typing import Any

from tracejit.trace import effects, instrument
from tracejit.trace.attributes import (
    CONTAINERS,
    Function,
    attribute,
    instance_attribute,
    instance_dict,
    is_base,
    is_data_descriptor,
    old_iterator,
    plain,
)
from tracejit.trace.domain import is_library
from tracejit.trace.iteration import driven, iterate, joined, text_of
from tracejit.trace.objects import ABSENT, FRESH_ITERATORS, IMMUTABLE, describe
from tracejit.trace.operators import apply_binary, apply_compare, contains_in, item, truth, unary
from tracejit.trace.recorder import Recorder, active
from tracejit.trace.replay import safe_stream
from tracejit.trace.scalars import OPAQUE
from tracejit.trace.writes import (
    act,
    advance,
    delete_attr,
    delete_plainly,
    hashable_key,
    length,
    set_attribute,
    set_plainly,
    store_item,
)


def wrapped(r: Recorder, f: Any, result: Callable[[Any], Any] = lambda v: v) -> Any:
    """A callback as C code may call it."""
    if f is None or (isinstance(f, type) and f in effects.DEEP):
        return f

    def callback(*args: Any) -> Any:
        now = active()
        return result(f(*args) if now is None else now.invoke(f, args))

    return callback


def _len(r: Recorder, x: Any) -> Any:
    if r.is_tensor(x):
        r.touch(x)
        shape = r.shape_of(x)
        return plain(r, len, x) if shape is None else shape[0]
    t = type(x)
    if (
        t in IMMUTABLE
        or isinstance(x, tuple)
        or t in CONTAINERS
        or t in FRESH_ITERATORS
        or (isinstance(x, dict) and is_base(t, dict, "__len__"))
        or (isinstance(x, list) and is_base(t, list, "__len__"))
    ):
        if t in FRESH_ITERATORS:
            old_iterator(r, x)
            return len(x)
        return len(x) if t in IMMUTABLE or isinstance(x, tuple) else length(r, x)
    r.type_of(x)
    method = r.lookup(t, "__len__")
    if isinstance(method, Function):
        return r.invoke(method, (x,))
    r.refuse(f"len of {describe(x)}")
    return len(x)


def _iter(r: Recorder, x: Any, *sentinel: Any) -> Any:
    if sentinel:
        r.refuse("iter with a sentinel")
        return iter(x, *sentinel)
    return r.made(iter(iterate(x)))


def _next(r: Recorder, it: Any, *default: Any) -> Any:
    t = type(it)
    if t is itertools.count and r.outside(it):
        return advance(r, it)
    if t in FRESH_ITERATORS:
        old_iterator(r, it)
        return next(it, *default)
    r.type_of(it)
    step = r.lookup(t, "__next__")
    if not isinstance(step, Function):
        r.refuse(f"next() on {describe(it)}")
        return next(it, *default)
    try:
        return r.invoke(step, (it,))
    except StopIteration:
        if default:
            return default[0]
        raise


def _iterators(cls: Any, callbacks: tuple[int, ...], iterables: slice) -> Callable[..., Any]:
    """The model of a class of itertools whose arguments in these places are called, or iterated."""

    def model(r: Recorder, *args: Any, **kwargs: Any) -> Any:
        if cls is not itertools.repeat:
            kwargs = {k: r.reveal(v) for k, v in kwargs.items()}
        given = list(args)
        given[iterables] = [iterate(x) for x in args[iterables]]
        for k in callbacks:
            if k < len(given):
                given[k] = wrapped(r, given[k], truth if cls in _PREDICATES else lambda v: v)
        return r.made(cls(*given, **kwargs))

    return model


_PREDICATES = (itertools.takewhile, itertools.dropwhile, itertools.filterfalse)


def _accumulate(r: Recorder, xs: Any, func: Any = None, *, initial: Any = None) -> Any:
    return r.made(
        itertools.accumulate(iterate(xs), wrapped(r, operator.add if func is None else func), initial=initial)
    )


def _count(r: Recorder, start: Any = 0, step: Any = 1) -> Any:
    return r.made(itertools.count(r.reveal(start), r.reveal(step)))


def _chain_from(r: Recorder, cls: Any, xs: Any) -> Any:
    return r.made(itertools.chain.from_iterable(iterate(x) for x in list(iterate(xs))))


def _any(r: Recorder, xs: Any) -> bool:
    return any(truth(x) for x in iterate(xs))


def _all(r: Recorder, xs: Any) -> bool:
    return all(truth(x) for x in iterate(xs))


def _sum(r: Recorder, xs: Any, /, start: Any = 0) -> Any:
    items = list(iterate(xs))
    if not any(map(r.is_tensor, items)):
        items = list(map(r.reveal, items))
    if all(type(x) in IMMUTABLE for x in items) and type(start) in IMMUTABLE:
        return sum(items, start)  # C's own summation of floats is not a plain loop
    for x in items:
        start = apply_binary(r, start, x, operator.add)
    return start


def _extreme(which: Any) -> Any:
    def model(r: Recorder, *args: Any, key: Any = None, **kwargs: Any) -> Any:
        items = list(iterate(args[0])) if len(args) == 1 else list(args)
        if not items:
            return kwargs["default"] if "default" in kwargs else which(items)
        keys = items if key is None else [r.invoke(key, (x,)) for x in items]
        if all(type(k) in IMMUTABLE for k in keys):
            return items[keys.index(which(keys))] if all(k == k for k in keys) else _first(r, which, items, keys)
        return _first(r, which, items, keys)

    return model


def _first(r: Recorder, which: Any, items: list[Any], keys: list[Any]) -> Any:
    """The item whose key comes first, found as max and min find it."""
    best = 0
    for k in range(1, len(items)):
        if truth(apply_compare(r, keys[k], keys[best], operator.gt if which is max else operator.lt)):
            best = k
    return items[best]


class _Key:
    """A key of sort, compared recorded."""

    __slots__ = ("r", "v")

    def __init__(self, r: Recorder, v: Any) -> None:
        self.r, self.v = r, v

    def __lt__(self, other: _Key) -> bool:
        return truth(apply_compare(self.r, self.v, other.v, operator.lt))


def _sorted(r: Recorder, xs: Any, /, *, key: Any = None, reverse: Any = False) -> Any:
    items = list(iterate(xs))
    keys = [r.reveal(x) if key is None else r.reveal(r.invoke(key, (x,))) for x in items]
    if not all(type(k) in IMMUTABLE for k in keys):
        keys = [_Key(r, k) for k in keys]
    order = plain(r, sorted, range(len(items)), key=keys.__getitem__, reverse=truth(reverse))
    return r.made([items[k] for k in order])


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
    if t in CONTAINERS or t is range or t in (type({}.keys()), type({}.values()), type({}.items())):
        iterate(x)
        return r.made(reversed(x))
    method = r.lookup(t, "__reversed__")
    if isinstance(method, Function):
        r.type_of(x)
        return driven(r, r.invoke(method, (x,)))
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
            args = tuple(list(iterate(a)) for a in args[:1]) + args[1:]
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
        if getattr(cls.__subclasshook__, "__func__", None) is not None and cls.__module__ not in (
            "collections.abc",
            "numbers",
            "typing",
        ):
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
        return super(args[0], args[1])
    r.refuse("super() of an unusual form")
    make: Any = super
    return make(*args)


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
        acc = r.invoke(f, (acc, x))
    return acc


def _object(r: Recorder) -> Any:
    return r.made(object())


def _partial(r: Recorder, f: Any, /, *args: Any, **kwargs: Any) -> Any:
    v = r.made(functools.partial(f, *args, **kwargs))
    r.made(v.keywords)
    return v


def _join(r: Recorder, sep: str, parts: Any) -> str:
    return joined(list(iterate(parts)), sep)


def _str(r: Recorder, *args: Any, **kwargs: Any) -> str:
    if len(args) == 1 and not kwargs:
        return text_of(r, args[0])
    for a in (*args, *kwargs.values()):
        r.deep(a)
    return str(*args, **kwargs)


def _repr(r: Recorder, x: Any) -> str:
    return text_of(r, x, None, 2)


def _format(r: Recorder, x: Any, spec: Any = "") -> str:
    return text_of(r, x, r.reveal(spec), 0)


def _str_format(r: Recorder, text: str, *args: Any, **kwargs: Any) -> str:
    try:
        return joined(_fields(r, r.reveal(text), args, kwargs, itertools.count()), "")
    except (IndexError, KeyError, ValueError):  # what is wrong with it, Python says
        return plain(r, text.format, *map(r.settle, args), **{k: r.settle(v) for k, v in kwargs.items()})


def _fields(r: Recorder, text: str, args: tuple[Any, ...], kwargs: dict[str, Any], auto: Any) -> list[str]:
    """The pieces of text.format(*args, **kwargs)."""
    pieces: list[str] = []
    for literal, field, spec, conversion in _string.formatter_parser(text):
        pieces.append(literal)
        if field is None:
            continue
        first, path = _string.formatter_field_name_split(field)
        if first == "":
            first = next(auto)
        x = args[first] if isinstance(first, int) else kwargs[first]
        for is_attribute, part in path:
            x = attribute(r, x, part) if is_attribute else item(r, x, part)
        spec = r.reveal(joined(_fields(r, spec or "", args, kwargs, auto), ""))
        pieces.append(text_of(r, x, spec, " sra".index(conversion) if conversion else 0))
    return pieces


def _print(r: Recorder, *args: Any, sep: Any = None, end: Any = None, file: Any = None, flush: Any = False) -> None:
    if not safe_stream(sys.stdout if file is None else file):
        r.refuse(f"prints to {describe(sys.stdout if file is None else file)}")
        print(*map(r.settle, args), sep=r.reveal(sep), end=r.reveal(end), file=file, flush=truth(flush))
        return
    texts = [text_of(r, x) for x in args]
    more: dict[str, Any] = {} if file is None else {"file": file}
    act(r, print, *texts, sep=r.reveal(sep), end=r.reveal(end), flush=truth(flush), **more)


def _list_sort(r: Recorder, x: list[Any], *, key: Any = None, reverse: Any = False) -> None:
    if r.outside(x):
        r.shallow(x)
        result = _sorted(r, list(x), key=key, reverse=reverse)
        store_item(r, x, slice(None), tuple(result))
        return
    list.__setitem__(x, slice(None), _sorted(r, list(x), key=key, reverse=reverse))


def _dict_get(r: Recorder, x: dict[Any, Any], key: Any, default: Any = None) -> Any:
    hashable_key(r, key)
    value = dict.get(x, key, ABSENT)
    if r.outside(x):
        value = r.read("item", x, key, value)
    return default if value is ABSENT else value


def _dict_getitem(r: Recorder, x: dict[Any, Any], key: Any) -> Any:
    value = _dict_get(r, x, key, ABSENT)
    return dict.__getitem__(x, key) if value is ABSENT else value


def _dict_contains(r: Recorder, x: dict[Any, Any], key: Any) -> bool:
    return _dict_get(r, x, key, ABSENT) is not ABSENT


def _dict_setdefault(r: Recorder, x: dict[Any, Any], key: Any, default: Any = None) -> Any:
    value = _dict_get(r, x, key, ABSENT)
    if value is not ABSENT:
        return value
    if r.outside(x):
        store_item(r, x, key, default)
    else:
        dict.__setitem__(x, key, default)
    return default


def _operator(apply: Any, op: Any) -> Callable[..., Any]:
    """The model of a function of the operator module."""

    def model(r: Recorder, a: Any, b: Any) -> Any:
        return apply(r, a, b, op)

    return model


def _operator_contains(r: Recorder, box: Any, x: Any) -> bool:
    return contains_in(r, x, box)


def _operator_truth(r: Recorder, x: Any) -> bool:
    return truth(x)


def _operator_not(r: Recorder, x: Any) -> bool:
    return not truth(x)


def _operator_neg(r: Recorder, x: Any) -> Any:
    return unary((x, operator.neg))


def _mro(r: Recorder, x: type) -> list[type]:
    return r.made(list(r.cell("mro", x, None, x.__mro__)))


def _type_call(r: Recorder, x: type, *args: Any, **kwargs: Any) -> Any:
    return r.invoke(x, args, kwargs)


def _object_init(r: Recorder, x: Any, *args: Any) -> None:
    return None


def _object_getattribute(r: Recorder, x: Any, name: str) -> Any:
    return instance_attribute(r, x, type(x), name)


def _object_setattr(r: Recorder, x: Any, name: str, value: Any) -> None:
    raw = r.lookup(type(x), name)
    if isinstance(raw, property) and raw.fset is not None:
        if is_library(raw.fset.__module__):
            value = r.settle(value)
            set_attribute(r, x, name, value) if r.is_tensor(x) else object.__setattr__(x, name, value)
        else:
            r.invoke(raw.fset, (x, value))
        return
    if raw is not ABSENT and not isinstance(raw, types.MemberDescriptorType) and is_data_descriptor(r, raw):
        r.refuse(f"sets the computed attribute {name} of {describe(x)}")
        object.__setattr__(x, name, r.settle(value))
        return
    r.type_of(x)
    set_plainly(r, x, name, value, raw)


def _object_delattr(r: Recorder, x: Any, name: str) -> None:
    delete_plainly(r, x, name)


def match(operands: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    """`case cls(...)`: isinstance, then attributes."""
    x, cls, names = operands
    if (r := active()) is not None:
        operands = x, cls, names = r.reveal(x), cls, names
        check_isinstance(r, x, cls)
        positional = r.lookup(cls, "__match_args__") if isinstance(cls, type) else ABSENT
        if isinstance(x, cls) and type(x) not in IMMUTABLE and type(x) not in CONTAINERS:
            wanted = (*(positional if isinstance(positional, tuple) else ()), *names)
            for name in wanted:
                raw = r.lookup(type(x), name)
                if (
                    raw is not ABSENT and is_data_descriptor(r, raw) and not isinstance(raw, types.MemberDescriptorType)
                ) or (raw is ABSENT and r.lookup(type(x), "__getattr__") is not ABSENT):
                    r.refuse(f"matches on the computed attribute {name}")
                else:
                    try:
                        attribute(r, x, name)
                    except AttributeError:
                        continue
    return operands


def _namespace(r: Recorder, *args: Any, **kwargs: Any) -> Any:
    if args:
        r.refuse("makes a SimpleNamespace from a mapping")
    x = r.made(types.SimpleNamespace(*args, **kwargs))
    r.made(x.__dict__)
    return x


def _copy(r: Recorder, x: Any) -> Any:
    t = type(x)
    if r.is_value(x) or isinstance(x, (type, Function, types.ModuleType)) or t is tuple:
        return x
    if t in (list, dict, set):
        r.shallow(x)
        return r.made(t(x))
    method = r.lookup(t, "__copy__")
    if isinstance(method, Function):
        return r.invoke(method, (x,))
    return _copied(r, x, lambda v: v)


def _deepcopy(r: Recorder, x: Any, memo: Any = None) -> Any:
    memo = {} if memo is None else memo
    if id(x) in memo:
        return memo[id(x)]
    t = type(x)
    if t in OPAQUE or r.is_value(x) or isinstance(x, (type, Function, types.BuiltinFunctionType)):
        return x
    if t in (list, dict, set, tuple):
        r.shallow(x)
        if t is list or t is dict:
            new = memo[id(x)] = r.made(t())
            if t is list:
                new.extend(_deepcopy(r, v, memo) for v in x)
            else:
                new.update((_deepcopy(r, k, memo), _deepcopy(r, r.read("item", x, k, v), memo)) for k, v in x.items())
            return new
        parts = [_deepcopy(r, v, memo) for v in x]
        memo[id(x)] = x if t is tuple and all(a is b for a, b in zip(parts, x)) else r.made(t(parts))
        return memo[id(x)]
    method = r.lookup(t, "__deepcopy__")
    if isinstance(method, Function):
        return r.invoke(method, (x, memo))
    memo[id(x)] = _copied(r, x, lambda v: _deepcopy(r, v, memo), memo)
    return memo[id(x)]


_REDUCES = ("__reduce_ex__", "__reduce__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__")


def _copied(r: Recorder, x: Any, part: Callable[[Any], Any], memo: Any = None) -> Any:
    """A copy of an object whose class leaves copying to `object`."""
    t, space = type(x), instance_dict(x)
    plain_class = all(c is object or (c.__flags__ & 1 << 9 and "__slots__" not in c.__dict__) for c in t.__mro__)
    own_way = any(r.lookup(t, n) not in (ABSENT, object.__dict__.get(n)) for n in _REDUCES) or isinstance(
        t, abc.ABCMeta
    )
    if not plain_class or own_way or space is None or r.is_tensor(x) or is_library(t.__module__):
        r.refuse(f"copies {describe(x)}")
        return (copy.copy if memo is None else copy.deepcopy)(x)
    r.type_of(x)
    if r.is_old(x):
        r.dict_owner[id(space)] = x
        r.keep.append(space)
        r.shallow(space)
    new = r.made(object.__new__(t))
    r.instances.add(id(new))
    r.made(new.__dict__)
    if memo is not None:
        memo[id(x)] = new
    for name, v in tuple(space.items()):
        new.__dict__[name] = part(r.read("ivar", x, name, v))
    return new


FUNCTION_MODELS: dict[Any, Callable[..., Any]] = {copy.copy: _copy, copy.deepcopy: _deepcopy}

MODELS: dict[Any, Callable[..., Any]] = {
    types.SimpleNamespace: _namespace,
    len: _len,
    iter: _iter,
    next: _next,
    any: _any,
    all: _all,
    sum: _sum,
    min: _extreme(min),
    max: _extreme(max),
    sorted: _sorted,
    map: _map,
    filter: _filter,
    zip: _zip,
    enumerate: _enumerate,
    reversed: _reversed,
    isinstance: _isinstance,
    issubclass: _issubclass,
    getattr: _getattr,
    hasattr: _hasattr,
    setattr: set_attribute,
    delattr: _delattr,
    type: _type,
    super: _super,
    callable: _callable,
    hash: _hash,
    object: _object,
    str: _str,
    repr: _repr,
    builtins.format: _format,
    functools.reduce: _reduce,
    functools.partial: _partial,
    print: _print,
    itertools.count: _count,
    itertools.accumulate: _accumulate,
    **{c: _iterators(c, (), slice(None)) for c in (itertools.chain, itertools.zip_longest, itertools.product)},
    **{c: _iterators(c, (), slice(0, 1)) for c in (itertools.islice, itertools.cycle, itertools.pairwise)},
    **{c: _iterators(c, (), slice(0, 1)) for c in (itertools.permutations, itertools.combinations)},
    itertools.combinations_with_replacement: _iterators(itertools.combinations_with_replacement, (), slice(0, 1)),
    itertools.repeat: _iterators(itertools.repeat, (), slice(0)),
    itertools.starmap: _iterators(itertools.starmap, (0,), slice(1, 2)),
    **{c: _iterators(c, (0,), slice(1, 2)) for c in _PREDICATES},
    **{kind: _container(kind) for kind in (list, tuple, set, frozenset, dict, collections.deque)},
    operator.getitem: item,
    operator.contains: _operator_contains,
    operator.truth: _operator_truth,
    operator.not_: _operator_not,
    operator.neg: _operator_neg,
    **{f: _operator(apply_binary, f) for f in instrument.BINARY.values()},
    **{f: _operator(apply_compare, f) for f in instrument.COMPARE.values()},
}

METHOD_MODELS: dict[tuple[type, str], Callable[..., Any]] = {
    (str, "join"): _join,
    (str, "format"): _str_format,
    (itertools.chain, "from_iterable"): _chain_from,
    (list, "sort"): _list_sort,
    (dict, "get"): _dict_get,
    (dict, "__getitem__"): _dict_getitem,
    (dict, "__contains__"): _dict_contains,
    (dict, "setdefault"): _dict_setdefault,
    (type, "mro"): _mro,
    (type, "__call__"): _type_call,
}

# Models that pass opaque values on rather than look at them.
KEEP_OPAQUE = frozenset((repr, builtins.format, setattr, print))
MOVES = frozenset(((dict, "setdefault"), (str, "join"), (str, "format")))

OBJECT_METHODS: dict[str, Callable[..., Any]] = {
    "__init__": _object_init,
    "__getattribute__": _object_getattribute,
    "__setattr__": _object_setattr,
    "__delattr__": _object_delattr,
}
