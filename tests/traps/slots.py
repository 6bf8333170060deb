"""Programs that keep a tensor outside and find another one there in the next call: hidden state, running means, caches.

In the form of `effects.py`: (function, argument lists, what to look at afterwards); `compiles` as there.
"""

from __future__ import annotations

import types

from programs import Box, collected

N = 10
PROGRAMS, program = collected(1)


class Slotted:
    """No __dict__."""

    __slots__ = ("h",)


def ramp(tj, n=N, size=3):
    return [(tj.arange(size, dtype=tj.float32) + i,) for i in range(n)]


@program(3)
def hidden_state_in_an_attribute(tj):
    s = Box(h=tj.zeros(3))

    def f(x):
        s.h = (s.h * 0.5 + x).tanh()
        return s.h

    return f, ramp(tj), s


@program(3)
def in_a_dict_entry(tj):
    state = {"h": tj.zeros(3), "n": 0}

    def f(x):
        state["h"] = state["h"] + x
        state["n"] += 1
        return state["h"] * state["n"]

    return f, ramp(tj), state


@program(3)
def in_a_closure(tj):
    def make():
        last = None

        def f(x):
            nonlocal last
            out = x if last is None else x - last
            last = x * 1
            return out

        return f

    f = make()
    return f, ramp(tj), lambda: [c.cell_contents for c in f.__closure__]


@program(3)
def in_a_slot(tj):
    s = Slotted()
    s.h = tj.ones(3)

    def f(x):
        s.h = s.h * x
        return s.h + 1

    return f, ramp(tj), lambda: s.h


