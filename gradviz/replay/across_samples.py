"""Which samples of a batch depend on which: the gradient of each sample's part of the loss with respect to the data of
the others. It is 0 where nothing is computed between samples."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from gradviz.replay.changed_pass_text import few_names, placed_call, table
from gradviz.replay.micro_batches import axes_of, batch_of, given, prepared, ran, split
from gradviz.replay.outcome import Edits, Runner
from gradviz.replay.plan import DATA, LEAF, Call, Input, Plan, ReplayError, plan_of
from gradviz.replay.samples import REDUCTIONS, constants_of, loss_of
from gradviz.words.escape import clean, json_number
from gradviz.words.numbers import number, plural
from gradviz.words.words import Words

_MOST = 64  # samples whose gradients are computed: the first
_SHOWN = 6
_ELEMENTS, _CHOSEN, _PRODUCT, _PART = range(-(10**9), -(10**9) + 4)  # numbers that no tensor of a trace has
_NEAR = 1e-6  # relative to the gradient of the sample's own data: rounding


class AcrossSamples(NamedTuple):
    """`norms` has, for each of the first samples, the norm of the gradient of its part of the loss with respect to the
    data of each of `size` samples. `tensors` are the data, or what an embedding makes of it. `first` is the first call
    that gives something else for a part of the batch, None if none is known."""

    plan: Plan
    runner: str
    size: int
    tensors: tuple[int, ...]
    norms: np.ndarray
    first: Call | None

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The samples that depend on others, each with one of these, the strongest first."""
        own = np.diagonal(self.norms)[:, None]
        others = np.where(np.eye(*self.norms.shape) > 0, 0.0, self.norms)
        found = [(int(one), int(other)) for one, other in np.argwhere((others > _NEAR * own) & (others > 0))]
        return sorted(found, key=lambda pair: -others[pair])


def across_samples(words: Words, runner: Runner, wanted: int | None) -> AcrossSamples:
    """Which samples of a pass (None: the last) depend on which. Raises ReplayError if the pass cannot run again, or
    its loss is no mean or sum over a batch."""
    query = words.query
    plan = prepared(query, runner, plan_of(query, wanted, rebuilds=True))
    size, made = batch_of(plan)[1], ran(runner, plan).made
    halves = split(words, runner, plan.number, 2)
    axes = {one: axis for one, axis in axes_of(plan, size).items() if one in halves.tensors}
    derived = _derived(plan, axes, made)
    tensors = tuple(dict.fromkeys(step.tensor for step in derived.inputs if step.wants_gradient))
    if not tensors:
        raise ReplayError(f"no floating-point data of pass {plan.number} has a gradient")
    last = loss_of(query, plan)
    shape = ran(runner, _of_part(derived, last, np.ones((), np.float32))).made[last.event, _ELEMENTS].shape
    if not shape or shape[0] % size:
        raise ReplayError(f"the loss of pass {plan.number} has no part for each of {size} samples")
    rows = []
    for sample in range(min(size, _MOST)):
        chosen = np.zeros(shape, np.float32)
        chosen.reshape(size, -1)[sample] = 1
        gradients = runner.run(_of_part(derived, last, chosen), Edits()).gradients
        rows.append(np.sqrt(sum(_squares(gradients[tensor], axes[tensor], size) for tensor in tensors)))
    norms = np.array(rows)
    if not np.isfinite(norms).all():
        raise ReplayError(f"gradients of pass {plan.number} are not finite: which samples depend on which is not known")
    return AcrossSamples(plan, runner.name, size, tensors, norms, halves.first)


