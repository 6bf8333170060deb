"""y[n, g, o, p] = sum_{c, q} w[g, o, c, q] x[n, g, c, p * stride + q * dilation] as implicit matrix products.

Up to three spatial axes. x is read as if padded by zeros (`low`, `high`, negative crops) and with base - 1 zeros
between elements, so that the gradients, which are convolutions of such tensors, need no padded copy of them; x, w and y
have any strides, so that swapped and flipped operands are free. `parts` does away with those zeros where it can. Two
kernels share the register tile of `tile.py`:

- `conv` has outputs as columns: rows are o, k runs over (c, q), and panels of patches are gathered from a padded copy
  of a few images at a time, which stays in cache and holds columns of one stride phase side by side.
- `conv_rows` has outputs as rows and o as columns: for few outputs that sum over many positions, as the gradient of
  weights. Patches are not copied at all: the tile reads them through a table of rows and a table of k.

Sums run over k in the same order whatever the split, so results do not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from tracejit.codegen.llvm.matmul import Call, blocks, kernel, round_up
from tracejit.codegen.llvm.text import OUTER, Function, Module, Slots, Type, Value, i64, ptr
from tracejit.codegen.llvm.tile import (
    ACCUMULATE,
    BIAS,
    BIAS_ROWS,
    Tiling,
    call_tile,
    epilogue,
    pack_symbol,
    pack_text,
    tell,
    tell_rows,
    tiles_text,
    tiling,
    told,
)
from tracejit.records import dataclass

__all__ = ["Convolution", "Part", "kernel_texts", "parts", "plan"]

Spatial = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Convolution:
    """One convolution. Strides count elements; there are three spatial axes, leading ones of extent 1 if need be."""

    n: int
    g: int
    o: int
    c: int
    size: Spatial  # of x, before padding
    window: Spatial  # of w
    stride: Spatial
    dilation: Spatial
    low: Spatial
    high: Spatial
    base: Spatial  # 1 + zeros between elements of x
    x: tuple[int, ...]  # strides: n, g, c, three spatial
    w: tuple[int, ...]  # strides: g, o, c, three spatial
    y: tuple[int, ...]  # strides: n, g, o, three spatial

    @property
    def padded(self) -> Spatial:
        """Extents of x with its padding."""
        d, h, w = (
            lo + max((s - 1) * b + 1, 0) + hi
            for s, lo, hi, b in zip(self.size, self.low, self.high, self.base, strict=True)
        )
        return d, h, w

    @property
    def out(self) -> Spatial:
        """Extents of y."""
        d, h, w = (
            max((p - (k - 1) * dil - 1) // s + 1, 0)
            for p, k, s, dil in zip(self.padded, self.window, self.stride, self.dilation, strict=True)
        )
        return d, h, w

    @property
    def is_dense(self) -> bool:
        """True where the pixels of y are contiguous."""
        _, h, w = self.out
        return all(n == 1 or a == b for n, a, b in zip(self.out, self.y[3:], (h * w, w, 1), strict=True))

    @property
    def valid(self) -> tuple[Spatial, Spatial]:
        """First and one past the last index of x that lies inside the padded extents, for each axis."""
        axes = list(zip(self.size, self.low, self.base, self.padded, strict=True))
        d0, h0, w0 = (max(0, -(lo // b)) for _, lo, b, _ in axes)
        d1, h1, w1 = (min(s, (p - 1 - lo) // b + 1) for s, lo, b, p in axes)
        return (d0, h0, w0), (d1, h1, w1)


@dataclass(frozen=True, slots=True)
class Part:
    """A convolution that makes some elements of another one's y; where its w and y begin in those, in elements."""

    conv: Convolution
    w: int = 0
    y: int = 0


def parts(v: Convolution) -> list[Part]:
    """Convolutions without zeros between the elements of x that make up `v`: one for each remainder by the base.

    Outputs of one remainder meet the elements of x, and not the zeros between them, with the same part of the window:
    so the gradient of a strided convolution takes no more operations than it.
    """
    out = [Part(v)]
    for axis in range(3):
        base = v.base[axis]
        if base > 1 and v.stride[axis] == v.dilation[axis] == 1:
            out = [_remainder(p, axis, base, r) for p in out for r in range(min(base, v.out[axis]))]
    return out


