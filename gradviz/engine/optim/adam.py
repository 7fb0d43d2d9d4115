"""Adam and its variants."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from gradviz.engine.core.tensor import Tensor, new_tensor
from gradviz.engine.optim.optimizer import Optimizer, check, check_betas, settings_in


def _decayed(value: Any, gradient: Any, group: dict[str, Any]) -> tuple[Any, Any]:
    """The value and the gradient after weight decay. Decoupled decay changes the value, else the gradient changes."""
    if group["weight_decay"] and group.get("decoupled_weight_decay"):
        return value * (1 - group["lr"] * group["weight_decay"]), gradient
    return value, gradient + group["weight_decay"] * value if group["weight_decay"] else gradient


def _remember(mean: Any, square: Any, gradient: Any, beta1: float, beta2: float) -> None:
    """Update the running means of the gradient and of its square."""
    mean += (1 - beta1) * (gradient - mean)
    square *= beta2
    square += (1 - beta2) * gradient * gradient


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015): steps are scaled by the size of recent gradients."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
    ) -> None:
        check(lr=lr, eps=eps, weight_decay=weight_decay)
        check_betas(betas)
        super().__init__(params, settings_in(locals()))

    def update(self, parameter: Tensor, gradient: Any, group: dict[str, Any]) -> Any:
        value, lr, (beta1, beta2) = parameter.array, group["lr"], group["betas"]
        memory = self.memory(parameter, "exp_avg", "exp_avg_sq")
        n = self.count(memory)
        value, gradient = _decayed(value, gradient, group)
        mean, square = memory["exp_avg"].array, memory["exp_avg_sq"].array
        _remember(mean, square, gradient, beta1, beta2)
        if group["amsgrad"]:
            greatest = memory.setdefault("max_exp_avg_sq", new_tensor(np.zeros_like(square)))
            np.maximum(greatest.array, square, out=greatest.array)
            square = greatest.array
        size = np.sqrt(square) / math.sqrt(1 - beta2**n) + group["eps"]
        return value - lr / (1 - beta1**n) * (mean / size)


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        **others: Any,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, **others, decoupled_weight_decay=True)


class NAdam(Optimizer):
    """Adam with Nesterov momentum (Dozat 2016)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        check(lr=lr, eps=eps, weight_decay=weight_decay, momentum_decay=momentum_decay)
        check_betas(betas)
        super().__init__(params, settings_in(locals()))

    def update(self, parameter: Tensor, gradient: Any, group: dict[str, Any]) -> Any:
        value, lr, (beta1, beta2) = parameter.array, group["lr"], group["betas"]
        memory = self.memory(parameter, "exp_avg", "exp_avg_sq")
        product = memory.setdefault("mu_product", new_tensor(np.ones((), np.float32)))
        n = self.count(memory)
        value, gradient = _decayed(value, gradient, group)
        now, following = (beta1 * (1 - 0.5 * 0.96 ** (k * group["momentum_decay"])) for k in (n, n + 1))
        product.array[...] *= now
        done = float(product.array)
        mean, square = memory["exp_avg"].array, memory["exp_avg_sq"].array
        _remember(mean, square, gradient, beta1, beta2)
        size = np.sqrt(square / (1 - beta2**n)) + group["eps"]
        step = (1 - now) / (1 - done) * (gradient / size) + following / (1 - done * following) * (mean / size)
        return value - lr * step


class RAdam(Optimizer):
    """Adam that scales steps only after it has seen enough gradients (Liu et al. 2020)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        check(lr=lr, eps=eps, weight_decay=weight_decay)
        check_betas(betas)
        super().__init__(params, settings_in(locals()))

    def update(self, parameter: Tensor, gradient: Any, group: dict[str, Any]) -> Any:
        lr, (beta1, beta2) = group["lr"], group["betas"]
        value, gradient = _decayed(parameter.array, gradient, group)
        memory = self.memory(parameter, "exp_avg", "exp_avg_sq")
        n = self.count(memory)
        mean, square = memory["exp_avg"].array, memory["exp_avg_sq"].array
        _remember(mean, square, gradient, beta1, beta2)
        step = lr * (mean / (1 - beta1**n))
        most = 2 / (1 - beta2) - 1
        seen = most - 2 * n * beta2**n / (1 - beta2**n)
        if seen <= 5:
            return value - step
        trust = math.sqrt((seen - 4) * (seen - 2) * most / ((most - 4) * (most - 2) * seen))
        return value - step * (math.sqrt(1 - beta2**n) / (np.sqrt(square) + group["eps"])) * trust


class Adamax(Optimizer):
    """Adam with the maximum of recent gradients instead of the mean of their squares (Kingma and Ba 2015, section
    7.1)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        check(lr=lr, eps=eps, weight_decay=weight_decay)
        check_betas(betas)
        super().__init__(params, settings_in(locals()))

    def update(self, parameter: Tensor, gradient: Any, group: dict[str, Any]) -> Any:
        beta1, beta2 = group["betas"]
        value, gradient = _decayed(parameter.array, gradient, group)
        memory = self.memory(parameter, "exp_avg", "exp_inf")
        n = self.count(memory)
        mean, greatest = memory["exp_avg"].array, memory["exp_inf"].array
        mean += (1 - beta1) * (gradient - mean)
        greatest *= beta2
        np.maximum(greatest, np.abs(gradient) + group["eps"], out=greatest)
        return value - group["lr"] / (1 - beta1**n) * (mean / greatest)
