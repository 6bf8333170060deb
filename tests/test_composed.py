"""Composed functions against PyTorch (values, dtypes, gradients), on Tensors and on Nodes; and a few facts by hand.

PyTorch's answers are kept in `reference/composed.npz`, so that the tests need no PyTorch. Where it is installed the
answers are computed anew and compared; `python tests/test_composed.py` writes the file again after the cases change.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracejit as tj
from tracejit.errors import DTypeError, IndexOutOfRange, OpError
from tracejit.ir import dtype as dt
from tracejit.ir.graph import Graph, param, run
from tracejit.ir.types import TensorType
from tracejit.ops import composed

RNG = np.random.default_rng(0)


def reference() -> Any:
    """PyTorch on one thread: its pool spins when tests run side by side."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    return torch


def f32(*shape: int, low: float = -2, high: float = 2) -> Any:
    return RNG.uniform(low, high, shape).astype(np.float32)


def i64(*shape: int, high: int = 5) -> Any:
    return RNG.integers(0, high, shape)


def boolean(*shape: int) -> Any:
    return RNG.random(shape) < 0.5


EDGES = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-30, -1e30, 88.0, -104.0, 0.5], np.float32)


@dataclass
class Case:
    """`name` is the function here and, unless `torch` says otherwise, in torch or torch.nn.functional."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    grad: bool = True
    torch: str = ""
    tolerance: float = 2e-5

    def __repr__(self) -> str:
        def show(a: Any) -> str:
            return f"{a.dtype}{list(a.shape)}" if isinstance(a, np.ndarray) else repr(a)

        return f"{self.name}({', '.join([*map(show, self.args), *(f'{k}={show(v)}' for k, v in self.kwargs.items())])})"


def case(name: str, *args: Any, grad: bool = True, torch: str = "", tolerance: float = 2e-5, **kwargs: Any) -> Case:
    return Case(name, args, kwargs, grad, torch, tolerance)


def unary() -> list[Case]:
    smooth = "exp expm1 sin cos tan tanh sinh cosh asinh atan erf erfc sigmoid square abs neg sign exp2 sinc deg2rad"
    pieces = (
        "relu relu6 elu selu celu gelu silu mish softplus logsigmoid hardtanh hardsigmoid hardswish leaky_relu softsign"
    )
    out = [case(n, f32(3, 4)) for n in f"{smooth} {pieces} tanhshrink hardshrink softshrink".split()]
    out += [
        case(n, f32(3, 4, low=0.2, high=3)) for n in "log log2 log10 log1p sqrt rsqrt reciprocal lgamma digamma".split()
    ]
    out += [case(n, f32(3, 4, low=-0.9, high=0.9)) for n in "asin acos atanh".split()]
    out += [case("acosh", f32(3, 4, low=1.1, high=5)), case("logit", f32(5, low=0.1, high=0.9)), case("frac", f32(7))]
    out += [case(n, f32(3, 4, low=-5, high=5), grad=False) for n in "floor ceil round trunc".split()]
    values = (
        "exp expm1 log log1p sqrt tanh sigmoid erf abs sign floor isnan isinf isfinite relu relu6 elu silu softplus"
    )
    values += " logsigmoid gelu"
    out += [
        case(n, EDGES, grad=False)
        for n in f"{values} mish hardtanh leaky_relu nan_to_num signbit asinh atan trunc reciprocal".split()
    ]
    out += [case(n, i64(4), grad=False) for n in "exp sqrt sigmoid abs neg floor sign reciprocal sin".split()]
    out += [case("round", f32(6, low=-50, high=50), decimals=1, grad=False)]
    return out


def binary() -> list[Case]:
    a, b = f32(3, 1, 4), f32(2, 4, low=0.3, high=2)
    out = [case(n, a, b) for n in "add sub mul div maximum minimum atan2 hypot logaddexp fmod remainder".split()]
    out += [case(n, a, b, grad=False) for n in "eq ne lt le gt ge floor_divide copysign fmax fmin heaviside".split()]
    out += [case("pow", f32(3, low=0.2), 2.5), case("pow", f32(4), 2), case("pow", f32(4), 3), case("pow", 2.0, f32(3))]
    out += [case("div", i64(5) - 2, i64(5) + 1, rounding_mode=m, grad=False) for m in (None, "trunc", "floor")]
    out += [case("fmod", i64(5) - 2, i64(5) + 1, grad=False), case("remainder", i64(5) - 2, -3, grad=False)]
    out += [case("add", f32(2), f32(2), alpha=2.5), case("sub", f32(2), f32(2), alpha=2), case("rsub", f32(2), 1.0)]
    out += [
        case(n, boolean(6), boolean(6), grad=False) for n in "logical_and logical_or logical_xor bitwise_xor".split()
    ]
    out += [case("lerp", f32(4), f32(4), w) for w in (0.2, 0.8)] + [case("lerp", f32(4), f32(4), f32(4, low=0, high=1))]
    out += [case("addcmul", f32(3), f32(3), f32(3), value=0.5), case("addcdiv", f32(3), f32(3), f32(3, low=1), value=2)]
    out += [case("where", boolean(3, 4), f32(3, 4), f32(4)), case("where", boolean(3), f32(3), 0.0)]
    out += [case("masked_fill", f32(3, 4), boolean(3, 4), -1.5), case("xlogy", f32(4), f32(4, low=0.1))]
    out += [case("clamp", f32(9), -0.5, 1.0), case("clamp", f32(9), max=0.1), case("clamp", i64(5), 1, 3, grad=False)]
    out += [
        case("clamp", np.array([-1.0, 0.5, 2.0], np.float32), -1.0, 2.0),
        case("clamp", EDGES, -1.0, 1.0, grad=False),
    ]
    out += [case("isclose", f32(4), f32(4), grad=False), case("float_power", f32(3, low=0.1), 2.0, grad=False)]
    out += [case("glu", f32(4, 6), dim=-1), case("prelu", f32(2, 3, 4), f32(3)), case("threshold", f32(5), 0.1, 20.0)]
    return out


def reductions() -> list[Case]:
    x = f32(2, 3, 4)
    out = [
        case(n, x, dim=d, keepdim=k)
        for n in "sum mean amax amin logsumexp".split()
        for d in (0, -1, (0, 2))
        for k in (False, True)
    ]
    out += [case(n, x) for n in "sum mean prod var std".split()] + [case("prod", x, 1), case("logsumexp", x, (0, 1, 2))]
    out += [case(n, x, dim=1, correction=c) for n in ("var", "std") for c in (0, 1, 2)] + [
        case("var", x, False),
        case("var_mean", x, 1),
    ]
    out += [case("norm", x, p=p, dim=1) for p in (1, 2, 3.5, math.inf)] + [
        case("norm", x),
        case("norm", x, p=0, grad=False),
    ]
    out += [case(n, x, d) for n in ("max", "min") for d in (0, 2)] + [case("max", x), case("max", x, 1, True)]
    out += [case(n, x, d, k, grad=False) for n in ("argmax", "argmin") for d in (None, 0, -1) for k in (False, True)]
    out += [case(n, boolean(2, 3), d, grad=False) for n in ("any", "all") for d in (0, 1)] + [
        case("any", np.zeros((0, 3)), 0, grad=False)
    ]
    out += [case(n, x, 1) for n in ("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin")] + [case("diff", x, dim=1)]
    out += [case(n, i64(3, 2), grad=False) for n in ("sum", "prod", "any", "max", "argmax", "count_nonzero")]
    out += [
        case("sum", boolean(4), grad=False),
        case("cumsum", boolean(4), 0, grad=False),
        case("sum", f32(3), dtype="f64"),
    ]
    out += [case(n, x, d) for n in ("softmax", "log_softmax", "softmin") for d in (0, 2)] + [
        case("softmax", x, 1, dtype="f64")
    ]
    out += [case("softmax", np.array([[-np.inf, 0, 1], [-np.inf] * 3], np.float32), 1, grad=False)]
    out += [case("logsumexp", np.array([[-np.inf] * 2, [np.inf, 0], [1000, 1000]], np.float32), 1, grad=False)]
    out += [case(n, np.array(3.0, np.float32), 0) for n in ("sum", "softmax", "max", "cumsum")] + [
        case("aminmax", f32(3, 2), dim=0)
    ]
    out += [
        case(n, np.array([np.nan, 1.0], np.float32), grad=False) for n in ("max", "amin", "nansum", "nanmean", "argmax")
    ]
    return out


def shapes() -> list[Case]:
    x = f32(2, 3, 4)
    out = [
        case("reshape", x, (-1, 6)),
        case("flatten", x, 1),
        case("squeeze", f32(1, 3, 1)),
        case("squeeze", f32(1, 3, 1), 0),
    ]
    out += [case("unsqueeze", x, d) for d in (0, -1, 2)] + [case("permute", x, (2, 0, 1)), case("transpose", x, 0, -1)]
    out += [
        case("movedim", x, 0, 2),
        case("movedim", x, (0, 1), (2, 0)),
        case("swapaxes", x, 0, 1),
        case("t", f32(2, 3)),
    ]
    out += [
        case("tile", x, (2, 1)),
        case("roll", x, 1, 2),
        case("roll", x, (1, -2), (0, 1)),
        case("roll", x, 5),
        case("unflatten", x, 2, (2, -1)),
    ]
    out += [case("flip", x, (0, 2)), case("rot90", x, 1, (0, 1)), case("rot90", x, 3, (1, 2))]
    out += [
        case("split", x, 2, 2),
        case("split", x, (1, 2), 1),
        case("chunk", x, 3, 2),
        case("unbind", x, 1),
        case("narrow", x, 2, 1, 2),
    ]
    out += [
        case("tensor_split", x, 3, 2),
        case("tensor_split", x, (1, 3), 2),
        case("select", x, 1, -1),
        case("broadcast_to", f32(3, 1), (2, 3, 4)),
    ]
    out += [
        case("pad", x, p, mode=m)
        for p, m in (((1, 2), "constant"), ((1, 1), "reflect"), ((2, 1), "replicate"), ((1, 2), "circular"))
    ]
    out += [case("pad", x, (1, -1, 0, 2), value=1.5), case("pad", f32(1, 2, 3, 4), (1, 1, 2, 1), mode="reflect")]
    out += [case("diagonal", x, o, 0, 2) for o in (0, 1, -1)] + [
        case("diag", f32(3), 1),
        case("diag", f32(3, 4), -1),
        case("diag_embed", x),
    ]
    out += [
        case("diag_embed", f32(2, 3), -1),
        case("tril", x, 1),
        case("triu", x, -1),
        case("repeat_interleave", x, 2, 1),
        case("trace", f32(3, 3)),
    ]
    out += [
        case("pixel_shuffle", f32(1, 8, 2, 3), 2),
        case("pixel_unshuffle", f32(1, 2, 4, 6), 2),
        case("tril", boolean(3, 3), grad=False),
    ]
    out += [case("unfold", x, 2, 2, 1, torch="Tensor.unfold"), case("fliplr", f32(2, 3)), case("atleast_3d", f32(2))]
    return out


def choices() -> list[Case]:
    x, at = f32(4, 5), i64(3, 5, high=4)
    out = [
        case("gather", x, 0, at),
        case("gather", x, 1, i64(2, 7)),
        case("index_select", x, 1, np.array([0, 3, 3])),
        case("take", x, np.array([[0, -1]])),
    ]
    out += [
        case("scatter_add", x, 0, at, f32(3, 5)),
        case("scatter", x, 1, np.array([[0, 2], [4, 1]]), f32(2, 2)),
        case("scatter", x, 0, at[:1], 2.0),
    ]
    out += [
        case("index_add", x, 0, np.array([1, 1, 3]), f32(3, 5), alpha=2),
        case("index_copy", x, 1, np.array([0, 2]), f32(4, 2)),
    ]
    out += [case("index_fill", x, 0, np.array([1, 2]), 0.5), case("take_along_dim", x, np.argsort(x, 1), 1)]
    out += [case(n, x, d) for n in ("sort", "median") for d in (0, 1)] + [
        case("sort", x, 1, True),
        case("topk", x, 2, 1),
        case("topk", x, 3, 0, False),
    ]
    out += [
        case("kthvalue", x, 2, 1),
        case("median", x),
        case("argsort", x, 1, grad=False),
        case("one_hot", i64(2, 3), grad=False),
    ]
    out += [
        case("one_hot", i64(3), 7, grad=False),
        case("embedding", i64(2, 3), f32(6, 4)),
        case("embedding", i64(2, 3), f32(6, 4), 2),
    ]
    return out


def products() -> list[Case]:
    pairs = [
        ((3,), (3,)),
        ((2, 3), (3,)),
        ((3,), (3, 4)),
        ((2, 3), (3, 4)),
        ((5, 2, 3), (3, 4)),
        ((5, 2, 3), (5, 3, 4)),
        ((2, 3), (5, 3, 4)),
        ((2, 1, 2, 3), (5, 3, 4)),
        ((3,), (5, 3, 4)),
        ((5, 2, 3), (3,)),
    ]
    out = [case("matmul", f32(*a), f32(*b)) for a, b in pairs]
    out += [
        case("mm", f32(2, 3), f32(3, 4)),
        case("bmm", f32(2, 2, 3), f32(2, 3, 4)),
        case("mv", f32(2, 3), f32(3)),
        case("dot", f32(3), f32(3)),
    ]
    out += [
        case("outer", f32(3), f32(4)),
        case("addmm", f32(4), f32(2, 3), f32(3, 4), beta=0.5, alpha=2),
        case("inner", f32(2, 3), f32(4, 3)),
    ]
    out += [
        case("baddbmm", f32(2, 2, 4), f32(2, 2, 3), f32(2, 3, 4)),
        case("linear", f32(2, 5, 3), f32(4, 3), f32(4)),
        case("linear", f32(3), f32(4, 3)),
    ]
    out += [
        case("tensordot", f32(2, 3, 4), f32(3, 4, 5)),
        case("tensordot", f32(2, 3, 4), f32(4, 2), ([0, 2], [1, 0])),
        case("kron", f32(2, 3), f32(2, 2)),
    ]
    out += [case("bilinear", f32(5, 2), f32(5, 3), f32(4, 2, 3), f32(4)), case("cross", f32(4, 3), f32(4, 3), dim=1)]
    equations = [
        ("ij,jk->ik", (2, 3), (3, 4)),
        ("bij,bkj->bik", (2, 3, 4), (2, 5, 4)),
        ("ii->i", (3, 3)),
        ("ij->", (2, 3)),
        ("i,j->ij", (2,), (3,)),
        ("...ij,...jk", (2, 2, 3), (3, 4)),
        ("bhid,bhjd->bhij", (2, 2, 3, 4), (2, 2, 5, 4)),
        ("ij,jk,kl->il", (2, 3), (3, 4), (4, 2)),
        ("ii", (3, 3)),
        ("b...->...", (2, 3)),
        ("ij,ij->i", (2, 3), (2, 3)),
        ("ba,b->a", (2, 3), (1,)),
    ]
    out += [case("einsum", eq, *(f32(*s) for s in ss)) for eq, *ss in equations]
    out += [
        case("cosine_similarity", f32(3, 4), f32(3, 4)),
        case("normalize", f32(3, 4)),
        case("normalize", f32(3, 4), p=1.0, dim=0),
        case("cdist", f32(3, 4), f32(2, 4)),
    ]
    return out


def layers() -> list[Case]:
    x, w = f32(2, 4, 7), f32(6, 2, 3)
    out = [
        case("conv1d", x, w, f32(6), groups=2, stride=2, padding=1),
        case("conv1d", x, w, padding="same", groups=2, dilation=2),
    ]
    out += [
        case("conv2d", f32(2, 3, 6, 7), f32(4, 3, 3, 2), f32(4), stride=(1, 2), padding=(1, 0)),
        case("conv2d", f32(3, 5, 5), f32(2, 3, 2, 2), padding="valid"),
    ]
    out += [case("conv3d", f32(1, 2, 4, 4, 4), f32(3, 2, 2, 2, 2), padding=1)]
    out += [
        case("conv_transpose1d", f32(2, 4, 5), f32(4, 3, 3), f32(6), stride=2, padding=1, output_padding=1, groups=2)
    ]
    out += [case("conv_transpose2d", f32(1, 3, 4, 4), f32(3, 2, 3, 3), stride=2, padding=1, dilation=(1, 2))]
    out += [case("conv_transpose2d", f32(1, 2, 3, 3), f32(2, 2, 1, 1), padding=0)]
    image = f32(2, 3, 7, 8)
    out += [
        case("max_pool2d", image, 2),
        case("max_pool2d", image, 3, 2, 1),
        case("max_pool2d", image, (2, 3), 1, ceil_mode=True),
        case("max_pool1d", x, 2),
    ]
    out += [
        case("max_pool2d", image, 3, 2, 1, return_indices=True),
        case("max_pool2d", image, 2, 3, dilation=2),
        case("max_pool3d", f32(1, 2, 4, 4, 4), 2),
    ]
    out += [
        case("max_pool2d", np.ones((1, 1, 4, 4), np.float32), 2),
        case("avg_pool2d", image, 2),
        case("avg_pool2d", image, 3, 2, 1),
    ]
    out += [
        case("avg_pool2d", image, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        case("avg_pool1d", x, 2, ceil_mode=True),
    ]
    out += [case("adaptive_avg_pool2d", image, s) for s in (1, (7, 4), (3, 5), (None, 2))] + [
        case("adaptive_max_pool2d", image, s) for s in ((7, 4), (3, 5))
    ]
    out += [
        case("adaptive_avg_pool1d", x, 3),
        case("lp_pool2d", image, 2.0, 2),
        case("avg_pool3d", f32(1, 2, 4, 4, 4), 2),
    ]
    out += [
        case("im2col", f32(2, 3, 5, 6), (2, 3), torch="unfold", padding=1, stride=2),
        case("col2im", f32(2, 12, 12), (4, 5), (2, 2), torch="fold"),
    ]
    out += [
        case("interpolate", image, size=(14, 16)),
        case("interpolate", image, size=(5, 3)),
        case("interpolate", image, scale_factor=1.7),
    ]
    out += [case("interpolate", image, size=(10, 5), mode="bilinear", align_corners=a) for a in (False, True)] + [
        case("interpolate", x, scale_factor=2.0, mode="linear")
    ]
    out += [
        case("layer_norm", f32(2, 3, 4), (4,), f32(4), f32(4)),
        case("layer_norm", f32(2, 3, 4), (3, 4)),
        case("rms_norm", f32(2, 4), (4,), f32(4)),
    ]
    out += [
        case("group_norm", image, 3, f32(3), f32(3)),
        case("group_norm", f32(2, 6, 4), 2),
        case("local_response_norm", image, 2),
    ]
    q, k, v = f32(2, 2, 3, 4), f32(2, 2, 5, 4), f32(2, 2, 5, 4)
    out += [
        case("scaled_dot_product_attention", q, k, v),
        case("scaled_dot_product_attention", q, k, v, is_causal=True),
        case("scaled_dot_product_attention", q, k, v, f32(3, 5), scale=0.3),
    ]
    out += [
        case(
            "scaled_dot_product_attention",
            q,
            k,
            v,
            np.array([[True, False, True, False, True], [True] * 5, [False] * 5]),
        )
    ]
    return out


def losses() -> list[Case]:
    a, b, p, t = f32(4, 3), f32(4, 3), f32(4, 3, low=0.1, high=0.9), f32(4, 3, low=0, high=1)
    y = np.array([0, 2, -100, 1])
    out = [
        case(n, a, b, reduction=r)
        for n in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
        for r in ("mean", "sum", "none")
    ]
    out += [
        case("smooth_l1_loss", a, b, beta=0.3),
        case("huber_loss", a, b, delta=0.3),
        case("binary_cross_entropy", p, t),
        case("kl_div", a, t),
        case("kl_div", a, b, log_target=True, reduction="sum"),
    ]
    out += [
        case("binary_cross_entropy_with_logits", a * 30, t, pos_weight=f32(3, low=0.5)),
        case("binary_cross_entropy_with_logits", a, t, f32(3)),
        case("kl_div", a, t, reduction="batchmean"),
    ]
    for r in ("mean", "sum", "none"):
        out += [
            case("cross_entropy", a, y, reduction=r),
            case("cross_entropy", a, y, f32(3, low=0.5), reduction=r),
            case("nll_loss", a, y, reduction=r),
        ]
        out += [
            case("cross_entropy", a, y, f32(3, low=0.5), reduction=r, label_smoothing=0.1),
            case("cross_entropy", a, t, reduction=r, label_smoothing=0.1),
        ]
    out += [
        case("cross_entropy", f32(2, 3, 4), i64(2, 4, high=3)),
        case("cross_entropy", f32(5), np.array(2)),
        case("cross_entropy", a, t, f32(3, low=0.5)),
        case("nll_loss", f32(2, 3, 4), i64(2, 4, high=3), f32(3)),
    ]
    sign = np.where(boolean(4, 3), 1, -1).astype(np.float32)
    out += [
        case("soft_margin_loss", a, sign),
        case("hinge_embedding_loss", a, sign),
        case("margin_ranking_loss", a, b, sign, margin=0.3),
        case("poisson_nll_loss", a, t),
        case("gaussian_nll_loss", a, b, p),
    ]
    out += [
        case("cosine_embedding_loss", a, b, sign[:, 0]),
        case("triplet_margin_loss", a, b, f32(4, 3)),
        case("multilabel_soft_margin_loss", a, (t > 0.5).astype(np.float32)),
        case("multi_margin_loss", a, y % 3),
    ]
    return out


CASES = unary() + binary() + reductions() + shapes() + choices() + products() + layers() + losses()


# losses whose target PyTorch does not differentiate
TARGETS_FIXED = """
    binary_cross_entropy binary_cross_entropy_with_logits kl_div cross_entropy nll_loss poisson_nll_loss
    gaussian_nll_loss cosine_embedding_loss soft_margin_loss hinge_embedding_loss margin_ranking_loss
    multilabel_soft_margin_loss multi_margin_loss
