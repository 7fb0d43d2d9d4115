"""The gradients of a backward pass: their numbers, the nodes that they go to, and their changes by hooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import Parameter

from gradviz.events.counters import next_tensor_number
from gradviz.events.kinds import REQUIRES_GRAD
from gradviz.events.listener import NO_RULE, State, Where, edges_of
from gradviz.sources.torch_recorder.calls import op_of_node
from gradviz.sources.torch_recorder.identity import Identity, name_of_hook
from gradviz.sources.torch_recorder.known_things import Known, NodeRecord, version_of
from gradviz.sources.torch_recorder.node_formulas import rule_in_derivative
from gradviz.sources.torch_recorder.pytorchs_own import detach, no_grad, numel
from gradviz.sources.torch_recorder.saved import RAW, data_of, saved_as_is
from gradviz.sources.torch_recorder.shared import Source
from gradviz.sources.torch_recorder.tensor_values import Unseen

_MOST = 16  # the most elements of a recomputed value
_NUMBERS = (
    "exponent",
    "other",
)  # arguments of ops that are numbers, by their names on nodes
_PLAIN = (int, float, bool, complex)
_OF_SELF: dict[str, Callable[[torch.Tensor, Mapping[str, Any]], torch.Tensor]] = {
    "PowBackward0": lambda x, numbers: x.pow(numbers["exponent"]),
    "SinBackward0": lambda x, numbers: x.sin(),
    "CosBackward0": lambda x, numbers: x.cos(),
    "LogBackward0": lambda x, numbers: x.log(),
}
_OF_EDGES: dict[str, Callable[[Sequence[torch.Tensor], Mapping[str, Any]], torch.Tensor]] = {
    "MulBackward1": lambda inputs, numbers: inputs[0] * numbers["other"],
    "AddBackward0": lambda inputs, numbers: torch.add(inputs[0], inputs[1], alpha=numbers["alpha"]),
    "NegBackward0": lambda inputs, numbers: -inputs[0],
}
_Key = tuple[int, int]  # the identity of a node, and the index of its output


def inner_values(
    identity: Identity, nodes: Sequence[Any], known: Mapping[_Key, torch.Tensor]
) -> dict[_Key, torch.Tensor]:
    """The values between these new nodes, as far as they can be known. The oldest node comes first; `known` are the
    values that the program has."""
    values = dict(known)
    if torch._C._len_torch_dispatch_stack():  # a dispatch mode of the program would see the reads
        return values
    for fn in nodes:
        for name, saved in _saved(identity, fn).items():
            if saved.grad_fn is not None:
                values.setdefault((id(saved.grad_fn), saved.output_nr), saved)
            elif name == "result" and len(fn._input_metadata) == 1:
                values.setdefault((id(fn), 0), saved)
    for fn in nodes:
        if (id(fn), 0) in values:
            continue
        value, form = _computed_again(identity, fn, values), fn._input_metadata[0]
        if value is not None and value.dtype == form.dtype and tuple(value.shape) == tuple(form.shape):
            values[id(fn), 0] = value
    return values


def _computed_again(identity: Identity, fn: Any, found: Mapping[_Key, torch.Tensor]) -> torch.Tensor | None:
    """The recomputed result of the op of a node, if its inputs are known and small; otherwise None."""
    numbers = numbers_of(fn)
    of_self, of_edges = _OF_SELF.get(fn.name()), _OF_EDGES.get(fn.name())
    with no_grad():
        if of_self is not None:
            x = _saved(identity, fn).get("self")
            return of_self(detach(x), numbers) if x is not None and numel(x) <= _MOST else None
        if of_edges is not None:
            inputs = [_at_edge(target, nr, found) for target, nr in fn.next_functions]
            known = [detach(x) for x in inputs if x is not None and numel(x) <= _MOST]
            return of_edges(known, numbers) if len(known) == len(inputs) else None
    return None


def _at_edge(target: Any, nr: int, found: Mapping[_Key, torch.Tensor]) -> torch.Tensor | None:
    if target is None:
        return None
    return target.variable if hasattr(target, "variable") else found.get((id(target), nr))


def numbers_of(fn: Any) -> dict[str, Any]:
    """The arguments of a node's op that are plain numbers, as far as the node has them."""
    values = {
        name: getattr(fn, f"_saved_{name}", None) for name in _NUMBERS if not hasattr(fn, f"{RAW}{name}")
    }
    return {name: value for name, value in values.items() if type(value) in _PLAIN}


