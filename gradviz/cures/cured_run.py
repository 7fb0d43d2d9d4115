"""What a cured run achieved: the gradient that was missing or wrong, and the loss from the first pass to the last."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradviz.diagnose import Finding
from gradviz.events.kinds import Kind
from gradviz.events.values import Stat
from gradviz.query.query import Query
from gradviz.query.training import Training


@dataclass(frozen=True, slots=True)
class Progress:
    """The root mean square of the last gradient of the leaf called `leaf` (None: it got none; the name is empty where
    a finding is about no leaf), the loss at the first and at the last pass of the line with the most passes (NaN where
    it is not known), and how many steps optimizers made."""

    leaf: str
    rms: float | None
    first_loss: float
    last_loss: float
    passes: int
    steps: int


def progress_of(finding: Finding, before: Query, after: Query) -> Progress:
    """How a run with a cure went. `before` is the trace of the finding, `after` that of the cured run."""
    leaf, rms = _gradient(finding, before, after)
    losses = _losses(after)
    first, last = (losses[0], losses[-1]) if len(losses) else (float("nan"), float("nan"))
    steps = len(after.of(Training).stepped.events)
    return Progress(leaf, rms, first, last, len(losses), steps)


def _gradient(finding: Finding, before: Query, after: Query) -> tuple[str, float | None]:
    """The first leaf of a finding by name, and the size of its last gradient in the other run."""
    came = after.trace.table(Kind.ACCUMULATED)
    got = {
        name: tensor for tensor in dict.fromkeys(came["tensor"].tolist()) if (name := _name(after, tensor))
    }
    names = [name for tensor in finding.tensors if (name := _leaf_name(before, tensor))]
    for name in names:
        if name in got:
            rows = np.flatnonzero(came["tensor"] == got[name])[-1:]
            states = after.trace.states
            found = states.stats[states.rows_of(came["gradient"][rows], came.events[rows]), Stat.RMS]
            return name, float(found[0])
    return (names[0], None) if names else ("", None)


def _name(query: Query, tensor: int) -> str:
    return query.trace.parameters.get(tensor) or query.names.of(tensor) or ""


def _leaf_name(query: Query, tensor: int) -> str:
    """The name of a leaf; empty if the tensor is none that requires grad."""
    states = query.trace.states
    row = states.first(tensor)
    form = states.form(row) if row >= 0 else None
    return _name(query, tensor) if form is not None and tensor in query.nodes.leaves.values() else ""


def _losses(query: Query) -> np.ndarray:
    """The values of the roots of the line with the most passes, in order: those of one element."""
    began = query.trace.table(Kind.PASS_BEGAN)
    roots = began.lists("roots")
    if not len(roots.owners):
        return np.empty(0)
    sites = query.places.of_events[began.events[roots.owners]]
    lines, counts = np.unique(sites, return_counts=True)
    own = sites == lines[int(np.argmax(counts))]
    states = query.trace.states
    rows = states.rows_of(roots.elements[own, 2], began.events[roots.owners[own]])
    stats = states.stats[rows[rows >= 0]]
    one = stats[:, Stat.MIN] == stats[:, Stat.MAX]
    return stats[one, Stat.MEAN]
