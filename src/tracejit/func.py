"""Functions of functions, under the names of torch.func: `grad`, `vjp`, `jacrev`, ...

They nest: each level puts its arguments at new places on the tape, and what it returns stays part of the levels around
it. `vmap` is not here: the functions take whole batches as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tracejit.autograd.functional import pushed
from tracejit.errors import AutogradError
from tracejit.tensor.autograd import apart, enable_grad, new_place
from tracejit.tensor.autograd import grad as gradients
from tracejit.tensor.creation import zeros_like
from tracejit.tensor.methods import FUNCTIONS
from tracejit.tensor.tensor import Tensor

__all__ = ["functional_call", "grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "vjp"]

Fn = Callable[..., Any]


def _flat(x: Any, out: list[Any]) -> Any:
    """The tensors in nested lists, tuples and dicts, in order; returns the structure, numbers for tensors."""
    if isinstance(x, Tensor):
        out.append(x)
        return len(out) - 1
    if isinstance(x, dict):
        return {k: _flat(v, out) for k, v in x.items()}
    if isinstance(x, list):
        return [_flat(v, out) for v in x]
    if isinstance(x, tuple):
        return tuple([_flat(v, out) for v in x])
    raise TypeError(f"wanted tensors in lists, tuples and dicts, got {type(x).__name__}")


def _build(structure: Any, leaves: Sequence[Any]) -> Any:
    if isinstance(structure, int):
        return leaves[structure]
    if isinstance(structure, dict):
        return {k: _build(v, leaves) for k, v in structure.items()}
    if isinstance(structure, list):
        return [_build(v, leaves) for v in structure]
    return tuple([_build(v, leaves) for v in structure])


def _numbers(argnums: Any) -> tuple[int, ...]:
    return (argnums,) if isinstance(argnums, int) else tuple(argnums)


def _opened(args: tuple[Any, ...], argnums: Any) -> tuple[tuple[Any, ...], list[Any], list[Tensor]]:
    """(arguments with the chosen ones at new places, their structures, their tensors)."""
    places: list[Tensor] = []
    structures: list[Any] = []
    new = list(args)
    for i in _numbers(argnums):
        if not -len(args) <= i < len(args):
            raise AutogradError(f"argnums is {argnums}, but there are {len(args)} positional arguments")
        leaves: list[Any] = []
        structure = _flat(args[i], leaves)
        start = len(places)
        places += [new_place(t) for t in leaves]
        structures.append((structure, start, len(places)))
        new[i] = _build(structure, places[start:])
    return tuple(new), structures, places


def _closed(argnums: Any, structures: Sequence[Any], found: Sequence[Any]) -> Any:
    parts = [_build(s, found[a:b]) for s, a, b in structures]
    return parts[0] if isinstance(argnums, int) else tuple(parts)


def grad_and_value(func: Fn, argnums: Any = 0, has_aux: bool = False) -> Fn:
    """A function giving (gradient by the arguments `argnums`, value); the value is a pair where `has_aux`."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with enable_grad():
            new, structures, places = _opened(args, argnums)
            out = func(*new, **kwargs)
            value, aux = out if has_aux else (out, None)
            if not isinstance(value, Tensor) or value.numel() != 1 or value.ndim:
                raise AutogradError(
                    "grad wants a function that returns a tensor of rank 0 (and an auxiliary where has_aux)"
                )
            found: Sequence[Any] = [None] * len(places)
            if value.requires_grad:
                found = gradients(value, places, create_graph=True, allow_unused=True)
        settled = [zeros_like(x) if g is None else apart(g, places) for g, x in zip(found, places)]
        value = apart(value, places)
        return _closed(argnums, structures, settled), ((value, _apart(aux, places)) if has_aux else value)

    return wrapper


def _apart(x: Any, places: Sequence[Tensor]) -> Any:
    leaves: list[Any] = []
    structure = _flat(x, leaves)
    return _build(structure, [apart(t, places) for t in leaves])


def grad(func: Fn, argnums: Any = 0, has_aux: bool = False) -> Fn:
    """The gradient of `func`, which returns a tensor of rank 0, as a function of the same arguments."""
    both = grad_and_value(func, argnums, has_aux)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        found, value = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return wrapper


