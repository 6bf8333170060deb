"""Real data: the digits that ship with the package, and IDX files, the format of MNIST and Fashion-MNIST."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import numpy as np

from tracejit.errors import FormatError

__all__ = ["digits", "idx", "read_idx"]

Array = np.ndarray[Any, np.dtype[Any]]
_DIGITS = Path(__file__).with_name("digits.npz")
_TRAIN = 1437  # of 1797; the file is shuffled, so a slice is a fair split
_IDX_DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def digits(train: bool = True) -> tuple[Array, Array]:
    """Real handwritten digits: images u8[n, 8, 8] with values 0 to 16, labels i64[n]; 1437 to train, 360 to test.

    UCI Optical Recognition of Handwritten Digits (E. Alpaydin, C. Kaynak, 1998), CC BY 4.0: see DIGITS-LICENSE.md.
    """
    with np.load(_DIGITS, allow_pickle=False) as file:
        images, labels = file["images"], file["labels"].astype(np.int64)
    part = slice(_TRAIN) if train else slice(_TRAIN, None)
    return images[part], labels[part]


def idx(folder: str | os.PathLike[str], train: bool = True) -> tuple[Array, Array]:
    """Images and labels (i64) of an MNIST-like data set: its four `*-ubyte` files, gzipped or not, in `folder`."""
    part = "train" if train else "t10k"
    images = read_idx(_find(Path(folder), f"{part}-images-idx3-ubyte"))
    labels = read_idx(_find(Path(folder), f"{part}-labels-idx1-ubyte"))
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
        raise FormatError(f"{folder}: images of shape {images.shape} do not go with labels of shape {labels.shape}")
    return images, labels.astype(np.int64)


def read_idx(path: str | os.PathLike[str]) -> Array:
    """The array in one IDX file. Raises FormatError where the file is something else or is cut short."""
    path = Path(path)
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (gzip.BadGzipFile, EOFError) as error:
        raise FormatError(f"{path}: not a complete gzip file: {error}") from error
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _IDX_DTYPES:
        raise FormatError(
            f"{path}: not an IDX file: it begins with {data[:4].hex(' ') or 'nothing'}, not with 00 00 type rank"
        )
    start = 4 + 4 * data[3]
    shape = tuple(np.frombuffer(data[4:start], ">u4").tolist()) if len(data) >= start else ()
    dtype = np.dtype(_IDX_DTYPES[data[2]])
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if len(shape) != data[3] or len(data) != start + size:
        raise FormatError(f"{path}: {len(data)} bytes where the header asks for {start + size} (shape {list(shape)})")
    return np.frombuffer(data, dtype, offset=start).astype(dtype.newbyteorder("=")).reshape(shape)


def _find(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise FileNotFoundError(f"neither {name} nor {name}.gz is in {folder}")
