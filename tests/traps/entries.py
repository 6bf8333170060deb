"""Attacks on the native entry: calls that look like the last one and are not, objects that move, die or call back.

As in `attacks.py`, each is a function (T, jit, r) that must observe the same compiled as eager. Most warm a function up until its calls run
without Python, then change one thing. `@attack(native=True)` says that calls really ran so.
"""

import copy
import functools
import gc
import operator
import threading
import weakref

import numpy as np

ATTACKS = []
W = 9


def attack(native=True):
    def add(fn):
        ATTACKS.append((fn.__name__, fn, native))
        return fn

    return add


def warm(r, f, *args, **kwargs):
    for _ in range(W):
        r(f(*args, **kwargs))


def raised(f, *args, **kwargs):
    try:
        return f(*args, **kwargs)
    except Exception as e:  # noqa: BLE001
        return type(e).__name__


class O:
    pass


# ---------------------------------------------------------------- arguments that are not quite the same


@attack()
def argument_of_a_subclass(T, jit, r):
    class Sub(T.Tensor):
        __slots__ = ()

        def __mul__(self, other):
            return T.Tensor.__add__(self, other)

    f = jit(lambda x: x * 2)
    warm(r, f, T.ones(3))
    r(f(Sub(np.ones(3, "f4"))))
    r(f(T.nn.Parameter(T.ones(3))))
    r(f(T.ones(3)))


@attack()
def argument_of_another_dtype_shape_or_rank(T, jit, r):
    f = jit(lambda x: x + x.sum())
    warm(r, f, T.ones(2, 3))
    for x in (T.ones(3, 2), T.ones(6), T.ones(2, 3, 1), T.ones(2, 3, dtype=T.float64), T.ones(2, 3, dtype=T.int64), T.ones(0, 3), T.tensor(2.0)):
        r(f(x))
    r(f(T.ones(2, 3)))


@attack()
def argument_that_is_transposed(T, jit, r):
    f = jit(lambda x: x * T.tensor([1.0, 2.0, 3.0]))
    x = T.arange(9.0).reshape(3, 3)
    warm(r, f, x)
    r(f(x.t()))
    r(f(x.flip(0)))
    r(f(T.arange(6.0).reshape(3, 2)[:, :1].expand(3, 3)))


@attack()
def memory_swapped_behind_the_tensor(T, jit, r):
    x, y = T.ones(3), T.zeros(3)
    f = jit(lambda x: x * 2 + 1)
    warm(r, f, x)
    x.data = y
    r(f(x))
    y.add_(5)
    r(f(x))
    x.data = T.ones(4)
    r(f(x))


@attack()
def read_only_memory(T, jit, r):
    f = jit(lambda x: x.add_(1))
    x = T.zeros(3)
    warm(r, f, x)
    a = np.zeros(3, "f4")
    a.flags.writeable = False
    y = T.from_numpy(a)
    r(raised(f, y))
    r(a.tolist())
    r(f(x))


@attack()
def two_arguments_are_one(T, jit, r):
    def f(a, b):
        a.add_(1)
        return a * b

    f = jit(f)
    x, y = T.ones(3), T.ones(3)
    warm(r, f, x, y)
    r(f(x, x))
    r(f(x, y))
    r([x, y])


@attack()
def one_argument_twice_becomes_two(T, jit, r):
    f = jit(lambda a, b: a.add_(b))
    x, y = T.ones(3), T.ones(3)
    warm(r, f, x, x)
    r(f(x, y))
    r(f(y, x))


@attack()
def arguments_that_overlap(T, jit, r):
    def f(a, b):
        a.mul_(2)
        return b + a

    f = jit(f)
    x, y = T.ones(4), T.ones(4)
    warm(r, f, x, y)
    base = T.arange(6.0)
    r(f(base[:4], base[2:]))
    r(f(base[2:], base[:4]))
    r(base)
    a = np.arange(5, dtype="f4")
    r(f(T.from_numpy(a[:4]), T.from_numpy(a[1:])))
    r(a.tolist())


