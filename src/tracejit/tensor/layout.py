"""PyTorch's words for memory layouts.

Tensors here are row-major, or views of row-major memory: the words are understood, and change no value and no layout.
"""

from __future__ import annotations

from enum import Enum

__all__ = [
    "Layout",
    "MemoryFormat",
    "channels_last",
    "channels_last_3d",
    "contiguous_format",
    "preserve_format",
    "strided",
]


class MemoryFormat(Enum):
    """What `memory_format=` takes."""

    contiguous_format = "contiguous_format"
    preserve_format = "preserve_format"
    channels_last = "channels_last"
    channels_last_3d = "channels_last_3d"

    def __repr__(self) -> str:
        return f"tracejit.{self.value}"


class Layout(Enum):
    """What `layout=` takes: there are no sparse tensors."""

    strided = "strided"

    def __repr__(self) -> str:
        return f"tracejit.{self.value}"


contiguous_format, preserve_format, channels_last, channels_last_3d = MemoryFormat
strided = Layout.strided
