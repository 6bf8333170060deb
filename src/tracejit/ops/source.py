"""Values that come from nowhere: constants, positions, random bits.

None of these reads a tensor's elements (random_bits reads only its two-word state), so a kernel makes them on the spot
instead of loading them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tracejit.errors import OpError
from tracejit.ir import dtype as dt
from tracejit.ir.dim import Extent, Shape
from tracejit.ir.dtype import DType
from tracejit.ir.index import Index
from tracejit.ir.node import Node, Scalar, Value
from tracejit.ir.op import Array, ArrayConst, At, Op, Reader, Sample, attribute_key
from tracejit.ir.symint import SymInt
from tracejit.ir.types import TensorType, Type
from tracejit.ops.address import as_node, linear
from tracejit.ops.loop import random_word
from tracejit.ops.random_words import LOW, philox
from tracejit.records import dataclass

__all__ = ["ArrayConst", "Const", "Iota", "RandomBits", "const", "full", "iota", "philox", "random_bits", "zeros_like"]


@dataclass(frozen=True, eq=False)
class Const(Op):
    """A scalar filled out to `type`, or an array of exactly `type`."""

    name = "const"
    value: bool | int | float | ArrayConst
    type: TensorType

    def __post_init__(self) -> None:
        # One form per meaning: Const(1, f32) is Const(1.0, f32), and an integer wraps as a cast to its dtype would.
        if not isinstance(self.value, ArrayConst):
            object.__setattr__(self, "value", _as_scalar(self.value, self.type.dtype))

    def __eq__(self, other: object) -> bool:  # 0.0 is not -0.0, nan is nan
        return isinstance(other, Const) and attribute_key(self) == attribute_key(other)

    def __hash__(self) -> int:
        return hash(attribute_key(self))

    def infer(self) -> Type:
        if isinstance(self.value, ArrayConst):
            a = self.value.array
            if a.dtype != self.type.dtype.numpy or a.shape != self.type.shape:
                raise OpError(f"const of type {self.type} given an array of {a.dtype} and shape {list(a.shape)}")
        return self.type

    def eval(self) -> Array:
        if isinstance(self.value, ArrayConst):
            return self.value.array
        with np.errstate(over="ignore"):
            if not self.type.shape and self.type.dtype.kind in "fb":  # the usual case, in half of the time
                return np.asarray(self.value, self.type.dtype.numpy)
            return np.full(ints(self.type.shape), self.value, self.type.dtype.numpy)

    def vjp(self, g: Any, out: Any) -> tuple[Any, ...]:
        return ()

    def element(self, at: At) -> Node:
        if isinstance(self.value, ArrayConst):
            raise NotImplementedError("a constant array is read from memory, as a parameter is")
        return Node.of(Const(self.value, TensorType(self.type.dtype, (), self.type.device)), ())

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterator[Sample]:
        for dtype in dt.ALL:
            yield Sample(cls(1, TensorType(dtype, (2, 3))), ())
        for value in (float("nan"), float("inf"), -0.0, 1e-42, 0.1):
            yield Sample(cls(value, TensorType(dt.float32, (2,))), ())
            yield Sample(cls(value, TensorType(dt.float64, ())), ())
        yield Sample(cls(300, TensorType(dt.uint8, (0,))), (), note="wraps to 44")
        yield Sample(cls(ArrayConst(np.arange(6, dtype=np.float32).reshape(2, 3)), TensorType(dt.float32, (2, 3))), ())


def _as_scalar(value: Scalar, dtype: DType) -> Scalar:
    if type(value) is SymInt and dtype.kind != "b":  # stays what it is, for the recording
        return value
    match dtype.kind:
        case "b":
            return bool(value)
        case "f":
            return float(value)
        case _:
            bits = 8 * dtype.itemsize
            n = int(value) & ((1 << bits) - 1)
            return n - (1 << bits) if dtype.is_signed and n >> (bits - 1) else n


def ints(shape: Shape) -> tuple[int, ...]:
    """The extents as numbers. Raises OpError where a symbol has none yet."""
    if bad := [d for d in shape if not isinstance(d, int)]:
        raise OpError(f"the extent {bad[0]} of {list(shape)} has no value yet")
    return tuple(int(d) for d in shape)  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True)
class Iota(Op):
    """y[i] = i[axis], as `dtype`."""

    name = "iota"
    shape: Shape
    axis: int
    dtype: DType

    def infer(self) -> Type:
        if not 0 <= self.axis < len(self.shape):
            raise OpError(f"iota along axis {self.axis} of shape {list(self.shape)}: there is no such axis")
        if self.dtype.kind == "b":
            raise OpError("iota has no meaning for bool")
        return TensorType(self.dtype, self.shape)

    def eval(self) -> Array:
        shape = ints(self.shape)
        line = np.arange(shape[self.axis]).astype(self.dtype.numpy)
        column = line.reshape([-1 if a == self.axis else 1 for a in range(len(shape))])
        return np.array(np.broadcast_to(column, shape))  # writable: the tensor over it is the user's

    def vjp(self, g: Any, out: Any) -> tuple[Any, ...]:
        return ()

    def element(self, at: At) -> Node:
        i = as_node(at[self.axis])
        return i if self.dtype is dt.int64 else Op.registry["cast"](self.dtype)(i)  # type: ignore[call-arg]

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterator[Sample]:
        for dtype in dt.ALL:
            if dtype.kind != "b":
                yield Sample(cls((3, 4), 1, dtype), ())
        yield Sample(cls((3, 4, 2), 0, dt.int64), ())
        yield Sample(cls((0,), 0, dt.int64), ())
        yield Sample(cls((1,), 0, dt.float32), ())


@dataclass(frozen=True)
class RandomBits(Op):
    """y[i] = word i % 4 of Philox4x32-10 with key seed at counter offset + i // 4; the state is (seed, offset), i64[2].

    i counts elements row-major, so the bits do not depend on how the work is split.
    """

    name = "random_bits"
    shape: Shape

    def infer(self, state: TensorType) -> Type:
        if state.dtype is not dt.int64 or state.shape != (2,):
            raise OpError(f"random_bits wants its state as i64[2] (seed, offset), got {state}")
        return TensorType(dt.int32, self.shape, state.device)

    @np.errstate(all="ignore")
    def eval(self, state: Array) -> Array:
        shape = ints(self.shape)
        size = int(np.prod(shape, dtype=np.int64))
        seed, offset = state.astype(np.uint64)
        blocks = np.arange((size + 3) // 4, dtype=np.uint64) + offset
        low, shift = np.uint64(LOW), np.uint64(32)
        zero = np.zeros_like(blocks)
        words = philox((blocks & low, blocks >> shift, zero, zero), (seed & low, seed >> shift))
        return np.stack(words, -1).astype(np.uint32).view(np.int32).reshape(-1)[:size].reshape(shape)

    def vjp(self, g: Any, out: Any, state: Any) -> tuple[Any, ...]:
        return (None,)

    def element(self, at: At, state: Reader) -> Node:
        return random_word(as_node(linear(at, self.shape)), state((Index.at(0),)), state((Index.at(1),)))

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterator[Sample]:
        state = np.array([0x1234_5678_9ABC, 7], np.int64)
        for shape in ((0,), (1,), (4,), (3, 5), ()):
            yield Sample(cls(shape), (state,))
        yield Sample(cls((9,)), (np.array([-1, 2**32 - 1], np.int64),), note="carries into the second counter word")


def full(like: Value, value: Scalar, type: TensorType) -> Any:
    """`value` filled out to `type`, in the domain of `like`."""
    return like.emit(Const(value, type), ())


def const(like: Value, value: Scalar, dtype: DType, shape: Shape = ()) -> Any:
    """`value` as `dtype` in the domain and on the device of `like`."""
    return like.emit(Const(value, TensorType(dtype, shape, like.type.device)), ())


def zeros_like(x: Value) -> Any:
    """Zeros of the type of x."""
    return full(x, 0, x.type)


def iota(like: Value, shape: tuple[Extent, ...], axis: int, dtype: DType = dt.int64) -> Any:
    """y[i] = i[axis], in the domain of `like`."""
    return like.emit(Iota(tuple(shape), axis, dtype), ())


def random_bits(state: Value, shape: tuple[Extent, ...]) -> Any:
    """Random i32 words of `shape` from `state` = (seed, offset)."""
    return RandomBits(tuple(shape))(state)
