"""What ordinary model code does, one construct at a time: each of these compiles.

A program gives a function and its argument lists, like those of `effects.py`.
"""

import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import itertools
import math
import operator
import typing

PROGRAMS = []


def program(fn):
    PROGRAMS.append((fn.__name__, fn))
    return fn


def ramp(T, n=7):
    return [(T.tensor([1.0 + k, 2.0, -3.0]),) for k in range(n)]


@program
def registries(T):
    ops = {}

    def register(name):
        def add(f):
            ops[name] = f
            return f

        return add

    @register("double")
    def double(x):
        return x * 2

    @register("shift")
    class Shift:
        def __init__(self, by=1):
            self.by = by

        def __call__(self, x):
            return x + self.by

    return (lambda x: ops["shift"](3)(ops["double"](x)) if "double" in ops else x), ramp(T)


class Mode(enum.Enum):
    FAST = 1
    SLOW = "slow"

    @property
    def factor(self):
        return 2 if self is Mode.FAST else 3

    @classmethod
    def usual(cls):
        return cls.FAST


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 5


class Flags(enum.Flag):
    A = 1
    B = 2


@dataclasses.dataclass
class Config:
    width: int = 2
    mode: Mode = Mode.FAST
    names: list = dataclasses.field(default_factory=lambda: ["a", "b"])
    nested: typing.Any = None

    @property
    def size(self):
        return self.width * len(self.names)


@program
def dataclass_configs(T):
    cfg = Config(nested=Config(width=5))
    return (lambda x: x * cfg.size + cfg.nested.width + sum(map(len, cfg.nested.names))), ramp(T)


@program
def dataclass_functions(T):
    cfg = Config()

    def f(x):
        other = dataclasses.replace(cfg, width=4)
        return x * other.width + len(dataclasses.fields(cfg))

    return f, ramp(T)


@program
def dataclass_equality(T):
    a, b = Config(), Config()
    return (lambda x: x * 2 if a == b else x), ramp(T)


@program
def enums(T):
    def f(x, mode=Mode.SLOW):
        if mode == Mode.SLOW and mode is not Mode.FAST and mode in (Mode.SLOW,):
            x = x * mode.factor + len(mode.value) + len(mode.name)
        return x * Mode.usual().factor + Mode["FAST"].value + Mode("slow").factor

    return f, ramp(T)


@program
def int_enums_and_flags(T):
    level, flags = Level.HIGH, Flags.A

    def f(x):
        return x * level + (1 if level > Level.LOW else 2) + (1 if flags & Flags.A else 2) + (Flags.A in flags)

    return f, ramp(T)


@program
def enum_iteration(T):
    return (lambda x: x + len([m for m in Mode]) + sum(int(v) for v in Level)), ramp(T)  # noqa: C416


@program
def enum_keys(T):
    table = {Mode.FAST: 2.0, Mode.SLOW: 3.0}
    return (lambda x: x * table[Mode.FAST] + table.get(Mode.SLOW)), ramp(T)


@program
def properties(T):
    class A:
        def __init__(self):
            self._k = 2.0

        @property
        def k(self):
            return self._k

        @functools.cached_property
        def cached(self):
            return 3.0

    a = A()
    return (lambda x: x * a.k + a.cached), ramp(T)


@program
def super_calls(T):
    class A:
        scale = 2.0

        def go(self, x):
            return x * self.scale

        @classmethod
        def name(cls):
            return cls.__name__

        @property
        def p(self):
            return 1.0

    class B(A):
        scale = 3.0

        def go(self, x):
            return super().go(x) + super().go(x) + len(super().name()) + super().p

    class C(B):
        def go(self, x):
            return super().go(x) * 2

    c = C()
    return (lambda x: c.go(x)), ramp(T)


@program
def descriptors(T):
    class Scaled:
        def __init__(self, k):
            self.k = k

        def __get__(self, obj, cls=None):
            return self.k * obj.base

    class A:
        two = Scaled(2)

        def __init__(self):
            self.base = 3.0

        @staticmethod
        def plus(x, k):
            return x + k

    a = A()
    return (lambda x: A.plus(a.plus(x * a.two, 1), 2)), ramp(T)


@program
def fstrings_in_keys(T):
    weights = {f"layer{k}.weight": float(k) for k in range(3)}

    def f(x):
        for k in range(3):
            x = x + weights[f"layer{k}.weight"] + weights.get(f"{'layer'}{k:d}.bias", 0.5)
        return x

    return f, ramp(T)