@attack()
def argument_that_overlaps_state(T, jit, r):
    p = T.ones(4)

    def f(x):
        p.add_(x)
        return p * 2

    f = jit(f)
    warm(r, f, T.ones(4))
    r(f(p.detach()))
    r(f(p))
    q = T.arange(4.0)
    r(f(q))
    p.data = q
    r(f(q))
    r([p, q])


@attack()
def state_moves_into_the_argument(T, jit, r):
    m = O()
    m.w = T.ones(3)

    def f(x):
        m.w.add_(1)
        return x * m.w

    f = jit(f)
    x = T.ones(3)
    warm(r, f, x)
    m.w = x
    r(f(x))
    r(f(T.ones(3)))
    m.w = T.ones(3)
    r(f(x))


@attack()
def views_as_arguments(T, jit, r):
    data = T.arange(40.0).reshape(10, 4)
    f = jit(lambda x: (x * 2).sum(1))
    for k in range(W):
        r(f(data[k : k + 2]))
    v = data[:2]
    r(f(v))
    data.mul_(3)
    r(f(v))
    v.add_(1)
    r(f(v))
    r(f(data[1:3].detach()))


@attack()
def view_whose_base_gets_a_tape(T, jit, r):
    f = jit(lambda x: x * 2)
    base = T.zeros(4)
    v = base[:2]
    warm(r, f, v)
    w = T.ones(4, requires_grad=True)
    base.add_(w)
    y = f(v)
    r([y, y.requires_grad])
    y.sum().backward()
    r(w.grad)


@attack()
def argument_on_the_tape(T, jit, r):
    f = jit(lambda x: (x * x).sum())
    w = T.tensor([1.0, 2.0], requires_grad=True)
    for k in range(W):
        y = f(w * k)
        y.backward()
        r([y, w.grad])
    r(f((w * 3).detach()))
    with T.no_grad():
        r(f(w * 3))


@attack()
def requires_grad_comes_and_goes(T, jit, r):
    f = jit(lambda x: x * 3)
    x = T.ones(2)
    warm(r, f, x)
    x.requires_grad_()
    y = f(x)
    y.sum().backward()
    r([y, x.grad])
    r(f(x))
    x.grad = None
    x.requires_grad_(False)
    r(f(x))


@attack()
def grad_of_an_argument_comes_and_goes(T, jit, r):
    def f(x):
        return x * 2 if x.grad is None else x.grad + 1

    f = jit(f)
    x = T.ones(2)
    warm(r, f, x)
    x.grad = T.ones(2)
    warm(r, f, x)
    x.grad = T.full((2,), 7.0)
    r(f(x))
    x.grad = None
    r(f(x))


@attack()
def hook_on_an_argument(T, jit, r):
    def f(x):
        (x * x).sum().backward()
        return x * 2

    f = jit(f)
    x = T.ones(2, requires_grad=True)
    for _ in range(W):
        x.grad = None
        r([f(x), x.grad])
    x.register_hook(lambda g: g * 10)
    x.grad = None
    r([f(x), x.grad])


@attack()
def numbers_that_are_equal_and_not_the_same(T, jit, r):
    f = jit(lambda x, k: x * k if type(k) is not bool else x + 100)
    x = T.ones(2)
    warm(r, f, x, 1)
    for k in (True, 1.0, np.float64(1.0), 1, T.tensor(1.0), 0.0, -0.0, float("nan"), 2**70, -1):
        r(raised(f, x, k))


@attack()
def negative_zero(T, jit, r):
    f = jit(lambda x, k: x / k if k == 0 else x)
    x = T.ones(2)
    warm(r, f, x, 0.0)
    r(f(x, -0.0))
    r(f(x, 0.0))


