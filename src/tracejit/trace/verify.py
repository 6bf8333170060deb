"""The self-check: a compiled call beside plain Python on the same state, and where the two part.

The plain call is the real one: what it returns, writes and does is what happens. Before it, the compiled code runs on
copies of every array it reads or writes (the random generator's state is one of them), and its effects on copies of the
Python objects that they change (`rehearsal.py`); what it would have returned, written and done is then compared with
what happened.

Values may differ as rounding makes them differ. How much that is, is asked of the graph itself: run again with every
operation's result moved by a unit in its last place, an element that swings may differ by that swing. A difference
beyond it is traced to a node: the recorded graph, the graph after the passes and the compiled code are held against
one another, node by node, each on the same arrays.
"""

from __future__ import annotations

import math
import re
import types
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from tracejit.cached import cached_property
from tracejit.codegen.compile import Miss, build
from tracejit.codegen.extents import solver
from tracejit.errors import is_foreign
from tracejit.ir.graph import Graph
from tracejit.ir.node import Node
from tracejit.ir.op import Param
from tracejit.ir.printer import excerpt
from tracejit.ir.types import TensorType
from tracejit.passes.bind import bind
from tracejit.records import dataclass
from tracejit.trace.domain import Array, Domain
from tracejit.trace.key import Call
from tracejit.trace.objects import IMMUTABLE, bits, describe, instance_dict, is_namedtuple, slots_of
from tracejit.trace.outputs import Number, Result, View, contents
from tracejit.trace.recording import Recording
from tracejit.trace.rehearsal import Rehearsal
from tracejit.trace.replay import CALLBACKS
from tracejit.trace.tree import Left, Trace
from tracejit.trace.windows import Moving

__all__ = ["Mismatch", "Verified", "verify"]

_ULPS = 64  # of the largest element: what a reordered sum or a fused multiply-add may move without being asked
_SWING = 32  # times what noise of one unit in the last place did to an element
_SAMPLES = 6
_ALONE = 300  # nodes compiled one by one in search of a culprit, 10 ms each


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Compiled code and plain Python differ."""

    what: str  # which result, and how
    cause: str  # which part of the compiler is at fault
    where: str | None  # the user's line
    graph: str = ""  # the lines around the node

    def __str__(self) -> str:
        at = f" at {self.where}" if self.where else ""
        return f"{self.what}; {self.cause}{at}" + (f"\n{self.graph}" if self.graph else "")


@dataclass(frozen=True, slots=True)
class Verified:
    """What plain Python did with a call, and what was wrong with the compiled code, if anything."""

    value: Any
    raised: Exception | None
    mismatch: Mismatch | None


def verify(trace: Trace, domain: Domain, call: Call, plainly: Callable[[], Any], backend: str) -> Verified | Left | str:
    """Run `plainly` and hold the trace to what it did. Where the trace would not have run: where it left, or why not;
    then nothing was run."""
    ready = trace.ready(domain, call)
    if isinstance(ready, str):
        return ready
    tensors, arrays = ready
    rec = trace.recording
    copies = [a.copy(order="K") for a in arrays]
    written = {i for i, _ in rec.updates}
    before = [a.copy(order="K") if i in written else c for i, (a, c) in enumerate(zip(arrays, copies))]
    try:
        out = trace.executable(copies)
    except Exception as e:  # as in a call that is not verified
        if is_foreign(e):
            raise
        return f"the compiled code raised {type(e).__name__}: {e}"
    if isinstance(out, Miss):
        return trace.left(out)
    made = rec.plan.build(domain, call, out)  # now: the call may replace a .grad
    nodes = trace.attach(domain, tensors, {i: before[i] for i in trace.kept}, made, out)
    stage = Rehearsal.of(rec.deeds, made, [*call.containers, *call.objects, *_read(rec)])
    result, raised = None, None
    try:
        with stage.listening():
            result = plainly()
    except Exception as e:
        raised = e
    try:
        trace.finish(domain, made, nodes)
    except Exception:  # from numbers that Python computes: a call that is not verified would be left to plain Python
        return Verified(result, raised, None)
    if raised is not None:
        if any(d.f in CALLBACKS for d in rec.deeds):  # it may come from there
            return Verified(None, raised, None)
        what = f"plain Python raises {type(raised).__name__}: {raised}"
        return Verified(None, raised, Mismatch(what, "compiled code does not: a guard is missing", None))
    try:
        effects = stage.found(made)
    except Exception as e:
        what = f"{type(e).__name__} raised by an effect: {e}"
        return Verified(result, None, Mismatch(what, "plain Python does without: a guard is missing", None))
    outside = {id(t) for t in (*call.tensors, *tensors)}
    both = _Both(trace, domain, tensors, outside, copies, made, result, effects)
    if both.difference(_differ) is None:
        return Verified(result, None, _backward(trace, before, out))
    graph = _Interpreted.of(trace.recorded, before)  # now it is worth asking what rounding may do
    places = both.places()

    def differ(of: Any, a: Array, b: Array) -> bool:
        swing = both.swing(of, places, graph)
        return _differ(of, a, b, swing)

    found = both.difference(differ)
    blame = None if found is None else _blame(trace, found, places.get(found.of), graph, before, backend)
    return Verified(result, None, blame)


def _read(rec: Recording) -> list[Any]:
    """The objects that a recording's guard is about."""
    held = () if rec.guard is None else rec.guard.held
    return [x for h in held if (x := h() if isinstance(h, weakref.ref) else h) is not None]


