"""The origin of the first bad number (NaN or infinity) that does harm. An infinity that is meant (a mask) does none."""

import re
from collections.abc import Sequence
from enum import Enum
from itertools import islice
from typing import NamedTuple

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.events.kinds import REQUIRES_GRAD, UNWATCHED, Kind, OpRan, Produced, TensorMade
from gradviz.events.values import NONFINITE, Stat
from gradviz.query.collective_calls import all_reduced
from gradviz.query.flow import is_square, reach
from gradviz.query.loss_factors import loss_scale
from gradviz.query.ops import FLAT_AT_ZERO, LOGARITHMS, RESHAPING, SUMS, UNFILLED
from gradviz.query.statements import function_of
from gradviz.query.tensors import State
from gradviz.query.training import STEPPED
from gradviz.query.writes import Writes, writes_by_any_name
from gradviz.sets import contained, distinct
from gradviz.tracefile import PassInfo, Snapshot

_OF_NUMBERS = re.compile(r"\b(nan|inf|infinity|infinite|finite|nonfinite)\b", re.IGNORECASE)
_OF_NUMBERS_WITH_NAN = ("float", "bfloat", "complex")  # dtypes
_HALVINGS = 30  # passes in a row with bad gradients: no scale of a loss is to blame
_SCALE = 2.0  # the smallest factor that counts as the scale of a loss
_MOST = 10_000  # the most ops that a search looks at
_ALIKE = 64  # the most calls of a line that are compared


class Source(Enum):
    """The kinds of origin of a bad number."""

    OP = "an op computed it from finite numbers"
    DATA = "it was in the data"
    STEP = "a step of an optimizer wrote it into a parameter, of which nothing says that the gradient had it"
    WRITE = "the program wrote it into a parameter, or into a gradient after its pass"
    NODE = "a node computed it from finite gradients"
    RECEIVED = "a node received it: a hook returned it, or backward() was given it"
    NOT_RECORDED = "it came with inputs whose values were not recorded"
    UNWATCHED = "it was in data that an op took, in a pass of which only the graph is known"
    RANK = "an all_reduce brought it into a gradient that was finite on this rank"


class Origin(NamedTuple):
    """The origin of the first harmful bad number: at `event` it appeared in `tensor`. `harm` is the event at which it
    matters: the beginning of a pass from a bad root, the accumulation of a bad gradient, or the last event of a program
    that ended before any pass (`number` is 0 then). `zeros` is True if only gradients of 0 met the singular point of
    `node`, and a mask made them, not a residual of 0."""

    source: Source
    event: int
    tensor: int
    harm: int
    number: int
    is_nan: bool
    node: int = 0
    zeros: bool = False


def first_bad(case: Case) -> Origin | None:
    """The origin of the first harmful NaN or infinity; None if there is none. Use `case.of(first_bad)`."""
    summed = _first_bad_summary(case)
    if summed is None and not (case.trace.states.stats[:, NONFINITE] > 0).any():
        return None
    if not case.trace.passes:
        return _before_any_pass(case)
    candidates = (summed, _first_bad_root(case), _first_bad_gradient(case))
    origins = [origin for origin in candidates if origin is not None]
    first = min(origins, key=lambda origin: origin.harm) if origins else None
    return _before_the_step(case, first) if first is not None and first.source is Source.STEP else first


def _first_bad_summary(case: Case) -> Origin | None:
    """The first bad loss or norm of a pass of which nothing but a few numbers was recorded; None if there is none."""
    summed = case.trace.table(Kind.SUMMED)
    if not len(summed):
        return None
    bad = ~np.isfinite(summed["norm"]) | ~np.isfinite(summed["loss"])
    watched = [backward_pass.number for backward_pass in case.trace.passes if backward_pass.recorded]
    bad &= ~contained(summed["in_pass"], watched)
    if not bad.any():
        return None
    first = summed.object(int(summed.events[bad][0]))
    is_nan = bool(np.isnan(first.loss) or np.isnan(first.norm))
    return Origin(Source.NOT_RECORDED, first.index, first.tensor, first.index, first.in_pass, is_nan)