""".split()


def _fn(torch: Any, name: str) -> Callable[..., Any]:
    if name.startswith("Tensor."):
        return getattr(torch.Tensor, name.partition(".")[2])
    functional = torch.nn.functional
    return getattr(functional if hasattr(functional, name) else torch, name)


def _flat(out: Any) -> list[Any]:
    return [v for o in out for v in _flat(o)] if isinstance(out, (tuple, list)) else [out]


def _close(got: Any, want: Any, tolerance: float, what: str) -> None:
    assert got.shape == want.shape, f"{what}: shape {got.shape}, wanted {want.shape}"
    assert got.dtype == want.dtype, f"{what}: dtype {got.dtype}, wanted {want.dtype}"
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance, err_msg=what)


def built(c: Case, make: Callable[[Any], Any], double: Any) -> tuple[list[Any], dict[str, Any], list[Any]]:
    """Arguments and keywords of `c` with arrays made into tensors, and those tensors."""
    made: list[Any] = []

    def one(v: Any) -> Any:
        if isinstance(v, np.ndarray):
            made.append(make(v.copy()))
            return made[-1]
        return double if isinstance(v, str) and v == "f64" else v

    return [one(a) for a in c.args], {k: one(v) for k, v in c.kwargs.items()}, made


def answers(c: Case, fn: Callable[..., Any], make: Callable[[Any], Any], double: Any) -> dict[str, Any]:
    """Values of `c`, and gradients of a weighted sum of them, as arrays."""
    args, kwargs, leaves = built(c, make, double)
    for t in leaves[:1] if c.name in TARGETS_FIXED else leaves:
        if c.grad and t.detach().numpy().dtype.kind == "f":
            t.requires_grad_()
    out = _flat(fn(*args, **kwargs))
    found = {f"value{i}": v.detach().numpy() for i, v in enumerate(out)}
    if c.grad:
        weights = np.random.default_rng(len(out))
        terms = [v for v in out if v.requires_grad]
        ks = [np.asarray(weights.uniform(0.5, 1.5, tuple(v.shape))).astype(v.detach().numpy().dtype) for v in terms]
        sum((v * make(k)).sum() for v, k in zip(terms, ks, strict=True)).backward()
        found |= {f"gradient{i}": t.grad.numpy() for i, t in enumerate(leaves) if t.grad is not None}
    return found


def recorded() -> dict[str, dict[str, Any]]:
    """PyTorch's answers as `python tests/test_composed.py` wrote them, by case."""
    out: dict[str, dict[str, Any]] = {}
    with np.load(REFERENCE) as file:
        for key in file.files:
            number, _, what = key.partition(".")
            out.setdefault(repr(CASES[int(number)]), {})[what] = file[key]
    return out


