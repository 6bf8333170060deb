"""A trace as instructions for the native entry (runtime/dispatch.py): what Python does for a hot call, as data.

The instructions are made from a call that is about to run compiled through Python: what its key says of the arguments
becomes facts to check, the guard is the guard's own table, tensors from outside are where they are. Outputs that only
Python can make (views, gradients' tape entries) are left to `Trace.finish`, called with what the program made.
What this file does not know how to say is a reason in words (`Unsaid`), and calls of the trace go through Python.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tracejit import config
from tracejit.codegen.llvm.families import Family
from tracejit.codegen.llvm.native import Native
from tracejit.records import dataclass
from tracejit.runtime import buffer, dispatch, guards, interpreter, team
from tracejit.runtime.dispatch import HERE, NAMES, ZERO, Assembler, Entry, Place, Record
from tracejit.runtime.forks import building
from tracejit.trace import replay
from tracejit.trace.key import Call
from tracejit.trace.objects import IMMUTABLE, is_namedtuple
from tracejit.trace.outputs import Argument, Built, Computed, Container, Held, Number, Result, Scalar, Value

if TYPE_CHECKING:
    from tracejit.runtime.program import Program
    from tracejit.trace.backward import Backward
    from tracejit.trace.domain import Anatomy, Array, Domain
    from tracejit.trace.scalars import Numbers
    from tracejit.trace.tree import Bucket, Trace

__all__ = ["Direct", "Front", "Later", "Unsaid", "make"]

_DISTINCT = 24  # tensors, or containers, among the arguments: that no two are one is checked pair by pair
_PAIRS = 2000  # of tensors whose memory is compared in every call
_EXTENTS = 16  # entries of one trace, where extents are inputs
_FRAMES = 8  # calls of one entry at a time, from as many threads
_BRIEF = 64 << 10  # bytes that a program may touch without giving up the GIL: some ten microseconds
_STEPS = 256  # ... and kernels


class Unsaid(Exception):
    """There is no instruction for this; the text says for what."""


class Later(Exception):
    """There will be: what it needs is not there before a call has been run."""


@dataclass(eq=False)
class Direct:
    """The native entry of a trace."""

    entry: Entry
    program: Program
    frames: ctypes.Array[ctypes.c_int64]  # how many, then (address, whether it is in use)
    fixed: tuple[tuple[int, int], ...]  # (source, where its memory begins) of those for which overlap was ruled out
    taken: list[Any] = field(default_factory=list[Any])  # the frames
    counted: tuple[int, int] = (0, 0)

    def grow(self) -> None:
        """One more frame, if all are in use."""
        n = self.frames[0]
        if n < _FRAMES and all(self.frames[2 + 2 * k] for k in range(n)):
            frame = self.program.take_frame()
            self.taken.append(frame)
            self.frames[1 + 2 * n] = frame.address
            self.frames[0] = n + 1

    def counts(self) -> tuple[int, int]:
        """(hits, misses) since the last time."""
        before, self.counted = self.counted, (self.entry.hits, self.entry.misses)
        return self.counted[0] - before[0], self.counted[1] - before[1]

    def lies(self, arrays: Sequence[Array]) -> bool:
        """Whether memory lies where it did."""
        return all(buffer.address(arrays[i]) == at for i, at in self.fixed)


Key = tuple["Trace", tuple[tuple[str, int], ...]]  # a trace, and its extents where they are inputs


class Front:
    """What a compiled function has before its Python: the entries of its traces, in a chain."""

    def __init__(self, slow: Any) -> None:
        self.words = (ctypes.c_int64 * len(interpreter.CALLABLE))()
        self.slow = slow
        self.lock = threading.RLock()  # a collection inside may end a trace, and that comes here again
        self.directs: dict[Key, Direct] = {}
        self._link()
        self.words[interpreter.CALLABLE["slow"]] = id(slow)

    def _link(self) -> None:
        entries = [d.entry for d in self.directs.values()]
        chain = (ctypes.c_int64 * (len(entries) + 1))(*(e.address for e in entries))
        self.words[interpreter.CALLABLE["chain"]] = ctypes.addressof(chain)
        self.chain = chain, entries  # only now may those before go

    def get(self, trace: Trace, call: Call) -> Direct | None:
        """The entry of a trace for calls like this one."""
        return self.directs.get((trace, tuple(call.symbols.items())))

    def put(self, trace: Trace, call: Call, direct: Direct) -> None:
        """The entry of a trace, instead of an earlier one."""
        with building(), self.lock:
            key: Key = trace, tuple(call.symbols.items())
            of_trace = [k for k in tuple(self.directs) if k[0] is trace and k != key]
            gone = {key, *of_trace[_EXTENTS - 1 :]}  # the latest are in front
            for k in gone:
                if (before := self.directs.get(k)) is not None:
                    before.entry.retire()
            self.directs = {key: direct, **{k: d for k, d in tuple(self.directs.items()) if k not in gone}}
            self._link()

    def collect(self, buckets: Iterable[Bucket]) -> None:
        """Take over what entries have counted, and let those go whose traces are gone."""
        if not self.directs:
            return
        with building(), self.lock:
            home = {t: b for b in tuple(buckets) for t in tuple(b.traces)}
            left = set[Key]()
            for k, d in tuple(self.directs.items()):
                t = k[0]
                if (b := home.get(t)) is None:
                    d.entry.retire()
                    left.add(k)
                    continue
                hits, misses = d.counts()
                t.hits, t.misses, b.hits = t.hits + hits, t.misses + misses, b.hits + hits
                t.used = max(t.used, d.entry.used)
            if left:
                self.directs = {k: d for k, d in tuple(self.directs.items()) if k not in left}
                self._link()


def make(trace: Trace, domain: Domain, call: Call, tensors: Sequence[Any], settings: config.Config) -> Direct:
    """The entry of `trace`, which is about to do `call` with the parameters `tensors`. Raises Unsaid."""
    rec, executable, known = trace.recording, trace.executable, dispatch.offsets()
    if domain.anatomy is None or known is None or dispatch.native() is None:
        raise Unsaid("this Python's objects are not laid out as expected")
    arrays = [domain.array(t) for t in tensors]
    if isinstance(executable, Family) and (executable := executable.at(arrays)) is None:
        raise Later
    if not isinstance(executable, Native) or executable.plain is None:
        raise Unsaid("some of it runs as NumPy")
    if rec.slots:
        raise Unsaid("a tensor kept outside is an input")
    if rec.guard is None:
        raise Unsaid("it has no guard")
    if trace.kept or any(isinstance(e, Computed) and e.raises for e in rec.plan.entries):
        raise Unsaid("Python has work to do before the program, or work that may fail")
    if not all(a.flags.c_contiguous and a.flags.aligned for a in arrays):
        raise Unsaid("a tensor is not contiguous")
    out = Assembler(len(call.args) + len(call.kwargs), len(call.args))
    facts = _Facts(out, domain, domain.anatomy, known)
    given = facts.of_call(call, settings)
    facts.of_names(rec, given)
    match, out.code = out.code, []
    found = [] if rec.numbers is None else _numbers(out, facts, rec.numbers, call)
    results = _arrays(out, executable.output_types, executable.plan.first_output)
    _arrays(out, executable.temp_types, executable.plan.first_output + len(results))
    finish = _Finish(trace, domain, domain.anatomy, call, out, executable, given, results, found)
    out.emit("ask", x=ctypes.addressof(rec.guard.record))
    if rec.deeds:
        may, none = out.own(), id(None)
        out.emit("call", b=may, x=out.keep(functools.partial(replay.ready, rec.deeds)), y=out.record(0))
        out.emit("is", may, x=none)
    out.code = [*match, *out.code, *match]
    out.emit("guard", x=ctypes.addressof(rec.guard.record))
    _bind(out, facts, trace, executable, given, found, tensors, arrays)
    fixed = _keep_apart(out, trace, arrays)
    frames = (ctypes.c_int64 * (1 + 2 * _FRAMES))()
    program = executable.plain
    steps = len(program.steps) + sum((loop.trips - 1) * (loop.stop - loop.first) for loop in program.loops)
    brief = not program.is_wide and steps <= _STEPS and executable.nbytes <= _BRIEF
    threads = team.size_now() if program.is_wide else 0
    words = (program.address, ctypes.addressof(frames), int(not brief), ctypes.addressof(team.words) if threads else 0)
    out.emit("run", x=out.record(*words, threads))
    finish.emit()
    out.keeps += [trace, executable, rec.guard, frames, settings, facts]
    array = guards.slot_offset(domain.anatomy.slots[domain.anatomy.array])
    assert array is not None
    direct = Direct(out.finish(array), program, frames, fixed)
    direct.grow()
    return direct


# -- what the call looks like


@dataclass
class _Given:
    """Where the arguments are."""

    tensors: list[Place] = field(default_factory=list[Place])
    containers: list[Place] = field(default_factory=list[Place])


class _Facts:
    """Emits the facts of a call that its key stands for."""

    def __init__(self, out: Assembler, domain: Domain, anatomy: Anatomy, known: dispatch.Offsets) -> None:
        layout = guards.layout()
        assert layout.type is not None and layout.referent is not None
        self.out, self.domain, self.anatomy, self.known = out, domain, anatomy, known
        self.type, self.referent, self.list = layout.type, layout.referent, layout.list
        self.seen: dict[int, Place] = {}
        self.given = _Given()
        self.table: Record | None = None
        self.numbers: dict[Any, Place] = {}  # top-level ones, by position or name

    def outside(self, ids: Iterable[int]) -> Record:
        """The table of tensors from outside, made once."""
        if self.table is None:
            self.table = self.out.record(*_hashed(ids))
        return self.table

    def slot(self, name: str) -> int:
        offset = guards.slot_offset(self.anatomy.slots[name])
        assert offset is not None
        return offset

    def of_call(self, call: Call, settings: config.Config) -> _Given:
        """Everything but which tensors they may not be."""
        out = self.out
        (modes, of_settings), _, _, *numbers = call.key
        names = self.anatomy.modes
        if of_settings != id(settings) or len(modes) != len(names):
            raise Unsaid("modes that are kept elsewhere")
        for name, value in (*zip(names, modes), ("recorder", None), ("eager", 0)):
            offset = guards.slot_offset(config.Modes.__dict__[name])
            if offset is None or type(value) not in (bool, int, type(None)):
                raise Unsaid(f"mode {name}")
            out.emit("word", HERE, x=offset, y=id(value))
        now = guards.slot_offset(type(config.now).__dict__["settings"])
        assert now is not None
        out.emit("word", ZERO, x=id(config.now) + now, y=out.keep(settings))
        if call.kwargs:
            out.emit("word", NAMES, x=self.known.size, y=len(call.kwargs))
        for k, name in enumerate(call.kwargs):
            out.emit("word", NAMES, x=self.known.items + 8 * k, y=out.keep(sys.intern(name)))
        exact = {k for k, _ in numbers}
        names = [*range(len(call.args)), *call.kwargs]
        for k, (at, x) in enumerate(zip(names, (*call.args, *call.kwargs.values()))):
            place = dispatch.argument(k)
            if type(x) is float or type(x) is int:
                self.number(x, place, exact=at in exact)
                self.numbers[at] = place
            else:
                self.value(x, place)
        for group in (self.given.tensors, self.given.containers):
            if len(group) > _DISTINCT:
                raise Unsaid(f"more than {_DISTINCT} tensors or containers among the arguments")
            for i, a in enumerate(group):
                for b in group[:i]:
                    out.emit("apart", a, b)
        return self.given

    def of_names(self, rec: Any, given: _Given) -> None:
        """What `Recording.blocked` asks before the guard."""
        must = dict(rec.identities)
        for i, wanted in must.items():
            self.out.emit("is", given.tensors[i], x=wanted)
        if rec.outside:
            table = self.outside(rec.outside)
            for i, place in enumerate(given.tensors):
                if i not in must:
                    self.out.emit("outside", place, x=table)

    def type_is(self, t: type, place: Place) -> None:
        self.out.emit("word", place, x=self.type, y=self.out.keep(t))

    def number(self, x: float, place: Place, *, exact: bool) -> None:
        self.type_is(type(x), place)
        if not exact:
            return
        if type(x) is float:
            self.out.emit("word", place, x=self.known.number, y=int.from_bytes(struct.pack("=d", x), sys.byteorder))
        elif -(1 << 62) < x < 1 << 62:
            self.out.emit("integer", place, x=int(x))
        else:
            raise Unsaid("a large integer")

    def value(self, x: Any, place: Place) -> None:
        """The counterpart of `key._part`."""
        out, t = self.out, type(x)
        if (first := self.seen.get(id(x))) is not None:
            out.emit("same", place, first)
        elif isinstance(x, self.domain.tensor):
            self.seen[id(x)] = place
            self.given.tensors.append(place)
            self.tensor(x, place)
            self.gradient(x, place)
        elif t is float or t is int:
            self.number(x, place, exact=True)
        elif t in IMMUTABLE or isinstance(x, self.domain.constants):
            out.emit("is", place, x=out.keep(x))  # one that is equal but another goes through Python
        elif t is list or t is tuple or t is dict or is_namedtuple(t):
            self.seen[id(x)] = place
            self.given.containers.append(place)
            self.container(x, place)
        else:
            self.type_is(t, place)
            out.emit("is", place, x=id(x))
            self.alive(x)

    def alive(self, x: Any) -> None:
        """What has the address of x is x."""
        try:
            reference = weakref.ref(x, lambda _: None)  # of our own: without a function it would be shared
        except TypeError:
            self.out.keep(x)
        else:
            self.out.emit("word", ZERO, x=self.out.keep(reference) + self.referent, y=id(x))

    def container(self, x: Any, place: Place) -> None:
        out, n = self.out, len(x)
        self.type_is(type(x), place)
        if type(x) is dict:
            items = out.register(2 * n) if n else ZERO
            out.emit("dict", place, items, n)
            for k, part in enumerate(part for pair in x.items() for part in pair):
                self.value(part, Place("register", items.index + k))
            return
        elements, start = place, self.known.items
        if type(x) is list:
            if self.list is None:
                raise Unsaid("a list")
            out.emit("word", place, x=self.list[0], y=n)
            elements, start = out.register(), 0
            if n:
                out.emit("load", place, elements, self.list[1])
        else:
            out.emit("word", place, x=self.known.size, y=n)
        for k, part in enumerate(x):
            item = out.register()
            out.emit("load", elements, item, start + 8 * k)
            self.value(part, item)

    def tensor(self, t: Any, place: Place) -> None:
        """The counterpart of `Domain.facts`."""
        out, a = self.out, self.anatomy
        leaf, parent = getattr(t, a.leaf), getattr(t, a.parent)
        if leaf is not True and leaf is not False:
            raise Unsaid("a tensor's requires_grad")
        self.type_is(type(t), place)
        out.emit("word", place, x=self.slot(a.leaf), y=id(leaf))
        out.emit("word" if parent is None else "other", place, x=self.slot(a.parent), y=id(None))
        if not leaf:
            if parent is not None:  # its place on the tape is right while nothing wrote into its memory
                self.up_to_date(t, place)
            taped = getattr(t, a.tape) is not None
            out.emit("other" if taped else "word", place, x=self.slot(a.tape), y=id(None))
        array = out.register()
        out.emit("load", place, array, self.slot(a.array))
        self.array(getattr(t, a.array), array)

    def up_to_date(self, t: Any, place: Place) -> None:
        out, a = self.out, self.anatomy
        version = getattr(t, a.version)
        if getattr(t, a.seen) is not a.number.__get__(version):
            raise Unsaid("a view whose memory was written since")
        v, n, seen = (out.register() for _ in range(3))
        out.emit("load", place, v, self.slot(a.version))
        out.emit("load", v, n, guards.slot_offset(a.number) or 0)
        out.emit("load", place, seen, self.slot(a.seen))
        out.emit("same", n, seen)

    def array(self, x: Array, place: Place) -> None:
        """An ndarray like x."""
        out, of = self.out, guards.ARRAY
        self.type_is(np.ndarray, place)
        out.emit("low", place, x=of.rank, y=x.ndim)
        out.emit("word", place, x=of.dtype, y=out.keep(x.dtype))
        out.emit("bits", place, x=of.flags, y=of.WRITEABLE | (of.WRITEABLE if x.flags.writeable else 0) << 32)
        for at, numbers in ((of.extents, x.shape), (of.strides, x.strides)):
            if numbers:
                inner = out.register()
                out.emit("load", place, inner, at)
                for k, n in enumerate(numbers):
                    out.emit("word", inner, x=8 * k, y=n)

    def gradient(self, t: Any, place: Place) -> None:
        """What the key says of an argument's `.grad` and hooks."""
        out, a = self.out, self.anatomy
        g = getattr(t, a.grad)
        if g is None:
            out.emit("word", place, x=self.slot(a.grad), y=id(None))
        else:
            inner = out.register()
            out.emit("load", place, inner, self.slot(a.grad))
            self.tensor(g, inner)
        if getattr(t, a.hooks) is not None:
            raise Unsaid("a tensor with hooks")
        out.emit("word", place, x=self.slot(a.hooks), y=id(None))