# ---------------------------------------------------------------- what differs

# (the compiled tensor's or number's id, or the number of a parameter; compiled, plain) -> whether they differ
Differ = Callable[[Any, Array, Array], bool]


@dataclass(frozen=True, slots=True)
class _Found:
    """A difference, and which compiled value it is in."""

    what: str
    of: Any = None
    plain: Array | None = None


@dataclass(frozen=True, slots=True)
class _Both:
    """What a call did, compiled and plain."""

    trace: Trace
    domain: Domain
    tensors: Sequence[Any]  # behind the parameters
    outside: set[int]  # ids of tensors that are nobody's copy
    copies: Sequence[Array]  # memory of the parameters after the compiled call
    made: Sequence[Any]  # by entry of the plan
    result: Any  # plain
    effects: Sequence[tuple[str, Any, Any]]  # (of what, compiled, plain)

    def difference(self, differ: Differ) -> _Found | None:
        """The first difference."""
        rec, domain = self.trace.recording, self.domain
        todo: list[tuple[str, Any, Any]] = [("the result", self.made[rec.root], self.result)]
        todo += [
            (".grad after the call", None if g is None else self.made[g], domain.get_grad(self.made[t]))
            for t, g in rec.grads
        ]
        todo += self.effects
        seen: dict[int, tuple[Any, Any]] = {}  # compiled object, and the plain one that it stands for
        while todo:
            name, a, b = todo.pop(0)
            if a is b:
                continue
            if seen.setdefault(id(a), (a, b))[1] is not b and type(a) not in IMMUTABLE:
                return _Found(f"{name}: one object where plain Python has two")
            found = self.children(name, a, b, todo, differ)
            if found is not None:
                return found
        for i, (t, copy) in enumerate(zip(self.tensors, self.copies)):
            if (why := _words(i, copy, domain.array(t), differ)) is not None:
                return _Found(f"the memory of {_label(rec.params[i])} after the call: {why}", i, domain.array(t))
        return None

    def children(self, name: str, a: Any, b: Any, todo: list[tuple[str, Any, Any]], differ: Differ) -> _Found | None:
        """How a and b differ; what is in them goes to `todo`."""
        t = type(a)
        if t is not type(b):
            return _Found(f"{name} is {describe(a)}, plain Python gives {describe(b)}")
        if isinstance(a, self.domain.tensor):
            if id(a) in self.outside or id(b) in self.outside:
                return _Found(f"{name} is another tensor than in plain Python")
            if self.domain.needs_grad(a) != self.domain.needs_grad(b):
                return _Found(f"{name} differs in requires_grad")
            x, y = self.domain.array(a), self.domain.array(b)
            why = _words(id(a), x, y, differ)
            return None if why is None else _Found(f"{name}: {why}", id(a), y)
        if t is float:
            with np.errstate(over="ignore"):
                x, y = np.asarray(a, np.float32), np.asarray(b, np.float32)
            why = None if bits(a) == bits(b) else _words(id(a), x, y, differ)
            return None if why is None else _Found(f"{name} is {a}, plain Python gives {b}", id(a), y)
        if t is dict and [*map(bits, a)] == [*map(bits, b)]:
            todo += [(f"{name}[{k!r}]", x, y) for (k, x), y in zip(a.items(), b.values())]
            return None
        if (t in (list, tuple, deque) or is_namedtuple(t)) and len(a) == len(b):
            todo += [(f"{name}[{i}]", x, y) for i, (x, y) in enumerate(zip(a, b))]
            return None
        if t is str and _reads_alike(a, b):
            return None
        if t in IMMUTABLE:
            return None if bits(a) == bits(b) else _Found(f"{name} is {a!r}, plain Python gives {b!r}")
        if (parts := _parts(a, b)) is not None and any(x is a for x in self.made):
            todo += [(f"{name}.{k}", x, y) for k, x, y in parts]
            return None
        same = t in (set, frozenset) and (a == b or self.alike(a, b))
        return None if same else _Found(f"{name} is another {describe(a)[2:]} than in plain Python")

    def alike(self, a: Any, b: Any) -> bool:
        """Whether two sets are equal but for new tensors, of which they hold as many."""
        rest = [{x for x in s if not isinstance(x, self.domain.tensor) or id(x) in self.outside} for s in (a, b)]
        return len(a) == len(b) and rest[0] == rest[1]

    def places(self) -> dict[Any, int]:
        """Compiled value -> which result of the graph it is."""
        rec = self.trace.recording
        entries = zip(rec.plan.entries, self.made)
        out: dict[Any, int] = {id(x): e.index for e, x in entries if isinstance(e, (Result, Number))}
        return out | {at: len(rec.outputs) + k for k, (at, _) in enumerate(rec.updates)}

    def swing(self, of: Any, places: Mapping[Any, int], graph: _Interpreted) -> Array | None:
        """How much rounding may move each element of a compiled value."""
        if (place := places.get(of)) is not None:
            return graph.swing[graph.graph.results[place]]
        for e, x in zip(self.trace.recording.plan.entries, self.made):
            if isinstance(e, View) and id(x) == of:
                base = self.swing(id(self.made[e.base]), places, graph)
                return None if base is None or isinstance(e.op, Moving) else e.op.eval(base)
        return None


