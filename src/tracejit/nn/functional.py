"""The functions behind the layers, under the names of torch.nn.functional.

Most are the composed ops themselves. What stands here has state or randomness: `dropout` draws from the default
generator, `batch_norm` writes running statistics.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tracejit.errors import OpError
from tracejit.ir.dtype import DType
from tracejit.ops.composed import activation as _activation
from tracejit.ops.composed import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    adaptive_max_pool3d,
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    bilinear,
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cat,
    channel_shuffle,
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
    cosine_embedding_loss,
    cosine_similarity,
    cross_entropy,
    gaussian_nll_loss,
    gelu,
    glu,
    group_norm,
    hardshrink,
    hinge_embedding_loss,
    huber_loss,
    interpolate,
    kl_div,
    l1_loss,
    layer_norm,
    linear,
    local_response_norm,
    log_softmax,
    logsigmoid,
    lp_pool1d,
    lp_pool2d,
    lp_pool3d,
    margin_ranking_loss,
    max_pool1d,
    max_pool2d,
    max_pool3d,
    mse_loss,
    multi_margin_loss,
    multilabel_soft_margin_loss,
    nll_loss,
    normalize,
    one_hot,
    pad,
    pairwise_distance,
    pixel_shuffle,
    pixel_unshuffle,
    poisson_nll_loss,
    prelu,
    rms_norm,
    sigmoid,
    smooth_l1_loss,
    soft_margin_loss,
    softmax,
    softmin,
    softplus,
    softshrink,
    softsign,
    tanh,
    tanhshrink,
    triplet_margin_loss,
)
from tracejit.ops.composed import attention as _attention
from tracejit.ops.composed import normalization as _normalization
from tracejit.ops.composed import pooling as _pooling
from tracejit.ops.composed import selection as _selection
from tracejit.ops.composed.axes import axis_of as _axis_of
from tracejit.ops.composed.movement import chunk as _chunk
from tracejit.ops.composed.whole import whole as _whole
from tracejit.tensor.autocast import NARROW as _NARROW
from tracejit.tensor.autocast import WIDE as _WIDE
from tracejit.tensor.autocast import autocasting as _autocasting
from tracejit.tensor.autograd import no_grad
from tracejit.tensor.random import rand
from tracejit.tensor.tensor import Tensor, assign, overwrite

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d",
    "adaptive_max_pool3d", "alpha_dropout", "avg_pool1d", "avg_pool2d", "avg_pool3d", "batch_norm", "bilinear",
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "celu", "channel_shuffle", "conv1d", "conv2d",
    "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "cosine_embedding_loss",
    "cosine_similarity", "cross_entropy", "dropout", "dropout1d", "dropout2d", "dropout3d", "elu", "embedding",
    "fold", "gaussian_nll_loss", "gelu", "glu", "group_norm", "gumbel_softmax", "hardshrink", "hardsigmoid",
    "hardswish", "hardtanh", "hinge_embedding_loss", "huber_loss", "instance_norm", "interpolate", "kl_div",
    "l1_loss", "layer_norm", "leaky_relu", "linear", "local_response_norm", "log_softmax", "logsigmoid", "lp_pool1d",
    "lp_pool2d", "lp_pool3d", "margin_ranking_loss", "max_pool1d", "max_pool2d", "max_pool3d", "mish", "mse_loss",
    "multi_head_attention_forward", "multi_margin_loss", "multilabel_soft_margin_loss", "nll_loss", "normalize",
    "one_hot", "pad", "pairwise_distance", "pixel_shuffle", "pixel_unshuffle", "poisson_nll_loss", "prelu", "relu",
    "relu6", "relu_", "rms_norm", "scaled_dot_product_attention", "selu", "sigmoid", "silu", "smooth_l1_loss",
    "soft_margin_loss", "softmax", "softmin", "softplus", "softshrink", "softsign", "tanh", "tanhshrink", "threshold",
    "triplet_margin_loss", "unfold", "upsample",
]  # fmt: skip

unfold, fold = _pooling.im2col, _pooling.col2im


# --- activations that may write in place ---------------------------------------------------------------------------


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """max(x, 0)."""
    out = _activation.relu(input)
    return overwrite(input, out) if inplace else out


def relu_(input: Tensor) -> Tensor:
    """max(x, 0), in place."""
    return relu(input, inplace=True)


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """x limited to [0, 6]."""
    out = _activation.relu6(input)
    return overwrite(input, out) if inplace else out


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """x where x > 0, else negative_slope * x."""
    out = _activation.leaky_relu(input, negative_slope)
    return overwrite(input, out) if inplace else out


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x where x > 0, else alpha * (e^x - 1)."""
    out = _activation.elu(input, alpha)
    return overwrite(input, out) if inplace else out


