"""Factories: tensors from data, fills, ranges, and memory shared with NumPy. All emit source ops, so recordings see
them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracejit.errors import DTypeError, OpError
from tracejit.ir import dtype as dt
from tracejit.ir.dtype import DType
from tracejit.ir.op import Array, Op
from tracejit.ir.symint import SymInt
from tracejit.ir.types import TensorType
from tracejit.runtime import buffer
from tracejit.tensor.tensor import Tensor, apply, wrap
from tracejit.trace import recorder as recording

__all__ = [
    "arange", "as_tensor", "asarray", "empty", "empty_like", "eye", "from_numpy", "full", "full_like", "linspace",
    "logspace", "ones", "ones_like", "scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros", "zeros_like",
]  # fmt: skip


def shape_of(size: Sequence[Any]) -> tuple[int, ...]:
    """zeros(2, 3), zeros((2, 3)) and zeros([2, 3]) alike. Raises OpError for negative extents."""
    dims = tuple(size[0]) if len(size) == 1 and isinstance(size[0], (tuple, list)) else tuple(size)
    out = tuple(d if type(d) is SymInt else int(d.__index__()) for d in dims)
    if any(d < 0 for d in out):
        raise OpError(f"a tensor cannot have shape {list(out)}: extents are at least 0")
    return out


def default_dtype() -> DType:
    """The default floating point dtype, told to an open recording."""
    d = dt.default()
    if (r := recording.active()) is not None:
        r.read_mode("default_dtype", d.name)
    return d


def check_dtype(d: Any) -> DType:
    """`d` as a DType; accepts NumPy dtypes and Python types."""
    if isinstance(d, DType):
        return d
    found = {float: dt.default(), int: dt.int64, bool: dt.bool_}.get(d)
    if found is None:
        try:
            found = dt.from_numpy(np.dtype(d))
        except TypeError:
            found = None
    if found is None:
        raise DTypeError(f"{d!r} is no dtype tracejit has; use one of {', '.join(x.long for x in dt.ALL)}")
    return found


def _finish(t: Tensor, requires_grad: bool, device: Any = None) -> Tensor:
    if device is not None and str(device) != "cpu":
        raise OpError(f"device {device} is not available; this build has cpu")
    return t.requires_grad_() if requires_grad else t


def _fill(value: Any, shape: tuple[int, ...], dtype: DType, requires_grad: bool, device: Any = None) -> Tensor:
    return _finish(apply(Op.registry["const"](value, TensorType(dtype, shape)), ()), requires_grad, device)  # type: ignore[call-arg]


def zeros(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False, **_: Any) -> Tensor:
    """Zeros of shape `size`, of the default dtype unless given."""
    size = (_.pop("size"),) if "size" in _ else size
    return _fill(0, shape_of(size), check_dtype(dtype) if dtype else default_dtype(), requires_grad, device)


def ones(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False, **_: Any) -> Tensor:
    """Ones of shape `size`, of the default dtype unless given."""
    size = (_.pop("size"),) if "size" in _ else size
    return _fill(1, shape_of(size), check_dtype(dtype) if dtype else default_dtype(), requires_grad, device)


def empty(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False, **_: Any) -> Tensor:
    """A tensor to be written: zeros, so that nothing depends on what memory held."""
    return zeros(*size, dtype=dtype, device=device, requires_grad=requires_grad, **_)


def full(size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """`fill_value` everywhere; the dtype is that of the value unless given."""
    if isinstance(fill_value, Tensor):
        value, d = fill_value.item(), fill_value.dtype
    else:
        value = fill_value
        d = dt.bool_ if isinstance(value, bool) else dt.int64 if isinstance(value, int) else default_dtype()
    return _fill(value, shape_of((size,)), check_dtype(dtype) if dtype else d, requires_grad, device)


def zeros_like(input: Tensor, *, dtype: Any = None, requires_grad: bool = False, **_: Any) -> Tensor:
    """Zeros with the shape and dtype of `input`."""
    return _fill(0, tuple(input.shape), check_dtype(dtype) if dtype else input.dtype, requires_grad)


def ones_like(input: Tensor, *, dtype: Any = None, requires_grad: bool = False, **_: Any) -> Tensor:
    """Ones with the shape and dtype of `input`."""
    return _fill(1, tuple(input.shape), check_dtype(dtype) if dtype else input.dtype, requires_grad)


def full_like(input: Tensor, fill_value: Any, *, dtype: Any = None, requires_grad: bool = False, **_: Any) -> Tensor:
    """`fill_value` with the shape and dtype of `input`."""
    return _fill(fill_value, tuple(input.shape), check_dtype(dtype) if dtype else input.dtype, requires_grad)


empty_like = zeros_like


def _number(x: Any) -> Any:
    return x.item() if isinstance(x, (Tensor, np.generic)) else x


def arange(start: Any, end: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None,
           requires_grad: bool = False) -> Tensor:  # fmt: skip
    """start, start + step, ... below `end`; i64 where all are ints, else the default dtype."""
    start, end, step = _number(start), _number(end), _number(step)
    if end is None:
        start, end = 0, start
    if step == 0:
        raise OpError("arange wants a step that is not zero")
    if (end - start) * step < 0:
        raise OpError(f"arange from {start} to {end} needs a step of the other sign than {step}")
    ints = all(isinstance(v, int) for v in (start, end, step))
    d = check_dtype(dtype) if dtype else dt.int64 if ints else default_dtype()
    if not ints and not d.is_floating_point:  # whole numbers are asked for: the bounds are cut first
        start, end, step, ints = int(start), int(end), int(step), True
        if step == 0:
            raise OpError(f"arange of {d} wants a step that is not cut to zero")
    count = max(0, -(-(end - start) // step) if ints else int(np.ceil((end - start) / step)))
    wide = dt.int64 if ints else dt.float64  # as NumPy and PyTorch: position * step + start in the wide type
    x = apply(Op.registry["iota"]((count,), 0, dt.int64), ())  # type: ignore[call-arg]
    if wide is not dt.int64:
        x = apply(Op.registry["cast"](wide), (x,))  # type: ignore[call-arg]
    if step != 1:
        x = x * step
    if start != 0:
        x = x + start
    if x.dtype is not d:
        x = apply(Op.registry["cast"](d), (x,))  # type: ignore[call-arg]
    return _finish(x, requires_grad, device)


def _spaced(start: Any, end: Any, steps: Any) -> Array:
    for v in (start, end):
        if isinstance(v, Tensor) and v.ndim:
            raise OpError(f"start and end must be numbers or tensors of rank 0, got {v.type}")
    if not isinstance(steps, int):
        raise TypeError(f"steps must be an int, got {type(steps).__name__}")
    if steps < 0:
        raise OpError(f"steps must be 0 or more, got {steps}")
    return np.linspace(_number(start), _number(end), steps)


def linspace(start: Any, end: Any, steps: int, *, dtype: Any = None, requires_grad: bool = False, **_: Any) -> Tensor:
    """`steps` evenly spaced values from start to end, both included."""
    a = _spaced(start, end, steps)
    return tensor(a.tolist(), dtype=check_dtype(dtype) if dtype else default_dtype(), requires_grad=requires_grad)


def logspace(start: Any, end: Any, steps: int, base: float = 10.0, *, dtype: Any = None, **_: Any) -> Tensor:
    """base ** linspace(start, end, steps)."""
    a = float(base) ** _spaced(start, end, steps)
    return tensor(a.tolist(), dtype=check_dtype(dtype) if dtype else default_dtype())


def eye(n: int, m: int | None = None, *, dtype: Any = None, requires_grad: bool = False, **_: Any) -> Tensor:
    """Ones on the diagonal of an n x m matrix."""
    d = check_dtype(dtype) if dtype else default_dtype()
    shape = (n, n if m is None else m)
    rows = apply(Op.registry["iota"](shape, 0, dt.int64), ())  # type: ignore[call-arg]
    columns = apply(Op.registry["iota"](shape, 1, dt.int64), ())  # type: ignore[call-arg]
    return _finish(apply(Op.registry["cast"](d), (rows == columns,)), requires_grad)  # type: ignore[call-arg]


def _literal(array: Array) -> Tensor:
    """A fresh tensor holding `array`, a constant of any open recording."""
    if (r := recording.active()) is None:
        return wrap(array)
    if array.ndim == 0:
        d = dt.from_numpy(array.dtype)
        assert d is not None
        value = array.item() if d is not dt.bfloat16 else float(array)
        return apply(Op.registry["const"](value, TensorType(d, ())), ())  # type: ignore[call-arg]
    from tracejit.ops.source import ArrayConst

    out = wrap(array)
    constant = ArrayConst(array.copy())  # the tensor may be written in place, the constant never
    r.emit(Op.registry["const"](constant, out.type), (), (out,))  # type: ignore[call-arg]
    return out


def tensor(
    data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, pin_memory: bool = False
) -> Tensor:
    """A new leaf holding a copy of `data` (numbers, nested sequences, arrays, tensors).

    Python floats give the default dtype, ints i64, bools bool. Raises DTypeError or OpError for ragged or odd data.
    """
    want = check_dtype(dtype) if dtype is not None else None
    if isinstance(data, Tensor):
        out = data.detach().clone()
        return _finish(out.to(want) if want else out, requires_grad, device)  # type: ignore[attr-defined]
    if isinstance(data, (np.ndarray, np.generic)) and (r := recording.active()) is not None:
        r.refuse("reads a NumPy array")
    return _finish(_literal(_array_of(data, want)), requires_grad, device)


def _array_of(data: Any, want: DType | None) -> Array:
    if isinstance(data, (list, tuple)):
        data = _plain(data)
    try:
        a = buffer.copy(data) if type(data) is np.ndarray else np.array(data)
    except ValueError as e:
        raise OpError(f"expected nested sequences of equal lengths: {e}") from None
    if a.dtype == object:
        raise DTypeError(f"cannot make a tensor of {type(data).__name__}: elements are not numbers")
    if want is not None:
        with np.errstate(all="ignore"):
            return a.astype(want.numpy)
    if isinstance(data, (np.ndarray, np.generic)):
        if dt.from_numpy(a.dtype.newbyteorder("=")) is None:
            raise DTypeError(f"arrays of {a.dtype} are not supported; pass dtype=")
        return a.astype(a.dtype.newbyteorder("="), copy=False)
    if a.dtype.kind == "f" or a.size == 0:
        return a.astype(default_dtype().numpy)
    if a.dtype.kind in "iu" and a.dtype != np.uint64:
        return a.astype(np.int64)
    if a.dtype.kind == "b":
        return a
    raise DTypeError(f"cannot make a tensor of {type(data).__name__} with elements of {a.dtype}")


def _plain(data: Any) -> Any:
    """Nested sequences with the tensors in them as numbers."""
    return [_plain(v) if isinstance(v, (list, tuple)) else v.tolist() if isinstance(v, Tensor) else v for v in data]


def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """`data` itself where it is a tensor of that dtype; shares the memory of arrays; else `tensor(data)`."""
    if isinstance(data, Tensor):
        return data if dtype is None or data.dtype is check_dtype(dtype) else data.to(check_dtype(dtype))  # type: ignore[attr-defined]
    if isinstance(data, np.ndarray) and (dtype is None or data.dtype == check_dtype(dtype).numpy):
        return from_numpy(data)
    return tensor(data, dtype=dtype)


asarray = as_tensor


def from_numpy(array: Array) -> Tensor:
    """A tensor sharing memory with `array`. Raises TypeError for other things, DTypeError for dtypes we lack."""
    if not isinstance(array, np.ndarray):  # pyright: ignore[reportUnnecessaryIsInstance]  # users may pass anything
        raise TypeError(f"from_numpy wants an ndarray, got {type(array).__name__}")
    if dt.from_numpy(array.dtype) is None:
        raise DTypeError(f"arrays of {array.dtype} are not supported; use one of {', '.join(d.long for d in dt.ALL)}")
    if (r := recording.active()) is not None:
        r.refuse("reads a NumPy array")
    return wrap(array.view())  # an array object of our own: the user may reshape theirs in place


def scalar_tensor(
    value: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, **_: Any
) -> Tensor:
    """A rank-0 tensor, of the default dtype unless given."""
    return tensor(value, dtype=dtype or default_dtype(), device=device, requires_grad=requires_grad)


def tril_indices(row: int, col: int, offset: int = 0, *, dtype: Any = dt.int64, device: Any = None, **_: Any) -> Tensor:
    """The positions on and below the `offset`-th diagonal of a row x col matrix, [2, count]."""
    at = np.stack(np.tril_indices(row, offset, col))
    return _finish(_literal(at.astype(check_dtype(dtype).numpy)), False, device)


def triu_indices(row: int, col: int, offset: int = 0, *, dtype: Any = dt.int64, device: Any = None, **_: Any) -> Tensor:
    """The positions on and above the `offset`-th diagonal of a row x col matrix, [2, count]."""
    at = np.stack(np.triu_indices(row, offset, col))
    return _finish(_literal(at.astype(check_dtype(dtype).numpy)), False, device)
