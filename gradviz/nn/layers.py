"""The layers and losses that a first network needs."""

from __future__ import annotations

import math
from typing import Any

from gradviz.engine import random
from gradviz.engine.dtypes import default_dtype
from gradviz.engine.tensor import Tensor, new_tensor
from gradviz.nn import functional as F
from gradviz.nn.module import Module, Parameter


class Linear(Module):
    """x Wᵀ + b, with weights uniform within ±1/√in (PyTorch documentation, `torch.nn.Linear`)."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        bound = 1 / math.sqrt(in_features) if in_features else 0
        self.weight = Parameter(_uniform((out_features, in_features), bound))
        self.bias = Parameter(_uniform((out_features,), bound)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        bias = self.bias is not None
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={bias}"


def _uniform(size: tuple[int, ...], bound: float) -> Tensor:
    return new_tensor(random.uniform(size, default_dtype()) * 2 * bound - bound)


class ReLU(Module):
    """max(x, 0)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x)


class Tanh(Module):
    """tanh(x)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.tanh(x)


class Sigmoid(Module):
    """1 / (1 + exp(−x))."""

    def forward(self, x: Tensor) -> Tensor:
        return F.sigmoid(x)


class Sequential(Module):
    """Modules one after the other."""

    def __init__(self, *modules: Module) -> None:
        super().__init__()
        for position, module in enumerate(modules):
            setattr(self, str(position), module)

    def forward(self, x: Any) -> Any:
        for module in self.children():
            x = module(x)
        return x

    def __getitem__(self, position: int) -> Module:
        return list(self.children())[position]

    def __len__(self) -> int:
        return len(self._modules)


class MSELoss(Module):
    """The mean squared difference."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(x, target, self.reduction)


class CrossEntropyLoss(Module):
    """Minus the log of the softmax at the target class."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(x, target, self.reduction)
