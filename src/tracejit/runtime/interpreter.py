"""The interpreter of native entries (dispatch.py), as LLVM text; and the tables of words that it shares with Python."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from tracejit.runtime.instructions import INSTRUCTIONS
from tracejit.runtime.walker import FRAME, PAUSED, _words

__all__ = ["CALLABLE", "ENTRY", "OPS", "RUN", "text"]


# What native code and Python share: arrays of 8-byte words, named by these tables.
CALLABLE: Final = _words("chain slow calls compiled countdown")  # chain: addresses of entries, then 0
ENTRY: Final = _words(
    "alive arguments positional code registers owned owned_count externals owner hits misses used tensor_array"
)
RUN: Final = _words("program frames free_gil team team_size")
FRAMES: Final = _words("count first")  # then pairs (frame, whether it is in use)

# An instruction: operation | a << 8 | b << 32, x, y. a and b are byte offsets of registers, or of an external's words.
OPS: Final = _words(
    "end word load low bits other is same apart integer dict "  # facts
    "array call object put sequence mapping number "  # objects
    "ask guard take item "
    "bind held data fixed disjoint clear outside constant scalar whole "  # where externals lie
    "run written set fill then tail"
)


def _macros(text: str) -> str:
    """Loads and stores of word n are written `%x = get type %base n` and `put type %x %base n`, its place
    `%x = at %base n`, that of byte n `%x = byte %base n`."""
    out: list[str] = []
    for k, line in enumerate(text.splitlines()):
        match line.split(";")[0].split():
            case [x, "=", "get", kind, base, n]:
                out += [f"  {x}.p{k} = getelementptr i64, ptr {base}, i64 {n}", f"  {x} = load {kind}, ptr {x}.p{k}"]
            case ["put", kind, x, base, n]:
                out += [f"  %put{k} = getelementptr i64, ptr {base}, i64 {n}", f"  store {kind} {x}, ptr %put{k}"]
            case [x, "=", "at", base, n]:
                out.append(f"  {x} = getelementptr i64, ptr {base}, i64 {n}")
            case [x, "=", "byte", base, n]:
                out.append(f"  {x} = getelementptr i8, ptr {base}, i64 {n}")
            case _:
                out.append(line)
    return "\n".join(out)


_TEXT: Final = (
    """
@none = external global i8
@ndarray = external global i8
@error = external global i8
@true = external global i8
@foreign = external global i8
declare ptr @pthread_getspecific(i32)
declare i32 @pthread_setspecific(i32, ptr)
declare i64 @tj_compare(ptr, i64, i64, i64)
declare i64 @tj_walk(ptr, ptr, ptr, ptr)
declare ptr @new_array(ptr, ptr, i32, ptr, ptr, ptr, i32, ptr)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare ptr @PyType_GenericAlloc(ptr, i64)
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare ptr @PyObject_CallNoArgs(ptr)
declare i64 @PyLong_AsLong(ptr)
declare i64 @PyLong_AsLongLongAndOverflow(ptr, ptr)
declare ptr @PyLong_FromLongLong(i64)
declare ptr @PyFloat_FromDouble(double)
declare i64 @PyDict_Size(ptr)
declare i32 @PyDict_Next(ptr, ptr, ptr, ptr)
declare ptr @PyDict_GetItemWithError(ptr, ptr)
declare ptr @PyDict_New()
declare i32 @PyDict_SetItem(ptr, ptr, ptr)
declare ptr @PyTuple_New(i64)
declare i32 @PyTuple_SetItem(ptr, i64, ptr)
declare ptr @PyList_New(i64)
declare i32 @PyList_SetItem(ptr, i64, ptr)
declare i32 @PyErr_ExceptionMatches(ptr)
declare void @PyErr_Clear()
declare void @PyErr_Fetch(ptr, ptr, ptr)
declare void @PyErr_Restore(ptr, ptr, ptr)
declare void @PyErr_NormalizeException(ptr, ptr, ptr)
declare i32 @PyException_SetTraceback(ptr, ptr)
declare ptr @PyObject_CallFunctionObjArgs(ptr, ...)
declare i64 @PyList_Size(ptr)
declare i32 @PyErr_CheckSignals()
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

