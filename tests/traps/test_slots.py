"""What is kept outside from call to call is what plain Python keeps: every program of `slots.py`, plainly and
compiled."""

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


run, slots = load("test_effects").run, load("slots")


@pytest.mark.parametrize(("name", "program", "compiles"), slots.PROGRAMS, ids=[p[0] for p in slots.PROGRAMS])
def test_the_world_is_the_same(name, program, compiles):
    eager, _ = run(program, lambda f: f)
    compiled, g = run(program, tj.compile)
    for k, (a, b) in enumerate(zip(eager, compiled, strict=True)):
        assert a == b, f"after call {k}\n{g.explain()}"
    if compiles is not None:
        assert g.compiled_calls >= compiles, g.explain()


def test_gradients_flow_to_a_tensor_kept_outside():
    class Box:
        h = None

    def losses(jit):
        box = Box()
        box.h = first = tj.ones(3, requires_grad=True)

        def f(x):
            box.h = box.h * x
            return box.h.sum()

        f = jit(f)
        out = [f(tj.full((3,), 1.0 + i / 4)) for i in range(8)]
        out[-1].backward()
        return [x.item() for x in out], first.grad.tolist()

    assert losses(tj.compile) == losses(lambda f: f)
