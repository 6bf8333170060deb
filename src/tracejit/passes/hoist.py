"""What a loop need not do turn by turn, done at once.

    f(W)                            once before the loop
    x[t] @ W                        one product of all rows, a row of which each turn reads
    y[t] = f(x[t])                  one step over all rows, where nothing is carried
    total += a[t].T @ b[t]          one product of the stacks of a and b, after the loop
    total += reduce_sum(y[t])       one sum over the stack of y

Sums over turns are added up in another order than turn by turn, which changes their rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from tracejit.ir.graph import Graph, expand, param
from tracejit.ir.node import Node
from tracejit.ir.op import Item, Param
from tracejit.ir.types import TupleType
from tracejit.ops.contract import MatMul
from tracejit.ops.control import Loop
from tracejit.ops.movement import Broadcast, Reshape, Transpose
from tracejit.ops.pointwise import Add, Pointwise
from tracejit.ops.reduce import ReduceSum
from tracejit.passes.rollup import lifted
from tracejit.passes.sections import VIEWS
from tracejit.records import dataclass

__all__ = ["hoist"]


def hoist(graph: Graph) -> Graph:
    """`graph`, its loops doing no more than they must."""
    if not any(isinstance(n.op, Loop) for n in graph.nodes):
        return graph
    return expand(graph, Loop, lambda op, n, inputs: _Hoist(op, inputs, n.where).run())


@dataclass(eq=False)
class _Hoist:
    op: Loop
    inputs: tuple[Node, ...]
    where: str | None
    # Of nodes of the body: the value of all turns, and whether that is a stack; None where turns depend on each other.
    outer: dict[Node, tuple[Node, bool] | None] = field(default_factory=dict[Node, "tuple[Node, bool] | None"])
    rows: dict[Node, Node] = field(default_factory=dict[Node, Node])  # params of the body and the stacks they read
    fixed: dict[Node, Node] = field(default_factory=dict[Node, Node])
    becomes: dict[Node, Node] = field(default_factory=dict[Node, Node])  # in the body

    def run(self) -> tuple[Node, ...]:
        """The results of the loop."""
        op, body = self.op, self.op.body
        self.outer |= dict.fromkeys(body.params[: op.carried])
        for p, x in zip(body.params[op.carried :][: op.rows], self.inputs[op.carried :]):
            self.outer[p], self.rows[p] = (x, True), x
        for p, x in zip(body.params[op.carried + op.rows :], self.inputs[op.carried + op.rows :]):
            self.outer[p], self.fixed[p] = (x, False), x
        sums = self.sums()
        needed = [x for _, term in sums.values() for x in map(self.below, term.inputs)]
        stacked = body.results[op.carried :]
        rest = tuple(dict.fromkeys(r for r in (*stacked, *needed) if self.at_once(r) is None))
        carried = [k for k in range(op.carried) if k not in sums]
        results = self.rebuild(carried, rest) if carried or rest else ()
        for x, y in zip(rest, results[len(carried) :], strict=True):
            self.outer[x] = (y, True)
        finals = dict(zip(carried, results))
        for k, (path, term) in sums.items():
            total = self.total(term)
            for view in path:
                total = view.with_inputs((total,))
            finals[k] = Node.of(Add(), (self.inputs[k], total))
        return (*(finals[k] for k in range(op.carried)), *map(self.stack, stacked))

    # ------------------------------------------------------------ sums over turns

    def sums(self) -> dict[int, tuple[tuple[Node, ...], Node]]:
        """Carried values that only add up: their number, the product or sum that is added, and the views of it."""
        op, body = self.op, self.op.body
        uses = body.uses()
        found: dict[int, tuple[tuple[Node, ...], Node]] = {}
        for k, (p, r) in enumerate(zip(body.params[: op.carried], body.results)):
            if r.op.name != "add" or uses[p] != 1 or uses[r] != 1 or p not in r.inputs:
                continue
            n = r.inputs[0] if r.inputs[1] is p else r.inputs[1]
            path: list[Node] = []
            while n.op.name in VIEWS and n.op.name != "slice":
                path.append(n)
                (n,) = n.inputs
            if self.is_sum(n):
                found[k] = (tuple(reversed(path)), n)
        return found

    def is_sum(self, n: Node) -> bool:
        """True for a product or sum whose operands are worth keeping until the end."""
        if n.op.name == "reduce_sum":
            return True
        if n.op.name != "matmul" or len(n.shape) != 2:
            return False
        (m, k), cols = sizes(n.inputs[0]), sizes(n)[1]
        return k * (m + cols) <= 4 * m * cols

    def below(self, n: Node) -> Node:
        """What n is a view of, which is what is worth storing."""
        while n.op.name in ("reshape", "transpose"):
            (n,) = n.inputs
        return n

    def total(self, n: Node) -> Node:
        """The sum over all turns of a product or sum."""
        t = self.op.trips
        if n.op.name == "reduce_sum":
            axes = tuple(a + 1 for a in n.op.axes)  # type: ignore[attr-defined]
            return Node.of(ReduceSum((0, *axes)), (self.stack(n.inputs[0]),))
        a, b = n.inputs
        (m, k), cols = sizes(a), sizes(b)[1]
        if a.op.name == "transpose":
            left = Node.of(Reshape((t * k, m)), (self.stack(a.inputs[0]),))
            left = Node.of(Transpose((1, 0)), (left,))
        else:
            left = Node.of(Reshape((m, t * k)), (Node.of(Transpose((1, 0, 2)), (self.stack(a),)),))
        right = Node.of(Reshape((t * k, cols)), (self.stack(b),))
        return Node.of(MatMul(), (left, right))

    def stack(self, n: Node) -> Node:
        """The values of n in all turns."""
        found = self.at_once(n)
        assert found is not None
        return found[0] if found[1] else self.spread(found[0])

    def spread(self, x: Node) -> Node:
        """A value as the same row in all turns."""
        dims = tuple(range(1, len(x.shape) + 1))
        return Node.of(Broadcast((self.op.trips, *x.shape), dims), (x,))

    # ------------------------------------------------------------ values of all turns

    def at_once(self, n: Node) -> tuple[Node, bool] | None:
        """The value of a node of the body in all turns, and whether it differs between them; None where turns depend
        on each other."""
        order = [n]
        while order:
            x = order[-1]
            if x in self.outer:
                order.pop()
            elif missing := [i for i in x.inputs if i not in self.outer]:
                order += missing
            else:
                self.outer[x] = self.lift(x)
        return self.outer[n]

    def lift(self, n: Node) -> tuple[Node, bool] | None:
        known = [self.outer[i] for i in n.inputs]
        given = [x for x in known if x is not None]
        if len(given) < len(known) or isinstance(n.type, TupleType) or isinstance(n.op, Item):
            return None
        if not any(s for _, s in given):
            inputs = tuple(x for x, _ in given)
            return (n if inputs == n.inputs else n.with_inputs(inputs)), False
        t = self.op.trips
        if n.op.name in VIEWS:
            return Node.of(lifted(n.op, t), [given[0][0]]), True
        if n.op.name == "matmul" and len(n.shape) == 2 and given[0][1] and not given[1][1]:
            m, k = sizes(n.inputs[0])
            y = Node.of(n.op, (Node.of(Reshape((t * m, k)), (given[0][0],)), given[1][0]))
            return Node.of(Reshape((t, *n.shape)), (y,)), True
        if n.op.name == "matmul" or isinstance(n.op, Pointwise):
            return Node.of(n.op, [x if s else self.spread(x) for x, s in given]), True
        return None

    # ------------------------------------------------------------ the loop that is left

    def rebuild(self, kept: list[int], extra: Sequence[Node]) -> tuple[Node, ...]:
        """A loop of these carried values that stacks `extra`; products of rows come from outside."""
        op, body = self.op, self.op.body
        wanted = [*(body.results[k] for k in kept), *extra]
        for n in Graph("wanted", (), tuple(wanted)).nodes:
            if isinstance(n.op, Param):
                continue
            found = self.at_once(n) if n.inputs and n.op.name not in VIEWS else None
            if found is not None and (n.op.name == "matmul" or not found[1]):
                p = self.becomes[n] = param(f"p{n.id}", n.type)
                (self.rows if found[1] else self.fixed)[p] = found[0]
                continue
            inputs = tuple(self.becomes.get(i, i) for i in n.inputs)
            if inputs != n.inputs:
                self.becomes[n] = n.with_inputs(inputs)
        results = tuple(self.becomes.get(r, r) for r in wanted)
        read = set(Graph("read", (), results).nodes)
        rows = [p for p in self.rows if p in read]
        fixed = [p for p in self.fixed if p in read]
        turn = Graph(body.name, (*(body.params[k] for k in kept), *rows, *fixed), results)
        loop = Loop(turn, op.trips, len(kept), len(rows), op.backwards)
        inputs = (*(self.inputs[k] for k in kept), *(self.rows[p] for p in rows), *(self.fixed[p] for p in fixed))
        node = Node.of(loop, inputs)
        node.where = self.where
        return tuple(Node.of(Item(k), (node,)) for k in range(len(results)))


def sizes(n: Node) -> tuple[int, ...]:
    """The shape, which is known."""
    return tuple(int(d) for d in n.shape)  # type: ignore[arg-type]
