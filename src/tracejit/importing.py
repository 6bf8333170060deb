"""Importing at first use."""

from __future__ import annotations

import gc
import importlib
import sys
from types import ModuleType

__all__ = ["bring"]


def bring(name: str) -> ModuleType:
    """The module `name`, imported where it is not yet, without garbage collections: all that an import makes stays."""
    collects = name not in sys.modules and gc.isenabled()
    try:
        if collects:
            gc.disable()
        return importlib.import_module(name)
    finally:
        if collects:
            gc.enable()
