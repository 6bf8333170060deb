"""Composed functions as one op in eager code: `layer_norm`, `gelu`, `conv2d` with its bias.

A composed function is plain Python over the operators, so its graph is known as soon as the types are: one call on
Nodes. Eager code runs that graph (`graphs.py`) and puts one entry on the tape, whose rule is the graph's gradient. What
the rule reads beside inputs and results is chosen as in compiled code (`passes.remat`) and kept as further results.

Where somebody wants to see the primitives they run one by one: autocast, the search for NaN. An open recording takes
the graph over as it is, unless it needs the tape of the primitives, or is one for all extents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tracejit import config
from tracejit.errors import is_foreign
from tracejit.ir import dtype as dt
from tracejit.ir.graph import Graph, param, rebuild
from tracejit.ir.node import Node
from tracejit.ir.op import Array, Op
from tracejit.ir.op import results as results_of
from tracejit.ir.types import TensorType, TupleType, Type
from tracejit.tensor.graphs import Runner
from tracejit.tensor.tape import OpNode, view_root
from tracejit.tensor.tensor import Size, Tensor, needs_grad, type_of, wrap

__all__ = ["Composite", "compose"]

modes = config.modes
_STATIC = frozenset((int, bool, str, type(None), dt.DType))


class Composite(Op):
    """The results of a graph; the first `visible` are those of the function, the others are kept for its gradient."""

    def __init__(self, graph: Graph, visible: int, is_tuple: bool) -> None:
        self.name = graph.name  # type: ignore[misc]  # of the function
        self.graph, self.visible, self.is_tuple = graph, visible, is_tuple
        self.run = Runner(graph)

    def __eq__(self, other: object) -> bool:  # `Op` goes by its own fields
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def infer(self, *types: TensorType) -> Type:
        found: list[TensorType] = [r.type for r in self.graph.results]
        return TupleType(tuple(found)) if len(found) > 1 else found[0]

    def eval(self, *arrays: Array) -> Any:
        found = self.run(arrays)
        return tuple(found) if len(found) > 1 else found[0]

    def vjp(self, g: Any, out: Any, *inputs: Any) -> tuple[Any, ...]:
        from tracejit.passes.grad import pullback

        new: dict[Node, Node] = dict(zip(self.graph.params, inputs, strict=True))
        for n in self.graph.nodes:
            if n not in new:
                new[n] = n.with_inputs(tuple([new[i] for i in n.inputs]))
        made = [new[r] for r in self.graph.results]
        gs, outs = ((g,), (out,)) if len(made) == 1 else (g, out)
        real = [x for x in inputs if x.type.dtype.is_floating_point]
        found = pullback(made, gs, real, zeros=False)
        there = tuple([f for f in found if f is not None])
        # What is at hand is not computed again.
        at_hand = iter(rebuild(Graph(self.name, (), there), dict(zip(made, outs, strict=True))).results)
        known = {x: None if f is None else next(at_hand) for x, f in zip(real, found, strict=True)}
        return tuple([known.get(x) for x in inputs])


def compose(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], check: Any = None) -> Any:
    """fn(*args, **kwargs), as one op where it can be, after check(*args, **kwargs)."""
    here = modes.here
    r = here.recorder
    if here.autocast is not None or here.anomaly or not here.whole or (r is not None and r.scope is not None):
        return fn(*args, **kwargs)
    if not config.current().eager_kernels:
        return fn(*args, **kwargs)
    tensors: list[Tensor] = []
    try:
        given = tuple([_spec(x, tensors) for x in args])
        named = tuple([(k, _spec(x, tensors)) for k, x in kwargs.items()]) if kwargs else ()
    except TypeError:
        return fn(*args, **kwargs)
    needed = tuple([needs_grad(t) for t in tensors]) if here.grad else ()
    taped = True in needed
    if taped and r is not None:
        return fn(*args, **kwargs)
    op = traced(fn, given, named, needed if taped else None, dt.default())
    if op is None:
        return fn(*args, **kwargs)
    if check is not None:
        check(*args, **kwargs)
    results = [wrap(a) for a in op.run([t._array for t in tensors])]
    if taped:
        node = OpNode(op, tensors, results)
        for i in range(op.visible):
            t = results[i]
            if t._array.dtype.kind in "fV":
                t._grad_fn, t._index = node, i
    if r is not None:
        r.inline(op.graph, tensors, results)
    return tuple(results[: op.visible]) if op.is_tuple else results[0]


def _spec(x: Any, tensors: list[Tensor]) -> Any:
    """x as part of a key, which `_value` turns back. TypeError for what is no part of one."""
    if isinstance(x, Tensor):
        tensors.append(x)
        return x._array.dtype, x._array.shape
    kind = type(x)
    if kind in _STATIC:
        return kind, x
    if kind is float:
        return (kind, x) if x else (kind, x, str(x))  # 0.0 is not -0.0
    if kind in (tuple, list, Size):
        return tuple if kind is Size else kind, tuple([_spec(v, tensors) for v in x])
    raise TypeError(kind)


def _value(spec: Any, params: list[Node]) -> Any:
    kind, x, *_ = spec
    if isinstance(kind, np.dtype):
        params.append(param(f"x{len(params)}", type_of(kind, x)))
        return params[-1]
    return kind(_value(v, params) for v in x) if kind in (tuple, list) else x


@lru_cache(maxsize=4096)
def traced(
    fn: Callable[..., Any], args: Any, kwargs: Any, needed: tuple[bool, ...] | None, default: dt.DType
) -> Composite | None:
    """`fn` as one op on operands of these types, of which the `needed` ones have gradients; None where it is none."""
    params: list[Node] = []
    try:
        out = fn(*[_value(x, params) for x in args], **{k: _value(x, params) for k, x in kwargs})
    except Exception as e:  # what the call on tensors will say, too, and better
        if is_foreign(e):
            raise
        return None
    results = out if isinstance(out, tuple) else (out,)
    if not all(isinstance(r, Node) for r in results) or len(set(results)) < len(results):
        return None
    graph = Graph(fn.__name__, tuple(params), results)
    if len(graph.nodes) < len(params) + 2 or any(view_root(r).op.name == "param" for r in results):
        return None
    if any(not r.type.is_static for r in results):
        return None
    kept = _kept(graph, needed) if needed else ()
    if needed and not kept:
        return traced(fn, args, kwargs, None, default)
    graph = graph.with_results((*results, *kept))
    return Composite(graph, len(results), isinstance(out, tuple))


def _kept(graph: Graph, needed: Sequence[bool]) -> tuple[Node, ...]:
    """Values of the graph that its gradient wants, and that are not computed again.

    Operands and results may be overwritten before the gradient is asked for. So those are left alone that only masks
    come from, as in `relu`, and results that no primitive's rule reads.
    """
    from tracejit.passes.grad import pullback
    from tracejit.passes.remat import split

    wrt = [p for p, wanted in zip(graph.params, needed, strict=True) if wanted]
    cotangents = [param(f"g{i}", r.type) for i, r in enumerate(graph.results) if _is_real(r)]
    gs = iter(cotangents)
    into = [next(gs) if _is_real(r) else None for r in graph.results]
    found = [g for g in pullback(graph.results, into, wrt, zeros=False) if g is not None]
    late = set(cotangents)
    read: set[Node] = set()
    for n in Graph("", tuple(cotangents), tuple(found)).nodes:
        if any(i in late for i in n.inputs):
            late.add(n)
            read.update(view_root(i) for i in n.inputs if i not in late)
    used = set(Graph("", (), tuple([n for n in read if _is_real(n)])).nodes)
    at_hand = {p for p in graph.params if p in used} | {r for r in graph.results if view_root(r) in read}
    chosen = split(
        [r for r in graph.results if r in at_hand], found, [p for p in graph.params if p in at_hand], cotangents
    )
    return tuple(n for n in chosen.saved if n not in at_hand and n.op.name != "param")


def _is_real(n: Node) -> bool:
    return all(t.dtype.is_floating_point for t in results_of(n.type))
