"""More attacks on the recorder: the machinery of Python itself moves between calls, or while one runs.

As in `attacks.py`: each is a function (T, jit, r), run once with `jit` the identity and once compiled, and must observe the same.
"""

import abc
import asyncio
import bisect
import builtins
import codecs
import collections
import contextlib
import contextvars
import copy
import dataclasses
import decimal
import enum
import fractions
import functools
import gc
import heapq
import importlib
import io
import itertools
import json
import locale
import math
import operator
import os
import pickle
import random
import re
import signal
import string
import struct
import sys
import textwrap
import threading
import time
import types
import warnings
import weakref

import numpy as np

ATTACKS = []
W = 5


def attack(compiles=False):
    def add(fn):
        ATTACKS.append((fn.__name__, fn, compiles))
        return fn

    return add


def warm(r, f, *args, **kwargs):
    for _ in range(W):
        r(f(*args, **kwargs))


class O:
    pass


def module(name, source="", **names):
    """A fresh module, imported under `name`."""
    m = types.ModuleType(name)
    exec(textwrap.dedent(source), m.__dict__)
    m.__dict__.update(names)
    sys.modules[name] = m
    return m


# ---------------------------------------------------------------- C functions that read mutable state


@attack()
def heap_and_bisect_read_lists(T, jit, r):
    heap, keys = [3.0, 1.0, 2.0], [1.0, 2.0, 3.0]
    heapq.heapify(heap)
    f = jit(lambda x: x * heapq.nsmallest(1, heap)[0] + bisect.bisect(keys, 2.5))
    x = T.tensor([1.0])
    warm(r, f, x)
    heapq.heappush(heap, 0.5)
    r(f(x))
    keys.insert(0, 0.0)
    r(f(x))


@attack(compiles=True)
def functools_reduce_over_a_list(T, jit, r):
    values = [1.0, 2.0]
    f = jit(lambda x: functools.reduce(operator.add, values, x))
    x = T.tensor([1.0])
    warm(r, f, x)
    values.append(5.0)
    r(f(x))


@attack()
def itertools_over_outside_state(T, jit, r):
    values, weights = [1.0, 2.0, 3.0], [True, False, True]

    def f(x):
        for a, b in itertools.product(values, values[:1]):
            x = x + a * b
        for a in itertools.compress(values, weights):
            x = x * a
        for a, b in itertools.pairwise(values):
            x = x + (b - a)
        for k, g in itertools.groupby(values, key=lambda v: v > 1):
            x = x + len(list(g)) * (2 if k else 3)
        return x + sum(itertools.islice(itertools.chain(values, weights), 4)) + list(itertools.accumulate(values))[-1]

    f = jit(f)
    x = T.tensor([1.0])
    warm(r, f, x)
    weights[1] = True
    r(f(x))
    values[0] = 4.0
    r(f(x))


@attack()
def an_outside_iterator_is_used_up(T, jit, r):
    it = iter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    f = jit(lambda x: x * next(it, -1.0))
    x = T.tensor([1.0])
    for _ in range(11):
        r(f(x))


@attack()
def an_outside_count_and_cycle(T, jit, r):
    count, cycle = itertools.count(), itertools.cycle([1.0, 2.0, 3.0])
    f = jit(lambda x: x * next(cycle) + next(count))
    for _ in range(9):
        r(f(T.tensor([1.0])))


@attack()
def an_outside_generator_advances(T, jit, r):
    def numbers():
        k = 0.0
        while True:
            got = yield k
            k += 1 if got is None else got

    g = numbers()
    f = jit(lambda x: x * next(g))
    for _ in range(7):
        r(f(T.tensor([1.0])))
    h = jit(lambda x: x * g.send(3.0))
    for _ in range(7):
        r(h(T.tensor([1.0])))


@attack()
def a_deque_with_a_bound(T, jit, r):
    d = collections.deque([1.0, 2.0], maxlen=2)
    f = jit(lambda x: x * d[0] + len(d) + sum(d))
    x = T.tensor([1.0])
    warm(r, f, x)
    d.append(7.0)
    r(f(x))
    d.rotate(1)
    r(f(x))


@attack()
def ordered_dict_move_to_end(T, jit, r):
    d = collections.OrderedDict(a=1.0, b=2.0)

    def f(x):
        for v in d.values():
            x = x * 2 + v
        return x + next(iter(d.values()))

    f = jit(f)
    x = T.tensor([1.0])
    warm(r, f, x)
    d.move_to_end("a")
    r(f(x))
    d["a"] = 9.0
    r(f(x))


@attack()
def ordered_dicts_in_every_way(T, jit, r):
    d = collections.OrderedDict(a=1.0, b=2.0, c=3.0)
    c = collections.Counter(a=1, b=2)
    text = lambda pairs: sum((k + 1) * ord(n[0]) for k, (n, _) in enumerate(pairs))
    fold = lambda x, values: functools.reduce(lambda t, v: t * 2 + v, values, x)
    out = {"z": 0.0}
    x = T.tensor([1.0])
    for body in (
        lambda x: fold(x, d.values()),
        lambda x: fold(x, list(d.values())),
        lambda x: fold(x, dict(d).values()),
        lambda x: fold(x, {**d, "q": 9.0}.values()),
        lambda x: x + text(d.items()),
        lambda x: x + text(list(d.items())),
        lambda x: x + ord(list(d)[0]) + ord(next(iter(d))),
        lambda x: x + ord(next(reversed(d))),
        lambda x: x + text(zip(d, d.values())),
        lambda x: fold(x, [v for v in d.values()]),
        lambda x: x + len(str(d)) + ord(str(d)[14]),
        lambda x: fold(x, collections.OrderedDict(d).values()),
        lambda x: fold(x, d.copy().values()),
        lambda x: fold(x, (d | {"w": 1.0}).values()),
        lambda x: (lambda **k: fold(x, k.values()))(**d),
        lambda x: x * (2 if d == collections.OrderedDict(a=1.0, b=2.0, c=3.0) else 3),
        lambda x: x + sum(i * v for i, v in enumerate(d.values())) + c.most_common(1)[0][1],
        lambda x: out.update(d) or fold(x, out.values()),
    ):
        f = jit(body)
        for name in ("", "a", "b"):
            if name:
                d.move_to_end(name)
            warm(r, f, x)
            out.clear()
            out["z"] = 0.0
        d.move_to_end("a", last=False)
        r(f(x))
        d.move_to_end("b")
        d.move_to_end("c")
        r(f(x))


@attack()
def ordered_dict_popped_and_cycled_inside(T, jit, r):
    d = collections.OrderedDict((str(k), float(k)) for k in range(20))

    def f(x):
        k, v = d.popitem(last=False)
        d[k] = v + 1
        d.move_to_end("5")
        return x * v + next(iter(d.values()))

    f = jit(f)
    for _ in range(8):
        r(f(T.tensor([1.0])))
        r(list(d.items()))


@attack()
def string_formatting_reads_attributes(T, jit, r):
    o = O()
    o.name = "ab"
    template = string.Template("$name")

    def f(x):
        return x * len(f"{o.name:>4}") + len("{0.name}{0.name}".format(o)) + len(template.substitute(vars(o))) + len("%s" % o.name)

    f = jit(f)
    x = T.tensor([1.0])
    warm(r, f, x)
    o.name = "abcdefgh"
    r(f(x))


