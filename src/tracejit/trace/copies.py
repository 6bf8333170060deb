"""Instrumented copies of code kept in the store: a process that finds one neither rewrites nor imports the rewriter.

What is kept is the copy's parts with its constants by name: hooks and operators by theirs, what it shares with the
original by position. A copy is kept only if it comes back equal.
"""

from __future__ import annotations

import marshal
import operator
import sys
import types
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from tracejit.runtime import store

__all__ = ["find", "keep"]

_PARTS = (
    *("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_nlocals", "co_stacksize", "co_flags"),
    *("co_linetable", "co_exceptiontable", "co_firstlineno", "co_argcount", "co_posonlyargcount"),
    *("co_kwonlyargcount", "co_name", "co_qualname", "co_filename"),
)
_OPERATORS = {id(f): n for n, f in vars(operator).items() if n[:2] != "__" and callable(f)}


@cache
def _rewriter() -> bytes:
    """What decides how code is rewritten, or nothing where that cannot be read."""
    try:
        return sys.version.encode() + Path(__file__).with_name("instrument.py").read_bytes()
    except OSError:
        return b""


def _key(code: types.CodeType) -> str:
    # Version 2 of the format has no back references, so equal code gives equal bytes in every process.
    return "copy-" + sha256(_rewriter() + marshal.dumps(code, 2)).hexdigest()


def find(code: types.CodeType, named: Mapping[str, Any]) -> types.CodeType | None:
    """The copy of `code` that was kept, its constants found among `named`; None where there is none."""
    data = store.get(_key(code)) if _rewriter() else None
    if data is None:
        return None
    try:
        return _build(code, data, named)
    except (EOFError, ValueError, TypeError, KeyError, IndexError):  # written by something else
        return None


def keep(code: types.CodeType, copy: types.CodeType, named: Mapping[str, Any]) -> None:
    """Keep `copy` for the processes to come, where it can be."""
    names = {id(v): n for n, v in named.items()}
    constants = [_name(c, code, names) for c in copy.co_consts]
    if not _rewriter() or None in constants:
        return
    data = marshal.dumps((constants, [getattr(copy, p) for p in _PARTS]))
    if _build(code, data, named) == copy:
        store.put(_key(code), data)


def _name(x: Any, code: types.CodeType, names: Mapping[int, str]) -> tuple[str, Any] | None:
    if id(x) in names:
        return ("named", names[id(x)])
    if id(x) in _OPERATORS:
        return ("operator", _OPERATORS[id(x)])
    for i, c in enumerate(code.co_consts):
        if c is x:
            return ("constant", i)
    plain = x is None or type(x) in (str, int, bool) or (type(x) is tuple and all(type(v) is str for v in x))
    return ("plain", x) if plain else None


def _build(code: types.CodeType, data: bytes, named: Mapping[str, Any]) -> types.CodeType:
    constants, parts = marshal.loads(data)
    homes: dict[str, Any] = {"named": named, "operator": vars(operator), "constant": code.co_consts}
    consts = tuple([x if kind == "plain" else homes[kind][x] for kind, x in constants])
    return code.replace(co_consts=consts, **dict(zip(_PARTS, parts)))
