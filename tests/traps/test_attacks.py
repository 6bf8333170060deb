"""Every attack observes the same compiled as eager, and where it should, a compiled trace really ran."""


import attacks
import attacks_world
import pytest

import tracejit as tj


ATTACKS = [*attacks.ATTACKS, *attacks_world.ATTACKS]


def snapshot(x):
    """x as plain Python data, now."""
    if isinstance(x, tj.Tensor):
        return ("tensor", str(x.dtype), list(x.shape), x.requires_grad, x.detach().tolist())
    if isinstance(x, (list, tuple)):
        return [type(x).__name__, *map(snapshot, x)]
    if isinstance(x, dict):
        return [(str(k), snapshot(v)) for k, v in x.items()]
    return repr(x) if isinstance(x, (bool, int, float, str, type(None))) else type(x).__name__


def same(a, b):
    """Equal, floats up to rounding and signs of zero kept."""
    if isinstance(a, float) and isinstance(b, float):
        return repr(a) == repr(b) or abs(a - b) <= 1e-5 * max(1.0, abs(a))
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def observe(attack, jit):
    seen = []

    def r(x):
        seen.append(snapshot(x))
        return x

    attack(tj, jit, r)
    return seen


@pytest.mark.parametrize(("name", "attack", "compiles"), ATTACKS, ids=[a[0] for a in ATTACKS])
def test_compiled_observes_what_eager_observes(name, attack, compiles):
    eager = observe(attack, lambda f: f)
    made = []

    def jit(f):
        made.append(tj.compile(f))
        return made[-1]

    compiled = observe(attack, jit)

    assert len(eager) == len(compiled)
    for k, (a, b) in enumerate(zip(eager, compiled)):
        assert same(a, b), f"observation {k}: eager {a}, compiled {b}\n" + "\n".join(c.explain() for c in made)
    if compiles:
        assert sum(c.compiled_calls for c in made), "\n".join(c.explain() for c in made)
