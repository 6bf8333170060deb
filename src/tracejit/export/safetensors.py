"""The safetensors format: a JSON header of names, dtypes, shapes and offsets, then the bytes of all arrays.

    u64 little-endian length of the header | header, padded with spaces to a multiple of 8 | data

Written here in full because it is this small, and so that loading a model needs nothing but NumPy. Files are those of
the `safetensors` library, in both directions; reading checks every number, for the file may come from anyone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from tracejit.errors import FormatError
from tracejit.ir import dtype as dt
from tracejit.ir.dtype import DType
from tracejit.ir.op import Array

__all__ = ["from_bytes", "metadata", "to_bytes"]

_WORD = {
    dt.float64: "F64", dt.float32: "F32", dt.float16: "F16", dt.bfloat16: "BF16", dt.int64: "I64",
    dt.int32: "I32", dt.int16: "I16", dt.int8: "I8", dt.uint8: "U8", dt.bool_: "BOOL",
}  # fmt: skip
_DTYPE = {word: dtype for dtype, word in _WORD.items()}
_LONGEST_HEADER = 100_000_000  # as the library: a length beyond it is a damaged file, not a model


def to_bytes(arrays: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> bytes:
    """The file content that holds `arrays`, and texts beside them. Raises FormatError for a dtype we lack."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    parts: list[bytes] = []
    at = 0
    for name, array in sorted(arrays.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])):
        dtype = dt.from_numpy(array.dtype)
        if dtype is None:
            raise FormatError(f"{name}: arrays of {array.dtype} cannot be stored")
        header[name] = {"dtype": _WORD[dtype], "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        parts.append(np.ascontiguousarray(array).tobytes())
        at += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the data begins aligned
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])


def metadata(content: bytes) -> dict[str, str]:
    """The texts beside the arrays in a file's content. Raises FormatError where there is no readable header."""
    found: Any = _header(content)[0].get("__metadata__", {})
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in cast("dict[str, Any]", found).values()):
        raise FormatError("the metadata are not texts")
    return cast("dict[str, str]", found)


def _header(content: bytes) -> tuple[dict[str, Any], int]:
    """The header and where the data begins."""
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length > min(_LONGEST_HEADER, len(content) - 8):
        raise FormatError(f"{len(content)} bytes cannot hold a header of {length} bytes")
    try:
        header: Any = json.loads(content[8 : 8 + length])
    except ValueError as error:
        raise FormatError(f"the header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise FormatError(f"the header is a {type(header).__name__}, not an object")
    return cast("dict[str, Any]", header), 8 + length


def from_bytes(content: bytes) -> dict[str, Array]:
    """The arrays in a file's content; they own their memory. Raises FormatError naming what does not fit."""
    header, begin = _header(content)
    data = memoryview(content)[begin:]
    out: dict[str, Array] = {}
    end = 0
    entries = {k: v for k, v in header.items() if k != "__metadata__"}
    for name, entry in sorted(entries.items(), key=lambda item: _offsets(*item)):
        dtype, shape, (start, stop) = _read_entry(name, entry)
        if start != end or stop > len(data):  # a gap or an overlap is room for something that nobody declared
            raise FormatError(f"{name}: bytes {start} to {stop} of {len(data)}, expected to begin at {end}")
        out[name] = np.frombuffer(data[start:stop], dtype.numpy).reshape(shape).copy()
        end = stop
    if end != len(data):
        raise FormatError(f"{len(data)} bytes of data where the header declares {end}")
    return out


def _offsets(name: str, entry: Any) -> tuple[int, int]:
    try:
        start, stop = entry["data_offsets"]
    except (TypeError, KeyError, ValueError):
        raise FormatError(f"{name}: no data_offsets in {entry!r}") from None
    if not _is_size(start) or not _is_size(stop):
        raise FormatError(f"{name}: data_offsets are {start!r} and {stop!r}")
    return start, stop


def _read_entry(name: str, entry: Any) -> tuple[DType, tuple[int, ...], tuple[int, int]]:
    word, shape = entry.get("dtype"), entry.get("shape")
    if word not in _DTYPE:
        raise FormatError(f"{name}: unknown dtype {word!r}")
    if not isinstance(shape, list) or not all(map(_is_size, cast("list[Any]", shape))):
        raise FormatError(f"{name}: shape is {shape!r}")
    start, stop = _offsets(name, entry)
    extents = tuple(cast("list[int]", shape))
    if stop - start != math.prod(extents) * _DTYPE[word].itemsize:
        raise FormatError(f"{name}: {stop - start} bytes for {word} of shape {list(extents)}")
    return _DTYPE[word], extents, (start, stop)


def _is_size(x: Any) -> bool:
    return isinstance(x, int) and not isinstance(x, bool) and 0 <= x < 2**63
