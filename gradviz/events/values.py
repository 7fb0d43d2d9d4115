"""Values in three grades: nothing, statistics, or all elements."""

import math
import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

SMALL = 64  # the most elements of a tensor that is kept in full at every grade with values
LARGEST = 1 << 25  # ...and the most at `full`: SQLite takes no more than a gigabyte at once
STATISTICS = "stats"  # the grade at which of a large tensor statistics are kept
INPUTS = "inputs"  # the grade of a run whose passes can run again
FULL = "full"  # the grade of a run whose values are all kept
GRADIENT = "gradient"  # how the gradient of a leaf is kept at that grade
GRADES = ("none", STATISTICS, INPUTS, FULL)
WITH_ELEMENTS = (INPUTS, FULL)  # the grades that keep elements of large tensors
BINS = 32  # of a histogram
LAST = "last "  # begins the role of a histogram that was counted when the recording ended, or its module was freed
COUNTS = np.dtype("<u2")  # of the numbers of elements in these
# Makers of tensors whose elements are whatever was in the memory: they have no value before something is written.
UNFILLED = ("empty", "empty_like", "new_empty", "empty_strided", "empty_permuted")
# The origin of a tensor that stands for another one inside a transform of torch.func.
TRANSFORM = "torch.func"
VMAP = "vmap"  # of a tensor that stands for each part of another one inside `vmap`, or for all parts behind it
_MOST = 2**53  # the most elements that a double counts exactly
_SEVEN = struct.Struct("=7d").pack


class Stat(IntEnum):
    """The columns of statistics, in the order of the fields of `Stats`."""

    MIN = 0
    MAX = 1
    MEAN = 2
    RMS = 3
    NAN = 4
    INF = 5
    ZEROS = 6


class Stats(NamedTuple):
    """The statistics of a tensor. min, max, mean and rms are over the finite elements (NaN if there are none); nan, inf
    and zeros count elements."""

    min: float
    max: float
    mean: float
    rms: float
    nan: int
    inf: int
    zeros: int


# The statistics that are 0 for a tensor of zeros, and for no other.
OF_ZEROS = (Stat.MIN, Stat.MAX, Stat.NAN, Stat.INF)
NONFINITE = (Stat.NAN, Stat.INF)  # the counts of NaN and of infinities


@np.errstate(all="ignore")  # numbers may be as large as they get, and a program may have its warnings raised
def counts_between(elements: np.ndarray, low: float, high: float) -> np.ndarray | None:
    """The numbers of these finite elements in each of BINS equal bins from `low` to `high`, of shape (BINS,). None if
    there are no such bins, as between neighbouring numbers, or between ends that are too far apart."""
    if not (np.diff(np.linspace(low, high, BINS + 1)) > 0).all():
        return None
    counts: np.ndarray = np.histogram(elements, BINS, (low, high))[0]
    return counts


@np.errstate(all="ignore")
def counts_of_rows(rows: np.ndarray) -> list[tuple[float, float, bytes] | None]:
    """The histogram of the finite elements of each row of a 2-d array: its least and its largest element, and the
    numbers of elements in BINS equal bins between them, as bytes of type COUNTS. None where there are no such bins.

    A row has at most 65,535 elements."""
    lows, highs = rows.min(axis=1), rows.max(axis=1)
    if not np.isfinite(lows + highs).all():
        finite = np.isfinite(rows)
        lows = np.where(finite, rows, math.inf).min(axis=1)
        highs = np.where(finite, rows, -math.inf).max(axis=1)
    widths: np.ndarray = np.diff(np.linspace(lows, highs, BINS + 1, axis=1), axis=1)
    has_bins = widths.min(axis=1) > 0  # not so if one is NaN
    scaled = rows - lows[:, None]
    scaled *= (BINS / (highs - lows))[:, None]
    inside = scaled.astype(np.intp)
    np.minimum(inside, BINS - 1, out=inside)  # the largest element is in the last bin
    inside += BINS * np.arange(len(rows))[:, None]
    is_counted = np.isfinite(rows) & has_bins[:, None]
    if not is_counted.all():
        inside = inside[is_counted]
    counts = np.bincount(inside.ravel(), minlength=BINS * len(rows)).reshape(len(rows), BINS).astype(COUNTS)
    return [
        (low, high, of_row.tobytes()) if is_known else None
        for low, high, of_row, is_known in zip(lows.tolist(), highs.tolist(), counts, has_bins.tolist(), strict=True)
    ]


def stats_of(array: np.ndarray) -> Stats:
    """The statistics of one array, of any shape and of a dtype that NumPy has."""
    return Stats(*_of_one(array))


def packed_stats_of(array: np.ndarray) -> bytes:
    """The statistics of one array as the bytes of seven doubles, in the order of the fields of Stats."""
    return _SEVEN(*_of_one(array))


