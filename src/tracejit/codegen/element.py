"""One element of a node as an expression over stored values: fusion is substitution.

`Op.element` says what an element of a node is, in terms of elements of its operands. Those are holes; each is expanded
in turn, until only leaves are left: fetches from stored nodes. Indices are affine. Where a reshape in the middle of a
chain would need a division, `NeedSplit` asks for another cut of the loop's axis; where that does not help, `NeedMemory`
asks for the reshape's input to be stored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from tracejit.codegen.kernel import scalars
from tracejit.codegen.memory import SAME, Memory
from tracejit.codegen.place import At, Hole, hole, holes, operands, place, reshaped, strides_of
from tracejit.ir.dim import Extent, Shape
from tracejit.ir.index import Index
from tracejit.ir.node import Node
from tracejit.ir.op import Op
from tracejit.ir.types import TensorType, Type
from tracejit.records import dataclass

__all__ = ["Fetch", "NeedMemory", "expand", "fill"]


@dataclass(frozen=True, eq=False)
class Fetch(Op):
    """Element `index + sum strides[k] * inputs[k]` of the stored node `source`: a Load before buffers are numbered."""

    name = "fetch"
    source: Node
    index: Index
    strides: Shape

    def infer(self, *types: TensorType) -> Type:
        return TensorType(self.source.dtype, ())


class NeedMemory(Exception):
    """A node must be stored, or its reader's index is not affine."""

    def __init__(self, node: Node) -> None:
        self.node = node


def fill(root: Node, memory: Memory, made: Collection[Node]) -> Node:
    """`root` with every hole expanded until only leaves are left. No recursion.

    `made` are the pulled nodes with loops of their own: those are fetched, the node at hand is computed.
    """
    done: dict[Any, Node] = {}  # by (node, place)
    drafts: dict[Any, tuple[Node, list[Node]]] = {}
    top = (None, ())
    drafts[top] = (root, holes(root))
    stack: list[Any] = [top]
    places: dict[Any, Hole] = {}
    while stack:
        at = stack[-1]
        if at in done:
            stack.pop()
            continue
        if at not in drafts:
            h = places[at]
            draft = expand(h.node, h.at, memory, made)
            drafts[at] = (draft, holes(draft))
        draft, open_ = drafts[at]
        missing = False
        for h in open_:
            assert isinstance(h.op, Hole)
            k = place(h.op)
            if k not in done:
                places[k] = h.op
                stack.append(k)
                missing = True
        if missing:
            continue
        filled = {h: done[place(h.op)] for h in open_ if isinstance(h.op, Hole)}
        done[at] = substitute(draft, filled) if open_ else draft
        stack.pop()
    return done[top]


def expand(n: Node, at: At, memory: Memory, made: Collection[Node]) -> Node:
    """The element of `n` at `at`, its operands as holes or fetches."""
    own = memory.base[n]
    if own in memory.stored and (own is not n or n not in memory.pulled or n in made):
        return fetch(n, own, at)
    if n.op.name in SAME:
        (x,) = n.inputs
        if n.op.name != "reshape":
            return hole(x, at)
        if not all(isinstance(i, Index) for i in at):
            raise NeedMemory(own)
        try:
            return hole(x, reshaped(at, x.shape, n.shape))
        except ValueError:
            raise NeedMemory(own) from None
    value = n.op.element(at, *operands(n))
    assert isinstance(value, Node), f"{n.op.name} is a reduction and has no element"
    return value


def fetch(n: Node, source: Node, at: At) -> Node:
    """A leaf: `n` holds the elements of the stored `source` in the same order, whatever its shape."""
    index = Index.at(0)
    inputs: list[Node] = []
    strides: list[Extent] = []
    for i, s in zip(at, strides_of(n.shape), strict=True):
        if isinstance(i, Index):
            index = index + i * s
        else:
            inputs.append(i)
            strides.append(s)
    return Node(Fetch(source, index, tuple(strides)), tuple(inputs), TensorType(n.dtype, ()))


def substitute(root: Node, replace: Mapping[Node, Node]) -> Node:
    """`root` with nodes replaced; what is untouched is shared."""
    new: dict[Node, Node] = dict(replace)
    for n in scalars([root]):
        if n not in new:
            ins = tuple(new[i] for i in n.inputs)
            new[n] = n if ins == n.inputs else Node(n.op, ins, n.type)
    return new[root]
