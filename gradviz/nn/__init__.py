"""Layers and losses. See PyTorch's `torch.nn`."""

from gradviz.nn import functional
from gradviz.nn.layers import (
    CrossEntropyLoss,
    Linear,
    MSELoss,
    ReLU,
    Sequential,
    Sigmoid,
    Tanh,
)
from gradviz.nn.module import Module, Parameter

__all__ = [
    "CrossEntropyLoss",
    "Linear",
    "MSELoss",
    "Module",
    "Parameter",
    "ReLU",
    "Sequential",
    "Sigmoid",
    "Tanh",
    "functional",
]