def _before_the_step(case: Case, origin: Origin) -> Origin:
    """The origin of a bad number that was written into a parameter outside of the graph. It is the all_reduce or the
    write that made the gradient bad, or else the program's own write to the parameter, through any tensor on its
    memory, or else the step itself."""
    gradient = case.query.tensors.grads.last(origin.tensor, origin.event) or 0
    bad = _Bad(case)
    reduced = all_reduced(case.query)
    events = reduced[(reduced[:, 0] == gradient) & (reduced[:, 1] <= origin.event), 1].tolist()
    changed = _first_bad_write(case, gradient, origin.event) if gradient else None
    for event in sorted(events):
        if bad.is_bad(gradient, event) and not bad.is_bad(gradient, event - 1):
            number = int(case.query.passes.numbers[event])
            is_nan = bad.counts(gradient, event)[0]
            return Origin(Source.RANK, event, origin.tensor, event, number, is_nan)
    if changed is not None:
        is_nan = has_nan(case, gradient, changed)
        return origin._replace(source=Source.WRITE, event=changed, tensor=gradient, is_nan=is_nan)
    written = _first_bad_write(case, origin.tensor, origin.event)
    if written is not None and written not in case.query.of(Writes).of_optimizers:
        is_nan = has_nan(case, origin.tensor, written)
        return origin._replace(source=Source.WRITE, event=written, is_nan=is_nan)
    return origin


def _first_bad_write(case: Case, tensor: int, until: int) -> int | None:
    """The first event up to `until` that wrote a bad number into the memory of a tensor; None if none is known."""
    memory, written = case.query.memory, writes_by_any_name(case.query, tensor)
    return next((e for e in written if e <= until and is_finite(memory.value(tensor, e)) is False), None)


def is_finite(value: Snapshot | None) -> bool | None:
    """Whether a value has no NaN and no infinity; None if it was not recorded."""
    stats = value.stats if value is not None else None
    return None if stats is None else not (stats.nan or stats.inf)


def has_nan(case: Case, tensor: int, at: int) -> bool:
    """Whether a tensor has a NaN just after an event, even if it was written through another tensor."""
    value = case.query.memory.value(tensor, at)
    stats = value.stats if value is not None else None
    return stats is not None and bool(stats.nan)


def hidden(case: Case, origin: Origin) -> Origin | None:
    """The origin of a NaN in an input or output of the op of a node. An op such as `where` or `nan_to_num` hides this
    NaN from the root. None if the op had no NaN."""
    event = case.query.nodes.op(origin.node)
    if event is None:
        return None
    op, bad = case.query.tensors.op(event), _Bad(case)
    with_nan = [tensor for tensor in (*op.inputs, *op.outputs) if tensor and bad.counts(tensor, event)[0]]
    return _above(case, bad, with_nan[0], case.query.passes.by_number[origin.number]) if with_nan else None


def is_of_user(case: Case, node: int) -> bool:
    """Whether a node belongs to a custom Function, whose derivative the program computes itself."""
    return bool(function_of(case.query, node))


class _Bad:
    """Looks up whether tensors are bad at events."""

    def __init__(self, case: Case) -> None:
        self.case, self.states = case, case.trace.states

    def counts(self, tensor: int, at: int) -> tuple[bool, bool]:
        """Whether a tensor has a NaN, and an infinity, just after an event."""
        row = self.states.valued(tensor, at)
        if row < 0:
            return False, False
        nan, inf = self.states.stats[row, NONFINITE]
        return bool(nan > 0), bool(inf > 0)

    def is_bad(self, tensor: int, at: int) -> bool:
        """Whether a tensor has a NaN or an infinity just after an event."""
        return any(self.counts(tensor, at))

    def is_unwatched(self, state: State) -> bool:
        """Whether a state is the first of a tensor that came to be while nothing was watched."""
        maker = self.case.query.tensors.made(state.tensor) if state.since < 0 else None
        return isinstance(maker, TensorMade) and maker.how == UNWATCHED

    def is_not_recorded(self, tensor: int, at: int) -> bool:
        """Whether a tensor may be bad just after an event: neither its values were recorded, nor those of the tensor
        that it was reshaped from."""
        row = self.states.valued(tensor, at)
        form = self.states.form(row) if row >= 0 else None
        if form is None:
            return isinstance(self.case.query.tensors.made(tensor), OpRan)  # of which the graph alone is known
        if 0 in form.shape or not form.dtype.startswith(_OF_NUMBERS_WITH_NAN):
            return False
        if not np.isnan(self.states.stats[row, Stat.NAN]):
            return False
        maker = self.case.query.tensors.made(tensor)
        if not isinstance(maker, OpRan) or maker.op not in RESHAPING:
            return True
        return any(self.is_not_recorded(source, maker.index - 1) for source in maker.inputs if source)


