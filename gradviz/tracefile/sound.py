"""Checks that the content of a chunk fits together, once, when it is opened; all readers rely on it.

These things are checked: every kind of event exists and has as many links as it needs; everything that an event names
(a place, a text, a rule, an earlier event, a pass) is there; passes and errors begin and end at events of that kind;
every state belongs to an event of its chunk, has a known form, and as many bytes of a value as its form needs.

All functions raise ValueError, with a cause in a few words."""

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from gradviz.events.event_layout import COLUMNS, LAYOUTS, ROW
from gradviz.events.handles import Form
from gradviz.events.kinds import Kind
from gradviz.sets import contained, summed
from gradviz.tracefile.database import CHANGED, ELEMENTS, NO_VALUE, STATS

_DEEPEST, _MOST_SIZES = 8, 64  # the most nested lists of JSON; the most sizes of a shape, as in NumPy
_SPARE = 1 << 20  # the most numbers of places and forms that a table may leave out
_LARGEST = 1 << 62  # bytes of a value
_WORD = re.compile(r"[A-Za-z0-9_.:<>|=()\[\] -]{0,60}")  # as dtypes and devices are written


# --- texts


def listed(text: str) -> tuple[Any, ...]:
    """A list in JSON."""
    values = nested(text)
    if not isinstance(values, list):
        raise ValueError("a list is missing")
    return tuple(values)


def nested(text: str, is_strict: bool = True) -> Any:
    """The value of a text in JSON, unless it is nested too deep. With `is_strict`, NaN and Infinity are no JSON."""
    if text.count("[") + text.count("{") > _DEEPEST and _depth(text) > _DEEPEST:
        raise ValueError("lists are nested too deep")
    return json.loads(text, parse_constant=_refuse if is_strict else None)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _depth(text: str) -> int:
    """The greatest depth of nested lists and objects, counting brackets in texts too."""
    codes = np.frombuffer(text.encode("utf-8", "replace"), np.uint8)
    steps = np.isin(codes, list(b"[{")).astype(np.int64) - np.isin(codes, list(b"]}"))
    return int(np.cumsum(steps).max(initial=0))


def form_of(shape: str, dtype: str, device: str) -> Form:
    """A form of values."""
    sizes = listed(shape)
    if len(sizes) > _MOST_SIZES or not all(type(size) is int and size >= 0 for size in sizes):
        raise ValueError("a shape is no list of sizes")
    if math.prod(sizes) * 16 > _LARGEST or max(sizes, default=0) > _LARGEST:
        raise ValueError("a shape beyond all bounds")
    if not (_WORD.fullmatch(dtype) and _WORD.fullmatch(device)):
        raise ValueError("a dtype or a device that is no word")
    return Form(sizes, dtype, device)


def pairs_of(inputs: str) -> tuple[tuple[str, str], ...]:
    """The names and formulas of a rule."""
    pairs = listed(inputs)
    if not all(isinstance(pair, list) and len(pair) == 2 and _are_texts(pair) for pair in pairs):
        raise ValueError("a rule is no list of names and formulas")
    return tuple((name, text) for name, text in pairs)


def names_of(names: str) -> tuple[str, ...]:
    """The names that the value of a place is assigned to."""
    values = listed(names)
    if not _are_texts(values):
        raise ValueError("names of a place are no texts")
    return values


def _are_texts(values: Sequence[object]) -> bool:
    return all(isinstance(value, str) for value in values)


def check_numbers(numbers: Collection[int], what: str) -> None:
    """Check that places and forms are numbered from 1 without large gaps: an array can have a place for each."""
    if numbers and not (min(numbers) > 0 and max(numbers) <= len(numbers) + _SPARE):
        raise ValueError(f"numbers of {what} beyond all bounds")


def check_callers(parents: Mapping[int, int], most: int) -> None:
    """Check that no place has more than `most` frames, with its callers; in `parents` callers come first."""
    depths = {0: 0}
    for number, parent in parents.items():
        depths[number] = depths.get(parent, 0) + 1
    if max(depths.values()) > most:
        raise ValueError("a place has more callers than are recorded")


# --- events


class Numbers:
    """Numbers that events may name, and 0. `highest` is the highest of them."""

    def __init__(self, numbers: Collection[int]) -> None:
        self._there = np.array([0, *numbers], np.int64)
        self._there.sort()
        self.highest = int(self._there[-1])
        self.are_all = bool(np.all(np.diff(self._there) <= 1))  # mostly there are no gaps

    def include(self, asked: np.ndarray) -> bool:
        """Whether all elements of an array are among these numbers."""
        if self.are_all:
            return not len(asked) or int(asked.max()) <= self.highest
        return bool(contained(asked, self._there).all())


class Known(NamedTuple):
    """The numbers that events may name: of sites, and of all else by how a field stores it (`text`, `rule`, `pass`)."""

    sites: Numbers
    stored: Mapping[str, Numbers]


