"""Shapes that change between calls: whatever a function does with extents, compiled it does what plain Python does.

Where a case says so, one trace serves all general extents, beside the one of the first extents; 0 and 1 are others.
"""

import copy
import dataclasses
import math

import numpy as np
import programs
import pytest

import tracejit as tj
import tracejit.nn as nn
import tracejit.nn.functional as F

LENGTHS = (5, 5, 5, 7, 9, 11, 13, 3, 8, 2, 1, 16, 0, 6, 5, 7, 64, 4, 12)


def observed(f, args):
    """What a call gives, as plain data: its value, or the class of what it raises."""
    try:
        return programs.plain(f(*args))
    except Exception as e:
        return f"raised {type(e).__name__}"


def same(a, b):
    return programs.same(a, b, 2e-4, 1e-5, 1e-5, 1e-6)


def x_of(*dims):
    """Arguments: one tensor, "n" standing for the length."""

    def make(n):
        rng = np.random.default_rng(n)
        return (tj.from_numpy(rng.normal(size=[n if d == "n" else d for d in dims]).astype(np.float32)),)

    return make


def two(first, second):
    """Two tensors, each a function of the length."""

    def make(n):
        rng = np.random.default_rng(n)
        return tuple(tj.from_numpy(rng.normal(size=s(n)).astype(np.float32)) for s in (first, second))

    return make


def traces(f):
    return sum(len(b.traces) for b in f.buckets.values())


def branch(x):
    return x * 2 if x.shape[0] > 8 else x - 1


def chain(x):
    return x * 2 if 4 < x.shape[0] <= 9 else x - 1


def by_constant(x):
    return x * 2 if x.shape[0] == 9 else x * 3


def matched(x):
    match x.shape:
        case (7, _):
            return x * 7
        case (n, 4) if n % 2:
            return x + n
        case _:
            return x - 1


def as_key(x):
    return x * {5: 1.0, 7: 2.0, 9: 3.0}.get(x.shape[0], 4.0)


def in_set(x):
    return x * (2.0 if x.shape[0] in {7, 11} else 3.0)


def in_list_of_shapes(x):
    return x * (2.0 if x.shape in [(7, 4), (9, 4)] else 3.0)


def looped(x):
    total = x.sum() * 0
    for i in range(x.shape[0]):
        total = total + x[i].sum() * i
    return total


def strided_loop(x):
    total = x.sum() * 0
    for i in range(0, x.shape[0], 4):
        total = total + x[i : i + 4].mean()
    return total


def iterated(x):
    return sum(row.max() for row in x) if len(x) else x.sum()


def while_loop(x):
    n, y = len(x), x
    while n > 1:
        n //= 2
        y = y + n
    return y


def as_text(x):
    return x * 2, f"{x.shape[0]} rows", str(tuple(x.shape))


def listed(x):
    return x * len([0] * x.shape[0])


def indexed(x):
    return x * [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0][x.shape[0] % 8]


def numpy_of(x):
    return x * float(np.arange(x.shape[0]).sum())


def bits(x):
    return x * x.shape[0].bit_length()


def combinations(x):
    return x * math.comb(x.shape[0] + 1, 2)


def ceiling(x):
    return x * math.ceil(x.shape[0] / 4)


def ranked(x):
    return x * sorted([x.shape[0], 6, 9])[1]


def summed_shape(x):
    return x * sum(x.shape)


def identical(x):
    return x * (2.0 if x.shape[0] is x.shape[1] else 3.0)


def hashed(x):
    return x * (hash(x.shape[0]) % 5)


def power(x):
    return x / x.shape[0] ** 0.5


def square(x):
    return x + x.shape[0] ** 2


