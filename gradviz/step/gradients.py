"""The numbers of one stop: upstream, local and downstream gradients, or what an op took and gave."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from rich.cells import cell_len

from gradviz.events.kinds import (
    Accumulated,
    ErrorRaised,
    Hooked,
    Mutated,
    OpRan,
    PassBegan,
    Produced,
    Received,
    Retained,
    Stepped,
    TangentPushed,
    TensorMade,
)
from gradviz.step.compare import beside
from gradviz.step.jvp import terms
from gradviz.step.local import formulas, local_number
from gradviz.step.numbers import clean, listed
from gradviz.step.savers import needing
from gradviz.step.stop import Stop

_BARS = 24  # cells


class Row(NamedTuple):
    """One line: what it tells of, the text, and its style."""

    label: str
    text: str
    style: str = ""


def rows(stop: Stop, most_waiting: int | None = None) -> list[Row]:
    """What a stop has to show besides its sentence. More gradients on their way than `most_waiting` are one row:
    how many they are."""
    build = ROWS.get(type(stop.event))
    told = [*(build(stop, stop.event) if build is not None else ())]
    other = beside(stop)
    if other is not None:
        told.append(Row(*other, "magenta"))
    in_flight = stop.moment.in_flight if most_waiting is not None else 0
    if most_waiting is not None and in_flight > most_waiting:
        return [*told, Row("waiting", f"{in_flight:,} gradients, at the nodes that they came to", "dim")]
    return [*told, *_waiting(stop)]


# --- backward


def _node(stop: Stop, event: Received | Produced) -> Iterator[Row]:
    received = stop.moment.received(event.node)
    produced = event if isinstance(event, Produced) else None
    tensors = stop.node_tensors
    gradients = received.gradients if received is not None else ()
    for i, gradient in enumerate(gradients):
        name = stop.facts.derivative(tensors[i] if i < len(tensors) else 0, stop.moment)
        came = f"{stop.value(gradient)}{origin(stop, event.node)}" if gradient else "none came"
        yield Row("upstream", f"{name} = {came}", "cyan")
    op = stop.facts.op_of(event.node)
    if op is None:
        return
    yield from _local(stop, op, received, produced)
    if produced is None:
        yield Row("downstream", "not yet known: the node is about to run", "dim")
        return
    inputs = stop.facts.inputs_of(op)
    for i, gradient in enumerate(produced.gradients):
        if gradient:
            name = stop.facts.derivative(inputs[i] if i < len(inputs) else 0, stop.moment)
            to = stop.facts.node_name(produced.targets[i], stop.moment)
            yield Row("downstream", f"{name} = {stop.compact(gradient)}  → {to}", "green")


def origin(stop: Stop, node: int) -> str:
    """The nodes that a node's gradient came from, and what each gave where it is a sum."""
    arrivals = stop.moment.arrivals(node)
    given = [
        event for event in (stop.facts.trace.event(d.event) for d in arrivals) if isinstance(event, Produced)
    ]
    if not given:
        return ""
    parts = " + ".join(stop.compact(delivery.gradient) for delivery in arrivals)
    total = f" = {parts}" if len(arrivals) > 1 else ""
    return f"{total}  ← {listed(_givers(stop, given))}"


def _givers(stop: Stop, given: list[Produced]) -> list[str]:
    """The nodes by name; where several have one name, with what their ops made."""
    nodes = list(dict.fromkeys(event.node for event in given))
    names = [stop.facts.node_name(node, stop.moment) for node in nodes]
    tensors = [stop.facts.tensors_of(node, stop.moment) for node in nodes]
    return [
        f"{name} of {stop.called(made[0])}" if names.count(name) > 1 and made else name
        for name, made in zip(names, tensors, strict=True)
    ]


def _local(stop: Stop, op: OpRan, received: Received | None, produced: Produced | None) -> Iterator[Row]:
    """The local derivative for each input that a gradient goes to."""
    inputs = stop.facts.inputs_of(op)
    told = formulas(stop.facts.formula(op), op, stop.facts.inputs_called(op))
    output = op.outputs[0] if len(op.outputs) == 1 else 0
    for i, tensor in enumerate(inputs):
        if i >= len(op.edges) or not op.edges[i][0]:
            continue
        number = ""
        if received and produced and len(received.gradients) == 1 and i < len(produced.gradients):
            upstream, downstream = received.gradients[0], produced.gradients[i]
            number = local_number(
                clean(op.grad_fn), stop.moment.value(upstream), stop.moment.value(downstream)
            )
        name, formula = told[i]
        if formula.lstrip("−-").isdigit():
            number = ""
        text = " = ".join(part for part in (formula, number) if part)
        if text:
            # a formula that has the upstream gradient in it is all of the VJP
            vjp = "upstream" in formula
            what = f"VJP for {stop.called(tensor)}" if vjp else stop.facts.partial(output, tensor, name)
            yield Row("local", f"{what} = {text}", "yellow")


def _accumulated(stop: Stop, event: Accumulated) -> Iterator[Row]:
    name = stop.called(event.tensor)
    yield Row(
        "upstream",
        f"{stop.facts.derivative(event.tensor, stop.moment)} = {_before(stop, event.gradient)}",
        "cyan",
    )
    grad = stop.before.grad(event.tensor) if stop.before is not None else 0
    yield Row("before", f"{name}.grad = {_before(stop, grad) if grad else 'None'}")
    yield Row("after", f"{name}.grad = {stop.value(event.grad)}", "green")
    trend = stop.facts.trend(event.tensor)
    if trend is not None:
        yield Row("passes", f"{trend.bars(_BARS)}  {trend.words()}", "dim")


