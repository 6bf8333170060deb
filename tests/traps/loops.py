"""Programs with loops that ask the data: `LOOPS` are rolled into native loops, `REFUSED` must not be, `OTHERS` may.

Each takes the argument that `made` gives for a number of turns, and is called with many of them.
"""

import collections
import itertools

import numpy as np

import tracejit as tj
import tracejit.nn as nn
import tracejit.nn.functional as F

LOOPS, REFUSED, OTHERS = [], [], []


def native(f):
    LOOPS.append(f)
    return f


def unrolled(f):
    REFUSED.append(f)
    return f


def either(f):
    OTHERS.append(f)
    return f


def made(turns, seed=0):
    """A tensor that takes so many halvings until no element is above 1."""
    x = np.random.default_rng(seed).uniform(0.1, 0.9, (3, 4)).astype(np.float32)
    x[1, 2] = 0.75
    return tj.tensor(x * np.float32(2.0**turns))


# ---------------------------------------------------------------- native


@native
def halved(x):
    while (x > 1).any():
        x = x / 2
    return x


@native
def counted(x):
    n = 0
    while (x > 1).any():
        x = x / 2
        n += 1
    return x, n


@native
def counted_down(x):
    n = 1000
    while (x > 1).any():
        x, n = x / 2, n - 3
    return n, x


@native
def broken_out_of(x):
    for i in range(1000):
        x = x / 2
        if not (x > 1).any():
            break
    return x, i


@native
def range_with_a_step(x):
    for i in range(900, -100, -7):
        x = x * 0.5
        if x.max() <= 1:
            break
    return x, i


@native
def both_conditions(x):
    n = 0
    while (x > 1).any() and n < 11:
        x = x / 2
        n += 1
    return x, n


@native
def chained_comparison(x):
    n = 0
    while 0 <= n < 12 and x.max() > 1:
        x = x / 2
        n += 1
    return x, n


@native
def else_of_a_for(x):
    for _ in range(12):
        x = x / 2
        if not (x > 1).any():
            break
    else:
        return x * 100
    return x


@native
def walrus(x):
    while (m := x.max()) > 1:
        x = x / 2
    return x, m


@native
def newton(x):
    y = x
    for k in range(60):
        z = (y + x / y) / 2
        gap = (z - y).abs().max().item()
        y = z
        if gap < 1e-3:
            break
    return y, gap, k


@native
def from_a_plain_number(x):
    gap = float("inf")
    while gap > 0.5:
        y = x * 0.75
        gap = (x - y).abs().max().item()
        x = y
    return x, gap


@native
def power_iteration(x):
    a = x.T @ x
    v = tj.ones(4)
    for _ in range(200):
        w = a @ v
        w = w / w.norm()
        if (w - v).abs().max() < 1e-4:
            break
        v = w
    return v @ (a @ v)


@native
def the_one_before(x):
    before = x
    while (x > 1).any():
        before, x = x, x / 2
    return before, x


@native
def fibonacci_of_tensors(x):
    a, b = x * 0, x * 0 + 1
    while (b < x).any():
        a, b = b, a + b
    return a, b


@native
def swapped(x):
    a, b = x, x + 1
    while (a > 1).any():
        a, b = b / 2, a / 2
    return a, b


@native
def state_in_a_tuple(x):
    state = (x, x.sum())
    while state[1] > 6:
        state = (state[0] / 2, (state[0] / 2).sum())
    return state


@native
def clone_written_in_place(x):
    x = x.clone()
    while (x > 1).any():
        x /= 2
        x[0] += 0.01
    return x


@native
def argument_written_in_place(x):
    n = 0
    while (x > 1).any():
        x.mul_(0.5)
        n += 1
    return n


@native
def buffer_that_is_made_in_the_turn(x):
    while (x > 1).any():
        y = tj.zeros(3, 4)
        y[0] = x[0] / 2
        y[1:] = x[1:] / 3
        x = y
    return x


@native
def written_after_the_loop(x):
    while (x > 1).any():
        x = x / 2
        y = x
    y.add_(1)
    return x, x is y


