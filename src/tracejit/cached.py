"""Attributes computed when first asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

__all__ = ["cached_property"]

T = TypeVar("T")


class cached_property(Generic[T]):
    """`functools.cached_property` without the lock that it has up to Python 3.11: one for all objects of a class, which
    a forked child may inherit held by a thread that is not there. Two threads may both compute: results are equal."""

    def __init__(self, f: Callable[[Any], T]) -> None:
        self.f = f
        self.__doc__ = f.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, x: None, owner: Any = None) -> Self: ...
    @overload
    def __get__(self, x: object, owner: Any = None) -> T: ...
    def __get__(self, x: Any, owner: Any = None) -> Any:
        if x is None:
            return self
        return x.__dict__.setdefault(self.name, self.f(x))
