"""Losses scaled up so that small gradients survive a narrow float, and steps skipped where one overflowed.

The scale and the count of good steps are tensors written in place, so that a recorded step serves all later ones; only
whether a step is skipped is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracejit.ir.dtype import float32, int32
from tracejit.tensor.autograd import no_grad
from tracejit.tensor.creation import full
from tracejit.tensor.functions import where
from tracejit.tensor.tensor import Tensor

__all__ = ["GradScaler"]

_READY, _UNSCALED, _STEPPED = "ready", "unscaled", "stepped"


class GradScaler:
    """Use as PyTorch's: `scaler.scale(loss).backward(); scaler.step(opt); scaler.update()`."""

    def __init__(
        self,
        device: str = "cpu",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        if growth_factor <= 1:
            raise ValueError(f"the growth factor must be above 1, got {growth_factor}")
        if not backoff_factor < 1:
            raise ValueError(f"the backoff factor must be below 1, got {backoff_factor}")
        self._device, self._enabled, self._init_scale = device, enabled, init_scale
        self._growth_factor, self._backoff_factor = growth_factor, backoff_factor
        self._growth_interval = growth_interval
        self._scale = full((), float(init_scale), dtype=float32)
        self._good_steps = full((), 0, dtype=int32)
        self._stages: dict[Any, str] = {}  # optimizer -> how far it is in this iteration
        self._found_inf: dict[Any, Tensor] = {}  # optimizer -> whether a gradient of it was not finite, 0 or 1

    def scale(self, outputs: Any) -> Any:
        """`outputs` (a tensor, or tensors in lists and tuples) times the scale."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            return outputs * self._scale.to(outputs.dtype)  # type: ignore[attr-defined]
        if isinstance(outputs, (list, tuple)):
            return type(outputs)([self.scale(x) for x in outputs])
        raise TypeError(f"outputs must be tensors in lists or tuples, got {type(outputs).__name__}")

    def unscale_(self, optimizer: Any) -> None:
        """Divide the gradients of the optimizer's parameters by the scale; once, before they are clipped."""
        if not self._enabled:
            return
        stage = self._stages.get(optimizer, _READY)
        if stage == _UNSCALED:
            raise RuntimeError("unscale_() has already been called on this optimizer since the last update()")
        if stage == _STEPPED:
            raise RuntimeError("unscale_() is being called after step()")
        with no_grad():
            inverse = self._scale.double().reciprocal().float()  # type: ignore[attr-defined]
            found: Any = full((), 0.0, dtype=float32)
            for group in optimizer.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.grad.mul_(inverse.to(p.grad.dtype))
                        found = found.maximum((~p.grad.isfinite()).any().float())
        if optimizer in self._found_inf:
            self._found_inf[optimizer].copy_(found)  # type: ignore[attr-defined]
        else:
            self._found_inf[optimizer] = found
        self._stages[optimizer] = _UNSCALED

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """The optimizer's step, left out where a gradient is not finite; unscales first where that was not done."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if kwargs.get("closure") is not None:
            raise RuntimeError("a closure cannot be used where steps may be left out")
        stage = self._stages.get(optimizer, _READY)
        if stage == _STEPPED:
            raise RuntimeError("step() has already been called since the last update()")
        if stage == _READY:
            self.unscale_(optimizer)
        out = None
        if not (self._found_inf[optimizer] > 0):
            out = optimizer.step(*args, **kwargs)
        self._stages[optimizer] = _STEPPED
        return out

    def update(self, new_scale: Any = None) -> None:
        """Lower the scale after a skipped step, raise it after `growth_interval` good ones; or set it."""
        if not self._enabled:
            return
        with no_grad():
            if new_scale is not None:
                self._scale.copy_(new_scale) if isinstance(new_scale, Tensor) else self._scale.fill_(new_scale)  # type: ignore[attr-defined]
            else:
                self._grow_or_shrink()
        for optimizer in self._stages:
            self._stages[optimizer] = _READY

    def _grow_or_shrink(self) -> None:
        known = [self._found_inf[o] for o, stage in self._stages.items() if stage != _READY]
        if not known:
            raise RuntimeError("no step was taken before update()")
        found: Any = known[0]
        for other in known[1:]:
            found = found.maximum(other)
        bad = found > 0
        steps: Any = self._good_steps + 1
        grown = steps >= self._growth_interval
        factor = where(grown, self._growth_factor, 1.0)
        self._scale.mul_(where(bad, self._backoff_factor, factor))  # type: ignore[attr-defined]
        self._good_steps.copy_(where(bad | grown, 0, steps))  # type: ignore[attr-defined]

    def get_scale(self) -> float:
        """The scale now, 1 where disabled."""
        return self._scale.item() if self._enabled else 1.0

    def get_growth_factor(self) -> float:
        """What the scale is multiplied by after enough good steps."""
        return self._growth_factor

    def get_backoff_factor(self) -> float:
        """What the scale is multiplied by after a skipped step."""
        return self._backoff_factor

    def get_growth_interval(self) -> int:
        """How many good steps are enough."""
        return self._growth_interval

    def is_enabled(self) -> bool:
        """Whether anything is scaled."""
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """The state, in PyTorch's keys."""
        if not self._enabled:
            return {}
        return {
            "scale": self.get_scale(),
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._good_steps.item(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state."""
        if not self._enabled:
            return
        if not state_dict:
            raise RuntimeError("the state_dict is empty: it was saved from a disabled scaler")
        self._growth_factor, self._backoff_factor = state_dict["growth_factor"], state_dict["backoff_factor"]
        self._growth_interval = state_dict["growth_interval"]
        with no_grad():
            self._scale.fill_(state_dict["scale"])  # type: ignore[attr-defined]
            self._good_steps.fill_(state_dict["_growth_tracker"])  # type: ignore[attr-defined]
