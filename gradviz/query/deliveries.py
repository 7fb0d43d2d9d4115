"""The movement of gradients from node to node in one backward pass."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from operator import attrgetter

import numpy as np

from gradviz.events.kinds import Kind, PassBegan, Produced
from gradviz.query.nodes import Nodes
from gradviz.tracefile import PassInfo, Trace
from gradviz.tracefile.columns import Table


@dataclass(frozen=True, slots=True)
class Delivery:
    """A gradient that arrived at a node. `event` is the Produced event that delivered it, and `position` the edge; for
    a root `event` is the PassBegan of the pass, and `position` the root."""

    event: int
    position: int
    gradient: int


@dataclass(frozen=True, slots=True)
class Wait:
    """A stretch of events in which the same gradients wait at an output of a node. It begins at `first` and ends before
    `end`, the event at which another gradient arrives or the node receives them; `end` is None if it was not
    recorded."""

    node: int
    nr: int
    arrivals: list[Delivery]
    first: int
    end: int | None


class Deliveries:
    """The gradients that moved from node to node in one pass."""

    def __init__(self, trace: Trace, nodes: Nodes, backward_pass: PassInfo) -> None:
        self.trace = trace
        self.nodes = nodes
        self.backward_pass = backward_pass
        self._arrived = cache(self._all_arrived)
        self._arrived_by_output = cache(self._all_by_output)
        received = trace.table(Kind.RECEIVED)
        rows = self._own(received)
        self.received = received["node"][rows], received.events[rows]
        self._deliver(trace)

    def _own(self, table: Table) -> np.ndarray:
        """The rows of a table that belong to this pass."""
        last = self.trace.count if self.backward_pass.last is None else self.backward_pass.last + 1
        first, end = np.searchsorted(table.events, [self.backward_pass.first, last])
        return first + np.flatnonzero(table["in_pass"][first:end] == self.backward_pass.number)

    def _deliver(self, trace: Trace) -> None:
        began = trace.event(self.backward_pass.first)
        assert isinstance(began, PassBegan)
        roots = np.array([(root.node, root.gradient) for root in began.roots], np.int64).reshape(-1, 2)
        produced = trace.table(Kind.PRODUCED)
        rows = self._own(produced)
        flows = produced.lists("flows")
        counts = flows.counts[rows]
        position = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        flowing = flows.elements[np.repeat(flows.starts[rows], counts) + position]
        self.targets, self.gradients = np.concatenate([roots, flowing]).T
        self.events = np.concatenate(
            [np.full(len(roots), self.backward_pass.first), np.repeat(produced.events[rows], counts)]
        )
        self.positions = np.concatenate([np.arange(len(roots)), position])
        nodes, events = self.received
        order = np.argsort(nodes, kind="stable")
        at = np.searchsorted(nodes[order], self.targets)
        known = at < len(nodes)
        known[known] &= nodes[order][at[known]] == self.targets[known]
        self.taken = np.full(len(self.targets), np.iinfo(np.int64).max)
        self.taken[known] = events[order][at[known]]
        self.real = (self.targets > 0) & (self.gradients > 0)

    def waiting(self, k: int) -> dict[int, list[Delivery]]:
        """The gradients that have arrived at each node by event k and that it has not received yet."""
        by_node: dict[int, list[Delivery]] = {}
        for row in np.flatnonzero(self.real & (self.events <= k) & (self.taken > k)).tolist():
            by_node.setdefault(int(self.targets[row]), []).append(self._delivery(row))
        return by_node

    def waits(self) -> Iterator[Wait]:
        """All stretches in which gradients wait. Those at one event have the order of the nodes in `waiting`."""
        never = np.iinfo(np.int64).max
        taken = dict(zip(self.targets[self.real].tolist(), self.taken[self.real].tolist(), strict=True))
        for node, end in taken.items():
            for nr in range(max(len(self.nodes.tensors(node)), 1)):
                came = self.arrivals_at(node, nr, end - 1)
                changes = [*dict.fromkeys(delivery.event for delivery in came), end]
                for first, following in pairwise(changes):
                    until = None if following == never else following
                    yield Wait(node, nr, self._up_to(came, first), first, until)

    def arrivals(self, node: int, k: int) -> list[Delivery]:
        """The gradients that have arrived at a node up to event k, whether or not it has received them."""
        return self._up_to(self._arrived(node), k)

    def arrivals_at(self, node: int, nr: int, k: int) -> list[Delivery]:
        """The gradients that have arrived up to event k at one output of a node, by its number."""
        if len(self.nodes.outputs(node)) < 2:
            return self.arrivals(node, k)
        return self._up_to(self._arrived_by_output(node).get(nr, []), k)

    def _up_to(self, arrived: list[Delivery], k: int) -> list[Delivery]:
        return arrived[: bisect_right(arrived, k, key=attrgetter("event"))]

    def _all_arrived(self, node: int) -> list[Delivery]:
        order, targets = self._by_target
        start, end = np.searchsorted(targets, [node, node + 1])
        return [self._delivery(row) for row in order[start:end].tolist()]

    def _all_by_output(self, node: int) -> dict[int, list[Delivery]]:
        by_output: dict[int, list[Delivery]] = {}
        for delivery in self._arrived(node):
            by_output.setdefault(self._output_of(delivery), []).append(delivery)
        return by_output

    @cached_property
    def _by_target(self) -> tuple[np.ndarray, np.ndarray]:
        """The rows of the delivered gradients, sorted by the node to which they went, and these nodes."""
        real = np.flatnonzero(self.real)
        order = real[np.argsort(self.targets[real], kind="stable")]
        return order, self.targets[order]

    def _output_of(self, delivery: Delivery) -> int:
        """The output of a node that a gradient belongs to."""
        event = self.trace.event(delivery.event)
        if isinstance(event, PassBegan):
            return event.roots[delivery.position].nr
        edges = self.nodes.edges(event.node) if isinstance(event, Produced) else ()
        return edges[delivery.position].nr if delivery.position < len(edges) else 0

    def receipt(self, node: int, k: int) -> int | None:
        """The event up to k at which a node received its gradients; None if it has not."""
        events = self._receipts.get(node, [])
        at = bisect_right(events, k)
        return events[at - 1] if at else None

    @cached_property
    def _receipts(self) -> dict[int, list[int]]:
        """The events at which each node received its gradients, in order."""
        by_node: dict[int, list[int]] = {}
        for node, event in zip(*(column.tolist() for column in self.received), strict=True):
            by_node.setdefault(node, []).append(event)
        return by_node

    def _delivery(self, row: int) -> Delivery:
        return Delivery(int(self.events[row]), int(self.positions[row]), int(self.gradients[row]))
