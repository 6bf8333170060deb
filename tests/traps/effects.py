"""Programs with effects outside: what a compiled call leaves behind is what plain Python leaves behind.

Each program builds a world and gives (function, argument lists, what to look at afterwards). `test_effects.py` runs it
plainly and compiled, and compares results and the whole object graph of the world after every call, aliasing included.
`compiles` is the number of calls that must have run compiled; None where the program has to stay eager or may.
"""

import collections
import contextlib
import dataclasses
import enum
import functools
import itertools
import math
import threading

from programs import Box, collected

N = 8
PROGRAMS, program = collected(1)


class Slots:
    """No __dict__."""

    __slots__ = ("last", "n")


def ramp(T, n=N):
    return [(T.tensor([1.0 + k, 2.0]),) for k in range(n)]


# ---------------------------------------------------------------- counters


@program()
def attribute_counter(T):
    box = Box(calls=0)

    def f(x):
        box.calls += 1
        return x + box.calls

    return f, ramp(T), box


@program()
def counters_of_many_types(T):
    class Level(int):
        pass

    box = Box(f=0.5, b=True, big=2**70, neg=-1, z=-0.0)

    def f(x):
        box.f *= 1.5
        box.b = not box.b
        box.big += 1
        box.neg -= 3
        box.z += 0.0
        return x * box.f + box.neg

    return f, ramp(T, 14), box


@program(compiles=None)
def counter_that_is_an_int_subclass(T):
    class Level(int):
        def __add__(self, other):
            return Level(int(self) + other + 10)

    box = Box(n=Level(1))

    def f(x):
        box.n += 1
        return x + int(box.n)

    return f, ramp(T), box


@program(compiles=None)
def counter_that_is_a_numpy_scalar(T):
    import numpy as np

    box = Box(n=np.float32(1.5), k=np.int64(3))

    def f(x):
        box.n += 1
        box.k = box.k + 1
        return x + float(box.n)

    return f, ramp(T), box


@program()
def counter_from_int_to_float(T):
    box = Box(n=0)

    def f(x):
        box.n = box.n + (1 if box.n < 4 else 0.5)
        return x * box.n

    return f, ramp(T, 16), box


@program()
def counter_crosses_what_a_parameter_may_be(T):
    box = Box(n=2**53 - 5)

    def f(x):
        box.n += 1
        return x + (box.n - 2**53)

    return f, ramp(T, 14), box


@program()
def nonlocal_and_cell_shared_by_two_functions(T):
    n = 0

    def bump():
        nonlocal n
        n += 2

    def f(x):
        nonlocal n
        n += 1
        bump()
        return x + n

    return f, ramp(T), lambda: n


g_count, g_last = 0, None


@program()
def global_counter_and_global_tensor(T):
    global g_count, g_last
    g_count, g_last = 0, None

    def f(x):
        global g_count, g_last
        g_count += 1
        g_last = x * g_count
        return g_last + 1

    return f, ramp(T), lambda: (g_count, g_last)


@program()
def slots_counter(T):
    s = Slots()
    s.n = 0

    def f(x):
        s.n += 1
        s.last = x * s.n
        return x - s.n

    return f, ramp(T), lambda: (s.n, s.last)


@program()
def class_level_counter(T):
    class Model:
        made = 0

        def __call__(self, x):
            type(self).made += 1
            return x + Model.made

    m = Model()
    return (lambda x: m(x)), ramp(T), lambda: Model.made


@program()
def function_attribute_counter(T):
    def helper(x):
        helper.calls += 1
        return x * helper.calls

    helper.calls = 0
    return (lambda x: helper(x)), ramp(T), lambda: helper.calls


@program()
def counter_only_written(T):
    box = Box()

    def f(x):
        box.seen = True
        box.last = "yes"
        return x * 2

    return f, ramp(T), box


@program()
def counter_steers_every_third_call(T):
    box = Box(n=0, log=[])

    def f(x):
        box.n += 1
        if box.n % 3 == 0:
            box.log.append(box.n)
            return x * 10
        return x

    return f, ramp(T, 20), box


@program()
def running_sum_of_item(T):
    box = Box(total=0.0, n=0)

    def f(x):
        box.total += x.sum().item()
        box.n += 1
        return box.total / box.n

    return f, ramp(T), box


@program()
def best_so_far(T):
    box = Box(best=math.inf, step=0)
    losses = [5.0, 4.0, 4.5, 3.0, 3.5, 2.0, 2.5, 1.0, math.nan, 0.5, 0.7, 0.2]

    def f(x):
        loss = x.mean()
        box.step += 1
        if loss.item() < box.best:
            box.best = loss.item()
            return True
        return False

    return f, [(T.tensor([v]),) for v in losses], box


@program()
def division_by_an_item_that_is_zero_later(T):
    box = Box(r=1.0)

    def f(x):
        try:
            box.r = 1.0 / x.sum().item()
        except ZeroDivisionError:
            box.r = -1.0
        return x + 1

    return f, [(T.tensor([v]),) for v in (1.0, 2.0, 3.0, 4.0, 5.0, 0.0, 6.0, 7.0)], box


