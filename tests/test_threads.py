"""Many threads, forked and spawned processes, and the end of the interpreter: the same results, and compiled ones."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

import tracejit as tj

THREADS = 8


def together(work, n=THREADS):
    """work(k) in n threads that start at once; what they returned. Exceptions come out."""
    start, out = threading.Barrier(n), [None] * n

    def run(k):
        start.wait()
        try:
            out[k] = work(k)
        except BaseException as e:
            out[k] = e

    threads = [threading.Thread(target=run, args=(k,)) for k in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
        assert not t.is_alive()
    for x in out:
        if isinstance(x, BaseException):
            raise x
    return out


def until(f, compiled, call, least=60, most=20000):
    """What `call` returns each time, until f ran compiled often enough."""
    out = []
    while len(out) < least or (f.compiled_calls < compiled and len(out) < most):
        out.append(call())
    return out


def body(x, w):
    h = (x @ w).tanh()
    return (h * 2 + 1).sum() if h.sum() > 0 else h.exp().mean()


def inputs(k):
    rng = np.random.default_rng(k)
    x = rng.normal(size=(4 + k % 3, 6)).astype(np.float32)
    return tj.tensor(x), tj.tensor(rng.normal(size=(6, 5)).astype(np.float32))


def test_eight_threads_call_one_function_from_its_first_call_on():
    f = tj.compile(body)

    def work(k):
        x, w = inputs(k)
        return until(f, 500, lambda: f(x, w).item())

    for k, values in enumerate(together(work)):
        np.testing.assert_allclose(values, body(*inputs(k)).item(), rtol=1e-4)
    assert f.compiled_calls >= 500
    assert len(f.traces()) <= 12


def test_eight_threads_compile_eight_functions_at_once():
    functions = [tj.compile(lambda x, k=k: (x * k).exp().sum() + x[k:].sum()) for k in range(THREADS)]

    def work(k):
        x = tj.tensor(np.linspace(-1, 1, 16, dtype=np.float32))
        return [functions[k](x).item() for _ in range(30)]

    limit = sys.getrecursionlimit()
    for k, values in enumerate(together(work)):
        x = np.linspace(-1, 1, 16, dtype=np.float32)
        np.testing.assert_allclose(values, np.exp(x * k).sum() + x[k:].sum(), rtol=1e-4)
    assert all(f.compiled_calls >= 20 for f in functions)
    assert sys.getrecursionlimit() == limit
    assert sys.getprofile() is None


def test_state_of_each_threads_own_is_updated_as_often_as_it_was_called():
    f = tj.compile(lambda state, x: state.add_(x).sum())

    def work(k):
        state = tj.zeros(8)
        calls = len(until(f, 1000, lambda: f(state, tj.full((8,), float(k)))))
        return calls, state.tolist()

    for k, (calls, state) in enumerate(together(work)):
        assert state == [float(calls * k)] * 8
    assert f.compiled_calls >= 1000


def test_gradients_in_threads_stay_apart():
    f = tj.compile(lambda w, x: ((w * x).tanh() ** 2).sum())

    def work(k):
        w, x = tj.full((5,), 0.5, requires_grad=True), tj.full((5,), float(k + 1))
        for _ in range(40):
            w.grad = None
            f(w, x).backward()
        return w.grad.tolist()

    for k, found in enumerate(together(work)):
        w = tj.full((5,), 0.5, requires_grad=True)
        ((w * (k + 1)).tanh() ** 2).sum().backward()
        np.testing.assert_allclose(found, w.grad.tolist(), rtol=1e-4, atol=1e-6)


def test_grad_mode_is_each_threads_own():
    f = tj.compile(lambda w: w * 2)
    w = tj.ones(3, requires_grad=True)

    def work(k):
        if k % 2:
            with tj.no_grad():
                assert not any(y.requires_grad for y in until(f, 500, lambda: f(w)))
        else:
            assert all(y.requires_grad for y in until(f, 500, lambda: f(w)))

    together(work)
    assert f.compiled_calls >= 500


def test_a_recording_in_one_thread_leaves_the_others_alone():
    """What one thread records is not what another one runs meanwhile."""
    inside, go = threading.Event(), threading.Event()
    box = {"wait": False}

    def pause():
        inside.set()
        go.wait(30)

    @tj.compile
    def slow(x):
        if box["wait"]:
            pause()
        return x + 1

    other = tj.compile(lambda x: x * 3)
    slow(tj.ones(1))
    box["wait"] = True
    t = threading.Thread(target=slow, args=(tj.ones(1),))
    t.start()
    assert inside.wait(30)
    for _ in range(8):
        assert other(tj.ones(1)).item() == 3
    box["wait"] = False
    assert slow(tj.ones(1)).item() == 2
    go.set()
    t.join(30)
    assert other.compiled_calls >= 4
    assert "another thread is recording" in slow.explain()
    for _ in range(8):
        assert slow(tj.ones(1)).item() == 2
    assert slow.compiled_calls >= 3


# ---------------------------------------------------------------- processes


@tj.compile
def module_level(x):
    """Found by its name in another process."""
    return (x * 2 + 1).sum()


def call_it(n):
    return [module_level(tj.ones(n)).item() for _ in range(8)], module_level.compiled_calls


def given_it(f):
    return [f(tj.ones(3)).item() for _ in range(8)], f.compiled_calls


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_children_go_on_with_what_was_compiled_and_compile_anew():
    f = tj.compile(body)
    g = tj.compile(lambda x: x.exp().sum() * 3)
    x, w = inputs(0)
    expected = [f(x, w).item() for _ in range(8)][-1]
    before = f.compiled_calls
    with multiprocessing.get_context("fork").Pool(
        2, initializer=_keep, initargs=((f, g, x, w, expected, before),)
    ) as pool:
        assert pool.map(_in_child, range(4), chunksize=1) == [True] * 4


_kept = None


def _keep(what):
    global _kept
    _kept = what


def _in_child(_):
    f, g, x, w, expected, before = _kept
    same = all(abs(f(x, w).item() - expected) <= 1e-4 * abs(expected) for _ in range(8))
    values = {round(g(tj.ones(4)).item(), 3) for _ in range(8)}
    big = tj.ones(512, 512)
    wide = tj.compile(lambda a: (a * 2).exp().sum())
    return (
        same
        and f.compiled_calls >= before + 8
        and g.compiled_calls >= 4
        and len(values) == 1
        and all(wide(big).item() > 0 for _ in range(6))
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_while_another_thread_records_and_compiles_leaves_a_child_that_compiles():
    stop = threading.Event()
    shared = tj.compile(lambda x: (x * 2).sum())

    def busy(k):
        i = 0
        while not stop.is_set():
            i += 1
            space = {}
            exec(f"def f(x):\n    return (x * {i}.{k} + {i}).exp().sum()", space)
            f = tj.compile(space["f"])
            for _ in range(4):
                f(tj.ones(4))
                shared(tj.ones(1 + i % 50))

    threads = [threading.Thread(target=busy, args=(k,), daemon=True) for k in range(3)]
    for t in threads:
        t.start()
    try:
        for k in range(12):
            pid = os.fork()
            if pid == 0:
                try:
                    faulthandler.dump_traceback_later(45, exit=True)  # a child that hangs says where
                    f = tj.compile(lambda x: x * 3 + 1)
                    if any(f(tj.ones(5)).tolist() != [4.0] * 5 for _ in range(8)):
                        os._exit(3)
                    if f.compiled_calls < 4:
                        os._exit(4)
                    before = shared.compiled_calls
                    y = tj.ones(60 + k)
                    if any(shared(y).item() != 2 * (60 + k) for _ in range(8)):
                        os._exit(5)
                    os._exit(0 if shared.compiled_calls > before else 6)
                except BaseException:
                    os._exit(2)
            _, status = os.waitpid(pid, 0)
            assert os.waitstatus_to_exitcode(status) == 0
            time.sleep(0.01)
    finally:
        stop.set()
        for t in threads:
            t.join(60)


def test_spawned_processes_find_compiled_functions_by_name():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        values, compiled = pool.apply(call_it, (3,))
        assert values == [9.0] * 8
        assert compiled >= 4
        values, compiled = pool.apply(given_it, (module_level,))
        assert values == [9.0] * 8
        assert compiled >= 4


def test_compiled_functions_pickle_by_name_and_modules_by_value():
    assert pickle.loads(pickle.dumps(module_level)) is module_level
    net = tj.compile(tj.nn.Linear(3, 2), hot=2)
    again = pickle.loads(pickle.dumps(net))
    x = tj.ones(4, 3)
    for _ in range(6):
        assert again(x).tolist() == net(x).tolist()
    assert again.compiled_calls >= 2
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(tj.compile(lambda x: x))


class Squares(tj.data.Dataset):
    """Items made by a compiled function, in a worker."""

    def __init__(self, f):
        self.f = f

    def __len__(self):
        return 24

    def __getitem__(self, i):
        return self.f(tj.full((4,), float(i))), tj.tensor(float(module_level.compiled_calls))


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_dataloader_workers_call_compiled_functions(method):
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")
    for _ in range(6):
        module_level(tj.ones(4))
    loader = tj.data.DataLoader(Squares(module_level), batch_size=4, num_workers=2, multiprocessing_context=method)
    batches = list(loader)
    assert [v for b, _ in batches for v in b.tolist()] == [8.0 * i + 4 for i in range(24)]
    assert batches[-1][1][-1].item() > 0  # compiled in the worker
    assert module_level(tj.ones(4)).item() == 12


# ---------------------------------------------------------------- the end


def run(code, *, seconds=60):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=seconds, check=False
    )


@pytest.mark.parametrize("daemon", [True, False])
def test_the_interpreter_ends_while_threads_compile_and_run(daemon):
    done = run(f"""
        import threading, time, tracejit as tj
        def work(k):
            end = time.monotonic() + ({1e9 if daemon else 6})
            i = 0
            while time.monotonic() < end:
                i += 1
                f = tj.compile(lambda x: (x * i).exp().sum() + k)
                for _ in range(5):
                    f(tj.ones(64, 64))
                g(tj.ones(300, 300))
        g = tj.compile(lambda x: (x * 2).exp().sum())
        for k in range(4):
            threading.Thread(target=work, args=(k,), daemon={daemon}).start()
        end = time.monotonic() + 40
        while not g.compiled_calls and time.monotonic() < end:
            time.sleep(0.05)
        print("end", g.compiled_calls > 0)
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end True\n", "")


