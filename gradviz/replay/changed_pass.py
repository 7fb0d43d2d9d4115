"""The loss and the gradients of a pass if something is different."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gradviz.events.kinds import Kind, OpRan, Stepped
from gradviz.graph.model import GRAD, TENSOR, Graph, Node
from gradviz.graph.model import LEAF as LEAF_NODE
from gradviz.query.at_points import redefined, version_of
from gradviz.query.copies import same_bits
from gradviz.query.optimizer_steps import (
    event_after_step,
    is_next_pass_recorded,
    number_of,
    settings_of,
    steps_after,
    value_at,
)
from gradviz.query.query import Query
from gradviz.query.replayable_functions import base_name
from gradviz.replay.outcome import (
    Check,
    Edits,
    Outcome,
    Runner,
    checked,
    gradients_of,
    graph_of,
    has_hooks,
    indices_of,
    is_exact,
)
from gradviz.replay.plan import CARRIED, CUT, LEAF, Call, Input, Plan, ReplayError, plan_of
from gradviz.replay.samples import loss_of, mixing
from gradviz.tracefile import Snapshot
from gradviz.words.escape import clean, shortened
from gradviz.words.numbers import few_of, listed
from gradviz.words.stop import UnknownName, element_of, subject
from gradviz.words.words import Words

# Edits of a pass as the user types them: `x=4`, `w[0,2]=0`, `detach@6`.

DTYPES = ("float32", "float64")
_PLACE = re.compile(r"^(?P<op>\w+)@(?P<line>\d{1,9})$")
# The calls that can be left out: the first argument becomes the result.
_LEFT_OUT = frozenset(
    """
    detach data clamp clip clamp_min clamp_max relu dropout dropout1d dropout2d dropout3d alpha_dropout
    feature_alpha_dropout nan_to_num hardtanh
    """.split()
)
_MOST = 6  # the most names in a message


def edits_of(words: Words, plan: Plan, sets: Sequence[str], dtype: str, without: Sequence[str]) -> Edits:
    """The edits that the options describe. Raises ReplayError if they name something that the pass does not have."""
    values: dict[int, np.ndarray] = {}
    results: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for text in sets:
        name, sign, value = text.partition("=")
        if not sign or not name.strip() or not value.strip():
            raise ReplayError(f"--set takes NAME=NUMBER, as x=4 or 'w[0,2]=0', not {_shown(text)}")
        step, tensor, index = _set(words, plan, name.strip())
        if isinstance(step, Input):
            array = values.get(tensor, step.value.array)
            assert array is not None
            values[tensor] = _changed(array, index, value.strip(), name.strip())
        else:
            shape, dtype_name = words.query.trace.shape(tensor) or ((), "float32")
            form = "float32" if dtype_name == "bfloat16" else dtype_name
            elements, places = results.get(tensor, (np.zeros(shape, form), np.zeros(shape, bool)))
            elements = _changed(elements, index, value.strip(), name.strip())
            results[tensor] = elements, _changed(places, index, "true", name.strip())
    left_out = frozenset(event for text in without for event in _left_out(words, plan, text))
    return Edits(values, dtype, left_out, results=results)


def _shown(text: str) -> str:
    return shortened(clean(text), 40)


def _set(words: Words, plan: Plan, text: str) -> tuple[Input | Call, int, str | None]:
    """The step of a plan that brings the named tensor, the tensor, and its element (None: all of it). `w[0]` may be
    the name of a tensor that the program took out of `w`, or an element: the one that enters the pass is meant, or
    else the one that a call returns."""
    names: list[tuple[str, str | None]] = [(text, None)]
    if (element := element_of(text)) is not None:
        names.append(element)
    named: list[tuple[int, str, str | None]] = []
    for name, index in names:
        with suppress(UnknownName):
            found = subject(words, name, plan.began.index)
            named.append((found.tensor, found.called, index))
    if not named:
        subject(words, names[-1][0], plan.began.index)
    for tensor, _, index in named:
        if entered := [step for step in plan.inputs if step.tensor == tensor]:
            return entered[-1], tensor, index
    known = few_of([words.called(step.tensor) for step in plan.inputs], _MOST)
    for tensor, called, index in named:
        call = next((call for call in plan.calls if tensor in call.outputs), None)
        written = next((call for call in plan.calls if tensor in call.written), None)
        if written is not None:
            where = f"{written.function}{words.at_line(written.site)}"
            raise ReplayError(f"{called} is written in place, by {where}: set what enters it, as {known}")
        if call is not None:
            return call, tensor, index
    raise ReplayError(f"{named[0][1]} does not enter pass {plan.number}: what does is {known}")


def _changed(array: np.ndarray, index: str | None, text: str, name: str) -> np.ndarray:
    """A copy of an array with a number in one place, or everywhere, or with a list of numbers there."""
    changed = np.array(array)
    try:
        place = () if index is None else tuple(map(_part, index.split(",")))
        if text.startswith("["):
            listed_numbers = np.array(json.loads(text))
            if listed_numbers.shape != changed[place].shape:
                raise ReplayError(f"{_shown(name)} has the shape {changed[place].shape}: {_shown(text)} has another")
            changed[place] = listed_numbers.astype(array.dtype, casting="same_kind")
        else:
            changed[place] = _number(text, array.dtype)
    except (ValueError, TypeError, OverflowError, KeyError, RecursionError):
        raise ReplayError(f"{_shown(text)} is no number that {_shown(name)} can have ({array.dtype.name})") from None
    except IndexError:
        raise ReplayError(f"{_shown(name)} is outside of its shape {tuple(array.shape)}") from None
    return changed


def _part(text: str) -> int | slice:
    if ":" not in text:
        return int(text)
    return slice(*(int(bound) if bound.strip() else None for bound in text.split(":")))


def _number(text: str, dtype: np.dtype) -> complex | float | int | bool:
    if dtype.kind == "b":
        return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
    if dtype.kind in "iu":
        return int(text)
    return complex(text) if dtype.kind == "c" else float(text)


def _left_out(words: Words, plan: Plan, text: str) -> list[int]:
    """The calls that are named as `detach@6`: an op and a line."""
    place = _PLACE.match(text.strip())
    if place is None:
        raise ReplayError(f"--without takes OP@LINE, as detach@6, not {_shown(text)}")
    line = int(place["line"])
    here = [call for call in plan.calls if words.query.places.line(call.site)[1] == line]
    named = [call for call in here if base_name(f".{place['op']}") == call.op]
    if not named:
        there = listed(sorted({call.op for call in here})) or "no call that can be made again"
        raise ReplayError(f"pass {plan.number} has no {place['op']} on line {line}: there is {there}")
    if named[0].op not in _LEFT_OUT:
        raise ReplayError(f"{named[0].op} cannot be left out: what can is {listed(sorted(_LEFT_OUT))}")
    return [call.event for call in named]


# The origin of the NaN or the infinities of a pass: the first call that returns one, or the first node that produces
# one from finite gradients.


class BadOrigin(NamedTuple):
    """The origin of the first NaN, or (without a NaN) of the first infinity: a `tensor` that enters the pass,
    otherwise a `call` by its event, otherwise a `node`; 0 for the others. `indices` are the indices of the first
    dimension that have it."""

    is_nan: bool
    tensor: int
    call: int
    node: int
    indices: tuple[int, ...]


def bad_origin(query: Query, runner: Runner, plan: Plan, edits: Edits, outcome: Outcome) -> BadOrigin | None:
    """The origin of NaN or infinities in a root, or in a gradient of a leaf, of an outcome; None if the outcome has
    none, or if the origin is not known."""
    if not all(map(_is_finite, outcome.roots.values())):
        return _of_input(plan, edits) or _of_call(plan, outcome)
    if all(map(_is_finite, outcome.gradients.values())):
        return None
    flowed = runner.run(plan, edits, graph_of(query, plan)).nodes
    for node, (received, produced) in flowed.items():  # in the order in which the nodes ran
        if not all(map(_is_finite, produced)):
            return _of_node(node, produced) if all(map(_is_finite, received)) else None
    return None


def _is_finite(array: np.ndarray | None) -> bool:
    return array is None or array.dtype.kind not in "fc" or bool(np.isfinite(array).all())


def _of_input(plan: Plan, edits: Edits) -> BadOrigin | None:
    for step in plan.inputs:
        array = edits.values.get(step.tensor, step.value.array)
        if array is not None and array.dtype.kind in "fc" and np.isnan(array).any():
            return BadOrigin(True, step.tensor, 0, 0, indices_of(np.isnan(array)))
    return None


def _of_call(plan: Plan, outcome: Outcome) -> BadOrigin | None:
    """The first call; None for an infinity that the program may have written itself, as in a mask."""
    is_nan = True in outcome.first_bad
    may_be_meant = not is_nan and not all(_is_finite(step.value.array) for step in plan.inputs)
    if may_be_meant or is_nan not in outcome.first_bad:
        return None
    event, indices = outcome.first_bad[is_nan]
    return BadOrigin(is_nan, 0, event, 0, indices)


def _of_node(node: int, produced: Sequence[np.ndarray | None]) -> BadOrigin:
    bad = next(array for array in produced if array is not None and not _is_finite(array))
    is_nan = bool(np.isnan(bad).any())
    return BadOrigin(is_nan, 0, 0, node, indices_of(np.isnan(bad) if is_nan else np.isinf(bad)))


class Changed(NamedTuple):
    """A value of the pass before and after: a root, or the gradient of a leaf; None if there is none."""

    tensor: int
    called: str
    is_gradient: bool
    before: np.ndarray | None
    after: np.ndarray | None


class WhatIf(NamedTuple):
    """A pass that ran again. `changes` compare the values before and after the edits; without edits both are the
    same. `dtype` is the changed dtype of all floating-point numbers, or empty; `sample` an index of the batch that is
    left out of the loss. `first` is the first call with another result, None with a dtype. `held` are values that
    stay as recorded: they were computed by ops that cannot run again, without grad mode, or before an earlier pass.
    `has_hooks` means that hooks changed gradients of the pass: a replay does not run them. `added` are the leaves
    whose `.grad` held an earlier gradient: `changes` have only this pass's part of it. `cut` are results that enter
    the pass although a gradient flowed on behind them: the ops that made them cannot run again. `bad` is the origin
    of NaN or infinities before and after the edits; None where there are none, or it is not known. `redefined` are the
    ops that ran at a point at which the runner's version of PyTorch defines another gradient than the recorded one."""

    plan: Plan
    runner: str
    check: Check
    is_edited: bool
    dtype: str
    sample: int | None
    changes: tuple[Changed, ...]
    first: Call | None
    held: tuple[tuple[int, str], ...]
    has_hooks: bool
    added: tuple[str, ...]
    cut: tuple[str, ...]
    bad: tuple[BadOrigin | None, BadOrigin | None]
    redefined: tuple[str, ...]


