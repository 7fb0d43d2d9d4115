"""Difference: how two runs differ, as data."""

from __future__ import annotations

from dataclasses import dataclass

from gradviz.tracefile import Site

ADDED, GONE, CHANGED = "added", "gone", "changed"


@dataclass(frozen=True, slots=True)
class Spot:
    """An item of one run: its event, its line, what it is, and its value in words."""

    event: int
    site: Site | None
    what: str
    value: str


@dataclass(frozen=True, slots=True)
class Parting:
    """Where the values of two runs first differ: an item of each, None where one lacks it. `apart` is the largest
    difference between elements, relative to the largest element; NaN if they cannot be subtracted. `line` is the
    changed line of source that it comes of, as a place in `lines` of the Difference; None if there is none."""

    one: Spot | None
    other: Spot | None
    apart: float
    number: int
    line: int | None


@dataclass(frozen=True, slots=True)
class Change:
    """Items that only one run has, or that differ, from one pair of lines, `count` times."""

    kind: str
    one: Spot | None
    other: Spot | None
    detail: str
    count: int


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of source that differ: from line `one` and from line `other` on (1 is the first), and their texts."""

    file: str
    other_file: str
    one: int
    other: int
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Norm:
    """The norm of a parameter's gradient in both runs; None where there is none."""

    name: str
    one: float | None
    other: float | None


@dataclass(frozen=True, slots=True)
class Difference:
    """How two runs differ. `compared` counts the pairs of items whose values were compared, `unknown` those whose
    values were not recorded; `passes` are the passes of each that were compared."""

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
