"""Kernel -> Python source: one function of scalars and loops that a person can read, and Numba can compile anywhere.

    # each point: max of 257; sub exp, sum of 257; sub exp div
    def kernel(lo, hi, x0, y1):            # x0: f32, y1: f32
        for i0 in range(lo, hi):
            max0 = np.float32(-np.inf)
            for i1 in range(257):
                v0 = x0[257*i0 + i1]
                max0 = v0 if v0 > max0 or v0 != v0 else max0
            ...

Buffers are one-dimensional: inputs are `x`, outputs `y`, row scratch `row`, each with its operand's number; `v` are
values, `i` loop axes, `s` finished reductions. Every value has its dtype at all times: a bare 1.0 would turn a float32
chain into float64, a bare sum of two int8 has 64 bits. The exceptions are on purpose: sums and products of floats run
in float64 and are rounded once, since a plain float32 loop over a million elements would lose half its digits. f16 and
bf16 are float32 here, in buffers too (whoever launches the kernel converts), and are rounded after every op, as the IR
says.

On the CPU the loop runs over [lo, hi) of the outermost axis. On CUDA each thread takes points of all outer axes, a
grid's width apart. The rest is the same text. Functions such as `exp` and `floor` are the backend's own; see
`FUNCTIONS` and `SCALAR`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from math import isinf, isnan, prod

import numpy as np

from tracejit.codegen.kernel import Accumulator, Kernel, Load, Slot, Stage, Store, axes_of, scalars
from tracejit.errors import BackendError
from tracejit.ir import dtype as dt
from tracejit.ir.dim import Extent
from tracejit.ir.dtype import DType
from tracejit.ir.index import Axis, Index
from tracejit.ir.node import Node
from tracejit.ir.op import Op
from tracejit.ops.loop import Inside, Position
from tracejit.records import dataclass

__all__ = ["FUNCTIONS", "SCALAR", "Operand", "Source", "extent", "points", "supports", "write"]

FUNCTIONS = ("exp", "expm1", "log", "log1p", "sqrt", "sin", "cos", "tanh", "erf", "lgamma", "atan2")  # as in `math`
SCALAR = (  # as in `scalar.py`
    "ceil", "divide_int", "floor", "floor_divide", "modulo", "modulo_int", "power_int", "random_word", "rint",
    "round_bf16", "round_f16",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Operand:
    """A parameter of the function: the dtype of its elements here (f32 for halves), its use, a row size."""

    name: str
    dtype: DType
    use: str
    size: int = 0


@dataclass(frozen=True, slots=True)
class Source:
    """A kernel's text for "cpu" or "cuda". Equal texts are the same machine code: the dtypes stand in it."""

    target: str
    text: str
    operands: tuple[Operand, ...]

    @property
    def key(self) -> str:
        """A short name for the text."""
        return sha256(self.text.encode()).hexdigest()[:12]

    def __str__(self) -> str:
        return self.text


def extent(dim: Extent) -> int:
    """The number of iterations of an axis."""
    if isinstance(dim, int):
        return dim
    raise BackendError(f"extent {dim} has no value yet; kernels are made for concrete shapes")


def points(kernel: Kernel, target: str) -> int:
    """What the function's parallel loop counts: the outermost axis on the CPU, all outer axes on CUDA."""
    return prod(extent(a.extent) for a in (kernel.outer[:1] if target == "cpu" else kernel.outer))


def supports(op: Op, dtypes: Sequence[DType]) -> bool:
    """True where the pointwise `op` on operands of `dtypes` can be written."""
    if isinstance(op, (Load, Slot, Position, Inside)) or op.name == "const":
        return True
    kinds = {d.kind for d in dtypes}
    if op.name in FUNCTIONS or op.name in ("div", "floor", "ceil", "round"):
        return kinds == {"f"}
    if "b" in kinds and op.name in ("sub", "neg", "floordiv", "mod", "pow", "shift_left", "shift_right", "abs", "sign"):
        return False
    return op.name in _POINTWISE


def write(kernel: Kernel, target: str = "cpu") -> Source:
    """The kernel as source for "cpu" or "cuda"."""
    return _Writer(kernel, target).run()


# ---------------------------------------------------------------- the loop nest