def _of_one(array: np.ndarray) -> tuple[Any, ...]:
    if 0 in array.strides and array.size > 1:
        return _of_repeated(array)
    is_flat = type(array) is np.ndarray and array.ndim == 1
    flat = array if is_flat else np.asarray(array).ravel(order="K")  # a transposed array is not copied
    if flat.dtype.char not in "fd" or not flat.size:
        return _of_row(flat)
    statistics = _of_few(flat) if flat.size <= _FEW else _of_large(flat)
    if statistics is not None:
        return statistics
    finite = flat[np.isfinite(flat)]
    if finite.size in (0, flat.size):
        return _of_row(flat)
    nan = int(np.count_nonzero(flat != flat))
    *of_finite, _, _, zeros = _of_one(finite)
    return *of_finite, nan, flat.size - finite.size - nan, zeros


def _of_repeated(array: np.ndarray) -> tuple[Any, ...]:
    """The statistics of an array that shows elements several times, such as an expanded tensor. It may have more
    elements than there is memory for."""
    once = np.asarray(array[tuple([slice(None) if step else 0 for step in array.strides])])
    *of_elements, nan, inf, zeros = _of_one(once)
    times = array.size // once.size
    return *of_elements, times * nan, times * inf, times * zeros


def _of_row(flat: np.ndarray) -> tuple[Any, ...]:
    return tuple(column.item() for column in _reduced(flat.reshape(1, -1)))


_SMALLEST, _LARGEST = 1e-150, 1e150  # the squares of these neither vanish nor overflow
_FEW = 4096  # the most elements that are summed in double precision
_ONE_EACH = np.ones(_FEW)


def _of_few(flat: np.ndarray) -> tuple[Any, ...] | None:
    """The statistics of a small flat array, by the calls of NumPy that begin quickest. None if an element is not
    finite, or if the squares would vanish or overflow."""
    low, high = float(flat.item(flat.argmin())), float(flat.item(flat.argmax()))
    if not (low > -_LARGEST and high < _LARGEST and (max(-low, high) > _SMALLEST or low == high == 0)):
        return None
    wide = flat.astype(np.float64, copy=False)
    mean, rms = (float(wide.dot(_ONE_EACH[: flat.size])) / flat.size, math.sqrt(float(wide.dot(wide)) / flat.size))
    return low, high, mean, rms, 0, 0, int(np.count_nonzero(flat == 0)) if low <= 0 <= high else 0


# Bytes that are reduced together: from the second reduction on they come from a processor's cache.
_BLOCK = 1 << 20
_ROW = 1024  # the number of elements summed in the array's own precision; the sums are added as doubles
_ONES = {char: np.ones(_ROW, char) for char in "fd"}
_ZERO = {char: np.zeros((), char) for char in "fd"}  # a Python number would have to be made an array first
_SQUARABLE = 1e-15, 1e15  # the squares of magnitudes between these neither vanish nor overflow in float32
# If a mean is below the first share of the rms, digits are lost in float32. Below the second share it is what rounding
# left of zero, as in normalized layers, and its digits are of no use.
_CANCELLED = 1e-4
_ROUNDED = 2**-24


def _of_large(flat: np.ndarray) -> tuple[Any, ...] | None:
    """The statistics of a large flat array, by a few quick reductions in its own precision. None if these are not
    exact enough, or if an element is not finite."""
    step = _BLOCK // flat.itemsize
    least, most = _SQUARABLE
    low, high, squares, total, zeros = math.inf, -math.inf, 0.0, 0.0, 0
    for start in range(0, flat.size, step):
        block = flat[start : start + step]
        lowest, highest = float(np.minimum.reduce(block)), float(np.maximum.reduce(block))
        if not (lowest > -most and highest < most):
            return None
        low, high = min(low, lowest), max(high, highest)
        squares += float(np.dot(block, block))
        total += _sum_of(block)
        zeros += _zeros_in(block) if lowest <= 0 <= highest else 0
    if max(-low, high) <= least:
        return None
    mean, rms = total / flat.size, math.sqrt(squares / flat.size)
    if flat.dtype.char == "f" and _ROUNDED * rms < abs(mean) < _CANCELLED * rms:
        mean = float(flat.mean(dtype=np.float64))
    return low, high, mean, rms, 0, 0, zeros


def _sum_of(block: np.ndarray) -> float:
    ones = _ONES[block.dtype.char]
    rest = block.size % _ROW
    total = 0.0
    if rest:
        total, block = float(np.dot(block[-rest:], ones[:rest])), block[:-rest]
    return total + float(np.add.reduce(np.dot(block.reshape(-1, _ROW), ones), dtype=np.float64))


