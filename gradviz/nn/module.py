"""Module: parameters and modules under names, and a scope in the record of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gradviz.engine.function import scope
from gradviz.engine.state import state
from gradviz.engine.tensor import LEAF_EDGE, Tensor, announce, new_tensor, number_of


class Parameter(Tensor):
    """A leaf that a Module counts among its parameters."""

    def __new__(cls, data: Tensor | None = None, requires_grad: bool = True) -> Any:
        array = new_tensor(data.array) if data is not None else Tensor()
        parameter = new_tensor(array.array, LEAF_EDGE if requires_grad else None, cls)
        announce(parameter, "Parameter")
        return parameter

    def __repr__(self) -> str:
        return f"Parameter containing:\n{super().__repr__()}"


class Module:
    """Base of layers and models: what is assigned to it is found by name."""

    training: bool
    _parameters: dict[str, Parameter]
    _modules: dict[str, Module]
    _scope_name: str

    def __init__(self) -> None:
        object.__setattr__(self, "_parameters", {})
        object.__setattr__(self, "_modules", {})
        object.__setattr__(self, "_scope_name", "")
        self.training = True

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, (Parameter, Module)) and "_parameters" not in self.__dict__:
            raise AttributeError(
                f"cannot assign {type(value).__name__.lower()} before Module.__init__() call. "
                "Call super().__init__() first."
            )
        if isinstance(value, Parameter):
            self._parameters[name] = value
        elif isinstance(value, Module):
            self._modules[name] = value
        object.__setattr__(self, name, value)

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module and all within, each with its path."""
        yield prefix, self
        for name, module in self._modules.items():
            yield from module.named_modules(f"{prefix}.{name}" if prefix else name)

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """All parameters, each with its path; a shared one once."""
        seen: set[int] = set()
        for path, module in self.named_modules(prefix):
            for name, parameter in module._parameters.items():
                if parameter is not None and id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield (f"{path}.{name}" if path else name), parameter

    def parameters(self) -> Iterator[Parameter]:
        """All parameters."""
        for _, parameter in self.named_parameters():
            yield parameter

    def children(self) -> Iterator[Module]:
        """The modules directly within."""
        return iter(self._modules.values())

    def modules(self) -> Iterator[Module]:
        """This module and all within."""
        for _, module in self.named_modules():
            yield module

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the `.grad` of all parameters."""
        for parameter in self.parameters():
            if parameter._rare is not None and parameter._rare.grad is not None:
                parameter.grad = None

    def train(self, mode: bool = True) -> Module:
        """Switch to training (or evaluation)."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Module:
        """Switch to evaluation."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Module:
        """Ask for the parameters' gradients, or freeze them."""
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the module's output; subclasses say how."""
        raise NotImplementedError(
            f'Module [{type(self).__name__}] is missing the required "forward" function'
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if state.listener is None:
            return self.forward(*args, **kwargs)
        if not self._scope_name:
            self._name_all()
        with scope("module", self._scope_name):
            return self.forward(*args, **kwargs)

    def _name_all(self) -> None:
        """Tell the listener the names of all parameters, from the outermost module called."""
        assert state.listener is not None
        root = type(self).__name__
        for path, module in self.named_modules():
            object.__setattr__(module, "_scope_name", path or root)
        for path, parameter in self.named_parameters():
            state.listener.named(number_of(parameter), path)

    def extra_repr(self) -> str:
        """What stands in the module's brackets when it is printed."""
        return ""

    def __repr__(self) -> str:
        lines = [
            f"  ({name}): " + repr(module).replace("\n", "\n  ") for name, module in self._modules.items()
        ]
        inside = "\n" + "\n".join(lines) + "\n" if lines else self.extra_repr()
        return f"{type(self).__name__}({inside})"
