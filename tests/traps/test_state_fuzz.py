"""Random programs over random state, changed at random between calls: compiled sees what eager sees.

Each program reads its way through an object graph (globals, attributes, slots, dicts, lists, closures, defaults, properties,
callables) and steers by what it finds; between calls something in the graph is rebound, mutated, deleted or put back.
"""

import random
import types

import pytest

import tracejit as tj

VALUES = (1, 2, True, 1.0, 2.5, 0.0, -0.0, "a", "bb", None, (1, 2), (1, (2.0, "x")))
TENSORS = ([1.0, 2.0], [3.0, -1.0], [0.5, 0.5], [-2.0, 1.0])


class Plain:
    """Ordinary attributes, a class attribute and a property."""

    shared = 3

    def __init__(self, **kw):
        self.__dict__.update(kw)

    @property
    def computed(self):
        return len(self.__dict__)

    def method(self, v):
        return v if self.shared else 0


class Slotted:
    """No __dict__."""

    __slots__ = ("a", "b")


class Sub(Plain):
    """Inherits everything."""

    shared = 5


def world(rng):
    """A fresh object graph; the same rng state gives the same graph."""

    def value(depth):
        k = rng.random()
        if depth > 2 or k < 0.35:
            return rng.choice(VALUES)
        if k < 0.5:
            return [value(depth + 1) for _ in range(rng.randrange(3))]
        if k < 0.65:
            return {rng.choice("abc"): value(depth + 1) for _ in range(rng.randrange(3))}
        if k < 0.8:
            return rng.choice((Plain, Sub))(**{n: value(depth + 1) for n in rng.sample("abc", 2)})
        if k < 0.86:
            s = Slotted()
            s.a = value(depth + 1)
            return s
        if k < 0.93:
            return tj.tensor(rng.choice(TENSORS))
        return {1, rng.randrange(4), "s"}

    return {f"g{i}": value(0) for i in range(4)}


PATHS = ("", ".a", ".b", ".shared", ".computed", "['a']", "['b']", "[0]", "[-1]", ".a.b", ".a['a']", "['a'][0]", ".get('a')")
USES = (
    "x = x + num({0})",
    "x = x * num({0}) if {0} else x - 1",
    "x = x + len({0})",
    "x = x + sum(num(v) for v in {0})",
    "x = x + (1 if isinstance({0}, (int, float)) else 2)",
    "x = x + (1 if type({0}) is int else 3)",
    "x = x + (1 if {0} == {1} else 2)",
    "x = x + (1 if {0} is None else 2)",
    "x = x + (1 if 'a' in {0} else 2)",
    "x = x + (1 if hasattr({0}, 'a') else 2)",
    "x = x + num(getattr({0}, 'b', 7))",
    "x = x + len(str({0}))",
    'x = x + len(f"{{{0}}}")',
    "x = x + num(sorted({0}, key=num)[0])",
    "for v in {0}: x = x * 1.5 + num(v)",
    "a, *b = {0}; x = x + num(a) + len(b)",
    "x = x + len({{**{0}}})",
    "x = x + num(max({0}, key=num))",
    "x = x + h({0}) + h2(1)",
    "x = x + ({0}.method(2) if hasattr({0}, 'method') else 4)",
    "x = x + (10 if (x + num({0})).sum() > 3 else 20)",
    "x = x + len([v for v in {0} if num(v) > 1])",
    "x = x + num(dict({0}).get('b'))",
    "x = x + len(list(zip({0}, {1}))) + num(any({0}))",
)


def program(rng, space):
    """Source of a random function; every use is guarded by the errors a wrong guess about types gives."""
    lines = ["def f(x):"]
    for _ in range(rng.randrange(2, 6)):
        a, b = (rng.choice(("g0", "g1", "g2", "g3", "cell")) + rng.choice(PATHS) for _ in range(2))
        use = rng.choice(USES).format(a, b)
        lines += ["    try:", f"        {use}", "    except (TypeError, LookupError, AttributeError, ValueError, RuntimeError):"]
        lines += ["        x = x - 0.25"]
    lines.append("    return x")
    outer = ["def make(cell):", *("    " + line for line in lines), "    return f"]
    helper = """
def num(v):
    if isinstance(v, bool): return 11.0 if v else 12.0
    if isinstance(v, (int, float)): return v
    if isinstance(v, tj.Tensor): return v.sum()
    return 0.5 if v is None else len(v) if isinstance(v, (str, tuple, list, dict, set)) else 3.5
def h(v, k=[1]): return num(v) * len(k)
def h2(v, *, s={"q": 2}): return s["q"] + v
"""
    exec(helper + "\n".join(outer), space)
    return space["make"]


def change(rng, space, cell):
    """Change one thing somewhere in the graph."""
    fresh = world(rng)["g0"]
    holders = []
    stack = [v for k, v in space.items() if k[0] == "g"] + [cell.cell_contents]
    seen = set()
    while stack:
        v = stack.pop()
        if id(v) in seen:
            continue
        seen.add(id(v))
        if isinstance(v, (list, dict, set, Plain, Slotted, tj.Tensor)):
            holders.append(v)
        stack += v if isinstance(v, list) else v.values() if isinstance(v, dict) else vars(v).values() if isinstance(v, Plain) else ()
    k = rng.randrange(8)
    if k == 0 or not holders:
        space[f"g{rng.randrange(4)}"] = fresh
    elif k == 1:
        cell.cell_contents = fresh
    elif k == 2:
        Plain.shared = rng.choice((0, 3, 4))
    elif k == 3:
        space["h"].__defaults__[0].append(1)
    elif k == 4:
        space["h2"].__kwdefaults__["s"]["q"] += 1
    else:
        v = rng.choice(holders)
        if isinstance(v, list):
            rng.choice((lambda: v.append(fresh), lambda: v.reverse(), lambda: v.clear(), lambda: v.insert(0, 1)))()
        elif isinstance(v, dict):
            rng.choice((lambda: v.update(a=fresh), lambda: v.clear(), lambda: v.update(b=1.0)))()
        elif isinstance(v, set):
            v.add(rng.randrange(9))
        elif isinstance(v, Slotted):
            v.a = fresh
        elif isinstance(v, tj.Tensor):
            v.add_(1)
        elif rng.random() < 0.2:
            v.__class__ = Sub if type(v) is Plain else Plain
        else:
            rng.choice((lambda: setattr(v, "a", fresh), lambda: setattr(v, "b", 2), lambda: vars(v).pop("a", None)))()


def observe(seed, jit):
    rng = random.Random(seed)
    Plain.shared = 3
    space = {**world(rng), "tj": tj, "__name__": "fuzz", "__builtins__": __builtins__}
    make = program(rng, space)
    f = make(world(rng)["g0"])
    cell = next((c for c in f.__closure__ or ()), types.CellType(None))
    g = jit(f)
    out = []
    for _ in range(6):
        for _ in range(4):
            out.append(g(tj.tensor([1.0, 2.0])).tolist())
        out.append(g(tj.tensor([-3.0, 1.0])).tolist())
        change(rng, space, cell)
    return out, getattr(g, "compiled_calls", 0)


@pytest.mark.parametrize("block", range(8))
def test_random_programs_over_random_state(block):
    ran = 0
    for seed in range(block * 12, block * 12 + 12):
        eager, _ = observe(seed, lambda f: f)
        compiled, hits = observe(seed, tj.compile(backend="interpret"))
        assert repr(eager) == repr(compiled), f"seed {seed}"
        ran += hits
    assert ran > 50
