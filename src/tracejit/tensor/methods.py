"""Methods of Tensor beyond its core: PyTorch's names over the composed ops, and their in-place forms.

Three tables (methods, in-place methods, conversions) and the few methods whose arguments are read specially.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from tracejit.errors import DTypeError, IndexOutOfRange, OpError
from tracejit.ir import dtype as dt
from tracejit.ir.dtype import DType
from tracejit.ir.node import expand_to
from tracejit.ops import composed
from tracejit.tensor import creation, random, sets
from tracejit.tensor.calling import public
from tracejit.tensor.indexing import getitem, index_put, nonzero, setitem
from tracejit.tensor.layout import MemoryFormat, channels_last, channels_last_3d, strided
from tracejit.tensor.tape import preserve, tape_position
from tracejit.tensor.tensor import CPU, Device, Tensor, assign, wrap_scalar
from tracejit.trace import recorder as recording

__all__ = ["METHODS", "install"]

# Composed functions that are methods as they stand.
METHODS = """
abs absolute acos acosh add addbmm addcdiv addcmul addmm addmv addr adjoint all amax amin aminmax angle any arccos
arccosh arcsin arcsinh arctan arctan2 arctanh argmax argmin argsort asin asinh atan atan2 atanh baddbmm bitwise_and
bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor bmm broadcast_to ceil chunk clamp clamp_max
clamp_min clip conj conj_physical copysign corrcoef cos cosh count_nonzero cov cross cummax cummin cumprod cumsum
deg2rad diag diag_embed diagflat diagonal diagonal_scatter diff digamma dist div divide dot dsplit eq erf erfc exp
exp2 expand_as expm1 fix flatten flip fliplr flipud float_power floor floor_divide fmax fmin fmod frac gather ge ger
greater greater_equal gt hardshrink heaviside hsplit hypot index_add index_copy index_fill index_select inner isclose
isfinite isinf isnan isneginf isposinf isreal kron kthvalue ldexp le lerp less less_equal lgamma log log10 log1p log2
log_softmax logaddexp logaddexp2 logcumsumexp logical_and logical_not logical_or logical_xor logit logsumexp lt
masked_fill matmul max maximum mean median min minimum mm mode moveaxis movedim msort mul multiply mv mvlgamma
nan_to_num nanmean nanmedian nanquantile nansum narrow ne neg negative norm not_equal outer permute positive pow prelu
prod quantile rad2deg ravel reciprocal relu remainder renorm repeat_interleave reshape_as resolve_conj resolve_neg
roll rot90 round rsqrt scatter scatter_add scatter_reduce index_reduce select select_scatter sgn sigmoid sign signbit
sin sinc sinh slice_scatter softmax sort split split_with_sizes sqrt square squeeze std sub subtract sum swapaxes
swapdims t take take_along_dim tan tanh tensor_split tile topk trace transpose tril triu true_divide trunc unbind
unflatten unfold unsafe_chunk unsafe_split unsqueeze var vdot view_as vsplit xlogy
""".split()

# name_ writes what name returns.
INPLACE = """
abs absolute acos acosh add addbmm addcdiv addcmul addmm addmv addr arccos arccosh arcsin arcsinh arctan arctan2
arctanh asin asinh atan atan2 atanh baddbmm bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift
bitwise_xor ceil clamp clamp_max clamp_min clip conj_physical copysign cos cosh cumprod cumsum deg2rad digamma div
divide eq erf erfc exp exp2 expm1 fix float_power floor floor_divide fmod frac ge greater greater_equal gt heaviside
hypot index_add index_copy index_fill ldexp le lerp less less_equal lgamma log log10 log1p log2 logical_and
logical_not logical_or logical_xor logit lt masked_fill mul multiply mvlgamma nan_to_num ne neg negative not_equal
polygamma pow rad2deg reciprocal relu remainder renorm round rsqrt scatter scatter_add scatter_reduce index_reduce
sgn sigmoid sign sin sinc sinh sqrt square sub subtract tan tanh tril triu true_divide trunc xlogy
""".split()

FUNCTIONS = {n: public(getattr(composed, n)) for n in composed.__all__}
CASTS = {
    "float": "f32", "double": "f64", "half": "f16", "bfloat16": "bf16", "long": "i64", "int": "i32", "short": "i16",
    "char": "i8", "byte": "u8", "bool": "bool",
}  # fmt: skip
AUGMENTED = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "pow": "pow", "floordiv": "floor_divide",
    "mod": "remainder", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
}  # fmt: skip


def install() -> None:
    """Give Tensor its methods."""
    for name in METHODS:
        if name not in Tensor.__dict__:
            setattr(Tensor, name, FUNCTIONS[name])
    for name, short in CASTS.items():
        setattr(Tensor, name, _cast_method(name, dt.BY_NAME[short]))
    for fn in _SPECIAL:
        setattr(Tensor, fn.__name__, fn)
    for name in INPLACE:
        setattr(Tensor, name + "_", _inplace(getattr(Tensor, name), name + "_"))
    for name, op in AUGMENTED.items():
        if (fn := getattr(Tensor, op, None)) is not None:
            setattr(Tensor, f"__i{name}__", _inplace(fn, f"__i{name}__"))
    Tensor.T = property(lambda x: x.permute(*reversed(range(x.ndim))))  # type: ignore[attr-defined]
    Tensor.mT = property(lambda x: x.transpose(-2, -1))  # type: ignore[attr-defined]
    Tensor.mH = Tensor.mT  # type: ignore[attr-defined]
    Tensor.H = property(_transposed)  # type: ignore[attr-defined]
    Tensor.__rdiv__ = Tensor.__rtruediv__  # type: ignore[attr-defined]  # Python 2's name, which PyTorch keeps
    Tensor.real = property(lambda x: x)  # type: ignore[attr-defined]
    Tensor.is_cuda = property(lambda x: False)  # type: ignore[attr-defined]
    Tensor.layout = property(lambda x: strided)  # type: ignore[attr-defined]
    Tensor.nbytes = property(lambda x: x._array.nbytes)  # type: ignore[attr-defined]


def _transposed(x: Tensor) -> Tensor:
    if x.ndim not in (0, 2):
        raise OpError(f"H of {x.type}: wanted a matrix; use mH for a batch of them")
    return composed.t(x)


def _inplace(fn: Callable[..., Any], name: str) -> Callable[..., Any]:
    @wraps(fn)
    def write(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        start = tape_position()
        out = fn(self, *args, **kwargs)
        if not isinstance(out, Tensor):
            return NotImplemented
        if out._grad_fn is not None:
            preserve(self, out, start)
        if out._array.shape != self._array.shape:
            raise OpError(f"{name} of {self.type} gives {out.type}, which does not fit in place")
        return assign(self, out)

    write.__name__ = name
    write.__doc__ = f"In-place form of `{fn.__name__}`."
    return write


def _cast_method(name: str, dtype: DType) -> Callable[[Tensor], Tensor]:
    def convert(self: Tensor, memory_format: Any = None) -> Tensor:
        return random.cast(self, dtype)

    convert.__name__ = name
    convert.__doc__ = f"This tensor as {dtype.long}; itself where it already is."
    return convert


def sizes(args: Sequence[Any]) -> tuple[int, ...]:
    """view(2, 3), view((2, 3)) and view([2, 3]) alike; entries may be 0-d tensors."""
    dims = args[0] if len(args) == 1 and isinstance(args[0], (tuple, list)) else args
    return tuple(d.__index__() for d in dims)


# -- methods with arguments of their own


def __getitem__(self: Tensor, index: Any) -> Tensor:
    return getitem(self, index)


def __setitem__(self: Tensor, index: Any, value: Any) -> None:
    setitem(self, index, value)


def __matmul__(self: Tensor, other: Any) -> Any:
    return FUNCTIONS["matmul"](self, other) if isinstance(other, Tensor) else NotImplemented


def __rmatmul__(self: Tensor, other: Any) -> Any:
    return FUNCTIONS["matmul"](other, self) if isinstance(other, Tensor) else NotImplemented


def view(self: Tensor, *shape: Any, size: Any = None) -> Tensor:
    """As reshape, but raises where the memory layout would need a copy. `view(dtype)` is not supported."""
    if len(shape) == 1 and isinstance(shape[0], DType):
        raise OpError("view(dtype) is not supported; use to(dtype)")
    want = sizes(shape if size is None else (size,))
    out = composed.reshape(self, want)
    if out is not self and out._array.size and not np.may_share_memory(out._array, self._array):
        raise OpError(
            f"view of {self.type} as {list(want)} needs a copy, as its memory is not contiguous; use reshape()"
        )
    return out


def _with_sizes(name: str, keyword: str) -> Callable[..., Tensor]:
    """The composed function `name`, whose second argument may come as one sequence, as several numbers or by
    keyword."""
    fn = getattr(composed, name)

    def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not args:
            return fn(self, sizes((kwargs.pop(keyword),)), **kwargs)
        return fn(self, sizes(args), **kwargs)

    method.__name__, method.__doc__ = name, fn.__doc__
    return method


def size(self: Tensor, dim: int | None = None) -> Any:
    """The shape, or one extent."""
    if dim is None:
        return self.shape
    if not -self.ndim <= dim < self.ndim:
        raise IndexOutOfRange(f"dim {dim} does not exist in a tensor of rank {self.ndim}")
    return self.shape[dim]


def dim(self: Tensor) -> int:
    """Number of dimensions."""
    return self._array.ndim


def numel(self: Tensor) -> int:
    """Number of elements."""
    return self.shape.numel()


def nelement(self: Tensor) -> int:
    """Number of elements."""
    return self.shape.numel()


def element_size(self: Tensor) -> int:
    """Bytes of one element."""
    return self._array.itemsize


def stride(self: Tensor, dim: int | None = None) -> Any:
    """Distances between neighbours, in elements."""
    s = tuple(b // self._array.itemsize for b in self._array.strides)
    return s if dim is None else s[dim]


def is_contiguous(self: Tensor, memory_format: MemoryFormat | None = None) -> bool:
    """Whether memory is in row-major order, the channels last where `memory_format` says so."""
    a = self._array
    if memory_format in (channels_last, channels_last_3d):
        return a.ndim == (4 if memory_format is channels_last else 5) and bool(np.moveaxis(a, 1, -1).flags.c_contiguous)
    return bool(a.flags.c_contiguous)


def _check_format(x: Tensor, memory_format: MemoryFormat | None) -> None:
    wanted = {channels_last: 4, channels_last_3d: 5}.get(memory_format, x.ndim)  # type: ignore[arg-type]
    if x.ndim != wanted:
        raise OpError(f"memory format {memory_format} wants rank {wanted}, got {x.type}")


def contiguous(self: Tensor, memory_format: Any = None) -> Tensor:
    """This tensor in row-major memory; itself where it already is."""
    _check_format(self, memory_format)
    return self if self._array.flags.c_contiguous else self.clone()


def data_ptr(self: Tensor) -> int:
    """Address of the first element."""
    if (r := recording.active()) is not None:
        r.refuse("reads the address of a tensor")
    return self._array.ctypes.data


def is_floating_point(self: Tensor) -> bool:
    """Whether elements are floats."""
    return self.dtype.is_floating_point


def is_complex(self: Tensor) -> bool:
    """Always False."""
    return False


def to(self: Tensor, *args: Any, dtype: Any = None, device: Any = None, non_blocking: bool = False, copy: bool = False,
       memory_format: Any = None) -> Tensor:  # fmt: skip
    """This tensor with another dtype or device (also as `to(other)`); itself where nothing changes."""
    for a in args:
        if isinstance(a, Tensor):
            dtype, device = a.dtype, a.device
        elif isinstance(a, (str, Device)):
            device = a
        elif isinstance(a, bool) or a is None:
            continue
        else:
            dtype = a
    _check_format(self, memory_format)
    if device is not None and str(Device(device) if isinstance(device, str) else device).partition(":")[0] != "cpu":
        raise OpError(f"device {device} is not available; this build has cpu")
    out = self if dtype is None else random.cast(self, creation.check_dtype(dtype))
    return out.clone() if copy and out is self else out


def type_as(self: Tensor, other: Tensor) -> Tensor:
    """This tensor with the dtype of `other`."""
    return to(self, other.dtype)


def cpu(self: Tensor) -> Tensor:
    """This tensor in main memory: itself."""
    return self


def get_device(self: Tensor) -> int:
    """-1: main memory."""
    return -1 if self.device is CPU else 0


def copy_(self: Tensor, src: Any, non_blocking: bool = False) -> Tensor:
    """Write `src`, broadcast and cast, into this tensor."""
    src = src if isinstance(src, Tensor) else wrap_scalar(self, src)
    return assign(self, random.cast(src, self.dtype))


def fill_(self: Tensor, value: Any) -> Tensor:
    """Write `value` everywhere."""
    v = value if isinstance(value, Tensor) else wrap_scalar(self, value)
    return assign(self, random.cast(v, self.dtype))


def zero_(self: Tensor) -> Tensor:
    """Write zeros."""
    return fill_(self, 0)


def polygamma(self: Tensor, n: int) -> Tensor:
    """The n-th derivative of digamma."""
    return composed.polygamma(n, self)


def where(self: Tensor, condition: Tensor, other: Any) -> Tensor:
    """This tensor where `condition` holds, else `other`."""
    return composed.where(condition, self, other)


def nonzero_(self: Tensor, *, as_tuple: bool = False) -> Any:
    """Positions of the elements that are not zero."""
    found = nonzero(composed.reshape(self, (-1,)) if as_tuple and not self.ndim else self)
    return tuple(found[:, k] for k in range(max(1, self.ndim))) if as_tuple else found


def masked_select(self: Tensor, mask: Tensor) -> Tensor:
    """The elements where `mask` holds, in a row."""
    shape = np.broadcast_shapes(self._array.shape, mask._array.shape)
    return getitem(expand_to(self, shape), expand_to(mask, shape))


def masked_scatter(self: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """This tensor with the elements where `mask` holds taken from `source` in order."""
    mask = expand_to(mask, self._array.shape)
    count = int(composed.sum(mask))
    out = self.clone()
    setitem(out, mask, composed.reshape(source, (-1,))[:count])
    return out


def index_put_method(self: Tensor, indices: Sequence[Tensor], values: Tensor, accumulate: bool = False) -> Tensor:
    """This tensor with `values` at the positions named by `indices`."""
    return index_put(self, indices, values, accumulate)


def index_put_(self: Tensor, indices: Sequence[Tensor], values: Tensor, accumulate: bool = False) -> Tensor:
    """Write `values` at the positions named by `indices`."""
    return assign(self, index_put(self, indices, values, accumulate))


def masked_scatter_(self: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """In-place form of `masked_scatter`."""
    return assign(self, masked_scatter(self, mask, source))


def new_tensor(self: Tensor, data: Any, *, dtype: Any = None, requires_grad: bool = False, **_: Any) -> Tensor:
    """A new tensor of this one's dtype."""
    return creation.tensor(data, dtype=dtype or self.dtype, requires_grad=requires_grad)


