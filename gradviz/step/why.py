"""The chain rule at one place: upstream × local = downstream, in words, as a formula and in numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gradviz.events.kinds import (
    Accumulated,
    ErrorRaised,
    Hooked,
    Kind,
    Mutated,
    OpRan,
    PassBegan,
    PassEnded,
    Produced,
    Received,
    Retained,
    TangentPushed,
)
from gradviz.graph.changes import value_changes
from gradviz.step.absence import why_no_node
from gradviz.step.gradients import origin
from gradviz.step.jvp import in_numbers, terms
from gradviz.step.local import formulas, local_number
from gradviz.step.numbers import clean, listed, scalar
from gradviz.step.savers import needing
from gradviz.step.sentences import sentence
from gradviz.step.source import title
from gradviz.step.stop import Stop


def why(stop: Stop) -> list[str]:
    """What the chain rule says of an event."""
    if isinstance(stop.event, PassEnded) and stop.k and stop.facts.trace.kinds[stop.k - 1] == Kind.ERROR:
        return why(Stop(stop.facts, stop.k - 1))
    explain = EXPLAINED.get(type(stop.event))
    lines = (
        list(explain(stop, stop.event))
        if explain is not None
        else [f"{sentence(stop)}: no derivative is involved"]
    )
    return [*lines, *_bad(stop)]


def explains(stop: Stop) -> bool:
    """Whether the chain rule has anything to say of an event."""
    return type(stop.event) in EXPLAINED


# --- backward


def _node(stop: Stop, event: Received | Produced) -> Iterator[str]:
    op = stop.facts.op_of(event.node)
    received = stop.moment.received(event.node)
    produced = event if isinstance(event, Produced) else _produced_later(stop, event)
    yield f"{stop.node_name}: the chain rule for {_expression(stop, op)}"
    if op is None:
        yield from _leaf(stop, event, received)
        return
    upstream = [stop.facts.derivative(t, stop.moment) for t in op.outputs]
    for i, gradient in enumerate(received.gradients if received is not None else ()):
        came = f"{stop.value(gradient)}{origin(stop, event.node)}" if gradient else "none came: taken as 0"
        yield f"  upstream    {upstream[i] if i < len(upstream) else '?'} = {came}"
    inputs = stop.facts.inputs_of(op)
    told = formulas(stop.facts.formula(op), op, stop.facts.inputs_called(op))
    output = op.outputs[0] if len(op.outputs) == 1 else 0
    for i, tensor in enumerate(inputs):
        if i >= len(op.edges) or not op.edges[i][0]:
            if tensor:
                yield f"  {stop.called(tensor)}: no gradient is wanted for it"
            continue
        yield from _edge(stop, op, i, tensor, output, upstream, told[i], received, produced)


def _leaf(stop: Stop, event: Received | Produced, received: Received | None) -> Iterator[str]:
    """What came to a leaf: along several paths, the sum."""
    came = stop.moment.arrivals(event.node)
    gradients = [gradient for gradient in (received.gradients if received is not None else ()) if gradient]
    if len(came) > 1 and gradients:
        told = [f"{stop.compact(delivery.gradient)}" for delivery in came]
        yield f"  it came along {len(came)} paths, and the gradients of all paths are added:"
        for delivery, words in zip(came, told, strict=True):
            giver = stop.facts.trace.event(delivery.event)
            if isinstance(giver, Produced):
                yield f"    {words}  from {stop.facts.node_name(giver.node, stop.moment)}{_made_by(stop, giver.node)}"
        yield f"  {' + '.join(told)} = {stop.compact(gradients[0])}"
    yield "  a leaf's gradient comes to its end here: it is added to .grad"


def _made_by(stop: Stop, node: int) -> str:
    """The expression whose op made a node, and its line."""
    op = stop.facts.op_of(node)
    site = stop.facts.site(op.site) if op is not None else None
    if op is None or site is None:
        return ""
    text = stop.facts.expression(op.site, _LONGEST)
    return f" of {text}, line {site.place.line}" if text else f", line {site.place.line}"


_LONGEST = 44  # characters of an expression


def _produced_later(stop: Stop, event: Received) -> Produced | None:
    """What a node that is about to run will give: the next event where it follows at once."""
    if event.index + 1 >= stop.facts.trace.count:
        return None
    after = stop.facts.trace.event(event.index + 1)
    return after if isinstance(after, Produced) and after.node == event.node else None


def _edge(
    stop: Stop,
    op: OpRan,
    i: int,
    tensor: int,
    output: int,
    upstream: list[str],
    told: tuple[str, str],
    received: Received | None,
    produced: Produced | None,
) -> Iterator[str]:
    name, formula = told
    downstream = stop.facts.derivative(tensor, stop.moment)
    partial = stop.facts.partial(output, tensor, name)
    above = upstream[0] if len(upstream) == 1 else "upstream"
    is_vjp = "upstream" in formula
    yield f"  for {stop.called(tensor) if tensor else name or 'an input'}:"
    yield f"    {downstream} = " + (formula if is_vjp else f"{above} × {partial}")
    given = produced.gradients[i] if produced is not None and i < len(produced.gradients) else 0
    now = stop if produced is None or produced.index == stop.k else Stop(stop.facts, produced.index)
    number = ""
    if received is not None and given and len(received.gradients) == 1:
        up, down = now.moment.value(received.gradients[0]), now.moment.value(given)
        number = local_number(clean(op.grad_fn), up, down)
        if not is_vjp and (formula or number):
            same = formula.lstrip("−-").replace(".", "").isdigit()
            yield f"    {partial} = " + " = ".join(part for part in (formula, "" if same else number) if part)
        if number and scalar(up) is not None:
            yield f"    {now.value(given)} = {now.value(received.gradients[0])} × {number}"
        else:
            yield f"    {now.value(given)}, from {now.value(received.gradients[0])}"
    elif formula and not is_vjp:
        yield f"    {partial} = {formula}"
    if given and produced is not None:
        yield f"    it goes to {stop.facts.node_name(produced.targets[i], now.moment)}"


def _expression(stop: Stop, op: OpRan | None) -> str:
    if op is None:
        return "a leaf"
    text = stop.facts.expression(op.site, 44) or clean(op.op)
    return f"{text} ({title(stop).split(' · ')[0]})"


def _accumulated(stop: Stop, event: Accumulated) -> Iterator[str]:
    name, now = stop.called(event.tensor), stop.value(event.grad)
    came = stop.value_before(event.gradient)
    before = stop.before.grad(event.tensor) if stop.before is not None else 0
    yield f"{name} is a leaf: what comes to it is added to {name}.grad"
    arrivals = stop.moment.arrivals(event.node)
    if len(arrivals) > 1:
        parts = " + ".join(stop.compact(delivery.gradient) for delivery in arrivals)
        yield f"  {came} = {parts}: {len(arrivals)} paths lead to {name}, and their gradients are added"
    if before:
        yield f"  {now} = {stop.value_before(before)} (from before) + {came} (this pass)"
        yield "  backward() adds, it never replaces; zero_grad() or .grad = None empties it"
    else:
        yield f"  {now}: .grad was None, so it becomes what came"


def _pass_began(stop: Stop, event: PassBegan) -> Iterator[str]:
    for tensor, gradient in zip(event.root_tensors, event.gradients, strict=False):
        name = stop.end(tensor)
        yield f"backward begins with ∂{name}/∂{name}: {stop.value(gradient)}"
    yield "  a scalar differentiated by itself is 1; for more than one element you say with what to begin"


def _retained(stop: Stop, event: Retained) -> Iterator[str]:
    name, kept = stop.called(event.tensor), stop.value(event.grad)
    yield f"{name} is no leaf, but retain_grad() asked to keep its gradient: {kept}"


def _hooked(stop: Stop, event: Hooked) -> Iterator[str]:
    yield f"hook {clean(event.hook)} put {stop.value(event.after)} in the place of {stop.value(event.before)}"
    yield "  what flows on is what the hook gave, whatever the chain rule says"


# --- forward


def _op(stop: Stop, event: OpRan) -> Iterator[str]:
    made = listed(map(stop.called, event.outputs)) if event.outputs else "nothing"
    if not event.node:
        yield f"{made} has no grad_fn: {why_no_node(event, stop.moment)}"
        return
    wanting = [
        stop.called(t) for t in dict.fromkeys(event.inputs) if t and stop.moment.state(t).requires_grad
    ]
    because = f", because {listed(wanting)} require{'s' * (len(wanting) == 1)} grad" if wanting else ""
    yield f"{made} requires grad and has grad_fn {clean(event.grad_fn)}{because}"
    inputs = stop.facts.inputs_of(event)
    told = formulas(stop.facts.formula(event), event, stop.facts.inputs_called(event))
    output = event.outputs[0] if len(event.outputs) == 1 else 0
    for i, tensor in enumerate(inputs):
        name, formula = told[i]
        if i >= len(event.edges) or not event.edges[i][0]:
            if tensor:
                yield f"  {stop.called(tensor)}: no gradient goes there, it does not require grad"
            continue
        what = (
            f"VJP for {stop.called(tensor)}"
            if "upstream" in formula
            else stop.facts.partial(output, tensor, name)
        )
        yield f"  {what} = {formula or 'no formula in the trace'}"
    yield "  backward will multiply what comes to it by this"
    if event.saved:
        saved = [f"{stop.called(t)} (version {v})" for t, v in dict.fromkeys(event.saved)]
        yield f"  for that it saves {listed(saved)}: none of them may be written over before"


def _tangent(stop: Stop, event: TangentPushed) -> Iterator[str]:
    op = stop.facts.names.maker(event.tensor)
    name = stop.called(event.tensor)
    if not isinstance(op, OpRan) or event.how == "make_dual":
        yield f"{name} is given the tangent {stop.value(event.tangent)}: the direction in which to differentiate"
        return
    yield f"forward mode: the tangent of {name} = the sum of local derivative × tangent over the inputs"
    for term in terms(stop, event):
        yield f"  {term.local}, tangent of {stop.called(term.tensor)} = {stop.value(term.tangent)}"
    sums = in_numbers(stop, event)
    yield f"  tangent of {name} = " + (f"{sums} = " if sums else "") + stop.value(event.tangent)


# --- what went wrong


def _mutated(stop: Stop, event: Mutated) -> Iterator[str]:
    yield sentence(stop)
    if not event.version:
        return
    yield f"  its version is now {event.version}: a node that saved it at an earlier version can no longer use it"
    for node in needing(stop, event):
        yield f"  {node} and has not run yet: its backward would fail"


def _error(stop: Stop, event: ErrorRaised) -> Iterator[str]:
    op = stop.facts.op_of(event.node)
    yield sentence(stop)
    if op is None:
        return
    yield f"  the node was made by {stop.facts.expression(op.site, 44) or clean(op.op)}{_at(stop, op.site)}"
    told = False
    for tensor, version in dict.fromkeys(op.saved):
        for index in value_changes(stop.facts.moments, tensor).tolist():
            if op.index < index < stop.k:
                told = True
                writer = Stop(stop.facts, index)
                when = f"event {index + 1}{_at(stop, writer.event.site)}"
                yield f"  it saved {stop.called(tensor)} at version {version}, and then ({when}):"
                yield f"    {sentence(writer)}"
    if not told and "second time" in event.message:
        yield "  an earlier pass used its saved tensors and freed them: give that one retain_graph=True"


def _at(stop: Stop, number: int) -> str:
    site = stop.facts.site(number)
    return f", line {site.place.line}" if site is not None else ""


def _bad(stop: Stop) -> Iterator[str]:
    """Whether a NaN or an infinity was born here, or came in."""
    taken, given = _taken_and_given(stop)
    found = {tensor: _badness(stop, tensor) for tensor in given}
    found = {tensor: bad for tensor, bad in found.items() if bad}
    if not found:
        return
    tensor, bad = next(iter(found.items()))
    came = [stop.called(t) for t in taken if _badness(stop, t)]
    if came:
        yield f"  {bad} in {stop.called(tensor)} came in with {listed(dict.fromkeys(came))}"
        return
    yield f"  {bad} in {stop.called(tensor)} was born here: all that came in is finite"
    for t in dict.fromkeys(taken):
        yield f"    {stop.called(t)} = {stop.value(t)}"


def _taken_and_given(stop: Stop) -> tuple[list[int], list[int]]:
    event = stop.event
    if isinstance(event, OpRan):
        return [t for t in event.inputs if t], list(event.outputs)
    if isinstance(event, Produced):
        received, op = stop.moment.received(event.node), stop.facts.op_of(event.node)
        saved = [tensor for tensor, _ in op.saved] if op is not None else []
        return [g for g in received.gradients if g] + saved if received else saved, [
            g for g in event.gradients if g
        ]
    return [], []


def _badness(stop: Stop, tensor: int) -> str:
    snapshot = stop.moment.value(tensor)
    stats = snapshot.stats if snapshot is not None else None
    if stats is None:
        return ""
    return "NaN" if stats.nan else "an infinity" if stats.inf else ""


EXPLAINED: dict[type, Callable[[Stop, Any], Iterator[str]]] = {
    Received: _node,
    Produced: _node,
    Accumulated: _accumulated,
    PassBegan: _pass_began,
    Retained: _retained,
    Hooked: _hooked,
    OpRan: _op,
    TangentPushed: _tangent,
    Mutated: _mutated,
    ErrorRaised: _error,
}
