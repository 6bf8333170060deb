"""A hot call as data: instructions that check arguments and state, bind pointers, run a program, hand over its results.

    match    facts about the arguments                      nothing has happened yet ...
    make     every object that the call will return         ... and all that can fail or run other code comes here
    match    again, for that other code may have changed something
    guard    the state it was recorded with; where the arrays lie; whether written memory overlaps other memory
    run      the program, which ends at a check that fails  ... so until here the call can still be given up
    commit   versions, slots, numbers, the result           this cannot fail

One native function interprets them, as the walker does programs: it is made once for the process, and an `Entry` costs
no code. It is called with no Python in between: a `Callable` has words of its own that make it a vectorcall object. An
instruction that fails gives the call up: the next entry of the chain has a try, in the end plain Python does the call.

Which word of an object says what is found out by trying (`offsets`); where something is not as expected there is no
native function, and all calls go through Python.
"""

from __future__ import annotations

import ctypes
import gc
import os
import struct
import sys
import threading
import types
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final

import numpy as np

from tracejit import config
from tracejit.errors import BackendError, is_foreign
from tracejit.records import dataclass
from tracejit.runtime import engine, guards, interpreter, walker
from tracejit.runtime.entry import builtin
from tracejit.runtime.forks import building
from tracejit.runtime.guards import word
from tracejit.runtime.interpreter import CALLABLE, ENTRY, OPS

__all__ = [
    "HERE", "NAMES", "TRIES", "ZERO", "Assembler", "Direct", "Entry", "Native", "Place", "Record", "argument",
    "direct", "native", "native_now", "offsets",
]  # fmt: skip


# -- what must be as it is expected


@dataclass(frozen=True)
class Offsets:
    """Byte offsets inside objects, all of them tried."""

    vectorcall: int  # class -> where in its objects the function is that calls them
    flags: int  # class -> its flags
    number: int  # float -> its value
    size: int  # tuple -> number of items, then
    items: int
    new_array: int  # PyArray_NewFromDescr
    array_data: int
    array_flags: int


_HEADER: Final = object.__basicsize__
_HAS_VECTORCALL: Final = 1 << 11  # Py_TPFLAGS_HAVE_VECTORCALL
_RAW: Final = 18  # Py_T_ULONGLONG
_ALIGNED: Final = 0x100  # NPY_ARRAY_ALIGNED
_NEW_FROM_DESCR: Final = 94  # place in NumPy's table of functions


@cache
def offsets() -> Offsets | None:
    """Where things are; None where some test failed."""
    known = guards.layout()
    if None in (known.type, known.referent) or not (known.array and known.slots):
        return None
    if threading.local.__module__ != "_thread" or os.name != "posix":  # a green thread has no memory of its own
        return None
    at = _class_words()
    number = _HEADER
    if at is None or word(id(1.5) + number) != int.from_bytes(struct.pack("<d", 1.5), sys.byteorder):
        return None
    t = (object(), object(), object())
    if word(id(t) + _HEADER) != 3 or [word(id(t) + _HEADER + 8 + 8 * i) for i in range(3)] != [id(o) for o in t]:
        return None
    new_array = _new_array()
    if new_array is None:
        return None
    vectorcall, flags = at
    return Offsets(vectorcall, flags, number, _HEADER, _HEADER + 8, new_array, _HEADER, _HEADER + 48)


def _class_words() -> tuple[int, int] | None:
    """(vectorcall offset, flags) in classes: words that are what they must be in classes that are known."""
    with_it: tuple[Any, ...] = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, type(str.join))
    without: tuple[Any, ...] = (int, str, dict, object, types.CellType)
    flags = next(
        (at for at in range(0, 400, 8) if all(word(id(t) + at) == t.__flags__ for t in with_it + without)), None
    )
    if flags is None or any(not t.__flags__ & _HAS_VECTORCALL for t in with_it):
        return None

    def says(at: int) -> bool:
        where = [word(id(t) + at) for t in with_it]
        inside = all(_HEADER <= w < t.__basicsize__ and w % 8 == 0 for w, t in zip(where, with_it))
        return inside and all(word(id(t) + at) == 0 for t in without)

    found = [at for at in range(_HEADER + 8, flags, 8) if says(at)]
    return (found[0], flags) if len(found) == 1 else None


