"""The loss and the gradients of a pass if something is different."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gradviz.events.kinds import OpRan
from gradviz.query.gradients_of_pass import has_hooks
from gradviz.replay.bad_origin import BadOrigin, bad_origin
from gradviz.replay.edit_texts import edits_of
from gradviz.replay.outcome import Check, Edits, Outcome, Runner, checked
from gradviz.replay.plan import CARRIED, CUT, LEAF, Call, Input, Plan, ReplayError, plan_of
from gradviz.replay.samples import loss_of, mixing
from gradviz.words.words import Words


@dataclass(frozen=True)
class Changed:
    """A value of the pass before and after: a root, or the gradient of a leaf; None if there is none."""

    tensor: int
    called: str
    is_gradient: bool
    before: np.ndarray | None
    after: np.ndarray | None


@dataclass(frozen=True)
class WhatIf:
    """A pass that ran again. `changes` compare the values before and after the edits; without edits both are the
    same. `dtype` is the changed dtype of all floating-point numbers, or empty; `sample` an index of the batch that is
    left out of the loss. `first` is the first call with another result, None with a dtype. `held` are values that
    stay as recorded: they were computed by ops that cannot run again, without grad mode, or before an earlier pass.
    `has_hooks` means that hooks changed gradients of the pass: a replay does not run them. `added` are the leaves
    whose `.grad` held an earlier gradient: `changes` have only this pass's part of it. `cut` are results that enter
    the pass although a gradient flowed on behind them: the ops that made them cannot run again. `bad` is the origin
    of NaN or infinities before and after the edits; None where there are none, or it is not known."""

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


def what_if(
    words: Words,
    runner: Runner,
    number: int | None = None,
    sets: Sequence[str] = (),
    dtype: str = "",
    without: Sequence[str] = (),
    sample: int | None = None,
) -> WhatIf:
    """Run a pass again (None: the last), unchanged and with the edits. Raises ReplayError if that is impossible,
    UnknownName if no tensor has a given name."""
    query = words.query
    plan = plan_of(query, number)
    edits = edits_of(words, plan, sets, dtype, without)
    if sample is not None:
        edits = replace(edits, sample=sample, loss=_loss_of_samples(words, plan))
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
    )


def _loss_of_samples(words: Words, plan: Plan) -> Call:
    """The call that makes the loss of a pass from which a sample can be left out. Raises ReplayError if there is
    none."""
    last = loss_of(words.query, plan)
    if (mixed := mixing(plan)) is not None:
        where = words.at_line(mixed.site)
        raise ReplayError(
            f"samples depend on one another, by {mixed.function}{where}: none can be left out of the loss alone"
        )
    return last


def _changes(words: Words, plan: Plan, before: Outcome, after: Outcome) -> list[Changed]:
    roots = [
        Changed(root, words.called(root), False, before.roots[root], after.roots[root])
        for root in before.roots
    ]
    return roots + [
        Changed(
            leaf, f"{words.called(leaf)}.grad", True, before.gradients.get(leaf), after.gradients.get(leaf)
        )
        for leaf in plan.leaves
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
