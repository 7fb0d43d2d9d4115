"""All events of one kind as columns: for questions about a million events.

`table["inputs"]` is a field by its name in the table of events, an array for a single field, `Lists` for a list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gradviz.events.kinds import Event
from gradviz.events.layout import COLUMNS, Field, Layout, LayoutError, Meanings


@dataclass(frozen=True)
class Lists:
    """A list for each of many events, one after another: `counts[i]` elements of event i among `elements`, which has
    one column for each part of an element."""

    elements: np.ndarray
    counts: np.ndarray

    @cached_property
    def owners(self) -> np.ndarray:
        """For each element which event it belongs to, as a place among the events."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @cached_property
    def starts(self) -> np.ndarray:
        """Where each event's elements begin."""
        return np.cumsum(self.counts) - self.counts

    @cached_property
    def positions(self) -> np.ndarray:
        """For each element its place in its list."""
        return np.arange(len(self.elements)) - np.repeat(self.starts, self.counts)

    @property
    def values(self) -> np.ndarray:
        """The elements, where they have one part."""
        return self.elements[:, 0]

    def of(self, event: int) -> np.ndarray:
        """The elements of one event, by its place among the events."""
        start = int(self.starts[event])
        return self.elements[start : start + int(self.counts[event])]


_BLOCK = 512  # events that are decoded together


class Table:
    """The events of one kind: `events` are their indices in the trace, in order."""

    def __init__(
        self,
        layout: Layout,
        events: np.ndarray,
        rows: np.ndarray,
        links: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
        meanings: Meanings,
    ) -> None:
        self.layout = layout
        self.events = events
        self._rows = rows
        self._links = links
        self._meanings = meanings
        self._known: dict[str, np.ndarray | Lists] = {}
        self._objects: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self.events)

    def __getitem__(self, name: str) -> np.ndarray:
        """A single field of all events; texts and rules by their numbers, an earlier event by its index (−1: none),
        a flag as a bool."""
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = self._single(self.layout.fields[name])
        assert isinstance(found, np.ndarray)
        return found

    def lists(self, name: str) -> Lists:
        """A list of all events. Raises LayoutError where links do not fit."""
        if name not in self._known:
            links, counts = self._links(self.events)
            for field, (at, lengths) in zip(
                self.layout.lists, self.layout.stretches(links, counts).values(), strict=True
            ):
                self._known[field.name] = _gathered(links, at, lengths, field.width)
        found = self._known[name]
        assert isinstance(found, Lists)
        return found

    def object(self, event: int) -> Any:
        """An event of this kind as an object, by its index in the trace. Its neighbours are decoded with it, which
        takes a fraction of the time of one by one."""
        found = self._objects.get(event)
        if found is None:
            block = int(np.searchsorted(self.events, event)) // _BLOCK * _BLOCK
            events = self.events[block : block + _BLOCK]
            self._objects.update(zip(events.tolist(), self._decoded(events), strict=True))
            found = self._objects[event]
        return found

    def _decoded(self, events: np.ndarray) -> Iterator[Event]:
        links, counts = self._links(events)
        rows = self._rows[events]
        columns = self.layout.decoded(rows, links, counts, events, self._meanings)
        heads = rows["head"] >> 16
        names = ("index", "thread", "site", *columns)
        make = self.layout.event
        for values in zip(
            events.tolist(), heads.tolist(), rows["site"].tolist(), *columns.values(), strict=True
        ):
            yield make(**dict(zip(names, values, strict=True)))

    @property
    def sites(self) -> np.ndarray:
        """The site of each."""
        return self._rows["site"][self.events]

    @property
    def threads(self) -> np.ndarray:
        """The thread of each."""
        return self._rows["head"][self.events] >> 16

    def _single(self, field: Field) -> np.ndarray:
        if field in self.layout.flags:
            return (self._rows["head"][self.events] >> 8 + self.layout.flags.index(field) & 1).astype(bool)
        if field in self.layout.columns:
            column = self._rows[COLUMNS[self.layout.columns.index(field)]][self.events].astype(np.int64)
            return np.where(column > 0, self.events - column, -1) if field.stored.how == "back" else column
        links, counts = self._links(self.events)
        if np.any(counts < self.layout.head):
            raise LayoutError(f"{self.layout.kind.name} events lack links")
        at = np.cumsum(counts) - counts
        for other in self.layout.more[: self.layout.more.index(field)]:
            at = at + other.width
        if field.stored.how == "time":
            return np.stack([links[at], links[at + 1]], axis=1).astype("<u4").view("<f8")[:, 0]
        return links[at].astype(np.int64)


def _gathered(links: np.ndarray, at: np.ndarray, lengths: np.ndarray, width: int) -> Lists:
    """The elements of many lists, of which list i lies from `at[i]` on."""
    total = int(lengths.sum())
    places = np.repeat(at - width * (np.cumsum(lengths) - lengths), lengths) + width * np.arange(total)
    elements = np.stack([links[places + part] for part in range(width)], axis=1).astype(np.int64)
    return Lists(elements, lengths)
