"""Cells -> a checker that says whether the world is as it was when the trace was recorded.

What a cell means is a condition in Python: generated text with names of our own only (o0, v1, ...), what it compares
with arrives as its globals. A checker returns -1, or the number of the first cell that differs; `reason` puts that into
words. Running that text is exact and slow (0.3 us a cell), so once it has said yes, words of memory stand for it
(runtime/guards.py): while none of them has moved, the answer is still yes. A word that has moved is no miss yet: the
cells behind it are asked in Python, and where they hold the words are read anew. Words that move all the time, and
facts that no word tells, stay with Python.

No address is followed unless what lies there is alive: owners are held, or the first row says that none has died;
everything further is reached through pointers of theirs that earlier rows compared or loaded.

Lifetime: what can be weakly referenced is, and the trace dies with it (so an id in a guard is never reused while the
guard is alive); what cannot be (dicts, lists, numbers, text) is held. Numbers and text are compared by type and bits,
all else by identity.
"""

from __future__ import annotations

import abc
import ctypes
import functools
import marshal
import sys
import types
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np

from tracejit.records import dataclass
from tracejit.runtime import guards, store
from tracejit.runtime.guards import DROP, Chunk, Table
from tracejit.trace.causes import Cause, advice
from tracejit.trace.domain import Anatomy, Domain
from tracejit.trace.objects import ABSENT, IMMUTABLE, bits, describe, items_of, stamp_of
from tracejit.trace.recorder import Cell
from tracejit.trace.scalars import count_state

__all__ = ["Guard", "Row", "build", "same_value"]

# Cheapest and most often changed first: numbers and flags of objects, then globals, then classes.
_CHEAPEST_FIRST = """
    ivar item closure grad hooks tensor len count has list dict ivars set deque bytes member type fattr function class
    mro abc stamp
"""
_ORDER: list[str] = [*_CHEAPEST_FIRST.split()]
_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE: classes whose contents can change
_LONG = 4096  # characters of a checker worth keeping
_MOVES = 8  # times that words may move for nothing before their cells are left to Python


class Row(NamedTuple):
    """One cell, without holding what it is about: for `explain()`. Its words are found when they are asked for."""

    kind: str
    of: str  # whose fact it is
    key: Any  # immutable, or words
    value: Any  # what it was: immutable and no text, or words
    where: str | None
    owner: Any  # the object, or a weak reference to it; None where its value cannot be shown

    @property
    def name(self) -> str:
        """The fact."""
        return _WORDS[self.kind].format(owner=self.of, key=self.key if type(self.key) is str else short(self.key))

    @property
    def was(self) -> str | None:
        """What it was, if that can be shown."""
        if self.owner is None:
            return None
        return self.value if type(self.value) is str else short(self.value)

    @property
    def advice(self) -> str:
        """The edit that keeps it as it was."""
        return advice(self.kind, None if self.owner is None else self.value)

    @property
    def words(self) -> str:
        """The guard itself."""
        what = f"{self.name} is {self.was}" if self.was is not None else f"{self.name} is as it was"
        return what + (f", read at {self.where}" if self.where else "")

    def __str__(self) -> str:
        at = f" (read at {self.where})" if self.where else ""
        if self.was is None:
            return f"{self.name} changed{at}"
        try:
            now = short(_READ[self.kind](self.owner() if type(self.owner) is weakref.ref else self.owner, self.key))
        except Exception:  # the owner is gone, or no longer has such a thing: the row is only words
            now = "gone"
        return f"{self.name} was {self.was}, is now {now}{at}"


@dataclass(eq=False, slots=True)
class Guard:
    """A checker of some cells."""

    check: Callable[[], int]  # -1, or the index of a row that differs: as `python`, only faster
    python: Callable[[], int]
    rows: tuple[Row, ...]
    held: tuple[Any, ...]  # weak references whose death ends the trace, or the objects themselves
    record: ctypes.Array[ctypes.c_int64]  # for native code: ready, `Table.place`, a function or 0
    failed: Counter[int] = field(default_factory=Counter[int])  # rows that differed, how often

    def reason(self, index: int) -> Cause:
        """What changed, in words; counted."""
        self.failed[index] += 1
        row = self.rows[index]
        return Cause(str(row), row.advice)


