"""Kernel -> LLVM text, every value a vector of `width` lanes.

A value is computed in the outermost loop it is constant in; what does not vary along the vector axis has equal lanes.
One body serves full vectors and remainders: a load that might leave its buffer, at a ragged end or in a padded border,
takes a side path that clamps each lane's index; a store writes only the lanes that exist. Neither path is taken by more
than the few vectors at an edge. Whether an extent is ragged is known here, so even extents cost no test.

Arithmetic is NumPy's, operation by operation: nothing is contracted or reassociated, integer division by zero gives 0,
maximum propagates NaN. f16 and bf16 are computed in f32. Mathematical functions are calls into `vectormath`.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from math import inf, prod

from tracejit.codegen.kernel import Accumulator, Buffer, Kernel, Load, Slot, Stage, Store, axes_of, extent, scalars
from tracejit.codegen.lanes import step
from tracejit.codegen.llvm import vectormath
from tracejit.codegen.llvm.text import Module, Type, Value, f32, f64, i1, i8, i16, i32, i64, of, ptr
from tracejit.codegen.place import bounds
from tracejit.ir import dtype as dt
from tracejit.ir.dtype import DType
from tracejit.ir.index import Axis, Index
from tracejit.ir.node import Node
from tracejit.ir.op import Op
from tracejit.ops.loop import Inside, Position

__all__ = ["Launch", "emit", "functions", "helpers", "launch", "supports"]

# Elements a unit of work covers where nothing else decides: long enough to hide the cost of starting it.
CHUNK = 4096
# Masked loads of 4 and 8 byte elements are single instructions on x86 with AVX2, loops elsewhere.
HAS_MASKS = platform.machine() in ("x86_64", "AMD64")


# ---------------------------------------------------------------- how a kernel is cut


@dataclass(frozen=True, slots=True)
class Launch:
    """How a kernel is cut into units of work: `units` of them, worth `grain` at a time, `scratch` bytes per thread."""

    units: int
    grain: int
    scratch: int


@dataclass(frozen=True)
class Plan:
    """The choices of one kernel: lanes, chunk length, and where its row buffers lie in scratch."""

    kernel: Kernel
    bits: int  # of a vector register

    @cached_property
    def width(self) -> int:
        """Lanes: two registers of the widest type; more where little is done with each, fewer on a short axis."""
        if not self.lengths:
            return 1
        nodes = [n for s in self.kernel.stages for n in scalars(roots(s))]
        widest = max((n.dtype.itemsize for n in nodes if n.dtype.kind == "f"), default=4)
        width = 2 * self.bits // (8 * max(widest, 4))
        if any(s.axes for s in self.kernel.stages) and self.is_light(nodes):
            width *= 4 if self.kernel.lanes == "outer" else 2
        while width > 4 and max(self.lengths) <= width // 2:
            width //= 2
        return width

    def is_light(self, nodes: Sequence[Node]) -> bool:
        """True where a reduction waits for memory and its own sums: several vectors side by side help."""
        if len(nodes) > 8 or any(n.op.name in vectormath.FUNCTIONS for n in nodes):
            return False
        if any(a.kind.startswith("arg") for s in self.kernel.stages for a in s.accumulators):
            return False
        groups = [self.vector] if self.vector else [s.axes[-1:] for s in self.kernel.stages if s.axes]
        loads = [n for n in nodes if isinstance(n.op, Load)]
        return all(
            not n.inputs and step(n.op.index, g) in (0, 1) for n in loads for g in groups if isinstance(n.op, Load)
        )

    @cached_property
    def vector(self) -> tuple[Axis, ...]:
        """The outer axes that vectors are cut from."""
        return self.kernel.outer[-self.kernel.joint :] if self.kernel.lanes == "outer" else ()

    @cached_property
    def length(self) -> int:
        """Points of the outer vector axes."""
        return prod(extent(a.extent) for a in self.vector)

    @cached_property
    def lengths(self) -> list[int]:
        """Elements that vectors are cut from, in each place."""
        if self.kernel.lanes == "outer":
            return [self.length] if self.vector else []
        return [extent(s.axes[-1].extent) for s in self.kernel.stages if s.axes]

    @cached_property
    def chunk(self) -> int:
        """Points of the outer vector axes in one unit."""
        if not self.vector:
            return 1
        if any(s.axes for s in self.kernel.stages) or self.walks_down:
            return self.width
        return max(self.width, min(CHUNK, round_up(self.length, self.width)))

    @cached_property
    def walks_down(self) -> bool:
        """True where lanes read far apart, as in a transpose: units go across then, to use cache lines whole."""
        if not self.rest or any(s.axes for s in self.kernel.stages):
            return False
        loads = [n.op for s in self.kernel.stages for n in scalars(roots(s)) if isinstance(n.op, Load)]
        return any(step(op.index, self.vector) not in (0, 1) for op in loads)

    @cached_property
    def chunks(self) -> int:
        """Units along the outer vector axes."""
        return -(-self.length // self.chunk) if self.vector else 1

    @cached_property
    def rest(self) -> tuple[Axis, ...]:
        """Outer axes that are counted by the unit number."""
        return self.kernel.outer[: len(self.kernel.outer) - len(self.vector)]

    @cached_property
    def offsets(self) -> dict[int, int]:
        """Where each row buffer starts in scratch."""
        out: dict[int, int] = {}
        at = 0
        for k, b in enumerate(self.kernel.buffers):
            if b.use == "row":
                out[k] = at
                at += round_up((extent(b.size) + 1) * self.width * b.dtype.itemsize if self.vector else
                               (extent(b.size) + self.width) * b.dtype.itemsize, 64)  # fmt: skip
        out[-1] = at
        return out

    @property
    def launch(self) -> Launch:
        """Units, grain and scratch."""
        units = prod(extent(a.extent) for a in self.rest) * self.chunks
        inner = sum(prod(extent(a.extent) for a in s.axes) for s in self.kernel.stages)
        return Launch(units, max(1, 8192 // max(1, inner * self.chunk)), self.offsets[-1])


def roots(stage: Stage) -> list[Node]:
    """What a stage computes."""
    return [*(a.value for a in stage.accumulators), *(s.value for s in stage.stores)]


def round_up(n: int, to: int) -> int:
    """The next multiple of `to`."""
    return -(-n // to) * to


def launch(kernel: Kernel, bits: int) -> Launch:
    """How `kernel` is cut, for vector registers of `bits` bits."""
    return Plan(kernel, bits).launch


# ---------------------------------------------------------------- which ops there are


def register(dtype: DType) -> Type:
    """What a value of `dtype` is inside a kernel: bools are masks, half floats are f32."""
    if dtype.kind == "b":
        return i1
    return f32 if dtype.kind == "f" and dtype.itemsize < 4 else of(dtype.name)


def memory(dtype: DType) -> Type:
    """What a value of `dtype` is in memory: bools are bytes, bf16 its bits."""
    return i16 if dtype is dt.bfloat16 else of(dtype.name)


def supports(op: Op, dtypes: Sequence[DType]) -> bool:
    """True where the pointwise `op` on operands of `dtypes` has a vector form here."""
    if isinstance(op, (Load, Slot, Position, Inside)) or op.name == "const":
        return True
    kinds = {d.kind for d in dtypes}
    if op.name in _FLOAT_ONLY or op.name in vectormath.FUNCTIONS:
        return kinds == {"f"}
    if op.name in ("sub", "neg", "div", "floordiv", "mod", "shift_left", "shift_right", "abs", "sign") and "b" in kinds:
        return False
    return op.name in _POINTWISE


def functions(kernel: Kernel, bits: int) -> set[tuple[str, str, int]]:
    """The mathematical functions `kernel` calls, as `vectormath.module` wants them."""
    width = Plan(kernel, bits).width
    out: set[tuple[str, str, int]] = set()
    for s in kernel.stages:
        for n in scalars(roots(s)):
            if n.op.name in vectormath.FUNCTIONS and not is_square(n):
                out.add((n.op.name, "f64" if n.dtype is dt.float64 else "f32", width))
    return out


def is_square(n: Node) -> bool:
    """x ** 2, which is x * x to the bit."""
    return n.op.name == "pow" and n.inputs[1].op.name == "const" and n.inputs[1].op.value == 2.0  # type: ignore[attr-defined]


def helpers(symbols: Iterable[str]) -> str:
    """LLVM text of the memory helpers that kernels call, by symbol; once for many kernels, so that those stay short.

    tj_clamp_i32x16(from, base, step, last): lanes base + k * step, each index clamped to 0 .. last
    tj_step_i32x16(from, step): lanes k * step
    tj_pick_i32x16_i64(from, indices): lanes wherever they are
    tj_scatter_i32(from, to, step, n): n lanes of a spilled vector, step apart
    """
    m = Module()
    for symbol in sorted(symbols):
        kind, *rest = symbol.removeprefix("tj_").split("_")
        name, _, width = rest[0].partition("x")
        t, w = Type(name), int(width or 1)
        if kind == "scatter":
            f = m.function(symbol, None, {"from": ptr, "to": ptr, "step": i64, "n": i64})
            source, to, step_, n = f.args
            with f.loop(0, n) as k:
                f.store(f.load(t, f.element(source, k, t)), f.element(to, k * step_, t))
            f.ret()
            continue
        lanes: list[Value] = []
        if kind == "pick":
            f = m.function(symbol, t.wide(w), {"from": ptr, "at": Type(rest[1]).wide(w)})
            source, at = f.args
            lanes = [(at.lane(k) if w > 1 else at).cast(i64) for k in range(w)]
        elif kind == "step":
            f = m.function(symbol, t.wide(w), {"from": ptr, "step": i64})
            source, by = f.args
            lanes = [by * k for k in range(w)]
        else:
            f = m.function(symbol, t.wide(w), {"from": ptr, "base": i64, "step": i64, "last": i64})
            source, base, by, last = f.args
            lanes = [f.maximum(f.minimum(base + by * k, last), 0) for k in range(w)]
        out = f.value(0, t.wide(w))
        for k, at in enumerate(lanes):
            one = f.load(t, f.element(source, at, t))
            out = out.insert(one, k) if w > 1 else one
        f.ret(out)
    return m.text()


# ---------------------------------------------------------------- one kernel


def emit(module: Module, kernel: Kernel, name: str, bits: int) -> None:
    """Define `void name(ptr args, i64 lo, i64 hi, ptr scratch)` in `module`; args are the buffers that are not rows."""
    _Emitter(module, Plan(kernel, bits), name).run()


class _Emitter:
    """Writes one kernel. `scopes` hold what has been computed, outermost loop first; a loop that ends drops its own."""

    def __init__(self, module: Module, plan: Plan, name: str) -> None:
        self.plan, self.kernel, self.width = plan, plan.kernel, plan.width
        self.f = module.function(name, None, {"args": ptr, "lo": i64, "hi": i64, "scratch": ptr})
        self.scopes: list[dict[Node, Value]] = [{}]
        self.coordinates: list[dict[Axis, Value]] = [{}]  # of lanes, in each scope
        self.level: dict[Axis, int] = {}  # the scope in which an axis has a value
        self.axes: dict[Axis, Value] = {}
        self.vector: tuple[Axis, ...] = plan.vector
        self.at: Value | None = None  # lane 0, counted along the vector axes
        self.active: Value | None = None  # lanes that exist, where that may be fewer than all
        self.slots: list[Value] = []
        self.stack: dict[Type, Value] = {}

    def run(self) -> None:
        f, plan = self.f, self.plan
        args, lo, hi, scratch = f.args
        self.pointers: list[Value] = []
        slot = 0
        for k, b in enumerate(self.kernel.buffers):
            if b.use == "row":
                self.pointers.append(f.offset(scratch, plan.offsets[k]))
            else:
                self.pointers.append(f.load(ptr, f.element(args, slot, ptr)))
                slot += 1
        entry = len(f.lines)
        with f.loop(lo, hi) as unit:
            chunk, rest = None, unit
            if plan.chunks > 1:
                by = prod(extent(a.extent) for a in plan.rest) if plan.walks_down else plan.chunks
                high = f.emit(f"udiv i64 {unit.name}, {by}", i64)
                low = f.emit(f"urem i64 {unit.name}, {by}", i64)
                chunk, rest = (high, low) if plan.walks_down else (low, high)
            self.split(rest)
            with self.scope(*plan.rest):
                if plan.vector:
                    self.block(chunk)
                else:
                    self.stages()
        f.ret()
        f.lines[entry:entry] = [  # stack memory for side paths: in the entry block, so once per call
            f"  {v.name} = alloca {t}, align 64" for t, v in self.stack.items()
        ]

    def split(self, number: Value) -> None:
        """Values of the unit's axes from their row-major number."""
        for axis in reversed(self.plan.rest[1:]):
            n = extent(axis.extent)
            self.axes[axis] = self.f.emit(f"urem i64 {number.name}, {n}", i64)
            number = self.f.emit(f"udiv i64 {number.name}, {n}", i64)
        if self.plan.rest:
            self.axes[self.plan.rest[0]] = number

    def block(self, chunk: Value | None) -> None:
        """The vectors of one chunk of the outer vector axes."""
        n = self.plan.length
        lo = chunk * self.plan.chunk if chunk is not None else 0
        hi = self.f.minimum(lo + self.plan.chunk, n) if isinstance(lo, Value) else min(n, self.plan.chunk)
        with self.f.loop(lo, hi, self.width) as at, self.lanes(self.plan.vector, at), self.scope(*self.plan.vector):
            self.stages()

    @contextmanager
    def lanes(self, group: tuple[Axis, ...], at: Value) -> Generator[None]:
        """Inside, `group` is cut into vectors and `at` is the number of lane 0's point."""
        for axis in group:
            self.axes[axis] = at  # stands for "known from here on": indices count the group as one
        before = self.vector, self.at, self.active
        n = prod(extent(a.extent) for a in group)
        self.vector, self.at, self.active = group, at, (n - at if n % self.width else None)
        yield
        self.vector, self.at, self.active = before

    @contextmanager
    def scope(self, *axes: Axis) -> Generator[None]:
        for axis in axes:
            self.level[axis] = len(self.scopes)
        self.scopes.append({})
        self.coordinates.append(dict(self.coordinates[-1]))
        yield
        self.scopes.pop()
        self.coordinates.pop()

    # ------------------------------------------------------------ stages

    def stages(self) -> None:
        for stage in self.kernel.stages:
            self.stage(stage)

    def stage(self, stage: Stage) -> None:
        order = scalars(roots(stage))
        if self.kernel.lanes == "inner":
            self.vector = stage.axes[-1:]
        self.varying = self.find_varying(order)
        self.base = len(self.scopes)
        carry = [v for a in stage.accumulators for v in self.identity(a, stage)]
        carry = self.nest(stage, 0, carry, order)
        at = 0
        for a in stage.accumulators:
            n = 2 if a.kind.startswith("arg") else 1
            self.slots.append(self.finish(a, carry[at : at + n]))
            at += n

    def find_varying(self, order: Sequence[Node]) -> set[Node]:
        """The values whose lanes may differ."""
        out: set[Node] = set()
        for n in order:
            if (
                not axes_of(n.op).isdisjoint(self.vector)
                or any(i in out for i in n.inputs)
                or (isinstance(n.op, Slot) and self.plan.vector)
                or (isinstance(n.op, Load) and self.plan.vector and self.kernel.buffers[n.op.buffer].use == "row")
            ):
                out.add(n)
        return out

    def nest(self, stage: Stage, depth: int, carry: list[Value], order: Sequence[Node]) -> list[Value]:
        """The stage's loops from `depth` inward; what the accumulators are afterwards."""
        self.compute(order, last=depth == len(stage.axes))
        if depth == len(stage.axes):
            carry = self.accumulate(stage, carry)
            self.stores(stage.stores)
            return carry
        axis = stage.axes[depth]
        n = extent(axis.extent)
        if axis in self.vector:
            with self.f.carrying(0, n, carry, self.width) as loop, self.lanes((axis,), loop.index), self.scope(axis):
                loop.carry = self.nest(stage, depth + 1, loop.carry, order)
            return loop.carry
        if n <= 4 and prod(extent(a.extent) for a in stage.axes if a not in self.vector) <= 16:
            for k in range(n):  # a window: no loop at all
                self.axes[axis] = self.f.value(k, i64)
                with self.scope(axis):
                    carry = self.nest(stage, depth + 1, carry, order)
            return carry
        with self.f.carrying(0, n, carry) as loop, self.scope(axis):
            self.axes[axis] = loop.index
            loop.carry = self.nest(stage, depth + 1, loop.carry, order)
        return loop.carry

    def compute(self, order: Sequence[Node], last: bool) -> None:
        """Every value of `order` that is known by now and not computed yet, in the scope it belongs to: this one."""
        here = len(self.scopes) - 1
        due = [n for n in order if not self.has(n) and (last or self.depth(n) <= here)]
        self.loads(
            [n for n in due if isinstance(n.op, Load) and not n.inputs and n in self.varying and self.is_even(n.op)]
        )
        for n in due:
            if n not in self.scopes[here]:
                self.scopes[here][n] = self.operation(n)

    def is_even(self, op: Load) -> bool:
        return self.kernel.buffers[op.buffer].use == "row" or self.along(op.index) is not None

    def has(self, n: Node) -> bool:
        return any(n in s for s in self.scopes)

    def depth(self, n: Node) -> int:
        """The scope where `n` has a value: the innermost axis it depends on."""
        out = 0
        for m in scalars([n]) if n.inputs else (n,):
            for a in axes_of(m.op):
                out = max(out, self.level.get(a, 1 << 30) if a in self.axes and self.is_open(a) else 1 << 30)
            if isinstance(m.op, Slot) or (isinstance(m.op, Load) and self.kernel.buffers[m.op.buffer].use != "in"):
                out = max(out, self.base - 1)
        return out

    def is_open(self, axis: Axis) -> bool:
        return self.level.get(axis, 1 << 30) < len(self.scopes)

    def get(self, n: Node) -> Value:
        for s in reversed(self.scopes):
            if n in s:
                return s[n]
        raise AssertionError(f"{n} is used before it is computed")

    # ------------------------------------------------------------ values

    def operation(self, n: Node) -> Value:
        op = n.op
        if isinstance(op, Load):
            return self.load(n, op)
        if isinstance(op, Slot):
            return self.slots[op.number]
        if isinstance(op, Position):
            return self.position(op.index)
        if isinstance(op, Inside):
            return self.inside(op)
        if op.name == "const":
            return self.f.value(op.value, register(n.dtype).wide(self.width))  # type: ignore[attr-defined]
        args = [self.get(i) for i in n.inputs]
        if op.name in _POINTWISE and not (op.name in vectormath.FUNCTIONS and n.dtype.kind == "f"):
            return _POINTWISE[op.name](self, n, args)
        if is_square(n):
            return args[0] * args[0]
        t = "f64" if n.dtype is dt.float64 else "f32"
        self.f.module.declare(vectormath.symbol(op.name, t, self.width), vectormath.declaration(op.name, t, self.width))
        return self.f.call(vectormath.symbol(op.name, t, self.width), args[0].type, *args)

    def index(self, index: Index) -> Value:
        """The position of lane 0; of an uneven index, without the vector axes."""
        out: Value | int = extent(index.constant)
        for axis, c in index.terms:
            if axis not in self.vector:
                out = self.axes[axis] * extent(c) + out if extent(c) != 1 else self.axes[axis] + out
        if by := self.along(index):
            assert self.at is not None
            out = self.at * by + out if by != 1 else self.at + out
        return self.f.value(out, i64)

    def along(self, index: Index) -> int | None:
        """How far the index moves from lane to lane; None where that is uneven."""
        return step(index, self.vector)

    def lane_numbers(self, type: Type, step: int) -> Value:
        if self.width == 1:
            return self.f.value(0, type)
        numbers = ", ".join(f"{type.scalar} {step * k}" for k in range(self.width))
        return Value(self.f, f"<{numbers}>", type.wide(self.width))

    def position(self, index: Index, type: Type = i64) -> Value:
        """The position of each lane."""
        out = self.index(index).cast(type).splat(self.width)
        by = self.along(index)
        if by is not None:
            return out + self.lane_numbers(type, by) if by else out
        for axis, c in index.terms:
            if axis in self.vector:
                place = self.coordinate(axis).cast(type)
                out = out + (place * extent(c) if extent(c) != 1 else place)
        return out

    def coordinate(self, axis: Axis) -> Value:
        """Each lane's place along one of several vector axes."""
        known = self.coordinates[-1]
        if axis not in known:
            assert self.at is not None
            t = i32 if self.plan.length < 1 << 30 else i64
            v = self.at.cast(t).splat(self.width) + self.lane_numbers(t, 1)
            k = self.vector.index(axis)
            below = prod(extent(a.extent) for a in self.vector[k + 1 :])
            if below > 1:
                v = self.f.emit(f"udiv {v.type} {v.name}, {v.type.constant(below)}", v.type)
            if k:
                v = self.f.emit(f"urem {v.type} {v.name}, {v.type.constant(extent(axis.extent))}", v.type)
            known[axis] = v
        return known[axis]

    def inside(self, op: Inside) -> Value:
        out: Value | None = None
        for index, lowest, limit in op.conditions:
            at = self.position(index, i32 if extent(limit) < 1 << 30 and is_small(index) else i64)
            # One unsigned comparison tests both ends.
            offset = at - extent(lowest) if extent(lowest) else at
            bound = self.f.value(extent(limit) - extent(lowest), offset.type)
            ok = self.f.emit(f"icmp ult {offset.type} {offset.name}, {bound.name}", offset.type.mask)
            out = ok if out is None else out & ok
        return out if out is not None else self.f.value(1, i1.wide(self.width))

    # ------------------------------------------------------------ memory

    def load(self, n: Node, op: Load) -> Value:
        """Loads that `loads` leaves: equal lanes, or an index that data decides."""
        f, buffer, t = self.f, self.kernel.buffers[op.buffer], memory(op.dtype)
        last = extent(buffer.size) - 1
        if n not in self.varying:
            at = self.index(op.index)
            for i, c in zip(n.inputs, op.strides, strict=True):
                at = at + self.first(self.get(i)) * extent(c)
            if not op.safe:
                at = f.maximum(f.minimum(at, last), 0)
            return self.widen(f.load(t, f.element(self.pointers[op.buffer], at, t)).splat(self.width), op.dtype)
        if not any(i in self.varying for i in n.inputs) and self.along(op.index) is not None:
            at = self.index(op.index)
            for i, c in zip(n.inputs, op.strides, strict=True):
                at = at + self.first(self.get(i)) * extent(c)
            by = self.along(op.index)
            assert by is not None
            ok = self.fits(at, by, extent(buffer.size))
            return self.widen(self.diamond(ok, [(op, at)])[0], op.dtype)
        flat = self.position(op.index, i32 if last < 1 << 30 and not n.inputs and is_small(op.index) else i64)
        for i, c in zip(n.inputs, op.strides, strict=True):
            flat = flat + self.get(i) * extent(c)
        if not op.safe or self.active is not None:
            flat = f.maximum(f.minimum(flat, f.value(last, flat.type)), 0)
        name = f"tj_pick_{t.integer}x{self.width}_{flat.type.wide(1)}"
        out = f.call(name, t.integer.wide(self.width), self.pointers[op.buffer], flat)
        return self.widen(out.bitcast(t.wide(self.width)), op.dtype)

    def first(self, v: Value) -> Value:
        return v.lane(0) if v.type.width > 1 else v

    def loads(self, nodes: Sequence[Node]) -> None:
        """Loads along the vector axis; those that may leave their buffer share one test."""
        checked: list[tuple[Node, Load, Value]] = []
        tests: dict[tuple[Index, int], Value] = {}
        for n in nodes:
            op = n.op
            assert isinstance(op, Load)
            buffer = self.kernel.buffers[op.buffer]
            if buffer.use == "row":
                self.scopes[-1][n] = self.widen(
                    self.f.load(memory(op.dtype).wide(self.width), self.row(op.buffer, op.index)), op.dtype
                )
                continue
            at = self.index(op.index)
            if op.safe and self.active is None:
                self.scopes[-1][n] = self.widen(self.direct(op, at), op.dtype)
                continue
            size, by = extent(buffer.size), self.along(op.index)
            assert by is not None
            if size <= abs(by) * (self.width - 1):  # shorter than a vector
                self.scopes[-1][n] = self.widen(self.clamped(op, at), op.dtype)
                continue
            checked.append((n, op, at))
            if (op.index, size) not in tests:
                tests[op.index, size] = self.fits(at, by, size)
        if not checked:
            return
        ok, *others = tests.values()
        for t in others:
            ok = ok & t
        for (n, op, _), v in zip(checked, self.diamond(ok, [(op, at) for _, op, at in checked]), strict=True):
            self.scopes[-1][n] = self.widen(v, op.dtype)

    def fits(self, at: Value, step: int, size: int) -> Value:
        """True where all lanes from `at` lie in a buffer of `size` elements."""
        reach = abs(step) * (self.width - 1)
        low = at if step > 0 else at - reach
        if size <= reach:
            return self.f.value(0, i1)
        return self.f.emit(f"icmp ult i64 {low.name}, {size - reach}", i1)

    def diamond(self, ok: Value, loads: Sequence[tuple[Load, Value]]) -> list[Value]:
        """The vectors of `loads`, straight where `ok`, else lane by lane with clamped indices."""
        f = self.f
        then, other, end = f._label("fast"), f._label("slow"), f._label("end")
        f.line(f"br i1 {ok.name}, label %{then}, label %{other}")
        sides: list[tuple[list[Value], str]] = []
        for block in (then, other):
            f._start(block)
            sides.append(
                ([self.direct(op, at) if block == then else self.clamped(op, at) for op, at in loads], f._block)
            )
            f.line(f"br label %{end}")
        f._start(end)
        (a, from_a), (b, from_b) = sides
        return [
            f.emit(f"phi {x.type} [ {x.name}, %{from_a} ], [ {y.name}, %{from_b} ]", x.type)
            for x, y in zip(a, b, strict=True)
        ]

    def direct(self, op: Load, at: Value) -> Value:
        """All lanes, known to lie in the buffer."""
        f, t, base, by = self.f, memory(op.dtype), self.pointers[op.buffer], self.along(op.index)
        assert by is not None
        if self.width == 1 or by == 1:
            return f.load(t.wide(self.width), f.element(base, at, t))
        if by == -1:
            v = f.load(t.wide(self.width), f.element(base, at - (self.width - 1), t))
            return v.shuffle(v, range(self.width - 1, -1, -1))
        name = f"tj_step_{t.integer}x{self.width}"
        out = f.call(name, t.integer.wide(self.width), f.element(base, at, t), f.value(by, i64))
        return out.bitcast(t.wide(self.width))

    def clamped(self, op: Load, at: Value) -> Value:
        """Lane by lane: those outside the buffer have some value or other."""
        f, t, size = self.f, memory(op.dtype), extent(self.kernel.buffers[op.buffer].size)
        last = size - 1
        if op.safe and self.width > 1 and t.bytes >= 4 and self.along(op.index) == 1 and HAS_MASKS:
            there = f.first(size - at, self.width)
            return f.masked_load(t.wide(self.width), f.element(self.pointers[op.buffer], at, t), there)
        out = f.call(
            f"tj_clamp_{t.integer}x{self.width}", t.integer.wide(self.width), self.pointers[op.buffer], at,
            f.value(self.along(op.index) or 0, i64), f.value(last, i64),
        )  # fmt: skip
        return out.bitcast(t.wide(self.width))

    def spill(self, type: Type) -> Value:
        """Stack memory for one vector."""
        t = type.wide(self.width)
        return self.stack.setdefault(t, Value(self.f, f"%stack.{t.suffix}", ptr))

    def row(self, buffer: int, index: Index) -> Value:
        """Address in a row buffer; where lanes are outer points, each element of the row is a whole vector."""
        at = self.index(index)
        t = memory(self.kernel.buffers[buffer].dtype)
        return self.f.element(self.pointers[buffer], at * self.width if self.plan.vector else at, t)

    def stores(self, stores: Sequence[Store]) -> None:
        ragged: list[tuple[Value, Value, int]] = []
        for s in stores:
            v, dtype = self.get(s.value), self.kernel.buffers[s.buffer].dtype
            v, t = self.narrow(v, dtype), memory(dtype)
            if self.kernel.buffers[s.buffer].use == "row":
                self.f.store(v, self.row(s.buffer, s.index))
                continue
            address = self.f.element(self.pointers[s.buffer], self.index(s.index), t)
            by = self.along(s.index)
            assert by is not None, "a store whose lanes lie unevenly"
            if by == 0:
                self.f.store(self.first(v), address)
            elif self.active is None and (by == 1 or self.width == 1):
                self.f.store(v, address)
            else:
                ragged.append((v, address, by))
        straight = [r for r in ragged if r[2] == 1]
        if straight:
            assert self.active is not None
            full = self.active >= self.width
            with self.f.either(full) as sides:
                for is_full in sides:
                    for v, address, by in straight:
                        if is_full:
                            self.f.store(v, address)
                        else:
                            self.scatter(v, address, by)
        for v, address, by in ragged:
            if by != 1:
                self.scatter(v, address, by)

    def scatter(self, v: Value, address: Value, by: int) -> None:
        at = self.spill(v.type.wide(1))
        self.f.store(v, at)
        n = self.f.value(self.width, i64) if self.active is None else self.f.minimum(self.active, self.width)
        self.f.call(f"tj_scatter_{v.type.wide(1).integer}", None, at, address, self.f.value(by, i64), n)

    def widen(self, v: Value, dtype: DType) -> Value:
        """From memory to register form."""
        if dtype.kind == "b":
            return v.ne(0)
        if dtype is dt.bfloat16:
            wide = i32.wide(v.type.width)
            return (self.f.emit(f"zext {v.type} {v.name} to {wide}", wide) << 16).bitcast(f32.wide(v.type.width))
        return v.cast(f32) if dtype is dt.float16 else v

    def narrow(self, v: Value, dtype: DType) -> Value:
        """From register to memory form."""
        if dtype.kind == "b":
            return v.cast(i8)
        if dtype is dt.bfloat16:
            return bfloat_bits(v)
        return v.cast(of("f16")) if dtype is dt.float16 else v

    # ------------------------------------------------------------ reductions

    def identity(self, a: Accumulator, stage: Stage) -> list[Value]:
        t = self.accumulator_type(a)
        f = self.f
        if a.kind.startswith("arg"):
            # No value compares below -1 as a position, so the first element always wins.
            return [f.value(lowest(t, a.value.dtype) if a.kind == "argmax" else highest(t, a.value.dtype), t),
                    f.value(-1, i32.wide(self.width))]  # fmt: skip
        starts = {"sum": 0, "prod": 1, "max": lowest(t, a.dtype), "min": highest(t, a.dtype)}
        return [f.value(starts[a.kind], t)]

    def accumulator_type(self, a: Accumulator) -> Type:
        return register(a.value.dtype if a.kind.startswith("arg") else a.dtype).wide(self.width)

    def accumulate(self, stage: Stage, carry: list[Value]) -> list[Value]:
        out: list[Value] = []
        alive: Value | None = None
        if self.kernel.lanes == "inner" and self.active is not None and stage.accumulators:
            alive = self.f.first(self.active, self.width)
        at = 0
        for a in stage.accumulators:
            v = self.get(a.value)
            n = 2 if a.kind.startswith("arg") else 1
            old = carry[at : at + n]
            at += n
            if n == 1:
                v = convert(v, a.value.dtype, a.dtype)
                new = [self.combine(a.kind, a.dtype, old[0], v)]
            else:
                new = self.better(a, old, [v, self.position(row_major(stage.axes), i32)])
            out += [alive.select(x, y) for x, y in zip(new, old, strict=True)] if alive is not None else new
        return out

    def combine(self, kind: str, dtype: DType, a: Value, b: Value) -> Value:
        if kind == "sum":
            return a | b if dtype.kind == "b" else a + b
        if kind == "prod":
            return a & b if dtype.kind == "b" else a * b
        return extreme(b, a, dtype, kind == "max")

    def better(self, a: Accumulator, old: Sequence[Value], new: Sequence[Value]) -> list[Value]:
        """(value, position) pairs: the larger (smaller) value, NaN above all, the first position where equal."""
        v, p = new
        w, q = old
        dtype = a.value.dtype
        wins = compare("gt" if a.kind == "argmax" else "lt", v, w, dtype)
        if dtype.kind == "f":
            wins = (wins & ~w.is_nan()) | (v.is_nan() & ~w.is_nan())
        same = (
            compare("eq", v, w, dtype) if dtype.kind != "f" else compare("eq", v, w, dtype) | (v.is_nan() & w.is_nan())
        )
        earlier = self.f.emit(f"icmp ult {p.type} {p.name}, {q.name}", p.type.mask)  # -1 is the largest
        wins = wins | (same & earlier)
        return [wins.select(v, w), wins.select(p, q)]

    def finish(self, a: Accumulator, carry: Sequence[Value]) -> Value:
        """The slot's value: combined across lanes where lanes are elements of a row, always by the same tree."""
        values = list(carry)
        if self.kernel.lanes == "inner" and self.width > 1:
            half = self.width // 2
            while half:
                hi, lo = ([lanes_of(v, at, half) for v in values] for at in (half, 0))
                values = self.better(a, lo, hi) if len(values) == 2 else [self.combine(a.kind, a.dtype, lo[0], hi[0])]
                half //= 2
            values = [v.splat(self.width) for v in values]
        if a.kind.startswith("arg"):
            return values[1].cast(i64)
        return round_to(values[0], a.dtype)