@program
def zips_and_friends(T):
    a, b = [1.0, 2.0], (3.0, 4.0)

    def f(x):
        for i, (u, v) in enumerate(zip(a, b, strict=True), start=1):
            x = x * u + v * i
        for k in reversed(range(3)):
            x = x + k
        for v in reversed(a):
            x = x - v
        x = x + sum(map(operator.mul, a, b)) + sum(filter(None, [0, 1, 2])) + sum(filter(lambda v: v > 1, a))
        x = x + sorted(b, reverse=True)[0] + sorted(["bb", "a"], key=len)[0].count("a") + max(a, key=lambda v: -v)
        return x + min(a) + any(v > 1 for v in a) + all(b)

    return f, ramp(T)


@program
def comprehensions(T):
    table = {"a": 1, "b": 2}

    def f(x):
        xs = [x * k for k in range(3) if k != 1]
        d = {k: v * 2 for k, v in table.items()}
        s = {v % 2 for v in table.values()}
        g = (y + 1 for y in xs)
        nested = [[i * j for j in range(2)] for i in range(2)]
        return sum(g) + d["b"] + len(s) + nested[1][1]

    return f, ramp(T)


@program
def generators(T):
    def numbers(n):
        for k in range(n):
            got = yield k
            if got:
                yield got
        return 7.0

    def outer(n):
        last = yield from numbers(n)
        yield last

    def f(x):
        g = numbers(3)
        first = next(g)
        sent = g.send(5.0)
        return x * sum(outer(3)) + first + sent + next(g, 0.0) + len(list(outer(2)))

    return f, ramp(T)


@program
def closures(T):
    def make(k):
        def inner(x, j=2):
            return x * k + j

        return inner

    g = make(3.0)

    def f(x):
        h = make(2.0)
        return g(h(x), j=4) + (lambda y: y + 1)(x)

    return f, ramp(T)


@program
def partials(T):
    def g(x, a, b=1.0, *rest, c, **more):
        return x * a + b + c + sum(rest) + sum(more.values())

    p = functools.partial(functools.partial(g, a=2.0), c=3.0)
    q = functools.partial(g, c=1.0)

    def f(x):
        local = functools.partial(p, z=4.0)
        return local(x) + q(x, 1.0, 2.0, 3.0) + q(*[x, 2.0], **{"y": 5.0})

    return f, ramp(T)


@program
def keyword_arguments(T):
    def g(x, *, scale=1.0, **kwargs):
        kwargs.setdefault("shift", 1.0)
        return h(x, **kwargs) * scale

    def h(x, shift, extra=None):
        return x + shift + (0 if extra is None else extra)

    return (lambda x, **kw: g(x, **{**kw, "extra": 2.0})), ramp(T)


@program
def context_managers(T):
    @contextlib.contextmanager
    def doubled(x):
        yield x * 2

    class Scope:
        def __enter__(self):
            return 3.0

        def __exit__(self, kind, value, tb):
            return kind is KeyError

    w = T.tensor([1.0, 2.0, 3.0], requires_grad=True)

    def f(x):
        with T.no_grad(), doubled(x) as y, Scope() as k:
            z = y * w * k
        with Scope():
            raise KeyError
        with contextlib.nullcontext(4.0) as n:
            z = z + n
        with contextlib.suppress(ValueError):
            raise ValueError
        with T.enable_grad():
            return (z * w).detach() + x

    return f, ramp(T)


@program
def no_grad_as_a_decorator(T):
    @T.no_grad()
    def g(x):
        return x * 2

    return (lambda x: g(x) + 1), ramp(T)


@program
def exceptions(T):
    table = {"a": 1.0}

    class Mine(Exception):
        def __init__(self, code):
            super().__init__(f"code {code}")
            self.code = code

    def f(x):
        try:
            k = table["b"]
        except KeyError:
            k = 2.0
        else:
            k = 3.0
        finally:
            x = x + 1
        try:
            raise Mine(5)
        except (ValueError, Mine) as e:
            k += e.code + len(str(e))
        try:
            try:
                raise ValueError("inner")
            except ValueError as e:
                raise RuntimeError("outer") from e
        except RuntimeError as e:
            k += len(e.args[0])
        try:
            x.no_such_attribute
        except AttributeError:
            k += 1
        return x * k

    return f, ramp(T)


@program
def walrus_and_conditionals(T):
    def f(x):
        if (n := x.shape[0]) > 2 and (m := n * 2) < 10:
            return x * m if n % 2 else x
        return x

    return f, ramp(T)


@dataclasses.dataclass
class Point:
    x: float
    y: float


