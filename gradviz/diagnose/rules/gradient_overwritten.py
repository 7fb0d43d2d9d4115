"""`gradient-overwritten`: a gradient that no step has used is replaced, by an assignment to `.grad` or by `copy_`,
with something that was not computed from gradients (scaled, clipped, averaged gradients are)."""

from __future__ import annotations

from collections.abc import Iterator

from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import ERROR
from gradviz.diagnose.rule import Found, Need, Rule
from gradviz.events.kinds import Kind
from gradviz.query.training import ACCUMULATED, CHANGED, STEPPED
from gradviz.sets import contained, distinct

_EVENTS = 64  # of a line that are looked at
_REPLACING = ("copy_", "data", "set_", "fill_")


def _search(case: Case) -> Iterator[Found]:
    lives = case.training.lives
    changed = lives.whats == CHANGED
    waiting = changed & (lives.before(lives.whats == ACCUMULATED) + lives.before(changed) > 0)
    waiting &= (lives.before(lives.whats == STEPPED) == 0) & (lives.after(lives.whats == STEPPED) > 0)
    for events in case.by_site(distinct(lives.events[waiting])).values():
        replaced = [event for event in events[:_EVENTS].tolist() if _replaces(case, event)]
        if not replaced:
            continue
        leaves = tuple(distinct(lives.leaves[contained(lives.events, replaced) & waiting]).tolist())
        if _is_zero(case, replaced[0]) and not case.training.trained <= set(leaves):
            continue
        yield Found(
            f"the gradient{'s' * (len(leaves) > 1)} of {case.called(leaves)} "
            f"{'are' if len(leaves) > 1 else 'is'} replaced before any step has used "
            f"{'them' if len(leaves) > 1 else 'it'}",
            "p.grad += new  # add to what is there, or do not compute what is thrown away",
            (replaced[0],),
            tensors=leaves,
        )


def _replaces(case: Case, event: int) -> bool:
    """Whether an event puts something into `.grad` that was not computed from a gradient."""
    if case.trace.kinds[event] == Kind.GRAD_ASSIGNED:
        assigned = case.trace.table(Kind.GRAD_ASSIGNED).object(event)
        return not case.training.stems_from_gradient(assigned.grad, event)
    if case.query.tensors.writer(event) not in _REPLACING:
        return False
    if case.query.tensors.is_op(event):
        sources = case.query.tensors.op(event).inputs[1:]
    else:
        sources = (case.query.tensors.mutation(event).source,)
    return not any(case.training.stems_from_gradient(source, event) for source in sources if source)


def _is_zero(case: Case, event: int) -> bool:
    """Whether what an event puts there is 0: so a leaf is kept from learning on purpose."""
    if case.trace.kinds[event] != Kind.GRAD_ASSIGNED:
        return False
    states = case.trace.states
    row = states.valued(case.trace.table(Kind.GRAD_ASSIGNED).object(event).grad, event)
    return row >= 0 and states.stats[row, 3] == 0


RULE = Rule(
    "gradient-overwritten",
    ERROR,
    "a gradient that is replaced before a step has used it",
    _search,
    needs=(Need.TRAINING,),
)
