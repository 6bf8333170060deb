"""The native walker, as LLVM text: one thread leads a program through its steps, the others help with wide ones.

A wide step is cut into *slices*, one for each thread. The leader announces it by raising `ticket`, then leader and
helpers claim slices, each its own first and then any that nobody has taken. So the leader never waits for a thread that
has not come (it is parked, or a busy neighbour holds its core), only for slices somebody is really working on.

A ticket is `count of announced steps << 16 | slices`, so it only grows. A slice is claimed by moving its word in
`claims` from an older ticket to this one. The leader announces nothing new before all slices of a step are claimed and
done: a helper that comes late finds this or a newer ticket in each claim of its step, and what it reads after a claim
that succeeded belongs to that step.

Every block in memory is an array of 8-byte words; the tables below name them, for the text and for Python alike.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from functools import cache
from typing import Any, Final

from tracejit.records import dataclass
from tracejit.runtime import engine
from tracejit.runtime.engine import Code

__all__ = [
    "BATCH", "BIND", "CHECK", "FRAME", "LOOP", "MOVE", "PAUSED", "PROGRAM", "TEAM", "WORKER", "Native", "has_threads",
    "native", "text",
]  # fmt: skip


def _words(names: str) -> dict[str, int]:
    return {name: index for index, name in enumerate(names.split()) if name != "."}


# One line of the table is one cache line where threads would disturb each other.
TEAM: Final = _words(
    "ticket step args scratch . . . . "  # written by the leader, read by all
    "done     . . . . . . . "  # slices finished, ever
    "lock posted . . . . . . "  # the leader's: held or not; slices announced, ever
    "sleepers size spin stop . . . . "
    "claims"  # `size` words
)
WORKER: Final = _words("team id scratch scratch_bytes thread . . .")
PROGRAM: Final = _words("steps step_table binds bind_table check_table scratch")
STEP: Final = _words("function args extent slices unit checks loop")  # args: byte offset in the frame
BATCH: Final = _words("frame members")  # the arguments of a batch; members: records as in the table of steps
# turn: byte offset in the frame of the word that counts; count: of the place where the count goes of a loop that may
# end early, else 0; checks, passed: the first check in the loop, and the one after it; on: the step after it
LOOP: Final = _words("first trips turn moves move_table on count checks passed")
MOVE: Final = _words("slot by")  # slot: byte offset in the frame
BIND: Final = _words("external byte_offset slot")  # slot: byte offset in the frame
CHECK: Final = _words("slot itemsize bits index loop")  # loop: the record of the one it ends, or null
# Then arguments, arena and scratch. Where a loop was paused: the turn it is at (0: none was), the byte offset of the
# word that counts them, the step and check to go on with; and since when a loop runs.
FRAME: Final = _words("scratch turn turn_at step check since . . args")
PAUSED: Final = -3  # what the walker returns between two stretches of a long loop: it wants to be called again

# Futex: Linux, where its number is known. Elsewhere programs run on the calling thread.
_FUTEX: Final = {"x86_64": 202, "aarch64": 98}
_PAUSE: Final = {"x86_64": "call void @llvm.x86.sse2.pause()", "aarch64": "call void @llvm.aarch64.hint(i32 1)"}
_WAIT, _WAKE = 128, 129  # private to this process
_STRETCH = 50_000_000  # nanoseconds that a loop runs before Python may look for signals


def has_threads() -> bool:
    """Whether programs can use several threads on this system."""
    return sys.platform == "linux" and platform.machine() in _FUTEX


@dataclass(frozen=True)
class Native:
    """The compiled walker. `walk(program, frame, pointers, team)` releases the GIL; it gives a failed check or -1."""

    code: Code
    walk: Any  # ctypes functions
    start: Any
    join: Any
    wake: Any
    acquire: Any
    batch: int  # the address of `tj_batch`, to be a step of programs


@cache
def native() -> Native:
    """The walker of this process."""
    code = engine.compile(text())

    def function(name: str, result: Any, *arguments: Any) -> Any:
        return ctypes.CFUNCTYPE(result, *arguments)(code.address(name)) if name in code.symbols else None

    pointer = ctypes.c_void_p
    return Native(
        code=code,
        walk=function("tj_walk", ctypes.c_int64, pointer, pointer, pointer, pointer),
        start=function("tj_start", ctypes.c_int, pointer),
        join=function("tj_join", ctypes.c_int, pointer),
        wake=function("tj_wake", None, pointer),
        acquire=function("tj_acquire", pointer, pointer, ctypes.c_int64),
        batch=code.address("tj_batch"),
    )


def text(*, threads: bool | None = None) -> str:
    """The module. Without threads a wide step is one call like any other."""
    threads = has_threads() if threads is None else threads
    if not threads:
        return _WALK.replace("@RUN_WIDE@", "br label %alone") + _FUNCTIONS
    machine = platform.machine()
    return (
        (_WALK.replace("@RUN_WIDE@", _TRY_WIDE) + _FUNCTIONS + _TEAM)
        .replace("@PAUSE@", _PAUSE[machine])
        .replace("@FUTEX@", str(_FUTEX[machine]))
    )


def _at(table: dict[str, int], name: str, base: str) -> str:
    return f"getelementptr i64, ptr %{base}, i64 {table[name]}"


_FUNCTIONS = """
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
declare i32 @clock_gettime(i32, ptr)
attributes #0 = { nounwind }
"""

_WALK = f"""
; Bind the external pointers, run the steps in order, stop at the first check that fails: its index, or -1.
define i64 @tj_walk(ptr %program, ptr %frame, ptr %pointers, ptr %team) #0 {{
entry:
  %binds.p = {_at(PROGRAM, "binds", "program")}
  %binds = load i64, ptr %binds.p
  %bind_table.p = {_at(PROGRAM, "bind_table", "program")}
  %bind_table = load ptr, ptr %bind_table.p
  %steps.p = {_at(PROGRAM, "steps", "program")}
  %steps = load i64, ptr %steps.p
  %step_table.p = {_at(PROGRAM, "step_table", "program")}
  %step_table = load ptr, ptr %step_table.p
  %check_table.p = {_at(PROGRAM, "check_table", "program")}
  %check_table = load ptr, ptr %check_table.p
  %scratch = load ptr, ptr %frame
  br label %bind

