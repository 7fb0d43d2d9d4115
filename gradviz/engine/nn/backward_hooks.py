"""Full backward hooks of modules. The inputs and outputs of the module pass through nodes that see their
gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradviz.engine.core.function import Function
from gradviz.engine.core.tensor import Tensor, new_tensor


class BackwardHookFunction(Function):
    """The identity on tensors. Its backward passes their gradients to a function, which may replace them."""

    @staticmethod
    def forward(ctx: Any, seen: Callable, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.seen = seen
        ctx.set_materialize_grads(False)
        return tuple(new_tensor(tensor.array) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple:
        return (None, *ctx.seen(gradients))


class HookedCall:
    """One call of a module with backward hooks, and the gradients that the hooks get."""

    def __init__(self, module: Any, hooks: list[Callable]) -> None:
        self.module, self.hooks = module, hooks
        self.grad_outputs: tuple = ()
        self.n_inputs = 0
        self.positions: list[int] = []

    def inputs(self, args: tuple) -> tuple:
        """The arguments. Those that require grad have passed through a node."""
        self.n_inputs = len(args)
        self.positions = [i for i, arg in enumerate(args) if isinstance(arg, Tensor) and arg.requires_grad]
        if not self.positions:
            return args
        passed = BackwardHookFunction.apply(self._inputs_known, *(args[i] for i in self.positions))
        changed = list(args)
        for i, tensor in zip(self.positions, passed, strict=True):
            changed[i] = tensor
        return tuple(changed)

    def outputs(self, output: Any) -> Any:
        """The output, a tensor or a tuple of tensors, which have passed through a node."""
        listed = output if isinstance(output, tuple) else (output,)
        if not all(isinstance(out, Tensor) for out in listed):
            raise TypeError("a module with backward hooks has to return a Tensor or a tuple of Tensors")
        if not any(out.requires_grad for out in listed):
            return output
        passed = BackwardHookFunction.apply(self._outputs_known, *listed)
        return passed if isinstance(output, tuple) else passed[0]

    def _outputs_known(self, gradients: tuple) -> tuple:
        self.grad_outputs = gradients
        if not self.positions:
            self._run((None,) * self.n_inputs)
        return gradients

    def _inputs_known(self, gradients: tuple) -> tuple:
        whole: list[Any] = [None] * self.n_inputs
        for i, gradient in zip(self.positions, gradients, strict=True):
            whole[i] = gradient
        changed = self._run(tuple(whole))
        return tuple(changed[i] for i in self.positions)

    def _run(self, grad_inputs: tuple) -> tuple:
        for hook in self.hooks:
            result = hook(self.module, grad_inputs, self.grad_outputs)
            if result is not None:
                grad_inputs = result if isinstance(result, tuple) else (result,)
        return grad_inputs
