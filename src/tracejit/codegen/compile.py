"""Graph -> something to call: `build(graph)` gives an Executable over arrays.

Three ways to the same answers: "interpret" runs every node by `Op.eval` (the oracle); "llvm" runs the graph's Schedule
as native segments (`native.py`), with host steps only where an op has no kernel, and with code that serves every extent
where dims are symbolic (`families.py`); "numba" runs it as Python source
compiled by Numba (`numba/cpu.py`).

Whatever the way, nothing a caller can see is written before the last check has passed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tracejit.codegen.extents import solver
from tracejit.codegen.llvm import native
from tracejit.codegen.llvm.families import Family
from tracejit.codegen.result import Begun, Checks, Copies, Miss, own, same_bits
from tracejit.errors import BackendError
from tracejit.ir.graph import Graph
from tracejit.ir.node import Node
from tracejit.ir.op import Array, Param
from tracejit.passes.bind import bind
from tracejit.runtime.forks import building

__all__ = ["Executable", "Interpreted", "Miss", "PerShape", "build"]


class Executable(Protocol):
    """A compiled graph. Call it with one array per parameter; thread-safe."""

    @property
    def kernels(self) -> Sequence[Any]:
        """The loop nests, in order of execution; each prints."""
        ...

    @property
    def host_ops(self) -> Sequence[str]:
        """Names of the ops that run as NumPy, in order of execution."""
        ...

    def __call__(self, arrays: Sequence[Array]) -> tuple[Array, ...] | Miss:
        """The results that are neither updates nor checks, in order; or the first check that failed."""
        ...

    def begin(self, arrays: Sequence[Array]) -> Begun | Miss:
        """The same call in two halves: the first one writes nothing."""
        ...


def build(
    graph: Graph,
    *,
    updates: Mapping[int, int] | None = None,
    checks: Checks = (),
    backend: str = "llvm",
    optimize: bool = False,
) -> Executable:
    """`graph` as an Executable.

    `updates` says that result i is written into the array passed for parameter j; `checks` that result i (rank 0) must
    have exactly the given bits. `optimize` runs the passes first, unless the outcome is in the store.
    """
    updates, checks = dict(updates or {}), tuple(checks)
    is_static = all(p.type.is_static for p in graph.params)  # where symbols come from
    if backend == "llvm":
        if is_static:
            return native.assemble(graph, updates, checks, optimize=optimize)
        return Family(graph, updates, checks, optimize=optimize)
    if optimize:
        from tracejit.passes import pipeline  # not needed where the outcome is in the store

        graph = pipeline.optimize(graph)
    match backend:
        case "numba":  # imported by those who use it: it takes as long as all else together
            from tracejit.codegen.numba import cpu

            if is_static:
                return cpu.assemble(graph, updates, checks)
            return PerShape(graph, lambda g: cpu.assemble(g, updates, checks))
        case "interpret":
            return Interpreted(graph, updates, checks)
        case _:
            raise BackendError(f"no backend {backend!r}; backends are llvm, numba, interpret")


class Interpreted:
    """The oracle as an Executable: each node by `Op.eval`, values dropped after their last reader."""

    kernels: tuple[()] = ()

    def __init__(self, graph: Graph, updates: Mapping[int, int], checks: Checks) -> None:
        self.graph, self.updates, self.checks = graph, updates, checks
        self.host_ops = tuple(n.op.name for n in graph.nodes if not isinstance(n.op, Param))
        checked = {i for i, _ in checks}
        self._outputs = [i for i in range(len(graph.results)) if i not in updates and i not in checked]
        last: dict[Node, Node] = {i: n for n in graph.nodes for i in n.inputs}
        kept = set(graph.results)
        self._dead: dict[Node, list[Node]] = {}
        for value, reader in last.items():
            if value not in kept:
                self._dead.setdefault(reader, []).append(value)

    def __call__(self, arrays: Sequence[Array]) -> tuple[Array, ...] | Miss:
        begun = self.begin(arrays)
        return begun if isinstance(begun, Miss) else begun.go_on([])

    def begin(self, arrays: Sequence[Array]) -> Copies | Miss:
        """See `Executable`."""
        env: dict[Node, Any] = dict(zip(self.graph.params, arrays, strict=True))
        for n in self.graph.nodes:
            if n not in env:
                env[n] = n.op.eval(*(env[i] for i in n.inputs))
            for dead in self._dead.get(n, ()):
                del env[dead]
        results = [env[r] for r in self.graph.results]
        for k, (i, expected) in enumerate(self.checks):
            if not same_bits(np.asarray(results[i]), expected):
                return Miss(k, np.asarray(results[i])[()])
        outputs = tuple(own(results[i], arrays) for i in self._outputs)
        new = [(arrays[j], own(results[i], arrays)) for i, j in self.updates.items()]
        return Copies(outputs, new)


class PerShape:
    """A graph with symbolic dims as one Executable for each set of extents met, the latest `KEEP` of them kept."""

    KEEP = 16

    def __init__(self, graph: Graph, make: Callable[[Graph], Executable]) -> None:
        self.graph, self.make, self.solve = graph, make, solver(graph)
        self.known: dict[tuple[tuple[str, int], ...], Executable] = {}
        self._lock = threading.Lock()

    @property
    def kernels(self) -> Sequence[Any]:
        """The kernels of every shape met."""
        return [k for e in self.known.values() for k in e.kernels]

    @property
    def host_ops(self) -> Sequence[str]:
        """Of the latest shape."""
        return next((e.host_ops for e in reversed(self.known.values())), ())

    def __call__(self, arrays: Sequence[Array]) -> tuple[Array, ...] | Miss:
        return self._at(arrays)(arrays)

    def begin(self, arrays: Sequence[Array]) -> Begun | Miss:
        """See `Executable`."""
        return self._at(arrays).begin(arrays)

    def _at(self, arrays: Sequence[Array]) -> Executable:
        values = self.solve(arrays)
        sizes = tuple(values.items())
        executable = self.known.get(sizes)
        if executable is None:
            executable = self.make(bind(self.graph, values))
            with building(), self._lock:
                self.known[sizes] = executable
                while len(self.known) > self.KEEP:
                    del self.known[next(iter(self.known))]
        return executable
