"""Optimizers. See PyTorch's `torch.optim`."""

from gradviz.optim.optimizer import Optimizer
from gradviz.optim.sgd import SGD

__all__ = ["SGD", "Optimizer"]
