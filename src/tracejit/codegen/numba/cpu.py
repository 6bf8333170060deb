"""`build(graph, backend="numba")`: a graph's Schedule, run step by step from Python, its kernels compiled by Numba.

Portable and easy to debug, not quick: a kernel costs 0.2 s or more to compile, runs on the calling thread with the GIL
released, and calls scalar libm. Matrix products and convolutions of floats, and every op without an element, run as
NumPy; `host_ops` names them. Every value has an array of its own, and updates are copied into place at the end, so
there is nothing here to get wrong that the interpreter could not. Numba is imported when the first kernel is compiled.

Compiled functions are kept by their text; Numba frees none of them, nor could it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tracejit.codegen.kernel import sizes
from tracejit.codegen.numba import scalar
from tracejit.codegen.numba.source import FUNCTIONS, SCALAR, Source, points, supports, write
from tracejit.codegen.result import Checks, Copies, Miss, own, same_bits
from tracejit.codegen.schedule import Call, Launch, Schedule, schedule
from tracejit.codegen.views import View, view
from tracejit.ir.dtype import DType
from tracejit.ir.graph import Graph
from tracejit.ir.node import Node
from tracejit.ir.op import Array, ArrayConst
from tracejit.ir.types import TupleType
from tracejit.records import dataclass
from tracejit.runtime import buffer

__all__ = ["Compiled", "Kernel", "assemble", "compiled", "flat", "interpreted", "plan"]


Code = Callable[..., None]  # lo, hi, and one flat array for each operand


def assemble(
    graph: Graph, updates: Mapping[int, int], checks: Checks, compile: Callable[[Source], Code] | None = None
) -> Compiled:
    """The graph, whose shapes are known, compiled; with `compile=interpreted`, for a debugger to step through."""
    return Compiled(graph, plan(graph), updates, checks, compile or compiled)


# ---------------------------------------------------------------- what runs as NumPy


@dataclass(frozen=True)
class Match:
    """A node that runs as NumPy on strided views of its operands, which need no memory of their own."""

    operands: tuple[View, ...]


def plan(graph: Graph) -> Schedule:
    """The steps of `graph`, with matrix products and convolutions of floats left to NumPy."""
    return schedule(graph, supports, match)


def match(n: Node) -> Match | None:
    """Products over integers stay loops: NumPy has nothing quicker for them."""
    if n.op.name not in ("matmul", "conv") or n.dtype.kind != "f":
        return None
    return Match(tuple(view(i) for i in n.inputs))


def viewed(base: Array, v: View, n: Node) -> Array:
    """The operand `n` where it lies in `base`."""
    base = np.ascontiguousarray(base).reshape(-1)[v.offset :]
    shape = tuple(int(d) for d in n.shape)  # type: ignore[arg-type]
    if not base.size:
        return np.empty(shape, n.dtype.numpy)
    return as_strided(base, shape, tuple(s * n.dtype.itemsize for s in sizes(v.strides)), writeable=False)


# ---------------------------------------------------------------- kernels


def interpreted(source: Source) -> Code:
    """The CPU kernel as the Python function it is: slow, but a debugger can step through it."""
    names = dict(scalar.plain())
    exec(compile(source.text, "<tracejit numba kernel>", "exec"), names)
    return np.errstate(all="ignore")(names["kernel"])


def compiled(source: Source) -> Code:
    """The CPU kernel as machine code."""
    return _compiled(source.text, tuple((o.dtype, o.use) for o in source.operands if o.use != "row"))


@cache
def _compiled(text: str, operands: tuple[tuple[DType, str], ...]) -> Code:
    numba = _numba()
    # Arrays that may not be written are operands too; contiguous and aligned is what `flat` sees to.
    arrays = [
        numba.types.Array(numba.from_dtype(d.numpy), 1, "C", readonly=use == "in") for d, use in operands
    ]  # fmt: skip
    names = dict(_namespace())
    exec(compile(text, "<tracejit numba kernel>", "exec"), names)
    signature = numba.void(numba.int64, numba.int64, *arrays)
    return numba.njit(signature, nogil=True, error_model="numpy")(names["kernel"])


@cache
def _namespace() -> Mapping[str, Any]:
    """What a CPU kernel's names mean."""
    jit = _numba().njit(nogil=True, error_model="numpy")
    names: dict[str, Any] = {"np": np} | {f: getattr(math, f) for f in FUNCTIONS}
    names |= {f: jit(getattr(scalar, f)) for f in SCALAR}
    return names | {"floor": np.floor, "ceil": np.ceil, "rint": np.rint}  # single instructions, where there are such


def _numba() -> ModuleType | Any:
    """Numba, imported late: it takes half a second, and most never choose this backend."""
    import numba

    return numba


def flat(a: Array) -> Array:
    """The elements of `a` as kernels read them: in a row, aligned, halves as float32, and never none at all."""
    if a.dtype.itemsize == 2 and a.dtype.kind in "fV":  # NumPy calls bfloat16 a void type
        a = a.astype(np.float32)
    if not a.size:
        return np.zeros(1, a.dtype)  # a masked load reads something, whatever it is
    return np.require(a, requirements=["C", "A"]).reshape(-1)