def kinds_of(rows: np.ndarray) -> np.ndarray:
    """The kinds of events: the lowest byte of each row's head."""
    return np.ascontiguousarray(rows.view(np.uint8)[:: ROW.itemsize])


def check_heads(numbers: np.ndarray) -> None:
    """Check that the first of many events, given by their rows as numbers, is of a known kind: so a file of zeros, or
    of chance, is not read further."""
    if len(numbers) and not _FIRST <= int(numbers[0]) & 0xFF <= _LAST:
        raise ValueError("an event of an unknown kind")


_FIRST, _LAST = min(LAYOUTS), max(LAYOUTS)
_PLACES = {name: place for place, name in enumerate(ROW.names or ())}  # of the columns of a row
_SITE, _LINKS = _PLACES["site"], _PLACES["links"]
_MADE = [field.name for field in LAYOUTS[Kind.TENSOR].columns]
_TENSOR, _SOURCE = (_PLACES[COLUMNS[_MADE.index(name)]] for name in ("tensor", "source"))


def _stored(how: str) -> list[tuple[Kind, int]]:
    """The columns of a row that are stored in this way, each with the kind of event that it is of."""
    return [
        (kind, _PLACES[column])
        for kind, layout in LAYOUTS.items()
        for column, field in zip(COLUMNS, layout.columns, strict=False)
        if field.stored.how == how
    ]


_NAMING = {how: _stored(how) for how in ("text", "rule", "pass")}
_EARLIER = _stored("back")
# Of the kinds whose one list has elements of several links: the links before the list, and those of an element.
_WIDE = [
    (kind, layout.head, layout.lists[0].width)
    for kind, layout in LAYOUTS.items()
    if len(layout.lists) == 1 and layout.lists[0].width > 1
]
_ANY = 2**32 - 1
_DEEPEST_NESTING = 1000  # scopes and passes in one another: Python allows no more than 1,000 frames
_STEPS = np.zeros(256, np.int8)
_STEPS[[Kind.SCOPE_ENTERED, Kind.PASS_BEGAN]], _STEPS[[Kind.SCOPE_LEFT, Kind.PASS_ENDED]] = 1, -1
_BLOCK = 1 << 15  # rows that are checked together: they stay in the processor's cache
# The fewest and the most links that an event has, by kind. Lists that are shorter than they claim are found when they
# are read (`Layout.stretches`).
_LEAST_LINKS, _MOST_LINKS = np.zeros(256, np.uint32), np.full(256, _ANY, np.uint32)
for _kind, _layout in LAYOUTS.items():
    _LEAST_LINKS[_kind] = _layout.head + sum(field.width * field.stored.least for field in _layout.lists)
    if not _layout.lists:
        _MOST_LINKS[_kind] = _layout.head


def check_rows(rows: np.ndarray, kinds: np.ndarray, known: Known, first: int = 0) -> None:
    """Check that the rows of a run's events, beginning with event `first`, fit together and name only what is there."""
    numbers = rows.view(np.uint32).reshape(len(rows), len(_PLACES))
    if len(kinds) and not _FIRST <= kinds.min() <= kinds.max() <= _LAST:
        raise ValueError("an event of an unknown kind")
    most = _bounds(known)
    for start in range(0, len(numbers), _BLOCK):
        block, kinds_of_block = numbers[start : start + _BLOCK], kinds[start : start + _BLOCK]
        if np.any(block > most.take(kinds_of_block, axis=0)) or np.any(
            block[:, _LINKS] < _LEAST_LINKS.take(kinds_of_block)
        ):
            raise ValueError("an event names something that is not in the trace, or has too many links, or too few")
    if not (known.sites.are_all or known.sites.include(numbers[:, _SITE])):
        raise ValueError("an event is at a place that is not in the trace")
    for how, there in known.stored.items():
        columns = [] if there.are_all else _NAMING[how]  # where bounds cannot tell: its numbers have gaps
        if not all(there.include(numbers[kinds == kind, column]) for kind, column in columns):
            raise ValueError(f"an event names a {how} that is not in the trace")
    for kind, head, width in _WIDE:
        if np.any((numbers[kinds == kind, _LINKS] - head) % width):
            raise ValueError("an event has links to spare")
    for kind, column in _EARLIER:
        places = np.flatnonzero(kinds == kind)
        _check_earlier(numbers[places, column], places, kinds, first)
    made = numbers[kinds == Kind.TENSOR]
    if np.any(made[:, _SOURCE] >= made[:, _TENSOR]):  # so that following sources comes to an end
        raise ValueError("a tensor was made from one that is not earlier")


def _bounds(known: Known) -> np.ndarray:
    """The highest number of each column of a row, by kind."""
    most = np.full((256, len(_PLACES)), _ANY, np.uint32)
    most[:, _SITE], most[:, _LINKS] = known.sites.highest, _MOST_LINKS
    for how, there in known.stored.items():
        kinds, columns = np.array(_NAMING[how]).T
        most[kinds, columns] = there.highest
    return most


