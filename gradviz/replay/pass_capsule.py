"""Takes out of a trace the data that a pass needs: as a small trace of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gradviz.events.kinds import CallMade, Kind
from gradviz.query.query import Query
from gradviz.query.step_after_pass import event_after_step
from gradviz.replay.plan import Plan, ReplayError
from gradviz.replay.scaled_step import step_behind
from gradviz.tracefile.capsule_file import write_capsule


def _after_the_step(query: Query, plan: Plan) -> list[int]:
    """The events that have the parameters after the optimizer step that follows the pass, if there is one."""
    try:
        stepped = step_behind(query, plan)
    except ReplayError:
        return []
    events = [event_after_step(query, stepped, leaf) for leaf in stepped.parameters if leaf in plan.leaves]
    return [event for event in events if event is not None]


def write(query: Query, plan: Plan, path: Path) -> None:
    """Write a trace with only the pass of a plan, from which it can run again, and the parameters after the next
    step. Raises OSError if that is impossible."""
    events = [step.event for step in plan.steps] + _after_the_step(query, plan)
    calls = [query.trace.event(call.event) for call in plan.calls]
    generators = [call.generator for call in calls if isinstance(call, CallMade) and call.generator]
    kept = query.trace.table(Kind.KEPT)
    states = kept.events[np.isin(kept["copy"], generators)]
    write_capsule(query.trace, path, plan.number, np.array(sorted({*events, *states.tolist()}), np.int64))