@dataclass(frozen=True, slots=True)
class Same:
    """In a snapshot: the object that has this id, which is watched."""

    id: int


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
    if type(expected) is Same:
        return id(x) == expected.id
    if type(expected) is tuple:
        return type(x) is tuple and _same_each(x, expected)
    return same_value(x, expected)


def _same_each(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return len(a) == len(b) and all(map(_matches, a, b))


def _same_items(a: Any, b: Any) -> bool:
    """Ordered (key, value) pairs."""
    return len(a) == len(b) and all(_matches(k, m) and _matches(v, n) for (k, v), (m, n) in zip(a, b))


@dataclass(frozen=True, slots=True)
class Piece:
    """One cell in the generated text: the locals it uses, and the condition that it differs."""

    locals: tuple[str, ...]
    differs: str


class _Text:
    """The text being generated, and what its names stand for."""

    def __init__(self, domain: Domain, on_death: Callable[[Any], object]) -> None:
        self.pieces: list[Piece] = []
        self.used: list[str] = []  # locals of the piece being written
        self.locals: dict[str, list[str]] = {}  # the lines that set a local; they leave with @
        self.functions: dict[tuple[int, ...], Callable[[], int]] = {}
        self.names: dict[str, Any] = {
            "A": ABSENT,
            "same": same_value,
            "same_each": _same_each,
            "each_of": list.__iter__,
            "same_items": _same_items,
            "get": dict.get,
            "count_state": count_state,
        }
        self.names |= {
            "facts": domain.facts,
            "grad_of": domain.get_grad,
            "hooks_of": domain.get_hooks,
            "stamp_of": stamp_of,
        }
        self.names |= {"token": abc.get_cache_token, "contents": contents, "items": items_of, "length": dict.__len__}
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

    def owner(self, x: Any) -> str:
        """A local that holds x, set by code that leaves where x is gone."""
        local = self.loaded.get(id(x))
        if local is None:
            name, weak = self.ref(x)
            local = self.loaded[id(x)] = f"o{len(self.loaded)}" if weak else name
            if weak:
                self.locals[local] = [f"{local} = {name}()", f"if {local} is None: return @"]
        if local in self.locals:
            self.used.append(local)
        return local

    def space(self, x: Any, owner: str) -> str:
        """A local that holds x.__dict__."""
        local = self.spaces.get(id(x))
        if local is None:
            local = self.spaces[id(x)] = f"d{len(self.spaces)}"
            self.locals[local] = [f"{local} = {owner}.__dict__"]
        self.used.append(local)
        return local

    def add(self, c: Cell) -> None:
        """Write the piece of a cell."""
        self.used = []
        owner = "" if c.kind == "abc" else self.owner(c.owner)
        differs = _DIFFERS[c.kind](self, owner, c)
        self.pieces.append(Piece(tuple(self.used), differs))

    def source(self, cells: Iterable[int]) -> str:
        """The text of a function that checks some cells."""
        lines, done = ["def check():"], set[str]()
        for k in cells:
            for local in self.pieces[k].locals:
                if local not in done:
                    done.add(local)
                    lines += [line.replace("@", str(k)) for line in self.locals[local]]
            lines.append(f"if {self.pieces[k].differs}: return {k}")
        return "\n    ".join([*lines, "return -1\n"])

    def function(self, cells: tuple[int, ...]) -> Callable[[], int]:
        """A function that checks some cells."""
        found = self.functions.get(cells)
        if found is None:
            space = dict(self.names)
            exec(_code(self.source(cells)), space)
            found = self.functions[cells] = space["check"]
        return found

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
        return f"id({expression}) != {self.constant(id(expected))}" if weak else f"{expression} is not {name}"


def _code(text: str) -> types.CodeType:
    """The code of a checker. Long ones are kept, for they read the same in every process and take 30 us a line."""
    key = f"guard|{sys.version}|{sha256(text.encode()).hexdigest()}" if len(text) > _LONG else ""
    data = store.get(key) if key else None
    if data is not None:
        try:
            return marshal.loads(data)
        except (EOFError, ValueError, TypeError):  # written by something else
            pass
    code = compile(text, "<tracejit guard>", "exec")
    if key:
        store.put(key, marshal.dumps(code))
    return code


def build(cells: Iterable[Cell], domain: Domain, on_death: Callable[[Any], None]) -> Guard:
    """The checker of `cells`; `on_death` is called when something they are about dies."""
    ordered = tuple(sorted(cells, key=lambda c: _ORDER.index(c.kind)))
    layout, walk = guards.layout(), guards.first_difference()
    is_native = walk is not None and layout.type is not None and layout.referent is not None
    deaths = guards.Deaths(on_death) if is_native else None
    text = _Text(domain, on_death if deaths is None else deaths.of_owner)
    for c in ordered:
        text.add(c)
    rows = tuple(row_of(c, text) for c in ordered)
    everything = tuple(range(len(ordered)))
    python = text.function(everything)
    if deaths is None or walk is None:
        check, record = python, (ctypes.c_int64 * 6)(1, 0, 0, 0, 0, id(python))
    else:
        record = (ctypes.c_int64 * 6)()
        check = Checker(text, python, walk, deaths, groups_of(ordered, text, domain, deaths), record).check
    return Guard(check, python, rows, tuple(r[0] for r in text.refs.values()), record)


# -- words of memory that stand for cells

# (owner, what to keep alive) -> chunks of rows that are true now and no longer when the cell is not what it is now.
# Rows go from left to right, plain ones first: none reads an address that those before it have not proved.
Reader = Callable[[Any, list[Any]], Sequence[Chunk] | None]


@dataclass(eq=False, slots=True)
class Group:
    """The cells of one owner: their words are read, compared and given up together."""

    cells: tuple[int, ...]
    owner: Any  # the object, or a weak reference to it
    weak: bool
    readers: tuple[Reader | None, ...]  # for each cell; None where only Python can tell
    moves: int = 0
    chunks: tuple[Chunk, ...] = ()
    left: tuple[int, ...] = ()  # the cells that Python must check
    kept: tuple[Any, ...] = ()  # objects whose addresses are in the chunks

    def read(self) -> tuple[tuple[Chunk, ...], tuple[int, ...], tuple[Any, ...]]:
        """(chunks, left, kept) for the world as it is."""
        owner = self.owner() if self.weak else self.owner
        if owner is None or self.moves > _MOVES:
            return (), self.cells, ()
        kept, left = list[Any](), list[int]()
        chunks: dict[Chunk, None] = {}  # cells share words
        by_reader: dict[Reader, Sequence[Chunk] | None] = {}
        for k, reader in zip(self.cells, self.readers):
            if reader is not None and reader not in by_reader:
                by_reader[reader] = reader(owner, kept)
            found = None if reader is None else by_reader[reader]
            if found is None:
                left.append(k)
            else:
                chunks |= dict.fromkeys(found)
        return tuple(chunks), tuple(left), tuple(kept)


@dataclass(eq=False)
class Checker:
    """A guard that asks Python only where words have moved."""

    text: _Text
    python: Callable[[], int]  # all cells
    walk: Callable[[int, int, int, int], int]
    deaths: guards.Deaths  # of owners, and of what their words stand for
    groups: tuple[Group, ...]
    record: ctypes.Array[ctypes.c_int64]
    laid: tuple[Table, Callable[[], int] | None] | None = field(default=None)  # the words, and the cells beside them
    lives: tuple[Sequence[Chunk], Any] = field(default=((), None))  # what the first rows say, and what it needs

    def check(self) -> int:
        """-1, or the index of a cell that differs."""
        if self.laid is None:
            return self.begin()
        table, rest = self.laid
        at = self.walk(*table.place)
        if at >= 0:
            return self.moved(table, at)
        return -1 if rest is None else rest()

    def begin(self) -> int:
        """Ask Python about everything; from its first yes on, words stand for it."""
        if (row := self.python()) >= 0:
            return row
        me = weakref.ref(self)  # cleared where this is garbage, and its own weak references would tell nobody
        lives = _all([self.deaths.chunk(), guards.alive_chunk(me)]) or ()
        found = [g.read() for g in self.groups]
        if (row := self.python()) >= 0:  # again: what changed before the words were read shows now, later it moves them
            return row
        for g, (chunks, left, kept) in zip(self.groups, found):
            g.chunks, g.left, g.kept = chunks, left, kept
        self.lives = lives, me
        self.lay()
        return -1

    def lay(self) -> None:
        """Make the table anew from the groups."""
        lives, me = self.lives
        table = Table([lives, *(g.chunks for g in self.groups)], [me, *(g.kept for g in self.groups)])
        left = tuple(sorted(k for g in self.groups for k in g.left))
        rest = self.text.function(left) if left else None
        self.record[0] = 0  # native code must not read half of it
        self.laid = table, rest
        self.record[1:] = [*table.place, 0 if rest is None else id(rest)]
        self.record[0] = 1

    def moved(self, table: Table, at: int) -> int:
        """`check`, given that row `at` of the table differs from memory."""
        for _ in range(2 * len(self.groups)):
            k = table.owner[at]
            if k == 0:  # something has died
                return self.begin()
            g = self.groups[k - 1]
            ask = self.text.function(g.cells)
            if (row := ask()) >= 0:
                return row
            g.moves += 1
            chunks, left, kept = g.read()
            if (row := ask()) >= 0:  # again, as in `begin`
                return row
            same_left, g.chunks, g.left, before, g.kept = left == g.left, chunks, left, g.kept, kept
            if not (same_left and table.replace(k, chunks, kept)):
                self.lay()
            del before  # its addresses were in the table until now
            assert self.laid is not None
            table, rest = self.laid
            at = self.walk(*table.place)
            if at < 0:
                return -1 if rest is None else rest()
        return self.python()  # the world moves faster than it can be read


def groups_of(cells: Sequence[Cell], text: _Text, domain: Domain, deaths: guards.Deaths) -> tuple[Group, ...]:
    """The cells by owner, in order; those of a `__dict__` are with its object's, for they share words."""
    objects = {id(c.owner): c.owner for c in cells if c.kind in ("ivar", "ivars")}
    home = {id(space): id(o) for o in objects.values() if type(space := o.__dict__) is dict}
    by_owner: dict[int, list[int]] = {}
    for k, c in enumerate(cells):
        by_owner.setdefault(home.get(id(c.owner), id(c.owner)), []).append(k)
    groups: list[Group] = []
    for of, members in by_owner.items():
        owner = objects.get(of, cells[members[0]].owner)
        name, weak = text.ref(owner)
        readers = tuple(_reader(cells[k], domain, deaths, owner) for k in members)
        groups.append(Group(tuple(members), text.names[name], weak, readers))
    return tuple(groups)


def _reader(c: Cell, domain: Domain, deaths: guards.Deaths, owner: Any) -> Reader | None:
    make = _READER.get(c.kind)
    read = None if make is None else make(c, domain, deaths)
    if read is None or c.owner is owner:
        return read
    space = c.owner  # a dict: the text holds it too
    return functools.partial(_elsewhere, read, space)


def _elsewhere(read: Reader, x: Any, o: Any, kept: list[Any]) -> Sequence[Chunk] | None:
    return read(x, kept)


def _keep(x: Any, kept: list[Any]) -> int:
    """The address of x. Numbers, text and tuples are kept, for they count by their bits: x need not be the object that
    was recorded. All else counts by identity, so it is, and is watched or held already."""
    if type(x) in IMMUTABLE or type(x) is tuple:
        kept.append(x)
    return id(x)


def _always(read: Reader) -> Callable[[Cell, Domain, guards.Deaths], Reader]:
    """The reader of all cells of a kind."""
    return lambda c, domain, deaths: read


def _read_namespace(o: Any, kept: list[Any]) -> Sequence[Chunk] | None:
    return guards.namespace_chunks(o)


def _read_dict(o: Any, kept: list[Any]) -> Sequence[Chunk] | None:
    return None if (chunk := guards.dict_chunk(o)) is None else (chunk,)


def _dict(c: Cell, domain: Domain, deaths: guards.Deaths) -> Reader | None:
    # Where a key is compared by code of its own, the entry may change though nothing is written.
    if c.kind in ("item", "has") and type(c.key) not in IMMUTABLE and type(c.key).__hash__ is not object.__hash__:
        return None
    if c.kind == "dict" and isinstance(c.owner, OrderedDict):  # its order is not in the dict
        return None
    return _read_dict


def _read_class(o: type, kept: list[Any]) -> Sequence[Chunk] | None:
    return guards.class_chunks(o)


def _read_mro(o: type, kept: list[Any]) -> Sequence[Chunk] | None:
    return _all([guards.mro_chunk(o)])


def _read_stamp(o: type, kept: list[Any]) -> Sequence[Chunk] | None:
    meta: type = type(o)
    kept += [o.__mro__, meta.__mro__]  # as the cell's value does
    found = [_class_of(o), guards.mro_chunk(o), guards.mro_chunk(meta)]
    for t in (*o.__mro__, *meta.__mro__):
        if t.__flags__ & _HEAP:
            found += guards.class_chunks(t) or [None]
    return _all(found)


def _read_type(o: Any, kept: list[Any]) -> Sequence[Chunk] | None:
    return _all([_class_of(o)])


def _class_of(o: Any) -> Chunk | None:
    at = guards.layout().type
    return None if at is None else guards.address(id(o) + at, id(type(o)))


def _all(chunks: Sequence[Chunk | None]) -> Sequence[Chunk] | None:
    found = [c for c in chunks if c is not None]
    return found if len(found) == len(chunks) else None


def _closure(c: Cell, domain: Domain, deaths: guards.Deaths) -> Reader | None:
    at = guards.layout().cell
    if at is None:
        return None

    def read(o: Any, kept: list[Any]) -> Sequence[Chunk]:
        x = contents(o)
        return [guards.address(id(o) + at, 0 if x is ABSENT else _keep(x, kept))]

    return read


def _member(c: Cell, domain: Domain, deaths: guards.Deaths) -> Reader | None:
    at, name = guards.slot_offset(c.key), c.key.__name__  # not the descriptor: it would keep its class
    if at is None:
        return None

    def read(o: Any, kept: list[Any]) -> Sequence[Chunk] | None:
        x = getattr(o, name, ABSENT)
        expected = 0 if x is ABSENT else _keep(x, kept)
        return [guards.address(id(o) + at, expected)] if guards.word(id(o) + at) == expected else None

    return read


def _read_length(o: Any, kept: list[Any]) -> Sequence[Chunk] | None:
    return _all([guards.length_chunk(o)])


def _read_list(o: Any, kept: list[Any]) -> Sequence[Chunk] | None:
    found = list(o)
    for v in found:
        _keep(v, kept)
    return _all([guards.entries(o, found)])


def _function_words(c: Cell, domain: Domain, deaths: guards.Deaths) -> Reader | None:
    at = guards.layout()
    code, defaults, keywords = at.code, at.defaults, at.keyword_defaults
    if code is None or defaults is None or keywords is None:
        return None

    def read(o: Any, kept: list[Any]) -> Sequence[Chunk] | None:
        extra = o.__kwdefaults__
        return _all(
            [
                guards.address(id(o) + code, id(o.__code__)),  # it and the defaults are held: they count by identity
                guards.address(id(o) + defaults, 0 if o.__defaults__ is None else id(o.__defaults__)),
                guards.address(id(o) + keywords, 0 if extra is None else id(extra)),
                *([] if extra is None else [guards.dict_chunk(extra)]),
            ]
        )

    return read


def _facts(t: Any, base: int, at: int, spare: int, a: Anatomy, kept: list[Any]) -> list[guards.Row] | None:
    """Rows that hold while a tensor with t's facts lies at r[base] + at; they use the registers 1 and 2."""
    names, layout = a.facts(t), guards.layout()
    array: Any = getattr(t, a.array, None)
    if names is None or not layout.array or layout.type is None or type(array) is not np.ndarray:
        return None
    rows: list[guards.Row] = [(base, DROP, at + layout.type, guards.ALL, id(type(t)))]
    for name in names:
        offset, x = guards.slot_offset(a.slots[name]), getattr(t, name)
        if offset is None or not (x is None or x is True or x is False):
            return None
        rows.append((base, DROP, at + offset, guards.ALL, id(x)))
    offset = guards.slot_offset(a.slots[a.array])
    if offset is None:
        return None
    kept.append(array.dtype)
    into = 2 if base == 1 else 1
    return [*rows, (base, into, at + offset, 0, 0), *guards.array_rows(array, into, spare)]


def _tensor(c: Cell, domain: Domain, deaths: guards.Deaths) -> Reader | None:
    a = domain.anatomy
    at = None if a is None else guards.slot_offset(a.slots[a.array])
    if a is None or at is None:
        return None

    def slot_of(o: Any, array: Any) -> Chunk:
        return guards.address(id(o) + at, id(array))

    known: int | None = None  # the array at the first reading

    def read(o: Any, kept: list[Any]) -> Sequence[Chunk] | None:
        nonlocal known
        rows = _facts(o, 0, id(o), 2, a, kept)
        if rows is None:
            return None
        array = getattr(o, a.array)
        known = id(array) if known is None else known
        if known != id(array):  # arrays come and go: follow the slot
            return [tuple(rows)]
        # Array objects are the tensor's own: while this one lives, dtype, shape, strides and flags are what they are.
        kept.append(weakref.ref(array, deaths.of_part))
        return [guards.Together((*(r for r in rows if r[:2] == (0, DROP)), *slot_of(o, array)))]

    return read


def _grad_words(c: Cell, domain: Domain, deaths: guards.Deaths) -> Reader | None:
    a = domain.anatomy
    at = None if a is None else guards.slot_offset(a.slots[a.grad])
    if a is None or at is None:
        return None

    def read(o: Any, kept: list[Any]) -> Sequence[Chunk] | None:
        g: Any = getattr(o, a.grad)
        if g is None:
            return [guards.address(id(o) + at, id(None))]
        if not isinstance(g, domain.tensor):
            return None
        rows = _facts(g, 1, 0, 1, a, kept)  # the gradient is another tensor in every call: follow the slot
        return None if rows is None else [((0, 1, id(o) + at, 0, 0), *rows)]

    return read


def _hooks(c: Cell, domain: Domain, deaths: guards.Deaths) -> Reader | None:
    a = domain.anatomy
    at = None if a is None else guards.slot_offset(a.slots[a.hooks])
    if a is None or at is None:
        return None
    return lambda o, kept: [guards.address(id(o) + at, id(None))] if getattr(o, a.hooks) is None else None


# Sets, attributes of functions and ABC registrations have no entry: Python looks at them.
_READER: dict[str, Callable[[Cell, Domain, guards.Deaths], Reader | None]] = {
    "ivar": _always(_read_namespace),
    "ivars": _always(_read_namespace),
    "item": _dict,
    "dict": _dict,
    "has": _dict,
    "len": _always(_read_length),
    "class": _always(_read_class),
    "mro": _always(_read_mro),
    "stamp": _always(_read_stamp),
    "type": _always(_read_type),
    "closure": _closure,
    "member": _member,
    "list": _always(_read_list),
    "function": _function_words,
    "tensor": _tensor,
    "grad": _grad_words,
    "hooks": _hooks,
}


# -- for each kind of cell, the condition that it differs, given the code for its owner


def _ivar(text: _Text, o: str, c: Cell) -> str:
    return text.differs(f"get({text.space(c.owner, o)}, {c.key!r}, A)", c.value)


def _elements(text: _Text, o: str, c: Cell) -> str:
    if isinstance(c.owner, list) and type(c.owner) is not list:  # not by methods of its own class
        return f"not same_each(tuple(each_of({o})), {text.constant(text.snapshot(c.value))})"
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
    "deque": _elements,
    "bytes": lambda text, o, c: f"{o} != {text.constant(c.value)}",
    "len": lambda text, o, c: f"len({o}) != {c.value}",
    "count": lambda text, o, c: f"not same(count_state({o})[0], {text.constant(c.value)})",
    "has": lambda text, o, c: f"get({o}, {_key(text, c.key)}, A) is A",
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
    is_shown = c.kind in _READ and (c.kind != "item" or type(key) in IMMUTABLE)
    value = c.value if type(c.value) in IMMUTABLE and type(c.value) is not str else short(c.value)
    if type(key) not in IMMUTABLE:
        key = short(key)
    return Row(c.kind, _owner_name(c), key, value, c.where, text.refs[id(c.owner)][0] if is_shown else None)


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
    "deque": "a deque",
    "bytes": "a bytearray",
    "len": "the length of {owner}",
    "count": "the next number of a count",
    "has": "whether there is an entry {key}",
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
    "len": lambda o, key: len(o),
}


def short(x: Any) -> str:
    """A value in few characters, running none of its code."""
    if type(x) in IMMUTABLE:
        text = repr(x)
        return text if len(text) < 40 else text[:37] + "..."
    if type(x) is tuple:
        return "(" + ", ".join(map(short, x[:4])) + (", ...)" if len(x) > 4 else ")")
    return "absent" if x is ABSENT else describe(x)
