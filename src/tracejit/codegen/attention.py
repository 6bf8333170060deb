"""softmax(q k' scale + mask) v as one op, found in a graph however it was written.

Only where nobody else asks for the weights, as in inference: then they need never be stored. A gradient reads them, so
a train step keeps its plain form.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

import numpy as np

from tracejit.ir.dim import has_zero
from tracejit.ir.graph import Graph
from tracejit.ir.node import Node
from tracejit.ir.op import Array, Op
from tracejit.ir.types import TensorType, Type
from tracejit.records import dataclass

__all__ = ["Attention", "fuse_attention"]


@dataclass(frozen=True)
class Attention(Op):
    """y[*, i] = sum_j softmax_j(scale q[*, i] . k[*, j]) v[*, j]; over j <= i alone where `is_causal`."""

    name = "attention"
    scale: float
    is_causal: bool

    def infer(self, q: TensorType, k: TensorType, v: TensorType) -> Type:
        return q.with_shape((*q.shape[:-1], v.shape[-1]))

    @np.errstate(all="ignore")
    def eval(self, q: Array, k: Array, v: Array) -> Array:
        scores = np.matmul(q, k.swapaxes(-1, -2)) * q.dtype.type(self.scale)
        if self.is_causal:
            scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -inf).astype(q.dtype)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return np.matmul(weights / weights.sum(-1, keepdims=True), v)


def fuse_attention(graph: Graph) -> Graph:
    """`graph` with each attention, of f32 and at most two batch axes, as one node."""
    uses = graph.uses()
    if not any(n.op.name == "exp" for n in graph.nodes):
        return graph
    new: dict[Node, Node] = {}
    for n in graph.nodes:
        ins = tuple(new[i] for i in n.inputs)
        found = attention(n, uses) if n.op.name == "matmul" else None
        if found is not None:
            op, *operands = found
            q, k, v = (new[i] for i in operands)
            new[n] = Node.of(op, (q, swapped(k), v))
        else:
            new[n] = n if ins == n.inputs else Node.of(n.op, ins)
        if new[n] is not n:
            new[n].label, new[n].where = n.label, n.where
    return Graph(graph.name, graph.params, tuple(new[r] for r in graph.results), graph.ranges)


def attention(n: Node, uses: Mapping[Node, int]) -> tuple[Op, Node, Node, Node] | None:
    """Where a product is an attention: the op, q, k transposed as it comes, and v."""
    weights, v = n.inputs
    if n.dtype.name != "f32" or not n.type.is_static or has_zero(n.shape) or len(n.shape) > 4 or uses[weights] != 1:
        return None
    x = softmax_of(weights, uses)
    if x is None or uses[x] != 2:  # its maximum and its difference from it
        return None
    scores, is_causal = uncovered(x)
    scale = number(scores.inputs[1]) if scores.op.name == "mul" else None
    product = scores if scale is None else scores.inputs[0]
    if product.op.name != "matmul" or any(uses[y] != 1 for y in {scores, product} - {x}):
        return None
    q, k = product.inputs
    return Attention(1.0 if scale is None else scale, is_causal), q, k, v


def softmax_of(n: Node, uses: Mapping[Node, int]) -> Node | None:
    """The x of n = exp(x - max x) / sum exp(x - max x) along the last axis, where nobody else reads what is between."""
    if n.op.name != "div" or (total := spread(n.inputs[1], "reduce_sum")) is None:
        return None
    e = n.inputs[0]
    if total is not e or e.op.name != "exp" or uses[e] != 2 or (d := e.inputs[0]).op.name != "sub" or uses[d] != 1:
        return None
    x = d.inputs[0]
    return x if spread(d.inputs[1], "reduce_max") is x else None


def spread(n: Node, reduction: str) -> Node | None:
    """The x of a reduction of x along its last axis, filled out again."""
    rank = len(n.shape)
    if n.op.name != "broadcast" or n.op.dims != tuple(range(rank - 1)):  # type: ignore[attr-defined]
        return None
    r = n.inputs[0]
    while r.op.name == "stop_gradient":
        r = r.inputs[0]
    is_row = r.op.name == reduction and r.op.axes == (rank - 1,)  # type: ignore[attr-defined]
    return r.inputs[0] if is_row else None


def uncovered(n: Node) -> tuple[Node, bool]:
    """The scores under a causal mask, and whether there is one."""
    if n.op.name != "select" or number(n.inputs[2]) != -inf:
        return n, False
    mask = n.inputs[0]
    if mask.op.name == "broadcast":
        rank, dims = len(mask.shape), mask.op.dims  # type: ignore[attr-defined]
        if dims != (rank - 2, rank - 1):
            return n, False
        mask = mask.inputs[0]
    if mask.op.name != "le" or len(mask.shape) != 2:
        return n, False
    column, row = mask.inputs
    is_causal = all(i.op.name == "iota" and i.op.axis == axis for i, axis in ((column, 1), (row, 0)))  # type: ignore[attr-defined]
    return (n.inputs[1], True) if is_causal else (n, False)


def number(n: Node) -> float | None:
    """The scalar that a node is filled with."""
    while n.op.name == "broadcast":
        n = n.inputs[0]
    value: Any = getattr(n.op, "value", None)
    return float(value) if n.op.name == "const" and isinstance(value, (int, float)) else None


def swapped(n: Node) -> Node:
    """`n` with its last two axes exchanged; what it is the transpose of, where it is one."""
    rank = len(n.shape)
    perm = (*range(rank - 2), rank - 1, rank - 2)
    return Node.of(Op.registry["transpose"](perm), (n,))  # type: ignore[call-arg]
