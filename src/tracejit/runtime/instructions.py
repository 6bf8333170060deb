"""What most instructions of a native entry do, as a part of the interpreter's text (`interpreter.py`): facts that must
hold, objects that are taken apart, state that is asked, and words that say where externals lie.

Each begins at `op.NAME`, finds its operands in %ra, %rb.p, %x and %y, and goes on to `advance`, or to `give_up` where
the call is none of this entry. `get`, `put`, `at` and `byte` are the interpreter's macros.
"""

from typing import Final

__all__ = ["INSTRUCTIONS"]

INSTRUCTIONS: Final = """
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
  %ask.f = get ptr %x.p 5
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
op.guard:                                         ; x: ready, table, plain rows, wide rows, chained rows
  %guard.ready = load i64, ptr %x.p
  %guard.table = get ptr %x.p 1
  %guard.plain = get i64 %x.p 2
  %guard.wide = get i64 %x.p 3
  %guard.chained = get i64 %x.p 4
  %guard.is_ready = icmp ne i64 %guard.ready, 0
  br i1 %guard.is_ready, label %guard.walk, label %give_up
guard.walk:
  %guard.at = call i64 @tj_compare(ptr %guard.table, i64 %guard.plain, i64 %guard.wide, i64 %guard.chained)
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
"""
