"""Optimizers and schedulers: by hand in NumPy, and against PyTorch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tracejit as tj
from tracejit import nn, optim
from tracejit.optim import lr_scheduler


def reference() -> Any:
    """PyTorch on one thread: its pool spins when tests run side by side."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    return torch


def parameter(*values: float) -> Any:
    return nn.Parameter(tj.tensor(list(values)))


def run(opt: Any, p: Any, grads: list[list[float]]) -> list[float]:
    for g in grads:
        p.grad = tj.tensor(g)
        opt.step()
    return p.tolist()


GRADS = [[0.1, -0.2], [0.3, 0.4], [-0.5, 0.05]]


def test_sgd_by_hand() -> None:
    p = parameter(1.0, 2.0)
    got = run(optim.SGD([p], lr=0.1, momentum=0.9, weight_decay=0.01), p, GRADS)
    w, v = np.array([1.0, 2.0]), 0.0
    for g in GRADS:
        v = 0.9 * v + np.array(g) + 0.01 * w
        w = w - 0.1 * v
    np.testing.assert_allclose(got, w, rtol=1e-6)


def test_adamw_by_hand() -> None:
    p = parameter(1.0, 2.0)
    opt = optim.AdamW([p], lr=0.1)
    got = run(opt, p, GRADS)
    w, m, v = np.array([1.0, 2.0]), 0.0, 0.0
    for t, g in enumerate(np.array(GRADS), 1):
        w = w * (1 - 0.1 * 0.01)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        w = w - 0.1 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    np.testing.assert_allclose(got, w, rtol=1e-5)
    step = opt.state[p]["step"]
    assert step.shape == ()
    assert step.dtype is tj.float32
    assert step.item() == 3


def test_the_step_count_is_one_tensor_for_all_steps() -> None:
    p = parameter(1.0)
    opt = optim.Adam([p])
    run(opt, p, [[0.1]])
    before = dict(opt.state[p])
    run(opt, p, [[0.2]])
    assert all(opt.state[p][k] is v for k, v in before.items())


def test_parameters_without_gradient_are_left_alone() -> None:
    p, q = parameter(1.0), parameter(2.0)
    opt = optim.SGD([p, q], lr=0.5)
    p.grad = tj.tensor([1.0])
    opt.step()
    assert (p.tolist(), q.tolist()) == ([0.5], [2.0])
    assert q not in opt.state
    opt.zero_grad()
    assert p.grad is None


def test_closure_runs_with_gradients() -> None:
    p = parameter(2.0)
    opt = optim.SGD([p], lr=0.1)

    def closure() -> Any:
        opt.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    with tj.no_grad():
        assert opt.step(closure).item() == 4.0
    assert p.item() == pytest.approx(1.6)


def test_groups_have_settings_of_their_own() -> None:
    p, q = parameter(1.0), parameter(1.0)
    opt = optim.SGD([{"params": [p], "lr": 0.5}, {"params": q}], lr=0.1)
    for x in (p, q):
        x.grad = tj.tensor([1.0])
    opt.step()
    assert p.item() == 0.5
    assert q.item() == pytest.approx(0.9)
    with pytest.raises(ValueError, match="more than one group"):
        opt.add_param_group({"params": [p]})


def test_state_dict_resumes_exactly() -> None:
    p, q = parameter(1.0, 2.0), parameter(1.0, 2.0)
    a, b = optim.Adam([p], lr=0.1), optim.Adam([q], lr=0.7)
    run(a, p, GRADS)
    q.data = p.detach().clone()
    state = a.state_dict()
    assert state["state"].keys() == {0}
    assert state["param_groups"][0]["params"] == [0]
    b.load_state_dict(state)
    assert run(a, p, GRADS) == run(b, q, GRADS)
    with pytest.raises(ValueError, match="2 parameters"):
        b.load_state_dict({"state": {}, "param_groups": [{"params": [0, 1]}]})


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: optim.SGD([], lr=1), ValueError, "empty"),
        (lambda: optim.SGD([parameter(1.0)], lr=-1), ValueError, "lr is -1"),
        (lambda: optim.Adam([parameter(1.0)], betas=(0.9, 1.0)), ValueError, r"betas\[1\] is 1.0"),
        (lambda: optim.SGD(parameter(1.0)), TypeError, "iterable"),
        (lambda: optim.SGD([parameter(1.0) * 2]), ValueError, "leaf"),
        (lambda: optim.SGD([parameter(1.0)], nesterov=True), ValueError, "nesterov"),
    ],
)
def test_bad_settings_are_refused(make: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make()


SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}),
    ("Adam", {"lr": 0.1, "amsgrad": True, "weight_decay": 0.1}),
    ("AdamW", {"lr": 0.1, "betas": (0.5, 0.9)}),
    ("Adamax", {"lr": 0.1, "weight_decay": 0.1}),
    ("RMSprop", {"lr": 0.1, "momentum": 0.5, "centered": True, "weight_decay": 0.1}),
    ("Adadelta", {"lr": 0.5, "weight_decay": 0.1}),
    ("Rprop", {"lr": 0.1}),
    ("ASGD", {"lr": 0.1, "t0": 5.0, "lambd": 0.01}),
    ("NAdam", {"lr": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("RAdam", {"lr": 0.1, "betas": (0.9, 0.9)}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.2}),
]


