"""Iteration, unpacking and text: what C code pulls out of an object is recorded before it is pulled."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

from tracejit.trace.attributes import Function, is_base, old_iterator, plain
from tracejit.trace.recorder import FRESH_ITERATORS, IMMUTABLE, Recorder, active, describe


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
    if t in (list, set, frozenset) or (isinstance(x, dict) and is_base(t, dict, "__iter__")):
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
