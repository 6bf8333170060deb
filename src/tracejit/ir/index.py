"""Affine index expressions over the axes of a loop nest: what `Op.element` receives as `at`.

An `Index` is sum of coefficient * axis + constant. Staying affine is what keeps addresses free: a reader that would
need division materialises its input instead.
"""

from __future__ import annotations

from collections.abc import Mapping

from tracejit.ir.dim import Extent
from tracejit.records import dataclass

__all__ = ["Axis", "Index"]


@dataclass(frozen=True, eq=False, slots=True)
class Axis:
    """One loop of a nest, compared by identity."""

    name: str
    extent: Extent

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Index:
    """sum of coefficient * axis + constant."""

    terms: tuple[tuple[Axis, Extent], ...]
    constant: Extent = 0

    @classmethod
    def of(cls, axis: Axis) -> Index:
        """The index that runs along `axis`."""
        return cls(((axis, 1),))

    @classmethod
    def at(cls, constant: Extent) -> Index:
        """A fixed position."""
        return cls((), constant)

    def _combine(self, other: Index | Extent, sign: int) -> Index:
        if not isinstance(other, Index):
            return Index(self.terms, self.constant + sign * other)
        out = dict(self.terms)
        for axis, c in other.terms:
            out[axis] = out.get(axis, 0) + sign * c
        return Index.from_terms(out, self.constant + sign * other.constant)

    @classmethod
    def from_terms(cls, terms: Mapping[Axis, Extent], constant: Extent) -> Index:
        """Canonical form of a sum."""
        return cls(tuple((a, c) for a, c in terms.items() if not (isinstance(c, int) and c == 0)), constant)

    def __add__(self, other: Index | Extent) -> Index:
        return self._combine(other, 1)

    __radd__ = __add__

    def __sub__(self, other: Index | Extent) -> Index:
        return self._combine(other, -1)

    def __rsub__(self, other: Extent) -> Index:
        return (self * -1) + other

    def __mul__(self, other: Extent) -> Index:
        return Index.from_terms({a: c * other for a, c in self.terms}, self.constant * other)

    __rmul__ = __mul__

    def __repr__(self) -> str:
        parts = [a.name if isinstance(c, int) and c == 1 else f"{c}*{a.name}" for a, c in self.terms]
        if not parts or not (isinstance(self.constant, int) and self.constant == 0):
            parts.append(str(self.constant))
        return " + ".join(parts)
