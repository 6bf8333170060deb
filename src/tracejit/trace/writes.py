"""Writing objects outside: done at once, noted in the journal, and done again by every compiled call.

A write is blind (`list.append`, `d[k] = v`: what was there does not matter) or it reads first (`list.pop`); what it
reads is guarded like any other read. A write that cannot be noted refuses the recording.
"""

from __future__ import annotations

import enum
import functools
import operator
import sys
import types
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from tracejit.trace import computed
from tracejit.trace.attributes import (
    CONTAINERS,
    Function,
    home_of,
    inlined,
    instance_dict,
    is_data_descriptor,
    offer,
    offer_index,
    plain,
)
from tracejit.trace.domain import is_library
from tracejit.trace.iteration import iterate
from tracejit.trace.journal import Effect
from tracejit.trace.objects import (
    ABSENT,
    IMMUTABLE,
    describe,
    elements,
    is_namedtuple,
    items_of,
    kind_of,
    place_of,
)
from tracejit.trace.recorder import Recorder, active
from tracejit.trace.scalars import OPAQUE, count_state, plain_number

_MOST = 256  # effects of one call


def act(r: Recorder, f: Callable[..., Any], *operands: Any, **keywords: Any) -> Any:
    """f(*operands, **keywords), now and in every compiled call. Returns its result."""
    # An error may depend on what no guard watches, so it refuses.
    do = functools.partial(f, *map(shown, operands), **{k: shown(v) for k, v in keywords.items()})
    value = plain(r, r.unwatched, do) if f is print else plain(r, do)  # streams run codecs written in Python
    if len(r.journal.effects) >= _MOST:
        r.refuse(f"has more than {_MOST} effects")
    else:
        r.journal.effects.append(Effect(f, operands, keywords))
    return value


def shown(x: Any) -> Any:
    """x as objects outside may hold it. Fresh containers stay as they are until the recording ends."""
    t = type(x)
    if t in OPAQUE:
        return plain_number(x)
    return tuple.__new__(t, map(shown, x)) if is_tuple(t) and opaque_in(x) else x


def is_tuple(t: type) -> bool:
    """Whether t is tuple or a named one."""
    return t is tuple or is_namedtuple(t)


def opaque_in(x: Any) -> list[Any]:
    """The opaque numbers and texts that x is, or that lie in it where it is a tuple."""
    if type(x) in OPAQUE:
        return [x]
    return [v for part in x for v in opaque_in(part)] if is_tuple(type(x)) else []


def store(
    r: Recorder, kind: str, owner: Any, key: Any, value: Any, f: Callable[..., Any], *operands: Any, holder: Any = None
) -> None:
    """Cell (kind, owner, key) becomes `value`, by f(*operands); `holder` is the dict in which it lies."""
    if holder is not None:
        if kind == "ivar":
            r.dict_owner[id(holder)] = owner
        _remember(r, holder)
        _hide(r, holder, value)
    act(r, f, *operands)
    _note(r, kind, owner, key, value)


def _note(r: Recorder, kind: str, owner: Any, key: Any, value: Any) -> None:
    place = place_of(kind, owner, key)
    r.journal.written[place] = value
    r.journal.places[place] = kind, owner, key


def store_attribute(r: Recorder, x: Any, name: str, value: Any) -> None:
    """object.__setattr__(x, name, value) on an object from outside, where `name` is no computed attribute."""
    raw = r.lookup(type(x), name)
    if type(raw).__name__ == "member_descriptor":
        store(r, "member", x, raw, value, object.__setattr__, x, name, value)
    elif (space := instance_dict(x)) is None:
        object.__setattr__(x, name, shown(value))  # raises
    else:
        store(r, "ivar", x, name, value, object.__setattr__, x, name, value, holder=space)


