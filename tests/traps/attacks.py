"""Attacks on the recorder: programs in which something outside the arguments changes between calls.

Each is a function (T, jit, r): it wraps functions with `jit`, calls them, and records with `r` what it observes. `test_attacks.py`
runs it once with `jit` the identity and once compiled, and wants the same observations. `@attack(compiles=True)` says that a compiled
trace must have run at least once: staying eager everywhere is no defence.
"""

import collections
import contextlib
import dataclasses
import enum
import functools
import math
import operator
import types

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


g_value = 1.0
g_list = [1.0]


# ---------------------------------------------------------------- containers outside


@attack(compiles=True)
def dict_order(T, jit, r):
    d = {"a": 2.0, "b": 3.0}

    def f(x):
        for k, v in d.items():
            x = x * v + len(k)
        return x

    f = jit(f)
    x = T.tensor([1.0])
    warm(r, f, x)
    d["a"] = d.pop("a")
    r(f(x))
    d["c"] = 5.0
    r(f(x))


@attack(compiles=True)
def tuple_with_a_list(T, jit, r):
    cfg = (1.0, [2.0])
    f = jit(lambda x: x * cfg[1][0])
    x = T.tensor([1.0])
    warm(r, f, x)
    cfg[1][0] = 3.0
    r(f(x))


@attack(compiles=True)
def equal_values_of_other_types(T, jit, r):
    box = [1, 1.0]
    f = jit(lambda x: x * (2 if type(box[0]) is int else 3 if type(box[0]) is bool else 5))
    x = T.tensor([1.0])
    warm(r, f, x)
    for v in (True, 1.0, 1):
        box[0] = v
        r(f(x))


@attack(compiles=True)
def slices_and_stars_of_an_outside_list(T, jit, r):
    box = [1.0, 2.0, 3.0]
    add = lambda *vs: sum(vs)

    def f(x):
        a, *rest = box
        return x * add(*box) + len(box[1:]) + a + sum(rest)

    f = jit(f)
    x = T.tensor([1.0])
    warm(r, f, x)
    box[2] = 7.0
    r(f(x))
    box.append(1.0)
    r(f(x))


@attack(compiles=True)
def keyword_dict_outside(T, jit, r):
    opts = {"k": 2.0}

    def g(x, k=1.0, m=0.0, **more):
        more["n"] = len(more)
        return x * k + m + more["n"]

    f = jit(lambda x: g(x, **opts))
    x = T.tensor([1.0])
    warm(r, f, x)
    opts["m"] = 4.0
    r(f(x))
    opts["z"] = 1
    r(f(x))


@attack(compiles=True)
def set_changes(T, jit, r):
    s = {1, 2}
    f = jit(lambda x: x + sum(s) + (5 in s) * 100)
    x = T.tensor([1.0])
    warm(r, f, x)
    s.add(5)
    r(f(x))
    s.discard(1)
    r(f(x))


@attack(compiles=True)
def missing_key_appears(T, jit, r):
    d = {}
    f = jit(lambda x: x + d.get("k", 1.0))
    x = T.tensor([1.0])
    warm(r, f, x)
    d["k"] = 9.0
    r(f(x))
    del d["k"]
    r(f(x))


@attack()
def default_factory(T, jit, r):
    d = collections.defaultdict(list)
    f = jit(lambda x, k: x + len(d[k]))
    x = T.tensor([1.0])
    for k in "aaaaabb":
        r(f(x, k))
    r(sorted(d))


@attack()
def counter_and_chainmap(T, jit, r):
    c, base = collections.Counter("aab"), {"q": 1.0}
    m = collections.ChainMap({}, base)
    f = jit(lambda x: x + c["a"] + c["zz"] + m["q"])
    x = T.tensor([1.0])
    warm(r, f, x)
    c["zz"] += 3
    r(f(x))
    base["q"] = 8.0
    r(f(x))
    m["q"] = 3.0
    r(f(x))


@attack()
def mapping_proxy_and_memoryview(T, jit, r):
    d, b = {"k": 1.0}, bytearray(b"\x01\x02")
    p, v = types.MappingProxyType(d), memoryview(b)
    f = jit(lambda x: x + p["k"] + v[0] + len(p) + p.get("j", 0))
    x = T.tensor([1.0])
    warm(r, f, x)
    d["k"] = 5.0
    r(f(x))
    b[0] = 9
    r(f(x))
    d["j"] = 2
    r(f(x))


@attack()
def dict_views_and_iterators_outside(T, jit, r):
    d = {"a": 1.0, "b": 2.0}
    items, it = d.items(), iter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0])
    f = jit(lambda x: x + sum(v for _, v in items))
    g = jit(lambda x: x + next(it))
    x = T.tensor([1.0])
    warm(r, f, x)
    warm(r, g, x)
    d["a"] = 10.0
    r(f(x))
    r(g(x))


@attack(compiles=True)
def container_is_argument_and_global(T, jit, r):
    global g_list
    g_list = [1.0]
    f = jit(lambda x, ks: x * ks[0] + g_list[0])
    x = T.tensor([1.0])
    warm(r, f, x, [1.0])
    warm(r, f, x, g_list)
    other = [1.0]
    g_list[0] = 5.0
    r(f(x, other))
    r(f(x, g_list))


@attack(compiles=True)
def two_lists_or_one(T, jit, r):
    def f(x, a, b):
        return x + 1 if a is b else x - 1

    f = jit(f)
    x, one = T.tensor([1.0]), [1]
    warm(r, f, x, [1], [1])
    r(f(x, one, one))
    r(f(x, [1], one))


@attack()
def nan_in_a_container(T, jit, r):
    nan = float("nan")
    box = [nan]
    f = jit(lambda x, k: x + (1 if k in box else 2))
    x = T.tensor([1.0])
    warm(r, f, x, nan)
    r(f(x, float("nan")))
    box[0] = float("nan")
    r(f(x, nan))


# ---------------------------------------------------------------- objects and classes


@attack(compiles=True)
def slots(T, jit, r):
    class S:
        __slots__ = ("a", "b")

    s = S()
    s.a = 2.0
    f = jit(lambda x: x * s.a + (1 if hasattr(s, "b") else 0))
    x = T.tensor([1.0])
    warm(r, f, x)
    s.a = 3.0
    r(f(x))
    s.b = 1
    r(f(x))
    del s.b
    r(f(x))


@attack(compiles=True)
def instance_shadows_method(T, jit, r):
    class A:
        def go(self, x):
            return x + 1

    a = A()
    f = jit(lambda x: a.go(x))
    x = T.tensor([1.0])
    warm(r, f, x)
    a.go = lambda x: x * 50
    r(f(x))
    del a.go
    r(f(x))


@attack(compiles=True)
def bases_reassigned(T, jit, r):
    class P:
        k = 1.0

    class Q:
        k = 7.0

    class A(P):
        pass

    a = A()
    f = jit(lambda x: x * a.k)
    x = T.tensor([1.0])
    warm(r, f, x)
    A.__bases__ = (Q,)
    r(f(x))


@attack(compiles=True)
def attribute_inserted_in_the_middle_of_the_mro(T, jit, r):
    class P:
        k = 1.0

    class M(P):
        pass

    class A(M):
        pass

    a = A()
    f = jit(lambda x: x * a.k)
    x = T.tensor([1.0])
    warm(r, f, x)
    M.k = 3.0
    r(f(x))
    del M.k
    r(f(x))


@attack(compiles=True)
def cached_property(T, jit, r):
    class A:
        def __init__(self):
            self.v = 2.0

        @functools.cached_property
        def twice(self):
            return self.v * 2

    a = A()
    f = jit(lambda x: x * a.twice)
    x = T.tensor([1.0])
    warm(r, f, x)
    warm(r, f, x)
    a.v = 5.0
    r(f(x))
    del a.twice
    r(f(x))


@attack(compiles=True)
def dynamic_getattr(T, jit, r):
    class A:
        def __init__(self):
            self.store = {"k": 2.0}

        def __getattr__(self, name):
            try:
                return self.store[name]
            except KeyError:
                raise AttributeError(name) from None

    a = A()
    f = jit(lambda x: x * a.k + (getattr(a, "zz", 0)))
    x = T.tensor([1.0])
    warm(r, f, x)
    a.store["k"] = 4.0
    r(f(x))
    a.k = 9.0
    r(f(x))
    a.store["zz"] = 1.0
    r(f(x))


@attack()
def custom_getattribute(T, jit, r):
    st = {"k": 1.0}

    class A:
        def __getattribute__(self, name):
            return st["k"]

    a = A()
    f = jit(lambda x: x * a.anything)
    x = T.tensor([1.0])
    warm(r, f, x)
    st["k"] = 3.0
    r(f(x))


@attack()
def stateful_descriptor(T, jit, r):
    class D:
        n = 0

        def __get__(self, obj, cls):
            D.n += 1
            return float(D.n)

    class A:
        v = D()

    a = A()
    f = jit(lambda x: x * a.v)
    x = T.tensor([1.0])
    warm(r, f, x)
    r(D.n)


@attack(compiles=True)
def metaclass_call_and_property(T, jit, r):
    class M(type):
        scale = 2.0

        @property
        def twice(cls):
            return cls.scale * 2

        def __getitem__(cls, k):
            return cls.scale + k

    class A(metaclass=M):
        pass

    f = jit(lambda x: x * A.twice + A[1])
    x = T.tensor([1.0])
    warm(r, f, x)
    M.scale = 5.0
    r(f(x))
    A.scale = 7.0
    r(f(x))


@attack(compiles=True)
def dataclass_made_inside(T, jit, r):
    @dataclasses.dataclass
    class C:
        a: float
        b: list = dataclasses.field(default_factory=list)

        def __post_init__(self):
            self.b.append(self.a)

    k = [2.0]

    def f(x):
        c = C(k[0])
        c.b.append(3.0)
        return x * sum(c.b)

    f = jit(f)
    x = T.tensor([1.0])
    warm(r, f, x)
    k[0] = 10.0
    r(f(x))
    C.__post_init__ = lambda self: None
    r(f(x))


@attack(compiles=True)
def enums(T, jit, r):
    class Mode(enum.Enum):
        A = 1
        B = 2

    o = O()
    o.mode = Mode.A
    f = jit(lambda x: x + 1 if o.mode is Mode.A else x * o.mode.value)
    g = jit(lambda x: x + (10 if o.mode == Mode.A else 20))
    x = T.tensor([3.0])
    warm(r, f, x)
    warm(r, g, x)
    o.mode = Mode.B
    r(f(x))
    r(g(x))


@attack()
def int_enum_and_int_subclass(T, jit, r):
    class Mode(enum.IntEnum):
        A = 1
        B = 2

    class I(int):
        def __eq__(self, other):
            return st[0]

        __hash__ = int.__hash__

    st, o = [True], O()
    o.mode, i = Mode.A, I(3)
    f = jit(lambda x: x + o.mode + (1 if o.mode == 1 else 0))
    g = jit(lambda x: x + (1 if i == 3 else 0))
    x = T.tensor([3.0])
    warm(r, f, x)
    warm(r, g, x)
    o.mode = Mode.B
    r(f(x))
    st[0] = False
    r(g(x))


@attack(compiles=True)
def operators_of_an_outside_object(T, jit, r):
    class V:
        def __init__(self, k):
            self.k = k

        def __mul__(self, o):
            return o * self.k

        __rmul__ = __mul__

        def __neg__(self):
            return -self.k

        def __lt__(self, o):
            return self.k < o

        def __getitem__(self, i):
            return self.k + i

        def __iter__(self):
            return iter([self.k, self.k])

        def __call__(self, x):
            return x - self.k

    v = V(2.0)
    f = jit(lambda x: x * v + (-v) + v[1] + sum(v) + v(x) + (1 if v < 5 else 0))
    x = T.tensor([1.0])
    warm(r, f, x)
    v.k = 7.0
    r(f(x))


