"""3x3 convolutions by Winograd's F(2x2, 3x3): 16 products make 4 outputs where the plain sum takes 36.

    y = A' [ sum_c (G w G') * (B' x B) ] A        for each 4x4 tile of x that makes a 2x2 tile of y

Sixteen small matrix products, one for each place in a tile, run on the register tile of `tile.py`: rows are o, k is c,
columns are two groups of `lanes` neighbouring tiles. A unit is a strip of rows of tiles: its part of x is copied with
its padding, even and odd columns apart, so that a group of tiles is read by whole vectors.

The transforms add and halve, so errors stay within a small factor of those of the plain sum. What they do not keep is
how far an infinity or NaN reaches: a group whose outputs are not all finite is summed again plainly. Groups do not
depend on how the work is split, so neither do results.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracejit.codegen.llvm.conv import Convolution
from tracejit.codegen.llvm.matmul import Call, kernel, round_up
from tracejit.codegen.llvm.text import Function, Module, Value, i1, i64, ptr
from tracejit.codegen.llvm.tile import Tiling, call_tile, epilogue, tell, tell_strides, tiles_text, tiling, told

__all__ = ["kernel_texts", "plan"]

_POINTERS = ("y", "x", "w", "bias")
_INTEGERS = (
    *("n", "g", "o", "c", "h", "w_", "low_h", "low_w", "out_h", "out_w"),
    *("rows", "strips", "tile_rows", "groups", "line", "panels", "epilogue"),
    *("x_n", "x_g", "x_c", "x_h", "x_w", "w_g", "w_o", "w_c", "w_h", "w_w", "y_n", "y_g", "y_o", "y_h"),
    *("at_u", "at_row", "at_copy", "at_v", "at_m"),  # bytes into scratch
)

_PLACES = 16  # in a tile
_FEWEST = 16  # channels on either side: with fewer the transforms take as long as what they save
_COPY_BYTES = 160 << 10  # of a strip: with the tiles made of it, it stays in the second-level cache
_TILE_BYTES = 192 << 10


def plan(dtype: str, v: Convolution, vector_bits: int, flags: int = 0) -> Call | None:
    """How to run a convolution this way; None where that is not possible, or not faster. `flags` as in `conv.plan`."""
    plain, window = (1, 1, 1), (1, 3, 3)
    is_plain = v.window == window and v.stride == v.dilation == v.base == plain and v.size[0] == v.out[0] == 1
    if dtype != "f32" or not is_plain or v.low[0] or v.y[5] != 1 or min(v.o, v.c) < _FEWEST:
        return None
    t = tiling(dtype, vector_bits)
    size, (_, out_h, out_w) = t.scalar.bytes, v.out
    tile_rows, tiles = -(-out_h // 2), -(-out_w // 2)
    groups = -(-tiles // t.lanes)
    if v.n * tile_rows == 0 or tiles * 5 < groups * t.lanes * 4:  # a fifth of the lanes idle
        return None
    line = (groups + 1) * t.lanes
    row_bytes = v.c * 2 * line * size
    rows = max(1, min(tile_rows, (_COPY_BYTES // row_bytes - 2) // 2))
    strips = -(-tile_rows // rows)
    rows = -(-tile_rows // strips)
    tile_bytes = _PLACES * (v.c + v.o) * t.columns * size
    panels = max(1, min(-(-rows * groups // 2), _TILE_BYTES // tile_bytes))
    values = {
        "n": v.n, "g": v.g, "o": v.o, "c": v.c, "h": v.size[1], "w_": v.size[2], "low_h": v.low[1], "low_w": v.low[2],
        "out_h": out_h, "out_w": out_w, "rows": rows, "strips": strips, "tile_rows": tile_rows, "groups": groups,
        "line": line, "panels": panels, "epilogue": flags,
    }  # fmt: skip
    values |= dict(zip(("x_n", "x_g", "x_c", "x_d", "x_h", "x_w"), v.x, strict=True))
    values |= dict(zip(("w_g", "w_o", "w_c", "w_d", "w_h", "w_w"), v.w, strict=True))
    values |= dict(zip(("y_n", "y_g", "y_o", "y_d", "y_h", "y_w"), v.y, strict=True))
    scratch = 0
    for name, elements in (
        ("u", _PLACES * v.o * v.c), ("row", 2 * line + max(v.size[2], 0) + 2 * t.lanes),
        ("copy", v.c * (2 * rows + 2) * 2 * line), ("v", panels * _PLACES * v.c * t.columns),
        ("m", panels * _PLACES * v.o * t.columns),
    ):  # fmt: skip
        values[f"at_{name}"] = scratch
        scratch += round_up(elements * size, 64)
    integers = tuple(values[name] for name in _INTEGERS)
    return Call(f"winograd_{dtype}", _POINTERS, integers, v.g * v.n * strips, 1, scratch)


def kernel_texts(dtype: str, vector_bits: int) -> tuple[str, ...]:
    """LLVM modules of the kernel."""
    module, t = Module(), tiling(dtype, vector_bits)
    _define_weights(module, t)
    _define_copy(module, t)
    _define_input(module, t)
    _define_output(module, t)
    _define_plain(module, t)
    _define_units(module, t, f"winograd_{dtype}")
    return module.text(), tiles_text(dtype, vector_bits)


def _define_units(module: Module, t: Tiling, name: str) -> None:
    f, s = kernel(module, name, _POINTERS, _INTEGERS)
    u, row, copy, v, m = (f.offset(s["scratch"], s["at_" + a]) for a in ("u", "row", "copy", "v", "m"))
    per_group = s["n"] * s["strips"]
    channel = (s["rows"] * 2 + 2) * 2 * s["line"]
    with f.loop(0, s["line"] * 2, t.lanes) as i:
        f.store(f.value(0.0, t.vector), f.element(row, i, t.scalar))
    with f.loop(s["lo"] // per_group, (s["hi"] + per_group - 1) // per_group) as g:
        w = f.element(s["w"], g * s["w_g"], t.scalar)
        f.call("weights", None, u, w, s["o"], s["c"], s["w_o"], s["w_c"], s["w_h"], s["w_w"])
        first = f.maximum(s["lo"] - g * per_group, 0)
        last = f.minimum(s["hi"] - g * per_group, per_group)
        with f.loop(first, last) as unit:
            n, r0 = unit // s["strips"], unit % s["strips"] * s["rows"]
            rows = f.minimum(s["tile_rows"] - r0, s["rows"])
            x = f.element(s["x"], n * s["x_n"] + g * s["x_g"], t.scalar)
            y = f.element(s["y"], n * s["y_n"] + g * s["y_g"], t.scalar)
            bias = f.element(s["bias"], g * s["o"], t.scalar)
            f.call(
                "copy_strip", None, copy, row, x, s["c"], rows * 2 + 2, r0 * 2 - s["low_h"], s["h"], s["w_"],
                s["low_w"], s["line"], channel, s["x_c"], s["x_h"], s["x_w"],
            )  # fmt: skip
            count = rows * s["groups"]
            with f.loop(0, (count + 1) // 2, s["panels"]) as p0:
                panels = f.minimum((count + 1) // 2 - p0, s["panels"])
                _panels(f, t, s, (u, copy, v, m, w, y, bias, r0, count, p0, panels, channel))
    f.ret()


def _panels(f: Function, t: Tiling, s: dict[str, Value], args: Sequence[Value]) -> None:
    """Some panels of a strip: transform, multiply, transform back."""
    u, copy, v, m, w, y, bias, r0, count, p0, panels, channel = args
    place_v, place_m = s["c"] * t.columns, s["o"] * t.columns
    last = count - 1

    def group(p: Value, half: int) -> tuple[Value, Value, Value]:
        """Number of a group, the row of tiles in the strip and the first tile of it."""
        number = (p0 + p) * 2 + half
        known = f.minimum(number, last)  # a panel without a second group has the first one twice
        return number, known // s["groups"], known % s["groups"] * t.lanes

    with f.loop(0, panels) as p:
        for half in range(2):
            _, r, tile = group(p, half)
            source = f.element(copy, r * 4 * s["line"] + tile, t.scalar)
            out = f.element(v, p * _PLACES * place_v + half * t.lanes, t.scalar)
            f.call("input", None, out, source, s["c"], s["line"], channel, place_v)
    tiles = (s["o"] + t.rows - 1) // t.rows
    base = s["o"] // tiles
    extra = s["o"] - base * tiles
    zero, columns = f.value(0, i64), f.value(t.columns, i64)
    tile = told(f, t, k=s["c"], b_k=columns, c_row=columns, columns=columns, flags=zero)
    tell_strides(f, t, tile, s["c"], zero + 1)
    with f.loop(0, _PLACES) as place, f.loop(0, tiles) as i:
        o = i * base + f.minimum(i, extra)
        a = f.element(u, (place * s["o"] + o) * s["c"], t.scalar)
        with f.loop(0, panels) as p:
            b = f.element(v, (p * _PLACES + place) * place_v, t.scalar)
            c = f.element(m, (p * _PLACES + place) * place_m + o * t.columns, t.scalar)
            count_o = base + (i < extra).cast(i64)
            tell(f, tile, b=b)
            call_tile(f, t, count_o, tile, a, c)
    with f.loop(0, panels) as p:
        for half in range(2):
            number, r, tile = group(p, half)
            with f.when(number < count):
                h = (r0 + r) * 2
                out = f.element(y, h * s["y_h"] + tile * 2, t.scalar)
                high, wide = s["out_h"] - h, s["out_w"] - tile * 2
                products = f.element(m, p * _PLACES * place_m + half * t.lanes, t.scalar)
                then = s["epilogue"], bias
                finite = f.call("output", i1, out, products, *then, s["o"], place_m, s["y_o"], s["y_h"], high, wide)
                with f.when(finite ^ 1):
                    source = f.element(copy, r * 4 * s["line"] + tile, t.scalar)
                    f.call(
                        "plain", None, out, source, w, *then, s["o"], s["c"], s["line"], channel, s["w_o"], s["w_c"],
                        s["w_h"], s["w_w"], s["y_o"], s["y_h"], high, wide,
                    )  # fmt: skip


# ---------------------------------------------------------------- transforms


def _define_weights(module: Module, t: Tiling) -> None:
    """u[place, o, c] = G w G' for each o and c."""
    names = ("o", "c", "w_o", "w_c", "w_h", "w_w")
    f = module.function("weights", None, {"u": ptr, "w": ptr} | dict.fromkeys(names, i64), "internal nounwind")
    u, w, o, c, w_o, w_c, w_h, w_w = f.args

    def spread(a: Value, b: Value, c: Value) -> list[Value]:
        ends, middle = (a + c) * 0.5, b * 0.5
        return [a, ends + middle, ends - middle, c]

    with f.loop(0, o) as i, f.loop(0, c) as j:
        at = f.element(w, i * w_o + j * w_c, t.scalar)
        square = [[f.load(t.scalar, f.element(at, w_h * r + w_w * q, t.scalar)) for q in range(3)] for r in range(3)]
        down = [spread(*column) for column in zip(*square, strict=True)]  # columns, each of four
        for r, row in enumerate(zip(*down, strict=True)):
            for q, x in enumerate(spread(*row)):
                f.store(x, f.element(u, ((o * (4 * r + q)) + i) * c + j, t.scalar))
    f.ret()