@attack()
def number_of_a_subclass(T, jit, r):
    class Float(float):
        def __mul__(self, other):
            return other + 5

        __rmul__ = __mul__

    class Int(int):
        def __index__(self):
            return 1

    f = jit(lambda x, k: x * k)
    x = T.ones(2)
    warm(r, f, x, 2.0)
    r(raised(f, x, Float(2.0)))
    warm(r, f, x, 2)
    r(raised(f, x, Int(2)))


@attack()
def text_that_is_equal_and_another_object(T, jit, r):
    f = jit(lambda x, mode: x * 2 if mode == "double" else x)
    x = T.ones(2)
    warm(r, f, x, "double")
    r(f(x, "".join(["dou", "ble"])))
    r(f(x, "single"))
    r(f(x, "double"))


@attack()
def keywords_in_another_order(T, jit, r):
    f = jit(lambda x, a=1.0, b=2.0, **more: x * a - b + len(more))
    x = T.ones(2)
    warm(r, f, x, a=T.ones(2), b=T.zeros(2))
    r(f(x, b=T.ones(2), a=T.zeros(2)))
    r(f(x, T.ones(2), b=T.zeros(2)))
    r(f(x, T.ones(2), T.zeros(2)))
    r(f(x, a=T.ones(2), b=T.zeros(2), c=T.ones(2)))
    r(f(a=T.ones(2), b=T.zeros(2), x=x))
    r(f(**{"".join(["x"]): x, "a": T.ones(2), "".join("b"): T.zeros(2)}))
    r(f(x))


@attack()
def wrong_arguments(T, jit, r):
    f = jit(lambda x, y: x + y)
    x = T.ones(2)
    warm(r, f, x, x)
    r(raised(f))
    r(raised(f, x))
    r(raised(f, x, x, x))
    r(raised(f, x, z=x))
    r(raised(f, x, y=x, x=x))
    r(f(x, x))


@attack()
def defaults_mutated(T, jit, r):
    def f(x, k=2.0, *, s=None):
        return x * k if s is None else x + s["a"]

    g = jit(f)
    x = T.ones(2)
    warm(r, g, x)
    f.__defaults__ = (5.0,)
    r(g(x))
    f.__kwdefaults__ = {"s": {"a": 1.0}}
    warm(r, g, x)
    f.__kwdefaults__["s"]["a"] = 3.0
    r(g(x))
    f.__kwdefaults__ = None
    r(raised(g, x))


@attack()
def none_and_flags(T, jit, r):
    f = jit(lambda x, m, flag: x if m is None else x * m if flag else x - m)
    x, m = T.ones(2), T.full((2,), 3.0)
    for args in ((x, None, True), (x, m, True), (x, m, False), (x, None, False), (x, m, None), (x, m, 0), (x, m, 1)):
        warm(r, f, *args)
    for args in ((x, m, False), (x, None, True), (x, m, True)):
        r(f(*args))


@attack()
def containers_as_arguments(T, jit, r):
    def f(batch, rest):
        return batch["x"] * batch["y"] + sum(rest), len(rest)

    f = jit(f)
    a, b = T.ones(2), T.full((2,), 2.0)
    warm(r, f, {"x": a, "y": b}, [a, b])
    r(f({"y": b, "x": a}, [a, b]))
    r(f({"x": a, "y": b}, (a, b)))
    r(f({"x": a, "y": b}, [a, b, a]))
    r(f({"x": a, "y": b}, [a, a]))
    r(f({"x": a, "y": b, "z": 1}, [b, a]))
    r(raised(f, {"x": a}, [a, b]))
    d, l = {"x": a, "y": b}, [a, b]
    warm(r, f, d, l)
    l.append(3.0)
    r(f(d, l))
    l.pop()
    d["y"] = 2.0
    r(f(d, l))


@attack()
def containers_that_are_one(T, jit, r):
    def f(a, b):
        return a[0] + b[0], a is b

    f = jit(f)
    x = T.ones(2)
    l = [x]
    warm(r, f, l, l)
    r(f(l, [x]))
    warm(r, f, [x], [x])
    r(f(l, l))


