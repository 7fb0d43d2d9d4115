"""Explains the chain rule at one event: upstream × local = downstream, in words, as a formula and in numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gradviz.events.kinds import (
    REQUIRES_GRAD,
    Accumulated,
    ErrorRaised,
    Hooked,
    Kind,
    Mutated,
    NodeMade,
    OpRan,
    PassBegan,
    PassEnded,
    Produced,
    Received,
    Retained,
    TangentPushed,
)
from gradviz.query.birth import NAN, birth
from gradviz.query.changes import value_changes
from gradviz.query.cuts import why_no_node
from gradviz.words.absence import NO_NODE
from gradviz.words.escape import clean
from gradviz.words.formulas import formulas, is_number, is_whole_vjp, local_number
from gradviz.words.jvp import in_numbers, pushed_through, terms
from gradviz.words.numbers import listed, scalar
from gradviz.words.rows import needed_by, origin
from gradviz.words.sentences import sentence
from gradviz.words.source import title
from gradviz.words.stop import Stop

_LONGEST = 44  # characters of an expression


def why(stop: Stop) -> list[str]:
    """What the chain rule means at an event, as lines of text."""
    if isinstance(stop.event, PassEnded) and stop.k and stop.trace.kinds[stop.k - 1] == Kind.ERROR:
        return why(stop.other(stop.k - 1))
    explain = EXPLAINED.get(type(stop.event))
    lines = (
        list(explain(stop, stop.event))
        if explain is not None
        else [f"{sentence(stop)}: no derivative is involved"]
    )
    return [*lines, *_bad(stop)]


def explains(stop: Stop) -> bool:
    """Whether the chain rule applies to the event of a stop."""
    return type(stop.event) in EXPLAINED


# --- backward


def _node(stop: Stop, event: Received | Produced) -> Iterator[str]:
    made = stop.node_made
    received = stop.moment.received(event.node)
    produced = event if isinstance(event, Produced) else _produced_later(stop, event)
    where = "" if made is None else f" ({title(stop).split(' · ')[0]})"
    yield f"{stop.node_name}: the chain rule for {stop.words.expression_of(made, _LONGEST)}{where}"
    if made is None:
        yield from _leaf(stop, event, received)
        return
    upstream = [stop.words.derivative(t, stop.moment) for t in made.outputs]
    for i, gradient in enumerate(received.gradients if received is not None else ()):
        came = f"{stop.value(gradient)}{origin(stop, event.node)}" if gradient else "none came: taken as 0"
        yield f"  upstream    {upstream[i] if i < len(upstream) else '?'} = {came}"
    told = formulas(made.rule, stop.words.edges_called(made))
    for i, edge in enumerate(made.edges):
        if edge.node:
            yield from _edge(stop, made, i, upstream, told[i], received, produced)
        elif edge.tensor:
            yield f"  {stop.called(edge.tensor)}: it needs no gradient"


def _leaf(stop: Stop, event: Received | Produced, received: Received | None) -> Iterator[str]:
    """The gradients that arrived at a leaf, and their sum if there are several paths."""
    came = stop.moment.arrivals(event.node)
    gradients = [gradient for gradient in (received.gradients if received is not None else ()) if gradient]
    if len(came) > 1 and gradients:
        told = [f"{stop.compact(delivery.gradient)}" for delivery in came]
        yield f"  it arrived along {len(came)} paths; the gradients of all paths are added:"
        for delivery, words in zip(came, told, strict=True):
            giver = stop.trace.event(delivery.event)
            if isinstance(giver, Produced):
                yield f"    {words}  from {stop.words.node_name(giver.node)}{_made_by(stop, giver.node)}"
        yield f"  {' + '.join(told)} = {stop.compact(gradients[0])}"
    yield "  a leaf's gradient ends here: it is added to .grad"


def _made_by(stop: Stop, node: int) -> str:
    """The expression whose op made a node, and its line."""
    made = stop.query.nodes.event(node)
    if made is None:
        return ""
    text = stop.words.expression(made.site, _LONGEST)
    return (f" of {text}" if text else "") + stop.words.at_line(made.site)


def _produced_later(stop: Stop, event: Received) -> Produced | None:
    """The gradients that a node is about to give, taken from the next event; None if that is another event."""
    if event.index + 1 >= stop.trace.count:
        return None
    after = stop.trace.event(event.index + 1)
    return after if isinstance(after, Produced) and after.node == event.node else None


def _edge(
    stop: Stop,
    made: NodeMade,
    i: int,
    upstream: list[str],
    told: tuple[str, str],
    received: Received | None,
    produced: Produced | None,
) -> Iterator[str]:
    name, formula = told
    tensor = made.edges[i].tensor
    output = made.outputs[0] if len(made.outputs) == 1 else 0
    written = tensor in made.outputs
    downstream = stop.words.derivative(tensor, stop.moment, before=written)
    partial = stop.words.partial(output, tensor, name, before=written)
    above = upstream[0] if len(upstream) == 1 else "upstream"
    is_vjp = is_whole_vjp(formula)
    yield f"  for {stop.called(tensor) if tensor else name or 'an input'}:"
    yield f"    {downstream} = " + (formula if is_vjp else f"{above} × {partial}")
    given = produced.flows[i].gradient if produced is not None and i < len(produced.flows) else 0
    now = stop if produced is None or produced.index == stop.k else stop.other(produced.index)
    if received is not None and given and len(received.gradients) == 1:
        up, down = now.moment.value(received.gradients[0]), now.moment.value(given)
        number = local_number(made.rule.elementwise, up, down)
        if not is_vjp and (formula or number):
            parts = (formula, "" if is_number(formula) else number)
            yield f"    {partial} = " + " = ".join(part for part in parts if part)
        if number and scalar(up) is not None:
            yield f"    {now.value(given)} = {now.value(received.gradients[0])} × {number}"
        else:
            yield f"    {now.value(given)}, from {now.value(received.gradients[0])}"
    elif formula and not is_vjp:
        yield f"    {partial} = {formula}"
    if given and produced is not None:
        yield f"    it goes to {stop.words.node_name(produced.flows[i].node)}"


def _accumulated(stop: Stop, event: Accumulated) -> Iterator[str]:
    name, now = stop.called(event.tensor), stop.value(event.grad)
    came = stop.value_before(event.gradient)
    before = stop.before.grad(event.tensor) if stop.before is not None else 0
    yield f"{name} is a leaf: each gradient that arrives is added to {name}.grad"
    arrivals = stop.moment.arrivals(event.node)
    if len(arrivals) > 1:
        parts = " + ".join(stop.compact(delivery.gradient) for delivery in arrivals)
        yield f"  {came} = {parts}: {len(arrivals)} paths lead to {name}; their gradients are added"
    if before:
        yield f"  {now} = {stop.value_before(before)} (from before) + {came} (this pass)"
        yield "  backward() adds to .grad and never replaces it; zero_grad() or .grad = None clears it"
    else:
        yield f"  {now}: .grad was None, so it is now this gradient"


def _pass_began(stop: Stop, event: PassBegan) -> Iterator[str]:
    for root in event.roots:
        name = stop.end(root.tensor)
        yield f"backward begins with ∂{name}/∂{name}: {stop.value(root.gradient)}"
    yield "  the derivative of a scalar by itself is 1; a larger tensor needs backward(gradient=...)"


def _retained(stop: Stop, event: Retained) -> Iterator[str]:
    name, kept = stop.called(event.tensor), stop.value(event.grad)
    yield f"{name} is a non-leaf, but retain_grad() made it keep its gradient: {kept}"


def _hooked(stop: Stop, event: Hooked) -> Iterator[str]:
    yield f"hook {clean(event.hook)} replaced {stop.value(event.before)} by {stop.value(event.after)}"
    yield "  the result of the hook is used from here on, in place of the gradient of the chain rule"


# --- forward


def _op(stop: Stop, event: OpRan) -> Iterator[str]:
    outputs = listed(map(stop.standing, event.outputs)) if event.outputs else "nothing"
    nodes = [stop.query.nodes.event(node) for node in stop.query.nodes.of_op(event.index)]
    for tensor in stop.written:
        yield from _overwritten(stop, tensor)
    if not nodes:
        yield f"{outputs} has no grad_fn: {NO_NODE[why_no_node(stop.query, event)]}"
        return
    wanting = [
        stop.called(t)
        for t in dict.fromkeys(event.inputs)
        if t and stop.query.tensors.flags(t, stop.k - 1) & REQUIRES_GRAD
    ]
    because = f", because {listed(wanting)} require{'s' * (len(wanting) == 1)} grad" if wanting else ""
    names = listed(clean(made.grad_fn) for made in nodes if made is not None)
    yield f"{outputs} requires grad and has grad_fn {names}{because}"
    for made in nodes:
        if made is not None:
            yield from _made_node(stop, made)


def _node_made(stop: Stop, event: NodeMade) -> Iterator[str]:
    yield sentence(stop)
    yield from _made_node(stop, event)


def _made_node(stop: Stop, made: NodeMade) -> Iterator[str]:
    """What a node will do in backward, and which tensors it saves for that."""
    told = formulas(made.rule, stop.words.edges_called(made))
    output = made.outputs[0] if len(made.outputs) == 1 else 0
    for i, edge in enumerate(made.edges):
        name, formula = told[i]
        if not edge.node:
            if edge.tensor:
                yield f"  {stop.called(edge.tensor)}: it gets no gradient, because it does not require grad"
            continue
        what = (
            f"VJP for {stop.called(edge.tensor)}"
            if is_whole_vjp(formula)
            else stop.words.partial(output, edge.tensor, name, before=edge.tensor in made.outputs)
        )
        yield f"  {what} = {formula or 'no formula in the trace'}"
    yield "  backward will multiply the upstream gradient by this"
    if made.saved:
        saved = [f"{stop.called(t)} (version {v})" for t, v in dict.fromkeys(made.saved)]
        yield f"  for that it saves {listed(saved)}: do not change them in place before backward"


def _tangent(stop: Stop, event: TangentPushed) -> Iterator[str]:
    name = stop.called(event.tensor)
    if pushed_through(stop, event) is None:
        yield f"{name} is given the tangent {stop.value(event.tangent)}: the direction in which to differentiate"
        return
    yield f"forward mode: the tangent of {name} = the sum of local derivative × tangent over the inputs"
    for term in terms(stop, event):
        yield f"  {term.local}, tangent of {term.name} = {stop.value(term.tangent)}"
    sums = in_numbers(stop, event)
    yield f"  tangent of {name} = " + (f"{sums} = " if sums else "") + stop.value(event.tangent)


# --- what went wrong


def _mutated(stop: Stop, event: Mutated) -> Iterator[str]:
    yield sentence(stop)
    yield from _overwritten(stop, event.tensor)


def _overwritten(stop: Stop, tensor: int) -> Iterator[str]:
    """The consequences of changing a tensor in place."""
    version = stop.query.tensors.version(tensor, stop.k)
    if not version:
        return
    name = stop.standing(tensor)
    yield f"  the version of {name} is now {version}: a node that saved an earlier one can no longer use it"
    for told in needed_by(stop, tensor):
        yield f"  {told} and has not run yet: its backward would fail"


def _error(stop: Stop, event: ErrorRaised) -> Iterator[str]:
    made = stop.query.nodes.event(event.node)
    yield sentence(stop)
    if made is None:
        return
    expression = stop.words.expression_of(made, _LONGEST)
    yield f"  the node was made by {expression}{stop.words.at_line(made.site)}"
    told = False
    for tensor, version in dict.fromkeys(made.saved):
        for index in value_changes(stop.query, tensor).tolist():
            if made.index < index < stop.k:
                told = True
                writer = stop.other(index)
                when = f"event {index + 1}{stop.words.at_line(writer.event.site)}"
                yield f"  it saved {stop.called(tensor)} at version {version}, and then ({when}):"
                yield f"    {sentence(writer)}"
    if not told and "second time" in event.message:
        yield "  an earlier pass used its saved tensors and freed them: give that pass retain_graph=True"


def _bad(stop: Stop) -> Iterator[str]:
    """Whether a NaN or an infinity first appears here, or comes from an input."""
    found = birth(stop.query, stop.moment)
    if found is None:
        return
    bad = "NaN" if found.what == NAN else "an infinity"
    name = stop.called(found.tensor)
    if found.carriers:
        carriers = listed(dict.fromkeys(map(stop.called, found.carriers)))
        yield f"  {bad} in {name} comes from {carriers}"
        return
    but = f", but {listed(map(stop.called, found.infinite))} contains infinities" if found.infinite else ""
    yield f"  {bad} in {name} first appears here: no input has one{but}"
    for tensor in found.took:
        yield f"    {stop.called(tensor)} = {stop.value_before(tensor)}"


EXPLAINED: dict[type, Callable[[Stop, Any], Iterator[str]]] = {
    Received: _node,
    Produced: _node,
    Accumulated: _accumulated,
    PassBegan: _pass_began,
    Retained: _retained,
    Hooked: _hooked,
    OpRan: _op,
    NodeMade: _node_made,
    TangentPushed: _tangent,
    Mutated: _mutated,
    ErrorRaised: _error,
}
