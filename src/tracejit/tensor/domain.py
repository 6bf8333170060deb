"""What the compile driver, which lies below, needs to know about the gradient tape; handed to it by `jit.py`.

The backward pass of a compiled forward is not derived from its graph: it is the tape's own backward pass, recorded with
placeholder cotangents while the recording is still open. So `no_grad` blocks, `detach` and writes mean the same
compiled as eager.

Python that runs in a backward pass (gradient hooks, rules of the user's own) is not compiled: it may see a world that
has changed since. The tape behind the outputs is cut there into pieces, each entered at one place:

    rule      one entry whose rule is the user's; rebuilt with the context its `forward` left
    segment   entries whose backward pass is compiled; hooks, if any, are on its results

Without such Python there is one segment. `label` cuts; an entry that several pieces lead to begins a segment of its
own, so that gradients are summed before it, as in eager code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tracejit import config
from tracejit.errors import AutogradError, InPlaceError
from tracejit.ir.node import Node
from tracejit.ir.op import Array
from tracejit.ir.types import TensorType
from tracejit.records import dataclass
from tracejit.tensor import autograd
from tracejit.tensor.gradmode import grad_mode
from tracejit.tensor.rules import OWN_FIELDS, Context, FunctionNode
from tracejit.tensor.tape import GradNode, edge_of, overwritten
from tracejit.tensor.tensor import Tensor, apply_node, wrap
from tracejit.trace import recorder as recording
from tracejit.trace.builder import GraphBuilder
from tracejit.trace.domain import Replay

__all__ = [
    "CompiledNode",
    "attach_rule",
    "attach_failed",
    "attach_segment",
    "fill_rule",
    "hook_on",
    "stand_at",
    "kept_behind",
    "record_backward",
]


# -- cutting


@dataclass(frozen=True)
class RecordedRule:
    """A tape entry whose rule is the user's."""

    node: GradNode
    places: tuple[tuple[GradNode, int], ...]
    edges: tuple[Any, ...]
    rule: Any
    fields: Mapping[str, Any]  # of its context, the user's
    saved: tuple[Any, ...]
    tensors: tuple[bool, ...]
    types: tuple[TensorType, ...]


@dataclass(frozen=True)
class RecordedSegment:
    """The backward pass of some tape entries, as nodes of the recording's graph."""

    node: GradNode | None  # where it is entered; None: by the outputs only
    places: tuple[tuple[GradNode, int], ...]  # its results on the tape
    edges: tuple[Any, ...]  # where its gradients flow
    cotangents: tuple[Node, ...]  # the placeholder parameter of each result
    gradients: tuple[Node, ...]  # of each edge


Recorded = RecordedRule | RecordedSegment


def kept_behind(outputs: Sequence[Tensor], tape_start: int) -> list[tuple[GradNode, list[Any]]]:
    """(entry, objects) for every tape entry behind `outputs`, made since `tape_start`, that keeps objects of the
    user's: hooks, and what the context of a custom rule holds."""
    found: list[tuple[GradNode, list[Any]]] = []
    for n in autograd.reachable([edge_of(t) for t in outputs]):
        if n.seq < tape_start:
            break
        kept = [h for hooks in (n.hooks or {}).values() for h in hooks.values()]
        if isinstance(n, FunctionNode):
            kept += [*_saved(n), *_fields(n.context).values()]
        if kept:
            found.append((n, kept))
    return found


def _fields(context: Context) -> dict[str, Any]:
    return {k: v for k, v in context.__dict__.items() if k not in OWN_FIELDS}


def _saved(n: FunctionNode) -> tuple[Any, ...]:
    while n.forgotten is not None:
        n.forgotten.restore()
    if n.context._saved is None:
        raise AutogradError(f"the tensors saved by {n.name} were freed")
    return n.context._saved


def _label(roots: Sequence[tuple[GradNode, int]], tape_start: int) -> dict[GradNode, GradNode | None]:
    """For each tape entry of this recording behind `roots` the entry that its piece is entered by; None: the outputs.

    Newest first.
    """
    outputs = {n for n, _ in roots}
    leads: dict[GradNode, set[GradNode | None]] = {}  # pieces that lead to an entry
    labels: dict[GradNode, GradNode | None] = {}
    for n in autograd.reachable(roots):
        if n.seq < tape_start:
            break
        into = leads.get(n, set())
        if n in outputs:
            into = into | {None}
        label = next(iter(into)) if len(into) == 1 else n
        cut = isinstance(n, FunctionNode) or isinstance(label, FunctionNode) or n.hooks or n.retained
        labels[n] = n if cut else label
        for e in n.edges:
            if isinstance(e, tuple):
                leads.setdefault(e[0], set()).add(labels[n])
    return labels


