"""The gradient tape.

A tape entry is an op, handles on its inputs as they were, and the vjp rule of the op applied to Tensors. So the same
rule serves eager mode, recordings (the ops of the backward pass are recorded like all others) and gradients of
gradients. `autograd.py` walks the tape; `rules.py` has the entries whose rule is the user's.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tracejit import config
from tracejit.errors import AutogradError, InPlaceError, is_foreign
from tracejit.ir.dtype import from_numpy
from tracejit.ir.graph import Graph, evaluate, param
from tracejit.ir.node import Node, expand_to
from tracejit.ir.op import Op
from tracejit.ir.symint import lifted
from tracejit.ir.types import TensorType
from tracejit.ops.pointwise import Pointwise, Select
from tracejit.tensor.graphs import Runner
from tracejit.trace import recorder as recording

if TYPE_CHECKING:
    from tracejit.tensor.tensor import Tensor

__all__ = ["GradNode", "OpNode", "Stale", "edge_of", "overwritten", "preserve", "tape_position", "user_line"]

modes = config.modes


def overwritten(saved_by: str, saved_at: str | None, written_at: str | None) -> str:
    """The message of an InPlaceError: what wanted the value, saved where, written where."""
    return (
        f"a value needed for the gradient of {saved_by} (saved at {saved_at or 'an unknown line'}) was overwritten "
        f"in place at {written_at or 'an unknown line'}; write out of place, or clone() before writing"
    )


# Ops whose NumPy result may share memory with their first input.
VIEW_OPS = frozenset({"reshape", "transpose", "slice", "broadcast", "flip", "unfold", "stop_gradient"})


def view_root(n: Node) -> Node:
    """What n may share memory with."""
    while n.op.name in VIEW_OPS:
        n = n.inputs[0]
    return n


class Stale:
    """Stands in for an array that was overwritten after the tape saved it; touching it raises InPlaceError."""

    __slots__ = ("_message", "dtype", "shape")

    def __init__(self, array: Any, saved_by: str, saved_at: str | None, written_at: str | None) -> None:
        self.dtype, self.shape = array.dtype, array.shape
        self._message = overwritten(saved_by, saved_at, written_at)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise InPlaceError(self._message)

    def __getattr__(self, name: str) -> Any:
        raise InPlaceError(self._message)


class GradNode:
    """One tape entry. `edges[i]` says where the gradient of input i goes: (entry, result) of the tape, a leaf, or
    None."""

    leads_anywhere = False  # it must be entered whatever is asked for
    aliased: frozenset[int] = frozenset()  # results that are an argument of a custom rule, handed back as it is
    __slots__ = ("__weakref__", "edges", "forgotten", "hooks", "retained", "seq", "where", "width")
    _seq = itertools.count()
    name = "GradNode"

    def __init__(self, edges: Sequence[Any], width: int, where: str | None = None) -> None:
        self.seq = next(GradNode._seq)
        self.width = width  # number of results
        self.edges = tuple(edges)
        self.hooks: dict[int, dict[int, Callable[[Tensor], Tensor | None]]] | None = None  # result -> hooks
        self.retained: dict[int, Tensor] | None = None
        self.where = user_line() if where is None else where
        self.forgotten: Any = None  # a `recompute.Region` that can give back what was saved

    def backward(self, gs: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """Gradients of the inputs from those of the results."""
        raise NotImplementedError

    def release(self) -> None:
        """Forget what was saved; a second backward pass raises."""

    def has_saved(self) -> bool:
        """Whether there is anything to forget that can be computed again."""
        return False

    def reads(self) -> list[tuple[Tensor, int, Any]]:
        """(input, its version then, where its gradient flows) of what was saved."""
        return []

    def snapshot(self) -> Any:
        """What the entry saved, for `take`."""
        raise NotImplementedError

    def take(self, saved: Any) -> None:
        """Have saved what a twin of this entry saved."""
        raise NotImplementedError

    def forget(self, region: Any) -> None:
        """Drop what was saved: `region` computes it again."""
        self.release()
        self.forgotten = region

    def __repr__(self) -> str:
        return f"<{self.name}>"


def tape_position() -> int:
    """A number larger than the `seq` of every tape entry so far."""
    return next(GradNode._seq)


def edge_of(t: Tensor) -> Any:
    """Where the gradient of `t` flows."""
    if t._parent is None:
        fn = t._grad_fn
    else:
        from tracejit.tensor.tensor import current_grad_fn

        fn = current_grad_fn(t)
    if fn is not None:
        return (fn, t._index)
    return t if t._leaf_requires_grad else None


@lru_cache(maxsize=8192)
def vjp_rule(
    op: Op, types: tuple[Any, ...], given: tuple[bool, ...], needed: tuple[bool, ...]
) -> tuple[Graph, tuple[int | None, ...]]:
    """The vjp of `op` as a graph of (gradients given, results, inputs) that computes only the needed gradients.

    Also for each input which result of the graph is its gradient, or None. Without it every matmul of a network's first
    layer would compute the gradient of the data as well.
    """
    nodes = [param(f"p{i}", TensorType(from_numpy(d), s)) for i, (d, s) in enumerate(types)]  # type: ignore[arg-type]
    outs, ins = nodes[: len(given)], nodes[len(given) :]
    gs = [param(f"g{i}", o.type) if have else None for i, (o, have) in enumerate(zip(outs, given, strict=True))]
    if isinstance(op, (Pointwise, Select)):  # eager code leaves numbers at rank 0
        ins = [expand_to(n, outs[0].shape) for n in ins]
    back = op.vjp(gs[0], outs[0], *ins) if len(outs) == 1 else op.vjp(tuple(gs), tuple(outs), *ins)
    results: list[Node] = []
    where: list[int | None] = []
    for g, wanted in zip(back, needed, strict=True):
        where.append(len(results) if wanted and g is not None else None)
        if wanted and g is not None:
            results.append(g)
    return Graph(f"{op.name}_vjp", (*(g for g in gs if g is not None), *nodes), tuple(results)), tuple(where)


class ArrayRule:
    """`vjp_rule` on arrays: how it runs, and which inputs and results of the op it reads. Results may be gradients
    `handed_on`, or `views` of them (result -> number of the gradient), or earlier results `again`."""

    __slots__ = ("again", "handed_on", "inputs", "outputs", "reads", "run", "views", "where")

    def __init__(self, rule: Graph, where: tuple[int | None, ...], gs: int, outs: int) -> None:
        read = set(Graph("read", (), rule.results).nodes)
        self.where = where
        self.reads = tuple([i for i, p in enumerate(rule.params) if p in read])  # among gradients, results and inputs
        self.outputs = tuple([i - gs for i in self.reads if gs <= i < gs + outs])
        self.inputs = tuple([i - gs - outs for i in self.reads if i >= gs + outs])
        numbers = {p: i for i, p in enumerate(rule.params[:gs])}
        self.handed_on = {k: numbers[r] for k, r in enumerate(rule.results) if r in numbers}
        self.again = {k: first for k, r in enumerate(rule.results) if (first := rule.results.index(r)) < k}
        self.views = {k: numbers[root] for k, r in enumerate(rule.results) if (root := view_root(r)) in numbers}
        params = tuple([rule.params[i] for i in self.reads])
        self.run = Runner(Graph(rule.name, params, rule.results), self.views)


@lru_cache(maxsize=8192)
def array_rule(op: Op, types: tuple[Any, ...], given: tuple[bool, ...], needed: tuple[bool, ...]) -> ArrayRule:
    """`vjp_rule`, to run on arrays."""
    return ArrayRule(*vjp_rule(op, types, given, needed), sum(given), len(given))


@lru_cache(maxsize=8192)
def reads_input(op: Op, types: tuple[Any, ...], width: int, needed: tuple[bool, ...], i: int) -> bool:
    """Whether the vjp of `op`, from its first result, reads its input i; the op has `width` results."""
    rule, _ = vjp_rule(op, types, (True, *(False,) * (width - 1)), needed)
    return rule.params[1 + width + i] in Graph("read", (), rule.results).nodes


def preserve(target: Tensor, result: Tensor, start: int) -> None:
    """Before `result`, computed from `target` on the tape since `start`, is written into `target`: where the tape
    needs what stands there now, it gets a copy of its own, as in PyTorch."""
    from tracejit.tensor.tensor import wrap

    copies: dict[int, Tensor] = {}
    stack, seen = [result._grad_fn], set[int]()
    while stack:
        node = stack.pop()
        if node is None or node.seq < start or id(node) in seen:
            continue
        seen.add(id(node))
        stack += [e[0] for e in node.edges if isinstance(e, tuple)]
        if type(node) is not OpNode or node.inputs is None:
            continue
        for i, t in enumerate(node.inputs):
            if t._version is not target._version or node.versions[i] != t._version.n:
                continue
            arrays = (*(a for a, _, _ in node.results), *(x._array for x in node.inputs))
            types = tuple((a.dtype, a.shape) for a in arrays)
            if not reads_input(node.op, types, node.width, tuple(e is not None for e in node.edges), i):
                continue
            if id(t) not in copies:
                copies[id(t)] = wrap(t._array.copy())
                if (r := recording.active()) is not None:
                    r.alias(copies[id(t)], t)
            node.inputs = (*node.inputs[:i], copies[id(t)], *node.inputs[i + 1 :])
            node.versions[i] = 0


def _same_edge(a: Any, b: Any) -> bool:
    return a is b or (isinstance(a, tuple) and isinstance(b, tuple) and a[0] is b[0] and a[1] == b[1])


class OpNode(GradNode):
    """The tape entry of a primitive op."""

    __slots__ = ("inputs", "op", "results", "versions")

    def __init__(self, op: Op, inputs: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        super().__init__([edge_of(t) for t in inputs], len(results))
        self.op = op
        self.inputs: tuple[Tensor, ...] | None = tuple(inputs)
        self.versions = [t._version.n for t in inputs]
        self.results = [(t._array, t._version, t._version.n) for t in results]
        if (r := recording.active()) is not None:
            r.adopt(self, results)

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.op.name

    def backward(self, gs: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        while self.inputs is None and self.forgotten is not None:
            self.forgotten.restore()
        if self.inputs is None:
            raise AutogradError(
                f"the tape of {self.op.name} ({self.where}) was freed by an earlier backward(); "
                "pass retain_graph=True to it"
            )
        if not modes.grad and recording.active() is None:
            return self._on_arrays(gs)
        from tracejit.tensor.tensor import apply_node

        ins = [self._saved(i) for i in range(len(self.inputs))]
        outs = [self._result(i) for i in range(len(self.results))]
        rule, where = self._rule((*outs, *ins), tuple(g is not None for g in gs))
        found = evaluate(rule, [g for g in gs if g is not None] + outs + ins, apply_node)
        return [None if k is None else found[k] for k in where]

    def _on_arrays(self, gs: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """`backward` where nobody listens and nothing is taped: the rule on bare arrays."""
        from tracejit.tensor.tensor import wrap

        assert self.inputs is not None
        ins = [t._array for t in self.inputs]
        outs = [array for array, _, _ in self.results]
        types = tuple([(a.dtype, a.shape) for a in (*outs, *ins)])
        rule = array_rule(
            self.op, types, tuple([g is not None for g in gs]), tuple([e is not None for e in self.edges])
        )
        for i in rule.inputs:
            if self.inputs[i]._version.n != self.versions[i]:
                raise InPlaceError(overwritten(self.op.name, self.where, self.inputs[i]._version.where))
        for i in rule.outputs:
            _, version, n = self.results[i]
            if version.n != n:
                raise InPlaceError(overwritten(self.op.name, self.where, version.where))
        given = [g for g in gs if g is not None]
        arrays = [*[g._array for g in given], *outs, *ins]
        found = [wrap(a) for a in rule.run([arrays[i] for i in rule.reads])]
        for k, i in rule.views.items():
            if isinstance(found[k]._array.base, np.ndarray):
                found[k]._version = given[i]._version  # its memory
                found[k]._seen = given[i]._version.n
        for k, i in rule.handed_on.items():
            found[k] = given[i]
        for k, i in rule.again.items():
            found[k] = found[i]
        return [None if k is None else found[k] for k in rule.where]

    def _rule(self, values: Sequence[Tensor], given: tuple[bool, ...]) -> tuple[Graph, tuple[int | None, ...]]:
        """`vjp_rule`; in a recording for all extents, the rule for all of them."""
        needed = tuple(e is not None for e in self.edges)
        if (r := recording.active()) is not None and r.scope is not None:
            try:
                types = tuple((t._array.dtype, lifted(tuple(t.shape))) for t in values)
                return vjp_rule(r.builder.rules.get(id(self), self.op), types, given, needed)
            except Exception as e:  # what the call computes is not touched by it
                if is_foreign(e):
                    raise
                r.builder.lose(f"the gradient of {self.op.name}: {e}")
        return vjp_rule(self.op, tuple((t._array.dtype, t._array.shape) for t in values), given, needed)

    def release(self) -> None:
        self.inputs, self.results, self.forgotten = None, [], None

    def has_saved(self) -> bool:
        return True

    def reads(self) -> list[tuple[Tensor, int, Any]]:
        return list(zip(self.inputs or (), self.versions, self.edges))

    def snapshot(self) -> Any:
        return self.inputs, self.versions, self.results, self.forgotten

    def take(self, saved: Any) -> None:
        self.inputs, self.versions, self.results, self.forgotten = saved

    def _saved(self, i: int) -> Tensor:
        """Input i as it was: the very tensor where nothing changed, else another handle."""
        from tracejit.tensor.tensor import wrap

        assert self.inputs is not None
        t, edge = self.inputs[i], self.edges[i]
        if t._version.n == self.versions[i]:
            if _same_edge(edge_of(t), edge):
                return t
            out = wrap(t._array)
            if (r := recording.active()) is not None:
                r.alias(out, t)
                if isinstance(edge, tuple):
                    r.stand(out, edge)
        else:
            out = wrap(np.empty(0))
            out._array = Stale(t._array, self.op.name, self.where, t._version.where)  # type: ignore[assignment]
        if isinstance(edge, tuple):
            out._grad_fn, out._index = edge
        return out

    def _result(self, i: int) -> Tensor:
        from tracejit.tensor.tensor import wrap

        array, version, n = self.results[i]
        out = wrap(array)
        if version.n != n:
            out._array = Stale(array, self.op.name, self.where, version.where)  # type: ignore[assignment]
        else:
            out._version = version
        out._grad_fn, out._index = self, i
        if (r := recording.active()) is not None:
            r.alias_result(out, self, i)
        return out


_HERE = __file__.rsplit("/", 2)[0] + "/"


@lru_cache(maxsize=4096)
def _is_ours(file: str) -> bool:
    return file.startswith(_HERE)


def user_line() -> str | None:
    """file:line of the innermost frame outside the library."""
    f = sys._getframe(1)
    while f is not None:
        name = f.f_code.co_filename
        if not _is_ours(name):
            return f"{name}:{f.f_lineno}"
        f = f.f_back
    return None
