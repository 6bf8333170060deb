"""How a kernel is cut: into units of work for threads, and into vectors.

The outer axes that are not cut into lanes are counted by the number of the unit; those that are, make chunks of a unit
each. How wide a vector is depends on what is done with it: two registers, or more where memory or long functions are
what is waited for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from tracejit.cached import cached_property
from tracejit.codegen.extents import Values, number
from tracejit.codegen.kernel import Kernel, Load, Stage, scalars
from tracejit.codegen.lanes import is_close, step
from tracejit.codegen.llvm import vectormath
from tracejit.ir.dim import Extent, is_multiple, product, typical
from tracejit.ir.index import Axis
from tracejit.ir.node import Node
from tracejit.records import dataclass

__all__ = ["Cut", "Launch", "launch", "roots"]

# Elements a unit of work covers where nothing else decides: long enough to hide the cost of starting it.
CHUNK = 4096
SUMS = -1  # stands for a buffer: the sums of columns
DEEP = 4096  # sums of columns side by side: half a first-level cache
PAGE = 4096
LONG = 512  # of a row: vectors of it may be wide


def launch(kernel: Kernel, bits: int, values: Values) -> Launch:
    """How `kernel` is cut, for vector registers of `bits` bits, where its symbols have these values."""
    return Cut(kernel, bits).launch(values)


@dataclass(frozen=True, slots=True)
class Launch:
    """How a kernel is cut into units of work: `units` of them, worth `grain` at a time, `scratch` bytes per thread."""

    units: int
    grain: int
    scratch: int


@dataclass(frozen=True)
class Cut:
    """The choices of one kernel: lanes, chunk length, and where its row buffers lie in scratch."""

    kernel: Kernel
    bits: int  # of a vector register

    @cached_property
    def width(self) -> int:
        """Lanes: two registers of the widest type; more where little is done with each, fewer on a short axis."""
        if not self.lengths:
            return 1
        nodes = [n for s in self.kernel.stages for n in scalars(roots(s))]
        widest = max((n.dtype.itemsize for n in nodes if n.dtype.kind == "f"), default=4)
        width = 2 * self.bits // (8 * max(widest, 4))
        if any(s.axes for s in self.kernel.stages) and self.is_light(nodes):
            width *= 4 if self.kernel.lanes == "outer" else 2
        elif self.is_patient(nodes):
            width *= 2
        while width > 4 and max(map(typical, self.lengths)) <= width // 2:
            width //= 2
        return width

    def is_light(self, nodes: Sequence[Node]) -> bool:
        """True where a reduction waits for memory and its own sums: several vectors side by side help."""
        if len(nodes) > 8 or any(n.op.name in vectormath.CALLED for n in nodes):
            return False
        if any(a.kind.startswith("arg") for s in self.kernel.stages for a in s.accumulators):
            return False
        groups = [self.vector] if self.vector else [s.axes[-1:] for s in self.kernel.stages if s.axes]
        loads = [n for n in nodes if isinstance(n.op, Load)]
        return all(
            not n.inputs and is_close(step(n.op.index, g)) for n in loads for g in groups if isinstance(n.op, Load)
        )

    def is_patient(self, nodes: Sequence[Node]) -> bool:
        """True where what takes long are functions of long rows: more of them at a time wait for each other less."""
        if len(nodes) > 16 or max(map(typical, self.lengths)) < LONG or any(n.dtype.itemsize > 4 for n in nodes):
            return False
        calls = [n for n in nodes if n.op.name in vectormath.CALLED]  # one of sums alone is called once for each row
        return any(isinstance(m.op, Load) for m in scalars(calls))

    @cached_property
    def vector(self) -> tuple[Axis, ...]:
        """The outer axes that vectors are cut from."""
        return self.kernel.outer[-self.kernel.joint :] if self.kernel.lanes == "outer" else ()

    @cached_property
    def length(self) -> Extent:
        """Points of the outer vector axes."""
        return product(a.extent for a in self.vector)

    @cached_property
    def lengths(self) -> list[Extent]:
        """Elements that vectors are cut from, in each place."""
        if self.kernel.lanes == "outer":
            return [self.length] if self.vector else []
        return [s.axes[-1].extent for s in self.kernel.stages if s.axes]

    @cached_property
    def chunk(self) -> int:
        """Points of the outer vector axes in one unit."""
        if not self.vector:
            return 1
        if self.is_deep:
            most = max(DEEP // len(self.kernel.stages[0].accumulators), self.width)
            most -= most % self.width
            return min(most, round_up(self.length, self.width)) if isinstance(self.length, int) else most
        if any(s.axes for s in self.kernel.stages) or self.walks_down:
            return self.width
        return max(self.width, min(CHUNK, round_up(self.length, self.width) if isinstance(self.length, int) else CHUNK))

    @cached_property
    def is_deep(self) -> bool:
        """True for sums down long columns: a chunk's sums are kept in scratch, and rows are read as they lie in memory.

        With sums in registers a unit reads a stripe of each row: a page for a few cache lines.
        """
        first, *others = self.kernel.stages
        if not self.vector or not first.axes or any(s.axes for s in others) or first.stores:
            return False
        down = first.axes[0]
        if typical(down.extent) < 32 or typical(self.length) < 4 * self.width or not first.accumulators:
            return False
        if any(a.dtype.kind != "f" or a.kind.startswith("arg") for a in first.accumulators):
            return False
        loads = [n.op for n in scalars(roots(first)) if isinstance(n.op, Load)]
        far = [abs(typical(dict(op.index.terms).get(down, 0))) * op.dtype.itemsize for op in loads]
        return max(far, default=0) >= PAGE // 2

    @cached_property
    def rows_at_once(self) -> int:
        """Rows of a deep kernel that are added to the sums together, in their order: memory brings several at once
        faster, in three quarters of the time on one thread. Only where that is little code and leaves no rest.
        """
        first = self.kernel.stages[0]
        nodes, down = scalars(roots(first)), first.axes[0]
        if len(first.axes) > 1 or not self.is_light(nodes) or not all(self.is_of_column(n) for n in nodes):
            return 1
        return next((k for k in (4, 2) if is_multiple(down.extent, k)), 1)

    def is_of_column(self, n: Node) -> bool:
        """True where the value is another one in each lane, or none that takes code."""
        if isinstance(n.op, Load):
            return step(n.op.index, self.vector) == 1
        return bool(n.inputs) or n.op.name == "const"

    @cached_property
    def walks_down(self) -> bool:
        """True where lanes read far apart, as in a transpose: units go across then, to use cache lines whole."""
        if not self.rest or any(s.axes for s in self.kernel.stages):
            return False
        loads = [n.op for s in self.kernel.stages for n in scalars(roots(s)) if isinstance(n.op, Load)]
        return not all(is_close(step(op.index, self.vector)) for op in loads)

    @cached_property
    def is_one_chunk(self) -> bool:
        """True where the outer vector axes are one unit, whatever the symbols are."""
        return isinstance(self.length, int) and self.length <= self.chunk

    @cached_property
    def rest(self) -> tuple[Axis, ...]:
        """Outer axes that are counted by the unit number."""
        return self.kernel.outer[: len(self.kernel.outer) - len(self.vector)]

    @cached_property
    def rows(self) -> dict[int, Extent]:
        """The bytes of each row buffer, or of `SUMS`. They lie in scratch one after another, at multiples of 64."""
        if self.is_deep:
            return {SUMS: 8 * self.chunk * len(self.kernel.stages[0].accumulators)}
        buffers = {k: b for k, b in enumerate(self.kernel.buffers) if b.use == "row"}
        if self.vector:
            return {k: (b.size + 1) * (self.width * b.dtype.itemsize) for k, b in buffers.items()}
        return {k: (b.size + self.width) * b.dtype.itemsize for k, b in buffers.items()}

    def launch(self, values: Values) -> Launch:
        """Units, grain and scratch, where the kernel's symbols have these values."""

        def count(axes: Iterable[Axis]) -> int:
            return prod([number(a.extent, values) for a in axes])

        length = count(self.vector)
        chunks = -(-length // self.chunk) if self.vector else 1
        inner = sum(count(s.axes) for s in self.kernel.stages)
        work = inner * min(self.chunk, round_up(length, self.width)) if self.vector else inner
        scratch = sum(round_up(number(n, values), 64) for n in self.rows.values())
        return Launch(count(self.rest) * chunks, max(1, 8192 // max(1, work)), scratch)


def roots(stage: Stage) -> list[Node]:
    """What a stage computes."""
    return [*(a.value for a in stage.accumulators), *(s.value for s in stage.stores)]


def round_up(n: int, to: int) -> int:
    """The next multiple of `to`."""
    return -(-n // to) * to
