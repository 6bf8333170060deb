"""The interpreter of native entries (dispatch.py), as LLVM text; and the tables of words that it shares with Python."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

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


_TEXT: Final = """
@none = external global i8
@ndarray = external global i8
@error = external global i8
@true = external global i8
@foreign = external global i8
declare ptr @pthread_getspecific(i32)
declare i32 @pthread_setspecific(i32, ptr)
declare i64 @tj_compare(ptr, i64, i64)
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

; ---- facts
op.word:
  %word.p = byte %ra %x
  %word = load i64, ptr %word.p
  %word.is = icmp eq i64 %word, %y
  br i1 %word.is, label %advance, label %give_up
op.load:
  %load.p = byte %ra %x
  %load = load i64, ptr %load.p
  store i64 %load, ptr %rb.p
  %load.is = icmp ugt i64 %load, 4095
  br i1 %load.is, label %advance, label %give_up
op.low:
  %low.p = byte %ra %x
  %low.32 = load i32, ptr %low.p
  %low = zext i32 %low.32 to i64
  %low.is = icmp eq i64 %low, %y
  br i1 %low.is, label %advance, label %give_up
op.bits:                                          ; y: the mask, and what is left of it << 32
  %bits.p = byte %ra %x
  %bits.32 = load i32, ptr %bits.p
  %bits.mask = trunc i64 %y to i32
  %bits = and i32 %bits.32, %bits.mask
  %bits.high = lshr i64 %y, 32
  %bits.want = trunc i64 %bits.high to i32
  %bits.is = icmp eq i32 %bits, %bits.want
  br i1 %bits.is, label %advance, label %give_up
op.other:
  %other.p = byte %ra %x
  %other = load i64, ptr %other.p
  %other.is = icmp ne i64 %other, %y
  br i1 %other.is, label %advance, label %give_up
op.is:
  %is.a = ptrtoint ptr %ra to i64
  %is = icmp eq i64 %is.a, %x
  br i1 %is, label %advance, label %give_up
op.apart:
  %apart.b = load ptr, ptr %rb.p
  %apart = icmp ne ptr %ra, %apart.b
  br i1 %apart, label %advance, label %give_up
op.same:
  %same.b = load ptr, ptr %rb.p
  %same = icmp eq ptr %ra, %same.b
  br i1 %same, label %advance, label %give_up
op.integer:
  %integer = call i64 @PyLong_AsLongLongAndOverflow(ptr %ra, ptr %scratch)
  %integer.o = load i32, ptr %scratch
  %integer.fits = icmp eq i32 %integer.o, 0
  %integer.same = icmp eq i64 %integer, %x
  %integer.is = and i1 %integer.fits, %integer.same
  br i1 %integer.is, label %advance, label %give_up
op.dict:                                          ; x items, keys and values in turn, from register b on
  %dict.n = call i64 @PyDict_Size(ptr %ra)
  %dict.is = icmp eq i64 %dict.n, %x
  store i64 0, ptr %scratch
  br i1 %dict.is, label %dict.next, label %give_up
dict.next:
  %dict.k = phi i64 [ 0, %op.dict ], [ %dict.k2, %dict.item ]
  %dict.some = call i32 @PyDict_Next(ptr %ra, ptr %scratch, ptr %scratch.1, ptr %scratch.2)
  %dict.ends = icmp eq i32 %dict.some, 0
  br i1 %dict.ends, label %advance, label %dict.item
dict.item:
  %dict.key = load ptr, ptr %scratch.1
  %dict.value = load ptr, ptr %scratch.2
  %dict.to = at %rb.p %dict.k
  store ptr %dict.key, ptr %dict.to
  put ptr %dict.value %dict.to 1
  %dict.k2 = add i64 %dict.k, 2
  br label %dict.next

