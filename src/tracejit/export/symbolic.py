"""One graph for all sizes, from recordings at several sizes.

A recording knows only numbers. Recorded at enough sizes, every number that moves is fitted by the polynomial of degree
two in the symbols that goes through all of them, with whole coefficients; what no such polynomial fits is refused, with
the line. A constant that moves (the n of a mean) is computed from the extents instead. The graph is then checked: at
every size recorded, one that took no part in the fit among them, it must give back that recording, or where constants
became computed, the same bits.

What this cannot see is an `if` on a size between or beyond those recorded; `save` says so to its user.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import fields
from fractions import Fraction
from typing import Any, cast

import numpy as np

from tracejit.errors import ExportError, TracejitError
from tracejit.ir import dtype as dt
from tracejit.ir.dim import Extent, Sym
from tracejit.ir.graph import Graph, Range, param, run
from tracejit.ir.node import Node, constant, expand_to
from tracejit.ir.node import cast as cast_to
from tracejit.ir.op import Array, ArrayConst, Op, attribute_key
from tracejit.ir.printer import fingerprint
from tracejit.ir.types import TensorType
from tracejit.passes.bind import bind
from tracejit.records import dataclass

__all__ = ["Recording", "Sizes", "generalise", "sizes_to_record"]

Sizes = Mapping[str, int]
_DEGREE = 2


def sizes_to_record(example: Sizes) -> list[Sizes]:
    """Sizes near those of the example: enough to determine a polynomial of degree two, and then one to check it."""
    names = sorted(example)
    base = {s: max(example[s], 2) for s in names}  # at extent 1, broadcasting takes another path
    steps = [p for p in itertools.product(range(_DEGREE + 1), repeat=len(names)) if sum(p) <= _DEGREE]
    fitted: list[Sizes] = [{s: base[s] + k for s, k in zip(names, p, strict=True)} for p in steps]
    return [*fitted, {s: base[s] + 5 + 2 * i for i, s in enumerate(names)}]


@dataclass(frozen=True)
class Recording:
    """What the function did at `sizes`, given `arrays`."""

    sizes: Sizes
    graph: Graph
    arrays: Sequence[Array]


def generalise(recordings: Sequence[Recording], ranges: Sequence[Range]) -> Graph:
    """The graph that gives each recording back at its sizes; the sizes are those of `sizes_to_record`.

    Raises ExportError where there is none, naming the user's line and the numbers.
    """
    graph = _merge([r.graph for r in recordings], _Fit([r.sizes for r in recordings]), tuple(ranges))
    for r in recordings:
        if not gives_back(graph, r):
            raise ExportError(f"the function does not do the same at all sizes: not at {_say(r.sizes)}")
    return graph


def gives_back(graph: Graph, recording: Recording) -> bool:
    """True where `graph` at the recording's sizes is the recording, or has the same bits on its inputs."""
    try:
        bound = bind(graph, recording.sizes)
    except TracejitError:
        return False
    if fingerprint(bound) == fingerprint(recording.graph):
        return True
    pairs = zip(run(bound, recording.arrays), run(recording.graph, recording.arrays), strict=True)
    return all(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in pairs)


def _merge(graphs: Sequence[Graph], fit: _Fit, ranges: tuple[Range, ...]) -> Graph:
    columns = [g.nodes for g in graphs]
    if len({len(c) for c in columns}) > 1:
        counts = ", ".join(f"{len(c)} at {_say(s)}" for c, s in zip(columns, fit.sizes, strict=True))
        raise ExportError(
            f"the number of operations changes with the sizes ({counts}): a loop or an `if` looked at a size"
        )
    position = [{n: i for i, n in enumerate(c)} for c in columns]
    made: list[Node] = []
    for row in zip(*columns, strict=True):
        first = row[0]
        reads = {tuple(position[k][i] for i in n.inputs) for k, n in enumerate(row)}
        if len({type(n.op) for n in row}) > 1 or len(reads) > 1:
            raise ExportError(f"{_at(first)}another operation at {_say(fit.sizes[0])} than at other sizes")
        if len({attribute_key(getattr(n.op, "value", None)) for n in row}) > 1:
            made.append(_moving_constant([n.op for n in row], fit, _at(first)))
            continue
        op = _merge_op([n.op for n in row], fit, _at(first))
        made.append(_node(op, [made[i] for i in reads.pop()], first))
    new = dict(zip(columns[0], made, strict=True))
    outs = {tuple(position[k][r] for r in g.results) for k, g in enumerate(graphs)}
    if len(outs) > 1:
        raise ExportError("which values are returned changes with the sizes")
    first = graphs[0]
    return Graph(first.name, tuple(new[p] for p in first.params), tuple(new[r] for r in first.results), ranges)


def _node(op: Op, inputs: list[Node], old: Node) -> Node:
    if op.name == "param":
        node = param(op.label, op.type)  # type: ignore[attr-defined]
    else:
        try:
            node = Node.of(op, inputs)
        except TracejitError as error:
            raise ExportError(f"{_at(old)}{op.name} does not work for every size: {error}") from error
    node.label, node.where = old.label, old.where
    return node


