"""What a recording notes of loops that ask the data in each turn, so that `proof.py` may make one loop of them.

A recording runs every turn, as Python does. At the head of a loop that was found hot it notes the *state*: whatever
the turn to come can tell from the turn before. That is the variables of the frame, what lies in objects made in the
call, memory that was written, and how much was done to the world outside.

A number that changes from turn to turn (`n += 1`, the `i` of a range) is *counted*: from the recording on that follows
the one in which this was seen, it is an `Opaque` with a node, which the graph computes. Python that looks at it makes a
check, as with every opaque number.
"""

from __future__ import annotations

import operator
import sys
import types
import weakref
from collections import deque
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from tracejit import config
from tracejit.errors import is_foreign
from tracejit.ir.dtype import bool_, float64, int64
from tracejit.ir.graph import param
from tracejit.ir.node import Node
from tracejit.ir.op import Op
from tracejit.ir.types import TensorType
from tracejit.records import dataclass
from tracejit.trace import computed
from tracejit.trace.locals import read_locals, write_locals
from tracejit.trace.objects import FRESH_ITERATORS, IMMUTABLE, bits, describe, instance_dict, slots_of
from tracejit.trace.recorder import Recorder, active, where
from tracejit.trace.scalars import (
    LARGEST_COUNT,
    LARGEST_STEP,
    OPAQUE,
    Heat,
    Opaque,
    OpaqueInt,
    OpaqueText,
    counted,
    plain_number,
)

__all__ = ["Run", "State", "advance", "turn"]

_EARLY, _LATE = 8, 3  # states that are kept of a run: of its first turns, and of its last
_LOOPS = 1024  # that are remembered
_RANGE: type = type(iter(range(0)))


@dataclass(frozen=True, eq=False)
class State:
    """What there is at the head of a loop."""

    mark: int  # nodes made later have larger ids
    checks: int  # how many there were
    handles: int  # how many tensors were known
    assigns: int  # how often one was written in place
    world: Any  # equal where nothing but the values of leaves has changed
    leaves: Mapping[Any, Any]  # places and what lies there
    nodes: Mapping[Any, Node]  # of those among them that have a value in the graph
    layouts: Mapping[Any, Layout]  # ... and of tensors what Python can see of them
    left: int | None  # turns after this one, in a loop over a range
    unknown: str | None  # why a turn from here on cannot be told from others


@dataclass(eq=False)
class Run:
    """The turns of a loop since it was entered."""

    heat: Heat
    place: int
    iterator: int  # its id
    range: Any  # ... itself, where it is one over a range: others must go when the program drops them
    early: list[State] = field(default_factory=list[State])
    late: deque[State] = field(default_factory=lambda: deque[State](maxlen=_LATE))
    turns: int = 0
    tested: int = 0  # turns in which the data was asked
    checks: int = 0
    numbers: dict[str, Any] = field(default_factory=dict[str, Any])
    index: Node | None = None  # the value that a range gave last
    known: frozenset[int] = frozenset()  # ids of the tensors that there were before it
    again: bool = False  # a number was found that should be counted
    kept: bool = False


# ---------------------------------------------------------------- while it is recorded


def turn(place: int) -> None:
    """A turn of a `while` begins."""
    if (r := active()) is not None and not r.closing and not r.reasons:
        _guarded(r, place, sys._getframe(1), None, None)


def advance(operands: tuple[Any, Any, int]) -> Any:
    """A turn of a `for` begins: the iterator and what it gave."""
    iterator, value, place = operands
    if (r := active()) is None or r.closing or r.reasons:
        return value
    return _guarded(r, place, sys._getframe(1), iterator, value)


def _guarded(r: Recorder, place: int, frame: types.FrameType, iterator: Any, value: Any) -> Any:
    try:
        run = _run(r, place, frame, iterator)
        return value if run is None else _state(r, run, frame, value)
    except Exception as e:  # a mistake of ours must not reach the user as an error of theirs
        if is_foreign(e):
            raise
        r.refuse(f"internal error: {type(e).__name__}: {e}")
        return value


def _run(r: Recorder, place: int, frame: types.FrameType, iterator: Any) -> Run | None:
    """The run of turns that one more belongs to, where its state is wanted."""
    code, activation = r.activations[-1] if r.activations else (None, 0)
    if code is None or code is not frame.f_code:  # not called by a hook: nothing is known about who else runs this code
        return None
    turning = r.turning.setdefault(activation, {})
    # The head of a loop comes before those inside it; where a loop ends tells nothing, for `break` may jump back.
    for inner in [x for x in turning if x > place]:
        del turning[inner]
    run = turning.get(place)
    if run is None or run.iterator != id(iterator):
        run = turning[place] = _begin(r, code, place, iterator)
    run.turns += 1
    if len(r.builder.checks) > run.checks:
        run.tested += 1
        run.checks = len(r.builder.checks)
        _keep(r, run)
    if not run.heat.hot or r.scope is not None:
        if run.tested:
            _watch(run, _own(frame))
        return None
    if run.turns > _EARLY and not run.tested:  # the data is not asked, so far
        del turning[place]
        return None
    _keep(r, run)
    return run


