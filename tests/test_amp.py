"""Autocast and gradient scaling: dtypes of each group, steps skipped, and PyTorch's numbers where it is there."""

import numpy as np
import pytest

import tracejit as tj
from tracejit.nn import functional as F


def test_products_are_narrow_and_losses_wide():
    x, w = tj.ones(2, 3), tj.ones(4, 3)
    with tj.autocast("cpu", dtype=tj.bfloat16):
        h = F.linear(x, w, tj.ones(4))
        loss = F.mse_loss(h, h * 0)
        kept = (x @ w.T, tj.matmul(x.double(), w.double().T), x + 1, F.softmax(h, -1))
        with tj.autocast("cpu", enabled=False):
            plain = x @ w.T

    assert (h.dtype, loss.dtype) == (tj.bfloat16, tj.float32)
    assert [t.dtype for t in kept] == [tj.bfloat16, tj.float64, tj.float32, tj.bfloat16]
    assert plain.dtype is tj.float32
    assert not tj.is_autocast_enabled()


def test_gradients_arrive_in_the_dtype_of_the_weights():
    net = tj.nn.Linear(3, 2)
    with tj.autocast("cpu"):
        net(tj.ones(1, 3)).sum().backward()

    assert net.weight.grad.dtype is tj.float32
    assert net.bias.grad.tolist() == [1.0, 1.0]


def test_autocast_decorates():
    @tj.autocast("cpu", dtype=tj.float16)
    def f(x):
        return x @ x

    assert f(tj.ones(2, 2)).dtype is tj.float16


def test_other_dtypes_are_refused():
    with pytest.raises(ValueError, match="bfloat16 or float16"):
        tj.autocast("cpu", dtype=tj.float64)


def scaled(T, jit=lambda f: f):
    w = T.tensor([1.0, 2.0], requires_grad=True)
    opt = T.optim.SGD([w], lr=0.1)
    scaler = T.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)

    def step(x):
        opt.zero_grad()
        loss = (w * x).sum() ** 2
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()

    step, seen = jit(step), []
    for k in range(12):
        step(T.tensor([0.1, float("inf") if k in (4, 9) else 0.2]))
        seen.append((w.detach().tolist(), scaler.get_scale()))
    return seen


def test_a_step_with_an_overflow_is_skipped_and_the_scale_follows():
    seen = scaled(tj)

    assert [s for _, s in seen] == [8, 16, 16, 32, 16, 16, 32, 32, 64, 32, 32, 64]
    assert seen[4][0] == seen[3][0]


def test_scaling_agrees_with_torch():
    torch = pytest.importorskip("torch")

    for (a, s), (b, t) in zip(scaled(tj), scaled(torch)):
        assert np.allclose(a, b)
        assert s == t


def test_scaling_compiles():
    made = []

    def jit(f):
        made.append(tj.compile(f))
        return made[-1]

    assert scaled(tj, jit) == scaled(tj)
    assert made[0].compiled_calls


def test_unscaling_twice_raises():
    w = tj.ones(1, requires_grad=True)
    opt, scaler = tj.optim.SGD([w], lr=0.1), tj.amp.GradScaler("cpu")
    scaler.scale(w.sum()).backward()
    scaler.unscale_(opt)

    assert w.grad.item() == 1
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.unscale_(opt)


def test_the_state_goes_on():
    scaler, other = tj.amp.GradScaler("cpu", init_scale=4.0), tj.amp.GradScaler("cpu")
    other.load_state_dict(scaler.state_dict())

    assert other.get_scale() == 4
    assert set(scaler.state_dict()) == {
        "scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker",
    }  # fmt: skip
