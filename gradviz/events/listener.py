"""The events that a source emits: one call for each event, with raw values.

A source (the NumPy engine, PyTorch) calls these methods while the script runs. A class that receives events derives
from `Listener` and overrides `tell`; `op`, `node`, `differentiated`, `received`, `produced`, `ran` and `leaf_ran` are
called so often that it may override them as well. No object is built for an event.

- The fields of each event are those of the table in `kinds.py`, in its order.
- `where` is the place in the program where it happened: a frame (the place is the innermost user frame at or above it),
  the traceback of an exception, a result of `place` for one of them, or None. The source gives the frame; no code below
  it counts frames.
- A `State` is the state of a tensor at an event. Its `value` is a handle: whatever the source computes with. The source
  registers once how a handle is read (`handles.py`).
"""

from collections.abc import Mapping, Sequence
from types import FrameType, MappingProxyType, TracebackType
from typing import Any, NamedTuple

from gradviz.events.field_types import Edge, Flow, Group, Living, Root, Rule, Saved
from gradviz.events.kinds import Kind
from gradviz.events.site import Place

Where = FrameType | TracebackType | Place | int | None
NO_RULE = Rule(())
LEAF_NODE = "AccumulateGrad"


class State(NamedTuple):
    """The state of a tensor: the handle of its value (None: the value was emitted before, or is not known), its flags
    (`kinds.LEAF` and so on), its version, and the tensor whose memory it shares (0: none)."""

    tensor: int
    value: Any
    flags: int = 0
    version: int = 0
    base: int = 0


class Entered(NamedTuple):
    """A scope that was entered: where, and the fields of its event."""

    where: int
    scope: int
    kind: str
    name: str
    type: str
    training: bool


class Made(NamedTuple):
    """How a node came to be: the place of its op, the event of the op with its text, rule and inputs, the open scopes,
    the rule of the node, and the tensors that it is the `grad_fn` of (0 for those that the op did not return)."""

    where: int
    event: int
    op: str
    args: str
    rule: Rule
    inputs: tuple[int, ...]
    scopes: tuple[Entered, ...]
    node_rule: Rule
    outputs: tuple[int, ...]


class LeafHistogram(NamedTuple):
    """How the elements of a leaf (`what` is `parameter`) or of its `.grad` (`gradient`) are distributed: their numbers
    in `values.BINS` equal bins from `low` to `high`, as bytes of type `values.COUNTS`."""

    tensor: int
    what: str
    low: float
    high: float
    counts: bytes


