"""The backward side: hooks on the nodes of a pass, put there before it and removed after it.

Hooks run in the order of execution. For PyTorch's own nodes, both events are emitted once the node has run. For nodes
that run the program's code (a custom Function, a checkpoint), and for all nodes under `create_graph`, each event is
emitted when it happens. No hook keeps a gradient: then PyTorch would have to copy memory that it can otherwise reuse.
"""

import sys
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from typing import Any

import torch
from torch.nn import Parameter

from gradviz.events.counters import next_pass_number, next_tensor_number
from gradviz.events.field_types import Root
from gradviz.events.kinds import REQUIRES_GRAD
from gradviz.events.listener import NO_RULE, Listener, State, Where, edges_of
from gradviz.sources.torch_recorder.calls import op_of_node
from gradviz.sources.torch_recorder.compiling import is_compiled_node
from gradviz.sources.torch_recorder.custom_functions import HAS_GRAD_BUFFERS, RunningFunction, takes_no_hook_behind
from gradviz.sources.torch_recorder.identity import Identity, name_of_hook
from gradviz.sources.torch_recorder.known_things import Known, NodeRecord, version_of
from gradviz.sources.torch_recorder.memory import WARY
from gradviz.sources.torch_recorder.module_scopes import name_the_rest
from gradviz.sources.torch_recorder.node_formulas import rule_in_derivative
from gradviz.sources.torch_recorder.pytorchs_own import detach, no_grad, numel
from gradviz.sources.torch_recorder.saved import RAW, data_of, saved_as_is, storage_of
from gradviz.sources.torch_recorder.shared import Source, safely
from gradviz.sources.torch_recorder.tensor_values import Unseen
from gradviz.system.process import make_room_for_graph

_MOST = 16  # the most elements of a recomputed value under `create_graph`
_NUMBERS = ("exponent", "other")  # arguments of ops that are numbers, by their names on nodes
_PLAIN = (int, float, bool, complex)
_Key = tuple[int, int]  # the identity of a node, and the index of its output


class _Op:
    """The op of a node. It is called with the position and the saved name of an operand, which it gives as far as the
    node has saved it, or its value is known at the edge. Raises LookupError otherwise."""

    def __init__(
        self, fn: Any, saved: Mapping[str, torch.Tensor], found: Mapping[_Key, torch.Tensor], most: int
    ) -> None:
        self.fn, self.saved, self.found, self.most = fn, saved, found, most

    def __call__(self, at: int = 0, name: str = "self") -> torch.Tensor:
        value = self.saved.get(name)
        if value is None:
            target, nr = self.fn.next_functions[at]
            if target is None:
                raise LookupError
            value = target.variable if hasattr(target, "variable") else self.found[id(target), nr]
        if numel(value) > self.most:
            raise LookupError
        return detach(value)

    def number(self, name: str) -> Any:
        """An argument that is no tensor."""
        return getattr(self.fn, f"_saved_{name}")

    def reshaped(self) -> torch.Tensor:
        """Its one operand, in the shape of the result."""
        return self(0, "").reshape(self.fn._input_metadata[0].shape)

    @property
    def along(self) -> dict[str, Any]:
        """The arguments `dim` and `keepdim`. PyTorch shows a negative `dim` as if it were unsigned."""
        dims = [dim - (1 << 64) if dim >> 63 else dim for dim in self.number("dim")]
        return {"dim": dims, "keepdim": self.number("keepdim")}


