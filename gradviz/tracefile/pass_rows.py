"""The backward passes of a trace: each pass recorded in detail is a row in the file; the other passes are kept as runs
of passes. If a loop records every 50th pass in detail, the 49 equal passes between two of these are one row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
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


_COLUMNS = "number, first, last, thread, site, nodes, digest, recorded"


class PassTable:
    """The passes that begin in the first `count` events of the trace at `path`; `rows` gives the rows of a query. A
    pass is as in the table: its last event may lie behind these events."""

    def __init__(self, path: Path, rows: Callable[..., list[tuple[Any, ...]]], count: int) -> None:
        self._path, self._rows, self._count = path, rows, count

    @cached_property
    def skipped(self) -> Skipped:
        """The passes that are kept as runs of passes."""
        query = f"SELECT {', '.join(Run._fields)} FROM skipped WHERE first < ? ORDER BY number"
        runs = [Run(*row) for row in self._rows(query, self._count)]
        with told_of(self._path):
            return Skipped(runs, self._count)

    def _where(self, condition: str, *values: int) -> list[PassInfo]:
        query = f"SELECT {_COLUMNS} FROM passes WHERE first < ? AND {condition}"
        return [PassInfo(*row) for row in self._rows(query, self._count, *values)]

    def all(self) -> list[PassInfo]:
        """All passes, in the order of their numbers."""
        return sorted([*self._where("TRUE"), *self.skipped.passes()], key=attrgetter("number"))

    def open(self) -> list[PassInfo]:
        """The passes without a recorded end in these events, in the order of their numbers."""
        return self._where("(last IS NULL OR last >= ?) ORDER BY number", self._count)

    def numbered(self, numbers: Sequence[int]) -> list[PassInfo]:
        """The passes of these numbers."""
        in_detail = self._where(f"number IN ({', '.join('?' * len(numbers))})", *numbers)
        return [
            *in_detail,
            *self.skipped.passes(contained(self.skipped.numbers, np.array(numbers, np.int64))),
        ]

    def beginning(self, first: int, end: int) -> list[PassInfo]:
        """The passes that begin at an event from `first` to before `end`."""
        begins = self.skipped.firsts
        return [
            *self._where("first >= ? AND first < ?", first, end),
            *self.skipped.passes((begins >= first) & (begins < end)),
        ]

    def ended_before(self, event: int) -> int:
        """The last event of all passes that ended before an event; −1 for none."""
        in_detail = self._rows("SELECT max(last) AS last FROM passes WHERE last < ? AND last > 0", event)
        skipped = self.skipped.lasts
        return max(
            *(-1 if last is None else last for (last,) in in_detail),
            int(skipped[skipped < event].max(initial=-1)),
        )

    def ending_from(self, event: int) -> list[int]:
        """The numbers of passes that ended at an event or later, the lowest among them."""
        in_detail = self._where("last >= ? ORDER BY number LIMIT 1", event)
        skipped = self.skipped.numbers[self.skipped.lasts >= event]
        return [*(backward_pass.number for backward_pass in in_detail), *skipped[:1].tolist()]

    @cached_property
    def numbers(self) -> list[int]:
        """The numbers of the passes, in order."""
        source = "FROM passes WHERE first < ?"
        ((count, last),) = self._rows(f"SELECT count(*) AS count, max(number) AS last {source}", self._count)
        first = self._rows(f"SELECT number {source} ORDER BY number LIMIT 1", self._count)
        skipped = self.skipped.numbers.tolist()
        ends = [number for (number,) in first] + ([last] if count else []) + skipped[:1] + skipped[-1:]
        if ends and max(ends) - min(ends) + 1 == count + len(skipped):  # all numbers between: the usual case
            return list(range(min(ends), max(ends) + 1))
        return sorted(
            [*skipped, *(number for (number,) in self._rows(f"SELECT number {source}", self._count))]
        )

    def spans(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The number, the first and the last event of each pass, in the order of the first events; −1 for a pass
        without a last event."""
        in_detail = self._rows("SELECT number, first, last FROM passes WHERE first < ?", self._count)
        rows = [(number, first, -1 if last is None else last) for number, first, last in in_detail]
        runs = self.skipped
        columns = np.array(rows, np.int64).reshape(-1, 3).T
        both = np.concatenate([columns, [runs.numbers, runs.firsts, runs.lasts]], axis=1)
        numbers, firsts, lasts = both[:, np.argsort(both[1], kind="stable")]
        return numbers, firsts, lasts

    def first_of_each_digest(self) -> dict[str, int]:
        """The lowest number of the passes of each structure."""
        query = "SELECT min(number) AS number, digest FROM passes WHERE first < ? GROUP BY digest"
        return {digest: number for number, digest in self._rows(query, self._count) if digest}

    def ended_digests(self) -> set[str]:
        """The structures of the passes that ended."""
        rows = self._rows("SELECT DISTINCT digest FROM passes WHERE last < ?", self._count)
        return {digest for (digest,) in rows if digest}

    def without_nodes(self) -> int:
        """The number of passes that ended without a recorded node."""
        query = "SELECT count(*) AS number FROM passes WHERE last < ? AND digest = ''"
        ((count,),) = self._rows(query, self._count)
        return int(count) + len(self.skipped)
