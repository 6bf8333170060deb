"""Numbers as inputs of a trace: what Python computed from them, Python computes again in every call.

A number that was another one in an earlier recording (a learning rate, a step count) is handed to the recorded code as
an `Opaque`. Arithmetic on it is noted on a `Tape`; running the tape again is plain Python, so its bits, errors and
huge integers are Python's. A number enters the graph where it meets a tensor, as a parameter of rank 0. A comparison
guards its outcome; every other look at a number guards the number.
"""

from __future__ import annotations

import math
import operator
import types
import weakref
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from tracejit.errors import is_foreign
from tracejit.ir.dim import substitute
from tracejit.ir.node import Node
from tracejit.ir.symint import SymInt
from tracejit.records import dataclass

__all__ = [
    "EXACT", "FUNCTIONS", "LARGEST_COUNT", "LARGEST_STEP", "OPAQUE", "RAISING", "SAFE", "Heat", "Memory", "Numbers",
    "Opaque", "OpaqueInt", "OpaqueText", "Recipe", "Source", "Tape", "counted", "leaves", "made_of", "plain_number",
    "reader",
]  # fmt: skip

Number = int | float
LARGEST = 2**53  # an integer that is a parameter is exact in every type it may be cast to
LARGEST_COUNT = 2**50  # an integer when a loop begins that counts its turns: it stays exact for 2**30 turns ...
LARGEST_STEP = 2**10  # ... of steps like this, some of them in each turn


class Opaque(float):
    """A float that recorded code may move about freely; looking at it goes through `Recorder.reveal`.

    It may be kept in locals and fresh containers, passed to Python functions and returned (then it is an output).
    `node` is its value in the graph, where it was taken from a tensor; or `recipe` says what it is made of, which is
    known when the graph has run; else `ref` is its place on the tape.
    """

    __slots__ = ("node", "recipe", "ref", "seen")
    node: Node | None
    recipe: Recipe | None
    ref: int
    seen: bool


class OpaqueInt(int):
    """The same for an int; on the tape, or what counts the turns of a loop, with a node of type i64."""

    node: Node | None
    recipe: Recipe | None
    ref: int
    seen: bool


class OpaqueText(str):
    """Text made of opaque numbers and tensors; always a recipe."""

    node: Node | None
    recipe: Recipe | None
    ref: int
    seen: bool


@dataclass(frozen=True, slots=True)
class Recipe:
    """f of numbers, text and tensors, some of them opaque: plain Python that runs when the graph has run."""

    f: Callable[..., Any]
    operands: tuple[Any, ...]
    raises: bool  # for some operands


OPAQUE: frozenset[type] = frozenset((Opaque, OpaqueInt, OpaqueText, SymInt))
# What the extents of a call do by themselves, noting what they are asked.
_COMPARED = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)
_SUMS = (operator.add, operator.sub, operator.mul, operator.iadd, operator.isub, operator.imul)
_OTHERS = (operator.neg, operator.pos, operator.mod, bool, int, abs, min, max)
EXACT: frozenset[Any] = frozenset((*_COMPARED, *_SUMS, *_OTHERS))
# Pure functions of numbers, beside the operators.
FUNCTIONS: frozenset[Any] = frozenset(
    [
        *(abs, round, min, max, pow),
        *(math.acos, math.asin, math.atan, math.atan2, math.ceil, math.cos, math.cosh, math.exp, math.expm1, math.fabs),
        *(math.floor, math.fmod, math.isfinite, math.isinf, math.isnan, math.log, math.log10, math.log1p, math.log2),
        *(math.pow, math.sin, math.sinh, math.sqrt, math.tan, math.tanh, math.trunc, math.copysign),
    ]
)


# Functions of floats that give a float whatever the floats are.
_SAFE = (operator.add, operator.sub, operator.mul, operator.iadd, operator.isub, operator.imul)
SAFE: frozenset[Any] = frozenset((*_SAFE, operator.neg, operator.pos, abs, float, math.fabs, math.copysign))
# ... that give a float or raise.
RAISING: frozenset[Any] = frozenset(
    [
        *(operator.truediv, operator.itruediv, math.exp, math.expm1, math.log, math.log10, math.log1p, math.log2),
        *(math.pow, math.sqrt, math.sin, math.cos, math.tan, math.sinh, math.tanh, math.atan, math.atan2),
    ]
)


def plain_number(x: Any) -> Any:
    """x, as the float, int or text it is where it is an opaque one."""
    t = type(x)
    if t is Opaque:
        return float.__float__(x)
    return int.__int__(x) if t is OpaqueInt or t is SymInt else str.__str__(x) if t is OpaqueText else x


def made_of(value: Any, recipe: Recipe) -> Any:
    """An opaque float or text that is `value` now."""
    out = OpaqueText(value) if type(value) is str else Opaque(value)
    out.node, out.recipe, out.ref, out.seen = None, recipe, -1, False
    return out