def _parts(a: Any, b: Any) -> list[tuple[str, Any, Any]] | None:
    """(name, part of a, part of b) of two objects of one class that were made in the call; None where they cannot be
    told to be alike."""
    match a:
        case types.FunctionType():
            names, f = ("__code__", "__defaults__", "__kwdefaults__", "__closure__"), getattr
        case types.MethodType():
            names, f = ("__func__", "__self__"), getattr
        case types.BuiltinFunctionType():
            names, f = ("__name__", "__self__"), getattr
        case types.CellType():
            return [("cell", contents(a), contents(b))]
        case _:
            mine, yours = ({**slots_of(x), **(instance_dict(x) or {})} for x in (a, b))
            return [(k, v, yours[k]) for k, v in mine.items()] if [*mine] == [*yours] else None
    return [(k, f(a, k), f(b, k)) for k in names]


_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|nan|inf)")


def _reads_alike(a: str, b: str) -> bool:
    """Whether two texts differ in their numbers only, and by no more than rounding may move what is shown of them."""
    x, y = _NUMBER.findall(a), _NUMBER.findall(b)
    if len(x) != len(y) or _NUMBER.split(a) != _NUMBER.split(b):
        return False
    return all(m == n or math.isclose(float(m), float(n), rel_tol=1e-3, abs_tol=1e-5) for m, n in zip(x, y))


def _differ(of: Any, a: Array, b: Array, swing: Array | None = None) -> bool:
    """Whether a and b, of one shape and dtype, differ by more than rounding."""
    return bool(_unlike(a, b, swing).any())


def _unlike(a: Array, b: Array, swing: Array | None = None) -> Array:
    """Where a and b differ by more than rounding."""
    if a.dtype.kind in "biu":
        different = a != b
        return different if swing is None else different & (swing == 0)
    x, y = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(all="ignore"):
        size = np.abs(np.where(np.isfinite(y), y, 0)).max(initial=0)
        room = _ULPS * _unit(a) * size + (0 if swing is None else _SWING * swing)
        return ~((x == y) | (np.isnan(x) & np.isnan(y)) | (np.abs(x - y) <= room))


def _unit(a: Array) -> float:
    """The distance from 1 to the next number of a's dtype."""
    return {2: 2.0**-10 if a.dtype.kind == "f" else 2.0**-7, 4: 2.0**-23}.get(a.dtype.itemsize, 2.0**-52)


