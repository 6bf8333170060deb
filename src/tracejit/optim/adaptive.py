"""Further optimizers whose step follows the history of each coordinate. Choices PyTorch makes in Python are selects
here."""

from __future__ import annotations

from typing import Any

from tracejit.ops.composed import lerp, where
from tracejit.optim.adam import check_betas
from tracejit.optim.optimizer import Optimizer, ParamsT, counter, not_negative, zeros_for

__all__ = ["ASGD", "Adadelta", "NAdam", "RAdam", "Rprop"]


def _flags(foreach: Any, maximize: bool, differentiable: bool, capturable: bool) -> dict[str, Any]:
    return {"foreach": foreach, "maximize": maximize, "differentiable": differentiable, "capturable": capturable}


class Adadelta(Optimizer):
    """p -= lr * d, d = g * sqrt(average d^2 + eps) / sqrt(average g^2 + eps)."""

    def __init__(
        self,
        params: ParamsT,
        lr: Any = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        capturable: bool = False,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        not_negative(lr=lr, eps=eps, weight_decay=weight_decay, rho=rho)
        if rho > 1:
            raise ValueError(f"rho is {rho}, wanted 0 .. 1")
        own = {"lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, own | _flags(foreach, maximize, differentiable, capturable))

    def _update(self, p: Any, grad: Any, state: dict[str, Any], group: dict[str, Any]) -> None:
        if "step" not in state:
            state["step"], state["square_avg"], state["acc_delta"] = counter(), zeros_for(p), zeros_for(p)
        square, moved, rho, eps = state["square_avg"], state["acc_delta"], group["rho"], group["eps"]
        state["step"].add_(1)
        if group["weight_decay"] != 0:
            grad = grad + p * group["weight_decay"]
        square.mul_(rho).add_(grad * grad * (1 - rho))
        delta = (moved + eps).sqrt() / (square + eps).sqrt() * grad
        moved.mul_(rho).add_(delta * delta * (1 - rho))
        p.sub_(delta * group["lr"])


class Rprop(Optimizer):
    """p -= sign(g) * size; the size grows while g keeps its sign and shrinks when it turns."""

    def __init__(
        self,
        params: ParamsT,
        lr: Any = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50),
        *,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        not_negative(lr=lr)
        if not 0 < etas[0] < 1 < etas[1]:
            raise ValueError(f"etas are {etas}, wanted one below 1 and one above")
        own = {"lr": lr, "etas": etas, "step_sizes": step_sizes}
        super().__init__(params, own | _flags(foreach, maximize, differentiable, capturable))

    def _update(self, p: Any, grad: Any, state: dict[str, Any], group: dict[str, Any]) -> None:
        if "step" not in state:
            state["step"], state["prev"] = counter(), zeros_for(p)
            state["step_size"] = zeros_for(p) + group["lr"]
        before, size = state["prev"], state["step_size"]
        state["step"].add_(1)
        shrink, grow = group["etas"]
        same = grad * before
        size.mul_(where(same > 0, grow, where(same < 0, shrink, 1.0)))
        size.clamp_(*group["step_sizes"])
        grad = where(same < 0, 0.0, grad)
        p.sub_(grad.sign() * size)
        before.copy_(grad)


class ASGD(Optimizer):
    """SGD with decaying rate `eta`, and in `ax` the average of the parameters from step t0 on."""

    def __init__(
        self,
        params: ParamsT,
        lr: Any = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        not_negative(lr=lr, weight_decay=weight_decay)
        own = {"lr": lr, "lambd": lambd, "alpha": alpha, "t0": t0, "weight_decay": weight_decay}
        super().__init__(params, own | _flags(foreach, maximize, differentiable, capturable))

    def _update(self, p: Any, grad: Any, state: dict[str, Any], group: dict[str, Any]) -> None:
        if "step" not in state:
            state["step"], state["eta"], state["mu"] = counter(), counter(group["lr"]), counter(1)
            state["ax"] = zeros_for(p)
        step, eta, mu, mean = state["step"], state["eta"], state["mu"], state["ax"]
        step.add_(1)
        if group["weight_decay"] != 0:
            grad = grad + p * group["weight_decay"]
        p.mul_((1 - eta.double() * group["lambd"]).to(p.dtype))
        p.sub_(grad * eta.to(p.dtype))
        mean.copy_(lerp(mean, p, mu.to(p.dtype)))
        count = step.double()
        eta.copy_(group["lr"] / (count * group["lambd"] * group["lr"] + 1) ** group["alpha"])
        mu.copy_(1.0 / (count - group["t0"]).clamp(min=1.0))


class NAdam(Optimizer):
    """Adam with Nesterov's look ahead: the mean is moved one step on before it is used."""

    def __init__(
        self,
        params: ParamsT,
        lr: Any = 2e-3,
        betas: Any = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        not_negative(lr=lr, eps=eps, weight_decay=weight_decay, momentum_decay=momentum_decay)
        check_betas(betas)
        own = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "momentum_decay": momentum_decay}
        own["decoupled_weight_decay"] = decoupled_weight_decay
        super().__init__(params, own | _flags(foreach, maximize, differentiable, capturable))

    def _update(self, p: Any, grad: Any, state: dict[str, Any], group: dict[str, Any]) -> None:
        if "step" not in state:
            state["step"], state["mu_product"] = counter(), counter(1)
            state["exp_avg"], state["exp_avg_sq"] = zeros_for(p), zeros_for(p)
        beta1, beta2 = group["betas"]
        step, product, mean, square = state["step"], state["mu_product"], state["exp_avg"], state["exp_avg_sq"]
        step.add_(1)
        if group["weight_decay"] != 0:
            if group["decoupled_weight_decay"]:
                p.mul_(1 - group["lr"] * group["weight_decay"])
            else:
                grad = grad + p * group["weight_decay"]
        count = step.double()
        now = beta1 * (1 - 0.5 * 0.96 ** (count * group["momentum_decay"]))
        following = beta1 * (1 - 0.5 * 0.96 ** ((count + 1) * group["momentum_decay"]))
        product.mul_(now.float())
        mean.lerp_(grad, 1 - beta1)
        square.mul_(beta2).add_(grad * grad * (1 - beta2))
        root = (1 - beta2**count).to(p.dtype)
        scale = (square / root).sqrt() + group["eps"]
        wide = product.double()
        by_grad = (group["lr"] * (1 - now) / (1 - wide)).to(p.dtype)
        by_mean = (group["lr"] * following / (1 - wide * following)).to(p.dtype)
        p.sub_((grad * by_grad + mean * by_mean) / scale)


class RAdam(Optimizer):
    """Adam that waits with the division by sqrt(v) until v's variance is known, and corrects for it."""

    def __init__(
        self,
        params: ParamsT,
        lr: Any = 1e-3,
        betas: Any = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        not_negative(lr=lr, eps=eps, weight_decay=weight_decay)
        check_betas(betas)
        own = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        own["decoupled_weight_decay"] = decoupled_weight_decay
        super().__init__(params, own | _flags(foreach, maximize, differentiable, capturable))

    def _update(self, p: Any, grad: Any, state: dict[str, Any], group: dict[str, Any]) -> None:
        if "step" not in state:
            state["step"], state["exp_avg"], state["exp_avg_sq"] = counter(), zeros_for(p), zeros_for(p)
        beta1, beta2 = group["betas"]
        step, mean, square = state["step"], state["exp_avg"], state["exp_avg_sq"]
        step.add_(1)
        if group["weight_decay"] != 0:
            if group["decoupled_weight_decay"]:
                p.mul_(1 - group["lr"] * group["weight_decay"])
            else:
                grad = grad + p * group["weight_decay"]
        mean.lerp_(grad, 1 - beta1)
        square.mul_(beta2).add_(grad * grad * (1 - beta2))
        count = step.double()
        power = beta2**count
        limit = 2 / (1 - beta2) - 1
        length = limit - 2 * count * power / (1 - power)
        known = length > 5
        safe = where(known, length, 6.0)  # the root is of a positive number in both branches
        rectified = ((safe - 4) * (safe - 2) * limit / ((limit - 4) * (limit - 2) * safe)).sqrt()
        by_square = (rectified * (1 - power).sqrt()).to(p.dtype) / (square.sqrt() + group["eps"])
        size = (group["lr"] / (1 - beta1**count)).to(p.dtype)
        p.sub_(mean * size * where(known, by_square, 1.0))
