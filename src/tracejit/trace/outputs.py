"""What a recorded call returned, as a recipe to build the same from new arrays.

A `Plan` is a list of entries, each built from earlier ones, so aliasing is kept: a list returned twice is one entry.
Tensors from outside come back as themselves, views as views of what they were views of, fresh containers are new in
every call. What cannot be rebuilt refuses the recording.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracejit.ir.dtype import float64, int64
from tracejit.ir.node import Node, cast
from tracejit.ir.op import Op
from tracejit.passes.bind import bound_op
from tracejit.records import dataclass
from tracejit.trace.domain import Array, Domain
from tracejit.trace.key import Call
from tracejit.trace.objects import describe, instance_dict, is_namedtuple, slots_of
from tracejit.trace.recorder import Recorder
from tracejit.trace.scalars import OPAQUE
from tracejit.trace.windows import Moving, Window

__all__ = [
    "Argument", "Built", "Computed", "Container", "Grad", "Held", "Instance", "Plan", "Planner", "Result", "Scalar",
    "Slot", "Value", "View", "slot_entries", "watch",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Argument:
    """Tensor number `index` of the call's arguments."""

    index: int


@dataclass(frozen=True, slots=True)
class Slot:
    """What lies in place number `index` of those outside that hold other tensors in every call; or, where that is a
    tuple, item `part` of it."""

    index: int
    part: int | None = None

    def of(self, call: Call) -> Any:
        """It, in a call."""
        found = call.slots[self.index]
        return found if self.part is None else found[self.part]


def slot_entries(r: Recorder) -> dict[int, Slot]:
    """By id, what the slots of a recording hold."""
    found: dict[int, Slot] = {}
    for i, (_, x) in enumerate(r.slots.values()):
        found[id(x)] = Slot(i)
        if type(x) is tuple:
            found.update((id(t), Slot(i, k)) for k, t in enumerate(x))  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
    return found


@dataclass(frozen=True, slots=True)
class Container:
    """Container number `index` of the call's arguments."""

    index: int


@dataclass(frozen=True, slots=True)
class Held:
    """An object from outside: `get()` is it."""

    get: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Grad:
    """The `.grad` that the tensor of entry `of` has before the call."""

    of: int


@dataclass(frozen=True, slots=True)
class Value:
    """An immutable value."""

    value: Any


@dataclass(frozen=True, slots=True)
class Result:
    """A fresh tensor over output `index` of the graph; `order` is its layout, axes from slowest to fastest."""

    index: int
    requires_grad: bool
    order: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Number:
    """Output `index` of the graph as a Python float."""

    index: int


@dataclass(frozen=True, slots=True)
class Scalar:
    """The number at place `ref` of the tape; as the source of a parameter, an array of it."""

    ref: int


@dataclass(frozen=True, slots=True)
class View:
    """`op` applied to the tensor of an earlier entry, on the tape or not."""

    base: int
    op: Op | Moving
    taped: bool


@dataclass(frozen=True, slots=True)
class Built:
    """A new container of `kind` over earlier entries; dicts alternate keys and values."""

    kind: type
    items: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Instance:
    """A new object of the class that `get` gives; its attributes are earlier entries."""

    get: Callable[[], Any]
    names: tuple[str, ...]
    items: tuple[int, ...]

    def build(self, made: Sequence[Any]) -> Any:
        """The object."""
        x = object.__new__(self.get())
        for name, k in zip(self.names, self.items):
            object.__setattr__(x, name, made[k])
        return x


@dataclass(frozen=True, slots=True)
class Computed:
    """f of earlier entries: numbers, text, tensors, functions made in the call. Plain Python, may raise if `raises`."""

    f: Callable[..., Any]
    items: tuple[int, ...]
    raises: bool


Entry = (
    Argument | Slot | Container | Held | Grad | Value | Result | Number | Scalar | View | Built | Instance | Computed
)


