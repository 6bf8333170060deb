"""Tensors on one side, nodes on the other: what the recorder knows about every tensor it has met.

A recording is a pure graph. This module holds, for each tensor handle, the node that is its value now:

- a tensor made by a recorded op has that op's node;
- a tensor from outside becomes a graph parameter when first read (`captured`), an argument before (`argument`);
- a write binds the handle, and everything it is a view of, to new nodes; a view whose memory was written since is read
  again through its view op. Writes to outside tensors are `updates`: (tensor, node) to be stored when the call
  succeeds.

Handles are kept alive while recording, so an id is never reused. Works on anything shaped like a tensor (`_array`,
`_version.n`, `_parent`, `_view`), since Tensor lies above this layer.

What the Tensor layer calls on the open recording (`recorder.active()`), besides the methods here with the same names:
`emit`, `inline`, `assign`, `alias`, `adopt`, `alias_result`, `look(kind, tensor, value)`, `read_slot(tensor, name,
value)` and `write_slot(tensor, name, value)` for name in grad, requires_grad, hooks; `read_mode(name, value)` for
grad, default_dtype; `refuse(reason)`, `call(fn, args)` (user code called by the library: hooks, custom rules),
`custom_rule(cls)`, and the number `tape_start`: tape entries with a smaller `seq` are older than the recording.

What the compile driver gets from above is `tensor/domain.py`: wrapping arrays, tape entries of outputs,
`record_backward` (the backward pass of outputs that require grad, recorded through the tape into the same builder
while the recording is still open) and `CompiledNode` (the tape entry compiled outputs get).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracejit.errors import InconclusiveDim, is_foreign
from tracejit.ir.dim import Dim, Shape, at_least
from tracejit.ir.dtype import int64
from tracejit.ir.graph import Graph, param
from tracejit.ir.node import Node, broadcast_shapes, cast, expand_to
from tracejit.ir.op import Op
from tracejit.ir.symint import Scope, SymInt, lifted
from tracejit.ir.types import TensorType
from tracejit.ops.pointwise import Pointwise, Select
from tracejit.records import dataclass

__all__ = ["Binding", "Check", "GraphBuilder"]


def is_pointwise(op: Op) -> bool:
    """Whether eager code may leave rank-0 operands of `op` unexpanded."""
    return isinstance(op, (Pointwise, Select))


@dataclass(slots=True)
class Binding:
    """What a tensor handle stands for."""

    tensor: Any
    node: Node
    seen: int  # the version of its memory that `node` is the value of
    outside: bool  # existed before the recording


@dataclass(frozen=True, slots=True)
class Check:
    """A value Python looked at: the call may go on only where `node` has the bits of `value`."""

    node: Node
    value: Any
    kind: str
    where: str | None


class GraphBuilder:
    """The graph side of one recording."""

    def __init__(self, locate: Any = None, scope: Scope | None = None) -> None:
        self.scope = scope  # of a recording for all extents
        self.unfit: str | None = None  # why it is none
        self.views: dict[int, Any] = {}  # by id of a view, its op for all extents, or the `Window` that it is
        self.rules: dict[int, Op] = {}  # by id of a tape entry, likewise
        self.bindings: dict[int, Binding] = {}
        self.params: list[Node] = []
        self.sources: list[Any] = []  # the outside tensor behind each parameter
        self.checks: list[Check] = []
        self.written: dict[int, Any] = {}  # outside tensors written, in order of first write
        self.assigned: dict[int, Any] = {}  # tensors that were written in place
        self.assigns = 0  # ... how often
        self.grad_nodes: dict[int, tuple[Any, list[Any]]] = {}
        self.places: dict[tuple[int, int], Node] = {}  # (id of a tape entry, result) -> the value that stands there
        self.also: dict[tuple[int, int], list[Node]] = {}  # ... and others that were computed again to stand there
        self.versions: dict[int, int] = {}  # by id, the versions of outside tensors when they were first met
        self.through: dict[int, Any] = {}  # outside tensors not met so far, written through a view
        self.lost = False  # ... of which one was read afterwards
        self.locate = locate or (lambda: None)
        self.ops = 0

    # -- reading

    def input(self, tensor: Any, label: str, type: TensorType | None = None) -> Node:
        """Make an outside tensor a parameter of the graph; of `type`, where its own is that of one call only."""
        self.lost = self.lost or id(tensor) in self.through
        node = param(label, type or tensor.type)
        self.params.append(node)
        self.sources.append(tensor)
        self.bindings[id(tensor)] = Binding(tensor, node, tensor._version.n, True)
        self.versions[id(tensor)] = tensor._version.n
        return node

    def knows(self, tensor: Any) -> bool:
        """Whether the tensor was met in this recording."""
        return id(tensor) in self.bindings

    def made_here(self, tensor: Any) -> bool:
        """Whether the tensor was made during this recording."""
        b = self.bindings.get(id(tensor))
        return b is not None and not b.outside

    def node_of(self, tensor: Any) -> Node:
        """The node that is the tensor's value now."""
        chain: list[Binding] = []
        t = tensor
        while True:  # up to the nearest tensor whose node is up to date
            b = self.bindings.get(id(t))
            if b is None:
                self.input(t, f"c{len(self.params)}")
                b = self.bindings[id(t)]
            if b.seen == t._version.n or b.outside or t._parent is None:
                break
            chain.append(b)
            t = t._parent
        for b in reversed(chain):
            view = self.views.get(id(b.tensor)) or b.tensor._view
            b.node = self._attempt(view, [self.bindings[id(b.tensor._parent)].node], [b.tensor])
            b.seen = b.tensor._version.n
        return self.bindings[id(tensor)].node

    # -- writing

    def emit(self, op: Op, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Record `op`; eager code may leave rank-0 operands of pointwise ops unexpanded, the graph may not."""
        made = self._attempt(op, [self.node_of(t) for t in inputs], outputs)
        for t, n in zip(outputs, made if isinstance(made, tuple) else (made,), strict=True):
            self.bindings[id(t)] = Binding(t, n, t._version.n, False)
            if t._grad_fn is not None:
                self.places[id(t._grad_fn), t._index] = n

    def inline(self, graph: Graph, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Record a graph, whose results `outputs` are."""
        new = dict(zip(graph.params, map(self.node_of, inputs), strict=True))
        where = self.locate()
        for n in graph.nodes:
            if n not in new:
                new[n] = made = n.with_inputs(tuple([new[i] for i in n.inputs]))
                made.where = where
                self.ops += 1
        for t, n in zip(outputs, graph.results, strict=True):
            self.bind(t, new[n])

    def _attempt(self, op: Op, nodes: Sequence[Node], outputs: Sequence[Any]) -> Any:
        """The nodes of `outputs`; in a recording for all extents, of nothing where `op` is not for all extents."""
        if self.scope is None:
            return self._emit(op, self._expanded(op, nodes, outputs[0]._array.shape))
        if self.unfit is None:
            try:
                if isinstance(value := getattr(op, "value", None), SymInt):
                    return self._number(value.dim, lifted(op.type))  # type: ignore[attr-defined]
                shape = broadcast_shapes(*(n.shape for n in nodes)) if len(nodes) > 1 and is_pointwise(op) else ()
                return self._emit(op, self._expanded(op, nodes, shape))
            except Exception as e:  # what the call computes is not touched by it
                if is_foreign(e):
                    raise
                self.lose(f"{op.name}: {e}")
        made = [param("", t.type) for t in outputs]
        return tuple(made) if len(made) > 1 else made[0]

    def _expanded(self, op: Op, nodes: Sequence[Node], shape: Shape) -> Sequence[Node]:
        return [expand_to(n, shape) for n in nodes] if len(nodes) > 1 and is_pointwise(op) else nodes

    def _number(self, dim: Dim, type: TensorType) -> Node:
        """An extent as a value: one more than the last of so many positions."""
        registry: Any = Op.registry
        if not at_least(dim, 1):
            if not at_least(-dim, 1):
                raise InconclusiveDim(f"whether {dim} is positive depends on the symbols")
            return Node.of(registry["neg"](), (self._number(-dim, type),))  # type: ignore[arg-type]
        places = Node.of(registry["iota"]((dim,), 0, int64), ())
        last = Node.of(registry["reshape"](()), (Node.of(registry["slice"]((dim - 1,), (dim,), (1,)), (places,)),))
        one = Node.of(registry["const"](1, TensorType(int64, ())), ())
        return expand_to(cast(Node.of(registry["add"](), (last, one)), type.dtype), type.shape)

    def lose(self, why: str) -> None:
        """This recording is not for all extents."""
        if self.unfit is None:
            self.unfit = f"{where}: {why}" if (where := self.locate()) else why

    def _emit(self, op: Any, nodes: Sequence[Node]) -> Any:
        made = op.node(self, nodes[0]) if op.name == "window" else Node.build(op, nodes)
        where = self.locate()
        for n in made if isinstance(made, tuple) else (made,):
            n.where = where
        self.ops += 1
        return made

    def assign(self, tensor: Any, value: Any) -> None:
        """The memory of `tensor` now holds `value` (already of its type; the version is already counted up)."""
        node = self.node_of(value)
        self.assigned[id(tensor)] = tensor
        self.assigns += 1
        b = self.bindings.get(id(tensor))
        if b is None:
            self.input(tensor, f"c{len(self.params)}")
            b = self.bindings[id(tensor)]
        b.node, b.seen = node, tensor._version.n
        if b.outside:
            self.written.setdefault(id(tensor), tensor)

    def write_through(self, tensor: Any) -> None:
        """The memory of `tensor`, which was not met so far, was written through a view of it."""
        while tensor is not None:
            self.through[id(tensor)] = tensor
            tensor = tensor._parent

    def rebind(self, tensor: Any, op: Op) -> Node:
        """The value of `tensor` becomes `op` of what it is, so that it is a node of its own."""
        b = self.bindings[id(tensor)]
        b.node = self._attempt(op, [self.node_of(tensor)], [tensor])
        b.seen = tensor._version.n
        return b.node

    def bind(self, tensor: Any, node: Node) -> None:
        """A tensor made in this recording stands for `node`."""
        self.bindings[id(tensor)] = Binding(tensor, node, tensor._version.n, False)

    def alias(self, new: Any, old: Any) -> None:
        """`new` is another handle on the value of `old`."""
        self.bindings[id(new)] = Binding(new, self.node_of(old), new._version.n, False)

    # -- the gradient tape

    def adopt(self, grad_node: Any, results: Sequence[Any]) -> None:
        """A tape entry was made for results that are about to be recorded."""
        self.grad_nodes[id(grad_node)] = (grad_node, list(results))
        for i, t in enumerate(results):
            if id(t) in self.bindings:  # a view on the tape again, after a write
                self.places[id(grad_node), i] = self.node_of(t)

    def alias_result(self, new: Any, grad_node: Any, index: int) -> None:
        """`new` is a handle on result `index` of a tape entry as it was when made."""
        entry = self.grad_nodes.get(id(grad_node))
        if entry is None:
            return  # made before this recording: `new` is an outside tensor
        self.bindings[id(new)] = Binding(new, self.places[id(grad_node), index], new._version.n, False)

    # -- value guards

    def check(self, node: Node, value: Any, kind: str) -> None:
        """Python looked at `node` and saw `value`."""
        self.checks.append(Check(node, value, kind, self.locate()))

    def updates(self) -> list[tuple[Any, Node]]:
        """(outside tensor, its value after the call) for every one that was written."""
        return [(t, self.node_of(t)) for t in self.written.values()]
