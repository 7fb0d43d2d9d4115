"""The values of earlier events in a program under the debugger, as far as a predicate needs them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

import numpy as np

from gradviz.events.handles import elements_of
from gradviz.events.listener import State
from gradviz.events.values import SMALL, stats_of
from gradviz.live.measures import is_finite
from gradviz.tracefile import Snapshot


class Numbered:
    """Maps ascending integers to small integers, with four bytes for each."""

    def __init__(self) -> None:
        self.first = 0
        self.values = array("I")

    def put(self, number: int, value: int) -> None:
        """Set the value of a number. A number below the first one is ignored."""
        if not self.values:
            self.first = number
        missing = number - self.first - len(self.values)
        if missing == 0:
            self.values.append(value)
        elif missing > 0:
            self.values.frombytes(bytes(self.values.itemsize * missing))
            self.values.append(value)
        elif number >= self.first:
            self.values[number - self.first] = value

    def get(self, number: int) -> int:
        """The value of a number; 0 if it was not set."""
        at = number - self.first
        return self.values[at] if 0 <= at < len(self.values) else 0


def _nothing() -> Any:
    """Used instead of a weak reference if there is no array."""
    return None


_UNKNOWN: tuple[Callable[[], Any], Any] = _nothing, None


class OlderValues:
    """The values that tensors had at earlier events, and which of them have NaN or infinity."""

    def __init__(self) -> None:
        self._values: dict[int, tuple[Callable[[], Any], Any]] = {}  # a reference to the array, and a copy
        self._replaced: dict[int, Any] = {}  # the same for the states of the last event, before that event
        self._bad: dict[int, tuple[bool, bool]] = {}  # NaN, infinity
        self._purge_at = 10_000
        self.ask(frozenset())

    def ask(self, asked: frozenset[str]) -> None:
        """Forget all values, and keep from now on those that predicates with these fields need."""
        self._values.clear()
        self._bad.clear()
        self._keeps_values = bool(asked & {"in", "grad"})
        self._keeps_copies = "in" in asked
        self._keeps_bad = bool(asked & {"nan", "inf"})

    def take(self, states: Sequence[State]) -> None:
        """Keep the needed parts of the states of an event."""
        if self._keeps_values:
            self._keep(states)
        if not self._keeps_bad:
            return
        for state in states:
            if state.value is None or (state.tensor not in self._bad and is_finite(state.value)):
                continue
            if (elements := elements_of(state.value)) is not None:
                self.mark(state.tensor, bool(np.isnan(elements).any()), bool(np.isinf(elements).any()))

    def _keep(self, states: Sequence[State]) -> None:
        values = self._values
        self._replaced = {state.tensor: values.get(state.tensor) for state in states}
        for state in states:
            if isinstance(state.value, np.generic):
                values[state.tensor] = _nothing, state.value
            elif state.value is not None:
                values[state.tensor] = ref(state.value), _copied(state) if self._keeps_copies else None
        if len(values) > self._purge_at:
            self._values = {
                n: kept for n, kept in values.items() if kept[0] is _nothing or kept[0]() is not None
            }
            self._purge_at = 2 * len(self._values) + 10_000

    def value(self, number: int) -> Any:
        """The value of a tensor; None if it is unknown."""
        array, copy = self._values.get(number, _UNKNOWN)
        held = array()
        return copy if held is None else held

    def before(self, number: int) -> Any:
        """The value of a tensor before the last event; None if it is unknown."""
        _, copy = self._replaced.get(number, self._values.get(number)) or _UNKNOWN
        return copy

    def mark(self, number: int, nan: bool, inf: bool) -> None:
        """Note whether a tensor's value has NaN and infinity."""
        self._bad[number] = nan, inf

    def is_bad(self, number: int, which: bool) -> bool | None:
        """Whether a tensor has NaN, or infinity if `which`; None if it is unknown."""
        known = self._bad.get(number)
        return None if known is None else known[which]


def _copied(state: State) -> Any:
    """A copy of an array, or its statistics if it is large: ops in place change their inputs."""
    value = elements_of(state.value)
    if value is None:
        return None
    if value.size <= SMALL:
        return value.copy()
    form = state.tensor, state.version, value.shape, value.dtype.name, "cpu", state.flags, state.base
    return Snapshot(*form, array=None, told=stats_of(value))