; here(modes): these are the modes of this thread; None: it has none.
define ptr @tj_here(ptr %self, ptr %args, i64 %count) #0 {
  %modes.o = load ptr, ptr %args
  %ends = icmp eq ptr %modes.o, @none
  %modes = select i1 %ends, ptr null, ptr %modes.o
  %done = call i32 @pthread_setspecific(i32 KEY, ptr %modes)
  call void @Py_IncRef(ptr @none)
  ret ptr @none
}

; finish(f, done): see `interrupts.py`.
define ptr @tj_finish(ptr %self, ptr %args, i64 %count) #0 {
  %f = load ptr, ptr %args
  %done = at %args 1
  %result = call ptr @finish(ptr %f, ptr %done, i64 1)
  ret ptr %result
}

; The call: entries in turn, then `slow`.
define ptr @tj_call(ptr %self, ptr %args, i64 %flags, ptr %names) #0 {
entry:
  %count = and i64 %flags, 9223372036854775807
  %words.p = byte %self WORDS
  %words = load ptr, ptr %words.p
  %named = icmp ne ptr %names, null
  br i1 %named, label %with_names, label %sized
with_names:
  %names.n = get i64 %names SIZE
  br label %sized
sized:
  %more = phi i64 [ 0, %entry ], [ %names.n, %with_names ]
  %total = add i64 %count, %more
  %countdown = get i64 %words COUNTDOWN
  %limited = icmp ne i64 %countdown, 0
  br i1 %limited, label %due, label %begin
due:
  %countdown.next = sub i64 %countdown, 1
  put i64 %countdown.next %words COUNTDOWN
  %is_due = icmp eq i64 %countdown.next, 0
  br i1 %is_due, label %slow, label %begin
begin:
  %here = call ptr @pthread_getspecific(i32 KEY)
  %known = icmp ne ptr %here, null
  br i1 %known, label %try, label %slow
try:
  %chain = get ptr %words CHAIN
  br label %next
next:
  %link = phi ptr [ %chain, %try ], [ %link.next, %skip ]
  %entry.o = load ptr, ptr %link
  %link.next = getelementptr ptr, ptr %link, i64 1
  %some = icmp ne ptr %entry.o, null
  br i1 %some, label %look, label %slow
look:
  %alive = load i64, ptr %entry.o
  %wants = get i64 %entry.o ARGUMENTS
  %wants.count = get i64 %entry.o POSITIONAL
  %is_alive = icmp ne i64 %alive, 0
  %same = icmp eq i64 %wants, %total
  %same.count = icmp eq i64 %wants.count, %count
  %fits.1 = and i1 %same, %same.count
  %fits = and i1 %fits.1, %is_alive
  br i1 %fits, label %attempt, label %skip
attempt:
  %result = call ptr @attempt(ptr %entry.o, ptr %args, i64 %total, ptr %names, ptr %here, ptr %words)
  %code = ptrtoint ptr %result to i64
  switch i64 %code, label %done [ i64 1, label %skip
                                  i64 2, label %slow ]
skip:
  br label %next
done:
  ret ptr %result
slow:
  %space = add i64 %total, 1
  %copy = alloca ptr, i64 %space
  store ptr %self, ptr %copy
  %rest = getelementptr ptr, ptr %copy, i64 1
  %bytes = shl i64 %total, 3
  call void @llvm.memcpy.p0.p0.i64(ptr %rest, ptr %args, i64 %bytes, i1 false)
  %function = get ptr %words SLOW
  %count.all = add i64 %count, 1
  %answer = call ptr @PyObject_Vectorcall(ptr %function, ptr %copy, i64 %count.all, ptr %names)
  ret ptr %answer
}

