"""The arguments of a call as a key: what selects a trace before any guard is looked at.

Tensors count by their facts (type, dtype, shape, strides, requires_grad), numbers and text by type and bits, builtin
containers by structure and by which of them are the same object; everything else by identity.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from tracejit.ir.dim import GENERAL, Extent, Shape, Sym
from tracejit.records import dataclass
from tracejit.trace.domain import Domain
from tracejit.trace.objects import IMMUTABLE, bits, is_namedtuple

__all__ = ["Call", "Family", "Shapes", "describe_key", "flatten", "shapeless", "with_symbols"]


@dataclass(slots=True)
class Call:
    """One call's arguments, sorted out."""

    key: tuple[Any, ...] = ()
    family: tuple[Any, ...] = ()  # the part of it without numbers
    tensors: list[Any] = field(default_factory=list[Any])  # distinct tensors among the arguments, in order
    containers: list[Any] = field(default_factory=list[Any])  # argument containers, whose structure is in the key
    numbers: dict[Any, Any] = field(default_factory=dict[Any, Any])  # floats and ints, by position or name
    found: list[Any] = field(default_factory=list[Any])  # the numbers of the trace whose guards last held ...
    slots: list[Any] = field(default_factory=list[Any])  # ... and the tensors in its slots
    objects: list[Any] = field(default_factory=list[Any])  # what is in the key by identity
    symbols: Mapping[str, int] = field(default_factory=dict[str, int])  # extents that are inputs, by symbol
    extents: Any = None  # the `Shapes` they are from
    shapes: tuple[Shape, ...] = ()  # of its tensors, with these symbols; empty where there are none
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])


def flatten(domain: Domain, args: tuple[Any, ...], kwargs: Mapping[str, Any], extra: tuple[Any, ...]) -> Call:
    """The key of f(*args, **kwargs); `extra` (modes) is part of it."""
    call, seen = Call(args=args, kwargs=kwargs), dict[int, int]()
    positional = tuple([_argument(i, x, domain, call, seen) for i, x in enumerate(args)])
    named = tuple([(k, _argument(k, v, domain, call, seen)) for k, v in kwargs.items()])
    call.family = call.key = (extra, positional, named)
    if call.numbers:
        call.key = (*call.family, *[(k, bits(v)) for k, v in call.numbers.items()])
    return call


@dataclass(slots=True)
class Family:
    """The calls that differ in numbers only."""

    first: dict[Any, Any]
    wide: set[Any] = field(default_factory=set[Any])  # arguments that changed: inputs, whatever their value
    exact: set[Any] = field(default_factory=set[Any])  # ... that were looked at all the same: part of the key

    def key(self, call: Call) -> tuple[Any, ...]:
        """The key of a call with what is not an input."""
        return (*call.family, *[(k, bits(v)) for k, v in call.numbers.items() if k not in self.wide])

    def widen(self, call: Call) -> None:
        """Make inputs of the arguments that differ from the first call's."""
        for k, v in call.numbers.items():
            if k not in self.exact and bits(self.first[k]) != bits(v):
                self.wide.add(k)

    def narrow(self, looked: Iterable[Any]) -> None:
        """These arguments were looked at."""
        self.wide.difference_update(looked)
        self.exact.update(looked)


class Name(str):
    """A symbol in a key."""

    __slots__ = ()
    __repr__ = str.__str__


@dataclass(slots=True)
class Shapes:
    """The calls that differ in extents only: which of them are symbols.

    An extent that was another one before is a symbol; extents that were equal in every call share one.
    """

    seen: list[tuple[tuple[int, ...], ...]] = field(default_factory=list[tuple[tuple[int, ...], ...]])
    exact: dict[tuple[int, int], str] = field(default_factory=dict[tuple[int, int], str])  # axis -> why it is no symbol
    symbols: dict[tuple[int, int], str] = field(default_factory=dict[tuple[int, int], str])

    def widen(self, shapes: tuple[tuple[int, ...], ...]) -> None:
        """Take note of the shapes of a call."""
        if shapes in self.seen or len(self.seen) >= 16:
            return
        if self.seen and any(n < GENERAL and n != m for a, b in zip(shapes, self.seen[0]) for n, m in zip(a, b)):
            return  # 0 and 1 are calls of their own
        self.seen.append(shapes)
        names: dict[tuple[int, ...], str] = {}
        for k, shape in enumerate(shapes):
            for axis in range(len(shape)):
                values = tuple(s[k][axis] for s in self.seen)
                if (k, axis) not in self.exact and len(set(values)) > 1:
                    self.symbols[k, axis] = names.setdefault(values, f"n{k}_{axis}")

    def narrow(self, names: Iterable[str], why: str) -> None:
        """These symbols are not worth having."""
        for at in [at for at, name in self.symbols.items() if name in set(names)]:
            del self.symbols[at]
            self.exact[at] = why

    def values(self, shapes: tuple[tuple[int, ...], ...]) -> dict[str, int] | None:
        """The values of the symbols; None where there are none, or some are 0 or 1, or not what they were."""
        out: dict[str, int] = {}
        for (k, axis), name in self.symbols.items():
            if out.setdefault(name, n := shapes[k][axis]) != n or n < GENERAL:
                return None
        return out or None

    def of(self, k: int, shape: Sequence[int]) -> tuple[Extent, ...]:
        """The shape of tensor k with symbols."""
        return tuple(Sym(self.symbols[k, a], n) if (k, a) in self.symbols else n for a, n in enumerate(shape))