@program(compiles=None)
def division_by_zero_with_updates(T):
    box, w = Box(r=1.0), T.zeros(1)

    def f(x):
        w.add_(1)
        try:
            box.r = 1.0 / x.sum().item()
        except ZeroDivisionError:
            box.r = -1.0
        return x + w

    return f, [(T.tensor([v]),) for v in (1.0, 2.0, 3.0, 4.0, 5.0, 0.0, 6.0, 7.0)], lambda: (box, w)


# ---------------------------------------------------------------- lists


@program()
def log_of_losses(T):
    log = []

    def f(x):
        log.append((x * 2).sum().item())
        return x

    return f, ramp(T), log


@program()
def log_of_tensors_aliases_the_result(T):
    log = []

    def f(x):
        y = x * 2
        log.append(y)
        log.append(y)
        return y

    def look():
        return log, [a is b for a, b in zip(log[::2], log[1::2])]

    return f, ramp(T), look


@program()
def result_is_the_kept_tensor(T):
    box = Box(last=None)

    def f(x):
        box.last = x * 2
        return box.last, {"again": box.last}

    return f, ramp(T), box


@program()
def length_after_append(T):
    log = []

    def f(x):
        log.append(len(log))
        log.append(len(log))
        return x + len(log)

    return f, ramp(T), log


@program(compiles=None)
def list_appended_to_itself(T):
    log = []

    def f(x):
        if len(log) < 3:
            log.append(log)
        return x + 1

    return f, ramp(T), lambda: (len(log), all(v is log for v in log))


@program()
def insert_pop_and_read_back(T):
    stack = []

    def f(x):
        stack.append(x)
        stack.insert(0, 3.0)
        top = stack.pop()
        low = stack.pop(0)
        return top * low + len(stack)

    return f, ramp(T), stack


@program()
def setitem_within_a_ring(T):
    box = Box(ring=[0.0, 0.0, 0.0], at=0)

    def f(x):
        box.ring[0] = x.sum().item()
        box.at += 1
        return x

    return f, ramp(T), box


@program(compiles=None)
def setitem_at_a_moving_index(T):
    box = Box(ring=[0.0, 0.0, 0.0], at=0)

    def f(x):
        box.ring[box.at % 3] = x.sum().item()
        box.at += 1
        return x

    return f, ramp(T, 20), box


@program()
def cleared_and_filled(T):
    buf = [1, 2]

    def f(x):
        buf.clear()
        buf.append(x.sum().item())
        buf.append(7)
        return x * len(buf)

    return f, ramp(T), buf


@program()
def slice_assignment_of_all(T):
    buf = [1, 2]

    def f(x):
        buf[:] = [x.sum().item(), 3, 4]
        return x * len(buf)

    return f, ramp(T), buf


@program()
def extend_with_generator_and_list_changed_later(T):
    log = []

    def f(x):
        extra = [1.0, 2.0]
        log.extend(v * 2 for v in extra)
        log.extend(extra)
        extra.append(9.0)
        log.append(extra)
        return x + len(extra)

    return f, ramp(T), log


@program()
def plus_equals_list(T):
    log = []

    def f(x):
        nonlocal log
        log += [x.shape[0], "a"]
        return x

    return f, ramp(T), lambda: log


@program()
def list_iterated_while_it_grows(T):
    def f(x, box):
        for v in box:
            if len(box) < 6:
                box.append(v + 1)
            x = x * v
        return x

    return f, [(x, [1.0, 2.0]) for (x,) in ramp(T)], None


@program(compiles=None)
def item_appended_to_a_list_under_iteration(T):
    box = [1.0, 2.0]

    def f(x):
        for v in box:
            if len(box) < 3:
                box.append(x.sum().item())
            x = x * v
        box.pop()
        return x

    return f, ramp(T), box


@program()
def sort_reverse_remove(T):
    box = Box(xs=[3, 1, 2])

    def f(x):
        box.xs.sort()
        box.xs.reverse()
        box.xs.remove(3)
        box.xs.append(3)
        return x * box.xs[0]

    return f, ramp(T), box


@program()
def sort_with_a_key(T):
    box = Box(xs=[3, 1, 2])

    def f(x):
        box.xs.sort(key=lambda v: -v)
        return x * box.xs[0]

    return f, ramp(T), box


@program()
def reads_of_a_list_before_and_after(T):
    box = Box(xs=[1.0])

    def f(x):
        a = box.xs[0]
        box.xs[0] = a + 1
        b = box.xs[0]
        box.xs[0] = 1.0
        return x * a + b

    return f, ramp(T), box


# ---------------------------------------------------------------- dicts, sets, deques


@program()
def dict_of_counts(T):
    counts = {}

    def f(x, key):
        counts[key] = counts.get(key, 0) + 1
        if key in counts:
            counts[key] += 1
        return x * counts[key]

    return f, [(x, "ab"[k % 2]) for k, (x,) in enumerate(ramp(T, 20))], counts


@program()
def dict_order_after_replay(T):
    d = {"a": 1, "b": 2}

    def f(x):
        v = d.pop("a")
        d["a"] = v
        d["c"] = 5
        del d["c"]
        return x + len(d)

    return f, ramp(T), lambda: list(d.items())


@program()
def dict_read_as_a_whole_after_writes(T):
    d = {"a": 1.0}

    def f(x):
        d["b"] = 2.0
        total = sum(d.values())
        d.clear()
        d.update(a=1.0)
        return x * total + len(d)

    return f, ramp(T), d


