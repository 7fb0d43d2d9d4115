"""`unscaled-accumulation`: passes from one line, on graphs of the same structure, sum the gradients of the mean losses
of several micro-batches. Neither the losses nor the gradients are divided by the number of micro-batches. A note:
means over different numbers of elements, as of texts or of the last batch, are summed: their elements weigh unevenly.

Why it is bad: with n micro-batches the gradient is n times as large, as if the learning rate were n times as large.

Example:

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for i in range(8):
        x, y = torch.randn(6, 4), torch.randn(6, 1)
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()  # <- unscaled-accumulation
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()

Cure: divide each loss by the number of micro-batches: `(loss / n).backward()`.

Not reported: losses that are sums, gradients that are divided before the step, and losses of tasks: with steps of
their own, as in meta-learning, or a head.
"""

import ast
import math
from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.fix import Edit, Fix, Spot, bracketed, makes_edits
from gradviz.diagnose.rule import NOTE, WARNING, Case, Found, Kind, Need, Rule
from gradviz.events.values import Stat
from gradviz.query.flow import chain, is_mean, op_of, root_is_mean
from gradviz.query.ops import DIVIDING, MULTIPLYING, OF_LOG_PROBABILITIES, OF_LOGITS
from gradviz.query.training import ACCUMULATED, CHANGED, STEPPED
from gradviz.sets import contained, distinct
from gradviz.tracefile import PassInfo
from gradviz.words.numbers import number as digits

_SHARE = 0.5  # the least share of the windows between two clearings
_UNEVEN = 1.5  # the least ratio of numbers of elements
_WINDOWS = 256  # the most windows that are looked at


@Rule(
    "unscaled-accumulation",
    WARNING,
    "gradients of several mean losses that are summed and not divided",
    needs=(Need.TRAINING, Need.PASSES, Need.DETAILS),
)
def unscaled_accumulation(case: Case) -> Iterator[Found]:
    lives = case.training.lives
    came, used = lives.whats == ACCUMULATED, lives.whats == STEPPED
    summed = came & (lives.after(used) > 0) & (lives.before(used) == 0) & lives.begins_known
    by_number, clipping = case.query.passes.by_number, case.trace.table(Kind.CLIPPED).sites
    sums: dict[int, list[tuple[int, ...]]] = {}
    first = np.flatnonzero(lives.leaves == lives.leaves[summed][0]) if summed.any() else np.zeros(0, np.int64)
    ends = np.flatnonzero(np.diff(lives.windows[first])) + 1
    for rows in np.split(first, ends)[:_WINDOWS] if len(first) else ():
        numbers = tuple(dict.fromkeys(lives.numbers[rows[summed[rows]]].tolist()))
        sites = {by_number[number].site for number in numbers}
        changes = lives.events[rows[lives.whats[rows] == CHANGED]]
        # a line that clips changes gradients, and divides by no count
        if len(sites) == 1 and contained(case.trace.events["site"][changes], clipping).all():
            sums.setdefault(sites.pop(), []).append(numbers)
    for site, windows in sums.items():
        several = [numbers for numbers in windows if len(numbers) > 1]
        passes = [by_number[number] for numbers in several for number in numbers]
        if len(several) < max(1, _SHARE * len(windows)) or not _is_micro_batching(case, passes):
            yield from _uneven(case, several)
            continue
        count = len(several[0])
        yield Found(
            f"the gradients of {count} passes from this line are summed for one step, and each root is a mean: the sum "
            f"is {count} times the mean over all of them",
            Fix(f"(loss / {count}).backward()", _divided(count)),
            (passes[0].first, by_number[several[0][-1]].first),
            site=site,
            number=passes[0].number,
        )


def _uneven(case: Case, windows: list[tuple[int, ...]]) -> Iterator[Found]:
    """The first window whose roots are means over different numbers of elements, all times the same factors."""
    for numbers in windows:
        means = [_mean_of(case, number) for number in numbers]
        counts, factors = [count for _, count, _ in means], {factor for *_, factor in means}
        if len(factors) == 1 and min(counts) > 0 and max(counts) >= _UNEVEN * min(counts):
            pairs = [*zip(counts, numbers, strict=True)]
            (few, small), (many, large) = min(pairs), max(pairs)
            event = means[numbers.index(small)][0]
            yield Found(
                f"the gradients of {len(numbers)} means over {few:,} to {many:,} elements are summed for one step: an "
                f"element of pass {small} weighs {digits(many / few, 2)} times as much as one of pass {large}",
                f"sum the elements in each pass, and divide by the {sum(counts):,} of all passes before the step",
                (event, case.query.passes.by_number[small].first),
                number=small,
                severity=NOTE,
            )
            return


def _mean_of(case: Case, number: int) -> tuple[int, int, tuple[object, ...]]:
    """The op behind the root of a pass that is a mean of all elements of its input, how many they are, and the factors
    between it and the root; (−1, 0, ()) if it is another op, or if it may leave out some elements."""
    roots = case.query.passes.began(number).roots
    root, none = roots[0].tensor if len(roots) == 1 else 0, (-1, 0, ())
    scaling = [*chain(case.query, root, lambda op: op.op in MULTIPLYING | DIVIDING)]
    op = op_of(case.query, scaling[-1].inputs[0] if scaling else root)
    if op is None or not op.inputs or not is_mean(op) or "dim=" in op.args:
        return none
    of_targets = op.op in OF_LOGITS | OF_LOG_PROBABILITIES and "ignore_index" in op.args
    counted = op.inputs[1] if of_targets else op.inputs[0]
    row = case.trace.states.valued(counted, op.index)
    if of_targets and (row < 0 or case.trace.states.stats[row, Stat.MIN] < 0):  # some targets are ignored
        return none
    factors = tuple((one.op, one.args, one.inputs[1:]) for one in scaling)
    return op.index, math.prod(case.query.tensors.shape(counted) or ()), factors


def _is_micro_batching(case: Case, passes: list[PassInfo]) -> bool:
    """Whether passes belong to equal parts of a batch: they have the same structure, each root is a mean, no two passes
    have the same root, and none was computed from gradients, as the loss of a task is after steps of its own."""
    if len({one.digest for one in passes}) != 1 or not all(root_is_mean(case.query, one.number) for one in passes[:8]):
        return False
    roots = {case.query.passes.began(backward_pass.number).roots[0].node for backward_pass in passes}
    came = case.trace.table(Kind.ACCUMULATED)
    got = {tuple(distinct(came["tensor"][came["in_pass"] == one.number])) for one in passes[:8]}
    own = len(roots) == len(passes) and len(got) == 1  # else they are of tasks, each with a head of its own
    return own and case.query.passes.through_passes.isdisjoint(one.number for one in passes)


@makes_edits
def _divided(spot: Spot, count: int) -> list[Edit]:
    """`(loss / 4).backward()` in place of `loss.backward()`."""
    for call in spot.calls_here("backward"):
        if isinstance(call.func, ast.Attribute):
            root = call.func.value
            return [spot.source.replaced(root, f"({bracketed(spot.source, root)} / {count})")]
    return []
