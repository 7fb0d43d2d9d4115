"""Explains the chain rule at one event: upstream × local = downstream, in words, as a formula and in numbers."""

from collections.abc import Callable, Iterator
from typing import Any

from gradviz.events import kinds
from gradviz.query.birth import NAN, birth
from gradviz.query.chain_step import ChainStep, chain_step
from gradviz.query.flow import why_no_node
from gradviz.query.missing_gradients import accumulations
from gradviz.query.writes import added_up, value_changes
from gradviz.words.absence import NO_NODE, without_grad_told
from gradviz.words.chain import downstream, formula_of, formula_said, local, multiplied, over, partial, so_far, summed
from gradviz.words.escape import clean
from gradviz.words.forward_mode import in_numbers, terms
from gradviz.words.numbers import has_odd, value
from gradviz.words.rows import added, needed_by, origin
from gradviz.words.sentences import LONGEST, ended_by_error, saved_by, sentence
from gradviz.words.source import title
from gradviz.words.stop import Stop
from gradviz.words.words import MOST_LISTED

_MOST = 12  # leaves
_MANY = 1000  # accumulations


def why(stop: Stop) -> list[str]:
    """The chain rule at an event, as lines of text."""
    if isinstance(stop.event, kinds.PassEnded) and ended_by_error(stop):
        return why(stop.other(stop.k - 1))
    nothing = sentence(stop)
    if not isinstance(stop.event, kinds.NumberRead):  # whose sentence says that no gradient flows
        nothing = stop.say("{sentence}: no derivative is involved", sentence=nothing)
    return [*(_explained(stop) or [nothing]), *_bad(stop)]


def why_if_any(stop: Stop) -> list[str]:
    """The chain rule at an event; empty if there is nothing to explain."""
    lines = _explained(stop)
    return [*lines, *_bad(stop)] if lines else []


def _explained(stop: Stop) -> list[str]:
    explain = EXPLAINED.get(type(stop.event))
    return list(explain(stop, stop.event)) if explain is not None else []


# --- backward


def _node(stop: Stop, event: kinds.Received | kinds.Produced) -> Iterator[str]:
    made = stop.node_made
    received = stop.moment.received(event.node)
    produced = event if isinstance(event, kinds.Produced) else _produced_later(stop, event)
    where = "" if made is None else f" ({title(stop).split(' · ')[0]})"
    of = stop.words.expression_of(made, LONGEST)
    yield stop.say("{node}: the chain rule for {expression}{where}", node=stop.node_name, expression=of, where=where)
    if made is None:
        yield from _leaf(stop, event, received)
        return
    upstream = [stop.words.derivative(t, stop.moment, node=event.node) for t in made.outputs]
    for i, gradient in enumerate(received.gradients if received is not None else ()):
        if not gradient and i >= len(upstream):
            continue  # the indices of max have no gradient
        none = stop.say("none came: taken as 0")
        came = f"{stop.value(gradient)}{origin(stop, event.node, i)}" if gradient else none
        yield f"  upstream    {upstream[i] if i < len(upstream) else '?'} = {came}"
    for i, edge in enumerate(made.edges):
        if edge.node:
            yield from _edge(stop, chain_step(stop.query, made, i, received, produced), upstream, produced)
        elif edge.tensor:
            yield stop.say("  {name}: it needs no gradient", name=stop.called(edge.tensor))


def _leaf(stop: Stop, event: kinds.Received | kinds.Produced, received: kinds.Received | None) -> Iterator[str]:
    """The gradients that arrived at a leaf, and their sum if there are several paths."""
    came = stop.moment.arrivals(event.node)
    gradients = [gradient for gradient in (received.gradients if received is not None else ()) if gradient]
    if len(came) > 1 and gradients:
        yield stop.say("  it arrived along {count} paths; the gradients of all paths are added:", count=len(came))
        for delivery in came[:MOST_LISTED]:
            giver, words = stop.trace.event(delivery.event), stop.compact(delivery.gradient)
            if isinstance(giver, kinds.Produced):
                node, of = stop.words.node_name(giver.node), _made_by(stop, giver.node)
                yield stop.say("    {value}  from {node}{of}", value=words, node=node, of=of)
        if more := len(came[MOST_LISTED:]):
            yield stop.say("    {count} more", count=f"{more:,}")
        yield f"  {so_far(stop.words, stop.moment, event.node)}"
        if not stop.moment.meeting(event.node).adds_up_to(stop.moment.value(gradients[0])):
            yield stop.say("  it receives {value} instead", value=stop.compact(gradients[0]))
    yield stop.say("  a leaf's gradient ends here: it is added to .grad")


