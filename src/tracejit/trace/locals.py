"""The variables of a running frame, to read and, where this Python lets us, to replace."""

from __future__ import annotations

import ctypes
import sys
import types
from collections.abc import Mapping
from typing import Any

__all__ = ["read_locals", "write_locals"]

_LIVE = sys.version_info >= (3, 13)  # f_locals is the frame itself, not a copy that the frame keeps
_to_frame: Any = None if _LIVE else ctypes.pythonapi.PyFrame_LocalsToFast
if _to_frame is not None:
    _to_frame.argtypes, _to_frame.restype = (ctypes.py_object, ctypes.c_int), None


def read_locals(frame: types.FrameType) -> dict[str, Any]:
    """Names and values, those of enclosing functions included."""
    found: Any = frame.f_locals
    out = dict(found)
    if not _LIVE:
        found.clear()  # else it would keep what the program drops
    return out


def write_locals(frame: types.FrameType, values: Mapping[str, Any]) -> bool:
    """Give variables that have a value another one; whether that was possible."""
    found: Any = frame.f_locals
    found.update(values)
    if _to_frame is not None:
        _to_frame(frame, 0)
        found.clear()
    now = read_locals(frame)
    return all(now.get(name) is v for name, v in values.items())
