"""Places: affine index arithmetic, and holes, which are elements of nodes that are not expanded yet.

Everything stays affine. Where an index would have to be divided, `NeedSplit` names the loop axis whose cut avoids it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tracejit.codegen.kernel import extent, scalars, sizes
from tracejit.ir.dim import Shape
from tracejit.ir.index import Axis, Index
from tracejit.ir.node import Node
from tracejit.ir.op import Op
from tracejit.ir.types import TensorType, Type

__all__ = [
    "At",
    "Hole",
    "NeedSplit",
    "Operand",
    "bounds",
    "divide",
    "extents",
    "flatten",
    "hole",
    "holes",
    "key",
    "operands",
    "place",
    "renamed",
    "reshaped",
    "strides_of",
]

At = tuple[Any, ...]  # an Index or scalar Node for each axis


@dataclass(frozen=True, eq=False)
class Hole(Op):
    """An element that is not expanded yet: node `node` at `at`."""

    name = "hole"
    node: Node
    at: At

    def infer(self, *types: TensorType) -> Type:
        return TensorType(self.node.dtype, ())


@dataclass(frozen=True)
class Operand:
    """What `Op.element` reads its operand from: gives holes."""

    node: Node

    @property
    def type(self) -> TensorType:
        """The operand's type."""
        return self.node.type

    def __call__(self, at: At) -> Node:
        return hole(self.node, tuple(at))


class NeedSplit(Exception):
    """A loop axis must be cut so that its inner part has `inner` steps."""

    def __init__(self, axis: Axis, inner: int) -> None:
        self.axis, self.inner = axis, inner


def key(index: Index) -> tuple[Any, ...]:
    """Equal for equal indices."""
    return (index.constant, *sorted((id(a), c) for a, c in index.terms))


def bounds(index: Index) -> tuple[int, int]:
    """The lowest and highest value of an index over its axes."""
    low = high = extent(index.constant)
    for a, c in index.terms:
        reach = extent(c) * (extent(a.extent) - 1)
        low, high = low + min(0, reach), high + max(0, reach)
    return low, high


def extents(axes: Sequence[Axis]) -> tuple[int, ...]:
    """Extents of axes."""
    return sizes(a.extent for a in axes)


def renamed(index: Index, axes: Mapping[Axis, Axis]) -> Index:
    """The index with other axes."""
    return Index(tuple((axes.get(a, a), c) for a, c in index.terms), index.constant) if axes else index


def strides_of(shape: Shape) -> tuple[int, ...]:
    """Row-major strides in elements."""
    out: list[int] = []
    step = 1
    for d in reversed(shape):
        out.append(step)
        step *= extent(d)
    return tuple(reversed(out))


def flatten(at: Sequence[Index], shape: Shape) -> Index:
    """The row-major position of an affine index."""
    out = Index.at(0)
    for i, s in zip(at, strides_of(shape), strict=True):
        out = out + i * s
    return out


def divide(index: Index, n: int) -> tuple[Index, Index]:
    """index // n and index % n as affine indices. Raises NeedSplit where cutting an axis would make them affine."""
    if n == 1:
        return index, Index.at(0)
    whole = [(a, extent(c) // n) for a, c in index.terms if extent(c) % n == 0]
    rest = [(a, extent(c)) for a, c in index.terms if extent(c) % n]
    base, constant = divmod(extent(index.constant), n)
    quotient, remainder = Index(tuple(whole), base), Index(tuple(rest), constant)
    low, high = bounds(remainder)
    if low >= 0 and high < n:
        return quotient, remainder
    for a, c in rest:
        if constant == 0 and c > 0 and n % c == 0 and extent(a.extent) % (n // c) == 0 and extent(a.extent) > n // c:
            raise NeedSplit(a, n // c)
    raise ValueError(f"{index} // {n} is not affine")


def reshaped(at: Sequence[Index], source: Shape, shape: Shape) -> tuple[Index, ...]:
    """The place in `source` of place `at` in `shape`, its reshape. Raises NeedSplit, or ValueError: none is affine."""
    out: list[Index] = [Index.at(0)] * len(source)
    i = j = 0
    while i < len(shape) or j < len(source):
        # The shortest runs of axes with equal products stand for each other.
        lo_i, lo_j = i, j
        m = n = 1
        while True:
            if m == n and i > lo_i and j > lo_j:
                break
            if m <= n and i < len(shape):
                m *= extent(shape[i])
                i += 1
            elif j < len(source):
                n *= extent(source[j])
                j += 1
            elif i < len(shape):
                m *= extent(shape[i])
                i += 1
            else:
                break
        flat = flatten(at[lo_i:i], shape[lo_i:i])
        for k in range(j - 1, lo_j, -1):
            flat, out[k] = divide(flat, extent(source[k]))
        if j > lo_j:
            out[lo_j] = flat
    return tuple(out)


def operands(n: Node) -> list[Operand]:
    """What `Op.element` of this node reads."""
    return [Operand(i) for i in n.inputs]


def hole(n: Node, at: At) -> Node:
    """A placeholder for the element of `n` at `at`."""
    inputs = tuple(i for i in at if isinstance(i, Node))
    return Node(Hole(n, at), inputs, TensorType(n.dtype, ()))


def place(h: Hole) -> tuple[Any, ...]:
    """Equal for equal elements."""
    return (h.node, tuple(key(i) if isinstance(i, Index) else i for i in h.at))


def holes(root: Node) -> list[Node]:
    """The holes of a draft."""
    return [n for n in scalars([root]) if isinstance(n.op, Hole)]
