"""Times of whole train steps: tracejit eager, tracejit compiled, and PyTorch eager where it is installed, in turn.

python benchmarks/steps.py [digits cnn mlp lstm gpt] [--rounds 15] [--threads 2]
"""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Callable, Sequence
from types import ModuleType

import numpy as np
from measuring import Cell, Table, collect, installed, milliseconds, ratio, turns

Step = Callable[[], object]


def cnn(lib: ModuleType, side: int = 28, batch: int = 64) -> Step:
    """The demo's network at Fashion-MNIST's size."""
    nn, F = lib.nn, importlib.import_module(f"{lib.__name__}.nn.functional")

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.norm1 = nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16)
            self.conv2, self.norm2 = nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32)
            self.dropout, self.linear = nn.Dropout(0.25), nn.Linear(32 * (side // 4) ** 2, 10)

        def forward(self, x):
            x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
            x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
            return self.linear(self.dropout(x.flatten(1)))

    return classify(lib, Net(), random((batch, 1, side, side)), labels(batch, 10))


def digits(lib: ModuleType) -> Step:
    """The demo's network at the digits' size."""
    return cnn(lib, side=8)


def mlp(lib: ModuleType) -> Step:
    """784 - 256 - 256 - 10."""
    nn = lib.nn
    net = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    return classify(lib, net, random((64, 784)), labels(64, 10))


def lstm(lib: ModuleType) -> Step:
    """16 steps of an LSTM with 128 cells, its last state classified."""
    nn = lib.nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.head = nn.LSTM(32, 128, batch_first=True), nn.Linear(128, 10)

        def forward(self, x):
            return self.head(self.lstm(x)[0][:, -1])

    return classify(lib, Net(), random((32, 16, 32)), labels(32, 10))


def gpt(lib: ModuleType) -> Step:
    """Two blocks of a small GPT: width 128, 4 heads, context 64."""
    nn, F = lib.nn, importlib.import_module(f"{lib.__name__}.nn.functional")
    width, heads, words = 128, 4, 96

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x):
            n, t, c = x.shape
            q, k, v = self.qkv(self.norm1(x)).split(c, dim=2)
            q, k, v = (z.reshape(n, t, heads, c // heads).transpose(1, 2) for z in (q, k, v))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(n, t, c))
            return x + self.mlp(self.norm2(x))

    net = nn.Sequential(nn.Embedding(words, width), Block(), Block(), nn.LayerNorm(width), nn.Linear(width, words))
    return classify(lib, net, labels((16, 64), words), labels((16, 64), words).reshape(-1))


WORKLOADS = {f.__name__: f for f in (digits, cnn, mlp, lstm, gpt)}


def random(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def labels(shape: int | tuple[int, ...], classes: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, classes, shape)


def classify(lib: ModuleType, net, x: np.ndarray, y: np.ndarray) -> Step:
    """One step of Adam on the cross-entropy of net(x) and y; `step.body` is the function of (x, y)."""
    F = importlib.import_module(f"{lib.__name__}.nn.functional")
    optimizer = lib.optim.Adam(net.parameters(), lr=1e-3)
    x, y = lib.from_numpy(x), lib.from_numpy(y)

    def body(x, y):
        scores = net(x)
        loss = F.cross_entropy(scores.reshape(-1, scores.shape[-1]), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    def step():
        return body(x, y)

    def compiled(compile):
        fast = compile(body)
        return lambda: fast(x, y)

    step.compiled = compiled
    return step


def contenders(workload: Callable[[ModuleType], Step], threads: int) -> dict[str, Step]:
    import tracejit as tj

    tj.set_num_threads(threads)
    tj.manual_seed(0)
    out = {"eager": workload(tj), "compiled": workload(tj).compiled(tj.compile)}
    if torch := installed("torch"):
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        out["torch"] = workload(torch)
    return out


def table(names: Sequence[str] = (), rounds: int = 15, threads: int = 0, warm: int = 200) -> Table:
    """A row for each train step, measured after `warm` calls: eager kernels are built by then."""
    threads = threads or os.cpu_count() or 1
    header = (
        "train step", "eager, ms", "compiled, ms", "PyTorch eager, ms",
        "eager / compiled", "PyTorch / compiled", "PyTorch / eager",
    )  # fmt: skip

    def row(name: str) -> list[Cell]:
        times = turns(contenders(WORKLOADS[name], threads), rounds, warm=warm)
        shown = [milliseconds(times, who) for who in ("eager", "compiled", "torch")]
        pairs = (("eager", "compiled"), ("torch", "compiled"), ("torch", "eager"))
        return [name, *shown, *(ratio(times, *pair) for pair in pairs)]

    return collect(header, map(row, names or WORKLOADS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(WORKLOADS)}; all by default")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=0, help="as many as there are cores by default")
    parser.add_argument("--warm", type=int, default=200, help="calls before any is measured: eager kernels are built")
    options = parser.parse_args()
    if unknown := set(options.names) - set(WORKLOADS):
        parser.error(f"no workload {unknown.pop()!r}; there are {', '.join(WORKLOADS)}")
    table(**vars(options))


if __name__ == "__main__":
    main()
