"""Kernels as Python source give what the interpreter gives: as plain Python, by njit, and in the CUDA simulator."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracejit.ops as ops
from tracejit.codegen.compile import Executable, build
from tracejit.codegen.numba import cpu
from tracejit.codegen.numba.source import write
from tracejit.codegen.result import Miss
from tracejit.codegen.schedule import Launch
from tracejit.ir import dtype as dt
from tracejit.ir.dim import Sym
from tracejit.ir.graph import Graph, param, run
from tracejit.ir.node import Node
from tracejit.ir.op import Op, Sample
from tracejit.ir.types import TensorType
from tracejit.ops.composed.loss import cross_entropy
from tracejit.ops.composed.reduction import softmax
from tracejit.passes.bind import bound_op
from tracejit.passes.grad import grad

TOLERANCE = {"f16": 4e-3, "bf16": 3e-2, "f32": 5e-6, "f64": 1e-13}


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def graph_of(function: Callable[..., Any], *arrays: Any) -> Graph:
    types = [TensorType(dt.from_numpy(np.asarray(a).dtype), np.shape(a)) for a in arrays]
    xs = tuple(param(f"x{i}", t) for i, t in enumerate(types))
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


def check(graph: Graph, *arrays: Any) -> Executable:
    f = build(graph, backend="numba")
    for got, want in zip(f(arrays), run(graph, arrays), strict=True):
        assert_same(got, want)
    return f


def as_graph(sample: Sample) -> tuple[Graph, list[Any]]:
    inputs = [np.asarray(a) for a in sample.inputs]
    sizes = {symbol: inputs[i].shape[axis] for i, axis, symbol in sample.dims}
    op = bound_op(sample.op, sizes)
    return graph_of(lambda *xs: Node.build(op, xs), *inputs), inputs


# ---------------------------------------------------------------- the text


def test_softmax_reads_as_three_loops_over_a_row() -> None:
    (step,) = cpu.plan(graph_of(lambda x: softmax(x, 1), normal(33, 257))).steps
    assert isinstance(step, Launch)
    assert str(write(step.kernel)) == SOFTMAX


SOFTMAX = """\
# each point: max of 257; sub exp, sum of 257; div
def kernel(lo, hi, x0, y2):  # x0: f32, y2: f32
    row1 = np.empty(257, np.float32)
    for i0 in range(lo, hi):
        max0 = np.float32(-np.inf)
        for i1 in range(257):
            v0 = x0[257*i0 + i1]
            max0 = v0 if v0 > max0 or v0 != v0 else max0
        s0 = max0
        sum1 = np.float64(0.0)
        for i1 in range(257):
            v0 = x0[257*i0 + i1]
            v1 = v0 - s0
            v2 = np.float32(exp(v1))
            sum1 = sum1 + v2
            row1[i1] = v2
        s1 = np.float32(sum1)
        for i1 in range(257):
            v3 = row1[i1]
            v4 = v3 / s1
            y2[257*i0 + i1] = v4
