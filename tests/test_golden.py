"""tests/golden/*.ir: parse, verify, print again, run the pass, verify, compare text; then run both graphs and compare
values.

    # pass: algebra
    graph @before(...) ...

    # becomes
    graph @before(...) ...

`pytest --bless tests/test_golden.py` rewrites what stands below `# becomes`; review the diff like code.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracejit.ops  # noqa: F401  (registers every op)
from tracejit.ir.dim import symbols
from tracejit.ir.dtype import DType
from tracejit.ir.graph import Graph, run
from tracejit.ir.parser import parse
from tracejit.ir.printer import to_text
from tracejit.ir.verify import verify
from tracejit.passes.bind import bind
from tracejit.passes.dedupe import dedupe
from tracejit.passes.fold import fold
from tracejit.passes.grad import grad
from tracejit.passes.pipeline import EXACT, RULES, optimize
from tracejit.passes.remat import split
from tracejit.passes.rewrite import rewrite

FOLDER = Path(__file__).parent / "golden"
CASE = re.compile(r"# pass: (.*)\n((?:.*\n)*?)\n# becomes\n((?:.*\n)*?\}\n)(?=\n|\Z)")


def gradient(g: Graph) -> Graph:
    return grad(g, [i for i, p in enumerate(g.params) if p.dtype.is_floating_point])


def halves(g: Graph) -> tuple[Graph, Graph]:
    """The forward and backward graphs; parameters named g... are cotangents, results that depend on them backward's."""
    cotangents = {p for p in g.params if p.op.label.startswith("g")}
    late = set(cotangents)
    for n in g.nodes:
        if late.intersection(n.inputs):
            late.add(n)
    early = [r for r in g.results if r not in late]
    params = [p for p in g.params if p not in cotangents]
    both = split(
        early, [r for r in g.results if r in late], params, [p for p in g.params if p in cotangents], name=g.name
    )
    return both.forward, both.backward


# Passes that keep what a graph computes, and passes that make another graph.
SAME: dict[str, Callable[[Graph], Graph]] = {
    "algebra": lambda g: rewrite(g, EXACT),
    "algebra inexact": lambda g: rewrite(g, RULES),
    "fold": fold,
    "dedupe": dedupe,
    "optimize": optimize,
    "bind n=3": lambda g: bind(g, {"n": 3}),
}
OTHER: dict[str, Callable[[Graph], Graph]] = {
    "grad": gradient,
    "grad, optimize": lambda g: optimize(gradient(g)),
    "split forward": lambda g: halves(g)[0],
    "split backward": lambda g: halves(g)[1],
}


def cases() -> list[Any]:
    out = []
    for file in sorted(FOLDER.glob("*.ir")):
        for k, (name, before, after) in enumerate(CASE.findall(file.read_text())):
            title = re.search(r"graph @([\w.]+)", before)
            out.append(pytest.param(file, k, name, before, after, id=f"{file.stem}-{title[1] if title else k}"))
    return out


def arguments(g: Graph) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [draw(rng, p.dtype, p.shape) for p in g.params]


def draw(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    if dtype.kind == "f":
        return rng.uniform(0.5, 2, shape).astype(dtype.numpy)
    return rng.integers(0, 2 if dtype.kind == "b" else 9, shape).astype(dtype.numpy)


def concrete(g: Graph) -> Graph:
    names = {s for p in g.params for s in symbols(p.shape)}
    low = {symbol: lowest for lowest, symbol, _ in g.ranges}
    return bind(g, {n: max(3, low.get(n, 3)) for n in names})


@pytest.mark.parametrize(("file", "k", "name", "before", "after"), cases())
def test_golden(file: Path, k: int, name: str, before: str, after: str, bless: bool) -> None:
    source = parse(before)
    verify(source)
    assert to_text(source) == before  # what the file says is canonical
    result = (SAME | OTHER)[name](source)
    verify(result)
    if bless:
        replace_half(file, k, to_text(result))
    else:
        assert to_text(result) == after
    if name in SAME:
        expected, got = (run(concrete(g), arguments(concrete(g))) for g in (source, result))
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5 if "inexact" in name else 0)


def replace_half(file: Path, k: int, text: str) -> None:
    whole = file.read_text()
    match = list(CASE.finditer(whole))[k]
    file.write_text(whole[: match.start(3)] + text + whole[match.end(3) :])


def test_every_case_is_found() -> None:
    for file in FOLDER.glob("*.ir"):
        text = file.read_text()
        assert len(CASE.findall(text)) == text.count("# pass: ") == text.count("# becomes"), file.name