def shapeless(part: Any) -> Any:
    """A key without the extents of its tensors; those that carry a gradient or do not lie row by row keep them."""
    return _reshaped(part, lambda k, shape: (len(shape),))


def with_symbols(part: Any, shapes: Shapes) -> Any:
    """A key with symbols for extents."""
    return _reshaped(part, lambda k, shape: tuple(Name(d) if isinstance(d, Sym) else d for d in shapes.of(k, shape)))


def _reshaped(part: Any, shape: Callable[[int, tuple[int, ...]], tuple[Any, ...]]) -> Any:
    if type(part) is not tuple:
        return part
    match part:
        case ("T", k, (cls, dtype, extents, strides, *rest), None, hooks) if strides == _row_major(extents, dtype):
            return ("T", k, (cls, dtype, shape(k, extents), None, *rest), None, hooks)
        case ("T", *_):
            return part
        case _:
            return tuple([_reshaped(p, shape) for p in part])


def _row_major(shape: Sequence[int], dtype: Any) -> tuple[int, ...]:
    out: list[int] = []
    step = dtype.itemsize
    for n in reversed(shape):
        out.append(step)
        step *= n
    return tuple(reversed(out))


def _argument(at: int | str, x: Any, domain: Domain, call: Call, seen: dict[int, int]) -> Any:
    if type(x) is float or type(x) is int:
        call.numbers[at] = x
        return ("N", type(x))
    return _part(x, domain, call, seen)


def _part(x: Any, domain: Domain, call: Call, seen: dict[int, int]) -> Any:
    """The part of a key that stands for x. Not a closure: its cycle would keep the arguments until a collection."""
    t = type(x)
    if isinstance(x, domain.tensor):
        k = seen.get(id(x))
        if k is not None:
            return ("T", k)
        k = seen[id(x)] = len(seen)
        call.tensors.append(x)
        g = domain.get_grad(x)
        return ("T", k, domain.facts(x), None if g is None else domain.facts(g), bool(domain.get_hooks(x)))
    if t in IMMUTABLE:
        return bits(x) if t is float or t is complex else (t, x)
    if t is list or t is tuple or t is dict or is_namedtuple(t):
        k = seen.get(id(x))
        if k is not None:
            return ("C", k)
        seen[id(x)] = len(seen)
        call.containers.append(x)
        if t is dict:
            return (t, *[(_part(k, domain, call, seen), _part(v, domain, call, seen)) for k, v in x.items()])
        return (t, *[_part(v, domain, call, seen) for v in x])
    if isinstance(x, domain.constants):
        return (t, x)
    call.objects.append(x)
    return ("O", t, id(x))


def describe_key(key: tuple[Any, ...]) -> str:
    """The arguments of a key in words: `f32[2, 3], 1.5, dict of 2`."""

    def words(p: Any) -> str:
        match p:
            case ("T", _, facts, _, _):
                return f"{facts[1]}{list(facts[2])}" + (" (grad)" if facts[4] else "")
            case ("T" | "C", k):
                return f"again #{k}"
            case ("N", t):
                return f"{t.__name__}"
            case ("O", t, _):
                return f"one {t.__qualname__}"
            case (t, v) if t in IMMUTABLE and t is not float:
                return repr(v)
            case (t, *items):
                return f"{t.__name__} of {len(items)}" if t is not float else "a float"
            case _:
                return "?"

    _, args, kwargs, *numbers = key
    fixed = dict(numbers)

    def argument(k: Any, p: Any) -> str:
        if k not in fixed:
            return f"any {words(p)}" if p[0] == "N" else words(p)
        t, v = fixed[k]
        return repr(struct.unpack("<d", v)[0] if t is float else v)

    return ", ".join([*(argument(i, p) for i, p in enumerate(args)), *(f"{k}={argument(k, v)}" for k, v in kwargs)])
