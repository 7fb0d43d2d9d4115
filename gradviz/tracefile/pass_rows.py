"""The backward passes in the tables of a trace: each pass recorded in detail has a row, the other passes are kept as
runs of passes (skipped.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from gradviz.sets import contained
from gradviz.tracefile.pass_info import PassInfo
from gradviz.tracefile.skipped import Run, Skipped
from gradviz.tracefile.unreadable import told_of

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
