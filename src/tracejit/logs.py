"""What the compiler says while it works: channels that `TRACEJIT_LOGS=recompiles,guards` or `config.logs` opens.

Each is a logger `tracejit.<channel>` of Python's `logging`; without handlers its lines go to the standard error.
"""

from __future__ import annotations

from tracejit import config

__all__ = ["note", "opened"]


def opened(channel: str) -> bool:
    """Whether anyone listens: asked before words are made that cost something."""
    return channel in config.current().logs


def note(channel: str, message: str, *args: object) -> None:
    """Say something on a channel, if it is open."""
    if opened(channel):
        import logging  # 3 ms that a silent process should not pay

        logging.getLogger(f"tracejit.{channel}").warning(message, *args)