REFERENCE = Path(__file__).parent / "reference" / "composed.npz"
RECORDED = recorded() if REFERENCE.exists() else {}


@pytest.mark.parametrize("c", CASES, ids=repr)
def test_agrees_with_torch_in_value_and_gradient_and_on_nodes(c: Case) -> None:
    ours = getattr(composed, c.name)
    want, got = RECORDED[repr(c)], answers(c, ours, tj.from_numpy, dt.float64)
    assert {k for k in want if k[0] == "v"} == {k for k in got if k[0] == "v"}
    for what, w in want.items():
        _close(got[what], w, c.tolerance if what[0] == "v" else 10 * c.tolerance, what)
    if c.name == "one_hot" and len(c.args) == 1:
        return  # its size depends on data
    arrays = [a for a in (*c.args, *c.kwargs.values()) if isinstance(a, np.ndarray)]
    nargs, nkwargs, params = built(c, lambda a: param("x", TensorType(dt.from_numpy(a.dtype), a.shape)), dt.float64)
    graph = Graph("g", tuple(params), tuple(_flat(ours(*nargs, **nkwargs))))
    for i, a in enumerate(run(graph, arrays)):
        _close(np.asarray(a), got[f"value{i}"], 1e-6, "on Nodes")


def torch_answers() -> list[dict[str, Any]]:
    """PyTorch's answer to each case."""
    torch = reference()
    return [answers(c, _fn(torch, c.torch or c.name), torch.from_numpy, torch.float64) for c in CASES]