def new_zeros(self: Tensor, *size: Any, dtype: Any = None, **_: Any) -> Tensor:
    """Zeros of this tensor's dtype."""
    return creation.zeros(*size, dtype=dtype or self.dtype)


def new_ones(self: Tensor, *size: Any, dtype: Any = None, **_: Any) -> Tensor:
    """Ones of this tensor's dtype."""
    return creation.ones(*size, dtype=dtype or self.dtype)


def new_empty(self: Tensor, *size: Any, dtype: Any = None, **_: Any) -> Tensor:
    """A tensor to be written, of this one's dtype."""
    return creation.zeros(*size, dtype=dtype or self.dtype)


def new_full(self: Tensor, size: Any, fill_value: Any, *, dtype: Any = None, **_: Any) -> Tensor:
    """`fill_value` everywhere, of this tensor's dtype."""
    return creation.full(size, fill_value, dtype=dtype or self.dtype)


def uniform_(self: Tensor, from_: float = 0.0, to: float = 1.0, *, generator: Any = None, **kw: Any) -> Tensor:
    """Write uniform numbers from [from, to)."""
    low = kw.get("a", kw.get("from", from_))
    high = kw.get("b", to)
    if low > high:
        raise OpError(f"uniform_ wants from <= to, got {low} and {high}")
    return assign(self, random.rand(*self.shape, generator=generator, dtype=self.dtype) * (high - low) + low)


