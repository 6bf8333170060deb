"""Graph -> Graph before scheduling: the same values, in forms that make better loops.

- A large reduction to few values is done in two steps, so that threads share the first; where it is cut depends on the
  shape alone, so the bits do not depend on the number of threads.
- `fold` of windows that do not overlap only moves elements: it becomes a transpose and a reshape.
- A convolution whose border is cut off, as the gradient of a padded one, does not compute the border.
- A product that is only read across, as the gradient of a weight, is made transposed: reading it against its rows takes
  as long as making it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracejit.codegen.kernel import guess, sizes
from tracejit.codegen.views import is_zero
from tracejit.ir.dim import same, typical
from tracejit.ir.graph import Graph
from tracejit.ir.node import Node
from tracejit.ir.op import Op
from tracejit.ir.types import TensorType

__all__ = ["prepare"]

LARGE = 1 << 16  # elements worth sharing
FEW = 16  # rows that are too few to share
TALL = 512  # of a column that is worth sharing


def prepare(graph: Graph) -> Graph:
    """`graph` with large reductions in two steps and plain folds as movement."""
    new: dict[Node, Node] = {}
    uses = graph.uses()
    for n in graph.nodes:
        ins = tuple(new[i] for i in n.inputs)
        m = n if ins == n.inputs else Node.of(n.op, ins)
        if n.op.name in ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod"):
            m = split_reduction(m)
        elif n.op.name == "fold":
            m = plain_fold(m)
        elif n.op.name in ("pad", "slice") and is_only_reader(n, uses):
            m = cropped_conv(m)
        elif n.op.name == "transpose" and n.inputs[0].op.name == "matmul" and uses[n.inputs[0]] == 1:
            m = transposed_matmul(m)
        if m is not n:
            m.label, m.where = n.label, n.where
        new[n] = m
    return Graph(graph.name, graph.params, tuple(new[r] for r in graph.results), graph.ranges)


def is_only_reader(n: Node, uses: Mapping[Node, int]) -> bool:
    """True where nobody else reads the convolution below."""
    x = n.inputs[0]
    while x.op.name == "reshape" and uses[x] == 1:
        x = x.inputs[0]
    return x.op.name == "conv" and uses[x] == 1


def cropped_conv(n: Node) -> Node:
    """A crop of (a reshape of) a convolution as the convolution of a crop."""
    top = y = n.inputs[0]
    while y.op.name == "reshape":
        y = y.inputs[0]
    op: Any = y.op
    k, (x, w) = len(op.stride), y.inputs
    if not all(t.is_static for t in (n.type, top.type, y.type, x.type, w.type)):
        return n
    whole, spatial = sizes(top.shape), sizes(y.shape)[3:]
    if (crop := crop_of(n)) is None or len(whole) <= k or whole[len(whole) - k :] != spatial:
        return n
    starts, limits = crop
    lead = len(whole) - k
    if any(starts[:lead]) or limits[:lead] != whole[:lead] or any(a >= b for a, b in zip(starts, limits)):
        return n
    low, high = [0, 0, 0], [0, 0, 0]
    window = zip(starts[lead:], limits[lead:], op.stride, op.dilation, sizes(w.shape)[3:], sizes(x.shape)[3:])
    for a, b, stride, dilation, size, extent in window:
        low.append(-a * stride)
        high.append((b - 1) * stride + (size - 1) * dilation + 1 - extent)
    interior = (0,) * len(low)
    fill = Node.of(Op.registry["const"](0.0, TensorType(x.dtype, ())), ())  # type: ignore[call-arg]
    if x.op.name == "pad" and is_zero(x.inputs[1]):
        inner: Any = x.op
        low, high = ([p + q for p, q in zip(a, b)] for a, b in ((low, inner.low), (high, inner.high)))
        x, interior = x.inputs[0], inner.interior
    cut = Node.of(Op.registry["pad"](tuple(low), tuple(high), tuple(interior)), (x, fill))  # type: ignore[call-arg]
    return Node.of(Op.registry["reshape"](n.shape), (Node.of(op, (cut, w)),))  # type: ignore[call-arg]


def transposed_matmul(n: Node) -> Node:
    """A transpose that makes rows of a product's columns, of b' a' instead of a b: the same sums in the same order."""
    perm: tuple[int, ...] = n.op.perm  # type: ignore[attr-defined]
    row, column = len(perm) - 2, len(perm) - 1
    if perm[-1] != row:
        return n
    swap = Op.registry["transpose"]((*range(row), column, row))  # type: ignore[call-arg]
    a, b = (Node.of(swap, (x,)) for x in n.inputs[0].inputs)
    product = Node.of(n.inputs[0].op, (b, a))
    exchanged = tuple({row: column, column: row}.get(p, p) for p in perm)
    if exchanged == tuple(range(len(perm))):
        return product
    return Node.of(Op.registry["transpose"](exchanged), (product,))  # type: ignore[call-arg]


