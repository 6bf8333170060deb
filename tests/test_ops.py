"""Every primitive through every check. All tests below read the registry: adding an op adds no test file."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tracejit  # noqa: F401  (registers everything)
from tracejit import ops
from tracejit.codegen import compile as driver
from tracejit.errors import BackendError, DTypeError, IndexOutOfRange, OpError
from tracejit.ir import dtype as dt
from tracejit.ir.dim import Sym
from tracejit.ir.graph import Graph, param, run
from tracejit.ir.index import Axis, Index
from tracejit.ir.node import Node
from tracejit.ir.op import Array, Op, Reduce, Sample, results
from tracejit.ir.parser import parse
from tracejit.ir.printer import fingerprint, to_text_with_arrays
from tracejit.ir.types import TensorType, same_type
from tracejit.ops.loop import Inside, Position
from tracejit.passes.bind import bind
from tracejit.passes.grad import pullback

# Kernel bodies have ops of their own (load, inside, ...), which have no meaning outside a loop nest.
REGISTRY = {
    name: cls
    for name, cls in sorted(Op.registry.items())
    if cls.__module__.startswith("tracejit.ops.") and cls.__module__ != "tracejit.ops.loop"
}
every_op = pytest.mark.parametrize("name", REGISTRY)


def samples(name: str) -> list[Sample]:
    return list(REGISTRY[name].samples(np.random.default_rng(0)))


def type_of(a: Array) -> TensorType:
    dtype = dt.from_numpy(a.dtype)
    assert dtype is not None
    return TensorType(dtype, a.shape)


def symbolic_graph(s: Sample) -> Graph:
    """The sample's op on parameters whose axes in `dims` are symbols."""
    symbols = {(i, axis): Sym(symbol) for i, axis, symbol in s.dims}
    params = tuple(
        param(f"x{i}", type_of(a).with_shape([symbols.get((i, axis), d) for axis, d in enumerate(a.shape)]))
        for i, a in enumerate(s.inputs)
    )
    made = Node.build(s.op, params)
    return Graph("f", params, made if isinstance(made, tuple) else (made,))


def graph_of(s: Sample) -> Graph:
    """The same with the extents of the sample."""
    extents = {symbol: s.inputs[i].shape[axis] for i, axis, symbol in s.dims}
    return bind(symbolic_graph(s), extents) if s.dims else symbolic_graph(s)


def show(s: Sample) -> str:
    return f"{s.op} on {', '.join(str(type_of(a)) for a in s.inputs)} {s.note}"


def assert_close(got: Array, want: Array, tolerance: float, what: str) -> None:
    assert got.dtype == want.dtype, what
    assert got.shape == want.shape, what
    if got.dtype.kind == "V":
        got, want = got.astype(np.float32), want.astype(np.float32)
    if got.dtype.kind == "f":
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance, equal_nan=True, err_msg=what)
    else:
        np.testing.assert_array_equal(got, want, err_msg=what)


# --- the checks -----------------------------------------------------------------------------------------------------


@every_op
def test_op_has_samples(name: str) -> None:
    assert samples(name)


@every_op
def test_infer_agrees_with_eval_and_nothing_warns(name: str) -> None:
    for s in samples(name):
        g = graph_of(s)
        before = [a.copy() for a in s.inputs]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            got = run(g, s.inputs)
        for a, r in zip(got, g.results, strict=True):
            assert isinstance(a, np.ndarray), show(s)
            assert same_type(type_of(a), r.type), f"{show(s)}: eval gives {type_of(a)}, infer {r.type}"
        for a, b in zip(s.inputs, before):
            assert a.tobytes() == b.tobytes(), f"{show(s)} wrote to its input"


