"""Values in three grades: nothing, statistics, or all elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SMALL = 64  # tensors of up to so many elements are kept in full, unless no values are
DEFERRED = 4096  # up to so many elements statistics are computed later, many tensors at once
GRADES = ("none", "stats", "full")


@dataclass(frozen=True, slots=True)
class Stats:
    """What statistics say of a tensor. min, max, mean and rms are over the finite elements (NaN where there
    are none); nan, inf and zeros count elements."""

    min: float
    max: float
    mean: float
    rms: float
    nan: int
    inf: int
    zeros: int

    def pack(self) -> bytes:
        """Seven doubles."""
        return pack_stats([self]).tobytes()


def stats_of(array: np.ndarray) -> Stats:
    """The statistics of one array."""
    return stats_of_rows(np.asarray(array).reshape(1, -1))[0]


def stats_of_rows(rows: np.ndarray) -> list[Stats]:
    """The statistics of each row of a 2-d array, in a few reductions over all."""
    if rows.shape[1] == 0:
        return [Stats(np.nan, np.nan, np.nan, np.nan, 0, 0, 0)] * len(rows)
    if rows.dtype.kind == "c":
        rows = np.abs(rows)
    if rows.dtype.kind != "f":
        rows = rows.astype(np.float64)
    zeros = rows.shape[1] - np.count_nonzero(rows, axis=1)
    with np.errstate(all="ignore"):
        low, high = rows.min(axis=1), rows.max(axis=1)
        mean = rows.mean(axis=1, dtype=np.float64)
        squares = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
    nan = np.zeros(len(rows), np.int64)
    inf = np.zeros(len(rows), np.int64)
    rms = np.sqrt(squares / rows.shape[1])
    for i in np.flatnonzero(~np.isfinite(low) | ~np.isfinite(high) | ~np.isfinite(mean)):
        row = rows[i]
        nan[i], inf[i] = np.isnan(row).sum(), np.isinf(row).sum()
        finite = row[np.isfinite(row)].astype(np.float64)
        low[i], high[i], mean[i], rms[i] = _of_finite(finite)
    return [
        Stats(*values)
        for values in zip(
            low.tolist(), high.tolist(), mean.tolist(), rms.tolist(), nan.tolist(), inf.tolist(), zeros.tolist(),
            strict=True,
        )
    ]  # fmt: skip


def _of_finite(finite: np.ndarray) -> tuple[float, float, float, float]:
    if not len(finite):
        return np.nan, np.nan, np.nan, np.nan
    return finite.min(), finite.max(), finite.mean(), float(np.sqrt(np.mean(finite**2)))


def pack_stats(stats: Sequence[Stats]) -> np.ndarray:
    """Statistics as rows of seven doubles."""
    return np.array(
        [(s.min, s.max, s.mean, s.rms, s.nan, s.inf, s.zeros) for s in stats], np.float64
    ).reshape(-1, 7)


def unpack_stats(packed: bytes) -> Stats:
    """Statistics from seven doubles."""
    low, high, mean, rms, nan, inf, zeros = np.frombuffer(packed, np.float64).tolist()
    return Stats(low, high, mean, rms, int(nan), int(inf), int(zeros))
