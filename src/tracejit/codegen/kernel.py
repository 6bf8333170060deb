"""A Kernel is one loop nest over scalar Nodes: what every emitter reads, and nothing else.

    for each point of `outer` (in parallel):
        for each stage, in order:
            for each point of the stage's own `axes` (in order):
                accumulators take in their value; stores write theirs

Values are Nodes of rank 0: the IR's own pointwise ops, `inside` and `position` (ops/loop.py), and the two leaves below:
`load`, an element of an operand, and `slot`, the finished result of an earlier stage's accumulator. So one form covers
pointwise work (one stage, no axes), reductions over rows or columns, and rows that are read several times, as softmax
and layer_norm do. Vectors are cut from the last `joint` outer axes, counted as one (`lanes == "outer"`: each lane is a
point of its own, and reductions run down columns), or from the last axis of each stage (`lanes == "inner"`: a point is
a row, and its accumulators are combined across lanes when the stage ends).

An extent, coefficient or size may be symbolic: then it is worked out from the values of the kernel's `symbols`, which
are passed after its buffers. What the kernel was made to rely on holds for all *general* extents (`ir/dim.py`).

The printed form is complete: two kernels that print alike are the same machine code. Buffers and symbols are numbered,
never named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from math import prod
from typing import Any

from tracejit.cached import cached_property
from tracejit.errors import BackendError
from tracejit.ir.dim import Extent, Sym, symbols, typical
from tracejit.ir.dtype import DType
from tracejit.ir.index import Axis, Index
from tracejit.ir.node import Node
from tracejit.ir.op import Op
from tracejit.ir.types import TensorType, Type
from tracejit.ops.loop import Inside, Position
from tracejit.records import dataclass

__all__ = [
    "COST",
    "Accumulator",
    "Buffer",
    "Kernel",
    "Load",
    "Slot",
    "Stage",
    "Store",
    "axes_of",
    "extent",
    "guess",
    "indices",
    "kernel_ops",
    "reindexed",
    "scalars",
    "show",
    "sizes",
]


# What computing an element costs, in additions; 1 where it is not listed.
_HEAVY = ("exp", "expm1", "log", "log1p", "sin", "cos", "tanh", "erf", "pow", "atan2")
COST = {"div": 4, "sqrt": 4, "floordiv": 8, "mod": 8, "random_bits": 60, "random_word": 30} | dict.fromkeys(_HEAVY, 10)


def extent(dim: Extent) -> int:
    """An extent, where code is made for one number: symbols cannot be used there."""
    if isinstance(dim, int):
        return dim
    raise BackendError(f"extent {dim} has no value yet, and what it is used for needs one")


def sizes(shape: Iterable[Extent]) -> tuple[int, ...]:
    """A shape that is known."""
    return tuple(map(extent, shape))


def guess(shape: Iterable[Extent]) -> int:
    """How many elements to expect: for choices, never for what must be right."""
    return prod(map(typical, shape))


@dataclass(frozen=True)
class Load(Op):
    """Element `index + sum_k strides[k] * inputs[k]` of operand `buffer`, counted in elements.

    `safe` says that the index is known to lie in the operand. Otherwise it is clamped to it: the element of an index
    outside is unspecified (its reader selects it away), but memory outside is never touched.
    """

    name = "load"
    buffer: int
    dtype: DType
    index: Index
    strides: tuple[Extent, ...] = ()
    safe: bool = True

    def infer(self, *types: TensorType) -> Type:
        return TensorType(self.dtype, ())


@dataclass(frozen=True)
class Slot(Op):
    """The result of accumulator `number`, in the order of the kernel's stages."""

    name = "slot"
    number: int
    dtype: DType

    def infer(self, *types: TensorType) -> Type:
        return TensorType(self.dtype, ())


