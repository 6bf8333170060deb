"""Gradients held against finite differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracejit.errors import GradcheckError
from tracejit.tensor.autograd import enable_grad, grad, no_grad
from tracejit.tensor.creation import from_numpy
from tracejit.tensor.tensor import Tensor

__all__ = ["gradcheck", "gradgradcheck"]

Array = np.ndarray[Any, Any]


def gradcheck(
    func: Callable[..., Any],
    inputs: Any,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
) -> bool:
    """Whether the gradients of `func` at `inputs` (float64 is wanted) agree with finite differences.

    Raises GradcheckError naming the output, the input and the worst element where they do not, or returns False.
    """
    try:
        _check(func, _tuple(inputs), eps, atol, rtol, nondet_tol)
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def gradgradcheck(
    func: Callable[..., Any],
    inputs: Any,
    grad_outputs: Any = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
) -> bool:
    """`gradcheck` of the gradient of `func`, as a function of the inputs and of the outputs' gradients."""
    given = _tuple(inputs)
    outs = _differentiable(func, given)
    if grad_outputs is None:
        rng = np.random.default_rng(0)
        vs = tuple(from_numpy(rng.normal(size=tuple(o.shape)).astype(_array(o).dtype)) for o in outs)
        vs = tuple(v.requires_grad_() for v in vs)
    else:
        vs = _tuple(grad_outputs)

    def gradient(*args: Any) -> Any:
        ins, cotangents = args[: len(given)], args[len(given) :]
        with enable_grad():
            found = _differentiable(func, ins)
            wanted = [x for x in ins if isinstance(x, Tensor) and x.requires_grad]
            return grad(found, wanted, cotangents, create_graph=True, allow_unused=True, materialize_grads=True)

    return gradcheck(
        gradient,
        (*given, *vs),
        eps=eps,
        atol=atol,
        rtol=rtol,
        raise_exception=raise_exception,
        nondet_tol=nondet_tol,
    )


def _tuple(x: Any) -> tuple[Any, ...]:
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)


def _array(t: Tensor) -> Array:
    return t.detach().numpy()


def _differentiable(func: Callable[..., Any], inputs: Sequence[Any]) -> list[Tensor]:
    return [o for o in _tuple(func(*inputs)) if isinstance(o, Tensor) and o.requires_grad]


def _check(
    func: Callable[..., Any], inputs: tuple[Any, ...], eps: float, atol: float, rtol: float, nondet_tol: float
) -> None:
    at = [i for i, x in enumerate(inputs) if isinstance(x, Tensor) and x.requires_grad]
    if not at:
        raise ValueError("gradcheck wants at least one input that requires grad")
    with enable_grad():
        outs = _differentiable(func, inputs)
        if not outs:
            raise GradcheckError("no output of the function requires grad")
        analytic = _analytic(outs, [inputs[i] for i in at])
        again = _analytic(_differentiable(func, inputs), [inputs[i] for i in at])
    numeric = _numeric(func, inputs, at, [tuple(o.shape) for o in outs], eps)
    for k, o in enumerate(outs):
        for j, i in enumerate(at):
            a, b, c = analytic[k][j], numeric[k][j], again[k][j]
            if np.abs(a - c).max(initial=0) > nondet_tol:
                raise GradcheckError(f"the gradient of output {k} by input {i} differs from one backward to the next")
            wrong = ~(np.abs(a - b) <= atol + rtol * np.abs(b))
            if wrong.any():
                r, q = np.unravel_index(int(np.argmax(np.where(wrong, np.abs(a - b), -1))), a.shape)
                raise GradcheckError(
                    f"the Jacobian of output {k} ({o.type}) by input {i} ({inputs[i].type}) at [{r}, {q}] is "
                    f"{a[r, q]}, finite differences give {b[r, q]}"
                )


def _analytic(outs: Sequence[Tensor], ins: Sequence[Tensor]) -> list[list[Array]]:
    """Jacobians [elements of the output, elements of the input], one backward pass for each row."""
    found: list[list[Array]] = []
    for o in outs:
        rows = [np.zeros((o.numel(), x.numel())) for x in ins]
        for e in range(o.numel()):
            v = np.zeros(o.numel(), _array(o).dtype)
            v[e] = 1
            gs = grad(o, ins, from_numpy(v.reshape(tuple(o.shape))), retain_graph=True, allow_unused=True)
            for row, g in zip(rows, gs):
                if g is not None:
                    row[e] = _array(g).reshape(-1)
        found.append(rows)
    return found


def _numeric(
    func: Callable[..., Any], inputs: Sequence[Any], at: Sequence[int], shapes: Sequence[tuple[int, ...]], eps: float
) -> list[list[Array]]:
    sizes = [int(np.prod(s)) for s in shapes]
    found = [[np.zeros((n, inputs[i].numel())) for i in at] for n in sizes]
    for j, i in enumerate(at):
        x = inputs[i]
        base = _array(x)
        for e in range(x.numel()):
            sides: list[list[Array]] = []
            for step in (eps, -eps):
                moved = base.copy()
                moved.reshape(-1)[e] += step
                args = [from_numpy(moved).requires_grad_() if k == i else v for k, v in enumerate(inputs)]
                with enable_grad():
                    outs = _differentiable(func, args)
                with no_grad():
                    sides.append([_array(o).astype(np.float64).reshape(-1) for o in outs])
            for k in range(len(shapes)):
                found[k][j][:, e] = (sides[0][k] - sides[1][k]) / (2 * eps)
    return found
