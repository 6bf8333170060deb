"""Files that are replaced whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

__all__ = ["replace_file", "replacing"]


@contextmanager
def replacing(path: Path, *, private: bool = False) -> Generator[IO[bytes]]:
    """`with replacing(path) as file:` what the block writes becomes the file `path` at its end; nothing, if it raises.

    As readable as any file, and on the disk when this returns; or, where it is `private`, neither: only its owner reads
    it, and a crash of the system may lose it. Raises OSError.
    """
    import tempfile  # and what it imports: not for those who only read

    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "No such folder", str(path.parent))
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            if not private:
                file.flush()
                os.fsync(file.fileno())
        if not private:
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(name, 0o666 & ~umask)  # mkstemp makes files private
        os.replace(name, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise


def replace_file(path: Path, content: bytes) -> None:
    """Put `content` at `path`, whole or not at all. Raises OSError."""
    with replacing(path) as file:
        file.write(content)
