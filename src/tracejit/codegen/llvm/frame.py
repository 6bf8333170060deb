"""A Frame is the place where code is being written: the loops that are open, their lanes, and the values known there.

A value is computed in the outermost loop it is constant in. `scopes` hold what has been computed, outermost loop first;
a loop that ends drops its own.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tracejit.codegen.kernel import Load, Slot, axes_of, scalars
from tracejit.codegen.llvm.cut import Cut
from tracejit.codegen.llvm.text import Function, Type, Value, i64, ptr
from tracejit.ir.dim import Extent, Sym, is_multiple, product
from tracejit.ir.index import Axis
from tracejit.ir.node import Node

if TYPE_CHECKING:
    from tracejit.codegen.llvm.ahead import Ahead

__all__ = ["Frame"]

NOT_YET = 1 << 30  # a scope that is not open


class Frame:
    """The state of writing one kernel into the function `f`; `pointers` say where its buffers begin."""

    def __init__(self, f: Function, cut: Cut) -> None:
        self.f, self.cut, self.kernel, self.width = f, cut, cut.kernel, cut.width
        self.pointers: list[Value] = []
        self.scopes: list[dict[Node, Value]] = [{}]
        self.coordinates: list[dict[Axis, Value]] = [{}]  # of lanes, in each scope
        self.level: dict[Axis, int] = {}  # the scope in which an axis has a value
        self.axes: dict[Axis, Value] = {}
        self.vector: tuple[Axis, ...] = cut.vector
        self.at: Value | None = None  # lane 0, counted along the vector axes
        self.active: Value | None = None  # lanes that exist, where that may be fewer than all
        self.slots: list[Value] = []
        self.stack: dict[Type, Value] = {}
        self.varying: set[Node] = set()  # values of the stage whose lanes may differ
        self.ahead: tuple[Ahead, ...] = ()  # what the stage asks memory for
        self.base = 0  # the number of scopes around the stage
        self.entry: list[str] = []  # lines of the entry block: what depends on symbols alone
        self.numbers: dict[Extent, Value] = {}

    def number(self, x: Extent) -> Value | int:
        """An extent: itself, or worked out from the kernel's symbols, once."""
        if isinstance(x, int):
            return x
        if x not in self.numbers:
            with self.at_entry():
                total: Value | int = 0
                for monomial, c in x.terms:
                    part: Value | int = c
                    for name, power in monomial:
                        for _ in range(power):
                            symbol = self.symbol(name)
                            part = symbol if isinstance(part, int) and part == 1 else symbol * part
                    total = part if isinstance(total, int) and total == 0 else self.f.value(total, i64) + part
                self.numbers[x] = self.f.value(total, i64)
        return self.numbers[x]

    def symbol(self, name: str) -> Value:
        """The value of a symbol, which is passed after the buffers."""
        key = Sym(name)
        if key not in self.numbers:
            before = sum(b.use != "row" for b in self.kernel.buffers)
            address = self.f.element(self.f.args[0], before + self.kernel.symbols.index(name), i64)
            self.numbers[key] = self.f.load(i64, address)
        return self.numbers[key]

    @contextmanager
    def at_entry(self) -> Generator[None]:
        """What is written inside goes to the entry block; it may use arguments, symbols and numbers."""
        with self.f.writing(self.entry):
            yield

    def wide(self, x: Extent, type: Type) -> Value:
        """An extent in every lane of a vector of integers."""
        n = self.number(x)
        return self.f.value(n, type) if isinstance(n, int) else n.cast(type.wide(1)).splat(type.width)

    @contextmanager
    def lanes(self, group: tuple[Axis, ...], at: Value) -> Generator[None]:
        """Inside, `group` is cut into vectors and `at` is the number of lane 0's point."""
        for axis in group:
            self.axes[axis] = at  # stands for "known from here on": indices count the group as one
        before = self.vector, self.at, self.active
        n = product(a.extent for a in group)
        is_even = is_multiple(n, self.width)
        self.vector, self.at, self.active = group, at, None if is_even else self.f.value(self.number(n), i64) - at
        yield
        self.vector, self.at, self.active = before

    @contextmanager
    def scope(self, *axes: Axis) -> Generator[None]:
        """Inside, `axes` have values; what is computed there is dropped at the end."""
        for axis in axes:
            self.level[axis] = len(self.scopes)
        self.scopes.append({})
        self.coordinates.append(dict(self.coordinates[-1]))
        yield
        self.scopes.pop()
        self.coordinates.pop()
        for axis in axes:
            del self.level[axis]

    def depth(self, n: Node) -> int:
        """The scope where `n` has a value: the innermost axis it depends on."""
        out = 0
        for m in scalars([n]) if n.inputs else (n,):
            for a in axes_of(m.op):
                out = max(out, self.level.get(a, NOT_YET) if a in self.axes and self.is_open(a) else NOT_YET)
            if isinstance(m.op, Slot) or (isinstance(m.op, Load) and self.kernel.buffers[m.op.buffer].use != "in"):
                out = max(out, self.base - 1)
        return out

    def is_open(self, axis: Axis) -> bool:
        """True inside the loop of `axis`."""
        return self.level.get(axis, NOT_YET) < len(self.scopes)

    def has(self, n: Node) -> bool:
        """True where `n` has been computed."""
        return any(n in s for s in self.scopes)

    def get(self, n: Node) -> Value:
        """The value of `n`."""
        for s in reversed(self.scopes):
            if n in s:
                return s[n]
        raise AssertionError(f"{n} is used before it is computed")

    def spill(self, type: Type) -> Value:
        """Stack memory for one vector."""
        t = type.wide(self.width)
        return self.stack.setdefault(t, Value(self.f, f"%stack.{t.suffix}", ptr))
