"""Leaves that get gradients and are in no optimizer."""

from __future__ import annotations

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.events.kinds import Kind
from gradviz.query.ops import CLAMPING
from gradviz.query.writes import Writes
from gradviz.sets import contained, distinct_pairs


def homeless(case: Case) -> list[int]:
    """The leaves that get gradients in two passes or more and that the program never changes between them. Parameters
    whose shards are in an optimizer are left out."""
    came = case.trace.table(Kind.ACCUMULATED)
    pairs = distinct_pairs(came["tensor"], came["in_pass"])
    leaves, counts = np.unique(pairs[:, 0], return_counts=True)
    still = ~contained(leaves, _changed_between(case)) & ~contained(leaves, sorted(case.training.trained))
    sharded = _sharded(case, came["tensor"])
    unchanged = leaves[still & (counts > 1)].tolist()
    names = sharded | _in_parts(case) if unchanged else sharded
    return [leaf for leaf in unchanged if case.trace.parameters.get(leaf) not in names]


def _changed_between(case: Case) -> np.ndarray:
    """The leaves that were written to between their first and their last gradient. A clamp does not count. Nor does a
    checkpoint that is loaded at the end: it trains nothing."""
    came, writes = case.trace.table(Kind.ACCUMULATED), case.query.of(Writes)
    leaves, at = np.unique(came["tensor"][::-1], return_index=True)
    last = dict(zip(leaves.tolist(), came.events[::-1][at].tolist(), strict=True))
    changed: set[int] = set()
    for event, leaf in zip(writes.events.tolist(), writes.leaves.tolist(), strict=True):
        if leaf in changed or not writes.started(leaf) < event < last.get(leaf, -1):
            continue  # a leaf of a long run is written to thousands of times
        if case.query.tensors.writer(event) not in CLAMPING:
            changed.add(leaf)
    return np.array(sorted(changed), np.int64)


def _in_parts(case: Case) -> set[str]:
    """The names of the parameters that optimizers hold in parts on several ranks. A part has no gradient if no pass
    reduces the gradient of the whole."""
    last = case.trace.count - 1
    values = {tensor: case.trace.snapshot(tensor, last) for tensor in case.training.holders}
    return {
        name
        for tensor, value in values.items()
        if value is not None and value.part is not None and (name := case.trace.parameters.get(tensor))
    }


def _sharded(case: Case, accumulating: np.ndarray) -> set[str]:
    """The names of the parameters with a gradient at a step, though no pass accumulates a gradient in them:
    `fully_shard` gives them their part of the gradient of the whole parameter, which has the same name."""
    trained = np.array(sorted(case.training.trained), np.int64)
    handed = trained[~contained(trained, accumulating)].tolist()
    return {name for tensor in handed if (name := case.trace.parameters.get(tensor))}
