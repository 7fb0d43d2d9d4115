"""Differentiation: `backward`, `grad`, custom Functions, forward mode. See PyTorch's `torch.autograd`."""

from gradviz.engine.autograd import forward_ad, function, functional, graph
from gradviz.engine.autograd.anomaly_mode import detect_anomaly, set_detect_anomaly
from gradviz.engine.autograd.gradcheck import gradcheck, gradgradcheck
from gradviz.engine.basics.missing import says_what_is_missing
from gradviz.engine.core.backward import backward, grad
from gradviz.engine.core.function import Function
from gradviz.engine.core.state import enable_grad, inference_mode, no_grad, set_grad_enabled
from gradviz.engine.tensors.creation import Variable

__all__ = [
    "Function",
    "Variable",
    "backward",
    "detect_anomaly",
    "enable_grad",
    "forward_ad",
    "function",
    "functional",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "graph",
    "inference_mode",
    "no_grad",
    "set_detect_anomaly",
    "set_grad_enabled",
]

__getattr__ = says_what_is_missing(__name__, globals())
