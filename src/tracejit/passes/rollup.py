"""Repeated sections become loops: code and compile time no longer grow with the number of turns.

`sections.find` says where; here each section becomes one `Loop`. What a turn reads from the turn before is carried,
what it reads by slices of a value or from the turns of another loop are rows, and what others read of its turns is
stacked in the order of those rows: backwards where most are read so, so that the stacks of a gradient's loop lie as the
program's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

from tracejit.ir.graph import Graph, param
from tracejit.ir.node import Node
from tracejit.ir.op import ArrayConst, Item, Op
from tracejit.ops.control import Loop
from tracejit.ops.movement import Flip, Reshape, Slice, Transpose
from tracejit.passes.sections import FEWEST, VIEWS, Edge, Program, Relation, Section, edge, find
from tracejit.records import dataclass

__all__ = ["lifted", "roll_up"]


def roll_up(graph: Graph) -> Graph:
    """`graph` with its repeated sections as loops; itself where there are none."""
    program = find(graph) if len(graph.nodes) >= 3 * FEWEST else None
    return graph if program is None else _Rebuild(graph, program).run()


@dataclass(eq=False)
class _Made:
    """A section as a loop."""

    section: Section
    carried: dict[int, int] = field(default_factory=dict[int, int])  # step whose last value is a result -> its number
    stacks: dict[int, Node] = field(default_factory=dict[int, Node])  # step -> its values in all turns
    node: Node | None = None
    backwards: bool = False

    def index(self, turn: int) -> int:
        """The row of a turn."""
        return self.section.trips - 1 - turn if self.backwards else turn


class _Rebuild:
    def __init__(self, graph: Graph, program: Program) -> None:
        self.graph, self.program = graph, program
        self.new: dict[Node, Node] = {p: p for p in graph.params}
        self.made: dict[Section, _Made] = {}
        self.wanted: dict[Section, dict[int, set[int]]] = {s: {} for s in program.sections}
        for k, edges in enumerate(program.edges):
            for e in edges:
                self.want(e.source, program.home.get(k))
        for r in graph.results:
            self.want(edge(r, {}).source, None)

    def want(self, source: Node, reader: Section | None) -> None:
        """Note that a value of a section is read outside of it."""
        k = self.program.at.get(source, -1)
        home = self.program.home.get(k)
        if home is not None and home is not reader:
            turn, step = home.place(k)
            self.wanted[home].setdefault(step, set()).add(turn)

    def run(self) -> Graph:
        """The graph with loops."""
        k = 0
        steps = self.program.steps
        while k < len(steps):
            home = self.program.home.get(k)
            if home is not None:
                self.made[home] = _Body(self, home).finish()
                k = home.stop
                continue
            n = steps[k]
            if n.op.name == "concat":
                self.new[n] = self.concat(n)
            else:
                self.new[n] = n.with_inputs(tuple([self.value(i) for i in n.inputs]))
            k += 1
        return self.graph.with_results([self.value(r) for r in self.graph.results])

    # ------------------------------------------------------------ values outside of loops

    def value(self, n: Node) -> Node:
        """What stands for a value of the old graph."""
        path: list[Node] = []
        while n not in self.new:
            if n.op.name in VIEWS:
                path.append(n)
                (n,) = n.inputs
            elif not n.inputs:
                self.new[n] = n.with_inputs(())
            else:
                k = self.program.at[n]
                self.new[n] = self.of_turn(self.program.home[k], *self.program.home[k].place(k))
        out = self.new[n]
        for view in reversed(path):
            out = self.new[view] = view.with_inputs((out,))
        return out

    def of_turn(self, s: Section, turn: int, step: int) -> Node:
        """The value of a step in a turn of a loop."""
        made = self.made[s]
        if turn == s.trips - 1 and step in made.carried:
            assert made.node is not None
            return Node.of(Item(made.carried[step]), (made.node,))
        stack = made.stacks[step]
        at = made.index(turn)
        return Node.of(Reshape(tuple(stack.shape[1:])), (cut(stack, 0, at, at + 1),))

    def concat(self, n: Node) -> Node:
        """A concat, its runs of values of successive turns as parts of their stack."""
        axis: int = n.op.axis  # type: ignore[attr-defined]
        edges = self.program.edges[self.program.at[n]]
        places = [self.turn_of(e) for e in edges]
        parts: list[Node] = []
        k = 0
        while k < len(edges):
            stop, by = k + 1, 0
            here = places[k]
            while here is not None and stop < len(edges):
                there, before = places[stop], places[stop - 1]
                assert before is not None
                if there is None or there[0] is not here[0] or there[2] != here[2]:
                    break
                step = there[1] - before[1]
                if abs(step) != 1 or (by and step != by) or not equal_paths(edges[k].path, edges[stop].path):
                    break
                by, stop = step, stop + 1
            if here is None or stop - k < 2 or here[2] not in self.made[here[0]].stacks:
                parts.append(self.value(n.inputs[k]))
                k += 1
                continue
            made = self.made[here[0]]
            first, last = made.index(here[1]), made.index(here[1] + by * (stop - k - 1))
            rows = cut(made.stacks[here[2]], 0, min(first, last), max(first, last) + 1)
            if first > last:
                rows = Node.of(Flip((0,)), (rows,))
            for view in edges[k].path:
                rows = Node.of(lifted(view.op, stop - k), (rows,))
            parts.append(joined(rows, axis))
            k = stop
        return parts[0] if len(parts) == 1 else Node.of(n.op, parts)

    def turn_of(self, e: Edge) -> tuple[Section, int, int] | None:
        """(section, turn, step) of what an edge reads."""
        k = self.program.at.get(e.source, -1)
        home = self.program.home.get(k)
        return None if home is None else (home, *home.place(k))

    # ------------------------------------------------------------ loops

    def rows(self, s: Section, step: int, q: int, r: Relation) -> tuple[Node, bool, tuple[Node, ...]]:
        """The stack that an edge reads row by row, whether turn 0 reads its last row, and the views of a row."""
        e = self.program.edges[s.start + step][q]
        if r.kind == "row":
            home, other = r.at
            made = self.made[home]
            turn = self.turn_of(e)
            assert turn is not None
            first, last = made.index(turn[1]), made.index(turn[1] + r.by * (s.trips - 1))
            return cut(made.stacks[other], 0, min(first, last), max(first, last) + 1), first > last, e.path
        view: Any = e.path[r.view].op
        below = self.value(e.path[r.view].inputs[0])
        width, d = abs(r.by), r.axis
        starts, limits = list(view.starts), list(view.limits)
        starts[d] = min(view.starts[d], view.starts[d] + r.by * (s.trips - 1))
        limits[d] = starts[d] + width * s.trips
        whole = tuple(starts) == (0,) * len(starts) and tuple(limits) == tuple(below.shape) and set(view.strides) == {1}
        x = below if whole else Node.of(Slice(tuple(starts), tuple(limits), view.strides), (below,))
        shape = x.shape
        x = Node.of(Reshape((*shape[:d], s.trips, width, *shape[d + 1 :])), (x,))
        if d:
            x = Node.of(Transpose((d, *range(d), *range(d + 1, len(shape) + 1))), (x,))
        return x, r.by < 0, e.path[r.view + 1 :]


class _Body:
    """A loop in the making."""

    def __init__(self, of: _Rebuild, s: Section) -> None:
        self.of, self.s = of, s
        self.program = of.program
        self.made = _Made(s)
        self.values: dict[int, Node] = {}  # of the steps of a turn
        self.carried: dict[Any, tuple[Node, Node]] = {}  # key -> (param, initial value)
        self.rows: dict[Any, tuple[Node, Node, bool]] = {}  # key -> (param, stack, whether turn 0 reads the last row)
        self.fixed: dict[Node, tuple[Node, Node]] = {}
        self.views: dict[Any, Node] = {}

    def finish(self) -> _Made:
        s, made = self.s, self.made
        for j in range(s.period):
            n = self.program.steps[s.start + s.period + j]
            inputs = tuple([self.operand(j, q) for q in range(len(n.inputs))])
            self.values[j] = n.with_inputs(inputs)
        carried = [self.next(key) for key in self.carried]
        for number, (step, path, _) in enumerate(self.carried):
            if not path:
                made.carried.setdefault(step, number)
        stacked = [j for j, turns in self.of.wanted[s].items() if j not in made.carried or turns != {s.trips - 1}]
        made.backwards = 2 * sum(last for _, _, last in self.rows.values()) > len(self.rows)
        stacks = [x if last == made.backwards else Node.of(Flip((0,)), (x,)) for _, x, last in self.rows.values()]
        params = [p for group in (self.carried, self.rows, self.fixed) for p, *_ in group.values()]
        body = Graph("turn", tuple(params), (*carried, *(self.values[j] for j in stacked)))
        op = Loop(body, s.trips, len(self.carried), len(self.rows), made.backwards)
        inits = [x for _, x in self.carried.values()]
        made.node = Node.of(op, (*inits, *stacks, *(x for _, x in self.fixed.values())))
        made.node.where = self.program.steps[s.start].where
        for k, j in enumerate(stacked):
            made.stacks[j] = Node.of(Item(len(self.carried) + k), (made.node,))
        return made

    def operand(self, j: int, q: int) -> Node:
        """Operand q of step j."""
        s, r = self.s, self.s.relations[j][q]
        e = self.program.edges[s.start + s.period + j][q]
        if r.kind == "same" and r.view < 0:
            return self.seen(self.given(e.source), e.path)
        if r.kind == "shift":
            if r.at <= j:
                return self.seen(self.values[j - r.at], e.path)
            return self.carry(j, q, r, e)
        return self.row(j, q, r)

    def given(self, x: Node) -> Node:
        """A value from before the loop: constants are made anew, others are inputs."""
        if not x.inputs and x not in self.of.graph.params and not isinstance(getattr(x.op, "value", None), ArrayConst):
            return x
        if x not in self.fixed:
            self.fixed[x] = (param(f"w{len(self.fixed)}", x.type), self.of.value(x))
        return self.fixed[x][0]

    def carry(self, j: int, q: int, r: Relation, e: Edge) -> Node:
        """A value of the turn before. It is handed on as it is made, or, where the first turn sees something else
        than a value of that form, as it is seen."""
        s = self.s
        step = j - r.at + s.period
        first = self.program.edges[s.start + j][q]
        start = self.program.steps[s.start + j].inputs[q]
        path = e.path
        if equal_paths(first.path, path):
            start, path = first.source, ()
        key = (step, tuple(v.op for v in path), start)
        if key not in self.carried:
            p = param(f"c{len(self.carried)}", start.type)
            self.carried[key] = (p, self.of.value(start))
        p = self.carried[key][0]
        return p if path else self.seen(p, e.path)

    def next(self, key: Any) -> Node:
        """What a turn makes of a carried value."""
        step, ops, _ = key
        x = self.values[step]
        for op in ops:
            x = Node.of(op, (x,))
        return x

    def row(self, j: int, q: int, r: Relation) -> Node:
        """A row, seen through the rest of the edge's path."""
        stack, last, path = self.of.rows(self.s, j, q, r)
        e = self.program.edges[self.s.start + j][q]
        key = (r.kind, r.by, r.view, r.axis, e.source, tuple(v.op for v in e.path[: r.view + 1]) if r.view >= 0 else ())
        if key not in self.rows:
            p = param(f"x{len(self.rows)}", stack.type.with_shape(stack.shape[1:]))
            self.rows[key] = (p, stack, last)
        return self.seen(self.rows[key][0], path)

    def seen(self, x: Node, path: Sequence[Node]) -> Node:
        """x through the views of a path."""
        for view in path:
            key = (x, view.op)
            if key not in self.views:
                self.views[key] = view.with_inputs((x,))
            x = self.views[key]
        return x


