"""One plain sentence for each kind of event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradviz.events.kinds import (
    LEAF,
    REQUIRES_GRAD,
    VIEW,
    Accumulated,
    ErrorRaised,
    FunctionCompared,
    GradAssigned,
    GradRead,
    GradsCleared,
    GradsClipped,
    GraphsAlive,
    Hooked,
    KernelRan,
    Kind,
    Mutated,
    Named,
    NodeMade,
    OpRan,
    OptimizerHolds,
    PassBegan,
    PassEnded,
    Produced,
    Received,
    RequiresGradChanged,
    Retained,
    Scheduled,
    ScopeEntered,
    ScopeLeft,
    Stepped,
    TangentPushed,
    TensorMade,
)
from gradviz.query.cuts import Reason, why_no_node
from gradviz.query.settings import rates_of, settings_of
from gradviz.words.escape import clean
from gradviz.words.jvp import in_numbers
from gradviz.words.numbers import listed, number, plural
from gradviz.words.parts import call_of, chain_rule, changes, flags_of, grad_before, padded
from gradviz.words.stop import Stop

_LONGEST = 44  # longer expressions are not quoted


def sentence(stop: Stop) -> str:
    """What happens at a stop, in one sentence."""
    kind = type(stop.event)
    return (stop.words.sentences.get(kind) or SENTENCES[kind])(stop, stop.event)


# --- forward


def _tensor_made(stop: Stop, event: TensorMade) -> str:
    name, how = stop.called(event.tensor), clean(event.how)
    if how == "gradient":
        return f"the gradient that backward starts with is made: {stop.brief(event.tensor)}"
    flags = stop.moment.flags(event.tensor)
    maker = stop.words.expression(event.site, _LONGEST)
    if flags & VIEW:
        row = stop.trace.states.first(event.tensor)
        base = int(stop.trace.states.bases[row])
        shared = stop.standing(base) if base else "another tensor"
        return f"{maker or name} shares the memory of {shared}, outside of the graph"
    said = "a leaf that requires grad" if flags & REQUIRES_GRAD else "a leaf that does not require grad"
    if not flags & LEAF:
        said = "which an op made before the recording"
    copied = f", made from {stop.called(event.source)}" if event.source else ""
    return f"{maker or how} made {name}, {said}{copied}"


def _op_ran(stop: Stop, event: OpRan) -> str:
    outputs = listed(map(stop.called, event.outputs)) if event.outputs else "nothing"
    inside = f"inside {stop.running}: " if stop.running else ""
    node = stop.query.nodes.main_of_op(event.index)
    how = stop.words.node_name(node) if node else NO_NODE[why_no_node(stop.query, event)]
    call = call_of(stop, event)
    if stop.written:
        return f"{inside}{call} changes {changes(stop)} ({how})"
    return f"{inside}{call} ran ({how})" if call == outputs else f"{inside}{call} made {outputs} ({how})"


# Why an op made no node; shown in brackets after the op.
NO_NODE = {
    Reason.NOTHING_REQUIRES_GRAD: "no node: no input requires grad",
    Reason.GRAD_MODE_OFF: "no node: grad mode is off",
    Reason.DETACHED: "cut off from the graph",
    Reason.NOT_DIFFERENTIABLE: "no node: it is not differentiable",
}


def _node_made(stop: Stop, event: NodeMade) -> str:
    outputs = [stop.called(tensor) for tensor in event.outputs if tensor]
    name = clean(event.grad_fn)
    what = f"{name} is now the grad_fn of {listed(outputs)}" if outputs else f"{name} is made"
    return f"{what}, and leads to {leads_to(stop, event)}"


def leads_to(stop: Stop, node: NodeMade) -> str:
    """The nodes that a node's gradients go to."""
    targets = dict.fromkeys(stop.words.node_name(edge.node) for edge in node.edges if edge.node)
    return listed(targets) if targets else "no other node"


def _mutated(stop: Stop, event: Mutated) -> str:
    through = f" through {stop.called(event.source)}" if event.op >= 0 and event.source else ""
    return f"{clean(event.how)} changes {changes(stop, through)}"


def _requires_grad_changed(stop: Stop, event: RequiresGradChanged) -> str:
    required = stop.moment.flags(event.tensor) & REQUIRES_GRAD
    return f"{stop.called(event.tensor)} {'now requires' if required else 'no longer requires'} grad"


