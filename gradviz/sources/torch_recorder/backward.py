"""The backward side: hooks on the nodes of a pass, put there before it and removed after it.

Hooks run in the order of execution. For PyTorch's own nodes, both events are emitted once the node has run. For nodes
that run the program's code (a custom Function, a checkpoint), and for all nodes under `create_graph`, each event is
emitted when it happens. No hook keeps a gradient: then PyTorch would have to copy memory that it can otherwise reuse.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

import torch

from gradviz.events.counters import next_pass_number
from gradviz.events.field_types import Root
from gradviz.events.listener import Listener, State, Where
from gradviz.sources.torch_recorder.compiling import is_compiled_node
from gradviz.sources.torch_recorder.function_nodes import (
    HAS_GRAD_BUFFERS,
    RunningFunction,
    takes_no_hook_behind,
)
from gradviz.sources.torch_recorder.gradients import OUR_HOOK, Gradients
from gradviz.sources.torch_recorder.known_things import Known, NodeRecord, version_of
from gradviz.sources.torch_recorder.memory import WARY
from gradviz.sources.torch_recorder.module_scopes import name_the_rest
from gradviz.sources.torch_recorder.shared import Source, safely
from gradviz.system.process import make_room_for_graph

_Plain = torch._C.DisableTorchFunction  # inside, no mode of the program sees our reads


def _in_hook(tell: Callable[..., None]) -> Callable[..., None]:
    """Wrap a method of a pass that runs in a hook: if it fails, the source gives up, and the pass goes on."""

    @wraps(tell)
    def run(self: Pass, *arguments: Any) -> None:
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
        self,
        source: Source,
        how: str,
        roots: Sequence[Any],
        gradients: Sequence[torch.Tensor | None],
        wanted: Sequence[Any],
        retain_graph: bool,
        create_graph: bool,
    ) -> None:
        self.source, self.identity = source, source.identity
        self.listener: Any = source.listener
        self.how, self.roots, self.gradients, self.wanted = how, roots, gradients, wanted
        self.retain_graph, self.create_graph = retain_graph, create_graph
        self.number = next_pass_number()
        self.hook_key = OUR_HOOK - self.number  # the key of its hooks among those of a node
        self.where: Where = None
        self.handles: list[Any] = []
        # The nodes of the roots: nothing else references the node of a leaf, which has a hook.
        self.kept_alive: list[Any] = []
        self.targets: dict[int, tuple[int, ...]] = {}  # for each node, its targets in the order of its edges
        self.records: dict[int, NodeRecord] = {}
        self.flowing = Gradients(source, self.number)
        self.preceded: list[Any] = []  # the hooks of tensors that ours were put before
        self.ran: set[int] = set()
        self.has_failed = False
        self.is_wary = (
            False  # a custom Function may take gradients that others have sent as `input_grad_buffers`
        )
        self.leaves: set[int] = set()  # the tensors that have accumulated a gradient
        self.kept: set[int] = set()  # the gradients that are now the `.grad` of a leaf
        # The nodes that have begun and not ended, among those whose events are emitted separately.
        self.running: list[int] = []

    # --- before and after

    @safely
    def begin(self) -> None:
        """Watch the nodes that the roots lead to, and emit the beginning of the pass."""
        with _Plain():
            edges = [_edge_of(root) for root in self.roots]
            self.kept_alive = [fn for fn, _ in edges]
            follows = self.source.follows_passes
            if follows:
                self._number_tensors((*self.roots, *self.wanted), sys._getframe())
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
            self.where,
            self.number,
            self.how,
            time.time(),
            self.retain_graph,
            self.create_graph,
            roots,
            inputs,
        )

    def _number_tensors(self, things: Sequence[Any], frame: Any) -> None:
        """Number the tensors among some roots; the others are edges."""
        for thing in things:
            if isinstance(thing, torch.Tensor):
                self.identity.number_of(thing, frame)

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
            hooks.pop(OUR_HOOK, None)
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
    def failed(self, error: BaseException) -> None:
        """Emit the error that left the pass, with the node that was running."""
        if self.source.listener is None:
            return
        self.has_failed = True
        guilty = self.running[-1] if self.running else self._next_to_run()
        if guilty and guilty not in self.running:
            record = self.records[guilty]
            sent = self.flowing.sent_to(guilty)
            numbers = sent if len(sent) == 1 else [0]
            self.listener.received(guilty, record.name, self.number, numbers, [None])
        self.listener.error(error.__traceback__, type(error).__name__, str(error), guilty, self.number)

    def _next_to_run(self) -> int:
        """The node that the engine runs next: the newest node that has received all its gradients."""
        waiting: dict[int, int] = {}
        for number, targets in self.targets.items():
            if number not in self.ran:
                for target in targets:
                    waiting[target] = waiting.get(target, 0) + 1
        ready = [
            n for n in self.records if n not in self.ran and n in self.flowing.sent and not waiting.get(n)
        ]
        return max(ready, key=lambda n: (self.records[n].is_leaf, self.records[n].sequence), default=0)

    # --- watching

    def _watch(self, fns: Sequence[Any]) -> None:
        """Put a hook on every reached node that the listener wants."""
        identity, key = self.identity, self.identity.key
        for fn in fns:
            identity.record_of(fn)
        seen, records, handles, hook_key = self.targets, self.records, self.handles, self.hook_key
        wants, after = _wish_of(self.listener), self._hook()
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
                self.handles.append(fn.register_hook(self._watcher(record, after, self._leaf_of(fn))))
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
            others = dict(hooks)
            hooks.clear()  # PyTorch runs hooks in the order in which they were added
            hooks[OUR_HOOK] = partial(self._before_hooks, record)
            hooks.update(others)
            self.preceded.append(hooks)

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
            listener: Any = source.listener
            if listener is None:
                return
            try:
                passes = thread.passes
                if passes and passes[-1].number != number:  # as `_is_outer`
                    return
                with _Plain():
                    node = record.number
                    ran.add(node)
                    gradient = (
                        0  # the number of the one that it received, if that is the very one that was sent
                    )
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
            self.flowing.tell_retained(record, numbers)
        self.running.append(record.number)
        if is_compiled_node(record.name):  # PyTorch may have to compile it first
            self.source.pause()

    @_in_hook
    def _before_function(self, record: NodeRecord, targets: Sequence[int], received: Sequence[Any]) -> None:
        self._before(record, received)
        self.source.thread.function = RunningFunction(self, record, targets)

    @_in_hook
    def _after(
        self,
        record: NodeRecord,
        targets: Sequence[int],
        produced: Sequence[Any],
        received: Sequence[Any],
        added: Sequence[Any] = (),
    ) -> None:
        """Emit that a node has run. `added` are the gradients that it has added to others in place: for each edge a
        tensor, or None."""
        if is_compiled_node(record.name):
            self.source.go_on()
        if record.number in self.running:
            self.running.remove(record.number)
        self.ran.add(record.number)
        with _Plain():
            if self.create_graph:
                self.flowing.tell_derivative(self.where, produced, received)
            flows, values = self.flowing.flows(targets, produced)
            if added:
                self.flowing.add_in_place(flows, values, added)
        if record.call is not None:
            if added:
                produced = [
                    sent if sent is not None else more for sent, more in zip(produced, added, strict=True)
                ]
            self.source.ran_backward(record, self.number, received, produced)
        with _Plain():
            self.listener.produced(record.number, self.number, flows, values)

    def _leaf_ran(
        self, listener: Any, record: NodeRecord, leaf: Known, gradient: int, received: Sequence[Any]
    ) -> None:
        """Emit that a leaf has accumulated a gradient: the one with this number, or, if that is 0, what it received."""
        tensor = leaf()
        grad = None if tensor is None else tensor.grad
        if not gradient or grad is None or self.create_graph:
            numbers, values = self.flowing.received(record, received)
            self._accumulated(record, leaf, numbers, values, received, grad)
            return
        known = self.identity.known.get(id(grad))
        if known is None:
            known = self._new_grad(grad, gradient)
        else:
            known.version = version_of(grad)
        self.kept.add(known.number)
        self.leaves.add(leaf.number)
        state = self.identity.state(grad, known)
        listener.leaf_ran(leaf.number, record.number, self.number, gradient, state)

    def _new_grad(self, grad: torch.Tensor, gradient: int) -> Known:
        """A new entry for a leaf's new `.grad`: it has the number of the received gradient, unless that is the
        `.grad` of another leaf."""
        known = self.identity.fresh(grad)
        if gradient not in self.kept:
            known.number = gradient
        return known

    def _accumulated(
        self,
        record: NodeRecord,
        leaf: Known,
        numbers: Sequence[int],
        values: Sequence[Any],
        received: Sequence[Any],
        grad: torch.Tensor | None,
    ) -> None:
        """Emit that a leaf has accumulated its gradient; `grad` is None if a hook has already consumed its
        `.grad`."""
        is_computed = self.create_graph and grad is not None and grad.grad_fn is not None
        is_told = numbers[0] and values[0] is None and grad is not None and not is_computed
        if not is_told:
            self.listener.received(record.number, record.name, self.number, numbers, values)
        if grad is None or not numbers[0]:
            return
        if is_computed:  # a copy, or the sum with the `.grad` before, with a node of its own
            self.flowing.tell_derivative(self.where, [grad], received)
        known = self.identity.known.get(id(grad)) or self._new_grad(grad, numbers[0])
        self.kept.add(known.number)
        known.version = version_of(grad)
        state = self.identity.state(grad, known)
        self.leaves.add(leaf.number)
        tell = self.listener.leaf_ran if is_told else self.listener.accumulated
        tell(leaf.number, record.number, self.number, numbers[0], state)


def _wish_of(listener: Any) -> Callable[[int], bool] | None:
    """A listener's function that decides whether it wants a node; None if the listener wants all nodes."""
    return None if getattr(type(listener), "wants", None) is Listener.wants else listener.wants


def _edge_of(root: Any) -> tuple[Any, int]:
    """The node that a root's gradient goes to, and the output of the node that the root is."""
    if isinstance(root, torch.Tensor):
        return torch.autograd.graph._get_grad_fn_or_grad_acc(root), root.output_nr
    return root.node, root.output_nr
