"""Object code into memory without LLVM, so that a process that finds all its code in the store never loads LLVM.

What our texts become is a small part of ELF (System V ABI, AMD64 supplement 1.0, chapter 4): sections to lay side by
side, symbols, and relocations of four kinds. Whatever is not of that part is left to LLVM's own linker: then `load`
gives None.
"""

from __future__ import annotations

import atexit
import ctypes
import mmap
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cache
from typing import Any
from weakref import WeakSet

from tracejit.records import dataclass

__all__ = ["Image", "load"]

_HEADER = struct.Struct("<4sBBB9xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")

_X86_64 = 62  # e_machine
_SYMTAB, _RELA, _PROGBITS, _NOBITS, _UNWIND = 2, 4, 1, 8, 0x70000001  # sh_type; nobody unwinds through our code
_WRITE, _ALLOC, _EXECUTE = 1, 2, 4  # sh_flags
_UNDEFINED, _RESERVED = 0, 0xFF00  # st_shndx
_ABSOLUTE_64, _PC32, _PLT32 = 1, 2, 4  # relocations: S + A; S + A - P; the same, of a stub where S is far
_GOT = frozenset((9, 41, 42))  # G + GOT + A - P: relative to a word that holds S

_STUB = b"\xff\x25\x00\x00\x00\x00"  # jmp [rip + 0], then the address
_PAGE = mmap.PAGESIZE


class _Unfit(Exception):
    """Not of the part of ELF that is known here."""


