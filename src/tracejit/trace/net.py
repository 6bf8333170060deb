"""Opening a recording around a call, with a profile function as the net under it.

The net refuses a recording in which a Python frame ran that is neither instrumented nor the library's: C code called
back into Python where no hook saw it.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from tracejit.trace import calls
from tracejit.trace import hooks as hooks  # fills the table of hooks
from tracejit.trace.domain import is_library, is_recorder
from tracejit.trace.instrument import is_instrumented
from tracejit.trace.recorder import Recorder, opened

__all__ = ["run"]


def _net(r: Recorder) -> Callable[[types.FrameType, str, Any], None]:
    """A profile function that refuses Python frames nobody recorded."""
    known: dict[int, bool] = {}  # id of code object -> fine wherever it is called
    keep = r.keep

    def seen(frame: types.FrameType, event: str, arg: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        if (fine := known.get(id(code))) is None:
            name = frame.f_globals.get("__name__")
            fine = known[id(code)] = is_instrumented(code) or is_library(name) or is_recorder(name) or name == "abc"
            keep.append(code)
        if fine:
            return
        above: Any = frame.f_back  # NumPy's and the standard library's own frames are fine right below our library
        while above is not None and not known.get(id(above.f_code), False):
            above = above.f_back
        if (
            above is None
            or not is_library(above.f_globals.get("__name__"))
            or not _is_support(frame.f_globals.get("__name__"))
        ):
            r.refuse(f"Python code ran unseen: {code.co_qualname}")

    return seen


_SUPPORT = """
    numpy ml_dtypes functools contextlib abc enum dataclasses collections typing weakref threading os genericpath
    posixpath operator importlib copy copyreg warnings math itertools
"""


def _is_support(module: Any) -> bool:
    """Whether the library may use a module: its frames are fine right below ours."""
    return isinstance(module, str) and module.partition(".")[0] in _SUPPORT.split()


def run(r: Recorder, f: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], *, net: bool) -> Any:
    """f(*args, **kwargs) inside recording r, with the net under it or not (it is most of the cost of a recording)."""
    profile, limit = sys.getprofile(), sys.getrecursionlimit()
    r.invoke = functools.partial(calls.call, r)
    with opened(r):
        # A hook is three Python frames; user code that recurses deep must not notice them.
        sys.setrecursionlimit(limit * 4)
        if net:
            sys.setprofile(_net(r))
        try:
            return r.invoke(f, args, kwargs)
        finally:
            del r.invoke  # a cycle would keep what the recording saw alive
            sys.setprofile(profile)
            sys.setrecursionlimit(limit)
