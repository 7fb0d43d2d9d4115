"""Why a `.grad` is None, and why a tensor has no grad_fn."""

from __future__ import annotations

import numpy as np

from gradviz.events.kinds import Accumulated, Kind, OpRan, PassBegan, Received, TensorMade
from gradviz.graph.moment import Moment
from gradviz.step.facts import Facts
from gradviz.step.numbers import clean
from gradviz.step.paths import cut
from gradviz.step.stop import Stop
from gradviz.step.subject import Subject


def why_no_grad(stop: Stop, about: Subject) -> str:
    """One sentence or two on why a tensor's `.grad` is None at a stop."""
    facts, moment = stop.facts, stop.moment
    name, tensor = about.called, about.tensor
    born = facts.trace.born(tensor)
    if born is None or born > moment.k:
        made = "" if born is None else f" (event {born + 1} makes it)"
        return f"{name}.grad: {name} is not there yet{made}"
    state = moment.state(tensor)
    if state.grad:
        return f"{name}.grad is not None here: {stop.value(state.grad)}"
    emptied = _emptied(facts, tensor, moment.k)
    if emptied is not None:
        return f"{name}.grad is None: it was set to None at event {emptied + 1}{_line(facts, emptied)}"
    if not state.requires_grad:
        return f"{name}.grad is None: {name} does not require grad{_reason(facts, tensor, moment)}"
    if not state.is_leaf:
        return f"{name}.grad is None: {_of_non_leaf(facts, name, tensor, moment)}"
    return f"{name}.grad is None: {_of_leaf(facts, tensor, moment)}"


def _emptied(facts: Facts, tensor: int, k: int) -> int | None:
    """The event that set a `.grad` to None."""
    events, grads = facts.moments.grads.of(tensor)
    at = int(np.searchsorted(events, k, side="right")) - 1
    return int(events[at]) if at >= 0 and not grads[at] and np.any(grads[:at]) else None


def _line(facts: Facts, event: int) -> str:
    site = facts.site(int(facts.trace.events["site"][event]))
    if site is None:
        return ""
    text = facts.expression(site.number, 40)
    return f", line {site.place.line}" + (f": {text}" if text else "")


def _reason(facts: Facts, tensor: int, moment: Moment) -> str:
    """Why a tensor does not require grad, in brackets."""
    maker = facts.names.maker(tensor)
    if isinstance(maker, OpRan):
        return f" ({why_no_node(maker, facts.moments.at(maker.index))}{_line(facts, maker.index)})"
    if isinstance(maker, TensorMade):
        return f" (it was made without requires_grad=True{_line(facts, maker.index)})"
    return ""


def why_no_node(op: OpRan, moment: Moment) -> str:
    """Why an op recorded no node."""
    if op.op == "detach":
        return "detach() cut it off from the graph"
    if any(moment.state(tensor).requires_grad for tensor in op.inputs if tensor):
        return "grad mode was off, as under torch.no_grad()"
    return "nothing that it was computed from requires grad"


def _of_non_leaf(facts: Facts, name: str, tensor: int, moment: Moment) -> str:
    advice = f"only leaves keep theirs; call {name}.retain_grad() before backward()"
    passed = _passed_by(facts, tensor, moment)
    if passed is None:
        none = "" if facts.moments.passes.around(moment.k, moment.thread) else _no_pass_yet(facts, moment.k)
        return f"{name} is no leaf, an op made it, and {advice}{none}"
    event, gradient = passed
    value = Stop(facts, event).brief(gradient)
    return (
        f"{name} is no leaf, an op made it. Its gradient went by at event {event + 1} ({value}), but {advice}"
    )


def _no_pass_yet(facts: Facts, k: int) -> str:
    begun = facts.trace.indices(Kind.PASS_BEGAN)
    return "" if len(begun) and begun[0] <= k else " (and no backward pass has begun yet)"


def _passed_by(facts: Facts, tensor: int, moment: Moment) -> tuple[int, int] | None:
    """The last event before the moment at which a node received the gradient of a tensor that its op made."""
    maker = facts.names.maker(tensor)
    if not isinstance(maker, OpRan) or not maker.node or tensor not in maker.outputs:
        return None
    received = facts.trace.indices(Kind.RECEIVED)
    received = received[(received <= moment.k) & (facts.trace.events["subject"][received] == maker.node)]
    if not len(received):
        return None
    event = facts.trace.event(int(received[-1]))
    assert isinstance(event, Received)
    position = maker.outputs.index(tensor)
    gradient = event.gradients[position] if position < len(event.gradients) else 0
    return (event.index, gradient) if gradient else None


def _of_leaf(facts: Facts, tensor: int, moment: Moment) -> str:
    k = moment.k
    begun = [run for run in facts.trace.passes if run.first <= k]
    accumulated = facts.trace.indices(Kind.ACCUMULATED)
    to_come = accumulated[(accumulated > k) & (facts.trace.events["subject"][accumulated] == tensor)]
    later = f"; event {int(to_come[0]) + 1} will fill it" if len(to_come) else ""
    if not begun:
        return f"no backward pass has begun yet{later}"
    run = begun[-1]
    if run.last is None or run.last > k:
        return (
            f"backward pass {run.number} has not come to it yet{later}"
            if later
            else _unreached(facts, run.first, tensor)
        )
    began = facts.trace.event(run.first)
    if isinstance(began, PassBegan) and began.how == "grad":
        return f"torch.autograd.grad() returns the gradients and leaves .grad alone{later}"
    return _unreached(facts, run.first, tensor) + later


def _unreached(facts: Facts, first: int, tensor: int) -> str:
    """Why a pass did not come to a leaf."""
    began = facts.trace.event(first)
    if isinstance(began, PassBegan) and began.inputs:
        asked = ", ".join(facts.called(tensor) if tensor else "a GradientEdge" for tensor in began.inputs)
        return f"this pass was asked for {asked} only"
    roots = [tensor for tensor in began.root_tensors if tensor] if isinstance(began, PassBegan) else []
    names = ", ".join(map(facts.called, roots)) or "the root"
    cuts = (cut(facts, tensor, root) for root in roots)
    found = next((made for made in cuts if made is not None), None)
    if found is None:
        return f"no path of grad_fns leads from {names} to it: {names} was not computed from it"
    how = _why_cut(facts, found)
    return f"the way from it to {names} is cut at event {found.index + 1}{_line(facts, found.index)}: {how}"


def _why_cut(facts: Facts, made: OpRan | TensorMade) -> str:
    if isinstance(made, TensorMade):
        return f".{clean(made.how)} is outside of the graph"
    return why_no_node(made, facts.moments.at(made.index))


def accumulations(facts: Facts, tensor: int, k: int, most: int) -> list[Accumulated]:
    """The last events up to k at which a leaf's `.grad` took something in."""
    events = facts.trace.indices(Kind.ACCUMULATED)
    own = events[(events <= k) & (facts.trace.events["subject"][events] == tensor)]
    found = (facts.trace.event(event) for event in own[-most:].tolist())
    return [event for event in found if isinstance(event, Accumulated)]