def _define_copy(module: Module, t: Tiling) -> None:
    """copy[c, row, parity, i] = padded x[c, h + row, 2 i + parity]; `line` is a row of padding to write x into."""
    names = ("c", "rows", "h", "size_h", "size_w", "low", "line", "channel", "x_c", "x_h", "x_w")
    args = {"copy": ptr, "row": ptr, "x": ptr} | dict.fromkeys(names, i64)
    f = module.function("copy_strip", None, args, "internal nounwind")
    copy, row, x, c, rows, h, size_h, size_w, low, line, channel, x_c, x_h, x_w = f.args
    start = f.maximum(0 - low, 0)
    stop = f.minimum(size_w, line * 2 - low)
    even, odd = (range(k, 2 * t.lanes, 2) for k in range(2))
    with f.loop(0, c) as j, f.loop(0, rows) as r:
        out = f.element(copy, j * channel + r * 2 * line, t.scalar)
        inside = ((h + r) >= 0) & ((h + r) < size_h)
        with f.either(inside) as sides:
            for is_inside in sides:
                if not is_inside:
                    with f.loop(0, line * 2, t.lanes) as i:
                        f.store(f.value(0.0, t.vector), f.element(out, i, t.scalar))
                    continue
                source = f.element(x, j * x_c + (h + r) * x_h, t.scalar)
                target = f.element(row, low, t.scalar)
                main = x_w.eq(1).select(stop - (stop - start) % t.lanes, start)
                with f.loop(start, main, t.lanes) as i:
                    f.store(f.load(t.vector, f.element(source, i, t.scalar)), f.element(target, i, t.scalar))
                with f.loop(main, stop) as i:
                    f.store(f.load(t.scalar, f.element(source, i * x_w, t.scalar)), f.element(target, i, t.scalar))
                with f.loop(0, line, t.lanes) as i:
                    a, b = (f.load(t.vector, f.element(row, i * 2 + k * t.lanes, t.scalar)) for k in range(2))
                    f.store(a.shuffle(b, even), f.element(out, i, t.scalar))
                    f.store(a.shuffle(b, odd), f.element(out, line + i, t.scalar))
    f.ret()


