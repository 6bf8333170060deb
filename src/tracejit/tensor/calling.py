"""PyTorch's calling manners, put around composed functions: `input=`, `axis=`, `keepdims=`, `out=`, and checked tensors.

What a function wants is read off its signature once: parameters annotated `Value` take tensors only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from tracejit.errors import OpError
from tracejit.tensor.tensor import Tensor, assign

__all__ = ["method", "public"]

_ALIASES = {"axis": "dim", "keepdims": "keepdim"}  # NumPy's words
_TENSOR, _TENSORS = "Value", "Sequence[Value]"


def public(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn` as a function of the namespace: `method`, and the result written into `out=` where given."""
    call = method(fn)

    @wraps(fn)
    def function(*args: Any, out: Any = None, **kwargs: Any) -> Any:
        result = call(*args, **kwargs)
        if out is None:
            return result
        if not isinstance(result, tuple):
            return _written(out, result)
        for o, v in zip(out, result, strict=True):
            _written(o, v)
        return out

    return function


def method(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn` with NumPy's keywords understood. Raises TypeError where something else stands for a tensor."""
    parameters = list(inspect.signature(fn).parameters.values())
    first = parameters[0].name
    names = {p.name for p in parameters}
    aliases = {a: n for a, n in _ALIASES.items() if n in names and a not in names}
    if first != "input" and parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        aliases["input"] = first
    checked = [
        (i, p.name, p.annotation == _TENSORS) for i, p in enumerate(parameters) if p.annotation in (_TENSOR, _TENSORS)
    ]

    @wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            kwargs = {aliases.get(k, k): v for k, v in kwargs.items()}
        for i, name, several in checked:
            x = args[i] if i < len(args) else kwargs.get(name, _ABSENT)
            if several or not isinstance(x, Tensor):
                _check(fn, name, x, several)
        return fn(*args, **kwargs)

    return call


_ABSENT: Any = object()


def _check(fn: Callable[..., Any], name: str, x: Any, several: bool) -> None:
    if x is _ABSENT:
        return  # the call itself says better which argument is missing
    if not several:
        raise TypeError(f"{fn.__name__}: {name} must be a Tensor, got {type(x).__name__}")
    if isinstance(x, Tensor) or not hasattr(x, "__iter__"):
        raise TypeError(f"{fn.__name__}: {name} must be a sequence of Tensors, got {type(x).__name__}")
    if bad := [v for v in x if not isinstance(v, Tensor)]:
        raise TypeError(f"{fn.__name__}: {name} must hold Tensors only, got {type(bad[0]).__name__}")


def _written(out: Any, value: Tensor) -> Tensor:
    if not isinstance(out, Tensor):
        raise TypeError(f"out must be a Tensor, got {type(out).__name__}")
    if out._array.shape != value._array.shape:
        raise OpError(f"out is {out.type}, the result is {value.type}: the shapes must agree")
    return assign(out, value)