class Listener:
    """Receives every event and does nothing with it.

    While it is not `detailed`, it leaves out those events of this thread that can be left out (`kinds.DETAILS`). A
    source may save itself the work, except for scopes: they are always emitted.

    While it `rests`, a source may stop watching altogether until the pass before the next that is wanted has ended, and
    emit the beginnings and ends of passes alone. If it `sums`, it wants a few numbers of each pass and of steps.

    If it `wants_changes`, the value of a tensor of more than `values.SMALL` elements that a step of an optimizer has
    written may be a `handles.Changed`. If it `wants_histograms`, it is given those of the leaves at a few passes, and
    the last. `passes_begun` is the number of passes so far. `made` tells how the nodes of the pass under way came to
    be, if the listener notes it."""

    __slots__ = ()
    detailed: bool = True
    rests: bool = False
    sums: bool = False
    wants_changes: bool = False
    wants_histograms: bool = False
    passes_begun: int = 0
    made: Mapping[int, Made] = MappingProxyType({})

    def wakes(self, loss: float | None) -> bool:
        """Whether the pass that is about to begin from this loss is wanted after all, though the source rests: it emits
        its graph then, and the pass in detail. None: an exception leaves the program before the pass begins."""
        return False

    def suspects(self) -> None:
        """Want the passes behind the one that is about to begin: what it does may be wrong."""

    @property
    def detailed_passes(self) -> bool:
        """Whether the events of nodes are wanted at all in a pass that begins now."""
        return self.detailed

    def wants(self, node: int) -> bool:
        """Whether the events of this node are wanted in such a pass."""
        return True

    def tell(self, kind: Kind, where: Where, values: tuple[Any, ...], states: Sequence[State] = ()) -> None:
        """Receive an event of any kind: its fields in the order of the table, and the states of tensors at it."""

    def tell_each(self, kind: Kind, where: Where, told: Sequence[tuple[tuple[Any, ...], Sequence[State]]]) -> None:
        """Receive several events of one kind at one place: the values and the states of each."""
        for values, states in told:
            self.tell(kind, where, values, states)

    def place(self, where: Where) -> Where:
        """The place of `where`, for an event that is emitted later: a frame moves on."""
        return None

    # --- the frequent events

    def op(
        self, where: Where, op: str, args: str, rule: Rule, in_pass: int, grad_enabled: bool, inputs: Sequence[int],
        outputs: Sequence[int], values: Sequence[Any], flags: Sequence[int], versions: Sequence[int],
        bases: Sequence[int],
    ) -> None:  # fmt: skip
        """An op ran; the last four are the states of its outputs. An op in place has its tensor as output."""
        states = [*map(State, outputs, values, flags, versions, bases)]
        self.tell(Kind.OP, where, (op, args, rule, in_pass, grad_enabled, tuple(inputs), tuple(outputs)), states)

    def node(
        self, where: Where, node: int, grad_fn: str, op: int | None, rule: Rule, outputs: Sequence[int],
        edges: Sequence[Edge], saved: Sequence[Saved],
    ) -> None:  # fmt: skip
        """A node was made by the op of event `op` (None: by none); −1 is the thread's last op."""
        values = (node, grad_fn, op, rule, tuple(outputs), tuple(edges), tuple(saved))
        self.tell(Kind.NODE, where, values)

    def nodes_made(
        self, where: Where, made: Sequence[tuple[int, str, Rule, Sequence[int], Sequence[int], Sequence[int]]]
    ) -> None:
        """Several nodes were made by the thread's last op, given oldest first: the number, the name, the rule and the
        outputs of each, and its edges and saved tensors, flat as in `differentiated`."""
        for node, grad_fn, rule, outputs, edges, saved in made:
            self.node(where, node, grad_fn, -1, rule, outputs, edges_of(edges), saved_of(saved))

    def differentiated(
        self, where: Where, op: str, args: str, rule: Rule, in_pass: int, inputs: Sequence[int], output: int,
        value: Any, flags: int, version: int, base: int, node: int, grad_fn: str, edges: Sequence[int],
        saved: Sequence[int],
    ) -> None:  # fmt: skip
        """`op` and `node` in one call: an op with one new output ran in grad mode and made one node, under the same
        rule. `edges` and `saved` are flat: (node, nr, tensor, ...) and (tensor, version, ...)."""
        self.op(where, op, args, rule, in_pass, True, inputs, (output,), (value,), (flags,), (version,), (base,))
        self.node(where, node, grad_fn, -1, rule, (output,), edges_of(edges), saved_of(saved))

    def received(self, node: int, grad_fn: str, in_pass: int, gradients: Sequence[int], values: Sequence[Any]) -> None:
        """A node was given its gradients and is about to run. `values[i]` is None if gradient i was emitted before."""
        states = [State(g, v) for g, v in zip(gradients, values, strict=True) if v is not None]
        self.tell(Kind.RECEIVED, None, (node, grad_fn, in_pass, tuple(gradients)), states)

    def produced(self, node: int, in_pass: int, flows: Sequence[int], values: Sequence[Any]) -> None:
        """A node has run. `flows` is flat: (target node, gradient, ...); `values` as in `received`."""
        pairs = tuple(Flow(*flows[i : i + 2]) for i in range(0, len(flows), 2))
        states = [State(flow.gradient, v) for flow, v in zip(pairs, values, strict=True) if v is not None]
        self.tell(Kind.PRODUCED, None, (node, in_pass, pairs), states)

    def ran(
        self, node: int, grad_fn: str, in_pass: int, gradient: int, value: Any, flows: Sequence[int],
        values: Sequence[Any],
    ) -> None:  # fmt: skip
        """`received` and `produced` of a node with one output in one call, once it has run. A source may do so if
        nothing can have happened between the two."""
        self.received(node, grad_fn, in_pass, (gradient,), (value,))
        self.produced(node, in_pass, flows, values)

    def leaf_ran(self, tensor: int, node: int, in_pass: int, gradient: int, state: State) -> None:
        """`received` and `accumulated` in one call: a leaf accumulated a gradient that was emitted before."""
        self.received(node, LEAF_NODE, in_pass, (gradient,), (None,))
        self.accumulated(tensor, node, in_pass, gradient, state)

    # --- forward

    def tensor(self, where: Where, how: str, state: State, source: int = 0) -> None:
        """A tensor was made other than by an op."""
        self.tell(Kind.TENSOR, where, (state.tensor, how, source), (state,))

    def mutated(
        self, where: Where, how: str, state: State, source: int = 0, in_pass: int = 0, op: int | None = None,
    ) -> None:  # fmt: skip
        """A tensor's value was written over, or its place in the graph is another; `state` is its new state. `op` is
        the event of the op that did it through tensor `source`; −1 is the thread's last op."""
        self.tell(Kind.MUTATED, where, (state.tensor, how, source, in_pass, op), (state,))

    def all_mutated(self, where: Where, how: str, states: Sequence[State], in_pass: int = 0) -> None:
        """Several tensors were written over, one after the other: an optimizer has stepped."""
        events = [((state.tensor, how, 0, in_pass, None), (state,)) for state in states]
        self.tell_each(Kind.MUTATED, where, events)

    def requires_grad_changed(self, where: Where, state: State) -> None:
        """A tensor's flags changed."""
        self.tell(Kind.REQUIRES_GRAD_CHANGED, where, (state.tensor,), (state,))

    def grad_assigned(self, where: Where, tensor: int, grad: int) -> None:
        """`tensor.grad = grad`; 0 for None."""
        self.tell(Kind.GRAD_ASSIGNED, where, (tensor, grad))

    def grads_dropped(self, where: Where, tensors: Sequence[int]) -> None:
        """The `.grad` of several tensors was set to None."""
        self.tell_each(Kind.GRAD_ASSIGNED, where, [((tensor, 0), ()) for tensor in tensors])

    def grad_read(self, where: Where, tensor: int) -> None:
        """The `.grad` of a non-leaf was read that has none."""
        self.tell(Kind.GRAD_READ, where, (tensor,))

    def number_read(self, where: Where, tensor: int, how: str) -> None:
        """Numbers were read out of a tensor."""
        self.tell(Kind.NUMBER_READ, where, (tensor, how))

    def kernel(
        self, where: Where, op: str, args: str, result: str, in_pass: int = 0, node: int = 0,
        inputs: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """An aten op ran: a part of an op of the program, of a node or of an optimizer."""
        self.tell(Kind.KERNEL, where, (op, args, result, in_pass, node, tuple(inputs)))

    def measured(
        self, where: Where, op: str, seconds: float, made: int, flops: int, in_pass: int = 0, node: int = 0,
        in_step: bool = False,
    ) -> None:  # fmt: skip
        """An aten op as in `kernel` ran and was measured: its time, bytes and floating-point operations."""
        values = (op, seconds, float(made), float(flops), in_pass, node, in_step)
        self.tell(Kind.MEASURED, where, values)

    def storage_saved(self, node: int, storage: int, size: int, leaf: int, in_pass: int) -> None:
        """A node of a pass that begins has saved a tensor with a storage of `size` bytes."""
        self.tell(Kind.STORAGE_SAVED, None, (node, storage, float(size), leaf, in_pass))

    def binned(
        self, tensor: int, what: str, module: str, low: float, high: float, counts: Sequence[int], in_pass: int = 0,
    ) -> None:  # fmt: skip
        """The elements of a tensor were counted in equal bins from `low` to `high`."""
        self.tell(Kind.BINNED, None, (tensor, what, module, low, high, in_pass, tuple(counts)))

    def leaves_counted(self, number: int, histograms: Sequence[LeafHistogram], is_last: bool = False) -> None:
        """The elements of leaves were counted at the end of pass `number`; or the last time, after so many passes: when
        the recording ended, or when the module that holds them was freed. This is no event."""

    def grads_cleared(self, where: Where, how: str, to_none: bool, tensors: Sequence[int]) -> None:
        """`zero_grad()` was called; the changes follow."""
        self.tell(Kind.GRADS_CLEARED, where, (how, to_none, tuple(tensors)))

    def named(self, tensor: int, name: str, role: str = "parameter") -> None:
        """A tensor got a name."""
        self.tell(Kind.NAMED, None, (tensor, name, role))

    def scope_entered(self, where: Where, scope: int, kind: str, name: str, type: str, training: bool = False) -> None:
        """A module's forward (`kind` is `module`) or a custom Function's (`function`) was entered."""
        self.tell(Kind.SCOPE_ENTERED, where, (scope, kind, name, type, training))

    def scope_left(self, scope: int) -> None:
        """A module's forward or a custom Function's was left."""
        self.tell(Kind.SCOPE_LEFT, None, (scope,))

    def tangent(self, where: Where, how: str, tensor: int, state: State) -> None:
        """A tensor got a tangent; `state` is the state of the tangent."""
        self.tell(Kind.TANGENT, where, (tensor, state.tensor, how), (state,))

    # --- backward

    def pass_began(
        self, where: Where, number: int, how: str, time: float, retain_graph: bool, create_graph: bool,
        roots: Sequence[Root], inputs: Sequence[int],
    ) -> None:  # fmt: skip
        """A backward pass began."""
        values = (number, how, time, retain_graph, create_graph, tuple(roots), tuple(inputs))
        self.tell(Kind.PASS_BEGAN, where, values)

    def accumulated(self, tensor: int, node: int, in_pass: int, gradient: int, state: State) -> None:
        """A leaf's `.grad` accumulated a gradient; `state` is the state of the new `.grad`."""
        self.tell(Kind.ACCUMULATED, None, (tensor, node, in_pass, gradient, state.tensor), (state,))

    def retained(self, tensor: int, node: int, in_pass: int, grad: int) -> None:
        """A non-leaf kept its gradient."""
        self.tell(Kind.RETAINED, None, (tensor, node, in_pass, grad))

    def hooked(self, tensor: int, node: int, in_pass: int, hook: str, before: int, state: State) -> None:
        """A hook changed gradient `before` to the gradient of `state`."""
        self.tell(Kind.HOOKED, None, (tensor, node, in_pass, hook, before, state.tensor), (state,))

    def compared(
        self, node: int, in_pass: int, function: str, why_not: str = "", argument: str = "", given: float = 0.0,
        found: float = 0.0, is_wrong: bool = False,
    ) -> None:  # fmt: skip
        """The backward of a custom Function was compared with finite differences; `why_not` is the reason if not."""
        values = (node, in_pass, function, why_not, argument, given, found, is_wrong)
        self.tell(Kind.COMPARED, None, values)

    def pass_ended(self, number: int) -> None:
        """A pass ended."""
        self.tell(Kind.PASS_ENDED, None, (number,))

    def graphs_alive(self, in_pass: int, graphs: Sequence[Living], are_whole: bool = False) -> None:
        """Graphs of earlier passes are alive as a pass ends."""
        self.tell(Kind.ALIVE, None, (in_pass, tuple(graphs), are_whole))

    def summed(self, in_pass: int, loss: float | None, norm: float, largest: float, tensor: int, why: str = "") -> None:
        """A few numbers of a pass are known; `loss` is None and the norms are −1 where they are not."""
        values = (in_pass, why, loss is not None, loss or 0.0, norm, largest, tensor)
        self.tell(Kind.SUMMED, None, values)

    def step_summed(
        self, in_pass: int, optimizer: int, tensor: int, change: float, size: float, largest: float
    ) -> None:
        """A few numbers of a step are known, which used the gradients of a pass."""
        self.tell(Kind.STEP_SUMMED, None, (in_pass, optimizer, tensor, change, size, largest))

    # --- training

    def holds(
        self, where: Where, optimizer: int, type: str, groups: Sequence[Group], parameters: Sequence[int]
    ) -> None:
        """An optimizer holds these parameter groups and parameters."""
        self.tell(Kind.HOLDS, where, (optimizer, type, tuple(groups), tuple(parameters)))

    def clipped(self, where: Where, how: str, tensors: Sequence[int]) -> None:
        """Gradients are about to be clipped."""
        self.tell(Kind.CLIPPED, where, (how, tuple(tensors)))

    def collective(self, where: Where, how: str, args: str, tensors: Sequence[int]) -> None:
        """A function is called in which several processes take part."""
        self.tell(Kind.COLLECTIVE, where, (how, args, tuple(tensors)))

    def stepped(
        self, where: Where, optimizer: int, type: str, time: float, groups: Sequence[Group],
        parameters: Sequence[int],
    ) -> None:  # fmt: skip
        """An optimizer is about to step."""
        self.tell(Kind.STEPPED, where, (optimizer, type, time, tuple(groups), tuple(parameters)))

    def scheduled(self, where: Where, optimizer: int, type: str, steps: int, rates: str) -> None:
        """A scheduler set the learning rates, which are `rates` afterwards, as JSON."""
        self.tell(Kind.SCHEDULED, where, (optimizer, type, steps, rates))

    # --- to be run again

    def kept(self, where: Where, how: str, original: int, state: State) -> None:
        """The value of a tensor was kept, under a number of its own, which `state` has."""
        self.tell(Kind.KEPT, where, (how, original, state.tensor), (state,))

    def called(
        self, where: Where, function: str, arguments: str, context: str, generator: int, inputs: Sequence[int],
        outputs: Sequence[int], written: Sequence[int],
    ) -> None:  # fmt: skip
        """A function was called that can be called again."""
        values = (function, arguments, context, generator, tuple(inputs), tuple(outputs), tuple(written))
        self.tell(Kind.CALLED, where, values)

    def error(self, where: Where, type: str, message: str, node: int = 0, in_pass: int = 0) -> None:
        """An exception left pass `in_pass` at `node`; with 0 it refused a pass before it began, or ended the run."""
        self.tell(Kind.ERROR, where, (type, message, node, in_pass))


def edges_of(flat: Sequence[int]) -> list[Edge]:
    """The edges from (node, nr, tensor, ...)."""
    return [Edge(*flat[i : i + 3]) for i in range(0, len(flat), 3)]


def saved_of(flat: Sequence[int]) -> list[Saved]:
    """The saved tensors from (tensor, version, ...)."""
    return [Saved(*flat[i : i + 2]) for i in range(0, len(flat), 2)]