# The result of an op from its operands: of those that save neither their result nor are saved by what follows.
_AGAIN: dict[str, Callable[[_Op], torch.Tensor]] = {
    "AbsBackward0": lambda op: op().abs(),
    "AddBackward0": lambda op: torch.add(op(0, ""), op(1, ""), alpha=op.number("alpha")),
    "AddmmBackward0": lambda op: torch.addmm(
        op(0, ""), op(1, "mat1"), op(2, "mat2"), beta=op.number("beta"), alpha=op.number("alpha")
    ),
    "CosBackward0": lambda op: op().cos(),
    "DivBackward0": lambda op: op() / op(1, "other"),
    "GatherBackward0": lambda op: op().gather(op.number("dim"), op(1, "index")),
    "Log1PBackward0": lambda op: op().log1p(),
    "LogBackward0": lambda op: op().log(),
    "MeanBackward0": lambda op: op(0, "").mean(),
    "MeanBackward1": lambda op: op(0, "").mean(**op.along),
    "MmBackward0": lambda op: op() @ op(1, "mat2"),
    "MulBackward0": lambda op: op() * op(1, "other"),
    "MulBackward1": lambda op: op(0, "") * op.number("other"),
    "NegBackward0": lambda op: -op(0, ""),
    "PowBackward0": lambda op: op().pow(op.number("exponent")),
    "SelectBackward0": lambda op: op(0, "").select(op.number("dim"), op.number("index")),
    "SinBackward0": lambda op: op().sin(),
    "SubBackward0": lambda op: torch.sub(op(0, ""), op(1, ""), alpha=op.number("alpha")),
    "SumBackward0": lambda op: op(0, "").sum(),
    "SumBackward1": lambda op: op(0, "").sum(**op.along),
    "TBackward0": lambda op: op(0, "").t(),
    **dict.fromkeys(("ViewBackward0", "UnsafeViewBackward0", "UnsqueezeBackward0", "SqueezeBackward1"), _Op.reshaped),
}


def inner_values(
    saved: Mapping[Any, Mapping[str, torch.Tensor]], known: Mapping[_Key, torch.Tensor], most: int = _MOST
) -> dict[_Key, torch.Tensor]:
    """The values between nodes, as far as they can be known. `saved` has what each node saved, the oldest first;
    `known` are the values that the program has. What would be computed from more than `most` elements is left out."""
    values = dict(known)
    if torch._C._len_torch_dispatch_stack():  # a dispatch mode of the program would see the reads
        return values
    for fn, tensors in saved.items():
        for name, tensor in tensors.items():
            if tensor.grad_fn is not None:
                values.setdefault((id(tensor.grad_fn), tensor.output_nr), tensor)
            elif name == "result" and len(fn._input_metadata) == 1:
                values.setdefault((id(fn), 0), tensor)
    for fn, tensors in saved.items():
        again = _AGAIN.get(fn.name())
        if again is None or (id(fn), 0) in values:
            continue
        try:
            with no_grad():
                value = again(_Op(fn, tensors, values, most))
        except (LookupError, RuntimeError, AttributeError, TypeError):
            continue  # an operand is not known, or of another form
        form = fn._input_metadata[0]
        if value.dtype == form.dtype and tuple(value.shape) == tuple(form.shape):
            values[id(fn), 0] = value
    return values


def numbers_of(fn: Any) -> dict[str, Any]:
    """The arguments of a node's op that are plain numbers, as far as the node has them."""
    values = {name: getattr(fn, f"_saved_{name}", None) for name in _NUMBERS if not hasattr(fn, f"{RAW}{name}")}
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


