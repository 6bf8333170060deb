"""Words of memory that stand for guards: what must move them does, what need not does not, and no address dangles."""

import array
import functools
import gc
import random
import sys
import threading
import types
import weakref

import numpy as np
import pytest

import tracejit as tj
from tracejit.runtime import guards
from tracejit.tensor.jit import DOMAIN
from tracejit.trace.guard import Checker, build
from tracejit.trace.objects import ABSENT, stamp_of
from tracejit.trace.recorder import Cell

AT = guards.layout()
pytestmark = pytest.mark.skipif(AT.type is None or guards.first_difference() is None, reason="no native guards here")


class Box:
    """Something with attributes."""

    kind = "box"

    def __init__(self, **kw):
        self.__dict__.update(kw)


class Slotted:
    """Without a __dict__."""

    __slots__ = ("__weakref__", "a", "b")


def guard(*cells):
    return build([Cell(*c, "model.py:12") for c in cells], DOMAIN, lambda _: None)


def native(g):
    """The verdict of the words alone: the row that differs, -1, or None where Python still looks at some cell."""
    checker = g.check.__self__
    assert isinstance(checker, Checker)
    assert checker.laid is not None
    table, rest = checker.laid
    return checker.walk(*table.place) if rest is None else None


def facts(t):
    return ("tensor", t, None, DOMAIN.facts(t))


# -- one change that must be caught, one that must pass without asking Python: (cell, catch, pass, native here)


def attribute():
    box, other = Box(k=1, j=2), Box(k=1)
    return ("ivar", box, "k", 1), lambda: setattr(box, "k", 2), lambda: setattr(other, "k", 3), AT.shared_versions


def attribute_of_a_replaced_namespace():
    box = Box(k=1)
    box.__dict__ = {"k": 1}
    return ("ivar", box, "k", 1), lambda: setattr(box, "k", 2), lambda: setattr(box, "__class__", Box), True


def namespace_replaced():
    box = Box(k=1)
    return (
        ("ivar", box, "k", 1),
        lambda: setattr(box, "__dict__", {}),
        lambda: box.__dict__.get("k"),
        AT.shared_versions,
    )


def attribute_of_a_module():
    module = types.ModuleType("m")
    module.k = 1
    return ("ivar", module, "k", 1), lambda: setattr(module, "k", 2), lambda: module.k, True


def attributes():
    box = Box(k=1)
    cell = ("ivars", box, None, (("k", 1),))
    return cell, lambda: setattr(box, "new", 2), lambda: setattr(Box(), "new", 2), AT.shared_versions


def entry():
    d = {"a": 1, "b": [1]}
    return ("item", d, "a", 1), lambda: d.update(a=True), lambda: d["b"].append(2), True


def entry_under_a_tensor():
    p = tj.zeros(1)
    d = {p: 1}
    return ("item", d, p, 1), lambda: d.__setitem__(p, 2), lambda: p.add_(1), True


def absent_entry():
    d = {}
    return ("item", d, "a", ABSENT), lambda: d.setdefault("a"), lambda: d.get("a"), True


def global_variable():
    space = {"k": 1}
    exec("def write():\n global k\n k = 2\ndef read():\n return k", space)
    return ("item", space, "k", 1), space["write"], space["read"], True


def whole_dict():
    d = {"a": 1, "b": 2}
    return ("dict", d, None, (("a", 1), ("b", 2))), lambda: d.update(a=d.pop("a")), lambda: dict(d), True


def elements():
    inner = [0]
    x = [1, inner]
    return ("list", x, None, (1, inner)), x.reverse, lambda: inner.append(1), True


def longer_list():
    x = [1]
    return ("list", x, None, (1,)), lambda: x.append(2), lambda: x[:], True


def empty_list():
    x = []
    return ("list", x, None, ()), lambda: x.append(2), lambda: x[:], True


def grown_and_shrunk_list():
    x = [1, 2]
    return ("list", x, None, (1, 2)), x.clear, lambda: (x.extend(range(10000)), x.__delitem__(slice(2, None))), True


def class_entry():
    class C:
        k = 1

    return ("class", C, "k", 1), lambda: setattr(C, "k", 2), lambda: setattr(C(), "k", 5), True


