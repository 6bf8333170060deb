"""The reverse pass: walk the nodes backwards, asking each op for the cotangents of its inputs.

The gradient is made of ordinary nodes in the same graph, so it can be printed, optimised, compiled and differentiated
again. Only nodes on a way from `wrt` to the results are asked: integers, `stop_gradient` and constants cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import overload

from tracejit.errors import AutogradError, IRError
from tracejit.ir.graph import Graph, param
from tracejit.ir.node import Node
from tracejit.ir.op import Item
from tracejit.ir.op import results as results_of
from tracejit.ir.types import TupleType, same_type
from tracejit.ops.pointwise import Add
from tracejit.ops.source import full
from tracejit.passes.rewrite import relocate
from tracejit.records import dataclass

__all__ = ["grad", "pullback", "vjp_graph"]


def grad(graph: Graph, wrt: Sequence[int], cotangents: Sequence[Node | None] | None = None) -> Graph:
    """The graph of d(results) / d(params[i]) for i in `wrt`.

    Without `cotangents` the only result must be a real scalar; with them, one node (or None) for each result, of its
    type, made of the graph's own params.
    """
    if cotangents is None:
        if len(graph.results) != 1 or not _is_real(graph.results[0]) or graph.results[0].shape:
            shown = ", ".join(str(r.type) for r in graph.results)
            raise AutogradError(f"@{graph.name} gives ({shown}): only a real scalar has a gradient without cotangents")
        (loss,) = graph.results
        cotangents = (full(loss, 1.0, loss.type),)
    gradients = pullback(graph.results, cotangents, _chosen(graph, wrt))
    return Graph(f"{graph.name}_grad", graph.params, gradients, graph.ranges)


def vjp_graph(graph: Graph, wrt: Sequence[int]) -> Graph:
    """The graph of (params..., one cotangent for each real result) -> gradients of params[i] for i in `wrt`.

    It shares the nodes of `graph`, so that `remat.split` can divide the two between a forward and a backward part.
    """
    cotangents = [param(f"g{i}", r.type) if _is_real(r) else None for i, r in enumerate(graph.results)]
    gradients = pullback(graph.results, cotangents, _chosen(graph, wrt))
    params = graph.params + tuple(c for c in cotangents if c is not None)
    return Graph(f"{graph.name}_vjp", params, gradients, graph.ranges)


def _chosen(graph: Graph, wrt: Sequence[int]) -> list[Node]:
    chosen = [graph.params[i] for i in wrt]
    if bad := [p for p in chosen if not _is_real(p)]:
        raise AutogradError(f"@{graph.name}: {bad[0]!r} is {bad[0].type}; only real parameters have gradients")
    return chosen


@overload
def pullback(results: Sequence[Node], cotangents: Sequence[Node | None], wrt: Sequence[Node]) -> tuple[Node, ...]: ...
@overload
def pullback(
    results: Sequence[Node], cotangents: Sequence[Node | None], wrt: Sequence[Node], *, zeros: bool
) -> tuple[Node | None, ...]: ...
def pullback(
    results: Sequence[Node], cotangents: Sequence[Node | None], wrt: Sequence[Node], *, zeros: bool = True
) -> tuple[Node | None, ...]:
    """For each node of `wrt` its cotangent; where no result depends on it zeros, or None."""
    nodes = Graph("pullback", tuple(wrt), tuple(results)).nodes
    sweep = _Sweep(_active(nodes, wrt), max((n.id for n in (*nodes, *cotangents) if n is not None), default=0))
    for n in nodes:
        if isinstance(n.op, Item):
            sweep.items.setdefault(n.inputs[0], {})[n.op.index] = n
    for r, g in zip(results, cotangents, strict=True):
        if g is not None and r in sweep.active:
            sweep.add(r, g, r)
    asked = set(wrt)
    for n in reversed(nodes):
        if n in sweep.active and n.inputs:
            sweep.visit(n, keep=n in asked)
    return tuple(sweep.found[w] if w in sweep.found else full(w, 0.0, w.type) if zeros else None for w in wrt)


def _active(nodes: Sequence[Node], wrt: Sequence[Node]) -> set[Node]:
    """Nodes through which a derivative with respect to `wrt` can flow."""
    active = set(wrt)
    for n in nodes:
        if n.op.name != "stop_gradient" and _is_real(n) and any(i in active for i in n.inputs):
            active.add(n)
    return active


def _is_real(n: Node) -> bool:
    return any(t.dtype.is_floating_point for t in results_of(n.type))


@dataclass
class _Sweep:
    active: set[Node]
    newest: int  # no node made so far has a higher id
    found: dict[Node, Node] = field(
        default_factory=dict[Node, Node]
    )  # cotangents, complete once all readers were visited
    parts: dict[Node, list[Node | None]] = field(
        default_factory=dict[Node, "list[Node | None]"]
    )  # of each result of a node
    items: dict[Node, dict[int, Node]] = field(default_factory=dict[Node, "dict[int, Node]"])

    def visit(self, n: Node, keep: bool) -> None:
        """Pass the cotangent of `n`, if it has one, on to its inputs."""
        if isinstance(n.type, TupleType):
            if (slots := self.parts.pop(n, None)) is not None:
                known = self.items[n]
                outs = [known[i] if i in known else Node.of(Item(i), (n,)) for i in range(len(slots))]
                self.spread(n, n.op.vjp(tuple(slots), tuple(outs), *n.inputs))
            return
        g = self.found.get(n) if keep else self.found.pop(n, None)
        if g is None:
            return
        if isinstance(n.op, Item):
            (source,) = n.inputs
            slots = self.parts.setdefault(source, [None] * len(source.type.items))
            have = slots[n.op.index]
            slots[n.op.index] = g if have is None else Node.of(Add(), (have, g))
            return
        self.spread(n, n.op.vjp(g, n, *n.inputs))

    def spread(self, n: Node, given: Sequence[Node | None]) -> None:
        for at, (i, g) in enumerate(zip(n.inputs, given, strict=True)):
            if g is None or i not in self.active:
                continue
            if not same_type(g.type, i.type):
                raise IRError(f"the gradient of {n!r} gives {g.type} for input {at}, which is {i.type}")
            self.add(i, g, n)

    def add(self, value: Node, g: Node, reader: Node) -> None:
        """`g`, found at `reader`, is part of the cotangent of `value`."""
        have = self.found.get(value)
        new = self.found[value] = g if have is None else Node.of(Add(), (have, g))
        relocate((new,), reader, self.newest)
        self.newest = max(self.newest, new.id)
