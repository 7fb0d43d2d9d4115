"""The gradient of one batch beside that of the same samples in micro-batches, as gradient accumulation takes them.

A pass is split into micro-batches, or the passes between two changes of their leaves are joined to one batch. Both run
again, with the same elements dropped by dropout. `first` is the first call that gives something else for a part."""

import math
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from gradviz.query.ops import LOSSES
from gradviz.query.query import Query
from gradviz.query.replayable_functions import is_dropout
from gradviz.replay.outcome import Check, Edits, Graph, Outcome, Runner, checked
from gradviz.replay.plan import DATA, LEAF, Call, Input, Plan, ReplayError, plan_of
from gradviz.replay.samples import constants_of, scaled_by
from gradviz.tracefile import Snapshot
from gradviz.words.escape import clean
from gradviz.words.words import Words

MEAN, SUM, SIZES, COUNTS, TIMES, OTHER = "mean", "sum", "sizes", "counts", "times", "other"
_NEAR = 1e-4  # relative to the largest element: a sum in parts is rounded in another way
_DIVIDING = ("div", "divide", "true_divide", "truediv")
_MOST_UNSURE = 4
_IGNORED = -100  # PyTorch's default of ignore_index


class LeafGradients(NamedTuple):
    """The gradient of a leaf for one batch, and what the micro-batches accumulate in its `.grad`."""

    leaf: int
    batch: np.ndarray
    accumulated: np.ndarray

    @property
    def ratio(self) -> float:
        """The norm of the accumulated gradient, relative to that of the batch."""
        norm = float(np.linalg.norm(self.batch))
        return float(np.linalg.norm(self.accumulated)) / norm if norm else math.nan

    @property
    def largest(self) -> float:
        """The largest difference of an element."""
        return float(np.abs(self.accumulated - self.batch).max()) if self.batch.size else 0.0


class MicroBatches(NamedTuple):
    """One batch beside its micro-batches, of `sizes` samples. `passes` are the joined passes, or the pass that was
    split; `tensors` are those that were split or joined.
    `relation` says what makes the gradient of the batch: the MEAN or the SUM of the micro-batches' gradients, these
    weighted by their SIZES or by the COUNTS of elements in their losses (`counts`), or nothing of this: then the
    accumulated gradient is `times` that of the batch (TIMES), or OTHER. `uneven` is the call that makes means over
    different counts, `first` the first call that gives something else for a micro-batch than for the batch."""

    passes: tuple[int, ...]
    is_split: bool
    runner: str
    check: Check
    sizes: tuple[int, ...]
    tensors: tuple[int, ...]
    leaves: tuple[LeafGradients, ...]
    relation: str
    times: float
    counts: tuple[float, ...]
    uneven: Call | None
    first: Call | None

    @property
    def is_equal(self) -> bool:
        """Whether the accumulated gradient is that of the batch, but for rounding."""
        return self.relation == TIMES and math.isclose(self.times, 1, rel_tol=_NEAR)


def split(words: Words, runner: Runner, number: int | None, count: int) -> MicroBatches:
    """A pass (None: the last) as one batch and as `count` micro-batches, each of whose losses counts 1/count. Raises
    ReplayError if the pass cannot run again, or cannot be split."""
    recorded = plan_of(words.query, number, rebuilds=True)
    plan = prepared(words.query, runner, recorded)
    key, size = batch_of(plan)
    if not 2 <= count <= size:
        raise ReplayError(f"pass {plan.number} has a batch of {size}: it can be split into 2 to {size} parts")
    sizes = tuple(len(part) for part in np.array_split(np.arange(size), count))
    ends, data = np.cumsum(sizes)[:-1], data_of(plan)

    def compared(axes: Mapping[int, int]) -> MicroBatches:
        pieces = {tensor: split_data(data[tensor], axis, ends, size) for tensor, axis in axes.items()}
        each = [{tensor: of[at] for tensor, of in pieces.items()} for at in range(count)]
        parts = [resized(plan, arrays, size, part) for arrays, part in zip(each, sizes, strict=True)]
        return _compared(words, runner, plan, parts, sizes, axes, [1 / count] * count, [recorded], is_split=True)

    return _first_that_runs(axes_of(plan, size), data, key, compared)


