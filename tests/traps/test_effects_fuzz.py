"""Random programs that read and write a random world: compiled calls leave behind what plain Python leaves.

Each program is a list of statements over a few objects that know one another under several names; between calls
something in the world is changed from outside. After every call the result and the whole object graph are compared.
"""

from __future__ import annotations

import collections
import random

import pytest
from test_effects import graph

import tracejit as tj

READS = (
    "box.n",
    "box.k",
    "other.n",
    'd["a"]',
    'd.get("b", 0)',
    "len(log)",
    "len(d)",
    "n",
    'space["n"]',
    "box.f",
    "len(q)",
    "(log[-1] if log else 0)",
    "sum(d.values())",
    'd2.get((1, "x"), 0)',
    '(2 if "c" in d else 3)',
    "x.shape[0]",
    "k",
    'getattr(box, "maybe", 5)',
    "x.sum().item()",
    "x.mean().item() * 2",
    "len(str(box.n))",
    "len(box.text)",
    "cls.made",
    "(1 if log else 2)",
    "len(vars(other))",
    "box.tup[0]",
    "max(box.f, 1.5)",
)
STATEMENTS = (
    "box.n += 1",
    "box.n = {0}",
    "box.k = box.n",
    "other.n = {0}",
    "box.f += {0} * 0.5",
    "d['a'] = {0}",
    "d['b'] = {0}",
    "d['c'] = {0}",
    "d.pop('c', None)",
    "d.setdefault('e', {0})",
    "log.append({0})",
    "log.append(x * 2)",
    "log.clear()",
    "log.extend([{0}, {1}])",
    "log[:] = [{0}]",
    "log.insert(0, {0})",
    "n = {0}",
    "n += 1",
    "space['n'] = {0}",
    "q.append({0})",
    "q.appendleft({0})",
    "box.last = x + {0}",
    "box.last = y",
    "y = y * 1.5 + {0}",
    "d2[(1, 'x')] = {0}",
    "d.clear()",
    "box.maybe = {0}",
    "if hasattr(box, 'maybe'): del box.maybe",
    "box.text = f'{{{0}:.2f}}'",
    "box.text += 'a'",
    "box.tup = ({0}, {1})",
    "box.lst = [{0}, y]",
    "cls.made += 1",
    "names.add('a'); names.discard('b')",
    "d.update(a={0}, z={1})",
    "box.tup = (box.n, box.tup)[:1]",
    "if {0} > {1}: log.append('big')",
    "if {0} > {1}: box.n = 0",
    "log.append(box.lst)",
    "for v in list(d): d[v] = 1.0",
    "box.flag = not box.flag",
    "log.append(f'{{{0}}}|{{x.sum().item():.1f}}')",
    "q.rotate(1)",
    "w.add_({0})",
    "box.last = w * 1",
    "box.h = box.h * 0.5 + x",
    "log += [{0}]",
    "d |= {{'m': {0}}}",
    "out.append({0})",
    "log.append(log2)",
    "log2.append({0})",
    "box.log2 = log2",
    "try: del d['b']\n    except KeyError: box.n += 10",
    "try: log.append(1 / (x.sum().item() - 3.0))\n    except ZeroDivisionError: log.append('zero')",
)
CHANGES = (
    "box.n = 7",
    "box.n = 0.5",
    "d['a'] = 100",
    "d.clear()",
    "log.append('outside')",
    "del log[:]",
    "box.k = 3",
    "q.clear()",
    "d['c'] = 1",
    "box.maybe = 2",
    "box.f = -1.0",
    "set_n(11)",
    "cls.made = 0",
    "d2.clear()",
    "box.flag = True",
    "log2.append(0)",
    "box.h = tj.ones(2)",
    "box.text = ''",
    "other.n = -2",
    "space['n'] = 4",
    "box.tup = (5,)",
    "w.zero_()",
)


class Box:
    """Attributes."""


def source(rng):
    lines = ["def make():", "  n = 0", "  def f(x, k, out):", "    nonlocal n, log, d", "    y = x"]
    for _ in range(rng.randrange(2, 8)):
        line = rng.choice(STATEMENTS).format(*(rng.choice(READS) for _ in range(2)))
        lines.append("    " + line)
    lines += [f"    return y + {rng.choice(READS)}, {rng.choice(READS)}", "  def get_n(): return n"]
    lines += ["  def set_n(v):", "    nonlocal n", "    n = v", "  return f, get_n, set_n"]
    body = "\n".join(lines).split("\n")
    head = "def world(box, other, d, d2, log, log2, q, names, space, cls, w):"
    return "\n".join([head, *("  " + line for line in body), "  return make()"])


def observe(seed, jit):
    rng = random.Random(seed)
    text = source(rng)
    box, other, cls = Box(), Box(), type("Cls", (), {"made": 0})
    box.__dict__.update(n=1, k=2.0, f=0.5, text="t", tup=(1, 2), lst=[], flag=False, h=tj.zeros(2))
    other.n = 3
    other.box = box
    d, d2, log, log2, q = {"a": 1.0}, {}, [1.0], [], collections.deque([1, 2], maxlen=rng.choice((None, 3)))
    names, w, box.log, box.d = {"b"}, tj.zeros(2), log, d
    namespace = {"tj": tj}
    exec(text, namespace)
    f, get_n, set_n = namespace["world"](box, other, d, d2, log, log2, q, names, vars(box), cls, w)
    g, out = jit(f), []
    here = {"box": box, "other": other, "d": d, "d2": d2, "log": log, "log2": log2, "q": q, "cls": cls, "w": w}
    here |= {"space": vars(box), "set_n": set_n, "tj": tj}
    for k in range(16):
        mine = []
        try:
            result = g(tj.tensor([float(rng.randrange(4)), 1.0 + k % 3]), float(k % 4), mine)
        except Exception as e:
            result = f"raised {type(e).__name__}: {e}"
        out.append(graph((result, mine, box, other, d, d2, log, log2, q, names, cls.made, get_n(), w)))
        if k > 5 and rng.random() < 0.3:
            exec(rng.choice(CHANGES), here)
    return out, g, text


@pytest.mark.parametrize("block", range(8))
def test_random_effects(block):
    ran = 0
    for seed in range(block * 12, block * 12 + 12):
        plain, _, text = observe(seed, lambda f: f)
        compiled, g, _ = observe(seed, tj.compile(backend="interpret"))
        for k, (a, b) in enumerate(zip(plain, compiled, strict=True)):
            assert a == b, f"seed {seed}, after call {k}\n{text}\n{g.explain()}"
        ran += g.compiled_calls
    assert ran > 10