def half(x):
    return x[: x.shape[0] // 2] * 2


def middle(x):
    n = x.shape[0]
    return x[n // 3 : n - n // 3]


def minimum(x):
    return x[: min(x.shape[0], 8)] * 2


def clipped(x):
    n = max(2, min(x.shape[0], 10))
    return x.sum() * n


def kept(x):
    return {"n": x.shape[0], "size": x.numel(), "shape": tuple(x.shape), "y": x * 2}


def is_int(x):
    return x * (2 if isinstance(x.shape[0], int) and type(len(x)) is int else 3)


def padded(x):
    return F.pad(x, (0, 0, 0, 20 - x.shape[0]))


def triangle(x):
    n = x.shape[0]
    return (x @ x.transpose(0, 1)).masked_fill(tj.tril(tj.ones(n, n)) == 0, float("-inf")).softmax(-1)


def positions(x):
    return x + tj.arange(x.shape[0])[:, None]


def stepped(x):
    return x[tj.arange(0, x.shape[0], 2)] * 2


def one_hot(x):
    return F.one_hot(tj.arange(x.shape[0]) % 3, 3) * x.sum().long()


def wide_one_hot(x):
    return F.one_hot(tj.arange(x.shape[0]), x.shape[0]).sum(0) * x.sum()


def repeated(x):
    return x.repeat(x.shape[0], 1).sum(0)


def interleaved(x):
    return x.repeat_interleave(2, 0)


def rolled(x):
    return x.roll(3, 0)


def normalised(x):
    return (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt()


def written(x):
    y = x.clone()
    y[0] = 1.0
    y[-2:] = 5.0
    return y


def mask(x):
    return x.masked_fill(x > 0, 0.0).sum(0), (x > 0).sum()


def nested(x):
    def inner(y):
        return y * len(y)

    return inner(x) + inner(x[:, :2])[:, :1]


def picked(x):
    return x[[0, -1]] * 2


def gathered(x):
    return x[x.sum(1).argsort()]


@dataclasses.dataclass
class Box:
    n: int = 0


def boxed(x):
    b = Box(x.shape[0])
    b.n += 1
    return x * b.n


CASES = [
    # (function, arguments, one trace for all general extents)
    (lambda x: (x * 2 + 1).relu().sum(1), x_of("n", 6), True),
    (lambda x: x.mean(), x_of("n", 4), True),
    (lambda x: x.mean(0), x_of("n", 4), True),
    (lambda x: x.var(0), x_of("n", 4), True),
    (lambda x: x.std(1), x_of(3, "n"), True),
    (lambda x: x.softmax(-1), x_of(3, "n"), True),
    (lambda x: x.logsumexp(0), x_of("n", 4), True),
    (lambda x: x[1:] * 2, x_of("n", 4), True),
    (lambda x: x[:-1] + x[1:], x_of("n", 4), True),
    (lambda x: x[-1] * 2, x_of("n", 4), True),
    (lambda x: x[:5] * 2, x_of("n", 4), False),
    (lambda x: x[-5:] * 2, x_of("n", 4), False),
    (lambda x: x[::2] * 2, x_of("n", 4), False),
    (lambda x: x[3] * 2, x_of("n", 4), False),
    (lambda x: x * len(x), x_of("n", 4), True),
    (lambda x: x * (0.5 * len(x)), x_of("n", 4), True),
    (lambda x: x.sum() / x.numel(), x_of("n", 4), True),
    (lambda x: x.sum() / (x.size(0) - 1) if x.size(0) > 1 else x.sum(), x_of("n", 4), True),
    (lambda x: x.shape[0] * 2, x_of("n", 4), True),
    (lambda x: (len(x), x.ndim, x.size()[1]), x_of("n", 4), True),
    (lambda x: tuple(x.shape), x_of("n", 4), True),
    (lambda x: x.view(-1) * 2, x_of("n", 4), True),
    (lambda x: x.view(-1, 8) * 2, x_of("n", 16), True),
    (lambda x: x.view(2, -1) * 2, x_of("n", 3), False),
    (lambda x: x.reshape(x.shape[0] * 4), x_of("n", 4), True),
    (lambda x: x.flatten()[3], x_of("n", 4), False),
    (lambda x: (x * 2).T, x_of("n", 4), True),
    (lambda x: x.T, x_of("n", 4), True),
    (lambda x: x, x_of("n", 4), None),
    (lambda x: x * (x.shape[0] % 2), x_of("n", 4), False),
    (lambda x: tj.cat([x, x * 2, x[:1]], 0), x_of("n", 4), True),
    (lambda x: tj.stack([x, x * 2], 1), x_of("n", 4), True),
    (lambda x: sum(p.sum() for p in x.split(4)), x_of("n", 4), False),
    (lambda x: x.chunk(3)[0] * 2, x_of("n", 4), False),
    (lambda x: x.mean(0, keepdim=True).expand(x.shape[0], 4) + x, x_of("n", 4), True),
    (lambda x: x.squeeze() * 2, x_of("n", 1, 4), True),
    (lambda x: x.unsqueeze(1) * 2, x_of("n", 4), True),
    (lambda x: x.max(0).values, x_of("n", 4), True),
    (lambda x: x.argmax(0), x_of("n", 4), True),
    (lambda x: x.cumsum(0), x_of("n", 4), True),
    (lambda x: x.sort(0).values, x_of("n", 4), True),
    (lambda x: x.topk(2, 0).values, x_of("n", 4), True),
    (lambda x: x.flip(0) * 2, x_of("n", 4), True),
    (lambda x: x * tj.linspace(0, 1, x.shape[0])[:, None], x_of("n", 4), False),
    (lambda x: F.conv2d(x, tj.ones(2, 3, 3, 3)), x_of("n", 3, 8, 8), True),
    (lambda x: F.max_pool2d(x, 2), x_of("n", 3, 8, 8), True),
    (lambda x: F.avg_pool1d(x, 2), x_of(2, 3, "n"), False),
    (lambda x: F.dropout(x, 0.0) * 2, x_of("n", 4), True),
    (lambda x: F.layer_norm(x, (4,)), x_of("n", 4), True),
    (lambda x: F.layer_norm(x, (x.shape[1],)), x_of(3, "n"), None),
    (lambda x: tj.zeros_like(x) + tj.ones(x.shape) + tj.full(x.shape, 2.0), x_of("n", 4), True),
    (lambda x, y: x + y, two(lambda n: (n, 4), lambda n: (n, 4)), True),
    (lambda x, y: x + y, two(lambda n: (n, 4), lambda n: (1 if n == 9 else n, 4)), True),
    (lambda x, y: x + y, two(lambda n: (n, 4), lambda n: (n if n < 12 else n + 1, 4)), None),
    (lambda x, y: x @ y, two(lambda n: (4, n), lambda n: (n, 3)), True),
    (lambda x, y: x @ y.transpose(1, 2), two(lambda n: (2, n, 4), lambda n: (2, n, 4)), True),
    (lambda x, y: (x[:, None] * y[None]).sum(1), two(lambda n: (n,), lambda n: (2 * n + 1,)), True),
    (lambda x, y: x[:, : y.shape[0]] * y, two(lambda n: (3, 70), lambda n: (n,)), None),
    (lambda x, y: x.shape == y.shape, two(lambda n: (n, 4), lambda n: (9, 4)), None),
    (lambda x, y: (x.shape[0] < y.shape[0], x.sum() + y.sum()), two(lambda n: (n,), lambda n: (14 - n % 14,)), None),
    *((f, x_of("n", 4), True) for f in (kept, is_int, padded, triangle, positions, one_hot, normalised, mask, nested)),
    *((f, x_of("n", 4), True) for f in (power, square, written, picked, gathered, interleaved, boxed, wide_one_hot)),
    *((f, x_of("n", 4), False) for f in (branch, chain, by_constant, matched, as_key, in_set, in_list_of_shapes)),
    *((f, x_of("n", 4), False) for f in (looped, strided_loop, iterated, while_loop, listed, indexed, numpy_of, bits)),
    *((f, x_of("n", 4), False) for f in (combinations, ceiling, ranked, hashed, half, middle, minimum, clipped)),
    *((f, x_of("n", 4), None) for f in (as_text, summed_shape, identical, stepped, repeated, rolled)),
]


def name_of(case):
    k, (f, *_) = case
    return f"{k}-{f.__name__.strip('<>')}"


@pytest.mark.parametrize("case", list(enumerate(CASES)), ids=name_of)
def test_a_changing_extent_is_seen_as_plain_python_sees_it(case):
    _, (fn, make, general) = case
    f = tj.compile(fn)
    for n in LENGTHS:
        want, got = observed(fn, make(n)), observed(f, make(n))
        assert same(want, got), f"length {n}: plain {want}, compiled {got}"
    if general:
        kinds = [b for b in f.buckets.values() if any(t.recording.symbols for t in b.traces)]
        assert len(kinds) == 1, f"{len(kinds)} of {traces(f)} traces are general: {dict(f.fallbacks)}"
        assert f.compiled_calls >= len(LENGTHS) - 9


@pytest.mark.parametrize("fn", [c[0] for c in CASES if c[2]][:20])
def test_compiled_calls_at_other_extents_pass_the_self_check(fn):
    f = tj.compile(fn, verify=1)
    make = next(c[1] for c in CASES if c[0] is fn)
    for n in LENGTHS:
        observed(f, make(n))
    assert not f.history.mismatches


def block(width=32, heads=4):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            b, s, _ = x.shape
            parts = self.qkv(self.ln1(x)).chunk(3, dim=-1)
            q, k, v = (z.reshape(b, s, heads, width // heads).transpose(1, 2) for z in parts)
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, width)
            x = x + self.proj(a)
            return x + self.fc2(F.gelu(self.fc1(self.ln2(x)), approximate="tanh"))

    return Block()


def test_a_transformer_block_at_sixteen_lengths_is_compiled_twice():
    tj.manual_seed(0)
    m = block()
    f = tj.compile(lambda x: m(x))
    late = []
    with tj.no_grad():
        for n in (8, 8, 8, 9, 11, 13, 17, 5, 6, 7, 20, 21, 22, 23, 24, 25):
            before, (x,) = f.compiled_calls, x_of(2, "n", 32)(n)
            np.testing.assert_allclose(f(x).numpy(), m(x).numpy(), rtol=1e-4, atol=1e-5)
            late.append(f.compiled_calls > before)
    assert traces(f) == 2
    assert all(late[5:])  # every new length after the third is compiled at its first call


def test_an_mlp_at_many_batch_sizes_is_compiled_twice():
    tj.manual_seed(0)
    m = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 4))
    f = tj.compile(lambda x: m(x))
    with tj.no_grad():
        for n in (8, 8, 8, 9, 11, *range(2, 40, 3)):
            (x,) = x_of("n", 20)(n)
            np.testing.assert_allclose(f(x).numpy(), m(x).numpy(), rtol=1e-4, atol=1e-5)
    assert traces(f) == 2
    assert f.compiled_calls == f.calls - 5


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW", "RMSprop"])
def test_a_train_step_takes_any_last_batch(optimizer):
    tj.manual_seed(0)
    m1 = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 4))
    m2 = copy.deepcopy(m1)
    o1, o2 = (getattr(tj.optim, optimizer)(m.parameters(), lr=0.01) for m in (m1, m2))

    def step(m, o, x, y):
        loss = F.cross_entropy(m(x), y)
        o.zero_grad()
        loss.backward()
        o.step()
        return loss.detach()

    f = tj.compile(lambda x, y: step(m1, o1, x, y))
    for n in (16, 16, 16, 16, 7, 16, 16, 9, 16, 5, 3, 16, 11, 16, 4, 1, 2):
        (x,) = x_of("n", 20)(n)
        y = tj.from_numpy(np.arange(n) % 4)
        np.testing.assert_allclose(f(x, y).numpy(), step(m2, o2, x, y).numpy(), rtol=1e-3, atol=1e-4)
    for p, q in zip(m1.parameters(), m2.parameters()):
        np.testing.assert_allclose(p.detach().numpy(), q.detach().numpy(), rtol=1e-2, atol=1e-3)
    assert traces(f) == 2


