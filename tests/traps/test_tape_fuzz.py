"""Random programs on the gradient tape (ops, writes, views, no_grad, hooks, custom rules, recomputing) compiled and eager: values, first
and second derivatives, errors. `TAPE_FUZZ=seconds` runs new ones for that long."""

import os
import random
import time

import numpy as np
import pytest

import tracejit as tj


class Rule(tj.autograd.Function):
    """Its gradient is not that of its value."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y.sin()

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y * 2, (g * x).cos()


class Pass(tj.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 0.5


def statements(rng, names, depth=0):
    """Lines of a random function body; `names` are its variables so far."""

    def var():
        return rng.choice(names)

    def new():
        names.append(f"v{len(names)}")
        return names[-1]

    out = []
    for _ in range(rng.randint(4, 9) if depth == 0 else rng.randint(1, 3)):
        kind = rng.random()
        if kind < 0.35:
            a, b = var(), var()
            out.append(f"{new()} = {rng.choice([f'{a} * {b}', f'{a} + {b}', f'{a}.sin()', f'{a}.tanh() * {b}', f'{a}.exp().clamp(max=3)'])}")
        elif kind < 0.45:
            a, b = var(), var()
            out.append(f"{new()} = Rule.apply({a}, {b})")
        elif kind < 0.5:
            a = var()
            out.append(f"{new()} = Pass.apply({a})")
        elif kind < 0.6:
            a, k = var(), rng.choice([2, -1, 0.5])
            out.append(f"if {a}.requires_grad: {a}.register_hook(lambda g: g * {k})" if a not in ("x", "w", "b") else "pass")
        elif kind < 0.7:
            a, b = rng.choice(names), var()
            if a in ("x", "w"):
                continue
            out.append(rng.choice([f"{a}.mul_({b})", f"{a}.add_({b}.detach())", f"{a}[1:] = {b}[:-1].clone()", f"{a}[0] = 2.0"]))
        elif kind < 0.78:
            a = var()
            out.append(f"{new()} = {rng.choice([f'{a}.detach()', f'{a}.flip(0)', f'{a} + {a}[0]', f'{a}.clone()', f'{a} * T.rand(3)'])}")
        elif kind < 0.86 and depth == 0:
            inner = list(names)
            body = statements(rng, inner, 1) or ["pass"]
            out.append("with T.no_grad():")
            out += ["    " + line for line in body]
            names[:] = inner
        elif kind < 0.93 and depth == 0:
            a, b = var(), var()
            out.append(f"{new()} = T.utils.checkpoint.checkpoint(lambda p, q: (p * q).sin() * p, {a}, {b}, use_reentrant=False)")
        elif depth == 0:
            a = var()
            if rng.random() < 0.5:
                out.append(f"{new()} = T.autograd.grad(({a} * x).sin().sum(), x, create_graph={rng.random() < 0.5}, retain_graph=True)[0]")
    return out


def program(seed):
    rng = random.Random(seed)
    names = ["x", "w", "b"]
    body = statements(rng, names)
    results = rng.sample(names, min(len(names), rng.randint(1, 3)))
    return "def f(x, w, b):\n" + "".join(f"    {line}\n" for line in body) + f"    return {', '.join(results)},\n"


def observed(source, jit):
    """What five calls give, as plain data."""
    space = {"T": tj, "Rule": Rule, "Pass": Pass}
    exec(compile(source, "<fuzz>", "exec"), space)
    f = jit(space["f"])
    tj.manual_seed(1)
    seen = []

    def run(k):
        x = tj.tensor([0.3 + k / 8, -0.7, 1.1], requires_grad=True)
        w = tj.tensor([0.5, 0.9, -0.4], requires_grad=True)
        b = tj.tensor([1.0, -0.5, 0.25])
        outs = f(x, w, b)
        seen.append([(o.requires_grad, o.is_leaf, o.detach().numpy().copy()) for o in outs] + [(0, 0, b.numpy().copy())])
        carrying = [o for o in outs if o.requires_grad]
        if not carrying:
            return
        loss = sum((o * (i + 1.5)).sum() for i, o in enumerate(carrying))
        first = tj.autograd.grad(loss, (x, w), create_graph=k % 2 == 1, allow_unused=True)
        seen.append([None if g is None else g.detach().numpy().copy() for g in first])
        again = [g for g in first if g is not None and g.requires_grad]
        if again:
            second = tj.autograd.grad(sum((g * g).sum() for g in again), (x, w), allow_unused=True)
            seen.append([None if g is None else g.numpy().copy() for g in second])

    for k in range(6):
        try:
            run(k)
        except (RuntimeError, ValueError) as e:
            seen.append(type(e).__name__)
    return seen, f


def same(a, b):
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.shape == b.shape and np.allclose(a, b, rtol=2e-3, atol=1e-4, equal_nan=True)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def check(seed):
    source = program(seed)
    eager, _ = observed(source, lambda f: f)
    compiled, f = observed(source, tj.compile)
    assert same(eager, compiled), f"seed {seed}\n{source}\n{eager}\n{compiled}\n{f.explain()}"
    return f.compiled_calls


def test_random_tapes_mean_the_same_compiled():
    ran = sum(check(seed) > 0 for seed in (*range(30), 1056, 1074, 1129, 5100, 5107))
    assert ran >= 20


@pytest.mark.skipif("TAPE_FUZZ" not in os.environ, reason="TAPE_FUZZ=seconds")
def test_random_tapes_for_a_while():
    end, seed = time.monotonic() + float(os.environ["TAPE_FUZZ"]), random.randrange(10**9)
    while time.monotonic() < end:
        check(seed)
        seed += 1
