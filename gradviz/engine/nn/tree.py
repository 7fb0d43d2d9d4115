"""What a Module consists of: modules, parameters and buffers, by path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gradviz.engine.core.tensor import Tensor
from gradviz.engine.nn.parameter import Parameter


class Tree:
    """Iterators over a Module and all its submodules."""

    _modules: dict[str, Any]

    def named_modules(
        self, memo: set[Any] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Any]]:
        """This module and all submodules, each with its path. A shared module comes once."""
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                yield from module.named_modules(memo, f"{prefix}.{name}" if prefix else name, remove_duplicate)

    def _named_members(self, kind: str, prefix: str, recurse: bool, unique: bool) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        inside = self.named_modules(None, prefix, unique) if recurse else [(prefix, self)]
        for path, module in inside:
            for name, tensor in module.__dict__[kind].items():
                if tensor is not None and not (unique and id(tensor) in seen):
                    seen.add(id(tensor))
                    yield (f"{path}.{name}" if path else name), tensor

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """All parameters, each with its path. A shared parameter comes once."""
        return self._named_members("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """All parameters."""
        return (parameter for _, parameter in self.named_parameters(recurse=recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """All buffers, each with its path. A shared buffer comes once."""
        return self._named_members("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """All buffers."""
        return (buffer for _, buffer in self.named_buffers(recurse=recurse))

    def named_children(self) -> Iterator[tuple[str, Any]]:
        """The direct submodules, each with its name. A shared module comes once."""
        seen: set[int] = set()
        for name, module in self._modules.items():
            if module is not None and id(module) not in seen:
                seen.add(id(module))
                yield name, module

    def children(self) -> Iterator[Any]:
        """The direct submodules."""
        return (module for _, module in self.named_children())

    def modules(self) -> Iterator[Any]:
        """This module and all submodules."""
        return (module for _, module in self.named_modules())

    def get_submodule(self, target: str) -> Any:
        """The module at a path such as `net.0`. Raises AttributeError where there is none."""
        module: Any = self
        for name in target.split(".") if target else ():
            if not hasattr(module, name):
                raise AttributeError(f"{type(module).__name__} has no attribute `{name}`")
            module = getattr(module, name)
            if not isinstance(module, Tree):
                raise AttributeError(f"`{name}` is not an nn.Module")
        return module

    def get_parameter(self, target: str) -> Parameter:
        """The parameter at a path such as `net.0.weight`. Raises AttributeError where there is none."""
        path, _, name = target.rpartition(".")
        owner = self.get_submodule(path)
        if name not in owner._parameters:
            raise AttributeError(f"{type(owner).__name__} has no parameter `{name}`")
        return owner._parameters[name]

    def get_buffer(self, target: str) -> Tensor:
        """The buffer at a path such as `norm.running_mean`. Raises AttributeError where there is none."""
        path, _, name = target.rpartition(".")
        owner = self.get_submodule(path)
        if name not in owner._buffers:
            raise AttributeError(f"{type(owner).__name__} has no buffer `{name}`")
        return owner._buffers[name]
