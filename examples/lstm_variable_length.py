"""An LSTM over sequences of different lengths: is the last symbol the same as the first?

Batches are padded to their longest sequence, so every batch may have another length; one compiled step serves them all.

python examples/lstm_variable_length.py [--quick]
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import tracejit as tj
from tracejit import nn
from tracejit.nn import functional as F

SYMBOLS = 4


class Classifier(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, 2)

    def forward(self, symbols, last):
        """Class scores [n, 2] of sequences [n, t] whose last symbols stand at `last` [n]."""
        states, _ = self.lstm(self.embedding(symbols))
        return self.head(states[tj.arange(symbols.shape[0]), last])


def make_batch(draw: np.random.Generator, size: int, longest: int) -> tuple[tj.Tensor, tj.Tensor, tj.Tensor]:
    """Random sequences, half of which end as they began: symbols [n, t] padded with 0, last positions, answers."""
    lengths = draw.integers(3, longest + 1, size)
    symbols = draw.integers(0, SYMBOLS, (size, lengths.max()))
    answers = draw.integers(0, 2, size)
    for row, length, same in zip(symbols, lengths, answers, strict=True):
        row[length - 1] = row[0] if same else (row[0] + draw.integers(1, SYMBOLS)) % SYMBOLS
        row[length:] = 0
    return tj.from_numpy(symbols), tj.from_numpy(lengths - 1), tj.from_numpy(answers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="60 steps on short sequences")
    options = parser.parse_args()
    steps, longest, width = (60, 5, 16) if options.quick else (1500, 12, 32)

    tj.manual_seed(0)
    draw = np.random.default_rng(0)
    model = Classifier(width)
    optimizer = tj.optim.Adam(model.parameters(), lr=1e-2)

    @tj.compile
    def step(symbols, last, answers):
        loss = F.cross_entropy(model(symbols, last), answers)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    start, losses = time.perf_counter(), []
    for i in range(steps):
        losses.append(step(*make_batch(draw, 64, longest)).item())
        if (i + 1) % max(1, steps // 10) == 0:
            recent = sum(losses[-20:]) / len(losses[-20:])
            print(f"step {i + 1}: loss {recent:.3f}, {time.perf_counter() - start:.1f} s")
    symbols, last, answers = make_batch(draw, 1000, longest)
    with tj.no_grad():
        accuracy = (model(symbols, last).argmax(1) == answers).float().mean().item()
    print(f"accuracy {accuracy:.3f} on new sequences")
    assert np.isfinite(losses).all()
    assert sum(losses[-10:]) < sum(losses[:10])
    assert options.quick or accuracy > 0.95


if __name__ == "__main__":
    main()
