"""Passes without recorded nodes, as runs of passes. If a loop records every 50th pass in detail, the 49 equal passes
between two of these are one row in the file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from gradviz.tracefile.pass_info import PassInfo

_BEYOND = 1 << 32  # the bound of the numbers of passes


class Run(NamedTuple):
    """`passes` passes in a row, beginning with `number`. The first has the events `first` to `last`, the next the
    events that are `stride` later, and so on."""

    number: int
    passes: int
    first: int
    last: int
    stride: int
    thread: int
    site: int


def runs_of(passes: Iterable[PassInfo]) -> Iterator[Run]:
    """Passes that ended, in the order of their numbers, as runs of passes."""
    run: Run | None = None
    for one in passes:
        longer = None if run is None else _with(run, one)
        if longer is None and run is not None:
            yield run
        run = longer or Run(one.number, 1, one.first, one.last or 0, 1, one.thread, one.site)
    if run is not None:
        yield run


def _with(run: Run, one: PassInfo) -> Run | None:
    """A run of passes with one more pass; None if the pass does not continue it."""
    stride = one.first - run.first if run.passes == 1 else run.stride
    grown = run.passes * stride
    if stride < 1 or (one.number, one.thread, one.site) != (run.number + run.passes, run.thread, run.site):
        return None
    if (one.first, one.last) != (run.first + grown, run.last + grown):
        return None
    return run._replace(passes=run.passes + 1, stride=stride)


class Skipped:
    """The passes of runs, in the order of their numbers, in a trace of `events` events. Raises ValueError for runs that
    are impossible."""

    def __init__(self, runs: Sequence[Run], events: int) -> None:
        table = np.array(runs, np.int64).reshape(-1, len(Run._fields))
        self._runs = table
        numbers, counts, firsts, lasts, strides = table.T[:5]
        if np.any(table[:, :2] < 1) or np.any(strides < 1) or np.any((firsts < 0) | (lasts < firsts)):
            raise ValueError("a run of passes that cannot be")
        ends = lasts + (counts - 1.0) * strides  # as floats: the whole numbers may be beyond 64 bits
        beyond = np.any(ends >= events) or counts.sum() > events or np.any(numbers + counts > _BEYOND)
        if beyond or np.any(numbers[:-1] + counts[:-1] > numbers[1:]):
            raise ValueError("runs of passes beyond all bounds")
        self._ends = np.cumsum(counts)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @cached_property
    def _whole(self) -> np.ndarray:
        """Number, first and last event of each pass."""
        counts = self._runs[:, 1]
        steps = np.arange(len(self)) - np.repeat(self._ends - counts, counts)
        numbers, _, firsts, lasts, strides = np.repeat(self._runs[:, :5], counts, axis=0).T
        return np.stack([numbers + steps, firsts + steps * strides, lasts + steps * strides])

    @property
    def numbers(self) -> np.ndarray:
        """The number of each pass."""
        return self._whole[0]

    @property
    def firsts(self) -> np.ndarray:
        """The first event of each pass."""
        return self._whole[1]

    @property
    def lasts(self) -> np.ndarray:
        """The last event of each pass."""
        return self._whole[2]

    @property
    def sites(self) -> list[int]:
        """The site of each run of passes."""
        return self._runs[:, 6].tolist()

    def passes(self, chosen: np.ndarray | None = None) -> list[PassInfo]:
        """The passes that a mask or an array of places chooses, or all."""
        places = np.arange(len(self))[slice(None) if chosen is None else chosen]
        threads, sites = self._runs[np.searchsorted(self._ends, places, side="right"), 5:].T.tolist()
        columns = *self._whole[:, places].tolist(), threads, sites
        return [
            PassInfo(number, first, last, thread, site, 0, "", 0)
            for number, first, last, thread, site in zip(*columns, strict=True)
        ]
