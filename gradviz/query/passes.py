"""The backward passes: their events, roots and nesting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property, lru_cache

import numpy as np

from gradviz.events.event_layout import LAYOUTS
from gradviz.events.field_types import Root
from gradviz.events.kinds import Kind, PassBegan, PassEnded
from gradviz.query.lookup import Lookup
from gradviz.query.nodes import Nodes
from gradviz.query.sorted_tables import Nesting
from gradviz.sets import contained
from gradviz.tracefile import PassInfo, Trace


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
        if not roots or any(
            self.nodes.made(root.node) is not None or self.nodes.leaf(root.node) for root in roots
        ):
            return roots
        received, produced = self.trace.table(Kind.RECEIVED), self.trace.table(Kind.PRODUCED)
        targets = produced.lists("flows")
        led_to = targets.elements[produced["in_pass"][targets.owners] == number, 0]
        entered = received["node"][received["in_pass"] == number]
        inner = [
            node
            for node in entered[~contained(entered, led_to)].tolist()
            if self.nodes.made(node) is not None
        ]
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