def _first_bad_root(case: Case) -> Origin | None:
    began = case.trace.table(Kind.PASS_BEGAN)
    roots = began.lists("roots")
    tensors, owners = roots.elements[:, 2], roots.owners
    rows = case.trace.states.rows_of(tensors, began.events[owners])
    wrong = np.flatnonzero(case.trace.states.are_bad(rows))
    for row in wrong.tolist():
        backward_pass = case.query.passes.by_number[int(began["number"][owners[row]])]
        origin = _above(case, _Bad(case), int(tensors[row]), backward_pass)
        if not _reads_unfilled(case, origin.event):
            return origin
    return None


def _reads_unfilled(case: Case, event: int) -> bool:
    """Whether an op computes with memory that a library took and nothing wrote to. PyTorch's pipelines do so in a pass
    that tells them shapes. The values of such a pass mean nothing."""
    tensors = case.query.tensors

    def read(maker: int | None) -> Sequence[int]:
        return tensors.op(maker).inputs if maker and tensors.is_op(maker) else ()

    used = reach(read(event), lambda tensor: read(tensors.maker(tensor)), _MOST)
    made = (tensors.made(tensor) for tensor in used if not tensors.writes(tensor))
    unfilled = (one for one in made if isinstance(one, TensorMade) and one.how in UNFILLED)
    return any(one.how not in case.words.expression(one.site, 200) for one in unfilled)


def _before_any_pass(case: Case) -> Origin | None:
    """The origin of the bad number in the last bad tensor with a graph, if the program ended with an exception before
    any pass began, and the message of the exception is about bad numbers: `raise ValueError("loss is nan")`, or an
    invalid argument of a distribution."""
    failure = next((failure for failure in case.failures if not failure.node), None)
    if failure is None or failure.handled or not _OF_NUMBERS.search(failure.message):
        return None
    bad, states = _Bad(case), case.trace.states
    wrong = (states.stats[:, NONFINITE] > 0).any(axis=1) & (states.flags & REQUIRES_GRAD > 0)
    ops = [t for t in distinct(states.tensors[wrong]).tolist() if isinstance(case.query.tensors.made(t), OpRan)]
    return _up_from(case, bad, ops[-1], case.trace.count, 0) if ops else None


def _above(case: Case, bad: _Bad, root: int, backward_pass: PassInfo) -> Origin:
    """The event without a bad input that is reached from the root of a pass by following bad inputs."""
    return _up_from(case, bad, root, backward_pass.first, backward_pass.number)


def _up_from(case: Case, bad: _Bad, root: int, end: int, number: int) -> Origin:
    """The event without a bad input that is reached from a tensor, as it is before `end`, by following bad inputs."""
    tensors = case.query.tensors
    state, at = tensors.before(root, end), end
    event = end
    for _ in range(_MOST):
        event = state.since if state.since >= 0 else tensors.maker(state.tensor) or 0
        op = tensors.op(event) if tensors.is_op(event) else None
        if op is None:
            break
        carrier = _carrier(case, bad, op)
        if carrier is None:
            break
        state, at = carrier, event - 1
        base = tensors.base(state) if bad.is_unwatched(state) else None
        if base is not None and not bad.is_unwatched(base) and bad.is_bad(base.tensor, at):
            state = base  # data that was taken out of other data
    source, wrong, is_nan = Source.OP, state.tensor, bad.counts(state.tensor, at)[0]
    if op is not None:
        read = filter(None, tensors.reads(event))
        if any(bad.is_not_recorded(state.tensor, event - 1) for state in read):
            source = Source.NOT_RECORDED
        elif 0 in op.inputs and (not op.site or as_recorded(case, op, 0)[0]):  # of which the graph alone tells nothing
            is_certain = is_nan and op.op in SUMS and op.site
            source, wrong = (Source.UNWATCHED, 0) if is_certain else (Source.NOT_RECORDED, wrong)
    elif bad.is_unwatched(state):
        source = Source.UNWATCHED
        event = event if case.trace.event(event).site else case.downstream.readers(state.tensor)[0]
    elif case.trace.kinds[event] != Kind.MUTATED:
        source = Source.DATA
    else:  # a step before it, in a pass without values, may have been the first
        is_watched = tensors.mutation(event).how != UNWATCHED
        is_first = is_watched and not bad.is_not_recorded(state.tensor, event - 1)
        source = Source.STEP if is_first else Source.NOT_RECORDED
    harm = min(end, case.trace.count - 1)
    return Origin(source, event, wrong, harm, number, is_nan)


