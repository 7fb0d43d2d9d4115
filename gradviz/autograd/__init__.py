"""Differentiation: `backward`, `grad`, custom Functions, forward mode. See PyTorch's `torch.autograd`."""

from gradviz.autograd import forward_ad, function
from gradviz.engine.backward import backward, grad
from gradviz.engine.creation import Variable
from gradviz.engine.function import Function
from gradviz.engine.state import enable_grad, no_grad, set_grad_enabled

__all__ = [
    "Function",
    "Variable",
    "backward",
    "enable_grad",
    "forward_ad",
    "function",
    "grad",
    "no_grad",
    "set_grad_enabled",
]