def delete_attribute(r: Recorder, x: Any, name: str) -> None:
    """object.__delattr__(x, name) on an object from outside, where `name` is no computed attribute."""
    raw, space = r.lookup(type(x), name), instance_dict(x)
    if type(raw).__name__ == "member_descriptor":
        r.read("member", x, raw, getattr(x, name, ABSENT))
        if not hasattr(x, name):
            raise AttributeError(name)
        store(r, "member", x, raw, ABSENT, object.__delattr__, x, name)
        return
    present(r, "ivar", x, name, ABSENT if space is None else space.get(name, ABSENT))
    if space is None or name not in space:
        object.__delattr__(x, name)  # raises
    store(r, "ivar", x, name, ABSENT, object.__delattr__, x, name, holder=space)


def present(r: Recorder, kind: str, owner: Any, key: Any, value: Any) -> None:
    """Only whether an entry of a dict is there was looked at."""
    if type(value) in (int, float) or type(value) in IMMUTABLE or value is ABSENT or kind != "item":
        r.read(kind, owner, key, value)
    elif not r.written(kind, owner, key) and r.is_old(owner):
        r.cell("has", owner, key, True)


store_contents: Any = types.CellType.__dict__[
    "cell_contents"
].__set__  # (cell, value): written in C, as all effects are


def hashable_key(r: Recorder, key: Any) -> Any:
    """Dict and set look-ups hash and compare keys: fine for values, and for objects compared by identity."""
    key = r.reveal(key)
    if type(key) in IMMUTABLE or isinstance(key, (type, Function, *r.domain.constants)) or r.is_tensor(key):
        return key
    r.deep(key)
    return key


def _is_one_key(key: Any) -> bool:
    """Whether a key equal to this one is known to be: it is compared by its value, or by identity."""
    t = type(key)
    if t is tuple:
        return all(map(_is_one_key, key))
    return t in IMMUTABLE or t.__hash__ in (object.__hash__, enum.Enum.__hash__)


# -- containers


def _remember(r: Recorder, x: Any) -> None:
    """Container x is about to be written: from now on a look at all of it is a look at what it was."""
    journal = r.journal
    if id(x) in journal.before:
        return
    journal.before[id(x)], journal.containers[id(x)] = elements(x), x
    if (kind := kind_of(x)) is not None and r.locate(kind, x, None)[2] in r.cells:
        journal.known.add(id(x))


def _hide(r: Recorder, x: Any, value: Any) -> None:
    """x will hold `value`: opaque parts of it are looked at when x is, or now if someone may be looking at it."""
    if found := opaque_in(value):
        if id(x) in r.journal.whole:
            for v in found:
                r.reveal(v)
        else:
            r.journal.hidden.setdefault(id(x), []).extend(found)


def _forget(r: Recorder, x: Any) -> None:
    """What was written into x by key is as good as any other entry of it."""
    for place in [p for p in r.journal.written if p[1] == id(x) and p[0] in ("item", "has", "len")]:
        del r.journal.written[place]


def store_item(r: Recorder, x: Any, key: Any, value: Any, f: Any = None) -> None:
    """x[key] = value on a builtin dict, list or deque from outside; `f` sets it."""
    key = hashable_key(r, key) if isinstance(x, dict) else r.reveal(key)
    if isinstance(x, dict):
        if not _is_one_key(key):
            r.refuse(f"sets an entry of a dict under {describe(key)}, which may equal other keys")
        store(r, "item", x, key, value, f or _method(x, "__setitem__"), x, key, value, holder=x)
        return
    if type(key) is slice:
        value = tuple(iterate(value))
        whole = key == slice(None)
        if not whole:
            r.shallow(x)
        _change(r, x, list.__setitem__, key, value, known=whole)
        return
    if id(x) in r.journal.before or type(key) is not int or type(x) is not list:
        r.shallow(x)
    elif r.is_old(x):
        r.cell("len", x, None, len(x))  # an index out of range raises
    _change(r, x, _method(x, "__setitem__"), key, value)


def delete(r: Recorder, x: Any, key: Any) -> None:
    """del x[key] on a builtin container from outside."""
    if isinstance(x, dict):
        key = hashable_key(r, key)
        present(r, "item", x, key, dict.get(x, key, ABSENT))
        if key not in x:
            raise KeyError(key)
        store(r, "item", x, key, ABSENT, _method(x, "__delitem__"), x, key, holder=x)
        return
    r.shallow(x)
    _change(r, x, _method(x, "__delitem__"), r.reveal(key))


