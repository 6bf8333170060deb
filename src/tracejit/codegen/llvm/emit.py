"""Kernel -> LLVM text, every value a vector of `width` lanes.

One body serves full vectors and remainders, and every value is computed in the outermost loop it is constant in; what
does not vary along the vector axis has equal lanes. Here are the loops; what they are made of has modules of its own:

 - `cut.py`: units of work and vectors, decided before a line is written
 - `frame.py`, `position.py`: the loops that are open and the values known there; where lanes are
 - `access.py`, `lanewise.py`: loads and stores, even and at edges
 - `arithmetic.py`, `form.py`: pointwise ops as NumPy does them; half floats and bools
 - `accumulate.py`: reductions
 - `ahead.py`: what memory fetches meanwhile
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from tracejit.codegen.kernel import Kernel, Load, Slot, Stage, axes_of, guess, scalars
from tracejit.codegen.llvm import vectormath
from tracejit.codegen.llvm.access import is_even, load, load_even, store
from tracejit.codegen.llvm.accumulate import accumulate, begin, finish
from tracejit.codegen.llvm.ahead import ahead, fetch
from tracejit.codegen.llvm.arithmetic import is_square, pointwise, precision, supports
from tracejit.codegen.llvm.cut import Cut, Launch, launch, roots, round_up
from tracejit.codegen.llvm.form import register
from tracejit.codegen.llvm.frame import Frame
from tracejit.codegen.llvm.lanewise import helpers
from tracejit.codegen.llvm.position import is_inside, is_small, positions
from tracejit.codegen.llvm.text import Module, Value, i32, i64, ptr
from tracejit.ir.dim import product
from tracejit.ir.node import Node
from tracejit.ops.loop import Inside, Position

__all__ = ["Launch", "emit", "functions", "helpers", "launch", "supports"]


def emit(module: Module, kernel: Kernel, name: str, bits: int) -> None:
    """Define `void name(ptr args, i64 lo, i64 hi, ptr scratch)` in `module`; args are the buffers that are not rows."""
    f = module.function(name, None, {"args": ptr, "lo": i64, "hi": i64, "scratch": ptr})
    _, lo, hi, _ = f.args
    cut = Cut(kernel, bits)
    frame = Frame(f, cut)
    frame.pointers = pointers(frame)
    entry = len(f.lines)
    with f.loop(lo, hi) as unit:
        chunk, rest = parts(frame, unit)
        split(frame, rest)
        with frame.scope(*cut.rest):
            if cut.is_deep:
                columns(frame, chunk)
            elif cut.vector:
                block(frame, chunk)
            else:
                stages(frame)
    f.ret()
    # In the entry block, so once per call: stack memory for side paths, and what depends on symbols alone.
    stack = [f"  {v.name} = alloca {t}, align 64" for t, v in frame.stack.items()]
    f.lines[entry:entry] = stack + frame.entry


def functions(kernel: Kernel, bits: int) -> set[tuple[str, str, int]]:
    """The mathematical functions `kernel` calls, as `vectormath.module` wants them."""
    width = Cut(kernel, bits).width
    out: set[tuple[str, str, int]] = set()
    for s in kernel.stages:
        for n in scalars(roots(s)):
            if n.op.name in vectormath.CALLED and not is_square(n):
                out.add((n.op.name, precision(n), width))
    return out


# ---------------------------------------------------------------- a unit of work


def pointers(frame: Frame) -> list[Value]:
    """Where each buffer begins: arguments, and rows in scratch."""
    f, cut = frame.f, frame.cut
    args, _, _, scratch = f.args
    out: list[Value] = []
    slot = 0
    at: Value | int = 0
    for k, b in enumerate(cut.kernel.buffers):
        if b.use == "row":
            with frame.at_entry():
                out.append(f.offset(scratch, at))
                after = frame.number(cut.rows[k]) + at
                at = round_up(after, 64) if isinstance(after, int) else (after + 63) & -64
        else:
            out.append(f.load(ptr, f.element(args, slot, ptr)))
            slot += 1
    return out


def parts(frame: Frame, unit: Value) -> tuple[Value | None, Value]:
    """The number of the unit's chunk, where there are several, and that of its point of the other outer axes."""
    f, cut = frame.f, frame.cut
    if not cut.vector or cut.is_one_chunk:
        return None, unit
    if not cut.rest:
        return unit, f.value(0, i64)
    by = f.value(frame.number(product(a.extent for a in cut.rest)) if cut.walks_down else chunks(frame), i64)
    high = f.emit(f"udiv i64 {unit.name}, {by.name}", i64)
    low = f.emit(f"urem i64 {unit.name}, {by.name}", i64)
    return (high, low) if cut.walks_down else (low, high)


