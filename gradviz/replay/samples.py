"""The parts that the samples of a batch have in the loss and in each gradient.

A loss that is a mean or a sum over a batch is a sum of terms, one for each index of the first dimension. Its
gradients are sums of the gradients of these terms. So the parts add up, also where samples depend on one another:
then a part belongs to a term, and is not the difference that leaving out the sample would make."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gradviz.query.ops import LOSSES
from gradviz.query.query import Query
from gradviz.query.replayable_functions import DETACHING
from gradviz.replay.plan import Call, Plan, ReplayError, plan_of

MOST = 256  # terms whose gradients are computed: those with the largest part in the loss
REDUCTIONS = frozenset(("mean", "sum"))
_SCALING = frozenset("neg negative mul multiply div divide true_divide truediv".split())


@dataclass(frozen=True)
class Term:
    """A term of the loss: its index in the first dimension, its part in the loss, and the norm of its part in each
    gradient, by leaf; empty if these were not computed."""

    index: int
    loss: float
    norms: dict[int, float]

    @property
    def norm(self) -> float:
        """The norm of the term's part in all gradients together."""
        return float(np.sqrt(sum(norm**2 for norm in self.norms.values())))

    @property
    def is_odd(self) -> bool:
        """Whether the term's part in the loss is NaN or infinite. A finite term's gradients may be so too, because of
        another term: 0 · NaN is NaN."""
        return not np.isfinite(self.loss)


@dataclass(frozen=True)
class Samples:
    """The terms of a loss, the worst first: NaN and infinite terms, then by the norm of the gradient. `mixing` is the
    first call that makes samples depend on one another, None if none is known."""

    plan: Plan
    count: int
    terms: tuple[Term, ...]
    mixing: Call | None


class TermRunner(Protocol):
    """Computes the terms of a loss."""

    def terms(self, plan: Plan, last: Call, most: int) -> list[Term]:
        """The terms of the loss that a call made, in order; the terms with the largest parts have gradients. Raises
        ReplayError if the terms cannot be separated."""


def samples(query: Query, runner: TermRunner, number: int | None = None) -> Samples:
    """The terms of the loss of a pass (None: the last). Raises ReplayError if the loss is not a mean or sum over a
    batch, or if the pass cannot run again."""
    plan = plan_of(query, number)
    last = loss_of(query, plan)
    terms = runner.terms(plan, last, MOST)
    worst = sorted(terms, key=lambda term: (not term.is_odd, -_size(term.norm), -_size(term.loss)))
    return Samples(plan, len(terms), tuple(worst), mixing(plan))


def loss_of(query: Query, plan: Plan) -> Call:
    """The call that makes the loss of a pass, a mean or a sum over a batch, before it is scaled. Raises ReplayError
    for another kind of loss."""
    if len(plan.roots) != 1:
        raise ReplayError(f"pass {plan.number} begins at {len(plan.roots)} tensors: its samples cannot be told apart")
    calls = [*_from_root(plan)]
    last = calls[-1] if calls else None
    if last is None or not _is_reduction(query, last):
        made = "nothing that can run again" if last is None else last.function
        raise ReplayError(f"the loss of pass {plan.number} is made by {made}: it is no mean or sum over a batch")
    return last


def scalings_of(plan: Plan) -> list[Call]:
    """The calls that make the root of a pass from its loss, in order: each multiplies or divides by numbers."""
    return [*_from_root(plan)][-2::-1]


def _from_root(plan: Plan) -> Iterator[Call]:
    """The calls behind the root of a pass that only scale, the last first, and then the call whose result they
    scale."""
    tensor = plan.roots[0]
    for call in reversed(plan.calls):
        if tensor and tensor in call.outputs:
            yield call
            tensor = scaled_by(plan, call)


def constants_of(plan: Plan) -> set[int]:
    """The tensors of a pass that come of data alone, through which no gradient flows."""
    found = {step.tensor for step in plan.inputs if step.how == "data"}
    for call in plan.calls:
        is_cut = call.function in DETACHING
        if is_cut or (call.inputs and found.issuperset(call.inputs) and not call.written):
            found.update(call.outputs)
    return found


def scaled_by(plan: Plan, call: Call) -> int:
    """The tensor that a call only multiplies or divides by numbers: `-loss`, `loss / 4`; 0 for another call."""
    constants = constants_of(plan)
    scaled = [tensor for tensor in call.inputs if tensor not in constants]
    positional, named = call.arguments
    tensor_count = sum(isinstance(part, dict) and "tensor" in part for part in positional)
    is_alone = len(scaled) == 1 and tensor_count == len(call.inputs) and not named and not call.written
    if call.op not in _SCALING or not is_alone:
        return 0
    is_divisor = call.op not in ("mul", "multiply") and (call.inputs[0] != scaled[0] or ".__r" in call.function)
    return 0 if is_divisor else scaled[0]


def mixing(plan: Plan) -> Call | None:
    """The first call of a pass that makes samples depend on one another, None if none is known."""
    return next((call for call in plan.calls if _mixes(call)), None)


def _size(number: float) -> float:
    return abs(number) if np.isfinite(number) else np.inf


def _is_reduction(query: Query, call: Call) -> bool:
    """Whether a call is a mean or a sum of all elements, or a loss that is one."""
    if call.op in REDUCTIONS:
        made = query.trace.shape(call.outputs[0])
        return made is not None and math.prod(made[0]) == 1
    return call.op in LOSSES and call.arguments[1].get("reduction", "mean") in REDUCTIONS


def _mixes(call: Call) -> bool:
    """Whether a call computes something over the batch, as batch normalisation does while training."""
    if call.op != "batch_norm":
        return False
    positional, named = call.arguments
    return bool(named.get("training", positional[5] if len(positional) > 5 else False))
