"""Layers with PyTorch's names, arguments and state_dict keys. Start reading at `module.py`."""

from tracejit.nn import (
    activation,
    attention,
    container,
    conv,
    functional,
    init,
    linear,
    loss,
    norm,
    pooling,
    recurrent,
    utils,
)
from tracejit.nn.activation import *  # noqa: F403
from tracejit.nn.attention import *  # noqa: F403
from tracejit.nn.container import *  # noqa: F403
from tracejit.nn.conv import *  # noqa: F403
from tracejit.nn.linear import *  # noqa: F403
from tracejit.nn.loss import *  # noqa: F403
from tracejit.nn.module import Module
from tracejit.nn.norm import *  # noqa: F403
from tracejit.nn.parameter import Buffer, Parameter
from tracejit.nn.pooling import *  # noqa: F403
from tracejit.nn.recurrent import *  # noqa: F403

__all__ = ["Buffer", "Module", "Parameter", "functional", "init", "utils"]
__all__ += activation.__all__
__all__ += attention.__all__
__all__ += container.__all__
__all__ += conv.__all__
__all__ += linear.__all__
__all__ += loss.__all__
__all__ += norm.__all__
__all__ += pooling.__all__
__all__ += recurrent.__all__
