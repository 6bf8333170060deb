"""Shapes in PyTorch's words: everything here is reshape, transpose, broadcast, slice, pad, flip and concat."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from tracejit.errors import IndexOutOfRange, OpError
from tracejit.ir.dim import Extent, Shape, product, same
from tracejit.ir.dtype import int64
from tracejit.ir.node import Scalar, Value, broadcast_shapes, cast, common_dtype, constant, expand_to
from tracejit.ops.composed.axes import axes_of, axis_of, fresh, rank
from tracejit.ops.composed.whole import whole
from tracejit.ops.movement import Broadcast, Concat, Flip, Pad, Reshape, Slice, Transpose, UpdateSlice
from tracejit.ops.reduce import ReduceSum

__all__ = [
    "adjoint", "atleast_1d", "atleast_2d", "atleast_3d", "block_diag", "broadcast_tensors", "broadcast_to",
    "cartesian_prod", "cat", "channel_shuffle", "chunk", "column_stack", "concat", "concatenate", "constant_pad_nd",
    "diagonal", "diagonal_scatter", "dsplit", "dstack", "expand", "expand_as", "flatten", "flip", "fliplr", "flipud",
    "hsplit", "hstack", "meshgrid", "moveaxis", "movedim", "narrow", "pad", "permute", "pixel_shuffle",
    "pixel_unshuffle", "ravel", "repeat", "reshape", "reshape_as", "roll", "rot90", "row_stack", "select",
    "select_scatter", "slice_scatter", "split", "split_with_sizes", "squeeze", "stack", "sum_to_size", "swapaxes",
    "swapdims", "t", "tensor_split", "tile", "transpose", "unbind", "unflatten", "unsafe_chunk", "unsafe_split",
    "unsqueeze", "view", "view_as", "vsplit", "vstack",
]  # fmt: skip


# --- one shape to another ------------------------------------------------------------------------------------------


def reshape(x: Value, shape: Sequence[Extent]) -> Any:
    """x's elements in row-major order as `shape`, in which one extent may be -1."""
    have: Shape = x.type.shape
    want = tuple(shape)
    holes = [i for i, d in enumerate(want) if same(d, -1)]
    if len(holes) > 1:
        raise OpError(f"reshape of {x.type} to {list(want)}: only one extent can be -1")
    if holes:
        want = tuple(_missing(x, have, want) if i == holes[0] else d for i, d in enumerate(want))
    if not same(product(want), product(have)):
        raise OpError(f"reshape of {x.type} to {list(shape)}: {product(have)} elements do not fit {product(want)}")
    if len(want) == len(have) and all(map(same, want, have)):
        return x
    return Reshape(want)(x)


def _missing(x: Value, have: Shape, want: Shape) -> Extent:
    """The extent that stands for -1 in `want`."""
    rest = list(have)
    known: Extent = 1
    for d in want:
        if same(d, -1):
            continue
        match = next((i for i, r in enumerate(rest) if same(r, d) and not same(d, 1)), None)
        if match is None:
            known = known * d
        else:
            rest.pop(match)
    total = product(tuple(rest))
    if any(same(d, 0) for d in want):  # 0 times anything is 0
        raise OpError(f"reshape of {x.type} to {list(want)}: -1 cannot be inferred beside an extent of 0")
    if same(known, 1):
        return total
    if not isinstance(known, int) or known == 0 or (isinstance(total, int) and total % known):
        raise OpError(f"reshape of {x.type} to {list(want)}: -1 cannot be inferred")
    return total // known


view = reshape


def view_as(x: Value, other: Value) -> Any:
    """x in other's shape."""
    return reshape(x, other.type.shape)


def flatten(x: Value, start_dim: int = 0, end_dim: int = -1) -> Any:
    """x with dims start_dim .. end_dim made one."""
    if not rank(x):
        return reshape(x, (1,))
    a, b = axis_of(start_dim, rank(x)), axis_of(end_dim, rank(x))
    if a > b:
        raise OpError(f"flatten of {x.type}: start_dim {start_dim} comes after end_dim {end_dim}")
    shape: Shape = x.type.shape
    return reshape(x, (*shape[:a], product(shape[a : b + 1]), *shape[b + 1 :]))