@dataclass(frozen=True)
class Kernel:
    """One kernel of a compiled graph. Prints as its source, below a line that says what its buffers stand for."""

    launch: Launch
    source: Source
    code: Code | None  # None where there is no point to compute

    @property
    def points(self) -> int:
        """Iterations of the outermost loop."""
        return points(self.launch.kernel, "cpu")

    def __str__(self) -> str:
        arguments = [o for o in self.source.operands if o.use != "row"]
        lines = [f"# {o.name} is {says(n)}" for o, n in zip(arguments, self.launch.operands, strict=True)]
        return "\n".join([*lines, self.source.text])

    def run(self, values: Mapping[Node, Array]) -> dict[Node, Array]:
        """What it makes of `values`."""
        made = {n: buffer.empty(tuple(n.shape), n.dtype.numpy) for n in self.launch.writes}  # type: ignore[arg-type]
        if self.code is not None:
            arrays = [flat(made[n] if n in made else values[n]) for n in self.launch.operands]
            self.code(0, self.points, *arrays)
            for n, a in zip(self.launch.operands, arrays, strict=True):
                if n in made and a.dtype != made[n].dtype:
                    made[n].reshape(-1)[...] = a[: made[n].size]  # halves, already rounded
        return made


def kernel(launch: Launch, compile: Callable[[Source], Code]) -> Kernel:
    """A step that runs a kernel."""
    source = write(launch.kernel)
    return Kernel(launch, source, compile(source) if points(launch.kernel, "cpu") else None)


def says(n: Node) -> str:
    """A node in a comment: its name or op, its type, and the user's line."""
    name = n.label or n.op.name
    return f"{name}: {n.type}" + (f"  ({n.where})" if n.where else "")


# ---------------------------------------------------------------- the executable


class Compiled:
    """A graph compiled by Numba; see `codegen.compile.Executable`."""

    def __init__(
        self,
        graph: Graph,
        plan: Schedule,
        updates: Mapping[int, int],
        checks: Checks,
        compile: Callable[[Source], Code],
    ) -> None:
        self.graph, self.base, self.updates, self.checks = graph, plan.base, dict(updates), checks
        self.steps = tuple(kernel(s, compile) if isinstance(s, Launch) else s for s in plan.steps)
        self.kernels = tuple(s for s in self.steps if isinstance(s, Kernel))
        self.host_ops = tuple(s.node.op.name for s in self.steps if isinstance(s, Call))
        hidden = {*self.updates, *(i for i, _ in checks)}
        self._outputs = [i for i in range(len(graph.results)) if i not in hidden]
        self._given = {n: n.op.value.array for n in graph.nodes if isinstance(getattr(n.op, "value", None), ArrayConst)}  # type: ignore[attr-defined]
        self._dead = self._last_readers()

    def _last_readers(self) -> list[list[Node]]:
        """What each step is the last to read."""
        last: dict[Node, int] = {}
        for at, s in enumerate(self.steps):
            reads = s.launch.reads if isinstance(s, Kernel) else s.reads
            last |= dict.fromkeys(reads, at)
        kept = {self.base[r] for r in self.graph.results}
        out: list[list[Node]] = [[] for _ in self.steps]
        for n, at in last.items():
            if n not in kept:
                out[at].append(n)
        return out

    def __call__(self, arrays: Sequence[Array]) -> tuple[Array, ...] | Miss:
        begun = self.begin(arrays)
        return begun if isinstance(begun, Miss) else begun.go_on([])

    def begin(self, arrays: Sequence[Array]) -> Copies | Miss:
        """See `codegen.compile.Executable`."""
        arrays = [np.asarray(a) for a in arrays]
        values: dict[Node, Any] = {**self._given, **dict(zip(self.graph.params, arrays, strict=True))}
        for step, dead in zip(self.steps, self._dead, strict=True):
            values |= step.run(values) if isinstance(step, Kernel) else host(step, values)
            for n in dead:
                del values[n]
        results = [np.asarray(values[self.base[r]]).reshape(tuple(r.shape)) for r in self.graph.results]  # type: ignore[arg-type]
        for k, (i, expected) in enumerate(self.checks):
            if not same_bits(results[i], expected):
                return Miss(k, results[i][()])
        taken: set[Node] = {*self._given, *self.graph.params}  # arrays that others hold
        outputs: list[Array] = []
        for i in self._outputs:
            base = self.base[self.graph.results[i]]
            outputs.append(results[i].copy() if base in taken else results[i])
            taken.add(base)
        new = [(arrays[j], own(results[i], arrays)) for i, j in self.updates.items()]
        return Copies(tuple(outputs), new)


def host(call: Call, values: Mapping[Node, Any]) -> dict[Node, Any]:
    """What a step that runs as NumPy makes of `values`."""
    if isinstance(call.match, Match):
        views = zip(call.inputs, call.match.operands, call.node.inputs, strict=True)
        args = [viewed(values[b], v, i) for b, v, i in views]
    else:
        given = zip(call.node.inputs, call.inputs, strict=True)
        args = [values[b] if isinstance(i.type, TupleType) else values[b].reshape(tuple(i.shape)) for i, b in given]  # type: ignore[arg-type]
    made = call.node.op.eval(*args)
    if isinstance(call.node.type, TupleType):
        return {n: own(made[n.op.index], args) for n in call.outputs}  # type: ignore[attr-defined]
    return {n: own(made, args) for n in call.outputs}
