"""Whether what a chunk holds fits together: checked once, where a chunk is opened, and relied on by all that reads it.

What is checked: every kind of event exists and has as many links as it needs; what an event names (a place, a text, a
rule, an earlier event, a pass) is there; passes and errors begin and end at events that say so; every state belongs to
an event of its chunk, has a form that there is, and as many bytes of a value as its form needs.

All functions raise ValueError, with a cause in a few words."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gradviz.events.handles import Form
from gradviz.events.kinds import Kind
from gradviz.events.layout import COLUMNS, LAYOUTS
from gradviz.tracefile.schema import ELEMENTS, NO_VALUE, STATS

_DEEPEST, _MOST_SIZES = 8, 64  # nested lists of JSON; sizes of a shape, as in NumPy
_SPARE = 1 << 20  # numbers of places and forms that a table may leave out
_LARGEST = 1 << 62  # bytes of a value
_WORD = re.compile(r"[A-Za-z0-9_.:<>|=()\[\] -]{0,60}")  # as dtypes and devices are written


# --- texts


def listed(text: str) -> tuple[Any, ...]:
    """A list in JSON."""
    found = nested(text)
    if not isinstance(found, list):
        raise ValueError("a list is missing")
    return tuple(found)


def nested(text: str, is_strict: bool = True) -> Any:
    """What a text in JSON says, if it is not nested too deep. `is_strict`: as JSON has it, without NaN and Infinity."""
    if text.count("[") + text.count("{") > _DEEPEST and _depth(text) > _DEEPEST:
        raise ValueError("lists are nested too deep")
    return json.loads(text, parse_constant=_refuse if is_strict else None)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _depth(text: str) -> int:
    """How deep lists and objects are nested at most, as if brackets in texts were some, too."""
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
    found = listed(names)
    if not _are_texts(found):
        raise ValueError("names of a place are no texts")
    return found


def _are_texts(values: Sequence[object]) -> bool:
    return all(isinstance(value, str) for value in values)


def check_numbers(numbers: Collection[int], what: str) -> None:
    """Places and forms are numbered from 1 without large gaps, so that an array can have a place for each."""
    if numbers and not (min(numbers) > 0 and max(numbers) <= len(numbers) + _SPARE):
        raise ValueError(f"numbers of {what} beyond all bounds")


# --- events


class Known(NamedTuple):
    """What events may name: functions that say of many numbers which there are."""

    sites: Callable[[np.ndarray], np.ndarray]
    texts: Callable[[np.ndarray], np.ndarray]
    rules: Callable[[np.ndarray], np.ndarray]
    passes: Callable[[np.ndarray], np.ndarray]


def known(numbers: Collection[int]) -> Callable[[np.ndarray], np.ndarray]:
    """Says of many numbers which are among these, or 0."""
    highest = max(numbers, default=0)
    if highest > 2 * len(numbers) + _SPARE:
        ordered = np.unique(np.array([0, *numbers], np.int64))
        return lambda asked: ordered[np.searchsorted(ordered[:-1], asked)] == asked
    table = np.zeros(highest + 2, bool)
    table[[0, *numbers]] = True
    return lambda asked: table[np.clip(asked, -1, highest + 1)]  # −1 is the last, which is never one


def _least_links() -> np.ndarray:
    least = np.full(256, -1, np.int64)
    for kind, layout in LAYOUTS.items():
        least[kind] = layout.head
    return least


def _widths() -> np.ndarray:
    """By how many links the events of a kind may have more than the least: 0 for any number."""
    widths = np.zeros(256, np.int64)
    for kind, layout in LAYOUTS.items():
        if len(layout.lists) == 1:
            widths[kind] = layout.lists[0].width
        elif not layout.lists:
            widths[kind] = np.iinfo(np.int64).max
    return widths


_LEAST, _WIDTHS = _least_links(), _widths()
# The columns that say which text, rule, pass or earlier event a kind names.
_NAMING: dict[str, list[tuple[int, str]]] = {"text": [], "rule": [], "pass": [], "back": []}
for _kind, _layout in LAYOUTS.items():
    for _column, _field in zip(COLUMNS, _layout.columns, strict=False):
        if _field.stored.how in _NAMING:
            _NAMING[_field.stored.how].append((int(_kind), _column))


def check_rows(rows: np.ndarray, kinds: np.ndarray, first: int, known: Known) -> None:
    """The rows of events from number `first` on fit together, and what they name is there."""
    least = _LEAST[kinds]
    if least.min(initial=0) < 0:
        raise ValueError("an event of a kind that there is not")
    more = rows["links"] - least
    widths = _WIDTHS[kinds]
    if more.min(initial=0) < 0 or np.any(more[widths > 0] % widths[widths > 0]):
        raise ValueError("an event lacks links, or has some to spare")
    if not known.sites(rows["site"]).all():
        raise ValueError("an event is at a place that there is not")
    by_kind = {int(kind): np.flatnonzero(kinds == kind) for kind in np.unique(kinds)}
    for how, named in _NAMING.items():
        for kind, column in named:
            places = by_kind.get(kind)
            if places is not None:
                _check_named(how, rows[column][places], first + places, known)


def _check_named(how: str, numbers: np.ndarray, events: np.ndarray, known: Known) -> None:
    if how == "back":
        if np.any(numbers > events):
            raise ValueError("an event names one before the first")
        return
    there = {"text": known.texts, "rule": known.rules, "pass": known.passes}[how]
    if not there(numbers).all():
        raise ValueError(f"an event names a {how} that there is not")


ANY = -1  # number


def check_marks(
    kinds: np.ndarray, numbers: np.ndarray, marks: Mapping[Kind, Sequence[tuple[int, int]]]
) -> None:
    """What tables say of events is so. `marks` are for each kind its events, each with the number that its first column
    has (or ANY); `numbers` are the first columns of all events."""
    for kind, pairs in marks.items():
        events, told = np.array(pairs, np.int64).reshape(-1, 2).T
        if len(events) and not (events.min() >= 0 and events.max() < len(kinds)):
            raise ValueError(f"a {kind.name} at an event that there is not")
        if np.any(kinds[events] != kind) or np.any((told != ANY) & (numbers[events] != told)):
            raise ValueError(f"a {kind.name} at an event that is none")


# --- states

STATISTICS = 7  # of a value that is not kept in full
_BRAIN_FLOAT = "bfloat16"


def dtype_of(name: str) -> np.dtype | None:
    """NumPy's dtype for a name; that of the bytes for bfloat16. None where NumPy has none for plain numbers."""
    try:
        found = np.dtype("uint16" if name == _BRAIN_FLOAT else name)
    except (TypeError, ValueError):
        return None
    return found if found.kind in "biufc" and name in (found.name, _BRAIN_FLOAT) else None


