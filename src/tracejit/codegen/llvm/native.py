"""Schedule -> native Executable: where values live, the order of steps, one module of kernels, and the call itself.

A value lives in an output array, in the parameter it updates, in the arena of its segment, or (made on one side of a
host step and read on the other) in an array of its own. Segments are runs of native steps: one `Program` each.

An update goes straight into its parameter where no one can tell: the kernel that makes it reads each old element only
to make its successor, every other reader of the old value runs before, and nothing that can still fail comes after.
Otherwise it is made elsewhere and copied at the end.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush
from math import prod
from typing import Any, TypeGuard

import numpy as np

from tracejit.codegen import arena
from tracejit.codegen.kernel import Buffer, Kernel, Load, Stage, Store, sizes
from tracejit.codegen.llvm import emit, library, vectormath
from tracejit.codegen.llvm.text import Module
from tracejit.codegen.prepare import prepare
from tracejit.codegen.result import Checks, Miss, own, same_bits
from tracejit.codegen.schedule import Call, Launch, Schedule, schedule
from tracejit.errors import BackendError
from tracejit.ir.dtype import DType
from tracejit.ir.graph import Graph
from tracejit.ir.index import Axis, Index
from tracejit.ir.node import Node
from tracejit.ir.op import Array, ArrayConst
from tracejit.ir.types import TensorType, TupleType
from tracejit.runtime import buffer, engine
from tracejit.runtime.program import Arena, Arg, Check, External, Int, Program, Step

__all__ = ["Copy", "Native", "assemble"]


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


def assemble(graph: Graph, updates: Mapping[int, int], checks: Checks) -> Native:
    """The graph, whose shapes are known, as native code."""
    graph = prepare(graph)
    plan = schedule(graph, emit.supports, library.match)
    return Native(graph, Layout(graph, plan, updates, checks), checks)


# ---------------------------------------------------------------- where values live, in what order they are made


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
        risky = [s for s in self.steps if is_host(s)] + [self.maker[c] for c in self.checked if c in self.maker]
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
                isinstance(made, Launch)
                and new not in self.home
                and not bit[made] & must_precede
                and new.shape == old.shape
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
    return Launch(copy_kernel(n.dtype, prod(sizes(n.shape))), (n, n))


def copy_kernel(dtype: DType, size: int) -> Kernel:
    """to[i] = from[i]."""
    i = Axis("i0", size)
    load = Node(Load(0, dtype, Index.of(i)), (), TensorType(dtype, ()))
    stage = Stage((), (), (Store(1, Index.of(i), load),))
    return Kernel((i,), (stage,), (Buffer(dtype, size, "in"), Buffer(dtype, size, "out")), "outer")


# ---------------------------------------------------------------- segments


# An array and the addresses where it begins and ends.
Seen = tuple["weakref.ref[Array]", int, int]


@dataclass(eq=False)
class Segment:
    """A run of native steps, before it is a Program."""

    steps: list[StepLike]
    checks: list[int]


class Native:
    """A compiled graph; see `codegen.compile.Executable`."""

    def __init__(self, graph: Graph, layout: Layout, checks: Checks) -> None:
        self.graph, self.layout, self.checks = graph, layout, checks
        self._bits = engine.vector_bits()
        self._cut()
        self._place()
        launches = [s if isinstance(s, Launch) else s.launch for s in layout.order if not isinstance(s, Call)]
        self.kernels = tuple(dict.fromkeys(x.kernel for x in launches))
        self.host_ops = tuple(s.node.op.name for s in layout.order if is_host(s))
        self._code = kernels_code(self.kernels, self._bits)
        self._needs: list[engine.Code] = []
        self._parts = [p if isinstance(p, Call) else self._program(p) for p in self._segments]
        self._targets = frozenset({layout.home[graph.params[j]].number for j in layout.updates.values()})
        self._is_plain = len(self._parts) == 1 and not isinstance(self._parts[0], Call) and -1 not in self._host_checks
        self._seen: list[Seen | None] = [None] * len(graph.params)  # the arrays of the last call that were fit to use
        self._param_types = [array_type(p) for p in graph.params]
        self._output_types = [array_type(r) for r, _ in layout.outputs]
        saved = {s.target.number: s.source for s in layout.order if isinstance(s, Copy) and s.target.kind == "temp"}
        self._temp_types = [array_type(n) for n in (*self._temps, *(saved[k] for k in self._saved))]
        self._constants = [np.ascontiguousarray(n.op.value.array) for n in layout.consts]  # type: ignore[attr-defined]

    @property
    def text(self) -> str:
        """The LLVM text of the kernels."""
        module = Module()
        for name, k in {symbol_of(k): k for k in self.kernels}.items():
            emit.emit(module, k, name, self._bits)
        return module.text()

    # ------------------------------------------------------------ compile

    def _cut(self) -> None:
        """Segments between host steps, and after which step of them each check is due."""
        self._segments: list[Segment | Call] = []
        self._due: dict[int, int] = {}  # check -> step of its segment
        self._host_checks: dict[
            int, list[int]
        ] = {}  # checks of values that are given, or made by the host: before a part
        at: dict[Node, tuple[int, int]] = {}
        for s in self.layout.order:
            if is_host(s):
                self._segments.append(s)
                at |= dict.fromkeys(s.outputs, (len(self._segments) - 1, 0))
            else:
                if not self._segments or isinstance(self._segments[-1], Call):
                    self._segments.append(Segment([], []))
                last = self._segments[-1]
                assert isinstance(last, Segment)
                last.steps.append(s)
                for w in s.writes:
                    at[w] = (len(self._segments) - 1, len(last.steps) - 1)
        due = (-1, 0)
        for k, n in enumerate(self.layout.checked):
            due = max(due, at.get(n, due))  # in their own order: a check that fails means that those before hold
            part = self._segments[due[0]] if due[0] >= 0 else None
            if isinstance(part, Segment):
                self._due[k] = due[1]
                part.checks.append(k)
            else:
                self._host_checks.setdefault(due[0], []).append(k)

    def _place(self) -> None:
        """Arena offsets of what lives in one segment; numbers of what does not."""
        home = self.layout.home
        self._offsets: dict[Node, int] = {}
        self._arena: dict[int, int] = {}
        self._temps: list[Node] = []
        used: dict[Node, set[int]] = {}
        made: dict[Node, int] = {}
        for k, part in enumerate(self._segments):
            for s in part.steps if isinstance(part, Segment) else [part]:
                for n in s.writes:
                    made[n] = k
                for n in (*s.reads, *s.writes):
                    used.setdefault(n, set()).add(k)
        shape_of = {n: prod(sizes(n.shape)) * n.dtype.itemsize for n in used if not isinstance(n.type, TupleType)}
        for n, parts in used.items():
            if n in home or isinstance(n.type, TupleType):
                continue
            if len(parts) > 1 or isinstance(self._segments[made[n]], Call) or n in self.layout.checked:
                home[n] = Place("temp", len(self._temps))
                self._temps.append(n)
        for k, part in enumerate(self._segments):
            if isinstance(part, Call):
                continue
            life: dict[Node, arena.Lifetime] = {}
            for i, s in enumerate(part.steps):
                for n in (*s.writes, *s.reads):
                    if n not in home:
                        first = life[n].first if n in life else i
                        life[n] = arena.Lifetime(shape_of[n], first, i)
            offsets, self._arena[k] = arena.place(life)
            self._offsets |= offsets
        self._saved = sorted(
            {s.target.number for s in self.layout.order if isinstance(s, Copy) and s.target.kind == "temp"}
        )

    @cached_property
    def _bases(self) -> dict[str, int]:
        """Where each kind of place begins among the externals."""
        p, c, o = len(self.graph.params), len(self.layout.consts), len(self.layout.outputs)
        return {"param": 0, "const": p, "out": p + c, "temp": p + c + o}

    @property
    def _externals(self) -> int:
        return self._bases["temp"] + len(self._temps) + len(self._saved)

    def _external(self, place: Place) -> External:
        number = place.number if place.number >= 0 else len(self._temps) + self._saved.index(place.number)
        return External(self._bases[place.kind] + number)

    def _arg(self, n: Node) -> Arg:
        return self._external(self.layout.home[n]) if n in self.layout.home else Arena(self._offsets[n])

    def _program(self, part: Segment) -> Program:
        steps: list[Step] = []
        for s in part.steps:
            steps.append(self._call(s) if isinstance(s, Call) else self._launch(s))
        checks = [self._check(c) for c in part.checks]
        number = self._segments.index(part)
        return Program(
            steps,
            self._arena[number],
            self._externals,
            checks,
            tuple(dict.fromkeys([*self._code.values(), *self._needs])),
        )

    def _launch(self, s: Launch | Copy) -> Step:
        kernel = s.kernel if isinstance(s, Launch) else s.launch.kernel
        symbol, cut = symbol_of(kernel), emit.launch(kernel, self._bits)
        if isinstance(s, Copy):
            origin = self._external(s.origin) if isinstance(s, SavedCopy) else self._arg(s.source)
            args: tuple[Arg, ...] = (origin, self._external(s.target))
        else:
            args = tuple(self._arg(n) for n in s.operands)
        address = self._code[symbol].address(symbol)
        return Step(address, args, cut.units, cut.grain, cut.scratch, symbol, cut.units > cut.grain)

    def _call(self, s: Call) -> Step:
        r = library.routine(s.node, s.match, self._bits)
        self._needs.append(r.code)
        views = [moved(self._arg(n), v.offset * n.dtype.itemsize) for n, v in zip(s.inputs, s.match.operands)]
        operands = [*views, *(self._arg(n) for n in reversed(s.outputs))]  # -1 is the first result
        args = (*(operands[k] for k in r.pointers), *map(Int, r.integers))
        return Step(r.code.address(r.symbol), args, r.extent, r.grain, r.scratch, r.symbol, r.extent > r.grain)

    def _check(self, number: int) -> Check:
        n, expected = self.layout.checked[number], self.checks[number][1]
        raw = np.asarray(expected, n.dtype.numpy).tobytes()
        return Check(self._due[number], self._arg(n), len(raw), int.from_bytes(raw, "little"))

    # ------------------------------------------------------------ call

    def __call__(self, arrays: Sequence[Array]) -> tuple[Array, ...] | Miss:
        bound, restore = self._bind(arrays)
        outputs = [buffer.empty(shape, dtype) for shape, dtype in self._output_types]
        # What the program sees, in the order of `_bases`; host steps fill in what they make.
        places = [
            *bound,
            *self._constants,
            *outputs,
            *(buffer.empty(shape, dtype) for shape, dtype in self._temp_types),
        ]
        if self._is_plain:
            if (failed := self._parts[0].run_arrays(places)) >= 0:  # type: ignore[union-attr]
                return self._miss(self._segments[0].checks[failed], places)  # type: ignore[union-attr]
        elif (miss := self._run(places)) is not None:
            return miss
        for target, value in restore:
            np.copyto(target, value)
        first = self._bases["out"]
        return tuple(places[first : first + len(outputs)])

    def _run(self, places: list[Array]) -> Miss | None:
        """Parts in turn, and the checks that wait for none or for a host step."""
        if (miss := self._host_check(-1, places)) is not None:
            return miss
        for k, part in enumerate(self._parts):
            segment = self._segments[k]
            if isinstance(part, Call):
                self._host(part, places)
                if (miss := self._host_check(k, places)) is not None:
                    return miss
            elif (failed := part.run_arrays(places)) >= 0:
                assert isinstance(segment, Segment)
                return self._miss(segment.checks[failed], places)
        return None

    def _bind(self, arrays: Sequence[Array]) -> tuple[Sequence[Array], list[tuple[Array, Array]]]:
        """Arrays as the program wants them, and the pairs (target, result) to copy when it has run.

        Contiguous ones are used as they are; of two that share memory where one is updated, the other keeps a copy.
        """
        seen = self._seen
        if len(arrays) != len(self._param_types):
            raise BackendError(f"@{self.graph.name} takes {len(self._param_types)} arrays, got {len(arrays)}")
        changed = [k for k, (a, s) in enumerate(zip(arrays, seen)) if s is None or s[0]() is not a]
        if not changed:
            return arrays, []
        bound = list(arrays)
        restore: list[tuple[Array, Array]] = []
        fresh = list(seen)
        for k in changed:
            a = bound[k] = self._fit(k, arrays[k])
            if a is not arrays[k] and k in self._targets:
                restore.append((arrays[k], a))
            start = buffer.address(a)
            fresh[k] = (weakref.ref(a), start, start + a.nbytes)
        self._separate(bound, fresh, changed)
        if all(a is b for a, b in zip(bound, arrays)):
            self._seen = fresh
        return bound, restore

    def _fit(self, k: int, a: Any) -> Array:  # Any: whatever the caller gave
        """Parameter k as a contiguous array: `a` itself, or a copy."""
        if type(a) is not np.ndarray:  # NumPy's scalars, and subclasses
            if k in self._targets and not isinstance(a, np.ndarray):
                raise BackendError(f"parameter {k} of @{self.graph.name} is updated, but {a!r} is no array")
            a = np.asarray(a)
        shape, dtype = self._param_types[k]
        if a.shape != shape or a.dtype != dtype:
            have = f"{a.dtype}{list(a.shape)}"
            raise BackendError(f"parameter {k} of @{self.graph.name} is {dtype}{list(shape)}, got {have}")
        if k in self._targets and not a.flags.writeable:
            raise BackendError(f"parameter {k} of @{self.graph.name} is updated, but the array is read-only")
        return a if a.flags.c_contiguous and a.flags.aligned else np.array(a, order="C")

    def _separate(self, bound: list[Array], spans: Sequence[Seen | None], changed: Sequence[int]) -> None:
        """Give parameters that share memory with one that is updated a copy of their own."""
        new = set(changed)
        for j in self._targets:
            mine = spans[j]
            for k in range(len(bound)) if j in new else changed:
                other = spans[k]
                if k in self._targets or mine is None or other is None:
                    continue
                if mine[1] < other[2] and other[1] < mine[2]:
                    bound[k] = bound[k].copy()

    def _index(self, n: Node) -> int:
        """The number of a stored node's place among the externals."""
        return self._external(self.layout.home[n]).index

    def _host(self, call: Call, places: list[Array]) -> None:
        args = [
            places[self._index(b)].reshape(sizes(i.shape)) for i, b in zip(call.node.inputs, call.inputs, strict=True)
        ]
        made = call.node.op.eval(*args)
        several = isinstance(call.node.type, TupleType)
        for n in call.outputs:
            value = np.ascontiguousarray(made[n.op.index] if several else made)  # type: ignore[attr-defined]
            places[self._index(n)] = own(value, places).reshape(sizes(n.shape))

    def _host_check(self, part: int, places: Sequence[Array]) -> Miss | None:
        for k in self._host_checks.get(part, ()):
            if not same_bits(places[self._index(self.layout.checked[k])].reshape(()), self.checks[k][1]):
                return self._miss(k, places)
        return None

    def _miss(self, check: int, places: Sequence[Array]) -> Miss:
        return Miss(check, places[self._index(self.layout.checked[check])].reshape(())[()])