def _check_earlier(distances: np.ndarray, places: np.ndarray, kinds: np.ndarray, first: int) -> None:
    """Check that the events at these distances before these places are ops, unless they are before event `first`."""
    targets = places - distances.astype(np.int64)
    if targets.min(initial=0) < -first:
        raise ValueError("an event names one before the first")
    if np.any(kinds[targets[(distances > 0) & (targets >= 0)]] != Kind.OP):
        raise ValueError("an event names one that is no op")


def check_nesting(heads: np.ndarray) -> None:
    """Check that no thread is in more scopes and passes at once than a run can be. `heads` are the heads of events;
    nothing is open before the first."""
    steps = _STEPS[heads.astype(np.uint8)]
    at = np.flatnonzero(steps)
    if len(at) <= _DEEPEST_NESTING:
        return
    depths = summed(steps[at], heads[at] >> 16)
    if int(depths.max(initial=0)) > _DEEPEST_NESTING:
        raise ValueError(f"more than {_DEEPEST_NESTING:,} scopes and passes are open at once")


def check_marks(kinds: np.ndarray, firsts: np.ndarray, kind: Kind, events: list[int], told: list[int]) -> None:
    """Check the rows of a table about events: the events are of a kind, and their first columns (`firsts` are those of
    all events) are the numbers in the table (empty: any)."""
    places = np.array(events, np.int64)
    if len(places) and not (places.min() >= 0 and places.max() < len(kinds)):
        raise ValueError(f"a {kind.name} at an event that is not in the trace")
    if np.any(kinds[places] != kind) or (told and np.any(firsts[places] != np.array(told, np.int64))):
        raise ValueError(f"a {kind.name} at an event that is none")


# --- states

_IMPOSSIBLE, _ANY_LENGTH = -2, -1
STATISTICS = 7  # the number of statistics of a value that is not kept in full
_BRAIN_FLOAT = "bfloat16"


@lru_cache(maxsize=256)
def dtype_of(name: str) -> np.dtype | None:
    """NumPy's dtype for a name; uint16 for bfloat16. None if NumPy has no dtype of plain numbers for it."""
    try:
        dtype = np.dtype("uint16" if name == _BRAIN_FLOAT else name)
    except (TypeError, ValueError):
        return None
    return dtype if dtype.kind in "biufc" and name in (dtype.name, _BRAIN_FLOAT) else None


def elements_of(data: np.ndarray, name: str) -> np.ndarray | None:
    """Bytes as elements; those of bfloat16 as float32. None for a dtype that NumPy lacks."""
    dtype = dtype_of(name)
    if dtype is None:
        return None
    if name == _BRAIN_FLOAT:
        return (data.view(dtype).astype(np.uint32) << 16).view(np.float32)
    return data.view(dtype)


def check_states(
    tensors: np.ndarray, bases: np.ndarray, events: np.ndarray, chunks: np.ndarray, firsts: Sequence[int]
) -> None:
    """Check that the states of each chunk belong to its events, in their order. `chunks` has the first state of each
    chunk, and `firsts` the first event; both end with the number of all."""
    if np.any((bases == tensors) & (bases > 0)):
        raise ValueError("a tensor is a view of itself")
    if np.any(events[1:] < events[:-1]):
        raise ValueError("states are not in the order of their events")
    some = np.flatnonzero(np.diff(chunks))
    bounds = np.array(firsts, np.int64)
    if np.any(events[chunks[some]] < bounds[some]) or np.any(events[chunks[some + 1] - 1] >= bounds[some + 1]):
        raise ValueError("a state belongs to no event of its chunk")


def check_values(grades: np.ndarray, lengths: np.ndarray, forms: np.ndarray, known: Mapping[int, Form]) -> None:
    """Check that every state has a known form, and as many bytes of a value as that form and its grade need."""
    highest = max(known, default=0)
    if int(forms.max(initial=0)) > highest or int(grades.max(initial=0)) > CHANGED:
        raise ValueError("a state has an unknown form, or a value of an unknown kind")
    needed = np.full((highest + 1, 4), _IMPOSSIBLE, np.int64)
    needed[0, NO_VALUE] = 0
    for number, form in known.items():
        dtype = dtype_of(form.dtype)
        needed[number, NO_VALUE] = 0
        needed[number, ELEMENTS] = _ANY_LENGTH if dtype is None else math.prod(form.shape) * dtype.itemsize
        needed[number, STATS] = 8 * STATISTICS
        needed[number, CHANGED] = 8 * (STATISTICS + 1)
    due = needed.reshape(-1).take(4 * forms.astype(np.int64) + grades)
    if np.any((due != lengths) & (due != _ANY_LENGTH)):
        raise ValueError("a value does not fit its form")
