"""The self-check catches what is compiled wrong, says where, and changes nothing else. The faults here are made."""

import logging
from dataclasses import replace

import numpy as np
import pytest

import tracejit as tj
from tracejit.ops.pointwise import Exp
from tracejit.passes import pipeline


@pytest.fixture(autouse=True)
def own_store(tmp_path):
    """What is compiled wrong must not be kept for others."""
    with tj.config.override(cache_dir=str(tmp_path)):
        yield


def network(x, w):
    h = (x @ w).relu()
    h = h.exp()
    return (h * 2).sum(), h


def calls(f, n=8):
    x = tj.tensor(np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4))
    w = tj.tensor(np.linspace(-2, 1, 8, dtype=np.float32).reshape(4, 2))
    return [[t.tolist() for t in f(x, w)] for _ in range(n)]


def test_right_code_is_found_right_and_its_calls_count_as_verified():
    f = tj.compile(network, verify=2)
    for found, wanted in zip(calls(f, 11), calls(network, 11), strict=True):
        np.testing.assert_allclose(found[1], wanted[1], rtol=1e-5)
    assert (f.history.verified, f.compiled_calls) == (4, 4)  # of 8: every second
    assert not f.history.mismatches
    assert "4 calls were held against plain Python, none differed" in f.explain()


def test_a_miscompiled_op_is_named_with_its_line_and_the_right_result_returned(monkeypatch, caplog):
    element = Exp.element
    monkeypatch.setattr(Exp, "element", lambda self, index, at: element(self, index, at) * 1.001)
    f = tj.compile(network, verify=True)

    found = calls(f)

    assert found == calls(network)
    assert f.traces() == []
    (words,) = f.history.mismatches
    line = network.__code__.co_firstlineno + 2
    assert f"code generation of exp at test_verify.py:{line}" in words
    assert "> " in words
    assert "compiled code of this kind differed from plain Python" in f.explain()
    assert any(r.name == "tracejit.verify" and r.levelno == logging.ERROR for r in caplog.records)


def test_a_wrong_pass_is_blamed_on_the_passes(monkeypatch):
    optimize = pipeline.optimize

    def wrong(graph, **options):
        graph = optimize(graph, **options)
        return graph.with_results([r + r if r.dtype.is_floating_point else r for r in graph.results])

    monkeypatch.setattr(pipeline, "optimize", wrong)
    f = tj.compile(network, verify=True, backend="interpret")
    assert calls(f) == calls(network)
    assert "the passes changed what is computed" in f.history.mismatches[0]


def test_a_missing_guard_is_told_from_wrong_code():
    box = {"k": True}
    c = tj.compile(lambda x: x * 2 if box["k"] else x * 3, verify=1)
    for _ in range(5):
        c(tj.ones(2))
    (trace,) = c.traces()
    trace.recording.guard.check = lambda: -1
    box["k"] = False
    assert c(tj.ones(2)).tolist() == [3.0, 3.0]
    assert "a guard is missing" in c.history.mismatches[0]
    assert "test_verify.py" in c.history.mismatches[0]


def test_an_exception_that_compiled_code_would_not_raise_comes_out():
    box = {"k": True}

    def f(x):
        if not box["k"]:
            raise ValueError("closed")
        return x + 1

    c = tj.compile(f, verify=1)
    for _ in range(5):
        c(tj.ones(2))
    (trace,) = c.traces()
    trace.recording.guard.check = lambda: -1
    box["k"] = False
    with pytest.raises(ValueError, match="closed"):
        c(tj.ones(2))
    assert "plain Python raises ValueError: closed" in c.history.mismatches[0]


