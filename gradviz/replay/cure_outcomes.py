"""The gradients that a pass would have given with the cure of a cut: without the call or the block that cuts the
graph, or with a tensor in place of its number.

Except for a clamp, no value changes with the cure, which is checked. The result is exact if the pass runs again with
the recorded result, and if all that such a gradient could flow through runs again too."""

from typing import NamedTuple

import numpy as np

from gradviz.events.kinds import CallMade, Kind, NodeMade, OpRan, Produced, TensorMade
from gradviz.query.copies import same_bits
from gradviz.query.flow import GradMode, grad_mode_at
from gradviz.query.numbers_read import NumbersRead
from gradviz.query.ops import CLAMPING
from gradviz.query.query import Query
from gradviz.query.replayable_functions import DETACHING, is_without_grad
from gradviz.replay.outcome import Edits, Outcome, Runner, is_exact
from gradviz.replay.plan import CARRIED, CUT, LEAF, Call, Input, Plan, ReplayError, plan_of

DETACH, CLAMP, NO_GRAD, NUMBER = "detach", "clamp", "no_grad", "number"


class Gained(NamedTuple):
    """A gradient that a leaf would have received; `before` is the gradient that it received, or None."""

    leaf: int
    before: np.ndarray | None
    after: np.ndarray


class CureOutcome(NamedTuple):
    """The result of pass `number` with a cure on a line. `kind` is the sort of cure: without the call of `detach` or
    `clamp`, without the block of `no_grad`, or with the tensor of a `number` in its place. `typed` is the code that
    the program has there."""

    kind: str
    typed: str
    line: int
    tensor: int
    number: int
    gained: tuple[Gained, ...]


class _Cure(NamedTuple):
    """A cure that can be tried: the plan of the pass with the cure, the edits, and the removed block."""

    kind: str
    typed: str
    line: int
    plan: Plan
    edits: Edits
    tensor: int = 0
    mode: GradMode | None = None


def with_cure(query: Query, runner: Runner, event: int, leaves: tuple[int, ...] = ()) -> CureOutcome | None:
    """The gradients that the leaves (none: any) would receive in the pass after an event, with the cure of the cut at
    that event. None if there is no such cut, or if the answer is not exact or not known."""
    pass_here = query.trace.pass_ending_from(event)
    op = _op_at(query, event)
    if pass_here is None or op is None:
        return None
    try:
        cure = _cure_of(query, pass_here.number, op)
        if cure is None or any(_is_barrier(query, step, cure.mode) for step in cure.plan.inputs):
            return None
        before = runner.run(cure.plan, Edits())
        if not is_exact(query, cure.plan, before):
            return None
        after = runner.run(cure.plan, cure.edits)
    except ReplayError:
        return None
    if cure.kind != CLAMP and not all(same_bits(before.roots[root], after.roots[root]) for root in before.roots):
        return None
    gained = tuple(
        Gained(leaf, before.gradients.get(leaf), gradient)
        for leaf in cure.plan.leaves
        if (not leaves or leaf in leaves) and (gradient := _gained(before, after, leaf, cure.kind)) is not None
    )
    if not gained:
        return None
    return CureOutcome(cure.kind, cure.typed, cure.line, cure.tensor, pass_here.number, gained)


def _op_at(query: Query, event: int) -> OpRan | TensorMade | None:
    """The op, or the `.data` of a tensor, that an event is about."""
    made = query.trace.event(event)
    if isinstance(made, (OpRan, TensorMade)):
        return made
    if isinstance(made, NodeMade):
        op: int | None = made.op
    else:
        op = query.nodes.op(made.node) if isinstance(made, Produced) else None
    return query.tensors.op(op) if op is not None and op >= 0 else None


def _cure_of(query: Query, number: int, op: OpRan | TensorMade) -> _Cure | None:
    """The cure of an op that cuts the graph, in a pass. Raises ReplayError if the pass cannot run again."""
    if isinstance(op, OpRan) and not op.grad_enabled:
        return _with_grad(query, number, op)
    plan = plan_of(query, number)
    tensors = op.outputs if isinstance(op, OpRan) else (op.tensor,)
    call = next((call for call in plan.calls if set(call.outputs) & set(tensors)), None)
    if call is None:
        return None
    if call.function in DETACHING or call.op in CLAMPING:
        line = query.places.line(call.site)
        alike = [other for other in plan.calls if other.op == call.op and query.places.line(other.site) == line]
        kind = DETACH if call.function in DETACHING else CLAMP
        return _Cure(kind, _typed(call), line[1], plan, Edits(without=frozenset(other.event for other in alike)))
    return _with_tensor(query, number, call, op.index)


def _typed(call: Call) -> str:
    """A call as programs write it: `.detach()`, `.data`, `torch.clamp()`."""
    if call.function.endswith(".__get__"):
        return f".{call.op}"
    return f"{call.function.removeprefix('Tensor')}()"


def _with_grad(query: Query, number: int, op: OpRan) -> _Cure | None:
    """The cure that removes the block that turns grad mode off around an op."""
    mode = grad_mode_at(query, op.site)
    if mode is None:
        return None
    calls = [call for call in _calls_without_grad(query) if grad_mode_at(query, call.site) == mode]
    if not calls:
        return None
    plan = plan_of(query, number, without_grad=calls)
    edits = Edits(with_grad=frozenset(call.index for call in calls))
    return _Cure(NO_GRAD, mode.expression, mode.line, plan, edits, mode=mode)


def _calls_without_grad(query: Query) -> list[CallMade]:
    """The calls that were recorded without grad mode."""
    trace = query.trace
    trace.reach_all()
    table = trace.table(Kind.CALLED)
    contexts = {text for text in trace.strings.values() if is_without_grad(text)}
    return [table.object(event) for event in table.events[trace.named(table["context"], contexts)].tolist()]


def _with_tensor(query: Query, number: int, call: Call, op: int) -> _Cure | None:
    """The cure that uses a tensor in place of a number in a call, if the number was read from that tensor."""
    read = query.of(NumbersRead).of_op(op)
    if len(read) != 1:
        return None
    tensor, reading = read[0].tensor, read[0].text
    value = query.memory.value(tensor, op)
    if value is None or value.array is None or value.array.size != 1 or value.array.dtype.kind != "f":
        return None
    of_tensor = float(value.array.item())
    positional, named = call.arguments
    if [of_tensor] != [part for part in (*positional, *named.values()) if type(part) is float]:
        return None
    plan = plan_of(query, number, also=(tensor,))
    edits = Edits(numbers={call.event: (of_tensor, tensor)})
    return _Cure(NUMBER, reading, query.places.line(call.site)[1], plan, edits, tensor)


def _is_barrier(query: Query, step: Input, mode: GradMode | None) -> bool:
    """Whether a gradient might have flowed through an input of the pass that is used as recorded."""
    if step.how in (CUT, CARRIED):
        return True
    maker = query.tensors.made(step.tensor)
    if not isinstance(maker, OpRan) or step.how == LEAF or not any(maker.inputs):
        return False
    return maker.grad_enabled or (mode is not None and grad_mode_at(query, maker.site) == mode)


def _gained(before: Outcome, after: Outcome, leaf: int, kind: str) -> np.ndarray | None:
    """The new gradient of a leaf that had none, or zeros, or lacked a term; None if its gradient does not change so."""
    was, gradient = before.gradients.get(leaf), after.gradients.get(leaf)
    if gradient is None or not gradient.any():
        return None
    if was is None or not was.any():
        return gradient
    return gradient if kind == NUMBER and not same_bits(was, gradient) else None
