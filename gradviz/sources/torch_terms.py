"""Separates the terms of a loss on PyTorch, or on gradviz's engine: see gradviz.replay.samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gradviz.replay.outcome import Edits
from gradviz.replay.plan import Call, Plan
from gradviz.replay.samples import Term
from gradviz.sources.loss_parts import parts_of, scaled
from gradviz.sources.torch_replay import Replay, TorchRunner

if TYPE_CHECKING:
    import torch


class TorchTerms:
    """PyTorch, or gradviz's engine, as a `TermRunner`."""

    def __init__(self, runner: TorchRunner) -> None:
        self.runner = runner

    def terms(self, plan: Plan, last: Call, most: int) -> list[Term]:
        """The terms of the loss that call `last` made: see TermRunner."""
        with self.runner.alone():
            replay = Replay(self.runner, plan, Edits(), None)
            replay.make_calls()
            return _terms(replay, last, most)


def _terms(replay: Replay, last: Call, most: int) -> list[Term]:
    root = replay.tensor(replay.plan.roots[0])
    parts = scaled(replay, last, parts_of(replay, last))
    losses = [float(part) for part in parts.detach()]
    order = sorted(
        range(len(losses)), key=lambda at: -abs(losses[at]) if np.isfinite(losses[at]) else -np.inf
    )
    chosen = set(order[:most])
    start = next(None if start is None else start.reshape(()) for start in replay.starts([root]))
    return [
        Term(at, value, _norms(replay.gradients([parts[at]], [start], True)) if at in chosen else {})
        for at, value in enumerate(losses)
    ]


def _norms(gradients: dict[int, torch.Tensor | None]) -> dict[int, float]:
    return {
        leaf: float(gradient.double().norm()) for leaf, gradient in gradients.items() if gradient is not None
    }
