"""Eager ops on large arrays: kernels and NumPy give the same, and NumPy stays where kernels do not pay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tracejit as tj
from tracejit import config
from tracejit.ir.op import Op
from tracejit.tensor import kernels

RNG = np.random.default_rng(0)


def array(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.uniform(-2, 2, shape).astype(dtype)


def make(name: str, *attributes: Any) -> Op:
    cls: Any = Op.registry[name]
    return cls(*attributes)


LARGE = (256, 256)
CASES: list[tuple[Op, tuple[Any, ...]]] = [
    *((make(n), (array(*LARGE),)) for n in ("exp", "tanh", "erf", "neg", "sin", "abs")),
    *((make(n), (array(*LARGE), array(*LARGE))) for n in ("add", "mul", "maximum", "lt", "eq")),
    (make("add"), (array(*LARGE), array())),  # a number beside a tensor stays at rank 0
    (make("sub"), (array(), array(*LARGE))),
    (make("mul"), (array(*LARGE, dtype=np.float64), array(*LARGE, dtype=np.float64))),
    (make("select"), (array(*LARGE) > 0, array(*LARGE), array(*LARGE))),
    (make("reduce_sum", (0,)), (array(*LARGE),)),
    (make("reduce_max", (1,)), (array(*LARGE),)),
    (make("argmax", 1), (array(*LARGE),)),
    (make("matmul"), (array(128, 96), array(96, 128))),
    (make("matmul"), (array(128, 96), array(128, 96).T)),
    (make("matmul"), (array(8, 64, 64), array(8, 64, 64).transpose(0, 2, 1))),
    (make("conv", (1, 1), (1, 1)), (array(8, 1, 16, 18, 18), array(1, 32, 16, 3, 3))),
    (make("conv", (2, 2), (1, 1)), (array(8, 2, 8, 33, 33), array(2, 16, 8, 3, 3))),
    (make("random_bits", (1 << 16,)), (np.array([3, 5], np.int64),)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0].name}{[a.shape for a in c[1]]}")
def test_a_kernel_gives_what_numpy_gives(case: tuple[Op, tuple[Any, ...]]) -> None:
    op, arrays = case
    assert kernels.worth(op, arrays)
    for _ in range(4):
        found = kernels.evaluate(op, arrays)
    wanted = op.eval(*arrays)
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)
    run = kernels._kernel(op, tuple((a.dtype, a.shape) for a in arrays)).run
    assert run is not None


@pytest.mark.parametrize(
    "case",
    [
        (make("exp"), (array(16, 16),)),  # small
        (make("exp"), (array(*LARGE).T,)),  # strided
        (make("add"), (np.arange(1 << 16), np.arange(1 << 16))),  # integers
        (make("reshape", (1 << 16,)), (array(*LARGE),)),  # a view
        (make("matmul"), (array(8, 8), array(8, 8))),
    ],
    ids=lambda c: c[0].name,
)
def test_numpy_stays_where_kernels_do_not_pay(case: tuple[Op, tuple[Any, ...]]) -> None:
    assert not kernels.worth(*case)


def test_the_setting_turns_them_off() -> None:
    op, arrays = make("log1p"), (array(*LARGE),)
    with config.override(eager_kernels=False):
        for _ in range(5):
            kernels.evaluate(op, arrays)
    assert kernels._kernel(op, tuple((a.dtype, a.shape) for a in arrays)).run is None


def test_a_step_with_kernels_learns_as_one_without() -> None:
    def losses() -> list[float]:
        tj.manual_seed(0)
        net = tj.nn.Sequential(
            tj.nn.Conv2d(1, 8, 3, padding=1), tj.nn.ReLU(), tj.nn.Flatten(), tj.nn.Linear(8 * 256, 10)
        )
        opt = tj.optim.SGD(net.parameters(), lr=0.05)
        x, y = tj.randn(32, 1, 16, 16), tj.arange(32) % 10
        out: list[float] = []
        for _ in range(6):
            opt.zero_grad()
            loss = tj.nn.functional.cross_entropy(net(x), y)
            loss.backward()
            opt.step()
            out.append(loss.item())
        return out

    with config.override(eager_kernels=False):
        wanted = losses()
    np.testing.assert_allclose(losses(), wanted, rtol=1e-4)