"""


@pytest.mark.parametrize("name", sorted(Op.registry))
def test_the_text_of_every_sample_of_an_op_means_what_numpy_does(name: str) -> None:
    for sample in Op.registry[name].samples(np.random.default_rng(0)):
        if name != "nonzero":
            graph, inputs = as_graph(sample)
            f = cpu.assemble(graph, {}, (), compile=cpu.interpreted)
            for got, want in zip(f(inputs), run(graph, inputs), strict=True):
                assert_same(got, want)


# ---------------------------------------------------------------- compiled by numba.njit


def test_softmax_compiles_to_one_kernel_with_nan_and_infinity_in_its_rows() -> None:
    x = normal(5, 17)
    x[0, 3], x[1, 2], x[2, :], x[3, 4] = np.nan, -np.inf, -np.inf, np.inf
    with np.errstate(all="ignore"):
        f = check(graph_of(lambda x: softmax(x, 1), x), x)
    assert len(f.kernels) == 1
    assert not f.host_ops
    assert "x0 is x0: f32[5, 17]" in str(f.kernels[0])


def test_cross_entropy_forward_and_backward() -> None:
    logits, target = normal(6, 10), np.array([1, 0, 9, 3, 3, 7])
    forward = graph_of(cross_entropy, logits, target)
    backward = grad(forward, [0])
    check(Graph("step", forward.params, (*forward.results, *backward.results)), logits, target)


def test_batch_norm_and_layer_norm() -> None:
    def norms(x: Any) -> Any:
        n = 4 * 6 * 7
        mean = ops.reduce_sum(x, (0, 2, 3)) / n
        centred = x - ops.broadcast(mean, x.shape, (1,))
        var = ops.reduce_sum(centred * centred, (0, 2, 3)) / n
        channels = centred / ops.broadcast(ops.sqrt(var + 1e-5), x.shape, (1,))
        rows = x - ops.broadcast(ops.reduce_sum(x, (3,)) / 7, x.shape, (0, 1, 2))
        return channels, mean, var, rows

    check(graph_of(norms, x := normal(4, 5, 6, 7)), x)


def test_adam_updates_its_state_after_the_check() -> None:
    def adam(p: Any, g: Any, m: Any, v: Any) -> Any:
        m2, v2 = m * 0.9 + g * 0.1, v * 0.999 + g * g * 0.001
        return p - m2 * 0.01 / (ops.sqrt(v2) + 1e-8), m2, v2, ops.reduce_max(g, (0,)) < 100.0

    p, g, m, v = (np.abs(normal(33, seed=i)) for i in range(4))
    before = [a.copy() for a in (p, m, v)]
    graph = graph_of(adam, p, g, m, v)
    want = run(graph, [p, g, m, v])
    f = build(graph, updates={0: 0, 1: 2, 2: 3}, checks=((3, True),), backend="numba")
    miss = f([p, g + np.float32(100), m, v])
    assert isinstance(miss, Miss)
    for a, b in zip((p, m, v), before, strict=True):
        np.testing.assert_array_equal(a, b)
    assert f([p, g, m, v]) == ()
    for a, b in zip((p, m, v), want[:3], strict=True):
        assert_same(a, b)


def test_integers_wrap_and_divide_as_numpy_does() -> None:
    def f(a: Any, b: Any, u: Any) -> Any:
        wide = ops.cast(a, dt.int64)
        mixed = a * b + (a // b) * 3 - a % b, ops.maximum(a, b), -u, u * u, ops.sign(a), ops.abs(a)
        return (
            *mixed,
            wide * wide * wide,
            ops.cast(wide * 1000, dt.int16),
            (a & b) | (a ^ b),
            a << 3,
            a >> 2,
            ops.bit_not(u),
        )

    a, b = np.array([-128, -128, 127, -7, 7, 5], np.int8), np.array([-1, 0, 127, 2, -2, 100], np.int8)
    u = np.array([0, 1, 200, 255, 16, 17], np.uint8)
    f_ = check(graph_of(f, a, b, u), a, b, u)
    assert not f_.host_ops


def test_floats_divide_to_whole_numbers_and_round_as_numpy_does() -> None:
    def f(a: Any, b: Any) -> Any:
        return a // b, a % b, ops.floor(a), ops.ceil(a), ops.round(a), ops.sign(a), ops.minimum(a, b), a**b

    special = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -1.0, 0.5, -2.5, 1e30, -1e30, 3.0])
    a, b = (np.ascontiguousarray(g.ravel()) for g in np.meshgrid(special, special))
    with np.errstate(all="ignore"):
        check(graph_of(f, a, b), a, b)


def test_bools_halves_and_masks() -> None:
    def f(x: Any, h: Any, k: Any) -> Any:
        near = (x < 0.5) & ops.bit_not(ops.eq(x, 0.0)) | (k < 2)
        padded = ops.pad(x, (2,), (3,), (0,))
        half = ops.exp(h) * 3.0
        return near, ops.cast(near, dt.float32), half, ops.cast(half, dt.float32), padded, ops.cast(x, dt.bfloat16)

    x, h, k = normal(7), normal(7, seed=1).astype(np.float16), np.arange(7)
    x[2], x[3] = np.nan, 0
    check(graph_of(f, x, h, k), x, h, k)


def test_arguments_of_extremes_and_gathers() -> None:
    def f(x: Any, k: Any) -> Any:
        return (
            ops.argmax(x, 1),
            ops.argmin(x, 1),
            ops.take(x, k, 0),
            ops.reduce_max(x, (0,)),
            ops.reduce_prod(x, (0, 1)),
        )

    x, k = normal(4, 6), np.array([3, 0, 3])
    x[0, 2] = x[0, 4] = np.nan
    x[1, 5] = x[1, 1] = 9
    check(graph_of(f, x, k), x, k)


@pytest.mark.slow  # 8 s: a hundred integer operations, each cast and typed
def test_random_bits_are_the_same_as_everywhere() -> None:
    state = np.array([-5, 2**32 - 1], np.int64)
    f = check(graph_of(lambda s: ops.random_bits(s, (3, 7)), state), state)
    assert not f.host_ops


def test_matrix_products_run_as_numpy_and_say_so() -> None:
    def f(x: Any, w: Any) -> Any:
        return ops.tanh(ops.matmul(ops.transpose(x, (1, 0)), w) + 1.0), ops.sort(w, 0)[0]

    f_ = check(graph_of(f, x := normal(5, 4), w := normal(5, 6)), x, w)
    assert sorted(f_.host_ops) == ["matmul", "sort"]
    assert len(f_.kernels) == 1


def test_results_share_no_memory() -> None:
    x = normal(4, 6)
    graph = graph_of(lambda a: (a, (b := a + 1.0), b, ops.reshape(b, (24,)), ops.reshape(a, (6, 4))), x)
    out = check(graph, x)([x])
    assert not isinstance(out, Miss)
    assert not any(np.shares_memory(a, b) for i, a in enumerate([*out, x]) for b in out[:i])


def test_batches_of_any_size_share_one_kernel() -> None:
    x = param("x", TensorType(dt.float32, (Sym("n"), 3)))
    f = build(Graph("f", (x,), (ops.reduce_sum(x * 2.0, (1,)),), ((1, "n", 100),)), backend="numba")
    for rows in (2, 64, 5):
        a = normal(rows, 3)
        np.testing.assert_allclose(f([a])[0], (a * 2).sum(1), rtol=1e-5, atol=1e-6)  # type: ignore[index]
    assert len({k.source.text for k in f.kernels}) == 1


def test_numba_is_imported_by_nobody_who_did_not_ask() -> None:
    python("import sys, tracejit.codegen.compile; assert 'numba' not in sys.modules")


# ---------------------------------------------------------------- CUDA


CUDA = """
import warnings
import numpy as np
import tracejit.ops as ops
from test_numba_backend import assert_same, graph_of, normal
from tracejit.codegen.numba import cpu, cuda
from tracejit.codegen.schedule import Launch
from tracejit.ir import dtype as dt
from tracejit.ir.graph import run
from tracejit.ops.composed.reduction import softmax