def what_if(
    words: Words,
    runner: Runner,
    number: int | None = None,
    sets: Sequence[str] = (),
    dtype: str = "",
    without: Sequence[str] = (),
    sample: int | None = None,
) -> WhatIf:
    """Run a pass again (None: the last that gave a set tensor a gradient, or the last), unchanged and with the edits.
    Raises ReplayError if that is impossible, UnknownName if no tensor has a given name."""
    query = words.query
    number = number or _last_of(words, sets)
    plan = plan_of(query, number, rebuilds=True)
    edits = edits_of(words, plan, sets, dtype, without)
    if sample is not None:
        edits = replace(edits, sample=sample, loss=loss_of(query, plan))
        if (mixed := mixing(plan)) is not None:
            by = f"{mixed.function}{words.at_line(mixed.site)}"
            raise ReplayError(f"samples depend on one another, by {by}: none can be left out of the loss alone")
    before = runner.run(plan, Edits())
    is_edited = edits != Edits()
    after = runner.run(plan, edits) if is_edited else before
    return WhatIf(
        plan,
        runner.name,
        checked(query, plan, before),
        is_edited,
        dtype,
        sample,
        tuple(_changes(words, plan, before, after)),
        _first_difference(plan, edits, before, after) if is_edited else None,
        tuple(held_of(words, plan)) if is_edited else (),
        has_hooks(query, plan.number),
        tuple(words.called(leaf) for leaf in plan.leaves if query.tensors.grad(leaf, plan.began.index)),
        tuple(_placed(words, step) for step in plan.inputs if step.how == CUT),
        (
            bad_origin(query, runner, plan, Edits(), before),
            bad_origin(query, runner, plan, edits, after) if is_edited else None,
        ),
        tuple(_redefined(words, plan, runner.version)),
    )


