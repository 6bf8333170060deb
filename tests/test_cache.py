"""`tracejit cache`: the compiled code of an application as one file."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tracejit import config
from tracejit.errors import TracejitError
from tracejit.runtime import store
from tracejit.tools import cache, cli

PROGRAM = """
import tracejit as tj
from tracejit.runtime import store

@tj.compile
def f(x):
    return (x.exp() * 2).sum()

for call in range(1, 7):
    f(tj.ones(300))
    if f.compiled_calls == 1:
        print(call, store.current().stats.writes)
        break
"""


@pytest.fixture
def folder(tmp_path: Path) -> Any:
    with config.override(cache_dir=str(tmp_path / "cache")):
        yield tmp_path / "cache"


def run(program: Path, folder: Path) -> list[int]:
    """[the first compiled call, files written] of a new process with that cache folder."""
    environment = {**os.environ, "TRACEJIT_CACHE_DIR": str(folder), "TRACEJIT_RECORD_TWICE": ""}
    done = subprocess.run([sys.executable, str(program)], env=environment, capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()]


def test_a_pack_makes_another_machine_start_warm(tmp_path: Path, folder: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    first = run(program, folder)
    assert first[0] == 4 and first[1] > 0
    assert cli.main(["cache", "pack", str(tmp_path / "app.tjpack")]) == 0
    with config.override(cache_dir=str(tmp_path / "elsewhere")):
        assert cli.main(["cache", "load", str(tmp_path / "app.tjpack")]) == 0
        assert cache.size()[1] == len(list(folder.glob("*.tjo")))
    assert run(program, tmp_path / "elsewhere") == [3, 0]  # recorded once, nothing compiled


def test_loading_twice_changes_nothing(tmp_path: Path, folder: Path) -> None:
    store.put("a key", b"some data")
    assert cache.pack(tmp_path / "p") == 1
    assert cache.load(tmp_path / "p") == 0
    assert cache.clear() == 1
    assert cache.load(tmp_path / "p") == 1
    store.current().forget()
    assert store.get("a key") == b"some data"


def test_nothing_to_pack_says_so(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cache", "pack", str(tmp_path / "p")]) == 2
    assert "run the program first" in capsys.readouterr().err
    assert not (tmp_path / "p").exists()


def damaged(path: Path, name: str, data: bytes, **more: Any) -> None:
    with zipfile.ZipFile(path, "w", **more) as archive:
        archive.writestr(name, data)


@pytest.mark.parametrize("how", ["bit", "name", "climb", "compressed", "text"])
def test_a_damaged_pack_is_refused_whole(tmp_path: Path, folder: Path, how: str) -> None:
    store.put("a key", b"some data")
    (file,) = folder.glob("*.tjo")
    good, name = file.read_bytes(), file.name
    cache.clear()
    path = tmp_path / "p"
    match how:
        case "bit":
            damaged(path, name, good[:-1] + b"x")
        case "name":
            damaged(path, "0" * 64 + ".tjo", good)
        case "climb":
            damaged(path, "../" + name, good)
        case "compressed":
            damaged(path, name, good, compression=zipfile.ZIP_DEFLATED)
        case _:
            path.write_text("no")
    with pytest.raises(TracejitError, match="damaged|not a pack"):
        cache.load(path)
    assert not list(tmp_path.rglob("*.tjo"))


def test_info_and_clear(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store.put("a key", b"some data")
    assert cli.main(["cache", "info"]) == 0
    assert "1 entries" in capsys.readouterr().out
    assert cli.main(["cache", "clear"]) == 0
    assert cache.size()[1] == 0
