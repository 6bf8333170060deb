"""What passes promise: gradients are derivatives, halves make the whole, dumps and checks happen where asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracejit.ops
from tracejit import config
from tracejit.errors import AutogradError, IRError
from tracejit.ir import dtype as dt
from tracejit.ir.graph import Graph, param, run
from tracejit.ir.node import Node
from tracejit.ir.op import ArrayConst
from tracejit.ir.parser import parse
from tracejit.ir.printer import to_text
from tracejit.ir.types import TensorType
from tracejit.ir.verify import verify
from tracejit.ops.contract import matmul
from tracejit.ops.control import stop_gradient
from tracejit.ops.order import Sort
from tracejit.ops.pointwise import Exp, exp, maximum, sin, tanh
from tracejit.ops.reduce import reduce_sum
from tracejit.ops.source import full
from tracejit.passes import pipeline
from tracejit.passes.dedupe import dedupe
from tracejit.passes.fold import LARGEST, fold
from tracejit.passes.grad import grad, pullback, vjp_graph
from tracejit.passes.pipeline import Pass, optimize
from tracejit.passes.remat import split
from tracejit.passes.rewrite import rewrite

F = TensorType(dt.float64, (3, 4))
RNG = np.random.default_rng(0)


def scalar(name: str, f: Callable[..., Any], *types: TensorType) -> Graph:
    params = [param(f"x{i}", t) for i, t in enumerate(types)]
    y = f(*params)
    return Graph(name, tuple(params), (reduce_sum(y, tuple(range(len(y.shape)))),))


def mlp(x: Any, w: Any, v: Any) -> Any:
    h = tanh(matmul(x, w))
    return maximum(matmul(h, v), 0.0) * h.type.shape[0]


MLP = scalar("mlp", mlp, TensorType(dt.float64, (5, 3)), TensorType(dt.float64, (3, 4)), TensorType(dt.float64, (4, 2)))


def draw(g: Graph) -> list[np.ndarray]:
    return [RNG.normal(size=p.shape) for p in g.params]


def differences(g: Graph, args: list[np.ndarray], i: int) -> np.ndarray:
    """d g / d args[i] by central differences."""
    out = np.zeros_like(args[i])
    for at in np.ndindex(out.shape):
        values = []
        for h in (1e-6, -1e-6):
            moved = [a.copy() for a in args]
            moved[i][at] += h
            values.append(run(g, moved)[0])
        out[at] = (values[0] - values[1]) / 2e-6
    return out


# --- the gradient --------------------------------------------------------------------------------------------------


def test_gradient_is_the_derivative() -> None:
    g = grad(MLP, (0, 1, 2))
    verify(g)
    args = draw(MLP)
    for i, got in enumerate(run(g, args)):
        np.testing.assert_allclose(got, differences(MLP, args, i), rtol=1e-5, atol=1e-7)


def test_gradient_of_a_gradient() -> None:
    cube = scalar("cube", lambda x: x * x * x, F)
    first = grad(cube, (0,))
    total = first.with_results((reduce_sum(first.results[0], (0, 1)),))
    args = draw(cube)
    np.testing.assert_allclose(run(grad(total, (0,)), args)[0], 6 * args[0])


def test_gradient_is_summed_over_readers() -> None:
    g = grad(scalar("f", lambda x: x * x + sin(x) + x, F), (0,))
    args = draw(g)
    np.testing.assert_allclose(run(g, args)[0], 2 * args[0] + np.cos(args[0]) + 1)


def test_gradient_stops_where_asked() -> None:
    g = grad(scalar("f", lambda x: stop_gradient(exp(x)) * x, F), (0,))
    args = draw(g)
    np.testing.assert_allclose(run(g, args)[0], np.exp(args[0]))


def test_gradient_through_an_op_with_several_results() -> None:
    def sorted_and_weighed(x: Any) -> Any:
        values, indices = Sort(1, False, True)(x)
        return values * indices.emit(tracejit.ops.pointwise.Cast(dt.float64), (indices,))

    f = scalar("f", sorted_and_weighed, F)
    args = draw(f)
    np.testing.assert_allclose(run(grad(f, (0,)), args)[0], differences(f, args, 0), rtol=1e-6, atol=1e-6)


def test_only_real_scalars_have_gradients_without_cotangents() -> None:
    x, k = param("x", F), param("k", TensorType(dt.int64, ()))
    with pytest.raises(AutogradError, match=r"gives \(f64\[3, 4\]\)"):
        grad(Graph("g", (x,), (x,)), (0,))
    with pytest.raises(AutogradError, match=r"is i64\[\]; only real parameters have gradients"):
        grad(Graph("g", (k, x), (reduce_sum(x, (0, 1)),)), (0,))


def test_gradient_with_cotangents_of_several_results() -> None:
    x = param("x", F)
    a, b = x * x, sin(x)
    g = grad(Graph("g", (x,), (a, b)), (0,), cotangents=(full(a, 2.0, a.type), None))
    args = draw(g)
    np.testing.assert_allclose(run(g, args)[0], 4 * args[0])


def test_what_does_not_matter_has_gradient_zero() -> None:
    g = grad(scalar("f", lambda x, y: x * 1.0, F, F), (0, 1))
    assert not run(g, draw(g))[1].any()


def test_pullback_to_a_node_inside() -> None:
    x = param("x", F)
    h = sin(x)
    y = h * h
    dy_dh, dy_dx = pullback((y,), (full(y, 1.0, y.type),), (h, x))
    args = draw(Graph("g", (x,), (y,)))
    got = run(Graph("g", (x,), (dy_dh, dy_dx)), args)
    np.testing.assert_allclose(got[0], 2 * np.sin(args[0]))
    np.testing.assert_allclose(got[1], 2 * np.sin(args[0]) * np.cos(args[0]))


def test_vjp_graph_takes_a_cotangent_for_each_real_result() -> None:
    x = param("x", F)
    g = Graph("g", (x,), (x * x, x < 0.0, sin(x)))
    v = vjp_graph(g, (0,))
    verify(v)
    assert [p.op.label for p in v.params] == ["x", "g0", "g2"]
    x_, g0, g2 = draw(v)
    np.testing.assert_allclose(run(v, [x_, g0, g2])[0], 2 * x_ * g0 + np.cos(x_) * g2)


def test_gradient_nodes_come_from_the_users_lines() -> None:
    x = param("x", F)
    y = sin(x)
    y.where = "model.py:7"
    z = reduce_sum(y, (0, 1))
    z.where = "model.py:8"
    g = grad(Graph("g", (x,), (z,)), (0,))
    assert {n.where for n in g.nodes if n.id > z.id and n.inputs} == {"model.py:7", "model.py:8"}


# --- keep or recompute ---------------------------------------------------------------------------------------------


def halves(g: Graph, wrt: tuple[int, ...]) -> tuple[Any, Graph]:
    v = vjp_graph(g, wrt)
    return split(g.results, v.results, g.params, v.params[len(g.params) :], name=g.name), v


def test_halves_make_the_whole() -> None:
    both, whole = halves(MLP, (0, 1, 2))
    verify(both.forward)
    verify(both.backward)
    args = draw(MLP)
    cotangent = np.float64(1.5)
    results = run(both.forward, args)
    np.testing.assert_array_equal(results[0], run(MLP, args)[0])
    for a, b in zip(run(both.backward, [cotangent, *results[1:]]), run(whole, [*args, cotangent]), strict=True):
        np.testing.assert_array_equal(a, b)


def test_forward_and_backward_list_the_saved_values_alike() -> None:
    both, _ = halves(MLP, (0,))
    assert both.forward.results[1:] == both.saved
    assert [p.type for p in both.backward.params[1:]] == [s.type for s in both.saved]


def test_cheap_chains_are_computed_again_from_parameters() -> None:
    both, _ = halves(scalar("f", lambda x: (x * 2.0 + 1.0) * (x - 3.0), F), (0,))
    assert both.saved == both.forward.params


def test_a_small_mask_is_kept_rather_than_a_large_value() -> None:
    f = scalar("f", lambda x: maximum(exp(x), 1.0), F)
    both, _ = halves(f, (0,))
    large = [s for s in both.saved if s.dtype is dt.float64 and s not in both.forward.params]
    assert len(large) == 1  # exp(x) gives both masks again


def test_symbols_are_weighed() -> None:
    g = parse(
        "graph @f(%x: f32[n, 4]) -> f32[] where 1 <= n <= 99 {\n"
        "  %0 = exp(%x) : f32[n, 4]\n  %1 = reduce_sum(%0, axes=[0, 1]) : f32[]\n  return %1\n}"
    )
    both, _ = halves(g, (0,))
    verify(both.backward)
    assert [s.op for s in both.saved] == [Exp()]


def test_a_forward_result_cannot_depend_on_a_cotangent() -> None:
    x, c = param("x", F), param("c", F)
    with pytest.raises(IRError, match="depends on a cotangent"):
        split((x * c,), (), (x,), (c,))


# --- fold, dedupe, order -------------------------------------------------------------------------------------------


def test_fold_leaves_large_arrays_alone() -> None:
    n = LARGEST + 1
    t = f"i64[{n}]"
    text = f"graph @f() -> {t} {{\n  %0 = const(1) : {t}\n  %1 = cumsum(%0, axis=0) : {t}\n  return %1\n}}\n"
    assert to_text(fold(parse(text))) == text


def test_fold_keeps_the_bits() -> None:
    g = fold(
        parse("graph @f() -> f32[3] {\n  %0 = const(1.0) : f32[3]\n  %1 = cumsum(%0, axis=0) : f32[3]\n  return %1\n}")
    )
    (constant,) = g.results
    assert isinstance(constant.op.value, ArrayConst)
    np.testing.assert_array_equal(run(g, ())[0], np.array([1, 2, 3], np.float32))


def test_dedupe_merges_equal_arrays_of_different_owners() -> None:
    from tracejit.ops.source import Const

    nodes = [Node.of(Const(ArrayConst(np.arange(3.0)), TensorType(dt.float64, (3,))), ()) for _ in range(2)]
    a, b = dedupe(Graph("g", (), tuple(nodes))).results
    assert a is b


def test_passes_share_what_they_do_not_touch() -> None:
    x = param("x", F)
    g = Graph("g", (x,), (tanh(sin(x)),))
    assert optimize(g).results == g.results


def test_passes_keep_the_programs_order() -> None:
    x, y = param("x", F), param("y", F)
    a = -(-x)  # noqa: B002
    b = sin(y)
    c = a * b
    d = sin(c)
    e = tanh(c)
    names = [n.op.name for n in rewrite(Graph("g", (x, y), (d, e)), pipeline.EXACT).nodes]
    assert names == ["param", "param", "sin", "mul", "sin", "tanh"]


# --- the pipeline --------------------------------------------------------------------------------------------------


def test_other_roundings_only_where_allowed() -> None:
    x = param("x", F)
    g = Graph("g", (x,), (x / 3.0,))
    assert optimize(g).results[0].op.name == "div"
    assert optimize(g, exact_only=False).results[0].op.name == "mul"


def test_optimize_is_done_at_once() -> None:
    once = optimize(grad(MLP, (0, 1, 2)))
    assert to_text(optimize(once)) == to_text(once)


def test_optimize_dumps_each_step_and_what_fired(tmp_path: Path) -> None:
    x = param("x", F)
    with config.override(dump=str(tmp_path / "new")):
        optimize(Graph("g", (x,), (-(-x),)))  # noqa: B002
        optimize(Graph("g", (x,), (x,)))
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == ["g.0", "g.1"]
    files = sorted((tmp_path / "new" / "g.0").iterdir())
    assert [f.name for f in files] == [
        "00.input.ir",
        *(f"{i:02}.{p.name}.ir" for i, p in enumerate(pipeline.PIPELINE, 1)),
    ]
    algebra = next(f for f in files if "algebra" in f.name).read_text()
    assert algebra.startswith("# double_neg fired 1 times\n")
    assert parse(algebra).results[0].op.name == "param"


def test_optimize_verifies_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(g: Graph) -> Graph:
        return g.with_results([Node(g.results[0].op, g.results[0].inputs, TensorType(dt.bool_, ()))])

    monkeypatch.setattr(pipeline, "PIPELINE", (Pass("spoil", lambda g, _: spoil(g), lambda g, _: spoil(g)),))
    g = Graph("g", (x := param("x", F),), (tanh(x),))
    optimize(g)
    with config.override(verify_passes=True), pytest.raises(IRError, match="after pass spoil: @g: tanh gives"):
        optimize(g)
