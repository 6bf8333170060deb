"""Attacks by writing: in place, through views, `out=`, NumPy's memory, hooks, tapes that leave the call.

Each program is a function (T, jit, r). It makes its state, wraps its function with `jit`, calls it eight times and shows `r` whatever a
caller can see. `test_mutations.py` runs it with `jit` the identity and compiled, and wants the same observations: values, gradients,
versions, who shares memory with whom, leaf or not, errors and their messages. `@program()` wants a compiled trace to have run;
`@program(compiles=False)` says why it may stay eager.
"""

import functools

import numpy as np

from programs import collected

CALLS = 8
PROGRAMS, program = collected(True)


def data(T, *shape, grad=False, start=1.0):
    n = int(np.prod(shape)) if shape else 1
    x = T.tensor(((np.arange(n, dtype=np.float32) % 7) * 0.25 + start).reshape(shape))
    return x.requires_grad_() if grad else x


# ---------------------------------------------------------------- writes to arguments and to what stands around


@program()
def argument_written(T, jit, r):
    f = jit(lambda x: x.mul_(1.5).add_(1))
    x = data(T, 4)
    for _ in range(CALLS):
        r(f(x), x)


@program()
def written_and_read_again(T, jit, r):
    def f(x, y):
        a = x + 1
        x.copy_(y)
        b = x * 2
        y.add_(a)
        return a, b

    f = jit(f)
    x, y = data(T, 3), data(T, 3, start=5.0)
    for _ in range(CALLS):
        r(f(x, y), x, y)


@program()
def same_argument_twice(T, jit, r):
    def f(x, y):
        x.add_(1)
        return y * 2

    f = jit(f)
    x, y = data(T, 3), data(T, 3)
    for k in range(CALLS):
        r(f(x, x if k % 3 == 2 else y), x, y)


@program()
def overlapping_arguments(T, jit, r):
    def f(x, y):
        x.add_(1)
        return x + y

    f = jit(f)
    base = data(T, 8)
    for k in range(CALLS):
        r(f(base[: 4], base[4 :] if k < 5 else base[2 : 6]), base)


@program()
def argument_is_a_view_of_another(T, jit, r):
    def f(x, v):
        v.mul_(2)
        return x.sum() + v.sum()

    f = jit(f)
    x, other = data(T, 2, 3), data(T, 3)
    for k in range(CALLS):
        r(f(x, x[0] if k in (4, 6) else other), x, other)


@program()
def closure_buffer(T, jit, r):
    state = data(T, 3)

    def f(x):
        state.mul_(0.9).add_(x, alpha=0.1)
        return state * x

    f = jit(f)
    for k in range(CALLS):
        r(f(data(T, 3, start=k)), state)


@program()
def slice_of_a_closure_buffer(T, jit, r):
    state = T.zeros(4, 3)

    def f(x):
        state[1] = x
        state[2:, 1] += x[:2]
        return state.sum(0)

    f = jit(f)
    for k in range(CALLS):
        r(f(data(T, 3, start=k)), state)


@program(compiles=False)  # two names outside for one piece of memory, one of them written
def view_of_a_buffer_made_before(T, jit, r):
    state = T.zeros(4, 3)
    row = state[2]

    def f(x):
        state.add_(x)
        return row * 2

    f = jit(f)
    for k in range(CALLS):
        r(f(data(T, 3, start=k)), state, row)


@program()
def transposed_view_written(T, jit, r):
    def f(x, y):
        x.t().copy_(y)
        x.view(-1)[::2] = 0
        return x.flip(0)

    f = jit(f)
    x = data(T, 2, 3)
    for k in range(CALLS):
        r(f(x, data(T, 3, 2, start=k)), x)


@program()
def returns_a_view_of_the_argument(T, jit, r):
    f = jit(lambda x: x[1:])
    x = data(T, 4)
    for k in range(CALLS):
        v = f(x)
        v.add_(1)
        r(v, x)


@program()
def returns_the_argument_itself(T, jit, r):
    f = jit(lambda x: (x.add_(1), x))
    x = data(T, 4)
    for k in range(CALLS):
        a, b = f(x)
        r(a, b, a is x, b is x)


@program()
def returns_view_of_fresh(T, jit, r):
    def f(x):
        y = x * 2
        return y, y[0], y.t()

    f = jit(f)
    for k in range(CALLS):
        y, row, t = f(data(T, 2, 2, start=k))
        row.add_(10)
        t[1].mul_(3)
        r(y, row, t)


@program()
def detached_alias_written(T, jit, r):
    def f(x):
        y = x * 2
        d = y.detach()
        d[0] = 7
        return y, d

    f = jit(f)
    for k in range(CALLS):
        r(f(data(T, 3, start=k)))


@program()
def fancy_index_writes(T, jit, r):
    def f(x, i, v):
        x[i] = v
        x[x > 3] = 0
        return x.sum()

    f = jit(f)
    x = data(T, 5)
    for k in range(CALLS):
        r(f(x, T.tensor([k % 5, (k + 2) % 5]), data(T, 2, start=k)), x)


