"""Scalar ops that occur only in kernel bodies: what an element may know about its own position.

`Inside` and `Position` let `Pad.element` and `Iota.element` speak of the loop indices; loads are made by codegen, which
hands ops readers of their inputs. A load whose index may leave its buffer is legal only under `select(inside(...),
load, other)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracejit.ir.dim import Extent
from tracejit.ir.dtype import bool_, int64
from tracejit.ir.index import Index
from tracejit.ir.node import Node
from tracejit.ir.op import Op
from tracejit.ir.types import TensorType, Type

__all__ = ["Inside", "Position", "inside", "position"]


@dataclass(frozen=True)
class Inside(Op):
    """bool[]: all of lowest <= index < limit."""

    name = "inside"
    conditions: tuple[tuple[Index, Extent, Extent], ...]

    def infer(self, *types: TensorType) -> Type:
        return TensorType(bool_, ())


@dataclass(frozen=True)
class Position(Op):
    """i64[]: the value of a loop index expression."""

    name = "position"
    index: Index

    def infer(self, *types: TensorType) -> Type:
        return TensorType(int64, ())


def inside(conditions: Sequence[tuple[Index, Extent, Extent]]) -> Node:
    """True where every lowest <= index < limit."""
    return Node.of(Inside(tuple(conditions)), ())


def position(index: Index) -> Node:
    """The value of `index` as a scalar."""
    return Node.of(Position(index), ())
