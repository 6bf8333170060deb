"""Modules and parameters in sequence, list and dict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

from tracejit.nn.module import Module
from tracejit.nn.parameter import Parameter
from tracejit.tensor.tensor import Tensor

__all__ = ["ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Sequential"]


def _index(i: Any, size: int) -> int:
    at = i.__index__()
    if not -size <= at < size:
        raise IndexError(f"index {at} is out of range for {size} entries")
    return at % size


class _Numbered(Module):
    """Modules under the names "0", "1", ..."""

    def _renumber(self, modules: Iterable[Module]) -> None:
        kept = list(modules)
        self._modules.clear()
        for i, module in enumerate(kept):
            self.add_module(str(i), module)

    def _values(self) -> list[Any]:
        return list(self._modules.values())

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._modules.values())

    def __getitem__(self, i: Any) -> Any:
        return type(self)(*self._sliced(i)) if isinstance(i, slice) else self._values()[_index(i, len(self))]

    def _sliced(self, i: slice) -> list[Any]:
        return [self._values()[i]]

    def __setitem__(self, i: int, module: Module) -> None:
        self._modules[list(self._modules)[_index(i, len(self))]] = module

    def __delitem__(self, i: Any) -> None:
        names = list(self._modules)
        for name in names[i] if isinstance(i, slice) else [names[_index(i, len(self))]]:
            del self._modules[name]
        self._renumber(self._modules.values())  # type: ignore[arg-type]

    def append(self, module: Module) -> Self:
        """Add a module behind the others."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Module]) -> Self:
        """Add modules behind the others."""
        for module in modules:
            self.append(module)
        return self

    def insert(self, index: int, module: Module) -> Self:
        """Put a module before the one at `index`."""
        values = self._values()
        values.insert(index, module)
        self._renumber(values)
        return self

    def pop(self, index: int = -1) -> Module:
        """Take a module away."""
        module = self[index]
        del self[index]
        return module


class Sequential(_Numbered):
    """Each module applied to the output of the one before."""

    def __init__(self, *modules: Any) -> None:
        super().__init__()
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            for name, module in modules[0].items():
                self.add_module(name, module)
        else:
            for i, module in enumerate(modules):
                self.add_module(str(i), module)

    def _sliced(self, i: slice) -> list[Any]:
        return [dict(list(self._modules.items())[i])]

    def forward(self, input: Any) -> Any:
        """The last module's output."""
        for module in self._modules.values():
            input = module(input)  # type: ignore[misc]
        return input

    def __add__(self, other: Sequential) -> Sequential:
        return Sequential(*self, *other)


class ModuleList(_Numbered):
    """A list whose entries are registered as parts."""

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        if modules is not None:
            self.extend(modules)

    def __iadd__(self, modules: Iterable[Module]) -> Self:
        return self.extend(modules)

    def __add__(self, other: Iterable[Module]) -> ModuleList:
        return ModuleList([*self, *other])


class ModuleDict(Module):
    """A dict whose values are registered as parts."""

    def __init__(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] | None = None) -> None:
        super().__init__()
        if modules is not None:
            self.update(modules)

    def __getitem__(self, key: str) -> Any:
        return self._modules[key]

    def __setitem__(self, key: str, module: Module) -> None:
        self.add_module(key, module)

    def __delitem__(self, key: str) -> None:
        del self._modules[key]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, key: str) -> bool:
        return key in self._modules

    def keys(self) -> Any:
        """The names."""
        return self._modules.keys()

    def values(self) -> Any:
        """The modules."""
        return self._modules.values()

    def items(self) -> Any:
        """Names and modules."""
        return self._modules.items()

    def update(self, modules: Any) -> None:
        """Add or replace entries."""
        for key, module in modules.items() if isinstance(modules, (Mapping, ModuleDict)) else modules:
            self[key] = module

    def pop(self, key: str) -> Any:
        """Take an entry away."""
        return self._modules.pop(key)

    def clear(self) -> None:
        """Take all entries away."""
        self._modules.clear()


def _parameter(value: Any) -> Any:
    return Parameter(value) if isinstance(value, Tensor) and not isinstance(value, Parameter) else value


class ParameterList(Module):
    """A list whose tensors are registered as parameters."""

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self._size = 0
        if values is not None:
            self.extend(values)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(self._size))

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return ParameterList([self[k] for k in range(self._size)[i]])
        return getattr(self, str(_index(i, self._size)))

    def __setitem__(self, i: int, value: Any) -> None:
        setattr(self, str(_index(i, self._size)), _parameter(value))

    def append(self, value: Any) -> Self:
        """Add a parameter behind the others."""
        setattr(self, str(self._size), _parameter(value))
        self._size += 1
        return self

    def extend(self, values: Iterable[Any]) -> Self:
        """Add parameters behind the others."""
        for value in values:
            self.append(value)
        return self

    def __iadd__(self, values: Iterable[Any]) -> Self:
        return self.extend(values)

    def extra_repr(self) -> str:
        return "\n".join(f"({i}): {type(v).__name__} of {v.type}" for i, v in enumerate(self) if isinstance(v, Tensor))


class ParameterDict(Module):
    """A dict whose tensors are registered as parameters."""

    def __init__(self, values: Mapping[str, Any] | Iterable[tuple[str, Any]] | None = None) -> None:
        super().__init__()
        self._keys: dict[str, None] = {}
        if values is not None:
            self.update(values)

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key)

    def __setitem__(self, key: str, value: Any) -> None:
        self._keys[key] = None
        setattr(self, key, _parameter(value))

    def __delitem__(self, key: str) -> None:
        del self._keys[key]
        delattr(self, key)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def keys(self) -> Any:
        """The names."""
        return self._keys.keys()

    def values(self) -> list[Any]:
        """The parameters."""
        return [self[k] for k in self._keys]

    def items(self) -> list[tuple[str, Any]]:
        """Names and parameters."""
        return [(k, self[k]) for k in self._keys]

    def update(self, values: Any) -> None:
        """Add or replace entries."""
        for key, value in values.items() if isinstance(values, (Mapping, ParameterDict)) else values:
            self[key] = value