@attack()
def equality_of_keys(T, jit, r):
    class K:
        def __init__(self, v):
            self.v = v

        def __hash__(self):
            return 1

        def __eq__(self, o):
            return self.v == o.v

    a, b = K(1), K(2)
    d = {a: 1.0, b: 5.0}
    f = jit(lambda x: x + d[K(2)])
    g = jit(lambda x: x + (1 if K(2) in [a] else 2))
    x = T.tensor([1.0])
    warm(r, f, x)
    warm(r, g, x)
    a.v = 2
    r(f(x))
    r(g(x))


@attack()
def text_of_an_object(T, jit, r):
    class A:
        def __str__(self):
            return f"A{st[0]}"

        __repr__ = __str__

    st, a = [1], A()
    f = jit(lambda x: (x, f"{a}", str(a), "%s" % a, f"{[a]}", repr([a])))
    x = T.tensor([1.0])
    warm(r, f, x)
    st[0] = 2
    r(f(x))


@attack()
def reflected_operator_of_a_subclass(T, jit, r):
    st = [1.0]

    class A:
        def __add__(self, o):
            return 100.0

    class B(A):
        def __radd__(self, o):
            return st[0]

    a, b = A(), B()
    f = jit(lambda x: x + (a + b))
    x = T.tensor([1.0])
    warm(r, f, x)
    st[0] = 2.0
    r(f(x))


@attack(compiles=True)
def functions_have_attributes(T, jit, r):
    def h(x):
        return x * h.k

    h.k = 2.0
    f = jit(lambda x: h(x))
    x = T.tensor([1.0])
    warm(r, f, x)
    h.k = 3.0
    r(f(x))


@attack(compiles=True)
def keyword_defaults(T, jit, r):
    def h(x, *, k=2.0):
        return x * k

    f = jit(lambda x: h(x))
    x = T.tensor([1.0])
    warm(r, f, x)
    h.__kwdefaults__["k"] = 6.0
    r(f(x))
    h.__kwdefaults__ = {"k": 8.0}
    r(f(x))


@attack(compiles=True)
def wrapped_and_partial(T, jit, r):
    st = {"k": 2.0}

    def deco(fn):
        @functools.wraps(fn)
        def inner(*a, **k):
            return fn(*a, **k) * st["k"]

        return inner

    @deco
    def h(x, b=1.0):
        return x + b

    p = functools.partial(h, b=3.0)
    f = jit(lambda x: p(x))
    x = T.tensor([1.0])
    warm(r, f, x)
    st["k"] = 5.0
    r(f(x))
    p.keywords["b"] = 100.0
    r(f(x))


@attack()
def lru_cache_helper(T, jit, r):
    st = [2.0]

    @functools.lru_cache
    def k():
        return st[0]

    f = jit(lambda x: x * k())
    x = T.tensor([1.0])
    warm(r, f, x)
    st[0] = 3.0
    r(f(x))
    k.cache_clear()
    r(f(x))


@attack()
def singledispatch(T, jit, r):
    @functools.singledispatch
    def k(v):
        return 1.0

    f = jit(lambda x: x * k(3))
    x = T.tensor([1.0])
    warm(r, f, x)
    k.register(int, lambda v: 7.0)
    r(f(x))


@attack()
def getters(T, jit, r):
    o = O()
    o.k, o.l = 2.0, [3.0, 4.0]
    get, pick, call = operator.attrgetter("k"), operator.itemgetter(1), operator.methodcaller("count", 3.0)
    f = jit(lambda x: x * get(o) + pick(o.l))
    g = jit(lambda x: x + call(o.l))
    x = T.tensor([1.0])
    warm(r, f, x)
    warm(r, g, x)
    o.k = 5.0
    r(f(x))
    o.l[1] = 3.0
    r(f(x))
    r(g(x))


@attack(compiles=True)
def vars_and_dict(T, jit, r):
    o = O()
    o.k = 2.0
    f = jit(lambda x: x * o.__dict__["k"] + vars(o).get("j", 0) + len(o.__dict__))
    x = T.tensor([1.0])
    warm(r, f, x)
    o.k = 3.0
    r(f(x))
    o.j = 1.0
    r(f(x))
    o.__dict__ = {"k": 10.0}
    r(f(x))


@attack(compiles=True)
def builtins_patched(T, jit, r):
    import builtins

    builtins.attack_k = 2.0
    f = jit(lambda x: x * attack_k)  # noqa: F821
    x = T.tensor([1.0])
    warm(r, f, x)
    builtins.attack_k = 5.0
    r(f(x))
    del builtins.attack_k


@attack(compiles=True)
def global_shadows_a_builtin(T, jit, r):
    globals().pop("abs", None)
    f = jit(lambda x: x + abs(-3))
    x = T.tensor([1.0])
    warm(r, f, x)
    globals()["abs"] = lambda v: 100
    try:
        r(f(x))
    finally:
        del globals()["abs"]
    r(f(x))


@attack()
def context_variables_and_thread_locals(T, jit, r):
    import contextvars
    import threading

    v, loc = contextvars.ContextVar("v", default=1.0), threading.local()
    loc.k = 2.0
    f = jit(lambda x: x + v.get())
    g = jit(lambda x: x + loc.k)
    x = T.tensor([1.0])
    warm(r, f, x)
    warm(r, g, x)
    v.set(5.0)
    loc.k = 6.0
    r(f(x))
    r(g(x))


@attack()
def weak_references(T, jit, r):
    import weakref

    o = O()
    o.k = 2.0
    ref = weakref.ref(o)
    f = jit(lambda x: x * (ref().k if ref() is not None else 50.0))
    x = T.tensor([1.0])
    warm(r, f, x)
    del o
    r(f(x))


@attack(compiles=True)
def abc_and_protocols(T, jit, r):
    class A:
        pass

    a = A()
    f = jit(lambda x: x + 1 if isinstance(a, collections.abc.Sized) else x - 1)
    x = T.tensor([1.0])
    warm(r, f, x)
    A.__len__ = lambda self: 3
    r(f(x))


@attack()
def instance_check_hook(T, jit, r):
    st = [True]

    class M(type):
        def __instancecheck__(cls, o):
            return st[0]

    class A(metaclass=M):
        pass

    f = jit(lambda x: x + 1 if isinstance(3, A) else x - 1)
    x = T.tensor([1.0])
    warm(r, f, x)
    st[0] = False
    r(f(x))


@attack()
def computed_class(T, jit, r):
    st = [int]

    class A:
        @property
        def __class__(self):
            return st[0]

    a = A()
    f = jit(lambda x: x + 1 if isinstance(a, int) else x - 1)
    x = T.tensor([1.0])
    warm(r, f, x)
    st[0] = str
    r(f(x))


# ---------------------------------------------------------------- control flow of Python


@attack(compiles=True)
def generators_and_comprehensions(T, jit, r):
    ks = [1.0, 2.0]

    def gen(n):
        for k in ks:
            got = yield k * n
            if got:
                n = got

    def f(x):
        it = gen(2)
        a = next(it)
        b = it.send(5)
        c = [k for k in gen(1)]
        d = {i: k for i, k in enumerate(gen(3))}
        return x * a + b + sum(c) + sum(d.values()) + sum(k for k in ks if k > 1)

    f = jit(f)
    x = T.tensor([1.0])
    warm(r, f, x)
    ks[1] = 9.0
    r(f(x))


@attack(compiles=True)
def context_managers(T, jit, r):
    st = {"k": 2.0}

    @contextlib.contextmanager
    def cm():
        yield st["k"]

    class C:
        def __enter__(self):
            return st["k"]

        def __exit__(self, kind, e, tb):
            return kind is ValueError

    c = C()

    def f(x):
        with c as b:
            x = x + b
            raise ValueError
        return x

    f = jit(f)
    g = jit(lambda x: sum([v for v in [x]]) + 1)
    x = T.tensor([1.0])
    warm(r, f, x)
    warm(r, g, x)
    st["k"] = 7.0
    r(f(x))


@attack()
def contextlib_manager(T, jit, r):
    st = {"k": 2.0}

    @contextlib.contextmanager
    def cm():
        yield st["k"]

    def f(x):
        with cm() as a, contextlib.suppress(KeyError):
            x = x * a
            x = x + st["zz"]
        return x

    f = jit(f)
    x = T.tensor([1.0])
    warm(r, f, x)
    st["k"] = 7.0
    r(f(x))
    st["zz"] = 7.0
    r(f(x))


@attack(compiles=True)
def exceptions_steer(T, jit, r):
    d = {"a": 1.0}

    class Bad(Exception):
        pass

    def look(k):
        try:
            return d[k]
        except KeyError as e:
            raise Bad(e.args[0]) from e

    def f(x):
        try:
            return x * look("b")
        except Bad as e:
            return x - len(e.args[0])
        finally:
            x = x + 1

    f = jit(f)
    x = T.tensor([1.0])
    warm(r, f, x)
    d["b"] = 5.0
    r(f(x))


@attack(compiles=True)
def match_statements(T, jit, r):
    @dataclasses.dataclass
    class P:
        a: int
        b: object = None

    cfg = {"kind": P(1)}

    def f(x):
        match cfg:
            case {"kind": P(1, None)}:
                return x + 1
            case {"kind": P(a=2, b=[p, q])}:
                return x * p + q
            case {"kind": P()}:
                return x - 1
            case _:
                return x

    f = jit(f)
    x = T.tensor([3.0])
    warm(r, f, x)
    cfg["kind"] = P(2, [4, 5])
    r(f(x))
    cfg["kind"].b[0] = 9
    r(f(x))
    cfg["kind"] = P(5)
    r(f(x))
    cfg.clear()
    r(f(x))


@attack(compiles=True)
def inner_closures_share_a_variable(T, jit, r):
    base = [1.0]

    def f(x):
        n = base[0]

        def up():
            nonlocal n
            n += 1
            return n

        up()
        return x * up() + n

    f = jit(f)
    x = T.tensor([1.0])
    warm(r, f, x)
    base[0] = 10.0
    r(f(x))


@attack()
def closure_returned(T, jit, r):
    def f(x):
        n = 0

        def up():
            nonlocal n
            n += 1
            return n

        return up, x

    f = jit(f)
    x = T.tensor([1.0])
    for _ in range(W):
        up, _y = f(x)
        r(up())
        r(up())


@attack()
def generator_returned(T, jit, r):
    def f(x):
        return (x * k for k in (1.0, 2.0))

    f = jit(f)
    for _ in range(W):
        r([y for y in f(T.tensor([1.0]))])


@attack()
def frames(T, jit, r):
    import sys

    def f(x):
        k = 2.0
        return x * k + len(locals()) + eval("k") + sys._getframe(0).f_locals["k"] + ("g_value" in globals())

    f = jit(f)
    warm(r, f, T.tensor([1.0]))


@attack()
def class_made_inside(T, jit, r):
    def f(x):
        class K:
            v = 2.0

        return x * K.v, K.__name__

    f = jit(f)
    warm(r, f, T.tensor([1.0]))


@attack()
def identity_of_numbers(T, jit, r):
    f = jit(lambda x, a, b: x + 1 if a is b else x - 1)
    x, big = T.tensor([1.0]), 10**20
    warm(r, f, x, big, big)
    r(f(x, big, int("1" + "0" * 20)))


@attack(compiles=True)
def recursion(T, jit, r):
    depth = [40]

    def down(x, n):
        return x if n == 0 else down(x, n - 1) + 1

    f = jit(lambda x: down(x, depth[0]))
    x = T.tensor([1.0])
    warm(r, f, x)
    depth[0] = 300
    r(f(x))


