"""Programs that index tensors by Python numbers that change from call to call: caches, ring buffers, lookups.

In the form of `effects.py`: (function, argument lists, what to look at afterwards); `compiles` as there.
"""

from __future__ import annotations

from programs import Box, collected

N = 24
PROGRAMS, program = collected(N - 8)


def ramp(tj, n=N, size=3):
    return [(tj.arange(size, dtype=tj.float32) + i,) for i in range(n)]


@program()
def a_cache_written_at_a_position(tj):
    s = Box(k=tj.zeros(2, N, 3), pos=0)

    def f(x):
        s.k[:, s.pos] = x
        s.pos += 1
        return s.k.sum(), s.k[1, s.pos - 1]

    return f, ramp(tj), s


@program()
def a_ring_buffer(tj):
    s = Box(buf=tj.zeros(5, 3), i=0)

    def f(x):
        s.buf[s.i % 5] = x
        s.i += 1
        return s.buf.mean(0)

    return f, ramp(tj), s


@program()
def a_ring_buffer_added_to(tj):
    s = Box(buf=tj.zeros(5, 3), i=0)

    def f(x):
        s.buf[s.i % 5] += x
        s.i += 1
        return s.buf.sum()

    return f, ramp(tj), s


@program()
def negative_positions(tj):
    s = Box(k=tj.arange(12, dtype=tj.float32).reshape(4, 3), i=-1)

    def f(x):
        y = s.k[s.i] + x
        s.i = -1 - (-s.i % 4)
        return y

    return f, ramp(tj), s


@program(8)
def both_signs(tj):
    t = tj.arange(12, dtype=tj.float32).reshape(4, 3)
    return (lambda x, i: x * t[i]), [(*a, k % 8 - 4) for k, a in enumerate(ramp(tj, 40))], t


@program()
def an_argument(tj):
    t = tj.arange(30, dtype=tj.float32).reshape(10, 3)
    return (
        (lambda x, i: x + t[i, 1:].sum() + t[..., i % 3, None].mean()),
        [(*a, k % 10) for k, a in enumerate(ramp(tj))],
        t,
    )


@program()
def a_window_of_one_length(tj):
    t = tj.arange(40, dtype=tj.float32)

    def f(x, i):
        w = t[i : i + 4]
        return w * 2, w.sum() + x.sum()

    return f, [(*a, k) for k, a in enumerate(ramp(tj))], t


@program(None)
def a_window_that_is_clipped(tj):
    t = tj.arange(12, dtype=tj.float32)
    return (lambda x, i: t[i : i + 4].sum() + x), [(*a, k - 6) for k, a in enumerate(ramp(tj))], t


@program()
def a_window_written(tj):
    s = Box(t=tj.zeros(3, 40), i=0)

    def f(x):
        s.t[1:, s.i : s.i + 3] = x
        s.i += 3 if s.i < 30 else -30
        return s.t.sum(1)

    return f, ramp(tj), s


@program(None)
def a_window_that_grows(tj):
    s = Box(t=tj.arange(40, dtype=tj.float32), n=1)

    def f(x):
        y = s.t[: s.n].sum() + x
        s.n += 1
        return y

    return f, ramp(tj), s


@program(None)
def out_of_range_in_the_end(tj):
    s = Box(t=tj.zeros(12, 3), i=0)

    def f(x):
        s.t[s.i] = x
        s.i += 1
        return s.t.sum()

    return f, ramp(tj, 16), s


@program(None)
def out_of_range_below(tj):
    s = Box(t=tj.ones(12, 3), i=-4)

    def f(x):
        s.i -= 1
        return s.t[s.i] + x

    return f, ramp(tj, 16), s


@program()
def a_view_returned(tj):
    s = Box(t=tj.zeros(N, 3), i=0)

    def f(x):
        s.i += 1
        v = s.t[s.i - 1]
        v.add_(x)
        return v, s.t[:, 1]

    return f, ramp(tj), s


@program()
def views_of_one_place(tj):
    s = Box(t=tj.zeros(N, 3), i=0)

    def f(x):
        a, b = s.t[s.i], s.t[s.i, 1:]
        a += x
        b *= 2
        s.t[s.i, 0] = 7.0
        s.i += 1
        return a + 1, b + 1

    return f, ramp(tj), s


