"""The norms of gradients: of all leaves in each pass, and of each leaf."""

from __future__ import annotations

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.query.curves import accumulated_norms
from gradviz.sets import ranked
from gradviz.tracefile import PassInfo

_NOISE = 1e-5  # a gradient below this share of the largest gradient is rounding noise


def gradients_at(case: Case, leaves: np.ndarray, events: np.ndarray) -> np.ndarray:
    """The root mean square of the `.grad` of each leaf at an event; NaN if it has none or it is not known."""
    states = case.trace.states
    return states.rms(
        states.rows_of(case.query.tensors.grads.last_of(leaves.astype(np.int64), events), events)
    )


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
    return [
        (group, np.array([norms[backward_pass.number] for backward_pass in group]))
        for group in by_site.values()
    ]


def has_gradient(case: Case, tensors: np.ndarray, events: np.ndarray) -> np.ndarray:
    """For each parameter, whether its gradient at a step is more than rounding noise, compared with the largest
    gradient of the step and with the largest gradient of the run. The gradient of a bias before batch norm is noise in
    its step; the gradients at a minimum are noise in the run."""
    sizes = np.nan_to_num(gradients_at(case, tensors, events))
    steps, of_step = np.unique(events, return_inverse=True)
    largest = np.zeros(len(steps))
    np.maximum.at(largest, of_step, sizes)
    return (sizes > 0) & (sizes >= _NOISE * largest[of_step]) & (sizes >= _NOISE * sizes.max(initial=0.0))
