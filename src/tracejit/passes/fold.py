"""Constants in, constant out, by `Op.eval`.

 - A pointwise op of filled constants is a filled constant, whatever the shape: evaluated once, at rank 0.
 - Moving the elements of a filled constant about leaves a filled constant.
 - Any other pure op of constants is evaluated where inputs and result are small; an array all of whose elements have
   the same bits becomes a filled constant again.

Sources (iota) stay: kernels make them on the spot. Random bits, `stop_gradient` and `to_device` stay: they mean
something to later passes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tracejit.ir.graph import Graph
from tracejit.ir.node import Node
from tracejit.ir.op import Array, ArrayConst, Item, Param
from tracejit.ir.types import TensorType, TupleType
from tracejit.ops.pointwise import Cast, Pointwise, Select
from tracejit.ops.source import Const

__all__ = ["fold"]

LARGEST = 1024  # elements: below this a constant array costs less than the kernel that would compute it

_MOVES = frozenset(
    {"reshape", "transpose", "broadcast", "slice", "flip", "unfold", "dynamic_slice", "take", "take_along", "copy"}
)
_KEPT = frozenset({"random_bits", "stop_gradient", "to_device", "nonzero"})


def fold(graph: Graph) -> Graph:
    """`graph` with everything computed that depends on nothing."""
    new: dict[Node, Node] = {}
    changed = False  # from then on every node is made anew: creation order stays the program's
    for n in graph.nodes:
        if isinstance(n.op, Param):
            new[n] = n
            continue
        inputs = tuple([new[i] for i in n.inputs])
        changed = changed or inputs != n.inputs
        m = n.with_inputs(inputs) if changed else n
        if inputs and isinstance(inputs[0].op, Const) and (op := _folded(m)) is not None:
            changed = True
            m = Node.of(op, ())
            m.label, m.where = n.label, n.where
        new[n] = m
    return graph.with_results([new[r] for r in graph.results])


def _folded(n: Node) -> Const | None:
    """The constant that `n` is, or None."""
    if n.op.name in _KEPT or isinstance(n.type, TupleType) or isinstance(n.op, Item):
        return None
    first: Any = n.inputs[0].op
    if n.op.name in _MOVES and not isinstance(first.value, ArrayConst):
        return Const(first.value, n.type)
    constants = [i.op for i in n.inputs if isinstance(i.op, Const)]
    if len(constants) < len(n.inputs):
        return None
    values = [c.value for c in constants]
    if isinstance(n.op, (Pointwise, Cast, Select)) and not any(isinstance(v, ArrayConst) for v in values):
        scalars = [np.asarray(v, c.type.dtype.numpy) for v, c in zip(values, constants, strict=True)]
        return _filled(n.op.eval(*scalars), n.type)
    if not all(_is_small(t) for t in (n.type, *(c.type for c in constants))):
        return None
    array = np.asarray(n.op.eval(*(c.eval() for c in constants)))
    if array.size and (array == array.flat[0]).all() and len({x.tobytes() for x in array.flat}) == 1:
        return _filled(array.flat[0], n.type)
    return Const(ArrayConst(array), n.type)


def _is_small(t: TensorType) -> bool:
    return isinstance(t.size, int) and t.size <= LARGEST


def _filled(scalar: Array, type: TensorType) -> Const | None:
    """`scalar` filled out to `type`; None where a Python scalar cannot carry its bits."""
    value = scalar.item() if type.dtype.kind != "f" else float(scalar)
    again = np.asarray(value, type.dtype.numpy)
    return Const(value, type) if value != value or again.tobytes() == np.asarray(scalar).tobytes() else None
