"""A loaded file as a function of tensors."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from tracejit import config
from tracejit.codegen.compile import Executable, Miss, build
from tracejit.errors import DTypeError, OpError
from tracejit.export.archive import Archive, read
from tracejit.export.signature import Items, match, unflatten
from tracejit.ir import dtype as dt
from tracejit.ir.dim import Dim, Extent, substitute
from tracejit.ir.op import Array
from tracejit.ir.printer import to_text
from tracejit.ir.types import TensorType
from tracejit.tensor import Tensor
from tracejit.tensor.creation import from_numpy

__all__ = ["Exported", "load"]


def load(path: str | os.PathLike[str]) -> Exported:
    """The function in the file `path`, none of which is executed. Raises FormatError where it is damaged or newer."""
    return Exported(read(path))


class Exported:
    """Call it with what the exported function took: tensors or arrays. It needs none of the code that made it."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._built: dict[str, Executable] = {}  # by backend
        self._lock = threading.Lock()

    @property
    def graph(self) -> str:
        """The graph as text."""
        return to_text(self._archive.graph)

    @property
    def signature(self) -> str:
        """What it takes and gives: `(x: f32[n, 784]) -> f32[n, 10] where 1 <= n <= 4096`."""
        return self._archive.signature

    @property
    def weights(self) -> Mapping[str, Array]:
        """The arrays that were stored beside the graph, by their names in the module."""
        return self._archive.weights

    def __repr__(self) -> str:
        return f"<exported {self._archive.graph.name}{self.signature}>"

    def __call__(self, *args: Any) -> Any:
        """The result, as tensors. Raises TypeError, DTypeError or OpError where the arguments do not fit."""
        archive = self._archive
        assert isinstance(archive.inputs, Items)
        if len(args) != len(archive.inputs.items):
            raise TypeError(f"{len(args)} arguments given, {self!r} takes {len(archive.inputs.items)}")
        arrays = [_array(leaf) for leaf in match(archive.inputs, args, "args")]
        sizes: dict[str, int] = {}
        for param, array in zip(archive.graph.params, arrays, strict=False):
            _bind_sizes(str(param.label), param.type, array, sizes)
        for low, symbol, high in archive.graph.ranges:
            if symbol in sizes and not low <= sizes[symbol] <= high:
                raise OpError(f"{self!r}: {symbol} = {sizes[symbol]} is outside {low} <= {symbol} <= {high}")
        results = self._executable()([*arrays, *archive.weights.values()])
        if isinstance(results, Miss):
            check = archive.checks[results.check]
            seen = f"the condition at {check.where or 'an unknown line'} was {check.value} when {self!r} was recorded"
            raise OpError(f"{seen}; for these arguments it is {not check.value}, a path that is not in the file")
        return unflatten(archive.outputs, [from_numpy(r) for r in results])

    def _executable(self) -> Executable:
        """Its graph, compiled: once for all sizes."""
        backend = config.current().backend
        with self._lock:
            if backend not in self._built:
                graph = self._archive.graph
                first = len(graph.results) - len(self._archive.checks)
                checks = [(first + i, c.value) for i, c in enumerate(self._archive.checks)]
                self._built[backend] = build(graph, checks=checks, backend=backend)
            return self._built[backend]


def _array(value: Any) -> Array:
    if isinstance(value, Tensor):
        return np.ascontiguousarray(value.detach().numpy()).reshape(value.shape)
    if isinstance(value, (np.ndarray, np.generic)):
        a = np.asarray(value)
        return np.ascontiguousarray(a).reshape(a.shape)  # NumPy makes rank 0 rank 1 here
    raise TypeError(f"expected a tensor or an array, got a {type(value).__name__}")


def _bind_sizes(name: str, want: TensorType, array: Array, sizes: dict[str, int]) -> None:
    """Add the symbols that `array` gives a size to `sizes`. Raises where the array is not of type `want`."""
    dtype = dt.from_numpy(array.dtype)
    have = f"{dtype.name if dtype else array.dtype}{list(array.shape)}"
    if dtype is not want.dtype:
        raise DTypeError(f"{name} is {have}, wants {want}")
    if array.ndim != want.rank:
        raise OpError(f"{name} is {have}, wants {want}: {array.ndim} axes instead of {want.rank}")
    for axis, (extent, size) in enumerate(zip(want.shape, array.shape, strict=True)):
        if symbol := _symbol(extent):
            if sizes.setdefault(symbol, size) != size:
                message = f"axis {axis} says {symbol} = {size}, an argument before says {sizes[symbol]}"
                raise OpError(f"{name} is {have}, wants {want}: {message}")
        elif (wanted := substitute(extent, sizes)) != size:
            raise OpError(f"{name} is {have}, wants {want}: axis {axis} is {size} instead of {wanted}")


def _symbol(extent: Extent) -> str | None:
    """The name where `extent` is a symbol and nothing else."""
    if isinstance(extent, Dim) and len(extent.terms) == 1:
        ((monomial, factor),) = extent.terms
        if factor == 1 and len(monomial) == 1 and monomial[0][1] == 1:
            return monomial[0][0]
    return None
