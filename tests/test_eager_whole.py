"""Eager code in fewer steps: composed functions as one op, gradient rules on arrays, optimizers' steps as one call."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import tracejit as tj
from tracejit import config
from tracejit.config import modes
from tracejit.errors import InPlaceError
from tracejit.nn import functional as F
from tracejit.tensor import graphs, together

RNG = np.random.default_rng(0)


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


@contextmanager
def primitives() -> Generator[None]:
    """Composed functions run op by op."""
    modes.here.whole = False
    try:
        yield
    finally:
        modes.here.whole = True


@pytest.fixture
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever comes for the third time is built."""
    monkeypatch.setattr(graphs, "_worth", lambda graph: 3)


TARGETS = np.array([2, 0, -100, 3])
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "relu": (F.relu, (floats(4, 6),)),
    "gelu": (F.gelu, (floats(4, 6),)),
    "silu": (F.silu, (floats(4, 6),)),
    "softplus": (F.softplus, (floats(4, 6),)),
    "softmax": (lambda x: F.softmax(x, -1), (floats(4, 6),)),
    "log_softmax": (lambda x: F.log_softmax(x, 0), (floats(4, 6),)),
    "linear": (F.linear, (floats(4, 6), floats(3, 6), floats(3))),
    "linear of three axes": (F.linear, (floats(2, 4, 6), floats(3, 6), floats(3))),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (6,), w, b), (floats(4, 6), floats(6), floats(6))),
    "group_norm": (lambda x: F.group_norm(x, 2), (floats(3, 4, 5),)),
    "batch_norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), (floats(3, 4, 5), floats(4), floats(4))),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, padding=1), (floats(2, 3, 6, 6), floats(4, 3, 3, 3), floats(4))),
    "conv1d without padding": (F.conv1d, (floats(2, 3, 6), floats(4, 3, 3))),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), (floats(2, 3, 6, 6),)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 3, padding=1, count_include_pad=False), (floats(2, 3, 6, 6),)),
    "cross_entropy": (lambda x: F.cross_entropy(x, tj.tensor(TARGETS)), (floats(4, 5),)),
    "mse_loss": (F.mse_loss, (floats(4, 5), floats(4, 5))),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        (floats(2, 5, 4), floats(2, 5, 4), floats(2, 5, 4)),
    ),
    "an operand twice": (lambda x: F.scaled_dot_product_attention(x, x, x), (floats(2, 5, 4),)),
}


def answers(fn: Callable[..., Any], arrays: tuple[Any, ...], second: bool) -> list[Any]:
    """Value, gradients and, where `second`, gradients of these."""
    xs = [tj.tensor(a, requires_grad=True) for a in arrays]
    out = fn(*xs)
    weights = tj.tensor(np.cos(np.arange(out.numel())).astype(np.float32)).reshape(out.shape)
    found = list(tj.autograd.grad((out * weights).sum(), xs, create_graph=second))
    if second:
        total: Any = sum((g * g).sum() for g in found)
        found += [g for g in tj.autograd.grad(total, xs, allow_unused=True) if g is not None]
    return [out.detach().numpy(), *(g.detach().numpy() for g in found)]


@pytest.mark.usefixtures("_at_once")
@pytest.mark.parametrize("name", CASES)
def test_one_op_is_worth_what_its_primitives_are(name: str) -> None:
    fn, arrays = CASES[name]
    second = name != "relu" and "pool" not in name  # whose second derivative is 0
    with primitives():
        wanted = answers(fn, arrays, second)
    for _ in range(4):  # by NumPy, then by kernels
        for got, want in zip(answers(fn, arrays, second), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)


def test_a_composed_function_is_one_entry_on_the_tape() -> None:
    x = tj.tensor(floats(4, 6), requires_grad=True)
    y = F.layer_norm(F.gelu(x), (6,))
    assert [y.grad_fn.name, y.grad_fn.edges[0][0].name] == ["layer_norm", "gelu"]


def test_half_of_the_operands_may_need_a_gradient() -> None:
    x, w = tj.tensor(floats(4, 6)), tj.tensor(floats(3, 6), requires_grad=True)
    y = F.linear(x, w)
    y.sum().backward()
    assert x.grad is None
    np.testing.assert_allclose(w.grad.numpy(), np.tile(x.numpy().sum(0), (3, 1)), rtol=1e-5)


