"""Finding the first NaN of a backward pass."""

from __future__ import annotations

from tracejit.tensor.gradmode import set_anomaly

__all__ = ["detect_anomaly", "set_detect_anomaly"]


class detect_anomaly:
    """In the block, a backward pass raises AutogradError at the first gradient that is nan, and names the op and the
    line of its forward. Compiled functions run as plain Python."""

    def __init__(self, check_nan: bool = True) -> None:
        self.mode = bool(check_nan)

    def __enter__(self) -> None:
        self.before = set_anomaly(self.mode)

    def __exit__(self, *exc: object) -> None:
        set_anomaly(self.before)


class set_detect_anomaly:
    """Switch the search for NaN on or off: at once, and for the block where used in a `with`."""

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self.before = set_anomaly(bool(mode and check_nan))

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        set_anomaly(self.before)
