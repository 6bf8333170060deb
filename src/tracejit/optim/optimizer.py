"""`Optimizer`: groups of parameters with their settings, and state for each parameter.

Every write is an in-place tensor op under `no_grad`, and step counts are tensors, so that a recorded step changes no
Python number and one trace serves all steps.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tracejit.ir.dtype import float32
from tracejit.tensor.autograd import enable_grad, no_grad
from tracejit.tensor.creation import full, zeros
from tracejit.tensor.tensor import Tensor
from tracejit.tensor.together import Job, Together, recorded

__all__ = ["Optimizer", "ParamsT"]

ParamsT = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]


class Optimizer:
    """Base of all optimizers. Subclasses give `defaults` and define `_update(p, grad, state, group)`."""

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        if isinstance(params, Tensor):
            raise TypeError("params must be an iterable of tensors or dicts, got a tensor")
        self.defaults = defaults
        self.state: dict[Tensor, dict[str, Any]] = {}
        self.param_groups: list[dict[str, Any]] = []
        self._step_pre_hooks: list[Any] = []
        self._step_post_hooks: list[Any] = []
        self._together = Together()
        groups: list[Any] = list(params)
        if not groups:
            raise ValueError("an optimizer got an empty list of parameters")
        for group in groups if isinstance(groups[0], dict) else [{"params": groups}]:
            self.add_param_group(group)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with settings of their own; what is not given is taken from the defaults."""
        if not isinstance(param_group, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"a parameter group is a dict, got {type(param_group).__name__}")
        group = dict(param_group)
        params: Any = group["params"]
        if isinstance(params, set):
            raise TypeError("parameters must be in an order, got a set")
        params = [params] if isinstance(params, Tensor) else list(params)
        if params and isinstance(params[0], tuple):
            group["param_names"] = [name for name, _ in params]
            params = [p for _, p in params]
        for p in params:
            if not isinstance(p, Tensor):
                raise TypeError(f"an optimizer works on tensors, got {type(p).__name__}")
            if not p.is_leaf:
                raise ValueError(f"an optimizer works on leaf tensors, {p.type} has a history")
        group["params"] = params
        for name, value in self.defaults.items():
            group.setdefault(name, value)
        if self.param_groups and ("param_names" in group) != ("param_names" in self.param_groups[0]):
            raise ValueError("parameters are named in some groups but not in all")
        known: set[Tensor] = set()
        for g in self.param_groups:
            known.update(g["params"])
        if known.intersection(params):
            raise ValueError("a parameter is in more than one group")
        if len(set(params)) != len(params):
            raise ValueError("a parameter stands twice in one group")
        self.param_groups.append(group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, or fill them with zeros."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    if set_to_none:
                        p.grad = None
                    else:
                        p.grad = p.grad.detach()
                        p.grad.zero_()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; `closure` computes the loss first and is what is returned."""
        for hook in self._step_pre_hooks:
            hook(self, (closure,), {})
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        with no_grad():
            if recorded() or not self._step_together():
                self._step_one_by_one()
        for hook in self._step_post_hooks:
            hook(self, (closure,), {})
        return loss

    def _step_one_by_one(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    if p not in self.state:
                        self.state[p] = {}
                    grad = -p.grad if group.get("maximize", False) else p.grad
                    self._update(p, grad, self.state[p], group)

    def _step_together(self) -> bool:
        """Update all parameters in one native call, where that is possible."""
        if not type(self)._update.__module__.startswith("tracejit.optim."):  # a user's: it may do what ops do not show
            return False
        jobs: list[Job] = []
        for group in self.param_groups:
            for p in group["params"]:
                if p._grad is not None:
                    if p not in self.state:
                        return False
                    jobs.append((group, p, self.state[p]))
        return self._together.step(jobs, self._update)

    def _update(self, p: Any, grad: Any, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Write the new value of one parameter; `state` is empty the first time."""
        raise NotImplementedError

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> None:
        """Call `hook(optimizer, args, kwargs)` before each step."""
        self._step_pre_hooks.append(hook)

    def register_step_post_hook(self, hook: Callable[..., Any]) -> None:
        """Call `hook(optimizer, args, kwargs)` after each step."""
        self._step_post_hooks.append(hook)

    # -- saving and loading

    def state_dict(self) -> dict[str, Any]:
        """State and settings, parameters replaced by their numbers."""
        numbers: dict[Tensor, int] = {}
        groups: list[dict[str, Any]] = []
        for group in self.param_groups:
            for p in group["params"]:
                numbers.setdefault(p, len(numbers))
            groups.append(
                {k: v for k, v in group.items() if k != "params"} | {"params": [numbers[p] for p in group["params"]]}
            )
        return {"state": {numbers[p]: s for p, s in self.state.items()}, "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over state and settings. Raises ValueError where groups or their sizes differ."""
        groups: list[dict[str, Any]] = [dict(g) for g in state_dict["param_groups"]]
        if len(groups) != len(self.param_groups):
            raise ValueError(
                f"the state_dict has {len(groups)} parameter groups, the optimizer {len(self.param_groups)}"
            )
        by_number: dict[Any, Tensor] = {}
        for old, new in zip(self.param_groups, groups):
            if len(old["params"]) != len(new["params"]):
                raise ValueError(
                    f"a group of the state_dict has {len(new['params'])} parameters, "
                    f"the optimizer's {len(old['params'])}"
                )
            by_number.update(zip(new["params"], old["params"]))
            new["params"] = old["params"]
        self.state = {
            by_number[k]: self._loaded(s, by_number[k]) for k, s in state_dict["state"].items() if k in by_number
        }
        self.param_groups = [copy.copy(g) for g in groups]

    def _loaded(self, state: Mapping[str, Any], p: Any) -> dict[str, Any]:
        """A parameter's state in tensors of its own, of the parameter's dtype except for counts."""
        out: dict[str, Any] = {}
        for name, value in state.items():
            if isinstance(value, Tensor):
                value = value.detach()
                value = value.clone() if name == "step" else value.to(p.dtype, copy=True)  # type: ignore[attr-defined]
            out[name] = value
        return out

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for i, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {i}")
            lines += [f"    {k}: {group[k]}" for k in sorted(group) if k != "params"]
        return "\n".join([*lines, ")"])


def counter(start: float = 0.0) -> Any:
    """A number that is updated in place: a float32 tensor of rank 0."""
    return full((), float(start), dtype=float32)


def not_negative(**values: Any) -> None:
    """Raise ValueError naming the first setting below zero."""
    for name, value in values.items():
        if not isinstance(value, Tensor) and not value >= 0:
            raise ValueError(f"{name} is {value}, wanted 0 or more")


def zeros_for(p: Any) -> Any:
    """Zeros of p's shape and dtype."""
    return zeros(*p.shape, dtype=p.dtype)
