"""The parts of a loss that is a mean or a sum over a batch, one for each index of its first dimension."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gradviz.replay.plan import Call, Plan, ReplayError
from gradviz.replay.samples import REDUCTIONS, scalings_of

if TYPE_CHECKING:
    import torch

_OF_CLASSES = frozenset(("cross_entropy", "nll_loss", "linear_cross_entropy"))


class Replay(Protocol):
    """A run of a plan, with the tensors that its calls have made."""

    plan: Plan
    tensors: dict[int, torch.Tensor]

    def tensor(self, number: int) -> torch.Tensor:
        """A tensor by its number."""

    def value(self, tree: Any, call: Call) -> Any:
        """The value of a part of the arguments of a call."""

    def call(self, call: Call) -> None:
        """Make a call."""

    def refused(self, call: Call, why: str) -> ReplayError:
        """The error with the reason why a call cannot be split."""


def scaled(replay: Replay, last: Call, parts: torch.Tensor) -> torch.Tensor:
    """The parts of a loss, scaled as the pass scales the loss before its root."""
    for call in scalings_of(replay.plan):
        replay.tensors[last.outputs[0]] = parts
        replay.call(call)
        parts, last = replay.tensor(call.outputs[0]), call
    return parts


def parts_of(replay: Replay, last: Call) -> torch.Tensor:
    """The parts of the loss that a call made, one for each index of the first dimension; their sum is the loss."""
    loss = replay.tensor(last.outputs[0])
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
    # A NaN is the sum of any parts with a NaN: then the kind of the loss decides whether it is weighted.
    if np.isfinite(total):
        is_weighted = not np.isclose(float(parts.detach().sum()), total, rtol=1e-3, atol=1e-12)
    else:
        is_weighted = _has_weights(last)
    if is_weighted:
        raise replay.refused(last, "weights its terms: they cannot be told apart")
    return parts


def _has_weights(last: Call) -> bool:
    """Whether a loss is a mean whose terms have different weights: by class, or by the lengths of targets."""
    named = last.arguments[1]
    is_weighted = last.op == "ctc_loss" or (last.op in _OF_CLASSES and named.get("weight") is not None)
    return is_weighted and named.get("reduction", "mean") == "mean"


def _share(replay: Replay, last: Call, count: int) -> float:
    """The factor of each element in a loss: 1 in a sum, 1/count in a mean. Targets that a loss ignores do not
    count."""
    positional, named = last.arguments
    if last.op == "sum" or named.get("reduction") == "sum":
        return 1.0
    target = positional[1] if len(positional) > 1 else named.get("target")
    if "ignore_index" in named and target is not None:
        count = int((replay.value(target, last) != named["ignore_index"]).sum())
    return 1 / max(count, 1)


def without_one(replay: Replay, last: Call, index: int) -> torch.Tensor:
    """The loss without one index of its first dimension; for a mean, the mean of the others. Raises ReplayError."""
    parts = parts_of(replay, last)
    count = len(parts)
    if not -count <= index < count:
        raise replay.refused(last, f"has {count} parts, from 0 to {count - 1}: there is no {index}")
    if count == 1:
        raise replay.refused(last, "has one part only: nothing is left without it")
    rest = [at for at in range(count) if at != index % count]
    total = parts[rest].sum()
    if last.op == "sum" or last.arguments[1].get("reduction", "mean") != "mean":
        return scaled(replay, last, total)
    counted = _counted(replay, last, count)
    others = sum(counted[at] for at in rest)
    if not others:
        raise replay.refused(last, f"ignores all others: nothing is left without {index}")
    return scaled(replay, last, total * (sum(counted) / others))


def _counted(replay: Replay, last: Call, count: int) -> list[int]:
    """The number of elements that count in a mean, for each index of the first dimension, in any unit. Targets that a
    loss ignores do not count."""
    positional, named = last.arguments
    target = positional[1] if len(positional) > 1 else named.get("target")
    if last.op in REDUCTIONS or "ignore_index" not in named or target is None:
        return [1] * count
    is_counted = replay.value(target, last) != named["ignore_index"]
    return [int(row.sum()) for row in is_counted.reshape(count, -1)]