; One entry's try: the result; null with an exception set; 1: not mine, nothing happened; 2: that, and time has passed.
define internal ptr @attempt(ptr %entry.o, ptr %args, i64 %total, ptr %names, ptr %here, ptr %words) #0 {
entry:
  %registers = get i64 %entry.o REGISTERS
  %externals = get i64 %entry.o EXTERNALS
  %tables = shl i64 %externals, 2
  %size = add i64 %registers, %tables
  %r = alloca i64, i64 %size, align 16
  %bytes = shl i64 %size, 3
  call void @llvm.memset.p0.i64(ptr align 16 %r, i8 0, i64 %bytes, i1 false)
  put ptr %names %r 1
  put ptr %here %r 2
  %first = at %r 3
  %args.bytes = shl i64 %total, 3
  call void @llvm.memcpy.p0.p0.i64(ptr %first, ptr %args, i64 %args.bytes, i1 false)
  %pointers = at %r %registers
  %to.arrays = shl i64 %externals, 3
  %to.tensors = shl i64 %externals, 4
  %to.numbers = mul i64 %externals, 24
  %arrays = byte %pointers %to.arrays
  %pins = shl i64 %externals, 1
  %owner = get ptr %entry.o OWNER
  call void @Py_IncRef(ptr %owner)
  %pinned = alloca i64
  store i64 0, ptr %pinned
  %scratch = alloca i64, i64 3
  %scratch.1 = at %scratch 1
  %scratch.2 = at %scratch 2
  %held = alloca ptr, i64 3                       ; what was raised when the program had run: raised in the end
  store ptr null, ptr %held
  %tensor_array = get i64 %entry.o TENSOR_ARRAY
  %code = get ptr %entry.o CODE
  br label %fetch

advance:
  %ip.next = at %ip 3
  br label %fetch
fetch:
  %ip = phi ptr [ %code, %entry ], [ %ip.next, %advance ]
  %w = load i64, ptr %ip
  %x = get i64 %ip 1
  %y = get i64 %ip 2
  %x.p = inttoptr i64 %x to ptr
  %y.p = inttoptr i64 %y to ptr
  %op = and i64 %w, 255
  %a.s = lshr i64 %w, 8
  %a = and i64 %a.s, 16777215
  %b = lshr i64 %w, 32
  %ra.p = byte %r %a
  %ra = load ptr, ptr %ra.p
  %rb.p = byte %r %b
  switch i64 %op, label %give_up [ SWITCH ]

"""
    + INSTRUCTIONS
    + """
; ---- the program
op.run:
  %frames = get ptr %x.p FRAMES
  %frames.n = load i64, ptr %frames
  br label %frame.next
frame.next:
  %frame.k = phi i64 [ 0, %op.run ], [ %frame.k1, %frame.look ]
  %frame.more = icmp slt i64 %frame.k, %frames.n
  br i1 %frame.more, label %frame.look, label %give_up
frame.look:
  %frame.k1 = add i64 %frame.k, 1
  %frame.2 = shl i64 %frame.k, 1
  %frame.at = at %frames %frame.2
  %frame.pair = at %frame.at 1
  %frame.busy.p = at %frame.pair 1
  %frame.busy = load i64, ptr %frame.busy.p
  %frame.free = icmp eq i64 %frame.busy, 0
  br i1 %frame.free, label %frame.take, label %frame.next
frame.take:
  %frame = load ptr, ptr %frame.pair
  %program = get ptr %x.p PROGRAM
  %free_gil = get i64 %x.p FREE_GIL
  %frees = icmp ne i64 %free_gil, 0
  br i1 %frees, label %run.free, label %run.here
run.here:
  store i64 1, ptr %frame.busy.p
  br label %run.here.on
run.here.on:
  %failed.here = call i64 @tj_walk(ptr %program, ptr %frame, ptr %pointers, ptr null)
  %pauses.here = icmp eq i64 %failed.here, PAUSED
  br i1 %pauses.here, label %run.here.on, label %ran
run.free:
  %team.p = get ptr %x.p TEAM
  %team.size = get i64 %x.p TEAM_SIZE
  %team.some = icmp ne ptr %team.p, null
  br i1 %team.some, label %team.look, label %run.pin
team.look:                                        ; the threads there are now are as many as the settings say
  %team.now = load i64, ptr %team.p
  %team.is = icmp eq i64 %team.now, %team.size
  %team.address = get ptr %team.p 1
  %team.o = get ptr %team.p 2
  br i1 %team.is, label %run.pin, label %give_up
run.pin:                                          ; other threads may drop what is used here
  %team = phi ptr [ null, %run.free ], [ %team.address, %team.look ]
  %crew = phi ptr [ null, %run.free ], [ %team.o, %team.look ]
  call void @Py_IncRef(ptr %crew)
  store i64 1, ptr %pinned
  store i64 1, ptr %frame.busy.p
  call void @each(ptr @Py_IncRef, ptr %arrays, i64 %pins)
  br label %run.on
