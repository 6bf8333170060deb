"""Data for training: datasets, samplers, batches, worker processes, transforms. `DataLoader` is where to start.

for images, labels in tj.data.DataLoader(dataset, batch_size=64, shuffle=True, num_workers=2): ...
"""

from tracejit.data import transforms
from tracejit.data.collate import default_collate, default_convert
from tracejit.data.dataset import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset, random_split
from tracejit.data.loader import DataLoader
from tracejit.data.sampler import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from tracejit.data.sources import digits, idx
from tracejit.data.worker import WorkerInfo, get_worker_info

__all__ = [
    "BatchSampler",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "IterableDataset",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "WeightedRandomSampler",
    "WorkerInfo",
    "default_collate",
    "default_convert",
    "digits",
    "get_worker_info",
    "idx",
    "random_split",
    "transforms",
]
