"""Everything PyTorch has that is not a primitive, as plain functions over the operators.

They take Nodes and Tensors alike, so each is written once for eager code, recordings, rules and gradients. Start
reading at `activation.py`; `axes.py` says what a `dim` means. `__all__` holds PyTorch's names; helpers stay in their
modules.
"""

from tracejit.ops.composed import (
    activation,
    attention,
    convolution,
    elementwise,
    linear_algebra,
    loss,
    movement,
    normalization,
    pooling,
    reduction,
    resampling,
    selection,
)
from tracejit.ops.composed.activation import *  # noqa: F403
from tracejit.ops.composed.attention import *  # noqa: F403
from tracejit.ops.composed.convolution import *  # noqa: F403
from tracejit.ops.composed.elementwise import *  # noqa: F403
from tracejit.ops.composed.linear_algebra import *  # noqa: F403
from tracejit.ops.composed.loss import *  # noqa: F403
from tracejit.ops.composed.movement import *  # noqa: F403
from tracejit.ops.composed.normalization import *  # noqa: F403
from tracejit.ops.composed.pooling import *  # noqa: F403
from tracejit.ops.composed.reduction import *  # noqa: F403
from tracejit.ops.composed.resampling import *  # noqa: F403
from tracejit.ops.composed.selection import *  # noqa: F403

__all__: list[str] = []
__all__ += activation.__all__
__all__ += attention.__all__
__all__ += convolution.__all__
__all__ += elementwise.__all__
__all__ += linear_algebra.__all__
__all__ += loss.__all__
__all__ += movement.__all__
__all__ += normalization.__all__
__all__ += pooling.__all__
__all__ += reduction.__all__
__all__ += resampling.__all__
__all__ += selection.__all__
