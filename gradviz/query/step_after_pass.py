"""The optimizer steps that follow a pass, and the events that have what a step made of a parameter."""

from __future__ import annotations

from collections.abc import Collection

from gradviz.events.kinds import Kind, Mutated, PassBegan, Stepped, ValueKept
from gradviz.query.query import Query
from gradviz.tracefile import Snapshot


def steps_after(query: Query, began: PassBegan, leaves: Collection[int]) -> list[Stepped]:
    """The optimizer steps after a pass and before the next one that change some of these leaves."""
    trace = query.trace
    this_pass = trace.find_pass(began.number)
    end = trace.count if this_pass is None or this_pass.last is None else this_pass.last
    following = min((one.first for one in trace.passes if one.first > end), default=trace.count)
    events = trace.indices(Kind.STEPPED)
    found = [trace.event(event) for event in events[(events > end) & (events < following)].tolist()]
    return [event for event in found if isinstance(event, Stepped) and set(event.parameters) & set(leaves)]


def is_next_pass_recorded(query: Query, number: int) -> bool:
    """Whether the pass behind pass `number` is in the trace, or the run had none."""
    later = [one.number for one in query.trace.passes if one.number > number]
    return not later or min(later) == number + 1


def event_after_step(query: Query, stepped: Stepped, leaf: int) -> int | None:
    """The event that has the value of a parameter after a step: the step's own event, or the event at which the
    parameter entered a later pass, if it was not written to in between. None if there is none."""
    writes = [event for event in query.tensors.writes(leaf) if event > stepped.index]
    first = query.trace.event(writes[0]) if writes else None
    if not isinstance(first, Mutated) or first.how != stepped.type:
        return None
    until = writes[1] if len(writes) > 1 else query.trace.count
    events = query.trace.indices(Kind.KEPT)
    entered = events[(events > first.index) & (events < until)].tolist()
    for event in (first.index, *entered):
        value = value_at(query, event, leaf)
        if value is not None and value.array is not None:
            return event
    return None


def value_at(query: Query, event: int, leaf: int) -> Snapshot | None:
    """The value of a parameter that a write left, or that was kept."""
    kept = query.trace.event(event)
    if isinstance(kept, ValueKept):
        return query.trace.snapshot(kept.copy, event) if kept.original == leaf else None
    return query.memory.value(leaf, event)