def ravel(x: Value) -> Any:
    """x as one row."""
    return reshape(x, (product(x.type.shape),))


def unflatten(x: Value, dim: int, sizes: Sequence[Extent]) -> Any:
    """x with `dim` split into `sizes`, one of which may be -1."""
    axis = axis_of(dim, rank(x))
    shape: Shape = x.type.shape
    sizes = tuple(sizes)
    if any(same(s, -1) for s in sizes):
        known = product(tuple(s for s in sizes if not same(s, -1)))
        if not isinstance(known, int) or known == 0:
            raise OpError(f"unflatten of {x.type} to {list(sizes)}: -1 cannot be inferred")
        sizes = tuple(shape[axis] // known if same(s, -1) else s for s in sizes)
    if not same(product(sizes), shape[axis]):
        raise OpError(f"unflatten of {x.type} at dim {dim}: {list(sizes)} does not multiply to {shape[axis]}")
    return reshape(x, (*shape[:axis], *sizes, *shape[axis + 1 :]))


def squeeze(x: Value, dim: int | Sequence[int] | None = None) -> Any:
    """x without its extents 1, or without those of `dim` that are 1."""
    axes = axes_of(dim, rank(x)) if not isinstance(dim, Sequence) or dim else ()
    shape: Shape = x.type.shape
    return reshape(x, tuple(d for i, d in enumerate(shape) if i not in axes or not same(d, 1)))


def unsqueeze(x: Value, dim: int) -> Any:
    """x with an extent 1 inserted at `dim`."""
    axis = axis_of(dim, rank(x) + 1)
    shape: Shape = x.type.shape
    return reshape(x, (*shape[:axis], 1, *shape[axis:]))


def atleast_1d(*tensors: Value) -> Any:
    """The tensors, those of rank 0 as one element."""
    return _at_least(1, tensors)


def atleast_2d(*tensors: Value) -> Any:
    """The tensors with extents 1 in front up to rank 2."""
    return _at_least(2, tensors)


def atleast_3d(*tensors: Value) -> Any:
    """The tensors with extents 1 up to rank 3; a matrix gets the last one behind."""
    return _at_least(3, tensors)


def _at_least(n: int, tensors: Sequence[Any]) -> Any:
    if len(tensors) == 1 and not isinstance(tensors[0], Value):
        tensors = tensors[0]
    out: list[Any] = []
    for x in tensors:
        if n == 3 and rank(x) == 2:
            out.append(unsqueeze(x, 2))
        elif n == 3 and rank(x) == 1:
            out.append(reshape(x, (1, x.type.shape[0], 1)))
        else:
            out.append(reshape(x, (1,) * (n - rank(x)) + x.type.shape))
    return out[0] if len(out) == 1 else tuple(out)


# --- order of axes -------------------------------------------------------------------------------------------------


def permute(x: Value, dims: Sequence[int]) -> Any:
    """Axis i of the result is axis dims[i] of x."""
    perm = tuple(axis_of(d, rank(x)) for d in dims)
    if sorted(perm) != list(range(rank(x))):
        raise OpError(f"permute of {x.type} by {list(dims)}: every dim must be named once")
    return x if perm == tuple(range(rank(x))) else Transpose(perm)(x)


def transpose(x: Value, dim0: int, dim1: int) -> Any:
    """x with two axes exchanged."""
    perm = list(range(rank(x)))
    a, b = axis_of(dim0, rank(x)), axis_of(dim1, rank(x))
    if a == b:
        return x
    perm[a], perm[b] = b, a
    return Transpose(tuple(perm))(x)


swapaxes = swapdims = transpose


def t(x: Value) -> Any:
    """A matrix transposed; rank 0 and 1 as they are."""
    if rank(x) > 2:
        raise OpError(f"t() of {x.type}: wanted rank 2 or less, use transpose")
    return x if rank(x) < 2 else Transpose((1, 0))(x)


def adjoint(x: Value) -> Any:
    """x with its last two axes exchanged."""
    return transpose(x, -2, -1)


def movedim(x: Value, source: int | Sequence[int], destination: int | Sequence[int]) -> Any:
    """x with the axes `source` at the places `destination`, the others in their order."""
    src = [axis_of(d, rank(x)) for d in ([source] if isinstance(source, int) else source)]
    dst = [axis_of(d, rank(x)) for d in ([destination] if isinstance(destination, int) else destination)]
    if len(src) != len(dst) or len(set(src)) != len(src) or len(set(dst)) != len(dst):
        raise OpError(f"movedim from {src} to {dst}: wanted as many distinct sources as destinations")
    placed = dict(zip(dst, src, strict=True))
    rest = iter(i for i in range(rank(x)) if i not in src)
    return permute(x, [placed[i] if i in placed else next(rest) for i in range(rank(x))]) if rank(x) else x


moveaxis = movedim


# --- repetition ----------------------------------------------------------------------------------------------------


def expand(x: Value, shape: Sequence[Extent]) -> Any:
    """x repeated along extents 1 to `shape`; -1 keeps an extent."""
    lead = len(shape) - rank(x)
    if lead < 0:
        raise OpError(f"expand of {x.type} to {list(shape)}: fewer dims than the tensor has")
    want: list[Extent] = []
    for i, d in enumerate(shape):
        if same(d, -1) and i < lead:
            raise OpError(f"expand of {x.type} to {list(shape)}: -1 is for existing dims")
        want.append(x.type.shape[i - lead] if same(d, -1) else d)
    return expand_to(x, tuple(want))


broadcast_to = expand


def expand_as(x: Value, other: Value) -> Any:
    """x expanded to other's shape."""
    return expand(x, other.type.shape)


def broadcast_tensors(*tensors: Value) -> tuple[Any, ...]:
    """The tensors, each expanded to the common shape."""
    shape = broadcast_shapes(*(x.type.shape for x in tensors))
    return tuple(expand_to(x, shape) for x in tensors)


def repeat(x: Value, repeats: Sequence[int]) -> Any:
    """x laid side by side repeats[i] times along each axis; more repeats than axes add axes in front."""
    if len(repeats) < rank(x):
        raise OpError(f"repeat of {x.type} by {list(repeats)}: wanted at least {rank(x)} counts")
    shape: Shape = (1,) * (len(repeats) - rank(x)) + x.type.shape
    if all(n == 1 for n in repeats):
        return reshape(x, shape)
    grid: list[Extent] = []  # count and extent of each axis in turn; counts of 1 need no axis
    kept: list[int] = []
    for n, d in zip(repeats, shape, strict=True):
        if n != 1:
            grid.append(n)
        kept.append(len(grid))
        grid.append(d)
    y = Broadcast(tuple(grid), tuple(kept))(reshape(x, shape))
    return reshape(y, [n * d for n, d in zip(repeats, shape, strict=True)])


def tile(x: Value, dims: Sequence[int]) -> Any:
    """As repeat, with missing counts taken as 1."""
    return repeat(x, (1,) * (rank(x) - len(dims)) + tuple(dims))


def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Any, ...]:
    """Each vector spread over the grid of all; "xy" exchanges the first two axes."""
    xs: list[Any] = list(tensors[0]) if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else list(tensors)
    if indexing not in ("ij", "xy"):
        raise OpError(f"meshgrid indexing is {indexing!r}, wanted 'ij' or 'xy'")
    if bad := [x for x in xs if rank(x) > 1]:
        raise OpError(f"meshgrid wants vectors, got {bad[0].type}")
    xs = [reshape(x, (1,)) if not rank(x) else x for x in xs]
    if indexing == "xy" and len(xs) > 1:
        y, x, *rest = meshgrid(xs[1], xs[0], *xs[2:])
        return (x, y, *rest)
    shape = tuple(x.type.shape[0] for x in xs)
    return tuple(Broadcast(shape, (i,))(x) for i, x in enumerate(xs))


