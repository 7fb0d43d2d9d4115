"""What the tensors of a page hold from event to event, and which gradients went along its edges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from gradviz.draw.text import has_odd, value
from gradviz.events.kinds import Kind, OpRan, Produced
from gradviz.graph import model as m
from gradviz.graph.history import History
from gradviz.graph.model import Graph, Node
from gradviz.query.moment import Moments
from gradviz.tracefile import Snapshot

_CHANGES = (
    Kind.TENSOR,
    Kind.OP,
    Kind.MUTATED,
    Kind.ACCUMULATED,
    Kind.RETAINED,
    Kind.GRAD_ASSIGNED,
)
_WRITES = {Kind.MUTATED, Kind.ACCUMULATED}

Entry = list[Any]  # [event, text, text for a node, norm or None, 1 where there is NaN or inf]


class States:
    """Follows tensors through a stretch of events."""

    def __init__(self, moments: Moments, written: Callable[[Snapshot | None], str]) -> None:
        self.moments = moments
        self.trace = moments.trace
        self.written = written

    def of(self, tensors: set[int], first: int, last: int) -> dict[int, dict[str, list[Entry]]]:
        """For each tensor its values (`v`) and those of its `.grad` (`g`), as entries that hold from their event
        on; an entry of the event alone says that there is none."""
        found: dict[int, dict[str, list[Entry]]] = {tensor: {"v": [], "g": []} for tensor in tensors}
        grads: dict[int, int] = {}
        for k, changed in self._changes(tensors, grads, first, last):
            moment = self.moments.at(k)
            for tensor in changed:
                born = self.trace.born(tensor)
                grads[tensor] = moment.grad(tensor)
                _add(
                    found[tensor]["v"],
                    self._entry(k, moment.value(tensor) if born is not None and born <= k else None),
                )
                _add(found[tensor]["g"], self._entry(k, moment.value(grads[tensor])))
        return found

    def _changes(
        self, tensors: set[int], grads: dict[int, int], first: int, last: int
    ) -> Iterator[tuple[int, Iterable[int]]]:
        """The events after which tensors may hold something else, and which; all at the first."""
        yield first, sorted(tensors)
        shared = self.moments.memory.shared
        told = self.trace.indices(*_CHANGES)
        told = told[(told > first) & (told <= last)]
        for k in told.tolist():
            kind, row = self.trace.kinds[k], self.trace.events[k]
            if kind == Kind.OP:
                event = self.trace.event(k)
                assert isinstance(event, OpRan)
                changed = tensors.intersection(event.outputs)
            else:
                changed = tensors.intersection([int(row["subject"])])
            if kind in _WRITES:
                written = {int(row["subject"]), int(row["object"])} - {0}
                through = bool(shared & written)
                changed |= {
                    tensor
                    for tensor in tensors
                    if grads.get(tensor, 0) in written
                    or (through and (tensor in shared or grads.get(tensor, 0) in shared))
                }
            if changed:
                yield k, sorted(changed)

    def _entry(self, k: int, snapshot: Snapshot | None) -> Entry:
        if snapshot is None:
            return [k]
        return [k, self.written(snapshot), value(snapshot), norm(snapshot), int(has_odd(snapshot))]

    def along(self, graph: Graph, first: int, last: int) -> list[Entry]:
        """Which gradient went along which `grad` edge: [edge, event, text, text for the edge, norm, odd]."""
        edges: dict[str, list[int]] = {}
        for position, edge in enumerate(graph.edges):
            if edge.kind == m.GRAD:
                edges.setdefault(edge.source, []).append(position)
        told = self.trace.indices(Kind.PRODUCED)
        found = []
        for k in told[(told >= first) & (told <= last)].tolist():
            event = self.trace.event(k)
            assert isinstance(event, Produced)
            flows = [g for target, g in zip(event.targets, event.gradients, strict=True) if target]
            for position, gradient in zip(edges.get(f"n{event.node}", ()), flows, strict=False):
                if gradient:
                    found.append([position, *self._entry(k, self.trace.snapshot(gradient, k))])
        return found


def _add(entries: list[Entry], entry: Entry) -> None:
    if (entries[-1][1:] if entries else []) != entry[1:]:
        entries.append(entry)


def norm(snapshot: Snapshot) -> float | None:
    """The Euclidean norm of a tensor, None where its values were not kept or are not all finite."""
    stats = snapshot.stats
    if stats is None or stats.nan or stats.inf or np.isnan(stats.rms):
        return None
    return float(f"{stats.rms * float(np.sqrt(np.prod(snapshot.shape))):.6g}")


def spans(graph: Graph, history: History) -> dict[str, tuple[int, int | None]]:
    """From which event on each node of a graph is there, and for a tensor that was written over until which."""
    found: dict[str, tuple[int, int | None]] = {}
    following: dict[int, int] = {}  # tensor -> since when its later version is
    for node in reversed(graph.nodes.values()):
        since = _since(node, history)
        until = None
        if node.kind in (m.LEAF, m.TENSOR):
            later = following.get(node.number)
            until = None if later is None else later - 1
            following[node.number] = since
        found[node.id] = since, until
    for node in graph.nodes.values():  # a leaf's AccumulateGrad is there with it
        if node.pair in found and node.kind == m.LEAF:
            found[node.pair] = found[node.id][0], None
    return found


def _since(node: Node, history: History) -> int:
    if node.kind == m.OP:
        return node.number
    if node.kind == m.GRAD_FN:
        made = history.node_op(node.number)
        return -1 if made is None else made
    for event in history.mutations(node.number):
        if node.id == f"t{node.number}v{history.mutation(event).version}":
            return event
    born = history.trace.born(node.number)
    return -1 if born is None else born
