"""Tensor, creation, the autograd engine, randomness. Start reading at `tensor.py`."""

from tracejit.tensor import methods as _methods  # gives Tensor its methods
from tracejit.tensor.tensor import Size, Tensor

__all__ = ["Size", "Tensor"]
_ = _methods