def _new_array() -> int | None:
    """The address of PyArray_NewFromDescr."""
    core: Any = getattr(np, "_core", None) or np.core
    capsule: Any = core._multiarray_umath._ARRAY_API
    pointer: Any = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    table: int = pointer(capsule, None)
    if word(table + 8 * 2) != id(np.ndarray):
        return None
    address = word(table + 8 * _NEW_FROM_DESCR)
    kind = ctypes.PYFUNCTYPE(
        ctypes.py_object, ctypes.py_object, ctypes.py_object, ctypes.c_int, ctypes.c_void_p, *[ctypes.c_void_p] * 2,
        ctypes.c_int, ctypes.c_void_p,
    )  # fmt: skip
    dtype = np.dtype(np.float32)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(dtype))  # the function takes it
    made = kind(address)(np.ndarray, dtype, 2, (ctypes.c_ssize_t * 2)(3, 5), None, None, 0, None)
    fits = type(made) is np.ndarray and (made.shape, made.dtype, made.strides) == ((3, 5), dtype, (20, 4))
    return address if fits and made.flags.c_contiguous and made.flags.writeable and made.flags.owndata else None


# -- objects that are called without Python


class Direct:
    """Base of classes whose objects can be called natively: two raw words, 0 until `direct` sets them."""

    __slots__ = ("_direct_call", "_direct_words")


def _make_raw(cls: type) -> tuple[int, int]:
    """Turn the two slots of a class into words that hold numbers, not objects; returns their offsets."""
    found: list[int] = []
    for name in Direct.__slots__:
        descriptor = cls.__dict__[name]
        offset = guards.slot_offset(descriptor)
        assert offset is not None
        found.append(offset)
        ctypes.c_int.from_address(guards.member_address(descriptor) + 8).value = _RAW
    return found[0], found[1]


def _make_callable(cls: type, at: Offsets, call: int) -> None:
    """Let the word at `call` in objects of a class be the function that calls them."""
    ctypes.c_ssize_t.from_address(id(cls) + at.vectorcall).value = call
    ctypes.c_ulong.from_address(id(cls) + at.flags).value |= _HAS_VECTORCALL


@dataclass(frozen=True, eq=False)
class Native:
    """The interpreter. `here(modes)` tells it the modes of this thread; `finish` is that of `interrupts.py`."""

    code: engine.Code
    call: int
    here: Callable[..., Any]
    finish: Callable[..., Any]


_found: list[Native] = []
_making = threading.RLock()
_patched: set[type] = set()
_HERE_NAME: Final = "tj_here"
_FINISH_NAME: Final = "tj_finish"
TRIES: Final = 1000  # of what a signal handler interrupts each time


def native() -> Native | None:
    """The interpreter of this process; None where some test failed."""
    with building(), _making:  # once: slots that are made raw are no slots to the second who comes
        return _native()


@cache
def _native() -> Native | None:
    at, compare = offsets(), guards.compare()
    if at is None or compare is None:
        return None
    try:
        made = _compile(at, compare)
    except (BackendError, ImportError):
        return None
    probe = type("Probe", (), {"__slots__": Direct.__slots__})
    if not _passes(probe, at, made):
        return None
    _make_raw(Direct)
    _found.append(made)
    config.Modes.at_end = staticmethod(made.here)
    return made


def native_now() -> Native | None:
    """`native`, where somebody has asked for it already."""
    return _found[0] if _found else None