@every_op
def test_symbolic_infer_specialises_to_concrete_infer(name: str) -> None:
    for s in samples(name):
        if s.dims:
            for bound, r in zip(graph_of(s).results, symbolic_graph(s).results, strict=True):
                extents = {symbol: s.inputs[i].shape[axis] for i, axis, symbol in s.dims}
                (again,) = bind(Graph("t", (p := param("p", r.type),), (p,)), extents).results
                assert same_type(again.type, bound.type), show(s)


@every_op
def test_vjp_agrees_with_finite_differences_to_second_order(name: str) -> None:
    if "vjp" not in vars(REGISTRY[name]) and all(c.vjp is Op.vjp for c in REGISTRY[name].__mro__ if issubclass(c, Op)):
        pytest.skip(f"{name} has no gradient")
    for s in samples(name):
        floats = [i for i, a in enumerate(s.inputs) if a.dtype.kind in "fV"]
        if s.differentiable and floats and all(s.inputs[i].dtype == np.float64 for i in floats):
            check_gradient(graph_of(s), s.inputs, floats, order=2, what=show(s))


def check_gradient(f: Graph, arrays: Sequence[Array], wrt: Sequence[int], order: int, what: str) -> None:
    """Directional derivatives of a random weighting of the results, by the vjp rules and by central differences."""
    rng = np.random.default_rng(1)
    for level in range(1, order + 1):
        real = [r for r in f.results if r.type.dtype.is_floating_point]
        weights = [rng.normal(size=r.type.shape) for r in real]
        made = [Node.of(ops.Const(ops.ArrayConst(w), r.type), ()) for w, r in zip(weights, real)]
        d = Graph("df", f.params, pullback(real, made, [f.params[i] for i in wrt]))
        with np.errstate(all="ignore"):
            gradients = run(d, arrays)
        values = f.with_results(real)
        for i, gradient in zip(wrt, gradients, strict=True):
            assert np.isfinite(gradient).all(), f"order {level} of {what}"
            v, eps = rng.normal(size=arrays[i].shape), 1e-6
            up, down = list(arrays), list(arrays)
            up[i], down[i] = np.asarray(arrays[i] + eps * v), np.asarray(arrays[i] - eps * v)
            terms = [(w * (p - m)).sum() for w, p, m in zip(weights, run(values, up), run(values, down))]
            numeric, exact = sum(terms) / (2 * eps), float((gradient * v).sum())
            scale = max(1.0, abs(numeric), float(np.abs(gradient * v).sum()))
            assert abs(numeric - exact) < 2e-5 * scale, f"order {level}, input {i} of {what}: {exact} is not {numeric}"
        f = d


@every_op
def test_element_agrees_with_eval(name: str) -> None:
    if not REGISTRY[name].is_pullable():
        assert REGISTRY[name].library or name == "nonzero", f"{name} has neither an element nor a library routine"
        return
    for s in samples(name):
        if isinstance(getattr(s.op, "value", None), ops.ArrayConst) or sum(a.size for a in s.inputs) > 3000:
            continue
        g = graph_of(s)
        (want,) = run(g, s.inputs)
        assert_close(by_elements(g.results[0], s.inputs), want, max(s.tolerance, 1e-9), show(s))


@dataclass(frozen=True)
class Load(Op):
    """An element of input `number`; `at` holds affine indices, and None where the next operand is the index."""

    number: int
    at: tuple[Index | None, ...]
    dtype: dt.DType

    def infer(self, *types: TensorType) -> TensorType:
        return TensorType(self.dtype, ())


@dataclass(frozen=True)
class Element:
    """A reader, as codegen hands to `Op.element`."""

    number: int
    type: TensorType

    def __call__(self, at: Sequence[Index | Node]) -> Node:
        assert len(at) == self.type.rank
        affine = tuple(i if isinstance(i, Index) else None for i in at)
        return Node.of(Load(self.number, affine, self.type.dtype), [i for i in at if isinstance(i, Node)])


