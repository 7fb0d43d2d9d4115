"""The nodes of a trace: the op that made each, its name, its saved tensors and its edges."""

from functools import cached_property

import numpy as np

from gradviz.events.field_types import Edge, Rule, Saved
from gradviz.events.kinds import LEAF, REQUIRES_GRAD, Kind, NodeMade
from gradviz.query.sorted_tables import Log, Lookup
from gradviz.sets import contained, distinct_pairs, grouped
from gradviz.tracefile.columns import Table

ACCUMULATE = "AccumulateGrad"


class Nodes(Lookup):
    """Look-ups about the nodes of one trace. A node without a NODE event is a leaf's AccumulateGrad, or was
    made before the recording."""

    @property
    def table(self) -> Table:
        """All NODE events."""
        return self.trace.table(Kind.NODE)

    @cached_property
    def _at(self) -> dict[int, int]:
        return {node: at for at, node in enumerate(self.table["node"].tolist())}

    @cached_property
    def _ops(self) -> list[int]:
        return self.table["op"].tolist()

    def made(self, node: int) -> int | None:
        """The NODE event of a node; None if the trace has none."""
        self.trace.reach_node(node)
        return self._made.get(node)

    @cached_property
    def _made(self) -> dict[int, int]:
        return dict(zip(self.table["node"].tolist(), self.table.events.tolist(), strict=True))

    def event(self, node: int) -> NodeMade | None:
        """The NODE event of a node, decoded; None if the trace has none."""
        self.trace.reach_node(node)
        return self._decoded[node]

    @cached_property
    def _decoded(self) -> "_Decoded":
        return _Decoded(self)

    @cached_property
    def _grad_fns(self) -> list[int]:
        return self.table["grad_fn"].tolist()

    def op(self, node: int) -> int | None:
        """The OP event that made a node; None for an AccumulateGrad, or if it is unknown."""
        self.trace.reach_node(node)
        at = self._at.get(node)
        return self._ops[at] if at is not None and self._ops[at] >= 0 else None

    def of_op(self, event: int) -> list[int]:
        """The nodes that an op made, in order."""
        self.trace.reach(event)
        return self._of_ops.get(event, [])

    def main_of_op(self, event: int) -> int:
        """The node through which gradients of the op's result flow: the first that is a `grad_fn`; 0 if there
        is none."""
        made = self.of_op(event)
        return next((node for node in made if any(self.outputs(node))), made[-1] if made else 0)

    @cached_property
    def _of_ops(self) -> dict[int, list[int]]:
        return grouped((op, node) for op, node in zip(self._ops, self.table["node"].tolist(), strict=True) if op >= 0)

    @cached_property
    def ran(self) -> set[int]:
        """The nodes that received a gradient in some pass, with the AccumulateGrads among them."""
        return set(self.trace.table(Kind.RECEIVED)["node"].tolist())

    def has_run(self, tensor: int) -> bool:
        """Whether the last node of a tensor received a gradient in some pass."""
        return self.of_tensors.last(tensor, self.trace.count) in self.ran

    @cached_property
    def have_run(self) -> np.ndarray:
        """For each NODE event, whether its node received a gradient in some pass."""
        return contained(self.table["node"], self.trace.table(Kind.RECEIVED)["node"])

    @cached_property
    def ops_that_ran(self) -> np.ndarray:
        """The OP events of the nodes that received a gradient in some pass."""
        return self.table["op"][self.have_run]

    def edges(self, node: int) -> tuple[Edge, ...]:
        """The edges of a node."""
        made = self.event(node)
        return () if made is None else made.edges

    def saved(self, node: int) -> tuple[Saved, ...]:
        """The saved tensors of a node."""
        made = self.event(node)
        return () if made is None else made.saved

    def outputs(self, node: int) -> tuple[int, ...]:
        """The tensors that have this node as `grad_fn`, by output number."""
        made = self.event(node)
        return () if made is None else made.outputs

    def rule(self, node: int) -> Rule:
        """The derivative formulas of a node, one for each edge."""
        made = self.event(node)
        return Rule(()) if made is None else made.rule

    def name(self, node: int) -> str:
        """The name of a node; empty if it is unknown."""
        self.trace.reach_node(node)
        at = self._at.get(node)
        if at is not None:
            return self.trace.text(self._grad_fns[at])
        if self.leaf(node):
            return ACCUMULATE
        if node:
            self.trace.reach_all()  # it may have received a gradient anywhere
        return self._received_names.get(node, "")

    @cached_property
    def _received_names(self) -> dict[int, str]:
        """The names of the nodes without a NODE event, from the events at which they received gradients."""
        received = self.trace.table(Kind.RECEIVED)
        others = ~contained(received["node"], self.table["node"])
        pairs = distinct_pairs(received["node"][others], received["grad_fn"][others])
        return {node: self.trace.text(name) for node, name in pairs.tolist()}

    def leaf(self, node: int) -> int:
        """The leaf of an AccumulateGrad; 0 for any other node."""
        if not node or self.made(node) is not None:
            return 0
        if node not in self._accumulated and node not in self._led_to:
            self.trace.reach_all()  # it was made before the recording, or outside of it
        if node in self._accumulated:
            return self._accumulated[node]
        candidates = self._led_to.get(node, ())
        return next((tensor for tensor in candidates if self._is_leaf(tensor)), 0)

    @cached_property
    def leaves(self) -> dict[int, int]:
        """The leaf of each AccumulateGrad."""
        leaf_of = {node: self.leaf(node) for node in (*self._accumulated, *self._led_to) if node}
        return {node: leaf for node, leaf in leaf_of.items() if leaf}

    def leaves_behind(self, nodes: list[int]) -> list[int]:
        """The leaves that the gradients of nodes reach."""
        return [self.leaves[node] for node in self.walk(nodes) if node in self.leaves]

    @cached_property
    def _accumulated(self) -> dict[int, int]:
        """The leaf that each node accumulated into."""
        accumulated = self.trace.table(Kind.ACCUMULATED)
        return dict(distinct_pairs(accumulated["node"], accumulated["tensor"]).tolist())

    @cached_property
    def _led_to(self) -> dict[int, list[int]]:
        """The tensors, as far as known, whose gradients edges and roots lead to a node without a NODE event."""
        edges = self.table.lists("edges").elements
        roots = self.trace.table(Kind.PASS_BEGAN).lists("roots").elements
        nodes, tensors = (np.concatenate([edges[:, part], roots[:, part]]) for part in (0, 2))
        others = (nodes > 0) & (tensors > 0) & ~contained(nodes, self.table["node"])
        return grouped(distinct_pairs(nodes[others], tensors[others]).tolist())

    def _is_leaf(self, tensor: int) -> bool:
        """Whether a tensor was a leaf at its first state. If not, its node was not recorded (`--scope`)."""
        self.trace.reach_tensors([tensor])
        states = self.trace.states
        first = states.first(tensor)
        return first < 0 or bool(states.flags[first] & LEAF) or not states.flags[first] & REQUIRES_GRAD

    def tensors(self, node: int) -> list[int]:
        """The tensors whose gradients a node receives: the outputs of its op, or the leaf."""
        if self.made(node) is not None:
            return list(self.outputs(node))
        leaf = self.leaf(node)
        return [leaf] if leaf else []

    @cached_property
    def of_tensors(self) -> Log:
        """The nodes made as the `grad_fn` of each tensor, with the events that made them."""
        outputs = self.table.lists("outputs")
        known = outputs.values > 0
        owners = outputs.owners[known]
        return Log(outputs.values[known], self.table.events[owners], self.table["node"][owners])

    def grad_fn(self, tensor: int, at: int) -> int:
        """The node that was the `grad_fn` of a tensor just after event `at`, or that the op of this event made for it;
        0 if there is none. The tensor may be a leaf by now: check its flags."""
        if op_nodes := [node for node in self.of_op(at) if tensor in self.outputs(node)]:
            return op_nodes[-1]
        self.trace.reach_history(tensor, at)
        return self.of_tensors.last(tensor, at) or 0

    def walk(self, roots: list[int], since: int = 0) -> list[int]:
        """The nodes reachable from `roots` through `next_functions`, roots first. Leaves out the nodes made by ops
        before event `since`, and nodes that only these lead to."""
        reached: dict[int, None] = {}
        stack = [root for root in reversed(roots) if root]
        while stack:
            node = stack.pop()
            if node in reached or self.is_before(node, since):
                continue
            reached[node] = None
            stack += [edge.node for edge in reversed(self.edges(node)) if edge.node]
        return list(reached)

    def is_before(self, node: int, since: int) -> bool:
        """Whether an op before event `since` made this node."""
        event = self.op(node) if since else None
        return event is not None and event < since

    def ends(self, at: int) -> list[int]:
        """The nodes made up to event `at` to which no edge from another of these nodes leads."""
        made = self.table["node"][self.table.events <= at]
        edges = self.table.lists("edges")
        led_to = edges.elements[self.table.events[edges.owners] <= at, 0]
        return made[~contained(made, led_to)].tolist()


class _Decoded(dict[int, NodeMade | None]):
    """The NODE events by their nodes, cached: a picture asks for each of them several times."""

    def __init__(self, nodes: Nodes) -> None:
        super().__init__()
        self.nodes = nodes

    def __missing__(self, node: int) -> NodeMade | None:
        made = self.nodes.made(node)
        event = None if made is None else self.nodes.table.object(made)
        self[node] = event
        return event
