"""Attention found in graphs: what it gives, where it is not used, what it does not store."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tracejit.ops as ops
from tracejit import config
from tracejit.codegen.attention import fuse_attention
from tracejit.codegen.compile import Executable, build
from tracejit.codegen.llvm.native import Native
from tracejit.codegen.llvm.plan import Segment
from tracejit.ir import dtype as dt
from tracejit.ir.graph import Graph, param, run
from tracejit.ir.node import Node, expand_to
from tracejit.ir.types import TensorType
from tracejit.ops.composed.attention import scaled_dot_product_attention

Array = Any


def by_hand(q: Any, k: Any, v: Any) -> Any:
    scores = ops.matmul(q, k) * 0.125
    row = (len(scores.shape) - 1,)
    dims = tuple(range(len(scores.shape) - 1))
    weights = ops.exp(scores - ops.broadcast(ops.reduce_max(scores, row), scores.shape, dims))
    return ops.matmul(weights / ops.broadcast(ops.reduce_sum(weights, row), scores.shape, dims), v)


def graph_of(function: Any, *arrays: Array) -> Graph:
    xs = tuple(param(f"x{i}", TensorType(dt.from_numpy(a.dtype), a.shape)) for i, a in enumerate(arrays))
    out = function(*xs)
    return Graph("f", xs, out if isinstance(out, tuple) else (out,))


def symbols(f: Executable) -> list[str]:
    assert isinstance(f, Native)
    return [s.name for p in f.plan.parts if isinstance(p, Segment) for s in p.steps]


def heads(m: int, n: int, d: int, e: int, *, batch: tuple[int, ...] = (2, 3)) -> list[Array]:
    rng = np.random.default_rng(m * n + d)
    shapes = ((*batch, m, d), (*batch, n, d), (*batch, n, e))
    return [rng.standard_normal(s).astype(np.float32) for s in shapes]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("m", "n", "d", "e"),
    [
        (128, 128, 64, 64),
        (7, 7, 5, 3),
        (2, 3, 2, 1),
        (100, 300, 33, 17),
        (257, 257, 40, 48),
        (200, 130, 16, 16),
        (97, 129, 8, 31),
    ],
)
def test_attention_of_any_shape_on_one_thread_and_two(m: int, n: int, d: int, e: int, causal: bool) -> None:
    arrays = heads(m, n, d, e)

    def attend(q: Node, k: Node, v: Node) -> Node:
        return scaled_dot_product_attention(q, k, v, is_causal=causal)

    f = build(graph_of(attend, *arrays))
    assert symbols(f) == ["attention_f32"]
    with config.override(threads=1):
        (one,) = f(arrays)
    with config.override(threads=2):
        (two,) = f(arrays)
    np.testing.assert_array_equal(one, two)
    exact = [a.astype(np.float64) for a in arrays]
    np.testing.assert_allclose(one, run(graph_of(attend, *exact), exact)[0], rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("batch", [(), (4,), (2, 5)])
def test_attention_written_by_hand_is_found_too(batch: tuple[int, ...]) -> None:
    q, k, v = heads(50, 60, 32, 24, batch=batch)
    arrays = [q, np.ascontiguousarray(k.swapaxes(-1, -2)), v]
    f = build(graph_of(by_hand, *arrays))
    assert symbols(f) == ["attention_f32"]
    np.testing.assert_allclose(f(arrays)[0], run(graph_of(by_hand, *arrays), arrays)[0], rtol=1e-5, atol=2e-6)


def test_heads_are_read_where_a_projection_left_them() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 70, 3 * 4 * 16)).astype(np.float32)

    def attend(x: Node) -> Node:
        parts = ops.reshape(x, (2, 70, 3, 4, 16))
        q, k, v = (ops.reshape(p, (2, 70, 4, 16)) for p in (pick(parts, i) for i in range(3)))
        q, v = (ops.transpose(p, (0, 2, 1, 3)) for p in (q, v))
        return by_hand(q, ops.transpose(k, (0, 2, 3, 1)), v)

    f = build(graph_of(attend, x))
    assert symbols(f) == ["attention_f32"]
    np.testing.assert_allclose(f([x])[0], run(graph_of(attend, x), [x])[0], rtol=1e-5, atol=2e-6)


def pick(x: Node, i: int) -> Node:
    from tracejit.ops.movement import Slice

    starts, limits = [0] * 5, list(x.shape)
    starts[2], limits[2] = i, i + 1
    return Slice(tuple(starts), tuple(limits), (1,) * 5)(x)


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_what_is_not_finite_shows_where_it_does_in_the_plain_form(which: int, special: float, causal: bool) -> None:
    arrays = heads(150, 150, 16, 16, batch=(1, 2))
    arrays[which][0, 0, 140, 3] = special
    graph = graph_of(lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=causal), *arrays)
    with np.errstate(all="ignore"):
        (want,) = run(graph, arrays)
    (got,) = build(graph)(arrays)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-6)


def test_weights_that_someone_reads_are_stored() -> None:
    def both(q: Node, k: Node, v: Node) -> tuple[Node, ...]:
        y = by_hand(q, k, v)
        return y, y.inputs[0]

    q, k, v = heads(20, 20, 8, 8)
    arrays = [q, np.ascontiguousarray(k.swapaxes(-1, -2)), v]
    graph = graph_of(both, *arrays)
    assert not any(n.op.name == "attention" for n in fuse_attention(graph).nodes)
    for got, want in zip(build(graph)(arrays), run(graph, arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-6)


def test_another_softmax_is_left_alone() -> None:
    def wrong_axis(q: Node, k: Node, v: Node) -> Node:
        scores = ops.matmul(q, k)
        weights = ops.exp(scores - expand_to(ops.reduce_max(scores, (0,)), scores.shape))
        return ops.matmul(weights / expand_to(ops.reduce_sum(weights, (0,)), scores.shape), v)

    q, k, v = heads(20, 20, 20, 20, batch=())
    graph = graph_of(wrong_axis, q, k, v)
    assert not any(n.op.name == "attention" for n in fuse_attention(graph).nodes)


def test_scores_are_never_stored() -> None:
    arrays = heads(512, 512, 32, 32, batch=(2, 2))
    f = build(graph_of(lambda q, k, v: scaled_dot_product_attention(q, k, v) * 2.0, *arrays))
    assert isinstance(f, Native)
    (segment,) = f.plan.parts
    assert isinstance(segment, Segment)
    assert segment.arena_bytes <= arrays[2].nbytes + 64
    assert max(s.scratch for s in segment.steps) < 1 << 18
