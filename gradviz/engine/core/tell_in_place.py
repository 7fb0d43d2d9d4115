"""Telling a listener of an operation in place: one op, whose output is the tensor that it wrote over."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from threading import get_ident
from typing import Any

from gradviz.engine.core.forward_mode import tangent_of
from gradviz.engine.core.node import Node, edge_node, edge_numbers
from gradviz.engine.core.state import hears, note_special, state
from gradviz.engine.core.tell import Told, constants_text, heard_of, note_dependence, tell, tell_node, tell_tangent
from gradviz.engine.core.tensor import Tensor, number_of, state_of
from gradviz.engine.core.views import views_of
from gradviz.events.field_types import Rule
from gradviz.events.listener import NO_RULE


def tell_copy_slices(node: Node, inner: Node, base: Tensor) -> None:
    """The node of a base is `node` now, in which `inner` runs, the node of the op on a part of it."""
    held: list[Told] | None = state.modes.held_ops
    if held is None:
        return
    at = next((i for i, told in enumerate(held) if told.node is inner), -1)
    if at < 0:
        return
    flat = held[at].edges
    of_inner = dict(zip(zip(flat[::3], flat[1::3], strict=True), flat[2::3], strict=True))
    edges: list[int] = []
    for edge in node.edges:
        edges += (*edge_numbers(edge), of_inner.get(edge_numbers(edge), 0))
    edges[2] = number_of(base)
    held.append(held[at]._replace(node=node, edges=edges, outputs=(), rule=_of_base(held[at].rule)))
    held[at] = held[at]._replace(node=None)


def _of_base(rule: Rule) -> Rule:
    """The rule of an op on a part of a base, as that of the base: elsewhere its gradient goes through as it is."""
    (name, text), *others = rule.inputs or (("", ""),)
    elsewhere = "g" if re.search(r"\bg\b", text) else "1"
    part = f"({text})" if " " in text else text
    whole = f"{part} where written over, else {elsewhere}" if text else ""
    return rule._replace(inputs=((name, whole), *others))


class InPlace:
    """`with InPlace(x, "add_", (x, y)) as told:` tells what runs inside as one op that writes over x.

    The ops inside are held back. `told.result` is to be the tensor whose value x takes: the op that made it is told
    under the operation's name, those before it as they are. What comes after it are the nodes by which the graph
    follows; `told.follows(tensor)` says that a tensor on the same memory has another value, or place in the graph.
    Where no op made the result, `inputs` and `args` are told."""

    def __init__(self, x: Tensor, name: str, inputs: Sequence[Any], args: str = "") -> None:
        self.x, self.name, self.inputs, self.args = x, name, inputs, args
        self.active = state.listener is not None and state.modes.held_ops is None
        self.result: Tensor | None = None
        self.followers: list[Tensor] = []

    def __enter__(self) -> InPlace:
        if self.active:
            number_of(self.x)
            state.modes.held_ops = []
            note_special(f"operation in place of thread {get_ident()}", True)
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if not self.active:
            return
        held: list[Told] = state.modes.held_ops or []
        state.modes.held_ops = None
        note_special(f"operation in place of thread {get_ident()}", False)
        frame = sys._getframe(1)
        if state.listener is None:
            return
        if kind is not None or self.result is None:
            for told in held:
                tell(told, frame)
        else:
            self._tell(held, frame)

    def follows(self, tensor: Tensor) -> None:
        """A tensor that shares the memory has another value, or another place in the graph."""
        if self.active and tensor is not self.x:
            number_of(tensor)
            self.followers.append(tensor)

    def _tell(self, held: list[Told], frame: Any) -> None:
        listener: Any = state.listener
        at = next((i for i, told in enumerate(held) if any(out is self.result for out in told.outputs)), -1)
        for told in held[: max(at, 0)]:
            tell(told, frame)
        running = state.modes.running
        in_pass = 0 if running is None else running.number
        main = held[at] if at >= 0 else self._without_op()
        x = state_of(self.x)
        if state.unheard is not None and not hears(listener):
            state.unheard.wrote(listener, self.x, self.name, frame)
        note_dependence(self.inputs, (self.x,))
        listener.op(
            frame, self.name, main.args, main.rule, in_pass, state.modes.grad_enabled, main.inputs,
            (x.tensor,), (x.value,), (x.flags,), (x.version,), (x.base,),
        )  # fmt: skip
        for tensor in (*self.followers, *self._unmoved()):
            listener.mutated(frame, self.name, state_of(tensor), x.tensor, in_pass, -1)
        for told in held[at:] if at >= 0 else held:
            if told.node is not None:
                tell_node(self._of_x(told), self._outputs(told.node), frame)
        for tensor in (self.x, *self.followers):
            tangent = tangent_of(tensor)
            if tangent is not None:
                tell_tangent(tensor, tangent, self.name, frame)

    def _unmoved(self) -> list[Tensor]:
        """The other tensors on the same memory that the listener knows: they have another value."""
        base = self.x if self.x._base is None else self.x._base
        told = (self.x, *self.followers)
        return [
            tensor
            for tensor in (base, *views_of(base))
            if getattr(tensor, "_number", 0) >= max(state.first_number, 1) and not any(tensor is one for one in told)
        ]

    def _of_x(self, told: Told) -> Told:
        """What is told of a node, with x in the place of the result, which the program never sees."""
        result, x = getattr(self.result, "_number", 0), self.x._number
        edges, saved = [*told.edges], [*told.saved]
        edges[2::3] = [x if tensor == result else tensor for tensor in edges[2::3]]
        for at in range(0, len(saved), 2):
            if saved[at] == result:
                saved[at : at + 2] = x, self.x._writes
        return told._replace(edges=edges, saved=saved)

    def _outputs(self, node: Node) -> list[int]:
        """The tensors whose `grad_fn` a node is now; 0 where the program sees none."""
        seen = [t for t in (self.x, *self.followers) if edge_node(t._edge) is node]
        return [tensor._number for tensor in seen] or [0]

    def _without_op(self) -> Told:
        numbers = [heard_of(tensor) if isinstance(tensor, Tensor) else 0 for tensor in self.inputs]
        args = ", ".join(part for part in (self.args, constants_text(self.inputs)) if part)
        return Told(self.name, args, NO_RULE, numbers, (), None, [], [])
