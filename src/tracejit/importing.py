"""Importing at first use."""

from __future__ import annotations

import gc
import importlib
import sys
from types import ModuleType

__all__ = ["bring"]


def bring(name: str) -> ModuleType:
    """The module `name`, imported where it is not yet, without garbage collections: all that an import makes stays."""
    if (found := sys.modules.get(name)) is not None:
        return importlib.import_module(name) if getattr(found.__spec__, "_initializing", False) else found
    collects = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        if collects:
            gc.enable()
