"""What is recorded between two commits, and numbers for what repeats."""

from __future__ import annotations

from collections import deque
from typing import Any

from gradviz.events.handles import Later, Reader


class Interned:
    """Numbers for things that repeat, counted from `first`, and the list of those not yet written."""

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
        """Give these numbers to nothing any more: what had one gets another."""
        self.known = {thing: number for thing, number in self.known.items() if number not in numbers}

    def take_new(self) -> list[tuple[int, Any]]:
        """What got a number since the last call."""
        return [self.new.popleft() for _ in range(len(self.new))]


class Batch:
    """What was recorded between two commits."""

    __slots__ = ("bytes", "first", "links", "payload", "rows", "states", "waiting")

    def __init__(self) -> None:
        self.first = 0
        self.rows = bytearray()  # layout.ROW after layout.ROW
        self.links = bytearray()  # four bytes each
        self.states = bytearray()  # schema.STATE after schema.STATE
        self.payload: list[bytes] = []
        self.bytes = 0
        # payloads that are settled when the batch is written
        self.waiting: list[tuple[int, Reader, Later]] = []