@native
def counter_beside_a_tensor(x):
    n = 0
    while (x > 1).any():
        n += 1
        x = x / 2 + n * 1e-3
    return x, n, x * n


@native
def counter_as_a_float(x):
    n = 0
    while (x > 1).any():
        n += 1
        x = x / 2 + n * 0.001 - n / 2.0 * 0.001
    return x


@native
def float_that_advances(x):
    t, dt = 0.0, 0.01
    while (x > t).any() and t < 3.0:
        x = x / 2 + t
        t = t + dt
    return x, t


@native
def two_counters(x):
    n, m = 0, 100
    while (x > 1).any() and n < m:
        x = x / 2
        n += 1
        m -= 2
    return n, m, x


@native
def random_turns(x):
    while (x > 1).any():
        x = x / 2 - tj.rand(3, 4) * 0.01
    return x, tj.rand(2)


@native
def dropout_turns(x):
    while (x > 1).any():
        x = F.dropout(x, 0.1) / 2
    return x


@native
def function_of_the_users(x):
    def step(v):
        return v / 2

    while (x > 1).any():
        x = step(x)
    return x


@native
def lambda_over_a_variable(x):
    scale = 0.5
    while (x > 1).any():
        x = (lambda v: v * scale + x * 0)(x)
    return x


@native
def exit_by_return(x):
    n = 0
    while True:
        if x.max() <= 1:
            return x, n
        x = x / 2
        n += 1


@native
def two_exits(x):
    while True:
        x = x / 2
        if x.max() < 1:
            break
        if x.min() < 1e-2:
            x = x + 100
            break
    return x


@native
def two_in_a_row(x):
    y = x * 4
    while (x > 1).any():
        x = x / 2
    while (y > 1).any():
        y = y / 2 + x * 0.01
    return x, y


@native
def helper_with_the_loop(x):
    a = counted(x)
    b = counted(x * 3)
    return a, b


@native
def inner_range(x):
    while (x > 1).any():
        for _ in range(3):
            x = x * 0.8
    return x


@native
def loop_inside_a_range(x):
    out = []
    for k in range(2):
        y = x * (k + 1)
        while (y > 1).any():
            y = y / 2
        out.append(y)
    return out


@native
def integers(x):
    n = x.to(tj.int64).max() + 3
    steps = 0
    while n > 2:
        n = n - n // 2
        steps += 1
    return n, steps


@native
def never_a_number(x):
    x = x.log() - 3.0
    n = 0
    while x.sum() > -1e3 and n < 300:
        x = x - 1
        n += 1
    return x, n


@native
def matched_turns(x):
    best = x
    for _ in range(100):
        x = x / 2
        best = tj.where(x > 1, x, best)
        if (x <= 1).all():
            break
    return best


@native
def keeps_the_best_two(x):
    scores, tokens = tj.zeros(2), tj.zeros(2, dtype=tj.int64)
    cost = (x[:2] / x.max() * 10000).round() + tj.arange(8).reshape(2, 4)
    for _ in range(300):
        all_scores = (scores[:, None] - cost).reshape(-1)
        scores, flat = all_scores.topk(2)
        tokens = tokens + flat % 4
        if scores.max() < -x.max().log() * 9000 - 2000:
            break
    return scores, tokens


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(tj.full((4, 4), 0.15))

    def forward(self, x):
        with tj.no_grad():
            while (x > 1).any():
                x = tj.relu(x @ self.weight)
        return x


_model = Model()


@native
def parameters_without_gradients(x):
    return _model(x)


# ---------------------------------------------------------------- refused


@either
def something_else_at_turn_k(x):
    n = 0
    while (x > 1).any():
        if n == 17:
            x = x * 0.125
        x = x / 2
        n += 1
    return x, n


@unrolled
def item_of_a_list(x):
    scales = [2.0, 3.0, 2.5] * 40
    n = 0
    while (x > 1).any():
        x = x / scales[n]
        n += 1
    return x


@unrolled
def every_third(x):
    n = 0
    while (x > 1).any():
        x = x / 2 if n % 3 else x / 1.5
        n += 1
    return x


