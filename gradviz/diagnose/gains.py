"""The factors by which the gradient gets smaller or larger at a line whose nodes run several times in a pass: a layer
in a loop, the step of a recurrence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.events.kinds import Kind


@dataclass(frozen=True, slots=True)
class Gain:
    """A line in a pass. `total` is the decimal logarithm of the gradient at the line's last node over the gradient at
    its first node. `own` is the part of it from nodes with one edge. `count` is the number of nodes, `rounds` how often
    the line ran (the number of nodes of its most frequent kind), `event` the event of the first node."""

    site: int
    total: float
    own: float
    count: int
    rounds: int
    event: int


def gains(case: Case, number: int) -> list[Gain]:
    """The gains of all lines with nodes that ran in a pass and received gradients other than 0."""
    received = case.trace.table(Kind.RECEIVED)
    gradients = received.lists("gradients")
    of_pass = np.flatnonzero((received["in_pass"] == number) & (gradients.counts == 1))
    events = received.events[of_pass]
    came = _rms(case, gradients.firsts[of_pass], events)
    went = _given_on(case, number)
    lines: dict[tuple[str, int], list[int]] = {}
    ops: set[int] = set()
    for i, event in enumerate(events.tolist()):
        site = case.place(event)
        node = int(received["node"][of_pass[i]])
        op = case.query.nodes.op(node)
        if site is None or came[i] <= 0 or case.query.nodes.made(node) is None or op in ops:
            continue
        if op is not None:
            ops.add(op)  # of an op with several nodes, the first receives the gradient of the result
        place = site.library or site.place  # one line of the program may train a whole model
        lines.setdefault((place.file, place.line), []).append(i)
    found = []
    for rows in lines.values():
        nodes = received["node"][of_pass[rows]].tolist()
        local = [
            np.log10(went[n]) - np.log10(came[i])
            for n, i in zip(nodes, rows, strict=True)
            if went.get(n, 0) > 0
        ]
        sites = [case.site(int(events[i])) for i in rows]
        found.append(
            Gain(
                max(set(sites), key=lambda site: (sites.count(site), site)),
                float(np.log10(came[rows[-1]]) - np.log10(came[rows[0]])),
                float(np.sum(local)) if local else 0.0,
                len(rows),
                int(np.unique(received["grad_fn"][of_pass[rows]], return_counts=True)[1].max()),
                int(events[rows[0]]),
            )
        )
    return found


def _given_on(case: Case, number: int) -> dict[int, float]:
    """For each node that gave a single gradient in a pass, the root mean square of this gradient."""
    produced = case.trace.table(Kind.PRODUCED)
    flows = produced.lists("flows")
    of_pass = (produced["in_pass"][flows.owners] == number) & (flows.elements[:, 1] > 0)
    owners, first, counts = np.unique(flows.owners[of_pass], return_index=True, return_counts=True)
    single = owners[counts == 1]
    gradients = flows.elements[of_pass, 1][first[counts == 1]]
    values = _rms(case, gradients, produced.events[single])
    return dict(zip(produced["node"][single].tolist(), values.tolist(), strict=True))


def _rms(case: Case, tensors: np.ndarray, events: np.ndarray) -> np.ndarray:
    """The root mean square of tensors at events; 0 if it is not known."""
    states = case.trace.states
    return np.nan_to_num(states.rms(states.rows_of(tensors, events)))