def _grad_assigned(stop: Stop, event: GradAssigned) -> str:
    was = grad_before(stop, event.tensor)
    now = stop.brief(event.grad) if event.grad else "None"
    return f"{stop.called(event.tensor)}.grad is set to {now} (was {was})"


def _grad_read(stop: Stop, event: GradRead) -> str:
    name = stop.called(event.tensor)
    return f"{name}.grad is read: it is None, because {name} is not a leaf and does not retain its gradient"


def _grads_cleared(stop: Stop, event: GradsCleared) -> str:
    count = len(event.tensors)
    caller = f"{clean(event.how)}.zero_grad()"
    if not count:
        return f"{caller} finds no gradient to clear"
    now = "None" if event.to_none else "zero"
    if count > 4:
        return f"{caller} sets {count:,} gradients to {now}"
    return (
        f"{caller} sets the gradient{'s' * (count > 1)} of {listed(map(stop.called, event.tensors))} to {now}"
    )


def _kernel(stop: Stop, event: KernelRan) -> str:
    inside = f"{stop.node_name}: " if event.node else ""
    return f"{inside}aten {clean(event.op)}({clean(event.args)}) gives {clean(event.result) or 'nothing'}"


def _named(stop: Stop, event: Named) -> str:
    return f"a {clean(event.role) or 'tensor'} is named {clean(event.name)}: {stop.brief(event.tensor)}"


_SCOPES = {"module": "module", "function": "the forward of"}


def _scope(event: ScopeEntered) -> str:
    name, cls = clean(event.name), clean(event.type)
    return f"{_SCOPES.get(event.kind, clean(event.kind))} {name}" + (f" ({cls})" if cls != name else "")


def _scope_entered(stop: Stop, event: ScopeEntered) -> str:
    return f"enters {_scope(event)}"


def _scope_left(stop: Stop, event: ScopeLeft) -> str:
    return f"leaves {_scope(stop.scope)}" if stop.scope is not None else "leaves a scope"


def _tangent(stop: Stop, event: TangentPushed) -> str:
    name, tangent = stop.called(event.tensor), stop.brief(event.tangent)
    if event.how == "make_dual":
        return f"{name} becomes a dual number: value {stop.brief(event.tensor)}, tangent {tangent}"
    sums = in_numbers(stop, event)
    return f"the JVP of {clean(event.how)} gives {name} the tangent {tangent}" + (f": {sums}" if sums else "")


def _stepped(stop: Stop, event: Stepped) -> str:
    told = [settings_told(group.settings) for group in event.groups if group.size]
    how = f" ({'; '.join(dict.fromkeys(told))})" if told else ""
    return f"{clean(event.type)} steps: {plural(len(event.parameters), 'parameter')} will change{how}"


def _holds(stop: Stop, event: OptimizerHolds) -> str:
    told = [settings_told(group.settings) for group in event.groups]
    how = f" ({'; '.join(dict.fromkeys(told))})" if told else ""
    return f"{clean(event.type)} holds {plural(len(event.parameters), 'parameter')}{how}"


def _clipped(stop: Stop, event: GradsClipped) -> str:
    count = len(event.tensors)
    if not count:
        return f"{clean(event.how)}() finds no gradient to clip"
    whose = (
        f"{count:,} gradients" if count > 4 else f"the gradients of {listed(map(stop.called, event.tensors))}"
    )
    return f"{clean(event.how)}() is called for {whose}"


def settings_told(settings: str) -> str:
    """A parameter group's settings: `lr=0.1, momentum=0.9`."""
    found = settings_of(settings)
    if not found:
        return clean(settings)
    return clean(", ".join(f"{name}={_setting(value)}" for name, value in found.items()))


def _setting(value: Any) -> str:
    return f"({', '.join(map(_setting, value))})" if isinstance(value, list) else repr(value)


def _scheduled(stop: Stop, event: Scheduled) -> str:
    when = f"in step {event.steps}" if event.steps else "at its beginning"
    return f"{clean(event.type)} {when} sets the learning rate to {_rates(event.rates)}"


def _rates(text: str) -> str:
    """The learning rates of an optimizer's groups, with few digits and without repetitions."""
    rates = rates_of(text)
    return listed(dict.fromkeys(map(number, rates))) if rates else clean(text)


# --- backward


