"""Activations computed again in the backward pass instead of kept: torch.utils.checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tracejit.tensor.autograd import is_grad_enabled
from tracejit.tensor.recompute import Region
from tracejit.tensor.tensor import Tensor

__all__ = ["checkpoint", "checkpoint_sequential"]


def _tensors(x: Any, found: list[Tensor]) -> list[Tensor]:
    if isinstance(x, Tensor):
        found.append(x)
    elif isinstance(x, (list, tuple)):
        for v in x:
            _tensors(v, found)
    elif isinstance(x, dict):
        for v in x.values():
            _tensors(v, found)
    return found


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """function(*args, **kwargs), whose intermediate values are not kept for the gradient but computed again.

    The second run sees the random stream as the first did. `use_reentrant` makes no difference: gradients flow to all
    that the function uses, as with PyTorch's `use_reentrant=False`.
    """
    if not is_grad_enabled():
        return function(*args, **kwargs)
    region = Region(preserve_rng_state)
    out = function(*args, **kwargs)

    def again(_: Any) -> list[Tensor]:
        return _tensors(function(*args, **kwargs), [])

    region.forget(_tensors(out, []), _tensors([args, kwargs], []), again)
    return out


def checkpoint_sequential(
    functions: Any, segments: int, input: Any, use_reentrant: bool | None = None, preserve_rng_state: bool = True
) -> Any:
    """The modules or functions one after another, in `segments` parts, all but the last of them checkpointed."""
    parts = list(functions.children()) if hasattr(functions, "children") else list(functions)
    size = len(parts) // segments
    end = size * (segments - 1)
    for start in range(0, end, size):
        chain = _chain(parts[start : start + size])
        input = checkpoint(chain, input, use_reentrant=use_reentrant, preserve_rng_state=preserve_rng_state)
    return _chain(parts[end:])(input)


def _chain(functions: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    def run(x: Any) -> Any:
        for f in functions:
            x = f(x)
        return x

    return run
