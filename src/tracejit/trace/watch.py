"""Noticing every Python frame that starts in a thread, at next to no cost for code that was noticed before.

From Python 3.12 on that is `sys.monitoring` (PEP 669), whose event is disabled in code that is fine. Before, it is a
frame evaluation function (PEP 523) made here, which looks the code object up in a table of the fine ones and goes on. A
profile function would see the same frames, but while there is one the interpreter specializes nothing: a recording took
1.6 times as long.
"""

from __future__ import annotations

import abc
import ctypes
import sys
import threading
import types
from collections.abc import Callable
from functools import cache
from typing import Any

from tracejit.records import dataclass
from tracejit.runtime import engine

__all__ = ["Tower", "Watcher", "tower"]


@dataclass(frozen=True)
class Watcher:
    """Who is told of the frames that start."""

    starts: Callable[[types.CodeType, Any, types.FrameType | None], bool]
    """(code, globals, the frame above) -> whether the code is fine wherever it runs: then no more is told of it."""
    too_deep: Callable[[], None]
    """The stack has no room to go on watching, which ends here."""


class Tower(abc.ABC):
    """What threads are watched from; each has one watcher at most."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.watched: set[int] = set()  # identities of threads

    def open(self, watcher: Watcher) -> bool:
        """Watch this thread. False where one more cannot be watched."""
        with self.lock:
            if not self.watched and not self.start():
                return False
            self.watched.add(threading.get_ident())
            return self.post(watcher)

    def close(self) -> None:
        """Watch this thread no more; an interrupt may cut this short, so it may be done again."""
        me = threading.get_ident()
        with self.lock:
            self.withdraw(me)
            if not self.watched - {me}:
                self.stop()
            self.watched.discard(me)

    def in_child(self) -> None:
        """After a fork: the other threads are not there."""
        self.lock = threading.RLock()
        gone = self.watched - {threading.get_ident()}
        self.watched -= gone
        for thread in gone:
            self.withdraw(thread)
        if gone and not self.watched:
            self.stop()

    @abc.abstractmethod
    def pause(self) -> Any:
        """Watch this thread no more, until `resume` of what this gives."""

    @abc.abstractmethod
    def resume(self, paused: Any) -> None:
        """Go on as before `pause`."""

    @abc.abstractmethod
    def start(self) -> bool:
        """Before the first thread is watched: whether any can be."""

    @abc.abstractmethod
    def stop(self) -> None:
        """When the last thread is watched no more."""

    @abc.abstractmethod
    def post(self, watcher: Watcher) -> bool:
        """Watch this thread, if there is room."""

    @abc.abstractmethod
    def withdraw(self, thread: int) -> None:
        """Undo `post` of a thread, if there was one."""


class Monitor(Tower):
    """By `sys.monitoring`."""

    def __init__(self) -> None:
        super().__init__()
        self.watchers: dict[int, Watcher] = {}
        self.tool: int | None = None

    def pause(self) -> Watcher | None:
        return self.watchers.pop(threading.get_ident(), None)

    def resume(self, paused: Watcher | None) -> None:
        if paused is not None:
            self.watchers[threading.get_ident()] = paused

    def start(self) -> bool:
        tools: Any = _monitoring()
        # 0, 1, 2 and 5 are meant for debuggers, coverage, profilers and optimizers.
        self.tool = next((i for i in (4, 3, 5, 2, 1, 0) if tools.get_tool(i) is None), None)
        if self.tool is None:
            return False
        tools.use_tool_id(self.tool, "tracejit")
        tools.register_callback(self.tool, tools.events.PY_START, self.starts)
        tools.register_callback(self.tool, tools.events.PY_RESUME, self.starts)
        tools.register_callback(self.tool, tools.events.PY_THROW, self.throws)
        tools.set_events(self.tool, tools.events.PY_START | tools.events.PY_RESUME | tools.events.PY_THROW)
        return True

    def stop(self) -> None:
        tools: Any = _monitoring()
        if self.tool is not None and tools.get_tool(self.tool) == "tracejit":
            tools.set_events(self.tool, 0)
            tools.free_tool_id(self.tool)
        self.tool = None

    def post(self, watcher: Watcher) -> bool:
        self.resume(watcher)
        return True

    def withdraw(self, thread: int) -> None:
        self.watchers.pop(thread, None)

    def starts(self, code: types.CodeType, _: int) -> Any:
        """PY_START and PY_RESUME; of no frame that a callback of monitoring or tracing starts."""
        return _monitoring().DISABLE if self.is_fine(code, sys._getframe(1)) else None  # pyright: ignore[reportPrivateUsage]

    def throws(self, code: types.CodeType, _: int, __: BaseException) -> None:
        """PY_THROW, which cannot be disabled."""
        self.is_fine(code, sys._getframe(1))  # pyright: ignore[reportPrivateUsage]

    def is_fine(self, code: types.CodeType, frame: types.FrameType) -> bool:
        """What this thread's watcher says of a frame."""
        watcher = self.watchers.get(threading.get_ident())
        return watcher is not None and watcher.starts(code, frame.f_globals, frame.f_back)


