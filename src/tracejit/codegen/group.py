"""Groups: which anchors share a kernel.

Anchors of one space form a group as long as what they pass to each other is at the same point: then it stays in
registers. A group may reduce over some axes of its space; later anchors may use the reductions again, over the same
rows (softmax, layer_norm, batch_norm, cross entropy). Groups and calls depend on each other; no cycle may arise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field

from tracejit.codegen.anchor import Anchor
from tracejit.codegen.element import Fetch
from tracejit.codegen.kernel import guess
from tracejit.codegen.memory import Memory
from tracejit.codegen.place import extents, key, renamed
from tracejit.ir.dim import same_shape
from tracejit.ir.index import Axis
from tracejit.ir.node import Node
from tracejit.ir.op import Item, Param
from tracejit.records import dataclass

__all__ = ["ROW_BYTES", "Group", "Grouping", "group"]

LARGEST = 400  # scalar operations in a kernel
MOST = 24  # anchors in a kernel
ROW_BYTES = 256 << 10  # of a row that is read several times: what stays in a core's own cache


@dataclass(eq=False)
class Group:
    """Anchors of one kernel. `kept` is None while nothing is reduced."""

    number: int
    space: tuple[Axis, ...]
    kept: tuple[Axis, ...] | None
    anchors: list[Anchor] = field(default_factory=list[Anchor])
    size: int = 0

    def level(self, a: Anchor) -> str:
        """ "full" for a value at each point, "row" for one at each kept point."""
        return "row" if a.kind or self.space != a.space else "full"

    def rename(self, a: Anchor) -> Mapping[Axis, Axis]:
        """From the axes of a value for each row to the group's."""
        if a.space == self.space:
            return {}
        assert self.kept is not None
        return dict(zip(a.space, self.kept, strict=True))


@dataclass(frozen=True, eq=False)
class Grouping:
    """Groups and calls, numbered together. `before[k]`: a bit set of what k depends on, directly or not."""

    groups: list[Group] = field(default_factory=list[Group])
    calls: dict[int, Node] = field(default_factory=dict[int, Node])
    owner: dict[Node, int] = field(default_factory=dict[Node, int])  # the group or call that makes a stored node
    before: dict[int, int] = field(default_factory=dict[int, int])
    readers: dict[Node, list[Group]] = field(default_factory=dict[Node, list[Group]])

    def closure(self, numbers: Iterable[int]) -> int:
        """The bit set of `numbers` and all that they depend on."""
        out = 0
        for k in numbers:
            out |= self.before[k] | 1 << k
        return out


def group(memory: Memory, anchors: Sequence[Anchor]) -> Grouping:
    """Every anchor in a group, in the order of the graph; what kernels do not compute is a call."""
    out = Grouping()
    opaque = [n for n in memory.opaque if not isinstance(n.op, Param) and n.op.name != "const"]
    work: list[Anchor | Node] = [*anchors, *opaque]
    for item in sorted(work, key=lambda w: (w.node if isinstance(w, Anchor) else w).id):
        if isinstance(item, Anchor):
            add_anchor(out, item)
        elif isinstance(item.op, Item):
            out.owner[item] = out.owner[item.inputs[0]]
        else:
            add_call(out, item, memory.operands(item))
    return out


def add_call(to: Grouping, n: Node, inputs: Sequence[Node]) -> None:
    """A step of its own."""
    number = len(to.before)
    to.owner[n] = number
    to.before[number] = to.closure(to.owner[i] for i in inputs if i in to.owner)
    to.calls[number] = n


def add_anchor(to: Grouping, a: Anchor) -> None:
    """Into the best group that can take it, else into a new one."""
    needs = [to.owner[r] for r in a.reads if r in to.owner]
    home = find_home(to, a, needs)
    if home is None:
        home = Group(len(to.before), a.space, a.kept if a.kind else None)
        to.before[home.number] = 0
        to.groups.append(home)
    home.anchors.append(a)
    home.size += a.size
    if a.kind:
        home.kept = a.kept
    to.owner[a.node] = home.number
    depend(to, home.number, to.closure(needs))
    for r in a.reads:
        to.readers.setdefault(r, []).append(home)


def depend(to: Grouping, number: int, on: int) -> None:
    """Note that a group, and so what depends on it, depends on the bit set `on`."""
    new = (on | to.before[number]) & ~(1 << number)
    if new == to.before[number]:
        return
    to.before[number] = new
    for k, b in to.before.items():
        if b >> number & 1:
            to.before[k] = b | new


def find_home(to: Grouping, a: Anchor, needs: Sequence[int]) -> Group | None:
    """The first group that can take the anchor without waiting for itself."""
    for g in dict.fromkeys(candidates(to, a)):
        outside = to.closure(o for o in needs if o != g.number)
        if not outside >> g.number & 1 and joins(a, g):
            return g
    return None


def candidates(to: Grouping, a: Anchor) -> Iterator[Group]:
    """Groups the anchor might join, best first: those it reads from, then those that read what it reads."""
    by_number = {g.number: g for g in to.groups[-200:]}
    makers = sorted({to.owner[r] for r in a.reads if r in to.owner}, reverse=True)
    yield from (by_number[k] for k in makers if k in by_number)
    for r in a.reads:
        yield from to.readers.get(r, [])[-4:]
    if not a.space:
        yield from (g for g in to.groups[-50:] if not g.space)


def joins(a: Anchor, g: Group) -> bool:
    """True where one kernel can hold the group and `a`: what it passes inside, it passes at the same point."""
    if g.size + a.size > LARGEST or len(g.anchors) >= MOST:
        return False
    if a.space != g.space:  # a value for each row, after the reductions
        if a.kind or a.places is not None or g.kept is None or not same_shape(extents(a.space), extents(g.kept)):
            return False
    elif a.kind and g.kept is not None and a.kept != g.kept:
        return False
    rename = g.rename(a)
    inside = {x.node: x for x in g.anchors}
    passed = 0
    for f in a.fetches:
        op = f.op
        assert isinstance(op, Fetch)
        if (x := inside.get(op.source)) is None:
            continue
        passed += 1
        if x.places is not None or op.strides or key(renamed(op.index, rename)) != key(renamed(x.index, g.rename(x))):
            return False
        if rename and g.level(x) == "full":
            return False
    if rename and not passed:
        return False
    return is_worthwhile(a, g)


def is_worthwhile(a: Anchor, g: Group) -> bool:
    """Several loops over the same rows pay while a row stays in cache and there are enough rows to share out."""
    if a.kind is None and g.kept is None:
        return True
    kept = a.kept if a.kind else g.kept
    assert kept is not None
    total, rows = guess(extents(g.space)), guess(extents(kept))
    if total <= 1 << 15:
        return True
    if not g.space or g.space[-1] in kept:  # reductions down columns walk memory in stripes
        return total // max(1, rows) <= 64 or all(x.kind for x in (*g.anchors, a))
    return rows >= 8 and total // rows * 4 <= ROW_BYTES
