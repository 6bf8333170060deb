"""Adam, AdamW and Adamax: steps scaled by running means of the gradient and its square.

The bias corrections come from the step count by tensor ops, so nothing in Python changes from step to step.
"""

from __future__ import annotations

from typing import Any

from tracejit.ops.composed.update import adam_corrections, adam_means, adam_move, adam_spread
from tracejit.optim.optimizer import Optimizer, ParamsT, counter, not_negative, zeros_for

__all__ = ["Adam", "AdamW", "Adamax"]


def check_betas(betas: Any) -> None:
    """Raise ValueError naming the first beta outside [0, 1)."""
    for i, beta in enumerate(betas):
        if not 0 <= beta < 1:
            raise ValueError(f"betas[{i}] is {beta}, wanted 0 <= beta < 1")


class Adam(Optimizer):
    """p -= lr * m / (sqrt(v) + eps), m and v the bias-corrected means of g and g^2."""

    def __init__(
        self,
        params: ParamsT,
        lr: Any = 1e-3,
        betas: Any = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
    ) -> None:
        not_negative(lr=lr, eps=eps, weight_decay=weight_decay)
        check_betas(betas)
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "amsgrad": amsgrad,
                "maximize": maximize,
                "foreach": foreach,
                "capturable": capturable,
                "differentiable": differentiable,
                "fused": fused,
                "decoupled_weight_decay": decoupled_weight_decay,
            },
        )

    def _update(self, p: Any, grad: Any, state: dict[str, Any], group: dict[str, Any]) -> None:
        if "step" not in state:
            state["step"], state["exp_avg"], state["exp_avg_sq"] = counter(), zeros_for(p), zeros_for(p)
            if group["amsgrad"]:
                state["max_exp_avg_sq"] = zeros_for(p)
        beta1, beta2 = group["betas"]
        step, mean, square = state["step"], state["exp_avg"], state["exp_avg_sq"]
        step.add_(1)
        if group["weight_decay"] != 0:
            if group["decoupled_weight_decay"]:
                p.mul_(1 - group["lr"] * group["weight_decay"])
            else:
                grad = grad + p * group["weight_decay"]
        new_mean, new_square = adam_means(mean, square, grad, beta1, beta2)
        mean.copy_(new_mean)
        square.copy_(new_square)
        if group["amsgrad"]:
            largest = state["max_exp_avg_sq"]
            largest.copy_(largest.maximum(square))
            square = largest
        short, root = adam_corrections(step, beta1, beta2)
        spread = adam_spread(square, root) + group["eps"]  # added here: a number that changes is an input
        p.copy_(adam_move(p, mean, spread, group["lr"] / short))


class AdamW(Adam):
    """Adam with weight decay apart from the gradient."""

    def __init__(
        self,
        params: ParamsT,
        lr: Any = 1e-3,
        betas: Any = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            foreach=foreach,
            maximize=maximize,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
            decoupled_weight_decay=True,
        )


class Adamax(Optimizer):
    """Adam with the largest recent gradient instead of the mean square."""

    def __init__(
        self,
        params: ParamsT,
        lr: Any = 2e-3,
        betas: Any = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        not_negative(lr=lr, eps=eps, weight_decay=weight_decay)
        check_betas(betas)
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "foreach": foreach,
                "maximize": maximize,
                "differentiable": differentiable,
                "capturable": capturable,
            },
        )

    def _update(self, p: Any, grad: Any, state: dict[str, Any], group: dict[str, Any]) -> None:
        if "step" not in state:
            state["step"], state["exp_avg"], state["exp_inf"] = counter(), zeros_for(p), zeros_for(p)
        beta1, beta2 = group["betas"]
        step, mean, largest = state["step"], state["exp_avg"], state["exp_inf"]
        step.add_(1)
        if group["weight_decay"] != 0:
            grad = grad + p * group["weight_decay"]
        mean.lerp_(grad, 1 - beta1)
        largest.copy_((largest * beta2).maximum(grad.abs() + group["eps"]))
        size = (group["lr"] / (1 - beta1 ** step.double())).to(p.dtype)
        p.sub_(mean / largest * size)