def record_backward(builder: GraphBuilder, outputs: Sequence[Tensor], tape_start: int) -> list[Recorded]:
    """Record the backward pass of `outputs` (tensors made in this recording, on the tape): its pieces, oldest first.

    Raises AutogradError where the tape was freed.
    """
    roots: list[tuple[GradNode, int]] = list(
        dict.fromkeys(e for t in outputs if isinstance(e := edge_of(t), tuple) and e[0].seq >= tape_start)
    )
    labels = _label(roots, tape_start)
    entered: dict[GradNode | None, list[tuple[GradNode, int]]] = {}  # places where gradients come in, for each piece
    for n, i in sorted(roots, key=lambda e: (-e[0].seq, e[1])):
        entered.setdefault(labels[n], []).append((n, i))
    for n in labels:
        for e in n.edges:
            if isinstance(e, tuple) and e[0] in labels:
                label = labels[e[0]]
                known = entered.setdefault(label, [])
                if label is e[0] and (isinstance(n, FunctionNode) or labels[n] is not label) and e not in known:
                    known.append(e)
    pieces: list[Recorded] = []
    for label in sorted(entered, key=lambda n: -1 if n is None else n.seq):
        if isinstance(label, FunctionNode):
            places, saved = tuple((label, i) for i in range(label.width)), _saved(label)
            pieces.append(
                RecordedRule(
                    *(label, places, label.edges, label.rule, _fields(label.context), saved),
                    *(label.tensors, label.types),
                )
            )
        elif entered[label]:
            pieces.append(_segment(builder, label, entered[label], labels))
    if pieces and isinstance(pieces[0], RecordedSegment) and pieces[0].node is None:
        pieces.append(pieces.pop(0))  # nothing leads to it: it is the newest
    return pieces


def _segment(
    builder: GraphBuilder, label: GradNode | None, places: list[tuple[GradNode, int]], labels: Mapping[GradNode, Any]
) -> RecordedSegment:
    types = [builder.places[id(n), i].type for n, i in places]
    seeds = [wrap(np.ones(t.shape, t.dtype.numpy)) for t in types]
    cotangents = tuple(builder.input(g, f"g{k}") for k, g in enumerate(seeds))
    leaves, caught = autograd.flow(
        *(places, seeds),
        create_graph=False,
        retain=True,
        stop=lambda n: labels.get(n, n) is not label or isinstance(n, FunctionNode),
    )
    flows = {**leaves, **caught}
    return RecordedSegment(label, tuple(places), tuple(flows), cotangents, tuple(map(builder.node_of, flows.values())))


# -- rebuilding


