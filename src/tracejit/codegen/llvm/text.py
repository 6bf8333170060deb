"""LLVM text as Python expressions: a `Value` knows its operand and its type, and its operators append instructions.

    module = Module()
    f = module.function("axpy", None, {"n": i64, "a": f32, "x": ptr, "y": ptr})
    n, a, x, y = f.args
    with f.loop(0, n) as i:
        f.store(f.fma(a, f.load(f32, f.element(x, i, f32)), f.load(f32, f.element(y, i, f32))), f.element(y, i, f32))
    f.ret()
    module.text()

The same code writes scalar and vector instructions: a type carries its width, and Python numbers become splats of the
type they meet. Loops carry their variables as phi nodes, so the text is good as it stands, without mid-level passes.
No fast-math flags: where a product and a sum may fuse, the generator says `fma`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from tracejit.records import dataclass

__all__ = [
    "OUTER",
    "Function",
    "Loop",
    "Module",
    "Slots",
    "Type",
    "Value",
    "f32",
    "f64",
    "i1",
    "i8",
    "i16",
    "i32",
    "i64",
    "of",
    "ptr",
]


@dataclass(frozen=True, slots=True)
class Type:
    """A scalar, or a vector of `width` scalars."""

    scalar: str
    width: int = 1

    def __str__(self) -> str:
        return self.scalar if self.width == 1 else f"<{self.width} x {self.scalar}>"

    @property
    def is_float(self) -> bool:
        """True for half, bfloat, float and double."""
        return self.scalar in _FLOATS

    @property
    def bits(self) -> int:
        """Bits of one element."""
        return _BITS[self.scalar]

    @property
    def bytes(self) -> int:
        """Bytes of one element in memory."""
        return max(self.bits // 8, 1)

    @property
    def suffix(self) -> str:
        """How intrinsics name the type: v8f32."""
        return ("" if self.width == 1 else f"v{self.width}") + _SUFFIX.get(self.scalar, self.scalar)

    @property
    def integer(self) -> Type:
        """The integer type of the same shape and size."""
        return Type(f"i{self.bits}", self.width)

    @property
    def mask(self) -> Type:
        """The type of comparisons of this type."""
        return Type("i1", self.width)

    def wide(self, width: int) -> Type:
        """The same scalar, `width` times."""
        return Type(self.scalar, width)

    def constant(self, number: float | int | bool) -> str:
        """Operand text of a number, splat over the vector."""
        if not self.is_float:
            one = str(int(number))
        elif self.scalar == "double":
            one = f"0x{struct.unpack('<Q', struct.pack('<d', float(number)))[0]:016X}"
        else:  # float and half constants are written as the double of the same value; float rounds here, once
            rounded = struct.unpack("<f", struct.pack("<f", float(number)))[0]
            one = f"0x{struct.unpack('<Q', struct.pack('<d', rounded))[0]:016X}"
        return one if self.width == 1 else f"splat ({self.scalar} {one})"


_FLOATS = {"half", "bfloat", "float", "double"}
_BITS = {
    "half": 16,
    "bfloat": 16,
    "float": 32,
    "double": 64,
    "i1": 1,
    "i8": 8,
    "i16": 16,
    "i32": 32,
    "i64": 64,
    "ptr": 64,
}
_SUFFIX = {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64", "ptr": "p0"}

f32, f64 = Type("float"), Type("double")
i1, i8, i16, i32, i64, ptr = (Type(s) for s in ("i1", "i8", "i16", "i32", "i64", "ptr"))
_BY_NAME = {
    "f32": f32, "f64": f64, "f16": Type("half"), "bf16": Type("bfloat"),
    "bool": i8, "u8": i8, "i8": i8, "i16": i16, "i32": i32, "i64": i64,
}  # fmt: skip


_NOTHING = frozenset((("add", 0), ("sub", 0), ("mul", 1)))  # integer operations that change nothing
# Instructions that may give something else, or do something, the second time ...
_IMPURE = re.compile(r"phi|alloca|freeze|atomicrmw|cmpxchg|load|call (?!.* @llvm\.(?!masked))")
# ... of these the ones that give the same while nothing is written, and those that write.
_READS = re.compile(r"load (?!atomic|volatile)|call .* @(llvm\.masked\.load|tj_pick|tj_step|tj_clamp)")
_WRITES = ("call", "atomicrmw", "cmpxchg", "load atomic")


def of(dtype: str, width: int = 1) -> Type:
    """The LLVM type of an IR dtype name in memory ("f32", "i64", "bool")."""
    return _BY_NAME[dtype].wide(width)


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """An SSA operand. Operators append the instruction to its function; numbers on either side become constants."""

    f: Function
    name: str
    type: Type
    narrow: Value | None = None  # the i32 that this i64 was extended from: half the registers to compare or convert

    def _binary(self, op: str, other: Value | float, reflected: bool = False) -> Value:
        if type(other) is int and (op, other) in _NOTHING and (op != "sub" or not reflected):
            return self
        a, b = self, self.f.value(other, self.type)
        if reflected:
            a, b = b, a
        return self.f.emit(f"{op} {self.type} {a.name}, {b.name}", self.type)

    def __add__(self, other: Value | float) -> Value:
        return self._binary("fadd" if self.type.is_float else "add", other)

    def __radd__(self, other: float) -> Value:
        return self._binary("fadd" if self.type.is_float else "add", other, True)

    def __sub__(self, other: Value | float) -> Value:
        return self._binary("fsub" if self.type.is_float else "sub", other)

    def __rsub__(self, other: float) -> Value:
        return self._binary("fsub" if self.type.is_float else "sub", other, True)

    def __mul__(self, other: Value | float) -> Value:
        return self._binary("fmul" if self.type.is_float else "mul", other)

    def __rmul__(self, other: float) -> Value:
        return self._binary("fmul" if self.type.is_float else "mul", other, True)

    def __truediv__(self, other: Value | float) -> Value:
        return self._binary("fdiv", other)

    def __rtruediv__(self, other: float) -> Value:
        return self._binary("fdiv", other, True)

    def __floordiv__(self, other: Value | int) -> Value:
        """Signed integer division; rounds toward zero, so for operands that are not negative."""
        return self._binary("sdiv", other)

    def __mod__(self, other: Value | int) -> Value:
        return self._binary("srem", other)

    def __and__(self, other: Value | int) -> Value:
        return self._binary("and", other)

    def __or__(self, other: Value | int) -> Value:
        return self._binary("or", other)

    def __xor__(self, other: Value | int) -> Value:
        return self._binary("xor", other)

    def __lshift__(self, other: Value | int) -> Value:
        return self._binary("shl", other)

    def __rshift__(self, other: Value | int) -> Value:
        return self._binary("ashr", other)

    def __neg__(self) -> Value:
        return self.f.emit(f"fneg {self.type} {self.name}", self.type) if self.type.is_float else 0 - self

    def __invert__(self) -> Value:
        return self ^ -1

    def _compare(self, ordered: str, signed: str, other: Value | float) -> Value:
        if self.narrow is not None:
            if isinstance(other, Value) and other.narrow is not None:
                return self.narrow._compare(ordered, signed, other.narrow)
            if type(other) is int and -(1 << 31) <= other < 1 << 31:
                return self.narrow._compare(ordered, signed, other)
        op = f"fcmp {ordered}" if self.type.is_float else f"icmp {signed}"
        b = self.f.value(other, self.type)
        return self.f.emit(f"{op} {self.type} {self.name}, {b.name}", self.type.mask)

    def __lt__(self, other: Value | float) -> Value:
        return self._compare("olt", "slt", other)

    def __le__(self, other: Value | float) -> Value:
        return self._compare("ole", "sle", other)

    def __gt__(self, other: Value | float) -> Value:
        return self._compare("ogt", "sgt", other)

    def __ge__(self, other: Value | float) -> Value:
        return self._compare("oge", "sge", other)

    def eq(self, other: Value | float) -> Value:
        """Lane by lane; False where either is NaN."""
        return self._compare("oeq", "eq", other)

    def ne(self, other: Value | float) -> Value:
        """Lane by lane; True where either is NaN."""
        return self._compare("une", "ne", other)

    def is_nan(self) -> Value:
        """Lanes that are NaN."""
        return self._compare("uno", "", self)

    def select(self, a: Value | float, b: Value | float) -> Value:
        """Of a mask: `a` where it is set, else `b`; at least one of them is a Value."""
        if isinstance(a, Value):
            b = self.f.value(b, a.type)
        else:
            assert isinstance(b, Value)
            a = self.f.value(a, b.type)
        return self.f.emit(f"select {self.type} {self.name}, {a.type} {a.name}, {b.type} {b.name}", a.type)

    def bitcast(self, type: Type) -> Value:
        """The same bits read as another type."""
        return self.f.emit(f"bitcast {self.type} {self.name} to {type}", type)

    def cast(self, scalar: Type) -> Value:
        """The number in another scalar type: rounds floats, truncates or sign extends integers."""
        to = scalar.wide(self.type.width)
        if to == self.type:
            return self
        if self.narrow is not None and (to.is_float or to == self.narrow.type):
            return self.narrow.cast(scalar)
        if self.type.is_float:
            op = "fptosi" if not to.is_float else "fpext" if to.bits > self.type.bits else "fptrunc"
        elif to.is_float:
            op = "sitofp"
        else:
            op = "zext" if self.type.scalar == "i1" else "sext" if to.bits > self.type.bits else "trunc"
        made = self.f.emit(f"{op} {self.type} {self.name} to {to}", to)
        return Value(made.f, made.name, to, self) if op == "sext" and self.type.scalar == "i32" else made

    def splat(self, width: int) -> Value:
        """A vector whose lanes all hold this scalar."""
        if width == 1:
            return self
        t, f = self.type.wide(width), self.f
        one = f.emit(f"insertelement {t} poison, {self.type} {self.name}, i64 0", t)
        return f.emit(f"shufflevector {t} {one.name}, {t} poison, <{width} x i32> zeroinitializer", t)

    def lane(self, index: Value | int) -> Value:
        """One lane as a scalar."""
        k = self.f.value(index, i64)
        return self.f.emit(f"extractelement {self.type} {self.name}, i64 {k.name}", self.type.wide(1))

    def insert(self, scalar: Value, index: Value | int) -> Value:
        """This vector with one lane replaced."""
        k = self.f.value(index, i64)
        text = f"insertelement {self.type} {self.name}, {scalar.type} {scalar.name}, i64 {k.name}"
        return self.f.emit(text, self.type)

    def shuffle(self, other: Value, lanes: Sequence[int]) -> Value:
        """Lanes chosen from the concatenation of this vector and `other`."""
        t = self.type.wide(len(lanes))
        picks = ", ".join(f"i32 {k}" for k in lanes)
        text = f"shufflevector {self.type} {self.name}, {other.type} {other.name}, <{len(lanes)} x i32> <{picks}>"
        return self.f.emit(text, t)


class Loop:
    """A counted loop that carries values: `carry` holds them inside, takes the next ones, and holds the last after."""

    def __init__(self, index: Value, carry: Sequence[Value]) -> None:
        self.index = index
        self.carry = list(carry)


class Function:
    """One function being written. `args` are its parameters; finish with `ret`."""

    def __init__(
        self, module: Module, name: str, result: Type | None, args: Mapping[str, Type], attributes: str
    ) -> None:
        self.module = module
        self.top: list[str] = []  # what stands before everything else
        self.lines: list[str] = []
        self._count = 0
        self._block = "entry"
        self._made: dict[str, Value] = {}  # in this block, by instruction
        self._read: dict[str, Value] = {}  # ... since something was written
        params = ", ".join(f"{t} %{n}" for n, t in args.items())
        linkage = "internal " if "internal" in attributes else ""
        attributes = attributes.replace("internal", "").strip()
        self.head = f"define {linkage}{result or 'void'} @{name}({params}) {attributes} {{\nentry:"
        self.args = tuple(Value(self, f"%{n}", t) for n, t in args.items())

    # ---------------------------------------------------------------- plumbing

    def line(self, text: str) -> None:
        """Append one instruction without a result."""
        self.lines.append("  " + text)
        self._read = {}

    def emit(self, text: str, type: Type) -> Value:
        """Append one instruction, unless this block has it already; its result."""
        if (made := self._made.get(text) or self._read.get(text)) is not None:
            return made
        self._count += 1
        made = Value(self, f"%v{self._count}", type)
        self.lines.append(f"  {made.name} = {text}")
        if not _IMPURE.match(text):
            self._made[text] = made
        elif _READS.match(text):
            self._read[text] = made
        elif text.startswith(_WRITES):
            self._read = {}
        return made

    def value(self, x: Value | float, type: Type) -> Value:
        """`x`, or the constant `x` of that type."""
        return x if isinstance(x, Value) else Value(self, type.constant(x), type)

    @property
    def block(self) -> str:
        """The block that is being written: where a phi says a value comes from."""
        return self._block

    def _label(self, stem: str) -> str:
        self._count += 1
        return f"{stem}{self._count}"

    def _start(self, block: str) -> None:
        self.lines.append(f"{block}:")
        self._block = block
        self._made, self._read = {}, {}

    @contextmanager
    def writing(self, lines: list[str]) -> Generator[None]:
        """Inside, instructions go to these lines, which will stand in a block above."""
        before = self.lines, self._made, self._read
        self.lines, self._made, self._read = lines, {}, {}
        yield
        self.lines, self._made, self._read = before

    # ---------------------------------------------------------------- calls

    def call(self, name: str, result: Type | None, *args: Value) -> Value:
        """Call a function of this module or an external one, which is declared."""
        types = ", ".join(str(a.type) for a in args)
        self.module.declare(name, f"declare {result or 'void'} @{name}({types})")
        text = f"call {result or 'void'} @{name}({', '.join(f'{a.type} {a.name}' for a in args)})"
        if result is not None:
            return self.emit(text, result)
        self.line(text)
        return Value(self, "void", i1)

    def intrinsic(self, name: str, *args: Value) -> Value:
        """An LLVM intrinsic whose result and overload are the type of its first argument: fma, sqrt, fabs."""
        return self.call(f"llvm.{name}.{args[0].type.suffix}", args[0].type, *args)

    def fma(self, a: Value | float, b: Value | float, c: Value | float) -> Value:
        """a * b + c rounded once."""
        type = next(x.type for x in (a, b, c) if isinstance(x, Value))
        return self.intrinsic("fma", *(self.value(x, type) for x in (a, b, c)))

    def minimum(self, a: Value, b: Value | int) -> Value:
        """The smaller of two signed integers."""
        return (a < b).select(a, b)

    def maximum(self, a: Value, b: Value | int) -> Value:
        """The larger of two signed integers."""
        return (a > b).select(a, b)

    # ---------------------------------------------------------------- memory

    def element(self, base: Value, index: Value | int, type: Type) -> Value:
        """Address of `base[index]`, an array of `type`'s scalar."""
        k = self.value(index, i64)
        return self.emit(f"getelementptr {type.scalar}, ptr {base.name}, i64 {k.name}", ptr)

    def offset(self, base: Value, bytes: Value | int) -> Value:
        """`base` moved by a number of bytes."""
        return self.element(base, bytes, i8)

    def load(self, type: Type, address: Value) -> Value:
        """The scalar or vector at an address aligned for the scalar."""
        return self.emit(f"load {type}, ptr {address.name}, align {type.bytes}", type)

    def room(self, type: Type, count: int) -> Value:
        """Address of that many elements on the stack, taken once as the function is entered."""
        with self.writing(self.top):
            return self.emit(f"alloca [{count} x {type}], align 16", ptr)

    def store(self, value: Value, address: Value) -> None:
        """Write to an address aligned for the scalar."""
        self.line(f"store {value.type} {value.name}, ptr {address.name}, align {value.type.bytes}")

    def prefetch(self, address: Value, *, is_write: bool) -> None:
        """Begin to bring an address into the first-level cache; it need not exist."""
        self.module.declare("llvm.prefetch.p0", "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        self.line(f"call void @llvm.prefetch.p0(ptr {address.name}, i32 {int(is_write)}, i32 3, i32 1)")

    def first(self, count: Value, width: int) -> Value:
        """Mask of the first `count` lanes, all of them if count >= width."""
        n = self.minimum(count, width).cast(i32).splat(width)
        lanes = "0" if width == 1 else "<" + ", ".join(f"i32 {k}" for k in range(width)) + ">"
        return self.emit(f"icmp slt {n.type} {lanes}, {n.name}", n.type.mask)

    def masked_load(self, type: Type, address: Value, mask: Value) -> Value:
        """The lanes of a vector that the mask allows; the others are zero and their memory is not touched."""
        name = f"llvm.masked.load.{type.suffix}.p0"
        self.module.declare(name, f"declare {type} @{name}(ptr, i32, {type.mask}, {type})")
        align = type.bytes
        text = f"call {type} @{name}(ptr {address.name}, i32 {align}, {type.mask} {mask.name}, {type} zeroinitializer)"
        return self.emit(text, type)

    def masked_store(self, value: Value, address: Value, mask: Value) -> None:
        """Write the lanes that the mask allows."""
        name, t = f"llvm.masked.store.{value.type.suffix}.p0", value.type
        self.module.declare(name, f"declare void @{name}({t}, ptr, i32, {t.mask})")
        self.line(f"call void @{name}({t} {value.name}, ptr {address.name}, i32 {t.bytes}, {t.mask} {mask.name})")

    def any(self, mask: Value) -> Value:
        """True if any lane of a mask is set."""
        if mask.type.width == 1:
            return mask
        return self.call(f"llvm.vector.reduce.or.{mask.type.suffix}", i1, mask)

    def opaque(self, x: Value) -> Value:
        """`x`, of whose origin the code generator knows nothing: loops will not derive it from other values."""
        return self.emit(f"freeze {x.type} {x.name}", x.type)

    # ---------------------------------------------------------------- control

    @contextmanager
    def carrying(
        self, lo: Value | int, hi: Value | int, carry: Sequence[Value], step: Value | int = 1
    ) -> Generator[Loop]:
        """for index in range(lo, hi, step), step > 0, with carried values; after the block `.carry` holds the last."""
        head, body, end = self._label("loop"), self._label("body"), self._label("end")
        before = self._block
        self.line(f"br label %{head}")
        self._start(head)
        at = len(self.lines)
        self._count += 1 + len(carry)
        first = self._count - len(carry)
        phis = [Value(self, f"%v{first + k}", t) for k, t in enumerate([i64, *(c.type for c in carry)])]
        self.lines += [""] * len(phis)  # written below, when the values of the next turn are known
        starts = [self.value(lo, i64), *carry]
        more = phis[0] < hi
        self.line(f"br i1 {more.name}, label %{body}, label %{end}")
        self._start(body)
        loop = Loop(phis[0], phis[1:])
        yield loop
        nexts = [phis[0] + step, *loop.carry]
        self.line(f"br label %{head}")
        for k, (p, a, b) in enumerate(zip(phis, starts, nexts, strict=True)):
            self.lines[at + k] = f"  {p.name} = phi {p.type} [ {a.name}, %{before} ], [ {b.name}, %{self._block} ]"
        self._start(end)
        loop.carry = phis[1:]

    @contextmanager
    def loop(self, lo: Value | int, hi: Value | int, step: Value | int = 1) -> Generator[Value]:
        """for index in range(lo, hi, step), step > 0."""
        with self.carrying(lo, hi, (), step) as loop:
            yield loop.index

    @contextmanager
    def when(self, condition: Value) -> Generator[None]:
        """Do the block if the condition holds; values made inside stay inside."""
        then, end = self._label("then"), self._label("end")
        self.line(f"br i1 {condition.name}, label %{then}, label %{end}")
        self._start(then)
        yield
        self.line(f"br label %{end}")
        self._start(end)

    @contextmanager
    def choose(self, condition: Value, carry: Sequence[Value]) -> Generator[Loop]:
        """Do the block if the condition holds; `.carry` is then what the block left there, or else the values given."""
        before, then, end = self._block, self._label("then"), self._label("end")
        self.line(f"br i1 {condition.name}, label %{then}, label %{end}")
        self._start(then)
        side = Loop(condition, carry)
        yield side
        inside = self._block
        self.line(f"br label %{end}")
        self._start(end)
        side.carry = [
            self.emit(f"phi {a.type} [ {a.name}, %{before} ], [ {b.name}, %{inside} ]", a.type)
            for a, b in zip(carry, side.carry, strict=True)
        ]

    @contextmanager
    def either(self, condition: Value) -> Generator[Iterator[bool]]:
        """Two blocks, one of which is done: `with f.either(c) as sides: for side in sides:` gives True, then False."""
        then, other, end = self._label("then"), self._label("else"), self._label("end")
        self.line(f"br i1 {condition.name}, label %{then}, label %{other}")

        def sides() -> Iterator[bool]:
            for block, side in ((then, True), (other, False)):
                self._start(block)
                yield side
                self.line(f"br label %{end}")

        yield sides()
        self._start(end)

    def cases(self, value: Value, numbers: Sequence[int]) -> Iterator[int]:
        """One block for each number, of which that of `value` is done, or none: `for n in f.cases(v, (1, 2)): ...`."""
        labels, end = [self._label("case") for _ in numbers], self._label("end")
        table = " ".join(f"{value.type} {n}, label %{b}" for n, b in zip(numbers, labels, strict=True))
        self.line(f"switch {value.type} {value.name}, label %{end} [ {table} ]")
        for number, label in zip(numbers, labels, strict=True):
            self._start(label)
            yield number
            self.line(f"br label %{end}")
        self._start(end)

    def ret(self, value: Value | None = None) -> None:
        """Return."""
        self.line("ret void" if value is None else f"ret {value.type} {value.name}")

    def text(self) -> str:
        """The definition."""
        return "\n".join([self.head, *self.top, *self.lines, "}"])


class Slots(dict[str, Value]):
    """Words behind a pointer by name. Each is loaded once, at the top of the function, when it is first asked for."""

    def __init__(self, f: Function, pointer: Value, types: Mapping[str, Type]) -> None:
        super().__init__()
        self.f, self.pointer = f, pointer
        self.types = {name: (i, type) for i, (name, type) in enumerate(types.items())}

    def __missing__(self, name: str) -> Value:
        i, type = self.types[name]
        f = self.f
        with f.writing(f.top):
            self[name] = value = f.load(type, f.element(self.pointer, i, i64))
        return value


OUTER: Final = "nounwind noinline optnone"  # of loops around calls that do the work: LLVM takes half the time


class Module:
    """Functions and the declarations they need."""

    def __init__(self) -> None:
        self.functions: dict[str, Function] = {}
        self._declarations: dict[str, str] = {}

    def function(
        self, name: str, result: Type | None, args: Mapping[str, Type], attributes: str = "nounwind"
    ) -> Function:
        """Begin a function."""
        f = Function(self, name, result, args, attributes)
        self.functions[name] = f
        return f

    def declare(self, name: str, text: str) -> None:
        """Declare an external function, unless this module defines it."""
        self._declarations.setdefault(name, text)

    def text(self) -> str:
        """The module's LLVM text."""
        declarations = [d for n, d in self._declarations.items() if n not in self.functions]
        return "\n".join([*declarations, *(f.text() for f in self.functions.values())]) + "\n"
