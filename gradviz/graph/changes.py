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
    before = np.concatenate([np.zeros(1, np.int64), grads])[: len(grads)]
    return _ordered(events[(grads > 0) | (before > 0)], _written(moments, events, grads))


def _written(moments: Moments, events: np.ndarray, grads: np.ndarray) -> np.ndarray:
    """The events that wrote into what was the `.grad` then; grads[i] is since events[i]."""
    tensors, written = moments.trace.all_changes
    own = np.isin(tensors, grads[grads > 0])
    pairs = [(tensors[own], written[own])]
    for grad in sorted(moments.memory.shared.intersection(grads[grads > 0].tolist())):
        through = np.array(moments.memory.changes(grad), np.int64)
        pairs.append((np.full(len(through), grad), through))
    tensors, written = (np.concatenate([pair[side] for pair in pairs]) for side in (0, 1))
    since = np.searchsorted(events, written, side="right") - 1
    return written[(since >= 0) & (grads[since] == tensors)] if len(grads) else written[:0]


def _ordered(*parts: object) -> np.ndarray:
    return np.unique(np.concatenate([np.asarray(part, np.int64) for part in parts]))
