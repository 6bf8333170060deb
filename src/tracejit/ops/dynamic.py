"""Ops whose extent depends on data. The extent is an attribute: whoever emits one has looked at the data, and a
recording guards on what was seen, so a wrong extent never reaches a user."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracejit.errors import OpError
from tracejit.ir import dtype as dt
from tracejit.ir.op import Array, Op, Sample
from tracejit.ir.types import TensorType, Type
from tracejit.records import dataclass

__all__ = ["Nonzero"]


@dataclass(frozen=True)
class Nonzero(Op):
    """y[k] = position of the k-th true element of x in row-major order, [count, rank] i64.

    Where x has another number of true elements, rows are dropped or repeat position 0: a check has failed by then.
    """

    name = "nonzero"
    count: int

    def infer(self, *types: TensorType) -> Type:
        (x,) = types
        if x.dtype is not dt.bool_:
            raise OpError(f"nonzero of {x}: wants bool")
        return TensorType(dt.int64, (self.count, x.rank), x.device)

    def eval(self, *arrays: Array) -> Array:
        found = np.argwhere(arrays[0])[: self.count]
        out = np.zeros((self.count, arrays[0].ndim), np.int64)
        out[: len(found)] = found
        return out

    @classmethod
    def samples(cls, rng: np.random.Generator) -> Iterator[Sample]:
        for a in (np.array(True), np.zeros((0,), bool), np.array([[True, False], [False, True], [True, True]])):
            yield Sample(cls(int(a.sum())), (a,), differentiable=False)
