"""The native entry: objects come and go in step, threads and signals do no harm, and without it all is as before."""

import ctypes
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import types
import weakref

import pytest

import tracejit as tj
from tracejit.runtime import buffer, dispatch, team
from tracejit.trace import compile as driver

needs_entry = pytest.mark.skipif(dispatch.native() is None, reason="this Python's objects are laid out otherwise")


def warm(f, *args, calls=8):
    for _ in range(calls):
        f(*args)
    return f


def hits(f):
    return sum(d.entry.hits for d in f.front.directs.values())


@needs_entry
def test_hot_calls_enter_no_python():
    f = warm(tj.compile(lambda x: x * 2), x := tj.ones(3))
    frames = []
    sys.setprofile(lambda frame, event, arg: frames.append((event, frame.f_code.co_name)))
    f(x)
    sys.setprofile(None)
    assert [name for event, name in frames if event == "call"] == []


@needs_entry
def test_every_reference_is_given_back():
    p, state = tj.zeros(2), [1]

    def f(x, d):
        p.add_(1)
        return (x * 2, x), {"p": p, "l": [x + 1, None, 2.5, "text"]}, d, state, x.sum().item()

    f = warm(tj.compile(f), x := tj.ones(2), d := {"a": tj.ones(2)})
    before = hits(f)
    watched = (x, x._array, x._version, p, p._array, d, d["a"], state, f, tj.Tensor, type(x._version), x._array.dtype)
    gc.collect()
    counts, objects = [sys.getrefcount(o) for o in watched], len(gc.get_objects())
    for _ in range(5000):
        out = f(x, d)
    del out
    gc.collect()
    assert hits(f) - before == 5000
    assert [sys.getrefcount(o) for o in watched] == counts
    assert len(gc.get_objects()) - objects < 100  # of 5000 calls


@needs_entry
def test_calls_given_up_leave_nothing_behind():
    state = [tj.ones(2)]
    f = warm(tj.compile(lambda x: (x * state[0], [x + 1])), x := tj.ones(2))
    entry = next(iter(f.front.directs.values())).entry
    gc.collect()
    objects, count = len(gc.get_objects()), sys.getrefcount(x)
    for _ in range(50):
        state[0] = tj.ones(2)  # makes everything, then finds that the guard does not hold
        f(x)
    gc.collect()
    assert entry.hits >= 1
    assert sys.getrefcount(x) == count
    assert len(gc.get_objects()) - objects < 400  # recordings, but not 50 of them


@needs_entry
def test_outputs_die_with_their_last_name():
    f = warm(tj.compile(lambda x: x * 2), x := tj.ones(1 << 16))
    refs = []
    for _ in range(20):
        y = f(x)
        refs.append((weakref.ref(y), weakref.ref(y._array)))
    del y
    assert all(t() is None and a() is None for t, a in refs)
    made = buffer.pool.made
    for _ in range(50):
        f(x)
    assert buffer.pool.made == made  # the pages are used again


@needs_entry
def test_a_function_dies_with_its_entries():
    f = warm(tj.compile(lambda x: x * 2), tj.ones(3))
    refs = [weakref.ref(o) for o in (f, f.traces()[0], f.traces()[0].executable._code)]
    assert hits(f) > 0
    del f
    gc.collect()
    assert [r() for r in refs] == [None] * 3


@needs_entry
def test_a_trace_that_goes_takes_its_entry_along():
    f = tj.compile(lambda x, name: x * len(name))
    names = ["a" * n for n in range(1, 30)]
    for name in names:
        warm(f, tj.ones(2), name, calls=5)
    assert 0 < len(f.front.directs) <= tj.config.current().max_traces
    assert {t for t, _ in f.front.directs} <= set(f.traces())
    for name in (names[0], names[20], names[-1]):
        assert f(tj.ones(2), name).tolist() == [float(len(name))] * 2


@needs_entry
def test_extents_that_are_inputs_have_an_entry_each_up_to_a_number():
    f = tj.compile(lambda x: (x * 2).sum(0))
    for k in range(200):
        n = 2 + k % 40
        assert f(tj.ones(n, 3)).tolist() == [2.0 * n] * 3
    for _ in range(8):
        f(tj.ones(9, 3))
    before = hits(f)
    f(tj.ones(9, 3))
    assert hits(f) == before + 1
    assert len(f.front.directs) <= 20


@needs_entry
def test_threads_share_an_entry():
    small = warm(tj.compile(lambda x, y: (x * y, [x + y])), tj.ones(3), tj.ones(3))
    large = warm(tj.compile(lambda x: (x * 2 + 1).sum()), tj.ones(1 << 17))
    wrong = []

    def work(k):
        data = tj.full((1 << 17,), float(k))
        for i in range(200):
            a, [b] = small(tj.full((3,), float(k)), tj.full((3,), float(i)))
            if a.tolist() != [float(k * i)] * 3 or b.tolist() != [float(k + i)] * 3:
                wrong.append((k, i))
            if i % 10 == 0 and large(data).item() != (2 * k + 1) * (1 << 17):
                wrong.append((k, i, "large"))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []
    assert hits(small) > 1000


@needs_entry
def test_what_another_thread_drops_while_a_program_runs_stays_alive_until_it_is_over():
    box = [tj.ones(1 << 20)]
    f = warm(tj.compile(lambda x: ((x * 2 + 1).exp() - x).sum()), box[0])
    stop = False

    def swap():
        while not stop:
            box[0].data = tj.ones(1 << 20)
            box[0] = tj.ones(1 << 20)
            buffer.trim()  # freed pages are unmapped: reading them would end the process

    t = threading.Thread(target=swap)
    t.start()
    for _ in range(100):
        f(box[0])
    stop = True
    t.join()


