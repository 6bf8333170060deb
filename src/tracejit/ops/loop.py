"""Scalar ops that occur only in kernel bodies: what an element may know about its own position.

`Inside` and `Position` let `Pad.element` and `Iota.element` speak of the loop indices, `RandomWord` is an element of
`random_bits`; loads are made by codegen, which hands ops readers of their inputs. A load whose index may leave its
buffer is legal only under `select(inside(...), load, other)`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracejit.ir.dim import Extent
from tracejit.ir.dtype import bool_, int32, int64
from tracejit.ir.index import Index
from tracejit.ir.node import Node
from tracejit.ir.op import Array, Op
from tracejit.ir.types import TensorType, Type
from tracejit.ops.random_words import LOW, philox
from tracejit.records import dataclass

__all__ = ["Inside", "Position", "RandomWord", "inside", "position", "random_word"]


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


class RandomWord(Op):
    """i32[]: word i % 4 of the Philox block offset + i // 4 with key seed, of (i, seed, offset), i64[] each."""

    name = "random_word"

    def infer(self, *types: TensorType) -> Type:
        return TensorType(int32, ())

    @np.errstate(all="ignore")
    def eval(self, i: Array, seed: Array, offset: Array) -> Array:
        i, seed, offset = (np.asarray(x).astype(np.uint64) for x in (i, seed, offset))
        low, shift, block = np.uint64(LOW), np.uint64(32), (i >> np.uint64(2)) + offset
        zero = np.zeros_like(block)
        words = philox((block & low, block >> shift, zero, zero), (seed & low, seed >> shift))
        return np.choose((i & np.uint64(3)).astype(np.int64), words).astype(np.uint32).view(np.int32)


def random_word(i: Node, seed: Node, offset: Node) -> Node:
    """The word of `random_bits` at place i, row-major."""
    return Node.of(RandomWord(), (i, seed, offset))


def inside(conditions: Sequence[tuple[Index, Extent, Extent]]) -> Node:
    """True where every lowest <= index < limit."""
    return Node.of(Inside(tuple(conditions)), ())


def position(index: Index) -> Node:
    """The value of `index` as a scalar."""
    return Node.of(Position(index), ())
