"""A process that compiles for ever keeps a flat memory: benchmarks/soak.py for two thousand new things."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parent.parent / "benchmarks" / "soak.py"
ROUNDS = 290  # of seven turns: shapes, constants, branches, layers, closures, functions of new source, train steps

CODE = f"""
import runpy
soak = runpy.run_path({str(SOAK)!r})
readings = soak["soak"](soak["TURNS"], lambda i: i >= {ROUNDS}, 10)
print(*readings)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_two_thousand_new_things_leave_nothing_behind():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    readings = [int(x) for x in done.stdout.split()]
    settled = readings[len(readings) // 3 :]
    half = len(settled) // 2
    grown = min(settled[half:]) - min(settled[:half])
    assert grown < 1 << 20, f"{grown / half / 10:.0f} bytes a round: {[x >> 10 for x in readings]} kB"
