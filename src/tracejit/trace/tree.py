"""Running what was recorded: traces chosen by the call's key, by guards, and by what Python saw in the data.

A trace is pure until its last check has passed: it computes new arrays and compares what Python looked at; where a
value differs it leaves by that check (`Miss`) and nothing has happened, so another trace, or plain Python, starts
clean. Then, in one go that cannot fail: updates are stored (by the executable), versions counted up, `.grad` slots
set, outputs built.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from tracejit.cached import cached_property
from tracejit.codegen.compile import Executable, Miss, build
from tracejit.errors import is_foreign
from tracejit.ir.graph import Graph
from tracejit.records import dataclass
from tracejit.runtime.interrupts import finish
from tracejit.trace import replay
from tracejit.trace.backward import Attachment, attach, compile_backward
from tracejit.trace.causes import Cause
from tracejit.trace.domain import Array, Domain
from tracejit.trace.key import Call
from tracejit.trace.objects import bits
from tracejit.trace.outputs import Argument, Scalar, Slot
from tracejit.trace.recording import Outcome, Recording, overlapping

__all__ = ["Bucket", "Hit", "Left", "Trace", "compile_trace"]


@dataclass(frozen=True, slots=True)
class Hit:
    """A compiled call succeeded."""

    value: Any


@dataclass(frozen=True, slots=True)
class Left:
    """A compiled call left at a check: what Python would have seen up to and including it."""

    seen: tuple[Outcome, ...]
    where: str | None
    value: Any


@dataclass(eq=False)
class Trace:
    """A recording with its machine code."""

    recording: Recording
    recorded: Graph  # before the passes
    executable: Executable
    backward: tuple[Attachment, ...]  # the pieces of the backward pass
    kept: tuple[int, ...]  # parameters that are overwritten and that gradients of gradients read as they were
    hits: int = 0
    misses: int = 0
    used: int = 0  # number of the call that used it last
    checked: tuple[weakref.ref[Any], ...] = ()  # the arrays for which overlap was last ruled out
    made: int = 0  # native entries
    unsaid: str = ""  # why it has none

    @cached_property
    def graph(self) -> Graph:
        """The graph after the passes: made again to look at, for building may have found the outcome in the store."""
        from tracejit.passes.pipeline import optimize  # not needed to run it

        return optimize(self.recorded)

    def kernels(self) -> list[Any]:
        """The kernels of both passes."""
        backward = [a.executable for a in self.backward if a.executable is not None]
        return [k for e in (self.executable, *backward) for k in e.kernels]

    def run(self, domain: Domain, call: Call) -> Hit | Left | str:
        """The call's result; or where it left; or why it cannot run (memory is shared as it was not when recorded)."""
        ready = self.ready(domain, call)
        if isinstance(ready, str):
            return ready
        tensors, arrays = ready
        rec = self.recording
        before = {i: arrays[i].copy() for i in self.kept}
        try:
            begun = self.executable.begin(arrays)
        except Exception as e:  # plain Python will say what is wrong, or find that nothing is
            if is_foreign(e):
                raise
            return f"the compiled code raised {type(e).__name__}: {e}"
        if isinstance(begun, Miss):
            return self.left(begun)
        counts = [domain.count(tensors[at]) + times for (at, _), (times, _) in zip(rec.updates, rec.writes)]

        def rest(done: list[Any]) -> Hit | Left | str:
            """The rest of the call: whole, or nothing of it."""
            try:
                out = begun.go_on(done)
            except Exception as e:  # nothing was written
                if is_foreign(e):
                    raise
                done.clear()
                return f"the compiled code raised {type(e).__name__}: {e}"
            if isinstance(out, Miss):
                return self.left(out)
            for (at, _), n, (_, where) in zip(rec.updates, counts, rec.writes):
                domain.written(tensors[at], n, where)
            try:
                made = self.prepared(domain, call, tensors, before, own(out), done, begun.steps)
            except Exception as e:  # from a number computed in Python: it will raise it again, if nothing was written
                if rec.updates or is_foreign(e):
                    raise
                done.clear()
                return f"{type(e).__name__} raised by what Python computes with numbers from tensors"
            return Hit(self.complete(domain, tensors, made, done, begun.steps + 1))

        found = finish(rest, [])
        self.hits += isinstance(found, Hit)
        return found

    def conclude(
        self, domain: Domain, call: Call, tensors: Sequence[Any], out: Sequence[Array], done: list[Any]
    ) -> Any:
        """The call's result, from what the program computed; `.grad` slots set and effects run. `done` as for
        `finish`, with one note of what was before."""
        return self.complete(domain, tensors, self.prepared(domain, call, tensors, {}, out, done, 1), done, 2)

    def prepared(
        self,
        domain: Domain,
        call: Call,
        tensors: Sequence[Any],
        before: Mapping[int, Array],
        out: Sequence[Array],
        done: list[Any],
        at: int,
    ) -> list[Any]:
        """Every entry of the plan, from what the program computed: made once, and kept at `done[at]`."""
        if len(done) == at:
            made = self.recording.plan.build(domain, call, out)
            self.finish(domain, made, self.attach(domain, tensors, before, made, out))
            done.append(made)
        return done[at]

    def complete(self, domain: Domain, tensors: Sequence[Any], made: Sequence[Any], done: list[Any], at: int) -> Any:
        """The call's result, after `.grad` slots are set and effects run, which are noted from `done[at]` on."""
        rec = self.recording
        for owner, value in rec.grads:
            domain.set_grad(made[owner], None if value is None else made[value])
        if rec.deeds:
            replay.run(rec.deeds, made, rec.steady, tensors, done, at)
        return made[rec.root]

    def ready(self, domain: Domain, call: Call) -> tuple[list[Any], list[Array]] | str:
        """The tensors behind the parameters and their arrays; or why the trace cannot run on them."""
        rec = self.recording
        tensors = resolve(domain, rec, call)
        if tensors is None:
            return "a tensor it was recorded with is gone"
        if any(rec.owners) and (
            len({id(t) for t in tensors}) < len(tensors)
            or any(id(t) in rec.outside for t, o in zip(tensors, rec.owners) if o)
        ):
            return "a .grad is also known by another name"
        arrays = [domain.array(t) for t in tensors]
        if rec.updates and self.overlaps(domain, tensors, arrays):
            return "a written tensor shares memory with another one"
        return tensors, arrays

    def attach(
        self, domain: Domain, tensors: Sequence[Any], before: Mapping[int, Array], made: list[Any], out: Sequence[Array]
    ) -> Sequence[Any]:
        """Give the outputs that carry gradients their tape entries, which are returned; `before` has the memory of the
        parameters `kept` as it was."""
        rec = self.recording
        if rec.backward is None:
            return ()
        return attach(domain, rec.backward, self.backward, rec.plan.entries, tensors, before, made, out)

    def finish(self, domain: Domain, made: list[Any], nodes: Sequence[Any]) -> None:
        """Build what stands on tensors with gradients; `nodes` are their tape entries."""
        self.recording.plan.finish(domain, made)
        for a, node in zip(self.backward, nodes):
            a.finish(domain, node, made)

    def left(self, miss: Miss) -> Left:
        """Where a call left, counted."""
        checks = self.recording.checks
        self.misses += 1
        check = checks[miss.check]
        value = python_value(miss.value)
        seen = (*((c.kind, bits(c.value)) for c in checks[: miss.check]), (check.kind, bits(value)))
        if (straight := self.recording.straight) is not None and miss.check >= straight:
            seen = seen[:straight]  # how often it saw what is in the loop is not known
        return Left(seen, check.where, value)

    def overlaps(self, domain: Domain, tensors: Sequence[Any], arrays: Sequence[Array]) -> bool:
        """Whether a written tensor shares memory with another; arrays seen before are not looked at again."""
        if any(type(s) is Scalar for s in self.recording.sources):  # new in every call, and nobody else's
            shared = [i for i, s in enumerate(self.recording.sources) if type(s) is not Scalar]
            arrays, all_tensors = [arrays[i] for i in shared], [tensors[i] for i in shared]
        else:
            all_tensors = list(tensors)
        if len(self.checked) == len(arrays) and all(r() is a for r, a in zip(self.checked, arrays)):
            return False
        if overlapping(domain, [tensors[i] for i, _ in self.recording.updates], all_tensors):
            return True
        self.checked = tuple(map(weakref.ref, arrays))
        return False


