"""Graph -> text, canonical: the same graph always prints the same, and the parser gives it back.

    graph @mlp(%x: f32[n, 784], %w: f32[784, 10]) -> f32[n, 10] where 1 <= n <= 4096 {
      %0 = matmul(%x, %w) : f32[n, 10]  # mlp.py:12
      %h = tanh(%0) : f32[n, 10]        # mlp.py:13
      return %h
    }

One node per line, in program order. Numbers count values; names come from the user's code where known. Attributes
stand in field order, defaults left out. A constant is written as its dtype would write it; arrays are `const(@w0)` and
live in a side table. Comments are locations and mean nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from dataclasses import field
from typing import Any

from tracejit.ir.dim import Dim
from tracejit.ir.dtype import DType
from tracejit.ir.graph import Graph
from tracejit.ir.node import Node
from tracejit.ir.op import Array, ArrayConst, Item, Op, Param, attribute_key
from tracejit.ir.types import TensorType, TupleType
from tracejit.records import dataclass

__all__ = ["clean_name", "excerpt", "fingerprint", "to_text", "to_text_with_arrays"]

_COMMENT_COLUMN = 80  # rows longer than this do not push the other rows' comments to the right
_UNFIT = re.compile(r"[^A-Za-z0-9_.]+")


def to_text(graph: Graph, *, locations: bool = True) -> str:
    """`graph` as text; `locations` adds the user's lines as comments. Arrays are named but not included."""
    return to_text_with_arrays(graph, locations=locations)[0]


def to_text_with_arrays(graph: Graph, *, locations: bool = True) -> tuple[str, dict[str, Array]]:
    """The text, and the arrays it names: `parse(*to_text_with_arrays(g))` is g again."""
    printer = _Printer(locations=locations)
    text = printer.graph(graph)
    return text, {name: const.array for name, const in printer.arrays.values()}


def fingerprint(graph: Graph) -> str:
    """A digest of what the graph computes, contents of its arrays included, user's names and lines not: a cache key."""
    printer = _Printer(locations=False, labels=False)
    digest = hashlib.sha256(printer.graph(graph).encode())
    for name, const in printer.arrays.values():
        digest.update(f"{name} {const.digest}".encode())
    return digest.hexdigest()


def excerpt(graph: Graph, culprit: Node, around: int = 2) -> str:
    """The lines around `culprit`, which is marked `>`."""
    rows = _Printer(locations=True).rows(graph)
    at = next((i for i, row in enumerate(rows) if row.node is culprit), None)
    if at is None:  # an item prints with the node it reads
        at = next((i for i, row in enumerate(rows) if row.node in culprit.inputs), 0)
    near = range(max(0, at - around), min(len(rows), at + around + 1))
    return "\n".join(f"{'>' if i == at else ' '} {rows[i].text}" for i in near)


def clean_name(label: str) -> str:
    """`label` as a word of the text form: letters, digits, `_` and `.`, not a digit first; "" where nothing is left."""
    name = _UNFIT.sub("_", label.replace("[", ".").replace("]", "")).strip(".")
    return "_" + name if name[:1].isdigit() or name == "_" else name


@dataclass(frozen=True)
class _Row:
    node: Node
    text: str


