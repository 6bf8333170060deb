"""Library calls: which nodes have a kernel of their own, where that reads its operands, and the step that runs it.

Products and convolutions read views where they lie; the others want whole arrays. What is not here has loops made for
it (`emit.py`) or runs on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np

from tracejit.codegen.epilogue import along
from tracejit.codegen.kernel import sizes
from tracejit.codegen.llvm import attention, conv, matmul, order, scatter, winograd
from tracejit.codegen.llvm.tile import BIAS, RELU
from tracejit.codegen.place import strides_of
from tracejit.codegen.views import Padding, View, is_zero, padded_view, view
from tracejit.ir.dim import Extent, at_least, has_zero, same, same_shape
from tracejit.ir.node import Node
from tracejit.records import dataclass

__all__ = ["Ahead", "Match", "Routine", "ahead", "match", "routines"]

FLOATS = ("f32", "f64")
HALVES = ("f16", "bf16")


@dataclass(frozen=True, eq=False)
class Match:
    """The operands of a node with a library kernel, as views; `padding` of a convolution's spatial axes.

    `in_place`: the result may lie where the first operand does.
    """

    operands: tuple[View, ...]
    padding: tuple[Padding, ...] = ()
    in_place: bool = False

    def at(self, values: Mapping[str, int]) -> Match:
        """What it is where symbols have these values."""
        padding = tuple(p.at(values) for p in self.padding)
        return Match(tuple(v.at(values) for v in self.operands), padding, self.in_place)


@dataclass(frozen=True, eq=False)
class Routine:
    """A run of a kernel with its arguments, where pointers are numbers of operands; results are -1, -2."""

    texts: tuple[str, ...]  # of the module that defines the kernel, and of those that it calls
    symbol: str
    pointers: tuple[int, ...]
    offsets: tuple[int, ...]  # elements from there
    integers: tuple[int, ...]
    extent: int
    grain: int
    scratch: int


def match(n: Node) -> Match | None:
    """Where the node has a library kernel: how it reads its operands."""
    if n.op.name not in _ROUTINES or any(has_zero(x.shape) for x in n.inputs):
        return None
    dtype = n.inputs[0].dtype.name
    match n.op.name:
        case "matmul" | "fused_matmul":
            a, b = (view(x) for x in n.inputs[:2])
            if dtype not in FLOATS or batch(n, (a, b)) is None or (then := _then(n)) is None:
                return None
            return Match((a, b, *then))
        case "conv" | "fused_conv":
            spatial = len(n.shape) - 3
            if dtype not in FLOATS or not 1 <= spatial <= 3 or has_zero(n.shape):
                return None
            x, padding = padded_view(n.inputs[0], range(3, 3 + spatial))
            then = _then(n)
            return None if then is None else Match((x, view(n.inputs[1]), *then), padding)
        case "scatter" | "scatter_along":
            if dtype in HALVES and n.op.mode == "add":  # type: ignore[attr-defined]
                return None
            zero = is_zero(n.inputs[0])
            return Match(tuple(whole(x) for x in n.inputs[int(zero) :]), in_place=not zero)
        case "attention":
            return Match(tuple(view(x) for x in n.inputs))
        case "sort":
            return Match((whole(n.inputs[0]),))
        case _:
            return Match((whole(n.inputs[0]),)) if dtype not in HALVES else None


def _then(n: Node) -> tuple[View, ...] | None:
    """The bias of a product, if it has one; None where the kernel for it has no such epilogue."""
    if n.op.name == "fused_matmul" and not all(at_least(e, 2) for e in n.shape[-2:]):
        return None  # a row or a column has a kernel of its own
    if len(n.inputs) == 2:
        return ()
    bias = n.inputs[2]
    if n.op.name == "fused_matmul":
        found = along(bias, len(bias.shape) - 1) if same(bias.shape[-1], n.shape[-1]) else None
    else:
        images, g, o, *space = n.shape
        found = along(bias, 1) if same_shape(bias.shape, (images, g * o, *space)) else None
    return None if found is None else (found,)


def whole(n: Node) -> View:
    """All of a node, row-major."""
    return View(n, 0, strides_of(n.shape))


def batch(n: Node, operands: Sequence[View]) -> tuple[tuple[Extent, Extent], list[tuple[Extent, Extent]]] | None:
    """Batch extents as (outer, inner), and the strides of each operand, where neighbouring axes merge into two."""
    axes = [(e, [v.strides[k] for v in operands]) for k, e in enumerate(n.shape[:-2]) if not same(e, 1)]
    while len(axes) > 2:
        for k in range(len(axes) - 1):
            (e, s), (f, t) = axes[k : k + 2]
            if all(same(p, q * f) for p, q in zip(s, t, strict=True)):
                axes[k : k + 2] = [(e * f, t)]
                break
        else:
            return None
    while len(axes) < 2:
        axes.insert(0, (1, [0] * len(operands)))
    (e, s), (f, t) = axes
    return (e, f), list(zip(s, t, strict=True))


def routines(n: Node, found: Match, bits: int) -> Sequence[Routine]:
    """The runs that make it, in any order."""
    return _ROUTINES[n.op.name](n, found, bits)


def arguments(
    texts: tuple[str, ...], call: matmul.Call, operands: Mapping[str, int], offsets: Mapping[str, int] | None = None
) -> Routine:
    """A call with its pointers numbered; the result stands for what is not read."""
    pointers = tuple(operands.get(p, -1) for p in call.pointers)
    starts = tuple((offsets or {}).get(p, 0) for p in call.pointers)
    return Routine(texts, call.symbol, pointers, starts, call.integers, call.extent, call.grain, call.scratch)


def _matmul(n: Node, found: Match, bits: int) -> Sequence[Routine]:
    name = n.dtype.name
    call = matmul.plan(name, matrices(n, found), bits, _flags(n))
    return [arguments(_texts(matmul.kernel_texts, name, bits, call.symbol), call, {"a": 0, "b": 1, **_bias(n)})]


def _flags(n: Node) -> int:
    """The epilogue of a product."""
    return (BIAS if _bias(n) else 0) | (RELU if getattr(n.op, "is_relu", False) else 0)


def _bias(n: Node) -> Mapping[str, int]:
    """Which operand of a product is its bias."""
    return {"bias": 2} if len(n.inputs) > 2 else {}


@dataclass(frozen=True, eq=False)
class Ahead:
    """A product whose second operand is packed before a loop: the runs before and in it, and the bytes between them.
    `before` makes what `then` has as its operand 1."""

    before: Routine
    then: Routine
    nbytes: int


def ahead(n: Node, found: Match, bits: int) -> Ahead | None:
    """How to run a product many times with the same second operand; None where there is no better way."""
    name = n.dtype.name
    if n.op.name != "matmul" or (packing := matmul.plan_panels(name, matrices(n, found), bits)) is None:
        return None
    call, nbytes = packing
    texts = _texts(matmul.kernel_texts, name, bits, call.symbol)
    then = matmul.plan(name, matrices(n, found), bits, ready=True)
    return Ahead(arguments(texts, call, {"b": 1}), arguments(texts, then, {"a": 0, "b": 1}), nbytes)


def _conv(n: Node, found: Match, bits: int) -> Sequence[Routine]:
    return [convolve(n, p, bits) for p in conv.parts(convolution(n, found))]


def convolve(n: Node, part: conv.Part, bits: int) -> Routine:
    """One convolution by the kernel that suits it."""
    dtype, flags = n.dtype.name, _flags(n)
    fast = winograd.plan(dtype, part.conv, bits, flags)
    texts = _texts(winograd.kernel_texts if fast else conv.kernel_texts, dtype, bits)
    call = fast or conv.plan(dtype, part.conv, bits, flags)
    return arguments(texts, call, {"x": 0, "w": 1, **_bias(n)}, {"w": part.w, "y": part.y})


def _attention(n: Node, found: Match, bits: int) -> Sequence[Routine]:
    op: Any = n.op
    extents = batch(n, found.operands)
    assert extents is not None, "more than two batch axes"
    outer_inner, strides = extents
    operands = [(*sizes(s), *sizes(x.strides[-2:])) for s, x in zip(strides, found.operands, strict=True)]
    bits_of_scale = int(np.float32(op.scale).view(np.int32))
    (m, d), (keys, e) = (sizes(n.inputs[i].shape[-2:]) for i in (0, 2))
    heads = attention.Heads(m, keys, d, e, bits_of_scale, op.is_causal, *operands, sizes(outer_inner))  # type: ignore[arg-type]
    return [arguments(_texts(attention.kernel_texts, bits), attention.plan(heads, bits), {"q": 0, "k": 1, "v": 2})]


def _scatter(n: Node, found: Match, bits: int) -> Sequence[Routine]:
    op: Any = n.op
    name, along, zero = n.dtype.name, n.op.name == "scatter_along", is_zero(n.inputs[0])
    indices = sizes(n.inputs[1].shape)
    count = indices[op.axis] if along else prod(indices)
    call = scatter.plan(name, op.mode, along, sizes(n.shape), op.axis, count, from_zero=zero)
    operands = {"indices": 0, "updates": 1} if zero else {"x": 0, "indices": 1, "updates": 2}
    return [arguments(_texts(scatter.kernel_text, name, op.mode, along, bits), call, operands)]


def _sort(n: Node, found: Match, bits: int) -> Sequence[Routine]:
    op: Any = n.op
    x = n.inputs[0]
    call = order.plan_sort(x.dtype.name, op.descending, sizes(x.shape), op.axis)
    return [arguments(_texts(order.sort_text, x.dtype.name, op.descending), call, {"x": 0, "y": -1, "indices": -2})]


def _cumulative(n: Node, found: Match, bits: int) -> Sequence[Routine]:
    op: Any = n.op
    call = order.plan_cumulative(n.dtype.name, op.name, sizes(n.shape), op.axis)
    return [arguments(_texts(order.cumulative_text, n.dtype.name, op.name, bits), call, {"x": 0})]


@cache
def _texts(make: Callable[..., str | tuple[str, ...]], *arguments: str | int) -> tuple[str, ...]:
    made = make(*arguments)
    return (made,) if isinstance(made, str) else made


_ROUTINES: Mapping[str, Callable[[Node, Match, int], Sequence[Routine]]] = {
    "matmul": _matmul, "fused_matmul": _matmul, "conv": _conv, "fused_conv": _conv, "attention": _attention,
    "scatter": _scatter, "scatter_along": _scatter, "sort": _sort,
    "cumsum": _cumulative, "cumprod": _cumulative, "cummax": _cumulative,
}  # fmt: skip


def matrices(n: Node, found: Match) -> matmul.Matrices:
    """A matmul in its kernel's terms."""
    extents = batch(n, found.operands[:2])
    assert extents is not None
    (outer, inner), ((a_outer, a_inner), (b_outer, b_inner)) = sizes(extents[0]), map(sizes, extents[1])
    (am, ak), (bk, bn) = (sizes(v.strides[-2:]) for v in found.operands[:2])
    m, cols = sizes(n.shape[-2:])
    k = sizes(n.inputs[0].shape)[-1]
    return matmul.Matrices(
        m,
        cols,
        k,
        (a_outer, a_inner, am, ak),
        (b_outer, b_inner, bk, bn),
        (inner * m * cols, m * cols, cols),
        (outer, inner),
    )