def _words(of: Any, a: Array, b: Array, differ: Differ) -> str | None:
    """How two arrays differ; None where they do not."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{a.dtype}{list(a.shape)}, plain Python gives {b.dtype}{list(b.shape)}"
    if not differ(of, a, b):
        return None
    where = _unlike(a, b)
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(where)), a.shape))
    return f"{a[at]} at {list(at)}, plain Python gives {b[at]} ({int(where.sum())} of {a.size} elements differ)"


def _label(n: Node) -> str:
    return f"parameter %{n.op.label}" if isinstance(n.op, Param) else "a parameter"


# ---------------------------------------------------------------- who is to blame


@dataclass(frozen=True)
class _Interpreted:
    """A graph with the value of each of its nodes on some arrays."""

    graph: Graph
    arrays: Sequence[Array]
    values: Mapping[Node, Any] = field(repr=False)

    @classmethod
    def of(cls, graph: Graph, arrays: Sequence[Array]) -> _Interpreted:
        """`graph` interpreted; symbols become the extents of the arrays."""
        if sizes := solver(graph)(arrays):
            graph = bind(graph, sizes)
        return cls(graph, arrays, _values(graph, arrays, None))

    @cached_property
    def swing(self) -> Mapping[Node, Array]:
        """How far noise of one unit in the last place of every result moves each element; infinite where it decides
        about infinity or nan."""
        out = {n: np.zeros(np.shape(v), np.float64) for n, v in self.values.items() if isinstance(n.type, TensorType)}
        rng = np.random.default_rng(0)
        for _ in range(_SAMPLES):
            noisy = _values(self.graph, self.arrays, rng)
            for n, most in out.items():
                x, y = (np.asarray(v[n]).astype(np.float64) for v in (noisy, self.values))
                with np.errstate(all="ignore"):
                    moved = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.abs(x - y))
                out[n] = np.maximum(most, np.where(np.isnan(moved), np.inf, moved))
        return out


def _values(graph: Graph, arrays: Sequence[Array], noise: np.random.Generator | None) -> dict[Node, Any]:
    env: dict[Node, Any] = dict(zip(graph.params, arrays, strict=True))
    with np.errstate(all="ignore"):
        for n in graph.nodes:
            if n in env:
                continue
            v = n.op.eval(*(env[i] for i in n.inputs))
            if noise is not None and n.inputs and isinstance(n.type, TensorType) and n.type.dtype.is_floating_point:
                v = np.asarray(v)
                move = 1 + _unit(v) * noise.integers(-1, 2, v.shape)
                v = (v.astype(np.float64) * move).astype(v.dtype)
            env[n] = v
    return env


def _blame(
    trace: Trace, found: _Found, place: int | None, recorded: _Interpreted, before: Sequence[Array], backend: str
) -> Mismatch:
    """The part of the compiler, the node and the user's line behind a difference."""
    if place is None or found.plain is None:
        return Mismatch(found.what, "the recorded call is not this one: a guard is missing", None)
    end = recorded.graph.results[place]
    value = np.asarray(recorded.values[end])
    if value.shape != found.plain.shape or _differ(None, value, found.plain, recorded.swing[end]):
        return _at(found.what, "the recorded call is not this one: a guard is missing", recorded.graph, end)
    optimized = _Interpreted.of(trace.graph, before)
    new_end = optimized.graph.results[place]
    if _differ(None, np.asarray(optimized.values[new_end]), value, recorded.swing[end]):
        return _at(found.what, "the passes changed what is computed", optimized.graph, new_end)
    culprit = _miscompiled(optimized, optimized.graph.with_results([new_end]), backend)
    if culprit is None:
        why = "code generation, only where the whole graph is compiled together,"
        return _at(found.what, why, optimized.graph, new_end)
    return _at(found.what, f"code generation of {culprit.op.name}", optimized.graph, culprit)


def _at(what: str, cause: str, graph: Graph, node: Node) -> Mismatch:
    return Mismatch(what, cause, node.where, excerpt(graph, node))


def _miscompiled(whole: _Interpreted, part: Graph, backend: str) -> Node | None:
    """The first node whose compiled value is not what the interpreter says: all nodes compiled to be seen, then each
    one with what is before it."""
    nodes = [n for n in part.nodes if n.inputs and isinstance(n.type, TensorType)]
    for seen in (nodes, *([n] for n in nodes[:_ALONE])):
        try:
            out = build(Graph(part.name, part.params, tuple(seen)), backend=backend)([a.copy() for a in whole.arrays])
        except Exception:  # the backend cannot do this one alone
            continue
        assert not isinstance(out, Miss)
        for n, a in zip(seen, out):
            if _differ(None, np.asarray(a), np.asarray(whole.values[n]), whole.swing[n]):
                return n
    return None


def _backward(trace: Trace, before: Sequence[Array], out: Sequence[Array]) -> Mismatch | None:
    """What is wrong with the compiled backward pass of outputs that carry gradients, run with cotangents of one."""
    for a in trace.backward:
        if a.executable is None or a.reverse is None:
            continue
        saved = [before[i] if is_param else out[i] for is_param, i in a.saved]
        cotangents = a.reverse.params[: len(a.reverse.params) - len(saved)]
        arrays = [*(np.ones(p.shape, p.dtype.numpy) for p in cotangents), *saved]  # type: ignore[arg-type]
        found = a.executable([x.copy(order="K") for x in arrays])
        assert not isinstance(found, Miss)
        plain = _Interpreted.of(a.reverse, arrays)
        for k, (x, n) in enumerate(zip(found, plain.graph.results)):
            y = np.asarray(plain.values[n])
            differ: Differ = lambda of, a, b: _differ(of, a, b) and _differ(of, a, b, plain.swing[n])  # noqa: B023,E731
            if (why := _words(None, x, y, differ)) is not None:
                return _at(f"gradient {k}: {why}", "the backward pass was compiled wrong", plain.graph, n)
    return None
