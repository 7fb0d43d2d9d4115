"""The backward passes: their events, roots and nesting, and the gradients that moved from node to node in one pass."""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache, cached_property, lru_cache
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from gradviz.events.event_layout import LAYOUTS
from gradviz.events.field_types import Root
from gradviz.events.kinds import Kind, PassBegan, PassEnded, Produced
from gradviz.query.nodes import Nodes
from gradviz.query.sorted_tables import Lookup, Nesting
from gradviz.sets import contained, grouped
from gradviz.tracefile import PassInfo, Trace
from gradviz.tracefile.columns import Table


class Passes(Lookup):
    """Look-ups about the passes of one trace."""

    def __init__(self, trace: Trace, nodes: Nodes) -> None:
        super().__init__(trace)
        self.nodes = nodes
        self.began = lru_cache(maxsize=64)(self._began)
        """The event that began a pass, by its number, with the tensors of its roots."""
        self.led_to = lru_cache(maxsize=8)(self._led_to)
        """For each output of a node, the gradients that the graph of a pass, by its number, can lead to it."""

    @cached_property
    def by_number(self) -> dict[int, PassInfo]:
        """The passes by number."""
        return {backward_pass.number: backward_pass for backward_pass in self.trace.passes}

    def _began(self, number: int) -> PassBegan:
        backward_pass = self.trace.find_pass(number)
        assert backward_pass is not None
        event = self.trace.event(backward_pass.first)
        assert isinstance(event, PassBegan)
        return self.with_tensors(event)

    def with_tensors(self, began: PassBegan) -> PassBegan:
        """The same event with the tensors of its roots. The event has only the node of a root that is a
        GradientEdge."""
        return replace(began, roots=tuple(map(self._with_tensor, began.roots)))

    def _with_tensor(self, root: Root) -> Root:
        outputs = self.nodes.outputs(root.node)
        known = root.tensor or root.nr >= len(outputs)
        return root if known else root._replace(tensor=outputs[root.nr])

    def starts(self, number: int) -> tuple[Root, ...]:
        """The roots by which a pass enters the recorded graph. If none of their nodes is known (`--scope`), they are
        the nodes that received a gradient which no recorded node produced."""
        roots = self.began(number).roots
        if not roots or any(self.nodes.made(root.node) is not None or self.nodes.leaf(root.node) for root in roots):
            return roots
        received, produced = self.trace.table(Kind.RECEIVED), self.trace.table(Kind.PRODUCED)
        targets = produced.lists("flows")
        led_to = targets.elements[produced["in_pass"][targets.owners] == number, 0]
        entered = received["node"][received["in_pass"] == number]
        inner = [node for node in entered[~contained(entered, led_to)].tolist() if self.nodes.made(node) is not None]
        return tuple(self._with_tensor(Root(node, 0, 0, 0)) for node in inner) or roots

    def is_done(self, backward_pass: PassInfo) -> bool:
        """Whether a pass ended, and not by an exception."""
        return backward_pass.last is not None and int(self.trace.kinds[backward_pass.last - 1]) != Kind.ERROR

    def _led_to(self, number: int) -> Counter[tuple[int, int]]:
        roots = self.began(number).roots
        counts = Counter((root.node, root.nr) for root in roots)
        for node in self.nodes.walk([root.node for root in roots]):
            counts.update((edge.node, edge.nr) for edge in self.nodes.edges(node))
        return counts

    def last(self, backward_pass: PassInfo) -> int:
        """The last event of a pass; the last event of the trace if the pass did not end."""
        return self.trace.count - 1 if backward_pass.last is None else backward_pass.last

    @cached_property
    def roots(self) -> frozenset[int]:
        """The tensors that passes began at, as far as known."""
        return frozenset(self.trace.table(Kind.PASS_BEGAN).lists("roots").elements[:, 2].tolist())

    @cached_property
    def through_passes(self) -> set[int]:
        """The passes that ran nodes which other passes made: their roots were computed from gradients."""
        ops, received = self.trace.table(Kind.OP), self.trace.table(Kind.RECEIVED)
        inner = [node for op in ops.events[ops["in_pass"] > 0].tolist() for node in self.nodes.of_op(op)]
        return set(received["in_pass"][contained(received["node"], inner)].tolist())

    @cached_property
    def nesting(self) -> Nesting:
        """The nesting of passes, for each thread."""
        return Nesting(self.trace, Kind.PASS_BEGAN, Kind.PASS_ENDED)

    @cached_property
    def numbers(self) -> np.ndarray:
        """The innermost pass that each event belongs to, 0 if none: the pass that the event names, else the pass that
        its thread is in."""
        trace = self.trace
        pass_numbers = np.zeros(trace.count, np.int64)
        first = self.nesting.innermost(np.arange(trace.count), trace.threads)
        began = trace.indices(Kind.PASS_BEGAN)
        if len(began):
            numbers = np.array([self._by_first.get(event, 0) for event in began.tolist()])
            pass_numbers = np.where(first >= 0, numbers[np.searchsorted(began, np.maximum(first, 0))], 0)
        for kind, layout in LAYOUTS.items():
            if "in_pass" in layout.fields:
                table = trace.table(kind)
                named = table["in_pass"]
                pass_numbers[table.events[named > 0]] = named[named > 0]
        return pass_numbers

    def at(self, k: int) -> PassInfo | None:
        """The innermost pass that event k belongs to; None if there is none."""
        event = self.trace.event(k)
        number = event.number if isinstance(event, (PassBegan, PassEnded)) else getattr(event, "in_pass", 0)
        if not number:
            around = self.nesting.around(k, event.thread)
            number = self._by_first.get(around[-1], 0) if around else 0
        return self.trace.find_pass(number) if number else None

    @cached_property
    def _by_first(self) -> dict[int, int]:
        return {backward_pass.first: backward_pass.number for backward_pass in self.trace.passes}

    def is_outer(self, backward_pass: PassInfo) -> bool:
        """Whether a pass ran inside no other, as a pass in the backward of a custom Function does."""
        thread = self.trace.event(backward_pass.first).thread
        return len(self.nesting.around(backward_pass.first, thread)) < 2

    def contains(self, events: np.ndarray) -> np.ndarray:
        """Whether each of these events is between the beginning and the end of a pass on any thread."""
        firsts, lasts = self._spans
        at = np.searchsorted(firsts, events, side="right") - 1
        if not len(firsts):
            return np.zeros(len(events), bool)
        return (at >= 0) & (events <= lasts[np.maximum(at, 0)])

    @cached_property
    def _spans(self) -> tuple[np.ndarray, np.ndarray]:
        """The first events of the passes, and the highest last event of all passes up to each pass."""
        firsts, lasts = self.trace.pass_spans
        return firsts, np.maximum.accumulate(np.where(lasts < 0, self.trace.count - 1, lasts))

    def between(self, event: int) -> tuple[int, int]:
        """The stretch around an event in which no pass begins or ends: its first event, and the event after its
        last."""
        firsts, lasts = self.trace.pass_spans
        ended = lasts[(lasts >= 0) & (lasts < event)]
        begin = int(np.searchsorted(firsts, event))
        first = int(ended.max()) + 1 if len(ended) else 0
        return first, max(int(firsts[begin]) if begin < len(firsts) else self.trace.count, event + 1)

    def are_a_loop(self, passes: list[PassInfo]) -> bool:
        """Whether several passes have the same structure, each on its own graph."""
        roots: dict[str, set[tuple[int, ...]]] = {}
        for backward_pass in passes:
            if backward_pass.digest:
                begun = tuple(root.node for root in self.began(backward_pass.number).roots)
                roots.setdefault(backward_pass.digest, set()).add(begun)
        return any(len(graphs) > 1 for graphs in roots.values())


