"""The backward passes of a trace: each pass recorded in detail is a row in the file; the other passes are kept as runs
of passes. If a loop records every 50th pass in detail, the 49 equal passes between two of these are one row."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gradviz.sets import contained
from gradviz.tracefile.database import told_of


class PassInfo(NamedTuple):
    """One backward pass: its first and last event (None: it did not end), the number of nodes that ran, and a digest
    that passes of the same structure share, "" if no node was recorded."""

    number: int
    first: int
    last: int | None
    thread: int
    site: int
    nodes: int | None
    digest: str | None
    recorded: int

    @property
    def is_in_detail(self) -> bool:
        """Whether nodes of it were recorded, or may have been: it did not end."""
        return self.digest != ""


class ErrorInfo(NamedTuple):
    """An exception that left a backward pass, or ended the program (node 0)."""

    event: int
    type: str
    message: str
    node: int
    site: int


class SiteOps(NamedTuple):
    """The ops that ran at each site: distinct pairs (site << 32 | op), with `contents.SCOPE` for the op if a scope was
    entered there, and the last op of each site."""

    pairs: np.ndarray
    last: dict[int, int]


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

    @cached_property
    def columns(self) -> np.ndarray:
        """Number, first and last event of each pass."""
        counts = self._runs[:, 1]
        steps = np.arange(counts.sum()) - np.repeat(self._ends - counts, counts)
        numbers, _, firsts, lasts, strides = np.repeat(self._runs[:, :5], counts, axis=0).T
        return np.stack([numbers + steps, firsts + steps * strides, lasts + steps * strides])

    def passes(self, places: np.ndarray) -> list[PassInfo]:
        """The passes at these places."""
        threads, sites = self._runs[np.searchsorted(self._ends, places, side="right"), 5:].T.tolist()
        columns = *self.columns[:, places].tolist(), threads, sites
        return [
            PassInfo(number, first, last, thread, site, 0, "", 0)
            for number, first, last, thread, site in zip(*columns, strict=True)
        ]


_AT_ONCE = 500  # the most passes that are looked up in one query


class PassTable:
    """The backward passes that begin in the first `count` events of the trace at `path`, which has `events` events;
    `rows` gives the rows of a query. `numbers`, `firsts` and `lasts` are the number, the first and the last event of
    each pass, in the order of the numbers; −1 for a pass without a last event. A pass is as in the file: its last event
    may lie behind the first `count`."""

    def __init__(self, path: Path, rows: Callable[..., list[tuple[Any, ...]]], count: int, events: int) -> None:
        self._rows, self._count = rows, count
        runs = rows(f"SELECT {', '.join(Run._fields)} FROM skipped WHERE first < ? ORDER BY number", count)
        with told_of(path):
            self._skipped = Skipped([Run(*row) for row in runs], events)
        in_detail = rows("SELECT number, first, ifnull(last, -1) AS last FROM passes WHERE first < ?", count)
        own = np.fromiter(chain.from_iterable(in_detail), np.int64).reshape(-1, 3).T
        columns = np.concatenate([own, self._skipped.columns], axis=1)
        columns = columns[:, columns[1] < count]
        self.numbers, self.firsts, self.lasts = columns[:, np.argsort(columns[0], kind="stable")]

    @property
    def are_open(self) -> np.ndarray:
        """Whether each pass has no recorded end in these events."""
        return (self.lasts < 0) | (self.lasts >= self._count)

    @cached_property
    def all(self) -> list[PassInfo]:
        """All passes, in the order of their numbers."""
        return self.chosen(slice(None))

    def chosen(self, mask: np.ndarray | slice) -> list[PassInfo]:
        """The passes that a mask or a slice chooses, in the order of their numbers."""
        numbers = self.numbers[mask]
        passes = self._skipped.passes(np.flatnonzero(contained(self._skipped.columns[0], numbers)))
        for at in range(0, len(numbers), _AT_ONCE):
            some = numbers[at : at + _AT_ONCE].tolist()
            where = f"WHERE number IN ({', '.join('?' * len(some))})"
            rows = self._rows(f"SELECT {', '.join(PassInfo._fields)} FROM passes {where}", *some)
            passes += [PassInfo(*row) for row in rows]
        return sorted(passes, key=attrgetter("number"))

    @cached_property
    def structures(self) -> list[tuple[int, int, str]]:
        """The structures of the passes that ended in these events: the lowest number, the number of passes, and the
        digest."""
        columns = "min(number) AS number, count(*) AS passes, digest"
        return self._rows(f"SELECT {columns} FROM passes WHERE last < ? GROUP BY digest", self._count)


def before(passes: Iterable[PassInfo], end: int) -> list[PassInfo]:
    """Passes that begin before an event, as they are there: a pass that has not ended has no last event."""
    return [
        one if one.last is None or one.last < end else one._replace(last=None, nodes=None, digest=None)
        for one in passes
        if one.first < end
    ]
