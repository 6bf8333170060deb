"""A Graph is parameters and results; what is reachable from the results is the graph.

So there is no dead code, no insertion point and no use list to keep in step. `evaluate` interprets a graph over any
domain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from tracejit.cached import cached_property
from tracejit.ir.node import Node
from tracejit.ir.op import Item, Op, Param
from tracejit.ir.types import TensorType
from tracejit.records import dataclass

__all__ = ["Graph", "Range", "evaluate", "expand", "param", "rebuild", "run"]

K = TypeVar("K", bound=Op)
Range = tuple[int, str, int]  # lowest <= symbol <= highest


def param(label: str, type: TensorType) -> Node:
    """A fresh graph input."""
    node = Node(Param(label, type), (), type)
    node.label = label
    return node


@dataclass(frozen=True, eq=False)
class Graph:
    """`name(params) -> results`, with `ranges` for the symbols in its types."""

    name: str
    params: tuple[Node, ...]
    results: tuple[Node, ...]
    ranges: tuple[Range, ...] = ()

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Every node reachable from params and results, in creation order, which is topological. O(n log n)."""
        seen: set[Node] = set(self.params)
        stack = [n for n in self.results if n not in seen]
        seen.update(stack)
        while stack:
            for i in stack.pop().inputs:
                if i not in seen:
                    seen.add(i)
                    stack.append(i)
        return tuple(sorted(seen, key=lambda n: n.id))

    @cached_property
    def fingerprint(self) -> str:
        """`printer.fingerprint` of this graph, made once."""
        from tracejit.ir import printer  # which imports this module

        return printer.fingerprint(self)

    def with_results(self, results: Sequence[Node]) -> Graph:
        """This graph computing other values."""
        return Graph(self.name, self.params, tuple(results), self.ranges)

    def uses(self) -> dict[Node, int]:
        """How often each node is read; a result counts as one read."""
        count = dict.fromkeys(self.nodes, 0)
        for n in self.nodes:
            for i in n.inputs:
                count[i] += 1
        for r in self.results:
            count[r] += 1
        return count


def evaluate(graph: Graph, args: Sequence[Any], apply: Callable[[Op, Sequence[Any], Node], Any]) -> tuple[Any, ...]:
    """The results of `graph` on `args` in any domain: `apply(op, inputs, node)` gives each node's value."""
    env: dict[Node, Any] = dict(zip(graph.params, args, strict=True))
    for n in graph.nodes:
        if n not in env:
            env[n] = apply(n.op, [env[i] for i in n.inputs], n)
    return tuple(env[r] for r in graph.results)


def run(graph: Graph, arrays: Sequence[Any]) -> tuple[Any, ...]:
    """The oracle: `graph` on NumPy arrays by `Op.eval`."""
    return evaluate(graph, arrays, lambda op, xs, n: op.eval(*xs))


def expand(graph: Graph, kind: type[K], results: Callable[[K, Node, tuple[Node, ...]], Sequence[Node]]) -> Graph:
    """`graph` with each node of an op of `kind`, which has several results, replaced by `results(op, node, inputs)`."""
    new: dict[Node, Node] = {p: p for p in graph.params}
    made: dict[Node, Sequence[Node]] = {}
    for n in graph.nodes:
        if n in new:
            continue
        if isinstance(n.op, kind):
            made[n] = results(n.op, n, tuple([new[i] for i in n.inputs]))
        elif isinstance(n.op, Item) and n.inputs[0] in made:
            new[n] = made[n.inputs[0]][n.op.index]
        else:
            new[n] = n.with_inputs(tuple([new[i] for i in n.inputs]))
    return graph.with_results([new[r] for r in graph.results])


def rebuild(graph: Graph, replace: Mapping[Node, Node]) -> Graph:
    """`graph` with nodes replaced; untouched nodes are shared."""
    new: dict[Node, Node] = dict(replace)
    for n in graph.nodes:
        if n in new:
            continue
        ins = tuple(new[i] for i in n.inputs)
        if ins == n.inputs:
            new[n] = n
            continue
        new[n] = m = Node.of(n.op, ins)
        m.label, m.where = n.label, n.where
    params = tuple(p for p in (new[p] for p in graph.params) if isinstance(p.op, Param))
    return Graph(graph.name, params, tuple(new[r] for r in graph.results), graph.ranges)