def _method(x: Any, name: str) -> Any:
    return next(c.__dict__[name] for c in type(x).__mro__ if name in c.__dict__)


def _change(
    r: Recorder, x: Any, f: Any, *operands: Any, known: bool = False, grows: bool = False, **keywords: Any
) -> Any:
    """f(x, *operands); `known`: its contents are new, `grows`: it can only get longer, by what is in `operands`."""
    _remember(r, x)
    for v in operands:
        _hide(r, x, v)
    if not grows:
        r.journal.shuffled.add(id(x))
    value = act(r, f, x, *operands, **keywords)
    if known and id(x) not in r.guarded:
        r.journal.known.add(id(x))
    return value


def length(r: Recorder, x: Any) -> Any:
    """len(x) of a builtin container."""
    if not r.outside(x):
        return len(x)
    if id(x) in r.journal.known:
        return len(x)
    before, sequence = r.journal.before.get(id(x)), isinstance(x, (list, deque))
    if before is None:
        return r.read("len", x, None, len(x))
    if not sequence or id(x) in r.journal.shuffled or (type(x) is deque and x.maxlen is not None):
        r.shallow(x)
        return len(x)
    started = r.read("len", x, None, len(before))
    return computed.scalar(r, operator.add, started, len(x) - len(before))


def advance(r: Recorder, count: Any) -> Any:
    """next() of an itertools.count from outside."""
    start, step = count_state(count)
    now = r.read("count", count, None, start)
    act(r, next, count)
    _note(r, "count", count, None, computed.scalar(r, operator.add, now, step))
    return now


_BLIND = {
    list: "append extend insert clear reverse __iadd__",
    deque: "append appendleft extend extendleft clear reverse rotate __iadd__",
    set: "add discard update clear",
    bytearray: "append extend clear __iadd__",
}
_POURS = frozenset(("extend", "extendleft", "update", "__iadd__"))


