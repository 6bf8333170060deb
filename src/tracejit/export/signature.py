"""The signature of an exported function: how its arguments and its result are built from tensors.

A `Spec` mirrors a Python value: `Leaf(i)` stands for tensor i, `Fixed(v)` for a number, string or None that was part of
the recording, `Items` and `Fields` for lists, tuples and dicts. It goes to JSON and back; types stand in the graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

from tracejit.errors import ExportError, FormatError
from tracejit.records import dataclass

__all__ = [
    "Fields",
    "Fixed",
    "Items",
    "Leaf",
    "Spec",
    "describe",
    "flatten",
    "from_json",
    "match",
    "to_json",
    "unflatten",
]


@dataclass(frozen=True)
class Leaf:
    """Tensor number `index`."""

    index: int


@dataclass(frozen=True)
class Fixed:
    """A plain value that the graph was made with: None, a bool, a number, a string."""

    value: bool | int | float | str | None


@dataclass(frozen=True)
class Items:
    """A list or a tuple."""

    kind: str
    items: tuple[Spec, ...]


@dataclass(frozen=True)
class Fields:
    """A dict with string keys."""

    items: tuple[tuple[str, Spec], ...]


Spec = Leaf | Fixed | Items | Fields


def flatten(value: Any, is_leaf: Callable[[Any], bool], what: str) -> tuple[Spec, list[Any]]:
    """The Spec of `value`, and its leaves in order. Raises ExportError naming what `value` holds that no file can."""
    leaves: list[Any] = []

    def spec(v: Any, where: str) -> Spec:
        if is_leaf(v):
            leaves.append(v)
            return Leaf(len(leaves) - 1)
        if v is None or isinstance(v, (bool, int, float, str)):
            return Fixed(v)
        if isinstance(v, (list, tuple)):
            kind = "list" if isinstance(v, list) else "tuple"
            return Items(kind, tuple(spec(x, f"{where}[{i}]") for i, x in enumerate(cast("Sequence[Any]", v))))
        if isinstance(v, dict) and all(isinstance(k, str) for k in cast("dict[Any, Any]", v)):
            return Fields(tuple((k, spec(x, f"{where}[{k!r}]")) for k, x in cast("dict[str, Any]", v).items()))
        known = "tensors, numbers, strings, None, and lists, tuples and dicts (with string keys) of them"
        raise ExportError(f"{where} is a {type(v).__name__}; a file can hold {known}")

    return spec(value, what), leaves


def match(spec: Spec, value: Any, what: str) -> list[Any]:
    """The leaves of `value`, which must be built as `spec` says. Raises TypeError or ValueError naming both sides."""
    leaves: list[Any] = []

    def visit(s: Spec, v: Any, where: str) -> None:
        match s:
            case Leaf():
                leaves.append(v)
            case Fixed(want):
                if type(v) is not type(want) or not (v == want or (v != v and want != want)):
                    raise ValueError(f"{where} is {v!r}; the file was made with {want!r}, which is part of its graph")
            case Items(kind, items):
                if not isinstance(v, (list, tuple)) or len(cast("Sequence[Any]", v)) != len(items):
                    raise TypeError(f"{where} must be a {kind} of {len(items)}, got {_shown(v)}")
                for i, (inner, x) in enumerate(zip(items, cast("Sequence[Any]", v), strict=True)):
                    visit(inner, x, f"{where}[{i}]")
            case Fields(fields):
                names = [k for k, _ in fields]
                if not isinstance(v, dict) or set(cast("dict[Any, Any]", v)) != set(names):
                    raise TypeError(f"{where} must be a dict with keys {names}, got {_shown(v)}")
                for k, inner in fields:
                    visit(inner, v[k], f"{where}[{k!r}]")

    visit(spec, value, what)
    return leaves


def _shown(v: Any) -> str:
    if isinstance(v, dict):
        return f"keys {list(cast('dict[Any, Any]', v))}"
    return f"a {type(v).__name__}" + (f" of {len(cast('Sequence[Any]', v))}" if isinstance(v, (list, tuple)) else "")


def unflatten(spec: Spec, leaves: Sequence[Any]) -> Any:
    """The value that `spec` describes, with `leaves` in the place of its tensors."""
    match spec:
        case Leaf(index):
            return leaves[index]
        case Fixed(value):
            return value
        case Items(kind, items):
            made = [unflatten(s, leaves) for s in items]
            return made if kind == "list" else tuple(made)
        case Fields(items):
            return {k: unflatten(s, leaves) for k, s in items}


def describe(spec: Spec, leaf: Callable[[int], str]) -> str:
    """`spec` as Python would write it, each tensor as `leaf` says."""
    match spec:
        case Leaf(index):
            return leaf(index)
        case Fixed(value):
            return repr(value)
        case Items(kind, items):
            inner = ", ".join(describe(s, leaf) for s in items)
            if kind == "list":
                return f"[{inner}]"
            return f"({inner},)" if len(items) == 1 else f"({inner})"
        case Fields(items):
            return f"{{{', '.join(f'{k!r}: {describe(s, leaf)}' for k, s in items)}}}"


def to_json(spec: Spec) -> Any:
    """`spec` as JSON data."""
    match spec:
        case Leaf(index):
            return {"tensor": index}
        case Fixed(value):  # JSON has no word for infinities and nan
            return {"fixed": {"float": repr(value)} if isinstance(value, float) and not math.isfinite(value) else value}
        case Items(kind, items):
            return {kind: [to_json(s) for s in items]}
        case Fields(items):
            return {"dict": [[k, to_json(s)] for k, s in items]}


def from_json(data: Any, tensors: int) -> Spec:
    """The Spec that JSON `data` says; its leaves are among `tensors`. Raises FormatError."""
    if not isinstance(data, dict) or len(cast("dict[str, Any]", data)) != 1:
        raise FormatError(f"expected one of tensor, fixed, list, tuple, dict, found {data!r}")
    ((kind, content),) = cast("dict[str, Any]", data).items()
    if kind == "tensor" and isinstance(content, int) and 0 <= content < tensors:
        return Leaf(content)
    if kind == "fixed" and isinstance(content, dict) and content.get("float") in ("inf", "-inf", "nan"):  # pyright: ignore[reportUnknownMemberType]
        return Fixed(float(cast("dict[str, str]", content)["float"]))
    if kind == "fixed" and (content is None or isinstance(content, (bool, int, float, str))):
        return Fixed(content)
    if kind in ("list", "tuple") and isinstance(content, list):
        return Items(kind, tuple(from_json(x, tensors) for x in cast("list[Any]", content)))
    if kind == "dict" and isinstance(content, list):
        pairs = cast("list[Any]", content)
        if all(isinstance(p, list) and len(cast("list[Any]", p)) == 2 and isinstance(p[0], str) for p in pairs):
            return Fields(tuple((k, from_json(x, tensors)) for k, x in pairs))
    raise FormatError(f"cannot read {kind} {content!r} ({tensors} tensors)")
