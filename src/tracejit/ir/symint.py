"""Extents as Python ints, while one call is recorded for all extents.

A `SymInt` is the extent of this call, an int like any other, that also knows which polynomial of symbols it is. Adding
and multiplying keeps that; a comparison gives the outcome of this call and notes it, unless it is certain for all
general extents (`dim.py`); whatever else wants the number *looks*: the symbols behind it are not worth having.

C code reads an int without asking, so what it makes of one goes unnoticed here. That is found out when the recording is
held against another one, at other extents.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from typing import Any

from tracejit.ir.dim import Dim, Extent, at_least, quotient, substitute, symbols
from tracejit.ir.op import Op
from tracejit.ir.types import TensorType
from tracejit.records import dataclass

__all__ = ["Condition", "Scope", "SymInt", "lifted"]


@dataclass(frozen=True, slots=True)
class Condition:
    """What was found of a polynomial: its sign, or its remainder by `by`."""

    dim: Dim
    by: int  # 0: the sign
    outcome: tuple[int, ...]  # the signs, or remainders, that do

    def holds(self, values: Mapping[str, int]) -> bool:
        """True where it is so at these values."""
        return _found(substitute(self.dim, values), self.by) in self.outcome

    def __str__(self) -> str:
        if self.by:
            return f"{self.dim} % {self.by} == {self.outcome[0]}"
        words: dict[tuple[int, ...], str] = {
            (-1,): "<", (0,): "==", (1,): ">", (-1, 0): "<=", (0, 1): ">=", (-1, 1): "!=",
        }  # fmt: skip
        word = words[self.outcome]
        return f"{self.dim} {word} 0"


def _found(n: int, by: int) -> int:
    return n % by if by else (n > 0) - (n < 0)


@dataclass(eq=False)
class Scope:
    """The symbols of one recording: their values in this call, and what was found of them."""

    values: Mapping[str, int]
    place: Callable[[Dim, int], int] = lambda dim, value: -1  # of an extent among the numbers of a recording
    conditions: dict[Condition, None] = field(default_factory=dict[Condition, None])
    looked: dict[str, str] = field(default_factory=dict[str, str])  # symbol -> what wanted its number
    is_open: bool = True

    def int_of(self, x: Extent) -> int:
        """An extent as an int that knows what it is."""
        if isinstance(x, int):
            return x
        out = SymInt(substitute(x, self.values))
        out.dim, out.scope = x, self
        return out

    def sign(self, x: Extent, wanted: tuple[int, ...]) -> bool:
        """Whether the sign of `x` is one of those wanted; a condition unless that is certain."""
        if isinstance(x, int):
            return _found(x, 0) in wanted
        low = -1 if not at_least(x, 0) else 0 if not at_least(x, 1) else 1
        high = 1 if not at_least(-x, 0) else 0 if not at_least(-x, 1) else -1
        possible = [s for s in (-1, 0, 1) if low <= s <= high]
        if all(s in wanted for s in possible) or not any(s in wanted for s in possible):
            return possible[0] in wanted
        holds = _found(substitute(x, self.values), 0) in wanted
        if self.is_open:
            others = tuple(s for s in (-1, 0, 1) if s not in wanted)
            self.conditions[Condition(x, 0, wanted if holds else others)] = None
        return holds

    def remainder(self, x: Dim, by: int) -> int:
        """x % by: certain where it is, else a condition."""
        rest = {m: c for m, c in x.terms if m}
        constant = next((c for m, c in x.terms if not m), 0)
        if all(c % by == 0 for c in rest.values()):
            return constant % by
        found = substitute(x, self.values) % by
        if self.is_open:
            self.conditions[Condition(x, by, (found,))] = None
        return found

    def look(self, x: Extent, why: str) -> None:
        """Somebody wants the number."""
        if self.is_open:
            for name in symbols((x,)):
                self.looked.setdefault(name, why)

    def split(self, op: Op) -> tuple[Op, Op]:
        """(the op with polynomials, the op with numbers); the same object where it has neither."""
        if isinstance(value := getattr(op, "value", None), SymInt):  # a constant: see `GraphBuilder.emit`
            return op, _of_fields(op, lambda v: value.plain if v is value else _numbers(lifted(v), self.values))
        symbolic = lifted(op)
        return symbolic, _of_fields(symbolic, lambda v: _numbers(v, self.values))


class SymInt(int):
    """See the module's description. `dim` is what it is."""

    dim: Dim
    scope: Scope

    # As the recorder's other numbers that are inputs (`trace/scalars.py`).
    node = recipe = None
    seen = False

    @property
    def ref(self) -> int:
        """Its place among the numbers of the recording."""
        return self.scope.place(self.dim, self.plain)

    @property
    def plain(self) -> int:
        """The number, without a look."""
        return int.__int__(self)

    def looked(self, why: str) -> int:
        """The number, for somebody who wants it."""
        self.scope.look(self.dim, why)
        return self.plain

    def _with(self, other: Any, f: Callable[[Any, Any], Any]) -> Any:
        if isinstance(other, SymInt):
            return self.scope.int_of(f(self.dim, other.dim))
        if isinstance(other, int):
            return self.scope.int_of(f(self.dim, int(other)))
        return f(self.looked("arithmetic with a float"), other) if isinstance(other, float) else NotImplemented

    def __add__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: a + b)

    def __radd__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: b + a)

    def __sub__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: a - b)

    def __rsub__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: b - a)

    def __mul__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: a * b)

    def __rmul__(self, other: Any) -> Any:
        if isinstance(other, (list, tuple, str)):
            return other * self.looked("a sequence repeated")
        return self._with(other, lambda a, b: b * a)

    def __neg__(self) -> Any:
        return self.scope.int_of(-self.dim)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return self if self.scope.sign(self.dim, (0, 1)) else -self

    def divided(self, by: int) -> Any:
        """self // by where that is a polynomial for certain, else None."""
        constant = next((c for m, c in self.dim.terms if not m), 0)
        if by <= 0 or any(c % by for m, c in self.dim.terms if m):
            return None
        return self.scope.int_of((self.dim - constant) // by + constant // by)  # type: ignore[operator]

    def __floordiv__(self, other: Any) -> Any:
        out = None
        if isinstance(other, SymInt):
            q = quotient(self.dim, other.dim)
            out = None if q is None else self.scope.int_of(q)
        elif type(other) is int:
            out = self.divided(other)
        return self._looked("floordiv", other) if out is None else out

    def __mod__(self, other: Any) -> Any:
        if type(other) is int and other > 0:
            return self.scope.remainder(self.dim, other)
        if isinstance(other, SymInt) and quotient(self.dim, other.dim) is not None:
            return 0
        return self._looked("mod", other)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def _looked(self, name: str, other: Any) -> Any:
        if isinstance(other, SymInt):
            other = other.looked(name)
        if not isinstance(other, (int, float)):
            return NotImplemented
        return getattr(operator, name)(self.looked(name), other)

    def __pow__(self, other: Any, mod: Any = None) -> Any:
        if type(other) is int and other == 2 and mod is None:
            return self * self
        return pow(self.looked("pow"), other, mod)

    def __truediv__(self, other: Any) -> Any:
        return self._looked("truediv", other)

    def _reflected(self, other: Any, f: Callable[[Any, Any], Any]) -> Any:
        return f(other, self.looked(f.__name__)) if isinstance(other, (int, float)) else NotImplemented

    def __rtruediv__(self, other: Any) -> Any:
        return self._reflected(other, operator.truediv)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._reflected(other, operator.floordiv)

    def __rmod__(self, other: Any) -> Any:
        return self._reflected(other, operator.mod)

    def __rdivmod__(self, other: Any) -> Any:
        return self._reflected(other, divmod)

    def __rpow__(self, other: Any, mod: Any = None) -> Any:
        return self._reflected(other, operator.pow)

    def _compare(self, other: Any, wanted: tuple[int, ...], f: Callable[[Any, Any], Any]) -> Any:
        if isinstance(other, SymInt):
            return self.scope.sign(self.dim - other.dim, wanted)
        if isinstance(other, int):
            return self.scope.sign(self.dim - int(other), wanted)
        return f(self.looked("comparison with a float"), other) if isinstance(other, float) else NotImplemented

    def __eq__(self, other: object) -> Any:
        return self._compare(other, (0,), operator.eq)

    def __ne__(self, other: object) -> Any:
        return self._compare(other, (-1, 1), operator.ne)

    def __lt__(self, other: Any) -> Any:
        return self._compare(other, (-1,), operator.lt)

    def __le__(self, other: Any) -> Any:
        return self._compare(other, (-1, 0), operator.le)

    def __gt__(self, other: Any) -> Any:
        return self._compare(other, (1,), operator.gt)

    def __ge__(self, other: Any) -> Any:
        return self._compare(other, (0, 1), operator.ge)

    def __bool__(self) -> bool:
        return self.scope.sign(self.dim, (-1, 1))

    def __hash__(self) -> int:
        return int.__hash__(self)

    def __index__(self) -> Any:
        return self

    def __int__(self) -> int:
        return self.looked("int()")

    def __float__(self) -> float:
        return float(self.looked("float()"))

    def __trunc__(self) -> Any:
        return self

    __floor__ = __ceil__ = __trunc__

    def __round__(self, digits: Any = None) -> Any:
        return self if digits is None else round(self.looked("round()"), digits)

    def __and__(self, other: Any) -> Any:
        return self._looked("and_", other)

    def __or__(self, other: Any) -> Any:
        return self._looked("or_", other)

    def __xor__(self, other: Any) -> Any:
        return self._looked("xor", other)

    def __lshift__(self, other: Any) -> Any:
        return self._looked("lshift", other)

    def __rshift__(self, other: Any) -> Any:
        return self._looked("rshift", other)

    def __rand__(self, other: Any) -> Any:
        return self._reflected(other, operator.and_)

    def __ror__(self, other: Any) -> Any:
        return self._reflected(other, operator.or_)

    def __rxor__(self, other: Any) -> Any:
        return self._reflected(other, operator.xor)

    def __rlshift__(self, other: Any) -> Any:
        return self._reflected(other, operator.lshift)

    def __rrshift__(self, other: Any) -> Any:
        return self._reflected(other, operator.rshift)

    def __invert__(self) -> Any:
        return -self - 1

    def bit_length(self) -> int:
        return self.looked("bit_length()").bit_length()

    def __repr__(self) -> str:
        return int.__repr__(self)

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(self.plain, spec)

    def __reduce__(self) -> Any:
        return int, (self.looked("a copy"),)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: object) -> Any:
        return self


