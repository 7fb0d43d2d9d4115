"""Custom Functions. See PyTorch's `torch.autograd.function`."""

from gradviz.engine.core.function import Function, once_differentiable
from gradviz.engine.core.function_ctx import FunctionCtx

__all__ = ["Function", "FunctionCtx", "once_differentiable"]