def test_outputs_that_carry_gradients_are_right_at_every_extent():
    w1 = tj.ones(4, 3, requires_grad=True)
    w2 = tj.ones(4, 3, requires_grad=True)
    f = tj.compile(lambda x: ((x @ w1) ** 2).mean())
    for n in LENGTHS:
        if not n:
            continue
        (x,) = x_of("n", 4)(n)
        f(x).backward()
        ((x @ w2) ** 2).mean().backward()
        np.testing.assert_allclose(w1.grad.numpy(), w2.grad.numpy(), rtol=1e-3)


def test_two_extents_that_were_equal_by_chance_part_later():
    f = tj.compile(lambda x: x @ x.transpose(0, 1))
    for a, b in ((4, 4), (4, 4), (4, 4), (6, 6), (8, 8), (9, 9), (6, 8), (9, 5), (7, 3), (5, 5), (12, 2)):
        x = tj.from_numpy(np.random.default_rng(a).normal(size=(a, b)).astype(np.float32))
        got, want = f(x), x @ x.transpose(0, 1)
        assert got.shape == want.shape
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-4, atol=1e-5)


def test_an_updated_argument_of_any_extent():
    def fn(x):
        x.mul_(2)
        x[1:] += 1
        return x.sum()

    f = tj.compile(fn)
    for n in LENGTHS:
        (a,), (b,) = x_of("n", 4)(n), x_of("n", 4)(n)
        np.testing.assert_allclose(f(a).numpy(), fn(b).numpy(), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5)


