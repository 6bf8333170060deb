"""After every call the world is what plain Python leaves: every program of `effects.py`, `slots.py`, `windows.py` and
`worlds.py`, plainly and compiled."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref

import effects
import pytest
import slots
import windows
import worlds

import tracejit as tj


def graph(x, seen=None):
    """x and everything it reaches as plain data; what was met before is its number, so aliasing shows."""
    seen = {} if seen is None else seen
    if isinstance(x, (bool, int, float, complex, str, bytes, type(None))):
        return (type(x).__name__, repr(x))
    if id(x) in seen:
        return ("again", seen[id(x)][0])
    seen[id(x)] = (len(seen), x)
    t = type(x).__name__
    if isinstance(x, tj.Tensor):
        return (
            t,
            str(x.dtype),
            x.requires_grad,
            x.grad_fn is None,
            [f"{v:.5g}" for v in x.detach().reshape(-1).tolist()],
        )
    if isinstance(x, dict):
        return (t, [(graph(k, seen), graph(v, seen)) for k, v in x.items()])
    if isinstance(x, (set, frozenset)):
        return (t, sorted(map(repr, x)))
    if isinstance(x, (list, tuple)) or t == "deque":
        return (t, [graph(v, seen) for v in x])
    if hasattr(x, "__dict__") and t != "function":
        return (t, [(k, graph(v, seen)) for k, v in vars(x).items()])
    return (t,)


def run(program, jit):
    f, calls, world = program(tj)
    g = jit(f)
    out = []
    for args in calls:
        try:
            result = g(*args)
        except Exception as e:
            result = f"raised {type(e).__name__}"
        now = world() if callable(world) else world
        out.append(graph((result, args, now)))
    return out, g


PROGRAMS = [*effects.PROGRAMS, *slots.PROGRAMS, *windows.PROGRAMS, *worlds.PROGRAMS]


@pytest.mark.filterwarnings("ignore:hey")
@pytest.mark.parametrize(("name", "program", "compiles"), PROGRAMS, ids=[p[0] for p in PROGRAMS])
def test_the_world_is_the_same(name, program, compiles, capsys):
    eager, _ = run(program, lambda f: f)
    said = capsys.readouterr().out
    compiled, g = run(program, tj.compile)
    for k, (a, b) in enumerate(zip(eager, compiled, strict=True)):
        assert a == b, f"after call {k}\n{g.explain()}"
    assert capsys.readouterr().out == said
    if compiles is not None:
        assert g.compiled_calls >= compiles, g.explain()


@pytest.mark.filterwarnings("ignore:hey")
def test_the_self_check_finds_no_fault_in_any_of_them(capsys):
    verified = 0
    for name, program, _ in PROGRAMS[::3]:
        eager, _ = run(program, lambda f: f)
        checked, g = run(program, lambda f: tj.compile(f, verify=1))
        assert checked == eager, name
        assert not g.history.mismatches, (name, g.history.mismatches)
        verified += g.history.verified
    assert verified > 300


def test_a_callback_that_changes_what_is_read_is_an_error_and_never_a_wrong_result():
    cfg, calls = {"k": 1.0}, [0]

    def change():
        calls[0] += 1
        if calls[0] > 5:
            cfg["k"] += 1

    def f(x):
        tj.callback(change)
        return x * cfg["k"]

    g = tj.compile(f)
    for _ in range(5):
        g(tj.ones(1))
    with pytest.raises(tj.errors.CallbackError, match="a callback changed what the compiled function reads"):
        g(tj.ones(1))


def test_a_callback_may_not_write_what_the_function_counts():
    box = effects.Box(n=0, calls=0)

    def reset():
        box.calls += 1
        if box.calls > 5:
            box.n = 0

    def f(x):
        box.n += 1
        tj.callback(reset)
        box.n += 1
        return x * box.n

    g = tj.compile(f)
    for _ in range(5):
        g(tj.ones(1))
    with pytest.raises(tj.errors.CallbackError):
        g(tj.ones(1))
    assert g.compiled_calls > 0


def test_an_interrupt_between_effects_leaves_what_plain_python_leaves():
    box = effects.Box(a=0, b=0, calls=0)

    def interrupt(n):
        if n == 7:
            raise KeyboardInterrupt

    def f(x):
        box.a += 1
        tj.callback(interrupt, box.a)
        box.b += 1
        return x

    g = tj.compile(f)
    for _ in range(6):
        g(tj.ones(1))
    with pytest.raises(KeyboardInterrupt):
        g(tj.ones(1))
    assert (box.a, box.b) == (7, 6)
    g(tj.ones(1))
    assert (box.a, box.b) == (8, 7)


def test_threads_append_each_their_own():
    log = []

    def f(x):
        log.append(x.sum().item())
        return x * 2

    g = tj.compile(f)
    for _ in range(5):
        g(tj.ones(1))
    del log[:]

    def work(k):
        for _ in range(50):
            assert g(tj.full((1,), float(k))).tolist() == [2.0 * k]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(log) == [float(k) for k in range(4) for _ in range(50)]


def test_print_goes_where_standard_output_is_now(capsys):
    class Tee:
        def __init__(self):
            self.text = ""

        def write(self, text):
            self.text += text

    g = tj.compile(lambda x: print("hello") or x)
    for _ in range(6):
        g(tj.ones(1))
    assert g.compiled_calls > 0, g.explain()
    assert capsys.readouterr().out == "hello\n" * 6
    tee = Tee()
    with contextlib.redirect_stdout(tee):
        g(tj.ones(1))
    assert tee.text == "hello\n"


def test_what_was_recorded_does_not_keep_the_objects_it_writes():
    class Log:
        pass

    box, log = effects.Box(log=Log()), None
    box.log.n = 0

    def f(x):
        box.log.n += 1
        return x

    g = tj.compile(f)
    for _ in range(6):
        g(tj.ones(1))
    log = weakref.ref(box.log)
    box.log = Log()
    box.log.n = 10
    gc.collect()
    assert log() is None
    g(tj.ones(1))
    assert box.log.n == 11


def test_the_self_check_does_not_do_effects_twice():
    box = effects.Box(n=0, log=[])

    def f(x):
        box.n += 1
        box.log.append(f"{x.sum().item():.2f}")
        return x * box.n

    g = tj.compile(f, verify=1)
    for k in range(8):
        g(tj.full((2,), float(k)))
    assert (box.n, box.log) == (8, [f"{2.0 * k:.2f}" for k in range(8)])
    assert "differed" in g.explain()


def test_gradients_flow_to_a_tensor_kept_outside():
    class Box:
        h = None

    def losses(jit):
        box = Box()
        box.h = first = tj.ones(3, requires_grad=True)

        def f(x):
            box.h = box.h * x
            return box.h.sum()

        f = jit(f)
        out = [f(tj.full((3,), 1.0 + i / 4)) for i in range(8)]
        out[-1].backward()
        return [x.item() for x in out], first.grad.tolist()

    assert losses(tj.compile) == losses(lambda f: f)
