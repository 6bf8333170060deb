"""`Parameter`: a tensor that a Module finds by itself when it is assigned as an attribute."""

from __future__ import annotations

from typing import Any

from tracejit.tensor.tensor import Tensor, fill
from tracejit.trace import recorder as recording

__all__ = ["Buffer", "Parameter"]


class Parameter(Tensor):
    """`data` as a trainable leaf: the same memory, `requires_grad` on unless told otherwise."""

    def __init__(self, data: Any = None, requires_grad: bool = True) -> None:
        super().__init__(None)
        _share(self, data)
        if requires_grad:
            self.requires_grad_(True)

    def __repr__(self) -> str:
        return "Parameter containing:\n" + super().__repr__()


class Buffer(Tensor):
    """`data` as state of a Module that is not trained; kept in `state_dict` where `persistent`."""

    persistent: bool

    def __init__(self, data: Any = None, *, persistent: bool = True) -> None:
        super().__init__(None)
        _share(self, data)
        self.persistent = persistent


def _share(handle: Tensor, data: Any) -> None:
    """Let `handle` stand for data's memory."""
    if data is None:
        return
    if not isinstance(data, Tensor):
        raise TypeError(f"{type(handle).__name__} wants a Tensor, got {type(data).__name__}")
    if (r := recording.active()) is not None:
        r.refuse(f"creates a {type(handle).__name__}")
    fill(handle, data._array)  # pyright: ignore[reportPrivateUsage]
    handle._version = data._version  # pyright: ignore[reportPrivateUsage]
