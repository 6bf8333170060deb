"""After every call the world is what plain Python leaves: every program of `effects.py`, plainly and compiled."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

import tracejit as tj

_spec = importlib.util.spec_from_file_location("tracejit_effects", Path(__file__).with_name("effects.py"))
effects = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = effects
_spec.loader.exec_module(effects)


def graph(x, seen=None):
    """x and everything it reaches as plain data; what was met before is its number, so aliasing shows."""
    seen = {} if seen is None else seen
    if isinstance(x, (bool, int, float, complex, str, bytes, type(None))):
        return (type(x).__name__, repr(x))
    if id(x) in seen:
        return ("again", seen[id(x)][0])
    seen[id(x)] = (len(seen), x)
    t = type(x).__name__
    if isinstance(x, tj.Tensor):
        return (
            t,
            str(x.dtype),
            x.requires_grad,
            x.grad_fn is None,
            [f"{v:.5g}" for v in x.detach().reshape(-1).tolist()],
        )
    if isinstance(x, dict):
        return (t, [(graph(k, seen), graph(v, seen)) for k, v in x.items()])
    if isinstance(x, (set, frozenset)):
        return (t, sorted(map(repr, x)))
    if isinstance(x, (list, tuple)) or t == "deque":
        return (t, [graph(v, seen) for v in x])
    if hasattr(x, "__dict__") and t != "function":
        return (t, [(k, graph(v, seen)) for k, v in vars(x).items()])
    return (t,)


def run(program, jit):
    f, calls, world = program(tj)
    g = jit(f)
    out = []
    for args in calls:
        try:
            result = g(*args)
        except Exception as e:
            result = f"raised {type(e).__name__}"
        now = world() if callable(world) else world
        out.append(graph((result, args, now)))
    return out, g


@pytest.mark.parametrize(("name", "program", "compiles"), effects.PROGRAMS, ids=[p[0] for p in effects.PROGRAMS])
def test_the_world_is_the_same(name, program, compiles):
    eager, _ = run(program, lambda f: f)
    compiled, g = run(program, tj.compile)
    for k, (a, b) in enumerate(zip(eager, compiled, strict=True)):
        assert a == b, f"after call {k}\n{g.explain()}"
    if compiles is not None:
        assert g.compiled_calls >= compiles, g.explain()
