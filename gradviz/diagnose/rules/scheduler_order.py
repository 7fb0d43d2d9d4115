"""`scheduler-order`: a learning-rate scheduler is stepped before the optimizer has stepped for the first time,
so that the first value of its schedule is never used; or it is stepped more often than its schedule was made for.

Why it is bad: the first rate of the schedule is skipped, or the schedule ends long before the training.

Example:

    torch.manual_seed(0)
    w = torch.randn(3, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
    for epoch in range(4):
        scheduler.step()  # <- scheduler-order
        optimizer.zero_grad()
        loss = (w ** 2).sum()
        loss.backward()
        optimizer.step()

Cure: call `scheduler.step()` after `optimizer.step()`, once an epoch or once a batch: the schedule has to be as long
as the training.

Not reported: a scheduler that is stepped once more at the end; a `CosineAnnealingLR` in a loop of its own that goes on
over several periods of three steps or more, since a rate that falls and rises may be meant.
"""

from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.loops import loops_around
from gradviz.diagnose.own_words import in_order
from gradviz.diagnose.rule import WARNING, Case, Edit, Fix, Found, Need, Rule, Spot
from gradviz.query.optimizer_steps import rates_of
from gradviz.sets import contained, distinct

_LEAST = 3  # steps of the scheduler: only more of them are reported
_PERIODIC = "CosineAnnealingLR"


@Rule(
    "scheduler-order",
    WARNING,
    "a scheduler that is stepped before the optimizer, or too often",
    needs=(Need.SCHEDULER, Need.STEP, Need.START),
)
def scheduler_order(case: Case) -> Iterator[Found]:
    scheduled, stepped = case.scheduled, case.training.stepped
    for optimizer in distinct(scheduled["optimizer"]).tolist():
        calls = scheduled.events[(scheduled["optimizer"] == optimizer) & (scheduled["steps"] > 0)]
        steps = stepped.events[stepped["optimizer"] == optimizer] if optimizer else stepped.events
        if len(calls) and len(steps) and calls[0] < steps[0]:
            event = scheduled.object(int(calls[0]))
            yield Found(
                f"{event.type} is stepped before the optimizer: the first rate of its schedule is skipped",
                Fix(in_order(case, case.site(int(steps[0])), case.site(int(calls[0]))), _behind_the_step),
                (int(calls[0]), int(steps[0])),
            )
            continue
        for events in case.by_site(calls).values():
            types = scheduled["type"][contained(scheduled.events, events)]
            if len(distinct(types)) == 1:  # else a scheduler of schedulers
                yield from _too_often(case, events, steps)


def _too_often(case: Case, calls: np.ndarray, steps: np.ndarray) -> Iterator[Found]:
    """The finding for a scheduler that is stepped several times for each step of its optimizer, or for a periodic
    scheduler that is stepped past its period, so that the rate rises again."""
    first = case.scheduled.object(int(calls[0]))
    places = np.searchsorted(steps, calls)
    counts = np.bincount(places)[places.min() :]
    several = counts[(counts > 0)] > 1
    if len(calls) > _LEAST and several.mean() >= 0.5 and len(several) > 1 and len(calls) > len(steps):
        yield Found(
            f"{first.type} is stepped {len(calls)} times for {len(steps)} steps of the optimizer: its schedule "
            "runs ahead",
            Fix("scheduler.step()  # once after each optimizer.step()", _behind_the_step),
            (int(calls[0]), int(steps[0])),
        )
    elif first.type == _PERIODIC and _rises_again(case, calls):
        yield Found(
            f"{first.type} is stepped {len(calls)} times, past the end of its schedule: the rate rises again",
            Fix(
                "step it once in the unit of T_max, as per epoch; or T_max = the number of all its steps",
                _out_of_the_loop,
            ),
            (int(calls[0]), int(calls[-1])),
        )


def _rises_again(case: Case, calls: np.ndarray) -> bool:
    """Whether the rate falls below a fifth of its highest value, and then rises above four fifths of it: in an inner
    loop, or by one step, again and again, as with T_max=1."""
    rates_of_calls = [rates_of(case.scheduled.object(event).rates) for event in calls.tolist()]
    rates = np.array([max(rates) for rates in rates_of_calls if rates])
    if not len(rates) or np.isnan(rates).any():
        return False
    is_low, is_high = rates < 0.2 * rates.max(), rates > 0.8 * rates.max()
    leaps = np.count_nonzero(is_low[:-1] & is_high[1:])
    is_nested = loops_around(case, case.site(int(calls[0]))) > 1
    return bool(is_high[np.argmax(is_low) :].any() and is_low.any() if is_nested else leaps > 1)


def _behind_the_step(spot: Spot) -> list[Edit]:
    """The step of a scheduler moved behind the step of the optimizer."""
    source, statement = spot.source, spot.statement
    held = {name for _, _, name in spot.optimizers()}
    for other in source.siblings(statement):
        steps = [call for call in source.calls("step", within=other) if spot.receiver(call) in held]
        if steps and other is not statement:
            target = source.statement(steps[0])
            return [source.removed(statement), source.after(target, source.code(statement))]
    return []


def _out_of_the_loop(spot: Spot) -> list[Edit]:
    """The step of a scheduler moved out of the inner loop."""
    source, statement = spot.source, spot.statement
    loop = source.loop(statement)
    return [source.removed(statement), source.after(loop, source.code(statement))] if loop is not None else []
