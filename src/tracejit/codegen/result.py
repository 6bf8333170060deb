"""What every Executable speaks of: checks, a `Miss` where one fails, and arrays that a caller may keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracejit.ir.op import Array

__all__ = ["Checks", "Miss", "own", "same_bits"]

Checks = Sequence[tuple[int, bool | int | float]]


@dataclass(frozen=True)
class Miss:
    """Check number `check` saw `value` instead of what was expected; nothing was written."""

    check: int
    value: Any


def same_bits(value: Array, expected: bool | int | float) -> bool:
    """True where rank-0 `value` has the bits `expected` has in its dtype: nan equals nan, 0.0 differs from -0.0."""
    return np.asarray(value).tobytes() == np.asarray(expected, value.dtype).tobytes()


def own(value: Any, arrays: Sequence[Array]) -> Array:
    """`value` as an array that shares no memory with `arrays`."""
    value = np.asarray(value)
    return value.copy() if value.base is not None or any(value is a for a in arrays) else value
