"""Where the values of a Schedule live, and in what order its steps run.

A value lives in an output array, in the parameter it updates, in the arena of its segment, or (made on one side of a
host step and read on the other) in an array of its own.

An update goes straight into its parameter where no one can tell: the kernel that makes it reads each old element only
to make its successor, every other reader of the old value runs before, and nothing that can still fail comes after.
Otherwise it is made elsewhere and copied at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from typing import TypeGuard

from tracejit.codegen.kernel import Buffer, Kernel, Load, Stage, Store
from tracejit.codegen.result import Checks
from tracejit.codegen.schedule import Call, Launch, Schedule
from tracejit.ir.dim import Extent, product, same_shape
from tracejit.ir.dtype import DType
from tracejit.ir.graph import Graph
from tracejit.ir.index import Axis, Index
from tracejit.ir.node import Node
from tracejit.ir.op import ArrayConst
from tracejit.ir.types import TensorType
from tracejit.records import dataclass

__all__ = ["Copy", "Layout", "Place", "SavedCopy", "StepLike", "is_host"]


@dataclass(frozen=True, eq=False)
class Copy:
    """Copy a stored node to where it must end up, or to a temporary of its own."""

    source: Node
    target: Place
    launch: Launch

    @property
    def reads(self) -> tuple[Node, ...]:
        """What it copies."""
        return (self.source,)

    @property
    def writes(self) -> tuple[Node, ...]:
        """No node: its target is a place."""
        return ()


@dataclass(frozen=True, slots=True)
class Place:
    """Memory from outside: "param", "const", "out" or "temp", and its number among its kind."""

    kind: str
    number: int


StepLike = Launch | Call | Copy


def is_host(step: object) -> TypeGuard[Call]:
    """True for steps that run as NumPy."""
    return isinstance(step, Call) and step.match is None


class Layout:
    """Homes and order. Decides which updates are made in place."""

    def __init__(self, graph: Graph, plan: Schedule, updates: Mapping[int, int], checks: Checks) -> None:
        self.graph, self.plan, self.updates, self.checks = graph, plan, updates, checks
        self.home: dict[Node, Place] = {}  # of stored nodes that do not live in an arena
        self.consts: list[Node] = []
        for k, p in enumerate(graph.params):
            self.home[p] = Place("param", k)
        for n in graph.nodes:
            if isinstance(getattr(n.op, "value", None), ArrayConst):
                self.home[n] = Place("const", len(self.consts))
                self.consts.append(n)
        self.steps: list[StepLike] = list(plan.steps)
        self.after: dict[StepLike, set[StepLike]] = {s: set() for s in self.steps}  # what must come before
        maker = {n: s for s in self.steps for n in s.writes}
        for s in self.steps:
            self.after[s].update(maker[r] for r in s.reads if r in maker)
        self.maker: Mapping[Node, StepLike] = maker
        self.outputs: list[tuple[Node, Place]] = []
        self.late: set[StepLike] = set()  # writes what a caller can see
        self.place_outputs()
        self.checked = [plan.base[graph.results[i]] for i, _ in checks]
        self.place_updates()
        self.order = self.sort()

    def place_outputs(self) -> None:
        """The first output that holds a value is its home; others, and those that are parameters, are copies."""
        checked = {i for i, _ in self.checks}
        for i, r in enumerate(self.graph.results):
            if i in self.updates or i in checked:
                continue
            place, b = Place("out", len(self.outputs)), self.plan.base[r]
            self.outputs.append((r, place))
            if b in self.home or is_host(self.maker.get(b)):
                self.copy(b, place)
            else:
                self.home[b] = place

    def copy(self, source: Node, target: Place) -> Copy:
        step = Copy(source, target, copy_launch(source))
        self.steps.append(step)
        self.after[step] = {self.maker[source]} if source in self.maker else set()
        return step

    def place_updates(self) -> None:
        """In place where nobody can tell, else a copy at the end."""
        graph, base = self.graph, self.plan.base
        readers: dict[Node, list[StepLike]] = {}
        for s in self.steps:
            for r in s.reads:
                readers.setdefault(r, []).append(s)
        before = self.closure()
        bit = {s: 1 << k for k, s in enumerate(self.steps)}
        # A loop that data ends may be interrupted by what a signal handler raises.
        risky = [s for s in self.steps if is_host(s) or (isinstance(s, Call) and s.node.op.name == "while")]
        risky += [self.maker[c] for c in self.checked if c in self.maker]
        must_precede = 0  # what a check or a host step needs
        for s in risky:
            must_precede |= before[s] | bit[s]
        pending: list[tuple[Node, Node]] = []
        for i, j in self.updates.items():
            new, old = base[graph.results[i]], graph.params[j]
            if new is old:
                continue
            made = self.maker.get(new)
            others = [r for r in readers.get(old, ()) if r is not made]
            if (
                (
                    isinstance(made, Launch)
                    or (isinstance(made, Call) and made.match is not None and made.match.in_place)
                )
                and new not in self.home
                and not bit[made] & must_precede
                and same_shape(new.shape, old.shape)
                and made.may_overwrite(old, new)
                and not any(before[r] & bit[made] for r in others)
            ):
                self.home[new] = self.home[old]
                for r in others:
                    self.after[made].add(r)
                    gained = before[r] | bit[r]
                    for s in self.steps:
                        if s is made or before[s] & bit[made]:
                            before[s] |= gained
                self.late.add(made)
            else:
                pending.append((new, old))
        temps = 0
        targets = {graph.params[j] for j in self.updates.values()}
        for new, old in pending:
            if new in targets:  # the old value of another updated parameter: saved before that is overwritten
                saved = Place("temp", -1 - temps)
                temps += 1
                first = self.copy(new, saved)
                for s in self.late:
                    if any(self.home.get(w) == self.home[new] for w in s.writes):
                        self.after[s].add(first)
                last = self.copy(new, self.home[old])
                last = self.redirect(last, saved)
                self.after[last].add(first)
            else:
                last = self.copy(new, self.home[old])
            self.late.add(last)
        final = [s for s in self.steps if s in self.late and isinstance(s, Copy)]
        for s in final:  # a copy into a parameter comes after every reader of its old value
            for n, home in self.home.items():
                if home == s.target and n in graph.params:
                    self.after[s].update(r for r in self.steps if r is not s and r not in final and n in r.reads)
        for s in self.late:
            self.after[s].update(r for r in risky if r is not s)

    def redirect(self, step: Copy, source: Place) -> Copy:
        """`step` reading from a place instead of its node."""
        new = SavedCopy(step.source, step.target, step.launch, source)
        self.steps[self.steps.index(step)] = new
        self.after[new] = self.after.pop(step)
        return new

    def closure(self) -> dict[StepLike, int]:
        """Bit set of all steps that must come before each. Steps are in a valid order so far."""
        bit = {s: 1 << k for k, s in enumerate(self.steps)}
        out: dict[StepLike, int] = {}
        for s in self.steps:
            out[s] = 0
            for d in self.after[s]:
                out[s] |= out[d] | bit[d]
        return out

    def sort(self) -> list[StepLike]:
        """An order that respects `after`: what the checks need first, what a caller can see last."""
        early: set[StepLike] = set()
        stack = [self.maker[c] for c in self.checked if c in self.maker]
        while stack:
            s = stack.pop()
            if s not in early:
                early.add(s)
                stack += self.after[s]
        rank = {s: (0 if s in early else 2 if s in self.late else 1, k) for k, s in enumerate(self.steps)}
        waiting = {s: len(self.after[s]) for s in self.steps}
        then: dict[StepLike, list[StepLike]] = {s: [] for s in self.steps}
        for s, ds in self.after.items():
            for d in ds:
                then[d].append(s)
        ready = [(rank[s], s) for s in self.steps if not waiting[s]]
        heapify(ready)
        out: list[StepLike] = []
        while ready:
            _, s = heappop(ready)
            out.append(s)
            for t in then[s]:
                waiting[t] -= 1
                if not waiting[t]:
                    heappush(ready, (rank[t], t))
        assert len(out) == len(self.steps), "steps wait for each other"
        return out


@dataclass(frozen=True, eq=False)
class SavedCopy(Copy):
    """A copy out of a temporary."""

    origin: Place

    @property
    def reads(self) -> tuple[Node, ...]:
        """No node: its origin is a place."""
        return ()


def copy_launch(n: Node) -> Launch:
    """A kernel that copies a stored node."""
    return Launch(copy_kernel(n.dtype, product(n.shape)), (n, n))


def copy_kernel(dtype: DType, size: Extent) -> Kernel:
    """to[i] = from[i]."""
    i = Axis("i0", size)
    load = Node(Load(0, dtype, Index.of(i)), (), TensorType(dtype, ()))
    stage = Stage((), (), (Store(1, Index.of(i), load),))
    return Kernel((i,), (stage,), (Buffer(dtype, size, "in"), Buffer(dtype, size, "out")), "outer")