def test_nothing_is_taped_under_no_grad() -> None:
    with tj.no_grad():
        y = F.gelu(tj.tensor(floats(4, 6), requires_grad=True))
    assert not y.requires_grad


def test_a_recording_sees_the_primitives() -> None:
    @tj.compile
    def f(x: Any) -> Any:
        return F.gelu(F.layer_norm(x, (6,)))

    x = tj.tensor(floats(4, 6))
    wanted = f(x).numpy()
    for _ in range(4):
        got = f(x)
    np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-5, atol=1e-6)
    assert "reduce_sum" in str(f.graphs()) and "erf" in str(f.graphs())


def test_errors_are_those_of_the_primitives() -> None:
    with pytest.raises(tj.errors.OpError, match="the last extent must be 6"):
        F.linear(tj.zeros(4, 5), tj.zeros(3, 6))
    with pytest.raises(IndexError, match=r"cross_entropy: a target lies outside 0 \.\. 4"):
        F.cross_entropy(tj.zeros(4, 5), tj.tensor([0, 1, 2, 5]))


def test_an_operand_may_be_overwritten_where_the_gradient_has_no_need_of_it() -> None:
    x = tj.tensor(floats(4, 6), requires_grad=True)
    h = x * 1
    y = F.relu(h)
    h.add_(10)
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), (x.detach().numpy() > 0).astype(np.float32))


def test_an_overwritten_operand_that_the_gradient_needs_is_noticed() -> None:
    x = tj.tensor(floats(4, 6), requires_grad=True)
    h = x * 1
    y = F.gelu(h)
    h.add_(10)
    with pytest.raises(InPlaceError, match="gradient of gelu"):
        y.sum().backward()


def test_a_function_in_place_keeps_what_its_gradient_needs() -> None:
    x = tj.tensor(floats(4, 6), requires_grad=True)
    z = tj.tensor(x.detach().numpy().copy(), requires_grad=True)
    F.silu(x * 1, inplace=True).sum().backward()
    F.silu(z).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), z.grad.numpy(), rtol=1e-6)


def test_results_may_be_written_without_touching_what_is_kept() -> None:
    x = tj.tensor(floats(2, 3, 6), requires_grad=True)
    w = tj.tensor(floats(4, 3, 3), requires_grad=True)
    y = F.conv1d(x, w)
    with tj.no_grad():
        y.detach().mul_(0)
    y.sum().backward()
    first = w.grad.numpy().copy()
    w.grad = None
    F.conv1d(x, w).sum().backward()
    np.testing.assert_array_equal(w.grad.numpy(), first)


def test_gradients_may_be_written_without_touching_those_to_come() -> None:
    x = tj.tensor(floats(3), requires_grad=True)
    for _ in range(3):
        (g,) = tj.autograd.grad((x * 0 + 1).sum(), x)
        np.testing.assert_array_equal(g.numpy(), np.zeros(3, np.float32))
        with tj.no_grad():
            g.add_(7)


def test_leaves_never_share_the_memory_of_a_gradient() -> None:
    x, y = (tj.tensor(floats(3), requires_grad=True) for _ in range(2))
    (x + y).sum().backward()
    with tj.no_grad():
        x.grad.add_(1)
    np.testing.assert_array_equal(y.grad.numpy(), np.ones(3, np.float32))


def test_slices_add_up() -> None:
    x = tj.tensor(floats(5, 4), requires_grad=True)
    (x[1:3].sum() * 2 + (x[2:] * x[2:]).sum() + x[:, ::2].sum() + (x * 3).sum()).backward()
    wanted = np.full((5, 4), 3.0, np.float32)
    wanted[1:3] += 2
    wanted[2:] += 2 * x.detach().numpy()[2:]
    wanted[:, ::2] += 1
    np.testing.assert_allclose(x.grad.numpy(), wanted, rtol=1e-6)


