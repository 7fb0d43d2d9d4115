"""The sizes of gradients: the norms of all leaves in each pass, and of each leaf; the factors by which a gradient gets
smaller or larger at a line whose nodes run several times in a pass; and range tests, which multiply the learning rate
by the same factor from step to step, to see at which rate training diverges, so that the divergence is no fault."""

from dataclasses import dataclass

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.events.kinds import Kind
from gradviz.query.curves import accumulated_norms
from gradviz.sets import distinct, ranked
from gradviz.tracefile import PassInfo

_NOISE = 1e-5  # a gradient below this share of the largest gradient is rounding noise


def gradients_at(case: Case, leaves: np.ndarray, events: np.ndarray) -> np.ndarray:
    """The root mean square of the `.grad` of each leaf at an event; NaN if it has none or it is not known."""
    states = case.trace.states
    return states.rms(states.rows_of(case.query.tensors.grads.last_of(leaves.astype(np.int64), events), events))


def norms_of_passes(case: Case) -> list[tuple[list[PassInfo], np.ndarray]]:
    """For each line that calls backward(), its passes that were recorded in detail, and the norm of all gradients in
    each (NaN if one is not finite)."""
    found = case.query.of(accumulated_norms)
    numbers, at = ranked(found.at)
    squares = np.zeros(len(numbers))
    np.add.at(squares, at, np.where(found.values == -1, np.nan, found.values) ** 2)
    norms = dict(zip(numbers.tolist(), np.sqrt(squares), strict=True))
    by_site: dict[int, list[PassInfo]] = {}
    for backward_pass in case.trace.passes:
        if backward_pass.number in norms and backward_pass.is_in_detail:
            by_site.setdefault(backward_pass.site, []).append(backward_pass)
    return [(group, np.array([norms[backward_pass.number] for backward_pass in group])) for group in by_site.values()]


def has_gradient(case: Case, tensors: np.ndarray, events: np.ndarray) -> np.ndarray:
    """For each parameter, whether its gradient at a step is more than rounding noise, compared with the largest
    gradient of the step and with the largest gradient of the run. The gradient of a bias before batch norm is noise in
    its step; the gradients at a minimum are noise in the run."""
    sizes = np.nan_to_num(gradients_at(case, tensors, events))
    steps, of_step = np.unique(events, return_inverse=True)
    largest = np.zeros(len(steps))
    np.maximum.at(largest, of_step, sizes)
    return (sizes > 0) & (sizes >= _NOISE * largest[of_step]) & (sizes >= _NOISE * sizes.max(initial=0.0))


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
        local = [np.log10(went[n]) - np.log10(came[i]) for n, i in zip(nodes, rows, strict=True) if went.get(n, 0) > 0]
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


_LEAST = 5  # steps in a row
_FACTOR, _SAME = 1.02, 1e-3  # the least growth of a step, and the largest difference of two factors
_RISE = 10.0  # the least growth of the rate in all


def range_tests(case: Case) -> np.ndarray:
    """The events of the steps that belong to range tests. Use `case.of(range_tests)`."""
    stepped = case.training.stepped
    events = [stepped.events[:0]]
    for optimizer in distinct(stepped["optimizer"]).tolist():
        own = stepped["optimizer"] == optimizer
        events += [stepped.events[own][first:last] for first, last in _geometric(case.training.rates[own])]
    return np.sort(np.concatenate(events))


def _geometric(rates: np.ndarray) -> list[tuple[int, int]]:
    """The parts of a series that grow by the same factor from number to number, each as (first, last + 1)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        factors = rates[1:] / rates[:-1]
    grows = factors >= _FACTOR
    same = grows[1:] & grows[:-1] & (np.abs(factors[1:] / factors[:-1] - 1) < _SAME)
    ends = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]]).astype(int)))
    parts = [(first, last + 2) for first, last in ends.reshape(-1, 2).tolist()]
    return [
        (first, last) for first, last in parts if last - first >= _LEAST and rates[last - 1] >= _RISE * rates[first]
    ]