warnings.simplefilter("ignore")  # integers overflow on purpose

def pointwise(x, y, k):
    wrapped = ops.maximum(ops.cast(k, dt.int8) * 100, 3)
    return ops.transpose(ops.exp(x), (1, 0)) // y, wrapped, ops.pad(k, (1,), (0,), (1,))

def rows(x, w):
    return softmax(x, 1), ops.reduce_sum(x, (0,)), ops.argmax(x, 1), ops.cast(x * w, dt.float16)

for f, arrays in (
    (pointwise, (normal(3, 5), normal(5, 3, seed=1), np.arange(4))),
    (rows, (normal(5, 9), normal(5, 9, seed=1))),
):
    graph = graph_of(f, *arrays)
    plan = cpu.plan(graph)
    values = dict(zip(graph.params, arrays))
    for step in plan.steps:
        assert isinstance(step, Launch)
        values |= {n: np.empty(n.shape, n.dtype.numpy) for n in step.writes}
        cuda.launch(step.kernel, [values[n] for n in step.operands], threads=2)
    for r, want in zip(graph.results, run(graph, arrays)):
        assert_same(values[plan.base[r]].reshape(want.shape), want)
"""


def python(text: str, **environment: str) -> None:
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    env = {**os.environ, "PYTHONPATH": path, **environment}
    done = subprocess.run([sys.executable, "-c", text], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_cuda_kernels_give_the_same_in_the_simulator() -> None:
    python(CUDA, NUMBA_ENABLE_CUDASIM="1")


PTX = """
from test_numba_backend import graph_of, normal
from tracejit.codegen.numba import cpu, cuda
from tracejit.ops.composed.reduction import softmax

(step,) = cpu.plan(graph_of(lambda x: softmax(x, 1), normal(5, 9))).steps
try:
    from numba.cuda.cudadrv.nvvm import NVVM
    NVVM()
except Exception:
    raise SystemExit("no NVVM")
assert ".visible .entry" in cuda.ptx(step.kernel)
"""


@pytest.mark.slow
def test_cuda_kernels_compile_to_ptx_where_nvvm_is_there() -> None:
    try:
        python(PTX, NUMBA_ENABLE_CUDASIM="0")
    except AssertionError as e:
        if "no NVVM" in str(e):
            pytest.skip("NVVM is not installed")
        raise
