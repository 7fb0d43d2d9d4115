"""Telling a listener that an op ran. The short forms are for the ops that a program runs most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradviz.engine.core.node import Node, Output
from gradviz.engine.core.op import Op
from gradviz.engine.core.state import next_tensor_number, state
from gradviz.engine.core.tensor import Tensor, flags_of, number_of
from gradviz.events.listener import LEAF, REQUIRES_GRAD, Listener, op_links


def heard_of(tensor: Tensor) -> int:
    """The tensor's number, as `number_of`, without a call where the listener knows it."""
    try:
        number = tensor._number
    except AttributeError:
        return number_of(tensor)
    return number if number >= state.first_number or number == 0 else number_of(tensor)


def constants_text(inputs: Sequence[Any]) -> str:
    """The numbers among an op's operands, as text."""
    return ", ".join(
        str(tensor.array[()]) for tensor in inputs if isinstance(tensor, Tensor) and heard_of(tensor) == 0
    )


def tell_plain(listener: Listener, op: Op, inputs: Sequence[Tensor], out: Tensor) -> None:
    """An elementwise op ran that recorded no node."""
    numbers = [heard_of(tensor) for tensor in inputs]
    out._number = number = next_tensor_number()
    args = "" if all(numbers) else constants_text(inputs)
    listener.op(op.name, (out.array,), LEAF, args, 0, "", (len(numbers), 1, 0, *numbers, number))


def tell_unary(listener: Listener, op: Op, x: Tensor, out: Tensor, node: Any) -> None:
    """An elementwise op of one tensor ran and recorded `node`."""
    n = heard_of(x)
    out._number = number = next_tensor_number()
    links: tuple[int, ...] = (1, 1, 2, n, number, *edge_numbers(node.a))
    if op.saves_out:
        links += (number, 0)
    elif op.saves_inputs:
        links += (n, x._version)
    listener.op(op.name, (out.array,), REQUIRES_GRAD, "", node.number, node.label, links)


def tell_binary(listener: Listener, op: Op, x: Tensor, y: Tensor, out: Tensor, node: Any) -> None:
    """An elementwise op of two tensors ran and recorded `node`."""
    try:
        n, m = x._number, y._number
    except AttributeError:
        n, m = heard_of(x), heard_of(y)
    if n < state.first_number or m < state.first_number:
        n, m = heard_of(x), heard_of(y)
    out._number = number = next_tensor_number()
    a, b = node.a, node.b
    links: tuple[int, ...]
    if b is None and type(a) is not Output:
        links = (2, 1, 4, n, m, number, a.number, 0, 0, 0)
        x_kept, y_kept = op.kept_for_first
    else:
        links = (2, 1, 4, n, m, number, *edge_numbers(a), *edge_numbers(b))
        x_kept, y_kept = op.keeps((a is not None, b is not None))
    if op.saves_inputs:
        if x_kept and n:
            links += (n, 0 if x._rare is None else x._version)
        if y_kept and m:
            links += (m, 0 if y._rare is None else y._version)
    if op.saves_out:
        links += (number, 0)
    args = "" if n and m else constants_text((x, y))
    listener.op(op.name, (out.array,), REQUIRES_GRAD, args, node.number, node.label, links)


def edge_numbers(edge: Any) -> tuple[int, int]:
    """An edge as events have it."""
    if edge is None:
        return 0, 0
    return (edge.node.number, edge.nr) if type(edge) is Output else (edge.number, 0)


def tell_op(
    name: str, inputs: Sequence[Any], outputs: Sequence[Tensor], args: str, node: Node | None
) -> None:
    """Any op ran. What is no tensor among the inputs counts as 0."""
    listener: Any = state.listener
    numbers = [heard_of(tensor) if isinstance(tensor, Tensor) else 0 for tensor in inputs]
    if 0 in numbers:
        args = ", ".join(part for part in (args, constants_text(inputs)) if part)
    for tensor in outputs:
        tensor._number = next_tensor_number()
    made = [tensor._number for tensor in outputs]
    arrays = [tensor.array for tensor in outputs]
    flags = flags_of(outputs[0]) if outputs else 0
    if node is None:
        listener.op(name, arrays, flags, args, 0, "", op_links(numbers, made, (), ()))
        return
    edges: list[int] = []
    for edge in node.edges:
        edges += edge_numbers(edge)
    saved: list[int] = []
    for saved_tensor, saved_version in node.saved():
        number = 0 if saved_tensor is None else heard_of(saved_tensor)
        if number:
            saved += (number, saved_version)
    out = getattr(node, "out", None)
    for number, part in zip(made, out if type(out) is tuple else (out,), strict=False):
        if part is not None:
            saved += (number, 0)
    links = op_links(numbers, made, edges, saved)
    listener.op(name, arrays, flags, args, node.number, node.label, links)
