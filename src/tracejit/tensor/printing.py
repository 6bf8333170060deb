"""How a tensor shows: its values as NumPy lays them out, then dtype, shape where it is not obvious, and gradient
facts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracejit.ir import dtype as dt

if TYPE_CHECKING:
    from tracejit.tensor.tensor import Tensor


def format_tensor(t: Tensor) -> str:
    """`tensor([1., 2.], shape=[2])`, as eager PyTorch does, with the shape always told."""
    a = t._array if t.dtype is not dt.bfloat16 else t._array.astype(np.float32)
    with np.printoptions(precision=4, threshold=1000, edgeitems=3, linewidth=100, floatmode="maxprec"):
        body = np.array2string(a, separator=", ", prefix="tensor(")
    parts = [f"shape={list(t._array.shape)}"]
    if t.dtype not in (dt.default(), dt.int64, dt.bool_):
        parts.append(f"dtype={t.dtype!r}")
    if t._grad_fn is not None:
        parts.append(f"grad_fn={t._grad_fn!r}")
    elif t._leaf_requires_grad:
        parts.append("requires_grad=True")
    return f"tensor({body}, {', '.join(parts)})"
