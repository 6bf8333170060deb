"""One recorded call, closed: everything needed to run it again without Python, or why it cannot be."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Container, Mapping
from functools import partial
from typing import Any

import numpy as np

from tracejit import config, logs
from tracejit.errors import is_foreign
from tracejit.ir.graph import Graph
from tracejit.ir.node import Node
from tracejit.ir.symint import Condition, Scope
from tracejit.records import dataclass
from tracejit.runtime import interrupts
from tracejit.runtime.forks import building
from tracejit.trace import confirmed, replay
from tracejit.trace.backward import Backward, plan_backward
from tracejit.trace.builder import Check
from tracejit.trace.domain import Domain
from tracejit.trace.guard import Guard
from tracejit.trace.guard import build as build_guard
from tracejit.trace.key import Call
from tracejit.trace.net import run
from tracejit.trace.objects import bits, plain_numbers, slots_of
from tracejit.trace.outputs import Argument, Computed, Grad, Held, Plan, Planner, Scalar, slot_entries, watch
from tracejit.trace.proof import roll
from tracejit.trace.recorder import Cell, Reason, Recorder
from tracejit.trace.scalars import Memory, Numbers, Source, close, reader

__all__ = ["Link", "Recording", "record"]

Outcome = tuple[str, Any]


class Link:
    """Weak references call this when what they watch dies; it tells the trace, once there is one."""

    def __init__(self) -> None:
        self.dead = False
        self.tell: Callable[[], None] | None = None

    def __call__(self, _: Any, ends: Callable[[], bool] = sys.is_finalizing) -> None:
        self.dead = True
        if self.tell is not None and not ends():  # else the modules may be emptied already, this one too
            self.tell()


@dataclass(eq=False)
class Recording:
    """A candidate trace."""

    name: str
    params: tuple[Node, ...]
    sources: tuple[Any, ...]  # a plan entry for the tensor behind each parameter (Argument, Held, Grad)
    owners: tuple[Any, ...]  # for Grad sources: the entry of the tensor whose .grad it is, else None
    outputs: tuple[Node, ...]
    updates: tuple[tuple[int, Node], ...]  # (parameter, its memory after the call)
    writes: tuple[tuple[int, str | None], ...]  # of each of these: how often it was written, and where last
    checks: tuple[Check, ...]
    straight: int | None  # how many of them come before the first loop; None: there is none
    again: bool  # the next recording will be a better one
    plan: Plan
    root: int
    grads: tuple[tuple[int, int | None], ...]  # (entry of a tensor, entry of its .grad after the call or None)
    deeds: tuple[replay.Deed, ...]  # what else the call does to the world, in order
    steady: replay.Steady | None  # what callbacks must leave as it is; None where there are none
    backward: Backward | None
    cells: tuple[Cell, ...]  # until `seal`
    guarded: frozenset[int]  # ids of tensors whose facts are among the cells
    guard: Guard | None
    identities: tuple[tuple[int, int], ...]  # (argument, id of the very tensor it must be)
    outside: frozenset[int]  # ids of tensors that no argument may be
    slots: tuple[Slots, ...]  # places whose tensor is an input
    numbers: Numbers | None  # None where no number is an input
    inputs: frozenset[Any]  # which numbers are
    counted: frozenset[Any]  # loops whose turns the graph counts
    looked: frozenset[Any]  # which of them were looked at: not worth another recording like this
    held: tuple[Any, ...]  # tensors that nobody else may keep: constants the library made, the generator's state
    symbols: Mapping[str, int]  # extents that are inputs, as they were
    conditions: tuple[Condition, ...]  # what was found of them
    link: Link
    graph: Graph  # parameters and cotangents -> outputs, updates, checks and gradients
    fingerprint: str  # equal for two recordings of one path of a deterministic function
    mark: str  # equal for two recordings of one path in two processes

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """What Python saw at each look, in order."""
        return tuple((c.kind, bits(c.value)) for c in self.checks)

    def may_follow(self, seen: tuple[Outcome, ...]) -> bool:
        """Whether Python that saw this may go on to see what it saw here: from the first loop on that is not known."""
        n = len(seen) if self.straight is None else min(len(seen), self.straight)
        return self.outcomes[:n] == seen[:n]

    def is_alike(self, other: Recording) -> bool:
        """Whether two recordings are of one path, and of the same numbers."""
        mine, its = ((x.outcomes, x.straight, x.inputs, x.counted) for x in (self, other))
        return mine == its

    def seal(self, domain: Domain) -> Recording:
        """Make the checker of the cells, so that nothing outside is held any longer. Returns self."""
        self.guard, self.cells = build_guard(self.cells, domain, self.link), ()
        return self

    def blocked(self, call: Call) -> str | None:
        """Why this trace does not fit the world as it is now; None where it does."""
        if self.link.dead:
            return "something it was recorded with is gone"
        for i, wanted in self.identities:
            if id(call.tensors[i]) != wanted:
                return f"tensor argument {i} is another tensor than one also known by another name"
        if self.outside:
            for i, t in enumerate(call.tensors):
                if id(t) in self.outside and all(i != j for j, _ in self.identities):
                    return f"tensor argument {i} is also known by another name"
        if (found := next((c for c in self.conditions if not c.holds(call.symbols)), None)) is not None:
            return f"extents are others: not {found}"
        if self.slots and (why := self.find_slots(call)) is not None:
            return why
        assert self.guard is not None
        row = self.guard.check()
        if row >= 0:
            return self.guard.reason(row)
        if self.numbers is not None:
            found = self.numbers.run(call, bits)
            if isinstance(found, str):
                return found
            call.found = found
        if self.deeds and (why := replay.ready(self.deeds)) is not None:
            return why
        return "something it was recorded with is gone" if self.link.dead else None

    def find_slots(self, call: Call) -> str | None:
        """Find the tensors in the slots; why they do not fit."""
        found: list[Any] = []
        tensors: list[Any] = []
        for slot in self.slots:
            x = slot.read(call)
            parts = x if type(x) is tuple else (x,)
            if type(x) is not slot.type or tuple(map(slot.facts, parts)) != slot.wanted:
                return f"{slot.name} holds something else than a tensor like the one it held"
            found.append(x)
            tensors.extend(parts)
        ids = set(map(id, tensors))
        if len(ids) < len(tensors) or ids & self.outside or any(id(t) in ids for t in call.tensors):
            return "a tensor kept outside is also known by another name"
        call.slots = found
        return None


@dataclass(frozen=True, eq=False, slots=True)
class Slots:
    """A place outside that holds another tensor, or tuple of them, in every call: how to read it, and what is asked of
    each tensor."""

    name: str
    read: Callable[[Call], Any]
    type: type
    facts: Callable[[Any], Any]
    wanted: tuple[Any, ...]


def record(
    domain: Domain,
    f: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    call: Call,
    name: str,
    *,
    net: bool = True,
    memory: Memory | None = None,
    wide: Container[Any] = (),
    scope: Scope | None = None,
) -> tuple[Any, Recording | tuple[Reason, ...]]:
    """Run f once, recorded: (its result, the recording or the reasons against it). What f raises comes out.

    `wide` are the number arguments that are inputs; `memory` says which other numbers are.
    `scope` has the symbols of the call's extents, where it is recorded for all of them.
    Without `net`, Python code that no hook saw goes unnoticed: only to be compared with a recording that had it.
    """
    r = Recorder(domain, memory, scope)
    for i, t in enumerate(call.tensors):
        r.builder.input(t, f"a{i}", None if scope is None else t.type.with_shape(call.shapes[i]))
        r.arguments.add(id(t))
    for c in call.containers:
        r.guarded[id(c)] = c
    before, settings = domain.modes(), config.current()
    if wide:
        args = tuple([r.argument(i, x) if i in wide else x for i, x in enumerate(args)])
        kwargs = {k: r.argument(k, x) if k in wide else x for k, x in kwargs.items()}
    result = None
    try:
        result = run(r, f, args, kwargs, net=net)
        found = _closed(r, call, result, name, before, settings)
    finally:
        result = interrupts.finish(partial(_handed_over, r, result), [None])
    return result, found


def _handed_over(r: Recorder, result: Any, _: list[Any]) -> Any:
    return _only_ours(r, result)


def _closed(
    r: Recorder, call: Call, result: Any, name: str, modes: Any, settings: config.Config
) -> Recording | tuple[Reason, ...]:
    """The recording of a call that is over, or the reasons against it; `modes` and `settings` as it began."""
    if r.domain.modes() != modes:
        r.refuse("leaves the grad mode changed")
    if config.current() is not settings:
        r.refuse("leaves the configuration changed")
    _refuse_unfit(r)
    if r.reasons:
        return tuple(r.reasons)
    here = config.modes.here
    closed = None
    try:
        with building():
            here.recorder = r  # not `opened`: an interrupt may cut off its __exit__
            closed = _close(r, call, result, Link(), name)
    except Exception as e:  # the call itself is over and right: a mistake of ours must not reach the user as its error
        if is_foreign(e):
            raise
        logs.logger("fallback").exception("recording %s could not be closed", name)
        r.refuse(f"internal error: {type(e).__name__}: {e}")
    finally:
        here.recorder = None
    if r.scope is not None:
        _refuse_unfit(r)
        r.scope.is_open = False
    return closed if closed is not None and not r.reasons else tuple(r.reasons)


def _refuse_unfit(r: Recorder) -> None:
    """Refuse a recording for all extents in which one of them had to be a number."""
    if r.scope is not None and (r.scope.looked or r.builder.unfit):
        r.refuse(r.builder.unfit or next(iter(r.scope.looked.values())))


def _only_ours(r: Recorder, result: Any) -> Any:
    """The result, after taking opaque numbers out of it and of every new object: they stay within the recording."""
    memo: dict[int, Any] = {}
    for x in r.fresh.values():
        if type(x) is list or type(x) is dict:
            plain_numbers(x, memo)
        elif id(x) in r.instances:
            for name, v in slots_of(x).items():
                object.__setattr__(x, name, plain_numbers(v, memo))
        elif type(x) is types.CellType:
            try:
                x.cell_contents = plain_numbers(x.cell_contents, memo)
            except ValueError:  # empty
                continue
        elif type(x) is types.FunctionType:
            x.__defaults__ = plain_numbers(x.__defaults__, memo)
            plain_numbers(x.__kwdefaults__, memo)
    return plain_numbers(result, memo)


def _close(r: Recorder, call: Call, result: Any, link: Link, name: str) -> Recording:
    builder, domain = r.builder, r.domain
    planner = Planner(r, call, link)
    root = planner.entry(result)
    grads = [(planner.entry(t), None if g is None else planner.entry(g)) for t, g in r.grads.values()]
    deeds = replay.close(r, planner)
    updates = _updates(r)
    if updates and any(isinstance(e, Computed) and e.raises for e in planner.entries):
        r.refuse("computes with numbers from tensors what may raise, and writes outside tensors")
    backward = plan_backward(r, planner, [root, *_shown_by(grads, deeds)])
    for at, g in planner.grads:  # of new tensors; grows as more of them are met
        grads.append((at, planner.entry(g)))
    found = r.found()
    named = _named(r, found)
    _check_names(r, call, found, named)
    cotangents = () if backward is None else backward.cotangents
    placeholders = set(cotangents)
    forward = [(p, t) for p, t in zip(builder.params, builder.sources) if p not in placeholders]
    params, tensors = tuple(p for p, _ in forward), [t for _, t in forward]
    if builder.params[: len(params)] != list(params):
        r.refuse("its gradient reads a tensor that the call did not")
    position = {id(t): i for i, t in enumerate(tensors)}
    scalars = {id(t) for t, _ in r.number_params.values()}
    reachable = r.reachable() | {id(t) for t in domain.library_tensors()}
    kept = reachable | scalars | r.arguments | set(r.grad_sources)
    if any(id(t) not in reachable and id(t) not in r.arguments and id(t) not in r.grad_sources for t, _ in updates):
        r.refuse("writes into a tensor of unknown origin")
    sources, owners = _sources(r, call, tensors, reachable, link)
    rolled = roll(r, (*planner.outputs, *(n for _, n in updates)), gradients=backward is not None)
    outputs, checks = rolled.ends[: len(planner.outputs)], rolled.checks
    updates = [(t, n) for (t, _), n in zip(updates, rolled.ends[len(outputs) :], strict=True)]
    ends = (*rolled.ends, *(c.node for c in checks))
    graph = Graph(name, (*params, *cotangents), (*ends, *(() if backward is None else backward.gradients)))
    conditions = () if r.scope is None else tuple(r.scope.conditions)
    digest = mark = ""
    if not r.reasons:
        places = f"{graph.fingerprint} {grads} {[position[id(t)] for t, _ in updates]} {root} "
        places += f"{sorted(map(str, conditions))} "
        places += replay.signature(deeds) + ("" if backward is None else backward.signature())
        digest = f"{places} {planner.signature(id)} {r.numbers.signature(id)} {_slots_text(r, id)}"
        at = Ordinals()
        words = f"{places} {planner.signature(at)} {r.numbers.signature(at)} {_slots_text(r, at)}"
        words += repr([(c.kind, bits(c.value)) for c in checks])  # what Python saw: another path, another mark
        mark = confirmed.mark(words, r.codes.values())
    seen: list[Any] = [*(t for t in tensors if id(t) not in scalars), *filter(r.is_tensor, found.values())]
    return Recording(
        name=name,
        params=params,
        sources=sources,
        owners=owners,
        outputs=outputs,
        updates=tuple((position[id(t)], n) for t, n in updates),
        writes=tuple((t._version.n - builder.versions[id(t)], t._version.where) for t, _ in updates),
        checks=checks,
        straight=rolled.before,
        again=rolled.again,
        plan=planner.plan(),
        root=root,
        grads=tuple(grads),
        deeds=deeds,
        steady=replay.steady(r, deeds, link),
        backward=backward,
        cells=tuple(r.cells.values()),
        guarded=frozenset(id(c.owner) for c in r.cells.values() if c.kind == "tensor"),
        guard=None,
        identities=tuple((i, id(t)) for i, t in enumerate(call.tensors) if id(t) in named),
        outside=frozenset(id(t) for t in seen if id(t) not in r.arguments and id(t) not in r.grad_sources),
        slots=tuple(_slot(domain, source, t, link) for source, t in r.slots.values()),
        numbers=close(r.numbers, tuple(r.number_params), bits, lambda x: watch(x, link)) if r.numbers.entries else None,
        inputs=frozenset(k for k, at in r.numbers.known.items() if isinstance(r.numbers.entries[at], Source)),
        counted=rolled.counted,
        looked=frozenset(r.looked),
        held=tuple(t for t in tensors if id(t) not in kept),
        symbols=call.symbols,
        conditions=tuple(conditions),
        link=link,
        graph=graph,
        fingerprint=digest,
        mark=mark,
    )


class Ordinals:
    """Numbers objects in order of appearance: for what must read the same in another process."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}

    def __call__(self, x: Any) -> int:
        """The number of x."""
        return self.seen.setdefault(id(x), len(self.seen))