@unrolled
def text_of_the_counter(x):
    n, words = 0, ""
    while (x > 1).any():
        x = x / 2
        n += 1
        words += f"{n},"
    return words


@unrolled
def history(x):
    seen = []
    while (x > 1).any():
        x = x / 2
        seen.append(x.sum())
    return seen


@unrolled
def dict_that_grows(x):
    seen, n = {}, 0
    while (x > 1).any():
        x = x / 2
        n += 1
        seen[n] = x
    return len(seen), n


@either
def deque_of_the_last(x):
    last = collections.deque()
    while (x > 1).any():
        x = x / 2
        last.append(x)
        if len(last) > 2:
            last.popleft()
    return list(last)


@unrolled
def list_that_is_new_in_each_turn(x):
    pair = [x, x]
    while (pair[0] > 1).any():
        pair = [pair[0] / 2, pair[0]]
    return pair


@unrolled
def generator_at_work(x):
    scales = (s for s in [2.0, 3.0, 2.5] * 40)
    while (x > 1).any():
        x = x / next(scales)
    return x


@unrolled
def iterator_at_work(x):
    scales = iter([2.0, 3.0, 2.5] * 40)
    while (x > 1).any():
        x = x / next(scales)
    return x


@unrolled
def same_numbers_from_an_iterator(x):
    ticks = iter([2.0] * 20)
    for s in ticks:
        x = x / s
        if not (x > 1).any():
            break
    return x, len(list(ticks))


@unrolled
def zipped(x):
    for s, t in zip([2.0] * 15, itertools.repeat(1.0)):
        x = x / s * t
        if not (x > 1).any():
            break
    return x


@unrolled
def enumerated(x):
    for i, s in enumerate([2.0] * 15):
        x = x / s
        if not (x > 1).any():
            break
    return x, i


@unrolled
def over_tensors(x):
    parts = [x.mean() * 0 + 2] * 15
    for p in parts:
        x = x / p
        if not (x > 1).any():
            break
    return x


@unrolled
def flag_that_toggles(x):
    up = False
    while (x > 1).any():
        x = x / 4 if up else x * 1.5
        up = not up
    return x, up


@unrolled
def integers_that_outgrow_a_word(x):
    n = 1
    while (x > 1).any():
        x = x / 2
        n = n * 3
    return n


@unrolled
def fibonacci_of_ints(x):
    a, b = 0, 1
    while (x > 1).any():
        x = x / 2
        a, b = b, a + b
    return a


@unrolled
def big_steps(x):
    n = 0
    while (x > 1).any():
        x = x / 2
        n += 10**9
    return n


@either
def grows(x):
    y = x[:1]
    while (y.sum() < x.sum()).item() and y.shape[0] < 90:
        y = tj.cat([y, y[:1]])
    return y


@unrolled
def transposed_in_each_turn(x):
    a = x.T @ (x / x.max())
    n = 0
    while (a > 1).any():
        a = (a / 2).T
        n += 1 if a.is_contiguous() else 100
    return n, a


@unrolled
def with_a_gradient(x):
    w = tj.ones(4, requires_grad=True)
    y = x * w
    while (y > 1).any():
        y = y / 2
    y.sum().backward()
    return w.grad, y.detach()


@unrolled
def raised_to_the_counter(x):
    n = 0
    while (x > 1).any():
        n += 1
        x = x / 2 + 0.5**n
    return x


@unrolled
def sliced_by_the_counter(x):
    n = 0
    while (x > 1).any():
        x = x / 2 + x[n % 3].sum() * 0
        n += 1
    return x


# ---------------------------------------------------------------- either


@either
def zero_or_more(x):
    y = x
    while (y > 1).any():
        y = y / 2
    y.add_(1)
    return y is x, x, y


@either
def a_tensor_that_python_knows(x):
    ticks = tj.zeros(1)
    while (x > 1).any():
        ticks = ticks + 1
        if ticks.sum() > 17:
            return x * 1000
        x = x / 2
    return x


