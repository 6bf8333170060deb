"""Extents of a call: what the symbols of a graph are, from its arguments' shapes, and which of them are special."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from tracejit.errors import BackendError
from tracejit.ir.dim import GENERAL, Dim, Extent, Shape, Sym, same, substitute, symbols
from tracejit.ir.graph import Graph
from tracejit.ir.op import Array, results

__all__ = ["Values", "count", "number", "solver", "special", "symbolic_shapes"]

Values = Mapping[str, int]

LARGEST = 1 << 29  # elements of a value: kernels count what is symbolic in 32 bits


def solver(graph: Graph) -> Callable[[Sequence[Array]], dict[str, int]]:
    """A function from arguments to the values of the graph's symbols.

    Each symbol is read off the first parameter axis that it decides alone, or together with symbols read before.
    """
    found: dict[str, tuple[int, int, Dim | None]] = {}  # parameter, axis, and the extent there unless it is the symbol
    dims = [(k, axis, d) for k, p in enumerate(graph.params) for axis, d in enumerate(p.shape) if isinstance(d, Dim)]
    waiting = True
    while waiting:
        waiting = False
        for k, axis, d in dims:
            new = [s for s in symbols((d,)) if s not in found]
            if len(new) == 1 and all(new[0] not in dict(m) or m == ((new[0], 1),) for m, _ in d.terms):
                found[new[0]] = (k, axis, None if same(d, Sym(new[0])) else d)
                waiting = True
    everything = dict.fromkeys(s for n in graph.nodes for t in results(n.type) for s in symbols(t.shape))
    if unknown := [s for s in everything if s not in found]:
        raise BackendError(f"no parameter of @{graph.name} tells what {', '.join(unknown)} is")

    def solve(arrays: Sequence[Array]) -> dict[str, int]:
        out: dict[str, int] = {}
        for name, (k, axis, d) in found.items():
            extent = arrays[k].shape[axis]
            if d is not None:
                rest = substitute(d, out)
                factor = dict(rest.terms)[((name, 1),)]
                offset = substitute(rest, {name: 0})
                extent, left = divmod(extent - offset, factor)
                if left:
                    raise BackendError(f"parameter {k} of @{graph.name}: axis {axis} is {d}, got {arrays[k].shape}")
            out[name] = extent
        return out

    return solve


def symbolic_shapes(graph: Graph) -> tuple[Shape, ...]:
    """The shapes with symbols in `graph`, each once."""
    return tuple(dict.fromkeys(t.shape for n in graph.nodes for t in results(n.type) if not t.is_static))


def special(shapes: Sequence[Shape], values: Values) -> dict[str, int]:
    """The symbols that code for general extents of `shapes` cannot serve, with their values: 0 and 1, or all."""
    pinned = {name: v for name, v in values.items() if v < GENERAL}
    for shape in shapes:
        size = 1
        for d in shape:
            size *= (n := number(d, values))
            if n < GENERAL and isinstance(d, Dim) and not (pinned and isinstance(substitute(d, pinned), int)):
                return dict(values)
        if size >= LARGEST:
            return dict(values)
    return pinned


def number(x: Extent, values: Values) -> int:
    """An extent where all its symbols are known."""
    if isinstance(x, int):
        return x
    total = 0
    for monomial, c in x.terms:
        for name, power in monomial:
            c *= values[name] ** power
        total += c
    return total


def count(shape: Sequence[Extent], values: Values) -> int:
    """The number of elements of a shape where all its symbols are known."""
    return prod([number(d, values) for d in shape])
