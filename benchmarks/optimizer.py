"""Optimizer steps on a million parameters, beside a loop written by hand that updates the same memory in place.

    python benchmarks/optimizer.py [--rounds 30] [--tensors 1 100]

The loops are Numba's, one for all parameters, with the bias corrections computed outside: what a patient person would
write. Contenders take turns in each round; one thread. The ratio is hand-written over compiled: 1 is even, below it the
hand is faster. PyTorch's own (`foreach` and `fused`) stand beside them where it is installed.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
from measuring import Cell, Table, collect, installed, milliseconds, ratio, turns

import tracejit as tj

SIZE = 1_000_000
SLICE = 0.03  # seconds of one contender in one round

Step = Callable[[], object]


@numba.njit(error_model="numpy")  # as in C: without it a division is a branch, and nothing is vectorised
def sgd_loop(p, g, v, lr, momentum):
    for i in range(p.size):
        v[i] = v[i] * momentum + g[i]
        p[i] -= v[i] * lr


@numba.njit(error_model="numpy")  # as in C: without it a division is a branch, and nothing is vectorised
def adam_loop(p, g, m, s, lr, beta1, beta2, eps, root, decay):
    one = np.float32(1)
    for i in range(p.size):
        x = p[i] * decay
        m[i] = m[i] + (g[i] - m[i]) * (one - beta1)
        s[i] = s[i] * beta2 + g[i] * g[i] * (one - beta2)
        p[i] = x - m[i] / (np.sqrt(s[i]) / root + eps) * lr


def by_hand(name: str) -> Step:
    rng = np.random.default_rng(0)
    p, g = rng.normal(size=(2, SIZE)).astype(np.float32)
    m, s = np.zeros((2, SIZE), np.float32)
    f = np.float32
    if name == "sgd":
        return lambda: sgd_loop(p, g, m, f(0.01), f(0.9))
    count = 0
    decay = f(1 - 1e-3 * 1e-2 if name == "adamw" else 1)

    def step() -> None:
        nonlocal count
        count += 1
        size, root = 1e-3 / (1 - 0.9**count), math.sqrt(1 - 0.999**count)
        adam_loop(p, g, m, s, f(size), f(0.9), f(0.999), f(1e-8), f(root), decay)

    return step


def optimizer(lib, name: str, params, **options):
    if name == "sgd":
        return lib.optim.SGD(params, lr=0.01, momentum=0.9, **options)
    return {"adam": lib.optim.Adam, "adamw": lib.optim.AdamW}[name](params, lr=1e-3, **options)


def parameters(lib, tensors: int):
    rng = np.random.default_rng(0)
    sizes = [SIZE // tensors] * tensors
    params = [lib.tensor(rng.normal(size=n).astype(np.float32), requires_grad=True) for n in sizes]
    for p in params:
        p.grad = lib.tensor(rng.normal(size=p.shape[0]).astype(np.float32))
    return params


def ours(name: str, tensors: int) -> Any:
    opt = optimizer(tj, name, parameters(tj, tensors))
    return tj.compile(lambda: opt.step())


def torchs(name: str, tensors: int, **options) -> Step:
    import torch

    torch.set_num_threads(1)
    opt = optimizer(torch, name, parameters(torch, tensors), **options)
    return lambda: opt.step()


TITLES = {"sgd": "SGD, momentum", "adam": "Adam", "adamw": "AdamW"}


def table(rounds: int = 30, tensors: Sequence[int] = (1, 100)) -> Table:
    """A row for each optimizer and number of tensors."""
    tj.set_num_threads(1)
    header = (
        "step, tensors", "by hand, ms", "compiled, ms", "kernels",
        "by hand / compiled", "torch foreach / compiled", "torch fused / compiled",
    )  # fmt: skip

    def row(name: str, count: int) -> list[Cell]:
        compiled = ours(name, count)
        contenders: dict[str, Step] = {"hand": by_hand(name), "compiled": compiled}
        if installed("torch"):
            contenders |= {kind: torchs(name, count, **{kind: True}) for kind in ("foreach", "fused")}
        times = turns(contenders, rounds, SLICE)
        return [
            f"{TITLES[name]}, {count}", milliseconds(times, "hand"), milliseconds(times, "compiled"),
            len(compiled.kernels()), *(ratio(times, peer, "compiled") for peer in ("hand", "foreach", "fused")),
        ]  # fmt: skip

    return collect(header, (row(name, count) for name in TITLES for count in tensors))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--tensors", type=int, nargs="*", default=[1, 100])
    table(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
