"""Data-dependent loops: turns of a recorded loop that are proven alike become one `While` of the graph.

The proof is by induction. Python is deterministic: where two states in a row (`loops.py`) are alike but for values
that only the graph sees, and the data answers alike, all turns to come are alike too.

    alike     the same object, an equal immutable value, or
    carried   a tensor made in the loop, of the same type and layout, that goes by the same names; memory of a tensor
              that was there before; a number that the graph computes

The recorded nodes of the turns are compared all the same: a difference there would mean that a state is more than what
is noted of it. Whatever is not alike ends the proof; the loop then stays as it was recorded, turn after turn, and
`explain()` says why. A first turn that differs (the tensor is still the caller's, a variable has no value yet) stays
before the loop.

The last turn, in which the data answers otherwise, is not part of the loop: it and what follows stay as they were
recorded, on what the loop has carried there. So its checks ask once more what the test of the loop has found.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from tracejit.ir.dtype import bool_, int64
from tracejit.ir.graph import Graph, param
from tracejit.ir.node import Node
from tracejit.ir.op import ArrayConst, Item, Op, Param, results, same_op
from tracejit.ir.types import TensorType, same_type
from tracejit.ops.control import While
from tracejit.passes.sections import VIEWS
from tracejit.records import dataclass
from tracejit.trace.builder import Check
from tracejit.trace.loops import Run, State
from tracejit.trace.objects import IMMUTABLE, bits, describe
from tracejit.trace.recorder import Recorder
from tracejit.trace.scalars import OPAQUE

__all__ = ["Rolled", "roll"]

_ALIKE = 2  # turns that must be alike
_TOLD = 4  # turns of a loop that is refused if they are not
_LIMIT = 1 << 30  # turns of a loop: so what counts them stays exact
_COUNTING = 1 << 12  # places in a turn where something is counted, for the same reason
_COUNT = TensorType(int64, ())
_DIFFERENT = "its turns do not do the same"


@dataclass(frozen=True, slots=True)
class Rolled:
    """The ends of a graph after its loops were rolled up."""

    ends: tuple[Node, ...]
    checks: tuple[Check, ...]
    before: int | None  # how many checks come before the first loop; None: there is none
    again: bool  # another recording will do better than this one
    counted: frozenset[Any]  # loops in which numbers were counted


def roll(r: Recorder, ends: Sequence[Node], *, gradients: bool) -> Rolled:
    """The ends of a recorded graph and its checks, with proven loops as `While`; `gradients` are asked for."""
    checks = r.builder.checks
    runs: list[Run] = [x for x in r.runs if x.tested]
    for run in runs:
        run.heat.met(run.tested)
    again = r.scope is None and any(x.again or (x.heat.hot and not x.early) for x in runs)
    proofs: list[_Proof] = []
    for run in runs:
        if not run.early or not run.heat.hot or run.again:
            continue
        found = "gradients flow through it" if gradients else _prove(r, run, checks)
        if isinstance(found, _Proof):
            proofs.append(found)
        elif found is not None and run.tested >= _TOLD:
            again = run.heat.refuse(found) or again
    now, asked, before = tuple(ends), list(enumerate(checks)), None
    for p in sorted(proofs, key=lambda p: -p.last.mark):  # from the last: what one leaves is what comes before it
        if any(q is not p and q.first.mark <= p.first.mark and p.last.mark <= q.last.mark for q in proofs):
            continue
        rest = [(k, c) for k, c in asked if not p.first.checks <= k < p.last.checks]
        found = _replaced(p, (*now, *(c.node for _, c in rest)))
        if isinstance(found, str):
            again = p.run.heat.refuse(found) or again
            continue
        values, turns = found
        now = values[: len(now)]
        asked = [(k, replace(c, node=n)) for (k, c), n in zip(rest, values[len(now) :], strict=True)]
        if p.last.left == 0 and not p.turn.deviates(checks[p.last.checks :]):  # nothing is asked where a range ends
            asked.append((p.first.checks, Check(turns, p.first.left, "turns", p.run.heat.where)))
            asked.sort(key=lambda one: one[0])
        before = p.first.checks
        p.run.heat.rolled = True
    if r.counts:  # what is known without the data was checked all the same
        known = _known((*now, *(c.node for _, c in asked)))
        asked = [(k, c) for k, c in asked if c.node not in known]
        before = None if before is None else sum(k < before for k, _ in asked)
    counted = frozenset(("loop", x.place, *x.heat.numbers) for x in r.runs if x.early)
    return Rolled(now, tuple(c for _, c in asked), before, again, counted)


def _known(ends: Sequence[Node]) -> set[Node]:
    """The nodes behind `ends` that no parameter is behind."""
    known: set[Node] = set()
    for n in Graph("ends", (), tuple(ends)).nodes:
        if not isinstance(n.op, Param) and all(i in known for i in n.inputs):
            known.add(n)
    return known


# ---------------------------------------------------------------- states


@dataclass(frozen=True, eq=False)
class _Proof:
    """A run of turns that are alike, from state `first` on; `last` is the state of the turn that is not."""

    run: Run
    turn: _Turn
    first: State
    last: State


def _prove(r: Recorder, run: Run, checks: Sequence[Check]) -> _Proof | str | None:
    """That the turns of a run are alike from some turn on; or why they are not; None: there are too few."""
    states = [*run.early, *(s for s in run.late if s not in run.early)]
    if len(states) < _ALIKE + 2:
        return None
    gap = len(run.early) if run.turns > len(states) else 0  # no states are kept before this one
    order = {i: k for k, i in enumerate(r.builder.bindings)}
    first, why = len(states) - 1, None
    while first and (why := _differ(r, states[first - 1], states[first], order, states[0].handles)) is None:
        first -= 1
    pairs = [(a, b) for k, (a, b) in enumerate(pairwise(states), 1) if k > first and k != gap]
    if len(pairs) < _ALIKE:
        return why or _DIFFERENT
    alike = states[first:]
    carried = [key for key, n in alike[0].nodes.items() if any(s.nodes[key] is not n for s in alike)]
    turn = _Turn(*pairs[-1], carried)
    if (found := turn.read(checks, alike[0].mark)) is not None:
        return found
    good = 0
    for pair in reversed(pairs):
        if (found := turn.compare(*pair, checks)) is not None:
            why = found
            break
        good += 1
    if good < _ALIKE or (gap and states.index(pairs[-good][0]) >= gap):
        return why or _DIFFERENT
    start = pairs[-good][0]
    for key in carried:
        if not same_type(start.nodes[key].type, turn.a.nodes[key].type):
            return f"{_name(key)} changes its type"
    return _Proof(run, turn, start, states[-1])


def _differ(r: Recorder, a: State, b: State, order: Mapping[int, int], entered: int) -> str | None:
    """Why two states in a row are not alike; None where they are."""
    if why := a.unknown or b.unknown:
        return why
    if a.world != b.world:
        return _world_differs(a, b)
    mine: dict[int, Any] = {}
    its: dict[int, Any] = {}
    for key, x in a.leaves.items():
        y = b.leaves[key]
        if r.is_tensor(x) and r.is_tensor(y) and mine.setdefault(id(x), key) != its.setdefault(id(y), key):
            return f"{_name(key)} is not in every turn another tensor than others are"
        if x is y:
            if key in a.layouts and a.layouts[key] != b.layouts.get(key):
                return f"{_name(key)} changes its shape, dtype, layout, or what is known of its gradient"
        elif (why := _carries(r, key, a, b, order, entered)) is not None:
            return why
    return None


def _world_differs(a: State, b: State) -> str:
    if a.leaves.keys() != b.leaves.keys():
        odd = a.leaves.keys() ^ b.leaves.keys()
        names = sorted({_name(k) for k in odd})
        return f"{', '.join(names[:3])}: not there in every turn"
    return "it changes more than variables: an object made in the call, a mode, a gradient, or something outside"


def _carries(r: Recorder, key: Any, a: State, b: State, order: Mapping[int, int], entered: int) -> str | None:
    """Why a place that holds another object than a turn ago is not carried, nor equal."""
    x, y, name = a.leaves[key], b.leaves[key], _name(key)
    if type(x) in OPAQUE or type(y) in OPAQUE:
        if type(x) is type(y) and ((key in a.nodes and key in b.nodes) or (x.ref == y.ref >= 0)):
            return None
        return f"{name} is a number that Python computes from others"
    if type(x) is type(y) and type(x) in IMMUTABLE:
        return None if bits(x) == bits(y) else f"{name} changes, from {x!r} to {y!r}"
    if not (r.is_tensor(x) and r.is_tensor(y)):
        return f"{name} changes: it is {describe(y)}"
    if (
        key not in a.nodes
        or key not in b.nodes
        or any(order[id(t)] < entered or not r.builder.made_here(t) for t in (x, y))
    ):
        return f"{name} is a tensor from outside of the loop"
    if a.layouts[key] != b.layouts[key]:
        return f"{name} changes its shape, dtype or layout"
    layout = a.layouts[key]
    if not layout.plain:
        return f"{name} has a gradient, a hook, or a class of its own"
    if layout.is_view and a.assigns != b.assigns:
        return f"{name} is a view, and the loop writes in place"
    return None


def _name(key: Any) -> str:
    if key[0] == "variable":
        return f"variable {key[1]}"
    return "the index" if key[0] == "index" else "something in an object made in the call"


# ---------------------------------------------------------------- turns


class _Turn:
    """The nodes of one turn, between two states: what each later turn does too."""

    def __init__(self, a: State, b: State, carried: Sequence[Any]) -> None:
        self.a, self.b, self.carried = a, b, carried
        self.checks: Sequence[Check] = ()
        self.members: set[Node] = set()  # made in the turn
        self.names: dict[Node, set[Any]] = {}  # of the values that it gets from the turn before
        for key in carried:
            self.names.setdefault(a.nodes[key], set()).add(key)

    def name(self, n: Node) -> Any:
        """The first of the names of a value."""
        return min(self.names[n], key=self.carried.index)

    def roots(self, a: State, b: State, checks: Sequence[Check]) -> list[Node]:
        """What a turn is for."""
        return [*(b.nodes[k] for k in self.carried), *(c.node for c in checks[a.checks : b.checks])]

    def read(self, checks: Sequence[Check], first: int) -> str | None:
        """Find the members; why they are no turn of a loop whose nodes have ids from `first` on."""
        self.checks = checks[self.a.checks : self.b.checks]
        if not self.checks:
            return "the data is not asked in every turn"
        if any(c.node.dtype is not bool_ and c.node.dtype.kind not in "iu" for c in self.checks):
            return "Python looks at a number in every turn"
        counting = 0
        stack = self.roots(self.a, self.b, checks)
        while stack:
            n = stack.pop()
            if n in self.names or n in self.members:
                continue
            if not all(t.is_static for t in results(n.type)):
                return "extents are inputs"
            if n.id >= self.a.mark and n.inputs:
                self.members.add(n)
                stack.extend(n.inputs)
                counting += n.type == _COUNT and n.op.name in ("add", "sub")
            elif n.id >= first and n.inputs:
                return "it reads what an earlier turn has made"
        return None if counting <= _COUNTING else "it counts in too many places"

    def compare(self, a: State, b: State, checks: Sequence[Check]) -> str | None:
        """Why the turn from a to b does not do what this one does; None where it does. Values that go by the same name
        by chance alone lose it."""
        its = checks[a.checks : b.checks]
        if [(c.kind, bits(c.value), c.where) for c in self.checks] != [(c.kind, bits(c.value), c.where) for c in its]:
            return "Python does not see the same in every turn"
        known: dict[Node, Node] = {}
        stack = list(zip(self.roots(self.a, self.b, checks), self.roots(a, b, checks), strict=True))
        names: dict[Node, set[Any]] = {}
        while stack:
            t, n = stack.pop()
            if t in known:
                if known[t] is not n:
                    return _DIFFERENT
                continue
            known[t] = n
            if t in self.names:
                names[t] = {k for k in self.names[t] if a.nodes[k] is n}
                if not names[t]:
                    return _DIFFERENT
            elif t in self.members:
                if not same_op(t.op, n.op) or len(t.inputs) != len(n.inputs) or not same_type(t.type, n.type):
                    return _DIFFERENT
                stack.extend(zip(t.inputs, n.inputs))
            elif t is not n and not (_is_constant(t) and _is_constant(n) and same_op(t.op, n.op)):
                return _DIFFERENT
        self.names.update(names)
        return None

    def deviates(self, checks: Sequence[Check]) -> bool:
        """Whether Python saw something else in the last turn, which begins with these checks."""
        return any(bits(a.value) != bits(b.value) or a.where != b.where for a, b in zip(self.checks, checks))

    def needed(self, wanted: Iterable[Any]) -> list[Any]:
        """The names of what must be carried so that these are."""
        keys = dict.fromkeys(wanted)
        seen: set[Node] = set()
        stack = [*(c.node for c in self.checks), *(self.b.nodes[k] for k in keys)]
        while stack:
            n = stack.pop()
            if n in seen:
                continue
            seen.add(n)
            if n in self.names:
                if (key := self.name(n)) not in keys:
                    keys[key] = None
                    stack.append(self.b.nodes[key])
            elif n in self.members:
                stack.extend(n.inputs)
        return [k for k in self.carried if k in keys]

    def body(self, keys: Sequence[Any]) -> tuple[Graph, tuple[Node, ...]]:
        """(carried, fixed) -> (carried, test); and the fixed values, among them what every turn computes alike."""
        params = {k: param(f"c{i}", self.a.nodes[k].type) for i, k in enumerate(keys)}
        fixed: dict[Node, Node] = {}
        new: dict[Node, Node] = {}
        carried, tests = [self.b.nodes[k] for k in keys], [c.node for c in self.checks]
        alike = self.alike([*carried, *tests]).difference(tests)
        for n in self.reached([*carried, *tests], alike):
            if n in self.names:
                new[n] = params[self.name(n)]
            elif n in self.members and n not in alike:
                new[n] = n.with_inputs(tuple(new[i] for i in n.inputs))
            elif _is_constant(n) and not isinstance(getattr(n.op, "value", None), ArrayConst):
                new[n] = n.with_inputs(())
            else:
                new[n] = fixed[n] = param(f"w{len(fixed)}", n.type)
        test: Node | None = None
        for c in self.checks:
            one = new[c.node]
            if one.dtype is not bool_:
                one = Node.of(Op.registry["eq"](), (one, _constant(c.value, one.type)))
            elif not c.value:
                one = Node.of(Op.registry["bit_not"](), (one,))
            test = one if test is None else Node.of(Op.registry["bit_and"](), (test, one))
        assert test is not None
        graph = Graph("turn", (*params.values(), *fixed.values()), (*(new[n] for n in carried), test))
        return graph, tuple(fixed)

    def alike(self, roots: Sequence[Node]) -> set[Node]:
        """The members behind `roots` that are worth computing before the loop: on no carried value, and more than
        constants and views."""
        same: set[Node] = set()
        worth: set[Node] = set()
        known = _known(roots)
        for n in self.reached(roots, ()):
            if n not in self.names and (n not in self.members or all(i in same for i in n.inputs)):
                same.add(n)
                if n in self.members and n not in known and n.op.name not in VIEWS and isinstance(n.type, TensorType):
                    worth.add(n)
        return worth

    def reached(self, roots: Sequence[Node], ends: Container[Node]) -> list[Node]:
        """The nodes of the turn behind `roots` down to `ends`, and what it gets from elsewhere, in order."""
        seen: set[Node] = set()
        stack = [*roots]
        while stack:
            n = stack.pop()
            if n not in seen:
                seen.add(n)
                if n in self.members and n not in self.names and n not in ends:
                    stack.extend(n.inputs)
        return sorted(seen, key=lambda n: n.id)


def _is_constant(n: Node) -> bool:
    return not n.inputs and not isinstance(n.op, Param)


def _constant(value: Any, type: TensorType) -> Node:
    return Node.of(Op.registry["const"](value, type), ())  # type: ignore[call-arg]


# ---------------------------------------------------------------- the graph


def _replaced(p: _Proof, ends: Sequence[Node]) -> tuple[tuple[Node, ...], Node] | str:
    """The ends, computed from what the loop has carried to its last turn, and how many turns it took; or why they
    cannot be."""
    names = {p.last.nodes[k]: k for k in reversed(p.turn.carried)}
    new: dict[Node, Node] = {}
    wanted: dict[Node, Any] = {}
    after: list[Node] = []
    stack = [*ends]
    seen: set[Node] = set()
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        if n.id < p.first.mark:
            new[n] = n
        elif n in names:
            wanted[n] = names[n]
        elif not n.inputs:
            new[n] = n
        elif n.id < p.last.mark:
            return f"a value of an earlier turn is read after it ({n.op.name} at {n.where})"
        else:
            after.append(n)
            stack.extend(n.inputs)
    keys = p.turn.needed(wanted.values())
    body, fixed = p.turn.body(keys)
    limit = _LIMIT if p.first.left is None else p.first.left
    loop = Node.of(While(body, limit, len(keys)), (*(p.first.nodes[k] for k in keys), *fixed))
    loop.where = p.run.heat.where
    for n, key in wanted.items():
        new[n] = Node.of(Item(keys.index(key)), (loop,))
    turns = Node.of(Item(len(keys)), (loop,))
    for n in sorted(after, key=lambda n: n.id):
        new[n] = n.with_inputs(tuple(new[i] for i in n.inputs))
    return tuple(new[n] for n in ends), turns
