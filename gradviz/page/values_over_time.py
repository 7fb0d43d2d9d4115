"""The values of the tensors of a page over time, and the gradients along its edges."""

from __future__ import annotations

import math
from functools import lru_cache, partial
from typing import Any

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.graph import model as m
from gradviz.graph.model import Graph, Node
from gradviz.query import FIRST, Query
from gradviz.query.changes import grad_changes, value_changes
from gradviz.tracefile import Snapshot
from gradviz.words import numbers
from gradviz.words.numbers import has_odd, value_label

_NOT_KEPT = "value not kept", "", None, 0
Entry = list[Any]  # [event, text, text for a node, norm or None, 1 if NaN or inf]


class States:
    """Follows tensors over ranges of events."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.trace = query.trace
        self.value_changes = lru_cache(maxsize=4096)(partial(value_changes, query))
        self.grad_changes = lru_cache(maxsize=4096)(partial(grad_changes, query))

    def of(self, tensors: set[int], shown: np.ndarray) -> dict[int, dict[str, list[Entry]]]:
        """For each tensor, its values (`v`) and the values of its `.grad` (`g`) at the events that are `shown`. An
        entry is valid from its event on; an entry with only an event means that there is no value."""
        return {
            tensor: {"v": self._values(tensor, shown), "g": self._grads(tensor, shown)}
            for tensor in sorted(tensors)
        }

    def _values(self, tensor: int, shown: np.ndarray) -> list[Entry]:
        born = self.trace.born(tensor)
        entries: list[Entry] = []
        for k in _within(self.value_changes(tensor), shown):
            there = born is not None and born <= k
            _add(entries, self._entry(k, self.query.memory.value(tensor, k) if there else None))
        return entries

    def _grads(self, tensor: int, shown: np.ndarray) -> list[Entry]:
        changes = self.grad_changes(tensor)
        if not len(changes):
            return []
        entries: list[Entry] = []
        for k in _within(changes, shown):
            moment = self.query.at(k)
            grad = moment.grad(tensor)
            _add(entries, self._there(k, moment.value(grad)) if grad else [k])
        return entries

    def _entry(self, k: int, snapshot: Snapshot | None) -> Entry:
        return [k] if snapshot is None else [k, *_described(snapshot)]

    def _there(self, k: int, snapshot: Snapshot | None) -> Entry:
        """The entry of a gradient that is there, whether or not its value was recorded."""
        return [k, *_NOT_KEPT] if snapshot is None else self._entry(k, snapshot)

    def along(self, graph: Graph, first: int, last: int) -> list[Entry]:
        """The gradients along `grad` edges: [edge, event, text, text for the edge, norm, odd]."""
        edges: dict[str, list[int]] = {}
        for position, edge in enumerate(graph.edges):
            if edge.kind == m.GRAD:
                edges.setdefault(edge.source, []).append(position)
        produced = self.trace.table(Kind.PRODUCED)
        entries = []
        for k in produced.events[(produced.events >= first) & (produced.events <= last)].tolist():
            event = produced.object(k)
            flows = [flow.gradient for flow in event.flows if flow.node]
            for position, gradient in zip(edges.get(f"n{event.node}", ()), flows, strict=False):
                if gradient:
                    entries.append([position, *self._there(k, self.trace.snapshot(gradient, k))])
        return entries


@lru_cache(maxsize=1 << 15)  # a parameter has one value in several passes
def _described(snapshot: Snapshot) -> tuple[str, str, float | None, int]:
    """The text of a value, its text for a node, its norm, and 1 if it has a NaN or an infinity."""
    return numbers.value(snapshot), value_label(snapshot), norm(snapshot), int(has_odd(snapshot))


def _within(changes: np.ndarray, shown: np.ndarray) -> list[int]:
    """The first of the `shown` events, and for each later one the last of the `changes` since the previous shown
    event."""
    first, last = int(shown[0]), int(shown[-1])
    changes = changes[(changes > first) & (changes <= last)]
    if not len(changes):
        return [first]
    seen_at = np.searchsorted(shown, changes)
    is_last = np.append(seen_at[1:] != seen_at[:-1], True)[: len(changes)]
    return [first, *changes[is_last].tolist()]


def _add(entries: list[Entry], entry: Entry) -> None:
    if (entries[-1][1:] if entries else []) != entry[1:]:
        entries.append(entry)


def norm(snapshot: Snapshot) -> float | None:
    """The Euclidean norm of a tensor; None if its values were not kept or are not all finite."""
    stats = snapshot.stats
    if stats is None or stats.nan or stats.inf:
        return None
    size = stats.rms * math.sqrt(math.prod(snapshot.shape))
    return float(f"{size:.9g}") if math.isfinite(size) else None


def spans(graph: Graph, query: Query) -> dict[str, tuple[int, int | None]]:
    """For each node, the event from which on it exists. For a tensor that was changed in place later, also the last
    event of this version."""
    spans: dict[str, tuple[int, int | None]] = {}
    following: dict[int, int] = {}  # tensor -> the first event of its next version
    for node in reversed(graph.nodes.values()):
        since = _since(node, query)
        until = None
        if node.kind in (m.LEAF, m.TENSOR):
            later = following.get(node.number)
            until = None if later is None else later - 1
            following[node.number] = since
        spans[node.id] = since, until
    for node in graph.nodes.values():  # a leaf's AccumulateGrad exists from the same event on
        if node.pair in spans and node.is_leaf:
            spans[node.pair] = spans[node.id][0], None
    return spans


def _since(node: Node, query: Query) -> int:
    if node.kind == m.OP:
        return node.number
    if node.kind == m.GROUP:
        return -1
    if node.kind == m.GRAD_FN:
        made = query.nodes.made(node.number)
        return -1 if made is None else made
    if node.since != FIRST:
        return node.since
    born = query.trace.born(node.number)
    return -1 if born is None else born