@dataclass(frozen=True, slots=True)
class Buffer:
    """An operand: `size` elements of `dtype`. `use` is "in", "out", or "row": thread-own scratch, one row at a time."""

    dtype: DType
    size: Extent
    use: str


@dataclass(frozen=True, slots=True)
class Accumulator:
    """Reduces `value` over the stage's axes. `kind` is sum, prod, max, min, argmax or argmin (the first, row-major).

    The order of combination is fixed by the axes alone, so any number of threads gives the same bits. f16 and bf16 are
    accumulated in f32 and rounded once.
    """

    kind: str
    value: Node
    dtype: DType  # of the result: i64 for argmax and argmin


@dataclass(frozen=True, slots=True)
class Store:
    """Write `value` to element `index` of operand `buffer`."""

    buffer: int
    index: Index
    value: Node


@dataclass(frozen=True, slots=True)
class Stage:
    """One loop nest inside an outer point; with no axes, it runs once."""

    axes: tuple[Axis, ...]
    accumulators: tuple[Accumulator, ...]
    stores: tuple[Store, ...]


@dataclass(frozen=True)
class Kernel:
    """See the module's description."""

    outer: tuple[Axis, ...]
    stages: tuple[Stage, ...]
    buffers: tuple[Buffer, ...]
    lanes: str  # "outer" or "inner"
    joint: int = 1

    def __str__(self) -> str:
        return self.text

    @cached_property
    def text(self) -> str:
        """The kernel as a loop nest."""
        return show(self)

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """The symbols in its extents, in the order their values are passed: that of their appearance."""
        printer = _Printer()
        _show(self, printer)
        return tuple(printer.symbols)


def scalars(roots: Iterable[Node]) -> list[Node]:
    """All scalar Nodes that `roots` need, inputs first. No recursion."""
    order: list[Node] = []
    done: set[Node] = set()
    for root in roots:
        stack: list[tuple[Node, bool]] = [(root, False)]
        while stack:
            node, ready = stack.pop()
            if ready:
                order.append(node)
            elif node not in done:
                done.add(node)
                stack.append((node, True))
                stack.extend((i, False) for i in reversed(node.inputs) if i not in done)
    return order


def indices(op: Op) -> tuple[Index, ...]:
    """The index expressions that an op of a kernel body holds."""
    if isinstance(op, (Load, Position)):
        return (op.index,)
    return tuple(i for i, _, _ in op.conditions) if isinstance(op, Inside) else ()


def reindexed(op: Op, change: Callable[[Index], Index]) -> Op:
    """The op of a kernel body with its index expressions changed; the same object where it has none."""
    if isinstance(op, Load):
        return Load(op.buffer, op.dtype, change(op.index), op.strides, op.safe)
    if isinstance(op, Position):
        return Position(change(op.index))
    if isinstance(op, Inside):
        return Inside(tuple((change(i), lo, hi) for i, lo, hi in op.conditions))
    return op


def axes_of(op: Op) -> set[Axis]:
    """The axes an op of a kernel body speaks of."""
    return {a for i in indices(op) for a, _ in i.terms}


def kernel_ops(kernel: Kernel) -> list[str]:
    """The names of the operations fused in a kernel, in order."""
    found: list[str] = []
    for stage in kernel.stages:
        values = [*(a.value for a in stage.accumulators), *(s.value for s in stage.stores)]
        found += [n.op.name for n in scalars(values) if not isinstance(n.op, (Load, Slot)) and n.op.name != "const"]
        found += [a.kind for a in stage.accumulators]
    return found


# ---------------------------------------------------------------- printing


def show(kernel: Kernel) -> str:
    """The kernel as a loop nest, in the value syntax of the IR."""
    return _show(kernel, _Printer())


