"""The first NaN and the first infinity of a running script. An infinity that the program wrote itself does not
count."""

import math
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any

import numpy as np

from gradviz.events.handles import elements_of
from gradviz.events.kinds import Kind
from gradviz.events.listener import State
from gradviz.events.values import Stats, stats_of
from gradviz.query.bad_numbers import WrittenInfinities


def is_finite(value: Any) -> bool:
    """Whether a value has no NaN and no infinity, as far as its elements can be read."""
    values = elements_of(value)
    if values is None or values.dtype.kind not in "fc":
        return True
    # A finite sum of squares proves in one call that every element is finite. The reverse is not true: it may
    # overflow.
    if values.dtype.itemsize >= 4 and isfinite(abs(np.vdot(values, values))):
        return True
    return bool(np.isfinite(values).all())


def measured(values: Any, statistic: str) -> float:
    """One statistic of an array or a snapshot, as `stats_of` defines it; NaN if it is unknown."""
    array = getattr(values, "array", None)
    if hasattr(values, "stats") and array is None:
        return _statistic(values.shape, values.stats, statistic)
    array = elements_of(values) if array is None else np.asarray(array)
    if array is None:
        return float("nan")
    if statistic in _QUICK and array.size and array.dtype.kind == "f" and is_finite(array):
        return float(_QUICK[statistic](array))
    return _statistic(array.shape, None if statistic in _OF_SHAPES else stats_of(array), statistic)


def _statistic(shape: tuple[int, ...], stats: Stats | None, statistic: str) -> float:
    if statistic in _OF_SHAPES:
        return float(_OF_SHAPES[statistic](shape))
    if stats is None:
        return float("nan")
    return max(abs(stats.min), abs(stats.max)) if statistic == "absmax" else float(getattr(stats, statistic))


_OF_SHAPES: dict[str, Callable[[tuple[int, ...]], int]] = {"size": math.prod, "ndim": len}
# Statistics in one pass, for floating-point arrays with only finite elements.
_QUICK: dict[str, Callable[[np.ndarray], Any]] = {
    "min": np.min,
    "max": np.max,
    "absmax": lambda array: np.abs(array).max(),
    "nan": lambda array: 0,
    "inf": lambda array: 0,
    "zeros": lambda array: array.size - np.count_nonzero(array),
    "mean": lambda array: array.mean(dtype=np.float64),
    "rms": lambda array: np.sqrt(np.square(array, dtype=np.float64).mean()),
}


_INFINITY = "infinity"
BAD = ("NaN", _INFINITY)
_TESTS: dict[str, Callable[[Any], Any]] = {"NaN": np.isnan, _INFINITY: np.isinf}
_PLAIN = frozenset((np.dtype(np.float32), np.dtype(np.float64)))
_vdot = np.vdot


class FirstBad:
    """Searches the values of each event for those of `names` that have not appeared yet. Each method returns the
    names that appear for the first time. `looking` is whether any name has not appeared."""

    def __init__(self, names: Sequence[str]) -> None:
        self.unseen = set(names)
        self.looking = bool(names)
        # the tensors with written infinities, until another infinity appears
        self.written = WrittenInfinities()

    def of_values(self, values: Sequence[Any]) -> list[str]:
        """In gradients, where an infinity is never written by the program."""
        return self._first(values, lambda: False)

    def of_op(self, args: str, inputs: Sequence[int], outputs: Sequence[int], values: Sequence[Any]) -> list[str]:
        """In the results of an op, new or changed in place."""
        infinite = self.written.tensors.intersection(inputs)
        self._forget_finite(outputs, values)
        return self._first(values, lambda: self.written.by_op(args, infinite, outputs))

    def of_one(self, args: str, inputs: Sequence[int], output: int, value: Any) -> list[str]:
        """In the single new tensor that an op made."""
        if type(value) is np.ndarray and value.dtype in _PLAIN and isfinite(_vdot(value, value)):
            return []
        return self.of_op(args, inputs, (output,), (value,))

    def of_states(self, kind: Kind, fields: tuple[Any, ...], states: Sequence[State]) -> list[str]:
        """In the states of tensors at any other kind of event."""
        values = [state.value for state in states]
        self._forget_finite([state.tensor for state in states], values)
        if kind == Kind.TENSOR:
            tensor, how, _ = fields
            return self._first(values, lambda: self.written.by_maker(tensor, how, states[0].flags))
        if kind == Kind.MUTATED:
            tensor, _, source, *_ = fields
            return self._first(values, lambda: self.written.by_write(tensor, source))
        return self.of_values(values)

    def _first(self, values: Sequence[Any], is_written: Callable[[], bool]) -> list[str]:
        names: list[str] = []
        for value in values:
            if value is None or is_finite(value):
                continue
            for name, test in _TESTS.items():
                if name not in self.unseen or not test(elements_of(value)).any():
                    continue
                if name != _INFINITY or not is_written():
                    self.unseen.discard(name)
                    names.append(name)
        self.looking = bool(self.unseen)
        return names

    def _forget_finite(self, tensors: Sequence[int], values: Sequence[Any]) -> None:
        """Forget tensors whose infinities have been overwritten."""
        if written := self.written.tensors.intersection(tensors):
            pairs = zip(tensors, values, strict=True)
            finite = {tensor for tensor, value in pairs if value is not None and is_finite(value)}
            self.written.tensors.difference_update(written & finite)
