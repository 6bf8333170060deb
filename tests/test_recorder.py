"""Recorded, refused or not, a call gives what plain Python gives; and what is refused, and why."""

import ast
import contextlib
import cProfile
import ctypes
import difflib
import fractions
import gc
import heapq
import inspect
import json
import operator
import pprint
import statistics
import string
import sys
import textwrap
import types
import weakref

import pytest

import tracejit as tj
from tracejit.errors import NotCompilable
from tracejit.tensor.jit import DOMAIN
from tracejit.tensor.tape import vjp_rule
from tracejit.trace import copies, instrument
from tracejit.trace.domain import is_library, is_recorder
from tracejit.trace.key import flatten
from tracejit.trace.recorder import Recorder, active
from tracejit.trace.recording import Recording, record
from tracejit.trace.scalars import Memory
from tracejit.trace.watch import Watcher, tower

SOURCE = textwrap.dedent(
    """
    class A(B, metaclass=M):
        x: int = 1
        @property
        def f(self, a, *b, c=2, **d):
            try:
                with open(p) as q, r: return [i async for i in y] if x else {k: v for k, v in z}
            except (E, F) as e:
                raise G from e
            finally:
                del a.b[c:d], e
            lambda u=1: (yield u)
            match a:
                case {"k": [1, *w], **rest} | P(x=2) if w: pass
    """
)


def recorded(f, *args, **kwargs):
    """(result of f run recorded, the recording or the reasons against it)."""
    call = flatten(DOMAIN, args, kwargs, ())
    return record(DOMAIN, f, args, kwargs, call, "f")


def reasons(f, *args):
    _, found = recorded(f, *args)
    assert isinstance(found, tuple), "was not refused"
    return " | ".join(r.text for r in found)


