"""Keep or recompute: divide one DAG into a forward graph, a backward graph, and the values handed from one to the
other.

    forward(params)            -> forward results..., saved...
    backward(cotangents, saved) -> backward results

A node is backward where it depends on a cotangent; all others are forward. The forward nodes that backward ones read
are *wanted*. Parameters and forward results are held by the caller anyway, so handing them over is free. Cheap nodes
(movement, casts, arithmetic, comparisons: memory traffic decides, not arithmetic) may be computed again from their
*leaves*, the nearest ancestors that are free, saved or not cheap. Two steps choose:

 1. In order, each wanted node: recompute it if its leaves are all at hand or smaller than itself, else save it.
 2. For each leaf not at hand: save it instead, where that lets larger saved values go.

Constants are computed again wherever they are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from math import prod

from tracejit.errors import IRError
from tracejit.ir.dim import substitute, symbols
from tracejit.ir.graph import Graph, Range
from tracejit.ir.graph import param as new_param
from tracejit.ir.node import Node
from tracejit.ir.types import TensorType, TupleType
from tracejit.records import dataclass

__all__ = ["Split", "split"]

_CHEAP = frozenset({
    "const", "iota", "neg", "abs", "sign", "floor", "ceil", "round", "cast", "add", "sub", "mul", "maximum",
    "minimum", "bit_and", "bit_or", "bit_xor", "bit_not", "shift_left", "shift_right", "eq", "lt", "le", "select",
    "reshape", "transpose", "broadcast", "slice", "pad", "flip", "concat", "copy", "stop_gradient", "dynamic_slice",
})  # fmt: skip
_MOST_LEAVES = 4  # a node with more is saved: recomputing it would read more than it writes
_MOST_STEPS = 24  # cheap nodes between a wanted node and its leaves
_EXTENT = 64  # stands for a symbol whose extent is not given


@dataclass(frozen=True, eq=False)
class Split:
    """What `split` decided. `saved` are nodes of the forward graph, in the order in which both graphs list them."""

    forward: Graph  # params -> forward results, then saved
    backward: Graph  # cotangents, then saved -> backward results
    saved: tuple[Node, ...]


def split(
    forward_results: Sequence[Node],
    backward_results: Sequence[Node],
    params: Sequence[Node],
    cotangents: Sequence[Node],
    *,
    name: str = "split",
    ranges: tuple[Range, ...] = (),
    extents: Mapping[str, int] | None = None,
) -> Split:
    """Divide the DAG above both kinds of results; `extents` says how large symbols are, to weigh values by."""
    whole = Graph(name, (*params, *cotangents), (*forward_results, *backward_results), ranges)
    late = set(cotangents)
    for n in whole.nodes:
        if any(i in late for i in n.inputs):
            late.add(n)
    if bad := [r for r in forward_results if r in late]:
        raise IRError(f"@{name}: forward result {bad[0]!r} depends on a cotangent")
    wanted = {i for n in whole.nodes if n in late for i in n.inputs if i not in late}
    wanted |= {r for r in backward_results if r not in late}
    choice = _Choice(free={*params, *forward_results}, extents=extents or {})
    for n in whole.nodes:
        if n in wanted:
            choice.consider(n)
    choice.improve()
    saved = tuple(n for n in whole.nodes if n in choice.saved)
    forward = Graph(f"{name}_forward", tuple(params), (*forward_results, *saved), ranges)
    return Split(forward, _backward(whole, backward_results, cotangents, saved), saved)


def _backward(whole: Graph, results: Sequence[Node], cotangents: Sequence[Node], saved: Sequence[Node]) -> Graph:
    new: dict[Node, Node] = {c: c for c in cotangents}
    for at, s in enumerate(saved):
        new[s] = new_param(s.label or f"s{at}", s.type)
    needed = set(results)
    for n in reversed(whole.nodes):  # what is above a saved value is not computed again
        if n in needed and n not in new:
            needed.update(n.inputs)
    for n in whole.nodes:
        if n in needed and n not in new:
            new[n] = n.with_inputs(tuple(new[i] for i in n.inputs))
    params = (*cotangents, *(new[s] for s in saved))
    return Graph(f"{whole.name}_backward", params, tuple(new[r] for r in results), whole.ranges)


@dataclass
class _Choice:
    """Which forward values go over to the backward graph."""

    free: set[Node]  # held by the caller whatever we decide
    extents: Mapping[str, int]
    saved: set[Node] = field(default_factory=set[Node])
    wanted: list[Node] = field(default_factory=list[Node])

    def consider(self, n: Node) -> None:
        """Step 1."""
        self.wanted.append(n)
        leaves = self.leaves(n)
        new = None if leaves is None else [m for m in leaves if m not in self.saved and m not in self.free]
        if leaves is not None and new is not None and sum(map(self.bytes, new)) < max(1, self.bytes(n)):
            self.saved.update(leaves)
        else:
            self.saved.add(n)

    def improve(self) -> None:
        """Step 2."""
        heavy = [n for n in self.saved if n not in self.free]
        candidates = {m for n in heavy for m in self.leaves(n, through_saved=True) or () if m not in self.saved}
        for leaf in sorted(candidates, key=lambda n: n.id):
            at_hand = self.saved | self.free | {leaf}
            gone = [n for n in heavy if n in self.saved and n is not leaf and self.covers(at_hand, n)]
            if sum(map(self.bytes, gone)) > self.bytes(leaf):
                self.saved.difference_update(gone)
                self.saved.add(leaf)
        self.saved = self.read()

    def covers(self, at_hand: set[Node], n: Node) -> bool:
        """True where `n` can be computed again from values at hand other than itself."""
        leaves = self.leaves(n, through_saved=True)
        return leaves is not None and all(m in at_hand for m in leaves)

    def read(self) -> set[Node]:
        """The saved values that the backward graph really reads."""
        out: set[Node] = set()
        seen = set(self.wanted)
        stack = list(self.wanted)
        while stack:
            n = stack.pop()
            if n in self.saved or n in self.free:
                out.add(n)
                continue
            assert _is_cheap(n), f"{n!r} is neither saved nor cheap"
            fresh = [i for i in n.inputs if i not in seen]
            seen.update(fresh)
            stack += fresh
        return out

    def leaves(self, n: Node, *, through_saved: bool = False) -> list[Node] | None:
        """What `n` can be computed again from, None where it cannot cheaply. A parameter or result is its own leaf."""
        if n in self.free:
            return [n]
        if not _is_cheap(n):
            return None
        leaves: dict[Node, None] = {}
        seen: set[Node] = {n}
        stack = list(n.inputs)
        while stack:
            m = stack.pop()
            if m in seen:
                continue
            seen.add(m)
            if m in self.free or not _is_cheap(m) or (m in self.saved and not through_saved):
                leaves[m] = None
            else:
                stack += m.inputs
            if len(leaves) > _MOST_LEAVES or len(seen) > _MOST_STEPS:
                return None
        return None if any(isinstance(m.type, TupleType) for m in leaves) else list(leaves)

    def bytes(self, n: Node) -> int:
        """Size of `n`, symbols weighed."""
        t: TensorType = n.type
        known = {s: self.extents.get(s, _EXTENT) for s in symbols(t.shape)}
        return t.dtype.itemsize * prod(substitute(t.shape, known))


def _is_cheap(n: Node) -> bool:
    return n.op.name in _CHEAP