def own(out: Sequence[Array]) -> Sequence[Array]:
    """Outputs for a caller to keep: one value computed for two of them is two arrays all the same, and a constant is
    new in every call."""
    if len({id(a) for a in out}) == len(out) and all(a.flags.writeable for a in out):
        return out
    return tuple(a.copy() if not a.flags.writeable or any(a is b for b in out[:i]) else a for i, a in enumerate(out))


def resolve(domain: Domain, rec: Recording, call: Call) -> list[Any] | None:
    """The tensors behind the parameters in this call; None where one is gone."""
    found: list[Any] = []
    for s, owner in zip(rec.sources, rec.owners):
        if type(s) is Scalar:
            t = domain.wrap(number_array(call.found[s.ref]), False)
        elif owner is not None:
            t = call.tensors[owner.index] if isinstance(owner, Argument) else owner.get()
            t = None if t is None else domain.get_grad(t)
        elif type(s) is Slot:
            t = s.of(call)
        else:
            t = call.tensors[s.index] if isinstance(s, Argument) else s.get()
        if t is None:
            return None
        found.append(t)
    return found


def number_array(x: float) -> Array:
    """A number as the parameter it is of the graph."""
    return np.asarray(x, np.float64 if type(x) is float else np.int64)


def python_value(x: Any) -> Any:
    """What a failed check saw, as the Python number a recording would have seen."""
    return x if type(x) in (bool, int, float) else float(x) if x.dtype.kind not in "biu" else x.item()