def _made_by(stop: Stop, node: int) -> str:
    """The expression whose op made a node, and its line."""
    made = stop.query.nodes.event(node)
    if made is None:
        return ""
    text = stop.words.expression(made.site, LONGEST)
    return (stop.say(" of {expression}", expression=text) if text else "") + stop.words.at_line(made.site)


def _produced_later(stop: Stop, event: kinds.Received) -> kinds.Produced | None:
    """The gradients that a node is about to give, taken from the next event; None if that is another event."""
    if event.index + 1 >= stop.trace.count:
        return None
    after = stop.trace.event(event.index + 1)
    return after if isinstance(after, kinds.Produced) and after.node == event.node else None


def _edge(stop: Stop, step: ChainStep, upstream: list[str], produced: kinds.Produced | None) -> Iterator[str]:
    words, tensor = stop.words, step.tensor
    name = stop.called(tensor) if tensor else step.symbol or stop.say("an input")
    yield stop.say("  for {name}:", name=name)
    above = upstream[0] if len(upstream) == 1 else "upstream"
    rule = formula_of(words, step) if step.is_whole else f"{above} × {partial(words, step)}"
    after = stop if produced is None or produced.index == stop.k else stop.other(produced.index)
    yield f"    {downstream(words, step, stop.moment)} = {rule}" + (f", {over(words, step)}" if step.summed else "")
    if not step.is_whole and (text := local(words, step)):
        yield f"    {text}"
    if numbers := multiplied(words, step):
        yield f"    {numbers}"
    elif step.downstream is not None and step.upstream is not None and not step.summed:
        text = "    {value}, from {upstream}"
        yield stop.say(text, value=value(step.downstream), upstream=value(step.upstream))
    if text := summed(words, step):
        yield f"    {text}"
    if step.downstream is not None and produced is not None:
        edge = step.made.edges[step.position]
        yield stop.say("    it goes to {node}", node=words.node_name(edge.node))
        if after.moment.meeting(edge.node, edge.nr).of > 1:
            yield f"    {words.derivative(tensor, stop.moment)}: {so_far(words, after.moment, edge.node, edge.nr)}"


def _accumulated(stop: Stop, event: kinds.Accumulated) -> Iterator[str]:
    say, name, now = stop.say, stop.called(event.tensor), stop.value(event.grad)
    came = stop.value_before(event.gradient)
    before = stop.before.grad(event.tensor) if stop.before is not None else 0
    yield say("{name} is a leaf: each gradient that arrives is added to {name}.grad", name=name)
    if total := added(stop, event):
        count = len(stop.moment.arrivals(event.node))
        text = "  {sum}: {count} paths lead to {name}; their gradients are added"
        yield say(text, sum=total, count=count, name=name)
    if before:
        was = stop.value_before(before)
        yield say("  {now} = {was} (from before) + {came} (this pass)", now=now, was=was, came=came)
        yield say("  backward() adds to .grad and never replaces it; zero_grad() or .grad = None clears it")
    else:
        yield say("  {now}: .grad was None, so it is now this gradient", now=now)


def _pass_began(stop: Stop, event: kinds.PassBegan) -> Iterator[str]:
    for root in event.roots:
        name = stop.end(root.tensor)
        yield stop.say("backward begins with ∂{name}/∂{name}: {value}", name=name, value=stop.value(root.gradient))
    yield stop.say("  the derivative of a scalar by itself is 1; a larger tensor needs backward(gradient=...)")


def _pass_ended(stop: Stop, event: kinds.PassEnded) -> Iterator[str]:
    """The leaves without a gradient after the pass, with the reasons."""
    yield sentence(stop)
    lines = without_grad_told(stop) or [stop.say("each leaf that requires grad has a gradient")]
    odd = [leaf for leaf in stop.moment.newest_leaves if has_odd(stop.moment.value(stop.moment.grad(leaf)))]
    if odd:
        names = stop.listed(map(stop.called, odd[:_MOST]))
        lines.append(stop.say("NaN or inf in the gradient of {names}: ! goes to where it begins", names=names))
    yield from (f"  {line}" for line in lines)


