"""One plain sentence for each kind of event."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gradviz.events import kinds
from gradviz.events.field_types import Rule
from gradviz.events.kinds import LEAF, REQUIRES_GRAD, TIED, UNWATCHED, VIEW, Kind
from gradviz.query.chain_step import ChainStep, chain_step
from gradviz.query.failures import is_refusal, refused_root
from gradviz.query.flow import Reason, why_no_node
from gradviz.query.ops import written
from gradviz.query.optimizer_steps import rates_of, settings_of
from gradviz.query.passes import left_out
from gradviz.words.chain import product
from gradviz.words.escape import clean
from gradviz.words.forward_mode import in_numbers
from gradviz.words.numbers import duration, flops, listed, number, plural, size
from gradviz.words.stop import Stop
from gradviz.words.words import MOST_LISTED

# The parts of sentences, the same in every language: calls, changes, and the chain rule in numbers.

LONGEST = 40  # parts of a longer expression are left out, as in a name


def call_of(stop: Stop, op: kinds.OpRan) -> str:
    """An op as it is written in the source, otherwise as a call."""
    text = stop.words.expression(op.site, LONGEST)
    is_item = bool(stop.written) and text.endswith("]")  # from `x[0] = y`, the site covers only `x[0]`
    if text and not is_item and op.site in stop.query.places.of_one_op and not stop.query.labels.row_of(op):
        return text
    arguments = [stop.called(tensor) for tensor in op.inputs if tensor] + [clean(op.args)] * bool(op.args)
    return written(clean(op.op), arguments)


def changes(stop: Stop, through: str = "") -> str:
    """The tensors that an event changed in place, each with its old and new value."""
    return stop.listed(_change(stop, tensor, through) for tensor in stop.written)


def _change(stop: Stop, tensor: int, through: str) -> str:
    name = stop.called(tensor)
    owner = next((t for t in sorted(stop.touched) if t not in stop.written), 0)
    # the op's event was about the other tensor
    if isinstance(stop.event, kinds.Mutated) and stop.event.op >= 0:
        name = stop.standing(tensor)
    elif owner and stop.moment.grad(owner):
        name = f"{stop.called(owner)}.grad"
    elif owner:
        name = stop.called(owner)
    was, now = stop.brief_before(tensor), stop.brief(tensor)
    change = f"{was} → {now}" if was != now else stop.say("still {value}", value=now)
    version = stop.query.tensors.version(tensor, stop.k)
    sentence = stop.say("{name} in place{through}: {change}", name=name, through=through, change=change)
    return sentence + (stop.say(", version {version}", version=version) if version else "")


def grad_before(stop: Stop, tensor: int) -> str:
    """The `.grad` of a tensor before the event, in a few words."""
    grad = stop.before.grad(tensor) if stop.before is not None else 0
    return stop.brief_before(grad) if grad else "None"


def received(stop: Stop, event: kinds.Received) -> list[tuple[int, int]]:
    """The gradients that a node receives, each with its output; 0 for an unknown output."""
    outputs = [*stop.node_tensors, *[0] * len(event.gradients)]
    return [(gradient, output) for gradient, output in zip(event.gradients, outputs, strict=False) if gradient]


def tensor_of_edge(stop: Stop, i: int) -> int:
    """The tensor whose gradient edge i of the node of a stop carries; 0 if it is not known."""
    made = stop.node_made
    return made.edges[i].tensor if made is not None and i < len(made.edges) else 0


def leads_to(stop: Stop, node: kinds.NodeMade) -> str:
    """The nodes that a node's gradients go to."""
    targets = dict.fromkeys(stop.words.node_name(edge.node) for edge in node.edges if edge.node)
    return stop.listed(targets) if targets else stop.say("no other node")


def steps_at(stop: Stop, made: kinds.NodeMade) -> Iterator[ChainStep]:
    """The steps of the chain rule along the edges of a node that lead on, as far as they have run at a stop."""
    yield from (_step(stop, made, i) for i, edge in enumerate(made.edges) if edge.node)


def _step(stop: Stop, made: kinds.NodeMade, i: int) -> ChainStep:
    """The step along edge i of the node of a stop; cached for the sentence and the rows of the stop."""
    if i not in stop.steps:
        produced = stop.event if isinstance(stop.event, kinds.Produced) else None
        stop.steps[i] = chain_step(stop.query, made, i, stop.moment.received(made.node), produced)
    return stop.steps[i]


