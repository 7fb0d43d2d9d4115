"""A step with another learning rate, as text for a terminal and as plain data."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.console import Group
from rich.text import Text

from gradviz.events.values import stats_of
from gradviz.replay.changed_pass_text import check_text, table
from gradviz.replay.scaled_step import ScaledStep, Step
from gradviz.words.escape import clean, json_number
from gradviz.words.numbers import listed, number
from gradviz.words.words import Words


def scaled_step_text(words: Words, found: ScaledStep) -> Group:
    """The loss on the same data after either step, and the sizes of the steps."""
    head = f"pass {found.plan.number} runs again with {clean(found.runner)}, and so with what its step made"
    rates = listed([number(rate, 4) for rate in found.rates])
    scaled = listed([number(rate * found.factor, 4) for rate in found.rates])
    where = words.at_line(found.stepped.site)
    text = (
        f"{clean(found.stepped.type)} steps with lr {rates}{where}; beside it the same step with lr {scaled}"
    )
    losses = table("", "before the step", "after it", f"with lr {scaled}")
    for root, *values in found.losses:
        losses.add_row(Text(clean(words.called(root))), *(number(_one(value)) for value in values))
    steps = table("change of", "rms", f"with lr {scaled}")
    for step in found.steps:
        steps.add_row(Text(clean(words.called(step.leaf))), *(number(size, 4) for size in _sizes(step)))
    return Group(
        Text(head, "bold"), Text(check_text(words, found.check)), Text(text), Text(), losses, Text(), steps
    )


def _one(value: np.ndarray) -> float:
    """A loss as a number; for a root with several elements their sum, with which a pass begins."""
    return float(value.sum())


def _sizes(step: Step) -> list[float]:
    """The root mean squares of the change that a step made, and of the scaled change."""
    wide = np.complex128 if step.before.dtype.kind == "c" else np.float64
    before = step.before.astype(wide)
    return [stats_of(np.abs(after.astype(wide) - before)).rms for after in (step.after, step.scaled)]


def scaled_step_json(words: Words, found: ScaledStep) -> dict[str, Any]:
    """The scaled step as plain data."""
    return {
        "pass": found.plan.number,
        "runner": found.runner,
        "equal": found.check.is_equal,
        "optimizer": found.stepped.type,
        "event": found.stepped.index + 1,
        "rates": [json_number(rate) for rate in found.rates],
        "factor": found.factor,
        "losses": [
            {
                "of": words.called(root),
                **{
                    key: json_number(_one(value))
                    for key, value in zip(("before", "after", "scaled"), values, strict=True)
                },
            }
            for root, *values in found.losses
        ],
        "changes": [
            {"of": words.called(step.leaf), "rms": json_number(one), "scaled": json_number(other)}
            for step in found.steps
            for one, other in [_sizes(step)]
        ],
    }