# --- joining and splitting -----------------------------------------------------------------------------------------


def cat(tensors: Sequence[Value], dim: int = 0) -> Any:
    """The tensors one after another along `dim`, promoted to one dtype."""
    if not tensors:
        raise OpError("cat of no tensors: wanted at least one")
    dtype = common_dtype(*tensors)
    xs = [x for x in tensors if not (rank(x) == 1 and same(x.type.shape[0], 0))]  # PyTorch skips empty vectors
    if not xs:
        return cast(tensors[0], dtype)
    if not rank(xs[0]):
        raise OpError(f"cat of {xs[0].type}: rank-0 tensors cannot be joined, use stack")
    xs = [cast(x, dtype) for x in xs]
    return Concat(axis_of(dim, rank(xs[0])))(*xs) if len(xs) > 1 else fresh(xs[0])


concat = concatenate = cat


@whole
def stack(tensors: Sequence[Value], dim: int = 0) -> Any:
    """The tensors, all of one shape, along a new axis `dim`."""
    if not tensors:
        raise OpError("stack of no tensors: wanted at least one")
    first: Shape = tensors[0].type.shape
    for x in tensors:
        if len(x.type.shape) != len(first) or not all(map(same, x.type.shape, first)):
            raise OpError(f"stack of {tensors[0].type} and {x.type}: shapes differ")
    axis = axis_of(dim, len(first) + 1)
    dtype = common_dtype(*tensors)
    parts = [unsqueeze(cast(x, dtype), axis) for x in tensors]
    return Concat(axis)(*parts) if len(parts) > 1 else parts[0]


