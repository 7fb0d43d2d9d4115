"""Custom Functions. See PyTorch's `torch.autograd.function`."""

from gradviz.engine.function import Function, once_differentiable

__all__ = ["Function", "once_differentiable"]