def _redefined(words: Words, plan: Plan, version: str) -> Iterator[str]:
    """The expressions of the ops of a pass at which another version defines other gradients."""
    query = words.query
    for call in plan.calls:
        event = query.tensors.maker(call.outputs[0]) if call.outputs else None
        op = query.tensors.op(event) if event is not None and query.tensors.is_op(event) else None
        if op is not None and redefined(query, op, version_of(words.trace), version) is not None:
            yield words.expression(op.site, 40)


def _last_of(words: Words, sets: Sequence[str]) -> int | None:
    """The last pass in detail that gave a tensor a gradient of those to be set; None if there is none."""
    table = words.trace.table(Kind.ACCUMULATED)
    passes = words.trace.in_detail
    for name in (text.partition("=")[0].strip() for text in sets):
        for typed in (name, (element_of(name) or ("",))[0]):
            with suppress(UnknownName):
                named = subject(words, typed, words.trace.count - 1)
                found = set(table["in_pass"][table["tensor"] == named.tensor].tolist()).intersection(passes)
                return max(found, default=None)
    return None


def _changes(words: Words, plan: Plan, before: Outcome, after: Outcome) -> list[Changed]:
    roots = [Changed(root, words.called(root), False, before.roots[root], after.roots[root]) for root in before.roots]
    names = {leaf: words.called(leaf) for leaf in plan.leaves}
    count = Counter(names.values())
    return roots + [
        Changed(
            leaf,
            f"{name}.grad" if count[name] == 1 else f"{name}.grad (t{leaf})",
            True,
            before.gradients.get(leaf),
            after.gradients.get(leaf),
        )
        for leaf, name in names.items()
    ]


