"""What the compile driver, which lies below, needs to know about Tensors; handed to it by `jit.py`.

The backward pass of a compiled forward is not derived from its graph: it is the tape's own backward pass, recorded with
placeholder cotangents while the recording is still open. So `no_grad` blocks, `detach`, hooks and custom rules mean
the same compiled as eager.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracejit import config
from tracejit.errors import AutogradError, InPlaceError
from tracejit.ir.graph import Graph, evaluate
from tracejit.ir.node import Node
from tracejit.ir.op import Array
from tracejit.tensor import autograd
from tracejit.tensor.autograd import GradNode, edge_of
from tracejit.tensor.tensor import Tensor, apply_node, current_grad_fn, needs_grad, wrap
from tracejit.trace import recorder as recording
from tracejit.trace.builder import GraphBuilder

__all__ = ["CompiledNode", "RecordedBackward", "tape_position", "record_backward", "wrap"]


def tape_position() -> int:
    """A number larger than the `seq` of every tape entry so far: the `tape_start` of a recording that opens now."""
    return next(GradNode._seq)


@dataclass(frozen=True)
class RecordedBackward:
    """The backward pass of some outputs, as nodes of the recording's graph."""

    outputs: tuple[int, ...]  # positions of the outputs that carry gradients, in order
    cotangents: tuple[Node, ...]  # the placeholder parameter of each of them
    sources: tuple[Any, ...]  # the outside tensors that receive a gradient ...
    gradients: tuple[Node, ...]  # ... and its node


def record_backward(builder: GraphBuilder, outputs: Sequence[Tensor], tape_start: int) -> RecordedBackward | str | None:
    """Record the backward pass of `outputs` (tensors made in this recording).

    None where no output carries a gradient; a reason in words where the pass cannot be compiled.
    """
    carrying = tuple(i for i, t in enumerate(outputs) if current_grad_fn(t) is not None and _made_since(t, tape_start))
    if not carrying:
        return None
    seeds = [wrap(np.ones(outputs[i]._array.shape, outputs[i]._array.dtype)) for i in carrying]
    cotangents = tuple(builder.input(g, f"g{k}") for k, g in enumerate(seeds))
    sources = {_key(edge_of(t)): t for t in builder.sources if isinstance(t, Tensor) and needs_grad(t)}
    leaves, caught = autograd.flow(
        [outputs[i] for i in carrying], seeds, create_graph=False, retain=True, stop=lambda n: n.seq < tape_start
    )
    receiving: list[Any] = []
    gradients: list[Node] = []
    for edge, g in [*leaves.items(), *caught.items()]:
        if isinstance(edge, tuple) and edge[0].seq >= tape_start:
            continue
        source = sources.get(_key(edge))
        if source is None:
            return "a gradient flows to a leaf made inside the compiled function"
        receiving.append(source)
        gradients.append(builder.node_of(g))
    return RecordedBackward(carrying, cotangents, tuple(receiving), tuple(gradients))


def _made_since(t: Tensor, tape_start: int) -> bool:
    fn = current_grad_fn(t)
    return fn is not None and fn.seq >= tape_start


def _key(edge: Any) -> Any:
    return (id(edge[0]), edge[1]) if isinstance(edge, tuple) else id(edge)


class CompiledNode(GradNode):
    """The tape entry of the outputs of one compiled call.

    `run(saved, cotangents)` gives the gradients of `sources`. For gradients of gradients the forward graph is
    replayed on the tape instead: `replay` is (graph, its argument tensors, positions of the carrying outputs among
    its results), or a reason why that is not possible.
    """

    __slots__ = ("asked", "guards", "open", "replay", "run", "saved", "sources", "types")
    name = "compiled"

    def __init__(
        self,
        sources: Sequence[Tensor],
        outputs: Sequence[Tensor],
        saved: Sequence[Array],
        run: Callable[[Sequence[Array], Sequence[Array]], Sequence[Array]],
        replay: tuple[Graph, Sequence[Tensor], Sequence[int]] | str,
        guards: Sequence[Tensor] = (),
    ) -> None:
        super().__init__(sources, len(outputs))
        self.sources = tuple(sources)
        self.types = [t.type for t in outputs]
        self.saved: tuple[Array, ...] | None = tuple(saved)
        self.open = set(
            range(len(outputs))
        )  # outputs whose gradient was not asked for yet: their part of the tape is not freed
        self.asked: set[int] = set()  # ... and of those, the ones the last backward pass asked for
        self.run, self.replay = run, replay
        self.guards = [(t, t._version, t._version.n) for t in guards]  # outside tensors whose memory is in `saved`
        for i, t in enumerate(outputs):
            t._grad_fn, t._index = self, i

    def backward(self, gs: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        if (r := recording.active()) is not None:
            r.refuse("differentiates through a compiled call made outside")
        asked = {i for i, g in enumerate(gs) if g is not None}
        if self.saved is None or not asked <= self.open:
            raise AutogradError(
                f"the tape of a compiled call ({self.where}) was freed by an earlier backward(); "
                "pass retain_graph=True to it"
            )
        self.asked = asked
        for t, version, n in self.guards:
            if version.n != n or t._version is not version:
                raise InPlaceError(
                    f"an input of a compiled call ({self.where}), needed for its gradient, was overwritten in place at "
                    f"{version.where or 'an unknown line'}; write out of place, or clone() before writing"
                )
        if config.modes.grad:
            return self._replayed(gs)
        arrays = [
            np.zeros(t.shape, t.dtype.numpy) if g is None else g._array  # type: ignore[arg-type]
            for g, t in zip(gs, self.types, strict=True)
        ]
        return [wrap(a) for a in self.run(self.saved, arrays)]

    def _replayed(self, gs: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        if isinstance(self.replay, str):
            raise AutogradError(
                f"gradients of gradients through a compiled call: {self.replay}; call it under tracejit.eager()"
            )
        graph, args, positions = self.replay
        results = evaluate(graph, args, apply_node)
        pairs = [
            (results[p], g) for p, g in zip(positions, gs, strict=True) if g is not None and needs_grad(results[p])
        ]
        return autograd.grad(
            [o for o, _ in pairs], self.sources, [g for _, g in pairs], create_graph=True, allow_unused=True
        )

    def release(self) -> None:
        self.open -= self.asked
        if not self.open or not self.asked:
            self.saved = None