def test_recorded_answers_are_those_of_the_installed_torch() -> None:
    for c, found in zip(CASES, torch_answers(), strict=True):
        for what, value in found.items():
            _close(RECORDED[repr(c)][what], value, c.tolerance, f"{c}: {what}")


# --- facts by hand -------------------------------------------------------------------------------------------------


def test_sigmoid_has_a_finite_gradient_far_below_zero() -> None:
    x = tj.tensor([-200.0, 0.0, 200.0], requires_grad=True)
    composed.sigmoid(x).sum().backward()
    assert x.grad.tolist() == [0.0, 0.25, 0.0]


def test_max_pool_sends_the_gradient_to_the_first_of_equals() -> None:
    x = tj.ones(1, 1, 2, 2).requires_grad_()
    composed.max_pool2d(x, 2).sum().backward()
    assert x.grad.tolist() == [[[[1.0, 0.0], [0.0, 0.0]]]]


def test_softmax_is_few_nodes() -> None:
    x = param("x", TensorType(dt.float32, (4, 8)))
    assert len(Graph("g", (x,), (composed.softmax(x, 1),)).nodes) <= 10


def test_dropout_keeps_and_scales() -> None:
    x, u = tj.ones(4), tj.tensor([0.1, 0.6, 0.4999, 0.5])
    assert composed.attention.dropout(x, u, 0.5).tolist() == [0.0, 2.0, 0.0, 2.0]