def ranges(numbers: Iterable[int]) -> str:
    """Numbers in ascending order: `1 to 3`, `19 to 22, 24, 56 to 60`."""
    stretches: list[list[int]] = []
    for number in numbers:
        if stretches and number == stretches[-1][-1] + 1:
            stretches[-1][1:] = [number]
        else:
            stretches.append([number])
    return ", ".join(" to ".join(map(str, ends)) for ends in stretches)


class Delivery(NamedTuple):
    """A gradient that arrived at a node. `event` is the Produced event that delivered it, and `position` the edge; for
    a root `event` is the PassBegan of the pass, and `position` the root."""

    event: int
    position: int
    gradient: int


def left_out(trace: Trace, number: int) -> str:
    """The sentence about a pass of which, unlike of others, no details were recorded; empty if they were."""
    known = trace.in_detail
    if number in known or not known:
        return ""
    at = bisect_right(known, number)
    near = " or ".join(map(str, known[max(at - 1, 0) : at + 1]))
    how = recording(trace, f"--passes {number}")
    return f"pass {number} was not recorded in detail: {how} records it; the nearest that was is {near}"


def each_left_out(trace: Trace) -> str:
    """The sentence about the passes of which a choice of passes recorded no details; empty if there are none."""
    is_whole = "passes" not in trace.meta or trace.passes_in_detail == trace.passes_begun
    return "" if is_whole else f"{recording(trace, '--passes N')} records pass N"


def recording(trace: Trace, options: str) -> str:
    """The command that records the program of a trace with other options; what is no plain path or module is SCRIPT."""
    program = trace.meta.get("program", "")
    is_plain = re.fullmatch(r'(-m )?([\w@%+=:,./\\-]+|"[^"$`!\\]*")( ARGUMENTS)?', program)
    return f"gradviz trace {options} {program if is_plain and program.isprintable() else 'SCRIPT'}"


class Wait(NamedTuple):
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
        self._arrived_by_output = cache(
            lambda node: grouped((self._output_of(one), one) for one in self._arrived(node))
        )
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
        rows = np.flatnonzero(self.real & (self.events <= k) & (self.taken > k)).tolist()
        return grouped((int(self.targets[row]), self._delivery(row)) for row in rows)

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
        return grouped(zip(*(column.tolist() for column in self.received), strict=True))

    def _delivery(self, row: int) -> Delivery:
        return Delivery(int(self.events[row]), int(self.positions[row]), int(self.gradients[row]))
