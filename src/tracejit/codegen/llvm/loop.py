"""A loop of the IR as steps that are run several times: its body is laid out like a graph of its own.

Carried values are the body's updates, so each lives in one place (the loop's result) and is overwritten where no one
can tell, else copied at the end of a turn. Rows are places that move on by a row with each turn: stacks are read where
they lie and written in place. Matrices that all turns multiply with are packed before the first.

The test of a `While` is a check of its body: as in any graph, nothing is written over before it has passed.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tracejit.cached import cached_property
from tracejit.codegen import arena
from tracejit.codegen.kernel import Kernel, sizes
from tracejit.codegen.llvm import emit, library
from tracejit.codegen.llvm.layout import Copy, Layout, StepLike, copy_kernel, is_host
from tracejit.codegen.place import strides_of
from tracejit.codegen.prepare import prepare
from tracejit.codegen.schedule import Call, schedule
from tracejit.codegen.views import View, view
from tracejit.ir.graph import Graph, expand
from tracejit.ir.node import Node
from tracejit.ir.op import Op
from tracejit.ops.control import Loop, While
from tracejit.records import dataclass
from tracejit.runtime import engine

__all__ = ["Body", "match", "nbytes", "unroll"]


@dataclass(frozen=True, eq=False)
class Body:
    """What is made of a loop: where its operands lie, and its body's layout."""

    op: Loop | While
    operands: tuple[View, ...]
    layout: Layout

    @property
    def in_place(self) -> bool:
        """No: what it gives is copied into the memory that it updates."""
        return False

    @property
    def rows(self) -> range:
        """The numbers of the operands that are stacks, of which each turn reads a row."""
        return range(self.op.carried, self.op.carried + (self.op.rows if isinstance(self.op, Loop) else 0))

    @cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        """Those that put carried values into their places."""
        carried = self.layout.graph.params[: self.op.carried]
        return tuple(copy_kernel(p.dtype, prod(sizes(p.shape))) for p in carried)

    @cached_property
    def ahead(self) -> Mapping[StepLike, library.Ahead]:
        """The products with fixed matrices."""
        fixed = set(self.layout.graph.params[self.rows.stop :])
        calls = [s for s in self.layout.order if isinstance(s, Call) and len(s.inputs) == 2 and s.inputs[1] in fixed]
        found = {s: library.ahead(s.node, s.match, engine.vector_bits()) for s in calls}
        return {s: x for s, x in found.items() if x is not None}

    @cached_property
    def room(self) -> tuple[Mapping[Node, int], Mapping[int, int], Mapping[StepLike, int], int]:
        """Offsets of the values that live within a turn, of copies by number, of packed matrices; the bytes of all."""
        home, life = self.layout.home, dict[Node, arena.Lifetime]()
        saved: dict[int, int] = {}
        extra = 0
        for i, s in enumerate(self.layout.order):
            if isinstance(s, Copy) and s.target.kind == "temp":
                saved[s.target.number] = extra
                extra += -(-nbytes(s.source) // 64) * 64
            for n in (*s.writes, *s.reads):
                if n not in home:
                    life[n] = arena.Lifetime(nbytes(n), life[n].first if n in life else i, i)
        offsets, total = arena.place(life)
        packed: dict[StepLike, int] = {}
        for s, found in self.ahead.items():
            packed[s] = total + extra
            extra += -(-found.nbytes // 64) * 64
        return offsets, {k: total + at for k, at in saved.items()}, packed, total + extra


def nbytes(n: Node) -> int:
    """The bytes of a stored value."""
    return prod(sizes(n.shape)) * n.dtype.itemsize


def match(n: Node) -> library.Match | Body | None:
    """What a node that kernels do not compute is run by; None: by NumPy."""
    op = n.op
    if not isinstance(op, (Loop, While)):
        return library.match(n)
    if not (op.trips if isinstance(op, Loop) else op.limit):
        return None
    graph = prepare(op.body)
    checks = () if isinstance(op, Loop) else ((op.carried, True),)
    layout = Layout(graph, schedule(graph, emit.supports, library.match), {k: k for k in range(op.carried)}, checks)
    if any(map(is_host, layout.order)) or not all(c in layout.maker for c in layout.checked):
        return None
    rows = range(op.carried, op.carried + (op.rows if isinstance(op, Loop) else 0))
    return Body(op, tuple(operand(i, k in rows) for k, i in enumerate(n.inputs)), layout)


def operand(n: Node, is_stack: bool) -> View:
    """Where an operand lies; its rows, or all of it, are contiguous."""
    v, inner = view(n), strides_of(n.shape)
    if all(s == t or e == 1 for s, t, e in [*zip(v.strides, inner, sizes(n.shape))][is_stack:]):
        return v
    return View(n, 0, inner)


def unroll(graph: Graph) -> Graph:
    """`graph` with each turn of its loops written out."""
    return expand(graph, Loop, lambda op, _, inputs: turns(op, inputs))


def turns(op: Loop, inputs: tuple[Node, ...]) -> tuple[Node, ...]:
    """The results of a loop on `inputs`, its turns written out."""
    carried, stacks, fixed = inputs[: op.carried], inputs[op.carried :][: op.rows], inputs[op.carried + op.rows :]
    if not op.trips:
        types = [r.type.with_shape((0, *r.shape)) for r in op.body.results[op.carried :]]
        return (*carried, *(Node.of(Op.registry["const"](0, t), ()) for t in types))  # type: ignore[call-arg]
    made: list[list[Node]] = []
    for k in reversed(range(op.trips)) if op.backwards else range(op.trips):
        rows = [row(s, k) for s in stacks]
        env = dict(zip(op.body.params, (*carried, *rows, *fixed), strict=True))
        for n in op.body.nodes:
            if n not in env:
                env[n] = n.with_inputs(tuple(env[i] for i in n.inputs))
        out = [env[r] for r in op.body.results]
        carried = out[: op.carried]
        made.append(out[op.carried :])
    if op.backwards:
        made.reverse()
    return (*carried, *(stack(rows) for rows in zip(*made, strict=True)))


def row(stack: Node, k: int) -> Node:
    """Row k of a stack."""
    rest = tuple(stack.shape[1:])
    cut = Op.registry["slice"]((k, *(0 for _ in rest)), (k + 1, *rest), (1,) * (1 + len(rest)))  # type: ignore[call-arg]
    return Node.of(Op.registry["reshape"](rest), (Node.of(cut, (stack,)),))  # type: ignore[call-arg]


def stack(rows: tuple[Node, ...]) -> Node:
    """Values as the rows of one."""
    one = Op.registry["reshape"]((1, *rows[0].shape))  # type: ignore[call-arg]
    return Node.of(Op.registry["concat"](0), [Node.of(one, (r,)) for r in rows])  # type: ignore[call-arg]
