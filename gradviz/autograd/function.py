"""Custom Functions. See PyTorch's `torch.autograd.function`."""

from gradviz.engine.function import Function, once_differentiable
from gradviz.engine.function_ctx import FunctionCtx

__all__ = ["Function", "FunctionCtx", "once_differentiable"]
