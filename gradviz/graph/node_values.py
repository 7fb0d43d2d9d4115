"""Fills in the values and gradients of a graph, at the event that it shows."""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from gradviz.events.kinds import Accumulated, CollectiveCalled, Kind, Mutated, Produced, Received, TangentPushed
from gradviz.graph import model as m
from gradviz.graph.model import LEAF, OP, RECEIVE, SEND, TENSOR, Exchange, Graph, Ids, Node
from gradviz.query import FIRST, Query, State
from gradviz.query.chain_step import pushes
from gradviz.query.collective_calls import COLLECTIVES, calls_around, is_of_some_ranks
from gradviz.query.optimizer_steps import update_step
from gradviz.query.reduced_gradients import on_gradients
from gradviz.query.writes import added_to, cleared_before, used_otherwise
from gradviz.sets import grouped
from gradviz.tracefile import PassInfo, Snapshot

_FEW = 4  # the most elements of a parameter whose step is shown
_STEPS = 8  # the most steps: all are read, for the momentum and the averages


def fill_values(graph: Graph, query: Query, states: Mapping[str, State], backward_pass: PassInfo | None) -> None:
    """Fill in `value`, `grad`, `tangent` and `upstream` of nodes, and the gradients of `grad` edges. `states`
    are the states of the graph's tensors, by id. A graph of the whole run has the gradients of all its passes."""
    _fill_tensors(graph, query, states)
    if backward_pass is not None:
        passes = query.trace.passes if graph.pass_number is None else ()
        for earlier in passes:
            if earlier.number < backward_pass.number:
                _fill_flows(graph, query, earlier)
        _fill_gradients(graph, query, backward_pass)
        if len(query.trace.indices(Kind.COLLECTIVE)):
            exchanges = _Exchanges(graph, query, backward_pass)
            for call in exchanges.calls():
                exchanges.note(call)


def _fill_tensors(graph: Graph, query: Query, states: Mapping[str, State]) -> None:
    trace, tensors, at = query.trace, query.tensors, graph.at
    last_version: dict[int, Node] = {}
    used, accumulated = used_otherwise(query, at), trace.table(Kind.ACCUMULATED)
    gradients = set(accumulated["grad"].tolist())
    for node in graph.nodes.values():
        if node.kind not in (m.LEAF, m.TENSOR):
            continue
        last = tensors.last_event(states[node.id], at)
        if node.number in gradients:
            for event in accumulated.events[accumulated["grad"] == node.number].tolist():
                was, is_now = (tensors.version(node.number, when) for when in (event - 1, event))
                if states[node.id].since < event <= last and was < is_now:  # a pass added to it
                    last = event - 1
        node.value = trace.snapshot(node.number, last)
        if write := used.get(states[node.id]):
            node.value, node.used = write.before, write.after
        if 0 < node.version <= _STEPS and node.is_leaf and math.prod(node.shape or ()) <= _FEW:
            written = trace.event(states[node.id].since)
            node.update = update_step(query, written) if isinstance(written, Mutated) else None
        last_version[node.number] = node
    for tensor, node in last_version.items():
        grad = tensors.grad(tensor, at)
        node.grad = trace.snapshot(grad, at)
        node.has_grad = bool(grad)
        node.tangent = trace.snapshot(tensors.tangent(tensor, at), at)
        node.pushed = _pushed(query, tensor, at) if node.tangent is not None else ()
        node.retained = not node.is_leaf and tensors.is_retained(tensor, at)
    moved = {name for name, node in graph.nodes.items() if node.tangent is not None}
    through = {edge.source for edge in graph.edges if edge.kind == m.DATA and edge.target in moved}
    for edge in graph.edges:
        edge.tangent = edge.kind == m.DATA and (
            edge.target in moved or (edge.source in moved and edge.target in through)
        )


def _pushed(query: Query, tensor: int, at: int) -> tuple[tuple[np.ndarray, Snapshot], ...]:
    """The local derivatives and tangents that add up to the tangent of a tensor; empty if one is not known."""
    events, _ = query.tensors.tangents.of(tensor)
    event = query.trace.event(int(events[events <= at][-1]))
    assert isinstance(event, TangentPushed)
    parts = [(one.local, query.memory.value(one.tangent, event.index)) for one in pushes(query, event)]
    known = tuple((local, value) for local, value in parts if local is not None and value is not None)
    return known if len(known) == len(parts) else ()


