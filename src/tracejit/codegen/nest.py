"""A group as a loop nest: stages in order of the reductions they need, fetches as loads, slots, or values at hand.

A value that a later stage uses again is read back where it is stored anyway, kept in a row buffer where it is dear, and
else computed again. Values for each row come last, after the stages.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from functools import partial
from typing import Any

from tracejit.codegen.anchor import Anchor
from tracejit.codegen.element import Fetch
from tracejit.codegen.group import ROW_BYTES, Group
from tracejit.codegen.kernel import (
    COST,
    Accumulator,
    Buffer,
    Kernel,
    Load,
    Slot,
    Stage,
    Store,
    guess,
    reindexed,
    scalars,
)
from tracejit.codegen.place import coarse, extents, flatten, is_within, renamed
from tracejit.ir.dim import product
from tracejit.ir.index import Axis, Index
from tracejit.ir.node import Node
from tracejit.ir.op import Op
from tracejit.ir.types import TensorType, Type
from tracejit.ops.loop import Inside

__all__ = ["loop_nest"]


def loop_nest(g: Group, needed: Set[Node]) -> tuple[Kernel, tuple[Node, ...]]:
    """The group's kernel, and the nodes its buffers stand for; `needed` are the nodes whose values others read."""
    nest = _Nest(g, needed)
    return nest.kernel(), tuple(nest.operands)


def stages_of(g: Group) -> dict[Node, int]:
    """The first stage in which each anchor's value can be computed: after the reductions it needs."""
    inside = {a.node: a for a in g.anchors}
    out: dict[Node, int] = {}
    for a in g.anchors:
        made = [inside[r] for r in a.reads if r in inside]
        out[a.node] = max((out[x.node] + (1 if x.kind else 0) for x in made), default=0)
    return out


def simple(op: Op) -> Op:
    """An op of a kernel body; a test of places as a test of as few axes as possible."""
    return Inside(tuple(map(coarse, op.conditions))) if isinstance(op, Inside) else op


