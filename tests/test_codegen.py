"""Native code gives what the interpreter gives: every op's samples, graphs that fuse, updates, checks, threads."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracejit.ops as ops
from tracejit import config
from tracejit.codegen.compile import Executable, build
from tracejit.codegen.llvm.cut import Cut
from tracejit.codegen.llvm.text import Module, i64, ptr
from tracejit.codegen.result import Miss
from tracejit.errors import BackendError
from tracejit.ir import dtype as dt
from tracejit.ir.dim import Sym
from tracejit.ir.graph import Graph, param, run
from tracejit.ir.node import Node, expand_to
from tracejit.ir.op import Op
from tracejit.ir.types import TensorType
from tracejit.ops.movement import Concat, Slice
from tracejit.passes.bind import bound_op
from tracejit.passes.grad import pullback
from tracejit.runtime import engine

TOLERANCE = {"f16": 4e-3, "bf16": 3e-2, "f32": 5e-6, "f64": 1e-13}


def params(*arrays: Any) -> tuple[Node, ...]:
    return tuple(
        param(f"x{i}", TensorType(dt.from_numpy(np.asarray(a).dtype), np.shape(a))) for i, a in enumerate(arrays)
    )


def graph_of(function: Callable[..., Any], *arrays: Any) -> Graph:
    xs = params(*arrays)
    out = function(*xs)
    return Graph("f", xs, tuple(out) if isinstance(out, tuple) else (out,))


def assert_same(got: Any, want: Any) -> None:
    got, want = np.asarray(got), np.asarray(want)
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    if (d := dt.from_numpy(got.dtype)).kind != "f":
        np.testing.assert_array_equal(got, want)
    else:
        scale = TOLERANCE[d.name]
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=scale, atol=scale / 10)


def check(function: Callable[..., Any], *arrays: Any) -> Executable:
    graph = graph_of(function, *arrays)
    f = build(graph)
    for got, want in zip(f(arrays), run(graph, arrays), strict=True):
        assert_same(got, want)
    return f


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


# ---------------------------------------------------------------- every op


@pytest.mark.parametrize("name", sorted(set(Op.registry) - {"nonzero"}))
def test_every_sample_of_an_op_agrees_with_its_numpy_meaning(name: str) -> None:
    xs: list[Node] = []
    results: list[Node] = []
    arrays: list[Any] = []
    for sample in Op.registry[name].samples(np.random.default_rng(0)):  # all in one graph: one compilation
        inputs = [np.asarray(a) for a in sample.inputs]
        sizes = {symbol: inputs[i].shape[axis] for i, axis, symbol in sample.dims}
        op = bound_op(sample.op, sizes)
        own = params(*inputs)
        made = Node.build(op, own)
        xs += own
        arrays += inputs
        results += made if isinstance(made, tuple) else [made]
    graph = Graph("f", tuple(xs), tuple(results))
    for got, want in zip(build(graph)(arrays), run(graph, arrays), strict=True):
        assert_same(got, want)


# ---------------------------------------------------------------- fusion


def softmax(x: Any) -> Any:
    keep = list(range(len(x.shape) - 1))
    m = ops.broadcast(ops.reduce_max(x, (len(x.shape) - 1,)), x.shape, keep)
    e = ops.exp(x - m)
    return e / ops.broadcast(ops.reduce_sum(e, (len(x.shape) - 1,)), x.shape, keep)


def layer_norm(x: Any, w: Any, b: Any) -> Any:
    n = x.shape[-1]
    mean = ops.broadcast(ops.reduce_sum(x, (1,)) / n, x.shape, (0,))
    centred = x - mean
    var = ops.reduce_sum(centred * centred, (1,)) / n
    rstd = ops.broadcast(1.0 / ops.sqrt(var + 1e-5), x.shape, (0,))
    return centred * rstd * expand_to(w, x.shape) + expand_to(b, x.shape)


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (2, 5), (7, 16), (5, 17), (4, 100), (33, 257), (0, 4)])
def test_softmax_is_one_kernel(shape: tuple[int, ...]) -> None:
    f = check(softmax, normal(*shape))
    assert len(f.kernels) == 1
    assert not f.host_ops


def test_softmax_of_a_row_of_nan_and_infinity() -> None:
    x = normal(4, 9)
    x[0, 3], x[1, 2], x[2, :], x[3, 4] = np.nan, -np.inf, -np.inf, np.inf
    with np.errstate(all="ignore"):
        check(softmax, x)


@pytest.mark.parametrize("n", [1, 8, 31, 256])
def test_layer_norm_is_one_kernel(n: int) -> None:
    f = check(layer_norm, normal(6, n), normal(n, seed=1), normal(n, seed=2))
    assert len(f.kernels) == 1


def test_batch_norm_statistics_and_apply_are_one_kernel() -> None:
    def batch_norm(x: Any) -> Any:
        n = x.shape[0] * x.shape[2] * x.shape[3]
        mean = ops.reduce_sum(x, (0, 2, 3)) / n
        centred = x - ops.broadcast(mean, x.shape, (1,))
        var = ops.reduce_sum(centred * centred, (0, 2, 3)) / n
        return centred / ops.broadcast(ops.sqrt(var + 1e-5), x.shape, (1,)), mean, var

    f = check(batch_norm, normal(4, 5, 6, 7))
    assert len(f.kernels) == 1


def test_movement_is_free() -> None:
    f = check(lambda x, y: ops.transpose(x + 1.0, (1, 0)) * ops.flip(y, (1,)), normal(5, 30), normal(30, 5))
    assert len(f.kernels) == 1


def test_reshape_in_the_middle_of_a_chain_splits_the_loop() -> None:
    f = check(lambda x: ops.exp(ops.reshape(ops.exp(ops.reshape(x * 2.0, (6, 10))), (4, 15))), normal(60))
    assert len(f.kernels) <= 2
    f = check(lambda x, y: ops.reshape(x + 1.0, (24,)) * y, normal(4, 6), normal(24))
    assert len(f.kernels) == 1


def test_pad_slice_concat() -> None:
    def f(x: Any, y: Any) -> Any:
        padded = ops.pad(x * 2.0, (1, 2), (0, -1), (0, 1))
        return ops.slice_(padded, (0, 1), padded.shape, (1, 2)), ops.concat((x, y, x), 1)

    check(f, normal(5, 19), normal(5, 3))


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("padding", [0, 1, 2])
def test_convolutions_and_their_gradients_with_padding_and_stride(stride: int, padding: int) -> None:
    def f(x: Any, w: Any) -> Any:
        low = (0, 0, 0, padding, padding)
        y = ops.conv(ops.pad(x, low, low), w, (stride, stride), (1, 1))
        dx, dw = pullback((y,), (ops.cos(y),), (x, w))
        return y, dx, dw

    x, w = normal(2, 2, 3, 9, 8), normal(2, 4, 3, 3, 3, seed=1)
    f_ = check(f, x.astype(np.float64), w.astype(np.float64))
    assert not f_.host_ops


def test_values_read_twice_are_computed_once() -> None:
    def f(x: Any) -> Any:
        e = ops.exp(x)
        return ops.reduce_sum(e, (0,)), ops.reduce_sum(e * e, (1,)), e

    check(f, normal(40, 50))


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2), ()])
@pytest.mark.parametrize("shape", [(3, 4, 5), (2, 17, 33), (1, 1, 70), (9, 1, 1), (5, 64, 2)])
def test_reductions_over_any_axes(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    check(lambda x: (ops.reduce_sum(x * x, axes), ops.reduce_max(x, axes), ops.reduce_min(x, axes)), normal(*shape))


@pytest.mark.parametrize("size", [0, 1, 2, 7, 8, 15, 16, 17, 31, 33, 100, 4096, 4097, 10001])
def test_sizes(size: int) -> None:
    check(lambda x, y: (ops.tanh(x * y) + 1.0, x < y), normal(size), normal(size, seed=1))


def test_not_contiguous_and_broadcast_inputs() -> None:
    x = normal(8, 12)
    graph = graph_of(lambda a, b: a * b + 1.0, x[:, :6], x[:, 6:])
    f = build(graph)
    for a, b in ((x[:, ::2], x[:, 1::2]), (x[:, :6], np.broadcast_to(x[0, :6], (8, 6))), (x.T[:6].T, x[:, 6:])):
        np.testing.assert_array_equal(f([a, b])[0], a * b + np.float32(1))


def test_inputs_of_a_subclass_of_arrays() -> None:
    a = normal(4, 6).view(np.recarray)
    f = build(graph_of(lambda x: x * 2, a))
    for _ in range(2):
        assert_same(f([a])[0], np.asarray(a) * 2)


def test_results_that_are_parameters_repeated_or_reshaped() -> None:
    x = normal(4, 6)
    graph = graph_of(lambda a: (a, (b := a + 1.0), b, ops.reshape(b, (24,)), ops.reshape(a, (6, 4))), x)
    out = build(graph)([x])
    for got, want in zip(out, run(graph, [x]), strict=True):
        assert_same(got, want)
    assert not any(np.shares_memory(a, b) for i, a in enumerate([*out, x]) for b in out[:i])


def test_mixed_dtypes_in_one_kernel() -> None:
    def f(x: Any, k: Any, h: Any) -> Any:
        return (
            ops.select(k < 3, ops.cast(x, dt.float64), ops.cast(k, dt.float64)),
            ops.cast(h, dt.float32) * x,
            k // 2 % 3,
        )

    check(f, normal(50), np.arange(50) - 20, normal(50, seed=3).astype(np.float16))


def test_symbolic_extents_are_compiled_for_each_shape() -> None:
    n = Sym("n")
    x = param("x", TensorType(dt.float32, (n, 3)))
    f = build(Graph("f", (x,), (ops.reduce_sum(x * 2.0, (0,)),), ((1, "n", 100),)))
    for rows in (1, 5, 64, 5):
        a = normal(rows, 3)
        np.testing.assert_allclose(f([a])[0], (a * 2).sum(0), rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------- updates and checks


def adam(p: Any, g: Any, m: Any, v: Any) -> Any:
    m2 = m * 0.9 + g * 0.1
    v2 = v * 0.999 + g * g * 0.001
    return p - m2 * 0.01 / (ops.sqrt(v2) + 1e-8), m2, v2


@pytest.mark.parametrize("shape", [(0,), (1,), (5,), (33, 7), (5000,)])
def test_updates_happen_in_place_in_one_kernel(shape: tuple[int, ...]) -> None:
    p, g, m, v = (normal(*shape, seed=i) for i in range(4))
    v = np.abs(v)
    graph = graph_of(adam, p, g, m, v)
    want = run(graph, [p, g, m, v])
    f = build(graph, updates={0: 0, 1: 2, 2: 3})
    assert f([p, g, m, v]) == ()
    for got, w in zip((p, m, v), want, strict=True):
        assert_same(got, w)
    assert len(f.kernels) == 1 or p.size == 0


@pytest.mark.parametrize("mode", ["set", "add"])
@pytest.mark.parametrize("op", [ops.scatter, ops.scatter_along])
def test_a_scatter_into_what_it_updates_writes_only_its_places(op: Any, mode: str) -> None:
    x, new = normal(40, 70), normal(3, 70, seed=1)
    at = np.array([7, 0, 7]) if op is ops.scatter else np.array([[7], [0], [7]]).repeat(70, 1)
    graph = graph_of(lambda x, at, new: (op(x, at, new, 0, mode), ops.reduce_sum(x, (0,))), x, at, new)
    f, (want, seen) = build(graph, updates={0: 0}), run(graph, [x, at, new])
    (line,) = [line for line in str(f.plain).splitlines() if "scatter" in line]
    assert line.count("external 0") == 2, line
    mine = x.copy()
    (other,) = f([mine, at, new])
    assert_same(mine, want)
    assert_same(other, seen)


def test_an_updated_value_that_is_read_elsewhere_is_read_first() -> None:
    def f(p: Any, x: Any) -> Any:
        return p + 1.0, ops.reduce_sum(p * x, (0,)), ops.flip(p, (0,)), p

    p, x = normal(40), normal(40, seed=1)
    graph = graph_of(f, p, x)
    want = run(graph, [p.copy(), x])
    got = build(graph, updates={0: 0})([p, x])
    for a, b in zip((p, *got), want, strict=True):
        assert_same(a, b)


def test_an_update_that_reads_other_elements_is_not_made_in_place() -> None:
    p = normal(50)
    want = p[::-1] * 2
    assert build(graph_of(lambda a: ops.flip(a, (0,)) * 2.0, p), updates={0: 0})([p]) == ()
    np.testing.assert_array_equal(p, want)


@pytest.mark.parametrize("n", [5, 64, 300])
def test_updates_at_the_end_of_row_kernels(n: int) -> None:
    def f(p: Any, q: Any, x: Any) -> Any:
        s = softmax(p * 0.5)
        total = ops.reduce_sum(s * x, (1,))
        return p - s * ops.broadcast(total, p.shape, (0,)), q * 0.9 + total, s

    p, q, x = normal(7, n), normal(7, seed=1), normal(7, n, seed=2)
    want = run(graph_of(f, p, q, x), [p, q, x])
    got = build(graph_of(f, p, q, x), updates={0: 0, 1: 1})([p, q, x])
    for a, b in zip((p, q, *got), want, strict=True):
        assert_same(a, b)


def test_parameters_swap() -> None:
    p, q = normal(9), normal(9, seed=1)
    a, b = p.copy(), q.copy()
    build(graph_of(lambda x, y: (y, x), p, q), updates={0: 0, 1: 1})([a, b])
    np.testing.assert_array_equal(a, q)
    np.testing.assert_array_equal(b, p)


def test_parameters_rotate_with_one_of_them_computed() -> None:
    p, q, r = (normal(9, seed=i) for i in range(3))
    a, b, c = p.copy(), q.copy(), r.copy()
    build(graph_of(lambda x, y, z: (y, z, x + 1.0), p, q, r), updates={0: 0, 1: 1, 2: 2})([a, b, c])
    np.testing.assert_array_equal(a, q)
    np.testing.assert_array_equal(b, r)
    np.testing.assert_array_equal(c, p + np.float32(1))


def test_an_update_is_also_returned() -> None:
    p = normal(20)
    graph = graph_of(lambda x: ((y := x * 2.0), y, ops.reshape(y, (4, 5))), p)
    want = p * 2
    got = build(graph, updates={0: 0})([p])
    np.testing.assert_array_equal(p, want)
    np.testing.assert_array_equal(got[0], want)
    np.testing.assert_array_equal(got[1], want.reshape(4, 5))
    assert not np.shares_memory(got[0], p)


def test_updates_of_arrays_that_are_not_contiguous_or_overlap_an_input() -> None:
    x = normal(6, 8)
    f = build(graph_of(lambda p, y: p + y, x[:, :4], x[:, 4:]), updates={0: 0})
    want = x[:, :4] + x[:, 4:]
    rest = x[:, 4:].copy()
    f([x[:, :4], x[:, 4:]])
    np.testing.assert_array_equal(x[:, :4], want)
    np.testing.assert_array_equal(x[:, 4:], rest)
    y = normal(20)
    want = y[:10] + np.float32(1) + y[5:15]
    g = build(graph_of(lambda p, q: p + 1.0 + q, y[:10], y[5:15]), updates={0: 0})
    g([y[:10], y[5:15]])
    np.testing.assert_array_equal(y[:10], want)


def test_arrays_may_change_from_call_to_call() -> None:
    f = build(graph_of(lambda p, x: (p + x, x * 2.0), normal(6), normal(6)), updates={0: 0})
    p, other = normal(12), normal(6, seed=1)
    for x in (other, other, p[3:9], normal(6, seed=2), p[3:9], other):
        target = p[:6]
        want, twice = target + x, x * 2
        (got,) = f([target, x])
        np.testing.assert_array_equal(p[:6], want)
        np.testing.assert_array_equal(got, twice)


def test_arrays_that_do_not_fit_are_refused() -> None:
    f = build(graph_of(lambda p: p + 1.0, normal(6)), updates={0: 0})
    frozen = normal(6)
    frozen.flags.writeable = False
    for wrong in ([normal(7)], [normal(6).astype(np.float64)], [], [frozen]):
        with pytest.raises(BackendError):
            f(wrong)


@pytest.mark.parametrize("backend", ["interpret", "llvm"])
def test_a_failed_check_stops_before_any_write(backend: str) -> None:
    def f(p: Any, x: Any) -> Any:
        return p + 1.0, ops.reduce_sum(x, (0,)) < 0.0, ops.cast(ops.reduce_max(x, (0,)), dt.int64)

    p, x = normal(30), np.abs(normal(30, seed=1))
    before = p.copy()
    f_ = build(graph_of(f, p, x), updates={0: 0}, checks=((1, False), (2, int(x.max()))), backend=backend)
    assert f_([p, x]) == ()
    np.testing.assert_array_equal(p, before + np.float32(1))
    p[:] = before
    miss = f_([p, -x])
    assert isinstance(miss, Miss)
    assert (miss.check, bool(miss.value)) == (0, True)
    np.testing.assert_array_equal(p, before)
    miss = f_([p, x + np.float32(10)])
    assert isinstance(miss, Miss)
    assert (miss.check, miss.value) == (1, int((x + 10).max()))
    np.testing.assert_array_equal(p, before)


def test_checks_compare_bits() -> None:
    x = np.array(-0.0, np.float32)
    graph = graph_of(lambda a: a + 0.0 * a, x)
    f = build(graph, checks=((0, 0.0),))
    assert isinstance(f([x]), Miss)
    assert f([np.array(0.0, np.float32)]) == ()
    nan = build(graph, checks=((0, math.nan),))
    assert nan([np.array(np.nan, np.float32)]) == ()


def test_a_check_of_a_parameter() -> None:
    x = np.array(3, np.int64)
    f = build(graph_of(lambda n, y: (n, y + 1.0), x, normal(3)), checks=((0, 3),))
    assert len(f([x, normal(3)])) == 1  # type: ignore[arg-type]
    assert isinstance(f([np.array(4), normal(3)]), Miss)


def test_host_steps_stand_between_native_ones() -> None:
    def f(x: Any) -> Any:
        y, order = ops.sort(ops.exp(x), 0)
        return y * 2.0, order + 1, ops.reduce_sum(ops.lgamma(y + 1.0), (0,))

    check(f, normal(37))


# ---------------------------------------------------------------- threads


def test_one_and_two_threads_give_the_same_bits() -> None:
    x = normal(64, 3000)
    graph = graph_of(lambda a: (softmax(a), ops.reduce_sum(a * a, (0,)), ops.reduce_sum(a, (0, 1)), a + 1.0), x)
    f = build(graph)
    with config.override(threads=1):
        one = f([x])
    with config.override(threads=2):
        two = f([x])
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("shape", [(1024, 300), (700, 513), (40, 1300), (4096, 70), (6, 512, 257)])
def test_sums_of_columns_take_rows_as_they_lie(shape: tuple[int, ...]) -> None:
    x, y = np.round(4 * normal(*shape)), np.round(normal(*shape, seed=1).astype(np.float64))  # so that sums are exact
    down = tuple(range(len(shape) - 1))

    def columns(a: Any, b: Any) -> tuple[Any, ...]:
        wide = ops.cast(a, dt.float64)
        sums = ops.reduce_sum(a, down), ops.reduce_sum(wide * b, down), ops.reduce_sum(a * a, (0,))
        return (*sums, ops.reduce_max(a, down))

    f = check(columns, x, y)
    with config.override(threads=1):
        one = f([x, y])
    with config.override(threads=2):
        two = f([x, y])
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a, b)


def test_functions_of_long_rows_are_taken_four_registers_at_a_time() -> None:
    def width(f: Any, *shape: int) -> int:
        (kernel,) = check(f, normal(*shape)).kernels
        return Cut(kernel, engine.vector_bits()).width * 32 // engine.vector_bits()

    assert width(softmax, 40, 1024) == 4
    assert width(softmax, 40, 300) == 2
    assert width(lambda a: a * ops.broadcast(ops.exp(ops.reduce_sum(a, (1,)) * 0.01), a.shape, [0]), 40, 1024) == 2


@pytest.mark.parametrize(("rows", "together"), [(400, 4), (402, 2), (401, 1)])
def test_sums_of_columns_take_several_rows_at_once_where_they_divide(rows: int, together: int) -> None:
    x = np.round(4 * normal(rows, 600))
    f = check(lambda a: ops.reduce_sum(a, (0,)), x)
    (kernel,) = f.kernels
    assert Cut(kernel, engine.vector_bits()).is_deep
    assert Cut(kernel, engine.vector_bits()).rows_at_once == together


@pytest.mark.parametrize("part", [16, 48, 7, 1])
def test_parts_side_by_side_and_their_gradient(part: int) -> None:
    x, g = normal(5, 3 * part), normal(5, 3 * part, seed=1)
    shape = (5, part)

    def split_and_join(x: Any, g: Any) -> tuple[Any, ...]:
        a, b, c = (Slice((0, k * part), (5, (k + 1) * part), (1, 1))(x) for k in range(3))
        y = Concat(1)(ops.exp(a), b * c, ops.reshape(ops.transpose(a, (1, 0)), shape))
        (dx,) = pullback((y,), (g,), (x,))
        return y, dx

    check(split_and_join, x, g)


@pytest.mark.parametrize("shape", [(1000, 37), (64, 130), (5, 3), (2, 3, 4, 5), (4096,)])
def test_random_words_are_numpys_wherever_vectors_begin(shape: tuple[int, ...]) -> None:
    state = np.array([-0x1234_5678_9ABC, 2**34 + 5], np.int64)

    def words(state: Node) -> tuple[Node, ...]:
        bits = ops.random_bits(state, shape)
        turned = ops.transpose(ops.random_bits(state, shape), tuple(reversed(range(len(shape)))))
        return bits, turned + 0, ops.cast(bits, dt.float64) * 0.5

    check(words, state)


def test_a_long_chain_is_scheduled_without_recursion() -> None:
    def f(x: Any) -> Any:
        y = x
        for k in range(3000):
            y = y * 0.999 + float(k % 7)
        return y

    check(f, normal(10))


def test_a_load_is_written_once_until_something_is_written() -> None:
    f = Module().function("f", None, {"p": ptr, "q": ptr})
    p, q = f.args
    first = f.load(i64, p)
    assert f.load(i64, p).name == first.name
    f.store(first, q)
    second = f.load(i64, p)
    assert second.name != first.name
    f.call("elsewhere", None, p)
    assert f.load(i64, p).name != second.name
    with f.loop(0, 3):
        inside = f.load(i64, p)
    assert f.load(i64, p).name != inside.name
