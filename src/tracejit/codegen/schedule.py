"""Graph -> Schedule: which values get memory, which loops make them, in what order.

Fusion is substitution: `Op.element` says what one element of a node is, so a node that nobody needs in memory is
computed inside its readers. The steps:

 1. *anchors* are the nodes that own a loop: results, operands of library calls, reductions, and what several readers
    share and is not cheap. Reshapes and copies of a stored value are that value. The rest is pulled into anchors.
 2. each anchor becomes an expression over the axes of its space, by substitution; its leaves fetch stored values.
 3. anchors of one space form a group, one kernel, as long as what they pass to each other is at the same point: then it
    stays in registers. A group may reduce over some axes of its space; later anchors may use the reductions again, over
    the same rows (softmax, layer_norm, batch_norm, cross entropy).
 4. a group becomes a Kernel: stages in order of the reductions they need, axes that run on in memory are merged.

Indices are affine. Where a reshape in the middle of a chain would need a division, the loop's axis is split; where that
does not help, the reshape's input gets memory. When unsure, materialise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from math import prod
from typing import Any, Protocol

from tracejit.codegen.kernel import (
    COST,
    Accumulator,
    Buffer,
    Kernel,
    Load,
    Slot,
    Stage,
    Store,
    extent,
    indices,
    scalars,
    sizes,
)
from tracejit.codegen.lanes import choose_lanes
from tracejit.codegen.place import (
    At,
    Hole,
    NeedSplit,
    bounds,
    flatten,
    hole,
    holes,
    key,
    operands,
    place,
    reshaped,
    strides_of,
)
from tracejit.codegen.views import View
from tracejit.ir.dim import Shape
from tracejit.ir.dtype import DType
from tracejit.ir.graph import Graph
from tracejit.ir.index import Axis, Index
from tracejit.ir.node import Node
from tracejit.ir.op import ArrayConst, Item, Op, Param, Reduce
from tracejit.ir.types import TensorType, TupleType, Type
from tracejit.ops.loop import Inside, Position

__all__ = ["Call", "Launch", "Schedule", "schedule"]

Supports = Callable[[Op, Sequence[DType]], bool]

CHEAP = 2  # recomputing this much beats a trip through memory
DEEPEST = 64  # pulled nodes in a chain, before one is stored
LARGEST = 400  # scalar operations in a kernel
ROW_BYTES = 256 << 10  # of a row that is read several times: what stays in a core's own cache

SAME = frozenset({"reshape", "copy", "stop_gradient"})
MOVEMENT = SAME | {
    "transpose", "broadcast", "slice", "pad", "flip", "concat", "const", "iota", "unfold", "take", "take_along",
    "dynamic_slice", "update_slice", "dynamic_update_slice",
}  # fmt: skip
OVER_AXES = frozenset({"reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "argmax", "argmin"})
REDUCTIONS = OVER_AXES | {"matmul", "conv", "fold"}


@dataclass(frozen=True, eq=False)
class Launch:
    """Run a kernel. `operands` are the stored nodes that its buffers (other than row buffers) stand for."""

    kernel: Kernel
    operands: tuple[Node, ...]

    @property
    def reads(self) -> tuple[Node, ...]:
        """Stored nodes it reads."""
        return tuple(n for n, b in zip(self.operands, arguments(self.kernel), strict=True) if b.use == "in")

    @property
    def writes(self) -> tuple[Node, ...]:
        """Nodes it stores."""
        return tuple(n for n, b in zip(self.operands, arguments(self.kernel), strict=True) if b.use == "out")

    def may_overwrite(self, old: Node, new: Node) -> bool:
        """True where `new` may be written into the memory of `old`: each element is read only to make its successor."""
        if old not in self.reads:
            return True
        numbers = [k for k, b in enumerate(self.kernel.buffers) if b.use != "row"]
        a, b = (numbers[self.operands.index(n)] for n in (old, new))
        for stage in self.kernel.stages:
            written = {key(t.index) for t in stage.stores if t.buffer == b}
            values = [*(x.value for x in stage.accumulators), *(t.value for t in stage.stores)]
            loads = [n.op for n in scalars(values) if isinstance(n.op, Load) and n.op.buffer == a]
            if not all(op.safe and not op.strides and {key(op.index)} == written for op in loads):
                return False
        return True


@dataclass(frozen=True, eq=False)
class Call:
    """Run one op as a whole. `inputs` are stored nodes; `match` is what the library made of it, None on the host."""

    node: Node
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    match: Any = None

    @property
    def reads(self) -> tuple[Node, ...]:
        """Stored nodes it reads."""
        return self.inputs

    @property
    def writes(self) -> tuple[Node, ...]:
        """Nodes it stores."""
        return self.outputs


@dataclass(frozen=True, eq=False)
class Schedule:
    """Steps in an order that respects their operands. `base[n]` is the stored node that holds the elements of n."""

    steps: tuple[Launch | Call, ...]
    base: Mapping[Node, Node]


def arguments(kernel: Kernel) -> tuple[Buffer, ...]:
    """The buffers that are passed to the kernel."""
    return tuple(b for b in kernel.buffers if b.use != "row")


class Match(Protocol):
    """What a library makes of a node it has a kernel for."""

    @property
    def operands(self) -> Sequence[View]:
        """Where the operands lie: views of values that get memory."""
        ...


def schedule(graph: Graph, supports: Supports, library: Callable[[Node], Match | None]) -> Schedule:
    """The steps of `graph`, whose shapes are all known.

    `supports` says which pointwise ops kernels can compute, `library` which nodes have a kernel of their own.
    """
    return _Scheduler(graph, supports, library).run()


# ---------------------------------------------------------------- leaves


@dataclass(frozen=True, eq=False)
class Fetch(Op):
    """Element `index + sum strides[k] * inputs[k]` of the stored node `source`: a Load before buffers are numbered."""

    name = "fetch"
    source: Node
    index: Index
    strides: tuple[int, ...]

    def infer(self, *types: TensorType) -> Type:
        return TensorType(self.source.dtype, ())


class NeedMemory(Exception):
    """A node must be stored, or its reader's index is not affine."""

    def __init__(self, node: Node) -> None:
        self.node = node


