"""Configuration: one frozen `Config`, one `with config(...)`; the environment is read here only.

Also home of the per-thread modes (grad mode). Every trace guards on the modes and settings it read.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any, ClassVar

from tracejit.records import dataclass

__all__ = ["CHANNELS", "Config", "current", "modes", "override", "period", "update"]

CHANNELS = ("recompiles", "guards", "fusion", "kernels", "cache", "fallback")  # what `logs` may name

LOADED = time.time()  # this package; a source file younger than that is not the one that runs


def _flag(name: str) -> bool:
    return os.environ.get(name, "") not in ("", "0", "false", "no")


def _channels(names: str) -> tuple[str, ...]:
    found = tuple(filter(None, (name.strip() for name in names.split(","))))
    if unknown := [name for name in found if name not in CHANNELS]:
        warnings.warn(f"TRACEJIT_LOGS: no channel {unknown[0]!r}; channels are {', '.join(CHANNELS)}", stacklevel=2)
    return found


def period(verify: object) -> int:
    """Every how many calls: 1000 for 1000, 1/1000 or "1/1000"; 1 for True, 0 for False. ValueError for the rest."""
    try:
        above, _, below = str(verify).partition("/") if isinstance(verify, str) else (verify, "", "")
        x = float(above) / float(below or 1)  # type: ignore[arg-type]
    except (TypeError, ValueError, ZeroDivisionError):
        x = -1.0
    if not (0 <= x < 1 or (1 <= x < 2**53 and x == int(x))):
        raise ValueError(f"verify is a number of calls or a fraction of them, such as 1000 or 1/1000, not {verify!r}")
    return round(1 / x) if 0 < x < 1 else round(x)


def _count(name: str) -> int:
    text = os.environ.get(name, "") or "0"
    if not text.strip().isdecimal():
        raise ValueError(f"{name} is a number of threads, 0 for as many as there are cores, not {text!r}")
    return int(text)


@dataclass(frozen=True)
class Config:
    """All settings. Change with `tracejit.config.update(...)` or for a while with `tracejit.config.override(...)`."""

    eager: bool = False  # TRACEJIT_EAGER=1: compile nothing
    backend: str = "llvm"  # llvm, numba, interpret
    eager_kernels: bool = True  # TRACEJIT_EAGER_KERNELS=0: eager code op by op, by NumPy
    default_dtype: str = "f32"  # of Python floats and factory functions
    threads: int = 0  # 0: as many as cores
    deterministic: bool = False  # asked for by `use_deterministic_algorithms`; kernels are, in any case
    deterministic_warn_only: bool = False
    cache_dir: str = ""  # TRACEJIT_CACHE_DIR; "" means the user's cache folder
    dump: str = ""  # TRACEJIT_DUMP: folder for the text after each pass
    verify_passes: bool = False  # TRACEJIT_VERIFY_PASSES=1: run the IR verifier after each pass
    logs: tuple[str, ...] = ()  # TRACEJIT_LOGS=recompiles,guards,...: see CHANNELS
    verify: int = 0  # TRACEJIT_VERIFY=1/1000: every n-th compiled call of a trace is held against plain Python; 0: none
    hot: int = 2  # the call that is recorded first; compiled by call hot + 2
    record_twice: bool = False  # TRACEJIT_RECORD_TWICE=1: even where an earlier process recorded the same twice
    max_traces: int = 16  # traces kept per function

    @classmethod
    def from_environment(cls) -> Config:
        """Defaults, overridden by TRACEJIT_* variables."""
        env = os.environ
        return cls(
            eager=_flag("TRACEJIT_EAGER"),
            backend=env.get("TRACEJIT_BACKEND", cls.backend),
            eager_kernels=env.get("TRACEJIT_EAGER_KERNELS", "1") not in ("", "0", "false", "no"),
            threads=_count("TRACEJIT_THREADS"),
            cache_dir=env.get("TRACEJIT_CACHE_DIR", ""),
            dump=env.get("TRACEJIT_DUMP", ""),
            verify_passes=_flag("TRACEJIT_VERIFY_PASSES"),
            record_twice=_flag("TRACEJIT_RECORD_TWICE"),
            logs=_channels(env.get("TRACEJIT_LOGS", "")),
            verify=period(env.get("TRACEJIT_VERIFY", "0")),
        )


class _Now:
    """Holds the configuration in force, where a native entry can see it."""

    __slots__ = ("settings",)

    def __init__(self, settings: Config) -> None:
        self.settings = settings


@lru_cache(maxsize=64)
def _one(settings: Config) -> Config:
    """The same object for equal settings: traces are kept by it, so that going back finds them."""
    return settings


now = _Now(_one(Config.from_environment()))


def current() -> Config:
    """The configuration in force."""
    return now.settings


def update(**settings: Any) -> None:
    """Change settings for the process. Raises TypeError naming an unknown setting."""
    known = {f.name for f in fields(Config)}
    if bad := set(settings) - known:
        raise TypeError(f"no setting named {sorted(bad)[0]!r}; settings are {', '.join(sorted(known))}")
    now.settings = _one(replace(now.settings, **settings))


@contextmanager
def override(**settings: Any) -> Generator[None]:
    """Change settings inside a `with` block."""
    before = now.settings
    update(**settings)
    try:
        yield
    finally:
        now.settings = before


class Modes:
    """The modes of one thread. An object of its own with slots, so that a native entry can read it as memory."""

    __slots__ = ("anomaly", "autocast", "eager", "grad", "recorder", "whole")
    at_end: ClassVar[Callable[..., Any] | None] = None  # called in a thread that ends

    def __init__(self) -> None:
        self.grad = True  # ops are taped
        self.anomaly = False  # backward passes look for NaN
        self.autocast: int | None = None  # products run in a narrow float: which one, as `tensor.autocast` numbers them
        self.recorder: Any = None  # the open recording
        self.eager = 0  # blocks in which compiled functions run as plain Python
        self.whole = True  # composed functions run as one op, where nobody wants to see more

    def __del__(self) -> None:
        if (forget := type(self).at_end) is not None:
            forget(None)


class _Modes(threading.local):
    """Per-thread modes that change what an op means; traces guard on them. `here` is those of this thread."""

    def __init__(self) -> None:
        self.here = Modes()

    @property
    def grad(self) -> bool:
        """Whether ops are taped."""
        return self.here.grad

    @grad.setter
    def grad(self, value: bool) -> None:
        self.here.grad = value


modes = _Modes()