@either
def a_known_number(x):
    ticks = tj.tensor(0.0)
    out = 0.0
    while (x > 1).any():
        ticks = ticks + 0.5
        out = ticks.item()
        if out > 8.0:
            x = x * 0.1
        x = x / 2
    return x, out


@either
def breaks_at_once_in_a_range(x):
    for _ in range(13):
        while True:
            x = x / 2
            if x.max() > 1e-9:
                break
    return x


@either
def helper_that_returns_at_once(x):
    def once(v):
        while True:
            v = v / 2
            if v.max() > 1e-9:
                return v

    n = 0
    for _ in range(13):
        x = once(x)
        n += 1
    return x, n


@either
def nested(x):
    while (x > 1).any():
        y = x
        while (y > 0.5).any():
            y = y / 2
        x = x / 2 + y * 0.01
    return x


@either
def branch_in_the_turn(x):
    n = 0
    while (x > 1).any():
        n += 1
        if x.sum() > 40:
            x = x / 3
        else:
            x = x / 2
    return x, n


@either
def continued(x):
    n = 0
    while (x > 1).any():
        x = x / 2
        if x.mean() > 3:
            continue
        n += 1
    return x, n


@either
def raises_on_the_way(x):
    n = 0
    while (x > 1).any():
        x = x / 2
        n += 1
        if x.max() < 0.8:
            raise ValueError(n)
    return x


@either
def tries(x):
    n = 0
    while (x > 1).any():
        try:
            if x.max() < 3:
                raise KeyError(n)
            x = x / 2
        except KeyError:
            x = x / 4
        finally:
            n += 1
    return x, n


class State:
    def __init__(self, v):
        self.v, self.n = v, 0


@either
def object_with_the_state(x):
    s = State(x)
    while (s.v > 1).any():
        s.v = s.v / 2
        s.n += 1
    return s.v, s.n


@either
def cell_with_the_state(x):
    n = 0

    def step():
        nonlocal x, n
        x = x / 2
        n += 1

    while (x > 1).any():
        step()
    return x, n


@either
def attribute_outside(x):
    n = 0
    while (x > 1).any():
        x = x / 2
        n += 1
        _model.turns = n
    return x, _model.turns


@either
def alias_that_is_written(x):
    x = x.clone()
    y = x
    while (x > 1).any():
        x = x / 2
        y.add_(1)
    return x, y


@either
def view_that_is_written(x):
    x = x.clone()
    v = x[1]
    while (x > 1).any():
        v.mul_(0.5)
        x.mul_(0.75)
    return x, v


@either
def views_that_are_carried(x):
    v = x[1]
    while (v > 1).any():
        v = (v / 2).reshape(2, 2).reshape(4)
    v.add_(1)
    return v


@either
def two_names_now_and_then(x):
    a, b = x, x + 1
    while (a > 1).any():
        b = a if a.sum() > 30 else a * 1
        a = a / 2
    b.add_(1)
    return a, b


@either
def deleted(x):
    while (x > 1).any():
        y = x / 2
        x = y
        del y
    return x


@either
def none_at_first(x):
    last = None
    while (x > 1).any():
        x = x / 2 if last is None else x / 2 + last * 0
        last = x.sum()
    return x, last


@either
def counter_shown_afterwards(x):
    n = 0
    while (x > 1).any():
        x = x / 2
        n += 1
    return f"{n} turns", [x, x + 1][n % 2], {n: 1}


@either
def counter_that_indexes_afterwards(x):
    n = 0
    while (x > 1).any():
        x = x / 2
        n += 1
    return list(range(2000))[n], x[n % 3]


@either
def last_index_of_a_range(x):
    for i in range(14):
        x = x / 2
        if not (x > 1).any():
            break
    return i, i + 1, i * 2, x


@either
def counts_in_a_container(x):
    box = [0]
    while (x > 1).any():
        x = x / 2
        box[0] += 1
    return box, x


@either
def reads_two_turns_back(x):
    a = b = c = x
    while (c > 1).any():
        a, b, c = b, c, c / 2 + a * 0
    return a, b, c


@either
def identity_that_is_asked(x):
    y, n = x, 0
    while (y > 1).any():
        n += 1 if y is x else 100
        y = y / 2
    return y, n