def chunks(frame: Frame) -> Value | int:
    """Units along the outer vector axes."""
    cut, n = frame.cut, frame.number(frame.cut.length)
    if isinstance(n, int):
        return -(-n // cut.chunk)
    with frame.at_entry():
        return (n + (cut.chunk - 1)) // cut.chunk


def split(frame: Frame, number: Value) -> None:
    """Values of the unit's axes from their row-major number."""
    rest = frame.cut.rest
    for axis in reversed(rest[1:]):
        n = frame.f.value(frame.number(axis.extent), i64)
        frame.axes[axis] = frame.f.emit(f"urem i64 {number.name}, {n.name}", i64)
        number = frame.f.emit(f"udiv i64 {number.name}, {n.name}", i64)
    if rest:
        frame.axes[rest[0]] = number


def points(frame: Frame, chunk: Value | None) -> tuple[Value | int, Value | int]:
    """First and one past the last of the chunk's points along the outer vector axes."""
    cut, length = frame.cut, frame.number(frame.cut.length)
    if chunk is None:
        return 0, length
    lo = chunk * cut.chunk
    return lo, frame.f.minimum(lo + cut.chunk, length)


def block(frame: Frame, chunk: Value | None) -> None:
    """The vectors of one chunk."""
    with vectors(frame, points(frame, chunk)):
        stages(frame)


@contextmanager
def vectors(frame: Frame, span: tuple[Value | int, Value | int]) -> Generator[Value]:
    """A loop over the vectors of a chunk."""
    vector = frame.cut.vector
    with frame.f.loop(*span, frame.width) as at, frame.lanes(vector, at), frame.scope(*vector):
        yield at


def columns(frame: Frame, chunk: Value | None) -> None:
    """Sums down the columns of one chunk, row after row; then what comes after them."""
    f, first = frame.f, frame.kernel.stages[0]
    span = points(frame, chunk)
    frame.base = len(frame.scopes)
    starts = begin(frame, first)
    sums = f.args[3]  # scratch: such a kernel has no row buffers

    sizes = [x.type.bytes for x in starts]

    def places(at: Value) -> list[Value]:
        # Packed: sums with gaps between them crowd out the rows, and take a third more time.
        first_sum = (at - span[0]) * sum(sizes)
        return [f.offset(sums, first_sum + frame.width * sum(sizes[:k])) for k in range(len(sizes))]

    with vectors(frame, span) as at:
        for x, place in zip(starts, places(at), strict=True):
            f.store(x, place)
    order, down, rows = scalars(roots(first)), first.axes[0], frame.cut.rows_at_once
    frame.varying = varying(frame, order)
    with f.loop(0, frame.number(down.extent), rows) as row, frame.scope(down):
        frame.axes[down] = row
        if rows == 1:
            compute(frame, order, last=False)
        with vectors(frame, span) as at:
            carry = [f.load(x.type, p) for x, p in zip(starts, places(at), strict=True)]
            for k in range(rows):
                frame.axes[down] = row + k
                with frame.scope():
                    carry = nest(frame, first, 1, carry, order)
            for x, place in zip(carry, places(at), strict=True):
                f.store(x, place)
    with vectors(frame, span) as at:
        frame.slots = finish(frame, first, [f.load(x.type, p) for x, p in zip(starts, places(at), strict=True)])
        stages(frame, 1)


# ---------------------------------------------------------------- stages


def stages(frame: Frame, first: int = 0) -> None:
    """All stages from `first` on at one point, or vector of points."""
    for k, s in enumerate(frame.kernel.stages[first:], first):
        order = scalars(roots(s))
        if frame.kernel.lanes == "inner":
            frame.vector = s.axes[-1:]
        frame.varying = varying(frame, order)
        frame.ahead = ahead(frame.cut, k)
        frame.base = len(frame.scopes)
        carry = nest(frame, s, 0, begin(frame, s), order)
        frame.slots += finish(frame, s, carry)


def varying(frame: Frame, order: Sequence[Node]) -> set[Node]:
    """The values whose lanes may differ."""
    out: set[Node] = set()
    for n in order:
        if (
            not axes_of(n.op).isdisjoint(frame.vector)
            or any(i in out for i in n.inputs)
            or (isinstance(n.op, Slot) and frame.cut.vector)
            or (isinstance(n.op, Load) and frame.cut.vector and frame.kernel.buffers[n.op.buffer].use == "row")
        ):
            out.add(n)
    return out


def nest(frame: Frame, stage: Stage, depth: int, carry: list[Value], order: Sequence[Node]) -> list[Value]:
    """The stage's loops from `depth` inward; what the accumulators are afterwards."""
    compute(frame, order, last=depth == len(stage.axes))
    if depth == len(stage.axes):
        carry = accumulate(frame, stage, carry)
        store(frame, stage.stores)
        fetch(frame, frame.ahead)
        return carry
    axis = stage.axes[depth]
    n = frame.number(axis.extent)
    if axis in frame.vector:
        with frame.f.carrying(0, n, carry, frame.width) as loop, frame.lanes((axis,), loop.index), frame.scope(axis):
            loop.carry = nest(frame, stage, depth + 1, loop.carry, order)
        return loop.carry
    if isinstance(n, int) and n <= 4 and guess(a.extent for a in stage.axes if a not in frame.vector) <= 16:
        for k in range(n):  # a window: no loop at all
            frame.axes[axis] = frame.f.value(k, i64)
            with frame.scope(axis):
                carry = nest(frame, stage, depth + 1, carry, order)
        return carry
    with frame.f.carrying(0, n, carry) as loop, frame.scope(axis):
        frame.axes[axis] = loop.index
        loop.carry = nest(frame, stage, depth + 1, loop.carry, order)
    return loop.carry


# ---------------------------------------------------------------- values


def compute(frame: Frame, order: Sequence[Node], last: bool) -> None:
    """Every value of `order` that is known by now and not computed yet, in the scope it belongs to: this one."""
    here = len(frame.scopes) - 1
    due = [n for n in order if not frame.has(n) and (last or frame.depth(n) <= here)]
    even = [n for n in due if isinstance(n.op, Load) and not n.inputs and n in frame.varying and is_even(frame, n.op)]
    load_even(frame, even)
    for n in due:
        if n not in frame.scopes[here]:
            frame.scopes[here][n] = value(frame, n)


def value(frame: Frame, n: Node) -> Value:
    """The value of `n`, whose inputs are known."""
    op = n.op
    if isinstance(op, Load):
        return load(frame, n, op)
    if isinstance(op, Slot):
        return frame.slots[op.number]
    if isinstance(op, Position):
        return positions(frame, op.index, i32).cast(i64) if is_small(op.index) else positions(frame, op.index)
    if isinstance(op, Inside):
        return is_inside(frame, op)
    if op.name == "const":
        return frame.f.value(op.value, register(n.dtype).wide(frame.width))  # type: ignore[attr-defined]
    return pointwise(n, [frame.get(i) for i in n.inputs])
