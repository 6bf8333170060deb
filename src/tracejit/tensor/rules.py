"""Differentiable functions with a gradient rule of the user's own: `Function`, its context, its tape entry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tracejit.errors import AutogradError, InPlaceError
from tracejit.ir.op import Op
from tracejit.ir.types import TensorType
from tracejit.tensor.gradmode import grad_mode, modes
from tracejit.tensor.tape import GradNode, edge_of, overwritten
from tracejit.trace import recorder as recording

if TYPE_CHECKING:
    from tracejit.tensor.tensor import Tensor

__all__ = ["Context", "Function", "FunctionNode"]


class Context:
    """What `forward` leaves for `backward`. Users may give it attributes of their own."""

    def __init__(self) -> None:
        self._saved: tuple[Any, ...] | None = ()
        self._check: Any = None  # raises where a saved tensor was overwritten
        self._fixed: tuple[Any, ...] = ()
        self._dirty: tuple[Any, ...] = ()
        self.needs_input_grad: tuple[bool, ...] = ()
        self.materialize = True

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep tensors for `saved_tensors`."""
        self._saved = tensors

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What `save_for_backward` kept. Raises InPlaceError where one was overwritten since, AutogradError where a
        backward pass freed them."""
        if self._saved is None:
            raise AutogradError(
                "the saved tensors of a custom rule were freed by an earlier backward(); pass retain_graph=True to it"
            )
        if self._check is not None:
            self._check()
        return self._saved

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """Results that carry no gradient."""
        self._fixed = tensors

    def mark_dirty(self, *tensors: Any) -> None:
        """Arguments that `forward` writes in place; it returns them."""
        self._dirty = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Whether missing gradients arrive as zeros (default) or None."""
        self.materialize = value


# Fields of a context that are the library's; all others are the user's.
OWN_FIELDS = frozenset(("_saved", "_check", "_fixed", "_dirty"))


class FunctionNode(GradNode):
    """The tape entry of a user-defined rule. `tensors[i]` says whether argument i of the rule was a tensor."""

    __slots__ = ("aliased", "context", "rule", "tensors", "types")

    def __init__(
        self,
        rule: Any,
        context: Context,
        edges: Sequence[Any],
        tensors: Sequence[bool],
        types: Sequence[TensorType],
        where: str | None = None,
    ) -> None:
        super().__init__(edges, len(types), where)
        self.aliased = frozenset()
        self.rule, self.context, self.tensors, self.types = rule, context, tuple(tensors), tuple(types)

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.rule.__name__

    def watch(self) -> None:
        """From now on a write to a saved tensor is an error."""
        saved = self.context._saved or ()
        versions = [None if not hasattr(t, "_version") else (t._version, t._version.n) for t in saved]
        name, where = self.name, self.where

        def check() -> None:
            for version in versions:
                if version is not None and version[0].n != version[1]:
                    raise InPlaceError(overwritten(name, where, version[0].where))

        self.context._check = check

    def backward(self, gs: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        from tracejit.tensor.tensor import apply

        while self.forgotten is not None:
            self.forgotten.restore()
        if self.context.materialize:
            gs = [
                apply(Op.registry["const"](0.0, t), ()) if g is None and t.dtype.is_floating_point else g  # type: ignore[call-arg]
                for g, t in zip(gs, self.types, strict=True)
            ]
        r = recording.active()
        args = (self.context, *gs)
        out = self.rule.backward(*args) if r is None else r.call(self.rule.backward, args)
        out = out if isinstance(out, tuple) else (out,)
        if len(out) != len(self.tensors) and (
            len(out) < len(self.tensors) or any(g is not None for g in out[len(self.tensors) :])
        ):
            raise AutogradError(
                f"{self.rule.__name__}.backward returned {len(out)} gradients for {len(self.tensors)} arguments"
            )
        return [g for g, is_tensor in zip(out, self.tensors) if is_tensor]

    def release(self) -> None:
        if self.context._saved:
            self.context._saved = None
        self.forgotten = None

    def has_saved(self) -> bool:
        return True

    def snapshot(self) -> Any:
        return self.context, self.forgotten

    def take(self, saved: Any) -> None:
        self.context, self.forgotten = saved

    def forget(self, region: Any) -> None:
        self.context, self.forgotten = Context(), region


def call_user(fn: Any, *args: Any) -> Any:
    """Run user code: recorded like any other where a recording is open."""
    r = recording.active()
    return fn(*args) if r is None else r.run_hook(fn, args)


class Function:
    """A differentiable function with a gradient rule of the user's own.

    Subclass with static methods `forward(ctx, *args)` and `backward(ctx, *grads)`; call with `apply(*args)`. Or leave
    `ctx` out of `forward` and define `setup_context(ctx, inputs, output)` beside it.
    """

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        """The value."""
        raise NotImplementedError

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep what `backward` needs; only called where a subclass defines it."""

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The gradient of each argument of `forward`, None where there is none."""
        raise NotImplementedError

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Run `forward` and tape `backward` as its rule."""
        from tracejit.tensor.tensor import Tensor, alias, needs_grad

        r = recording.active()
        ctx = Context()
        if r is not None:
            r.custom_rule(ctx)
        given = [a for a in args if isinstance(a, Tensor)]
        ctx.needs_input_grad = tuple(isinstance(a, Tensor) and needs_grad(a) for a in args)
        taped = modes.grad and any(ctx.needs_input_grad)
        edges = [edge_of(t) for t in given]
        with grad_mode(False):
            if cls.setup_context is Function.setup_context:
                out = call_user(cls.forward, ctx, *args)
            else:
                out = call_user(cls.forward, *args)
                call_user(cls.setup_context, ctx, args, out)
        if not taped:
            return out
        outs = out if isinstance(out, tuple) else (out,)
        results: list[Any] = []
        for o in outs:  # an argument comes back as another handle on it, since its place on the tape is another one
            aliased = isinstance(o, Tensor) and any(o is a for a in given) and not any(o is d for d in ctx._dirty)
            results.append(alias(o) if aliased else o)
        carrying = [
            isinstance(o, Tensor) and o.dtype.is_floating_point and not any(o is f for f in ctx._fixed) for o in results
        ]
        for o in ctx._dirty:
            if o._leaf_requires_grad:
                raise InPlaceError(f"{cls.__name__} writes in place to a leaf tensor that requires grad")
        types = [o.type if isinstance(o, Tensor) else TensorType(given[0].dtype, ()) for o in results]
        node = FunctionNode(cls, ctx, edges, [isinstance(a, Tensor) for a in args], types)
        node.watch()
        node.aliased = frozenset(i for i, (o, result) in enumerate(zip(outs, results)) if o is not result)
        for i, o in enumerate(results):
            if carrying[i]:
                o._grad_fn, o._index, o._leaf_requires_grad = node, i, False
        if r is not None:
            r.adopt_rule(node, results, carrying)
        return tuple(results) if isinstance(out, tuple) else results[0]