class Image:
    """Code in memory: the address of every global symbol. The pages go with it."""

    __slots__ = ("__weakref__", "_pages", "symbols")

    def __init__(self, pages: mmap.mmap, symbols: Mapping[str, int]) -> None:
        self._pages = pages
        self.symbols = symbols
        _images.add(self)

    def stay(self) -> None:
        """The pages do not go any more."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._pages))


_images: WeakSet[Image] = WeakSet()


@atexit.register
def _stay() -> None:
    """When the interpreter ends, objects go in any order: the last of them may call code whose image went before."""
    for image in list(_images):
        image.stay()


@dataclass
class _File:
    """An object file, taken apart; sections get their addresses once all files are known."""

    data: bytes
    sections: list[tuple[int, ...]]
    symbols: list[tuple[str, int, int, int]] = field(default_factory=list[tuple[str, int, int, int]])
    at: dict[int, int] = field(default_factory=dict[int, int])  # section -> offset in the image


def load(files: Sequence[bytes], known: Mapping[str, int]) -> Image | None:
    """The object files, laid side by side and bound to each other, to `known` addresses and to what the process has
    loaded. None where LLVM must do it: another format, another processor, a symbol that is not found."""
    if sys.platform != "linux":
        return None
    try:
        return _load([_parse(data) for data in files], known)
    except (_Unfit, struct.error, LookupError, ValueError, OSError):
        return None


def _parse(data: bytes) -> _File:
    magic, bits, order, _, kind, machine, *_rest = _HEADER.unpack_from(data)
    if (magic, bits, order, kind, machine) != (b"\x7fELF", 2, 1, 1, _X86_64):
        raise _Unfit
    start, count = _rest[3], _rest[9]
    sections = [_SECTION.unpack_from(data, start + i * _SECTION.size) for i in range(count)]
    file = _File(data, sections)
    for _, kind, flags, _, offset, size, link, *_ in sections:
        if flags & _ALLOC and kind not in (_PROGBITS, _NOBITS, _UNWIND):
            raise _Unfit
        if kind == _SYMTAB:
            names = sections[link][4]
            for name, info, _, home, value, _ in _SYMBOL.iter_unpack(data[offset : offset + size]):
                text = data[names + name : data.index(0, names + name)].decode()
                file.symbols.append((text, info >> 4, home, value))
    return file


def _load(files: Sequence[_File], known: Mapping[str, int]) -> Image:
    end, ends = 0, list[int]()
    for wanted in (_EXECUTE, 0, _WRITE):  # pages that run, pages to read, pages to write
        for file in files:
            for i, (_, kind, flags, _, _, size, _, _, align, _) in enumerate(file.sections):
                if flags & _ALLOC and kind != _UNWIND and flags & (_WRITE | _EXECUTE) == wanted and size:
                    end = _up(end, align or 1)
                    file.at[i] = end
                    end += size
        if wanted != _WRITE:  # room behind the code for stubs, behind what is read for words that hold addresses
            end = _up(end, 16) + 16 * sum(len(file.symbols) for file in files)
        end = _up(end, _PAGE)
        ends.append(end)
    if not end:
        raise _Unfit
    pages = mmap.mmap(-1, end, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    found = _globals(files, base)
    binder = _Binder(pages, base, found, known, ends[0], ends[1])
    for file in files:
        for i, at in file.at.items():
            _, kind, _, _, offset, size, *_ = file.sections[i]
            if kind == _PROGBITS:
                pages[at : at + size] = file.data[offset : offset + size]
        binder.bind(file)
    _protect(base, ends[0], mmap.PROT_READ | mmap.PROT_EXEC)
    _protect(base + ends[0], ends[1] - ends[0], mmap.PROT_READ)
    return Image(pages, found)


def _globals(files: Sequence[_File], base: int) -> dict[str, int]:
    """The address of each symbol that a file shows the others."""
    found: dict[str, int] = {}
    for file in files:
        for name, bind, home, value in file.symbols:
            if bind and home != _UNDEFINED:
                if home >= _RESERVED or home not in file.at or name in found:
                    raise _Unfit
                found[name] = base + file.at[home] + value
    return found


class _Binder:
    """Writes addresses into the image. Stubs lie before `stubs`, words of addresses before `words`, last one first."""

    def __init__(
        self, pages: mmap.mmap, base: int, found: Mapping[str, int], known: Mapping[str, int], stubs: int, words: int
    ) -> None:
        self.pages, self.base, self.found, self.known = pages, base, found, known
        self.next_stub, self.next_word = stubs, words
        self.stubs: dict[int, int] = {}
        self.words: dict[int, int] = {}

    def bind(self, file: _File) -> None:
        """All relocations of a file."""
        place: list[int | None] = [None] * len(file.symbols)
        for _, kind, _, _, offset, size, _, target, *_ in file.sections:
            if kind != _RELA or target not in file.at:
                continue
            start = file.at[target]
            for where, info, addend in _RELOCATION.iter_unpack(file.data[offset : offset + size]):
                number = info >> 32
                if (symbol := place[number]) is None:
                    symbol = place[number] = self.address(file, number)
                self.write(start + where, info & 0xFFFFFFFF, symbol, addend)

    def address(self, file: _File, number: int) -> int:
        """Of a symbol that a file names."""
        name, _, home, value = file.symbols[number]
        if home == _UNDEFINED:
            address = self.found.get(name) or self.known.get(name) or _outside(name)
            if not address:
                raise _Unfit
            return address
        return self.base + file.at[home] + value

    def write(self, at: int, kind: int, symbol: int, addend: int) -> None:
        """One relocation."""
        if kind == _ABSOLUTE_64:
            struct.pack_into("<Q", self.pages, at, symbol + addend & (1 << 64) - 1)
            return
        if kind in _GOT:
            symbol = self.word(symbol)
        elif kind == _PLT32:
            if not _near(symbol + addend - self.base - at):
                symbol = self.stub(symbol)
        elif kind != _PC32:
            raise _Unfit
        distance = symbol + addend - self.base - at
        if not _near(distance):
            raise _Unfit
        struct.pack_into("<i", self.pages, at, distance)

    def stub(self, symbol: int) -> int:
        """Code that jumps to a symbol far away."""
        if symbol not in self.stubs:
            self.next_stub -= 16
            self.pages[self.next_stub : self.next_stub + 14] = _STUB + struct.pack("<Q", symbol)
            self.stubs[symbol] = self.base + self.next_stub
        return self.stubs[symbol]

    def word(self, symbol: int) -> int:
        """A word that holds a symbol's address."""
        if symbol not in self.words:
            self.next_word -= 8
            struct.pack_into("<Q", self.pages, self.next_word, symbol)
            self.words[symbol] = self.base + self.next_word
        return self.words[symbol]


def _near(distance: int) -> bool:
    return -(1 << 31) <= distance < 1 << 31


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


@cache
def _process() -> Any:
    return ctypes.CDLL(None)


def _outside(name: str) -> int:
    """The address of a function of libc, libm or Python; 0 where there is none."""
    function = getattr(_process(), name, None)
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0


def _protect(start: int, size: int, access: int) -> None:
    if size and _process().mprotect(ctypes.c_void_p(start), ctypes.c_size_t(size), access):
        raise OSError("mprotect")