@attack()
def a_custom_format_method(T, jit, r):
    class A:
        width = 3

        def __format__(self, spec):
            return "x" * (self.width + len(spec))

    a = A()
    f = jit(lambda x: x * len(f"{a:abc}") + len(format(a, "z")))
    x = T.tensor([1.0])
    warm(r, f, x)
    a.width = 7
    r(f(x))
    A.__format__ = lambda self, spec: "y"
    r(f(x))


@attack()
def regular_expressions_and_their_cache(T, jit, r):
    o = O()
    o.pattern = re.compile("a+")
    f = jit(lambda x: x * len(o.pattern.findall("aabaa")) + len(re.sub("b", "", "abab")))
    x = T.tensor([1.0])
    warm(r, f, x)
    o.pattern = re.compile("b")
    r(f(x))


@attack()
def struct_and_json_read_what_they_are_given(T, jit, r):
    data = {"a": [1, 2]}
    raw = bytearray(struct.pack("<d", 2.0))
    f = jit(lambda x: x * struct.unpack("<d", raw)[0] + len(json.dumps(data)))
    x = T.tensor([1.0])
    warm(r, f, x)
    raw[:] = struct.pack("<d", 5.0)
    r(f(x))
    data["a"].append(33)
    r(f(x))


@attack()
def a_memoryview_and_bytearray(T, jit, r):
    raw = bytearray(b"\x01\x02\x03")
    view = memoryview(raw)
    f = jit(lambda x: x * view[0] + raw[1] + sum(raw) + len(bytes(raw)))
    x = T.tensor([1.0])
    warm(r, f, x)
    raw[0] = 9
    r(f(x))


@attack()
def numpy_scalars_and_arrays_as_keys_and_numbers(T, jit, r):
    table = {np.int64(1): 2.0, np.float32(2.5): 3.0}
    array = np.array([1.0, 2.0], np.float32)
    o = O()
    o.k = np.int64(1)
    f = jit(lambda x: x * table[o.k] + table.get(2.5, 0.0) + float(array[0]) + int(o.k))
    x = T.tensor([1.0])
    warm(r, f, x)
    table[1] = 5.0
    r(f(x))
    array[0] = 7.0
    r(f(x))
    o.k = np.float32(2.5)
    r(f(x))


@attack()
def decimals_and_fractions(T, jit, r):
    o = O()
    o.d, o.q = decimal.Decimal("1.10"), fractions.Fraction(1, 3)
    f = jit(lambda x: x * float(o.d) + float(o.q) + len(str(o.d + 1)) + float(decimal.Decimal(1) / decimal.Decimal(3)))
    x = T.tensor([1.0])
    before = decimal.getcontext().prec
    try:
        warm(r, f, x)
        decimal.getcontext().prec = 3
        r(f(x))
        o.q = fractions.Fraction(2, 3)
        r(f(x))
    finally:
        decimal.getcontext().prec = before


@attack()
def time_and_random_go_on(T, jit, r):
    rng = random.Random(0)
    f = jit(lambda x: x * rng.random())
    for _ in range(7):
        r(f(T.tensor([1.0])))
    state = rng.getstate()
    r(f(T.tensor([1.0])))
    rng.setstate(state)
    r(f(T.tensor([1.0])))
    g = jit(lambda x: x + (time.perf_counter_ns() > 0))
    warm(r, g, T.tensor([1.0]))


@attack(compiles=True)
def environment_variables(T, jit, r):
    os.environ["TJ_ATTACK"] = "2"
    f = jit(lambda x: x * float(os.environ["TJ_ATTACK"]) + float(os.environ.get("TJ_ATTACK", "0")))
    x = T.tensor([1.0])
    warm(r, f, x)
    os.environ["TJ_ATTACK"] = "3"
    r(f(x))
    os.putenv("TJ_ATTACK", "4")
    r(f(x))
    del os.environ["TJ_ATTACK"]


@attack()
def files_and_streams(T, jit, r):
    stream = io.StringIO("1\n2\n3\n4\n5\n6\n7\n8\n9\n")
    f = jit(lambda x: x * float(stream.readline() or 0))
    for _ in range(11):
        r(f(T.tensor([1.0])))


@attack()
def a_codec_registered_later(T, jit, r):
    def shout(k):
        return codecs.CodecInfo(lambda s, errors="strict": ((s.upper() * k).encode(), len(s)), lambda b, errors="strict": ("", 0), name="tjshout")

    o = O()
    o.k = 1
    search = lambda name: shout(o.k) if name == "tjshout" else None
    codecs.register(search)
    try:
        f = jit(lambda x: x * len("ab".encode("tjshout")))
        x = T.tensor([1.0])
        warm(r, f, x)
        codecs.unregister(search)
        o.k = 3
        codecs.register(search)
        r(f(x))
    finally:
        codecs.unregister(search)


@attack()
def warnings_are_still_raised(T, jit, r):
    def f(x):
        warnings.warn("careful", UserWarning, stacklevel=1)
        return x * 2

    f = jit(f)
    seen = []
    for _ in range(7):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            f(T.tensor([1.0]))
        seen.append(len(caught))
    r(seen)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            r(f(T.tensor([1.0])))
        except UserWarning as e:
            r(str(e))


# ---------------------------------------------------------------- classes that move


@attack(compiles=True)
def class_assignment_of_an_object(T, jit, r):
    class A:
        k = 2.0

        def m(self):
            return self.k

    class B(A):
        k = 3.0

        def m(self):
            return self.k * 10

    a = A()
    f = jit(lambda x: x * a.m() + a.k)
    x = T.tensor([1.0])
    warm(r, f, x)
    a.__class__ = B
    r(f(x))
    a.__class__ = A
    r(f(x))


@attack(compiles=True)
def class_assignment_of_a_module(T, jit, r):
    m = module("tj_attack_class", "k = 2.0")

    class Loud(types.ModuleType):
        @property
        def extra(self):
            return 50.0

        def __getattr__(self, name):
            return 7.0

    f = jit(lambda x: x * m.k + getattr(m, "extra", 1.0))
    x = T.tensor([1.0])
    warm(r, f, x)
    m.__class__ = Loud
    r(f(x))
    del m.k
    r(f(x))
    del sys.modules["tj_attack_class"]


@attack(compiles=True)
def module_getattr_appears_and_changes(T, jit, r):
    m = module("tj_attack_getattr", "def __getattr__(name):\n    return len(name)")
    f = jit(lambda x: x * m.anything)
    x = T.tensor([1.0])
    warm(r, f, x)
    m.__getattr__ = lambda name: 100
    r(f(x))
    m.anything = 3
    r(f(x))
    del m.anything
    r(f(x))
    del sys.modules["tj_attack_getattr"]


@attack(compiles=True)
def missing_of_a_dict_subclass(T, jit, r):
    class D(dict):
        factor = 2.0

        def __missing__(self, key):
            return self.factor * len(key)

    d = D(a=1.0)
    f = jit(lambda x: x * d["abc"] + d["a"])
    x = T.tensor([1.0])
    warm(r, f, x)
    d.factor = 5.0
    r(f(x))
    d["abc"] = 100.0
    r(f(x))
    del d["abc"]
    D.__missing__ = lambda self, key: -1.0
    r(f(x))


