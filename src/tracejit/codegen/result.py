"""What every Executable speaks of: checks, a `Miss` where one fails, and arrays that a caller may keep."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import call
from typing import Any, Protocol

import numpy as np

from tracejit.ir.op import Array
from tracejit.records import dataclass

__all__ = ["Begun", "Checks", "Copies", "Miss", "own", "same_bits"]

Checks = Sequence[tuple[int, bool | int | float]]


@dataclass(frozen=True)
class Miss:
    """Check number `check` saw `value` instead of what was expected; nothing was written."""

    check: int
    value: Any


class Begun(Protocol):
    """A call that has written nothing so far."""

    @property
    def steps(self) -> int:
        """How many are left."""
        ...

    def go_on(self, done: list[Any]) -> tuple[Array, ...] | Miss:
        """What the call gives. Each step that is over is noted in `done`, in the instant in which it is; those noted
        there are not done again."""
        ...


@dataclass(frozen=True, slots=True)
class Copies:
    """Only copies into place are left."""

    outputs: tuple[Array, ...]
    copies: Sequence[tuple[Array, Array]]  # (target, value)

    @property
    def steps(self) -> int:
        return len(self.copies)

    def go_on(self, done: list[Any], before: int = 0) -> tuple[Array, ...]:
        """As `Begun` has it; the first `before` notes are of other steps."""
        left = self.copies[len(done) - before :]
        # Not `np.copyto`, in which Python code runs.
        left = [partial(np.ndarray.__setitem__, target, ..., value) for target, value in left]
        done.extend(map(call, left))
        return self.outputs


def same_bits(value: Array, expected: bool | int | float) -> bool:
    """True where rank-0 `value` has the bits `expected` has in its dtype: nan equals nan, 0.0 differs from -0.0."""
    return np.asarray(value).tobytes() == np.asarray(expected, value.dtype).tobytes()


def own(value: Any, arrays: Sequence[Array]) -> Array:
    """`value` as an array that shares no memory with `arrays`."""
    value = np.asarray(value)
    return value.copy() if value.base is not None or any(value is a for a in arrays) else value
