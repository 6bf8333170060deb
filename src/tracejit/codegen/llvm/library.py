"""Library calls: which nodes have a kernel of their own, where that reads its operands, and the step that runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod

from tracejit.codegen.llvm import conv, matmul
from tracejit.codegen.views import Padding, View, padded_view, view
from tracejit.ir.node import Node
from tracejit.runtime import engine

__all__ = ["Match", "Routine", "match", "routine"]

FLOATS = ("f32", "f64")


@dataclass(frozen=True, eq=False)
class Match:
    """The operands of a node with a library kernel, as views; `padding` of the spatial axes of a convolution's input."""

    operands: tuple[View, ...]
    padding: tuple[Padding, ...] = ()


@dataclass(frozen=True, eq=False)
class Routine:
    """How to run it: a kernel and its arguments, where pointers are numbers of operands, -1 for the result."""

    code: engine.Code
    symbol: str
    pointers: tuple[int, ...]
    integers: tuple[int, ...]
    extent: int
    grain: int
    scratch: int


def match(n: Node) -> Match | None:
    """Where the node has a library kernel: how it reads its operands."""
    if n.op.name not in ("matmul", "conv") or n.dtype.name not in FLOATS:
        return None
    if any(prod(_ints(x.shape)) == 0 for x in (*n.inputs, n)):
        return None
    if n.op.name == "matmul":
        a, b = (view(x) for x in n.inputs)
        return Match((a, b)) if batch(n, (a, b)) is not None else None
    spatial = len(n.shape) - 3
    if not 1 <= spatial <= 3:
        return None
    x, padding = padded_view(n.inputs[0], range(3, 3 + spatial))
    return Match((x, view(n.inputs[1])), padding)


def batch(n: Node, operands: Sequence[View]) -> tuple[tuple[int, int], list[tuple[int, int]]] | None:
    """Batch extents as (outer, inner), and the strides of each operand, where neighbouring axes merge into two."""
    extents = _ints(n.shape[:-2])
    axes = [(e, [v.strides[k] for v in operands]) for k, e in enumerate(extents) if e != 1]
    while len(axes) > 2:
        for k in range(len(axes) - 1):
            (e, s), (f, t) = axes[k : k + 2]
            if all(p == q * f for p, q in zip(s, t, strict=True)):
                axes[k : k + 2] = [(e * f, t)]
                break
        else:
            return None
    while len(axes) < 2:
        axes.insert(0, (1, [0] * len(operands)))
    (e, s), (f, t) = axes
    return (e, f), list(zip(s, t, strict=True))


def routine(n: Node, found: Match, bits: int) -> Routine:
    """The kernel and its arguments."""
    name = n.dtype.name
    if n.op.name == "matmul":
        call = matmul.plan(name, matrices(n, found), bits)
        code, operands = _matmul_code(name, bits), {"a": 0, "b": 1}
    else:
        call = conv.plan(name, convolution(n, found), bits)
        code, operands = _conv_code(name, bits), {"x": 0, "w": 1}
    return Routine(code, call.symbol, pointers(call.pointers, operands), call.integers, call.extent, call.grain, call.scratch)


def pointers(names: Sequence[str], operands: Mapping[str, int]) -> tuple[int, ...]:
    """Numbers of operands; the result stands for what is not used."""
    return tuple(operands.get(p, -1) for p in names)


def matrices(n: Node, found: Match) -> matmul.Matrices:
    """A matmul in its kernel's terms."""
    extents = batch(n, found.operands)
    assert extents is not None
    sizes, strides = extents
    (am, ak), (bk, bn) = (v.strides[-2:] for v in found.operands)
    m, cols = _ints(n.shape[-2:])
    k = _ints(n.inputs[0].shape)[-1]
    return matmul.Matrices(
        m, cols, k, (*strides[0], am, ak), (*strides[1], bk, bn), (sizes[1] * m * cols, m * cols, cols), sizes
    )


def convolution(n: Node, found: Match) -> conv.Convolution:
    """A conv in its kernel's terms: three spatial axes."""
    x, w = found.operands
    spatial = len(n.shape) - 3
    missing = (3 - spatial) * [0]
    ones = (3 - spatial) * [1]

    def three(values: Sequence[int], fill: Sequence[int]) -> tuple[int, int, int]:
        a, b, c = (*fill, *values)
        return a, b, c

    op, shape, out = n.op, _ints(n.inputs[1].shape), _ints(n.shape)
    return conv.Convolution(
        n=out[0], g=out[1], o=out[2], c=shape[2],
        size=three([p.size for p in found.padding], ones),
        window=three(shape[3:], ones),
        stride=three(op.stride, ones),  # type: ignore[attr-defined]
        dilation=three(op.dilation, ones),  # type: ignore[attr-defined]
        low=three([p.low for p in found.padding], missing),
        high=three([p.high for p in found.padding], missing),
        base=three([p.interior + 1 for p in found.padding], ones),
        x=(*x.strides[:3], *three(x.strides[3:], missing)),
        w=(*w.strides[:3], *three(w.strides[3:], missing)),
        y=(out[1] * out[2] * prod(out[3:]), out[2] * prod(out[3:]), prod(out[3:])),
    )  # fmt: skip


@cache
def _matmul_code(dtype: str, bits: int) -> engine.Code:
    return engine.compile(matmul.kernel_text(dtype, bits))


@cache
def _conv_code(dtype: str, bits: int) -> engine.Code:
    return engine.compile(conv.kernel_text(dtype, bits))


def _ints(shape: Sequence[object]) -> tuple[int, ...]:
    return tuple(int(d) for d in shape)  # type: ignore[call-overload]