def _cleared(stop: Stop, event: kinds.GradAssigned | kinds.GradsCleared) -> Iterator[str]:
    """A cleared gradient whose leaf was never updated by it."""
    leaves = (event.tensor,) if isinstance(event, kinds.GradAssigned) else event.tensors
    if lines := [line for leaf in leaves[:_MOST] if (line := _never_updated(stop, leaf))]:
        yield sentence(stop)
        yield from lines


def _never_updated(stop: Stop, leaf: int) -> str:
    """A line if a leaf has not changed since it was made although it received gradients; otherwise empty."""
    born = stop.trace.born(leaf)
    changed = value_changes(stop.query, leaf)
    came = len(accumulations(stop.query, leaf, stop.k, _MANY))
    if born is None or not came or ((changed > born) & (changed <= stop.k)).any():
        return ""
    many = f"{came:,}" if came < _MANY else f"{came:,}+"
    text = "  {name} has not changed since {event}, although a gradient came to it {count}×"
    return stop.say(text, name=stop.called(leaf), event=stop.event_of(born), count=many)


def _retained(stop: Stop, event: kinds.Retained) -> Iterator[str]:
    text = "{name} is a non-leaf, but retain_grad() made it keep its gradient: {value}"
    yield stop.say(text, name=stop.called(event.tensor), value=stop.value(event.grad))


def _hooked(stop: Stop, event: kinds.Hooked) -> Iterator[str]:
    yield f"hook {clean(event.hook)} replaced {stop.value(event.before)} by {stop.value(event.after)}"
    yield "  the result of the hook is used from here on, in place of the gradient of the chain rule"


# --- forward


def _op(stop: Stop, event: kinds.OpRan) -> Iterator[str]:
    say = stop.say
    outputs = stop.listed(map(stop.standing, event.outputs)) if event.outputs else say("nothing")
    nodes = [stop.query.nodes.event(node) for node in stop.query.nodes.of_op(event.index)]
    for tensor in stop.written:
        yield from _overwritten(stop, tensor)
    if not nodes:
        reason = say(NO_NODE[why_no_node(stop.query, event)])
        yield say("{outputs} has no grad_fn: {reason}", outputs=outputs, reason=reason)
        return
    wanting = [
        stop.called(t) for t in dict.fromkeys(event.inputs) if t and stop.query.tensors.requires_grad(t, stop.k - 1)
    ]
    why_it = ", because {names} requires grad" if len(wanting) == 1 else ", because {names} require grad"
    because = say(why_it, names=stop.listed(wanting)) if wanting else ""
    names = stop.listed(clean(made.grad_fn) for made in nodes if made is not None)
    yield say("{outputs} requires grad and has grad_fn {node}", outputs=outputs, node=names) + because
    for made in nodes:
        if made is not None:
            yield from _made_node(stop, made)


def _node_made(stop: Stop, event: kinds.NodeMade) -> Iterator[str]:
    yield sentence(stop)
    yield from _made_node(stop, event)


def _made_node(stop: Stop, made: kinds.NodeMade) -> Iterator[str]:
    """The derivatives that a node will compute in backward, and the tensors that it saves for them."""
    say = stop.say
    for i, edge in enumerate(made.edges[:MOST_LISTED]):
        if edge.node:
            step = chain_step(stop.query, made, i, None, None)
            formula = formula_said(stop.words, step) or say("no formula in the trace")
            yield f"  {partial(stop.words, step)} = {formula}"
            if formula := summed(stop.words, step):
                yield f"  {formula}"
        elif edge.tensor:
            name = stop.called(edge.tensor)
            yield say("  {name}: it gets no gradient, because it does not require grad", name=name)
    if more := len(made.edges[MOST_LISTED:]):  # a `stack` may have thousands
        yield say("  … and {count} more", count=f"{more:,}")
    yield say("  backward will multiply the upstream gradient by this")
    if saved := saved_by(stop, made):
        yield say("  for that it saves {saved}: do not change them in place before backward", saved=saved)


