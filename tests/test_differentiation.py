"""Functions of functions, gradient checks, anomaly mode, recomputing: own numbers, and PyTorch's where it is there."""

import numpy as np
import pytest

import tracejit as tj


def cubes(x):
    return (x**3).sum()


def product(x, w):
    return (x * w).exp()


X = [1.0, 2.0, 3.0]


def x64(T=tj, grad=False):
    x = T.tensor(X, dtype=T.float64)
    return x.requires_grad_() if grad else x


# -- tracejit.func


def test_grad_of_a_function():
    g = tj.func.grad(cubes)(x64())

    assert g.tolist() == [3.0, 12.0, 27.0]
    assert not g.requires_grad


def test_grad_nests():
    second = tj.func.grad(lambda x: tj.func.grad(cubes)(x).sum())(x64())

    assert second.tolist() == [6.0, 12.0, 18.0]


def test_grad_takes_nested_containers_and_gives_them_back():
    g, value = tj.func.grad_and_value(lambda p: (p["a"] * p["b"][0]).sum())({"a": x64(), "b": (x64() + 1,)})

    assert g["a"].tolist() == [2.0, 3.0, 4.0]
    assert g["b"][0].tolist() == X
    assert value.item() == 20.0


def test_grad_stays_part_of_the_graph_of_what_it_closes_over():
    w = x64(grad=True)

    g = tj.func.grad(lambda x: (x * w).pow(2).sum())(x64())
    (outer,) = tj.autograd.grad(g.sum(), w)

    assert outer.tolist() == [4 * a * a for a in X]


def test_vjp_and_jvp():
    value, pull = tj.func.vjp(product, x64(), x64())
    gx, _ = pull(tj.ones(3, dtype=tj.float64))
    _, pushed = tj.func.jvp(product, (x64(), x64()), (tj.ones(3, dtype=tj.float64),) * 2)

    want = np.exp(np.square(X))
    assert np.allclose(value.numpy(), want)
    assert np.allclose(gx.numpy(), want * X)
    assert np.allclose(pushed.numpy(), 2 * want * X)


def test_hessian_is_the_jacobian_of_the_gradient():
    assert tj.func.hessian(cubes)(x64()).tolist() == np.diag([6.0, 12.0, 18.0]).tolist()
    assert tj.func.jacrev(lambda x: x * x.sum())(x64()).tolist() == (np.outer(X, [1, 1, 1]) + 6 * np.eye(3)).tolist()


def test_grad_of_what_is_not_a_number_says_so():
    with pytest.raises(tj.errors.AutogradError, match="rank 0"):
        tj.func.grad(lambda x: x * 2)(x64())


def test_functions_of_functions_compile():
    f = tj.compile(lambda x: tj.func.grad(lambda y: tj.func.grad(cubes)(y).sum())(x))

    for _ in range(5):
        out = f(x64())

    assert out.tolist() == [6.0, 12.0, 18.0]
    assert f.compiled_calls


def test_a_module_runs_with_other_parameters():
    net = tj.nn.Linear(2, 1)
    new = {"weight": tj.tensor([[1.0, 2.0]]), "bias": tj.tensor([3.0])}

    out = tj.func.functional_call(net, new, (tj.ones(1, 2),))

    assert out.tolist() == [[6.0]]
    assert net.weight is not new["weight"]


@pytest.mark.parametrize("name", ["jacobian", "hessian", "vjp", "jvp", "vhp", "hvp"])
def test_functional_agrees_with_torch(name):
    torch = pytest.importorskip("torch")

    def run(T):
        f = getattr(T.autograd.functional, name)
        if name in ("jacobian", "hessian"):
            return f(lambda x, w: (x * w).exp().sum(), (x64(T), x64(T) / 4))
        v = (x64(T), x64(T))
        if name == "vjp":
            return f(lambda x, w: (x * w).exp(), v, x64(T))
        return f(lambda x, w: (x * w).sum() ** 2, v, v)

    def flat(out):
        return [a for o in out for a in flat(o)] if isinstance(out, tuple) else [out]

    ours, theirs = flat(run(tj)), flat(run(torch))

    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs):
        assert np.allclose(a.numpy(), b.numpy())
        assert a.requires_grad == b.requires_grad


# -- checks