def _hashed(addresses: Iterable[int]) -> list[int]:
    """(mask, slots): a table that `outside` looks into, a quarter full."""
    found = list(addresses)
    size = 1 << (4 * len(found)).bit_length()
    slots = [0] * size
    for x in found:
        at = (x >> 4) & (size - 1)
        while slots[at]:
            at = (at + 1) & (size - 1)
        slots[at] = x
    return [size - 1, *slots]


# -- what it makes


def _numbers(out: Assembler, facts: _Facts, numbers: Numbers, call: Call) -> list[Place]:
    """The numbers of the tape: read by Python where they are no arguments, and computed by the tape's own functions."""
    found: list[Place] = []
    for at, (read, step, t) in enumerate(zip(numbers.reads, numbers.steps, numbers.types)):
        if t not in (float, int, bool):
            raise Unsaid(f"a {t.__name__} that is an input")
        if at in numbers.arguments:
            found.append(facts.numbers[numbers.arguments[at]])
            continue
        if at in numbers.extents and read is not None:
            found.append(_constant(out, read(call)))  # an entry is for one set of extents
            continue
        place = out.own()
        if step is None:
            assert read is not None
            out.emit("call", b=place, x=out.keep(functools.partial(read, None)), y=out.record(0))
        else:
            operands = [found[x] if is_ref else _constant(out, x) for is_ref, x in step.operands]
            f = functools.partial(_or_none, step.f) if isinstance(step.f, types.FunctionType) else step.f
            out.emit("call", b=place, x=out.keep(f), y=out.record(len(operands), *operands))
        facts.number(t(), place, exact=False)
        found.append(place)
    for at, value, _ in numbers.guards:
        facts.number(value, found[at], exact=True)
    return found


