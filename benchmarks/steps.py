"""Times of whole train steps: tracejit eager, tracejit compiled, and PyTorch eager where it is installed, in turn.

python benchmarks/steps.py [cnn mlp lstm gpt] [--rounds N] [--threads N] [--warm N]
"""

from __future__ import annotations

import argparse
import importlib
import os
import time
from collections.abc import Callable
from statistics import median
from types import ModuleType

import numpy as np

SLICE = 0.05  # seconds of one contender in one round

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
    try:
        import torch
    except ImportError:
        return out
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    return {**out, "torch": workload(torch)}


def calls_in_a_slice(step: Step, warm: int) -> int:
    """How often `step` runs in one slice; runs it `warm` times first."""
    for _ in range(warm):
        step()
    start = time.perf_counter()
    step()
    return max(1, round(SLICE / (time.perf_counter() - start)))


def measure(steps: dict[str, Step], rounds: int, warm: int) -> tuple[dict[str, list[float]], float]:
    """Seconds a step, round by round, and the cores that other processes used."""
    counts = {name: calls_in_a_slice(step, warm) for name, step in steps.items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    wall, used, own = time.perf_counter(), cores_seconds(), time.process_time()
    for _ in range(rounds):
        for name, step in steps.items():
            step()  # the caches are this contender's again
            start = time.perf_counter()
            for _ in range(counts[name]):
                step()
            times[name].append((time.perf_counter() - start) / counts[name])
    wall = time.perf_counter() - wall
    return times, (cores_seconds() - used - (time.process_time() - own)) / wall


def cores_seconds() -> float:
    """CPU seconds of the whole machine, where the system tells."""
    try:
        with open("/proc/stat") as file:
            user, nice, system, *_ = map(int, file.readline().split()[1:])
    except OSError:
        return 0.0
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", metavar="NAME", help=f"of {', '.join(WORKLOADS)}; all by default")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--warm", type=int, default=200, help="calls before anything is measured: eager kernels are built"
    )
    options = parser.parse_args()
    if unknown := set(options.workloads) - set(WORKLOADS):
        parser.error(f"no workload {unknown.pop()!r}; there are {', '.join(WORKLOADS)}")
    print(f"{'':8} {'eager':>10} {'compiled':>10} {'torch':>10} {'eager/comp':>11} {'torch/comp':>11} {'busy':>6}")
    for name in options.workloads or WORKLOADS:
        times, busy = measure(contenders(WORKLOADS[name], options.threads), options.rounds, options.warm)

        def shown(who: str, times: dict[str, list[float]] = times) -> str:
            return f"{median(times[who]) * 1e3:7.2f} ms" if who in times else "-"

        def ratio(who: str, times: dict[str, list[float]] = times) -> str:
            if who not in times:
                return "-"
            return f"{median(a / b for a, b in zip(times[who], times['compiled'], strict=True)):.2f}"

        row = [shown("eager"), shown("compiled"), shown("torch")]
        print(f"{name:8} {row[0]:>10} {row[1]:>10} {row[2]:>10} {ratio('eager'):>11} {ratio('torch'):>11} {busy:6.2f}")


if __name__ == "__main__":
    main()
