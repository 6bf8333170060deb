"""Learning rates that follow the number of steps: each scheduler writes `group["lr"]` and remembers the first rates.

Rates are given in closed form of the step count, so a run resumed from `state_dict` goes on exactly.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tracejit.optim.optimizer import Optimizer

__all__ = [
    "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "ExponentialLR", "LRScheduler", "LambdaLR",
    "LinearLR", "MultiStepLR", "MultiplicativeLR", "OneCycleLR", "PolynomialLR", "ReduceLROnPlateau", "SequentialLR",
    "StepLR",
]  # fmt: skip


class LRScheduler:
    """Base of the schedulers: `step()` counts, `rate(group, initial)` gives the rate of the new count."""

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        if not isinstance(optimizer, Optimizer):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"a scheduler works on an Optimizer, got {type(optimizer).__name__}")
        self.optimizer = optimizer
        for i, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", group["lr"])  # a second scheduler starts from the same rate
            elif "initial_lr" not in group:
                raise KeyError(f"parameter group {i} has no 'initial_lr' to resume from")
        self.base_lrs: list[Any] = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._last_lr: list[Any] = []
        self.step()

    def rate(self, initial: Any, i: int, current: Any) -> Any:
        """The rate of group i, which began with `initial` and has `current`, at `self.last_epoch`."""
        raise NotImplementedError

    def get_lr(self) -> list[Any]:
        """The rates of the present count."""
        groups = self.optimizer.param_groups
        return [self.rate(initial, i, group["lr"]) for i, (initial, group) in enumerate(zip(self.base_lrs, groups))]

    def get_last_lr(self) -> list[Any]:
        """The rates written last."""
        return self._last_lr

    def step(self, epoch: int | None = None) -> None:
        """Count one step (or jump to `epoch`) and write the rates."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        for group, lr in zip(self.optimizer.param_groups, self.get_lr()):
            group["lr"] = lr
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimizer and functions."""
        return {k: v for k, v in self.__dict__.items() if k not in ("optimizer", "lr_lambdas", "anneal")}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self.__dict__.update(state_dict)


def _for_each(value: Any, optimizer: Optimizer, name: str) -> list[Any]:
    """One value for each group."""
    count = len(optimizer.param_groups)
    if not isinstance(value, (list, tuple)):
        return [value] * count
    if len(value) != count:
        raise ValueError(f"{name} has {len(value)} entries for {count} parameter groups")
    return list(value)


class LambdaLR(LRScheduler):
    """initial * lr_lambda(step)."""

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:
        self.lr_lambdas = _for_each(lr_lambda, optimizer, "lr_lambda")
        super().__init__(optimizer, last_epoch)

    def rate(self, initial: Any, i: int, current: Any) -> Any:
        return initial * self.lr_lambdas[i](self.last_epoch)


class MultiplicativeLR(LambdaLR):
    """The last rate * lr_lambda(step)."""

    def rate(self, initial: Any, i: int, current: Any) -> Any:
        return current * self.lr_lambdas[i](self.last_epoch) if self.last_epoch > 0 else current


class StepLR(LRScheduler):
    """initial * gamma^(step // step_size)."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1) -> None:
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, initial: Any, i: int, current: Any) -> Any:
        return initial * self.gamma ** (self.last_epoch // self.step_size)


class MultiStepLR(LRScheduler):
    """initial * gamma^(how many milestones are behind)."""

    def __init__(
        self, optimizer: Optimizer, milestones: Sequence[int], gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.milestones, self.gamma = sorted(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, initial: Any, i: int, current: Any) -> Any:
        return initial * self.gamma ** bisect_right(self.milestones, self.last_epoch)


class ConstantLR(LRScheduler):
    """initial * factor for the first total_iters steps, then initial."""

    def __init__(self, optimizer: Optimizer, factor: float = 1 / 3, total_iters: int = 5, last_epoch: int = -1) -> None:
        if not 0 <= factor <= 1:
            raise ValueError(f"factor is {factor}, wanted 0 .. 1")
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def rate(self, initial: Any, i: int, current: Any) -> Any:
        return initial * (self.factor if self.last_epoch < self.total_iters else 1.0)


class LinearLR(LRScheduler):
    """initial times a factor that moves from start_factor to end_factor in total_iters steps."""

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0 < start_factor <= 1 or not 0 <= end_factor <= 1:
            raise ValueError(f"factors are {start_factor} and {end_factor}, wanted 0 .. 1 and a start above 0")
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer, last_epoch)

    def rate(self, initial: Any, i: int, current: Any) -> Any:
        done = min(self.last_epoch, self.total_iters) / self.total_iters
        return initial * (self.start_factor + (self.end_factor - self.start_factor) * done)


class ExponentialLR(LRScheduler):
    """initial * gamma^step."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, initial: Any, i: int, current: Any) -> Any:
        return initial * self.gamma**self.last_epoch


class PolynomialLR(LRScheduler):
    """initial * (1 - step / total_iters)^power, 0 afterwards."""

    def __init__(self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1) -> None:
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def rate(self, initial: Any, i: int, current: Any) -> Any:
        return initial * (1 - min(self.last_epoch, self.total_iters) / self.total_iters) ** self.power


class CosineAnnealingLR(LRScheduler):
    """From initial down to eta_min along half a cosine of T_max steps (and up again)."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def rate(self, initial: Any, i: int, current: Any) -> Any:
        return self.eta_min + (initial - self.eta_min) * (1 + math.cos(math.pi * self.last_epoch / self.T_max)) / 2


class CosineAnnealingWarmRestarts(LRScheduler):
    """Half cosines of T_0, T_0 * T_mult, T_0 * T_mult^2, ... steps."""

    def __init__(
        self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        if T_0 <= 0 or T_mult < 1:
            raise ValueError(f"T_0 and T_mult must be positive, got {T_0} and {T_mult}")
        self.T_0, self.T_mult, self.eta_min = T_0, T_mult, eta_min
        super().__init__(optimizer, last_epoch)

    def rate(self, initial: Any, i: int, current: Any) -> Any:
        at, length = self.last_epoch, self.T_0
        while at >= length:
            at, length = at - length, length * self.T_mult
        return self.eta_min + (initial - self.eta_min) * (1 + math.cos(math.pi * at / length)) / 2


class OneCycleLR(LRScheduler):
    """Up from max_lr / div_factor to max_lr, then down far below; momentum goes the other way."""

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: Any,
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: Any = 0.85,
        max_momentum: Any = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ValueError("OneCycleLR wants total_steps, or epochs and steps_per_epoch")
            total_steps = epochs * steps_per_epoch
        if total_steps <= 0 or not 0 <= pct_start <= 1:
            raise ValueError(
                f"OneCycleLR wants positive steps and pct_start in 0 .. 1, got {total_steps} and {pct_start}"
            )
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy is {anneal_strategy!r}, wanted 'cos' or 'linear'")
        self.total_steps, self.three_phase = total_steps, three_phase
        self.anneal_strategy = anneal_strategy
        top = float(pct_start * total_steps) - 1
        ends = [top, 2 * top, total_steps - 1] if three_phase else [top, total_steps - 1]
        self.ends = ends
        highest = _for_each(max_lr, optimizer, "max_lr")
        if last_epoch == -1:
            for group, high in zip(optimizer.param_groups, highest):
                group["lr"], group["max_lr"] = high / div_factor, high
                group["min_lr"] = high / div_factor / final_div_factor
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            if not all("momentum" in g or "betas" in g for g in optimizer.param_groups):
                raise ValueError("cycle_momentum wants an optimizer with momentum or betas")
            lows, highs = (
                _for_each(v, optimizer, n)
                for v, n in ((base_momentum, "base_momentum"), (max_momentum, "max_momentum"))
            )
            for group, low, high in zip(optimizer.param_groups, lows, highs):
                group["base_momentum"], group["max_momentum"] = low, high
        super().__init__(optimizer, last_epoch)

    def _between(self, levels: Sequence[float]) -> float:
        """The level at the present step, which moves from each entry of `levels` to the next over the phases."""
        start = 0.0
        for end, (a, b) in zip(self.ends, itertools.pairwise(levels)):
            if self.last_epoch <= end or end == self.ends[-1]:
                done = (self.last_epoch - start) / (end - start)
                return (
                    a + (b - a) * done
                    if self.anneal_strategy == "linear"
                    else b + (a - b) / 2 * (1 + math.cos(math.pi * done))
                )
            start = end
        raise AssertionError("a cycle has a phase")

    def rate(self, initial: Any, i: int, current: Any) -> Any:
        group = self.optimizer.param_groups[i]
        levels = (
            [initial, group["max_lr"], initial, group["min_lr"]]
            if self.three_phase
            else [initial, group["max_lr"], group["min_lr"]]
        )
        return self._between(levels)

    def step(self, epoch: int | None = None) -> None:
        if (self.last_epoch + 1 if epoch is None else epoch) >= self.total_steps:
            raise ValueError(f"OneCycleLR was made for {self.total_steps} steps, this is one more")
        super().step(epoch)
        if self.cycle_momentum:
            for group in self.optimizer.param_groups:
                low, high = group["base_momentum"], group["max_momentum"]
                value = self._between([high, low, high, high] if self.three_phase else [high, low, high])
                if "betas" in group:
                    group["betas"] = (value, *group["betas"][1:])
                else:
                    group["momentum"] = value


class SequentialLR:
    """Schedulers one after another, changing at the milestones."""

    def __init__(
        self, optimizer: Optimizer, schedulers: Sequence[LRScheduler], milestones: Sequence[int], last_epoch: int = -1
    ) -> None:
        if len(schedulers) != len(milestones) + 1:
            raise ValueError(
                f"{len(schedulers)} schedulers want {len(schedulers) - 1} milestones, got {len(milestones)}"
            )
        self.optimizer, self._schedulers, self._milestones = optimizer, list(schedulers), list(milestones)
        self.last_epoch = last_epoch + 1
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"]
        for scheduler in schedulers:
            scheduler.last_epoch -= 1
        self._schedulers[0].step()
        self._last_lr = self._schedulers[0].get_last_lr()

    def get_last_lr(self) -> list[Any]:
        """The rates written last."""
        return self._last_lr

    def step(self) -> None:
        """Count one step of the scheduler whose turn it is."""
        self.last_epoch += 1
        turn = bisect_right(self._milestones, self.last_epoch)
        if turn and self._milestones[turn - 1] == self.last_epoch:
            self._schedulers[turn].step(0)
        else:
            self._schedulers[turn].step()
        self._last_lr = self._schedulers[turn].get_last_lr()

    def state_dict(self) -> dict[str, Any]:
        """The count and the schedulers' states."""
        return {"last_epoch": self.last_epoch, "_schedulers": [s.state_dict() for s in self._schedulers]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self.last_epoch = state_dict["last_epoch"]
        for scheduler, state in zip(self._schedulers, state_dict["_schedulers"]):
            scheduler.load_state_dict(state)


class ReduceLROnPlateau:
    """The rate times `factor` when a metric has not improved for `patience` steps."""

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: Any = 0,
        eps: float = 1e-8,
    ) -> None:
        if factor >= 1:
            raise ValueError(f"factor is {factor}, wanted below 1")
        if mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
            raise ValueError(f"mode {mode!r} and threshold_mode {threshold_mode!r}: wanted min or max, rel or abs")
        self.optimizer, self.mode, self.factor, self.patience = optimizer, mode, factor, patience
        self.threshold, self.threshold_mode, self.cooldown, self.eps = threshold, threshold_mode, cooldown, eps
        self.min_lrs = _for_each(min_lr, optimizer, "min_lr")
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = self.cooldown_counter = self.last_epoch = 0
        self._last_lr: list[Any] = [g["lr"] for g in optimizer.param_groups]

    def _is_better(self, value: float) -> bool:
        sign = -1 if self.mode == "min" else 1
        if self.threshold_mode == "abs":
            return sign * (value - self.best) > self.threshold
        return sign * (value - self.best * (1 + sign * self.threshold)) > 0

    def step(self, metrics: Any, epoch: int | None = None) -> None:
        """Note the metric and lower the rates if it is time."""
        value = float(metrics)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self._is_better(value):
            self.best, self.num_bad_epochs = value, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            for group, least in zip(self.optimizer.param_groups, self.min_lrs):
                new = max(group["lr"] * self.factor, least)
                if group["lr"] - new > self.eps:
                    group["lr"] = new
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        self._last_lr = [g["lr"] for g in self.optimizer.param_groups]

    def get_last_lr(self) -> list[Any]:
        """The rates written last."""
        return self._last_lr

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimizer."""
        return {k: v for k, v in self.__dict__.items() if k != "optimizer"}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self.__dict__.update(state_dict)