def by_elements(node: Node, arrays: Sequence[Array]) -> Array:
    """The value of a node computed from its `element`, all points at once: the meaning codegen has to keep."""
    shape = node.type.shape
    axes = [Axis(f"i{k}", n) for k, n in enumerate(shape)]
    made = node.op.element(tuple(map(Index.of, axes)), *(Element(k, i.type) for k, i in enumerate(node.inputs)))
    reduced: list[Axis] = []
    body = made
    if isinstance(made, Reduce):
        reduced = [Axis(f"r{k}", n) for k, n in enumerate(made.extents)]
        body = made.element(tuple(map(Index.of, reduced)))
    space = tuple(int(a.extent) for a in (*axes, *reduced))
    grid = dict(zip((*axes, *reduced), np.indices(space)))

    def place(i: Index) -> Array:
        return sum((grid[a] * c for a, c in i.terms), np.full(space, i.constant))

    values: dict[Node, Array] = {}
    assert isinstance(body, Node)
    for n in Graph("body", (), (body,)).nodes:
        ins = [values[i] for i in n.inputs]
        match n.op:
            case Load(number, at, _):
                data = iter(ins)
                index = [place(i) if i is not None else next(data) for i in at]
                a = arrays[number]
                ok = np.ones(space, bool)
                for i, j, extent in zip(at, index, a.shape):
                    # Affine indices may leave the buffer where `inside` selects the value away; others never.
                    assert i is not None or not space or ((j >= 0) & (j < extent)).all(), f"{n} leaves its buffer"
                    ok &= (j >= 0) & (j < extent)
                poison = np.full(space, 99, np.float64).astype(a.dtype)
                here = (
                    a[tuple(np.clip(j, 0, max(extent - 1, 0)) for j, extent in zip(index, a.shape))]
                    if a.size
                    else poison
                )
                values[n] = np.where(ok, here, poison) if a.size else poison
            case Position(index):
                values[n] = place(index)
            case Inside(conditions):
                inside = np.ones(space, bool)
                for i, low, limit in conditions:
                    inside &= (place(i) >= low) & (place(i) < limit)
                values[n] = inside
            case _:
                values[n] = np.broadcast_to(n.op.eval(*ins), space)
    y = values[body]
    if isinstance(made, Reduce):
        y = reduce_all(made.kind, y, tuple(range(len(shape), len(space))))
    assert body.type.shape == ()
    return y.astype(node.type.dtype.numpy) if isinstance(made, Reduce) else y


def reduce_all(kind: str, y: Array, axes: tuple[int, ...]) -> Array:
    """What codegen does with a Reduce."""
    wide = y.astype(np.float32) if y.dtype.itemsize == 2 and y.dtype.kind in "fV" else y
    flat = wide.reshape((*wide.shape[: wide.ndim - len(axes)], math.prod(wide.shape[a] for a in axes)))
    functions: dict[str, Callable[..., Any]] = {
        "sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "argmax": np.argmax, "argmin": np.argmin,
    }  # fmt: skip
    dtype = {} if kind not in ("sum", "prod") else {"dtype": flat.dtype}
    with np.errstate(all="ignore"):
        return np.asarray(functions[kind](flat, axis=-1, **dtype))


@every_op
def test_text_round_trip(name: str) -> None:
    for s in samples(name):
        g = symbolic_graph(s)
        text, arrays = to_text_with_arrays(g)
        again = parse(text, arrays)
        assert fingerprint(again) == fingerprint(g), text
        assert to_text_with_arrays(again)[0] == text


@every_op
def test_compiled_agrees_with_eval(name: str) -> None:
    for s in samples(name):
        g = graph_of(s)
        try:
            compiled = driver.build(g, backend="llvm")
        except BackendError as e:
            if "no backend" in str(e):
                pytest.skip(str(e))
            raise
        arrays = [np.ascontiguousarray(a).reshape(a.shape) for a in s.inputs]
        for got, want in zip(compiled(arrays), run(g, s.inputs), strict=True):
            assert_close(np.asarray(got), want, s.tolerance, show(s))