@program()
def index_put_accumulates(T, jit, r):
    def f(x, i, v):
        x.index_put_((i,), v, accumulate=True)
        x.index_add_(0, i, v)
        x.scatter_add_(0, i, v)
        return x * 1

    f = jit(f)
    x = T.zeros(4)
    for k in range(CALLS):
        r(f(x, T.tensor([k % 4, k % 4, 1]), data(T, 3, start=k)), x)


@program()
def masked_fill_in_place(T, jit, r):
    def f(x, m):
        x.masked_fill_(m, -1.0)
        x.clamp_(min=-0.5)
        return x

    f = jit(f)
    for k in range(CALLS):
        x = data(T, 4, start=k - 4)
        r(f(x, x > 1), x)


@program()
def out_arguments(T, jit, r):
    def f(x, y, out):
        T.add(x, y, out=out)
        return T.mul(out, 2, out=y)

    f = jit(f)
    x, y, out = data(T, 3), data(T, 3), T.zeros(3)
    for _ in range(CALLS):
        r(f(x, y, out), x, y, out)


@program()
def out_is_an_input(T, jit, r):
    def f(x):
        T.exp(x, out=x)
        return x.sum()

    f = jit(f)
    for k in range(CALLS):
        x = data(T, 3, start=k / 8)
        r(f(x), x)


@program(compiles=False)  # the memory is NumPy's too: what else reads it is not known
def memory_shared_with_numpy(T, jit, r):
    a = np.arange(4, dtype=np.float32)
    x = T.from_numpy(a)

    def f(y):
        x.add_(y)
        return x * 2

    f = jit(f)
    for k in range(CALLS):
        a[0] = k
        r(f(data(T, 4, start=k)), x, a.tolist())


@program()
def numpy_argument_memory(T, jit, r):
    a = np.zeros(4, np.float32)

    def f(x):
        return x.mul_(2).sum()

    f = jit(f)
    for k in range(CALLS):
        a[:] = k
        r(f(T.from_numpy(a)), a.tolist())


@program()
def read_only_argument(T, jit, r):
    f = jit(lambda x: x.add_(1))
    fixed = np.ones(3, np.float32)
    fixed.flags.writeable = False
    for k in range(CALLS):
        r(f, T.from_numpy(fixed) if k in (3, 6) else data(T, 3))


@program()
def expanded_argument(T, jit, r):
    f = jit(lambda x: x.add_(1))
    for k in range(CALLS):
        r(f, data(T, 1).expand(3) if k in (3, 6) else data(T, 3))


@program(compiles=False)  # a slice whose ends change is another graph in every call
def kv_cache(T, jit, r):
    keys = T.zeros(2, 16, 4)

    def step(x, at):
        keys[:, at : at + 1] = x
        return (keys * x).sum(-1)

    step = jit(step)
    for k in range(CALLS):
        r(step(data(T, 2, 1, 4, start=k), k), keys)


@program()
def kv_cache_at_a_tensor(T, jit, r):
    keys, at = T.zeros(16, 4), T.tensor(0)

    def step(x):
        keys.index_copy_(0, at.reshape(1), x)
        at.add_(1)
        return keys.sum(0)

    step = jit(step)
    for k in range(CALLS):
        r(step(data(T, 1, 4, start=k)), keys, at)


@program()
def ring_buffer(T, jit, r):
    ring = T.zeros(3)

    def f(x):
        ring[:-1] = ring[1:].clone()
        ring[-1] = x.sum()
        return ring.mean()

    f = jit(f)
    for k in range(CALLS):
        r(f(data(T, 2, start=k)), ring)


@program()
def shift_within_itself(T, jit, r):
    def f(x):
        x[1:] = x[:-1]
        return x

    f = jit(f)
    x = data(T, 5)
    for _ in range(CALLS):
        r(f(x), x)


@program()
def swap_of_two_buffers(T, jit, r):
    a, b = data(T, 3), data(T, 3, start=9.0)

    def f():
        t = a.clone()
        a.copy_(b)
        b.copy_(t)

    f = jit(f)
    for _ in range(CALLS):
        r(f(), a, b)


@program()
def integer_counters(T, jit, r):
    n = T.tensor(0)

    def f(x):
        n.add_(1)
        return x * n

    f = jit(f)
    for k in range(CALLS):
        r(f(data(T, 2)), n)


@program()
def running_statistics(T, jit, r):
    bn = T.nn.BatchNorm1d(3)
    f = jit(lambda x: bn(x))
    for k in range(CALLS):
        if k == 6:
            bn.eval()
        r(f(data(T, 4, 3, start=k)), bn.running_mean, bn.running_var, bn.num_batches_tracked)


@program()
def written_under_a_condition(T, jit, r):
    state = T.zeros(2)

    def f(x):
        if x.sum() > 4:
            state.add_(x)
        return state + x

    f = jit(f)
    for k in range(CALLS + 4):
        r(f(data(T, 2, start=float(k % 3))), state)


@program()
def error_after_a_write(T, jit, r):
    state = T.zeros(2)

    def f(x, y):
        state.add_(x)
        if y.sum() < 0:
            raise ValueError("negative")
        return state * y

    f = jit(f)
    for k in range(CALLS):
        r(f, data(T, 2), data(T, 2, start=-9.0 if k in (5, 7) else 1.0))
        r(state)


