"""Dims, dtypes, nodes and graphs; the invariants; and that nothing recurses: graphs of 100,000 nodes."""

from __future__ import annotations

import gc
import itertools
import weakref

import numpy as np
import pytest

import tracejit.ops  # noqa: F401  (registers every op)
from tracejit.errors import InconclusiveDim, IRError, OpError
from tracejit.ir import dtype as dt
from tracejit.ir.dim import Dim, Sym, product, same, substitute, symbols
from tracejit.ir.graph import Graph, param, rebuild, run
from tracejit.ir.node import Node
from tracejit.ir.op import Param, attribute_key, same_op
from tracejit.ir.parser import parse
from tracejit.ir.printer import fingerprint, to_text
from tracejit.ir.types import TensorType, TupleType, same_type
from tracejit.ir.verify import verify
from tracejit.ops.movement import Concat, Pad
from tracejit.ops.order import Sort
from tracejit.ops.pointwise import Add, Sin, Tanh, tanh
from tracejit.ops.reduce import ReduceSum
from tracejit.ops.source import Const
from tracejit.passes.bind import bind
from tracejit.passes.grad import grad
from tracejit.passes.pipeline import optimize

F3 = TensorType(dt.float32, (3,))
N, M = Sym("n"), Sym("m")


# --- dims ----------------------------------------------------------------------------------------------------------


def test_polynomials_are_canonical() -> None:
    assert 2 * N + 1 == N + N + 1
    assert hash(2 * N + 1) == hash(N + 1 + N)
    assert (N + M) * (N - M) == N * N - M * M
    assert N - N == 0
    assert isinstance(N - N + 3, int)
    assert str(2 * N * N - M + 1) == "2*n^2 - m + 1"
    assert str(-N) == "-n"


def test_comparing_what_depends_on_symbols_raises() -> None:
    with pytest.raises(InconclusiveDim, match="n == 3"):
        bool(N == 3)
    with pytest.raises(InconclusiveDim, match="n == m"):
        bool(N == M)
    assert N != N + 1
    assert not same(N, 3)
    assert not same(N, M)


def test_division_is_exact_or_raises() -> None:
    assert (4 * N + 2) // 2 == 2 * N + 1
    with pytest.raises(InconclusiveDim):
        (4 * N + 1) // 2


def test_substitution_reaches_into_tuples() -> None:
    assert substitute((2 * N + M, (N, "word")), {"n": 3}) == (M + 6, (3, "word"))
    assert substitute(N * N - 1, {"n": 4}) == 15
    assert symbols((2 * N, M * N, 3)) == ("n", "m")
    assert product((2, N, 3)) == 6 * N


# --- dtypes and types ----------------------------------------------------------------------------------------------


def test_promotion_is_a_join() -> None:
    for a, b in itertools.product(dt.ALL, dt.ALL):
        joined = dt.promote(a, b)
        assert joined is dt.promote(b, a)
        assert dt.promote(joined, a) is joined


@pytest.mark.parametrize(
    ("a", "b", "joined"),
    [("f16", "bf16", "f32"), ("i8", "u8", "i16"), ("i64", "f16", "f16"), ("bool", "u8", "u8"), ("u8", "i32", "i32")],
)
def test_promotion_follows_pytorch(a: str, b: str, joined: str) -> None:
    assert dt.promote(dt.BY_NAME[a], dt.BY_NAME[b]) is dt.BY_NAME[joined]


def test_same_type_never_guesses() -> None:
    symbolic, fixed = TensorType(dt.float32, (N,)), TensorType(dt.float32, (3,))
    assert not same_type(symbolic, fixed)
    assert same_type(symbolic, TensorType(dt.float32, (N + 1 - 1,)))
    assert not same_type(fixed, TensorType(dt.float32, (3,), "cuda:0"))
    assert not same_type(TupleType((fixed,)), fixed)
    assert same_type(TupleType((fixed, symbolic)), TupleType((fixed, symbolic)))


def test_attributes_are_the_same_only_where_they_mean_the_same() -> None:
    assert attribute_key(0.0) != attribute_key(-0.0)
    assert attribute_key(float("nan")) == attribute_key(float("nan"))
    assert attribute_key((1, True)) != attribute_key((1, 1))
    # -1 and -2 have the same hash, so these collide in a dict, where `==` of dims would raise.
    assert attribute_key((-N,)) != attribute_key((-2 * N,))
    assert same_op(Pad((N,), (0,), (0,)), Pad((N,), (0,), (0,)))
    assert not same_op(Pad((N,), (0,), (0,)), Pad((3,), (0,), (0,)))


# --- graphs --------------------------------------------------------------------------------------------------------


def test_nodes_come_in_creation_order_and_without_dead_code() -> None:
    x = param("x", F3)
    a, dead, b = tanh(x), tanh(x), tanh(x)
    c = b + a
    assert Graph("g", (x,), (c,)).nodes == (x, a, b, c)
    assert dead not in Graph("g", (x,), (c,)).nodes


def test_uses_count_reads_and_results() -> None:
    x = param("x", F3)
    y = x + x
    assert Graph("g", (x,), (y, y)).uses() == {x: 2, y: 2}


def test_rebuild_shares_what_it_does_not_touch() -> None:
    x, y = param("x", F3), param("y", F3)
    a, b = tanh(x), tanh(y)
    g = rebuild(Graph("g", (x, y), (a + b,)), {b: y})
    assert g.results[0].inputs == (a, y)


def test_with_inputs_keeps_name_and_line() -> None:
    x, y = param("x", F3), param("y", F3)
    a = tanh(x)
    a.label, a.where = "a", "f.py:1"
    b = a.with_inputs((y,))
    assert (b.op, b.inputs, b.label, b.where) == (a.op, (y,), "a", "f.py:1")


