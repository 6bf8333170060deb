"""Random small programs, eager against compiled: what they return, what they leave behind, and what they raise.

A program is a function over tensors, numbers and a world of state (an object, a list, a dict, a module with parameters and
running statistics, a nonlocal counter, a key-value cache, the random generator): branches on data and on state, loops, in-place
ops, views, gradients, helpers, exceptions, side effects. Between calls the world is changed. Hypothesis draws and shrinks them.

    TRACEJIT_FUZZ_MINUTES=10 pytest tests/traps/test_program_fuzz.py -k minutes -s
"""

import os
import random
import time
import types

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import tracejit as tj

# What a line of a program may be; each is one statement or a block with {body}. x, y are the tensors at hand.
LINES = (
    "x = x * {n} + y",
    "x = (x - y).tanh()",
    "x = x.exp() / (1 + y.abs())",
    "y = y + x.sum(0, keepdim=True) * 0.1",
    "x, y = y, x",
    "x = x[:, :2].repeat(1, 2)",
    "x = x.reshape(4, 3).t().reshape(3, 4)",
    "y = x.clone()",
    "x = x.sort(1)[0]",
    "x = x.softmax({axis})",
    "x = tj.where(x > {n}, x, y)",
    "x = tj.cat([x[:1], y[1:]], 0)",
    "x = x.clamp(-2, {n})",
    "x = tj.stack([x, y]).mean(0)",
    "x = (x @ y.t()) @ y * 0.1",
    "x = x.roll(1, {axis})",
    "x = x + x.argmax(1, keepdim=True) * 0.5",
    "x = x.cumsum({axis}) * 0.3",
    # in-place and views
    "x = x.clone(); x.add_({n})",
    "x = x.clone(); x[{i}] = y[0]",
    "x = x.clone(); v = x[:, 1:3]; v.mul_({n}); x = x + v.sum()",
    "x = x.clone(); x[x > 0.5] = {n}",
    "x = x.clone(); x.t()[{i}].zero_()",
    "w.tensor.add_(x * 0.1); x = x + w.tensor",
    "w.tensor[{i}].copy_(y[0])",
    "w.rows[0].mul_(0.9); x = x + w.rows[0]",
    "w.base[1:].add_(1.0); x = x + w.view",
    "w.view.mul_(0.5); x = x - w.base[:3]",
    "w.cache[w.position % 3] = x[0]; w.position += 1",
    "x = x + w.cache[: w.position % 3].sum()",
    # state of Python
    "x = x * w.scale",
    "w.scale = w.scale + 0.25",
    "w.calls += 1",
    "x = x + w.calls",
    "log.append({i})",
    "log.append(x.sum())",
    "log.append(float(x.sum() > 0))",
    "x = x + len(log)",
    "x = x + (log[-1] if log else 0.5)",
    "table['k'] = table.get('k', 0) + 1",
    "x = x * table.get('k', 2.0)",
    "table.setdefault('t', []).append({i})",
    "w.last = x.detach()",
    "x = x + (0 if w.last is None else w.last)",
    "x = x + bump()",
    "w.names.add({i})",
    "x = x + len(w.names)",
    "del log[:]",
    "x = x + sum(w.weights) + k",
    "w.weights.insert(0, w.weights.pop())",
    "setattr(w, 'extra', getattr(w, 'extra', 0) + {n})",
    "a = x.mean().item(); x = x + a",
    "w.total += x.mean().item()",
    # control flow
    "if x.sum() > {n}:\n    {body}\nelse:\n    {body}",
    "if w.calls % 2:\n    {body}",
    "if w.flag:\n    {body}\nelif len(log) > 2:\n    {body}",
    "for i in range({i} + 1):\n    {body}",
    "for v in w.weights:\n    x = x * v\n    {body}",
    "n = 0\nwhile x.abs().max() > 4 and n < 6:\n    x = x * 0.5\n    n += 1\nx = x + n",
    "try:\n    {body}\n    if y.mean() > {n}:\n        raise ValueError('big')\nexcept ValueError:\n    {body}\nfinally:\n    w.calls += 1",
    "with tj.no_grad():\n    {body}",
    "for i, v in enumerate(log[:2]):\n    x = x + i\n    {body}",
    "while True:\n    {body}\n    break",
    "if k > 2:\n    x = x - k",
    "match w.calls % 3:\n    case 0:\n        {body}\n    case n:\n        x = x + n",
    # functions, modules, gradients, chance
    "x = helper(x, y)",
    "x = helper(x, y, scale={n})",
    "x = (lambda t, s=w.scale: t * s)(x)",
    "x = sum([x * j for j in range({i})], y)",
    "x = [t for t in (x, y) if t.sum() < 9 or True][0]",
    "x = net(x)",
    "x = x + tj.rand(3, 4)",
    "x = tj.nn.functional.dropout(x, 0.5, training=w.flag)",
    "p = w.param; loss = (p * x).pow(2).mean(); loss.backward()",
    "w.param.grad = None",
    "x = x + (0 if w.param.grad is None else w.param.grad)",
    "opt.step(); x = x + w.param.detach()",
    "x = x * w.param",
    "z = x.detach().requires_grad_(); g, = tj.autograd.grad((z * z).sum(), z); x = x + g * 0.1",
    "if x.mean() > 50:\n    raise RuntimeError('diverged')",
    "return x, y",
)
CHANGES = (
    "w.scale = {n}", "w.flag = not w.flag", "w.calls = 0", "log.append(1.5)", "log.clear()", "table['k'] = {i}",
    "w.weights[0] = {n}", "w.tensor.fill_({n})", "w.tensor = tj.ones(3, 4)", "net.train(not net.training)", "w.last = None",
    "w.param.grad = None", "w.position = 1", "table.pop('k', None)", "tj.manual_seed({i})", "w.view = w.base[:3]",
    "w.base = tj.zeros(4, 4); w.view = w.base[1:]", "opt.param_groups[0]['lr'] = {n} * 0.01", "w.names = set()",
    "w.helper_k = {i}", "w.rows[0] = w.tensor", "w.rows = [tj.ones(3, 4)]", "net[0].weight.requires_grad_(False)",
    "w.total = 0.0", "w.rows[0] = w.base[:3]", "log.append(w.tensor.sum())",
)  # fmt: skip
NUMBERS = (0.5, 1.0, -1.5, 2.0, 3.0, 0.0)