# ---------------------------------------------------------------- ops


def lifted(x: Any) -> Any:
    """An op, or an attribute, with polynomials in place of SymInts; itself where there are none."""
    if isinstance(x, SymInt):
        return x.dim
    if isinstance(x, Op):
        return _of_fields(x, lifted)
    if isinstance(x, TensorType):
        shape = lifted(x.shape)
        return x if shape is x.shape else x.with_shape(shape)
    if type(x) is tuple or (isinstance(x, tuple) and any(isinstance(v, SymInt) for v in x)):  # pyright: ignore[reportUnknownVariableType]
        new = [lifted(v) for v in x]  # pyright: ignore[reportUnknownVariableType]
        return x if all(a is b for a, b in zip(new, x)) else tuple(new)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return x


def _numbers(x: Any, values: Mapping[str, int]) -> Any:
    """An attribute with numbers in place of polynomials; itself where there are none."""
    if isinstance(x, TensorType):
        return x if x.is_static else x.with_shape(substitute(x.shape, values))
    if isinstance(x, tuple):
        new = [_numbers(v, values) for v in x]  # pyright: ignore[reportUnknownVariableType]
        return x if all(a is b for a, b in zip(new, x)) else tuple(new)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return substitute(x, values) if isinstance(x, Dim) else x


def _of_fields(op: Op, change: Callable[[Any], Any]) -> Op:
    old = [getattr(op, f.name) for f in fields(op) if f.init]
    new = [change(v) for v in old]
    return op if all(a is b for a, b in zip(new, old)) else type(op)(*new)