def hstack(tensors: Sequence[Value]) -> Any:
    """The tensors side by side: along axis 0 for vectors, else axis 1."""
    xs = [x if rank(x) else reshape(x, (1,)) for x in tensors]
    return cat(xs, 0 if rank(xs[0]) == 1 else 1)


def vstack(tensors: Sequence[Value]) -> Any:
    """The tensors below each other."""
    return cat([atleast_2d(x) for x in tensors], 0)


row_stack = vstack


def dstack(tensors: Sequence[Value]) -> Any:
    """The tensors behind each other."""
    return cat([atleast_3d(x) for x in tensors], 2)


def column_stack(tensors: Sequence[Value]) -> Any:
    """Vectors as columns, matrices as they are, side by side."""
    return cat([x if rank(x) > 1 else reshape(x, (product(x.type.shape), 1)) for x in tensors], 1)


def slice_along(x: Value, axis: int, start: int, stop: int, step: int = 1) -> Any:
    """x[start:stop:step] along `axis`; bounds already in range."""
    shape: Shape = x.type.shape
    if start == 0 and step == 1 and same(stop, shape[axis]):
        return x
    starts = tuple(start if i == axis else 0 for i in range(len(shape)))
    limits = tuple(stop if i == axis else d for i, d in enumerate(shape))
    return Slice(starts, limits, tuple(step if i == axis else 1 for i in range(len(shape))))(x)


def narrow(x: Value, dim: int, start: int, length: int) -> Any:
    """`length` positions of `dim` from `start`."""
    axis = axis_of(dim, rank(x))
    n = x.type.shape[axis]
    first = start + n if start < 0 else start
    if not (0 <= first <= n and 0 <= length <= n - first):
        raise IndexOutOfRange(f"narrow of {x.type} at dim {dim}: {start} .. {start} + {length} leaves extent {n}")
    return slice_along(x, axis, first, first + length)


def select(x: Value, dim: int, index: int) -> Any:
    """x at one position of `dim`, which is dropped."""
    if not rank(x):
        raise IndexOutOfRange(f"select of {x.type}: a rank-0 tensor has no dims")
    axis = axis_of(dim, rank(x))
    shape: Shape = x.type.shape
    n = shape[axis]
    if isinstance(n, int) and not -n <= index < n:
        raise IndexOutOfRange(f"index {index} is out of range for dim {dim} of {x.type}")
    at = index + n if index < 0 else index
    return reshape(slice_along(x, axis, at, at + 1), shape[:axis] + shape[axis + 1 :])  # type: ignore[arg-type]


def split(x: Value, split_size_or_sections: int | Sequence[int], dim: int = 0) -> tuple[Any, ...]:
    """x cut along `dim` into pieces of one size (the last may be shorter) or of the given sizes."""
    axis = axis_of(dim, rank(x))
    n = x.type.shape[axis]
    if isinstance(split_size_or_sections, int):
        size = split_size_or_sections
        if size < 0 or (size == 0 and n != 0):
            raise OpError(f"split of {x.type} into pieces of {size}: wanted a positive size")
        sizes = [min(size, n - at) for at in range(0, int(n), size)] if n else [0]
    else:
        sizes = list(split_size_or_sections)
        if sum(sizes) != n or any(s < 0 for s in sizes):
            raise OpError(f"split of {x.type} at dim {dim} into {sizes}: the sizes must add up to {n}")
    out: list[Any] = []
    at = 0
    for s in sizes:
        out.append(slice_along(x, axis, at, at + s))
        at += s
    return tuple(out)


