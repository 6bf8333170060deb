"""Rules are facts, and `rewrite` applies them: one bottom-up rebuild, trying the rules of each node's op until none
fires.

    @rule(exact=True)
    def double_neg(x):
        return -(-x), x                                # pattern, replacement

    @rule_on(Transpose, exact=True, example=lambda x: transpose(transpose(x, (1, 0)), (1, 0)))
    def transpose_transpose(node): ...                 # where attributes or shapes decide: plain Python

A pattern rule is read by applying it to scalars of each dtype, so the pattern is ordinary IR, typed, with parameters
as its holes. It speaks of pointwise ops only; matched against tensors, its constants take the shape of the node they
replace. Rules are data: they are indexed by root op, counted as they fire, and tested without being named.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import cache
from typing import Any

from tracejit.cached import cached_property
from tracejit.errors import IRError, TracejitError
from tracejit.ir import dtype as dt
from tracejit.ir.dtype import DType
from tracejit.ir.graph import Graph, param
from tracejit.ir.node import Node
from tracejit.ir.op import ArrayConst, Op, Param, attribute_key, same_op
from tracejit.ir.types import TensorType, same_type
from tracejit.ops.source import Const
from tracejit.records import dataclass

__all__ = ["Bool", "Pattern", "PatternRule", "RootRule", "Rule", "relocate", "rewrite", "rule", "rule_on"]

Bool = Any  # annotates a hole of a pattern that is bool whatever the dtype of the others: `def f(c: Bool, x)`
_FUEL = 1000  # firings at one node before we say that the rules run in circles


@dataclass(frozen=True, eq=False)
class Pattern:
    """A pattern rule read for one dtype, which is that of `left`'s last input: `left` may become `right`."""

    holes: tuple[Node, ...]  # params, which stand for any value of their dtype
    left: Node
    right: Node


@dataclass(frozen=True, eq=False)
class PatternRule:
    """One algebraic fact, for the dtypes of `kinds` that its ops accept."""

    name: str
    exact: bool
    kinds: str
    read: Callable[..., tuple[Node, Any]]

    @cached_property
    def patterns(self) -> tuple[Pattern, ...]:
        """The fact, read for each dtype it holds for."""
        return tuple(p for d in dt.ALL if (p := self.pattern(d)))

    def pattern(self, dtype: DType) -> Pattern | None:
        """The fact for one dtype, None where it does not hold or its ops have no meaning."""
        if dtype.kind not in self.kinds:
            return None
        labels = inspect.signature(self.read).parameters
        is_bool = [p.annotation in ("Bool", Bool) for p in labels.values()]
        holes = [param(n, TensorType(dt.bool_ if b else dtype, ())) for n, b in zip(labels, is_bool, strict=True)]
        try:
            left, right = self.read(*holes)
        except TracejitError:
            return None
        assert left.inputs[-1].dtype is dtype, f"rule {self.name} would not be found by the dtype of its last input"
        return Pattern(tuple(holes), left, right)


@dataclass(frozen=True, eq=False)
class RootRule:
    """A replacement found by looking at a node of op `root`; `apply` gives None where there is none."""

    name: str
    exact: bool
    root: type[Op]
    apply: Callable[[Node], Any]
    examples: tuple[Callable[[Node], Node], ...]  # from an f[2, 3, 4] to a node where the rule fires


Rule = PatternRule | RootRule


def rule(*, exact: bool, kinds: str = "fiub") -> Callable[[Callable[..., tuple[Any, Any]]], PatternRule]:
    """The decorated function of pattern variables to (pattern, replacement) as a rule."""
    return lambda read: PatternRule(read.__name__, exact, kinds, read)


def rule_on(
    *roots: type[Op], exact: bool, example: Callable[[Any], Any] | Sequence[Callable[[Any], Any]]
) -> Callable[[Callable[[Node], Any]], tuple[RootRule, ...]]:
    """The decorated function of a node to its replacement, or None, as one rule for each of `roots`."""
    examples = (example,) if callable(example) else tuple(example)
    return lambda apply: tuple(RootRule(apply.__name__, exact, root, apply, examples) for root in roots)


_Try = tuple[str, Callable[[Node], Any]]
_Index = Mapping[type[Op], tuple[_Try, ...]]


@cache
def _index(rules: tuple[Rule, ...], dtype: DType | None) -> _Index:
    """The rules to try on nodes whose last input has `dtype`, by op. Patterns of other dtypes are not even read."""
    out: dict[type[Op], list[_Try]] = {}
    for r in rules:
        if isinstance(r, RootRule):
            out.setdefault(r.root, []).append((r.name, r.apply))
        elif dtype is not None and (p := r.pattern(dtype)) is not None:
            out.setdefault(type(p.left.op), []).append((r.name, _matcher(p)))
    return {k: tuple(v) for k, v in out.items()}