run.on:
  %thread = call ptr @PyEval_SaveThread()
  %failed.free = call i64 @tj_walk(ptr %program, ptr %frame, ptr %pointers, ptr %team)
  call void @PyEval_RestoreThread(ptr %thread)
  %pauses = icmp eq i64 %failed.free, PAUSED
  br i1 %pauses, label %run.pause, label %run.done
run.pause:                                        ; in the middle of a long loop
  %signals = call i32 @PyErr_CheckSignals()
  %quiet = icmp eq i32 %signals, 0
  br i1 %quiet, label %run.on, label %run.stop
run.stop:                                         ; what a signal handler has raised is the answer
  %paused.p = at %frame PAUSED_TURN
  store i64 0, ptr %paused.p
  store i64 0, ptr %frame.busy.p
  call void @Py_DecRef(ptr %crew)
  br label %leave
run.done:
  call void @Py_DecRef(ptr %crew)
  br label %ran
ran:
  %failed = phi i64 [ %failed.here, %run.here.on ], [ %failed.free, %run.done ]
  store i64 0, ptr %frame.busy.p
  %passed = icmp eq i64 %failed, -1
  br i1 %passed, label %advance, label %missed

; ---- what cannot fail
op.written:                                       ; a: where; x: offset of the version; y: three more, how often
  %written.p = byte %rb.p %to.tensors
  %written = load ptr, ptr %written.p
  %version.p = byte %written %x
  %version = load ptr, ptr %version.p
  %version.n.at = and i64 %y, 65535
  %version.n.p = byte %version %version.n.at
  %version.n.o = load ptr, ptr %version.n.p
  %version.n = call i64 @PyLong_AsLong(ptr %version.n.o)
  %version.times = lshr i64 %y, 48
  %version.n1 = add i64 %version.n, %version.times
  %version.n1.o = call ptr @PyLong_FromLongLong(i64 %version.n1)
  store ptr %version.n1.o, ptr %version.n.p
  call void @Py_DecRef(ptr %version.n.o)
  %version.where.s = lshr i64 %y, 16
  %version.where.at = and i64 %version.where.s, 65535
  %version.where.p = byte %version %version.where.at
  %version.where = load ptr, ptr %version.where.p
  call void @Py_IncRef(ptr %ra)
  store ptr %ra, ptr %version.where.p
  call void @Py_DecRef(ptr %version.where)
  %seen.s = lshr i64 %y, 32
  %seen.at = and i64 %seen.s, 65535
  %seen.p = byte %written %seen.at
  %seen = load ptr, ptr %seen.p
  call void @Py_IncRef(ptr %version.n1.o)
  store ptr %version.n1.o, ptr %seen.p
  call void @Py_DecRef(ptr %seen)
  br label %advance
op.set:                                           ; slot x of the object in b; what was there goes last, from register y
  %set.o = load ptr, ptr %rb.p
  %set.p = byte %set.o %x
  %set.old = load ptr, ptr %set.p
  %set.old.to = byte %r %y
  store ptr %set.old, ptr %set.old.to
  call void @Py_IncRef(ptr %ra)
  store ptr %ra, ptr %set.p
  br label %advance
op.fill:                                          ; the float in a, from external b: x says whether f64
  %fill.from = load ptr, ptr %rb.p
  %fill.to = byte %ra FLOAT
  %fill.wide = icmp ne i64 %x, 0
  br i1 %fill.wide, label %fill.64, label %fill.32
fill.64:
  %fill.d = load double, ptr %fill.from
  store double %fill.d, ptr %fill.to
  br label %advance
fill.32:
  %fill.f = load float, ptr %fill.from
  %fill.e = fpext float %fill.f to double
  store double %fill.e, ptr %fill.to
  br label %advance
op.then:                                          ; x(done, y) is finished; what it raises waits for the end
  %then = call ptr @conclude(ptr %x.p, ptr %y.p, ptr %r)
  store ptr %then, ptr %rb.p
  %then.raised = icmp eq ptr %then, null
  br i1 %then.raised, label %then.hold, label %advance
then.hold:
  call void @hold(ptr %held)
  br label %advance
op.tail:                                          ; the result is what x(done, y) returns, or raises
  %tail = call ptr @conclude(ptr %x.p, ptr %y.p, ptr %r)
  br label %won
op.end:
  %end.held = load ptr, ptr %held
  %end.raises = icmp ne ptr %end.held, null
  br i1 %end.raises, label %end.raise, label %end.return