def _keep(r: Recorder, run: Run) -> None:
    """A run that matters when the recording is closed."""
    if not run.kept:
        run.kept = True
        r.runs.append(run)


def _begin(r: Recorder, code: types.CodeType, place: int, iterator: Any) -> Run:
    loops = r.memory.loops
    if len(loops) > _LOOPS:
        loops.clear()
    heat = loops.setdefault((code.co_filename, code.co_qualname, code.co_firstlineno, place), Heat())
    heat.where = heat.where or where()
    known = frozenset(r.builder.bindings) if heat.hot else frozenset[int]()
    over = iterator if type(iterator) is _RANGE else None
    return Run(heat, place, id(iterator), over, checks=len(r.builder.checks), known=known)


def _own(frame: types.FrameType) -> dict[str, Any]:
    """The variables of a frame that are nobody else's."""
    free = frame.f_code.co_freevars
    return {k: v for k, v in read_locals(frame).items() if k not in free}


def _watch(run: Run, variables: Mapping[str, Any]) -> None:
    """Find numbers that change from turn to turn."""
    now = {k: v for k, v in variables.items() if type(v) in (int, float, OpaqueInt, Opaque)}
    for name, v in now.items():
        a, b = plain_number(run.numbers.get(name)), plain_number(v)
        if type(a) is type(b) and bits(a) != bits(b) and _is_ours(v) and name not in run.heat.numbers:
            run.heat.numbers.add(name)
            run.again = True
    run.numbers = now


def _is_ours(v: Any) -> bool:
    """Whether a number that changes is one that the graph does not compute already."""
    return type(v) not in OPAQUE or v.ref >= 0


def _state(r: Recorder, run: Run, frame: types.FrameType, value: Any) -> Any:
    """Note the state of a hot loop; returns what the iterator gave, counted."""
    plain = value
    if run.range is not None:
        by = run.range.__reduce__()[1][0].step
        before, step = run.index, _constant(by, int64)
        run.index = _constant(value, int64) if before is None else Node.of(Op.registry["add"](), (before, step))
        value = counted(value, run.index)
        if abs(plain) > LARGEST_COUNT or abs(by) > LARGEST_STEP:
            run.heat.refuse("it counts in large numbers")
            return plain
    variables, own = read_locals(frame), _own(frame)
    changed: dict[str, Any] = {}
    for name, v in own.items():
        waits = type(v) is Opaque and not v.seen and v.recipe is not None
        if (waits or name in run.heat.numbers) and (new := _counted(r, v)) is not v:
            changed[name] = variables[name] = own[name] = new
    if changed and not write_locals(frame, changed):
        run.heat.refuse("this Python does not let variables be replaced")
        return plain
    _watch(run, own)
    if not r.counts:
        r.counts, r.watched = True, [x for x in r.fresh.values() if not r.is_tensor(x)]
    made = _snapshot(r, run, variables)
    if len(run.early) < _EARLY:
        run.early.append(made)
    run.late.append(made)
    return value


def _constant(value: Any, dtype: Any) -> Node:
    return Node.of(Op.registry["const"](value, TensorType(dtype, ())), ())  # type: ignore[call-arg]


def _counted(r: Recorder, v: Any) -> Any:
    """v as a number that the graph computes; v itself where that cannot be."""
    t = type(v)
    if t is int and abs(v) <= LARGEST_COUNT:
        return counted(v, _constant(v, int64))
    if t is float:
        return counted(v, _constant(v, float64))
    if t not in OPAQUE or t is OpaqueText or v.seen or (v.recipe is None and v.ref < 0):
        return v
    if t is OpaqueInt and not (  # guards, for it may be another number in other calls
        computed.scalar(r, operator.le, v, LARGEST_COUNT) and computed.scalar(r, operator.ge, v, -LARGEST_COUNT)
    ):
        return v
    node = computed.value_node(r, v)
    return v if node is None else counted(plain_number(v), node)


# ---------------------------------------------------------------- what a state is


def _snapshot(r: Recorder, run: Run, variables: Mapping[str, Any]) -> State:
    leaves: dict[Any, Any] = {}
    unknown = None if run.iterator == id(None) or run.range is not None else "it iterates over more than a range"
    for name, v in variables.items():
        if type(v) is types.GeneratorType:  # not kept: it must go when the program drops it
            unknown, v = unknown or f"variable {name} is a generator", None
        _spread(("variable", name), v, leaves)
    shape: list[Any] = []
    try:
        for x in _alive(r):
            shape.append(_inside(r, x, leaves))
    except _Unknown as e:
        unknown = unknown or str(e)
    b = r.builder
    for i, t in b.assigned.items():
        if i in run.known or not b.made_here(t):
            leaves["memory", i] = t
    nodes: dict[Any, Node] = {}
    layouts: dict[Any, Layout] = {}
    for key, v in leaves.items():
        if type(v) in OPAQUE:
            if type(v) is not OpaqueText and not v.seen and v.recipe is None and v.ref < 0:
                nodes[key] = v.node
        elif r.is_tensor(v) and b.knows(v):
            nodes[key] = b.node_of(v)
            layouts[key] = _layout(r, v)
    if run.index is not None:
        nodes["index",] = run.index
    journal = r.journal
    world = (
        *(r.domain.modes(), id(config.current()), tuple(leaves), tuple(shape)),
        *(len(journal.effects), len(journal.written), len(journal.frozen), len(journal.hidden), len(r.grads)),
        *(r.slot_writes, len(b.grad_nodes), len(b.through), b.lost, len(r.grad_sources)),
    )
    left = None if run.range is None else operator.length_hint(run.range)
    mark = param("", _SCALAR).id
    return State(mark, len(b.checks), len(b.bindings), b.assigns, world, leaves, nodes, layouts, left, unknown)


