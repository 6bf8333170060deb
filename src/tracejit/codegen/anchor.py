"""Anchors: the stored nodes that kernels compute, each as an expression over the axes of its loops.

The axes of an anchor are those of its result, of what it reduces, or of each of the equal pieces that it puts side by
side, cut in factors where a reshape inside the
expression asks for it. Equal extents have the same axes, so that anchors can share a kernel. What an expression cannot
read by affine indices gets memory, and then an anchor of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import Any

from tracejit.codegen.element import Fetch, NeedMemory, expand, fill
from tracejit.codegen.kernel import guess, scalars
from tracejit.codegen.memory import OVER_AXES, REDUCTIONS, Memory
from tracejit.codegen.place import NeedSplit, flatten, hole, operands
from tracejit.ir.dim import Extent, Shape, quotient, same, same_shape
from tracejit.ir.index import Axis, Index
from tracejit.ir.node import Node
from tracejit.ir.op import Op, Reduce
from tracejit.ir.types import TensorType
from tracejit.records import dataclass

__all__ = ["Anchor", "find_anchors"]

MOST_PIECES = 8  # of a concat, made in one kernel
LEAST_RUN = 16  # elements of a piece that lie together

Spaces = dict[Shape, tuple[Axis, ...]]
Factors = list[list[Extent]]  # of each axis; their product is its extent


@dataclass(frozen=True, eq=False)
class Pieces(Op):
    """The values at one point of equal pieces of a concat, and where they go."""

    name = "pieces"
    places: tuple[Index, ...]


@dataclass(eq=False)
class Anchor:
    """A node that owns loops: its value at each point of `space` (for a reduction: what is reduced over the rest)."""

    node: Node
    space: tuple[Axis, ...]
    kept: tuple[Axis, ...]  # the axes of the result
    value: Node
    kind: str | None  # of the reduction
    fetches: list[Node]
    size: int  # scalar operations

    @property
    def places(self) -> tuple[Index, ...] | None:
        """Of a concat by pieces: where each goes, whose values are the inputs of `value`."""
        return self.value.op.places if isinstance(self.value.op, Pieces) else None

    @property
    def index(self) -> Index:
        """Where the result of a point lies."""
        return flatten([Index.of(a) for a in self.kept], tuple(a.extent for a in self.kept))

    @property
    def reads(self) -> list[Node]:
        """Stored nodes it reads."""
        return [f.op.source for f in self.fetches]  # type: ignore[attr-defined]


def find_anchors(memory: Memory) -> list[Anchor]:
    """An anchor for each stored node that kernels compute; stores whatever proves to need memory on the way."""
    made: dict[Node, Anchor] = {}
    spaces: Spaces = {}
    for n in memory.nodes:
        pending = [n] if n in memory.stored and n in memory.pulled else []
        while pending:
            node = pending[-1]
            if node in made:
                pending.pop()
                continue
            try:
                made[node] = build(node, memory, made, spaces)
            except NeedMemory as need:
                memory.stored.add(need.node)
                if need.node in memory.pulled:
                    pending.append(need.node)
    return list(made.values())


def build(n: Node, memory: Memory, made: Collection[Node], spaces: Spaces) -> Anchor:
    """The node over its axes: one attempt after another, cutting axes as reshapes ask for it."""
    full = loop_shape(n)
    factors: Factors = [[d] for d in full]
    while True:
        axes = space_of([f for fs in factors for f in fs], spaces)
        try:
            return expression(n, full, factors, axes, memory, made)
        except NeedSplit as cut:
            split(factors, axes.index(cut.axis), cut.inner)


def loop_shape(n: Node) -> Shape:
    """The extents that the node's loops run over: its own, and those it reduces."""
    if n.op.name in OVER_AXES:
        return n.inputs[0].shape
    if is_by_pieces(n):
        return n.inputs[0].shape
    if n.op.name not in REDUCTIONS:
        return n.shape
    probe = n.op.element(tuple(Index.at(0) for _ in n.shape), *operands(n))
    assert isinstance(probe, Reduce)
    return (*n.shape, *probe.extents)


def is_by_pieces(n: Node) -> bool:
    """True for a concat whose pieces are better made one by one than chosen from at each of its elements."""
    if n.op.name != "concat" or not 2 <= len(n.inputs) <= MOST_PIECES or not n.type.is_static:
        return False
    shape = n.inputs[0].shape
    axis: int = n.op.axis  # type: ignore[attr-defined]
    return all(same_shape(i.shape, shape) for i in n.inputs) and guess(shape[axis:]) >= LEAST_RUN


def space_of(extents: Sequence[Extent], spaces: Spaces) -> tuple[Axis, ...]:
    """The axes of a space: the same objects for the same extents; extents 1 have none."""
    shape = tuple(e for e in extents if not same(e, 1))
    if shape not in spaces:
        spaces[shape] = tuple(Axis(f"i{k}", e) for k, e in enumerate(shape))
    return spaces[shape]


def split(factors: Factors, at: int, inner: Extent) -> None:
    """Cut axis number `at` (extents 1 are none) so that its inner part has `inner` steps."""
    for fs in factors:
        for k, f in enumerate(fs):
            if same(f, 1):
                continue
            if at == 0:
                outer = quotient(f, inner)
                assert outer is not None
                fs[k : k + 1] = [outer, inner]
                return
            at -= 1
    raise AssertionError("the axis is not of this loop")


def expression(
    n: Node, full: Shape, factors: Factors, axes: tuple[Axis, ...], memory: Memory, made: Collection[Node]
) -> Anchor:
    """The node over `axes`, which are its `full` shape in `factors`. Raises NeedSplit, NeedMemory."""
    free = iter(axes)
    of_dim: list[list[Axis]] = [[next(free) for f in fs if not same(f, 1)] for fs in factors]
    at = [flatten([Index.of(a) for a in row], tuple(a.extent for a in row)) for row in of_dim]
    kind, kept = None, axes
    if n.op.name in REDUCTIONS:
        reduced = reduced_axes(n.op) if n.op.name in OVER_AXES else tuple(range(len(n.shape), len(full)))
        kept = tuple(a for d, row in enumerate(of_dim) if d not in reduced for a in row)
        reduce = n.op.element(tuple(i for d, i in enumerate(at) if d not in reduced), *operands(n))
        assert isinstance(reduce, Reduce)
        kind = reduce.kind
        value = fill(reduce.element(tuple(at[d] for d in reduced)), memory, made)
    elif is_by_pieces(n):
        value = fill(pieces(n, at), memory, made)
    else:
        value = fill(expand(n, tuple(at), memory, made), memory, made)
    order = scalars([value])
    return Anchor(n, axes, kept, value, kind, [f for f in order if isinstance(f.op, Fetch)], len(order))


def pieces(n: Node, at: Sequence[Index]) -> Node:
    """The elements at `at` of all pieces of a concat."""
    axis: int = n.op.axis  # type: ignore[attr-defined]
    starts = accumulate((i.shape[axis] for i in n.inputs[:-1]), initial=0)
    places = tuple(flatten([*at[:axis], at[axis] + start, *at[axis + 1 :]], n.shape) for start in starts)
    return Node(Pieces(places), tuple(hole(i, tuple(at)) for i in n.inputs), TensorType(n.dtype, ()))


def reduced_axes(op: Any) -> tuple[int, ...]:
    """The axes a reduction drops."""
    return (op.axis,) if hasattr(op, "axis") else tuple(op.axes)