@attack(compiles=True)
def sorting_with_keys(T, jit, r):
    order = {"a": 1, "b": 0}
    fs = [("a", 2.0), ("b", 3.0)]

    def f(x):
        for _, k in sorted(fs, key=lambda p: order[p[0]]):
            x = x * k + 1
        return x + max(fs, key=lambda p: p[1])[1] + min(order.values()) + max(map(abs, [-3, 2]))

    f = jit(f)
    x = T.tensor([1.0])
    warm(r, f, x)
    order["b"] = 5
    r(f(x))
    fs[0] = ("a", 10.0)
    r(f(x))


@attack()
def side_effects_of_all_kinds(T, jit, r):
    o, box, d, s = O(), [], {}, set()
    o.n = 0

    def f(x):
        o.n += 1
        return x

    def g(x):
        box.append(1)
        return x

    def h(x):
        d.setdefault("k", []).append(2)
        return x

    def i(x):
        s.add(len(s))
        return x

    def j(x):
        O.count = getattr(O, "count", 0) + 1
        return x

    def k(x):
        box[len(box) :] = [4]
        return x

    def m(x):
        global g_value
        g_value = g_value + 1
        return x

    O.count = 0
    for fn in map(jit, (f, g, h, i, j, k, m)):
        warm(r, fn, T.tensor([1.0]))
    r([o.n, len(box), d, len(s), O.count])


@attack()
def iterator_argument(T, jit, r):
    f = jit(lambda x, it: x + sum(it))
    for _ in range(W):
        r(f(T.tensor([1.0]), iter([1.0, 2.0])))
        r(f(T.tensor([1.0]), (v for v in (1.0, 2.0))))


@attack(compiles=True)
def callback_argument(T, jit, r):
    st = [2.0]
    k = lambda x: x * st[0]
    f = jit(lambda x, fn: fn(x) + 1)
    x = T.tensor([1.0])
    warm(r, f, x, k)
    st[0] = 4.0
    r(f(x, k))
    r(f(x, lambda x: x - 1))


# ---------------------------------------------------------------- values of tensors


@attack(compiles=True)
def numbers_from_tensors(T, jit, r):
    def f(x):
        return x * int(x[0]) + float(x[1]) + round(float(x[2]), 1) + (1 if x[0] else 0) + len(range(int(x[1])))

    f = jit(f)
    warm(r, f, T.tensor([1.0, 2.0, 3.0]))
    r(f(T.tensor([2.7, 2.0, 3.0])))
    r(f(T.tensor([0.0, 2.0, 3.0])))
    r(f(T.tensor([-0.0, 2.5, 3.0])))


@attack(compiles=True)
def signed_zero_and_nan_items(T, jit, r):
    import math

    f = jit(lambda x: x + math.copysign(1.0, x.item()) + (5 if x.item() != x.item() else 0))
    warm(r, f, T.tensor(0.0))
    r(f(T.tensor(-0.0)))
    r(f(T.tensor(float("nan"))))
    r(f(T.tensor(0.0)))


@attack()
def errors_that_depend_on_data(T, jit, r):
    def f(x):
        try:
            return x * int(x.sum())
        except (ValueError, OverflowError):
            return x * 0 + 7

    def g(x, i):
        try:
            return x[i]
        except IndexError:
            return x.sum()

    f, g = jit(f), jit(g)
    warm(r, f, T.tensor([float("nan")]))
    r(f(T.tensor([2.0])))
    x = T.tensor([1.0, 2.0])
    warm(r, g, x, T.tensor([5]))
    r(g(x, T.tensor([1])))
    r(g(x, T.tensor([7])))


@attack(compiles=True)
def index_tensors(T, jit, r):
    f = jit(lambda x, i: x[i])
    x = T.tensor([1.0, 2.0, 3.0])
    warm(r, f, x, T.tensor([0, 2]))
    r(f(x, T.tensor([-1, 1])))
    try:
        r(f(x, T.tensor([5, 0])))
    except IndexError:
        r("index error")
    r(f(x, T.tensor([2, 2])))


@attack(compiles=True)
def membership_and_sorting_of_tensors(T, jit, r):
    def f(a, b, c):
        s = sorted([a, b, c])
        return s[0] * 100 + s[2], (a in [b, c]), max([a, b, c]) + min(a, b)

    f = jit(f)
    t = lambda v: T.tensor(v)
    warm(r, f, t(1.0), t(2.0), t(3.0))
    r(f(t(3.0), t(2.0), t(1.0)))
    r(f(t(2.0), t(2.0), t(1.0)))


@attack(compiles=True)
def text_of_tensors(T, jit, r):
    f = jit(lambda x: (x + 1, f"{x.sum().item():.1f}", str(x.tolist()), "%d" % int(x[0])))
    warm(r, f, T.tensor([1.0, 2.0]))
    r(f(T.tensor([1.0, 3.0])))
    r(f(T.tensor([1.0, 2.0])))


@attack(compiles=True)
def masks(T, jit, r):
    def f(x):
        y = x[x > 0]
        z = x.clone()
        z[x < 0] = 0.0
        return y.sum() * len(y), z

    f = jit(f)
    warm(r, f, T.tensor([1.0, -2.0, 3.0]))
    r(f(T.tensor([-1.0, 2.0, 3.0])))
    r(f(T.tensor([1.0, 2.0, 3.0])))
    r(f(T.tensor([-1.0, -2.0, -3.0])))


@attack(compiles=True)
def constant_looks_need_no_guard(T, jit, r):
    f = jit(lambda x: x * T.tensor(3.0).item() + int(T.arange(4).sum()))
    warm(r, f, T.tensor([1.0]))
    r(f(T.tensor([2.0])))


@attack(compiles=True)
def same_data_other_layout(T, jit, r):
    f = jit(lambda x: (x * 2, x.reshape(-1), x.is_contiguous()))
    x = T.arange(6).reshape(2, 3) * 1.0
    warm(r, f, x)
    y = T.arange(6).reshape(3, 2).t() * 1.0
    r(f(y))
    r(f(x))


@attack(compiles=True)
def empty_and_rank_zero(T, jit, r):
    f = jit(lambda x: (x + 1).sum())
    warm(r, f, T.zeros(3))
    r(f(T.zeros(0)))
    r(f(T.tensor(4.0)))
    r(f(T.zeros(1)))


# ---------------------------------------------------------------- memory, aliasing, outputs


@attack(compiles=True)
def argument_is_the_captured_tensor(T, jit, r):
    w = T.tensor([1.0, 2.0])

    def f(x):
        return (x + w, x is w)

    f = jit(f)
    warm(r, f, T.tensor([5.0, 6.0]))
    r(f(w))
    warm(r, f, w)
    r(f(T.tensor([5.0, 6.0])))


@attack(compiles=True)
def captured_tensor_is_written_and_is_the_argument(T, jit, r):
    w = T.tensor([1.0, 2.0])

    def f(x):
        w.add_(1)
        return x * w

    f = jit(f)
    warm(r, f, T.tensor([5.0, 6.0]))
    r(f(w))
    r(w)
    r(f(w[:]))
    r(w)


@attack(compiles=True)
def write_through_a_view_made_inside(T, jit, r):
    cache = T.zeros(4, 2)

    def f(x, i):
        row = cache[i]
        row.copy_(x)
        return cache[: i + 1].sum(0)

    f = jit(f)
    for i in (0, 0, 0, 0, 1, 1, 1, 2, 2, 2):
        r(f(T.tensor([1.0, 2.0]) * (i + 1), i))
    r(cache)


@attack()
def write_through_a_view_made_outside(T, jit, r):
    base = T.zeros(4)
    v = base[1:3]

    def f(x):
        v.add_(x)
        return base * 1

    f = jit(f)
    warm(r, f, T.tensor([1.0, 2.0]))
    r(base)


@attack(compiles=True)
def outputs_share_memory(T, jit, r):
    def f(x):
        y = x * 2
        return y, y[1:], y.reshape(3, 1), [y]

    f = jit(f)
    for _ in range(W):
        y, a, b, c = f(T.tensor([1.0, 2.0, 3.0]))
        a.add_(10)
        r(y)
        r(b)
        r(c[0] is y)


@attack(compiles=True)
def views_of_a_hidden_base(T, jit, r):
    def f(x):
        y = x * 2
        return y[:2], y[1:]

    f = jit(f)
    for _ in range(W):
        a, b = f(T.tensor([1.0, 2.0, 3.0]))
        a.add_(10)
        r(b)


@attack(compiles=True)
def view_of_an_argument_that_is_written(T, jit, r):
    def f(x):
        v = x[1:]
        x.mul_(3)
        return v, x

    f = jit(f)
    for _ in range(W):
        x = T.tensor([1.0, 2.0, 3.0])
        v, y = f(x)
        r(v)
        r(y is x)
        v.add_(1)
        r(x)


@attack(compiles=True)
def containers_come_back(T, jit, r):
    old = [1, 2]

    def f(x, box, t):
        return box, old, t, {"a": box, "x": x}, (x, x + 1)

    f = jit(f)
    for _ in range(W):
        box, t, x = [3], (4, 5), T.tensor([1.0])
        a, b, c, d, e = f(x, box, t)
        r([a is box, b is old, c is t, d["a"] is box, d["x"] is x, e[0] is x])
        d["new"] = 1
        e[1].add_(5)
        r(len(d))
        r(e)


@attack(compiles=True)
def layout_of_outputs(T, jit, r):
    f = jit(lambda x: x.t() * 2)
    for _ in range(W):
        r(f(T.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])).is_contiguous())


@attack(compiles=True)
def tensor_replaced_under_the_same_name(T, jit, r):
    o = O()
    o.w = T.tensor([1.0])
    f = jit(lambda x: x + o.w)
    x = T.tensor([1.0])
    warm(r, f, x)
    for v in range(4):
        o.w = T.tensor([float(v)])
        r(f(x))
    o.w = T.tensor([1, 2])
    r(f(x))


@attack()
def exception_in_the_middle_of_writes(T, jit, r):
    w = T.zeros(1)

    def f(x):
        w.add_(1)
        if x.sum() < 0:
            raise ValueError("no")
        w.add_(10)
        return x * w

    f = jit(f)
    for v in (1.0, 1.0, 1.0, 1.0, -1.0, 1.0, -1.0):
        try:
            r(f(T.tensor([v])))
        except ValueError:
            r("raised")
        r(w)


@attack(compiles=True)
def generator_objects(T, jit, r):
    g = T.Generator()
    g.manual_seed(3)
    f = jit(lambda x: x + T.rand(2, generator=g))
    for _ in range(W + 2):
        r(f(T.zeros(2)))
    g.manual_seed(3)
    r(f(T.zeros(2)))


@attack(compiles=True)
def random_numbers_continue(T, jit, r):
    T.manual_seed(5)
    f = jit(lambda x: x + T.rand(3) + T.randn(3))
    for _ in range(W + 1):
        r(f(T.zeros(3)))
        r(T.rand(2))
    T.manual_seed(5)
    r(f(T.zeros(3)))


# ---------------------------------------------------------------- gradients


@attack(compiles=True)
def gradients_flow_out(T, jit, r):
    w = T.tensor([2.0, 3.0], requires_grad=True)
    f = jit(lambda x: ((x * w).exp().sum(), x * 2))
    for _ in range(W + 1):
        x = T.tensor([0.5, 0.25], requires_grad=True)
        y, z = f(x)
        (y + z.sum()).backward()
        r(x.grad)
    r(w.grad)


@attack(compiles=True)
def no_grad_inside(T, jit, r):
    w = T.tensor([2.0], requires_grad=True)

    def f(x):
        with T.no_grad():
            k = w * 3
        return (x * w * k).sum()

    f = jit(f)
    for _ in range(W):
        w.grad = None
        f(T.tensor([5.0])).backward()
        r(w.grad)