@program()
def item_in_a_dict_read_back(T):
    d = {}

    def f(x):
        d["loss"] = x.sum().item()
        d["text"] = f"{d['loss']:.3f}"
        return d["loss"] * 2, d["text"]

    return f, ramp(T), d


@program(compiles=None)
def item_in_a_dict_read_as_a_whole(T):
    d = {}

    def f(x):
        d["loss"] = x.sum().item()
        return [v * 2 for v in d.values()]

    return f, ramp(T), d


@program()
def default_dict_of_lists(T):
    d = collections.defaultdict(list)

    def f(x):
        d["k"].append(x.sum().item())
        return x

    return f, ramp(T), d


@program()
def default_dict_made_anew(T):
    d = collections.defaultdict(lambda: 3.0)

    def f(x):
        v = d["k"]
        del d["k"]
        return x * v

    return f, ramp(T), d


@program()
def ordered_dict_moves(T):
    d = collections.OrderedDict(a=1, b=2, c=3)

    def f(x):
        d.move_to_end("a")
        d["a"] = 5
        return x * len(d)

    return f, ramp(T, 12), lambda: list(d.items())


@program()
def setdefault_and_update(T):
    d = {}

    def f(x):
        nonlocal d
        d.setdefault("n", 0)
        d["n"] += 1
        d.update({"last": x.shape[0]}, m=d["n"])
        d |= {"z": 1}
        return x * d["m"]

    return (lambda x: f(x)), ramp(T), d


@program()
def set_of_names(T):
    names = set()

    def f(x):
        names.add("a")
        names.add(3)
        names.discard("b")
        names.update(("q", "r"))
        return x + len(names)

    return f, ramp(T), lambda: sorted(map(str, names))


@program()
def deque_with_maxlen(T):
    recent = collections.deque(maxlen=3)

    def f(x):
        recent.append(x.sum().item())
        return x

    return f, ramp(T), lambda: (list(recent), recent.maxlen)


@program(compiles=None)
def deque_with_maxlen_read_after(T):
    recent = collections.deque([1.0, 2.0], maxlen=3)

    def f(x):
        recent.append(5.0)
        recent.appendleft(4.0)
        return x * sum(recent) + len(recent)

    return f, ramp(T), lambda: list(recent)


@program()
def deque_balanced(T):
    q = collections.deque([1.0])

    def f(x):
        q.append(2.0)
        q.rotate(1)
        a = q.popleft()
        return x * a + q[0]

    return f, ramp(T), lambda: list(q)


@program()
def bytearray_grows(T):
    out = bytearray(b"ab")

    def f(x):
        out.extend(b"c")
        out.append(100)
        return x * 2

    return f, ramp(T), lambda: bytes(out)


@program()
def count_iterator(T):
    it, steps = itertools.count(), itertools.count(0.5, 0.25)

    def f(x):
        return x + next(it) * next(steps) + next(it)

    return f, ramp(T), lambda: (repr(it), repr(steps))


@program(compiles=None)
def other_iterators_outside(T):
    it, gen, cyc = iter([float(k) for k in range(20)]), (float(k) for k in range(20)), itertools.cycle([1.0, 2.0])
    return (lambda x: x + next(it) + next(gen) + next(cyc)), ramp(T), lambda: list(it)


# ---------------------------------------------------------------- arguments, aliases, order


@program()
def out_dict_as_an_argument(T):
    def f(x, out):
        out["y"] = x * 2
        out["n"] = x.shape[0]
        out["s"] = x.sum().item()
        return out

    return f, [(x, {}) for (x,) in ramp(T)], None


@program()
def out_list_as_an_argument_twice(T):
    def f(x, a, b):
        a.append(x * 2)
        b.append(x * 3)
        return x + len(a)

    args = []
    for k, (x,) in enumerate(ramp(T, 12)):
        a = []
        args.append((x, a, a if k in (5, 9) else []))
    return f, args, None


@program(compiles=None)
def argument_list_also_known_outside(T):
    log = []

    def f(x, box):
        box.append(1)
        log.append(2)
        return x + len(box)

    return f, [(x, log) for (x,) in ramp(T)], log


@program()
def object_argument_is_written(T):
    def f(x, box):
        box.n += 1
        box.last = x
        return x * box.n

    b = Box(n=0, last=None)
    return f, [(x, b) for (x,) in ramp(T)], b


@program()
def two_names_of_one_object(T):
    a = Box(n=0)
    b = a

    def f(x):
        a.n += 1
        b.n += 1
        return x * a.n + b.n

    return f, ramp(T), lambda: (a, a is b)


@program()
def object_dict_under_another_name(T):
    box = Box(n=0)
    space = box.__dict__

    def f(x):
        box.n += 1
        space["n"] += 1
        vars(box)["m"] = space["n"]
        return x * box.n + box.m

    return f, ramp(T), box


@program()
def stale_read_through_the_dict(T):
    box = Box(n=0)
    space = box.__dict__

    def f(x, k):
        box.n = k
        return x * space["n"]

    return f, [(x, float(k)) for k, (x,) in enumerate(ramp(T, 12))], box