def name_gradients(graph: Graph, query: Query) -> None:
    """Name the gradients and tangents that tensors hold, if they have no name of their own. What is drawn of a `.grad`
    stands beside its tensor."""
    versions = grouped((node.number, node) for node in graph.nodes.values() if node.kind in (m.LEAF, m.TENSOR))
    for of, is_grad in ((query.tensors.grad, True), (query.tensors.tangent, False)):
        for tensor in sorted(versions):
            held, holder = versions.get(of(tensor, graph.at), ()), versions[tensor][0]
            for part in held:
                part.grad_of = holder.called if is_grad else part.grad_of
                part.name = part.name or part.called
            if held and is_grad and not held[0].requires_grad:
                held[0].pair = holder.id


def _fill_flows(
    graph: Graph, query: Query, backward_pass: PassInfo
) -> tuple[dict[str, Snapshot | None], dict[str, Accumulated]]:
    """Fill in the gradients that moved along the edges in a pass. Returns those that arrived at each grad_fn, and the
    event at which each AccumulateGrad added its own."""
    trace, ids = query.trace, Ids().node
    arrived: dict[str, Snapshot | None] = {}
    added: dict[str, Accumulated] = {}
    edges = grouped((edge.source, edge) for edge in graph.edges if edge.kind == m.GRAD)
    for event in _events_of(query, backward_pass):
        node = graph.nodes.get(ids[event.node])
        if node is None:
            continue
        if isinstance(event, Accumulated):
            node.accumulated = True
            added[node.id] = event
        elif isinstance(event, Received):
            node.ran = True
            arrived[node.id] = trace.snapshot(event.gradients[0], event.index)
        else:
            flows = [flow.gradient for flow in event.flows if flow.node]
            for edge, gradient in zip(edges.get(node.id, ()), flows, strict=False):
                edge.gradient, edge.value = gradient, trace.snapshot(gradient, event.index)
    return arrived, added


def _fill_gradients(graph: Graph, query: Query, backward_pass: PassInfo) -> None:
    """Fill in the gradients of a pass, along the edges and at leaves and roots."""
    trace, ids = query.trace, Ids().node
    arrived, added = _fill_flows(graph, query, backward_pass)
    for leaf in graph.nodes.values():
        if leaf.grad is not None and leaf.pair in added:
            leaf.added = added_to(query, added[leaf.pair], graph.at)
            leaf.cleared = None if leaf.added else cleared_before(query, added[leaf.pair])
        if leaf.pair in arrived and leaf.kind == m.LEAF and not (leaf.has_grad and graph.nodes[leaf.pair].accumulated):
            leaf.reached = arrived[leaf.pair]
    between_ranks = on_gradients(query, backward_pass)
    for leaf in graph.nodes.values() if between_ranks else ():
        if leaf.is_leaf and not leaf.overwritten and leaf.number in between_ranks:
            leaf.collectives = _collectives(between_ranks[leaf.number], query.trace.meta.get("world", ""))
    for root in query.passes.began(backward_pass.number).roots:
        if ids[root.node] in graph.nodes:
            graph.nodes[ids[root.node]].upstream = trace.snapshot(root.gradient, backward_pass.first)


def _collectives(names: list[str], world: str) -> str:
    """The collectives that a gradient went through, in a few words: `all_reduce · 2 ranks`."""
    parts = [name if count == 1 else f"{name} ×{count}" for name, count in Counter(names).items()]
    return ", ".join(parts) + (f" · {world} ranks" if world else "")


def _events_of(query: Query, backward_pass: PassInfo) -> list[Received | Produced | Accumulated]:
    """The events at nodes in a pass, in order."""
    last = query.passes.last(backward_pass)
    events: list[Received | Produced | Accumulated] = []
    for kind in (Kind.RECEIVED, Kind.PRODUCED, Kind.ACCUMULATED):
        table = query.trace.table(kind)
        first, end = np.searchsorted(table.events, [backward_pass.first, last + 1])
        of_pass = table.events[first:end][table["in_pass"][first:end] == backward_pass.number]
        events += [table.object(event) for event in of_pass.tolist()]
    return sorted(events, key=lambda event: event.index)


