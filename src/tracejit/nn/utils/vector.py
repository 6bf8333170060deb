"""All parameters as one vector, and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tracejit.ops.composed import cat
from tracejit.tensor.autograd import no_grad
from tracejit.tensor.tensor import Tensor

__all__ = ["parameters_to_vector", "vector_to_parameters"]


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """The elements of all parameters in one row."""
    return cat([p.reshape(-1) for p in parameters])  # type: ignore[attr-defined]


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Write the row `parameters_to_vector` made back into the parameters."""
    at = 0
    source: Any = vec
    with no_grad():
        for p in parameters:
            count = p.numel()  # type: ignore[attr-defined]
            p.copy_(source[at : at + count].reshape(p.shape))  # type: ignore[attr-defined]
            at += count