def array_type(n: Node) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of the array that holds a node."""
    return sizes(n.shape), n.dtype.numpy


def moved(place: Arg, nbytes: int) -> Arg:
    """A place some bytes further on."""
    if isinstance(place, External):
        return External(place.index, place.byte_offset + nbytes)
    assert isinstance(place, Arena)
    return Arena(place.byte_offset + nbytes)


# ---------------------------------------------------------------- code


_HELPER = re.compile(r"@(tj_(?:pick|step|clamp|scatter)_\w+)\(")


def symbol_of(kernel: Kernel) -> str:
    """The kernel's name in machine code."""
    return f"k{kernel_key(kernel)}"


def kernel_key(kernel: Kernel) -> str:
    """A hash of the kernel's text."""
    from hashlib import sha256

    return sha256(str(kernel).encode()).hexdigest()[:16]


def kernels_code(kernels: Sequence[Kernel], bits: int) -> dict[str, engine.Code]:
    """Machine code of kernels by symbol, all that are new in one module."""
    module = Module()
    unique = {symbol_of(k): k for k in kernels}
    for name, k in unique.items():
        emit.emit(module, k, name, bits)
    text = module.text()
    needs = [
        engine.compile(vectormath.module([f]))
        for f in sorted({f for k in unique.values() for f in emit.functions(k, bits)})
    ]
    if helpers := set(_HELPER.findall(text)):
        needs.append(engine.compile(emit.helpers(helpers)))
    symbols = {name: address for code in needs for name, address in code.symbols.items()}
    code = engine.compile(text, symbols=symbols, needs=needs)
    return {symbol_of(k): code for k in kernels}
