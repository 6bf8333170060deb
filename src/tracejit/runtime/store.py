"""Compiled objects by content: a dictionary over a folder of files that processes share and none trusts blindly.

A file is `magic, sha256(key), sha256(data), data`: whatever fails those digests (a torn write, a flipped bit, another
version's file) is removed and counts as a miss. Nothing here raises: a store that cannot write is only slower.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path

from tracejit import config, logs
from tracejit.records import dataclass
from tracejit.runtime.files import replacing
from tracejit.runtime.forks import building

__all__ = ["Stats", "Store", "current", "get", "is_entry", "put", "sources", "user_folder"]

MAGIC = b"tjo1"
HEADER = len(MAGIC) + 32 + 32
SUFFIX = ".tjo"


@dataclass
class Stats:
    """What a store did since the process began; `failures` are reads and writes the system refused."""

    memory_hits: int = 0
    disk_hits: int = 0
    misses: int = 0
    writes: int = 0
    corrupt: int = 0
    failures: int = 0


class Store:
    """Bytes by key: up to `memory_bytes` in memory, up to `disk_bytes` in `folder`, oldest out first."""

    def __init__(self, folder: Path, *, memory_bytes: int = 8 << 20, disk_bytes: int = 512 << 20) -> None:
        self.folder = folder
        self.stats = Stats()
        self._memory: OrderedDict[str, bytes] = OrderedDict()
        self._memory_room = memory_bytes
        self._disk_limit = disk_bytes
        self._disk_used: int | None = None  # unknown until the first write looks
        self._lock = threading.Lock()

    def get(self, key: str) -> bytes | None:
        """The bytes last put under `key`, or None."""
        with self._lock:
            if (data := self._memory.get(key)) is not None:
                self._memory.move_to_end(key)
                self.stats.memory_hits += 1
                logs.note("cache", "in memory: %s", _short(key))
                return data
        data = self._read(key)
        logs.note("cache", "missing: %s" if data is None else "on disk: %s", _short(key))
        with self._lock:
            if data is None:
                self.stats.misses += 1
                return None
            self.stats.disk_hits += 1
            self._remember(key, data)
        return data

    def put(self, key: str, data: bytes) -> None:
        """Keep `data` under `key`. Concurrent writers are safe: each replaces the file whole."""
        with self._lock:
            self._remember(key, data)
        try:
            with building():
                self._write(self._path(key), MAGIC + _digest(key.encode()) + _digest(data) + data)
            self.stats.writes += 1
            logs.note("cache", "written: %s, %d bytes", _short(key), len(data))
        except OSError:  # missing rights, a full disk, a folder that cannot be made
            self.stats.failures += 1

    def adopt(self, path: Path, blob: bytes) -> bool:
        """Write an entry's file as another store wrote it, unless there is one. Raises OSError."""
        if path.exists():
            return False
        self._write(path, blob)
        return True

    def forget(self) -> None:
        """Empty the memory layer; files stay."""
        with self._lock:
            self._memory_room += sum(map(len, self._memory.values()))
            self._memory.clear()

    def _remember(self, key: str, data: bytes) -> None:
        self._memory_room += len(self._memory.pop(key, b"")) - len(data)
        self._memory[key] = data
        while self._memory_room < 0:
            self._memory_room += len(self._memory.popitem(last=False)[1])

    def _path(self, key: str) -> Path:
        return self.folder / (sha256(key.encode()).hexdigest() + SUFFIX)

    def _read(self, key: str) -> bytes | None:
        path = self._path(key)
        try:
            if not _is_private(self.folder):
                self.stats.failures += 1
                return None
            blob = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError:
            self.stats.failures += 1
            return None
        data = blob[HEADER:]
        if blob[:HEADER] != MAGIC + _digest(key.encode()) + _digest(data):
            self.stats.corrupt += 1
            _quietly(os.unlink, path)
            return None
        _quietly(os.utime, path)  # youngest again, so that trimming spares it
        return data

    def _write(self, path: Path, blob: bytes) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(path, private=True) as file:
            file.write(blob)
        self._trim(len(blob))

    def _trim(self, added: int) -> None:
        """Delete the files longest unused once the folder is over its limit, down to three quarters of it."""
        with self._lock:
            if self._disk_used is not None and self._disk_used + added <= self._disk_limit:
                self._disk_used += added
                return
            files: list[tuple[float, int, str]] = []
            for entry in os.scandir(self.folder):
                try:
                    if entry.name.endswith((SUFFIX, ".tmp")):
                        status = entry.stat()
                        files.append((status.st_mtime, status.st_size, entry.path))
                except OSError:  # another process trims too
                    continue
            used = sum(size for _, size, _ in files)
            if used > self._disk_limit:
                for _, size, path in sorted(files):
                    if used <= self._disk_limit * 3 // 4:
                        break
                    _quietly(os.unlink, path)
                    used -= size
            self._disk_used = used