def mutate(r: Recorder, x: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """x.name(*args, **kwargs), a method of a builtin container from outside that changes it."""
    if isinstance(x, dict):
        return _mutate_dict(r, x, name, args, kwargs)
    t = next(c for c in _BLIND if isinstance(x, c))
    if name == "__init__" or (kwargs and name != "sort"):
        return _refused(r, x, name, args, kwargs)
    if name in _POURS:
        args = tuple(_poured(r, a, hashed=t is set) for a in args)
    elif t is set or name in ("remove", "rotate", "__imul__"):
        args = tuple(hashable_key(r, a) if type(a) not in CONTAINERS else _poured(r, a, hashed=True) for a in args)
    elif name == "insert":
        args = (r.reveal(args[0]), *args[1:])
    elif t is bytearray or name in ("pop", "__delitem__"):
        args = tuple(map(r.reveal, args))
    if name == "__setitem__":
        return store_item(r, x, *args)
    if name not in _BLIND[t].split() or (t is deque and name == "insert" and cast(Any, x).maxlen is not None):
        (r.deep if name == "remove" else r.shallow)(x)
    value = _change(
        r, x, _method(x, name), *args, known=name == "clear", grows=name in ("append", "extend", "insert", "__iadd__")
    )
    if name == "clear":
        r.journal.hidden.pop(id(x), None)
    return x if name in ("__iadd__", "__imul__") else value


def _poured(r: Recorder, x: Any, *, hashed: bool) -> Any:
    """The elements of x, which will be poured into a container: of x as it is now."""
    if type(x) in IMMUTABLE:
        return x
    found = tuple(iterate(x))
    return tuple(hashable_key(r, v) for v in found) if hashed else found


def _mutate_dict(r: Recorder, x: dict[Any, Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if name in ("update", "__ior__"):
        pairs: list[tuple[Any, Any]] = []
        for a in args:
            if isinstance(a, dict):
                r.shallow(a)
                pairs += [(k, r.read("item", a, k, v)) for k, v in items_of(a)]
            else:
                pairs += [tuple(iterate(pair)) for pair in iterate(a)]
        for k, v in (*pairs, *kwargs.items()):
            store_item(r, x, k, v)
        return x if name == "__ior__" else None
    if name == "__setitem__":
        return store_item(r, x, *args)
    if name == "__delitem__":
        return delete(r, x, *args)
    if name == "pop" and not kwargs:
        key = hashable_key(r, args[0])
        value = r.read("item", x, key, dict.get(x, key, ABSENT))
        if value is ABSENT:
            if len(args) > 1:
                return args[1]
            raise KeyError(key)
        store(r, "item", x, key, ABSENT, _method(x, "pop"), x, key, holder=x)
        return value
    if name in ("clear", "popitem", "move_to_end"):
        if name != "clear":
            r.shallow(x)
        value = _change(r, x, _method(x, name), *map(r.reveal, args), known=True, **kwargs)
        _forget(r, x)
        if name == "clear":
            r.journal.hidden.pop(id(x), None)
        return value
    return _refused(r, x, name, args, kwargs)


def _refused(r: Recorder, x: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    r.refuse(f"changes an outside object: {name} on {describe(x)}")
    return _method(x, name)(x, *map(r.settle, args), **{k: r.settle(v) for k, v in kwargs.items()})


# -- the hooks

# What sets and deletes attributes as `object` does, each under a slot of its own.
_USUAL = frozenset(
    c.__dict__[name]
    for c in (object, types.SimpleNamespace, BaseException)
    for name in ("__setattr__", "__delattr__")
    if name in c.__dict__
)


def store_attr(operands: tuple[Any, Any, str]) -> None:
    """x.name = value"""
    value, x, name = operands
    r = active()
    if r is None:
        setattr(x, name, value)
    else:
        set_attribute(r, x, name, value)


def set_attribute(r: Recorder, x: Any, name: str, value: Any) -> None:
    """x.name = value"""
    t = type(x)
    if inlined(t) is not None:
        r.refuse("sets an attribute of a compiled function")
        setattr(x, name, r.settle(value))
        return
    if r.is_tensor(x) and isinstance(raw := r.lookup(t, name), property) and is_library(home_of(t, name)):
        value = r.settle(value)
        r.touch(x)
        offer(r, value)
        plain(r, setattr, x, name, value)
        return
    if isinstance(x, type):
        _set_class_attribute(r, x, name, value)
        return
    if t is types.ModuleType and name not in ("__class__", "__dict__"):
        store(r, "item", x.__dict__, name, value, object.__setattr__, x, name, value, holder=x.__dict__)
        return
    r.type_of(x)
    setter = r.lookup(t, "__setattr__")
    if isinstance(setter, Function):
        r.invoke(setter, (x, name, value))
        return
    raw = r.lookup(t, name)
    if isinstance(raw, property) and raw.fset is not None:
        r.invoke(raw.fset, (x, value))
        return
    if raw is not ABSENT and isinstance(set_ := r.lookup(type(raw), "__set__"), Function):
        r.invoke(set_, (raw, x, value))
        return
    set_plainly(r, x, name, value, raw, usual=setter in _USUAL)


def set_plainly(r: Recorder, x: Any, name: str, value: Any, raw: Any, *, usual: bool = True) -> None:
    """object.__setattr__(x, name, value), where `raw` is what its class has of that name."""
    if isinstance(raw, types.MemberDescriptorType) and not r.outside(x) and id(x) not in r.instances:
        value = r.settle(value)
    if not r.outside(x) and usual and name not in ("__class__", "__dict__"):
        object.__setattr__(x, name, value)
        return
    computed = raw is not ABSENT and not isinstance(raw, types.MemberDescriptorType) and is_data_descriptor(r, raw)
    odd = r.is_tensor(x) or is_library(type(x).__module__) or isinstance(x, BaseException)
    if not usual or name in ("__class__", "__dict__") or computed or odd:
        r.refuse(f"sets attribute {name} of {describe(x)}")
        setattr(x, name, r.settle(value))
        return
    store_attribute(r, x, name, value)


def _set_class_attribute(r: Recorder, x: type, name: str, value: Any) -> None:
    setter = r.lookup(type(x), "__setattr__")
    if isinstance(setter, Function):
        r.invoke(setter, (x, name, value))
        return
    dunder = name[:2] == "__"
    if setter is not type.__dict__["__setattr__"] or r.lookup(type(x), name) is not ABSENT or dunder:
        r.refuse(f"changes an outside object: sets {name} on {describe(x)}")
        setattr(x, name, r.settle(value))
        return
    store(r, "class", x, name, value, type.__setattr__, x, name, value)


def delete_attr(operands: tuple[Any, str]) -> None:
    """del x.name"""
    x, name = operands
    if (r := active()) is None:
        delattr(x, name)
        return
    deleter = r.lookup(type(x), "__delattr__") if not isinstance(x, type) else ABSENT
    if isinstance(deleter, Function):
        r.invoke(deleter, (x, name))
        return
    delete_plainly(r, x, name, usual=deleter in _USUAL)


def delete_plainly(r: Recorder, x: Any, name: str, *, usual: bool = True) -> None:
    """object.__delattr__(x, name)"""
    raw = r.lookup(type(x), name)
    if not r.outside(x):
        delattr(x, name)
        return
    computed = raw is not ABSENT and not isinstance(raw, types.MemberDescriptorType) and is_data_descriptor(r, raw)
    odd = r.is_tensor(x) or is_library(type(x).__module__) or isinstance(x, (BaseException, type, types.ModuleType))
    if not usual or computed or odd or name in ("__class__", "__dict__"):
        r.refuse(f"deletes attribute {name} of {describe(x)}")
        delattr(x, name)
        return
    r.type_of(x)
    delete_attribute(r, x, name)


def store_subscript(operands: tuple[Any, Any, Any]) -> None:
    """x[key] = value"""
    value, x, key = operands
    if (r := active()) is None:
        x[key] = value
        return
    t = type(x)
    if r.is_tensor(x):
        key, value = r.index(x, key), r.settle(value)
        offer_index(r, key)
        offer(r, value)
        r.touch(x)
        plain(r, operator.setitem, x, key, value)
        return
    key = r.reveal(key)
    setter: Any = None
    if t not in CONTAINERS:
        r.type_of(x)
        setter = r.lookup(t, "__setitem__")
        if isinstance(setter, Function):
            r.invoke(setter, (x, key, value))
            return
        if not isinstance(x, (list, dict)):
            value = r.settle(value)
            r.refuse(f"item assignment on {describe(x)}")
            x[key] = value
            return
    if r.outside(x):
        store_item(r, x, key, value, setter)
        return
    hashable_key(r, key)
    x[key] = value if t is list or isinstance(x, dict) else r.settle(value)


def delete_subscript(operands: tuple[Any, Any]) -> None:
    """del x[key]"""
    x, key = operands
    if (r := active()) is None:
        del x[key]
        return
    key = r.reveal(key)
    deleter = r.lookup(type(x), "__delitem__")
    if isinstance(deleter, Function):
        r.invoke(deleter, (x, key))
    elif not isinstance(x, (list, dict, deque, bytearray)):
        r.refuse(f"item deletion on {describe(x)}")
        del x[key]
    elif r.outside(x):
        delete(r, x, key)
    else:
        hashable_key(r, key)
        del x[key]


def store_global(operands: tuple[Any, str]) -> Any:
    """`global name; name = value`: what the instruction is to store."""
    value, name = operands
    if (r := active()) is None:
        return value
    space = sys._getframe(1).f_globals
    r.journal.anchors.add(id(space))
    r.keep.append(space)
    store(r, "item", space, name, value, dict.__setitem__, space, name, value, holder=space)
    return shown(value)


def store_cell(operands: tuple[Any, Any, str]) -> Any:
    """A variable of an enclosing function: what the instruction is to store."""
    value, cell, _ = operands
    if (r := active()) is None or id(cell) in r.fresh:
        return value
    store(r, "closure", cell, None, value, store_contents, cell, value)
    return shown(value)
