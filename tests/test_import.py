"""What `import tracejit` costs and brings."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import tracejit as tj

ROOT = Path(__file__).parent.parent


def run(code):
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)


def test_import_loads_no_compiler():
    loaded = run("import tracejit, sys; print(*sorted(m for m in sys.modules if '.' not in m))").stdout.split()
    assert not {"numba", "llvmlite", "torch", "scipy", "rich"} & set(loaded)
    assert "numpy" in loaded


def test_import_takes_less_than_twice_numpys_time():
    def seconds(module):
        code = f"import time; t = time.process_time(); import {module}; print(time.process_time() - t)"
        return float(run(code).stdout)

    run("import tracejit")  # writes the bytecode that an installed package has
    pairs: list[tuple[float, float]] = []
    while len(pairs) < 21:  # in turn, and more of them where the machine is busy
        pairs += [(seconds("numpy"), seconds("tracejit")) for _ in range(7)]
        if min(t for _, t in pairs) < 2 * min(n for n, _ in pairs):
            return
    raise AssertionError(f"seconds for (numpy, tracejit): {pairs}")


def test_import_starts_no_thread_and_no_process():
    out = run("import tracejit, threading, multiprocessing as m; print(threading.active_count(), m.active_children())")
    assert out.stdout.strip() == "1 []"


def test_parts_are_reached_as_attributes():
    assert tj.data.digits()[0].shape == (1437, 8, 8)
    assert callable(tj.export.load)
    assert {"data", "export", "nn", "optim", "compile"} <= set(dir(tj))


def test_version_is_that_of_the_project():
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == tj.__version__


def test_package_is_typed_and_ships_its_data():
    package = Path(tj.__file__).parent
    assert (package / "py.typed").exists()
    assert (package / "data" / "digits.npz").exists()
    assert "CC BY 4.0" in (package / "data" / "DIGITS-LICENSE.md").read_text()


def test_every_folder_says_what_it_is():
    folders = [p.parent for p in (ROOT / "src" / "tracejit").rglob("__init__.py")]
    missing = [str(f.relative_to(ROOT)) for f in folders if not (f / "README.md").exists() and f.name != "tracejit"]
    assert missing == []