def rewrite(graph: Graph, rules: Sequence[Rule], fired: Counter[str] | None = None) -> Graph:
    """`graph` with `rules` applied wherever they fit; `fired` counts them by name."""
    known = max((n.id for n in graph.nodes), default=0)
    counts: Counter[str] = Counter() if fired is None else fired
    work = _Rewrite(tuple(rules), counts, {p: p for p in graph.params}, known, known)
    for n in graph.nodes:
        if n not in work.settled:
            work.settle(n)
    return graph.with_results([work.settled[r] for r in graph.results])


@dataclass
class _Rewrite:
    rules: tuple[Rule, ...]
    fired: Counter[str]
    settled: dict[Node, Node]  # what a node becomes, once no rule fires on it any more
    known: int  # the highest id in the graph given
    newest: int  # the highest id of all nodes made before the rule at hand was tried
    indices: dict[DType | None, _Index] = field(default_factory=dict["DType | None", _Index])

    def settle(self, root: Node) -> None:
        """Find what `root` becomes. Replacements are settled too, by a stack: a rule may build more than one node."""
        becomes: dict[Node, Node] = {}
        stack = [root]
        fuel = _FUEL
        while stack:
            n = stack[-1]
            if n in self.settled:
                stack.pop()
            elif n in becomes:
                self.settled[n] = self.settled[becomes[n]]
            elif missing := [i for i in n.inputs if i not in self.settled]:
                stack += missing
            else:
                new = n
                inputs = tuple([self.settled[i] for i in n.inputs])
                # Once there are new nodes, old ones behind them are made anew: creation order stays the program's.
                if inputs != n.inputs or n.id <= self.known < self.newest:
                    new = n.with_inputs(inputs)
                    self.newest = new.id
                hit = self.first(new)
                if hit is None:
                    self.settled[n] = self.settled[new] = new
                    continue
                name, replacement = hit
                if not same_type(new.type, replacement.type):
                    raise IRError(f"rule {name} replaces {new!r} by a value of type {replacement.type}")
                self.fired[name] += 1
                fuel -= 1
                if not fuel:
                    raise IRError(f"rules run in circles at {root!r}; among them {name}")
                relocate((replacement,), new, self.newest)
                self.newest = max(self.newest, replacement.id)
                becomes[n] = replacement
                stack.append(replacement)

    def first(self, n: Node) -> tuple[str, Node] | None:
        """The first rule that fires on `n`, and what it gives."""
        last = n.inputs[-1].type if n.inputs else None
        dtype = last.dtype if isinstance(last, TensorType) else None
        if (index := self.indices.get(dtype)) is None:
            index = self.indices[dtype] = _index(self.rules, dtype)
        for name, apply in index.get(type(n.op), ()):
            if (new := apply(n)) is not None:
                return name, new
        return None


def relocate(values: Iterable[Node], old: Node, since: int) -> None:
    """Nodes with ids above `since`, made to compute `values`, come from the user's line of `old`."""
    stack = [v for v in values if v.id > since]
    while stack:
        n = stack.pop()
        if n.where is None:
            n.where = old.where
            stack += (i for i in n.inputs if i.id > since)


def _matcher(p: Pattern) -> Callable[[Node], Node | None]:
    def apply(n: Node) -> Node | None:
        holes: dict[Node, Node] = {}
        return _build(p.right, holes, n.type) if _match(p.left, n, holes) else None

    return apply


def _match(pattern: Node, n: Node, holes: dict[Node, Node]) -> bool:
    """True where `n` is an instance of `pattern`; `holes` then says of what. As deep as the pattern is."""
    op = pattern.op
    if isinstance(op, Param):
        return n.dtype is pattern.dtype and holes.setdefault(pattern, n) is n
    if type(op) is not type(n.op):
        return False
    if isinstance(op, Const):
        theirs: Any = n.op
        return not isinstance(theirs.value, ArrayConst) and attribute_key(op.value) == attribute_key(theirs.value)
    return same_op(op, n.op) and all(_match(p, i, holes) for p, i in zip(pattern.inputs, n.inputs, strict=True))


def _build(pattern: Node, holes: Mapping[Node, Node], type: TensorType) -> Node:
    """`pattern` with its holes filled; its constants fill out the shape of `type`."""
    if pattern in holes:
        return holes[pattern]
    if isinstance(pattern.op, Const):
        return Node.of(Const(pattern.op.value, type.with_dtype(pattern.dtype)), ())
    return Node.of(pattern.op, [_build(i, holes, type) for i in pattern.inputs])
