"""Tells the listener which op ran and which node it made. The short forms are for the most frequent ops.

The engine passes the frame that called its public function. If frames of the engine are above it, `tracefile.sites`
skips them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from gradviz.engine.core.node import Node, Output, edge_numbers
from gradviz.engine.core.op import Op
from gradviz.engine.core.state import hears, next_tensor_number, state
from gradviz.engine.core.tensor import (
    Tensor,
    base_of,
    depends,
    flags_of,
    gradient_edge,
    note_inference,
    number_of,
    state_of,
)
from gradviz.events.field_types import Rule
from gradviz.events.kinds import LEAF, REQUIRES_GRAD
from gradviz.events.listener import NO_RULE, Listener, edges_of, saved_of

_NOTHING = (0,)
_Result = TypeVar("_Result", Tensor, tuple[Tensor, ...], Tensor | tuple[Tensor, ...])


def heard_of(tensor: Tensor) -> int:
    """The tensor's number, as `number_of` gives it, but without a call if the listener knows the tensor
    already."""
    try:
        number = tensor._number
    except AttributeError:
        return number_of(tensor)
    return number if number >= state.first_number or number == 0 else number_of(tensor)


def note_dependence(inputs: Sequence[Any], outputs: Sequence[Tensor]) -> None:
    """Note that the results of an op without a node depend on a leaf that requires grad, if an input does."""
    if any(isinstance(tensor, Tensor) and depends(tensor) for tensor in inputs):
        for out in outputs:
            out._depends = True


def constants_text(inputs: Sequence[Any]) -> str:
    """The constants among an op's operands, as text."""
    return ", ".join(str(tensor.array[()]) for tensor in inputs if isinstance(tensor, Tensor) and heard_of(tensor) == 0)


def tell_plain(listener: Listener, op: Op, inputs: Sequence[Tensor], out: Tensor) -> None:
    """Tell of an elementwise op that ran and made no node."""
    if not hears(listener):
        return
    numbers = [heard_of(tensor) for tensor in inputs]
    out._number = number = next_tensor_number()
    note_dependence(inputs, (out,))
    args = "" if all(numbers) else constants_text(inputs)
    listener.op(
        sys._getframe(2), op.name, args, op.fixed_rule or op.rule(()), 0, True, numbers, (number,), (out.array,),
        (LEAF,), _NOTHING, _NOTHING,
    )  # fmt: skip


def tell_unary(listener: Listener, op: Op, x: Tensor, out: Tensor, node: Any) -> None:
    """Tell of an elementwise op of one tensor that ran and made `node`."""
    if not hears(listener):
        return
    n = heard_of(x)
    out._number = number = next_tensor_number()
    saved = (number, 0) if op.saves_out else (n, x._writes) if op.saves_inputs else ()
    listener.differentiated(
        sys._getframe(2), op.name, "", op.fixed_rule or op.rule(()), 0, (n,), number, out.array, REQUIRES_GRAD, 0, 0,
        node.number, node.label, (*edge_numbers(node.a), n), saved,
    )  # fmt: skip


def tell_binary(listener: Listener, op: Op, x: Tensor, y: Tensor, out: Tensor, node: Any) -> None:
    """Tell of an elementwise op of two tensors that ran and made `node`."""
    if not hears(listener):
        return
    try:
        n, m = x._number, y._number
    except AttributeError:
        n, m = heard_of(x), heard_of(y)
    if n < state.first_number or m < state.first_number:
        n, m = heard_of(x), heard_of(y)
    out._number = number = next_tensor_number()
    a, b = node.a, node.b
    edges: tuple[int, ...]
    saved: tuple[int, ...] = ()
    if b is None and type(a) is not Output:
        edges = (a.number, 0, n, 0, 0, m)
        x_kept, y_kept = op.kept_for_first
    else:
        edges = (*edge_numbers(a), n, *edge_numbers(b), m)
        x_kept, y_kept = op.keeps((a is not None, b is not None))
    if op.saves_inputs:
        if x_kept and n:
            saved = (n, 0 if x._rare is None else x._writes)
        if y_kept and m:
            saved += (m, 0 if y._rare is None else y._writes)
    if op.saves_out:
        saved += (number, 0)
    args = "" if n and m else constants_text((x, y))
    listener.differentiated(
        sys._getframe(2), op.name, args, op.fixed_rule or op.rule(()), 0, (n, m), number, out.array, REQUIRES_GRAD, 0,
        0, node.number, node.label, edges, saved,
    )  # fmt: skip


