"""Orders of leaves: by the norm of their gradient, by their last change, by name."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

import numpy as np

from gradviz.query.changes import grad_changes, value_changes
from gradviz.query.curves import norm_of
from gradviz.query.query import Query


def gradient_norm(query: Query, tensor: int, k: int) -> float | None:
    """The norm of a tensor's `.grad` at event k: NaN if it is not finite, None if there is none or it was not kept."""
    moment = query.at(k)
    grad = moment.grad(tensor)
    return norm_of(moment.value(grad)) if grad else None


def last_change(query: Query, tensor: int, k: int) -> int:
    """The last event, not after k, that changed a tensor's value or its `.grad`; -1 if there is none."""
    changes = [
        events[np.searchsorted(events, k, side="right") - 1]
        for events in (value_changes(query, tensor), grad_changes(query, tensor))
        if len(events) and events[0] <= k
    ]
    return int(max(changes, default=-1))


def _by_norm(query: Query, tensor: int, k: int) -> tuple[int, float]:
    """The key that puts NaN first, then the largest norm, and a tensor without a gradient last."""
    norm = gradient_norm(query, tensor, k)
    if norm is None:
        return 2, 0.0
    return (0, 0.0) if math.isnan(norm) else (1, -norm)


def _parts(name: str) -> list[tuple[bool, int, str]]:
    """The parts by which a name is ordered: `blocks.2` before `blocks.10`."""
    parts = re.findall(r"[0-9]{1,9}|[^0-9]+", name)
    return [(not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]


ORDERS: dict[str, Callable[[Query, int, int], object]] = {
    "norm": _by_norm,
    "change": lambda query, tensor, k: -last_change(query, tensor, k),
    "name": lambda query, tensor, k: _parts(query.labels.of(tensor)),
}


def ordered(query: Query, tensors: Sequence[int], order: str, k: int) -> list[int]:
    """The tensors in an order of ORDERS at event k; unchanged for any other order."""
    key = ORDERS.get(order)
    return list(tensors) if key is None else sorted(tensors, key=lambda tensor: key(query, tensor, k))  # type: ignore[arg-type,return-value]
