"""Pointwise ops on vectors, as NumPy does them: an op and its operands as values give a value.

Operation by operation: nothing is contracted or reassociated, integer division by zero gives 0, maximum propagates NaN.
Mathematical functions are calls into `vectormath`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tracejit.codegen.kernel import Load, Slot
from tracejit.codegen.llvm import vectormath
from tracejit.codegen.llvm.form import register, round_to
from tracejit.codegen.llvm.text import Value, i32, i64
from tracejit.ir import dtype as dt
from tracejit.ir.dtype import DType
from tracejit.ir.node import Node
from tracejit.ir.op import Op
from tracejit.ops.loop import Inside, Position

__all__ = ["compare", "convert", "extreme", "is_square", "pointwise", "precision", "supports"]


def supports(op: Op, dtypes: Sequence[DType]) -> bool:
    """True where the pointwise `op` on operands of `dtypes` has a vector form here."""
    if isinstance(op, (Load, Slot, Position, Inside)) or op.name == "const":
        return True
    kinds = {d.kind for d in dtypes}
    if op.name in _FLOAT_ONLY or op.name in vectormath.FUNCTIONS:
        return kinds == {"f"}
    if op.name in ("sub", "neg", "div", "floordiv", "mod", "shift_left", "shift_right", "abs", "sign") and "b" in kinds:
        return False
    return op.name in _POINTWISE


def pointwise(n: Node, x: Sequence[Value]) -> Value:
    """The value of `n` whose operands have the values `x`."""
    if n.op.name in _POINTWISE and not (n.op.name in vectormath.FUNCTIONS and n.dtype.kind == "f"):
        return _POINTWISE[n.op.name](n, x)
    if is_square(n):
        return x[0] * x[0]
    f, width = x[0].f, x[0].type.width
    t = precision(n)
    f.module.declare(vectormath.symbol(n.op.name, t, width), vectormath.declaration(n.op.name, t, width))
    return f.call(vectormath.symbol(n.op.name, t, width), vectormath.result(n.op.name, t, width), *x)


def precision(n: Node) -> str:
    """The type of vectors that the function of `vectormath` for this op works on."""
    return "i64" if n.op.name == "random_word" else "f64" if n.dtype is dt.float64 else "f32"


def is_square(n: Node) -> bool:
    """x ** 2, which is x * x to the bit."""
    return n.op.name == "pow" and n.inputs[1].op.name == "const" and n.inputs[1].op.value == 2.0  # type: ignore[attr-defined]


def compare(word: str, a: Value, b: Value, dtype: DType) -> Value:
    """eq lt le gt ge; False where either side is NaN."""
    if dtype.kind == "f":
        text = f"fcmp o{word} {a.type} {a.name}, {b.name}"
    else:
        sign = "" if word == "eq" else "s" if dtype.kind == "i" else "u"
        text = f"icmp {sign}{word} {a.type} {a.name}, {b.name}"
    return a.f.emit(text, a.type.mask)


def extreme(a: Value, b: Value, dtype: DType, larger: bool) -> Value:
    """a if it is larger (smaller) or NaN, else b, which may be NaN too."""
    if dtype.kind == "b":
        return a | b if larger else a & b
    wins = compare("gt" if larger else "lt", a, b, dtype)
    return (wins | a.is_nan() if dtype.kind == "f" else wins).select(a, b)


def convert(v: Value, source: DType, to: DType) -> Value:
    """`v` of dtype `source` as `to`, as astype does on x86: out of range floats give the lowest integer, wrapped."""
    if source is to:
        return v
    f, target = v.f, register(to).wide(v.type.width)
    if to.kind == "b":
        return v.ne(0)
    if source.kind == "b" or (source.kind == "u" and to.kind != "f"):
        if target.is_float:
            return f.emit(f"uitofp {v.type} {v.name} to {target}", target)
        return v if target == v.type else f.emit(f"zext {v.type} {v.name} to {target}", target)
    if source.kind == "u":
        return f.emit(f"uitofp {v.type} {v.name} to {target}", target)
    if source.kind == "f" and to.kind != "f":
        limit = 2.0 ** (63 if target.bits == 64 else 31)
        wide = i64 if target.bits == 64 else i32
        fits = (v >= -limit) & (v < limit)
        whole = fits.select(v, 0.0).cast(wide)
        return fits.select(whole, -(1 << (wide.bits - 1))).cast(target.wide(1))
    return round_to(v.cast(target.wide(1)), to)


def remainder(a: Value, b: Value, dtype: DType) -> tuple[Value, Value]:
    """(a // b, a % b) rounded to minus infinity; both 0 where the integer b is 0."""
    f = a.f
    if dtype.kind == "f":
        rest = f.emit(f"frem {a.type} {a.name}, {b.name}", a.type)
        nonzero = rest.ne(0.0)
        turned = nonzero & ((b < 0.0).ne(rest < 0.0))
        quotient = (a - rest) / b
        quotient = turned.select(quotient - 1.0, quotient)
        floor = f.intrinsic("floor", quotient)
        floor = (quotient - floor > 0.5).select(floor + 1.0, floor)
        ratio = a / b
        floor = quotient.ne(0.0).select(floor, f.intrinsic("copysign", f.value(0.0, a.type), ratio))
        rest = turned.select(rest + b, nonzero.select(rest, f.intrinsic("copysign", f.value(0.0, a.type), b)))
        zero = b.eq(0.0)
        return zero.select(ratio, floor), rest
    zero = b.eq(0)
    if dtype.kind == "u":
        safe = zero.select(1, b)
        q = f.emit(f"udiv {a.type} {a.name}, {safe.name}", a.type)
        r = f.emit(f"urem {a.type} {a.name}, {safe.name}", a.type)
        return zero.select(0, q), zero.select(0, r)
    minus = b.eq(-1)  # the lowest integer divided by -1 traps
    safe = (zero | minus).select(1, b)
    q, r = a // safe, a % safe
    turned = r.ne(0) & ((b ^ r) < 0)
    q, r = turned.select(q - 1, q), turned.select(r + b, r)
    return zero.select(0, minus.select(-a, q)), zero.select(0, r)


def power_of_two(n: Node) -> int | None:
    """k where `n` is the integer constant 2**k."""
    value = getattr(n.op, "value", getattr(getattr(n.op, "index", None), "constant", None))
    if n.op.name == "position" and n.op.index.terms:  # type: ignore[attr-defined]
        return None
    if n.op.name in ("const", "position") and isinstance(value, int) and value > 0 and value & (value - 1) == 0:
        return value.bit_length() - 1
    return None


def divided(n: Node, x: Sequence[Value]) -> Value:
    """a // b or a % b; by powers of two a shift or a mask, which round down as they should."""
    (a, b), d = x, n.dtype
    if d.kind != "f" and (k := power_of_two(n.inputs[1])) is not None:
        if n.op.name == "mod":
            return a & ((1 << k) - 1)
        return shift("ashr", a, a.f.value(k, a.type), d)
    return remainder(a, b, d)[0 if n.op.name == "floordiv" else 1]


def shift(op: str, a: Value, b: Value, dtype: DType) -> Value:
    """a << b, a >> b; shifts by the width or more leave 0 or the sign."""
    f, bits = a.f, a.type.bits
    ok = f.emit(f"icmp ult {b.type} {b.name}, {b.type.constant(bits)}", b.type.mask)
    if op == "ashr" and dtype.kind == "i":
        safe = ok.select(b, bits - 1)
        return f.emit(f"ashr {a.type} {a.name}, {safe.name}", a.type)
    safe = ok.select(b, 0)
    return ok.select(f.emit(f"{'shl' if op == 'shl' else 'lshr'} {a.type} {a.name}, {safe.name}", a.type), 0)


def sign(n: Node, x: Sequence[Value]) -> Value:
    """-1, 0, 1; 0 for NaN, as in PyTorch."""
    (v,) = x
    if n.dtype.kind == "u":
        return v.ne(0).select(1, v.f.value(0, v.type))
    return (v > 0).select(1, (v < 0).select(-1, v.f.value(0, v.type)))


def absolute(n: Node, x: Sequence[Value]) -> Value:
    """|x|; the lowest integer stays."""
    (v,) = x
    if v.type.is_float:
        return v.f.intrinsic("fabs", v)
    return v if n.dtype.kind == "u" else (v < 0).select(-v, v)


def maximum(n: Node, x: Sequence[Value]) -> Value:
    """NaN where either is; one comparison where b is a constant."""
    a, b = x
    larger = n.op.name == "maximum"
    if n.dtype.kind == "b":
        return a | b if larger else a & b
    if n.dtype.kind != "f":
        return compare("ge" if larger else "le", a, b, n.dtype).select(a, b)
    if n.inputs[1].op.name == "const" and n.inputs[1].op.value == n.inputs[1].op.value:  # type: ignore[attr-defined]
        wins = a.f.emit(f"fcmp {'uge' if larger else 'ule'} {a.type} {a.name}, {b.name}", a.type.mask)
    else:
        wins = compare("ge" if larger else "le", a, b, n.dtype) | a.is_nan()
    return wins.select(a, b)


def logical(word: str) -> Callable[[Node, Sequence[Value]], Value]:
    """A bitwise operation."""
    return lambda n, x: x[0].f.emit(f"{word} {x[0].type} {x[0].name}, {x[1].name}", x[0].type)


def intrinsic(name: str) -> Callable[[Node, Sequence[Value]], Value]:
    """An LLVM intrinsic of one argument."""
    return lambda n, x: x[0].f.intrinsic(name, x[0])


def relation(word: str) -> Callable[[Node, Sequence[Value]], Value]:
    """A comparison."""
    return lambda n, x: compare(word, x[0], x[1], n.inputs[0].dtype)


_FLOAT_ONLY = {"sqrt", "div", "floor", "ceil", "round"}
_POINTWISE: dict[str, Callable[[Node, Sequence[Value]], Value]] = {
    "neg": lambda n, x: -x[0],
    "abs": absolute,
    "sign": sign,
    "floor": intrinsic("floor"),
    "ceil": intrinsic("ceil"),
    "round": intrinsic("roundeven"),
    "sqrt": intrinsic("sqrt"),
    "bit_not": lambda n, x: ~x[0],
    "cast": lambda n, x: convert(x[0], n.inputs[0].dtype, n.dtype),
    "add": lambda n, x: x[0] | x[1] if n.dtype.kind == "b" else x[0] + x[1],
    "sub": lambda n, x: x[0] - x[1],
    "mul": lambda n, x: x[0] & x[1] if n.dtype.kind == "b" else x[0] * x[1],
    "div": lambda n, x: x[0] / x[1],
    "floordiv": divided,
    "mod": divided,
    "maximum": maximum,
    "minimum": maximum,
    "bit_and": logical("and"),
    "bit_or": logical("or"),
    "bit_xor": logical("xor"),
    "shift_left": lambda n, x: shift("shl", x[0], x[1], n.dtype),
    "shift_right": lambda n, x: shift("ashr", x[0], x[1], n.dtype),
    "eq": relation("eq"),
    "lt": relation("lt"),
    "le": relation("le"),
    "select": lambda n, x: x[0].select(x[1], x[2]),
}