def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x where x > 0, else alpha * (e^(x / alpha) - 1)."""
    out = _activation.celu(input, alpha)
    return overwrite(input, out) if inplace else out


def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """The self-normalising elu."""
    out = _activation.selu(input)
    return overwrite(input, out) if inplace else out


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """x * sigmoid(x)."""
    out = _activation.silu(input)
    return overwrite(input, out) if inplace else out


def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """x * tanh(softplus(x))."""
    out = _activation.mish(input)
    return overwrite(input, out) if inplace else out


def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    """x limited to [min_val, max_val]."""
    out = _activation.hardtanh(input, min_val, max_val)
    return overwrite(input, out) if inplace else out


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """x / 6 + 1/2 limited to [0, 1]."""
    out = _activation.hardsigmoid(input)
    return overwrite(input, out) if inplace else out


def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """x * hardsigmoid(x)."""
    out = _activation.hardswish(input)
    return overwrite(input, out) if inplace else out


def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """x where x > threshold, else value."""
    out = _activation.threshold(input, threshold, value)
    return overwrite(input, out) if inplace else out


# --- randomness ----------------------------------------------------------------------------------------------------


def _check_probability(p: float) -> None:
    if not 0 <= p <= 1:
        raise ValueError(f"the probability of dropout is {p}, wanted 0 .. 1")


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Each element 0 with probability p, else divided by 1 - p; the input itself outside training."""
    _check_probability(p)
    return _dropped(input, tuple(input.shape), p, training, inplace)


def _dropped(input: Tensor, shape: Sequence[int], p: float, training: bool, inplace: bool) -> Tensor:
    if not training or p == 0:
        return input
    out = _attention.dropout(input, rand(*shape), p)
    return overwrite(input, out) if inplace else out


def _channel_dropout(space: int, input: Tensor, p: float, training: bool, inplace: bool) -> Tensor:
    _check_probability(p)
    if input.ndim not in (space + 1, space + 2):
        raise OpError(f"dropout{space}d wants rank {space + 1} or {space + 2}, got {input.type}")
    kept = input.ndim - space
    return _dropped(input, (*input.shape[:kept], *(1,) * space), p, training, inplace)


def dropout1d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Whole channels of [n, c, l] dropped with probability p."""
    return _channel_dropout(1, input, p, training, inplace)


def dropout2d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Whole channels of [n, c, h, w] dropped with probability p."""
    return _channel_dropout(2, input, p, training, inplace)


def dropout3d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Whole channels of [n, c, d, h, w] dropped with probability p."""
    return _channel_dropout(3, input, p, training, inplace)


def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Dropout that keeps mean and variance of selu activations: dropped elements become -1.758, all are rescaled."""
    _check_probability(p)
    if not training or p == 0:
        return input
    low = -1.7580993408473766
    scale = ((1 - p) * (1 + p * low**2)) ** -0.5 if p < 1 else 0.0
    kept: Any = (rand(*input.shape) >= p).to(input.dtype)  # type: ignore[attr-defined]
    out: Any = (kept * input + (1 - kept) * low - low * p) * scale
    return overwrite(input, out) if inplace else out