class _Writer:
    def __init__(self, kernel: Kernel, target: str) -> None:
        self.kernel, self.target = kernel, target
        self.lines: list[str] = []
        self.pad = ""
        self.axes: dict[Axis, str] = {}
        self.names: dict[Node, str] = {}
        self.written: set[Node] = set()  # values that have been computed at this point of the text
        self.level: dict[Axis, int] = {a: d for d, a in enumerate(kernel.outer, 1)}
        self.slots: list[str] = []
        letters = {"in": "x", "out": "y", "row": "row"}
        self.operands = tuple(
            Operand(f"{letters[b.use]}{k}", working(b.dtype), b.use, extent(b.size) if b.use == "row" else 0)
            for k, b in enumerate(kernel.buffers)
        )

    def run(self) -> Source:
        self.head()
        for stage in self.kernel.stages:
            self.stage(stage)
        return Source(self.target, "\n".join(self.lines) + "\n", self.operands)

    def line(self, text: str) -> None:
        self.lines.append(self.pad + text)

    def open(self, text: str) -> None:
        self.line(text)
        self.pad += "    "

    def head(self) -> None:
        """The signature, the row buffers, and the loops over the outer axes."""
        outer, arguments = self.kernel.outer, [o for o in self.operands if o.use != "row"]
        rows = [o for o in self.operands if o.use == "row"]
        names = ", ".join(o.name for o in arguments)
        types = ", ".join(f"{o.name}: {o.dtype.name}" for o in arguments)
        self.line(f"# each point: {summary(self.kernel)}")
        order = scalars(v for s in self.kernel.stages for v in roots(s))
        if self.target == "cpu":
            self.open(f"def kernel(lo, hi, {names}):  # {types}")
            for o in rows:
                self.line(f"{o.name} = np.empty({o.size}, np.{o.dtype.numpy.name})")
            if not outer:
                self.open("for _ in range(lo, hi):")
            for d, axis in enumerate(outer):
                self.values(order, d)
                reach = "lo, hi" if d == 0 else f"{extent(axis.extent)}"
                self.open(f"for {self.axis(axis)} in range({reach}):")
        else:
            scratch = "".join(f", {o.name}s" for o in rows)
            self.open(f"def kernel(hi, {names}{scratch}):  # {types}")
            for o in rows:
                self.line(f"{o.name} = {o.name}s[cuda.grid(1)]")
            self.open("for point in range(cuda.grid(1), hi, cuda.gridsize(1)):")
            self.split(outer)
        self.values(order, len(outer))

    def split(self, outer: Sequence[Axis]) -> None:
        """The outer axes from the point's row-major number."""
        below = prod(extent(a.extent) for a in outer)
        for d, axis in enumerate(outer):
            n = extent(axis.extent)
            below //= max(1, n)
            text = "point" if below == 1 else f"point // {below}"
            self.line(f"{self.axis(axis)} = {text if d == 0 else f'{text} % {n}'}")

    def axis(self, axis: Axis) -> str:
        return self.axes.setdefault(axis, f"i{len(self.axes)}")

    def stage(self, stage: Stage) -> None:
        """Accumulators at their start, the loops, the slots."""
        order, depth, pad = scalars(roots(stage)), len(self.kernel.outer), self.pad
        self.level |= {a: d for d, a in enumerate(stage.axes, depth + 1)}
        first = len(self.slots)
        for k, a in enumerate(stage.accumulators, first):
            self.line(start(a, k))
        self.values(order, depth, own=True)
        kept = set(self.written)
        for d, axis in enumerate(stage.axes, depth + 1):
            self.open(f"for {self.axis(axis)} in range({extent(axis.extent)}):")
            self.values(order, d, own=True)
        for k, a in enumerate(stage.accumulators, first):
            self.accumulate(a, k, stage.axes)
        for s in stage.stores:
            self.store(s)
        self.pad = pad
        for k, a in enumerate(stage.accumulators, first):
            self.slots.append(f"s{k}")
            self.line(f"s{k} = {finish(a, k)}")
        self.written = kept

    def values(self, order: Sequence[Node], depth: int, own: bool = False) -> None:
        """Lines for the values known inside `depth` loops; with `own`, also those that read what this point made."""
        late: set[Node] = set()
        for n in order:
            op = n.op
            if (
                isinstance(op, Slot) or (isinstance(op, Load) and self.kernel.buffers[op.buffer].use != "in")
            ) and not own:
                late.add(n)
            if any(self.level.get(a, 1 << 30) > depth for a in axes_of(op)) or any(i in late for i in n.inputs):
                late.add(n)
            if n not in late and n not in self.written:
                self.written.add(n)
                if not isinstance(op, Slot) and op.name != "const":
                    self.names.setdefault(n, f"v{len(self.names)}")
                    self.line(f"{self.names[n]} = {self.expression(n)}")

    def value(self, n: Node) -> str:
        """How a value is named: slots and constants stand for themselves."""
        if isinstance(n.op, Slot):
            return self.slots[n.op.number]
        return literal(n.op.value, n.dtype) if n.op.name == "const" else self.names[n]  # type: ignore[attr-defined]

    # ------------------------------------------------------------ expressions

    def expression(self, n: Node) -> str:
        op, args = n.op, [self.value(i) for i in n.inputs]
        if isinstance(op, Load):
            where = " + ".join([self.index(op.index), *(f"{c}*{a}" for c, a in zip(op.strides, args, strict=True))])
            name = self.operands[op.buffer].name
            if op.safe:
                return f"{name}[{where}]"
            # Clamped, without min and max: Numba 0.68 cannot compile those for CUDA.
            at = f"at_{self.names[n]}"
            self.line(f"{at} = {where}")
            return f"{name}[0 if {at} < 0 else {at} if {at} < {name}.size else {name}.size - 1]"
        if isinstance(op, Position):
            return f"np.int64({self.index(op.index)})"
        if isinstance(op, Inside):
            tests = [f"{lo} <= {self.index(i)} < {hi}" for i, lo, hi in op.conditions]
            return " and ".join(tests) or "True"
        text = _POINTWISE[op.name](n, args)
        return text if op.name in _EXACT else rounded(text, n.dtype)

    def index(self, index: Index) -> str:
        """An affine index as a sum."""
        parts = [self.axis(a) if c == 1 else f"{extent(c)}*{self.axis(a)}" for a, c in index.terms]
        if not parts or extent(index.constant):
            parts.append(str(extent(index.constant)))
        return " + ".join(parts).replace("+ -", "- ")

    def store(self, s: Store) -> None:
        self.line(f"{self.operands[s.buffer].name}[{self.index(s.index)}] = {self.value(s.value)}")

    def accumulate(self, a: Accumulator, k: int, axes: Sequence[Axis]) -> None:
        v, name = self.value(a.value), f"{a.kind}{k}"
        if a.kind.startswith("arg"):
            sign = ">" if a.kind == "argmax" else "<"
            nan = f" or ({v} != {v} and {name} == {name})" if a.value.dtype.kind == "f" else ""
            self.open(f"if at{k} < 0 or {v} {sign} {name}{nan}:")
            self.line(f"{name} = {v}")
            self.line(f"at{k} = {self.index(row_major(axes))}")
            self.pad = self.pad[:-4]
        elif a.kind in ("sum", "prod"):
            v = v if a.value.dtype is a.dtype else converted(v, a.value.dtype, a.dtype)
            word = {"sum": "|", "prod": "&"} if a.dtype.kind == "b" else {"sum": "+", "prod": "*"}
            total = f"{name} {word[a.kind]} {v}"
            self.line(f"{name} = {total if a.dtype.kind in 'fb' else typed(total, a.dtype)}")
        elif a.dtype.kind == "b":
            self.line(f"{name} = {name} {'|' if a.kind == 'max' else '&'} {v}")
        else:
            nan = f" or {v} != {v}" if a.dtype.kind == "f" else ""
            self.line(f"{name} = {v} if {v} {'>' if a.kind == 'max' else '<'} {name}{nan} else {name}")


