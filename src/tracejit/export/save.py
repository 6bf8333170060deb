"""A function or module as a file: record, generalise over sizes where asked, write."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tracejit.errors import ExportError
from tracejit.export.archive import Archive, write
from tracejit.export.record import Recorded, record
from tracejit.export.signature import Items, Leaf, Spec, flatten, unflatten
from tracejit.export.symbolic import Recording, Sizes, generalise, gives_back, sizes_to_record
from tracejit.ir.graph import Graph
from tracejit.ir.printer import fingerprint
from tracejit.tensor import Tensor
from tracejit.tensor.creation import from_numpy
from tracejit.trace.compile import Compiled

__all__ = ["save"]

Axes = Mapping[int, str]
Dynamic = Axes | Sequence[Axes | None] | None
_LARGEST = 2**31 - 1  # of a symbol: extents and their products stay far inside 64 bits


def save(fn: Callable[..., Any], example_args: Any, path: str | os.PathLike[str], dynamic: Dynamic = None) -> None:
    """Write what `fn(*example_args)` computes to the file `path`, to be loaded by `load` without the code of `fn`.

    >>> tj.export.save(model.eval(), (images,), "digits.tj", dynamic={0: "n"})

    `dynamic` names axes whose extent may differ later: `{axis: name}` for the first argument, or one mapping (or None)
    for each argument. `fn` is then recorded at several sizes, and a function that does not do the same at all of them
    is refused; an `if` on a size between or beyond those cannot be seen. Raises ExportError naming the line that cannot
    be exported.
    """
    fn = fn.function if isinstance(fn, Compiled) else fn
    args = tuple(example_args) if isinstance(example_args, (tuple, list)) else (example_args,)
    spec, leaves = flatten(args, lambda v: isinstance(v, Tensor), "args")
    assert isinstance(spec, Items)
    axes = _axes(spec, dynamic)
    example = _example_sizes(axes, leaves)
    labels = _labels(fn, spec)

    def at(sizes: Sizes) -> tuple[Recorded, list[Tensor]]:
        tensors = [_resize(t, {a: sizes[s] for a, s in axes.get(i, {}).items()}) for i, t in enumerate(leaves)]
        return record(fn, unflatten(spec, tensors), tensors, labels), tensors

    recorded, tensors = at(example)
    graph = recorded.graph
    if fingerprint(at(example)[0].graph) != fingerprint(graph):
        raise ExportError("the function did something else when called again with the same arguments")
    if example:
        graph = _for_all_sizes(at, example, _recording(example, recorded, tensors))
    write(Archive(graph, recorded.weights, spec, recorded.outputs, recorded.checks), path)


def _for_all_sizes(at: Callable[[Sizes], tuple[Recorded, list[Tensor]]], example: Sizes, seen: Recording) -> Graph:
    recordings = [_recording(sizes, *at(sizes)) for sizes in sizes_to_record(example)]
    graph = generalise(recordings, [(2, s, _LARGEST) for s in example])
    if all(size >= 2 for size in example.values()) and not gives_back(graph, seen):
        raise ExportError(f"the function does not do the same at the example's sizes {dict(example)} as near them")
    return _from_one(graph, at, example)


def _from_one(graph: Graph, at: Callable[[Sizes], tuple[Recorded, list[Tensor]]], example: Sizes) -> Graph:
    """`graph` with ranges from 1 for the symbols where extent 1 (broadcasting, squeeze) gives the same bits."""
    out = graph
    for symbol in example:
        ranges = tuple((1, s, high) if s == symbol else (low, s, high) for low, s, high in out.ranges)
        wider = Graph(out.name, out.params, out.results, ranges)
        sizes = {s: 1 if s == symbol else max(size, 2) for s, size in example.items()}
        try:
            seen = _recording(sizes, *at(sizes))
        except Exception:  # the user's function may not work there, in any way of its own
            continue
        if gives_back(wider, seen):
            out = wider
    return out


def _recording(sizes: Sizes, recorded: Recorded, tensors: Sequence[Tensor]) -> Recording:
    return Recording(sizes, recorded.graph, [*(t.detach().numpy() for t in tensors), *recorded.weights.values()])


def _axes(spec: Items, dynamic: Dynamic) -> dict[int, dict[int, str]]:
    """{tensor: {axis: symbol}}"""
    if dynamic is None:
        return {}
    by_argument = [dynamic] if isinstance(dynamic, Mapping) else list(dynamic)
    if len(by_argument) > len(spec.items):
        raise ExportError(f"dynamic names axes of {len(by_argument)} arguments, there are {len(spec.items)}")
    out: dict[int, dict[int, str]] = {}
    for k, (argument, axes) in enumerate(zip(spec.items, by_argument, strict=False)):
        if not axes:
            continue
        if not isinstance(argument, Leaf):
            raise ExportError(f"dynamic names axes of args[{k}], which is not a tensor")
        if bad := [s for s in axes.values() if not s.isidentifier()]:
            raise ExportError(f"dynamic names an axis of args[{k}] {bad[0]!r}, which is not a name")
        out[argument.index] = dict(axes)
    return out


def _example_sizes(axes: Mapping[int, Axes], leaves: Sequence[Tensor]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for i, named in axes.items():
        for axis, symbol in named.items():
            if not 0 <= axis < leaves[i].ndim:
                raise ExportError(f"dynamic names axis {axis} of a tensor of type {leaves[i].type}")
            size = leaves[i].shape[axis]
            if size == 0:
                raise ExportError(f"{symbol} is 0 in the example; give one with elements")
            if sizes.setdefault(symbol, size) != size:
                raise ExportError(f"{symbol} is {sizes[symbol]} and {size} in the example")
    return sizes


def _resize(tensor: Tensor, extents: Mapping[int, int]) -> Tensor:
    """`tensor` with other extents, its own elements repeated or left out: values stay as valid as they were.

    Always a copy: an argument is no other argument and no weight, though the example may give one tensor twice.
    """
    array = tensor.detach().numpy().copy()
    for axis, extent in extents.items():
        array = np.take(array, np.arange(extent) % array.shape[axis], axis)
    return from_numpy(array).requires_grad_(tensor.requires_grad)


def _labels(fn: Any, spec: Items) -> list[str]:
    """A name for each tensor among the arguments: the parameter's, with a number where it holds several."""
    try:
        names = list(inspect.signature(getattr(fn, "forward", fn)).parameters)
    except (TypeError, ValueError):
        names = []
    out: list[str] = []
    for k, argument in enumerate(spec.items):
        name = names[k] if k < len(names) else f"arg{k}"
        count = _count(argument)
        out += [name] if isinstance(argument, Leaf) else [f"{name}.{i}" for i in range(count)]
    return out


def _count(spec: Spec) -> int:
    match spec:
        case Leaf():
            return 1
        case Items(_, items):
            return sum(map(_count, items))
        case _:
            return sum(_count(s) for _, s in getattr(spec, "items", ()))