def gumbel_softmax(logits: Tensor, tau: float = 1.0, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Tensor:
    """softmax((logits + Gumbel noise) / tau); where `hard`, one-hot in value with the gradient of the soft sample."""
    noise: Any = -(-(rand(*logits.shape, dtype=logits.dtype) + 2.0**-25).log()).log()  # type: ignore[attr-defined]
    soft = softmax((logits + noise) / tau, dim)
    if not hard:
        return soft
    axis = _axis_of(dim, logits.ndim)
    best = one_hot(soft.argmax(axis), logits.shape[axis])
    return best.movedim(-1, axis).to(logits.dtype) - soft.detach() + soft


# --- state ---------------------------------------------------------------------------------------------------------


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float | Tensor = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Channels (axis 1) normalised by the batch in training, which moves the running statistics; else by those."""
    if not input.numel():  # type: ignore[attr-defined]  # nothing to learn from, as a mean would be 0 / 0
        return input.clone()
    if input.ndim < 2:
        raise OpError(f"batch_norm wants [batch, channels, ...], got {input.type}")
    if not training:
        if running_mean is None or running_var is None:
            raise OpError("batch_norm outside training wants running_mean and running_var")
        return _normalization.normalize_channels(input, running_mean, running_var, weight, bias, eps)
    count = input.numel() // input.shape[1]  # type: ignore[attr-defined]
    if isinstance(count, int) and count == 1:
        raise ValueError(f"batch_norm in training wants more than 1 value per channel, got input {input.type}")
    if running_mean is not None and running_var is not None:
        _normalization.check_channels("batch_norm", input, running_mean, running_var)
    out, mean, var = _normalization.batch_normalized(input, weight, bias, eps)
    if running_mean is not None and running_var is not None:
        with no_grad():
            assign(running_mean, _normalization.moved(running_mean, mean, momentum))
            assign(running_var, _normalization.moved(running_var, var, momentum, count / (count - 1)))
    return out


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Channels of each sample normalised over their spatial axes, or by running statistics."""
    if input.ndim < 3:
        raise OpError(f"instance_norm wants [batch, channels, ...], got {input.type}")
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    n, c, *space = input.shape
    if math.prod(space) <= 1:
        raise ValueError(f"instance_norm wants more than 1 value per channel, got input {input.type}")
    flat: Any = input.reshape(1, n * c, *space)  # type: ignore[attr-defined]
    mean, var, count = _normalization.batch_moments(flat)
    if running_mean is not None and running_var is not None:
        with no_grad():
            means: Any = mean.detach().reshape(n, c).mean(0)
            variances: Any = (var.detach() * (count / (count - 1))).reshape(n, c).mean(0)
            assign(running_mean, running_mean * (1 - momentum) + means * momentum)
            assign(running_var, running_var * (1 - momentum) + variances * momentum)
    y: Any = _normalization.normalize_channels(flat, mean, var, None, None, eps)
    return _normalization.scale_channels(y.reshape(n, c, *space), weight, bias)


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """The rows of `weight` at `input`; rows longer than `max_norm` are shortened in place first. `sparse` changes
    nothing."""
    if max_norm is not None:
        with no_grad():
            rows: Any = input.reshape(-1)  # type: ignore[attr-defined]
            used = weight.detach()[rows]  # type: ignore[index]
            length = used.norm(norm_type, -1, True)
            scale = (length > max_norm).to(weight.dtype) * (max_norm / (length + 1e-7) - 1) + 1
            assign(weight, weight.detach().index_copy(0, rows, used * scale))  # type: ignore[attr-defined]
    return _selection.embedding(input, weight, padding_idx, scale_grad_by_freq)


# --- attention -----------------------------------------------------------------------------------------------------


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(query @ key^T * scale + mask) @ value; a bool mask says where to look."""
    uniform = None
    if dropout_p:
        _check_probability(dropout_p)
        uniform = rand(*_attention.attention_scores_shape(query, query if enable_gqa else key)[:-1], key.shape[-2])
    return _attention.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, uniform=uniform
    )


# --- one step of recurrent layers, from the input's part of the gates ----------------------------------------------


@_whole
def rnn_step(x: Any, h: Any, weight: Any, bias: Any, nonlinearity: str) -> Any:
    """act(x + W h + b), both parts with their biases."""
    z = x + linear(h, weight, bias)
    return tanh(z) if nonlinearity == "tanh" else relu(z)


@_whole
def lstm_step(x: Any, h: Any, c: Any, weight: Any, bias: Any) -> tuple[Any, Any]:
    """New (h, c)."""
    i, f, g, o = _chunk(x + linear(h, weight, bias), 4, -1)
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


@_whole
def gru_step(x: Any, h: Any, weight: Any, bias: Any) -> Any:
    """The new state."""
    part = linear(h, weight, bias)
    xr, xz, xn = _chunk(x, 3, -1)
    hr, hz, hn = _chunk(part, 3, -1)
    n = tanh(xn + sigmoid(xr + hr) * hn)
    return n + sigmoid(xz + hz) * (h - n)


# --- attention, continued ------------------------------------------------------------------------------------------


def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Attention of several heads over [length, batch, features] or [length, features]; bool masks hide what is True."""
    if static_k is not None or static_v is not None:
        raise OpError("multi_head_attention_forward supports no static_k and static_v")
    q: Any = query
    k: Any = key
    v: Any = value
    single = q.ndim == 2
    if single:
        q, k, v = q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1)
    length, batch, features = q.shape
    if features != embed_dim_to_check or features % num_heads:
        raise OpError(
            f"attention of {query.type}: wanted {embed_dim_to_check} features, a multiple of {num_heads} heads"
        )
    q, k, v = _projected(
        q, k, v, in_proj_weight, in_proj_bias, use_separate_proj_weight, q_proj_weight, k_proj_weight, v_proj_weight
    )
    padding: Any = None if key_padding_mask is None else _additive(key_padding_mask, q.dtype)
    if padding is not None and single:
        padding = padding.unsqueeze(0)
    mask: Any = None if attn_mask is None else _additive(attn_mask, q.dtype)
    if bias_k is not None and bias_v is not None:
        k, v = (cat([x, b.expand(1, batch, features)]) for x, b in ((k, bias_k), (v, bias_v)))  # type: ignore[attr-defined]
        mask, padding = _one_more(mask), _one_more(padding)
    head = features // num_heads
    q, k, v = (x.reshape(x.shape[0], batch * num_heads, head).transpose(0, 1) for x in (q, k, v))
    if add_zero_attn:
        k, v = (_beside(x) for x in (k, v))
        mask, padding = _one_more(mask), _one_more(padding)
    source = k.shape[1]
    if mask is not None:
        mask = mask.reshape(1, 1, *mask.shape) if mask.ndim == 2 else mask.reshape(batch, num_heads, *mask.shape[1:])
    if padding is not None:
        hidden = padding.reshape(batch, 1, 1, source)
        mask = hidden if mask is None else mask + hidden
    q, k, v = (x.reshape(batch, num_heads, x.shape[1], head) for x in (q, k, v))
    p = dropout_p if training else 0.0
    weights: Any = None
    if need_weights:
        scores = (q * (1 / math.sqrt(head))) @ k.transpose(-2, -1)
        weights = softmax(scores if mask is None else scores + mask, -1)
        weights = dropout(weights, p, training)
        out: Any = weights @ v
    else:
        out = scaled_dot_product_attention(q, k, v, mask, p)
    out = linear(out.permute(2, 0, 1, 3).reshape(length * batch, features), out_proj_weight, out_proj_bias)
    out = out.reshape(length, batch, -1)
    if weights is not None and average_attn_weights:
        weights = weights.mean(1)
    if single:
        return out.squeeze(1), None if weights is None else weights.squeeze(0)
    return out, weights


