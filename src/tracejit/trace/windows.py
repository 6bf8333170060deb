"""Indices of tensors that are inputs of a recording: `x[i]` and `x[i : i + 4]` where Python's `i` changes.

A slice whose start is such a number is recorded as a `Window`: the start is a parameter of the graph, and what was
found of it on the way, that it is in range, or negative, is guarded as any comparison of numbers. The extent of the
slice is guarded as it is. At once, and on the tape, it is the slice that it is now.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from tracejit.errors import IndexOutOfRange
from tracejit.ir.dtype import int64
from tracejit.ir.node import Node
from tracejit.ir.op import Op
from tracejit.ir.types import TensorType
from tracejit.records import dataclass
from tracejit.trace import computed
from tracejit.trace.builder import GraphBuilder
from tracejit.trace.recorder import Recorder
from tracejit.trace.scalars import OpaqueInt, Step, plain_number

__all__ = ["Moving", "Window", "place", "sources", "span", "split"]


def place(r: Recorder, i: Any, n: int, axis: int) -> Any:
    """Index i of an axis of extent n, not negative. Raises IndexOutOfRange."""
    if computed.scalar(r, operator.lt, i, -n) or computed.scalar(r, operator.ge, i, n):
        raise IndexOutOfRange(f"index {plain_number(i)} is out of range for axis {axis} of extent {n}")
    return computed.scalar(r, operator.add, i, n) if computed.scalar(r, operator.lt, i, 0) else i


def span(r: Recorder, s: slice, n: int) -> tuple[Any, int]:
    """(start, how many) of a slice without a step of an axis of extent n."""

    def at(v: Any, default: int) -> Any:
        if v is None:
            return default
        if computed.scalar(r, operator.lt, v, 0):
            v = computed.scalar(r, operator.add, v, n)
            if computed.scalar(r, operator.lt, v, 0):
                return 0
        return n if computed.scalar(r, operator.gt, v, n) else v

    start, stop = at(s.start, 0), at(s.stop, n)
    count = r.reveal(computed.scalar(r, operator.sub, stop, start))
    return (start, count) if count > 0 else (0, 0)


@dataclass(frozen=True, eq=False)
class Window:
    """What is recorded of a slice that moves. `starts` has for each axis a tensor of rank 0, or None where it stays."""

    op: Any  # the slice now
    starts: tuple[Any, ...]
    refs: tuple[int, ...]  # places of the starts on the tape, -1 for those that stay

    name = "window"

    def sizes(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        """The extents once only the axes that move are cut."""
        op = self.op
        return tuple(n if t is None else b - a for n, t, a, b in zip(shape, self.starts, op.starts, op.limits))

    def rest(self, shape: Sequence[Any]) -> Op | None:
        """The slice of what is left; None where that is all of it."""
        op = self.op
        moving = [t is not None for t in self.starts]
        starts = tuple(0 if m else a for m, a in zip(moving, op.starts))
        limits = tuple(b - a if m else b for m, a, b in zip(moving, op.starts, op.limits))
        whole = not any(starts) and limits == self.sizes(shape) and set(op.strides) == {1}
        return None if whole else type(op)(starts, limits, op.strides)

    def node(self, builder: GraphBuilder, x: Node) -> Node:
        """The slice of x."""
        zero = Node.of(Op.registry["const"](0, TensorType(int64, ())), ())  # type: ignore[call-arg]
        starts = [zero if t is None else builder.node_of(t) for t in self.starts]
        out = Node.of(Op.registry["dynamic_slice"](self.sizes(x.shape)), (x, *starts))  # type: ignore[call-arg]
        rest = self.rest(x.shape)
        return out if rest is None else Node.of(rest, (out,))

    def put(self, parent: Any, value: Any, apply: Callable[[Op, Sequence[Any]], Any]) -> Any:
        """The tensor `parent` after the slice was overwritten by `value`."""
        registry: Any = Op.registry
        zero = apply(registry["const"](0, TensorType(int64, ())), ())
        starts = [zero if t is None else t for t in self.starts]
        shape = tuple(parent.shape)
        if (rest := self.rest(shape)) is not None:
            whole = apply(registry["dynamic_slice"](self.sizes(shape)), (parent, *starts))
            op: Any = rest
            value = apply(registry["update_slice"](op.starts, op.strides), (whole, value))
        moving = [axis for axis, t in enumerate(self.starts) if t is not None]
        if len(moving) > 1:
            return apply(registry["dynamic_update_slice"](), (parent, value, *starts))
        # In place a scatter touches the rows that it writes, an update of a window all memory.
        places = apply(registry["iota"]((value.shape[moving[0]],), 0, int64), ()) + starts[moving[0]]
        return apply(registry["scatter"](moving[0], "set"), (parent, places, value))

    @property
    def moving(self) -> Moving:
        """What a plan keeps of it."""
        op = self.op
        fixed = [(0, b - a) if k >= 0 else (a, b) for a, b, k in zip(op.starts, op.limits, self.refs)]
        return Moving(type(op)(tuple(a for a, _ in fixed), tuple(b for _, b in fixed), op.strides), self.refs)


@dataclass(frozen=True)
class Moving:
    """A slice that moves, as it is at start 0."""

    op: Any
    refs: tuple[int, ...]

    def at(self, found: Sequence[Any]) -> Op:
        """The slice, for the numbers of a call."""
        by = [found[k] if k >= 0 else 0 for k in self.refs]
        starts, limits = (tuple(a + d for a, d in zip(ends, by)) for ends in (self.op.starts, self.op.limits))
        return type(self.op)(starts, limits, self.op.strides)


def split(r: Recorder, op: Any) -> tuple[Any, Op]:
    """(what is recorded, what is computed now) of a slice with starts that change."""
    now = type(op)(tuple(map(plain_number, op.starts)), op.limits, op.strides)
    starts = tuple(computed.input_tensor(r, s) if type(s) is OpaqueInt else None for s in op.starts)
    refs = tuple(s.ref if type(s) is OpaqueInt else -1 for s in op.starts)
    return Window(now, starts, refs), now


def sources(r: Recorder, window: Window) -> list[int]:
    """Places on the tape of the numbers that its starts were computed from."""
    found: list[int] = []
    todo = [k for k in window.refs if k >= 0]
    while todo:
        at = todo.pop()
        entry = r.numbers.entries[at]
        if isinstance(entry, Step):
            todo += [x for is_ref, x in entry.operands if is_ref]
        elif at not in found:
            found.append(at)
    return found