@attack()
def containers_of_subclasses(T, jit, r):
    class L(list):
        def __getitem__(self, i):
            return list.__getitem__(self, i) * 100

    class D(dict):
        def __getitem__(self, k):
            return dict.__getitem__(self, k) + 7

    f = jit(lambda l, d: l[0] + d["a"])
    x = T.ones(2)
    warm(r, f, [x], {"a": x})
    r(f(L([x]), {"a": x}))
    r(f([x], D(a=x)))
    r(f((x,), {"a": x}))


@attack()
def dict_keys_with_code(T, jit, r):
    class K:
        def __init__(self, name):
            self.name = name

        def __hash__(self):
            return hash("a")

        def __eq__(self, other):
            return other == "a" or (isinstance(other, K) and other.name == self.name)

    f = jit(lambda d: d["a"] * 2)
    x, y = T.ones(2), T.zeros(2)
    warm(r, f, {"a": x})
    r(f({K("k"): y}))
    r(f({"a": y}))


@attack()
def nested_containers(T, jit, r):
    f = jit(lambda t: t[0][1]["k"][0] * t[1])
    x = T.ones(2)
    warm(r, f, ((1, {"k": [x]}), 2.0))
    r(f(((1, {"k": [x, x]}), 2.0)))
    r(f(((2, {"k": [x]}), 2.0)))
    r(f(((1, {"k": [x]}), 3.0)))
    r(raised(f, ((1, {"k": []}), 2.0)))
    r(raised(f, ((1, {}), 2.0)))


@attack()
def object_replaced_by_its_equal(T, jit, r):
    class C:
        def __init__(self, k):
            self.k = k

        def __eq__(self, other):
            return True

        __hash__ = None

    f = jit(lambda x, c: x * c.k)
    x, c = T.ones(2), C(2.0)
    warm(r, f, x, c)
    r(f(x, C(3.0)))
    c.k = 4.0
    r(f(x, c))

    class Other(C):
        @property
        def k(self):
            return 9.0

        @k.setter
        def k(self, v):
            pass

    c.__class__ = Other
    r(f(x, c))


@attack()
def object_dies_and_its_address_is_used_again(T, jit, r):
    f = jit(lambda x, c: x * c.k)
    x = T.ones(2)
    for k in range(40):
        c = O()
        c.k = float(k % 3)
        for _ in range(1 + 8 * (k == 0)):
            r(f(x, c))
        del c


@attack()
def arguments_die_and_their_addresses_are_used_again(T, jit, r):
    f = jit(lambda x, y: x - y)
    for k in range(60):
        a, b = T.full((3,), float(k)), T.full((3,), 1.0)
        r(f(a, b) if k % 7 else f(b, a))
        del a, b


# ---------------------------------------------------------------- modes, settings, threads


@attack()
def grad_mode_around_the_call(T, jit, r):
    w = T.ones(2, requires_grad=True)
    f = jit(lambda x: w * x)
    x = T.ones(2)
    for _ in range(2):
        warm(r, f, x)
        with T.no_grad():
            warm(r, f, x)
    T.set_grad_enabled(False)
    r(f(x))
    T.set_grad_enabled(True)
    r(f(x))


@attack()
def settings_change(T, jit, r):
    f = jit(lambda x: x * T.ones(2))
    x = T.ones(2, dtype=T.float64)
    warm(r, f, x)
    T.set_default_dtype(T.float64)
    try:
        r(f(x).dtype)
    finally:
        T.set_default_dtype(T.float32)
    r(f(x).dtype)
    with T.config.override(eager=True):
        r(f(x))
    with T.eager():
        r(f(x))
    r(f(x))


@attack()
def modes_of_other_threads(T, jit, r):
    w = T.ones(2, requires_grad=True)
    f = jit(lambda x: w * x)
    x = T.ones(2)
    warm(r, f, x)
    with T.no_grad():
        warm(r, f, x)
        seen = []
        t = threading.Thread(target=lambda: seen.extend(f(x).requires_grad for _ in range(4)))
        t.start()
        t.join()
        r(seen)
        r(f(x))


