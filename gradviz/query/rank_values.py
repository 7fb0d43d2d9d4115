"""Comparisons of the values of several ranks: by elements, else by statistics."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from gradviz.query.equal_elements import same_elements
from gradviz.tracefile import Snapshot

_CLOSE = 1e-3  # relative


def are_close(numbers: Sequence[float]) -> bool:
    """Whether numbers are the same but for rounding. False if one of them is not finite."""
    return all(map(isfinite, numbers)) and max(numbers) - min(numbers) <= _CLOSE * min(map(abs, numbers))


def are_same(values: Sequence[Snapshot | None]) -> bool:
    """Whether the values of all ranks are known and equal: by elements, else by statistics."""
    return all(map(_is_known, values)) and not are_apart(values)


def are_apart(values: Sequence[Snapshot | None]) -> bool:
    """Whether the values of the ranks are known to differ; also if only some ranks have a value."""
    return any(_differ(values[0], other) for other in values[1:])


def alike(values: Sequence[Snapshot | None]) -> list[int]:
    """The place, for each value, of the first value that is not known to differ from it."""
    firsts: list[int] = []
    first_of = []
    for place, value in enumerate(values):
        first = next((at for at in firsts if not are_apart((values[at], value))), place)
        if first == place:
            firsts.append(place)
        first_of.append(first)
    return first_of


def _is_known(value: Snapshot | None) -> bool:
    return value is not None and value.stats is not None


def _differ(one: Snapshot | None, other: Snapshot | None) -> bool:
    if one is None or other is None:
        return one is not other
    if not _is_known(one) or not _is_known(other):  # as for a part of a tensor that lies on several ranks
        return False
    if one.array is not None and other.array is not None:
        return not same_elements(one.array, other.array)
    return one.shape != other.shape or repr(one.stats) != repr(other.stats)
