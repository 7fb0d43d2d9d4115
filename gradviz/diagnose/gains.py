"""How much each line makes gradients smaller or larger in a pass: the gains of its nodes, multiplied."""

from __future__ import annotations

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.events.kinds import Kind

_RMS = 3


def gains_by_site(case: Case, number: int) -> dict[int, tuple[float, int, int]]:
    """For each site whose nodes ran in a pass: the decimal logarithm of the product of their gains (the root mean
    square of what a node gave over that of what it received), how many nodes, and the event of the first."""
    states = case.trace.states
    received, produced = case.trace.table(Kind.RECEIVED), case.trace.table(Kind.PRODUCED)
    given, flows = received.lists("gradients"), produced.lists("flows")
    came = _largest(case, received.events, given.owners, given.values, received["in_pass"] == number)
    went = _largest(case, produced.events, flows.owners, flows.elements[:, 1], produced["in_pass"] == number)
    sites = case.query.places.of_events
    nodes = dict(zip(received.events.tolist(), received["node"].tolist(), strict=True))
    upstream = {nodes[event]: rms for event, rms in came.items()}
    owner = dict(zip(produced.events.tolist(), produced["node"].tolist(), strict=True))
    found: dict[int, tuple[float, int, int]] = {}
    for event, rms in went.items():
        before = upstream.get(owner[event], 0.0)
        if before > 0 and rms > 0 and len(states):
            site = int(sites[event])
            total, count, first = found.get(site, (0.0, 0, event))
            found[site] = (total + float(np.log10(rms / before)), count + 1, first)
    return found


def _largest(
    case: Case, events: np.ndarray, owners: np.ndarray, tensors: np.ndarray, own: np.ndarray
) -> dict[int, float]:
    """For each event the largest root mean square of its gradients."""
    chosen = own[owners]
    rows = case.trace.states.rows_of(tensors[chosen], events[owners[chosen]])
    found: dict[int, float] = {}
    rms = np.where(rows >= 0, case.trace.states.stats[rows, _RMS], np.nan)
    for event, value in zip(events[owners[chosen]].tolist(), rms.tolist(), strict=True):
        if value == value:
            found[event] = max(found.get(event, 0.0), value)
    return found
