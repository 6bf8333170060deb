"""Random graphs made of the ops' own samples: each pass alone, the pipeline, the text form and compiled code against
the oracle.

A failure is made smaller (values become parameters, results are dropped) and its text is put into the message; save it
as tests/regress/<issue>.ir, where it is tried for ever after:

    # seed: 17
    graph @small(...) ...
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracejit.ops  # noqa: F401  (registers every op)
from tracejit.codegen.compile import build
from tracejit.errors import TracejitError
from tracejit.ir import dtype as dt
from tracejit.ir.dtype import DType
from tracejit.ir.graph import Graph, param, run
from tracejit.ir.node import Node
from tracejit.ir.op import Item, Op, Param, Sample
from tracejit.ir.parser import parse
from tracejit.ir.printer import to_text, to_text_with_arrays
from tracejit.ir.types import TensorType, TupleType, same_type
from tracejit.ir.verify import verify
from tracejit.ops.pointwise import Pointwise, Select
from tracejit.ops.source import Const
from tracejit.passes.dedupe import dedupe
from tracejit.passes.fold import fold
from tracejit.passes.pipeline import EXACT, RULES, optimize
from tracejit.passes.rewrite import Pattern, PatternRule, rewrite

Case = tuple[Graph, list[np.ndarray]]
REGRESS = sorted((Path(__file__).parent / "regress").glob("*.ir"))
NUMBERS = (0.0, 1.0, -1.0, -0.0, 2.0, 0.25, 3.0)

PASSES: dict[str, Callable[[Graph], Graph]] = {
    "dedupe": dedupe,
    "fold": fold,
    "algebra": lambda g: rewrite(g, EXACT),
    "optimize": optimize,
    "text": lambda g: parse(*to_text_with_arrays(g)),
}

# Compiled code may round differently; through these a last bit becomes a different answer.
STEEP = frozenset({
    "floor", "ceil", "round", "sign", "floordiv", "mod", "eq", "lt", "le", "argmax", "argmin", "sort", "nonzero",
    "cast", "reduce_prod", "pow", "lgamma", "polygamma", "log", "log1p", "sqrt", "cumprod", "div", "tan", "exp",
    "expm1",
})  # fmt: skip


# --- making graphs --------------------------------------------------------------------------------------------------


@cache
def samples() -> tuple[Sample, ...]:
    """Small samples of all ops, without symbols; the pointwise ones and what matches them most often."""
    rng = np.random.default_rng(0)
    out: list[Sample] = []
    for name, cls in sorted(Op.registry.items()):
        if name in ("param", "item", "to_device") or cls.eval is Op.eval:
            continue
        mine = [s for s in cls.samples(rng) if not s.dims and all(a.size <= 64 for a in s.inputs)]
        out += mine[:: max(1, len(mine) // 12)]
    return tuple(out)


def random_case(seed: int, size: int = 25, skip: frozenset[str] = frozenset()) -> Case:
    """A graph of about `size` ops that reuse each other's values, and arguments for it."""
    rng = np.random.default_rng(seed)
    choices = [s for s in samples() if s.op.name not in skip]
    choices += 3 * [s for s in choices if isinstance(s.op, Pointwise) and s.inputs[0].dtype in (np.float32, np.bool_)]
    patterns = [
        p for r in RULES if isinstance(r, PatternRule) for p in r.patterns if p.holes[0].dtype in (dt.float32, dt.bool_)
    ]
    params: list[Node] = []
    args: list[np.ndarray] = []
    values: list[Node] = []

    def new_input(array: np.ndarray) -> Node:
        type = TensorType(dt.from_numpy(array.dtype) or dt.float64, array.shape)
        kind = rng.random()
        if array.dtype.kind == "f" and kind < 0.25:
            return Node.of(Const(float(rng.choice(NUMBERS)), type), ())
        params.append(param(f"p{len(params)}", type))
        args.append(array)
        return params[-1]

    def pick(array: np.ndarray, anywhere: bool) -> Node:
        """A value there is, of the array's type (or, where the op takes any shape, its dtype), else the array."""
        dtype = dt.from_numpy(array.dtype)
        # Integers may be positions, which have to stay in range: only float values are exchanged.
        fits = [v for v in values if v.dtype is dtype and dtype.kind in "fb" and (anywhere or v.shape == array.shape)]
        return fits[rng.integers(len(fits))] if fits and rng.random() < 0.85 else new_input(array)

    def pick_like(v: Node) -> Node:
        fits = [w for w in values if same_type(w.type, v.type)]
        return fits[rng.integers(len(fits))]

    while len(values) < size:
        if values and rng.random() < 0.25:  # what some rule is about, so that rules meet each other
            p = patterns[rng.integers(len(patterns))]
            fits = [v for v in values if all(v.dtype is h.dtype for h in p.holes)]
            if fits and not {n.op.name for n in Graph("", p.holes, (p.left,)).nodes} & skip:
                v = fits[rng.integers(len(fits))]
                values.append(filled_in(p, [v if rng.random() < 0.5 else pick_like(v) for _ in p.holes], v))
            continue
        s = choices[rng.integers(len(choices))]
        if isinstance(s.op, (Pointwise, Select)) and values and s.inputs and rng.random() < 0.9:
            first = pick(s.inputs[-1], anywhere=True)
            shape = tuple(first.shape)
            inputs = [pick(np.resize(a, shape).astype(a.dtype), anywhere=False) for a in s.inputs[:-1]] + [first]
        else:
            inputs = [pick(a, anywhere=False) for a in s.inputs]
        try:
            made = Node.build(s.op, inputs)
        except TracejitError:  # a value of the right dtype in a shape the op does not take
            continue
        made = made if isinstance(made, tuple) else (made,)
        values += [m for m in made if m.type.size <= 256]
    readers = {i for v in values for i in v.inputs}
    return Graph(f"fuzz{seed}", tuple(params), tuple(v for v in values if v not in readers)), args


