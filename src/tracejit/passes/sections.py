"""Repeated sections: where the nodes of a graph, in program order, are several turns of the same steps.

Views (reshapes, slices, transposes, ...) are not steps: they belong to the edge between a value and its reader, so it
does not matter where a program makes them. What is left is a sequence of steps; a section is a run of it in which every
step equals the one `period` steps earlier, and every edge goes on in one of these ways from turn to turn:

    same     the same value from before the section, or slices of it that move on by their own width
    shift    a value of the same turn, or of the turn before (before the first turn: of anything)
    row      the same step of another section, whose turns run along, or against

Anything else ends a section. `find` never guesses: each turn of a section is looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import field, fields
from typing import Any

import numpy as np

from tracejit.ir.graph import Graph
from tracejit.ir.node import Node
from tracejit.ir.op import Op, Param, attribute_key, results, same_op
from tracejit.ir.types import TensorType, TupleType
from tracejit.records import dataclass

__all__ = ["Edge", "Program", "Relation", "Section", "edge", "find", "read"]

VIEWS = frozenset({"reshape", "transpose", "slice", "flip", "broadcast", "copy", "stop_gradient"})
FEWEST = 4  # turns that are worth a loop
SMALL = 256  # steps in all turns that are not: kernels do better with pointwise steps written out
_WIDEST = 4  # operands that are compared all steps at once
_PERIODS, _REGIONS, _ALIGNMENTS = 24, 64, 96  # that are tried


@dataclass(frozen=True, slots=True)
class Edge:
    """An operand: `source` seen through `path`, views in the order in which they apply."""

    source: Node
    path: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Relation:
    """How an edge goes on from turn to turn; `at` is the distance in steps of a shift, or (section, step) of a row."""

    kind: str
    at: Any = None
    by: int = 0  # turns of the other section, for a row; or elements, for slices of the same value
    view: int = -1  # the view of the path that is a slice that moves, and the axis along which it does
    axis: int = -1


@dataclass(frozen=True, eq=False)
class Section:
    """`trips` turns of `period` steps from step `start` on."""

    start: int
    period: int
    trips: int
    relations: tuple[tuple[Relation, ...], ...]  # of the operands of each step

    @property
    def stop(self) -> int:
        """The first step after it."""
        return self.start + self.period * self.trips

    def place(self, step: int) -> tuple[int, int]:
        """(turn, step in it)."""
        return divmod(step - self.start, self.period)


Numbers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(eq=False)
class Program:
    """A graph as a sequence of steps and edges between them."""

    steps: list[Node]
    at: dict[Node, int]
    edges: list[tuple[Edge, ...]]
    kinds: Numbers  # equal for steps that may be turns of one
    sources: Numbers  # of each step and operand: the step it reads, or below 0 a number of another value; see `_NONE`
    paths: Numbers  # equal for equal paths
    sections: list[Section] = field(default_factory=list[Section])
    home: dict[int, Section] = field(default_factory=dict[int, Section])  # of the steps in sections


_NONE = -1  # no such operand


def read(graph: Graph) -> Program | None:
    """The steps of a graph; None where a shape is not known, or a value lies elsewhere than in memory."""
    steps = [n for n in graph.nodes if n.inputs and n.op.name not in VIEWS]
    at = {n: k for k, n in enumerate(steps)}
    kinds: dict[Hashable, int] = {}
    plain: dict[type[Op], bool] = {}  # ops without attributes
    others: dict[Hashable, int] = {}
    forms: dict[Hashable, int] = {}
    numbers: list[int] = []
    sources: list[list[int]] = []
    paths: list[list[int]] = []
    seen: dict[Node, Edge] = {}
    edges: list[tuple[Edge, ...]] = []
    widest = min(_WIDEST, max((len(n.inputs) for n in steps), default=0))
    for n in steps:
        cls = type(n.op)
        if cls not in plain:
            plain[cls] = not fields(cls)
        type_ = n.type
        key = (
            cls if plain[cls] else attribute_key(n.op),
            (type_.dtype, type_.shape) if isinstance(type_, TensorType) else attribute_key(type_.items),
            len(n.inputs),
        )
        if (kind := kinds.get(key)) is None:
            if not all(t.is_static and t.device == "cpu" for t in results(type_)):
                return None
            kind = kinds[key] = len(kinds)
        numbers.append(kind)
        found = tuple([edge(i, seen) for i in n.inputs])
        edges.append(found)
        from_, by = [_NONE] * widest, [_NONE] * widest
        for q, e in enumerate(found[:widest]):
            x = e.source
            if (step := at.get(x)) is None:
                if x not in others:
                    others[x] = others.setdefault(identity(x), len(others))
                step = -2 - others[x]
            from_[q] = step
            if e.path:
                by[q] = forms.setdefault(tuple([v.op for v in e.path]), len(forms))
        sources.append(from_)
        paths.append(by)
    src, path = (np.array(x, np.int64).reshape(len(steps), widest) for x in (sources, paths))
    return Program(steps, at, edges, np.array(numbers, np.int64), src, path)


def identity(n: Node) -> Hashable:
    """Equal for parameters that are the same, and for equal constants."""
    return n if isinstance(n.op, Param) else (attribute_key(n.op), attribute_key(n.type))


def edge(n: Node, seen: dict[Node, Edge]) -> Edge:
    """What `n` is a view of."""
    if n.op.name not in VIEWS:
        return Edge(n, ())
    path: list[Node] = []
    below = n
    while below not in seen and below.op.name in VIEWS:
        path.append(below)
        (below,) = below.inputs
    known = seen.get(below) or Edge(below, ())
    for view in reversed(path):
        known = seen[view] = Edge(known.source, (*known.path, view))
    return known


def find(graph: Graph) -> Program | None:
    """The steps of a graph with its repeated sections, the longest first; None where there are none."""
    if (program := read(graph)) is None:
        return None
    tried = list(regions(program))
    while (found := next((s for r in tried if (s := settle(program, *r)) is not None), None)) is not None:
        program.sections.append(found)
        program.home |= dict.fromkeys(range(found.start, found.stop), found)
        # Rows of the new section may be what another one waited for, so all are tried again.
        tried = [r for r in tried if not (r[0] < found.stop and found.start < r[0] + r[1])] + [*outside(tried, found)]
        tried.sort(key=lambda r: (-r[1], r[2]))
    return program if program.sections else None


def outside(tried: Sequence[tuple[int, int, int]], s: Section) -> Iterator[tuple[int, int, int]]:
    """What is left of regions beside a section."""
    for start, length, period in tried:
        stop = start + length
        if not (start < s.stop and s.start < stop):
            continue
        for a, b in ((start, min(stop, s.start)), (max(start, s.stop), stop)):
            if b - a >= FEWEST * period:
                yield a, b - a, period


def regions(program: Program) -> Iterator[tuple[int, int, int]]:
    """(start, length, period) of runs in which each step is of the kind of the one a period earlier, longest first."""
    kinds = program.kinds
    last: dict[int, int] = {}
    distances: Counter[int] = Counter()
    for k, kind in enumerate(kinds.tolist()):
        if kind in last:
            distances[k - last[kind]] += 1
        last[kind] = k
    found: list[tuple[int, int, int]] = []
    for period, count in distances.most_common(_PERIODS):
        if count < FEWEST - 1:
            continue
        same = np.concatenate([[False], kinds[period:] == kinds[:-period], [False]])
        ends = np.flatnonzero(same[1:] != same[:-1])
        for start, stop in zip(ends[::2].tolist(), ends[1::2].tolist()):
            if stop - start >= (FEWEST - 1) * period:
                found.append((start, stop - start + period, period))
    found.sort(key=lambda r: (-r[1], r[2]))
    return iter(found[:_REGIONS])


def settle(program: Program, start: int, length: int, period: int) -> Section | None:
    """The longest section in a region, if there is one that pays."""
    turns = length // period
    probes = {start + min(max(0, part * turns // 4 - 1), turns - 3) * period for part in (1, 2, 3)}
    if not any(goes_on(program, at, period) for at in probes):  # most regions fail here already
        return None
    stop = start + length
    pairs = related(program, start, stop - period, period)
    low, high = longest(pairs, period)
    best: Section | None = None
    fewest = 0
    shifts = (
        shift for first in (max(0, low - period), low) for shift in range(first, first + min(period, _ALIGNMENTS))
    )
    for shift in shifts:
        trips = (high - shift) // period + 1
        if trips < FEWEST or (best is not None and trips < best.trips):
            break
        relations = tuple(pairs[k] for k in range(shift + period, shift + 2 * period))
        if not begins(program, start + shift, period, pairs[shift : shift + period], relations):
            continue
        crossing = crossings(relations)
        if best is None or crossing < fewest:
            best, fewest = Section(start + shift, period, trips, relations), crossing  # type: ignore[arg-type]
    return best if best is not None and pays(program, best) else None


def goes_on(program: Program, start: int, period: int) -> bool:
    """Whether all edges of the turn at `start` go on in the next turn and, in the same way, in the one after."""
    for k in range(start, start + period):
        if None in (now := relate(program, k, period)) or now != relate(program, k + period, period):
            return False
    return True


def longest(pairs: Sequence[tuple[Relation | None, ...]], period: int) -> tuple[int, int]:
    """The longest interval of pairs in which edges go on, and always in the same way."""
    best = (0, 0)
    low = 0
    for k, now in enumerate(pairs):
        if None in now:
            low = k + 1
        elif k - period >= low and now != pairs[k - period]:
            low = k - period + 1
        if k + 1 - low > best[1] - best[0]:
            best = (low, k + 1)
    return best


def pays(program: Program, s: Section) -> bool:
    """Pointwise steps alone are better fused; what needs kernels of its own is not. Turns that do not depend on each
    other are no loop in the end: `hoist` makes one step of them."""
    if s.period * s.trips >= SMALL or not crossings(s.relations):
        return True
    body = program.steps[s.start : s.start + s.period]
    return any(not n.op.is_pullable() or n.op.library or n.op.name.startswith("reduce") for n in body)


def begins(
    program: Program,
    start: int,
    period: int,
    first: Sequence[tuple[Relation | None, ...]],
    later: Sequence[tuple[Relation | None, ...]],
) -> bool:
    """Whether a section with these relations of later turns can begin at `start`: its first turn may read anything
    where later ones read the turn before."""
    for j, (now, then) in enumerate(zip(first, later, strict=True)):
        for q, (r, s) in enumerate(zip(now, then, strict=True)):
            assert s is not None
            source = program.edges[start + j][q].source
            before = program.at.get(source, -1) < start
            if s.kind == "shift":
                carries = s.at > j
                if s.at > j + period or before != carries or (r != s and not carries):
                    return False
                if carries and isinstance(source.type, TupleType):
                    return False
            elif r != s or not before:
                return False
    return True


def crossings(relations: Sequence[tuple[Relation | None, ...]]) -> int:
    """How many values each turn hands to the next."""
    return len(
        {j - r.at for j, rs in enumerate(relations) for r in rs if r is not None and r.kind == "shift" and r.at > j}
    )


def relate(program: Program, k: int, period: int) -> tuple[Relation | None, ...]:
    """How the edges of step k go on in the step a period later."""
    now, then = program.edges[k], program.edges[k + period]
    return tuple([relation(program, k, period, a, b) for a, b in zip(now, then)])


def related(program: Program, start: int, stop: int, period: int) -> list[tuple[Relation | None, ...]]:
    """`relate` of all these steps. Most edges are shifts or read one value, and equal to those a period before: seen
    at once."""
    src, path = program.sources, program.paths
    now, then = slice(start, stop), slice(start + period, stop + period)
    simple = (path[now] == path[then]) & (
        (src[now] == src[then]) | ((src[then] - src[now] == period) & (src[now] >= 0) & (src[then] >= 0))
    )
    simple |= src[now] == _NONE
    is_simple = simple.all(axis=1)
    step = np.arange(start, stop)[:, None]
    form = np.where(src[now] == src[then], src[now], np.iinfo(np.int64).max - (step - src[now]))
    repeats = np.zeros(stop - start, bool)
    repeats[period:] = is_simple[period:] & is_simple[:-period] & (form[period:] == form[:-period]).all(axis=1)
    out: list[tuple[Relation | None, ...]] = []
    for k, again in enumerate(repeats.tolist()):
        is_long = len(program.edges[start + k]) > _WIDEST
        out.append(out[k - period] if again and not is_long else relate(program, start + k, period))
    return out


def relation(program: Program, k: int, period: int, now: Edge, then: Edge) -> Relation | None:
    """How an edge of step k goes on; None where that is none of the ways a loop knows."""
    view, axis, by = -1, -1, 0
    if now.path is not then.path:
        moved = moves(now.path, then.path)
        if moved is None:
            return None
        view, axis, by = moved
    if now.source is then.source:
        is_const = not now.source.inputs and not isinstance(now.source.op, Param)
        return Relation("same", None if is_const else now.source, by, view, axis)
    if not now.source.inputs or not then.source.inputs:
        return Relation("same") if not by and is_constant(now.source, then.source) else None
    if by:
        return None
    a, b = program.at[now.source], program.at[then.source]
    if b - a == period:
        return Relation("shift", k - a)
    home = program.home.get(a)
    if home is None or program.home.get(b) is not home:
        return None
    (turn, step), (other, same) = home.place(a), home.place(b)
    if same != step or abs(other - turn) != 1 or isinstance(now.source.type, TupleType):
        return None
    return Relation("row", (home, step), other - turn)


def is_constant(a: Node, b: Node) -> bool:
    """True where both are the same constant."""
    return not isinstance(a.op, Param) and same_op(a.op, b.op) and not (a.inputs or b.inputs)


def moves(now: Sequence[Node], then: Sequence[Node]) -> tuple[int, int, int] | None:
    """(number, axis, distance) of the one slice that differs between equal paths, (-1, -1, 0) where none does."""
    if len(now) != len(then):
        return None
    found = (-1, -1, 0)
    for k, (a, b) in enumerate(zip(now, then)):
        if a is b:
            continue
        p: Any = a.op
        q: Any = b.op
        if type(p) is not type(q) or a.type.dtype is not b.type.dtype or a.shape != b.shape:
            return None
        if p is q or p == q:
            continue
        if a.op.name != "slice" or p.strides != q.strides:
            return None
        axes = [d for d, (s, t) in enumerate(zip(p.starts, q.starts)) if s != t]
        ends = [d for d, (s, t) in enumerate(zip(p.limits, q.limits)) if s != t]
        if len(axes) != 1 or axes != ends or found[0] >= 0:
            return None
        (d,) = axes
        by, width = q.starts[d] - p.starts[d], p.limits[d] - p.starts[d]
        if q.limits[d] - p.limits[d] != by or abs(by) != width or p.strides[d] != 1:
            return None
        found = (k, d, by)
    return found
