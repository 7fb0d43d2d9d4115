"""Breakpoints and watches: they select the events at which `continue` and `until` stop."""

import re
from typing import NamedTuple

import numpy as np

from gradviz.query.predicate import Predicate, PredicateError
from gradviz.query.predicate_columns import FIELDS, FLAG, NAMES, TraceFields
from gradviz.step import CommandError
from gradviz.system.paths import file_name
from gradviz.words.escape import clean, shortened
from gradviz.words.stop import Subject, changes
from gradviz.words.words import Words

# Forms of `break FORM NAME`, and the predicate of each.
FORMS = {
    "op": 'op == "{}"',
    "grad_fn": 'grad_fn == "{}"',
    "node": 'grad_fn == "{}"',
    "tensor": 'name == "{}"',
    "parameter": 'parameter == "{}"',
    "scope": 'scope == "{}" and kind == "scope_entered"',
    "module": 'scope == "{}" and kind == "scope_entered"',
    "line": "line == {}",
    "if": "{}",
}
_PLACE = re.compile(r"(?:line\s+)?(?:(?P<file>[A-Za-z]:[\\/][^:]+|[^\s:]+):)?(?P<line>[0-9]+)\Z")


class Breakpoint(NamedTuple):
    """Stops at each event where `predicate` is true, or where `watched` changes. With `at_line`, only at the
    first event of each visit to the line."""

    text: str
    predicate: Predicate | None = None
    watched: Subject | None = None
    at_line: bool = False


def breakpoint_of(text: str, words: Words | None = None, live: bool = False) -> Breakpoint:
    """Parse the argument of `break`. A bare name is looked up in the trace of `words`. If the script is still running
    (`live`), the name may be unknown: it may still appear. Raises CommandError if the text has no meaning."""
    place = _PLACE.match(text)
    if place is not None:
        file = f' and file == "{file_name(place["file"])}"' if place["file"] else ""
        return Breakpoint(text, predicate(f"line == {place['line']}{file}"), at_line=True)
    form, _, name = text.partition(" ")
    name = name.strip()
    if form in FORMS and name and not re.match(r"[=!<>~]", name):
        if '"' in name and form != "if":
            message = "break {form} takes a name without quotes: {name}"
            raise CommandError(message, form=form, name=shortened(clean(name), 40))
        return Breakpoint(text, predicate(_filled(form, name)))
    if re.fullmatch(r"[\w.]+", text) and text not in NAMES:
        return Breakpoint(text, predicate(_guessed(text, words, live)))
    return Breakpoint(text, predicate(text))


def _filled(form: str, name: str) -> str:
    if form in ("grad_fn", "node") and not name[-1:].isdigit():
        return f'grad_fn ~ "{name}"'
    return FORMS[form].format(name)


def _guessed(word: str, words: Words | None, live: bool) -> str:
    """The predicate for a bare word, which names an op, a node or a tensor."""
    if re.search(r"Backward\d*$", word):
        return _filled("grad_fn", word)
    if words is not None:
        if word in words.ops:
            return f'op == "{word}"'
        if word in words.query.names.labels:
            return f'name == "{word}"'
    if word.endswith(".grad"):
        raise CommandError("to stop where {name} changes: watch {name}", name=clean(word))
    if live:
        return f'op == "{word}" or name == "{word}"'
    flags = [name for name, field in FIELDS.items() if field.type == FLAG]
    ways = f"op {word}, tensor {word}, parameter {word}, grad_fn {word}, line 12, {', '.join(flags)}"
    message = "{word} is not an op, a node or a tensor here; break takes: {ways}, or a predicate"
    raise CommandError(message, word=word, ways=ways)


def predicate(text: str) -> Predicate:
    """Parse a predicate. Raises CommandError if it is malformed."""
    try:
        return Predicate(text)
    except PredicateError as error:
        raise CommandError(error.text, **error.parts) from None


class Breakpoints:
    """The breakpoints of a session, numbered from 1, and the events of the trace that each selects."""

    def __init__(self) -> None:
        self.by_number: dict[int, Breakpoint] = {}
        self._events: dict[int, np.ndarray] = {}
        self._last = 0

    def add(self, new: Breakpoint) -> int:
        """Add a breakpoint and return its number. If an equal breakpoint exists already, return its number."""
        for number, known in self.by_number.items():
            if (known.text, known.watched) == (new.text, new.watched):
                return number
        self._last += 1
        self.by_number[self._last] = new
        return self._last

    def delete(self, number: int) -> None:
        """Remove a breakpoint. Raises CommandError if no breakpoint has this number."""
        if number not in self.by_number:
            known = ", ".join(map(str, self.by_number)) or "none"
            raise CommandError("there is no breakpoint {number} (there are: {known})", number=number, known=known)
        del self.by_number[number]
        self._events.pop(number, None)

    def forget_events(self) -> None:
        """Clear the cached events, because the trace has grown."""
        self._events.clear()

    def events(self, number: int, words: Words, columns: TraceFields) -> np.ndarray:
        """The events at which breakpoint `number` stops, in order."""
        if number not in self._events:
            self._events[number] = events_of(self.by_number[number], words, columns)
        return self._events[number]

    def nearest(self, k: int, forward: bool, words: Words, columns: TraceFields) -> tuple[int, list[int]] | None:
        """The nearest event after k (or before k) at which any breakpoint stops, and the numbers of these
        breakpoints."""
        nearest: dict[int, list[int]] = {}
        for number in self.by_number:
            event = neighbour(self.events(number, words, columns), k, forward)
            if event is not None:
                nearest.setdefault(event, []).append(number)
        if not nearest:
            return None
        event = min(nearest) if forward else max(nearest)
        return event, nearest[event]


def events_of(stop: Breakpoint, words: Words, columns: TraceFields) -> np.ndarray:
    """The events at which a breakpoint stops, in order."""
    if stop.watched is not None:
        return changes(words, stop.watched)
    assert stop.predicate is not None
    mask = stop.predicate.mask(columns)
    return arrivals(mask, columns) if stop.at_line else np.flatnonzero(mask)


def arrivals(mask: np.ndarray, columns: TraceFields) -> np.ndarray:
    """The events at which a line is reached, out of all events on the line (`mask`). The line is reached when
    the event before was on another line, or when the line starts again (a loop of one line). An event that
    has no site does not count as another line."""
    placed = np.flatnonzero((columns.sites > 0) | mask)
    held = mask[placed]
    first = held & ~np.concatenate([np.zeros(1, bool), held[:-1]])
    starts = placed[first]
    if not len(starts):
        return starts
    here = placed[held]
    start = starts[np.cumsum(first)[held] - 1]
    depths = columns.query.scopes.depths
    anew = depths[here] <= depths[start]
    for column in (columns.trace.kinds, columns.ops, columns.sites):
        anew &= column[here] == column[start]
    return here[anew]


def neighbour(events: np.ndarray, k: int, forward: bool) -> int | None:
    """The first of the sorted `events` after k, or the last one before k; None if there is none."""
    at = int(np.searchsorted(events, k, side="right" if forward else "left")) - (not forward)
    return int(events[at]) if 0 <= at < len(events) else None
