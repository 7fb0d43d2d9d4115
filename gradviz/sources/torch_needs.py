"""What the recorder needs of PyTorch that is no part of its public interface: versions differ in it."""

from __future__ import annotations

import sys
from typing import Any

TESTED = "2.13"
NEEDED = """
    _C.DisableTorchFunction _C.DisableTorchFunctionSubclass _C._DisableTorchDispatch _C._EnableTorchFunction
    _C._FunctionBase _C._current_autograd_node _C._disabled_torch_function_impl
    _C._functorch.peek_interpreter_stack _C._get_function_stack_at _C._is_tracing _C._len_torch_dispatch_stack
    _C._len_torch_function_stack _VF._unpack_dual _ops.OpOverload
    autograd._enable_record_function autograd._engine_run_backward autograd._profiler_enabled
    autograd.forward_ad._current_level autograd.graph._engine_run_backward
    autograd.graph._get_grad_fn_or_grad_acc compiler.is_compiling fx.traceback.format_stack nn.Buffer
    optim.optimizer.register_optimizer_step_post_hook optim.optimizer.register_optimizer_step_pre_hook
    overrides.TorchFunctionMode overrides._get_current_function_mode_stack overrides._pop_mode overrides._push_mode
    utils._python_dispatch.TorchDispatchMode utils._python_dispatch._disable_current_modes
    utils._python_dispatch._get_current_dispatch_mode utils._python_dispatch._pop_mode
    utils._python_dispatch._push_mode
""".split()


def missing(torch: Any) -> str:
    """The first of these that a PyTorch lacks; empty where it has all."""
    for path in NEEDED:
        found, known = torch, "torch"
        for part in path.split("."):
            known += f".{part}"
            found = getattr(found, part, None) or sys.modules.get(known)
        if found is None:
            return known
    return ""
