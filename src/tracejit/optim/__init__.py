"""Optimizers and learning rate schedules with PyTorch's names and arguments. Start reading at `optimizer.py`."""

from tracejit.optim import lr_scheduler
from tracejit.optim.adam import Adam, Adamax, AdamW
from tracejit.optim.optimizer import Optimizer
from tracejit.optim.sgd import SGD, Adagrad, RMSprop

__all__ = ["SGD", "Adagrad", "Adam", "AdamW", "Adamax", "Optimizer", "RMSprop", "lr_scheduler"]