def roots(stage: Stage) -> list[Node]:
    """The values a stage is for."""
    return [*(a.value for a in stage.accumulators), *(s.value for s in stage.stores)]


def row_major(axes: Sequence[Axis]) -> Index:
    """The number of a point of a nest."""
    out = Index.at(0)
    for a in axes:
        out = out * extent(a.extent) + Index.of(a)
    return out


def summary(kernel: Kernel) -> str:
    """What the kernel computes, in the words of its ops."""
    parts: list[str] = []
    silent = ("load", "slot", "const", "position", "inside")
    for s in kernel.stages:
        ops = " ".join(dict.fromkeys(n.op.name for n in scalars(roots(s)) if n.op.name not in silent))
        count = prod(extent(a.extent) for a in s.axes)
        sums = " and ".join(a.kind for a in s.accumulators)
        over = f"{sums} of {count}" if sums else ""
        if text := ", ".join(t for t in (ops, over) if t):
            parts.append(text)
    return "; ".join(parts) or "copy"


# ---------------------------------------------------------------- reductions


def start(a: Accumulator, k: int) -> str:
    """The line before the loop."""
    name = f"{a.kind}{k}"
    if a.kind.startswith("arg"):
        return f"{name}, at{k} = {literal(0, a.value.dtype)}, -1"
    if a.kind in ("sum", "prod"):
        first = 0 if a.kind == "sum" else 1
        return f"{name} = np.float64({first}.0)" if a.dtype.kind == "f" else f"{name} = {literal(first, a.dtype)}"
    return f"{name} = {literal(lowest(a.dtype) if a.kind == 'max' else highest(a.dtype), a.dtype)}"


