"""Bias and relu inside products and convolutions: the bits of the separate pass, and where they are left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracejit as tj
import tracejit.nn.functional as F
import tracejit.ops as ops
from tracejit import config
from tracejit.codegen.compile import Executable, build
from tracejit.codegen.epilogue import fuse_epilogues
from tracejit.codegen.llvm import library
from tracejit.codegen.llvm.families import Family
from tracejit.codegen.llvm.native import Native
from tracejit.codegen.llvm.plan import Segment
from tracejit.ir import dtype as dt
from tracejit.ir.dim import Sym
from tracejit.ir.graph import Graph, param, run
from tracejit.ir.node import Node, expand_to
from tracejit.ir.types import TensorType
from tracejit.ops.composed.activation import relu
from tracejit.ops.composed.convolution import conv1d, conv2d, conv3d, conv_transpose2d

Array = Any


def typed(*arrays: Array, rows: Any = None) -> tuple[Node, ...]:
    """Parameters for these arrays; the first has `rows` for its first extent, if given."""
    shapes = [a.shape for a in arrays]
    if rows is not None:
        shapes[0] = (rows, *shapes[0][1:])
    return tuple(param(f"x{i}", TensorType(dt.from_numpy(a.dtype), s)) for i, (a, s) in enumerate(zip(arrays, shapes)))


def graph_of(function: Callable[..., Any], *arrays: Array, rows: Any = None) -> Graph:
    xs = typed(*arrays, rows=rows)
    out = function(*xs)
    return Graph("f", xs, out if isinstance(out, tuple) else (out,))


def symbols(f: Executable) -> list[str]:
    """The native steps, of any number of extents."""
    if isinstance(f, Family):
        (f,) = f.known.values()
    assert isinstance(f, Native)
    return [s.name for p in f.plan.parts if isinstance(p, Segment) for s in p.steps]


def bits(x: Array) -> Array:
    """For comparisons that tell -0.0 from 0.0; all NaNs are one."""
    return np.where(np.isnan(x), np.nan, x).view(f"u{x.itemsize}")


def biased(x: Node, bias: Node) -> Node:
    return x + expand_to(bias, x.shape)


def ramp(x: Node) -> Node:
    return ops.maximum(x, ops.full(x, 0.0, x.type))


def awkward(rng: np.random.Generator, *shape: int, dtype: str) -> Array:
    """Numbers with some infinities, NaN and zeros of both signs among them."""
    x = rng.standard_normal(shape).astype(dtype)
    for value in (np.inf, -np.inf, np.nan, -0.0, 0.0):
        x.ravel()[rng.integers(0, x.size, max(1, x.size // 200))] = value
    return x


def agree(fused: Graph, plain: Graph, finish: Callable[[Array], Array], arrays: list[Array], wanted: Any) -> None:
    """The fused graph is library steps alone, with the bits of `finish` after the plain one, on any threads."""
    f = build(fused)
    with config.override(threads=1), np.errstate(all="ignore"):
        (one,) = f(arrays)
        (sums,) = build(plain)(arrays)
        want = finish(sums)
    assert all(s.startswith(wanted) for s in symbols(f)), symbols(f)
    np.testing.assert_array_equal(bits(one), bits(want))
    with config.override(threads=2):
        (two,) = f(arrays)
    np.testing.assert_array_equal(bits(one), bits(two))


def flat(y: Array) -> Array:
    return np.where(y < 0, y.dtype.type(0), y)


SHAPES = [(2, 2, 1), (3, 5, 7), (7, 33, 600), (64, 10, 256), (128, 256, 300), (6, 1100, 3), (49, 17, 2)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_matmul_of_any_shape(m: int, n: int, k: int, dtype: str) -> None:
    rng = np.random.default_rng(m + n)
    a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
    bias = awkward(rng, n, dtype=dtype)
    plain = graph_of(lambda a, b, bias: ops.matmul(a, b), a, b, bias)
    for bend in (relu, ramp):
        g = graph_of(lambda a, b, bias, bend=bend: bend(biased(ops.matmul(a, b), bias)), a, b, bias)
        agree(g, plain, lambda y: flat(y + bias), [a, b, bias], "matmul")
    g = graph_of(lambda a, b, bias: biased(ops.matmul(a, b), bias), a, b, bias)
    agree(g, plain, lambda y: y + bias, [a, b, bias], "matmul")
    g = graph_of(lambda a, b, bias: relu(ops.matmul(a, b)), a, b, bias)
    agree(g, plain, flat, [a, b, bias], "matmul")


def test_matmul_with_nan_and_infinity_and_zeros_of_both_signs() -> None:
    rng = np.random.default_rng(1)
    a, b, bias = awkward(rng, 40, 3, dtype="float32"), awkward(rng, 3, 50, dtype="float32"), np.zeros(50, np.float32)
    a[:4], bias[::2] = -0.0, -0.0
    plain = graph_of(lambda a, b, bias: ops.matmul(a, b), a, b, bias)
    g = graph_of(lambda a, b, bias: relu(biased(ops.matmul(a, b), bias)), a, b, bias)
    agree(g, plain, lambda y: flat(y + bias), [a, b, bias], "matmul")


def test_matmul_of_batches_transposes_and_slices() -> None:
    rng = np.random.default_rng(2)
    a, b, bias = (rng.standard_normal(s).astype(np.float32) for s in ((3, 2, 9, 20), (3, 2, 31, 9), (64,)))

    def product(a: Node, b: Node, bias: Node) -> Node:
        return ops.matmul(ops.transpose(a, (0, 1, 3, 2)), ops.transpose(b, (0, 1, 3, 2)))

    def fused(a: Node, b: Node, bias: Node) -> Node:
        return relu(biased(product(a, b, bias), ops.slice_(bias, (5,), (36,), (1,))))

    agree(graph_of(fused, a, b, bias), graph_of(product, a, b, bias), lambda y: flat(y + bias[5:36]), [a, b, bias], "m")


CONVS = [
    (conv1d, (3, 4, 50), (6, 4, 5), {"stride": 2, "padding": 1}),
    (conv2d, (2, 1, 28, 28), (32, 1, 3, 3), {}),
    (conv2d, (2, 6, 9, 9), (8, 3, 3, 3), {"groups": 2, "padding": 1}),
    (conv2d, (3, 5, 8, 8), (7, 5, 1, 1), {}),
    (conv2d, (2, 16, 32, 32), (20, 16, 3, 3), {"padding": 1}),  # Winograd
    (conv2d, (2, 32, 17, 31), (64, 16, 3, 3), {"padding": 1, "groups": 2}),
    (conv2d, (20, 5, 13, 13), (40, 5, 11, 11), {"padding": 0}),  # outputs as rows
    (conv2d, (2, 100, 9, 9), (5, 100, 3, 3), {"stride": 2, "dilation": 2}),  # several blocks of k
    (conv3d, (2, 2, 5, 6, 7), (3, 2, 2, 3, 2), {}),
    (conv_transpose2d, (2, 4, 6, 6), (4, 5, 3, 3), {"stride": 2}),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("conv", "x", "w", "options"), CONVS)
def test_conv_of_every_kind(conv: Any, x: Any, w: Any, options: dict[str, Any], dtype: str) -> None:
    rng = np.random.default_rng(3)
    xs, ws = awkward(rng, *x, dtype=dtype), rng.standard_normal(w).astype(dtype)
    channels = w[1] if conv is conv_transpose2d else w[0]
    bias = awkward(rng, channels, dtype=dtype)
    down = bias.reshape(-1, *(1,) * (len(x) - 2))
    plain = graph_of(lambda x, w, b: conv(x, w, **options), xs, ws, bias)
    g = graph_of(lambda x, w, b: relu(conv(x, w, b, **options)), xs, ws, bias)
    agree(g, plain, lambda y: flat(y + down), [xs, ws, bias], ("conv", "winograd"))
    g = graph_of(lambda x, w, b: conv(x, w, b, **options), xs, ws, bias)
    agree(g, plain, lambda y: y + down, [xs, ws, bias], ("conv", "winograd"))
    g = graph_of(lambda x, w, b: relu(conv(x, w, **options)), xs, ws, bias)
    agree(g, plain, flat, [xs, ws, bias], ("conv", "winograd"))


@pytest.mark.parametrize("m", [2, 5, 70])
def test_symbolic_rows(m: int) -> None:
    rng = np.random.default_rng(4)
    a, b, bias = (rng.standard_normal(s).astype(np.float32) for s in ((m, 30), (30, 20), (20,)))
    g = graph_of(lambda a, b, bias: relu(biased(ops.matmul(a, b), bias)), a, b, bias, rows=Sym("n"))
    plain = graph_of(lambda a, b, bias: ops.matmul(a, b), a, b, bias)
    agree(g, plain, lambda y: flat(y + bias), [a, b, bias], "matmul")


@pytest.mark.parametrize("n", [2, 5])
@pytest.mark.parametrize("channels", [4, 16])
def test_symbolic_images(channels: int, n: int) -> None:
    rng = np.random.default_rng(4)
    shapes = ((n, channels, 16, 16), (20, channels, 3, 3), (20,))
    x, w, bias = (rng.standard_normal(s).astype(np.float32) for s in shapes)
    g = graph_of(lambda x, w, bias: relu(conv2d(x, w, bias, padding=1)), x, w, bias, rows=Sym("n"))
    plain = graph_of(lambda x, w, bias: conv2d(x, w, padding=1), x, w, bias)
    agree(g, plain, lambda y: flat(y + bias[:, None, None]), [x, w, bias], ("conv", "winograd"))


@pytest.mark.parametrize("m", [0, 1])
def test_special_extents_give_what_numpy_gives(m: int) -> None:
    rng = np.random.default_rng(5)
    a, b, bias = (rng.standard_normal(s).astype(np.float32) for s in ((m, 30), (30, 20), (20,)))
    f = build(graph_of(lambda a, b, bias: relu(biased(ops.matmul(a, b), bias)), a, b, bias, rows=Sym("n")))
    np.testing.assert_allclose(f([a, b, bias])[0], flat(a @ b + bias), atol=1e-5)


def left_alone() -> dict[str, Callable[[Node, Node, Node], Any]]:
    def twice(a: Node, b: Node, bias: Node) -> tuple[Node, ...]:
        y = ops.matmul(a, b)
        return y, relu(biased(y, bias))

    def down(a: Node, b: Node, bias: Node) -> Node:  # one for each row
        y = ops.matmul(a, b)
        return y + ops.broadcast(bias, y.shape, (0,))

    def scalar(a: Node, b: Node, bias: Node) -> Node:
        y = ops.matmul(a, b)
        return y + ops.full(y, 2.0, y.type)

    def below_minus_zero(a: Node, b: Node, bias: Node) -> Node:
        y = ops.matmul(a, b)
        return ops.maximum(y, ops.full(y, -0.0, y.type))

    return {"twice": twice, "down": down, "scalar": scalar, "minus zero": below_minus_zero}


@pytest.mark.parametrize("name", left_alone())
def test_what_is_left_alone(name: str) -> None:
    rng = np.random.default_rng(6)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((20, 9), (9, 20), (20,))]
    graph = graph_of(left_alone()[name], *arrays)
    f = build(graph)
    assert len(symbols(f)) > 1, symbols(f)
    for got, want in zip(f(arrays), run(graph, arrays), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)


def test_operand_of_relu_that_someone_reads_is_kept() -> None:
    def both(a: Node, b: Node, bias: Node) -> tuple[Node, ...]:
        y = biased(ops.matmul(a, b), bias)
        return relu(y), ops.exp(y), *ops.sort(y, 1), ops.Lt()(y, ops.full(y, 0.0, y.type))

    rng = np.random.default_rng(7)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((20, 9), (9, 21), (21,))]
    graph = graph_of(both, *arrays)
    for got, want in zip(build(graph)(arrays), run(graph, arrays), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5, rtol=1e-5)


def test_operand_of_relu_is_not_kept_for_its_sign() -> None:
    def both(a: Node, b: Node, bias: Node) -> tuple[Node, ...]:
        y = biased(ops.matmul(a, b), bias)
        return relu(y), ops.Le()(y, ops.full(y, 0.0, y.type))

    rng = np.random.default_rng(9)
    a, b, bias = (rng.standard_normal(s).astype(np.float32) for s in ((20, 9), (9, 21), (21,)))
    a[0], bias[:5] = 0, (np.nan, np.inf, -np.inf, 0.0, -0.0)  # row 0 of the sums is the bias alone
    graph = graph_of(both, a, b, bias)
    assert not any(n.op.name in ("add", "lt") for n in fuse_epilogues(graph, library.match).nodes)
    got, want = build(graph)([a, b, bias]), run(graph, [a, b, bias])
    np.testing.assert_allclose(got[0], want[0], atol=1e-5)
    np.testing.assert_array_equal(got[1], want[1])


def test_gradient_of_relu_asks_its_result() -> None:
    def loss(x: Any, w: Any, b: Any) -> Any:
        return (F.relu(F.linear(x, w, b)) ** 2).sum()

    rng = np.random.default_rng(8)
    x, w, b = (rng.standard_normal(s).astype(np.float32) for s in ((30, 20), (40, 20), (40,)))
    x[0], b[:7] = 0, (np.nan, np.inf, -np.inf, 0.0, -0.0, 1, -1)  # row 0 of the sums is the bias alone

    def gradients(step: Callable[..., Any]) -> list[Array]:
        leaves = [tj.tensor(v, requires_grad=True) for v in (x, w, b)]
        for _ in range(4):
            for leaf in leaves:
                leaf.grad = None
            step(*leaves).backward()
        return [leaf.grad.numpy() for leaf in leaves]

    for got, want in zip(gradients(tj.compile(loss)), gradients(loss), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