def joined(words: Words, runner: Runner, number: int | None) -> MicroBatches:
    """The passes between two changes of their leaves (around pass `number`; None: the last) as they accumulated their
    gradients, and as one batch. Raises ReplayError if they cannot run again, or are not of one form."""
    query = words.query
    chosen = plan_of(query, number, rebuilds=True)
    group, usual = _between_steps(query, chosen)
    if len(group) < 2:
        raise ReplayError(f"pass {chosen.number} is alone between two changes of its leaves: there is nothing to join")
    recorded = [plan_of(query, one, rebuilds=True) for one in group]
    plans = [prepared(query, runner, plan) for plan in recorded]
    unscaled, shares = map(list, zip(*map(_unscaled, plans), strict=True))
    if len(set(shares)) > 1 or any(math.isclose(shares[0], 1 / count) for count in (len(group), usual)):
        plans = unscaled
    else:
        shares = [1.0] * len(group)
    same = [_same_tensors(plans[0], plan) for plan in plans]
    key, size = batch_of(plans[0])
    sizes = tuple(batch_of(plan)[1] for plan in plans)
    data = [data_of(plan) for plan in plans]
    # the same tensor in all passes is no part of a batch
    pieces = {
        tensor: [of[names[tensor]] for of, names in zip(data, same, strict=True) if names.get(tensor) in of]
        for tensor in data[0]
        if any(names.get(tensor, tensor) != tensor for names in same)
    }
    if key not in pieces or any(len(each) < len(plans) for each in pieces.values()):
        raise ReplayError(f"{_passes(group)} have the same data: they are no parts of one batch")

    def compared(axes: Mapping[int, int]) -> MicroBatches:
        for tensor in pieces.keys() - axes.keys():
            if any(not np.array_equal(pieces[tensor][0], piece) for piece in pieces[tensor]):
                name = clean(words.called(tensor))
                raise ReplayError(f"{name} is other data in each of {_passes(group)}, and no batch")
        whole = resized(plans[0], {one: joined_data(pieces[one], axis) for one, axis in axes.items()}, size, sum(sizes))
        return _compared(words, runner, whole, plans, sizes, axes, shares, recorded, is_split=False)

    axes = {tensor: axis for tensor, axis in axes_of(plans[0], size).items() if tensor in pieces}
    return _first_that_runs(axes, data[0], key, compared)


def _first_that_runs(
    axes: Mapping[int, int],
    data: Mapping[int, np.ndarray],
    key: int,
    compared: Callable[[Mapping[int, int]], MicroBatches],
) -> MicroBatches:
    """The comparison with all data of the batch's size, or else, where a time is as long as the batch, without masks
    over it and numbers of its steps. The data `key` has the samples."""
    alike: dict[bytes, set[int]] = {}
    for one in axes:
        if one > 0 and one != key and (data[one].shape.count(len(data[key])) > 1 or counts_samples(data[one])):
            alike.setdefault(data[one].tobytes(), set()).add(one)
    unsure, refusals = [*alike.values()][:_MOST_UNSURE], []
    for count in range(len(unsure) + 1):
        for left_out in combinations(unsure, count):
            try:
                return compared({one: axis for one, axis in axes.items() if not any(one in each for each in left_out)})
            except ReplayError as error:
                refusals.append(error)
    raise refusals[0]


def _passes(numbers: Sequence[int]) -> str:
    return f"passes {numbers[0]} to {numbers[-1]}"


