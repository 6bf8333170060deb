"""Neighbouring axes that every index walks as one become one axis: fewer loops, and longer ones to cut vectors from."""

from __future__ import annotations

from itertools import pairwise

from tracejit.codegen.kernel import Accumulator, Kernel, Stage, Store, indices, reindexed, scalars
from tracejit.ir.dim import same
from tracejit.ir.index import Axis, Index
from tracejit.ir.node import Node

__all__ = ["collapse"]


def collapse(kernel: Kernel) -> Kernel:
    """Neighbouring axes that every index walks as one become one axis."""
    while (pair := mergeable(kernel)) is not None:
        kernel = merge(kernel, *pair)
    return kernel


def every_index(kernel: Kernel) -> list[Index]:
    """All index expressions of a kernel."""
    roots = [v for s in kernel.stages for v in (*(a.value for a in s.accumulators), *(t.value for t in s.stores))]
    found = [i for n in scalars(roots) for i in indices(n.op)]
    return found + [t.index for s in kernel.stages for t in s.stores]


def mergeable(kernel: Kernel) -> tuple[Axis, Axis] | None:
    """Two neighbours (outer, inner) with outer * n + inner in every index."""
    runs = [kernel.outer, *dict.fromkeys(s.axes for s in kernel.stages)]
    pairs = [(a, b) for run in runs for a, b in pairwise(run)]
    if not pairs:
        return None
    terms = [dict(i.terms) for i in every_index(kernel)]
    for a, b in pairs:
        if all(same(t.get(a, 0), t.get(b, 0) * b.extent) for t in terms):
            return a, b
    return None


def merge(kernel: Kernel, a: Axis, b: Axis) -> Kernel:
    """The kernel with axes a and b as one."""
    one = Axis(a.name, a.extent * b.extent)
    rename = {b: one}

    def index(i: Index) -> Index:
        return Index(tuple((rename.get(x, x), c) for x, c in i.terms if x is not a), i.constant)

    new: dict[Node, Node] = {}

    def value(root: Node) -> Node:
        for n in scalars([root]):
            if n not in new:
                op, ins = reindexed(n.op, index), tuple(new[i] for i in n.inputs)
                new[n] = n if op is n.op and ins == n.inputs else Node(op, ins, n.type)
        return new[root]

    def axes(run: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(one if x is a else x for x in run if x is not b)

    stages = tuple(
        Stage(
            axes(s.axes),
            tuple(Accumulator(x.kind, value(x.value), x.dtype) for x in s.accumulators),
            tuple(Store(t.buffer, index(t.index), value(t.value)) for t in s.stores),
        )
        for s in kernel.stages
    )
    return Kernel(axes(kernel.outer), stages, kernel.buffers, kernel.lanes)