@st.composite
def block(draw, depth=0):
    lines = []
    for _ in range(draw(st.integers(1, 5 if depth == 0 else 2))):
        line = draw(st.sampled_from(LINES if depth < 2 else [text for text in LINES if "{body}" not in text]))
        while "{body}" in line:
            at = line.index("{body}")
            indent = at - (line.rfind("\n", 0, at) + 1)
            inner = ("\n" + " " * indent).join(draw(block(depth + 1)))
            line = line[:at] + inner + line[at + len("{body}") :]
        n, i, axis = draw(st.sampled_from(NUMBERS)), draw(st.integers(0, 2)), draw(st.integers(0, 1))
        lines += line.replace("{n}", str(n)).replace("{i}", str(i)).replace("{axis}", str(axis)).split("\n")
    return lines


@st.composite
def programs(draw):
    """(source, script): what happens between calls, and which argument each call gets."""
    body = draw(block())
    source = "\n".join(["def f(x, y, k):", "    global helper", *("    " + line for line in body), "    return x, k"])
    script = []
    for _ in range(draw(st.integers(2, 5))):
        change = draw(st.sampled_from(CHANGES))
        change = change.replace("{n}", str(draw(st.sampled_from(NUMBERS)))).replace("{i}", str(draw(st.integers(0, 3))))
        script.append((change, draw(st.integers(0, 3)), draw(st.sampled_from((1, 2, 2.5, True)))))
    return source, script


SETUP = """
def make():
    count = 0
    def bump():
        nonlocal count
        count += 1
        return count
    return bump
bump = make()
def helper(x, y, *, scale=1.0):
    if w.helper_k > 1:
        return x * scale - y
    return (x + y) * scale + w.helper_k
"""


def world():
    tj.manual_seed(0)
    w = types.SimpleNamespace(
        tensor=tj.full((3, 4), 0.5), rows=[tj.ones(3, 4)], base=tj.arange(16).float().reshape(4, 4) * 0.1, scale=1.5, calls=0,
        weights=[1.0, 0.5], last=None, flag=True, cache=tj.zeros(3, 4), position=0, names={7}, total=0.0, helper_k=1,
    )  # fmt: skip
    w.view = w.base[1:]
    w.param = tj.nn.Parameter(tj.full((3, 4), 0.7))
    net = tj.nn.Sequential(tj.nn.Linear(4, 4), tj.nn.BatchNorm1d(4), tj.nn.Dropout(0.25), tj.nn.ReLU())
    opt = tj.optim.SGD([w.param, *net.parameters()], lr=0.01, momentum=0.5)
    space = {"tj": tj, "w": w, "log": [], "table": {}, "net": net, "opt": opt, "__name__": "fuzz"}
    exec(SETUP, space)
    return space


def data(k):
    rng = np.random.default_rng(k)
    return [tj.tensor(rng.normal(size=(3, 4)).astype(np.float32)) for _ in range(2)]


