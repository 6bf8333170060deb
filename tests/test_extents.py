"""Code for all extents: symbolic graphs against the interpreter at many sizes, and how often they are compiled."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import tracejit.ops as ops
from test_codegen import assert_same
from tracejit import config
from tracejit.codegen.compile import Miss, build
from tracejit.codegen.llvm.families import Family
from tracejit.errors import BackendError, TracejitError
from tracejit.ir import dtype as dt
from tracejit.ir.dim import Sym, at_least, is_multiple, quotient, same
from tracejit.ir.graph import Graph, param, run
from tracejit.ir.node import Node
from tracejit.ir.op import Array, Op, Sample
from tracejit.ir.types import TensorType
from tracejit.passes.bind import bind

B, T, K = Sym("b"), Sym("t"), Sym("k")


def f32(*shape: Any) -> Node:
    return param("x", TensorType(dt.float32, shape))


def family(*results: Any, params: Sequence[Node], **how: Any) -> tuple[Graph, Family]:
    graph = Graph("f", tuple(params), results)
    made = build(graph, **how)
    assert isinstance(made, Family)
    return graph, made


def arrays_of(graph: Graph, seed: int = 0, **values: int) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=p.shape).astype(p.type.dtype.numpy) for p in bind(graph, values).params]  # type: ignore[arg-type]


def check(graph: Graph, made: Family, **values: int) -> None:
    arrays = arrays_of(graph, **values)
    for got, want in zip(made(arrays), run(bind(graph, values), arrays), strict=True):
        assert_same(got, want)


# ---------------------------------------------------------------- arithmetic of dims


def test_what_general_extents_are_certain_to_be() -> None:
    assert at_least(T, 2)
    assert not at_least(T, 3)
    assert at_least(B * T - B, 0)
    assert not at_least(B - T, 0)
    assert not at_least(T - B, 0)


def test_quotients_are_exact_or_none() -> None:
    assert same(quotient(B * T * 64, T * 64), B)
    assert same(quotient((T + 1) * 64, T + 1), 64)
    assert quotient(T, 2) is None
    assert quotient(64, T) is None
    assert same(quotient(0, T), 0)
    assert quotient(T, 0) is None
    assert same(quotient((B + T) * (B + T), B + T), B + T)


def test_multiples() -> None:
    assert is_multiple(T * 64 + 32, 32)
    assert not is_multiple(T * 64 + 1, 32)


# ---------------------------------------------------------------- compilations


@pytest.fixture(autouse=True)
def _own_cache(tmp_path):  # compilations are counted: what an earlier run left would not be one
    with config.override(cache_dir=str(tmp_path)):
        yield


def test_sixteen_lengths_are_one_compilation() -> None:
    x, w = f32(B, T, 8), f32(8, 5)
    graph, made = family(ops.tanh(ops.matmul(x, ops.broadcast(w, (B, 8, 5), (1, 2)))), params=(x, w))
    for t in range(2, 18):
        check(graph, made, b=3, t=t)
    assert made.compilations == 1


def test_extents_zero_and_one_are_compiled_for_themselves() -> None:
    x = f32(B, T)
    graph, made = family(ops.reduce_sum(x, (1,)), x * 2.0, params=(x,))
    for b, t in ((4, 5), (1, 5), (1, 6), (0, 5), (0, 9), (4, 1), (5, 1), (1, 1)):
        check(graph, made, b=b, t=t)
    assert made.compilations == 5  # general, b = 1, b = 0, t = 1, both


def test_dims_that_come_out_small_are_compiled_for_themselves() -> None:
    x = f32(T)
    graph, made = family(ops.slice_(x, (3,), (T,), (1,)) * 2.0, params=(x,))
    for t in (9, 6, 5, 4, 3, 12):
        check(graph, made, t=t)
    assert made.compilations == 3  # t = 4 and t = 3 leave 1 and 0


def test_equal_layers_of_other_symbols_share_a_kernel() -> None:
    x, y = f32(B, 8), f32(T, 8)
    graph, made = family(ops.tanh(x) * 2.0, ops.tanh(y) * 2.0, params=(x, y))
    check(graph, made, b=5, t=7)
    assert len({str(k) for k in made.kernels}) == 1


def test_one_thread_and_many_give_the_same_bits() -> None:
    x = f32(B, T)
    graph, made = family(ops.reduce_sum(ops.exp(x), (0,)), ops.reduce_sum(x * x, (0, 1)), params=(x,))
    for b, t in ((301, 777), (1024, 65)):
        arrays = arrays_of(graph, b=b, t=t)
        with config.override(threads=1):
            alone = made(arrays)
        with config.override(threads=4):
            together = made(arrays)
        for p, q in zip(alone, together, strict=True):  # type: ignore[arg-type]
            assert p.tobytes() == q.tobytes()


def test_updates_and_checks_at_many_extents() -> None:
    x, y = f32(B, 3), f32(B, 3)
    total = ops.reduce_sum(x, (0, 1))
    graph = Graph("f", (x, y), (x + y, ops.reduce_max(x, (0, 1)) < 100.0, total))
    made = build(graph, updates={0: 1}, checks=((1, True),))
    for b in (2, 9, 1, 40, 0 + 3):
        a, c = arrays_of(graph, b=b)
        before = c.copy()
        (got,) = made([a, c])  # type: ignore[misc]
        np.testing.assert_allclose(c, a + before)
        np.testing.assert_allclose(got, a.sum(), rtol=1e-4)
        a[0, 0], kept = 200.0, c.copy()
        assert isinstance(made([a, c]), Miss)
        assert c.tobytes() == kept.tobytes()


def test_symbols_are_read_off_sums_and_products() -> None:
    x, y = f32(T * 2 + 1), f32(T)
    graph, made = family(ops.reduce_sum(x, (0,)) * y, params=(x, y))
    for t in (4, 9, 1):
        check(graph, made, t=t)
    x = f32(T * 2)
    graph, made = family(ops.reshape(x, (T, 2)) + 1.0, params=(x,))
    check(graph, made, t=8)
    with pytest.raises(BackendError, match="axis 0 is 2\\*t"):
        made([np.zeros(7, np.float32)])


def test_extents_that_contradict_are_refused() -> None:
    x, y = f32(T), f32(T)
    _, made = family(x + y, params=(x, y))
    with pytest.raises(BackendError):
        made([np.zeros(7, np.float32), np.zeros(8, np.float32)])


# ---------------------------------------------------------------- every op


def symbolic(sample: Sample) -> Iterator[tuple[Op, list[TensorType], dict[str, int]]]:
    """The sample with symbols: those it names, or one for each extent that may be any."""
    arrays = [np.asarray(a) for a in sample.inputs]
    types = [TensorType(dt.from_numpy(a.dtype), a.shape) for a in arrays]  # type: ignore[arg-type]
    options: list[dict[tuple[int, int], str]] = []
    if sample.dims:
        options.append({(i, axis): name for i, axis, name in sample.dims})
    else:
        everywhere = {(i, axis): f"s{e}" for i, a in enumerate(arrays) for axis, e in enumerate(a.shape) if e > 1}
        options += [{k: v for k, v in everywhere.items() if v == name} for name in sorted(set(everywhere.values()))]
        options += [{k: v} for k, v in everywhere.items()]
        if everywhere:
            options.append(everywhere)
    for option in options:
        values = {name: arrays[i].shape[axis] for (i, axis), name in option.items()}
        made = [
            t.with_shape([Sym(option[i, a]) if (i, a) in option else e for a, e in enumerate(t.shape)])
            for i, t in enumerate(types)
        ]
        yield sample.op, made, values


@pytest.mark.parametrize("name", sorted(n for n in Op.registry if n not in ("param", "call")))
def test_every_op_with_symbols_agrees_with_its_numpy_meaning(name: str) -> None:
    if not hasattr(Op.registry[name], "samples"):
        pytest.skip("no samples")
    done = 0
    for sample in Op.registry[name].samples(np.random.default_rng(0)):
        for op, types, values in symbolic(sample):
            params = [param(f"x{i}", t) for i, t in enumerate(types)]
            try:
                results = Node.build(op, params)
            except (TracejitError, NotImplementedError):  # not for any extent
                continue
            results = results if isinstance(results, tuple) else (results,)
            graph = Graph("f", tuple(params), results)
            inputs = [np.asarray(a) for a in sample.inputs]
            made = build(graph)
            for got, want in zip(made(inputs), run(bind(graph, values), inputs), strict=True):
                assert_same(got, want)
            done += 1
            if done >= 12:
                return


# ---------------------------------------------------------------- random graphs

SHAPES: list[tuple[Any, ...]] = [
    (B, T), (T,), (B, 1), (B, T, 4), (B * T,), (T, B), (17, T), (B, 3), (T, T), (), (4,), (B, T, 16), (1, T),
    (B * T, 16),
]  # fmt: skip


def step(r: random.Random, floats: list[Node]) -> Any:
    """One more value from those in the pool; some steps do not fit, and raise."""
    x = r.choice(floats)
    rank = len(x.shape)
    axes = tuple(k for k in range(rank) if r.random() < 0.5)
    match r.randrange(14):
        case 0:
            return ops.tanh(x)
        case 1:
            return ops.sqrt(abs(x) + 0.5)
        case 2 | 3 | 4:
            return x + r.choice(floats) if r.random() < 0.5 else ops.maximum(x, r.choice(floats) * 0.5)
        case 5 | 6:
            y = r.choice([ops.reduce_sum, ops.reduce_max])(x, axes) * 0.25
            return ops.broadcast(y, x.shape, [k for k in range(rank) if k not in axes]) if r.random() < 0.6 else y
        case 7:
            return ops.transpose(x, r.sample(range(rank), rank))
        case 8:
            return ops.reshape(x, r.choice([s for s in SHAPES if same(x.type.size, TensorType(x.dtype, s).size)]))
        case 9:
            low = [r.choice([0, 0, 1]) for _ in x.shape]
            return ops.slice_(x, low, x.shape, [r.choice([1, 1, 1]) for _ in x.shape])
        case 10:
            low, high = ([r.choice([0, 0, 1, 2]) for _ in x.shape] for _ in range(2))
            return ops.pad(x, low, high, [0 for _ in x.shape], value=r.choice([0.0, 1.5]))
        case 11:
            return ops.flip(x, axes)
        case 12:
            y = r.choice(floats)
            return ops.matmul(x, y) * 0.1
        case _:
            return ops.concat([x, x * 0.5], r.randrange(rank))


def graph_from(seed: int) -> Graph:
    r = random.Random(seed)
    params = [f32(*r.choice(SHAPES)) for _ in range(3)] + [f32(B, T)]
    pool: list[Node] = list(params)
    while len(pool) < 14:
        try:
            pool.append(step(r, pool))
        except (TracejitError, NotImplementedError, IndexError, ValueError):
            continue
    return Graph(f"g{seed}", tuple(params), tuple(r.sample(pool[4:], 3)) + (pool[-1],))


@pytest.mark.parametrize("seed", range(60))
def test_random_graphs_at_many_extents(seed: int) -> None:
    graph = graph_from(seed)
    made = build(graph)
    assert isinstance(made, Family)
    for b, t in ((30, 50), (50, 30), (40, 40)):
        made(arrays_of(graph, seed, b=b, t=t))
    assert made.compilations <= 1  # none where the store has the plans
    for b, t in ((3, 5), (5, 3), (2, 40), (33, 17), (16, 16), (4, 4), (1, 7), (7, 1), (2, 3)):
        arrays = arrays_of(graph, seed, b=b, t=t)
        for got, want in zip(made(arrays), run(bind(graph, {"b": b, "t": t}), arrays), strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)
