"""The tables of a trace that a person would query, with a row for each thing."""

from __future__ import annotations

import sqlite3
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Self

from gradviz.events.field_types import Rule
from gradviz.events.handles import Form
from gradviz.events.listener import LeafHistogram
from gradviz.events.site import Place
from gradviz.events.values import BINS, COUNTS
from gradviz.tracefile.database import has_table, rows_of
from gradviz.tracefile.doors import Doors
from gradviz.tracefile.file import is_being_recorded
from gradviz.tracefile.pass_info import ErrorInfo
from gradviz.tracefile.printed_lines import PrintedLine
from gradviz.tracefile.schema import LATER_TABLE
from gradviz.tracefile.sites import DEEPEST, Frame, Site, joined
from gradviz.tracefile.sound import check_callers, check_numbers, form_of, names_of, pairs_of
from gradviz.tracefile.unreadable import told_of


class Tables(Doors):
    """The tables of one trace. Reading raises TraceError if the file is damaged."""

    count: int  # the number of events

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self.meta: dict[str, str] = dict(self._rows("SELECT key, value FROM meta"))

    @property
    def is_being_recorded(self) -> bool:
        """Whether its run still goes on, on this machine."""
        return self.meta.get("ended") == "" and is_being_recorded(self.path)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """The rows of a query, every value of its column's type."""
        with told_of(self.path):
            return rows_of(self._connection, query, *values)

    @cached_property
    def strings(self) -> dict[int, str]:
        """Names and other text, by number."""
        return dict(self._rows("SELECT id, text FROM strings"))

    def text(self, number: int) -> str:
        """One string by its number."""
        return self.strings.get(int(number), "")

    @cached_property
    def rules(self) -> dict[int, Rule]:
        """The derivatives of operations as text, by number."""
        rows = self._rows("SELECT id, inputs, elementwise FROM rules")
        with told_of(self.path):
            return {number: Rule(pairs_of(inputs), bool(elementwise)) for number, inputs, elementwise in rows}

    def rule(self, number: int) -> Rule:
        """One rule by its number."""
        return self.rules.get(int(number)) or Rule(())

    @cached_property
    def forms(self) -> dict[int, Form]:
        """The shapes, dtypes and devices of tensors, by number."""
        rows = self._rows("SELECT id, shape, dtype, device FROM forms")
        with told_of(self.path):
            check_numbers([number for number, *_ in rows], "forms")
            return {number: form_of(*form) for number, *form in rows}

    @cached_property
    def sites(self) -> dict[int, Site]:
        """Places in the source, by number."""
        frames = self._frames
        return {number: joined(number, frames.get) for number in frames}

    @cached_property
    def _frames(self) -> dict[int, Frame]:
        columns = "id, parent, file, line, col, end_line, end_col, function, names, library"
        rows = self._rows(f"SELECT {columns} FROM sites")
        with told_of(self.path):
            check_numbers([number for number, *_ in rows], "places")
            frames = {row[0]: _frame_of(*row) for row in rows}
            check_callers({number: frame.parent for number, frame in frames.items()}, DEEPEST + 1)
        return frames

    @lru_cache(maxsize=64)  # noqa: B019  (a trace lives as long as its program)
    def source(self, file: str) -> list[str]:
        """The lines of a source file as they were when the run was recorded; empty if they were not kept."""
        rows = self._rows("SELECT text FROM sources WHERE file = ?", file)
        return rows[0][0].splitlines() if rows else []

    @property
    def has_sources(self) -> bool:
        """Whether the text of any source file was kept."""
        return self.source_files > 0

    @cached_property
    def source_files(self) -> int:
        """The number of source files whose text was kept."""
        ((count,),) = self._rows("SELECT count(*) AS count FROM sources WHERE text <> ''")
        return int(count)

    @cached_property
    def errors(self) -> list[ErrorInfo]:
        """The exceptions that left a backward pass or ended the program."""
        query = "SELECT event, type, message, node, site FROM errors WHERE event < ? ORDER BY event"
        return [ErrorInfo(*row) for row in self._rows(query, self.count)]

    @cached_property
    def printed(self) -> list[PrintedLine]:
        """The lines that the program printed, in order; none unless the run was recorded with `--printed`."""
        query = "SELECT event, site, text, length FROM printed WHERE event <= ? ORDER BY number"
        return [PrintedLine(*row) for row in self._rows(query, self.count)]

    @cached_property
    def leaf_histograms(self) -> list[tuple[int, LeafHistogram]]:
        """The histograms of leaves that an ordinary recording has, each with its pass."""
        with told_of(self.path):
            if not has_table(self._connection, LATER_TABLE):
                return []
        rows = self._rows("SELECT number, tensor, role, low, high, counts FROM histograms")
        with told_of(self.path):
            if {len(counts) for *_, counts in rows} - {BINS * COUNTS.itemsize}:
                raise ValueError("a histogram with another number of bins")
            return [(number, LeafHistogram(*histogram)) for number, *histogram in rows]

    @cached_property
    def parameters(self) -> dict[int, str]:
        """The names that modules gave their parameters and buffers, by tensor."""
        return dict(self._rows("SELECT tensor, name FROM parameters"))

    @cached_property
    def buffers(self) -> set[int]:
        """The buffers of modules."""
        return {tensor for (tensor,) in self._rows("SELECT tensor FROM parameters WHERE role = 'buffer'")}

    @cached_property
    def variables(self) -> dict[int, str]:
        """The names that tensors got other than as parameters and buffers."""
        return dict(self._rows("SELECT tensor, name FROM variables"))


def _frame_of(
    number: int, parent: int, file: str, line: int, col: int, end_line: int, end_col: int, function: str, names: str,
    library: int,
) -> Frame:  # fmt: skip
    """A frame from its row. Raises ValueError if its names are no list of texts."""
    named = names_of(names)
    place = Place(file, line, col, end_line, end_col, function, named, False)
    return Frame(number, parent if 0 <= parent < number else 0, place, named, bool(library))