def plain(x, seen):
    """x as data, aliasing kept: an object met again is its number."""
    if isinstance(x, (bool, int, float, str, type(None))):
        return x
    if id(x) in seen:
        return ("again", seen[id(x)])
    seen[id(x)] = len(seen)
    if isinstance(x, tj.Tensor):
        grad = None if x.grad is None else plain(x.grad, seen)
        return ("tensor", str(x.dtype), list(x.shape), x.requires_grad, x.is_leaf, x.detach().numpy().copy(), grad)
    if isinstance(x, dict):
        return {k: plain(v, seen) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [type(x).__name__, *(plain(v, seen) for v in x)]
    return sorted(x) if isinstance(x, set) else type(x).__name__


def state(space):
    w, net, opt = space["w"], space["net"], space["opt"]
    moments = [dict(opt.state.get(p, {})) for p in (w.param, *net.parameters())]
    hold = [vars(w), space["log"], space["table"], list(net.parameters()), list(net.buffers()), moments, net.training]
    return plain([*hold, space["bump"].__closure__[0].cell_contents, tj.get_rng_state().tolist()], {})


def observe(source, script, jit):
    space = world()
    exec(source, space)
    f = jit(space["f"])
    seen = []
    kept = []  # so that no id is used twice
    for change, argument, k in [("pass", 0, 2), *script]:
        exec(change, space)
        for again in range(5):
            x, y = data(argument if again < 3 else argument + 4 * again)
            try:
                out = f(x, y, k)
                kept.append(out)
                seen.append(plain([out, x, y], {}))
            except Exception as e:
                seen.append((type(e).__name__, str(e)[:40]))
            seen.append(state(space))
    return seen, f


def different(a, b, path=""):
    """Where two observations differ beyond rounding; None where they do not."""
    if type(a) is not type(b):
        return f"{path}: {a!r} and {b!r}"
    if isinstance(a, np.ndarray):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{path}: {a.dtype}{a.shape} and {b.dtype}{b.shape}"
        scale = max(1.0, float(np.abs(np.where(np.isfinite(a), a, 0)).max(initial=0)))
        return None if np.allclose(a, b, rtol=2e-3, atol=2e-4 * scale, equal_nan=True) else f"{path}:\n{a}\n{b}"
    if isinstance(a, float):
        return None if a == b or abs(a - b) <= 2e-3 * max(1.0, abs(a)) or (a != a and b != b) else f"{path}: {a} and {b}"
    if isinstance(a, dict):
        if list(a) != list(b):
            return f"{path}: keys {list(a)} and {list(b)}"
        return next((d for k in a if (d := different(a[k], b[k], f"{path}.{k}"))), None)
    if isinstance(a, (list, tuple)):
        if len(a) != len(b):
            return f"{path}: {len(a)} and {len(b)} items"
        return next((d for i, (p, q) in enumerate(zip(a, b)) if (d := different(p, q, f"{path}[{i}]"))), None)
    return None if a == b else f"{path}: {a!r} and {b!r}"


def check(program, backend="interpret"):
    source, script = program
    with np.errstate(all="ignore"):
        eager, _ = observe(source, script, lambda f: f)
        compiled, f = observe(source, script, tj.compile(backend=backend))
    hits = f.compiled_calls
    if (where := different(eager, compiled)) is not None:
        raise AssertionError(f"{where}\n{source}\n{script}\n{f.explain()}")
    return hits


SETTINGS = hypothesis.settings(
    max_examples=60, deadline=None, database=None, derandomize=True, print_blob=False,
    suppress_health_check=list(hypothesis.HealthCheck), phases=(hypothesis.Phase.generate,),
)  # fmt: skip


def test_random_programs_leave_the_same_world_behind():
    ran = []

    @SETTINGS
    @hypothesis.given(programs())
    def run(program):
        ran.append(check(program))

    run()
    assert sum(h > 0 for h in ran) > len(ran) // 3, ran


def test_random_programs_in_machine_code():
    @hypothesis.settings(SETTINGS, max_examples=15)
    @hypothesis.given(programs())
    def run(program):
        check(program, "llvm")

    run()


@pytest.mark.skipif("TRACEJIT_FUZZ_MINUTES" not in os.environ, reason="set TRACEJIT_FUZZ_MINUTES to run it")
def test_random_programs_for_minutes():
    end = time.monotonic() + 60 * float(os.environ["TRACEJIT_FUZZ_MINUTES"])
    seed = int(os.environ.get("TRACEJIT_FUZZ_SEED", random.randrange(2**32)))
    count, ran, found = 0, 0, []
    while time.monotonic() < end:

        @hypothesis.seed(seed)
        @hypothesis.settings(SETTINGS, max_examples=25, derandomize=False)
        @hypothesis.given(programs())
        def run(program):
            nonlocal count, ran
            if time.monotonic() < end:
                count += 1
                ran += check(program, "llvm" if count % 4 == 0 else "interpret") > 0

        try:
            run()
        except AssertionError as e:
            found.append(f"seed {seed}: {e}")
            print(found[-1], flush=True)
        seed += 1
    print(f"{count} programs, {ran} ran compiled, {len(found)} differences, seeds up to {seed}")
    assert not found