def _pass_began(stop: Stop, event: PassBegan) -> str:
    roots = listed(stop.end(root.tensor) for root in event.roots) if event.roots else "nothing"
    seeds = listed(stop.brief(root.gradient) for root in event.roots) if event.roots else "nothing"
    what = f"backward pass {event.number} begins at {roots}, with gradient {seeds}"
    if event.inputs:
        what += f", for {listed(map(stop.end, event.inputs))}"
    return what + flags_of(event, "; will keep the graph")


def _received(stop: Stop, event: Received) -> str:
    tensors = padded(stop.node_tensors, len(event.gradients))
    given = [(g, t) for g, t in zip(event.gradients, tensors, strict=True) if g]
    if not given:
        return f"{stop.node_name} receives no gradient"
    parts = listed(
        f"{stop.brief(g)} as the gradient of {stop.called(t) if t else 'an output'}" for g, t in given
    )
    return f"{stop.node_name} receives {parts}{_sum(stop, event)}"


def _sum(stop: Stop, event: Received) -> str:
    """The terms of the gradient, if it is a sum over several edges."""
    arrivals = stop.moment.arrivals(event.node)
    if len(arrivals) < 2 or len(event.gradients) != 1:
        return ""
    values = [stop.brief(delivery.gradient) for delivery in arrivals]
    if sum(map(len, values)) > 40:
        return f", the sum over {len(arrivals)} edges"
    return f": {' + '.join(values)}"


def _produced(stop: Stop, event: Produced) -> str:
    told = [_given(stop, event, i) for i, flow in enumerate(event.flows) if flow.gradient]
    return f"{stop.node_name} gives {listed(told)}" if told else f"{stop.node_name} gives no gradient"


def _given(stop: Stop, event: Produced, i: int) -> str:
    flow = event.flows[i]
    made = stop.node_made
    tensor = made.edges[i].tensor if made is not None and i < len(made.edges) else 0
    to = stop.called(tensor) if tensor else stop.words.node_name(flow.node)
    rule = chain_rule(stop, event, i)
    alone = sum(1 for other in event.flows if other.gradient) == 1
    return f"{stop.brief(flow.gradient)} to {to}" + (
        f": {rule}" if rule and alone else f" ({rule})" if rule else ""
    )


def _accumulated(stop: Stop, event: Accumulated) -> str:
    name, was = stop.called(event.tensor), grad_before(stop, event.tensor)
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
    if stop.k and stop.trace.kinds[stop.k - 1] == Kind.ERROR:
        return f"the error ends backward pass {event.number}"
    graph = flags_of(stop.query.passes.began(run.number), "; the graph is kept") if run is not None else ""
    return f"backward pass {event.number} ends{graph or '; its buffers are freed'}"


def _compared(stop: Stop, event: FunctionCompared) -> str:
    name = clean(event.function)
    if event.why_not:
        return f"{name} is not compared with finite differences: {clean(event.why_not)}"
    verdict = "wrong" if event.is_wrong else "right"
    return (
        f"the backward of {name} is {verdict} for {clean(event.argument)}: along a direction it gives "
        f"{number(event.given)}, and finite differences {number(event.found)}"
    )


def _graphs_alive(stop: Stop, event: GraphsAlive) -> str:
    nodes = sum(living.nodes for living in event.graphs)
    return f"{plural(nodes, 'node')} of {plural(len(event.graphs), 'earlier pass', 'earlier passes')} are still alive"


def _error(stop: Stop, event: ErrorRaised) -> str:
    where = f" at {stop.words.node_name(event.node)}" if event.node else ""
    first = clean(event.message.strip().split("\n")[0].split(". ")[0])
    ends = "" if event.in_pass else " (it ends the script)"
    return f"{clean(event.type)}{where}: {first}{ends}"


SENTENCES: dict[type, Callable[[Stop, Any], str]] = {
    TensorMade: _tensor_made,
    OpRan: _op_ran,
    NodeMade: _node_made,
    Mutated: _mutated,
    RequiresGradChanged: _requires_grad_changed,
    GradAssigned: _grad_assigned,
    GradsCleared: _grads_cleared,
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
    FunctionCompared: _compared,
    GraphsAlive: _graphs_alive,
    TangentPushed: _tangent,
    OptimizerHolds: _holds,
    GradsClipped: _clipped,
    GradRead: _grad_read,
    KernelRan: _kernel,
    Stepped: _stepped,
    Scheduled: _scheduled,
    ErrorRaised: _error,
}