def is_entry(name: str, blob: bytes) -> bool:
    """Whether a file of this name and content is a whole entry of a store."""
    magic, key, data = blob[: len(MAGIC)], blob[len(MAGIC) : len(MAGIC) + 32], blob[len(MAGIC) + 32 : HEADER]
    return magic == MAGIC and name == key.hex() + SUFFIX and data == _digest(blob[HEADER:])


def user_folder() -> Path:
    """The folder the system gives applications for caches, ours in it."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "tracejit"


def current() -> Store:
    """The store of the configured folder."""
    return _store(config.current().cache_dir)


def get(key: str) -> bytes | None:
    """The object code kept under `key`, or None. The key must name all the code depends on: text, versions, CPU."""
    return current().get(key)


def put(key: str, data: bytes) -> None:
    """Keep object code under `key`, for this process and those to come."""
    current().put(key, data)


@cache
def sources(folders: tuple[str, ...]) -> str:
    """A digest of this package's modules in `folders`, for keys of what they make; empty where they are no files, or
    others by now than those that run."""
    return _sources(Path(__file__).parents[1], folders)


def _sources(root: Path, folders: Sequence[str]) -> str:
    """... at `root`. The same files have the same digest anywhere, or a pack would be of no use elsewhere; but it is
    kept under where they are and when they were written, which saves reading a megabyte. Not where times look as if
    they were made up, as in archives that are built to be the same each time."""
    try:
        found = sorted(
            (f"{folder}/{file.name}", status.st_mtime_ns, status.st_size)
            for folder in folders
            for file in os.scandir(root / folder)
            if file.name.endswith(".py") and (status := file.stat())
        )
    except OSError:
        return ""
    if not found or any(time > config.LOADED * 1e9 for _, time, _ in found):  # edited while we run
        return ""
    key = f"sources|{sha256(f'{root} {found}'.encode()).hexdigest()}"
    is_told = all(time % 10**9 for _, time, _ in found)
    if is_told and (kept := get(key)) is not None:
        return kept.decode()
    digest = sha256()
    for name, *_ in found:
        digest.update((root / name).read_bytes())
    if is_told:
        put(key, digest.hexdigest().encode())
    return digest.hexdigest()


@cache
def _store(cache_dir: str) -> Store:
    try:
        return Store(Path(cache_dir) if cache_dir else user_folder())
    except RuntimeError:  # no home folder is known: keep to memory and a folder that cannot exist
        return Store(Path(os.devnull) / "tracejit")


def _is_private(folder: Path) -> bool:
    """Whether no stranger can put code there: what we read is run."""
    return os.name == "nt" or not folder.stat().st_mode & 0o002


def _short(key: str) -> str:
    """A key for people: what it is of, and the end of its digest."""
    return f"{key[:16]}...{key[-12:]}" if len(key) > 40 else key


def _digest(data: bytes) -> bytes:
    return sha256(data).digest()


def _quietly(act: Callable[[Path | str], None], path: Path | str) -> None:
    with suppress(OSError):
        act(path)


# A lock held by another thread at the fork would stay held in the child.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_store.cache_clear)