# --- the invariants ------------------------------------------------------------------------------------------------


def broken(match: str, g: Graph) -> str:
    with pytest.raises(IRError, match=match) as caught:
        verify(g)
    return str(caught.value)


def test_verify_wants_closed_graphs() -> None:
    x, y = param("x", F3), param("y", F3)
    message = broken("%y is read but is not a parameter", Graph("g", (x,), (x + y,)))
    assert "> %" in message


def test_verify_wants_distinct_param_nodes() -> None:
    x = param("x", F3)
    broken("a parameter occurs twice", Graph("g", (x, x), (x,)))
    broken("parameter is a tanh, not a param node", Graph("g", (tanh(x),), ()))


def test_verify_wants_inputs_before_readers() -> None:
    x = param("x", F3)
    a, b = tanh(x), tanh(x)
    a.inputs = (b,)
    broken("is read before it is defined", Graph("g", (x,), (a,)))


def test_verify_wants_the_types_that_ops_give() -> None:
    x = param("x", F3)
    wrong = Node(Tanh(), (x,), TensorType(dt.float32, (4,)))
    message = broken(r"tanh gives f32\[3\], the node says f32\[4\]", Graph("g", (x,), (tanh(wrong),)))
    assert "> %0 = tanh(%x) : f32[4]" in message


def test_verify_reports_what_an_op_does_not_accept() -> None:
    x = param("x", F3)
    broken("does not accept its inputs", Graph("g", (x,), (Node(Add(), (x,), F3),)))
    broken("does not accept its inputs: reduce_sum", Graph("g", (x,), (Node(ReduceSum((1,)), (x,), F3),)))


def test_verify_wants_tuples_read_by_items() -> None:
    x = param("x", F3)
    both = Node.of(Sort(0, False, True), (x,))
    broken("tanh reads all results of sort at once", Graph("g", (x,), (Node(Tanh(), (both,), F3),)))
    broken("a result of the graph has the tuple type", Graph("g", (x,), (both,)))


def test_verify_wants_immutable_attributes() -> None:
    x = param("x", F3)
    broken("an attribute of reduce_sum is a list", Graph("g", (x,), (Node.of(ReduceSum([0]), (x,)),)))


def test_verify_wants_bound_symbols() -> None:
    x = param("x", F3)
    node = Node.of(Const(0.0, TensorType(dt.float32, (N,))), ())
    broken("symbol n occurs in no parameter's type", Graph("g", (x,), (node,)))
    verify(Graph("g", (param("y", TensorType(dt.float32, (N,))),), (node,)))


def test_verify_wants_readable_symbols() -> None:
    x = param("x", TensorType(dt.float32, (Sym("f32"),)))
    broken("'f32' cannot be the name of a symbol", Graph("g", (x,), (x,)))


def test_verify_accepts_a_result_that_is_a_parameter() -> None:
    x = param("x", F3)
    verify(Graph("g", (x,), (x, x)))


# --- bind ----------------------------------------------------------------------------------------------------------


def test_bind_gives_the_graph_of_one_extent() -> None:
    g = parse(
        "graph @f(%x: f32[n, 4]) -> f32[4*n] where 1 <= n <= 8 {\n"
        "  %0 = reshape(%x, shape=[4*n]) : f32[4*n]\n  return %0\n}"
    )
    seven = bind(g, {"n": 7})
    verify(seven)
    assert seven.ranges == ()
    assert run(seven, [np.zeros((7, 4), np.float32)])[0].shape == (28,)
    with pytest.raises(OpError, match="n = 9 is outside 1 <= n <= 8"):
        bind(g, {"n": 9})


# --- large graphs --------------------------------------------------------------------------------------------------

DEEP = 100_000


@pytest.fixture(scope="module")
def deep() -> Graph:
    """A chain whose gradient reads every node again."""
    x = param("x", TensorType(dt.float32, (2,)))
    y = x
    for _ in range(DEEP):
        y = Node(Sin(), (y,), y.type)
    return Graph("deep", (x,), (Node.of(ReduceSum((0,)), (y,)),))


def test_deep_graphs_verify_print_and_parse(deep: Graph) -> None:
    verify(deep)
    text = to_text(deep)
    again = parse(text)
    assert len(again.nodes) == DEEP + 2
    assert to_text(again) == text
    assert len(fingerprint(deep)) == 64


def test_deep_graphs_run(deep: Graph) -> None:
    (y,) = run(deep, [np.array([0.5, -0.5], np.float32)])
    assert abs(y) < 0.01


@pytest.mark.slow
def test_deep_graphs_differentiate_and_optimize(deep: Graph) -> None:
    gradient = grad(deep, (0,))
    assert len(gradient.nodes) >= 3 * DEEP
    assert len(optimize(gradient).nodes) <= len(gradient.nodes)


def test_deep_graphs_are_freed_at_once_without_a_collector() -> None:
    x = param("x", F3)
    first = y = Node(Tanh(), (x,), F3)
    for _ in range(DEEP):
        y = Node(Tanh(), (y,), F3)
    alive = weakref.ref(first)
    gc.disable()
    try:
        del first, y
        assert alive() is None
    finally:
        gc.enable()


def test_wide_graphs_are_one_line_per_node() -> None:
    xs = [param(f"x{i}", F3) for i in range(2_000)]
    g = Graph("wide", tuple(xs), (Node.of(Concat(0), xs),))
    verify(g)
    assert same(parse(to_text(g)).results[0].shape[0], 6_000)
    assert isinstance(xs[0].op, Param)
    assert isinstance(2 * N, Dim)
