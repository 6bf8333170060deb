"""A product or convolution with what follows it: a bias added to its rows or channels, then relu.

Left to themselves these are a pass over memory. A library kernel does them while a tile of sums is in registers, after
the last of each sum and in the same order, so the bits are those of the separate pass.

Only where nobody else reads what lies between. A relu's gradient asks where its operand was at most 0: that is where
its result is, so the operand need not be kept for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any

import numpy as np

from tracejit.codegen.views import View, is_zero, view
from tracejit.ir.dim import same_shape
from tracejit.ir.graph import Graph
from tracejit.ir.node import Node
from tracejit.ir.op import Array, Op, Param
from tracejit.ir.types import TensorType, Type
from tracejit.records import dataclass

__all__ = ["FusedConv", "FusedMatMul", "along", "fuse_epilogues"]

Readers = Mapping[Node, Set[Node | None]]  # None: whoever called the graph


@dataclass(frozen=True)
class FusedMatMul(Op):
    """relu(a b + bias), without what is not asked for; bias in any shape of as many elements."""

    name = "fused_matmul"
    is_relu: bool

    def infer(self, a: TensorType, b: TensorType, bias: TensorType | None = None) -> Type:
        return Op.registry["matmul"]().infer(a, b)

    def eval(self, a: Array, b: Array, *bias: Array) -> Array:
        return finished(Op.registry["matmul"]().eval(a, b), bias, self.is_relu)


@dataclass(frozen=True)
class FusedConv(Op):
    """relu(conv(x, w) + bias), without what is not asked for; bias in any shape of as many elements."""

    name = "fused_conv"
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    is_relu: bool

    def infer(self, x: TensorType, w: TensorType, bias: TensorType | None = None) -> Type:
        return Op.registry["conv"](self.stride, self.dilation).infer(x, w)  # type: ignore[call-arg]

    def eval(self, x: Array, w: Array, *bias: Array) -> Array:
        y = Op.registry["conv"](self.stride, self.dilation).eval(x, w)  # type: ignore[call-arg]
        return finished(y, bias, self.is_relu)


def finished(y: Array, bias: tuple[Array, ...], is_relu: bool) -> Array:
    """What follows the sums y."""
    for b in bias:
        y = y + b.reshape(y.shape)
    return np.where(y < 0, y.dtype.type(0), y) if is_relu else y


def fuse_epilogues(graph: Graph, library: Callable[[Node], Any]) -> Graph:
    """`graph` with biases and relus inside the products before them, where `library` has a kernel for that."""
    if not any(n.op.name in ("matmul", "conv") for n in graph.nodes):
        return graph
    readers: dict[Node, set[Node | None]] = {n: set() for n in graph.nodes}
    for n in graph.nodes:
        for i in n.inputs:
            readers[i].add(n)
    for r in graph.results:
        readers[r].add(None)
    new: dict[Node, Node] = {}
    for n in graph.nodes:
        if n in new:
            continue
        ins = tuple(new[i] for i in n.inputs)
        if (found := end_of(n, readers)) is not None:
            product, last = found
            operands = (*product.inputs, *n.inputs[1:]) if n.op.name == "add" else product.inputs
            made = Node.of(fused(product.op, last is not n), tuple(new[i] for i in operands))
            if library(made) is not None:
                if not same_shape(made.shape, n.shape):
                    made = Node.of(Op.registry["reshape"](n.shape), (made,))  # type: ignore[call-arg]
                made.label, made.where = last.label, last.where
                new[n] = new[last] = made  # who asks whether n is at most 0 asks `last`
                continue
        new[n] = n if ins == n.inputs else Node.of(n.op, ins)
        if new[n] is not n:
            new[n].label, new[n].where = n.label, n.where
    return Graph(graph.name, graph.params, tuple(new[r] for r in graph.results), graph.ranges)


def fused(op: Any, is_relu: bool) -> Op:
    """The op of a product and what follows it."""
    return FusedMatMul(is_relu) if op.name == "matmul" else FusedConv(op.stride, op.dilation, is_relu)


def end_of(n: Node, readers: Readers) -> tuple[Node, Node] | None:
    """Where `n` is a product and its bias, or a product before a relu: that product, and the last node of all this."""
    product = n.inputs[0] if n.op.name == "add" else n
    if product is not n and readers[product] != {n}:
        return None
    while product.op.name == "reshape":
        above, product = product, product.inputs[0]
        if readers[product] != {above}:
            return None
    if product.op.name not in ("matmul", "conv"):
        return None
    last = relu_of(n, readers)
    return None if last is n and n.op.name != "add" else (product, last)


def relu_of(x: Node, readers: Readers) -> Node:
    """The relu of x, if that can stand for x wherever else it is read; x itself if there is none."""
    for r in readers[x]:
        if r is None:
            continue
        inside: set[Node | None] | None = None
        if r.op.name == "maximum" and r.inputs[0] is x and fills_zero(r.inputs[1]):
            inside = {r}
        elif r.op.name == "select" and r.inputs[2] is x and is_at_most_zero(r.inputs[0], x):
            inside = inside_of(r, x, readers)
        if inside is not None and all(y in inside or (y is not None and is_at_most_zero(y, x)) for y in readers[x]):
            return r
    return x


def inside_of(r: Node, x: Node, readers: Readers) -> set[Node | None] | None:
    """The readers of x that make up r = select(x <= 0, select(x < 0, 0, x), x), if nobody else reads them."""
    negative = r.inputs[1]
    if negative.op.name != "select" or readers[negative] != {r}:
        return None
    below, zero, same_x = negative.inputs
    if below.op.name != "lt" or below.inputs[0] is not x or readers[below] != {negative}:
        return None
    if not fills_zero(below.inputs[1]) or not fills_zero(zero):
        return None
    if same_x is x:
        return {r, negative, below}
    is_x = same_x.op.name == "stop_gradient" and same_x.inputs[0] is x and readers[same_x] == {negative}
    return {r, negative, below, same_x} if is_x else None


def is_at_most_zero(n: Node, x: Node) -> bool:
    """True for the node x <= 0: as true of relu(x), for NaN too."""
    return n.op.name == "le" and n.inputs[0] is x and fills_zero(n.inputs[1])


def fills_zero(n: Node) -> bool:
    """True where all elements are 0.0."""
    while n.op.name == "broadcast":
        n = n.inputs[0]
    return is_zero(n)


def along(n: Node, axis: int) -> View | None:
    """A vector in memory that `n` repeats along all axes but one; None where it is not that."""
    v = view(n)
    steps = (int(k == axis) for k in range(len(n.shape)))
    is_small = isinstance(v.base.op, Param) or len(v.base.shape) == 1  # or more would be stored than is read
    return v if is_small and same_shape(v.strides, tuple(steps)) else None
