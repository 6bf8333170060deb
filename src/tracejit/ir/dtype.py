"""Element types and the promotion table.

Promotion follows PyTorch: within a kind the wider type wins, floats beat integers beat bool, and i8 with u8 gives i16.
NumPy has no bfloat16: ml_dtypes brings it, imported when its dtype is first asked for.
"""

from __future__ import annotations

import importlib
from dataclasses import field
from typing import Any

import numpy as np

from tracejit import config
from tracejit.records import dataclass

__all__ = [
    "ALL", "BY_NAME", "DType", "bfloat16", "bool_", "default", "float16", "float32", "float64", "from_numpy",
    "int16", "int32", "int64", "int8", "promote", "uint8",
]  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """One element type. Compared by identity: there is exactly one object for each type."""

    name: str  # the word in the IR's text form: f32
    long: str  # the word users write: float32
    kind: str  # f, i, u or b
    numpy: np.dtype[Any] = field(init=False)

    def __post_init__(self) -> None:
        if self.long != "bfloat16":
            object.__setattr__(self, "numpy", np.dtype(self.long))

    def __getattr__(self, name: str) -> Any:
        if name != "numpy":
            raise AttributeError(f"{self.long} has no attribute {name!r}")
        object.__setattr__(self, "numpy", np.dtype(_ml_dtypes().bfloat16))
        return self.numpy

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.numpy.itemsize

    @property
    def finfo(self) -> Any:
        """NumPy's limits of a floating point type: `max`, `eps`, `smallest_normal`, ..."""
        return _ml_dtypes().finfo(self.numpy) if self is bfloat16 else np.finfo(self.numpy)

    @property
    def is_floating_point(self) -> bool:
        """True for f16, bf16, f32 and f64."""
        return self.kind == "f"

    @property
    def is_signed(self) -> bool:
        """True for every type that has negative values."""
        return self.kind in "fi"

    @property
    def is_complex(self) -> bool:
        """Always False: there are no complex types yet."""
        return False

    def __repr__(self) -> str:
        return f"tracejit.{self.long}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_by_name, (self.name,))


# Any: ml_dtypes ships no types. Importing it takes a twentieth of what compiling a first function does.
def _ml_dtypes() -> Any:
    return importlib.import_module("ml_dtypes")


float64 = DType("f64", "float64", "f")
float32 = DType("f32", "float32", "f")
float16 = DType("f16", "float16", "f")
bfloat16 = DType("bf16", "bfloat16", "f")
int64 = DType("i64", "int64", "i")
int32 = DType("i32", "int32", "i")
int16 = DType("i16", "int16", "i")
int8 = DType("i8", "int8", "i")
uint8 = DType("u8", "uint8", "u")
bool_ = DType("bool", "bool", "b")

ALL = (float64, float32, float16, bfloat16, int64, int32, int16, int8, uint8, bool_)
BY_NAME = {d.name: d for d in ALL}
_BY_NUMPY = {d.numpy: d for d in ALL if d is not bfloat16}
_WIDTH = {int8: 1, int16: 2, int32: 3, int64: 4, float16: 1, bfloat16: 1, float32: 2, float64: 3}


def _by_name(name: str) -> DType:
    return BY_NAME[name]


def from_numpy(dtype: np.dtype[Any]) -> DType | None:
    """The DType of a NumPy dtype (native byte order), or None."""
    found = _BY_NUMPY.get(dtype)
    return bfloat16 if found is None and dtype.name == "bfloat16" and dtype == bfloat16.numpy else found


def _promote(a: DType, b: DType) -> DType:
    if a is b:
        return a
    if "b" in (a.kind, b.kind):
        return b if a.kind == "b" else a
    if a.kind == "f" and b.kind == "f":
        if {a, b} == {float16, bfloat16}:
            return float32
        return a if _WIDTH[a] > _WIDTH[b] else b
    if "f" in (a.kind, b.kind):
        return a if a.kind == "f" else b
    if "u" in (a.kind, b.kind):  # u8 with a signed type: the signed type, at least i16
        signed = b if a.kind == "u" else a
        return int16 if signed is int8 else signed
    return a if _WIDTH[a] > _WIDTH[b] else b


_TABLE = {(a, b): _promote(a, b) for a in ALL for b in ALL}


def promote(a: DType, b: DType) -> DType:
    """The smallest type that holds both, by PyTorch's table."""
    return _TABLE[a, b]


def default() -> DType:
    """The dtype of Python floats and of factory functions: float32 unless changed."""
    return BY_NAME[config.current().default_dtype]
