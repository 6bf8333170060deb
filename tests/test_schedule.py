"""What is fused, what is stored, in what order; how kernels print; where values lie in the arena."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import tracejit.ops as ops
from tracejit.codegen.arena import Lifetime, place
from tracejit.codegen.compile import build
from tracejit.codegen.kernel import Kernel
from tracejit.codegen.llvm import emit, library
from tracejit.codegen.place import coarse, reshaped
from tracejit.codegen.prepare import prepare
from tracejit.codegen.schedule import Call, Launch, Schedule, schedule
from tracejit.codegen.views import view
from tracejit.ir import dtype as dt
from tracejit.ir.graph import Graph, param, run
from tracejit.ir.index import Axis, Index
from tracejit.ir.node import Node, expand_to
from tracejit.ir.types import TensorType
from tracejit.ops.source import full
from tracejit.passes.grad import pullback


def tensor(*shape: int, dtype: dt.DType = dt.float32) -> Node:
    return param("x", TensorType(dtype, shape))


def plan(function: Callable[..., Any], *xs: Node) -> Schedule:
    out = function(*xs)
    return schedule(prepare(Graph("f", xs, out if isinstance(out, tuple) else (out,))), emit.supports, library.match)


def launches(s: Schedule) -> list[Kernel]:
    return [x.kernel for x in s.steps if isinstance(x, Launch)]


def log_softmax(x: Any) -> Any:
    shape = x.shape
    shifted = x - ops.broadcast(ops.reduce_max(x, (1,)), shape, (0,))
    return shifted - ops.broadcast(ops.log(ops.reduce_sum(ops.exp(shifted), (1,))), shape, (0,))


def cross_entropy(x: Any, t: Any) -> Any:
    classes = ops.iota(x, x.shape, 1)
    chosen = ops.eq(classes, ops.broadcast(t, x.shape, (0,)))
    picked = ops.reduce_sum(ops.select(chosen, log_softmax(x), ops.zeros_like(x)), (1,))
    return ops.reduce_sum(picked, (0,)) * (-1.0 / x.shape[0])


# ---------------------------------------------------------------- fusion


def test_a_kernel_prints_as_a_loop_nest() -> None:
    s = plan(lambda x, b: ops.exp(x * 2.0 + expand_to(b, x.shape)), tensor(4, 64), tensor(64))
    assert [str(k) for k in launches(s)] == [
        """kernel(in f32[256] a0, in f32[64] a1, out f32[256] a2) lanes=outer joint=1 {
  for i0 in 4:  # parallel
    for i1 in 64:  # parallel
      %0 = a0[64*i0 + i1] : f32
      %1 = const(2.0) : f32
      %2 = mul(%0, %1) : f32
      %3 = a1[i1] : f32
      %4 = add(%2, %3) : f32
      %5 = exp(%4) : f32
      a2[64*i0 + i1] = %5
}"""
    ]


def test_axes_that_run_on_in_memory_are_merged() -> None:
    (kernel,) = launches(plan(lambda x, y: x * y, tensor(2, 3, 4, 5), tensor(2, 3, 4, 5)))
    assert [a.extent for a in kernel.outer] == [120]


def test_equal_kernels_of_different_graphs_print_alike() -> None:
    a, b = (launches(plan(lambda x: ops.tanh(x) + 1.0, tensor(6, 7)))[0] for _ in range(2))
    assert str(a) == str(b)


def test_a_value_read_by_two_kernels_is_stored_once() -> None:
    s = plan(lambda x: (ops.reduce_sum(e := ops.exp(x), (0,)), ops.reduce_sum(e, (1,))), tensor(300, 400))
    assert sum(str(k).count("exp(") for k in launches(s)) == 1


def test_a_cheap_value_is_computed_again_instead_of_stored() -> None:
    s = plan(lambda x: (ops.reduce_sum(x + 1.0, (0,)), ops.reduce_sum(x + 1.0, (1,))), tensor(300, 400))
    assert all(b.size in (300, 400) for k in launches(s) for b in k.buffers if b.use == "out")


def test_what_is_cheap_to_make_of_a_stored_value_is_not_stored_too() -> None:
    def gelu_and_gradient(x: Node, w: Node) -> Node:
        t = ops.tanh(x)
        return ops.matmul(x * (t + 1.0), w) * (t + 1.0)

    first, _, _ = plan(gelu_and_gradient, tensor(40, 40), tensor(40, 40)).steps
    assert [n.op.name for n in first.writes] == ["tanh", "mul"]


def test_the_gradient_of_a_weight_is_made_as_the_weight_lies() -> None:
    s = plan(
        lambda x, g, w: w - ops.transpose(ops.matmul(ops.transpose(x, (1, 0)), g), (1, 0)),
        tensor(9, 20),
        tensor(9, 30),
        tensor(30, 20),
    )
    call, update = s.steps
    assert isinstance(call, Call)
    assert call.node.shape == (30, 20)
    assert [len(k.outer) for k in launches(s)] == [1], "one loop: both are read as they lie"
    assert isinstance(update, Launch)


def test_the_sum_of_long_columns_is_shared_by_rows() -> None:
    first, second = launches(plan(lambda x: ops.reduce_sum(x, (0,)), tensor(4096, 256)))
    assert [a.extent for a in first.outer] == [16, 256]
    assert [a.extent for a in second.outer] == [256]


def test_a_test_of_places_speaks_of_as_few_axes_as_decide_it() -> None:
    i, j = Axis("i", 12), Axis("j", 64)
    place = Index.of(i) * 64 + Index.of(j)
    assert coarse((place, 512, 768)) == (Index.of(i), 8, 12)
    assert coarse((place + 128, 512, 768)) == (Index.of(i), 6, 10)
    assert coarse((place, 512, 760)) == (place, 512, 760)
    assert coarse((place - 1, 512, 768)) == (place - 1, 512, 768)


def test_a_reshape_of_a_stored_value_costs_nothing() -> None:
    s = plan(lambda x, w: ops.matmul(ops.reshape(ops.exp(x), (6, 20)), w), tensor(6, 4, 5), tensor(20, 3))
    assert [type(x) for x in s.steps] == [Launch, Call]


def test_a_transposed_operand_of_matmul_is_not_copied() -> None:
    s = plan(lambda a, b: ops.matmul(ops.transpose(a, (1, 0)), ops.transpose(b, (1, 0))), tensor(20, 6), tensor(3, 20))
    assert [type(x) for x in s.steps] == [Call]


def test_softmax_and_its_gradient_are_one_kernel_each() -> None:
    x, g = tensor(64, 100), tensor(64, 100)
    assert len(launches(plan(log_softmax, x))) == 1

    def both(x: Node, g: Node) -> Any:
        y = log_softmax(x)
        return (y, *pullback((y,), (g,), (x,)))

    assert len(plan(both, x, g).steps) <= 2


def test_cross_entropy_forward_and_backward_are_few_kernels() -> None:
    def both(x: Node, t: Node) -> Any:
        loss = cross_entropy(x, t)
        return (loss, *pullback((loss,), (full(loss, 1.0, loss.type),), (x,)))

    s = plan(both, tensor(64, 10), tensor(64, dtype=dt.int64))
    assert len(s.steps) <= 3


def test_updates_of_one_parameter_are_one_kernel() -> None:
    def adam(p: Any, g: Any, m: Any, v: Any) -> Any:
        m2, v2 = m * 0.9 + g * 0.1, v * 0.999 + g * g * 0.001
        return p - m2 / (ops.sqrt(v2) + 1e-8), m2, v2

    assert len(plan(adam, *(tensor(50, 3) for _ in range(4))).steps) == 1


def test_a_large_sum_is_done_in_two_steps_that_threads_can_share() -> None:
    s = plan(lambda x: ops.reduce_sum(x, (0,)), tensor(1 << 20))
    assert len(s.steps) == 2
    assert emit.launch(launches(s)[0], 256, {}).units >= 8


def test_a_group_never_waits_for_itself() -> None:
    # b needs a sum of a; c needs a and b: a and c may not share a kernel unless b can be in it.
    def f(x: Node) -> Any:
        a = ops.exp(x)
        b = ops.broadcast(ops.reduce_sum(a, (0, 1)), x.shape, ())
        return a, ops.flip(a, (0,)) * b

    x = np.random.default_rng(0).normal(size=(30, 40)).astype(np.float32)
    node = tensor(30, 40)
    graph = Graph("f", (node,), f(node))
    for got, want in zip(build(graph)([x]), run(graph, [x]), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_ten_thousand_nodes_are_scheduled_in_reasonable_time() -> None:
    x = tensor(100)
    y = x
    for k in range(3300):
        y = ops.tanh(y) * 0.5 if k % 3 else y + x
    start = time.process_time()
    schedule(Graph("f", (x,), (y,)), emit.supports, library.match)
    assert time.process_time() - start < 10


# ---------------------------------------------------------------- places and views


@pytest.mark.parametrize(
    ("source", "shape"), [((6,), (2, 3)), ((2, 1, 3), (6,)), ((4, 3, 5), (12, 5)), ((2, 6), (2, 2, 3)), ((1,), ())]
)
def test_the_place_in_a_reshape_keeps_row_major_order(source: tuple[int, ...], shape: tuple[int, ...]) -> None:
    axes = [Axis(f"i{k}", e) for k, e in enumerate(source)]

    def value(index: Index, point: Sequence[int]) -> int:
        where = dict(zip(axes, point, strict=True))
        return int(index.constant) + sum(int(c) * where[a] for a, c in index.terms)  # type: ignore[arg-type]

    if len(shape) >= len(source):
        return  # the other way round, a split would be asked for
    at = reshaped([Index.of(a) for a in axes], shape, source)
    for point in np.ndindex(*source):
        want = np.unravel_index(np.ravel_multi_index(point, source), shape)
        assert tuple(value(i, point) for i in at) == tuple(map(int, want))


def test_views_of_views_are_strides() -> None:
    x = tensor(6, 8)
    v = view(ops.flip(ops.transpose(ops.slice_(x, (1, 0), (5, 8), (2, 1)), (1, 0)), (0,)))
    assert (v.base, v.offset, v.strides) == (x, 15, (-1, 16))


# ---------------------------------------------------------------- arena


def test_values_that_live_together_do_not_overlap() -> None:
    rng = np.random.default_rng(0)
    lives = {}
    for k in range(200):
        first = int(rng.integers(0, 50))
        lives[k] = Lifetime(int(rng.integers(0, 5000)), first, first + int(rng.integers(0, 12)))
    offsets, total = place(lives)
    for a in lives:
        assert offsets[a] % 64 == 0
        assert offsets[a] + lives[a].nbytes <= total
        for b in lives:
            if a < b and lives[a].first <= lives[b].last and lives[b].first <= lives[a].last:
                assert offsets[a] + lives[a].nbytes <= offsets[b] or offsets[b] + lives[b].nbytes <= offsets[a]


def test_memory_is_used_again() -> None:
    _, total = place({k: Lifetime(1000, k, k + 1) for k in range(100)})
    assert total <= 2 * 1024