def as_recorded(case: Case, op: OpRan, tensor: int) -> tuple[int, int]:
    """The tensor that an op took in place of this one the last time that its line was watched, and the event that made
    it. (0, 0) if none is known, or if tensors of several lines came there."""
    ops, at = case.trace.table(Kind.OP), op.inputs.index(tensor)
    before = ops.events[(ops.sites == (op.site or -1)) & (ops.events < op.index)][-_ALIKE:].tolist()
    ops_before = list(map(case.query.tensors.op, before))
    shared = [len({*one.inputs} & {*op.inputs} - {0}) if one.op == op.op else -1 for one in ops_before]
    most = max(shared, default=0)  # else an op of another layer, behind the same line
    alike = [one for one, count in zip(ops_before, shared, strict=True) if count == most and at < len(one.inputs)]
    taken = {one.inputs[at]: case.query.tensors.maker(one.inputs[at]) for one in alike}
    made = [(one, maker) for one, maker in taken.items() if maker is not None and case.site(maker)]
    return made[-1] if len({case.site(maker) for _, maker in made}) == 1 else (0, 0)


def _carrier(case: Case, bad: _Bad, op: OpRan) -> State | None:
    """The input of an op that explains its bad output: the first input with a NaN, else the first input with an
    infinity that is not meant, else one that is meant and only goes on as an infinity. None if all inputs are good, or
    if the op makes a NaN of infinities that are meant."""
    before = [(state, *bad.counts(state.tensor, op.index - 1)) for state in case.query.tensors.reads(op.index) if state]
    with_nan = next((state for state, nan, _ in before if nan), None)
    if with_nan is not None:
        return with_nan
    infinite = [state for state, _, inf in before if inf]
    with_harm = next((s for s in infinite if not _is_meant(case, s.tensor, op.index - 1)), None)
    goes_on = not any(bad.counts(tensor, op.index)[0] for tensor in op.outputs)
    return with_harm or (infinite[0] if infinite and goes_on else None)


def _is_meant(case: Case, tensor: int, at: int) -> bool:
    """Whether the infinities of a tensor are meant: they stand in the program, or are data or the log of a mask. Data
    that came to be unwatched has none that are meant where it had none when it was watched last."""
    has_graph, bad = case.query.tensors.requires_grad(tensor, at), _Bad(case)
    maker = case.query.tensors.made(tensor)
    if isinstance(maker, TensorMade) and maker.how == UNWATCHED:
        usual, made = as_recorded(case, case.query.tensors.op(case.downstream.readers(tensor)[0]), tensor)
        return not has_graph and (not usual or bad.is_bad(usual, made))
    if not isinstance(maker, OpRan):
        return not has_graph
    if "inf" in maker.args or (not has_graph and maker.op in LOGARITHMS):
        return True
    carrying = [t for t in maker.inputs if t and bad.is_bad(t, maker.index - 1)]
    return bool(carrying) and all(_is_meant(case, t, maker.index - 1) for t in carrying if t < tensor)