@program()
def same_list_under_two_names(T):
    a = []
    box = Box(log=a)

    def f(x):
        a.append(1)
        box.log.append(len(a))
        return x + len(box.log)

    return f, ramp(T), box


@program()
def fresh_list_kept_and_returned(T):
    box = Box(hist=None)

    def f(x):
        mine = [x * 2]
        box.hist = mine
        mine.append(len(mine))
        return mine

    def look():
        return box

    return f, ramp(T), look


@program()
def nested_fresh_containers(T):
    box = Box(state={})

    def f(x):
        part = {"y": x + 1}
        box.state = {"a": part, "b": [part, (part, 2.0)]}
        return part

    return f, ramp(T), lambda: (box, box.state["a"] is box.state["b"][0] if box.state else None)


@program()
def delete_then_set(T):
    box = Box(t=1, other=2)

    def f(x):
        del box.t
        missing = not hasattr(box, "t")
        box.t = 3 if missing else 4
        return x * box.t

    return f, ramp(T), lambda: list(vars(box).items())


@program()
def set_then_delete(T):
    box = Box()

    def f(x):
        box.t = x.sum().item()
        v = box.t
        del box.t
        return v, hasattr(box, "t")

    return f, ramp(T), box


@program()
def delete_what_is_there_only_sometimes(T):
    box = Box()

    def f(x, k):
        if k % 2:
            box.t = k
        elif hasattr(box, "t"):
            del box.t
        return x + k

    return f, [(x, k) for k, (x,) in enumerate(ramp(T, 16))], box


@program()
def effects_in_one_branch(T):
    log = []

    def f(x):
        if x.sum() > 4:
            log.append("high")
            return x
        log.append("low")
        return x * 2

    return f, [(T.tensor([float(v)]),) for v in (1, 5, 1, 5, 1, 5, 1, 5, 9, 2, 3, 7)], log


@program()
def side_exit_after_an_effect(T):
    box = Box(n=0)

    def f(x):
        box.n += 1
        if x.sum() > 4:
            box.n += 100
        return x * box.n

    return f, [(T.tensor([float(v)]),) for v in (1, 1, 1, 1, 1, 5, 1, 5, 5, 5, 1, 5)], box


@program()
def exception_after_an_effect(T):
    box = Box(n=0, log=[])

    def f(x):
        box.n += 1
        box.log.append("in")
        if x.sum() < 0:
            raise ValueError("negative")
        box.log.append("out")
        return x * box.n

    return f, [(T.tensor([float(v)]),) for v in (1, 1, 1, 1, 1, -5, 1, -5, 1)], box


@program()
def caught_exception_between_effects(T):
    box = Box(log=[])

    def f(x):
        try:
            box.log.append("try")
            raise KeyError("k")
        except KeyError as e:
            box.log.append(e.args[0])
        else:
            box.log.append("else")
        finally:
            box.log.append("finally")
        return x * 2

    return f, ramp(T), box


@program()
def write_of_a_tensor_and_of_python_state(T):
    box = Box(n=0, w=T.zeros(2))

    def f(x):
        box.n += 1
        box.w.add_(x)
        box.last = box.w * box.n
        return box.w.sum()

    return f, ramp(T), box


@program()
def kept_tensor_is_written_later_in_the_call(T):
    box = Box(y=None)

    def f(x):
        box.y = x * 2
        box.y.add_(1)
        z = box.y[0:1]
        z.mul_(3)
        return z

    return f, ramp(T), box


@program()
def kept_tensor_is_an_argument(T):
    box = Box(x=None)

    def f(x):
        box.x = x
        return x * 2

    def look():
        return box

    return f, ramp(T), look


@program()
def kept_view_of_an_argument(T):
    box = Box(v=None)

    def f(x):
        box.v = x[0:1]
        return box.v * 2

    return f, ramp(T), box


@program()
def kept_tensor_with_a_gradient(T):
    w = T.tensor([2.0, 3.0], requires_grad=True)
    box = Box(loss=None)

    def f(x):
        box.loss = (x * w).sum()
        return box.loss * 2

    def g(x):
        out = compiled(x)
        out.backward()
        return out

    compiled = f
    return f, ramp(T), lambda: (box.loss, box.loss is not None and box.loss.requires_grad)


@program()
def train_step_with_a_log(T):
    w = T.nn.Parameter(T.tensor([1.0, 2.0]))
    opt = T.optim.SGD([w], lr=0.1, momentum=0.9)
    box = Box(step=0, losses=[])

    def f(x):
        opt.zero_grad()
        loss = ((w - x) ** 2).sum()
        loss.backward()
        opt.step()
        box.step += 1
        box.losses.append(loss.item())
        return loss.detach()

    return f, ramp(T, 12), lambda: (box, w.detach(), w.grad)


@program()
def module_counter_and_cache(T):
    class M(T.nn.Module):
        def __init__(self):
            super().__init__()
            self.calls, self.last = 0, None
            self.lin = T.nn.Linear(2, 2)

        def forward(self, x):
            self.calls += 1
            self.last = x * 2
            if self.calls % 2:
                return self.lin(x)
            return self.lin(x) + self.calls

    T.manual_seed(0)
    m = M()
    return (lambda x: m(x)), ramp(T, 14), lambda: (m.calls, m.last, "last" in m.__dict__)