def equal_paths(a: Sequence[Node], b: Sequence[Node]) -> bool:
    """True for the same views of values of one type."""
    if len(a) != len(b) or (a and a[0].inputs[0].shape != b[0].inputs[0].shape):
        return False
    return all(v is w or v.op == w.op for v, w in zip(a, b))


def cut(x: Node, axis: int, start: int, limit: int) -> Node:
    """x[start:limit] along an axis; x itself where that is all."""
    if start == 0 and limit == x.shape[axis]:
        return x
    starts, limits = [0] * len(x.shape), list(x.shape)
    starts[axis], limits[axis] = start, limit
    return Node.of(Slice(tuple(starts), tuple(limits), (1,) * len(starts)), (x,))


def joined(rows: Node, axis: int) -> Node:
    """Rows [n, ...] side by side along `axis` of a row."""
    n, *rest = rows.shape
    if axis:
        rows = Node.of(Transpose((*range(1, axis + 1), 0, *range(axis + 1, len(rows.shape)))), (rows,))
    return Node.of(Reshape((*rest[:axis], n * rest[axis], *rest[axis + 1 :])), (rows,))


def lifted(op: Op, n: int) -> Op:
    """The view `op` of each of n rows."""
    o: Any = op
    match op.name:
        case "reshape":
            return Reshape((n, *o.shape))
        case "transpose":
            return Transpose((0, *(a + 1 for a in o.perm)))
        case "slice":
            return Slice((0, *o.starts), (n, *o.limits), (1, *o.strides))
        case "flip":
            return Flip(tuple(a + 1 for a in o.axes))
        case "broadcast":
            return type(o)((n, *o.shape), (0, *(a + 1 for a in o.dims)))
        case _:
            return op