end.raise:
  call void @raise(ptr %held)
  br label %won
end.return:
  call void @Py_IncRef(ptr %ra)
  br label %won

won:
  %result = phi ptr [ %tail, %op.tail ], [ %ra, %end.return ], [ null, %end.raise ]
  %calls = get i64 %words CALLS
  %calls.next = add i64 %calls, 1
  put i64 %calls.next %words CALLS
  put i64 %calls.next %entry.o USED
  %all = get i64 %words COMPILED
  %all.next = add i64 %all, 1
  put i64 %all.next %words COMPILED
  %hits = get i64 %entry.o HITS
  %hits.next = add i64 %hits, 1
  put i64 %hits.next %entry.o HITS
  br label %leave
missed:
  %misses = get i64 %entry.o MISSES
  %misses.next = add i64 %misses, 1
  put i64 %misses.next %entry.o MISSES
  %was_pinned = load i64, ptr %pinned
  %miss.code = add i64 %was_pinned, 1
  %miss = inttoptr i64 %miss.code to ptr
  br label %leave
raised:                                           ; plain Python will meet it again, unless a signal handler raised it
  %ordinary = call i32 @PyErr_ExceptionMatches(ptr @error)
  %is_ordinary = icmp ne i32 %ordinary, 0
  br i1 %is_ordinary, label %raised.where, label %raised.out
raised.where:                                     ; what no function in Python had a part in, no handler raised
  call void @hold(ptr %held)
  %raised.trace = get ptr %held 2
  %raised.in_c = icmp eq ptr %raised.trace, null
  br i1 %raised.in_c, label %raised.drop, label %raised.ask
raised.ask:
  %held.value = at %held 1
  %held.trace = at %held 2
  call void @PyErr_NormalizeException(ptr %held, ptr %held.value, ptr %held.trace)
  %raised.value = load ptr, ptr %held.value
  %raised.traced = load ptr, ptr %held.trace
  %raised.set = call i32 @PyException_SetTraceback(ptr %raised.value, ptr %raised.traced)
  %raised.foreign = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr @foreign, ptr %raised.value, ptr null)
  %raised.unsure = icmp eq ptr %raised.foreign, null
  br i1 %raised.unsure, label %raised.out, label %raised.judge
raised.judge:
  call void @Py_DecRef(ptr %raised.foreign)
  %raised.ours = icmp ne ptr %raised.foreign, @true
  br i1 %raised.ours, label %raised.drop, label %raised.again
raised.drop:
  call void @raise(ptr %held)
  br label %forget
raised.again:
  call void @raise(ptr %held)
  br label %raised.out
raised.out:
  br label %leave
forget:
  call void @PyErr_Clear()
  br label %give_up
give_up:
  br label %leave
leave:
  %answer = phi ptr [ %result, %won ], [ %miss, %missed ], [ null, %raised.out ], [ null, %run.stop ],
                    [ inttoptr (i64 1 to ptr), %give_up ]
  %owned = get i64 %entry.o OWNED
  %owned.n = get i64 %entry.o OWNED_COUNT
  %owned.p = at %r %owned
  call void @each(ptr @Py_DecRef, ptr %owned.p, i64 %owned.n)
  %unpin = load i64, ptr %pinned
  %unpins = icmp ne i64 %unpin, 0
  br i1 %unpins, label %leave.unpin, label %left
leave.unpin:
  call void @each(ptr @Py_DecRef, ptr %arrays, i64 %pins)
  br label %left
left:
  call void @Py_DecRef(ptr %owner)
  ret ptr %answer
}

; f of every object among these words.
define internal void @each(ptr %f, ptr %objects, i64 %n) #0 {
entry:
  br label %next
next:
  %k = phi i64 [ 0, %entry ], [ %k1, %skip ]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %look, label %end
look:
  %k1 = add i64 %k, 1
  %o = get ptr %objects %k
  %none = icmp eq ptr %o, null
  br i1 %none, label %skip, label %do
do:
  call void %f(ptr %o)
  br label %skip
skip:
  br label %next
end:
  ret void
}

; What is being raised is kept, unless something is already.
define internal void @hold(ptr %held) #0 {
entry:
  %first = load ptr, ptr %held
  %is_first = icmp eq ptr %first, null
  br i1 %is_first, label %keep, label %drop
