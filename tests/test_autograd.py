"""The tape: gradients, accumulation, views and in-place writes, hooks, custom rules, gradients of gradients."""

from __future__ import annotations

import numpy as np
import pytest

import tracejit as tj
from tracejit.errors import AutogradError, InPlaceError


def leaf(*values):
    return tj.tensor(list(values), dtype=tj.float64, requires_grad=True)


def test_backward_accumulates_into_leaves():
    x = leaf(1, 2)
    (x * x).sum().backward()
    (x * 3).sum().backward()
    assert x.grad.tolist() == [5, 7]


def test_gradient_objects_are_not_shared_between_leaves():
    x, y = leaf(1, 2), leaf(3, 4)
    (x + y).sum().backward()
    x.grad.add_(1)
    assert y.grad.tolist() == [1, 1]


def test_broadcast_gradients_are_summed():
    x, b = tj.ones(3, 2, requires_grad=True), tj.zeros(2, requires_grad=True)
    (x + b).sum().backward()
    assert b.grad.tolist() == [3, 3] and x.grad.shape == (3, 2)


def test_second_backward_needs_retain_graph():
    x = leaf(1)
    y = (x * x).sum()
    y.backward()
    with pytest.raises(AutogradError, match="retain_graph"):
        y.backward()


def test_third_derivative():
    x = leaf(0.5, 1.5)
    (g,) = tj.autograd.grad((x**4 + x.sin()).sum(), x, create_graph=True)
    (h,) = tj.autograd.grad(g.sum(), x, create_graph=True)
    (k,) = tj.autograd.grad(h.sum(), x)
    a = np.array([0.5, 1.5])
    np.testing.assert_allclose(g.detach().numpy(), 4 * a**3 + np.cos(a))
    np.testing.assert_allclose(h.detach().numpy(), 12 * a**2 - np.sin(a))
    np.testing.assert_allclose(k.numpy(), 24 * a - np.cos(a))


def test_no_grad_and_detach_cut_the_tape():
    x = leaf(2)
    with tj.no_grad():
        y = x * x
    assert not y.requires_grad and not x.detach().requires_grad
    assert (x.detach() * x).sum().requires_grad


def test_detach_shares_memory():
    x = leaf(1, 2)
    d = x.detach()
    d.add_(1)
    assert x.tolist() == [2, 3]


def test_leaf_written_in_place_raises():
    x = leaf(1)
    with pytest.raises(InPlaceError, match="leaf"):
        x.add_(1)
    with tj.no_grad():
        x.add_(1)
    assert x.tolist() == [2]


def test_overwritten_saved_value_is_named_with_both_lines():
    x = leaf(1, 2)
    y = x.exp()
    y.add_(1)
    with pytest.raises(InPlaceError, match=r"exp.*test_autograd.py:\d+.*test_autograd.py:\d+"):
        y.sum().backward()


def test_in_place_on_a_value_that_is_not_needed_is_fine():
    x = leaf(1, 2)
    y = x + 1
    y.mul_(3)
    y.sum().backward()
    assert x.grad.tolist() == [3, 3]


def test_write_into_slice_of_fresh_tensor_carries_gradient():
    x = leaf(1, 2)
    out = tj.zeros(2, 3, dtype=tj.float64)
    out[:, 1] = x * 2
    out[0] += x[1]
    (out * tj.arange(6.0).reshape(2, 3)).sum().backward()
    assert x.grad.tolist() == [2 * 1, 2 * 4 + 0 + 1 + 2]


def test_view_taken_before_a_write_has_the_gradient_after_it():
    x = leaf(1, 2, 3)
    y = x * 1
    v = y[:2]
    y.mul_(2)
    v.mul_(5)
    (y.sum() + v.sum()).backward()
    assert x.grad.tolist() == [20, 20, 2]


def test_two_writes_to_the_same_slice_both_count():
    x = tj.tensor([[1.0, 2.0, -3.0], [4.0, 5.0, 6.0]], requires_grad=True)
    y = tj.zeros_like(x)
    y[:, 0] += x[:, 2].abs()
    y[:, 0] += x[:, 2].abs()
    y.sum().backward()
    assert x.grad.tolist() == [[0, 0, -2], [0, 0, 2]]


def test_index_and_mask_gradients():
    x = leaf(1, 2, 3)
    (x[tj.tensor([0, 0, 2])] * tj.tensor([1.0, 10.0, 100.0])).sum().backward()
    assert x.grad.tolist() == [11, 0, 100]
    x.grad = None
    x[x > 1].sum().backward()
    assert x.grad.tolist() == [0, 1, 1]


def test_hooks_on_leaf_and_inner_tensors():
    x = leaf(1)
    seen = []
    handle = x.register_hook(lambda g: g * 2)
    y = x * 3
    y.register_hook(lambda g: seen.append(g.tolist()))
    y.sum().backward()
    assert x.grad.tolist() == [6] and seen == [[1]]
    handle.remove()
    x.grad = None
    (x * 3).sum().backward()
    assert x.grad.tolist() == [3]


def test_retain_grad():
    x = leaf(1)
    y = x * 2
    y.retain_grad()
    (y * y).sum().backward()
    assert y.grad.tolist() == [4]


def test_custom_function():
    class Round(tj.autograd.Function):
        @staticmethod
        def forward(ctx, x, scale):
            ctx.save_for_backward(x)
            ctx.scale = scale
            return tj.round(x)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * ctx.scale + x * 0, None

    x = leaf(1.2, 2.7)
    y = Round.apply(x, 2.0)
    assert y.tolist() == [1, 3]
    y.sum().backward()
    assert x.grad.tolist() == [2, 2]


def test_grad_of_unused_input():
    x, y = leaf(1), leaf(2)
    with pytest.raises(AutogradError, match="allow_unused"):
        tj.autograd.grad((x * 2).sum(), [x, y])
    assert tj.autograd.grad((x * 2).sum(), [x, y], allow_unused=True)[1] is None


def test_nothing_requires_grad_raises():
    with pytest.raises(AutogradError):
        tj.zeros(2).sum().backward()


def test_long_chain_needs_no_recursion():
    x = leaf(1)
    y = x
    for _ in range(5000):
        y = y + 1
    y.sum().backward()
    assert x.grad.tolist() == [1]
