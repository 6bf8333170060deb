"""What memory can fetch while a row is worked on in cache: the next row to read, and where this row's results will go.

A row kernel reads a row from memory once, in its first stage; in later stages memory would rest. So these ask for what
comes next, a cache line at a time: each load that an earlier stage has made too asks for the next row of it, and each
store of a later stage asks for its place.
"""

from __future__ import annotations

from tracejit.codegen.kernel import Load, Stage, scalars
from tracejit.codegen.lanes import step
from tracejit.codegen.llvm.cut import Cut, roots
from tracejit.codegen.llvm.form import memory
from tracejit.codegen.llvm.frame import Frame
from tracejit.codegen.llvm.position import origin
from tracejit.ir.dim import same, typical
from tracejit.ir.index import Index
from tracejit.records import dataclass

__all__ = ["Ahead", "ahead", "fetch"]

LINE = 64  # bytes that memory moves at a time


@dataclass(frozen=True, slots=True)
class Ahead:
    """Element `index` of a buffer will be read, or written."""

    buffer: int
    index: Index
    is_write: bool


def ahead(cut: Cut, number: int) -> tuple[Ahead, ...]:
    """What stage `number` asks for at each of its points."""
    kernel, stage = cut.kernel, cut.kernel.stages[number]
    if kernel.lanes != "inner" or not number or not stage.axes or not cut.rest:
        return ()
    known = {n.op for s in kernel.stages[:number] for n in scalars(roots(s))}
    out: list[Ahead] = []
    for op in dict.fromkeys(n.op for n in scalars(roots(stage))):
        if not isinstance(op, Load) or op not in known:
            continue
        row = dict(op.index.terms).get(cut.rest[-1], 0)
        if typical(row) * op.dtype.itemsize >= LINE:
            out.append(Ahead(op.buffer, op.index + row, False))
    out += [
        Ahead(t.buffer, t.index, True) for s in kernel.stages[number + 1 :] if s.axes == stage.axes for t in s.stores
    ]
    return tuple(a for a in out if kernel.buffers[a.buffer].use != "row" and is_even(a.index, stage))


def is_even(index: Index, stage: Stage) -> bool:
    """True where it goes from lane to lane by one."""
    by = step(index, stage.axes[-1:])
    return by is not None and same(by, 1)


def fetch(frame: Frame, wanted: tuple[Ahead, ...]) -> None:
    """Begin to bring these into the cache, all lines under the vector at hand."""
    for a in wanted:
        t = memory(frame.kernel.buffers[a.buffer].dtype)
        at = origin(frame, a.index)
        for k in range(0, frame.width, LINE // t.bytes):
            frame.f.prefetch(frame.f.element(frame.pointers[a.buffer], at + k, t), is_write=a.is_write)
