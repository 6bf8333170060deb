"""A graph with symbolic dims: scheduled and compiled once, planned for each set of extents that is met.

Kernels work out strides, trip counts and sizes from the values of the symbols, which are arguments; what a new set of
extents takes is numbers: units of work, arena offsets, arguments of library routines. No code is made for it.

That holds for *general* extents. Where a symbol is 0 or 1, or a dim comes out that small, the graph is another one,
with those extents put in; so is one whose schedule needs a number.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tracejit.codegen.extents import Values, solver, special, symbolic_shapes
from tracejit.codegen.llvm import plan as plans
from tracejit.codegen.llvm.native import Native, assemble, lay_out
from tracejit.codegen.result import Begun, Checks, Miss
from tracejit.errors import BackendError, InconclusiveDim
from tracejit.ir.graph import Graph
from tracejit.ir.op import Array
from tracejit.passes.bind import bind
from tracejit.runtime import engine
from tracejit.runtime.forks import building

if TYPE_CHECKING:
    from tracejit.codegen.kernel import Kernel
    from tracejit.codegen.llvm.layout import Layout
    from tracejit.codegen.llvm.segments import Code

__all__ = ["Family"]

KEEP = 64  # sets of extents whose numbers are kept
LARGE = 1 << 18  # bytes of an arena worth sharing between sets of extents
CLASSES = 8  # classes of special extents whose code is kept for more
Key = tuple[tuple[str, int], ...]


class Family:
    """An Executable for all extents; see `codegen.compile.Executable`.

    `compilations` counts the graphs that were scheduled and compiled for the calls so far: one, and one more for each
    class of special extents.
    """

    def __init__(self, graph: Graph, updates: Mapping[int, int], checks: Checks, *, optimize: bool = False) -> None:
        self.graph, self.updates, self.checks, self.optimize = graph, updates, checks, optimize
        self.known: dict[Key, Native] = {}
        self.compilations = 0
        self._solve, self._shapes = solver(graph), symbolic_shapes(graph)
        self._made: dict[Key, _Member] = {}
        self._latest: Native | None = None
        self._lock = threading.Lock()

    @property
    def kernels(self) -> Sequence[Kernel]:
        """The loop nests of the latest extents."""
        return next((e.kernels for e in reversed(self.known.values())), ())

    @property
    def host_ops(self) -> Sequence[str]:
        """Of the latest extents."""
        return next((e.host_ops for e in reversed(self.known.values())), ())

    def __call__(self, arrays: Sequence[Array]) -> tuple[Array, ...] | Miss:
        return self._member_for(arrays)(arrays)

    def begin(self, arrays: Sequence[Array]) -> Begun | Miss:
        """See `codegen.compile.Executable`."""
        return self._member_for(arrays).begin(arrays)

    def _member_for(self, arrays: Sequence[Array]) -> Native:
        values = self._solve(arrays)
        key = tuple(values.items())
        if (executable := self.known.get(key)) is None:
            with building(), self._lock:
                executable = self.known.get(key) or self._member(values)
                self.known[key] = executable
                while len(self.known) > KEEP:
                    del self.known[next(iter(self.known))]
        before, self._latest = self._latest, executable
        if before is not None and before is not executable and before.arena_bytes > LARGE:
            before.rest()
        return executable

    def at(self, arrays: Sequence[Array]) -> Native | None:
        """What runs these arrays, if there were such before."""
        return self.known.get(tuple(self._solve(arrays).items()))

    def _member(self, values: Values) -> Native:
        """The graph for these extents: planned anew, over code that is there, or compiled."""
        pinned = special(self._shapes, values)
        while True:
            class_ = tuple(pinned.items())
            if class_ not in self._made:
                self._made[class_] = _Member(self, pinned)
                while len(self._made) > CLASSES:
                    del self._made[next(iter(self._made))]
            try:
                return self._made[class_].at({k: v for k, v in values.items() if k not in pinned})
            except (BackendError, InconclusiveDim):
                if len(pinned) == len(values):
                    raise
                pinned = dict(values)  # a step that needs numbers: compiled for these


class _Member:
    """The code of one class of extents: `graph` has symbols for those that are general."""

    def __init__(self, family: Family, pinned: Values) -> None:
        self.family = family
        self.graph = bind(family.graph, pinned) if pinned else family.graph
        self._code: tuple[Layout, Code] | None = None

    def at(self, values: Values) -> Native:
        """The executable for these values."""
        of = self.family
        if not values:
            of.compilations += 1
            return assemble(self.graph, of.updates, of.checks, optimize=of.optimize)
        key = plans.key(self.graph, of.updates, of.checks, of.optimize, values)
        found = None if key is None else plans.find(key)
        made = found or self._plan(values)
        if key is not None and found is None:
            plans.keep(key, made)
        was_kept = found is not None
        return Native(self.graph, made, of.updates, of.checks, optimize=of.optimize, was_kept=was_kept)

    def _plan(self, values: Values) -> plans.Plan:
        from tracejit.codegen.llvm import segments  # not needed where the plan is found

        of = self.family
        if self._code is None:
            layout = lay_out(self.graph, of.updates, of.checks, of.optimize)
            self._code = layout, segments.Code(layout, engine.vector_bits())
            of.compilations += 1
        layout, code = self._code
        return segments.plan(layout, of.checks, code, values)
