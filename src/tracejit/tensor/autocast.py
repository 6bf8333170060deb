"""Automatic mixed precision: inside the block, products run in a narrow float and losses in float32.

A function is in one of three groups: `NARROW` casts its float arguments to the block's dtype, `WIDE` to float32, and
all others take what they are given. The groups are PyTorch's for the CPU; float64 is left alone, as there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

from tracejit.config import modes
from tracejit.ir import dtype as dt
from tracejit.ir.dtype import DType
from tracejit.ir.op import Op
from tracejit.tensor.tensor import Tensor, apply
from tracejit.trace import recorder as recording

__all__ = ["NARROW", "WIDE", "autocast", "autocasting", "get_autocast_dtype", "is_autocast_enabled"]

NARROW = frozenset(
    """
    conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d linear matmul mm bmm mv addmm addmv
    baddbmm addbmm bilinear chain_matmul tensordot einsum scaled_dot_product_attention
    """.split()
)
WIDE = frozenset(
    """
    binary_cross_entropy binary_cross_entropy_with_logits mse_loss l1_loss smooth_l1_loss huber_loss nll_loss
    cross_entropy kl_div cosine_embedding_loss hinge_embedding_loss poisson_nll_loss margin_ranking_loss
    soft_margin_loss triplet_margin_loss multi_margin_loss multilabel_soft_margin_loss prod quantile nanquantile cdist
    trace cholesky inverse pinverse
    """.split()
)
# What `modes.here.autocast` holds: a small number, so that a native entry can compare it.
_CODES: dict[DType, int] = {dt.bfloat16: 1, dt.float16: 2}
_DTYPES: dict[int, DType] = {code: d for d, code in _CODES.items()}


def autocasting(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn`, which casts its arguments as its group says where autocast is on."""
    narrow = fn.__name__ in NARROW
    if not narrow and fn.__name__ not in WIDE:
        return fn

    @wraps(fn)
    def cast_and_call(*args: Any, **kwargs: Any) -> Any:
        if code := modes.here.autocast:
            wanted = _DTYPES[code] if narrow else dt.float32
            args = tuple([_cast(x, wanted) for x in args])
            kwargs = {k: _cast(x, wanted) for k, x in kwargs.items()}
        return fn(*args, **kwargs)

    return cast_and_call


def _cast(x: Any, wanted: DType) -> Any:
    if isinstance(x, Tensor):
        d = x.dtype
        if d is wanted or not d.is_floating_point or d is dt.float64:
            return x
        return apply(Op.registry["cast"](wanted), (x,))  # type: ignore[call-arg]
    if type(x) is list or type(x) is tuple:
        return type(x)(_cast(v, wanted) for v in x)
    return x


def is_autocast_enabled(device_type: str = "cpu") -> bool:
    """Whether autocast is on in this thread."""
    return device_type == "cpu" and modes.here.autocast is not None


def get_autocast_dtype(device_type: str = "cpu") -> DType:
    """The narrow dtype in use, or the default one."""
    return _DTYPES[modes.here.autocast or 1]


class autocast:
    """A `with` block or decorator in which products run in `dtype` (bfloat16 or float16) and losses in float32.

    `enabled=False` switches a surrounding block off. Only the CPU has work to do here: for another device type the
    block warns and does nothing.
    """

    def __init__(
        self,
        device_type: str = "cpu",
        dtype: DType | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        wanted = dt.bfloat16 if dtype is None else dtype
        if wanted not in _CODES:
            raise ValueError(f"autocast runs in bfloat16 or float16, not in {wanted}")
        if device_type != "cpu":
            if enabled:
                warnings.warn(f"autocast has nothing to do on {device_type}: only the CPU is used", stacklevel=2)
            self.leaves = True
        else:
            self.leaves = False
        self.code = _CODES[wanted] if enabled else None
        self.before: list[int | None] = []

    def __enter__(self) -> autocast:
        self.before.append(_switch(None if self.leaves else self.code, keep=self.leaves))
        return self

    def __exit__(self, *exc: object) -> None:
        _switch(self.before.pop())

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        block = self

        @wraps(fn)
        def with_autocast(*args: Any, **kwargs: Any) -> Any:
            with block:
                return fn(*args, **kwargs)

        return with_autocast


def _switch(code: int | None, keep: bool = False) -> int | None:
    here = modes.here
    if (r := recording.active()) is not None:
        r.read_mode("autocast", here.autocast)
    before = here.autocast
    if not keep:
        here.autocast = code
    return before