@program()
def shape_error_after_a_write(T, jit, r):
    state = T.zeros(2)

    def f(x, y):
        state.add_(1)
        return x + y

    f = jit(f)
    for k in range(CALLS):
        r(f, data(T, 2), data(T, 3 if k in (4, 6) else 2))
        r(state)


@program()
def random_state_is_written(T, jit, r):
    T.manual_seed(5)

    def f(x):
        return x + T.rand(3), T.randn(2)

    f = jit(f)
    for _ in range(CALLS):
        r(f(data(T, 3)))
    r(T.rand(2))


@program()
def dtype_and_shape_of_in_place(T, jit, r):
    def f(x, y):
        x += y
        return x

    f = jit(f)
    for k in range(CALLS):
        r(f, T.tensor([1, 2]), data(T, 2) if k in (3, 7) else T.tensor([k, 1]))
        r(f, data(T, 2), data(T, 2, 2) if k == 5 else data(T, 2))


@program()
def list_of_buffers(T, jit, r):
    layers = [data(T, 2, start=float(i)) for i in range(4)]

    def f(x):
        for i, b in enumerate(layers):
            b.mul_(i).add_(x)
        return sum(layers)

    f = jit(f)
    for k in range(CALLS):
        r(f(data(T, 2, start=k)), layers)


# ---------------------------------------------------------------- gradients


@program()
def write_into_fresh_with_gradient(T, jit, r):
    def f(x):
        y = x * 2
        y[0] = x[1] * 3
        y.mul_(x)
        return y

    f = jit(f)
    for k in range(CALLS):
        x = data(T, 3, grad=True, start=k)
        y = f(x)
        r(y)
        y.sum().backward()
        r(x)


@program()
def views_of_fresh_with_gradient(T, jit, r):
    def f(x):
        y = x * 2
        v = y[1:]
        v.mul_(3)
        return y, v

    f = jit(f)
    for k in range(CALLS):
        x = data(T, 3, grad=True, start=k)
        y, v = f(x)
        r(y, v)
        (y.sum() + v.prod()).backward()
        r(x)


@program()
def leaf_written_raises(T, jit, r):
    f = jit(lambda x: x.mul_(2))
    for k in range(CALLS):
        r(f, data(T, 2, grad=k in (3, 5)))


@program()
def saved_value_overwritten_inside(T, jit, r):
    def f(x, wrong):
        y = x.exp()
        if wrong:
            y.add_(1)
        return y.sum()

    f = jit(f)

    def both(x, wrong):
        f(x, wrong).backward()
        return x.grad

    for k in range(CALLS):
        r(both, data(T, 2, grad=True), k in (4, 6))


@program()
def saved_input_overwritten_outside(T, jit, r):
    f = jit(lambda x, w: (x * w).sum())

    def both(x, w, write):
        y = f(x, w)
        if write:
            with T.no_grad():
                w.add_(1)
        y.backward()
        return x.grad

    for k in range(CALLS):
        r(both, data(T, 2, grad=True), data(T, 2, start=3.0), k in (4, 6))


@program()
def input_not_saved_is_free_to_change(T, jit, r):
    f = jit(lambda x, w: (x + w).sum())
    for k in range(CALLS):
        x, w = data(T, 2, grad=True), data(T, 2, start=3.0)
        y = f(x, w)
        w.add_(1)
        y.backward()
        r(x, w)


@program()
def output_overwritten_before_backward(T, jit, r):
    f = jit(lambda x: x.exp())

    def both(x, write):
        y = f(x)
        if write:
            y.mul_(2)
        y.sum().backward()
        return x.grad

    for k in range(CALLS):
        r(both, data(T, 2, grad=True), k in (4, 6))


@program()
def output_written_where_it_is_not_saved(T, jit, r):
    f = jit(lambda x: x * 3)
    for k in range(CALLS):
        x = data(T, 2, grad=True)
        y = f(x)
        y.mul_(2)
        y.sum().backward()
        r(x, y)


@program()
def gradients_accumulate_across_calls(T, jit, r):
    w = data(T, 3, grad=True)

    def f(x):
        (w * x).sum().backward()

    f = jit(f)
    for k in range(CALLS):
        if k == 5:
            w.grad = None
        r(f(data(T, 3, start=k)), w)


@program()
def zero_grad_both_ways(T, jit, r):
    net = T.nn.Linear(2, 1)
    with T.no_grad():
        net.weight.fill_(0.5)
        net.bias.fill_(0.1)
    opt = T.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def step(x, none):
        opt.zero_grad(set_to_none=none)
        loss = net(x).pow(2).mean()
        loss.backward()
        opt.step()
        return loss

    step = jit(step)
    for k in range(CALLS + 4):
        r(step(data(T, 4, 2), k % 5 == 4), list(net.parameters()))


@program()
def grad_kept_by_the_caller(T, jit, r):
    w = data(T, 2, grad=True)
    kept = []

    def f(x):
        w.grad = None
        (w * x).sum().backward()
        return w.grad

    f = jit(f)
    for k in range(CALLS):
        kept.append(f(data(T, 2, start=k)))
        r(w, kept[-1] is w.grad, kept)


@program()
def accumulate_outside_then_step_inside(T, jit, r):
    w = data(T, 2, grad=True)
    opt = T.optim.AdamW([w], lr=0.1)
    loss = jit(lambda x: (w * x).pow(2).sum())
    update = jit(lambda: opt.step())
    for k in range(CALLS):
        for j in range(2):
            loss(data(T, 2, start=j + k)).backward()
        r(w)
        update()
        opt.zero_grad()
        r(w)


