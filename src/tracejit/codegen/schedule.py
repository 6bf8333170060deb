"""Graph -> Schedule: which values get memory, which loops make them, in what order.

Fusion is substitution: `Op.element` says what one element of a node is, so a node that nobody needs in memory is
computed inside its readers. The steps, each a module:

 1. `memory.py` says which nodes are *stored*: results, operands of library calls, reductions, and what several readers
    share and is not cheap. Reshapes and copies of a stored value are that value. The rest is pulled into its readers.
 2. `anchor.py`: each stored node that kernels compute is an *anchor*, an expression over the axes of its space, made by
    substitution (`element.py`); its leaves fetch stored values.
 3. `group.py`: anchors of one space, and what they reduce to, form a group.
 4. `nest.py`: a group becomes a Kernel; `merge.py`: axes that run on in memory are merged; `lanes.py` picks vectors.

Here the kernels become launches, all other nodes calls, in an order that respects what they need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any

from tracejit.codegen.anchor import find_anchors
from tracejit.codegen.group import Grouping, group
from tracejit.codegen.kernel import Buffer, Kernel, Load, scalars
from tracejit.codegen.lanes import choose_lanes
from tracejit.codegen.memory import Match, Memory, Supports, choose
from tracejit.codegen.merge import collapse
from tracejit.codegen.nest import loop_nest
from tracejit.codegen.place import key
from tracejit.ir.graph import Graph
from tracejit.ir.node import Node
from tracejit.ir.op import Item
from tracejit.ir.types import TupleType
from tracejit.records import dataclass

__all__ = ["Call", "Launch", "Match", "Schedule", "Supports", "schedule"]


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

    def may_overwrite(self, old: Node, new: Node) -> bool:
        """As for a `Launch`."""
        in_place = self.match is not None and self.match.in_place and self.inputs.count(old) == 1
        return old not in self.inputs or (in_place and self.inputs[0] is old and self.outputs == (new,))


@dataclass(frozen=True, eq=False)
class Schedule:
    """Steps in an order that respects their operands. `base[n]` is the stored node that holds the elements of n."""

    steps: tuple[Launch | Call, ...]
    base: Mapping[Node, Node]


def arguments(kernel: Kernel) -> tuple[Buffer, ...]:
    """The buffers that are passed to the kernel."""
    return tuple(b for b in kernel.buffers if b.use != "row")


def schedule(graph: Graph, supports: Supports, library: Callable[[Node], Match | None]) -> Schedule:
    """The steps of `graph`. What they rely on holds for all general extents of its symbols (`ir/dim.py`).

    `supports` says which pointwise ops kernels can compute, `library` which nodes have a kernel of their own.
    """
    memory = choose(graph, supports, library)
    made = group(memory, find_anchors(memory))
    needed = read_elsewhere(graph, memory, made)
    items: dict[Node, dict[int, Node]] = {}
    for n in memory.nodes:
        if isinstance(n.op, Item):
            items.setdefault(n.inputs[0], {})[n.op.index] = n
    steps: dict[int, Launch | Call] = {k: call(n, memory, items.get(n, {})) for k, n in made.calls.items()}
    for g in made.groups:
        kernel, operands = loop_nest(g, needed)
        steps[g.number] = Launch(choose_lanes(collapse(kernel)), operands)
    order = sorted(steps, key=lambda k: (made.before[k].bit_count(), k))
    return Schedule(tuple(steps[k] for k in order), memory.base)


def read_elsewhere(graph: Graph, memory: Memory, made: Grouping) -> Set[Node]:
    """The nodes whose values are needed outside the kernel that makes them."""
    needed = {memory.base[r] for r in graph.results}
    for n in made.calls.values():
        needed.update(memory.operands(n))
    for g in made.groups:
        for a in g.anchors:
            needed.update(r for r in a.reads if made.owner.get(r) != g.number)
    return needed


def call(n: Node, memory: Memory, items: Mapping[int, Node]) -> Call:
    """One op as a step; of several results, those that nobody asks for too."""
    outputs = (n,)
    if isinstance(n.type, TupleType):
        outputs = tuple(items.get(k) or Node.of(Item(k), (n,)) for k in range(len(n.type.items)))
    return Call(n, memory.operands(n), outputs, memory.matches.get(n))