# ---------------------------------------------------------------- anchors and groups


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
    def index(self) -> Index:
        """Where the result of a point lies."""
        return flatten([Index.of(a) for a in self.kept], tuple(a.extent for a in self.kept))

    @property
    def reads(self) -> list[Node]:
        """Stored nodes it reads."""
        return [f.op.source for f in self.fetches]  # type: ignore[attr-defined]


@dataclass(eq=False)
class Group:
    """Anchors of one kernel. `kept` is None while nothing is reduced."""

    number: int
    space: tuple[Axis, ...]
    kept: tuple[Axis, ...] | None
    anchors: list[Anchor] = field(default_factory=list[Anchor])
    size: int = 0
    before: int = 0  # bit set of the groups and calls it depends on, directly or not

    def level(self, a: Anchor) -> str:
        """ "full" for a value at each point, "row" for one at each kept point."""
        return "row" if a.kind or self.space != a.space else "full"


class _Scheduler:
    def __init__(self, graph: Graph, supports: Supports, library: Callable[[Node], Match | None]) -> None:
        self.graph, self.supports = graph, supports
        self.matches = {n: m for n in graph.nodes if (m := library(n)) is not None}
        self.nodes = graph.nodes
        self.base: dict[Node, Node] = {}
        self.stored: set[Node] = set()
        self.anchored: dict[Node, Anchor] = {}
        self.spaces: dict[tuple[int, ...], tuple[Axis, ...]] = {}

    def run(self) -> Schedule:
        for n in self.nodes:
            self.base[n] = self.base[n.inputs[0]] if n.op.name in SAME else n
        self.choose()
        for n in self.nodes:
            if n in self.stored and self.is_pulled(n):
                self.anchor(n)
        return self.group()

    # ------------------------------------------------------------ 1. what is stored

    def operands(self, n: Node) -> tuple[Node, ...]:
        """The stored nodes a call reads."""
        if n in self.matches:
            return tuple(self.base[v.base] for v in self.matches[n].operands)
        return tuple(self.base[i] for i in n.inputs)

    def in_memory(self, n: Node) -> bool:
        """Params, constant arrays, and what a library or the host makes."""
        return not self.is_pulled(n)

    def is_pulled(self, n: Node) -> bool:
        """True where a kernel can compute the node."""
        if n not in self._pulled:
            self._pulled[n] = self.decide_pulled(n)
        return self._pulled[n]

    def decide_pulled(self, n: Node) -> bool:
        op = n.op
        if isinstance(op, (Param, Item)) or isinstance(n.type, TupleType) or n in self.matches:
            return False
        if op.name == "const":
            return not isinstance(op.value, ArrayConst)  # type: ignore[attr-defined]
        if op.name in SAME:
            return True
        if not op.is_pullable():
            return False
        if op.name in REDUCTIONS:  # over nothing: the host knows what that is
            return prod(sizes(n.inputs[0].shape)) > 0 or prod(sizes(n.shape)) == 0
        return op.name in MOVEMENT or op.name == "random_bits" or self.supports(op, [i.dtype for i in n.inputs])

    def choose(self) -> None:
        """Fill `stored`: memory, results, operands of calls, reductions, and shared values that are not cheap."""
        self._pulled: dict[Node, bool] = {}
        self.opaque = [n for n in self.nodes if not self.is_pulled(n)]
        for n in self.opaque:
            self.stored.add(n)
            self.stored.update(self.operands(n))
        self.stored.update(self.base[r] for r in self.graph.results)
        self.stored.update(n for n in self.nodes if n.op.name in REDUCTIONS)
        cost: dict[Node, int] = {}
        depth: dict[Node, int] = {}
        for n in self.nodes:
            pulled = [i for i in n.inputs if i not in self.stored]
            own = 0 if n.op.name in MOVEMENT else COST.get(n.op.name, 1)
            cost[n] = min(own + sum(cost[i] for i in pulled), 1 << 20)
            depth[n] = 1 + max((depth[i] for i in pulled), default=0)
            if depth[n] > DEEPEST and n.op.name not in MOVEMENT:
                self.stored.add(n)
            if n in self.stored:
                cost[n] = depth[n] = 0
        sites: dict[Node, set[Node]] = {n: set() for n in self.nodes}  # the owners of loops that would compute the node
        shared: dict[Node, int] = dict.fromkeys(
            self.nodes, 0
        )  # times each element is computed for readers at its point,
        moved: dict[Node, int] = dict.fromkeys(self.nodes, 0)  # and for readers elsewhere
        for n in reversed(self.nodes):
            times = shared[n] + moved[n]
            if (
                n not in self.stored
                and cost[n] > CHEAP
                and n.op.name not in MOVEMENT
                and (len(sites[n]) > 1 or times > 1)
            ):
                self.stored.add(n)
            here, times = ({n}, 1) if n in self.stored else (sites[n], max(1, times))
            for i in n.inputs:
                sites[i] |= here
                if n.op.name in MOVEMENT and n.op.name not in SAME:
                    moved[i] += times * growth(n, i)
                else:
                    shared[i] = max(shared[i], times)

    # ------------------------------------------------------------ 2. expressions

    def axes(self, extents: Sequence[int]) -> tuple[Axis, ...]:
        """The axes of a space: the same objects for the same extents; extents 1 have none."""
        shape = tuple(e for e in extents if e != 1)
        if shape not in self.spaces:
            self.spaces[shape] = tuple(Axis(f"i{k}", e) for k, e in enumerate(shape))
        return self.spaces[shape]

    def anchor(self, n: Node) -> Anchor:
        """The node as an expression over its space; stores whatever proves to need memory on the way. No recursion."""
        pending = [n]
        while pending:
            node = pending[-1]
            if node in self.anchored:
                pending.pop()
                continue
            try:
                self.anchored[node] = self.build(node)
            except NeedMemory as need:
                self.stored.add(need.node)
                if self.is_pulled(need.node):
                    pending.append(need.node)
        return self.anchored[n]

    def build(self, n: Node) -> Anchor:
        """One attempt after another, cutting axes as reshapes ask for it."""
        full = sizes(n.inputs[0].shape) if n.op.name in OVER_AXES else sizes(n.shape)
        if n.op.name in REDUCTIONS - OVER_AXES:
            probe = n.op.element(tuple(Index.at(0) for _ in n.shape), *operands(n))
            assert isinstance(probe, Reduce)
            full = (*full, *sizes(probe.extents))
        factors: list[list[int]] = [[d] for d in full]
        while True:
            axes = self.axes([f for fs in factors for f in fs])
            try:
                return self.expression(n, full, factors, axes)
            except NeedSplit as cut:
                if not self.refine(factors, axes, cut):
                    raise AssertionError(f"axis {cut.axis} is not of this loop") from None

    def refine(self, factors: list[list[int]], axes: Sequence[Axis], cut: NeedSplit) -> bool:
        at = axes.index(cut.axis)
        for fs in factors:
            for k, f in enumerate(fs):
                if f == 1:
                    continue
                if at == 0:
                    fs[k : k + 1] = [f // cut.inner, cut.inner]
                    return True
                at -= 1
        return False

    def expression(self, n: Node, full: Shape, factors: Sequence[Sequence[int]], axes: tuple[Axis, ...]) -> Anchor:
        free = iter(axes)
        of_dim: list[list[Axis]] = [[next(free) for f in fs if f != 1] for fs in factors]
        at = [flatten([Index.of(a) for a in row], tuple(a.extent for a in row)) for row in of_dim]
        kind, kept = None, axes
        if n.op.name in REDUCTIONS:
            reduced = reduced_axes(n.op) if n.op.name in OVER_AXES else tuple(range(len(n.shape), len(full)))
            kept = tuple(a for d, row in enumerate(of_dim) if d not in reduced for a in row)
            readers = operands(n)
            reduce = n.op.element(tuple(i for d, i in enumerate(at) if d not in reduced), *readers)
            assert isinstance(reduce, Reduce)
            kind = reduce.kind
            value = self.fill(reduce.element(tuple(at[d] for d in reduced)))
        else:
            value = self.fill(self.expand(n, tuple(at)))
        order = scalars([value])
        return Anchor(n, axes, kept, value, kind, [f for f in order if isinstance(f.op, Fetch)], len(order))

    def fill(self, root: Node) -> Node:
        """`root` with every hole expanded until only leaves are left. No recursion."""
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
                draft = self.expand(h.node, h.at)
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
            done[at] = (
                substitute(draft, {h: done[place(h.op)] for h in open_ if isinstance(h.op, Hole)}) if open_ else draft
            )
            stack.pop()
        return done[top]

    def expand(self, n: Node, at: At) -> Node:
        """The element of `n` at `at`, its operands as holes or fetches."""
        own = self.base[n]
        if own in self.stored and (own is not n or self.in_memory(n) or n in self.anchored):
            return self.fetch(n, at)
        if n.op.name in SAME:
            (x,) = n.inputs
            if n.op.name != "reshape":
                return hole(x, at)
            if not all(isinstance(i, Index) for i in at):
                raise NeedMemory(own)
            try:
                return hole(x, reshaped(at, sizes(x.shape), sizes(n.shape)))
            except ValueError:
                raise NeedMemory(own) from None
        value = n.op.element(at, *operands(n))
        assert isinstance(value, Node), f"{n.op.name} is a reduction and has no element"
        return value

    def fetch(self, n: Node, at: At) -> Node:
        """A leaf: `n` holds the elements of a stored node in the same order, whatever its shape."""
        index = Index.at(0)
        inputs: list[Node] = []
        strides: list[int] = []
        for i, s in zip(at, strides_of(n.shape), strict=True):
            if isinstance(i, Index):
                index = index + i * s
            else:
                inputs.append(i)
                strides.append(s)
        op = Fetch(self.base[n], index, tuple(strides))
        return Node(op, tuple(inputs), TensorType(n.dtype, ()))

    # ------------------------------------------------------------ 3. groups

    def group(self) -> Schedule:
        groups: list[Group] = []
        owner: dict[Node, int] = {}  # of a stored node: the number of its group or call
        before: dict[int, int] = {}
        numbers = count()
        readers: dict[Node, list[Group]] = {}
        calls: dict[int, Call] = {}
        work: list[Anchor | Node] = [*self.anchored.values(), *(n for n in self.opaque if not self.is_source(n))]
        for item in sorted(work, key=lambda w: (w.node if isinstance(w, Anchor) else w).id):
            if isinstance(item, Node):
                if isinstance(item.op, Item):
                    owner[item] = owner[item.inputs[0]]
                    continue
                k = next(numbers)
                owner[item] = k
                inputs = self.operands(item)
                before[k] = bits(before, (owner[i] for i in inputs if i in owner))
                calls[k] = Call(item, inputs, (item,), self.matches.get(item))
                continue
            needs = [owner[r] for r in item.reads if r in owner]
            mask = bits(before, needs)
            tried: set[int] = set()
            home = None
            for g in self.candidates(item, groups, owner, readers):
                if g.number in tried:
                    continue
                tried.add(g.number)
                outside = bits(before, (o for o in needs if o != g.number))
                if not outside >> g.number & 1 and self.joins(item, g, owner):
                    home = g
                    break
            if home is None:
                home = Group(next(numbers), item.space, item.kept if item.kind else None)
                before[home.number] = 0
                groups.append(home)
            home.anchors.append(item)
            home.size += item.size
            if item.kind:
                home.kept = item.kept
            owner[item.node] = home.number
            new = (mask | before[home.number]) & ~(1 << home.number)
            if new != before[home.number]:
                before[home.number] = new
                for k, b in before.items():
                    if b >> home.number & 1:
                        before[k] = b | new
            for r in item.reads:
                readers.setdefault(r, []).append(home)
        return self.finish(groups, calls, owner, before)

    def is_source(self, n: Node) -> bool:
        return isinstance(n.op, Param) or n.op.name == "const"

    def candidates(
        self, a: Anchor, groups: list[Group], owner: Mapping[Node, int], readers: Mapping[Node, list[Group]]
    ) -> list[Group]:
        """Groups the anchor might join, best first: those it reads from, then those that read what it reads."""
        by_number = {g.number: g for g in groups[-200:]}
        makers = sorted({owner[r] for r in a.reads if r in owner}, reverse=True)
        out = [by_number[k] for k in makers if k in by_number]
        for r in a.reads:
            out += readers.get(r, [])[-4:]
        if not a.space:
            out += [g for g in groups[-50:] if not g.space]
        return out

    def joins(self, a: Anchor, g: Group, owner: Mapping[Node, int]) -> bool:
        """True where one kernel can hold the group and `a`: what it passes inside, it passes at the same point."""
        if g.size + a.size > LARGEST or len(g.anchors) >= 24:
            return False
        rename: Mapping[Axis, Axis] = {}
        if a.space != g.space:
            # A value for each row, after the reductions.
            if a.kind or g.kept is None or extents(a.space) != extents(g.kept):
                return False
            rename = dict(zip(a.space, g.kept, strict=True))
        elif a.kind and g.kept is not None and a.kept != g.kept:
            return False
        inside = {x.node: x for x in g.anchors}
        passed = 0
        for f in a.fetches:
            op = f.op
            assert isinstance(op, Fetch)
            if (x := inside.get(op.source)) is None:
                continue
            passed += 1
            if op.strides or key(renamed(op.index, rename)) != key(self.place(x, g)):
                return False
            if rename and g.level(x) == "full":
                return False
        if rename and not passed:
            return False
        return self.is_worthwhile(a, g)

    def place(self, x: Anchor, g: Group) -> Index:
        """Where the value of `x` at the group's point lies."""
        if g.space == x.space:
            return x.index
        assert g.kept is not None
        return renamed(x.index, dict(zip(x.space, g.kept, strict=True)))

    def is_worthwhile(self, a: Anchor, g: Group) -> bool:
        """Several loops over the same rows pay while a row stays in cache and there are enough rows to share out."""
        if a.kind is None and g.kept is None:
            return True
        kept = a.kept if a.kind else g.kept
        assert kept is not None
        total, rows = prod(extents(g.space)), prod(extents(kept))
        if total <= 1 << 15:
            return True
        if not g.space or g.space[-1] in kept:  # reductions down columns walk memory in stripes
            return total // max(1, rows) <= 64 or all(x.kind for x in (*g.anchors, a))
        return rows >= 8 and total // rows * 4 <= ROW_BYTES

    # ------------------------------------------------------------ 4. kernels

    def finish(
        self, groups: list[Group], calls: Mapping[int, Call], owner: Mapping[Node, int], before: Mapping[int, int]
    ) -> Schedule:
        needed = {self.base[r] for r in self.graph.results}
        for c in calls.values():
            needed.update(c.inputs)
        for g in groups:
            for a in g.anchors:
                needed.update(r for r in a.reads if owner.get(r) != g.number)
        steps: dict[int, Launch | Call] = {**calls}
        for g in groups:
            steps[g.number] = build_kernel(g, needed)
        items: dict[Node, list[Node]] = {}
        for n in self.nodes:
            if isinstance(n.op, Item):
                items.setdefault(n.inputs[0], []).append(n)
        for k, c in calls.items():
            if isinstance(c.node.type, TupleType):
                have = {i.op.index: i for i in items.get(c.node, ())}  # type: ignore[attr-defined]
                every = [have.get(i) or Node.of(Item(i), (c.node,)) for i in range(len(c.node.type.items))]
                steps[k] = Call(c.node, c.inputs, tuple(every), c.match)
        order = sorted(steps, key=lambda k: (before[k].bit_count(), k))
        return Schedule(tuple(steps[k] for k in order), self.base)


def extents(axes: Sequence[Axis]) -> tuple[int, ...]:
    """Extents of axes."""
    return sizes(a.extent for a in axes)


def bits(before: Mapping[int, int], numbers: Any) -> int:
    """The bit set of `numbers` and all that they depend on."""
    out = 0
    for k in numbers:
        out |= before[k] | 1 << k
    return out


def growth(n: Node, i: Node) -> int:
    """How many elements of `n` read one of its operand `i`."""
    if n.op.name in ("pad", "concat", "slice", "flip", "transpose"):
        return 1
    return max(1, prod(sizes(n.shape)) // max(1, prod(sizes(i.shape))))


def reduced_axes(op: Any) -> tuple[int, ...]:
    """The axes a reduction drops."""
    return (op.axis,) if hasattr(op, "axis") else tuple(op.axes)


def substitute(root: Node, replace: Mapping[Node, Node]) -> Node:
    """`root` with nodes replaced; what is untouched is shared."""
    new: dict[Node, Node] = dict(replace)
    for n in scalars([root]):
        if n not in new:
            ins = tuple(new[i] for i in n.inputs)
            new[n] = n if ins == n.inputs else Node(n.op, ins, n.type)
    return new[root]


def renamed(index: Index, axes: Mapping[Axis, Axis]) -> Index:
    """The index with other axes."""
    return Index(tuple((axes.get(a, a), c) for a, c in index.terms), index.constant) if axes else index


# ---------------------------------------------------------------- a group as a kernel


def build_kernel(g: Group, needed: set[Node]) -> Launch:
    """The group's loop nest; `needed` are the nodes whose values others read."""
    return _Builder(g, needed).run()


class _Builder:
    def __init__(self, g: Group, needed: set[Node]) -> None:
        self.g, self.needed = g, needed
        self.kept = g.kept if g.kept is not None else g.space
        self.inner = tuple(a for a in g.space if a not in self.kept)
        self.inside = {a.node: a for a in g.anchors}
        self.stage_of = self.stages()
        self.buffers: list[Buffer] = []
        self.operands: list[Node] = []
        self.numbers: dict[tuple[Node, str], int] = {}
        self.rows: dict[Node, int] = {}  # values kept in a row buffer
        self.slots: dict[Node, int] = {}
        self.written: dict[tuple[Node, int], Node] = {}
        self.interned: dict[Any, Node] = {}

    def run(self) -> Launch:
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
            rows = [
                Store(self.buffer(a.node, "out"), self.ordered(renamed(a.index, self.rename(a))), v) for a, v in values
            ]
            stages.append(Stage((), (), tuple(rows)))
        kernel = collapse(Kernel(self.kept, tuple(stages), tuple(self.buffers), "outer"))
        return Launch(choose_lanes(kernel), tuple(self.operands))

    def full_store(self, a: Anchor, value: Node) -> list[Store]:
        """Where the value of each point goes: to memory, to a row buffer, or nowhere."""
        if a.node in self.needed:
            return [Store(self.buffer(a.node, "out"), self.ordered(a.index), value)]
        if not self.is_worth_keeping(a):
            return []
        self.rows[a.node] = k = len(self.buffers)
        self.buffers.append(Buffer(a.node.dtype, prod(extents(self.inner)), "row"))
        return [Store(k, self.row_index(), value)]

    def stages(self) -> dict[Node, int]:
        """The first stage in which each anchor's value can be computed: after the reductions it needs."""
        out: dict[Node, int] = {}
        for a in self.g.anchors:
            s = 0
            for r in a.reads:
                if (x := self.inside.get(r)) is not None:
                    s = max(s, out[r] + (1 if x.kind else 0))
            out[a.node] = s
        return out

    def is_worth_keeping(self, a: Anchor) -> bool:
        """True where a value nobody else needs is used in later stages and costs more than a row buffer."""
        later = any(a.node in x.reads and self.stage_of[x.node] > self.stage_of[a.node] for x in self.g.anchors)
        cost = sum(COST.get(n.op.name, 1) for n in scalars([a.value]))
        return later and cost > 8 and prod(extents(self.inner)) * 4 <= ROW_BYTES // 2

    def row_index(self) -> Index:
        return flatten([Index.of(a) for a in self.inner], tuple(a.extent for a in self.inner))

    def buffer(self, n: Node, use: str) -> int:
        """The number of the buffer that stands for `n`."""
        if (n, use) not in self.numbers:
            self.numbers[n, use] = len(self.buffers)
            self.buffers.append(Buffer(n.dtype, prod(sizes(n.shape)), use))
            self.operands.append(n)
        return self.numbers[n, use]

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
            rename = self.rename(a)
            new: dict[Node, Node] = {}
            for n in scalars([a.value]):
                ins = tuple(new[i] for i in n.inputs)
                if (x := self.inlined(n, s)) is not None:
                    new[n] = self.written[x.node, s]
                elif isinstance(n.op, Fetch):
                    new[n] = self.leaf(n, n.op, ins, rename)
                else:
                    new[n] = self.intern(with_axes(n.op, rename), ins, n.type)
            self.written[a.node, s] = new[a.value]
        return self.written[anchor.node, s]

    def rename(self, a: Anchor) -> Mapping[Axis, Axis]:
        """From the axes of a value for each row to the group's."""
        return {} if a.space == self.g.space else dict(zip(a.space, self.kept, strict=True))

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
        low, high = bounds(index)
        safe = not op.strides and low >= 0 and high < extent(self.buffers[k].size)
        return self.intern(Load(k, n.dtype, index, op.strides, safe), inputs, n.type)

    def ordered(self, index: Index) -> Index:
        """Terms in the order of the loops, so that equal indices are equal."""
        return Index(tuple(sorted(index.terms, key=lambda t: self.g.space.index(t[0]))), index.constant)


def with_axes(op: Op, rename: Mapping[Axis, Axis]) -> Op:
    """An op of a kernel body with other axes."""
    if not rename:
        return op
    if isinstance(op, Position):
        return Position(renamed(op.index, rename))
    if isinstance(op, Inside):
        return Inside(tuple((renamed(i, rename), lo, hi) for i, lo, hi in op.conditions))
    return op


# ---------------------------------------------------------------- merging axes


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
        if all(t.get(a, 0) == t.get(b, 0) * b.extent for t in terms):
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
                op, ins = n.op, tuple(new[i] for i in n.inputs)
                if isinstance(op, Load):
                    op = Load(op.buffer, op.dtype, index(op.index), op.strides, op.safe)
                elif isinstance(op, Position):
                    op = Position(index(op.index))
                elif isinstance(op, Inside):
                    op = Inside(tuple((index(i), lo, hi) for i, lo, hi in op.conditions))
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