def saved_by(stop: Stop, made: kinds.NodeMade) -> str:
    """The tensors that a node saved, each with its version."""
    return stop.listed(
        stop.say("{name} (version {version})", name=stop.called(tensor), version=version)
        for tensor, version in dict.fromkeys(made.saved)
    )


def ended_by_error(stop: Stop) -> bool:
    """Whether an error ended the pass that ends at a stop."""
    return bool(stop.k) and stop.trace.kinds[stop.k - 1] == Kind.ERROR


def chain_rule(stop: Stop, event: kinds.Produced, i: int) -> str:
    """The chain rule at edge i, in numbers or otherwise as a formula. Empty if it is unknown or long."""
    made = stop.node_made
    if made is None or i >= len(made.edges):
        return ""
    return product(stop.words, _step(stop, made, i))


def flags_of(event: kinds.PassBegan, words: str) -> str:
    """Words for a pass that keeps its graph, and the argument that requested it; otherwise empty."""
    if event.create_graph:
        return f"{words} (create_graph)"
    return f"{words} (retain_graph)" if event.retain_graph else ""


def sentence(stop: Stop) -> str:
    """The sentence about the event of a stop."""
    return SENTENCES[type(stop.event)](stop, stop.event)


# --- forward


def _tensor_made(stop: Stop, event: kinds.TensorMade) -> str:
    say, name, how = stop.say, stop.called(event.tensor), clean(event.how)
    if how == "gradient":
        return say("the gradient that backward starts with is made: {value}", value=stop.brief(event.tensor))
    flags = stop.moment.flags(event.tensor)
    maker = stop.words.expression(event.site, LONGEST)
    if flags & VIEW:
        base = stop.trace.states.base(event.tensor)
        shared = stop.standing(base) if base else say("another tensor")
        return say("{name} shares the memory of {other}, outside of the graph", name=maker or name, other=shared)
    what = "a leaf that requires grad" if flags & REQUIRES_GRAD else "a leaf that does not require grad"
    if stop.query.labels.saved_result(event.tensor):
        return say("{name} is read as its node saved it", name=name)
    if not flags & LEAF:
        what = "which an op made before the recording"
    copied = say(", made from {name}", name=stop.called(event.source)) if event.source else ""
    if maker == name:
        return say("{maker} made {what}", maker=maker, what=say(what)) + copied
    return say("{maker} made {name}, {what}", maker=maker or how, name=name, what=say(what)) + copied


def _op_ran(stop: Stop, event: kinds.OpRan) -> str:
    say = stop.say
    outputs = stop.listed(map(stop.called, event.outputs)) if event.outputs else say("nothing")
    inside = say("inside {node}: ", node=stop.running) if stop.running else ""
    node = stop.query.nodes.main_of_op(event.index)
    how = stop.words.node_name(node) if node else say(NO_NODE[why_no_node(stop.query, event)])
    call = call_of(stop, event)
    if stop.written:
        return inside + say("{call} changes {what} ({how})", call=call, what=changes(stop), how=how)
    if call == outputs:
        return inside + say("{call} ran ({how})", call=call, how=how)
    return inside + say("{call} made {outputs} ({how})", call=call, outputs=outputs, how=how)


# The reason why an op made no node; shown in brackets after the op.
NO_NODE = {
    Reason.NOTHING_REQUIRES_GRAD: "no node: no input requires grad",
    Reason.GRAD_MODE_OFF: "no node: grad mode is off",
    Reason.DETACHED: "cut off from the graph",
    Reason.NOT_DIFFERENTIABLE: "no node: it is not differentiable",
}


def _node_made(stop: Stop, event: kinds.NodeMade) -> str:
    say, node = stop.say, clean(event.grad_fn)
    outputs = [stop.called(tensor) for tensor in event.outputs if tensor]
    what = say("{node} is made", node=node)
    if outputs:
        what = say("{node} is now the grad_fn of {outputs}", node=node, outputs=stop.listed(outputs))
    return what + say(", and leads to {targets}", targets=leads_to(stop, event))


def _mutated(stop: Stop, event: kinds.Mutated) -> str:
    through = ""
    if event.op >= 0 and event.source:
        through = stop.say(" through {name}", name=stop.called(event.source))
    if event.how == UNWATCHED:
        return f"{changes(stop)}: it was written to in passes that were not watched"
    return stop.say("{how} changes {what}", how=clean(event.how), what=changes(stop, through))