def _first_difference(plan: Plan, edits: Edits, before: Outcome, after: Outcome) -> Call | None:
    """The first call with another result; None in another dtype, where all calls differ."""
    if edits.dtype:
        return None
    if edits.loss is not None and edits == Edits(sample=edits.sample, loss=edits.loss):
        return edits.loss
    for call in plan.calls:
        if call.event in edits.without or before.checksums.get(call.event) != after.checksums.get(call.event):
            return call
    return None


def held_of(words: Words, plan: Plan) -> list[tuple[int, str]]:
    """The inputs of the pass that were themselves computed: tensor and place."""
    held = []
    for step in plan.inputs:
        maker = words.query.tensors.made(step.tensor)
        if isinstance(maker, OpRan) and step.how != LEAF and (step.how in (CUT, CARRIED) or maker.inputs):
            held.append((step.tensor, _placed(words, step)))
    return held


def _placed(words: Words, step: Input) -> str:
    """The name of an input, with the line that made it."""
    maker = words.query.tensors.made(step.tensor)
    return words.called(step.tensor) + (words.at_line(maker.site) if isinstance(maker, OpRan) else "")


def mark_changes(words: Words, runner: Runner, graph: Graph, edits: Sequence[str]) -> None:
    """Mark the nodes and edges whose value or gradient would differ with edits from a replay without edits. An edit
    sets a value (`x=4`) or leaves out a call (`detach@6`). Raises ReplayError if the pass does not run again with the
    recorded result, or if an edit names something that the pass does not have."""
    query = words.query
    plan = plan_of(query, graph.pass_number, rebuilds=True)
    sets = [text for text in edits if "=" in text]
    without = [text for text in edits if "=" not in text]
    changed = edits_of(words, plan, sets, "", without)
    nodes = graph_of(query, plan)
    before, after = (runner.run(plan, one, nodes) for one in (Edits(), changed))
    if not is_exact(query, plan, before):
        raise ReplayError(f"pass {plan.number} does not give what was recorded: what it would give is not drawn")
    for node in graph.nodes.values():
        if node.kind in (LEAF_NODE, TENSOR):
            _mark_node(plan, node, before, after, changed)
    was, now = (
        {number: array for number, _, array in gradients_of(query, plan, outcome)} for outcome in (before, after)
    )
    for edge in graph.edges:
        if edge.kind != GRAD or edge.value is None or edge.gradient not in now:
            continue
        if _differ(was.get(edge.gradient), now[edge.gradient]):
            edge.becomes = edge.value.with_elements(now[edge.gradient])
    changes = [*sets, *(f"without {text}" for text in without)]
    graph.notes.append(f"what if {clean(', '.join(changes))}: as it was → as it would be")
    if held := [clean(name) for _, name in held_of(words, plan)]:
        graph.notes.append(f"held as recorded: {listed(held)}")


def _mark_node(plan: Plan, node: Node, before: Outcome, after: Outcome, edits: Edits) -> None:
    becomes: dict[str, Snapshot] = {}
    was, now = _value(plan, node, before, Edits()), _value(plan, node, after, edits)
    if node.value is not None and _differ(was, now):
        becomes["value"] = node.value.with_elements(now)
        if node.value.stats is None:
            node.value = node.value.with_elements(was)
    if not node.overwritten:
        was, gradient = before.gradients.get(node.number), after.gradients.get(node.number)
        like = node.grad or node.value
        if node.added is None and _differ(was, gradient) and like is not None:
            becomes["grad"] = like.with_elements(gradient)
    if becomes:
        node.becomes = becomes


