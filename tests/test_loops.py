"""Repeated sections as loops: found where they are, left alone where turns differ, and always the same values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracejit as tj
from tracejit import config, nn, ops
from tracejit.codegen.compile import build
from tracejit.codegen.llvm.loop import unroll
from tracejit.ir import dtype as dt
from tracejit.ir.graph import Graph, param, run
from tracejit.ir.node import Node
from tracejit.ir.types import TensorType
from tracejit.ir.verify import verify
from tracejit.ops.control import Loop
from tracejit.ops.movement import slice_axis
from tracejit.ops.pointwise import Lt
from tracejit.passes.grad import grad
from tracejit.passes.hoist import hoist
from tracejit.passes.pipeline import optimize
from tracejit.passes.rollup import roll_up
from tracejit.passes.stack import stack_pieces

T, B, H = 9, 3, 4


def value(label: str, *shape: int) -> Node:
    return param(label, TensorType(dt.float64, shape))


def row(x: Node, t: int, axis: int = 0) -> Node:
    cut = slice_axis(x, axis, t, t + 1)
    return ops.reshape(cut, tuple(d for a, d in enumerate(x.shape) if a != axis))


def stacked(rows: list[Node]) -> Node:
    return ops.concat([ops.reshape(r, (1, *r.shape)) for r in rows], 0)


def number(like: Node, x: float) -> Node:
    return ops.const(like, x, dt.float64, like.shape)


def loops(g: Graph) -> list[Loop]:
    return [n.op for n in g.nodes if isinstance(n.op, Loop)]


def check(g: Graph, trips: list[int]) -> Graph:
    """The rolled graph, which has loops of these lengths and gives what `g` gives, as do its unrolled and compiled
    forms."""
    rolled = roll_up(stack_pieces(g))
    verify(rolled)
    assert [op.trips for op in loops(rolled)] == trips
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=p.shape) for p in g.params]
    want = run(g, arrays)
    hoisted = hoist(rolled)
    verify(hoisted)
    for other in (rolled, hoisted, unroll(hoisted), optimize(g, loops=True)):
        for got, right in zip(run(other, arrays), want, strict=True):
            np.testing.assert_allclose(got, right, rtol=1e-9, atol=1e-9)
    compiled = build(g, optimize=True)
    for _ in range(2):  # a frame that is used again
        for got, right in zip(compiled(arrays), want, strict=True):  # type: ignore[arg-type]
            np.testing.assert_allclose(got, right, rtol=1e-9, atol=1e-9)
    return hoisted


def cell(x: Node, h: Node, w: Node) -> Node:
    return ops.tanh(ops.matmul(h, w) + x)


def recurrence(step: Callable[[int, Node, Node], Node], turns: int = T) -> tuple[Graph, list[Node]]:
    """h = step(t, h, w) from t = 0 on: the graph of the last h, and all of them."""
    x, h, w = value("x", T, B, H), value("h", B, H), value("w", H, H)
    made: list[Node] = []
    for t in range(turns):
        h = step(t, h, w) if step.__code__.co_argcount == 3 else step(t, h, w, x)  # type: ignore[call-arg]
        made.append(h)
    start = next(n for n in Graph("g", (), (h,)).nodes if n.label == "h")
    return Graph("g", (x, start, w), (h,)), made


# --- what is found ---------------------------------------------------------------------------------------------------


def test_steps_of_a_recurrence_are_one_loop() -> None:
    g, _ = recurrence(lambda t, h, w, x: cell(row(x, t), h, w))
    check(g, [T])


def test_rows_may_be_read_backwards_and_along_any_axis() -> None:
    x, h, w = value("x", B, T, H), value("h", B, H), value("w", H, H)
    last, start = h, h
    for t in reversed(range(T)):
        last = cell(row(x, t, 1), last, w)
    rolled = check(Graph("g", (x, start, w), (last,)), [T])
    assert loops(rolled)[0].backwards


def test_values_of_all_steps_are_stacked_in_place() -> None:
    g, made = recurrence(lambda t, h, w, x: cell(row(x, t), h, w))
    rolled = check(g.with_results([stacked(made), stacked(made[::-1]), made[2], stacked(made[3:7])]), [T])
    assert not any(n.op.name == "concat" for n in rolled.nodes)


def test_gradient_is_a_loop_whose_products_and_sums_wait_until_after_it() -> None:
    g, made = recurrence(lambda t, h, w, x: cell(row(x, t), h, w))
    loss = ops.reduce_sum(stacked(made) * stacked(made), (0, 1, 2))
    d = grad(g.with_results([loss]), (0, 1, 2))
    rolled = check(d, [T, T, T - 2])
    assert [sum(n.op.name == "matmul" for n in op.body.nodes) for op in loops(rolled)] == [1, 1]


def test_product_of_each_row_with_the_same_matrix_is_made_once() -> None:
    x, h, u = value("x", T, B, H), value("h", B, H), value("u", H, H)
    last = h
    for t in range(T):
        last = ops.tanh(ops.matmul(row(x, t), u) + last)
    rolled = check(Graph("g", (x, h, u), (last,)), [T])
    assert not any(n.op.name == "matmul" for n in loops(rolled)[0].body.nodes)


def test_two_carried_values_may_change_places() -> None:
    a, b, w = value("a", B, H), value("b", B, H), value("w", H, H)
    p, q = a, b
    for _ in range(T):
        p, q = ops.tanh(q), ops.matmul(p, w)
    check(Graph("g", (a, b, w), (p, q)), [T])


def test_turns_that_do_not_depend_on_each_other_are_one_step() -> None:
    x, w = value("x", T, B, H), value("w", H, H)
    rolled = check(
        Graph("g", (x, w), (stacked([ops.tanh(row(x, t)) * ops.matmul(row(x, t), w) for t in range(T)]),)), [T]
    )
    assert not loops(rolled)


# --- what is left alone, or in part ----------------------------------------------------------------------------------


def test_few_pointwise_steps_stay_written_out() -> None:
    x = value("x", B, H)
    y = x
    for _ in range(8):
        y = ops.tanh(y) * y
    check(Graph("g", (x,), (y,)), [])


def test_constant_that_changes_with_the_step_makes_no_loop() -> None:
    g, _ = recurrence(lambda t, h, w: ops.matmul(h, w) * number(h, 1.0 + t))
    check(g, [])


def test_constant_of_another_sign_of_zero_is_another_constant() -> None:
    g, _ = recurrence(lambda t, h, w: ops.matmul(h, w) * number(h, -0.0 if t == 4 else 0.0))
    check(g, [4, 4])


def test_step_that_differs_in_the_middle_splits_the_loop() -> None:
    g, _ = recurrence(lambda t, h, w: ops.tanh(ops.matmul(h, w)) if t != 4 else ops.exp(ops.matmul(h, w)))
    check(g, [4, 4])


def test_rows_read_out_of_order_make_no_loop() -> None:
    order = [0, 3, 1, 4, 2, 6, 5, 8, 7]
    g, _ = recurrence(lambda t, h, w, x: cell(row(x, order[t]), h, w))
    check(g, [])


def test_rows_two_apart_make_no_loop() -> None:
    g, _ = recurrence(lambda t, h, w, x: cell(row(x, 2 * t), h, w), turns=4)
    check(g, [])


def test_value_of_two_steps_ago_makes_no_loop() -> None:
    h, w = value("h", B, H), value("w", H, H)
    a, b = h, h
    for _ in range(T):
        a, b = ops.matmul(a, w) + b, a
    rolled = roll_up(g := Graph("g", (h, w), (a,)))
    arrays = [np.random.default_rng(0).normal(size=p.shape) for p in g.params]
    np.testing.assert_allclose(run(rolled, arrays)[0], run(g, arrays)[0])


def test_loop_in_a_loop_is_right() -> None:
    def step(t: int, h: Node, w: Node, x: Node) -> Node:
        for _ in range(5):
            h = ops.tanh(ops.matmul(h, w))
        return h + row(x, t)

    g, made = recurrence(step)
    rolled = roll_up(g.with_results([g.results[0], made[1]]))
    assert loops(rolled)
    arrays = [np.random.default_rng(0).normal(size=p.shape) for p in g.params]
    for a, b in zip(build(rolled)(arrays), run(g.with_results([g.results[0], made[1]]), arrays), strict=True):  # type: ignore[arg-type]
        np.testing.assert_allclose(a, b)


def test_first_value_of_all_is_no_constant_of_the_loop() -> None:
    h, w = value("h", B, H), value("w", H, H)
    first = None
    last = h
    for _ in range(T):
        last = ops.tanh(ops.matmul(last, w))
        first = first or last
        last = last + first
    check(Graph("g", (h, w), (last,)), [T - 1])


def test_sums_of_pieces_that_overlap_stay_sums() -> None:
    x = value("x", 2)
    zero = ops.const(x, 0.0, dt.float64)
    a, b, c = (x.emit(ops.Pad((k,), (2 - k,), (0,)), (x, zero)) for k in range(3))
    assert [n.op.name for n in stack_pieces(Graph("g", (x,), (a + c,))).nodes] == ["param", "concat"]
    assert "add" in [n.op.name for n in stack_pieces(Graph("g", (x,), (a + b,))).nodes]
    assert "add" in [n.op.name for n in stack_pieces(Graph("g", (x,), (a + x.emit(ops.Concat(0), (x, x)),))).nodes]


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_keep_their_values(seed: int) -> None:
    """Bodies of random steps over carried values and rows, with exceptions at random turns."""
    rng = np.random.default_rng(seed)
    turns = int(rng.integers(4, 11))
    x, y = value("x", turns, B, H), value("y", B, turns, H)
    carried = [value(f"c{k}", B, H) for k in range(int(rng.integers(1, 4)))]
    w = value("w", H, H)
    starts = list(carried)
    plan = [
        (int(rng.integers(0, 7)), int(rng.integers(0, 8)), int(rng.integers(0, 8))) for _ in range(rng.integers(2, 9))
    ]
    odd = int(rng.integers(0, 3 * turns))  # the turn that does something else, if it comes
    kept: list[Node] = []
    for t in range(turns):
        at = turns - 1 - t if seed % 3 == 0 else t
        pool = [*carried, row(x, at), row(y, t, 1)]
        for kind, p, q in plan:
            a, b = pool[p % len(pool)], pool[q % len(pool)]
            if t == odd:
                a = a + b
            pool.append(
                (
                    lambda a, b: ops.matmul(a, w), lambda a, b: ops.tanh(a), lambda a, b: a + b, lambda a, b: a * b,
                    lambda a, b: a - ops.broadcast(ops.reduce_max(b, (1,)), (B, H), (0,)),
                    lambda a, b: ops.select(Lt()(a, b), a, b),
                    lambda a, b: ops.transpose(ops.transpose(a, (1, 0)), (1, 0)),
                )[kind](a, b) * number(a, 0.5)
            )  # fmt: skip
        carried = pool[-len(carried) :]
        kept.append(pool[-1 - int(rng.integers(0, 1))])
    results = [*carried, stacked(kept), kept[turns // 2]]
    g = Graph("g", (x, y, w, *starts), tuple(results))
    arrays = [rng.normal(size=p.shape) for p in g.params]
    want = run(g, arrays)
    for form in (hoist(roll_up(stack_pieces(g))), optimize(g, loops=True)):
        for got, right in zip(run(form, arrays), want, strict=True):
            np.testing.assert_allclose(got, right, rtol=1e-8, atol=1e-8)
    for got, right in zip(build(g, optimize=True)(arrays), want, strict=True):  # type: ignore[arg-type]
        np.testing.assert_allclose(got, right, rtol=1e-8, atol=1e-8)
    real = [k for k, p in enumerate(g.params)]
    total = ops.reduce_sum(results[0] * results[0], (0, 1)) + ops.reduce_sum(results[-2], (0, 1, 2))
    d = grad(g.with_results([total]), real)
    want = run(d, arrays)
    for got, right in zip(build(d, optimize=True)(arrays), want, strict=True):  # type: ignore[arg-type]
        np.testing.assert_allclose(got, right, rtol=1e-7, atol=1e-7)


# --- recurrent layers ------------------------------------------------------------------------------------------------


class Own(nn.Module):
    """A cell in the user's own loop."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.LSTMCell(5, 6), nn.Linear(6, 5)

    def forward(self, x: Any) -> Any:
        h, c = tj.zeros(x.shape[1], 6), tj.zeros(x.shape[1], 6)
        y, outs = x[0], []
        for t in range(x.shape[0]):
            h, c = self.cell(x[t] + 0.1 * y, (h, c))
            y = tj.tanh(self.out(h))
            outs.append(y)
        return tj.stack(outs), None


