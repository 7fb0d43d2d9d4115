"""Leaves that get gradients and are in no optimizer."""

from __future__ import annotations

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.events.kinds import Kind
from gradviz.query.writes import Writes
from gradviz.sets import contained, distinct_pairs


def homeless(case: Case) -> list[int]:
    """The leaves that get gradients in two passes or more and are never changed, while others are trained."""
    came = case.trace.table(Kind.ACCUMULATED)
    pairs = distinct_pairs(came["tensor"], came["in_pass"])
    leaves, counts = np.unique(pairs[:, 0], return_counts=True)
    written = case.query.of(Writes).changed
    still = ~contained(leaves, written) & ~contained(leaves, sorted(case.training.trained))
    return leaves[still & (counts > 1)].tolist()