def _define_input(module: Module, t: Tiling) -> None:
    """v[place, c, lane] = B' x B for the tiles of a group."""
    names = ("c", "line", "channel", "place")
    f = module.function("input", None, {"v": ptr, "x": ptr} | dict.fromkeys(names, i64), "internal nounwind")
    v, x, c, line, channel, place = f.args

    def mix(a: Value, b: Value, c: Value, d: Value) -> list[Value]:
        return [a - c, b + c, c - b, b - d]

    with f.loop(0, c) as j:
        source, out = f.element(x, j * channel, t.scalar), f.element(v, j * t.columns, t.scalar)
        rows: list[list[Value]] = []
        for r in range(4):
            at = [f.element(source, line * (2 * r + q % 2) + q // 2, t.scalar) for q in range(4)]
            rows.append(mix(*(f.load(t.vector, a) for a in at)))
        for q, column in enumerate(zip(*rows, strict=True)):
            for r, y in enumerate(mix(*column)):
                f.store(y, f.element(out, place * (4 * r + q), t.scalar))
    f.ret()


def _define_output(module: Module, t: Tiling) -> None:
    """y = A' m A for the tiles of a group, as far as y goes, and what follows; whether all sums are finite."""
    names = ("o", "place", "y_o", "y_h", "high", "wide")
    args = {"y": ptr, "m": ptr, "flags": i64, "bias": ptr} | dict.fromkeys(names, i64)
    f = module.function("output", i1, args, "internal nounwind")
    y, m, flags, bias, o, place, y_o, y_h, high, wide = f.args

    def fold(a: Value, b: Value, c: Value, d: Value) -> list[Value]:
        return [a + (b + c), b - c - d]

    halves = [[k // 2 + t.lanes * (k % 2) for k in range(lo, lo + t.lanes)] for lo in (0, t.lanes)]
    masks = [f.first(wide - k * t.lanes, t.lanes) for k in range(2)]
    with f.carrying(0, o, [f.value(0.0, t.vector)]) as loop:
        source, out = f.element(m, loop.index * t.columns, t.scalar), f.element(y, loop.index * y_o, t.scalar)
        ahead = f.element(out, y_o * 4, t.scalar)  # its lines are far apart, so no hardware asks for them
        for r in range(2):
            for k in (0, 2 * t.lanes - 1):
                f.prefetch(f.element(ahead, y_h * r + k, t.scalar), is_write=True)
        rows: list[list[Value]] = []
        for r in range(4):
            at = [f.element(source, place * (4 * r + q), t.scalar) for q in range(4)]
            rows.append(fold(*(f.load(t.vector, a) for a in at)))
        finite, at_bias = loop.carry[0], f.element(bias, loop.index, t.scalar)
        square = [z for row in zip(*(fold(*column) for column in zip(*rows, strict=True)), strict=True) for z in row]
        for z in square:
            finite = finite + (z - z)
        done = epilogue(f, flags, square, lambda: [f.load(t.scalar, at_bias).splat(t.lanes)] * 4)
        for r, row in enumerate((done[:2], done[2:])):
            with f.when(high > r):
                for k, lanes in enumerate(halves):
                    at = f.element(out, y_h * r + k * t.lanes, t.scalar)
                    z = row[0].shuffle(row[1], lanes)
                    with f.either(wide >= (k + 1) * t.lanes) as sides:
                        for full in sides:
                            f.store(z, at) if full else f.masked_store(z, at, masks[k])
        loop.carry = [finite]
    f.ret(f.any(loop.carry[0].is_nan()) ^ 1)


def _define_plain(module: Module, t: Tiling) -> None:
    """The outputs of a group as plain sums, and what follows."""
    names = ("o", "c", "line", "channel", "w_o", "w_c", "w_h", "w_w", "y_o", "y_h", "high", "wide")
    args = {"y": ptr, "x": ptr, "w": ptr, "flags": i64, "bias": ptr} | dict.fromkeys(names, i64)
    f = module.function("plain", None, args, "internal nounwind")
    y, x, w, flags, bias, o, c, line, channel, w_o, w_c, w_h, w_w, y_o, y_h, high, wide = f.args
    with f.loop(0, o) as i, f.loop(0, f.minimum(high, 2)) as h, f.loop(0, f.minimum(wide, 2 * t.lanes)) as k:
        with f.carrying(0, c, [f.value(0.0, t.scalar)]) as by_c:
            with f.carrying(0, 3, by_c.carry) as by_h:
                with f.carrying(0, 3, by_h.carry) as by_w:
                    column = k + by_w.index
                    at_x = by_c.index * channel + (h + by_h.index) * 2 * line + column % 2 * line + column // 2
                    at_w = i * w_o + by_c.index * w_c + by_h.index * w_h + by_w.index * w_w
                    a, b = (f.load(t.scalar, f.element(p, at, t.scalar)) for p, at in ((w, at_w), (x, at_x)))
                    by_w.carry = [f.fma(a, b, by_w.carry[0])]
                by_h.carry = by_w.carry
            by_c.carry = by_h.carry
        at_bias = f.element(bias, i, t.scalar)
        (done,) = epilogue(f, flags, by_c.carry, lambda: [f.load(t.scalar, at_bias)])
        f.store(done, f.element(y, i * y_o + h * y_h + k, t.scalar))
    f.ret()
