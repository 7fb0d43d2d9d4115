"""Difference: all that differs between two runs, as data."""

from __future__ import annotations

from dataclasses import dataclass

from gradviz.tracefile import Site

ADDED, GONE, CHANGED = "added", "gone", "changed"


@dataclass(frozen=True, slots=True)
class Spot:
    """An item of one run: its event, its line, its description (`what`), and its value in words."""

    event: int
    site: Site | None
    what: str
    value: str


@dataclass(frozen=True, slots=True)
class Parting:
    """The first items whose values differ: an item of each run, None if a run lacks it. `apart` is the largest
    difference between elements, relative to the largest element; NaN if they cannot be subtracted. `number` is the
    pass; 0 after the last. `line` is the changed line of source behind it, as a place in `lines` of the Difference, or
    None."""

    one: Spot | None
    other: Spot | None
    apart: float
    number: int
    line: int | None


@dataclass(frozen=True, slots=True)
class Change:
    """Items from one pair of lines that only one run has, or that differ; they occur `count` times."""

    kind: str
    one: Spot | None
    other: Spot | None
    detail: str
    count: int


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of source that differ: the first line in each run (`one`, `other`, from 1), and the texts of the lines."""

    file: str
    other_file: str
    one: int
    other: int
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Norm:
    """The norms of a parameter's gradient in both runs; None if there is no gradient."""

    name: str
    one: float | None
    other: float | None


@dataclass(frozen=True, slots=True)
class Difference:
    """All that differs between two runs. `compared` counts the pairs of items whose values were compared, `unknown` the
    pairs whose values were not recorded. `passes` are the numbers of the compared passes, or how many passes each run
    has if whole runs are compared."""

    names: tuple[str, str]
    forward: Parting | None
    backward: Parting | None
    changes: tuple[Change, ...]
    lines: tuple[Lines, ...]
    norms: tuple[Norm, ...]
    norms_in: tuple[int, int]
    passes: tuple[int, int]
    compared: int
    unknown: int

    @property
    def same(self) -> bool:
        """Whether no difference was found."""
        return self.forward is None and self.backward is None and not self.changes
