"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gradviz.engine.core.tensor import Tensor, new_tensor
from gradviz.engine.optim.optimizer import Optimizer, check, settings_in


class SGD(Optimizer):
    """Stochastic gradient descent with momentum (PyTorch documentation, `torch.optim.SGD`).

    Raises ValueError for invalid settings."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        check(lr=lr, momentum=momentum, weight_decay=weight_decay)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        super().__init__(params, settings_in(locals()))

    def update(self, parameter: Tensor, gradient: Any, group: dict[str, Any]) -> Any:
        value = parameter.array
        if group["weight_decay"]:
            gradient = gradient + group["weight_decay"] * value
        if group["momentum"]:
            memory = self.state[parameter]
            held = memory.get("momentum_buffer")
            if held is None:
                held = memory["momentum_buffer"] = new_tensor(gradient.copy())
            else:
                held.array[...] = group["momentum"] * held.array + (1 - group["dampening"]) * gradient
            gradient = gradient + group["momentum"] * held.array if group["nesterov"] else held.array
        return value - group["lr"] * gradient