def filled_in(p: Pattern, values: Sequence[Node], like: Node) -> Node:
    """The left side of a rule's pattern on tensors."""
    new = dict(zip(p.holes, values, strict=True))
    for n in Graph("", p.holes, (p.left,)).nodes:
        if isinstance(n.op, Const):
            new[n] = Node.of(Const(n.op.value, like.type.with_dtype(n.dtype)), ())
        elif n not in new:
            new[n] = Node.of(n.op, [new[i] for i in n.inputs])
    return new[p.left]


# --- comparing ------------------------------------------------------------------------------------------------------


def same_bits(a: Any, b: Any) -> bool:
    """Equal bits, but that any nan equals any nan."""
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    raw_a, raw_b = (np.frombuffer(np.ascontiguousarray(x).tobytes(), f"V{x.itemsize}") for x in (a, b))
    with np.errstate(all="ignore"):
        return not ((raw_a != raw_b) & ~((a != a) & (b != b)).ravel()).any()


def is_close(a: Any, b: Any) -> bool:
    """Equal up to the roundings of a few dozen ops."""
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if dt.from_numpy(a.dtype).kind != "f":
        return bool((a == b).all())
    tolerance = {2: 5e-2, 4: 1e-4, 8: 1e-9}[a.itemsize]
    x, y = a.astype(np.float64), b.astype(np.float64)
    finite = np.abs(y[np.isfinite(y)])
    scale = max(1.0, float(finite.max(initial=0.0)))
    with np.errstate(all="ignore"):
        return bool((np.isclose(x, y, rtol=tolerance, atol=tolerance * scale, equal_nan=True)).all())


def differs(run_other: Callable[[Case], Sequence[Any]], same: Callable[[Any, Any], bool]) -> Callable[[Case], bool]:
    def check(case: Case) -> bool:
        with np.errstate(all="ignore"):
            expected = run(*case)
            got = run_other(case)
        return len(got) != len(expected) or not all(map(same, got, expected))

    return check


