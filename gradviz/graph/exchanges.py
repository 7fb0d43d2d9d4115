"""What ranks exchange in a pass where no op of the graph shows it: the collectives that a function of the program's own
calls in its forward or its backward, and the tensors that were sent to another rank or came from one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from gradviz.events.kinds import CollectiveCalled, Kind
from gradviz.graph.ids import Ids
from gradviz.graph.model import LEAF, OP, RECEIVE, SEND, TENSOR, Exchange, Graph, Node
from gradviz.query import FIRST, Query, State
from gradviz.query.collective_calls import COLLECTIVES, calls_around, is_of_some_ranks
from gradviz.tracefile import PassInfo


def note_exchanges(graph: Graph, query: Query, backward_pass: PassInfo) -> None:
    """Fill in the `exchanges` of the nodes of a graph of one pass."""
    if len(query.trace.indices(Kind.COLLECTIVE)):
        exchanges = _Exchanges(graph, query, backward_pass)
        for call in exchanges.calls():
            exchanges.note(call)


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
