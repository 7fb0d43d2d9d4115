"""`check-node`: compares the VJP of the present node with finite differences of its op, on the recorded inputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradviz.events.kinds import Kind, OpRan, Produced, Received
from gradviz.query.differences import Compared, compared
from gradviz.query.nodes import ACCUMULATE
from gradviz.query.ops import function_name
from gradviz.step.command_error import CommandError
from gradviz.step.state import Session
from gradviz.words.escape import clean, shortened
from gradviz.words.numbers import listed, number

_LONGEST = 44  # characters of an expression
_ALIKE = 1e-3  # the largest relative difference between outputs and recorded outputs


@dataclass(frozen=True, slots=True)
class _Case:
    """An op, the upstream gradients of its outputs in a pass, and the gradients that its nodes gave to its inputs."""

    op: OpRan
    node: int
    inputs: dict[int, np.ndarray]  # by tensor, in the order of the op
    upstream: list[np.ndarray]
    gradients: dict[int, np.ndarray]


def check_node(session: Session, argument: str) -> None:
    """Compare the VJP of the node at this stop with finite differences. Raises CommandError if that is impossible,
    with the reason."""
    if session.script is None:
        raise CommandError("check-node runs an op again: it needs a script that waits (gradviz debug)")
    case, nodes = _case(session), session.query.nodes
    forward = session.script.forward_of(case.op, case.node, len(nodes.of_op(case.op.index)) == 1)
    arrays = [
        array.astype(np.float64) if array.dtype.kind == "f" else array for array in case.inputs.values()
    ]
    words = session.words
    name = words.node_name(case.node)
    expression = words.expression(case.op.site, _LONGEST) or clean(function_name(case.op.op))
    try:
        _require_the_same(session, case.op, forward(arrays))
        lines: list[str] = []
        wrong: list[str] = []
        right: list[str] = []
        for which, (tensor, array) in enumerate(case.inputs.items()):
            called = words.called(tensor)
            if tensor not in case.gradients:
                if array.dtype.kind != "f":
                    lines.append(f"  {called}: not checked, {array.dtype} has no derivative")
                continue
            comparison = compared(forward, arrays, which, case.upstream, case.gradients[tensor])
            (wrong if comparison.wrong else right).append(called)
            lines += _told(called, comparison)
    except CommandError:
        raise
    except Exception as error:  # raised by the program's own code, or by an op that takes no float64
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise CommandError(
            f"{name} cannot be checked: {expression} does not run again in float64: {shortened(said, 120)}"
        ) from None
    if not wrong and not right:
        raise CommandError(f"{name} gave no gradient to an input of {expression}: there is nothing to check")
    verdict = f"wrong for {listed(wrong)}" if wrong else f"right for {listed(right)}"
    session.page = [
        f"{name}: its backward is {verdict}",
        f"  the VJP of {expression} against central differences on the recorded inputs",
        *lines,
    ]


def _told(called: str, vjp: Compared) -> list[str]:
    if not vjp.checked:
        return [
            f"  {called}: no element has a derivative here ({vjp.kinks} at a kink or at the edge of a domain)"
        ]
    parts = [f"{vjp.checked:,} of {vjp.size:,} elements" if vjp.checked < vjp.size else ""]
    parts.append(f"{vjp.kinks} at a kink left out" if vjp.kinks else "")
    more = ", ".join(filter(None, parts))
    at = f" at [{', '.join(map(str, vjp.at))}]" if vjp.at else ""
    return [
        f"  {called}: {'WRONG' if vjp.wrong else 'right'}, relative error {number(vjp.error, 2)}{at}: "
        f"backward {number(vjp.given)}, differences {number(vjp.found)}" + (f" ({more})" if more else "")
    ]


def _case(session: Session) -> _Case:
    """The op to check at this stop, with its inputs and gradients. Raises CommandError if something is missing."""
    stop, nodes = session.stop, session.query.nodes
    at_hand = stop.node or (nodes.main_of_op(stop.k) if isinstance(stop.event, OpRan) else 0)
    if not at_hand:
        raise CommandError("there is no node at this event: go to one that runs, such as until backward")
    name = session.words.node_name(at_hand)
    event = nodes.op(at_hand)
    if event is None:
        why = "it adds to .grad and differentiates nothing" if name.startswith(ACCUMULATE) else _UNKNOWN
        raise CommandError(f"{name} cannot be checked: {why}")
    op = session.query.tensors.op(event)
    if set(op.outputs) & set(op.inputs):
        raise CommandError(
            f"{name} cannot be checked: {clean(function_name(op.op))} works in place, its input is gone"
        )
    if name.startswith(_SYMMETRIC):
        raise CommandError(f"{name} cannot be checked: it reads one half of a symmetric matrix")
    main = nodes.main_of_op(event)
    received = _event(session, Kind.RECEIVED, main, 0)
    if not isinstance(received, Received):
        raise CommandError(f"{name} has not run yet: let the script go on to where it has (next)")
    numbers = dict.fromkeys(tensor for tensor in op.inputs if tensor)
    inputs = {tensor: _elements(session, tensor, event, session.words.called(tensor)) for tensor in numbers}
    return _Case(op, main, inputs, _upstream(session, op, main, received), _gradients(session, op, received))


_SYMMETRIC = ("LinalgCholesky", "LinalgEigh")  # a single element of their input cannot be moved
_UNKNOWN = "its forward op is not in the trace"


def _event(session: Session, kind: Kind, node: int, number: int) -> Received | Produced | None:
    """The last event of a kind at a node, in pass `number` (0: any)."""
    table = session.trace.table(kind)
    at_node = table["node"] == node
    if number:
        at_node &= table["in_pass"] == number
    events = table.events[at_node]
    return table.object(int(events[-1])) if len(events) else None


def _elements(session: Session, tensor: int, k: int, called: str) -> np.ndarray:
    value = session.query.at(k).value(tensor)
    if value is None or value.array is None:
        raise CommandError(
            f"this node cannot be checked: the elements of {called} were not recorded; debug with --values full"
        )
    return value.array


def _upstream(session: Session, op: OpRan, main: int, received: Received) -> list[np.ndarray]:
    """The upstream gradient of each output of the op; zeros if there is none."""
    gradients = dict(zip(session.query.nodes.outputs(main), received.gradients, strict=False))
    upstream = []
    for tensor in op.outputs:
        gradient = gradients.get(tensor, 0)
        if gradient:
            upstream.append(
                _elements(session, gradient, received.index, "an upstream gradient").astype(np.float64)
            )
        else:
            upstream.append(np.zeros(session.stop.query.tensors.shape(tensor) or ()))
    return upstream


def _gradients(session: Session, op: OpRan, received: Received) -> dict[int, np.ndarray]:
    """The gradients that the nodes of the op gave to each of its inputs in a pass, summed for a tensor that is read
    twice."""
    nodes = session.query.nodes
    gradients: dict[int, np.ndarray] = {}
    for node in nodes.of_op(op.index):
        produced = _event(session, Kind.PRODUCED, node, received.in_pass)
        if not isinstance(produced, Produced):
            raise CommandError(
                f"{session.words.node_name(node)} has not given its gradients yet: next, then check-node"
            )
        for edge, flow in zip(nodes.edges(node), produced.flows, strict=False):
            if edge.tensor in op.inputs and edge.tensor and flow.gradient:
                array = _elements(session, flow.gradient, produced.index, "a gradient")
                gradients[edge.tensor] = gradients[edge.tensor] + array if edge.tensor in gradients else array
    return gradients


def _require_the_same(session: Session, op: OpRan, outputs: list[np.ndarray]) -> None:
    """Raise CommandError if the op, run again, gives other values than the recorded ones: it is random, or depends on
    more than its inputs."""
    for tensor, again in zip(op.outputs, outputs, strict=True):
        value = session.query.at(op.index).value(tensor)
        if value is None or value.array is None or value.array.dtype.kind != "f":
            continue
        if again.shape != value.array.shape or not np.allclose(
            again, value.array, _ALIKE, 1e-5, equal_nan=True
        ):
            raise CommandError(
                f"{clean(function_name(op.op))} cannot be checked: run again, it gives other values (it is random, or "
                "depends on more than its inputs)"
            )
