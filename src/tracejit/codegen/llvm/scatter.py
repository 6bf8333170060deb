"""y = x, then y[a, index, b] (+)= updates along one axis: each thread owns rows or columns of y.

`scatter` shares one list of indices between all a and b (the gradient of an embedding): a unit is a row of y, and a
thread goes through the whole list for the rows that are its own. `scatter_along` has an index for each update: a unit
is a column (a, b). Either way updates of one place come in the order of the list: the result is that of one thread,
bit for bit.

An index outside the axis is skipped; nothing outside y is ever written.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from tracejit.codegen.llvm.matmul import Call, kernel
from tracejit.codegen.llvm.text import Function, Module, Value, i64, of

__all__ = ["kernel_text", "plan"]

_POINTERS = ("y", "x", "indices", "updates")
_INTEGERS = ("extent", "inner", "count", "zero")

_CHUNK = 32_768  # elements worth waking another thread for


def kernel_text(dtype: str, mode: str, along: bool, vector_bits: int) -> str:
    """LLVM text of one kernel; `mode` is "add" or "set". Sums of f16 and bf16 need a wider y: they have no kernel."""
    module = Module()
    f, s = kernel(module, _symbol(dtype, mode, along), _POINTERS, _INTEGERS)
    (_columns if along else _rows)(f, s, dtype, mode, vector_bits // (8 * of(dtype).bytes))
    return module.text()


def plan(
    dtype: str, mode: str, along: bool, shape: tuple[int, ...], axis: int, count: int, *, from_zero: bool = False
) -> Call:
    """How to scatter `count` updates into `shape` along `axis`, all arrays contiguous.

    With `from_zero` the pointer x is not read: y begins as zeros. x and y may be the same memory.
    """
    outer, extent, inner = prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])
    integers = (extent, inner, count, int(from_zero))
    if along:
        units, work, least = outer * inner, extent + count, _CHUNK
    else:  # every slice reads all indices, so it should have a like number of elements to write
        units, work, least = outer * extent, inner * (1 + count // max(extent, 1)), max(_CHUNK, count // 4)
    grain = max(1, -(-least // max(work, 1)))
    return Call(_symbol(dtype, mode, along), _POINTERS, integers, units, grain, 0)


def _symbol(dtype: str, mode: str, along: bool) -> str:
    return f"scatter_{'along_' if along else ''}{mode}_{dtype}"


def _combined(old: Value, new: Value, mode: str, dtype: str) -> Value:
    if mode == "set":
        return new
    return old | new if dtype == "bool" else old + new


def _each(f: Function, first: Value, last: Value, lanes: int, body: Callable[[Value, int], None]) -> None:
    """Whole vectors of first..last, then single elements; `body(index, width)` handles `width` elements."""
    main = last - (last - first) % lanes
    with f.loop(first, main, lanes) as i:
        body(i, lanes)
    with f.loop(main, last) as i:
        body(i, 1)


def _begin(f: Function, s: dict[str, Value], dtype: str, first: Value, last: Value, lanes: int) -> None:
    """y[first..last] = x, or zeros; nothing is left to do where x is y."""
    t = of(dtype)

    def copy(i: Value, width: int) -> None:
        f.store(f.load(t.wide(width), f.element(s["x"], i, t)), f.element(s["y"], i, t))

    def clear(i: Value, width: int) -> None:
        f.store(f.value(0, t.wide(width)), f.element(s["y"], i, t))

    with f.when(s["zero"].ne(0)):
        _each(f, first, last, lanes, clear)
    with f.when(s["zero"].eq(0) & s["x"].ne(s["y"])):
        _each(f, first, last, lanes, copy)


def _rows(f: Function, s: dict[str, Value], dtype: str, mode: str, lanes: int) -> None:
    t, extent, inner, lo, hi = of(dtype), s["extent"], s["inner"], s["lo"], s["hi"]
    _begin(f, s, dtype, lo * inner, hi * inner, lanes)
    with f.loop(lo // extent, (hi + extent - 1) // extent) as a:
        first = f.maximum(lo - a * extent, 0)
        last = f.minimum(hi - a * extent, extent)
        with f.loop(0, s["count"]) as i:
            row = f.load(i64, f.element(s["indices"], i, i64))
            with f.when((row >= first) & (row < last)):
                y = f.element(s["y"], (a * extent + row) * inner, t)
                new = f.element(s["updates"], (a * s["count"] + i) * inner, t)

                def update(b: Value, width: int, y: Value = y, new: Value = new) -> None:
                    value, at = f.load(t.wide(width), f.element(new, b, t)), f.element(y, b, t)
                    f.store(_combined(f.load(t.wide(width), at), value, mode, dtype), at)

                _each(f, f.value(0, i64), inner, lanes, update)
    f.ret()


def _columns(f: Function, s: dict[str, Value], dtype: str, mode: str, lanes: int) -> None:
    t, extent, inner, lo, hi = of(dtype), s["extent"], s["inner"], s["lo"], s["hi"]
    with f.loop(lo // inner, (hi + inner - 1) // inner) as a:
        first = f.maximum(lo - a * inner, 0)
        last = f.minimum(hi - a * inner, inner)
        with f.loop(0, extent) as e:
            row = (a * extent + e) * inner
            _begin(f, s, dtype, row + first, row + last, lanes)
        with f.loop(0, s["count"]) as i, f.loop(first, last) as b:
            at = (a * s["count"] + i) * inner + b
            row = f.load(i64, f.element(s["indices"], at, i64))
            with f.when((row >= 0) & (row < extent)):
                y = f.element(s["y"], (a * extent + row) * inner + b, t)
                new = f.load(t, f.element(s["updates"], at, t))
                f.store(_combined(f.load(t, y), new, mode, dtype), y)
    f.ret()