bind:                                             ; frame[slot] = pointers[external] + byte_offset
  %b = phi i64 [ 0, %entry ], [ %b.next, %bind.one ]
  %b.more = icmp slt i64 %b, %binds
  br i1 %b.more, label %bind.one, label %enter
bind.one:
  %record = getelementptr [{len(BIND)} x i64], ptr %bind_table, i64 %b
  %external.p = {_at(BIND, "external", "record")}
  %external = load i64, ptr %external.p
  %offset.p = {_at(BIND, "byte_offset", "record")}
  %offset = load i64, ptr %offset.p
  %slot.p = {_at(BIND, "slot", "record")}
  %slot = load i64, ptr %slot.p
  %pointer.p = getelementptr ptr, ptr %pointers, i64 %external
  %pointer = load ptr, ptr %pointer.p
  %bound = getelementptr i8, ptr %pointer, i64 %offset
  %target = getelementptr i8, ptr %frame, i64 %slot
  store ptr %bound, ptr %target
  %b.next = add i64 %b, 1
  br label %bind

enter:                                            ; a team that serves another caller is none for this one
  %need.p = {_at(PROGRAM, "scratch", "program")}
  %need = load i64, ptr %need.p
  %crew = call ptr @tj_acquire(ptr %team, i64 %need)
  %paused.p = {_at(FRAME, "turn", "frame")}
  %paused = load i64, ptr %paused.p
  %is_new = icmp eq i64 %paused, 0
  br i1 %is_new, label %step, label %resume