def _updates(r: Recorder) -> list[tuple[Any, Node]]:
    """(tensor, value after the call) of each outside tensor that was written; refuses what cannot be committed."""
    updates = r.builder.updates()
    written = [t for t, _ in updates]
    for t in written:
        if r.domain.has_tape(t) and r.domain.needs_grad(t):
            r.refuse("writes into an outside tensor that is part of a gradient tape")
    if r.builder.lost:
        r.refuse("reads a tensor that it wrote through a view")
    if written and overlapping(r.domain, written, r.builder.sources):
        r.refuse("writes into memory that two outside tensors share")
    return updates


_byte_bounds: Any = getattr(np, "byte_bounds", None) or np.lib.array_utils.byte_bounds  # it moved in NumPy 2


def overlapping(domain: Domain, written: list[Any], all_tensors: list[Any]) -> bool:
    """Whether a written tensor shares memory with another one."""
    spans = []
    ids = {id(t) for t in written}
    for t in all_tensors:
        a = domain.array(t)
        if a.size:
            low, high = _byte_bounds(a)
            spans.append((low, high, id(t) in ids))
    spans.sort()
    reach, reach_written = -1, -1  # ends of what came before
    for low, high, is_written in spans:
        if low < reach_written or (is_written and low < reach):
            return True
        reach = max(reach, high)
        if is_written:
            reach_written = max(reach_written, high)
    return False