@program()
def retain_graph_and_again(T, jit, r):
    f = jit(lambda x: (x * x).sum())
    for k in range(CALLS):
        x = data(T, 2, grad=True, start=k)
        y = f(x)
        y.backward(retain_graph=True)
        r(x)
        y.backward(retain_graph=True)
        r(x)
        y.backward()
        r(x)
        r(y.backward)


@program()
def two_outputs_two_backwards(T, jit, r):
    f = jit(lambda x: ((x * 2).sum(), x.exp().sum()))
    for k in range(CALLS):
        x = data(T, 2, grad=True)
        a, b = f(x)
        a.backward()
        r(x)
        b.backward()
        r(x, b.backward)


@program()
def retain_graph_inside(T, jit, r):
    w = data(T, 2, grad=True)

    def f(x):
        y = (w * x).exp().sum()
        y.backward(retain_graph=True)
        y.backward()
        return y.detach()

    f = jit(f)
    for k in range(CALLS):
        w.grad = None
        r(f(data(T, 2)), w)


@program()
def backward_through_an_outside_tape(T, jit, r):
    w = data(T, 2, grad=True)
    f = jit(lambda h: (h * h).sum())
    for k in range(CALLS):
        h = w * (k + 1.0)
        f(h).backward()
        r(w, h)


@program()
def no_grad_inside(T, jit, r):
    def f(x):
        with T.no_grad():
            s = x.sum()
        y = x * s
        return y, s

    f = jit(f)
    for k in range(CALLS):
        x = data(T, 2, grad=True, start=k)
        y, s = f(x)
        r(y, s)
        y.sum().backward()
        r(x)


@program()
def requires_grad_of_results(T, jit, r):
    def f(x, w):
        return x * 2, w * 2, (w * 2).detach(), w, x, w > 1, T.zeros(2, requires_grad=True)

    f = jit(f)
    for k in range(CALLS):
        r(f(data(T, 2), data(T, 2, grad=True)))


# ---------------------------------------------------------------- double backward


def second(T, f, x, *rest):
    y = f(x, *rest)
    (g,) = T.autograd.grad(y.sum(), x, create_graph=True)
    (g2,) = T.autograd.grad(g.pow(2).sum(), x, create_graph=True)
    (g3,) = T.autograd.grad(g2.sum(), x, allow_unused=True)
    return y, g, g2, g3


@program()
def double_backward(T, jit, r):
    f = jit(lambda x: x.pow(3) * x.sin())
    for k in range(CALLS):
        r(second(T, f, data(T, 2, grad=True, start=k / 4)))


@program()
def double_backward_with_no_grad(T, jit, r):
    def f(x):
        with T.no_grad():
            s = x.exp()
        return x.pow(3) * s * x.detach()

    f = jit(f)
    for k in range(CALLS):
        r(second(T, f, data(T, 2, grad=True, start=k / 4)))


@program()
def double_backward_with_writes(T, jit, r):
    state = T.ones(2)

    def f(x):
        y = x * x * state.clone()
        y[0] = y[0].clone() * x[1]
        y.mul_(x)
        state.mul_(0.9).add_(x.detach(), alpha=0.1)
        return y * state.clone()

    f = jit(f)
    for k in range(CALLS):
        r(second(T, f, data(T, 2, grad=True, start=k / 4)), state)


@program()
def double_backward_with_random(T, jit, r):
    T.manual_seed(3)

    def f(x):
        return (x.pow(3) * T.rand(2)).tanh()

    f = jit(f)
    for k in range(CALLS):
        r(second(T, f, data(T, 2, grad=True, start=k / 4)))


@program()
def double_backward_with_backward_inside(T, jit, r):
    w = data(T, 2, grad=True)

    def f(x):
        w.grad = None
        (w * x.detach()).pow(2).sum().backward()
        return x.pow(3) * w.grad

    f = jit(f)
    for k in range(CALLS):
        r(second(T, f, data(T, 2, grad=True, start=k / 4)), w)


@program()
def gradient_penalty(T, jit, r):
    def f(x, w):
        y = (x * w).tanh().sum()
        (g,) = T.autograd.grad(y, x, create_graph=True)
        return g.pow(2).sum()

    f = jit(f)
    for k in range(CALLS):
        x, w = data(T, 2, grad=True, start=k / 4), data(T, 2, grad=True)
        f(x, w).backward()
        r(x, w)


@program()
def third_derivative_of_two_inputs(T, jit, r):
    f = jit(lambda x, w: (x.pow(2) * w.exp()).sum())
    for k in range(CALLS):
        x, w = data(T, 2, grad=True, start=k / 4), data(T, 2, grad=True)
        gx, gw = T.autograd.grad(f(x, w), (x, w), create_graph=True)
        (gxw,) = T.autograd.grad(gx.sum(), w, create_graph=True)
        (gxwx,) = T.autograd.grad(gxw.sum(), x)
        r(gx, gw, gxw, gxwx)