def _requires_grad_changed(stop: Stop, event: kinds.RequiresGradChanged) -> str:
    required = stop.moment.flags(event.tensor) & REQUIRES_GRAD
    text = "{name} now requires grad" if required else "{name} no longer requires grad"
    return stop.say(text, name=stop.called(event.tensor))


def _grad_assigned(stop: Stop, event: kinds.GradAssigned) -> str:
    was = grad_before(stop, event.tensor)
    now = stop.brief(event.grad) if event.grad else "None"
    if not event.site:  # the value is from before the recording
        return stop.say("{name}.grad is {now}, from before the recording", name=stop.called(event.tensor), now=now)
    return stop.say("{name}.grad is set to {now} (was {was})", name=stop.called(event.tensor), now=now, was=was)


def _grad_read(stop: Stop, event: kinds.GradRead) -> str:
    return stop.say(
        "{name}.grad is read: it is None, because {name} is not a leaf and does not retain its gradient",
        name=stop.called(event.tensor),
    )


def _number_read(stop: Stop, event: kinds.NumberRead) -> str:
    return stop.say(
        "{name} is read as a plain number by {how}(): no gradient flows back through that number",
        name=stop.called(event.tensor),
        how=clean(event.how),
    )


def _grads_cleared(stop: Stop, event: kinds.GradsCleared) -> str:
    count = len(event.tensors)
    caller = f"{clean(event.how)}.zero_grad()"
    if not count:
        return stop.say("{caller} finds no gradient to clear", caller=caller)
    now = "None" if event.to_none else stop.say("zero")
    if count > 4:
        return stop.say("{caller} sets {count} gradients to {now}", caller=caller, count=f"{count:,}", now=now)
    names = stop.listed(map(stop.called, event.tensors))
    one, several = ("{caller} sets the gradient of {names} to {now}", "{caller} sets the gradients of {names} to {now}")
    return stop.say(one if count == 1 else several, caller=caller, names=names, now=now)


def _kernel(stop: Stop, event: kinds.KernelRan) -> str:
    inside = f"{stop.node_name}: " if event.node else ""
    return f"{inside}aten {clean(event.op)}({clean(event.args)}) gives {clean(event.result) or 'nothing'}"


def _measured(stop: Stop, event: kinds.OpMeasured) -> str:
    inside = f"{stop.node_name}: " if event.node else ""
    made = f", makes {size(event.made)}" if event.made else ""
    computed = f", {flops(event.flops)}" if event.flops else ""
    return f"{inside}aten {clean(event.op)} takes {duration(event.seconds)}{made}{computed}"


def _binned(stop: Stop, event: kinds.ElementsBinned) -> str:
    of = f"{clean(event.what)} of {clean(event.module)}" if event.module else clean(event.what)
    counts = f"{sum(event.counts):,} elements of the {of} in {len(event.counts)} bins"
    return f"{stop.called(event.tensor)}: {counts} from {number(event.low, 4)} to {number(event.high, 4)}"


def _named(stop: Stop, event: kinds.Named) -> str:
    if event.role == TIED:
        return stop.say("{tensor} has a second name: {name}", tensor=stop.called(event.tensor), name=clean(event.name))
    text, role = "a {role} is named {name}: {value}", clean(event.role) or "tensor"
    return stop.say(text, role=role, name=clean(event.name), value=stop.brief(event.tensor))


_SCOPES = {"module": "module {name}", "function": "the forward of {name}"}


def _scope(stop: Stop, event: kinds.ScopeEntered) -> str:
    name, cls = clean(event.name), clean(event.type)
    text = stop.say(_SCOPES.get(event.kind, "{kind} {name}"), kind=clean(event.kind), name=name)
    return text + (f" ({cls})" if cls != name else "")


def _scope_left(stop: Stop, event: kinds.ScopeLeft) -> str:
    scope = _scope(stop, stop.scope) if stop.scope is not None else stop.say("a scope")
    return stop.say("leaves {scope}", scope=scope)


def _tangent(stop: Stop, event: kinds.TangentPushed) -> str:
    say, name, tangent = stop.say, stop.called(event.tensor), stop.brief(event.tangent)
    if event.how == "make_dual":
        text = "{name} becomes a dual number: value {value}, tangent {tangent}"
        return say(text, name=name, value=stop.brief(event.tensor), tangent=tangent)
    sums = in_numbers(stop, event)
    text = "the JVP of {op} gives {name} the tangent {tangent}"
    return say(text, op=clean(event.how), name=name, tangent=tangent) + (say(": {sum}", sum=sums) if sums else "")


