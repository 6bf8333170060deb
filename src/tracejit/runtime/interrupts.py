"""What has begun to be seen is finished: what signal handlers raise meanwhile is raised afterwards.

Python runs signal handlers between two of its instructions, so what must happen whole is a function that can be called
again and goes on where it was: it adds to a list what is over, and calls what cannot be done twice from C
(`done.extend(map(call, steps))`), so that no handler runs between a step and its note. `finish` calls it until it gets
through; natively where there is a native entry, for then no handler runs in between either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracejit.runtime import dispatch

__all__ = ["finish"]


def finish(f: Callable[[list[Any]], Any], done: list[Any]) -> Any:
    """f(done), again for as long as it raises and `done` is not empty; then what was raised first is raised."""
    native = dispatch.native_now()
    return _finish(f, done) if native is None else native.finish(f, done)


def _finish(f: Callable[[list[Any]], Any], done: list[Any]) -> Any:
    first: BaseException | None = None
    result: Any = None
    for _ in range(dispatch.TRIES):
        try:
            result = f(done)
            break
        except BaseException as e:
            first = first or e
            if not done:
                break
    if first is not None:
        raise first
    return result
