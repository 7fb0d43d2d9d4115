"""`gradient-overwritten`: a gradient that no step has used is replaced, by an assignment to `.grad` or by
`copy_`, with a tensor that was not computed from gradients.

Why it is bad: the step uses the replacement, and the gradient from backward is lost.

Example:

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU(), torch.nn.Linear(5, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    def add_noise(parameters, sigma):
        for p in parameters:
            p.grad = sigma * torch.randn_like(p)  # <- gradient-overwritten
    for x in torch.randn(4, 8, 3):
        opt.zero_grad()
        net(x).pow(2).mean().backward()
        add_noise(net.parameters(), 0.01)
        opt.step()

Cure: add to the gradient (`p.grad = p.grad + noise`), or leave out the backward whose result is not used.

Not reported: gradients that are scaled, clipped or averaged, and gradients of the terms of one loss that the program
combines in its own way.
"""

import ast
from collections.abc import Iterator

from gradviz.diagnose.rule import ERROR, Case, Edit, Fix, Found, Kind, Need, Rule, Spot
from gradviz.query.flow import Ways, reach, sources
from gradviz.query.training import ACCUMULATED, CHANGED, STEPPED
from gradviz.query.zeros import is_zero
from gradviz.sets import contained, distinct

_EVENTS = 64  # the most events of one line that are looked at
_LOOKED_AT = 512  # the most tensors behind a new `.grad` that are looked at
_REPLACING = ("copy_", "data", "set_", "fill_")


@Rule("gradient-overwritten", ERROR, "a gradient that is replaced before a step has used it", needs=(Need.TRAINING,))
def gradient_overwritten(case: Case) -> Iterator[Found]:
    lives = case.training.lives
    changed = lives.whats == CHANGED
    waiting = changed & (lives.before(lives.whats == ACCUMULATED) + lives.before(changed) > 0)
    waiting &= (lives.before(lives.whats == STEPPED) == 0) & (lives.after(lives.whats == STEPPED) > 0)
    for events in case.by_site(distinct(lives.events[waiting])).values():
        replaced = [
            event
            for event in events[:_EVENTS].tolist()
            if _replaces(case, event) and not _is_of_the_same_loss(case, event)
        ]
        if not replaced:
            continue
        leaves = tuple(distinct(lives.leaves[contained(lives.events, replaced) & waiting]).tolist())
        is_assigned = case.trace.kinds[replaced[0]] == Kind.GRAD_ASSIGNED
        grad = _put_there(case, replaced[0])[0] if is_assigned else 0  # zeros keep a leaf from learning on purpose
        if grad and is_zero(case.trace.snapshot(grad, replaced[0])) and not case.training.trained <= set(leaves):
            continue
        yield Found(
            f"the gradient{'s' * (len(leaves) > 1)} of {case.called(leaves)} "
            f"{'are' if len(leaves) > 1 else 'is'} replaced before any step has used "
            f"{'them' if len(leaves) > 1 else 'it'}",
            Fix("p.grad += new  # add to what is there, or do not compute what is thrown away", _added),
            (replaced[0],),
            tensors=leaves,
        )


def _replaces(case: Case, event: int) -> bool:
    """Whether an event replaces `.grad` by a tensor that was not computed from a gradient."""
    is_assigned = case.trace.kinds[event] == Kind.GRAD_ASSIGNED
    if not is_assigned and case.query.tensors.writer(event) not in _REPLACING:
        return False
    return not any(case.training.stems_from_gradient(tensor, event) for tensor in _put_there(case, event))


def _put_there(case: Case, event: int) -> list[int]:
    """The tensors from which an event takes the new value of `.grad`."""
    if case.trace.kinds[event] == Kind.GRAD_ASSIGNED:
        return [case.trace.table(Kind.GRAD_ASSIGNED).object(event).grad]
    if case.query.tensors.is_op(event):
        return [tensor for tensor in case.query.tensors.op(event).inputs[1:] if tensor]
    return [tensor for tensor in (case.query.tensors.mutation(event).source,) if tensor]


def _is_of_the_same_loss(case: Case, event: int) -> bool:
    """Whether the new `.grad` was computed from the gradients of terms of the same loss whose gradient it replaces, as
    when a program removes the conflicts between the gradients of several tasks."""
    accumulating = set(case.trace.table(Kind.ACCUMULATED)["in_pass"].tolist())
    before = (backward_pass for backward_pass in reversed(case.trace.passes) if backward_pass.first < event)
    replaced = next((backward_pass for backward_pass in before if backward_pass.number in accumulating), None)
    if replaced is None:
        return False
    (root, *more) = case.query.passes.began(replaced.number).roots
    numbers = _passes_behind(case, _put_there(case, event))
    terms = {r.tensor for number in numbers for r in case.query.passes.began(number).roots}
    return bool(terms) and not more and terms <= set(Ways(case.query, root.tensor, replaced.first).reached)


def _passes_behind(case: Case, tensors: list[int]) -> set[int]:
    """The passes from whose gradients these tensors were computed."""
    known = case.of(_gradients)

    def onward(tensor: int) -> tuple[int, ...]:
        return () if tensor in known else sources(case.query, tensor, through_memory=True)

    return {known[tensor] for tensor in reach(tensors, onward, _LOOKED_AT) if tensor in known}


def _gradients(case: Case) -> dict[int, int]:
    """The pass that each gradient flowed in."""
    produced = case.trace.table(Kind.PRODUCED)
    flows = produced.lists("flows")
    return dict(zip(flows.elements[:, 1].tolist(), produced["in_pass"][flows.owners].tolist(), strict=True))


def _added(spot: Spot) -> list[Edit]:
    """`p.grad = p.grad + g` in place of `p.grad = g`, if there is a `p.grad`."""
    source, statement = spot.source, spot.statement
    if not isinstance(statement, ast.Assign):
        return []
    target, value = source.code(statement.targets[0]), source.code(statement.value)
    return [source.replaced(statement.value, f"{value} if {target} is None else {target} + {value}")]
