"""The timeline: the position of a stop in the run, and signs for breakpoints, errors and the like."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from rich.cells import cell_len
from rich.text import Text

from gradviz.sets import distinct
from gradviz.step.state import Session
from gradviz.words.stop import Stop, phase

_COLOURS = ("blue", "magenta")  # forward, backward


class Marker(NamedTuple):
    """A kind of sign on the timeline, and the events that have it."""

    sign: str
    words: str
    style: str
    begins: bool  # if there are too many signs to separate, whether to show the beginning of each group
    events: Callable[[Session], np.ndarray]


def _breakpoints(session: Session) -> np.ndarray:
    known, words, columns = session.breakpoints, session.words, session.columns
    events = [known.events(number, words, columns) for number in known.by_number]
    return distinct(np.concatenate(events)) if events else np.zeros(0, np.int64)


# If a cell has several signs, the first of this list is shown.
MARKERS = (
    Marker("✗", "error", "bold red", True, lambda session: session.errors),
    Marker("!", "NaN or inf", "bold red", True, lambda session: session.odd),
    Marker("◆", "breakpoint", "bold yellow", True, _breakpoints),
    Marker("*", "bookmark", "bold cyan", True, lambda session: np.sort(list(session.settings.marks.values()))),
    Marker("~", "write in place", "yellow", False, lambda session: session.writes),
)


def _shown(session: Session, marker: Marker) -> np.ndarray:
    """The events of a kind of sign, up to the furthest event that a lesson shows: later events may answer its
    question."""
    events = marker.events(session)
    return events if session.exercise is None else events[events <= session.exercise.held(session.last)]


def position(stop: Stop) -> str:
    """`event 12 of 42 · backward pass 1 of 2`. Events are counted from 1 here."""
    return f"{_place(stop)} · {phase(stop)}"


def _place(stop: Stop) -> str:
    return stop.say("event {event} of {count}", event=stop.k + 1, count=stop.trace.count)


def timeline(session: Session, width: int) -> Text:
    """The position with a bar of the whole run; backward passes have their own colour."""
    stop = session.stop
    count = stop.trace.count
    before, after = f" {_place(stop)} ", f" {phase(stop)}"
    line = Text(before, no_wrap=True)
    room = max(width - cell_len(before) - cell_len(after) - 1, 0)
    line.append_text(_bar(session, 0, count, room))
    return line.append(after, style=f"bold {_COLOURS[stop.moment.pass_info is not None]}")


def pass_line(session: Session, width: int) -> Text:
    """The position with a bar of the present pass, or of the forward part between two passes."""
    stop = session.stop
    first, end, words = _stretch(stop)
    before = f" {stop.say('{number} of {count}', number=stop.k - first + 1, count=end - first)} "
    after = f" {stop.say(words)}"
    room = max(width - cell_len(before) - cell_len(after) - 1, 0)
    line = Text(before, no_wrap=True).append_text(_bar(session, first, end, room))
    return line.append(after, style="dim")


def legend(session: Session) -> Text:
    """The signs that occur on the timelines, and their meanings."""
    line = Text(no_wrap=True)
    for marker in MARKERS:
        if len(_shown(session, marker)):
            line.append(f" {marker.sign}", style=marker.style).append(f" {session.say(marker.words)} ", style="dim")
    return line


def _stretch(stop: Stop) -> tuple[int, int, str]:
    """The first event of the present pass (or of the forward part around the stop), the first event after it, and a
    description."""
    backward_pass, trace = stop.moment.pass_info, stop.trace
    if backward_pass is not None:
        return (
            backward_pass.first,
            trace.count if backward_pass.last is None else backward_pass.last + 1,
            "events of this pass",
        )
    return *stop.query.passes.between(stop.k), "events of this forward part"


def _bar(session: Session, first: int, end: int, room: int) -> Text:
    """The events from `first` to `end` in `room` cells; heavy up to the present one."""
    line, stop = Text(), session.stop
    span = end - first
    here = (stop.k - first) * room // span
    signs = _signs(session, first, end, room)
    centres = first + ((np.arange(room) + 0.5) * span).astype(np.int64) // max(room, 1)
    for cell, backward in enumerate(stop.query.passes.contains(centres)):
        marker = signs.get(cell)
        colour = _COLOURS[bool(backward)]
        if cell == here:
            line.append(marker.sign if marker is not None else "●", style=f"reverse {colour}")
        elif marker is not None:
            line.append(marker.sign, style=marker.style)
        else:
            line.append("━" if cell < here else "─", style=colour)
    return line


def _signs(session: Session, first: int, end: int, room: int) -> dict[int, Marker]:
    """The cells of a bar that have a sign."""
    signs: dict[int, Marker] = {}
    for marker in reversed(MARKERS):
        events = _shown(session, marker)
        events = events[np.searchsorted(events, first) : np.searchsorted(events, end)]
        cells = (events - first) * room // (end - first)
        cells = cells[np.diff(cells, prepend=-1) > 0]
        if len(cells) > room // 4:  # a line full of one sign means nothing
            cells = cells[np.diff(cells, prepend=-2) > 1] if marker.begins else cells[:0]
        if len(cells) > room // 4:
            cells = cells[:1]
        signs.update(dict.fromkeys(cells.tolist(), marker))
    return signs
