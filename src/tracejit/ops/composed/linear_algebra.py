"""Products of matrices: PyTorch's rank rules and einsum over the one primitive `matmul`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracejit.errors import OpError
from tracejit.ir.dim import Extent, product, same
from tracejit.ir.node import Scalar, Value, broadcast_shapes, expand_to
from tracejit.ops.composed import movement
from tracejit.ops.composed.axes import axis_of, rank, same_dtype
from tracejit.ops.composed.elementwise import where
from tracejit.ops.composed.movement import permute, reshape, unsqueeze
from tracejit.ops.composed.reduction import sum, vector_norm
from tracejit.ops.composed.whole import whole
from tracejit.ops.contract import MatMul
from tracejit.ops.movement import Transpose
from tracejit.ops.reduce import ReduceSum

__all__ = [
    "addbmm", "addmm", "addmv", "addr", "baddbmm", "bilinear", "bmm", "cdist", "chain_matmul", "cosine_similarity",
    "cross", "dot", "einsum", "ger", "inner", "kron", "linear", "matmul", "mm", "mv", "normalize", "outer",
    "pairwise_distance", "tensordot", "vdot",
]  # fmt: skip


def matmul(a: Value, b: Value) -> Any:
    """a @ b: vectors are rows on the left and columns on the right, leading dims are broadcast."""
    same_dtype("matmul", a, b)
    if not rank(a) or not rank(b):
        raise OpError(f"matmul of {a.type} and {b.type}: wanted rank 1 or more, use * for numbers")
    inner = a.type.shape[-1], b.type.shape[-2 if rank(b) > 1 else 0]
    if not same(*inner):
        raise OpError(f"matmul of {a.type} and {b.type}: inner extents {inner[0]} and {inner[1]} differ")
    if rank(a) == 1 or rank(b) == 1:
        x, y = (unsqueeze(a, 0) if rank(a) == 1 else a), (unsqueeze(b, 1) if rank(b) == 1 else b)
        out = matmul(x, y)
        shape = list(out.type.shape)
        if rank(b) == 1:
            shape.pop()
        if rank(a) == 1:
            shape.pop(-1 if rank(b) == 1 else -2)
        return reshape(out, shape)
    if rank(a) == 2 and rank(b) == 2:
        return MatMul()(a, b)
    if rank(b) == 2:  # one large product instead of many small ones
        *batch, m, k = a.type.shape
        rows = reshape(a, (product((*batch, m)), k))
        return reshape(MatMul()(rows, b), (*batch, m, b.type.shape[1]))
    batch = broadcast_shapes(a.type.shape[:-2], b.type.shape[:-2])
    return MatMul()(expand_to(a, batch + a.type.shape[-2:]), expand_to(b, batch + b.type.shape[-2:]))


def _ranked(name: str, x: Value, want: int) -> None:
    if rank(x) != want:
        raise OpError(f"{name} wants rank {want}, got {x.type}")


def mm(a: Value, b: Value) -> Any:
    """The product of two matrices."""
    _ranked("mm", a, 2)
    _ranked("mm", b, 2)
    return matmul(a, b)


def bmm(a: Value, b: Value) -> Any:
    """The products of two batches of matrices."""
    _ranked("bmm", a, 3)
    _ranked("bmm", b, 3)
    if not same(a.type.shape[0], b.type.shape[0]):
        raise OpError(f"bmm of {a.type} and {b.type}: batches {a.type.shape[0]} and {b.type.shape[0]} differ")
    return matmul(a, b)


def mv(a: Value, v: Value) -> Any:
    """Matrix times vector."""
    _ranked("mv", a, 2)
    _ranked("mv", v, 1)
    return matmul(a, v)


def dot(a: Value, b: Value) -> Any:
    """sum a * b of two vectors."""
    _ranked("dot", a, 1)
    _ranked("dot", b, 1)
    return matmul(a, b)


vdot = dot


def outer(a: Value, b: Value) -> Any:
    """y[i, j] = a[i] * b[j]."""
    _ranked("outer", a, 1)
    _ranked("outer", b, 1)
    return unsqueeze(a, 1) * b


ger = outer


def inner(a: Value, b: Value) -> Any:
    """Sums of products over the last axis of both."""
    if not rank(a) or not rank(b):
        return a * b
    if not same(a.type.shape[-1], b.type.shape[-1]):
        raise OpError(f"inner of {a.type} and {b.type}: last extents {a.type.shape[-1]} and {b.type.shape[-1]} differ")
    return tensordot(a, b, ([-1], [-1]))


def _plus(x: Value, beta: Scalar, product_: Any, alpha: Scalar) -> Any:
    """beta * x + alpha * product; x is left out where beta is 0, NaN included, as BLAS does.

    Integers take whole factors: fractions are cut, and the result stays an integer.
    """
    if not product_.type.dtype.is_floating_point:
        beta, alpha = int(beta), int(alpha)
    out = product_ if alpha == 1 else product_ * alpha
    if beta == 0:
        return expand_to(out, broadcast_shapes(x.type.shape, out.type.shape))
    return (x if beta == 1 else x * beta) + out


def _onto(name: str, x: Value, out: Any) -> None:
    same_dtype(name, x, out)
    shape = broadcast_shapes(x.type.shape, out.type.shape)
    if len(shape) != rank(out) or not all(map(same, shape, out.type.shape)):
        raise OpError(f"{name}: {x.type} does not broadcast to the product {out.type}")


def addmm(x: Value, mat1: Value, mat2: Value, *, beta: Scalar = 1, alpha: Scalar = 1) -> Any:
    """beta * x + alpha * mat1 @ mat2."""
    out = mm(mat1, mat2)
    _onto("addmm", x, out)
    return _plus(x, beta, out, alpha)


def addmv(x: Value, mat: Value, vec: Value, *, beta: Scalar = 1, alpha: Scalar = 1) -> Any:
    """beta * x + alpha * mat @ vec."""
    out = mv(mat, vec)
    _onto("addmv", x, out)
    return _plus(x, beta, out, alpha)


def addr(x: Value, vec1: Value, vec2: Value, *, beta: Scalar = 1, alpha: Scalar = 1) -> Any:
    """beta * x + alpha * outer(vec1, vec2)."""
    out = outer(vec1, vec2)
    _onto("addr", x, out)
    return _plus(x, beta, out, alpha)


def baddbmm(x: Value, batch1: Value, batch2: Value, *, beta: Scalar = 1, alpha: Scalar = 1) -> Any:
    """beta * x + alpha * batch1 @ batch2."""
    out = bmm(batch1, batch2)
    _onto("baddbmm", x, out)
    return _plus(x, beta, out, alpha)


def addbmm(x: Value, batch1: Value, batch2: Value, *, beta: Scalar = 1, alpha: Scalar = 1) -> Any:
    """beta * x + alpha * the sum of batch1 @ batch2 over the batch."""
    out = ReduceSum((0,))(bmm(batch1, batch2))
    _onto("addbmm", x, out)
    return _plus(x, beta, out, alpha)


def chain_matmul(*matrices: Value) -> Any:
    """The product of matrices from left to right."""
    out: Any = matrices[0]
    for m in matrices[1:]:
        out = mm(out, m)
    return out


@whole
def linear(input: Value, weight: Value, bias: Value | None = None) -> Any:
    """input @ weight.T + bias."""
    if rank(weight) == 1 and bias is None:
        out = matmul(input, weight)
    else:
        _ranked("linear's weight", weight, 2)
        if not rank(input) or not same(input.type.shape[-1], weight.type.shape[1]):
            raise OpError(
                f"linear of {input.type} with weight {weight.type}: the last extent must be {weight.type.shape[1]}"
            )
        out = matmul(input, Transpose((1, 0))(weight))
    if bias is None:
        return out
    same_dtype("linear", input, bias)
    return reshape(out + bias, out.type.shape)


def bilinear(input1: Value, input2: Value, weight: Value, bias: Value | None = None) -> Any:
    """y[..., o] = sum_ij input1[..., i] weight[o, i, j] input2[..., j] + bias[o]."""
    out = einsum("...i,oij,...j->...o", input1, weight, input2)
    return out if bias is None else out + bias


def tensordot(a: Value, b: Value, dims: int | Sequence[Sequence[int]] = 2) -> Any:
    """Sums of products over pairs of axes: the last `dims` of a with the first of b, or those listed."""
    if isinstance(dims, int):
        over_a, over_b = list(range(rank(a) - dims, rank(a))), list(range(dims))
    else:
        over_a, over_b = [axis_of(d, rank(a)) for d in dims[0]], [axis_of(d, rank(b)) for d in dims[1]]
    for i, j in zip(over_a, over_b, strict=True):
        if not same(a.type.shape[i], b.type.shape[j]):
            raise OpError(f"tensordot of {a.type} and {b.type}: extents {a.type.shape[i]} and {b.type.shape[j]} differ")
    free_a, free_b = ([i for i in range(rank(v)) if i not in over] for v, over in ((a, over_a), (b, over_b)))
    shape_a, shape_b = (tuple(v.type.shape[i] for i in free) for v, free in ((a, free_a), (b, free_b)))
    inner = product(tuple(a.type.shape[i] for i in over_a))
    left = reshape(permute(a, free_a + over_a), (product(shape_a), inner))
    right = reshape(permute(b, over_b + free_b), (inner, product(shape_b)))
    return reshape(mm(left, right), shape_a + shape_b)


def kron(a: Value, b: Value) -> Any:
    """Each element of a times b, as one block matrix."""
    n = max(rank(a), rank(b))
    x, y = (reshape(v, (1,) * (n - rank(v)) + v.type.shape) for v in (a, b))
    pairs = list(zip(x.type.shape, y.type.shape, strict=True))
    wide = reshape(x, [d for p, _ in pairs for d in (p, 1)]) * reshape(y, [d for _, q in pairs for d in (1, q)])
    return reshape(wide, [p * q for p, q in pairs])


def cross(a: Value, b: Value, dim: int | None = None) -> Any:
    """The vector product along `dim`, the first axis of extent 3 unless given."""
    if rank(a) != rank(b):
        raise OpError(f"cross of {a.type} and {b.type}: ranks {rank(a)} and {rank(b)} differ")
    shape = broadcast_shapes(a.type.shape, b.type.shape)
    axis = next((i for i, d in enumerate(shape) if same(d, 3)), None) if dim is None else axis_of(dim, len(shape))
    if axis is None or not same(shape[axis], 3):
        raise OpError(f"cross of {a.type} and {b.type}: wanted extent 3 along the dim")
    x, y = expand_to(a, shape), expand_to(b, shape)
    x1, y1 = movement.roll(x, -1, axis), movement.roll(y, -1, axis)
    x2, y2 = movement.roll(x, -2, axis), movement.roll(y, -2, axis)
    return x1 * y2 - x2 * y1


# --- einsum --------------------------------------------------------------------------------------------------------


def einsum(equation: str, *operands: Any) -> Any:
    """The sum of products that `equation` names, such as "bij,bjk->bik"; operands are contracted from left to right."""
    xs: list[Any] = (
        list(operands[0]) if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else list(operands)
    )
    terms, out = _parsed(equation, xs)
    last_use: dict[str, int] = {c: i for i, term in enumerate(terms) for c in term}
    x, have = _single(xs[0], terms[0], [c for c in terms[0] if c in out or last_use[c] > 0])
    for i, (y, term) in enumerate(zip(xs[1:], terms[1:], strict=True), 1):
        y, want = _single(y, term, [c for c in term if c in out or c in have or last_use[c] > i])
        x, have = _pair(x, have, y, want, {c for c in (*have, *want) if c in out or last_use[c] > i})
    x, have = _single(x, have, [c for c in have if c in out])
    return permute(x, [have.index(c) for c in out]) if have else x


def _parsed(equation: str, xs: Sequence[Any]) -> tuple[list[list[str]], list[str]]:
    """The labels of each operand and of the result; an ellipsis becomes labels "0", "1", ... counted from its end."""
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    words = left.split(",")
    if len(words) != len(xs):
        raise OpError(f"einsum {equation!r} names {len(words)} operands, got {len(xs)}")
    terms: list[list[str]] = []
    widest = 0
    for word, x in zip(words, xs, strict=True):
        letters = word.replace("...", "")
        extra = rank(x) - len(letters)
        if extra < 0 or (extra and "..." not in word) or (not letters.isalpha() and letters):
            raise OpError(f"einsum {equation!r}: {word!r} does not describe {x.type}")
        widest = max(widest, extra)
        before, _, after = word.partition("...")
        terms.append([*before, *map(str, range(extra - 1, -1, -1)), *after])
    dots = [str(i) for i in range(widest - 1, -1, -1)]
    if arrow:
        before, ellipsis, after = right.partition("...")
        out = [*before, *(dots if ellipsis else ()), *after]
    else:
        every = [c for term in terms for c in term if c not in dots]
        out = dots + sorted(c for c in set(every) if every.count(c) == 1)
    known = {c for term in terms for c in term}
    if bad := [c for c in out if c not in known]:
        raise OpError(f"einsum {equation!r}: {bad[0]!r} of the result is in no operand")
    if len(set(out)) != len(out):
        raise OpError(f"einsum {equation!r}: a label stands twice in the result")
    return terms, out


def _single(x: Any, term: list[str], kept: list[str]) -> tuple[Any, list[str]]:
    """x with repeated labels on the diagonal and labels not in `kept` summed."""
    term = list(term)
    while repeated := next((c for c in term if term.count(c) > 1), None):
        i = term.index(repeated)
        j = term.index(repeated, i + 1)
        x = movement.diagonal(x, 0, i, j)
        term = [c for k, c in enumerate(term) if k not in (i, j)] + [repeated]
    gone = tuple(i for i, c in enumerate(term) if c not in kept)
    return (ReduceSum(gone)(x) if gone else x), [c for c in term if c in kept]


def _pair(x: Any, a: list[str], y: Any, b: list[str], kept: set[str]) -> tuple[Any, list[str]]:
    """The product of x and y, labels in both but not in `kept` contracted by one matmul."""
    x, y, extents = _agreed(x, a, y, b)
    batch = [c for c in a if c in b and c in kept]
    over = [c for c in a if c in b and c not in kept]
    free_a, free_b = [c for c in a if c not in b], [c for c in b if c not in a]
    if not over:
        left = permute(x, [a.index(c) for c in batch + free_a]) if a else x
        left = reshape(left, left.type.shape + (1,) * len(free_b))
        right = permute(y, [b.index(c) for c in batch + free_b]) if b else y
        right = reshape(right, [extents[c] for c in batch] + [1] * len(free_a) + [extents[c] for c in free_b])
        return left * right, batch + free_a + free_b

    def size(labels: list[str]) -> Extent:
        return product(tuple(extents[c] for c in labels))

    same_dtype("einsum", x, y)
    lead = [extents[c] for c in batch]
    left = reshape(permute(x, [a.index(c) for c in batch + free_a + over]), (*lead, size(free_a), size(over)))
    right = reshape(permute(y, [b.index(c) for c in batch + over + free_b]), (*lead, size(over), size(free_b)))
    names = batch + free_a + free_b
    return reshape(MatMul()(left, right), [extents[c] for c in names]), names


def _agreed(x: Any, a: list[str], y: Any, b: list[str]) -> tuple[Any, Any, dict[str, Extent]]:
    """x and y with shared labels broadcast to one extent."""
    extents: dict[str, Extent] = {}
    for labels, v in ((a, x), (b, y)):
        for c, d in zip(labels, v.type.shape, strict=True):
            have = extents.get(c)
            if have is None or same(have, 1):
                extents[c] = d
            elif not same(d, 1) and not same(d, have):
                raise OpError(f"einsum label {c!r} has extents {have} and {d}")
    return expand_to(x, tuple(extents[c] for c in a)), expand_to(y, tuple(extents[c] for c in b)), extents


# --- distances -----------------------------------------------------------------------------------------------------


def cosine_similarity(x1: Value, x2: Value, dim: int = 1, eps: float = 1e-8) -> Any:
    """sum x1 * x2 / (|x1| |x2|) along `dim`, each norm at least eps."""
    a, b = movement.broadcast_tensors(x1, x2)
    return sum(_unit(a, dim, eps) * _unit(b, dim, eps), dim)


def _unit(x: Any, dim: int, eps: float) -> Any:
    length = vector_norm(x, 2, dim, keepdim=True)
    return x / where(length < eps, eps, length)


def normalize(input: Value, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Any:
    """input / max(norm, eps) along `dim`."""
    length = vector_norm(input, p, dim, keepdim=True)
    return input / where(length < eps, eps, length)


def pairwise_distance(x1: Value, x2: Value, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Any:
    """|x1 - x2 + eps| along the last axis."""
    return vector_norm(x1 - x2 + eps, p, -1, keepdim)


def cdist(x1: Value, x2: Value, p: float = 2.0, compute_mode: str | None = None) -> Any:
    """y[..., i, j] = |x1[..., i] - x2[..., j]|; `compute_mode`, a matter of speed in PyTorch, changes nothing."""
    return vector_norm(unsqueeze(x1, -2) - unsqueeze(x2, -3), p, -1)