def _compared(
    words: Words,
    runner: Runner,
    whole: Plan,
    parts: Sequence[Plan],
    sizes: tuple[int, ...],
    tensors: Mapping[int, Any],
    shares: Sequence[float],
    recorded: Sequence[Plan],
    is_split: bool,
) -> MicroBatches:
    """The comparison of one batch with its parts, and of the `recorded` passes with the recording."""
    checks = [checked(words.query, plan, runner.run(plan, Edits())) for plan in recorded]
    batch, *outcomes = (ran(runner, plan) for plan in (whole, *parts))
    gradients = {
        leaf: np.stack([_gradient(outcome, leaf, batch.gradients[leaf]) for outcome in outcomes])
        for leaf, gradient in batch.gradients.items()
        if gradient is not None
    }
    leaves = tuple(
        LeafGradients(leaf, _wide(batch.gradients[leaf]), np.tensordot(shares, each, 1))  # type: ignore[arg-type]
        for leaf, each in gradients.items()
    )
    uneven, counts, first = _differences(whole, parts, batch, outcomes, sum(sizes))
    weights = {
        TIMES: shares,
        MEAN: [1 / len(sizes)] * len(sizes),
        SUM: [1.0] * len(sizes),
        SIZES: [size / sum(sizes) for size in sizes],
        COUNTS: [one / sum(counts) for one in counts] if counts and sum(counts) else None,
    }
    relation = next(
        (
            name
            for name, each in weights.items()
            if each is not None and all(_near(np.tensordot(each, gradients[one.leaf], 1), one.batch) for one in leaves)
        ),
        OTHER,
    )
    times = _factor(leaves)
    if relation == OTHER and math.isfinite(times):
        relation = TIMES
    numbers = tuple(plan.number for plan in recorded)
    check = next((one for one in checks if not one.is_equal), checks[0])
    return MicroBatches(
        numbers, is_split, runner.name, check, sizes, tuple(tensors), leaves, relation, times, tuple(counts),
        uneven, first if relation == OTHER else None,
    )  # fmt: skip


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _gradient(outcome: Outcome, leaf: int, like: np.ndarray | None) -> np.ndarray:
    found = outcome.gradients.get(leaf)
    return _wide(np.zeros_like(like) if found is None else found)


def _near(one: np.ndarray, other: np.ndarray) -> bool:
    largest = float(np.abs(other).max()) if other.size else 0.0
    return one.shape == other.shape and bool(np.allclose(one, other, rtol=_NEAR, atol=_NEAR * largest, equal_nan=True))


def _factor(leaves: Sequence[LeafGradients]) -> float:
    """The number that all gradients of the batch are multiplied by; NaN if there is none."""
    size = sum(float(np.vdot(one.batch, one.batch).real) for one in leaves)
    if not size or not math.isfinite(size):
        return math.nan
    factor = sum(float(np.vdot(one.batch, one.accumulated).real) for one in leaves) / size
    return factor if all(_near(one.accumulated, factor * one.batch) for one in leaves) else math.nan


# The first call that gives something else.


def _differences(
    whole: Plan, parts: Sequence[Plan], batch: Outcome, outcomes: Sequence[Outcome], samples: int
) -> tuple[Call | None, list[float], Call | None]:
    """The call that makes means over different counts, with the counts; and the first call whose results for the
    micro-batches are neither parts of its result for the batch, nor add up to it."""
    for at, call in enumerate(whole.calls):
        calls = [plan.calls[at] for plan in parts]
        counts = _counts(call, calls, outcomes, parts)
        uneven = call if len(set(counts)) > 1 else None
        for position, tensor in enumerate(call.outputs):
            made = batch.made.get((call.event, tensor))
            pieces = [
                outcome.made.get((one.event, one.outputs[position]))
                for one, outcome in zip(calls, outcomes, strict=True)
            ]
            if made is None or any(piece is None for piece in pieces) or made.dtype.kind not in "fc":
                continue
            if not _is_of_parts(made, pieces, counts, samples):  # type: ignore[arg-type]
                return uneven, counts, call
        if uneven is not None:
            return uneven, counts, None
    return None, [], None


def _is_of_parts(made: np.ndarray, pieces: Sequence[np.ndarray], counts: Sequence[float], samples: int) -> bool:
    """Whether a result for the batch follows from those for the micro-batches: as all of them side by side, or as
    their mean, their sum, or their mean weighted by counts."""
    if all(piece.shape == made.shape for piece in pieces):
        stacked = np.stack([_wide(piece) for piece in pieces])
        ways = [stacked.mean(0), stacked.sum(0)]
        if counts and sum(counts):
            ways.append(np.tensordot(np.array(counts) / sum(counts), stacked, 1))
        return any(_near(way, _wide(made)) for way in ways)
    if sum(piece.size for piece in pieces) != made.size:
        return False
    return any(
        _near(np.concatenate([piece.reshape(rows, -1) for piece in pieces], 1).ravel(), made.ravel())
        for rows in _rows_before(made.shape, samples)
    )


