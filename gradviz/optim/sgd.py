"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gradviz.engine.tensor import Tensor
from gradviz.optim.optimizer import Optimizer


class SGD(Optimizer):
    """Gradient descent with momentum (PyTorch documentation, `torch.optim.SGD`).

    Raises ValueError for settings that make no sense."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
    ) -> None:
        if lr < 0:
            raise ValueError(f"Invalid learning rate: {lr}")
        if momentum < 0:
            raise ValueError(f"Invalid momentum value: {momentum}")
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        settings = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
        }
        super().__init__(params, settings)

    def update(self, parameter: Tensor, gradient: Any, group: dict[str, Any]) -> Any:
        value = parameter.array
        if group["weight_decay"]:
            gradient = gradient + group["weight_decay"] * value
        if group["momentum"]:
            memory = self.state.setdefault(parameter, {})
            held = memory.get("momentum_buffer")
            if held is None:
                held = gradient.copy()
            else:
                held = group["momentum"] * held + (1 - group["dampening"]) * gradient
            memory["momentum_buffer"] = held
            gradient = gradient + group["momentum"] * held if group["nesterov"] else held
        return value - group["lr"] * gradient