def test_dropout_draws_the_same_numbers_at_every_extent():
    f = tj.compile(lambda x: F.dropout(x, 0.5))
    for n in LENGTHS:
        (x,) = x_of("n", 8)(n)
        tj.manual_seed(n)
        got, after = f(x), tj.rand(3)
        tj.manual_seed(n)
        want, then = F.dropout(x, 0.5), tj.rand(3)
        assert got.numpy().tobytes() == want.numpy().tobytes()
        assert after.numpy().tobytes() == then.numpy().tobytes()


def test_an_extent_kept_outside_is_that_of_the_call():
    seen = []
    box = Box()

    def fn(x):
        box.n = x.shape[0]
        seen.append(len(x))
        return x * 2

    f = tj.compile(fn)
    for n in LENGTHS:
        f(*x_of("n", 4)(n))
        assert (box.n, type(box.n)) == (n, int)
    assert seen == list(LENGTHS)
    assert {type(n) for n in seen} == {int}


def test_views_and_transposed_arguments_of_any_extent():
    f = tj.compile(lambda x: x * 2 + x.sum(0))
    for n in LENGTHS:
        (x,) = x_of(4, "n")(n)
        for y in (x.T, x.T.contiguous(), x.T[:, 1:3]):
            np.testing.assert_allclose(f(y).numpy(), (y * 2 + y.sum(0)).numpy(), rtol=1e-4, atol=1e-5)


def test_explain_says_why_extents_stay_exact():
    f = tj.compile(looped)
    for n in (5, 5, 5, 7, 9):
        f(*x_of("n", 4)(n))
    assert "for all extents in vain" in str(tj.explain(f))


@pytest.mark.parametrize("case", [(k, c) for k, c in enumerate(CASES) if c[2]][::3], ids=name_of)
def test_extents_that_come_again_are_entered_natively_and_right(case):
    _, (fn, make, _) = case
    f = tj.compile(fn)
    for n in (6, 6, 6, 7, 9, *(7, 9, 11, 6, 13, 12, 1, 4) * 4):
        want, got = observed(fn, make(n)), observed(f, make(n))
        assert same(want, got), f"length {n}: plain {want}, compiled {got}"