def _moving_constant(ops: Sequence[Any], fit: _Fit, where: str) -> Node:
    """A scalar that is a polynomial of the symbols, or one over it, computed from an extent: a sum of so many ones."""
    if any(isinstance(op.value, ArrayConst) for op in ops):
        raise ExportError(f"{where}an array of constants changes with the sizes")
    type: TensorType = _merge_values([op.type for op in ops], fit, where)
    values = [type.dtype.numpy.type(op.value) for op in ops]
    counts = [round(float(v)) for v in values]
    inverse = any(c != v for c, v in zip(counts, values, strict=True))
    if inverse:
        counts = [round(1 / float(v)) if v and np.isfinite(v) else 0 for v in values]
        if any(c == 0 or type.dtype.numpy.type(1 / c) != v for c, v in zip(counts, values, strict=True)):
            shown = ", ".join(f"{v} at {_say(s)}" for v, s in zip(values, fit.sizes, strict=True))
            raise ExportError(f"{where}a constant changes with the sizes in a way that cannot be exported: {shown}")
    extent = fit(counts, where)
    ones = Node.of(Op.registry["const"](1, TensorType(dt.int64, (extent,))), ())  # type: ignore[call-arg]
    count = Node.of(Op.registry["reduce_sum"]((0,)), (ones,))  # type: ignore[call-arg]
    if inverse:  # in f64, and rounded once, as Python's 1 / n was
        count = constant(count, 1.0, dt.float64) / cast_to(count, dt.float64)
    return expand_to(cast_to(count, type.dtype), type.shape)


def _merge_op(ops: Sequence[Op], fit: _Fit, where: str) -> Op:
    names = [f.name for f in fields(ops[0]) if f.init]
    values = [_merge_values([getattr(op, name) for op in ops], fit, f"{where}{ops[0].name}: ") for name in names]
    return type(ops[0])(*values)


def _merge_values(values: Sequence[Any], fit: _Fit, where: str) -> Any:
    first = values[0]
    if all(attribute_key(v) == attribute_key(first) for v in values):
        return first
    if all(type(v) is int for v in values):
        return fit(cast("Sequence[int]", values), where)
    if all(isinstance(v, tuple) and len(v) == len(first) for v in values):
        return tuple(_merge_values(v, fit, where) for v in zip(*values, strict=True))
    if all(isinstance(v, TensorType) and v.dtype is first.dtype for v in values):
        return first.with_shape(_merge_values([v.shape for v in values], fit, where))
    shown = ", ".join(f"{v} at {_say(s)}" for v, s in itertools.islice(zip(values, fit.sizes, strict=True), 3))
    raise ExportError(f"{where}a value changes with the sizes ({shown}); only extents may")


@dataclass(frozen=True)
class _Fit:
    """Fits numbers seen at `sizes`: the last of them checks, the others determine the polynomial."""

    sizes: Sequence[Sizes]

    def __call__(self, values: Sequence[int], where: str) -> Extent:
        names = sorted(self.sizes[0])
        powers = [p for p in itertools.product(range(_DEGREE + 1), repeat=len(names)) if sum(p) <= _DEGREE]
        rows = [[Fraction(_monomial(s, names, p)) for p in powers] for s in self.sizes[:-1]]
        coefficients = _solve(rows, [Fraction(v) for v in values[:-1]])
        check = sum(c * _monomial(self.sizes[-1], names, p) for c, p in zip(coefficients, powers, strict=True))
        if check != values[-1] or any(c.denominator != 1 for c in coefficients):
            shown = ", ".join(f"{v} at {_say(s)}" for v, s in zip(values, self.sizes, strict=True))
            raise ExportError(f"{where}an extent is not a polynomial of {', '.join(names)}: {shown}")
        out: Extent = 0
        for c, p in zip(coefficients, powers, strict=True):
            term: Extent = int(c)
            for name, power in zip(names, p, strict=True):
                for _ in range(power):
                    term = term * Sym(name)
            out = out + term
        return out


def _monomial(sizes: Sizes, names: Sequence[str], powers: Sequence[int]) -> int:
    out = 1
    for name, power in zip(names, powers, strict=True):
        out *= sizes[name] ** power
    return out


def _solve(rows: list[list[Fraction]], right: list[Fraction]) -> list[Fraction]:
    """x with rows @ x = right, by elimination. The rows are independent: such sizes determine a polynomial."""
    n = len(rows)
    table = [[*row, b] for row, b in zip(rows, right, strict=True)]
    for i in range(n):
        pivot = next(k for k in range(i, n) if table[k][i])
        table[i], table[pivot] = table[pivot], table[i]
        table[i] = [v / table[i][i] for v in table[i]]
        for k in range(n):
            if k != i and (factor := table[k][i]):
                table[k] = [v - factor * w for v, w in zip(table[k], table[i], strict=True)]
    return [row[-1] for row in table]


def _at(node: Node) -> str:
    return f"{node.where}: " if node.where else ""


def _say(sizes: Sizes) -> str:
    return ", ".join(f"{name} = {size}" for name, size in sizes.items())
