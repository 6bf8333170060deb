"""The gradient tape and the engine that walks it backwards.

A tape entry is an op, handles on its inputs as they were, and the vjp rule of the op applied to Tensors. So the same
rule serves eager mode, recordings (the ops of the backward pass are recorded like all others) and gradients of
gradients.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Any

import numpy as np

from tracejit import config
from tracejit.errors import AutogradError, InPlaceError
from tracejit.ir.dtype import from_numpy
from tracejit.ir.graph import Graph, evaluate, param
from tracejit.ir.node import Node, expand_to
from tracejit.ir.op import Op
from tracejit.ir.types import TensorType
from tracejit.ops.pointwise import Pointwise, Select
from tracejit.trace import recorder as recording

if TYPE_CHECKING:
    from tracejit.tensor.tensor import Tensor

__all__ = ["Function", "backward", "enable_grad", "grad", "inference_mode", "is_grad_enabled", "no_grad",
           "set_grad_enabled"]  # fmt: skip

modes = config.modes


class Stale:
    """Stands in for an array that was overwritten after the tape saved it; touching it raises InPlaceError."""

    __slots__ = ("_message", "dtype", "shape")

    def __init__(self, array: Any, saved_by: str, saved_at: str | None, written_at: str | None) -> None:
        self.dtype, self.shape = array.dtype, array.shape
        self._message = (
            f"a value needed for the gradient of {saved_by} (saved at {saved_at or 'an unknown line'}) was overwritten "
            f"in place at {written_at or 'an unknown line'}; write out of place, or clone() before writing"
        )

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

    __slots__ = ("__weakref__", "edges", "hooks", "retained", "seq", "where", "width")
    _seq = itertools.count()
    name = "GradNode"

    def __init__(self, inputs: Sequence[Tensor], width: int) -> None:
        self.seq = next(GradNode._seq)
        self.width = width  # number of results
        self.edges = tuple(edge_of(t) for t in inputs)
        self.hooks: dict[int, dict[int, Callable[[Tensor], Tensor | None]]] | None = None  # result -> hooks
        self.retained: dict[int, Tensor] | None = None
        self.where = user_line()

    def backward(self, gs: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """Gradients of the inputs from those of the results."""
        raise NotImplementedError

    def release(self) -> None:
        """Forget what was saved; a second backward pass raises."""

    def __repr__(self) -> str:
        return f"<{self.name}>"


def edge_of(t: Tensor) -> Any:
    """Where the gradient of `t` flows."""
    from tracejit.tensor.tensor import current_grad_fn

    if (fn := current_grad_fn(t)) is not None:
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


def _same_edge(a: Any, b: Any) -> bool:
    return a is b or (isinstance(a, tuple) and isinstance(b, tuple) and a[0] is b[0] and a[1] == b[1])


class OpNode(GradNode):
    """The tape entry of a primitive op."""

    __slots__ = ("inputs", "op", "results", "versions")

    def __init__(self, op: Op, inputs: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        super().__init__(inputs, len(results))
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
        if self.inputs is None:
            raise AutogradError(
                f"the tape of {self.op.name} ({self.where}) was freed by an earlier backward(); "
                "pass retain_graph=True to it"
            )
        from tracejit.tensor.tensor import apply_node

        ins = [self._saved(i) for i in range(len(self.inputs))]
        outs = [self._result(i) for i in range(len(self.results))]
        types = tuple((t._array.dtype, t._array.shape) for t in (*outs, *ins))
        rule, where = vjp_rule(
            self.op, types, tuple(g is not None for g in gs), tuple(e is not None for e in self.edges)
        )
        found = evaluate(rule, [g for g in gs if g is not None] + outs + ins, apply_node)
        return [None if k is None else found[k] for k in where]

    def release(self) -> None:
        self.inputs, self.results = None, []

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


def user_line() -> str | None:
    """file:line of the innermost frame outside the library."""
    f = sys._getframe(1)
    while f is not None:
        name = f.f_code.co_filename
        if not name.startswith(_HERE):
            return f"{name}:{f.f_lineno}"
        f = f.f_back
    return None


def call_user(fn: Callable[..., Any], *args: Any) -> Any:
    """Call user code from the library: recorded like any other user code where a recording is open."""
    r = recording.active()
    return fn(*args) if r is None else r.call(fn, args)


# -- modes


def is_grad_enabled() -> bool:
    """Whether ops are taped in this thread."""
    r = recording.active()
    return modes.grad if r is None else r.read_mode("grad", modes.grad)


class set_grad_enabled:
    """Switch taping on or off: at once, and for the block where used in a `with`. Also a decorator."""

    def __init__(self, mode: bool) -> None:
        self.before = modes.grad
        self.mode = bool(mode)
        self._switch(self.mode)

    @staticmethod
    def _switch(mode: bool) -> None:
        if (r := recording.active()) is not None:
            r.read_mode("grad", modes.grad)
        modes.grad = mode

    def __enter__(self) -> None:
        self._switch(self.mode)

    def __exit__(self, *exc: object) -> None:
        self._switch(self.before)

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        self._switch(self.before)
        mode = self.mode

        @wraps(fn)
        def with_mode(*args: Any, **kwargs: Any) -> Any:
            with set_grad_enabled(mode):
                return fn(*args, **kwargs)

        return with_mode


class _GradBlock:
    """A `with` block or decorator that sets the grad mode inside only."""

    mode = False

    def __init__(self, fn: Any = None) -> None:
        self.before: list[bool] = []

    def __new__(cls, fn: Any = None) -> Any:
        return cls()(fn) if callable(fn) else object.__new__(cls)

    def __enter__(self) -> None:
        self.before.append(modes.grad)
        set_grad_enabled._switch(self.mode)

    def __exit__(self, *exc: object) -> None:
        set_grad_enabled._switch(self.before.pop())

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        block = type(self)

        @wraps(fn)
        def with_mode(*args: Any, **kwargs: Any) -> Any:
            with block():
                return fn(*args, **kwargs)

        return with_mode


class no_grad(_GradBlock):
    """Ops inside are not taped. Use as `with no_grad():` or `@no_grad()`."""


class inference_mode(_GradBlock):
    """As `no_grad`."""


class enable_grad(_GradBlock):
    """Ops inside are taped."""

    mode = True


# -- hooks


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


def register_hook(t: Tensor, hook: Callable[[Tensor], Tensor | None]) -> Handle:
    """See `Tensor.register_hook`."""
    if not t.requires_grad:
        raise AutogradError("a hook needs a tensor that requires grad")
    fn = t.grad_fn
    if fn is None:
        if (r := recording.active()) is not None:
            r.write_slot(t, "hooks", None)
        if t._hooks is None:
            t._hooks = {}
        hooks = t._hooks
    else:
        if fn.hooks is None:
            fn.hooks = {}
        hooks = fn.hooks.setdefault(t._index, {})
    handle = Handle(hooks)
    hooks[handle.id] = hook
    return handle


def retain_grad(t: Tensor) -> None:
    """Ask the engine to leave the gradient of non-leaf `t` in `t.grad`."""
    fn = t.grad_fn
    assert fn is not None
    if fn.retained is None:
        fn.retained = {}
    fn.retained[t._index] = t


def _run_hooks(hooks: dict[int, Any] | None, g: Tensor) -> Tensor:
    for hook in list(hooks.values()) if hooks else ():
        out = call_user(hook, g)
        g = g if out is None else out
    return g


# -- the engine


@contextmanager
def _grad_mode(mode: bool) -> Generator[None]:
    before = modes.grad
    modes.grad = mode
    try:
        yield
    finally:
        modes.grad = before


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


def _reachable(roots: Sequence[Any]) -> list[GradNode]:
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


def flow(
    roots: Sequence[Tensor],
    seeds: Sequence[Tensor],
    *,
    create_graph: bool,
    retain: bool,
    capture: Sequence[Any] | None = None,
    stop: Callable[[GradNode], bool] | None = None,
) -> tuple[dict[Any, Tensor], dict[Any, Tensor]]:
    """Walk the tape backwards from `roots`.

    Returns (gradient of each leaf reached, gradient of each captured or stopped edge). Keys are leaf tensors and
    (entry, result) edges. `capture` lists the edges or leaves asked for; entries where `stop` holds are not entered.
    """
    edges = [edge_of(t) for t in roots]
    if not any(e is not None for e in edges):
        raise AutogradError("no output requires grad: there is nothing to differentiate")
    pending: dict[Any, Tensor] = {}
    leaves: dict[Any, Tensor] = {}
    caught: dict[Any, Tensor] = {}
    wanted = {e for e in capture if isinstance(e, tuple)} if capture is not None else set()

    def send(edge: Any, g: Tensor) -> None:
        box = pending if isinstance(edge, tuple) else leaves
        box[edge] = box[edge] + g if edge in box else g

    with _grad_mode(create_graph):
        for e, g in zip(edges, seeds, strict=True):
            if e is not None:
                send(e, g)
        r = recording.active()
        for node in _reachable(edges):
            if r is not None and stop is None and node.seq < r.tape_start:
                r.refuse("differentiates through operations made outside the compiled function")
            gs = [pending.pop((node, i), None) for i in range(node.width)]
            if all(g is None for g in gs):
                continue
            for i, g in enumerate(gs):
                if g is None:
                    continue
                if node.hooks and i in node.hooks:
                    gs[i] = g = _run_hooks(node.hooks[i], g)
                if node.retained and i in node.retained:
                    node.retained[i].grad = g
                if (node, i) in wanted or (stop is not None and stop(node)):
                    caught[node, i] = g
            if stop is not None and stop(node):
                continue
            back = node.backward(gs)
            for edge, gi in zip(node.edges, back, strict=True):
                if edge is not None and gi is not None:
                    send(edge, gi)
            if not retain:
                node.release()
        for leaf, g in list(leaves.items()):
            hooks = leaf._hooks
            if r is not None:
                hooks = r.read_slot(leaf, "hooks", hooks)
            if hooks:
                leaves[leaf] = _run_hooks(hooks, g)
    return leaves, caught


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
    leaves, caught = flow(tensors, seeds, create_graph=create_graph, retain=retain, capture=wanted)
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
    with _grad_mode(create_graph):
        if have is not None:
            if create_graph:
                leaf.grad = have + g
            else:
                assign(have, have + g)
            return
        owned = g._parent is None and g._array.base is None and g._array.flags.c_contiguous
        if not owned or any(g is t for t in taken) or (g._grad_fn is not None and not create_graph):
            g = g.clone()
        taken.append(g)
        leaf.grad = g


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
    leaves, caught = flow(outs, seeds, create_graph=create_graph, retain=retain, capture=wanted)
    found: list[Tensor | None] = []
    for i, e in enumerate(wanted):
        g = caught.get(e) if isinstance(e, tuple) else leaves.get(e)
        if g is None and not allow_unused and not materialize_grads:
            raise AutogradError(f"input {i} ({ins[i].type}) plays no part in the outputs; pass allow_unused=True")
        if g is None and materialize_grads:
            g = apply(Op.registry["const"](0.0, ins[i].type), ())  # type: ignore[call-arg]
        found.append(g)
    return tuple(found)


# -- user-defined rules


class Context:
    """What `forward` leaves for `backward`."""

    def __init__(self) -> None:
        self._saved: tuple[Any, ...] = ()
        self.needs_input_grad: tuple[bool, ...] = ()
        self.materialize = True

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep tensors for `saved_tensors`."""
        self._saved = tensors

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What `save_for_backward` kept."""
        return self._saved

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """Results that carry no gradient."""
        self._fixed = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Whether missing gradients arrive as zeros (default) or None."""
        self.materialize = value