def class_entry_removed():
    class C:
        k = 1

    return ("class", C, "k", 1), lambda: delattr(C, "k"), lambda: C.k, True


def bases():
    class P:
        pass

    class Q:
        pass

    class C(P):
        pass

    return ("mro", C, None, C.__mro__), lambda: setattr(C, "__bases__", (Q,)), lambda: setattr(C, "k", 1), True


def whole_class():
    class P:
        pass

    class C(P):
        pass

    return ("stamp", C, None, stamp_of(C)), lambda: setattr(P, "__len__", len), lambda: setattr(C(), "k", 1), True


def metaclass():
    class M(type):
        pass

    class C(metaclass=M):
        pass

    return ("stamp", C, None, stamp_of(C)), lambda: setattr(M, "__len__", len), lambda: setattr(C(), "k", 1), True


def closure():
    k, j = 1.0, 0

    def write():
        nonlocal k
        k = -0.0

    def other():
        nonlocal j
        j += 1

    return ("closure", write.__closure__[0], None, 1.0), write, other, True


def closure_of_an_object():
    k = Box()

    def write():
        nonlocal k
        k = Box()

    return ("closure", write.__closure__[0], None, k), write, lambda: setattr(k, "a", 1), True


def empty_closure():
    cell = types.CellType()
    return ("closure", cell, None, ABSENT), lambda: setattr(cell, "cell_contents", 1), lambda: cell, True


def slot():
    s = Slotted()
    s.a = 1
    return ("member", s, Slotted.a, 1), lambda: setattr(s, "a", 1.0), lambda: setattr(s, "b", 2), True


def empty_slot():
    s = Slotted()
    return ("member", s, Slotted.a, ABSENT), lambda: setattr(s, "a", None), lambda: setattr(s, "b", 2), True


def class_of_an_object():
    class Other(Box):
        pass

    box = Box()
    return ("type", box, None, Box), lambda: setattr(box, "__class__", Other), lambda: setattr(box, "k", 1), True


def function(change, touch=lambda f: setattr(f, "k", 1)):
    def f(a=1, *, b=2):
        return a

    cell = ("function", f, None, (f.__code__, f.__defaults__, (("b", 2),)))
    return cell, lambda: change(f), lambda: touch(f), True


def code():
    return function(lambda f: setattr(f, "__code__", (lambda a: a).__code__))


def defaults():
    return function(lambda f: setattr(f, "__defaults__", (1.5,)))


def keyword_defaults():
    return function(lambda f: f.__kwdefaults__.update(b=3))


def keyword_defaults_removed():
    return function(lambda f: setattr(f, "__kwdefaults__", None))


def tensor_asks_for_gradients():
    t = tj.zeros(2, 3)
    return facts(t), t.requires_grad_, lambda: t.add_(1), True


def tensor_of_another_array(array):
    t = tj.zeros(2, 3)
    return facts(t), lambda: setattr(t, "_array", array), lambda: setattr(t, "_array", np.ones((2, 3), "f4")), "later"


def another_dtype():
    return tensor_of_another_array(np.zeros((2, 3), "f8"))


def another_rank():
    return tensor_of_another_array(np.zeros(6, "f4"))


def another_shape():
    return tensor_of_another_array(np.zeros((3, 2), "f4"))


def other_strides():
    return tensor_of_another_array(np.zeros((3, 2), "f4").T)


def scalar_tensor():
    t = tj.zeros(())
    return facts(t), lambda: setattr(t, "_array", np.zeros(1, "f4")), lambda: t.add_(1), True


def tensor_becomes_a_view():
    t = tj.zeros(2)
    return facts(t), lambda: setattr(t, "_parent", tj.zeros(2)), lambda: t.add_(1), True


def tensor_goes_on_the_tape():
    t, w = tj.zeros(2), tj.zeros(2, requires_grad=True)
    return facts(t), lambda: t.add_(w), lambda: t.add_(1), True


def no_gradient():
    t = tj.zeros(2, requires_grad=True)
    return ("grad", t, None, None), lambda: setattr(t, "grad", tj.ones(2)), lambda: t.detach().add_(1), True


def gradient(later):
    t = tj.zeros(2, requires_grad=True)
    t.grad = tj.ones(2)
    cell = ("grad", t, None, DOMAIN.facts(t.grad))
    return cell, lambda: setattr(t, "_grad", later), lambda: setattr(t, "grad", tj.zeros(2)), True


