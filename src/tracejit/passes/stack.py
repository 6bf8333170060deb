"""Sums of padded pieces that do not overlap are concats: the gradient of `unbind`, `chunk` and `split`.

Written as a chain of additions, the gradient of T slices costs T passes over the whole; as a concat it costs one. The
same values, but for the sign of zeros: 0.0 + -0.0 is 0.0.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from tracejit.ir.graph import Graph
from tracejit.ir.node import Node
from tracejit.ops.movement import Concat
from tracejit.ops.source import Const

__all__ = ["stack_many", "stack_pieces"]

MANY = 8  # pieces of a sum whose number is likely that of the turns of a loop

Piece = tuple[int, int, Node]  # begin and end along the axis, and what lies there


def stack_many(graph: Graph) -> Graph:
    """`stack_pieces` where there may be sums of many pieces; a look at the pads otherwise."""
    lows: dict[Hashable, set[Hashable]] = {}
    for n in graph.nodes:
        if n.op.name == "pad":
            lows.setdefault(n.shape, set()).add(n.op.low)  # type: ignore[attr-defined]
    return stack_pieces(graph) if any(len(x) > MANY for x in lows.values()) else graph


def stack_pieces(graph: Graph) -> Graph:
    """`graph` with sums of disjoint pads as concats."""
    uses = graph.uses()
    replaced: dict[Node, Node] = {}
    inner: set[Node] = set()  # additions that are part of a larger sum
    for n in reversed(graph.nodes):
        if n.op.name == "add" and n not in inner and (pads := terms(n, uses, inner)) and (made := concat(pads)):
            replaced[n] = made
    return rebuilt(graph, replaced) if replaced else graph


def terms(root: Node, uses: Mapping[Node, int], inner: set[Node]) -> list[Node] | None:
    """The pads that `root` is the sum of; None where something else is in it."""
    out: list[Node] = []
    stack = list(root.inputs)
    while stack:
        n = stack.pop()
        if n.op.name == "add" and uses[n] == 1:
            inner.add(n)
            stack += n.inputs
        elif n.op.name == "pad" and is_zero(n.inputs[1]):
            out.append(n)
        else:
            return None
    return out


def is_zero(n: Node) -> bool:
    value = getattr(n.op, "value", None)
    return isinstance(value, (int, float)) and value == 0


def concat(pads: list[Node]) -> Node | None:
    """The sum of pads as a concat along the one axis they are along; None where they overlap."""
    axes: set[int] = set()
    for p in pads:
        o: Any = p.op
        if any(o.interior) or not p.type.is_static or min((*o.low, *o.high)) < 0:
            return None
        axes.update(d for d, (a, b) in enumerate(zip(o.low, o.high)) if a or b)
    if len(axes) != 1:
        return None
    (axis,) = axes
    pieces: list[Piece] = []
    for p in pads:
        low: int = p.op.low[axis]  # type: ignore[attr-defined]
        size = p.inputs[0].shape[axis]
        assert isinstance(size, int)
        if size:
            pieces.append((low, low + size, p.inputs[0]))
    pieces.sort(key=lambda x: x[0])
    out: list[Node] = []
    end = 0
    for begin, stop, x in pieces:
        if begin < end:
            return None
        if begin > end:
            out.append(zeros(pads[0], axis, begin - end))
        out.append(x)
        end = stop
    whole = pads[0].shape[axis]
    assert isinstance(whole, int)
    if end < whole:
        out.append(zeros(pads[0], axis, whole - end))
    return Node.of(Concat(axis), out)


def zeros(like: Node, axis: int, size: int) -> Node:
    """What lies between two pieces."""
    shape = (*like.shape[:axis], size, *like.shape[axis + 1 :])
    fill: Any = like.inputs[1].op
    return Node.of(Const(fill.value, like.type.with_shape(shape)), ())


def rebuilt(graph: Graph, replaced: Mapping[Node, Node]) -> Graph:
    """`graph` with nodes replaced by nodes over its own; all are made anew, in the program's order."""
    new: dict[Node, Node] = {p: p for p in graph.params}
    for n in graph.nodes:
        if n in new:
            continue
        m = replaced.get(n, n)
        for i in m.inputs:
            if i not in new:  # a constant of the replacement
                new[i] = i
        new[n] = made = m.with_inputs(tuple([new[i] for i in m.inputs]))
        made.label, made.where = n.label, n.where
    return graph.with_results([new[r] for r in graph.results])
