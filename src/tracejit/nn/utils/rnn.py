"""Sequences of different lengths as one padded tensor."""

from __future__ import annotations

from collections.abc import Sequence

from tracejit.ops.composed import pad, stack
from tracejit.tensor.tensor import Tensor

__all__ = ["pad_sequence", "unpad_sequence"]


def pad_sequence(
    sequences: Sequence[Tensor], batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right"
) -> Tensor:
    """The sequences [length, ...] side by side as [longest, batch, ...], padded with `padding_value`."""
    longest = max(s.shape[0] for s in sequences)
    rows = [
        pad(
            s,
            (0, 0) * (s.ndim - 1)
            + ((0, longest - s.shape[0]) if padding_side == "right" else (longest - s.shape[0], 0)),
            value=padding_value,
        )
        for s in sequences
    ]
    return stack(rows, 0 if batch_first else 1)


def unpad_sequence(padded_sequences: Tensor, lengths: Tensor, batch_first: bool = False) -> list[Tensor]:
    """The sequences of a padded tensor, each cut to its length."""
    rows = padded_sequences.unbind(0 if batch_first else 1)  # type: ignore[attr-defined]
    return [row[:n] for row, n in zip(rows, lengths.tolist(), strict=True)]