@program
def match_statements(T):
    def f(x, command):
        match command:
            case ["go", ("north" | "south") as way, *rest] if rest:
                return x + len(way) + len(rest)
            case {"op": "mul", "by": float(k), **others}:
                return x * k + len(others)
            case Point(x=0, y=y):
                return x * y
            case Point(u, v):
                return x * u - v
            case Mode.FAST:
                return x * 9
            case str() | bytes():
                return x - 1
            case None:
                return x
            case _:
                return -x

    commands = [
        ["go", "north", 1],
        {"op": "mul", "by": 2.0, "z": 1},
        Point(0, 2.0),
        Point(1, 2),
        Mode.FAST,
        "s",
        None,
        7,
    ]
    return f, [(x, c) for c in commands for (x,) in ramp(T, 5)]


@program
def operator_overloads(T):
    class Vec:
        def __init__(self, *v):
            self.v = v

        def __add__(self, o):
            return Vec(*(a + b for a, b in zip(self.v, o.v)))

        def __rmul__(self, k):
            return Vec(*(k * a for a in self.v))

        def __matmul__(self, o):
            return sum(a * b for a, b in zip(self.v, o.v))

        def __getitem__(self, k):
            return self.v[k]

        def __len__(self):
            return len(self.v)

        def __iter__(self):
            return iter(self.v)

        def __contains__(self, k):
            return k in self.v

        def __eq__(self, o):
            return self.v == o.v

        def __lt__(self, o):
            return self.v < o.v

        def __bool__(self):
            return any(self.v)

        def __neg__(self):
            return Vec(*(-a for a in self.v))

        def __call__(self, x):
            return x * self[0]

    a, b = Vec(1.0, 2.0), Vec(3.0, 4.0)

    def f(x):
        c = a + 2.0 * b
        x = c(x) + (a @ b) + len(c) + sum(-c) + (3.0 in b) + (a == b) + (a < b)
        return x + (1 if a else 2) + max(a, b)[0]

    return f, ramp(T)


@program
def nested_compiled_functions(T):
    g = T.compile(lambda x, k: x * k)

    class M:
        @T.compile
        def go(self, x):
            return g(x, 2.0) + 1

    m = M()
    return (lambda x: m.go(x) + g(x, 3.0)), ramp(T)


@program
def module_hooks(T):
    m = T.nn.Sequential(T.nn.Linear(3, 3), T.nn.ReLU())
    m[0].register_forward_hook(lambda mod, args, out: out * 2)
    m.register_forward_pre_hook(lambda mod, args: (args[0] + 1,))
    return (lambda x: m(x)), ramp(T)


@program
def modules(T):
    class Block(T.nn.Module):
        def __init__(self, n):
            super().__init__()
            self.layers = T.nn.ModuleList([T.nn.Linear(n, n) for _ in range(2)])
            self.by_name = T.nn.ModuleDict({"act": T.nn.GELU(), "id": T.nn.Identity()})
            self.scale = T.nn.Parameter(T.ones(n))
            self.register_buffer("offset", T.zeros(n))

        def forward(self, x, *, skip=True):
            for k, layer in enumerate(self.layers):
                x = self.by_name["act" if k == 0 else "id"](layer(x)) + (x if skip else 0)
            for name, child in self.named_children():
                if name == "by_name" and isinstance(child, T.nn.ModuleDict):
                    x = x * len(child)
            return x * self.scale + self.offset + sum(p.numel() for p in self.parameters())

    T.manual_seed(0)
    m = Block(3)
    return (lambda x: m(x) + getattr(m, "missing", 0) + hasattr(m, "scale")), ramp(T)


@program
def itertools_functions(T):
    xs = [1.0, 2.0, 3.0]

    def f(x):
        x = x + sum(itertools.chain(xs, [4.0])) + sum(itertools.chain.from_iterable([xs, xs]))
        x = x + sum(a * b for a, b in itertools.product(xs, repeat=2)) + sum(a - b for a, b in itertools.pairwise(xs))
        x = x + len(list(itertools.combinations(xs, 2))) + len(list(itertools.permutations(xs)))
        x = x + list(itertools.accumulate(xs))[-1] + sum(itertools.islice(itertools.count(1), 3))
        x = x + sum(itertools.takewhile(lambda v: v < 3, xs)) + sum(itertools.dropwhile(lambda v: v < 3, xs))
        x = x + sum(a + b for a, b in itertools.zip_longest(xs, [1.0], fillvalue=0.5)) + sum(itertools.repeat(2.0, 3))
        x = x + sum(itertools.starmap(operator.mul, [(1, 2), (3, 4)])) + sum(itertools.islice(itertools.cycle(xs), 5))
        return x

    return f, ramp(T)