def vjp(func: Fn, *primals: Any, has_aux: bool = False) -> Any:
    """(func(*primals), a function v -> v . J); with `has_aux` also what else `func` returned."""
    with enable_grad():
        new, structures, places = _opened(primals, tuple(range(len(primals))))
        out = func(*new)
        value, aux = out if has_aux else (out, None)
        outs: list[Any] = []
        structure = _flat(value, outs)

    def pull(cotangents: Any, retain_graph: bool = True) -> Any:
        vs: list[Any] = []
        if _flat(cotangents, vs) != structure:
            raise AutogradError("the cotangents must be like the outputs: the same structure of tensors")
        at = [i for i, o in enumerate(outs) if o.requires_grad]
        with enable_grad():
            found: Sequence[Any] = [None] * len(places)
            if at:
                found = gradients(
                    [outs[i] for i in at], places, [vs[i] for i in at], create_graph=True, allow_unused=True
                )
        settled = [zeros_like(x) if g is None else apart(g, places) for g, x in zip(found, places)]
        return _closed(tuple(range(len(primals))), structures, settled)

    result = _build(structure, [apart(o, places) for o in outs])
    return (result, pull, _apart(aux, places)) if has_aux else (result, pull)


def jvp(func: Fn, primals: tuple[Any, ...], tangents: tuple[Any, ...], *, has_aux: bool = False) -> Any:
    """(func(*primals), J . tangents); with `has_aux` also what else `func` returned."""
    vs: list[Any] = []
    _flat(tangents, vs)
    with enable_grad():
        new, _, places = _opened(primals, tuple(range(len(primals))))
        out = func(*new)
        value, aux = out if has_aux else (out, None)
        outs: list[Any] = []
        structure = _flat(value, outs)
        found = pushed(outs, places, vs, True)
    result = _build(structure, [apart(o, places) for o in outs])
    moved = _build(structure, [apart(t, places) for t in found])
    return (result, moved, _apart(aux, places)) if has_aux else (result, moved)


def jacrev(func: Fn, argnums: Any = 0, has_aux: bool = False) -> Fn:
    """The Jacobian of `func` by the arguments `argnums`, one backward pass for each element of the output."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with enable_grad():
            new, structures, places = _opened(args, argnums)
            out = func(*new, **kwargs)
            value, aux = out if has_aux else (out, None)
            outs: list[Any] = []
            structure = _flat(value, outs)
            rows = [_closed(argnums, structures, _rows(o, places)) for o in outs]
        found = _build(structure, rows)
        return (found, _apart(aux, places)) if has_aux else found

    return wrapper


def _rows(out: Tensor, places: Sequence[Tensor]) -> list[Tensor]:
    flat, n = out.reshape(-1), out.numel()
    found: list[Sequence[Any]] = []
    for i in range(n):
        gs: Sequence[Any] = [None] * len(places)
        if out.requires_grad:
            gs = gradients(flat[i], places, create_graph=True, allow_unused=True)
        found.append([zeros_like(x) if g is None else apart(g, places) for g, x in zip(gs, places)])
    stack, shape = FUNCTIONS["stack"], tuple(out.shape)
    if not n:
        return [zeros_like(x).expand(*shape, *x.shape) for x in places]
    return [stack([g[k] for g in found]).reshape(*shape, *x.shape) for k, x in enumerate(places)]


def jacfwd(func: Fn, argnums: Any = 0, has_aux: bool = False) -> Fn:
    """As `jacrev`: forward mode costs no less here."""
    return jacrev(func, argnums, has_aux)


def hessian(func: Fn, argnums: Any = 0) -> Fn:
    """The second derivatives of `func`."""
    return jacrev(jacrev(func, argnums), argnums)


def functional_call(module: Any, parameters: Mapping[str, Any], args: Any = (), kwargs: Any = None) -> Any:
    """module(*args, **kwargs) with `parameters` (dotted name -> tensor) in place of its own parameters and buffers."""
    homes = dict(module.named_modules())
    swapped: list[tuple[Any, str, Any]] = []
    try:
        for name, tensor in parameters.items():
            path, _, leaf = name.rpartition(".")
            m = homes[path]
            store = m._parameters if leaf in m._parameters else m._buffers
            if leaf not in store:
                raise KeyError(f"the module has no parameter or buffer {name!r}")
            swapped.append((store, leaf, store[leaf]))
            store[leaf] = tensor
        return module(*(args if isinstance(args, tuple) else (args,)), **(kwargs or {}))
    finally:
        for store, leaf, tensor in reversed(swapped):
            store[leaf] = tensor
