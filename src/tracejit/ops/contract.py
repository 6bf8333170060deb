"""matmul: the one contraction. einsum, linear and attention are transposes and reshapes around it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tracejit.errors import DTypeError, OpError
from tracejit.ir import dtype as dt
from tracejit.ir.dim import same
from tracejit.ir.index import Index
from tracejit.ir.op import Array, At, Op, Reader, Reduce, Sample
from tracejit.ir.types import TensorType, Type
from tracejit.ops.movement import transpose
from tracejit.ops.pointwise import TOLERANCE, compute

__all__ = ["MatMul", "matmul", "swapped"]


class MatMul(Op):
    """c[*, i, j] = sum_k a[*, i, k] b[*, k, j]. Batch extents are equal; broadcasting them is a broadcast node.

    float16 and bfloat16 are accumulated in float32 and rounded once.
    """

    name = "matmul"
    library = "gemm"

    def infer(self, a: TensorType, b: TensorType) -> Type:
        what = f"matmul of {a} and {b}"
        if a.dtype is not b.dtype or a.device != b.device:
            raise OpError(f"{what}: dtype and device must be equal")
        if a.dtype.kind == "b":
            raise DTypeError(f"{what}: it has no meaning for bool")
        if a.rank < 2 or a.rank != b.rank:
            raise OpError(f"{what}: wanted equal ranks of at least 2")
        if not same(a.shape[-1], b.shape[-2]):
            raise OpError(f"{what}: inner extents {a.shape[-1]} and {b.shape[-2]} differ")
        for p, q in zip(a.shape[:-2], b.shape[:-2]):
            if not same(p, q):
                raise OpError(f"{what}: batch extents {p} and {q} differ")
        return a.with_shape((*a.shape[:-1], b.shape[-1]))

    def eval(self, a: Array, b: Array) -> Array:
        return compute(np.matmul, a, b)

    def vjp(self, g: Any, c: Any, a: Any, b: Any) -> tuple[Any, ...]:
        return self(g, swapped(b)), self(swapped(a), g)

    def element(self, at: At, a: Reader, b: Reader) -> Reduce:
        *batch, i, j = at

        def term(r: tuple[Index, ...]) -> Any:
            return a((*batch, i, r[0])) * b((*batch, r[0], j))

        return Reduce("sum", (a.type.shape[-1],), term)

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterator[Sample]:
        def draw(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[Array, Array]:
            return rng.normal(size=a), rng.normal(size=b)

        for a, b in (
            ((2, 3), (3, 4)),
            ((1, 1), (1, 1)),
            ((0, 3), (3, 2)),
            ((2, 0), (0, 3)),
            ((2, 3), (3, 0)),
            ((2, 2, 3), (2, 3, 4)),
            ((2, 1, 3, 2), (2, 1, 2, 5)),
            ((1, 5), (5, 1)),
            ((0, 2, 3), (0, 3, 2)),
            ((7, 70), (70, 9)),
        ):
            yield Sample(cls(), draw(a, b))
        yield Sample(cls(), draw((4, 3), (3, 5)), ((0, 0, "n"),))
        yield Sample(cls(), draw((4, 3), (3, 5)), ((0, 1, "k"), (1, 0, "k")))
        yield Sample(cls(), (rng.normal(size=(3, 2)).T, rng.normal(size=(4, 3)).T), note="both transposed")
        for dtype in dt.ALL:
            if dtype.kind != "b":
                x, y = (rng.integers(0, 5, size=s).astype(dtype.numpy) for s in ((3, 4), (4, 2)))
                yield Sample(cls(), (x, y), differentiable=dtype.kind == "f", tolerance=TOLERANCE[dtype])
        x = np.array([[np.nan, 1.0], [np.inf, 0.0], [1.0, 1.0]], np.float32)
        yield Sample(cls(), (x, np.array([[1.0], [np.inf]], np.float32)), differentiable=False, note="special values")


def swapped(x: Any) -> Any:
    """x with its last two axes exchanged."""
    n = x.type.rank
    return transpose(x, (*range(n - 2), n - 1, n - 2))


def matmul(a: Any, b: Any) -> Any:
    """a @ b for equal ranks and batch extents."""
    return MatMul()(a, b)