_SCALAR = TensorType(bool_, ())


class _Unknown(Exception):
    """An object whose state cannot be told."""


def _spread(place: Any, v: Any, leaves: dict[Any, Any]) -> None:
    """The leaves of a value: those of a tuple are its items."""
    if type(v) is not tuple:
        leaves[place] = v
        return
    leaves[*place, "of"] = len(v)
    for k, x in enumerate(v):
        _spread((*place, k), x, leaves)


def _alive(r: Recorder) -> list[Any]:
    """The objects made in the call that something refers to beside the recording: what is dead once stays dead."""
    watched, found = r.watched, [object()]
    watched.insert(0, found[0])
    alone = 0
    for x in watched:
        if not alone:  # how often what nothing else refers to is referred to here
            alone = sys.getrefcount(x)
            found.clear()
        elif type(x) is weakref.ref:
            generator = x()
            if generator is not None and generator.gi_frame is not None:
                raise _Unknown("a generator is at work around it")
            del generator
        elif not r.is_tensor(x) and sys.getrefcount(x) > alone:
            found.append(x)
    r.watched = found
    return found


def _inside(r: Recorder, x: Any, leaves: dict[Any, Any]) -> Any:
    """What an object is, but for the values in it, which are leaves."""
    t, at = type(x), id(x)
    if t is list or t is deque or t is set or t is frozenset:
        for k, v in enumerate(x):
            _spread((at, k), v, leaves)
        return at, len(x)
    if t is dict:
        for k, v in x.items():
            _spread((at, id(k)), v, leaves)
            leaves[at, "key", id(k)] = k
        return at, *map(id, x)
    if t is bytearray:
        return at, bytes(x)
    if t is types.CellType:
        try:
            _spread((at, "cell"), x.cell_contents, leaves)
        except ValueError:
            return at, "empty"
        return at
    if t is types.FunctionType:
        extra = tuple(x.__dict__.items()), x.__defaults__, tuple((x.__kwdefaults__ or {}).items())
        leaves[at, "code"] = x.__code__
        for name, part in zip(("fields", "defaults", "keywords"), extra):
            _spread((at, name), part, leaves)
        return at
    if t in FRESH_ITERATORS or t is _RANGE:
        return at, _progress(x, leaves, at)
    if t in IMMUTABLE or t is tuple or t is slice or t is types.MethodType or isinstance(x, type):
        return at
    if at in r.instances:
        found = slots_of(x) | (instance_dict(x) or {})
        for name, v in found.items():
            _spread((at, name), v, leaves)
        return at, *found
    if t is types.BuiltinFunctionType or t is types.ModuleType:
        return at
    raise _Unknown(f"{describe(x)} that was made in the call may change")


def _progress(x: Any, leaves: dict[Any, Any], at: int, depth: int = 0) -> Any:
    """How far an iterator has come."""
    if type(x).__module__ != "builtins" or type(x) is types.GeneratorType:
        raise _Unknown(f"{describe(x)} is at work around it")
    try:
        _, *parts = x.__reduce__()
    except TypeError:
        raise _Unknown(f"{describe(x)} is at work around it") from None
    out: list[Any] = []
    for part in parts:
        for k, v in enumerate(part if type(part) is tuple else (part,)):
            if type(v) in FRESH_ITERATORS or type(v) is _RANGE:
                if depth > 4:
                    raise _Unknown(f"{describe(x)} is at work around it")
                out.append(_progress(v, leaves, at, depth + 1))
            elif type(v) in (int, type(None)):
                out.append(v)
            else:
                leaves[at, "source", depth, k] = v
    return tuple(out)


@dataclass(frozen=True, slots=True)
class Layout:
    """What Python can see of a tensor beside its value."""

    shape: Any
    strides: Any
    dtype: Any
    plain: bool  # it has no gradient, no hooks and no class of its own
    is_view: bool


def _layout(r: Recorder, t: Any) -> Layout:
    a, domain = r.domain.array(t), r.domain
    plain = type(t) is domain.tensor and not domain.needs_grad(t) and not domain.has_tape(t)
    plain = plain and domain.get_grad(t) is None and not domain.get_hooks(t)
    return Layout(a.shape, a.strides, a.dtype, plain, domain.parent(t) is not None)
