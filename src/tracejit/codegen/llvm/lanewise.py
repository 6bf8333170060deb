"""Loads and stores lane by lane, as functions that kernels call: rare at run time, and long as text."""

from __future__ import annotations

from collections.abc import Iterable

from tracejit.codegen.llvm.text import Module, Type, Value, i64, ptr

__all__ = ["helpers"]


def helpers(symbols: Iterable[str]) -> str:
    """LLVM text of the memory helpers that kernels call, by symbol; once for many kernels, so that those stay short.

    tj_clamp_i32x16(from, base, step, last): lanes base + k * step, each index clamped to 0 .. last
    tj_step_i32x16(from, step): lanes k * step
    tj_pick_i32x16_i64(from, indices): lanes wherever they are
    tj_scatter_i32(from, to, step, n): n lanes of a spilled vector, step apart
    """
    m = Module()
    for symbol in sorted(symbols):
        kind, *rest = symbol.removeprefix("tj_").split("_")
        name, _, width = rest[0].partition("x")
        t, w = Type(name), int(width or 1)
        if kind == "scatter":
            f = m.function(symbol, None, {"from": ptr, "to": ptr, "step": i64, "n": i64})
            source, to, step_, n = f.args
            with f.loop(0, n) as k:
                f.store(f.load(t, f.element(source, k, t)), f.element(to, k * step_, t))
            f.ret()
            continue
        lanes: list[Value] = []
        if kind == "pick":
            f = m.function(symbol, t.wide(w), {"from": ptr, "at": Type(rest[1]).wide(w)})
            source, at = f.args
            lanes = [(at.lane(k) if w > 1 else at).cast(i64) for k in range(w)]
        elif kind == "step":
            f = m.function(symbol, t.wide(w), {"from": ptr, "step": i64})
            source, by = f.args
            lanes = [by * k for k in range(w)]
        else:
            f = m.function(symbol, t.wide(w), {"from": ptr, "base": i64, "step": i64, "last": i64})
            source, base, by, last = f.args
            lanes = [f.maximum(f.minimum(base + by * k, last), 0) for k in range(w)]
        out = f.value(0, t.wide(w))
        for k, at in enumerate(lanes):
            one = f.load(t, f.element(source, at, t))
            out = out.insert(one, k) if w > 1 else one
        f.ret(out)
    return m.text()