@attack()
def many_threads_at_once(T, jit, r):
    f = jit(lambda x, y: (x * y + 1, [x - y]))
    warm(r, f, T.ones(4), T.ones(4))
    bad = []

    def work(k):
        for i in range(300):
            a, [b] = f(T.full((4,), float(k)), T.full((4,), float(i)))
            if a.tolist() != [k * i + 1.0] * 4 or b.tolist() != [k - float(i)] * 4:
                bad.append((k, i))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    r(bad)


@attack()
def called_while_another_function_is_recorded(T, jit, r):
    f = jit(lambda x: x * 2)
    x = T.ones(2)
    warm(r, f, x)
    k = [1.0]
    g = jit(lambda x: f(x) + k[0])
    warm(r, g, x)
    k[0] = 5.0
    r(g(x))


# ---------------------------------------------------------------- what comes back


@attack()
def outputs_are_new_in_every_call(T, jit, r):
    f = jit(lambda x: (x * 2, [x + 1, {"k": x - 1}]))
    x = T.ones(2)
    kept = [f(x) for _ in range(W)]
    for k, (a, [b, d]) in enumerate(kept):
        a.add_(k)
        b.mul_(k)
        d["k"] = k
    r(kept)
    r(f(x))
    r(len({id(a) for a, _ in kept}))


@attack()
def outputs_that_are_inputs(T, jit, r):
    p = T.zeros(2)
    l = [1]

    def f(x, d):
        p.add_(1)
        return x, p, d, x, l

    f = jit(f)
    x, d = T.ones(2), {"a": T.ones(1)}
    for _ in range(W):
        a, b, c, e, g = f(x, d)
        r([a is x, b is p, c is d, e is x, g is l, b])


@attack()
def outputs_are_ordinary_tensors(T, jit, r):
    f = jit(lambda x: x * 2)
    x = T.ones(2)
    warm(r, f, x)
    y = f(x)
    r([y.is_leaf, y.requires_grad, y.grad, y.grad_fn, y.shape, str(y.dtype)])
    y.add_(1)
    y.requires_grad_()
    (y * y).sum().backward()
    r([y, y.grad])
    r(copy.deepcopy(y))
    ref = weakref.ref(y)
    del y
    r(ref() is None)


@attack()
def outputs_large_and_small(T, jit, r):
    f = jit(lambda x: (x * 2, x.sum(), x[:0] + 1))
    for n in (1, 100, 9000, 100_000):
        x = T.ones(n)
        for _ in range(W):
            a, b, c = f(x)
            r([a.sum(), b, c.shape])


@attack()
def numbers_that_come_back(T, jit, r):
    f = jit(lambda x: (x.sum().item(), [x.double().max().item()], x * 2))
    for k in range(W + 2):
        r(f(T.full((2,), float(k))))


@attack(native=False)
def numbers_that_are_keys(T, jit, r):
    f = jit(lambda x: {x.sum().item(): x * 2})
    for k in range(W + 2):
        d = f(T.full((2,), float(k)))
        r([list(d), d[2.0 * k]])


@attack()
def numbers_that_are_kept_and_shown(T, jit, r):
    log, seen = [], {}

    def f(x):
        k = x.sum().item()
        log.append(k)
        seen["last"] = k
        return x * 2, k

    f = jit(f)
    for k in range(W + 2):
        r(f(T.full((2,), float(k))))
        r([log, seen])


@attack()
def branches_on_data(T, jit, r):
    def f(x):
        if (x.sum() > 0).item():
            return x * 2
        return x - 1

    f = jit(f)
    for k in range(4 * W):
        r(f(T.full((2,), 1.0 if k % 3 else -1.0)))


