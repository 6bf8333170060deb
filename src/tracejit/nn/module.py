"""`Module`: a tree of parameters, buffers and submodules with a `forward`.

State lives in ordinary dicts of the instance (`_parameters`, `_buffers`, `_modules`, hooks), in a real `__dict__` from
birth, so that recordings can guard it word by word. Assigning an attribute registers it; reading falls back to these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Self

from tracejit.ir import dtype as dt
from tracejit.ir.dtype import DType
from tracejit.nn.parameter import Buffer, Parameter
from tracejit.tensor.autograd import Function, no_grad
from tracejit.tensor.tensor import Device, Tensor

__all__ = ["HookHandle", "IncompatibleKeys", "Module"]


class HookHandle:
    """A registered hook; `remove()` takes it away again."""

    def __init__(self, hooks: dict[int, Any], key: int) -> None:
        self.hooks: dict[int, Any] | None = hooks
        self.key = key

    def remove(self) -> None:
        """Unregister; doing it twice does nothing."""
        if self.hooks is not None:
            self.hooks.pop(self.key, None)
            self.hooks = None

    def __enter__(self) -> HookHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


class IncompatibleKeys(NamedTuple):
    """What `load_state_dict(strict=False)` did not find on either side."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return f"IncompatibleKeys(missing_keys={self.missing_keys}, unexpected_keys={self.unexpected_keys})"

    __str__ = __repr__


def _add_hook(hooks: dict[int, Any], hook: Any, first: bool) -> HookHandle:
    key = max(hooks, default=-1) + 1
    if first:
        later = dict(hooks)
        hooks.clear()
        hooks[key] = hook
        hooks.update(later)
    else:
        hooks[key] = hook
    return HookHandle(hooks, key)


