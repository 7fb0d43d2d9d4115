"""One plain sentence for each kind of event."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from gradviz.events.kinds import (
    Accumulated,
    ErrorRaised,
    GradAssigned,
    Hooked,
    Kind,
    Mutated,
    Named,
    OpRan,
    PassBegan,
    PassEnded,
    Produced,
    Received,
    RequiresGradChanged,
    Retained,
    ScopeEntered,
    ScopeLeft,
    Stepped,
    TangentPushed,
    TensorMade,
)
from gradviz.step.jvp import in_numbers
from gradviz.step.local import formulas, local_number
from gradviz.step.numbers import brief, clean, listed, scalar
from gradviz.step.stop import Stop

_LONGEST = 44  # an expression of up to so many characters is quoted
_LONGEST_RULE = 24  # and a formula of up to so many


def sentence(stop: Stop) -> str:
    """What happens at a stop, in one sentence."""
    return SENTENCES[type(stop.event)](stop, stop.event)


# --- forward


def _tensor_made(stop: Stop, event: TensorMade) -> str:
    name, how = stop.called(event.tensor), clean(event.how)
    if how == "gradient":
        return f"the gradient that backward starts with is made: {stop.brief(event.tensor)}"
    if how == "data":
        maker = stop.facts.expression(event.site, _LONGEST) or name
        return f"{maker} is the memory of {stop.standing(event.base)}, outside of the graph"
    said = "a leaf that requires grad" if event.requires_grad else "a leaf that does not require grad"
    maker = stop.facts.expression(event.site, _LONGEST) or how
    return f"{maker} made {name}, {said}"


def _op_ran(stop: Stop, event: OpRan) -> str:
    outputs = listed(map(stop.called, event.outputs)) if event.outputs else "nothing"
    inside = f"inside {stop.running}: " if stop.running else ""
    call, node = _call(stop, event), clean(event.grad_fn) or _why_no_node(stop, event)
    return f"{inside}{call} ran ({node})" if call == outputs else f"{inside}{call} made {outputs} ({node})"


def _call(stop: Stop, op: OpRan) -> str:
    """An op as the source has it, else as a call."""
    text = stop.facts.expression(op.site, _LONGEST)
    if text and stop.facts.is_all_at_its_place(op):
        return text
    return f"{clean(op.op)}({', '.join([stop.called(t) for t in op.inputs if t] + [clean(op.args)] * bool(op.args))})"


def _why_no_node(stop: Stop, op: OpRan) -> str:
    if op.op == "detach":
        return "cut off from the graph"
    if any(stop.moment.state(t).requires_grad for t in op.inputs if t):
        return "no node: grad mode is off"
    return "no node: no input requires grad"


def _mutated(stop: Stop, event: Mutated) -> str:
    name, how = stop.called(event.tensor), clean(event.how)
    owner = next((t for t in sorted(stop.touched) if t != event.tensor), 0)
    if owner and stop.moment.grad(owner):
        name = f"{stop.called(owner)}.grad"
    elif owner:
        name = stop.called(owner)
    was, now = stop.brief_before(event.tensor), stop.brief(event.tensor)
    change = f"{was} → {now}" if was != now else f"still {now}"
    version = f", version {event.version}" if event.version else ""
    return f"{how} writes over {name}: {change}{version}"


def _requires_grad_changed(stop: Stop, event: RequiresGradChanged) -> str:
    state = stop.moment.state(event.tensor)
    return (
        f"{stop.called(event.tensor)} {'now requires' if state.requires_grad else 'no longer requires'} grad"
    )


def _grad_assigned(stop: Stop, event: GradAssigned) -> str:
    was = _grad_before(stop, event.tensor)
    now = stop.brief(event.grad) if event.grad else "None"
    return f"{stop.called(event.tensor)}.grad is set to {now} (was {was})"


def _grad_before(stop: Stop, tensor: int) -> str:
    grad = stop.before.grad(tensor) if stop.before is not None else 0
    return stop.brief_before(grad) if grad else "None"


def _named(stop: Stop, event: Named) -> str:
    return f"a parameter is named {clean(event.name)}: {stop.brief(event.tensor)}"


_SCOPES = {"module": "module", "function": "the forward of"}


def _scope(kind: str, name: str) -> str:
    return f"{_SCOPES.get(kind, clean(kind))} {clean(name)}"


def _scope_entered(stop: Stop, event: ScopeEntered) -> str:
    return f"enters {_scope(event.kind, event.name)}"


def _scope_left(stop: Stop, event: ScopeLeft) -> str:
    scope = stop.scope
    return f"leaves {_scope(scope.kind, scope.name)}" if scope is not None else "leaves a scope"


def _tangent(stop: Stop, event: TangentPushed) -> str:
    name, tangent = stop.called(event.tensor), stop.brief(event.tangent)
    if event.how == "make_dual":
        return f"{name} becomes a dual number: value {stop.brief(event.tensor)}, tangent {tangent}"
    sums = in_numbers(stop, event)
    return f"the JVP of {clean(event.how)} gives {name} the tangent {tangent}" + (f": {sums}" if sums else "")


def _stepped(stop: Stop, event: Stepped) -> str:
    count = len(event.parameters)
    return f"{clean(event.optimizer)} steps: {count} parameter{'s' * (count != 1)} will change ({clean(event.args)})"


# --- backward


def _pass_began(stop: Stop, event: PassBegan) -> str:
    roots = listed(map(stop.end, event.root_tensors)) if event.root_tensors else "nothing"
    seeds = listed(map(stop.brief, event.gradients)) if event.gradients else "nothing"
    what = f"backward pass {event.number} begins at {roots}, with gradient {seeds}"
    if event.inputs:
        what += f", for {listed(map(stop.end, event.inputs))}"
    return what + _kept(event, "; will keep the graph")


def _kept(event: PassBegan, words: str) -> str:
    if event.create_graph:
        return f"{words} (create_graph)"
    return f"{words} (retain_graph)" if event.retain_graph else ""


def _received(stop: Stop, event: Received) -> str:
    given = [
        (g, t)
        for g, t in zip(event.gradients, _padded(stop.node_tensors, len(event.gradients)), strict=True)
        if g
    ]
    if not given:
        return f"{stop.node_name} receives no gradient"
    parts = listed(
        f"{stop.brief(g)} as the gradient of {stop.called(t) if t else 'an output'}" for g, t in given
    )
    return f"{stop.node_name} receives {parts}{_sum(stop, event)}"


def _padded(tensors: list[int], length: int) -> list[int]:
    return [*tensors[:length], *[0] * (length - len(tensors))]


def _sum(stop: Stop, event: Received) -> str:
    """What the gradient is the sum of, where it came along several edges."""
    arrivals = stop.moment.arrivals(event.node)
    if len(arrivals) < 2 or len(event.gradients) != 1:
        return ""
    values = [stop.brief(delivery.gradient) for delivery in arrivals]
    if sum(map(len, values)) > 40:
        return f", the sum over {len(arrivals)} edges"
    return f": {' + '.join(values)}"


def _produced(stop: Stop, event: Produced) -> str:
    op = stop.facts.op_of(event.node)
    inputs = _padded(stop.facts.inputs_of(op) if op is not None else [], len(event.targets))
    told = [_given(stop, event, i, inputs[i]) for i, gradient in enumerate(event.gradients) if gradient]
    return f"{stop.node_name} gives {listed(told)}" if told else f"{stop.node_name} gives no gradient"


def _given(stop: Stop, event: Produced, i: int, tensor: int) -> str:
    gradient = event.gradients[i]
    to = stop.called(tensor) if tensor else stop.facts.node_name(event.targets[i], stop.moment)
    rule = _product(stop, event, gradient) or _rule(stop, event, i)
    alone = sum(1 for g in event.gradients if g) == 1
    return f"{stop.brief(gradient)} to {to}" + (
        f": {rule}" if rule and alone else f" ({rule})" if rule else ""
    )


def _rule(stop: Stop, event: Produced, i: int) -> str:
    """The chain rule as a formula: upstream × local; empty where none is known, or it is long."""
    op = stop.facts.op_of(event.node)
    told = formulas(stop.facts.formula(op), op, stop.facts.inputs_called(op)) if op is not None else []
    formula = told[i][1] if i < len(told) else ""
    if not formula or len(formula) > _LONGEST_RULE:
        return ""
    if "upstream" in formula:
        return formula
    if re.match(r"1($|, (?!for)| [a-z])", formula):  # `1, summed`, `1 where taken`
        return f"upstream{formula[1:]}"
    joined = re.search(r" [−+<>≤≥] |, | is | where ", formula)
    return f"upstream × ({formula})" if joined else f"upstream × {formula}"


def _product(stop: Stop, event: Produced, gradient: int) -> str:
    """The chain rule in numbers, for scalars: upstream × local."""
    received = stop.moment.received(event.node)
    if received is None or len(received.gradients) != 1:
        return ""
    upstream = stop.moment.value(received.gradients[0])
    downstream = stop.moment.value(gradient)
    if scalar(upstream) is None or scalar(downstream) is None:
        return ""
    local = local_number(stop.node_name, upstream, downstream)
    return f"{brief(upstream)} × {local}" if local else ""


def _accumulated(stop: Stop, event: Accumulated) -> str:
    name, was = stop.called(event.tensor), _grad_before(stop, event.tensor)
    now = stop.brief(event.grad)
    if was == "None":
        return f"{name}.grad is now {now} (was None)"
    return f"{name}.grad accumulates: {was} + {stop.brief_before(event.gradient)} = {now}"


def _retained(stop: Stop, event: Retained) -> str:
    name = stop.called(event.tensor)
    return f"{name} retains its gradient, as retain_grad() asked: {name}.grad is now {stop.brief(event.grad)}"


def _hooked(stop: Stop, event: Hooked) -> str:
    of = stop.called(event.tensor) if event.tensor else stop.node_name
    change = f"{stop.brief(event.before)} → {stop.brief(event.after)}"
    return f"hook {clean(event.hook)} changes the gradient of {of}: {change}"


def _pass_ended(stop: Stop, event: PassEnded) -> str:
    run = stop.moment.pass_info
    began = stop.facts.trace.event(run.first) if run is not None else None
    broken = stop.k and stop.facts.trace.kinds[stop.k - 1] == Kind.ERROR
    if broken:
        return f"backward pass {event.number} is broken off by the error"
    kept = _kept(began, "; the graph is kept") if isinstance(began, PassBegan) else ""
    return f"backward pass {event.number} ends{kept or '; its buffers are freed'}"


def _error(stop: Stop, event: ErrorRaised) -> str:
    where = f" at {stop.facts.node_name(event.node, stop.moment)}" if event.node else ""
    first = clean(event.message.strip().split("\n")[0].split(". ")[0])
    return f"{clean(event.type)}{where}: {first}"


SENTENCES: dict[type, Callable[[Stop, Any], str]] = {
    TensorMade: _tensor_made,
    OpRan: _op_ran,
    Mutated: _mutated,
    RequiresGradChanged: _requires_grad_changed,
    GradAssigned: _grad_assigned,
    Named: _named,
    ScopeEntered: _scope_entered,
    ScopeLeft: _scope_left,
    PassBegan: _pass_began,
    Received: _received,
    Produced: _produced,
    Accumulated: _accumulated,
    Retained: _retained,
    Hooked: _hooked,
    PassEnded: _pass_ended,
    TangentPushed: _tangent,
    Stepped: _stepped,
    ErrorRaised: _error,
}