resume:                                           ; in the middle of a loop
  store i64 0, ptr %paused.p
  %turn_at.p = {_at(FRAME, "turn_at", "frame")}
  %turn_at = load i64, ptr %turn_at.p
  %turn.p = getelementptr i8, ptr %frame, i64 %turn_at
  store i64 %paused, ptr %turn.p
  %s.paused.p = {_at(FRAME, "step", "frame")}
  %s.paused = load i64, ptr %s.paused.p
  %c.paused.p = {_at(FRAME, "check", "frame")}
  %c.paused = load i64, ptr %c.paused.p
  br label %step

step:
  %s = phi i64 [ 0, %enter ], [ %s.paused, %resume ], [ %s.next, %advance ]
  %c = phi i64 [ 0, %enter ], [ %c.paused, %resume ], [ %c.then, %advance ]
  %s.more = icmp slt i64 %s, %steps
  br i1 %s.more, label %step.one, label %leave
step.one:
  %step.p = getelementptr [{len(STEP)} x i64], ptr %step_table, i64 %s
  %args.p = {_at(STEP, "args", "step.p")}
  %args.offset = load i64, ptr %args.p
  %args = getelementptr i8, ptr %frame, i64 %args.offset
  %extent.p = {_at(STEP, "extent", "step.p")}
  %extent = load i64, ptr %extent.p
  %slices.p = {_at(STEP, "slices", "step.p")}
  %slices = load i64, ptr %slices.p
  %is_empty = icmp sle i64 %extent, 0
  br i1 %is_empty, label %ran, label %work
work:
  @RUN_WIDE@
alone:
  %function = load ptr, ptr %step.p
  call void %function(ptr %args, i64 0, i64 %extent, ptr %scratch)
  br label %ran

ran:
  %checks.p = {_at(STEP, "checks", "step.p")}
  %checks = load i64, ptr %checks.p
  %c.end = add i64 %c, %checks
  br label %check
check:
  %c.now = phi i64 [ %c, %ran ], [ %c.next, %check.one ]
  %c.more = icmp slt i64 %c.now, %c.end
  br i1 %c.more, label %check.one, label %step.end
check.one:
  %c.record = getelementptr [{len(CHECK)} x i64], ptr %check_table, i64 %c.now
  %holds = call i1 @check(ptr %c.record, ptr %frame)
  %c.next = add i64 %c.now, 1
  br i1 %holds, label %check, label %fails
fails:                                            ; it ends the run, or the loop around it
  %c.loop.p = {_at(CHECK, "loop", "c.record")}
  %c.loop = load ptr, ptr %c.loop.p
  %is_last = icmp eq ptr %c.loop, null
  br i1 %is_last, label %leave, label %stop
stop:
  %s.stopped = call i64 @stop(ptr %c.loop, ptr %frame)
  %c.stopped.p = {_at(LOOP, "passed", "c.loop")}
  %c.stopped = load i64, ptr %c.stopped.p
  br label %advance
step.end:                                         ; the last step of a loop goes back to its first, or on
  %loop.p = {_at(STEP, "loop", "step.p")}
  %loop = load ptr, ptr %loop.p
  %is_plain = icmp eq ptr %loop, null
  %s.on = add i64 %s, 1
  br i1 %is_plain, label %advance, label %turn
turn:
  %s.turned = call i64 @turn(ptr %loop, ptr %frame)
  %is_over = icmp eq i64 %s.turned, %s.on
  %c.first.p = {_at(LOOP, "checks", "loop")}
  %c.first = load i64, ptr %c.first.p
  %c.turned = select i1 %is_over, i64 %c.now, i64 %c.first
  %pauses = icmp slt i64 %s.turned, 0
  br i1 %pauses, label %pause, label %advance
advance:
  %s.next = phi i64 [ %s.on, %step.end ], [ %s.turned, %turn ], [ %s.stopped, %stop ]
  %c.then = phi i64 [ %c.now, %step.end ], [ %c.turned, %turn ], [ %c.stopped, %stop ]
  br label %step
pause:
  call void @release(ptr %crew)
  ret i64 {PAUSED}