def _rows_before(shape: tuple[int, ...], samples: int) -> Iterator[int]:
    """How many rows may stand before the samples, which are a dimension or a part of one that was made of several."""
    before = 1
    for dimension in shape:
        share, rest = divmod(dimension, samples)
        yield from (before * rows for rows in range(1, share + 1) if not rest and share % rows == 0)
        before *= dimension


def _counts(call: Call, calls: Sequence[Call], outcomes: Sequence[Outcome], parts: Sequence[Plan]) -> list[float]:
    """The number of elements over which a call takes a mean in each micro-batch: the targets that a loss does not
    ignore, or the elements of its first argument, or the divisor; empty if it takes none."""
    positional, named = call.arguments
    divides = call.op in _DIVIDING and len(call.inputs) == 2 and len(positional) == 2
    is_mean = call.op == "mean" or (call.op in LOSSES and named.get("reduction", "mean") == "mean")
    if not (divides or is_mean):
        return []
    found: list[float] = []
    for one, outcome, plan in zip(calls, outcomes, parts, strict=True):
        arrays = [_result(plan, outcome, tensor, one.event) for tensor in one.inputs]
        if any(array is None for array in arrays):
            return []
        if divides:
            if arrays[1].size != 1:  # type: ignore[union-attr]
                return []
            found.append(float(arrays[1].item()))  # type: ignore[union-attr]
        elif len(arrays) > 1 and arrays[1].dtype.kind in "iu":  # type: ignore[union-attr]
            found.append(float((arrays[1] != named.get("ignore_index", _IGNORED)).sum()))
        else:
            found.append(float(arrays[0].size))  # type: ignore[union-attr]
    return found


def _result(plan: Plan, outcome: Outcome, tensor: int, before: int) -> np.ndarray | None:
    """The elements of a tensor that entered a call."""
    if made := [event for event, one in outcome.made if one == tensor and event < before]:
        return outcome.made[max(made), tensor]
    return next((step.value.array for step in plan.inputs if step.tensor == tensor), None)


# Passes that belong together.


def _between_steps(query: Query, plan: Plan) -> tuple[list[int], int]:
    """The passes of one form between two changes of their leaves, around a pass; and the most that are so anywhere."""
    steps = sorted({event for leaf in plan.leaves for event in query.tensors.writes(leaf)})
    own = query.passes.by_number[plan.number]
    passes = [one for one in query.trace.passes if one.digest == own.digest and query.passes.is_outer(one)]
    places = [bisect(steps, one.first) for one in passes]
    group = [one for one, place in zip(passes, places, strict=True) if place == bisect(steps, own.first)]
    if missing := next((one for one in group if not one.is_in_detail), None):
        raise ReplayError(f"pass {missing.number}, which belongs to the batch, was not recorded in detail")
    return [one.number for one in group], max(Counter(places).values())


def _unscaled(plan: Plan) -> tuple[Plan, float]:
    """A plan without the number that its loss is multiplied by at the end, and this number; 1 where there is none."""
    last = next((call for call in reversed(plan.calls) if plan.roots[0] in call.outputs), None)
    tensor = 0 if last is None else scaled_by(plan, last)
    numbers = [part for part in last.arguments[0] if isinstance(part, (int, float))] if last and tensor else []
    if last is None or len(numbers) != 1 or not numbers[0]:
        return plan, 1.0
    factor = 1 / numbers[0] if last.op in _DIVIDING else float(numbers[0])
    steps = tuple(step for step in plan.steps if step is not last)
    return plan._replace(steps=steps, roots=(tensor,)), factor


def _same_tensors(one: Plan, other: Plan) -> dict[int, int]:
    """The tensors of a plan, with those that are in their places in another. Raises ReplayError if the plans do not
    make the same calls."""
    calls = [[(call.function, len(call.inputs), len(call.outputs)) for call in plan.calls] for plan in (one, other)]
    if calls[0] != calls[1]:
        raise ReplayError(f"{_passes((one.number, other.number))} make other calls: they are no parts of one batch")
    places = dict(zip(one.roots, other.roots, strict=True))
    for call, with_it in zip(one.calls, other.calls, strict=True):
        places |= zip((*call.inputs, *call.outputs), (*with_it.inputs, *with_it.outputs), strict=True)
    return places


