"""Options and helpers of the whole test suite."""

from __future__ import annotations

import os
import signal

import pytest

# Which call is the first compiled one must not depend on the runs before.
os.environ["TRACEJIT_RECORD_TWICE"] = "1"

# A shell that starts us in the background has us ignore interrupts, and some tests wait for one.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--bless", action="store_true", help="rewrite the second halves of the golden files; review the diff"
    )


@pytest.fixture
def bless(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--bless"))