leave:                                            ; from %step all checks hold, from %fails one does not
  %failed = phi ptr [ null, %step ], [ %c.record, %fails ]
  call void @release(ptr %crew)
  %passed = icmp eq ptr %failed, null
  br i1 %passed, label %good, label %bad
good:
  ret i64 -1
bad:
  %index.p = {_at(CHECK, "index", "failed")}
  %index = load i64, ptr %index.p
  ret i64 %index
}}

; The step after a turn of a loop, whose operands move on to their next row: its first again, or after the last turn the
; one after it, and all is as before the loop; or -1 where a loop that may end early has run for a while.
define internal i64 @turn(ptr %loop, ptr %frame) #0 {{
entry:
  %time = alloca [2 x i64]
  %turn.offset.p = {_at(LOOP, "turn", "loop")}
  %turn.offset = load i64, ptr %turn.offset.p
  %turn.p = getelementptr i8, ptr %frame, i64 %turn.offset
  %turn = load i64, ptr %turn.p
  %trips.p = {_at(LOOP, "trips", "loop")}
  %trips = load i64, ptr %trips.p
  %first.p = {_at(LOOP, "first", "loop")}
  %first = load i64, ptr %first.p
  %next = add i64 %turn, 1
  %again = icmp slt i64 %next, %trips
  %count.p = {_at(LOOP, "count", "loop")}
  %count = load i64, ptr %count.p
  %is_plain = icmp eq i64 %count, 0
  br i1 %is_plain, label %plain, label %early
early:
  store i64 %next, ptr %turn.p
  br i1 %again, label %tick, label %over
over:
  %s.over = call i64 @stop(ptr %loop, ptr %frame)
  ret i64 %s.over
tick:                                             ; the time is looked up every eighth turn
  %part = and i64 %next, 7
  %looks = icmp eq i64 %part, 0
  br i1 %looks, label %look, label %on
look:
  %known = call i32 @clock_gettime(i32 1, ptr %time)
  %seconds = load i64, ptr %time
  %nanos.p = getelementptr i64, ptr %time, i64 1
  %nanos = load i64, ptr %nanos.p
  %scaled = mul i64 %seconds, 1000000000
  %now = add i64 %scaled, %nanos
  %since.p = {_at(FRAME, "since", "frame")}
  %since = load i64, ptr %since.p
  %begins = icmp eq i64 %since, 0
  br i1 %begins, label %begin, label %compare
begin:
  store i64 %now, ptr %since.p
  br label %on
compare:
  %elapsed = sub i64 %now, %since
  %is_long = icmp sgt i64 %elapsed, {_STRETCH}
  br i1 %is_long, label %pause, label %on
pause:
  store i64 0, ptr %since.p
  store i64 0, ptr %turn.p
  %paused.p = {_at(FRAME, "turn", "frame")}
  store i64 %next, ptr %paused.p
  %turn_at.p = {_at(FRAME, "turn_at", "frame")}
  store i64 %turn.offset, ptr %turn_at.p
  %s.p = {_at(FRAME, "step", "frame")}
  store i64 %first, ptr %s.p
  %checks.p = {_at(LOOP, "checks", "loop")}
  %checks = load i64, ptr %checks.p
  %c.p = {_at(FRAME, "check", "frame")}
  store i64 %checks, ptr %c.p
  ret i64 -1
on:
  ret i64 %first
plain:
  %turn.new = select i1 %again, i64 %next, i64 0
  store i64 %turn.new, ptr %turn.p
  %back = sub i64 0, %turn
  %times = select i1 %again, i64 1, i64 %back
  %moves.p = {_at(LOOP, "moves", "loop")}
  %moves = load i64, ptr %moves.p
  %table.p = {_at(LOOP, "move_table", "loop")}
  %table = load ptr, ptr %table.p
  br label %move
move:
  %m = phi i64 [ 0, %plain ], [ %m.next, %move.one ]
  %more = icmp slt i64 %m, %moves
  br i1 %more, label %move.one, label %end