keep:
  %held.1 = at %held 1
  %held.2 = at %held 2
  call void @PyErr_Fetch(ptr %held, ptr %held.1, ptr %held.2)
  ret void
drop:
  call void @PyErr_Clear()
  ret void
}

; What was kept is raised.
define internal void @raise(ptr %held) #0 {
  %kind = load ptr, ptr %held
  %value = get ptr %held 1
  %trace = get ptr %held 2
  call void @PyErr_Restore(ptr %kind, ptr %value, ptr %trace)
  ret void
}

; f(*args): n of them. Again while it raises and the list args[0] is not empty; then what it raised first is raised.
define internal ptr @finish(ptr %f, ptr %args, i64 %n) #0 {
entry:
  %held = alloca ptr, i64 3
  store ptr null, ptr %held
  %done = load ptr, ptr %args
  br label %try
try:
  %k = phi i64 [ 1, %entry ], [ %k1, %raised ]
  %result = call ptr @PyObject_Vectorcall(ptr %f, ptr %args, i64 %n, ptr null)
  %none = icmp eq ptr %result, null
  br i1 %none, label %raised, label %end
raised:
  call void @hold(ptr %held)
  %noted = call i64 @PyList_Size(ptr %done)
  %some = icmp sgt i64 %noted, 0
  %k1 = add i64 %k, 1
  %few = icmp sle i64 %k1, TRIES
  %again = and i1 %some, %few
  br i1 %again, label %try, label %give_up
end:
  %first = load ptr, ptr %held
  %right = icmp eq ptr %first, null
  br i1 %right, label %return, label %drop
return:
  ret ptr %result
drop:
  call void @Py_DecRef(ptr %result)
  br label %give_up
give_up:
  call void @raise(ptr %held)
  ret ptr null
}

; The values of the registers of a list go to `to`: n of them.
define internal void @gather(ptr %to, ptr %list, ptr %r) #0 {
entry:
  %n = load i64, ptr %list
  br label %next
next:
  %k = phi i64 [ 0, %entry ], [ %k1, %put ]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %put, label %end
put:
  %k1 = add i64 %k, 1
  %at = get i64 %list %k1
  %o.p = byte %r %at
  %o = load ptr, ptr %o.p
  put ptr %o %to %k
  br label %next
end:
  ret void
}

; f(done, *registers), finished: n of them. What was done before is in the list, as None.
define internal ptr @conclude(ptr %f, ptr %list, ptr %r) #0 {
entry:
  %n = load i64, ptr %list
  %n1 = add i64 %n, 1
  %args = alloca ptr, i64 %n1
  %done = call ptr @PyList_New(i64 1)
  %none = icmp eq ptr %done, null
  br i1 %none, label %fail, label %begin
fail:
  ret ptr null
begin:
  call void @Py_IncRef(ptr @none)
  %set = call i32 @PyList_SetItem(ptr %done, i64 0, ptr @none)
  store ptr %done, ptr %args
  %rest = at %args 1
  call void @gather(ptr %rest, ptr %list, ptr %r)
  %result = call ptr @finish(ptr %f, ptr %args, i64 %n1)
  call void @Py_DecRef(ptr %done)
  ret ptr %result
}

; f(*registers): n of them.
define internal ptr @apply(ptr %f, ptr %list, ptr %r) #0 {
  %n = load i64, ptr %list
  %args = alloca ptr, i64 %n
  call void @gather(ptr %args, ptr %list, ptr %r)
  %result = call ptr @PyObject_Vectorcall(ptr %f, ptr %args, i64 %n, ptr null)
  ret ptr %result
}
attributes #0 = { nounwind }
"""
)


def text(names: Mapping[str, Any]) -> str:
    """The module, with the values of the names in capitals that the tables do not give."""
    known = {"SWITCH": "\n".join(f"i64 {n}, label %op.{name}" for name, n in OPS.items()), **names}
    for table in (CALLABLE, ENTRY, RUN):
        known |= {name.upper(): n for name, n in table.items()}
    known |= {"PAUSED": PAUSED, "PAUSED_TURN": FRAME["turn"]}
    return _macros(re.sub(r"\b[A-Z][A-Z0-9_]*\b", lambda m: str(known.get(m[0], m[0])), _TEXT))
