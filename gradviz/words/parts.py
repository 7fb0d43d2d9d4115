"""What sentences are made of, the same in every language: calls, changes, and the chain rule in numbers."""

from __future__ import annotations

import re

from gradviz.events.kinds import Mutated, OpRan, PassBegan, Produced
from gradviz.words.escape import clean
from gradviz.words.formulas import formulas, is_whole_vjp, local_number
from gradviz.words.numbers import brief, listed, scalar
from gradviz.words.stop import Stop

_LONGEST = 44  # longer expressions are not quoted
_LONGEST_RULE = 24  # nor longer formulas


def call_of(stop: Stop, op: OpRan) -> str:
    """An op as it is written in the source, else as a call."""
    text = stop.words.expression(op.site, _LONGEST)
    is_item = bool(stop.written) and text.endswith("]")  # from `x[0] = y`, the site covers only `x[0]`
    if text and not is_item and op.site in stop.query.places.of_one_op:
        return text
    arguments = [stop.called(tensor) for tensor in op.inputs if tensor] + [clean(op.args)] * bool(op.args)
    return f"{clean(op.op)}({', '.join(arguments)})"


def changes(stop: Stop, through: str = "") -> str:
    """The tensors that an event changed in place, each with its old and new value."""
    return listed(_change(stop, tensor, through) for tensor in stop.written)


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
    change = f"{was} → {now}" if was != now else f"still {now}"
    version = stop.query.tensors.version(tensor, stop.k)
    return f"{name} in place{through}: {change}" + (f", version {version}" if version else "")


def grad_before(stop: Stop, tensor: int) -> str:
    """The `.grad` of a tensor before the event, in a few words."""
    grad = stop.before.grad(tensor) if stop.before is not None else 0
    return stop.brief_before(grad) if grad else "None"


def padded(tensors: list[int], length: int) -> list[int]:
    """Tensors with zeros behind them, up to a length."""
    return [*tensors[:length], *[0] * (length - len(tensors))]


def chain_rule(stop: Stop, event: Produced, i: int) -> str:
    """The chain rule at edge i, in numbers or else as a formula. Empty if it is unknown or long."""
    return _product(stop, event, event.flows[i].gradient) or _rule(stop, i)


def _rule(stop: Stop, i: int) -> str:
    """The chain rule as a formula: upstream × local. Empty if the formula is unknown or long."""
    made = stop.node_made
    told = formulas(made.rule, stop.words.edges_called(made)) if made is not None else []
    formula = told[i][1] if i < len(told) else ""
    if not formula or len(formula) > _LONGEST_RULE:
        return ""
    if is_whole_vjp(formula):
        return formula
    if re.match(r"1($|, (?!for)| [a-z])", formula):  # `1, summed`, `1 where taken`
        return f"upstream{formula[1:]}"
    joined = re.search(r" [−+<>≤≥] |, | is | where ", formula)
    return f"upstream × ({formula})" if joined else f"upstream × {formula}"


def _product(stop: Stop, event: Produced, gradient: int) -> str:
    """The chain rule in numbers, for scalars: upstream × local. Empty if it is unknown."""
    received = stop.moment.received(event.node)
    if received is None or len(received.gradients) != 1:
        return ""
    upstream = stop.moment.value(received.gradients[0])
    downstream = stop.moment.value(gradient)
    if scalar(upstream) is None or scalar(downstream) is None:
        return ""
    local = local_number(False, upstream, downstream)
    return f"{brief(upstream)} × {local}" if local else ""


def flags_of(event: PassBegan, words: str) -> str:
    """Words for a pass that keeps its graph, and the argument that asked for it; else empty."""
    if event.create_graph:
        return f"{words} (create_graph)"
    return f"{words} (retain_graph)" if event.retain_graph else ""
