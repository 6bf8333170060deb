"""Attention and dropout. Randomness comes in as an argument: `uniform`, numbers in [0, 1) drawn by the caller."""

from __future__ import annotations

import math
from typing import Any

from tracejit.errors import OpError
from tracejit.ir import dtype as dt
from tracejit.ir.node import Value, broadcast_shapes, expand_to
from tracejit.ops.composed.axes import rank, same_dtype
from tracejit.ops.composed.elementwise import eq, where
from tracejit.ops.composed.linear_algebra import matmul
from tracejit.ops.composed.movement import transpose
from tracejit.ops.composed.reduction import amax, softmax
from tracejit.ops.composed.selection import repeat_interleave
from tracejit.ops.composed.whole import whole
from tracejit.ops.source import Iota

__all__ = ["scaled_dot_product_attention"]


@whole
def dropout(input: Value, uniform: Value, p: float = 0.5) -> Any:
    """input / (1 - p) where uniform >= p, else 0; `uniform` is broadcast to the input."""
    if p == 1:
        return where(eq(uniform, uniform), 0, input)  # a constant, but one that has a gradient: 0
    kept = expand_to(uniform >= p, input.type.shape)
    return where(kept, input * (1 / (1 - p)), 0)


def attention_scores_shape(query: Value, key: Value) -> tuple[Any, ...]:
    """The shape of query @ key^T, which dropout's random numbers take."""
    batch = broadcast_shapes(query.type.shape[:-2], key.type.shape[:-2])
    return (*batch, query.type.shape[-2], key.type.shape[-2])


@whole
def scaled_dot_product_attention(
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Value | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    uniform: Value | None = None,
) -> Any:
    """softmax(query @ key^T * scale + mask) @ value; a bool mask says where to look, rows that see nothing give 0."""
    same_dtype("scaled_dot_product_attention", query, key, value)
    if is_causal and attn_mask is not None:
        raise OpError("scaled_dot_product_attention: is_causal and attn_mask exclude each other")
    if enable_gqa and rank(query) > 2:
        heads = query.type.shape[-3]
        key, value = (repeat_interleave(v, heads // v.type.shape[-3], -3) for v in (key, value))
    scores = matmul(query, transpose(key, -2, -1)) * (1 / math.sqrt(query.type.shape[-1]) if scale is None else scale)
    if is_causal:
        shape = scores.type.shape[-2:]
        row, column = (scores.emit(Iota(shape, i, dt.int64), ()) for i in (0, 1))
        scores = where(column <= row, scores, -math.inf)
    elif attn_mask is not None:
        masked = where(attn_mask, scores, -math.inf) if attn_mask.type.dtype is dt.bool_ else scores + attn_mask
        blind = eq(amax(masked, -1, keepdim=True), -math.inf)
        weights = where(blind, 0, softmax(where(blind, 0, masked), -1))
        return matmul(_dropped(weights, uniform, dropout_p), value)
    return matmul(_dropped(softmax(scores, -1), uniform, dropout_p), value)


def _dropped(weights: Any, uniform: Value | None, p: float) -> Any:
    if p == 0:
        return weights
    if uniform is None:
        raise OpError(f"scaled_dot_product_attention with dropout_p={p} wants `uniform` random numbers")
    return dropout(weights, uniform, p)