def _show(kernel: Kernel, printer: _Printer) -> str:
    head = ", ".join(f"{b.use} {b.dtype.name}[{printer.dim(b.size)}] a{k}" for k, b in enumerate(kernel.buffers))
    out = [f"kernel({head}) lanes={kernel.lanes} joint={kernel.joint} {{"]
    pad = "  "
    for axis in kernel.outer:
        out.append(f"{pad}for {printer.axis(axis)} in {printer.dim(axis.extent)}:  # parallel")
        pad += "  "
    slot = 0
    for stage in kernel.stages:
        slot = printer.stage(stage, pad, slot, out)
    return "\n".join([*out, "}"])


class _Printer:
    """Names axes, values and symbols by order of appearance, so that equal kernels print alike."""

    def __init__(self) -> None:
        self.axes: dict[Axis, str] = {}
        self.values: dict[Node, str] = {}
        self.symbols: dict[str, Sym] = {}

    def dim(self, d: Extent) -> str:
        """An extent; terms in the order of the new names."""
        if isinstance(d, int):
            return str(d)
        out: Extent = 0
        for monomial, c in d.terms:
            part: Extent = c
            for name, power in monomial:
                if name not in self.symbols:
                    self.symbols[name] = Sym(f"n{len(self.symbols)}")
                for _ in range(power):
                    part = part * self.symbols[name]
            out = out + part
        return f"({out})"

    def axis(self, axis: Axis) -> str:
        return self.axes.setdefault(axis, f"i{len(self.axes)}")

    def index(self, index: Index) -> str:
        terms = sorted(((self.axis(a), c) for a, c in index.terms), key=lambda t: t[0])
        parts = [a if isinstance(c, int) and c == 1 else f"{self.dim(c)}*{a}" for a, c in terms]
        if not parts or not (isinstance(index.constant, int) and index.constant == 0):
            parts.append(self.dim(index.constant))
        return " + ".join(parts)

    def stage(self, stage: Stage, pad: str, slot: int, out: list[str]) -> int:
        for axis in stage.axes:
            out.append(f"{pad}for {self.axis(axis)} in {self.dim(axis.extent)}:")
            pad += "  "
        self.values = {}
        for n in scalars([*(a.value for a in stage.accumulators), *(s.value for s in stage.stores)]):
            self.values[n] = f"%{len(self.values)}"
            out.append(f"{pad}{self.values[n]} = {self.operation(n)} : {n.dtype.name}")
        for a in stage.accumulators:
            out.append(f"{pad}s{slot} : {a.dtype.name} <- {a.kind} {self.values[a.value]}")
            slot += 1
        for s in stage.stores:
            out.append(f"{pad}a{s.buffer}[{self.index(s.index)}] = {self.values[s.value]}")
        return slot

    def operation(self, n: Node) -> str:
        op, args = n.op, [self.values[i] for i in n.inputs]
        if isinstance(op, Load):
            where = " + ".join(
                [self.index(op.index), *(f"{self.dim(c)}*{a}" for c, a in zip(op.strides, args, strict=True))]
            )
            return f"a{op.buffer}[{where}]" + ("" if op.safe else " clamped")
        if isinstance(op, Slot):
            return f"s{op.number}"
        if isinstance(op, Position):
            return f"position {self.index(op.index)}"
        if isinstance(op, Inside):
            return "inside " + ", ".join(
                f"{self.dim(lo)} <= {self.index(i)} < {self.dim(hi)}" for i, lo, hi in op.conditions
            )
        return f"{op.name}({', '.join([*args, *attributes(op)])})"


def attributes(op: Op) -> list[str]:
    """The op's fields as text; types are left out, since every line shows its own."""
    return [text(getattr(op, f.name)) for f in fields(op) if not isinstance(getattr(op, f.name), TensorType)]


def text(value: Any) -> str:
    """An attribute in the kernel's text form."""
    if symbols(value if isinstance(value, tuple) else (value,)):  # pyright: ignore[reportUnknownArgumentType]
        raise BackendError(f"attribute {value} of an op in a kernel is symbolic")
    return value.name if isinstance(value, DType) else repr(value)
