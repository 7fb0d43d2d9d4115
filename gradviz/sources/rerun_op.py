"""An op of gradviz's engine as a function of arrays, for a debugger that runs it again."""

import gc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradviz.engine.core.function_node import FunctionNode
from gradviz.engine.core.node import Node
from gradviz.engine.core.op import Op
from gradviz.engine.core.state import no_grad
from gradviz.engine.core.tensor import Tensor, new_tensor
from gradviz.engine.rng.generator import default_generator
from gradviz.engine.table.kernels.normalization import moments
from gradviz.events.kinds import OpRan

Forward = Callable[[Sequence[np.ndarray]], list[np.ndarray]]


def forward_of(op: OpRan, number: int, alone: bool) -> Forward:
    """The op that made node `number`, as a function of its tensor inputs. `alone` means that the op made no other
    node. Raises LookupError, with the reason, if it cannot run again."""
    objects = (one for generation in range(3) for one in gc.get_objects(generation))  # a graph is seldom old
    node: Any = next((one for one in objects if isinstance(one, Node) and one.number == number), None)
    if node is None:
        raise LookupError("this node cannot be checked: it is gone, the script has dropped its graph")
    order = list(dict.fromkeys(tensor for tensor in op.inputs if tensor))

    def arguments(arrays: Sequence[np.ndarray], constants: Sequence[Any]) -> list[Any]:
        by_number = dict(zip(order, arrays, strict=True))
        given = zip(op.inputs, constants, strict=True)
        return [by_number[tensor] if tensor else constant for tensor, constant in given]

    if isinstance(node, FunctionNode):
        return _of_function(node, arguments)
    operands = len(op.inputs) - len(getattr(node, "read", ()))  # what the op reads beside them is among its arguments
    if not alone or not hasattr(node, "op") or (len(node.op.inputs) != operands and not node.op.variadic):
        raise LookupError(f"this node cannot be checked: {op.op} made it as one of several steps")
    constants = _constants(node, op)
    args = getattr(node, "args", ())
    if args is None or any(constant is None and not t for t, constant in zip(op.inputs, constants, strict=True)):
        raise LookupError("this node cannot be checked: an argument of its op was not kept")

    def forward(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        inputs = arguments(arrays, constants)[:operands]
        others = _of_these(node.op, inputs, args)
        result = node.op.forward(inputs, *others) if node.op.variadic else node.op.forward(*inputs, *others)
        return [np.asarray(part) for part in (result if node.op.outputs > 1 else [result])]

    return forward


def _of_these(op: Op, inputs: Sequence[Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of an op for other inputs: a normalization gets the mean and variance of the new inputs."""
    if not {"view", "axes", "eps", "stats"} <= set(op.args):
        return args
    known = dict(zip(op.args, args, strict=True))
    known["stats"] = moments(inputs[0].reshape(known["view"]), known["axes"], known["eps"])
    return tuple(known.values())


def _constants(node: Any, op: OpRan) -> list[Any]:
    """The inputs that are numbers, None for tensors: from the node's saved values, otherwise from the event's text."""
    saved = [getattr(node, slot, None) for slot in ("x", "y")]
    constants: list[Any] = []
    for place, tensor in enumerate(op.inputs):
        kept = saved[place] if place < len(saved) else None
        if tensor:
            constants.append(None)
        elif isinstance(kept, Tensor):
            constants.append(kept.array.astype(np.float64))
        else:
            constants.append(_number(op.args))
    return constants


def _number(text: str) -> np.ndarray | None:
    try:
        return np.array(float(text))
    except ValueError:
        return None


def _of_function(node: FunctionNode, arguments: Callable[..., list[Any]]) -> Forward:
    """The forward of a custom Function."""

    def forward(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        state = default_generator.get_state()
        tensors = [new_tensor(np.array(array)) for array in arrays]
        try:
            with no_grad():
                result = node.function.apply(*arguments(tensors, node.plain_arguments))
        finally:
            default_generator.set_state(state)
        listed = result if isinstance(result, tuple) else (result,)
        return [output.array for output in listed if isinstance(output, Tensor)]

    return forward
