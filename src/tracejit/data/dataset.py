"""A dataset gives one item for an index; an iterable dataset yields items in its own order."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

from tracejit.data.sampler import permutation
from tracejit.tensor import Tensor
from tracejit.tensor.random import Generator

__all__ = ["ConcatDataset", "Dataset", "IterableDataset", "Subset", "TensorDataset", "random_split"]

T_co = TypeVar("T_co", covariant=True)


class Dataset(Generic[T_co]):
    """`dataset[i]` is item i. Subclasses define `__getitem__`, and `__len__` where a sampler needs it."""

    def __getitem__(self, index: int) -> T_co:
        raise NotImplementedError(f"{type(self).__name__} has no __getitem__")

    def __add__(self, other: Dataset[Any]) -> ConcatDataset[Any]:
        return ConcatDataset([self, other])


class IterableDataset(Dataset[T_co]):
    """Yields items. In a worker process, `get_worker_info()` says which part is this worker's."""

    def __getitem__(self, index: int) -> T_co:
        raise TypeError(f"{type(self).__name__} is an IterableDataset: iterate over it, it has no item {index}")

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__")


class TensorDataset(Dataset[tuple[Tensor, ...]]):
    """Item i is the tuple of row i of every tensor."""

    def __init__(self, *tensors: Tensor) -> None:
        if len({t.shape[0] for t in tensors}) > 1:
            raise ValueError(f"tensors differ in their first extent: {', '.join(str(t.shape[0]) for t in tensors)}")
        self.tensors = tensors

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        tensors: tuple[Any, ...] = self.tensors  # Any: indexing is attached to Tensor when it is imported
        return tuple(t[index] for t in tensors)

    def __len__(self) -> int:
        return int(self.tensors[0].shape[0]) if self.tensors else 0


class Subset(Dataset[T_co]):
    """Item i is item `indices[i]` of `dataset`."""

    def __init__(self, dataset: Dataset[T_co], indices: Sequence[int]) -> None:
        self.dataset, self.indices = dataset, indices

    def __getitem__(self, index: int) -> T_co:
        return self.dataset[self.indices[index]]

    def __len__(self) -> int:
        return len(self.indices)


class ConcatDataset(Dataset[T_co]):
    """The items of several datasets, one after the other."""

    def __init__(self, datasets: Sequence[Dataset[T_co]]) -> None:
        if not datasets:
            raise ValueError("ConcatDataset of no datasets")
        if bad := [d for d in datasets if isinstance(d, IterableDataset)]:
            raise TypeError(
                f"ConcatDataset needs datasets with a length; {type(bad[0]).__name__} is an IterableDataset"
            )
        self.datasets = list(datasets)
        self.cumulative_sizes = list(itertools.accumulate(_length(d) for d in datasets))

    def __getitem__(self, index: int) -> T_co:
        n = len(self)
        if not -n <= index < n:
            raise IndexError(f"item {index} of a ConcatDataset of {n}")
        index %= n
        which = bisect.bisect_right(self.cumulative_sizes, index)
        return self.datasets[which][index - (self.cumulative_sizes[which - 1] if which else 0)]

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]


def random_split(
    dataset: Dataset[T_co], lengths: Sequence[int | float], generator: Generator | None = None
) -> list[Subset[T_co]]:
    """Disjoint random subsets of `lengths`: counts that sum to the dataset, or fractions that sum to 1."""
    n = _length(dataset)
    if math.isclose(sum(lengths), 1) and sum(lengths) <= 1 and not all(isinstance(x, int) for x in lengths):
        counts = [math.floor(n * x) for x in lengths]
        for i in range(n - sum(counts)):  # what rounding left over goes round robin
            counts[i % len(counts)] += 1
    else:
        counts = [int(x) for x in lengths]
    if sum(counts) != n:
        raise ValueError(f"lengths {list(lengths)} sum to {sum(lengths)}, the dataset has {n} items")
    order, ends = permutation(n, generator), list(itertools.accumulate(counts))
    return [Subset(dataset, order[end - k : end]) for k, end in zip(counts, ends, strict=True)]


def _length(dataset: Dataset[Any]) -> int:
    return len(dataset)  # type: ignore[arg-type]  # Dataset itself has no __len__: not every dataset knows