def convolution(n: Node, found: Match) -> conv.Convolution:
    """A conv in its kernel's terms: three spatial axes."""
    x, w = found.operands[:2]
    spatial = len(n.shape) - 3
    missing = (3 - spatial) * [0]
    ones = (3 - spatial) * [1]

    def three(values: Iterable[Extent], fill: Sequence[int]) -> tuple[int, int, int]:
        a, b, c = (*fill, *sizes(values))
        return a, b, c

    op, shape, out = n.op, sizes(n.inputs[1].shape), sizes(n.shape)
    return conv.Convolution(
        n=out[0], g=out[1], o=out[2], c=shape[2],
        size=three([p.size for p in found.padding], ones),
        window=three(shape[3:], ones),
        stride=three(op.stride, ones),  # type: ignore[attr-defined]
        dilation=three(op.dilation, ones),  # type: ignore[attr-defined]
        low=three([p.low for p in found.padding], missing),
        high=three([p.high for p in found.padding], missing),
        base=three([p.interior + 1 for p in found.padding], ones),
        x=(*sizes(x.strides[:3]), *three(x.strides[3:], missing)),
        w=(*sizes(w.strides[:3]), *three(w.strides[3:], missing)),
        y=(*sizes(strides_of(out)[:3]), *three(strides_of(out)[3:], missing)),
    )  # fmt: skip