@dataclass
class _Printer:
    """What one printing must remember: which name each array got. Nested graphs share it."""

    locations: bool
    labels: bool = True
    arrays: dict[int, tuple[str, ArrayConst]] = field(default_factory=dict[int, tuple[str, ArrayConst]])
    fields: dict[type[Op], tuple[dataclasses.Field[Any], ...]] = field(
        default_factory=dict[type[Op], tuple[dataclasses.Field[Any], ...]]
    )

    def graph(self, g: Graph) -> str:
        names = self.names(g)
        title = (clean_name(g.name) or "_") if self.labels else "_"
        head = ", ".join(f"{names[p]}: {p.type}" for p in g.params)
        outs = ", ".join(str(r.type) for r in g.results) or "()"
        ranges = ", ".join(f"{low} <= {symbol} <= {high}" for low, symbol, high in g.ranges)
        where = f" where {ranges}" if ranges else ""
        lines = [f"graph @{title}({head}) -> {outs}{where} {{"]
        rows = self.rows(g, names)
        column = max((len(r.text) for r in rows if len(r.text) <= _COMMENT_COLUMN), default=0)
        for row in rows:
            place = " ".join(row.node.where.split()) if self.locations and row.node.where else ""
            lines.append(f"  {row.text:{column}}  # {place}" if place else f"  {row.text}")
        results = ", ".join(names[r] for r in g.results)
        lines += [f"  return {results}".rstrip(), "}"]
        return "\n".join(lines) + "\n"

    def names(self, g: Graph) -> dict[Node, str]:
        """A distinct name for every value; nodes with several results have none, their items do."""
        names: dict[Node, str] = {}
        taken: set[str] = set()
        suffix: dict[str, int] = {}
        count = 0

        def name(label: str | None) -> str:
            word = clean_name(label) if label and self.labels else ""
            if not word:
                return f"%{count}"
            base = word
            while word in taken:
                suffix[base] = suffix.get(base, 0) + 1
                word = f"{base}_{suffix[base]}"
            taken.add(word)
            return f"%{word}"

        for i, p in enumerate(g.params):
            label = p.op.label if isinstance(p.op, Param) else p.label
            names[p] = name(label or f"p{i}") if self.labels else f"%p{i}"
        items = _items(g)
        for n in g.nodes:
            if n in names or isinstance(n.op, Item):
                continue
            if not isinstance(n.type, TupleType):
                names[n] = name(n.label)
                count += 1
                continue
            for index in range(len(n.type.items)):
                readers = items.get((n, index), ())
                if readers:  # readers of one result are one value
                    word = name(next((r.label for r in readers if r.label), None))
                    names.update(dict.fromkeys(readers, word))
                count += 1
        for n in g.nodes:  # only in a broken graph: an item of something that is no tuple, or out of its range
            if n not in names:
                names[n] = "%" + "".join(names.get(i, "%?")[1:] for i in n.inputs) + ".item"
        return names

    def rows(self, g: Graph, names: dict[Node, str] | None = None) -> list[_Row]:
        """One line for each node that is not a parameter of g."""
        names = names or self.names(g)
        params = set(g.params)
        items = _items(g)
        rows: list[_Row] = []
        for n in g.nodes:
            if n in params or isinstance(n.op, Item):
                continue
            if isinstance(n.type, TupleType):
                out = ", ".join(names[items[n, i][0]] if (n, i) in items else "%_" for i in range(len(n.type.items)))
            else:
                out = names[n]
            operands = [names.get(i, "%?") for i in n.inputs]
            operands += self.attributes(n.op)
            rows.append(_Row(n, f"{out} = {n.op.name}({', '.join(operands)}) : {n.type}"))
        return rows

    def attributes(self, op: Op) -> list[str]:
        cls = type(op)
        if cls not in self.fields:
            self.fields[cls] = tuple(f for f in dataclasses.fields(op) if f.init)
        if op.name == "const":  # its type is the line's type
            return [self.constant(op.value, op.type)]  # type: ignore[attr-defined]
        return [
            f"{f.name}={self.attribute(v)}" for f in self.fields[cls] if not _is_default(v := getattr(op, f.name), f)
        ]

    def constant(self, value: Any, type: TensorType) -> str:
        if isinstance(value, ArrayConst):
            return self.array(value)
        match type.dtype.kind:
            case "b":
                return "true" if value else "false"
            case "f":
                return repr(float(value))
            case _:
                return str(int(value))

    def array(self, value: ArrayConst) -> str:
        # By identity of the attribute, which the graph keeps alive: hashing all weights is not free.
        return "@" + self.arrays.setdefault(id(value), (f"w{len(self.arrays)}", value))[0]

    def attribute(self, value: Any) -> str:
        if type(value) is tuple and all(type(v) is int for v in value):  # pyright: ignore[reportUnknownVariableType]
            return str(list(value))  # pyright: ignore[reportUnknownArgumentType]  # most attributes: extents and axes
        match value:
            case bool():
                return "true" if value else "false"
            case None:
                return "none"
            case int() | Dim() | TensorType():
                return str(value)
            case float():
                return repr(value)
            case str():
                return json.dumps(value)
            case DType():
                return value.name
            case tuple():
                return f"[{', '.join(self.attribute(v) for v in value)}]"  # pyright: ignore[reportUnknownVariableType]
            case Graph():
                return self.graph(value).rstrip("\n").replace("\n", "\n  ")
            case ArrayConst():
                return self.array(value)
            case _:
                return str(value)  # kernel bodies only: loop indices


def _items(g: Graph) -> dict[tuple[Node, int], list[Node]]:
    """The readers of each result of each node that has several."""
    out: dict[tuple[Node, int], list[Node]] = {}
    for n in g.nodes:
        if isinstance(n.op, Item):
            out.setdefault((n.inputs[0], n.op.index), []).append(n)
    return out


def _is_default(value: Any, of: dataclasses.Field[Any]) -> bool:
    return of.default is not dataclasses.MISSING and attribute_key(value) == attribute_key(of.default)