; ---- objects
op.array:                                         ; x: dtype, rank, extents; y: the external
  %array.descr = load ptr, ptr %x.p
  %array.rank = get i64 %x.p 1
  %array.rank.32 = trunc i64 %array.rank to i32
  %array.dims = at %x.p 2
  call void @Py_IncRef(ptr %array.descr)
  %array = call ptr (ptr, ptr, i32, ptr, ptr, ptr, i32, ptr) @new_array(ptr @ndarray, ptr %array.descr,
    i32 %array.rank.32, ptr %array.dims, ptr null, ptr null, i32 0, ptr null)
  %array.none = icmp eq ptr %array, null
  br i1 %array.none, label %raised, label %array.some
array.some:
  store ptr %array, ptr %rb.p
  %array.data.p = byte %array DATA
  %array.data = load ptr, ptr %array.data.p
  %array.to = byte %r %y
  store ptr %array.data, ptr %array.to
  br label %advance
op.object:                                        ; x: type, number of slots, (offset, content) of each
  %object.type = load ptr, ptr %x.p
  %object.n = get i64 %x.p 1
  %object = call ptr @PyType_GenericAlloc(ptr %object.type, i64 0)
  %object.none = icmp eq ptr %object, null
  br i1 %object.none, label %raised, label %object.some
object.some:
  store ptr %object, ptr %rb.p
  br label %object.next
object.next:
  %object.k = phi i64 [ 0, %object.some ], [ %object.k1, %object.slot ]
  %object.more = icmp slt i64 %object.k, %object.n
  br i1 %object.more, label %object.slot, label %advance
object.slot:
  %object.k1 = add i64 %object.k, 1
  %object.at = shl i64 %object.k1, 1
  %object.pair = at %x.p %object.at
  %object.offset = load i64, ptr %object.pair
  %object.content = get ptr %object.pair 1
  call void @Py_IncRef(ptr %object.content)
  %object.to = byte %object %object.offset
  store ptr %object.content, ptr %object.to
  br label %object.next
op.put:                                           ; into a slot of an object made here
  %put.o = load ptr, ptr %rb.p
  %put.to = byte %put.o %x
  call void @Py_IncRef(ptr %ra)
  store ptr %ra, ptr %put.to
  br label %advance
op.sequence:                                      ; x: whether a list; y: number of items, their registers
  %seq.n = load i64, ptr %y.p
  %seq.is_list = icmp ne i64 %x, 0
  br i1 %seq.is_list, label %seq.list, label %seq.tuple
seq.list:
  %seq.l = call ptr @PyList_New(i64 %seq.n)
  br label %seq.made
seq.tuple:
  %seq.t = call ptr @PyTuple_New(i64 %seq.n)
  br label %seq.made
seq.made:
  %seq = phi ptr [ %seq.l, %seq.list ], [ %seq.t, %seq.tuple ]
  %seq.none = icmp eq ptr %seq, null
  br i1 %seq.none, label %raised, label %seq.some
seq.some:
  store ptr %seq, ptr %rb.p
  br label %seq.next
seq.next:
  %seq.k = phi i64 [ 0, %seq.some ], [ %seq.k1, %seq.put ]
  %seq.more = icmp slt i64 %seq.k, %seq.n
  br i1 %seq.more, label %seq.item, label %advance
seq.item:
  %seq.k1 = add i64 %seq.k, 1
  %seq.at = get i64 %y.p %seq.k1
  %seq.o.p = byte %r %seq.at
  %seq.o = load ptr, ptr %seq.o.p
  call void @Py_IncRef(ptr %seq.o)
  br i1 %seq.is_list, label %seq.into_list, label %seq.into_tuple
seq.into_list:
  %seq.done.l = call i32 @PyList_SetItem(ptr %seq, i64 %seq.k, ptr %seq.o)
  br label %seq.put
seq.into_tuple:
  %seq.done.t = call i32 @PyTuple_SetItem(ptr %seq, i64 %seq.k, ptr %seq.o)
  br label %seq.put
seq.put:
  br label %seq.next
op.mapping:                                       ; y: number of items, the registers of keys and values in turn
  %map.n = load i64, ptr %y.p
  %map = call ptr @PyDict_New()
  %map.none = icmp eq ptr %map, null
  br i1 %map.none, label %raised, label %map.some
