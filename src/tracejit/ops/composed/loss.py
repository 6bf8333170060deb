"""Losses. `reduction` is "mean", "sum" or "none"; targets take no part in the gradient unless they ask for one.

Class losses pick the target's entry with a compare and a select, not with a gather: forward and gradient then fuse with
the softmax around them, and nothing is scattered.
"""

from __future__ import annotations

import math
from typing import Any

from tracejit.errors import DTypeError, OpError
from tracejit.ir import dtype as dt
from tracejit.ir.dim import same
from tracejit.ir.node import Value, cast, expand_to
from tracejit.ops.composed import reduction as reduce
from tracejit.ops.composed.activation import logsigmoid, softplus
from tracejit.ops.composed.axes import axis_of, rank, require, same_dtype
from tracejit.ops.composed.elementwise import abs, clamp, eq, exp, log, ne, where, xlogy
from tracejit.ops.composed.linear_algebra import cosine_similarity, pairwise_distance
from tracejit.ops.composed.movement import reshape, unsqueeze
from tracejit.ops.composed.whole import whole
from tracejit.ops.control import StopGradient
from tracejit.ops.indexing import Take
from tracejit.ops.movement import Broadcast
from tracejit.ops.reduce import ReduceSum
from tracejit.ops.source import Iota

__all__ = [
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cosine_embedding_loss", "cross_entropy",
    "gaussian_nll_loss", "hinge_embedding_loss", "huber_loss", "kl_div", "l1_loss", "margin_ranking_loss", "mse_loss",
    "multi_margin_loss", "multilabel_soft_margin_loss", "nll_loss", "poisson_nll_loss", "smooth_l1_loss",
    "soft_margin_loss", "triplet_margin_loss",
]  # fmt: skip


def _reduced(loss: Any, reduction: str) -> Any:
    if reduction == "mean":
        return reduce.mean(loss)
    if reduction == "sum":
        return reduce.sum(loss)
    if reduction != "none":
        raise OpError(f"reduction is {reduction!r}, wanted 'mean', 'sum' or 'none'")
    return loss


def _float_input(name: str, x: Value) -> None:
    if not x.type.dtype.is_floating_point:
        raise DTypeError(f"{name} of {x.type}: wanted a float type")


# --- of numbers ----------------------------------------------------------------------------------------------------


def _weighted(loss: Any, weight: Value | None, reduction: str) -> Any:
    """The loss times its weights; the mean is over the sum of the weights."""
    if weight is None:
        return _reduced(loss, reduction)
    loss = loss * weight
    if reduction == "mean":
        return reduce.sum(loss) / reduce.sum(expand_to(weight, loss.type.shape))
    return _reduced(loss, reduction)


@whole
def mse_loss(input: Value, target: Value, reduction: str = "mean", weight: Value | None = None) -> Any:
    """(input - target)^2."""
    d = input - target
    return _weighted(d * d, weight, reduction)


@whole
def l1_loss(input: Value, target: Value, reduction: str = "mean", weight: Value | None = None) -> Any:
    """|input - target|."""
    return _weighted(abs(input - target), weight, reduction)


@whole
def smooth_l1_loss(input: Value, target: Value, reduction: str = "mean", beta: float = 1.0) -> Any:
    """d^2 / (2 beta) below beta, |d| - beta / 2 above."""
    if beta < 0:
        raise OpError(f"smooth_l1_loss beta is {beta}, wanted 0 or more")
    if beta == 0:
        return l1_loss(input, target, reduction)
    d = abs(input - target)
    return _reduced(where(d < beta, d * d * (0.5 / beta), d - 0.5 * beta), reduction)


@whole
def huber_loss(
    input: Value, target: Value, reduction: str = "mean", delta: float = 1.0, weight: Value | None = None
) -> Any:
    """d^2 / 2 up to delta, delta * (|d| - delta / 2) above."""
    _float_input("huber_loss", input)
    if delta <= 0:
        raise OpError(f"huber_loss delta is {delta}, wanted more than 0")
    d = abs(input - target)
    return _weighted(where(d <= delta, d * d * 0.5, (d - 0.5 * delta) * delta), weight, reduction)


