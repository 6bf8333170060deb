"""Process-wide settings users change through functions: default dtype and thread count."""

from __future__ import annotations

from typing import Any

from tracejit import config
from tracejit.ir.dtype import DType
from tracejit.tensor.creation import default_dtype
from tracejit.trace import recorder as recording

__all__ = ["get_default_dtype", "get_num_threads", "set_default_dtype", "set_num_threads"]


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
