"""The packing of events, derived from the table in `kinds.py`, for single events and for many at once.

An event is a row of `ROW` and a stretch of *links*, unsigned 32-bit integers. The first four single fields of a kind
are the row's columns `a` to `d`; its other single fields begin the links. Then come the lengths of its lists, except
the last one, and then the lists' elements, part by part. Flags are bits of the row's head.
"""

import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple, Protocol, get_type_hints

import numpy as np

from gradviz.events.field_types import ELEMENTS, TEXT_PARTS, Rule, Stored
from gradviz.events.kinds import EVENTS, Event, Kind

# `head` is kind | flags << 8 | thread << 16; `links` is the number of links of the event.
ROW = np.dtype([(name, "<u4") for name in ("head", "site", "a", "b", "c", "d", "links")])
COLUMNS = ("a", "b", "c", "d")
_COMMON = {field.name for field in fields(Event)}
_MANY = 64
PACK_NUMBERS = [struct.Struct(f"<{n}I").pack for n in range(_MANY)]  # by the count of numbers


class LayoutError(ValueError):
    """Links do not fit the row that they belong to."""


class Field(NamedTuple):
    """A field of a kind: its name, how it is stored, and its text in the documentation. `width` is the number of links
    of a field that is no column: one, or two for a time; for a list, those of an element."""

    name: str
    stored: Stored
    doc: str
    width: int


class Numbers(Protocol):
    """Gives numbers to the contents of an event while it is packed."""

    def text(self, text: str) -> int:
        """The number of a text."""

    def rule(self, rule: Rule) -> int:
        """The number of a rule."""

    def in_pass(self, number: int) -> int:
        """The trace's number of a pass, by the source's."""

    def earlier(self, event: int | None) -> int:
        """The distance in events to an earlier event; 0 for None. −1 stands for the thread's last op."""


class Meanings(Protocol):
    """Gives the texts and rules that numbers stand for."""

    def text(self, number: int) -> str:
        """The text of a number."""

    def rule(self, number: int) -> Rule:
        """The rule of a number."""


