"""Programs that change the world outside, written by someone who did not build the replay of effects.

Each gives (function, call number -> arguments, what to look at afterwards); `program` makes of it what `effects.py` has.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import heapq
import logging
import random
import time
import warnings

import numpy as np

import tracejit as tj

PROGRAMS = []
N = 14


def program(make):
    def build(_):
        tj.manual_seed(0)
        f, arguments, world = make()
        return f, [arguments(i) for i in range(N)], world

    PROGRAMS.append((make.__name__, build, None))
    return make


@program
def counter_mod():
    class S:
        n = 0

    s = S()

    def f(x):
        s.n += 1
        if s.n % 3 == 0:
            return x * 2
        return x + s.n

    return f, lambda i: (tj.ones(3) * i,), s


@program
def ema_python():
    st = {"ema": 0.0, "hist": []}

    def f(x):
        held = (x * x).mean()
        st["ema"] = 0.9 * st["ema"] + 0.1 * held.item()
        st["hist"].append(held)
        return x * st["ema"]

    return f, lambda i: (tj.ones(3) * (i + 1),), st


@program
def append_arg():
    log = []

    def f(x):
        log.append(x)
        return x + 1

    return f, lambda i: (tj.ones(2) * i,), log


@program
def append_same_twice():
    log = []

    def f(x):
        y = x * 2
        log.append(y)
        log.append(y)
        return y

    return f, lambda i: (tj.ones(2) * i,), log


@program
def dict_order():
    d = {"a": 1, "b": 2}

    def f(x):
        v = d.pop("a")
        d["a"] = v + 1
        return x * v

    return f, lambda i: (tj.ones(2),), d


@program
def delattr_cycle():
    class S:
        pass

    s = S()
    s.cache = None

    def f(x):
        if hasattr(s, "cache"):
            del s.cache
        else:
            s.cache = x.sum().item()
        return x + 1

    return f, lambda i: (tj.ones(2) * i,), s


@program
def maxlen_deque():
    dq = collections.deque(maxlen=3)

    def f(x):
        dq.append(x.sum())
        return sum(dq[k] for k in range(len(dq)))

    return f, lambda i: (tj.ones(2) * i,), dq


@program
def list_in_list():
    a = []
    b = [a]

    def f(x):
        b[0].append(len(b))
        b.append(a)
        return x * len(a)

    return f, lambda i: (tj.ones(2),), b


@program
def swap_attr():
    class S:
        pass

    s = S()
    s.a = tj.ones(2)
    s.b = tj.zeros(2)

    def f(x):
        s.a, s.b = s.b, s.a + x
        return s.a

    return f, lambda i: (tj.ones(2) * i,), s


@program
def kvcache():
    class S:
        pass

    s = S()
    s.k = tj.zeros(8, 2)
    s.pos = 0

    def f(x):
        s.k[s.pos] = x
        s.pos += 1
        return s.k[: s.pos].sum(0)

    return f, lambda i: (tj.ones(2) * i,), s


@program
def global_flag():
    g = {"flag": False, "n": 0}

    def f(x):
        g["n"] += 1
        g["flag"] = g["n"] > 3
        return x * 3 if g["flag"] else x

    return f, lambda i: (tj.ones(2),), g


@program
def set_seen():
    s = set()

    def f(x, k):
        new = k not in s
        s.add(k)
        return x * 2 if new else x

    return f, lambda i: (tj.ones(2), i % 4), s


@program
def prop_setter():
    class S:
        def __init__(self):
            self._v = 0
            self.log = []

        @property
        def v(self):
            return self._v

        @v.setter
        def v(self, x):
            self.log.append(x)
            self._v = x * 2

    s = S()

    def f(x):
        s.v = s.v + 1
        return x * s.v

    return f, lambda i: (tj.ones(2),), s


@program
def setattr_hook():
    class S:
        def __setattr__(self, k, v):
            object.__setattr__(self, k, v)
            object.__setattr__(self, "last", k)

    s = S()
    s.x = 0

    def f(t):
        s.x = s.x + 1
        return t * s.x

    return f, lambda i: (tj.ones(2),), s


@program
def enumerate_mutate():
    held = [1, 2, 3]

    def f(x):
        for i, v in enumerate(held):
            held[i] = v + 1
        return x * held[0]

    return f, lambda i: (tj.ones(2),), held


@program
def try_finally():
    st = {"n": 0}

    def f(x):
        try:
            if x.sum().item() > 3:
                raise ValueError
            return x
        except ValueError:
            return x * -1
        finally:
            st["n"] += 1

    return f, lambda i: (tj.ones(2) * i,), st


@program
def gen_state():
    st = [0]

    def gen(n):
        for i in range(n):
            st[0] += i
            yield i

    def f(x):
        t = x
        for i in gen(3):
            t = t + i * st[0]
        return t

    return f, lambda i: (tj.ones(2),), st


@program
def int_subclass():
    class Odd(int):
        def __add__(self, o):
            return Odd(int(self) + int(o) + 10)

    class S:
        pass

    s = S()
    s.i = Odd(1)

    def f(x):
        s.i = s.i + 1
        return x * int(s.i)

    return f, lambda i: (tj.ones(2),), s


@program
def bigint():
    class S:
        pass

    s = S()
    s.i = 2**62

    def f(x):
        s.i += 2**62
        return x + (1 if s.i > 2**63 else 0)

    return f, lambda i: (tj.ones(2),), s


@program
def numpy_scalar_counter():
    class S:
        pass

    s = S()
    s.i = np.int64(3)
    s.f = np.float32(0.1)

    def f(x):
        s.i += 1
        s.f = s.f * 2
        return x * float(s.f)

    return f, lambda i: (tj.ones(2),), s


@program
def list_clear():
    buf = []

    def f(x):
        buf.append(x * 2)
        if len(buf) == 3:
            r = buf[0] + buf[1] + buf[2]
            buf.clear()
            return r
        return x

    return f, lambda i: (tj.ones(2) * i,), buf


@program
def default_arg():
    def f(x, acc=[]):  # noqa: B006
        acc.append(1)
        return x * len(acc)

    return f, lambda i: (tj.ones(2),), f.__defaults__


@program
def nonlocal_tensor():
    def mk():
        prev = None
        n = 0

        def f(x):
            nonlocal prev, n
            r = x if prev is None else x + prev
            prev = r.detach()
            n += 1
            return r

        return f

    f = mk()
    return f, lambda i: (tj.ones(2) * i,), lambda: [c.cell_contents for c in f.__closure__]


@program
def print_fmt():
    def f(x):
        print(f"{x.sum().item():.3f} {x.shape} {x}", end="|")
        return x * 2

    return f, lambda i: (tj.ones(2) * i,), None


@program
def warn_once():
    st = {"w": False}

    def f(x):
        if not st["w"]:
            print("warn")
            st["w"] = True
        return x + 1

    return f, lambda i: (tj.ones(2),), st


@program
def float_accum():
    class S:
        pass

    s = S()
    s.t = 0.1

    def f(x):
        s.t = s.t * 1.5 - 0.01
        return x * s.t

    return f, lambda i: (tj.ones(3),), s


@program
def sched_lr():
    w = tj.zeros(3, requires_grad=True)
    opt = tj.optim.SGD([w], lr=0.1, momentum=0.9)
    sch = tj.optim.lr_scheduler.StepLR(opt, 2, 0.5)
    hist = []

    def f(x):
        opt.zero_grad()
        held = ((w - x) ** 2).sum()
        held.backward()
        opt.step()
        sch.step()
        hist.append(sch.get_last_lr()[0])
        return held

    return f, lambda i: (tj.ones(3) * i,), (hist, w)


@program
def nested_obj():
    @dataclasses.dataclass
    class C:
        n: int = 0
        xs: list = dataclasses.field(default_factory=list)

    c = {"c": C()}

    def f(x):
        c["c"] = dataclasses.replace(c["c"], n=c["c"].n + 1)
        c["c"].xs.append(c["c"].n)
        return x * c["c"].n

    return f, lambda i: (tj.ones(3),), c


@program
def counter_class():
    cnt = collections.Counter()

    def f(x, k):
        cnt[k] += 1
        return x * cnt[k]

    return f, lambda i: (tj.ones(3), "ab"[i % 2]), cnt


@program
def defaultdict_():
    dd = collections.defaultdict(list)

    def f(x, k):
        dd[k].append(x.sum())
        return x * len(dd[k])

    return f, lambda i: (tj.ones(3) * i, "ab"[i % 2]), dd


@program
def stop_iter():
    it = iter(range(100))

    def f(x):
        return x * next(it)

    return f, lambda i: (tj.ones(3),), None


@program
def slice_assign_list():
    held = [1, 2, 3, 4]

    def f(x):
        held[1:3] = [held[2], held[1]]
        held.extend([held[0]]) if len(held) < 6 else held.insert(0, 9)
        return x * held[1]

    return f, lambda i: (tj.ones(3),), held


@program
def arg_list_mut():
    def f(x, held):
        held.append(x)
        held[0] = held[0] + 1
        return x

    L = [0]
    return f, lambda i: (tj.ones(3) * i, L), L


@program
def arg_obj_mut():
    class S:
        n = 0

    s = S()

    def f(x, s):
        s.n += 1
        s.x = x
        return x * s.n

    return f, lambda i: (tj.ones(3), s), s


@program
def buffer_rebind():
    class M(tj.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("b", tj.zeros(2))
            self.calls = 0

        def forward(self, x):
            self.b = self.b * 0.5 + x
            self.calls += 1
            return self.b * self.calls

    m = M()
    return m, lambda i: (tj.ones(2) * i,), lambda: (m.b, m.calls, list(m._buffers), m.state_dict())


@program
def random_module():
    r = random.Random(0)

    def f(x):
        return x * r.random()

    return f, lambda i: (tj.ones(3),), None


@program
def str_accum():
    st = {"s": ""}

    def f(x):
        st["s"] += "x" if x[0] > 2 else "y"
        return x * len(st["s"])

    return f, lambda i: (tj.ones(3) * (i % 5),), st


@program
def class_attr_count():
    class S:
        n = 0

        def step(self, x):
            type(self).n += 1
            return x * type(self).n

    s = S()
    return (lambda x: s.step(x)), lambda i: (tj.ones(2),), lambda: S.n


@program
def cached_prop():
    class S:
        calls = 0

        @functools.cached_property
        def w(self):
            self.calls += 1
            return self.calls * 2.0

    s = S()

    def f(x):
        r = x * s.w
        if x.sum() > 6:
            del s.w
        return r

    return f, lambda i: (tj.ones(2) * (i % 5),), s


@program
def lru():
    @functools.lru_cache(maxsize=2)
    def g(k):
        return k * 2.0

    def f(x, k):
        return x * g(k)

    return f, lambda i: (tj.ones(2), i % 3), lambda: tuple(g.cache_info())


@program
def list_iadd():
    class S:
        pass

    s = S()
    s.held = []
    s.ref = s.held

    def f(x):
        s.held += [x.sum()]
        return x * len(s.ref)

    return f, lambda i: (tj.ones(2) * i,), s


@program
def setdefault_():
    d = {}

    def f(x, k):
        d.setdefault(k, []).append(1)
        return x * len(d[k])

    return f, lambda i: (tj.ones(2), i % 3), d


@program
def dict_union():
    d = {"a": 1}

    class S:
        pass

    s = S()
    s.d = d

    def f(x):
        s.d = s.d | {"n": s.d.get("n", 0) + 1}
        return x * s.d["n"]

    return f, lambda i: (tj.ones(2),), lambda: (s.d, d)


@program
def heap():
    h = []

    def f(x, k):
        heapq.heappush(h, k)
        return x * h[0]

    return f, lambda i: (tj.ones(2), (7 * i) % 5), h


@program
def cm_state():
    class CM:
        depth = 0
        log = []

        def __enter__(self):
            self.depth += 1
            self.log.append("in")
            return self.depth

        def __exit__(self, *a):
            self.depth -= 1
            self.log.append("out")
            return False

    c = CM()

    def f(x):
        with c as d, c as e:
            return x * (d + e)

    return f, lambda i: (tj.ones(2),), c


@program
def cm_suppress():
    st = {"n": 0}

    def f(x):
        with contextlib.suppress(ValueError):
            st["n"] += 1
            if st["n"] % 2:
                raise ValueError
            return x
        return x * 2

    return f, lambda i: (tj.ones(2),), st


@program
def exc_after_effect():
    st = {"n": 0}
    log = []

    def f(x):
        st["n"] += 1
        log.append(x.sum().item())
        if x.sum() > 8:
            raise RuntimeError("big")
        return x * st["n"]

    return f, lambda i: (tj.ones(2) * i,), (st, log)


@program
def nested_compiled():
    st = {"n": 0}

    @tj.compile
    def g(x):
        st["n"] += 1
        return x * st["n"]

    def f(x):
        return g(x) + g(x)

    return f, lambda i: (tj.ones(2),), st


@program
def callable_obj():
    class L:
        def __init__(self):
            self.n = 0

        def __call__(self, x):
            self.n += 1
            return x + self.n

    ls = [L(), L()]

    def f(x):
        for held in ls:
            x = held(x)
        return x

    return f, lambda i: (tj.ones(2),), ls


@program
def sorted_key():
    items = [3, 1, 2]

    def f(x):
        items.sort(key=lambda v: -v)
        items.append(items.pop(0) - 1)
        return x * items[0]

    return f, lambda i: (tj.ones(2),), items


@program
def enum_state():
    class E(enum.Enum):
        A = 1
        B = 2

    class S:
        pass

    s = S()
    s.e = E.A

    def f(x):
        match s.e:
            case E.A:
                s.e = E.B
                return x
            case E.B:
                s.e = E.A
                return -x

    return f, lambda i: (tj.ones(2),), lambda: s.e.name


@program
def walrus():
    buf = []

    def f(x):
        if (n := len(buf)) < 5:
            buf.append(n)
        return x * n

    return f, lambda i: (tj.ones(2),), buf


@program
def del_item():
    d = {i: i for i in range(30)}

    def f(x, k):
        v = d.pop(k, None)
        return x if v is None else x * v

    return f, lambda i: (tj.ones(2), i % 9), d


@program
def logging_():
    lg = logging.getLogger("zz")
    lg.handlers.clear()
    lg.propagate = False
    out = []

    class H(logging.Handler):
        def emit(self, r):
            out.append(r.getMessage())

    lg.addHandler(H())
    lg.setLevel(10)

    def f(x):
        lg.info("v %s", x.sum().item())
        return x + 1

    return f, lambda i: (tj.ones(2) * i,), out


@program
def warn_():
    def f(x):
        warnings.warn("hey")
        return x + 1

    return f, lambda i: (tj.ones(2) * i,), None


@program
def tensor_attr():
    t = tj.ones(2)

    class S:
        pass

    s = S()
    s.t = t

    def f(x):
        s.t.tag = getattr(s.t, "tag", 0) + 1
        return x * s.t.tag

    return f, lambda i: (tj.ones(2),), lambda: getattr(t, "tag", None)


@program
def grad_acc_counter():
    w = tj.ones(3, requires_grad=True)
    st = {"i": 0}
    opt = tj.optim.Adam([w], lr=0.1)

    def f(x):
        ((w * x).sum() / 2).backward()
        st["i"] += 1
        if st["i"] % 2 == 0:
            opt.step()
            opt.zero_grad()
        return w.detach().clone()

    return f, lambda i: (tj.ones(3) * (i + 1),), lambda: (w, w.grad, st)


@program
def best_loss():
    w = tj.ones(3, requires_grad=True)

    class S:
        best = float("inf")
        bad = 0
        best_w = None

    s = S()

    def f(x):
        held = ((w - x) ** 2).sum()
        v = held.item()
        if v < s.best:
            s.best = v
            s.best_w = w.detach().clone()
            s.bad = 0
        else:
            s.bad += 1
        return held

    return f, lambda i: (tj.ones(3) * [5, 4, 3, 4, 3, 2, 1, 2, 3, 1, 1, 0, 1, 2][i],), s


@program
def ring_buffer():
    buf = tj.zeros(4, 2)

    class S:
        i = 0

    s = S()

    def f(x):
        buf[s.i % 4] = x
        s.i += 1
        return buf.mean(0)

    return f, lambda i: (tj.ones(2) * i,), lambda: (buf, s.i)


@program
def window_list():
    win = []

    def f(x):
        win.append(x)
        if len(win) > 3:
            win.pop(0)
        return tj.stack(win).mean(0)

    return f, lambda i: (tj.ones(2) * i,), win


@program
def counter_in_tensor():
    c = tj.zeros((), dtype=tj.int64)

    def f(x):
        c.add_(1)
        return x * 2 if int(c) % 3 == 0 else x

    return f, lambda i: (tj.ones(2),), c


@program
def str_key_build():
    d = {}

    class S:
        n = 0

    s = S()

    def f(x):
        d[f"step{s.n}"] = x.mean()
        s.n += 1
        return x * len(d)

    return f, lambda i: (tj.ones(2) * i,), (d, s)


@program
def global_decl():
    ns = {}
    exec(
        """