def _stepped(stop: Stop, event: kinds.Stepped) -> str:
    settings = [settings_told(group.settings) for group in event.groups if group.size]
    how = f" ({'; '.join(dict.fromkeys(settings))})" if settings else ""
    count = len(event.parameters)
    before = stop.trace.event(event.index - 1) if event.index and not count else None
    if isinstance(before, kinds.PassSummed) and before.norm != -1:
        return f"{clean(event.type)} steps, in a pass that was not watched"
    one, several = "{type} steps: 1 parameter will change", "{type} steps: {count} parameters will change"
    return stop.say(one if count == 1 else several, type=clean(event.type), count=f"{count:,}") + how


def _holds(stop: Stop, event: kinds.OptimizerHolds) -> str:
    settings = [settings_told(group.settings) for group in event.groups]
    how = f" ({'; '.join(dict.fromkeys(settings))})" if settings else ""
    count = len(event.parameters)
    one, several = "{type} holds 1 parameter", "{type} holds {count} parameters"
    return stop.say(one if count == 1 else several, type=clean(event.type), count=f"{count:,}") + how


def _clipped(stop: Stop, event: kinds.GradsClipped) -> str:
    count = len(event.tensors)
    if not count:
        return f"{clean(event.how)}() finds no gradient to clip"
    whose = f"{count:,} gradients" if count > 4 else f"the gradients of {listed(map(stop.called, event.tensors))}"
    return f"{clean(event.how)}() is called for {whose}"


def settings_told(settings: str) -> str:
    """A parameter group's settings: `lr=0.1, momentum=0.9`."""
    named = settings_of(settings)
    if not named:
        return clean(settings)
    return clean(", ".join(f"{name}={_setting(value)}" for name, value in named.items()))


def _setting(value: Any) -> str:
    return f"({', '.join(map(_setting, value))})" if isinstance(value, list) else repr(value)


def _scheduled(stop: Stop, event: kinds.Scheduled) -> str:
    when = f"in step {event.steps}" if event.steps else "at its beginning"
    return f"{clean(event.type)} {when} sets the learning rate to {_rates(event.rates)}"


def _rates(text: str) -> str:
    """The learning rates of an optimizer's groups, with few digits and without repetitions."""
    rates = rates_of(text)
    return listed(dict.fromkeys(map(number, rates))) if rates else clean(text)


# --- backward


def _pass_began(stop: Stop, event: kinds.PassBegan) -> str:
    say = stop.say
    if not event.roots and (unrecorded := left_out(stop.trace, event.number)):
        return say("backward pass {number} begins", number=event.number) + f"; {unrecorded}"
    roots = stop.listed(stop.end(root.tensor) for root in event.roots) if event.roots else say("nothing")
    seeds = stop.listed(stop.brief(root.gradient) for root in event.roots) if event.roots else say("nothing")
    text = "backward pass {number} begins at {roots}, with gradient {seeds}"
    what = say(text, number=event.number, roots=roots, seeds=seeds)
    if event.inputs:
        what += say(", for {inputs}", inputs=stop.listed(map(stop.end, event.inputs)))
    return what + flags_of(event, say("; will keep the graph"))


def _received(stop: Stop, event: kinds.Received) -> str:
    say, gradients = stop.say, received(stop, event)
    if not gradients:
        return say("{node} receives no gradient", node=stop.node_name)
    parts = [
        say(
            "{value} as the gradient of {name}",
            value=stop.brief(gradient),
            name=stop.called(tensor) if tensor else say("an output"),
        )
        for gradient, tensor in gradients
    ]
    return say("{node} receives {parts}", node=stop.node_name, parts=stop.listed(parts)) + _sum(stop, event)


def _sum(stop: Stop, event: kinds.Received) -> str:
    """The terms of the gradient, if it is a sum over several edges."""
    arrivals = stop.moment.arrivals(event.node)
    if len(arrivals) < 2 or len(event.gradients) != 1:
        return ""
    if not stop.moment.meeting(event.node).adds_up_to(stop.moment.value(event.gradients[0])):
        return ""
    values = [stop.brief(delivery.gradient) for delivery in arrivals[:MOST_LISTED]]
    if len(arrivals) > MOST_LISTED or sum(map(len, values)) > 40:
        return stop.say(", the sum over {count} edges", count=len(arrivals))
    return stop.say(": {sum}", sum=" + ".join(values))