# What ranks exchange in a pass where no op of the graph shows it: the collectives that a function of the program's own
# calls in its forward or its backward, and the tensors that were sent to another rank or came from one.


class _Exchanges:
    def __init__(self, graph: Graph, query: Query, backward_pass: PassInfo) -> None:
        self.query, self.trace, self.backward_pass = query, query.trace, backward_pass
        self.nodes = graph.nodes
        self.ops = {node.number: node for node in graph.nodes.values() if node.kind == OP}
        self.op_events = sorted(self.ops)
        self.tensors = {node.number: node for node in graph.nodes.values() if node.kind in (LEAF, TENSOR)}
        self.gradients = {query.tensors.grad(number, graph.at): node for number, node in self.tensors.items()}
        self.upstream = {
            root.gradient: graph.nodes.get(Ids().node[root.node])
            for root in query.passes.began(backward_pass.number).roots
            if root.gradient
        }

    def calls(self) -> Iterator[CollectiveCalled]:
        """The calls that may belong to a node: those since the pass before the graph's first op and until the pass
        after this one, and all of the graph's tensors."""
        passes = self.query.passes
        begin = min([self.backward_pass.first, *self.op_events[:1]])
        first, _ = passes.between(begin)
        _, end = passes.between(passes.last(self.backward_pass) + 1)
        gradients = (number for number in self.gradients if number)
        return calls_around(self.query, first, end - 1, {*self.tensors, *self.upstream, *gradients})

    def note(self, call: CollectiveCalled) -> None:
        """Note a call at the node that it belongs to, if there is one."""
        if call.how in COLLECTIVES:
            node = self._around(call)
            self._add(node, Exchange(self._collective(call)))
        elif call.how in (SEND, RECEIVE) and call.tensors:
            node, whose = self._exchanged(call.tensors[0])
            self._add(node, Exchange(call.how, whose, _other_rank(call), call.tensors[0]))

    @staticmethod
    def _add(node: Node | None, exchange: Exchange) -> None:
        if node is not None and exchange not in node.exchanges:
            node.exchanges = (*node.exchanges, exchange)

    def _collective(self, call: CollectiveCalled) -> str:
        if is_of_some_ranks(call.args):
            return f"{call.how} in a group"
        world = self.trace.meta.get("world", "")
        return f"{call.how} · {world} ranks" if world else call.how

    def _around(self, call: CollectiveCalled) -> Node | None:
        """The op or the grad_fn inside which a collective was called."""
        if self.backward_pass.first < call.index <= self.query.passes.last(self.backward_pass):
            return self._running(call.index)
        place = bisect_right(self.op_events, call.index)
        if place == len(self.op_events) or call.index + 1 in self.ops:  # it is an op of the graph itself
            return None
        op = self.ops[self.op_events[place]]
        around = [site.place for site in self.query.places.callers(call.site)]
        where = [(one.file, one.line, one.col, one.end_col) for one in around]
        return op if (op.file, op.line, op.col, op.end_col) in where else None

    def _running(self, event: int) -> Node | None:
        """The grad_fn that was running at an event of the pass."""
        received, produced = self.trace.table(Kind.RECEIVED), self.trace.table(Kind.PRODUCED)
        row = received.events.searchsorted(event) - 1
        done = produced.events.searchsorted(event) - 1
        if row < 0 or (done >= 0 and produced.events[done] > received.events[row]):
            return None
        return self.nodes.get(Ids().node[int(received["node"][row])])

    def _exchanged(self, tensor: int) -> tuple[Node | None, str]:
        """The node of a tensor that was sent or received, and what of the node it was."""
        if node := self.upstream.get(tensor):
            return node, "gradient"
        if node := self.tensors.get(tensor):
            return node, ""
        if node := self.gradients.get(tensor):
            return node, ".grad"
        base = self.query.tensors.base(State(tensor, FIRST))
        return (self.tensors.get(base.tensor) if base is not None else None), ""


def _other_rank(call: CollectiveCalled) -> int | None:
    """The rank that a call sends to or receives from; None if the call does not name it."""
    arguments = dict(part.split("=") for part in call.args.split(", ") if "=" in part)
    rank = arguments.get("dst" if call.how == SEND else "src", "")
    return int(rank) if rank.isdecimal() else None