import tracejit as tj
total=0
def f(x):
    global total
    total += 2
    return x*total
""",
        ns,
    )
    return ns["f"], lambda i: (tj.ones(2),), lambda: ns["total"]


@program
def bool_flip():
    class S:
        on = False

    s = S()

    def f(x):
        s.on = not s.on
        return x if s.on else -x

    return f, lambda i: (tj.ones(2),), s


@program
def tuple_state():
    class S:
        st = (0, 1)

    s = S()

    def f(x):
        a, b = s.st
        s.st = (b, a + b)
        return x * b

    return f, lambda i: (tj.ones(2),), s


@program
def tensor_tuple_state():
    class S:
        pass

    s = S()
    s.hc = (tj.zeros(2), tj.ones(2))

    def f(x):
        h, c = s.hc
        c = c * 0.5 + x
        h = (h + c).tanh()
        s.hc = (h, c)
        return h

    return f, lambda i: (tj.ones(2) * i,), s


@program
def list_state():
    hs = [tj.zeros(2), tj.zeros(2)]

    def f(x):
        for k in range(2):
            hs[k] = (hs[k] + x).tanh()
            x = hs[k]
        return x

    return f, lambda i: (tj.ones(2) * i,), hs


@program
def lstm_state():
    cell = tj.nn.LSTMCell(2, 3)

    class S:
        pass

    s = S()
    s.h = None

    def f(x):
        s.h = cell(x, s.h)
        s.h = tuple(t.detach() for t in s.h)
        return s.h[0]

    return f, lambda i: (tj.ones(1, 2) * i,), s


@program
def time_():
    st = []

    def f(x):
        t = time.perf_counter()
        y = x * 2
        st.append(time.perf_counter() >= t)
        return y

    return f, lambda i: (tj.ones(2),), st


@program
def defaultdict_int():
    dd = collections.defaultdict(int)

    def f(x):
        for k in "aab":
            dd[k] += 1
        return x * dd["a"]

    return f, lambda i: (tj.ones(2),), dd


@program
def float_as_key():
    d = {0.1: 1.0}

    class S:
        t = 0.1

    s = S()

    def f(x):
        v = d.get(s.t, 9.0)
        s.t = round(s.t + 0.1, 1)
        d[s.t] = v + 1
        return x * v

    return f, lambda i: (tj.ones(2),), (d, s)


@program
def hook_effects():
    m = tj.nn.Linear(2, 2)
    seen = []
    tj.manual_seed(3)
    m.register_forward_hook(lambda mod, i, o: seen.append(round(o.sum().item(), 3)))

    def f(x):
        return m(x)

    return f, lambda i: (tj.ones(1, 2) * i,), seen


@program
def id_order():
    objs = [tj.ones(2), tj.zeros(2)]

    def f(x):
        objs.reverse()
        return x + objs[0]

    return f, lambda i: (tj.ones(2) * i,), objs


@program
def inplace_alias():
    a = tj.zeros(3)
    v = a[1:]

    class S:
        n = 0

    s = S()

    def f(x):
        a.add_(1)
        v.mul_(2)
        s.n += 1
        return a.sum() + v.sum() * s.n

    return f, lambda i: (tj.ones(3) * i,), lambda: (a, v, s)