@needs_entry
def test_threads_end_and_others_begin():
    f = warm(tj.compile(lambda x: x * 2), x := tj.ones(3))

    def work():
        with tj.no_grad():
            for _ in range(3):
                f(x)

    for _ in range(100):
        t = threading.Thread(target=work)
        t.start()
        t.join()
        assert f(x).tolist() == [2.0] * 3


@needs_entry
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_calls_on():
    f = warm(tj.compile(lambda x: (x * 2).sum()), x := tj.ones(1 << 18))
    if (pid := os.fork()) == 0:
        os._exit(0 if all(f(x).item() == 1 << 19 for _ in range(3)) else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert f(x).item() == 1 << 19


@needs_entry
def test_the_team_may_change_between_calls():
    f = warm(tj.compile(lambda x: (x * 2).sum()), x := tj.ones(1 << 18))
    for n in (1, 3, 2, 1):
        with tj.config.override(threads=n):
            warm(f, x)
            assert f(x).item() == 1 << 19
            assert team.words[0] in (n, team.size_now())
        assert f(x).item() == 1 << 19


@needs_entry
def test_an_interrupt_leaves_everything_or_nothing_done():
    p, q = tj.zeros(4), tj.zeros(4)

    def f(x):
        p.add_(x)
        q.sub_(x)
        return p * 2

    f = warm(tj.compile(f), x := tj.ones(4))
    caught = 0

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(60):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.002)  # a busy machine may take longer until the next line
                end = time.monotonic() + 5
                while time.monotonic() < end:
                    f(x)
            except KeyboardInterrupt:
                caught += 1
            assert (p + q).tolist() == [0.0] * 4
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert caught == 60


@needs_entry
def test_an_interrupt_inside_an_allocation_comes_through(monkeypatch):
    f = warm(tj.compile(lambda x: x * 2), x := tj.ones(1 << 16))
    block = buffer.Pool.block

    def interrupted(self, nbytes):
        raise KeyboardInterrupt

    monkeypatch.setattr(buffer.Pool, "block", interrupted)
    with pytest.raises(KeyboardInterrupt):
        f(x)
    monkeypatch.setattr(buffer.Pool, "block", block)
    assert f(x).sum().item() == 1 << 17


@needs_entry
def test_a_countdown_sends_a_call_through_python():
    f = warm(tj.compile(lambda x: x * 2), x := tj.ones(3))
    before = hits(f)
    f.front.words[driver.CALLABLE["countdown"]] = 3
    for _ in range(10):
        assert f(x).tolist() == [2.0] * 3
    assert hits(f) - before == 9


def test_without_the_entry_calls_go_through_python_and_say_so(monkeypatch):
    monkeypatch.setattr(dispatch, "native", lambda: None)
    f = warm(tj.compile(lambda x: x * 2), x := tj.ones(3))
    assert f.compiled_calls >= 4 and not f.front.directs
    assert f(x).tolist() == [2.0] * 3
    assert "go through Python: this Python's objects are not laid out as expected" in str(f.explain())


def test_what_has_no_instructions_is_said():
    f = tj.compile(lambda x, k: x * k)
    for k in range(12):
        f(tj.ones(3), k)
    g = warm(tj.compile(lambda x: x * 2), tj.ones(3, 3).t()[:2])
    assert "go through Python: a tensor is not contiguous" in str(g.explain())


@needs_entry
def test_the_self_test_notices_a_wrong_offset(monkeypatch):
    code = (
        "import tracejit as tj\n"
        "from tracejit.runtime import dispatch, guards\n"
        "import dataclasses\n"
        "right = dispatch._class_words()\n"
        "dispatch._class_words = lambda: (right[0] + 8, right[1])\n"  # tp_getattr: 0 in classes
        "dispatch._passes = lambda *_: False\n"
        "f = tj.compile(lambda x: x * 2)\n"
        "for _ in range(8): f(tj.ones(2))\n"
        "print(f.compiled_calls, dispatch.native(), 'laid out' in str(f.explain()))\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["5", "None", "True"]


@needs_entry
def test_counts_add_up():
    f = tj.compile(lambda x: x * 2 if (x.sum() > 0).item() else x - 1)
    for k in range(60):
        f(tj.full((2,), 1.0 if k % 4 else -1.0))
    assert f.calls == 60
    assert f.compiled_calls == sum(t.hits for t in f.traces())
    assert hits(f) > 20


@needs_entry
def test_words_of_a_function_are_no_references():
    f = warm(tj.compile(lambda x: x * 2), tj.ones(3))
    assert f._direct_words == ctypes.addressof(f.front.words)
    gc.collect()
    assert f not in gc.get_referents(f)


@needs_entry
def test_a_mistake_of_ours_before_the_program_gives_the_call_up_but_a_handlers_error_comes_through(monkeypatch):
    f = warm(tj.compile(lambda x: x * 2), x := tj.ones(1 << 16))
    block = buffer.Pool.block
    raised = []

    def broken(self, nbytes):
        if not raised:
            raised.append(AttributeError("ours"))
            raise raised[0]
        return block(self, nbytes)

    broken = types.FunctionType(broken.__code__, {**globals(), "__name__": "tracejit.x"}, closure=broken.__closure__)
    monkeypatch.setattr(buffer.Pool, "block", broken)
    assert f(x).sum().item() == 1 << 17
    assert raised

    def late(self, nbytes):
        raise TimeoutError

    monkeypatch.setattr(buffer.Pool, "block", late)
    with pytest.raises(TimeoutError):
        f(x)
