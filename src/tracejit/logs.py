"""What the compiler says while it works: channels that `TRACEJIT_LOGS=recompiles,guards` or `config.logs` opens.

Each is a logger `tracejit.<channel>` of Python's `logging`; without handlers its lines go to the standard error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracejit import config

if TYPE_CHECKING:
    from logging import Logger

__all__ = ["logger", "note", "opened"]


def logger(channel: str) -> Logger:
    """What writes to a channel, whoever listens: for what is too grave to be kept to itself."""
    import logging  # 3 ms that a silent process should not pay

    return logging.getLogger(f"tracejit.{channel}")


def opened(channel: str) -> bool:
    """Whether anyone listens: asked before words are made that cost something."""
    return channel in config.current().logs


def note(channel: str, message: str, *args: object) -> None:
    """Say something on a channel, if it is open."""
    if opened(channel):
        logger(channel).warning(message, *args)