def _value(plan: Plan, node: Node, outcome: Outcome, edits: Edits) -> np.ndarray | None:
    """The value of a node in an outcome; None if the replay does not have it."""
    made = sorted(event for event, tensor in outcome.made if tensor == node.number and event > node.since)
    if made:
        return outcome.made[made[0], node.number]
    entered = [step for step in plan.inputs if step.tensor == node.number and step.event > node.since]
    return edits.values.get(node.number, entered[0].value.array) if entered else None


def _differ(before: np.ndarray | None, after: np.ndarray | None) -> bool:
    return after is not None and (before is None or not same_bits(before, after))


# torch.optim: the change of a step is lr times a term that does not depend on lr, weight decay included.
_PROPORTIONAL = frozenset("SGD Adam AdamW RMSprop Adagrad Adamax NAdam RAdam Adadelta".split())
_RATE = "lr"


class Step(NamedTuple):
    """A parameter before a step, after it, and after the step with the other rate."""

    leaf: int
    before: np.ndarray
    after: np.ndarray
    scaled: np.ndarray


class ScaledStep(NamedTuple):
    """A step with `factor` times its learning rate; `rates` are the original rates. `losses` has, for each root of
    the pass, its value before the step, after it, and after the scaled step, on the same data."""

    plan: Plan
    runner: str
    check: Check
    stepped: Stepped
    factor: float
    rates: tuple[float, ...]
    steps: tuple[Step, ...]
    losses: tuple[tuple[int, np.ndarray, np.ndarray, np.ndarray], ...]


def scaled_step(words: Words, runner: Runner, number: int | None, text: str) -> ScaledStep:
    """The step after a pass (None: the last) with a scaled learning rate, given as `lr=0.1`. Raises ReplayError if
    that cannot be known. The averages of SGD, Adam and similar optimizers do not depend on the rate, so the scaled step
    follows from the parameters before and after the step."""
    name, _, value = text.partition("=")
    factor = number_of(value)
    if name.strip() != _RATE or not np.isfinite(factor):
        raise ReplayError(f"--scale takes lr=FACTOR, as lr=0.1 for a tenth, not {clean(text)}")
    plan = plan_of(words.query, number, rebuilds=True)
    stepped = step_behind(words.query, plan)
    if stepped.type not in _PROPORTIONAL:
        raise ReplayError(f"how a step of {clean(stepped.type)} depends on its learning rate is not known")
    inputs = {step.tensor: step for step in plan.inputs if step.how == LEAF}
    steps = tuple(
        _scaled(inputs[leaf], _after(words, stepped, leaf), factor)
        for leaf in dict.fromkeys(stepped.parameters)
        if leaf in inputs
    )
    after = {step.leaf: step.after for step in steps}
    scaled = {step.leaf: step.scaled for step in steps}
    outcomes = [runner.run(plan, Edits(values)) for values in ({}, after, scaled)]
    return ScaledStep(
        plan,
        runner.name,
        checked(words.query, plan, outcomes[0]),
        stepped,
        factor,
        tuple(dict.fromkeys(number_of(settings_of(group).get(_RATE)) for group in stepped.groups)),
        steps,
        tuple((root, *(outcome.roots[root] for outcome in outcomes)) for root in plan.roots),  # type: ignore[misc]
    )


def step_behind(query: Query, plan: Plan) -> Stepped:
    """The optimizer step that changes leaves of a pass, before the next pass. Raises ReplayError if there is none, or
    more than one."""
    if not is_next_pass_recorded(query, plan.number):
        raise ReplayError(f"what came behind pass {plan.number} is not in the trace")
    steps = steps_after(query, plan.began, plan.leaves)
    if len(steps) != 1:
        count = "no optimizer steps" if not steps else "several optimizers step"
        raise ReplayError(f"{count} between pass {plan.number} and the next one")
    return steps[0]


def _after(words: Words, stepped: Stepped, leaf: int) -> np.ndarray:
    """A parameter after a step."""
    event = event_after_step(words.query, stepped, leaf)
    value = None if event is None else value_at(words.query, event, leaf)
    if value is None or value.array is None:
        raise ReplayError(
            f"what the step made of {clean(words.called(leaf))} is not in the trace: no recorded pass begins with it"
        )
    return value.array


def _scaled(entered: Input, after: np.ndarray, factor: float) -> Step:
    before = entered.value.array
    assert before is not None
    wide = np.complex128 if before.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        change = after.astype(wide) - before.astype(wide)
        scaled = (before.astype(wide) + factor * change).astype(before.dtype)
    return Step(entered.tensor, before, after, scaled)
