"""Types say what a value is, never how it is laid out: `dtype[dims]@device`, no strides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracejit.ir.dim import Dim, Extent, Shape, product, same
from tracejit.ir.dtype import DType
from tracejit.records import dataclass

__all__ = ["TensorType", "TupleType", "Type", "same_type"]


@dataclass(frozen=True, slots=True)
class TensorType:
    """The type of one tensor value."""

    dtype: DType
    shape: Shape
    device: str = "cpu"

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> Extent:
        """Number of elements."""
        return product(self.shape)

    @property
    def is_static(self) -> bool:
        """True where every dim is an int."""
        return not any(isinstance(d, Dim) for d in self.shape)

    def with_shape(self, shape: Sequence[Extent]) -> TensorType:
        """This type with another shape."""
        return replace(self, shape=tuple(shape))

    def with_dtype(self, dtype: DType) -> TensorType:
        """This type with another dtype."""
        return replace(self, dtype=dtype)

    def without(self, axes: Sequence[int]) -> TensorType:
        """This type with `axes` dropped."""
        return self.with_shape([d for i, d in enumerate(self.shape) if i not in axes])

    def __str__(self) -> str:
        dims = ", ".join(map(str, self.shape))
        return f"{self.dtype.name}[{dims}]" + (f"@{self.device}" if self.device != "cpu" else "")


@dataclass(frozen=True, slots=True)
class TupleType:
    """The type of an op with several results; only `item` nodes read it."""

    items: tuple[TensorType, ...]

    def __str__(self) -> str:
        return ", ".join(map(str, self.items))


Type = TensorType | TupleType


def same_type(a: Type, b: Type) -> bool:
    """True where a and b are the same type; False, never an error, where that depends on the symbols."""
    if a is b:
        return True
    if isinstance(a, TupleType) or isinstance(b, TupleType):
        ours, theirs = _items(a), _items(b)
        return type(a) is type(b) and len(ours) == len(theirs) and all(map(same_type, ours, theirs))
    return (
        a.dtype is b.dtype
        and a.device == b.device
        and len(a.shape) == len(b.shape)
        and all(map(same, a.shape, b.shape))
    )


def _items(t: Type) -> tuple[TensorType, ...]:
    return t.items if isinstance(t, TupleType) else (t,)
