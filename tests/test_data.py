"""Datasets, samplers, batches, worker processes, transforms, data files."""

from __future__ import annotations

import collections
import gzip
import multiprocessing as mp
import os
import random
import signal
import struct
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

import tracejit as tj
from tracejit.data import sources
from tracejit.errors import FormatError

data = tj.data


class Squares(data.Dataset):
    def __init__(self, n=23):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return np.full(3, i, np.float32), i * i


class Broken(Squares):
    def __getitem__(self, i):
        if i == 9:
            raise KeyError("nine is broken")
        return i


class Killed(Squares):
    def __getitem__(self, i):
        if i == 9:
            os.kill(os.getpid(), signal.SIGKILL)
        return i


class Stuck(Squares):
    def __getitem__(self, i):
        if i == 9:
            time.sleep(1000)
        return i


class Counting(data.IterableDataset):
    def __iter__(self):
        info = data.get_worker_info()
        yield from range(10) if info is None else range(info.id, 10, info.num_workers)


class Draws(Squares):
    def __getitem__(self, i):
        return [random.random(), float(np.random.random()), tj.rand(()).item()]


def batches(loader):
    return [x.tolist() for x, _ in loader]


def alive():
    return [p for p in mp.active_children() if p.name.startswith("DataLoader")]


# -- datasets and samplers


def test_tensor_dataset_gives_rows_of_every_tensor():
    dataset = data.TensorDataset(tj.arange(6).reshape(3, 2), tj.tensor([7, 8, 9]))
    x, y = dataset[1]
    assert (len(dataset), x.tolist(), y.item()) == (3, [2, 3], 8)


def test_tensor_dataset_refuses_unequal_lengths():
    with pytest.raises(ValueError, match="differ in their first extent: 3, 2"):
        data.TensorDataset(tj.zeros(3), tj.zeros(2))


def test_concat_dataset_counts_through_its_parts():
    dataset = data.ConcatDataset([[1, 2], [], [3, 4, 5]])
    assert [dataset[i] for i in range(5)] == [1, 2, 3, 4, 5]
    assert dataset[-1] == 5
    with pytest.raises(IndexError):
        dataset[5]


def test_random_split_is_disjoint_complete_and_seeded():
    parts = data.random_split(list(range(10)), [7, 3], tj.Generator().manual_seed(1))
    again = data.random_split(list(range(10)), [7, 3], tj.Generator().manual_seed(1))
    assert sorted(x for p in parts for x in (p[i] for i in range(len(p)))) == list(range(10))
    assert [p.indices for p in parts] == [p.indices for p in again]


def test_random_split_by_fractions_gives_every_item():
    assert [len(p) for p in data.random_split(range(10), [0.5, 0.25, 0.25])] == [6, 2, 2]


def test_random_split_refuses_wrong_lengths():
    with pytest.raises(ValueError, match=r"sum to 9, the dataset has 10"):
        data.random_split(range(10), [6, 3])


def test_random_sampler_is_a_permutation_and_follows_manual_seed():
    tj.manual_seed(3)
    first = list(data.RandomSampler(range(50)))
    second = list(data.RandomSampler(range(50)))
    tj.manual_seed(3)
    assert list(data.RandomSampler(range(50))) == first
    assert first != second
    assert sorted(first) == list(range(50))


def test_random_sampler_with_replacement_and_more_samples_than_items():
    assert len(list(data.RandomSampler(range(4), replacement=True, num_samples=9))) == 9
    assert sorted(data.RandomSampler(range(4), num_samples=8)) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_weighted_sampler_never_draws_weight_zero():
    assert set(data.WeightedRandomSampler([0.0, 1.0, 3.0], 50)) == {1, 2}


def test_batch_sampler_drops_or_keeps_the_rest():
    assert list(data.BatchSampler(range(5), 2, drop_last=False)) == [[0, 1], [2, 3], [4]]
    assert list(data.BatchSampler(range(5), 2, drop_last=True)) == [[0, 1], [2, 3]]
    assert len(data.BatchSampler(data.SequentialSampler(range(5)), 2, False)) == 3