move.one:
  %record = getelementptr [{len(MOVE)} x i64], ptr %table, i64 %m
  %slot = load i64, ptr %record
  %by.p = {_at(MOVE, "by", "record")}
  %by = load i64, ptr %by.p
  %distance = mul i64 %by, %times
  %slot.p = getelementptr i8, ptr %frame, i64 %slot
  %old = load ptr, ptr %slot.p
  %new = getelementptr i8, ptr %old, i64 %distance
  store ptr %new, ptr %slot.p
  %m.next = add i64 %m, 1
  br label %move
end:
  %on.p = {_at(LOOP, "on", "loop")}
  %s.on = load i64, ptr %on.p
  %then = select i1 %again, i64 %first, i64 %s.on
  ret i64 %then
}}

; A loop that may end early is over: the count of its turns goes where it is wanted. The step after it.
define internal i64 @stop(ptr %loop, ptr %frame) #0 {{
  %turn.offset.p = {_at(LOOP, "turn", "loop")}
  %turn.offset = load i64, ptr %turn.offset.p
  %turn.p = getelementptr i8, ptr %frame, i64 %turn.offset
  %turn = load i64, ptr %turn.p
  store i64 0, ptr %turn.p
  %count.offset.p = {_at(LOOP, "count", "loop")}
  %count.offset = load i64, ptr %count.offset.p
  %count.p.p = getelementptr i8, ptr %frame, i64 %count.offset
  %count.p = load ptr, ptr %count.p.p
  store i64 %turn, ptr %count.p
  %since.p = {_at(FRAME, "since", "frame")}
  store i64 0, ptr %since.p
  %on.p = {_at(LOOP, "on", "loop")}
  %on = load i64, ptr %on.p
  ret i64 %on
}}

; A kernel like any other, whose units are those of several steps, one step after another. `args`: the frame, and the
; records of these steps.
define void @tj_batch(ptr %args, i64 %lo, i64 %hi, ptr %scratch) #0 {{
entry:
  %frame.p = {_at(BATCH, "frame", "args")}
  %frame = load ptr, ptr %frame.p
  %members.p = {_at(BATCH, "members", "args")}
  %members = load ptr, ptr %members.p
  br label %member
member:
  %step.p = phi ptr [ %members, %entry ], [ %step.next, %next ]
  %start = phi i64 [ 0, %entry ], [ %end, %next ]   ; its first unit among all
  %more = icmp slt i64 %start, %hi
  br i1 %more, label %look, label %done
look:
  %extent.p = {_at(STEP, "extent", "step.p")}
  %extent = load i64, ptr %extent.p
  %end = add i64 %start, %extent
  %lo.own = sub i64 %lo, %start
  %from = call i64 @llvm.smax.i64(i64 %lo.own, i64 0)
  %hi.own = sub i64 %hi, %start
  %to = call i64 @llvm.smin.i64(i64 %hi.own, i64 %extent)
  %some = icmp slt i64 %from, %to
  br i1 %some, label %run, label %next
run:
  %function = load ptr, ptr %step.p
  %offset.p = {_at(STEP, "args", "step.p")}
  %offset = load i64, ptr %offset.p
  %own = getelementptr i8, ptr %frame, i64 %offset
  call void %function(ptr %own, i64 %from, i64 %to, ptr %scratch)
  br label %next
next:
  %step.next = getelementptr [{len(STEP)} x i64], ptr %step.p, i64 1
  br label %member
done:
  ret void
}}

; Whether the 1, 4 or 8 bytes a slot of the frame points at are the expected ones.
define internal i1 @check(ptr %record, ptr %frame) #0 {{
  %slot = load i64, ptr %record
  %slot.p = getelementptr i8, ptr %frame, i64 %slot
  %value.p = load ptr, ptr %slot.p
  %itemsize.p = {_at(CHECK, "itemsize", "record")}
  %itemsize = load i64, ptr %itemsize.p
  %bits.p = {_at(CHECK, "bits", "record")}
  %bits = load i64, ptr %bits.p
  switch i64 %itemsize, label %eight [ i64 1, label %one
                                       i64 2, label %two
                                       i64 4, label %four ]
