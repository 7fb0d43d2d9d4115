"""One step of the chain rule: upstream × local = downstream along an edge of a node, and the sum over what
broadcasting repeated. Views put it into words and work nothing out themselves."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from gradviz.events.field_types import Rule
from gradviz.events.kinds import NodeMade, Produced, Received
from gradviz.query.gradient_paths import rounding
from gradviz.query.notation import Names, NotationError, evaluated
from gradviz.query.query import Query
from gradviz.tracefile import Snapshot

_MOST = 4096  # the most elements of a tensor on which a formula is evaluated
_ROUNDINGS = 64  # the number of roundings by which a product may differ from the recorded gradient
_SUMMED = ", summed"


@dataclass(frozen=True, slots=True)
class ChainStep:
    """The step along the edge `position` of a node.

    `formula` is the local derivative as the table states it, or the whole VJP; it is empty if unknown. `symbol` is the
    name of the input in it. `upstream` is the only gradient that the node received, and `downstream` the gradient that
    it produced along this edge. `local` is the local derivative in numbers; None unless it gives the recorded
    gradient. `product` is upstream × local before the sum over `summed`, the dimensions that broadcasting added or
    repeated; None if nothing is summed. `is_defined` means that the formula has another value than the recorded
    derivative: PyTorch defines one where there is none."""

    made: NodeMade
    position: int
    symbol: str
    formula: str
    upstream: Snapshot | None = None
    downstream: Snapshot | None = None
    local: np.ndarray | None = None
    product: Snapshot | None = None
    summed: tuple[int, ...] = ()
    is_defined: bool = False

    @property
    def tensor(self) -> int:
        """The tensor whose gradient goes along the edge, 0 if it is not known."""
        return self.made.edges[self.position].tensor

    @property
    def output(self) -> int:
        """The only output of the node, 0 if there are several or if it is not known."""
        return self.made.outputs[0] if len(self.made.outputs) == 1 else 0

    @property
    def overwritten(self) -> bool:
        """Whether the op wrote over the tensor, so that the gradient is that of its former value."""
        return bool(self.tensor) and self.tensor in self.made.outputs

    @property
    def is_whole(self) -> bool:
        """Whether the formula contains the upstream gradient, so that it is the complete VJP."""
        return bool(re.search(r"(?<![A-Za-z_])g(?![A-Za-z_])", self.formula))

    @property
    def is_number(self) -> bool:
        """Whether the formula is only a number."""
        return is_number(self.formula)

    @property
    def place(self) -> tuple[int, int]:
        """The position of this edge among the node's edges to the same tensor, from 1, and their number: (2, 2) for the
        second factor of x * x."""
        same = [i for i, edge in enumerate(self.made.edges) if edge.node and edge.tensor == self.tensor]
        return (same.index(self.position) + 1, len(same)) if self.tensor and self.position in same else (1, 1)


def is_number(formula: str) -> bool:
    """Whether a formula is only a number."""
    return formula.lstrip("−-").replace(".", "", 1).isdigit()


def stated(rule: Rule, count: int) -> list[tuple[str, str]]:
    """The name in the formulas and the formula of each of `count` inputs of an op, or edges of a node; empty texts if
    the rule does not mention it. A rule with one formula applies to all."""
    if len(rule.inputs) == 1 and count > 1:
        return [("", rule.inputs[0][1])] * count
    return [*rule.inputs[:count], *[("", "")] * (count - len(rule.inputs))]


def chain_step(
    query: Query, made: NodeMade, position: int, received: Received | None, produced: Produced | None
) -> ChainStep:
    """The step along one edge of a node; without the gradients that the node has not received or produced."""
    symbol, formula = stated(made.rule, len(made.edges))[position]
    plain = formula.removesuffix(_SUMMED)
    sums = made.rule.elementwise or is_number(plain)
    output, tensor = made.outputs[0] if len(made.outputs) == 1 else 0, made.edges[position].tensor
    up = _only(query, made, received)
    gradient = (
        produced.flows[position].gradient if produced is not None and position < len(produced.flows) else 0
    )
    down = query.memory.value(gradient, produced.index) if produced is not None and gradient else None
    above = up or query.memory.value(output, made.index)
    below = down or _input(query, made, tensor)
    summed = _repeated(above, below) if sums else ()
    is_known = sums and above is not None and below is not None
    stands = plain if is_known or made.rule.elementwise else formula
    step = ChainStep(made, position, symbol, stands, up, down, summed=summed)
    if up is None or down is None or produced is None:
        return step
    return _in_numbers(query, step, up, down, _ROUNDINGS * rounding(query, gradient, produced.index))


def _only(query: Query, made: NodeMade, received: Received | None) -> Snapshot | None:
    """The only gradient that a node received; None if it received none or several, or has several outputs."""
    if received is None or not received.gradients or not received.gradients[0]:
        return None
    if len(made.outputs) > 1 or any(received.gradients[1:]):
        return None
    return query.memory.value(received.gradients[0], received.index)


def _repeated(above: Snapshot | None, below: Snapshot | None) -> tuple[int, ...]:
    """The dimensions of a result over which an input was repeated."""
    if above is None or below is None or len(below.shape) > len(above.shape):
        return ()
    shape = (1,) * (len(above.shape) - len(below.shape)) + below.shape
    if any(size not in (1, wide) for size, wide in zip(shape, above.shape, strict=True)):
        return ()
    added = len(above.shape) - len(below.shape)
    return tuple(i for i, size in enumerate(shape) if i < added or size != above.shape[i])


def _in_numbers(query: Query, step: ChainStep, up: Snapshot, down: Snapshot, tolerance: float) -> ChainStep:
    """The step with `local` in numbers: the value of the formula if that gives the recorded gradient, else, where
    nothing is summed, downstream / upstream."""
    if step.summed and step.formula == "1":
        return replace(step, local=np.ones(()), product=up)
    g, recorded = (_real(snapshot) for snapshot in (up, down))
    if g is None or recorded is None or step.is_whole:
        return step
    local = _evaluated(query, step, g)
    if local is not None:
        with np.errstate(all="ignore"):
            product = np.broadcast_to(g * local, g.shape)
            result = np.reshape(product.sum(step.summed), recorded.shape) if step.summed else product
            scale = float(np.max(np.abs(product).sum(step.summed), initial=0.0))
            agrees = result.shape == recorded.shape and np.all(np.abs(result - recorded) <= tolerance * scale)
        if agrees:
            of = replace(up, array=product.astype(np.float64), told=None) if step.summed else None
            return replace(step, local=local, product=of)
    if step.summed:
        return step
    return replace(step, local=quotient(step.made.rule.elementwise, up, down), is_defined=local is not None)


def _real(snapshot: Snapshot) -> np.ndarray | None:
    """The elements of a small real tensor in double precision."""
    array = snapshot.array
    if array is None or array.size > _MOST or array.dtype.kind != "f":
        return None
    return array.astype(np.float64)


def _evaluated(query: Query, step: ChainStep, g: np.ndarray) -> np.ndarray | None:
    """The formula of an elementwise op on the recorded values; None if it is words, or if a value is not known."""
    names = _values(query, step.made) if step.made.rule.elementwise else {}
    if not step.formula or (g.ndim and not step.made.rule.elementwise and not step.is_number):
        return None
    try:
        with np.errstate(all="ignore"):
            local = np.asarray(evaluated(step.formula, names), np.float64)
            return local if np.broadcast_shapes(local.shape, g.shape) == g.shape else None
    except (NotationError, ValueError, TypeError):
        return None


def _values(query: Query, made: NodeMade) -> Names:
    """The values in forward that the names in a node's formulas stand for."""
    op = query.tensors.op(made.op) if made.op >= 0 else None
    names: Names = {}
    for (symbol, _), edge in zip(stated(made.rule, len(made.edges)), made.edges, strict=True):
        value = _input(query, made, edge.tensor) if edge.tensor else None
        array = None if value is None else _real(value)
        if array is not None:
            names[symbol] = array
        elif not edge.tensor and not edge.node and op is not None:
            names |= _number(symbol, op.args)
    out = query.memory.value(made.outputs[0], made.index) if len(made.outputs) == 1 else None
    array = None if out is None else _real(out)
    return names if array is None else {**names, "out": array}


def _number(symbol: str, args: str) -> Names:
    try:
        return {symbol: np.float64(args)}
    except ValueError:
        return {}


def _input(query: Query, made: NodeMade, tensor: int) -> Snapshot | None:
    """The value of an input in forward; the value before the op, if the op wrote over it."""
    before = tensor in made.outputs and made.op > 0
    return query.memory.value(tensor, made.op - 1 if before else made.index) if tensor else None


def quotient(elementwise: bool, upstream: Snapshot | None, downstream: Snapshot | None) -> np.ndarray | None:
    """downstream / upstream if both are scalars or the op is elementwise; None if that is not finite."""
    up, down = (None if snapshot is None else _real(snapshot) for snapshot in (upstream, downstream))
    if up is None or down is None or up.shape != down.shape or (up.size > 1 and not elementwise):
        return None
    with np.errstate(all="ignore"):
        ratio = down / up
    return ratio if np.all(np.isfinite(ratio)) else None