def binary_cross_entropy(input: Value, target: Value, weight: Value | None = None, reduction: str = "mean") -> Any:
    """-(t log p + (1 - t) log(1 - p)); logarithms are limited to -100."""
    same_dtype("binary_cross_entropy", input, target)
    if len(input.type.shape) != rank(target) or not all(map(same, input.type.shape, target.type.shape)):
        raise OpError(f"binary_cross_entropy of {input.type} and {target.type}: shapes differ")
    require(
        (input >= 0) & (input <= 1), f"binary_cross_entropy of {input.type}: wanted probabilities in 0 .. 1", OpError
    )
    loss = (target - 1) * clamp(log(1 - input), min=-100.0) - target * clamp(log(input), min=-100.0)
    return _reduced(loss if weight is None else loss * weight, reduction)


@whole
def binary_cross_entropy_with_logits(
    input: Value, target: Value, weight: Value | None = None, reduction: str = "mean", pos_weight: Value | None = None
) -> Any:
    """binary_cross_entropy of sigmoid(input), without overflow."""
    same_dtype("binary_cross_entropy_with_logits", input, target)
    if len(input.type.shape) != rank(target) or not all(map(same, input.type.shape, target.type.shape)):
        raise OpError(f"binary_cross_entropy_with_logits of {input.type} and {target.type}: shapes differ")
    if pos_weight is None:
        loss = (1 - target) * input - logsigmoid(input)
    else:
        loss = (1 - target) * input - ((pos_weight - 1) * target + 1) * logsigmoid(input)
    return _reduced(loss if weight is None else loss * weight, reduction)


@whole
def kl_div(input: Value, target: Value, reduction: str = "mean", log_target: bool = False) -> Any:
    """target * (log target - input); "batchmean" divides the sum by the batch."""
    if not (input.type.dtype.is_floating_point and target.type.dtype.is_floating_point):
        raise DTypeError(f"kl_div of {input.type} and {target.type}: wanted float types")
    loss = exp(target) * (target - input) if log_target else xlogy(target, target) - target * input
    if reduction == "batchmean":
        return reduce.sum(loss) / (input.type.shape[0] if rank(input) else 1)
    return _reduced(loss, reduction)


def poisson_nll_loss(
    input: Value, target: Value, log_input: bool = True, full: bool = False, eps: float = 1e-8, reduction: str = "mean"
) -> Any:
    """e^input - target * input (or input - target log input), with Stirling's term where `full`."""
    loss = exp(input) - target * input if log_input else input - target * log(input + eps)
    if full:
        big = target > 1
        t = where(big, target, 1.0)
        loss = loss + where(big, t * log(t) - t + 0.5 * log(2 * math.pi * t), 0.0)
    return _reduced(loss, reduction)


