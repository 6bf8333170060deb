"""What tracing must know about tensors: `trace` lies below `tensor`, so the Tensor layer hands this in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Anatomy", "Array", "Domain", "is_library", "is_recorder"]

Array = np.ndarray[Any, np.dtype[Any]]

# Packages whose Python code reports what it reads to the recorder, so it runs plain. nn, optim, data and all user
# code are instrumented instead. nn.functional is functions of arguments and modes only.
_FOLDERS = "tensor ops ir passes codegen runtime config errors nn.functional nn.parameter trace.builder"
_LIBRARY = frozenset(("tracejit", *(f"tracejit.{name}" for name in _FOLDERS.split())))
_BELOW = tuple(f"tracejit.{name}." for name in _FOLDERS.split())


def is_library(module: Any) -> bool:
    """True for names of modules that run plain and report their own reads."""
    return isinstance(module, str) and (module in _LIBRARY or module.startswith(_BELOW))


def is_recorder(module: Any) -> bool:
    """True for names of modules of the recorder itself."""
    return isinstance(module, str) and module.startswith("tracejit.trace.") and not is_library(module)


@dataclass(frozen=True)
class Anatomy:
    """Which slots of a tensor hold what: lets guards compare memory instead of asking."""

    slots: Mapping[str, Any]  # name -> descriptor
    array: str
    grad: str
    hooks: str  # None in it: there are none
    facts: Callable[[Any], tuple[str, ...] | None]  # slots that hold None, True or False and, with the class and the
    # array's dtype, shape, strides and writeable flag, decide `Domain.facts`; None where more does


@dataclass(frozen=True)
class Domain:
    """The tensor type and what can be asked of a tensor."""

    tensor: type
    array: Callable[[Any], Array]  # its memory, now
    facts: Callable[[Any], tuple[Any, ...]]  # what an op on it may depend on besides its elements, hashable
    needs_grad: Callable[[Any], bool]
    has_tape: Callable[[Any], bool]  # made by an op on the gradient tape
    wrap: Callable[[Array, bool], Any]  # a fresh leaf over an array, requiring grad or not
    view: Callable[[Any, Any, bool], Any]  # (parent, view op, on the tape): the view
    written: Callable[[Any], None]  # the memory of a tensor was written
    parent: Callable[[Any], tuple[Any, Any] | None]  # (tensor, view op) of a view
    get_grad: Callable[[Any], Any]
    set_grad: Callable[[Any, Any], None]
    get_hooks: Callable[[Any], Any]
    constants: tuple[type, ...]  # immutable values of the library: dtypes, devices
    library_tensors: Callable[[], tuple[Any, ...]]  # state that the library owns: the default generator's
    modes: Callable[[], tuple[Any, ...]]  # what changes the meaning of ops: grad mode
    tape_position: Callable[[], int]
    record_backward: Callable[[Any, Sequence[Any], int], Any]  # (builder, outputs, tape start): see tensor/domain.py
    attach: Callable[..., Any]  # (sources, outputs, saved, run, replay, guards): one tape entry for a compiled call
    anatomy: Anatomy | None = None  # None: tensors are asked, not read
