"""After every call the world is what plain Python leaves: every program of `worlds.py`, plainly and compiled."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

import tracejit as tj


def load(name):
    spec = importlib.util.spec_from_file_location(f"tracejit_{name}", Path(__file__).with_name(f"{name}.py"))
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


run, worlds = load("test_effects").run, load("worlds")


@pytest.mark.filterwarnings("ignore:hey")
@pytest.mark.parametrize(("name", "make"), worlds.PROGRAMS, ids=[p[0] for p in worlds.PROGRAMS])
def test_the_world_is_the_same(name, make, capsys):
    def program(_):
        tj.manual_seed(0)
        f, arguments, world = make()
        return f, [arguments(i) for i in range(worlds.N)], world

    eager, _ = run(program, lambda f: f)
    said = capsys.readouterr().out
    compiled, g = run(program, tj.compile)
    for k, (a, b) in enumerate(zip(eager, compiled, strict=True)):
        assert a == b, f"after call {k}\n{g.explain()}"
    assert capsys.readouterr().out == said
