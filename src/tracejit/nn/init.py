"""Initial values, written into a tensor in place and returned."""

from __future__ import annotations

import math
from typing import Any

from tracejit.errors import OpError
from tracejit.tensor.autograd import no_grad
from tracejit.tensor.random import Generator, rand, randn
from tracejit.tensor.tensor import Tensor, assign

__all__ = [
    "calculate_gain", "constant_", "dirac_", "eye_", "kaiming_normal_", "kaiming_uniform_", "normal_", "ones_",
    "orthogonal_", "sparse_", "trunc_normal_", "uniform_", "xavier_normal_", "xavier_uniform_", "zeros_",
]  # fmt: skip


def _written(tensor: Tensor, value: Any) -> Tensor:
    with no_grad():
        return assign(tensor, value)


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Uniform on [a, b)."""
    return _written(tensor, rand(*tensor.shape, generator=generator, dtype=tensor.dtype) * (b - a) + a)


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Normal."""
    return _written(tensor, randn(*tensor.shape, generator=generator, dtype=tensor.dtype) * std + mean)


def trunc_normal_(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: Generator | None = None,
) -> Tensor:
    """Normal, drawn again where outside [a, b]."""
    if not a < b:
        raise OpError(f"trunc_normal_ wants a < b, got {a} and {b}")
    with no_grad():
        out: Any = randn(*tensor.shape, generator=generator, dtype=tensor.dtype) * std + mean
        for _ in range(1000):
            outside: Any = (out < a) | (out > b)
            if not bool(outside.any()):
                break
            out = (randn(*tensor.shape, generator=generator, dtype=tensor.dtype) * std + mean).where(outside, out)  # type: ignore[attr-defined]
        return assign(tensor, out.clamp(a, b))


def constant_(tensor: Tensor, val: float) -> Tensor:
    """`val` everywhere."""
    return _written(tensor, val)


def ones_(tensor: Tensor) -> Tensor:
    """Ones."""
    return _written(tensor, 1.0)


def zeros_(tensor: Tensor) -> Tensor:
    """Zeros."""
    return _written(tensor, 0.0)


def eye_(tensor: Tensor) -> Tensor:
    """The identity matrix."""
    from tracejit.tensor.creation import eye

    if tensor.ndim != 2:
        raise ValueError(f"eye_ wants a matrix, got {tensor.type}")
    return _written(tensor, eye(*tensor.shape, dtype=tensor.dtype))


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """A convolution kernel that passes its input through."""
    import numpy as np

    from tracejit.tensor.creation import from_numpy

    if tensor.ndim not in (3, 4, 5) or tensor.shape[0] % groups:
        raise ValueError(
            f"dirac_ wants a convolution weight whose outputs divide into {groups} groups, got {tensor.type}"
        )
    out = np.zeros(tensor.shape, tensor.dtype.numpy)
    per_group = tensor.shape[0] // groups
    middle = tuple(d // 2 for d in tensor.shape[2:])
    for g in range(groups):
        for d in range(min(per_group, tensor.shape[1])):
            out[(g * per_group + d, d, *middle)] = 1
    return _written(tensor, from_numpy(out))


def _fans(tensor: Tensor) -> tuple[int, int]:
    """Inputs and outputs of one unit."""
    if tensor.ndim < 2:
        raise ValueError(f"fan in and fan out are of tensors with 2 dims or more, got {tensor.type}")
    field = math.prod(tensor.shape[2:])
    return tensor.shape[1] * field, tensor.shape[0] * field


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor by which `nonlinearity` shrinks a standard deviation, inverted."""
    gains = {"tanh": 5 / 3, "relu": math.sqrt(2), "selu": 3 / 4}
    linear = (
        "linear",
        "sigmoid",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_transpose1d",
        "conv_transpose2d",
        "conv_transpose3d",
    )
    if nonlinearity in linear:
        return 1.0
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else float(param)
        return math.sqrt(2 / (1 + slope**2))
    if nonlinearity not in gains:
        raise ValueError(f"no gain is known for {nonlinearity!r}")
    return gains[nonlinearity]


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Uniform with variance 2 gain^2 / (fan in + fan out)."""
    fan_in, fan_out = _fans(tensor)
    bound = gain * math.sqrt(6 / (fan_in + fan_out))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Normal with variance 2 gain^2 / (fan in + fan out)."""
    fan_in, fan_out = _fans(tensor)
    return normal_(tensor, 0.0, gain * math.sqrt(2 / (fan_in + fan_out)), generator)


def _fan(tensor: Tensor, mode: str) -> int:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"mode is {mode!r}, wanted 'fan_in' or 'fan_out'")
    return _fans(tensor)[0 if mode == "fan_in" else 1]


def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Uniform with standard deviation gain / sqrt(fan)."""
    if 0 in tensor.shape:
        return tensor
    bound = math.sqrt(3) * calculate_gain(nonlinearity, a) / math.sqrt(_fan(tensor, mode))
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Normal with standard deviation gain / sqrt(fan)."""
    if 0 in tensor.shape:
        return tensor
    return normal_(tensor, 0.0, calculate_gain(nonlinearity, a) / math.sqrt(_fan(tensor, mode)), generator)


def orthogonal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Rows (or columns, whichever are fewer) that are orthonormal, times gain."""
    import numpy as np

    from tracejit.tensor.creation import from_numpy

    rows, columns = tensor.shape[0], math.prod(tensor.shape[1:])
    flat = np.asarray(randn(max(rows, columns), min(rows, columns), generator=generator).detach())
    q, r = np.linalg.qr(flat.astype(np.float64))
    q = q * np.sign(np.diag(r))
    q = q.T if rows < columns else q
    return _written(tensor, from_numpy(np.ascontiguousarray(q.reshape(tensor.shape) * gain, dtype=tensor.dtype.numpy)))


def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, generator: Generator | None = None) -> Tensor:
    """Normal, with the fraction `sparsity` of each column set to zero."""
    if tensor.ndim != 2:
        raise ValueError(f"sparse_ wants a matrix, got {tensor.type}")
    zeros = math.ceil(sparsity * tensor.shape[0])
    order: Any = rand(*tensor.shape, generator=generator).argsort(0).argsort(0)  # type: ignore[attr-defined]
    values: Any = randn(*tensor.shape, generator=generator, dtype=tensor.dtype) * std
    return _written(tensor, values * (order >= zeros))
