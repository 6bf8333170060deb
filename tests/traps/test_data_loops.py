"""Loops that ask the data, compiled against plain Python: the same whatever the number of turns."""

import _thread
import re
import signal
import threading

import numpy as np
import programs
import pytest
from loops import LOOPS, OTHERS, REFUSED, made

import tracejit as tj

TURNS = (9, 10, 12, 9, 13, 12, 10, 11, 14, 3, 2, 1, 0, 25, 40, 9, 60, -3, 5, 14, 100)


def observed(f, x, turns):
    tj.manual_seed(turns)
    try:
        return plain(f(x)), plain(x), plain(tj.rand(3))
    except Exception as e:
        return f"raised {type(e).__name__}: {e}", plain(x)


def plain(x):
    return programs.plain(x, tj.Tensor.stride)


def same(a, b):
    return programs.same(a, b, 1e-3, 1e-5, 9e-4, 1e-6)


def held(fn, **options):
    """fn compiled, after it was held against plain Python for all numbers of turns."""
    f = tj.compile(fn, **options)
    for k, turns in enumerate(TURNS):
        want, got = observed(fn, made(turns, k), turns), observed(f, made(turns, k), turns)
        assert same(want, got), f"{turns} turns: plain {want}, compiled {got}"
    return f


def rolled(f):
    return sum("while(" in text for text in f.graphs())


@pytest.mark.parametrize("fn", LOOPS, ids=lambda f: f.__name__)
def test_a_proven_loop_runs_natively(fn):
    f = held(fn)
    assert rolled(f), f.memory.loops
    assert f.compiled_calls >= 8, f.explain()


@pytest.mark.parametrize("fn", REFUSED, ids=lambda f: f.__name__)
def test_a_loop_that_is_not_proven_stays_unrolled(fn):
    f = held(fn)
    assert not rolled(f)
    assert any(heat.refusal for heat in f.memory.loops.values()), f.memory.loops


@pytest.mark.parametrize("fn", OTHERS, ids=lambda f: f.__name__)
def test_no_number_of_turns_gives_something_else(fn):
    held(fn)


# ---------------------------------------------------------------- one loop


def settle(x, goal):
    n = 0
    while x.abs().max() > goal:
        x = x * 0.5 + 1
        n += 1
    return x, n


def start(value):
    return tj.tensor(np.full(4, value, np.float32))


@pytest.fixture
def settled():
    f = tj.compile(settle)
    for k in range(8):
        f(start(2.0 ** (10 + k % 3)), 2.5 if k < 4 else 2.5 + k / 64)  # the goal becomes an input
    before = f.compiled_calls
    f(start(4096.0), 2.25)
    assert rolled(f)
    assert f.compiled_calls > before
    return f


def check_one_more(f):
    before = f.compiled_calls
    assert same(plain(f(start(8192.0), 2.125)), plain(settle(start(8192.0), 2.125)))
    assert f.compiled_calls == before + 1


def test_one_trace_serves_all_numbers_of_turns(settled):
    before, traces = settled.compiled_calls, len(settled.traces())
    for k in range(2, 60):
        assert same(plain(settled(start(2.0**k), 2.03125)), plain(settle(start(2.0**k), 2.03125)))
    assert settled.compiled_calls == before + 58
    assert len(settled.traces()) == traces


def test_an_endless_loop_can_be_interrupted(settled):
    for _ in range(2):  # through Python, then natively
        x = start(4096.0)
        timer = threading.Timer(0.3, _thread.interrupt_main)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            settled(x, 1.5)  # its fixed point is 2
        timer.join()
        assert (x.numpy() == 4096.0).all()
        check_one_more(settled)


def test_what_a_signal_handler_raises_comes_out_of_an_endless_loop(settled):
    class Alarm(Exception):
        pass

    def ring(*_):
        raise Alarm

    before = signal.signal(signal.SIGALRM, ring)
    try:
        for _ in range(2):
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(Alarm):
                settled(start(4096.0), 1.5)
            check_one_more(settled)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_signal_that_is_handled_does_not_end_a_long_loop(settled):
    rung = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
    f = tj.compile(lambda x: slow(x))
    for k in range(6):
        f(start(10.0 + k))
    try:
        for _ in range(2):
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            assert f(start(1e7)) == 1e7
        assert len(rung) == 2
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def slow(x):
    n = 0
    while x.max() > 0:
        x = x - 1
        n += 1
    return n


