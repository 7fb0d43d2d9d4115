"""Emits the events of a PyTorch graph that exists already, as if it ran now: for drawing a tensor that was not
recorded."""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from gradviz.events.counters import next_tensor_number
from gradviz.events.listener import Listener, State
from gradviz.sources.called import in_calls
from gradviz.sources.pass_at_hand import named_if_freed
from gradviz.sources.torch_recorder import tensor_values
from gradviz.sources.torch_recorder.backward import Pass
from gradviz.sources.torch_recorder.forward import Forward
from gradviz.sources.torch_recorder.known_things import NodeRecord, Numbered, grad_fn_of
from gradviz.sources.torch_recorder.live_passes import Ops
from gradviz.sources.torch_recorder.recording import TorchRecorder
from gradviz.sources.torch_recorder.shared import Source


def tell_pass(roots: Sequence[torch.Tensor], nodes: Sequence[Any], source: Source) -> None:
    """Run the backward pass of `roots` through `nodes`, and emit it. Leaves do not accumulate, tensors that retain
    their gradients keep the old ones, and the graph is not freed."""
    with torch._C.DisableTorchFunction():
        ends = _ends(nodes)
        retaining = _retaining(nodes)
        grads = [(tensor, tensor.grad) for tensor in retaining]
        starts = [torch.ones_like(root) for root in roots]
        # of tensors with hooks of the program, the sum of gradients is emitted before hooks change it
        for known in list(source.identity.known.values()):
            hooked: Any = known()
            if hooked is not None and hooked.requires_grad and hooked._backward_hooks:
                source.identity.hooked[id(hooked)] = known
    current = Pass(source, "grad", roots, starts, ends, True, False)
    try:
        current.begin()
        received = torch.autograd.grad(roots, ends, starts, retain_graph=True, allow_unused=True)
        current.returned(received)
    finally:
        current.end()
        with torch._C.DisableTorchFunction():
            for tensor, grad in grads:
                tensor.grad = grad


def _ends(nodes: Sequence[Any]) -> list[GradientEdge]:
    """The edges at which gradients stop: at leaves, and at nodes that lead nowhere. All nodes have to run to reach
    them."""
    ends: dict[Any, None] = {}
    for fn in nodes:
        onward = [target for target, _ in fn.next_functions if target is not None]
        ends.update(dict.fromkeys([target for target in onward if hasattr(target, "variable")]))
        if not onward:
            ends[fn] = None
    return [GradientEdge(fn, nr) for fn in ends for nr in range(len(fn._input_metadata))]


def _retaining(nodes: Sequence[Any]) -> list[torch.Tensor]:
    """The tensors of these nodes that retain their gradients. Nodes do not list them, so all living tensors are
    searched."""
    made_by = set(nodes)
    tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
    return [one for one in tensors if one.requires_grad and one.retains_grad and grad_fn_of(one) in made_by]


def tell_graph(
    tensors: Sequence[torch.Tensor],
    listener: Listener,
    names: Mapping[str, Any],
    modules: Mapping[str, Any],
    gradients: bool,
) -> list[int]:
    """Emit to a listener everything that leads to tensors. `names` are the names of tensors, and `modules` the
    modules that may have been called. With `gradients` a backward pass runs and is emitted too; it changes nothing.
    Returns the numbers of the tensors in these events. Raises NoGradientsError where there is no such pass."""
    tensor_values.register()
    with torch._C.DisableTorchFunction():
        live = _Live(listener, names, modules)
        numbers = live.tell(tensors)
    if gradients and live.nodes:
        with _nobody_listening(), named_if_freed():
            tell_pass(tensors, live.nodes, live.source)
    return numbers


def tell_call(call: Callable[[], Any], listener: Listener) -> None:
    """Emit to a listener one call of a module. A recording under way does not receive it, for it is not the program's
    own."""
    with _nobody_listening():
        recorder = TorchRecorder(listener, _failed)
        recorder.begin()
        try:
            with torch.enable_grad():
                call()
        finally:
            recorder.end()


@contextmanager
def _nobody_listening() -> Iterator[None]:
    """A context in which the active recorders emit nothing of this thread."""
    overrides: Any = torch.overrides
    modes = overrides._get_current_function_mode_stack()
    recorders = [mode.source for mode in modes if isinstance(mode, Forward)]
    with ExitStack() as stack:
        for recorder in recorders:
            stack.enter_context(recorder.quiet())
        yield


def _failed(line: str) -> None:
    """Raise an error: without this part the drawing would be incomplete."""
    raise RuntimeError(line)