@program(compiles=None)
def module_attribute_becomes_a_tensor_parameter(T):
    m = T.nn.Linear(2, 2)

    def f(x):
        m.extra = T.nn.Parameter(x * 2)
        return x + 1

    return f, ramp(T), lambda: [n for n, _ in m.named_parameters()]


# ---------------------------------------------------------------- descriptors, classes, managers


@program()
def property_setter(T):
    class Meter:
        def __init__(self):
            self._v, self.sets = 0.0, 0

        @property
        def v(self):
            return self._v

        @v.setter
        def v(self, value):
            self._v = value
            self.sets += 1

    m = Meter()

    def f(x):
        m.v = x.sum().item()
        return x * 2, m.v

    return f, ramp(T), lambda: vars(m)


@program()
def descriptor_with_state(T):
    class Counted:
        def __set_name__(self, owner, name):
            self.name = "_" + name

        def __get__(self, obj, cls):
            obj.__dict__["reads"] = obj.__dict__.get("reads", 0) + 1
            return obj.__dict__[self.name]

        def __set__(self, obj, value):
            obj.__dict__[self.name] = value

    class Thing:
        v = Counted()

    t = Thing()
    t.v = 2.0
    return (lambda x: x * t.v), ramp(T), lambda: vars(t)


@program()
def own_setattr(T):
    class Strict:
        def __setattr__(self, name, value):
            object.__setattr__(self, name, value)
            object.__setattr__(self, "last", name)

    s = Strict()
    s.n = 0

    def f(x):
        s.n += 1
        return x * s.n

    return f, ramp(T), lambda: vars(s)


@program()
def setattr_getattr_delattr_by_name(T):
    box = Box(n0=0)

    def f(x):
        for k in range(2):
            setattr(box, f"n{k}", getattr(box, f"n{k}", 0) + 1)
        box.tmp = 1
        delattr(box, "tmp")
        return x + box.n1

    return f, ramp(T), box


@program()
def frozen_dataclass_refuses(T):
    @dataclasses.dataclass(frozen=True)
    class Cfg:
        k: float = 2.0

    cfg, box = Cfg(), Box(errors=0)

    def f(x):
        try:
            cfg.k = 3.0
        except AttributeError:
            box.errors += 1
        return x * cfg.k

    return f, ramp(T), lambda: (cfg.k, box)


@program()
def dataclass_fields_written(T):
    @dataclasses.dataclass
    class State:
        step: int = 0
        history: list = dataclasses.field(default_factory=list)

    s = State()

    def f(x):
        s.step += 1
        s.history.append(s.step)
        return x * s.step

    return f, ramp(T), lambda: (s.step, s.history)


@program()
def context_manager_with_state(T):
    class Timer:
        def __init__(self):
            self.entered, self.left, self.depth = 0, 0, 0

        def __enter__(self):
            self.entered += 1
            self.depth += 1
            return self

        def __exit__(self, *exc):
            self.left += 1
            self.depth -= 1

    t = Timer()

    def f(x):
        with t as now, t:
            return x * now.depth

    return f, ramp(T), lambda: vars(t)


@program()
def contextlib_manager_with_state(T):
    box = Box(depth=0, log=[])

    @contextlib.contextmanager
    def scope(name):
        box.depth += 1
        try:
            yield box.depth
        finally:
            box.depth -= 1
            box.log.append(name)

    def f(x):
        with scope("a") as d:
            return x * d

    return f, ramp(T), box


@program(compiles=None)
def generator_left_unfinished(T):
    log = []

    def numbers():
        try:
            yield 1.0
            yield 2.0
        finally:
            log.append("closed")

    def f(x):
        for v in numbers():
            x = x * v
            break
        return x + len(log)

    return f, ramp(T), log


@program(compiles=None)
def generator_kept_outside(T):
    box = Box(gen=None)

    def numbers(x):
        yield x * 2
        yield x * 3

    def f(x):
        box.gen = numbers(x)
        return next(box.gen)

    return f, ramp(T), lambda: next(box.gen) if box.gen else None


@program()
def generator_with_effects_inside(T):
    log = []

    def numbers(n):
        for k in range(n):
            log.append(k)
            yield float(k + 1)

    return (lambda x: x * sum(numbers(3))), ramp(T), log


@program(compiles=None)
def closure_kept_outside(T):
    box = Box(fn=None)

    def f(x):
        y = x * 2
        box.fn = lambda: y + 1
        return y

    return f, ramp(T), lambda: box.fn() if box.fn else None


@program(compiles=None)
def object_with_del(T):
    log = []

    class Loud:
        def __del__(self):
            log.append("gone")

    def f(x):
        thing = Loud()
        thing.v = x
        return thing.v * 2

    return f, ramp(T), log


@program()
def partial_and_method_effects(T):
    box = Box(n=0)

    class Counter:
        def bump(self, by, *, twice=False):
            box.n += by * (2 if twice else 1)
            return box.n

    bump = functools.partial(Counter().bump, 2, twice=True)
    return (lambda x: x + bump()), ramp(T), box


