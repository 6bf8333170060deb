"""Kinds of fault that PyTorch's own op database found in us and that no other test would see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracejit as tj
from tracejit.errors import DTypeError, OpError
from tracejit.nn import functional as F


def test_numpys_and_pytorchs_keywords_mean_the_same() -> None:
    x = tj.arange(6).reshape(2, 3)
    assert x.sum(axis=1, keepdims=True).tolist() == tj.sum(input=x, dim=1, keepdim=True).tolist() == [[3], [12]]
    assert x.permute(dims=(1, 0)).shape == x.reshape(shape=(3, 2)).shape == x.flip(dims=(0,)).T.shape


@pytest.mark.parametrize(
    "call",
    [
        lambda x: tj.eq(2, x),
        lambda x: tj.maximum(x, 1),
        lambda x: tj.cat([x, None]),
        lambda x: tj.add(2, 3),
        lambda x: tj.linspace(x, 1, 3),
        lambda x: tj.nn.functional.layer_norm(x, (3,), tj.ones(2, 3)),
        lambda x: F.nll_loss(x, tj.tensor([0, 1]), tj.ones(4)),
        lambda x: tj.zeros(0).reshape(0, -1),
        lambda x: tj.multinomial(-x, 1),
        lambda x: tj.addmm(tj.ones(3, dtype=tj.int64), x, tj.ones(3, 3)),
        lambda x: x.index_add(0, tj.tensor([0]), tj.ones(1, 3, dtype=tj.int64)),
    ],
)
def test_what_does_not_fit_raises(call: Callable[[Any], Any]) -> None:
    with pytest.raises((OpError, DTypeError, TypeError)):
        call(tj.ones(2, 3))


def test_integers_stay_integers() -> None:
    x = tj.arange(4)
    assert F.hardtanh(x, -1.5, 1.5).dtype is F.threshold(x, 0.5, 2.5).dtype is tj.int64
    assert F.avg_pool1d(x.reshape(1, 4), 2).tolist() == [[0, 2]]
    assert tj.arange(1.5, 4.2, dtype=tj.int64).tolist() == [1, 2, 3]


def test_meshgrid_xy_exchanges_the_first_two_axes() -> None:
    x, y = tj.meshgrid(tj.arange(2), tj.arange(3), indexing="xy")
    assert (x.tolist(), y.tolist()) == ([[0, 1]] * 3, [[0, 0], [1, 1], [2, 2]])


def test_an_empty_batch_leaves_running_statistics_alone() -> None:
    mean, var = tj.zeros(3), tj.ones(3)
    F.batch_norm(tj.zeros(0, 3), mean, var, training=True)
    assert mean.tolist() == [0, 0, 0] and var.tolist() == [1, 1, 1]


def test_a_number_on_the_left_of_pow_has_a_gradient_on_the_right() -> None:
    w = tj.ones(2, requires_grad=True)
    (2.0**w).sum().backward()
    assert np.allclose(w.grad, 2 * np.log(2))


def test_what_is_overwritten_whole_still_requires_grad() -> None:
    w = tj.ones(2, requires_grad=True)
    y = w * 3
    y.zero_()
    y.sum().backward()
    assert w.grad is not None and w.grad.tolist() == [0, 0]


def test_scattered_updates_combine_across_duplicates() -> None:
    index, src = tj.tensor([0, 2, 0, 0]), tj.tensor([3.0, 4.0, 5.0, 2.0])
    x = tj.full((3,), 10.0)
    assert x.scatter_reduce(0, index, src, "prod").tolist() == [300, 10, 40]
    assert x.scatter_reduce(0, index, src, "amax", include_self=False).tolist() == [5, 10, 4]
    assert x.scatter_reduce(0, index, src, "mean").tolist() == [5, 10, 7]


def test_searches_agree_with_numpy_on_ties_and_nan() -> None:
    row, x = np.array([1.0, 2.0, 2.0, 5.0]), np.array([0.0, 2.0, 3.0, 9.0, np.nan])
    for right in (False, True):
        ours = tj.searchsorted(tj.tensor(row), tj.tensor(x), right=right)
        assert ours.tolist() == np.searchsorted(row, x, "right" if right else "left").tolist()


def test_unique_finds_rows_and_where_they_went() -> None:
    x = tj.tensor([[3, 1], [0, 2], [3, 1]])
    values, inverse, counts = tj.unique(x, dim=0, return_inverse=True, return_counts=True)
    assert (values.tolist(), inverse.tolist(), counts.tolist()) == ([[0, 2], [3, 1]], [1, 0, 1], [1, 2])


@pytest.mark.parametrize("antialias", [False, True])
def test_bicubic_resampling_agrees_with_torch(antialias: bool) -> None:
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).normal(size=(1, 2, 9, 7))
    for size in ((4, 11), (9, 3)):
        ours = F.interpolate(tj.tensor(x), size, mode="bicubic", antialias=antialias)
        theirs = torch.nn.functional.interpolate(torch.tensor(x), size, mode="bicubic", antialias=antialias)
        assert np.allclose(ours.numpy(), theirs.numpy())
