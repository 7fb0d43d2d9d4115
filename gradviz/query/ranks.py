"""The names and the order of the traces of several ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.tracefile import Trace


def label_of(trace: Trace) -> str:
    """The name of one of several traces: `rank 0`, or the name of its file."""
    rank = trace.meta.get("rank", "")
    return f"rank {rank}" if rank else trace.path.stem


def ranked_traces(traces: Sequence[Trace]) -> dict[int, Trace]:
    """Traces by their ranks; by their places if a rank is missing or occurs twice."""
    ranks = [trace.meta.get("rank", "") for trace in traces]
    if not all(map(str.isdigit, ranks)) or len(set(ranks)) < len(ranks):
        return dict(enumerate(traces))
    return dict(zip(map(int, ranks), traces, strict=True))


def same_pass(trace: Trace, number: int, other: Trace) -> int | None:
    """The pass of another rank that is the same as pass `number`; None if there is none. Where the ranks have as many
    passes, as they mostly do, it has the same number; else it is the same among the passes that were called alike
    (`backward` or `grad`): a rank of a pipeline may differentiate for itself."""
    if len(trace.pass_numbers) != len(other.pass_numbers):
        hows = [_hows(one) for one in (trace, other)]
        how = hows[0].get(number, "")
        alike = [[known for known, called in of_rank.items() if called == how] for of_rank in hows]
        place = alike[0].index(number) if number in alike[0] else len(alike[1])
        return alike[1][place] if place < len(alike[1]) else None
    return number if other.find_pass(number) is not None else None


def _hows(trace: Trace) -> dict[int, str]:
    """How each pass was called, in their order."""
    trace.reach_all()
    began = trace.table(Kind.PASS_BEGAN)
    order = np.argsort(began["number"], kind="stable")
    return {int(began["number"][row]): trace.text(int(began["how"][row])) for row in order.tolist()}
