"""Every attack on the native entry observes the same compiled as eager, and calls really ran natively."""


import entries
import pytest
import test_attacks

import tracejit as tj
from tracejit.runtime import dispatch
from tracejit.trace import compile as driver


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
