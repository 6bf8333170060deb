"""Which function each hook of `instrument.py` runs, and the hooks that belong nowhere else.

With no recording open every hook is the plain operation. Hooks run no user code of their own accord: whatever Python
function an operation would call is called through `Recorder.invoke`, so that it runs instrumented. What cannot be
re-expressed is refused and done plainly: a refused recording still gives right answers.
"""

from __future__ import annotations

import builtins
import functools
import sys
import types
from typing import Any

from tracejit.trace import attributes, calls, instrument, iteration, loops, models, operators, writes
from tracejit.trace.attributes import Function, attribute
from tracejit.trace.objects import ABSENT, describe, plain_numbers
from tracejit.trace.recorder import active
from tracejit.trace.scalars import OPAQUE

__all__: list[str] = []


def import_name(name: str) -> None:
    if (r := active()) is None:
        return
    parts = name.split(".")
    for i in range(1, len(parts) + 1):
        part = ".".join(parts[:i])
        if part not in sys.modules:
            r.refuse(f"imports {part} for the first time")
        r.cell("item", sys.modules, part, sys.modules.get(part, ABSENT))
    r.cell("item", builtins.__dict__, "__import__", builtins.__import__)


def import_from(operands: tuple[Any, str]) -> Any:
    module, name = operands
    r = active()
    try:
        return getattr(module, name) if r is None else attribute(r, module, name)
    except AttributeError:
        full = f"{getattr(module, '__name__', '')}.{name}"
        if full in sys.modules:
            return sys.modules[full] if r is None else r.cell("item", sys.modules, full, sys.modules[full])
        raise ImportError(f"cannot import name {name!r} from {getattr(module, '__name__', module)!r}") from None


def make_function(f: Any) -> Any:
    if (r := active()) is not None:
        r.made(f)
        for c in f.__closure__ or ():
            if id(c) not in r.outer_cells:
                r.made(c)
    return f


def make_container(x: Any) -> Any:
    if (r := active()) is None:
        return x
    if type(x) in (set, dict) and any(type(key) in OPAQUE for key in x):
        old = list(x.items()) if type(x) is dict else list(x)
        x.clear()  # keys were hashed and compared
        x.update([(r.reveal(k), v) for k, v in old] if type(x) is dict else map(r.reveal, old))
    return r.made(x)


def reveal(x: Any) -> Any:
    r = active()
    return x if r is None else r.reveal(x)


def yielded(x: Any) -> Any:
    """x leaves a generator, which may outlive the recording it was made in."""
    return plain_numbers(x, {}) if active() is None else x


def load_cell(operands: tuple[Any, Any]) -> Any:
    """The value of a variable of an enclosing function, with its cell."""
    value, cell = operands
    if (r := active()) is None or id(cell) in r.fresh:
        return value
    return r.read("closure", cell, None, value)


def effect(what: str) -> None:
    if (r := active()) is not None:
        r.refuse(what)


def catch(cls: Any) -> Any:
    if (r := active()) is not None:
        for c in cls if isinstance(cls, tuple) else (cls,):
            if isinstance(c, type):
                r.cell("mro", c, None, c.__mro__)
    return cls


def throw(x: Any) -> Any:
    if (r := active()) is not None:
        r.raises(x)
    return x


def enter(manager: Any) -> tuple[Any, Any]:
    """`with manager`: (what __enter__ returned, what to call at the end)."""
    r = active()
    t = type(manager)
    if r is None:
        leave = types.MethodType(t.__exit__, manager)
        return t.__enter__(manager), leave
    r.type_of(manager)
    begin, end = r.lookup(t, "__enter__"), r.lookup(t, "__exit__")
    if not (isinstance(begin, Function) and isinstance(end, Function)):
        r.refuse(f"`with` on {describe(manager)}")
        return t.__enter__(manager), functools.partial(t.__exit__, manager)

    def leave(*exc: Any) -> Any:  # called by CALL and by WITH_EXCEPT_START alike
        now = active()
        return end(manager, *exc) if now is None else now.invoke(end, (manager, *exc))

    return r.invoke(begin, (manager,)), r.made(leave)


_HOMES = {
    attributes: ("load_global", "load_attr", "load_super"),
    writes: ("store_attr", "delete_attr", "store_subscript", "delete_subscript", "store_global", "store_cell"),
    operators: (
        "load_item",
        "binary",
        "unary",
        "compare",
        "contains",
        "identical",
        "truth",
    ),
    iteration: ("iterate", "delegate", "unpack", "update", "format", "format_value", "build_string"),
    calls: ("call_hook", "call_kw", "call_ex", "call_super"),
    models: ("match",),
    loops: ("turn", "advance"),
    sys.modules[__name__]: (
        *("import_name", "import_from", "make_function", "make_container", "reveal"),
        *("load_cell", "yielded"),
        *("effect", "catch", "throw", "enter"),
    ),
}
instrument.install({n.removesuffix("_hook"): getattr(m, n) for m, names in _HOMES.items() for n in names})
