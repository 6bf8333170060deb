"""Random loops that ask the data, eager against compiled, for many numbers of turns.

TRACEJIT_FUZZ_MINUTES=10 pytest tests/traps/test_loops_fuzz.py -k minutes -s
"""

import os
import random
import time
import types

import numpy as np
import pytest
from test_data_loops import plain, same

import tracejit as tj

HEADS = (
    "while (a > 1).any() and n < {limit}:",
    "while n < {limit} and a.max() > 1:",
    "while True:\n    if not (a > 1).any() or n >= {limit}:\n        break",
    "for i in range({limit}):\n    if a.max() <= 1:\n        break",
    "for i in range(7, 7 - {limit}, -1):\n    if (a.max() <= 1).item():\n        break",
    "while gap > 0.3 and n < {limit}:\n    gap = (a - a * 0.8).abs().max().item()",
)
ALWAYS = ("a = a * 0.6", "a = a / 2 + 0.01", "a = a * 0.5 + b * 0.01", "a *= 0.6", "a = a.mul(0.5)")
OFTEN = (
    "b, c = c, b * 0.9", "c = a", "b = a", "b = b * 0.9 + a.mean()", "m -= 3", "m = m + 1", "t = t * 0.5 + 0.25",
    "t += 0.125", "v = a[0]", "c = (a + b).sum(0)", "a, b = b * 0 + a, b + 0.01", "b = tj.where(a > b, a, b)",
    "h = (a, h[0])", "a = a + tj.rand(2, 3) * 0.01", "b = b + n * 0.01", "b = b * t", "a = step(a)", "b = scaled(b)",
    "gap2 = a.sum().item()", "c = a.clone()", "b = b + i", "m = n", "t = t + n", "c = b.reshape(3, 2).reshape(2, 3)",
)  # fmt: skip
RARELY = (
    "a[0] = a[1] * 0.5", "b.mul_(0.9)", "c.add_(0.01)", "v.mul_(0.9)", "x.mul_(0.9)", "w.tensor.add_(0.1)",
    "if n % 3 == 0:\n    b = b * 0.9", "if n == 9:\n    b = b + 1", "if a.sum() > 9:\n    b = b * 0.8",
    "if n > 6:\n    continue", "log.append(n)", "log.append(a.mean())", "box[0] = a", "box[0] = n", "box.reverse()",
    "w.k = n", "w.k += 1", "w.last = a", "words = f'{n}'", "b = b * scales[n % 3]", "b = b * scales[1]",
    "flag = not flag", "if flag:\n    b = b + 0.1", "m = m * 2", "m, n = n, m",
    "last = a\nb = b * (0.9 if last is c else 0.8)", "d['k'] = b", "d[n] = 1", "b = b.t().contiguous().t()",
    "b = b.double().float()", "del v\nv = b[0]", "b = b + next(ticks)", "for j in range(2):\n    b = b * 0.9",
    "for j in range(3):\n    if b.sum() > 5:\n        break\n    b = b * 1.01",
    "try:\n    if n == 5:\n        raise KeyError\nexcept KeyError:\n    b = b + 1", "o.v = a", "o.n += 1",
    "b = b + o.v.mean()", "bump()", "b = b * float(m > 2)", "b = tj.cat([b, b])[:2]",
    "known = known + 1\nif known.sum() > 20:\n    b = b * 2", "with tj.no_grad():\n    b = b * 0.9",
    "b = (lambda q: q * 0.9 + a * 0)(b)", "total = sum([n, m, 1])", "b = b[:, :]",
)  # fmt: skip
ENDS = (
    "return a, b, c, n, m, t, gap, v, h, log, box, d, o.v, o.n, i, x, known",
    "a.add_(1)\nreturn a, b, c, v, x, i, n + 1, t * 2",
    "b.mul_(2)\nreturn b is a, c is a, c is b, a, b, c, h, v",
    "c = c.reshape(-1)\nc.sub_(1)\nreturn b, c, a, [n, {'m': m}], (t,), f'{n} {m}'",
    "return a.sum().item() + n, m, log, box",
)