@attack(compiles=True)
def descriptor_gains_a_set(T, jit, r):
    class Get:
        def __get__(self, o, t=None):
            return 5.0

    class A:
        v = Get()

    a = A()
    a.__dict__["v"] = 2.0
    f = jit(lambda x: x * a.v)
    x = T.tensor([1.0])
    warm(r, f, x)
    Get.__set__ = lambda self, o, v: None
    r(f(x))
    del Get.__set__
    r(f(x))


@attack()
def descriptor_with_state_per_owner(T, jit, r):
    class Scaled:
        def __init__(self):
            self.values = weakref.WeakKeyDictionary()

        def __set_name__(self, owner, name):
            self.name = name

        def __get__(self, o, t=None):
            return self.values.get(o, 1.0) * len(self.name)

        def __set__(self, o, v):
            self.values[o] = v

    class A:
        gain = Scaled()

    a = A()
    f = jit(lambda x: x * a.gain)
    x = T.tensor([1.0])
    warm(r, f, x)
    a.gain = 3.0
    r(f(x))
    A.__dict__["gain"].name = "xy"
    r(f(x))


@attack(compiles=True)
def property_replaced_through_the_base(T, jit, r):
    class A:
        @property
        def p(self):
            return 2.0

    class B(A):
        pass

    b = B()
    f = jit(lambda x: x * b.p)
    x = T.tensor([1.0])
    warm(r, f, x)
    A.p = A.p.getter(lambda self: 6.0)
    r(f(x))
    B.p = 9.0
    r(f(x))
    del B.p
    r(f(x))


@attack()
def metaclass_with_prepare_and_getattribute(T, jit, r):
    class Meta(type):
        scale = 2.0

        def __getattribute__(cls, name):
            v = super().__getattribute__(name)
            return v * type.__getattribute__(Meta, "scale") if name == "k" else v

    class A(metaclass=Meta):
        k = 3.0

    f = jit(lambda x: x * A.k)
    x = T.tensor([1.0])
    warm(r, f, x)
    Meta.scale = 4.0
    r(f(x))
    A.k = 5.0
    r(f(x))


@attack(compiles=True)
def metaclass_len_iter_contains(T, jit, r):
    class Meta(type):
        items = [1.0, 2.0]

        def __len__(cls):
            return len(cls.items)

        def __iter__(cls):
            return iter(cls.items)

        def __contains__(cls, x):
            return x in cls.items

    class A(metaclass=Meta):
        pass

    def f(x):
        for v in A:
            x = x * v
        return x + len(A) + (1 if 2.0 in A else 5)

    f = jit(f)
    x = T.tensor([1.0])
    warm(r, f, x)
    Meta.items.append(4.0)
    r(f(x))
    Meta.items.remove(2.0)
    r(f(x))


@attack(compiles=True)
def instance_creation_hooks_change(T, jit, r):
    class A:
        def __new__(cls, v):
            return super().__new__(cls)

        def __init__(self, v):
            self.v = v

    f = jit(lambda x: x * A(2.0).v)
    x = T.tensor([1.0])
    warm(r, f, x)
    A.__init__ = lambda self, v: setattr(self, "v", v * 10)
    r(f(x))
    B = type("B", (), {"v": -1.0})
    A.__new__ = staticmethod(lambda cls, v: B())
    r(f(x))


@attack(compiles=True)
def init_subclass_registers_classes(T, jit, r):
    class Base:
        registry = {}

        def __init_subclass__(cls, key, **more):
            super().__init_subclass__(**more)
            Base.registry[key] = cls

    class A(Base, key="a"):
        gain = 2.0

    f = jit(lambda x: x * Base.registry["a"].gain + len(Base.registry))
    x = T.tensor([1.0])
    warm(r, f, x)

    class A2(Base, key="a"):
        gain = 3.0

    r(f(x))

    class C(Base, key="c"):
        pass

    r(f(x))


@attack()
def class_getitem_and_generic_alias(T, jit, r):
    class A:
        k = 1.0

        def __class_getitem__(cls, item):
            return cls.k * item

    f = jit(lambda x: x * A[3.0] + len(str(list[int])))
    x = T.tensor([1.0])
    warm(r, f, x)
    A.k = 2.0
    r(f(x))


@attack(compiles=True)
def dataclass_replace_and_defaults(T, jit, r):
    @dataclasses.dataclass(frozen=True)
    class Config:
        scale: float = 2.0
        shift: float = 1.0
        layers: list = dataclasses.field(default_factory=lambda: [1.0])

    o = O()
    o.config = Config()
    f = jit(lambda x: x * o.config.scale + o.config.shift + sum(o.config.layers) + len(dataclasses.fields(o.config)))
    x = T.tensor([1.0])
    warm(r, f, x)
    o.config = dataclasses.replace(o.config, scale=5.0)
    r(f(x))
    object.__setattr__(o.config, "shift", 9.0)
    r(f(x))
    o.config.layers.append(4.0)
    r(f(x))


@attack()
def dataclass_replaced_inside(T, jit, r):
    @dataclasses.dataclass
    class P:
        a: float
        b: float = 2.0

        def __post_init__(self):
            self.c = self.a * self.b

    f = jit(lambda x: x * dataclasses.replace(P(3.0), b=4.0).c + dataclasses.asdict(P(1.0))["b"])
    x = T.tensor([1.0])
    warm(r, f, x)
    P.__post_init__ = lambda self: setattr(self, "c", -1.0)
    r(f(x))


@attack()
def frozen_containers(T, jit, r):
    o = O()
    o.keys = frozenset(("a", "b"))
    table = types.MappingProxyType(inner := {"a": 1.0, "b": 2.0})

    def f(x):
        for k in sorted(o.keys):
            x = x * table[k] + len(table)
        return x + len(o.keys | {"z"})

    f = jit(f)
    x = T.tensor([1.0])
    warm(r, f, x)
    inner["a"] = 7.0
    r(f(x))
    o.keys = o.keys - {"b"}
    r(f(x))
    inner["q"] = 7.0
    r(f(x))


@attack()
def enum_aliases_flags_and_members(T, jit, r):
    class Mode(enum.Enum):
        SLOW = 1.0
        FAST = 2.0
        QUICK = 2.0

    class Bits(enum.IntFlag):
        A = 1
        B = 2

    o = O()
    o.mode, o.bits = Mode.QUICK, Bits.A

    def f(x):
        x = x * (3 if o.mode is Mode.FAST else 4) * o.mode.value + len(Mode.__members__)
        if o.bits & Bits.B:
            x = x + 100
        return x + len(o.mode.name) + len(Bits)

    f = jit(f)
    x = T.tensor([1.0])
    warm(r, f, x)
    o.mode = Mode.SLOW
    r(f(x))
    o.bits |= Bits.B
    r(f(x))
    Mode.SLOW._value_ = 8.0
    r(f(x))


@attack()
def abc_registration_and_cache(T, jit, r):
    class Shape(abc.ABC):
        @classmethod
        def __subclasshook__(cls, other):
            return True if getattr(other, "round", False) else NotImplemented

    class A:
        round = False

    a = A()
    f = jit(lambda x: x * (2 if isinstance(a, Shape) else 3) + (1 if issubclass(A, Shape) else 0))
    x = T.tensor([1.0])
    warm(r, f, x)
    Shape.register(A)
    r(f(x))


