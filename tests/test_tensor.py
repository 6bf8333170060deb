"""Tensor's manners: views, in-place writes, indexing, dtypes, conversions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tracejit as tj
from tracejit.errors import DTypeError, IndexOutOfRange, InPlaceError, OpError

INDICES = [
    0, -1, slice(None), slice(1, None), slice(None, None, 2), slice(5, 2), None, ..., (0, 1), (slice(None), 0),
    (..., 0), (0, ...), (None, slice(1, 3), None, 2), (slice(0, 3, 2), slice(1, 3)), (0, slice(None), 1), (..., None),
    (slice(None), None, 1),
]  # fmt: skip


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_basic_index_is_numpy_view(index):
    a = np.arange(60.0, dtype=np.float32).reshape(3, 4, 5)
    x = tj.from_numpy(a)
    y = x[index]
    np.testing.assert_array_equal(y.numpy(), a[index])
    assert y.numpy().size == 0 or np.shares_memory(y.numpy(), a)


ADVANCED = [
    ([0, 2],), ([[0, 1], [2, 0]],), (slice(None), [3, 0]), ([0, 2], [1, 3]), ([0, 1], slice(None), [4, 0]), (slice(1,
    3), [0, 0, 1], 2), ([-1, 0],), (None, [1, 2]), (..., [0, 4]), ([[0], [1]], [[2, 3]]),
]  # fmt: skip


def _tensors(index):
    return tuple(tj.tensor(i) if isinstance(i, list) else i for i in index)


@pytest.mark.parametrize("index", ADVANCED, ids=str)
def test_advanced_index_reads_and_writes_like_numpy(index):
    a = np.arange(60.0, dtype=np.float32).reshape(3, 4, 5)
    x = tj.tensor(a)
    want = a[tuple(np.array(i) if isinstance(i, list) else i for i in index)]
    if not any(isinstance(i, int) for i in index):  # ints select first here, as in PyTorch
        np.testing.assert_array_equal(x[_tensors(index)].numpy(), want)
    b = a.copy()
    y = x.clone()
    got = y[_tensors(index)]
    y[_tensors(index)] = got * 0 - 1
    b[tuple(np.array(i) if isinstance(i, list) else i for i in index)] = -1
    np.testing.assert_array_equal(y.numpy(), b)


def test_mask_reads_and_writes():
    x = tj.arange(6.0).reshape(2, 3)
    assert x[x > 2].tolist() == [3.0, 4.0, 5.0]
    x[x > 2] = 0
    assert x.tolist() == [[0.0, 1.0, 2.0], [0.0, 0.0, 0.0]]
    assert x[tj.tensor([True, False])].tolist() == [[0.0, 1.0, 2.0]]


@pytest.mark.parametrize("index", [3, -4, (0, 0, 0), tj.tensor([5]), tj.tensor([True, False])], ids=str)
def test_index_out_of_range_raises(index):
    with pytest.raises(IndexOutOfRange):
        tj.zeros(3, 2)[index]


def test_write_through_a_view_shows_in_the_base_and_its_other_views():
    x = tj.zeros(2, 3)
    row, column = x[0], x[:, 1]
    row.add_(1)
    assert x.tolist() == [[1, 1, 1], [0, 0, 0]]
    assert column.tolist() == [1, 0]
    x.t()[2].fill_(7)
    assert x[:, 2].tolist() == [7, 7]


def test_slice_assignment_and_augmented_assignment():
    x = tj.zeros(4)
    x[1:3] = tj.tensor([1.0, 2.0])
    x[0] += 5
    x[-1] = 9
    assert x.tolist() == [5, 1, 2, 9]


def test_from_numpy_shares_memory_both_ways():
    a = np.zeros(3, np.float32)
    x = tj.from_numpy(a)
    x.add_(1)
    a[0] = 5
    assert x.tolist() == [5, 1, 1]


def test_write_into_expanded_memory_is_refused():
    with pytest.raises(InPlaceError, match="share memory"):
        tj.zeros(1).expand(3).add_(1)


def test_in_place_result_must_fit():
    with pytest.raises(OpError):
        tj.zeros(2).add_(tj.zeros(3, 2))
    with pytest.raises(OpError):
        tj.tensor([1, 2]).add_(0.5)


def test_promotion_follows_pytorch():
    torch = pytest.importorskip("torch")
    names = ["float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "bool"]
    for a, b in itertools.product(names, names):
        for sa, sb in (((2,), (2,)), ((2,), ()), ((), (2,))):
            ta, tb = torch.ones(sa, dtype=getattr(torch, a)), torch.ones(sb, dtype=getattr(torch, b))
            dtypes = {n: getattr(tj, n) if n != "bool" else tj.bool_ for n in names}
            xa, xb = tj.ones(*sa, dtype=dtypes[a]), tj.ones(*sb, dtype=dtypes[b])
            assert str((xa * xb).dtype).split(".")[1] == str((ta * tb).dtype).split(".")[1], (a, b, sa, sb)


@pytest.mark.parametrize("scalar", [True, 2, 2.5])
def test_promotion_with_python_scalars(scalar):
    torch = pytest.importorskip("torch")
    for name in ("float32", "float16", "int32", "uint8", "bool"):
        x = tj.ones(2, dtype=getattr(tj, name) if name != "bool" else tj.bool_)
        t = torch.ones(2, dtype=getattr(torch, name))
        assert str((x * scalar).dtype).split(".")[1] == str((t * scalar).dtype).split(".")[1], name
        assert str((x / scalar).dtype).split(".")[1] == str((t / scalar).dtype).split(".")[1], name


def test_tensor_reads_nested_data():
    assert tj.tensor([[1, 2], [3, 4]]).dtype is tj.int64
    assert tj.tensor([1.0]).dtype is tj.float32
    assert tj.tensor([True]).dtype is tj.bool_
    assert tj.tensor([tj.tensor(1.0), 2.0]).tolist() == [1.0, 2.0]
    assert tj.tensor(3).shape == ()
    with pytest.raises(OpError):
        tj.tensor([[1, 2], [3]])
    with pytest.raises(DTypeError):
        tj.tensor(["a"])


def test_item_and_truth_want_one_element():
    assert tj.tensor([2.5]).item() == 2.5
    assert bool(tj.tensor(0.0)) is False
    with pytest.raises(RuntimeError):
        bool(tj.zeros(2))
    with pytest.raises(RuntimeError):
        tj.zeros(2).item()


def test_repr_shows_values_dtype_and_shape():
    text = repr(tj.ones(2, dtype=tj.float64))
    assert "1." in text and "float64" in text and "shape=[2]" in text
    assert "requires_grad=True" in repr(tj.ones(1, requires_grad=True))


def test_random_streams_repeat_by_seed_and_move_on():
    tj.manual_seed(3)
    a, b = tj.rand(5), tj.rand(5)
    tj.manual_seed(3)
    assert tj.equal(a, tj.rand(5)) and not tj.equal(a, b)
    u = tj.rand(10000)
    assert float(u.min()) >= 0 and float(u.max()) < 1 and abs(float(u.mean()) - 0.5) < 0.02
    n = tj.randn(10000)
    assert abs(float(n.mean())) < 0.05 and abs(float(n.std()) - 1) < 0.05
    assert sorted(tj.randperm(9).tolist()) == list(range(9))


def test_default_dtype_governs_factories():
    tj.set_default_dtype(tj.float64)
    try:
        assert tj.zeros(1).dtype is tj.float64 and tj.tensor([0.5]).dtype is tj.float64
    finally:
        tj.set_default_dtype(tj.float32)
    assert tj.zeros(1).dtype is tj.float32


def test_arange_and_friends():
    assert tj.arange(3).tolist() == [0, 1, 2]
    assert tj.arange(1, 2, 0.25).tolist() == [1, 1.25, 1.5, 1.75]
    assert tj.eye(2).tolist() == [[1, 0], [0, 1]]
    assert tj.full((2,), 7).dtype is tj.int64
    assert tj.linspace(0, 1, 3).tolist() == [0, 0.5, 1]


def test_factories_give_writable_memory():
    for x in (tj.arange(3), tj.zeros(3), tj.full((3,), 1.0), tj.eye(2), tj.linspace(0, 1, 3), tj.rand(2)):
        assert x.mul_(0).sum().item() == 0


def test_reshaping_the_array_in_place_leaves_the_tensor_alone():
    a = np.zeros((2, 3), np.float32)
    x = tj.from_numpy(a)
    a.shape = (6,)
    assert x.shape == (2, 3)


def test_limits_of_dtypes():
    assert tj.finfo(tj.float32).max == float(np.finfo(np.float32).max) and tj.finfo().eps == 2.0**-23
    assert tj.finfo(tj.bfloat16).eps == 2.0**-7 and tj.iinfo(tj.uint8).max == 255
    with pytest.raises(TypeError):
        tj.finfo(tj.int64)
