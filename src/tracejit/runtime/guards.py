"""Facts as words of memory: a table of loads and compares that one native call walks in a nanosecond per row.

    row   (base, dest, offset, mask, expected):  r[dest] = load(r[base] + offset);  r[dest] & mask == expected ?

r[0] is 0, so a row on it holds an absolute address; a row may keep what it loaded in r[1] or r[2], and later rows start
from there. The walk ends at the first row that differs, so a chain only follows pointers that earlier rows proved.

Which word says what is found out by trying (`layout`), never by version number: objects are changed in every way there
is and the words that should move must move. What did not pass is None there, and its facts are left to Python.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import types
import weakref
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, Final

import numpy as np

from tracejit.errors import BackendError
from tracejit.records import dataclass
from tracejit.runtime import engine
from tracejit.runtime.entry import builtin, method

__all__ = [
    "ALL", "ARRAY", "Chunk", "Deaths", "Layout", "Table", "Together", "address", "compare", "entries",
    "first_difference", "layout", "member_address", "slot_offset", "word",
]  # fmt: skip

Row = tuple[int, int, int, int, int]
Chunk = tuple[Row, ...]  # rows that stand or fall together: one reads what another loaded

ALL: Final = (1 << 64) - 1
DROP: Final = 3  # the register nobody reads
_HEADER: Final = object.__basicsize__
_CLASS_SIZE: Final[int] = type.__dict__["__basicsize__"].__get__(type)  # pyright takes it for the property
_WRITEABLE: Final = 0x400  # NPY_ARRAY_WRITEABLE
_INT: Final = (1 << 32) - 1
_MASKS: Final = (ALL, 0, _INT, _WRITEABLE)
_OFFSET: Final = (1 << 56) - 1

WIDE: Final = 4  # words of a wide row
_AT_ONCE: Final = 8  # plain rows per turn of their loop: 0.5 ns a row, where chained ones take 2


def _text() -> str:
    """`tj_compare(table, plain, wide, chained)`: the first row that differs, or -1; `tj_guard` is the same for Python.
    `tj_died` is called with a weak reference whose object dies.

    Plain rows are absolute addresses and full words, wide ones have `WIDE` words at an address. A pointer into the
    first page is no pointer.
    """
    turn = "".join(
        f"""
at{k}:
  %a{k}.p = getelementptr i64, ptr %p, i64 {2 * k}
  %e{k}.p = getelementptr i64, ptr %p, i64 {2 * k + 1}
  %a{k} = load ptr, ptr %a{k}.p
  %e{k} = load i64, ptr %e{k}.p
  %w{k} = load i64, ptr %a{k}
  %s{k} = icmp eq i64 %w{k}, %e{k}
  br i1 %s{k}, label %at{k + 1}, label %differs{k}"""
        for k in range(_AT_ONCE)
    )
    differs = "".join(f"\ndiffers{k}:\n  br label %differs" for k in range(_AT_ONCE))
    which = ", ".join(f"[ {k}, %differs{k} ]" for k in range(_AT_ONCE))
    return f"""
@masks = private constant [4 x i64] [i64 -1, i64 0, i64 {_INT}, i64 {_WRITEABLE}]
declare ptr @PyLong_AsVoidPtr(ptr)
declare ptr @PyLong_FromLongLong(i64)
declare ptr @PyTuple_GetItem(ptr, i64)
declare ptr @PyObject_CallOneArg(ptr, ptr)

define ptr @tj_died(ptr %self, ptr %args, i64 %count) nounwind {{
  %at.o = call ptr @PyTuple_GetItem(ptr %self, i64 0)
  %at = call ptr @PyLong_AsVoidPtr(ptr %at.o)
  %before = load i64, ptr %at
  %after = add i64 %before, 1
  store i64 %after, ptr %at
  %then = call ptr @PyTuple_GetItem(ptr %self, i64 1)
  %reference = load ptr, ptr %args
  %result = call ptr @PyObject_CallOneArg(ptr %then, ptr %reference)
  ret ptr %result
}}

