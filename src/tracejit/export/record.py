"""What a function does to tensors, as one graph: the recording behind an exported file.

The function runs eagerly while every op tells this recorder. An exported graph is a snapshot: tensors from outside
become weights, Python values become constants. What a snapshot cannot say is refused: writing to outside tensors,
drawing random numbers, reading a tensor's value other than as a condition. A condition is kept as a check: the loaded
function raises where its data would have gone another way.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, cast

from tracejit.errors import ExportError
from tracejit.export.archive import Check
from tracejit.export.signature import Spec, flatten
from tracejit.ir.graph import Graph
from tracejit.ir.node import Node
from tracejit.ir.op import Array, Op
from tracejit.ir.types import TensorType
from tracejit.records import dataclass
from tracejit.tensor import Tensor
from tracejit.tensor.random import default_generator
from tracejit.tensor.tape import tape_position, user_line
from tracejit.trace import recorder as recording
from tracejit.trace.builder import GraphBuilder

__all__ = ["Recorded", "record"]


@dataclass(frozen=True)
class Recorded:
    """`graph(inputs, weights) -> (outputs, checks)`; `outputs` says how the result is built."""

    graph: Graph
    weights: dict[str, Array]
    outputs: Spec
    checks: tuple[Check, ...]


def record(fn: Callable[..., Any], args: Sequence[Any], leaves: Sequence[Tensor], labels: Sequence[str]) -> Recorded:
    """Run `fn(*args)` and give what it did. Raises ExportError naming the line that cannot be exported."""
    names = _names(fn)
    builder = _Builder()
    for tensor, label in zip(leaves, labels, strict=True):
        builder.input(tensor, label)
        names[id(tensor)] = label
    builder.names = names
    recorder = _Recorder(builder)
    with recording.opened(cast("Any", recorder)):  # it listens as trace's Recorder does, and is none
        result = fn(*args)
    outputs, tensors = flatten(result, lambda v: isinstance(v, Tensor), "the result")
    nodes = [builder.node_of(t) for t in tensors]
    if written := builder.updates():
        refuse_write(written[0][0], names)
    checks = tuple(Check(c.value, c.where or "") for c in builder.checks)
    graph = Graph(_name(fn), tuple(builder.params), (*nodes, *(c.node for c in builder.checks)), ())
    outside = zip(builder.params[len(leaves) :], builder.sources[len(leaves) :], strict=True)
    weights = {str(node.label): tensor.detach().numpy().copy() for node, tensor in outside}
    return Recorded(graph, weights, outputs, checks)


def refuse_write(tensor: Any, names: dict[int, str]) -> NoReturn:
    """Raise the ExportError for a function that writes `tensor`."""
    if tensor is default_generator.state:
        raise ExportError(
            "the function draws random numbers (dropout in training mode?): call .eval() before exporting"
        )
    name = names.get(id(tensor), f"an outside tensor of type {tensor.type}")
    line = tensor._version.where
    at = f" at {os.path.basename(line)}" if line else ""
    raise ExportError(
        f"the function writes to {name}{at} (batch norm in training mode?): call .eval() before exporting"
    )


class _Builder(GraphBuilder):
    """Names outside tensors as the user's code does."""

    def __init__(self) -> None:
        super().__init__(locate=_where)
        self.names: dict[int, str] = {}
        self.taken: set[str] = set()

    def input(self, tensor: Any, label: str, type: TensorType | None = None) -> Node:
        name = base = self.names.get(id(tensor), label)
        count = 0
        while name in self.taken:
            count += 1
            name = f"{base}.{count}"
        self.taken.add(name)
        return super().input(tensor, name, type)


class _Recorder:
    """Listens to the Tensor layer and builds the graph."""

    scope = None  # of one call's extents only

    def __init__(self, builder: GraphBuilder) -> None:
        self.builder = builder
        self.tape_start = tape_position()  # gradients flow through what was taped from here on
        self.emit, self.inline, self.adopt = builder.emit, builder.inline, builder.adopt
        self.alias, self.alias_result = builder.alias, builder.alias_result

    def split(self, op: Op) -> tuple[Op, Op]:
        return op, op  # indices are constants of the file

    def is_window(self, view: Any) -> bool:
        return False

    def assign(self, target: Any, value: Any, taped: bool) -> None:
        self.builder.assign(target, value)

    def look(self, kind: str, tensor: Any, value: Any) -> Any:
        if kind != "bool":
            self.refuse(f"reads the value of a tensor ({kind}), which the file would hold for ever")
        self.builder.check(self.builder.node_of(tensor), value, kind)
        return value

    def read_slot(self, tensor: Any, name: str, value: Any) -> Any:
        return value

    def write_slot(self, tensor: Any, name: str, value: Any) -> None:
        if not self.builder.made_here(tensor):
            self.refuse(f"sets {name} of an outside tensor")

    def read_mode(self, name: str, value: Any) -> Any:
        return value

    def call(self, fn: Callable[..., Any], args: Sequence[Any]) -> Any:
        return fn(*args)

    closing = False

    def footprint(self, exempt: Any) -> Any:
        return None

    def run_hook(self, hook: Callable[..., Any], args: Sequence[Any]) -> Any:
        return hook(*args)

    def custom_rule(self, context: Any) -> None:
        """The rule's ops are recorded as they run."""

    def stand(self, tensor: Any, edge: Any) -> None:
        """Its value is what it was when computed first."""

    def adopt_rule(self, grad_node: Any, results: Sequence[Any], carrying: Sequence[bool]) -> None:
        """Its results are what the recorded ops gave."""

    def refuse(self, reason: str) -> NoReturn:
        raise ExportError(f"{_where() or 'the function'}: {reason}")


def _where() -> str | None:
    line = user_line()
    return os.path.basename(line) if line else None  # a file should not tell where its maker keeps things


def _name(fn: Any) -> str:
    return getattr(fn, "__name__", None) or type(fn).__name__


def _names(fn: Any) -> dict[int, str]:
    """Names of the parameters and buffers of the modules that `fn` is or uses."""
    owners: dict[str, Any] = {"": fn}
    if hasattr(fn, "__self__"):
        owners[""] = fn.__self__
    elif inspect.isfunction(fn):
        used = inspect.getclosurevars(fn)
        owners = {**used.globals, **used.nonlocals}
    names: dict[int, str] = {}
    for prefix, owner in owners.items():
        if isinstance(owner, Tensor):
            names[id(owner)] = prefix
        for kind in ("named_parameters", "named_buffers"):
            if not isinstance(owner, type) and hasattr(owner, kind):
                for name, tensor in getattr(owner, kind)():
                    names.setdefault(id(tensor), f"{prefix}.{name}" if prefix else name)
    return names
