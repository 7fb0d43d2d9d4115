"""Modules and parameters in lists and dicts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gradviz.engine.basics.dtypes import torch_type_name
from gradviz.engine.core.tensor import Tensor
from gradviz.engine.nn.module import Module
from gradviz.engine.nn.parameter import Parameter


class _Ordered(Module):
    """Modules named 0, 1, 2, ..., with the methods of a list."""

    def _renamed(self, modules: Iterable[Module]) -> None:
        self._modules.clear()
        for position, module in enumerate(modules):
            self.add_module(str(position), module)

    def _name_at(self, position: int) -> str:
        n = len(self._modules)
        if not -n <= position < n:
            raise IndexError(f"index {position} is out of range")
        return list(self._modules)[position]

    def __getitem__(self, position: Any) -> Any:
        if isinstance(position, slice):
            return self._slice(position)
        return self._modules[self._name_at(position)]

    def _slice(self, position: slice) -> Any:
        return type(self)(*list(self._modules.values())[position])

    def __setitem__(self, position: int, module: Module) -> None:
        setattr(self, self._name_at(position), module)

    def __delitem__(self, position: Any) -> None:
        names = list(self._modules)[position] if isinstance(position, slice) else [self._name_at(position)]
        numbered = list(self._modules) == [str(i) for i in range(len(self))]
        for name in names:
            del self._modules[name]
        if numbered:
            self._renamed(list(self._modules.values()))

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._modules.values())

    def append(self, module: Module) -> Any:
        """Add a module at the end."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Module]) -> Any:
        """Add modules at the end."""
        for module in modules:
            self.append(module)
        return self

    def insert(self, index: int, module: Module) -> Any:
        """Insert a module before the one at `index`."""
        modules = list(self._modules.values())
        modules.insert(index, module)
        self._renamed(modules)
        return self

    def pop(self, key: int) -> Module:
        """Take a module out."""
        module = self[key]
        del self[key]
        return module


class Sequential(_Ordered):
    """Modules that run one after another. They are given as arguments, or by name in an OrderedDict."""

    def __init__(self, *modules: Any) -> None:
        super().__init__()
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            for name, module in modules[0].items():
                self.add_module(name, module)
        else:
            for position, module in enumerate(modules):
                self.add_module(str(position), module)

    def _slice(self, position: slice) -> Any:
        return type(self)(OrderedDict(list(self._modules.items())[position]))

    def forward(self, input: Any) -> Any:
        for module in self._modules.values():
            input = module(input)
        return input


class ModuleList(_Ordered):
    """A list of modules. It has no forward."""

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        self.extend(modules or ())

    def _slice(self, position: slice) -> Any:
        return type(self)(list(self._modules.values())[position])

    def __add__(self, other: Iterable[Module]) -> ModuleList:
        return ModuleList([*self, *other])

    def __iadd__(self, modules: Iterable[Module]) -> ModuleList:
        return self.extend(modules)

    def __repr__(self) -> str:
        lines, runs = [], _runs([repr(module) for module in self])
        for first, last, text in runs:
            label = f"({first})" if first == last else f"({first}-{last})"
            times = "" if first == last else f"{last - first + 1} x "
            lines.append(f"{label}: {times}" + text.replace("\n", "\n  "))
        if not lines:
            return f"{self._get_name()}()"
        return f"{self._get_name()}(\n  " + "\n  ".join(lines) + "\n)"


def _runs(texts: list[str]) -> list[tuple[int, int, str]]:
    """The runs of equal texts: first, last, text."""
    runs: list[tuple[int, int, str]] = []
    for i, text in enumerate(texts):
        if runs and runs[-1][2] == text:
            runs[-1] = (runs[-1][0], i, text)
        else:
            runs.append((i, i, text))
    return runs


class ModuleDict(Module):
    """A dict of modules. It has no forward."""

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        super().__init__()
        self.update(modules or {})

    def __getitem__(self, key: str) -> Module:
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
        """The keys."""
        return self._modules.keys()

    def values(self) -> Any:
        """The modules."""
        return self._modules.values()

    def items(self) -> Any:
        """Keys and modules."""
        return self._modules.items()

    def clear(self) -> None:
        """Remove all modules."""
        self._modules.clear()

    def pop(self, key: str) -> Module:
        """Take a module out."""
        return self._modules.pop(key)

    def update(self, modules: Any) -> None:
        """Add modules from a mapping or from pairs."""
        for key, module in modules.items() if hasattr(modules, "items") else modules:
            self[key] = module


def _as_parameter(value: Any) -> Any:
    return Parameter(value) if isinstance(value, Tensor) and not isinstance(value, Parameter) else value


class ParameterList(Module):
    """A list of parameters."""

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self.extend(values or ())

    def __getitem__(self, position: Any) -> Any:
        if isinstance(position, slice):
            return type(self)(list(self)[position])
        return list(self._parameters.values())[position]

    def __setitem__(self, position: int, parameter: Any) -> None:
        name = list(self._parameters)[position]
        self._parameters[name] = _as_parameter(parameter)

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._parameters.values())

    def append(self, value: Any) -> ParameterList:
        """Add a parameter at the end."""
        self.register_parameter(str(len(self)), _as_parameter(value))
        return self

    def extend(self, values: Iterable[Any]) -> ParameterList:
        """Add parameters at the end."""
        for value in values:
            self.append(value)
        return self

    def extra_repr(self) -> str:
        return "\n".join(
            f"  ({name}): Parameter containing: [{p.dtype} of size {_size_text(p)}]"
            for name, p in self._parameters.items()
            if p is not None
        )


class ParameterDict(Module):
    """A dict of parameters."""

    def __init__(self, parameters: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.update(parameters or {})

    def __getitem__(self, key: str) -> Any:
        return self._parameters[key]

    def __setitem__(self, key: str, parameter: Any) -> None:
        self._parameters[key] = _as_parameter(parameter)

    def __delitem__(self, key: str) -> None:
        del self._parameters[key]

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __contains__(self, key: str) -> bool:
        return key in self._parameters

    def keys(self) -> Any:
        """The keys."""
        return self._parameters.keys()

    def values(self) -> Any:
        """The parameters."""
        return self._parameters.values()

    def items(self) -> Any:
        """Keys and parameters."""
        return self._parameters.items()

    def update(self, parameters: Any) -> None:
        """Add parameters from a mapping or from pairs."""
        for key, value in parameters.items() if hasattr(parameters, "items") else parameters:
            self[key] = value

    def extra_repr(self) -> str:
        return "\n".join(
            f"  ({name}): Parameter containing: [{torch_type_name(p.array.dtype)} of size {_size_text(p)}]"
            for name, p in self._parameters.items()
            if p is not None
        )


def _size_text(tensor: Tensor) -> str:
    return "x".join(str(n) for n in tensor.array.shape)
