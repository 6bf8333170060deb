"""Every exception tracejit raises on purpose; each docstring shows code that raises it and the fix.

User mistakes subclass the builtin a PyTorch or NumPy user would catch (`RuntimeError`, `TypeError`, `ValueError`,
`IndexError`); our own mistakes are `IRError`.
"""

from __future__ import annotations

import sys

__all__ = [
    "AutogradError",
    "BackendError",
    "DTypeError",
    "ExportError",
    "FormatError",
    "IRError",
    "InPlaceError",
    "InconclusiveDim",
    "IndexOutOfRange",
    "MissingExtra",
    "NotCompilable",
    "OpError",
    "ParseError",
    "TracejitError",
    "is_foreign",
]


class TracejitError(Exception):
    """Base class of all errors below."""


class IRError(TracejitError):
    """A graph breaks a rule of the IR: a bug of ours, or a hand-written graph. The message shows the lines around
    it."""


class ParseError(IRError):
    """The text form does not parse; the message carries line, caret and what was expected.

    >>> parse("graph @f(%x: f32[2]) -> f32[2] { return %y }")   # %y is not defined
    """


class OpError(TracejitError, RuntimeError):
    """Operands do not fit an operation; the message names both types.

    >>> tj.zeros(2, 3) @ tj.zeros(4, 5)     # inner extents 3 and 4 differ: transpose or reshape one side
    """


class DTypeError(TracejitError, TypeError):
    """An operation has no meaning for a dtype.

    >>> tj.tensor([True]) - tj.tensor([True])     # use ^ or logical_xor for bools
    """


class IndexOutOfRange(TracejitError, IndexError):
    """An index or axis lies outside its range.

    >>> tj.zeros(3)[5]     # valid indices are -3 .. 2
    """


class InconclusiveDim(TracejitError, ValueError):
    """A comparison of symbolic dims is neither always true nor always false.

    >>> Sym("n") == 3      # give `n` a range, or compare concrete shapes
    """


class AutogradError(TracejitError, RuntimeError):
    """The gradient asked for does not exist.

    >>> tj.zeros(2).sum().backward()     # no input has requires_grad=True
    """


class InPlaceError(AutogradError):
    """A value needed by the gradient was overwritten, or a leaf that needs a gradient was written in place.

    >>> y = x.exp(); y.add_(1); y.sum().backward()     # exp keeps its result: use y + 1
    """


class CallbackError(TracejitError):
    """A callback changed what the compiled function that made it reads.

    f = tj.compile(lambda x: tj.callback(change, settings) or x * settings["scale"])

    Fix: let the callback only look, or write what the function does not read.
    """


class GradcheckError(AutogradError):
    """Gradients do not agree with finite differences; the message names the output, the input and the element.

    >>> tj.autograd.gradcheck(f, x)     # x in float64, away from kinks
    """


class NotCompilable(TracejitError):
    """A function, opcode or call the recorder does not understand; the function stays eager and `explain()` says
    why."""


class BackendError(TracejitError, RuntimeError):
    """A kernel could not be generated or run on the chosen backend."""


class ExportError(TracejitError, ValueError):
    """A function cannot be exported as asked; the message names the line and what to change."""


class FormatError(TracejitError, ValueError):
    """A file is not what it should be: corrupt, truncated, or written by a newer tracejit."""


class MissingExtra(TracejitError, ImportError):
    """An optional dependency is absent; the message gives the `pip install 'tracejit[extra]'` that brings it."""


_OURS = frozenset(("tracejit", "numpy", "llvmlite", "numba", "ml_dtypes", "bytecode"))


def is_foreign(e: BaseException) -> bool:
    """Whether code that we do not call had a part in raising e: a signal handler's, a trace function's."""
    tb = e.__traceback__
    while tb is not None:
        home = str(tb.tb_frame.f_globals.get("__name__")).partition(".")[0]
        if home not in _OURS and home not in sys.stdlib_module_names:
            return True
        tb = tb.tb_next
    return False