PROGRAMS = {
    "json": lambda: json.loads(json.dumps({"a": [1, 2.5, None, {"b": "é\n"}], "c": []}, indent=2, sort_keys=True)),
    "python json": lambda: "".join(json.JSONEncoder(indent=1).iterencode({"a": [1, {"b": (2, 3)}], "x": 1.5})),
    "textwrap": lambda: textwrap.fill("the quick brown fox jumps over the lazy dog " * 3, 23, initial_indent="* "),
    "difflib": lambda: list(difflib.unified_diff(["a", "b", "c"], ["a", "x", "c", "d"])),
    "fractions": lambda: [str(fractions.Fraction(3, 4) ** 2 + fractions.Fraction("1/3") - 2), fractions.Fraction(0.5)],
    "statistics": lambda: [statistics.median([3, 1, 2]), statistics.pvariance([1.5, 2.5, 4.0]), statistics.mode("aab")],
    "template": lambda: string.Template("$a and ${b}").substitute({"a": 1}, b=2),
    "ast": lambda: ast.unparse(ast.parse(SOURCE.replace("async ", ""))),
    "pprint": lambda: pprint.pformat({"k": list(range(40)), "j": {"n": ("t",) * 12}}, width=40),
    "heapq": lambda: list(heapq.merge([1, 4, 7], [2, 5], key=lambda v: v)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_recorded_program_gives_what_plain_python_gives(name):
    plain = PROGRAMS[name]()

    result, _ = recorded(PROGRAMS[name])

    assert result == plain
    assert active() is None


@pytest.mark.parametrize("name", PROGRAMS)
def test_instrumented_code_without_a_recording_is_the_plain_program(name):
    f = PROGRAMS[name]
    copy = types.FunctionType(instrument.instrument(f.__code__), f.__globals__, closure=f.__closure__)

    assert copy() == f()


def test_every_statement_survives_instrumentation():
    def program(a, *b, c=2, **d):
        out = [a, b, c, sorted(d.items()), -a, +a, ~a, not a, a if b else c, a < c <= 9 != 4, a in b, a not in b]
        x, (y, *z), w = 1, (2, 3, 4), [*b, *out[:1]]
        z[1:] = [7, 8]
        z[0] += 5
        del z[1]
        out += [x, y, z, w, {**d, "k": w}, {*b}, f"{a!r:>5}|{c:{a}d}", "%s" % (a,)]  # noqa: UP031
        for i in range(3):
            if i == 1:
                continue
            out.append(i)
        else:
            out.append("else")
        while a:
            a -= 1
            if a == 1:
                break
        try:
            try:
                raise KeyError("k") from ValueError("v")
            except KeyError as e:
                out.append((str(e), str(e.__cause__)))
                raise
            finally:
                out.append("finally")
        except LookupError:
            out.append("lookup")
        try:
            if out:
                raise AssertionError("text")
        except AssertionError as e:
            out.append(str(e))

        def counter():
            nonlocal x
            x += 1
            got = yield x
            while got is not None:
                got = yield from iter([got, x])

        it = counter()
        out += [next(it), it.send(5), next(it), [v for v in (3, 4) if v > 3], {v: v * v for v in b}]
        out.append(sum(v for v in b))
        out.append((lambda u=a, *, k=c: (u, k))())
        match out[0], {"p": [1, 2, 3]}:
            case 3, {"p": [1, *rest], **others} if rest:
                out.append((rest, others))
            case _:
                out.append("no match")
        return out

    plain = program(3, 4, 5, c=6, e=7)

    result, found = recorded(program, 3, 4, 5, c=6, e=7)

    assert result == plain
    assert isinstance(found, Recording), found


def test_exceptions_come_out_as_they_are():
    def f(x):
        return {}["missing"]

    with pytest.raises(KeyError, match="missing"):
        recorded(f, tj.zeros(1))
    assert active() is None


def test_names_of_user_code_are_free():
    def f(x, H=1, same=2, A=3, check=4, o0=5, get=6):
        return x + H + same + A + check + o0 + get

    c = tj.compile(f)
    assert [c(tj.zeros(1)).item() for _ in range(5)] == [21.0] * 5
    assert c.compiled_calls == 2


# -- what is refused


def test_reads_by_unknown_c_code_are_refused():
    import array
    import random
    import time

    class Stream:
        def write(self, text):
            pass

    box, values, it = memoryview(b"a"), array.array("i", [1]), iter([1])
    assert "time.perf_counter, whose effects are not known" in reasons(lambda: time.perf_counter())
    assert "random" in reasons(lambda: random.random())
    assert "iterates a memoryview" in reasons(lambda: [v + 1 for v in box])
    assert "len of a array.array" in reasons(lambda: len(values))
    assert "list_iterator made outside" in reasons(lambda: next(it))
    assert "prints to" in reasons(lambda: print(end="", file=Stream()))
    assert "builtins.id" in reasons(lambda x: id(x), tj.zeros(1))
    assert "io.open" in reasons(lambda: open(__file__).close())


def test_effects_on_outside_objects_are_noted_in_order_and_those_on_fresh_ones_are_not():
    old, count = [], {"n": 0}

    class Box:
        pass

    box = Box()

    def fresh(x):
        new, d, b = [], {}, Box()
        new.append(1)
        d["k"] = 2
        b.v = 3
        del d["k"]
        return x * b.v

    def outside(x):
        old.append(1)
        box.v = 1
        count["n"] = 3
        return x

    assert recorded(fresh, tj.ones(1))[1].deeds == ()
    assert [d.f for d in recorded(outside, tj.ones(1))[1].deeds] == [list.append, object.__setattr__, dict.__setitem__]
    assert (old, box.v, count["n"]) == ([1], 1, 3)


def test_effects_that_cannot_be_replayed_are_refused():
    box, values = types.SimpleNamespace(), memoryview(bytearray(b"ab"))
    assert "item assignment on a memoryview" in reasons(lambda: values.__setitem__(0, 1) or set_item(values))
    assert "which cannot be rebuilt" in reasons(lambda: setattr(box, "f", object()))
    assert "makes a class" in reasons(lambda: setattr(box, "c", type("C", (), {})))


def set_item(d):
    d[0] = 3


def test_a_refusal_names_the_users_line():
    def f(x):
        open(__file__).close()  # the line
        return x

    _, found = recorded(f, tj.zeros(1))
    assert found[0].where == f"test_recorder.py:{f.__code__.co_firstlineno + 1}"


def test_python_code_that_c_code_calls_is_seen():
    class Sneaky:
        def __index__(self):
            return state[0]

    state, s = [1], Sneaky()
    assert "Python code ran unseen" in reasons(lambda: [1, 2, 3][s])


def test_a_disabled_function_keeps_its_caller_eager():
    state = [0]

    @tj.disable
    def count(x):
        state[0] += 1
        return x

    c = tj.compile(lambda x: count(x))
    for _ in range(6):
        c(tj.zeros(1))
    assert (c.compiled_calls, state) == (0, [6])


def test_two_recordings_that_differ_are_refused():
    c = tj.compile(lambda x: x + 1)
    x = tj.zeros(1)
    c(x), c(x)
    (bucket,) = c.buckets.values()
    bucket.pending[0].fingerprint = "another graph"
    c(x)
    assert c.compiled_calls == 0
    assert "depends on something unseen" in c.explain()


def test_an_untrusted_python_stays_eager_and_says_so(monkeypatch):
    assert instrument.trusted()
    monkeypatch.setattr(instrument, "SUPPORTED", False)
    c = tj.compile(lambda x: x + 1)
    for _ in range(5):
        c(tj.zeros(1))
    assert c.compiled_calls == 0
    assert "did not pass the self-test" in c.explain()


# -- life times


def test_a_trace_does_not_keep_a_model_alive():
    class Net(tj.nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = tj.nn.Linear(2, 2)

        def forward(self, x):
            return self.lin(x)

    net = Net()
    holder = {"net": net}
    c = tj.compile(lambda x: holder["net"](x))
    for _ in range(5):
        c(tj.ones(1, 2))
    assert c.compiled_calls
    gone, weight = weakref.ref(net), weakref.ref(net.lin.weight)

    del net, holder["net"]
    gc.collect()

    assert gone() is None
    assert weight() is None
    assert c.traces() == []


def test_recordings_leave_nothing_behind():
    class Thing:
        pass

    thing = Thing()
    thing.k = 2.0
    c = tj.compile(lambda x, t: x * t.k)
    for _ in range(2):  # warm, then recorded once
        c(tj.ones(1), thing)
    gone = weakref.ref(thing)

    del thing

    assert gone() is None
    assert not c.buckets


def test_instrumented_copies_die_with_their_functions():
    def make():
        space = {}
        exec("def f(x): return x + 1", space)
        return space["f"]

    f = make()
    recorded(f, tj.zeros(1))
    code = weakref.ref(f.__code__)
    assert id(f.__code__) in instrument._copies

    del f
    gc.collect()

    assert code() is None


def test_a_recorder_starts_empty():
    r = Recorder(DOMAIN)
    assert not r.cells
    assert r.is_old([])
    assert not r.is_old(r.made([]))


def test_instrumented_code_has_room_for_what_hooks_push():
    found = 0
    for module in (statistics, string, textwrap, fractions, heapq, pprint, difflib, json):
        todo = [compile(inspect.getsource(module), module.__file__, "exec")]
        while todo:
            code = todo.pop()
            todo += [c for c in code.co_consts if isinstance(c, types.CodeType)]
            if code.co_exceptiontable:
                continue
            try:
                new = instrument._written(code)
            except NotCompilable:
                continue
            exact = instrument.Bytecode.from_code(new).to_code()
            assert new.co_stacksize >= exact.co_stacksize, code.co_qualname
            found += 1
    assert found > 200


# -- the compiled callable


def test_calls_are_warm_recorded_confirmed_then_compiled():
    c = tj.compile(lambda x: x + 1)
    counts = []
    for _ in range(5):
        c(tj.zeros(1))
        counts.append(c.compiled_calls)
    assert counts == [0, 0, 0, 1, 2]


def test_calls_from_other_lines_are_the_same_path():
    model, x = tj.compile(tj.nn.Sequential(tj.nn.Linear(4, 4), tj.nn.ReLU())), tj.randn(3, 4)
    model(x)
    model(x)
    model(x)
    model(x)
    assert model.compiled_calls == 1, model.explain()


def test_hot_says_which_call_is_recorded_first():
    c = tj.compile(hot=1)(lambda x: x + 1)
    for _ in range(3):
        c(tj.zeros(1))
    assert c.compiled_calls == 1


def test_eager_block_and_setting_run_plain_python():
    c = tj.compile(lambda x: x + 1)
    for _ in range(4):
        c(tj.zeros(1))
    with tj.eager():
        c(tj.zeros(1))
    with tj.config.override(eager=True):
        c(tj.zeros(1))
    assert c.compiled_calls == 1


def test_traces_are_bounded():
    c = tj.compile(lambda x: x + 1)
    with tj.config.override(max_traces=3):
        for n in range(6):
            for _ in range(4):
                c(tj.zeros(n + 1))
        assert len(c.traces()) == 3


def test_what_never_repeats_stops_being_recorded():
    c = tj.compile(lambda x, k: x + float(f"{k}"))
    for k in range(400):
        c(tj.zeros(1), float(k))
    assert c.recordings < 60
    assert "too often" in c.explain()


def test_a_number_that_changes_is_an_input():
    c = tj.compile(lambda x, k: (x + k * 2, k))
    for k in range(50):
        y, n = c(tj.zeros(1), k)
        assert (y.item(), n, type(n)) == (2 * k, k, int)
    assert c.compiled_calls == 46
    assert len(c.traces()) == 1


def test_what_adam_adds_to_the_root_is_an_input_where_it_changes():
    w = tj.nn.Parameter(tj.ones(2))
    opt = tj.optim.Adam([w], lr=0.1)

    @tj.compile
    def step():
        opt.zero_grad()
        (w * w).sum().backward()
        opt.step()

    for k in range(20):
        opt.param_groups[0]["eps"] = 1e-8 * (k + 1)
        step()
    assert step.compiled_calls >= 15


def test_a_learning_rate_that_changes_is_an_input():
    w = tj.nn.Parameter(tj.ones(2))
    opt = tj.optim.AdamW([w], lr=0.1)
    schedule = tj.optim.lr_scheduler.CosineAnnealingLR(opt, 30)

    @tj.compile
    def step():
        opt.zero_grad()
        (w * w).sum().backward()
        opt.step()

    for _ in range(30):
        step()
        schedule.step()
    assert step.compiled_calls == 26
    assert len(step.traces()) == 1


def test_a_number_that_is_looked_at_stays_a_constant():
    c = tj.compile(lambda x, k: x * (3.0, 5.0)[k])
    for k in (0, 1, 0, 1, 0, 1, 0, 1):
        assert c(tj.ones(1), k).item() == 3 + 2 * k
    assert len(c.traces()) == 2


def test_a_number_that_is_an_index_of_a_tensor_is_an_input():
    c = tj.compile(lambda x, k: x[k])
    for k in (0, 1, 0, 1, 0, 1, 0, 1):
        assert c(tj.tensor([0.0, 1.0]), k).item() == k
    assert c.compiled_calls >= 4
    assert len(c.traces()) == 1


def test_a_branch_on_a_number_guards_the_outcome_only():
    c = tj.compile(lambda x, k: x + k if k > 10 else x - k)
    for k in range(40):
        assert c(tj.zeros(1), k).item() == (k if k > 10 else -k)
    assert len(c.traces()) == 2
    assert c.compiled_calls > 32


def test_a_compiled_function_stands_in_for_the_function():
    @tj.compile
    def f(x, k=2):
        """Doc."""
        return x * k

    assert (f.__name__, f.__doc__, f.__wrapped__(tj.ones(1)).item()) == ("f", "Doc.", 2.0)
    net = tj.nn.Linear(2, 2)
    c = tj.compile(net)
    c.eval()
    assert (net.training, c.training, next(iter(c.parameters())) is net.weight) == (False, False, True)
    c.flag = 3
    assert net.flag == 3


def test_explain_says_what_runs_and_what_does_not():
    def f(x):
        if x.sum() < 0:
            open(__file__).close()
        return x + 1

    c = tj.compile(f)
    for v in (1.0, 1.0, 1.0, 1.0, -1.0, -1.0, -1.0, -1.0, 1.0):
        c(tj.tensor([v]))
    text = c.explain()
    assert "2 of 9 calls ran compiled" in text
    assert "io.open" in text
    assert "this path stays eager" in text
    assert c.graphs()[0].startswith("graph @")


def test_a_profiler_does_not_keep_calls_from_compiling():
    c = tj.compile(lambda x: x + 1)
    profiler = cProfile.Profile()
    profiler.enable()
    try:
        for _ in range(6):
            assert c(tj.zeros(1)).item() == 1
    finally:
        profiler.disable()
    assert c.compiled_calls


def test_profile_and_trace_functions_see_a_recording_and_stay():
    for get, put in ((sys.getprofile, sys.setprofile), (sys.gettrace, sys.settrace)):
        c, before, events = tj.compile(lambda x: x + 1), get(), []

        def notes(frame, event, arg, events=events):
            events.append(event)

        put(notes)
        try:
            for _ in range(6):
                c(tj.zeros(1))
            assert get() is notes
        finally:
            put(before)
        assert c.compiled_calls
        assert events


def test_what_a_collection_runs_is_not_seen_by_a_recording():
    c, ran = tj.compile(lambda x: [x * k for k in range(50)][-1] + 1), []

    def note(phase, info):
        ran.append(phase)

    gc.callbacks.append(note)
    before = gc.get_threshold()
    gc.set_threshold(1, 1, 1)  # whenever it may
    try:
        for _ in range(6):
            c(tj.zeros(1))
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(note)
    assert ran
    assert c.compiled_calls, c.explain()
    assert gc.isenabled()


def test_a_recording_leaves_nothing_watched():
    def fails(x):
        raise ValueError(x)

    for f in (lambda x: x + 1, fails):
        for _ in range(4):
            with contextlib.suppress(ValueError):
                tj.compile(f, hot=1)(tj.zeros(1))
            assert not tower.watched


def test_python_code_that_no_hook_saw_is_noticed_again_and_again():
    """Also where the interpreter has specialized the place for the user's class."""

    class Index:
        def __init__(self):
            self.asked = 0

        def __index__(self):
            self.asked += 1
            return 1

    index, seen = Index(), []
    watcher = Watcher(
        lambda code, globals, above: bool(seen.append((code.co_name, globals, above.f_code.co_name))), print
    )
    again = [operator.index(index) for _ in range(50)]
    for _ in range(2):
        seen.clear()
        assert tower.open(watcher)
        for _ in range(3):
            again.append(operator.index(index))
        paused = tower.pause()
        operator.index(index)
        tower.resume(paused)
        tower.close()
        operator.index(index)
        mine = [entry for entry in seen if entry[0] == "__index__"]
        assert [m[2] for m in mine] == ["test_python_code_that_no_hook_saw_is_noticed_again_and_again"] * 3
        assert all(m[1] is globals() for m in mine)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="frames are watched by sys.monitoring")
def test_a_frame_evaluation_function_that_others_replaced_is_put_back():
    api, seen = ctypes.pythonapi, []
    interpreter, put = api.PyInterpreterState_Get, api._PyInterpreterState_SetEvalFrameFunc
    interpreter.restype, put.restype, put.argtypes = ctypes.c_void_p, None, (ctypes.c_void_p, ctypes.c_void_p)
    default = ctypes.cast(api._PyEval_EvalFrameDefault, ctypes.c_void_p).value
    watcher = Watcher(lambda code, globals, above: bool(seen.append(code.co_name)), print)

    def plain():
        pass

    assert tower.open(watcher)
    put(interpreter(), default)  # as another tool that goes on with the interpreter's
    tower.close()
    assert tower.open(watcher)
    plain()
    tower.close()
    assert "plain" in seen


def test_what_a_watcher_raises_ends_the_call_it_was_told_of():
    def told(code, globals, above):
        if code.co_name == "refused":
            raise LookupError(code.co_name)
        return True

    def refused():
        return 1

    assert tower.open(Watcher(told, print))
    try:
        with pytest.raises(LookupError, match="refused"):
            refused()
    finally:
        tower.close()
    assert refused() == 1


def test_recursion_too_deep_to_record_stays_eager():
    def deep(x, n):
        return x if n == 0 else deep(x + 1, n - 1)

    c, limit = tj.compile(deep), sys.getrecursionlimit()

    def calls():
        sys.setrecursionlimit(3000)
        try:
            return [c(tj.zeros(1), 700).item() for _ in range(5)]
        finally:
            sys.setrecursionlimit(limit)

    assert calls() == [700.0] * 5


def test_an_instrumented_copy_kept_in_the_store_is_the_same():
    def f(x, *args, k=(1, 2), **more):
        box = {v: i for i, v in enumerate(args)}
        try:
            return [-x + v for v in k if v in {1, 2}], f"{box!r:>4}", lambda: x, more.get("a", 1.5) ** 2
        except (KeyError, ValueError):
            x.a[0] += 1

    named = {"NULL": instrument.NULL, **instrument._TABLE}
    written = instrument._written(f.__code__)
    copies.keep(f.__code__, written, named)
    found = copies.find(f.__code__, named)
    assert found == written
    assert all(a is b for a, b in zip(found.co_consts, written.co_consts) if not isinstance(a, (str, tuple)))


def test_what_the_librarys_modules_call_is_no_unseen_code():
    """A recording refuses Python frames of modules it does not know, so each that its own modules use must be one."""
    found = set()
    for name, module in list(sys.modules.items()):
        if name == "tracejit" or not is_library(name):
            continue
        for v in vars(module).values():
            home = v.__name__ if isinstance(v, types.ModuleType) else getattr(v, "__module__", None)
            if isinstance(v, (types.FunctionType, types.ModuleType, type)) and isinstance(home, str):
                known = not home.startswith("tracejit") or is_library(home) or is_recorder(home)
                found |= set() if known else {(name, home)}
    assert not found


def test_a_gradient_rule_that_is_derived_while_a_call_is_recorded_is_no_unseen_code():
    w = tj.ones(3, requires_grad=True)

    @tj.compile
    def f(x):
        loss = (w * x).tanh().sum()
        (g,) = tj.autograd.grad(loss, w)
        return g

    f(tj.ones(3))
    vjp_rule.cache_clear()
    for _ in range(3):
        f(tj.ones(3))
    assert f.compiled_calls == 1, f.explain()


def test_what_is_remembered_of_places_is_bounded():
    """Also where only tensors move: owners come and go, and each has places of its own."""
    memory, first, second = Memory(), tj.ones(1), tj.ones(1)
    for place in range(10_000):
        memory.moves(place, (first,))
        memory.moves(place, (second,))
    assert len(memory.moving) <= 4097 and len(memory.tensors) <= 4097
