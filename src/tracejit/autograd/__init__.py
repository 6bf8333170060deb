"""Automatic differentiation under the names of torch.autograd.

The tape and its engine are in `tracejit.tensor`; what stands in this folder is written in terms of them and of user
functions, so that a recording follows it like any user code.
"""

from __future__ import annotations

from tracejit.autograd import functional as functional
from tracejit.autograd.anomaly import detect_anomaly, set_detect_anomaly
from tracejit.autograd.check import gradcheck, gradgradcheck
from tracejit.tensor.autograd import (
    Function,
    backward,
    enable_grad,
    grad,
    inference_mode,
    is_grad_enabled,
    no_grad,
    set_grad_enabled,
)

__all__ = [
    "Function", "backward", "detect_anomaly", "enable_grad", "functional", "grad", "gradcheck", "gradgradcheck",
    "inference_mode", "is_grad_enabled", "no_grad", "set_detect_anomaly", "set_grad_enabled",
]  # fmt: skip
