"""Records only inside scopes of one name: a listener between the sources and the real listener.

Outside these scopes, all events that can be left out of a pass (`kinds.DETAILS`) are dropped. Of a pass, only the
nodes that were made inside are passed on, and the leaves that they give a gradient to. The scopes around are entered
late, when a scope of that name is entered, so that its path is known."""

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gradviz.events.field_types import Edge, Rule, Saved
from gradviz.events.kinds import DETAILS, VIEW, WHOLE, Kind
from gradviz.events.listener import LeafHistogram, Listener, State, Where

_LEAF = "AccumulateGrad"
_MOST_NODES = 1 << 20  # the most nodes that are remembered: no pass ever frees the nodes of evaluations
_MOST_OUTSIDE = 1 << 14  # the most tensors made outside that are remembered
_MOST_SEEN = 1000
# events about a node: the position of the node among their values
_OF_NODES = {Kind.RETAINED: 1, Kind.HOOKED: 1, Kind.COMPARED: 0}


class _Open:
    """An open scope. It is passed on later, when a scope of the wanted name is entered inside it, or never."""

    __slots__ = ("entered", "is_passed_on", "matches", "number")

    def __init__(self, number: int, matches: bool, entered: tuple[Any, ...]) -> None:
        self.number, self.matches, self.entered, self.is_passed_on = number, matches, entered, False


class _OfThread(threading.local):
    """The open scopes of a thread, and how many of them have the wanted name. The op of a custom Function comes after
    its scope: then `due` is set, and after it `nodes_due` for the op's nodes."""

    def __init__(self) -> None:
        self.scopes: list[_Open] = []
        self.inside = 0
        self.due = self.nodes_due = False

    @property
    def tells(self) -> bool:
        """Whether an op that comes now is passed on."""
        return self.inside > 0 or self.due


