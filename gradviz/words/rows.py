"""The values of one stop: upstream, local and downstream gradients in backward, inputs and outputs in
forward."""

import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from rich.cells import cell_len, set_cell_size

from gradviz.events import kinds
from gradviz.events.kinds import LEAF, REQUIRES_GRAD
from gradviz.query.curves import Trend
from gradviz.query.failures import is_refusal
from gradviz.query.optimizer_steps import Update, update_step
from gradviz.query.writes import needing
from gradviz.words.chain import addition, contributes, downstream, local, so_far, summed, whole_op
from gradviz.words.escape import clean
from gradviz.words.forward_mode import beside, terms
from gradviz.words.numbers import BRIEF, bars, compact, nested, number
from gradviz.words.sentences import LONGEST, leads_to, saved_by, steps_at
from gradviz.words.stop import Stop
from gradviz.words.words import MOST_LISTED

_BARS = 24  # cells


class Row(NamedTuple):
    """One line: a label, the text and its style."""

    label: str
    text: str
    style: str = ""


def rows(stop: Stop) -> list[Row]:
    """The rows of a stop."""
    return [*rows_of_event(stop), *_waiting(stop)]


def rows_of_event(stop: Stop) -> list[Row]:
    """The rows of a stop, without the rows of gradients that wait."""
    build = ROWS.get(type(stop.event))
    of_event = [*(build(stop, stop.event) if build is not None else ())]
    other = beside(stop)
    return of_event if other is None else [*of_event, Row(*other, "magenta")]


# --- backward


def _node(stop: Stop, event: kinds.Received | kinds.Produced) -> Iterator[Row]:
    received = stop.moment.received(event.node)
    produced = event if isinstance(event, kinds.Produced) else None
    tensors = stop.node_tensors
    for i, gradient in enumerate(received.gradients if received is not None else ()):
        tensor = tensors[i] if i < len(tensors) else 0
        if not gradient and not stop.moment.flags(tensor) & REQUIRES_GRAD:
            continue  # the indices of max have no gradient
        name = stop.words.derivative(tensor, stop.moment, node=event.node)
        came = f"{stop.value(gradient)}{origin(stop, event.node, i)}" if gradient else stop.say("none came")
        yield Row("upstream", f"{name} = {came}", "cyan")
    made = stop.node_made
    if made is None:
        return
    yield from _local(stop, made)
    if produced is None:
        yield Row("downstream", stop.say("not yet known: the node is about to run"), "dim")
        return
    for step in islice(steps_at(stop, made), MOST_LISTED):
        if step.downstream is not None:
            mark = ": " if contributes(step, stop.moment) else " = "
            given = f"{downstream(stop.words, step, stop.moment)}{mark}{compact(step.downstream)}"
            to = stop.words.node_name(made.edges[step.position].node)
            yield Row("downstream", f"{given}  → {to}", "green")
    yield from _more("downstream", stop, made)


def origin(stop: Stop, node: int, nr: int) -> str:
    """The nodes that gave a node its gradient for an output, and the terms of the sum if there are several."""
    meeting, received = stop.moment.meeting(node, nr), stop.moment.received(node)
    arrivals = meeting.arrivals
    first = (stop.trace.event(delivery.event) for delivery in arrivals[:MOST_LISTED])
    events = [event for event in first if isinstance(event, kinds.Produced)]
    if not events:
        return ""
    parts = addition(stop.words, stop.moment, arrivals)
    gradient = stop.moment.value(received.gradients[nr]) if received is not None else None
    total = f" = {parts}" if len(arrivals) > 1 and meeting.adds_up_to(gradient) else ""
    givers = _givers(stop, events)
    if more := len(arrivals[MOST_LISTED:]):
        givers.append(stop.say("{count} more", count=f"{more:,}"))
    return f"{total}  ← {stop.listed(givers)}"


def _givers(stop: Stop, given: list[kinds.Produced]) -> list[str]:
    """The names of nodes; if several have the same name, with the output of each."""
    nodes = list(dict.fromkeys(event.node for event in given))
    names = [stop.words.node_name(node) for node in nodes]
    tensors = [stop.query.nodes.tensors(node) for node in nodes]
    return [
        stop.say("{node} of {name}", node=name, name=stop.called(made[0]))
        if names.count(name) > 1 and any(made)
        else name
        for name, made in zip(names, tensors, strict=True)
    ]


def _local(stop: Stop, made: kinds.NodeMade) -> Iterator[Row]:
    """The local derivative of each edge that carries a gradient, and the sum over broadcast dimensions."""
    for step in islice(steps_at(stop, made), MOST_LISTED):
        for text in filter(None, (local(stop.words, step), whole_op(stop.words, step))):
            yield Row("local", text, "yellow")
        if text := summed(stop.words, step):
            yield Row("summed", text, "yellow")
    yield from _more("local", stop, made)