@attack()
def versions_are_counted(T, jit, r):
    p = T.ones(3)

    def f(x):
        p.mul_(2).add_(x)
        return p.sum()

    f = jit(f)
    x = T.ones(3)
    warm(r, f, x)
    w = T.ones(3, requires_grad=True)
    y = w * p
    before = p._version.n
    f(x)
    r(p._version.n - before)
    r(raised(y.sum().backward))


@attack()
def views_of_what_is_written(T, jit, r):
    p = T.zeros(4)
    v = p[1:3]

    def f(x):
        p.add_(x)
        return p * 2

    f = jit(f)
    warm(r, f, T.ones(4))
    r([v, v + 1])
    v.mul_(10)
    r(f(T.ones(4)))


# ---------------------------------------------------------------- state


@attack()
def parameters_replaced(T, jit, r):
    m = T.nn.Linear(2, 2)
    with T.no_grad():
        m.weight.fill_(1.0)
        m.bias.fill_(0.0)
    f = jit(m)
    x = T.ones(1, 2)
    warm(r, f, x)
    m.weight = T.nn.Parameter(T.full((2, 2), 3.0))
    r(f(x))
    m.bias = None
    r(f(x))
    m.weight.data = T.ones(2, 2)
    r(f(x))
    with T.no_grad():
        m.weight.zero_()
    r(f(x))
    m.register_forward_hook(lambda m, a, y: y + 5)
    r(f(x))


@attack()
def parameter_dies(T, jit, r):
    m = O()
    m.w = T.full((2,), 2.0)
    f = jit(lambda x: x * m.w)
    x = T.ones(2)
    warm(r, f, x)
    for k in range(5):
        del m.w
        r(raised(f, x))
        m.w = T.full((2,), float(k))
        r(f(x))


@attack()
def train_step(T, jit, r):
    w = T.nn.Parameter(T.tensor([1.0, -2.0]))
    o = T.optim.Adam([w], lr=0.1)

    def step(x):
        o.zero_grad()
        loss = ((w * x) ** 2).sum()
        loss.backward()
        o.step()
        return loss

    step = jit(step)
    for k in range(2 * W):
        r([step(T.full((2,), 1.0 + k)), w, w.grad])
    o.param_groups[0]["lr"] = 0.5
    r([step(T.ones(2)), w])
    w.grad = None
    r([step(T.ones(2)), w, w.grad])
    r(raised(step(T.ones(2)).backward))
    w.requires_grad_(False)
    r(raised(step, T.ones(2)))


@attack()
def gradients_outside(T, jit, r):
    w = T.nn.Parameter(T.tensor([1.0, -2.0]))
    f = jit(lambda x: ((w * x).tanh().sum(), w * 2))
    for k in range(W):
        a, b = f(T.full((2,), 0.1 * k))
        (a + b.sum()).backward()
        r([a, b, w.grad])
    a, _ = f(T.ones(2))
    with T.no_grad():
        w.add_(1)
    r(raised(a.backward))


@attack()
def random_numbers(T, jit, r):
    f = jit(lambda x: x * T.rand(3))
    T.manual_seed(3)
    warm(r, f, T.ones(3))
    T.manual_seed(3)
    warm(r, f, T.ones(3))
    state = T.get_rng_state()
    r(f(T.ones(3)))
    T.set_rng_state(state)
    r(f(T.ones(3)))
    T.manual_seed(0)


@attack(native=False)
def effects_in_order(T, jit, r):
    log, m = [], O()
    m.n = 0

    def f(x):
        m.n += 1
        log.append(m.n)
        m.last = x * m.n
        return m.last

    f = jit(f)
    for _ in range(2 * W):
        r(f(T.ones(2)))
    r([m.n, log, m.last])
    m.n = 50
    r(f(T.ones(2)))
    del m.last
    r(f(T.ones(2)))
    r(log)


# ---------------------------------------------------------------- called in other ways, called back


