"""Graph -> something to call: `build(graph)` gives an Executable over arrays.

Three ways to the same answers: "interpret" runs every node by `Op.eval` (the oracle); "llvm" runs the graph's Schedule
as native segments (`native.py`), with host steps only where an op has no kernel; "numba" runs it as Python source
compiled by Numba (`numba/cpu.py`).

Whatever the way, nothing a caller can see is written before the last check has passed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Protocol

import numpy as np

from tracejit.codegen.llvm import native
from tracejit.codegen.result import Checks, Miss, own, same_bits
from tracejit.errors import BackendError
from tracejit.ir.dim import Dim, substitute
from tracejit.ir.graph import Graph, param
from tracejit.ir.node import Node
from tracejit.ir.op import Array, Op, Param, results
from tracejit.ir.types import TensorType

__all__ = ["Executable", "Interpreted", "Miss", "PerShape", "build", "specialise"]


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
    is_static = all(t.is_static for n in graph.nodes for t in results(n.type))
    if backend == "llvm" and is_static:
        return native.assemble(graph, updates, checks, optimize=optimize)
    if optimize:
        from tracejit.passes import pipeline  # not needed where the outcome is in the store

        graph = pipeline.optimize(graph)
    match backend:
        case "llvm":
            assemble: Assemble = native.assemble
        case "numba":  # imported by those who use it: it takes as long as all else together
            from tracejit.codegen.numba import cpu

            assemble = cpu.assemble
        case "interpret":
            return Interpreted(graph, updates, checks)
        case _:
            raise BackendError(f"no backend {backend!r}; backends are llvm, numba, interpret")
    return assemble(graph, updates, checks) if is_static else PerShape(graph, lambda g: assemble(g, updates, checks))


Assemble = Callable[[Graph, Mapping[int, int], Checks], Executable]


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
        for target, value in new:
            np.copyto(target, value)
        return outputs


class PerShape:
    """A graph with symbolic dims as one Executable for each set of extents met, the latest `KEEP` of them kept."""

    KEEP = 16

    def __init__(self, graph: Graph, make: Callable[[Graph], Executable]) -> None:
        self.graph, self.make = graph, make
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
        sizes = tuple(sorted(solve(self.graph, arrays).items()))
        executable = self.known.get(sizes)
        if executable is None:
            executable = self.make(specialise(self.graph, dict(sizes)))
            with self._lock:
                self.known[sizes] = executable
                while len(self.known) > self.KEEP:
                    del self.known[next(iter(self.known))]
        return executable(arrays)


def solve(graph: Graph, arrays: Sequence[Array]) -> dict[str, int]:
    """The symbols' values, from the parameters' shapes."""
    out: dict[str, int] = {}
    for p, a in zip(graph.params, arrays, strict=True):
        for dim, n in zip(p.shape, a.shape, strict=True):
            if not isinstance(dim, Dim):
                continue
            dim = substitute(dim, out)
            if isinstance(dim, Dim) and 1 <= len(dim.terms) <= 2:
                monomial, c = dim.terms[0]
                rest = dim.terms[1:]
                offset = rest[0][1] if rest else 0
                if (
                    len(monomial) == 1
                    and monomial[0][1] == 1
                    and (not rest or rest[0][0] == ())
                    and (n - offset) % c == 0
                ):
                    out[monomial[0][0]] = (n - offset) // c
    return out


def specialise(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """`graph` with extents for its symbols."""
    new: dict[Node, Node] = {}
    for n in graph.nodes:
        if isinstance(n.op, Param):
            new[n] = param(n.op.label, with_sizes(n.op.type, sizes))
        else:
            values = {f.name: with_sizes(getattr(n.op, f.name), sizes) for f in fields(n.op)}
            op: Op = replace(n.op, **values) if values else n.op
            new[n] = Node.of(op, tuple(new[i] for i in n.inputs))
        new[n].label, new[n].where = n.label, n.where
    return Graph(graph.name, tuple(new[p] for p in graph.params), tuple(new[r] for r in graph.results))


def with_sizes(value: Any, sizes: Mapping[str, int]) -> Any:
    """An attribute of an op with extents for symbols."""
    if isinstance(value, TensorType):
        return value.with_shape(substitute(value.shape, sizes))
    return substitute(value, sizes)