# --- NumPy's names --------------------------------------------------------------------------------------------------

NUMPY: dict[str, Callable[..., Any]] = {
    "neg": lambda o, x: -x,
    "abs": lambda o, x: abs(x),
    "floor": lambda o, x: np.floor(x),
    "ceil": lambda o, x: np.ceil(x),
    "round": lambda o, x: np.round(x),
    "exp": lambda o, x: np.exp(x),
    "expm1": lambda o, x: np.expm1(x),
    "log": lambda o, x: np.log(x),
    "log1p": lambda o, x: np.log1p(x),
    "sqrt": lambda o, x: np.sqrt(x),
    "sin": lambda o, x: np.sin(x),
    "cos": lambda o, x: np.cos(x),
    "tanh": lambda o, x: np.tanh(x),
    "erf": lambda o, x: np.vectorize(math.erf, otypes=[float])(x.astype(float)),
    "lgamma": lambda o, x: np.vectorize(lgamma, otypes=[float])(x.astype(float)),
    "bit_not": lambda o, x: ~x,
    "cast": lambda o, x: x.astype(o.dtype.numpy),
    "add": lambda o, a, b: a + b,
    "sub": lambda o, a, b: a - b,
    "mul": lambda o, a, b: a * b,
    "div": lambda o, a, b: a / b,
    "floordiv": lambda o, a, b: a // b,
    "mod": lambda o, a, b: a % b,
    "atan2": lambda o, a, b: np.arctan2(a, b),
    "maximum": lambda o, a, b: np.where((a > b) | (a != a), a, b),
    "minimum": lambda o, a, b: np.where((a < b) | (a != a), a, b),
    "bit_and": lambda o, a, b: a & b,
    "bit_or": lambda o, a, b: a | b,
    "bit_xor": lambda o, a, b: a ^ b,
    "eq": lambda o, a, b: a == b,
    "lt": lambda o, a, b: a < b,
    "le": lambda o, a, b: a <= b,
    "select": lambda o, c, a, b: np.where(c, a, b),
    "iota": lambda o: np.indices(o.shape)[o.axis],
    "reshape": lambda o, x: np.reshape(x, o.shape),
    "transpose": lambda o, x: np.transpose(x, o.perm),
    "broadcast": lambda o, x: np.broadcast_to(np.expand_dims(x, ops.others(len(o.shape), o.dims)), o.shape),
    "slice": lambda o, x: x[tuple(map(slice, o.starts, o.limits, o.strides))],
    "flip": lambda o, x: np.flip(x, o.axes),
    "concat": lambda o, *xs: np.concatenate(xs, o.axis),
    "take": lambda o, x, i: np.take(x, i, o.axis),
    "take_along": lambda o, x, i: np.take_along_axis(x, i, o.axis),
    "reduce_sum": lambda o, x: np.sum(x, axis=o.axes),
    "reduce_prod": lambda o, x: np.prod(x, axis=o.axes),
    "reduce_max": lambda o, x: np.max(x, axis=o.axes),
    "reduce_min": lambda o, x: np.min(x, axis=o.axes),
    "argmax": lambda o, x: np.argmax(x, o.axis),
    "argmin": lambda o, x: np.argmin(x, o.axis),
    "cumsum": lambda o, x: np.cumsum(x, o.axis),
    "cumprod": lambda o, x: np.cumprod(x, o.axis),
    "cummax": lambda o, x: np.maximum.accumulate(x, o.axis),
    "matmul": lambda o, a, b: np.einsum("...ik,...kj->...ij", a, b),
    "stop_gradient": lambda o, x: x,
    "to_device": lambda o, x: x,
    "copy": lambda o, x: x,
}  # fmt: skip


def lgamma(v: float) -> float:
    pole = v == -math.inf or (v <= 0 and v == math.floor(v))
    return math.inf if pole else math.lgamma(v)