def _before(stop: Stop, tensor: int) -> str:
    return stop.value_before(tensor)


def _retained(stop: Stop, event: Retained) -> Iterator[Row]:
    yield Row("retained", f"{stop.called(event.tensor)}.grad = {stop.value(event.grad)}", "green")


def _hooked(stop: Stop, event: Hooked) -> Iterator[Row]:
    yield Row("before", stop.value(event.before), "cyan")
    yield Row("after", stop.value(event.after), "green")


def _pass_began(stop: Stop, event: PassBegan) -> Iterator[Row]:
    for i, (tensor, gradient) in enumerate(zip(event.root_tensors, event.gradients, strict=False)):
        node = stop.facts.node_name(event.roots[i], stop.moment) if i < len(event.roots) else "nothing"
        yield Row("root", f"{stop.end(tensor)} = {stop.value(tensor)}")
        yield Row(
            "upstream",
            f"{stop.facts.derivative(tensor, stop.moment)} = {stop.value(gradient)}  → {node}",
            "cyan",
        )


def _waiting(stop: Stop) -> Iterator[Row]:
    """The gradients in flight, other than those just produced."""
    for node, deliveries in stop.moment.waiting.items():
        if any(delivery.event == stop.k for delivery in deliveries) and len(deliveries) == 1:
            continue
        tensors = stop.facts.tensors_of(node, stop.moment)
        values = " + ".join(stop.compact(delivery.gradient) for delivery in deliveries)
        name = stop.facts.derivative(tensors[0] if tensors else 0, stop.moment)
        yield Row("waiting", f"{name}: {values}  at {stop.facts.node_name(node, stop.moment)}", "dim")


# --- forward


def _made(stop: Stop, event: TensorMade) -> Iterator[Row]:
    yield Row("value", f"{stop.called(event.tensor)} = {stop.value(event.tensor)}", "green")
    yield Row("flags", f"is_leaf={event.is_leaf}, requires_grad={event.requires_grad}", "dim")


def _op(stop: Stop, event: OpRan) -> Iterator[Row]:
    for tensor in dict.fromkeys(t for t in event.inputs if t):
        yield Row("input", f"{stop.called(tensor)} = {stop.value(tensor)}{_tangent_of(stop, tensor)}", "cyan")
    for tensor in event.outputs:
        yield Row("output", f"{stop.called(tensor)} = {stop.value(tensor)}", "green")
    if not event.node:
        return
    yield from _local(stop, event, None, None)
    targets = [_edge(stop, event, i) for i, (node, _) in enumerate(event.edges) if node]
    if targets:
        yield Row("edges", f"{clean(event.grad_fn)} → {listed(dict.fromkeys(targets))}")
    saved = [f"{stop.called(tensor)} (version {version})" for tensor, version in dict.fromkeys(event.saved)]
    if saved:
        yield Row("saved", listed(saved))


def _edge(stop: Stop, op: OpRan, i: int) -> str:
    node = op.edges[i][0]
    made = stop.facts.op_of(node)
    return (
        clean(made.grad_fn)
        if made is not None
        else f"AccumulateGrad of {stop.called(stop.facts.inputs_of(op)[i])}"
    )


def _tangent_of(stop: Stop, tensor: int) -> str:
    tangent = stop.moment.tangent(tensor)
    return f", tangent {stop.value(tangent)}" if tangent else ""


def _tangent(stop: Stop, event: TangentPushed) -> Iterator[Row]:
    """Values and tangents side by side."""
    told = terms(stop, event)
    tensors = [("input", term.tensor, "cyan") for term in told] + [("output", event.tensor, "green")]
    cells = [
        (label, stop.called(tensor), stop.compact(tensor), stop.compact(stop.moment.tangent(tensor)), style)
        for label, tensor, style in tensors
    ]
    names, values = (max(cell_len(row[i]) for row in cells) for i in (1, 2))
    for label, name, value, tangent, style in cells:
        if label == "output":
            for term in told:
                if term.formula or term.number:
                    yield Row("local", term.local, "yellow")
        text = f"{_padded(name, names)} = {_padded(value, values)}   tangent {tangent}"
        yield Row(label, text, style)


def _padded(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))


def _mutated(stop: Stop, event: Mutated) -> Iterator[Row]:
    yield Row("before", stop.value_before(event.tensor), "cyan")
    yield Row("after", stop.value(event.tensor), "green")
    for node in needing(stop, event):
        yield Row("needed", f"{node} and has not run yet", "red")


def _stepped(stop: Stop, event: Stepped) -> Iterator[Row]:
    for tensor in event.parameters:
        grad = stop.moment.grad(tensor)
        yield Row("parameter", f"{stop.called(tensor)}.grad = {stop.value(grad) if grad else 'None'}")


def _error(stop: Stop, event: ErrorRaised) -> Iterator[Row]:
    for line in event.message.strip().splitlines():
        yield Row("error", clean(line), "red")


ROWS: dict[type, Callable[[Stop, Any], Iterator[Row]]] = {
    TensorMade: _made,
    OpRan: _op,
    TangentPushed: _tangent,
    Mutated: _mutated,
    Stepped: _stepped,
    PassBegan: _pass_began,
    Received: _node,
    Produced: _node,
    Accumulated: _accumulated,
    Retained: _retained,
    Hooked: _hooked,
    ErrorRaised: _error,
}