def _shown_by(grads: list[tuple[int, int | None]], deeds: tuple[replay.Deed, ...]) -> list[int]:
    """The entries that others than the caller get to see."""
    operands = [i for d in deeds for i in (*d.operands, *(k for _, k in d.keywords))]
    return [*(g for _, g in grads if g is not None), *operands]


def _named(r: Recorder, found: Mapping[int, Any]) -> set[int]:
    """Ids of what cells are about, were found by, or found: of these the trace is about the very objects."""
    named = set(found)
    stack: list[Any] = [x for c in r.cells.values() for x in (c.owner, c.key)]
    while stack:
        x = stack.pop()
        named.add(id(x))
        if isinstance(x, tuple):
            stack.extend(x)
    return named


def _slot(domain: Domain, source: Source, x: Any, link: Link) -> Slots:
    def facts(t: Any) -> Any:
        if not isinstance(t, domain.tensor):
            return None
        return domain.facts(t), domain.get_grad(t) is None, bool(domain.get_hooks(t))

    key = "" if source.key is None else f" {source.key!r}"
    name = f"{_SLOT_WORDS[source.kind]}{key}"
    wanted = tuple(map(facts, x if type(x) is tuple else (x,)))  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]
    return Slots(name, reader(source, lambda owner: watch(owner, link)), type(x), facts, wanted)