def counted(value: Any, node: Node) -> Any:
    """A number that the graph computes: `value` now."""
    out = OpaqueInt(value) if isinstance(value, int) else Opaque(value)
    out.node, out.recipe, out.ref, out.seen = node, None, -1, False
    return out


def leaves(x: Any) -> list[Any]:
    """What opaque x is made of in the end: opaque numbers without a recipe, tensors, constants."""
    found: list[Any] = []
    stack, seen = [x], set[int]()
    while stack:
        y = stack.pop()
        if id(y) not in seen:
            seen.add(id(y))
            if type(y) in OPAQUE and y.recipe is not None:
                stack.extend(y.recipe.operands)
            else:
                found.append(y)
    return found


@dataclass(frozen=True, slots=True)
class Source:
    """A number outside: an argument (key: its position or name), or entry `key` of `owner` as for a cell."""

    kind: str
    owner: Any
    key: Any


@dataclass(frozen=True, slots=True)
class Step:
    """f of numbers: each operand is (True, place on the tape) or (False, the number)."""

    f: Callable[..., Any]
    operands: tuple[tuple[bool, Any], ...]


@dataclass(slots=True)
class Heat:
    """What is known of a loop that asks the data in each turn: whether it is worth a loop of the graph, and what came
    of that."""

    seen: set[int] = field(default_factory=set[int])  # numbers of turns
    numbers: set[str] = field(default_factory=set[str])  # variables that count
    hot: bool = False
    refusal: str = ""
    rolled: bool = False
    where: str | None = None

    def met(self, turns: int) -> None:
        """It took so many turns."""
        if len(self.seen) < _COUNTS:
            self.seen.add(turns)
        many = turns >= _MANY or (len(self.seen) >= _COUNTS and max(self.seen) >= _FEW)
        self.hot = self.hot or (many and not self.refusal)

    def refuse(self, why: str) -> bool:
        """It stays as it is recorded, turn after turn. True: that is news."""
        self.hot, self.refusal = False, self.refusal or why
        return True


_MANY, _FEW, _COUNTS = 8, 4, 2  # turns that make a loop hot; or so few, where the data has asked for different numbers


@dataclass(slots=True)
class Memory:
    """What a compiled function remembers of the numbers it read: those that changed are inputs from then on."""

    last: dict[Any, Any] = field(default_factory=dict[Any, Any])
    wide: set[Any] = field(default_factory=set[Any])
    exact: set[Any] = field(default_factory=set[Any])  # looked at: never again inputs
    tensors: dict[Any, Any] = field(default_factory=dict[Any, Any])  # place -> weak references to what was there last
    moving: set[Any] = field(default_factory=set[Any])  # where another tensor was found: these are inputs, too
    loops: dict[Any, Heat] = field(default_factory=dict[Any, Heat])  # by the place in the code

    def widens(self, key: Any, value: Number, bits: Any) -> bool:
        """Whether number `key`, now `value`, is an input; remembers it."""
        self._trim()
        if key in self.exact:
            return False
        if key not in self.wide:
            if len(self.last) > 4096:
                self.last.clear()
            before = self.last.setdefault(key, bits)
            if before == bits or before[0] is not bits[0]:
                self.last[key] = bits
                return False
            self.wide.add(key)
        return True

    def moves(self, key: Any, tensors: tuple[Any, ...]) -> bool:
        """Whether the tensors in a place, one or a tuple of them, are inputs, whichever they are; remembers them."""
        self._trim()
        if key in self.exact:
            return False
        if key not in self.moving:
            if len(self.tensors) > 4096:
                self.tensors.clear()
            before = self.tensors.get(key, ())
            if len(before) != len(tensors) or all(b() is t for b, t in zip(before, tensors)):
                self.tensors[key] = tuple(map(weakref.ref, tensors))
                return False
            self.moving.add(key)
        return True

    def _trim(self) -> None:
        """Forget everything where there is much: of places of objects that are gone by now."""
        if len(self.wide) + len(self.exact) + len(self.moving) > 4096:
            for places in (self.wide, self.exact, self.moving):
                places.clear()


@dataclass(slots=True)
class Tape:
    """The numbers of an open recording."""

    entries: list[Source | Step] = field(default_factory=list[Source | Step])
    values: list[Any] = field(default_factory=list[Any])
    guards: dict[int, Any] = field(default_factory=dict[int, Any])  # place -> what it must be, type and bits
    known: dict[Any, int] = field(default_factory=dict[Any, int])

    def put(self, key: Any, entry: Source | Step, value: Any) -> int:
        """The place of an entry; one for each key."""
        at = self.known.get(key)
        if at is None:
            at = self.known[key] = len(self.entries)
            self.entries.append(entry)
            self.values.append(value)
        return at

    def opaque(self, at: int) -> Any:
        """The number at a place, for recorded code to carry."""
        value = self.values[at]
        out = Opaque(value) if type(value) is float else OpaqueInt(value)
        out.node, out.recipe, out.ref, out.seen = None, None, at, False
        return out

    def signature(self, name: Callable[[Any], int]) -> str:
        """Text equal for two recordings that did the same with the same numbers; `name` tells objects apart."""
        words = [
            (e.kind, name(e.owner), e.key) if isinstance(e, Source) else (e.f.__qualname__, e.operands)
            for e in self.entries
        ]
        return repr((words, [type(v) for v in self.values], self.guards))


