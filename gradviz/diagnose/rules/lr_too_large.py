"""`lr-too-large`: the updates overshoot. The norm of the gradients grows from step to step, by a factor of 1000 or
more in all, perhaps until it overflows; or a single step makes a parameter NaN or infinite.

Why it is bad: each step ends farther from the minimum than it began, until the numbers overflow.

Example:

    w = torch.tensor(1.0, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=1.5)
    for step in range(20):
        loss = (w - 3.0) ** 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # <- lr-too-large

Cure: use a tenth of the learning rate, or a hundredth if the norm grows ninefold or more in a step; or clip the
gradients.

Not reported: a range test, which raises the rate on purpose; gradients that are clipped before each step; a NaN that
the program itself writes into a parameter or its gradient, which is `nonfinite-forward`.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gradviz.diagnose.nonfinite import Origin, Source, first_bad, is_finite
from gradviz.diagnose.norms import norms_of_passes, range_tests
from gradviz.diagnose.rule import ERROR, WARNING, Case, Edit, Fix, Found, Kind, Need, Rule, Spot, Threshold
from gradviz.query.ledger import Ledger
from gradviz.query.optimizer_steps import number_of, settings_of
from gradviz.query.training import STEPPED
from gradviz.sets import contained
from gradviz.tracefile import PassInfo
from gradviz.words.numbers import number

_LEAST, _LEAST_FINITE = 3, 5  # passes, with and without an overflow at the end
_NINEFOLD = 9.0  # from this growth in one step on, a tenth of the rate is still too large
_TENTH, _HUNDREDTH = ("a tenth", "0.1"), ("a hundredth", "0.01")
_RISING = 0.7  # the share of the passes in which the norm has to rise


@Rule(
    "lr-too-large",
    WARNING,
    "updates that overshoot, so that the gradients grow from step to step",
    needs=(Need.VALUES, Need.TRAINING, Need.PASSES),
    follows=("huge-start", "stale-gradient"),
    threshold=Threshold(1e3, 1, math.inf, "how many times larger the norm of the gradients becomes"),
)
def lr_too_large(case: Case) -> Iterator[Found]:
    steps = case.training.lives.events[case.training.lives.whats == STEPPED]
    origin = case.of(first_bad)
    if len(steps) == 0:
        return
    for passes, norms in norms_of_passes(case):
        finite = np.isfinite(norms) & (norms > 0)
        rising = norms[finite]
        overflow = origin is not None and not finite.all()
        if len(rising) < (_LEAST if overflow else _LEAST_FINITE):
            continue
        growth = lr_too_large.threshold_in(case)
        if rising[-1] < growth * (rising[0] if overflow else np.median(rising[:3])):
            continue
        if np.mean(np.diff(rising) > 0) < _RISING:
            continue
        if _are_clipped(case, passes, growth):
            continue
        begins = passes[0].first
        first = int(steps[np.searchsorted(steps, begins)]) if steps[-1] > begins else int(steps[0])
        if contained(np.array([first]), case.of(range_tests)).any():
            continue
        until = f"{case.passes_called(len(rising))}{' and then is no longer finite' if overflow else ''}"
        yield Found(
            f"the norm of the gradients grows from {number(rising[0], 3)} to {number(rising[-1], 3)} in {until}: the "
            "updates overshoot",
            # If the root is a parabola of curvature c, a step at the rate r changes the gradient by the factor 1 − rc:
            # a norm that grows less than ninefold in each step falls with a tenth of the rate.
            _smaller(*(_TENTH if np.max(rising[1:] / rising[:-1]) < _NINEFOLD else _HUNDREDTH)),
            (first, passes[-1].first),
            severity=ERROR if overflow else WARNING,
        )
        return
    if origin is not None and origin.source is Source.STEP:
        yield _one_step(case, origin)


def _are_clipped(case: Case, passes: Sequence[PassInfo], growth: float) -> bool:
    """Whether the program clips gradients, and the changes by the steps behind these passes do not grow so much."""
    rows, firsts = case.query.of(Ledger).rows, [one.first for one in case.trace.passes]
    before = np.append(0, firsts)[np.searchsorted(firsts, rows.steps)]
    own = contained(before, [one.first for one in passes]) & np.isfinite(rows.changes) & (rows.changes > 0)
    changes = rows.changes[own] if len(case.trace.table(Kind.CLIPPED)) else rows.changes[:0]
    return len(changes) > 0 and bool(changes.max() < growth * changes.min())


def _smaller(part: str, factor: str) -> Fix:
    return Fix(
        f"use {part} of the learning rate, or clip the gradients before the step",
        lambda spot: _with_rate_times(spot, factor),
    )


def _with_rate_times(spot: Spot, factor: str) -> list[Edit]:
    """A part of the learning rate at the optimizer that steps at the line, or at the only optimizer."""
    source, made = spot.source, list(spot.optimizers())
    stepping = {spot.receiver(call) for call in spot.calls_here("step")}
    stepping_here = [call for node, call, name in made if name in stepping or node is spot.statement]
    for call in stepping_here or ([made[0][1]] if len(made) == 1 else []):
        for keyword in call.keywords:
            if keyword.arg == "lr":
                return [source.replaced(keyword.value, f"{factor} * {source.code(keyword.value)}")]
    return []


def _one_step(case: Case, origin: Origin) -> Found:
    """The finding for a step that makes a parameter NaN or infinite. The gradient and the settings of the step, where
    the trace has them, choose the cure."""
    name, bad = case.words.called(origin.tensor), "NaN" if origin.is_nan else "infinite"
    gradient = case.query.tensors.grads.last(origin.tensor, origin.event) or 0
    value = case.query.memory.value(gradient, origin.event) if gradient else None
    settings = _settings(case, origin)
    rate = number_of(settings.get("lr"))
    message = f"a step makes {name} {bad}{' while its gradient is finite' if is_finite(value) else ''}"
    cure: Fix | str = _smaller(*_HUNDREDTH)
    if "lr" in settings and not np.isfinite(rate):
        message, cure = (f"{message}: its learning rate is {rate}", "give the optimizer a rate that is a number")
    elif settings.get("eps") == 0 and origin.is_nan and value is not None and value.stats and value.stats.zeros:
        message = f"{message}: eps is 0, and elements of the gradient are 0"
        cure = "leave out eps=0: the default keeps the step from 0 / 0"
    return Found(message, cure, (origin.event, origin.harm), tensors=(origin.tensor,), severity=ERROR)


def _settings(case: Case, origin: Origin) -> Mapping[str, Any]:
    """The settings that the step before an event uses for a parameter; empty if they are not known."""
    steps = case.training.stepped.events
    at = int(np.searchsorted(steps, origin.event)) - 1
    if at < 0:
        return {}
    step = case.training.stepped.object(int(steps[at]))
    place = step.parameters.index(origin.tensor) if origin.tensor in step.parameters else -1
    for group in step.groups:
        if 0 <= place < group.size:
            return settings_of(group)
        place -= group.size
    return {}