def test_updates_gradients_and_random_numbers_happen_once_and_are_compared():
    def train(jit):
        tj.manual_seed(3)
        layer = tj.nn.Sequential(tj.nn.Linear(4, 4), tj.nn.BatchNorm1d(4), tj.nn.Dropout(0.5))
        optimizer = tj.optim.Adam(layer.parameters(), lr=0.1)

        def step(x):
            optimizer.zero_grad()
            loss = layer(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            return loss

        step = jit(step)
        losses = [step(tj.rand(5, 4)).item() for _ in range(12)]
        return step, losses, [p.tolist() for p in (*layer.parameters(), *layer.buffers())]

    _, losses, state = train(lambda f: f)
    f, verified_losses, verified_state = train(lambda f: tj.compile(f, verify=1))
    assert f.history.verified >= 6
    assert not f.history.mismatches
    assert (verified_losses, verified_state) == (losses, state)  # every call was plain Python


def test_a_wrong_update_is_found():
    momentum = tj.zeros(3)

    def f(x):
        momentum.mul_(0.5).add_(x)
        return x + 1

    c = tj.compile(f, verify=1)
    for _ in range(5):
        c(tj.ones(3))
    (trace,) = c.traces()
    right = trace.executable

    def wrong(arrays):
        out = right(arrays)
        for at, _ in trace.recording.updates:
            arrays[at] += 1
        return out

    trace.executable = wrong
    before = momentum.tolist()
    c(tj.ones(3))
    assert momentum.tolist() == [v * 0.5 + 1 for v in before]
    assert "the memory of parameter %" in c.history.mismatches[0]


def test_a_wrong_backward_pass_is_found():
    c = tj.compile(lambda x: (x * x).tanh(), verify=1)
    x = tj.ones(3, requires_grad=True)
    for _ in range(5):
        c(x)
    (trace,) = c.traces()
    (right,) = trace.backward
    trace.backward = (replace(right, executable=lambda arrays: tuple(a * 2 for a in right.executable(arrays))),)
    y = c(x)
    assert "the backward pass was compiled wrong" in c.history.mismatches[0]
    y.sum().backward()
    plain = tj.ones(3, requires_grad=True)
    (plain * plain).tanh().sum().backward()
    assert x.grad.tolist() == plain.grad.tolist()


def test_what_rounding_decides_is_no_mismatch():
    """1e8 * (sum - sum in another order) is rounding and nothing else."""
    x = tj.tensor(np.random.default_rng(0).normal(size=1000).astype(np.float32))
    f = tj.compile(
        lambda x: ((x.sum() - x.flip(0).sum()) * 1e8, x.softmax(0).log().sum(), (x * 1e-9).exp().argmax()), verify=1
    )
    for _ in range(8):
        f(x)
    assert f.history.verified >= 4
    assert not f.history.mismatches


def test_structures_views_and_aliases_compare_equal():
    state = tj.zeros(4)

    def f(x, options):
        state.add_(x.sum())
        y = x * 2
        return {
            "y": y,
            "again": [y, (y, state)],
            "view": state[1:3],
            "row": x.reshape(2, 2)[0],
            "n": 3,
            "m": x.mean().item(),
        }

    c = tj.compile(f, verify=1)
    for _ in range(8):
        out = c(tj.ones(4), {"a": 1})
    assert out["again"][1][1] is state
    assert c.history.verified >= 4
    assert not c.history.mismatches


@pytest.mark.parametrize(
    ("given", "every"),
    [(True, 1), (False, 0), (7, 7), (1 / 1000, 1000), ("1/1000", 1000), ("1", 1), ("0", 0), (0.5, 2)],
)
def test_verify_is_a_period_or_a_fraction(given, every):
    assert tj.config.period(given) == every


@pytest.mark.parametrize("given", ["often", -1, None, "1/0", float("nan"), 1.5, "3/2", float("inf")])
def test_verify_refuses_what_is_neither(given):
    with pytest.raises(ValueError, match="verify is a number of calls"):
        tj.config.period(given)


def test_the_environment_sets_it_for_every_function(monkeypatch):
    monkeypatch.setenv("TRACEJIT_VERIFY", "1/3")
    assert tj.config.Config.from_environment().verify == 3


@pytest.mark.parametrize("given", ["x", "-1", "1.5"])
def test_a_number_of_threads_that_is_none_is_said(given, monkeypatch):
    monkeypatch.setenv("TRACEJIT_THREADS", given)
    with pytest.raises(ValueError, match=f"TRACEJIT_THREADS is a number of threads.*{given}"):
        tj.config.Config.from_environment()


class Box:
    def __init__(self):
        self.n, self.log, self.seen = 0, [], {}


def effects(box):
    def f(x):
        y = x * 2
        box.n += 1
        box.log.append((box.n, y.sum().item()))
        box.seen["last"] = y
        print(f"call {box.n}: {y.mean().item():.3f}")
        return y

    return f


def test_effects_are_held_against_plain_python_and_happen_once(capsys):
    box = Box()
    f = tj.compile(effects(box), verify=1)
    for k in range(9):
        f(tj.ones(3) * k)
    assert f.history.verified >= 4 and not f.history.mismatches
    assert box.n == len(box.log) == 9
    assert box.log[-1] == (9, 48.0)
    assert capsys.readouterr().out.splitlines()[-1] == "call 9: 16.000"


def without(recording, f):
    return tuple(d for d in recording.deeds if d.f is not f)


FAULTS = {
    "a lost append": (lambda r: without(r, list.append), "what is in a list"),
    "a lost entry": (lambda r: without(r, dict.__setitem__), "what is in a dict"),
    "a lost counter": (lambda r: without(r, object.__setattr__), "the attributes of"),
    "a lost line": (lambda r: without(r, print), "what it prints"),
    "an effect done twice": (lambda r: (*r.deeds, *r.deeds), "what is in a list"),
    "an effect that raises": (lambda r: (replace(r.deeds[1], f=list.remove), *r.deeds[2:]), "raised by an effect"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_effect_is_found_and_plain_pythons_stays(fault, capsys, caplog):
    box = Box()
    f = tj.compile(effects(box), verify=1)
    for k in range(9):
        f(tj.ones(3) * k)
    trace = f.traces()[0]
    change, words = FAULTS[fault]
    before = trace.recording.deeds
    trace.recording.deeds = change(trace.recording)
    count = len(box.log)
    f(tj.ones(3))
    f(tj.ones(3))
    assert trace.recording.deeds != before
    assert words in f.history.mismatches[0]
    assert trace not in f.traces()
    f(tj.ones(3))
    assert len(box.log) - count >= 2


def test_a_list_that_plain_python_changes_and_the_trace_does_not():
    box = {"on": False}
    kept = []

    def f(x, kept):
        if box["on"]:
            kept.append(1)
        return x + 1

    c = tj.compile(f, verify=1)
    for _ in range(5):
        c(tj.ones(2), kept)
    (trace,) = c.traces()
    trace.recording.guard.check = lambda: -1
    box["on"] = True
    c(tj.ones(2), kept)
    assert kept == [1]
    assert "what is in a list" in c.history.mismatches[0]


def test_new_objects_that_a_call_returns_are_compared():
    class Pair:
        def __init__(self, a, b):
            self.a, self.b = a, b

    def f(x):
        return Pair(x + 1, [x * 2]), {"f": lambda y: y + x}

    c = tj.compile(f, verify=1)
    for _ in range(6):
        pair, _ = c(tj.ones(2))
    assert pair.b[0].tolist() == [2.0, 2.0]
    assert c.history.verified and not c.history.mismatches


def test_what_other_threads_print_is_not_compared(capsys):
    import threading

    f = tj.compile(effects(Box()), verify=1)
    stop = threading.Event()

    def talk():
        while not stop.wait(0.0002):
            print("...")

    talker = threading.Thread(target=talk)
    talker.start()
    try:
        for _ in range(40):
            f(tj.ones(3))
    finally:
        stop.set()
        talker.join()
    assert f.history.verified and not f.history.mismatches
