"""Loads and stores of one kernel: even, at a ragged end, lane by lane.

A load that might leave its buffer, at a ragged end or in a padded border, takes a side path that masks lanes or clamps
their indices; a store writes only the lanes that exist. Neither path is taken by more than the few vectors at an edge.
Whether an extent is ragged is known here, so even extents cost no test.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence

from tracejit.codegen.kernel import Load, Store
from tracejit.codegen.llvm.form import memory, narrow, widen
from tracejit.codegen.llvm.frame import Frame
from tracejit.codegen.llvm.position import along, is_below, is_small, lane_numbers, origin, positions
from tracejit.codegen.llvm.text import Value, i1, i32, i64
from tracejit.ir.dim import Extent, at_least, same
from tracejit.ir.index import Index
from tracejit.ir.node import Node

__all__ = ["is_even", "load", "load_even", "store"]

# Masked loads of 4 and 8 byte elements are single instructions on x86 with AVX2, loops elsewhere.
HAS_MASKS = platform.machine() in ("x86_64", "AMD64")


# ---------------------------------------------------------------- loads


def is_even(frame: Frame, op: Load) -> bool:
    """True where its lanes lie evenly, or in a row buffer."""
    return frame.kernel.buffers[op.buffer].use == "row" or along(frame, op.index) is not None


def load(frame: Frame, n: Node, op: Load) -> Value:
    """Loads that `load_even` leaves: equal lanes, or an index that data decides."""
    f, buffer, t = frame.f, frame.kernel.buffers[op.buffer], memory(op.dtype)
    if n not in frame.varying:
        at = start(frame, n, op)
        if not op.safe:
            at = f.maximum(f.minimum(at, frame.number(buffer.size - 1)), 0)
        return widen(f.load(t, f.element(frame.pointers[op.buffer], at, t)).splat(frame.width), op.dtype)
    by = along(frame, op.index)
    if by is not None and not any(i in frame.varying for i in n.inputs):
        at = start(frame, n, op)
        ok = fits(frame, at, by, buffer.size)
        return widen(diamond(frame, ok, [(op, at)])[0], op.dtype)
    is_short = is_below(buffer.size, 1 << 30) and not n.inputs and is_small(op.index)
    flat = positions(frame, op.index, i32 if is_short else i64)
    for i, c in zip(n.inputs, op.strides, strict=True):
        flat = flat + frame.get(i) * frame.wide(c, flat.type)
    if not op.safe or frame.active is not None:
        flat = f.maximum(f.minimum(flat, frame.wide(buffer.size - 1, flat.type)), 0)
    name = f"tj_pick_{t.integer}x{frame.width}_{flat.type.wide(1)}"
    out = f.call(name, t.integer.wide(frame.width), frame.pointers[op.buffer], flat)
    return widen(out.bitcast(t.wide(frame.width)), op.dtype)


def start(frame: Frame, n: Node, op: Load) -> Value:
    """Where lane 0 of a load lies, whose inputs have equal lanes."""
    at = origin(frame, op.index)
    for i, c in zip(n.inputs, op.strides, strict=True):
        at = at + first(frame.get(i)) * frame.number(c)
    return at


def load_even(frame: Frame, nodes: Sequence[Node]) -> None:
    """Loads along the vector axis, into the scope; those that may leave their buffer share one test."""
    checked: list[tuple[Node, Load, Value]] = []
    tests: dict[tuple[Index, Extent], Value] = {}
    for n in nodes:
        op = n.op
        assert isinstance(op, Load)
        buffer = frame.kernel.buffers[op.buffer]
        if buffer.use == "row":
            v = frame.f.load(memory(op.dtype).wide(frame.width), row(frame, op.buffer, op.index))
            frame.scopes[-1][n] = widen(v, op.dtype)
            continue
        at = origin(frame, op.index)
        if op.safe and frame.active is None:
            frame.scopes[-1][n] = widen(direct(frame, op, at), op.dtype)
            continue
        size, by = buffer.size, along(frame, op.index)
        assert by is not None
        if isinstance(size, int) and isinstance(by, int) and size <= abs(by) * (frame.width - 1):  # below a vector
            frame.scopes[-1][n] = widen(clamped(frame, op, at), op.dtype)
            continue
        checked.append((n, op, at))
        if (op.index, size) not in tests:
            tests[op.index, size] = fits(frame, at, by, size)
    if not checked:
        return
    ok, *others = tests.values()
    for t in others:
        ok = ok & t
    for (n, op, _), v in zip(checked, diamond(frame, ok, [(op, at) for _, op, at in checked]), strict=True):
        frame.scopes[-1][n] = widen(v, op.dtype)


def fits(frame: Frame, at: Value, step: Extent, size: Extent) -> Value:
    """True where all lanes from `at` lie in a buffer of `size` elements."""
    is_up = at_least(step, 1)
    reach = (step if is_up else -step) * (frame.width - 1)
    low = at if is_up else at - frame.number(reach)
    room = frame.number(size - reach)
    if isinstance(room, Value):
        with frame.at_entry():  # in a buffer below a vector nothing fits
            room = frame.f.maximum(room, 0)
    elif room <= 0:
        return frame.f.value(0, i1)
    return frame.f.emit(f"icmp ult i64 {low.name}, {frame.f.value(room, i64).name}", i1)


def diamond(frame: Frame, ok: Value, loads: Sequence[tuple[Load, Value]]) -> list[Value]:
    """The vectors of `loads`, straight where `ok`, else lane by lane with clamped indices."""
    f = frame.f
    then, other, end = f._label("fast"), f._label("slow"), f._label("end")
    f.line(f"br i1 {ok.name}, label %{then}, label %{other}")
    sides: list[tuple[list[Value], str]] = []
    for block in (then, other):
        f._start(block)
        sides.append(
            ([direct(frame, op, at) if block == then else clamped(frame, op, at) for op, at in loads], f._block)
        )
        f.line(f"br label %{end}")
    f._start(end)
    (a, from_a), (b, from_b) = sides
    return [
        f.emit(f"phi {x.type} [ {x.name}, %{from_a} ], [ {y.name}, %{from_b} ]", x.type)
        for x, y in zip(a, b, strict=True)
    ]


def direct(frame: Frame, op: Load, at: Value) -> Value:
    """All lanes, known to lie in the buffer."""
    f, t, base, by = frame.f, memory(op.dtype), frame.pointers[op.buffer], along(frame, op.index)
    assert by is not None
    if frame.width == 1 or same(by, 1):
        return f.load(t.wide(frame.width), f.element(base, at, t))
    if same(by, -1):
        v = f.load(t.wide(frame.width), f.element(base, at - (frame.width - 1), t))
        return v.shuffle(v, range(frame.width - 1, -1, -1))
    name = f"tj_step_{t.integer}x{frame.width}"
    out = f.call(name, t.integer.wide(frame.width), f.element(base, at, t), f.value(frame.number(by), i64))
    return out.bitcast(t.wide(frame.width))


def clamped(frame: Frame, op: Load, at: Value) -> Value:
    """Each lane that lies in the buffer; the others have some value or other."""
    f, t, size = frame.f, memory(op.dtype), frame.kernel.buffers[op.buffer].size
    by = along(frame, op.index) or 0
    if frame.width > 1 and t.bytes >= 4 and same(by, 1) and HAS_MASKS:
        end = f.value(frame.number(size), i64)
        near = at if op.safe else f.maximum(f.minimum(at, end), -frame.width)  # no page far off is even looked at
        there = f.first(end - near, frame.width) if op.safe else inside(frame, near, size)
        return f.masked_load(t.wide(frame.width), f.element(frame.pointers[op.buffer], near, t), there)
    out = f.call(
        f"tj_clamp_{t.integer}x{frame.width}", t.integer.wide(frame.width), frame.pointers[op.buffer], at,
        f.value(frame.number(by), i64), f.value(frame.number(size - 1), i64),
    )  # fmt: skip
    return out.bitcast(t.wide(frame.width))


def inside(frame: Frame, at: Value, size: Extent) -> Value:
    """Mask of the lanes from `at` on that lie in a buffer of `size` elements."""
    type = i32 if is_below(size, 1 << 30) else i64
    lanes = at.cast(type).splat(frame.width) + lane_numbers(frame, type, 1)
    return frame.f.emit(f"icmp ult {lanes.type} {lanes.name}, {frame.wide(size, lanes.type).name}", lanes.type.mask)


def row(frame: Frame, buffer: int, index: Index) -> Value:
    """Address in a row buffer; where lanes are outer points, each element of the row is a whole vector."""
    at = origin(frame, index)
    t = memory(frame.kernel.buffers[buffer].dtype)
    return frame.f.element(frame.pointers[buffer], at * frame.width if frame.cut.vector else at, t)


# ---------------------------------------------------------------- stores


def store(frame: Frame, stores: Sequence[Store]) -> None:
    """Write the lanes that exist; stores at a ragged end share one test."""
    ragged: list[tuple[Value, Value, Extent]] = []
    for s in stores:
        v, dtype = frame.get(s.value), frame.kernel.buffers[s.buffer].dtype
        v, t = narrow(v, dtype), memory(dtype)
        if frame.kernel.buffers[s.buffer].use == "row":
            frame.f.store(v, row(frame, s.buffer, s.index))
            continue
        address = frame.f.element(frame.pointers[s.buffer], origin(frame, s.index), t)
        by = along(frame, s.index)
        assert by is not None, "a store whose lanes lie unevenly"
        if same(by, 0):
            frame.f.store(first(v), address)
        elif frame.active is None and (same(by, 1) or frame.width == 1):
            frame.f.store(v, address)
        else:
            ragged.append((v, address, by))
    straight = [r for r in ragged if same(r[2], 1)]
    if straight:
        assert frame.active is not None
        full = frame.active >= frame.width
        with frame.f.either(full) as sides:
            for is_full in sides:
                for v, address, by in straight:
                    if is_full:
                        frame.f.store(v, address)
                    else:
                        scatter(frame, v, address, by)
    for v, address, by in ragged:
        if not same(by, 1):
            scatter(frame, v, address, by)


def scatter(frame: Frame, v: Value, address: Value, by: Extent) -> None:
    """Lane by lane, by way of the stack."""
    at = frame.spill(v.type.wide(1))
    frame.f.store(v, at)
    n = frame.f.value(frame.width, i64) if frame.active is None else frame.f.minimum(frame.active, frame.width)
    frame.f.call(f"tj_scatter_{v.type.wide(1).integer}", None, at, address, frame.f.value(frame.number(by), i64), n)


def first(v: Value) -> Value:
    """Lane 0, as a scalar."""
    return v.lane(0) if v.type.width > 1 else v
