"""Accumulators: what a reduction starts from, how it takes in a vector, how its lanes become one value.

The order of every sum is fixed: lanes are sums of their own until the end, where they are combined by the same tree.
argmax and argmin carry a value and its position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from tracejit.codegen.kernel import Accumulator, Stage
from tracejit.codegen.llvm.arithmetic import compare, convert, extreme
from tracejit.codegen.llvm.form import register, round_to
from tracejit.codegen.llvm.frame import Frame
from tracejit.codegen.llvm.position import positions, row_major
from tracejit.codegen.llvm.text import Type, Value, i32, i64
from tracejit.ir.dtype import DType

__all__ = ["accumulate", "begin", "finish"]


def begin(frame: Frame, stage: Stage) -> list[Value]:
    """What the stage's loops carry at first: for each accumulator the value that changes nothing."""
    return [v for a in stage.accumulators for v in identity(frame, a)]


def accumulate(frame: Frame, stage: Stage, carry: Sequence[Value]) -> list[Value]:
    """What they carry after one more vector; lanes past the end of a row take nothing in."""
    out: list[Value] = []
    alive: Value | None = None
    if frame.kernel.lanes == "inner" and frame.active is not None and stage.accumulators:
        alive = frame.f.first(frame.active, frame.width)
    for a, old in each(stage, carry):
        v = frame.get(a.value)
        if len(old) == 1:
            new = [combine(a.kind, a.dtype, old[0], convert(v, a.value.dtype, a.dtype))]
        else:
            wins = beats(a, v, old[0])  # positions only grow, so the first of equal values stays
            new = [wins.select(v, old[0]), wins.select(positions(frame, row_major(stage.axes), i32), old[1])]
        out += [alive.select(x, y) for x, y in zip(new, old, strict=True)] if alive is not None else new
    return out


def finish(frame: Frame, stage: Stage, carry: Sequence[Value]) -> list[Value]:
    """The values of the stage's slots."""
    return [across(frame, a, values) for a, values in each(stage, carry)]


def each(stage: Stage, carry: Sequence[Value]) -> Iterator[tuple[Accumulator, Sequence[Value]]]:
    """Every accumulator with what is carried for it: one value, or a value and its position."""
    at = 0
    for a in stage.accumulators:
        n = 2 if a.kind.startswith("arg") else 1
        yield a, carry[at : at + n]
        at += n


def identity(frame: Frame, a: Accumulator) -> list[Value]:
    """The value that changes nothing."""
    f, is_arg = frame.f, a.kind.startswith("arg")
    dtype = a.value.dtype if is_arg else a.dtype
    t = register(dtype).wide(frame.width)
    starts = {"sum": 0, "prod": 1, "max": lowest(t, dtype), "min": highest(t, dtype)}
    start = f.value(starts[a.kind.removeprefix("arg")], t)
    # Where no element is better than this one, all are equal to it, and the first is the right one.
    return [start, f.value(0, i32.wide(frame.width))] if is_arg else [start]


def combine(kind: str, dtype: DType, a: Value, b: Value) -> Value:
    """What two partial results make together."""
    if kind == "sum":
        return a | b if dtype.kind == "b" else a + b
    if kind == "prod":
        return a & b if dtype.kind == "b" else a * b
    return extreme(b, a, dtype, kind == "max")


def beats(a: Accumulator, v: Value, w: Value) -> Value:
    """Lanes where v is larger (smaller) than w; NaN is above (below) all others."""
    name, dtype = "gt" if a.kind == "argmax" else "lt", a.value.dtype
    if dtype.kind != "f":
        return compare(name, v, w, dtype)
    return v.f.emit(f"fcmp u{name} {v.type} {v.name}, {w.name}", v.type.mask) & ~w.is_nan()


def better(a: Accumulator, old: Sequence[Value], new: Sequence[Value]) -> list[Value]:
    """Of two pairs (value, position) the one with the better value, the earlier one where they are equal."""
    (w, q), (v, p) = old, new
    wins = beats(a, v, w) | ~(beats(a, v, w) | beats(a, w, v)) & (p < q)
    return [wins.select(v, w), wins.select(p, q)]


def across(frame: Frame, a: Accumulator, carry: Sequence[Value]) -> Value:
    """The slot's value: combined across lanes where lanes are elements of a row, always by the same tree."""
    values = list(carry)
    if frame.kernel.lanes == "inner" and frame.width > 1:
        half = frame.width // 2
        while half:
            hi, lo = ([lanes_of(v, at, half) for v in values] for at in (half, 0))
            values = better(a, lo, hi) if len(values) == 2 else [combine(a.kind, a.dtype, lo[0], hi[0])]
            half //= 2
        values = [v.splat(frame.width) for v in values]
    if a.kind.startswith("arg"):
        return values[1].cast(i64)
    return round_to(values[0], a.dtype)


def lanes_of(v: Value, at: int, count: int) -> Value:
    """`count` lanes from `at` on; a scalar where that is one."""
    return v.lane(at) if count == 1 else v.shuffle(v, range(at, at + count))


def lowest(t: Type, dtype: DType) -> float | int:
    """Below every value."""
    if dtype.kind in "bu":
        return 0
    return -inf if t.is_float else -(1 << (t.bits - 1))


def highest(t: Type, dtype: DType) -> float | int:
    """Above every value."""
    if dtype.kind == "b":
        return 1
    return inf if t.is_float else 255 if dtype.kind == "u" else (1 << (t.bits - 1)) - 1
