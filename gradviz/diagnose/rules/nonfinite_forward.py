"""`nonfinite-forward`: the root of a pass is NaN or infinite. An op of the forward computation made the NaN or infinity
from finite inputs, or the data had it, or the program wrote it into a parameter or a gradient. Also reported: a
program that ends with an exception because of a NaN or an infinity, before any pass. If the values before the NaN were
not recorded, the finding says so, and names only the line of the pass: of a pass that is left out (`--passes auto`) the
loss and the norms of the gradients are known.

Why it is bad: the gradients of this pass are NaN or infinite, and so are the parameters after the next step.

Example:

    w = torch.tensor([1.0, 2.0], requires_grad=True)
    p = torch.relu(w - 1.0)
    loss = -torch.log(p).sum()  # <- nonfinite-forward
    loss.backward()

Cure: keep the input inside the domain of the op: `log(p + eps)`, `clamp`, `log_softmax` in place of `log(softmax)`,
a check of the data.

Not reported: an infinity that the program makes on purpose, such as a mask of -inf, and a NaN that does not reach a
root.
"""

import math
from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.domain_cures import in_the_domain
from gradviz.diagnose.fix import Edit, Fix, Spot, argument_of, bracketed
from gradviz.diagnose.nonfinite import Origin, Source, as_recorded, first_bad
from gradviz.diagnose.rule import ERROR, Case, Found, Need, Rule
from gradviz.events.kinds import Kind, OpRan, PassSummed
from gradviz.events.values import INPUTS
from gradviz.query.birth import taken_and_given
from gradviz.query.curves import accumulated_norms
from gradviz.query.ops import DIVIDING, LOGARITHMS, function_name
from gradviz.query.passes import recording
from gradviz.tracefile.chosen import first_of
from gradviz.words.numbers import brief

_OF_ONE_NUMBER = LOGARITHMS | DIVIDING | {"exp", "expm1", "pow", "sqrt", "rsqrt", "reciprocal", "square", "mul"}
_CURE = "keep the input in the domain: .clamp(min=eps) before log or division, subtract the maximum before exp"


@Rule(
    "nonfinite-forward",
    ERROR,
    "the op that first makes a NaN or an infinity that reaches the root",
    needs=(Need.VALUES, Need.DETAILS),
    follows=("huge-start", "lr-too-large", "exploding-gradient"),
    at_once=True,
)
def nonfinite_forward(case: Case) -> Iterator[Found]:
    origin = case.of(first_bad)
    if origin is not None and origin.source is Source.NOT_RECORDED:
        yield _not_recorded(case, origin)
    if origin is not None and origin.source is Source.UNWATCHED:
        yield _unwatched(case, origin)
    if origin is None or origin.source not in (Source.OP, Source.DATA, Source.WRITE):
        return
    bad = "NaN" if origin.is_nan else "an infinity"
    name = case.words.called(origin.tensor)
    if origin.source is Source.DATA:
        told = f"{name} has {bad} from the beginning"
        cure: Fix | str = "clean the data: torch.isfinite(x).all()"
    elif origin.source is Source.WRITE:
        told = f"{case.query.tensors.writer(origin.event)} writes {bad} into {name}"
        cure = "write finite values only: torch.isfinite(x).all() on what is written"
    else:
        told, cure = f"{bad} first appears in {_seen_in(case, origin)}: {_inputs(case, origin)}", _cure(case, origin)
    yield Found(
        f"{told}; {_harm(case, origin)}",
        cure,
        (origin.event, origin.harm),
        number=origin.number,
        tensors=(origin.tensor,),
    )


def _cure(case: Case, origin: Origin) -> Fix:
    """The op with an input in its domain; general advice if it is not known how to write that."""
    op = case.query.tensors.op(origin.event) if case.query.tensors.is_op(origin.event) else None
    in_domain = in_the_domain(case, op) if op is not None else None
    if in_domain is None and op is not None and op.op not in _OF_ONE_NUMBER:
        return Fix(f"look at these inputs of {op.op}: its result is not finite for them")
    return in_domain or Fix(_CURE, _without_the_maximum)


def _without_the_maximum(spot: Spot) -> list[Edit]:
    """The maximum subtracted before exp."""
    for call in spot.calls_here("exp"):
        value = argument_of(call)
        if value is not None:
            code, whole = spot.source.code(value), bracketed(spot.source, value)
            return [spot.source.replaced(value, f"{code} - {whole}.amax(-1, keepdim=True)")]
    return []


