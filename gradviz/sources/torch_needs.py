"""The non-public parts of PyTorch that the recorder needs: versions differ in them."""

import sys
from typing import Any

TESTED = "2.5.1 to 2.15.0"
# The attributes of nodes are listed under one class of nodes that has them.
NEEDED = """
    _C.DisableTorchFunction _C.DisableTorchFunctionSubclass _C._DisableTorchDispatch _C._EnableTorchFunction
    _C.DispatchKey.CompositeImplicitAutograd _C.TensorBase
    _C.TensorBase.abs _C.TensorBase.as_strided _C.TensorBase.clone _C.TensorBase.coalesce _C.TensorBase.cpu
    _C.TensorBase.data_ptr _C.TensorBase.detach _C.TensorBase.element_size _C.TensorBase.float _C.TensorBase.is_complex
    _C.TensorBase.is_conj _C.TensorBase.is_contiguous _C.TensorBase.is_floating_point _C.TensorBase.is_inference
    _C.TensorBase.is_neg _C.TensorBase.item _C.TensorBase.numel _C.TensorBase.numpy _C.TensorBase.reshape
    _C.TensorBase.resolve_conj _C.TensorBase.resolve_neg _C.TensorBase.storage_offset _C.TensorBase.stride
    _C.TensorBase.t _C.TensorBase.to _C.TensorBase.to_dense _C.TensorBase.tolist _C.TensorBase.untyped_storage
    _C.TensorBase.values _C.TensorBase.view
    _C._FunctionBase _C._current_autograd_node
    _C._disabled_torch_function_impl _C._dispatch_has_kernel_for_dispatch_key
    _C._autograd.SavedTensor _C._functions.AccumulateGrad._input_metadata _C._functions.AccumulateGrad._sequence_nr
    _C._functions.AddmmBackward0._raw_saved_mat1 _C._functions.AddmmBackward0._raw_saved_mat2
    _C._TorchDispatchModeKey.FAKE _C._TorchDispatchModeKey.PROXY
    _C._nn.flatten_dense_tensors _C._functorch.get_unwrapped _C._functorch.is_batchedtensor
    _C._functorch.is_functorch_wrapped_tensor _C._functorch.is_gradtrackingtensor _C._functorch.peek_interpreter_stack
    _C._get_dispatch_mode
    _C._get_function_stack_at _C._is_tracing _C._len_torch_dispatch_stack _C._len_torch_function_stack _VF._unpack_dual
    _foreach_mul _foreach_norm
    _foreach_sub_ _ops.OpOverload
    ops.aten.add.Tensor._op ops.aten.add.Tensor._op_dk ops.aten.add.Tensor._overloadpacket UntypedStorage._cdata
    Tensor._backward_hooks Tensor._base Tensor._is_view Tensor._post_accumulate_grad_hooks Tensor._version
    autograd._enable_record_function autograd._engine_run_backward autograd._profiler_enabled
    autograd.forward_ad._current_level autograd.graph._engine_run_backward
    autograd.graph._get_grad_fn_or_grad_acc compiler.is_compiling nn.Buffer
    nn.modules._functions.BackwardHookFunction
    optim.optimizer.register_optimizer_step_post_hook optim.optimizer.register_optimizer_step_pre_hook
    overrides.TorchFunctionMode overrides._get_current_function_mode_stack overrides._pop_mode overrides._push_mode
    utils._python_dispatch.TorchDispatchMode utils._python_dispatch._disable_current_modes
    utils._python_dispatch._get_current_dispatch_mode utils._python_dispatch._pop_mode
    utils._python_dispatch._push_mode
""".split()


def missing(torch: Any) -> str:
    """The first needed name that this PyTorch lacks; empty if it has all."""
    return next((f"torch.{path}" for path in NEEDED if optional(torch, path) is None), "")


def optional(torch: Any, path: str) -> Any:
    """The object of PyTorch with this dotted name; None if this version has none. Imports nothing."""
    value, known = torch, "torch"
    for part in path.split("."):
        known += f".{part}"
        value = getattr(value, part, None) or sys.modules.get(known)
    return value
