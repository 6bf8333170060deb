"""Strided views: what a chain of transposes, slices, flips, broadcasts and reshapes is to a library kernel.

So a library call reads `x.T[::2]` where it lies. A `pad` by zeros at the end of such a chain can be left to a kernel
that pads as it reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracejit.codegen.place import Hole, NeedSplit, flatten, key, operands, reshaped
from tracejit.ir.dim import Extent, Shape, at_least, same, same_shape, substitute
from tracejit.ir.index import Axis, Index
from tracejit.ir.node import Node
from tracejit.records import dataclass

__all__ = ["Padding", "View", "is_zero", "padded_view", "view"]

_VIEWS = frozenset({"transpose", "slice", "flip", "broadcast", "reshape", "copy", "stop_gradient"})


@dataclass(frozen=True, eq=False)
class View:
    """Element i of the operand is element offset + sum i[a] * strides[a] of `base`."""

    base: Node
    offset: Extent
    strides: Shape

    def at(self, values: Mapping[str, int]) -> View:
        """The view where symbols have these values."""
        return View(self.base, substitute(self.offset, values), substitute(self.strides, values))


@dataclass(frozen=True, slots=True)
class Padding:
    """Zeros along one axis: before, after, and between elements; `size` elements before padding."""

    size: Extent
    low: Extent = 0
    high: Extent = 0
    interior: Extent = 0

    def at(self, values: Mapping[str, int]) -> Padding:
        """The padding where symbols have these values."""
        return Padding(*(substitute(v, values) for v in (self.size, self.low, self.high, self.interior)))


def view(n: Node) -> View:
    """`n` as a view of the first value below it that no view leads to."""
    axes, at = places(n.shape)
    base, at = descend(n, at)
    return strided(base, at, axes)


def padded_view(n: Node, axes_padded: Sequence[int]) -> tuple[View, tuple[Padding, ...]]:
    """`n` as a view of what a `pad` by zeros below it pads, if none but `axes_padded`; and their padding."""
    axes, at = places(n.shape)
    base, at = descend(n, at)
    plain = tuple(Padding(n.shape[a]) for a in axes_padded)
    if base.op.name != "pad" or not is_zero(base.inputs[1]):
        return strided(base, at, axes), plain
    op, x = base.op, base.inputs[0]
    low, high, interior = op.low, op.high, op.interior  # type: ignore[attr-defined]
    inner: list[Index] = list(at)
    found: dict[int, Padding] = {}
    new_axes = list(axes)
    for d, i in enumerate(at):
        if same_shape((low[d], high[d], interior[d]), (0, 0, 0)):
            continue
        size = x.shape[d]
        match = [a for a in axes_padded if (axis := axes[a]) is not None and key(i) == key(Index.of(axis))]
        if len(match) == 1 and at_least(size, 1):
            new_axes[match[0]] = own = Axis(f"p{d}", size)
            inner[d] = Index.of(own) if at_least(size, 2) else Index.at(0)
            found[match[0]] = Padding(size, low[d], high[d], interior[d])
        else:
            return strided(base, at, axes), plain
    below, place = descend(x, tuple(inner))
    return strided(below, place, new_axes), tuple(found.get(a, p) for a, p in zip(axes_padded, plain, strict=True))


def places(shape: Shape) -> tuple[list[Axis | None], tuple[Index, ...]]:
    """An axis for each extent that is not 1, and the place they point at."""
    axes = [Axis(f"v{d}", n) if not same(n, 1) else None for d, n in enumerate(shape)]
    return axes, tuple(Index.of(a) if a is not None else Index.at(0) for a in axes)


def descend(n: Node, at: tuple[Index, ...]) -> tuple[Node, tuple[Index, ...]]:
    """Follow views down as long as the place stays affine."""
    while n.op.name in _VIEWS:
        (x,) = n.inputs
        if n.op.name == "reshape":
            try:
                at = reshaped(at, x.shape, n.shape)
            except (NeedSplit, ValueError):
                return n, at
        elif n.op.name not in ("copy", "stop_gradient"):
            below = n.op.element(at, *operands(n))
            assert isinstance(below, Node)
            assert isinstance(below.op, Hole)
            at = below.op.at
        n = x
    return n, at


def strided(base: Node, at: Sequence[Index], axes: Sequence[Axis | None]) -> View:
    """The view that a place in `base` amounts to."""
    flat = flatten(at, base.shape)
    terms = dict(flat.terms)
    return View(base, flat.constant, tuple(terms.get(a, 0) if a is not None else 0 for a in axes))


def is_zero(n: Node) -> bool:
    """True where all elements are the constant 0 (not -0.0, which would show)."""
    return n.op.name == "const" and str(n.op.value) in ("0.0", "0", "False")  # type: ignore[attr-defined]
