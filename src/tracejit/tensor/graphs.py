"""Graphs run eagerly: the gradient rules of the tape, and composed functions as one op.

On NumPy they run node by node, on bare arrays: no tensors, no tape, nobody listening. A graph that comes often enough
for its kernels to repay what building them costs is built, and kept, as any other. When that is follows from the graph
and the number of uses alone, never from a clock, so that equal runs give equal bits.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from math import prod
from typing import Any, Final

import numpy as np

from tracejit import config, logs
from tracejit.ir.graph import Graph
from tracejit.ir.node import Node
from tracejit.ir.op import Array, Param
from tracejit.ir.types import TensorType, TupleType
from tracejit.ops.pointwise import Pointwise, Select
from tracejit.ops.source import ints
from tracejit.runtime import buffer
from tracejit.tensor.kernels import FLOPS, built, evaluate
from tracejit.trace import recorder

__all__ = ["Runner"]

_HOT: Final = 3  # uses before anything is built
_BUILD: Final = 15e-3  # seconds that a kernel takes to build
# Seconds that NumPy takes: for each op, element and byte written, element of a slow function, reduced, random ...
_OP, _ELEMENT, _BYTE, _SLOW, _REDUCED, _RANDOM = 4e-6, 1.5e-9, 0.2e-9, 8e-9, 4e-9, 40e-9
_CALL, _NATIVE_BYTE = 8e-6, 0.1e-9  # ... and native code, for each call and byte
_VIEWS: Final = frozenset({"reshape", "transpose", "slice", "broadcast", "flip", "unfold", "stop_gradient", "item"})
_MOVES: Final = _VIEWS | {"concat", "pad", "copy"}  # as quick in NumPy
_FUNCTIONS: Final = frozenset({"exp", "log", "tanh", "erf", "sigmoid", "sin", "cos", "pow", "log1p", "expm1"})


class Runner:
    """`runner(arrays)` gives the results of a graph, whose shapes are known, on arrays of its parameters' types.

    They are in memory of their own, but those whose numbers are in `views`.
    """

    __slots__ = (
        "_constants",
        "_given",
        "_keeps",
        "_native",
        "_results",
        "_size",
        "_steps",
        "_uses",
        "_wanted",
        "graph",
        "views",
    )

    def __init__(self, graph: Graph, views: Container[int] = ()) -> None:
        self.graph, self.views = graph, views
        self._uses = 0
        self._wanted: int | None = None  # uses after which it is built, once they were counted
        self._native: Any = None
        self._keeps = True
        self._steps: list[Any] | None = None

    def __call__(self, arrays: Sequence[Array]) -> Sequence[Array]:
        if self._native is not None:
            return self._native(arrays)
        self._uses += 1
        if self._keeps and self._uses >= _HOT and config.current().eager_kernels and recorder.active() is None:
            if self._wanted is None:
                self._wanted = _worth(self.graph)
            if self._uses >= self._wanted:
                self._build()
                if self._native is not None:
                    return self._native(arrays)
        return self._by_numpy(arrays)

    def _by_numpy(self, arrays: Sequence[Array]) -> list[Array]:
        if self._steps is None:
            self._plan()
        bare = self._keeps and recorder.active() is None  # a call is recorded once: what is large runs by kernels
        values: list[Any] = [*arrays, *self._constants]
        values += [None] * (self._size - len(values))
        for op, reads, to, dead in self._steps:  # type: ignore[union-attr]
            inputs = [values[i] for i in reads]
            values[to] = op.eval(*inputs) if bare or op.name == "item" else evaluate(op, inputs)
            for i in dead:
                values[i] = None
        found: list[Array] = []
        for k, i in enumerate(self._results):
            a = values[i]
            is_new = i >= self._given and not isinstance(a.base, np.ndarray)
            found.append(a if is_new or k in self.views else a.copy())
        return found

    def _plan(self) -> None:
        """Steps (op, what it reads, where it writes, what nobody reads after it); constants are made now.

        NumPy broadcasts numbers itself: they need not be filled out for pointwise ops.
        """
        graph = _with_numbers(self.graph)
        places = {p: i for i, p in enumerate(graph.params)}
        nodes = [n for n in graph.nodes if n not in places]
        made = [n for n in nodes if not n.inputs and n.op.name in ("const", "iota")]
        self._constants = [n.op.eval() for n in made]
        places |= {n: i for i, n in enumerate(made, len(places))}
        rest = [n for n in nodes if n not in places]
        places |= {n: i for i, n in enumerate(rest, len(places))}
        last = {i: n for n in rest for i in n.inputs}
        kept = {*graph.results, *graph.params, *made}
        dead: dict[Node, list[int]] = {}
        for value, reader in last.items():
            if value not in kept:
                dead.setdefault(reader, []).append(places[value])
        self._given, self._size = len(graph.params) + len(made), len(places)
        self._results = [places[r] for r in graph.results]
        self._steps = [(n.op, [places[i] for i in n.inputs], places[n], dead.get(n, ())) for n in rest]

    def _build(self) -> None:
        """Compile it; NumPy stays where some op has no kernel, or the backend cannot build it."""
        self._wanted = None
        made = built(self.graph, optimize=True)
        if isinstance(made, str):
            logs.note("fallback", "%s stays with NumPy: %s", self.graph.name, made)
            self._keeps = False
        elif made.plain is None:
            self._keeps = False
        else:
            self._native, self._steps = _Direct(made), None


class _Direct:
    """Runs native code that is one program, on arrays that are known to be of the right types."""

    __slots__ = ("constants", "first", "made", "outputs", "program", "temps")

    def __init__(self, made: Any) -> None:
        self.made = made
        self.program = made.plain
        self.constants = made.plan.constants
        self.outputs, self.temps = made.output_types, made.temp_types
        self.first = made.plan.first_output

    def __call__(self, arrays: Sequence[Array]) -> Sequence[Array]:
        places = [
            a if a.flags.carray or (a.flags.c_contiguous and a.flags.aligned) else np.array(a, order="C")
            for a in arrays
        ]
        places += self.constants
        places += [buffer.empty(shape, dtype) for shape, dtype in self.outputs]
        places += [buffer.empty(shape, dtype) for shape, dtype in self.temps]
        self.program.run_arrays(places, [])
        return places[self.first : self.first + len(self.outputs)]


def _with_numbers(graph: Graph) -> Graph:
    """`graph` with constants at rank 0 where a pointwise op reads them beside values that are not."""
    new: dict[Node, Node] = {p: p for p in graph.params}

    def number(n: Node) -> Node:
        while n.op.name in ("broadcast", "reshape") and n.shape:
            n = n.inputs[0]
        return n

    for n in graph.nodes:
        if n in new:
            continue
        inputs = n.inputs
        if len(inputs) > 1 and isinstance(n.op, (Pointwise, Select)) and n.shape:
            small = [number(i) for i in inputs]
            small = [s if s.op.name == "const" and not s.shape else i for s, i in zip(small, inputs)]
            if any(s is i and i.op.name != "const" for s, i in zip(small, inputs)):
                inputs = tuple(small)
        new[n] = n.with_inputs(tuple([new[i] for i in inputs]))
    return graph.with_results([new[r] for r in graph.results])


def _worth(graph: Graph) -> int:
    """After how many uses kernels repay what building them costs; more than there will be where they never do.

    Products have kernels in common, and NumPy's threads are in the way of ours: they are built soon.
    """
    numpy, kernels = 0.0, 1
    traffic = sum(_bytes(n) for n in (*graph.params, *graph.results))
    for n in graph.nodes:
        if isinstance(n.op, Param) or not n.inputs or n.op.name in _VIEWS:
            continue
        numpy += _OP + _BYTE * _bytes(n) + _ELEMENT * _size(n)
        match n.op.name:
            case "matmul":
                if _size(n) * ints(n.inputs[0].shape)[-1] >= FLOPS:
                    return _HOT
            case "conv":
                if _size(n) * prod(ints(n.inputs[1].shape[2:])) >= FLOPS:
                    return _HOT
            case "random_bits":
                numpy += _RANDOM * _size(n)
            case name if name in _FUNCTIONS:
                numpy += _SLOW * _size(n)
            case name if name.startswith(("reduce", "arg", "scatter", "fold", "pad")):
                numpy += _REDUCED * max(_size(i) for i in n.inputs)
                kernels += name.startswith(("reduce", "arg"))
            case _:
                pass
        kernels += n.op.name in ("matmul", "conv")
    if all(n.op.name in _MOVES or not n.inputs for n in graph.nodes):
        return 1 << 62
    gain = numpy - _CALL - _NATIVE_BYTE * traffic
    if gain <= 0:
        return 1 << 62
    return max(_HOT, int(_BUILD * kernels / gain))


def _size(n: Node) -> int:
    return prod(ints(n.shape)) if isinstance(n.type, TensorType) else 0


def _bytes(n: Node) -> int:
    types = n.type.items if isinstance(n.type, TupleType) else (n.type,)
    return sum(prod(ints(t.shape)) * t.dtype.itemsize for t in types)
