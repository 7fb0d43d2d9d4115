"""Running an op: compute the result, record a node, tell the listener.

`unary` and `binary` make the functions that programs call. They do what an ordinary op needs, and nothing else.
Everything else (a listener, `no_grad`, forward mode, arguments to convert) goes through `apply`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy import asarray, ndarray

from gradviz.engine.basics.dtypes import default_dtype, float32, result_type
from gradviz.engine.basics.shape_errors import bools_subtracted, check_kernel, explained
from gradviz.engine.core.node import Edge, Node, Output
from gradviz.engine.core.op import Op
from gradviz.engine.core.packing import pack
from gradviz.engine.core.state import next_node_number, state
from gradviz.engine.core.tell import tell_binary, tell_made, tell_op, tell_plain, tell_tangents, tell_unary
from gradviz.engine.core.tensor import (
    LEAF_EDGE,
    Tensor,
    accumulator,
    gradient_edge,
    new_tensor,
    note_inference,
    saved_version,
)
from gradviz.engine.core.views import share_memory
from gradviz.events.listener import Listener

_new: Any = object.__new__


def unary(op: Op) -> Callable:
    """The function of an elementwise op of one tensor."""
    forward = op.forward
    node_class: Any = op.node_class
    saves_x, saves_out = op.saves_inputs, op.saves_out

    def call(input: Tensor) -> Tensor:
        listener = None
        if state.special or type(input) is not Tensor:
            listener = state.only_listener
            if listener is None or type(input) is not Tensor:
                return apply(op, (as_tensor(input),))
        try:
            array = forward(input.array)
        except TypeError as error:
            raise explained(error) from None
        if type(array) is not ndarray:
            array = asarray(array)
        if array.dtype is not float32:
            array = settle(op, array, (input,))
        out = _new(Tensor)
        out.array = array
        out._rare = None
        edge = input._edge
        if edge is None:
            out._edge = None
            if listener is not None:
                tell_plain(listener, op, (input,), out)
            return out
        node = node_class()
        node.number = next_node_number()
        node.rare = node.spec = None
        node.a = edge if edge is not LEAF_EDGE else accumulator(input)
        if saves_x:
            node.x = input
            if input._rare is not None:
                node.x_version = saved_version(input)
        if saves_out:
            node.out = array
            node.out_counter = None
        out._edge = node
        if listener is not None:
            tell_unary(listener, op, input, out, node)
        return out

    return named_as(op, call)


def binary(op: Op) -> Callable:
    """The function of an elementwise op of two tensors. One of them may be a Python number."""
    forward = op.forward
    node_class: Any = op.node_class
    (a_saves_x, a_saves_y), (b_saves_x, b_saves_y) = op.keeps((True, False)), op.keeps((False, True))
    saves, saves_out = op.saves_inputs, op.saves_out
    may_convert = op.kind == "elementwise"
    takes_bools = op.name not in ("sub", "rsub")

    def call(input: Any, other: Any) -> Any:
        if type(other) is not Tensor or type(input) is not Tensor:
            if not takes_bools and (isinstance(other, bool) or isinstance(input, bool)):
                raise bools_subtracted(1)
            input, other = operands(input, other)
            if input is None:
                return NotImplemented
        listener = None
        if state.special:
            listener = state.only_listener
            if listener is None:
                return apply(op, (input, other))
        left, right = input.array, other.array
        try:
            array = forward(left, right)
        except (ValueError, TypeError) as error:
            raise explained(error, left.shape, right.shape) from None
        if type(array) is not ndarray:
            array = asarray(array)
        if array.dtype is not float32 or left.dtype is not right.dtype:
            array = settle(op, array, (input, other))
        out = _new(Tensor)
        out.array = array
        out._rare = None
        a, b = input._edge, other._edge
        if a is None and b is None:
            out._edge = None
            if listener is not None:
                tell_plain(listener, op, (input, other), out)
            return out
        node = node_class()
        node.number = next_node_number()
        node.rare = None
        node.a = a if a is not LEAF_EDGE else accumulator(input)
        node.b = b if b is not LEAF_EDGE else accumulator(other)
        if saves:
            if (a_saves_x and a is not None) or (b_saves_x and b is not None):
                node.x = input
                if input._rare is not None:
                    node.x_version = saved_version(input)
            if (a_saves_y and a is not None) or (b_saves_y and b is not None):
                node.y = other
                if other._rare is not None:
                    node.y_version = saved_version(other)
        if saves_out:
            node.out = array
            node.out_counter = None
        if may_convert and (left.shape != right.shape or left.dtype is not right.dtype):
            node.spec = ((left.shape, left.dtype), (right.shape, right.dtype))
        else:
            node.spec = None
        out._edge = node
        if listener is not None:
            tell_binary(listener, op, input, other, out, node)
        return out

    return named_as(op, call)


def named_as(op: Op, function: Callable) -> Callable:
    """Give `function` the name of an op."""
    function.__name__ = function.__qualname__ = op.name
    function.__doc__ = f"{op.name}: {op.formula}"
    return function


def apply(op: Op, inputs: Sequence[Tensor], args: tuple = (), read: tuple[Tensor, ...] = ()) -> Any:
    """Run an op on tensors. `args` are its other arguments, in the order of `op.args`. What these arguments were read
    from, `read`, are inputs to a listener: tensors without a gradient, as the classes of a loss.

    Returns a tensor, or a tuple where the op has several outputs. Raises RuntimeError where the shapes do not fit."""
    special = state.special
    listener = state.only_listener if special else None
    if op.of_one and (not special or listener is not None):
        return _apply_to_one(op, inputs[0], args, read, listener)
    arrays = [tensor.array for tensor in inputs]
    try:
        result = op.forward(arrays, *args) if op.variadic else op.forward(*arrays, *args)
    except (ValueError, TypeError) as error:
        raise explained(error, *(array.shape for array in arrays)) from None
    if op.outputs > 1:
        outputs = tuple(new_tensor(np.asarray(array)) for array in result)
    else:
        array = result if type(result) is ndarray else asarray(result)
        if array.dtype is not float32 and op.kind == "elementwise":
            array = settle(op, array, inputs, args)
        outputs = (new_tensor(array),)
    if op.view:
        for output in outputs:
            share_memory(op, inputs[0], output)
    node = None
    if op.derivatives and (not special or state.modes.grad_enabled) and outputs[0].array.dtype.kind in "fc":
        edges = tuple([gradient_edge(tensor) for tensor in inputs])
        if edges.count(None) < len(edges):
            node = make_node(op, inputs, edges, args, outputs, read)
    if listener is not None and node is not None and op.outputs == 1:
        tell_made(listener, op, (*inputs, *read), outputs[0], args, node)
    elif special:
        _push_and_tell(op, inputs, outputs, args, read, node)
        if node is not None and state.modes.saved_tensors_hooks:
            pack(node, outputs)
    return outputs if op.outputs > 1 else outputs[0]


def _apply_to_one(op: Op, x: Tensor, args: tuple, read: tuple[Tensor, ...], listener: Listener | None) -> Tensor:
    """`apply` for an op of one tensor with one output, while nothing is special but the listener, if there is one. It
    takes fewer steps."""
    array = op.forward(x.array, *args)
    if type(array) is not ndarray:
        array = asarray(array)
    if array.dtype is not float32 and op.kind == "elementwise":
        array = settle(op, array, (x,), args)
    out = _new(Tensor)
    out.array = array
    out._rare = None
    if op.view:
        share_memory(op, x, out)
    edge = x._edge if op.derivatives else None
    if edge is None or array.dtype.kind not in "fc":
        out._edge = None
        if listener is not None:
            tell_op(op.name, (x, *read), (out,), op.arguments_text(args), None, op.rule(args))
        return out
    node: Any = op.node_class()
    node.number = next_node_number()
    node.rare = None
    node.args = args
    if op.frees_args:
        node.read = _with_versions(read)
    node.a = edge if edge is not LEAF_EDGE else accumulator(x)
    if op.needs_spec or (op.kind == "elementwise" and _were_converted((x,), array)):
        node.spec = ((x.array.shape, x.array.dtype),)
    else:
        node.spec = None
    if op.saves_inputs:
        node.x = x
        if x._rare is not None:
            node.x_version = saved_version(x)
    if op.saves_out:
        node.out = array
        node.out_counter = None
    out._edge = node
    if listener is not None:
        tell_made(listener, op, (x, *read), out, args, node)
    return out


def _push_and_tell(
    op: Op,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    args: tuple,
    read: tuple[Tensor, ...],
    node: Node | None,
) -> None:
    """In forward mode push tangents through an op that has run. Tell the listener, if there is one."""
    if state.modes.inference and not op.view:
        note_inference(*outputs)
    tangents: Sequence[tuple[Tensor, Tensor]] = ()
    if state.forward_mode is not None:
        tangents = state.forward_mode.push(op, inputs, outputs, args)
    if state.listener is not None:
        tell_op(op.name, (*inputs, *read), outputs, op.arguments_text(args), node, op.rule(args))
        tell_tangents(op.name, tangents)


def make_node(
    op: Op,
    inputs: Sequence[Tensor],
    edges: tuple[Edge, ...],
    args: tuple,
    outputs: Sequence[Tensor],
    read: tuple[Tensor, ...] = (),
) -> Node:
    """Make the node of an op that has run, and link the outputs to it."""
    node: Any = op.node_class()
    node.number = next_node_number()
    node.rare = None
    node.args = args
    if op.frees_args:
        node.read = _with_versions(read)
    node.spec = None
    if op.needs_spec or (op.kind == "elementwise" and _were_converted(inputs, outputs[0].array)):
        node.spec = tuple([(tensor.array.shape, tensor.array.dtype) for tensor in inputs])
    if not node.arity:
        node._edges = edges
        node.tensors = kept = saved_inputs(op, inputs, edges)
        node.versions = tuple([0 if tensor is None else saved_version(tensor) for tensor in kept])
    elif op.saves_inputs:
        kept = saved_inputs(op, inputs, edges)
        if kept[0] is not None:
            node.x, node.x_version = kept[0], saved_version(kept[0])
        if node.arity == 2 and kept[1] is not None:
            node.y, node.y_version = kept[1], saved_version(kept[1])
    if node.arity == 1:
        (node.a,) = edges
    elif node.arity == 2:
        node.a, node.b = edges
    if op.saves_out:
        node.out_counter = None
        node.out = outputs[0].array if op.outputs == 1 else _saved_outputs(op, outputs)
    if op.outputs == 1:
        outputs[0]._edge = node
        return node
    for nr, output in enumerate(outputs):
        if output.array.dtype.kind in "fc":
            output._edge = Output(node, nr)
    return node


def _saved_outputs(op: Op, outputs: Sequence[Tensor]) -> tuple[np.ndarray | None, ...]:
    """The outputs that a node saves: all of them, or only the indices of an op that gave (values, indices)."""
    return tuple(output.array if op.saves_all_outputs or nr == 1 else None for nr, output in enumerate(outputs))


def _were_converted(inputs: Sequence[Tensor], out: np.ndarray) -> bool:
    """Whether an input was broadcast to the shape of `out`, or cast to its dtype."""
    return any(tensor.array.shape != out.shape or tensor.array.dtype != out.dtype for tensor in inputs)


def _with_versions(read: Sequence[Tensor]) -> tuple[tuple[Tensor, int], ...]:
    """What an op read beside its operands, as its node saves it."""
    return tuple([(tensor, saved_version(tensor)) for tensor in read])


def saved_inputs(op: Op, inputs: Sequence[Tensor], edges: Sequence[Edge]) -> tuple[Tensor | None, ...]:
    """The inputs to save for the gradients that will be asked for. None stands for the others."""
    if not op.saves_inputs:
        return (None,) * len(inputs)
    if op.variadic:
        return tuple(inputs)
    keeps = op.keeps(tuple([edge is not None for edge in edges]))
    return tuple([tensor if kept else None for tensor, kept in zip(inputs, keeps, strict=True)])


# --- arguments


def given(*tensors: Tensor | None) -> tuple[Tensor, ...]:
    """Those of a call's optional tensors that it was given."""
    return tuple([tensor for tensor in tensors if tensor is not None])