# The data of a batch in the plan of a pass, and plans of the same calls for batches of another size.

_RESHAPING = ("view", "reshape", "unflatten")
_REPEATING = ("expand", "broadcast_to", "repeat", "tile")
# Calls that make a batch of data are not made again.
_PREPARING = frozenset(
    """
    getitem index_select select narrow split chunk unbind gather take take_along_dim stack cat concat concatenate
    hstack vstack
    """.split()
)


def ran(runner: Runner, plan: Plan) -> Outcome:
    """The outcome of a plan, with the results of all its calls."""
    return runner.run(plan, Edits(), Graph((0,) * len(plan.roots), {}, {}))


def batch_of(plan: Plan) -> tuple[int, int]:
    """The data that the loss is computed with, and its first dimension. Raises ReplayError if there is none."""
    data, constants = data_of(plan), constants_of(plan)
    made = {call.outputs[0]: call for call in plan.calls if call.outputs}
    read = [tensor for call in reversed(plan.calls) for tensor in call.inputs if tensor in constants]
    for tensor in [*read, *data]:
        while tensor in made and made[tensor].inputs and tensor not in data:
            tensor = made[tensor].inputs[0]
        if tensor in data and data[tensor].ndim and len(data[tensor]) > 1:
            return tensor, len(data[tensor])
    raise ReplayError(f"no data of more than one sample enters pass {plan.number}: it has no batch")


def axes_of(plan: Plan, size: int) -> dict[int, int]:
    """The dimension of each input that has the samples."""
    data = data_of(plan)
    axes: dict[int, int] = {}
    for step in plan.inputs:
        shape = _elements(step).shape
        if step.tensor not in data or size not in shape:
            if step.tensor < 0 and shape and shape[0] % size == 0:
                axes[step.tensor] = 0  # a mask of heads of samples
            continue
        if shape[0] == size or shape.count(size) == 1:
            axes[step.tensor] = shape.index(size)
    return axes


def _elements(step: Input) -> np.ndarray:
    assert step.value.array is not None
    return step.value.array.reshape(step.value.shape)


def data_of(plan: Plan) -> dict[int, np.ndarray]:
    """The elements of the data that enters a plan, by tensor, without the running statistics of a normalization."""
    norms = (call for call in plan.calls if call.op in ("batch_norm", "instance_norm"))
    statistics = {tensor for call in norms for tensor in call.inputs[1:3]}
    data = (step for step in plan.inputs if step.how == DATA and step.tensor not in statistics)
    return {step.tensor: _elements(step) for step in data}


