"""How gradients went from node to node in one backward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gradviz.events.kinds import Kind, PassBegan

if TYPE_CHECKING:
    from gradviz.graph.moment import Moments
    from gradviz.tracefile import Trace


@dataclass(frozen=True, slots=True)
class Delivery:
    """A gradient that came to a node: from the Produced (edge `position` of it) or the PassBegan `event`."""

    event: int
    position: int
    gradient: int


class Flow:
    """The gradients that one pass hands from node to node."""

    def __init__(self, moments: Moments, began: int, last: int) -> None:
        trace = moments.trace
        thread = int(trace.events["head"][began]) >> 16
        span = np.arange(began, last + 1)
        kinds = trace.kinds[began : last + 1]
        threads = trace.events["head"][began : last + 1] >> 16
        own = (threads == thread) | ~np.isin(threads, list(moments.passes.depths))
        for inner, end in _inner_passes(moments, began, last, thread):
            own[inner - began : end + 1 - began] = False
        received = span[own & (kinds == Kind.RECEIVED)]
        self._received = (trace.events["subject"][received].astype(np.int64), received)
        self._deliver(trace, began, span[own & (kinds == Kind.PRODUCED)])

    def _deliver(self, trace: Trace, began: int, produced: np.ndarray) -> None:
        start = trace.event(began)
        assert isinstance(start, PassBegan)
        begun = list(zip(start.roots, start.gradients, strict=False))
        roots, seeds = np.array(begun, np.int64).reshape(-1, 2).T
        links, counts = trace.links(produced)
        half = counts // 2
        starts = np.cumsum(counts) - counts
        position = np.arange(half.sum()) - np.repeat(np.cumsum(half) - half, half)
        target = np.repeat(starts, half) + position
        self.targets = np.concatenate([roots, links[target].astype(np.int64)])
        self.gradients = np.concatenate([seeds, links[target + np.repeat(half, half)].astype(np.int64)])
        self.events = np.concatenate([np.full(len(roots), began), np.repeat(produced, half)])
        self.positions = np.concatenate([np.arange(len(roots)), position])
        nodes, events = self._received
        order = np.argsort(nodes, kind="stable")
        at = np.searchsorted(nodes[order], self.targets)
        known = at < len(nodes)
        known[known] &= nodes[order][at[known]] == self.targets[known]
        self.taken = np.full(len(self.targets), np.iinfo(np.int64).max)
        self.taken[known] = events[order][at[known]]
        self.real = (self.targets > 0) & (self.gradients > 0)

    def waiting(self, k: int) -> dict[int, list[Delivery]]:
        """The gradients that have come to each node and that it has not taken yet."""
        found: dict[int, list[Delivery]] = {}
        for row in np.flatnonzero(self.real & (self.events <= k) & (self.taken > k)).tolist():
            found.setdefault(int(self.targets[row]), []).append(self._delivery(row))
        return found

    def in_flight(self, k: int) -> int:
        """How many gradients wait at nodes."""
        return int(np.count_nonzero(self.real & (self.events <= k) & (self.taken > k)))

    def arrivals(self, node: int, k: int) -> list[Delivery]:
        """The gradients that have come to a node, taken or not."""
        rows = np.flatnonzero(self.real & (self.targets == node) & (self.events <= k))
        return [self._delivery(row) for row in rows.tolist()]

    def receipt(self, node: int, k: int) -> int | None:
        """The event at which a node took its gradients."""
        nodes, events = self._received
        found = events[(nodes == node) & (events <= k)]
        return int(found[-1]) if len(found) else None

    def _delivery(self, row: int) -> Delivery:
        return Delivery(int(self.events[row]), int(self.positions[row]), int(self.gradients[row]))


def _inner_passes(moments: Moments, began: int, last: int, thread: int) -> list[tuple[int, int]]:
    """The first and last event of the passes that began within another."""
    begins = moments.trace.indices(Kind.PASS_BEGAN)
    within = begins[
        np.searchsorted(begins, began, side="right") : np.searchsorted(begins, last, side="right")
    ]
    inner = [moments.pass_at[first] for first in within.tolist()]
    return [
        (run.first, last if run.last is None else min(run.last, last))
        for run in inner
        if run.thread == thread
    ]