one:
  %v1 = load i8, ptr %value.p
  %w1 = zext i8 %v1 to i64
  br label %compare
two:
  %v2 = load i16, ptr %value.p
  %w2 = zext i16 %v2 to i64
  br label %compare
four:
  %v4 = load i32, ptr %value.p
  %w4 = zext i32 %v4 to i64
  br label %compare
eight:
  %w8 = load i64, ptr %value.p
  br label %compare
compare:
  %value = phi i64 [ %w1, %one ], [ %w2, %two ], [ %w4, %four ], [ %w8, %eight ]
  %equal = icmp eq i64 %value, %bits
  ret i1 %equal
}}

; The team if there is one and it is free, now ours and told how much scratch memory a helper needs; else null.
define ptr @tj_acquire(ptr %team, i64 %scratch) #0 {{
  %is_null = icmp eq ptr %team, null
  br i1 %is_null, label %none, label %try
try:
  %lock.p = {_at(TEAM, "lock", "team")}
  %swap = cmpxchg ptr %lock.p, i64 0, i64 1 acquire monotonic
  %ours = extractvalue {{ i64, i1 }} %swap, 1
  br i1 %ours, label %taken, label %none
taken:
  %scratch.p = {_at(TEAM, "scratch", "team")}
  store atomic i64 %scratch, ptr %scratch.p monotonic, align 8
  ret ptr %team
none:
  ret ptr null
}}

define internal void @release(ptr %crew) #0 {{
  %is_null = icmp eq ptr %crew, null
  br i1 %is_null, label %end, label %free
free:
  %lock.p = {_at(TEAM, "lock", "crew")}
  store atomic i64 0, ptr %lock.p release, align 8
  br label %end
end:
  ret void
}}
"""

_TRY_WIDE = f"""%has_crew = icmp ne ptr %crew, null
  %is_wide = icmp sgt i64 %slices, 1
  %shared = and i1 %has_crew, %is_wide
  br i1 %shared, label %together, label %alone
together:
  %size.p = {_at(TEAM, "size", "crew")}
  %size = load i64, ptr %size.p
  %count = call i64 @llvm.smin.i64(i64 %slices, i64 %size)
  call void @share(ptr %crew, ptr %step.p, ptr %args, i64 %count, ptr %scratch)
  br label %ran"""

_TEAM = f"""
declare i64 @syscall(i64, ...)
declare i32 @sched_yield()
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(ptr, ptr)
declare ptr @aligned_alloc(i64, i64)
declare void @free(ptr)

; The leader: announce a step cut into `count` slices, wake who sleeps, work, wait for the slices others work on.
define internal void @share(ptr %team, ptr %step, ptr %args, i64 %count, ptr %scratch) #0 {{
entry:
  %step.p = {_at(TEAM, "step", "team")}
  store ptr %step, ptr %step.p
  %args.p = {_at(TEAM, "args", "team")}
  store ptr %args, ptr %args.p
  %posted.p = {_at(TEAM, "posted", "team")}
  %posted = load i64, ptr %posted.p
  %expected = add i64 %posted, %count
  store i64 %expected, ptr %posted.p
  %ticket.old = load i64, ptr %team
  %number = ashr i64 %ticket.old, 16
  %number.next = add i64 %number, 1
  %number.high = shl i64 %number.next, 16
  %ticket = or i64 %number.high, %count
  store atomic i64 %ticket, ptr %team seq_cst, align 8
  call void @tj_wake(ptr %team)
  call void @take(ptr %team, i64 %ticket, i64 0, ptr %scratch)
  %done.p = {_at(TEAM, "done", "team")}
  br label %wait

wait:
  %k = phi i64 [ 0, %entry ], [ %k.next, %pause ], [ %k.next, %yield ]
  %done = load atomic i64, ptr %done.p acquire, align 8
  %all = icmp eq i64 %done, %expected
  br i1 %all, label %end, label %not_yet
