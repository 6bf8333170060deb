"""Why a trace does not fit a call, in words, and the edit that would avoid compiling again."""

from __future__ import annotations

from typing import Self

__all__ = ["ARGUMENTS", "DATA", "NUMBER", "Cause", "advice"]

NUMBER = (
    "from now on it is an input of the compiled code; if it compiles again all the same, Python looks at the number: "
    "keep it in a tensor of rank 0"
)
DATA = "choose with where() or clamp() instead of if, so that Python does not look at the tensor"
ARGUMENTS = "call with few kinds of arguments: pad to some shapes, keep dtypes, pass numbers that change as floats"
_VALUE = "keep it the same between calls, or compile one function for each value"
_CONTAINER = "leave the container as it is between calls: pass what changes as an argument, or keep it in tensors"
_CODE = "define functions and classes once, before the first call"
_ADVICE = {
    **dict.fromkeys(("ivar", "item", "closure", "member", "fattr"), _VALUE),
    **dict.fromkeys(("dict", "list", "set", "deque", "bytes", "len", "has", "ivars"), _CONTAINER),
    **dict.fromkeys(("type", "class", "mro", "stamp", "function", "abc"), _CODE),
    "tensor": "keep its dtype, shape and requires_grad; change what is in it in place, as copy_ does",
    "grad": "None in the first step and a tensor in later ones are two traces, which is normal; else clear gradients "
    "at the same place in every step",
    "hooks": "register hooks before the first call",
}


def advice(kind: str, was: object) -> str:
    """The edit that keeps a fact of this kind (see `recorder.Cell`) from changing."""
    return NUMBER if kind in ("ivar", "item", "closure") and type(was) in (int, float) else _ADVICE.get(kind, "")


class Cause(str):
    """Words, with `advice` beside them."""

    __slots__ = ("advice",)
    advice: str

    def __new__(cls, words: str, advice: str) -> Self:
        made = super().__new__(cls, words)
        made.advice = advice
        return made