map.some:
  store ptr %map, ptr %rb.p
  br label %map.next
map.next:
  %map.k = phi i64 [ 0, %map.some ], [ %map.k1, %map.item ]
  %map.more = icmp slt i64 %map.k, %map.n
  br i1 %map.more, label %map.item, label %advance
map.item:
  %map.k1 = add i64 %map.k, 1
  %map.first = shl i64 %map.k1, 1
  %map.pair = at %y.p %map.first
  %map.key.at = get i64 %map.pair -1
  %map.value.at = load i64, ptr %map.pair
  %map.key.p = byte %r %map.key.at
  %map.value.p = byte %r %map.value.at
  %map.key = load ptr, ptr %map.key.p
  %map.value = load ptr, ptr %map.value.p
  %map.done = call i32 @PyDict_SetItem(ptr %map, ptr %map.key, ptr %map.value)
  %map.put = icmp eq i32 %map.done, 0
  br i1 %map.put, label %map.next, label %raised
op.number:                                        ; a float of its own, to be filled
  %number = call ptr @PyFloat_FromDouble(double 0.0)
  %number.none = icmp eq ptr %number, null
  store ptr %number, ptr %rb.p
  br i1 %number.none, label %raised, label %advance
op.call:                                          ; x: a function; y: its arguments
  %call = call ptr @apply(ptr %x.p, ptr %y.p, ptr %r)
  store ptr %call, ptr %rb.p
  %call.none = icmp eq ptr %call, null
  br i1 %call.none, label %raised, label %advance

; ---- state
op.ask:                                           ; x: as for `guard`; its last word is a function or null
  %ask.f = get ptr %x.p 4
  %ask.none = icmp eq ptr %ask.f, null
  br i1 %ask.none, label %advance, label %ask.do
ask.do:
  call void @Py_IncRef(ptr %ask.f)
  %ask = call ptr @PyObject_CallNoArgs(ptr %ask.f)
  call void @Py_DecRef(ptr %ask.f)
  %ask.raised = icmp eq ptr %ask, null
  br i1 %ask.raised, label %raised, label %ask.look
ask.look:
  %ask.at = call i64 @PyLong_AsLong(ptr %ask)
  call void @Py_DecRef(ptr %ask)
  %ask.holds = icmp eq i64 %ask.at, -1
  br i1 %ask.holds, label %advance, label %give_up
op.guard:                                         ; x: ready, table, plain rows, chained rows
  %guard.ready = load i64, ptr %x.p
  %guard.table = get ptr %x.p 1
  %guard.plain = get i64 %x.p 2
  %guard.chained = get i64 %x.p 3
  %guard.is_ready = icmp ne i64 %guard.ready, 0
  br i1 %guard.is_ready, label %guard.walk, label %give_up
guard.walk:
  %guard.at = call i64 @tj_compare(ptr %guard.table, i64 %guard.plain, i64 %guard.chained)
  %guard.holds = icmp eq i64 %guard.at, -1
  br i1 %guard.holds, label %advance, label %give_up
op.take:                                          ; x: a weak reference or null; y: the object
  %take.sure = icmp eq i64 %x, 0
  br i1 %take.sure, label %take.it, label %take.look
take.look:
  %take.p = byte %x.p REFERENT
  %take.now = load i64, ptr %take.p
  %take.alive = icmp eq i64 %take.now, %y
  br i1 %take.alive, label %take.it, label %give_up
take.it:
  call void @Py_IncRef(ptr %y.p)
  store ptr %y.p, ptr %rb.p
  br label %advance
op.item:                                          ; borrowed: x is the key
  %item = call ptr @PyDict_GetItemWithError(ptr %ra, ptr %x.p)
  store ptr %item, ptr %rb.p
  %item.none = icmp eq ptr %item, null
  br i1 %item.none, label %raised, label %advance

; ---- where externals lie
op.bind:                                          ; of the tensor in a
  br label %bind