def shrink(case: Case, fails: Callable[[Case], bool]) -> Case:
    """A smaller case that still fails: one result, and as many values as possible turned into parameters."""
    graph, args = case
    for n in graph.nodes:
        alone = graph.with_results((n,))
        if not isinstance(n.type, TupleType) and fails((alone, args)):
            graph = alone
            break
    for n in reversed(graph.nodes[:-1]):
        if n in graph.nodes and not isinstance(n.op, (Param, Item, Const)) and not isinstance(n.type, TupleType):
            with np.errstate(all="ignore"):
                (value,) = run(graph.with_results((n,)), args)
            smaller = cut(graph, args, n, np.asarray(value))
            if fails(smaller):
                graph, args = smaller
    used = {i for n in graph.nodes for i in n.inputs} | set(graph.results)
    kept = [(p, a) for p, a in zip(graph.params, args, strict=True) if p in used]
    return Graph(graph.name, tuple(p for p, _ in kept), graph.results), [a for _, a in kept]


def cut(graph: Graph, args: list[np.ndarray], at: Node, value: np.ndarray) -> Case:
    """`graph` with `at` as a parameter of that value."""
    fresh = param(f"c{at.id}", at.type)
    new: dict[Node, Node] = {p: p for p in graph.params} | {at: fresh}
    for n in graph.nodes:
        if n not in new:
            inputs = tuple(new[i] for i in n.inputs)
            new[n] = n if inputs == n.inputs else n.with_inputs(inputs)
    return Graph(graph.name, (*graph.params, fresh), tuple(new[r] for r in graph.results)), [*args, value]


def expect_same(case: Case, fails: Callable[[Case], bool], what: str) -> None:
    if fails(case):
        graph, args = shrink(case, fails)
        shown = "\n".join(f"%{p.op.label} = {a!r}" for p, a in zip(graph.params, args, strict=True))
        pytest.fail(f"{what} differs from the oracle on\n{to_text(graph)}{shown}")


# --- the tests ------------------------------------------------------------------------------------------------------


def through(name: str) -> Callable[[Case], Sequence[Any]]:
    def other(case: Case) -> Sequence[Any]:
        after = PASSES[name](case[0])
        verify(after)
        return run(after, case[1])

    return other


@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize("seed", range(40))
def test_passes_keep_every_bit(name: str, seed: int) -> None:
    case = random_case(seed)
    verify(case[0])
    expect_same(case, differs(through(name), same_bits), name)


@pytest.mark.parametrize("seed", range(20))
def test_optimizing_twice_changes_nothing_more(seed: int) -> None:
    once = optimize(random_case(seed)[0])
    assert to_text(optimize(once)) == to_text(once)


def compiled(case: Case) -> Sequence[Any]:
    return build(optimize(case[0]))(case[1])


@pytest.mark.parametrize("seed", range(1000, 1012))
def test_compiled_code_agrees_with_the_oracle(seed: int) -> None:
    expect_same(random_case(seed, 15, STEEP), differs(compiled, is_close), "compiled code")


def drawn(dtype: DType, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    if dtype.kind == "f":
        return rng.choice([*NUMBERS, np.nan, np.inf, -np.inf, 1e-40, 0.3, -7.5], shape).astype(dtype.numpy)
    return rng.integers(0, 2, shape).astype(dtype.numpy)


@pytest.mark.parametrize("file", REGRESS, ids=lambda f: f.stem)
def test_what_once_failed(file: Path) -> None:
    text = file.read_text()
    rng = np.random.default_rng(int(m[1]) if (m := re.search(r"# seed: (\d+)", text)) else 0)
    graph = parse(text)
    verify(graph)
    case = graph, [drawn(p.dtype, p.shape, rng) for p in graph.params]
    for name in PASSES:
        expect_same(case, differs(through(name), same_bits), name)
    expect_same(case, differs(compiled, is_close), "compiled code")


def test_a_failure_is_made_small() -> None:
    case = random_case(3)
    wrong = differs(lambda c: [r * 0 + 1 if r.dtype == np.float32 else r for r in run(*c)], same_bits)
    assert wrong(case)
    graph, args = shrink(case, wrong)
    assert wrong((graph, args))
    assert len(graph.nodes) < len(case[0].nodes) / 2
