"""The comparison of ranks of one run as replicas: their parameters, averaged gradients and settings."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from gradviz.query.query import Query
from gradviz.query.ranks import ranked_traces
from gradviz.query.replicas import Replicas
from gradviz.tracefile import Trace
from gradviz.words.escape import clean
from gradviz.words.numbers import plural


def replicas_text(traces: Sequence[Trace]) -> list[Text]:
    """The lines about ranks as replicas; empty if they have no parameters in common."""
    ranks = Replicas({rank: Query(trace) for rank, trace in ranked_traces(traces).items()})
    if not ranks.common or not ranks.steps:
        return []
    starts = [one.name for one in ranks.starts_apart]
    lines = [
        Text(
            "\nas replicas: the values above are of each rank alone, before the ranks average gradients",
            "dim",
        ),
        _line("before the first pass", "parameters", len(ranks.common), starts),
    ]
    if any(map(len, ranks.reduced)):
        apart = [f"{one.name} (step {one.step})" for one in ranks.gradients_apart]
        where = "at the step" if len(ranks.steps) == 1 else f"at each of {len(ranks.steps):,} steps"
        lines.append(_line(where, "averaged gradients", len(ranks.common), apart))
    if ranks.are_replicas:
        drift = ranks.drift
        lines.append(_line("later", "parameters", len(ranks.common), list(drift.names) if drift else []))
    for setting in ranks.other_settings:
        values = " and ".join(map(str, setting.values))
        lines.append(Text(f"at step {setting.step}: {clean(setting.name)} is {clean(values)}", "yellow"))
    return lines


def _line(when: str, what: str, count: int, apart: Sequence[str]) -> Text:
    if not apart:
        return Text(f"{when}: {what} are the same ({plural(count, 'parameter')})", "green")
    more = f" and {len(apart) - 1} more" if len(apart) > 1 else ""
    return Text(f"{when}: {what} differ: {clean(apart[0])}{more}", "yellow")