def _more(label: str, stop: Stop, made: kinds.NodeMade) -> Iterator[Row]:
    """The number of edges of a node that have no row of their own: `stack` may have thousands."""
    more = sum(bool(edge.node) for edge in made.edges) - MOST_LISTED
    if more > 0:
        yield Row(label, stop.say("… and {count} more", count=f"{more:,}"), "dim")


def _accumulated(stop: Stop, event: kinds.Accumulated) -> Iterator[Row]:
    name = stop.called(event.tensor)
    derivative = stop.words.derivative(event.tensor, stop.moment)
    came = stop.value_before(event.gradient)
    yield Row("upstream", f"{derivative} = {added(stop, event) or came}", "cyan")
    grad = stop.before.grad(event.tensor) if stop.before is not None else 0
    yield Row("before", f"{name}.grad = {stop.value_before(grad) if grad else 'None'}")
    was = stop.say("{value} (before) + {came} = ", value=stop.value_before(grad), came=came) if grad else ""
    yield Row("after", f"{name}.grad = {was}{stop.value(event.grad)}", "green")
    trend = stop.words.trend(event.tensor)
    if trend is not None:
        yield Row("passes", f"{bars(trend, _BARS)}  {_trend_told(stop, trend)}", "dim")


def added(stop: Stop, event: kinds.Accumulated) -> str:
    """The gradients whose sum arrived at a leaf: `1 + 0.6 = 1.6`; empty if there is only one, or if a hook changed
    the sum."""
    meeting = stop.moment.meeting(event.node)
    if len(meeting.arrivals) < 2 or not meeting.adds_up_to((stop.before or stop.moment).value(event.gradient)):
        return ""
    return so_far(stop.words, stop.moment, event.node)


def _trend_told(stop: Stop, trend: Trend) -> str:
    """The first and the last norm of a gradient, and the number of passes."""
    first, last = (number(norm, 3) for norm in (trend.norms[0], trend.norms[-1]))
    text = "norm {first} → {last} in {passes} passes"
    if trend.of:
        text = "norm {first} → {last} in {passes} of {all} passes"
    return stop.say(text, first=first, last=last, passes=len(trend.norms), all=f"{trend.of:,}")


def _retained(stop: Stop, event: kinds.Retained) -> Iterator[Row]:
    yield Row("retained", f"{stop.called(event.tensor)}.grad = {stop.value(event.grad)}", "green")


def _hooked(stop: Stop, event: kinds.Hooked) -> Iterator[Row]:
    yield Row("before", stop.value(event.before), "cyan")
    yield Row("after", stop.value(event.after), "green")


def _pass_began(stop: Stop, event: kinds.PassBegan) -> Iterator[Row]:
    for root in event.roots:
        node = stop.words.node_name(root.node) if root.node else stop.say("nothing")
        yield Row("root", f"{stop.end(root.tensor)} = {stop.value(root.tensor)}")
        derivative = stop.words.derivative(root.tensor, stop.moment)
        yield Row("upstream", f"{derivative} = {stop.value(root.gradient)}  → {node}", "cyan")


def _waiting(stop: Stop) -> Iterator[Row]:
    """The waiting gradients, except those that were just produced."""
    for node in stop.moment.waiting:
        for nr in range(max(len(stop.query.nodes.tensors(node)), 1)):
            meeting = stop.moment.meeting(node, nr)
            new = any(delivery.event == stop.k for delivery in meeting.arrivals)
            if meeting.arrivals and not (new and meeting.of == 1):
                yield Row("waiting", waiting_told(stop, node, nr), "dim")


def waiting_told(stop: Stop, node: int, nr: int) -> str:
    """The gradients that wait at an output of a node: `∂z/∂x: 1 so far, 1 of 2 paths  at AccumulateGrad of x`."""
    outputs = stop.query.nodes.tensors(node)
    return stop.say(
        "{name}: {values}  at {node}",
        name=stop.words.derivative(outputs[nr] if outputs else 0, stop.moment, node=node),
        values=so_far(stop.words, stop.moment, node, nr),
        node=stop.words.node_name(node),
    )


# --- forward


def _made(stop: Stop, event: kinds.TensorMade) -> Iterator[Row]:
    flags = stop.moment.flags(event.tensor)
    yield Row("value", f"{stop.called(event.tensor)} = {stop.value(event.tensor)}", "green")
    text = f"is_leaf={bool(flags & LEAF)}, requires_grad={bool(flags & REQUIRES_GRAD)}"
    yield Row("flags", text, "dim")


def _op(stop: Stop, event: kinds.OpRan) -> Iterator[Row]:
    for tensor in dict.fromkeys(t for t in event.inputs if t and t not in stop.written):
        tangent = stop.moment.tangent(tensor)
        beside = f", tangent {stop.value(tangent)}" if tangent else ""
        yield Row("input", f"{stop.called(tensor)} = {stop.value(tensor)}{beside}", "cyan")
    for tensor in event.outputs:
        if tensor in stop.written:
            yield from _written(stop, tensor)
        else:
            yield Row("output", f"{stop.called(tensor)} = {stop.value(tensor)}", "green")