define ptr @tj_guard(ptr %self, ptr %args, i64 %count) nounwind {{
  %table.o = load ptr, ptr %args
  %table = call ptr @PyLong_AsVoidPtr(ptr %table.o)
  %plain.p = getelementptr ptr, ptr %args, i64 1
  %plain.o = load ptr, ptr %plain.p
  %plain.v = call ptr @PyLong_AsVoidPtr(ptr %plain.o)
  %plain = ptrtoint ptr %plain.v to i64
  %wide.p = getelementptr ptr, ptr %args, i64 2
  %wide.o = load ptr, ptr %wide.p
  %wide.v = call ptr @PyLong_AsVoidPtr(ptr %wide.o)
  %wide = ptrtoint ptr %wide.v to i64
  %chained.p = getelementptr ptr, ptr %args, i64 3
  %chained.o = load ptr, ptr %chained.p
  %chained.v = call ptr @PyLong_AsVoidPtr(ptr %chained.o)
  %chained = ptrtoint ptr %chained.v to i64
  %result = call i64 @tj_compare(ptr %table, i64 %plain, i64 %wide, i64 %chained)
  %result.o = call ptr @PyLong_FromLongLong(i64 %result)
  ret ptr %result.o
}}

define i64 @tj_compare(ptr %table, i64 %plain, i64 %wide, i64 %chained) nounwind {{
entry:
  %r = alloca [4 x i64], align 16
  store [4 x i64] zeroinitializer, ptr %r
  %before.wide = getelementptr [2 x i64], ptr %table, i64 %plain
  %several = and i64 %plain, -{_AT_ONCE}
  %stop = getelementptr [2 x i64], ptr %table, i64 %several
  br label %turn
turn:
  %p = phi ptr [ %table, %entry ], [ %after, %at{_AT_ONCE} ]
  %done = icmp eq ptr %p, %stop
  br i1 %done, label %rest, label %at0{turn}
at{_AT_ONCE}:
  %after = getelementptr [2 x i64], ptr %p, i64 {_AT_ONCE}
  br label %turn{differs}
differs:
  %which = phi i64 {which}
  %from = ptrtoint ptr %table to i64
  %to = ptrtoint ptr %p to i64
  %bytes = sub i64 %to, %from
  %before = lshr i64 %bytes, 4
  %differing = add i64 %before, %which
  br label %end
rest:
  %n = phi i64 [ %several, %turn ], [ %n.next, %rest.same ]
  %left = icmp ult i64 %n, %plain
  br i1 %left, label %rest.row, label %wides
rest.row:
  %n.p = getelementptr [2 x i64], ptr %table, i64 %n
  %n.a = load ptr, ptr %n.p
  %n.e.p = getelementptr i64, ptr %n.p, i64 1
  %n.e = load i64, ptr %n.e.p
  %n.w = load i64, ptr %n.a
  %n.s = icmp eq i64 %n.w, %n.e
  br i1 %n.s, label %rest.same, label %end
rest.same:
  %n.next = add i64 %n, 1
  br label %rest
wides:
  %q = phi i64 [ 0, %rest ], [ %q.next, %wide.same ]
  %q.p = phi ptr [ %before.wide, %rest ], [ %q.after, %wide.same ]
  %q.more = icmp ult i64 %q, %wide
  br i1 %q.more, label %wide.row, label %next
wide.row:
  %q.a = load ptr, ptr %q.p
  %q.e.p = getelementptr i64, ptr %q.p, i64 1
  %q.e = load <{WIDE} x i64>, ptr %q.e.p, align 8
  %q.w = load <{WIDE} x i64>, ptr %q.a, align 8
  %q.d = xor <{WIDE} x i64> %q.w, %q.e
  %q.bits = bitcast <{WIDE} x i64> %q.d to i{64 * WIDE}
  %q.s = icmp eq i{64 * WIDE} %q.bits, 0
  br i1 %q.s, label %wide.same, label %wide.differs
wide.same:
  %q.next = add i64 %q, 1
  %q.after = getelementptr i64, ptr %q.p, i64 {1 + WIDE}
  br label %wides
wide.differs:
  %q.row = add i64 %plain, %q
  br label %end
next:
  %c = phi i64 [ 0, %wides ], [ %c.next, %compare ]
  %more = icmp ult i64 %c, %chained
  %c.before = add i64 %plain, %wide
  %c.row = add i64 %c.before, %c
  br i1 %more, label %row, label %end
row:
  %row.p = getelementptr [2 x i64], ptr %q.p, i64 %c
  %what = load i64, ptr %row.p
  %expected.p = getelementptr i64, ptr %row.p, i64 1
  %expected = load i64, ptr %expected.p
  %offset = and i64 %what, {_OFFSET}
  %base.s = lshr i64 %what, 56
  %base.i = and i64 %base.s, 3
  %dest.s = lshr i64 %what, 58
  %dest.i = and i64 %dest.s, 3
  %mask.i = lshr i64 %what, 60
  %mask.p = getelementptr [4 x i64], ptr @masks, i64 0, i64 %mask.i
  %mask = load i64, ptr %mask.p
  %base.p = getelementptr [4 x i64], ptr %r, i64 0, i64 %base.i
  %base = load i64, ptr %base.p
  %address = add i64 %base, %offset
  %points = icmp ugt i64 %address, 4095
  br i1 %points, label %compare, label %end
compare:
  %address.p = inttoptr i64 %address to ptr
  %word = load i64, ptr %address.p
  %into.p = getelementptr [4 x i64], ptr %r, i64 0, i64 %dest.i
  store i64 %word, ptr %into.p
  %masked = and i64 %word, %mask
  %same = icmp eq i64 %masked, %expected
  %c.next = add i64 %c, 1
  br i1 %same, label %next, label %end
end:
  %result = phi i64 [ -1, %next ], [ %c.row, %row ], [ %c.row, %compare ], [ %n, %rest.row ], [ %q.row, %wide.differs ],
                    [ %differing, %differs ]
  ret i64 %result
}}
"""


@cache
def first_difference() -> Callable[[int, int, int, int], int] | None:
    """`f(*table.place)`: the first row that differs from memory, or -1. None where there is no such function."""
    code = compare()
    return None if code is None else builtin(code, "tj_guard")


@cache
def compare() -> engine.Code | None:
    """The code of @tj_compare, for other native code to call."""
    try:
        return engine.compile(_text())
    except (BackendError, ImportError):
        return None


class Together(tuple[Row, ...]):
    """A chunk of rows that need nothing before them but lives: those of adjacent words may be compared at once."""

    __slots__ = ()


class Table:
    """Groups of chunks laid out for the native walk. `owner[row]` is the number of the group that a row came from.

    Plain rows (absolute, whole words) of all groups come first, then wide ones, then the others: what a row relies on
    is in a plain row of its group before it, or in its own chunk. Wide rows rely on the first group alone.
    """

    __slots__ = ("_slices", "address", "chained", "kept", "owner", "plain", "wide", "words")

    def __init__(self, groups: Sequence[Iterable[Chunk]], kept: Iterable[object] = ()) -> None:
        parts = [_words(chunks) for chunks in groups]
        self.kept = list(kept)  # for each group, what must live as long as its rows
        self.words = array("Q")
        self._slices: list[list[slice]] = [[], [], []]
        owner: list[int] = []
        counts: list[int] = []
        for section, (slices, size) in enumerate(zip(self._slices, _SIZES)):
            before = len(owner)
            for k, part in enumerate(parts):
                slices.append(slice(len(self.words), len(self.words) + len(part[section])))
                self.words += part[section]
                owner += [k] * (len(part[section]) // size)
            counts.append(len(owner) - before)
        self.owner = tuple(owner)
        self.plain, self.wide, self.chained = counts
        self.address = self.words.buffer_info()[0]

    @property
    def place(self) -> tuple[int, int, int, int]:
        """(address, plain rows, wide rows, chained rows)"""
        return self.address, self.plain, self.wide, self.chained

    def replace(self, group: int, chunks: Iterable[Chunk], kept: object) -> bool:
        """Lay the rows of one group anew, if there are as many as before."""
        parts = _words(chunks)
        places = [slices[group] for slices in self._slices]
        if any(len(part) != at.stop - at.start for at, part in zip(places, parts)):
            return False
        for at, part in zip(places, parts):
            self.words[at] = part
        self.kept[group] = kept
        return True


class Deaths:
    """A word that counts deaths, so that one row stands for the lives of many objects.

    Weak references call `of_owner` (and that calls `then`) or `of_part` when what they refer to dies: at once, before
    its memory is given back, and in native code, which no interrupt keeps from counting. They are not called where they
    are garbage together with what dies; who relies on the word is garbage then, too, and should watch itself.
    """

    __slots__ = ("_word", "of_owner", "of_part")

    def __init__(self, then: Callable[[Any], object]) -> None:
        make, self._word = _died(), ctypes.c_int64(0)
        at = ctypes.addressof(self._word)
        self.of_owner, self.of_part = (make((at, f, self._word)) for f in (then, _nothing))

    def chunk(self) -> Chunk:
        """None has died since now."""
        return address(ctypes.addressof(self._word), self._word.value)


@cache
def _died() -> Callable[[object], Callable[..., Any]]:
    code = compare()
    assert code is not None
    return method(code, "tj_died")


def _nothing(_: object) -> None: ...


_SIZES: Final = (2, 1 + WIDE, 2)  # words of a row of each section


def _words(chunks: Iterable[Chunk]) -> tuple[array[int], array[int], array[int]]:
    """(plain rows, wide rows, other rows): addresses, or how to find them, and the words expected there."""
    plain, wide, chained = array("Q"), array("Q"), array("Q")
    for chunk in chunks:
        rows: Sequence[Row] = chunk
        if isinstance(chunk, Together):
            rows = _widened(chunk, wide)
        for base, dest, offset, mask, expected in rows:
            assert 0 <= offset <= _OFFSET, f"offset {offset:#x} of a guard"
            if (base, dest, mask) == (0, DROP, ALL):
                plain.extend((offset, expected))
            else:
                chained.extend((offset | base << 56 | dest << 58 | _MASKS.index(mask) << 60, expected))
    return plain, wide, chained


def _widened(chunk: Together, wide: array[int]) -> Sequence[Row]:
    """Put whole words of a chunk that lie side by side into wide rows; the rows that are left."""
    rows = sorted(r for r in chunk if (r[0], r[1], r[3]) == (0, DROP, ALL))
    left = [r for r in chunk if r not in rows]
    while rows:
        if [r[2] - rows[0][2] for r in rows[:WIDE]] == [8 * i for i in range(WIDE)]:
            wide.extend((rows[0][2], *(r[4] for r in rows[:WIDE])))
            del rows[:WIDE]
        else:
            left.append(rows.pop(0))
    return left


def word(at: int) -> int:
    """The 8 bytes at an address."""
    return ctypes.c_uint64.from_address(at).value


def address(at: int, expected: int, mask: int = ALL) -> Chunk:
    """One row: the word at `at` is `expected`."""
    return ((0, DROP, at, mask, expected),)


# -- which word of an object says what


@dataclass(frozen=True)
class Layout:
    """Byte offsets inside objects; None for what failed its test."""

    type: int | None = None  # any object -> its class
    referent: int | None = None  # weak reference -> the object, something else once it is dead
    dict_version: int | None = None  # dict -> a number that no other state of any dict has
    dict_length: int | None = None  # dict -> number of entries
    dict_values: int | None = None  # dict -> 0 unless its values lie in the object whose __dict__ it is ...
    shared_versions: bool = False  # ... and then, whether the version still counts
    managed: int | None = None  # object -> its __dict__, for classes that hide it before the object
    class_dict: int | None = None  # class -> the dict behind its __dict__
    mro: int | None = None  # class -> its __mro__
    cell: int | None = None  # closure cell -> contents
    list: tuple[int, int] | None = None  # list -> number of elements, pointer to them
    code: int | None = None  # function -> __code__, __defaults__, __kwdefaults__
    defaults: int | None = None
    keyword_defaults: int | None = None
    slots: bool = False  # `slot_offset` can be asked
    array: bool = False  # `array_chunk` can be asked


@cache
def layout() -> Layout:
    """What this interpreter allows to be checked natively."""
    if sys.implementation.name != "cpython" or "free-threading" in sys.version:
        return Layout()
    if ctypes.sizeof(ctypes.c_void_p) != 8 or word(id(1.5) + _HEADER - 8) != id(float):
        return Layout()
    version = _dict_version()
    values = None if version is None else _dict_values()
    managed = _managed()
    types_at = _HEADER - 8
    if not _sees_class(types_at):
        return Layout()
    of_class = _class_dict(version)
    code, defaults, keyword_defaults = _function()
    return Layout(
        type=types_at,
        referent=_referent(),
        dict_version=None if values is None else version,
        dict_length=_dict_length(),
        dict_values=values,
        shared_versions=version is not None and managed is not None and _instance_writes_count(version),
        managed=managed,
        class_dict=of_class,
        mro=_mro(),
        cell=_cell(),
        list=_list(),
        code=code,
        defaults=defaults,
        keyword_defaults=keyword_defaults,
        slots=_slots_pass(),
        array=_arrays_pass(),
    )


def _offset_of(x: Any, target: Any, size: int) -> int | None:
    """Where in the `size` bytes of x a pointer to `target` is, if in one place only."""
    found = [at for at in range(_HEADER, size - 7, 8) if word(id(x) + at) == id(target)]
    return found[0] if len(found) == 1 else None


def _sees_class(at: int) -> bool:
    class A:
        pass

    class B:
        pass

    x = A()
    before = word(id(x) + at) == id(A)
    x.__class__ = B  # type: ignore[assignment]
    return before and word(id(x) + at) == id(B)


def _referent() -> int | None:
    class A:
        pass

    x = A()
    ref = weakref.ref(x, lambda _: None)
    at = _offset_of(ref, x, weakref.ref.__basicsize__)
    address = id(x)
    del x
    return at if at is not None and ref() is None and word(id(ref) + at) != address else None


def _dict_version() -> int | None:
    """The word of a dict that every write moves, to a value never seen before."""
    for at in range(_HEADER, dict.__basicsize__ - 7, 8):
        if _every_write_moves(at):
            return at
    return None


def _every_write_moves(at: int) -> bool:
    seen: set[int] = set()
    space: dict[Any, Any] = {"a": 0, "b": object()}
    exec("def store(v):\n global a\n a = v", space)
    store: Callable[[Any], None] = space["store"]

    def item(v: Any) -> None:
        space["b"] = v

    def moved(d: dict[Any, Any]) -> bool:
        now = word(id(d) + at)
        new = now not in seen
        seen.add(now)
        return new

    if not moved(space) or not moved({}) or not moved({"a": 1}):
        return False
    for n in range(300):  # often enough for specialised instructions to take over
        store(n + 1000)
        if not moved(space):
            return False
        item((n,))
        if not moved(space):
            return False
    d: dict[Any, Any] = {}
    writes: tuple[Callable[[], Any], ...] = (
        lambda: d.update(a=5),
        lambda: d.__setitem__("a", 6),
        lambda: d.__delitem__("a"),
        lambda: d.setdefault("q", 1),
        lambda: d.pop("q"),
        lambda: d.update({"k": 1, "l": 2}),
        lambda: d.popitem(),
        lambda: d.__ior__({"z": 3}),
        d.clear,
        lambda: d.update({n: n for n in range(40)}),
        lambda: ctypes.pythonapi.PyDict_SetItem(ctypes.py_object(d), ctypes.py_object(0), ctypes.py_object("x")),
    )
    for write in writes:
        write()
        if not moved(d):
            return False
    still = word(id(d) + at)
    _ = d.get(3), list(d), d == dict(d), len(d), 3 in d
    return still == word(id(d) + at)


def _dict_length() -> int | None:
    """The word of a dict that `len` gives: of dicts that grow, shrink, and share their values with an object."""
    sample = _Sample()
    dicts: list[dict[Any, Any]] = [{}, {n: n for n in range(300)}, sample.__dict__, globals()]
    at = _HEADER
    if any(word(id(d) + at) != len(d) for d in dicts):
        return None
    sample.other = sample.another = 1  # type: ignore[attr-defined]
    del sample.a
    for n in range(200):
        dicts[0][n] = n
        dicts[1].pop(n)
    dicts[0].update({"a": 1}, b=2)
    dicts[0].popitem()
    return at if all(word(id(d) + at) == len(d) for d in dicts) else None


class _Sample:
    """Ordinary attributes."""

    def __init__(self) -> None:
        self.a: Any = 0
        self.b: Any = 1


def _dict_values() -> int | None:
    """The word of a dict that is 0 unless its values are shared with an object."""
    samples = [_Sample() for _ in range(3)]
    shared = samples[1].__dict__
    plain: list[dict[Any, Any]] = [{}, {"a": 1}, {n: n for n in range(20)}, globals()]
    for at in range(dict.__basicsize__ - 8, _HEADER - 1, -8):
        if all(word(id(d) + at) == 0 for d in plain):
            return at if word(id(shared) + at) != 0 else None
    return None


def _managed() -> int | None:
    """Where before an object of an ordinary class its __dict__ is."""
    x = _Sample()
    space = x.__dict__
    for at in (-8, -16, -24, -32):
        if word(id(x) + at) == id(space):
            x.__dict__ = other = dict(space)
            return at if word(id(x) + at) == id(other) else None
    return None


def _instance_writes_count(at: int) -> bool:
    """Whether the version of a __dict__ moves when attributes are stored, by whatever instruction."""

    def store(x: Any, v: Any) -> None:
        x.a = v

    def store_again(x: Any, v: Any) -> None:
        x.b = v

    for n in range(300):
        store(_Sample(), n)  # specialises on objects whose __dict__ nobody asked for
    x = _Sample()
    space = x.__dict__
    version = word(id(space) + at)

    def moved() -> bool:
        nonlocal version
        before, version = version, word(id(space) + at)
        return before != version

    for n in range(300):
        store(x, n + 1000)
        if not moved():
            return False
    others = [_Sample() for _ in range(20)]
    spaces = [o.__dict__ for o in others]
    for n in range(30):
        for o, s in zip(others, spaces):
            before = word(id(s) + at)
            store_again(o, (n,))
            if word(id(s) + at) == before:
                return False
    writes: tuple[Callable[[], Any], ...] = (
        lambda: setattr(x, "a", object()),
        lambda: object.__setattr__(x, "a", 3),
        lambda: space.__setitem__("a", 9),
        lambda: delattr(x, "b"),
        lambda: setattr(x, "b", 1),
        lambda: setattr(x, "new", 1),
        lambda: x.__dict__.update(a=2),
        lambda: delattr(x, "new"),
    )
    for write in writes:
        write()
        if not moved():
            return False
    return True


def _class_dict(version: int | None) -> int | None:
    """Where the dict of a class is, if its version moves with the class."""
    if version is None:
        return None

    class A:
        k = 1

        def f(self) -> None: ...

    found = gc.get_referents(A.__dict__)
    if len(found) != 1 or type(found[0]) is not dict:
        return None
    space = found[0]
    at = _offset_of(A, space, _CLASS_SIZE)
    if at is None:
        return None
    seen = {word(id(space) + version)}
    writes: list[Callable[[], Any]] = [
        lambda: setattr(A, "k", 2),
        lambda: setattr(A, "f", len),
        lambda: delattr(A, "k"),
        lambda: setattr(A, "__len__", len),
        lambda: type.__setattr__(A, "k", 5),
        lambda: setattr(A, "__doc__", "text"),
    ]

    def store(v: Any) -> None:
        A.k = v

    writes += [lambda n=n: store(n + 1000) for n in range(100)]
    for write in writes:
        write()
        if (now := word(id(space) + version)) in seen:
            return None
        seen.add(now)
    return at


def _mro() -> int | None:
    class P:
        pass

    class Q:
        pass

    class A(P):
        pass

    before = A.__mro__
    at = _offset_of(A, before, _CLASS_SIZE)
    A.__bases__ = (Q,)
    return at if at is not None and word(id(A) + at) == id(A.__mro__) != id(before) else None


def _cell() -> int | None:
    mark, cell = object(), types.CellType()
    empty = word(id(cell) + _HEADER)
    cell.cell_contents = mark
    return _HEADER if empty == 0 and word(id(cell) + _HEADER) == id(mark) else None


def _list() -> tuple[int, int] | None:
    marks: list[Any] = [object() for _ in range(5)]
    size, items = _HEADER, _HEADER + 8

    def read() -> bool:
        return word(id(marks) + size) == len(marks) and all(
            word(word(id(marks) + items) + 8 * i) == id(m) for i, m in enumerate(marks)
        )

    passed = read()
    marks.pop(0)
    passed = passed and read()
    marks += range(1000)
    return (size, items) if passed and read() else None


def _function() -> tuple[int | None, int | None, int | None]:
    def f(a: int = 1, *, b: int = 2) -> None: ...

    size = types.FunctionType.__basicsize__
    found = [_offset_of(f, x, size) for x in (f.__code__, f.__defaults__, f.__kwdefaults__)]
    if None in found:
        return None, None, None
    code, defaults, keywords = (at or 0 for at in found)
    f.__defaults__, f.__kwdefaults__ = (2,), None
    if word(id(f) + defaults) != id(f.__defaults__) or word(id(f) + keywords) != 0:
        return None, None, None
    f.__code__, f.__defaults__ = (lambda: None).__code__, None
    return (
        (code, defaults, keywords)
        if word(id(f) + code) == id(f.__code__) and word(id(f) + defaults) == 0
        else (None, None, None)
    )


_MEMBER: Final = types.MemberDescriptorType.__basicsize__ - 8  # the last word: a PyMemberDef


class _Slotted:
    __slots__ = ("a", "b")
    a: Any
    b: Any


def member_address(descriptor: Any) -> int:
    """Where the PyMemberDef of a slot is: struct { char *name; int kind; ssize_t offset; ... }"""
    return word(id(descriptor) + _MEMBER)


def _member(descriptor: Any) -> tuple[int, int]:
    """(kind, offset) of a member."""
    member = member_address(descriptor)
    return word(member + 8) & _INT, word(member + 16)


@cache
def _slots_pass() -> bool:
    x, marks = _Slotted(), (object(), object())
    empty = all(word(id(x) + at) == 0 for at in range(_HEADER, _Slotted.__basicsize__ - 7, 8))
    x.a, x.b = marks
    offsets = [_offset_of(x, m, _Slotted.__basicsize__) for m in marks]
    names = [ctypes.string_at(word(word(id(d) + _MEMBER))) for d in (_Slotted.a, _Slotted.b)]
    return empty and names == [b"a", b"b"] and offsets == [_member(d)[1] for d in (_Slotted.a, _Slotted.b)]


def slot_offset(descriptor: Any) -> int | None:
    """Where in an object the slot is that `descriptor` (from `__slots__`) reads; 0 there means it is empty."""
    if not _slots_pass() or type(descriptor) is not types.MemberDescriptorType:
        return None
    kind, at = _member(descriptor)
    return at if kind == _member(_Slotted.__dict__["a"])[0] else None


# PyArrayObject: data, int nd, dimensions, strides, base, descr, int flags
_ND, _DIMS, _STRIDES, _DESCR, _FLAGS = (_HEADER + at for at in (8, 16, 24, 40, 48))


@dataclass(frozen=True)
class _Array:
    """Byte offsets in an ndarray, right where `Layout.array` says so."""

    rank: int = _ND
    extents: int = _DIMS
    strides: int = _STRIDES
    dtype: int = _DESCR
    flags: int = _FLAGS
    WRITEABLE: int = _WRITEABLE


ARRAY: Final = _Array()


def _arrays_pass() -> bool:
    wide = np.zeros((3, 4, 5), np.float32)
    frozen = np.zeros(7, np.int64)
    frozen.flags.writeable = False
    return all(_reads(a) for a in (wide, wide.T, wide[1:, ::2], frozen, np.zeros(()), np.zeros((0, 2)), wide[0, 0]))


def _reads(a: np.ndarray[Any, Any]) -> bool:
    at, n = id(a), a.ndim
    return (
        word(at + _ND) & _INT == n
        and word(at + _DESCR) == id(a.dtype)
        and bool(word(at + _FLAGS) & _WRITEABLE) == a.flags.writeable
        and tuple(word(word(at + _DIMS) + 8 * i) for i in range(n)) == a.shape
        and tuple(ctypes.c_int64(word(word(at + _STRIDES) + 8 * i)).value for i in range(n)) == a.strides
    )


def array_rows(a: np.ndarray[Any, Any], base: int, scratch: int) -> Chunk:
    """Rows on register `base`, a pointer to some object: it is an ndarray of a's dtype, shape, strides, writeable
    flag. They use register `scratch`. Keep a.dtype alive."""
    extents = tuple((scratch, DROP, 8 * i, ALL, n) for i, n in enumerate(a.shape))
    steps = tuple((scratch, DROP, 8 * i, ALL, n & ALL) for i, n in enumerate(a.strides))
    return (
        (base, DROP, _HEADER - 8, ALL, id(np.ndarray)),
        (base, DROP, _ND, _INT, a.ndim),
        (base, DROP, _DESCR, ALL, id(a.dtype)),
        (base, DROP, _FLAGS, _WRITEABLE, _WRITEABLE if a.flags.writeable else 0),
        *(((base, scratch, _DIMS, 0, 0), *extents, (base, scratch, _STRIDES, 0, 0), *steps) if a.ndim else ()),
    )


# -- what to compare so that a fact holds; None where only Python can tell. Each is read from the object as it is now.


def dict_chunk(d: Any) -> Chunk | None:
    """Nothing in dict d has been written since."""
    at = layout()
    if type(d) is not dict or at.dict_version is None or at.dict_values is None:
        return None
    if not at.shared_versions and word(id(d) + at.dict_values) != 0:
        return None
    return address(id(d) + at.dict_version, word(id(d) + at.dict_version))


def namespace_chunks(x: Any) -> tuple[Chunk, ...] | None:
    """Neither x.__dict__ nor anything in it has been written since."""
    at, t = layout(), type(x)
    offset = at.managed if t.__flags__ & _MANAGED_DICT else t.__dictoffset__ if t.__dictoffset__ > 0 else None
    if offset is None:
        return None
    space = x.__dict__
    inside = dict_chunk(space)
    if inside is None or word(id(x) + offset) != id(space):
        return None
    return address(id(x) + offset, id(space)), inside


_MANAGED_DICT: Final = 1 << 4  # Py_TPFLAGS_MANAGED_DICT


def class_chunks(t: type) -> tuple[Chunk, ...] | None:
    """Nothing in the __dict__ of class t itself has been written since."""
    at = layout()
    if at.class_dict is None:
        return None
    space = gc.get_referents(t.__dict__)[0]
    inside = dict_chunk(space)
    if inside is None or word(id(t) + at.class_dict) != id(space):
        return None
    return address(id(t) + at.class_dict, id(space)), inside


def length_chunk(x: Any) -> Chunk | None:
    """len(x), of a dict or list."""
    at, t = layout(), type(x)
    offset = at.dict_length if t is dict else at.list[0] if t is list and at.list is not None else None
    return None if offset is None else address(id(x) + offset, len(x))


def alive_chunk(reference: weakref.ref[Any]) -> Chunk | None:
    """What is referred to still lives."""
    at = layout().referent
    return None if at is None else address(id(reference) + at, id(reference()))


def mro_chunk(t: type) -> Chunk | None:
    """t.__mro__ is the tuple it is. Keep that alive."""
    at = layout().mro
    return None if at is None or word(id(t) + at) != id(t.__mro__) else address(id(t) + at, id(t.__mro__))


def entries(x: list[Any], elements: list[Any]) -> Chunk | None:
    """List x has these very elements. Keep them alive."""
    at = layout().list
    if at is None:
        return None
    size, items = at
    rows = tuple((1, DROP, 8 * i, ALL, id(v)) for i, v in enumerate(elements))
    return ((0, DROP, id(x) + size, ALL, len(rows)), *(((0, 1, id(x) + items, 0, 0), *rows) if rows else ()))
