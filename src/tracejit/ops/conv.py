"""Convolution without padding, closed under its own gradient.

`pad` may put gaps between elements and crop edges, so both gradients of a convolution are convolutions again, in any
rank, with any stride, dilation and groups. There is no conv_backward, and a transposed convolution is composed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from tracejit.errors import DTypeError, OpError
from tracejit.ir import dtype as dt
from tracejit.ir.dim import Extent, same
from tracejit.ir.index import Index
from tracejit.ir.op import Array, At, Op, Reader, Reduce, Sample
from tracejit.ir.types import TensorType, Type
from tracejit.ops.address import shifted
from tracejit.ops.movement import flip, pad, transpose, window_view, windows
from tracejit.ops.pointwise import TOLERANCE, compute
from tracejit.records import dataclass

__all__ = ["Conv", "conv"]


@dataclass(frozen=True)
class Conv(Op):
    """y[n, g, o, *s] = sum over c, k of x[n, g, c, *(s * stride + k * dilation)] w[g, o, c, *k].

    Any number of spatial axes. g is the group; float16 and bfloat16 are accumulated in float32 and rounded once.
    """

    name = "conv"
    library = "conv"
    stride: tuple[int, ...]
    dilation: tuple[int, ...]

    def infer(self, x: TensorType, w: TensorType) -> Type:
        what, n = f"conv of {x} and {w}", len(self.stride)
        if x.dtype is not w.dtype or x.device != w.device:
            raise OpError(f"{what}: dtype and device must be equal")
        if x.dtype.kind == "b":
            raise DTypeError(f"{what}: it has no meaning for bool")
        if x.rank != n + 3 or w.rank != n + 3 or len(self.dilation) != n:
            raise OpError(f"{what}: wanted [n, g, c, *s] and [g, o, c, *k] with {n} spatial axes")
        if not same(x.shape[1], w.shape[0]):
            raise OpError(f"{what}: groups {x.shape[1]} and {w.shape[0]} differ")
        if not same(x.shape[2], w.shape[2]):
            raise OpError(f"{what}: channels {x.shape[2]} and {w.shape[2]} differ")
        out = windows(x.shape[3:], w.shape[3:], self.stride, self.dilation)
        return x.with_shape((x.shape[0], w.shape[0], w.shape[1], *out))

    def eval(self, x: Array, w: Array) -> Array:
        return compute(self._eval, x, w)

    def _eval(self, x: Array, w: Array) -> Array:
        n = len(self.stride)
        groups, out_channels, *inner = w.shape
        view = window_view(x, w.shape[3:], self.stride, self.dilation)  # [n, g, c, *out, *k]
        out = view.shape[3 : 3 + n]
        # Columns [n, g, c * k, out]: rows stay contiguous while copied, and the product comes out in its final layout.
        columns = view.transpose((0, 1, 2, *range(3 + n, 3 + 2 * n), *range(3, 3 + n)))
        columns = columns.reshape((x.shape[0], groups, math.prod(inner), math.prod(out)))
        y = np.matmul(w.reshape((groups, out_channels, math.prod(inner))), columns)
        return y.reshape((x.shape[0], groups, out_channels, *out))

    def vjp(self, g: Any, y: Any, x: Any, w: Any) -> tuple[Any, ...]:
        n = len(self.stride)
        space = tuple(range(3, 3 + n))
        extents, sizes, outs = x.type.shape[3:], w.type.shape[3:], g.type.shape[3:]
        span: list[Extent] = [(k - 1) * d for k, d in zip(sizes, self.dilation)]
        # What lies behind the last window: the strides never reached it.
        left = [a - ((o - 1) * s + e + 1) for a, o, s, e in zip(extents, outs, self.stride, span)]
        none = (0, 0, 0)
        spaced = pad(
            g, (*none, *span), (*none, *(e + r for e, r in zip(span, left))), (*none, *(s - 1 for s in self.stride))
        )
        mirrored = transpose(flip(w, space) if space else w, (0, 2, 1, *space))
        dx = conv(spaced, mirrored, (1,) * n, self.dilation)
        reached = pad(x, (0,) * (n + 3), (*none, *(-r for r in left)))
        # n takes the place of c, the cotangent that of the weight: [c, g, n, *] with [g, o, n, *] gives [c, g, o, *].
        dw = conv(transpose(reached, (2, 1, 0, *space)), transpose(g, (1, 2, 0, *space)), self.dilation, self.stride)
        return dx, transpose(dw, (1, 2, 0, *space))

    def element(self, at: At, x: Reader, w: Reader) -> Reduce:
        n, g, o, *space = at

        def term(r: tuple[Index, ...]) -> Any:
            c, *ks = r
            places = [
                shifted(shifted(k, 0, d), shifted(s, 0, t)) for s, k, t, d in zip(space, ks, self.stride, self.dilation)
            ]
            return x((n, g, c, *places)) * w((g, o, c, *ks))

        return Reduce("sum", w.type.shape[2:], term)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterator[Sample]:
        # x is [n, g, c, *s], w is [g, o, c, *k]
        for shape, kernel, stride, dilation in (
            ((2, 1, 3, 9), (1, 4, 3, 3), (1,), (1,)),
            ((1, 1, 2, 11), (1, 3, 2, 4), (3,), (2,)),
            ((2, 1, 3, 8, 9), (1, 4, 3, 3, 3), (1, 1), (1, 1)),
            ((2, 1, 3, 9, 10), (1, 4, 3, 3, 2), (2, 3), (1, 2)),
            ((1, 1, 2, 5, 5, 6), (1, 2, 2, 2, 2, 3), (2, 1, 2), (1, 2, 1)),
            ((2, 2, 3, 9, 10), (2, 4, 3, 3, 2), (2, 3), (1, 2)),
            ((3, 4, 1, 11), (4, 2, 1, 4), (3,), (2,)),
            ((2, 1, 3, 4, 4), (1, 2, 3, 1, 1), (1, 1), (1, 1)),
            ((1, 1, 1, 5, 4), (1, 1, 1, 5, 4), (1, 1), (1, 1)),
            ((0, 1, 2, 4), (1, 3, 2, 2), (1,), (1,)),
            ((2, 1, 0, 4), (1, 3, 0, 2), (1,), (1,)),
            ((2, 1, 3), (1, 4, 3), (), ()),
        ):
            yield Sample(cls(stride, dilation), (rng.normal(size=shape), rng.normal(size=kernel) * 0.3))
        pair = (rng.normal(size=(4, 1, 2, 5, 5)), rng.normal(size=(1, 3, 2, 3, 3)))
        yield Sample(cls((2, 1), (1, 1)), pair, ((0, 0, "n"),))
        for dtype in dt.ALL:
            if dtype.kind != "b":
                x, w = (rng.integers(0, 4, size=s).astype(dtype.numpy) for s in ((1, 1, 2, 5), (1, 2, 2, 3)))
                yield Sample(cls((1,), (1,)), (x, w), differentiable=dtype.kind == "f", tolerance=TOLERANCE[dtype])


def conv(x: Any, w: Any, stride: tuple[int, ...], dilation: tuple[int, ...]) -> Any:
    """x [n, g, c, *s] with w [g, o, c, *k]: [n, g, o, *s']."""
    return Conv(tuple(stride), tuple(dilation))(x, w)
