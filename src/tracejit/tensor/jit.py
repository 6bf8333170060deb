"""`tracejit.compile`: the compile driver of `trace/` bound to Tensors."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import MemberDescriptorType
from typing import Any

from tracejit import config
from tracejit.importing import bring
from tracejit.ir import dtype as dt
from tracejit.ir.op import Op
from tracejit.runtime.forks import building
from tracejit.tensor.autograd import no_grad
from tracejit.tensor.domain import (
    attach_failed,
    attach_rule,
    attach_segment,
    fill_rule,
    hook_on,
    kept_behind,
    record_backward,
    stand_at,
)
from tracejit.tensor.random import default_generator
from tracejit.tensor.tape import edge_of, tape_position
from tracejit.tensor.tensor import Device, Tensor, Version, apply, current_grad_fn, needs_grad, wrap
from tracejit.trace.domain import Anatomy, Array, Domain, Tape
from tracejit.trace.objects import bits

__all__ = ["DOMAIN", "assume_constant", "callback", "compile", "disable", "eager", "explain", "pure"]


def _facts(t: Tensor) -> tuple[Any, ...]:
    a = t._array
    return (
        type(t),
        a.dtype,
        a.shape,
        a.strides,
        needs_grad(t),
        t._leaf_requires_grad,
        t._parent is None,
        a.flags.writeable,
    )


def _deciding(t: Tensor) -> tuple[str, ...] | None:
    """The slots that decide `_facts`. Views, and what is on the tape, are asked: versions and the tape decide too."""
    if t._parent is not None:
        return None
    if t._leaf_requires_grad:
        return "_leaf_requires_grad", "_parent"
    return ("_leaf_requires_grad", "_parent", "_grad_fn") if t._grad_fn is None else None


def _wrap(array: Array, requires_grad: bool) -> Tensor:
    out = wrap(array)
    out._leaf_requires_grad = requires_grad
    return out


def _view(parent: Tensor, op: Op, taped: bool) -> Tensor:
    if taped:
        return apply(op, (parent,))
    with no_grad():
        return apply(op, (parent,))


def _written(t: Tensor, count: int, where: str | None) -> None:
    t._version.n = t._seen = count
    t._version.where = where


def _set_grad(t: Tensor, g: Tensor | None) -> None:
    t._grad = g


_MODES = ("grad", "anomaly", "autocast")


def _modes() -> tuple[Any, ...]:
    here = config.modes.here
    return here.grad, here.anomaly, here.autocast


def _recompile(fn: Any, hot: int | None, backend: str | None, verify: object, background: bool) -> Any:
    """What a pickled compiled function becomes."""
    return compile(fn, hot=hot, backend=backend, verify=verify, background=background)


DOMAIN = Domain(
    tensor=Tensor,
    array=lambda t: t._array,
    facts=_facts,
    needs_grad=needs_grad,
    has_tape=lambda t: current_grad_fn(t) is not None,
    edge=edge_of,
    wrap=_wrap,
    view=_view,
    count=lambda t: t._version.n,
    written=_written,
    parent=lambda t: None if t._parent is None else (t._parent, t._view),
    get_grad=lambda t: t._grad,
    set_grad=_set_grad,
    get_hooks=lambda t: t._hooks,
    constants=(dt.DType, Device),
    library_tensors=lambda: (default_generator.state,),
    modes=_modes,
    tape=Tape(
        tape_position,
        kept_behind,
        record_backward,
        attach_segment,
        attach_rule,
        attach_failed,
        fill_rule,
        hook_on,
        stand_at,
    ),
    compile=_recompile,
    anatomy=Anatomy(
        slots={
            name: slot for c in Tensor.__mro__ for name, slot in vars(c).items() if type(slot) is MemberDescriptorType
        },
        array="_array",
        grad="_grad",
        hooks="_hooks",
        leaf="_leaf_requires_grad",
        parent="_parent",
        tape="_grad_fn",
        seen="_seen",
        version="_version",
        number=Version.__dict__["n"],
        where=Version.__dict__["where"],
        modes=_MODES,
        facts=_deciding,
    ),
)


def _driver() -> Any:
    """The compile driver. Loaded at its first use: it brings passes, codegen and `bytecode`, twice what the rest
    costs."""
    with building():
        return bring("tracejit.trace.compile")


def compile(
    fn: Callable[..., Any] | None = None,
    *,
    hot: int | None = None,
    backend: str | None = None,
    verify: object = None,
    background: bool = False,
) -> Any:
    """`fn` (a function, method or Module) behaving as it does, compiled when it is hot. Also a decorator, with or
    without options.

    `hot` is the number of the call that is recorded first (default `config.hot`); `backend` overrides `config.backend`.
    `verify` (1000, 1/1000 or True; default `config.verify`) holds every n-th compiled call against plain Python, whose
    result it returns; code that differs is dropped, and the difference logged and counted.
    With `background` no call waits for machine code: a thread makes it, and calls are plain Python until it is there.
    """
    if fn is None:
        return functools.partial(compile, hot=hot, backend=backend, verify=verify, background=background)
    return _driver().Compiled(DOMAIN, fn, hot=hot, backend=backend, verify=verify, background=background)


def explain(fn: Any, html: str | os.PathLike[str] | None = None) -> Any:
    """What was compiled of a compiled function and what was not, and why: a text, which has `html()`. `html` is a file
    for that page. TypeError for what is not compiled."""
    compiled = getattr(fn, "__func__", fn)
    if not isinstance(compiled, _driver().Compiled):
        raise TypeError(f"{fn!r} is not a compiled function: nothing to explain")
    return compiled.explain(html)


def eager() -> AbstractContextManager[None]:
    """Inside, compiled functions run as plain Python (in this thread)."""
    return _driver().eager()


def disable(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn`, kept out of recordings: a compiled function that calls it stays eager."""
    return _driver().disable(fn)


def pure(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn`, of which you say that its result depends on its arguments only and that it does nothing else. A compiled
    function does not look into it: it calls it again where its arguments are numbers that change, and keeps its result
    where they are the same. Arguments and results are numbers, text and containers of them, not tensors.

    Nobody checks: where it is not so, compiled results are wrong.
    """

    @functools.wraps(fn)
    def marked(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    marked.__dict__["_tracejit_mark"] = "pure"
    return marked


def assume_constant(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn`, of which you say that it gives the same whenever it is called with the same arguments. It is called once
    for each; the result is kept for ever, in plain Python too, and may be anything, a tensor or a table. Arguments are
    hashable.

    Nobody checks: what `fn` would have returned later, nobody sees.
    """
    results: dict[Any, Any] = {}

    @functools.wraps(fn)
    def marked(*args: Any, **kwargs: Any) -> Any:
        key = bits((args, tuple(kwargs.items())))
        if key not in results:
            results[key] = fn(*args, **kwargs)
        return results[key]

    marked.__dict__["_tracejit_mark"] = "assume_constant"
    return marked


def callback(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """fn(*args, **kwargs) as plain Python, in every call and at its place among the effects: logging, metrics, plots.
    Its result is dropped. In a compiled call it runs after all tensors were written, so a recording that writes one
    later than its callback stays eager.

    It may do what it likes but change what the compiled function reads: where that is seen, CallbackError is raised.
    """
    fn(*args, **kwargs)


callback.__dict__["_tracejit_mark"] = "callback"
