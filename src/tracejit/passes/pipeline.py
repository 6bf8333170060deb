"""The passes, in order. A pass is `Graph -> Graph`: valid in, valid out; nodes are never edited, untouched ones are
shared.

`TRACEJIT_DUMP=dir` writes the text before and after each pass, with how often each rule fired;
`TRACEJIT_VERIFY_PASSES=1` checks the invariants in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tracejit import config
from tracejit.errors import IRError
from tracejit.ir.graph import Graph
from tracejit.ir.node import Node
from tracejit.ir.printer import clean_name, to_text
from tracejit.ir.verify import verify
from tracejit.ops.control import Loop, While
from tracejit.passes import algebra, movement
from tracejit.passes.dedupe import dedupe
from tracejit.passes.fold import fold
from tracejit.passes.hoist import hoist
from tracejit.passes.rewrite import rewrite
from tracejit.passes.rollup import roll_up
from tracejit.passes.stack import stack_many, stack_pieces
from tracejit.records import dataclass

__all__ = ["EXACT", "PASSES", "PIPELINE", "ROLLING", "RULES", "Pass", "optimize"]

RULES = (*algebra.RULES, *movement.RULES)
EXACT = tuple(r for r in RULES if r.exact)

Fired = Counter[str]


@dataclass(frozen=True)
class Pass:
    """A named step. `exact` keeps every bit; `inexact` is what runs instead where the caller allows other roundings."""

    name: str
    exact: Callable[[Graph, Fired], Graph]
    inexact: Callable[[Graph, Fired], Graph]


def _pass(name: str, run: Callable[[Graph], Graph]) -> Pass:
    return Pass(name, lambda g, _: run(g), lambda g, _: run(g))


_DEDUPE = _pass("dedupe", dedupe)
_FOLD = _pass("fold", fold)
_ALGEBRA = Pass("algebra", lambda g, fired: rewrite(g, EXACT, fired), lambda g, fired: rewrite(g, RULES, fired))

# Dedupe first: a rule such as x - x sees equal values only where they are one node. Fold before algebra: constants that
# were broadcast become filled constants, which patterns can see. Both again, for what algebra has brought together.
PIPELINE = (_DEDUPE, _FOLD, _ALGEBRA, _FOLD, _DEDUPE)
PASSES = {p.name: p for p in PIPELINE}

# Loops come before all that takes time, for that is then spent on one turn instead of all.
ROLLING = (
    _pass("stack", stack_many), _pass("roll_up", roll_up), _pass("stack", stack_pieces), _pass("hoist", hoist),
)  # fmt: skip


def optimize(graph: Graph, *, exact_only: bool = True, loops: bool = False) -> Graph:
    """`graph` computing the same in fewer steps: the same bits if `exact_only`, else the same up to rounding.

    With `loops` repeated sections become loops; sums over their turns are then added up in another order.
    """
    settings = config.current()
    dump = _Dump(Path(settings.dump), clean_name(graph.name) or "graph") if settings.dump else None
    if dump:
        dump.write("input", graph, Counter())
    for step in (*ROLLING, *PIPELINE) if loops else PIPELINE:
        fired: Fired = Counter()
        graph = (step.exact if exact_only else step.inexact)(graph, fired)
        if dump:
            dump.write(step.name, graph, fired)
        if settings.verify_passes:
            try:
                verify(graph)
            except IRError as e:
                raise IRError(f"after pass {step.name}: {e}") from e
    return _bodies(graph, exact_only) if any(isinstance(n.op, (Loop, While)) for n in graph.nodes) else graph


def _bodies(graph: Graph, exact_only: bool) -> Graph:
    """`graph` with the bodies of its loops optimized."""
    new: dict[Node, Node] = {p: p for p in graph.params}
    for n in graph.nodes:
        if n in new:
            continue
        inputs = tuple([new[i] for i in n.inputs])
        if isinstance(n.op, (Loop, While)):
            new[n] = Node.of(replace(n.op, body=optimize(stack_pieces(n.op.body), exact_only=exact_only)), inputs)
            new[n].label, new[n].where = n.label, n.where
        else:
            new[n] = n.with_inputs(inputs)
    return graph.with_results([new[r] for r in graph.results])


class _Dump:
    """One new folder for each graph: `<dir>/<graph>.<k>/<number>.<pass>.ir`."""

    def __init__(self, root: Path, name: str) -> None:
        root.mkdir(parents=True, exist_ok=True)
        k = 0
        while True:
            self.folder = root / f"{name}.{k}"
            try:
                self.folder.mkdir()
                break
            except FileExistsError:  # an earlier graph of this name, perhaps another process's
                k += 1
        self.steps = 0

    def write(self, step: str, graph: Graph, fired: Fired) -> None:
        """The graph's text under a comment with what fired."""
        counts = "".join(f"# {name} fired {n} times\n" for name, n in sorted(fired.items()))
        (self.folder / f"{self.steps:02}.{step}.ir").write_text(counts + to_text(graph), encoding="utf-8")
        self.steps += 1
