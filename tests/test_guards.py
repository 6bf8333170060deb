"""For each kind of guard: the recorded world passes, a changed one fails, and the reason says what changed."""

import abc
import types

import pytest

import tracejit as tj
from tracejit.tensor.jit import DOMAIN
from tracejit.trace.guard import build, same_value
from tracejit.trace.key import flatten
from tracejit.trace.objects import ABSENT, bits, stamp_of
from tracejit.trace.recorder import Cell


def guard_of(kind, owner, key, value, deaths=None):
    return build([Cell(kind, owner, key, value, "model.py:12")], DOMAIN, (deaths if deaths is not None else []).append)


def verdict(guard):
    row = guard.check()
    return "holds" if row < 0 else guard.reason(row)


class Box:
    """Something with attributes."""

    def __init__(self, **kw):
        self.__dict__.update(kw)


def test_attribute():
    box = Box(k=2.0)
    g = guard_of("ivar", box, "k", 2.0)
    assert verdict(g) == "holds"
    box.k = float("2.0")  # another object of the same bits
    assert verdict(g) == "holds"
    box.k = 3.0
    assert verdict(g) == "attribute k of a test_guards.Box was 2.0, is now 3.0 (read at model.py:12)"
    del box.k
    assert verdict(g) == "attribute k of a test_guards.Box was 2.0, is now absent (read at model.py:12)"


def test_absent_attribute():
    box = Box()
    g = guard_of("ivar", box, "k", ABSENT)
    assert verdict(g) == "holds"
    box.k = None
    assert verdict(g) == "attribute k of a test_guards.Box was absent, is now None (read at model.py:12)"


def test_global():
    space = {"__builtins__": {}, "scale": 2}
    g = guard_of("item", space, "scale", 2)
    assert verdict(g) == "holds"
    space["scale"] = True
    assert verdict(g) == "the global scale was 2, is now True (read at model.py:12)"


def test_entry_under_a_tensor():
    p = tj.zeros(1)
    d = {p: 1}
    g = guard_of("item", d, p, 1)
    assert verdict(g) == "holds"
    d[p] = 2
    assert verdict(g).endswith("changed (read at model.py:12)")


def test_whole_dict_is_compared_in_order():
    d = {"a": 1, "b": 2}
    g = guard_of("dict", d, None, tuple(d.items()))
    assert verdict(g) == "holds"
    d["a"] = d.pop("a")
    assert verdict(g) == "a dict changed (read at model.py:12)"


def test_empty_dict_and_list():
    d, box = {}, []
    g, h = guard_of("dict", d, None, ()), guard_of("list", box, None, ())
    assert (verdict(g), verdict(h)) == ("holds", "holds")
    d[1] = 1
    box.append(1)
    assert (verdict(g), verdict(h)) == ("a dict changed (read at model.py:12)", "a list changed (read at model.py:12)")


def test_list_elements_by_bits_and_identity():
    inner = Box()
    box = [1, 0.0, inner]
    g = guard_of("list", box, None, tuple(box))
    assert verdict(g) == "holds"
    for i, v in ((0, True), (0, 1.0), (1, -0.0), (2, Box())):
        before, box[i] = box[i], v
        assert verdict(g) != "holds"
        box[i] = before
    assert verdict(g) == "holds"


def test_set_in_its_order():
    s = {1, 2}
    g = guard_of("set", s, None, tuple(s))
    assert verdict(g) == "holds"
    s.add(3)
    assert verdict(g) == "a set changed (read at model.py:12)"


def test_attributes_as_a_whole():
    box = Box(a=1)
    g = guard_of("ivars", box, None, tuple(box.__dict__.items()))
    assert verdict(g) == "holds"
    box.b = 2
    assert verdict(g) == "the attributes of a test_guards.Box changed (read at model.py:12)"


def test_slot():
    class S:
        __slots__ = ("a",)

    s = S()
    s.a = 1
    g = guard_of("member", s, S.a, 1)  # S has no __weakref__ slot: it is held
    assert verdict(g) == "holds"
    s.a = 2
    assert verdict(g).startswith("slot a of a test_guards.")


