"""The functions of the top-level namespace: composed ops under PyTorch's calling manners (`input=`, `out=`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from tracejit.ir import dtype as dt
from tracejit.ir.dtype import DType
from tracejit.ir.node import broadcast_shapes, common_dtype, expand_to
from tracejit.ops import composed
from tracejit.tensor import methods, sets
from tracejit.tensor.creation import check_dtype
from tracejit.tensor.tensor import Size, Tensor

# Python builtins and names that mean something else at the top level.
_HIDDEN = {"embedding", "dropout"}


def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """Positions of the elements that are not zero, [count, rank] i64 (or one tensor per axis)."""
    return input.nonzero(as_tuple=as_tuple)  # type: ignore[attr-defined]


def where(condition: Tensor, input: Any = None, other: Any = None) -> Any:
    """`input` where `condition` holds, else `other`; with one argument the positions of the true elements."""
    if input is None and other is None:
        return nonzero(condition, as_tuple=True)
    assert input is not None and other is not None
    return composed.where(condition, input, other)


def equal(input: Tensor, other: Tensor) -> bool:
    """Whether shapes and all elements agree."""
    return methods.equal_tensors(input, other)


def allclose(input: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    """Whether all elements are close."""
    return bool(composed.all(composed.isclose(input, other, rtol, atol, equal_nan)))


def broadcast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """All tensors expanded to their common shape."""
    shape = broadcast_shapes(*(tuple(t.shape) for t in tensors))
    return tuple(expand_to(t, shape) for t in tensors)


def shape_of_all(*shapes: Any) -> Size:
    """The shape that tensors of these shapes broadcast to."""
    known: Any = broadcast_shapes(*((s,) if isinstance(s, int) else tuple(s) for s in shapes))
    return Size(known)


def is_tensor(obj: Any) -> bool:
    """Whether `obj` is a Tensor."""
    return isinstance(obj, Tensor)


def is_floating_point(input: Tensor) -> bool:
    """Whether elements are floats."""
    return input.dtype.is_floating_point


def numel(input: Tensor) -> int:
    """Number of elements."""
    return input.shape.numel()


def result_type(a: Any, b: Any) -> DType:
    """The dtype arithmetic on a and b gives."""
    return common_dtype(a, b)


def promote_types(a: DType, b: DType) -> DType:
    """The smallest dtype that holds both."""
    return dt.promote(check_dtype(a), check_dtype(b))


def _from_method(name: str) -> Callable[..., Any]:
    """A method as a function: the tensor comes first, or as `input=`."""
    fn: Callable[..., Any] = getattr(Tensor, name)

    @wraps(fn)
    def function(input: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(input, Tensor):
            raise TypeError(f"{name}: input must be a Tensor, got {type(input).__name__}")
        return fn(input, *args, **kwargs)

    function.__name__ = name
    return function


def fill(input: Tensor, value: Any) -> Tensor:
    """A copy of `input` with `value` everywhere."""
    return input.clone().fill_(value)  # type: ignore[attr-defined]


_OWN = (nonzero, where, equal, allclose, broadcast_tensors, is_tensor, is_floating_point, numel, result_type,
        promote_types, fill)  # fmt: skip
_METHODS = """
clone detach index_put index_put_ is_complex masked_scatter masked_select zero_ fill_ relu_ sigmoid_ tanh_ exp_ clamp_
""".split()  # methods that PyTorch has as functions too


def namespace() -> dict[str, Callable[..., Any]]:
    """Name -> function of the top level."""
    out = {n: f for n, f in methods.FUNCTIONS.items() if n not in _HIDDEN}
    out |= {n: _from_method(n) for n in _METHODS}
    out |= {n: getattr(sets, n) for n in sets.__all__}
    out["broadcast_shapes"] = shape_of_all  # the name is the IR's in this module
    return out | {f.__name__: f for f in _OWN}