@program()
def match_with_effects(T):
    box = Box(seen=[])

    def f(x, msg):
        match msg:
            case {"kind": "a", "v": v}:
                box.seen.append(v)
                return x * v
            case (k, *_):
                box.seen.append(k)
                return x + k

    args = [(x, {"kind": "a", "v": 2.0} if k % 2 else (3.0, 1)) for k, (x,) in enumerate(ramp(T, 14))]
    return f, args, box


@program()
def enum_config_and_text(T):
    class Mode(enum.Enum):
        A = 1
        B = 2

    box = Box(mode=Mode.A, text="")

    def f(x):
        box.mode = Mode.B if box.mode is Mode.A else Mode.A
        box.text = f"{box.mode.name}:{x.shape[0]}"
        return x * box.mode.value

    return f, ramp(T, 14), box


# ---------------------------------------------------------------- text


@program()
def texts_of_numbers_from_tensors(T):
    box = Box(lines=[])

    def f(x, k):
        v = x.mean().item()
        text = " %.2f of %s" % (v, "n") + "{:.1f}".format(v)  # noqa: UP031, UP032
        box.lines.append(f"{k}: {v:.3f} {v!r:>8} {v:{k}.2f}|" + str(v) + text)
        return x, f"{v}", ", ".join([f"{v:.1f}", "z"])

    return f, [(x, 10) for (x,) in ramp(T)], box


@program()
def text_that_is_looked_at(T):
    box = Box(n=0)

    def f(x):
        s = f"{x.sum().item():.0f}"
        box.n += len(s)
        return x * (2 if s.startswith("1") else 3), {s: 1}

    return f, [(T.tensor([float(v)]),) for v in (1, 1, 1, 1, 15, 2, 1, 100)], box


@program()
def text_of_a_tensor(T):
    box = Box(s="")

    def f(x):
        box.s = f"{x * 2} {x.sum()} {x.sum():.2f}"
        return x + 1

    return f, ramp(T), box


@program(compiles=None)
def text_of_a_tensor_written_later(T):
    box = Box(s="")

    def f(x):
        y = x * 2
        box.s = f"{y}"
        y.add_(1)
        return y

    return f, ramp(T), box


@program(compiles=None)
def text_of_a_tensor_with_a_tape(T):
    w = T.tensor([2.0, 3.0], requires_grad=True)
    box = Box(s="")

    def f(x):
        y = x * w
        box.s = f"{y}"
        return y.detach()

    return f, ramp(T), box


@program()
def user_text(T):
    class Name:
        def __init__(self, n):
            self.n = n

        def __str__(self):
            return f"<{self.n}>"

    name, box = Name(1), Box(s="")

    def f(x):
        name.n += 1
        box.s = f"{name}" + str(name)
        return x

    return f, ramp(T), box


@program()
def format_reads_attributes(T):
    o, d = Box(k=2.0, sub=[1, 2]), {"a": 5}

    def f(x):
        o.k += 1
        return "{0.k} {q.sub[1]:>4} {d[a]!r} {{}}".format(o, q=o, d=d)  # noqa: UP032

    return f, ramp(T), o


@program()
def fstring_as_a_key(T):
    d = {"w0": 1.0, "w1": 2.0}

    def f(x):
        for k in range(2):
            x = x * d[f"w{k}"]
        d[f"n{len(d)}"] = 1
        del d[f"n{len(d) - 1}"]
        return x

    return f, ramp(T), d


# ---------------------------------------------------------------- threads


