"""The origin of the NaN or the infinities of a pass: the first call that returns one, or the first node that produces
one from finite gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gradviz.query.query import Query
from gradviz.replay.outcome import Edits, Outcome, Runner, indices_of
from gradviz.replay.plan import Plan
from gradviz.replay.replayed_elements import graph_of


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
