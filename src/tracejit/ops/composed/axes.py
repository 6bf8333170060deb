"""What a `dim` argument means: negative dims count from the end, None means all of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from tracejit.errors import DTypeError, IndexOutOfRange, OpError
from tracejit.ir import dtype as dt
from tracejit.ir.node import Node, Value, cast
from tracejit.ops.copy import Copy
from tracejit.ops.movement import Broadcast, Reshape

__all__ = [
    "Dims", "axes_of", "axis_of", "floating", "fresh", "keep", "one_per", "rank", "require", "same_dtype", "spread",
]  # fmt: skip

Dims = int | Sequence[int] | None


def rank(x: Value) -> int:
    """Number of dimensions of x."""
    return len(x.type.shape)


def axis_of(dim: int, rank: int) -> int:
    """`dim` as a non-negative axis; a tensor of rank 0 accepts 0 and -1. Raises IndexOutOfRange."""
    span = rank or 1
    if not -span <= dim < span:
        raise IndexOutOfRange(
            f"dim {dim} does not exist in a tensor of rank {rank}: valid dims are {-span} .. {span - 1}"
        )
    return dim % span


def axes_of(dim: Dims, rank: int) -> tuple[int, ...]:
    """`dim` as sorted axes; None and an empty sequence mean all. Raises OpError where a dim is named twice."""
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return tuple(range(rank))
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    axes = sorted(axis_of(d, rank) for d in dims)
    if twice := [a for a, b in itertools.pairwise(axes) if a == b]:
        raise OpError(f"dim {twice[0]} is named twice in {list(dims)}")
    return tuple(axes) if rank else ()


def keep(y: Any, x: Value, axes: Sequence[int], keepdim: bool) -> Any:
    """`y`, a reduction of x over `axes`, with these axes put back as extents 1 where `keepdim`."""
    if not keepdim or not axes:
        return y
    return Reshape(tuple(1 if i in axes else d for i, d in enumerate(x.type.shape)))(y)


def spread(y: Any, x: Value, axes: Sequence[int]) -> Any:
    """`y`, a reduction of x over `axes`, repeated along them to x's shape."""
    if not axes:
        return y
    return Broadcast(x.type.shape, tuple(i for i in range(rank(x)) if i not in axes))(y)


def floating(x: Value) -> Any:
    """x, as the default float dtype where it holds integers or bools."""
    return x if x.type.dtype.is_floating_point else cast(x, dt.default())


def fresh(x: Value) -> Any:
    """x in memory of its own, for functions whose result is new even where nothing changes."""
    return Copy()(x)


def one_per(value: int | Sequence[int], count: int, name: str) -> tuple[int, ...]:
    """`value` for each of `count` spatial axes. Raises OpError naming the argument where the count is wrong."""
    values = (value,) * count if isinstance(value, int) else tuple(value)
    if len(values) == 1:
        values *= count
    if len(values) != count:
        raise OpError(f"{name}={list(values)} has {len(values)} entries, wanted one or {count}")
    return values


def require(condition: Any, message: str, error: type[Exception] = IndexOutOfRange) -> None:
    """Raise unless every element of the bool value `condition` is true; a look at data that the recorder guards.

    Nodes have no data to look at: whoever builds a graph by hand answers for its indices.
    """
    from tracejit.ops.composed.reduction import all

    if not isinstance(condition, Node) and not bool(all(condition)):
        raise error(message)


def same_dtype(name: str, *xs: Value) -> None:
    """Raises DTypeError unless all dtypes are one."""
    names = dict.fromkeys(x.type.dtype.name for x in xs)
    if len(names) > 1:
        raise DTypeError(
            f"{name} of {' and '.join(str(x.type) for x in xs)}: dtypes {' and '.join(names)} differ, cast one side"
        )