@attack(compiles=True)
def detached_inside(T, jit, r):
    f = jit(lambda x: ((x * x.detach()).sum(), x.detach() * 2))
    for _ in range(W):
        x = T.tensor([3.0, 4.0], requires_grad=True)
        y, d = f(x)
        y.backward()
        r(x.grad)
        r(d)


@attack(compiles=True)
def argument_has_a_history(T, jit, r):
    f = jit(lambda x: (x * x).sum())
    for _ in range(W):
        a = T.tensor([1.0, 2.0], requires_grad=True)
        f(a * 3).backward()
        r(a.grad)


@attack()
def backward_through_an_outside_loss(T, jit, r):
    w = T.tensor([2.0], requires_grad=True)

    def f(loss):
        loss.backward()
        return w.grad * 1

    f = jit(f)
    for k in range(W + 1):
        w.grad = None
        r(f((w * w * float(k + 1)).sum()))


@attack(compiles=True)
def gradient_accumulates_and_is_cleared(T, jit, r):
    w = T.tensor([2.0], requires_grad=True)

    def f(x, clear):
        if clear:
            w.grad = None
        (x * w).sum().backward()
        return w.grad * 1

    f = jit(f)
    for clear in (True, True, True, True, True, False, False, False, False, True, False):
        r(f(T.tensor([3.0]), clear))
        r(w.grad)


@attack()
def gradient_known_by_two_names(T, jit, r):
    w = T.tensor([2.0], requires_grad=True)
    w.grad = T.tensor([1.0])
    kept = w.grad

    def f(x):
        w.grad.mul_(2)
        return kept + x

    f = jit(f)
    warm(r, f, T.tensor([1.0]))
    w.grad = T.tensor([1.0])
    r(f(T.tensor([1.0])))
    r(kept)


@attack(compiles=True)
def second_call_of_backward_raises(T, jit, r):
    w = T.tensor([2.0], requires_grad=True)

    def f(x):
        loss = (w * w * x).sum()
        loss.backward()
        return loss

    f = jit(f)
    for _ in range(W):
        loss = f(T.tensor([3.0]))
        r(loss)
        try:
            loss.backward()
            r("no error")
        except RuntimeError:
            r("error")


@attack(compiles=True)
def input_overwritten_before_backward(T, jit, r):
    f = jit(lambda x, y: (x * y).sum())
    for _ in range(W):
        x, y = T.tensor([1.0, 2.0], requires_grad=True), T.tensor([3.0, 4.0])
        z = f(x, y)
        y.add_(1)
        try:
            z.backward()
            r(x.grad)
        except RuntimeError:
            r("error")


@attack(compiles=True)
def output_overwritten_before_backward(T, jit, r):
    f = jit(lambda x: (x.exp(), x * 2))
    for _ in range(W):
        x = T.tensor([1.0, 2.0], requires_grad=True)
        a, b = f(x)
        b.add_(1)
        b.sum().backward()
        r(x.grad)
        with T.no_grad():
            a.add_(1)
        try:
            a.sum().backward()
            r(x.grad)
        except RuntimeError:
            r("error")


@attack(compiles=True)
def double_backward(T, jit, r):
    f = jit(lambda x: (x**3).sum())
    for _ in range(W):
        x = T.tensor([1.0, 2.0], requires_grad=True)
        (g,) = T.autograd.grad(f(x), x, create_graph=True)
        (h,) = T.autograd.grad(g.sum(), x)
        r(h)


@attack()
def double_backward_past_no_grad(T, jit, r):
    w = T.tensor([2.0], requires_grad=True)

    def f(x):
        with T.no_grad():
            k = w * x
        return (x * x * w * k).sum()

    f = jit(f)
    for _ in range(W):
        x = T.tensor([3.0], requires_grad=True)
        try:
            (g,) = T.autograd.grad(f(x), x, create_graph=True)
            (h,) = T.autograd.grad(g.sum(), x)
            r(h)
        except RuntimeError as e:
            if "eager()" not in str(e):
                raise
            with T.eager():
                (g,) = T.autograd.grad(f(x), x, create_graph=True)
            (h,) = T.autograd.grad(g.sum(), x)
            r(h)


@attack(compiles=True)
def requires_grad_of_outputs(T, jit, r):
    w = T.tensor([2.0], requires_grad=True)
    f = jit(lambda x: (x * w, x * 2, w, (x * w).detach()))
    for _ in range(W):
        a, b, c, d = f(T.tensor([1.0]))
        r([a.requires_grad, b.requires_grad, c is w, d.requires_grad, a.is_leaf, b.is_leaf])


@attack()
def requires_grad_changed_inside(T, jit, r):
    w = T.tensor([2.0])

    def f(x):
        w.requires_grad_(True)
        return x * w

    f = jit(f)
    for _ in range(W):
        w.requires_grad_(False)
        r(f(T.tensor([1.0])).requires_grad)
        r(w.requires_grad)


@attack()
def hook_on_an_intermediate(T, jit, r):
    w = T.tensor([2.0], requires_grad=True)
    seen = []

    def f(x):
        y = x * w
        y.register_hook(lambda g: seen.append(1) or g * 10)
        return y.sum()

    f = jit(f)
    for _ in range(W):
        w.grad = None
        f(T.tensor([3.0])).backward()
        r(w.grad)
    r(len(seen))


@attack(compiles=True)
def hook_added_to_a_parameter(T, jit, r):
    w = T.tensor([2.0], requires_grad=True)

    def f(x):
        w.grad = None
        (x * w).sum().backward()
        return w.grad * 1

    f = jit(f)
    warm(r, f, T.tensor([3.0]))
    h = w.register_hook(lambda g: g * 100)
    r(f(T.tensor([3.0])))
    h.remove()
    r(f(T.tensor([3.0])))


@attack()
def buffer_gets_a_history(T, jit, r):
    w, buf = T.tensor([2.0], requires_grad=True), T.zeros(1)

    def f(x):
        buf.add_(x * w)
        return buf * 1

    f = jit(f)
    for _ in range(3):
        r(f(T.tensor([1.0])))
    r(buf.requires_grad)


@attack(compiles=True)
def grad_mode_changes_inside(T, jit, r):
    w = T.tensor([2.0], requires_grad=True)

    @T.no_grad()
    def quiet(x):
        return x * w

    f = jit(lambda x: (quiet(x), x * w, T.is_grad_enabled()))
    for _ in range(W):
        a, b, c = f(T.tensor([1.0]))
        r([a.requires_grad, b.requires_grad, c])
    with T.no_grad():
        a, b, c = f(T.tensor([1.0]))
        r([a.requires_grad, b.requires_grad, c])


@attack()
def grad_mode_left_changed(T, jit, r):
    def f(x):
        T.set_grad_enabled(False)
        return x * 2

    f = jit(f)
    for _ in range(W):
        T.set_grad_enabled(True)
        r(f(T.tensor([1.0])))
        r(T.is_grad_enabled())
    T.set_grad_enabled(True)


# ---------------------------------------------------------------- modules


