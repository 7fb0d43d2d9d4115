"""A VJP compared with central finite differences: element by element, or along random directions, which gives one
number for all elements of an input.

Along a direction u the function Σ upstream · f has the slope (f(x + hu) − f(x − hu)) / 2h, and the gradient gives
⟨gradient, u⟩. The right h depends on the function: it is taken from a ladder, where a neighbour gives the same slope.
If no two neighbours agree, because of a kink or of rounding, the elements are compared one by one."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from gradviz.sets import distinct

Forward = Callable[[Sequence[np.ndarray]], list[np.ndarray]]

MOST = 64  # the most elements of an input that are moved; of a larger input, this many at equal distances
_STEP = {8: 1e-6, 4: 1e-3}  # relative to the element, by the bytes of the outputs' numbers
_TOLERANCE = {8: 1e-5, 4: 2e-3}  # the largest relative error of a right gradient, by the bytes of its numbers
_COARSE = 5e-2  # both, for shorter numbers
_KINK = 1e-2  # the least relative difference between the slopes to both sides of a kink


class Vjp(NamedTuple):
    """The `gradient` that the backward of a function gave for the input `which`, from `upstream`, one for each output.
    Inputs are float64, or integers."""

    forward: Forward
    inputs: Sequence[np.ndarray]
    which: int
    upstream: Sequence[np.ndarray]
    gradient: np.ndarray

    @property
    def input(self) -> np.ndarray:
        return self.inputs[self.which]

    def at(self, value: np.ndarray) -> list[np.ndarray]:
        """The outputs with another value of the input."""
        return self.forward([*self.inputs[: self.which], value, *self.inputs[self.which + 1 :]])


class Compared(NamedTuple):
    """An input's gradient beside the differences. `checked` of `size` elements have a derivative by differences;
    `kinks` more have none, because the slopes to both sides differ or are not finite. The worst element is `at`, where
    the backward gave `given` and the differences gave `found`; `error` is its relative error."""

    size: int
    checked: int
    kinks: int
    at: tuple[int, ...]
    given: float
    found: float
    error: float
    wrong: bool


def compared(vjp: Vjp) -> Compared:
    """Compare a VJP with (f(x + h) − f(x − h)) / 2h, element by element."""
    x, gradient = vjp.input, vjp.gradient
    chosen = distinct(np.linspace(0, max(x.size - 1, 0), min(x.size, MOST)).astype(np.int64)).tolist()
    here = vjp.forward(vjp.inputs)
    step = _STEP.get(min((out.dtype.itemsize for out in here if out.dtype.kind == "f"), default=8), _COARSE)
    given, found, places, kinks = [], [], [], 0
    for element in chosen:
        far = step * max(1.0, abs(float(x.flat[element])))
        above, below = (_slope(vjp, element, side, here) for side in (far, -far))
        if not (math.isfinite(above) and math.isfinite(below)) or (
            abs(above - below) > _KINK * max(abs(above), abs(below)) + 1e-6
        ):
            kinks += 1
            continue
        places.append(element)
        given.append(float(gradient.flat[element]))
        found.append((above + below) / 2)
    worst, error = _worst(np.array(given), np.array(found))
    tolerance = _TOLERANCE.get(gradient.dtype.itemsize, _COARSE)
    at = tuple(int(i) for i in np.unravel_index(places[worst], x.shape)) if places else ()
    return Compared(
        x.size, len(places), kinks, at, given[worst] if places else 0.0, found[worst] if places else 0.0, error,
        bool(error > tolerance),
    )  # fmt: skip


def _slope(vjp: Vjp, element: int, side: float, here: Sequence[np.ndarray]) -> float:
    """The slope of Σ upstream · f from here when one element is moved by `side`."""
    moved = vjp.input.copy()
    moved.flat[element] += side
    return growth(vjp.upstream, here, vjp.at(moved)) / side


def growth(upstream: Sequence[np.ndarray], here: Sequence[np.ndarray], there: Sequence[np.ndarray]) -> float:
    """The growth of Σ upstream · f from the outputs `here` to the outputs `there`. Integer outputs do not count."""
    with np.errstate(all="ignore"):
        return sum(
            float((u * (b.astype(np.float64) - a.astype(np.float64))).sum())
            for u, a, b in zip(upstream, here, there, strict=True)
            if a.dtype.kind == "f"
        )


def _worst(given: np.ndarray, found: np.ndarray) -> tuple[int, float]:
    """The element with the largest relative error, and the error. Elements that are small beside the others are
    compared with a thousandth of the largest."""
    if not len(given):
        return 0, 0.0
    size = np.maximum(np.abs(given), np.abs(found))
    floor = max(1e-3 * float(np.nanmax(size, initial=0.0)), 1e-12)
    errors = np.abs(given - found) / np.maximum(size, floor)
    errors = np.where(np.isfinite(errors), errors, np.inf)
    worst = int(np.argmax(errors))
    return worst, float(errors[worst])


_DIRECTIONS = 2
_LADDER = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)  # h, relative to the elements
_AGREE = 2e-3  # the largest difference between the slopes of two neighbours that agree, relative to the slope
_SMOOTH = 2e-2  # the largest difference between the slopes to both sides, relative to the slope
_MOST = 100_000  # the most elements of an input compared element by element: forward runs often
# the largest relative error of a right gradient, by the bytes of its numbers
_TOLERANCE_ALONG = {8: 1e-2, 4: 1e-2}
_COARSE_ALONG = 1e-1  # the same, for shorter numbers

Slopes = Callable[[float], tuple[float, float]]  # from h to the slopes to both sides


class Along(NamedTuple):
    """The slope that the gradient gives (`given`) and the slope by differences (`found`)."""

    given: float
    found: float
    wrong: bool


def compared_along(vjp: Vjp, itemsize: int) -> Along | None:
    """Compare a VJP along random directions. `itemsize` is the size in bytes of the shortest numbers that it was
    computed with. None if the function has no derivative by differences here."""
    tolerance = _TOLERANCE_ALONG.get(itemsize, _COARSE_ALONG)
    along: list[Along] = []
    for direction in _directions(vjp.input):
        parts = vjp.gradient.astype(np.float64) * direction
        given, least = float(parts.sum()), math.sqrt(float((parts**2).sum()))
        found = _settled(_slopes(vjp, direction), least)
        if found is None:
            comparison = compared(vjp) if vjp.input.size <= _MOST else None
            if comparison is None or not comparison.checked:
                return None
            return Along(comparison.given, comparison.found, comparison.error > tolerance)
        size = max(abs(given), abs(found), least, 1e-12)
        along.append(Along(given, found, not abs(given - found) <= tolerance * size))
    return next((one for one in along if one.wrong), along[0])


def _directions(x: np.ndarray) -> Iterator[np.ndarray]:
    """Random directions, always the same for a size; each element moves in proportion to its size."""
    draw = np.random.Generator(np.random.PCG64(x.size))
    size = np.abs(x.astype(np.float64))
    finite = size[np.isfinite(size) & (size > 0)]
    usual = float(np.sqrt((finite**2).mean())) if finite.size else 1.0
    reach = np.where(np.isfinite(size), np.maximum(size, 0.1 * usual), 0.0)
    for _ in range(_DIRECTIONS):
        yield draw.standard_normal(x.shape) * reach


def _slopes(vjp: Vjp, direction: np.ndarray) -> Slopes:
    here = vjp.forward(vjp.inputs)

    def slope(h: float) -> float:
        return growth(vjp.upstream, here, vjp.at(vjp.input.astype(np.float64) + h * direction)) / h

    return lambda h: (slope(h), slope(-h))


def _settled(slopes: Slopes, least: float) -> float | None:
    """The slope on which the first two neighbours of the ladder agree; None if none agree."""
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