def tell_made(listener: Listener, op: Op, inputs: Sequence[Tensor], out: Tensor, args: tuple, node: Any) -> None:
    """Tell of any op of one output that ran and made `node`."""
    if not hears(listener):
        return
    try:
        numbers = [tensor._number for tensor in inputs]
    except AttributeError:
        numbers = [0]
    if min(numbers) < state.first_number:
        numbers = [heard_of(tensor) for tensor in inputs]
    out._number = number = next_tensor_number()
    text = op.arguments_text(args) if args else ""
    if 0 in numbers:
        text = _with_constants(text, inputs)
    saved: list[int] = []
    if op.saves_inputs or op.frees_args:
        for tensor, kept in node.saved():  # of its inputs, and of what was read beside them
            if n := tensor._number:
                saved += (n, kept)
    if op.saves_out:
        saved += (number, 0)
    flags, version, base = REQUIRES_GRAD, 0, 0
    if out._rare is not None:
        flags, version, base = flags_of(out), out._writes, base_of(out)
    listener.differentiated(
        sys._getframe(2), op.name, text, op.rule(args), 0, numbers, number, out.array, flags, version, base,
        node.number, node.label, _edges(node, inputs, numbers), saved,
    )  # fmt: skip


def _with_constants(text: str, inputs: Sequence[Any]) -> str:
    return ", ".join(part for part in (text, constants_text(inputs)) if part)


def without_node(name: str, inputs: Sequence[Any], out: _Result, args: str = "") -> _Result:
    """What an op gave that makes no node, a tensor or several; the listener hears of it first."""
    if state.special and state.modes.inference:
        note_inference(*(out if isinstance(out, tuple) else (out,)))
    if state.listener is not None:
        outputs: Any = out if isinstance(out, tuple) else (out,)
        tell_op(name, inputs, outputs, args, None)
    return out


class Told(NamedTuple):
    """What the listener is told about an op that has run. `edges` and `saved` are flat lists, as in
    `Listener.differentiated`, and `tangents` are pairs of an output and its tangent."""

    name: str
    args: str
    rule: Rule
    inputs: list[int]
    outputs: Sequence[Tensor]
    node: Node | None
    edges: list[int]
    saved: list[int]
    tangents: Sequence[tuple[Tensor, Tensor]] = ()


def tell_op(
    name: str, inputs: Sequence[Any], outputs: Sequence[Tensor], args: str, node: Node | None, rule: Rule = NO_RULE
) -> None:
    """Tell of any op that ran. Inputs that are not tensors have number 0. While an operation in place holds
    ops back, they are told later."""
    numbers = [heard_of(tensor) if isinstance(tensor, Tensor) else 0 for tensor in inputs]
    if 0 in numbers:
        args = _with_constants(args, inputs)
    for tensor in outputs:
        tensor._number = next_tensor_number()
    note_dependence(inputs, outputs)
    edges = [] if node is None else _edges(node, inputs, numbers)
    saved = [] if node is None else _saved(node, outputs)
    told = Told(name, args, rule, numbers, outputs, node, edges, saved)
    held = state.modes.held_ops
    if held is not None:
        held.append(told)
    else:
        tell(told, sys._getframe(2))