def _remainder(whole: Part, axis: int, base: int, r: int) -> Part:
    """Outputs r, r + base, ... along an axis."""
    v = whole.conv
    first = (v.low[axis] - r) % base  # of the window: the others meet zeros
    window = max(0, -(-(v.window[axis] - first) // base))
    count = -(-(v.out[axis] - r) // base)
    low = (v.low[axis] - r - first) // base
    changes = {
        "window": window, "base": 1, "low": low, "high": count + window - 1 - low - v.size[axis],
    }  # fmt: skip
    conv = replace(
        v,
        w=_scaled(v.w, 3 + axis, base),
        y=_scaled(v.y, 3 + axis, base),
        **{name: _with(getattr(v, name), axis, value) for name, value in changes.items()},
    )
    return Part(conv, whole.w + first * v.w[3 + axis], whole.y + r * v.y[3 + axis])


def _with(values: Spatial, axis: int, value: int) -> Spatial:
    d, h, w = (value if k == axis else x for k, x in enumerate(values))
    return d, h, w


def _scaled(strides: tuple[int, ...], axis: int, by: int) -> tuple[int, ...]:
    return tuple(s * by if k == axis else s for k, s in enumerate(strides))


_POINTERS = ("y", "x", "w", "bias")
_AXES = ("d", "h", "w")
_INTEGERS = (
    *("n", "g", "o", "c", "k", "pixels"),
    *(
        f"{name}_{axis}"
        for name in ("window", "out", "step", "dilation", "low", "base", "first", "last")
        for axis in _AXES
    ),
    *("x_n", "x_g", "x_c", "x_d", "x_h", "x_w"),
    *("w_g", "w_o", "w_c", "w_d", "w_h", "w_w"),
    *("y_n", "y_g", "y_o", "y_d", "y_h", "y_w"),
    *("p_n", "p_c", "p_d", "p_h"),  # strides of the padded copy; its last axis is contiguous
    *("copied", "phases", "phase", "copy_size"),
    *("images", "chunks", "parts", "part", "kb", "group", "run", "run_stride", "epilogue"),
    *(
        f"at_{area}" for area in ("kx", "kw", "steps", "rows", "places", "pieces", "panel", "c", "bias", "copy")
    ),  # bytes into scratch
)

_CHUNK = 200_000  # floating-point operations worth waking another thread for
_COPY_BYTES = 512 << 10  # of padded images at a time: they should stay in the second-level cache


def kernel_texts(dtype: str, vector_bits: int) -> tuple[str, ...]:
    """LLVM modules of the kernels for f32 or f64."""
    module, t = Module(), tiling(dtype, vector_bits)
    _define_k_tables(module)
    _define_steps(module)
    _define_copy(module, t)
    _define_conv(module, t, f"conv_{dtype}")
    _define_rows(module, t, f"conv_rows_{dtype}")
    return module.text(), tiles_text(dtype, vector_bits), pack_text(dtype, vector_bits)


def plan(dtype: str, v: Convolution, vector_bits: int, flags: int = 0) -> Call:
    """How to run a convolution with the kernels of `kernel_texts(dtype, vector_bits)`.

    `flags` say what follows: bias[g, o] is added, relu taken (`tile.py`).
    """
    t = tiling(dtype, vector_bits)
    few_outputs = prod(v.out) < 4 * t.columns and prod(v.window) > prod(v.out) and v.is_dense
    return _plan_rows(dtype, v, t, flags) if few_outputs else _plan_columns(dtype, v, t, flags)


def _values(v: Convolution, phases: int) -> dict[str, int]:
    """The arguments both kernels share."""
    k = v.c * prod(v.window)
    values = {"n": v.n, "g": v.g, "o": v.o, "c": v.c, "k": k, "pixels": prod(v.out)}
    first, last = v.valid
    for name, axes in (
        ("window", v.window), ("out", v.out), ("step", v.stride), ("dilation", v.dilation),
        ("low", v.low), ("base", v.base), ("first", first), ("last", last),
    ):  # fmt: skip
        values |= {f"{name}_{axis}": value for axis, value in zip(_AXES, axes, strict=True)}
    values |= dict(zip(("x_n", "x_g", "x_c", "x_d", "x_h", "x_w"), v.x, strict=True))
    values |= dict(zip(("w_g", "w_o", "w_c", "w_d", "w_h", "w_w"), v.w, strict=True))
    values |= dict(zip(("y_n", "y_g", "y_o", "y_d", "y_h", "y_w"), v.y, strict=True))
    d, h, w = v.padded
    phase = -(-w // phases)
    row = phase * phases
    return values | {"phases": phases, "phase": phase, "p_h": row, "p_d": row * h, "p_c": row * h * d}


def _needs_copy(v: Convolution) -> bool:
    d, h, w = v.size
    contiguous = v.x[5] == 1 and (h == 1 or v.x[4] == w) and (d == 1 or v.x[3] == h * w)
    plain = (1, 1, 1)
    unpadded = v.low == v.high == (0, 0, 0) and v.base == plain
    return not (contiguous and unpadded and v.window == plain and v.stride == plain)


def _scratch(values: dict[str, int], sizes: dict[str, int]) -> int:
    """Lay out scratch memory: sets the at_* arguments, returns the bytes."""
    at = 0
    for name, size in sizes.items():
        values[f"at_{name}"] = at
        at += round_up(size, 64)
    return at


def _plan_columns(dtype: str, v: Convolution, t: Tiling, flags: int) -> Call:
    size, copied = t.scalar.bytes, _needs_copy(v)
    values = _values(v, v.stride[2] if copied else 1)
    k, pixels = values["k"], max(values["pixels"], 1)
    image = v.c * values["p_c"]
    images = 1
    if copied:  # enough columns to fill the panels
        images = max(1, min(v.n, -(-16 * t.columns // pixels), _COPY_BYTES // max(image * size, 1)))
    chunks = -(-v.n // images)
    group = 1 if v.o * k * size <= _COPY_BYTES // 2 else 4
    columns = images * pixels
    part = columns
    if chunks * v.g < 16:
        part = t.columns * group
    parts = -(-columns // part)
    kb = blocks(k, t.k_block, 1)
    panels = -(-columns // t.columns)
    values |= {
        "copied": int(copied), "copy_size": images * image, "p_n": image, "images": images, "chunks": chunks,
        "parts": parts, "part": part, "kb": kb, "group": group, "run": 1, "run_stride": 0,
        "epilogue": flags | (BIAS_ROWS if flags & BIAS else 0),
    }  # fmt: skip
    scratch = _scratch(values, {
        "kx": 8 * k + 64, "kw": 8 * k + 64, "steps": 8 * k + 64, "rows": 0, "places": 8 * columns,
        "pieces": 8 * _record(t) * panels,
        "panel": (group * kb + 2) * t.columns * size, "c": group * v.o * t.columns * size,
        "bias": v.o * t.columns * size if flags & BIAS else 0,
        "copy": (images * image + 4 * t.columns) * size if copied else 0,
    })  # fmt: skip
    extent = v.g * chunks * parts if v.o and v.n and values["pixels"] else 0
    grain = max(1, -(-_CHUNK // max(2 * v.o * k * part, 1)))
    return Call(f"conv_{dtype}", _POINTERS, tuple(values[n] for n in _INTEGERS), extent, grain, scratch)


def _plan_rows(dtype: str, v: Convolution, t: Tiling, flags: int) -> Call:
    """`images` channels are summed at a time; a unit is `part` of n, whose rows are its pixels."""
    size = t.scalar.bytes
    pads = v.padded != v.size or v.low != (0, 0, 0) or v.base != (1, 1, 1)
    values = _values(v, 1)
    k, pixels, window = values["k"], values["pixels"], prod(v.window)
    part = max(1, min(v.n, 96 // max(pixels, 1)))
    images = max(1, min(v.c, _COPY_BYTES // max(part * values["p_c"] * size, 1))) if pads else max(v.c, 1)
    kb = blocks(images * window, t.k_block, 1)
    o = round_up(v.o, t.columns)
    mergeable = all(v.window[i] == 1 or v.w[3 + i] == v.w[4 + i] * v.window[i + 1] for i in range(2)) and not (
        v.window[1] == 1 and v.window[0] > 1 and v.w[3] != v.w[5] * v.window[2]
    )
    values |= {
        "copied": int(pads), "copy_size": part * images * values["p_c"], "p_n": images * values["p_c"], "images":
        images, "chunks": -(-v.n // part), "parts": 1, "part": part, "kb": kb, "group": 1, "run": window if mergeable
        else v.window[2], "run_stride": v.w[5], "epilogue": flags,
    }  # fmt: skip
    scratch = _scratch(values, {
        "kx": 8 * k + 64, "kw": 8 * k + 64, "steps": 8 * k + 64, "rows": 8 * (part * pixels + t.rows),
        "places": 0, "pieces": 0,
        "panel": (kb * o + 2 * t.columns) * size, "c": part * pixels * o * size, "bias": 0,
        "copy": (part * images * values["p_c"] + 4 * t.columns) * size if pads else 0,
    })  # fmt: skip
    extent = v.g * values["chunks"] if v.o and v.n and pixels else 0
    grain = max(1, -(-_CHUNK // max(2 * v.o * k * part * pixels, 1)))
    return Call(f"conv_rows_{dtype}", _POINTERS, tuple(values[n] for n in _INTEGERS), extent, grain, scratch)


# ---------------------------------------------------------------- tables


def _area(f: Function, s: dict[str, Value], name: str) -> Value:
    return f.offset(s["scratch"], s["at_" + name])


def _layout(s: dict[str, Value], name: str) -> Value:
    """A stride of what patches are read from: the padded copy, or x itself."""
    return s["copied"].ne(0).select(s["p_" + name], s["x_" + name])


def _part(
    module: Module, name: str, extra: Mapping[str, Type], attributes: str = "nounwind"
) -> tuple[Function, dict[str, Value]]:
    """Begin a function that a kernel calls, with all its arguments; LLVM's time grows faster than a function."""
    f = module.function(name, None, {"args": ptr, "scratch": ptr, **extra}, f"internal {attributes}")
    s = Slots(f, f.args[0], dict.fromkeys(_POINTERS, ptr) | dict.fromkeys(_INTEGERS, i64))
    s.update(zip(("args", "scratch", *extra), f.args, strict=True))
    return f, s


def _define_k_tables(module: Module) -> None:
    """kx[k], kw[k]: where (c, q) lies in x and in w. kx counts channels from the first that was copied."""
    f, s = _part(module, "fill_k_tables", {"channels": i64}, OUTER)  # its time is that of divisions
    layout, channels = _layouts(f, s), s["channels"]
    kx, kw = _area(f, s, "kx"), _area(f, s, "kw")
    with f.loop(0, s["window_w"]) as qw:
        along = qw * s["dilation_w"]
        column = (along % s["phases"]) * s["phase"] + along // s["phases"] * layout["w"]
        with f.loop(0, s["c"]) as c, f.loop(0, s["window_d"]) as qd, f.loop(0, s["window_h"]) as qh:
            index = ((c * s["window_d"] + qd) * s["window_h"] + qh) * s["window_w"] + qw
            in_x = (
                (c % channels) * layout["c"] + qd * s["dilation_d"] * layout["d"] + qh * s["dilation_h"] * layout["h"]
            )
            in_w = c * s["w_c"] + qd * s["w_d"] + qh * s["w_h"] + qw * s["w_w"]
            f.store(in_x + column, f.element(kx, index, i64))
            f.store(in_w, f.element(kw, index, i64))
    f.ret()


def _define_steps(module: Module) -> None:
    """steps[k] = places[k + 1] - places[k], for the operand that the tile broadcasts: kx or kw."""
    f, s = _part(module, "fill_steps", {"places": ptr})
    places, steps, vector = s["places"], _area(f, s, "steps"), i64.wide(4)
    with f.loop(0, s["k"], 4) as k:  # tables have room for whole vectors
        here, there = (f.load(vector, f.element(places, k + i, i64)) for i in range(2))
        f.store(there - here, f.element(steps, k, i64))
    f.ret()


def _layouts(f: Function, s: dict[str, Value]) -> dict[str, Value]:
    strides = {name: _layout(s, name) for name in ("n", "c", "d", "h")}
    return strides | {"w": s["copied"].ne(0).select(1, s["x_w"])}


# ---------------------------------------------------------------- the padded copy


def _define_copy(module: Module, t: Tiling) -> None:
    """Fill the copy with zeros, and copy some images x channels into their places among them."""
    f, s = _part(module, "clear_copy", {})
    copy, zeros = _area(f, s, "copy"), f.value(0.0, t.vector)
    with f.loop(0, s["copy_size"] + 2 * t.columns, t.lanes) as i:
        f.store(zeros, f.element(copy, i, t.scalar))
    f.ret()
    f, s = _part(module, "copy_padded", {"source": ptr, "count": i64, "channels": i64})
    source, copy = s["source"], _area(f, s, "copy")
    plain = s["base_w"].eq(1) & s["x_w"].eq(1) & s["phases"].eq(1)
    with (
        f.loop(0, s["count"]) as n,
        f.loop(0, s["channels"]) as c,
        f.loop(s["first_d"], s["last_d"]) as d,
        f.loop(s["first_h"], s["last_h"]) as h,
    ):
        row = f.element(source, n * s["x_n"] + c * s["x_c"] + d * s["x_d"] + h * s["x_h"], t.scalar)
        at_d, at_h = d * s["base_d"] + s["low_d"], h * s["base_h"] + s["low_h"]
        out = f.element(copy, n * s["p_n"] + c * s["p_c"] + at_d * s["p_d"] + at_h * s["p_h"], t.scalar)
        # Opaque: what the code generator makes of five loops at once takes it as long as all else.
        row, out = f.opaque(row), f.opaque(out)
        with f.either(plain) as sides:
            for is_plain in sides:
                if is_plain:
                    _copy_row(f, t, s, row, f.element(out, s["low_w"], t.scalar))
                else:
                    _split_row(f, t, s, row, out)
    f.ret()


def _copy_row(f: Function, t: Tiling, s: dict[str, Value], row: Value, out: Value) -> None:
    first, last = s["first_w"], s["last_w"]
    main = last - (last - first) % t.lanes
    with f.loop(first, main, t.lanes) as w:
        f.store(f.load(t.vector, f.element(row, w, t.scalar)), f.element(out, w, t.scalar))
    with f.when(main < last):
        # The zeros past the end fall on padding, or on rows that are written later.
        rest = f.masked_load(t.vector, f.element(row, main, t.scalar), f.first(last - main, t.lanes))
        f.store(rest, f.element(out, main, t.scalar))


def _split_row(f: Function, t: Tiling, s: dict[str, Value], row: Value, out: Value) -> None:
    """Column p of the padded row goes to place p / phases of phase p % phases."""
    phases, low = s["phases"], s["low_w"]
    with f.either(s["base_w"].eq(1)) as sides:
        for dense in sides:
            if dense:
                with f.loop(0, phases) as phase:
                    q0 = (s["first_w"] + low - phase + phases - 1) // phases
                    q1 = (s["last_w"] + low - phase + phases - 1) // phases
                    with f.loop(q0, q1) as q:
                        x = f.load(t.scalar, f.element(row, (q * phases + phase - low) * s["x_w"], t.scalar))
                        f.store(x, f.element(out, phase * s["phase"] + q, t.scalar))
            else:
                first = s["first_w"] * s["base_w"] + low
                with f.carrying(s["first_w"], s["last_w"], [first % phases, first // phases]) as loop:
                    phase, place = loop.carry
                    x = f.load(t.scalar, f.element(row, loop.index * s["x_w"], t.scalar))
                    f.store(x, f.element(out, phase * s["phase"] + place, t.scalar))
                    phase, place = phase + s["base_w"] % phases, place + s["base_w"] // phases
                    over = phase >= phases
                    loop.carry = [over.select(phase - phases, phase), place + over.cast(i64)]


# ---------------------------------------------------------------- outputs as columns


def _record(t: Tiling) -> int:
    """Words of a panel's record: how many pieces, then (lane, offset) of each."""
    return 1 + 2 * t.columns


def _define_conv(module: Module, t: Tiling, name: str) -> None:
    _define_columns(module, t)
    _define_gather(module, t)
    _define_spread(module, t)
    _define_group(module, t)
    f, s = kernel(module, name, _POINTERS, _INTEGERS, OUTER)
    args = f.args[0], s["scratch"]
    f.call("fill_k_tables", None, *args, s["c"])
    f.call("fill_steps", None, *args, _area(f, s, "kw"))
    f.call("fill_columns", None, *args)
    copied = s["copied"].ne(0)
    with f.when(copied):
        f.call("clear_copy", None, *args)
    parts, lo, hi = s["parts"], s["lo"], s["hi"]
    with f.loop(lo // parts, (hi + parts - 1) // parts) as chunk:
        g, n0 = chunk // s["chunks"], chunk % s["chunks"] * s["images"]
        images = f.minimum(s["n"] - n0, s["images"])
        columns = images * s["pixels"]
        first = f.maximum(lo - chunk * parts, 0) * s["part"]
        last = f.minimum(f.minimum(hi - chunk * parts, parts) * s["part"], columns)
        x = f.element(s["x"], n0 * s["x_n"] + g * s["x_g"], t.scalar)
        with f.when(copied & (first < last)):
            f.call("copy_padded", None, *args, x, images, s["c"])
        source = copied.select(_area(f, s, "copy"), x)
        w = f.element(s["w"], g * s["w_g"], t.scalar)
        y = f.element(s["y"], n0 * s["y_n"] + g * s["y_g"], t.scalar)
        with f.when((s["epilogue"] & BIAS).ne(0)), f.loop(0, s["o"]) as o:
            one = f.load(t.scalar, f.element(s["bias"], g * s["o"] + o, t.scalar))
            f.store(one.splat(t.columns), f.element(_area(f, s, "bias"), o * t.columns, t.scalar))
        with f.loop(first, last, s["group"] * t.columns) as j:
            f.call("group", None, *args, source, w, y, j, f.minimum(last, j + s["group"] * t.columns))
    f.ret()


def _define_columns(module: Module, t: Tiling) -> None:
    """For each column of a chunk its place in y, and for each panel the contiguous pieces it is gathered from.

    A piece is read as one whole vector wherever it ends: what is too much the next piece overwrites.
    """
    f, s = _part(module, "fill_columns", {})
    layout = _layouts(f, s)
    places, pieces = _area(f, s, "places"), _area(f, s, "pieces")
    word = s["copied"].ne(0).select(s["step_w"] // s["phases"], s["step_w"])
    zero = f.value(0, i64)
    with f.carrying(0, s["images"], [zero, zero, zero - 2]) as by_n:
        with f.carrying(0, s["out_d"], by_n.carry) as by_d:
            with f.carrying(0, s["out_h"], by_d.carry) as by_h:
                n, d, h = by_n.index, by_d.index, by_h.index
                start = n * layout["n"] + d * s["step_d"] * layout["d"] + h * s["step_h"] * layout["h"]
                start, pixel = f.opaque(start), f.opaque(n * s["y_n"] + d * s["y_d"] + h * s["y_h"])
                with f.carrying(0, s["out_w"], by_h.carry) as by_w:
                    # column, lane where the current piece began, offset of the column before
                    column, began, before = by_w.carry
                    offset = start + by_w.index * word * layout["w"]
                    f.store(pixel + by_w.index * s["y_w"], f.element(places, column, i64))
                    panel, lane = column // t.columns, column % t.columns
                    record = f.element(pieces, panel * _record(t), i64)
                    starts = offset.ne(before + 1) | lane.eq(0) | (lane - began).eq(t.lanes)
                    with f.when(lane.eq(0)):
                        f.store(zero, record)
                    with f.when(starts):
                        count = f.load(i64, record)
                        f.store(lane, f.element(record, count * 2 + 1, i64))
                        f.store(offset, f.element(record, count * 2 + 2, i64))
                        f.store(count + 1, record)
                    by_w.carry = [column + 1, starts.select(lane, began), offset]
                by_h.carry = by_w.carry
            by_d.carry = by_h.carry
        by_n.carry = by_d.carry
    f.ret()


def _define_group(module: Module, t: Tiling) -> None:
    """Columns j0..j1, at most a group of panels: for each block of k gather their patches, then multiply."""
    f, s = _part(module, "group", {"source": ptr, "w": ptr, "y": ptr, "j0": i64, "j1": i64})
    source, w, y, j0, j1 = f.args[2:]
    places, panels, corner, bias = (_area(f, s, a) for a in ("places", "panel", "c", "bias"))
    (kx, kw, steps), kb = (_area(f, s, a) for a in ("kx", "kw", "steps")), s["kb"]
    o = s["o"]
    tiles = (o + t.rows - 1) // t.rows
    base = o // tiles
    extra = o - base * tiles
    tile = told(f, t, a_step=f.value(1, i64), b_k=f.value(t.columns, i64))
    tell_rows(f, tile, (s["w_o"] * r for r in range(1, t.rows)))
    with f.loop(0, f.maximum(s["k"], 1), kb) as k0:
        kc = f.minimum(s["k"] - k0, kb)
        flags = (k0 > 0).select(ACCUMULATE, 0 * k0) | (k0 + kc >= s["k"]).select(s["epilogue"], 0 * k0)
        with f.loop(j0, j1, t.columns) as j:
            panel = f.element(panels, (j - j0) * kb, t.scalar)
            f.call("gather", None, f.args[0], s["scratch"], source, panel, j, j1 - j, f.element(kx, k0, i64), kc)
        first = f.element(w, f.load(i64, f.element(kw, k0, i64)), t.scalar)
        tell(f, tile, k=kc, a_k=f.element(steps, k0, i64), flags=flags)
        with f.loop(0, tiles) as i:
            row = i * base + f.minimum(i, extra)
            count = base + (i < extra).cast(i64)
            a = f.element(first, row * s["w_o"], t.scalar)
            tell(f, tile, bias=f.element(bias, row * t.columns, t.scalar))
            with f.loop(j0, j1, t.columns) as j:
                valid = f.minimum(j1 - j, t.columns)
                place = f.load(i64, f.element(places, j, i64))
                direct = (f.load(i64, f.element(places, j + valid - 1, i64)) - place).eq(valid - 1)
                in_y = f.element(y, place + row * s["y_o"], t.scalar)
                aside = f.element(corner, (j - j0) * o + row * t.columns, t.scalar)
                c = direct.select(in_y, aside)
                c_row = direct.select(s["y_o"], t.columns)
                tell(f, tile, b=f.element(panels, (j - j0) * kb, t.scalar), c_row=c_row, columns=valid)
                call_tile(f, t, count, tile, a, c)
    f.call("spread", None, f.args[0], s["scratch"], y, j0, j1)
    f.ret()


def _define_spread(module: Module, t: Tiling) -> None:
    """Put the panels among columns j0..j1 whose columns do not lie side by side in y into their places there."""
    f, s = _part(module, "spread", {"y": ptr, "j0": i64, "j1": i64})
    y, j0, j1 = f.args[2:]
    places, corner, o = _area(f, s, "places"), _area(f, s, "c"), s["o"]
    with f.loop(j0, j1, t.columns) as j:
        valid = f.minimum(j1 - j, t.columns)
        place = f.load(i64, f.element(places, j, i64))
        apart = (f.load(i64, f.element(places, j + valid - 1, i64)) - place).ne(valid - 1)
        with f.when(apart), f.loop(0, o) as row:
            source = f.element(corner, (j - j0) * o + row * t.columns, t.scalar)
            target = f.element(y, row * s["y_o"], t.scalar)
            with f.loop(0, valid) as lane:
                at = f.load(i64, f.element(places, j + lane, i64))
                f.store(f.load(t.scalar, f.element(source, lane, t.scalar)), f.element(target, at, t.scalar))
    f.ret()


def _define_gather(module: Module, t: Tiling) -> None:
    """panel[k, lane] = patch element k of column j + lane."""
    f, s = _part(module, "gather", {"source": ptr, "panel": ptr, "j": i64, "valid": i64, "kx": ptr, "kc": i64})
    source, panel, j, valid, kx, kc = f.args[2:]
    record = f.element(_area(f, s, "pieces"), j // t.columns * _record(t), i64)
    count = f.load(i64, record)
    # x itself must not be read past its end: whole vectors only from the copy, which has room, or for full panels.
    with f.either(s["copied"].ne(0) | (valid >= t.columns)) as sides:
        for vectors in sides:
            if vectors:
                for pieces in f.cases(count, range(2, 7)):  # few pieces keep their places in registers
                    lanes = [f.load(i64, f.element(record, 2 * i + 1, i64)) for i in range(pieces)]
                    starts = [
                        f.element(source, f.load(i64, f.element(record, 2 * i + 2, i64)), t.scalar)
                        for i in range(pieces)
                    ]
                    with f.carrying(0, kc, [panel]) as loop:
                        (out,) = loop.carry
                        offset = f.load(i64, f.element(kx, loop.index, i64))
                        for start, lane in zip(starts, lanes, strict=True):
                            x = f.load(t.vector, f.element(start, offset, t.scalar))
                            f.store(x, f.element(out, lane, t.scalar))
                        loop.carry = [f.opaque(f.element(out, t.columns, t.scalar))]
                with f.when((count < 2) | (count > 6)), f.loop(0, kc) as k:
                    patch = f.element(source, f.load(i64, f.element(kx, k, i64)), t.scalar)
                    out = f.element(panel, k * t.columns, t.scalar)
                    with f.loop(0, count) as piece:
                        lane = f.load(i64, f.element(record, piece * 2 + 1, i64))
                        offset = f.load(i64, f.element(record, piece * 2 + 2, i64))
                        f.store(f.load(t.vector, f.element(patch, offset, t.scalar)), f.element(out, lane, t.scalar))
            else:  # what is not copied has no gaps
                start = f.element(source, f.load(i64, f.element(record, 2, i64)), t.scalar)
                with f.loop(0, kc) as k:
                    patch = f.element(start, f.load(i64, f.element(kx, k, i64)), t.scalar)
                    with f.loop(0, valid) as lane:
                        x = f.load(t.scalar, f.element(patch, lane, t.scalar))
                        f.store(x, f.element(panel, k * t.columns + lane, t.scalar))
    f.ret()


# ---------------------------------------------------------------- outputs as rows


def _define_rows(module: Module, t: Tiling, name: str) -> None:
    _define_row_table(module)
    _define_sums(module, t)
    _define_store(module, t)
    f, s = kernel(module, name, _POINTERS, _INTEGERS, OUTER)
    args = f.args[0], s["scratch"]
    f.call("fill_k_tables", None, *args, s["images"])
    f.call("fill_steps", None, *args, _area(f, s, "kx"))
    f.call("fill_rows", None, *args)
    copied = s["copied"].ne(0)
    with f.when(copied):
        f.call("clear_copy", None, *args)
    window = s["window_d"] * s["window_h"] * s["window_w"]
    with f.loop(s["lo"], s["hi"]) as unit:
        g, n0 = unit // s["chunks"], unit % s["chunks"] * s["part"]
        images = f.minimum(s["n"] - n0, s["part"])
        rows = images * s["pixels"]
        x = f.element(s["x"], n0 * s["x_n"] + g * s["x_g"], t.scalar)
        w = f.element(s["w"], g * s["w_g"], t.scalar)
        with f.loop(0, f.maximum(s["c"], 1), s["images"]) as c0:
            channels = f.minimum(s["c"] - c0, s["images"])
            first = f.element(x, c0 * s["x_c"], t.scalar)
            with f.when(copied):
                f.call("copy_padded", None, *args, first, images, channels)
            source = copied.select(_area(f, s, "copy"), first)
            f.call("sum_rows", None, *args, source, w, c0 * window, channels * window, rows)
        y = f.element(s["y"], n0 * s["y_n"] + g * s["y_g"], t.scalar)
        f.call("store_rows", None, *args, y, f.element(s["bias"], g * s["o"], t.scalar), images)
    f.ret()


def _wide(s: dict[str, Value], t: Tiling) -> Value:
    """Elements of a row of sums: o, up to a whole panel."""
    return (s["o"] + t.columns - 1) // t.columns * t.columns


def _define_store(module: Module, t: Tiling) -> None:
    """Put the sums of some images into their places in y."""
    f, s = _part(module, "store_rows", {"y": ptr, "bias": ptr, "images": i64})
    y, bias, images = f.args[2:]
    corner, wide = _area(f, s, "c"), _wide(s, t)
    with f.loop(0, images) as n, f.loop(0, s["pixels"]) as p, f.loop(0, s["o"]) as o:
        at = f.element(bias, o, t.scalar)
        value = f.load(t.scalar, f.element(corner, (n * s["pixels"] + p) * wide + o, t.scalar))
        (value,) = epilogue(f, s["epilogue"], [value], lambda at=at: [f.load(t.scalar, at)])
        f.store(value, f.element(y, n * s["y_n"] + o * s["y_o"] + p, t.scalar))
    f.ret()


def _define_row_table(module: Module) -> None:
    """rows[r]: where the patch of output (n, pixel) begins."""
    f, s = _part(module, "fill_rows", {})
    layout, table, zero = _layouts(f, s), _area(f, s, "rows"), f.value(0, i64)
    with f.carrying(0, s["part"], [zero]) as by_n:
        with f.carrying(0, s["out_d"], by_n.carry) as by_d:
            with f.carrying(0, s["out_h"], by_d.carry) as by_h:
                place = by_n.index * layout["n"] + by_d.index * s["step_d"] * layout["d"]
                start = f.opaque(place + by_h.index * s["step_h"] * layout["h"])
                with f.carrying(0, s["out_w"], by_h.carry) as by_w:
                    place = start + by_w.index * s["step_w"] * layout["w"]
                    f.store(place, f.element(table, by_w.carry[0], i64))
                    by_w.carry = [by_w.carry[0] + 1]
                by_h.carry = by_w.carry
            by_d.carry = by_h.carry
        by_n.carry = by_d.carry
    f.ret()


def _define_sums(module: Module, t: Tiling) -> None:
    """Add the sums over k0 .. k0 + depth to the corner: blocks of k, panels of w in each."""
    f, s = _part(module, "sum_rows", {"source": ptr, "w": ptr, "k0": i64, "depth": i64, "rows": i64})
    source, w, k0, depth, rows = f.args[2:]
    wide = _wide(s, t)
    panels, corner, table = _area(f, s, "panel"), _area(f, s, "c"), _area(f, s, "rows")
    kx, steps, kb, o = _area(f, s, "kx"), _area(f, s, "steps"), s["kb"], s["o"]
    tiles = (rows + t.rows - 1) // t.rows
    base = rows // tiles
    extra = rows - base * tiles
    whole = f.value(t.columns, i64)
    tile = told(f, t, a_step=f.value(1, i64), b_k=whole, c_row=wide, columns=whole)
    with f.loop(0, f.maximum(depth, 1), kb) as b0:
        kc, k = f.minimum(depth - b0, kb), k0 + b0
        flags = (k > 0).select(ACCUMULATE, 0 * k)
        first = f.element(source, f.load(i64, f.element(kx, k, i64)), t.scalar)
        with f.loop(0, o, t.columns) as j:
            _pack_runs(
                f, t, s, (f.element(panels, j * kb, t.scalar), f.element(w, j * s["w_o"], t.scalar), o - j, k, kc)
            )
        tell(f, tile, k=kc, a_k=f.element(steps, k, i64), flags=flags)
        with f.loop(0, o, t.columns) as j, f.loop(0, tiles) as i:
            tell(f, tile, b=f.element(panels, j * kb, t.scalar))
            row = i * base + f.minimum(i, extra)
            count = base + (i < extra).cast(i64)
            at, *others = (f.load(i64, f.element(table, row + r, i64)) for r in range(t.rows))
            tell_rows(f, tile, (other - at for other in others))
            a = f.element(first, at, t.scalar)
            call_tile(f, t, count, tile, a, f.element(corner, row * wide + j, t.scalar))
    f.ret()


def _pack_runs(f: Function, t: Tiling, s: dict[str, Value], args: tuple[Value, ...]) -> None:
    """panel[i, lane] = w[lane][k + i] for i < kc: runs of k that have one stride, each packed at once."""
    panel, w, valid, k, kc = args
    run, kw = s["run"], _area(f, s, "kw")
    with f.loop(k // run, (k + kc + run - 1) // run) as r:
        first, last = f.maximum(r * run, k), f.minimum(r * run + run, k + kc)
        source = f.element(w, f.load(i64, f.element(kw, first, i64)), t.scalar)
        out = f.element(panel, (first - k) * t.columns, t.scalar)
        f.call(pack_symbol(t, t.columns), None, out, source, s["w_o"], s["run_stride"], valid, last - first)