def is_small(index: Index) -> bool:
    """True where 32 bits hold the index and each of its terms, with room for lanes past the end."""
    low, high = bounds(index)
    return -(1 << 29) < low <= high < 1 << 29 and all(abs(extent(c)) < 1 << 20 for _, c in index.terms)


def lanes_of(v: Value, at: int, count: int) -> Value:
    """`count` lanes from `at` on; a scalar where that is one."""
    return v.lane(at) if count == 1 else v.shuffle(v, range(at, at + count))


def row_major(axes: Sequence[Axis]) -> Index:
    """The number of a point of a nest."""
    out = Index.at(0)
    for a in axes:
        out = out * extent(a.extent) + Index.of(a)
    return out


def lowest(t: Type, dtype: DType) -> float | int:
    """Below every value."""
    if dtype.kind in "bu":
        return 0
    return -inf if t.is_float else -(1 << (t.bits - 1))


def highest(t: Type, dtype: DType) -> float | int:
    """Above every value."""
    if dtype.kind == "b":
        return 1
    return inf if t.is_float else 255 if dtype.kind == "u" else (1 << (t.bits - 1)) - 1


# ---------------------------------------------------------------- arithmetic, as NumPy does it


def compare(word: str, a: Value, b: Value, dtype: DType) -> Value:
    """eq lt le gt ge; False where either side is NaN."""
    if dtype.kind == "f":
        text = f"fcmp o{word} {a.type} {a.name}, {b.name}"
    else:
        sign = "" if word == "eq" else "s" if dtype.kind == "i" else "u"
        text = f"icmp {sign}{word} {a.type} {a.name}, {b.name}"
    return a.f.emit(text, a.type.mask)