def watch(x: Any, on_death: Callable[[Any], None] | None = None) -> Callable[[], Any]:
    """A function giving x, by weak reference where x allows it."""
    try:
        return weakref.ref(x, on_death)
    except TypeError:
        return lambda: x


@dataclass(frozen=True, slots=True)
class Plan:
    """Entries in order of building."""

    entries: tuple[Entry, ...]

    def build(self, domain: Domain, call: Call, arrays: Sequence[Array]) -> list[Any]:
        """Every entry's object, from a call's arguments and the graph's outputs."""
        made: list[Any] = []
        for e in self.entries:
            match e:
                case Result():
                    made.append(domain.wrap(laid_out(arrays[e.index], e.order), e.requires_grad))
                case Number():
                    made.append(float(arrays[e.index]))
                case Scalar():
                    made.append(call.found[e.ref])
                case Argument():
                    made.append(call.tensors[e.index])
                case Slot():
                    made.append(e.of(call))
                case Container():
                    made.append(call.containers[e.index])
                case Held():
                    made.append(e.get())
                case Grad():
                    made.append(domain.get_grad(made[e.of]))
                case Value():
                    made.append(e.value)
                case View():  # built later: it wants its base's place on the tape
                    op = e.op.at(call.found) if isinstance(e.op, Moving) else e.op
                    made.append(bound_op(op, call.symbols) if call.symbols else op)
                case Built() | Instance() | Computed():
                    made.append(e)
        return made

    def finish(self, domain: Domain, made: list[Any]) -> None:
        """Build views, containers and what is computed in `made`, once gradients are attached to the tensors they
        stand on."""
        for i, e in enumerate(self.entries):
            if isinstance(e, View):
                made[i] = domain.view(made[e.base], made[i], e.taped)
            elif isinstance(e, Instance):
                made[i] = e.build(made)
            elif isinstance(e, Computed):
                made[i] = e.f(*[made[k] for k in e.items])
            elif isinstance(e, Built):
                items = [made[k] for k in e.items]
                if e.kind is dict:
                    made[i] = dict(zip(items[::2], items[1::2]))
                elif e.kind in (list, tuple, set, frozenset, deque):
                    made[i] = e.kind(items)
                else:
                    made[i] = tuple.__new__(e.kind, items)


def laid_out(a: Array, order: tuple[int, ...] | None) -> Array:
    """`a` with the memory layout eager code gave it."""
    if order is None:
        return a
    inverse = tuple(int(i) for i in np.argsort(order))
    return np.ascontiguousarray(a.transpose(order)).transpose(inverse)


def axis_order(a: Array) -> tuple[int, ...] | None:
    """Axes from slowest to fastest, None for C order."""
    if a.flags.c_contiguous:
        return None
    order = tuple(int(i) for i in np.argsort([-s for s in a.strides], kind="stable"))
    return None if order == tuple(range(a.ndim)) else order


def _method(x: Any, name: str) -> Any:
    return getattr(x, name)


def _function(
    code: Any, space: Any, name: str, qualname: str, defaults: Any, keyword_defaults: Any, *cells: Any
) -> types.FunctionType:
    f = types.FunctionType(code, space, name, defaults, cells)
    f.__kwdefaults__, f.__qualname__ = keyword_defaults, qualname
    return f


