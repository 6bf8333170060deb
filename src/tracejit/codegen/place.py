"""Places: affine index arithmetic, and holes, which are elements of nodes that are not expanded yet.

Everything stays affine. Where an index would have to be divided, `NeedSplit` names the loop axis whose cut avoids it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd
from typing import Any

from tracejit.codegen.kernel import extent, scalars
from tracejit.errors import InconclusiveDim
from tracejit.ir.dim import Dim, Extent, Shape, at_least, quotient, same
from tracejit.ir.index import Axis, Index
from tracejit.ir.node import Node
from tracejit.ir.op import Op
from tracejit.ir.types import TensorType, Type
from tracejit.records import dataclass

__all__ = [
    "At",
    "Hole",
    "NeedSplit",
    "Operand",
    "bounds",
    "coarse",
    "divide",
    "extents",
    "flatten",
    "form",
    "hole",
    "holes",
    "is_within",
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

    def __init__(self, axis: Axis, inner: Extent) -> None:
        self.axis, self.inner = axis, inner


def key(index: Index) -> tuple[Any, ...]:
    """Equal for equal indices."""
    return (form(index.constant), *sorted(((id(a), form(c)) for a, c in index.terms), key=lambda t: t[0]))


def form(x: Extent) -> Any:
    """Equal for the same polynomials, and never a question."""
    return x.terms if isinstance(x, Dim) else x


def bounds(index: Index) -> tuple[Extent, Extent]:
    """The lowest and highest value of an index over its axes; raises InconclusiveDim where symbols decide."""
    low = high = index.constant
    for a, c in index.terms:
        reach = c * (a.extent - 1)
        if at_least(reach, 0):
            high = high + reach
        elif at_least(-reach, 0):
            low = low + reach
        else:
            raise InconclusiveDim(f"whether {c} is positive depends on the symbols")
    return low, high


def is_within(index: Index, size: Extent) -> bool:
    """True where the index is certain to lie in 0 .. size - 1."""
    try:
        low, high = bounds(index)
    except InconclusiveDim:
        return False
    return at_least(low, 0) and at_least(size - high, 1)


def extents(axes: Sequence[Axis]) -> Shape:
    """Extents of axes."""
    return tuple(a.extent for a in axes)


def renamed(index: Index, axes: Mapping[Axis, Axis]) -> Index:
    """The index with other axes."""
    return Index(tuple((axes.get(a, a), c) for a, c in index.terms), index.constant) if axes else index


def strides_of(shape: Shape) -> Shape:
    """Row-major strides in elements."""
    out: list[Extent] = []
    step: Extent = 1
    for d in reversed(shape):
        out.append(step)
        step = step * d
    return tuple(reversed(out))


def flatten(at: Sequence[Index], shape: Shape) -> Index:
    """The row-major position of an affine index."""
    out = Index.at(0)
    for i, s in zip(at, strides_of(shape), strict=True):
        out = out + i * s
    return out


def divide(index: Index, n: Extent) -> tuple[Index, Index]:
    """index // n and index % n as affine indices. Raises NeedSplit where cutting an axis would make them affine."""
    if same(n, 1):
        return index, Index.at(0)
    whole = [(a, q) for a, c in index.terms if (q := quotient(c, n)) is not None]
    rest = [(a, c) for a, c in index.terms if quotient(c, n) is None]
    base, constant = divided(index.constant, n)
    remainder = Index(tuple(rest), constant)
    if is_within(remainder, n):
        return Index(tuple(whole), base), remainder
    for a, c in rest:
        if same(constant, 0) and at_least(c, 1) and (inner := quotient(n, c)) is not None:
            outer = quotient(a.extent, inner)
            if outer is not None and at_least(outer, 2):
                raise NeedSplit(a, inner)
    raise ValueError(f"{index} // {n} is not affine")


def divided(x: Extent, n: Extent) -> tuple[Extent, Extent]:
    """x as a multiple of n and a rest: that of division where both are numbers."""
    if isinstance(x, int) and isinstance(n, int):
        return divmod(x, n)
    q = quotient(x, n)
    return (0, x) if q is None else (q, 0)


def coarse(condition: tuple[Index, Extent, Extent]) -> tuple[Index, Extent, Extent]:
    """The same condition without the axes that cannot decide it: 512 <= 64 i + j < 768 as 8 <= i < 12, for j < 64.

    A condition that is equal for all lanes of a vector costs next to nothing.
    """
    index, lowest, limit = condition
    known = [index.constant, lowest, limit, *(x for a, c in index.terms for x in (c, a.extent))]
    if not all(isinstance(x, int) for x in known):
        return condition
    terms = sorted(((extent(c), a) for a, c in index.terms), key=lambda t: abs(t[0]))
    first, last = (extent(x) - extent(index.constant) for x in (lowest, limit))
    reach = 0
    for k, (c, a) in enumerate(terms):
        unit = gcd(first, last, *(b for b, _ in terms[k:]))
        if k and reach < unit:
            return Index(tuple((b, n // unit) for n, b in terms[k:]), 0), first // unit, last // unit
        if c < 0:
            break
        reach += c * (extent(a.extent) - 1)
    return condition


def reshaped(at: Sequence[Index], source: Shape, shape: Shape) -> tuple[Index, ...]:
    """The place in `source` of place `at` in `shape`, its reshape. Raises NeedSplit, or ValueError: none is affine."""
    out: list[Index] = [Index.at(0)] * len(source)
    i = j = 0
    while i < len(shape) or j < len(source):
        # The shortest runs of axes with equal products stand for each other.
        lo_i, lo_j = i, j
        m: Extent = 1
        n: Extent = 1
        while True:
            if same(m, n) and i > lo_i and j > lo_j:
                break
            if i < len(shape) and (j == len(source) or is_shorter(m, n)):
                m = m * shape[i]
                i += 1
            elif j < len(source):
                n = n * source[j]
                j += 1
            else:
                break
        flat = flatten(at[lo_i:i], shape[lo_i:i])
        for k in range(j - 1, lo_j, -1):
            flat, out[k] = divide(flat, source[k])
        if j > lo_j:
            out[lo_j] = flat
    return tuple(out)


def is_shorter(m: Extent, n: Extent) -> bool:
    """True where m <= n, False where m > n; raises ValueError where that depends on the symbols."""
    if at_least(n - m, 0):
        return True
    if at_least(m - n, 1):
        return False
    raise ValueError(f"whether {m} <= {n} depends on the symbols")


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