def _net(T):
    T.manual_seed(0)

    class Net(T.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.gain = T.nn.Linear(2, 3), T.nn.Linear(3, 1), 2.0

        def forward(self, x):
            return self.b(self.a(x).relu()) * self.gain

    return Net()


@attack(compiles=True)
def module_state(T, jit, r):
    net = _net(T)
    c, x = jit(net), T.tensor([[1.0, 2.0]])
    warm(r, c, x)
    net.gain = 5.0
    r(c(x))
    net.forward = lambda x: x * 7
    r(c(x))
    del net.forward
    r(c(x))
    type(net).forward = lambda self, x: x * 9
    r(c(x))


@attack(compiles=True)
def weights_shared_then_not(T, jit, r):
    T.manual_seed(0)
    net = T.nn.Sequential(T.nn.Linear(2, 2), T.nn.Linear(2, 2))
    net[1].weight = net[0].weight
    c, x = jit(net), T.tensor([[1.0, 2.0]])
    warm(r, c, x)
    net[1].weight = T.nn.Parameter(T.ones(2, 2))
    r(c(x))


@attack(compiles=True)
def hooks_of_every_kind(T, jit, r):
    net = _net(T)
    c, x = jit(net), T.tensor([[1.0, 2.0]])
    warm(r, c, x)
    h = net.a.register_forward_pre_hook(lambda m, i: (i[0] * 2,))
    warm(r, c, x)
    h.remove()
    r(c(x))


@attack(compiles=True)
def methods_and_classmethods(T, jit, r):
    class A:
        k = 2.0

        def __init__(self, v):
            self.v = v

        @classmethod
        def scale(cls, x):
            return x * cls.k

        @staticmethod
        def shift(x):
            return x + 1

        def go(self, x):
            return self.shift(self.scale(x)) * self.v

    A.go = jit(A.go)
    a, b, x = A(1.0), A(3.0), T.tensor([1.0])
    warm(r, a.go, x)
    warm(r, b.go, x)
    A.k = 5.0
    r(a.go(x))
    A.shift = staticmethod(lambda x: x - 1)
    r(b.go(x))


@attack(compiles=True)
def compiled_calls_compiled(T, jit, r):
    st = {"k": 2.0}
    net = jit(_net(T))
    inner = jit(lambda x: net(x) * st["k"])
    outer = jit(lambda x: inner(x) + net.gain)
    x = T.tensor([[1.0, 2.0]])
    warm(r, outer, x)
    st["k"] = 3.0
    r(outer(x))
    net.gain = 11.0
    r(outer(x))
    r(inner(x))


@attack(compiles=True)
def training_flag_of_a_grandchild(T, jit, r):
    net = T.nn.Sequential(T.nn.Sequential(T.nn.Dropout(0.5), T.nn.Identity()), T.nn.Identity())
    net.eval()
    c, x = jit(net), T.ones(4)
    warm(r, c, x)
    net[0][0].p = 0.0
    net[0][0].train()
    r(c(x))


# ---------------------------------------------------------------- optimizers


def _train(T, jit, r, make, steps=9):
    T.manual_seed(0)
    w = T.nn.Parameter(T.tensor([1.0, -2.0, 3.0]))
    b = T.nn.Parameter(T.tensor([0.5]))
    opt = make([w, b])

    def step(x, y):
        opt.zero_grad()
        loss = (((x * w).sum() + b - y) ** 2).mean()
        loss.backward()
        opt.step()
        return loss

    step = jit(step)
    for k in range(steps):
        r(step(T.tensor([1.0, 2.0, 3.0]) * (k % 3), T.tensor([2.0])).detach())
        r([w.detach(), b.detach()])
    return opt, w, b, step


@attack(compiles=True)
def sgd_momentum(T, jit, r):
    opt, w, b, step = _train(T, jit, r, lambda ps: T.optim.SGD(ps, lr=0.01, momentum=0.9))
    opt.param_groups[0]["lr"] = 0.1
    r(step(T.tensor([1.0, 2.0, 3.0]), T.tensor([2.0])).detach())
    w.requires_grad_(False)
    r(step(T.tensor([1.0, 2.0, 3.0]), T.tensor([2.0])).detach())
    r([w.detach(), b.detach()])


@attack(compiles=True)
def adam_and_adamw(T, jit, r):
    for make in (lambda ps: T.optim.Adam(ps, lr=0.01), lambda ps: T.optim.AdamW(ps, lr=0.01, weight_decay=0.1)):
        opt, w, b, step = _train(T, jit, r, make)
        opt.param_groups[0]["betas"] = (0.5, 0.9)
        r(step(T.tensor([1.0, 2.0, 3.0]), T.tensor([2.0])).detach())
        r([w.detach(), b.detach()])
        opt.add_param_group({"params": [T.nn.Parameter(T.tensor([1.0]))]})
        r(step(T.tensor([1.0, 2.0, 3.0]), T.tensor([2.0])).detach())
        r([w.detach(), b.detach()])


@attack(compiles=True)
def optimizer_state_loaded(T, jit, r):
    opt, w, b, step = _train(T, jit, r, lambda ps: T.optim.Adam(ps, lr=0.01))
    state = opt.state_dict()
    opt.load_state_dict(state)
    for _ in range(4):
        r(step(T.tensor([1.0, 2.0, 3.0]), T.tensor([2.0])).detach())
        r([w.detach(), b.detach()])


@attack(compiles=True)
def clipped_gradients(T, jit, r):
    w = T.nn.Parameter(T.tensor([1.0, -2.0]))
    opt = T.optim.SGD([w], lr=0.1)

    def step(x):
        opt.zero_grad()
        (x * w).sum().backward()
        norm = T.nn.utils.clip_grad_norm_([w], 1.0)
        opt.step()
        return norm

    step = jit(step)
    for k in range(W + 2):
        r(step(T.tensor([3.0, 4.0]) * (k + 1)))
        r(w.detach())
        r(w.grad)


# ---------------------------------------------------------------- second round: aimed at the recorder's own shortcuts


@attack(compiles=True)
def simple_namespace(T, jit, r):
    o = types.SimpleNamespace(k=2.0)
    f = jit(lambda x: x * o.k + getattr(o, "j", 0))
    x = T.tensor([1.0])
    warm(r, f, x)
    o.k = 3.0
    r(f(x))
    o.j = 4.0
    r(f(x))


@attack()
def attributes_of_arguments_that_are_tensors(T, jit, r):
    a, b = T.nn.Parameter(T.tensor([1.0])), T.nn.Parameter(T.tensor([1.0]))
    a.tag, b.tag = 2.0, 5.0
    f = jit(lambda x: x * x.tag)
    warm(r, f, a)
    r(f(b))
    a.tag = 7.0
    r(f(a))


@attack(compiles=True)
def kind_of_an_argument_that_dies(T, jit, r):
    def f(x):
        return x + 1 if isinstance(x, T.Tensor) and type(x) is T.Tensor else x

    f = jit(f)
    for k in range(W):
        r(f(T.tensor([float(k)])))
    r(f(T.nn.Parameter(T.tensor([1.0]))))


@attack()
def explicit_getitem_gives_an_old_list(T, jit, r):
    box = [[1.0], [2.0]]

    def f(x):
        inner = box.__getitem__(0)
        return x * inner[0]

    def g(x):
        inner = list.__getitem__(box, 0)
        inner.append(1.0)
        return x * len(inner)

    f, g = jit(f), jit(g)
    x = T.tensor([1.0])
    warm(r, f, x)
    box[0][0] = 5.0
    r(f(x))
    warm(r, g, x)
    r(box)


@attack()
def generator_made_inside(T, jit, r):
    def f(x):
        return x + T.rand(2, generator=T.Generator())

    f = jit(f)
    for _ in range(W + 2):
        r(f(T.zeros(2)))


@attack()
def finaliser(T, jit, r):
    n = [0]

    class A:
        def __del__(self):
            n[0] += 1

    def f(x):
        A()
        return x + 1

    f = jit(f)
    warm(r, f, T.tensor([1.0]))
    r(n)


@attack()
def exception_made_outside(T, jit, r):
    err = ValueError(2.0)

    def f(x):
        try:
            raise err
        except ValueError as e:
            return x * e.args[0]

    f = jit(f)
    x = T.tensor([1.0])
    warm(r, f, x)
    err.args = (5.0,)
    r(f(x))


@attack()
def views_compare_deep(T, jit, r):
    d, e = {"a": [1.0]}, {"a": [1.0]}
    f = jit(lambda x: x + (1 if [1.0] in d.values() else 2))
    g = jit(lambda x: x + (1 if d.items() == e.items() else 2))
    h = jit(lambda x: x + (1 if [1.0] in iter(d.values()) else 2))
    x = T.tensor([1.0])
    for fn in (f, g, h):
        warm(r, fn, x)
    d["a"][0] = 2.0
    for fn in (f, g, h):
        r(fn(x))


@attack()
def class_with_c_methods(T, jit, r):
    box = [1, 2, 3]

    class B:
        pass

    B.__eq__ = box.__eq__
    B.__contains__ = box.__contains__
    b = B()
    f = jit(lambda x: x + (1 if 3 in b else 2))
    x = T.tensor([1.0])
    warm(r, f, x)
    box.remove(3)
    r(f(x))


@attack()
def slots_and_dict_of_a_function(T, jit, r):
    def h():
        return 1.0

    h.k = 2.0
    f = jit(lambda x: x * h.__dict__["k"] + len(h.__dict__))
    g = jit(lambda x: x + h.__code__.co_argcount + len(h.__defaults__ or ()))
    x = T.tensor([1.0])
    warm(r, f, x)
    warm(r, g, x)
    h.k = 3.0
    r(f(x))
    h.j = 1
    r(f(x))

    def other(a, b=2):
        return 1.0

    h.__code__ = other.__code__
    h.__defaults__ = (1,)
    r(g(x))


@attack()
def closure_variable_deleted(T, jit, r):
    k = 2.0

    def f(x):
        try:
            return x * k
        except NameError:
            return x - 1

    def drop():
        nonlocal k
        del k

    f = jit(f)
    x = T.tensor([1.0])
    warm(r, f, x)
    drop()
    r(f(x))
    k = 9.0
    r(f(x))


@attack(compiles=True)
def numbers_of_numpy(T, jit, r):
    import numpy as np

    o = O()
    o.k = np.float32(2.0)
    f = jit(lambda x: x * float(o.k) if False else x * 2)
    g = jit(lambda x: x * o.k)
    x = T.tensor([1.0])
    warm(r, f, x)
    warm(r, g, x)
    o.k = np.float32(3.0)
    r(g(x))


@attack(compiles=True)
def call_with_everything(T, jit, r):
    def f(a, /, b, *cs, d, e=5.0, **more):
        return a * b + sum(cs) + d + e + sum(more.values())

    f = jit(f)
    x = T.tensor([1.0])
    for _ in range(W):
        r(f(x, 2.0, 3.0, 4.0, d=6.0, z=7.0))
    r(f(x, 2.0, 3.0, d=6.0, z=7.0, y=1.0))
    r(f(x, d=6.0, b=2.0))
    for bad in (lambda: f(x), lambda: f(x, 2.0), lambda: f(a=x, b=1.0, d=1.0)):
        try:
            bad()
        except TypeError as e:
            r(str(e))


@attack(compiles=True)
def two_names_for_one_argument(T, jit, r):
    o = O()
    o.w = T.tensor([1.0])

    def f(x, y):
        x.add_(1)
        return x * y + o.w

    f = jit(f)
    for _ in range(W):
        r(f(T.tensor([1.0]), T.tensor([2.0])))
    r(f(o.w, T.tensor([2.0])))
    r(o.w)
    r(f(T.tensor([1.0]), o.w))
    y = T.tensor([3.0])
    r(f(y, y))
    r(y)


@attack(compiles=True)
def memory_shared_through_numpy(T, jit, r):
    import numpy as np

    a = np.zeros(4, np.float32)
    u, v = T.from_numpy(a), T.from_numpy(a[2:])

    def f(x, y):
        x.add_(1)
        return y * 1

    f = jit(f)
    for _ in range(W):
        r(f(T.zeros(2), T.zeros(2)))
    r(f(u[:2], v))
    r(f(u[2:], v))
    r(f(u, v))
    r(u)


@attack(compiles=True)
def changes_between_record_and_confirm(T, jit, r):
    o = O()
    f = jit(lambda x: x * o.k)
    x = T.tensor([1.0])
    for k in (1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 3.0, 3.0, 3.0, 1.0, 1.0, 1.0, 1.0):
        o.k = k
        r(f(x))


@attack()
def depends_on_the_number_of_calls(T, jit, r):
    class Odd:
        n = 0

        def __len__(self):
            Odd.n += 1
            return Odd.n

    odd = Odd()
    f = jit(lambda x: x + len(odd))
    warm(r, f, T.tensor([1.0]))


@attack(compiles=True)
def loops_that_leave_early(T, jit, r):
    def f(x):
        for i in range(10):
            if (x > i).any():
                x = x * 0.5
            else:
                break
        else:
            return x - 100
        return x + i

    f = jit(f)
    for v in (3.0, 3.0, 3.0, 3.0, 3.0, 7.0, 7.0, 7.0, 0.5, 3.0, 1e9, 7.0):
        r(f(T.tensor([v])))


@attack(compiles=True)
def update_then_side_exit(T, jit, r):
    w = T.zeros(2)

    def f(x):
        w.add_(x)
        if w.sum() > 6:
            w.zero_()
            return w + 100
        return w * 1

    f = jit(f)
    for _ in range(14):
        r(f(T.tensor([1.0, 0.5])))
    r(w)


@attack(compiles=True)
def outputs_of_a_side_exit_need_gradients(T, jit, r):
    w = T.tensor([2.0], requires_grad=True)

    def f(x):
        y = (x * w).sum()
        return y * 2 if y > 0 else y * 3

    f = jit(f)
    for v in (1.0, 1.0, 1.0, 1.0, -1.0, -1.0, -1.0, 1.0, -1.0):
        w.grad = None
        f(T.tensor([v])).backward()
        r(w.grad)


@attack(compiles=True)
def backward_of_one_output_then_the_other(T, jit, r):
    w = T.tensor([2.0, 1.0], requires_grad=True)
    f = jit(lambda x: ((x * w).sum(), (x + w).exp().sum()))
    for _ in range(W):
        w.grad = None
        a, b = f(T.tensor([1.0, 3.0]))
        a.backward()
        r(w.grad)
        b.backward()
        r(w.grad)


# ---------------------------------------------------------------- third round: outputs, text, private state


@attack(compiles=True)
def equal_outputs_are_two_tensors(T, jit, r):
    f = jit(lambda x: (x + 1, x + 1, x.clone(), x.clone()))
    for _ in range(W):
        x = T.tensor([1.0, 2.0])
        a, b, c, d = f(x)
        a.add_(10)
        c.add_(5)
        r([a, b, c, d, x])


@attack(compiles=True)
def constants_come_back_new(T, jit, r):
    f = jit(lambda x: (T.tensor([1.0, 2.0]), T.tensor(3.0), T.full((2,), 4.0), x + 1))
    for _ in range(W + 1):
        out = f(T.tensor([1.0]))
        r(out)
        for t in out:
            t.add_(1)


@attack(compiles=True)
def outputs_that_the_gradient_needs(T, jit, r):
    def f(x):
        e = x.exp()
        return e, x.exp() * 2, e.sum()

    f = jit(f)
    for _ in range(W):
        x = T.tensor([1.0, 2.0], requires_grad=True)
        a, b, c = f(x)
        with T.no_grad():
            b.add_(100)
        c.backward(retain_graph=True)
        r(x.grad)
        a.sum().backward()
        r(x.grad)


@attack()
def text_of_whole_tensors(T, jit, r):
    f = jit(lambda x: (f"{x}", str(x), repr([x]), "%s" % x))
    warm(r, f, T.tensor([1.0, 2.0]))
    r(f(T.tensor([1.0, 3.0])))


@attack()
def seed_is_read(T, jit, r):
    T.manual_seed(3)
    f = jit(lambda x: x + T.initial_seed())
    warm(r, f, T.tensor([1.0]))
    T.manual_seed(4)
    r(f(T.tensor([1.0])))


@attack()
def version_counter(T, jit, r):
    w = T.tensor([1.0])
    f = jit(lambda x: (x, w._version.n if hasattr(w._version, "n") else w._version))
    g = jit(lambda x: x + x._version.n)
    x = T.tensor([1.0])
    warm(r, f, x)
    warm(r, g, x)
    w.add_(1)
    r(f(x)[1])
    x.zero_()
    r(g(x))


@attack(compiles=True)
def module_gets_a_class(T, jit, r):
    m = types.ModuleType("attack_module")
    m.k = 2.0

    class Lazy(types.ModuleType):
        @property
        def k(self):
            return 9.0

    f = jit(lambda x: x * m.k)
    x = T.tensor([1.0])
    warm(r, f, x)
    m.__class__ = Lazy
    r(f(x))


@attack(compiles=True)
def partial_rewired(T, jit, r):
    p = functools.partial(lambda x, k: x * k, k=2.0)
    f = jit(lambda x: p(x))
    x = T.tensor([1.0])
    warm(r, f, x)
    p.__setstate__((lambda x, k: x - k, (), {"k": 3.0}, {}))
    r(f(x))


@attack()
def predicates_of_tensors(T, jit, r):
    w = T.tensor([1.0, 2.0])
    f = jit(lambda x: x + (1 if T.equal(x, w) else 2) + (10 if T.allclose(x, w) else 20) + (100 if (x == w).all() else 200))
    warm(r, f, T.tensor([1.0, 2.0]))
    r(f(T.tensor([1.0, 3.0])))
    w.add_(1)
    r(f(T.tensor([1.0, 2.0])))
    r(f(T.tensor([2.0, 3.0])))


@attack()
def shapes_that_depend_on_data(T, jit, r):
    F = T.nn.functional
    f = jit(lambda i: F.one_hot(i))
    warm(r, f, T.tensor([0, 2]))
    r(f(T.tensor([0, 3])))
    g = jit(lambda x: T.nonzero(x))
    warm(r, g, T.tensor([0.0, 2.0]))
    r(g(T.tensor([1.0, 2.0])))
    h = jit(lambda n: T.arange(int(n)) + T.zeros(int(n)))
    warm(r, h, T.tensor(3))
    r(h(T.tensor(4)))


@attack(compiles=True)
def batches_of_many_shapes(T, jit, r):
    w = T.ones(3, 2)
    f = jit(lambda x: x @ w + x.shape[0])
    for n in (4, 4, 4, 4, 2, 2, 2, 2, 4, 1, 0):
        r(f(T.ones(n, 3)))


@attack(compiles=True)
def state_dict_swapped_in(T, jit, r):
    T.manual_seed(1)
    a, b = T.nn.Linear(2, 2), T.nn.Linear(2, 2)
    c, x = jit(a), T.tensor([[1.0, 2.0]])
    warm(r, c, x)
    a.load_state_dict(b.state_dict())
    r(c(x))
    a.weight.data = T.ones(2, 2)
    r(c(x))
    a.requires_grad_(False)
    r(c(x).requires_grad)


@attack(compiles=True)
def attribute_of_a_nested_object(T, jit, r):
    class Node:
        __slots__ = ("child", "k", "__dict__")

        def __init__(self, k, child=None):
            self.k, self.child = k, child

        def walk(self, x):
            x = x * self.k
            return x if self.child is None else self.child.walk(x)

    tree = Node(2.0, Node(3.0, Node(4.0)))
    f = jit(lambda x: tree.walk(x))
    x = T.tensor([1.0])
    warm(r, f, x)
    tree.child.child.k = 5.0
    r(f(x))
    tree.child = None
    r(f(x))


@attack(compiles=True)
def function_passed_through_containers(T, jit, r):
    table = {"f": [lambda x: x + 1, lambda x: x * 2]}

    def f(x, names):
        for n in names:
            for g in table.get(n, ()):
                x = g(x)
        return x

    f = jit(f)
    x = T.tensor([1.0])
    warm(r, f, x, ("f", "g"))
    table["g"] = (lambda x: x - 7,)
    r(f(x, ("f", "g")))
    table["f"][1] = lambda x: x * 50
    r(f(x, ("f", "g")))


@attack(compiles=True)
def nested_functions_with_defaults_from_state(T, jit, r):
    st = {"k": 2.0}

    def f(x):
        def g(x, k=st["k"], *, j=lambda: st["k"] + 1):
            return x * k + j()

        return g(x)

    f = jit(f)
    x = T.tensor([1.0])
    warm(r, f, x)
    st["k"] = 6.0
    r(f(x))


@attack()
def monkeypatched_library(T, jit, r):
    real = T.Tensor.relu
    f = jit(lambda x: x.relu())
    x = T.tensor([-1.0, 1.0])
    warm(r, f, x)
    try:
        T.Tensor.relu = lambda self: self * 100
        y = f(x)
    finally:
        T.Tensor.relu = real
    r(y)
    r(f(x))


@attack()
def threads(T, jit, r):
    import threading

    w = T.tensor([2.0])

    def f(x):
        y = x * w
        return y + 1 if y.sum() > 0 else y - 1

    f = jit(f)
    got = [None] * 8

    def work(k):
        got[k] = [f(T.tensor([float((k + i) % 5 - 2)])).tolist() for i in range(12)]

    ts = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in ts:
        t.start()
    for t in ts:
        t.join()
    r(got)


@attack(compiles=True)
def scalars_as_arguments_of_many_values(T, jit, r):
    f = jit(lambda x, lr, n: x * lr + n)
    x = T.tensor([1.0])
    for k in range(30):
        r(f(x, 0.1 / (k + 1), 3))
    for k in range(10):
        r(f(x, 0.5, k % 2))


# ---------------------------------------------------------------- fourth round: layers, optimizers, gradients inside


@attack(compiles=True)
def gradient_of_an_argument_inside(T, jit, r):
    def f(x):
        loss = (x**3).sum()
        loss.backward()
        return x.grad * 1

    f = jit(f)
    for k in range(W + 1):
        x = T.tensor([1.0 + k, 2.0], requires_grad=True)
        r(f(x))
        r(x.grad)
        r(f(x))
        r(x.grad)


@attack(compiles=True)
def autograd_grad_inside(T, jit, r):
    w = T.tensor([2.0, 3.0], requires_grad=True)

    def f(x):
        y = (x * x * w).sum()
        gx, gw = T.autograd.grad(y, (x, w), create_graph=True)
        return gx, gw.detach(), (gx * gx).sum()

    f = jit(f)
    for _ in range(W + 1):
        x = T.tensor([1.0, 2.0], requires_grad=True)
        gx, gw, s = f(x)
        s.backward()
        r([gx, gw, x.grad, w.grad])


@attack(compiles=True)
def captured_tensor_with_a_history(T, jit, r):
    w = T.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    wt, wv = w.t(), w[0]
    f = jit(lambda x: (wt @ x * wv).sum())
    for _ in range(W + 1):
        w.grad = None
        f(T.tensor([1.0, -1.0])).backward(retain_graph=True)
        r(w.grad)
    with T.no_grad():
        w.mul_(2)
    r(f(T.tensor([1.0, -1.0])))


@attack(compiles=True)
def out_argument_and_swap(T, jit, r):
    def f(a, b):
        T.add(a, b, out=a)
        t = a.clone()
        a.copy_(b)
        b.copy_(t)
        return a * 1, b * 1

    f = jit(f)
    for _ in range(W + 1):
        a, b = T.tensor([1.0]), T.tensor([2.0])
        r(f(a, b))
        r([a, b])


@attack(compiles=True)
def recurrent_and_embedding(T, jit, r):
    T.manual_seed(0)
    emb, rnn = T.nn.Embedding(5, 3), T.nn.LSTM(3, 4, batch_first=True)

    def f(i, state):
        y, state = rnn(emb(i), state)
        return y.sum(-1), state

    f = jit(f)
    state = (T.zeros(1, 1, 4), T.zeros(1, 1, 4))
    for k in range(W + 2):
        y, state = f(T.tensor([[0, 1, k % 5]]), state)
        r([y, *state])
    with T.no_grad():
        emb.weight[2].fill_(0.5)
    r(f(T.tensor([[2, 2, 2]]), state)[0])
    try:
        f(T.tensor([[2, 2, 7]]), state)
        r("no error")
    except IndexError:
        r("index error")


@attack(compiles=True)
def module_containers_change(T, jit, r):
    T.manual_seed(0)
    net = T.nn.Module()
    net.parts = T.nn.ModuleDict({"a": T.nn.Linear(2, 2), "b": T.nn.ReLU()})
    net.more = T.nn.ModuleList([T.nn.Identity()])
    net.scale = T.nn.ParameterList([T.nn.Parameter(T.ones(2))])

    def f(x):
        for name, part in net.parts.items():
            x = part(x) + len(name)
        for part in net.more:
            x = part(x)
        for p in net.scale:
            x = x * p
        return x + len(list(net.parameters()))

    f = jit(f)
    x = T.tensor([[1.0, -2.0]])
    warm(r, f, x)
    net.more.append(T.nn.ReLU())
    r(f(x))
    net.parts["c"] = T.nn.Linear(2, 2)
    r(f(x))
    net.scale.append(T.nn.Parameter(T.zeros(2)))
    r(f(x))
    del net.parts["a"]
    r(f(x))


@attack(compiles=True)
def batch_norm_settings(T, jit, r):
    net = T.nn.BatchNorm1d(2)
    c = jit(net)
    x = T.tensor([[1.0, 2.0], [3.0, 5.0], [0.0, 1.0]])
    warm(r, c, x)
    net.momentum = 0.5
    r(c(x))
    r([net.running_mean, net.running_var, net.num_batches_tracked])
    net.eps = 1.0
    r(c(x))
    net.eval()
    r(c(x))
    net.running_mean = T.ones(2)
    r(c(x))
    net.track_running_stats = False
    r(c(x))


@attack()
def state_made_by_the_first_calls(T, jit, r):
    class Lazy(T.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = None
            self.seen = 0

        def forward(self, x):
            if self.w is None:
                self.w = T.nn.Parameter(T.ones(x.shape[-1]))
            if self.seen < 3:
                self.seen += 1
            return x * self.w * self.seen

    net = Lazy()
    c = jit(net)
    for _ in range(9):
        r(c(T.tensor([1.0, 2.0])))
    r(net.seen)


@attack()
def scheduler_and_closure_inside(T, jit, r):
    w = T.nn.Parameter(T.tensor([1.0, 2.0]))
    opt = T.optim.SGD([w], lr=0.1)

    def step(x):
        def closure():
            opt.zero_grad()
            loss = (w * x).sum()
            loss.backward()
            return loss

        loss = opt.step(closure)
        opt.param_groups[0]["lr"] *= 0.5
        return loss

    step = jit(step)
    for _ in range(W + 1):
        r(step(T.tensor([1.0, 1.0])).detach())
        r(w.detach())
    r(opt.param_groups[0]["lr"])


@attack(compiles=True)
def learning_rate_schedule(T, jit, r):
    w = T.nn.Parameter(T.tensor([1.0, 2.0]))
    opt = T.optim.SGD([w], lr=0.1, momentum=0.5)

    def step(x):
        opt.zero_grad()
        loss = (w * w * x).sum()
        loss.backward()
        opt.step()
        return loss.item()

    step = jit(step)
    for k in range(40):
        if k % 8 == 7:
            opt.param_groups[0]["lr"] *= 0.5
        r(step(T.tensor([1.0, 1.0])))
        r(w.detach())


@attack(compiles=True)
def frozen_then_thawed_in_an_optimizer(T, jit, r):
    a, b = T.nn.Parameter(T.tensor([1.0])), T.nn.Parameter(T.tensor([2.0]))
    opt = T.optim.Adam([a, b], lr=0.1)

    def step(x):
        opt.zero_grad()
        ((a * x + b) ** 2).sum().backward()
        opt.step()

    step = jit(step)
    for k in range(12):
        b.requires_grad_(k not in (4, 5, 6))
        step(T.tensor([1.0]))
        r([a.detach(), b.detach(), b.grad is None])


@attack(compiles=True)
def cache_with_a_position(T, jit, r):
    class Cache(T.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("k", T.zeros(6, 2))

        def forward(self, x, at):
            self.k[at] = x
            return self.k[: at + 1].sum(0)

    net = Cache()
    c = jit(net)
    for _ in range(4):
        for at in range(3):
            r(c(T.tensor([1.0, 2.0]) * (at + 1), at))
    r(net.k)


@attack(compiles=True)
def early_stopping_by_value(T, jit, r):
    w = T.nn.Parameter(T.tensor([4.0]))
    opt = T.optim.SGD([w], lr=0.25)

    def step(x):
        opt.zero_grad()
        loss = ((w * x) ** 2).sum()
        if loss < 0.05:
            return None
        loss.backward()
        opt.step()
        return loss.detach()

    step = jit(step)
    for _ in range(12):
        r(step(T.tensor([1.0])))
        r(w.detach())


@attack(compiles=True)
def leaf_facts(T, jit, r):
    w = T.tensor([1.0], requires_grad=True)
    v = w * 2
    f = jit(lambda x: (x * 1, w.is_leaf, v.is_leaf, v.grad_fn is None, x.is_leaf, x.requires_grad, w.grad is None))
    x = T.tensor([1.0])
    warm(r, f, x)
    r(f(w))
    r(f(v))
    w.grad = T.ones(1)
    r(f(x))


@attack(compiles=True)
def nested_outputs_with_gradients(T, jit, r):
    w = T.tensor([2.0, 3.0], requires_grad=True)

    def f(x):
        h = x * w
        return {"loss": h.sum(), "parts": [h, h[0], (h.detach(), h.reshape(2, 1))], "w": w, "n": 2}

    f = jit(f)
    for _ in range(W):
        w.grad = None
        out = f(T.tensor([1.0, 4.0]))
        (out["loss"] + out["parts"][1] * 2 + out["parts"][2][1].sum()).backward()
        r([w.grad, out["parts"][2][0].requires_grad, out["w"] is w, out["n"]])


@attack(compiles=True)
def functional_calls_with_state(T, jit, r):
    F, o = T.nn.functional, O()
    o.p, o.training, o.w = 0.0, True, T.ones(2, 2)
    f = jit(lambda x: F.linear(F.dropout(F.softmax(x, dim=-1), o.p, o.training), o.w))
    x = T.tensor([[1.0, 2.0]])
    warm(r, f, x)
    o.w = T.zeros(2, 2)
    r(f(x))
    o.p, o.training = 0.5, False
    r(f(x))


# ---------------------------------------------------------------- numbers that are outputs until somebody looks


def _values(r, f, T):
    for v in (1.0, 1.0, 1.0, 1.0, 2.5, -0.0, 0.0, float("nan"), 1.0, -3.0):
        try:
            r(f(T.tensor([v, 1.0])))
        except (ValueError, ZeroDivisionError, OverflowError) as e:
            r(type(e).__name__)


@attack(compiles=True)
def numbers_returned(T, jit, r):
    P = collections.namedtuple("P", "a b")

    def f(x):
        s, t = x[0].item(), x.sum().item()
        kept = [s, (t, s)]
        d = {"s": s, "kept": kept}
        d["t"] = t
        kept.append(s)
        return d, s, kept, P(t, [s]), s is None, type(s) is float, isinstance(s, float)

    f = jit(f)
    _values(r, f, T)
    out = f(T.tensor([5.0, 1.0]))
    r([type(out[1]) is float, type(out[2][1][0]) is float, out[0]["kept"] is out[2], type(out[3]).__name__])


@attack()
def numbers_looked_at(T, jit, r):
    import json
    import math

    uses = (
        lambda s: {s: 1, 2.5: 2},
        lambda s: sorted({s, 1.0, 2.5}, key=str),
        lambda s: {k: 1 for k in [s, 1.0]},
        lambda s: len({k for k in [s, 1.0]}),
        lambda s: f"{s:.1f}|{s!r}",
        lambda s: "%s %.2f" % (s, s),
        lambda s: str([s]),
        lambda s: json.dumps([s]),
        lambda s: s or "zero",
        lambda s: 1 if s else 2,
        lambda s: s > 1,
        lambda s: [s] == [1.0],
        lambda s: s in (1.0, 2.5),
        lambda s: (1.0, 2.5).index(s) if s in (1.0, 2.5) else -1,
        lambda s: max([s, 1.5]),
        lambda s: sum([s, 1]),
        lambda s: sum(v for v in [s]),
        lambda s: round(s) if s == s else 0,
        lambda s: -s + abs(s) ** 2,
        lambda s: math.copysign(1.0, s),
        lambda s: list(map(abs, [s])),
        lambda s: s.is_integer(),
        lambda s: int(s) if s == s else None,
        lambda s: [v for v in [s] if v > 1],
        lambda s: dict([(s, 1)]),
        lambda s: {1.0: "a", 2.5: "b"}.get(s),
        lambda s: any([s]) and all([s]),
        lambda s: divmod(s, 2) if s == s else 0,
        lambda s: hash(s) if s == s else 0,
        lambda s: repr(s),
        lambda s: bool(s),
        lambda s: float(s),
        lambda s: s is s,
        lambda s: (lambda a, b=s: a + b)(1),
        lambda s: next(iter([s])),
        lambda s: [*(s, 1)],
        lambda s: complex(s) if s == s else 0,
        lambda s: min(s, 1.0, key=lambda v: -v),
        lambda s: sorted([2.0, s, 0.5]) if s == s else 0,
        lambda s: str(ValueError(s)),
    )
    for use in uses:
        _values(r, jit(lambda x, use=use: (x, use(x[0].item()))), T)


@attack()
def numbers_that_get_out(T, jit, r):
    o, log, d = O(), [], {}

    def f(x):
        o.last = x[0].item()
        return x

    def g(x):
        log.append(x[0].item())
        log.append([x[0].item()])
        return x

    def h(x):
        d["k"] = (x[0].item(), [x[1].item()])
        return x

    def e(x):
        try:
            raise ValueError(x[0].item())
        except ValueError as err:
            return x, err.args[0] + 1

    def c(x):
        s = x[0].item()
        return (lambda: s), x

    last = [None]

    def n(x):
        nonlocal last
        last = [x[0].item()]
        return x

    def p(x):
        global g_value
        import pickle

        g_value = x[0].item()
        return x, pickle.dumps(x[0].item()).hex()

    for fn in map(jit, (f, g, h, e, n, p)):
        _values(r, fn, T)
    r([type(o.last) is float, [type(v).__name__ for v in log], type(d["k"][0]) is float, type(d["k"][1][0]) is float])
    r(log[-2:])
    r([type(last[0]) is float, type(g_value) is float])
    c = jit(c)
    for v in (1.0, 2.0, 3.0, 3.0, 4.0):
        r(c(T.tensor([v, 1.0]))[0]())


@attack()
def numbers_into_tensors(T, jit, r):
    fs = (
        lambda x: x * x[0].item(),
        lambda x: x.sum().item() + x,
        lambda x: T.tensor([x[0].item(), 1.0]),
        lambda x: T.full((2,), x[1].item()),
        lambda x: x.clamp(max=x[0].item()),
        lambda x: x + [x[0].item()][0],
        lambda x: x.clone().fill_(x[0].item()),
    )
    for f in fs:
        _values(r, jit(f), T)


@attack(compiles=True)
def number_taken_before_a_write(T, jit, r):
    w = T.tensor([1.0])

    def f(x):
        before = w.item()
        w.add_(x)
        after = w.item()
        w.mul_(2)
        return before, after, w.item()

    f = jit(f)
    for v in (1.0, 1.0, 1.0, 2.0, 3.0, 4.0, -1.0):
        r(f(T.tensor([v])))
    r(w)


@attack(compiles=True)
def number_looked_at_after_other_branches(T, jit, r):
    def f(x):
        s = x[0].item()
        if x.sum() > 3:
            return s, "large"
        if s > 0:
            return s, "positive"
        return s, "other"

    f = jit(f)
    for v in (5.0, 6.0, 7.0, 8.0, 1.0, 1.0, 1.0, -1.0, 9.0, 2.0, -1.0, -1.0):
        r(f(T.tensor([v, 0.5])))


@attack(compiles=True)
def subclasses_of_builtins(T, jit, r):
    class P(collections.namedtuple("P", "a b")):
        scale = 2.0

        @property
        def both(self):
            return self.a + self.b

    class D(dict):
        def __init__(self, *args):
            super().__init__(*args)
            self.hidden = 1.0

        def get2(self, k):
            return self[k] * self.hidden

    o = O()
    o.p, o.d = P(1.0, [2.0]), D({"k": 3.0})
    f = jit(lambda x: x * o.p.a + o.p.b[0] + o.p.scale)
    g = jit(lambda x: x * o.d.get2("k") + len(o.d))
    x = T.tensor([1.0])
    warm(r, f, x)
    warm(r, g, x)
    o.p.b[0] = 7.0
    r(f(x))
    o.p = o.p._replace(a=5.0)
    r(f(x))
    P.scale = 9.0
    r(f(x))
    o.d.hidden = 4.0
    r(g(x))
    o.d["k"] = 6.0
    r(g(x))
    o.d["z"] = 1
    r(g(x))


# ---------------------------------------------------------------- numbers that change become inputs


def rates(T, jit, r, f, values, *args):
    """f with one number after another, each three times: recorded, compared, compiled."""
    f = jit(f)
    for v in values:
        for _ in range(3):
            r(f(*args, v))


NUMBERS = (0.1, 0.2, 0.3, 0.25, 0.0, -0.0, float("nan"), float("inf"), 1, True, False, 2, 3, -1, 1e300, 0.1, 2**60)


@attack(compiles=True)
def number_argument_changes(T, jit, r):
    rates(T, jit, r, lambda x, v: (x * v, v, [v * 2, -v], type(v).__name__), NUMBERS, T.tensor([1.0, -2.0]))


@attack(compiles=True)
def number_argument_of_all_operators(T, jit, r):
    def f(x, v):
        y = x.clone()
        y *= v
        y += v
        y -= v / 2 if v else v
        z = x.clone().mul_(v).add_(v).sub_(v)
        return x + v, v + x, x - v, v - x, x * v, v * x, x / (v + 5), (v + 1) / x, x**v, x == v, x != v, x < v, v >= x, y, z

    rates(T, jit, r, f, (0.1, 0.2, 1.5, 3, 2, 1, -0.0, 0.0), T.tensor([1.0, 2.0]))


@attack(compiles=True)
def number_argument_beside_integers(T, jit, r):
    def f(x, u, b, v):
        return x + v, x * v, u + v, v * u, b + v, b * v, (x + v).dtype == x.dtype, x / (v + 1), x > v

    x, u, b = T.tensor([1, 2]), T.tensor([200, 7], dtype=T.uint8), T.tensor([True, False])
    rates(T, jit, r, f, (1, 2, 3, 4, 5, 1.5, 2.5, 3.5, 2**40, 3), x, u, b)


@attack(compiles=True)
def number_argument_looked_at(T, jit, r):
    def branch(x, v):
        if v > 2:
            return x * v
        if v:
            return x + v
        return x - 1, v

    x = T.tensor([1.0, 2.0])
    rates(T, jit, r, branch, (0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 0.0, -0.0, float("nan"), 1, 2, 3, 4, 0, 1.5), x)


@attack()
def number_argument_in_structure(T, jit, r):
    def f(x, v):
        return (
            x[v], x[:v], x[v:], T.zeros(v, 2), x.reshape(v + 1, -1).shape, [x * i for i in range(v)], (x,) * v,
            {1: "one"}.get(v, "other"), f"{v}", "%d" % v, str(v), {v: x}, [10, 20, 30][v], "abc"[v:], v in (1, 2),
        )  # fmt: skip

    rates(T, jit, r, f, (0, 1, 0, 1, 2, 0, 1), T.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))


@attack()
def number_argument_in_lists_and_slices(T, jit, r):
    def f(x, v):
        s = slice(0, v)
        shape = [v, 2]
        return T.ones(*shape), T.tensor([v, 1.0]), x[s], x[[0, v]], T.full((2,), v), x.sum(dim=[v - 1]), x.clamp(min=v)

    rates(T, jit, r, f, (1, 1, 1), T.tensor([1.0, 2.0, 3.0]))
    rates(T, jit, r, lambda x, v: (T.full((2,), v), T.tensor([v, 2.0]), x.clamp(max=v)), (1.0, 2.0, 2.5), T.ones(3))


@attack(compiles=True)
def numbers_in_functions(T, jit, r):
    def f(x, v):
        a = math.sqrt(abs(v)) + min(v, 1.5) - max(v, 0.5, 1)
        return x * a, round(v), int(v), float(v), v // 2 if v else None, divmod(v, 3), sum([v, 1, a]), sorted([v, 1.0, a])

    rates(T, jit, r, f, (0.5, 0.7, 1.2, 2.5, 3, 4, -1.0, 2, 1), T.ones(2))
    rates(T, jit, r, lambda x, v: x * math.cos(v * 3.0) ** 2, (0.5, 0.7, 1.2, 2.5, 3, 4, -1.0), T.ones(2))


@attack(compiles=True)
def numbers_whose_arithmetic_fails(T, jit, r):
    def f(x, v):
        try:
            return x * (1 / v)
        except ZeroDivisionError:
            return x - 1

    rates(T, jit, r, f, (1.0, 2.0, 4.0, 0.0, 0, 3.0, 2, 4, 5, 0), T.ones(2))

    def g(x, v):
        return x * v**0.5 if v**0.5 == v**0.5 else x, v**200 % 7, -v

    rates(T, jit, r, g, (1, 2, 3, 4, 5, 10**20, 7, 2**53, 2**53 + 1), T.ones(2))


@attack(compiles=True)
def number_in_a_dict_changes(T, jit, r):
    group = {"lr": 0.1, "other": 1.0}
    w = T.tensor([1.0, 2.0])

    @jit
    def step(g):
        w.sub_(g * group["lr"])
        return group["lr"], group.get("lr", 3), group["lr"] * 2

    g = T.tensor([1.0, 1.0])
    for v in (*NUMBERS[:6], 1, True, 2, 3, "absent", 0.5):
        group["lr"] = v
        if v == "absent":
            del group["lr"]
            group["lr"] = 0.7
        for _ in range(3):
            r(step(g))
        r(w)
    old, group = group, {"lr": 9.0}
    r(step(g))
    r(w)
    old["lr"] = 5.0
    r(step(g))
    r(w)


@attack(compiles=True)
def number_of_two_names(T, jit, r):
    a, b = O(), O()
    a.lr = b.lr = 0.5
    f = jit(lambda x: (x * a.lr - b.lr, a.lr is b.lr if False else a.lr == b.lr))
    x = T.tensor([1.0, 2.0])
    for p, q in ((0.1, 0.1), (0.2, 0.2), (0.3, 0.3), (0.4, 0.4), (0.4, 0.5), (0.5, 0.6), (0.6, 0.7), (0.7, 0.7)):
        a.lr, b.lr = p, q
        for _ in range(3):
            r(f(x))
    a.__class__ = type("P", (O,), {"lr": property(lambda self: 100.0)})
    r(f(x))


@attack()
def number_identity(T, jit, r):
    a = O()
    a.lr = a.default = 1000.5
    f = jit(lambda x: x * a.lr if a.lr is a.default else x - a.lr)
    for v in (1000.5, 2000.5, 3000.5, 4000.5):
        a.lr = v
        for _ in range(3):
            r(f(T.ones(1)))
        a.default = a.lr
        r(f(T.ones(1)))


@attack(compiles=True)
def number_of_a_closure_and_a_global(T, jit, r):
    global g_value
    rate = 0.1

    def inner(x):
        return x * rate

    def f(x):
        return inner(x) + g_value, [rate * k for k in range(2)], (lambda: rate + 1)()

    f = jit(f)
    x = T.tensor([1.0, 2.0])
    for k in range(8):
        rate, g_value = 0.1 * k, 3.0 - k
        for _ in range(2):
            r(f(x))
    rate = 3
    r(f(x))
    rate, g_value = -0.0, True
    r(f(x))
    g_value = 1.0
    r(f(x))


@attack()
def number_on_fresh_objects(T, jit, r):
    def f(x, v):
        o = O()
        o.v, o.box = v, [v, {"v": v}]
        return o

    f = jit(f)
    for k in range(8):
        o = f(T.ones(1), k + 0.5)
        r([o.v, type(o.v).__name__, o.box, type(o.box[0]).__name__, type(o.box[1]["v"]).__name__])

    def g(x, v):
        o = O()
        o.v = v
        setattr(o, "w", v * 2)
        return x * o.v + o.w, [o.v], (o.w, {"v": o.v})

    g = jit(g)
    for k in range(8):
        r(g(T.ones(1), k + 0.5))

    def h(x, v):
        return lambda: v

    h = jit(h)
    for k in range(8):
        r([h(T.ones(1), k)(), type(h(T.ones(1), k)()).__name__])

    class Slotted:
        __slots__ = ("v",)

    class Failure(Exception):
        def __init__(self, v):
            self.v = v

    def g2(x, v):
        for k in range(2):
            yield v * k

    def slot(x, v):
        s = Slotted()
        s.v = v
        return s

    def fails(x, v):
        raise Failure(v)

    def matched(x, v):
        match v:
            case 3:
                return x
            case int(n):
                return x * n, type(n).__name__

    g2, slot, fails, matched = jit(g2), jit(slot), jit(fails), jit(matched)
    default = jit(lambda x, v: lambda w=v, *, u=v: (w, u))
    for k in range(8):
        r([type(v).__name__ for v in g2(T.ones(1), k)])
        r([type(slot(T.ones(1), k).v).__name__, [type(v).__name__ for v in default(T.ones(1), k)()]])
        r(matched(T.ones(1), k))
        try:
            fails(T.ones(1), k)
        except Failure as e:
            r([e.v, type(e.v).__name__])


@attack()
def number_changed_by_the_call(T, jit, r):
    o = O()
    o.n, o.seen = 0, []

    def f(x):
        o.n += 1
        o.seen.append(o.n)
        return x * o.n

    f = jit(f)
    for _ in range(8):
        r(f(T.ones(1)))
    r([o.n, o.seen, type(o.n).__name__, [type(v).__name__ for v in o.seen]])


@attack(compiles=True)
def number_and_gradients(T, jit, r):
    w = T.tensor([1.0, 2.0], requires_grad=True)

    def f(x, v):
        return (w * v * x).sum() + (w**2 * (v + 1)).sum() / (v + 2)

    f = jit(f)
    for k in range(8):
        w.grad = None
        y = f(T.tensor([1.0, 3.0]), 0.5 * k)
        r(y)
        y.backward()
        r(w.grad)


@attack(compiles=True)
def item_beside_tensors(T, jit, r):
    w = T.tensor([1.0, 2.0], requires_grad=True)

    def f(x):
        s = (w * x).sum().item()
        return (w * s).sum() + (w / s * x).sum(), s, x * x.max().item()

    f = jit(f)
    for k in range(8):
        w.grad = None
        y, s, z = f(T.tensor([1.0, 3.0 + k]))
        r([y, s, z])
        y.backward()
        r(w.grad)


@attack(compiles=True)
def numbers_by_name_and_in_containers(T, jit, r):
    def f(x, *args, scale=1.0, cfg=None):
        return x * scale + args[0] - args[-1] * cfg["k"], args, cfg["k"] * scale

    f = jit(f)
    for k in range(6):
        for _ in range(2):
            r(f(T.ones(1), k, 0.5 * k, scale=k + 0.25, cfg={"k": k % 2}))
    r(f(T.ones(1), 1, 2.0, cfg={"k": 1}))
    r(f(T.ones(1), 1.0, True, scale=1, cfg={"k": 1.0}))


@attack(compiles=True)
def schedule_of_a_train_step(T, jit, r):
    for make in (lambda p: T.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1), lambda p: T.optim.AdamW(p, lr=0.1)):
        w = T.nn.Parameter(T.tensor([1.0, 2.0]))
        opt = make([w])
        schedule = T.optim.lr_scheduler.StepLR(opt, 2, 0.5)

        def step(x):
            opt.zero_grad()
            loss = ((w * x) ** 2).sum()
            loss.backward()
            opt.step()
            return loss

        step = jit(step)
        for k in range(14):
            r(step(T.tensor([1.0, 0.5])))
            r(w)
            schedule.step()
            if k == 9:
                opt.param_groups[0]["lr"] = 1
            if k == 11:
                opt.param_groups[0]["weight_decay"] = 0
            if k == 12:
                opt.load_state_dict(opt.state_dict())


# ---------------------------------------------------------------- custom gradient rules


@attack(compiles=True)
def custom_rule_inside(T, jit, r):
    o = O()
    o.scale = 2.0

    class Scaled(T.autograd.Function):
        @staticmethod
        def forward(ctx, x, k):
            ctx.save_for_backward(x)
            ctx.k = k * o.scale
            return x * ctx.k

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * ctx.k + x * o.scale, None

    w = T.tensor([1.0, 2.0], requires_grad=True)

    def step(x, k):
        w.grad = None
        loss = (Scaled.apply(w * x, k) ** 2).sum()
        loss.backward()
        return loss.detach(), w.grad.clone()

    step, plain = jit(step), jit(lambda x: Scaled.apply(x, 3.0))
    x = T.tensor([1.0, 3.0])
    warm(r, step, x, 2)
    warm(r, plain, x)
    for change in range(6):
        if change == 0:
            o.scale = 5.0
        if change == 1:
            Scaled.backward = staticmethod(lambda ctx, g: (g * 100, None))
        if change == 2:
            Scaled.forward = staticmethod(lambda ctx, x, k: x + k)
        if change == 3:
            Scaled.forward.__defaults__ = ()
            Scaled.forward.__code__ = (lambda ctx, x, k: x - k).__code__
        if change == 4:
            Scaled.backward = staticmethod(lambda ctx, g: (g if o.scale > 5 else -g, None))
        if change == 5:
            o.scale = 6.0
        warm(r, step, x, 2)
        r(step(x, 2.5))
        r(plain(x))


@attack()
def custom_rule_with_effects(T, jit, r):
    log = []

    class Noted(T.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            log.append("forward")
            ctx.kept = x
            return x

        @staticmethod
        def backward(ctx, g):
            log.append("backward")
            return g * ctx.kept

    w = T.tensor([1.0, 2.0], requires_grad=True)

    def step(x):
        w.grad = None
        Noted.apply(w * x).sum().backward()
        return w.grad.clone()

    step, out = jit(step), jit(lambda x: Noted.apply(w * x))
    for k in range(7):
        r(step(T.tensor([1.0, 3.0 + k])))
        r(len(log))
        y = out(T.tensor([1.0, 3.0 + k]))
        w.grad = None
        y.sum().backward()
        r([y, w.grad, len(log)])


@attack()
def custom_rule_called_through_an_outside_tape(T, jit, r):
    class Cubed(T.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            return 3 * g * ctx.saved_tensors[0] ** 2

    w = T.tensor([1.0, 2.0], requires_grad=True)
    f = jit(lambda y: (y * 2).sum().backward())
    for k in range(7):
        w.grad = None
        f(Cubed.apply(w * k))
        r(w.grad)
    g = jit(lambda x: Cubed.apply(x))
    for k in range(7):
        w.grad = None
        y = g(w * k)
        r(y)
        y.sum().backward()
        r(w.grad)
