"""Dimensions: an int, or a polynomial in named symbols with integer coefficients.

A `Dim` is canonical and hashable, so `2*n + 1 == n + n + 1`. Comparing dims is True, False or unknown; unknown raises
`InconclusiveDim` (never guess). Shapes are tuples of `int | Dim`; a polynomial that is constant becomes an `int` at
once.

Code that serves many extents reasons about *general* ones, where each symbol is at least 2: 0 and 1 mean something else
(nothing there, broadcasting). `at_least` and `quotient` say what then holds for certain, `typical` what to expect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tracejit.errors import InconclusiveDim

__all__ = [
    "GENERAL", "Dim", "Extent", "Shape", "Sym", "at_least", "has_zero", "is_multiple", "product", "quotient", "same",
    "same_shape", "substitute", "symbols", "typical",
]  # fmt: skip

GENERAL = 2  # the least extent that is nothing special
TYPICAL = 256  # where a choice needs a number and there is none yet

Monomial = tuple[tuple[str, int], ...]  # (("m", 1), ("n", 2)) is m * n**2; () is 1


class Dim:
    """sum of coefficient * monomial, at least one monomial not constant."""

    __slots__ = ("_hash", "terms")
    terms: tuple[tuple[Monomial, int], ...]

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        self.terms = terms
        # Python's hashes of -1 and -2 are equal; those of -n and -2*n must not be, for dicts would compare them.
        self._hash = hash(tuple((m, c ^ 0x5BD1E995) for m, c in terms))

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
    if type(a) is int and type(b) is int:  # nearly always, and every eager op asks
        return a == b
    if isinstance(a, int) and isinstance(b, int):  # a `SymInt` notes what it is equal to, and need not note what not
        return int.__eq__(a, b) and a == b
    return _terms(a) == _terms(b)


def same_shape(a: Sequence[Extent], b: Sequence[Extent]) -> bool:
    """True where the extents are the same polynomials."""
    return len(a) == len(b) and all(map(same, a, b))


def at_least(x: Extent, bound: int) -> bool:
    """True where `x >= bound` is certain for general extents; False also where it might be."""
    if isinstance(x, int):
        return x >= bound
    above: Extent = -bound  # x - bound, in terms of how far each symbol is above the least general extent
    for m, c in x.terms:
        part: Extent = c
        for v, p in m:
            for _ in range(p):
                part = part * (Sym(v) + GENERAL)
        above = above + part
    terms = _terms(above)
    return all(c >= 0 for _, c in terms)


def has_zero(shape: Sequence[Extent]) -> bool:
    """True where there are no elements, for certain."""
    return any(isinstance(d, int) and d == 0 for d in shape)


def is_multiple(x: Extent, n: int) -> bool:
    """True where n divides `x` whatever its symbols are."""
    return all(c % n == 0 for _, c in _terms(x))


def quotient(x: Extent, by: Extent) -> Extent | None:
    """`x / by` where that is a polynomial with integer coefficients, else None."""
    if isinstance(x, int) and isinstance(by, int):
        return x // by if by and x % by == 0 else None
    (lead, factor), *_ = _terms(by)
    divisor = dict(lead)
    out: Extent = 0
    for _ in range(32):  # each turn removes the leading monomial, or gives up
        if same(x, 0):
            return out
        (m, c), *_ = _terms(x)
        powers = dict(m)
        if not factor or c % factor or any(powers.get(v, 0) < p for v, p in divisor.items()):
            return None
        left = tuple((v, p - divisor.get(v, 0)) for v, p in m if p > divisor.get(v, 0))
        part = _canonical({left: c // factor})
        out, x = out + part, x - part * by
    return None


def typical(x: Extent) -> int:
    """A number to make choices by: the value of `x` where every symbol is of usual size."""
    return x if isinstance(x, int) else sum(c * TYPICAL ** sum(p for _, p in m) for m, c in x.terms)


def product(shape: Iterable[Extent]) -> Extent:
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
