"""The summary of a pass in training: its loss, the norm of each layer's gradient, and the relative change of the
layer by the step after it."""

import math
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import chain
from typing import Any

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.graph import model as m
from gradviz.graph.model import Graph, Node
from gradviz.page.page_texts import with_line
from gradviz.query import FIRST, Query
from gradviz.query.curves import by_place, changes_of_modules, gradients_of_modules, layers_of, losses, norm_of
from gradviz.query.writes import grad_changes, value_changes
from gradviz.sets import grouped
from gradviz.tracefile import PassInfo, Snapshot, Trace
from gradviz.words import Words, numbers
from gradviz.words.escape import plain, plain_name
from gradviz.words.numbers import has_odd, value_label

_MOST_LAYERS = 32  # the most bars; a network with more layers is summarised by outer modules


class PassSummaries:
    """The summaries of the passes of one run."""

    def __init__(self, words: Words) -> None:
        query, self.words = words.query, words
        self.query = query
        module_of = layers_of(query, _MOST_LAYERS)
        self.losses = by_place(losses(query))
        self.gradients = by_place(gradients_of_modules(query, module_of))
        self.changes = by_place(changes_of_modules(query, module_of))
        self.steps = query.trace.indices(Kind.STEPPED)

    def of(self, backward_pass: PassInfo | None) -> dict[str, Any] | None:
        """The summary of a pass, as data: `loss` (name, value), and `layers` (name, norm of the gradient, relative
        change); None for an unknown number, "odd" for one that is not finite. None if there is nothing to show."""
        if backward_pass is None:
            return None
        gradients, changes = self.gradients.get(backward_pass.number, {}), self._changes_after(backward_pass)
        losses_here = self.losses.get(backward_pass.number, {})
        # the line in the language of the page: `z (line 19)`
        named = {name: with_line(name, r"(?<=\()line ([0-9]+)(?=\)$)", self.words) for name in losses_here}
        loss = [[plain(named[name], 40), _told(value)] for name, value in losses_here.items()]
        layers = [
            [plain(name, 80), _told(norm), _told(changes[name]) if name in changes else None]
            for name, norm in gradients.items()
        ]
        return {"loss": loss[0] if loss else None, "layers": layers} if loss or layers else None

    def _changes_after(self, backward_pass: PassInfo) -> dict[str, float]:
        """The changes of the optimizers' steps between the end of a pass and the next pass."""
        following = self.query.trace.find_pass(backward_pass.number + 1)
        end = following.first if following is not None else self.query.trace.count
        first, last = np.searchsorted(self.steps, [end if backward_pass.last is None else backward_pass.last, end])
        return dict(chain.from_iterable(self.changes.get(step + 1, {}).items() for step in range(first, last)))


def _told(value: float) -> float | str:
    return float(f"{value:.4g}") if np.isfinite(value) else "odd"


# The norm of each leaf's gradient after each pass, for the chart of the page.

MOST_PASSES = 1000  # if there are more, a regular sample is taken
MOST_LEAVES = 60  # only the first leaves are shown


def norms(trace: Trace, called: Callable[[int], str]) -> dict[str, Any]:
    """The norm of each leaf's `.grad` at the end of each pass. `passes` are the numbers of the passes, and
    `leaves` a list of {name, norms}. A norm is None if the pass did not reach the leaf or the value was not
    kept, and "odd" if it has NaN or inf."""
    passes = trace.passes[:: -(-len(trace.passes) // MOST_PASSES) or 1]
    accumulated = trace.table(Kind.ACCUMULATED)
    leaves: dict[str, list[float | str | None]] = {}
    for position, backward_pass in enumerate(passes):
        last = trace.count if backward_pass.last is None else backward_pass.last
        first, end = accumulated.events.searchsorted([backward_pass.first, last + 1])
        for k in accumulated.events[first:end].tolist():
            event = accumulated.object(k)
            name = called(event.tensor)
            if name not in leaves and len(leaves) == MOST_LEAVES:
                continue
            row = leaves.setdefault(name, [None] * len(passes))
            snapshot = trace.snapshot(event.grad, k)
            stats = snapshot.stats if snapshot is not None else None
            if snapshot is not None and stats is not None:
                row[position] = "odd" if stats.nan or stats.inf else norm(snapshot)
    return {
        "passes": [backward_pass.number for backward_pass in passes],
        "leaves": [{"name": plain_name(name, 60), "norms": row} for name, row in leaves.items()],
    }


# The values of the tensors of a page over time, and the gradients along its edges.

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
            tensor: {"v": self._values(tensor, shown), "g": self._grads(tensor, shown)} for tensor in sorted(tensors)
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
        edges = grouped((edge.source, position) for position, edge in enumerate(graph.edges) if edge.kind == m.GRAD)
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
    size = norm_of(snapshot)
    return None if size is None or not math.isfinite(size) else float(f"{size:.9g}")


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
    if node.kind in (m.GROUP, m.OUTSIDE):
        return -1
    if node.kind == m.GRAD_FN:
        made = query.nodes.made(node.number)
        return -1 if made is None else made
    if node.since != FIRST:
        return node.since
    born = query.trace.born(node.number)
    return -1 if born is None else born
