"""Grad mode: whether ops are taped, in this thread."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from tracejit import config
from tracejit.trace import recorder as recording

__all__ = ["enable_grad", "grad_mode", "inference_mode", "is_grad_enabled", "no_grad", "set_grad_enabled"]

modes = config.modes


def is_grad_enabled() -> bool:
    """Whether ops are taped in this thread."""
    r = recording.active()
    return modes.grad if r is None else r.read_mode("grad", modes.grad)


class set_grad_enabled:
    """Switch taping on or off: at once, and for the block where used in a `with`. Also a decorator."""

    def __init__(self, mode: bool) -> None:
        self.before = modes.grad
        self.mode = bool(mode)
        self._switch(self.mode)

    @staticmethod
    def _switch(mode: bool) -> None:
        here = modes.here
        if here.recorder is not None:
            here.recorder.read_mode("grad", here.grad)
        here.grad = mode

    def __enter__(self) -> None:
        self._switch(self.mode)

    def __exit__(self, *exc: object) -> None:
        self._switch(self.before)

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        self._switch(self.before)
        mode = self.mode

        @wraps(fn)
        def with_mode(*args: Any, **kwargs: Any) -> Any:
            with set_grad_enabled(mode):
                return fn(*args, **kwargs)

        return with_mode


class _Blocks(type):
    """Makes a block in a third of the time that `__new__` would take: it is as much as a small compiled call."""

    def __call__(cls, fn: Any = None) -> Any:
        self: Any = object.__new__(cls)
        self.before = None
        return self(fn) if callable(fn) else self


class _GradBlock(metaclass=_Blocks):
    """A `with` block or decorator that sets the grad mode inside only."""

    __slots__ = ("before",)
    mode = False
    before: Any  # (the mode outside, the same for the block around this one where it is entered again) or None

    def __enter__(self) -> None:
        here = modes.here
        if here.recorder is not None:
            here.recorder.read_mode("grad", here.grad)
        self.before = here.grad, self.before
        here.grad = self.mode

    def __exit__(self, *exc: object) -> None:
        here = modes.here
        if here.recorder is not None:
            here.recorder.read_mode("grad", here.grad)
        here.grad, self.before = self.before

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        block = type(self)

        @wraps(fn)
        def with_mode(*args: Any, **kwargs: Any) -> Any:
            with block():
                return fn(*args, **kwargs)

        return with_mode


class no_grad(_GradBlock):
    """Ops inside are not taped. Use as `with no_grad():` or `@no_grad()`."""

    __slots__ = ()


class inference_mode(_GradBlock):
    """As `no_grad`."""

    __slots__ = ()


class enable_grad(_GradBlock):
    """Ops inside are taped."""

    __slots__ = ()

    mode = True


@contextmanager
def grad_mode(mode: bool) -> Generator[None]:
    """Grad mode for the library's own use: not reported to a recording."""
    before = modes.grad
    modes.grad = mode
    try:
        yield
    finally:
        modes.grad = before


def set_anomaly(mode: bool) -> bool:
    """Whether backward passes look for NaN, from now on, in this thread; returns what it was."""
    if (r := recording.active()) is not None:
        r.refuse("looks for NaN in gradients")
    before, modes.here.anomaly = modes.here.anomaly, mode
    return before