def as_tensor(value: Any) -> Tensor:
    """`value` as a Tensor. It is a Tensor, a number or an array; raises TypeError for anything else."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, (int, float, complex)):
        return constant(value, np.empty((), result_type(value)))
    if isinstance(value, (np.ndarray, np.generic)):
        return new_tensor(np.asarray(value))
    raise TypeError(f"expected a Tensor or a number, got {type(value).__name__}")


def operands(x: Any, y: Any) -> tuple[Any, Any]:
    """Both operands as Tensors. A number takes its dtype from the other. (None, None) where they are no operands."""
    if isinstance(x, Tensor):
        y = _operand_beside(x, y)
    elif isinstance(y, Tensor):
        x = _operand_beside(y, x)
    elif isinstance(x, _ACCEPTED) and isinstance(y, _ACCEPTED):
        return as_tensor(x), as_tensor(y)
    else:
        return None, None
    return (None, None) if x is None or y is None else (x, y)


_ACCEPTED = (int, float, complex, np.ndarray, np.generic)


def _operand_beside(tensor: Tensor, value: Any) -> Tensor | None:
    kind = type(value)
    if kind is float or kind is int:
        known = _constants.get((kind, value, tensor.array.dtype))
        if known is not None:
            return known
    if isinstance(value, Tensor):
        return value
    if isinstance(value, (int, float, complex)):
        return constant(value, tensor.array)
    return new_tensor(np.asarray(value)) if isinstance(value, (np.ndarray, np.generic)) else None


_constants: dict[tuple, Tensor] = {}


def constant(value: Any, beside: np.ndarray) -> Tensor:
    """A Tensor for a Python number, in the dtype that the number has beside an array. The listener does not hear of
    it.

    Constants are cached, because loops use the same numbers again. 0 is not cached: −0.0 is equal to it."""
    tensor = new_tensor(np.array(value, result_type(beside, value)))
    tensor._number = 0
    if len(_constants) > 1000:
        _constants.clear()
    if value:
        _constants[type(value), value, beside.dtype] = tensor
    return tensor


def settle(op: Op, array: np.ndarray, inputs: Sequence[Tensor], args: tuple = ()) -> np.ndarray:
    """The op's result in PyTorch's dtype, where NumPy's type promotion gives another one.

    Raises RuntimeError where a bool tensor is subtracted, which NumPy permits, and NotImplementedError where
    PyTorch's op takes floating-point numbers only."""
    arrays = [tensor.array for tensor in inputs]
    if op.kernel:
        check_kernel(op.kernel, arrays[0])
    if op.name in ("sub", "rsub") and any(a.dtype.kind == "b" for a in arrays):
        raise bools_subtracted(1)
    expected = result_type(*arrays)
    if array.dtype == expected or array.dtype.kind not in "iufc":
        return array
    if array.dtype.kind in "iu":
        if expected.kind == "b":
            raise NotImplementedError(f"\"{op.name}_cpu\" not implemented for 'Bool'")
        if expected.kind not in "iu":
            return array
    elif expected.kind not in "fc":  # a float op on integers
        expected = default_dtype()
    if array.dtype == expected:
        return array
    settled = np.asarray(op.forward(*(a.astype(expected) for a in arrays), *args))
    return settled.astype(expected, copy=False) if settled.dtype.kind == expected.kind else settled