def _node_made(stop: Stop, event: kinds.NodeMade) -> Iterator[Row]:
    yield from _local(stop, event)
    if any(edge.node for edge in event.edges):
        yield Row("edges", f"{clean(event.grad_fn)} → {leads_to(stop, event)}")
    if saved := saved_by(stop, event):
        yield Row("saved", saved)


def _tangent(stop: Stop, event: kinds.TangentPushed) -> Iterator[Row]:
    """Values and tangents side by side."""
    summands = terms(stop, event)
    cells = [("input", term.name, compact(term.value), stop.compact(term.tangent), "cyan") for term in summands]
    cells.append(
        ("output", stop.called(event.tensor), stop.compact(event.tensor), stop.compact(event.tangent), "green")
    )
    names, values = (max(cell_len(row[i]) for row in cells) for i in (1, 2))
    for label, name, value, tangent, style in cells:
        if label == "output":
            for term in summands:
                if term.formula or term.number:
                    yield Row("local", term.local, "yellow")
        text = f"{set_cell_size(name, names)} = {set_cell_size(value, values)}   tangent {tangent}"
        yield Row(label, text, style)


def _mutated(stop: Stop, event: kinds.Mutated) -> Iterator[Row]:
    if formula := update_told(stop, event):
        yield Row("step", formula, "cyan")
    yield from _written(stop, event.tensor)


def _written(stop: Stop, tensor: int) -> Iterator[Row]:
    """A tensor before and after it was changed in place, and the nodes that still need the old value."""
    yield Row("before", stop.value_before(tensor), "cyan")
    yield Row("after", stop.value(tensor), "green")
    for needed in needed_by(stop, tensor):
        yield Row("needed", stop.say("{needed} and has not run yet", needed=needed), "red")


def needed_by(stop: Stop, tensor: int) -> list[str]:
    """The nodes that saved an earlier version of a tensor that is now changed."""
    lines = []
    for node, saved in needing(stop.query, tensor, stop.k):
        text = stop.words.expression(node.site, LONGEST)
        line = stop.words.at_line(node.site)
        place = (stop.say(" of {expression}", expression=text) if text else "") + (f"{line}," if line else "")
        saved_at, name = "{node}{place} saved it at version {version}", clean(node.grad_fn)
        lines.append(stop.say(saved_at, node=name, place=place, version=saved.version))
    return lines


def _stepped(stop: Stop, event: kinds.Stepped) -> Iterator[Row]:
    for tensor in event.parameters:
        grad = stop.moment.grad(tensor)
        yield Row("parameter", f"{stop.called(tensor)}.grad = {stop.value(grad) if grad else 'None'}")


def _error(stop: Stop, event: kinds.ErrorRaised) -> Iterator[Row]:
    message = f"{event.type}: {event.message}" if is_refusal(event) else event.message
    for line in message.strip().splitlines():
        yield Row("error", clean(line), "red")


ROWS: dict[type, Callable[[Stop, Any], Iterator[Row]]] = {
    kinds.TensorMade: _made,
    kinds.OpRan: _op,
    kinds.NodeMade: _node_made,
    kinds.TangentPushed: _tangent,
    kinds.Mutated: _mutated,
    kinds.Stepped: _stepped,
    kinds.PassBegan: _pass_began,
    kinds.Received: _node,
    kinds.Produced: _node,
    kinds.Accumulated: _accumulated,
    kinds.Retained: _retained,
    kinds.Hooked: _hooked,
    kinds.ErrorRaised: _error,
}


# An optimizer step as a formula and with its numbers: `w − lr · grad = 3 − 0.1 · 6 = 2.4`.

_NAME = re.compile(r"weight_decay|momentum|buffer|grad|eps|lr|m̂|v̂|w")


def update_told(stop: Stop, event: kinds.Mutated) -> str:
    """The computation of a parameter's new value by an optimizer; empty if it is not known, or the parameter is
    large."""
    update = update_step(stop.query, event)
    if update is None or update.after.size > BRIEF:
        return ""
    name = stop.called(event.tensor)
    named = {"w": name, "grad": f"{name}.grad"}
    formula = _NAME.sub(lambda term: named.get(term[0], term[0]), update.formula)
    return f"{formula} = {filled_in(update)} = {nested(update.after.astype('f4'))}"


def filled_in(update: Update) -> str:
    """The formula of a step with its numbers: `3 − 0.1 · 6`."""
    numbers = dict(update.terms)
    return _NAME.sub(lambda term: _number(numbers[term[0]]), update.formula)


def _number(value: object) -> str:
    text = nested(value.astype("f4")) if hasattr(value, "astype") else str(value)
    return f"({text})" if text.startswith(("-", "−")) else text
