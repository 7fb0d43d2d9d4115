"""Explains in words why a `.grad` is None or 0, and why a tensor has no grad_fn."""

from __future__ import annotations

from gradviz.events.kinds import OpRan, TensorMade
from gradviz.query.absence import Absence, Why, why_no_grad
from gradviz.query.cuts import Reason, why_no_node
from gradviz.query.zeros import why_zero
from gradviz.words.escape import clean
from gradviz.words.stop import Stop

NO_NODE = {
    Reason.NOTHING_REQUIRES_GRAD: "none of its inputs requires grad",
    Reason.GRAD_MODE_OFF: "grad mode was off, as under torch.no_grad()",
    Reason.DETACHED: "detach() cut it off from the graph",
    Reason.NOT_DIFFERENTIABLE: "its result is not differentiable",
}


def no_grad_told(stop: Stop, tensor: int, name: str) -> str:
    """One or two sentences on why a tensor's `.grad` is None at a stop."""
    absence = why_no_grad(stop.query, tensor, stop.moment)
    if absence.why is Why.NOT_MADE_YET:
        made = "" if absence.event < 0 else f" (event {absence.event + 1} makes it)"
        return f"{name}.grad: {name} does not exist yet{made}"
    if absence.why is Why.THERE:
        return f"{name}.grad is not None here: {stop.value(stop.moment.grad(tensor))}"
    later = f"; event {absence.to_come + 1} will set it" if absence.to_come >= 0 else ""
    return f"{name}.grad is None: {_REASONS[absence.why](stop, tensor, name, absence)}{later}"


def zero_told(stop: Stop, tensor: int, name: str) -> str:
    """Why a tensor's `.grad` is 0 at a stop; empty if it is not 0, or if that is not known."""
    zero = why_zero(stop.query, tensor, stop.moment)
    if zero is None:
        return ""
    if zero.event >= 0:
        return f"{name}.grad is 0: it was set to 0 at event {zero.event + 1}{_line(stop, zero.event)}"
    if zero.node:
        made = stop.query.nodes.event(zero.node)
        where = "" if made is None else stop.words.at_line(made.site)
        of = stop.words.expression_of(made, _LONGEST)
        node = stop.words.node_name(zero.node)
        return f"{name}.grad is 0: {node} of {of}{where}, gave 0 for an upstream gradient that is not 0"
    why = "the pass began with 0" if zero.from_start else "the gradients of its paths cancel"
    return f"{name}.grad is 0: {why}"


_LONGEST = 44  # characters of an expression


def _emptied(stop: Stop, tensor: int, name: str, absence: Absence) -> str:
    return f"it was set to None at event {absence.event + 1}{_line(stop, absence.event)}"


def _not_required(stop: Stop, tensor: int, name: str, absence: Absence) -> str:
    maker = stop.query.tensors.made(tensor)
    said = f"{name} does not require grad"
    if isinstance(maker, OpRan):
        return f"{said} ({NO_NODE[why_no_node(stop.query, maker)]}{_line(stop, maker.index)})"
    if isinstance(maker, TensorMade):
        return f"{said} (it was made without requires_grad=True{_line(stop, maker.index)})"
    return said


def _replaced(stop: Stop, tensor: int, name: str, absence: Absence) -> str:
    return (
        f"{name} is a non-leaf since event {absence.event + 1}{_line(stop, absence.event)}. That made a new tensor of "
        f"the leaf {name}; update the leaf in place instead: with torch.no_grad(): {name} -= ..."
    )


def _non_leaf(stop: Stop, tensor: int, name: str, absence: Absence) -> str:
    advice = f"only leaves keep their gradient; call {name}.retain_grad() before backward()"
    if absence.event >= 0:
        value = stop.other(absence.event).brief(absence.gradient)
        return (
            f"{name} is a non-leaf: an op made it. Its gradient passed at event {absence.event + 1} "
            f"({value}), but {advice}"
        )
    begun = any(run.first <= stop.k for run in stop.trace.passes)
    none = "" if begun else " (and no backward pass has begun yet)"
    return f"{name} is a non-leaf (an op made it); {advice}{none}"


def _not_asked_for(stop: Stop, tensor: int, name: str, absence: Absence) -> str:
    asked = ", ".join(map(stop.end, absence.asked))
    return f"pass {absence.number} computed only the gradients of {asked}"


def _cut(stop: Stop, tensor: int, name: str, absence: Absence) -> str:
    made = absence.cut
    assert made is not None
    how = (
        f".{clean(made.how)} is outside of the graph"
        if isinstance(made, TensorMade)
        else NO_NODE[why_no_node(stop.query, made)]
    )
    root = stop.end(absence.root)
    return f"the path from it to {root} is cut at event {made.index + 1}{_line(stop, made.index)}: {how}"


def _not_computed_from(stop: Stop, tensor: int, name: str, absence: Absence) -> str:
    root = stop.called(absence.root) if absence.root else "the root"
    return f"no path of grad_fns leads from {root} to it: {root} was not computed from it"


_REASONS = {
    Why.EMPTIED: _emptied,
    Why.NOT_REQUIRED: _not_required,
    Why.REPLACED: _replaced,
    Why.NON_LEAF: _non_leaf,
    Why.NO_PASS_YET: lambda *_: "no backward pass has begun yet",
    Why.PASS_UNDER_WAY: lambda s, t, n, absence: f"backward pass {absence.number} has not reached it yet",
    Why.RETURNED: lambda *_: "torch.autograd.grad() returns the gradients and does not change .grad",
    Why.NOT_ASKED_FOR: _not_asked_for,
    Why.CUT: _cut,
    Why.NOT_COMPUTED_FROM: _not_computed_from,
}


def _line(stop: Stop, event: int) -> str:
    site = stop.query.places.site(int(stop.trace.events["site"][event]))
    if site is None:
        return ""
    text = stop.words.expression(site.number, 40)
    return f", line {site.place.line}" + (f": {text}" if text else "")