class _Nest:
    def __init__(self, g: Group, needed: Set[Node]) -> None:
        self.g, self.needed = g, needed
        self.kept = g.kept if g.kept is not None else g.space
        self.inner = tuple(a for a in g.space if a not in self.kept)
        self.inside = {a.node: a for a in g.anchors}
        self.stage_of = stages_of(g)
        self.buffers: list[Buffer] = []
        self.operands: list[Node] = []
        self.numbers: dict[tuple[Node, str], int] = {}
        self.rows: dict[Node, int] = {}  # values kept in a row buffer
        self.slots: dict[Node, int] = {}
        self.written: dict[tuple[Node, int], Node] = {}
        self.interned: dict[Any, Node] = {}

    def kernel(self) -> Kernel:
        """The stages one after another, then what is one value for each row."""
        g, last = self.g, max(self.stage_of.values(), default=0)
        stages: list[Stage] = []
        for s in range(last + 1):
            here = [a for a in g.anchors if self.stage_of[a.node] == s and (a.kind or g.level(a) == "full")]
            values = [(a, self.rewrite(a, s)) for a in here]
            sums = [Accumulator(a.kind, v, a.node.dtype) for a, v in values if a.kind]
            stores = [t for a, v in values if not a.kind for t in self.full_store(a, v)]
            for a in here:
                if a.kind:
                    self.slots[a.node] = len(self.slots)
            if sums or stores:
                stages.append(Stage(self.inner, tuple(sums), tuple(stores)))
        ends = [a for a in g.anchors if g.level(a) == "row" and a.node in self.needed]
        if ends:
            values = [(a, self.slot_node(a) if a.kind else self.rewrite(a, last + 1)) for a in ends]
            stages.append(Stage((), (), tuple(self.row_store(a, v) for a, v in values)))
        return Kernel(self.kept, tuple(stages), tuple(self.buffers), "outer")

    def full_store(self, a: Anchor, value: Node) -> list[Store]:
        """Where the value of each point goes: to memory, to a row buffer, or nowhere."""
        if a.places is not None:
            k = self.buffer(a.node, "out")
            return [Store(k, self.ordered(place), v) for place, v in zip(a.places, value.inputs, strict=True)]
        if a.node in self.needed:
            return [Store(self.buffer(a.node, "out"), self.ordered(a.index), value)]
        if not self.is_worth_keeping(a):
            return []
        self.rows[a.node] = k = len(self.buffers)
        self.buffers.append(Buffer(a.node.dtype, product(extents(self.inner)), "row"))
        return [Store(k, self.row_index(), value)]

    def row_store(self, a: Anchor, value: Node) -> Store:
        """Where a value for each row goes."""
        return Store(self.buffer(a.node, "out"), self.ordered(renamed(a.index, self.g.rename(a))), value)

    def is_worth_keeping(self, a: Anchor) -> bool:
        """True where a value nobody else needs is used in later stages and costs more than a row buffer."""
        later = any(a.node in x.reads and self.stage_of[x.node] > self.stage_of[a.node] for x in self.g.anchors)
        cost = sum(COST.get(n.op.name, 1) for n in scalars([a.value]))
        return later and cost > 8 and guess(extents(self.inner)) * 4 <= ROW_BYTES // 2

    def row_index(self) -> Index:
        return flatten([Index.of(a) for a in self.inner], tuple(a.extent for a in self.inner))

    def buffer(self, n: Node, use: str) -> int:
        """The number of the buffer that stands for `n`."""
        if (n, use) not in self.numbers:
            self.numbers[n, use] = len(self.buffers)
            self.buffers.append(Buffer(n.dtype, product(n.shape), use))
            self.operands.append(n)
        return self.numbers[n, use]

    # ------------------------------------------------------------ values as they stand in a stage

    def slot_node(self, a: Anchor) -> Node:
        return self.intern(Slot(self.slots[a.node], a.node.dtype), (), TensorType(a.node.dtype, ()))

    def rewrite(self, anchor: Anchor, s: int) -> Node:
        """The anchor's value as it stands in stage `s`: fetches become loads, slots, or the group's own expressions."""
        work = [anchor]
        while work:
            a = work[-1]
            if (a.node, s) in self.written:
                work.pop()
                continue
            waiting = [
                x for f in a.fetches if (x := self.inlined(f, s)) is not None and (x.node, s) not in self.written
            ]
            if waiting:
                work += waiting
                continue
            rename = self.g.rename(a)
            new: dict[Node, Node] = {}
            for n in scalars([a.value]):
                ins = tuple(new[i] for i in n.inputs)
                if (x := self.inlined(n, s)) is not None:
                    new[n] = self.written[x.node, s]
                elif isinstance(n.op, Fetch):
                    new[n] = self.leaf(n, n.op, ins, rename)
                else:
                    new[n] = self.intern(simple(reindexed(n.op, partial(renamed, axes=rename))), ins, n.type)
            self.written[a.node, s] = new[a.value]
        return self.written[anchor.node, s]

    def intern(self, op: Op, inputs: tuple[Node, ...], type: Type) -> Node:
        """One node for equal computations."""
        k = (op, tuple(map(id, inputs)), type)
        if k not in self.interned:
            self.interned[k] = Node(op, inputs, type)
        return self.interned[k]

    def inlined(self, n: Node, s: int) -> Anchor | None:
        """The anchor of this group that stands for a fetch, where its value is computed (again) in this stage."""
        if not isinstance(n.op, Fetch) or (a := self.inside.get(n.op.source)) is None or a.kind:
            return None
        kept = a.node in self.needed or a.node in self.rows
        return None if self.g.level(a) == "full" and self.stage_of[a.node] < s and kept else a

    def leaf(self, n: Node, op: Fetch, inputs: tuple[Node, ...], rename: Mapping[Axis, Axis]) -> Node:
        a = self.inside.get(op.source)
        if a is not None and a.kind:
            return self.slot_node(a)
        if a is not None and a.node in self.rows:
            return self.intern(Load(self.rows[a.node], n.dtype, self.row_index()), (), n.type)
        k = self.buffer(op.source, "out" if a is not None else "in")
        index = self.ordered(renamed(op.index, rename))
        safe = not op.strides and is_within(index, self.buffers[k].size)
        return self.intern(Load(k, n.dtype, index, op.strides, safe), inputs, n.type)

    def ordered(self, index: Index) -> Index:
        """Terms in the order of the loops, so that equal indices are equal."""
        return Index(tuple(sorted(index.terms, key=lambda t: self.g.space.index(t[0]))), index.constant)