@program
def functools_functions(T):
    @functools.cache
    def table(n):
        return n * 2.0

    @functools.wraps(table)
    def wrapped(x):
        return x + 1

    @functools.singledispatch
    def kind(v):
        return 1.0

    def f(x):
        return wrapped(x) + functools.reduce(operator.add, [1, 2, 3], 4) + functools.reduce(lambda a, b: a * b, [x, x])

    return f, ramp(T)


@program
def operator_functions(T):
    get, name, call = operator.itemgetter(1), operator.attrgetter("shape"), operator.methodcaller("sum")

    def f(x):
        a = operator.add(x, operator.mul(x, 2)) + operator.neg(x) + operator.itemgetter(0)([3.0, 4.0])
        return a + get([1.0, 2.0]) + name(x)[0] + operator.truediv(1, 2) + operator.getitem([5.0], 0) + call(x)

    return f, ramp(T)


@program
def math_functions(T):
    def f(x, k=4.0):
        a = math.sqrt(k) + math.floor(2.7) + math.ceil(2.2) + math.log(k) + math.prod([1, 2, 3]) + math.gcd(4, 6)
        b = math.isclose(k, 4.0) + math.pi + math.inf * 0 if k < 0 else math.hypot(3, 4)
        return (
            x * a + b + round(2.567, 2) + abs(-3) + divmod(7, 2)[1] + pow(2, 3) + int("4") + float("2.5") + sum((1, 2))
        )

    return f, ramp(T)


@program
def container_methods(T):
    outside = {"a": 1.0, "b": [1.0, 2.0]}

    def f(x):
        d = dict(outside, c=3.0)
        d.update({"e": 4.0}, g=5.0)
        d.pop("e")
        d.setdefault("h", []).append(6.0)
        keys = list(d.keys()) + [k for k, _ in d.items()]
        xs = list(outside["b"])
        xs.extend([3.0, 1.0])
        xs.insert(0, 9.0)
        xs.remove(1.0)
        xs.sort()
        xs.reverse()
        last = xs.pop()
        s = {1, 2} | {3}
        s.add(4)
        s.discard(1)
        t = s & {2, 4} if s >= {2} else s ^ {2}
        u = tuple(xs) + (last,)
        return x + len(keys) + sum(u) + sum(t) + xs.index(9.0) + u.count(9.0) + d.get("zz", 7.0) + (d | {"q": 1})["q"]

    return f, ramp(T)


@program
def collections_types(T):
    Pair = collections.namedtuple("Pair", "a b")
    pair = Pair(1.0, 2.0)

    class Typed(typing.NamedTuple):
        u: float
        v: float = 2.0

    def f(x):
        q = collections.deque([1.0, 2.0])
        q.append(3.0)
        first = q.popleft()
        a, b = pair
        p = Pair(a=b, b=a)._replace(b=5.0)
        return x * p.b + first + len(q) + Typed(1.0).v + sum(p._asdict().values())

    return f, ramp(T)


@program
def default_dict_and_counter(T):
    def f(x):
        groups = collections.defaultdict(list)
        for k, v in (("a", 1.0), ("b", 2.0), ("a", 3.0)):
            groups[k].append(v)
        order = collections.OrderedDict(a=1.0)
        order["b"] = 2.0
        return x + sum(groups["a"]) + sum(order.values())

    return f, ramp(T)


@program
def string_methods(T):
    def f(x, spec="Conv-Relu"):
        parts = spec.lower().split("-")
        k = len("".join(p.capitalize() for p in parts)) + spec.find("R") + spec.startswith("Conv") + ("Relu" in spec)
        k += len(spec.replace("-", "").strip()) + len(", ".join(parts)) + ord("a") + len("%s:%d" % (spec, 3))  # noqa: UP031
        return x * k + len(f"{1}-{spec!r:>10}") + len(f"{k:05d}") + len(spec[::-1] + spec * 2)

    return f, ramp(T)


@program
def type_questions(T):
    class Base:
        pass

    class A(Base):
        k = 2.0

    a = A()

    def f(x):
        n = isinstance(a, Base) + issubclass(A, Base) + isinstance(x, T.Tensor) + isinstance(3, (int, str))
        n += (
            hasattr(a, "k")
            + hasattr(a, "zz")
            + getattr(a, "zz", 5)
            + callable(f)
            + (type(a) is A)
            + len(type(a).__name__)
        )
        n += isinstance([], list) + isinstance({}, collections.abc.Mapping) + isinstance(2.0, float | int)
        return x * n

    return f, ramp(T)


