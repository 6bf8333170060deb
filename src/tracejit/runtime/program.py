"""A program is data: kernels in order, where their operands lie, which results must hold. One native call runs it.

    pointers --bind--> argument table | arena | scratch     (a frame: one per call that is running, then reused)
                            |
    step 0 -> step 1 -> check -> step 2 -> ...              (walked by `walker.py`, wide steps shared with the team)
                 ^--- loop ---------|                       (a loop's steps run `trips` times, its Rows move on)

Short steps that do not wait for each other are a batch: one wide step, whose units are theirs, for which a team meets
once.

A kernel is `void step(ptr args, i64 lo, i64 hi, ptr scratch)`: it does the part [lo, hi) of the step's extent.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from itertools import starmap
from typing import TYPE_CHECKING, Any

from tracejit.errors import BackendError
from tracejit.records import dataclass
from tracejit.runtime import buffer, entry, team
from tracejit.runtime.walker import BATCH, BIND, CHECK, FRAME, LOOP, MOVE, PAUSED, PROGRAM, STEP, native

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Address", "Arena", "Arg", "Batch", "Check", "External", "Int", "Loop", "Program", "Row", "Step"]


@dataclass(frozen=True, slots=True)
class External:
    """A pointer of the caller: number `index` of those given to `run`, moved on by `byte_offset`."""

    index: int
    byte_offset: int = 0


@dataclass(frozen=True, slots=True)
class Arena:
    """A place in the memory the program brings along, uninitialised at each run."""

    byte_offset: int


@dataclass(frozen=True, slots=True)
class Int:
    """A number, passed as i64."""

    value: int


Address = External | Arena


@dataclass(frozen=True, slots=True)
class Row:
    """A place in the first turn of the loop around the step, `by` bytes further on in each turn after it."""

    first: Address
    by: int


Arg = Address | Int | Row


@dataclass(frozen=True, slots=True)
class Step:
    """One call of the kernel at `address`, over [0, extent); over nothing it is not called.

    A parallel step is cut into slices of at least `grain`, bounded by multiples of 16 where the grain is one. `scratch`
    bytes of memory, 64-byte aligned, belong to each thread during the call.
    """

    address: int
    args: tuple[Arg, ...]
    extent: int = 1
    grain: int = 1
    scratch: int = 0
    name: str = ""
    parallel: bool = False


@dataclass(frozen=True, slots=True)
class Loop:
    """Steps `first` to before `stop`, run `trips` >= 1 times. Loops do not overlap.

    With `count` a check that is due in the loop ends it there instead of the run; how many turns were complete is then
    stored at that place. No check is due in other loops.
    """

    first: int
    stop: int
    trips: int
    count: Arg | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """Steps `first` to before `stop`, none of which reads or overwrites what another writes: they run as one."""

    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class Check:
    """After step `after_step` the `itemsize` bytes at `arg` must equal `expected`, or the run, or loop, ends there."""

    after_step: int
    arg: Arg
    itemsize: int
    expected: int


class Program:
    """Steps over an arena, ready to run any number of times, by many threads at once. `needs` lives as long."""

    def __init__(
        self,
        steps: Sequence[Step],
        arena_bytes: int,
        externals: int,
        checks: Sequence[Check] = (),
        needs: Sequence[object] = (),
        loops: Sequence[Loop] = (),
        batches: Sequence[Batch] = (),
    ) -> None:
        self.steps = tuple(steps)
        self.loops = tuple(sorted(loops, key=lambda loop: loop.first))
        self.batches = tuple(sorted(batches, key=lambda batch: batch.first))
        self.arena_bytes = arena_bytes
        self.externals = externals
        self.checks = tuple(checks)
        self.needs = tuple(needs)
        for operand in self._operands():
            _require_inside(operand, arena_bytes, externals)
        for index, check in enumerate(self.checks):
            assert 0 <= check.after_step < len(self.steps), f"check {index} waits for step {check.after_step}"
            assert check.itemsize in (1, 2, 4, 8), f"check {index} of {check.itemsize} bytes"
            assert not any(loop.first <= check.after_step < loop.stop and not loop.count for loop in self.loops), (
                f"check {index} in a loop"
            )
        stops = (0, *(loop.stop for loop in self.loops))
        for loop, end in zip(self.loops, stops):
            assert end <= loop.first < loop.stop <= len(self.steps), f"{loop} begins before step {end}"
            assert loop.trips >= 1, str(loop)
        stops = (0, *(batch.stop for batch in self.batches))
        for batch, end in zip(self.batches, stops):
            assert end <= batch.first < batch.stop <= len(self.steps), f"{batch} begins before step {end}"
            assert all(loop.stop <= batch.first or batch.stop <= loop.first for loop in self.loops), (
                f"{batch} in a loop"
            )
        self._tables = _tables(self)
        self._walk = native().walk
        self._enter = entry.enter() if buffer.reads_objects else None
        self.address = ctypes.addressof(self._tables.words)
        self.is_wide = any(_slices(step) > 1 for step in self.steps)
        self.is_wide |= any(_batch_slices(self.steps[b.first : b.stop]) > 1 for b in self.batches)
        self._idle: list[_Frame] = []

    def run(self, pointers: Sequence[int] | ctypes.Array[ctypes.c_void_p]) -> int:
        """Run on these externals: -1, or the index of the check that failed. The GIL is free meanwhile."""
        if len(pointers) != self.externals:
            raise BackendError(f"program of {self.externals} externals run with {len(pointers)}")
        if not isinstance(pointers, ctypes.Array):
            pointers = (ctypes.c_void_p * len(pointers))(*pointers)
        crew = team.current() if self.is_wide else None
        frame = self.take_frame()
        while (failed := self._walk(self.address, frame.address, pointers, crew and crew.address)) == PAUSED:
            pass  # Python handles signals; what they raise leaves the frame to nobody
        self._idle.append(frame)
        return failed

    def run_arrays(self, arrays: Sequence[npt.NDArray[Any]], done: list[int]) -> None:
        """`run` on the memory of these, all of them exactly ndarrays, a microsecond sooner; its result is added to
        `done` before any Python code can run, so that interrupts find it there."""
        if len(arrays) != self.externals:
            raise BackendError(f"program of {self.externals} externals run with {len(arrays)}")
        crew = team.current() if self.is_wide else None
        frame = self.take_frame()
        walk, at, paused = self._walk, len(done), False
        if self._enter is not None:
            walk, args = self._enter, (self.address, frame.address, crew.address if crew else 0, *arrays)
        else:
            pointers = (ctypes.c_void_p * len(arrays))(*map(buffer.address, arrays))
            args = (self.address, frame.address, pointers, crew and crew.address)
        try:
            while True:
                done.extend(starmap(walk, (args,)))
                if done[at] != PAUSED:
                    break
                paused = True
                done.pop()
        finally:
            if (paused and len(done) == at) or done[at:] == [
                PAUSED
            ]:  # interrupted in a loop, which comes before writes
                done.clear()
            else:
                self._idle.append(frame)

    def take_frame(self) -> _Frame:
        """Memory for one run at a time; `address` is what the walker wants."""
        try:
            return self._idle.pop()
        except IndexError:
            return _Frame(self._tables)

    def rest(self) -> None:
        """Give the memory of frames that are not in use back to the pool."""
        self._idle.clear()

    def __str__(self) -> str:
        lines = [f"program of {len(self.steps)} steps, {self.externals} externals, arena {self.arena_bytes} bytes"]
        for index, step in enumerate(self.steps):
            operands = ", ".join(map(_show, step.args))
            wide = f" in slices of {step.grain}" if step.parallel else ""
            lines += [
                f"  {'at most ' if loop.count else ''}{loop.trips} times:" for loop in self.loops if loop.first == index
            ]
            lines += ["  together:" for batch in self.batches if batch.first == index]
            pad = "  " if any(x.first <= index < x.stop for x in (*self.loops, *self.batches)) else ""
            lines.append(f"  {pad}{index}: {step.name or hex(step.address)}({operands}) over {step.extent}{wide}")
            lines += [
                f"     check {n}: {_show(check.arg)} == {check.expected:#x} ({check.itemsize} bytes)"
                for n, check in enumerate(self.checks)
                if check.after_step == index
            ]
        return "\n".join(lines)

    def _operands(self) -> list[Arg]:
        counts = [loop.count for loop in self.loops if loop.count]
        return [*(arg for step in self.steps for arg in step.args), *(check.arg for check in self.checks), *counts]


@dataclass(frozen=True)
class _Tables:
    """What the walker reads: `words` is the program itself, the others are what it points at and frames begin with."""

    words: ctypes.Array[ctypes.c_int64]
    parts: tuple[array[int], ...]
    frame: array[int]  # header and arguments, External slots empty
    arena_slots: tuple[int, ...]  # words of the frame that hold an arena offset
    arena_at: int
    scratch_at: int
    frame_bytes: int


class _Frame:
    """The memory of one run: arguments, arena, the calling thread's scratch."""

    __slots__ = ("address", "block")

    def __init__(self, tables: _Tables) -> None:
        self.block = buffer.pool.block(tables.frame_bytes)
        start = self.address = self.block.address
        words = (ctypes.c_int64 * len(tables.frame)).from_address(start)
        words[:] = tables.frame  # type: ignore[assignment]
        words[FRAME["scratch"]] = start + tables.scratch_at
        for slot in tables.arena_slots:
            words[slot] += start + tables.arena_at


