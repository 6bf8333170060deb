"""Symbols become numbers: the graph of one extent, from the graph of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from tracejit.errors import OpError
from tracejit.ir.dim import substitute
from tracejit.ir.graph import Graph
from tracejit.ir.graph import param as new_param
from tracejit.ir.node import Node
from tracejit.ir.op import Op
from tracejit.ir.types import TensorType

__all__ = ["bind", "bound", "bound_op"]


def bind(graph: Graph, extents: Mapping[str, int]) -> Graph:
    """`graph` with the symbols of `extents` replaced everywhere. Raises OpError outside a symbol's range."""
    for low, symbol, high in graph.ranges:
        if symbol in extents and not low <= extents[symbol] <= high:
            raise OpError(f"@{graph.name}: {symbol} = {extents[symbol]} is outside {low} <= {symbol} <= {high}")
    return _bind(graph, extents)


def _bind(graph: Graph, extents: Mapping[str, int]) -> Graph:
    new: dict[Node, Node] = {}
    for p in graph.params:
        new[p] = new_param(p.op.label, bound(p.type, extents))  # type: ignore[attr-defined]
        new[p].label, new[p].where = p.label, p.where
    ops: dict[int, Op] = {}
    for n in graph.nodes:
        if n in new:
            continue
        if (op := ops.get(id(n.op))) is None:
            op = ops[id(n.op)] = bound_op(n.op, extents)
        new[n] = m = Node.of(op, [new[i] for i in n.inputs])
        m.label, m.where = n.label, n.where
    ranges = tuple(r for r in graph.ranges if r[1] not in extents)
    return Graph(graph.name, tuple(new[p] for p in graph.params), tuple(new[r] for r in graph.results), ranges)


def bound_op(op: Op, extents: Mapping[str, int]) -> Op:
    """An op with the symbols in its attributes replaced."""
    return type(op)(*(bound(getattr(op, f.name), extents) for f in fields(op) if f.init))


def bound(value: Any, extents: Mapping[str, int]) -> Any:
    """An attribute, a type or an extent with the symbols replaced."""
    if isinstance(value, tuple):
        return tuple(bound(v, extents) for v in value)  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, TensorType):
        return value.with_shape(bound(value.shape, extents))
    if isinstance(value, Graph):  # the symbols of the graph around it
        return _bind(value, extents)
    return substitute(value, extents)