@attack()
def singledispatch_registers_later(T, jit, r):
    @functools.singledispatch
    def g(v):
        return 1.0

    @g.register
    def _(v: int):
        return 2.0

    o = O()
    o.v = 3
    f = jit(lambda x: x * g(o.v) + g("s"))
    x = T.tensor([1.0])
    warm(r, f, x)
    g.register(str, lambda v: 9.0)
    r(f(x))
    o.v = "t"
    r(f(x))


@attack()
def singledispatch_method(T, jit, r):
    class A:
        @functools.singledispatchmethod
        def g(self, v):
            return 1.0

        @g.register
        def _(self, v: int):
            return 2.0

    a = A()
    f = jit(lambda x: x * a.g(3) + a.g("s"))
    x = T.tensor([1.0])
    warm(r, f, x)
    A.__dict__["g"].register(str, lambda self, v: 5.0)
    r(f(x))


@attack()
def cached_property_and_lru_cache(T, jit, r):
    class A:
        base = 2.0

        @functools.cached_property
        def p(self):
            return self.base * 10

        @functools.lru_cache(maxsize=2)
        def q(self, k):
            return self.base + k

    a = A()
    f = jit(lambda x: x * a.p + a.q(1))
    x = T.tensor([1.0])
    warm(r, f, x)
    A.base = 3.0
    r(f(x))
    del a.p
    r(f(x))
    A.q.cache_clear()
    r(f(x))


@attack()
def partialmethod_and_total_ordering(T, jit, r):
    @functools.total_ordering
    class A:
        def __init__(self, v):
            self.v = v

        def __eq__(self, o):
            return self.v == o.v

        def __lt__(self, o):
            return self.v < o.v

        def scale(self, x, k):
            return x * k * self.v

        double = functools.partialmethod(scale, k=2.0)

    a, b = A(1.0), A(2.0)
    f = jit(lambda x: a.double(x) + (1 if a >= b else 2) + max([a, b]).v)
    x = T.tensor([1.0])
    warm(r, f, x)
    a.v = 5.0
    r(f(x))
    A.double = functools.partialmethod(A.scale, k=7.0)
    r(f(x))


@attack()
def comparison_and_hash_of_keys_change(T, jit, r):
    class K:
        def __init__(self, v):
            self.v = v

        def __hash__(self):
            return 1

        def __eq__(self, o):
            return self.v == o.v

    k1, k2 = K(1), K(2)
    table = {k1: 3.0, k2: 4.0}
    probe = K(2)
    f = jit(lambda x: x * table[probe])
    x = T.tensor([1.0])
    warm(r, f, x)
    probe.v = 1
    r(f(x))
    k2.v, k1.v = 1, 5
    r(f(x))


@attack()
def index_and_bool_protocols(T, jit, r):
    class I:
        v = 1

        def __index__(self):
            return self.v

        def __bool__(self):
            return self.v > 1

        def __len__(self):
            return self.v

    i = I()
    values = [1.0, 2.0, 3.0]
    f = jit(lambda x: x * values[i] + (10 if i else 20) + len(i) + sum(range(i)) + len(values[:i]))
    x = T.tensor([1.0])
    warm(r, f, x)
    i.v = 2
    r(f(x))
    I.__bool__ = lambda self: False
    r(f(x))


@attack()
def slots_with_a_weakref_and_del(T, jit, r):
    class S:
        __slots__ = ("__weakref__", "k")

    s = S()
    s.k = 2.0
    w = weakref.ref(s)
    f = jit(lambda x: x * (w().k if w() is not None else -1.0))
    x = T.tensor([1.0])
    warm(r, f, x)
    s.k = 3.0
    r(f(x))
    del s
    gc.collect()
    r(f(x))


@attack()
def weak_dictionaries_and_proxies(T, jit, r):
    a, b = O(), O()
    a.k, b.k = 2.0, 3.0
    d, s, p = weakref.WeakValueDictionary(a=a, b=b), weakref.WeakSet([a, b]), weakref.proxy(a)
    f = jit(lambda x: x * sum(v.k for v in d.values()) + len(s) + p.k)
    x = T.tensor([1.0])
    warm(r, f, x)
    a.k = 5.0
    r(f(x))
    del b
    gc.collect()
    r(f(x))


@attack(compiles=True)
def ids_are_reused(T, jit, r):
    o = O()

    def make(k):
        c = O()
        c.k = k
        return c

    o.child = make(2.0)
    f = jit(lambda x: x * o.child.k)
    x = T.tensor([1.0])
    warm(r, f, x)
    for k in range(8):
        o.child = None
        gc.collect()
        o.child = make(float(k))
        r(f(x))


@attack(compiles=True)
def functions_and_code_at_the_same_address(T, jit, r):
    o = O()

    def make(k):
        space = {}
        exec(f"def g(x):\n    return x * {k}.0", space)
        return space["g"]

    f = jit(lambda x: o.g(x))
    x = T.tensor([1.0])
    for k in range(1, 6):
        o.g = make(k)
        warm(r, f, x)
        del o.g
        gc.collect()


# ---------------------------------------------------------------- names that move


@attack(compiles=True)
def builtins_monkeypatched(T, jit, r):
    f = jit(lambda x: x * len([1, 2]) + abs(-2.0) + sum([1, 2]) + (1 if isinstance(3, int) else 5))
    x = T.tensor([1.0])
    before = {k: getattr(builtins, k) for k in ("len", "abs", "sum", "isinstance")}
    try:
        warm(r, f, x)
        for name, new in (("abs", lambda v: 100.0), ("sum", lambda v: 7.0)):
            setattr(builtins, name, new)
            r(f(x))
    finally:
        for k, v in before.items():
            setattr(builtins, k, v)
    r(f(x))


@attack(compiles=True)
def builtins_of_one_function_only(T, jit, r):
    own = dict(vars(builtins))
    space = {"__builtins__": own}
    exec("def f(x):\n    return x * len((1, 2, 3))", space)
    f = jit(space["f"])
    x = T.tensor([1.0])
    warm(r, f, x)
    own["len"] = lambda v: 50
    r(f(x))


@attack(compiles=True)
def a_new_builtin_name_appears(T, jit, r):
    def f(x):
        try:
            return x * tj_attack_name
        except NameError:
            return x - 1

    f = jit(f)
    x = T.tensor([1.0])
    warm(r, f, x)
    builtins.tj_attack_name = 4.0
    try:
        r(f(x))
    finally:
        del builtins.tj_attack_name
    r(f(x))


@attack(compiles=True)
def globals_deleted_and_put_back(T, jit, r):
    space = {"k": 2.0}
    exec("def f(x):\n    try:\n        return x * k\n    except NameError:\n        return x - 100", space)
    f = jit(space["f"])
    x = T.tensor([1.0])
    warm(r, f, x)
    del space["k"]
    r(f(x))
    space["k"] = 2.0
    r(f(x))
    space["k"] = 3.0
    r(f(x))


@attack(compiles=True)
def globals_through_the_dict_and_exec(T, jit, r):
    space = {"k": 2.0}
    exec("def f(x):\n    return x * k", space)
    f = jit(space["f"])
    x = T.tensor([1.0])
    warm(r, f, x)
    exec("k = 3.0", space)
    r(f(x))
    space.update(k=4.0)
    r(f(x))
    dict.__setitem__(space, "k", 5.0)
    r(f(x))
    space |= {"k": 6.0}
    r(f(x))
    space.clear()
    space["k"] = 7.0
    r(f(x))


