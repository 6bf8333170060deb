"""What a dtype can hold: `finfo` and `iinfo`, with PyTorch's fields."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tracejit.ir import dtype as dt
from tracejit.ir.dtype import DType
from tracejit.records import dataclass

__all__ = ["FloatLimits", "IntLimits", "finfo", "iinfo"]


@dataclass(frozen=True)
class FloatLimits:
    """Limits of a floating point type: `eps` is the distance from 1 to the next number, `tiny` the smallest normal."""

    dtype: str
    bits: int
    eps: float
    max: float
    min: float
    tiny: float
    smallest_normal: float
    resolution: float


@dataclass(frozen=True)
class IntLimits:
    """Limits of an integer type."""

    dtype: str
    bits: int
    max: int
    min: int


def finfo(type: DType | None = None) -> FloatLimits:
    """Limits of a floating point type, of the default one unless given. Raises TypeError for other types."""
    d = dt.default() if type is None else type
    if not d.is_floating_point:
        raise TypeError(f"finfo wants a floating point dtype, got {d}; use iinfo")
    f = ml_dtypes.finfo(d.numpy)
    tiny = float(f.smallest_normal)
    return FloatLimits(
        d.long, d.itemsize * 8, float(f.eps), float(f.max), float(f.min), tiny, tiny, float(f.resolution)
    )


def iinfo(type: DType) -> IntLimits:
    """Limits of an integer type. Raises TypeError for other types."""
    if type.kind not in "iu":
        raise TypeError(f"iinfo wants an integer dtype, got {type}; use finfo for floats")
    i = np.iinfo(type.numpy)
    return IntLimits(type.long, type.itemsize * 8, int(i.max), int(i.min))