def _zeros_in(flat: np.ndarray) -> int:
    """The number of zeros. Finding the first takes half as long as counting all, and often there is none."""
    are_zero = np.equal(flat, _ZERO[flat.dtype.char])
    return int(np.count_nonzero(are_zero)) if are_zero.item(are_zero.argmax()) else 0


def packed_stats_of_each(values: Sequence[tuple[bytes, np.dtype]]) -> list[bytes]:
    """`packed_stats_of` for arrays given as bytes and dtypes: all arrays of a kind in a few reductions."""
    kinds: dict[tuple[int, np.dtype], list[int]] = {}
    for position, (data, dtype) in enumerate(values):
        kinds.setdefault((len(data), dtype), []).append(position)
    packed = [b""] * len(values)
    for (_, dtype), positions in kinds.items():
        rows = np.frombuffer(b"".join([values[at][0] for at in positions]), dtype).reshape(len(positions), -1)
        for position, row in zip(positions, stats_table(rows), strict=True):
            packed[position] = row.tobytes()
    return packed


def stats_table(rows: np.ndarray) -> np.ndarray:
    """The statistics of each row of a 2-d array as a row of seven doubles, in the order of the fields of Stats."""
    return np.stack(_reduced(rows), axis=1).astype(np.float64, copy=False)


_SHORT = 64  # the most elements of rows that are reduced side by side


def _reduced(rows: np.ndarray) -> tuple[np.ndarray, ...]:
    """The seven statistics of each row, one array each."""
    if rows.shape[1] == 0:
        none, zero = np.full(len(rows), np.nan), np.zeros(len(rows), np.int64)
        return none, none, none, none, zero, zero, zero
    if rows.dtype.kind == "c":
        with np.errstate(all="ignore"):
            rows = np.abs(rows)
    if rows.dtype.kind != "f":
        rows = rows.astype(np.float64)
    zeros = rows.shape[1] - np.count_nonzero(rows, axis=1)
    with np.errstate(all="ignore"):
        if len(rows) > rows.shape[1] and rows.shape[1] <= _SHORT:
            columns = np.ascontiguousarray(rows.T)
            low, high, mean = columns.min(axis=0), columns.max(axis=0), columns.mean(axis=0, dtype=np.float64)
        else:
            low, high, mean = rows.min(axis=1), rows.max(axis=1), rows.mean(axis=1, dtype=np.float64)
        squares = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
        rms = np.sqrt(squares / rows.shape[1])
        odd = np.flatnonzero(~(squares < _LARGEST**2) | ((squares < _SMALLEST**2) & (zeros < rows.shape[1])))
        if len(odd):
            rms[odd] = _scaled_rms(rows[odd], rows.shape[1])
    nan, inf = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    bad = np.flatnonzero(~np.isfinite(low) | ~np.isfinite(high) | ~np.isfinite(mean))
    if len(bad):
        nan[bad], inf[bad] = np.isnan(rows[bad]).sum(axis=1), np.isinf(rows[bad]).sum(axis=1)
        low[bad], high[bad], mean[bad], rms[bad] = _of_finite(rows[bad])
    return low, high, mean, rms, nan, inf, zeros


def _scaled_rms(rows: np.ndarray, counts: np.ndarray | int) -> np.ndarray:
    """The rms of each row over `counts` elements, relative to its largest, so that no square overflows or vanishes."""
    largest = np.abs(rows).max(axis=1, keepdims=True).astype(np.float64)
    scale = np.where(largest > 0, largest, 1.0)
    return scale[:, 0] * np.sqrt(((rows / scale) ** 2).sum(axis=1) / counts)


def _of_finite(rows: np.ndarray) -> tuple[np.ndarray, ...]:
    """min, max, mean and rms of the finite elements of each row."""
    finite = np.isfinite(rows)
    counts = finite.sum(axis=1)
    rows = rows.astype(np.float64)
    with np.errstate(all="ignore"):
        elements = np.where(finite, rows, 0.0)
        low = np.where(finite, rows, np.inf).min(axis=1)
        high = np.where(finite, rows, -np.inf).max(axis=1)
        mean, rms = elements.sum(axis=1) / counts, _scaled_rms(elements, counts)
    return np.where(counts, low, np.nan), np.where(counts, high, np.nan), mean, rms


def unpack_stats(packed: bytes) -> Stats:
    """Statistics from seven doubles. Raises ValueError if no value can have them."""
    low, high, mean, rms, nan, inf, zeros = np.frombuffer(packed, np.float64).tolist()
    if rms < 0 or not all(0 <= count < _MOST for count in (nan, inf, zeros)):
        raise ValueError("statistics that no value has")
    return Stats(low, high, mean, rms, int(nan), int(inf), int(zeros))