def _derived(plan: Plan, axes: dict[int, int], made: Mapping[tuple[int, int], np.ndarray]) -> Plan:
    """A plan that derives with respect to data of a batch instead of its leaves: floating-point data as it enters,
    and what an embedding makes of integers. `axes` has the dimension of the samples, also of what is made of data."""
    steps: list[Input | Call] = []
    constants = constants_of(plan)
    for step in plan.steps:
        if isinstance(step, Input):
            is_data = step.tensor in axes and step.tensor > 0 and "float" in step.value.dtype
            steps.append(step._replace(how=LEAF if is_data else DATA))
            continue
        result = step.outputs[0] if step.outputs else 0
        of_batch = next((axes[tensor] for tensor in step.inputs if tensor in axes), None)
        if of_batch is not None and (step.op == "embedding" or constants.issuperset(step.inputs)):
            axes[result] = of_batch
        if of_batch is not None and step.op == "embedding":
            array = made[step.event, result]
            steps.append(given(step.event, result, array, array.dtype.name, plan.inputs[0].value.device, LEAF))
        else:
            steps.append(step)
    return plan._replace(steps=tuple(steps))


def _of_part(plan: Plan, last: Call, chosen: np.ndarray) -> Plan:
    """A plan that begins at a part of its loss: the chosen elements of what the call `last` reduces."""
    positional, named = last.arguments
    if last.op in REDUCTIONS:
        of = positional[0] if positional else named["input"]
        elements = last._replace(function="Tensor.clone", arguments=[[of], {}])
    else:
        elements = last._replace(arguments=[positional, {**named, "reduction": "none"}])
    until = plan.steps.index(last)
    pair = (_ELEMENTS, _CHOSEN)
    product = last._replace(function="torch.mul", event=last.event + 1, inputs=pair, outputs=(_PRODUCT,))
    part = product._replace(function="torch.sum", inputs=(_PRODUCT,), outputs=(_PART,))
    steps = (
        *plan.steps[:until],
        elements._replace(outputs=(_ELEMENTS,)),
        given(last.event, _CHOSEN, chosen, "float32", plan.inputs[0].value.device),
        product._replace(arguments=[[{"tensor": 0}, {"tensor": 1}], {}]),
        part._replace(arguments=[[{"tensor": 0}], {}]),
    )
    return plan._replace(steps=steps, roots=(_PART,), starts=(None,))


def _squares(gradient: np.ndarray | None, axis: int, size: int) -> np.ndarray:
    """The square of the norm of a gradient at each sample."""
    if gradient is None:
        return np.zeros(size)
    return (np.abs(np.moveaxis(gradient, axis, 0).reshape(size, -1).astype(np.float64)) ** 2).sum(1)


def across_text(words: Words, found: AcrossSamples) -> Group:
    """The samples that depend on others, the strongest first, and the call by which they do."""
    head = f"pass {found.plan.number} runs again with {clean(found.runner)}: the part of each sample in the loss"
    of = f"with respect to {few_names(words, found.tensors)}, {plural(found.size, 'sample')}"
    pairs, all_pairs = found.pairs, len(found.norms) * (found.size - 1)
    parts: list[RenderableType] = [Text(head, "bold"), Text(of)]
    if len(found.norms) < found.size:
        parts.append(Text(f"the first {len(found.norms)} samples are looked at"))
    if not pairs:
        return Group(*parts, Text(), Text("no gradient goes from the loss of one sample to the data of another"))
    pairs_table = table("loss of sample", "data of sample", "gradient norm", "for its own data")
    for one, other in pairs[:_SHOWN]:
        norms = number(found.norms[one, other], 4), number(found.norms[one, one], 4)
        pairs_table.add_row(str(one), str(other), *norms)
    said = f"samples depend on one another: {len(pairs):,} of {plural(all_pairs, 'pair')}"
    by = [] if found.first is None else [Text(f"by {placed_call(words, found.first)}")]
    return Group(*parts, Text(), pairs_table, Text(), Text(said), *by)


def across_json(words: Words, found: AcrossSamples) -> dict[str, Any]:
    """The norms and the pairs as plain data."""
    return {
        "pass": found.plan.number,
        "runner": found.runner,
        "samples": found.size,
        "of": [words.called(tensor) for tensor in found.tensors],
        "norms": json_number(found.norms.tolist()),
        "pairs": [list(pair) for pair in found.pairs],
        "by": None if found.first is None else {"function": found.first.function, "event": found.first.event + 1},
    }