_SLOT_WORDS = {
    "list": "a list", "deque": "a deque",
    "ivar": "attribute", "item": "the entry", "closure": "a variable of an enclosing function", "member": "slot",
}  # fmt: skip


def _slots_text(r: Recorder, name: Callable[[Any], int]) -> str:
    """Text equal for two recordings with the same slots; `name` tells objects apart."""
    return repr([(s.kind, name(s.owner), s.key) for s, _ in r.slots.values()])


def _check_names(r: Recorder, call: Call, found: Mapping[int, Any], named: set[int]) -> None:
    """Argument containers are guarded as arguments only, and gradients as gradients: refuse what a cell found too."""
    for place, (_, t) in r.slots.items():
        parts: tuple[Any, ...] = t if type(t) is tuple else (t,)
        if any(id(x) in named or id(x) in r.grads for x in (t, *parts)):
            r.memory.exact.add(place)
            r.refuse("a tensor kept outside, another one in every call, is also known by another name")
    if any(id(c) in found and type(c) is not tuple for c in call.containers):
        r.refuse("a container is an argument and also known by another name")
    if any(g in found or g in r.arguments for g in r.grad_sources):
        r.refuse("a .grad is also known by another name")


def _sources(
    r: Recorder, call: Call, tensors: list[Any], reachable: set[int], link: Link
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """For each tensor behind a parameter how a later call finds it."""
    arguments = {id(t): i for i, t in enumerate(call.tensors)}
    scalars = {id(t): at for at, (t, _) in r.number_params.items()}

    slots = slot_entries(r)

    def locate(t: Any) -> Any:
        if id(t) in scalars:
            return Scalar(scalars[id(t)])
        if id(t) in slots:
            return slots[id(t)]
        return Argument(arguments[id(t)]) if id(t) in arguments else Held(watch(t, link))

    owner_of = [r.grad_sources.get(id(t)) for t in tensors]
    if any(o is not None and id(o) in r.grad_sources for o in owner_of):
        r.refuse("uses the gradient of a gradient")
    return (
        tuple(locate(t) if o is None else Grad(0) for t, o in zip(tensors, owner_of)),
        tuple(None if o is None else locate(o) for o in owner_of),
    )
