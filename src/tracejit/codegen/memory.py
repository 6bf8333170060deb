"""Which nodes are stored, and which are computed inside their readers.

Stored are results, operands of library calls, reductions, and what several readers share and is not cheap. A reshape or
copy of a stored value is that value. All else is pulled into its readers. When unsure, store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import field
from typing import Protocol

from tracejit.codegen.kernel import COST, guess
from tracejit.codegen.views import View
from tracejit.ir.dim import has_zero
from tracejit.ir.dtype import DType
from tracejit.ir.graph import Graph
from tracejit.ir.node import Node
from tracejit.ir.op import ArrayConst, Item, Op, Param
from tracejit.ir.types import TupleType
from tracejit.records import dataclass

__all__ = ["OVER_AXES", "REDUCTIONS", "SAME", "Match", "Memory", "Supports", "choose"]

CHEAP = 2  # recomputing this much beats a trip through memory
DEEPEST = 64  # pulled nodes in a chain, before one is stored

SAME = frozenset({"reshape", "copy", "stop_gradient"})
MOVEMENT = SAME | {
    "transpose", "broadcast", "slice", "pad", "flip", "concat", "const", "iota", "unfold", "take", "take_along",
    "dynamic_slice", "update_slice", "dynamic_update_slice",
}  # fmt: skip
OVER_AXES = frozenset({"reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "argmax", "argmin"})
REDUCTIONS = OVER_AXES | {"matmul", "conv", "fold"}

Supports = Callable[[Op, Sequence[DType]], bool]


class Match(Protocol):
    """What a library makes of a node it has a kernel for."""

    @property
    def operands(self) -> Sequence[View]:
        """Where the operands lie: views of values that get memory."""
        ...


@dataclass(frozen=True, eq=False)
class Memory:
    """What is decided about the nodes of a graph. `stored` still grows while expressions are made."""

    nodes: Sequence[Node]
    base: Mapping[Node, Node]  # the node whose memory holds the elements, itself but for reshapes and copies
    matches: Mapping[Node, Match]  # what has a library kernel
    pulled: frozenset[Node]  # what kernels can compute
    stored: set[Node] = field(default_factory=set[Node])

    @property
    def opaque(self) -> list[Node]:
        """Params, constant arrays, and what a library or the host makes: always in memory."""
        return [n for n in self.nodes if n not in self.pulled]

    def operands(self, n: Node) -> tuple[Node, ...]:
        """The stored nodes a call reads."""
        if n in self.matches:
            return tuple(self.base[v.base] for v in self.matches[n].operands)
        return tuple(self.base[i] for i in n.inputs)


def choose(graph: Graph, supports: Supports, library: Callable[[Node], Match | None]) -> Memory:
    """What has to be stored: memory as it is, results, operands of calls, reductions, and what is worth it."""
    matches = {n: m for n in graph.nodes if (m := library(n)) is not None}
    base: dict[Node, Node] = {}
    for n in graph.nodes:
        base[n] = base[n.inputs[0]] if n.op.name in SAME else n
    pulled = frozenset(n for n in graph.nodes if n not in matches and is_computed(n, supports))
    memory = Memory(graph.nodes, base, matches, pulled)
    for n in memory.opaque:
        memory.stored.add(n)
        memory.stored.update(memory.operands(n))
    memory.stored.update(base[r] for r in graph.results)
    memory.stored.update(n for n in graph.nodes if n.op.name in REDUCTIONS)
    store_deep(memory)
    dear = shared(memory)
    for n, c in costs(memory, dear):  # a candidate may be cheap to make of others
        if n in dear and c > CHEAP:
            memory.stored.add(n)
    return memory


def is_computed(n: Node, supports: Supports) -> bool:
    """True where a kernel can compute the node."""
    op = n.op
    if isinstance(op, (Param, Item)) or isinstance(n.type, TupleType):
        return False
    if op.name == "const":
        return not isinstance(op.value, ArrayConst)  # type: ignore[attr-defined]
    if op.name in SAME:
        return True
    if not op.is_pullable():
        return False
    if op.name in REDUCTIONS:  # over nothing: the host knows what that is
        return not has_zero(n.inputs[0].shape) or has_zero(n.shape)
    return op.name in MOVEMENT or op.name == "random_bits" or supports(op, [i.dtype for i in n.inputs])


def store_deep(memory: Memory) -> None:
    """Store a node of each long chain."""
    stored = memory.stored
    depth: dict[Node, int] = {}
    for n in memory.nodes:
        depth[n] = 1 + max((depth[i] for i in n.inputs if i not in stored), default=0)
        if depth[n] > DEEPEST and n.op.name not in MOVEMENT:
            stored.add(n)


def costs(memory: Memory, more: Set[Node] = frozenset()) -> Iterator[tuple[Node, int]]:
    """What one element of each node costs its readers, where a node of `more` is stored too if it is not cheap."""
    cost: dict[Node, int] = {}
    for n in memory.nodes:
        own = 0 if n.op.name in MOVEMENT else COST.get(n.op.name, 1)
        c = min(own + sum(cost[i] for i in dict.fromkeys(n.inputs)), 1 << 20)
        cost[n] = 0 if n in memory.stored or (n in more and c > CHEAP) else c
        yield n, c


def shared(memory: Memory) -> Set[Node]:
    """What would be computed more than once and is not cheap."""
    nodes, cost = memory.nodes, dict(costs(memory))
    out: set[Node] = set()
    sites: dict[Node, set[Node]] = {n: set() for n in nodes}  # the owners of loops that would compute the node
    here = dict.fromkeys(nodes, 0)  # times each element is computed for readers at its point,
    moved = dict.fromkeys(nodes, 0)  # and for readers elsewhere
    for n in reversed(nodes):
        times = here[n] + moved[n]
        if cost[n] > CHEAP and n.op.name not in MOVEMENT and (len(sites[n]) > 1 or times > 1):
            out.add(n)
        owners, times = ({n}, 1) if n in memory.stored or n in out else (sites[n], max(1, times))
        for i in n.inputs:
            sites[i] |= owners
            if n.op.name in MOVEMENT and n.op.name not in SAME:
                moved[i] += times * growth(n, i)
            else:
                here[i] = max(here[i], times)
    return out


def growth(n: Node, i: Node) -> int:
    """How many elements of `n` read one of its operand `i`."""
    if n.op.name in ("pad", "concat", "slice", "flip", "transpose"):
        return 1
    return max(1, guess(n.shape) // max(1, guess(i.shape)))