op.held:                                          ; of tensor y, alive while the weak reference x says so
  %held.p = byte %x.p REFERENT
  %held.now = load i64, ptr %held.p
  %held.alive = icmp eq i64 %held.now, %y
  br i1 %held.alive, label %bind, label %give_up
bind:
  %tensor = phi ptr [ %ra, %op.bind ], [ %y.p, %op.held ]
  %bind.array.p = byte %tensor %tensor_array
  %bind.array = load ptr, ptr %bind.array.p
  %bind.none = icmp eq ptr %bind.array, null
  br i1 %bind.none, label %give_up, label %bind.look
bind.look:
  %bind.flags.p = byte %bind.array FLAGS
  %bind.flags = load i32, ptr %bind.flags.p
  %bind.type.p = byte %bind.array TYPE
  %bind.type = load ptr, ptr %bind.type.p
  %bind.aligned = and i32 %bind.flags, ALIGNED
  %bind.is_aligned = icmp ne i32 %bind.aligned, 0
  %bind.is_array = icmp eq ptr %bind.type, @ndarray
  %bind.fits = and i1 %bind.is_aligned, %bind.is_array
  br i1 %bind.fits, label %bind.store, label %give_up
bind.store:
  %bind.data.p = byte %bind.array DATA
  %bind.data = load ptr, ptr %bind.data.p
  store ptr %bind.data, ptr %rb.p
  %bind.to.array = byte %rb.p %to.arrays
  store ptr %bind.array, ptr %bind.to.array
  %bind.to.tensor = byte %rb.p %to.tensors
  store ptr %tensor, ptr %bind.to.tensor
  br label %advance
op.data:                                          ; of the array in a
  %data.p = byte %ra DATA
  %data = load ptr, ptr %data.p
  store ptr %data, ptr %rb.p
  br label %advance
op.fixed:                                         ; external b lies where it did when overlap was ruled out
  %fixed = load i64, ptr %rb.p
  %fixed.is = icmp eq i64 %fixed, %x
  br i1 %fixed.is, label %advance, label %give_up
op.disjoint:                                      ; x bytes at external a and y bytes at external b
  %disjoint.a = ptrtoint ptr %ra to i64
  %disjoint.b = load i64, ptr %rb.p
  %disjoint.a.end = add i64 %disjoint.a, %x
  %disjoint.b.end = add i64 %disjoint.b, %y
  %disjoint.1 = icmp ule i64 %disjoint.a.end, %disjoint.b
  %disjoint.2 = icmp ule i64 %disjoint.b.end, %disjoint.a
  %disjoint = or i1 %disjoint.1, %disjoint.2
  br i1 %disjoint, label %advance, label %give_up
op.clear:                                         ; x bytes at external b are in none of the spans y: n, (begin, end)
  %clear.from = load i64, ptr %rb.p
  %clear.to = add i64 %clear.from, %x
  %clear.n = load i64, ptr %y.p
  %clear.spans = at %y.p 1
  br label %clear.next
clear.next:
  %clear.low = phi i64 [ 0, %op.clear ], [ %clear.low2, %clear.half ]
  %clear.high = phi i64 [ %clear.n, %op.clear ], [ %clear.high2, %clear.half ]
  %clear.more = icmp slt i64 %clear.low, %clear.high
  br i1 %clear.more, label %clear.half, label %clear.found
clear.half:                                       ; the first span that ends after `from`
  %clear.sum = add i64 %clear.low, %clear.high
  %clear.mid = lshr i64 %clear.sum, 1
  %clear.mid2 = shl i64 %clear.mid, 1
  %clear.span = at %clear.spans %clear.mid2
  %clear.end = get i64 %clear.span 1
  %clear.before = icmp ule i64 %clear.end, %clear.from
  %clear.after = add i64 %clear.mid, 1
  %clear.low2 = select i1 %clear.before, i64 %clear.after, i64 %clear.low
  %clear.high2 = select i1 %clear.before, i64 %clear.high, i64 %clear.mid
  br label %clear.next