def test_class_entry_and_bases():
    class P:
        k = 1

    class Q:
        k = 2

    class C(P):
        pass

    g, h = guard_of("class", P, "k", 1), guard_of("mro", C, None, C.__mro__)
    assert (verdict(g), verdict(h)) == ("holds", "holds")
    P.k = 5
    C.__bases__ = (Q,)
    assert verdict(g).endswith("P.k was 1, is now 5 (read at model.py:12)")
    assert verdict(h).startswith("the bases of ")


def test_class_as_a_whole():
    class C:
        pass

    g = guard_of("stamp", C, None, stamp_of(C))
    assert verdict(g) == "holds"
    C.__len__ = lambda self: 3
    assert verdict(g).startswith("class ")


def test_class_of_an_object():
    class Other(Box):
        pass

    box = Box()
    g = guard_of("type", box, None, Box)
    assert verdict(g) == "holds"
    box.__class__ = Other
    assert verdict(g).startswith("the class of ")


def test_closure_variable():
    k = 1.0

    def f():
        return k

    def change(v):
        nonlocal k
        k = v

    g = guard_of("closure", f.__closure__[0], None, 1.0)
    assert verdict(g) == "holds"
    change(2.0)
    assert verdict(g) == "a variable of an enclosing function was 1.0, is now 2.0 (read at model.py:12)"


def test_function_code_and_defaults():
    def f(a=1, *, b=2):
        return a

    g = guard_of("function", f, None, (f.__code__, f.__defaults__, (("b", 2),)))
    assert verdict(g) == "holds"
    f.__kwdefaults__["b"] = 3
    assert verdict(g).startswith("code or defaults of test_guards.test_function_code_and_defaults.<locals>.f changed")


def test_function_attribute():
    def f():
        pass

    f.k = 1
    g = guard_of("fattr", f, "k", 1)
    assert verdict(g) == "holds"
    f.k = 2
    assert verdict(g).endswith("was 1, is now 2 (read at model.py:12)")


def test_facts_of_a_tensor():
    t = tj.zeros(2, 3)
    g = guard_of("tensor", t, None, DOMAIN.facts(t))
    assert verdict(g) == "holds"
    t.add_(1)
    assert verdict(g) == "holds"
    t.requires_grad_()
    assert verdict(g).startswith("shape, dtype, strides or requires_grad of a tensor changed")


def test_gradient_slot():
    t = tj.zeros(2, requires_grad=True)
    g = guard_of("grad", t, None, None)
    assert verdict(g) == "holds"
    t.grad = tj.ones(2)
    assert verdict(g) == "the .grad of a tensor changed (read at model.py:12)"
    h = guard_of("grad", t, None, DOMAIN.facts(t.grad))
    t.grad = tj.zeros(2)  # another tensor of the same kind will do: it is read when the trace runs
    assert verdict(h) == "holds"


def test_gradient_hooks():
    t = tj.zeros(2, requires_grad=True)
    g = guard_of("hooks", t, None, False)
    assert verdict(g) == "holds"
    t.register_hook(lambda g: g)
    assert verdict(g).startswith("the gradient hooks of a tensor changed")


def test_abc_registrations():
    class A(abc.ABC):  # noqa: B024
        pass

    g = guard_of("abc", None, None, abc.get_cache_token())
    assert verdict(g) == "holds"
    A.register(int)
    assert verdict(g) == "the registrations of abstract base classes changed (read at model.py:12)"


def test_owner_dies():
    deaths = []
    box = Box(k=1)
    g = guard_of("ivar", box, "k", 1, deaths)
    del box
    assert g.check() == 0
    assert len(deaths) == 1


def test_value_dies():
    deaths = []
    box = Box(child=Box())
    g = guard_of("ivar", box, "child", box.child, deaths)
    assert g.check() == -1
    box.child = None
    assert len(deaths) == 1


