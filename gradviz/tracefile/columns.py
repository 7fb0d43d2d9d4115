"""All events of one kind as columns, for questions about a million events.

`table["inputs"]` is a field by its name in the table of events: an array for a single field, `Lists` for a list.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gradviz.events.event_layout import COLUMNS, Field, Layout, LayoutError, Meanings, gathered
from gradviz.events.kinds import Event


@dataclass(frozen=True)
class Lists:
    """A list for each of many events, one after another. Event i has `counts[i]` of the `elements`, which have one
    column for each part of an element."""

    elements: np.ndarray
    counts: np.ndarray

    @cached_property
    def owners(self) -> np.ndarray:
        """The event that each element belongs to, as a place among the events."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @cached_property
    def starts(self) -> np.ndarray:
        """The place of each event's first element."""
        return np.cumsum(self.counts) - self.counts

    @cached_property
    def firsts(self) -> np.ndarray:
        """The first element of each event, by its first part; 0 if it has none."""
        return np.where(self.counts > 0, np.append(self.elements[:, 0], 0)[self.starts], 0)

    @cached_property
    def positions(self) -> np.ndarray:
        """The place of each element in its list."""
        return np.arange(len(self.elements)) - np.repeat(self.starts, self.counts)

    @property
    def values(self) -> np.ndarray:
        """The elements, if they have one part."""
        return self.elements[:, 0]

    def of(self, event: int) -> np.ndarray:
        """The elements of one event, by its place among the events."""
        start = int(self.starts[event])
        return self.elements[start : start + int(self.counts[event])]


_BLOCK = 512  # the number of events that are decoded together


class Table:
    """The events of one kind: `events` are their indices in the trace, in order."""

    def __init__(
        self,
        layout: Layout,
        events: np.ndarray,
        rows: np.ndarray,
        links: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
        meanings: Meanings,
        told: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.layout = layout
        self.events = events
        self._rows = rows
        self._links = links
        self._meanings = meanings
        self._told = told  # a block in which links that do not fit raise the right error
        self._known: dict[str, np.ndarray | Lists] = {}
        self.object: Callable[[int], Any] = _Objects(self).__getitem__
        """An event of this kind as an object, by its index in the trace."""

    def __len__(self) -> int:
        return len(self.events)

    def __getitem__(self, name: str) -> np.ndarray:
        """A single field of all events. Texts and rules are given by their numbers, an earlier event by its index (−1:
        none), a flag as a bool."""
        column = self._known.get(name)
        if column is None:
            column = self._known[name] = self._single(self.layout.fields[name])
        assert isinstance(column, np.ndarray)
        return column

    def lists(self, name: str) -> Lists:
        """A list of all events."""
        if name not in self._known:
            links, counts = self._links(self.events)
            with self._told():
                stretches = self.layout.stretches(links, counts)
            for field, (at, lengths) in zip(self.layout.lists, stretches.values(), strict=True):
                self._known[field.name] = Lists(gathered(links, at, lengths, field.width), lengths)
        lists = self._known[name]
        assert isinstance(lists, Lists)
        return lists

    def decoded(self, events: np.ndarray) -> Iterator[Event]:
        """These events as objects."""
        links, counts = self._links(events)
        rows = self._rows[events]
        with self._told():
            columns = self.layout.decoded(rows, links, counts, events, self._meanings)
        common = {"index": events, "thread": rows["head"] >> 16, "site": rows["site"]}
        columns |= {name: numbers.tolist() for name, numbers in common.items()}
        names, make = tuple(columns), self.layout.event
        for values in zip(*columns.values(), strict=True):
            yield make(**dict(zip(names, values, strict=True)))

    @property
    def sites(self) -> np.ndarray:
        """The site of each event."""
        return self._rows["site"][self.events]

    @property
    def threads(self) -> np.ndarray:
        """The thread of each event."""
        return self._rows["head"][self.events] >> 16

    def _single(self, field: Field) -> np.ndarray:
        if field in self.layout.flags:
            return (self._rows["head"][self.events] >> 8 + self.layout.flags.index(field) & 1).astype(bool)
        if field in self.layout.columns:
            column = self._rows[COLUMNS[self.layout.columns.index(field)]][self.events].astype(np.int64)
            return np.where(column > 0, self.events - column, -1) if field.stored.how == "back" else column
        links, counts = self._links(self.events)
        with self._told():
            if np.any(counts < self.layout.head):
                raise LayoutError(f"{self.layout.kind.name} events lack links")
        at = np.cumsum(counts) - counts
        for other in self.layout.more[: self.layout.more.index(field)]:
            at = at + other.width
        if field.stored.how == "time":
            return np.stack([links[at], links[at + 1]], axis=1).astype("<u4").view("<f8")[:, 0]
        return links[at].astype(np.int64)


class _Objects(dict[int, Any]):
    """The events of a table as objects. Neighbours are decoded together, which takes a fraction of the time."""

    def __init__(self, table: Table) -> None:
        super().__init__()
        self.table = table

    def __missing__(self, event: int) -> Any:
        block = int(self.table.events.searchsorted(event)) // _BLOCK * _BLOCK
        events = self.table.events[block : block + _BLOCK]
        decoded = dict(zip(events.tolist(), self.table.decoded(events), strict=True))
        self.update(decoded)
        return decoded[event]
