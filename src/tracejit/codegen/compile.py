"""Graph -> something to call: `build(graph)` gives an Executable over arrays.

Two ways to the same answers: "interpret" runs every node by `Op.eval` (the oracle); "llvm" runs the graph's Schedule as
native segments, with host steps only where an op has no kernel.

Whatever the way, nothing a caller can see is written before the last check has passed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tracejit.errors import BackendError
from tracejit.ir.graph import Graph
from tracejit.ir.node import Node
from tracejit.ir.op import Array, Param

__all__ = ["Executable", "Interpreted", "Miss", "build"]

Checks = Sequence[tuple[int, bool | int | float]]


@dataclass(frozen=True)
class Miss:
    """Check number `check` saw `value` instead of what was expected; nothing was written."""

    check: int
    value: Any


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
    graph: Graph, *, updates: Mapping[int, int] | None = None, checks: Checks = (), backend: str = "llvm"
) -> Executable:
    """`graph` as an Executable.

    `updates` says that result i is written into the array passed for parameter j; `checks` that result i (rank 0) must
    have exactly the given bits.
    """
    if backend == "interpret":
        return Interpreted(graph, dict(updates or {}), tuple(checks))
    raise BackendError(f"no backend {backend!r}; backends are llvm, interpret")


def same_bits(value: Array, expected: bool | int | float) -> bool:
    """True where rank-0 `value` has the bits `expected` has in its dtype: nan equals nan, 0.0 differs from -0.0."""
    return np.asarray(value).tobytes() == np.asarray(expected, value.dtype).tobytes()


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


def own(value: Any, arrays: Sequence[Array]) -> Array:
    """`value` as an array that shares no memory with `arrays`."""
    value = np.asarray(value)
    return value.copy() if value.base is not None or any(value is a for a in arrays) else value