class _Live:
    """Emits a graph that exists already to a listener."""

    def __init__(self, listener: Listener, names: Mapping[str, Any], modules: Mapping[str, Any]) -> None:
        self.listener = listener
        self.modules = modules
        self.source = Source(listener, _failed)
        self.identity = self.source.identity
        self.nodes: list[Any] = []
        self.names: dict[int, str] = {}
        # by their node and output index
        self.tensors: dict[tuple[int, int], torch.Tensor] = {}
        self.ops = Ops(self.source, (), {}, self.tensors)
        self.saved: dict[Any, list[tuple[str, torch.Tensor]]] = {}  # by node: see `SavedTensors.unchanged`
        for name, value in names.items():
            if isinstance(value, torch.Tensor) and not name.startswith("_"):
                self.names[id(value)] = name
                self._note(value)

    def _note(self, tensor: torch.Tensor) -> None:
        fn = grad_fn_of(tensor)
        if fn is not None:
            self.tensors.setdefault((id(fn), tensor.output_nr), tensor)

    def tell(self, roots: Sequence[torch.Tensor]) -> list[int]:
        """Emit everything that leads to `roots`, and return their numbers."""
        fns = [root.grad_fn for root in roots if root.grad_fn is not None]
        for leaf, record in self._leaves(fns):
            self._tell_leaf(leaf, record)
        for root in roots:
            if root.grad_fn is not None:
                self._note(root)
            elif id(root) not in self.identity.known:
                self._tell_leaf(root, None)
        nodes = self.identity.new_nodes(fns)
        self.nodes = [fn for fn, _, _ in nodes]
        for fn, _, _ in nodes:
            self.saved[fn] = self.identity.saved.unchanged(fn)
            self._note_saved(fn)
        around = in_calls(self.listener, self.nodes, self.modules, self._took)
        for _, node in zip(around, nodes, strict=True):
            self._tell_node(node)
        return [self.identity.known[id(root)].number for root in roots]

    def _note_saved(self, fn: Any) -> None:
        """Note the unchanged tensors of the graph that a node saved, and emit the program's data among them."""
        for name, saved in self.saved[fn]:
            if saved.grad_fn is not None:
                self._note(saved)
            elif id(saved) in self.names and not saved.requires_grad and id(saved) not in self.identity.known:
                self._tell_leaf(saved, None)
            elif name == "result" and len(fn._input_metadata) == 1:
                self.tensors.setdefault((id(fn), 0), saved)

    def _took(self, fn: Any) -> tuple[str, list[Any], list[torch.Tensor]]:
        """The name of a node, and the nodes and tensors that it took: of a view that it saved, the tensor behind it."""
        targets = [target for target, _ in fn.next_functions if target is not None]
        tensors = [target.variable for target in targets if hasattr(target, "variable")]
        for name, saved in self.saved[fn]:
            if not saved.requires_grad and not name.startswith("result"):
                tensors.append(saved._base if saved._base is not None else saved)
        return fn.name(), targets, tensors

    def _leaves(self, roots: Sequence[Any]) -> list[tuple[torch.Tensor, NodeRecord]]:
        """The leaves that nodes lead to. They are numbered first, so that `new_nodes` finds them known."""
        nodes: dict[Any, None] = {}
        stack = [*roots]
        while stack:
            fn = stack.pop()
            if fn not in nodes:
                nodes[fn] = None
                stack += [target for target, _ in fn.next_functions if target is not None]
        leaves = [fn for fn in nodes if hasattr(fn, "variable")]
        for fn in leaves:
            self.identity.fresh(fn.variable)
        self.identity.new_nodes(leaves)
        return [(fn.variable, fn.metadata[self.identity.key]) for fn in leaves]

    def _tell_leaf(self, leaf: torch.Tensor, record: NodeRecord | None) -> None:
        known = self.identity.known.get(id(leaf)) or self.identity.fresh(leaf)
        self.listener.tensor(None, "leaf", self.identity.state(leaf, known))
        if id(leaf) in self.names:
            role = "parameter" if isinstance(leaf, torch.nn.Parameter) else ""
            self.listener.named(known.number, self.names[id(leaf)], role)
        if leaf.grad is not None and record is not None:
            state = State(next_tensor_number(), leaf.grad)
            self.listener.accumulated(known.number, record.number, 0, 0, state)

    def _tell_node(self, node: Numbered) -> None:
        fn, record, _ = node
        for nr in range(len(fn._input_metadata)):
            if (tensor := self.tensors.get((id(fn), nr))) is not None:
                record.put(nr, self.identity.fresh(tensor).number)
        self.ops.tell([(node, None)])
        for nr, number in enumerate(record.outputs()):
            tensor = self.tensors.get((id(fn), nr))
            if tensor is None:
                continue
            if id(tensor) in self.names:
                self.listener.named(number, self.names[id(tensor)], "")
            if tensor.retains_grad and tensor.grad is not None:
                grad = next_tensor_number()
                self.listener.tensor(None, "gradient", State(grad, tensor.grad))
                self.listener.retained(number, record.number, 0, grad)