def _tables(program: Program) -> _Tables:
    frame = array("q", [0] * FRAME["args"])
    binds, steps, checks, loops = array("q"), array("q"), array("q"), array("q")
    moves = array("q")  # of the loop at hand
    move_tables: list[array[int]] = []
    ends = {loop.stop - 1: loop for loop in program.loops}
    begins = {loop.first: loop for loop in program.loops}
    since: dict[Loop, int] = {}  # the first check in a loop
    inside_loop: list[tuple[int, int]] = []  # (word of a check's record, number of the loop that it ends)
    batches = {index: batch for batch in program.batches for index in range(batch.first, batch.stop)}
    members = array("q")  # records of steps in batches, as those in `steps`
    records: list[int] = []  # of each step in `steps`; members of a batch have one together
    heads: list[tuple[int, int]] = []  # of each batch: where in the frame its arguments and in `members` its steps are
    arena_slots: list[int] = []

    def put(arg: Arg) -> None:
        """The next word of the frame holds this operand."""
        if isinstance(arg, Row):
            if arg.by:
                moves.extend((8 * len(frame), arg.by))
            arg = arg.first
        if isinstance(arg, Int):
            frame.append(arg.value)
        elif isinstance(arg, Arena):
            arena_slots.append(len(frame))
            frame.append(arg.byte_offset)
        else:
            binds.extend((arg.index, arg.byte_offset, 8 * len(frame)))
            frame.append(0)

    due: dict[int, list[int]] = {}
    for n, check in enumerate(program.checks):
        due.setdefault(check.after_step, []).append(n)
    # Records are written in the order of the tables of `walker.py`; addresses of tables are known once all are written.
    for index, step in enumerate(program.steps):
        batch = batches.get(index)
        if (begun := begins.get(index)) is not None:
            since[begun] = len(checks) // len(CHECK)
        records.append(len(steps) // len(STEP))
        now = due.get(index, ()) if batch is None else ()
        table = steps if batch is None else members
        table.extend((step.address, 8 * len(frame), step.extent, _slices(step), _unit(step), len(now), 0))
        for arg in step.args:
            put(arg)
        if batch is not None and index == batch.stop - 1:
            inside = program.steps[batch.first : batch.stop]
            now = [n for k in range(batch.first, batch.stop) for n in due.get(k, ())]
            extent, slices = sum(s.extent for s in inside), _batch_slices(inside)
            steps.extend((native().batch, 8 * len(frame), extent, slices, 1, len(now), 0))
            heads.append((len(frame), len(members) - len(STEP) * len(inside)))
            frame.extend([0] * len(BATCH))
        if index in ends:
            loop = ends[index]
            loops.extend((records[loop.first], loop.trips, 8 * len(frame), len(moves) // len(MOVE), 0))
            frame.append(0)
            first, passed = since[loop], len(checks) // len(CHECK) + len(now)
            loops.extend((records[index] + 1, 8 * len(frame) if loop.count else 0, first, passed))
            if loop.count:
                put(loop.count)
            move_tables.append(moves)
            moves = array("q")
        for n in now:
            check = program.checks[n]
            around = next((k for k, x in enumerate(program.loops) if x.first <= index < x.stop), -1)
            if around >= 0:
                inside_loop.append((len(checks) + CHECK["loop"], around))
            checks.extend((8 * len(frame), check.itemsize, _signed(check), n, 0))
            put(check.arg)

    scratch = _round_up(max([64, *(step.scratch for step in program.steps)]))
    arena_at = _round_up(8 * len(frame))
    scratch_at = arena_at + _round_up(program.arena_bytes)
    for head, first in heads:
        frame[head + BATCH["frame"]] = -arena_at
        arena_slots.append(head + BATCH["frame"])
        frame[head + BATCH["members"]] = members.buffer_info()[0] + 8 * first
    for number, table in enumerate(move_tables):
        loops[len(LOOP) * number + LOOP["move_table"]] = table.buffer_info()[0]
    for number, index in enumerate(ends):
        steps[len(STEP) * records[index] + STEP["loop"]] = loops.buffer_info()[0] + 8 * len(LOOP) * number
    for word, number in inside_loop:
        checks[word] = loops.buffer_info()[0] + 8 * len(LOOP) * number
    steps_at, binds_at, checks_at = (part.buffer_info()[0] for part in (steps, binds, checks))
    words = (ctypes.c_int64 * len(PROGRAM))(
        len(steps) // len(STEP), steps_at, len(binds) // len(BIND), binds_at, checks_at, scratch
    )
    frame_bytes = scratch_at + scratch
    parts = (steps, members, binds, checks, loops, *move_tables)
    return _Tables(words, parts, frame, tuple(arena_slots), arena_at, scratch_at, frame_bytes)


def _slices(step: Step) -> int:
    return max(1, step.extent // max(step.grain, 1)) if step.parallel else 1


def _batch_slices(steps: Sequence[Step]) -> int:
    """Into how many slices a batch of these steps is cut: what their grains come to together."""
    return max(1, int(sum(step.extent / max(step.grain, 1) for step in steps)))


def _unit(step: Step) -> int:
    """What slices are multiples of: a cache line of f32, so that threads share none and vectors have no ragged end."""
    return 16 if step.grain % 16 == 0 else 1


def _signed(check: Check) -> int:
    bits = check.expected & ((1 << 8 * check.itemsize) - 1)
    return bits - (1 << 64) if bits >> 63 else bits


def _round_up(nbytes: int) -> int:
    return -(-nbytes // 64) * 64


def _require_inside(arg: Arg, arena_bytes: int, externals: int) -> None:
    if isinstance(arg, Row):
        arg = arg.first
    if isinstance(arg, External):
        assert 0 <= arg.index < externals, f"external {arg.index} of {externals}"
    elif isinstance(arg, Arena):
        assert 0 <= arg.byte_offset <= arena_bytes, f"arena offset {arg.byte_offset} of {arena_bytes} bytes"


def _show(arg: Arg) -> str:
    match arg:
        case External(index, byte_offset):
            return f"external {index}" + (f" + {byte_offset}" if byte_offset else "")
        case Arena(byte_offset):
            return f"arena + {byte_offset}"
        case Int(value):
            return str(value)
        case Row(first, by):
            return f"{_show(first)} by {by}"