class FunctionNode(GradNode):
    """The tape entry of a user-defined rule."""

    __slots__ = ("context", "rule", "types")

    def __init__(self, rule: Any, context: Context, inputs: Sequence[Tensor], types: Sequence[TensorType]) -> None:
        super().__init__(inputs, len(types))
        self.rule, self.context, self.types = rule, context, types

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.rule.__name__

    def backward(self, gs: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        from tracejit.tensor.tensor import apply

        if self.context.materialize:
            gs = [
                apply(Op.registry["const"](0.0, t), ()) if g is None else g  # type: ignore[call-arg]
                for g, t in zip(gs, self.types, strict=True)
            ]
        out = call_user(self.rule.backward, self.context, *gs)
        out = out if isinstance(out, tuple) else (out,)
        picked = [g for g, is_tensor in zip(out, self.context._tensor_inputs, strict=False) if is_tensor]  # type: ignore[attr-defined]
        if len(picked) != len(self.edges):
            raise AutogradError(f"{self.rule.__name__}.backward returned {len(out)} gradients for its inputs")
        return picked


class Function:
    """A differentiable function with a gradient rule of the user's own.

    Subclass with static methods `forward(ctx, *args)` and `backward(ctx, *grads)`; call with `apply(*args)`.
    """

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        """The value."""
        raise NotImplementedError

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The gradient of each argument of `forward`, None where there is none."""
        raise NotImplementedError

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Run `forward` and tape `backward` as its rule."""
        from tracejit.tensor.tensor import Tensor, needs_grad, shadow

        if (r := recording.active()) is not None:
            r.custom_rule(cls)
        ctx = Context()
        tensors = [a for a in args if isinstance(a, Tensor)]
        ctx._tensor_inputs = [isinstance(a, Tensor) for a in args]  # type: ignore[attr-defined]
        ctx.needs_input_grad = tuple(isinstance(a, Tensor) and needs_grad(a) for a in args)
        taped = modes.grad and any(ctx.needs_input_grad)
        with _grad_mode(False):
            out = call_user(cls.forward, ctx, *args)
        if not taped:
            return out
        outs = out if isinstance(out, tuple) else (out,)
        results = [shadow(o) if isinstance(o, Tensor) and any(o is a for a in tensors) else o for o in outs]
        node = FunctionNode(cls, ctx, tensors, [o.type for o in results])
        for i, o in enumerate(results):
            if o.dtype.is_floating_point:
                o._grad_fn, o._index, o._leaf_requires_grad = node, i, False
        return tuple(results) if isinstance(out, tuple) else results[0]
