"""The optimizer step after a pass with another learning rate, and the loss after it.

SGD, Adam and similar optimizers subtract a product with the learning rate: their averages do not depend on it. So the
step with another rate follows from the parameters before and after the step, without the averages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradviz.events.kinds import Stepped
from gradviz.query.optimizer_steps import (
    event_after_step,
    is_next_pass_recorded,
    number_of,
    settings_of,
    steps_after,
    value_at,
)
from gradviz.query.query import Query
from gradviz.replay.outcome import Check, Edits, Runner, checked
from gradviz.replay.plan import LEAF, Input, Plan, ReplayError, plan_of
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
    if not is_next_pass_recorded(query, plan.number):
        raise ReplayError(f"what came behind pass {plan.number} is not in the trace")
    steps = steps_after(query, plan.began, plan.leaves)
    if len(steps) != 1:
        count = "no optimizer steps" if not steps else "several optimizers step"
        raise ReplayError(f"{count} between pass {plan.number} and the next one")
    return steps[0]


def _after(words: Words, stepped: Stepped, leaf: int) -> np.ndarray:
    """A parameter after a step."""
    event = event_after_step(words.query, stepped, leaf)
    value = None if event is None else value_at(words.query, event, leaf)
    if value is None or value.array is None:
        raise ReplayError(
            f"what the step made of {clean(words.called(leaf))} is not in the trace: no recorded pass begins with it"
        )
    return value.array


def _scaled(entered: Input, after: np.ndarray, factor: float) -> Step:
    before = entered.value.array
    assert before is not None
    wide = np.complex128 if before.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        change = after.astype(wide) - before.astype(wide)
        scaled = (before.astype(wide) + factor * change).astype(before.dtype)
    return Step(entered.tensor, before, after, scaled)
