"""DataLoader: a sampler's order, a dataset's items, a collate function's batches; in worker processes if asked.

With `num_workers=0` a batch is computed when it is asked for. With more, worker processes compute ahead; the batches
and their order are the same.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from tracejit.data.collate import default_collate, default_convert
from tracejit.data.dataset import Dataset, IterableDataset
from tracejit.data.sampler import BatchSampler, RandomSampler, SequentialSampler, draw_seed
from tracejit.data.worker import FINISHED, Job, Pool
from tracejit.tensor.random import Generator

__all__ = ["DataLoader"]

T_co = TypeVar("T_co", covariant=True)
Fetch = Callable[[Any], Any]


class DataLoader(Generic[T_co]):
    """Iterates over batches of `dataset`; the arguments mean what they mean in PyTorch.

    `num_workers` processes are seeded one by one and end when the loop does, also by `break` or Ctrl-C (with
    `persistent_workers`, when the loader does). An exception of a worker is raised here with the worker's traceback as
    a note. With `timeout` seconds, a worker that delivers nothing for so long is reported with the line where it is.
    `pin_memory` is accepted and does nothing: there is no memory to pin for the CPU.
    """

    def __init__(
        self,
        dataset: Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: Any = None,  # a start method or a context, which has no public type
        generator: Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
    ) -> None:
        self.dataset = dataset
        self.iterable = isinstance(dataset, IterableDataset)
        _check(self.iterable, batch_size, shuffle, sampler, batch_sampler, drop_last)
        if num_workers < 0 or timeout < 0:
            raise ValueError(f"num_workers is {num_workers} and timeout is {timeout}; neither may be negative")
        if num_workers == 0 and (prefetch_factor is not None or persistent_workers or timeout):
            raise ValueError("prefetch_factor, persistent_workers and timeout need num_workers > 0")
        self.batch_size = batch_size if batch_sampler is None else None
        self.drop_last = drop_last
        self.num_workers, self.timeout, self.pin_memory = num_workers, timeout, pin_memory
        self.worker_init_fn, self.multiprocessing_context = worker_init_fn, multiprocessing_context
        self.generator = generator
        self.prefetch_factor = 2 if prefetch_factor is None else prefetch_factor
        self.persistent_workers = persistent_workers
        self.sampler = sampler
        if sampler is None and not self.iterable:
            items: Any = dataset  # a sampler asks for the length when it is used, not now
            self.sampler = RandomSampler(items, generator=generator) if shuffle else SequentialSampler(items)
        self.batch_sampler = batch_sampler
        if batch_sampler is None and batch_size is not None and self.sampler is not None:
            self.batch_sampler = BatchSampler(self.sampler, batch_size, drop_last)
        batched = self.batch_sampler is not None or self.batch_size is not None
        self.collate_fn = collate_fn or (default_collate if batched else default_convert)
        self._pool: Pool | None = None

    def __len__(self) -> int:
        if not self.iterable:
            return _len(self.sampler if self.batch_sampler is None else self.batch_sampler)
        n = _len(self.dataset)
        if self.batch_size is None:
            return n
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        # Drawn here and not at the first batch, so that `iter` is the one place where the generator moves on.
        seed = draw_seed(self.generator) if self.num_workers else 0
        return self._parallel(seed) if self.num_workers else self._serial()

    def _fetcher(self) -> Callable[[Any], Fetch]:
        if self.iterable:
            return _IterableFetcher(self.collate_fn, self.batch_size, self.drop_last)
        return _MapFetcher(self.collate_fn, self.batch_sampler is not None)

    def _order(self) -> Iterator[Any]:
        """What is fetched, batch by batch: lists of indices, single indices, or None where the dataset decides."""
        if self.iterable:
            return itertools.repeat(None)
        order = self.sampler if self.batch_sampler is None else self.batch_sampler
        assert order is not None
        return iter(order)

    def _serial(self) -> Iterator[Any]:
        fetch = self._fetcher()(self.dataset)
        for indices in self._order():
            batch = fetch(indices)
            if batch is FINISHED:
                return
            yield batch

    def _parallel(self, seed: int) -> Iterator[Any]:
        pool, self._pool = self._pool, None  # taken: a second iterator at the same time gets workers of its own
        if pool is None:
            pool = Pool(self._job(), self.num_workers, self.multiprocessing_context)
            if self.persistent_workers:
                weakref.finalize(self, pool.close)
        healthy = False
        try:
            yield from pool.epoch(self._order(), seed, self.prefetch_factor)
            healthy = True
        except GeneratorExit:  # a `break`: the workers are well
            healthy = True
            raise
        finally:
            if self.persistent_workers and healthy and self._pool is None:
                self._pool = pool
            else:
                pool.close()

    def _job(self) -> Job:
        return Job(self.dataset, self._fetcher(), self.worker_init_fn, self.timeout)


class _MapFetcher:
    """Items by index. A class and not a closure, so that it can be sent to a worker that was not forked."""

    def __init__(self, collate: Callable[[Any], Any], batched: bool) -> None:
        self.collate, self.batched = collate, batched

    def __call__(self, dataset: Any) -> Fetch:
        return lambda at: self.collate([dataset[i] for i in at] if self.batched else dataset[at])


class _IterableFetcher:
    """The next items of one pass over an iterable dataset; FINISHED at its end."""

    def __init__(self, collate: Callable[[Any], Any], size: int | None, drop_last: bool) -> None:
        self.collate, self.size, self.drop_last = collate, size, drop_last

    def __call__(self, dataset: Any) -> Fetch:
        items = iter(dataset)

        def fetch(_: Any) -> Any:
            if self.size is None:
                for item in items:
                    return self.collate(item)
                return FINISHED
            batch = list(itertools.islice(items, self.size))
            if not batch or (self.drop_last and len(batch) < self.size):
                return FINISHED
            return self.collate(batch)

        return fetch


def _len(x: Any) -> int:
    return len(x)


def _check(
    iterable: bool, batch_size: int | None, shuffle: bool | None, sampler: Any, batch_sampler: Any, drop_last: bool
) -> None:
    """Raises ValueError for arguments that contradict each other."""
    if iterable and (shuffle or sampler is not None or batch_sampler is not None):
        raise ValueError("an IterableDataset sets its own order: shuffle, sampler and batch_sampler do not apply")
    if sampler is not None and shuffle:
        raise ValueError("sampler and shuffle both set the order: give one")
    if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
        raise ValueError("batch_sampler sets batch_size, shuffle, sampler and drop_last: give none of them beside it")
    if batch_sampler is None and batch_size is None and drop_last:
        raise ValueError("drop_last needs a batch_size")
    if batch_size is not None and batch_size <= 0:
        raise ValueError(f"batch_size is {batch_size}, it must be positive")
