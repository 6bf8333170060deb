"""KeyboardInterrupt at random moments of a compiled call: all of it has happened, or nothing."""

from __future__ import annotations

import _thread
import gc
import random
import signal
import sys
import threading
import time

import pytest

import tracejit as tj

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")


def storm(f, consistent, seconds=2.0, seed=0):
    """Call f again and again under a storm of interrupts; how many hit. `consistent()` is asked after each."""
    rng, hits, calls = random.Random(seed), 0, 0
    plain = sum(f.fallbacks.values())

    def interrupt(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, rng.uniform(2e-6, 4e-4))
                    for _ in range(40):
                        calls += 1
                        f()
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                hits += 1
            assert consistent()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return hits, calls, sum(f.fallbacks.values()) - plain


def warm(f):
    for _ in range(8):
        f()


def test_updates_happen_together():
    state = [tj.zeros(64) for _ in range(6)]

    def f():
        for t in state:
            t.add_(1.0)
        return state[0].sum()

    c = tj.compile(f)
    warm(c)
    hits, _, plain = storm(c, lambda: len({t[0].item() for t in state} | {t[-1].item() for t in state}) == 1)
    assert hits > 20
    assert plain == 0


def test_a_train_step_happens_whole():
    p = tj.zeros(32, requires_grad=True)
    q = tj.zeros(32, requires_grad=True)
    optimizer = tj.optim.SGD([p, q], lr=1.0, momentum=0.5)

    def f():
        optimizer.zero_grad()
        loss = (p + q).sum()
        loss.backward()
        optimizer.step()
        return loss

    c = tj.compile(f)
    warm(c)

    def consistent():
        moments = [optimizer.state[t]["momentum_buffer"][0].item() for t in (p, q)]
        return p[0].item() == q[0].item() and moments[0] == moments[1] and p.grad is not None and q.grad is not None

    hits, _, plain = storm(c, consistent)
    assert hits > 20
    assert plain == 0
    assert p._version.n == q._version.n


def test_effects_on_python_objects_are_cut_off_at_most_and_never_done_twice():
    box, state = {"n": 0.0}, tj.zeros(8)

    def f():
        state.add_(1.0)
        box["n"] = box["n"] + 1.0
        return state.sum()

    c = tj.compile(f)
    warm(c)
    lag = 0.0

    def consistent():
        nonlocal lag
        before, lag = lag, state[0].item() - box["n"]
        return 0 <= lag - before <= 1  # as in plain Python: an interrupt may come between the two

    hits, _, _ = storm(c, consistent)
    assert hits > 20


def test_an_interrupt_while_recording_or_compiling_leaves_the_process_in_order():
    """Limits, the profile function and the collector are put back, and the function compiles later."""

    def interrupt(number, frame):
        raise KeyboardInterrupt

    limit, rng = sys.getrecursionlimit(), random.Random(1)
    before = signal.signal(signal.SIGALRM, interrupt)
    hits = 0
    try:
        for k in range(60):
            c = tj.compile(lambda x, k=k: (x * k).exp().sum() + x.tanh().mean())
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-3, 4e-2))
                    for _ in range(6):
                        c(tj.ones(4))
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                hits += 1
            assert (sys.getrecursionlimit(), sys.getprofile(), gc.isenabled()) == (limit, None, True)
            for _ in range(8):
                c(tj.ones(4))
            assert c.compiled_calls > 0
    finally:
        signal.signal(signal.SIGALRM, before)
    assert hits > 10


def test_interrupts_from_another_thread():
    state = [tj.zeros(16), tj.zeros(16)]

    def f():
        state[0].sub_(1.0)
        state[1].sub_(1.0)

    c = tj.compile(f)
    warm(c)
    stop, armed = threading.Event(), []

    def interrupt(number, frame):
        if armed:
            armed.clear()
            raise KeyboardInterrupt

    def nag():
        while not stop.wait(0.003):
            _thread.interrupt_main()

    before = signal.signal(signal.SIGINT, interrupt)
    hits, end = 0, time.monotonic() + 1.5
    nagger = threading.Thread(target=nag)
    nagger.start()
    try:
        while time.monotonic() < end:
            try:
                armed.append(True)
                for _ in range(200):
                    c()
                armed.clear()
            except KeyboardInterrupt:
                hits += 1
    finally:
        stop.set()
        nagger.join()
        signal.signal(signal.SIGINT, before)
    assert hits > 20
    assert state[0].tolist() == state[1].tolist()