LAYERS: dict[str, Callable[[], Any]] = {
    "rnn": lambda: nn.RNN(5, 6),
    "gru": lambda: nn.GRU(5, 6),
    "lstm": lambda: nn.LSTM(5, 6),
    "stacked": lambda: nn.LSTM(5, 6, num_layers=2),
    "both ways": lambda: nn.GRU(5, 6, bidirectional=True),
    "projected": lambda: nn.LSTM(5, 6, proj_size=3),
    "batch first": lambda: nn.LSTM(5, 6, batch_first=True),
    "own loop": Own,
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("threads", [1, 2])
def test_compiled_recurrent_layers_agree_with_eager(name: str, threads: int) -> None:
    tj.manual_seed(0)
    layer = LAYERS[name]()
    x = tj.randn(7, 7, 5)
    params = list(layer.parameters())

    def step(x: Any) -> Any:
        y = layer(x)[0]
        for p in params:
            p.grad = None
        (y * y).sum().backward()
        return y

    before = tj.get_num_threads()
    tj.set_num_threads(threads)
    try:
        want = step(x).detach().numpy().copy()
        gradients = [p.grad.numpy().copy() for p in params]
        fast = tj.compile(step)
        for _ in range(5):
            got = fast(x).detach().numpy()
        assert fast.compiled_calls >= 2
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
        for p, g in zip(params, gradients, strict=True):
            np.testing.assert_allclose(p.grad.numpy(), g, rtol=1e-4, atol=1e-5)
        (segment,) = fast.traces()[0].executable.plan.parts
        assert len(segment.loops) >= 2
    finally:
        config.update(threads=before)


def test_threads_do_not_change_the_bits_of_a_loop() -> None:
    tj.manual_seed(0)
    layer = nn.LSTM(24, 128)
    x = tj.randn(12, 32, 24)
    out: list[bytes] = []
    before = tj.get_num_threads()
    for threads in (1, 2):
        tj.set_num_threads(threads)
        fast = tj.compile(lambda x: layer(x)[0])
        with tj.no_grad():
            for _ in range(4):
                y = fast(x)
        out.append(y.numpy().tobytes())
    config.update(threads=before)
    assert out[0] == out[1]


def test_long_sequence_has_no_more_kernels_than_a_short_one() -> None:
    def kernels(turns: int) -> int:
        x, h, w = value("x", turns, B, H), value("h", B, H), value("w", H, H)
        last = h
        for t in range(turns):
            last = cell(row(x, t), last, w)
        d = grad(Graph("g", (x, h, w), (ops.reduce_sum(last, (0, 1)),)), (0, 1, 2))
        return len(build(d, optimize=True).kernels)

    assert kernels(200) == kernels(10)
