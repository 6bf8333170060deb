"""Process-wide settings users change through functions: default dtype, thread count, determinism. All are part of the
guard of every compiled call."""

from __future__ import annotations

from typing import Any

from tracejit import config
from tracejit.ir.dtype import DType
from tracejit.tensor.creation import default_dtype
from tracejit.trace import recorder as recording

__all__ = [
    "are_deterministic_algorithms_enabled", "get_default_dtype", "get_deterministic_debug_mode", "get_num_threads",
    "is_deterministic_algorithms_warn_only_enabled", "set_default_dtype", "set_deterministic_debug_mode",
    "set_num_threads", "use_deterministic_algorithms",
]  # fmt: skip


def set_default_dtype(d: Any) -> None:
    """Set the dtype of Python floats and factory functions. Raises TypeError for a type that is not floating point."""
    if not isinstance(d, DType) or not d.is_floating_point:
        raise TypeError(f"the default dtype must be a floating point dtype, got {d}")
    if (r := recording.active()) is not None:
        r.refuse("sets the default dtype")
    config.update(default_dtype=d.name)


def get_default_dtype() -> DType:
    """The dtype of Python floats and factory functions."""
    return default_dtype()


def set_num_threads(n: int) -> None:
    """Use n threads in compiled code. Raises ValueError below 1."""
    if n < 1:
        raise ValueError(f"the number of threads must be at least 1, got {n}")
    config.update(threads=int(n))


def get_num_threads() -> int:
    """Threads compiled code uses; 0 means as many as cores."""
    return config.current().threads


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Ask for algorithms that give the same bits whenever they are given the same.

    There is nothing to switch: no kernel here is otherwise. Sums have a fixed tree, nothing is added up in the order in
    which threads arrive, random numbers are counted, `empty` is zeros; so compiled code gives the same bits with any
    number of threads. (Eager products are those of NumPy's BLAS, which is as deterministic as it was built to be.)
    Hence nothing raises, and nothing warns. The flags are kept for programs that ask for them, and a compiled call
    guards on them as on every setting.
    """
    given: tuple[object, ...] = (mode, warn_only)
    if not all(type(x) is bool for x in given):
        raise TypeError(f"use_deterministic_algorithms takes bools, got mode={mode!r}, warn_only={warn_only!r}")
    config.update(deterministic=mode, deterministic_warn_only=warn_only)


def are_deterministic_algorithms_enabled() -> bool:
    """Whether `use_deterministic_algorithms` asked for them."""
    return config.current().deterministic


def is_deterministic_algorithms_warn_only_enabled() -> bool:
    """Whether it was asked to warn only."""
    return config.current().deterministic_warn_only


_DEBUG = ("default", "warn", "error")


def set_deterministic_debug_mode(debug_mode: int | str) -> None:
    """`use_deterministic_algorithms` by a number or a name: 0 "default", 1 "warn", 2 "error"."""
    known: tuple[Any, ...] = (*_DEBUG, 0, 1, 2)
    if type(debug_mode) not in (int, str) or debug_mode not in known:
        raise ValueError(f"the debug mode is 0 'default', 1 'warn' or 2 'error', not {debug_mode!r}")
    level = known.index(debug_mode) % 3
    use_deterministic_algorithms(level > 0, warn_only=level == 1)


def get_deterministic_debug_mode() -> int:
    """The number that `set_deterministic_debug_mode` takes."""
    now = config.current()
    return 0 if not now.deterministic else 1 if now.deterministic_warn_only else 2