def _not_recorded(case: Case, origin: Origin) -> Found:
    """The finding if the values before a NaN or infinity were not recorded. It names only the line of the pass."""
    bad, events = "NaN" if origin.is_nan else "an infinity", (origin.harm, origin.event)
    first = _first_without_details(case, origin.number)
    if _is_of_the_pass(case, origin):
        told = f"and not all values of pass {origin.number} were recorded"
        how = recording(case.trace, f"--passes {origin.number}")
        cure = f"record it with {how}: the values before are known then"
        events = (origin.event, origin.harm)
    elif first:
        last = origin.number - bool(case.query.passes.by_number[origin.number].recorded)
        missing = f"{first}-{last}" if first < last else f"{first}"
        those = f"passes {missing} were" if first < last else f"pass {missing} was"
        told = f"and {those} not recorded in detail"
        cure = f"record that with {recording(case.trace, f'--passes {missing}')}: the line is named then"
        events = (case.query.passes.by_number[origin.number].first, origin.event)
    elif origin.number and case.trace.meta.get("values") == INPUTS and case.trace.is_being_recorded:
        told = f"and where it comes from is looked for at the end: gradviz check runs pass {origin.number} again then"
        cure = f"when the program has ended: gradviz check {case.trace.path.name}"
    else:
        told = f"and where it comes from was not recorded (--values {case.trace.meta.get('values', '')})"
        cure = "record it with gradviz trace --values stats: the line is named then"
    return Found(
        f"{bad} is seen first in {_seen_in(case, origin)}, {told}",
        cure,
        events,
        number=origin.number,
        tensors=(origin.tensor,) if origin.tensor else (),
    )


def _unwatched(case: Case, origin: Origin) -> Found:
    """The finding if an op took bad data in a pass of which only the graph is known. It says what gave the data in the
    passes that were watched."""
    bad, maker = "NaN" if origin.is_nan else "an infinity", 0
    if not case.query.tensors.is_op(origin.event):
        taken = f"{case.words.called(origin.tensor)}, which this line gave,"
    else:
        op = case.query.tensors.op(origin.event)
        twin, maker = as_recorded(case, op, origin.tensor)
        taken = case.words.called(twin) if twin else f"what {function_name(op.op)} takes"
    if maker and case.query.tensors.is_op(maker):
        gave = f"{case.words.expression(case.site(maker), 60)}{case.words.at_line(case.site(maker))}"
        taken += f", which {gave.removeprefix(', ')} gave in the passes that were watched,"
    return Found(
        f"{taken} has {bad} here in pass {origin.number}; {_harm(case, origin)}",
        f"gradviz trace --passes {origin.number} records what made it",
        (origin.event, origin.harm),
        number=origin.number,
        tensors=(origin.tensor,) if origin.tensor else (),
    )


def _seen_in(case: Case, origin: Origin) -> str:
    """What a NaN or infinity is seen in: a tensor, or the numbers that are kept of each pass."""
    event = case.trace.event(origin.event)
    if isinstance(event, OpRan) and not event.site:
        return f"the result of {function_name(event.op)}"
    if not isinstance(event, PassSummed):
        return case.words.called(origin.tensor)
    if event.has_loss and not math.isfinite(event.loss):
        return "the loss"
    return f"the gradient of {case.words.called(event.tensor)}"


def _is_of_the_pass(case: Case, origin: Origin) -> bool:
    """Whether the op that gave the number belongs to the pass itself, which was recorded, as from its graph."""
    meta, passes = case.trace.meta, case.query.passes.by_number
    is_chosen = meta.get("values") in ("stats", "full") and first_of(meta.get("passes", "")) is not None
    if not is_chosen or not case.query.tensors.is_op(origin.event) or not passes[origin.number].recorded:
        return False
    before = passes.get(origin.number - 1)
    return before is None or (before.last is not None and before.last < origin.event)


def _first_without_details(case: Case, number: int) -> int:
    """The first of the passes up to one in which the number may have come to be, as no details of them were recorded;
    0 if there are none, or if no values were recorded."""
    if not case.trace.has_values or number not in case.query.passes.by_number:
        return 0
    summed = case.trace.table(Kind.SUMMED)
    read = summed["in_pass"][summed["norm"] != -1].tolist()
    norms = case.query.of(accumulated_norms)
    passes, counts = np.unique(norms.at[norms.values != -1], return_counts=True)
    # else large gradients of the pass were not kept
    read = [one for one in [*read, *passes[counts == counts.max(initial=0)].tolist()] if one < number]
    recorded = [one.number for one in case.trace.passes if one.number < number and one.recorded]
    if case.query.passes.by_number[number].recorded:
        first = max([*read, *recorded], default=0) + 1
        return first if first < number else 0
    # a gradient of a pass behind the last norm that was read may have been bad, too
    return max([*read, *recorded]) + 1 if read else number


def _harm(case: Case, origin: Origin) -> str:
    if origin.number:
        return f"the root of pass {origin.number} is not finite"
    return f"the program ends with {case.trace.meta.get('error_type', 'an exception')}"


def _inputs(case: Case, origin: Origin) -> str:
    before = case.query.at(max(origin.event - 1, 0))
    took, _ = taken_and_given(case.query, case.query.at(origin.event))
    inputs = [f"{case.words.called(tensor)} = {brief(before.value(tensor))}" for tensor in dict.fromkeys(took)]
    return ", ".join(inputs) or "it has no inputs"