@program(3)
def a_module_buffer_that_is_bound_anew(tj):
    class Norm(tj.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", tj.zeros(3))

        def forward(self, x):
            self.mean = self.mean * 0.9 + x * 0.1
            return x - self.mean

    m = Norm()
    return m, ramp(tj), lambda: (m.mean, list(m.state_dict().items()))


@program(3)
def two_that_change_places(tj):
    s = Box(a=tj.ones(3), b=tj.zeros(3))

    def f(x):
        s.a, s.b = s.b, s.a + x
        return s.a

    return f, ramp(tj), s


@program(None)
def two_that_become_one(tj):
    s = Box(a=tj.ones(3), b=tj.zeros(3), n=0)

    def f(x):
        out = s.a * 2 + s.b
        s.a = s.a + x
        s.b = s.a if s.n % 3 == 2 else s.b + 1
        s.n += 1
        return out

    return f, ramp(tj, 16), s


@program(None)
def one_that_is_also_an_argument(tj):
    s = Box(h=tj.zeros(3))
    calls = ramp(tj, 12)

    def f(x):
        out = (s.h is x, s.h + x)
        s.h = x
        return out

    return f, [calls[0], *calls[:5], calls[4], calls[4], *calls[5:]], s


@program(None)
def written_in_place_and_bound_anew(tj):
    s = Box(h=tj.zeros(3), old=[])

    def f(x):
        s.h.add_(x)
        s.old.append(s.h)
        s.h = s.h * 2
        return s.h

    return f, ramp(tj), s


@program(None)
def written_in_place_where_a_caller_holds_it(tj):
    s = Box(h=tj.zeros(3))

    def f(x):
        before = s.h
        s.h = x + 1
        before.mul_(2)
        return before

    return f, ramp(tj), s


@program(None)
def shapes_change(tj):
    s = Box(h=tj.zeros(3))

    def f(x):
        s.h = (s.h.sum() + x)[: 2 + int(x.shape[0] > 3)]
        return s.h

    calls = [(tj.ones(3 + (i // 3) % 2) * i,) for i in range(14)]
    return f, calls, s


@program(None)
def dtypes_change(tj):
    s = Box(h=tj.zeros(3), n=0)

    def f(x):
        out = s.h + x
        s.n += 1
        s.h = out.double() if s.n % 4 == 0 else out.float()
        return out

    return f, ramp(tj, 14), s


@program(None)
def gone_and_back(tj):
    s = Box(h=tj.zeros(3), n=0)

    def f(x):
        s.n += 1
        if s.h is None:
            s.h = x * 1
            return x
        out = s.h + x
        s.h = None if s.n % 5 == 0 else out * 1
        return out

    return f, ramp(tj, 16), s


@program(None)
def deleted_and_set(tj):
    s = Box(h=tj.zeros(3), n=0)

    def f(x):
        h = s.h
        del s.h
        s.h = h + x
        return s.h

    return f, ramp(tj), s


@program(None)
def the_tape_grows_through_it(tj):
    w = tj.ones(3, requires_grad=True)
    s = Box(h=tj.zeros(3))

    def f(x):
        s.h = s.h * 0.5 + w * x
        return s.h.sum()

    def g(x, f=f):
        return f(x)

    return f, ramp(tj, 8), lambda: (s, s.h.requires_grad)


@program(3)
def cut_from_the_tape(tj):
    w = tj.ones(3, requires_grad=True)
    s = Box(h=tj.zeros(3))

    def f(x):
        h = s.h * 0.5 + w * x
        s.h = h.detach()
        loss = (h * h).sum()
        loss.backward()
        return loss

    return f, ramp(tj, 8), lambda: (s, w.grad)


@program(None)
def a_leaf_that_requires_grad(tj):
    s = Box(w=tj.ones(3, requires_grad=True))

    def f(x):
        loss = (s.w * x).sum()
        (g,) = tj.autograd.grad(loss, s.w)
        s.w = (s.w - 0.01 * g).detach().requires_grad_()
        return loss

    return f, ramp(tj), s


@program(None)
def its_grad_is_filled(tj):
    s = Box(w=tj.ones(3, requires_grad=True))

    def f(x):
        (s.w * x).sum().backward()
        g = s.w.grad
        with tj.no_grad():
            s.w = (s.w - 0.01 * g).requires_grad_()
        return g

    return f, ramp(tj), lambda: (s, s.w.grad)


@program(None)
def a_view_of_what_the_caller_gets(tj):
    s = Box(h=tj.zeros(2))

    def f(x):
        out = x * 2 + s.h.sum()
        s.h = out[1:]
        return out

    def mutating(x):
        out = f(x)
        return out

    return f, ramp(tj), s


@program(None)
def a_view_that_is_written(tj):
    s = Box(h=tj.zeros(2))

    def f(x):
        s.h += 1
        out = x * 2 + s.h.sum()
        s.h = out[1:]
        return out

    return f, ramp(tj), s


@program(None)
def one_with_a_hook(tj):
    seen = []
    s = Box(h=tj.zeros(3, requires_grad=True), n=0)

    def f(x):
        loss = (s.h * x).sum()
        loss.backward()
        s.n += 1
        s.h = tj.zeros(3, requires_grad=True)
        return loss

    s.h.register_hook(seen.append)
    return f, ramp(tj), lambda: (s.n, len(seen))


@program(None)
def owners_change(tj):
    holder = Box(s=Box(h=tj.zeros(3)), n=0)

    def f(x):
        s = holder.s
        s.h = s.h + x
        holder.n += 1
        if holder.n % 4 == 0:
            holder.s = types.SimpleNamespace(h=x * 1)
        return s.h

    return f, ramp(tj, 14), holder


@program(None)
def a_parameter_replaces_it(tj):
    s = Box(h=tj.zeros(3), n=0)

    def f(x):
        s.n += 1
        out = s.h + x
        s.h = tj.nn.Parameter(x * 1) if s.n == 6 else (out * 1).detach()
        return out

    return f, ramp(tj, 12), s


@program(None)
def identity_is_looked_at(tj):
    s = Box(h=tj.zeros(3), best=None)

    def f(x):
        if s.best is None or s.best is s.h:
            s.best = x * 1
        s.h = s.best if x.sum() > 20 else x * 1
        return s.best + s.h

    return f, ramp(tj, 14), s


@program(None)
def a_list_holds_it_too(tj):
    s = Box(h=tj.zeros(3))
    every = [s.h]

    def f(x):
        s.h = every[-1] + s.h + x
        every[-1] = s.h
        return s.h

    return f, ramp(tj), (s, every)


@program(None)
def it_is_a_key(tj):
    s = Box(h=tj.zeros(3))
    counts = {s.h: 1}

    def f(x):
        n = counts.get(s.h, 0)
        s.h = s.h + x
        counts[s.h] = n + 1
        return s.h * n

    return f, ramp(tj), lambda: (s, list(counts.values()))


@program(None)
def an_argument_is_a_key(tj):
    keys = [tj.ones(3) * i for i in range(4)]
    weight = {k: float(i + 2) for i, k in enumerate(keys[:3])}

    def f(x):
        return x * weight.get(x, 100.0)

    return f, [(keys[i % 4],) for i in (0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 3, 3, 3, 0, 1, 2, 3)], None


@program(None)
def an_argument_is_in_a_key(tj):
    keys = [tj.ones(3) * i for i in range(3)]
    weight = {(k, 1): float(i + 2) for i, k in enumerate(keys[:2])}

    def f(x):
        return x * weight.get((x, 1), 50.0)

    return f, [(keys[i],) for i in (0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 0, 1, 2)], None


@program(None)
def an_argument_is_in_a_set(tj):
    keys = [tj.ones(3) * i for i in range(3)]
    chosen = {keys[0], keys[1]}

    def f(x):
        return x * 2 if x in chosen else x + 7

    return f, [(keys[i],) for i in (0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 0, 2)], None


@program(None)
def someone_else_writes_it_between_calls(tj):
    s = Box(h=tj.zeros(3))

    def f(x):
        out = s.h + x
        s.h = out * 1
        return out

    class Args(list):
        """Changes the world whenever the next arguments are fetched."""

        def __iter__(self):
            for i, a in enumerate(list.__iter__(self)):
                if i % 4 == 3:
                    s.h = s.h.reshape(3, 1).expand(3, 3)
                if i % 4 == 0:
                    s.h = tj.ones(3) * i
                yield a

    return f, Args(ramp(tj, 14)), s


@program(None)
def shared_memory_is_written(tj):
    import numpy as np

    memory = np.zeros(3, np.float32)
    s = Box(h=tj.zeros(3), n=0)
    other = tj.from_numpy(memory)

    def f(x):
        s.n += 1
        out = s.h + other
        s.h.add_(1)
        s.h = tj.from_numpy(memory) if s.n == 7 else x * 1
        return out

    return f, ramp(tj, 12), lambda: (s, memory.tolist())


@program(3)
def a_tuple_of_states(tj):
    s = Box(hc=(tj.zeros(3), tj.ones(3)))

    def f(x):
        h, c = s.hc
        c = c * 0.5 + x
        h = (h + c).tanh()
        s.hc = (h, c)
        return h

    return f, ramp(tj), s


@program(3)
def an_lstm_cell_that_keeps_its_state(tj):
    tj.manual_seed(0)
    cell, s = tj.nn.LSTMCell(3, 4), Box(h=None)

    def f(x):
        s.h = tuple(t.detach() for t in cell(x.reshape(1, 3), s.h))
        return s.h[0]

    return f, ramp(tj), s


@program(None)
def a_tuple_kept_twice(tj):
    s = Box(hc=(tj.zeros(3), tj.ones(3)), before=None, same=[])

    def f(x):
        s.same.append(s.before is s.hc)
        s.before = s.hc
        if len(s.same) % 3:
            s.hc = (s.hc[1] + x, s.hc[0])
        return s.hc

    return f, ramp(tj, 14), s


@program(None)
def tuples_of_another_length(tj):
    s = Box(hs=(tj.zeros(3), tj.ones(3)), n=0)

    def f(x):
        s.n += 1
        total = sum(s.hs[1:], s.hs[0])
        s.hs = (*s.hs, x * 1) if s.n % 4 == 0 else tuple(h + x for h in s.hs)
        return total

    return f, ramp(tj, 16), s


@program(None)
def one_tensor_twice_in_a_tuple(tj):
    s = Box(hs=(tj.zeros(3), tj.ones(3)), n=0)

    def f(x):
        s.n += 1
        a, b = s.hs
        a.add_(x)
        out = a + b * 2
        s.hs = (out * 1,) * 2 if s.n % 4 == 0 else (out * 1, b * 1)
        return out

    return f, ramp(tj, 14), s


@program(8)
def a_list_of_hidden_states(tj):
    s = Box(hs=[tj.zeros(3), tj.ones(3)])

    def f(x):
        for i in range(len(s.hs)):
            s.hs[i] = s.hs[i] * 0.5 + x
            x = s.hs[i] - 1
        return x * 2

    return f, ramp(tj, 14), s


@program(8)
def a_list_unpacked_and_replaced(tj):
    state = [tj.zeros(3), tj.ones(3)]

    def f(x):
        h, c = state
        state[0], state[1] = h + c * x, h - c
        return state[0] * 2, state

    return f, ramp(tj, 14), state


@program(8)
def a_list_replaced_whole(tj):
    s = Box(hs=[tj.zeros(3), tj.ones(3)])

    def f(x):
        s.hs[:] = [h * 0.5 + x for h in s.hs]
        return sum(s.hs)

    return f, ramp(tj, 14), s


@program(8)
def a_list_rotated(tj):
    s = Box(hs=[tj.zeros(3), tj.ones(3), tj.ones(3) * 2])

    def f(x):
        s.hs.append(x * 1)
        s.hs.pop(0)
        return s.hs[0] + s.hs[-1] * 2

    return f, ramp(tj, 14), s


@program(8)
def a_deque_of_tensors(tj):
    from collections import deque

    s = Box(hs=deque([tj.zeros(3), tj.ones(3), tj.ones(3) * 2], maxlen=3))

    def f(x):
        s.hs.append(x * 1)
        return sum(s.hs) * 2

    return f, ramp(tj, 14), s


@program(None)
def a_list_and_an_attribute_that_are_one_tensor_at_times(tj):
    s = Box(hs=[tj.zeros(3), tj.ones(3)], h=tj.zeros(3), n=0)

    def f(x):
        s.n += 1
        out = s.h * 2 + s.hs[0]
        s.hs[0] = out * 0.5 + x
        s.h = s.hs[0] if s.n % 4 == 0 else s.hs[0] * 1
        s.hs[1] = s.hs[1] + 1
        return out

    return f, ramp(tj, 18), s


@program(None)
def a_list_with_one_tensor_twice_at_times(tj):
    s = Box(hs=[tj.zeros(3), tj.ones(3)], n=0)

    def f(x):
        s.n += 1
        s.hs[0].add_(x)
        out = s.hs[0] + s.hs[1] * 2
        s.hs[0] = out * 0.5
        s.hs[1] = s.hs[0] if s.n % 5 == 0 else s.hs[1] * 1
        return out

    return f, ramp(tj, 18), s


@program(None)
def a_list_that_grows_and_shrinks(tj):
    s = Box(hs=[tj.zeros(3)], n=0)

    def f(x):
        s.n += 1
        s.hs.append(x * 2)
        if s.n % 3 == 0:
            del s.hs[:2]
        return sum(s.hs)

    return f, ramp(tj, 16), s


@program(None)
def a_list_with_a_tensor_of_another_kind(tj):
    s = Box(hs=[tj.zeros(3), tj.ones(3)], n=0)

    def f(x):
        s.n += 1
        out = s.hs[0].sum() + s.hs[1].sum() + x
        s.hs[s.n % 2] = [x * 1, x.double(), x[:2] * 1, x * 3][s.n % 4]
        return out

    return f, ramp(tj, 18), s


@program(None)
def a_list_whose_tensor_is_the_argument(tj):
    s = Box(hs=[tj.zeros(3), tj.ones(3)])
    xs = [a[0] for a in ramp(tj, 4)]

    def f(x):
        x.add_(1)
        out = s.hs[0] * s.hs[1] + x
        s.hs[0], s.hs[1] = x, s.hs[0] * 1
        return out

    return f, [(xs[k % 2 if k < 10 else k % 4],) for k in range(20)], (s, xs)


@program(None)
def a_list_changed_between_calls(tj):
    s = Box(hs=[tj.zeros(3), tj.ones(3)], n=0)

    def f(x):
        s.hs[0] = s.hs[0] + s.hs[1] * x
        return s.hs[0] * 1

    def world():
        s.n += 1
        if s.n % 5 == 0:
            s.hs[1] = s.hs[1] * 2
        if s.n == 12:
            s.hs.reverse()
        if s.n == 14:
            s.hs = list(s.hs)
        return [h.tolist() for h in s.hs]

    return f, ramp(tj, 20), world


@program(None)
def a_list_of_a_class_that_counts_who_iterates(tj):
    class Counting(list):
        n = 0

        def __iter__(self):
            Counting.n += 1
            return super().__iter__()

        def __len__(self):
            Counting.n += 100
            return super().__len__()

    hs = Counting([tj.zeros(3), tj.ones(3)])

    def f(x):
        h = [v * 1 for v in hs]
        hs[0] = h[0] + x
        return h[1] + h[0], hs[1]

    return f, ramp(tj, 14), lambda: (Counting.n, hs[0])