@attack()
def called_in_every_way(T, jit, r):
    f = jit(lambda *xs, **k: sum(xs) + sum(k.values()))
    x = T.ones(2)
    warm(r, f, x, x)
    r(f(*[x, x]))
    r(f(*(x,), *[x]))
    r(f(*(x for _ in range(2))))
    r(functools.partial(f, x)(x))
    r(operator.call(f, x, x) if hasattr(operator, "call") else f(x, x))
    r(list(map(f, [x], [x])))
    r(functools.reduce(f, [x, x, x]))
    r(f.__call__(x, x))
    r(f(x, a=x))
    r(f(*[x] * 40))
    r(f(x, x))


@attack()
def methods(T, jit, r):
    class C:
        def __init__(self, k):
            self.k = k

        @jit
        def f(self, x):
            return x * self.k

        @staticmethod
        @jit
        def s(x):
            return x + 1

    a, b = C(2.0), C(3.0)
    x = T.ones(2)
    for _ in range(W):
        r([a.f(x), b.f(x), C.s(x), C.f(a, x)])
    a.k = 7.0
    r(a.f(x))
    m = b.f
    b.k = 1.0
    r(m(x))


@attack()
def a_copy_outlives_the_original(T, jit, r):
    f = jit(lambda x: x * 2)
    x = T.ones(2)
    warm(r, f, x)
    g = copy.copy(f)
    r(g(x))
    del f
    gc.collect()
    warm(r, g, x)


@attack()
def finalizers_call_back(T, jit, r):
    """The gradient of the call before dies in this one, and takes the chance to call another compiled function."""
    w, p = T.nn.Parameter(T.ones(2)), T.zeros(2)
    seen = []

    def step(x):
        w.grad = None
        (w * x).sum().backward()
        return w * 1

    def other(x):
        p.add_(x)
        return p * 2

    step, other = jit(step), jit(other)
    x = T.ones(2)
    warm(r, step, x)
    warm(r, other, x)
    for k in range(4):
        step(x)
        weakref.finalize(w.grad, lambda k=k: seen.append((k, other(x * 3).tolist())))
        r(step(x * 2))
        r(w.grad)
    r([seen, p])


@attack()
def collected_in_the_middle(T, jit, r):
    """Allocation may run a collection, whose finalizers call the function that is just being called."""
    p = T.zeros(2)

    def f(x):
        p.add_(x)
        return x * 2, [x + 1], {"k": (x - 1, x * 3)}

    f = jit(f)
    x = T.ones(2)
    warm(r, f, x)

    class Calls:
        def __init__(self):
            self.me = self

        def __del__(self):
            y, [z], d = f(x)
            bad.extend([] if (y + z - d["k"][0]).tolist() == [4.0, 4.0] else [y, z, d])

    bad, threshold = [], gc.get_threshold()
    gc.set_threshold(1)
    try:
        for k in range(60):
            Calls()
            y, [z], d = f(x * k)
            bad.extend([] if (y - z).tolist() == [k - 1.0] * 2 and d["k"][1].tolist() == [3.0 * k] * 2 else [y, z, d])
    finally:
        gc.set_threshold(*threshold)
        gc.collect()
    r(bad)
    r(p)  # each collected object has called once


@attack()
def a_value_that_calls_back_when_asked(T, jit, r):
    f = jit(lambda x, y: x + y)
    x = T.ones(2)
    warm(r, f, x, x)

    class Sly(T.Tensor):
        __slots__ = ()

        def __radd__(self, other):
            return f(other, other) * 10

        __add__ = __radd__

    r(f(Sly(np.ones(2, "f4")), x))
    r(f(x, x))


@attack(native=False)
def a_function_that_calls_itself(T, jit, r):
    def f(x, n):
        return x if n == 0 else g(x * 2, n - 1)

    g = jit(f)
    for n in (0, 1, 2, 3):
        warm(r, g, T.ones(2), n)


@attack(native=False)
def more_tensors_than_are_told_apart(T, jit, r):
    f = jit(lambda *xs: sum(xs))
    xs = [T.full((2,), float(k)) for k in range(60)]
    warm(r, f, *xs)
    xs[3] = xs[50]
    r(f(*xs))