class Wrong(tj.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 3


def test_gradcheck_passes_right_rules_and_names_wrong_ones():
    x = x64(grad=True)

    assert tj.autograd.gradcheck(lambda x: x.exp() * x, x)
    assert tj.autograd.gradgradcheck(lambda x: x.exp() * x, x)
    assert not tj.autograd.gradcheck(Wrong.apply, x, raise_exception=False)
    with pytest.raises(tj.errors.GradcheckError, match=r"at \[0, 0\] is 3.0, finite differences give 1.99999"):
        tj.autograd.gradcheck(Wrong.apply, x)


def test_anomaly_mode_names_the_forward_line():
    x = tj.ones(1, requires_grad=True)
    with tj.autograd.detect_anomaly():
        y = (x - 1).sqrt() * 0
        with pytest.raises(tj.errors.AutogradError, match=r"gradient of sqrt .* is nan.*test_differentiation.py"):
            y.sum().backward()
    y = (x - 1).sqrt() * 0
    y.sum().backward()
    assert np.isnan(x.grad.item())


def test_compiled_functions_look_for_nan_too():
    w = tj.ones(1, requires_grad=True)

    @tj.compile
    def f(x):
        w.grad = None
        ((w - x).sqrt() * 0).sum().backward()

    for _ in range(5):
        f(tj.zeros(1))
    with tj.autograd.detect_anomaly(), pytest.raises(tj.errors.AutogradError, match="is nan"):
        f(tj.ones(1))
    assert f.compiled_calls


# -- recomputing


def counted(calls, w):
    def f(x):
        calls.append(1)
        return (x * w).exp() * tj.rand(3)

    return f


def test_checkpoint_runs_its_function_again_with_the_same_random_numbers():
    calls, w = [], tj.tensor(X, requires_grad=True)
    x = tj.tensor(X, requires_grad=True)

    tj.manual_seed(1)
    y = tj.utils.checkpoint.checkpoint(counted(calls, w), x, use_reentrant=False)
    after = tj.rand(2).tolist()
    g = tj.autograd.grad(y.sum(), (x, w))
    tj.manual_seed(1)
    plain = counted([], w)(x)

    assert len(calls) == 2
    assert tj.rand(2).tolist() == after
    assert [t.tolist() for t in g] == [t.tolist() for t in tj.autograd.grad(plain.sum(), (x, w))]


def test_checkpoint_keeps_nothing_of_the_inside():
    x = tj.ones(3, requires_grad=True)
    inside = []

    def f(a):
        h = a.exp()
        inside.append(h._grad_fn)
        return h * h

    tj.utils.checkpoint.checkpoint(f, x)

    assert inside[0].inputs is None


def test_checkpoint_notices_a_weight_that_changed():
    w, x = tj.ones(3, requires_grad=True), tj.ones(3, requires_grad=True)
    y = tj.utils.checkpoint.checkpoint(lambda a: (a * w).exp(), x)
    with tj.no_grad():
        w.add_(1)

    with pytest.raises(tj.errors.InPlaceError, match="overwritten in place at .*test_differentiation.py"):
        y.sum().backward()


def test_checkpoint_notices_other_operations():
    flip = []

    def f(a):
        flip.append(1)
        return a.exp() if len(flip) == 1 else a.sin() * 2

    y = tj.utils.checkpoint.checkpoint(f, tj.ones(3, requires_grad=True))

    with pytest.raises(tj.errors.AutogradError, match="did other operations"):
        y.sum().backward()


def test_checkpoint_differentiates_twice():
    x = x64(grad=True)
    y = tj.utils.checkpoint.checkpoint(cubes, x)
    (g,) = tj.autograd.grad(y, x, create_graph=True)
    (h,) = tj.autograd.grad(g.sum(), x)

    assert h.tolist() == [6.0, 12.0, 18.0]


# -- in place


def test_in_place_ops_keep_what_the_gradient_needs_of_the_old_value():
    x = tj.tensor(X, requires_grad=True)
    y = x * 2
    y.mul_(x)
    tj.nn.functional.relu(y, inplace=True)
    y.sum().backward()

    assert x.grad.tolist() == [4 * a for a in X]


def test_grad_walks_only_what_leads_to_its_inputs():
    x, w = tj.ones(1, requires_grad=True), tj.ones(1, requires_grad=True)
    seen = []
    h = w * 2
    h.register_hook(seen.append)
    (g,) = tj.autograd.grad(x * 3 + h, x)

    assert g.item() == 3
    assert not seen


def test_module_backward_hooks_see_several_inputs():
    seen = []
    layer = tj.nn.Bilinear(2, 2, 1)
    layer.register_full_backward_hook(lambda m, gi, go: seen.append([tuple(g.shape) for g in (*gi, *go)]))
    layer.register_full_backward_pre_hook(lambda m, go: (go[0] * 2,))
    a, b = tj.ones(3, 2, requires_grad=True), tj.ones(3, 2, requires_grad=True)
    layer(a, b).sum().backward()

    assert seen == [[(3, 2), (3, 2), (3, 1)]]
    assert layer.bias.grad.item() == 6


def test_post_accumulate_hook_sees_the_grown_gradient():
    w, seen = tj.ones(1, requires_grad=True), []
    handle = w.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.item()))
    (w * 2).sum().backward()
    (w * 3).sum().backward()
    handle.remove()
    (w * 4).sum().backward()

    assert seen == [2.0, 5.0]
    with pytest.raises(tj.errors.AutogradError, match="leaf"):
        (w * 2).register_post_accumulate_grad_hook(print)