@program(compiles=None)
def many_threads_count(T):
    box = Box(log=[])

    def f(x):
        box.log.append(1)
        return x * 2

    class Many:
        def __call__(self, x):
            threads = [threading.Thread(target=self.f, args=(x,)) for _ in range(4)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()

    return f, ramp(T, 20), box


# ---------------------------------------------------------------- callbacks and promises


@program()
def callback_in_order(T):
    box = Box(log=[], n=0)

    def f(x):
        box.n += 1
        T.callback(box.log.append, box.n)
        box.log.append("between")
        T.callback(note, x * 2, loss=x.sum().item())
        return x

    def note(y, loss):
        box.log.append((y, loss, len(box.log)))

    return f, ramp(T), box


@program()
def callback_of_a_method_and_of_text(T):
    class Log:
        def __init__(self):
            self.lines = []

        def write(self, text):
            self.lines.append(text)

    log = Log()

    def f(x):
        T.callback(log.write, f"{x.sum().item():.2f} {x}")
        return x + 1

    return f, ramp(T), log


@program(compiles=None)
def callback_before_a_write(T):
    w, seen = T.zeros(2), []

    def f(x):
        T.callback(lambda: None)
        T.callback(look)
        w.add_(x)
        return w * 2

    def look():
        seen.append(w.tolist())

    return f, ramp(T), lambda: (w, seen)


@program()
def callback_after_a_write(T):
    w, seen = T.zeros(2), []

    def f(x):
        w.add_(x)
        T.callback(look)
        return w * 2

    def look():
        seen.append(w.tolist())

    return f, ramp(T), lambda: (w, seen)


@program(compiles=None)
def callback_argument_changes_later(T):
    seen = []

    def f(x):
        mine = [1]
        T.callback(seen.append, mine)
        mine.append(2)
        return x

    return f, ramp(T), seen


@program(compiles=None)
def callback_that_raises_sometimes(T):
    box = Box(n=0, after=0)

    def check(n):
        if n % 5 == 4:
            raise ValueError(n)

    def f(x):
        box.n += 1
        T.callback(check, box.n)
        box.after += 1
        return x * box.n

    return f, ramp(T, 14), box


@program(compiles=None)
def callback_changes_what_is_read_before(T):
    box, cfg = Box(log=[]), {"k": 1.0}

    def change():
        cfg["k"] += 1

    def f(x):
        y = x * cfg["k"]
        T.callback(change)
        return y

    return f, ramp(T), lambda: (box, cfg)


@program()
def pure_of_numbers(T):
    calls = []

    @T.pure
    def schedule(step, scale=2.0):
        return 1.0 / (step + 1) * scale

    @T.pure
    def table(n):
        return [n, {"n": n}]

    box = Box(step=0)

    def f(x):
        box.step += 1
        t = table(3)
        t.append(box.step)
        return x * schedule(box.step), t, schedule(1, scale=3.0)

    return f, ramp(T), lambda: (box, calls)


@program()
def assume_constant_gives_a_tensor(T):
    @T.assume_constant
    def mask(n):
        return T.ones(n) * n

    return (lambda x: x * mask(2)), ramp(T), None


# ---------------------------------------------------------------- what is handed out


@program()
def cleared_outside_list_is_returned(T):
    box = Box(buf=[1])

    def f(x):
        box.buf.clear()
        box.buf.append(x * 2)
        return box.buf

    return f, ramp(T), box


@program()
def objects_are_returned_and_kept(T):
    @dataclasses.dataclass
    class Output:
        y: object
        n: int = 0
        more: list = dataclasses.field(default_factory=list)

    class Node:
        __slots__ = ("left", "value")

    box = Box(last=None)

    def f(x):
        node = Node()
        node.value = x.sum().item()
        out = Output(x * 2, x.shape[0])
        out.more.append(node)
        out.extra = (node, out.y)
        box.last = out
        return out, node, {"y": out.y}

    def look():
        return box, box.last is None or box.last.more[0] is box.last.extra[0]

    return f, ramp(T), look


@program(compiles=None)
def object_that_contains_itself(T):
    def f(x):
        a, b = Box(), Box()
        a.b, b.a = b, a
        a.y = x * 2
        return a

    return f, ramp(T), None


@program()
def frozen_dataclass_is_returned(T):
    @dataclasses.dataclass(frozen=True, slots=True)
    class Point:
        x: object
        scale: float = 1.0

    def f(x):
        p = Point(x * 2)
        return dataclasses.replace(p, scale=2.0) if False else Point(p.x + 1, 3.0)

    return f, ramp(T), None


@program(compiles=None)
def object_of_a_subclass_of_a_builtin(T):
    class Output(dict):
        pass

    def f(x):
        out = Output()
        out["y"] = x * 2
        out.note = 1
        return out

    return f, ramp(T), None


@program(4)
def a_running_mean_in_a_float(tj):
    s = Box(ema=0.0, losses=[])

    def f(x):
        loss = (x * x).mean()
        s.ema = 0.9 * s.ema + 0.1 * loss.item()
        s.losses.append(loss)
        return x * s.ema

    return f, [(tj.arange(3, dtype=tj.float32) * i,) for i in range(12)], s


@program(2)
def a_running_mean_decides(tj):
    s = Box(ema=1.0, low=0)

    def f(x):
        s.ema = s.ema * 0.5 + x.sum().item() / 2.0
        if s.ema < 3:
            s.low += 1
            return x
        return x / (s.ema + 1)

    return f, [(tj.ones(3) * (i % 5),) for i in range(16)], s


@program(None)
def items_that_divide_by_zero(tj):
    s = Box(r=0.0)

    def f(x):
        try:
            s.r = 1.0 / x.sum().item()
        except ZeroDivisionError:
            s.r = -1.0
        return x * s.r

    return f, [(tj.ones(3) * (i % 4),) for i in range(16)], s


@program(None)
def items_that_overflow_and_nan(tj):
    s = Box(r=1.0)

    def f(x):
        s.r = s.r * x.max().item() - x.min().item()
        return x * s.r

    inf = float("inf")
    calls = [(tj.tensor([1.0 + i, 1e30]),) for i in range(8)] + [(tj.tensor([inf, -inf]),), (tj.tensor([0.0, -0.0]),)]
    return f, calls, s


@program(None)
def integers_and_items(tj):
    s = Box(n=0, r=0.0)

    def f(x):
        s.n += 2**50
        s.r = x.sum().item() * s.n + s.n
        return x * s.r

    return f, [(tj.ones(3) * i,) for i in range(14)], s


# ---------------------------------------------------------------- one entry, many keys


@program()
def keys_that_are_equal(T):
    d = {1: 0.0}

    def f(x, k):
        d[1] = k
        return x * d[True] + d[1.0]

    return f, [(x, float(k)) for k, (x,) in enumerate(ramp(T, 10))], d


@program()
def tuple_keys_made_anew(T):
    d = {}

    def f(x, k):
        for i in range(2):
            d[(i, "a")] = k + i
        return x * d[(*[0], "a")] + d[1, "a"]

    return f, [(x, float(k)) for k, (x,) in enumerate(ramp(T, 10))], d


@program(compiles=None)
def keys_with_an_equality_of_their_own(T):
    @dataclasses.dataclass(frozen=True)
    class Key:
        n: int

    d = {}

    def f(x, k):
        d[Key(1)] = k
        return x * d[Key(1)]

    return f, [(x, float(k)) for k, (x,) in enumerate(ramp(T, 10))], lambda: list(d.values())


@program(compiles=None)
def text_subclass_as_a_key(T):
    class Name(str):
        pass

    d, name = {}, Name("a")

    def f(x, k):
        d[name] = k
        return x * d["a"]

    return f, [(x, float(k)) for k, (x,) in enumerate(ramp(T, 10))], lambda: list(d.values())


@program()
def enum_keys_are_written(T):
    class Mode(enum.Enum):
        A = 1

    d = {}

    def f(x, k):
        d[Mode.A] = k
        return x * d[Mode.A]

    return f, [(x, float(k)) for k, (x,) in enumerate(ramp(T, 10))], lambda: list(d.values())


@program()
def attributes_read_as_a_whole(T):
    box = Box(n=0, m=1)

    def f(x):
        box.n = x.shape[0]
        text = f"{vars(box)}"
        box.n = 7
        return x + len(vars(box)), text, {**box.__dict__}

    return f, ramp(T), box


@program()
def swapped_tensors(T):
    box = Box(a=T.zeros(2), b=T.ones(2))

    def f(x):
        box.a, box.b = box.b, box.a
        return box.a + x

    return f, ramp(T, 14), box


@program()
def hidden_state(T):
    box = Box(h=T.zeros(2), steps=0)

    def f(x):
        box.h = box.h * 0.5 + x
        box.steps += 1
        return box.h * box.steps

    return f, ramp(T, 14), box


@program()
def module_hook_that_keeps_statistics(T):
    T.manual_seed(0)
    m = T.nn.Linear(2, 2)
    stats = {}

    def note(mod, args, out):
        stats["n"] = stats.get("n", 0) + 1
        stats.setdefault("means", []).append(out.mean().item())

    m.register_forward_hook(note)
    return (lambda x: m(x).detach()), ramp(T), stats


@program()
def print_to_many_places(T):
    import io

    out, box = io.StringIO(), Box(n=0)

    def f(x):
        box.n += 1
        print("step", box.n, x.sum().item(), x.sum(), None, [1, "a"], sep="|", end=";\n", file=out)
        return x

    return f, ramp(T), lambda: out.getvalue()


@program(compiles=None)
def print_to_an_object_of_ones_own(T):
    class Tee:
        def __init__(self):
            self.lines = []

        def write(self, text):
            self.lines.append(text)

    tee = Tee()

    def f(x):
        print("hi", file=tee)
        return x

    return f, ramp(T), tee


@program()
def early_stopping(T):
    box = Box(best=None, bad=0, stopped=False)

    def f(x):
        loss = x.sum().item()
        if box.best is None or loss < box.best - 0.1:
            box.best, box.bad = loss, 0
        else:
            box.bad += 1
        if box.bad >= 3:
            box.stopped = True
        return x

    losses = [5.0, 4.0, 3.0, 2.0, 2.0, 1.5, 1.5, 1.5, 1.5, 1.0, 0.5, 0.5]
    return f, [(T.tensor([v]),) for v in losses], box


@program()
def moving_average_of_a_number(T):
    box = Box(ema=0.0)

    def f(x):
        box.ema = 0.9 * box.ema + 0.1 * x.mean().item()
        return box.ema, round(box.ema, 2), max(box.ema, 0.5)

    return f, ramp(T, 12), box


@program()
def perplexity_in_a_log(T):
    log = []

    def f(x):
        loss = (x * 0.1).mean().item()
        log.append(f"ppl {math.exp(loss):.2f}")
        if math.isnan(loss) or not math.isfinite(loss):
            log.append("bad")
        return x

    return f, [*ramp(T, 8), (T.tensor([math.nan, 1.0]),), (T.tensor([math.inf, 1.0]),), *ramp(T, 3)], log


@program(compiles=None)
def overflow_in_a_log(T):
    log = []

    def f(x):
        try:
            log.append(math.exp(x.sum().item()))
        except OverflowError:
            log.append("too large")
        return x

    return f, [(T.tensor([v]),) for v in (1.0, 2.0, 3.0, 4.0, 1000.0, 5.0, 1000.0)], log


@program()
def comparisons_of_items(T):
    box = Box(k=3.0)

    def f(x):
        a, b = x[0].item(), x[1].item()
        out = []
        for test in (a < b, a <= b, a > b, a >= b, a == b, a != b, a < 3, a >= 3.5, a < box.k, bool(a), not b):
            out.append(1 if test else 0)
        return x, out

    pairs = [(1.0, 2.0), (2.0, 1.0), (3.0, 3.0), (0.0, -0.0), (math.nan, 1.0), (math.inf, 1e30), (3.5, 0.1)]
    return f, [(T.tensor(list(p)),) for p in pairs for _ in range(5)], box


@program()
def kept_closure(T):
    box = Box(fn=None, n=0)

    def f(x):
        box.n += 1
        y = x * box.n
        box.fn = lambda z: y + z
        return y

    return f, ramp(T), lambda: (box.n, box.fn(1.0) if box.fn else None)
