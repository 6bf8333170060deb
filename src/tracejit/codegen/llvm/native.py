"""Graph -> native Executable: the plan is made, or found in the store; then it is linked, and called.

Making it: `schedule` says which kernels there are, `layout.py` where values live and in what order steps run,
`segments.py` turns that into a `Plan`. Runs of native steps between host steps are one `Program` each.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tracejit.cached import cached_property
from tracejit.codegen.llvm import plan as plans
from tracejit.codegen.llvm.plan import Host, Plan, Segment
from tracejit.codegen.result import Checks, Copies, Miss, own, same_bits
from tracejit.errors import BackendError
from tracejit.ir.graph import Graph, run
from tracejit.ir.op import Array
from tracejit.ir.types import TensorType
from tracejit.runtime import buffer, engine
from tracejit.runtime.program import Program

if TYPE_CHECKING:
    from tracejit.codegen.kernel import Kernel
    from tracejit.codegen.llvm.layout import Layout

__all__ = ["Native", "assemble", "lay_out"]


def assemble(graph: Graph, updates: Mapping[int, int], checks: Checks, *, optimize: bool = False) -> Native:
    """The graph, whose shapes are known, as native code; what an earlier build of it found out is not done again."""
    key = plans.key(graph, updates, checks, optimize)
    found = None if key is None else plans.find(key)
    made = _make(graph, updates, checks, optimize) if found is None else found
    if key is not None and found is None:
        plans.keep(key, made)
    return Native(graph, made, updates, checks, optimize=optimize, was_kept=found is not None)


def _make(graph: Graph, updates: Mapping[int, int], checks: Checks, optimize: bool) -> Plan:
    from tracejit.codegen.llvm import segments

    layout = lay_out(graph, updates, checks, optimize)
    return segments.plan(layout, checks, segments.Code(layout, engine.vector_bits()), {})


def lay_out(graph: Graph, updates: Mapping[int, int], checks: Checks, optimize: bool) -> Layout:
    """The graph's schedule, with homes for its values and an order of its steps."""
    # Not needed where the plan is found, and a sixth of what a process would spend until its first compiled call.
    from tracejit.codegen.attention import fuse_attention
    from tracejit.codegen.epilogue import fuse_epilogues
    from tracejit.codegen.llvm import emit, library, loop
    from tracejit.codegen.llvm.layout import Layout
    from tracejit.codegen.prepare import prepare
    from tracejit.codegen.schedule import schedule
    from tracejit.passes import pipeline

    def prepared(graph: Graph) -> Graph:
        return fuse_epilogues(prepare(fuse_attention(graph)), library.match)

    made = prepared(pipeline.optimize(graph, loops=True) if optimize else graph)
    bodies = {n: loop.match(n) for n in made.nodes if n.op.library == "loop"}
    if any(n.op.name == "loop" and body is None for n, body in bodies.items()):  # something in it runs as NumPy
        made = prepared(pipeline.optimize(graph) if optimize else loop.unroll(graph))
        bodies = {}
    return Layout(made, schedule(made, emit.supports, lambda n: bodies.get(n) or loop.match(n)), updates, checks)


# An array and the addresses where it begins and ends.
Seen = tuple["weakref.ref[Array]", int, int]