def _or_none(f: Callable[..., Any], *args: Any) -> Any:
    """What f, which is the user's, gives, or None: where it raises, plain Python will meet that again at its place."""
    try:
        return f(*args)
    except Exception:
        return None


def _constant(out: Assembler, x: Any) -> Place:
    place = out.own()
    out.emit("take", b=place, y=out.keep(x))
    return place


def _arrays(out: Assembler, types: Sequence[tuple[tuple[int, ...], np.dtype[Any]]], first: int) -> list[Place]:
    """New arrays, whose memory is external `first`, and so on."""
    made = list[Place]()
    for k, (shape, dtype) in enumerate(types):
        place, external = out.own(), out.external(first + k)
        if prod(shape) * dtype.itemsize < buffer.SMALL:
            out.emit("array", b=place, x=out.record(out.keep(dtype), len(shape), *shape), y=external)
        else:
            out.emit("call", b=place, x=out.keep(functools.partial(buffer.empty, shape, dtype)), y=out.record(0))
            out.emit("data", place, external)
        made.append(place)
    return made


class _Finish:
    """The objects that the call returns or stores: made before the program runs, handed over after."""

    def __init__(
        self,
        trace: Trace,
        domain: Domain,
        anatomy: Anatomy,
        call: Call,
        out: Assembler,
        executable: Native,
        given: _Given,
        results: Sequence[Place],
        found: Sequence[Place],
    ) -> None:
        self.found, self.symbols = found, call.symbols
        self.trace, self.rec, self.domain, self.anatomy = trace, trace.recording, domain, anatomy
        self.out, self.executable, self.given, self.results = out, executable, given, results
        self.where = {where: self.constant(where) for _, where in self.rec.writes}
        self.made: list[Place] = []
        if call.symbols and (self.rec.backward is not None or self.rec.deeds):
            raise Unsaid("an extent is an input, and Python finishes the call")
        self.is_plain = all(map(self.is_native, self.rec.plan.entries))
        if self.is_plain:
            for e in self.rec.plan.entries:
                self.made.append(self.entry(e))
            self.old = [out.own() for _ in self.rec.grads]
            self.none = self.constant(None) if self.rec.grads else ZERO
            self.drop = out.own(), out.own()

    def is_native(self, e: Any) -> bool:
        """Whether there are instructions for a plan entry."""
        entries = self.rec.plan.entries
        match e:
            case Result():
                return e.order is None
            case Number():
                return self.executable.output_types[e.index][1].char in "fd"
            case Built():
                keys = e.items[::2] if e.kind is dict else ()  # a number is filled in too late to be hashed
                return e.kind in (list, tuple, dict) and not any(isinstance(entries[k], Number) for k in keys)
            case _:
                return isinstance(e, (Argument, Container, Held, Value, Scalar))

    def constant(self, x: Any) -> Place:
        return _constant(self.out, x)

    def sources(self) -> list[Place]:
        """The tensors behind the parameters."""
        if any(isinstance(s, Scalar) for s in self.rec.sources):
            raise Unsaid("a number is an input, and Python finishes the call")
        return [Place("tensor", i) for i in range(len(self.rec.sources))]

    def entry(self, e: Any) -> Place:
        out = self.out
        match e:
            case Argument():
                return self.given.tensors[e.index]
            case Container():
                return self.given.containers[e.index]
            case Value():
                return self.constant(e.value)
            case Scalar():
                return self.found[e.ref]
            case Held():
                if not isinstance(e.get, weakref.ref):
                    return self.constant(e.get())
                place = out.own()
                out.emit("take", b=place, x=out.keep(e.get), y=id(e.get()))
                return place
            case Number():
                place = out.own()
                out.emit("number", b=place)
                return place
            case Result():
                return self.tensor(self.results[e.index], e.requires_grad)
            case _:
                place, items = out.own(), [self.made[k] for k in e.items]
                if e.kind is dict:
                    out.emit("mapping", b=place, y=out.record(len(items) // 2, *items))
                else:
                    out.emit("sequence", b=place, x=int(e.kind is list), y=out.record(len(items), *items))
                return place

    def tensor(self, array: Place, requires_grad: bool) -> Place:
        """A tensor over a new array, like one that `wrap` makes."""
        out, a = self.out, self.anatomy
        like = self.domain.wrap(np.empty(0), requires_grad)
        version = getattr(like, a.version)
        parts = {name: type(version).__dict__[name] for name in type(version).__slots__}
        place, of_memory = out.own(), out.own()
        self.object(of_memory, version, parts)
        self.object(place, like, {k: v for k, v in a.slots.items() if k not in (a.array, a.version)})
        for name, part in ((a.array, array), (a.version, of_memory)):
            out.emit("put", part, place, guards.slot_offset(a.slots[name]) or 0)
        return place

    def object(self, place: Place, like: Any, slots: Mapping[str, Any]) -> None:
        """A new object with the contents of another's slots."""
        out, pairs = self.out, list[int]()
        for descriptor in slots.values():
            offset = guards.slot_offset(descriptor)
            assert offset is not None
            pairs += [offset, out.keep(descriptor.__get__(like))]
        out.emit("object", b=place, x=out.record(out.keep(type(like)), len(slots), *pairs))

    def emit(self) -> None:
        """What is done when the program has run."""
        out, rec, a = self.out, self.rec, self.anatomy
        n, where = (guards.slot_offset(d) or 0 for d in (a.number, a.where))
        seen, version, grad = (guards.slot_offset(a.slots[name]) or 0 for name in (a.seen, a.version, a.grad))
        for (at, _), (times, line) in zip(rec.updates, rec.writes):
            if times >= 1 << 16:
                raise Unsaid("so many writes")
            slots = n | where << 16 | seen << 32 | times << 48
            out.emit("written", self.where[line], out.external(at), version, slots)
        if not self.is_plain:
            self.tail()
            return
        for e, place in zip(rec.plan.entries, self.made):
            if isinstance(e, Number):
                is_wide = self.executable.output_types[e.index][1].itemsize == 8
                out.emit("fill", place, out.external(self.executable.plan.first_output + e.index), int(is_wide))
        if rec.backward is not None:
            self.attach(rec.backward)
        for (owner, value), old in zip(rec.grads if not rec.deeds else (), self.old):
            out.emit("set", self.none if value is None else self.made[value], self.made[owner], grad, old)
        if rec.deeds:
            self.complete()
        out.emit("end", self.made[rec.root])

    def then(self, f: Callable[..., None], places: Sequence[Place], drop: Place) -> None:
        self.out.emit("then", b=drop, x=self.out.keep(f), y=self.out.record(len(places), *places))

    def complete(self) -> None:
        """Python runs the effects, after it has set `.grad` slots."""
        trace, domain, made = self.trace, self.domain, len(self.made)

        def completed(done: list[Any], *x: Any) -> None:
            trace.complete(domain, x[made:], x[:made], done, 1)

        watched = () if self.rec.steady is None else self.sources()  # by callbacks
        self.then(completed, [*self.made, *watched], self.drop[1])

    def attach(self, back: Backward) -> None:
        """Python gives the outputs that carry gradients their tape entries."""
        trace, domain, n, made = self.trace, self.domain, len(self.rec.sources), len(self.made)
        if not back.pieces:
            tensors = [self.made[e] for p in back.outputs for e in p.tensors]

            def failed(_: list[Any], *x: Any) -> None:
                domain.tape.attach_failed(x, back.failure)

            self.then(failed, tensors, self.drop[0])
            return

        def taped(_: list[Any], *x: Any) -> None:
            objects = list(x[:made])
            nodes = trace.attach(domain, x[made : made + n], {}, objects, x[made + n :])
            for a, node in zip(trace.backward, nodes):
                a.finish(domain, node, objects)

        self.then(taped, [*self.made, *self.sources(), *self.results], self.drop[0])

    def tail(self) -> None:
        """Python finishes the call."""
        trace, domain, n, m, k = (
            self.trace,
            self.domain,
            len(self.rec.sources),
            len(self.results),
            len(self.given.tensors),
        )

        def finish(done: list[Any], *x: Any) -> Any:
            call = Call(tensors=list(x[n + m : n + m + k]), containers=list(x[n + m + k :]))
            return trace.conclude(domain, call, x[:n], x[n : n + m], done)

        if self.symbols:
            raise Unsaid("an extent is an input, and Python finishes the call")
        if self.rec.numbers is not None:
            raise Unsaid("a number is an input, and Python finishes the call")
        places = [*self.sources(), *self.results, *self.given.tensors, *self.given.containers]
        self.out.emit("tail", x=self.out.keep(finish), y=self.out.record(len(places), *places))


# -- where memory lies


def _bind(
    out: Assembler,
    facts: _Facts,
    trace: Trace,
    executable: Native,
    given: _Given,
    found: Sequence[Place],
    tensors: Sequence[Any],
    arrays: Sequence[Array],
) -> None:
    """Each parameter's memory, and the constants'."""
    rec = trace.recording
    for i, (s, owner) in enumerate(zip(rec.sources, rec.owners)):
        if owner is not None:
            out.emit("bind", _gradient_of(out, facts, rec, given, owner), out.external(i))
            continue
        if isinstance(s, Scalar):
            is_float = arrays[i].dtype.kind == "f"
            out.emit("scalar" if is_float else "whole", found[s.ref], out.external(i))
            continue
        if isinstance(s, Argument):
            out.emit("bind", given.tensors[s.index], out.external(i))
            continue
        if not isinstance(s, Held) or type(s.get) is not weakref.ref:
            raise Unsaid("a tensor that cannot be watched")
        out.emit("held", b=out.external(i), x=out.keep(s.get), y=id(tensors[i]))
        if id(tensors[i]) not in rec.guarded:
            facts.array(arrays[i], Place("array", i))
    for k, a in enumerate(executable.plan.constants):
        out.emit("constant", b=out.external(len(rec.sources) + k), x=buffer.address(a))


def _gradient_of(out: Assembler, facts: _Facts, rec: Any, given: _Given, owner: Any) -> Place:
    """The `.grad` that a tensor has now: another one in every call, of the kind that the guard has just seen. No tensor
    known by another name; two owners may share one, unless it is written, and then its memory is kept apart."""
    place, slot = out.register(), facts.slot(facts.anatomy.grad)
    if isinstance(owner, Argument):
        out.emit("load", given.tensors[owner.index], place, slot)
    else:
        if not isinstance(owner, Held) or type(owner.get) is not weakref.ref or (x := owner.get()) is None:
            raise Unsaid("a tensor that cannot be watched")
        facts.alive(x)
        out.emit("load", ZERO, place, id(x) + slot)
    if rec.outside:
        out.emit("outside", place, x=facts.outside(rec.outside))
    for t in given.tensors:
        out.emit("apart", place, t)
    return place


def _keep_apart(out: Assembler, trace: Trace, arrays: Sequence[Array]) -> tuple[tuple[int, int], ...]:
    """What is written shares memory with nothing else. Those from outside share none now (Python has just looked), so
    it is enough that they do not move, and that no argument lies in what is written, or in anything if it is written.
    """
    rec = trace.recording
    written = {at for at, _ in rec.updates}
    if not written:
        return ()
    spans = {
        i: (buffer.address(a), buffer.address(a) + a.nbytes)
        for i, a in enumerate(arrays)
        if a.nbytes and not isinstance(rec.sources[i], Scalar)  # new in every call, and nobody else's
    }
    fixed = {i: span for i, span in spans.items() if isinstance(rec.sources[i], Held)}
    moving = [i for i in spans if i not in fixed]
    if len(moving) * len(written.intersection(moving)) > _PAIRS:
        raise Unsaid("so many tensors that are new in every call, written")
    for i, (begin, _) in fixed.items():
        out.emit("fixed", b=out.external(i), x=begin)
    tables = [list(_merged(fixed[i] for i in fixed if not only or i in written)) for only in (True, False)]
    records = [out.record(len(t), *(x for span in t for x in span)) for t in tables]
    for k, i in enumerate(moving):
        if tables[i in written]:
            out.emit("clear", b=out.external(i), x=arrays[i].nbytes, y=records[i in written])
        for j in moving[:k]:
            if i in written or j in written:
                out.emit("disjoint", out.external(i), out.external(j), arrays[i].nbytes, arrays[j].nbytes)
    return tuple((i, begin) for i, (begin, _) in fixed.items())


def _merged(spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The spans' union, in order, as spans that do not touch."""
    ordered = sorted(spans)
    if not ordered:
        return
    begin, end = ordered[0]
    for low, high in ordered[1:]:
        if low > end:
            yield begin, end
            begin, end = low, high
        end = max(end, high)
    yield begin, end
