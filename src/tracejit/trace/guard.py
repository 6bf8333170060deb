"""Cells -> one straight-line Python function that says whether the world is as it was when the trace was recorded.

The function is generated text with names of our own only (o0, v1, ...); what it compares with arrives as its globals.
It returns -1, or the number of the first cell that differs; `reason` puts that cell into words.

Lifetime: what can be weakly referenced is, and the trace dies with it (so an id in a guard is never reused while the
guard is alive); what cannot be (dicts, lists, numbers, text) is held. Numbers and text are compared by type and bits,
all else by identity.
"""

from __future__ import annotations

import abc
import struct
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tracejit.trace.domain import Domain
from tracejit.trace.recorder import ABSENT, IMMUTABLE, Cell, describe, stamp_of

__all__ = ["Guard", "build", "same_value"]

# Cheapest and most often changed first: numbers and flags of objects, then globals, then classes.
_CHEAPEST_FIRST = (
    "ivar item closure grad hooks tensor list dict ivars set member type fattr function class mro abc stamp"
)
_ORDER: list[str] = [*_CHEAPEST_FIRST.split()]


@dataclass(frozen=True, slots=True)
class Row:
    """One cell, without holding what it is about: for `explain()`."""

    name: str
    was: str | None
    where: str | None
    now: Callable[[], Any] | None

    def __str__(self) -> str:
        at = f" (read at {self.where})" if self.where else ""
        if self.was is None or self.now is None:
            return f"{self.name} changed{at}"
        try:
            now = short(self.now())
        except Exception:  # the owner is gone, or no longer has such a thing: the row is only words
            now = "gone"
        return f"{self.name} was {self.was}, is now {now}{at}"


@dataclass(eq=False, slots=True)
class Guard:
    """A checker of some cells."""

    check: Callable[[], int]  # -1, or the index of the first row that differs
    rows: tuple[Row, ...]
    text: str
    held: tuple[Any, ...]  # weak references whose death ends the trace, or the objects themselves

    def reason(self, index: int) -> str:
        """What changed, in words."""
        return str(self.rows[index])


@dataclass(frozen=True, slots=True)
class Same:
    """In a snapshot: the object that has this id, which is watched."""

    id: int


def bits(x: Any) -> Any:
    """A key equal for values of the same type and bits only: 1 is not True or 1.0, 0.0 is not -0.0, nan is nan."""
    t = type(x)
    if t is float:
        return (t, struct.pack("<d", x))
    if t is complex:
        return (t, struct.pack("<2d", x.real, x.imag))
    if t is tuple:
        return (t, *map(bits, x))
    return (t, x)


def same_value(a: Any, b: Any) -> bool:
    """Whether a and b are one object, or immutable values of the same type and bits."""
    if a is b:
        return True
    t = type(a)
    if t is not type(b):
        return False
    if t in IMMUTABLE:
        return bits(a) == bits(b)
    return t is tuple and len(a) == len(b) and all(map(same_value, a, b))


def _matches(x: Any, expected: Any) -> bool:
    return id(x) == expected.id if type(expected) is Same else same_value(x, expected)


