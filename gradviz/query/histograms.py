"""How the elements of parameters and of their gradients are distributed, at a few passes: of modules whose elements
were recorded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.query.module_curves import Grouping
from gradviz.query.query import Query

BINS = 32
_PASSES = 3  # the first, the one in the middle, and the last that reached a module
_MOST_ELEMENTS = 1 << 22  # of a module at a pass


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many elements lie in each of BINS equal parts from `low` to `high`, of one module at each of some passes;
    what is not finite is left out."""

    low: float
    high: float
    counts: dict[int, np.ndarray]


@dataclass(frozen=True, slots=True)
class Distribution:
    """The histograms of a module: of its parameters, and of what they accumulated."""

    name: str
    parameters: Histogram
    gradients: Histogram


def distributions(query: Query, module_of: Grouping) -> list[Distribution]:
    """The distributions of the modules all of whose elements are known at the passes that are looked at."""
    trace = query.trace
    came = trace.table(Kind.ACCUMULATED)
    leaves, places = np.unique(came["tensor"], return_inverse=True)
    names = [module_of(leaf) for leaf in leaves.tolist()]
    found = []
    for name in dict.fromkeys(names):
        own = np.array([one == name for one in names])[places]
        numbers = np.unique(came["in_pass"][own & (came["in_pass"] > 0)])
        chosen = (
            numbers[np.unique(np.linspace(0, len(numbers) - 1, _PASSES).astype(int))] if len(numbers) else []
        )
        parts = {int(number): np.flatnonzero(own & (came["in_pass"] == number)) for number in chosen}
        gradients, parameters = (
            {number: _elements(query, came[field][at], came.events[at]) for number, at in parts.items()}
            for field in ("gradient", "tensor")
        )
        of_parameters, of_gradients = _histogram(parameters), _histogram(gradients)
        if of_parameters is not None and of_gradients is not None:
            found.append(Distribution(name, of_parameters, of_gradients))
    return found


def _elements(query: Query, tensors: np.ndarray, events: np.ndarray) -> np.ndarray | None:
    """The elements of some tensors, each at an event; None if those of one are not known, or they are too many."""
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


@np.errstate(all="ignore")  # numbers may be as large as they get
def _histogram(elements: dict[int, np.ndarray | None]) -> Histogram | None:
    """The histograms of several passes over one range; None if the elements of one are not known, or all are alike."""
    known = {number: own[np.isfinite(own)] for number, own in elements.items() if own is not None}
    together = np.concatenate([np.zeros(0), *known.values()])
    if len(known) < len(elements) or not len(together) or together.min() == together.max():
        return None
    low, high = float(together.min()), float(together.max())
    if not (np.diff(np.linspace(low, high, BINS + 1)) > 0).all():  # there are no such parts
        return None
    counts = {number: np.histogram(own, BINS, (low, high))[0] for number, own in known.items()}
    return Histogram(low, high, counts)
