"""Iteration, unpacking and text: what C code pulls out of an object is recorded before it is pulled."""

from __future__ import annotations

import builtins
import types
from collections.abc import Iterator, Sequence
from typing import Any

from tracejit.trace import computed
from tracejit.trace.attributes import CONTAINERS, Function, is_base, old_iterator, plain
from tracejit.trace.domain import is_library
from tracejit.trace.objects import FRESH_ITERATORS, IMMUTABLE, describe
from tracejit.trace.recorder import Recorder, active
from tracejit.trace.scalars import OPAQUE, OpaqueInt, OpaqueText


def iterate(x: Any) -> Any:
    """Something whose C-level iteration gives what iterating x would."""
    r = active()
    x = x if r is None else r.reveal(x)
    if r is None:
        return x
    t = type(x)
    if r.is_tensor(x):
        r.touch(x)
        return r.made(plain(r, iter, x))
    if t in IMMUTABLE or (isinstance(x, tuple) and is_base(t, tuple, "__iter__")):
        return x
    if t in FRESH_ITERATORS:
        old_iterator(r, x)
        return x
    if isinstance(x, list) and is_base(t, list, "__iter__"):
        r.type_of(x)
        r.shallow(x)
        return x
    if (t in CONTAINERS and t is not dict) or (isinstance(x, dict) and is_base(t, dict, "__iter__")):
        r.shallow(x)
        return x
    if isinstance(x, type):
        method = r.lookup(t, "__iter__")
        return driven(r, r.invoke(method, (x,))) if isinstance(method, Function) else _opaque_iteration(r, x)
    r.type_of(x)
    method = r.lookup(t, "__iter__")
    if isinstance(method, Function):
        return driven(r, r.invoke(method, (x,)))
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
            v = step(it) if r is None else r.invoke(step, (it,))
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
    x = x if r is None else r.reveal(x)
    if (
        r is None
        or type(x) in IMMUTABLE
        or (isinstance(x, (tuple, list)) and type(x).__iter__ in (tuple.__iter__, list.__iter__))
    ):
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
    x = x if r is None else r.reveal(x)
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


def rendered(x: Any, spec: str | None, conversion: int) -> str:
    """x as a replacement field of an f-string shows it; without a spec, only converted."""
    if conversion:
        x = (str, repr, ascii)[conversion - 1](x)
    return x if spec is None else builtins.format(x, spec)


def format_value(operands: tuple[Any, Any, int]) -> str:
    """One replacement field of an f-string."""
    x, spec, conversion = operands
    r = active()
    if r is None:
        return rendered(x, spec, conversion)
    return text_of(r, x, r.reveal(spec), conversion)


def text_of(r: Recorder, x: Any, spec: str | None = None, conversion: int = 1) -> str:
    """x as text: opaque where x is, guarded where C code reads x, by user code where that is what shows it."""
    t = type(x)
    if r.is_tensor(x) and is_library(t.__module__):
        r.touch(x)
        if not conversion and r.domain.array(x).ndim == 0:
            x = r.item(lambda tensor: tensor.item(), x)
            t = type(x)
        elif not r.domain.has_tape(x):  # a tape shows, and it is another one in a compiled call
            return computed.text(r, rendered, x, spec, conversion)
    if t in OPAQUE and not x.seen:
        raises = t is OpaqueInt and bool(spec) and spec[-1:] != "d"
        return computed.text(r, rendered, x, spec, conversion, raises=raises)
    x = r.reveal(x)
    if t in IMMUTABLE or r.is_value(x):
        return rendered(x, spec, conversion)
    if not r.is_tensor(x) and (own := _shown_by(r, x, conversion)) is not None:
        return text_of(r, own, spec, 0)
    r.deep(x)
    return plain(r, rendered, x, spec, conversion)


def _shown_by(r: Recorder, x: Any, conversion: int) -> str | None:
    """What the user's own __format__, __str__ or __repr__ says; None where C code shows x."""
    t = type(x)
    if isinstance(x, type) or conversion == 3:
        return None
    if not conversion and (method := r.lookup(t, "__format__")) is not object.__dict__["__format__"]:
        if isinstance(method, Function):
            r.refuse(f"formats {describe(x)}")
        return None
    for name in ("__str__", "__repr__") if conversion < 2 else ("__repr__",):
        method = r.lookup(t, name)
        if isinstance(method, Function):
            r.type_of(x)
            return r.invoke(method, (x,))
        if method is not object.__dict__[name]:
            return None
    return None


def build_string(parts: tuple[str, ...]) -> str:
    """The pieces of an f-string put together."""
    return joined(parts, "")


def joined(parts: Sequence[str], sep: str) -> str:
    """sep.join(parts)"""
    r = active()
    if r is not None and any(type(p) is OpaqueText and not p.seen for p in parts):
        return computed.text(r, _join, sep, *parts)
    return sep.join(parts)


def _join(sep: str, *parts: str) -> str:
    return sep.join(parts)