@program()
def double_backward_after_a_harmless_write(T, jit, r):
    f = jit(lambda x, b: x.pow(3) + b)
    for k in range(CALLS):
        x, b = data(T, 2, grad=True), data(T, 2)
        y = f(x, b)
        b.add_(1)
        (g,) = T.autograd.grad(y.sum(), x, create_graph=True)
        r(g, T.autograd.grad(g.sum(), x))


# ---------------------------------------------------------------- hooks


@program()
def hook_inside(T, jit, r):
    w = data(T, 2, grad=True)

    def f(x):
        h = w * x
        h.register_hook(lambda g: g * 3)
        h.sum().backward()

    f = jit(f)
    for k in range(CALLS):
        r(f(data(T, 2, start=k)), w)


@program()
def hook_on_a_result_outside(T, jit, r):
    f = jit(lambda x: x * 2)
    for k in range(CALLS):
        x, seen = data(T, 2, grad=True), []
        y = f(x)
        y.register_hook(lambda g, seen=seen: seen.append(g) or g * 5)
        y.pow(2).sum().backward()
        r(x, seen)


@program()
def hook_inside_fires_outside(T, jit, r):
    scale = [3.0]

    def f(x):
        h = x * 2
        h.register_hook(lambda g: g * scale[0])
        return h.pow(2)

    f = jit(f)
    for k in range(CALLS):
        x = data(T, 2, grad=True, start=k)
        y = f(x)
        scale[0] = float(k)
        y.sum().backward()
        r(x)


@program()
def hook_inside_with_an_effect(T, jit, r):
    seen = []

    def f(x):
        h = x.exp()
        h.register_hook(seen.append)
        return h * x

    f = jit(f)
    for k in range(CALLS):
        x = data(T, 2, grad=True, start=k / 4)
        f(x).sum().backward()
        r(x, list(seen))


@program()
def hook_on_a_parameter(T, jit, r):
    w = data(T, 2, grad=True)
    handle = w.register_hook(lambda g: g * 2)

    def f(x):
        w.grad = None
        (w * x).sum().backward()

    f = jit(f)
    for k in range(CALLS + 4):
        if k == CALLS:
            handle.remove()
        r(f(data(T, 2, start=k)), w)


@program()
def hook_on_an_argument(T, jit, r):
    f = jit(lambda x: x.pow(2).sum())
    for k in range(CALLS):
        x = data(T, 2, grad=True)
        x.register_hook(lambda g: g + 1)
        f(x).backward()
        r(x)


@program()
def post_accumulate_hook(T, jit, r):
    w, seen = data(T, 2, grad=True), []
    w.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum().item()))
    f = jit(lambda x: (w * x).sum())
    for k in range(CALLS):
        f(data(T, 2, start=k)).backward()
        r(w, list(seen))


@program()
def post_accumulate_hook_steps(T, jit, r):
    w = data(T, 2, grad=True)

    def step(p):
        with T.no_grad():
            p.sub_(p.grad * 0.1)
        p.grad = None

    w.register_post_accumulate_grad_hook(step)

    def f(x):
        loss = (w * x).pow(2).sum()
        loss.backward()
        return loss.detach()

    f = jit(f)
    for k in range(CALLS):
        r(f(data(T, 2)), w)


@program()
def module_backward_hook(T, jit, r):
    net = T.nn.Sequential(T.nn.Linear(2, 2), T.nn.Tanh())
    with T.no_grad():
        for p in net.parameters():
            p.fill_(0.3)
    net[1].register_full_backward_hook(lambda m, gi, go: (gi[0] * 2 + go[0],))

    def f(x):
        return net(x).sum()

    f = jit(f)
    for k in range(CALLS):
        x = data(T, 3, 2, grad=True)
        net.zero_grad()
        f(x).backward()
        r(x, list(net.parameters()))


@program()
def module_backward_hook_all_inside(T, jit, r):
    net = T.nn.Sequential(T.nn.Linear(2, 2), T.nn.Tanh())
    with T.no_grad():
        for p in net.parameters():
            p.fill_(0.3)
    net[1].register_full_backward_hook(lambda m, gi, go: (gi[0] * 2 + go[0],))

    def f(x):
        net.zero_grad()
        net(x).sum().backward()

    f = jit(f)
    for k in range(CALLS):
        r(f(data(T, 3, 2)), list(net.parameters()))


@program()
def retained_gradient(T, jit, r):
    def f(x):
        h = x * 2
        h.retain_grad()
        h.pow(2).sum().backward()
        return h, h.grad

    f = jit(f)
    for k in range(CALLS):
        x = data(T, 2, grad=True)
        r(f(x)[1], x)


# ---------------------------------------------------------------- rules of the user's own


def clipped(T):
    class Clip(T.autograd.Function):
        """Rounds forward; the gradient is clipped to [-limit, limit]."""

        limit = 1.0

        @staticmethod
        def forward(ctx, x, k):
            ctx.save_for_backward(x)
            ctx.k = k
            return x.round() * k

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return (g * ctx.k * x).clamp(-Clip.limit, Clip.limit), None

    return Clip


@program()
def custom_rule_leaves_the_call(T, jit, r):
    clip = clipped(T)

    def f(x):
        return clip.apply(x * 2, 3.0).sin() + x

    f = jit(f)
    for k in range(CALLS):
        clip.limit = 1.0 if k < 6 else 0.5
        x = data(T, 3, grad=True, start=k / 4)
        y = f(x)
        r(y)
        y.sum().backward()
        r(x)


