"""A VJP compared with finite differences along random directions: one number for all elements of an input.

Along a direction u the function Σ upstream · f has the slope (f(x + hu) − f(x − hu)) / 2h, and the gradient says
⟨gradient, u⟩. Which h is right depends on the function: one from a ladder whose neighbour gives the same slope. Where
there is none, because of a kink or of rounding, the elements are compared one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gradviz.query.differences import Forward, compared, growth

_DIRECTIONS = 2
_LADDER = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)  # h, relative to the elements
_AGREE = 2e-3  # how far the slopes of two neighbours of the ladder are apart at most
_SMOOTH = 2e-2  # how far the slopes to both sides are apart at most
_MOST = 100_000  # elements of an input that is compared element by element, for which forward runs often
_TOLERANCE = {8: 1e-2, 4: 1e-2}  # of a right gradient, by the size of its numbers
_COARSE = 1e-1  # of shorter numbers

Slopes = Callable[[float], tuple[float, float]]  # for h, to both sides


@dataclass(frozen=True, slots=True)
class Along:
    """What the gradient says of a slope (`given`) and what the differences say (`found`)."""

    given: float
    found: float
    wrong: bool


def compared_along(
    forward: Forward,
    inputs: Sequence[np.ndarray],
    which: int,
    upstream: Sequence[np.ndarray],
    gradient: np.ndarray,
    itemsize: int,
) -> Along | None:
    """Compare `gradient`, the VJP for the input `which` that a backward gave for `upstream` (one for each output).
    `itemsize` is the size in bytes of the shortest numbers that it was computed with. None if the function has no
    derivative by differences here."""
    tolerance = _TOLERANCE.get(itemsize, _COARSE)
    along: list[Along] = []
    for direction in _directions(inputs[which]):
        given = float((gradient.astype(np.float64) * direction).sum())
        least = math.sqrt(float(((gradient.astype(np.float64) * direction) ** 2).sum()))
        found = _settled(_slopes(forward, inputs, which, upstream, direction), least)
        if found is None:
            return _by_elements(forward, inputs, which, upstream, gradient, tolerance)
        size = max(abs(given), abs(found), least, 1e-12)
        along.append(Along(given, found, not abs(given - found) <= tolerance * size))
    return next((one for one in along if one.wrong), along[0])


def _directions(x: np.ndarray) -> Iterator[np.ndarray]:
    """Random directions, always the same for a shape; each element moves as far as it is large."""
    draw = np.random.Generator(np.random.PCG64(x.size))
    size = np.abs(x.astype(np.float64))
    finite = size[np.isfinite(size) & (size > 0)]
    usual = float(np.sqrt((finite**2).mean())) if finite.size else 1.0
    reach = np.where(np.isfinite(size), np.maximum(size, 0.1 * usual), 0.0)
    for _ in range(_DIRECTIONS):
        yield draw.standard_normal(x.shape) * reach


def _slopes(
    forward: Forward,
    inputs: Sequence[np.ndarray],
    which: int,
    upstream: Sequence[np.ndarray],
    direction: np.ndarray,
) -> Slopes:
    def moved(h: float) -> list[np.ndarray]:
        there = inputs[which].astype(np.float64) + h * direction
        return forward([*inputs[:which], there, *inputs[which + 1 :]])

    here = forward(inputs)

    def slope(h: float) -> float:
        return growth(upstream, here, moved(h)) / h

    return lambda h: (slope(h), slope(-h))


def _settled(slopes: Slopes, least: float) -> float | None:
    """The slope, from the first two neighbours of the ladder that agree; None where none do."""
    before: float | None = None
    for h in _LADDER:
        above, below = slopes(h)
        if not (math.isfinite(above) and math.isfinite(below)):
            return None
        middle = (above + below) / 2
        size = max(abs(middle), least, 1e-12)
        if abs(above - below) > _SMOOTH * size:
            before = None
        elif before is not None and abs(middle - before) <= _AGREE * size:
            return middle
        else:
            before = middle
    return None


def _by_elements(
    forward: Forward,
    inputs: Sequence[np.ndarray],
    which: int,
    upstream: Sequence[np.ndarray],
    gradient: np.ndarray,
    tolerance: float,
) -> Along | None:
    told = compared(forward, inputs, which, upstream, gradient) if inputs[which].size <= _MOST else None
    if told is None or not told.checked:
        return None
    return Along(told.given, told.found, told.error > tolerance)