_MOST_PARTS = 100  # the most parts of a node's results in a sentence


def _produced(stop: Stop, event: kinds.Produced) -> str:
    edges = [i for i, flow in enumerate(event.flows) if flow.gradient]
    if not edges:
        return stop.say("{node} gives no gradient", node=stop.node_name)
    parts = [_given(stop, event, i, len(edges) == 1) for i in edges[:_MOST_PARTS]]
    parts += ["…"] * (len(edges) > _MOST_PARTS)
    return stop.say("{node} gives {parts}", node=stop.node_name, parts=stop.listed(parts))


def _given(stop: Stop, event: kinds.Produced, i: int, alone: bool) -> str:
    flow, tensor, rule = event.flows[i], tensor_of_edge(stop, i), chain_rule(stop, event, i)
    value = stop.brief(flow.gradient)
    if tensor:
        text = stop.say("{value} to {name}", value=value, name=stop.called(tensor))
    else:
        text = stop.say("{value} to {node}", value=value, node=stop.words.node_name(flow.node))
    if not rule:
        return text
    return text + (stop.say(": {rule}", rule=rule) if alone else f" ({rule})")


def _accumulated(stop: Stop, event: kinds.Accumulated) -> str:
    name, was = stop.called(event.tensor), grad_before(stop, event.tensor)
    now = stop.brief(event.grad)
    if was == "None":
        return stop.say("{name}.grad is now {now} (was None)", name=name, now=now)
    text, came = "{name}.grad accumulates: {was} (before) + {came} = {now}", stop.brief_before(event.gradient)
    return stop.say(text, name=name, was=was, came=came, now=now)


def _retained(stop: Stop, event: kinds.Retained) -> str:
    text = "{name} retains its gradient, as retain_grad() asked: {name}.grad is now {value}"
    return stop.say(text, name=stop.called(event.tensor), value=stop.brief(event.grad))


def _hooked(stop: Stop, event: kinds.Hooked) -> str:
    of = stop.called(event.tensor) if event.tensor else stop.node_name
    change = f"{stop.brief(event.before)} → {stop.brief(event.after)}"
    return f"hook {clean(event.hook)} changes the gradient of {of}: {change}"


def _pass_ended(stop: Stop, event: kinds.PassEnded) -> str:
    say, backward_pass = stop.say, stop.moment.pass_info
    if ended_by_error(stop):
        return say("the error ends backward pass {number}", number=event.number)
    began = stop.query.passes.began(backward_pass.number) if backward_pass is not None else None
    graph = flags_of(began, say("; the graph is kept")) if began is not None else ""
    return say("backward pass {number} ends", number=event.number) + (graph or say("; its buffers are freed"))


def _compared(stop: Stop, event: kinds.FunctionCompared) -> str:
    name = clean(event.function)
    if event.why_not:
        return f"{name} is not compared with finite differences: {clean(event.why_not)}"
    verdict = "wrong" if event.is_wrong else "right"
    return (
        f"the backward of {name} is {verdict} for {clean(event.argument)}: along a direction it gives "
        f"{number(event.given)}, and finite differences {number(event.found)}"
    )


def _graphs_alive(stop: Stop, event: kinds.GraphsAlive) -> str:
    nodes = sum(living.nodes for living in event.graphs)
    return f"{plural(nodes, 'node')} of {plural(len(event.graphs), 'earlier pass', 'earlier passes')} are still alive"


def _pass_summed(stop: Stop, event: kinds.PassSummed) -> str:
    told = [f"loss {number(event.loss)}"] if event.has_loss else []
    if event.norm != -1:
        told.append(f"norm of all gradients {number(event.norm)}")
        if event.tensor:
            told.append(f"{stop.called(event.tensor)} has {number(event.largest)} of it")
    behind = {"nan": "NaN or an infinity", "jump": "more than ten times the usual"}.get(event.why)
    more = f": {behind}, so that the next passes are recorded" if behind else ""
    return f"pass {event.in_pass}: {', '.join(told) or 'no loss that could be read'}{more}"