@dataclass(frozen=True, eq=False, slots=True)
class Numbers:
    """A closed tape."""

    reads: tuple[Callable[[Any], Any] | None, ...]  # by place: how a call finds the number; None for steps
    steps: tuple[Step | None, ...]
    types: tuple[type, ...]
    guards: tuple[tuple[int, Any, Any], ...]  # place, value, its key
    params: tuple[int, ...]  # places that are parameters of the graph
    arguments: Mapping[int, Any]  # places that are arguments -> position or name
    extents: frozenset[int]  # places that are extents

    def run(self, call: Any, bits: Callable[[Any], Any]) -> list[Any] | str:
        """Every number of the tape in this call; or why the trace does not fit."""
        found: list[Any] = []
        for read, step, t in zip(self.reads, self.steps, self.types):
            if read is not None:
                v = read(call)
            else:
                assert step is not None
                try:
                    v = step.f(*[found[x] if is_ref else x for is_ref, x in step.operands])
                except Exception as e:  # plain Python will raise it again, where the user expects it
                    if is_foreign(e) and not isinstance(step.f, types.FunctionType):
                        raise
                    return f"{step.f.__name__} of numbers raises {type(e).__name__}"
            if type(v) is not t:
                return f"a number was of type {t.__name__}, is now of type {type(v).__name__}"
            found.append(v)
        for at, value, key in self.guards:
            if bits(found[at]) != key:
                return f"a number that Python looked at was {value}, is now {found[at]}"
        for at in self.params:
            if type(found[at]) is int and not -LARGEST <= found[at] <= LARGEST:
                return f"the integer {found[at]} is too large to be an input"
        return found


def close(tape: Tape, params: tuple[int, ...], bits: Any, watch: Callable[[Any], Any]) -> Numbers:
    """The tape as a trace keeps it, holding owners weakly where possible (`watch`)."""
    return Numbers(
        tuple(reader(e, watch) if isinstance(e, Source) else None for e in tape.entries),
        tuple(e if isinstance(e, Step) else None for e in tape.entries),
        tuple(map(type, tape.values)),
        tuple((at, v, bits(v)) for at, v in tape.guards.items()),
        params,
        {at: e.key for at, e in enumerate(tape.entries) if isinstance(e, Source) and e.kind == "argument"},
        frozenset(at for at, e in enumerate(tape.entries) if isinstance(e, Source) and e.kind == "extent"),
    )


def reader(source: Source, watch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """What finds the number, or tensor, of a source in a call; `watch` holds its owner."""
    key = source.key
    if source.kind == "argument":
        return lambda call: call.numbers[key]
    if source.kind == "extent":
        return lambda call: substitute(key, call.symbols)
    owner = watch(source.owner)
    read = _READ[source.kind]
    return lambda call: read(owner(), key)


def _entry_of(o: Any, key: Any) -> Any:
    return None if o is None else o.__dict__.get(key)


def _item_of(d: Any, key: Any) -> Any:
    return dict.get(d, key)


def _contents_of(cell: Any, key: Any) -> Any:
    try:
        return cell.cell_contents
    except (AttributeError, ValueError):  # the cell is gone, or empty
        return None


def _length_of(x: Any, key: Any) -> Any:
    return None if x is None else len(x)


def _items_of(x: Any, key: Any) -> Any:
    return None if x is None else tuple(x)


def _slot_of(o: Any, key: Any) -> Any:
    return getattr(o, key, None)


def count_state(count: Any) -> tuple[Any, Any]:
    """(what an itertools.count gives next, its step)."""
    parts = repr(count)[6:-1].split(", ")  # the only way to ask, on every version, that leaves it as it is
    numbers = [float(p) if any(c in p for c in ".en") else int(p) for p in parts]
    return numbers[0], numbers[1] if len(numbers) > 1 else 1


def _next_of(count: Any, key: Any) -> Any:
    return None if count is None else count_state(count)[0]


_READ: dict[str, Callable[[Any, Any], Any]] = {
    "ivar": _entry_of,
    "class": _entry_of,
    "item": _item_of,
    "closure": _contents_of,
    "len": _length_of,
    "list": _items_of,
    "deque": _items_of,
    "member": _slot_of,
    "count": _next_of,
}