def extreme(a: Value, b: Value, dtype: DType, larger: bool) -> Value:
    """a if it is larger (smaller) or NaN, else b, which may be NaN too."""
    if dtype.kind == "b":
        return a | b if larger else a & b
    wins = compare("gt" if larger else "lt", a, b, dtype)
    return (wins | a.is_nan() if dtype.kind == "f" else wins).select(a, b)


def bfloat_bits(v: Value) -> Value:
    """The i16 of an f32 rounded to bf16, to nearest even; NaN stays NaN."""
    w = v.type.width
    bits = v.bitcast(i32.wide(w))
    up = v.f.emit(f"lshr {bits.type} {bits.name}, {bits.type.constant(16)}", bits.type)
    rounded = bits + ((up & 1) + 0x7FFF)
    rounded = v.is_nan().select(bits | 0x400000, rounded)
    return v.f.emit(f"lshr {bits.type} {rounded.name}, {bits.type.constant(16)}", bits.type).cast(i16)


def round_to(v: Value, dtype: DType) -> Value:
    """An f32 in register rounded to a value of a half type; others unchanged."""
    if dtype is dt.float16:
        return v.cast(of("f16")).cast(f32)
    if dtype is dt.bfloat16:
        w = v.type.width
        bits = v.f.emit(f"zext {i16.wide(w)} {bfloat_bits(v).name} to {i32.wide(w)}", i32.wide(w))
        return (bits << 16).bitcast(f32.wide(w))
    return v


