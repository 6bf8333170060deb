"""`dataclass` as in the standard library, whose methods are written when they are first called.

The standard library compiles six functions for each class, a millisecond; this package has two hundred classes, and a
process uses few methods of few of them. Here a class costs a twentieth of that until someone makes an instance.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, field
from typing import Any, TypeVar, dataclass_transform, overload

__all__ = ["dataclass"]

T = TypeVar("T")


@overload
def dataclass(cls: type[T], /) -> type[T]: ...
@overload
def dataclass(*, frozen: bool = False, eq: bool = True, slots: bool = False) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(field_specifiers=(field,))
def dataclass(cls: Any = None, /, *, frozen: bool = False, eq: bool = True, slots: bool = False) -> Any:
    """The standard library's decorator with these of its parameters; `fields`, `replace` and `match` work as there.

    A method that the class defines itself stays.
    """

    def made(cls: type[Any]) -> type[Any]:
        return _made(cls, frozen, eq, slots)

    return made if cls is None else made(cls)


def _made(cls: type[Any], frozen: bool, eq: bool, slots: bool) -> type[Any]:
    own = set(vars(cls))
    cls.__doc__ = cls.__doc__ or ""  # else the standard library writes the signature there, by inspecting it
    made = _with_fields(cls, slots)
    made.__dataclass_params__.frozen = frozen
    methods: dict[str, Any] = {"__init__": _later(made, "__init__", frozen), "__repr__": _repr}
    if eq:
        methods["__eq__"] = _later(made, "__eq__", frozen)
        methods["__hash__"] = _later(made, "__hash__", frozen) if frozen else None
    if frozen:
        methods["__setattr__"], methods["__delattr__"] = _refusing(made, "assign to"), _refusing(made, "delete")
        if slots:
            methods["__getstate__"], methods["__setstate__"] = _state, _set_state
    for name, method in methods.items():
        if name not in own:
            setattr(made, name, method)
    return made


def _with_fields(cls: type[Any], slots: bool) -> Any:
    """The class with its fields and slots and no methods. It is not frozen to the standard library, which would write
    methods for that, and then its bases may not be, either."""
    bases = [vars(b)["__dataclass_params__"] for b in cls.__mro__[1:] if "__dataclass_params__" in vars(b)]
    before = [b.frozen for b in bases]
    for b in bases:
        b.frozen = False
    try:
        return dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
    finally:
        for b, frozen in zip(bases, before, strict=True):
            b.frozen = frozen


def _later(made: type[Any], name: str, frozen: bool) -> Callable[..., Any]:
    """A method that takes its own place when it is first called."""

    def first(*args: Any, **kwargs: Any) -> Any:
        written = _WRITERS[name](made, frozen)
        written.__qualname__ = f"{made.__qualname__}.{name}"
        if vars(made)[name] is first:
            setattr(made, name, written)
        return written(*args, **kwargs)

    first.__name__, first.__qualname__ = name, f"{made.__qualname__}.{name}"
    return first


def _written(head: str, lines: list[str], names: dict[str, Any]) -> Callable[..., Any]:
    found: dict[str, Any] = {}
    names["__name__"] = __name__  # whose frames these are
    exec("\n ".join([head, *(lines or ["pass"])]), names, found)
    (function,) = found.values()
    return function


def _init(made: type[Any], frozen: bool) -> Callable[..., Any]:
    """def __init__(self, a, b=_default_b, *, c): ..."""
    names: dict[str, Any] = {"_set": object.__setattr__, "_MISSING": MISSING}
    by_place, by_name, lines = ["self"], list[str](), list[str]()
    for f in dataclasses.fields(made):
        value, given = f.name, f.name
        if f.default is not MISSING:
            names[f"_default_{f.name}"] = f.default
            given = f"{f.name}=_default_{f.name}"
        elif f.default_factory is not MISSING:
            names[f"_make_{f.name}"] = f.default_factory
            given = f"{f.name}=_MISSING"
            value = f"_make_{f.name}() if {f.name} is _MISSING else {f.name}"
        if f.init:
            (by_name if f.kw_only else by_place).append(given)
        elif f.default is not MISSING:
            value = f"_default_{f.name}"
        elif f.default_factory is not MISSING:
            value = f"_make_{f.name}()"
        else:
            continue
        lines.append(f"_set(self, {f.name!r}, {value})" if frozen else f"self.{f.name} = {value}")
    if hasattr(made, "__post_init__"):
        lines.append("self.__post_init__()")
    return _written(f"def __init__({', '.join([*by_place, *(['*', *by_name] if by_name else [])])}):", lines, names)


def _compared(made: type[Any], of: str) -> str:
    return "".join(f"{of}.{f.name}, " for f in dataclasses.fields(made) if f.compare)


def _eq(made: type[Any], _: bool) -> Callable[..., Any]:
    lines = [
        "if other.__class__ is self.__class__:",
        f"    return ({_compared(made, 'self')}) == ({_compared(made, 'other')})",
        "return NotImplemented",
    ]
    return _written("def __eq__(self, other):", lines, {"NotImplemented": NotImplemented})


def _hash(made: type[Any], _: bool) -> Callable[..., Any]:
    return _written("def __hash__(self):", [f"return hash(({_compared(made, 'self')}))"], {"hash": hash})


_WRITERS: dict[str, Callable[[type[Any], bool], Callable[..., Any]]] = {
    "__init__": _init,
    "__eq__": _eq,
    "__hash__": _hash,
}


def _shown(x: Any) -> list[Field[Any]]:
    return [f for f in dataclasses.fields(x) if f.repr]


def _repr(self: Any) -> str:
    return f"{type(self).__qualname__}({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in _shown(self))})"


def _refusing(made: type[Any], what: str) -> Callable[..., None]:
    """`__setattr__` or `__delattr__` of a frozen class; subclasses that are none may have more attributes."""
    names = {f.name for f in dataclasses.fields(made)}
    method = "__setattr__" if what == "assign to" else "__delattr__"

    def refuse(self: Any, name: str, *value: Any) -> None:
        if type(self) is made or name in names:
            raise FrozenInstanceError(f"cannot {what} field {name!r}")
        getattr(super(made, self), method)(name, *value)

    return refuse


def _state(self: Any) -> list[Any]:
    return [getattr(self, f.name) for f in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for f, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, f.name, value)