@either
def counts_with_bools(x):
    n, odd = 0, False
    while (x > 1).any():
        x = x / 2
        odd = (x.sum() > 20).item()
        n += odd
    return x, n, odd


@either
def resets_its_counter(x):
    total = 0
    while (x > 1).any():
        n = 0
        while n < 3:
            n += 1
        total += n
        x = x / 2
    return x, total


@either
def steps_back_and_forth(x):
    n = 0
    while (x > 1).any():
        n = 5 - n
        x = x / 2
    return n


@either
def the_smaller_count(x):
    n = 0
    while (x > 1).any():
        x = x / 2
        n = min(n + 1, 9)
    return n, x


@either
def infinite_until_not_finite(x):
    x = x + 1
    n = 0
    while x.isfinite().all():
        x = x * x
        n += 1
    return n


@either
def reads_the_size(x):
    y = x.reshape(-1)
    while (y > 1).any() and y.numel() > 5:
        y = y[:-1] / 2
    return y


def outer_counter():
    n = 0

    def counts(x):
        nonlocal n
        n = 0
        while (x > 1).any():
            x = x / 2
            n += 1
        return x

    def shown(x):
        return counts(x), n, type(n).__name__

    return shown


counts_outside = either(outer_counter())
counts_outside.__name__ = "counts_outside"


@either
def kept_locals(x):
    n = 0
    seen = locals()
    while (x > 1).any():
        x = x / 2
        n += 1
    return seen["n"], n, x


@either
def order_of_drops(x):
    order = []

    def ticks():
        try:
            while True:
                yield 2.0
        finally:
            order.append("dropped")

    g = ticks()
    y = x
    while (y > 1).any():
        y = y / next(g)
    del g
    order.append("after")
    return order, y


@either
def drops_a_generator_in_a_for(x):
    order = []

    def ticks():
        try:
            for _ in range(1000):
                yield 2.0
        finally:
            order.append("dropped")

    for s in ticks():
        x = x / s
        if not (x > 1).any():
            break
    order.append("after")
    return order, x


@either
def range_that_goes_on(x):
    over = iter(range(1000))
    for i in over:
        x = x / 2
        if not (x > 1).any():
            break
    return i, next(over), x


@either
def range_advanced_inside(x):
    over = iter(range(1000))
    for i in over:
        x = x / 2
        next(over)
        if not (x > 1).any():
            break
    return i, x


@either
def range_in_a_range(x):
    out = []
    for k in range(3):
        for i in range(5):
            x = x / 2
            if not (x > k).any():
                break
        out.append(i)
    return out, x


Pair = collections.namedtuple("Pair", "now before")


@either
def state_in_a_namedtuple(x):
    s = Pair(x, x)
    while (s.now > 1).any():
        s = Pair(s.now / 2, s.now)
    return s.now, s.before


@either
def set_of_steps(x):
    seen, n = set(), 0
    while (x > 1).any():
        x = x / 2
        n += 1
        seen.add(n % 4)
    return sorted(seen), x


@either
def cycles(x):
    for s in itertools.cycle([2.0, 3.0, 4.0]):
        x = x / s
        if not (x > 1).any():
            return x


@either
def counts_with_itertools(x):
    for i in itertools.count():
        x = x / 2
        if not (x > 1).any():
            return i, x


@either
def counter_in_an_error(x):
    n = 0
    while (x > 1).any():
        x = x / 2
        n += 1
    if n > 11:
        raise ValueError(f"{n} turns", n)
    return x


@either
def counter_of_a_helper(x):
    def inner(x, n):
        while (x > 1).any():
            x = x / 2
            n += 1
        return x, n

    x, n = inner(x, 0)
    x, n = inner(x * 5, n)
    return inner(x * 3, n + 0.5)


def _recursive(x, depth):
    while (x > 1 + depth).any():
        x = x / 2
    return x if not depth else _recursive(x * 4, depth - 1)


@either
def recursive(x):
    return _recursive(x, 2)


