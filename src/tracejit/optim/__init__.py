"""Optimizers and learning rate schedules with PyTorch's names and arguments. Start reading at `optimizer.py`."""

from tracejit.optim import lr_scheduler
from tracejit.optim.adam import Adam, Adamax, AdamW
from tracejit.optim.adaptive import ASGD, Adadelta, NAdam, RAdam, Rprop
from tracejit.optim.optimizer import Optimizer
from tracejit.optim.sgd import SGD, Adagrad, RMSprop

__all__ = [
    "ASGD", "SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "Optimizer", "RAdam", "RMSprop", "Rprop",
    "lr_scheduler",
]  # fmt: skip