def contents(cell: Any) -> tuple[Any, ...]:
    """What is in a closure cell, as a tuple of one; () if it is empty."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


class Planner:
    """Turns objects of a recording into plan entries and graph outputs."""

    def __init__(self, r: Recorder, call: Call, on_death: Callable[[Any], None]) -> None:
        self.r, self.call, self.on_death = r, call, on_death
        self.entries: list[Entry] = []
        self.outputs: list[Node] = []
        self.fresh: list[tuple[int, Any]] = []  # (entry, tensor) of every Result
        self.grads: list[tuple[int, Any]] = []  # (entry, gradient) of those that have one
        self.known: dict[int, int] = {}
        self.open: set[int] = set()
        self.arguments = {id(t): i for i, t in enumerate(call.tensors)}
        self.slots = slot_entries(r)
        self.containers = {id(c): i for i, c in enumerate(call.containers)}
        self.reachable = r.reachable() | {id(o) for o in call.objects}

    def add(self, x: Any, entry: Entry) -> int:
        self.entries.append(entry)
        self.known[id(x)] = len(self.entries) - 1
        return len(self.entries) - 1

    def entry(self, x: Any) -> int:
        """The entry that rebuilds x."""
        if (found := self.known.get(id(x))) is not None:
            return found
        r, t = self.r, type(x)
        if (slot := self.slots.get(id(x))) is not None:
            return self.add(x, slot)
        if r.is_tensor(x):
            return self.tensor(x)
        if t in OPAQUE and not x.seen:
            if x.recipe is not None:
                return self.computed(x)
            if x.ref >= 0:
                return self.add(x, Scalar(x.ref))
            self.outputs.append(cast(x.node, float64) if x.node.dtype is int64 else x.node)
            number = Number(len(self.outputs) - 1)
            if x.node.dtype is not int64:
                return self.add(x, number)
            self.entries.append(number)
            return self.add(x, Computed(int, (len(self.entries) - 1,), False))
        if r.is_value(x) or t in OPAQUE:
            return self.add(x, Value(r.reveal(x)))
        if id(x) in self.containers:
            return self.add(x, Container(self.containers[id(x)]))
        if t is tuple or is_namedtuple(t) or (t in (list, dict, set, deque) and not r.outside(x)):
            return self.container(x, t)
        if isinstance(x, (type, types.ModuleType)) or id(x) in self.reachable:
            return self.add(x, Held(watch(x, self.on_death)))
        if t is types.MethodType:
            return self.made_of(x, types.MethodType, (x.__func__, x.__self__))
        if t is types.BuiltinFunctionType and type(x.__self__) in (list, dict, set):
            return self.made_of(x, functools.partial(_method, name=x.__name__), (x.__self__,))
        if t is types.FunctionType and id(x) in r.fresh and not x.__dict__:
            plain = functools.partial(_function, x.__code__, x.__globals__, x.__name__, x.__qualname__)
            return self.made_of(x, plain, (x.__defaults__, x.__kwdefaults__, *(x.__closure__ or ())))
        if t is types.CellType:
            if id(x) in r.outer_cells:
                return self.add(x, Held(lambda: x))
            return self.made_of(x, types.CellType, contents(x))
        if id(x) in r.instances and id(x) in r.fresh:
            return self.instance(x, t)
        # Not known to come from outside: it may have been made in the call, and would have to be new in every call.
        r.refuse(f"returns or keeps {describe(x)}, which cannot be rebuilt")
        return self.add(x, Value(None))

    def computed(self, x: Any) -> int:
        """The entry of an opaque number or text with a recipe, which may stand on thousands of others."""
        todo = [x]
        while todo:
            y = todo[-1]
            parts = y.recipe.operands
            waiting = [p for p in parts if type(p) in OPAQUE and not p.seen and p.recipe and id(p) not in self.known]
            if waiting:
                todo.extend(waiting)
                continue
            todo.pop()
            if id(y) not in self.known:
                self.add(y, Computed(y.recipe.f, tuple(map(self.entry, parts)), y.recipe.raises))
        return self.known[id(x)]

    def target(self, x: Any) -> int:
        """The entry of an object from outside that an effect changes."""
        if (found := self.known.get(id(x))) is not None:
            return found
        if id(x) in self.containers:
            return self.add(x, Container(self.containers[id(x)]))
        if id(x) not in self.reachable and id(x) not in self.r.dict_owner:
            self.r.refuse(f"changes {describe(x)} of unknown origin")
        return self.add(x, Held(watch(x, self.on_death)))

    def made_of(self, x: Any, f: Callable[..., Any], parts: Sequence[Any]) -> int:
        """The entry of a function or method, f of its parts."""
        if id(x) in self.open:
            self.r.refuse("keeps a function that refers to itself")
            return self.add(x, Value(None))
        self.open.add(id(x))
        items = tuple(map(self.entry, parts))
        self.open.discard(id(x))
        return self.add(x, Computed(f, items, False))

    def container(self, x: Any, t: type) -> int:
        if id(x) in self.open:
            self.r.refuse("returns a container that contains itself")
            return self.add(x, Value(None))
        if t is deque and x.maxlen is not None:
            self.r.refuse("returns or keeps a deque with a maxlen")
        self.open.add(id(x))
        parts = [v for kv in x.items() for v in kv] if t is dict else list(x)
        items = tuple(self.entry(v) for v in parts)
        self.open.discard(id(x))
        return self.add(x, Built(t, items))

    def instance(self, x: Any, t: type) -> int:
        """The entry of an object that object.__new__ made in the call."""
        if id(x) in self.open:
            self.r.refuse("returns or keeps an object that contains itself")
            return self.add(x, Value(None))
        self.open.add(id(x))
        values = slots_of(x) | (instance_dict(x) or {})
        items = tuple(map(self.entry, values.values()))
        self.open.discard(id(x))
        return self.add(x, Instance(watch(t, self.on_death), tuple(values), items))

    def tensor(self, x: Any) -> int:
        """The entry of a tensor."""
        r, domain = self.r, self.r.domain
        if (i := self.arguments.get(id(x))) is not None:
            return self.add(x, Argument(i))
        if (owner := r.grad_sources.get(id(x))) is not None:
            return self.add(x, Grad(self.entry(owner)))
        if not r.builder.made_here(x):
            if id(x) not in self.reachable:
                r.refuse("returns a tensor of unknown origin")
            return self.add(x, Held(watch(x, self.on_death)))
        if type(x) is not domain.tensor or domain.get_hooks(x):
            r.refuse(f"returns a new {type(x).__name__} with state of its own")
        if (viewed := domain.parent(x)) is not None:
            parent, op = viewed
            base = self.entry(parent)
            if domain.get_grad(x) is not None:
                r.refuse("returns a view with a gradient of its own")
            recorded = r.builder.views.get(id(x)) or op
            recorded = recorded.moving if isinstance(recorded, Window) else recorded
            at = self.add(x, View(base, recorded, domain.needs_grad(x)))
            if op.name == "stop_gradient" and domain.has_tape(x):  # an argument that a custom rule handed back
                self.fresh.append((at, x))
            return at
        g = domain.get_grad(x)
        self.outputs.append(r.builder.node_of(x))
        leaf = domain.needs_grad(x) and not domain.has_tape(x)
        at = self.add(x, Result(len(self.outputs) - 1, leaf, axis_order(domain.array(x))))
        self.fresh.append((at, x))
        if g is not None:
            self.grads.append((at, g))
        return at

    def shown(self, roots: Sequence[int]) -> set[int]:
        """Entries that the caller gets to see, or whose place on the tape shows through a view."""
        shown = set(roots)
        for i in reversed(range(len(self.entries))):
            e = self.entries[i]
            if isinstance(e, (Built, Instance, Computed)) and i in shown:
                shown.update(e.items)
            elif isinstance(e, View) and i in shown and e.taped:
                shown.add(e.base)
        return shown

    def signature(self, name: Callable[[Any], int]) -> str:
        """Text that differs where two recordings of one path return different things; `name` tells objects apart."""

        def words(e: Entry) -> str:
            if isinstance(e, Held):
                return f"Held {name(e.get())}"
            if isinstance(e, Instance):
                return f"Instance {name(e.get())} {e.names} {e.items}"
            return f"Computed {describe(e.f)} {e.items}" if isinstance(e, Computed) else repr(e)

        return repr(list(map(words, self.entries)))

    def plan(self) -> Plan:
        return Plan(tuple(self.entries))
