"""The recording between two commits, and numbers for things that repeat."""

from bisect import bisect_right
from collections import deque
from typing import Any

import numpy as np

from gradviz.events.handles import Later, Reader


class Interned:
    """Numbers for things that repeat, counted from `first`, and the list of things not yet written."""

    def __init__(self, first: int = 0) -> None:
        self.known: dict[Any, int] = {}
        self.next = first
        self.new: deque[tuple[int, Any]] = deque()  # the recorder adds to it while it is being written

    def number(self, thing: Any) -> int:
        """The thing's number."""
        number = self.known.get(thing)
        if number is None:
            number = self.known[thing] = self.next
            self.next += 1
            self.new.append((number, thing))
        return number

    def forget(self, numbers: set[int]) -> None:
        """Forget these numbers: the things that had them get new numbers."""
        self.known = {thing: number for thing, number in self.known.items() if number not in numbers}

    def take_new(self) -> list[tuple[int, Any]]:
        """The numbers and things that are new since the last call."""
        return [self.new.popleft() for _ in range(len(self.new))]


class Renumbered:
    """The file's numbers of things that the source numbers in ascending order. Both mostly grow together, so it keeps
    only the places where the distance between them changes: a run has millions of passes."""

    def __init__(self) -> None:
        self.starts: list[int] = []  # the source's numbers from which on a distance holds
        self.distances: list[int] = []
        self.last = 0
        self.late: dict[int, int] = {}  # numbers that another thread added after a larger number

    def add(self, number: int, own: int) -> None:
        """Enter `own` as the file's number of the source's `number`."""
        if number < self.last:
            self.late[number] = own
            return
        self.last = number
        if not self.distances or self.distances[-1] != number - own:
            self.starts.append(number)
            self.distances.append(number - own)

    def of(self, number: int) -> int:
        """The file's number; 0 if it has none."""
        at = bisect_right(self.starts, number) - 1
        if number in self.late or at < 0 or number > self.last:
            return self.late.get(number, 0)
        in_file = number - self.distances[at]
        following = at + 1 < len(self.starts) and self.starts[at + 1] - self.distances[at + 1]
        is_anothers = (following and in_file >= following) or in_file in self.late.values()
        return 0 if is_anothers else in_file


class Batch:
    """The recording between two commits."""

    __slots__ = ("bytes", "first", "links", "pass_ends", "payload", "rows", "states", "waiting")

    def __init__(self) -> None:
        self.first = 0
        self.rows = bytearray()  # event_layout.ROW after event_layout.ROW
        self.links = bytearray()  # four bytes each
        self.states = bytearray()  # schema.STATE after schema.STATE
        self.payload: list[bytes] = []
        self.bytes = 0
        # payloads that are settled when the batch is written
        self.waiting: list[tuple[int, Reader, Later]] = []
        # where no pass is under way any more: the number of events up to there, and of passes begun
        self.pass_ends: list[tuple[int, int]] = []


class ByKind:
    """Events as rows of `event_layout.ROW`; the first of them is number `first` of the recording."""

    def __init__(self, first: int, rows: np.ndarray) -> None:
        self.first, self.rows = first, rows
        self.kinds = rows["head"].astype(np.uint8)  # the lowest byte
        self._order = self.kinds.argsort(kind="stable")
        self._ends = np.bincount(self.kinds, minlength=256).cumsum().tolist()

    def at(self, *kinds: int) -> np.ndarray:
        """The places of the events of these kinds; those of each kind are in order."""
        parts = [self._order[self._ends[kind - 1] : self._ends[kind]] for kind in kinds]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def column(self, name: str, *kinds: int) -> np.ndarray:
        """A column of the events of these kinds."""
        column: np.ndarray = self.rows[name][self.at(*kinds)]
        return column