def _compile(at: Offsets, compare: engine.Code) -> Native:
    known, walk = guards.layout(), walker.native().code
    key = ctypes.c_uint()
    if ctypes.CDLL(None).pthread_key_create(ctypes.byref(key), None) != 0:
        raise BackendError("the system gives no more words of a thread's own")
    names: dict[str, Any] = {
        "KEY": key.value,
        "WORDS": guards.slot_offset(Direct.__dict__["_direct_words"]),
        "SIZE": at.size // 8,
        "DATA": at.array_data,
        "FLAGS": at.array_flags,
        "TYPE": known.type,
        "ALIGNED": _ALIGNED,
        "REFERENT": known.referent,
        "FLOAT": at.number,
        "LARGEST": 1 << 53,
        "LARGEST2": 1 << 54,
        "TRIES": TRIES,
    }
    symbols = {
        "tj_compare": compare.address("tj_compare"),
        "tj_walk": walk.address("tj_walk"),
        "new_array": at.new_array,
        "none": id(None),
        "ndarray": id(np.ndarray),
        "error": id(Exception),
        "true": id(True),
        "foreign": id(is_foreign),
    }
    code = engine.compile(interpreter.text(names), symbols=symbols, needs=[compare, walk])
    return Native(code, code.address("tj_call"), builtin(code, _HERE_NAME), builtin(code, _FINISH_NAME))


def _passes(cls: type, at: Offsets, made: Native) -> bool:
    """Whether objects of a class of our own behave as they must when they are called natively."""
    call, _ = _make_raw(cls)
    x: Any = cls()
    if (x._direct_call, x._direct_words) != (0, 0):
        return False
    x._direct_call, x._direct_words = (1 << 63) + 1, 5
    if word(id(x) + call) != (1 << 63) + 1 or x._direct_words != 5:
        return False
    x._direct_call, x._direct_words = 0, 0
    _make_callable(cls, at, call)
    seen: list[Any] = []

    def slow(*args: Any, **kwargs: Any) -> Any:
        seen.append((args, kwargs))
        return args[1:]

    words = (ctypes.c_int64 * len(CALLABLE))()
    chain = (ctypes.c_int64 * 2)()
    words[CALLABLE["chain"]], words[CALLABLE["slow"]] = ctypes.addressof(chain), id(slow)
    x._direct_words, x._direct_call = ctypes.addressof(words), made.call
    if x() != () or x(1, b=2) != (1,) or seen != [((x,), {}), ((x, 1), {"b": 2})]:
        return False
    made.here(config.modes.here)
    given = Assembler(2, 2)
    pair = given.own()
    given.emit("sequence", b=pair, y=given.record(2, argument(1), argument(0)))
    given.emit("word", argument(0), x=at.number, y=word(id(2.5) + at.number))
    given.emit("end", pair)
    entry = given.finish()
    chain[0] = entry.address
    x._direct_words = ctypes.addressof(words)
    right = x(2.5, seen) == (seen, 2.5) and x(3.5, 1) == (3.5, 1) and x(2.5) == (2.5,) and entry.hits == 1
    gc.collect()
    x._direct_call = 0
    return right


def direct(x: Direct, words: ctypes.Array[ctypes.c_int64]) -> bool:
    """Have x called natively, by what `words` (a table CALLABLE) say. False where that cannot be done."""
    made, at, cls = native(), offsets(), type(x)
    if made is None or at is None:
        return False
    if cls not in _patched:
        _make_callable(cls, at, word(guards.member_address(Direct.__dict__["_direct_call"]) + 16))
        _patched.add(cls)
    Direct.__dict__["_direct_words"].__set__(x, ctypes.addressof(words))
    Direct.__dict__["_direct_call"].__set__(x, made.call)
    return True


# -- entries


@dataclass(frozen=True, slots=True)
class Place:
    """Where an instruction finds something: a register, one whose object is the entry's to drop, or what belongs to an
    external: its address, its array, its tensor."""

    kind: str
    index: int


