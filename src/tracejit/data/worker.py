"""Worker processes: batches computed elsewhere, in the order the sampler gave.

A worker and its parent share one pipe. The parent sends (task, indices), the worker answers (task, batch). Arrays cross
it as raw bytes beside the pickle, so they are copied once. None instead of a task is the order to stop, and so is a
closed pipe: no worker outlives its parent. Each worker sends from a thread of its own: it never waits for the parent to
read before it takes its next task, and so neither side can wait for the other for ever.
"""

from __future__ import annotations

import faulthandler
import io
import multiprocessing as mp
import os
import pickle
import queue
import random
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np

from tracejit.records import dataclass
from tracejit.tensor import Tensor
from tracejit.tensor.creation import from_numpy
from tracejit.tensor.random import manual_seed

__all__ = ["FINISHED", "Finished", "Job", "Pool", "WorkerInfo", "get_worker_info"]

_GRACE = 2.0  # seconds a worker has to end by itself before it is terminated


@dataclass(frozen=True)
class WorkerInfo:
    """Which worker this process is: worker `id` of `num_workers`, seeded with `seed`, reading its copy of `dataset`."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


@dataclass(frozen=True)
class Job:
    """What every worker needs. `fetcher(dataset)` is a new epoch: a function from indices to a batch."""

    dataset: Any
    fetcher: Callable[[Any], Callable[[Any], Any]]
    init: Callable[[int], Any] | None
    timeout: float


class Finished:
    """What a fetch gives at the end of an iterable dataset."""


FINISHED = Finished()

_info: WorkerInfo | None = None  # set once, in a worker process


def get_worker_info() -> WorkerInfo | None:
    """In a worker process its WorkerInfo, elsewhere None."""
    return _info


# -- what crosses the pipe


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Tensor):
            return from_numpy, (np.ascontiguousarray(obj.detach().numpy()),)
        return NotImplemented


Packed = tuple[bytes, list[memoryview]]


def _pack(message: Any) -> Packed:
    text, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
    _Pickler(text, protocol=5, buffer_callback=buffers.append).dump(message)
    return text.getvalue(), [b.raw() for b in buffers]


def _send(pipe: Connection, packed: Packed) -> None:
    text, raws = packed
    pipe.send((text, [len(r) for r in raws]))
    for raw in raws:
        if len(raw):
            pipe.send_bytes(raw)


def _receive(pipe: Connection) -> Any:
    text, sizes = pipe.recv()
    buffers = [np.empty(size, np.uint8) for size in sizes]
    for b in buffers:
        if len(b):
            pipe.recv_bytes_into(b)
    return pickle.loads(text, buffers=buffers)  # from our own worker, over a pipe nobody else holds


@dataclass(frozen=True)
class _Failure:
    """An exception of a worker: itself where it can be pickled, and its traceback as text."""

    error: BaseException | None
    summary: str
    trace: str

    @classmethod
    def of(cls, error: BaseException) -> _Failure:
        trace = "".join(traceback.format_exception(error)).rstrip()
        summary = f"{type(error).__name__}: {error}"
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # an exception's own pickling may fail in any way; its text still arrives
            return cls(None, summary, trace)
        return cls(error, summary, trace)

    def reraise(self, worker: int) -> None:
        error = self.error if self.error is not None else RuntimeError(self.summary)
        error.add_note(f"Raised in DataLoader worker {worker}, where the traceback was:\n{self.trace}")
        raise error


# -- in the worker


def _main(
    job: Job, worker: int, workers: int, pipe: Connection, inherited: Sequence[Connection], stacks: Connection
) -> None:
    """The life of a worker: take a task, fetch, answer; end when told to or when the pipe is closed."""
    global _info
    for end in inherited:  # the parent's ends: while they are open here, the parent's death would not close the pipes
        end.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle: it closes the pipe
    out: queue.SimpleQueue[Any] = queue.SimpleQueue()
    sender = threading.Thread(target=_drain, args=(out, pipe), daemon=True)
    sender.start()
    fetch: Callable[[Any], Any] | None = None
    try:
        while (message := pipe.recv()) is not None:
            task, indices = message
            if isinstance(indices, _Epoch):
                fetch = None  # the old epoch's iterator is closed before the new one opens
                first = _info is None
                _info = _info or WorkerInfo(worker, workers, indices.seed + worker, job.dataset)
                answer, fetch = _begin(job, _info, first)
            else:
                answer = _answer(job, fetch, indices, stacks.fileno())
            out.put((task, answer))
    except (EOFError, OSError):
        return  # the parent closed the pipe, or is gone
    finally:
        out.put(None)


@dataclass(frozen=True)
class _Epoch:
    """The task that begins a pass over the dataset; the first one a worker gets also seeds it."""

    seed: int


def _begin(job: Job, info: WorkerInfo, first: bool) -> tuple[Any, Callable[[Any], Any] | None]:
    try:
        if first:
            random.seed(info.seed)
            np.random.seed(info.seed % 2**32)
            manual_seed(info.seed)
            if job.init is not None:
                job.init(info.id)
        return None, job.fetcher(job.dataset)
    except Exception as error:  # whatever the user's code raised is reported in the parent
        return _Failure.of(error), None


def _answer(job: Job, fetch: Callable[[Any], Any] | None, indices: Any, stacks: int) -> Any:
    if fetch is None:
        return FINISHED
    if job.timeout:  # the stack, should this batch take too long: written by a C thread even where Python is stuck
        faulthandler.dump_traceback_later(job.timeout * 0.9, file=stacks)
    try:
        return fetch(indices)
    except Exception as error:  # whatever the user's code raised is reported in the parent
        return _Failure.of(error)
    finally:
        if job.timeout:
            faulthandler.cancel_dump_traceback_later()


def _drain(out: queue.SimpleQueue[Any], pipe: Connection) -> None:
    with suppress(OSError):  # the parent has closed its end: nobody wants the rest
        while (message := out.get()) is not None:
            try:
                packed = _pack(message)
            except Exception as error:  # an item's own pickling may fail in any way
                packed = _pack((message[0], _Failure.of(error)))
            _send(pipe, packed)


# -- in the parent


@dataclass
class _Worker:
    id: int
    process: Any  # multiprocessing's Process classes differ by start method and share no public base
    pipe: Connection
    stacks: Connection


class Pool:
    """Workers that run `job`. `epoch` yields the batches of one pass in order; `close` ends the processes."""

    def __init__(self, job: Job, workers: int, context: Any = None) -> None:
        context = mp.get_context(context) if context is None or isinstance(context, str) else context
        self.job = job
        self.workers: list[_Worker] = []
        self._tasks = 0
        try:
            for i in range(workers):
                self._start(context, i, workers)
        except BaseException:
            self.close()
            raise

    def _start(self, context: Any, i: int, workers: int) -> None:
        here, there = context.Pipe()
        stacks, stacks_in = context.Pipe(duplex=False)
        forked = context.get_start_method() == "fork"  # other methods start a clean process, which inherits nothing
        inherited = [*(w.pipe for w in self.workers), here] if forked else []
        process = context.Process(
            target=_main,
            args=(self.job, i, workers, there, inherited, stacks_in),
            name=f"DataLoader worker {i}",
            daemon=True,
        )
        process.start()
        there.close()
        stacks_in.close()
        self.workers.append(_Worker(i, process, here, stacks))

    def epoch(self, batches: Iterator[Any], seed: int, prefetch: int) -> Iterator[Any]:
        """Every answer to `batches`, in their order, with up to `prefetch` tasks ahead for each worker."""
        start = self._tasks  # answers to older tasks are what an abandoned epoch left in the pipes
        waiting: list[tuple[int, _Worker, Any]] = []
        for w in self.workers:
            waiting.append(self._give(w, _Epoch(seed)))
        for _ in range(prefetch):
            for w in self.workers:
                self._give_next(w, batches, waiting)
        finished: set[int] = set()
        while waiting:
            task, w, indices = waiting.pop(0)
            answer = self._take(w, task, start, indices)
            if isinstance(answer, _Failure):
                answer.reraise(w.id)
            if isinstance(answer, Finished):
                finished.add(w.id)
            elif not isinstance(indices, _Epoch):
                if w.id not in finished:
                    self._give_next(w, batches, waiting)
                yield answer

    def _give_next(self, w: _Worker, batches: Iterator[Any], waiting: list[tuple[int, _Worker, Any]]) -> None:
        for indices in batches:
            waiting.append(self._give(w, indices))
            return

    def _give(self, w: _Worker, indices: Any) -> tuple[int, _Worker, Any]:
        task, self._tasks = self._tasks, self._tasks + 1
        try:
            w.pipe.send((task, indices))
        except OSError:
            raise RuntimeError(self._obituary(w)) from None
        return task, w, indices

    def _take(self, w: _Worker, task: int, start: int, indices: Any) -> Any:
        """The answer of `w` to `task`. Raises RuntimeError where the worker died or takes longer than the timeout."""
        deadline = time.monotonic() + self.job.timeout if self.job.timeout else None
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = wait([w.pipe, w.process.sentinel], left)
            if not ready:
                raise RuntimeError(self._stuck(w, indices))
            if w.pipe not in ready and not w.pipe.poll():
                raise RuntimeError(self._obituary(w))
            try:
                at, answer = _receive(w.pipe)
            except (EOFError, OSError):
                raise RuntimeError(self._obituary(w)) from None
            if at >= start:
                assert at == task, f"worker {w.id} answered task {at}, {task} is next"
                return answer

    def _obituary(self, w: _Worker) -> str:
        w.process.join(_GRACE)
        code = w.process.exitcode
        how = (
            f"was killed by {signal.Signals(-code).name}"
            if code is not None and code < 0
            else f"exited with code {code}"
        )
        return f"DataLoader worker {w.id} (pid {w.process.pid}) {how} before it delivered its batch"

    def _stuck(self, w: _Worker, indices: Any) -> str:
        what = (
            "starting"
            if isinstance(indices, _Epoch)
            else "its next items"
            if indices is None
            else f"items {_some(indices)}"
        )
        text = f"DataLoader worker {w.id} (pid {w.process.pid}) delivered nothing for {self.job.timeout:g} s"
        text += f"; it is at {what}"
        w.process.terminate()  # it would not end by itself
        if w.stacks.poll(0.1):
            text += "\n" + os.read(w.stacks.fileno(), 1 << 16).decode(errors="replace").rstrip()
        return text

    def close(self) -> None:
        """Ends all workers: by telling them, and those that are still busy after a moment by force. Idempotent."""
        for w in self.workers:
            with suppress(OSError):  # it has ended already
                w.pipe.send(None)
            w.pipe.close()
        end = time.monotonic() + _GRACE
        for w in self.workers:
            w.process.join(max(0.0, end - time.monotonic()))
        for w in self.workers:
            if w.process.is_alive():
                w.process.terminate()
                w.process.join(_GRACE)
            if w.process.is_alive():
                w.process.kill()
                w.process.join()
            w.stacks.close()
        self.workers.clear()


def _some(indices: Any) -> str:
    shown = indices if isinstance(indices, list) else [indices]  # pyright: ignore[reportUnknownVariableType]
    return f"{shown}" if len(shown) <= 8 else f"[{', '.join(map(str, shown[:8]))}, ...]"