def gradient_removed():
    return gradient(None)


def gradient_of_another_shape():
    return gradient(tj.ones(3))


def gradient_that_asks_for_one():
    return gradient(tj.ones(2, requires_grad=True))


def gradient_of_another_class():
    return gradient(tj.nn.Parameter(tj.ones(2), requires_grad=False))


def hooks():
    t = tj.zeros(2, requires_grad=True)
    return ("hooks", t, None, False), lambda: t.register_hook(lambda g: g), lambda: t.detach().add_(1), True


CASES = [
    attribute, attribute_of_a_replaced_namespace, namespace_replaced, attribute_of_a_module, attributes, entry,
    entry_under_a_tensor, absent_entry, global_variable, whole_dict, elements, longer_list, empty_list,
    grown_and_shrunk_list, class_entry, class_entry_removed, bases, whole_class, metaclass, closure,
    closure_of_an_object, empty_closure, slot, empty_slot, class_of_an_object, code, defaults, keyword_defaults,
    keyword_defaults_removed, tensor_asks_for_gradients, another_dtype, another_rank, another_shape, other_strides,
    scalar_tensor, tensor_becomes_a_view, tensor_goes_on_the_tape, no_gradient, gradient_removed,
    gradient_of_another_shape, gradient_that_asks_for_one, gradient_of_another_class, hooks,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # setting a shape or dtype in place
@pytest.mark.parametrize("make", [tj.Tensor, tj.from_numpy, tj.as_tensor])
def test_the_array_object_of_a_tensor_is_its_own(make):
    a = np.zeros((2, 3), "f4")
    t = make(a)
    g = guard(facts(t))
    assert g.check() == -1
    a.shape = (3, 2)
    a.dtype = np.int32
    a.flags.writeable = False
    assert t.shape == (2, 3) and t.dtype is tj.float32 and t._array.flags.writeable
    assert native(g) == g.check() == g.python() == -1
    for export in (t.numpy(), np.asarray(t)):
        export.shape = (6,)
    assert t.shape == (2, 3) and g.check() == g.python() == -1


@pytest.mark.parametrize("case", CASES, ids=lambda f: f.__name__)
def test_what_moves_the_words(case):
    cell, catch, let_pass, is_native = case()
    g = guard(cell)
    assert g.check() == -1
    if not is_native or (AT.dict_version is None and cell[0] in "ivar ivars item dict class stamp function".split()):
        assert native(g) is None
    else:
        assert native(g) == -1
        let_pass()
        if is_native == "later":  # asked once, then the words are others
            assert native(g) >= 0
            assert g.check() == -1
            let_pass()
        assert native(g) == -1
    assert g.check() == -1
    catch()
    assert native(g) != -1
    assert g.check() == g.python() == 0


@pytest.mark.skipif(AT.dict_version is None, reason="dicts have no version here")
def test_a_write_beside_the_point_is_asked_about_once():
    d = {"a": 1, "b": 0}
    g = guard(("item", d, "a", 1))
    assert g.check() == -1
    d["b"] = 1
    assert native(g) > 0
    assert g.check() == -1
    assert native(g) == -1
    d["a"] = 2
    assert g.check() == 0


def test_a_restless_dict_is_left_to_python():
    d, box = {"a": 1, "b": 0}, [3]
    g = guard(("item", d, "a", 1), ("list", box, None, (3,)))
    for n in range(20):
        d["b"] = n
        assert g.check() == -1
    assert native(g) is None
    d["a"] = 2
    assert g.check() == 0
    d["a"] = 1
    assert g.check() == -1
    box[0] = 4
    assert g.check() == 1


def test_the_reason_names_the_cell_that_changed():
    d, box = {"a": 1, "b": 0}, Box(k=2.0)
    g = guard(("item", d, "a", 1), ("item", d, "b", 0), ("ivar", box, "k", 2.0))
    assert g.check() == -1
    d["b"] = 5
    assert g.reason(g.check()) == "the entry b was 0, is now 5 (read at model.py:12)"
    d["b"] = 0
    assert g.check() == -1
    box.k = -2.0
    assert g.reason(g.check()).startswith("attribute k of a test_guard_table.Box was 2.0, is now -2.0")


def test_equal_bits_in_another_object_hold():
    def f():
        return k

    k = 1.5
    g = guard(("closure", f.__closure__[0], None, 1.5))
    assert g.check() == -1
    f.__closure__[0].cell_contents = float("1.5")
    assert g.check() == -1
    f.__closure__[0].cell_contents = 1
    assert g.check() == 0


def test_an_owner_that_died_is_not_read():
    box = Slotted()
    box.a = 1
    g = guard(("member", box, Slotted.a, 1))
    assert g.check() == -1
    del box
    gc.collect()
    assert native(g) == 0  # deaths, before the slot
    assert g.check() == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_death_counts_though_what_it_calls_is_interrupted():
    def interrupted(_):
        raise KeyboardInterrupt

    box = Slotted()
    box.a = 1
    g = build([Cell("member", box, Slotted.a, 1, None)], DOMAIN, interrupted)
    assert g.check() == -1
    del box
    gc.collect()
    assert native(g) == 0
    assert g.check() == 0


def test_a_callback_before_the_count_reads_no_memory_given_back():
    # A callback made later is called earlier: the object is still there then, and its words are as they were.
    box, seen = Slotted(), []
    box.a = 1
    g = guard(("member", box, Slotted.a, 1))
    assert g.check() == -1
    later = weakref.ref(box, lambda _: seen.append((g.check(), g.python())))
    del box
    gc.collect()
    assert later() is None
    assert len(seen) == 1
    assert native(g) == 0
    assert g.check() == 0


def test_what_is_garbage_together_with_its_guard_and_lives_again():
    # Weak references that are garbage themselves call nobody, so nobody counts.
    again = []

    class Holder:
        def __del__(self):
            again.append(self)

    h = Holder()
    h.me, h.box = h, Slotted()
    h.box.a = 1
    h.guard = guard(("member", h.box, Slotted.a, 1))
    assert h.guard.check() == -1
    del h
    gc.collect()
    g = again[0].guard
    assert native(g) == 1  # the checker's own life
    assert g.check() == 0
    del again[0].box
    gc.collect()
    assert native(g) == 1
    assert g.check() == 0


def test_a_new_array_is_asked_about_until_words_follow_it():
    tensors = [tj.zeros(2, 3) for _ in range(5)]
    g = guard(*map(facts, tensors))
    assert g.check() == -1
    for t in tensors:
        for _ in range(3):
            t._array = np.ones((2, 3), "f4")
            gc.collect()
            assert g.check() == g.python() == -1
            assert native(g) == -1
    table, _ = g.check.__self__.laid
    assert table.chained > 0
    tensors[3]._array = np.ones((3, 2), "f4")
    assert native(g) >= 0  # 0 where the array before lies where the first one did, and is counted when it dies
    assert g.check() == g.python() == 3


def test_an_array_that_died_under_a_tensor_with_none():
    t = tj.zeros(2)
    g = guard(facts(t))
    assert g.check() == -1
    a = t._array
    t._array = np.zeros(3, "f4")  # the array is alive, the slot has moved
    assert native(g) > 0
    assert g.check() == 0
    t._array = a
    assert g.check() == g.python() == native(g) == -1


@pytest.mark.skipif(AT.dict_version is None, reason="dicts have no version here")
def test_a_namespace_and_its_object_share_their_words():
    def made():
        box = Box()
        box.__dict__ = space = {"k": 1, "j": 2}
        return box, space, guard(("ivar", box, "k", 1), ("has", space, "j", None))

    box, space, g = made()
    assert g.check() == -1
    table, _ = g.check.__self__.laid
    assert (table.plain, table.chained) == (4, 0)  # deaths, the checker's life, which dict, its version
    box.k = 2
    assert g.check() == g.python() == 0
    box, space, g = made()
    assert g.check() == -1
    del box.j
    assert g.check() == g.python() == 1
    box, space, g = made()
    assert g.check() == -1
    box.__dict__ = dict(space)  # the same to the object; that of the other cell is `space` still
    assert g.check() == g.python() == -1
    del space["j"]
    assert native(g) > 0
    assert g.check() == g.python() == 1
    box, space, g = made()
    assert g.check() == -1
    del box
    gc.collect()
    assert g.check() == g.python() == 0


def test_guards_keep_no_model_alive():
    refs = []

    def make():
        box = Box(child=Box(), k=1.0, layers=[Box()])
        t = tj.zeros(2)
        refs.append(guard(("ivar", box, "child", box.child), facts(t)))
        assert refs[-1].check() == -1
        return weakref.ref(box), weakref.ref(t), weakref.ref(t._array)

    watched = make()
    gc.collect()
    assert [w() for w in watched] == [None] * 3
    assert refs[0].check() >= 0


def test_guards_keep_no_class_alive():
    class S:
        __slots__ = ("__weakref__", "a")

    s = S()
    s.a = 1
    g = guard(("member", s, S.a, 1), ("type", s, None, S), ("class", S, "b", ABSENT))
    assert g.check() == -1
    watched = weakref.ref(S)
    del s, S
    gc.collect()
    assert watched() is None
    assert g.check() >= 0


def test_objects_that_come_and_go_under_living_guards():
    # Any dangling address would be read here: owners die, their memory is used again, the guards are still asked.
    rng, alive, kept = random.Random(0), [], []
    for n in range(1500):
        box, t, s = Box(k=n, d={"a": n}, x=[n, 1.5]), tj.zeros(n % 3 + 1, requires_grad=True), Slotted()
        s.a = t
        t.grad = tj.ones(n % 3 + 1)

        class C(Box):
            k = n

        c = C(k=1)

        def f(a=n, *, b=n):
            return a

        cells = [
            ("ivar", box, "k", n), ("item", box.__dict__["d"], "a", n), ("list", box.x, None, (n, 1.5)), facts(t),
            ("grad", t, None, DOMAIN.facts(t.grad)), ("member", s, Slotted.a, t), ("class", C, "k", n),
            ("mro", C, None, C.__mro__), ("type", c, None, C),
            ("function", f, None, (f.__code__, f.__defaults__, (("b", n),))),
        ]  # fmt: skip
        g = guard(*rng.sample(cells, 4))
        assert g.check() == -1
        alive.append((box, t, s, C, c, f))
        kept.append(g)
        if len(alive) > 20:
            alive.pop(rng.randrange(20))
        if len(kept) > 60:
            kept.pop(rng.randrange(60))
        for old in rng.sample(kept, min(len(kept), 5)):
            assert (old.check() < 0) == (old.python() < 0)
        if n % 300 == 0:
            gc.collect()


def test_array_metadata_given_back_under_a_living_guard():
    t = tj.zeros(2, 3)
    g = guard(facts(t))
    assert g.check() == -1
    for rank in [0, 1, 5, 2, 30, 2]:
        t._array = np.zeros((1,) * rank, "f4")
        churn = [np.zeros((1,) * (k % 9)) for k in range(200)]
        assert g.check() == g.python() == 0
        del churn
    t._array = np.zeros((2, 3), "f4")
    assert g.check() == -1


def test_an_empty_slot_is_not_followed():
    t = tj.zeros(2, requires_grad=True)
    t.grad = tj.ones(2)
    g = guard(("grad", t, None, DOMAIN.facts(t.grad)))
    assert g.check() == -1
    del t._grad
    assert native(g) == 3  # deaths, the checker's own life, the slot, its class
    del t._array
    t._grad = t
    assert native(g) >= 0


# -- the words against the text


def world(rng):
    """Some cells over fresh state, and writes that may change them."""
    box, d, x, s, t = Box(a=1, b=2.0), {"a": 1, "b": None}, [1, "x", 2.5], Slotted(), tj.zeros(2, 3)
    s.a = (1, 2.0)
    t.grad = tj.ones(2, 3)

    class P:
        k = 1

    class C(P):
        j = 2

    def f(a=1, *, b=2):
        return a, k

    k = 3
    cells = [
        ("ivar", box, "a", 1), ("ivar", box, "c", ABSENT), ("ivars", box, None, tuple(box.__dict__.items())),
        ("item", d, "a", 1), ("item", d, "c", ABSENT), ("dict", d, None, tuple(d.items())), ("list", x, None, tuple(x)),
        ("member", s, Slotted.a, s.a), ("member", s, Slotted.b, ABSENT), facts(t),
        ("grad", t, None, DOMAIN.facts(t.grad)), ("hooks", t, None, False), ("class", P, "k", 1),
        ("class", C, "k", ABSENT), ("mro", C, None, C.__mro__), ("stamp", C, None, stamp_of(C)),
        ("type", box, None, Box), ("closure", f.__closure__[0], None, 3),
        ("function", f, None, (f.__code__, f.__defaults__, (("b", 2),))),
    ]  # fmt: skip
    values = (1, 1, 1, True, 1.0, 2.0, -0.0, None, (1, 2.0), "x", 3)
    names = ("a", "b", "c")

    def set_class(c):
        def write():
            setattr(c, rng.choice("kj"), rng.choice(values))

        return write

    def drop(target, name):
        if name in target:
            del target[name]

    writes = [
        lambda: setattr(box, rng.choice(names), rng.choice(values)),
        lambda: drop(box.__dict__, rng.choice(names)),
        lambda: setattr(box, "__dict__", dict(box.__dict__)),
        lambda: box.__dict__.update(a=1),
        lambda: d.__setitem__(rng.choice(names), rng.choice(values)),
        lambda: drop(d, rng.choice(names)),
        lambda: x.__setitem__(0, rng.choice(values)),
        lambda: x.append(1),
        lambda: x.__delitem__(slice(3, None)),
        lambda: setattr(s, rng.choice("ab"), rng.choice(values)),
        lambda: s.__setattr__("a", (1, 2.0)),
        lambda: t.requires_grad_(rng.random() < 0.5),
        lambda: setattr(t, "_array", rng.choice([np.zeros((2, 3), "f4"), np.zeros((3, 2), "f4"), t._array.copy()])),
        lambda: setattr(t, "_grad", rng.choice([None, tj.ones(2, 3), tj.zeros(2, 3), tj.ones(3)])),
        set_class(P),
        set_class(C),
        lambda: setattr(f.__closure__[0], "cell_contents", rng.choice(values)),
        lambda: setattr(f, "__defaults__", rng.choice([(1,), f.__defaults__])),
        lambda: f.__kwdefaults__.update(b=rng.choice(values)),
        lambda: setattr(box, "unrelated", rng.random()),
    ]
    return cells, writes


@pytest.mark.parametrize("seed", range(40))
def test_words_and_text_agree_whatever_is_written(seed):
    rng = random.Random(seed)
    cells, writes = world(rng)
    made = [guard(*rng.sample(cells, rng.randrange(1, 6))) for _ in range(12)]
    assert all(g.check() == -1 for g in made)
    undone = 0
    for _ in range(120):
        rng.choice(writes)()
        for g in made:
            fast, slow = g.check(), g.python()
            assert (fast < 0) == (slow < 0), (g.reason(max(fast, slow)), fast, slow)
            undone += slow < 0
    assert undone  # some hold to the end of their lives


def test_threads_that_write_and_ask():
    d, x, box = {"a": 1, "n": 0}, [1, 2], Box(k=1)
    g = guard(("item", d, "a", 1), ("list", x, None, (1, 2)), ("ivar", box, "k", 1))
    assert g.check() == -1
    wrong, stop = [], threading.Event()

    def write():
        n = 0
        while not stop.is_set():
            n += 1
            d["n"] = box.j = n
            x.append(n)
            x.pop()

    def ask():
        for _ in range(3000):
            row = g.check()
            if row not in (-1, 2):  # the list is longer at times
                wrong.append(row)

    writers, askers = [threading.Thread(target=f) for f in [write] * 2], [threading.Thread(target=ask) for _ in "ab"]
    for t in writers + askers:
        t.start()
    for t in askers:
        t.join()
    stop.set()
    for t in writers:
        t.join()
    assert not wrong
    del x[2:]
    assert g.check() == -1
    d["a"] = 2
    assert g.check() == 1


def test_compiled_functions_use_words():
    k = {"scale": 2.0}

    @tj.compile
    def f(x):
        return x * k["scale"]

    x = tj.ones(3)
    for _ in range(4):
        assert f(x).tolist() == [2.0] * 3
    checker = f.traces()[0].recording.guard.check.__self__
    assert checker.laid is not None
    k["scale"] = 3.0
    assert f(x).tolist() == [3.0] * 3
    k["scale"] = 2.0
    assert f(x).tolist() == [2.0] * 3


def test_nothing_native_where_the_self_test_fails(monkeypatch):
    monkeypatch.setattr(guards, "layout", guards.Layout)
    d = {"a": 1}
    g = guard(("item", d, "a", 1))
    assert g.check is g.python
    assert g.check() == -1
    d["a"] = 2
    assert g.check() == 0


@pytest.mark.skipif(sys.version_info[:2] not in ((3, 11), (3, 12)), reason="the versions whose dicts we know")
def test_versions_are_trusted_where_they_are_known_to_be_right():
    assert AT.dict_version is not None
    assert AT.shared_versions
    assert None not in (AT.class_dict, AT.mro, AT.cell, AT.list, AT.code, AT.referent)
    assert AT.slots
    assert AT.array


def test_a_row_may_start_from_what_another_loaded():
    mark = object()
    box = [mark]
    chunk = guards.entries(box, box)
    table = guards.Table([[chunk]], [box])
    walk = functools.partial(guards.first_difference(), *table.place)
    assert walk() == -1
    box[0] = None
    assert walk() == 2
    box.clear()
    assert walk() == 0


def test_a_tensor_is_one_wide_row_of_which_every_word_counts():
    class Own(tj.Tensor):
        __slots__ = ()

    def class_(t):
        t.__class__ = Own

    def memory(t):
        t._array = np.zeros(3, "f4")

    def leaf(t):
        t.requires_grad_()

    def parent(t):
        t._parent, t._view = tj.zeros(3), None

    for change in (class_, memory, leaf, parent):
        tensors = [tj.zeros(3) for _ in range(11)]
        for k in (0, 7, 10):
            t = tensors[k]
            g = guard(*map(facts, tensors))
            assert g.check() == -1
            table, rest = g.check.__self__.laid
            assert (table.wide, table.chained, rest) == (len(tensors), 0, None)
            assert native(g) == -1
            keep = t._array
            change(t)
            assert native(g) == table.plain + k, change
            assert table.owner[native(g)] == k + 1
            tensors[k] = tj.nn.Parameter(tj.zeros(3))
            del keep


def test_rows_of_every_width_are_told_apart():
    """Plain, wide and chained ones in one table: the number of the first that differs."""
    words = [array.array("Q", range(k, k + 6)) for k in range(9)]
    at = [w.buffer_info()[0] for w in words]

    def wide(k):
        return guards.Together((0, guards.DROP, at[k] + 8 * i, guards.ALL, k + i) for i in (2, 0, 3, 1))

    boxes = [[object()] for _ in range(3)]
    groups = [
        [guards.address(at[0], 0), wide(1)],
        [wide(2), guards.address(at[3], 3), guards.entries(boxes[0], boxes[0])],
        [guards.entries(boxes[1], boxes[1]), wide(4), guards.Together(guards.address(at[5] + 8, 6))],
        [guards.Together((0, guards.DROP, at[6] + 8 * i, guards.ALL, 6 + i) for i in (0, 1, 2, 4)), wide(7)],
    ]
    table = guards.Table(groups, [None] * 4)
    walk = functools.partial(guards.first_difference(), *table.place)
    assert (table.plain, table.wide) == (9, 4)  # each list has a plain one: where its elements lie
    assert walk() == -1
    rows = {(0, 0): 0, (3, 0): 1, (5, 1): 4, (6, 4): 8} | {(k, 3): 9 + n for n, k in enumerate((1, 2, 4, 7))}
    for (k, i), row in rows.items():
        words[k][i] ^= 1 << 63
        assert walk() == row, (k, i)
        words[k][i] ^= 1 << 63
    words[1][4] += 1  # behind a wide row
    assert walk() == -1
    old, boxes[1][0] = boxes[1][0], None
    assert walk() >= table.plain + table.wide + table.chained // 2
    boxes[1][0] = old
    words[7][0] += 1
    assert table.replace(
        3, groups[3][:1] + [guards.Together((0, 3, at[7] + 8 * i, guards.ALL, words[7][i]) for i in range(4))], None
    )
    assert walk() == -1
    assert not table.replace(3, [wide(7)], None)
