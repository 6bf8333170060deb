"""The command line."""

from __future__ import annotations

import struct
import sys

import numpy as np
import pytest

import tracejit as tj
from tracejit.tools import cli


def test_help_names_the_commands(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--help"])
    assert stopped.value.code == 0
    assert "demo" in capsys.readouterr().out


def test_no_command_is_an_error(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main([])
    assert stopped.value.code == 2


def test_show_prints_signature_weights_and_graph(tmp_path, capsys):
    tj.export.save(tj.nn.Linear(3, 2), (tj.ones(4, 3),), tmp_path / "f.tj", dynamic={0: "n"})
    assert cli.main(["show", str(tmp_path / "f.tj")]) == 0
    out = capsys.readouterr().out
    assert out.startswith("(input: f32[n, 3]) -> f32[n, 2] where 1 <= n <=")
    assert "  weight: float32[2, 3]" in out
    assert "graph @Linear(" in out


def test_what_the_user_can_mend_is_said_without_a_traceback(tmp_path, capsys):
    (tmp_path / "bad.tj").write_text("no")
    assert cli.main(["show", str(tmp_path / "bad.tj")]) == 2
    assert cli.main(["show", str(tmp_path / "none.tj")]) == 2
    assert cli.main(["demo", "--data", str(tmp_path)]) == 2
    errors = capsys.readouterr().err
    assert "bad.tj: not a complete tracejit file" in errors
    assert "train-images-idx3-ubyte.gz is in" in errors


def test_missing_extra_says_what_to_install(monkeypatch, capsys):
    for name in [m for m in sys.modules if m.startswith("rich")] + ["rich.console"]:
        monkeypatch.setitem(sys.modules, name, None)
    assert cli.main(["demo"]) == 2
    assert "pip install 'tracejit[demo]'" in capsys.readouterr().err


@pytest.mark.parametrize("epochs", ["0", "-1", "x"])
def test_epochs_must_be_positive(epochs, capsys):
    with pytest.raises(SystemExit):
        cli.main(["demo", "--epochs", epochs])
    assert "is not a positive number" in capsys.readouterr().err


@pytest.mark.slow
def test_demo_reads_idx_files(tmp_path, capsys):
    draw = np.random.default_rng(0)
    for part, count in (("train", 192), ("t10k", 64)):
        for name, array in (
            ("images-idx3", draw.integers(0, 256, (count, 12, 12), np.uint8)),
            ("labels-idx1", draw.integers(0, 10, count, np.uint8)),
        ):
            header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
            (tmp_path / f"{part}-{name}-ubyte").write_bytes(header + array.tobytes())
    status = cli.main(["demo", "--data", str(tmp_path), "--epochs", "1", "--out", str(tmp_path / "f.tj")])
    out = capsys.readouterr().out
    assert status == 0, out
    assert "192 images to train, 64 to test" in out


@pytest.mark.slow
def test_demo_keeps_its_promises(tmp_path, capsys):
    status = cli.main(["demo", "--epochs", "2", "--out", str(tmp_path / "digits.tj")])
    out = capsys.readouterr().out
    assert status == 0, out
    assert "speed-up" in out
    assert "FAILED" not in out
    assert (tmp_path / "digits.tj").exists()
