"""The names and the order of the traces of several ranks."""

from __future__ import annotations

from collections.abc import Sequence

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