def finish(a: Accumulator, k: int) -> str:
    """The reduction's result, in its dtype."""
    if a.kind.startswith("arg"):
        return f"np.int64(at{k})"
    name = f"{a.kind}{k}"
    if a.kind in ("sum", "prod") and a.dtype.kind == "f":
        return rounded(typed(name, a.dtype), a.dtype)
    return name


def lowest(dtype: DType) -> float | int:
    """Below every value."""
    if dtype.kind == "f":
        return -np.inf
    return 0 if dtype.kind == "b" else int(np.iinfo(dtype.numpy).min)


def highest(dtype: DType) -> float | int:
    """Above every value."""
    if dtype.kind == "f":
        return np.inf
    return 1 if dtype.kind == "b" else int(np.iinfo(dtype.numpy).max)


# ---------------------------------------------------------------- values


def working(dtype: DType) -> DType:
    """What a value of `dtype` is here: half floats are float32."""
    return dt.float32 if dtype.kind == "f" and dtype.itemsize == 2 else dtype


def typed(text: str, dtype: DType) -> str:
    """`text` cast to the dtype; integers wrap."""
    return f"np.{working(dtype).numpy.name}({text})"


def rounded(text: str, dtype: DType) -> str:
    """A float32 rounded to a half type; others as they are."""
    return typed(f"round_{dtype.name}(np.float64({text}))", dtype) if working(dtype) is not dtype else text


def literal(value: bool | int | float, dtype: DType) -> str:
    """A constant with its dtype."""
    if dtype.kind == "b":
        return str(bool(value))
    if dtype.kind != "f":
        return typed(str(int(value)), dtype)
    with np.errstate(over="ignore"):
        number = np.asarray(value, dtype.numpy).astype(working(dtype).numpy)[()]
    if isnan(number):
        return typed("np.nan", dtype)
    return typed(f"{'-' if number < 0 else ''}np.inf" if isinf(number) else str(number), dtype)


def converted(v: str, source: DType, to: DType) -> str:
    """`v` as another dtype. Floats go to integers by way of int64, so that narrow ones wrap as NumPy's do."""
    if to.kind == "b":
        return v if source.kind == "b" else f"{v} != {literal(0, source)}"
    if to.kind != "f":
        return typed(f"np.int64({v})" if source.kind == "f" and to.itemsize < 8 else v, to)
    return typed(f"round_{to.name}(np.float64({v}))", to) if working(to) is not to else typed(v, to)


Rule = Callable[[Node, Sequence[str]], str]


def operator(word: str, bools: str = "") -> Rule:
    """`a word b`; for bools another word."""

    def rule(n: Node, x: Sequence[str]) -> str:
        if n.dtype.kind == "b":
            return f"{x[0]} {bools} {x[1]}"
        text = f"{x[0]} {word} {x[1]}"
        return text if n.dtype.kind == "f" or n.dtype.itemsize == 8 else typed(text, n.dtype)

    return rule


def function(name: str) -> Rule:
    """A function of the backend."""
    return lambda n, x: typed(f"{name}({', '.join(x)})", n.dtype)


def whole(name: str) -> Rule:
    """A function of `scalar.py` over one float64."""
    return lambda n, x: typed(f"{name}(np.float64({x[0]}))", n.dtype)


def two(floats: str, ints: str) -> Rule:
    """Functions of `scalar.py` over two float64 or int64."""

    def rule(n: Node, x: Sequence[str]) -> str:
        name, wide = (floats, "float64") if n.dtype.kind == "f" else (ints, "int64")
        return typed(f"{name}(np.{wide}({x[0]}), np.{wide}({x[1]}))", n.dtype)

    return rule