@program(8)
def two_places_that_may_be_one(tj):
    s = Box(t=tj.zeros(6, 3), i=0, j=5)

    def f(x):
        a, b = s.t[s.i], s.t[s.j]
        a.add_(x)
        b.mul_(2)
        s.i, s.j = (s.i + 1) % 6, (s.j + 5) % 6
        return a + b

    return f, ramp(tj, 40), s


@program()
def a_place_of_a_place(tj):
    t = tj.arange(60, dtype=tj.float32).reshape(4, 5, 3)
    return (lambda x, i: t[i % 4][i % 5] * x + t[1][i % 5][i % 3]), [(*a, k) for k, a in enumerate(ramp(tj))], t


@program()
def a_place_and_a_step(tj):
    t = tj.arange(60, dtype=tj.float32).reshape(4, 5, 3)
    return (lambda x, i: t[i % 4, ::2, 1:].sum() + x), [(*a, k) for k, a in enumerate(ramp(tj))], t


@program()
def a_place_and_a_tensor(tj):
    t, at = tj.arange(60, dtype=tj.float32).reshape(4, 5, 3), tj.tensor([0, 2, 2])
    return (lambda x, i: t[i % 4, at, 1] + x), [(*a, k) for k, a in enumerate(ramp(tj))], t


@program(None)
def a_gradient_through_a_place(tj):
    w = tj.arange(12, dtype=tj.float32).reshape(4, 3).requires_grad_()

    def f(x, i):
        w.grad = None
        (w[i] * x).sum().backward()
        return w.grad * 1

    return f, [(*a, k % 4) for k, a in enumerate(ramp(tj, 20))], w


@program(None)
def a_written_place_that_carries_a_gradient(tj):
    def f(x, i):
        x = x.clone().requires_grad_()
        t = tj.zeros(4, 3)
        before = t[i]
        t[i] = x * 2
        (t[i] * t).sum().backward()
        return x.grad, before.sum()

    return f, [(*a, k % 4) for k, a in enumerate(ramp(tj, 20))], None


@program(8)
def parameters_without_gradients(tj):
    w = tj.arange(12, dtype=tj.float32).reshape(4, 3).requires_grad_()

    def f(x, i):
        with tj.no_grad():
            w[i] = w[i] * 0.5 + x
        return w.sum()

    return f, [(*a, k % 4) for k, a in enumerate(ramp(tj))], w


@program()
def a_position_of_a_new_tensor(tj):
    def f(x, i):
        t = tj.zeros(8, 3)
        t[i % 8] = x
        t[(i + 1) % 8] -= 1
        return t

    return f, [(*a, k) for k, a in enumerate(ramp(tj))], None


@program(None)
def a_position_looked_at(tj):
    t = tj.arange(24, dtype=tj.float32)
    return (lambda x, i: x + t[i] if i % 2 else x - t[i]), [(*a, k) for k, a in enumerate(ramp(tj))], t


@program(None)
def a_position_that_becomes_another_kind(tj):
    t = tj.arange(24, dtype=tj.float32)
    kinds = [1, 2, 3, 4, 5, True, False, None, slice(2), 6, 7]
    return (lambda x, i: (x + t[i].sum()).tolist()), [(*a, k) for a, k in zip(ramp(tj), kinds * 2)], t


@program()
def a_decoder_with_a_mask(tj):
    s = Box(k=tj.zeros(1, 2, N, 3), v=tj.zeros(1, 2, N, 3), pos=0)
    places = tj.arange(N)

    def f(x):
        q = x.reshape(1, 1, 1, 3) * tj.ones(1, 2, 1, 3)
        s.k[:, :, s.pos] = q[:, :, 0]
        s.v[:, :, s.pos] = q[:, :, 0] * 2
        scores = (q @ s.k.transpose(2, 3)).masked_fill(places > s.pos, float("-inf"))
        s.pos += 1
        return scores.softmax(-1) @ s.v

    return f, ramp(tj), s


@program()
def integers_and_bools(tj):
    s = Box(n=tj.zeros(6, dtype=tj.int64), seen=tj.zeros(6, dtype=tj.bool_), i=0)

    def f(x):
        s.n[s.i % 6] += 2
        s.seen[s.i % 6] = True
        s.i += 5
        return x * s.n.sum(), s.seen

    return f, ramp(tj), s
