"""The invariants of a graph, checked.

 1. Parameters are distinct `param` nodes, and every `param` a result depends on is one of them: a graph is closed.
 2. A node is created after its inputs, so creation order is topological.
 3. `node.type` is what the op's own rule gives for the types of its inputs.
 4. A tuple type is read by `item` nodes only, and is no result.
 5. Attributes are immutable: tuples, never lists.
 6. Every symbol in a type or attribute occurs in a parameter's type; a range is about such a symbol, given once, and
    0 <= low <= high.
 7. A symbol's name is a word the text form can read back as a symbol. Static extents are not negative.
 8. Graphs in attributes keep the same rules, and may use the symbols of the graph around them.

There is nothing else to keep in step: no use lists, no dead code, no insertion point.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, NoReturn

import numpy as np

from tracejit.errors import IRError, TracejitError
from tracejit.ir.dim import Dim, symbols
from tracejit.ir.dtype import BY_NAME
from tracejit.ir.graph import Graph
from tracejit.ir.node import Node
from tracejit.ir.op import Item, Op, Param, results
from tracejit.ir.printer import excerpt
from tracejit.ir.types import TensorType, TupleType, same_type

__all__ = ["verify"]

_SYMBOL = re.compile(r"[A-Za-z_]\w*")
_RESERVED = {"true", "false", "none", "inf", "nan", "graph", "where", "return", *BY_NAME}


def verify(graph: Graph) -> None:
    """Raises IRError, with the lines around the node, where `graph` breaks an invariant."""
    pending: list[tuple[Graph, frozenset[str]]] = [(graph, frozenset())]
    while pending:
        g, outer = pending.pop()
        bound = outer | _bound(g)
        pending += ((inner, bound) for inner in _verify(g, bound))


def _bound(g: Graph) -> frozenset[str]:
    return frozenset(s for p in g.params if isinstance(p.type, TensorType) for s in symbols(p.type.shape))


def _verify(g: Graph, bound: frozenset[str]) -> list[Graph]:
    """Check one graph; the graphs in its attributes are returned, to be checked in their turn."""
    params = set(g.params)
    if len(params) != len(g.params):  # 1
        raise IRError(f"@{g.name}: a parameter occurs twice")
    for p in g.params:
        if not isinstance(p.op, Param):
            _fail(g, p, f"parameter is a {p.op.name}, not a param node")
    _verify_ranges(g, bound)
    inner: list[Graph] = []
    checked: set[int] = set()  # ops by identity, which their nodes keep alive: many nodes share one
    seen: set[Node] = set()
    for n in g.nodes:
        if isinstance(n.op, Param) and n not in params:  # 1
            _fail(g, n, f"%{n.op.label} is read but is not a parameter")
        for i in n.inputs:
            if i not in seen:  # 2
                _fail(g, n, f"{i!r} is read before it is defined")
            if isinstance(i.type, TupleType) and not isinstance(n.op, Item):  # 4
                _fail(g, n, f"{n.op.name} reads all results of {i.op.name} at once; item nodes read one each")
        seen.add(n)
        if id(n.op) not in checked:
            checked.add(id(n.op))
            for value in _leaves(n.op):
                if isinstance(value, Graph):  # 8
                    inner.append(value)
                elif isinstance(value, Dim):
                    _verify_symbols(g, n, value, bound)
                elif isinstance(value, (list, dict, set, bytearray, np.ndarray)):  # 5
                    _fail(g, n, f"an attribute of {n.op.name} is a {type(value).__name__}: use a tuple")
        _verify_type(g, n, bound)
    for r in g.results:
        if isinstance(r.type, TupleType):  # 4
            _fail(g, r, f"a result of the graph has the tuple type ({r.type})")
    return inner


def _verify_type(g: Graph, n: Node, bound: frozenset[str]) -> None:
    try:
        expected = n.op.infer(*(i.type for i in n.inputs))
    except (TracejitError, TypeError, ValueError, IndexError) as e:  # whatever its inputs made it trip over
        _fail(g, n, f"{n.op.name} does not accept its inputs: {e}")
    if not same_type(n.type, expected):  # 3
        _fail(g, n, f"{n.op.name} gives {expected}, the node says {n.type}")
    for t in results(n.type):
        for d in t.shape:
            if isinstance(d, Dim):
                _verify_symbols(g, n, d, bound)
            elif d < 0:  # 7
                _fail(g, n, f"extent {d} of {t} is negative")


def _verify_symbols(g: Graph, n: Node, dim: Dim, bound: frozenset[str]) -> None:
    for s in symbols((dim,)):
        if s not in bound:  # 6
            _fail(g, n, f"symbol {s} occurs in no parameter's type")
        if not _SYMBOL.fullmatch(s) or s in _RESERVED:  # 7
            _fail(g, n, f"{s!r} cannot be the name of a symbol")


def _verify_ranges(g: Graph, bound: frozenset[str]) -> None:
    seen: set[str] = set()
    for low, symbol, high in g.ranges:  # 6
        about = f"@{g.name}: range {low} <= {symbol} <= {high}"
        if symbol not in bound:
            raise IRError(f"{about} is about a symbol that occurs in no parameter's type")
        if symbol in seen:
            raise IRError(f"{about} is the second about {symbol}")
        if not 0 <= low <= high:
            raise IRError(f"{about} is empty, or allows a negative extent")
        seen.add(symbol)


def _leaves(op: Op) -> Iterator[Any]:
    stack: list[Any] = [getattr(op, f.name) for f in fields(op)]
    while stack:
        value = stack.pop()
        if isinstance(value, tuple):
            stack += value  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(value, TensorType):
            stack += value.shape
        else:
            yield value


def _fail(g: Graph, n: Node, message: str) -> NoReturn:
    raise IRError(f"@{g.name}: {message}\n{excerpt(g, n)}")