def _first_bad_gradient(case: Case) -> Origin | None:
    """The first node that turned good gradients into bad gradients that reached a leaf; None if there is none."""
    states = case.trace.states
    accumulated = case.trace.table(Kind.ACCUMULATED)
    bad = states.are_bad(states.rows_of(accumulated["gradient"], accumulated.events))
    numbers, last = accumulated["in_pass"], int(accumulated["in_pass"].max(initial=0))
    good = numbers[~contained(numbers, distinct(numbers[bad]))].max(initial=0)
    for_ever, at = bad & (numbers > good) & (last - good >= _HALVINGS), 0
    bad &= ~_skipped(case, accumulated["tensor"], accumulated.events)
    if for_ever.any() and not bad[for_ever.argmax()]:
        bad, at = for_ever, 1  # of the first pass only the graph may be known
    for number in distinct(numbers[bad])[at : at + 1].tolist():
        backward_pass = case.query.passes.by_number[number]
        harm = int(accumulated.events[bad & (numbers == number)][0])
        if not backward_pass.recorded:
            gradient = int(accumulated["gradient"][bad][0])
            is_nan = _Bad(case).counts(gradient, harm)[0]
            return Origin(Source.NOT_RECORDED, harm, gradient, harm, number, is_nan)
        produced = case.trace.table(Kind.PRODUCED)
        flows = produced.lists("flows")
        of_pass = produced["in_pass"][flows.owners] == number
        events, gradients = produced.events[flows.owners[of_pass]], flows.elements[of_pass, 1]
        wrong = np.flatnonzero(states.are_bad(states.rows_of(gradients, events)))
        if len(wrong):
            event = int(events[wrong[0]])
            return _at_node(case, produced.object(event), int(gradients[wrong[0]]), harm, backward_pass)
    return None


def _at_node(case: Case, produced: Produced, gradient: int, harm: int, backward_pass: PassInfo) -> Origin:
    received = case.query.at(produced.index).received(produced.node)
    states = case.trace.states
    gradients = [g for g in (received.gradients if received is not None else ()) if g]
    came = [states.valued(g, produced.index) for g in gradients]
    zeros = any(states.stats[row, Stat.ZEROS] > 0 for row in came if row >= 0)
    zeros = zeros and not _is_residual(case, produced.node, backward_pass.number)
    bad = _Bad(case)
    is_nan, is_inf = bad.counts(gradient, produced.index)
    zeros = zeros and not is_inf  # with an infinity, gradients other than 0 met the singular point, too
    if any(bad.is_bad(g, produced.index) for g in gradients):
        source = Source.RECEIVED
    elif any(bad.is_not_recorded(g, produced.index) for g in gradients):
        source = Source.NOT_RECORDED
    else:
        source = Source.NODE
    return Origin(source, produced.index, gradient, harm, backward_pass.number, is_nan, produced.node, zeros)


def _is_residual(case: Case, node: int, number: int) -> bool:
    """Whether the zeros in a node's gradient come from an op that is flat at 0, as the square of a residual is: then no
    mask made them. The search goes from node to node towards the root as long as gradients have zeros."""
    produced, states = case.trace.table(Kind.PRODUCED), case.trace.states
    flows = produced.lists("flows")
    of_pass = np.flatnonzero(produced["in_pass"][flows.owners] == number)
    targets, senders = flows.elements[of_pass, 0], flows.owners[of_pass]
    rows = states.rows_of(flows.elements[of_pass, 1], produced.events[senders])
    with_zeros = (rows >= 0) & (states.stats[rows, Stat.ZEROS] > 0)

    def senders_to(to: int) -> list[int]:
        return produced["node"][senders[with_zeros & (targets == to)]].tolist()

    events = map(case.query.nodes.op, islice(reach([node], senders_to, _MOST), 1, None))
    ops = (case.query.tensors.op(event) for event in events if event is not None)
    return any(op.op in FLAT_AT_ZERO or is_square(op) for op in ops)


def _skipped(case: Case, leaves: np.ndarray, events: np.ndarray) -> np.ndarray:
    """For each gradient, whether it was cleared before any step used it, as a gradient scaler does with a gradient that
    overflowed. All False in a run without steps. While a run goes on, a gradient of a scaled loss that no step has used
    yet counts too: it may still be cleared."""
    lives = case.training.lives
    if not case.training.trained:
        return np.zeros(len(events), bool)
    keys = lives.leaves << 32 | lives.events
    at = np.searchsorted(keys, leaves.astype(np.int64) << 32 | events)
    known = at < len(keys)
    at = np.minimum(at, max(len(keys) - 1, 0))
    unused = lives.after(lives.whats == STEPPED) == 0
    goes_on = not case.trace.meta.get("ended") and loss_scale(case.query, case.trace.count) >= _SCALE
    return known & (unused & (lives.ends_cleared | goes_on))[at]
