"""What all optimizers share: parameter groups, `zero_grad`, telling the listener of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gradviz.engine.inplace import overwrite
from gradviz.engine.state import enable_grad, no_grad, state
from gradviz.engine.tensor import Tensor, number_of


class Optimizer:
    """Base of optimizers: a subclass says in `update` what one parameter becomes.

    Raises ValueError for an empty list of parameters, TypeError for what are no tensors."""

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        groups = list(params)
        if not groups:
            raise ValueError("optimizer got an empty parameter list")
        if not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        self.defaults = defaults
        self.state: dict[Tensor, dict[str, Any]] = {}
        self.param_groups: list[dict[str, Any]] = []
        for group in groups:
            tensors = [group["params"]] if isinstance(group["params"], Tensor) else list(group["params"])
            for tensor in tensors:
                if not isinstance(tensor, Tensor):
                    raise TypeError(
                        f"optimizer can only optimize Tensors, but one of the params is {tensor!r}"
                    )
                if not tensor.is_leaf:
                    raise ValueError("can't optimize a non-leaf Tensor")
            self.param_groups.append({**defaults, **group, "params": tensors})

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the parameters' `.grad`."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter._rare is None or parameter._rare.grad is None:
                    continue
                if set_to_none:
                    parameter.grad = None
                else:
                    overwrite(parameter.grad, 0, "zero_")

    def step(self, closure: Callable | None = None) -> Any:
        """Update every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        with no_grad():
            for group in self.param_groups:
                ready = [p for p in group["params"] if p._rare is not None and p._rare.grad is not None]
                self._tell(group, ready)
                for parameter in ready:
                    array = self.update(parameter, parameter._rare.grad.array, group)
                    overwrite(parameter, array, type(self).__name__)
        return loss

    def _tell(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        if state.listener is not None:
            settings = ", ".join(f"{name}={value!r}" for name, value in group.items() if name != "params")
            state.listener.stepped(type(self).__name__, settings, [number_of(p) for p in parameters])

    def update(self, parameter: Tensor, gradient: Any, group: dict[str, Any]) -> Any:
        """The parameter's new value, an array; `gradient` is an array too."""
        raise NotImplementedError