def test_mean_of_halves_does_not_overflow() -> None:
    x = tj.full((1000,), 1000.0, dtype=tj.float16)
    assert composed.mean(x).item() == 1000.0
    assert composed.mean(x).dtype is tj.float16


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: composed.mean(tj.tensor([1, 2])), DTypeError, "mean of i64"),
        (lambda: composed.matmul(tj.ones(2, 3), tj.ones(4, 5)), OpError, "inner extents 3 and 4"),
        (lambda: composed.matmul(tj.ones(2, 3), tj.ones(3, 5, dtype=tj.float64)), DTypeError, "f32 and f64"),
        (lambda: composed.sum(tj.ones(2), 3), IndexOutOfRange, "dim 3"),
        (lambda: composed.gather(tj.ones(3), 0, tj.tensor([3])), IndexOutOfRange, "outside 0 .. 2"),
        (lambda: composed.embedding(tj.tensor([7]), tj.ones(3, 2)), IndexOutOfRange, "outside 0 .. 2"),
        (lambda: composed.cross_entropy(tj.ones(1, 3), tj.tensor([3])), IndexOutOfRange, "outside 0 .. 2"),
        (lambda: composed.cat([tj.ones(2, 3), tj.ones(2, 4)]), OpError, "concat"),
        (lambda: composed.reshape(tj.ones(6), (4, -1)), OpError, "cannot be inferred"),
        (lambda: composed.conv2d(tj.ones(1, 3, 4, 4), tj.ones(2, 4, 3, 3)), OpError, "channels 3"),
        (lambda: composed.sub(tj.tensor([True]), tj.tensor([True])), DTypeError, "logical_xor"),
        (lambda: composed.split(tj.ones(5), [2, 2]), OpError, "add up to 5"),
    ],
)
def test_errors_name_both_sides(call: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


if __name__ == "__main__":
    REFERENCE.parent.mkdir(exist_ok=True)
    np.savez_compressed(REFERENCE, **{f"{i}.{k}": v for i, a in enumerate(torch_answers()) for k, v in a.items()})
