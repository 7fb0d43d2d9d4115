"""The result of a cured run: the gradient that was missing or wrong, and the first and the last loss."""

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
    """The result of a run. `rms` is the root mean square of the last gradient of the leaf with the name `leaf`; None if
    it got no gradient. `leaf` is empty if the finding is about no leaf. The losses are those of the first and the last
    pass of the line with the most `passes`; NaN if they are not known. `steps` counts the steps of optimizers."""

    leaf: str
    rms: float | None
    first_loss: float
    last_loss: float
    passes: int
    steps: int


def progress_of(finding: Finding, before: Query, after: Query) -> Progress:
    """The result of a run with a cure. `before` is the trace with the finding, `after` the trace of the cured run."""
    leaf, rms = _gradient(finding, before, after)
    losses = _losses(after)
    first, last = (losses[0], losses[-1]) if len(losses) else (float("nan"), float("nan"))
    steps = len(after.of(Training).stepped.events)
    return Progress(leaf, rms, first, last, len(losses), steps)


def _gradient(finding: Finding, before: Query, after: Query) -> tuple[str, float | None]:
    """The name of the first leaf of a finding with a gradient in the cured run, and the size of its last gradient; None
    as the size if no leaf of the finding has a gradient."""
    came = after.trace.table(Kind.ACCUMULATED)
    got = {
        name: tensor for tensor in dict.fromkeys(came["tensor"].tolist()) if (name := _name(after, tensor))
    }
    names = [name for tensor in finding.tensors if (name := _leaf_name(before, tensor))]
    for name in names:
        if name in got:
            rows = np.flatnonzero(came["tensor"] == got[name])[-1:]
            states = after.trace.states
            sizes = states.stats[states.rows_of(came["gradient"][rows], came.events[rows]), Stat.RMS]
            return name, float(sizes[0])
    return (names[0], None) if names else ("", None)


def _name(query: Query, tensor: int) -> str:
    return query.trace.parameters.get(tensor) or query.names.of(tensor) or ""


def _leaf_name(query: Query, tensor: int) -> str:
    """The name of a leaf that gets gradients; empty for any other tensor."""
    states = query.trace.states
    row = states.first(tensor)
    form = states.form(row) if row >= 0 else None
    return _name(query, tensor) if form is not None and tensor in query.nodes.leaves.values() else ""


def _losses(query: Query) -> np.ndarray:
    """The values of the roots of the line with the most passes, in order. Roots with several values are left out."""
    began = query.trace.table(Kind.PASS_BEGAN)
    roots = began.lists("roots")
    if not len(roots.owners):
        return np.empty(0)
    sites = query.places.of_events[began.events[roots.owners]]
    lines, counts = np.unique(sites, return_counts=True)
    of_line = sites == lines[int(np.argmax(counts))]
    states = query.trace.states
    rows = states.rows_of(roots.elements[of_line, 2], began.events[roots.owners[of_line]])
    stats = states.stats[rows[rows >= 0]]
    one = stats[:, Stat.MIN] == stats[:, Stat.MAX]
    return stats[one, Stat.MEAN]
