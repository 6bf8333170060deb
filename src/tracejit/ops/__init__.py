"""The primitives, one class each. Importing this package registers them all.

    ops.exp(x)   ops.reshape(x, shape)   ops.reduce_sum(x, axes)   ops.select(c, a, b)   ops.const(like, 1, dtype)

The functions are thin: they build the op and emit it in the domain of x, Nodes and Tensors alike.
"""

from tracejit.ops.contract import *  # noqa: F403
from tracejit.ops.control import *  # noqa: F403
from tracejit.ops.conv import *  # noqa: F403
from tracejit.ops.copy import *  # noqa: F403
from tracejit.ops.dynamic import *  # noqa: F403
from tracejit.ops.indexing import *  # noqa: F403
from tracejit.ops.movement import *  # noqa: F403
from tracejit.ops.order import *  # noqa: F403
from tracejit.ops.pointwise import *  # noqa: F403
from tracejit.ops.reduce import *  # noqa: F403
from tracejit.ops.source import *  # noqa: F403