@dataclass(frozen=True, slots=True)
class Record:
    """A block of words of its own; it is known where it lies when the entry is finished."""

    index: int


ZERO: Final = Place("register", 0)
NAMES: Final = Place("register", 1)
HERE: Final = Place("register", 2)
Number = int | Place | Record


def argument(index: int) -> Place:
    """The argument at a position, those by name after the others."""
    return Place("register", 3 + index)


class Entry:
    """The instructions for one kind of call. `address` is for chains; `keeps` lives as long."""

    __slots__ = ("_words", "address", "keeps")

    def __init__(self, words: Mapping[str, int], keeps: Sequence[object]) -> None:
        self._words = (ctypes.c_int64 * len(ENTRY))(*(words.get(name, 0) for name in ENTRY))
        self.address = ctypes.addressof(self._words)
        self.keeps = tuple(keeps)
        self._words[ENTRY["owner"]] = id(self)
        self._words[ENTRY["alive"]] = 1

    def retire(self) -> None:
        """Never match again."""
        self._words[ENTRY["alive"]] = 0

    @property
    def hits(self) -> int:
        """Calls it has done."""
        return self._words[ENTRY["hits"]]

    @property
    def misses(self) -> int:
        """Runs that ended at a check."""
        return self._words[ENTRY["misses"]]

    @property
    def used(self) -> int:
        """The number of the call that it did last."""
        return self._words[ENTRY["used"]]


class Assembler:
    """Builds an entry: instructions, registers, records."""

    def __init__(self, arguments: int, positional: int) -> None:
        self.arguments, self.positional = arguments, positional
        self.code: list[tuple[str, Place, Place, Number, Number]] = []
        self.records: list[tuple[Number, ...]] = []
        self.keeps: list[object] = []
        self._registers, self._owned, self._externals = 3 + arguments, 0, 0

    def register(self, count: int = 1) -> Place:
        """A new register, the first of `count`."""
        self._registers += count
        return Place("register", self._registers - count)

    def own(self) -> Place:
        """A new register whose object is dropped in the end."""
        self._owned += 1
        return Place("owned", self._owned - 1)

    def external(self, index: int) -> Place:
        """The address of an external of the program."""
        self._externals = max(self._externals, index + 1)
        return Place("external", index)

    def record(self, *words: Number) -> Record:
        """A block of words."""
        self.records.append(words)
        return Record(len(self.records) - 1)

    def keep(self, x: Any) -> int:
        """The address of x, which is kept alive."""
        self.keeps.append(x)
        return id(x)

    def emit(self, op: str, a: Place = ZERO, b: Place = ZERO, x: Number = 0, y: Number = 0) -> None:
        """One more instruction."""
        self.code.append((op, a, b, x, y))

    def finish(self, tensor_array: int = 0) -> Entry:
        """The entry."""
        registers = self._registers + self._owned
        first = {
            "register": 0,
            "owned": self._registers,
            "external": registers,
            "array": registers + self._externals,
            "tensor": registers + 2 * self._externals,
        }

        def at(p: Place) -> int:
            return 8 * (first[p.kind] + p.index)

        def number(n: Number) -> int:
            return n if isinstance(n, int) else at(n) if isinstance(n, Place) else ctypes.addressof(blocks[n.index])

        blocks: list[ctypes.Array[ctypes.c_uint64]] = []
        for words in self.records:
            blocks.append((ctypes.c_uint64 * len(words))(*map(number, words)))
        code = array("Q")
        for op, a, b, x, y in self.code:
            code.extend((OPS[op] | at(a) << 8 | at(b) << 32, number(x) & guards.ALL, number(y) & guards.ALL))
        words = {
            "arguments": self.arguments,
            "positional": self.positional,
            "code": code.buffer_info()[0],
            "registers": registers,
            "owned": self._registers,
            "owned_count": self._owned,
            "externals": self._externals,
            "tensor_array": tensor_array,
        }
        return Entry(words, (code, blocks, *self.keeps))