class _Through(GradNode):
    """Passes a gradient on."""

    __slots__ = ()
    name = "alias"

    def backward(self, gs: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        return gs


def _standing_at(t: Tensor, edge: Any) -> Tensor:
    """Another handle on the value of `t`, whose gradient flows to `edge`."""
    out = wrap(t._array)
    if edge is not None:
        out._grad_fn, out._index = edge if isinstance(edge, tuple) else (_Through([edge], 1), 0)
    return out


def _replayed(r: Replay, edges: Sequence[Any], args: Sequence[Tensor]) -> list[Tensor]:
    """The results of the graph on `args`, on the tape."""
    env: dict[Node, Tensor] = dict(zip(r.graph.params, args, strict=True))
    for n in r.graph.nodes:
        if n not in env:
            off = n in r.off_tape
            with grad_mode(not off):
                env[n] = value = apply_node(n.op, [env[i] for i in n.inputs], n)
            if n not in r.sources and off and (place := r.off_tape[n]) is not None:
                env[n] = _standing_at(value, edge_of(env[place]))
        if n in r.sources and n.op.name != "param":
            env[n] = _standing_at(env[n], edges[r.sources[n]])
    return [env[n] for n in r.graph.results]


class CompiledNode(GradNode):
    """The tape entry of outputs of one compiled call, or of values inside it that hooks or custom rules stand on.

    `run(saved, cotangents)` gives the gradients that flow along `edges`; `replay` gives them on the tape.
    """

    __slots__ = ("arguments", "asked", "made_by", "open", "replay", "run", "saved", "types", "watched")

    def __init__(
        self,
        edges: Sequence[Any],
        types: Sequence[TensorType],
        made_by: Sequence[tuple[str, str | None]],
        saved: Sequence[Array],
        run: Callable[[Sequence[Array], Sequence[Array]], Sequence[Array]] | None,
        watched: Sequence[tuple[Tensor, str, str | None]] = (),
        replay: Replay | None = None,
        arguments: Sequence[Tensor] = (),
    ) -> None:
        super().__init__(edges, len(types), made_by[0][1] if made_by else None)
        self.types = tuple(types)
        self.made_by = made_by  # of each result the op that made it, and where
        self.saved: tuple[Array, ...] | None = tuple(saved)
        self.open = set(range(len(types)))  # results whose gradient was not asked for yet: their part is not freed
        self.asked: set[int] = set()  # ... and of those, the ones the last backward pass asked for
        self.run, self.replay = run, replay
        # Tensors whose memory is in `saved`, with the op that wants it and its line; and all that `replay` reads.
        self.watched = [(t, t._version, t._version.n, op, where) for t, op, where in watched]
        self.arguments = [(t, t._version.n) for t in arguments]

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.made_by[0][0]

    def backward(self, gs: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        if (r := recording.active()) is not None:
            r.refuse("differentiates through a compiled call made outside")
        asked = {i for i, g in enumerate(gs) if g is not None}
        if self.saved is None or self.run is None or not asked <= self.open:
            name, where = self.made_by[min(asked)]
            raise AutogradError(
                f"the tape of {name} ({where}) was freed by an earlier backward(); pass retain_graph=True to it"
            )
        self.asked = asked
        for t, version, n, op, where in self.watched:
            if version.n != n or t._version is not version:
                raise InPlaceError(overwritten(op, where or self.where, version.where))
        if config.modes.grad and self.replay is not None:
            return self._on_tape(gs, self.replay)
        arrays = [
            np.zeros(t.shape, t.dtype.numpy) if g is None else g._array  # type: ignore[arg-type]
            for g, t in zip(gs, self.types, strict=True)
        ]
        return [wrap(a) for a in self.run(self.saved, arrays)]

    def _on_tape(self, gs: Sequence[Tensor | None], replay: Replay) -> Sequence[Tensor | None]:
        for t, n in self.arguments:
            if t._version.n != n:
                raise InPlaceError(overwritten("a compiled call", self.where, t._version.where))
        given = [
            wrap(np.zeros(t.shape, t.dtype.numpy)) if g is None else g  # type: ignore[arg-type]
            for g, t in zip(gs, self.types, strict=True)
        ]
        params = replay.graph.params[len(given) :]
        args = [
            _standing_at(t, self.edges[replay.sources[p]]) if p in replay.sources else wrap(t._array)
            for p, (t, _) in zip(params, self.arguments, strict=True)
        ]
        return _replayed(replay, self.edges, [*given, *args])[: len(self.edges)]

    def release(self) -> None:
        self.open -= self.asked
        if not self.open or not self.asked:
            self.saved = None


def attach_segment(results: Sequence[Sequence[Tensor]], *args: Any) -> CompiledNode:
    """The tape entry of a segment, given to the tensors that stand at its results; `args` as in `CompiledNode`."""
    node = CompiledNode(*args)
    _stand(results, node)
    return node


class FailedNode(GradNode):
    """The tape entry of outputs whose backward pass can only raise."""

    __slots__ = ("failure",)
    name = "compiled"
    leads_anywhere = True

    def __init__(self, width: int, failure: AutogradError) -> None:
        super().__init__((), width, "")
        self.failure = failure

    def backward(self, gs: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        raise type(self.failure)(str(self.failure))


def attach_failed(results: Sequence[Tensor], failure: AutogradError) -> FailedNode:
    """A tape entry that raises, given to tensors."""
    node = FailedNode(len(results), failure)
    _stand([[t] for t in results], node)
    return node


def attach_rule(
    results: Sequence[Sequence[Tensor]],
    edges: Sequence[Any],
    rule: Any,
    tensors: Sequence[bool],
    types: Sequence[TensorType],
    where: str | None,
) -> FunctionNode:
    """The tape entry of a custom rule; its context is still empty."""
    node = FunctionNode(rule, Context(), edges, tensors, types, where)
    _stand(results, node)
    return node


def stand_at(t: Tensor, node: GradNode, i: int) -> None:
    """Give `t` its place on the tape."""
    t._grad_fn, t._index = node, i


def fill_rule(node: FunctionNode, fields: Mapping[str, Any], saved: Sequence[Any]) -> None:
    """Give a rebuilt rule the context that its `forward` left."""
    node.context.__dict__.update(fields)
    node.context._saved = tuple(saved)
    node.watch()


def hook_on(node: GradNode, i: int, hooks: Sequence[Any], retained: Tensor | None) -> None:
    """Put hooks on result i of a tape entry; and let the engine keep its gradient in `retained`."""
    if hooks:
        node.hooks = node.hooks or {}
        node.hooks[i] = dict(enumerate(hooks))
    if retained is not None:
        node.retained = {**(node.retained or {}), i: retained}


def _stand(results: Sequence[Sequence[Tensor]], node: GradNode) -> None:
    for i, tensors in enumerate(results):
        for t in tensors:
            t._grad_fn, t._index = node, i
