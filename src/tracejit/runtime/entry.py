"""The way from Python into a program without ctypes: a builtin function that reads the arrays' addresses itself.

ctypes takes 800 ns for the call and 300 ns for the address of each array; this takes 100 ns and 2 ns.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from tracejit.runtime import engine, walker

__all__ = ["builtin", "enter", "method"]

_HEADER: Final = object.__basicsize__
_FASTCALL: Final = 0x80

# int enter(int program, int frame, int team, ndarray *externals): what the walker returns
_TEXT = f"""
declare i64 @tj_walk(ptr, ptr, ptr, ptr)
declare ptr @PyLong_AsVoidPtr(ptr)
declare ptr @PyLong_FromLongLong(i64)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)

define ptr @tj_enter(ptr %self, ptr %args, i64 %count) nounwind {{
entry:
  %externals = sub i64 %count, 3
  %pointers = alloca ptr, i64 %externals
  %first = getelementptr ptr, ptr %args, i64 3
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i.next, %bind ]
  %more = icmp slt i64 %i, %externals
  br i1 %more, label %bind, label %run
bind:
  %array.p = getelementptr ptr, ptr %first, i64 %i
  %array = load ptr, ptr %array.p
  %data.p = getelementptr i8, ptr %array, i64 {_HEADER}
  %data = load ptr, ptr %data.p
  %pointer.p = getelementptr ptr, ptr %pointers, i64 %i
  store ptr %data, ptr %pointer.p
  %i.next = add i64 %i, 1
  br label %next
run:
  %program.o = load ptr, ptr %args
  %program = call ptr @PyLong_AsVoidPtr(ptr %program.o)
  %frame.p = getelementptr ptr, ptr %args, i64 1
  %frame.o = load ptr, ptr %frame.p
  %frame = call ptr @PyLong_AsVoidPtr(ptr %frame.o)
  %team.p = getelementptr ptr, ptr %args, i64 2
  %team.o = load ptr, ptr %team.p
  %team = call ptr @PyLong_AsVoidPtr(ptr %team.o)
  %thread = call ptr @PyEval_SaveThread()
  %failed = call i64 @tj_walk(ptr %program, ptr %frame, ptr %pointers, ptr %team)
  call void @PyEval_RestoreThread(ptr %thread)
  %result.o = call ptr @PyLong_FromLongLong(i64 %failed)
  ret ptr %result.o
}}
"""


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


@cache
def enter() -> Callable[..., int]:
    """`enter(program, frame, team, *arrays)`: the failed check, or -1. It takes arrays that are exactly ndarrays."""
    walk = walker.native().code
    return builtin(engine.compile(_TEXT, symbols={"tj_walk": walk.address("tj_walk")}, needs=[walk]), "tj_enter")


def builtin(code: engine.Code, symbol: str) -> Callable[..., int]:
    """`PyObject *symbol(PyObject *self, PyObject **args, Py_ssize_t count)` of `code` as a function of Python."""
    return _made(_definition(code, symbol), None)


def method(code: engine.Code, symbol: str) -> Callable[[object], Callable[..., Any]]:
    """... as a function from an object, which is `self` and lives as long, to a function of Python."""
    definition = _definition(code, symbol)
    return lambda x: _made(definition, id(x))


def _definition(code: engine.Code, symbol: str) -> _MethodDef:
    definition = _MethodDef(symbol.encode(), code.address(symbol), _FASTCALL, None)
    _for_ever.append((code, definition))
    return definition


def _made(definition: _MethodDef, of: int | None) -> Callable[..., Any]:
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    return make(ctypes.addressof(definition), of, None)


_for_ever: list[object] = []  # what the builtin points at
