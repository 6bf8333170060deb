"""`tracejit.save` and `tracejit.load`: state dicts and other plain data in one file.

The file is a safetensors file: the tensors by number, and beside them a JSON text that says how they are nested. So it
opens in any program that reads safetensors, nothing in it is code, and loading runs none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from tracejit.errors import FormatError
from tracejit.export import safetensors
from tracejit.ir.op import Array
from tracejit.runtime.files import replace_file
from tracejit.tensor.tensor import Tensor, wrap

__all__ = ["load", "save"]

FORMAT = "tracejit.checkpoint"
VERSION = 1
File = str | os.PathLike[str] | IO[bytes]


def save(obj: Any, f: File) -> None:
    """Write `obj` to a path (whole or not at all) or a binary file.

    `obj` may be a tensor, a number, a text, None, or lists, tuples and dicts of them, such as a `state_dict()`. A
    tensor that occurs twice is stored once and is one tensor again when loaded. Raises TypeError naming the place of
    anything else.
    """
    writer = _Writer()
    tree = writer.encode(obj, "the object", ())
    text = json.dumps({"version": VERSION, "tree": tree}, separators=(",", ":"), allow_nan=False)
    content = safetensors.to_bytes(writer.arrays, {FORMAT: text})
    if isinstance(f, (str, os.PathLike)):
        replace_file(Path(f), content)
    else:
        f.write(content)


def load(f: File, map_location: Any = None, *, weights_only: bool = True) -> Any:
    """What `save` wrote to a path or a binary file. Tensors come back on the CPU; `weights_only` changes nothing.

    Raises FormatError for a file that is damaged, of another kind, or written by a newer tracejit.
    """
    content = Path(f).read_bytes() if isinstance(f, (str, os.PathLike)) else f.read()
    name = os.fspath(f) if isinstance(f, (str, os.PathLike)) else "the file"
    try:
        text = safetensors.metadata(content).get(FORMAT)
        if text is None:
            raise FormatError("it holds no checkpoint of tracejit; for a model file use tracejit.export.load")
        top: Any = json.loads(text)
        if not isinstance(top, dict) or not isinstance(version := cast("dict[str, Any]", top).get("version"), int):
            raise FormatError("its description is damaged")
        if version > VERSION:
            raise FormatError(f"it has format {version}, this tracejit reads up to {VERSION}: install a newer one")
        return _Reader(safetensors.from_bytes(content)).decode(cast("dict[str, Any]", top).get("tree"))
    except ValueError as e:  # FormatError is one, and so is what json raises
        raise FormatError(f"cannot read {name}: {e}") from None
    except RecursionError:
        raise FormatError(f"cannot read {name}: its description is nested too deeply") from None


class _Writer:
    """Nested data as JSON: containers and tensors are one-key objects, everything else stands for itself."""

    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}
        self.names: dict[int, str] = {}

    def encode(self, x: Any, place: str, above: tuple[int, ...]) -> Any:
        if id(x) in above:
            raise TypeError(f"{place} contains itself")
        inside = (*above, id(x))
        if x is None or isinstance(x, (bool, int, str)):
            return x
        if isinstance(x, float):
            return x if np.isfinite(x) else {"float": repr(x)}
        if isinstance(x, Tensor):
            return {"tensor": self._tensor(x), "requires_grad": x.requires_grad}
        if isinstance(x, Mapping):
            items = cast("Mapping[Any, Any]", x).items()
            return {
                "dict": [[self.encode(k, place, inside), self.encode(v, f"{place}[{k!r}]", inside)] for k, v in items]
            }
        if isinstance(x, (list, tuple)):
            parts = [self.encode(v, f"{place}[{i}]", inside) for i, v in enumerate(cast("list[Any]", x))]
            return parts if isinstance(x, list) else {"tuple": parts}
        raise TypeError(
            f"{place} is a {type(x).__name__}; save() takes tensors, numbers, texts, lists, tuples and dicts"
        )

    def _tensor(self, t: Tensor) -> str:
        if id(t) not in self.names:
            self.names[id(t)] = name = str(len(self.names))
            self.arrays[name] = t._array
        return self.names[id(t)]


class _Reader:
    """The way back."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self.tensors = {name: wrap(a) for name, a in arrays.items()}

    def decode(self, x: Any) -> Any:
        if x is None or isinstance(x, (bool, int, float, str)):
            return x
        if isinstance(x, list):
            return [self.decode(v) for v in cast("list[Any]", x)]
        match cast("dict[str, Any]", x):
            case {"tensor": str(name), "requires_grad": bool(needs)} if name in self.tensors:
                t = self.tensors[name]
                return t.requires_grad_() if needs else t
            case {"dict": list(items)}:
                return {self._key(k): self.decode(v) for k, v in items}
            case {"tuple": list(parts)}:
                return tuple(self.decode(v) for v in parts)
            case {"float": "inf" | "-inf" | "nan" as word}:
                return float(word)
            case _:
                raise FormatError(f"its description holds {str(x)[:60]!r}")

    def _key(self, k: Any) -> Any:
        key = self.decode(k)
        try:
            hash(key)
        except TypeError:
            raise FormatError(f"a dict in it has the key {str(k)[:60]!r}") from None
        return key