@pytest.mark.parametrize("name", NUMPY)
def test_eval_agrees_with_the_numpy_function_of_that_name(name: str) -> None:
    for s in samples(name):
        if any(a.dtype.kind == "V" for a in s.inputs):
            continue
        g = graph_of(s)
        with np.errstate(all="ignore"):
            (got,) = run(g, s.inputs)
            want = np.asarray(NUMPY[name](g.results[0].op, *s.inputs))
        assert_close(got, want.astype(got.dtype), max(s.tolerance, 1e-9), show(s))


def test_sort_agrees_with_python_sorted() -> None:
    x = [3.0, math.nan, -0.0, 1.0, math.nan, 0.0, 3.0, -math.inf]
    for falling in (False, True):
        values, order = ops.Sort(0, falling).eval(np.array(x))
        rank = [(not math.isnan(v), -v) if falling else (math.isnan(v), v) for v in x]
        want = sorted(range(len(x)), key=lambda i: rank[i] if not math.isnan(x[i]) else (not falling, 0.0))
        assert order.tolist() == want
        np.testing.assert_array_equal(values, np.array(x)[want])


def test_pad_agrees_with_its_definition() -> None:
    for s in samples("pad"):
        (got,) = run(g := graph_of(s), s.inputs)
        x, fill = s.inputs
        o: Any = g.results[0].op
        want = np.full(got.shape, fill, got.dtype)
        for at in np.ndindex(*x.shape):
            to = tuple(a + i * (gap + 1) for i, a, gap in zip(at, o.low, o.interior))
            if all(0 <= t < n for t, n in zip(to, want.shape)):
                want[to] = x[at]
        np.testing.assert_array_equal(got, want, err_msg=show(s))


def test_windows_agree_with_their_definition() -> None:
    for s in samples("unfold"):
        (x,) = s.inputs
        (got,) = run(g := graph_of(s), s.inputs)
        o: Any = g.results[0].op
        n = len(o.sizes)
        lead = x.ndim - n
        for at in np.ndindex(*got.shape):
            places = [p * t + k * d for p, k, t, d in zip(at[lead : lead + n], at[lead + n :], o.strides, o.dilations)]
            np.testing.assert_array_equal(got[at], x[(*at[:lead], *places)], err_msg=show(s))


def test_conv_agrees_with_its_definition() -> None:
    for s in samples("conv"):
        if s.inputs[0].dtype != np.float64 or s.inputs[0].size > 400:
            continue
        x, w = s.inputs
        (got,) = run(g := graph_of(s), s.inputs)
        o: Any = g.results[0].op
        for n, grp, c, *at in np.ndindex(*got.shape):
            window = tuple(
                slice(a * t, a * t + (k - 1) * d + 1, d) for a, k, t, d in zip(at, w.shape[3:], o.stride, o.dilation)
            )
            np.testing.assert_allclose(
                got[(n, grp, c, *at)], (x[(n, grp, slice(None), *window)] * w[grp, c]).sum(), atol=1e-12
            )


# --- what the registry cannot say -----------------------------------------------------------------------------------


