"""The norm of each leaf's gradient after each pass, for the chart of the page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradviz.events.kinds import Kind
from gradviz.page.values_over_time import norm
from gradviz.tracefile import Trace
from gradviz.words.escape import plain_name

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
