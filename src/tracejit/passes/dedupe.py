"""Equal ops on equal inputs become one node: hash-consing, one loop.

Sound for every op because ops are pure: a random draw takes its state as an input, so draws with different states
differ. Parameters are never merged; two callers' arrays may hold the same values only today.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import fields

from tracejit.ir.graph import Graph
from tracejit.ir.node import Node
from tracejit.ir.op import Op, Param, attribute_key

__all__ = ["dedupe"]


def dedupe(graph: Graph) -> Graph:
    """`graph` computing each value once."""
    first: dict[Hashable, Node] = {}
    kept: dict[Node, Node] = {}
    changed = False  # from then on every node is made anew: creation order stays the program's
    has_fields: dict[type[Op], bool] = {}
    for n in graph.nodes:
        if isinstance(n.op, Param):
            kept[n] = n
            continue
        cls = type(n.op)
        if cls not in has_fields:
            has_fields[cls] = bool(fields(cls))
        inputs = tuple([kept[i] for i in n.inputs])
        key = (attribute_key(n.op) if has_fields[cls] else cls, inputs)
        if (old := first.get(key)) is not None:
            kept[n] = old
            continue
        changed = changed or inputs != n.inputs
        first[key] = kept[n] = n.with_inputs(inputs) if changed else n
    return graph.with_results([kept[r] for r in graph.results])
