"""The optimizer step after a pass with another learning rate, and the loss after it.

SGD, Adam and similar optimizers subtract a product with the learning rate: their averages do not depend on it. So the
step with another rate follows from the parameters before and after the step, without the averages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradviz.events.kinds import Kind, Mutated, Stepped, ValueKept
from gradviz.query.optimizer_settings import number_of, settings_of
from gradviz.query.query import Query
from gradviz.replay.outcome import Check, Edits, Runner, checked
from gradviz.replay.plan import LEAF, Input, Plan, ReplayError, plan_of
from gradviz.tracefile import Snapshot
from gradviz.words.escape import clean
from gradviz.words.words import Words

# torch.optim: the change of a step is lr times a term that does not depend on lr, weight decay included.
_PROPORTIONAL = frozenset("SGD Adam AdamW RMSprop Adagrad Adamax NAdam RAdam Adadelta".split())
_RATE = "lr"


@dataclass(frozen=True)
class Step:
    """A parameter before a step, after it, and after the step with the other rate."""

    leaf: int
    before: np.ndarray
    after: np.ndarray
    scaled: np.ndarray


@dataclass(frozen=True)
class ScaledStep:
    """A step with `factor` times its learning rate; `rates` are the original rates. `losses` has, for each root of
    the pass, its value before the step, after it, and after the scaled step, on the same data."""

    plan: Plan
    runner: str
    check: Check
    stepped: Stepped
    factor: float
    rates: tuple[float, ...]
    steps: tuple[Step, ...]
    losses: tuple[tuple[int, np.ndarray, np.ndarray, np.ndarray], ...]


def scaled_step(words: Words, runner: Runner, number: int | None, text: str) -> ScaledStep:
    """The step after a pass (None: the last) with a scaled learning rate, given as `lr=0.1`. Raises ReplayError if
    that cannot be known."""
    factor = _factor(text)
    plan = plan_of(words.query, number)
    stepped = step_behind(words.query, plan)
    if stepped.type not in _PROPORTIONAL:
        raise ReplayError(f"how a step of {clean(stepped.type)} depends on its learning rate is not known")
    inputs = {step.tensor: step for step in plan.inputs if step.how == LEAF}
    steps = tuple(
        _scaled(inputs[leaf], _after(words, stepped, leaf), factor)
        for leaf in dict.fromkeys(stepped.parameters)
        if leaf in inputs
    )
    outcomes = [
        runner.run(plan, Edits(values))
        for values in (
            {},
            {step.leaf: step.after for step in steps},
            {step.leaf: step.scaled for step in steps},
        )
    ]
    return ScaledStep(
        plan,
        runner.name,
        checked(words.query, plan, outcomes[0]),
        stepped,
        factor,
        tuple(dict.fromkeys(number_of(settings_of(group).get(_RATE)) for group in stepped.groups)),
        steps,
        tuple((root, *(outcome.roots[root] for outcome in outcomes)) for root in plan.roots),  # type: ignore[misc]
    )


def _factor(text: str) -> float:
    name, _, value = text.partition("=")
    factor = number_of(value)
    if name.strip() != _RATE or not np.isfinite(factor):
        raise ReplayError(f"--scale takes lr=FACTOR, as lr=0.1 for a tenth, not {clean(text)}")
    return factor


def step_behind(query: Query, plan: Plan) -> Stepped:
    """The optimizer step that changes leaves of a pass, before the next pass. Raises ReplayError if there is none, or
    more than one."""
    trace = query.trace
    this_pass = trace.find_pass(plan.number)
    end = trace.count if this_pass is None or this_pass.last is None else this_pass.last
    later = [one for one in trace.passes if one.first > end]
    if later and later[0].number > plan.number + 1:
        raise ReplayError(f"what came behind pass {plan.number} is not in the trace")
    following = later[0].first if later else trace.count
    events = trace.indices(Kind.STEPPED)
    found = [trace.event(event) for event in events[(events > end) & (events < following)].tolist()]
    steps = [
        event for event in found if isinstance(event, Stepped) and set(event.parameters) & set(plan.leaves)
    ]
    if len(steps) != 1:
        count = "no optimizer steps" if not steps else "several optimizers step"
        raise ReplayError(f"{count} between pass {plan.number} and the next one")
    return steps[0]


def _after(words: Words, stepped: Stepped, leaf: int) -> np.ndarray:
    """A parameter after a step."""
    event = event_behind(words.query, stepped, leaf)
    value = None if event is None else _value_at(words.query, event, leaf)
    if value is None or value.array is None:
        raise ReplayError(
            f"what the step made of {clean(words.called(leaf))} is not in the trace: no recorded pass begins with it"
        )
    return value.array


def event_behind(query: Query, stepped: Stepped, leaf: int) -> int | None:
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
        value = _value_at(query, event, leaf)
        if value is not None and value.array is not None:
            return event
    return None


def _value_at(query: Query, event: int, leaf: int) -> Snapshot | None:
    """The value of a parameter that a write left, or that was kept."""
    kept = query.trace.event(event)
    if isinstance(kept, ValueKept):
        return query.trace.snapshot(kept.copy, event) if kept.original == leaf else None
    return query.memory.value(leaf, event)


def _scaled(entered: Input, after: np.ndarray, factor: float) -> Step:
    before = entered.value.array
    assert before is not None
    wide = np.complex128 if before.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        change = after.astype(wide) - before.astype(wide)
        scaled = (before.astype(wide) + factor * change).astype(before.dtype)
    return Step(entered.tensor, before, after, scaled)