def tell(told: Told, frame: Any) -> None:
    """Tell the listener of an op, its node and its tangents, if it has any."""
    listener: Any = state.listener
    name, args, rule, inputs, outputs, node, edges, saved, tangents = told
    running = state.modes.running
    in_pass = 0 if running is None else running.number
    if node is not None and len(outputs) == 1:
        (out,) = outputs
        flags, version, base = REQUIRES_GRAD, 0, 0
        if out._rare is not None:
            flags, version, base = flags_of(out), out._writes, base_of(out)
        listener.differentiated(
            frame, name, args, rule, in_pass, inputs, out._number, out.array, flags, version, base, node.number,
            node.label, edges, saved,
        )  # fmt: skip
    else:
        numbers = [tensor._number for tensor in outputs]
        listener.op(
            frame, name, args, rule, in_pass, state.modes.grad_enabled, inputs, numbers,
            [tensor.array for tensor in outputs], [flags_of(tensor) for tensor in outputs],
            [tensor._writes for tensor in outputs], [base_of(tensor) for tensor in outputs],
        )  # fmt: skip
        if node is not None:
            tell_node(told, _differentiable(outputs), frame)
    for output, tangent in tangents:
        tell_tangent(output, tangent, name, frame)


def _differentiable(outputs: Sequence[Tensor]) -> list[int]:
    """The numbers of the outputs by output number, 0 for one that has no gradient, up to the last that has: the indices
    of `max` are left out."""
    numbers = [tensor._number if tensor.requires_grad else 0 for tensor in outputs]
    while numbers and not numbers[-1]:
        numbers.pop()
    return numbers


def tell_tangents(name: str, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Tell of the tangents of the last op's outputs. If that op is held back, they are told together with it."""
    held = state.modes.held_ops
    if held is not None and pairs:
        held[-1] = held[-1]._replace(tangents=pairs)
    elif held is None:
        for output, tangent in pairs:
            tell_tangent(output, tangent, name, sys._getframe(2))


def tell_tangent(tensor: Tensor, tangent: Tensor, how: str, frame: Any) -> None:
    """Tell of a tensor that got a tangent."""
    listener: Any = state.listener
    number_of(tangent)
    listener.tangent(frame, how, number_of(tensor), state_of(tangent))


def tell_node(told: Told, outputs: Sequence[int], frame: Any) -> None:
    """Tell of the node that the thread's last op made for the tensors with these numbers."""
    node: Any = told.node
    listener: Any = state.listener
    edges, saved = edges_of(told.edges), saved_of(told.saved)
    listener.node(frame, node.number, node.label, -1, told.rule, outputs, edges, saved)


def _edges(node: Any, inputs: Sequence[Any], numbers: Sequence[int]) -> list[int]:
    """The edges of a node, each with the number of the tensor whose gradient flows along it: that of the
    input at the same position, or else of the input at the same place of the graph."""
    edges = node.edges
    if len(edges) != len(numbers):
        places = {
            edge_numbers(gradient_edge(tensor)): number
            for tensor, number in zip(inputs, numbers, strict=True)
            if isinstance(tensor, Tensor) and tensor.requires_grad
        }
        numbers = [places.get(edge_numbers(edge), 0) for edge in edges]
    flat: list[int] = []
    for edge, number in zip(edges, numbers):  # noqa: B905
        if edge is None:
            flat += (0, 0, number)
        elif type(edge) is Output:
            flat += (edge.node.number, edge.nr, number)
        else:
            flat += (edge.number, 0, number)
    return flat


def _saved(node: Node, outputs: Sequence[Tensor]) -> list[int]:
    """The tensors that a node saved, as flat pairs (number, version); its own outputs come last."""
    flat: list[int] = []
    for tensor, version in node.saved():
        if tensor is not None and (number := heard_of(tensor)):
            flat += (number, version)
    out = getattr(node, "out", None)
    for tensor, part in zip(outputs, out if type(out) is tuple else (out,), strict=False):
        if part is not None:
            flat += (tensor._number, 0)
    return flat
