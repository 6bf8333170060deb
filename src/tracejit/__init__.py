"""tracejit: a tensor library with PyTorch's manners whose hot code runs as one native call.

import tracejit as tj

@tj.compile
def step(x, y):
    loss = F.cross_entropy(model(x), y)
    opt.zero_grad(); loss.backward(); opt.step()
    return loss
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tracejit import config as config
from tracejit import errors as errors
from tracejit.ir.dtype import DType as dtype
from tracejit.ir.dtype import (
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
)
from tracejit.tensor import random as random
from tracejit.tensor.autocast import autocast, get_autocast_dtype, is_autocast_enabled
from tracejit.tensor.autograd import enable_grad, inference_mode, is_grad_enabled, no_grad, set_grad_enabled
from tracejit.tensor.creation import (
    arange,
    as_tensor,
    asarray,
    empty,
    empty_like,
    eye,
    from_numpy,
    full,
    full_like,
    linspace,
    logspace,
    ones,
    ones_like,
    scalar_tensor,
    tensor,
    tril_indices,
    triu_indices,
    zeros,
    zeros_like,
)
from tracejit.tensor.functions import namespace as _namespace
from tracejit.tensor.jit import assume_constant, callback, compile, disable, eager, explain, pure
from tracejit.tensor.layout import Layout as layout
from tracejit.tensor.layout import MemoryFormat as memory_format
from tracejit.tensor.layout import channels_last, channels_last_3d, contiguous_format, preserve_format, strided
from tracejit.tensor.modes import (
    are_deterministic_algorithms_enabled,
    get_default_dtype,
    get_deterministic_debug_mode,
    get_num_threads,
    is_deterministic_algorithms_warn_only_enabled,
    set_default_dtype,
    set_deterministic_debug_mode,
    set_num_threads,
    use_deterministic_algorithms,
)
from tracejit.tensor.random import (
    Generator,
    bernoulli,
    default_generator,
    get_rng_state,
    initial_seed,
    manual_seed,
    multinomial,
    normal,
    rand,
    rand_like,
    randint,
    randint_like,
    randn,
    randn_like,
    randperm,
    seed,
    set_rng_state,
)
from tracejit.tensor.tensor import Device as device
from tracejit.tensor.tensor import Size, Tensor

__all__ = [
    "Generator", "Size", "Tensor", "arange", "are_deterministic_algorithms_enabled", "as_tensor", "asarray",
    "assume_constant", "autocast", "autograd", "bernoulli", "bfloat16", "bool_", "callback", "channels_last",
    "channels_last_3d", "compile", "config", "contiguous_format", "default_generator", "device", "disable",
    "dtype", "eager", "empty", "empty_like", "enable_grad", "errors", "explain", "eye", "float16", "float32",
    "float64", "from_numpy", "full", "full_like", "get_autocast_dtype", "get_default_dtype",
    "get_deterministic_debug_mode", "get_num_threads", "get_rng_state", "inference_mode", "initial_seed",
    "int16", "int32", "int64", "int8", "is_autocast_enabled", "is_deterministic_algorithms_warn_only_enabled",
    "is_grad_enabled", "layout", "linspace", "logspace", "manual_seed", "memory_format", "multinomial", "nn",
    "no_grad", "normal", "ones", "ones_like", "optim", "preserve_format", "pure", "rand", "rand_like",
    "randint", "randint_like", "randn", "randn_like", "random", "randperm", "scalar_tensor", "seed",
    "set_default_dtype", "set_deterministic_debug_mode", "set_grad_enabled", "set_num_threads", "set_rng_state",
    "strided", "tensor", "tril_indices", "triu_indices", "uint8", "use_deterministic_algorithms", "zeros",
    "zeros_like",
]  # fmt: skip

__version__ = "0.1.0"

float = float32
double = float64
half = float16
long = int64
int = int32
short = int16
bool = bool_

for _name, _function in _namespace().items():
    if _name == "trace" or _name not in globals():  # the package of that name is imported by its full path
        globals()[_name] = _function

if TYPE_CHECKING:
    from tracejit import amp as amp
    from tracejit import autograd as autograd
    from tracejit import func as func
    from tracejit import nn as nn
    from tracejit import optim as optim
    from tracejit import utils as utils

_LAZY = ("amp", "autograd", "data", "export", "func", "nn", "optim", "tools", "utils")  # imported when first named
_LAZY_FUNCTIONS = {
    "finfo": "tracejit.tensor.limits",
    "iinfo": "tracejit.tensor.limits",
    "load": "tracejit.export.checkpoint",
    "save": "tracejit.export.checkpoint",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return importlib.import_module(f"tracejit.{name}")
    if name in _LAZY_FUNCTIONS:
        return getattr(importlib.import_module(_LAZY_FUNCTIONS[name]), name)
    raise AttributeError(f"module 'tracejit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_LAZY_FUNCTIONS})
