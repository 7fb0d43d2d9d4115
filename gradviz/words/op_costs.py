"""The costs of the ops of a run, in a sentence."""

from __future__ import annotations

from gradviz.query.overview import Cost, is_profiled, profile
from gradviz.query.query import Query
from gradviz.words.numbers import duration, flops, plural, size


def profile_line(query: Query) -> str:
    """The costs of the ops of a run, in a line; empty if nothing was measured."""
    return total_of(query.of(profile).total) if is_profiled(query) else ""


def total_of(cost: Cost) -> str:
    """All costs in a sentence: `1,234 ops took 1.25 s (forward 400 ms, backward 850 ms), 3.2 GFLOP`."""
    phases = [f"{phase} {duration(seconds)}" for phase, seconds in cost.seconds.items() if seconds]
    computed = sum(cost.flops.values())
    text = f"{plural(cost.ops, 'op')} took {duration(cost.all_seconds)}"
    text += f" ({', '.join(phases)})" if phases else ""
    text += f", made {size(sum(cost.made.values()))}" if any(cost.made.values()) else ""
    return text + (f", computed {flops(computed)}" if computed else "")