clear.found:
  %clear.last = icmp eq i64 %clear.low, %clear.n
  br i1 %clear.last, label %advance, label %clear.compare
clear.compare:
  %clear.low.2 = shl i64 %clear.low, 1
  %clear.begin = get i64 %clear.spans %clear.low.2
  %clear.is = icmp ule i64 %clear.to, %clear.begin
  br i1 %clear.is, label %advance, label %give_up
op.outside:                                       ; x: mask, then addresses hashed: the object in a is none of them
  %outside.mask = load i64, ptr %x.p
  %outside.a = ptrtoint ptr %ra to i64
  %outside.start = lshr i64 %outside.a, 4
  br label %outside.next
outside.next:
  %outside.h = phi i64 [ %outside.start, %op.outside ], [ %outside.h1, %outside.look ]
  %outside.slot = and i64 %outside.h, %outside.mask
  %outside.h1 = add i64 %outside.slot, 1
  %outside.found = get i64 %x.p %outside.h1
  %outside.free = icmp eq i64 %outside.found, 0
  br i1 %outside.free, label %advance, label %outside.look
outside.look:
  %outside.hit = icmp eq i64 %outside.found, %outside.a
  br i1 %outside.hit, label %give_up, label %outside.next
op.constant:
  store i64 %x, ptr %rb.p
  br label %advance
op.scalar:                                        ; the float in a
  %scalar.p = byte %ra FLOAT
  store ptr %scalar.p, ptr %rb.p
  br label %advance
op.whole:                                         ; the int in a
  %whole = call i64 @PyLong_AsLongLongAndOverflow(ptr %ra, ptr %scratch)
  %whole.o = load i32, ptr %scratch
  %whole.fits = icmp eq i32 %whole.o, 0
  %whole.more = add i64 %whole, LARGEST
  %whole.small = icmp ule i64 %whole.more, LARGEST2
  %whole.is = and i1 %whole.fits, %whole.small
  %whole.to = byte %rb.p %to.numbers
  store i64 %whole, ptr %whole.to
  store ptr %whole.to, ptr %rb.p
  br i1 %whole.is, label %advance, label %give_up

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
  br label %next
next:
  %k = phi i64 [ 0, %begin ], [ %k1, %put ]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %put, label %call
put:
  %k1 = add i64 %k, 1
  %at = get i64 %list %k1
  %o.p = byte %r %at
  %o = load ptr, ptr %o.p
  put ptr %o %args %k1
  br label %next
call:
  %result = call ptr @finish(ptr %f, ptr %args, i64 %n1)
  call void @Py_DecRef(ptr %done)
  ret ptr %result
}

; f(*registers): n of them.
define internal ptr @apply(ptr %f, ptr %list, ptr %r) #0 {
entry:
  %n = load i64, ptr %list
  %args = alloca ptr, i64 %n
  br label %next
next:
  %k = phi i64 [ 0, %entry ], [ %k1, %put ]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %put, label %call
put:
  %k1 = add i64 %k, 1
  %at = get i64 %list %k1
  %o.p = byte %r %at
  %o = load ptr, ptr %o.p
  put ptr %o %args %k
  br label %next
call:
  %result = call ptr @PyObject_Vectorcall(ptr %f, ptr %args, i64 %n, ptr null)
  ret ptr %result
}
attributes #0 = { nounwind }
"""


def text(names: Mapping[str, Any]) -> str:
    """The module, with the values of the names in capitals that the tables do not give."""
    known = {"SWITCH": "\n".join(f"i64 {n}, label %op.{name}" for name, n in OPS.items()), **names}
    for table in (CALLABLE, ENTRY, RUN):
        known |= {name.upper(): n for name, n in table.items()}
    known |= {"PAUSED": PAUSED, "PAUSED_TURN": FRAME["turn"]}
    return _macros(re.sub(r"\b[A-Z][A-Z0-9_]*\b", lambda m: str(known.get(m[0], m[0])), _TEXT))
