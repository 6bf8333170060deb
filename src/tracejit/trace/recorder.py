"""One open recording: which facts outside the tensors it relied on, what is fresh, and why it cannot be compiled.

Deny by default. Every object is OLD (reading it needs a cell, writing it is an effect, which `journal.py` keeps)
unless an audited allocation made it FRESH in this recording. A `Cell` is one fact about the world outside, to be
checked before the trace is used again; `guard.py` makes them a checker.

The Tensor layer talks to `active()`: the graph side of what it says goes to `builder.GraphBuilder`.
"""

from __future__ import annotations

import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tracejit import config
from tracejit.ir.dim import Dim
from tracejit.ir.dtype import bool_, int64
from tracejit.ir.graph import Graph
from tracejit.ir.node import Node
from tracejit.ir.op import Op
from tracejit.ir.symint import Scope, SymInt
from tracejit.ops.control import StopGradient
from tracejit.records import dataclass
from tracejit.trace.builder import GraphBuilder
from tracejit.trace.domain import Domain
from tracejit.trace.journal import Journal
from tracejit.trace.objects import (
    ABSENT,
    FRESH_ITERATORS,
    HEAP,
    IMMUTABLE,
    PAYLOADS,
    VIEWS,
    bits,
    describe,
    elements,
    is_namedtuple,
    is_opaque_method,
    kind_of,
    of_payload,
    place_of,
    plain_numbers,
    stamp_of,
)
from tracejit.trace.scalars import (
    LARGEST,
    OPAQUE,
    Memory,
    Opaque,
    OpaqueInt,
    Source,
    Tape,
    leaves,
    plain_number,
)

__all__ = ["ABSENT", "Cell", "Reason", "Recorder", "active", "bits", "opened"]


class Refused(Exception):
    """Recording goes no further."""


_modes = config.modes


def active() -> Recorder | None:
    """The recording open in this thread, or None."""
    return _modes.here.recorder


class opened:
    """`with opened(r):` r is the recording of this thread; None pauses whatever is open."""

    def __init__(self, recorder: Recorder | None) -> None:
        self.recorder = recorder

    def __enter__(self) -> None:
        here = _modes.here
        self.before, here.recorder = here.recorder, self.recorder

    def __exit__(self, *exc: object) -> None:
        _modes.here.recorder = self.before


@dataclass(frozen=True, slots=True)
class Cell:
    """One fact about the world: what `key` of `owner` was when the recording read it.

    kind      owner, key -> value
    item      dict, key -> value or ABSENT
    ivar      object, name -> entry of its __dict__ or ABSENT
    dict      dict -> its items in order             list, set, deque: likewise, a tuple
    bytes     bytearray -> its bytes
    len       builtin container -> its length
    has       dict, key -> whether it is there
    member    object, descriptor of a slot -> value or ABSENT
    type      object -> its class
    ivars     object -> the items of its __dict__ in order
    class     class, name -> entry of its own __dict__ or ABSENT
    mro       class -> its __mro__
    stamp     class -> everything in the __dict__s of its MRO
    closure   cell -> contents or ABSENT
    function  function -> (code, defaults, keyword defaults in order)
    fattr     function, name -> attribute
    tensor    tensor -> domain.facts
    grad      tensor -> None, or the facts of its gradient
    hooks     tensor -> False: it has no gradient hooks
    abc       (nothing) -> number of ABC registrations
    """

    kind: str
    owner: Any
    key: Any
    value: Any
    where: str | None


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a recording was refused, and the user's line."""

    text: str
    where: str | None

    def __str__(self) -> str:
        return f"{self.where}: {self.text}" if self.where else self.text


_names: dict[str, str] = {}  # file of a frame -> its name, empty for the library's own: asked 30 times for each op
_PACKAGE = __file__.rsplit("/", 2)[0] + "/"
_PROGRAMS = _PACKAGE + "tools/"  # programs that use the library, and ship with it