def convert(v: Value, source: DType, to: DType) -> Value:
    """`v` of dtype `source` as `to`, as astype does on x86: out of range floats give the lowest integer, wrapped."""
    if source is to:
        return v
    f, target = v.f, register(to).wide(v.type.width)
    if to.kind == "b":
        return v.ne(0)
    if source.kind == "b" or (source.kind == "u" and to.kind != "f"):
        if target.is_float:
            return f.emit(f"uitofp {v.type} {v.name} to {target}", target)
        return v if target == v.type else f.emit(f"zext {v.type} {v.name} to {target}", target)
    if source.kind == "u":
        return f.emit(f"uitofp {v.type} {v.name} to {target}", target)
    if source.kind == "f" and to.kind != "f":
        limit = 2.0 ** (63 if target.bits == 64 else 31)
        wide = i64 if target.bits == 64 else i32
        fits = (v >= -limit) & (v < limit)
        whole = fits.select(v, 0.0).cast(wide)
        return fits.select(whole, -(1 << (wide.bits - 1))).cast(target.wide(1))
    return round_to(v.cast(target.wide(1)), to)


def remainder(a: Value, b: Value, dtype: DType) -> tuple[Value, Value]:
    """(a // b, a % b) rounded to minus infinity; both 0 where the integer b is 0."""
    f = a.f
    if dtype.kind == "f":
        rest = f.emit(f"frem {a.type} {a.name}, {b.name}", a.type)
        nonzero = rest.ne(0.0)
        turned = nonzero & ((b < 0.0).ne(rest < 0.0))
        quotient = (a - rest) / b
        quotient = turned.select(quotient - 1.0, quotient)
        floor = f.intrinsic("floor", quotient)
        floor = (quotient - floor > 0.5).select(floor + 1.0, floor)
        ratio = a / b
        floor = quotient.ne(0.0).select(floor, f.intrinsic("copysign", f.value(0.0, a.type), ratio))
        rest = turned.select(rest + b, nonzero.select(rest, f.intrinsic("copysign", f.value(0.0, a.type), b)))
        zero = b.eq(0.0)
        return zero.select(ratio, floor), rest
    zero = b.eq(0)
    if dtype.kind == "u":
        safe = zero.select(1, b)
        q = f.emit(f"udiv {a.type} {a.name}, {safe.name}", a.type)
        r = f.emit(f"urem {a.type} {a.name}, {safe.name}", a.type)
        return zero.select(0, q), zero.select(0, r)
    minus = b.eq(-1)  # the lowest integer divided by -1 traps
    safe = (zero | minus).select(1, b)
    q, r = a // safe, a % safe
    turned = r.ne(0) & ((b ^ r) < 0)
    q, r = turned.select(q - 1, q), turned.select(r + b, r)
    return zero.select(0, minus.select(-a, q)), zero.select(0, r)


