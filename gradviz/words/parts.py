"""The parts of sentences, the same in every language: calls, changes, and the chain rule in numbers."""

from __future__ import annotations

from collections.abc import Iterator

from gradviz.events.kinds import Kind, Mutated, NodeMade, OpRan, PassBegan, Produced, Received
from gradviz.query.chain_step import ChainStep, chain_step
from gradviz.query.ops import written
from gradviz.words.chain import product
from gradviz.words.escape import clean
from gradviz.words.stop import Stop

LONGEST = 40  # parts of a longer expression are left out, as in a name


def call_of(stop: Stop, op: OpRan) -> str:
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
    if isinstance(stop.event, Mutated) and stop.event.op >= 0:  # the op's event was about the other tensor
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


def received(stop: Stop, event: Received) -> list[tuple[int, int]]:
    """The gradients that a node receives, each with its output; 0 for an unknown output."""
    outputs = [*stop.node_tensors, *[0] * len(event.gradients)]
    return [
        (gradient, output) for gradient, output in zip(event.gradients, outputs, strict=False) if gradient
    ]


def tensor_of_edge(stop: Stop, i: int) -> int:
    """The tensor whose gradient edge i of the node of a stop carries; 0 if it is not known."""
    made = stop.node_made
    return made.edges[i].tensor if made is not None and i < len(made.edges) else 0


def leads_to(stop: Stop, node: NodeMade) -> str:
    """The nodes that a node's gradients go to."""
    targets = dict.fromkeys(stop.words.node_name(edge.node) for edge in node.edges if edge.node)
    return stop.listed(targets) if targets else stop.say("no other node")


def steps_at(stop: Stop, made: NodeMade) -> Iterator[ChainStep]:
    """The steps of the chain rule along the edges of a node that lead on, as far as they have run at a stop."""
    for i, edge in enumerate(made.edges):
        if edge.node:
            yield _step(stop, made, i)


def _step(stop: Stop, made: NodeMade, i: int) -> ChainStep:
    """The step along edge i of the node of a stop; cached for the sentence and the rows of the stop."""
    if i not in stop.steps:
        produced = stop.event if isinstance(stop.event, Produced) else None
        stop.steps[i] = chain_step(stop.query, made, i, stop.moment.received(made.node), produced)
    return stop.steps[i]


def saved_by(stop: Stop, made: NodeMade) -> str:
    """The tensors that a node saved, each with its version."""
    return stop.listed(
        stop.say("{name} (version {version})", name=stop.called(tensor), version=version)
        for tensor, version in dict.fromkeys(made.saved)
    )


def ended_by_error(stop: Stop) -> bool:
    """Whether an error ended the pass that ends at a stop."""
    return bool(stop.k) and stop.trace.kinds[stop.k - 1] == Kind.ERROR


def first_sentence(message: str) -> str:
    """The first sentence of an error's message."""
    return clean(message.strip().split("\n")[0].split(". ")[0])


def chain_rule(stop: Stop, event: Produced, i: int) -> str:
    """The chain rule at edge i, in numbers or otherwise as a formula. Empty if it is unknown or long."""
    made = stop.node_made
    if made is None or i >= len(made.edges):
        return ""
    return product(stop.words, _step(stop, made, i))


def flags_of(event: PassBegan, words: str) -> str:
    """Words for a pass that keeps its graph, and the argument that requested it; otherwise empty."""
    if event.create_graph:
        return f"{words} (create_graph)"
    return f"{words} (retain_graph)" if event.retain_graph else ""