@dataclass(frozen=True)
class Layout:
    """The packing of the events of one kind."""

    kind: Kind
    event: type[Event]
    columns: tuple[Field, ...]
    more: tuple[Field, ...]  # single fields that have no column
    flags: tuple[Field, ...]
    lists: tuple[Field, ...]

    @cached_property
    def fields(self) -> dict[str, Field]:
        """All fields by name, in the table's order."""
        known = {field.name: field for field in (*self.columns, *self.more, *self.flags, *self.lists)}
        return {field.name: known[field.name] for field in fields(self.event) if field.name in known}

    @cached_property
    def head(self) -> int:
        """The number of links before the elements of the lists."""
        return sum(field.width for field in self.more) + max(len(self.lists) - 1, 0)

    # --- one event

    @cached_property
    def pack(self) -> Callable[[Sequence[Any], Numbers, int, int], tuple[bytes, bytes]]:
        """Pack an event: the bytes of its row and those of its links. It takes the field values, in the table's order,
        an object that gives numbers, the bits of the head beside the kind and its flags, and the site.

        The code of the function is generated for the kind, as `dataclasses` does: a recorder calls it at every
        event."""
        names = ", ".join(self.fields)
        head = " | ".join(
            [str(int(self.kind)), "head", *(f"bool({f.name}) << {8 + bit}" for bit, f in enumerate(self.flags))]
        )
        columns = [_packer(field) for field in self.columns] + ["0"] * (len(COLUMNS) - len(self.columns))
        links = [f"*time_links({f.name})" if f.stored.how == "time" else _packer(f) for f in self.more]
        links += [f"len({field.name})" for field in self.lists[:-1]]
        links += [_packer(field) for field in self.lists]
        varies = any(link.startswith("*") for link in links)
        lines = [
            "def pack(values, numbers, head, site):",
            f"    {names}, = values",
            f"    links = ({''.join(f'{link}, ' for link in links)})" if varies else "",
            f"    return row({head}, site, {', '.join(columns)}, {'len(links)' if varies else len(links)}), "
            + ("pack_numbers(links)" if varies else f"few[{len(links)}]({', '.join(links)})"),
        ]
        scope: dict[str, Any] = {
            "row": PACK_NUMBERS[7], "few": PACK_NUMBERS, "pack_numbers": packed_numbers,
            "time_links": lambda time: struct.unpack("<2I", struct.pack("<d", time)), "chain": chain.from_iterable,
        }  # fmt: skip
        exec(compile("\n".join(lines), "<gradviz>", "exec"), scope)
        return scope["pack"]

    def unpack(self, index: int, row: Any, links: Sequence[int], meanings: Meanings) -> Event:
        """The event that a row and its links stand for. Raises LayoutError if they do not fit."""
        head = int(row["head"])
        values: dict[str, Any] = {"index": index, "thread": head >> 16, "site": int(row["site"])}
        for bit, field in enumerate(self.flags):
            values[field.name] = bool(head >> 8 + bit & 1)
        for name, field in zip(COLUMNS, self.columns, strict=False):
            values[field.name] = _value(field.stored.how, int(row[name]), index, meanings)
        at = 0
        try:
            for field in self.more:
                values[field.name] = _single(field, links[at : at + field.width], index, meanings)
                at += field.width
            for field, part in self._parts(links, at):
                values[field.name] = _list(field.stored, part, meanings)
        except LayoutError:
            raise
        except ValueError as error:  # a part is missing
            raise LayoutError(f"a {self.kind.name} event lacks links") from error
        return self.event(**values)

    def _parts(self, links: Sequence[int], at: int) -> Iterator[tuple[Field, Sequence[int]]]:
        """The links of each list."""
        lengths = links[at : at + len(self.lists) - 1] if self.lists else ()
        at = self.head
        for field, length in zip(self.lists[:-1], lengths, strict=True):
            yield field, links[at : at + length * field.width]
            at += length * field.width
        if self.lists:
            yield self.lists[-1], links[at:]

    # --- many events

    def decoded(
        self, rows: np.ndarray, links: np.ndarray, counts: np.ndarray, events: np.ndarray, meanings: Meanings
    ) -> dict[str, list[Any]]:
        """The fields of many events, which have these rows, links (one after another) and indices."""
        columns: dict[str, list[Any]] = {}
        for bit, field in enumerate(self.flags):
            columns[field.name] = (rows["head"] >> 8 + bit & 1).astype(bool).tolist()
        indices = events.tolist()
        for name, field in zip(COLUMNS, self.columns, strict=False):
            how, numbers = field.stored.how, rows[name].tolist()
            if how in ("text", "rule"):
                meant = {number: _value(how, number, 0, meanings) for number in set(numbers)}
                columns[field.name] = [meant[number] for number in numbers]
            else:
                columns[field.name] = [
                    _value(how, n, i, meanings) for n, i in zip(numbers, indices, strict=True)
                ] if how == "back" else numbers  # fmt: skip
        stretches = self.stretches(links, counts)
        at = (np.cumsum(counts) - counts).tolist()
        flat = links.tolist()
        for field in self.more:
            width = field.width
            columns[field.name] = [
                _single(field, flat[start : start + width], index, meanings)
                for start, index in zip(at, indices, strict=True)
            ]
            at = [start + width for start in at]
        for field in self.lists:
            starts, lengths = stretches[field.name]
            elements = _list(field.stored, gathered(links, starts, lengths, field.width).ravel().tolist(), meanings)
            ends = np.cumsum(lengths)
            columns[field.name] = [
                elements[start:end] for start, end in zip((ends - lengths).tolist(), ends.tolist(), strict=True)
            ]
        return columns

    def stretches(self, links: np.ndarray, counts: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """The place of each list in the links of many events of this kind, which come one after another (`counts[i]`
        of event i): for each list the starts and the numbers of elements. Raises LayoutError if they do not fit."""
        starts = np.cumsum(counts) - counts
        if np.any(counts < self.head) or len(links) != int(counts.sum()):
            raise LayoutError(f"{self.kind.name} events lack links")
        at = starts + self.head
        first_length = self.head - max(len(self.lists) - 1, 0)
        stretches = {}
        for position, field in enumerate(self.lists):
            width = field.width
            if position < len(self.lists) - 1:
                lengths = links[starts + first_length + position].astype(np.int64)
            else:
                left = starts + counts - at
                lengths = left // width
                if np.any(left % width):
                    raise LayoutError(f"{self.kind.name} events have links to spare")
            stretches[field.name] = at, lengths
            at = at + lengths * width
            if np.any(at > starts + counts):
                raise LayoutError(f"{self.kind.name} events lack links")
        if np.any(at != starts + counts):
            raise LayoutError(f"{self.kind.name} events have links to spare")
        return stretches


def packed_numbers(numbers: Sequence[int]) -> bytes:
    """Any number of numbers as bytes."""
    n = len(numbers)
    return PACK_NUMBERS[n](*numbers) if n < _MANY else array("I", numbers).tobytes()


def gathered(links: np.ndarray, at: np.ndarray, lengths: np.ndarray, width: int) -> np.ndarray:
    """The elements of many lists, a row for each element, with its parts. List i begins at `at[i]`."""
    places = element_places(at, lengths, width)
    return np.stack([links[places + part] for part in range(width)], axis=1).astype(np.int64)


def element_places(at: np.ndarray, lengths: np.ndarray, width: int) -> np.ndarray:
    """The places where the elements of many lists begin. List i begins at `at[i]`."""
    places = np.repeat(at - width * (np.cumsum(lengths) - lengths), lengths)
    return places + width * np.arange(len(places))


def _packer(field: Field) -> str:
    """The expression for a field's number, or its links."""
    how, parts, name = field.stored.how, field.stored.parts, field.name
    if how == "list":
        if len(parts) == 1:
            return f"*{name}"
        if not TEXT_PARTS.intersection(parts):
            return f"*chain({name})"
        element = ", ".join(f"numbers.text({part})" if part in TEXT_PARTS else part for part in parts)
        return f"*chain(({element}) for {', '.join(parts)} in {name})"
    of = {"text": "text", "rule": "rule", "pass": "in_pass", "back": "earlier"}.get(how)
    return f"numbers.{of}({name})" if of else name


def _single(field: Field, links: Sequence[int], index: int, meanings: Meanings) -> Any:
    if field.stored.how == "time":
        low, high = links
        return struct.unpack("<d", struct.pack("<2I", low, high))[0]
    (number,) = links
    if field.stored.how == "back" and number > index:
        raise LayoutError("an event names one before the first")
    return _value(field.stored.how, number, index, meanings)


def _value(how: str, number: int, index: int, meanings: Meanings) -> Any:
    if how == "text":
        return meanings.text(number)
    if how == "rule":
        return meanings.rule(number)
    if how == "back":
        return index - number if number else -1
    return number


def _list(stored: Stored, links: Sequence[int], meanings: Meanings) -> tuple[Any, ...]:
    if len(stored.parts) == 1:
        return tuple(links)
    make = ELEMENTS[stored.means]
    width = len(stored.parts)
    if len(links) % width:
        raise LayoutError("an element of a list is incomplete")
    rows = zip(*(links[part::width] for part in range(width)), strict=True)
    if not TEXT_PARTS.intersection(stored.parts):
        return tuple(make(*row) for row in rows)
    texts = [part in TEXT_PARTS for part in stored.parts]
    return tuple(
        make(*(meanings.text(n) if is_text else n for n, is_text in zip(row, texts, strict=True))) for row in rows
    )


def _layout_of(kind: Kind, event: type[Event]) -> Layout:
    types = get_type_hints(event, include_extras=True)
    own_fields: list[Field] = []
    for known in fields(event):
        if known.name not in _COMMON:
            (stored,) = types[known.name].__metadata__
            width = {"time": 2, "list": len(stored.parts)}.get(stored.how, 1)
            own_fields.append(Field(known.name, stored, known.metadata["doc"], width))
    of: Callable[..., tuple[Field, ...]] = lambda *hows: tuple(f for f in own_fields if f.stored.how in hows)
    single = of("number", "text", "rule", "back", "pass")
    more = (*single[len(COLUMNS) :], *of("time"))
    return Layout(kind, event, single[: len(COLUMNS)], more, of("flag"), of("list"))


LAYOUTS: dict[Kind, Layout] = {kind: _layout_of(kind, event) for kind, event in EVENTS.items()}
