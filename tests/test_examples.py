"""Every example runs, in its short form."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(p.name for p in EXAMPLES.glob("*.py")))
def test_example_runs(name, tmp_path):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), "--quick"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_example_gives_the_same_numbers_uncompiled(tmp_path):
    def losses(eager):
        environment = {**os.environ, "TRACEJIT_EAGER": eager}
        command = [sys.executable, str(EXAMPLES / "digits_cnn.py"), "--quick"]
        out = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, check=True).stdout
        return [float(line.split("loss ")[1].split(",")[0]) for line in out.splitlines() if "loss" in line]

    assert losses("1") == pytest.approx(losses("0"), rel=0.02)