def power_of_two(n: Node) -> int | None:
    """k where `n` is the integer constant 2**k."""
    value = getattr(n.op, "value", getattr(getattr(n.op, "index", None), "constant", None))
    if n.op.name == "position" and n.op.index.terms:  # type: ignore[attr-defined]
        return None
    if n.op.name in ("const", "position") and isinstance(value, int) and value > 0 and value & (value - 1) == 0:
        return value.bit_length() - 1
    return None


def divided(e: _Emitter, n: Node, x: Sequence[Value]) -> Value:
    """a // b or a % b; by powers of two a shift or a mask, which round down as they should."""
    (a, b), d = x, n.dtype
    if d.kind != "f" and (k := power_of_two(n.inputs[1])) is not None:
        if n.op.name == "mod":
            return a & ((1 << k) - 1)
        return shift("ashr", a, e.f.value(k, a.type), d)
    return remainder(a, b, d)[0 if n.op.name == "floordiv" else 1]


def shift(op: str, a: Value, b: Value, dtype: DType) -> Value:
    """a << b, a >> b; shifts by the width or more leave 0 or the sign."""
    f, bits = a.f, a.type.bits
    ok = f.emit(f"icmp ult {b.type} {b.name}, {b.type.constant(bits)}", b.type.mask)
    if op == "ashr" and dtype.kind == "i":
        safe = ok.select(b, bits - 1)
        return f.emit(f"ashr {a.type} {a.name}, {safe.name}", a.type)
    safe = ok.select(b, 0)
    return ok.select(f.emit(f"{'shl' if op == 'shl' else 'lshr'} {a.type} {a.name}, {safe.name}", a.type), 0)