def test_compiled_functions_still_run_in_exit_handlers():
    done = run("""
        import atexit, tracejit as tj
        f = tj.compile(lambda x: (x * 2).sum())
        atexit.register(lambda: print(f(tj.ones(400, 400)).item(), f.compiled_calls))
        for _ in range(6):
            f(tj.ones(400, 400))
    """)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0].startswith("320000.0 ")


# -- machine code made in the background


def builders(f):
    return [b.builder for b in f.buckets.values() if b.builder is not None]


def test_no_call_waits_for_code_that_is_made_in_the_background(monkeypatch):
    module = sys.modules["tracejit.trace.compile"]
    compile_trace, go = module.compile_trace, threading.Event()

    def slowly(*args):
        assert threading.current_thread() is not threading.main_thread()
        assert go.wait(60)
        return compile_trace(*args)

    monkeypatch.setattr(module, "compile_trace", slowly)
    f = tj.compile(body, background=True)
    x, w = inputs(0)
    expected = body(x, w).item()
    values = [f(x, w).item() for _ in range(12)]
    assert f.compiled_calls == 0 and "its code is being made in the background" in str(f.explain())
    go.set()
    for b in builders(f):
        b.join(60)
    values += [f(x, w).item() for _ in range(12)]
    assert f.compiled_calls == 12
    np.testing.assert_allclose(values, expected, rtol=1e-5)


