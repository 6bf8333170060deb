"""Items to a batch: what can be a tensor becomes one with a new first axis, containers are kept.

A plain tuple becomes a list, as in PyTorch, whose users assign to its members.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from tracejit.ir.dtype import float64
from tracejit.ops.composed import stack
from tracejit.tensor import Tensor
from tracejit.tensor.creation import from_numpy, tensor

__all__ = ["default_collate", "default_convert"]


def default_collate(batch: Sequence[Any]) -> Any:
    """One batch of items: tensors, arrays and numbers are stacked, mappings and sequences collated member by member.

    >>> default_collate([(x0, 3), (x1, 5)])     # [stack([x0, x1]), tensor([3, 5])]
    """
    first = batch[0]
    if isinstance(first, Tensor):
        if shapes := {tuple(x.shape) for x in batch if x.shape != first.shape}:
            raise ValueError(f"items of one batch differ in shape: {tuple(first.shape)} and {shapes.pop()}")
        return stack(list(batch))
    if isinstance(first, np.ndarray):
        if shapes := {x.shape for x in batch if x.shape != first.shape}:
            raise ValueError(f"items of one batch differ in shape: {first.shape} and {shapes.pop()}")
        return from_numpy(np.stack(batch))
    if isinstance(first, np.generic):
        return from_numpy(np.stack(batch))
    if isinstance(first, float):
        return tensor(list(batch), dtype=float64)
    if isinstance(first, int):
        return tensor(list(batch))
    if isinstance(first, (str, bytes)):
        return list(batch)
    if isinstance(first, Mapping):
        keys = cast("Mapping[Any, Any]", first).keys()
        return _like(first, {k: default_collate([x[k] for x in batch]) for k in keys})
    if isinstance(first, Sequence):
        size = len(cast("Sequence[Any]", first))
        if lengths := {len(x) for x in batch} - {size}:
            raise ValueError(f"items of one batch differ in length: {size} and {lengths.pop()}")
        return _like(first, [default_collate(members) for members in zip(*batch, strict=True)])
    raise TypeError(
        f"default_collate knows tensors, arrays, numbers, strings and containers of them, not {type(first).__name__}"
    )


def default_convert(item: Any) -> Any:
    """Arrays of an item as tensors, everything else as it is: what a loader without batches applies."""
    if isinstance(item, (np.ndarray, np.generic)):
        return from_numpy(np.asarray(item))
    if isinstance(item, Mapping):
        return _like(item, {k: default_convert(v) for k, v in cast("Mapping[Any, Any]", item).items()})
    if isinstance(item, Sequence) and not isinstance(item, (str, bytes)):
        return _like(item, [default_convert(v) for v in cast("Sequence[Any]", item)])
    return item


def _like(pattern: Any, members: Any) -> Any:
    """`members` in a container of `pattern`'s type; named tuples take them by position."""
    kind = cast("type[Any]", type(pattern))
    if isinstance(
        pattern, tuple
    ):  # a plain tuple becomes a list, as PyTorch's users expect: they assign to its members
        return kind(*members) if hasattr(pattern, "_fields") else members
    try:
        return kind(members)
    except TypeError:  # a container that is not built from its members
        return members