def gaussian_nll_loss(
    input: Value, target: Value, var: Value | float, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Any:
    """(log var + (input - target)^2 / var) / 2."""
    spread: Any = var
    if isinstance(var, Value):
        require(var >= 0, f"gaussian_nll_loss: the variance {var.type} has negative entries", OpError)
        if rank(var) == rank(input) - 1:
            spread = unsqueeze(var, -1)
        spread = spread + StopGradient()(where(spread < eps, eps - spread, 0))  # limited in value, not in gradient
    d = input - target
    loss = (log(spread) + d * d / spread) * 0.5
    return _reduced(loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction)


def soft_margin_loss(input: Value, target: Value, reduction: str = "mean") -> Any:
    """log(1 + e^(-target * input))."""
    _float_input("soft_margin_loss", input)
    return _reduced(softplus(-target * input, threshold=math.inf), reduction)


def hinge_embedding_loss(input: Value, target: Value, margin: float = 1.0, reduction: str = "mean") -> Any:
    """input where the target is 1, max(0, margin - input) where it is -1."""
    gap = margin - input
    return _reduced(where(ne(target, 1), where(gap <= 0, 0, gap), 0) + where(ne(target, -1), input, 0), reduction)


def margin_ranking_loss(
    input1: Value, input2: Value, target: Value, margin: float = 0.0, reduction: str = "mean"
) -> Any:
    """max(0, -target * (input1 - input2) + margin)."""
    if not rank(input1) == rank(input2) == rank(target):
        raise OpError(f"margin_ranking_loss of {input1.type}, {input2.type} and {target.type}: ranks differ")
    gap = -target * (input1 - input2) + margin
    return _reduced(where(gap <= 0, 0, gap), reduction)


def cosine_embedding_loss(
    input1: Value, input2: Value, target: Value, margin: float = 0.0, reduction: str = "mean"
) -> Any:
    """1 - cos where the target is 1, max(0, cos - margin) where it is -1."""
    if rank(target) > 1 or not rank(input1) == rank(input2) == rank(target) + 1:
        raise OpError(
            f"cosine_embedding_loss of {input1.type} and {input2.type} with {target.type}: wanted one target a row"
        )
    cos = cosine_similarity(input1, input2, rank(input1) - 1)
    gap = cos - margin
    return _reduced(where(eq(target, 1), 1 - cos, 0) + where(eq(target, -1), where(gap <= 0, 0, gap), 0), reduction)


def triplet_margin_loss(
    anchor: Value,
    positive: Value,
    negative: Value,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Any:
    """max(0, |anchor - positive| - |anchor - negative| + margin)."""
    if not rank(anchor) == rank(positive) == rank(negative):
        raise OpError(f"triplet_margin_loss of {anchor.type}, {positive.type} and {negative.type}: ranks differ")
    near, far = pairwise_distance(anchor, positive, p, eps), pairwise_distance(anchor, negative, p, eps)
    if swap:
        other = pairwise_distance(positive, negative, p, eps)
        far = where(other < far, other, far)
    gap = near - far + margin
    return _reduced(where(gap <= 0, 0, gap), reduction)


# --- of classes ----------------------------------------------------------------------------------------------------


def _classes(x: Value, target: Value, name: str, axis: int, ignore_index: int) -> tuple[Any, Any]:
    """bool masks: the target's class, in x's shape; and which positions count, in target's shape."""
    want = tuple(d for i, d in enumerate(x.type.shape) if i != axis)
    if rank(target) != len(want) or not all(map(same, target.type.shape, want)):
        raise OpError(f"{name} of {x.type} with target {target.type}: the target must be {list(want)}")
    if target.type.dtype.kind not in "iu":
        raise DTypeError(f"{name} wants integer targets of shape {list(want)}, got {target.type}")
    at = cast(target, dt.int64)
    counts = ne(at, ignore_index)
    n = x.type.shape[axis]
    require(~counts | ((at >= 0) & (at < n)), _outside(name, n, ignore_index))
    kept = tuple(i for i in range(rank(x)) if i != axis)
    number = x.emit(Iota(x.type.shape, axis, dt.int64), ())
    return eq(number, Broadcast(x.type.shape, kept)(at)), counts


def _outside(name: str, classes: Any, ignore_index: int) -> str:
    return f"{name}: a target lies outside 0 .. {classes - 1} and is not ignore_index={ignore_index}"


@whole
def _are_classes(target: Value, classes: int, ignore_index: int) -> Any:
    """Whether each target counts, and is a class if it does."""
    at = cast(target, dt.int64)
    return reduce.all(eq(at, ignore_index) | ((at >= 0) & (at < classes)))


def _check_classes(
    input: Value, target: Value, weight: Value | None = None, ignore_index: int = -100, *_: Any, **__: Any
) -> None:
    """What `cross_entropy` requires of its targets."""
    if target.type.dtype.kind in "iu":
        classes = input.type.shape[0 if rank(input) == 1 else 1]
        require(_are_classes(target, classes, ignore_index), _outside("cross_entropy", classes, ignore_index))


def _picked(x: Any, mask: Any, axis: int) -> Any:
    """The one entry along `axis` where the mask holds, 0 where it never does."""
    return ReduceSum((axis,))(where(mask, x, 0))


def _check_weights(weight: Value | None, classes: Any) -> None:
    if weight is not None and (rank(weight) != 1 or not same(weight.type.shape[0], classes)):
        raise OpError(f"class weights {weight.type} do not fit {classes} classes")


def _target_weights(weight: Value, target: Value, counts: Any) -> Any:
    """weight[target], 0 where the position does not count."""
    at = where(counts, cast(target, dt.int64), 0)
    return where(counts, Take(0)(weight, at), 0)


def nll_loss(
    input: Value, target: Value, weight: Value | None = None, ignore_index: int = -100, reduction: str = "mean"
) -> Any:
    """-input[target] of log-probabilities; classes stand on axis 1, or 0 for one sample."""
    if not rank(input) >= 1:
        raise OpError(f"nll_loss wants [classes] or [batch, classes, ...], got {input.type}")
    axis = 0 if rank(input) == 1 else 1
    _float_input("nll_loss", input)
    _check_weights(weight, input.type.shape[axis])
    same_dtype("nll_loss", input, *([] if weight is None else [weight]))
    mask, counts = _classes(input, target, "nll_loss", axis, ignore_index)
    picked = -_picked(input, mask, axis)
    return _class_mean(picked, input, target, weight, counts, reduction)


def _class_mean(loss: Any, x: Value, target: Value, weight: Value | None, counts: Any, reduction: str) -> Any:
    """The losses where they count, times the class weights; the mean is over the weights."""
    weights = cast(counts, x.type.dtype) if weight is None else _target_weights(weight, target, counts)
    loss = where(counts, loss if weight is None else loss * weights, 0)
    if reduction == "mean":
        return reduce.sum(loss) / reduce.sum(weights)
    return _reduced(loss, reduction)


@whole(check=_check_classes)
def cross_entropy(
    input: Value,
    target: Value,
    weight: Value | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """-log softmax(input)[target]; targets are class numbers or probabilities; classes on axis 1 (0 for one sample)."""
    if not rank(input):
        raise OpError(f"cross_entropy wants [classes] or [batch, classes, ...], got {input.type}")
    if not 0 <= label_smoothing <= 1:
        raise OpError(f"cross_entropy label_smoothing is {label_smoothing}, wanted 0 .. 1")
    axis = 0 if rank(input) == 1 else 1
    classes = input.type.shape[axis]
    _check_weights(weight, classes)
    logp = reduce.log_softmax(input, axis)
    w = None if weight is None else Broadcast(input.type.shape, (axis,))(weight)
    if target.type.dtype.is_floating_point:
        return _soft_cross_entropy(logp, target, w, reduction, label_smoothing, axis)
    mask, counts = _classes(input, target, "cross_entropy", axis, ignore_index)
    picked = -_picked(logp, mask, axis)
    out = _class_mean(picked, input, target, weight, counts, reduction)
    if label_smoothing == 0:
        return out
    smooth = where(counts, -ReduceSum((axis,))(logp if w is None else logp * w), 0)
    if reduction == "mean":
        weights = cast(counts, input.type.dtype) if weight is None else _target_weights(weight, target, counts)
        smooth = reduce.sum(smooth) / reduce.sum(weights)
    else:
        smooth = _reduced(smooth, reduction)
    return out * (1 - label_smoothing) + smooth * (label_smoothing / classes)


def _soft_cross_entropy(logp: Any, target: Value, w: Any, reduction: str, smoothing: float, axis: int) -> Any:
    if rank(target) != rank(logp) or not all(map(same, target.type.shape, logp.type.shape)):
        raise OpError(f"cross_entropy of {logp.type} with probabilities {target.type}: shapes differ")
    t: Any = target * (1 - smoothing) + smoothing / logp.type.shape[axis] if smoothing else target
    loss = -ReduceSum((axis,))(logp * t if w is None else logp * t * w)
    if reduction != "mean":
        return _reduced(loss, reduction)
    batch = 1
    for i, d in enumerate(logp.type.shape):
        batch = batch * d if i != axis else batch
    return reduce.sum(loss) / batch


def multilabel_soft_margin_loss(
    input: Value, target: Value, weight: Value | None = None, reduction: str = "mean"
) -> Any:
    """Binary cross entropy of each class, averaged over classes."""
    loss = -(target * logsigmoid(input) + (1 - target) * logsigmoid(-input))
    return _reduced(reduce.mean(loss if weight is None else loss * weight, -1), reduction)


def multi_margin_loss(
    input: Value, target: Value, p: int = 1, margin: float = 1.0, weight: Value | None = None, reduction: str = "mean"
) -> Any:
    """mean over classes of max(0, margin - input[target] + input[class])^p, the target's own class left out."""
    axis = axis_of(-1, rank(input))
    if not rank(input):
        input = reshape(input, (1,))
    _check_weights(weight, input.type.shape[-1])
    flat = reshape(target, input.type.shape[:-1])
    mask, counts = _classes(input, flat, "multi_margin_loss", axis, -100)
    kept = tuple(range(axis))
    own = Broadcast(input.type.shape, kept)(_picked(input, mask, axis))
    gap = input - own + margin
    gap = where(mask | (gap <= 0), 0, gap)
    gap = gap if p == 1 else gap * gap
    if weight is not None:
        gap = gap * Broadcast(input.type.shape, kept)(_target_weights(weight, flat, counts))
    return _reduced(reduce.mean(gap, axis), reduction)
