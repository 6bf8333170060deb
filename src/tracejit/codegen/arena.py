"""Lifetimes -> offsets: values that do not live at the same time share memory.

Best fit over the free gaps, largest first among values that start together; offsets are multiples of 64.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

from tracejit.records import dataclass

__all__ = ["Lifetime", "place"]

ALIGN = 64
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Lifetime:
    """`nbytes` of memory from step `first`, which writes it, to step `last`, which reads it last."""

    nbytes: int
    first: int
    last: int


def place(lifetimes: Mapping[K, Lifetime]) -> tuple[dict[K, int], int]:
    """Offsets at which values that live at the same time do not overlap, and the bytes needed in all."""
    offsets: dict[K, int] = {}
    live: list[tuple[int, int, int]] = []  # offset, end, last step; by offset
    total = 0
    for k, v in sorted(lifetimes.items(), key=lambda kv: (kv[1].first, -kv[1].nbytes)):
        live = [x for x in live if x[2] >= v.first]
        size = max(ALIGN, -(-v.nbytes // ALIGN) * ALIGN)
        best, best_gap, at = None, None, 0
        for start, end, _ in live:
            gap = start - at
            if gap >= size and (best_gap is None or gap < best_gap):
                best, best_gap = at, gap
            at = max(at, end)
        offset = at if best is None else best
        offsets[k] = offset
        live.append((offset, offset + size, v.last))
        live.sort()
        total = max(total, offset + size)
    return offsets, total
