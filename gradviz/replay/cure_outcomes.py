"""What gradients a pass would have given without the call that cut its graph.

That call gives on what it was given, so no value is another without it: what is computed is exact, if the pass runs
again with the recorded result, and if all that such a gradient could flow through runs again, too."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradviz.events.kinds import Event, OpRan, TensorMade
from gradviz.query.query import Query
from gradviz.replay.function_names import DETACHING
from gradviz.replay.outcome import Edits, Outcome, Runner, checked, has_hooks
from gradviz.replay.plan import CARRIED, CUT, LEAF, Call, Input, Plan, ReplayError, plan_of


@dataclass(frozen=True)
class Gained:
    """A gradient that a leaf would have received; `before` is the one that it received, None where that is none."""

    leaf: int
    before: np.ndarray | None
    after: np.ndarray


@dataclass(frozen=True)
class CureOutcome:
    """What pass `number` gives without an op on a line: `detach` or `data`."""

    op: str
    line: int
    number: int
    gained: tuple[Gained, ...]


def without_cut(query: Query, runner: Runner, event: int, leaves: tuple[int, ...] = ()) -> CureOutcome | None:
    """What the leaves (none: any) would receive in the pass behind an event, if that and what is like it on its line
    did not cut the graph. None where the event is no such cut, or where the answer is not exact or not known."""
    found = query.trace.pass_ending_from(event)
    if found is None or not _cuts(query.trace.event(event)):
        return None
    try:
        plan = plan_of(query, found.number)
        cut = _cut_of(query, plan, event)
        if cut is None or has_hooks(query, plan) or any(_is_barrier(query, step) for step in plan.inputs):
            return None
        before = runner.run(plan, Edits())
        check = checked(query, plan, before)
        if not check.is_equal or not check.roots + check.gradients:
            return None
        line = query.places.line(cut.site)
        alike = frozenset(
            call.event for call in plan.calls if call.op == cut.op and query.places.line(call.site) == line
        )
        after = runner.run(plan, Edits(without=alike))
    except ReplayError:
        return None
    gained = tuple(
        Gained(leaf, before.gradients.get(leaf), gradient)
        for leaf in plan.leaves
        if (not leaves or leaf in leaves) and (gradient := _gained(before, after, leaf)) is not None
    )
    return CureOutcome(cut.op, line[1], plan.number, gained) if gained else None


def _cuts(event: Event) -> bool:
    """Whether an event may be that of a call which cuts the graph."""
    return (isinstance(event, OpRan) and event.op in ("detach", "data")) or (
        isinstance(event, TensorMade) and event.how == "data"
    )


def _cut_of(query: Query, plan: Plan, event: int) -> Call | None:
    """The call that cut the graph at an event."""
    made = query.trace.event(event)
    tensors = (
        made.outputs if isinstance(made, OpRan) else (made.tensor,) if isinstance(made, TensorMade) else ()
    )
    return next(
        (call for call in plan.calls if call.function in DETACHING and set(call.outputs) & set(tensors)), None
    )


def _is_barrier(query: Query, step: Input) -> bool:
    """Whether a gradient might have flowed through what enters the pass as it was recorded."""
    if step.how in (CUT, CARRIED):
        return True
    maker = query.tensors.made(step.tensor)
    return isinstance(maker, OpRan) and step.how != LEAF and maker.grad_enabled and any(maker.inputs)


def _gained(before: Outcome, after: Outcome, leaf: int) -> np.ndarray | None:
    """The gradient of a leaf that had none, or one of zeros; None where there still is no other."""
    was, gradient = before.gradients.get(leaf), after.gradients.get(leaf)
    is_new = gradient is not None and bool(gradient.any()) and (was is None or not was.any())
    return gradient if is_new else None
