"""Memory that keeps its pages: a fresh page costs more than the arithmetic on it, so large blocks are used again.

A `Block` is aligned memory that goes back to its pool when it is dropped. `empty` gives an array that owns a block, so
the block returns when the array and all its views are gone. The pool keeps a bounded number of bytes; `trim()` gives
them back to the system, a huge page that was cut into blocks once none of these is in use.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from tracejit.records import dataclass

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Block", "Pool", "address", "copy", "empty", "owns", "pool", "reads_objects", "trim"]

SMALL: Final = 32 << 10  # below, the C allocator keeps pages itself and takes a third of the time
HUGE: Final = 2 << 20  # a huge page; blocks as large begin on one
FEW: Final = 8  # regions of a size on pages of their own; more share huge pages, and a step over all of them, which
# waits for the translation of addresses otherwise, takes three quarters of the time
KEEP: Final = 1 << 30  # bytes the pool keeps for later; `pool.keep` may be set


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """`size` bytes of pages from the system, from `address` on; the pages are given back when nobody holds them."""

    pages: mmap.mmap
    address: int
    size: int

    def cut(self, size: int) -> list[Region]:
        """All of it in regions of this size."""
        starts = range(self.address, self.address + self.size - size + 1, size)
        return [Region(self.pages, start, size) for start in starts]


def fresh(size: int) -> Region:
    """Asked of the system."""
    spare = HUGE if size >= HUGE else 0
    if sys.platform == "win32":
        pages = mmap.mmap(-1, size + spare)
    else:
        pages = mmap.mmap(-1, size + spare, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if spare and hasattr(mmap, "MADV_HUGEPAGE"):
            pages.madvise(mmap.MADV_HUGEPAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    return Region(pages, -(-start // HUGE) * HUGE if spare else start, size)


class Block:
    """Aligned memory at `address`. Dropped, it gives its region back to its pool.

    Each block is also a ctypes array of its size class, so NumPy takes it as a buffer and keeps it alive.
    """

    __slots__ = ()

    address: int
    region: Region
    pool: Pool

    def __del__(self) -> None:
        if (pool := getattr(self, "pool", None)) is not None:  # it has none where an interrupt came first
            pool.give(self.region)


class Pool:
    """Free regions by size class, at most `keep` bytes in all. Safe from any thread, without a lock.

    A lock would hang where a block dies while the lock is held. Lists are pushed and popped atomically; the byte count
    may drift when threads race, and is taken anew at each trim.
    """

    def __init__(self, keep: int = KEEP) -> None:
        self.keep = keep
        self.kept = 0
        self.made = 0  # regions asked of the system, ever
        self._free: dict[int, list[Region]] = {}
        self._asked: dict[int, int] = {}

    def block(self, nbytes: int) -> Block:
        """At least `nbytes`, 64-byte aligned, content undefined, nobody else's until the block is dropped."""
        size = size_class(nbytes)
        try:
            region = self._free[size].pop()
            self.kept -= size
        except (KeyError, IndexError):
            region = self.more(size)
        block = _block_type(size).from_address(region.address)
        block.address, block.region, block.pool = region.address, region, self
        return block

    def more(self, size: int) -> Region:
        """A fresh region; where a size is asked for often, one of those that a huge page is cut into."""
        self.made += 1
        self._asked[size] = asked = self._asked.get(size, 0) + 1
        if asked <= FEW or not SMALL <= size <= HUGE // 8:
            return fresh(size)
        first, *others = fresh(HUGE).cut(size)
        for region in others:
            self.give(region)
        return first

    def give(self, region: Region) -> None:
        """Take a region back, or let it go when that would be too much."""
        if self.kept + region.size > self.keep:
            self.trim(max(0, self.keep - region.size) // 2)
            if region.size > self.keep:
                return
        self._free.setdefault(region.size, []).append(region)
        self.kept += region.size

    def trim(self, keep: int = 0) -> None:
        """Give memory back to the system, the largest regions first, until at most `keep` bytes stay."""
        kept = sum(size * len(regions) for size, regions in list(self._free.items()))
        for size in sorted(self._free, reverse=True):
            regions = self._free[size]
            while kept > keep and regions:
                try:
                    regions.pop()
                except IndexError:  # another thread took the last one
                    break
                kept -= size
        self.kept = kept


def size_class(nbytes: int) -> int:
    """`nbytes` rounded up to whole pages and one of eight sizes per power of two. Untouched pages take no memory."""
    step = max(mmap.PAGESIZE, 1 << max(0, (nbytes - 1).bit_length() - 4))
    return -(-max(nbytes, 1) // step) * step


# Any: a class made at run time.
@cache
def _block_type(size: int) -> Any:
    fields = {"_type_": ctypes.c_char, "_length_": size, "__slots__": ("address", "region", "pool")}
    return type(f"Block{size}", (Block, ctypes.Array), fields)


pool: Final = Pool()


def empty(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """An array of undefined content; when large, 64-byte aligned and on pages that have been touched before."""
    dtype = np.dtype(dtype)
    nbytes = (shape if isinstance(shape, int) else prod(shape)) * dtype.itemsize
    if nbytes < SMALL:
        return np.empty(shape, dtype)
    return np.ndarray(shape, dtype, cast(Any, pool.block(nbytes)))


def owns(array: npt.NDArray[Any]) -> bool:
    """Whether the memory is this array's: no other array has a part of it, unless as a view of this one."""
    return array.base is None or isinstance(array.base, Block)


def copy(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A copy in the memory of `empty`, where the array is one that it can be asked for."""
    if array.nbytes < SMALL or array.dtype.hasobject or not array.flags.c_contiguous:
        return np.array(array)
    out = empty(array.shape, array.dtype)
    out[...] = array
    return out


def trim() -> None:
    """Give all memory that no array uses back to the system."""
    pool.trim()


def _address_of_interface(array: npt.NDArray[Any]) -> int:
    return array.__array_interface__["data"][0]


def _address_in_object(array: npt.NDArray[Any]) -> int:
    return ctypes.c_size_t.from_address(id(array) + _DATA).value


# PyArrayObject begins with the object header, then the data pointer. Reading it takes a tenth of the public way's time.
_DATA: Final = object.__basicsize__


def _can_read_objects() -> bool:
    """Try it, instead of trusting a version number."""
    if sys.implementation.name != "cpython":
        return False
    base = np.zeros((3, 4))
    probes = (base, base[1:, 1:], base.T, np.zeros(0), np.float32(1).reshape(()))
    return all(_address_in_object(a) == _address_of_interface(a) for a in map(np.asarray, probes))


reads_objects: Final = _can_read_objects()
# Where the first element of an array is.
address: Final = _address_in_object if reads_objects else _address_of_interface