# Any: it is not there before Python 3.12.
def _monitoring() -> Any:
    return sys.monitoring  # pyright: ignore


_ROOM, _TABLE = 16, 4096
_WORDS = 5  # a thread's slot: its state, or 0; the table of fine code; whom to ask; whom to tell at `lowest`; lowest
# What Python 3.11 lays out so: PyThreadState.tracing; f_globals and f_code of _PyInterpreterFrame.
_TRACING, _GLOBALS, _CODE = 44, 8, 32
# PyObject *eval(PyThreadState *, _PyInterpreterFrame *, int). An exception of whom it asks is raised when the frame has
# run: only then is the frame as the interpreter wants to find it.
_TEXT = f"""
declare ptr @PyObject_CallFunctionObjArgs(ptr, ...)
declare void @Py_DecRef(ptr)
declare void @PyErr_Fetch(ptr, ptr, ptr)
declare void @PyErr_Restore(ptr, ptr, ptr)
declare ptr @llvm.frameaddress.p0(i32)

@slots = internal global [{_ROOM} x [{_WORDS} x ptr]] zeroinitializer
@next = internal global ptr null

define ptr @tj_watch_slots() nounwind {{
  ret ptr @slots
}}
define ptr @tj_watch_next() nounwind {{
  ret ptr @next
}}
define ptr @tj_watch_stack() nounwind {{
  %here = call ptr @llvm.frameaddress.p0(i32 0)
  ret ptr %here
}}

define ptr @tj_watch(ptr %thread, ptr %frame, i32 %throw) nounwind {{
entry:
  %next = load ptr, ptr @next
  br label %search
search:
  %i = phi i64 [ 0, %entry ], [ %i.next, %other ]
  %slot = getelementptr [{_WORDS} x ptr], ptr @slots, i64 %i
  %owner = load ptr, ptr %slot
  %mine = icmp eq ptr %owner, %thread
  br i1 %mine, label %watched, label %other
other:
  %i.next = add i64 %i, 1
  %more = icmp ult i64 %i.next, {_ROOM}
  br i1 %more, label %search, label %go
watched:
  %tracing.p = getelementptr i8, ptr %thread, i64 {_TRACING}
  %tracing = load i32, ptr %tracing.p
  %is.tracing = icmp ne i32 %tracing, 0
  br i1 %is.tracing, label %go, label %room
room:
  %here = call ptr @llvm.frameaddress.p0(i32 0)
  %lowest.p = getelementptr ptr, ptr %slot, i64 4
  %lowest = load ptr, ptr %lowest.p
  %is.deep = icmp ult ptr %here, %lowest
  br i1 %is.deep, label %deep, label %look
look:
  %table.p = getelementptr ptr, ptr %slot, i64 1
  %table = load ptr, ptr %table.p
  %code.p = getelementptr i8, ptr %frame, i64 {_CODE}
  %code = load ptr, ptr %code.p
  %key = ptrtoint ptr %code to i64
  %start = lshr i64 %key, 4
  br label %probe
probe:
  %h = phi i64 [ %start, %look ], [ %h.next, %taken ]
  %at = and i64 %h, {_TABLE - 1}
  %found.p = getelementptr i64, ptr %table, i64 %at
  %found = load i64, ptr %found.p
  %hit = icmp eq i64 %found, %key
  br i1 %hit, label %go, label %miss
miss:
  %free = icmp eq i64 %found, 0
  br i1 %free, label %ask, label %taken
taken:
  %h.next = add i64 %h, 1
  br label %probe
deep:
  store ptr null, ptr %slot
  %tell.p = getelementptr ptr, ptr %slot, i64 3
  %tell = load ptr, ptr %tell.p
  %told = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr %tell, ptr null)
  br label %asked
ask:
  %globals.p = getelementptr i8, ptr %frame, i64 {_GLOBALS}
  %globals = load ptr, ptr %globals.p
  %ask.p = getelementptr ptr, ptr %slot, i64 2
  %ask.o = load ptr, ptr %ask.p
  store ptr null, ptr %slot
  %answer = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr %ask.o, ptr %code, ptr %globals, ptr null)
  store ptr %thread, ptr %slot
  br label %asked
asked:
  %got = phi ptr [ %told, %deep ], [ %answer, %ask ]
  %failed = icmp eq ptr %got, null
  br i1 %failed, label %error, label %answered
answered:
  call void @Py_DecRef(ptr %got)
  br label %go
go:
  %out = tail call ptr %next(ptr %thread, ptr %frame, i32 %throw)
  ret ptr %out
error:
  %kind = alloca ptr
  %value = alloca ptr
  %trace = alloca ptr
  call void @PyErr_Fetch(ptr %kind, ptr %value, ptr %trace)
  %ran = call ptr %next(ptr %thread, ptr %frame, i32 %throw)
  %raised = icmp eq ptr %ran, null
  br i1 %raised, label %own, label %drop
drop:
  call void @Py_DecRef(ptr %ran)
  br label %own
own:
  %k = load ptr, ptr %kind
  %v = load ptr, ptr %value
  %t = load ptr, ptr %trace
  call void @PyErr_Restore(ptr %k, ptr %v, ptr %t)
  ret ptr null
}}
"""


