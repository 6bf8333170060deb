"""Which axes become vector lanes: the cheapest by a count of vector operations.

A vector of neighbouring outer points, or of neighbours along the last inner axis. Short outer axes are taken together
with those before them, so that a vector may run over the end of a row; loads that then do not lie evenly are gathered
lane by lane. What decides is how many lanes are idle and how many loads are gathers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, prod

from tracejit.codegen.kernel import COST, Kernel, Load, Slot, Stage, guess, scalars
from tracejit.ir.dim import Extent, same, typical
from tracejit.ir.index import Axis, Index

__all__ = ["choose_lanes", "is_close", "step"]

WIDTH = 16
ROW = 24  # operations around a row: combining lanes, starting the loop


def step(index: Index, group: Sequence[Axis]) -> Extent | None:
    """How far the index moves from lane to lane where `group` is counted row-major; None where that is uneven."""
    terms = dict(index.terms)
    first: Extent | None = None
    size: Extent = 1
    for a in reversed(group):
        c = terms.get(a, 0)
        if first is None:
            first, size = c, a.extent
        elif same(c, first * size):
            size = size * a.extent
        else:
            return None
    return first or 0


def is_close(by: Extent | None) -> bool:
    """True where lanes are neighbours, or all the same."""
    return isinstance(by, int) and by in (0, 1)


def choose_lanes(kernel: Kernel) -> Kernel:
    """The kernel with the lanes that cost least."""
    options: list[Kernel] = []
    if any(s.axes for s in kernel.stages):
        options.append(replace(kernel, lanes="inner", joint=1))
    for k in range(1, len(kernel.outer) + 1):
        options.append(replace(kernel, lanes="outer", joint=k))
    return min(options, key=cost, default=kernel)


def cost(kernel: Kernel) -> float:
    """Vector operations, about."""
    points = guess(a.extent for a in kernel.outer)
    total = 0.0
    for stage in kernel.stages:
        extents = [typical(a.extent) for a in stage.axes]
        if kernel.lanes == "outer":
            group = kernel.outer[-kernel.joint :]
            size = guess(a.extent for a in group)
            total += (
                points
                / max(1, size)
                * (vectors(size) * prod(extents) * operations(stage, group) + ragged(stage, size) + ROW)
            )
        elif extents:
            row = vectors(extents[-1]) * operations(stage, stage.axes[-1:]) + ragged(stage, extents[-1])
            each = prod(extents[:-1]) * row
            total += points * (each + ROW)
        else:
            total += points * operations(stage, ())
    return total


def vectors(n: int) -> float:
    """How many vectors cover n elements, in units of full ones: short vectors cost less."""
    if n <= WIDTH // 2:
        return 0.6
    return -(-n // WIDTH)


def ragged(stage: Stage, n: int) -> float:
    """What the last, incomplete vector costs beyond a full one: its stores go lane by lane."""
    return 12 * len(stage.stores) if n % WIDTH and (n > WIDTH or n & (n - 1)) else 0


def uneven(group: Sequence[Axis]) -> float:
    """A load whose lanes are worked out one by one: by division, which is slow where the divisor is no constant."""
    return 2 * WIDTH if all(isinstance(a.extent, int) for a in group) else 16 * WIDTH


def operations(stage: Stage, group: Sequence[Axis]) -> float:
    """Operations for one vector; a gather is one for each lane."""
    total = 0.0
    for n in scalars([*(a.value for a in stage.accumulators), *(s.value for s in stage.stores)]):
        if isinstance(n.op, Load):
            by = step(n.op.index, group)
            total += 1 if is_close(by) and not n.inputs else uneven(group) if by is None or n.inputs else WIDTH
        elif not isinstance(n.op, Slot) and n.op.name != "const":
            total += COST.get(n.op.name, 1)
    for s in stage.stores:
        by = step(s.index, group)
        total += inf if by is None else 1 if is_close(by) else 2 * WIDTH
    return total + 2 * len(stage.accumulators)