def sign(e: _Emitter, n: Node, x: Sequence[Value]) -> Value:
    """-1, 0, 1; 0 for NaN, as in PyTorch."""
    (v,) = x
    if n.dtype.kind == "u":
        return v.ne(0).select(1, e.f.value(0, v.type))
    return (v > 0).select(1, (v < 0).select(-1, e.f.value(0, v.type)))


def absolute(e: _Emitter, n: Node, x: Sequence[Value]) -> Value:
    """|x|; the lowest integer stays."""
    (v,) = x
    if v.type.is_float:
        return e.f.intrinsic("fabs", v)
    return v if n.dtype.kind == "u" else (v < 0).select(-v, v)


def maximum(e: _Emitter, n: Node, x: Sequence[Value]) -> Value:
    """NaN where either is; one comparison where b is a constant."""
    a, b = x
    larger = n.op.name == "maximum"
    if n.dtype.kind == "b":
        return a | b if larger else a & b
    if n.dtype.kind != "f":
        return compare("ge" if larger else "le", a, b, n.dtype).select(a, b)
    if n.inputs[1].op.name == "const" and n.inputs[1].op.value == n.inputs[1].op.value:  # type: ignore[attr-defined]
        wins = e.f.emit(f"fcmp {'uge' if larger else 'ule'} {a.type} {a.name}, {b.name}", a.type.mask)
    else:
        wins = compare("ge" if larger else "le", a, b, n.dtype) | a.is_nan()
    return wins.select(a, b)