def test_threads_take_turns_of_their_own(settled):
    found = []

    def work(seed):
        for k in range(40):
            value = 2.0 ** (6 + (seed + k) % 9)
            found.append(same(plain(settled(start(value), 2.25)), plain(settle(start(value), 2.25))))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 320
    assert all(found)


@pytest.mark.parametrize("backend", ["interpret", "numba"])
@pytest.mark.parametrize("name", ["counted", "newton", "argument_written_in_place"])
def test_other_backends_run_loops_too(name, backend):
    fn = next(f for f in LOOPS if f.__name__ == name)
    f = held(fn, backend=backend)
    assert rolled(f)
    assert f.compiled_calls >= 8


@pytest.mark.parametrize("name", ["counted", "newton", "two_in_a_row", "clone_written_in_place", "else_of_a_for"])
def test_loops_pass_the_self_check(name):
    f = held(next(f for f in LOOPS if f.__name__ == name), verify=1)
    assert rolled(f)
    assert f.history.verified > 5
    assert not f.history.mismatches


def test_random_numbers_of_a_loop_are_plain_pythons_bit_for_bit():
    def walk(x):
        while x.sum() < 30:
            x = x + tj.rand(8)
        return x

    f = tj.compile(walk)
    for seed in range(24):
        tj.manual_seed(seed)
        want, then = walk(tj.zeros(8) - seed), tj.rand(4)
        tj.manual_seed(seed)
        got, after = f(tj.zeros(8) - seed), tj.rand(4)
        assert (want.numpy() == got.numpy()).all()
        assert (then.numpy() == after.numpy()).all()
    assert rolled(f)


def test_gradients_flow_through_turns_that_were_recorded():
    def loss(w, x):
        while (x > 1).any():
            x = x * w
        return (x * x).sum()

    f = tj.compile(loss)
    for k in range(24):
        grads = []
        for g in (loss, f):
            w = tj.tensor(0.5, requires_grad=True)
            g(w, made(9 + k % 3, 1)).backward()
            grads.append(w.grad.item())
        assert same(*grads)
    assert f.compiled_calls > 5
    assert any("gradient" in heat.refusal for heat in f.memory.loops.values())


def test_explain_says_what_became_of_a_loop(settled):
    assert re.search(r"loop at test_data_loops.py:\d+: its turns are one native loop", settled.explain())
    f = held(next(f for f in REFUSED if f.__name__ == "flag_that_toggles"))
    assert re.search(r"its turns are compiled one by one: variable up changes, from (True|False)", f.explain())
    assert "Loops that ask the data" in f.explain().html()


def test_branches_around_a_loop_are_two_traces():
    def f1(x):
        x = x * x + 4 if x.sum() > 0 else -(x * x)
        while True:
            y = x * 0.5 + 1
            d = ((y - x) ** 2).sum().sqrt()
            x = y
            if d < 0.05:
                break
        return tj.exp(x - 2) * 3 if x.mean() > 2 else tj.tanh(x)

    f = tj.compile(f1)
    rng = np.random.default_rng(0)
    for k in range(30):
        x = tj.tensor(rng.uniform(0, 1 + k % 7, 64).astype(np.float32) * (1 if k % 2 else -1))
        assert same(plain(f(x)), plain(f1(x)))
    assert len(f.traces()) == 2
    assert f.compiled_calls >= 20


def test_what_all_turns_compute_alike_is_computed_once():
    f = held(next(f for f in LOOPS if f.__name__ == "computes_the_same_in_each_turn"))
    text = f.graphs()[0]
    inside = text[text.index("while(") : text.index("limit=")]
    assert "sort(" in text
    assert "mul(" in inside
    assert "sort(" not in inside
    assert "exp(" not in inside