class Module:
    """Base of all layers and models. Subclasses call `super().__init__()`, assign their parts, and define `forward`."""

    training: bool
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _modules: dict[str, Module | None]
    _transient: set[str]  # buffers that state_dict leaves out
    # By kind: forward (hook, wants kwargs, runs also after an error), forward_pre (hook, wants kwargs), backward,
    # backward_pre. None until the first hook: every call asks, and a dict to ask would need a guard of its own.
    _call_hooks: dict[str, dict[int, Any]] | None
    _state_dict_hooks: dict[int, Any]
    _load_state_dict_pre_hooks: dict[int, Any]
    _load_state_dict_post_hooks: dict[int, Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        self = super().__new__(cls)
        self.__dict__ = {}  # a dict of its own, not inline values: its keys version is a word that guards can read
        return self

    def __init__(self) -> None:
        d = self.__dict__
        d["training"] = True
        d["_parameters"] = {}
        d["_buffers"] = {}
        d["_transient"] = set()
        d["_modules"] = {}
        d["_call_hooks"] = None
        d["_state_dict_hooks"] = {}
        d["_load_state_dict_pre_hooks"] = {}
        d["_load_state_dict_post_hooks"] = {}

    # -- attributes are registrations

    def __setattr__(self, name: str, value: Any) -> None:
        d = self.__dict__
        if isinstance(value, Parameter):
            if "_parameters" not in d:
                raise AttributeError(f"{name} is assigned before super().__init__() was called")
            self._forget(name)
            self.register_parameter(name, value)
        elif isinstance(value, Module):
            if "_modules" not in d:
                raise AttributeError(f"{name} is assigned before super().__init__() was called")
            self._forget(name)
            d["_modules"][name] = value
        elif isinstance(value, Buffer):
            self._forget(name)
            self.register_buffer(name, value, value.persistent)
        elif "_parameters" in d and name in d["_parameters"]:
            if value is not None:
                raise TypeError(f"parameter {name} cannot become a {type(value).__name__}: assign a Parameter or None")
            d["_parameters"][name] = None
        elif "_modules" in d and name in d["_modules"]:
            if value is not None:
                raise TypeError(f"submodule {name} cannot become a {type(value).__name__}: assign a Module or None")
            d["_modules"][name] = None
        elif "_buffers" in d and name in d["_buffers"]:
            if value is not None and not isinstance(value, Tensor):
                raise TypeError(f"buffer {name} cannot become a {type(value).__name__}: assign a Tensor or None")
            d["_buffers"][name] = value
        else:
            object.__setattr__(self, name, value)

    def _forget(self, name: str) -> None:
        """Drop an attribute of this name whatever it was."""
        d = self.__dict__
        for store in (d, d["_parameters"], d["_buffers"], d["_modules"]):
            if name in store:
                del store[name]
        d["_transient"].discard(name)

    def __getattr__(self, name: str) -> Any:
        d = self.__dict__
        for kind in ("_parameters", "_buffers", "_modules"):
            if kind in d and name in d[kind]:
                return d[kind][name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __delattr__(self, name: str) -> None:
        d = self.__dict__
        for kind in ("_parameters", "_buffers", "_modules"):
            if kind in d and name in d[kind]:
                del d[kind][name]
                d["_transient"].discard(name)
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        own = [*self.__dict__, *self._parameters, *self._buffers, *self._modules]
        return sorted({*object.__dir__(self), *own})

    def _check_name(self, kind: str, name: str, store: Mapping[str, Any]) -> None:
        if "_parameters" not in self.__dict__:
            raise AttributeError(f"{kind} {name} is registered before super().__init__() was called")
        if "." in name or name == "":
            raise KeyError(f'{kind} name {name!r} must not be empty or contain "."')
        if hasattr(self, name) and name not in store:
            raise KeyError(f"{kind} {name!r} would hide the attribute of that name")

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Make `param` reachable as an attribute and part of `parameters()`."""
        self._check_name("parameter", name, self.__dict__.get("_parameters", {}))
        if param is not None:
            if not isinstance(param, Parameter):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"parameter {name} must be a Parameter or None, got {type(param).__name__}")
            if param.grad_fn is not None:
                raise ValueError(f"parameter {name} has a history: only leaf tensors can be parameters")
        self._parameters[name] = param

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Make `tensor` state that is not trained; `state_dict` keeps it where `persistent`."""
        self._check_name("buffer", name, self.__dict__.get("_buffers", {}))
        if tensor is not None and not isinstance(tensor, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"buffer {name} must be a Tensor or None, got {type(tensor).__name__}")
        self._buffers[name] = tensor
        if persistent:
            self._transient.discard(name)
        else:
            self._transient.add(name)

    def add_module(self, name: str, module: Module | None) -> None:
        """Make `module` a part of this one under `name`."""
        self._check_name("module", name, self.__dict__.get("_modules", {}))
        if module is not None and not isinstance(module, Module):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"{name} must be a Module or None, got {type(module).__name__}")
        self._modules[name] = module

    register_module = add_module

    # -- calling

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What calling the module computes."""
        raise NotImplementedError(f"{type(self).__name__} defines no forward()")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._call_hooks:
            return self.forward(*args, **kwargs)
        return self._call_with_hooks(args, kwargs)

    def _hooks(self, kind: str) -> dict[int, Any]:
        if self._call_hooks is None:
            self._call_hooks = {}
        return self._call_hooks.setdefault(kind, {})

    @property
    def _forward_hooks(self) -> dict[int, Any]:
        return self._hooks("forward")

    @property
    def _forward_pre_hooks(self) -> dict[int, Any]:
        return self._hooks("forward_pre")

    @property
    def _backward_hooks(self) -> dict[int, Any]:
        return self._hooks("backward")

    @property
    def _backward_pre_hooks(self) -> dict[int, Any]:
        return self._hooks("backward_pre")

    def _call_with_hooks(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        by_kind = self._call_hooks or {}
        for hook, with_kwargs in list(by_kind.get("forward_pre", {}).values()):
            changed = hook(self, args, kwargs) if with_kwargs else hook(self, args)
            if changed is not None and with_kwargs:
                args, kwargs = changed
            elif changed is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
        see_output = None
        if by_kind.get("backward") or by_kind.get("backward_pre"):
            args, see_output = self._watch_backward(args)
        try:
            out = self.forward(*args, **kwargs)
        except Exception:
            for hook, with_kwargs, always in list(by_kind.get("forward", {}).values()):
                if always:
                    hook(self, args, kwargs, None) if with_kwargs else hook(self, args, None)
            raise
        for hook, with_kwargs, _always in list(by_kind.get("forward", {}).values()):
            changed = hook(self, args, kwargs, out) if with_kwargs else hook(self, args, out)
            if changed is not None:
                out = changed
        return out if see_output is None else _watched(out, see_output)

    def _watch_backward(self, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], Any]:
        """(arguments whose gradients run the backward hooks, what is to see the gradients of the outputs)."""
        by_kind = self._call_hooks or {}
        hooks, pre_hooks = (list(by_kind.get(kind, {}).values()) for kind in ("backward", "backward_pre"))
        grad_output: list[Any] = [None]  # once it is known
        count = len(args)
        waits = any(isinstance(a, Tensor) and a.requires_grad for a in args)

        def run_hooks(grad_input: Any) -> Any:
            for hook in hooks:
                changed = hook(self, grad_input, grad_output[0])
                if changed is not None:
                    grad_input = changed if isinstance(changed, tuple) else (changed,)
            return grad_input

        def see_output(grads: Any) -> Any:
            for hook in pre_hooks:
                changed = hook(self, grads)
                if changed is not None:
                    grads = changed if isinstance(changed, tuple) else (changed,)
            grad_output[0] = grads
            if not waits:
                run_hooks((None,) * count)
            return grads

        return _watched(args, run_hooks) if hooks else args, see_output

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False, always_call: bool = False
    ) -> HookHandle:
        """Call `hook(module, args, output)` after each forward; what it returns, if not None, replaces the output."""
        return _add_hook(self._forward_hooks, (hook, with_kwargs, always_call), prepend)

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> HookHandle:
        """Call `hook(module, args)` before each forward; what it returns, if not None, replaces the arguments."""
        return _add_hook(self._forward_pre_hooks, (hook, with_kwargs), prepend)

    def register_full_backward_hook(self, hook: Callable[..., Any], prepend: bool = False) -> HookHandle:
        """Call `hook(module, grad_input, grad_output)` when the inputs' gradients are known; it may replace them."""
        return _add_hook(self._backward_hooks, hook, prepend)

    def register_full_backward_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> HookHandle:
        """Call `hook(module, grad_output)` when the outputs' gradients are known; it may replace them."""
        return _add_hook(self._backward_pre_hooks, hook, prepend)

    # -- walking the tree

    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """Every module of the tree with its dotted name, this one first; each once."""
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                yield from module.named_modules(memo, f"{prefix}.{name}" if prefix else name, remove_duplicate)

    def modules(self) -> Iterator[Module]:
        """Every module of the tree, this one first."""
        for _, module in self.named_modules():
            yield module

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The direct parts with their names; each once."""
        seen: set[Module] = set()
        for name, module in self._modules.items():
            if module is not None and module not in seen:
                seen.add(module)
                yield name, module

    def children(self) -> Iterator[Module]:
        """The direct parts."""
        for _, module in self.named_children():
            yield module

    def _named_members(
        self, kind: str, prefix: str, recurse: bool, remove_duplicate: bool
    ) -> Iterator[tuple[str, Any]]:
        seen: set[Any] = set()
        owners = self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate) if recurse else [(prefix, self)]
        for path, module in owners:
            for name, value in module.__dict__[kind].items():
                if value is None or value in seen:
                    continue
                if remove_duplicate:
                    seen.add(value)
                yield (f"{path}.{name}" if path else name), value

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Every parameter with its dotted name; one used twice comes once."""
        return self._named_members("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Every parameter, each once."""
        for _, p in self.named_parameters(recurse=recurse):
            yield p

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Every buffer with its dotted name."""
        return self._named_members("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Every buffer."""
        for _, b in self.named_buffers(recurse=recurse):
            yield b

    def get_submodule(self, target: str) -> Module:
        """The module at a dotted path; "" is this one."""
        module: Any = self
        for name in target.split(".") if target else []:
            module = getattr(module, name, None)
            if not isinstance(module, Module):
                raise AttributeError(f"{type(self).__name__} has no submodule {target!r}")
        return module

    def _at(self, target: str) -> Any:
        path, _, name = target.rpartition(".")
        return getattr(self.get_submodule(path), name)

    def get_parameter(self, target: str) -> Parameter:
        """The parameter at a dotted path."""
        value = self._at(target)
        if not isinstance(value, Parameter):
            raise AttributeError(f"{target!r} is not a parameter")
        return value

    def get_buffer(self, target: str) -> Tensor:
        """The buffer at a dotted path."""
        path, _, name = target.rpartition(".")
        store = self.get_submodule(path)._buffers
        if name not in store:
            raise AttributeError(f"{target!r} is not a buffer")
        return store[name]  # type: ignore[return-value]

    def apply(self, fn: Callable[[Module], Any]) -> Self:
        """Call `fn` on every module of the tree, parts first."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    # -- modes and types

    def train(self, mode: bool = True) -> Self:
        """Set training mode for the whole tree."""
        if not isinstance(mode, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"training mode is a bool, got {mode!r}")
        self.training = mode
        for module in self.children():
            module.train(mode)
        return self

    def eval(self) -> Self:
        """Set evaluation mode for the whole tree."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Switch the gradients of all parameters."""
        for p in self.parameters():
            p.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of all parameters, or fill them with zeros."""
        for p in self.parameters():
            if p.grad is not None:
                if set_to_none:
                    p.grad = None
                else:
                    p.grad = p.grad.detach()
                    p.grad.zero_()  # type: ignore[attr-defined]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Replace the data of every parameter, gradient and buffer by fn of it; parameters keep their identity."""
        for module in self.children() if recurse else ():
            module._apply(fn)
        with no_grad():
            for p in self._parameters.values():
                if p is None:
                    continue
                value, grad = fn(p.detach()), p.grad
                p.data = value
                if grad is not None:
                    p.grad = None
                    p.grad = fn(grad)
            for name, b in self._buffers.items():
                if b is not None:
                    self._buffers[name] = fn(b)
        return self

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move to a device, or cast floating point parameters and buffers; in place, as PyTorch does."""
        dtype: Any = kwargs.get("dtype")
        device: Any = kwargs.get("device")
        for a in args:
            if isinstance(a, Tensor):
                dtype, device = a.dtype, a.device
            elif isinstance(a, DType):
                dtype = a
            elif isinstance(a, (str, Device)):
                device = a
        if dtype is not None and not dtype.is_floating_point:
            raise TypeError(f"Module.to takes floating point dtypes, got {dtype}")

        def convert(t: Tensor) -> Tensor:
            if device is not None:
                t = t.to(device)  # type: ignore[attr-defined]
            return t.to(dtype) if dtype is not None and t.dtype.is_floating_point else t  # type: ignore[attr-defined]

        return self._apply(convert)

    def type(self, dst_type: DType) -> Self:
        """All parameters and buffers as `dst_type`."""
        return self._apply(lambda t: t.to(dst_type))  # type: ignore[attr-defined]

    def float(self) -> Self:
        """Floating point parameters and buffers as float32."""
        return self.to(dt.float32)

    def double(self) -> Self:
        """Floating point parameters and buffers as float64."""
        return self.to(dt.float64)

    def half(self) -> Self:
        """Floating point parameters and buffers as float16."""
        return self.to(dt.float16)

    def bfloat16(self) -> Self:
        """Floating point parameters and buffers as bfloat16."""
        return self.to(dt.bfloat16)

    def cpu(self) -> Self:
        """Parameters and buffers in main memory, where they are already."""
        return self

    def share_memory(self) -> Self:
        """This module: memory is shared by forked workers already."""
        return self

    # -- saving and loading

    def get_extra_state(self) -> Any:
        """Override to put more than tensors into `state_dict`."""
        raise NotImplementedError(f"{type(self).__name__} has no extra state")

    def set_extra_state(self, state: Any) -> None:
        """Override to read back what `get_extra_state` gave."""
        raise NotImplementedError(f"{type(self).__name__} has no extra state")

    def _has_extra_state(self) -> bool:
        return type(self).get_extra_state is not Module.get_extra_state

    def state_dict(self, *, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> dict[str, Any]:
        """Dotted name -> tensor (sharing memory, without history) of all parameters and persistent buffers."""
        out: dict[str, Any] = {} if destination is None else destination
        for store, skip in ((self._parameters, ()), (self._buffers, self._transient)):
            for name, value in store.items():
                if value is not None and name not in skip:
                    out[prefix + name] = value if keep_vars else value.detach()
        if self._has_extra_state():
            out[prefix + "_extra_state"] = self.get_extra_state()
        for name, module in self._modules.items():
            if module is not None:
                module.state_dict(destination=out, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
        for hook in list(self._state_dict_hooks.values()):
            hook(self, out, prefix, {})
        return out

    def register_state_dict_post_hook(self, hook: Callable[..., Any]) -> HookHandle:
        """Call `hook(module, state_dict, prefix, metadata)` after the module's part is written."""
        return _add_hook(self._state_dict_hooks, hook, False)

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any]) -> HookHandle:
        """Call `hook(module, state_dict, prefix, metadata, strict, missing, unexpected, errors)` before loading."""
        return _add_hook(self._load_state_dict_pre_hooks, hook, False)

    def register_load_state_dict_post_hook(self, hook: Callable[..., Any]) -> HookHandle:
        """Call `hook(module, incompatible_keys)` after loading."""
        return _add_hook(self._load_state_dict_post_hooks, hook, False)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> IncompatibleKeys:
        """Copy the tensors of `state_dict` into this tree (or take them over where `assign`).

        Raises RuntimeError listing every shape that does not fit and, where `strict`, every missing and unexpected key.
        """
        if not isinstance(state_dict, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"load_state_dict wants a dict, got {type(state_dict).__name__}")
        state = dict(state_dict)
        missing: list[str] = []
        unexpected: list[str] = []
        errors: list[str] = []
        known: set[str] = set()
        for prefix, module in self._owners(""):
            for hook in list(module._load_state_dict_pre_hooks.values()):
                hook(module, state, prefix, {}, strict, missing, unexpected, errors)
            module._load_own(state, prefix, assign, known, missing, errors)
        unexpected += [key for key in state if key not in known]
        keys = IncompatibleKeys(missing, unexpected)
        for _, module in self._owners(""):
            for hook in list(module._load_state_dict_post_hooks.values()):
                hook(module, keys)
        if strict and unexpected:
            errors.insert(0, "Unexpected key(s) in state_dict: " + ", ".join(f'"{k}"' for k in unexpected) + ".")
        if strict and missing:
            errors.insert(0, "Missing key(s) in state_dict: " + ", ".join(f'"{k}"' for k in missing) + ".")
        if errors:
            raise RuntimeError(f"Error(s) in loading state_dict for {type(self).__name__}:\n\t" + "\n\t".join(errors))
        return keys

    def _owners(self, prefix: str) -> Iterator[tuple[str, Module]]:
        """Every module with the prefix of its keys, one used twice under both names."""
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                yield from module._owners(f"{prefix}{name}.")

    def _load_own(
        self, state: dict[str, Any], prefix: str, assign: bool, known: set[str], missing: list[str], errors: list[str]
    ) -> None:
        stores: list[tuple[dict[str, Any], Any]] = [(self._parameters, ()), (self._buffers, self._transient)]
        for store, skip in stores:
            for name, old in list(store.items()):
                if old is None or name in skip:
                    continue
                key = prefix + name
                if key not in state:
                    missing.append(key)
                    continue
                known.add(key)
                new = state[key]
                if not isinstance(new, Tensor):
                    errors.append(f"{key} is a {type(new).__name__}, wanted a tensor.")
                elif tuple(new.shape) != tuple(old.shape):
                    errors.append(
                        f"size mismatch for {key}: {list(new.shape)} in the state_dict, {list(old.shape)} in the model."
                    )
                elif assign:
                    keep = store is self._parameters and not isinstance(new, Parameter)
                    store[name] = Parameter(new, old.requires_grad) if keep else new
                else:
                    with no_grad():
                        old.copy_(new)
        if self._has_extra_state():
            key = prefix + "_extra_state"
            if key in state:
                known.add(key)
                self.set_extra_state(state[key])
            else:
                missing.append(key)

    # -- printing

    def extra_repr(self) -> str:
        """What stands between the parentheses of `repr` beside the parts."""
        return ""

    def _get_name(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        extra = self.extra_repr().split("\n") if self.extra_repr() else []
        parts = [f"({name}): " + _indented(repr(module)) for name, module in self._modules.items()]
        if not parts and len(extra) < 2:
            return f"{self._get_name()}({''.join(extra)})"
        return f"{self._get_name()}(\n  " + "\n  ".join(extra + parts) + "\n)"


def _indented(text: str) -> str:
    """`text` with two spaces before every line but the first."""
    return text.replace("\n", "\n  ")


class _Seen(Function):
    """Passes tensors on; their gradients go through `notice`, all at once."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        notice, *tensors = args
        ctx.notice = notice
        ctx.set_materialize_grads(False)
        return tuple(tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return (None, *ctx.notice(grads))


def _watched(values: Any, notice: Any) -> Any:
    """`values` (a tensor or a tuple), so that gradients of those that require one pass through `notice(gradients)`."""
    several: list[Any] = list(values) if isinstance(values, (tuple, list)) else [values]
    at = [i for i, x in enumerate(several) if isinstance(x, Tensor) and x.requires_grad]
    if not at:
        return values
    count = len(several)

    def spread(grads: Any) -> Any:
        full: list[Any] = [None] * count
        for i, g in zip(at, grads):
            full[i] = g
        changed = notice(tuple(full))
        return tuple([changed[i] for i in at])

    for i, x in zip(at, _Seen.apply(spread, *[several[i] for i in at])):
        several[i] = x
    if isinstance(values, tuple):
        return tuple(several)
    return several if isinstance(values, list) else several[0]
