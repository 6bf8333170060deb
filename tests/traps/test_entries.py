"""Every attack on the native entry observes the same compiled as eager, and calls really ran natively."""

import importlib.util
import sys
from pathlib import Path

import pytest

import tracejit as tj
from tracejit.runtime import dispatch
from tracejit.trace import compile as driver


def load(name):
    spec = importlib.util.spec_from_file_location(f"tracejit_{name}", Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


entries, test_attacks = load("entries"), load("test_attacks")


@pytest.mark.parametrize(("name", "attack", "native"), entries.ATTACKS, ids=[a[0] for a in entries.ATTACKS])
def test_a_native_call_observes_what_eager_observes(name, attack, native, monkeypatch):
    made, compiled_functions = [], []
    make = driver.make

    def watched(*args):
        made.append(make(*args))
        return made[-1]

    def jit(f):
        compiled_functions.append(tj.compile(f))
        return compiled_functions[-1]

    monkeypatch.setattr(driver, "make", watched)
    eager = test_attacks.observe(attack, lambda f: f)
    compiled = test_attacks.observe(attack, jit)

    assert len(eager) == len(compiled)
    for k, (a, b) in enumerate(zip(eager, compiled)):
        told = "\n".join(str(c.explain()) for c in compiled_functions)
        assert test_attacks.same(a, b), f"observation {k}: eager {a}, compiled {b}\n{told}"
    if native and dispatch.native() is not None:
        assert sum(d.entry.hits for d in made) > 0, [t.unsaid for c in compiled_functions for t in c.traces()]
