"""Optimizers that scale steps by earlier gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from gradviz.engine.core.tensor import Tensor, new_tensor
from gradviz.engine.optim.optimizer import Optimizer, check, settings_in


class RMSprop(Optimizer):
    """RMSprop (Hinton 2012): steps are divided by the root of the mean square of recent gradients."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        check(lr=lr, eps=eps, momentum=momentum, weight_decay=weight_decay, alpha=alpha)
        super().__init__(params, settings_in(locals()))

    def update(self, parameter: Tensor, gradient: Any, group: dict[str, Any]) -> Any:
        value, alpha = parameter.array, group["alpha"]
        memory = self.memory(parameter, "square_avg")
        self.count(memory)
        if group["weight_decay"]:
            gradient = gradient + group["weight_decay"] * value
        square = memory["square_avg"].array
        square *= alpha
        square += (1 - alpha) * gradient * gradient
        if group["centered"]:
            mean = memory.setdefault("grad_avg", new_tensor(np.zeros_like(value))).array
            mean += (1 - alpha) * (gradient - mean)
            size = np.sqrt(square - mean * mean) + group["eps"]
        else:
            size = np.sqrt(square) + group["eps"]
        if not group["momentum"]:
            return value - group["lr"] * (gradient / size)
        held = memory.setdefault("momentum_buffer", new_tensor(np.zeros_like(value))).array
        held *= group["momentum"]
        held += gradient / size
        return value - group["lr"] * held


class Adagrad(Optimizer):
    """Adagrad (Duchi et al. 2011): steps are divided by the root of the sum of all squared gradients."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        check(lr=lr, lr_decay=lr_decay, weight_decay=weight_decay, eps=eps)
        check(initial_accumulator_value=initial_accumulator_value)
        super().__init__(params, settings_in(locals()))

    def update(self, parameter: Tensor, gradient: Any, group: dict[str, Any]) -> Any:
        value = parameter.array
        memory = self.memory(parameter, "sum", value=group["initial_accumulator_value"])
        n = self.count(memory)
        if group["weight_decay"]:
            gradient = gradient + group["weight_decay"] * value
        total = memory["sum"].array
        total += gradient * gradient
        rate = group["lr"] / (1 + (n - 1) * group["lr_decay"])
        return value - rate * (gradient / (np.sqrt(total) + group["eps"]))


class Adadelta(Optimizer):
    """Adadelta (Zeiler 2012): steps are scaled by the size of earlier steps."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        capturable: bool = False,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        check(lr=lr, eps=eps, weight_decay=weight_decay)
        if not 0.0 <= rho <= 1.0:
            raise ValueError(f"Invalid rho value: {rho}")
        super().__init__(params, settings_in(locals()))

    def update(self, parameter: Tensor, gradient: Any, group: dict[str, Any]) -> Any:
        value, rho, eps = parameter.array, group["rho"], group["eps"]
        memory = self.memory(parameter, "square_avg", "acc_delta")
        self.count(memory)
        if group["weight_decay"]:
            gradient = gradient + group["weight_decay"] * value
        square, steps = memory["square_avg"].array, memory["acc_delta"].array
        square *= rho
        square += (1 - rho) * gradient * gradient
        step = np.sqrt(steps + eps) / np.sqrt(square + eps) * gradient
        steps *= rho
        steps += (1 - rho) * step * step
        return value - group["lr"] * step
