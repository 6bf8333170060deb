"""Every registered rule, without being named, holds: on each dtype it accepts, special values included."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tracejit.errors import IRError, TracejitError
from tracejit.ir import dtype as dt
from tracejit.ir.dtype import DType
from tracejit.ir.graph import Graph, param, run
from tracejit.ir.node import Node
from tracejit.ir.op import Param
from tracejit.ir.types import TensorType, same_type
from tracejit.ir.verify import verify
from tracejit.ops.pointwise import Exp, Neg, exp
from tracejit.passes.pipeline import EXACT, RULES
from tracejit.passes.rewrite import Pattern, PatternRule, RootRule, Rule, rewrite, rule, rule_on

SPECIAL = {
    "f": (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 2.5, -3.0, 1e-40, -1e-7, 6e4, 3e38),
    "b": (False, True),
}


def values(dtype: DType) -> np.ndarray:
    """The awkward values of a dtype."""
    if dtype.kind in SPECIAL:
        with np.errstate(all="ignore"):
            return np.array(SPECIAL[dtype.kind]).astype(dtype.numpy)
    info = np.iinfo(dtype.numpy)
    return np.array([info.min, info.min + 1, 0, 1, 2, 3, info.max - 1, info.max], dtype.numpy)


def assert_same_bits(got: Any, want: Any) -> None:
    """Equal bits, but that any nan equals any nan."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    different = np.frombuffer(got.tobytes(), f"V{got.itemsize}") != np.frombuffer(want.tobytes(), f"V{want.itemsize}")
    different &= ~((got != got) & (want != want)).ravel()
    assert not different.any(), f"{got.ravel()[different][:5]} instead of {want.ravel()[different][:5]}"


def assert_close(got: Any, want: Any) -> None:
    """Equal up to a few roundings where both are in the middle of the dtype's range."""
    a, b = np.asarray(got, np.float64), np.asarray(want, np.float64)
    middle = np.isfinite(a) & np.isfinite(b) & (np.abs(b) > 1e-3) & (np.abs(b) < 1e3)
    eps = {2: 2e-2, 4: 1e-5, 8: 1e-12}[np.asarray(want).itemsize]
    np.testing.assert_allclose(a[middle], b[middle], rtol=eps)


def instances(r: Rule) -> Iterator[tuple[Graph, list[np.ndarray], str]]:
    """Graphs in which `r` must fire, and arguments: for patterns every combination of awkward values."""
    if isinstance(r, PatternRule):
        for p in r.patterns:
            yield pattern_instance(p)
        return
    rng = np.random.default_rng(0)
    for example, dtype in itertools.product(r.examples, dt.ALL):
        x = param("x", TensorType(dtype, (2, 3, 4)))
        try:
            graph = Graph(r.name, (x,), (example(x),))
        except TracejitError:  # an op of the example has no meaning for this dtype
            continue
        yield graph, [rng.choice(values(dtype), (2, 3, 4))], dtype.name


def pattern_instance(p: Pattern) -> tuple[Graph, list[np.ndarray], str]:
    lists = [values(h.dtype) for h in p.holes]
    if len(lists) > 3:
        lists = [v[:6] for v in lists]
    grid = [np.ascontiguousarray(g.ravel()) for g in np.meshgrid(*lists)]
    new: dict[Node, Node] = {}
    for n in Graph("", p.holes, (p.left,)).nodes:  # the pattern's scalars become vectors
        shape = grid[0].shape
        if isinstance(n.op, Param):
            new[n] = param(n.op.label, n.type.with_shape(shape))
        elif n.op.name == "const":
            new[n] = Node.of(type(n.op)(n.op.value, n.type.with_shape(shape)), ())
        else:
            new[n] = Node.of(n.op, [new[i] for i in n.inputs])
    return Graph("pattern", tuple(new[h] for h in p.holes), (new[p.left],)), grid, p.holes[-1].dtype.name


@pytest.mark.parametrize("r", RULES, ids=lambda r: f"{r.name}-{r.root.__name__}" if isinstance(r, RootRule) else r.name)
def test_rule_fires_and_keeps_values(r: Rule) -> None:
    fired = 0
    for before, args, _ in instances(r):
        after = rewrite(before, [r])
        verify(after)
        if after.results == before.results:
            assert isinstance(r, RootRule), "a pattern did not match itself"
            continue
        fired += 1
        assert same_type(after.results[0].type, before.results[0].type)
        check = assert_same_bits if r.exact or not before.results[0].dtype.is_floating_point else assert_close
        with np.errstate(all="ignore"):
            check(run(after, args)[0], run(before, args)[0])
    assert fired or (isinstance(r, RootRule) and any(o.name == r.name and o is not r for o in RULES))


def test_names_are_distinct() -> None:
    patterns = [r.name for r in RULES if isinstance(r, PatternRule)]
    assert len(patterns) == len(set(patterns))
    roots = [(r.name, r.root) for r in RULES if isinstance(r, RootRule)]
    assert len(roots) == len(set(roots))
    assert set(EXACT) == {r for r in RULES if r.exact}


def test_the_bitwise_check_finds_a_wrong_rule() -> None:
    @rule(exact=True, kinds="f")
    def add_zero(x: Any) -> Any:
        return x + 0.0, x

    before, args, _ = pattern_instance(add_zero.patterns[0])
    with pytest.raises(AssertionError, match="instead of"):
        assert_same_bits(run(rewrite(before, [add_zero]), args)[0], run(before, args)[0])


def test_rules_in_circles_are_reported() -> None:
    @rule_on(Neg, exact=True, example=lambda x: -x)
    def there(node: Node) -> Node:
        return Node.of(Neg(), (Node.of(Neg(), node.inputs),))

    x = param("x", TensorType(dt.float32, (3,)))
    with pytest.raises(IRError, match="rules run in circles"):
        rewrite(Graph("g", (x,), (-x,)), there)


def test_a_rule_that_changes_the_type_is_reported() -> None:
    @rule_on(Exp, exact=True, example=lambda x: exp(x))
    def wrong(node: Node) -> Node:
        return param("y", TensorType(dt.float32, (4,)))

    x = param("x", TensorType(dt.float32, (3,)))
    with pytest.raises(IRError, match=r"rule wrong replaces .* of type f32\[4\]"):
        rewrite(Graph("g", (x,), (exp(x),)), wrong)
