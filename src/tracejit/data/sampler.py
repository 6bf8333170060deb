"""A sampler yields indices, a batch sampler lists of them; the order of a training run is decided here alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Generic, TypeVar

import numpy as np

from tracejit.tensor import Tensor
from tracejit.tensor.random import Generator, randint

__all__ = [
    "BatchSampler",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "SubsetRandomSampler",
    "WeightedRandomSampler",
    "draw_seed",
    "permutation",
]

T_co = TypeVar("T_co", covariant=True)


def draw_seed(generator: Generator | None = None) -> int:
    """A seed from `generator` (None: the default one), so that `manual_seed` fixes every order drawn after it."""
    return int(randint(0, 2**31 - 1, (), generator=generator).item())


def permutation(n: int, generator: Generator | None = None) -> list[int]:
    """0 .. n-1 in random order."""
    return np.random.Generator(np.random.Philox(draw_seed(generator))).permutation(n).tolist()


class Sampler(Generic[T_co]):
    """Base of all samplers: `__iter__` yields indices, `__len__` says how many."""

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__")


class SequentialSampler(Sampler[int]):
    """0, 1, ... len(source) - 1."""

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(Sampler[int]):
    """Every index once in random order, or `num_samples` of them; with `replacement` each draw is independent."""

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Generator | None = None,
    ) -> None:
        if num_samples is not None and num_samples <= 0:
            raise ValueError(f"num_samples is {num_samples}, it must be positive")
        self.data_source, self.replacement, self.generator = data_source, replacement, generator
        self._num_samples = num_samples

    @property
    def num_samples(self) -> int:
        """How many indices one pass yields."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self) -> Iterator[int]:
        n = len(self.data_source)
        if self.replacement:
            draws = np.random.Generator(np.random.Philox(draw_seed(self.generator)))
            yield from draws.integers(0, n, self.num_samples).tolist()
            return
        left = self.num_samples
        while left > 0:
            yield from permutation(n, self.generator)[:left]
            left -= n

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(Sampler[int]):
    """The given indices in random order."""

    def __init__(self, indices: Sequence[int], generator: Generator | None = None) -> None:
        self.indices, self.generator = indices, generator

    def __iter__(self) -> Iterator[int]:
        return (self.indices[i] for i in permutation(len(self.indices), self.generator))

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(Sampler[int]):
    """`num_samples` indices, i with a probability proportional to `weights[i]`."""

    def __init__(
        self,
        weights: Sequence[float] | Tensor,
        num_samples: int,
        replacement: bool = True,
        generator: Generator | None = None,
    ) -> None:
        values = weights.numpy() if isinstance(weights, Tensor) else weights
        self.weights = np.asarray(values, np.float64)
        if self.weights.ndim != 1 or not self.weights.size or (self.weights < 0).any() or not self.weights.sum() > 0:
            raise ValueError("weights must be a sequence of non-negative numbers with a positive sum")
        if not replacement and num_samples > np.count_nonzero(self.weights):
            raise ValueError(f"cannot draw {num_samples} different indices: fewer have a positive weight")
        self.num_samples, self.replacement, self.generator = num_samples, replacement, generator

    def __iter__(self) -> Iterator[int]:
        draws = np.random.Generator(np.random.Philox(draw_seed(self.generator)))
        p = self.weights / self.weights.sum()
        return iter(draws.choice(len(p), self.num_samples, self.replacement, p).tolist())

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler[list[int]]):
    """Lists of `batch_size` indices from `sampler`; the last one may be shorter unless `drop_last`."""

    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool) -> None:
        if isinstance(batch_size, bool) or batch_size <= 0:
            raise ValueError(f"batch_size is {batch_size!r}, it must be a positive integer")
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    def __iter__(self) -> Iterator[list[int]]:
        indices = iter(self.sampler)
        while batch := list(itertools.islice(indices, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def __len__(self) -> int:
        n = len(self.sampler)  # type: ignore[arg-type]  # a sampler without a length has no number of batches
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)
