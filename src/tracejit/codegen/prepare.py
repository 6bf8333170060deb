"""Graph -> Graph before scheduling: the same values, in forms that make better loops.

- A large reduction to few values is done in two steps, so that threads share the first; where it is cut depends on the
  shape alone, so the bits do not depend on the number of threads.
- `fold` of windows that do not overlap only moves elements: it becomes a transpose and a reshape.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tracejit.codegen.kernel import sizes
from tracejit.ir.graph import Graph
from tracejit.ir.node import Node
from tracejit.ir.op import Op

__all__ = ["prepare"]

LARGE = 1 << 16  # elements worth sharing
FEW = 16  # rows that are too few to share


def prepare(graph: Graph) -> Graph:
    """`graph`, whose shapes are known, with large reductions in two steps and plain folds as movement."""
    new: dict[Node, Node] = {}
    for n in graph.nodes:
        ins = tuple(new[i] for i in n.inputs)
        m = n if ins == n.inputs else Node.of(n.op, ins)
        if n.op.name in ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod"):
            m = split_reduction(m)
        elif n.op.name == "fold":
            m = plain_fold(m)
        if m is not n:
            m.label, m.where = n.label, n.where
        new[n] = m
    return Graph(graph.name, graph.params, tuple(new[r] for r in graph.results), graph.ranges)


def split_reduction(n: Node) -> Node:
    """The reduction in two steps where it is large and leaves few values."""
    (x,) = n.inputs
    op: Any = n.op
    shape = sizes(x.shape)
    rows = prod(sizes(n.shape))
    if prod(shape) < LARGE or rows >= FEW:
        return n
    cls = type(op)
    first, *rest = op.axes
    if rest and shape[first] >= 8:
        inner = Node.of(cls(tuple(rest)), (x,))
        return Node.of(cls((first,)), (inner,))
    _, longest = max((shape[a], a) for a in op.axes)
    parts = divisor(shape[longest])
    if parts is None:
        return n
    cut = (*shape[:longest], parts, shape[longest] // parts, *shape[longest + 1 :])
    y = Node.of(Op.registry["reshape"](cut), (x,))  # type: ignore[call-arg]
    inner = Node.of(cls(tuple(a + (a >= longest) for a in op.axes)), (y,))
    return Node.of(cls((longest - sum(a < longest for a in op.axes),)), (inner,))


def divisor(n: int) -> int | None:
    """A divisor of n that leaves blocks of some thousand elements, as near as there is one."""
    wanted = max(16, n // 4096)
    found = [d for d in range(8, min(n, 8 * wanted) + 1) if n % d == 0]
    return min(((abs(d - wanted), d) for d in found), default=(0, None))[1]


def plain_fold(n: Node) -> Node:
    """A fold whose windows tile its result, as movement."""
    op: Any = n.op
    (x,) = n.inputs
    k = len(op.extents)
    lead = len(x.shape) - 2 * k
    out, sizes = x.shape[lead : lead + k], x.shape[lead + k :]
    tiles = all(s == z and o * z == e for s, z, o, e in zip(op.strides, sizes, out, op.extents, strict=True))
    if not k or not tiles or any(d != 1 and z != 1 for d, z in zip(op.dilations, sizes, strict=True)):
        return n
    perm = (*range(lead), *(a for i in range(k) for a in (lead + i, lead + k + i)))
    y = Node.of(Op.registry["transpose"](perm), (x,))  # type: ignore[call-arg]
    return Node.of(Op.registry["reshape"](n.shape), (y,))  # type: ignore[call-arg]
