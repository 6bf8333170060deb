"""The engine that walks the gradient tape backwards, and hooks on what it finds."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tracejit.errors import AutogradError
from tracejit.ir.op import Array, Op
from tracejit.ir.types import TensorType
from tracejit.records import dataclass
from tracejit.runtime import buffer
from tracejit.tensor.gradmode import (
    enable_grad,
    grad_mode,
    inference_mode,
    is_grad_enabled,
    modes,
    no_grad,
    set_grad_enabled,
)
from tracejit.tensor.rules import Function
from tracejit.tensor.tape import GradNode, OpNode, edge_of, user_line
from tracejit.trace import recorder as recording

if TYPE_CHECKING:
    from tracejit.tensor.tensor import Tensor

__all__ = [
    "Function", "GradNode", "Handle", "OpNode", "apart", "backward", "edge_of", "enable_grad", "grad", "inference_mode",
    "is_grad_enabled", "new_place", "no_grad", "set_grad_enabled", "user_line",
]  # fmt: skip


class Handle:
    """Returned by hook registration; `remove()` takes the hook away."""

    _ids = itertools.count()

    def __init__(self, hooks: dict[int, Any]) -> None:
        self.hooks, self.id = hooks, next(Handle._ids)

    def remove(self) -> None:
        """Take the hook away; harmless twice."""
        self.hooks.pop(self.id, None)

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


@dataclass(frozen=True)
class PostAccumulate:
    """In the hooks of a leaf: one that is called with the leaf after its `.grad` has grown."""

    hook: Callable[[Tensor], None]


def register_hook(t: Tensor, hook: Callable[[Tensor], Tensor | None]) -> Handle:
    """See `Tensor.register_hook`."""
    if not t.requires_grad:
        raise AutogradError("a hook needs a tensor that requires grad")
    fn = t.grad_fn
    if fn is None:
        return _add_to_leaf(t, hook)
    if (r := recording.active()) is not None and fn.seq < r.tape_start:
        r.refuse("registers a hook on a tensor made outside")
    if fn.hooks is None:
        fn.hooks = {}
    hooks = fn.hooks.setdefault(t._index, {})
    handle = Handle(hooks)
    hooks[handle.id] = hook
    return handle


def register_post_accumulate_grad_hook(t: Tensor, hook: Callable[[Tensor], None]) -> Handle:
    """See `Tensor.register_post_accumulate_grad_hook`."""
    if not t.requires_grad:
        raise AutogradError("a hook needs a tensor that requires grad")
    if t.grad_fn is not None:
        raise AutogradError("post accumulate grad hooks are for leaf tensors: only they accumulate a gradient")
    return _add_to_leaf(t, PostAccumulate(hook))


def _add_to_leaf(t: Tensor, hook: Any) -> Handle:
    if (r := recording.active()) is not None:
        r.write_slot(t, "hooks", None)
    if t._hooks is None:
        t._hooks = {}
    handle = Handle(t._hooks)
    t._hooks[handle.id] = hook
    return handle


def retain_grad(t: Tensor) -> None:
    """Ask the engine to leave the gradient of non-leaf `t` in `t.grad`."""
    fn = t.grad_fn
    assert fn is not None
    if fn.retained is None:
        fn.retained = {}
    fn.retained[t._index] = t


def call_hook(hook: Callable[..., Any], x: Any) -> Any:
    """Run a hook: recorded like any other user code where a recording is open."""
    r = recording.active()
    return hook(x) if r is None else r.run_hook(hook, (x,))


def _run_hooks(hooks: dict[int, Any] | None, g: Tensor) -> Tensor:
    for hook in list(hooks.values()) if hooks else ():
        if type(hook) is not PostAccumulate:
            out = call_hook(hook, g)
            g = g if out is None else out
    return g


def _leaf_hooks(leaf: Tensor) -> dict[int, Any] | None:
    r = recording.active()
    return leaf._hooks if r is None else r.read_slot(leaf, "hooks", leaf._hooks)


def new_place(x: Tensor) -> Tensor:
    """The value of `x` at a new place on the tape, behind that of `x` where it has one."""
    from tracejit.tensor.tensor import apply

    if edge_of(x) is None:
        return x.detach().requires_grad_()
    return apply(Op.registry["reshape"](x._array.shape), (x,))  # type: ignore[call-arg]


def apart(t: Tensor, leaves: Sequence[Tensor]) -> Tensor:
    """`t` without gradient history if that leads to `leaves` only, else as it is."""
    own = {id(x) for x in leaves if x._grad_fn is None}
    if (edge := edge_of(t)) is None:
        return t
    ends = [edge] if not isinstance(edge, tuple) else [e for n in reachable([edge]) for e in n.edges]
    others = any(e is not None and not isinstance(e, tuple) and id(e) not in own for e in ends)
    return t if others else t.detach()


# -- the engine


def _seed(t: Tensor, g: Tensor | None) -> Tensor:
    from tracejit.tensor.tensor import apply

    if g is not None:
        if g._array.shape != t._array.shape:
            raise AutogradError(f"gradient of {g.type} does not fit an output of {t.type}")
        return g
    if t._array.size != 1:
        raise AutogradError(
            f"gradient must be given for an output of {t.type}: only outputs of one element have a default"
        )
    return apply(Op.registry["const"](1.0, TensorType(t.dtype, t._array.shape)), ())  # type: ignore[call-arg]


def reachable(roots: Sequence[Any]) -> list[GradNode]:
    """Tape entries behind `roots`, newest first: a topological order, since entries point at older ones only."""
    seen: set[int] = set()
    stack = [e[0] for e in roots if isinstance(e, tuple)]
    found: list[GradNode] = []
    while stack:
        n = stack.pop()
        if id(n) in seen:
            continue
        seen.add(id(n))
        found.append(n)
        stack.extend(e[0] for e in n.edges if isinstance(e, tuple))
    found.sort(key=lambda n: n.seq, reverse=True)
    return found


def _leading(nodes: Sequence[GradNode], wanted: set[Any]) -> set[GradNode]:
    """Of `nodes` (newest first) those through which a wanted edge or leaf is reached."""
    leading: set[GradNode] = set()
    for n in reversed(nodes):
        if n.leads_anywhere:
            leading.add(n)
        for e in n.edges:
            if e is not None and (e in wanted or (isinstance(e, tuple) and e[0] in leading)):
                leading.add(n)
                break
    return leading


def flow(
    edges: Sequence[Any],
    seeds: Sequence[Tensor],
    *,
    create_graph: bool,
    retain: bool,
    capture: Sequence[Any] | None = None,
    stop: Callable[[GradNode], bool] | None = None,
) -> tuple[dict[Any, Tensor], dict[Any, Tensor]]:
    """Walk the tape backwards from `edges`.

    Returns (gradient of each leaf reached, gradient of each captured or stopped edge). Keys are leaf tensors and
    (entry, result) edges. `capture` lists the edges or leaves asked for: only what leads there is walked. Entries where
    `stop` holds are not entered, and no hooks run.
    """
    if not any(e is not None for e in edges):
        raise AutogradError("no output requires grad: there is nothing to differentiate")
    pending: dict[Any, Tensor] = {}
    leaves: dict[Any, Tensor] = {}
    caught: dict[Any, Tensor] = {}

    r = recording.active()
    plain = r is None and not create_graph and not modes.here.anomaly
    sums: set[Any] = set()  # edges whose gradient is a sum in memory of its own

    def send(edge: Any, g: Tensor) -> None:
        box = pending if isinstance(edge, tuple) else leaves
        if (have := box.get(edge)) is None:
            box[edge] = g
        elif edge in sums and have._array.dtype is g._array.dtype:
            np.add(have._array, g._array, out=have._array)
        else:
            box[edge] = have + g
            if plain:
                sums.add(edge)

    def send_part(edge: Any, node: OpNode, g: Tensor) -> None:
        """`g`, the gradient of a slice, without filling it up with zeros."""
        box = pending if isinstance(edge, tuple) else leaves
        x, op = node.inputs[0]._array, node.op  # type: ignore[index]
        have = box.get(edge)
        if have is None or edge not in sums or have._array.dtype is not g._array.dtype:
            box[edge] = _sum_for(x, have, g)
            sums.add(edge)
        part = box[edge]._array[tuple(map(slice, op.starts, op.limits, op.strides))]  # type: ignore[attr-defined]
        if have is None:
            np.copyto(part, g._array)
        else:
            np.add(part, g._array, out=part)

    with grad_mode(create_graph):
        for e, g in zip(edges, seeds, strict=True):
            if e is not None:
                send(e, g)
        nodes = reachable(edges)
        asked: set[Any] = {e for e in capture or () if e is not None}
        leading = None if capture is None else _leading(nodes, asked)
        for node in nodes:
            if r is not None and stop is None and node.seq < r.tape_start:
                r.refuse("differentiates through operations made outside the compiled function")
            gs = [pending.pop((node, i), None) for i in range(node.width)]
            if all(g is None for g in gs):
                continue
            if leading is not None and node not in leading and not any((node, i) in asked for i in range(node.width)):
                continue
            for i, g in enumerate(gs):
                if g is None:
                    continue
                if stop is not None:
                    if stop(node):
                        caught[node, i] = g
                    continue
                if node.hooks and i in node.hooks:
                    gs[i] = g = _run_hooks(node.hooks[i], g)
                if node.retained and i in node.retained:
                    node.retained[i].grad = g
                if (node, i) in asked:
                    caught[node, i] = g
            if (stop is not None and stop(node)) or (leading is not None and node not in leading):
                continue
            if plain and type(node) is OpNode and node.op.name == "slice" and node.inputs is not None:
                if node.edges[0] is not None and gs[0] is not None:
                    send_part(node.edges[0], node, gs[0])
                if not retain:
                    node.release()
                continue
            back = node.backward(gs)
            if modes.here.anomaly:
                if r is not None:
                    r.refuse("looks for NaN in gradients")
                _find_nan(node, back)
            for edge, gi in zip(node.edges, back, strict=True):
                if edge is not None and gi is not None:
                    send(edge, gi)
            if not retain:
                node.release()
        if stop is None:
            for leaf, g in list(leaves.items()):
                if (leading is None or leaf in asked) and (hooks := _leaf_hooks(leaf)):
                    leaves[leaf] = _run_hooks(hooks, g)
    return leaves, caught


def _sum_for(x: Array, have: Tensor | None, g: Tensor) -> Tensor:
    """Memory of its own for the gradient of x: what there is of it, or zeros."""
    from tracejit.tensor.tensor import wrap

    dtype = g._array.dtype if have is None else np.result_type(have._array, g._array)
    total = buffer.empty(x.shape, dtype)
    total[...] = 0 if have is None else have._array
    return wrap(total)


def _find_nan(node: GradNode, gradients: Sequence[Tensor | None]) -> None:
    for k, g in enumerate(gradients):
        if g is not None and (g._array != g._array).any():
            raise AutogradError(
                f"the gradient of {node.name} for its input {k} is nan; its forward ran at "
                f"{node.where or 'an unknown line'}"
            )


def backward(
    tensors: Sequence[Tensor],
    grad_tensors: Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Sequence[Tensor] | None = None,
) -> None:
    """Accumulate gradients of `tensors` into `.grad` of the leaves (or of `inputs` only).

    Raises AutogradError where nothing requires grad, InPlaceError where a needed value was overwritten. O(tape).
    """
    tensors = list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]  # type: ignore[list-item]
    given = grad_tensors or [None] * len(tensors)
    seeds = [_seed(t, g) for t, g in zip(tensors, given, strict=True)]
    retain = create_graph if retain_graph is None else retain_graph
    wanted = [edge_of(t) for t in inputs] if inputs is not None else None
    edges = [edge_of(t) for t in tensors]
    leaves, caught = flow(edges, seeds, create_graph=create_graph, retain=retain, capture=wanted)
    if inputs is not None:
        for t, e in zip(inputs, wanted or (), strict=True):
            g = caught.get(e) if isinstance(e, tuple) else leaves.get(e)
            if g is not None:
                _accumulate(t, g, create_graph, seeds)
        return
    given_away: list[Tensor] = list(seeds)
    for leaf, g in leaves.items():
        _accumulate(leaf, g, create_graph, given_away)


def _accumulate(leaf: Tensor, g: Tensor, create_graph: bool, taken: list[Tensor]) -> None:
    """leaf.grad += g, in place as PyTorch does; a gradient nobody else holds is kept without copying."""
    from tracejit.tensor.tensor import assign

    have = leaf.grad
    with grad_mode(create_graph):
        if have is not None:
            if create_graph:
                leaf.grad = have + g
            else:
                assign(have, have + g)
            _accumulated(leaf)
            return
        owned = g._parent is None and buffer.owns(g._array) and g._array.flags.c_contiguous
        if not owned or any(g is t for t in taken) or (g._grad_fn is not None and not create_graph):
            g = g.clone()
        taken.append(g)
        leaf.grad = g
        _accumulated(leaf)


def _accumulated(leaf: Tensor) -> None:
    for hook in list((_leaf_hooks(leaf) or {}).values()):
        if type(hook) is PostAccumulate:
            call_hook(hook.hook, leaf)


def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """d outputs / d inputs as new tensors; `.grad` is left alone.

    Raises AutogradError for an input that plays no part, unless `allow_unused` (then its entry is None).
    """
    from tracejit.tensor.tensor import Tensor, apply, needs_grad

    outs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    ins = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    given = (
        [None] * len(outs)
        if grad_outputs is None
        else ([grad_outputs] if isinstance(grad_outputs, Tensor) else list(grad_outputs))
    )
    for i, t in enumerate(ins):
        if not needs_grad(t):
            raise AutogradError(f"input {i} ({t.type}) does not require grad")
    wanted = [edge_of(t) for t in ins]
    seeds = [_seed(t, g) for t, g in zip(outs, given, strict=True)]
    retain = create_graph if retain_graph is None else retain_graph
    edges = [edge_of(t) for t in outs]
    leaves, caught = flow(edges, seeds, create_graph=create_graph, retain=retain, capture=wanted)
    found: list[Tensor | None] = []
    for i, e in enumerate(wanted):
        g = caught.get(e) if isinstance(e, tuple) else leaves.get(e)
        if g is None and not allow_unused and not materialize_grads:
            raise AutogradError(f"input {i} ({ins[i].type}) plays no part in the outputs; pass allow_unused=True")
        if g is None and materialize_grads:
            g = apply(Op.registry["const"](0.0, ins[i].type), ())  # type: ignore[call-arg]
        found.append(g)
    return tuple(found)
