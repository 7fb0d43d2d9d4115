"""The summary of a pass in training: its loss, the norm of each layer's gradient, and the relative change of the
layer by the step after it."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.page.page_texts import with_line
from gradviz.query.curves import (
    NamedCurve,
    changes_of_modules,
    gradients_of_modules,
    layers_of,
    losses,
)
from gradviz.tracefile import PassInfo
from gradviz.words import Words
from gradviz.words.escape import plain

_MOST_LAYERS = 32  # the most bars; a network with more layers is summarised by outer modules


class PassSummaries:
    """The summaries of the passes of one run."""

    def __init__(self, words: Words) -> None:
        query, self.words = words.query, words
        self.query = query
        module_of = layers_of(query, _MOST_LAYERS)
        self.losses = _by_place(losses(query))
        self.gradients = _by_place(gradients_of_modules(query, module_of))
        self.changes = _by_place(changes_of_modules(query, module_of))
        self.steps = query.trace.indices(Kind.STEPPED)

    def of(self, backward_pass: PassInfo | None) -> dict[str, Any] | None:
        """The summary of a pass, as data: `loss` (name, value), and `layers` (name, norm of the gradient, relative
        change); None for an unknown number, "odd" for one that is not finite. None if there is nothing to show."""
        if backward_pass is None:
            return None
        gradients, changes = (
            self.gradients.get(backward_pass.number, {}),
            self.changes.get(self._step_after(backward_pass), {}),
        )
        losses_here = self.losses.get(backward_pass.number, {})
        loss = [[self._named(name), _told(value)] for name, value in losses_here.items()]
        layers = [
            [plain(name, 80), _told(norm), _told(changes[name]) if name in changes else None]
            for name, norm in gradients.items()
        ]
        return {"loss": loss[0] if loss else None, "layers": layers} if loss or layers else None

    def _named(self, loss: str) -> str:
        """The name of a loss, with its line in the language of the page: `z (line 19)`."""
        return plain(with_line(loss, r"(?<=\()line ([0-9]+)(?=\)$)", self.words), 40)

    def _step_after(self, backward_pass: PassInfo) -> int:
        """The number of the optimizer step between the end of a pass and the next pass; 0 if there is none."""
        if backward_pass.last is None:
            return 0
        following = self.query.trace.find_pass(backward_pass.number + 1)
        end = following.first if following is not None else self.query.trace.count
        place = int(np.searchsorted(self.steps, backward_pass.last))
        return place + 1 if place < len(self.steps) and self.steps[place] < end else 0


def _by_place(curves: list[NamedCurve]) -> dict[int, dict[str, float]]:
    """The values of curves by pass or step, and by name."""
    values: dict[int, dict[str, float]] = {}
    for curve in curves:
        for place, value in zip(curve.at.tolist(), curve.values.tolist(), strict=True):
            values.setdefault(place, {})[curve.name] = value
    return values


def _told(value: float) -> float | str:
    return float(f"{value:.4g}") if np.isfinite(value) else "odd"