def normal_(self: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Tensor:
    """Write normal numbers."""
    random.check_deviation("normal_", std)
    return assign(self, random.randn(*self.shape, generator=generator, dtype=self.dtype) * std + mean)


def bernoulli_(self: Tensor, p: float = 0.5, *, generator: Any = None) -> Tensor:
    """Write 1 with probability p, else 0."""
    u = random.rand(*self.shape, generator=generator)
    return assign(self, random.cast(u < p, self.dtype))


def random_(self: Tensor, low: int = 0, high: int | None = None, *, generator: Any = None) -> Tensor:
    """Write uniform integers from [low, high)."""
    low, high = (0, low) if high is None and low else (low, high or 2**24)
    return assign(self, random.cast(random.randint(low, high, self.shape, generator=generator), self.dtype))


def bernoulli(self: Tensor, *, generator: Any = None) -> Tensor:
    """1 with this probability, else 0."""
    return random.bernoulli(self, generator=generator)


def cauchy_(self: Tensor, median: float = 0.0, sigma: float = 1.0, *, generator: Any = None) -> Tensor:
    """Write numbers of the Cauchy distribution."""
    if sigma <= 0:
        raise OpError(f"cauchy_ wants sigma above 0, got {sigma}")
    u: Any = random.rand(*self.shape, generator=generator, dtype=dt.float64)
    return assign(self, random.cast((u - 0.5 + 2.0**-25).mul(np.pi).tan() * sigma + median, self.dtype))


def exponential_(self: Tensor, lambd: float = 1.0, *, generator: Any = None) -> Tensor:
    """Write numbers of the exponential distribution with mean 1 / lambd."""
    if lambd <= 0:
        raise OpError(f"exponential_ wants lambd above 0, got {lambd}")
    u: Any = random.rand(*self.shape, generator=generator, dtype=dt.float64)
    return assign(self, random.cast((u + 2.0**-25).log() * (-1 / lambd), self.dtype))


def geometric_(self: Tensor, p: float, *, generator: Any = None) -> Tensor:
    """Write how many trials of probability p it takes to succeed, from 1."""
    if not 0 < p < 1:
        raise OpError(f"geometric_ wants a probability between 0 and 1, got {p}")
    u: Any = random.rand(*self.shape, generator=generator, dtype=dt.float64)
    return assign(self, random.cast(((u + 2.0**-25).log() / np.log1p(-p)).ceil(), self.dtype))


def log_normal_(self: Tensor, mean: float = 1.0, std: float = 2.0, *, generator: Any = None) -> Tensor:
    """Write e to the power of normal numbers."""
    random.check_deviation("log_normal_", std)
    x: Any = random.randn(*self.shape, generator=generator, dtype=dt.float64)
    return assign(self, random.cast((x * std + mean).exp(), self.dtype))


def multinomial(self: Tensor, num_samples: int, replacement: bool = False, *, generator: Any = None) -> Tensor:
    """Indices drawn with these probabilities."""
    return random.multinomial(self, num_samples, replacement, generator=generator)


def allclose(self: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    """Whether all elements are close."""
    return bool(composed.all(composed.isclose(self, other, rtol, atol, equal_nan)))


def equal(self: Tensor, other: Tensor) -> bool:
    """Whether shapes and all elements agree."""
    return equal_tensors(self, other)


def equal_tensors(x: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same shape and elements."""
    if not isinstance(other, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]  # users may pass anything
        raise DTypeError(f"equal() wants a tensor, got {type(other).__name__}")
    if x._array.shape != other._array.shape:
        return False
    return bool(composed.all(x == other))


def unsqueeze_(self: Tensor, dim: int) -> Tensor:
    """In-place form of `unsqueeze`: this handle shows the new shape."""
    return _reshaped(self, composed.unsqueeze(self, dim))


def squeeze_(self: Tensor, dim: int | None = None) -> Tensor:
    """In-place form of `squeeze`: this handle shows the new shape."""
    return _reshaped(self, composed.squeeze(self, dim))


def t_(self: Tensor) -> Tensor:
    """In-place form of `t`: this handle shows the new shape."""
    return _reshaped(self, composed.t(self))


def transpose_(self: Tensor, dim0: int, dim1: int) -> Tensor:
    """In-place form of `transpose`: this handle shows the new shape."""
    return _reshaped(self, composed.transpose(self, dim0, dim1))


def _reshaped(x: Tensor, y: Tensor) -> Tensor:
    """Turn the handle x into the view y."""
    if (r := recording.active()) is not None:
        r.refuse("changes the shape of a tensor handle in place")
    x._array, x._grad_fn, x._index, x._parent, x._view, x._seen = (
        y._array,
        y._grad_fn,
        y._index,
        y._parent,
        y._view,
        y._seen,
    )
    return x


def share_memory_(self: Tensor) -> Tensor:
    """Memory is shared by forked workers already."""
    return self


def is_shared(self: Tensor) -> bool:
    """False: memory belongs to this process."""
    return False


def pin_memory(self: Tensor) -> Tensor:
    """This tensor: main memory needs no pinning."""
    return self


def storage_offset(self: Tensor) -> int:
    """Elements before the first one in the memory this tensor is a view of."""
    root = self
    while root._parent is not None:
        root = root._parent
    return (self._array.ctypes.data - root._array.ctypes.data) // self._array.itemsize


# Methods that take sizes or axes one by one: name -> the keyword.
VARIADIC = {
    "reshape": "shape",
    "permute": "dims",
    "expand": "size",
    "repeat": "repeats",
    "flip": "dims",
    "tile": "dims",
    "sum_to_size": "size",
}

_SPECIAL: tuple[Callable[..., Any], ...] = (
    __getitem__, __setitem__, __matmul__, __rmatmul__, *(_with_sizes(*item) for item in VARIADIC.items()), view,
    size, dim, numel, nelement, element_size, stride, is_contiguous, contiguous, data_ptr, is_floating_point,
    is_complex, to, type_as, cpu, get_device, copy_, fill_, zero_, polygamma, where, masked_select, masked_scatter,
    masked_scatter_, index_put_, new_tensor, new_zeros, new_ones, new_empty, new_full, sets.argwhere, sets.bincount,
    sets.histc, sets.unique, sets.unique_consecutive, uniform_, normal_, bernoulli_, random_, cauchy_, exponential_,
    geometric_, log_normal_, bernoulli, multinomial, allclose, equal, unsqueeze_, squeeze_, t_, transpose_,
    share_memory_, is_shared, pin_memory, storage_offset,
)  # fmt: skip
Tensor.nonzero = nonzero_  # type: ignore[attr-defined]
Tensor.index_put = index_put_method  # type: ignore[attr-defined]
install()
