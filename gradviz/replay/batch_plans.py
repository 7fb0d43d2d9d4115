"""The data of a batch in the plan of a pass, and plans of the same calls for batches of another size."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gradviz.query.query import Query
from gradviz.query.replayable_functions import is_dropout
from gradviz.replay.outcome import Edits, Graph, Outcome, Runner
from gradviz.replay.plan import DATA, LEAF, Call, Input, Plan, ReplayError
from gradviz.replay.samples import constants_of
from gradviz.tracefile import Snapshot

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