# -- collate

Pair = collections.namedtuple("Pair", "a b")


def test_collate_keeps_containers_and_stacks_leaves():
    got = data.default_collate([{"p": Pair(np.ones(2), 1), "s": "x"}, {"p": Pair(np.zeros(2), 2), "s": "y"}])
    assert isinstance(got["p"], Pair)
    assert got["p"].a.tolist() == [[1, 1], [0, 0]]
    assert got["p"].b.tolist() == [1, 2]
    assert got["s"] == ["x", "y"]


def test_collate_dtypes_are_those_of_pytorch():
    ints, floats, bools = data.default_collate([(1, 1.5, True), (2, 2.5, False)])
    assert (ints.dtype, floats.dtype, bools.dtype) == (tj.int64, tj.float64, tj.bool)


def test_collate_names_the_shapes_that_differ():
    with pytest.raises(ValueError, match=r"\(2,\) and \(3,\)"):
        data.default_collate([tj.zeros(2), tj.zeros(3)])


def test_collate_refuses_what_it_does_not_know():
    with pytest.raises(TypeError, match="not object"):
        data.default_collate([object()])


# -- DataLoader in this process


def test_loader_batches_in_order():
    loader = data.DataLoader(Squares(5), batch_size=2)
    assert [y.tolist() for _, y in loader] == [[0, 1], [4, 9], [16]]
    assert len(loader) == 3
    assert len(data.DataLoader(Squares(5), batch_size=2, drop_last=True)) == 2


def test_loader_shuffles_by_its_generator():
    def order():
        return batches(data.DataLoader(Squares(), 4, shuffle=True, generator=tj.Generator().manual_seed(5)))

    assert order() == order()
    assert order() != batches(data.DataLoader(Squares(), 4))


def test_loader_without_batches_converts_items():
    items = list(data.DataLoader(Squares(2), batch_size=None))
    assert items[1][0].tolist() == [1, 1, 1]
    assert items[1][1] == 1


def test_loader_takes_any_collate_function_and_batch_sampler():
    assert list(data.DataLoader([3, 1, 2], batch_sampler=[[0, 2], [1]], collate_fn=sum)) == [5, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shuffle": True, "sampler": [0]}, "sampler and shuffle"),
        ({"batch_sampler": [[0]], "batch_size": 3}, "batch_sampler sets"),
        ({"batch_size": None, "drop_last": True}, "drop_last needs"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"num_workers": -1}, "negative"),
        ({"timeout": 3}, "need num_workers"),
    ],
)
def test_loader_refuses_contradictions(arguments, message):
    with pytest.raises(ValueError, match=message):
        data.DataLoader([1, 2], **arguments)