# ---------------------------------------------------------------- numbers that are inputs


@attack()
def numbers_that_change(T, jit, r):
    f = jit(lambda x, k: x * k + k * 2)
    for k in range(3 * W):
        r(f(T.ones(2), 0.5 * k))
    for k in (float("nan"), -0.0, float("inf"), 3, True, 2**80, 1e300):
        r(raised(f, T.ones(2), k))


@attack()
def integers_that_change(T, jit, r):
    f = jit(lambda x, k: x * k + (k * 2 - 1))
    for k in range(3 * W):
        r(f(T.ones(2), k))
    for k in (2**53, 2**53 + 1, -(2**53) - 1, 2**70, -(2**70), 1.0, False):
        r(raised(f, T.ones(2), k))
    r(f(T.ones(2), 3))


@attack()
def numbers_that_python_computes_with(T, jit, r):
    m = O()
    m.lr, m.t = 0.5, 0
    cfg = {"decay": 0.9}

    def f(x, k):
        rate = m.lr * cfg["decay"] ** k / (1 + k)
        return x * rate, rate

    f = jit(f)
    for k in range(3 * W):
        m.lr = 0.5 + k
        cfg["decay"] = 1.0 / (k + 1)
        r(f(T.ones(2), k))
    r(raised(f, T.ones(2), -1))  # divides by zero
    m.lr = "text"
    r(raised(f, T.ones(2), 1))
    del m.lr
    r(raised(f, T.ones(2), 1))
    m.lr = 2
    r(f(T.ones(2), 1))


@attack()
def numbers_that_steer(T, jit, r):
    f = jit(lambda x, k: x * k if k > 3 else x - k)
    for k in (1.0, 2.0, 5.0, 4.0, 2.5, 9.0) * W:
        r(f(T.ones(2), k))


@attack()
def learning_rate_on_a_schedule(T, jit, r):
    w = T.nn.Parameter(T.tensor([1.0, -2.0]))
    o = T.optim.SGD([w], lr=0.1, momentum=0.9)

    def step(x):
        o.zero_grad()
        loss = ((w * x) ** 2).sum()
        loss.backward()
        o.step()
        return loss

    step = jit(step)
    for k in range(3 * W):
        o.param_groups[0]["lr"] = 0.1 / (k + 1)
        r([step(T.full((2,), 0.5)), w, w.grad])


@attack(native=False)
def numbers_and_keywords(T, jit, r):
    f = jit(lambda x, *, k, j=1.0: x * k - j)
    for k in range(2 * W):
        r(f(T.ones(2), k=0.5 * k))
        r(f(T.ones(2), j=k + 0.25, k=1.5))


@attack()
def extents_that_change(T, jit, r):
    def f(x, y):
        if x.shape[0] > 6:
            return (x @ y).sum(0), x.shape[0]
        return (x @ y).sum(0) * 2, x.shape[0]

    f = jit(f)
    for k in range(12 * W):
        n = 2 + k % 9
        r(f(T.full((n, 3), 1.0 + k), T.ones(3, 2)))
    r(f(T.ones(1, 3), T.ones(3, 2)))
    r(f(T.ones(0, 3), T.ones(3, 2)))
    r(f(T.ones(40, 3), T.ones(3, 2)))
    r(f(T.ones(3, 5).t(), T.ones(3, 2)))
    r(raised(f, T.ones(5, 4), T.ones(3, 2)))


@attack()
def extents_and_writes(T, jit, r):
    total = T.zeros(3)

    def f(x):
        total.add_(x.sum(0))
        return x * total

    f = jit(f)
    for k in range(12 * W):
        r(f(T.full((2 + k % 4, 3), 1.0)))
    r(total)
    base = T.arange(18.0).reshape(6, 3)
    for n in (2, 3, 4, 5, 2, 3):
        r(f(base[:n]))
    total.data = base[5]
    r(f(base))
    r(f(base[:5]))
    r([base, total])
