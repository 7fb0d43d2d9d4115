"""Forward mode. See PyTorch's `torch.autograd.forward_ad`."""

from gradviz.engine.basics.missing import says_what_is_missing
from gradviz.engine.core.forward_mode import (
    UnpackedDualTensor,
    dual_level,
    enter_dual_level,
    exit_dual_level,
    make_dual,
    unpack_dual,
)

__all__ = ["UnpackedDualTensor", "dual_level", "enter_dual_level", "exit_dual_level", "make_dual", "unpack_dual"]

__getattr__ = says_what_is_missing(__name__, globals())