@program
def deep_copies_of_configs(T):
    cfg = {"width": 3, "names": ["a", "b"], "sub": {"k": 2.0}}

    def f(x):
        mine = copy.deepcopy(cfg)
        mine["sub"]["k"] += 1
        shallow = copy.copy(cfg)
        shallow["width"] = 5
        return x * mine["sub"]["k"] + shallow["width"] + cfg["width"]

    return f, ramp(T)


@program
def deep_copy_of_a_config_object(T):
    cfg = Config()

    def f(x):
        mine = copy.deepcopy(cfg)
        mine.width = 7
        return x * mine.width + cfg.width

    return f, ramp(T)


@program
def data_class_as_dict(T):
    cfg = Config()
    return (lambda x: x * len(dataclasses.asdict(cfg))), ramp(T)


@program
def simple_namespace(T):
    import types

    ns = types.SimpleNamespace(k=2.0, sub=types.SimpleNamespace(n=3))

    def f(x):
        ns.k = ns.k + 1
        here = types.SimpleNamespace(a=1.0)
        return x * ns.k + ns.sub.n + here.a

    return f, ramp(T)


@program
def recursion(T):
    def tree(x, depth):
        return x if depth == 0 else tree(x * 2, depth - 1) + tree(x + 1, depth - 1)

    return (lambda x: tree(x, 3)), ramp(T)


@program
def star_targets_and_swaps(T):
    def f(x):
        a, *b, c = [1.0, 2.0, 3.0, 4.0]
        (d, e), g = (5.0, 6.0), 7.0
        a, c = c, a
        b[0], b[1] = b[1], b[0]
        return x * a + sum(b) + c + d + e + g

    return f, ramp(T)


@program
def while_else_and_loops(T):
    def f(x):
        k = 0
        while k < 3:
            k += 1
            if k == 2:
                continue
        else:
            x = x + 1
        for v in range(5):
            if v == 3:
                break
        else:
            x = x * 100
        return x * k + v

    return f, ramp(T)


@program
def global_and_local_imports(T):
    def f(x):
        import math as m
        from collections import deque

        return x * m.pi + len(deque([1]))

    return f, ramp(T)


@program
def class_made_outside_used_inside(T):
    class Stack(list):
        def top(self):
            return self[-1]

    s = Stack([1.0, 2.0])
    return (lambda x: x * s.top() + len(s)), ramp(T)


@program
def abstract_base_classes(T):
    import abc

    class Layer(abc.ABC):
        @abc.abstractmethod
        def go(self, x): ...

    class Twice(Layer):
        def go(self, x):
            return x * 2

    layer = Twice()
    return (lambda x: layer.go(x) if isinstance(layer, Layer) else x), ramp(T)


@program
def protocols_and_generics(T):
    U = typing.TypeVar("U")

    class Box(typing.Generic[U]):
        def __init__(self, v: U):
            self.v = v

    def f(x):
        b: Box[float] = Box(2.0)
        c = typing.cast(float, b.v)
        return x * c

    return f, ramp(T)


@program
def asserts_and_texts(T):
    def f(x, names=("a", "b")):
        assert x.ndim == 1, f"expected a vector, got {x.shape}"
        assert all(isinstance(n, str) for n in names)
        return x * len(names)

    return f, ramp(T)


@program
def lambda_tables(T):
    table = [("relu", lambda x: x.clamp(min=0)), ("twice", lambda x: x * 2)]

    def f(x):
        for name, g in table:
            x = g(x) if name != "none" else x
        return dict(table)["twice"](x)

    return f, ramp(T)


@program
def slots_and_class_getitem(T):
    class P:
        __slots__ = ("a",)

        def __init__(self, a):
            self.a = a

    p = P(3.0)
    return (lambda x: x * p.a + P(2.0).a), ramp(T)


@program
def getattr_fallback(T):
    class Lazy:
        def __init__(self):
            self.known = {"k": 2.0}

        def __getattr__(self, name):
            if name in self.known:
                return self.known[name]
            raise AttributeError(name)

    lazy = Lazy()
    return (lambda x: x * lazy.k + getattr(lazy, "missing", 1.0)), ramp(T)


@program
def numbers_of_python(T):
    def f(x, n=3):
        k = n // 2 + n % 2 + (n << 1) + (n | 8) + (n & 1) + (n ^ 2) + ~n + -n + n**2
        return x * k + (1 if n > 2 else 0) + (not n) + int(2.5) + complex(1, 2).imag

    return f, ramp(T)
