"""Kernels by `numba.cuda`: the same text, one thread for each point, a grid's width apart.

`launch` runs one kernel on NumPy arrays, copied to the device and back. That is all there is here: a
Program that keeps its values on the device and drives streams is yet to come, and so are reductions shared by the
threads of a block: here each row is reduced by one thread. Where no GPU is, set NUMBA_ENABLE_CUDASIM=1 before Numba is
imported, and the kernels run in Numba's simulator as plain Python over NumPy scalars: for tiny arrays, to see that the
text is right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from tracejit.codegen.kernel import Kernel
from tracejit.codegen.numba import scalar
from tracejit.codegen.numba.cpu import flat
from tracejit.codegen.numba.source import FUNCTIONS, SCALAR, Source, points, write
from tracejit.ir.op import Array

__all__ = ["compiled", "launch", "ptx"]

THREADS = 128  # of a block
BLOCKS = 4096  # at most; each thread takes further points, a grid's width apart
ROWS = 256 << 20  # bytes of row scratch at most, one row for each thread


def launch(kernel: Kernel, arrays: Sequence[Array], threads: int = THREADS) -> None:
    """Run `kernel` on one array for each operand that is not a row; arrays of outputs are written."""
    source, n = write(kernel, "cuda"), points(kernel, "cuda")
    if not n:
        return
    cuda = _cuda()
    rows = [o for o in source.operands if o.use == "row"]
    row_bytes = sum(o.size * o.dtype.itemsize for o in rows)
    blocks = min(-(-n // threads), BLOCKS, max(1, ROWS // max(1, row_bytes * threads)))
    scratch = [cuda.device_array((blocks * threads, o.size), o.dtype.numpy) for o in rows]
    arguments = [o for o in source.operands if o.use != "row"]
    device = [cuda.to_device(flat(a)) for a in arrays]
    compiled(source)[blocks, threads](n, *device, *scratch)
    for o, a, d in zip(arguments, arrays, device, strict=True):
        if o.use == "out":
            a[...] = d.copy_to_host()[: a.size].reshape(a.shape)


def compiled(source: Source) -> Any:
    """The kernel as `numba.cuda.jit` gives it: `compiled(source)[blocks, threads](hi, *operands, *rows)` runs it."""
    return _cuda().jit(_function(source.text))


def ptx(kernel: Kernel, capability: tuple[int, int] = (8, 0)) -> str:
    """The kernel's PTX. Needs NVVM, and a GPU where the kernel calls a function of `scalar.py`: Numba asks for it."""
    numba, source = _numba(), write(kernel, "cuda")
    flat_arrays = [
        numba.types.Array(numba.from_dtype(o.dtype.numpy), 1, "C") for o in source.operands if o.use != "row"
    ]
    rows = [numba.types.Array(numba.from_dtype(o.dtype.numpy), 2, "C") for o in source.operands if o.use == "row"]
    signature = (numba.int64, *flat_arrays, *rows)
    text, _ = _cuda().compile_ptx(_function(source.text), signature, cc=capability)
    return text


@cache
def _function(text: str) -> Any:
    names = {**_namespace(), "cuda": _cuda()}
    exec(compile(text, "<tracejit cuda kernel>", "exec"), names)
    return names["kernel"]


@cache
def _namespace() -> Mapping[str, Any]:
    """What a kernel's names mean on the device, or in the simulator."""
    if _numba().config.ENABLE_CUDASIM:
        return scalar.plain()
    device = _cuda().jit(device=True)
    names: dict[str, Any] = {"np": np} | {f: getattr(math, f) for f in FUNCTIONS}
    return names | {f: device(getattr(scalar, f)) for f in SCALAR}


def _cuda() -> Any:
    """numba.cuda, imported late: most never choose it."""
    from numba import cuda

    return cuda


def _numba() -> Any:
    import numba

    return numba
