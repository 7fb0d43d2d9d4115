"""The reason why a tensor's `.grad` is None. `words` puts it into words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from gradviz.events.kinds import Accumulated, Kind, OpRan, PassBegan, TensorMade
from gradviz.query.flow import shortest_way
from gradviz.query.lack import Lack, Lacking, Lacks
from gradviz.query.moment import Moment
from gradviz.query.pass_owners import PassOwners
from gradviz.query.query import Query
from gradviz.query.refused import refused


class Why(Enum):
    """The reasons why a `.grad` is None at a moment."""

    NOT_MADE_YET = "the tensor is made later"
    THERE = "it is not None"
    EMPTIED = "it was set to None"
    NOT_REQUIRED = "the tensor does not require grad"
    REPLACED = "an op made it of the leaf that had its name before"
    NON_LEAF = "only leaves keep their gradient"
    NO_PASS_YET = "no backward pass has begun"
    PASS_UNDER_WAY = "the pass has not reached it yet"
    RETURNED = "autograd.grad() returns the gradients and does not change .grad"
    NOT_ASKED_FOR = "the pass computed only the gradients of others"
    CUT = "the path to the root is cut"
    AS_NUMBER = "what is computed from it is read as a plain number"
    NOT_RETURNED = "the backward of a custom Function returned None on the way to it"
    OFF_PATH = "what is computed from it reaches no root"
    NOT_COMPUTED_FROM = "the root was not computed from it"


@dataclass(frozen=True, slots=True)
class Absence:
    """The reason why a `.grad` is None, with the fields that apply to it. `event` made the tensor, set its `.grad` to
    None, or received a non-leaf's `gradient`; `leaf` had its name before; `number` is the pass and `root` its root;
    `cut` is the event that cuts the path; `asked` are the inputs of the pass; `to_come` is a later event that sets the
    `.grad`. `lacking` is what keeps a leaf from any gradient at all, if known."""

    why: Why
    event: int = -1
    gradient: int = 0
    leaf: int = 0
    number: int = 0
    root: int = 0
    cut: OpRan | TensorMade | None = None
    asked: tuple[int, ...] = ()
    to_come: int = -1
    lacking: Lacking | None = None


_OF_LACK = {
    Lack.CUT: Why.CUT,
    Lack.COPIED: Why.CUT,
    Lack.AS_NUMBER: Why.AS_NUMBER,
    Lack.OFF_PATH: Why.OFF_PATH,
    Lack.NOT_RETURNED: Why.NOT_RETURNED,
}


def why_no_grad(query: Query, tensor: int, moment: Moment) -> Absence:
    """The reason why the `.grad` of a tensor is None at a moment."""
    query.trace.reach_all()
    born = query.trace.born(tensor)
    if born is None or born > moment.k:
        return Absence(Why.NOT_MADE_YET, event=-1 if born is None else born)
    state = moment.state(tensor)
    if state.grad:
        return Absence(Why.THERE)
    emptied = _emptied(query, tensor, moment.k)
    if emptied >= 0:
        return Absence(Why.EMPTIED, event=emptied)
    if not state.requires_grad:
        return Absence(Why.NOT_REQUIRED)
    if not state.is_leaf:
        leaf = _leaf_before(query, tensor, born)
        if leaf:
            return Absence(Why.REPLACED, event=born, leaf=leaf)
        event, gradient = _passed_by(query, tensor, moment)
        return Absence(Why.NON_LEAF, event=event, gradient=gradient)
    return _of_leaf(query, tensor, moment)


def _leaf_before(query: Query, tensor: int, born: int) -> int:
    """The first leaf with the name of a tensor that was computed from it: `w = w - lr * w.grad`. 0 if there is none."""
    name = query.names.of(tensor)
    if name is None:
        return 0
    leaf = query.names.tensor_called(name, 0)
    is_leaf = leaf not in (0, tensor) and query.tensors.is_leaf_that_requires_grad(leaf, born)
    return leaf if is_leaf and shortest_way(query, leaf, tensor) else 0


def _emptied(query: Query, tensor: int, k: int) -> int:
    """The event that set a `.grad` to None; −1 if there is none."""
    events, grads = query.tensors.grads.of(tensor)
    at = int(np.searchsorted(events, k, side="right")) - 1
    return int(events[at]) if at >= 0 and not grads[at] and np.any(grads[:at]) else -1


def _passed_by(query: Query, tensor: int, moment: Moment) -> tuple[int, int]:
    """The last event up to the moment at which a node received the gradient of a non-leaf, and that gradient;
    −1 and 0 if there is none."""
    node = moment.grad_fn(tensor)
    outputs = query.nodes.outputs(node)
    received = query.trace.table(Kind.RECEIVED)
    events = received.events[(received["node"] == node) & (received.events <= moment.k)]
    if not len(events) or tensor not in outputs:
        return -1, 0
    gradients = received.object(int(events[-1])).gradients
    position = outputs.index(tensor)
    gradient = gradients[position] if position < len(gradients) else 0
    return (int(events[-1]), gradient) if gradient else (-1, 0)


def _of_leaf(query: Query, tensor: int, moment: Moment) -> Absence:
    trace, k = query.trace, moment.k
    accumulated = trace.table(Kind.ACCUMULATED)
    later = accumulated.events[(accumulated.events > k) & (accumulated["tensor"] == tensor)]
    to_come = int(later[0]) if len(later) else -1
    begun = [backward_pass for backward_pass in trace.passes if backward_pass.first <= k]
    if not begun:
        return _cut_off(query, tensor, k) or Absence(Why.NO_PASS_YET, to_come=to_come)
    of_optimizer = [
        backward_pass for backward_pass in query.of(PassOwners).passes_of(tensor) if backward_pass.first <= k
    ]
    backward_pass = (of_optimizer or begun)[-1]
    if (backward_pass.last is None or backward_pass.last > k) and to_come >= 0:
        return Absence(Why.PASS_UNDER_WAY, number=backward_pass.number, to_come=to_come)
    began = query.passes.began(backward_pass.number)
    if began.how == "grad" and backward_pass.last is not None and backward_pass.last <= k:
        return Absence(Why.RETURNED, number=backward_pass.number, to_come=to_come)
    if began.inputs:
        return Absence(Why.NOT_ASKED_FOR, number=backward_pass.number, asked=began.inputs, to_come=to_come)
    return _never(query, tensor, began, k) or _in_a_pass(query, tensor, began, to_come)


def _never(query: Query, tensor: int, began: PassBegan, k: int) -> Absence | None:
    """The reason why a leaf never gets a gradient; None if it gets one at some time, or if the reason is not known."""
    lacks = query.of(Lacks)
    lacking = lacks.of(tensor, k) if tensor in lacks.never_got else None
    if lacking is None or lacking.lack not in _OF_LACK:
        return None
    event = query.trace.event(lacking.event)
    cut = event if isinstance(event, OpRan | TensorMade) else None
    root = lacking.root or next((root.tensor for root in began.roots), 0)
    return Absence(
        _OF_LACK[lacking.lack],
        number=lacking.pass_number or began.number,
        root=root,
        cut=cut,
        lacking=lacking,
    )


def _in_a_pass(query: Query, tensor: int, began: PassBegan, to_come: int) -> Absence:
    """The reason why a leaf gets no gradient from one pass."""
    for root in began.roots:
        cut = query.of(Lacks).cut_from(tensor, root.tensor, began.index) if root.tensor else None
        if cut is not None:
            return Absence(Why.CUT, number=began.number, root=root.tensor, cut=cut, to_come=to_come)
    first = began.roots[0].tensor if began.roots else 0
    return Absence(Why.NOT_COMPUTED_FROM, number=began.number, root=first, to_come=to_come)


def _cut_off(query: Query, tensor: int, k: int) -> Absence | None:
    """The cut between a tensor and the root of a refused backward(), up to event k; None if there is none."""
    for failure, root in refused(query):
        if root and failure.event <= k:
            cut = query.of(Lacks).cut_from(tensor, root, failure.event)
            if cut is not None:
                return Absence(Why.CUT, root=root, cut=cut)
    return None


def accumulations(query: Query, tensor: int, k: int, most: int) -> list[Accumulated]:
    """The last `most` events up to k that accumulated into a leaf's `.grad`, in order."""
    query.trace.reach_all()
    accumulated = query.trace.table(Kind.ACCUMULATED)
    events = accumulated.events[(accumulated.events <= k) & (accumulated["tensor"] == tensor)]
    return [accumulated.object(event) for event in events[-most:].tolist()]
