"""Eager ops on large arrays, run by the compiler's kernels instead of NumPy.

NumPy is the meaning of every op, and on small arrays nothing is quicker. On large ones it computes on one thread,
without vector math, into pages that the system hands out anew. So an op that comes for the third time with the same
types, and is worth it, gets a kernel of its own: the graph of this one op, built and kept like any other. None is built
while a call is recorded: that call is about to be compiled whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tracejit import config, logs
from tracejit.errors import TracejitError
from tracejit.ir.dtype import from_numpy
from tracejit.ir.graph import Graph, param
from tracejit.ir.node import Node, expand_to
from tracejit.ir.op import Array, ArrayConst, Op
from tracejit.ir.types import TensorType
from tracejit.ops.pointwise import Pointwise, Select
from tracejit.ops.source import Const, ints
from tracejit.runtime import buffer
from tracejit.runtime.forks import building
from tracejit.trace import recorder

__all__ = ["FLOPS", "built", "evaluate", "worth"]

_HOT = 3  # uses before a kernel is built
_LARGE = 1 << 15  # elements of one operand below which NumPy is as quick for what reads each once
FLOPS = 1 << 18  # ... and multiplications, for products: NumPy, too, shares more than these among threads
_SMALL = math.isqrt(FLOPS)  # elements: where no operand has so many, neither of these can be reached
_REDUCTIONS = ("reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "argmax", "argmin")
_READS_ONCE = frozenset([*_REDUCTIONS, "unfold", "fold"])


def evaluate(op: Op, arrays: Sequence[Array]) -> Any:
    """`op.eval(*arrays)`, by a kernel where that pays."""
    for a in arrays:  # an eighth of the time of a small op, were all asked that `worth` asks
        if a.size >= _SMALL:
            break
    else:
        if arrays and op.name != "random_bits":
            return op.eval(*arrays)
        if isinstance(op, Const):
            return _filled(op)
    return _by_kernel(op, arrays) if worth(op, arrays) else op.eval(*arrays)


def _filled(op: Const) -> Array:
    """What `op.eval()` gives, but a parameter or an optimizer's state may begin like this: in the memory of outputs."""
    if not op.type.shape or isinstance(op.value, ArrayConst):
        return op.eval()
    shape, dtype = ints(op.type.shape), op.type.dtype.numpy
    if math.prod(shape) * dtype.itemsize < buffer.SMALL:
        return op.eval()
    out = buffer.empty(shape, dtype)
    with np.errstate(over="ignore"):
        np.copyto(out, op.value, casting="unsafe")
    return out


def worth(op: Op, arrays: Sequence[Array]) -> bool:
    """Whether a kernel would be quicker than NumPy."""
    if not arrays or arrays[-1].dtype.char not in "fdl":
        return False
    match op.name:
        case "random_bits":
            return math.prod(op.shape) >= _LARGE  # type: ignore[attr-defined]
        case "matmul":
            x, w = arrays
            return x.size * w.shape[-1] >= FLOPS
        case "conv":
            x, w = arrays
            return x.size * w.size >= FLOPS * x.shape[2]  # about: as many windows as places
        case _:
            if max(a.size for a in arrays) < _LARGE or arrays[-1].dtype.char == "l":
                return False
            fits = op.name in _READS_ONCE or isinstance(op, (Pointwise, Select))
            return fits and all(a.flags.c_contiguous for a in arrays)


def _by_kernel(op: Op, arrays: Sequence[Array]) -> Any:
    if not config.current().eager_kernels:
        return op.eval(*arrays)
    found = _kernel(op, tuple((a.dtype, a.shape) for a in arrays))
    found.uses += 1
    if found.run is None:
        if found.uses < _HOT or recorder.active() is not None:
            return op.eval(*arrays)
        found.build()
    assert found.run is not None
    return found.run(arrays)


def built(graph: Graph, **options: Any) -> Any:
    """The executable of a graph without checks, or why the backend has none; `options` are those of `build`."""
    try:
        with building():
            from tracejit.codegen.compile import build  # brings LLVM

            return build(graph, **options)
    except (TracejitError, NotImplementedError) as e:
        return f"{type(e).__name__}: {e}"


class _Kernel:
    """An op with the types of its operands, and what runs it once it has come often enough."""

    __slots__ = ("op", "run", "types", "uses")

    def __init__(self, op: Op, types: tuple[Any, ...]) -> None:
        self.op, self.types = op, types
        self.uses = 0
        self.run: Any = None

    def build(self) -> None:
        """Compile it; NumPy stays where the op has no kernel, or the backend cannot build it."""
        op = self.op

        def by_numpy(arrays: Sequence[Array]) -> Any:
            return op.eval(*arrays)

        executable = built(_graph(op, self.types))
        if isinstance(executable, str):
            logs.note("fallback", "%s stays with NumPy: %s", op.name, executable)
            self.run = by_numpy
            return

        def natively(arrays: Sequence[Array]) -> Any:
            made = executable(arrays)
            return made[0] if len(made) == 1 else made

        self.run = by_numpy if executable.host_ops else natively


@lru_cache(maxsize=1024)
def _kernel(op: Op, types: tuple[Any, ...]) -> _Kernel:
    return _Kernel(op, types)


def _graph(op: Op, types: tuple[Any, ...]) -> Graph:
    """The graph of one op. Eager code leaves rank-0 operands of pointwise ops unexpanded, the graph may not."""
    params: list[Node] = []
    for i, (dtype, shape) in enumerate(types):
        d = from_numpy(dtype)
        assert d is not None
        params.append(param(f"x{i}", TensorType(d, shape)))
    nodes = params
    if isinstance(op, (Pointwise, Select)):
        shape = max((p.shape for p in params), key=lambda s: (len(s), math.prod(s)))  # type: ignore[arg-type]
        nodes = [expand_to(n, shape) for n in params]
    made = op(*nodes)
    return Graph(op.name, tuple(params), made if isinstance(made, tuple) else (made,))