def test_a_checkpoint_computes_again_what_a_refused_recording_ran() -> None:
    def body(x: Any) -> Any:
        return F.layer_norm(F.gelu(x), (6,))

    @tj.compile
    def refused(x: Any) -> Any:
        x.numpy(force=True)
        return tj.utils.checkpoint.checkpoint(body, x, use_reentrant=False)

    for _ in range(4):
        x = tj.tensor(floats(4, 6), requires_grad=True)
        refused(x).sum().backward()
        z = tj.tensor(x.detach().numpy(), requires_grad=True)
        body(z).sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), z.grad.numpy(), atol=1e-5)


# -- optimizers


def trained(make: Callable[[Any], Any], steps: int = 30, setup: Callable[[Any], Any] | None = None) -> list[Any]:
    """Parameters after some steps of the optimizer that `make` gives."""
    rng = np.random.default_rng(1)
    tj.manual_seed(0)
    net = tj.nn.Sequential(tj.nn.Linear(6, 8), tj.nn.Tanh(), tj.nn.Linear(8, 3))
    optimizer = make(net)
    schedule = tj.optim.lr_scheduler.StepLR(optimizer, 7, 0.5)
    for _ in range(steps):
        x = tj.tensor(rng.standard_normal((5, 6)).astype(np.float32))
        optimizer.zero_grad()
        (net(x) ** 2).sum().backward()
        optimizer.step()
        schedule.step()
    return [*(p.detach().numpy().copy() for p in net.parameters()), optimizer]


MAKERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda n: tj.optim.SGD(n.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda n: tj.optim.Adam(n.parameters(), lr=0.01, amsgrad=True),
    "adamw": lambda n: tj.optim.AdamW(n.parameters(), lr=0.01, maximize=True),
    "groups": lambda n: tj.optim.Adam(
        [{"params": n[0].parameters()}, {"params": n[2].parameters(), "lr": 0.1}], lr=0.01
    ),
    "rmsprop": lambda n: tj.optim.RMSprop(n.parameters(), centered=True, momentum=0.5),
    "adagrad": lambda n: tj.optim.Adagrad(n.parameters(), lr_decay=0.1),
    "nadam": lambda n: tj.optim.NAdam(n.parameters()),
    "rate as a tensor": lambda n: tj.optim.SGD(n.parameters(), lr=tj.tensor(0.1)),
}


@pytest.mark.parametrize("name", MAKERS)
def test_all_parameters_at_once_become_what_they_do_one_by_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "_OPS", 1.0)
    with config.override(eager_kernels=False):
        *wanted, _ = trained(MAKERS[name])
    *got, optimizer = trained(MAKERS[name])
    assert optimizer._together._made is not None
    for g, w in zip(got, wanted, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-6)


def test_what_an_optimizer_of_ones_own_does_in_python_is_done_at_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "_OPS", 1.0)

    class Counting(tj.optim.SGD):
        seen = 0

        def _update(self, p: Any, grad: Any, state: dict[str, Any], group: dict[str, Any]) -> None:
            self.seen += 1
            super()._update(p, grad, state, group)

    *_, optimizer = trained(lambda n: Counting(n.parameters(), lr=0.01), steps=8)
    assert optimizer.seen == 8 * 4


def test_parameters_that_share_memory_are_updated_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "_OPS", 1.0)
    array = np.ones(6, np.float32)
    a, b = (tj.from_numpy(x).requires_grad_() for x in (array[:4], array[2:]))
    optimizer = tj.optim.SGD([a, b], lr=1.0)
    for _ in range(6):
        optimizer.zero_grad()
        (a.sum() + b.sum()).backward()
        optimizer.step()
    np.testing.assert_array_equal(array, [-5, -5, -11, -11, -5, -5])


def test_a_gradient_saved_before_a_step_at_once_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "_OPS", 1.0)
    w = tj.tensor(floats(3), requires_grad=True)
    optimizer = tj.optim.SGD([w], lr=0.1)
    for _ in range(6):
        y = (w * w).sum()
        w.grad = tj.ones(3)
        optimizer.step()
        with pytest.raises(InPlaceError, match="overwritten"):
            y.backward()


def test_a_used_optimizer_can_be_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "_OPS", 1.0)
    *_, optimizer = trained(MAKERS["adam"], steps=6)
    other = copy.deepcopy(optimizer)
    assert other._together is not optimizer._together and other._together._made is None