@pytest.mark.parametrize(("name", "settings"), SETTINGS)
def test_optimizer_follows_torch(name: str, settings: dict[str, Any]) -> None:
    torch = reference()
    rng = np.random.default_rng(0)
    start, grads = rng.normal(size=(3, 4)).astype(np.float32), rng.normal(size=(25, 3, 4)).astype(np.float32)
    p, q = nn.Parameter(tj.from_numpy(start.copy())), torch.nn.Parameter(torch.from_numpy(start.copy()))
    ours, theirs = getattr(optim, name)([p], **settings), getattr(torch.optim, name)([q], **settings)
    for g in grads:
        p.grad, q.grad = tj.from_numpy(g), torch.from_numpy(g)
        ours.step()
        theirs.step()
        np.testing.assert_allclose(p.detach().numpy(), q.detach().numpy(), rtol=2e-5, atol=2e-6)


SCHEDULES: list[tuple[str, dict[str, Any]]] = [
    ("StepLR", {"step_size": 3, "gamma": 0.5}),
    ("MultiStepLR", {"milestones": [2, 5]}),
    ("LambdaLR", {"lr_lambda": lambda n: 1 / (1 + n)}),
    ("MultiplicativeLR", {"lr_lambda": lambda n: 0.9}),
    ("ConstantLR", {"factor": 0.2, "total_iters": 4}),
    ("LinearLR", {"start_factor": 0.1, "total_iters": 6}),
    ("ExponentialLR", {"gamma": 0.8}),
    ("PolynomialLR", {"total_iters": 6, "power": 2.0}),
    ("CosineAnnealingLR", {"T_max": 8, "eta_min": 0.01}),
    ("CosineAnnealingWarmRestarts", {"T_0": 3, "T_mult": 2}),
    ("OneCycleLR", {"max_lr": 1.0, "total_steps": 12}),
    ("OneCycleLR", {"max_lr": 1.0, "total_steps": 12, "anneal_strategy": "linear", "three_phase": True}),
]


@pytest.mark.parametrize(("name", "settings"), SCHEDULES)
@pytest.mark.filterwarnings("ignore")
def test_schedule_follows_torch(name: str, settings: dict[str, Any]) -> None:
    torch = reference()
    ours = optim.SGD([parameter(1.0)], lr=0.5, momentum=0.9)
    theirs = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.5, momentum=0.9)
    a = getattr(lr_scheduler, name)(ours, **settings)
    b = getattr(torch.optim.lr_scheduler, name)(theirs, **settings)
    for _ in range(11):
        assert a.get_last_lr() == pytest.approx(b.get_last_lr())
        assert ours.param_groups[0]["momentum"] == pytest.approx(theirs.param_groups[0]["momentum"])
        a.step()
        b.step()


def test_sequence_and_plateau() -> None:
    opt = optim.SGD([parameter(1.0)], lr=1.0)
    warm, then = lr_scheduler.ConstantLR(opt, 0.1, 2), lr_scheduler.ExponentialLR(opt, 0.5)
    schedule = lr_scheduler.SequentialLR(opt, [warm, then], [2])
    rates = [schedule.get_last_lr()[0]]
    for _ in range(4):
        schedule.step()
        rates.append(schedule.get_last_lr()[0])
    assert rates == pytest.approx([0.1, 0.1, 1.0, 0.5, 0.25])
    plateau = lr_scheduler.ReduceLROnPlateau(opt, patience=1, factor=0.1)
    for metric in (1.0, 1.0, tj.tensor(1.0), 1.0):
        plateau.step(metric)
    assert opt.param_groups[0]["lr"] == pytest.approx(0.025)


def test_schedule_resumes_from_its_state() -> None:
    opt = optim.SGD([parameter(1.0)], lr=1.0)
    a = lr_scheduler.CosineAnnealingLR(opt, 10)
    for _ in range(4):
        a.step()
    b = lr_scheduler.CosineAnnealingLR(optim.SGD([parameter(1.0)], lr=1.0), 10)
    b.load_state_dict(a.state_dict())
    b.step()
    assert b.get_last_lr()[0] == pytest.approx((1 + math.cos(math.pi / 2)) / 2)