class Native:
    """A compiled graph; see `codegen.compile.Executable`. `was_kept` says that its plan came from the store."""

    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        updates: Mapping[int, int],
        checks: Checks,
        *,
        optimize: bool = False,
        was_kept: bool = False,
    ) -> None:
        self.graph, self.plan, self.updates, self.checks = graph, plan, updates, checks
        self.optimize, self.was_kept = optimize, was_kept
        self.host_ops = tuple(p.name for p in plan.parts if isinstance(p, Host))
        symbols = dict.fromkeys(s.name for p in plan.parts if isinstance(p, Segment) for s in p.steps)
        self._code = engine.link(plan.objects, tuple(symbols))
        self.parts = [p if isinstance(p, Host) else self._program(p) for p in plan.parts]
        self._targets = frozenset(plan.targets)
        self._is_plain = len(self.parts) == 1 and isinstance(self.parts[0], Program) and not plan.late_checks
        self._seen: list[Seen | None] = [None] * len(plan.params)  # the arrays of the last call that were fit to use
        self._param_types, self.output_types, self.temp_types = (
            [array_type(t) for t in types] for types in (plan.params, plan.outputs, plan.temps)
        )

    def _program(self, s: Segment) -> Program:
        steps = [replace(step, address=self._code.address(step.name)) for step in s.steps]
        return Program(steps, s.arena_bytes, self.plan.externals, s.checks, (self._code,), s.loops, s.batches)

    @property
    def plain(self) -> Program | None:
        """The program that is all there is to run; None where host steps or their checks come between."""
        program = self.parts[0] if self._is_plain else None
        return program if isinstance(program, Program) else None

    @property
    def nbytes(self) -> int:
        """Memory that a run may touch."""
        types = (*self._param_types, *self.output_types, *self.temp_types)
        arenas = sum(p.arena_bytes for p in self.plan.parts if isinstance(p, Segment))
        constants = sum(c.nbytes for c in self.plan.constants)
        return arenas + constants + sum(prod(shape) * dtype.itemsize for shape, dtype in types)

    # ------------------------------------------------------------ to look at

    @property
    def kernels(self) -> Sequence[Kernel]:
        """The loop nests, in order of execution: made again, for a plan has only their code."""
        return self._kernels

    @cached_property
    def _kernels(self) -> tuple[Kernel, ...]:
        from tracejit.codegen.llvm import segments

        return segments.kernels_of(lay_out(self.graph, self.updates, self.checks, self.optimize))

    @property
    def text(self) -> str:
        """The LLVM text of the kernels."""
        from tracejit.codegen.llvm import segments

        return segments.kernels_text({k: segments.symbol_of(k) for k in self.kernels}, engine.vector_bits())

    @property
    def arena_bytes(self) -> int:
        """Of memory that a call needs beside its arrays."""
        return sum(p.arena_bytes for p in self.parts if isinstance(p, Program))

    def rest(self) -> None:
        """Keep no memory between calls, until the next one."""
        for p in self.parts:
            if isinstance(p, Program):
                p.rest()

    # ------------------------------------------------------------ call

    def __call__(self, arrays: Sequence[Array]) -> tuple[Array, ...] | Miss:
        begun = self.begin(arrays)
        return begun if isinstance(begun, Miss) else begun.go_on([])

    def begin(self, arrays: Sequence[Array]) -> Running | Miss:
        """See `codegen.compile.Executable`."""
        bound, restore = self._bind(arrays)
        # What the program sees, in the order of externals; host steps fill in what they make.
        types = (*self.output_types, *self.temp_types)
        places = [*bound, *self.plan.constants, *(buffer.empty(shape, dtype) for shape, dtype in types)]
        miss = self.late_check(-1, places) if self.plan.late_checks else None
        return Running(self, places, restore) if miss is None else miss

    def _bind(self, arrays: Sequence[Array]) -> tuple[Sequence[Array], list[tuple[Array, Array]]]:
        """Arrays as the program wants them, and the pairs (target, result) to copy when it has run.

        Contiguous ones are used as they are; of two that share memory where one is updated, the other keeps a copy.
        """
        seen = self._seen
        if len(arrays) != len(self._param_types):
            raise BackendError(f"@{self.graph.name} takes {len(self._param_types)} arrays, got {len(arrays)}")
        changed = [k for k, (a, s) in enumerate(zip(arrays, seen)) if s is None or s[0]() is not a]
        if not changed:
            return arrays, []
        bound = list(arrays)
        restore: list[tuple[Array, Array]] = []
        fresh = list(seen)
        for k in changed:
            a = bound[k] = self._fit(k, arrays[k])
            if a is not arrays[k] and k in self._targets:
                restore.append((arrays[k], a))
            start = buffer.address(a)
            fresh[k] = (weakref.ref(a), start, start + a.nbytes)
        self._separate(bound, fresh, changed)
        if all(a is b for a, b in zip(bound, arrays)):
            self._seen = fresh
        return bound, restore

    def _fit(self, k: int, a: Any) -> Array:  # Any: whatever the caller gave
        """Parameter k as a contiguous array: `a` itself, or a copy."""
        if type(a) is not np.ndarray:  # NumPy's scalars, and subclasses
            if k in self._targets and not isinstance(a, np.ndarray):
                raise BackendError(f"parameter {k} of @{self.graph.name} is updated, but {a!r} is no array")
            a = np.asarray(a)
        shape, dtype = self._param_types[k]
        if a.shape != shape or a.dtype != dtype:
            have = f"{a.dtype}{list(a.shape)}"
            raise BackendError(f"parameter {k} of @{self.graph.name} is {dtype}{list(shape)}, got {have}")
        if k in self._targets and not a.flags.writeable:
            raise BackendError(f"parameter {k} of @{self.graph.name} is updated, but the array is read-only")
        return a if a.flags.c_contiguous and a.flags.aligned else np.array(a, order="C")

    def _separate(self, bound: list[Array], spans: Sequence[Seen | None], changed: Sequence[int]) -> None:
        """Give parameters that share memory with one that is updated a copy of their own."""
        new = set(changed)
        for j in self._targets:
            mine = spans[j]
            for k in range(len(bound)) if j in new else changed:
                other = spans[k]
                if k in self._targets or mine is None or other is None:
                    continue
                if mine[1] < other[2] and other[1] < mine[2]:
                    bound[k] = bound[k].copy()

    def late_check(self, part: int, places: Sequence[Array]) -> Miss | None:
        """The first check that fails of those that wait for a part that is no program."""
        for k in self.plan.late_checks.get(part, ()):
            if not same_bits(places[self.plan.checked[k]].reshape(()), self.checks[k][1]):
                return self.miss(k, places)
        return None

    def miss(self, check: int, places: Sequence[Array]) -> Miss:
        """What a check that failed saw."""
        return Miss(check, places[self.plan.checked[check]].reshape(())[()])


