"""PyTorch's calling manners around composed functions: `input=`, `axis=`, `keepdims=`, `out=`, and checked tensors.

What a function wants is read off its signature once: parameters annotated `Value` take tensors only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracejit.errors import OpError
from tracejit.tensor.autocast import autocasting
from tracejit.tensor.tensor import Tensor, assign

__all__ = ["public"]

_ALIASES = {"axis": "dim", "keepdims": "keepdim"}  # NumPy's words
_TENSOR, _TENSORS = "Value", "Sequence[Value]"
_ABSENT: Any = object()


def public(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn` as a method and as a public function. Raises TypeError where something else stands for a tensor."""
    code, wanted = fn.__code__, fn.__annotations__  # inspect.signature would cost the import 20 ms
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    aliases = {a: n for a, n in _ALIASES.items() if n in names and a not in names}
    if code.co_argcount and names[0] != "input":
        aliases["input"] = names[0]
    checked = [(i, n, wanted.get(n) == _TENSORS) for i, n in enumerate(names) if wanted.get(n) in (_TENSOR, _TENSORS)]

    def call(*args: Any, **kwargs: Any) -> Any:
        out = None
        if kwargs:
            out = kwargs.pop("out", None)
            kwargs = {aliases.get(k, k): v for k, v in kwargs.items()}
        for i, name, several in checked:
            x = args[i] if i < len(args) else kwargs.get(name, _ABSENT)
            if several or not isinstance(x, Tensor):
                _check(fn, name, x, several)
        result = fn(*args, **kwargs)
        return result if out is None else _written(out, result)

    call.__name__, call.__qualname__, call.__module__, call.__doc__ = (
        fn.__name__,
        fn.__name__,
        fn.__module__,
        fn.__doc__,
    )
    call.__wrapped__ = fn  # type: ignore[attr-defined]  # the signature that help() shows
    return autocasting(call)


def _check(fn: Callable[..., Any], name: str, x: Any, several: bool) -> None:
    if x is _ABSENT:
        return  # the call itself says better which argument is missing
    if not several:
        raise TypeError(f"{fn.__name__}: {name} must be a Tensor, got {type(x).__name__}")
    if isinstance(x, Tensor) or not hasattr(x, "__iter__"):
        raise TypeError(f"{fn.__name__}: {name} must be a sequence of Tensors, got {type(x).__name__}")
    if bad := [v for v in x if not isinstance(v, Tensor)]:
        raise TypeError(f"{fn.__name__}: {name} must hold Tensors only, got {type(bad[0]).__name__}")


def _written(out: Any, value: Any) -> Any:
    """`out`, holding the result (or the results, for functions with several)."""
    if isinstance(value, tuple):
        for o, v in zip(out, value, strict=True):
            _written(o, v)
        return out
    if not isinstance(out, Tensor):
        raise TypeError(f"out must be a Tensor, got {type(out).__name__}")
    if out._array.shape != value._array.shape:
        raise OpError(f"out is {out.type}, the result is {value.type}: the shapes must agree")
    return assign(out, value)