def power(n: Node, x: Sequence[str]) -> str:
    """a ** b; x ** 2 is x * x to the bit."""
    if n.dtype.kind != "f":
        return typed(f"power_int(np.int64({x[0]}), np.int64({x[1]}))", n.dtype)
    square = n.inputs[1].op.name == "const" and n.inputs[1].op.value == 2.0  # type: ignore[attr-defined]
    return f"{x[0]} * {x[0]}" if square else f"{x[0]} ** {x[1]}"


def sign(n: Node, x: Sequence[str]) -> str:
    """-1, 0, 1; 0 for NaN."""
    zero = literal(0, n.dtype)
    return typed(f"{typed(f'{x[0]} > {zero}', n.dtype)} - {typed(f'{x[0]} < {zero}', n.dtype)}", n.dtype)


def sigmoid(n: Node, x: Sequence[str]) -> str:
    """1 / (1 + exp(-x)): where exp(-x) is infinite this is 0, which is right."""
    one = literal(1, n.dtype)
    return f"{one} / ({one} + {typed(f'exp(-{x[0]})', n.dtype)})"


def negative(n: Node, x: Sequence[str]) -> str:
    """-x; unsigned integers wrap."""
    return f"-{x[0]}" if n.dtype.kind == "f" else typed(f"{literal(0, n.dtype)} - {x[0]}", n.dtype)


def larger(sign: str, bools: str) -> Rule:
    """The larger or smaller of two, NaN where either is."""

    def rule(n: Node, x: Sequence[str]) -> str:
        a, b = x
        if n.dtype.kind == "b":
            return f"{a} {bools} {b}"
        return f"{a} if {a} {sign} {b}{f' or {a} != {a}' if n.dtype.kind == 'f' else ''} else {b}"

    return rule


def shift_left(n: Node, x: Sequence[str]) -> str:
    """a << b; 0 where b is not a bit's number."""
    bits = 8 * n.dtype.itemsize
    return f"{typed(f'{x[0]} << {x[1]}', n.dtype)} if 0 <= {x[1]} < {bits} else {literal(0, n.dtype)}"


def shift_right(n: Node, x: Sequence[str]) -> str:
    """a >> b; the sign alone (or 0) where b is not a bit's number."""
    a, b = (f"np.int64({v})" for v in x)
    bits = 8 * n.dtype.itemsize
    return typed(
        f"{a} >> ({b} if 0 <= {x[1]} < {bits} else np.int64({bits - 1 if n.dtype.kind == 'i' else bits}))", n.dtype
    )


# What needs no rounding to a half type: the result is an operand's, a whole number, or rounded already.
_EXACT = frozenset({"neg", "abs", "sign", "floor", "ceil", "round", "maximum", "minimum", "select", "cast"})
_POINTWISE: dict[str, Rule] = {
    **{name: function(name) for name in FUNCTIONS},
    "floor": whole("floor"),
    "ceil": whole("ceil"),
    "round": whole("rint"),
    "neg": negative,
    "abs": lambda n, x: typed(f"abs({x[0]})", n.dtype),
    "sigmoid": sigmoid,
    "sign": sign,
    "bit_not": lambda n, x: f"not {x[0]}" if n.dtype.kind == "b" else typed(f"~{x[0]}", n.dtype),
    "cast": lambda n, x: converted(x[0], n.inputs[0].dtype, n.dtype),
    "random_word": lambda n, x: typed(f"random_word({', '.join(f'np.int64({v})' for v in x)})", n.dtype),
    "add": operator("+", "|"),
    "sub": operator("-"),
    "mul": operator("*", "&"),
    "div": operator("/"),
    "floordiv": two("floor_divide", "divide_int"),
    "mod": two("modulo", "modulo_int"),
    "pow": power,
    "maximum": larger(">=", "|"),
    "minimum": larger("<=", "&"),
    "bit_and": operator("&", "&"),
    "bit_or": operator("|", "|"),
    "bit_xor": operator("^", "!="),
    "shift_left": shift_left,
    "shift_right": shift_right,
    "eq": lambda n, x: f"{x[0]} == {x[1]}",
    "lt": lambda n, x: f"{x[0]} < {x[1]}",
    "le": lambda n, x: f"{x[0]} <= {x[1]}",
    "select": lambda n, x: f"{x[1]} if {x[0]} else {x[2]}",
}
