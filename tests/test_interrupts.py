"""KeyboardInterrupt at any moment of a compiled call: all of it has happened, or nothing."""

from __future__ import annotations

import _thread
import functools
import gc
import importlib
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


class Counter:
    """A call that writes tensors, slots, and Python objects of several kinds; `counts` are all equal after it."""

    def __init__(self):
        self.box, self.log, self.state = {"n": 0.0}, [], tj.zeros(8)
        self.weight = tj.ones(4, requires_grad=True)
        self.calls = n = 0

        def f(x):
            nonlocal n
            self.state.add_(1.0)
            self.weight.grad = None
            (self.weight * x).sum().backward()
            self.box["n"] = self.box["n"] + 1.0
            self.calls += 1
            self.log.append((x * 2).sum().item())
            n = n + 1
            self.last = x * self.weight
            return self.last

        self.function = f
        self.counts = lambda: [self.state[0].item(), self.box["n"], self.calls, len(self.log), n]

    def whole(self):
        return len(set(self.counts())) == 1


def test_effects_on_python_objects_happen_together_with_writes_to_tensors():
    counter, x = Counter(), tj.ones(4)
    c = tj.compile(counter.function)
    f = functools.partial(c, x)
    warm(f)
    f.fallbacks = c.fallbacks
    hits, _, plain = storm(f, counter.whole)
    assert hits > 20
    assert plain == 0


def interrupted_at(k, times, f):
    """Call f and raise at its k-th instruction, and again `times` times soon after: whether that came up."""
    left, came = k, False

    def trace(frame, event, arg):
        nonlocal left, times, came
        frame.f_trace_opcodes = True
        left -= 1
        if left <= 0 < times:
            times, left, came = times - 1, 11, True
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        f()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return came


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("times", [1, 4])
@pytest.mark.parametrize(
    ("backend", "entry", "stride"), [("llvm", True, 1), ("llvm", False, 5), ("interpret", False, 5)]
)
def test_an_interrupt_at_any_instruction_leaves_everything_done_or_nothing(backend, entry, stride, times, monkeypatch):
    driver = importlib.import_module("tracejit.trace.compile")
    if not entry:
        monkeypatch.setattr(driver.Compiled, "entry_for", lambda *_: None)
    counter, x = Counter(), tj.ones(4)
    c = tj.compile(counter.function, backend=backend)
    warm(lambda: c(x))
    plain, before = sum(c.fallbacks.values()), counter.counts()[0]
    k, seen, came = 0, set(), True
    while came:
        k += stride
        came = interrupted_at(k, times, functools.partial(c, x))
        assert counter.whole(), f"cut at instruction {k}: {counter.counts()}"
        seen.add(counter.counts()[0] - before)
        before = counter.counts()[0]
    assert seen == {0.0, 1.0}
    assert sum(c.fallbacks.values()) == plain
    assert k > 100


def test_what_a_handler_raises_comes_through_though_it_is_no_interrupt():
    class Late(Exception):
        pass

    def late(*_):
        raise Late

    x = tj.ones(64)
    before = signal.signal(signal.SIGALRM, late)
    rng, hits = random.Random(2), 0
    try:
        for k in range(40):
            c = tj.compile(lambda x, k=k: (x * k).exp().sum() + x.tanh().mean())
            end = time.monotonic() + 1
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-4, 3e-2))
            try:
                while time.monotonic() < end:
                    c(x)
            except Late:
                hits += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert hits >= 36  # one in a destructor, as Python has it, is only said


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
