"""The text form: canonical, exact both ways, hygienic, and clear about what is wrong with a text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tracejit.ops  # noqa: F401  (registers every op)
from tracejit.errors import IRError, ParseError
from tracejit.ir import dtype as dt
from tracejit.ir.dim import Sym
from tracejit.ir.dtype import DType
from tracejit.ir.graph import Graph, param, run
from tracejit.ir.node import Node
from tracejit.ir.op import ArrayConst, Op, same_op
from tracejit.ir.parser import parse, parse_type
from tracejit.ir.printer import clean_name, excerpt, fingerprint, to_text, to_text_with_arrays
from tracejit.ir.types import TensorType, same_type
from tracejit.ir.verify import verify
from tracejit.ops.order import Sort
from tracejit.ops.pointwise import exp, tanh
from tracejit.ops.source import Const

ERRORS = [
    pytest.param(case, id=f"{file.stem}-{re.search('@([a-z_]+)', case)[1]}")
    for file in sorted((Path(__file__).parent / "errors").glob("*.ir"))
    for case in re.split(r"\n\n", file.read_text())
]


@dataclass(frozen=True)
class Everything(Op):
    """Attributes of every kind; it exists in this file only."""

    name = "everything_in_tests"
    flag: bool
    number: int
    real: float
    word: str
    dtype: DType
    type: TensorType
    nested: tuple[Any, ...]
    nothing: None
    body: Any = None
    fallback: tuple[int, ...] = (1, 2)

    def infer(self, *types: TensorType) -> TensorType:
        return types[0]


del Op.registry[Everything.name]  # other tests go through all ops


@pytest.fixture
def everything(monkeypatch: pytest.MonkeyPatch) -> type[Everything]:
    monkeypatch.setitem(Op.registry, Everything.name, Everything)
    return Everything


def round_trip(g: Graph) -> Graph:
    text, arrays = to_text_with_arrays(g)
    again = parse(text, arrays)
    verify(again)
    assert to_text(again) == text
    assert fingerprint(again) == fingerprint(g)
    return again


FULL = """\
graph @full(%x: f32[n, 3], %y: bf16[2*n^2 - m, m]@cuda:0) -> f32[n, 3], i64[n, 3], f32[3*n] where 1 <= n <= 64 {
  %0 = tanh(%x) : f32[n, 3]                                          # a.py:3
  %v, %_ = sort(%0, axis=1, descending=false, stable=true) : f32[n, 3], i64[n, 3]
  %_, %4 = sort(%v, axis=0, descending=true, stable=false) : f32[n, 3], i64[n, 3]
  %5 = reshape(%x, shape=[3*n]) : f32[3*n]                           # <ipython-input-1>:7
  return %v, %4, %5
}
"""


def test_the_printed_form_is_what_parses() -> None:
    once = to_text(parse(FULL))
    assert to_text(parse(once)) == once
    assert once.splitlines()[0] == FULL.splitlines()[0]


def test_values_of_constants_survive() -> None:
    cases = [
        (dt.float64, (0.1, float("inf"), float("-inf"), float("nan"), -0.0, 0.0, 5e-324, 1.7976931348623157e308)),
        (dt.float32, (0.1, 1e-45, 3.4028234663852886e38, 16777216.0)),
        (dt.float16, (6e-8, 65504.0, -0.0)),
        (dt.bfloat16, (float(ml_dtypes.bfloat16(3.0e38)), 1e-40, -0.0)),
        (dt.int64, (-(2**63), 2**63 - 1)),
        (dt.uint8, (0, 255)),
        (dt.bool_, (True, False)),
    ]
    nodes = [Node.of(Const(v, TensorType(d, ())), ()) for d, values in cases for v in values]
    again = round_trip(Graph("constants", (), tuple(nodes)))
    assert all(same_op(a.op, b.op) for a, b in zip(again.results, nodes, strict=True))
    for a, b in zip(run(again, ()), run(Graph("constants", (), tuple(nodes)), ()), strict=True):
        assert a.tobytes() == b.tobytes()


def test_arrays_live_in_a_side_table() -> None:
    array = np.array([[np.nan, -0.0], [np.inf, 1e-45]], np.float32)
    constant = ArrayConst(array)
    nodes = [Node.of(Const(constant, TensorType(dt.float32, (2, 2))), ()) for _ in range(2)]
    g = Graph("arrays", (), tuple(nodes))
    text, arrays = to_text_with_arrays(g)
    assert text.count("const(@w0)") == 2
    assert arrays["w0"] is array
    assert run(round_trip(g), ())[0].tobytes() == array.tobytes()


def test_attributes_of_every_kind_survive(everything: type[Everything]) -> None:
    n = Sym("n")
    x = param("x", TensorType(dt.float32, (n,)))
    inner_x = param("x", TensorType(dt.float32, (n,)))
    body = Graph("body", (inner_x,), (tanh(tanh(inner_x)),))
    op = everything(
        True, -3, float("-inf"), 'quote " hash # back\\slash\nline é', dt.bfloat16,
        TensorType(dt.bool_, (2 * n - 1,), "cuda:1"), (1, (2.5, -0.0, ()), "w", None, n * n + 1, -n, False), None, body,
    )  # fmt: skip
    g = Graph("attributes", (x,), (Node.of(op, (x,)),))
    (again,) = round_trip(g).results
    for name in ("flag", "number", "real", "word", "dtype", "nested", "nothing", "fallback"):
        assert repr(getattr(again.op, name)) == repr(getattr(op, name))
    assert same_type(again.op.type, op.type)
    assert to_text(again.op.body) == to_text(body)
    assert "fallback" not in to_text(g)


def test_kind_of_attribute_numbers_is_kept(everything: type[Everything]) -> None:
    x = param("x", TensorType(dt.float32, ()))
    op = everything(False, 1, 1.0, "", dt.int8, TensorType(dt.int8, ()), (1, 1.0, True), None)
    (again,) = round_trip(Graph("kinds", (x,), (Node.of(op, (x,)),))).results
    assert [type(v) for v in again.op.nested] == [int, float, bool]


def test_labels_of_users_are_made_distinct_words() -> None:
    x = param("x", TensorType(dt.float32, ()))
    y, z, w, v = tanh(x), exp(x), x + x, x - x
    y.label, z.label, w.label, v.label = "x", "model.layers[0].weight", "3 = évil(%x)\n", "x_1"
    text = to_text(Graph("my graph!", (x,), (y, z, w, v)))
    assert text.splitlines()[0] == "graph @my_graph_(%x: f32[]) -> f32[], f32[], f32[], f32[] {"
    assert [line.split()[0] for line in text.splitlines()[1:5]] == [
        "%x_1",
        "%model.layers.0.weight",
        "%_3_vil_x_",
        "%x_1_1",
    ]
    assert to_text(parse(text)) == text


@pytest.mark.parametrize(
    ("label", "name"),
    [("a", "a"), ("7", "_7"), ("_", "__"), ("", ""), ("args[0].w", "args.0.w"), ("日本", "__"), ("a b", "a_b")],
)
def test_clean_name(label: str, name: str) -> None:
    assert clean_name(label) == name


def test_parameters_may_share_a_label() -> None:
    a, b = (param("x", TensorType(dt.float32, ())) for _ in range(2))
    text = to_text(Graph("g", (a, b), (a + b,)))
    assert "(%x: f32[], %x_1: f32[])" in text
    assert to_text(parse(text)) == text


def test_results_nobody_reads_have_no_name() -> None:
    x = param("x", TensorType(dt.float32, (3,)))
    _, indices = Sort(0, False, True)(x)
    text = to_text(Graph("g", (x,), (indices,)))
    assert "%_, %1 = sort(%x" in text
    assert to_text(parse(text)) == text


def test_a_location_cannot_break_the_text() -> None:
    x = param("x", TensorType(dt.float32, ()))
    y = tanh(x)
    y.where = "a.py:3\n  return %x\n}"
    text = to_text(Graph("g", (x,), (y,)))
    assert to_text(parse(text)) == text
    assert parse(text).results[0].where == "a.py:3 return %x }"


def test_locations_are_optional() -> None:
    g = parse(FULL)
    assert "#" not in to_text(g, locations=False)
    assert to_text(parse(to_text(g, locations=False)), locations=False) == to_text(g, locations=False)


def test_fingerprint_ignores_names_and_lines_only() -> None:
    a = parse("graph @f(%x: f32[3]) -> f32[3] {\n  %y = tanh(%x) : f32[3]  # a.py:1\n  return %y\n}")
    b = parse("graph @g(%z: f32[3]) -> f32[3] {\n  %0 = tanh(%z) : f32[3]\n  return %0\n}")
    c = parse("graph @g(%z: f32[3]) -> f32[3] {\n  %0 = exp(%z) : f32[3]\n  return %0\n}")
    assert fingerprint(a) == fingerprint(b) != fingerprint(c)


def test_fingerprint_covers_contents_of_arrays() -> None:
    def with_array(value: float) -> Graph:
        constant = Const(ArrayConst(np.full(3, value, np.float32)), TensorType(dt.float32, (3,)))
        return Graph("g", (), (Node.of(constant, ()),))

    assert fingerprint(with_array(1)) == fingerprint(with_array(1)) != fingerprint(with_array(2))


def test_empty_graphs() -> None:
    text = "graph @f() -> () {\n  return\n}\n"
    assert to_text(parse(text)) == text
    text = "graph @f(%x: f32[]) -> f32[], f32[] {\n  return %x, %x\n}\n"
    assert to_text(parse(text)) == text


@pytest.mark.parametrize(
    "text", ["f32[]", "bool[0, 1]", "bf16[2*n^2 - m + 1, m*n]@cuda:0", "i64[-n + 3]@cpu", "u8[n]@meta"]
)
def test_types(text: str) -> None:
    assert str(parse_type(text)) == text.removesuffix("@cpu")


def test_numbers_in_dims_are_computed() -> None:
    assert str(parse_type("f32[2*3 + n - n, n + n]")) == "f32[6, 2*n]"


@pytest.mark.parametrize("case", ERRORS)
def test_errors_say_what_and_where(case: str) -> None:
    expected = re.search(r"# error: (.*)", case)[1]
    number = case[: case.index("# error: ")].count("\n") + 1
    text = re.sub(r"\s*# error: .*", "", case)
    try:
        graph = parse(text)
    except ParseError as e:
        message = str(e)
        assert message.startswith(f"line {number}: ") or "end of the text" in message
        assert message.splitlines()[-1].strip() == "^"
    else:
        with pytest.raises(IRError) as caught:
            verify(graph)
        message = str(caught.value)
    assert expected in message


def test_the_caret_points_at_the_culprit() -> None:
    with pytest.raises(ParseError) as caught:
        parse("graph @f(%x: f32[3]) -> f32[3] {\n  %0 = add(%x, %y) : f32[3]\n  return %0\n}")
    assert str(caught.value) == (
        "line 2: %y is not defined\n"
        "  2 |   %0 = add(%x, %y) : f32[3]\n"
        "                     ^"
    )  # fmt: skip


def test_an_excerpt_shows_the_lines_around() -> None:
    g = parse(FULL)
    shown = excerpt(g, g.results[2], around=1).splitlines()
    assert [line[0] for line in shown] == [" ", ">"]
    assert shown[1].startswith("> %5 = reshape(%x")