@either
def mixed_default(x, cache=[]):  # noqa: B006
    while (x > 1).any():
        x = x / 2
    cache.append(1)
    return x, len(cache) > 0


@either
def number_of_two_types(x):
    n = 0
    while (x > 1).any():
        x = x / 2
        n = n + 1 if x.sum() > 20 else n + 0.5
    return n, x


@either
def negative_zero(x):
    t = -0.0
    while (x > 1).any():
        x = x / 2
        t = t * 1.0
    return t, x


@either
def cell_read_by_a_function(x):
    n = 0

    def show():
        return n * 2

    while (x > 1).any():
        x = x / 2
        n += 1
    return show(), x


@either
def function_kept_after(x):
    n = 0
    while (x > 1).any():
        x = x / 2
        n += 1
    return (lambda: n + 1)(), x


@either
def comparison_with_none(x):
    n, last = 0, None
    while (x > 1).any():
        if n is None or last == 3:
            x = x * 2
        n += 1
        last = n
        x = x / 2
    return n, last


@either
def counter_in_a_shape(x):
    n = 0
    while (x > 1).any():
        x = x / 2
        n += 1
    return tj.zeros(n % 3 + 1).shape[0], x.sum() + tj.full((2,), n * 1.0)


@either
def counter_in_a_tensor(x):
    n = 0
    total = tj.zeros(1)
    while (x > 1).any():
        x = x / 2
        n += 1
        total = total + tj.tensor(n)
    return total


@either
def in_place_on_two_names(x):
    a = x.clone()
    b = a.reshape(-1)
    while (a > 1).any():
        b /= 2
        a[0] -= 0.01
    return a, b


@either
def buffer_of_a_module(x):
    m = nn.BatchNorm1d(4)
    n = 0
    with tj.no_grad():
        while (x > 1).any():
            m(x)
            x = x / 2
            n += 1
    return m.running_mean, m.num_batches_tracked, n


@either
def exits_through_with(x):
    n = 0
    while True:
        with tj.no_grad():
            x = x / 2
            n += 1
            if not (x > 1).any():
                break
    return x, n


@either
def finally_that_counts(x):
    n = 0
    try:
        while True:
            x = x / 2
            if not (x > 1).any():
                return x, n
            n += 1
    finally:
        n += 100


@either
def same_body_other_states(x):
    a, b = x, x * 2
    for _ in range(500):
        a, b = b / 2, a
        if not (a > 1).any():
            break
        if not (b > 1).any():
            break
    return a, b


@either
def turns_that_know_the_first(x):
    first = x.max().item()
    n = 0
    while x.max().item() > first * 1e-3:
        x = x / 2
        n += 1
    return n, first


@either
def sums_items(x):
    total = 0.0
    while (x > 1).any():
        total += x.sum().item()
        x = x / 2
    return total


@either
def list_of_items(x):
    seen = []
    while (x > 1).any():
        seen.append(x.max().item())
        x = x / 2
    return seen


@either
def dtype_that_changes(x):
    n = 0
    while (x > 1).any():
        x = (x / 2).to(tj.float64 if n == 4 else x.dtype)
        n += 1
    return x


@either
def chunked_walk(x):
    y = tj.cat([x.reshape(-1)] * 10)
    i = 0
    total = tj.zeros(1)
    while i < 110 and (total < 50).all():
        total = total + y[i : i + 4].sum()
        i += 4
    return total, i


@native
def computes_the_same_in_each_turn(x):
    y = x
    while (y > 1).any():
        scale = (x / x.max()).exp().sum(0).log_softmax(-1)
        order = x.sort(dim=0).indices
        y = y * 0.5 + scale * 1e-3 + order * 1e-4
    return y


@native
def asks_about_something_fixed(x):
    y = x * 2
    for _ in range(40):
        if (x > 2000).any():
            break
        y = y * 0.9
    return y


@native
def asks_for_a_float(x):
    u, gap = x, 1.0
    while gap > 0.01:
        v = u * 0.7
        gap = float((u - v).abs().max())
        u = v
    return u, gap


@native
def written_after_the_question(x):
    while True:
        if not (x > 1).any():
            break
        x.mul_(0.5)
