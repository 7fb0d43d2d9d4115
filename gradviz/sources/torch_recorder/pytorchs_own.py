"""Functions of PyTorch as they are when the recorder is loaded. A program may put its own in their place: they do not
run for what the recorder reads."""

import torch

VERSION = str(torch.__version__)
no_grad = torch.no_grad
# the base class of tensors, written in C; what a program replaces is in torch.Tensor
TENSORS = torch._C.TensorBase
detach = TENSORS.detach
transposed = TENSORS.t
shape_of = vars(TENSORS)["shape"].__get__
numel, stride, is_contiguous = TENSORS.numel, TENSORS.stride, TENSORS.is_contiguous
element_size, storage_offset, data_ptr = TENSORS.element_size, TENSORS.storage_offset, TENSORS.data_ptr
untyped_storage = TENSORS.untyped_storage
is_neg, is_conj, is_inference = TENSORS.is_neg, TENSORS.is_conj, TENSORS.is_inference
is_complex, is_floating_point = TENSORS.is_complex, TENSORS.is_floating_point
reshape, as_strided, clone = TENSORS.reshape, TENSORS.as_strided, TENSORS.clone
item, tolist, to_numpy, to_cpu = TENSORS.item, TENSORS.tolist, TENSORS.numpy, TENSORS.cpu
to_dense, coalesce, stored_values = TENSORS.to_dense, TENSORS.coalesce, TENSORS.values
