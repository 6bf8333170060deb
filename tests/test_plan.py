"""Plans: a graph that was built before is neither optimised nor scheduled again, whatever became of the file."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracejit.ops  # noqa: F401  (registers the ops)
from tracejit import config
from tracejit.codegen.compile import Miss, build
from tracejit.codegen.llvm import native, plan
from tracejit.codegen.llvm.families import Family
from tracejit.codegen.llvm.native import Native
from tracejit.ir.dim import Sym
from tracejit.ir.dtype import float32
from tracejit.ir.graph import Graph, param, run
from tracejit.ir.node import Node, constant
from tracejit.ir.op import ArrayConst
from tracejit.ir.types import TensorType
from tracejit.ops import pointwise as p
from tracejit.ops.contract import MatMul
from tracejit.ops.order import Sort
from tracejit.ops.reduce import ReduceSum
from tracejit.ops.source import Const
from tracejit.runtime import engine, store
from tracejit.runtime.program import Arena

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    with config.override(cache_dir=str(tmp_path)):
        yield tmp_path


def f32(*shape: int, label: str = "x") -> Node:
    return param(label, TensorType(float32, shape))


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(np.float32)


def layer(label: str = "x") -> Graph:
    """A product, a vector function, a sum, and what the passes take away."""
    x, w = f32(4, 8, label=label), f32(8, 20, label="w")
    y = p.Exp()(MatMul()(x, w) * 0.1 + 0.0)
    negative = -y
    return Graph("layer", (x, w), (y, ReduceSum((1,))(y), -negative))


def kept(graph: Graph, **how: Any) -> Native:
    """Build it as a process would that has not seen it; it must have been found."""
    store.current().forget()
    out = build(graph, **how)
    assert isinstance(out, Native)
    assert out.was_kept
    return out


def same(a: Any, b: Any) -> None:
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y, strict=True)


def test_a_kept_plan_gives_the_same_and_neither_optimises_nor_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    args = floats(4, 8), floats(8, 20)
    first = build(layer(), optimize=True)
    assert isinstance(first, Native)
    assert not first.was_kept
    kernels = [str(k) for k in first.kernels]
    with monkeypatch.context() as m:
        m.setattr(native, "lay_out", None)
        m.setattr(engine, "_emit", None)
        again = kept(layer(), optimize=True)
        same(first(args), again(args))
    assert [str(k) for k in again.kernels] == kernels
    assert "define" in again.text


def test_names_of_parameters_do_not_matter_but_the_graph_does() -> None:
    build(layer())
    kept(layer("other_name"))
    x = f32(4, 8)
    other = build(Graph("layer", (x,), (p.Exp()(x),)))
    assert isinstance(other, Native)
    assert not other.was_kept


@pytest.mark.parametrize("damage", ["truncated", "flipped", "other bytes", "no JSON", "another form", "object gone"])
def test_what_cannot_be_read_is_made_again(folder: Path, damage: str) -> None:
    args = floats(4, 8), floats(8, 20)
    first = build(layer())
    key = plan.key(layer(), {}, (), False)
    assert key is not None
    here = store.current()
    file = here._path(key)
    blob = file.read_bytes()
    match damage:
        case "truncated":
            file.write_bytes(blob[: len(blob) // 2])
        case "flipped":
            file.write_bytes(blob[:-5] + bytes([blob[-5] ^ 1]) + blob[-4:])
        case "other bytes":
            file.write_bytes(b"")
        case "no JSON":
            store.put(key, b"\xff\x00")
        case "another form":
            store.put(key, b'{"params": [["f99", [1]]]}')
        case _:
            file_of = here._path(first.plan.objects[0].key)  # type: ignore[attr-defined]
            file_of.unlink()
    store.current().forget()
    second = build(layer())
    assert isinstance(second, Native)
    assert not second.was_kept
    same(first(args), second(args))
    same(first(args), kept(layer())(args))


def counter() -> Graph:
    """x += 1 where sum(x) is 6 and flag holds; returns 2 x."""
    x, flag = f32(3), f32(label="flag")
    return Graph("count", (x, flag), (x + 1.0, x * 2.0, ReduceSum((0,))(x), flag))


@pytest.mark.parametrize("flag", [math.nan, -0.0, 2.5])
def test_updates_and_checks_survive(flag: float) -> None:
    how: dict[str, Any] = {"updates": {0: 0}, "checks": [(2, 6.0), (3, flag)]}
    build(counter(), **how)
    again = kept(counter(), **how)
    x = np.array([1, 2, 3], np.float32)
    out = again([x, np.array(flag, np.float32)])
    assert isinstance(out, tuple)
    same(out, [np.array([2, 4, 6], np.float32)])
    same([x], [np.array([2, 3, 4], np.float32)])
    assert again([x, np.array(flag, np.float32)]) == Miss(0, np.float32(9))
    same([x], [np.array([2, 3, 4], np.float32)])
    x[:] = 2
    assert again([x, np.array(0.0, np.float32)]) == Miss(1, np.float32(0))


def optimizer_like(count: int, size: int) -> tuple[Graph, dict[int, int]]:
    """Many small updates in place, each of a parameter of its own, by a rate computed once."""
    rate = f32(label="rate")
    params = [f32(size + k % 3, label=f"p{k}") for k in range(count)]
    new = [x - x * p.Exp()(rate) for x in params]
    return Graph("step", (rate, *params), tuple(new)), {k: k + 1 for k in range(count)}


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_short_kernels_that_do_not_wait_for_each_other_are_a_batch(threads: int) -> None:
    graph, updates = optimizer_like(20, 9000)
    first = build(graph, updates=updates)
    assert isinstance(first, Native)
    again = kept(optimizer_like(20, 9000)[0], updates=updates)
    for built in (first, again):
        (segment,) = built.plan.parts
        assert isinstance(segment, plan.Segment)
        (batch,) = segment.batches
        assert batch.stop - batch.first == 20
        args = [np.array(0.3, np.float32), *(floats(9000 + k % 3) for k in range(20))]
        want = [x - x * np.exp(args[0]) for x in args[1:]]
        with config.override(threads=threads):
            built(args)
        for x, y in zip(args[1:], want, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def test_kernels_of_a_batch_share_no_memory_that_one_of_them_writes() -> None:
    x, w = [f32(96, 96, label=f"x{k}") for k in range(8)], f32(96, 96, label="w")
    first = [MatMul()(v, w) for v in x]
    between = [p.Exp()(m * 0.1) for m in first]  # each reads what nobody reads after it, and writes for a product
    out = build(Graph("g", (*x, w), tuple(MatMul()(b, w) for b in between)))
    assert isinstance(out, Native)
    (segment,) = out.plan.parts
    assert isinstance(segment, plan.Segment)
    (batch,) = segment.batches
    inside = segment.steps[batch.first : batch.stop]
    places = {arg for s in inside for arg in s.args}
    assert len(inside) == 8
    assert len(places) == 16
    assert all(isinstance(place, Arena) for place in places)
    args = [*(floats(96, 96) for _ in x), floats(96, 96)]
    results = out(args)
    assert isinstance(results, tuple)
    for got, v in zip(results, args, strict=False):
        want = np.exp(v @ args[-1] * np.float32(0.1)) @ args[-1]
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-2)


def test_another_call_of_the_same_graph_is_another_plan() -> None:
    calls: list[dict[str, Any]] = [
        {}, {"updates": {0: 0}}, {"checks": [(2, 6.0)]}, {"checks": [(3, 0.0)]}, {"checks": [(3, -0.0)]},
        {"checks": [(3, math.nan)]}, {"optimize": True},
    ]  # fmt: skip
    for how in calls:
        out = build(counter(), **how)
        assert isinstance(out, Native)
        assert not out.was_kept, how


def test_host_steps_survive() -> None:
    x = f32(2, 5)
    values, order = Sort(1, False, True)(p.Polygamma(0)(x * x + 1.0))
    graph = Graph("host", (x,), (values, order, values + 1.0))
    first = build(graph)
    again = kept(graph)
    assert again.host_ops == first.host_ops
    assert "polygamma" in again.host_ops
    data = floats(2, 5)
    same(first([data]), again([data]))
    same(run(graph, [data]), again([data]))


def test_constants_survive_unless_they_are_large() -> None:
    def plus(array: np.ndarray[Any, Any]) -> Graph:
        x = f32(*array.shape)
        return Graph("plus", (x,), (x + Node.of(Const(ArrayConst(array), x.type), ()),))

    small, large = floats(3, 7), floats(600, 600)
    build(plus(small))
    again = kept(plus(small))
    same(again([small]), [small + small])
    for _ in range(2):
        out = build(plus(large))
        assert isinstance(out, Native)
        assert not out.was_kept
    same(build(plus(large))([large]), [large + large])


def test_each_shape_of_a_symbolic_graph_has_its_plan() -> None:
    def graph() -> Graph:
        x = param("x", TensorType(float32, (Sym("n"), 3)))
        return Graph("rows", (x,), (ReduceSum((1,))(x * x),))

    first, again = build(graph(), optimize=True), build(graph(), optimize=True)
    for n in (2, 5):
        data = floats(n, 3)
        same(first([data]), again([data]))
    assert isinstance(again, Family)
    assert all(e.was_kept for e in again.known.values())


@pytest.mark.parametrize("what", ["cpu_key", "sources", "numpy"])
def test_another_machine_or_version_has_another_key(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    before = plan.key(layer(), {}, (), True)
    match what:
        case "cpu_key":
            monkeypatch.setattr(engine, "cpu_key", lambda: "another")
        case "sources":
            monkeypatch.setattr(store, "sources", lambda folders: "another")
        case _:
            monkeypatch.setattr(np, "__version__", "another")
    after = plan.key(layer(), {}, (), True)
    assert after is not None
    assert after != before


def test_ops_from_elsewhere_and_passes_to_be_seen_are_not_kept(folder: Path) -> None:
    @dataclass(frozen=True)
    class Mine(p.Exp):
        name = ""

    x = f32(3)
    assert plan.key(Graph("mine", (x,), (Mine()(x),)), {}, (), False) is None
    with config.override(dump=str(folder / "dump")):
        assert plan.key(layer(), {}, (), True) is None
    with config.override(verify_passes=True):
        assert plan.key(layer(), {}, (), True) is None


def test_sources_edited_since_they_were_loaded_are_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert store.sources.__wrapped__(("ir",))
    monkeypatch.setattr(config, "LOADED", 0.0)
    assert store.sources.__wrapped__(("ir",)) == ""


def test_the_same_sources_elsewhere_have_the_same_digest(tmp_path: Path) -> None:
    """Or a pack of compiled code would be of no use on another machine."""
    package, copy = Path(store.__file__).parents[1], tmp_path / "copy"
    digest = store.sources.__wrapped__(("ir", "runtime"))
    assert digest

    def written(root: Path, seconds: float) -> str:
        for number, file in enumerate(sorted(root.glob("*/*.py"))):
            os.utime(file, ns=(0, int(seconds * 1e9) + number))
        return store._sources(root, ("ir", "runtime"))

    for name in ("ir", "runtime"):
        shutil.copytree(package / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for seconds in (1e9 + 0.25, 1e9 + 0.5, 1e9):  # the last as in archives whose times are made up
        assert written(copy, seconds) == digest
        assert written(copy, seconds) == digest  # as it was kept
    edited = copy / "ir" / "dim.py"
    text = edited.read_text()
    edited.write_text(text.replace("a", "b", 1))
    assert written(copy, 1e9) != digest
    assert written(copy, 1e9 + 0.75) != digest
    edited.write_text(text)
    assert written(copy, 1e9 + 0.875) == digest
    assert written(copy, config.LOADED + 3600) == ""


def test_another_process_finds_the_plan_and_imports_no_scheduler(folder: Path) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from tracejit import config
config.update(cache_dir={str(folder)!r})
from test_plan import layer, build
print(build(layer(), optimize=True).was_kept, "tracejit.codegen.schedule" in sys.modules)
"""
    seen = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
        for _ in range(2)
    ]
    assert seen == [["False", "True"], ["True", "False"]]


def test_constants_are_exact_in_the_key() -> None:
    def times(value: float) -> Graph:
        x = f32(3)
        return Graph("times", (x,), (x * constant(x, value, float32),))

    keys = {plan.key(times(v), {}, (), False) for v in (0.0, -0.0, 1.0, math.nan, math.inf, 1.0000001)}
    assert len(keys) == 6
