"""Finds the events that changed a tensor's value or its `.grad`."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from gradviz.events.kinds import Accumulated, Kind
from gradviz.query.query import Query
from gradviz.sets import contained, distinct
from gradviz.tracefile import Snapshot


def value_changes(query: Query, tensor: int) -> np.ndarray:
    """The events that made a tensor, changed it in place, or gave it other memory, in order."""
    query.trace.reach_all()
    direct, in_memory = query.tensors.value_events(tensor), query.memory.changes(tensor)
    if base := query.memory.parts.get(tensor):
        in_memory = [*in_memory, *query.tensors.value_events(base).tolist(), *query.memory.changes(base)]
    return _ordered(direct, in_memory) if in_memory else direct


def writes_by_any_name(query: Query, tensor: int, since: int = 0, until: int | None = None) -> list[int]:
    """The events from `since` to before `until` that wrote to a tensor, itself or through another on the same memory,
    or gave it other memory, in order."""
    end = query.trace.count if until is None else until
    written = (query.tensors.writes(tensor), query.memory.changes(tensor))
    return sorted(
        {k for events in written for k in events[bisect_left(events, since) : bisect_left(events, end)]}
    )


def grad_changes(query: Query, tensor: int) -> np.ndarray:
    """The events that changed which tensor the `.grad` is, or the value of the `.grad`, in order."""
    query.trace.reach_all()
    events, grads = query.tensors.grads.of(tensor)
    if not len(events):
        return events
    before = np.concatenate([np.zeros(1, np.int64), grads])[: len(grads)]
    return _ordered(events[(grads > 0) | (before > 0)], _written(query, events, grads))


def added_up(query: Query, tensor: int, k: int) -> np.ndarray:
    """The last events up to k that accumulated into a leaf's `.grad` with no other change of it between them."""
    changed = grad_changes(query, tensor)
    changed = changed[changed <= k]
    others = np.flatnonzero(query.trace.kinds[changed] != Kind.ACCUMULATED)
    return changed[others[-1] + 1 :] if len(others) else changed


def _written(query: Query, events: np.ndarray, grads: np.ndarray) -> np.ndarray:
    """The events that changed in place the tensor that was the `.grad` at that time. `grads[i]` is the `.grad` since
    `events[i]`."""
    if not grads.any():
        return events[:0]
    log = query.tensors.value_log
    of_grads = contained(log.tensors, grads[grads > 0])
    # leave out the event that made the tensor
    again = of_grads & np.append(False, log.tensors[1:] == log.tensors[:-1])[: len(of_grads)]
    pairs = [(log.tensors[again], log.events[again])]
    for grad in sorted(query.memory.shared.intersection(grads[grads > 0].tolist())):
        through = np.array(query.memory.changes(grad), np.int64)
        pairs.append((np.full(len(through), grad), through))
    tensors, written = (np.concatenate([pair[side] for pair in pairs]) for side in (0, 1))
    since = np.searchsorted(events, written, side="right") - 1
    return written[(since >= 0) & (grads[since] == tensors)]


def _ordered(*parts: object) -> np.ndarray:
    return distinct(np.concatenate([np.asarray(part, np.int64) for part in parts]))


def added_to(query: Query, event: Accumulated, at: int) -> tuple[Snapshot, Snapshot] | None:
    """The value of a leaf's `.grad` before an event added a gradient to it, and that gradient. None if the `.grad` was
    None or 0, if elements were not kept, or if the `.grad` at event `at` is no longer the sum of both."""
    earlier = query.tensors.grad(event.tensor, event.index - 1)
    if not earlier:
        return None
    before = query.memory.value(earlier, event.index - 1)
    came = query.memory.value(event.gradient, event.index - 1)
    grad = query.tensors.grad(event.tensor, at)
    now = query.memory.value(grad, at) if grad else None
    if before is None or came is None or now is None:
        return None
    if before.array is None or came.array is None or now.array is None or not before.array.any():
        return None
    with np.errstate(all="ignore"):
        is_sum = now.array.shape == came.array.shape == before.array.shape and np.allclose(
            before.array + came.array, now.array, rtol=1e-4, equal_nan=True
        )
    return (before, came) if is_sum else None
