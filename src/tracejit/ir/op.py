"""One op, one class: its type rule, NumPy meaning, gradient, element and samples stand together.

    class Tanh(Pointwise):
        name = "tanh"
        eval = staticmethod(np.tanh)
        def vjp(self, g, y, x): return (g * (1 - y * y),)

An `Op` subclass is a frozen dataclass; its fields are its attributes, equal by value. Calling an op on values emits it
in their domain: Nodes give a Node, Tensors compute at once (and are recorded), scalars of a kernel body give a scalar
Node. Ops are pure: randomness takes a state, mutation is made functional by the Tensor layer.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from tracejit.cached import cached_property
from tracejit.ir.dim import Dim, Extent
from tracejit.ir.types import TensorType, TupleType, Type
from tracejit.records import dataclass

if TYPE_CHECKING:
    from tracejit.ir.index import Index
    from tracejit.ir.node import Node

__all__ = [
    "Array", "ArrayConst", "At", "Item", "Op", "Param", "Reader", "Reduce", "Sample",
    "attribute_key", "results", "same_op",
]  # fmt: skip

Array = np.ndarray[Any, np.dtype[Any]]
At = tuple["Index | Node", ...]  # one index per axis: affine, or a scalar i64 Node where data decides


class ArrayConst:
    """A constant array as an attribute: equal and hashed by dtype, shape and bytes. Nobody may write to it."""

    __slots__ = ("__dict__", "array")

    def __init__(self, array: Array) -> None:
        self.array = array

    @cached_property
    def digest(self) -> str:
        """What identifies the contents."""
        import hashlib  # with OpenSSL: not for those who only import us

        head = f"{self.array.dtype} {self.array.shape} ".encode()
        return hashlib.sha256(head + np.ascontiguousarray(self.array).tobytes()).hexdigest()

    @property
    def name(self) -> str:
        """A short name for the contents."""
        return "c" + self.digest[:12]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ArrayConst) and (self.array is other.array or self.digest == other.digest)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"@{self.name}"


class Reader(Protocol):
    """An input as `Op.element` sees it: its type, and one element of it at an index."""

    @property
    def type(self) -> TensorType:
        """The input's type."""
        ...

    def __call__(self, at: At) -> Node:
        """The element at `at`, a scalar Node."""
        ...


@dataclass(frozen=True)
class Reduce:
    """What `Op.element` returns for a reduction: combine `element(r)` over all r in `extents`.

    `kind` is one of sum, prod, max, min, argmax, argmin. max and min propagate NaN; argmax and argmin give the first
    position (counted row-major over `extents`), with NaN the extreme, as NumPy and PyTorch do.
    """

    kind: str
    extents: tuple[Extent, ...]
    element: Callable[[tuple[Index, ...]], Node]


@dataclass(frozen=True)
class Sample:
    """One set of inputs that exercises an op. `dims` names symbolic axes as (input, axis, symbol)."""

    op: Op
    inputs: tuple[Array, ...]
    dims: tuple[tuple[int, int, str], ...] = ()
    differentiable: bool = True  # False where the derivative does not exist at these inputs (ties, kinks, integers)
    tolerance: float = 1e-5
    note: str = ""


@dataclass(frozen=True)
class Op:
    """Base of all primitives. Subclasses set `name`, and are registered by it."""

    name: ClassVar[str] = ""
    library: ClassVar[str | None] = None  # a runtime routine that may replace the loops
    registry: ClassVar[dict[str, type[Op]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if name := cls.__dict__.get("name"):
            if name in Op.registry and Op.registry[name].__qualname__ != cls.__qualname__:
                raise TypeError(f"two ops are named {name}")
            Op.registry[name] = cls

    # Subclasses name their operands; `*Any, **Any` is how a checker is told that any signature may override these.
    def infer(self, *types: Any, **_: Any) -> Type:
        """The type rule. Raises OpError naming both types; every caller uses this one rule."""
        raise NotImplementedError

    def eval(self, *arrays: Any, **_: Any) -> Any:
        """NumPy meaning: eager, constant folding, the oracle. Returns the dtype and shape that `infer` says."""
        raise NotImplementedError(f"{self.name} has no NumPy meaning")

    def vjp(self, g: Any, out: Any, *inputs: Any, **_: Any) -> tuple[Any, ...]:
        """Cotangents of the inputs, None where there is none; written with operators and ops only, so it
        differentiates again.

        For ops with several results `g` and `out` are tuples (entries of `g` may be None).
        """
        raise NotImplementedError(f"{self.name} has no gradient")

    def element(self, at: At, *inputs: Any, **_: Any) -> Node | Reduce:
        """ONE element of the result at `at`, from readers of the inputs: fusion is substitution."""
        raise NotImplementedError(f"{self.name} is a library routine")

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterator[Sample]:
        """The awkward inputs: sizes 0 and 1, a symbolic dim, nan, infinities, -0.0, each dtype it claims."""
        return iter(())

    @classmethod
    def is_pullable(cls) -> bool:
        """True where `element` is defined, so that a kernel can compute this op inside its reader's loop."""
        return cls.element is not Op.element

    def __call__(self, *inputs: Any) -> Any:
        """Emit this op on values of one domain (Nodes, or Tensors). Ops with several results give a tuple."""
        return inputs[0].emit(self, inputs)


@dataclass(frozen=True)
class Param(Op):
    """An input of a graph. Identity is the node's, never the op's."""

    name = "param"
    label: str
    type: TensorType

    def infer(self, *types: TensorType) -> Type:
        return self.type

    def vjp(self, g: Any, out: Any, *inputs: Any) -> tuple[Any, ...]:
        return ()


@dataclass(frozen=True)
class Item(Op):
    """Result `index` of an op with several results."""

    name = "item"
    index: int

    def infer(self, *types: Any) -> Type:
        (t,) = types
        return t.items[self.index]

    def eval(self, *arrays: Any) -> Any:
        return arrays[0][self.index]


def results(type: Type) -> Sequence[TensorType]:
    """The tensor types of an op's results, one or several."""
    return type.items if isinstance(type, TupleType) else (type,)


def attribute_key(value: Any) -> Hashable:
    """A hashable that is equal exactly where two attributes mean the same.

    Plain `==` does not do: it holds 0.0 equal to -0.0 and True to 1, nan different from itself, and raises on symbolic
    dims.
    """
    if isinstance(value, float):
        return (float, struct.pack("d", value))
    if isinstance(value, bool):
        return (bool, value)
    if isinstance(value, Dim):
        return (Dim, value.terms)
    if isinstance(value, tuple):
        return tuple(attribute_key(v) for v in value)  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, TensorType):
        return (value.dtype, attribute_key(value.shape), value.device)
    if isinstance(value, Op):
        return (type(value), *(attribute_key(getattr(value, f.name)) for f in fields(value)))
    return value


def same_op(a: Op, b: Op) -> bool:
    """True where a and b are the same op with the same attributes."""
    if type(a) is not type(b):
        return False
    return a is b or not a.__dict__ or attribute_key(a) == attribute_key(b)  # most ops have no attributes at all