class Evaluation(Tower):
    """By a frame evaluation function, which goes on with the one that was there before."""

    def __init__(self) -> None:
        super().__init__()
        self.posts: dict[int, Post] = {}
        self.installed = False

    def pause(self) -> Post | None:
        if (post := self.posts.get(threading.get_ident())) is None or not post.slot[0]:
            return None
        post.slot[0] = 0
        return post

    def resume(self, paused: Post | None) -> None:
        if paused is not None:
            paused.slot[0] = paused.thread

    def start(self) -> bool:
        native, (put, get) = _native(), _evaluation()
        if not self.installed and (before := get()) != native.function:
            native.next[0] = before
            put(native.function)
        self.installed = True
        return True

    def stop(self) -> None:
        native, (put, get) = _native(), _evaluation()
        if self.installed and get() == native.function:  # else another one goes on with ours, and still does
            put(native.next[0])
            self.installed = False

    def post(self, watcher: Watcher) -> bool:
        taken = {p.index for p in self.posts.values()}
        if (index := next((i for i in range(_ROOM) if i not in taken), None)) is None:
            return False
        post = self.posts[threading.get_ident()] = Post(watcher, index)
        self.resume(post)
        _probe()
        if not post.works:  # others have put theirs in the place of ours meanwhile, and do not go on with it
            self.installed = False
            self.start()
        return True

    def withdraw(self, thread: int) -> None:
        if (post := self.posts.get(thread)) is not None:
            post.slot[0] = 0
            del self.posts[thread], post.asked  # the latter is a cycle that would keep what a recording saw alive


def _probe() -> None:
    """A frame that a thread which is watched must notice."""


class Post:
    """A thread that is watched, as the native function knows it."""

    def __init__(self, watcher: Watcher, index: int) -> None:
        self.watcher, self.index = watcher, index
        self.fine = (ctypes.c_int64 * _TABLE)()  # addresses of code objects, hashed by them
        self.codes: list[types.CodeType] = []  # whose addresses these are
        self.works = False
        self.asked, self.deep = self.ask, watcher.too_deep  # what the slot points at
        here: Any = ctypes.pythonapi.PyThreadState_Get
        here.restype = ctypes.c_void_p
        self.thread: int = here()
        self.slot = _native().slots[index]
        self.slot[1:] = (ctypes.addressof(self.fine), id(self.asked), id(self.deep), _lowest())

    def ask(self, code: types.CodeType, globals: Any) -> None:
        """A frame starts whose code is not in the table."""
        if code is _probe.__code__:
            self.works = True
            return
        above = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        if self.watcher.starts(code, globals, above) and len(self.codes) < _TABLE // 2:
            slot = id(code) >> 4
            while self.fine[slot % _TABLE]:
                slot += 1
            self.codes.append(code)
            self.fine[slot % _TABLE] = id(code)


@dataclass(frozen=True)
class _Native:
    code: engine.Code
    function: int  # the address of the evaluation function
    slots: Any  # arrays of words
    next: Any  # a word: the evaluation function to go on with


@cache
def _native() -> _Native:
    code = engine.compile(_TEXT)

    def variable(name: str) -> int:
        return ctypes.PYFUNCTYPE(ctypes.c_void_p)(code.address(name))() or 0

    word = ctypes.c_ssize_t
    slots = ((word * _WORDS) * _ROOM).from_address(variable("tj_watch_slots"))
    return _Native(code, code.address("tj_watch"), slots, (word * 1).from_address(variable("tj_watch_next")))


@cache
def _evaluation() -> tuple[Callable[[int], None], Callable[[], int]]:
    """(setter, getter) of this interpreter's evaluation function."""
    api: Any = ctypes.pythonapi
    api.PyInterpreterState_Get.restype = ctypes.c_void_p
    interpreter: int = api.PyInterpreterState_Get()
    put, get = api._PyInterpreterState_SetEvalFrameFunc, api._PyInterpreterState_GetEvalFrameFunc
    put.restype, put.argtypes = None, (ctypes.c_void_p, ctypes.c_void_p)
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
    return (lambda function: put(interpreter, function)), (lambda: get(interpreter))


def _lowest() -> int:
    """How far down this thread's stack may grow while it is watched: each Python frame is then one in C, too."""
    own = ctypes.PyDLL(None)  # not CDLL: it gives the GIL away, and other threads keep it for a while
    attributes, start, size = (ctypes.c_long * 16)(), ctypes.c_void_p(), ctypes.c_size_t()
    try:
        own.pthread_self.restype = ctypes.c_void_p
        if not own.pthread_getattr_np(ctypes.c_void_p(own.pthread_self()), attributes):
            own.pthread_attr_getstack(attributes, ctypes.byref(start), ctypes.byref(size))
            own.pthread_attr_destroy(attributes)
            return (start.value or 0) + size.value // 4
    except AttributeError:  # not on this system
        pass
    return ctypes.PYFUNCTYPE(ctypes.c_size_t)(_native().code.address("tj_watch_stack"))() - 128 * 1024


tower: Tower = Monitor() if sys.version_info >= (3, 12) else Evaluation()
