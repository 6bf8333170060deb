"""Ordinary constructs compile, and give what plain Python gives."""

from __future__ import annotations


import ordinary
import pytest

import tracejit as tj

@pytest.mark.parametrize(("name", "program"), ordinary.PROGRAMS, ids=[p[0] for p in ordinary.PROGRAMS])
def test_it_compiles(name, program):
    tj.manual_seed(0)
    f, calls = program(tj)
    plain = [f(*args).tolist() for args in calls]
    tj.manual_seed(0)
    f, calls = program(tj)
    g = tj.compile(f)
    compiled = [g(*args).tolist() for args in calls]
    for a, b in zip(plain, compiled, strict=True):
        assert a == pytest.approx(b)
    assert g.compiled_calls > 0, g.explain()
