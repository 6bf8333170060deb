"""Every program of `mutations.py` shows the same compiled as eager, and where it should, a compiled trace really ran."""


import mutations
import numpy as np
import pytest

import tracejit as tj

class Observer:
    """What a caller sees, as plain data, at the moment it is shown."""

    def __init__(self):
        self.seen = []
        self.first = {}  # by id, versions of memory when it was first shown
        self.arrays = []  # of the tensors shown, to find out who shares memory

    def __call__(self, *xs):
        self.seen.append([self.called(*xs) if callable(xs[0]) else self.shown(x) for x in (xs[:1] if callable(xs[0]) else xs)])

    def called(self, f, *args):
        try:
            return self.shown(f(*args))
        except Exception as e:  # noqa: BLE001
            return ["raised", type(e).__name__, words(str(e))]

    def shown(self, x):
        if isinstance(x, tj.Tensor):
            a = x.detach().numpy()
            shares = [i for i, b in enumerate(self.arrays) if np.shares_memory(a, b)]
            self.arrays.append(a)
            return {
                "type": f"{x.dtype}{list(x.shape)}",
                "value": a.astype(np.float64).tolist() if a.dtype.kind == "V" else a.tolist(),
                "requires_grad": x.requires_grad,
                "is_leaf": x.is_leaf,
                "has grad_fn": x.grad_fn is not None,
                "version": x._version.n - self.first.setdefault(id(x._version), (x._version, x._version.n))[1],
                "shares with": shares,
                "grad": None if x.grad is None or not x.is_leaf else self.shown(x.grad),
            }
        if isinstance(x, (list, tuple)):
            return [type(x).__name__, *map(self.shown, x)]
        return x if isinstance(x, (bool, int, float, str, type(None))) else type(x).__name__


def words(message):
    """An error message without line numbers."""
    return " ".join(w for w in message.split() if ".py:" not in w)


def different(a, b, path=""):
    """Where two observations differ, None where they do not; floats up to rounding."""
    if isinstance(a, float) and isinstance(b, float):
        close = repr(a) == repr(b) or abs(a - b) <= 2e-5 * max(1.0, abs(a))
        return None if close else f"{path}: {a} / {b}"
    if isinstance(a, dict) and isinstance(b, dict):
        return next((d for k in a if (d := different(a[k], b[k], f"{path}.{k}"))), None)
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return next((d for i, (x, y) in enumerate(zip(a, b)) if (d := different(x, y, f"{path}[{i}]"))), None)
    return None if type(a) is type(b) and a == b else f"{path}: {a} / {b}"


def observe(program, jit):
    tj.manual_seed(0)
    r = Observer()
    program(tj, jit, r)
    return r.seen


@pytest.mark.parametrize(("name", "program", "compiles"), mutations.PROGRAMS, ids=[p[0] for p in mutations.PROGRAMS])
def test_compiled_shows_what_eager_shows(name, program, compiles):
    eager = observe(program, lambda f: f)
    made = []

    def jit(f):
        made.append(tj.compile(f))
        return made[-1]

    compiled = observe(program, jit)

    assert different(eager, compiled) is None
    if compiles:
        assert any(f.compiled_calls for f in made), "\n".join(f.explain() for f in made)
