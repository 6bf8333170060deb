"""Index arithmetic for `Op.element`: affine while it can be, scalar i64 Nodes where data or a division decides.

An `Index` costs nothing (it folds into addresses). A Node index is computed per element; a load through one must be in
range whatever happens, so those are clamped, while an affine load may be masked by `inside`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from tracejit.ir.dim import Dim, Extent, Shape, same
from tracejit.ir.dtype import bool_
from tracejit.ir.index import Index
from tracejit.ir.node import Node, constant
from tracejit.ir.op import Op
from tracejit.ops.loop import inside, position

__all__ = ["as_node", "clamped", "divided", "linear", "merged", "pick", "shifted", "split", "within"]

Place = Index | Node


def as_node(i: Place | Extent) -> Node:
    """`i` as a scalar i64."""
    if isinstance(i, Node):
        return i
    return position(i if isinstance(i, Index) else Index.at(i))


def shifted(i: Place, by: Extent | Place, scale: int = 1) -> Any:
    """i * scale + by."""
    if isinstance(i, Index) and not isinstance(by, Node):
        return i * scale + by
    scaled = as_node(i * scale if isinstance(i, Index) or scale != 1 else i)
    return scaled if isinstance(by, int) and by == 0 else scaled + as_node(by)


def clamped(i: Place, low: Extent, limit: Extent) -> Place:
    """`i`, moved into [low, limit) where it is a Node; an affine index is left to `within`."""
    if isinstance(i, Index):
        return i
    smallest, largest = Op.registry["maximum"](), Op.registry["minimum"]()
    return smallest(largest(i, as_node(limit - 1)), as_node(low))


def within(conditions: Sequence[tuple[Place, Extent, Extent]]) -> Node:
    """bool[]: every lowest <= i < limit."""
    affine = [(i, low, limit) for i, low, limit in conditions if isinstance(i, Index)]
    out: Any = inside(affine) if affine else None
    for i, low, limit in conditions:
        if isinstance(i, Node):
            both = (i >= as_node(low)) & (i < as_node(limit))
            out = both if out is None else out & both
    return constant(as_node(0), True, bool_) if out is None else out


def pick(condition: Node, a: Node, b: Node) -> Node:
    """a where the condition holds, else b."""
    return Op.registry["select"]()(condition, a, b)


def linear(at: Sequence[Place], shape: Shape) -> Place:
    """The row-major position of `at` in `shape`."""
    out: Place = Index.at(0)
    for i, n in zip(at, shape):
        if isinstance(out, Index):
            out = shifted(i, out * n) if isinstance(i, Node) else out * n + i
        else:
            out = out * as_node(n) + as_node(i)
    return out


def divided(i: Place, n: Extent) -> tuple[Place, Place]:
    """The floor of i / n, and i % n: affine where every term of i is a multiple of n or the rest stays in [0, n)."""
    if isinstance(n, int) and n == 1:
        return i, Index.at(0)
    if isinstance(i, Index) and (parts := _affine_division(i, n)):
        return parts
    i, d = as_node(i), as_node(n)
    return Op.registry["floordiv"]()(i, d), Op.registry["mod"]()(i, d)


def _affine_division(i: Index, n: Extent) -> tuple[Index, Index] | None:
    quotient = [(a, q) for a, c in i.terms if (q := _multiple(c, n)) is not None]
    rest = [(a, c) for a, c in i.terms if _multiple(c, n) is None]
    base: Extent = 0
    if isinstance(n, int) and isinstance(i.constant, int):
        base, constant = divmod(i.constant, n)
    elif same(i.constant, 0):
        constant = 0
    else:
        return None
    reach: Extent = constant + 1  # one more than the largest rest
    for a, c in rest:
        if not isinstance(c, int) or c < 0:
            return None
        reach = reach + (a.extent - 1) * c
    if not (same(reach, n) or (isinstance(reach, int) and isinstance(n, int) and reach <= n)):
        return None
    return Index(tuple(quotient), base), Index(tuple(rest), constant)


def _multiple(c: Extent, n: Extent) -> Extent | None:
    """c / n where it is a polynomial we can see, else None."""
    if same(c, n):
        return 1
    if isinstance(n, Dim):
        return None
    if isinstance(c, int):
        return c // n if c % n == 0 else None
    return c // n if all(k % n == 0 for _, k in c.terms) else None


def split(i: Place, shape: Shape) -> tuple[Place, ...]:
    """The place in `shape` of row-major position i."""
    out: list[Place] = []
    for n in reversed(shape[1:]):
        i, rest = divided(i, n)
        out.append(rest)
    return (i, *reversed(out)) if shape else ()


def merged(a: Shape, b: Shape) -> list[tuple[range, range]]:
    """Shapes a and b of one size, cut into the smallest runs of axes with equal products."""
    cuts: list[tuple[int, int]] = [(0, 0)]
    left: list[Extent] = [1]
    right: list[Extent] = [1]
    for d in a:
        left.append(left[-1] * d)
    for d in b:
        right.append(right[-1] * d)
    j = 1
    for i in range(1, len(left)):
        for k in range(j, len(right)):
            if same(left[i], right[k]):
                cuts.append((i, k))
                j = k + 1
                break
    if cuts[-1] != (len(a), len(b)):
        cuts.append((len(a), len(b)))
    return [(range(p, q), range(r, s)) for (p, r), (q, s) in pairwise(cuts)]