def elements_of(data: np.ndarray, name: str) -> np.ndarray | None:
    """Bytes as elements; those of bfloat16 as float32. None for a dtype that NumPy has not."""
    dtype = dtype_of(name)
    if dtype is None:
        return None
    if name == _BRAIN_FLOAT:
        return (data.view(dtype).astype(np.uint32) << 16).view(np.float32)
    return data.view(dtype)


def check_states(states: np.ndarray, first: int, count: int) -> None:
    """The states of a chunk belong to its events, in their order."""
    if np.any((states["base"] == states["tensor"]) & (states["base"] > 0)):
        raise ValueError("a tensor is a view of itself")
    events = states["event"]
    if len(events) and not (
        first <= events[0] and events[-1] < first + count and np.all(events[1:] >= events[:-1])
    ):
        raise ValueError("a state belongs to no event of its chunk")


def check_values(
    grades: np.ndarray, lengths: np.ndarray, forms: np.ndarray, known: Mapping[int, Form]
) -> None:
    """Every state has a form that there is, and as many bytes of a value as that form and its grade need."""
    sizes = np.full(max(known, default=0) + 2, -2, np.int64)  # −2: there is no such form; −1: any length
    for number, form in known.items():
        dtype = dtype_of(form.dtype)
        sizes[number] = -1 if dtype is None else math.prod(form.shape) * dtype.itemsize
    sizes[0] = 0
    needed = sizes[np.minimum(forms, len(sizes) - 1)]
    if needed.min(initial=0) < -1:
        raise ValueError("a state has a form that there is not")
    needed[grades == STATS] = 8 * STATISTICS
    needed[grades == NO_VALUE] = 0
    if np.any(grades > max(ELEMENTS, STATS)) or np.any((needed >= 0) & (lengths != needed)):
        raise ValueError("a value does not fit its form")
    if np.any(lengths[forms == 0]):
        raise ValueError("a value without a form")
