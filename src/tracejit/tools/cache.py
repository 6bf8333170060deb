"""The cache folder as one file: `pack` after a run, ship it with the application, `load` where it starts.

A pack is a ZIP of the store's files as they are: machine code of kernels, plans of graphs, code of guards and of
instrumented functions, and which recordings were confirmed. Keys hold versions and CPU, so what does not fit another
machine is only not found there.
A pack is a program: load one only from where you would install software. Loading checks digests, and runs nothing.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tracejit.errors import TracejitError
from tracejit.runtime import store
from tracejit.runtime.files import replacing

__all__ = ["clear", "load", "pack", "size"]


def size() -> tuple[Path, int, int]:
    """(the cache folder, how many files it has, their bytes)"""
    files = [f.stat().st_size for f in _files()]
    return store.current().folder, len(files), sum(files)


def pack(path: str | os.PathLike[str]) -> int:
    """Write all that is in the cache folder to the file `path`; returns how many entries.

    Raises TracejitError where there is nothing.
    """
    files = sorted(_files())
    if not files:
        raise TracejitError(f"nothing to pack: {store.current().folder} holds no compiled code; run the program first")
    with replacing(Path(path)) as out, zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for file in files:
            with suppress(FileNotFoundError):  # another process trims the folder
                archive.writestr(zipfile.ZipInfo(file.name), file.read_bytes())
    return len(files)


def load(path: str | os.PathLike[str]) -> int:
    """Put the entries of a pack into the cache folder; returns how many were not there yet.

    Raises TracejitError, before anything is written, where the file is no pack or any entry is damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = [(member.filename, _read(archive, member)) for member in archive.infolist()]
    except zipfile.BadZipFile as error:
        hint = "make one with `tracejit cache pack`"
        raise TracejitError(f"{path}: not a pack of compiled code ({error}); {hint}") from error
    for name, blob in entries:
        if not store.is_entry(name, blob):
            raise TracejitError(f"{path}: entry {name} is damaged, or of another version of tracejit; pack it again")
    folder = store.current().folder
    return sum(store.current().adopt(folder / name, blob) for name, blob in entries)


def clear() -> int:
    """Delete the cache's files; returns how many."""
    files = list(_files())
    for file in files:
        with suppress(OSError):
            file.unlink()
    return len(files)


def _files() -> Iterator[Path]:
    folder = store.current().folder
    return folder.glob(f"*{store.SUFFIX}") if folder.is_dir() else iter(())


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    if member.compress_type != zipfile.ZIP_STORED:  # packs are written so; a few bytes must not become gigabytes
        raise zipfile.BadZipFile(f"{member.filename} is compressed")
    return archive.read(member)
