"""Random graphs: native code against the interpreter. A failure names its seed, and `graph_from(seed)` its graph."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import tracejit.ops as ops
from tracejit.codegen.compile import build
from tracejit.ir import dtype as dt
from tracejit.ir.graph import Graph, param, run
from tracejit.ir.node import Node, broadcast_shapes, expand_to
from tracejit.ir.types import TensorType

SHAPES = [(4, 6), (6,), (4, 1), (2, 3, 4), (24,), (1, 5), (17, 3), (3, 17), (2, 2, 2, 3), (), (40,), (1,)]


def step(r: random.Random, pool: list[Node], floats: list[Node]) -> Any:
    """One more value from those in the pool."""
    x = r.choice(floats)
    rank, shape = len(x.shape), tuple(int(d) for d in x.shape)  # type: ignore[arg-type]
    match r.randrange(15):
        case 0:
            return ops.tanh(x)
        case 1:
            return ops.exp(-(x * x)) if r.random() < 0.5 else ops.sqrt(abs(x) + 0.5)
        case 2 | 3 | 4:
            y = r.choice(floats)
            try:
                both = broadcast_shapes(x.shape, y.shape)
            except Exception:
                return x * 0.5
            a, b = expand_to(x, both), expand_to(y, both)
            return r.choice([lambda: a + b, lambda: a - b, lambda: a * b * 0.5, lambda: ops.maximum(a, b)])()
        case 5 | 6:
            axes = tuple(k for k in range(rank) if r.random() < 0.5)
            y = r.choice([ops.reduce_sum, ops.reduce_max])(x, axes) * 0.25
            if r.random() < 0.6:
                return ops.broadcast(y, shape, [k for k in range(rank) if k not in axes])
            return y
        case 7:
            return ops.transpose(x, r.sample(range(rank), rank))
        case 8:
            size = int(np.prod(shape))
            parts = [d for d in range(1, size + 1) if size % d == 0]
            first = r.choice(parts)
            return ops.reshape(x, r.choice([(size,), (first, size // first), (1, first, size // first)]))
        case 9:
            low = [r.randrange(0, max(1, d - 1)) for d in shape]
            high = [r.randrange(a + 1, d + 1) for a, d in zip(low, shape, strict=True)]
            return ops.slice_(x, low, high, [r.choice([1, 1, 2]) for _ in shape])
        case 10:
            low, high = ([r.choice([0, 0, 1, 2]) for _ in shape] for _ in range(2))
            return ops.pad(x, low, high, [r.choice([0, 0, 1]) for _ in shape], value=r.choice([0.0, 1.5]))
        case 11:
            return ops.flip(x, tuple(k for k in range(rank) if r.random() < 0.5))
        case 12:
            return ops.concat((x, x * 2.0), r.randrange(rank)) if rank else x + 1.0
        case 13:
            if not rank:
                return x
            axis = r.randrange(rank)
            at = ops.iota(x, (r.choice([1, 3, 5]),), 0) % shape[axis]
            return ops.take(x, at, axis)
        case _:
            if rank != 2:
                return ops.select(x < 0.1, x * 0.1, x)
            return ops.matmul(x, ops.transpose(x, (1, 0))) * 0.1


def graph_from(seed: int) -> tuple[Graph, dict[int, int], list[Any]]:
    """A graph, its updates, and arguments."""
    r = random.Random(seed)
    rng = np.random.default_rng(seed)
    dtype = r.choice([dt.float32, dt.float64])
    xs = tuple(param(f"x{k}", TensorType(dtype, r.choice(SHAPES))) for k in range(r.randrange(1, 4)))
    pool: list[Node] = list(xs)
    for _ in range(r.randrange(3, 30)):
        new = step(r, pool, pool)
        if np.prod([int(d) for d in new.shape]) <= 4000:
            pool.append(new)
    results = [*r.sample(pool, min(len(pool), r.randrange(1, 5))), pool[-1]]
    updates: dict[int, int] = {}
    for i, n in enumerate(results):
        for j, p in enumerate(xs):
            if n.type == p.type and j not in updates.values() and r.random() < 0.6:
                updates[i] = j
                break
    arrays = [rng.normal(size=tuple(p.shape)).astype(dtype.numpy) for p in xs]  # type: ignore[arg-type]
    return Graph("fuzz", xs, tuple(results)), updates, arrays


@pytest.mark.parametrize("seed", range(40))
def test_native_code_agrees_with_the_interpreter(seed: int) -> None:
    agree(seed)


def agree(seed: int) -> None:
    graph, updates, arrays = graph_from(seed)
    want = run(graph, [a.copy() for a in arrays])
    mine = [a.copy() for a in arrays]
    got = build(graph, updates=updates)(mine)
    assert isinstance(got, tuple)
    rest = iter(got)
    for i, w in enumerate(want):
        g = mine[updates[i]] if i in updates else next(rest)
        scale = 2e-5 if g.dtype == np.float32 else 1e-12
        size = max(1.0, float(np.max(np.abs(w), initial=0)))
        np.testing.assert_allclose(g, w, rtol=scale, atol=scale * size, err_msg=f"seed {seed}, result {i}")
    for j, (before, after) in enumerate(zip(arrays, mine, strict=True)):
        if j not in updates.values():
            np.testing.assert_array_equal(before, after)
