"""Products with Jacobians and Hessians, under the names of torch.autograd.functional.

Forward mode is reverse mode twice: v -> J^T v is linear, and the gradient of <J^T v, t> by v is J t.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tracejit.errors import AutogradError
from tracejit.tensor.autograd import enable_grad, grad, new_place
from tracejit.tensor.creation import zeros_like
from tracejit.tensor.methods import FUNCTIONS
from tracejit.tensor.tensor import Tensor

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]

Fn = Callable[..., Any]


def _tuple(x: Any) -> tuple[Any, ...]:
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)


def _like(single: bool, xs: Sequence[Any]) -> Any:
    return xs[0] if single else tuple(xs)


def _watched(inputs: Sequence[Tensor], create_graph: bool) -> tuple[Tensor, ...]:
    """The inputs as new places on the tape: parts of the caller's graph where that is wanted."""
    return tuple([new_place(x if create_graph else x.detach()) for x in inputs])


def _outputs(func: Fn, inputs: Sequence[Tensor]) -> tuple[bool, tuple[Tensor, ...]]:
    out = func(*inputs)
    single = not isinstance(out, (tuple, list))
    outs = _tuple(out)
    for o in outs:
        if not isinstance(o, Tensor):
            raise TypeError(f"the function must return tensors, got {type(o).__name__}")
    return single, outs


def _gradients(
    outs: Sequence[Tensor], ins: Sequence[Tensor], vs: Sequence[Any], create_graph: bool, strict: bool, retain: bool
) -> list[Tensor]:
    """sum of v . d out / d in, zeros where nothing flows (an error where `strict`)."""
    at = [i for i, o in enumerate(outs) if o.requires_grad]
    found: Sequence[Any] = [None] * len(ins)
    if at:
        chosen = [outs[i] for i in at]
        found = grad(
            chosen, ins, [vs[i] for i in at], create_graph=create_graph, retain_graph=retain, allow_unused=True
        )
    if strict:
        for i, g in enumerate(found):
            if g is None:
                raise AutogradError(f"input {i} plays no part in the outputs; strict=False gives zeros for it")
    return [zeros_like(x) if g is None else g for g, x in zip(found, ins)]


def _settled(xs: Sequence[Tensor], create_graph: bool) -> list[Tensor]:
    return list(xs) if create_graph else [x.detach() for x in xs]


def _ones(outs: Sequence[Tensor], v: Any, what: str) -> tuple[Any, ...]:
    if v is not None:
        vs = _tuple(v)
        if len(vs) != len(outs) or any(tuple(a.shape) != tuple(b.shape) for a, b in zip(vs, outs)):
            raise AutogradError(f"v must be like the {what}: one tensor of the same shape for each")
        return vs
    if len(outs) != 1 or outs[0].numel() != 1:
        raise AutogradError(f"v may be left out only where the {what} is one tensor of one element")
    return (None,)


def vjp(func: Fn, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> tuple[Any, Any]:
    """(func(*inputs), v . J): the product of `v`, like the output, and the Jacobian of `func`."""
    with enable_grad():
        ins = _watched(_tuple(inputs), create_graph)
        single, outs = _outputs(func, ins)
        vs = _ones(outs, v, "output")
        found = _gradients(outs, ins, vs, create_graph, strict, create_graph)
    return (
        _like(single, _settled(outs, create_graph)),
        _like(not isinstance(inputs, (tuple, list)), _settled(found, create_graph)),
    )


def jvp(func: Fn, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> tuple[Any, Any]:
    """(func(*inputs), J . v): the product of the Jacobian of `func` and `v`, like the inputs."""
    with enable_grad():
        ins = _watched(_tuple(inputs), create_graph)
        vs = _ones(ins, v, "input")
        if vs[0] is None:
            vs = (zeros_like(ins[0]) + 1,)
        single, outs = _outputs(func, ins)
        found = pushed(outs, ins, vs, create_graph, strict)
    return _like(single, _settled(outs, create_graph)), _like(single, _settled(found, create_graph))


def pushed(
    outs: Sequence[Tensor], ins: Sequence[Tensor], vs: Sequence[Tensor], create_graph: bool, strict: bool = False
) -> list[Tensor]:
    """J . v for outputs on the tape of `ins`."""
    probes = [zeros_like(o).requires_grad_() for o in outs]
    back = _gradients(outs, ins, probes, True, strict, True)
    return _gradients(back, probes, vs, create_graph, False, create_graph)


def jacobian(
    func: Fn,
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:
    """d func / d inputs: for an output of shape [a] and an input of shape [b], a tensor of shape [a, b].

    Tuples of outputs and inputs give tuples of tuples. One backward pass for each element of the outputs; `vectorize`
    and `strategy` make no difference.
    """
    with enable_grad():
        ins = _watched(_tuple(inputs), create_graph)
        single, outs = _outputs(func, ins)
        rows = [_rows(o, ins, create_graph, strict) for o in outs]
    one = not isinstance(inputs, (tuple, list))
    return _like(single, [_like(one, _settled(row, create_graph)) for row in rows])


def _rows(out: Tensor, ins: Sequence[Tensor], create_graph: bool, strict: bool) -> list[Tensor]:
    flat, n = out.reshape(-1), out.numel()
    found = [_gradients([flat[i]], ins, [None], create_graph, strict, True) for i in range(n)]
    shape = tuple(out.shape)
    if not n:
        return [zeros_like(x).expand(*shape, *x.shape) for x in ins]
    stack = FUNCTIONS["stack"]
    return [stack([g[k] for g in found]).reshape(*shape, *x.shape) for k, x in enumerate(ins)]


def _scalar(func: Fn) -> Fn:
    def checked(*args: Any) -> Any:
        out = func(*args)
        if not isinstance(out, Tensor) or out.numel() != 1:
            raise AutogradError("the function must return one tensor of one element")
        return out.reshape(())

    return checked


def hessian(
    func: Fn,
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:
    """The second derivatives of a function that returns one element."""
    single = not isinstance(inputs, (tuple, list))
    scalar = _scalar(func)

    def first(*args: Any) -> Any:
        return jacobian(scalar, args[0] if single else args, create_graph=True, strict=strict)

    return jacobian(first, inputs, create_graph=create_graph, strict=strict)


def vhp(func: Fn, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> tuple[Any, Any]:
    """(func(*inputs), v . H): the product of `v`, like the inputs, and the Hessian of `func`."""
    with enable_grad():
        ins = _watched(_tuple(inputs), create_graph)
        out = _scalar(func)(*ins)
        vs = _ones(ins, v, "input")
        first = _gradients([out], ins, [None], True, strict, True)
        found = _gradients(first, ins, vs, create_graph, strict, create_graph)
    one = not isinstance(inputs, (tuple, list))
    return _settled([out], create_graph)[0], _like(one, _settled(found, create_graph))


def hvp(func: Fn, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> tuple[Any, Any]:
    """(func(*inputs), H . v). The Hessian is symmetric: this is `vhp`."""
    return vhp(func, inputs, v, create_graph, strict)
