"""The gradients that leaves received in a pass, where a trace of `--values inputs` kept them."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from gradviz.events.kinds import Kind, PassBegan, ValueKept
from gradviz.events.values import GRADIENT
from gradviz.query.query import Query
from gradviz.tracefile import Snapshot


def recorded_gradients(
    query: Query, began: PassBegan, leaves: Collection[int]
) -> list[tuple[int, int, Snapshot]]:
    """The gradients that leaves received in the pass, as far as their values were kept: leaf, event and value."""
    trace = query.trace
    accumulated = trace.table(Kind.ACCUMULATED)
    in_pass = accumulated["in_pass"] == began.number
    by_gradient = dict(
        zip(accumulated["gradient"][in_pass].tolist(), accumulated["tensor"][in_pass].tolist(), strict=True)
    )
    kept = trace.table(Kind.KEPT)
    gradients = []
    for event in kept.events[trace.named(kept["how"], (GRADIENT,))].tolist():
        if event <= began.index:
            continue
        kept_value = trace.event(event)
        assert isinstance(kept_value, ValueKept)
        leaf = by_gradient.get(kept_value.original, 0)
        value = trace.snapshot(kept_value.copy, event) if leaf in leaves else None
        if value is not None and value.stats is not None:
            gradients.append((leaf, event, value))
    return gradients


def has_hooks(query: Query, number: int) -> bool:
    """Whether hooks changed gradients of a pass."""
    return bool(np.any(query.trace.table(Kind.HOOKED)["in_pass"] == number))
