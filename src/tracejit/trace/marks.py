"""What users say about functions that a recording does not look into: `callback`, `pure`, `assume_constant`.

    callback          is an effect: called in every call, at its place among the effects
    pure              depends on its arguments only: called again for arguments that are inputs, else guarded by them
    assume_constant   is taken at its word: called once for each kind of arguments

What they do is run plainly, outside the recording and outside the net.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any

from tracejit.records import dataclass
from tracejit.trace import computed
from tracejit.trace.journal import Effect
from tracejit.trace.objects import IMMUTABLE, bits, describe, elements, is_namedtuple, kind_of
from tracejit.trace.recorder import Recorder, opened
from tracejit.trace.scalars import OPAQUE, Source, reader
from tracejit.trace.writes import shown

__all__ = ["MARKED", "Watch", "called", "called_by_name", "unchanged", "watches", "written"]

_NUMBERS: frozenset[type] = frozenset((*OPAQUE, float, int, bool))


def _apart(r: Recorder, f: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """f(*args, **kwargs) as if nothing were recorded. An error out of it may depend on what no guard watches."""
    with opened(None):
        try:
            return r.unwatched(lambda: f(*args, **kwargs))
        except BaseException as e:
            r.refuse(f"{type(e).__name__} raised by {describe(f)}")
            raise


def _callback(r: Recorder, mark: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    f, *operands = args
    operands, kwargs = [_handed(r, x) for x in operands], {k: _handed(r, v) for k, v in kwargs.items()}
    journal = r.journal
    journal.frozen += [(t, t._version.n) for t in r.builder.sources]
    if journal.early is None:
        journal.early = written(r)
    values, named = tuple(map(shown, operands)), {k: shown(v) for k, v in kwargs.items()}
    watched = [s.read for s in watches(r, lambda x: lambda: x)]
    before = [read(None) for read in watched]
    _apart(r, f, values, named)
    if not all(map(unchanged, before, [read(None) for read in watched])):
        r.refuse("a callback changes what the call has written or counted")
    if isinstance(f, types.MethodType):
        effect = Effect(called, (f.__func__, f.__self__, *operands), kwargs)
    elif isinstance(f, types.BuiltinFunctionType) and not isinstance(f.__self__, types.ModuleType):
        effect = Effect(called_by_name, (f.__self__, f.__name__, *operands), kwargs)
    else:
        effect = Effect(called, (f, *operands), kwargs)
    journal.effects.append(effect)


def written(r: Recorder) -> tuple[frozenset[tuple[int, int]], frozenset[int]]:
    """The .grad slots with what is in them, and the tensors, that were written."""
    return frozenset((k, id(g)) for k, (_, g) in r.grads.items()), frozenset(r.builder.written)


@dataclass(frozen=True, slots=True)
class Watch:
    """Something outside that a callback must leave as it is."""

    read: Callable[[Any], Any]
    name: str


def watches(r: Recorder, watch: Callable[[Any], Any]) -> list[Watch]:
    """Numbers and tensors that are inputs, what was written, and containers that were looked at and written."""
    sources = [s for s in r.numbers.entries if isinstance(s, Source) and s.kind != "argument"]
    sources += [s for s, _ in r.slots.values()]
    for kind, owner, key in r.journal.places.values():
        sources.append(Source(kind, owner, key.__name__ if kind == "member" else key))
    found = [Watch(reader(s, watch), f"{s.key or s.kind} of {describe(s.owner)}") for s in sources]
    for x in r.journal.containers.values():
        if id(x) in r.journal.known or id(x) in r.journal.whole:
            get = watch(x)
            found.append(Watch(lambda _, get=get: elements(get()), describe(x)))
    return found


def unchanged(a: Any, b: Any) -> bool:
    """Whether a and b are one object, one value, or tuples of such."""
    if a is b or type(a) is not type(b):
        return a is b
    if type(a) is tuple:
        return len(a) == len(b) and all(map(unchanged, a, b))
    return type(a) in IMMUTABLE and bits(a) == bits(b)


def _handed(r: Recorder, x: Any) -> Any:
    """x, which plain Python gets to see: it must stay what it is until the call is over."""
    if type(x) in OPAQUE:
        return x
    x = r.settle(x)
    if not r.outside(x):
        _freeze(r, x)
    return x


def _freeze(r: Recorder, x: Any) -> None:
    if r.is_tensor(x):
        r.journal.frozen.append((x, x._version.n))
        if r.domain.has_tape(x):
            r.refuse("hands a tensor with a gradient tape to a callback")
    elif type(x) is tuple or is_namedtuple(type(x)):
        for v in x:
            _freeze(r, v)
    elif kind_of(x) is not None and not r.outside(x):
        r.journal.frozen.append((x, elements(x)))
        for v in x.values() if isinstance(x, dict) else x:
            _freeze(r, v)


def called(f: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """f(*args, **kwargs)"""
    f(*args, **kwargs)


def called_by_name(x: Any, name: str, *args: Any, **kwargs: Any) -> None:
    """x.name(*args, **kwargs)"""
    getattr(x, name)(*args, **kwargs)


def _pure(r: Recorder, f: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    if not kwargs and any(type(a) in OPAQUE for a in args) and all(type(a) in _NUMBERS for a in args):
        with opened(None):
            return r.unwatched(computed.scalar, r, f, *args)
    args, kwargs = _plain(r, args), dict(zip(kwargs, _plain(r, tuple(kwargs.values()))))
    return _new(r, f, _apart(r, f, args, kwargs))


def _constant(r: Recorder, f: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    args, kwargs = _plain(r, args), dict(zip(kwargs, _plain(r, tuple(kwargs.values()))))
    value = _apart(r, f, args, kwargs)
    if type(value) not in IMMUTABLE:
        r.journal.anchors.add(id(value))
        r.keep.append(value)
    return value


def _plain(r: Recorder, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments that are guarded by value."""
    args = tuple(map(r.settle, args))
    for a in args:
        if r.is_tensor(a):
            r.refuse("hands a tensor to a function marked pure or constant")
        r.deep(a)
    return args


def _new(r: Recorder, f: Any, value: Any) -> Any:
    """What a pure function returned: made of values, and new in every call."""
    if type(value) in IMMUTABLE or r.is_value(value):
        return value
    if type(value) in (list, dict, set, tuple, frozenset):
        for v in (*value.keys(), *value.values()) if type(value) is dict else value:
            _new(r, f, v)
        return r.made(value)
    r.refuse(f"{describe(f)}, marked pure, returns {describe(value)}")
    return value


MARKED: dict[str, Callable[..., Any]] = {"callback": _callback, "pure": _pure, "assume_constant": _constant}