def logical(word: str) -> Callable[[_Emitter, Node, Sequence[Value]], Value]:
    """A bitwise operation."""
    return lambda e, n, x: e.f.emit(f"{word} {x[0].type} {x[0].name}, {x[1].name}", x[0].type)


def intrinsic(name: str) -> Callable[[_Emitter, Node, Sequence[Value]], Value]:
    """An LLVM intrinsic of one argument."""
    return lambda e, n, x: e.f.intrinsic(name, x[0])


def relation(word: str) -> Callable[[_Emitter, Node, Sequence[Value]], Value]:
    """A comparison."""
    return lambda e, n, x: compare(word, x[0], x[1], n.inputs[0].dtype)


_FLOAT_ONLY = {"sqrt", "div", "floor", "ceil", "round"}
_POINTWISE: dict[str, Callable[[_Emitter, Node, Sequence[Value]], Value]] = {
    "neg": lambda e, n, x: -x[0],
    "abs": absolute,
    "sign": sign,
    "floor": intrinsic("floor"),
    "ceil": intrinsic("ceil"),
    "round": intrinsic("roundeven"),
    "sqrt": intrinsic("sqrt"),
    "bit_not": lambda e, n, x: ~x[0],
    "cast": lambda e, n, x: convert(x[0], n.inputs[0].dtype, n.dtype),
    "add": lambda e, n, x: x[0] | x[1] if n.dtype.kind == "b" else x[0] + x[1],
    "sub": lambda e, n, x: x[0] - x[1],
    "mul": lambda e, n, x: x[0] & x[1] if n.dtype.kind == "b" else x[0] * x[1],
    "div": lambda e, n, x: x[0] / x[1],
    "floordiv": divided,
    "mod": divided,
    "maximum": maximum,
    "minimum": maximum,
    "bit_and": logical("and"),
    "bit_or": logical("or"),
    "bit_xor": logical("xor"),
    "shift_left": lambda e, n, x: shift("shl", x[0], x[1], n.dtype),
    "shift_right": lambda e, n, x: shift("ashr", x[0], x[1], n.dtype),
    "eq": relation("eq"),
    "lt": relation("lt"),
    "le": relation("le"),
    "select": lambda e, n, x: x[0].select(x[1], x[2]),
}

_ = f64, Buffer