def _step_summed(stop: Stop, event: kinds.StepSummed) -> str:
    if event.change == -1:
        return f"the step behind pass {event.in_pass} changed the parameters"
    told = [f"changed all parameters together by {number(event.change)}"]
    if event.size > 0:
        told.append(f"which is {number(event.change / event.size)} of their norm")
    if event.largest > 0:
        told.append(f"{stop.called(event.tensor)} most, by {number(event.largest)} of its own")
    return f"the step behind pass {event.in_pass} {', '.join(told)}"


def _error(stop: Stop, event: kinds.ErrorRaised) -> str:
    where = stop.say(" at {node}", node=stop.words.node_name(event.node)) if event.node else ""
    is_refused, first = is_refusal(event), clean(event.message.strip().split("\n")[0].split(". ")[0])
    is_last = event.message in stop.trace.meta.get("error", "") if is_refused else not event.in_pass
    ends = stop.say(" (it ends the script)") if is_last else ""
    if is_refused:
        root = refused_root(stop.query, event)
        text = "backward on {name} was refused: {message}" if root else "backward was refused: {message}"
        return stop.say(text, name=stop.called(root) if root else "", message=first) + ends
    text = "{type}{where}: {message}"
    return stop.say(text, type=clean(event.type), where=where, message=first) + ends


def _collective(stop: Stop, event: kinds.CollectiveCalled) -> str:
    tensors = f" of {listed(map(stop.called, event.tensors))}" if event.tensors else ""
    return f"calls {clean(event.how)}({clean(event.args)}){tensors}: it waits for the other ranks"


def _kept(stop: Stop, event: kinds.ValueKept) -> str:
    if not event.original:
        return stop.say("the state of the random numbers is kept, so that the pass can run again")
    told = "the value of {name} is kept, so that the pass can run again"
    return stop.say(told, name=stop.called(event.original))


SENTENCES: dict[type, Callable[[Stop, Any], str]] = {
    kinds.TensorMade: _tensor_made,
    kinds.OpRan: _op_ran,
    kinds.NodeMade: _node_made,
    kinds.Mutated: _mutated,
    kinds.RequiresGradChanged: _requires_grad_changed,
    kinds.GradAssigned: _grad_assigned,
    kinds.GradsCleared: _grads_cleared,
    kinds.Named: _named,
    kinds.ScopeEntered: lambda stop, event: stop.say("enters {scope}", scope=_scope(stop, event)),
    kinds.ScopeLeft: _scope_left,
    kinds.PassBegan: _pass_began,
    kinds.Received: _received,
    kinds.Produced: _produced,
    kinds.Accumulated: _accumulated,
    kinds.Retained: _retained,
    kinds.Hooked: _hooked,
    kinds.PassEnded: _pass_ended,
    kinds.FunctionCompared: _compared,
    kinds.GraphsAlive: _graphs_alive,
    kinds.PassSummed: _pass_summed,
    kinds.StepSummed: _step_summed,
    kinds.TangentPushed: _tangent,
    kinds.OptimizerHolds: _holds,
    kinds.GradsClipped: _clipped,
    kinds.CollectiveCalled: _collective,
    kinds.ValueKept: _kept,
    kinds.CallMade: lambda stop, event: stop.say(
        "{call} can be called again: its arguments are kept", call=clean(event.function)
    ),
    kinds.GradRead: _grad_read,
    kinds.NumberRead: _number_read,
    kinds.KernelRan: _kernel,
    kinds.OpMeasured: _measured,
    kinds.StorageSaved: lambda stop, event: f"{stop.words.node_name(event.node)} has saved {size(event.bytes)}",
    kinds.ElementsBinned: _binned,
    kinds.Stepped: _stepped,
    kinds.Scheduled: _scheduled,
    kinds.ErrorRaised: _error,
}


# The fields of an event in full, as `info` lists them.

_HEAD = ("index", "thread", "site")  # shown elsewhere


def fields_told(event: Any) -> Iterator[tuple[str, str]]:
    """The name and the value of each field that only this kind of event has, in the order of the table of events."""
    yield from ((name, clean(_told(getattr(event, name)))) for name in event.__slots__ if name not in _HEAD)


def _told(value: Any) -> str:
    """A field's value: `3`, `1, 2`, or `(node 3, nr 0, tensor 2)`."""
    if isinstance(value, Rule):
        return "; ".join(f"{name}: {formula or 'no formula'}" for name, formula in value.inputs) or "none"
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        parts = zip(value._fields, value, strict=True)
        return f"({', '.join(f'{name} {_told(part)}' for name, part in parts)})"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(_told, value)) or "none"
    return str(value)
