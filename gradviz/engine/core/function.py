"""autograd.Function: operations whose derivative the program defines."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from gradviz.engine.basics import errors
from gradviz.engine.core.forward_mode import keep_tangent, set_tangent, tangent_of
from gradviz.engine.core.function_ctx import FunctionCtx
from gradviz.engine.core.function_node import FunctionNode
from gradviz.engine.core.node import output_edge
from gradviz.engine.core.state import enable_grad, is_grad_enabled, next_scope_number, no_grad, state
from gradviz.engine.core.tell import tell_op
from gradviz.engine.core.tensor import LEAF_EDGE, Tensor, counter_of, gradient_edge, new_tensor
from gradviz.engine.core.views import view_of_input


class Function:
    """The base class of custom operations. `forward` and `backward` are static methods. Where `forward` takes no ctx,
    `setup_context` does."""

    _node_class: type[FunctionNode]
    _ctx_class: type[FunctionCtx]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        name = f"{cls.__name__}Backward"
        cls._node_class = type(name, (FunctionNode,), {"function": cls})
        cls._ctx_class = type(name, (FunctionCtx,), {"__slots__": ()})

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """Compute the outputs."""
        raise NotImplementedError("You must implement the forward function for custom autograd.Function.")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Any) -> Any:
        """Save what backward needs, where forward does not take ctx."""
        raise NotImplementedError("setup_context is not implemented.")

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Compute the gradient of each input of forward, or None for it."""
        raise NotImplementedError(
            "You must implement either the backward or vjp method for your custom autograd.Function to use "
            "it with backward mode AD."
        )

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Compute the tangents of the outputs, for forward mode."""
        raise NotImplementedError(
            "You must implement the jvp function for custom autograd.Function to use it with forward mode AD."
        )

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Run forward, and record a node whose rule is `backward`."""
        state.watched = True
        node = cls._node_class()
        edges = tuple(gradient_edge(arg) if isinstance(arg, Tensor) else None for arg in args)
        differentiated = is_grad_enabled() and any(edge is not None for edge in edges)
        node.needs_input_grad = tuple(isinstance(arg, Tensor) and arg.requires_grad for arg in args)
        results = cls._run_forward(node, args)
        single = not isinstance(results, tuple)
        listed: tuple = (results,) if single else results
        outputs = [node_output(node, result, args) for result in listed]
        tensors = [output for output in outputs if isinstance(output, Tensor)]
        node.outputs = len(outputs)
        node._edges = edges
        node.plain_arguments = tuple(None if isinstance(arg, Tensor) else arg for arg in args)
        node._of_tensors = tuple(isinstance(arg, Tensor) for arg in args)
        node._input_shapes = tuple(arg.array.shape if isinstance(arg, Tensor) else None for arg in args)
        node._shapes = [
            (output.array.shape, output.array.dtype) if isinstance(output, Tensor) else ((), float)
            for output in outputs
        ]
        if differentiated:
            for nr, (result, output) in enumerate(zip(listed, outputs, strict=True)):
                differentiable = isinstance(output, Tensor) and output.array.dtype.kind in "fc"
                if differentiable and id(result) not in node._constant:
                    output._edge = output_edge(node, nr)
        node._keep(listed, outputs)
        if state.listener is not None:
            tell_op(cls.__name__, args, tensors, "", node if differentiated else None)
        if state.dual_level:
            cls._push_tangents(node, args, tensors)
        return outputs[0] if single else tuple(outputs)

    @classmethod
    def _run_forward(cls, node: FunctionNode, args: tuple) -> Any:
        with scope("function", cls.__name__, cls.__name__), no_grad():
            if cls.setup_context is Function.setup_context:
                return cls.forward(node.as_shown(), *args)
            results = cls.forward(*args)
            cls.setup_context(node.as_shown(), args, results)
            return results

    @classmethod
    def _push_tangents(cls, node: FunctionNode, args: tuple, outputs: Sequence[Tensor]) -> None:
        tangents = [tangent_of(arg) if isinstance(arg, Tensor) else None for arg in args]
        if all(tangent is None for tangent in tangents):
            return
        results = cls.jvp(node.as_shown(), *tangents)
        for output, tangent in zip(outputs, results if isinstance(results, tuple) else (results,), strict=True):
            if tangent is not None:
                set_tangent(output, tangent, cls.__name__)
                keep_tangent(output)


def node_output(node: FunctionNode, result: Any, args: tuple) -> Any:
    """The tensor that the caller gets for a result of forward: a new one, or the input that forward wrote over."""
    if not isinstance(result, Tensor):
        return result
    if any(result is dirty for dirty in node._dirty):
        if result._edge is LEAF_EDGE and is_grad_enabled():
            raise errors.leaf_in_place()
        if result._base is not None and is_grad_enabled():
            raise NotImplementedError(
                "gradviz does not follow a custom Function that writes over a view: return a new tensor instead"
            )
        counter_of(result).n += 1
        return result
    output = new_tensor(result.array)
    for arg in args:
        if isinstance(arg, Tensor) and (result is arg or result._base is arg):
            view_of_input(output, arg)
    return output


class scope:
    """Tell the listener that a module or function is entered, and that it is left."""

    __slots__ = ("kind", "name", "number", "training", "type")

    def __init__(self, kind: str, name: str, type: str, training: bool = False) -> None:
        self.kind, self.name, self.type, self.training, self.number = kind, name, type, training, 0

    def __enter__(self) -> None:
        if state.listener is not None:
            self.number = next_scope_number()
            frame = sys._getframe(1)
            state.listener.scope_entered(frame, self.number, self.kind, self.name, self.type, self.training)

    def __exit__(self, *_: object) -> None:
        if state.listener is not None and self.number:
            state.listener.scope_left(self.number)


def once_differentiable(backward: Callable) -> Callable:
    """Decorate a `backward` that cannot be differentiated again. Doing so raises RuntimeError."""

    @functools.wraps(backward)
    def run(ctx: Any, *gradients: Any) -> Any:
        recorded = is_grad_enabled() and any(g is not None and g.requires_grad for g in gradients)
        with no_grad():
            results = backward(ctx, *gradients)
        if not recorded:
            return results
        listed = results if isinstance(results, tuple) else (results,)
        with enable_grad():
            failing = tuple(r if r is None else _Once.apply(r, *gradients) for r in listed)
        return failing if isinstance(results, tuple) else failing[0]

    return run


class _Once(Function):
    """The identity. Its backward raises RuntimeError."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *others: Any) -> Tensor:
        return new_tensor(gradient.array)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError("trying to differentiate twice a function that was marked with @once_differentiable")
