"""A recording that an earlier process found twice is compiled at once; a process's own marks do not count."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import tracejit as tj
from tracejit import config
from tracejit.trace import confirmed

PROGRAM = """
import tracejit as tj

class Model(tj.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = tj.nn.Linear(3, 2)
    def forward(self, x):
        return {body}

tj.manual_seed(0)
model = tj.compile(Model())
x = tj.ones(4, 3)
first = []
for call in range(1, 7):
    y = model(x)
    first += [call] * (model.compiled_calls == 1)
import sys
print(first[0], float(y.sum()), "llvmlite" in sys.modules)
"""


def first_compiled(tmp_path: Path, body: str = "self.inner(x).relu() + 1", **more: str) -> tuple[int, str, bool]:
    """(number of the first compiled call, the result, whether LLVM came) in a new process with the test's store."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(body=body))
    environment = {**os.environ, "TRACEJIT_CACHE_DIR": str(tmp_path / "cache"), "TRACEJIT_RECORD_TWICE": "", **more}
    run = subprocess.run([sys.executable, str(program)], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    number, value, llvm = run.stdout.split()
    return int(number), value, llvm == "True"


def test_a_second_process_records_once(tmp_path: Path) -> None:
    cold = first_compiled(tmp_path)
    warm = first_compiled(tmp_path)
    assert cold[0] == 4 and warm[0] == 3
    assert cold[1] == warm[1]
    assert cold[2]
    assert warm[2] is (sys.platform != "linux" or platform.machine() != "x86_64")


def test_the_setting_asks_for_two_recordings_again(tmp_path: Path) -> None:
    first_compiled(tmp_path)
    assert first_compiled(tmp_path, TRACEJIT_RECORD_TWICE="1")[0] == 4


def test_other_code_is_recorded_twice(tmp_path: Path) -> None:
    first_compiled(tmp_path)
    assert first_compiled(tmp_path, body="(self.inner(x) * 1).relu() + 1")[0] == 4  # after the passes the same graph


def test_one_recording_after_another_with_other_numbers_is_no_agreement(tmp_path: Path) -> None:
    first_compiled(tmp_path, body="self.inner(x).relu() + 1")
    assert first_compiled(tmp_path, body="self.inner(x).relu() + 2")[0] == 4


def test_marks_of_this_process_do_not_count(tmp_path: Path) -> None:
    with config.override(cache_dir=str(tmp_path), record_twice=False):
        for _ in range(2):  # the second function finds the first one's mark

            @tj.compile
            def f(x: Any) -> Any:
                return x * 2 + 1

            x = tj.ones(3)
            calls = 0
            while not f.compiled_calls:
                f(x)
                calls += 1
            assert calls == 4


def test_a_mark_is_believed_only_from_another_process(tmp_path: Path) -> None:
    with config.override(cache_dir=str(tmp_path), record_twice=False):
        name = confirmed.mark("fingerprint", [PROGRAM_CODE])
        assert not confirmed.before(name)
        confirmed.remember(name)
        assert not confirmed.before(name)
        ask = f"from tracejit.trace import confirmed; print(confirmed.before({name!r}))"
        environment = {**os.environ, "TRACEJIT_CACHE_DIR": str(tmp_path), "TRACEJIT_RECORD_TWICE": ""}
        run = subprocess.run([sys.executable, "-c", ask], env=environment, capture_output=True, text=True, check=True)
        assert run.stdout.strip() == "True"
    assert name != confirmed.mark("another", [PROGRAM_CODE])
    assert name != confirmed.mark("fingerprint", [])


PROGRAM_CODE = compile("1 + 1", "program", "exec")