def _tangent(stop: Stop, event: kinds.TangentPushed) -> Iterator[str]:
    say, name, value = stop.say, stop.called(event.tensor), stop.value(event.tangent)
    if event.how == "make_dual":
        text = "{name} is given the tangent {value}: the direction in which to differentiate"
        yield say(text, name=name, value=value)
        return
    yield say("forward mode: the tangent of {name} = the sum of local derivative × tangent over the inputs", name=name)
    for term in terms(stop, event):
        of = say("tangent of {name}", name=term.name)
        yield f"  {term.local}, {of} = {stop.value(term.tangent)}"
    sums = in_numbers(stop, event)
    yield f"  {say('tangent of {name}', name=name)} = " + (f"{sums} = " if sums else "") + value


# --- what went wrong


def _mutated(stop: Stop, event: kinds.Mutated) -> Iterator[str]:
    yield sentence(stop)
    yield from _overwritten(stop, event.tensor)
    added = added_up(stop.query, event.tensor, stop.k)
    if len(added) > 1:
        text = "  {name}.grad is the sum over {count} passes since {event}: nothing cleared it between them"
        event_of = stop.event_of(int(added[0]))
        yield stop.say(text, name=stop.called(event.tensor), count=len(added), event=event_of)


def _overwritten(stop: Stop, tensor: int) -> Iterator[str]:
    """The consequences of changing a tensor in place."""
    version = stop.query.tensors.version(tensor, stop.k)
    if not version:
        return
    name = stop.standing(tensor)
    text = "  the version of {name} is now {version}: a node that saved an earlier one can no longer use it"
    yield stop.say(text, name=name, version=version)
    for needed in needed_by(stop, tensor):
        yield stop.say("  {needed} and has not run yet: its backward would fail", needed=needed)


def _error(stop: Stop, event: kinds.ErrorRaised) -> Iterator[str]:
    made = stop.query.nodes.event(event.node)
    yield sentence(stop)
    if made is None:
        if "does not require grad" in event.message:
            yield from (f"  {line}" for line in without_grad_told(stop))
        return
    say, expression = stop.say, stop.words.expression_of(made, LONGEST)
    line = stop.words.at_line(made.site)
    yield say("  the node was made by {expression}{line}", expression=expression, line=line)
    is_explained = False
    for tensor, version in dict.fromkeys(made.saved):
        for index in value_changes(stop.query, tensor).tolist():
            if made.index < index < stop.k:
                is_explained = True
                writer = stop.other(index)
                when = stop.event_of(index) + stop.words.at_line(writer.event.site)
                then = "  it saved {name} at version {version}, and then ({when}):"
                yield say(then, name=stop.called(tensor), version=version, when=when)
                yield f"    {sentence(writer)}"
    if not is_explained and "second time" in event.message:
        yield say("  an earlier pass used its saved tensors and freed them: give that pass retain_graph=True")


def _bad(stop: Stop) -> Iterator[str]:
    """Whether a NaN or an infinity first appears here, or comes from an input."""
    born = birth(stop.query, stop.moment)
    if born is None:
        return
    say, name = stop.say, stop.called(born.tensor)
    bad = say("NaN" if born.what == NAN else "an infinity")
    if born.carriers:
        carriers = stop.listed(dict.fromkeys(map(stop.called, born.carriers)))
        yield say("  {what} in {name} comes from {carriers}", what=bad, name=name, carriers=carriers)
        return
    names = stop.listed(map(stop.called, born.infinite)) if born.infinite else ""
    but = say(", but {names} contains infinities", names=names) if names else ""
    yield say("  {what} in {name} first appears here: no input has one", what=bad, name=name) + but
    for tensor in born.took:
        yield f"    {stop.called(tensor)} = {stop.value_before(tensor)}"


EXPLAINED: dict[type, Callable[[Stop, Any], Iterator[str]]] = {
    kinds.Received: _node,
    kinds.Produced: _node,
    kinds.Accumulated: _accumulated,
    kinds.PassBegan: _pass_began,
    kinds.PassEnded: _pass_ended,
    kinds.GradAssigned: _cleared,
    kinds.GradsCleared: _cleared,
    kinds.Retained: _retained,
    kinds.Hooked: _hooked,
    kinds.OpRan: _op,
    kinds.NodeMade: _node_made,
    kinds.TangentPushed: _tangent,
    kinds.Mutated: _mutated,
    kinds.ErrorRaised: _error,
}