def split_data(array: np.ndarray, axis: int, ends: np.ndarray, size: int) -> list[np.ndarray]:
    """The parts of an array; the numbers of the samples begin anew in each part."""
    pieces = np.split(array, ends * (array.shape[axis] // size), axis)
    return [np.arange(len(piece)) for piece in pieces] if counts_samples(array) else pieces


def joined_data(pieces: Sequence[np.ndarray], axis: int) -> np.ndarray:
    """The data of several passes as one. Raises ReplayError if their other dimensions differ."""
    if all(map(counts_samples, pieces)):
        return np.arange(sum(map(len, pieces)))
    try:
        return np.concatenate(pieces, axis)
    except ValueError:
        raise ReplayError("the data of the passes have other shapes: they cannot be joined to one batch") from None


def counts_samples(array: np.ndarray) -> bool:
    """Whether an array is the numbers of the samples, as in `logp[torch.arange(n), action]`."""
    return array.dtype.kind in "iu" and array.ndim == 1 and bool((array == np.arange(len(array))).all())


def resized(plan: Plan, arrays: Mapping[int, np.ndarray], before: int, after: int) -> Plan:
    """A plan with other data, for a batch of another size."""
    of_batch = set(arrays)
    steps: list[Input | Call] = []
    for step in plan.steps:
        if isinstance(step, Input):
            if (array := arrays.get(step.tensor)) is not None:
                value = replace(step.value, shape=array.shape, array=np.ascontiguousarray(array))
                step = step._replace(value=value)
            steps.append(step)
            continue
        if not of_batch.isdisjoint(step.inputs):
            of_batch.update(step.outputs)
        sizes = step.op in _RESHAPING and not of_batch.isdisjoint(step.inputs)
        steps.append(_with_size(step, before, after) if sizes or step.op in _REPEATING else step)
    return plan._replace(steps=tuple(steps))


def _with_size(call: Call, before: int, after: int) -> Call:
    """A call whose arguments name a shape, for a batch of another size."""
    positional, named = call.arguments
    is_exact = call.op in _REPEATING
    changed, is_found = [], False
    for part in positional:
        if not is_found:
            part, is_found = _resized_part(part, before, after, is_exact)
        changed.append(part)
    return call._replace(arguments=[changed, named])


def _resized_part(part: Any, before: int, after: int, is_exact: bool) -> tuple[Any, bool]:
    """A part of the arguments of a call, with the first size that has the samples changed; whether it has one."""
    if type(part) is int and part > 0 and (part == before if is_exact else part % before == 0):
        return part // before * after, True
    inner = part if isinstance(part, list) else part.get("tuple") if isinstance(part, dict) else None
    for at, one in enumerate(inner or ()):
        found, is_found = _resized_part(one, before, after, is_exact)
        if is_found:
            parts = [*inner[:at], found, *inner[at + 1 :]]  # type: ignore[index]
            return (parts if isinstance(part, list) else {"tuple": parts}), True
    return part, False


def prepared(query: Query, runner: Runner, plan: Plan) -> Plan:
    """A plan that begins at one loss, in which data that was taken out of other data, or written in place, enters as it
    is, and each dropout is a product with the mask that it had. Raises ReplayError for another root."""
    start = plan.starts[0]
    if len(plan.roots) != 1 or (start is not None and start.size != 1):
        raise ReplayError(f"pass {plan.number} does not begin at one loss alone: it has no batch")
    made, constants = ran(runner, plan).made, constants_of(plan)
    device = plan.inputs[0].value.device
    steps: list[Input | Call] = []
    for step in plan.steps:
        if not isinstance(step, Call):
            steps.append(step)
        elif constants.issuperset(step.inputs) and (step.op in _PREPARING or step.written):
            for tensor in dict.fromkeys((*step.outputs, *step.written)):
                dtype = (query.trace.shape(tensor) or ((), step.dtype))[1]
                steps.append(given(step.event, tensor, made[step.event, tensor], dtype, device))
        elif is_dropout(step.function):
            mask = _mask(runner, plan, step, made[step.event, step.outputs[0]].shape, device)
            arguments, inputs = [[{"tensor": 0}, {"tensor": 1}], {}], (*step.inputs, mask.tensor)
            product = step._replace(function="torch.mul", arguments=arguments, generator=None)
            steps += [mask, product._replace(inputs=inputs, written=())]
        else:
            steps.append(step)
    return plan._replace(steps=tuple(_needed(steps, plan.roots)))


def _needed(steps: Sequence[Input | Call], roots: Sequence[int]) -> list[Input | Call]:
    """The steps that roots are made by."""
    needed, kept = set(roots), []
    for step in reversed(steps):
        made = (step.tensor,) if isinstance(step, Input) else (*step.outputs, *step.written)
        if not needed.isdisjoint(made):
            kept.append(step)
            needed.update(() if isinstance(step, Input) else step.inputs)
    return kept[::-1]


def given(event: int, tensor: int, array: np.ndarray, dtype: str, device: str, how: str = DATA) -> Input:
    """An input of a plan that has these elements from an event on."""
    return Input(event, how, tensor, Snapshot(tensor, 0, array.shape, dtype, device, 0, 0, array, None))


def _mask(runner: Runner, plan: Plan, call: Call, shape: tuple[int, ...], device: str) -> Input:
    """What a dropout multiplied its argument by, which is its derivative. Raises ReplayError for one that does more."""
    if "alpha" in call.function or len(call.inputs) != 1:
        raise ReplayError(f"{call.function} changes what it does not drop: its batch cannot be split or joined")
    ones = np.ones(shape, np.float32)
    entered = given(0, call.inputs[0], ones, call.dtype, device, LEAF)
    alone = plan._replace(steps=(entered, call), roots=call.outputs, starts=(ones,))
    mask = runner.run(alone, Edits()).gradients[call.inputs[0]]
    assert mask is not None
    return given(call.event, -call.event, mask, call.dtype, device)