def where() -> str | None:
    """file:line of the innermost frame of user code. Instrumented copies keep their file name."""
    f: types.FrameType | None = sys._getframe(1)
    while f is not None:
        name = f.f_code.co_filename
        if (short := _names.get(name)) is None:
            ours = name.startswith(_PACKAGE) and not name.startswith(_PROGRAMS)
            if len(_names) > 4096:  # a program may compile new source for ever
                _names.clear()
            short = _names[name] = "" if ours else name.rsplit("/", 1)[-1]
        if short:
            return f"{short}:{f.f_lineno}"
        f = f.f_back
    return None


def plainly(f: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Any:
    """f(*args, **kwargs)"""
    return f(*args, **(kwargs or {}))


def directly(f: Callable[..., Any], *args: Any) -> Any:
    """f(*args)"""
    return f(*args)


class Recorder:
    """An open recording. Hooks and the Tensor layer write to it; `tree.py` reads it when the call is over."""

    def __init__(self, domain: Domain, memory: Memory | None = None, scope: Scope | None = None) -> None:
        self.domain = domain
        self.scope = scope  # of a recording for all extents
        if scope is not None:
            scope.place = self._extent_place
        self.memory = memory or Memory()
        self.numbers = Tape()
        self.number_params: dict[int, tuple[Any, Node]] = {}  # place on the tape -> (tensor, parameter)
        self.looked: set[Any] = set()  # inputs that were looked at
        self.journal = Journal()
        self.builder = GraphBuilder(where, scope)
        self.tape_start = domain.tape.position()  # tape entries with a smaller `seq` were made outside
        # How hooks call: `calls.call`, set while the recording is open.
        self.invoke: Callable[..., Any] = plainly
        # How our own work is done while the net watches: `Net.unwatched`.
        self.unwatched: Callable[..., Any] = directly
        self.codes: dict[int, types.CodeType] = {}  # the code of the user's functions that ran
        self.cells: dict[tuple[Any, ...], Cell] = {}
        self.reasons: list[Reason] = []
        self.fresh: dict[int, Any] = {}  # made in this recording; kept alive so that ids stay theirs
        self.instances: set[int] = set()  # ... of classes in Python, by object.__new__
        self.guarded: dict[int, Any] = {}  # argument containers: their structure is in the call's key
        self.keep: list[Any] = []
        self.dict_owner: dict[int, Any] = {}  # __dict__ handed out -> its object
        self.outer_cells: dict[int, Any] = {}  # closure cells of functions from outside
        self.grads: dict[int, tuple[Any, Any]] = {}  # outside tensors whose .grad was written: (tensor, value now)
        self.grad_sources: dict[int, Any] = {}  # id of an outside gradient -> the tensor whose .grad it was
        self.arguments: set[int] = set()  # ids of the tensors among the arguments, and in slots
        self.slots: dict[Any, tuple[Source, Any]] = {}  # place of a cell -> the tensor, or tuple of them, found there
        self.silent = False  # the next `.item()` makes an Opaque instead of a check
        # Values kept off the tape: the place on the tape (as `domain.edge` has it) they count as all the same, or None.
        self.off_tape: dict[Node, Any] = {}
        self.activations: list[tuple[types.CodeType, int]] = []  # the instrumented functions that run, numbered
        self.entered = 0  # how many ran
        # See `loops.py`: by activation and place, the loops that turn; and what was noted of those that asked the data.
        self.turning: dict[int, dict[int, Any]] = {}
        self.runs: list[Any] = []
        self.watched: list[Any] = []  # of what is fresh what something else referred to when a turn began, or is newer
        self.counts = False  # a loop's turns are compared: also what is known without a check is checked
        self.constant: dict[int, bool] = {}  # by id of a node, whether no parameter is behind it
        self.slot_writes = 0  # fields of tensors that were written
        self.closing = False  # the call is over, its backward pass is being recorded

    # -- refusing

    def refuse(self, why: str) -> None:
        """This recording will not be compiled, because of `why`; the call goes on."""
        if len(self.reasons) < 8 and all(r.text != why for r in self.reasons):
            self.reasons.append(Reason(why, where()))

    def raises(self, x: Any) -> None:
        """x is about to be raised: handlers read its fields as those of a new object."""
        if not isinstance(x, type) and id(x) not in self.fresh:
            self.refuse(f"raises {describe(x)} made outside")

    def effect(self, target: Any, what: str) -> None:
        """`target` is about to be changed in a way that cannot be replayed: fine on fresh objects only."""
        if self.outside(target):
            self.refuse(f"changes an outside object: {what} on {describe(target)}")

    # -- what is fresh

    def made(self, x: Any) -> Any:
        """Mark x as made in this recording; returns it."""
        t, at = type(x), id(x)
        known = at in self.fresh
        if t is types.GeneratorType:  # what it does when it is dropped must happen when it would without us
            fresh = self.fresh
            fresh[at] = weakref.ref(x, lambda _: fresh.pop(at, None))
        elif t not in IMMUTABLE:
            self.fresh[at] = x
        if self.counts and not known and at in self.fresh:
            self.watched.append(self.fresh[at])
        return x

    def is_old(self, x: Any) -> bool:
        """Whether reading x needs a cell."""
        return self.outside(x) and id(x) not in self.guarded and id(x) not in self.journal.known

    def outside(self, x: Any) -> bool:
        """Whether writing x is an effect."""
        return id(x) not in self.fresh and not (self.is_tensor(x) and self.builder.made_here(x))

    def is_value(self, x: Any) -> bool:
        """Whether x is an immutable number, text or constant of the library: nothing to guard inside it."""
        return (
            type(x) in IMMUTABLE or isinstance(x, self.domain.constants) or (type(x) is slice and self._plain_slice(x))
        )

    def _plain_slice(self, x: slice) -> bool:
        return all(type(v) in IMMUTABLE for v in (x.start, x.stop, x.step))

    def is_tensor(self, x: Any) -> bool:
        """Whether x is a tensor."""
        return isinstance(x, self.domain.tensor)

    # -- cells

    def cell(self, kind: str, owner: Any, key: Any, value: Any) -> Any:
        """Record a fact, the first time it is read; returns `value`."""
        kind, owner, k = self.locate(kind, owner, key)
        if k not in self.cells and not self.written(kind, owner, key):
            self.cells[k] = Cell(kind, owner, key, value, where() if kind in _SHOWN else None)
            self.keep.append((owner, key, value))
        return value

    def locate(self, kind: str, owner: Any, key: Any) -> tuple[str, Any, tuple[Any, ...]]:
        """(kind, owner, key among the cells) of a fact."""
        named = kind == "dict" or (kind == "item" and type(key) is str)
        if named and (holder := self.dict_owner.get(id(owner))) is not None:
            # Guard through the object: its __dict__ is not kept.
            kind, owner = ("ivar" if kind == "item" else "ivars"), holder
        return kind, owner, (kind, id(owner), (type(key), key) if type(key) in IMMUTABLE else id(key))

    def written(self, kind: str, owner: Any, key: Any) -> bool:
        """Whether the recording wrote a fact itself, so that it knows it."""
        return bool(self.journal.written) and place_of(kind, owner, key) in self.journal.written

    # -- numbers

    def read(self, kind: str, owner: Any, key: Any, value: Any) -> Any:
        """A fact whose value the recorded code goes on with: what was written there, or else a `cell`, or an input
        where it is a number that changed."""
        if self.written(kind, owner, key):
            return self.journal.written[place_of(kind, owner, key)]
        at, holder, k = self.locate(kind, owner, key)
        t = type(value)
        if not self.is_old(owner):
            return value
        if (t is self.domain.tensor or t is tuple) and (type(key) in _SIMPLE_KEYS or kind == "member"):
            return self._slot(at, holder, k, key, value)
        if (t is not float and t is not int) or (type(key) not in _SIMPLE_KEYS and kind != "member"):
            return self.cell(kind, owner, key, value)
        if k in self.cells or not self.memory.widens(k, value, bits(value)):
            return self.cell(kind, owner, key, value)
        self.keep.append(holder)
        place = self.numbers.put(k, Source(at, holder, key.__name__ if kind == "member" else key), value)
        if bits(self.numbers.values[place]) != bits(value):  # written since it was first read
            self.refuse("a number outside changes during the call")
            return value
        return self.numbers.opaque(place)

    def _slot(self, kind: str, owner: Any, place: Any, key: Any, value: Any) -> Any:
        """What was found in a place outside: a tensor, or tuple of them, is an input where others were there before."""
        if place in self.slots:
            return value
        tensors: tuple[Any, ...] = value if type(value) is tuple else (value,)
        fits = 0 < len(tensors) <= 16 and kind in _SLOTS and place not in self.cells
        fits = fits and len(set(map(id, tensors))) == len(tensors) and all(map(self._may_move, tensors))
        if not fits or not self.memory.moves(place, tensors):
            return self.cell(kind, owner, key, value)
        self.keep += [owner, value]
        self.slots[place] = Source(kind, owner, key.__name__ if kind == "member" else key), value
        self.arguments.update(map(id, tensors))
        return value

    def _may_move(self, t: Any) -> bool:
        """Whether t is a tensor that is known by no other name, and has no gradient and no hooks."""
        if type(t) is not self.domain.tensor or self.domain.get_hooks(t) or self.domain.get_grad(t) is not None:
            return False
        return id(t) not in self.arguments and id(t) not in self.grad_sources and not self.builder.knows(t)

    def argument(self, where: Any, value: Any) -> Any:
        """A number argument as an input."""
        return self.numbers.opaque(self.numbers.put(("argument", where), Source("argument", None, where), value))

    # -- extents, in a recording for all of them

    def shape_of(self, tensor: Any) -> tuple[int, ...] | None:
        """The shape of a tensor whose extents may be others in other calls, as ints that know it; None: it has none."""
        b = self.builder.bindings.get(id(tensor))
        if self.scope is None or b is None or b.node.type.is_static:
            return None
        return tuple(map(self.scope.int_of, b.node.shape))

    def _extent_place(self, dim: Dim, value: int) -> int:
        return self.numbers.put(("extent", dim), Source("extent", None, dim), value)

    def hand(self, x: Any) -> Any:
        """x, about to be handed to the library, which knows what to do with extents: `settle` for all else."""
        if type(x) in OPAQUE:
            return x if type(x) is SymInt else self.reveal(x)
        if type(x) in (list, dict, tuple, slice) or is_namedtuple(type(x)):
            return plain_numbers(x, {}, lambda v: v if type(v) is SymInt else self.reveal(v))
        return x

    # -- indices that are inputs

    def index(self, x: Any, key: Any) -> Any:
        """`key`, about to be an index of tensor x: numbers that change stay what they are where the library can follow
        them (`windows.py`), in views without gradients."""
        if self.scope is None and not self.domain.needs_grad(x):
            if type(key) is tuple:
                return tuple([self._index(k) for k in key])
            return self._index(key)
        return self.hand(key)

    def _index(self, k: Any) -> Any:
        if type(k) is OpaqueInt:
            return k if k.ref >= 0 and abs(plain_number(k)) <= LARGEST else self.reveal(k)
        if type(k) is slice and type(k.step) in (type(None), int) and k.step in (None, 1):
            return slice(self._index(k.start), self._index(k.stop)) if _is_moving(k) else self.hand(k)
        return self.hand(k)

    def place(self, i: Any, n: int, axis: int) -> Any:
        """See `windows.py`."""
        from tracejit.trace import windows  # it needs what needs this

        return windows.place(self, i, n, axis)

    def span(self, s: slice, n: int) -> tuple[Any, int]:
        """See `windows.py`."""
        from tracejit.trace import windows

        return windows.span(self, s, n)

    def split(self, op: Op) -> tuple[Any, Op]:
        """(what is recorded, what is computed now) of an op whose attributes may be inputs."""
        if self.scope is not None:
            return self.scope.split(op)
        if op.name != "slice" or all(type(s) is not OpaqueInt for s in op.starts):  # type: ignore[attr-defined]
            return op, op
        from tracejit.trace import windows

        return windows.split(self, op)

    def is_window(self, view: Any) -> bool:
        """Whether a view is one that moves."""
        found = self.builder.views.get(id(view))
        return found is not None and found.name == "window"

    def stay(self, window: Any) -> None:
        """What moves must not: the numbers that it comes from are constants of the next recording."""
        from tracejit.trace import windows

        self.refuse("asks for a gradient through a view at an index that changes")
        for at in windows.sources(self, window):
            self._pin(at, self.numbers.values[at])

    def touch(self, tensor: Any) -> None:
        """Facts about an outside tensor were read."""
        if self.closing or id(tensor) in self.arguments or id(tensor) in self.grad_sources:
            return  # in the call's key, or guarded as the .grad of its owner
        if not self.builder.made_here(tensor):
            self.cell("tensor", tensor, None, self.domain.facts(tensor))

    def lookup(self, t: type, name: str) -> Any:
        """`name` in the MRO of class t as attribute lookup finds it, or ABSENT; records where it was looked for."""
        if t.__flags__ & HEAP:
            self.cell("mro", t, None, t.__mro__)
        for c in t.__mro__:
            found = c.__dict__.get(name, ABSENT)
            if c.__flags__ & HEAP:
                found = self.read("class", c, name, found)
            if found is not ABSENT:
                return found
        return ABSENT

    def stamp(self, t: type) -> None:
        """C code may call any protocol method of class t: guard on all of it."""
        if t.__flags__ & HEAP:
            if any(k[0] == "class" and any(k[1] == id(c) for c in t.__mro__) for k in self.journal.written):
                self.refuse(f"C code reads class {describe(t)}, which the call has changed")
            self.cell("stamp", t, None, stamp_of(t))

    def type_of(self, x: Any) -> type:
        """type(x), recorded for old objects whose class can be changed."""
        t = type(x)
        if t.__flags__ & HEAP and id(x) not in self.arguments and self.is_old(x):
            self.cell("type", x, None, t)
        return t

    def shallow(self, x: Any) -> None:
        """C code reads the elements of builtin container x, not what is inside them."""
        t = type(x)
        if t is tuple or t in IMMUTABLE or is_namedtuple(t):
            return
        self.journal.whole.add(id(x))
        for v in self.journal.hidden.pop(id(x), ()):
            self.reveal(v)
        if not self.is_old(x):
            return
        if (kind := kind_of(x)) is not None:
            found = self.journal.before[id(x)] if id(x) in self.journal.before else elements(x)
            if type(x) is list or type(x) is deque:  # perhaps of tensors, others in every call
                _, _, place = self.locate(kind, x, None)
                self._slot(kind, x, place, None, found)
            else:
                self.cell(kind, x, None, found)
            if id(x) in self.journal.before:
                self.journal.known.add(id(x))
        elif not self.is_tensor(x) and not self.is_value(x):
            self.refuse(f"C code reads {describe(x)}")

    def deep(self, x: Any, depth: int = 0) -> None:
        """C code may read x as deep as it goes: builtin containers inside are recorded, anything unknown refuses."""
        t: Any = type(x)
        if t in OPAQUE:
            self.reveal(x)
            return
        if t is float and x != x and depth:
            self.refuse("C code compares a NaN inside a container, by identity")
        if t in IMMUTABLE or isinstance(x, self.domain.constants):
            return
        if self.is_tensor(x):
            self.touch(x)
            return
        if depth > 6:
            self.refuse("C code reads a deeply nested container")
        elif t is list or t is set or t is frozenset or t is deque:
            self.shallow(x)
            for v in tuple(x):
                self.deep(v, depth + 1)
        elif t is tuple or is_namedtuple(t):
            for v in x:
                self.deep(v, depth + 1)
        elif t is slice:
            for v in (x.start, x.stop, x.step):
                self.deep(v, depth + 1)
        elif t is bytearray:
            self.shallow(x)
        elif t is dict or (t.__module__ == "collections" and issubclass(t, dict)):
            self.shallow(x)
            for k, v in tuple(dict.items(x)):
                self.deep(k, depth + 1)
                self.deep(v, depth + 1)
        elif isinstance(x, type):
            self.stamp(x)
        elif t in VIEWS and id(x) in self.fresh:
            for v in tuple(x):
                self.deep(v, depth + 1)
        elif isinstance(x, (types.FunctionType, types.BuiltinFunctionType, types.ModuleType)) or (
            t in FRESH_ITERATORS and id(x) in self.fresh
        ):
            pass
        elif isinstance(x, BaseException) and (t.__module__ == "builtins" or id(x) in self.fresh):
            self.stamp(t)
            self.deep(x.args, depth + 1)
        elif all(c in PAYLOADS or c.__flags__ & HEAP for c in t.__mro__) and not any(
            "__next__" in c.__dict__ for c in t.__mro__
        ):
            # A class written in Python: whatever protocol method C code calls is a Python frame, which the net sees.
            # Without one, C code uses identity (==, hash) or the address (repr), and the latter differs for fresh
            # objects.
            self.type_of(x)
            self.stamp(t)
            if odd := [
                k
                for c in t.__mro__
                if c not in PAYLOADS
                for k, v in c.__dict__.items()
                if k[:2] == "__" and is_opaque_method(v) and not of_payload(v)
            ]:
                self.refuse(f"C code may call {t.__qualname__}.{odd[0]}, which is not a Python function")
        else:
            self.refuse(f"C code reads {describe(x)}")

    def reachable(self) -> set[int]:
        """Ids of everything that a cell found outside, or found something else through."""
        found = set(self.found()) | self.outer_cells.keys() | self.journal.anchors
        for c in self.cells.values():
            if c.kind not in ("tensor", "grad", "hooks"):
                found |= {id(c.owner), id(c.key)}
        return found

    def found(self) -> dict[int, Any]:
        """By id, everything that is the value of a cell, or in a tuple that is."""
        found: dict[int, Any] = {}
        stack: list[Any] = [c.value for c in self.cells.values()]
        while stack:
            x = stack.pop()
            if id(x) not in found:
                found[id(x)] = x
                if isinstance(x, tuple):
                    stack.extend(x)
        return found

    # -- what the Tensor layer says

    def emit(self, op: Op, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """`op` ran."""
        for t in inputs:
            self.touch(t)
        self.builder.emit(op, inputs, outputs)
        self._off_tape(inputs, outputs)

    def inline(self, graph: Graph, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """All of `graph` ran, and nothing of it is on the tape."""
        for t in inputs:
            self.touch(t)
        self.builder.inline(graph, inputs, outputs)
        self._off_tape(inputs, outputs)

    def _off_tape(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        if (
            not self.closing
            and any(map(self.domain.needs_grad, inputs))
            and not any(map(self.domain.has_tape, outputs))
        ):
            for t in outputs:
                node = self.builder.node_of(t)
                self.off_tape[node.inputs[0] if node.op.name == "item" else node] = None

    def assign(self, target: Any, value: Any, taped: bool) -> None:
        """The memory of `target` was overwritten by `value`, and so was its place on the tape where `taped`."""
        self.touch(target)
        self.builder.assign(target, value)
        if not taped and (self.domain.needs_grad(target) or self.domain.needs_grad(value)):
            self.off_tape[self.builder.rebind(target, StopGradient())] = self.domain.edge(target)

    def alias(self, new: Any, old: Any) -> None:
        """`new` is another handle on `old`."""
        self.touch(old)
        self.builder.alias(new, old)

    def stand(self, tensor: Any, edge: Any) -> None:
        """`tensor` stands at a place on the tape where another value did: a value that was computed again."""
        at = (id(edge[0]), edge[1])
        if self.builder.node_of(tensor) is not self.builder.places.get(at):
            node = self.builder.rebind(tensor, StopGradient())
            self.builder.also.setdefault(at, []).append(node)
            self.off_tape[node] = edge

    def adopt(self, grad_node: Any, results: Sequence[Any]) -> None:
        """A tape entry was made."""
        self.builder.adopt(grad_node, results)

    def alias_result(self, new: Any, grad_node: Any, index: int) -> None:
        """`new` is a handle on a result of a tape entry."""
        if id(grad_node) not in self.builder.grad_nodes:
            self.refuse("differentiates through operations that ran before this call")
        self.builder.alias_result(new, grad_node, index)

    def adopt_rule(self, grad_node: Any, results: Sequence[Any], carrying: Sequence[bool]) -> None:
        """The tape entry of a custom rule was made: its results are values of their own, whatever `forward` did."""
        for i, t in enumerate(results):
            if carrying[i]:
                node = self.builder.rebind(t, StopGradient())
                self.builder.places[id(grad_node), i] = node
                self.off_tape[node] = None
        self.builder.grad_nodes[id(grad_node)] = (grad_node, list(results))

    def footprint(self, exempt: Any) -> Any:
        """What was done to the world outside so far, apart from writes to `exempt`: differs after more of it."""
        written = tuple((i, t._version.n) for i, t in self.builder.written.items() if t is not exempt)
        return len(self.journal.effects), written, len(self.grads)

    def run_hook(self, hook: Callable[..., Any], args: Sequence[Any]) -> Any:
        """The library calls a gradient hook."""
        return self.settle(self.invoke(hook, tuple(args)))

    def custom_rule(self, context: Any) -> None:
        """A user-defined gradient rule is used; this is its new context."""
        self.made(context)
        self.made(context.__dict__)

    def call(self, fn: Callable[..., Any], args: Sequence[Any]) -> Any:
        """The library calls the backward of a custom rule, recorded as if called where it is used."""
        if id(args[0]) not in self.fresh or self.closing:
            self.refuse(f"the library calls {getattr(fn, '__qualname__', fn)}")
            if self.closing:
                raise Refused  # the call is over: what the user's code does now it would do twice
            return fn(*args)
        return self.settle(self.invoke(fn, tuple(args)))

    def read_mode(self, name: str, value: Any) -> Any:
        """A mode was read: all of them are in the call's key."""
        return value

    def read_slot(self, tensor: Any, name: str, value: Any) -> Any:
        """A field of a tensor was read."""
        if self.builder.made_here(tensor):
            return value
        self.touch(tensor)
        if name == "hooks":
            if id(tensor) in self.arguments:
                if value:
                    self.refuse("runs gradient hooks of an argument")
            elif value is None:
                self.cell("hooks", tensor, None, False)
            elif (anatomy := self.domain.anatomy) is not None:
                self.cell("member", tensor, anatomy.slots[anatomy.hooks], value)
                self.cell("dict", value, None, tuple(value.items()))
        elif name == "grad" and id(tensor) not in self.grads:
            if id(tensor) not in self.arguments:
                self.cell("grad", tensor, None, None if value is None else self.domain.facts(value))
            if value is not None:
                if id(value) in self.grad_sources:
                    if self.grad_sources[id(value)] is not tensor:
                        self.refuse("reads a .grad that is also another tensor's")
                elif self.builder.knows(value):
                    self.refuse("reads a .grad that is also known by another name")
                self.grad_sources[id(value)] = tensor
                self.keep.append(value)
        return value

    def write_slot(self, tensor: Any, name: str, value: Any) -> None:
        """A field of a tensor is about to be written."""
        self.slot_writes += 1
        if self.builder.made_here(tensor):
            return
        self.touch(tensor)
        if name == "grad":
            self.grads[id(tensor)] = (tensor, value)
        else:
            self.refuse(f"changes {name} of an outside tensor")

    def look(self, kind: str, tensor: Any, value: Any) -> Any:
        """Python sees the elements of a tensor: a value guard for each, or for all at once."""
        if self.silent and kind == "item":
            return value
        self.touch(tensor)
        self._look(kind, tensor)
        return self.made_deep(value) if isinstance(value, list) else value

    def made_deep(self, x: Any) -> Any:
        """Mark nested lists as fresh."""
        if isinstance(x, list):
            self.made(x)
            for v in x:
                self.made_deep(v)
        return x

    def item(self, get: Callable[[Any], Any], tensor: Any) -> Any:
        """`tensor.item()` called by user code: opaque for floats that depend on data, else as `look` has it."""
        self.touch(tensor)
        array = self.domain.array(tensor)
        if array.size != 1 or array.dtype.kind in "biu":
            return get(tensor)
        self.silent = True
        try:
            value = get(tensor)
        finally:
            self.silent = False
        node = self.builder.node_of(tensor)
        if not self.counts and self._is_constant(node):
            return value
        out = Opaque(value)
        out.node, out.recipe, out.ref, out.seen = reshape(node, ()), None, -1, False
        return out

    def reveal(self, x: Any) -> Any:
        """x as a plain number: its value becomes a check."""
        if type(x) not in OPAQUE:
            return x
        if type(x) is SymInt:
            return x.looked(f"Python looks at it at {where()}")
        value = plain_number(x)
        if not x.seen:
            x.seen = True
            for leaf in leaves(x) if x.recipe is not None else (x,):
                if self.is_tensor(leaf):
                    self.refuse("looks at the text of a tensor")
                elif type(leaf) not in OPAQUE or (leaf.seen and leaf is not x):
                    continue
                elif leaf.ref < 0:
                    self.builder.check(leaf.node, plain_number(leaf), "item")
                else:
                    self._pin(leaf.ref, plain_number(leaf))
                if leaf is not x and type(leaf) in OPAQUE:
                    leaf.seen = True
        return value

    def _pin(self, at: int, value: Any) -> None:
        self.numbers.guards[at] = value
        entry = self.numbers.entries[at]
        if isinstance(entry, Source):
            if entry.kind == "argument":
                self.looked.add(entry.key)
            else:
                self.looked.add(k := self.locate(entry.kind, entry.owner, entry.key)[2])
                self.memory.exact.add(k)

    def settle(self, x: Any) -> Any:
        """x, about to be seen by the world outside: fresh lists and dicts in it get plain numbers."""
        if type(x) in OPAQUE:
            return self.reveal(x)
        if type(x) in (list, dict, tuple, slice) or is_namedtuple(type(x)):
            return plain_numbers(x, {}, self.reveal)
        return x

    def _is_constant(self, node: Node) -> bool:
        """Whether no parameter is behind `node`; asked of each node once, for a loop asks in every turn."""
        known, stack = self.constant, [node]
        while stack:
            n = stack[-1]
            waiting = [] if n.id in known else [i for i in n.inputs if i.id not in known]
            if waiting:
                stack += waiting
                continue
            stack.pop()
            if n.id not in known:
                known[n.id] = n.op.name != "param" and all(known[i.id] for i in n.inputs)
        return known[node.id]

    def _look(self, kind: str, tensor: Any) -> None:
        node = self.builder.node_of(tensor)
        if not self.counts and self._is_constant(node):
            return
        if not node.type.is_static:
            self.builder.lose("Python reads the elements of a tensor whose extents change")
            return
        array = self.domain.array(tensor)
        if array.size == 1 and kind != "tolist":
            node = reshape(node, ())
            if kind == "bool" and node.dtype is not bool_:
                node = Node.of(Op.registry["cast"](bool_), (node,))  # type: ignore[call-arg]
                self.builder.check(node, bool(array.reshape(())), kind)
                return
            if kind == "int" and node.dtype.is_floating_point:
                node = Node.of(Op.registry["cast"](int64), (node,))  # type: ignore[call-arg]
                self.builder.check(node, int(array.reshape(())), kind)
                return
            self.builder.check(node, python_number(array.reshape(())), kind)
            return
        if array.size > 256 or (array.size > 16 and array.dtype.kind not in "biu"):
            self.refuse(f"Python reads all {array.size} elements of a tensor")
            return
        flat = reshape(node, (array.size,))
        values = array.reshape(-1)
        for i in range(array.size):
            one = Node.of(Op.registry["slice"]((i,), (i + 1,), (1,)), (flat,))  # type: ignore[call-arg]
            self.builder.check(reshape(one, ()), python_number(values[i]), kind)


def _is_moving(s: slice) -> bool:
    return any(type(v) is OpaqueInt for v in (s.start, s.stop))


_SHOWN = frozenset(
    ("ivar", "item", "closure", "member", "fattr", "dict", "list", "set", "deque", "bytes", "len", "has", "ivars")
)  # the line helps here
_SLOTS = frozenset(("ivar", "item", "closure", "member", "list", "deque"))  # what a compiled call may read for itself
_SIMPLE_KEYS: frozenset[type] = frozenset((str, int, type(None)))


def reshape(node: Node, shape: tuple[int, ...]) -> Node:
    """`node` with another shape."""
    return node if node.shape == shape else Node.of(Op.registry["reshape"](shape), (node,))  # type: ignore[call-arg]


def python_number(x: Any) -> bool | int | float:
    """A NumPy scalar as the Python number with its bits."""
    v = np.asarray(x)
    return float(v) if v.dtype.kind not in "biu" else v.item()