@attack()
def exec_and_eval_inside(T, jit, r):
    o = O()
    o.source = "a * 2"

    def f(x):
        space = {"a": x}
        exec("a = a + 1", space)
        return eval(o.source, space)

    f = jit(f)
    x = T.tensor([1.0])
    warm(r, f, x)
    o.source = "a * 3"
    r(f(x))


@attack()
def locals_and_vars_inside(T, jit, r):
    k = 2.0

    def f(x):
        y = x * k
        return y * len(locals()) + len(vars())

    f = jit(f)
    warm(r, f, T.tensor([1.0]))


@attack(compiles=True)
def imports_inside(T, jit, r):
    module("tj_attack_import", "k = 2.0\ndef g(x):\n    return x * k")

    def f(x):
        import tj_attack_import
        from tj_attack_import import g, k

        return g(x) + k + tj_attack_import.k

    f = jit(f)
    x = T.tensor([1.0])
    warm(r, f, x)
    sys.modules["tj_attack_import"].k = 3.0
    r(f(x))
    module("tj_attack_import", "k = 9.0\ndef g(x):\n    return -x")
    r(f(x))
    del sys.modules["tj_attack_import"]
    try:
        r(f(x))
    except ImportError:
        r("gone")


@attack(compiles=True)
def module_reloaded(T, jit, r):
    class Loader(importlib.abc.Loader):
        source = "k = 2.0\ndef g(x):\n    return x * k"

        def exec_module(self, m):
            exec(self.source, m.__dict__)

    class Finder(importlib.abc.MetaPathFinder):
        loader = Loader()

        def find_spec(self, name, path, target=None):
            return importlib.machinery.ModuleSpec(name, self.loader) if name == "tj_attack_reload" else None

    finder = Finder()
    sys.meta_path.insert(0, finder)
    try:
        m = importlib.import_module("tj_attack_reload")
        f = jit(lambda x: m.g(x))
        x = T.tensor([1.0])
        warm(r, f, x)
        Loader.source = "k = 5.0\ndef g(x):\n    return x + k"
        importlib.reload(m)
        r(f(x))
    finally:
        sys.meta_path.remove(finder)
        sys.modules.pop("tj_attack_reload", None)


@attack(compiles=True)
def default_arguments_mutated(T, jit, r):
    def g(x, seen=[1.0], *, table={"k": 2.0}):
        return x * sum(seen) + table["k"]

    f = jit(lambda x: g(x))
    x = T.tensor([1.0])
    warm(r, f, x)
    g.__defaults__[0].append(3.0)
    r(f(x))
    g.__kwdefaults__["table"]["k"] = 9.0
    r(f(x))
    g.__defaults__ = ([0.0],)
    r(f(x))
    g.__kwdefaults__ = {"table": {"k": -1.0}}
    r(f(x))


@attack()
def a_default_collects_across_calls(T, jit, r):
    def f(x, seen=[]):
        seen.append(len(seen))
        return x * len(seen)

    f = jit(f)
    for _ in range(8):
        r(f(T.tensor([1.0])))


@attack(compiles=True)
def star_arguments_alias(T, jit, r):
    def g(*args, **kwargs):
        a, b = args[0], args[-1]
        a.add_(1)
        kwargs["n"] = 1
        return b * len(args) + len(kwargs)

    f = jit(lambda *a, **k: g(*a, **k))
    for _ in range(W):
        r(f(T.tensor([1.0]), T.tensor([5.0])))
    t, options = T.tensor([1.0]), {"m": 2}
    r(f(t, t, **options))
    r(options)
    r(f(t))
    r(t)


@attack(compiles=True)
def code_objects_swapped(T, jit, r):
    def g(x):
        return x * 2

    f, h = jit(lambda x: g(x)), jit(g)
    x = T.tensor([1.0])
    warm(r, f, x)
    warm(r, h, x)
    g.__code__ = (lambda x: x * 3).__code__
    r(f(x))
    r(h(x))
    g.__code__ = g.__code__.replace(co_consts=tuple(7 if c == 3 else c for c in g.__code__.co_consts))
    r(f(x))
    r(h(x))


@attack(compiles=True)
def wrapped_attribute_and_annotations(T, jit, r):
    def g(x: "anything") -> 1:
        return x * len(g.__annotations__)

    f = jit(lambda x: g(x) + len(g.__name__) + (1 if g.__doc__ else 0))
    x = T.tensor([1.0])
    warm(r, f, x)
    g.__annotations__["more"] = 1
    r(f(x))
    g.__name__ = "longer"
    r(f(x))
    g.__doc__ = "now"
    r(f(x))


@attack(compiles=True)
def nonlocal_shared_by_two_compiled_functions(T, jit, r):
    def make():
        n = 0

        def up(x):
            nonlocal n
            n += 1
            return x * n

        return jit(up), jit(lambda x: x * n)

    up, read = make()
    for _ in range(6):
        r(up(T.tensor([1.0])))
        r(read(T.tensor([1.0])))


# ---------------------------------------------------------------- control flow


@attack()
def generators_closed_early(T, jit, r):
    log = []

    def numbers():
        try:
            yield 1.0
            yield 2.0
        finally:
            log.append("closed")

    def f(x):
        for v in numbers():
            x = x * 2 + v
            break
        g = numbers()
        x = x + next(g)
        g.close()
        return x

    f = jit(f)
    for _ in range(7):
        r(f(T.tensor([1.0])))
        r(len(log))


@attack(compiles=True)
def generators_thrown_into(T, jit, r):
    def numbers(x):
        while True:
            try:
                x = yield x * 2
            except ValueError:
                x = yield x * 100

    def f(x):
        g = numbers(x)
        a = next(g)
        b = g.throw(ValueError("now"))
        return a + b

    f = jit(f)
    warm(r, f, T.tensor([1.0]))


@attack(compiles=True)
def context_managers_swallow(T, jit, r):
    class Quiet:
        swallow = True

        def __enter__(self):
            return self

        def __exit__(self, *e):
            return self.swallow

    q = Quiet()

    def f(x):
        with q, contextlib.suppress(KeyError):
            x = x * 2
            if x.sum() > 100:
                raise ValueError
            x = x + 1
        return x

    f = jit(f)
    warm(r, f, T.tensor([1.0]))
    r(f(T.tensor([1000.0])))
    Quiet.swallow = False
    try:
        r(f(T.tensor([1000.0])))
    except ValueError:
        r("raised")
    r(f(T.tensor([1.0])))


@attack()
def exit_stack_and_closing(T, jit, r):
    log = []

    class C:
        def close(self):
            log.append(1)

    def f(x):
        with contextlib.ExitStack() as stack:
            stack.callback(log.append, 2)
            stack.enter_context(contextlib.closing(C()))
            x = x * 3
        return x

    f = jit(f)
    for _ in range(7):
        r(f(T.tensor([2.0])))
        r(list(log))


@attack()
def exception_groups_notes_and_chains(T, jit, r):
    def f(x):
        try:
            try:
                if x.sum() > 0:
                    raise ValueError("a")
            except ValueError as e:
                e.add_note("note")
                raise KeyError("b") from e
        except KeyError as e:
            return x * len(e.__cause__.__notes__)
        try:
            raise ExceptionGroup("g", [ValueError(1), TypeError(2)])
        except* ValueError:
            x = x + 1
        except* TypeError:
            x = x * 5
        return x

    f = jit(f)
    warm(r, f, T.tensor([1.0]))
    warm(r, f, T.tensor([-1.0]))


