"""Limits on gradients, written in place."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from tracejit.ops.composed import stack
from tracejit.tensor.autograd import no_grad
from tracejit.tensor.creation import zeros
from tracejit.tensor.tensor import Tensor

__all__ = ["clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm"]


def _gradients(parameters: Tensor | Iterable[Tensor]) -> list[Any]:
    found = [parameters] if isinstance(parameters, Tensor) else parameters
    return [p.grad for p in found if p.grad is not None]


def get_total_norm(
    tensors: Tensor | Iterable[Tensor],
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """The norm of all tensors as one vector."""
    found: list[Any] = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    if not found:
        return zeros(())
    total: Any = stack([t.norm(float(norm_type)) for t in found]).norm(float(norm_type))
    if error_if_nonfinite and not math.isfinite(total.item()):
        raise RuntimeError(
            f"the total norm of order {norm_type} of the gradients is {total.item()}, so they cannot be clipped"
        )
    return total


def clip_grads_with_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, total_norm: Tensor, foreach: bool | None = None
) -> None:
    """Scale the gradients so that a total norm of `total_norm` becomes at most `max_norm`."""
    scale: Any = (max_norm / (total_norm + 1e-6)).clamp(max=1.0)  # type: ignore[attr-defined]
    with no_grad():
        for g in _gradients(parameters):
            g.mul_(scale.to(g.dtype))


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale the gradients in place so that their total norm is at most `max_norm`; returns the norm before."""
    kept = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    with no_grad():
        total = get_total_norm(_gradients(kept), norm_type, error_if_nonfinite)
    clip_grads_with_norm_(kept, max_norm, total)
    return total


def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float, foreach: bool | None = None) -> None:
    """Limit every entry of the gradients to +-clip_value, in place."""
    with no_grad():
        for g in _gradients(parameters):
            g.clamp_(-clip_value, clip_value)