not_yet:
  %k.next = add i64 %k, 1
  %is_short = icmp slt i64 %k, 2000
  br i1 %is_short, label %pause, label %yield
pause:
  @PAUSE@
  br label %wait
yield:                                            ; the one we wait for may need this core
  %y = call i32 @sched_yield()
  br label %wait
end:
  ret void
}}

; Run the slices of this ticket that nobody has claimed, slice `first` first.
define internal void @take(ptr %team, i64 %ticket, i64 %first, ptr %scratch) #0 {{
entry:
  %count = and i64 %ticket, 65535
  %claims = {_at(TEAM, "claims", "team")}
  %step.p = {_at(TEAM, "step", "team")}
  %args.p = {_at(TEAM, "args", "team")}
  %done.p = {_at(TEAM, "done", "team")}
  br label %next
next:
  %k = phi i64 [ 0, %entry ], [ %k.next, %skip ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %look, label %end
look:
  %turn = add i64 %first, %k
  %slice = urem i64 %turn, %count
  %claim.p = getelementptr i64, ptr %claims, i64 %slice
  %held = load atomic i64, ptr %claim.p monotonic, align 8
  %is_free = icmp slt i64 %held, %ticket
  br i1 %is_free, label %claim, label %skip
claim:
  %swap = cmpxchg ptr %claim.p, i64 %held, i64 %ticket acq_rel monotonic
  %ours = extractvalue {{ i64, i1 }} %swap, 1
  br i1 %ours, label %run, label %skip
run:
  %step = load ptr, ptr %step.p                   ; only now: before the claim these may be another step's
  %args = load ptr, ptr %args.p
  %extent.p = {_at(STEP, "extent", "step")}
  %extent = load i64, ptr %extent.p
  %unit.p = {_at(STEP, "unit", "step")}
  %unit = load i64, ptr %unit.p
  %unit.less = sub i64 %unit, 1
  %rounded = add i64 %extent, %unit.less
  %blocks = sdiv i64 %rounded, %unit
  %lo = call i64 @bound(i64 %slice, i64 %count, i64 %blocks, i64 %unit, i64 %extent)
  %slice.next = add i64 %slice, 1
  %hi = call i64 @bound(i64 %slice.next, i64 %count, i64 %blocks, i64 %unit, i64 %extent)
  %function = load ptr, ptr %step
  %is_empty = icmp sge i64 %lo, %hi
  br i1 %is_empty, label %finish, label %call
call:
  call void %function(ptr %args, i64 %lo, i64 %hi, ptr %scratch)
  br label %finish
finish:
  %d = atomicrmw add ptr %done.p, i64 1 acq_rel
  br label %skip
skip:
  %k.next = add i64 %k, 1
  br label %next
end:
  ret void
}}

; Where slice i of `count` begins: a multiple of `unit`, and no further than the extent.
define internal i64 @bound(i64 %i, i64 %count, i64 %blocks, i64 %unit, i64 %extent) #0 {{
  %share = mul i64 %blocks, %i
  %block = sdiv i64 %share, %count
  %at = mul i64 %block, %unit
  %bound = call i64 @llvm.smin.i64(i64 %at, i64 %extent)
  ret i64 %bound
}}

; Wake helpers that sleep on the ticket.
define void @tj_wake(ptr %team) #0 {{
  %sleepers.p = {_at(TEAM, "sleepers", "team")}
  %sleepers = load atomic i64, ptr %sleepers.p seq_cst, align 8
  %some = icmp sgt i64 %sleepers, 0
  br i1 %some, label %wake, label %end
wake:
  %woken = call i64 (i64, ...) @syscall(i64 @FUTEX@, ptr %team, i32 {_WAKE}, i32 2147483647, ptr null, ptr null, i32 0)
  %o = atomicrmw sub ptr %sleepers.p, i64 %woken seq_cst
  br label %end
end:
  ret void
}}

