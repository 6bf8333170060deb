"""Stochastic gradient descent and its relatives with one step size per coordinate."""

from __future__ import annotations

from typing import Any

from tracejit.optim.optimizer import Optimizer, ParamsT, counter, not_negative, zeros_for
from tracejit.tensor.creation import full

__all__ = ["SGD", "Adagrad", "RMSprop"]


class SGD(Optimizer):
    """p -= lr * v, v = momentum * v + (1 - dampening) * g, with weight decay added to g."""

    def __init__(
        self,
        params: ParamsT,
        lr: Any = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: Any = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        not_negative(lr=lr, momentum=momentum, weight_decay=weight_decay)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("nesterov momentum wants a momentum and no dampening")
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "dampening": dampening,
                "weight_decay": weight_decay,
                "nesterov": nesterov,
                "maximize": maximize,
                "foreach": foreach,
                "differentiable": differentiable,
                "fused": fused,
            },
        )

    def _update(self, p: Any, grad: Any, state: dict[str, Any], group: dict[str, Any]) -> None:
        if group["weight_decay"] != 0:
            grad = grad + p * group["weight_decay"]
        momentum = group["momentum"]
        if momentum != 0:
            if state.get("momentum_buffer") is None:
                state["momentum_buffer"] = grad.clone()
            else:
                buffer = state["momentum_buffer"]
                buffer.mul_(momentum).add_(grad, alpha=1 - group["dampening"])
            buffer = state["momentum_buffer"]
            grad = grad + buffer * momentum if group["nesterov"] else buffer
        p.sub_(grad * group["lr"])


class Adagrad(Optimizer):
    """p -= lr / (1 + t * lr_decay) * g / (sqrt(sum g^2) + eps)."""

    def __init__(
        self,
        params: ParamsT,
        lr: Any = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        not_negative(
            lr=lr,
            lr_decay=lr_decay,
            weight_decay=weight_decay,
            initial_accumulator_value=initial_accumulator_value,
            eps=eps,
        )
        super().__init__(
            params,
            {
                "lr": lr,
                "lr_decay": lr_decay,
                "eps": eps,
                "weight_decay": weight_decay,
                "initial_accumulator_value": initial_accumulator_value,
                "foreach": foreach,
                "maximize": maximize,
                "differentiable": differentiable,
                "fused": fused,
            },
        )
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p] = {
                    "step": counter(),
                    "sum": full(tuple(p.shape), group["initial_accumulator_value"], dtype=p.dtype),
                }

    def _update(self, p: Any, grad: Any, state: dict[str, Any], group: dict[str, Any]) -> None:
        step, total = state["step"], state["sum"]
        step.add_(1)
        if group["weight_decay"] != 0:
            grad = grad + p * group["weight_decay"]
        rate = group["lr"] / ((step - 1) * group["lr_decay"] + 1)
        total.add_(grad * grad)
        p.sub_(grad / (total.sqrt() + group["eps"]) * rate)


class RMSprop(Optimizer):
    """p -= lr * g / (sqrt(average g^2) + eps), centred and with momentum if asked."""

    def __init__(
        self,
        params: ParamsT,
        lr: Any = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        not_negative(lr=lr, eps=eps, momentum=momentum, weight_decay=weight_decay, alpha=alpha)
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "alpha": alpha,
                "eps": eps,
                "centered": centered,
                "weight_decay": weight_decay,
                "capturable": capturable,
                "foreach": foreach,
                "maximize": maximize,
                "differentiable": differentiable,
            },
        )

    def _update(self, p: Any, grad: Any, state: dict[str, Any], group: dict[str, Any]) -> None:
        if "step" not in state:
            state["step"], state["square_avg"] = counter(), zeros_for(p)
            if group["momentum"] > 0:
                state["momentum_buffer"] = zeros_for(p)
            if group["centered"]:
                state["grad_avg"] = zeros_for(p)
        state["step"].add_(1)
        square, alpha = state["square_avg"], group["alpha"]
        if group["weight_decay"] != 0:
            grad = grad + p * group["weight_decay"]
        square.mul_(alpha).add_(grad * grad * (1 - alpha))
        if group["centered"]:
            average = state["grad_avg"]
            average.lerp_(grad, 1 - alpha)
            scale = (square - average * average).sqrt()
        else:
            scale = square.sqrt()
        change = grad / (scale + group["eps"])
        if group["momentum"] > 0:
            buffer = state["momentum_buffer"]
            buffer.mul_(group["momentum"]).add_(change)
            change = buffer
        p.sub_(change * group["lr"])