@attack(compiles=True)
def assertion_and_debug(T, jit, r):
    o = O()
    o.ok = True

    def f(x):
        assert o.ok, "not ok"
        return x * (2 if __debug__ else 3)

    f = jit(f)
    x = T.tensor([1.0])
    warm(r, f, x)
    o.ok = False
    try:
        r(f(x))
    except AssertionError as e:
        r(str(e))


@attack(compiles=True)
def recursion_limit_is_met_alike(T, jit, r):
    def deep(x, n):
        return x if n == 0 else deep(x + 1, n - 1)

    f = jit(lambda x, n: deep(x, n))
    x = T.tensor([0.0])
    for n in (3, 3, 3, 3, 3, 40, 40, 40, 40):
        r(f(x, n))
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(220)
    try:
        for _ in range(2):
            try:
                r(f(x, 100000))
            except RecursionError:
                r("too deep")
    finally:
        sys.setrecursionlimit(before)


@attack(compiles=True)
def async_functions_interleave(T, jit, r):
    o = O()
    o.k = 1.0
    f = jit(lambda x: x * o.k)

    async def worker(name, k):
        out = []
        for _ in range(4):
            o.k = k
            out.append(f(T.tensor([1.0])).item())
            await asyncio.sleep(0)
            out.append(f(T.tensor([1.0])).item())
        return name, out

    async def main():
        return await asyncio.gather(*(worker(n, k) for n, k in (("a", 2.0), ("b", 3.0), ("c", 4.0))))

    r(asyncio.run(main()))


@attack()
def a_compiled_coroutine(T, jit, r):
    @jit
    async def f(x):
        await asyncio.sleep(0)
        return x * 2

    for _ in range(6):
        r(asyncio.run(f(T.tensor([1.0]))))


@attack()
def contextvars_per_task(T, jit, r):
    scale = contextvars.ContextVar("scale", default=1.0)
    f = jit(lambda x: x * scale.get())

    async def worker(k):
        scale.set(k)
        out = []
        for _ in range(5):
            out.append(f(T.tensor([1.0])).item())
            await asyncio.sleep(0)
        return out

    async def main():
        return await asyncio.gather(*(worker(k) for k in (2.0, 3.0)))

    r(asyncio.run(main()))
    r(f(T.tensor([1.0])))
    contextvars.copy_context().run(scale.set, 9.0)
    r(f(T.tensor([1.0])))
    token = scale.set(5.0)
    r(f(T.tensor([1.0])))
    scale.reset(token)
    r(f(T.tensor([1.0])))


# ---------------------------------------------------------------- while it runs


@attack(compiles=True)
def settrace_is_active(T, jit, r):
    lines = []

    def f(x):
        y = x * 2
        return y + 1

    f = jit(f)
    for k in range(8):
        if k % 2:
            before = sys.gettrace()
            sys.settrace(lambda frame, event, arg: lines.append(event) if frame.f_code.co_name == "f" else None)
        try:
            out = f(T.tensor([1.0]))
        finally:
            if k % 2:
                sys.settrace(before)
        r(out)


@attack(compiles=True)
def setprofile_is_active(T, jit, r):
    seen = []

    def f(x):
        return x * 2 + 1

    f = jit(f)
    for k in range(8):
        if k % 3 == 1:
            sys.setprofile(lambda frame, event, arg: seen.append(event))
        try:
            out = f(T.tensor([1.0]))
        finally:
            sys.setprofile(None)
        r(out)
    r(bool(seen))


@attack(compiles=True)
def signals_arrive_mid_call(T, jit, r):
    o = O()
    o.k, o.fired = 1.0, 0

    def handler(number, frame):
        o.fired += 1

    before = signal.signal(signal.SIGUSR1, handler)
    try:

        def f(x):
            for _ in range(3):
                x = x * o.k + 1
            return x

        f = jit(f)
        for _ in range(10):
            os.kill(os.getpid(), signal.SIGUSR1)
            r(f(T.tensor([1.0])))
        r(o.fired > 0)
    finally:
        signal.signal(signal.SIGUSR1, before)


@attack()
def collection_runs_finalisers_mid_call(T, jit, r):
    log = []

    class Loop:
        def __init__(self):
            self.me = self

        def __del__(self):
            log.append(1)

    def f(x):
        Loop()
        gc.collect()
        return x * 2

    f = jit(f)
    for _ in range(7):
        r(f(T.tensor([1.0])))
    gc.collect()
    r(len(log))


@attack(compiles=True)
def gc_callbacks_see_collections(T, jit, r):
    o = O()
    o.k = 0
    callback = lambda phase, info: setattr(o, "k", o.k + 1) if phase == "stop" else None
    gc.callbacks.append(callback)
    try:
        f = jit(lambda x: x * (2 if o.k >= 0 else 3))
        for _ in range(8):
            r(f(T.tensor([1.0])))
            gc.collect()
    finally:
        gc.callbacks.remove(callback)


@attack(compiles=True)
def a_thread_changes_state_between_calls(T, jit, r):
    o = O()
    o.k = 1.0
    f = jit(lambda x: x * o.k)
    x = T.tensor([1.0])
    warm(r, f, x)

    def change(k):
        o.k = k

    for k in (2.0, 3.0, 4.0):
        t = threading.Thread(target=change, args=(k,))
        t.start()
        t.join()
        r(f(x))


@attack()
def thread_local_state(T, jit, r):
    local = threading.local()
    local.k = 2.0
    f = jit(lambda x: x * getattr(local, "k", -1.0))
    x = T.tensor([1.0])
    warm(r, f, x)
    out = []

    def work():
        out.append(f(x).item())
        local.k = 7.0
        out.append(f(x).item())

    t = threading.Thread(target=work)
    t.start()
    t.join()
    r(out)
    r(f(x))


@attack(compiles=True)
def audit_hooks_and_displayhook(T, jit, r):
    o = O()
    o.k = 2.0
    f = jit(lambda x: x * o.k)
    x = T.tensor([1.0])
    warm(r, f, x)
    before = sys.excepthook
    sys.excepthook = lambda *a: None
    r(f(x))
    sys.excepthook = before


@attack()
def an_argument_mutates_the_function(T, jit, r):
    """A property of an argument rebinds what the function reads next."""
    space = {}
    exec("def f(x, a):\n    v = a.v\n    return x * k + v", space)
    space["k"] = 2.0

    class A:
        n = 0

        @property
        def v(self):
            A.n += 1
            space["k"] = float(A.n)
            return 1.0

    f, a = jit(space["f"]), A()
    for _ in range(8):
        r(f(T.tensor([1.0]), a))


@attack()
def pickles_copies_and_deepcopies(T, jit, r):
    class A:
        def __init__(self, k):
            self.k = k

        def __deepcopy__(self, memo):
            return A(self.k + 1)

    globals()["A"] = A
    a = A(2.0)
    f = jit(lambda x: x * copy.copy(a).k + copy.deepcopy(a).k)
    x = T.tensor([1.0])
    warm(r, f, x)
    a.k = 5.0
    r(f(x))
    g = jit(lambda x: copy.deepcopy({"x": x})["x"] * 2)
    warm(r, g, x)
    h = jit(lambda x: x * len(pickle.dumps([1, 2])))
    warm(r, h, x)
    del globals()["A"]