def _same_each(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return len(a) == len(b) and all(map(_matches, a, b))


def _same_items(a: Any, b: Any) -> bool:
    """Ordered (key, value) pairs."""
    return len(a) == len(b) and all(_matches(k, m) and _matches(v, n) for (k, v), (m, n) in zip(a, b))


class _Text:
    """The function being generated."""

    def __init__(self, domain: Domain, on_death: Callable[[Any], None]) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {
            "A": ABSENT,
            "same": same_value,
            "same_each": _same_each,
            "same_items": _same_items,
            "get": dict.get,
        }
        self.names |= {
            "facts": domain.facts,
            "grad_of": domain.get_grad,
            "hooks_of": domain.get_hooks,
            "stamp_of": stamp_of,
        }
        self.names |= {"token": abc.get_cache_token, "contents": contents, "items": dict.items, "length": dict.__len__}
        self.on_death = on_death
        self.refs: dict[int, tuple[Any, str, bool]] = {}  # id -> (weakref or object, name, weak)
        self.loaded: dict[int, str] = {}  # owners already in a local
        self.spaces: dict[int, str] = {}  # ... and their __dict__

    def constant(self, x: Any) -> str:
        """A name for an object that is held."""
        name = f"k{len(self.names)}"
        self.names[name] = x
        return name

    def ref(self, x: Any) -> tuple[str, bool]:
        """(name, whether it is a weak reference) standing for x."""
        found = self.refs.get(id(x))
        if found is None:
            try:
                held: Any = weakref.ref(x, self.on_death)
                weak = True
            except TypeError:
                held, weak = x, False
            found = self.refs[id(x)] = (held, self.constant(held), weak)
        return found[1], found[2]

    def snapshot(self, x: Any) -> Any:
        """x, a tuple of things or of pairs, holding only what cannot be watched."""
        if type(x) is tuple:
            return tuple(map(self.snapshot, x))
        if type(x) in IMMUTABLE or x is ABSENT:
            return x
        _, weak = self.ref(x)
        return Same(id(x)) if weak else x

    def owner(self, x: Any, k: int) -> str:
        """A local that holds x, or code that leaves with k where x is gone."""
        if id(x) in self.loaded:
            return self.loaded[id(x)]
        name, weak = self.ref(x)
        if weak:
            local = f"o{len(self.loaded)}"
            self.lines += [f"{local} = {name}()", f"if {local} is None: return {k}"]
        else:
            local = name
        self.loaded[id(x)] = local
        return local

    def differs(self, expression: str, expected: Any) -> str:
        """A condition that holds where the expression is not `expected`."""
        if expected is ABSENT:
            return f"{expression} is not A"
        if expected is None or expected is True or expected is False:
            return f"{expression} is not {expected}"
        if type(expected) in IMMUTABLE or type(expected) is tuple:
            name = self.constant(expected)
            return f"(x := {expression}) is not {name} and not same(x, {name})"
        name, weak = self.ref(expected)
        return f"id({expression}) != {id(expected)}" if weak else f"{expression} is not {name}"


def build(cells: Iterable[Cell], domain: Domain, on_death: Callable[[Any], None]) -> Guard:
    """The checker of `cells`; `on_death` is called when something they are about dies."""
    ordered = tuple(sorted(cells, key=lambda c: _ORDER.index(c.kind)))
    text = _Text(domain, on_death)
    for k, c in enumerate(ordered):
        owner = "" if c.kind == "abc" else text.owner(c.owner, k)
        text.lines.append(f"if {_DIFFERS[c.kind](text, owner, c)}: return {k}")
    source = "\n    ".join(["def check():", *text.lines, "return -1\n"])
    space: dict[str, Any] = dict(text.names)
    exec(compile(source, "<tracejit guard>", "exec"), space)
    rows = tuple(row_of(c, text) for c in ordered)
    return Guard(space["check"], rows, source, tuple(r[0] for r in text.refs.values()))


# -- for each kind of cell, the condition that it differs, given the code for its owner


def _ivar(text: _Text, o: str, c: Cell) -> str:
    space = text.spaces.get(id(c.owner))
    if space is None:
        space = text.spaces[id(c.owner)] = f"d{len(text.spaces)}"
        text.lines.append(f"{space} = {o}.__dict__")
    return text.differs(f"get({space}, {c.key!r}, A)", c.value)


def _elements(text: _Text, o: str, c: Cell) -> str:
    return f"not same_each(tuple({o}), {text.constant(text.snapshot(c.value))})" if c.value else f"len({o})"


def _items(text: _Text, o: str, c: Cell) -> str:
    if not c.value:
        return f"length({o})"
    return f"not same_items(tuple(items({o})), {text.constant(text.snapshot(c.value))})"


def _grad(text: _Text, o: str, c: Cell) -> str:
    if c.value is None:
        return f"grad_of({o}) is not None"
    return f"(x := grad_of({o})) is None or facts(x) != {text.constant(c.value)}"


def _function(text: _Text, o: str, c: Cell) -> str:
    code, defaults, keywords = c.value
    return (
        f"{o}.__code__ is not {text.constant(code)} or {o}.__defaults__ is not {text.constant(defaults)}"
        f" or not same_items(tuple(({o}.__kwdefaults__ or {{}}).items()), {text.constant(keywords)})"
    )


_DIFFERS: dict[str, Callable[[_Text, str, Cell], str]] = {
    "ivar": _ivar,
    "item": lambda text, o, c: text.differs(f"get({o}, {_key(text, c.key)}, A)", c.value),
    "class": lambda text, o, c: text.differs(f"{o}.__dict__.get({c.key!r}, A)", c.value),
    "closure": lambda text, o, c: text.differs(f"contents({o})", c.value),
    "member": lambda text, o, c: text.differs(f"getattr({o}, {c.key.__name__!r}, A)", c.value),
    "fattr": lambda text, o, c: text.differs(f"getattr({o}, {c.key!r}, A)", c.value),
    "type": lambda text, o, c: text.differs(f"type({o})", c.value),
    "tensor": lambda text, o, c: f"facts({o}) != {text.constant(c.value)}",
    "grad": _grad,
    "hooks": lambda text, o, c: f"hooks_of({o})",
    "list": _elements,
    "set": _elements,
    "dict": _items,
    "ivars": lambda text, o, c: _items(text, f"{o}.__dict__", c),
    "function": _function,
    "mro": lambda text, o, c: f"{o}.__mro__ is not {text.constant(c.value)}",
    "stamp": lambda text, o, c: f"not same(stamp_of({o}), {text.constant(c.value)})",
    "abc": lambda text, o, c: f"token() != {text.constant(c.value)}",
}


def _key(text: _Text, key: Any) -> str:
    if type(key) is str or type(key) is int:
        return repr(key)
    if type(key) in IMMUTABLE or type(key) is tuple:
        return text.constant(key)
    name, weak = text.ref(key)
    return f"{name}()" if weak else name


def contents(cell: Any) -> Any:
    """What a closure cell holds, or ABSENT."""
    try:
        return cell.cell_contents
    except ValueError:
        return ABSENT


def row_of(c: Cell, text: _Text) -> Row:
    """The words for a cell."""
    key: Any = c.key.__name__ if c.kind == "member" else c.key
    name = _WORDS[c.kind].format(owner=_owner_name(c), key=key if type(key) is str else short(key))
    if c.kind not in _READ or (c.kind == "item" and type(c.key) not in IMMUTABLE):
        return Row(name, None, c.where, None)
    ref, weak = text.ref(c.owner)
    held, read = text.names[ref], _READ[c.kind]
    return Row(name, short(c.value), c.where, lambda: read(held() if weak else held, key))


_WORDS = {
    "ivar": "attribute {key} of {owner}",
    "item": "{owner} {key}",
    "class": "{owner}.{key}",
    "closure": "a variable of an enclosing function",
    "member": "slot {key} of {owner}",
    "fattr": "attribute {key} of {owner}",
    "type": "the class of {owner}",
    "tensor": "shape, dtype, strides or requires_grad of a tensor",
    "grad": "the .grad of a tensor",
    "hooks": "the gradient hooks of a tensor",
    "list": "a list",
    "set": "a set",
    "dict": "a dict",
    "ivars": "the attributes of {owner}",
    "function": "code or defaults of {owner}",
    "mro": "the bases of {owner}",
    "stamp": "class {owner}",
    "abc": "the registrations of abstract base classes",
}


def _owner_name(c: Cell) -> str:
    if c.kind == "item":
        return "the global" if "__builtins__" in c.owner or "__spec__" in c.owner else "the entry"
    return "" if c.owner is None else describe(c.owner)


def _ivar_now(o: Any, key: Any) -> Any:
    return o.__dict__.get(key, ABSENT)


def _item_now(o: Any, key: Any) -> Any:
    return dict.get(o, key, ABSENT)


def _closure_now(o: Any, key: Any) -> Any:
    return contents(o)


def _attribute_now(o: Any, key: Any) -> Any:
    return getattr(o, key, ABSENT)


_READ: dict[str, Callable[[Any, Any], Any]] = {
    "ivar": _ivar_now,
    "item": _item_now,
    "class": _ivar_now,
    "closure": _closure_now,
    "fattr": _attribute_now,
}


def short(x: Any) -> str:
    """A value in few characters, running none of its code."""
    if type(x) in IMMUTABLE:
        text = repr(x)
        return text if len(text) < 40 else text[:37] + "..."
    if type(x) is tuple:
        return "(" + ", ".join(map(short, x[:4])) + (", ...)" if len(x) > 4 else ")")
    return "absent" if x is ABSENT else describe(x)