def indented(text, by):
    return [" " * by + line for line in text.splitlines()]


def program(seed):
    """The source of a function of a tensor and a world."""
    rng = random.Random(seed)
    body = [
        rng.choice(ALWAYS),
        *rng.choices(OFTEN, k=rng.randrange(5)),
        *rng.choices(RARELY, k=rng.choice((0, 0, 0, 1, 1, 2))),
    ]
    rng.shuffle(body)
    head = rng.choice(HEADS).format(limit=rng.choice((11, 30, 45)))
    lines = [
        "def program(x, w):",
        "    a, b, c, v = x + 0, x * 0.5, x, x[0]",
        "    n, m, t, gap, i, flag = 0, 5, 1.0, 9.0, 0, False",
        "    h, log, box, d, scales = (a, b), [], [1, 2], {}, [0.9, 0.8, 0.95]",
        "    o, ticks, known = Pair(a, 0), iter([0.1] * 90), tj.zeros(1)",
        "    def step(q):",
        "        return q * 0.9",
        "    def scaled(q, by=0.9):",
        "        return q * by + n * 0",
        "    def bump():",
        "        nonlocal m",
        "        m += 1",
        *indented(head, 4),
        *(["        n += 1"] if rng.random() < 0.9 or "for" not in head else []),
        *(line for part in body for line in indented(part, 8)),
        *(["        n += 1"] if "while" in head and "n += 1" not in "".join(body) and rng.random() < 0.1 else []),
        *indented(rng.choice(ENDS), 4),
    ]
    return "\n".join(lines)


class Pair:
    def __init__(self, v, n):
        self.v, self.n = v, n


def reset(w):
    w.k, w.last, w.tensor = 0, None, tj.full((2, 3), 0.5)


def made(turns, seed):
    x = np.random.default_rng(seed).uniform(0.2, 0.9, (2, 3)).astype(np.float32)
    x[1, 1] = 0.75
    return tj.tensor(x * np.float32(1.9**turns))


def observed(f, w, turns, seed):
    reset(w)
    x = made(turns, seed)
    tj.manual_seed(seed)
    try:
        found = plain(f(x, w))
    except Exception as e:
        found = f"raised {type(e).__name__}"
    return found, plain(x), w.k, plain(w.last), plain(w.tensor), plain(tj.rand(2))


def run(seed):
    """Whether a program has a native loop; fails where it differs."""
    source = program(seed)
    space = {"tj": tj, "Pair": Pair}
    exec(compile(source, f"loop{seed}.py", "exec"), space)
    fn = space["program"]
    f, w = tj.compile(fn), types.SimpleNamespace()
    rng = random.Random(seed)
    for k in range(14):
        turns = rng.choice((9, 10, 10, 12, 12, 14, 3, 1, 0, 20, 28))
        want, got = observed(fn, w, turns, k), observed(f, w, turns, k)
        assert same(want, got), f"seed {seed}, call {k}, {turns} turns:\n{source}\nplain {want}\ncompiled {got}"
    return any(heat.rolled for heat in f.memory.loops.values())


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_random_loops(first):
    native = [run(seed) for seed in range(first, first + 10)]
    assert any(native)


@pytest.mark.skipif("TRACEJIT_FUZZ_MINUTES" not in os.environ, reason="asked for by TRACEJIT_FUZZ_MINUTES")
def test_random_loops_for_minutes():
    end = time.monotonic() + 60 * float(os.environ["TRACEJIT_FUZZ_MINUTES"])
    seed = first = int(os.environ.get("TRACEJIT_FUZZ_SEED", 1000))
    native = 0
    while time.monotonic() < end:
        native += run(seed)
        seed += 1
    print(f"{seed - first} programs, {native} with a native loop")
