"""The distributions of elements at a few passes: of parameters and their gradients, for modules whose elements were
recorded. Also the histograms that were recorded while the program ran: those of leaves, and with `--histograms` those
of activations too."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.events.values import COUNTS, LAST, counts_between
from gradviz.query.module_curves import Grouping
from gradviz.query.query import Query
from gradviz.sets import distinct
from gradviz.tracefile.columns import Table

_PASSES = 3  # the first, the middle and the last pass that reached a module
_MOST_ELEMENTS = 1 << 22  # the most elements of a module at a pass


@dataclass(frozen=True, slots=True)
class Histogram:
    """The number of elements in each of BINS equal parts from `low` to `high`, of one module, by pass. Elements that
    are not finite are left out."""

    low: float
    high: float
    counts: dict[int, np.ndarray]


@dataclass(frozen=True, slots=True)
class Distribution:
    """The histograms of a module: of its parameters, and of the gradients that they accumulated."""

    name: str
    parameters: Histogram
    gradients: Histogram


def distributions(query: Query, module_of: Grouping) -> list[Distribution]:
    """The distributions of the modules whose elements are all known at the chosen passes."""
    trace = query.trace
    came = trace.table(Kind.ACCUMULATED)
    leaves, places = np.unique(came["tensor"], return_inverse=True)
    names = [module_of(leaf) for leaf in leaves.tolist()]
    found = []
    for name in dict.fromkeys(names):
        in_module = np.array([one == name for one in names])[places]
        numbers = distinct(came["in_pass"][in_module & (came["in_pass"] > 0)])
        chosen = (
            numbers[distinct(np.linspace(0, len(numbers) - 1, _PASSES).astype(int))] if len(numbers) else []
        )
        parts = {int(number): np.flatnonzero(in_module & (came["in_pass"] == number)) for number in chosen}
        gradients, parameters = (
            {number: _elements(query, came[field][at], came.events[at]) for number, at in parts.items()}
            for field in ("gradient", "tensor")
        )
        of_parameters, of_gradients = _histogram(parameters), _histogram(gradients)
        if of_parameters is not None and of_gradients is not None:
            found.append(Distribution(name, of_parameters, of_gradients))
    return found


def _elements(query: Query, tensors: np.ndarray, events: np.ndarray) -> np.ndarray | None:
    """The elements of tensors, each at an event; None if the elements of a tensor are not known, or are too many."""
    states = query.trace.states
    rows = query.memory.rows_of(tensors, events)
    sizes = [
        np.prod(form.shape) for row in rows.tolist() if row >= 0 and (form := states.form(row)) is not None
    ]
    if len(sizes) < len(rows) or sum(sizes) > _MOST_ELEMENTS:
        return None
    parts = list(states.elements(rows))
    if sum(len(known) for known, _ in parts) < len(rows) or any(np.iscomplexobj(part) for _, part in parts):
        return None
    return np.concatenate([np.zeros(0), *(part.astype(np.float64).ravel() for _, part in parts)])


def _histogram(elements: dict[int, np.ndarray | None]) -> Histogram | None:
    """The histograms of several passes over one range; None if the elements of a pass are not known, or if all are
    equal."""
    known = {number: values[np.isfinite(values)] for number, values in elements.items() if values is not None}
    together = np.concatenate([np.zeros(0), *known.values()])
    if len(known) < len(elements) or not len(together) or together.min() == together.max():
        return None
    low, high = float(together.min()), float(together.max())
    counts: dict[int, np.ndarray] = {}
    for number, values in known.items():
        counted = counts_between(values, low, high)
        if counted is None:
            return None
        counts[number] = counted
    return Histogram(low, high, counts)


@dataclass(frozen=True, slots=True)
class Binned:
    """The histograms of an activation, a parameter or a gradient (`what`) by pass, each from the least to the largest
    element that was counted. `last` is that of a leaf when the recording ended or its module was freed, with the
    number of the last pass before."""

    name: str
    what: str
    histograms: dict[int, Histogram]
    last: tuple[int, Histogram] | None = None

    @property
    def elements(self) -> int:
        """The most elements that were counted at once."""
        known = [*self.histograms.items(), *([self.last] if self.last is not None else [])]
        return max(int(histogram.counts[number].sum()) for number, histogram in known)


def binned(query: Query) -> list[Binned]:
    """The recorded histograms, in the order in which their tensors came first. A histogram that is not fully known, as
    in a redacted trace, is left out."""
    trace = query.trace
    trace.reach_all()
    table = trace.table(Kind.BINNED)
    leaves = _of_leaves(query)
    if not len(table):
        return leaves
    counts = table.lists("counts")
    began = trace.table(Kind.PASS_BEGAN)
    found: dict[tuple[str, str], dict[int, Histogram]] = {}
    for row, event in enumerate(table.events.tolist()):
        low, high = float(table["low"][row]), float(table["high"][row])
        number = int(table["in_pass"][row]) or _following(began, event)
        in_bins = counts.of(row)[:, 0]
        if number and low < high and len(in_bins):
            what = trace.text(int(table["what"][row]))
            name = trace.text(int(table["module"][row])) or query.labels.of(int(table["tensor"][row]))
            found.setdefault((name, what), {})[number] = Histogram(low, high, {number: in_bins})
    last = {(one.name, one.what): one.last for one in leaves}
    return [Binned(*key, histograms, last.get(key)) for key, histograms in found.items()]


def _of_leaves(query: Query) -> list[Binned]:
    """The histograms of leaves that an ordinary recording has: first of all parameters, then of all gradients."""
    trace = query.trace
    found: dict[tuple[int, str], dict[int, Histogram]] = {}
    last: dict[tuple[int, str], tuple[int, Histogram]] = {}
    for number, one in sorted(trace.leaf_histograms, key=lambda pair: pair[0]):
        if trace.find_pass(number) is None or not one.low < one.high:
            continue
        counts = np.frombuffer(one.counts, COUNTS).astype(np.int64)
        histogram = Histogram(one.low, one.high, {number: counts})
        key = one.tensor, one.what.removeprefix(LAST)
        by_pass = found.setdefault(key, {})
        if one.what.startswith(LAST):
            last[key] = number, histogram
        else:
            by_pass[number] = histogram
    order = sorted(found, key=lambda key: (key[1] != "parameter", key[0]))
    return [Binned(query.labels.of(key[0]), key[1], found[key], last.get(key)) for key in order]


def _following(began: Table, event: int) -> int:
    """The number of the first pass that began after an event, 0 for none."""
    at = int(np.searchsorted(began.events, event))
    return int(began["number"][at]) if at < len(began) else 0
