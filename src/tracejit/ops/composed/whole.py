"""Marks composed functions that eager code may run as one op: see `Value.compose`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from tracejit.ir.node import Value

__all__ = ["whole"]


def whole(fn: Callable[..., Any] | None = None, *, check: Callable[..., None] | None = None) -> Any:
    """`fn`, which takes a value or a list of them first, looks at types only, gives new values: one op in eager code.

    `check` is called with the same arguments before: it may look at data, as what `fn` requires does.
    """
    if fn is None:
        return partial(whole, check=check)

    @wraps(fn)
    def composed(*args: Any, **kwargs: Any) -> Any:
        x = args[0] if args else next(iter(kwargs.values()), None)
        if isinstance(x, (list, tuple)) and x:
            x = x[0]
        return x.compose(fn, args, kwargs, check) if isinstance(x, Value) else fn(*args, **kwargs)

    return composed