; A helper's life: wait for a new ticket, spinning for a while, then asleep; help; until `stop`.
define internal ptr @worker(ptr %self) #0 {{
entry:
  %team = load ptr, ptr %self
  %id.p = {_at(WORKER, "id", "self")}
  %id = load i64, ptr %id.p
  %sleepers.p = {_at(TEAM, "sleepers", "team")}
  %spin.p = {_at(TEAM, "spin", "team")}
  %stop.p = {_at(TEAM, "stop", "team")}
  br label %rest

rest:
  %seen = phi i64 [ 0, %entry ], [ %ticket, %help ], [ %ticket, %cannot ]
  %spins = load i64, ptr %spin.p
  br label %look
look:
  %k = phi i64 [ 0, %rest ], [ %k.next, %pause ], [ 0, %woken ], [ 0, %unslept ]
  %ticket = load atomic i64, ptr %team acquire, align 8
  %is_new = icmp ne i64 %ticket, %seen
  br i1 %is_new, label %wanted, label %idle
idle:
  %k.next = add i64 %k, 1
  %is_short = icmp slt i64 %k, %spins
  br i1 %is_short, label %pause, label %sleep
pause:
  @PAUSE@
  br label %look
sleep:                                            ; the kernel looks at the low half of the ticket once more
  %o1 = atomicrmw add ptr %sleepers.p, i64 1 seq_cst
  %low = trunc i64 %seen to i32
  %r = call i64 (i64, ...) @syscall(i64 @FUTEX@, ptr %team, i32 {_WAIT}, i32 %low, ptr null, ptr null, i32 0)
  %slept = icmp eq i64 %r, 0
  br i1 %slept, label %woken, label %unslept
woken:                                            ; who woke us has taken us off the count
  br label %look
unslept:
  %o2 = atomicrmw sub ptr %sleepers.p, i64 1 seq_cst
  br label %look

wanted:
  %stop = load atomic i64, ptr %stop.p acquire, align 8
  %is_over = icmp ne i64 %stop, 0
  br i1 %is_over, label %end, label %prepare
prepare:                                          ; without scratch memory we cannot help, and nobody waits for us
  %scratch = call ptr @scratch(ptr %self, ptr %team)
  %is_ready = icmp ne ptr %scratch, null
  br i1 %is_ready, label %help, label %cannot
help:
  call void @take(ptr %team, i64 %ticket, i64 %id, ptr %scratch)
  br label %rest
cannot:
  br label %rest
end:
  %old.p = {_at(WORKER, "scratch", "self")}
  %old = load ptr, ptr %old.p
  call void @free(ptr %old)
  ret ptr null
}}

; This helper's scratch memory, grown to what the running program asks for; null when there is no more.
define internal ptr @scratch(ptr %self, ptr %team) #0 {{
  %need.p = {_at(TEAM, "scratch", "team")}
  %need = load atomic i64, ptr %need.p monotonic, align 8
  %have.p = {_at(WORKER, "scratch_bytes", "self")}
  %have = load i64, ptr %have.p
  %memory.p = {_at(WORKER, "scratch", "self")}
  %enough = icmp sge i64 %have, %need
  br i1 %enough, label %keep, label %grow
keep:
  %memory = load ptr, ptr %memory.p
  ret ptr %memory
grow:
  %old = load ptr, ptr %memory.p
  call void @free(ptr %old)
  %new = call ptr @aligned_alloc(i64 64, i64 %need)
  store ptr %new, ptr %memory.p
  %is_null = icmp eq ptr %new, null
  %got = select i1 %is_null, i64 -1, i64 %need
  store i64 %got, ptr %have.p
  ret ptr %new
}}

define i32 @tj_start(ptr %worker) #0 {{
  %thread.p = {_at(WORKER, "thread", "worker")}
  %r = call i32 @pthread_create(ptr %thread.p, ptr null, ptr @worker, ptr %worker)
  ret i32 %r
}}

define i32 @tj_join(ptr %worker) #0 {{
  %thread.p = {_at(WORKER, "thread", "worker")}
  %thread = load ptr, ptr %thread.p
  %r = call i32 @pthread_join(ptr %thread, ptr null)
  ret i32 %r
}}
"""