class InScope(Listener):
    """Passes on to `listener` what happens inside modules and custom Functions with this name: their path
    (`net.encoder.0`), the end of it (`encoder.0`), or their class (`Encoder`)."""

    __slots__ = ("__dict__",)

    def __init__(self, listener: Listener, name: str) -> None:
        self.listener, self.name = listener, name
        self.here = _OfThread()
        self.entered = False  # whether a scope of the name was ever entered
        self.seen: dict[str, None] = {}  # the names of scopes
        self.nodes: dict[int, None] = {}  # made inside, and not yet freed
        # by pass: the leaves that received a gradient from nodes made inside
        self.leaves: dict[int, set[int]] = {}
        self.retaining: set[int] = set()  # passes that free no node
        self.outside: dict[int, tuple[Callable[[], Any], int, int]] = {}  # tensors made by ops that were not passed on
        # The gradients that nodes outside gave to other nodes, by number. Held weakly: a source may reuse memory that
        # is free.
        self.given: dict[int, Callable[[], Any]] = {}

    @property
    def detailed(self) -> bool:  # type: ignore[override]
        return self.here.tells and self.listener.detailed

    @property
    def detailed_passes(self) -> bool:
        return self.listener.detailed_passes

    @property
    def wants_changes(self) -> bool:  # type: ignore[override]
        return self.listener.wants_changes

    @property
    def wants_histograms(self) -> bool:  # type: ignore[override]
        return self.listener.wants_histograms

    @property
    def passes_begun(self) -> int:  # type: ignore[override]
        return self.listener.passes_begun

    def leaves_counted(self, number: int, histograms: Sequence[LeafHistogram], is_last: bool = False) -> None:
        self.listener.leaves_counted(number, histograms, is_last)

    def wants(self, node: int) -> bool:
        return node in self.nodes

    def place(self, where: Where) -> Where:
        return self.listener.place(where)

    # --- any event

    def tell(self, kind: Kind, where: Where, values: tuple[Any, ...], states: Sequence[State] = ()) -> None:
        at = _OF_NODES.get(kind)
        if at is not None:
            if self.wants(values[at]) or any(values[at] in leaves for leaves in self.leaves.values()):
                self.listener.tell(kind, where, values, states)
        elif kind not in DETAILS or self.here.inside:
            self.listener.tell(kind, where, values, states)

    # --- scopes

    def scope_entered(self, where: Where, scope: int, kind: str, name: str, type: str, training: bool = False) -> None:
        here = self.here
        if len(self.seen) < _MOST_SEEN:
            self.seen.setdefault(name)
        matches = self.name in (name, type) or name.endswith(f".{self.name}")
        here.due = here.nodes_due = False
        here.scopes.append(_Open(scope, matches, (self.place(where), scope, kind, name, type, training)))
        if matches:
            self.entered = True
            here.inside += 1
        if here.inside:
            for known in here.scopes:
                if not known.is_passed_on:
                    known.is_passed_on = True
                    self.listener.scope_entered(*known.entered)

    def scope_left(self, scope: int) -> None:
        here = self.here
        if not any(known.number == scope for known in here.scopes):
            return
        number = 0
        while number != scope:  # an exception may have left several scopes
            known = here.scopes.pop()
            number = known.number
            here.inside -= known.matches
            here.due, here.nodes_due = known.matches and known.entered[2] == "function", False
            if known.is_passed_on:
                self.listener.scope_left(number)

    # --- ops and nodes

    def op(self, *fields: Any) -> None:
        *_, inputs, outputs, values, flags, versions, _ = fields
        if self._tells_op(inputs):
            self.listener.op(*fields)
        else:
            self._leave_out(zip(outputs, values, flags, versions, strict=True))

    def node(
        self, where: Where, node: int, grad_fn: str, op: int | None, rule: Rule, outputs: Sequence[int],
        edges: Sequence[Edge], saved: Sequence[Saved],
    ) -> None:  # fmt: skip
        inside = self.here.inside or self.here.nodes_due
        if inside and op is not None:  # a node without an op is the history of an input
            self._note(node)
            self.listener.node(where, node, grad_fn, op, rule, outputs, edges, saved)

    def differentiated(self, *fields: Any) -> None:
        inputs, output, value, flags, version, _, node, *_ = fields[5:]
        if self._tells_op(inputs):
            self._note(node)
            self.listener.differentiated(*fields)
        else:
            self._leave_out([(output, value, flags, version)])

    def _tells_op(self, inputs: Sequence[int]) -> bool:
        """Whether an op is passed on. Its inputs that were made outside are passed on before it."""
        here = self.here
        is_passed_on = here.tells
        here.due, here.nodes_due = False, here.due
        if is_passed_on:
            self._introduce(inputs)
        return is_passed_on

    def _introduce(self, tensors: Sequence[int]) -> None:
        """Pass on tensors that were made outside."""
        for number in tensors:
            value, flags, version = self.outside.pop(number, (_nothing, 0, 0))
            if value() is not None:
                self.listener.tensor(None, "earlier", State(number, value(), flags, version))

    def _leave_out(self, made: Iterable[tuple[int, Any, int, int]]) -> None:
        """Note the results of an op that is not passed on: an op inside may read them."""
        for number, value, flags, version in made:
            self.outside[number] = _reference(value), flags & ~(VIEW | WHOLE), version
            if len(self.outside) > _MOST_OUTSIDE:
                del self.outside[next(iter(self.outside))]

    def _note(self, node: int) -> None:
        if self.listener.detailed:
            self.nodes[node] = None
            if len(self.nodes) > _MOST_NODES:
                del self.nodes[next(iter(self.nodes))]

    # --- passes

    def pass_began(
        self, where: Where, number: int, how: str, time: float, retain_graph: bool, create_graph: bool,
        roots: Sequence[Any], inputs: Sequence[int],
    ) -> None:  # fmt: skip
        self.leaves[number] = set()
        if retain_graph or create_graph:
            self.retaining.add(number)
        self._introduce([root.tensor for root in roots])
        self.listener.pass_began(where, number, how, time, retain_graph, create_graph, roots, inputs)

    def pass_ended(self, number: int) -> None:
        self.leaves.pop(number, None)
        self.retaining.discard(number)
        if not self.leaves:
            self.given.clear()
        self.listener.pass_ended(number)

    def received(self, node: int, grad_fn: str, in_pass: int, gradients: Sequence[int], values: Sequence[Any]) -> None:
        if self.wants(node) or (grad_fn == _LEAF and node in self.leaves.get(in_pass, ())):
            self.listener.received(node, grad_fn, in_pass, gradients, self._with_given(gradients, values))
        else:
            self._hold(gradients, values)

    def produced(self, node: int, in_pass: int, flows: Sequence[int], values: Sequence[Any]) -> None:
        if not self.wants(node):
            self._hold(flows[1::2], values)
            return
        self.leaves.setdefault(in_pass, set()).update(flows[::2])
        if in_pass not in self.retaining:
            self.nodes.pop(node, None)
        self.listener.produced(node, in_pass, flows, self._with_given(flows[1::2], values))

    def _hold(self, gradients: Sequence[int], values: Sequence[Any]) -> None:
        """Note the values of gradients that are not passed on now: a node made inside may receive them."""
        for number, value in zip(gradients, values, strict=False):
            if value is not None:
                self.given[number] = _reference(value)

    def _with_given(self, gradients: Sequence[int], values: Sequence[Any]) -> list[Any]:
        """The values, together with those that were not passed on when their gradients were produced."""
        if not self.given:
            return [*values]
        return [
            self.given.pop(number, _nothing)() if value is None else value
            for number, value in zip(gradients, values, strict=False)
        ]


def _nothing() -> None:
    return None


def _reference(value: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(value)
    except TypeError:  # a scalar of NumPy
        return lambda: value
