"""Layout -> Plan: runs of native steps between host steps, offsets in their arenas, and the code of all kernels."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256

import numpy as np

from tracejit.cached import cached_property
from tracejit.codegen import arena
from tracejit.codegen.extents import Values, count, number
from tracejit.codegen.kernel import Kernel
from tracejit.codegen.llvm import emit, library, vectormath
from tracejit.codegen.llvm.cut import Cut
from tracejit.codegen.llvm.cut import Launch as Slicing
from tracejit.codegen.llvm.layout import Copy, Layout, Place, SavedCopy, StepLike, is_host
from tracejit.codegen.llvm.loop import Body, nbytes
from tracejit.codegen.llvm.plan import Host, Plan, Segment
from tracejit.codegen.llvm.text import Module
from tracejit.codegen.result import Checks
from tracejit.codegen.schedule import Call, Launch
from tracejit.ir.graph import Graph, param
from tracejit.ir.node import Node
from tracejit.ir.types import TensorType, TupleType
from tracejit.ops import control
from tracejit.passes.bind import bound, bound_op
from tracejit.runtime import engine
from tracejit.runtime.program import Address, Arena, Arg, Batch, Check, External, Int, Loop, Row, Step

__all__ = ["Code", "kernels_of", "kernels_text", "plan"]

# From so many slices of 8192 elements on, a team meets for one kernel alone: meeting costs a tenth of them.
SHORT = 8


class Code:
    """The object code of a layout: compiled, or found in the store, when it is first asked for."""

    def __init__(self, layout: Layout, bits: int) -> None:
        self.bits = bits
        self.symbols = {k: symbol_of(k) for k in kernels_of(layout)}
        self.cuts = {k: Cut(k, bits) for k in self.symbols}
        self.known: dict[str, engine.Object] = {}  # by text

    @cached_property
    def kernels(self) -> list[engine.Object]:
        """The kernels and what they call."""
        return list(map(engine.assemble, kernels_texts(self.symbols, self.bits)))

    def library(self, text: str) -> engine.Object:
        """A module of library routines."""
        if text not in self.known:
            self.known[text] = engine.assemble(text)
        return self.known[text]


def plan(layout: Layout, checks: Checks, code: Code, values: Values) -> Plan:
    """All that running this layout takes, where the symbols of its graph have these values."""
    return _Planner(layout, checks, code, values).plan()


class _Planner:
    def __init__(self, layout: Layout, checks: Checks, code: Code, values: Values) -> None:
        self.layout, self.checks, self.code, self.values = layout, checks, code, values
        self.parts: list[list[StepLike] | Call] = []
        self.cut()
        self.runs = [[] if isinstance(p, Call) else self.together(p) for p in self.parts]
        self.place_checks()
        self.place()
        graph = layout.graph
        bodies = [s.match.layout for s in layout.order if isinstance(s, Call) and isinstance(s.match, Body)]
        self.consts = [n for x in (layout, *bodies) for n in x.consts]
        p, c, o = len(graph.params), len(self.consts), len(layout.outputs)
        self.bases = {"param": 0, "const": p, "out": p + c, "temp": p + c + o}
        self.texts: dict[str, None] = {}  # of the modules of library routines

    def plan(self) -> Plan:
        layout, graph = self.layout, self.layout.graph
        parts = tuple(self.host(p) if isinstance(p, Call) else self.segment(k, p) for k, p in enumerate(self.parts))
        saved = {s.target.number: s.source for s in layout.order if isinstance(s, Copy) and s.target.kind == "temp"}
        targets = {self.home[graph.params[j]].number for j in layout.updates.values()}
        return Plan(
            params=tuple(self.type(p) for p in graph.params),
            constants=tuple(np.ascontiguousarray(n.op.value.array) for n in self.consts),  # type: ignore[attr-defined]
            outputs=tuple(self.type(r) for r, _ in layout.outputs),
            temps=tuple(self.type(n) for n in (*self.temps, *(saved[k] for k in self.saved))),
            targets=tuple(sorted(targets)),
            parts=parts,
            checked=tuple(self.number(n) for n in layout.checked),
            late_checks={part: tuple(checks) for part, checks in self.late_checks.items()},
            objects=(*self.code.kernels, *map(self.code.library, self.texts)),
        )

    # ------------------------------------------------------------ where things are

    def cut(self) -> None:
        """Segments between host steps; where in them each node is made."""
        self.made: dict[Node, tuple[int, int]] = {}  # part, and step of it
        for s in self.layout.order:
            if is_host(s):
                self.parts.append(s)
                self.made |= dict.fromkeys(s.outputs, (len(self.parts) - 1, 0))
                continue
            if not self.parts or isinstance(self.parts[-1], Call):
                self.parts.append([])
            last = self.parts[-1]
            assert isinstance(last, list)
            last.append(s)
            self.made |= dict.fromkeys(s.writes, (len(self.parts) - 1, len(last) - 1))

    def together(self, part: Sequence[StepLike]) -> list[range]:
        """Runs of short kernels none of which waits for another, where together they are worth sharing out.

        Slices are cut by the number of units: those of a run are worth the same, but for kernels of a single one.
        """
        out: list[range] = []
        run: set[StepLike] = set()
        grains: set[int] = set()  # of kernels of several units
        slices = 0.0
        for i, s in enumerate((*part, None)):
            how = None if s is None or isinstance(s, Call) else self.short(s)
            own = {how.grain} if how and how.units > 1 else set[int]()
            if not (s and how and len(grains | own) <= 1 and run.isdisjoint(self.layout.after[s])):
                if len(run) > 1 and slices >= 2:
                    out.append(range(i - len(run), i))
                run, grains, slices = set(), set(), 0.0
            if s and how:
                run.add(s)
                grains |= own
                slices += how.units / how.grain
        return out

    def short(self, s: Launch | Copy) -> Slicing | None:
        """How a pointwise kernel is cut, if that gives fewer slices than are worth a meeting of the team."""
        kernel = kernel_of(s)
        how = self.code.cuts[kernel].launch(self.values)
        return how if how.units < SHORT * how.grain and not any(t.axes for t in kernel.stages) else None

    def place_checks(self) -> None:
        """When each check is due: in their own order, for a check that fails means that those before hold."""
        self.due: dict[int, list[tuple[int, int]]] = {}  # segment -> (check, step after which)
        self.late_checks: dict[int, list[int]] = {}  # host step -> checks; -1: of values that are given
        due = (-1, 0)
        for k, n in enumerate(self.layout.checked):
            due = max(due, self.made.get(n, due))
            if due[0] >= 0 and not isinstance(self.parts[due[0]], Call):
                self.due.setdefault(due[0], []).append((k, due[1]))
            else:
                self.late_checks.setdefault(due[0], []).append(k)

    def place(self) -> None:
        """Arena offsets of what lives in one segment; numbers of what does not."""
        home = self.home = dict(self.layout.home)  # of this plan alone: what is a temporary is added
        self.offsets: dict[Hashable, int] = {}
        self.arena: dict[int, int] = {}
        self.temps: list[Node] = []
        used: dict[Node, set[int]] = {}
        for k, part in enumerate(self.parts):
            for s in [part] if isinstance(part, Call) else part:
                for n in (*s.reads, *s.writes):
                    used.setdefault(n, set()).add(k)
        for n, parts in used.items():
            if n in home or isinstance(n.type, TupleType):
                continue
            if len(parts) > 1 or isinstance(self.parts[self.made[n][0]], Call) or n in self.layout.checked:
                home[n] = Place("temp", len(self.temps))
                self.temps.append(n)
        for k, part in enumerate(self.parts):
            if isinstance(part, Call):
                continue
            life: dict[Hashable, arena.Lifetime] = {}
            turns = {i: r.start for r in self.runs[k] for i in r}  # what runs together lives together
            for i, s in enumerate(part):
                i = turns.get(i, i)
                if isinstance(s, Call) and isinstance(s.match, Body):
                    life[s] = arena.Lifetime(s.match.room[-1], i, i)
                for n in (*s.writes, *s.reads):
                    if n not in home:
                        first = life[n].first if n in life else i
                        life[n] = arena.Lifetime(count(n.shape, self.values) * n.dtype.itemsize, first, i)
            offsets, self.arena[k] = arena.place(life)
            self.offsets |= offsets
        self.saved = sorted(
            {s.target.number for s in self.layout.order if isinstance(s, Copy) and s.target.kind == "temp"}
        )

    def type(self, n: Node) -> TensorType:
        """The type of a node, which has no symbols now."""
        return bound(n.type, self.values)

    def external(self, place: Place) -> External:
        number = place.number if place.number >= 0 else len(self.temps) + self.saved.index(place.number)
        return External(self.bases[place.kind] + number)

    def arg(self, n: Node) -> Arg:
        return self.external(self.home[n]) if n in self.home else Arena(self.offsets[n])

    def number(self, n: Node) -> int:
        """Of a node that does not live in an arena."""
        return self.external(self.home[n]).index

    # ------------------------------------------------------------ steps

    def host(self, s: Call) -> Host:
        params = tuple(param(f"x{k}", self.type(i)) for k, i in enumerate(s.node.inputs))
        made = Node.of(bound_op(s.node.op, self.values), params)
        several = isinstance(s.node.type, TupleType)
        results = tuple(Node.of(n.op, (made,)) if several else made for n in s.outputs)
        return Host(
            Graph("host", params, results), tuple(map(self.number, s.inputs)), tuple(map(self.number, s.outputs))
        )

    def segment(self, number: int, part: Sequence[StepLike]) -> Segment:
        steps: list[Step] = []
        loops: list[Loop] = []
        tests: list[Check] = []  # of loops
        last: list[int] = []  # of each of `part`
        checked = {at for _, at in self.due.get(number, ())}
        for k, s in enumerate(part):
            if isinstance(s, Call) and isinstance(s.match, Body):
                loops.append(self.loop(s, s.match, steps, tests))
                if k in checked:  # a step to wait for that is not in the loop, and does nothing
                    steps.append(replace(steps[-1], extent=0, parallel=False))
            else:
                steps += self.run(s, self.arg, self.external)
            last.append(len(steps) - 1)
        due = [(k, last[at]) for k, at in self.due.get(number, ())]
        checks, numbers = tuple(self.check(k, at) for k, at in due), tuple(k for k, _ in due)
        batches = tuple(Batch(last[r.start], last[r[-1]] + 1) for r in self.runs[number])
        return Segment(tuple(steps), self.arena[number], (*checks, *tests), numbers, tuple(loops), batches)

    def run(self, s: StepLike, arg: Callable[[Node], Arg], place: Callable[[Place], Arg]) -> Sequence[Step]:
        """What is run for a step whose operands are where `arg` and `place` say."""
        if isinstance(s, Call):
            return self.call(s, arg)
        if isinstance(s, Launch):
            return [self.kernel(s.kernel, [arg(n) for n in s.operands])]
        origin = place(s.origin) if isinstance(s, SavedCopy) else arg(s.source)
        return [self.kernel(s.launch.kernel, [origin, place(s.target)])]

    def kernel(self, kernel: Kernel, operands: Sequence[Arg]) -> Step:
        cut = self.code.cuts[kernel].launch(self.values)
        args = (*operands, *(Int(self.values[name]) for name in kernel.symbols))
        return Step(0, args, cut.units, cut.grain, cut.scratch, self.code.symbols[kernel], cut.units > cut.grain)

    def call(self, s: Call, arg: Callable[[Node], Arg]) -> list[Step]:
        node, match = (narrowed(s.node, self.values), s.match.at(self.values)) if self.values else (s.node, s.match)
        views = [moved(arg(n), v.offset * n.dtype.itemsize) for n, v in zip(s.inputs, match.operands)]
        operands = [*views, *(arg(n) for n in reversed(s.outputs))]  # -1 is the first result
        sizes = [n.dtype.itemsize for n in (*s.inputs, *reversed(s.outputs))]
        return [self.routine(r, operands, sizes) for r in library.routines(node, match, self.code.bits)]

    def routine(self, r: library.Routine, operands: Sequence[Arg], sizes: Sequence[int]) -> Step:
        self.texts |= dict.fromkeys(r.texts)
        starts = zip(r.pointers, r.offsets, strict=True)
        args = (*(moved(operands[k], at * sizes[k]) for k, at in starts), *map(Int, r.integers))
        return Step(0, args, r.extent, r.grain, r.scratch, r.symbol, r.extent > r.grain)

    def loop(self, s: Call, body: Body, steps: list[Step], tests: list[Check]) -> Loop:
        """Adds the steps before and in a loop, whose shapes are known, and its test."""
        op, layout = body.op, body.layout
        inputs = [moved(self.arg(n), number(v.offset, {}) * n.dtype.itemsize) for n, v in zip(s.inputs, body.operands)]
        results = [self.arg(n) for n in s.outputs]
        steps += (self.kernel(k, [source, target]) for k, source, target in zip(body.kernels, inputs, results))
        places: dict[Place, Arg] = {}
        for k, (p, v) in enumerate(zip(layout.graph.params, body.operands, strict=True)):
            place = places[Place("param", k)] = results[k] if k < op.carried else inputs[k]
            if k in body.rows and isinstance(op, control.Loop):
                by = number(v.strides[0], {}) * p.dtype.itemsize
                places[Place("param", k)] = rows(place, op, by)
        for k, (n, place) in enumerate(layout.outputs):
            assert isinstance(op, control.Loop)
            places[place] = rows(results[op.carried + k], op, nbytes(n))
        for n in layout.consts:
            places[layout.home[n]] = External(self.bases["const"] + self.consts.index(n))
        offsets, saved, packed, _ = body.room
        start = self.offsets[s]
        places |= {Place("temp", k): Arena(start + at) for k, at in saved.items()}

        def arg(n: Node) -> Arg:
            return places[layout.home[n]] if n in layout.home else Arena(start + offsets[n])

        turn: list[Step] = []
        after: dict[StepLike, int] = {}  # what is made -> the last step of a turn that makes it
        for inner in layout.order:
            if (found := body.ahead.get(inner)) is None:
                turn += self.run(inner, arg, places.__getitem__)
                after[inner] = len(turn) - 1
                continue
            assert isinstance(inner, Call)
            n, panels = inner.node, Arena(start + packed[inner])
            a, b = (moved(arg(i), v.offset * n.dtype.itemsize) for i, v in zip(inner.inputs, inner.match.operands))
            sizes = [n.dtype.itemsize] * 3
            steps.append(self.routine(found.before, [a, b, panels], sizes))
            turn.append(self.routine(found.then, [a, panels, arg(n)], sizes))
        first = len(steps)
        steps += turn
        if isinstance(op, control.Loop):
            return Loop(first, len(steps), op.trips)
        (test,) = layout.checked
        tests.append(Check(first + after[layout.maker[test]], arg(test), 1, 1))
        return Loop(first, len(steps), op.limit, results[-1])

    def check(self, number: int, after: int) -> Check:
        n, expected = self.layout.checked[number], self.checks[number][1]
        raw = np.asarray(expected, n.dtype.numpy).tobytes()
        return Check(after, self.arg(n), len(raw), int.from_bytes(raw, "little"))


def narrowed(n: Node, values: Values) -> Node:
    """A node with extents for symbols, over operands that are as good as its own to who asks for types and zeros."""
    inputs = (
        Node.of(bound_op(i.op, values), ()) if i.op.name == "const" else param("", bound(i.type, values))
        for i in n.inputs
    )
    return Node.of(bound_op(n.op, values), tuple(inputs))


def rows(stack: Arg, op: control.Loop, nbytes: int) -> Row:
    """The rows of a stack, `nbytes` apart, in the order in which a loop comes to them."""
    assert isinstance(stack, (External, Arena))
    if not op.backwards:
        return Row(stack, nbytes)
    return Row(further(stack, (op.trips - 1) * nbytes), -nbytes)


def moved(place: Arg, nbytes: int) -> Arg:
    """A place some bytes further on."""
    assert not isinstance(place, Int)
    return Row(further(place.first, nbytes), place.by) if isinstance(place, Row) else further(place, nbytes)


def further(place: Address, nbytes: int) -> Address:
    if isinstance(place, External):
        return External(place.index, place.byte_offset + nbytes)
    return Arena(place.byte_offset + nbytes)


# ---------------------------------------------------------------- code

_HELPER = re.compile(r"@(tj_(?:pick|step|clamp|scatter)_\w+)\(")


def kernels_of(layout: Layout) -> tuple[Kernel, ...]:
    """The kernels it launches, each once, in order."""
    out: dict[Kernel, None] = {}
    for s in layout.order:
        if isinstance(s, Call):
            inside = (*s.match.kernels, *kernels_of(s.match.layout)) if isinstance(s.match, Body) else ()
        else:
            inside = (kernel_of(s),)
        out |= dict.fromkeys(inside)
    return tuple(out)


def kernel_of(s: Launch | Copy) -> Kernel:
    """The one it launches."""
    return (s if isinstance(s, Launch) else s.launch).kernel


def symbol_of(kernel: Kernel) -> str:
    """The kernel's name in machine code: a hash of its text."""
    return f"k{sha256(str(kernel).encode()).hexdigest()[:16]}"


def kernels_text(symbols: Mapping[Kernel, str], bits: int) -> str:
    """One LLVM module with all these kernels."""
    module = Module()
    for name, kernel in {name: k for k, name in symbols.items()}.items():
        emit.emit(module, kernel, name, bits)
    return module.text()


def kernels_texts(symbols: Mapping[Kernel, str], bits: int) -> list[str]:
    """The module with all these kernels, and those with what they call."""
    if not symbols:
        return []
    text = kernels_text(symbols, bits)
    functions = sorted({f for k in symbols for f in emit.functions(k, bits)})
    called = [vectormath.module([f]) for f in functions]
    if helpers := set(_HELPER.findall(text)):
        called.append(emit.helpers(helpers))
    return [text, *called]