def test_steps_that_write_are_right_while_their_code_is_made():
    def trained(background):
        tj.manual_seed(0)
        model = tj.nn.Sequential(tj.nn.Linear(6, 8), tj.nn.ReLU(), tj.nn.Linear(8, 1))
        optimizer = tj.optim.Adam(model.parameters(), lr=0.01)

        def step(x):
            optimizer.zero_grad()
            loss = (model(x) ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss

        step = tj.compile(step, background=background)
        losses = [step(inputs(k)[0]).item() for k in range(60)]
        for b in builders(step):
            b.join(60)
        return losses + [step(inputs(k)[0]).item() for k in range(60)], step.compiled_calls

    (a, here), (b, beside) = trained(False), trained(True)
    np.testing.assert_allclose(a, b, rtol=1e-4)
    assert here > 100 and beside >= 60


def test_a_background_build_that_fails_leaves_plain_python():
    f = tj.compile(lambda x: x * 2, backend="no such backend", background=True)
    for _ in range(4):
        assert f(tj.ones(2)).tolist() == [2, 2]
    for b in builders(f):
        b.join(60)
    assert f(tj.ones(2)).tolist() == [2, 2]
    assert "the backend cannot compile it" in str(f.explain())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_forked_while_code_is_made_makes_its_own():
    f = tj.compile(body, background=True)
    x, w = inputs(0)
    for _ in range(4):
        f(x, w)
    pid = os.fork()
    if pid == 0:
        faulthandler.dump_traceback_later(60, exit=True)
        end = time.monotonic() + 50
        while not f.compiled_calls and time.monotonic() < end:
            f(x, w)
        os._exit(0 if f.compiled_calls else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_the_interpreter_waits_for_code_that_is_made_in_the_background():
    done = run("""
        import tracejit as tj
        f = tj.compile(lambda x: (x * 2).exp().sum(), background=True)
        for _ in range(4):
            f(tj.ones(64, 64))
        print("end")
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
