"""When a tensor changed: its value, and what its `.grad` is."""

from __future__ import annotations

import numpy as np

from gradviz.graph.moment import Moments


def value_changes(moments: Moments, tensor: int) -> np.ndarray:
    """The events that made a tensor, wrote over it or gave it other memory, in order."""
    born = moments.trace.born(tensor)
    return _ordered(
        [] if born is None else [born], moments.trace.changes(tensor), moments.memory.changes(tensor)
    )


def grad_changes(moments: Moments, tensor: int) -> np.ndarray:
    """The events after which a tensor's `.grad` was another, or held something else, in order."""
    events, grads = moments.grads.of(tensor)
    ends = np.append(events[1:], moments.trace.count)[: len(events)]
    written = []
    for event, grad, end in zip(events.tolist(), grads.tolist(), ends.tolist(), strict=True):
        if grad:
            within = _ordered(moments.trace.changes(grad), moments.memory.changes(grad))
            written.append(within[(within > event) & (within < end)])
    told = [
        int(event)
        for position, event in enumerate(events)
        if grads[position] or (position and grads[position - 1])
    ]
    return _ordered(told, *written)


def _ordered(*parts: object) -> np.ndarray:
    return np.unique(np.concatenate([np.asarray(part, np.int64) for part in parts]))
