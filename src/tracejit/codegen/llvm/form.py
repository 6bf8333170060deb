"""A dtype's two forms: in memory, and in a register while a kernel computes with it.

Bools are bytes in memory and masks in registers. Half floats are computed in f32, and rounded where their values would
be: after casts and sums, and when stored.
"""

from __future__ import annotations

from tracejit.codegen.llvm.text import Type, Value, f32, i1, i8, i16, i32, of
from tracejit.ir import dtype as dt
from tracejit.ir.dtype import DType

__all__ = ["memory", "narrow", "register", "round_to", "widen"]


def register(dtype: DType) -> Type:
    """What a value of `dtype` is inside a kernel: bools are masks, half floats are f32."""
    if dtype.kind == "b":
        return i1
    return f32 if dtype.kind == "f" and dtype.itemsize < 4 else of(dtype.name)


def memory(dtype: DType) -> Type:
    """What a value of `dtype` is in memory: bools are bytes, bf16 its bits."""
    return i16 if dtype is dt.bfloat16 else of(dtype.name)


def widen(v: Value, dtype: DType) -> Value:
    """From memory to register form."""
    if dtype.kind == "b":
        return v.ne(0)
    if dtype is dt.bfloat16:
        return from_bfloat_bits(v)
    return v.cast(f32) if dtype is dt.float16 else v


def narrow(v: Value, dtype: DType) -> Value:
    """From register to memory form."""
    if dtype.kind == "b":
        return v.cast(i8)
    if dtype is dt.bfloat16:
        return bfloat_bits(v)
    return v.cast(of("f16")) if dtype is dt.float16 else v


def round_to(v: Value, dtype: DType) -> Value:
    """An f32 in register rounded to a value of a half type; others unchanged."""
    if dtype is dt.float16:
        return v.cast(of("f16")).cast(f32)
    if dtype is dt.bfloat16:
        return from_bfloat_bits(bfloat_bits(v))
    return v


def bfloat_bits(v: Value) -> Value:
    """The i16 of an f32 rounded to bf16, to nearest even; NaN stays NaN."""
    w = v.type.width
    bits = v.bitcast(i32.wide(w))
    up = v.f.emit(f"lshr {bits.type} {bits.name}, {bits.type.constant(16)}", bits.type)
    rounded = bits + ((up & 1) + 0x7FFF)
    rounded = v.is_nan().select(bits | 0x400000, rounded)
    return v.f.emit(f"lshr {bits.type} {rounded.name}, {bits.type.constant(16)}", bits.type).cast(i16)


def from_bfloat_bits(v: Value) -> Value:
    """The f32 whose upper half the i16 is."""
    wide = i32.wide(v.type.width)
    return (v.f.emit(f"zext {v.type} {v.name} to {wide}", wide) << 16).bitcast(f32.wide(v.type.width))
