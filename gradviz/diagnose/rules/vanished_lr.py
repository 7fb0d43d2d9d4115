"""`vanished-lr`: for the last fifth of the run or longer, the learning rate is below a millionth of its highest value
before, while there still are gradients. If a scheduler is stepped in each batch, it is enough that the rate is below a
thousandth for the last half of the run. Also reported: a rate that is 0 at every step, be it of one group alone.

Why it is bad: the steps change almost nothing, though the run goes on.

Example:

    torch.manual_seed(0)
    w = torch.randn(3, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.1)
    def decay(optimizer, step):
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * 0.1 ** step
    for step in range(10):
        optimizer.zero_grad()
        (w - 1.0).pow(2).sum().backward()
        optimizer.step()  # <- vanished-lr
        decay(optimizer, step)

Cure: let the rate decay more slowly, or once an epoch instead of once a batch.

Not reported: a schedule that is near 0 only at its end, and a warm-up.
"""

from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.loops import loops_around
from gradviz.diagnose.rule import WARNING, Case, Found, Kind, Need, Rule, Threshold
from gradviz.events.values import Stat
from gradviz.query.ledger import Ledger
from gradviz.query.optimizer_steps import rates_of_groups
from gradviz.sets import distinct, without
from gradviz.words.numbers import number

_SHARE, _LEAST = 0.2, 3
_THOUSANDTH, _HALF = 1e-3, 0.5  # the two bounds for a rate that falls in each batch
_FEW = 10  # a scheduler with more steps than these is to be stepped less often
_MILDER = "a milder schedule here (gamma, step_size, T_max), or a lower bound (eta_min)"
_LESS_OFTEN = "step the scheduler once in the unit it was made for (per epoch, not per batch), or use a lower bound"
_ZERO = "the learning rate is 0 in all steps: no step changes a parameter"
_ABOVE_ZERO = "set a rate above 0 before this step: the lr of each group of the optimizer is 0 at all steps"


@Rule(
    "vanished-lr",
    WARNING,
    "a learning rate that is almost 0 long before the end",
    needs=(Need.VALUES, Need.STEPS),
    follows=("unused-scheduler",),
    threshold=Threshold(1e-6, 0, 1, "the learning rate relative to the highest one before"),
)
def vanished_lr(case: Case) -> Iterator[Found]:
    stepped = case.training.stepped
    for optimizer in distinct(stepped["optimizer"]).tolist():
        of_optimizer = stepped["optimizer"] == optimizer
        events, rates = stepped.events[of_optimizer], case.training.rates[of_optimizer]
        if not np.isfinite(rates).all():
            continue
        yield from _of_groups(case, optimizer)
        last = _tiny_at_the_end(rates, vanished_lr.threshold_in(case))
        if last < max(_LEAST, _SHARE * len(rates)):
            last = _tiny_at_the_end(rates, _THOUSANDTH)
            if last < max(_LEAST, _HALF * len(rates)) or not _is_stepped_per_batch(case, optimizer):
                continue
        first, came = int(events[-last]), case.trace.table(Kind.ACCUMULATED)
        rows = case.trace.states.rows_of(came["gradient"], came.events)
        if not (case.trace.states.stats[rows[(came.events > first) & (rows >= 0)], Stat.RMS] > 0).any():
            continue
        scheduled = case.trace.table(Kind.SCHEDULED)
        before = scheduled.events[np.isin(scheduled["optimizer"], [optimizer, 0]) & (scheduled.events < first)]
        by = int(before[-1]) if len(before) else -1
        making = _making(case, optimizer, by)
        when = f"from step {len(rates) - last + 1} of {len(rates)} on" if last < len(rates) else "in all steps"
        if not rates.any():
            held = case.training.held_by(optimizer)
            yield Found(_ZERO, _ABOVE_ZERO, (by if by >= 0 else first, first), tensors=held)
            continue
        yield Found(
            f"the learning rate is {number(float(rates[-last]), 3)} {when} (at most {number(float(rates.max()), 3)} "
            "before): the parameters hardly change any more",
            _MILDER if making >= 0 else _LESS_OFTEN,
            (making if making >= 0 else by if by >= 0 else first, first),
        )


def _of_groups(case: Case, optimizer: int) -> Iterator[Found]:
    """The groups of an optimizer whose rate is 0 at all its steps, while that of another is not, with the leaves of the
    optimizer that have gradients at its steps and that no step changes."""
    groups = case.training.stepped.lists("groups")
    own = (case.training.stepped["optimizer"] == optimizer)[groups.owners]
    counts = distinct(groups.counts[case.training.stepped["optimizer"] == optimizer])
    rates = case.query.of(rates_of_groups)[own].reshape(-1, int(counts[0])) if len(counts) == 1 else np.ones((0, 1))
    zero = np.flatnonzero((rates == 0).all(axis=0))
    if len(rates) < _LEAST or not 0 < len(zero) < len(rates[0]):
        return
    rows = case.query.of(Ledger).rows
    fed = (rows.optimizers == optimizer) & (rows.norms > 0)
    leaves = without(rows.leaves[fed & (rows.changes == 0)], rows.leaves[fed & (rows.changes != 0)])
    if len(leaves):
        which = f"group {zero[0] + 1}" if len(zero) == 1 else f"{len(zero)} groups"
        name, called = case.training.optimizer_class(optimizer), case.called(leaves.tolist())
        yield Found(
            f"the learning rate of {which} of {name} is 0 in all steps: {called} get gradients, and no step changes "
            f"{'it' if len(leaves) == 1 else 'them'}",
            "a rate above 0 for this group; or requires_grad_(False) for what is not to be trained",
            (case.training.made_at(optimizer), int(rows.steps[fed][0])),
            tensors=tuple(leaves.tolist()),
        )


def _tiny_at_the_end(rates: np.ndarray, share: float) -> int:
    """The number of rates at the end that are at most this share of the highest rate before them."""
    tiny = rates <= share * np.maximum.accumulate(rates)
    return len(rates) - (int(np.flatnonzero(~tiny)[-1]) + 1 if not tiny.all() else 0)


def _is_stepped_per_batch(case: Case, optimizer: int) -> bool:
    """Whether a scheduler is stepped in a nested loop, at least as often as the optimizer."""
    scheduled = case.trace.table(Kind.SCHEDULED)
    events = scheduled.events[np.isin(scheduled["optimizer"], [optimizer, 0]) & (scheduled["steps"] > 0)]
    steps = np.count_nonzero(case.training.stepped["optimizer"] == optimizer)
    return bool(len(events) >= steps > 0) and loops_around(case, case.site(int(events[-1]))) > 1


def _making(case: Case, optimizer: int, by: int) -> int:
    """The event where a scheduler was made, if it lowered the rate within a few steps and outside of a nested loop
    (over batches), or if a library steps it. −1 if the program should step it less often, or if there is no
    scheduler."""
    scheduled = case.trace.table(Kind.SCHEDULED)
    made = scheduled.events[np.isin(scheduled["optimizer"], [optimizer, 0]) & (scheduled["steps"] == 0)]
    if by < 0 or not len(made):
        return -1
    step = case.trace.sites.get(case.site(by))
    is_own = step is None or not case.trace.has_sources or bool(case.trace.source(step.place.file))
    is_often = scheduled.object(by).steps > _FEW or loops_around(case, case.site(by)) > 1
    return -1 if is_own and is_often else int(made[0])