@attack()
def locale_and_float_text(T, jit, r):
    o = O()
    o.v = 1.5
    f = jit(lambda x: x * len(f"{o.v:n}") + float(f"{o.v:.3f}") + len(repr(o.v)) + len(locale.str(o.v)))
    x = T.tensor([1.0])
    warm(r, f, x)
    o.v = 12345.678
    r(f(x))


@attack(compiles=True)
def hash_order_of_a_set_of_strings(T, jit, r):
    names = {"a", "b", "c", "d"}

    def f(x):
        for n in names:
            x = x * 2 + ord(n)
        return x

    f = jit(f)
    x = T.tensor([1.0])
    warm(r, f, x)
    names.discard("a")
    r(f(x))
    names.add("a")
    r(f(x))


@attack()
def sort_key_with_side_effects(T, jit, r):
    calls = []

    def key(v):
        calls.append(v)
        return -v

    values = [1.0, 3.0, 2.0]
    f = jit(lambda x: x * sorted(values, key=key)[0])
    x = T.tensor([1.0])
    for _ in range(7):
        r(f(x))
        r(len(calls))
    values.append(10.0)
    r(f(x))


@attack()
def an_outside_list_is_sorted_inside(T, jit, r):
    values = [3.0, 1.0, 2.0]

    def f(x):
        values.sort()
        values.reverse()
        return x * values[0]

    f = jit(f)
    for k in range(7):
        r(f(T.tensor([1.0])))
        r(list(values))
        values.insert(0, float(k))


@attack(compiles=True)
def walrus_and_comprehension_scopes(T, jit, r):
    values = [1.0, 2.0, 3.0]

    def f(x):
        if (n := len(values)) > 2:
            x = x + n
        last = 0.0
        total = sum(last := v for v in values if (m := v * 2) > 2)
        return x * last + total + m

    f = jit(f)
    x = T.tensor([1.0])
    warm(r, f, x)
    values.append(9.0)
    r(f(x))
    values[:] = [5.0]
    r(f(x))


@attack(compiles=True)
def math_and_operator_modules_patched(T, jit, r):
    f = jit(lambda x: x * math.sqrt(4.0) + operator.add(1.0, 2.0))
    x = T.tensor([1.0])
    warm(r, f, x)
    before = math.sqrt, operator.add
    try:
        math.sqrt = lambda v: 100.0
        r(f(x))
        operator.add = lambda a, b: 50.0
        r(f(x))
    finally:
        math.sqrt, operator.add = before
    r(f(x))


@attack(compiles=True)
def tensor_subclass_and_instance_attributes(T, jit, r):
    class Named(T.nn.Parameter):
        gain = 2.0

    p = Named(T.tensor([1.0]))
    f = jit(lambda x: x * p * p.gain)
    x = T.tensor([3.0])
    warm(r, f, x)
    Named.gain = 5.0
    r(f(x))


@attack(compiles=True)
def module_attribute_lookup_order(T, jit, r):
    class Net(T.nn.Module):
        scale = 10.0

        def __init__(self):
            super().__init__()
            self.layer = T.nn.Linear(1, 1, bias=False)
            T.nn.init.constant_(self.layer.weight, 2.0)
            self.register_buffer("shift", T.tensor([1.0]))

        def forward(self, x):
            return self.layer(x) * self.scale + self.shift

    net = Net()
    f = jit(net)
    x = T.tensor([1.0])
    warm(r, f, x)
    net.scale = 3.0
    r(f(x))
    del net.scale
    r(f(x))
    net.shift = T.tensor([5.0])
    r(f(x))
    net.__dict__["shift"] = T.tensor([100.0])
    r(f(x))
    del net.__dict__["shift"]
    net.layer = T.nn.Identity()
    r(f(x))
    del net._modules["layer"]
    net.__dict__["layer"] = lambda x: x * 7
    r(f(x))


@attack(compiles=True)
def forward_replaced_on_the_instance(T, jit, r):
    net = T.nn.Linear(1, 1, bias=False)
    T.nn.init.constant_(net.weight, 2.0)
    f, g = jit(net), jit(lambda x: net(x))
    x = T.tensor([1.0])
    warm(r, f, x)
    warm(r, g, x)
    net.forward = types.MethodType(lambda self, x: x * 50, net)
    r(f(x))
    r(g(x))
    del net.forward
    r(f(x))
    r(g(x))


@attack(compiles=True)
def named_tuples_and_their_fields(T, jit, r):
    P = collections.namedtuple("P", "a b", defaults=[2.0])
    o = O()
    o.p = P(1.0)
    f = jit(lambda x: x * o.p.a + o.p._replace(b=7.0).b + len(P._fields) + o.p[1])
    x = T.tensor([1.0])
    warm(r, f, x)
    o.p = o.p._replace(a=5.0)
    r(f(x))
    P.a = property(lambda self: -1.0)
    r(f(x))


@attack(compiles=True)
def typing_and_union_checks(T, jit, r):
    o = O()
    o.v = 1
    f = jit(lambda x: x * (2 if isinstance(o.v, int | str) else 3))
    x = T.tensor([1.0])
    warm(r, f, x)
    o.v = 1.5
    r(f(x))
    o.v = "s"
    r(f(x))


@attack(compiles=True)
def super_through_a_changed_mro(T, jit, r):
    class A:
        def m(self):
            return 1.0

    class B(A):
        def m(self):
            return 2.0 + super().m()

    class C(A):
        def m(self):
            return 30.0

    b = B()
    f = jit(lambda x: x * b.m())
    x = T.tensor([1.0])
    warm(r, f, x)
    A.m = lambda self: 100.0
    r(f(x))
    B.__bases__ = (C,)
    r(f(x))


@attack(compiles=True)
def delegating_getattr_chain(T, jit, r):
    class Proxy:
        def __init__(self, target):
            self.__dict__["target"] = target

        def __getattr__(self, name):
            return getattr(self.__dict__["target"], name)

        def __setattr__(self, name, value):
            setattr(self.target, name, value)

    inner = O()
    inner.k = 2.0
    p = Proxy(Proxy(inner))
    f = jit(lambda x: x * p.k)
    x = T.tensor([1.0])
    warm(r, f, x)
    p.k = 3.0
    r(f(x))
    p.__dict__["k"] = 50.0
    r(f(x))


@attack(compiles=True)
def dict_subclass_overrides_getitem(T, jit, r):
    class D(dict):
        def __getitem__(self, k):
            return dict.__getitem__(self, k) * self.factor

        factor = 1.0

    d = D(k=2.0)
    f = jit(lambda x: x * d["k"] + d.get("k"))
    x = T.tensor([1.0])
    warm(r, f, x)
    d.factor = 10.0
    r(f(x))
    D.get = lambda self, k: -5.0
    r(f(x))


@attack()
def list_subclass_overrides_iter_and_len(T, jit, r):
    class L(list):
        step = 1

        def __iter__(self):
            return iter(list.__getitem__(self, slice(None, None, self.step)))

        def __len__(self):
            return 40 + self.step

    values = L([1.0, 2.0, 3.0, 4.0])

    def f(x):
        for v in values:
            x = x * v
        return x + len(values) + sum(values) + max(values)

    f = jit(f)
    x = T.tensor([1.0])
    warm(r, f, x)
    values.step = 2
    r(f(x))
    values[0] = 7.0
    r(f(x))