def test_philox_gives_the_published_known_answers() -> None:
    # Random123's kat_vectors, philox4x32-10
    for counter, key, want in (
        ((0,) * 4, (0,) * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ):
        words = ops.philox(tuple(map(np.uint64, counter)), tuple(map(np.uint64, key)))  # type: ignore[arg-type]
        assert " ".join(f"{int(w):08x}" for w in words) == want


def test_random_bits_continue_where_the_offset_says() -> None:
    whole = ops.RandomBits((12,)).eval(np.array([5, 100]))
    np.testing.assert_array_equal(whole[4:], ops.RandomBits((8,)).eval(np.array([5, 101])))


def test_movement_gives_views_of_memory() -> None:
    x = np.arange(24.0).reshape(2, 3, 4)
    for op in (
        ops.Reshape((6, 4)), ops.Transpose((2, 0, 1)), ops.Slice((0, 1, 0), (2, 3, 4), (1, 1, 2)), ops.Flip((1,)),
        ops.Broadcast((2, 3, 5, 4), (0, 1, 3)), ops.Unfold((2,), (1,), (1,)),
    ):  # fmt: skip
        assert np.shares_memory(op.eval(x), x), op


def gradient(make: Callable[..., Node], *arrays: Array) -> list[list[float]]:
    params = tuple(param(f"x{i}", type_of(a)) for i, a in enumerate(arrays))
    y = make(*params)
    got = run(Graph("g", params, pullback([y], [ops.const(y, 1, y.dtype, y.shape)], params)), arrays)
    return [g.tolist() for g in got]


def test_gradients_at_the_hard_places() -> None:
    def at(*values: float) -> Array:
        return np.array(values)

    assert gradient(ops.abs, at(0.0, -0.0, 2.0)) == [[0.0, 0.0, 1.0]]
    assert gradient(ops.maximum, at(1.0, 2.0), at(1.0, 3.0)) == [[0.5, 0.0], [0.5, 1.0]]
    assert gradient(ops.minimum, at(1.0, 2.0), at(1.0, 3.0)) == [[0.5, 1.0], [0.5, 0.0]]
    assert gradient(lambda x: ops.reduce_max(x, (0,)), at(3.0, 1.0, 3.0)) == [[0.5, 0.0, 0.5]]
    assert gradient(lambda a, b: a**b, at(0.0, 0.0, 0.0), at(0.0, 1.0, 2.0)) == [[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]
    assert gradient(lambda x: ops.reduce_prod(x, (0,)), at(0.0, 3.0, 4.0)) == [[12.0, 0.0, 0.0]]
    assert gradient(lambda x: ops.reduce_prod(x, (0,)), at(0.0, 3.0, 0.0)) == [[0.0, 0.0, 0.0]]
    assert gradient(lambda x: ops.cumprod(x, 0), at(2.0, 0.0, 3.0)) == [[1.0, 8.0, 0.0]]
    assert gradient(lambda x: ops.cummax(x, 0), at(1.0, 1.0, 0.0, 2.0)) == [[1.0, 2.0, 0.0, 1.0]]
    assert gradient(ops.sqrt, at(0.0)) == [[math.inf]]
    assert gradient(lambda a, b: a % b, at(7.0, -7.0), at(3.0, 3.0)) == [[1.0, 1.0], [-2.0, 3.0]]


def test_second_gradient_of_pow_at_zero_is_finite() -> None:
    x, two = param("x", TensorType(dt.float64, (2,))), param("b", TensorType(dt.float64, (2,)))
    ones = ops.const(x, 1.0, dt.float64, (2,))
    (dx,) = pullback([x**two], [ones], [x])
    (ddx,) = pullback([dx], [ones], [x])
    (got,) = run(Graph("h", (x, two), (ddx,)), [np.zeros(2), np.array([2.0, 1.0])])
    assert got.tolist() == [2.0, 0.0]


def test_scatter_set_gives_its_gradient_to_the_write_that_is_seen() -> None:
    ids = np.array([1, 1, 0])
    index = Node.of(ops.Const(ops.ArrayConst(ids), TensorType(dt.int64, (3,))), ())
    assert gradient(lambda x, u: ops.scatter(x, index, u, 0, "set"), np.zeros(3), np.zeros(3)) == [
        [0.0, 0.0, 1.0],
        [0.0, 1.0, 1.0],
    ]


def test_constants_are_equal_by_meaning() -> None:
    f32, u8 = TensorType(dt.float32, ()), TensorType(dt.uint8, ())
    assert ops.Const(1, f32) == ops.Const(1.0, f32)
    assert ops.Const(0.0, f32) != ops.Const(-0.0, f32)
    assert ops.Const(math.nan, f32) == ops.Const(math.nan, f32)
    assert ops.Const(300, u8) == ops.Const(44, u8)
    a, b = (ops.Const(ops.ArrayConst(np.ones(2, np.float32)), TensorType(dt.float32, (2,))) for _ in range(2))
    assert a == b
    assert hash(a) == hash(b)


def test_half_precision_sums_do_not_stop_growing() -> None:
    for d in (np.float16, ml_dtypes.bfloat16):
        assert float(ops.ReduceSum((0,)).eval(np.ones(3000, d))) == pytest.approx(3000, rel=4e-3)
        assert float(ops.MatMul().eval(np.ones((1, 3000), d), np.ones((3000, 1), d))[0, 0]) == pytest.approx(
            3000, rel=4e-3
        )


def test_indices_out_of_range_are_named() -> None:
    x = np.zeros((3, 2))
    with pytest.raises(IndexOutOfRange, match=r"take: index 3 is out of range for axis 0 of extent 3"):
        ops.Take(0).eval(x, np.array([0, 3, 9]))
    with pytest.raises(IndexOutOfRange, match=r"scatter: index -1 is out of range"):
        ops.Scatter(0, "add").eval(x, np.array([-1]), np.zeros((1, 2)))
    with pytest.raises(IndexOutOfRange, match=r"take_along: index 2"):
        ops.TakeAlong(1).eval(x, np.full((3, 1), 2))


F = dt.float32


@pytest.mark.parametrize(
    ("op", "types", "message"),
    [
        (ops.MatMul(), [TensorType(F, (Sym("n"), 784)), TensorType(F, (512, 10))],
         "matmul of f32[n, 784] and f32[512, 10]: inner extents 784 and 512 differ"),
        (ops.Add(), [TensorType(F, (2,)), TensorType(F, (3,))], "add wants equal types, got f32[2] and f32[3]"),
        (ops.Add(), [TensorType(F, (Sym("n"),)), TensorType(F, (3,))], "add wants equal types, got f32[n] and f32[3]"),
        (ops.Sub(), [TensorType(dt.bool_, (2,))] * 2, "sub has no meaning for bool[2]"),
        (ops.Reshape((4,)), [TensorType(F, (2, 3))], "reshape of f32[2, 3] to [4]: 6 and 4 elements"),
        (ops.Conv((1,), (1,)), [TensorType(F, (1, 1, 3, 9)), TensorType(F, (1, 4, 2, 3))], "channels 3 and 2 differ"),
        (ops.Conv((1,), (1,)), [TensorType(F, (1, 1, 3, 2)), TensorType(F, (1, 4, 3, 3))],
         "a window of 3 with dilation 1 is wider than the extent 2"),
        (ops.Concat(0), [TensorType(F, (2, 3)), TensorType(F, (2, 4))],
         "concat of f32[2, 3] and f32[2, 4] along axis 0"),
        (ops.Take(0), [TensorType(F, (2,)), TensorType(dt.int32, (2,))], "wants its indices as i64, got i32[2]"),
        (ops.ReduceMax((0,)), [TensorType(F, (0, 2))], "reduce_max of f32[0, 2] over axes [0]: nothing to choose from"),
        (ops.RandomBits((2,)), [TensorType(dt.int64, (3,))],
         "random_bits wants its state as i64[2] (seed, offset), got i64[3]"),
        (ops.Select(), [TensorType(F, (2,))] * 3, "select wants bool[...]"),
    ],
)  # fmt: skip
def test_type_errors_name_both_sides(op: Op, types: list[TensorType], message: str) -> None:
    with pytest.raises((OpError, DTypeError)) as e:
        op.infer(*types)
    assert message in str(e.value)


def test_an_op_with_one_result_has_one_type() -> None:
    for name in REGISTRY:
        for s in samples(name)[:1]:
            g = graph_of(s)
            n = g.results[0].inputs[0] if g.results[0].op.name == "item" else g.results[0]
            assert len(results(n.type)) == len(g.results)