@program()
def custom_rule_inside(T, jit, r):
    clip, w = clipped(T), data(T, 3, grad=True)

    def f(x):
        w.grad = None
        clip.apply(w * x, 3.0).sum().backward()

    f = jit(f)
    for k in range(CALLS):
        clip.limit = 1.0 if k < 6 else 0.5
        r(f(data(T, 3, start=k / 4)), w)


@program()
def custom_rule_limit_changes_before_backward(T, jit, r):
    clip = clipped(T)
    f = jit(lambda x: clip.apply(x, 3.0))
    for k in range(CALLS):
        x = data(T, 3, grad=True)
        clip.limit = 1.0
        y = f(x)
        clip.limit = 0.25
        y.sum().backward()
        r(x)


@program()
def custom_rules_in_a_chain_with_skips(T, jit, r):
    clip = clipped(T)

    def f(x):
        h = x
        for _ in range(3):
            h = h * 0.5 + clip.apply(h, 2.0)
        return h, h.sum()

    f = jit(f)
    for k in range(CALLS):
        x = data(T, 3, grad=True, start=k / 4)
        h, s = f(x)
        (h.pow(2).sum() + s).backward()
        r(x, h, s)


@program()
def straight_through(T, jit, r):
    class Sign(T.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.sign()

        @staticmethod
        def backward(ctx, g):
            return g

    f = jit(lambda x, w: (Sign.apply(x * w) * w).sum())
    for k in range(CALLS):
        x, w = data(T, 3, grad=True, start=-1.0), data(T, 3, grad=True)
        f(x, w).backward()
        r(x, w)


@program()
def reversal_returns_its_input(T, jit, r):
    class Reverse(T.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, g):
            return -g

    def f(x):
        h = x * 2
        return h + Reverse.apply(h).exp(), Reverse.apply(x)

    f = jit(f)
    for k in range(CALLS):
        x = data(T, 3, grad=True, start=k / 4)
        a, b = f(x)
        (a.sum() + b.pow(2).sum()).backward()
        r(x, a, b)


@program()
def double_backward_through_a_custom_rule(T, jit, r):
    class Cube(T.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * 4 * x**2

    f = jit(lambda x: Cube.apply(x * 2) * x)
    for k in range(CALLS):
        r(second(T, f, data(T, 2, grad=True, start=k / 4)))


@program()
def rule_with_two_results(T, jit, r):
    class Split(T.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.shape = x.shape
            return x * y, x.round()

        @staticmethod
        def backward(ctx, g, h):
            return g + h * 2, (g * 3).reshape(ctx.shape)

    def f(x, y):
        a, b = Split.apply(x.exp(), y)
        return a * y + b

    f = jit(f)
    for k in range(CALLS):
        x, y = data(T, 2, grad=True, start=k / 4), data(T, 2, grad=True)
        f(x, y).sum().backward()
        r(x, y)


# ---------------------------------------------------------------- whole steps


@program()
def train_step(T, jit, r):
    T.manual_seed(1)
    F = T.nn.functional
    net = T.nn.Sequential(T.nn.Linear(4, 8, bias=False), T.nn.BatchNorm1d(8), T.nn.ReLU(), T.nn.Dropout(0.2), T.nn.Linear(8, 3))
    opt = T.optim.Adam(net.parameters(), lr=0.01, amsgrad=True)

    def step(x, y):
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        return loss

    step = jit(step)
    for k in range(CALLS):
        r(step(data(T, 6, 4, start=k / 4), T.tensor([0, 1, 2, 0, 1, 2])), list(net.parameters()), list(net.buffers()))


@program()
def loss_kept_by_the_caller(T, jit, r):
    w = data(T, 2, grad=True)
    losses = []

    def step(x):
        w.grad = None
        loss = (w * x).pow(2).sum()
        loss.backward()
        with T.no_grad():
            w.sub_(w.grad, alpha=0.01)
        return loss

    step = jit(step)
    for k in range(CALLS):
        losses.append(step(data(T, 2, start=k / 4)))
        r(losses, w)
        r(losses[-1].backward)


@program()
def weights_swapped_between_calls(T, jit, r):
    a, b = data(T, 2, grad=True), data(T, 2, grad=True, start=4.0)
    box = [a, b]

    def f(x):
        return (box[0] * x - box[1]).pow(2).sum()

    f = jit(f)
    for k in range(CALLS + 4):
        box.reverse()
        f(data(T, 2)).backward()
        r(a, b)


@program()
def exponential_average_of_weights(T, jit, r):
    net, slow = T.nn.Linear(2, 2), T.nn.Linear(2, 2)
    with T.no_grad():
        for p in (*net.parameters(), *slow.parameters()):
            p.fill_(0.5)

    def f(x):
        with T.no_grad():
            for p, q in zip(net.parameters(), slow.parameters()):
                p.add_(x.mean())
                q.lerp_(p, 0.1)
        return slow(x)

    f = jit(f)
    for k in range(CALLS):
        r(f(data(T, 1, 2, start=k)), list(net.parameters()), list(slow.parameters()))


@program()
def partial_and_bound(T, jit, r):
    class Ema:
        def __init__(self):
            self.mean = T.zeros(2)

        def update(self, rate, x):
            self.mean.lerp_(x, rate)
            return self.mean.clone()

    ema = Ema()
    f = jit(functools.partial(ema.update, 0.25))
    for k in range(CALLS):
        r(f(data(T, 2, start=k)), ema.mean)


# ---------------------------------------------------------------- recomputing


@program()
def recomputed_inside(T, jit, r):
    w = data(T, 3, grad=True)

    def f(x):
        w.grad = None
        h = T.utils.checkpoint.checkpoint(lambda a: (a * w).exp() * T.rand(3), x, use_reentrant=False)
        h.sum().backward()
        return h.detach(), T.rand(2)

    f = jit(f)
    for k in range(CALLS):
        r(f(data(T, 3, start=k / 4)), w)


@program()
def recomputed_outside(T, jit, r):
    def f(x, w):
        h = T.utils.checkpoint.checkpoint(lambda a: (a * w).exp() * T.rand(3), x, use_reentrant=False)
        return h * x

    f = jit(f)
    for k in range(CALLS):
        x, w = data(T, 3, grad=True, start=k / 4), data(T, 3, grad=True)
        y = f(x, w)
        r(T.rand(2))
        y.sum().backward()
        r(y, x, w, T.rand(2))


@program(compiles=False)  # eager code would change the statistics once more in the backward pass
def recomputed_with_statistics(T, jit, r):
    bn = T.nn.BatchNorm1d(3)

    def f(x):
        return T.utils.checkpoint.checkpoint(bn, x, use_reentrant=False).exp()

    f = jit(f)
    for k in range(CALLS):
        x = data(T, 4, 3, grad=True, start=k / 4)
        f(x).sum().backward()
        r(x, bn.running_mean, bn.num_batches_tracked)


@program()
def recomputed_with_statistics_inside(T, jit, r):
    bn = T.nn.BatchNorm1d(3)

    def f(x):
        bn.zero_grad()
        T.utils.checkpoint.checkpoint(bn, x, use_reentrant=False).exp().sum().backward()

    f = jit(f)
    for k in range(CALLS):
        r(f(data(T, 4, 3, start=k / 4)), bn.weight, bn.running_mean, bn.num_batches_tracked)


@program()
def recomputed_with_a_custom_rule(T, jit, r):
    clip = clipped(T)

    def f(x):
        return T.utils.checkpoint.checkpoint(lambda a: clip.apply(a.exp(), 2.0).sin(), x, use_reentrant=False) * x

    f = jit(f)
    for k in range(CALLS):
        x = data(T, 3, grad=True, start=k / 8)
        f(x).sum().backward()
        r(x)


@program()
def recomputed_sequence(T, jit, r):
    net = T.nn.Sequential(*[T.nn.Sequential(T.nn.Linear(3, 3), T.nn.Tanh(), T.nn.Dropout(0.5)) for _ in range(4)])
    with T.no_grad():
        for p in net.parameters():
            p.fill_(0.25)

    def f(x):
        net.zero_grad()
        loss = T.utils.checkpoint.checkpoint_sequential(net, 2, x, use_reentrant=False).pow(2).sum()
        loss.backward()
        return loss.detach()

    f = jit(f)
    for k in range(CALLS):
        r(f(data(T, 2, 3, start=k / 4)), list(net.parameters()))


# ---------------------------------------------------------------- modes


@program()
def autocast_around_and_inside(T, jit, r):
    net = T.nn.Linear(3, 2)
    with T.no_grad():
        net.weight.fill_(0.3)
        net.bias.fill_(0.1)

    def f(x):
        with T.autocast("cpu", dtype=T.bfloat16):
            h = net(x)
        with T.autocast("cpu", enabled=False):
            full = net(x)
        return h, full, T.nn.functional.mse_loss(net(x), full)

    f = jit(f)
    for k in range(CALLS * 2):
        x = data(T, 2, 3, grad=True, start=k / 8)
        with T.autocast("cpu", dtype=T.float16 if k % 4 == 3 else T.bfloat16, enabled=k % 2 == 1):
            h, full, loss = f(x)
        r(h, full, loss)
        (h.float().sum() + loss).backward()
        r(x, list(net.parameters()))
        net.zero_grad()


@program()
def scaled_steps_that_overflow(T, jit, r):
    w = data(T, 2, grad=True)
    opt = T.optim.SGD([w], lr=0.1, momentum=0.5)
    scaler = T.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)

    def step(x):
        opt.zero_grad()
        with T.autocast("cpu", dtype=T.bfloat16):
            loss = (w @ x) ** 2
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        scaler.step(opt)
        scaler.update()
        return loss.detach()

    step = jit(step)
    for k in range(CALLS + 6):
        r(step(T.tensor([0.1, float("inf") if k in (5, 11) else 0.2])), w, scaler.get_scale())


@program()
def grad_mode_of_the_caller(T, jit, r):
    w = data(T, 2, grad=True)
    f = jit(lambda x: (w * x, T.is_grad_enabled()))
    for k in range(CALLS * 2):
        with (T.no_grad, T.enable_grad, T.inference_mode)[k % 3]():
            r(f(data(T, 2)))


@program()
def default_dtype_of_the_caller(T, jit, r):
    f = jit(lambda x: (x + T.ones(2), T.tensor([1.5]), T.get_default_dtype() == T.float64))
    for k in range(CALLS * 2):
        T.set_default_dtype(T.float64 if k % 3 == 2 else T.float32)
        try:
            r(f(T.tensor([1, 2])))
        finally:
            T.set_default_dtype(T.float32)


@program()
def training_flag_and_seed(T, jit, r):
    drop = T.nn.Dropout(0.5)
    f = jit(lambda x: drop(x))
    for k in range(CALLS * 2):
        drop.train(k % 3 != 2)
        if k % 4 == 0:
            T.manual_seed(k)
        r(f(data(T, 8)))
    r(T.rand(1))


# ---------------------------------------------------------------- gradients that change behind a compiled step


def stepping(T, jit, make):
    """A compiled optimizer step on two weights, their gradients put in place by hand."""
    ws = [data(T, 4, grad=True), data(T, 4, grad=True, start=2.0)]
    opt = make(T, ws)
    step = jit(lambda: opt.step())
    return ws, step


def sgd(T, ws):
    return T.optim.SGD(ws, lr=0.1, momentum=0.9)


@program()
def new_gradients_each_step(T, jit, r):
    ws, step = stepping(T, jit, lambda T, ws: T.optim.Adam(ws, lr=0.1))
    for k in range(CALLS * 2):
        for w in ws:
            w.grad = data(T, 4, start=k / 4)
        step()
        r(ws)


@program()
def one_gradient_for_two_weights(T, jit, r):
    ws, step = stepping(T, jit, sgd)
    for k in range(CALLS * 2):
        ws[0].grad = data(T, 4, start=k / 4)
        ws[1].grad = ws[0].grad if k % 3 == 2 else data(T, 4)
        step()
        r(ws)


@program()
def gradient_is_the_weight_itself(T, jit, r):
    ws, step = stepping(T, jit, sgd)
    for k in range(CALLS * 2):
        ws[0].grad = ws[0].detach() if k in (9, 13) else data(T, 4)
        ws[1].grad = ws[0].detach()[:] if k in (11, 14) else data(T, 4)
        step()
        r(ws)


@program()
def gradients_come_and_go(T, jit, r):
    ws, step = stepping(T, jit, sgd)
    for k in range(CALLS * 3):
        ws[0].grad = None if k % 5 == 4 else data(T, 4)
        ws[1].grad = data(T, 4, start=k)
        step()
        r(ws)


@program()
def gradients_of_another_layout(T, jit, r):
    ws, step = stepping(T, jit, sgd)
    for k in range(CALLS * 2):
        ws[0].grad = data(T, 8)[::2] if k in (10, 13) else data(T, 4)
        ws[1].grad = data(T, 1).expand(4) if k in (11, 13) else data(T, 4)
        step()
        r(ws)


@program()
def gradients_accumulated_inside(T, jit, r):
    w = data(T, 4, grad=True)
    kept = []

    def f(x):
        (w * x).sum().backward()
        return w.grad * 1

    f = jit(f)
    for k in range(CALLS * 2):
        if k % 7 == 6:
            w.grad = kept[-1]
        kept.append(f(data(T, 4, start=k / 4)))
        r(w, kept[-2:])


@program()
def gradient_also_an_argument(T, jit, r):
    w = data(T, 4, grad=True)

    def f(x):
        with T.no_grad():
            w.sub_(w.grad * x)
            return w * x

    f = jit(f)
    for k in range(CALLS * 2):
        w.grad = data(T, 4, start=k / 8)
        r(f(w.grad if k in (10, 12) else data(T, 4)), w)


@program()
def rule_with_a_context_set_up_apart(T, jit, r):
    class Scaled(T.autograd.Function):
        @staticmethod
        def forward(x, k):
            return x * k

        @staticmethod
        def setup_context(ctx, inputs, output):
            x, ctx.k = inputs
            ctx.save_for_backward(x, output)

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return g * ctx.k + y * x, None

    f = jit(lambda x: Scaled.apply(x * 2, 3.0).sum())
    for k in range(CALLS):
        x = data(T, 3, grad=True, start=k / 4)
        f(x).backward()
        r(x)


@program()
def rule_that_writes_in_place(T, jit, r):
    class Doubled(T.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            x.mul_(2)
            return x

        @staticmethod
        def backward(ctx, g):
            return g * 5

    def f(x):
        h = x * 3
        out = Doubled.apply(h)
        return out, h * 1, out is h

    f = jit(f)
    for k in range(CALLS):
        x = data(T, 3, grad=True, start=k / 4)
        out, h, same = f(x)
        (out.sum() + h.sum()).backward()
        r(x, out, same)


@program()
def rule_with_a_result_that_has_no_gradient(T, jit, r):
    class Top(T.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            values, rounded = x * 2, x.round()
            ctx.mark_non_differentiable(rounded)
            ctx.set_materialize_grads(False)
            return values, rounded

        @staticmethod
        def backward(ctx, g, h):
            assert h is None
            return g * 7

    f = jit(lambda x: Top.apply(x.exp()))
    for k in range(CALLS):
        x = data(T, 3, grad=True, start=k / 4)
        a, b = f(x)
        a.sum().backward()
        r(x, a, b)
