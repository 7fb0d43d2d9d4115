"""`unused-scheduler`: a learning-rate scheduler is made, and nothing ever calls its `step()`; or each call is given the
same number, as in `scheduler.step(0)`, and sets the same rate again; or it sets the rates of an older optimizer, while
another one takes the steps.

Why it is bad: the rate was meant to fall or to warm up, and stays as it is when the scheduler is made.

Example:

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)  # <- unused-scheduler
    for epoch in range(3):
        for step in range(2):
            x = torch.randn(16, 4)
            loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        rate = scheduler.get_last_lr()[0]

Cure: call `scheduler.step()` after each epoch or after each batch, whichever the schedule counts.

Not reported: a run that did not end by itself; a scheduler whose `step` is called somewhere in the source, even if the
run did not reach the call; a scheduler that is passed to another function or kept in a list.
"""

import ast
from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.fix import makes_edits
from gradviz.diagnose.rule import WARNING, Case, Edit, Fix, Found, Kind, Need, Rule, Spot
from gradviz.query.functions_of_source import nodes_of
from gradviz.query.pass_owners import assigned_at
from gradviz.query.source_trees import method_calls, trees
from gradviz.sets import distinct

_LEAST = 2  # the fewest steps of the optimizer


@Rule(
    "unused-scheduler",
    WARNING,
    "a learning-rate scheduler that nothing steps",
    needs=(Need.SCHEDULER, Need.STEPS, Need.START),
)
def unused_scheduler(case: Case) -> Iterator[Found]:
    if case.trace.meta.get("ended") != "ok":
        return
    scheduled, stepped = case.scheduled, case.training.stepped
    for optimizer in distinct(scheduled["optimizer"]).tolist():
        events = scheduled.events[scheduled["optimizer"] == optimizer]
        event, name = scheduled.object(int(events[0])), assigned_at(case.query, case.site(int(events[0])))
        later = stepped.events[(stepped["optimizer"] == optimizer) & (stepped.events > event.index)]
        own, step = scheduled["optimizer"] == optimizer, f"{name}.step()"
        if len(events) > 1 or event.steps:
            values = (scheduled[column][own] for column in ("type", "steps", "rates"))
            yield from _of_an_older_optimizer(case, optimizer, events[1:])
            is_one = len(case.by_site(events[1:])) == 1 and all(len(distinct(one)) == 1 for one in values)
            if is_one and len(distinct(np.searchsorted(later, events[1:]))) > _LEAST:
                yield Found(
                    f"{len(events) - 1} calls set {event.type} to its first step again: the rate never changes",
                    Fix("scheduler.step()  # without a number: it counts by itself", _without_a_number),
                    (int(events[1]), int(events[-1])),
                )
            continue
        if len(later) < _LEAST or not name or _is_used(case, name):
            continue
        yield Found(
            f"nothing calls {step}: {event.type} changes no rate in the {len(later)} steps of the "
            "optimizer after this line",
            Fix(f"{step}  # after each epoch, or after each batch, as its schedule counts", _in_the_loop(step)),
            (event.index, int(later[0])),
            tensors=case.training.held_by(optimizer),
        )


def _of_an_older_optimizer(case: Case, optimizer: int, calls: np.ndarray) -> Iterator[Found]:
    """The finding for calls of a scheduler after the last step of its optimizer, if an optimizer that was made later
    takes the steps of the same parameters."""
    held, stepped = case.trace.table(Kind.HOLDS), case.training.stepped
    steps, own = stepped.events[stepped["optimizer"] != optimizer], set(case.training.held_by(optimizer))
    made_or_stepped = [one.events[one["optimizer"] == optimizer].max(initial=-1) for one in (held, stepped)]
    for event in held.events[held.events > max(made_or_stepped)].tolist():
        other, later = held.object(event), calls[calls > event]
        if len(distinct(np.searchsorted(steps, later))) > _LEAST and not own.isdisjoint(other.parameters):
            yield Found(
                f"{case.scheduled.object(int(later[0])).type} sets the rates of an older optimizer, which takes no "
                f"step after this line: {other.type}, made here, steps {case.called(other.parameters)} with its own",
                "make the scheduler anew with this optimizer, or make the optimizer once",
                (event, int(later[0])),
                tensors=other.parameters,
            )
            return


def _is_used(case: Case, name: str) -> bool:
    """Whether the source passes a scheduler on by its name, or calls `step` of a variable of this name."""
    last = name.rpartition(".")[2]
    for tree in case.query.of(trees).values():
        stepped = {ast.unparse(owner).rpartition(".")[2] for _, owner in method_calls(tree, "step")}
        read = [
            node
            for node in nodes_of(tree)
            if (isinstance(node, ast.Name) and node.id == last and isinstance(node.ctx, ast.Load))
            or (isinstance(node, ast.Attribute) and node.attr == last and isinstance(node.ctx, ast.Load))
        ]
        asked = {id(node.value) for node in nodes_of(tree) if isinstance(node, ast.Attribute)}
        if last in stepped or any(id(node) not in asked for node in read):
            return True
    return False


def _without_a_number(spot: Spot) -> list[Edit]:
    return [spot.source.replaced(call, f"{spot.receiver(call)}.step()") for call in spot.calls_here("step")]


@makes_edits
def _in_the_loop(spot: Spot, step: str) -> list[Edit]:
    """A statement at the end of the first loop after the line that makes the scheduler."""
    later = (spot.statement, *spot.source.behind(spot.statement))
    loop = next((other for other in later if isinstance(other, ast.For | ast.While)), None)
    return [spot.source.after(loop.body[-1], step)] if loop is not None else []
