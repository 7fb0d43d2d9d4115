"""Tells the terms of a loss apart on PyTorch, or on gradviz's engine: see gradviz.replay.samples."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gradviz.replay.outcome import Edits
from gradviz.replay.plan import Call, Plan
from gradviz.replay.samples import REDUCTIONS, Term, has_weights
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
    loss = replay.tensor(last.outputs[0])
    parts = _parts(replay, last, loss)
    losses = [float(part) for part in parts.detach()]
    order = sorted(
        range(len(losses)), key=lambda at: -abs(losses[at]) if np.isfinite(losses[at]) else -np.inf
    )
    chosen = set(order[:most])
    start = next(None if start is None else start.reshape(()) for start in replay.starts([loss]))
    return [
        Term(at, value, _norms(replay.gradients([parts[at]], [start], True)) if at in chosen else {})
        for at, value in enumerate(losses)
    ]


def _norms(gradients: dict[int, torch.Tensor | None]) -> dict[int, float]:
    return {
        leaf: float(gradient.double().norm()) for leaf, gradient in gradients.items() if gradient is not None
    }


def _parts(replay: Replay, last: Call, loss: torch.Tensor) -> torch.Tensor:
    """The parts of a loss, one for each index of the first dimension, which add up to it."""
    positional, named = last.arguments
    if last.op in REDUCTIONS:
        elements = replay.value(positional[0] if positional else named["input"], last)
    else:
        unreduced = replace(last, arguments=[positional, {**named, "reduction": "none"}], outputs=(-1,))
        replay.call(unreduced)
        elements = replay.tensor(-1)
    if elements.ndim == 0:
        raise replay.refused(last, "has one element only: there is no batch")
    by_sample = elements.flatten(1).sum(1) if elements.ndim > 1 else elements
    total, parts = float(loss.detach()), by_sample * _share(replay, last, elements.numel())
    # A NaN is the sum of any parts with a NaN: then what the loss is tells whether the parts are its own.
    if np.isfinite(total):
        is_weighted = not np.isclose(float(parts.detach().sum()), total, rtol=1e-3, atol=1e-12)
    else:
        is_weighted = has_weights(last)
    if is_weighted:
        raise replay.refused(last, "weights its terms: they cannot be told apart")
    return parts


def _share(replay: Replay, last: Call, count: int) -> float:
    """What each element of a loss has part in it with: all in a sum, one of so many in a mean. Targets that a loss
    ignores do not count."""
    positional, named = last.arguments
    if last.op == "sum" or named.get("reduction") == "sum":
        return 1.0
    target = positional[1] if len(positional) > 1 else named.get("target")
    if "ignore_index" in named and target is not None:
        count = int((replay.value(target, last) != named["ignore_index"]).sum())
    return 1 / max(count, 1)