def chunk(x: Value, chunks: int, dim: int = 0) -> tuple[Any, ...]:
    """x cut along `dim` into at most `chunks` pieces of equal size, the last possibly shorter."""
    if chunks < 1:
        raise OpError(f"chunk of {x.type} into {chunks}: wanted at least 1")
    n = x.type.shape[axis_of(dim, rank(x))]
    return split(x, -(-n // chunks), dim) if n else split(x, [0] * chunks, dim)


def tensor_split(x: Value, indices_or_sections: int | Sequence[int], dim: int = 0) -> tuple[Any, ...]:
    """x cut along `dim` at the given indices, or into that many nearly equal pieces."""
    axis = axis_of(dim, rank(x))
    n = x.type.shape[axis]
    if isinstance(indices_or_sections, int):
        if indices_or_sections < 1:
            raise OpError(f"tensor_split of {x.type} into {indices_or_sections}: wanted at least 1")
        size, extra = divmod(n, indices_or_sections)
        cuts = [i * size + min(i, extra) for i in range(1, indices_or_sections)]
    else:
        cuts = [min(max(c + n if c < 0 else c, 0), n) for c in indices_or_sections]
    bounds = [0, *cuts, n]
    return tuple(slice_along(x, axis, a, max(a, b)) for a, b in itertools.pairwise(bounds))


def unbind(x: Value, dim: int = 0) -> tuple[Any, ...]:
    """The slices of x along `dim`."""
    if not rank(x):
        raise OpError(f"unbind of {x.type}: wanted rank 1 or more")
    return tuple(select(x, dim, i) for i in range(int(x.type.shape[axis_of(dim, rank(x))])))


# --- flips, rolls, pads --------------------------------------------------------------------------------------------


def flip(x: Value, dims: int | Sequence[int]) -> Any:
    """x reversed along `dims`."""
    if not isinstance(dims, int) and not dims:
        return fresh(x)
    axes = axes_of(dims, rank(x))
    return Flip(axes)(x) if axes else fresh(x)


def fliplr(x: Value) -> Any:
    """x reversed along axis 1."""
    return flip(x, 1)


def flipud(x: Value) -> Any:
    """x reversed along axis 0."""
    if not rank(x):
        raise OpError(f"flipud of {x.type}: wanted rank 1 or more")
    return flip(x, 0)


def rot90(x: Value, k: int = 1, dims: Sequence[int] = (0, 1)) -> Any:
    """x turned k times by 90 degrees from axis dims[0] to dims[1]."""
    if len(dims) != 2 or axis_of(dims[0], rank(x)) == axis_of(dims[1], rank(x)):
        raise OpError(f"rot90 of {x.type} by dims {list(dims)}: wanted two different dims")
    a, b = dims
    k %= 4
    if k == 2:
        return flip(x, dims)
    return fresh(x) if k == 0 else flip(transpose(x, a, b), a if k == 1 else b)


def roll(x: Value, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None) -> Any:
    """x shifted along `dims`, what leaves at the end comes in at the start; without dims as one long row."""
    if dims is None:
        return reshape(roll(ravel(x), shifts, 0), x.type.shape)
    by = [shifts] if isinstance(shifts, int) else list(shifts)
    along = [dims] if isinstance(dims, int) else list(dims)
    if len(by) != len(along):
        raise OpError(f"roll by {by} along {along}: wanted one shift for each dim")
    for shift, dim in zip(by, along, strict=True):
        axis = axis_of(dim, rank(x))
        n = x.type.shape[axis]
        if n and (cut := -shift % n):
            x = Concat(axis)(slice_along(x, axis, cut, n), slice_along(x, axis, 0, cut))
    return fresh(x)


def pad(x: Value, pad: Sequence[int], mode: str = "constant", value: Scalar | None = None) -> Any:
    """x with pad[0], pad[1] positions added at both ends of the last axis, pad[2], pad[3] at the one before, ...

    `mode` is constant (negative widths cut off), reflect, replicate or circular.
    """
    widths = list(pad)
    if len(widths) % 2 or len(widths) > 2 * rank(x):
        raise OpError(f"pad of {x.type} by {widths}: wanted two widths for each of at most {rank(x)} dims")
    if mode == "constant":
        return constant_pad_nd(x, widths, value or 0)
    pairs = _width_pairs(x, widths)
    if mode not in _EDGES:
        raise OpError(f"pad mode is {mode!r}, wanted 'constant', 'reflect', 'replicate' or 'circular'")
    if rank(x) < 2 or len(widths) // 2 > rank(x) - 1:
        raise OpError(
            f"pad of {x.type} by {widths} with mode {mode!r}: only the spatial dims behind the first can be padded"
        )
    for axis, (low, high) in pairs.items():
        x = _EDGES[mode](x, axis, low, high)
    return x


def _width_pairs(x: Value, widths: Sequence[int]) -> dict[int, tuple[int, int]]:
    """axis -> (low, high)"""
    return {rank(x) - 1 - i // 2: (widths[i], widths[i + 1]) for i in range(0, len(widths), 2)}


def constant_pad_nd(x: Value, pad: Sequence[int], value: Scalar = 0) -> Any:
    """x with `value` around it; negative widths cut off."""
    pairs = _width_pairs(x, pad)
    shape: Shape = x.type.shape
    for axis, (low, high) in pairs.items():
        n = shape[axis]
        if isinstance(n, int) and n + low + high < 0:
            raise OpError(f"pad of {x.type} by {list(pad)}: dim {axis} would have {n + low + high} positions")
    if not any(pad):
        return fresh(x)
    low = tuple(pairs.get(i, (0, 0))[0] for i in range(rank(x)))
    high = tuple(pairs.get(i, (0, 0))[1] for i in range(rank(x)))
    fill = constant(x, x.type.dtype.numpy.type(value).item(), x.type.dtype)
    return Pad(low, high, (0,) * rank(x))(x, fill)


def _cut(x: Any, axis: int, low: int, high: int) -> Any:
    n = x.type.shape[axis]
    return slice_along(x, axis, max(-low, 0), n - max(-high, 0))


def _join(axis: int, parts: Sequence[Any]) -> Any:
    parts = [q for q in parts if q is not None]
    return Concat(axis)(*parts) if len(parts) > 1 else parts[0]


def _reflect(x: Any, axis: int, low: int, high: int) -> Any:
    n = x.type.shape[axis]
    if max(low, high) >= n:
        raise OpError(f"reflect padding by ({low}, {high}) of {x.type} at dim {axis}: wanted less than {n}")
    before = Flip((axis,))(slice_along(x, axis, 1, low + 1)) if low > 0 else None
    after = Flip((axis,))(slice_along(x, axis, n - 1 - high, n - 1)) if high > 0 else None
    return _join(axis, [before, _cut(x, axis, low, high), after])


def _replicate(x: Any, axis: int, low: int, high: int) -> Any:
    n = x.type.shape[axis]
    if n == 0:
        raise OpError(f"replicate padding of {x.type}: dim {axis} has no edge to repeat")
    shape: Shape = x.type.shape

    def edge(at: int, count: int) -> Any:
        want = tuple(count if i == axis else d for i, d in enumerate(shape))
        return expand_to(slice_along(x, axis, at, at + 1), want) if count > 0 else None

    return _join(axis, [edge(0, low), _cut(x, axis, low, high), edge(n - 1, high)])


def _circular(x: Any, axis: int, low: int, high: int) -> Any:
    n = x.type.shape[axis]
    if max(low, high) > n:
        raise OpError(f"circular padding by ({low}, {high}) of {x.type} at dim {axis}: wanted at most {n}")
    # What wraps around is what negative widths leave: the ring is cut first.
    first, last = max(-low, 0), n - max(-high, 0)
    before = slice_along(x, axis, last - low, last) if low > 0 else None
    after = slice_along(x, axis, first, first + high) if high > 0 else None
    return _join(axis, [before, _cut(x, axis, low, high), after])


_EDGES = {"reflect": _reflect, "replicate": _replicate, "circular": _circular}


def diagonal(x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """The diagonal of the axes dim1, dim2, `offset` to the right, as last axis."""
    a, b = axis_of(dim1, rank(x)), axis_of(dim2, rank(x))
    if rank(x) < 2 or a == b:
        raise OpError(f"diagonal of {x.type} over dims {dim1} and {dim2}: wanted two different dims")
    y = permute(x, [i for i in range(rank(x)) if i not in (a, b)] + [a, b])
    *batch, rows, columns = y.type.shape
    count = max(min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns), 0)
    first = (offset if offset >= 0 else -offset * columns) if count else 0
    row = reshape(y, (*batch, rows * columns))
    return slice_along(row, len(batch), first, first + (count - 1) * (columns + 1) + 1 if count else first, columns + 1)


# --- parts by other names, and parts replaced ----------------------------------------------------------------------


def hsplit(x: Value, indices_or_sections: int | Sequence[int]) -> tuple[Any, ...]:
    """x cut along axis 1 (0 for vectors), as `tensor_split` does, but into equal parts only."""
    if not rank(x):
        raise OpError(f"hsplit of {x.type}: wanted rank 1 or more")
    return _even_split("hsplit", x, indices_or_sections, 0 if rank(x) == 1 else 1)


def vsplit(x: Value, indices_or_sections: int | Sequence[int]) -> tuple[Any, ...]:
    """x cut along axis 0."""
    if rank(x) < 2:
        raise OpError(f"vsplit of {x.type}: wanted rank 2 or more")
    return _even_split("vsplit", x, indices_or_sections, 0)


def dsplit(x: Value, indices_or_sections: int | Sequence[int]) -> tuple[Any, ...]:
    """x cut along axis 2."""
    if rank(x) < 3:
        raise OpError(f"dsplit of {x.type}: wanted rank 3 or more")
    return _even_split("dsplit", x, indices_or_sections, 2)


def _even_split(name: str, x: Value, at: int | Sequence[int], axis: int) -> tuple[Any, ...]:
    if isinstance(at, int) and (at < 1 or x.type.shape[axis] % at):
        raise OpError(f"{name} of {x.type} into {at}: extent {x.type.shape[axis]} does not divide")
    return tensor_split(x, at, axis)


def split_with_sizes(x: Value, split_sizes: Sequence[int], dim: int = 0) -> tuple[Any, ...]:
    """x cut along `dim` into pieces of the given sizes."""
    return split(x, split_sizes, dim)


unsafe_chunk, unsafe_split = chunk, split


def reshape_as(x: Value, other: Value) -> Any:
    """x in other's shape."""
    return reshape(x, other.type.shape)


def sum_to_size(x: Value, size: Sequence[int]) -> Any:
    """x summed to `size`, a shape that broadcasts to x's."""
    lead = rank(x) - len(size)
    if lead < 0 or any(not same(d, 1) and not same(d, n) for d, n in zip(size, x.type.shape[lead:], strict=True)):
        raise OpError(f"sum_to_size of {x.type} to {list(size)}: the size does not broadcast to the tensor")
    x = x if x.type.dtype.is_floating_point else cast(x, int64)
    axes = tuple(range(lead)) + tuple(
        i + lead for i, d in enumerate(size) if same(d, 1) and not same(x.type.shape[i + lead], 1)
    )
    return reshape(ReduceSum(axes)(x), size) if axes else x


def select_scatter(x: Value, src: Value, dim: int, index: int) -> Any:
    """x with one position of `dim` replaced by `src`."""
    axis = axis_of(dim, rank(x))
    part = select(x, dim, index)
    if len(part.type.shape) != rank(src) or not all(map(same, part.type.shape, src.type.shape)):
        raise OpError(f"select_scatter into {x.type} at dim {dim}: wanted {part.type}, got {src.type}")
    n = x.type.shape[axis]
    return _replaced(x, unsqueeze(src, axis), axis, index + n if index < 0 else index, 1)


def slice_scatter(
    x: Value, src: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    """x with x[start:end:step] of `dim` replaced by `src`."""
    axis = axis_of(dim, rank(x))
    if step < 1:
        raise OpError(f"slice_scatter step is {step}, wanted 1 or more")
    first, stop, _ = slice(start, end, step).indices(x.type.shape[axis])
    want = tuple(max(0, -(-(stop - first) // step)) if i == axis else d for i, d in enumerate(x.type.shape))
    if len(want) != rank(src) or not all(map(same, want, src.type.shape)):
        raise OpError(f"slice_scatter into {x.type} at dim {dim}: wanted a source of {list(want)}, got {src.type}")
    return _replaced(x, src, axis, first, step)


def _replaced(x: Any, part: Any, axis: int, start: int, step: int) -> Any:
    if any(same(d, 0) for d in part.type.shape):
        return fresh(x)
    starts = tuple(start if i == axis else 0 for i in range(rank(x)))
    return UpdateSlice(starts, tuple(step if i == axis else 1 for i in range(rank(x))))(x, cast(part, x.type.dtype))


def diagonal_scatter(x: Value, src: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """x with its diagonal replaced by `src`."""
    part = diagonal(x, offset, dim1, dim2)
    if len(part.type.shape) != rank(src) or not all(map(same, part.type.shape, src.type.shape)):
        raise OpError(f"diagonal_scatter into {x.type}: wanted {part.type}, got {src.type}")
    a, b = axis_of(dim1, rank(x)), axis_of(dim2, rank(x))
    order = [i for i in range(rank(x)) if i not in (a, b)] + [a, b]
    y = permute(x, order)
    *batch, rows, columns = y.type.shape
    count = part.type.shape[-1]
    if not count:
        return fresh(x)
    first = offset if offset >= 0 else -offset * columns
    line = _replaced(reshape(y, (*batch, rows * columns)), src, len(batch), first, columns + 1)
    return permute(reshape(line, y.type.shape), [order.index(i) for i in range(rank(x))])


def block_diag(*tensors: Value) -> Any:
    """The matrices along the diagonal of one, zero elsewhere; vectors are rows."""
    xs = [atleast_2d(x) for x in tensors]
    if bad := [x for x in xs if rank(x) > 2]:
        raise OpError(f"block_diag wants matrices, got {bad[0].type}")
    width, before = sum(x.type.shape[1] for x in xs), 0
    rows: list[Any] = []
    for x in xs:
        rows.append(pad(x, (before, width - before - x.type.shape[1])))
        before += x.type.shape[1]
    return cat(rows)


def cartesian_prod(*tensors: Value) -> Any:
    """Every choice of one element from each vector, as rows."""
    return ravel(tensors[0]) if len(tensors) == 1 else stack([ravel(g) for g in meshgrid(*tensors)], 1)


# --- channels and pixels -------------------------------------------------------------------------------------------


def pixel_shuffle(x: Value, upscale_factor: int) -> Any:
    """[*, c*r*r, h, w] as [*, c, h*r, w*r]."""
    r = upscale_factor
    *batch, c, h, w = x.type.shape
    if c % (r * r):
        raise OpError(f"pixel_shuffle of {x.type} by {r}: channels {c} are not a multiple of {r * r}")
    n = len(batch)
    y = reshape(x, (*batch, c // (r * r), r, r, h, w))
    y = permute(y, [*range(n), n, n + 3, n + 1, n + 4, n + 2])
    return reshape(y, (*batch, c // (r * r), h * r, w * r))


def pixel_unshuffle(x: Value, downscale_factor: int) -> Any:
    """[*, c, h*r, w*r] as [*, c*r*r, h, w]."""
    r = downscale_factor
    *batch, c, h, w = x.type.shape
    if h % r or w % r:
        raise OpError(f"pixel_unshuffle of {x.type} by {r}: height {h} and width {w} are not multiples of {r}")
    n = len(batch)
    y = reshape(x, (*batch, c, h // r, r, w // r, r))
    y = permute(y, [*range(n), n, n + 2, n + 4, n + 1, n + 3])
    return reshape(y, (*batch, c * r * r, h // r, w // r))


def channel_shuffle(x: Value, groups: int) -> Any:
    """Channels of `groups` groups interleaved."""
    n, c, *space = x.type.shape
    if c % groups:
        raise OpError(f"channel_shuffle of {x.type} into {groups} groups: channels {c} do not divide")
    return reshape(transpose(reshape(x, (n, groups, c // groups, *space)), 1, 2), x.type.shape)
