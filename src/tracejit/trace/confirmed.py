"""What an earlier process found twice need not be recorded twice again.

One recording is not believed: it is compiled when a second one of the same path agrees with it. The store remembers
that agreement under all that the two were equal in, the code that ran included. So a new process that records the same
has its second witness already. Its own marks do not count for it: within a process it stays two recordings, whatever
the folder holds.
"""

from __future__ import annotations

import marshal
import os
import sys
import types
from collections.abc import Iterable
from hashlib import sha256

from tracejit import config
from tracejit.runtime import store

__all__ = ["before", "mark", "remember"]

_FOLDERS = ("trace", "tensor", "nn", "optim")


def mark(fingerprint: str, codes: Iterable[types.CodeType]) -> str:
    """The name of a recording in the store: its fingerprint, the user's code that ran, this library, this Python."""
    code = sorted(sha256(marshal.dumps(c, 2)).digest() for c in codes)
    return sha256(b"".join([f"{store.sources(_FOLDERS)} {sys.version} {fingerprint}".encode(), *code])).hexdigest()


def before(mark: str) -> bool:
    """Whether an earlier process recorded this twice."""
    if config.current().record_twice or not store.sources(_FOLDERS):
        return False
    return (found := store.get(f"confirmed|{mark}")) is not None and found != _process()


def remember(mark: str) -> None:
    """This process recorded it twice."""
    if store.get(f"confirmed|{mark}") is None:
        store.put(f"confirmed|{mark}", _process())


def _process() -> bytes:
    return f"{os.getpid()} {config.LOADED}".encode()