def compile_trace(rec: Recording, backend: str) -> Trace:
    """Passes and code generation for a recording. Raises what the backend raises."""
    ends = (*rec.outputs, *(n for _, n in rec.updates), *(c.node for c in rec.checks))
    n, graph, backward = len(rec.outputs), rec.graph, ()
    written = {at for at, _ in rec.updates}
    if rec.backward is not None:
        where = (rec.name, ends, rec.params, rec.outputs)
        backward, extra = compile_backward(rec.backward, *where, written, backend)
        graph = Graph(rec.name, rec.params, (*rec.outputs, *extra, *ends[n:]))
        n += len(extra)
    first_check = n + len(rec.updates)
    executable = build(
        graph,
        updates={n + k: at for k, (at, _) in enumerate(rec.updates)},
        checks=[(first_check + k, c.value) for k, c in enumerate(rec.checks)],
        backend=backend,
        optimize=True,
    )
    kept = tuple(sorted({i for a in backward for i in a.reads if i in written}))
    return Trace(rec, graph, executable, backward, kept)


@dataclass(eq=False)
class Bucket:
    """What is known about calls of one key."""

    pins: tuple[Any, ...] = ()  # objects whose ids are in the key: themselves, or weak references that end this bucket
    traces: list[Trace] = field(default_factory=list[Trace])
    pending: list[Recording] = field(default_factory=list[Recording])  # recorded once
    eager: Counter[tuple[Outcome, ...]] = field(
        default_factory=Counter[tuple[Outcome, ...]]
    )  # what Python saw -> refusals there
    reason: str = ""  # of the last refusal
    wrong: bool = False  # compiled code of it differed from plain Python
    cause: Cause | None = None  # why it is being compiled again
    astray: bool = False  # the last recording without the net was of another path: the next one has it
    builder: threading.Thread | None = None  # makes code in the background
    recordings: int = 0
    hits: int = 0

    def may_record(self) -> bool:
        """Recording must pay: a function that sees something new in every call goes eager."""
        return self.recordings < 12 + self.hits // 4