class Gradients:
    """The gradients of one pass. Callers make sure that no mode of the program sees the reads."""

    def __init__(self, source: Source, in_pass: int) -> None:
        self.identity = source.identity
        self.listener: Any = source.listener
        self.in_pass = in_pass
        self.sent: dict[int, int] = {}  # for each node, the first gradient that was sent to it
        # for each node, the other gradients, where several are added up
        self.sent_again: dict[int, list[int]] = {}
        # the nodes that PyTorch has changed the dtype or shape of a gradient for
        self.fitted: set[int] = set()
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

    def tell_retained(self, record: NodeRecord, numbers: Sequence[int], received: Sequence[Any]) -> None:
        """Emit the tensors that keep the gradient which has just arrived, or its sum with that of an earlier pass."""
        for nr, known in (record.retained or {}).items():
            tensor = known()
            grad = None if tensor is None else tensor.grad
            if grad is None or nr >= len(numbers) or not numbers[nr]:
                continue
            is_compared = type(grad) is torch.Tensor and grad.is_cpu and grad.layout is torch.strided
            if id(grad) not in self.identity.known and (not is_compared or torch.equal(grad, received[nr])):
                self.identity.fresh(grad).number = numbers[nr]
            number = self.identity.number_of(grad, None, "retain_grad")
            self.listener.retained(known.number, record.number, self.in_pass, number)

    def tell_derivative(self, where: Where, produced: Sequence[Any], received: Sequence[Any]) -> None:
        """Emit the ops of a node that ran under `create_graph`. Its ops are known only by their nodes, and the values
        between them only as far as nodes have saved them."""
        identity, listener = self.identity, self.listener
        made = [g for g in produced if g is not None and g.grad_fn is not None]
        nodes = identity.new_nodes([g.grad_fn for g in made])
        seen = {(id(g.grad_fn), g.output_nr): g for g in made}
        inner = inner_values({fn: _saved(identity, fn) for fn, _, _ in nodes}, seen)
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
            saved.sort(key=lambda entry: inputs.index(entry.tensor) if entry.tensor in inputs else len(inputs))
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
    theirs = [hook for key, hook in hooks.items() if key >= 0]
    return ", ".join(map(name_of_hook, theirs))


_Plain = torch._C.DisableTorchFunction  # inside, no mode of the program sees our reads


def _in_hook(tell: Callable[..., None]) -> Callable[..., None]:
    """Wrap a method of a pass that runs in a hook: if it fails, the source gives up, and the pass goes on."""

    @wraps(tell)
    def run(self: "Pass", *arguments: Any) -> None:
        if self.source.listener is None:
            return
        try:
            if not _is_outer(self.source, self.number):
                tell(self, *arguments)
        except Exception as error:
            self.source.gave_up(error)

    return run


class _Hook:
    """A hook on a node whose NodeRecord is already the hook of another pass."""

    __slots__ = ("after", "key", "onward", "record")

    def __init__(self, key: int, after: Callable[..., None], record: NodeRecord, onward: Any) -> None:
        self.key, self.after, self.record, self.onward = key, after, record, onward

    def __call__(self, produced: Sequence[Any], received: Sequence[Any]) -> None:
        self.after(self.record, self.onward, produced, received)


_OURS = NodeRecord, _Hook


def registering(register: Callable[..., Any]) -> Callable[..., Any]:
    """PyTorch's function that adds a hook to those of a node (a dictionary or None), with a short cut for our hooks:
    they need no handle, and the dictionary is returned in its place."""

    def run(backward_hooks: Any, hook: Any) -> tuple[Any, Any]:
        if type(hook) not in _OURS:
            registered: tuple[Any, Any] = register(backward_hooks, hook)
            return registered
        hooks = OrderedDict() if backward_hooks is None else backward_hooks
        hooks[hook.key] = hook
        return hooks, hooks

    return run


def _is_outer(source: Source, number: int) -> bool:
    """Whether another pass runs inside this one on the same thread: then the inner pass runs the node, which has the
    hooks of both."""
    passes = source.thread.passes
    return bool(passes) and passes[-1].number != number