@pytest.mark.parametrize(
    ("a", "b"),
    [(1, True), (1, 1.0), (0.0, -0.0), ((1,), (True,)), ("a", b"a"), (None, 0), (1j, complex(-0.0, 1))],
)
def test_values_of_other_types_or_bits_differ(a, b):
    assert not same_value(a, b)
    assert bits(a) != bits(b)


@pytest.mark.parametrize("a", [1, True, 1.5, -0.0, float("nan"), "text", b"bytes", (1, (2.0, "x")), None, 10**30])
def test_equal_bits_are_the_same_value(a):
    copy = eval(repr(a), {"nan": float("nan")})
    assert same_value(a, copy)
    assert bits(a) == bits(copy)


def key(*args, **kwargs):
    return flatten(DOMAIN, args, kwargs, ()).key


def test_key_tells_tensors_apart_by_their_facts():
    x = tj.zeros(2, 3)
    assert key(x) == key(tj.ones(2, 3))
    others = (tj.zeros(3, 2), tj.zeros(2, 3, dtype=tj.float64), tj.zeros(3, 2).t(), tj.zeros(2, 3, requires_grad=True))
    assert all(key(x) != key(other) for other in others)


def test_key_sees_which_arguments_are_one_object():
    x, y, box = tj.zeros(1), tj.zeros(1), [1]
    assert key(x, x) != key(x, y)
    assert key(box, box) != key(box, [1])


def test_key_sees_structure_types_and_order():
    assert key([1, 2]) != key((1, 2))
    assert key([1, True]) != key([1, 1])
    assert key({"a": 1, "b": 2}) != key({"b": 2, "a": 1})
    assert key(a=1, b=2) != key(b=2, a=1)
    assert key(0.0) != key(-0.0)
    assert key(float("nan")) == key(float("nan"))


def test_key_takes_other_objects_by_identity():
    a, b = types.SimpleNamespace(), types.SimpleNamespace()
    assert key(a) == key(a)
    assert key(a) != key(b)


def test_hygiene_of_generated_text():
    box = Box(**{"A": 1, "get": 2, "same": 3, "x": 4})
    cells = [Cell("ivar", box, n, v, None) for n, v in box.__dict__.items()]
    g = build(cells, DOMAIN, [].append)
    assert g.check() == -1
    box.same = 5
    assert verdict(g).startswith("attribute same ")


def test_the_deterministic_flag_has_pytorchs_names_and_is_part_of_every_guard():
    seen = []

    def f(x):
        return x * 2 if tj.are_deterministic_algorithms_enabled() else x * 3

    c = tj.compile(f)
    try:
        for mode in (False, True, False, True):
            tj.use_deterministic_algorithms(mode)
            for _ in range(5):
                seen.append((mode, c(tj.ones(1)).item()))
        assert set(seen) == {(False, 3.0), (True, 2.0)}
        assert c.compiled_calls >= 12
        tj.use_deterministic_algorithms(True, warn_only=True)
        assert tj.is_deterministic_algorithms_warn_only_enabled() and tj.get_deterministic_debug_mode() == 1
        tj.set_deterministic_debug_mode("error")
        assert tj.get_deterministic_debug_mode() == 2 and tj.are_deterministic_algorithms_enabled()
        with pytest.raises(ValueError, match="debug mode"):
            tj.set_deterministic_debug_mode(3)
        with pytest.raises(TypeError, match="takes bools"):
            tj.use_deterministic_algorithms(1)
    finally:
        tj.use_deterministic_algorithms(False)
    assert tj.get_deterministic_debug_mode() == 0


def test_a_call_that_sets_the_deterministic_flag_stays_plain_python():
    def f(x):
        tj.use_deterministic_algorithms(True)
        return x + 1

    c = tj.compile(f)
    try:
        for _ in range(6):
            tj.use_deterministic_algorithms(False)
            c(tj.ones(1))
            assert tj.are_deterministic_algorithms_enabled()
    finally:
        tj.use_deterministic_algorithms(False)