@attack(compiles=True)
def user_dict_user_list_and_chain_map(T, jit, r):
    a, b = collections.UserDict(k=2.0), collections.UserList([1.0, 2.0])
    c = collections.ChainMap({"p": 1.0}, {"p": 2.0, "q": 3.0})
    f = jit(lambda x: x * a["k"] + b[1] + len(b) + c["p"] + c["q"])
    x = T.tensor([1.0])
    warm(r, f, x)
    a["k"] = 5.0
    r(f(x))
    b.append(9.0)
    r(f(x))
    c.maps.pop(0)
    r(f(x))


@attack()
def callable_objects_and_bound_methods_compared(T, jit, r):
    class A:
        def m(self, x):
            return x * 2

        def n(self, x):
            return x * 3

    a = A()
    o = O()
    o.f = a.m
    f = jit(lambda x: o.f(x) if o.f == a.m else o.f(x) * 100)
    x = T.tensor([1.0])
    warm(r, f, x)
    o.f = a.n
    r(f(x))
    o.f = A().m
    r(f(x))


@attack(compiles=True)
def big_and_negative_integers(T, jit, r):
    o = O()
    o.n = 2**70
    f = jit(lambda x: x * (o.n % 7) + (o.n >> 68) + (-o.n // 3 < 0) + o.n.bit_length())
    x = T.tensor([1.0])
    warm(r, f, x)
    for n in (-1, 0, 2**63, 2**63 - 1, True, 3):
        o.n = n
        r(f(x))


@attack(compiles=True)
def compiled_function_deleted_mid_way(T, jit, r):
    o = O()
    o.k = 2.0

    def make():
        return jit(lambda x: x * o.k)

    for k in range(4):
        f = make()
        warm(r, f, T.tensor([1.0]))
        o.k = float(k)
        r(f(T.tensor([1.0])))
        del f
        gc.collect()


@attack(compiles=True)
def reentrant_calls(T, jit, r):
    o = O()
    o.depth = 0

    @jit
    def f(x):
        if o.depth > 0:
            return x * 2
        o.depth += 1
        try:
            return f(x) + f(x)
        finally:
            o.depth -= 1

    for _ in range(8):
        r(f(T.tensor([1.0])))


@attack(compiles=True)
def mutual_recursion_through_globals(T, jit, r):
    space = {}
    exec("def even(x, n):\n    return x if n == 0 else odd(x + 1, n - 1)\ndef odd(x, n):\n    return -x if n == 0 else even(x * 2, n - 1)", space)
    f = jit(space["even"])
    x = T.tensor([1.0])
    for n in (4, 4, 4, 4, 4, 3, 3, 3, 3):
        r(f(x, n))
    space["odd"] = lambda x, n: x * 1000
    r(f(x, 4))


@attack(compiles=True)
def string_and_bytes_methods_with_state(T, jit, r):
    o = O()
    o.sep = ","
    table = {97: "xx"}
    f = jit(lambda x: x * len(o.sep.join(["a", "b"])) + len("aab".translate(table)) + len("a,b".split(o.sep)))
    x = T.tensor([1.0])
    warm(r, f, x)
    o.sep = ";;;"
    r(f(x))
    table[97] = "yyyy"
    r(f(x))


@attack()
def type_created_with_changing_namespace(T, jit, r):
    o = O()
    o.k = 2.0
    f = jit(lambda x: x * type("Made", (), {"k": o.k, "m": lambda self: self.k})().m())
    x = T.tensor([1.0])
    warm(r, f, x)
    o.k = 6.0
    r(f(x))


@attack()
def del_hooks_of_temporaries(T, jit, r):
    log = []

    class Temp:
        def __init__(self, v):
            self.v = v

        def __del__(self):
            log.append(self.v)

    def f(x):
        t = Temp(1)
        y = x * t.v
        del t
        return y + 1

    f = jit(f)
    for _ in range(7):
        r(f(T.tensor([2.0])))
        r(len(log))


@attack(compiles=True)
def subclasses_of_tensors_and_parameters(T, jit, r):
    class Named(T.nn.Parameter):
        gain = 2.0

    class Louder(T.nn.Parameter):
        def __mul__(self, other):
            return super().__mul__(other) * 10

        def __rmul__(self, other):
            return super().__mul__(other) * 100

        def __radd__(self, other):
            return super().__add__(other) * 1000

    p, q = Named(T.tensor([2.0])), Louder(T.tensor([3.0]))
    x = T.tensor([5.0])
    for f in (
        lambda x: x * p + p * x,
        lambda x: x - p,
        lambda x: p / x + (x > p),
        lambda x: x * q,
        lambda x: q * x,
        lambda x: x + q,
        lambda x: 2.0 * q + q * 2.0,
        lambda x: p * q,
        lambda x: x @ p + (x ** p),
        lambda x: -q + abs(p) + q.sum(),
    ):
        f = jit(f)
        warm(r, f, x)
    Louder.__mul__ = lambda self, other: T.tensor([-1.0])
    g = jit(lambda x: q * x)
    warm(r, g, x)
    Louder.__mul__ = lambda self, other: T.tensor([-2.0])
    r(g(x))


@attack(compiles=True)
def hooks_that_come_and_go_by_hand(T, jit, r):
    net, other = T.nn.Linear(2, 2), T.nn.Linear(2, 2)
    for p in (*net.parameters(), *other.parameters()):
        p.data = T.ones(*p.shape)
    f = jit(lambda x: other(net(x)))
    x = T.tensor([1.0, 2.0])
    warm(r, f, x)
    handle = net.register_forward_hook(lambda m, args, out: out * 2)
    r(f(x))
    r(other(x))  # hooks are each module's own
    handle.remove()
    warm(r, f, x)
    net._call_hooks["forward_pre"] = {0: (lambda m, args: (args[0] + 1,), False)}
    r(f(x))
    net._call_hooks = None
    warm(r, f, x)
    other._call_hooks = {"forward": {0: (lambda m, args, out: out - 3, False, False)}}
    r(f(x))
    other._call_hooks.clear()
    warm(r, f, x)
    other._call_hooks["forward"] = {0: (lambda m, args, out: out + 5, False, False)}
    r(f(x))


@attack(compiles=True)
def memory_and_parts_that_die_one_by_one(T, jit, r):
    class Net(T.nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = T.nn.ModuleList([T.nn.Linear(2, 2) for _ in range(4)])
            for p in self.parameters():
                p.data = T.ones(*p.shape)

        def forward(self, x):
            for part in self.parts:
                x = part(x) / 2
            return x

    net = Net()
    f = jit(lambda x: net(x))
    x = T.tensor([1.0, 2.0])
    warm(r, f, x)
    for k, p in enumerate(net.parameters()):
        p.data = T.ones(*p.shape) * k
        gc.collect()
        r(f(x))
    warm(r, f, x)
    for k in range(4):
        net.parts[k] = part = T.nn.Linear(2, 2)
        for p in part.parameters():
            p.data = T.ones(*p.shape) * (k + 2)
        del part
        gc.collect()
        warm(r, f, x)
    net.parts[1].weight = T.nn.Parameter(T.ones(2, 2) * 9)
    gc.collect()
    r(f(x))
    net.parts[2].weight.data = T.ones(2, 2) * 11
    gc.collect()
    r(f(x))