class Running:
    """A call with its memory: the parts in turn, then results are copied to where the program could not write, pairs
    (target, result)."""

    __slots__ = ("native", "places", "restore")

    def __init__(self, native: Native, places: list[Array], restore: Sequence[tuple[Array, Array]]) -> None:
        self.native, self.places, self.restore = native, places, restore

    @property
    def steps(self) -> int:
        return len(self.native.parts) + len(self.restore)

    def go_on(self, done: list[Any]) -> tuple[Array, ...] | Miss:
        native, places = self.native, self.places
        for k, (part, program) in enumerate(zip(native.plan.parts, native.parts)):
            if isinstance(part, Segment) and isinstance(program, Program):
                if k == len(done):
                    program.run_arrays(places, done)
                if done[k] >= 0:
                    return native.miss(part.numbers[done[k]], places)
            elif isinstance(part, Host) and k == len(done):
                host(part, places)
                done.append(None)
            if native.plan.late_checks and (miss := native.late_check(k, places)) is not None:
                return miss
        if self.restore:
            Copies((), self.restore).go_on(done, len(native.parts))
        first = native.plan.first_output
        return tuple(places[first : first + len(native.output_types)])


def array_type(t: TensorType) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of the array of a value whose shape is known."""
    return cast("tuple[int, ...]", t.shape), t.dtype.numpy


def host(step: Host, places: list[Array]) -> None:
    """Run a step as NumPy on its externals."""
    args = [places[k].reshape(array_type(p.type)[0]) for k, p in zip(step.reads, step.graph.params, strict=True)]
    for k, made, r in zip(step.makes, run(step.graph, args), step.graph.results, strict=True):
        places[k] = own(np.ascontiguousarray(made), places).reshape(array_type(r.type)[0])
