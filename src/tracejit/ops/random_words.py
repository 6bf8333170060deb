"""Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): four words from a counter."""

from __future__ import annotations

from typing import Any

__all__ = ["LOW", "philox"]

LOW = 0xFFFFFFFF
_ROUND = (0xD2511F53, 0xCD9E8D57)  # the multipliers, and the Weyl sequence of the key
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def philox(counter: tuple[Any, Any, Any, Any], key: tuple[Any, Any]) -> tuple[Any, Any, Any, Any]:
    """The words of a block.

    Words are 32-bit values held in 64-bit integers: NumPy arrays of uint64, or an emitter's values of i64; the same
    code serves all, since a product of two words keeps its bits in any and the shift's sign bits are masked away.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for r in range(_ROUNDS):
        if r:
            k0, k1 = (k0 + _WEYL[0]) & LOW, (k1 + _WEYL[1]) & LOW
        p, q = c0 * _ROUND[0], c2 * _ROUND[1]
        c0, c1, c2, c3 = ((q >> 32) & LOW) ^ c1 ^ k0, q & LOW, ((p >> 32) & LOW) ^ c3 ^ k1, p & LOW
    return c0, c1, c2, c3