def _saved(identity: Identity, fn: Any) -> dict[str, torch.Tensor]:
    saved = {}
    for attribute in identity.saved.names(fn):
        try:
            data = data_of(saved_as_is(fn, attribute, True))
        except (RuntimeError, AttributeError):  # freed already, or nothing was saved
            continue
        if isinstance(data, torch.Tensor):
            saved[attribute.removeprefix(RAW)] = data
    return saved


OUR_HOOK = -1  # the key of our hook among the hooks of a tensor; PyTorch numbers them from 0


class Gradients:
    """The gradients of one pass. Callers make sure that no mode of the program sees the reads."""

    def __init__(self, source: Source, in_pass: int) -> None:
        self.identity = source.identity
        self.listener: Any = source.listener
        self.in_pass = in_pass
        self.sent: dict[int, int] = {}  # for each node, the first gradient that was sent to it
        # for each node, the other gradients, where several are added up
        self.sent_again: dict[int, list[int]] = {}
        self.fitted: set[int] = (
            set()
        )  # the nodes that PyTorch has changed the dtype or shape of a gradient for
        self.summed: dict[int, int] = {}  # the gradient of a node with hooks, before they ran

    def number(self, gradient: torch.Tensor) -> tuple[int, Any]:
        """A gradient's number, and its value if it is new. A gradient that was changed in place counts as new."""
        known = self.identity.known.get(id(gradient))
        if known is not None and known.version == version_of(gradient):
            return known.number, None
        return self.identity.fresh(gradient).number, gradient

    def received(self, record: NodeRecord, received: Sequence[Any]) -> tuple[list[int], list[Any]]:
        """The numbers of the gradients that a node received, and the values of the new ones. A gradient that differs
        from the gradient sent there was changed by a hook."""
        numbers, values = [], []
        for gradient in received:
            number, value = (0, None) if gradient is None else self.number(gradient)
            numbers.append(number)
            values.append(value)
        summed = self.summed.pop(record.number, None)
        sent = self.sent_to(record.number) if summed is None else [summed]
        is_changed = len(sent) == 1 and len(received) == 1 and numbers[0] not in (0, sent[0])
        if is_changed and record.number not in self.fitted:
            self._tell_hooked(record, sent[0], received[0], numbers, values)
        return numbers, values

    def _tell_hooked(
        self, record: NodeRecord, before: int, after: torch.Tensor, numbers: list[int], values: list[Any]
    ) -> None:
        tensor = record.first
        name = _hooks_of(self.identity, tensor) or ", ".join(record.hooks)
        node = 0 if record.is_leaf else record.number
        state = State(numbers[0], after if values[0] is not None else None)
        self.listener.hooked(tensor if name else 0, node, self.in_pass, name or "hook", before, state)
        values[0] = None

    def send(self, node: int, gradient: int) -> None:
        """Note that a gradient goes to a node."""
        if node in self.sent:
            self.sent_again.setdefault(node, []).append(gradient)
        else:
            self.sent[node] = gradient

    def sent_to(self, node: int) -> list[int]:
        """The gradients that go to a node."""
        first = self.sent.get(node)
        return [] if first is None else [first, *self.sent_again.get(node, ())]

    def flows(self, targets: Sequence[int], produced: Sequence[Any]) -> tuple[list[int], list[Any]]:
        """The gradients that go to each target, and the values of those that are new."""
        identity, sent = self.identity, self.sent
        all_known, when_dead = identity.known, identity.when_dead
        flows: list[int] = []
        values: list[Any] = []
        for target, gradient in zip(targets, produced):  # noqa: B905
            if gradient is None:
                flows += (target, 0)
                values.append(None)
                continue
            key = id(gradient)
            try:
                version = gradient._version
            except RuntimeError:  # a tensor of inference mode counts none
                version = 0
            known = all_known.get(key)
            if known is not None and known.version == version:
                number = known.number
                values.append(None)
            elif type(gradient) is Parameter:
                number = identity.fresh(gradient).number
                values.append(gradient)
            else:  # as `identity.fresh`, without a call
                known = all_known[key] = Known(gradient, when_dead)
                known.key, known.version, known.views, known.depends = key, version, None, False
                known.base = known.alias = 0
                number = known.number = next_tensor_number()
                values.append(gradient)
            if target in sent:
                self.send(target, number)
            elif target:  # as `send`, without a call
                sent[target] = number
            flows += (target, number)
        return flows, values

    def add_in_place(self, flows: list[int], values: list[Any], added: Sequence[Any]) -> None:
        """Put into what `flows` has returned the gradients that a node has added to others in place: for each edge a
        tensor, or None."""
        for at, gradient in enumerate(added):
            if gradient is not None:
                number = next_tensor_number()
                flows[2 * at + 1], values[at] = number, gradient
                self.send(flows[2 * at], number)

    def tell_retained(self, record: NodeRecord, numbers: Sequence[int]) -> None:
        """Emit the tensors that keep the gradient which has just arrived."""
        for nr, known in (record.retained or {}).items():
            tensor = known()
            if tensor is None or nr >= len(numbers) or not numbers[nr]:
                continue
            grad = tensor.grad
            if grad is None:
                continue
            if id(grad) not in self.identity.known:
                self.identity.fresh(grad).number = numbers[nr]
            self.listener.retained(known.number, record.number, self.in_pass, self.identity.number_of(grad))

    def tell_derivative(self, where: Where, produced: Sequence[Any], received: Sequence[Any]) -> None:
        """Emit the ops of a node that ran under `create_graph`. Its ops are known only by their nodes, and the values
        between them only as far as nodes have saved them."""
        identity, listener = self.identity, self.listener
        made = [g for g in produced if g is not None and g.grad_fn is not None]
        nodes = identity.new_nodes([g.grad_fn for g in made])
        seen = {(id(g.grad_fn), g.output_nr): g for g in made}
        inner = inner_values(identity, [fn for fn, _, _ in nodes], seen)
        for fn, record, nexts in nodes:
            outputs, values, flags = [], [], []
            for nr, form in enumerate(fn._input_metadata):
                gradient = seen.get((id(fn), nr))
                if gradient is None:
                    unseen = Unseen(form.shape, form.dtype, form.device)
                    number, value = next_tensor_number(), inner.get((id(fn), nr), unseen)
                else:
                    number, value = identity.fresh(gradient).number, gradient
                record.put(nr, number)
                outputs.append(number)
                values.append(value)
                flags.append(REQUIRES_GRAD)
            edges = edges_of(identity.edges_of(nexts))
            saved = identity.saved.by(fn, [g for g in received if g is not None])
            inputs = identity.inputs_of(edges, saved, outputs)
            saved.sort(
                key=lambda entry: inputs.index(entry.tensor) if entry.tensor in inputs else len(inputs)
            )
            zeros = [0] * len(outputs)
            kept = numbers_of(fn)
            numbers = ", ".join(f"{number}" for name, number in kept.items() if name != "alpha")
            listener.op(
                where, op_of_node(record.name), numbers, NO_RULE, self.in_pass, True, inputs, outputs, values, flags,
                zeros, zeros,
            )  # fmt: skip
            rule = rule_in_derivative(record.name, len(edges), kept)
            listener.node(where, record.number, record.name, -1, rule, outputs, edges, saved)


def _hooks_of(identity: Identity, tensor: int) -> str:
    """The names of a tensor's hooks; empty if it has none."""
    known = next((known for known in list(identity.known.values()) if known.number == tensor), None)
    owner = None if known is None else known()
    hooks = getattr(owner, "_backward_hooks", None) or {}
    theirs = [hook for key, hook in hooks.items() if key != OUR_HOOK]
    return ", ".join(map(name_of_hook, theirs))