def crop_of(n: Node) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """First and one past the last index that a slice or a negative pad keeps of each axis; None where it does more."""
    op: Any = n.op
    if n.op.name == "slice":
        return (sizes(op.starts), sizes(op.limits)) if all(s == 1 for s in op.strides) else None
    low, high = sizes(op.low), sizes(op.high)
    if any(op.interior) or max((*low, *high), default=0) > 0:
        return None
    return tuple(-a for a in low), tuple(e + b for e, b in zip(sizes(n.inputs[0].shape), high))


def split_reduction(n: Node) -> Node:
    """The reduction in two steps where it is large and leaves few values."""
    (x,) = n.inputs
    op: Any = n.op
    if guess(x.shape) < LARGE:
        return n
    is_column = is_tall(n)
    if guess(n.shape) >= FEW and not is_column:
        return n
    cls = type(op)
    first, *rest = op.axes
    if rest and not is_column and typical(x.shape[first]) >= 8:
        inner = Node.of(cls(tuple(rest)), (x,))
        return Node.of(cls((first,)), (inner,))
    if not x.type.is_static:
        return n
    shape = sizes(x.shape)
    _, longest = max((shape[a], a) for a in op.axes)
    parts = divisor(shape[longest])
    if parts is None:
        return n
    cut = (*shape[:longest], parts, shape[longest] // parts, *shape[longest + 1 :])
    y = Node.of(Op.registry["reshape"](cut), (x,))  # type: ignore[call-arg]
    inner = Node.of(cls(tuple(a + (a >= longest) for a in op.axes)), (y,))
    return Node.of(cls((longest - sum(a < longest for a in op.axes),)), (inner,))


def is_tall(n: Node) -> bool:
    """True where columns are summed that are long enough to share: each part then reads whole rows, as they lie."""
    shape, axes = n.inputs[0].shape, n.op.axes  # type: ignore[attr-defined]
    is_down = len(shape) - 1 not in axes
    return is_down and guess(shape) >= 4 * LARGE and guess(shape[a] for a in axes) >= TALL and typical(shape[-1]) >= 64


def divisor(n: int) -> int | None:
    """A divisor of n that leaves blocks of some thousand elements, as near as there is one."""
    wanted = max(16, n // 4096)
    found = [d for d in range(8, min(n, 8 * wanted) + 1) if n % d == 0]
    return min(((abs(d - wanted), d) for d in found), default=(0, None))[1]


def plain_fold(n: Node) -> Node:
    """A fold whose windows tile its result, as movement."""
    op: Any = n.op
    (x,) = n.inputs
    k = len(op.extents)
    lead = len(x.shape) - 2 * k
    out, sizes = x.shape[lead : lead + k], x.shape[lead + k :]
    tiles = all(same(s, z) and same(o * z, e) for s, z, o, e in zip(op.strides, sizes, out, op.extents, strict=True))
    if not k or not tiles or any(d != 1 and not same(z, 1) for d, z in zip(op.dilations, sizes, strict=True)):
        return n
    perm = (*range(lead), *(a for i in range(k) for a in (lead + i, lead + k + i)))
    y = Node.of(Op.registry["transpose"](perm), (x,))  # type: ignore[call-arg]
    return Node.of(Op.registry["reshape"](n.shape), (y,))  # type: ignore[call-arg]