def _projected(
    q: Any, k: Any, v: Any, weight: Any, bias: Any, separate: bool, q_weight: Any, k_weight: Any, v_weight: Any
) -> tuple[Any, Any, Any]:
    """Query, key and value through their input projections, as few products as the aliases allow."""
    biases = (None, None, None) if bias is None else bias.chunk(3)
    if separate:
        return linear(q, q_weight, biases[0]), linear(k, k_weight, biases[1]), linear(v, v_weight, biases[2])
    if q is k and k is v:
        return linear(q, weight, bias).chunk(3, -1)
    weights = weight.chunk(3)
    return linear(q, weights[0], biases[0]), linear(k, weights[1], biases[1]), linear(v, weights[2], biases[2])


def _additive(mask: Any, dtype: DType) -> Any:
    """A bool mask (True: do not look) as -inf and 0; float masks as they are."""
    if mask.dtype.kind != "b":
        return mask
    return (mask * 0).to(dtype).masked_fill(mask, -math.inf)


def _one_more(mask: Any) -> Any:
    return None if mask is None else pad(mask, (0, 1))


def _beside(x: Any) -> Any:
    return pad(x, (0, 0, 0, 1))


def upsample(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> Tensor:
    """The older name of `interpolate`."""
    return interpolate(input, size, scale_factor, mode, align_corners)


for _name in (*_NARROW, *_WIDE):
    if _name in globals():
        globals()[_name] = _autocasting(globals()[_name])
