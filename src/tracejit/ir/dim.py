"""Dimensions: an int, or a polynomial in named symbols with integer coefficients.

A `Dim` is canonical and hashable, so `2*n + 1 == n + n + 1`. Comparing dims is True, False or unknown; unknown raises
`InconclusiveDim` (never guess). Shapes are tuples of `int | Dim`; a polynomial that is constant becomes an `int` at
once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracejit.errors import InconclusiveDim

__all__ = ["Dim", "Extent", "Shape", "Sym", "product", "substitute", "symbols"]

Monomial = tuple[tuple[str, int], ...]  # (("m", 1), ("n", 2)) is m * n**2; () is 1


class Dim:
    """sum of coefficient * monomial, at least one monomial not constant."""

    __slots__ = ("_hash", "terms")
    terms: tuple[tuple[Monomial, int], ...]

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        self.terms = terms
        self._hash = hash(terms)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        """Identity as polynomials. `n == 3` is unknown and raises; use `same` to ask for identity only."""
        if isinstance(other, Dim):
            if self.terms == other.terms:
                return True
            if isinstance(d := self - other, int):
                return d == 0
            raise InconclusiveDim(f"whether {self} == {other} depends on the symbols")
        if isinstance(other, int):
            raise InconclusiveDim(f"whether {self} == {other} depends on the symbols")
        return NotImplemented

    def __add__(self, other: Extent) -> Extent:
        return _sum(self, other, 1)

    __radd__ = __add__

    def __sub__(self, other: Extent) -> Extent:
        return _sum(self, other, -1)

    def __rsub__(self, other: Extent) -> Extent:
        return _sum(other, self, -1)

    def __neg__(self) -> Extent:
        return _sum(0, self, -1)

    def __mul__(self, other: Extent) -> Extent:
        out: dict[Monomial, int] = {}
        for m, a in self.terms:
            for n, b in _terms(other):
                key = _times(m, n)
                out[key] = out.get(key, 0) + a * b
        return _canonical(out)

    __rmul__ = __mul__

    def __floordiv__(self, other: int) -> Extent:
        """Exact division by an int; raises InconclusiveDim where a coefficient is not a multiple."""
        if any(c % other for _, c in self.terms):
            raise InconclusiveDim(f"{self} // {other} is not a polynomial")
        return _canonical({m: c // other for m, c in self.terms})

    def __repr__(self) -> str:
        parts: list[str] = []
        for m, c in self.terms:
            word = "*".join(v if p == 1 else f"{v}^{p}" for v, p in m)
            size = abs(c)
            text = str(size) if not word else word if size == 1 else f"{size}*{word}"
            parts.append(("- " if c < 0 else "+ ") + text if parts else ("-" if c < 0 else "") + text)
        return " ".join(parts)


Extent = int | Dim
Shape = tuple[Extent, ...]


class Sym(Dim):
    """A named symbol. `hint` is the extent seen when recording; it takes no part in equality."""

    __slots__ = ("hint", "name")

    def __init__(self, name: str, hint: int | None = None) -> None:
        super().__init__(((((name, 1),), 1),))
        self.name, self.hint = name, hint


def _terms(x: Extent) -> tuple[tuple[Monomial, int], ...]:
    return x.terms if isinstance(x, Dim) else (((), int(x)),)


def _times(m: Monomial, n: Monomial) -> Monomial:
    powers = dict(m)
    for v, p in n:
        powers[v] = powers.get(v, 0) + p
    return tuple(sorted(powers.items()))


def _sum(a: Extent, b: Extent, sign: int) -> Extent:
    out = dict(_terms(a))
    for m, c in _terms(b):
        out[m] = out.get(m, 0) + sign * c
    return _canonical(out)


def _canonical(terms: Mapping[Monomial, int]) -> Extent:
    kept = sorted(((m, c) for m, c in terms.items() if c), key=lambda t: (-sum(p for _, p in t[0]), t[0]))
    if not kept:
        return 0
    return kept[0][1] if kept == [((), kept[0][1])] else Dim(tuple(kept))


def same(a: Extent, b: Extent) -> bool:
    """True where a and b are the same polynomial; False also where they might be equal."""
    if isinstance(a, int) and isinstance(b, int):  # nearly always, and every eager op asks
        return a == b
    return _terms(a) == _terms(b)


def product(shape: Shape) -> Extent:
    """Number of elements of a shape."""
    out: Extent = 1
    for d in shape:
        out = out * d
    return out


def symbols(shape: Shape) -> tuple[str, ...]:
    """Names of the symbols in a shape, in order of first appearance."""
    return tuple(dict.fromkeys(v for d in shape if isinstance(d, Dim) for m, _ in d.terms for v, _ in m))


def substitute(x: Any, values: Mapping[str, int]) -> Any:
    """`x` (an extent, or tuples of extents and other things) with symbols replaced by ints where known."""
    if isinstance(x, tuple):
        return tuple(substitute(v, values) for v in x)  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(x, Dim):
        return x
    out: dict[Monomial, int] = {}
    for m, c in x.terms:
        rest: list[tuple[str, int]] = []
        for v, p in m:
            if v in values:
                c *= values[v] ** p
            else:
                rest.append((v, p))
        out[tuple(rest)] = out.get(tuple(rest), 0) + c
    return _canonical(out)