class Pass:
    """One backward pass. `how` is `backward` (leaves accumulate) or `grad`."""

    def __init__(
        self, source: Source, how: str, roots: Sequence[Any], gradients: Sequence[torch.Tensor | None],
        wanted: Sequence[Any], retain_graph: bool, create_graph: bool, number: int = 0,
    ) -> None:  # fmt: skip
        self.source, self.identity = source, source.identity
        self.listener: Any = source.listener
        self.how, self.roots, self.gradients, self.wanted = how, roots, gradients, wanted
        self.retain_graph, self.create_graph = retain_graph, create_graph
        self.number = number or next_pass_number()
        self.hook_key = -self.number  # the key of its hooks among others, which PyTorch numbers from 0
        self.where: Where = None
        self.handles: list[Any] = []
        # The nodes of the roots: nothing else references the node of a leaf, which has a hook.
        self.kept_alive: list[Any] = []
        self.targets: dict[int, tuple[int, ...]] = {}  # for each node, its targets in the order of its edges
        self.records: dict[int, NodeRecord] = {}
        self.flowing = Gradients(source, self.number)
        self.preceded: list[Any] = []  # the hooks of tensors that ours were put before
        self.arrived: dict[int, int] = {}  # the gradients of nodes whose events are emitted separately
        self.ran: set[int] = set()
        self.has_failed = False
        # a custom Function may take gradients that others have sent as `input_grad_buffers`
        self.is_wary = False
        self.leaves: set[int] = set()  # the tensors that have accumulated a gradient
        self.kept: set[int] = set()  # the gradients that are now the `.grad` of a leaf
        # The nodes that have begun and not ended, among those whose events are emitted separately.
        self.running: dict[int, None] = {}

    # --- before and after

    @safely
    def begin(self) -> None:
        """Watch the nodes that the roots lead to, and emit the beginning of the pass."""
        with _Plain():
            edges = [_edge_of(root) for root in self.roots]
            self.kept_alive = [fn for fn, _ in edges]
            follows = self.source.follows_passes
            if follows:
                for thing in (*self.roots, *self.wanted):
                    if isinstance(thing, torch.Tensor):
                        self.identity.number_of(thing, sys._getframe())
            watch, record_of = self._watch, self.identity.record_of
            if not follows:
                watch, record_of = self._watch_leaves, self.identity.quiet_record
            watch(self.kept_alive)
            if follows and self.identity.hooked:
                self._precede_hooks(self.kept_alive)
            roots = []
            for (fn, nr), root, gradient in zip(edges, self.roots, self.gradients, strict=True):
                record = record_of(fn)
                number = 0
                if gradient is not None:
                    number = self.identity.number_of(gradient, sys._getframe(), "gradient")
                    self.flowing.send(record.number, number)
                known = self.identity.known.get(id(root))
                tensor = record.tensor(nr) if known is None else known.number
                roots.append(Root(record.number, nr, tensor, number))
            inputs = [number for one in self.wanted if (number := self._tensor_of(one))]
            if self.identity.nameless:
                name_the_rest(self.source, sys._getframe())
        self.where = self.source.place(sys._getframe())
        self.listener.pass_began(
            self.where, self.number, self.how, time.time(), self.retain_graph, self.create_graph, roots, inputs
        )
        if follows and self.source.is_profiled:
            self._tell_storages()

    def _tell_storages(self) -> None:
        """Emit the storages that the nodes of this pass have saved, each with a number and its leaf."""
        numbers: dict[int, int] = {}
        with _Plain():
            known = [(one(), one.number) for one in list(self.identity.known.values())]
            leaves = {storage_of(one): number for one, number in reversed(known) if one is not None and one.is_leaf}
            for fn, place, size in dict.fromkeys(self.identity.saved.storages(self.kept_alive)):
                node, number = self.identity.record_of(fn).number, numbers.setdefault(place, len(numbers) + 1)
                self.listener.storage_saved(node, number, size, leaves.get((place, size), 0), self.number)

    @safely
    def end(self) -> None:
        """Remove all hooks from the graph, and emit the end of the pass."""
        for handle in self.handles:
            if type(handle) is OrderedDict:
                handle.pop(self.hook_key, None)
            else:
                handle.remove()
        self.handles.clear()
        for record in self.records.values():
            if record.after is not None and record.key == self.hook_key:
                # otherwise the node, which lives on, would keep the recorder alive
                record.after = record.onward = None
        self.kept_alive.clear()
        WARY.passes -= self.is_wary
        for hooks in self.preceded:
            hooks.pop(self.hook_key, None)
        if self.source.listener is not None:
            self._tell_end()
        # so that a reference to this pass keeps no graph alive
        self.roots = self.gradients = self.wanted = ()
        self.records.clear()

    @safely
    def _tell_end(self) -> None:
        nodes = [record for record in self.records.values() if not record.is_leaf]
        # in a pass that is left out no node is watched: it would be asked again about the same graphs
        if nodes:
            graphs, are_whole = self.source.living.ended(self.number, nodes, len(self.records))
            if graphs and not self.has_failed:
                self.listener.graphs_alive(self.number, graphs, are_whole)
        self.listener.pass_ended(self.number)

    @safely
    def returned(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """Note the gradients that `grad` returns: the leaves among its inputs have received them."""
        if self.how == "backward" or not self.source.follows_passes:
            return
        if self.create_graph:
            self.source.differentiated(self, gradients)
        with _Plain():
            leaves = {record.first: record for record in self.records.values() if record.is_leaf}
            for root, gradient in zip(self.wanted, gradients, strict=True):
                if gradient is None:
                    continue
                record = leaves.get(self._tensor_of(root))
                if record is not None:
                    number, value = self.flowing.number(gradient)
                    self.listener.received(record.number, record.name, self.number, (number,), (value,))
                else:
                    self.identity.number_of(gradient, sys._getframe(), "gradient")

    def _tensor_of(self, root: Any) -> int:
        """The number of a tensor, or of the tensor that an edge leads to; 0 if there is none."""
        if isinstance(root, torch.Tensor):
            known = self.identity.known.get(id(root))
            return 0 if known is None else known.number
        record = root.node.metadata.get(self.identity.key)
        return 0 if record is None else record.tensor(root.output_nr)

    @safely
    def failed(self, error: BaseException, was_watched: bool = True) -> None:
        """Emit the error that left the pass, with the node that was running. If no node was watched, the first root has
        run, and only a custom Function that the message names is known."""
        if self.source.listener is None:
            return
        self.has_failed = True
        named = [one for one, record in self.records.items() if f"Function {record.name} " in str(error)]
        begun = guilty = next(reversed(self.running), 0) or self._next_to_run()
        if not was_watched:
            guilty = named[0] if len(named) == 1 else 0
            begun = guilty or self.kept_alive[0].metadata[self.identity.key].number
        if begun and begun not in self.running:
            sent = self.flowing.sent_to(begun)
            numbers = sent if len(sent) == 1 else [0]
            self.listener.received(begun, self.records[begun].name, self.number, numbers, [None])
        self.listener.error(error.__traceback__, type(error).__name__, str(error), guilty, self.number)

    def _next_to_run(self) -> int:
        """The node that the engine runs next: the newest node that has received all its gradients."""
        waiting: dict[int, int] = {}
        for number, targets in self.targets.items():
            if number not in self.ran:
                for target in targets:
                    waiting[target] = waiting.get(target, 0) + 1
        ready = [n for n in self.records if n not in self.ran and n in self.flowing.sent and not waiting.get(n)]
        return max(ready, key=lambda n: (self.records[n].is_leaf, self.records[n].sequence), default=0)

    # --- watching

    def _watch(self, fns: Sequence[Any]) -> None:
        """Put a hook on every reached node that the listener wants."""
        identity, key = self.identity, self.identity.key
        for fn in fns:
            identity.record_of(fn)
        seen, records, handles, hook_key = self.targets, self.records, self.handles, self.hook_key
        wants: Callable[[int], bool] | None = self.listener.wants
        if getattr(type(self.listener), "wants", None) is Listener.wants:
            wants = None  # the listener wants all nodes
        after = self._hook()
        stack = [(fn, fn.metadata[key]) for fn in fns]
        while stack:
            fn, record = stack.pop()
            node = record.number
            if node in seen:
                continue
            records[node] = record
            if record.is_leaf:
                seen[node] = ()
                onward: Any = self._leaf_of(fn)
                if self._tells_before_hooks(fn, record, onward):
                    continue
            else:
                targets = []
                for target, _ in fn.next_functions:
                    if target is None:
                        targets.append(0)
                        continue
                    known = target.metadata.get(key) or identity.record_of(target)
                    number = known.number
                    targets.append(number)
                    if number not in seen:
                        stack.append((target, known))
                seen[node] = onward = tuple(targets)
                if wants is not None and not wants(node):
                    continue
                if record.of_function and takes_no_hook_behind(fn):
                    handles.append(fn.register_prehook(partial(self._before_function, record, onward)))
                    if HAS_GRAD_BUFFERS and not self.is_wary:
                        self.is_wary = True
                        WARY.passes += 1
                    continue
                if record.of_function or record.retained or self.create_graph:
                    handles.append(fn.register_prehook(partial(self._before, record)))
                    handles.append(fn.register_hook(partial(self._after, record, onward)))
                    continue
            if record.after is None:  # as `_watcher`, without a call
                record.key, record.after, record.onward = hook_key, after, onward
                handles.append(fn.register_hook(record))
            else:
                handles.append(fn.register_hook(self._watcher(record, after, onward)))
        make_room_for_graph(len(seen))

    def _watch_leaves(self, fns: Sequence[Any]) -> None:
        """Put a hook on the leaves that are reached, and on no other node."""
        seen: dict[Any, None] = {}
        after = self._hook()
        stack = list(fns)
        while stack:
            fn = stack.pop()
            if fn in seen:
                continue
            seen[fn] = None
            if hasattr(fn, "variable"):
                record = self.identity.quiet_record(fn)
                self.records[record.number] = record
                self.targets[record.number] = ()
                leaf = self._leaf_of(fn)
                if not self._tells_before_hooks(fn, record, leaf):
                    self.handles.append(fn.register_hook(self._watcher(record, after, leaf)))
            stack += [target for target, _ in fn.next_functions if target is not None]
        make_room_for_graph(len(seen))

    def _leaf_of(self, fn: Any) -> Known:
        """The leaf of its node."""
        variable = fn.variable
        leaf = self.identity.known.get(id(variable))
        if leaf is None:
            self.identity.number_of(variable)
            leaf = self.identity.known[id(variable)]
        return leaf

    def _watcher(self, record: NodeRecord, after: Callable[..., None], onward: Any) -> NodeRecord | _Hook:
        """The hook on a node that calls `after` with the node's record and `onward`."""
        if record.after is not None:
            return _Hook(self.hook_key, after, record, onward)
        record.key, record.after, record.onward = self.hook_key, after, onward
        return record

    def _precede_hooks(self, roots: Sequence[Any]) -> None:
        """Put a hook before those of each tensor where several gradients are added up, to see the sum before they
        change it."""
        arriving = Counter(number for targets in self.targets.values() for number in targets)
        arriving.update(fn.metadata[self.identity.key].number for fn in roots)
        for tensor in self.identity.living_hooked():
            hooks: Any = tensor._backward_hooks if tensor.requires_grad else None
            if not hooks:
                continue
            fn: Any = torch.autograd.graph._get_grad_fn_or_grad_acc(tensor)
            record = fn.metadata.get(self.identity.key)
            if record is None or record.number not in self.records or arriving[record.number] < 2:
                continue
            self._precede(hooks, partial(self._before_hooks, record))

    def _precede(self, hooks: Any, hook: Callable[..., None]) -> None:
        """Put a hook before those of a tensor: PyTorch runs them in the order in which they were added."""
        others = dict(hooks)
        hooks.clear()
        hooks[self.hook_key] = hook
        hooks.update(others)
        self.preceded.append(hooks)

    def _tells_before_hooks(self, fn: Any, record: NodeRecord, leaf: Known) -> bool:
        """Whether a leaf has hooks of the program that run when it has accumulated its gradient, and may take it away,
        as an optimizer does that steps in the pass. Then hooks before theirs are put on it, which emit its events."""
        hooks = fn.variable._post_accumulate_grad_hooks
        if not hooks or self.create_graph:
            return False
        after = fn.register_hook(partial(self._after_hooks_of_leaf, record))
        self.handles += (fn.register_prehook(partial(self._before, record)), after)
        self._precede(hooks, partial(self._before_hooks_of_leaf, record, leaf))
        return True

    @_in_hook
    def _after_hooks_of_leaf(self, record: NodeRecord, *_: Any) -> None:
        self.running.pop(record.number, None)
        self.ran.add(record.number)

    @_in_hook
    def _before_hooks_of_leaf(self, record: NodeRecord, leaf: Known, tensor: torch.Tensor) -> None:
        with _Plain():
            gradient, grad = self.arrived[record.number], tensor.grad
            if gradient and grad is not None:
                self._tell_accumulated(self.listener.accumulated, record, leaf, gradient, grad)

    @_in_hook
    def _before_hooks(self, record: NodeRecord, gradient: Any) -> None:
        """Note the gradient of a tensor with hooks, before they run."""
        with _Plain():
            number, value = self.flowing.number(gradient)
            self.flowing.summed[record.number] = number
            if value is not None:
                self.listener.tensor(None, "gradient", State(number, value))

    def _hook(self) -> Callable[..., None]:
        """The function that runs after each of PyTorch's own nodes, and after each leaf has accumulated a gradient, and
        emits its events. It receives the node's record, the targets of its gradients (of a leaf's node: the leaf), and
        the produced and received gradients. It is not a method, and what it needs most is written out in it: a call
        less for a node saves a tenth of a pass."""
        source, flowing, ran, number = self.source, self.flowing, self.ran, self.number
        thread, known_of, flows_of = source.thread, self.identity.known.get, self.flowing.flows
        sent, sent_again, summed, leaf_ran = flowing.sent, flowing.sent_again, flowing.summed, self._leaf_ran

        def after(record: NodeRecord, onward: Any, produced: Sequence[Any], received: Sequence[Any]) -> None:
            listener = source.listener
            if listener is None:
                return
            try:
                passes = thread.passes
                if passes and passes[-1].number != number:  # as `_is_outer`
                    return
                with _Plain():
                    node = record.number
                    ran.add(node)
                    # the number of the one that it received, if that is the very one that was sent
                    gradient = 0
                    if len(received) == 1 and not summed and node not in sent_again:
                        known = known_of(id(received[0]))
                        if known is not None and sent.get(node) == known.number:
                            try:
                                if known.version == received[0]._version:
                                    gradient = known.number
                            except RuntimeError:  # a tensor of inference mode counts no versions
                                pass
                    if record.is_leaf:
                        leaf_ran(listener, record, onward, gradient, received)
                        return
                    name = record.name
                    if gradient:
                        flows, sent_values = flows_of(onward, produced)
                        listener.ran(node, name, number, gradient, None, flows, sent_values)
                        return
                    numbers, values = flowing.received(record, received)
                    flows, sent_values = flows_of(onward, produced)
                    if len(numbers) == 1:
                        listener.ran(node, name, number, numbers[0], values[0], flows, sent_values)
                    else:
                        listener.received(node, name, number, numbers, values)
                        listener.produced(node, number, flows, sent_values)
            except Exception as error:
                source.gave_up(error)

        return after

    @_in_hook
    def _before(self, record: NodeRecord, received: Sequence[Any]) -> None:
        with _Plain():
            numbers, values = self.flowing.received(record, received)
            self.listener.received(record.number, record.name, self.number, numbers, values)
            self.flowing.tell_retained(record, numbers, received)
        self.arrived[record.number] = numbers[0]
        self.running[record.number] = None
        if is_compiled_node(record.name):  # PyTorch may have to compile it first
            self.source.pause()

    @_in_hook
    def _before_function(self, record: NodeRecord, targets: Sequence[int], received: Sequence[Any]) -> None:
        self._before(record, received)
        self.source.thread.function = RunningFunction(self, record, targets)

    @_in_hook
    def _after(
        self, record: NodeRecord, targets: Sequence[int], produced: Sequence[Any], received: Sequence[Any],
        added: Sequence[Any] = (),
    ) -> None:  # fmt: skip
        """Emit that a node has run. `added` are the gradients that it has added to others in place: for each edge a
        tensor, or None."""
        if is_compiled_node(record.name):
            self.source.go_on()
        self.running.pop(record.number, None)
        self.ran.add(record.number)
        with _Plain():
            if self.create_graph:
                self.flowing.tell_derivative(self.where, produced, received)
            flows, values = self.flowing.flows(targets, produced)
            if added:
                self.flowing.add_in_place(flows, values, added)
        if record.call is not None:
            if added:
                produced = [sent if sent is not None else more for sent, more in zip(produced, added, strict=True)]
            self.source.ran_backward(record, self.number, received, produced)
        with _Plain():
            self.listener.produced(record.number, self.number, flows, values)

    def _leaf_ran(self, listener: Any, record: NodeRecord, leaf: Known, gradient: int, received: Sequence[Any]) -> None:
        """Emit that a leaf has accumulated a gradient: the one with this number, or, if that is 0, what it received. If
        a hook has already consumed it, the `.grad` is None."""
        tensor, tell = leaf(), listener.leaf_ran
        grad = None if tensor is None else tensor.grad
        is_computed = self.create_graph and grad is not None and grad.grad_fn is not None
        if not gradient or grad is None or self.create_graph:
            numbers, values = self.flowing.received(record, received)
            gradient = numbers[0]
            if not gradient or values[0] is not None or grad is None or is_computed:
                listener.received(record.number, record.name, self.number, numbers, values)
                tell = listener.accumulated
        if is_computed and gradient:  # a copy, or the sum with the `.grad` before, with a node of its own
            self.flowing.tell_derivative(self.where, [grad], received)
        if grad is not None and gradient:
            self._tell_accumulated(tell, record, leaf, gradient, grad)

    def _new_grad(self, grad: torch.Tensor, gradient: int) -> Known:
        """A new entry for a leaf's new `.grad`: it has the number of the received gradient, unless that is the
        `.grad` of another leaf."""
        known = self.identity.fresh(grad)
        if gradient not in self.kept:
            known.number = gradient
        return known

    def _tell_accumulated(
        self, tell: Callable[..., None], record: NodeRecord, leaf: Known, gradient: int, grad: torch.Tensor
    ) -> None:
        known = self.identity.known.get(id(grad)) or self._new_grad(grad, gradient)
        known.version = version_of(grad)
        self.kept.add(known.number)
        self.leaves.add(leaf.number)
        tell(leaf.number, record.number, self.number, gradient, self.identity.state(grad, known))


def pass_of(source: Source, roots: Any, args: Any, kwargs: Any, number: int = 0) -> Pass:
    """The pass that a call of PyTorch's engine with these arguments begins; it takes a new number for 0."""
    gradients, retain_graph, create_graph, inputs = args[:4]
    return Pass(
        source, how_of(args, kwargs), roots_of(roots), gradients, tuple(inputs or ()), bool(retain_graph),
        bool(create_graph), number,
    )  # fmt: skip


def how_of(args: Any, kwargs: Any) -> str:
    """How a call of PyTorch's engine gives its gradients: `backward` or `grad`."""
    return "backward" if kwargs.get("accumulate_grad", args[5] if len(args) > 5 else True) else "grad"


def roots_of(roots: Any) -> list[Any]:
    """The roots that a call of PyTorch's engine is given."""
    return [roots] if isinstance(roots, torch.Tensor) else list(roots)


def _edge_of(root: Any) -> tuple[Any, int]:
    """The node that a root's gradient goes to, and the output of the node that the root is."""
    if isinstance(root, torch.Tensor):
        return torch.autograd.graph._get_grad_fn_or_grad_acc(root), root.output_nr
    return root.node, root.output_nr
