"""Random numbers from one counter-based generator (Philox4x32-10).

A `Generator` owns an i64[2] tensor: (seed, offset). Drawing is an op on that state followed by an in-place update of
it, so the same seed gives the same bits eager and compiled, on any number of threads, and a recording needs no
special case.
"""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np

from tracejit.errors import DTypeError, OpError
from tracejit.ir import dtype as dt
from tracejit.ir.node import cast
from tracejit.ir.op import Op
from tracejit.ir.symint import SymInt
from tracejit.ops.composed.whole import whole
from tracejit.tensor.autograd import no_grad
from tracejit.tensor.creation import check_dtype, default_dtype, shape_of
from tracejit.tensor.tensor import Tensor, apply, assign, wrap
from tracejit.trace import recorder as recording

__all__ = [
    "Generator", "bernoulli", "default_generator", "get_rng_state", "initial_seed", "manual_seed", "multinomial",
    "normal", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "randperm", "seed",
    "set_rng_state",
]  # fmt: skip


class Generator:
    """A stream of random numbers."""

    def __init__(self, device: Any = "cpu") -> None:
        self.state = wrap(np.zeros(2, np.int64))

    def manual_seed(self, seed: int) -> Generator:
        """Start the stream of `seed` from its beginning."""
        if (r := recording.active()) is not None:
            r.refuse("seeds the random number generator")
        self.state._array[:] = (np.int64(np.uint64(int(seed) % 2**64)), 0)
        self.state._version.n += 1
        return self

    def seed(self) -> int:
        """Start a stream from the system's entropy; returns its seed."""
        s = int.from_bytes(os.urandom(7), "little")
        self.manual_seed(s)
        return s

    def initial_seed(self) -> int:
        """The seed of the stream."""
        return int(np.uint64(self.state._array[0]))

    def get_state(self) -> Tensor:
        """A copy of (seed, offset)."""
        return self.state.clone()

    def set_state(self, state: Tensor) -> Generator:
        """Go on from a state of `get_state`."""
        assign(self.state, state)
        return self

    def bits(self, shape: tuple[int, ...]) -> Tensor:
        """Uniform i32 bits of `shape`; the stream moves on by ceil(n / 4) counters."""
        with no_grad():
            out = apply(Op.registry["random_bits"](shape), (self.state,))  # type: ignore[call-arg]
            self._move_on(shape)
        return out

    def _move_on(self, shape: tuple[int, ...]) -> None:
        with no_grad():
            step = -(-math.prod(shape) // 4)
            from tracejit.tensor.creation import _literal

            if type(step) is SymInt:
                assign(self.state, self.state + _literal(np.array([0, 1], np.int64)) * step)
            else:
                assign(self.state, self.state + _literal(np.array([0, step], np.int64)))

    def uniform(self, shape: tuple[int, ...], dtype: Any) -> Tensor:
        """Uniform on [0, 1): 24 random bits times 2**-24."""
        with no_grad():
            u = _uniform(self.state, shape)
            self._move_on(shape)
            return cast(u, dtype)


@whole
def _uniform(state: Any, shape: tuple[int, ...]) -> Any:
    bits: Any = Op.registry["random_bits"](shape)(state)  # type: ignore[call-arg]
    return cast(bits & 0xFFFFFF, dt.float32) * 2.0**-24


default_generator = Generator()
default_generator.seed()


def manual_seed(seed: int) -> Generator:
    """Seed the default generator."""
    return default_generator.manual_seed(seed)


def seed() -> int:
    """Seed the default generator from the system's entropy."""
    return default_generator.seed()


def initial_seed() -> int:
    """The seed of the default generator."""
    return default_generator.initial_seed()


def get_rng_state() -> Tensor:
    """State of the default generator."""
    return default_generator.get_state()


def set_rng_state(state: Tensor) -> None:
    """Set the state of the default generator."""
    default_generator.set_state(state)


def _float(dtype: Any) -> Any:
    d = check_dtype(dtype) if dtype is not None else default_dtype()
    if not d.is_floating_point:
        raise DTypeError(f"random floats need a floating point dtype, got {d}")
    return d


def rand(
    *size: Any, generator: Generator | None = None, dtype: Any = None, requires_grad: bool = False, **_: Any
) -> Tensor:
    """Uniform on [0, 1)."""
    out = (generator or default_generator).uniform(shape_of(size), _float(dtype))
    return out.requires_grad_() if requires_grad else out


def randn(
    *size: Any, generator: Generator | None = None, dtype: Any = None, requires_grad: bool = False, **_: Any
) -> Tensor:
    """Standard normal (Box and Muller 1958), computed in f64 so that eager and compiled agree to the last bit of
    f32."""
    shape = shape_of(size)
    n = math.prod(shape)
    g = generator or default_generator
    with no_grad():
        u = cast(g.bits((2, n)) & 0xFFFFFF, dt.float64)
        radius = (((u[0] + 1.0) * 2.0**-24).log() * -2.0).sqrt()  # type: ignore[attr-defined]
        out = radius * (u[1] * (2.0**-24 * 2.0 * math.pi)).cos()  # type: ignore[attr-defined]
        out = cast(out, _float(dtype)).reshape(shape)  # type: ignore[attr-defined]
    return out.requires_grad_() if requires_grad else out


def rand_like(input: Tensor, *, dtype: Any = None, **kw: Any) -> Tensor:
    """Uniform on [0, 1) with the shape of `input`."""
    return rand(*input.shape, dtype=dtype or input.dtype, **kw)


def randn_like(input: Tensor, *, dtype: Any = None, **kw: Any) -> Tensor:
    """Standard normal with the shape of `input`."""
    return randn(*input.shape, dtype=dtype or input.dtype, **kw)


def randint_like(input: Tensor, low: int, high: int | None = None, *, dtype: Any = None, **kw: Any) -> Tensor:
    """Uniform integers in [low, high) with the shape and dtype of `input`."""
    low, high = (0, low) if high is None else (low, high)
    return randint(low, high, tuple(input.shape), dtype=dtype or input.dtype, **kw)


def randint(low: int, high: Any = None, size: Any = None, *, generator: Generator | None = None, dtype: Any = dt.int64,
            **_: Any) -> Tensor:  # fmt: skip
    """Uniform integers in [low, high)."""
    if size is None:
        low, high, size = 0, low, high
    if high <= low:
        raise OpError(f"randint wants low < high, got {low} and {high}")
    span = int(high) - int(low)
    g = generator or default_generator
    with no_grad():
        bits = cast(g.bits((2, *shape_of((size,)))), dt.int64) & 0xFFFFFFFF
        wide = (bits[0] & 0x3FFFFFFF) * 2**32 + bits[
            1
        ]  # 62 bits: the bias of the modulus is below 2**-30 for 32-bit spans
        return cast(wide % span + int(low), check_dtype(dtype))


def check_deviation(name: str, std: Any) -> None:
    """Raise OpError for a negative standard deviation (a number or a tensor)."""
    if bool((std < 0).any()) if isinstance(std, Tensor) else std < 0:  # type: ignore[attr-defined]
        raise OpError(f"{name} wants a standard deviation of 0 or more, got {std}")


def normal(
    mean: Any = 0.0, std: Any = 1.0, size: Any = None, *, generator: Generator | None = None, **kw: Any
) -> Tensor:
    """Normal with the given mean and standard deviation (numbers or tensors)."""
    check_deviation("normal", std)
    if size is None:
        size = np.broadcast_shapes(*(v.shape for v in (mean, std) if isinstance(v, Tensor)))
        dtype = (mean if isinstance(mean, Tensor) else std).dtype
        return randn(*size, generator=generator, dtype=dtype) * std + mean
    shape = size
    return randn(*shape_of((tuple(shape),)), generator=generator, **kw) * std + mean


def bernoulli(input: Tensor, *, generator: Generator | None = None) -> Tensor:
    """1 with probability `input`, else 0."""
    u = (generator or default_generator).uniform(tuple(input.shape), input.dtype)
    return cast(u < input, input.dtype)


def randperm(n: int, *, generator: Generator | None = None, dtype: Any = dt.int64, **_: Any) -> Tensor:
    """A random order of 0 .. n-1."""
    with no_grad():
        bits = cast((generator or default_generator).bits((2, int(n))), dt.int64) & 0xFFFFFFFF
        key = (bits[0] & 0x3FFFFFFF) * 2**32 + bits[1]
        _, order = apply(Op.registry["sort"](0, False, True), (key,))  # type: ignore[call-arg]
        return cast(order, check_dtype(dtype))


def multinomial(
    input: Tensor, num_samples: int, replacement: bool = False, *, generator: Generator | None = None
) -> Tensor:
    """Indices drawn with probabilities proportional to the rows of `input`, [..., num_samples] i64."""
    if not input.dtype.is_floating_point or input.ndim not in (1, 2):
        raise OpError(f"multinomial wants floats of rank 1 or 2, got {input.type}")
    if num_samples < 1:
        raise OpError(f"multinomial wants at least one sample, got num_samples={num_samples}")
    p = cast(input, dt.float64)
    if bool(((p < 0) | ~p.isfinite() | (p.sum(-1, keepdim=True) <= 0)).any()):  # type: ignore[attr-defined]
        raise OpError("multinomial wants probabilities that are finite, not negative and not all zero")
    rows = p.shape[:-1]
    g = generator or default_generator
    with no_grad():
        if replacement:
            total = p.cumsum(-1)  # type: ignore[attr-defined]
            u = g.uniform((*rows, num_samples, 1), dt.float64) * total[..., -1:].unsqueeze(-2)  # type: ignore[attr-defined]
            return (total.unsqueeze(-2) <= u).sum(-1).clamp(max=p.shape[-1] - 1)  # type: ignore[attr-defined]
        if num_samples > p.shape[-1]:
            raise OpError(f"cannot draw {num_samples} of {p.shape[-1]} categories without replacement")
        e = -(g.uniform(tuple(p.shape), dt.float64) + 2.0**-25).log()  # type: ignore[attr-defined]
        _, order = (p / e).sort(dim=-1, descending=True)  # type: ignore[attr-defined]
        return order[..., :num_samples]
