"""A character-level GPT that learns Python from the source text of the standard library.

python examples/char_gpt.py [--quick] [--steps N]
"""

from __future__ import annotations

import argparse
import math
import sysconfig
import time
from pathlib import Path

import numpy as np

import tracejit as tj
from tracejit import nn
from tracejit.nn import functional as F

FILES = ("argparse.py", "ast.py", "dataclasses.py", "difflib.py", "heapq.py", "inspect.py", "random.py", "textwrap.py")
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))  # what is not ASCII reads as a blank


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        n, t, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).split(width, dim=2)
        q, k, v = (z.reshape(n, t, self.heads, width // self.heads).transpose(1, 2) for z in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(y.transpose(1, 2).reshape(n, t, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, context: int, width: int, heads: int, layers: int):
        super().__init__()
        self.context = context
        self.token = nn.Embedding(len(CHARACTERS), width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, len(CHARACTERS), bias=False)

    def forward(self, tokens):
        x = self.token(tokens) + self.position(tj.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def read_text() -> np.ndarray:
    """The files as character numbers."""
    library = Path(sysconfig.get_paths()["stdlib"])
    text = "".join((library / name).read_text(encoding="utf-8") for name in FILES)
    codes = np.frombuffer(text.encode("ascii", "replace"), np.uint8)
    table = np.full(256, CHARACTERS.index(" "), np.int64)
    table[[ord(c) for c in CHARACTERS]] = np.arange(len(CHARACTERS))
    return table[codes]


def sample(model: GPT, count: int) -> str:
    """`count` characters from the model, one at a time."""
    tokens = tj.zeros((1, 1), dtype=tj.int64)
    with tj.no_grad():
        for _ in range(count):
            scores = model(tokens[:, -model.context :])[:, -1]
            tokens = tj.cat([tokens, tj.multinomial(F.softmax(scores, -1), 1)], 1)
    return "".join(CHARACTERS[i] for i in tokens[0].tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tiny model, 40 steps")
    parser.add_argument("--steps", type=int, default=0)
    options = parser.parse_args()
    context, width, heads, layers, batch = (32, 32, 2, 1, 8) if options.quick else (64, 128, 4, 3, 16)
    steps = options.steps or (40 if options.quick else 1000)

    text = read_text()
    print(f"{len(text):,} characters of the standard library")
    tj.manual_seed(0)
    model = GPT(context, width, heads, layers)
    optimizer = tj.optim.AdamW(model.parameters(), lr=3e-3 if options.quick else 1e-3, weight_decay=0.1)
    draw = np.random.default_rng(0)

    def some_text() -> tuple[tj.Tensor, tj.Tensor]:
        starts = draw.integers(0, len(text) - context - 1, batch)
        rows = np.stack([text[s : s + context + 1] for s in starts])
        return tj.from_numpy(rows[:, :-1].copy()), tj.from_numpy(rows[:, 1:].copy())

    @tj.compile
    def step(x, y):
        loss = F.cross_entropy(model(x).reshape(-1, len(CHARACTERS)), y.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    start, losses = time.perf_counter(), []
    for i in range(steps):
        losses.append(step(*some_text()).item())
        if (i + 1) % max(1, steps // 10) == 0:
            recent = sum(losses[-20:]) / len(losses[-20:])
            print(f"step {i + 1}: loss {recent:.3f}, {time.perf_counter() - start:.1f} s")
    print(sample(model, 20 if options.quick else 300))
    assert losses[0] > math.log(len(CHARACTERS)) - 0.5, "an untrained model knows nothing"
    assert sum(losses[-10:]) / 10 < losses[0] - 0.5, "a trained one knows more"


if __name__ == "__main__":
    main()
