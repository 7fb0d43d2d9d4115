"""Functions of PyTorch as they are when the recorder is loaded. A program may put its own in their place: they do not
run for what the recorder reads."""

from __future__ import annotations

import torch

no_grad = torch.no_grad
TENSORS = (
    torch._C.TensorBase
)  # the base class of tensors, written in C; what a program replaces is in torch.Tensor
detach = TENSORS.detach
transposed = TENSORS.t