def test_iterable_dataset_sets_its_own_order():
    assert [x.tolist() for x in data.DataLoader(Counting(), 4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    with pytest.raises(ValueError, match="own order"):
        data.DataLoader(Counting(), shuffle=True)


# -- worker processes


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_change_nothing_but_who_computes(workers):
    assert batches(data.DataLoader(Squares(), 4, num_workers=workers)) == batches(data.DataLoader(Squares(), 4))
    assert not alive()


def test_workers_deliver_tensors_that_can_be_written():
    (x, _), *_ = data.DataLoader(Squares(), 4, num_workers=1)
    x[0] = 5
    assert x[0].tolist() == [5, 5, 5]


def test_workers_share_out_an_iterable_dataset():
    loader = data.DataLoader(Counting(), 3, num_workers=2)
    assert [x.tolist() for x in loader] == [[0, 2, 4], [1, 3, 5], [6, 8], [7, 9]]


def test_workers_are_seeded_each_and_reproducibly():
    def draws(seed):
        tj.manual_seed(seed)
        return list(data.DataLoader(Draws(8), batch_size=None, num_workers=2))

    assert draws(1) == draws(1) != draws(2)
    first, second, *_ = draws(1)
    assert all(a != b for a, b in zip(first, second, strict=True))


def test_worker_init_runs_in_each_worker(tmp_path):
    def init(worker):
        (tmp_path / str(worker)).touch()

    list(data.DataLoader(Squares(), 4, num_workers=2, worker_init_fn=init))
    assert sorted(os.listdir(tmp_path)) == ["0", "1"]


class Compiled(Squares):
    def __getitem__(self, i):
        return twice(tj.full((100, 100), float(i)))


@tj.compile
def twice(x):
    return (x * 2 + 1).sum(0)


def test_workers_run_compiled_code_of_a_parent_that_did_too():
    want = [Compiled()[i].tolist() for i in range(8)]
    assert twice.compiled_calls > 0
    assert [x.tolist() for x in data.DataLoader(Compiled(8), batch_size=None, num_workers=2)] == want


def test_exception_of_a_worker_arrives_with_its_traceback():
    with pytest.raises(KeyError, match="nine is broken") as caught:
        list(data.DataLoader(Broken(), 4, num_workers=2))
    assert "in DataLoader worker 0" in caught.value.__notes__[0]
    assert 'raise KeyError("nine is broken")' in caught.value.__notes__[0]
    assert not alive()


def test_exception_that_does_not_pickle_arrives_as_text():
    class Local(Exception):
        pass

    class Raises(Squares):
        def __getitem__(self, i):
            raise Local("only here")

    with pytest.raises(RuntimeError, match="Local: only here"):
        list(data.DataLoader(Raises(), num_workers=1))


def test_item_that_does_not_pickle_is_an_error_not_a_hang():
    with pytest.raises((TypeError, AttributeError, RuntimeError)):
        list(data.DataLoader([lambda: 1], collate_fn=lambda items: items[0], num_workers=1))


def test_killed_worker_is_reported():
    with pytest.raises(RuntimeError, match=r"DataLoader worker 0 \(pid \d+\) was killed by SIGKILL"):
        list(data.DataLoader(Killed(), 4, num_workers=2))
    assert not alive()


def test_stuck_worker_is_reported_with_its_line():
    with pytest.raises(RuntimeError, match=r"delivered nothing for 0.3 s; it is at items \[8, 9, 10, 11\]") as caught:
        list(data.DataLoader(Stuck(), 4, num_workers=2, timeout=0.3))
    assert "in __getitem__" in str(caught.value)
    assert not alive()


def test_break_ends_the_workers():
    for _ in data.DataLoader(Squares(1000), 1, num_workers=2):
        break
    assert not alive()


def test_persistent_workers_stay_for_the_next_epoch():
    loader = data.DataLoader(Squares(), 4, num_workers=2, persistent_workers=True)
    for _ in loader:
        break
    before = {p.pid for p in alive()}
    assert batches(loader) == batches(data.DataLoader(Squares(), 4))
    assert {p.pid for p in alive()} == before
    assert len(before) == 2
    del loader
    assert not alive()


def test_two_iterators_of_one_loader_do_not_meet():
    loader = data.DataLoader(Squares(8), 2, num_workers=1, persistent_workers=True)
    assert [(a[1].tolist(), b[1].tolist()) for a, b in zip(loader, loader, strict=True)][1] == ([4, 9], [4, 9])


def test_workers_that_are_not_forked():
    loader = data.DataLoader(Squares(6), 3, num_workers=1, multiprocessing_context="spawn")
    assert batches(loader) == batches(data.DataLoader(Squares(6), 3))


SCRIPT = """
    import sys, time
    import tracejit as tj

    class Slow(tj.data.Dataset):
        def __len__(self): return 1000
        def __getitem__(self, i): time.sleep(0.01); return i

    if __name__ == "__main__":
        for _ in tj.data.DataLoader(Slow(), num_workers=2):
            import multiprocessing
            print(*(p.pid for p in multiprocessing.active_children()), flush=True)
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_no_worker_outlives_its_parent(sent, tmp_path):
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    parent = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    workers = [int(pid) for pid in parent.stdout.readline().split()]
    parent.send_signal(sent)
    _, errors = parent.communicate(timeout=20)  # returns when the last process that holds the pipe has ended
    assert len(workers) == 2
    assert ("KeyboardInterrupt" in errors) == (sent == signal.SIGINT)
    assert errors.count("Traceback") <= 1


# -- files


def test_digits_are_the_uci_set():
    (images, labels), (test_images, test_labels) = data.digits(), data.digits(train=False)
    assert images.shape == (1437, 8, 8)
    assert test_images.shape == (360, 8, 8)
    assert images.dtype == np.uint8
    assert max(images.max(), test_images.max()) == 16
    counts = np.bincount(np.concatenate([labels, test_labels]), minlength=10)
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def write_idx(path, array, cut=None):
    content = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    content = content[:cut]
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def test_idx_reads_plain_and_gzipped_files(tmp_path):
    images = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    write_idx(tmp_path / "t10k-images-idx3-ubyte.gz", images)
    write_idx(tmp_path / "t10k-labels-idx1-ubyte", np.array([3, 1], np.uint8))
    got, labels = data.idx(tmp_path, train=False)
    assert np.array_equal(got, images)
    assert labels.tolist() == [3, 1]
    with pytest.raises(FileNotFoundError, match="train-images"):
        data.idx(tmp_path)


def test_idx_refuses_what_is_cut_or_something_else(tmp_path):
    write_idx(tmp_path / "cut", np.zeros((2, 3, 4), np.uint8), cut=-1)
    (tmp_path / "other").write_bytes(b"PK\3\4")
    (tmp_path / "bad.gz").write_bytes(gzip.compress(b"x" * 100)[:-10])
    with pytest.raises(FormatError, match=r"39 bytes where the header asks for 40 \(shape \[2, 3, 4\]\)"):
        sources.read_idx(tmp_path / "cut")
    with pytest.raises(FormatError, match="begins with 50 4b 03 04"):
        sources.read_idx(tmp_path / "other")
    with pytest.raises(FormatError, match="gzip"):
        sources.read_idx(tmp_path / "bad.gz")


# -- transforms


def test_to_tensor_scales_bytes_and_puts_channels_first():
    assert data.transforms.ToTensor()(np.full((2, 3), 255, np.uint8)).tolist() == [[[1.0] * 3] * 2]
    assert tuple(data.transforms.ToTensor()(np.zeros((4, 5, 3), np.uint8)).shape) == (3, 4, 5)


def test_compose_and_normalize():
    chain = data.transforms.Compose(
        [data.transforms.Lambda(lambda x: x + 1), data.transforms.Normalize([1, 2], [2, 4])]
    )
    assert chain(tj.ones(2, 1, 1)).flatten().tolist() == [0.5, 0.0]


def test_random_crop_takes_windows_and_follows_manual_seed():
    crop, x = data.transforms.RandomCrop(2, padding=1), tj.arange(16).reshape(1, 4, 4)
    tj.manual_seed(0)
    first = [crop(x).tolist() for _ in range(5)]
    tj.manual_seed(0)
    assert [crop(x).tolist() for _ in range(5)] == first
    with pytest.raises(ValueError, match="no window of 9 x 9 in 4 x 4"):
        data.transforms.RandomCrop(9)(x)


def test_random_flip_mirrors_or_not():
    x = tj.tensor([[[1, 2]]])
    assert data.transforms.RandomHorizontalFlip(1.0)(x).tolist() == [[[2, 1]]]
    assert data.transforms.RandomHorizontalFlip(0.0)(x).tolist() == [[[1, 2]]]
