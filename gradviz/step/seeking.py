"""Verbs that seek: a breakpoint, a predicate, a change of a tensor, a text. Each works forwards and backwards."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from gradviz.query.predicate import Predicate
from gradviz.query.predicate_columns import FIELDS_OF_VALUES
from gradviz.sets import contained
from gradviz.step.breakpoints import Breakpoint, breakpoint_of, neighbour, predicate
from gradviz.step.command_error import NO_VALUES, CommandError
from gradviz.step.moves import count
from gradviz.step.state import Resume, Session
from gradviz.words.escape import clean
from gradviz.words.sentences import sentence
from gradviz.words.stop import Subject, changes, subject

# --- breakpoints


def break_(session: Session, argument: str) -> None:
    if not argument:
        _list_breakpoints(session)
        return
    new = breakpoint_of(argument, session.words, session.live)
    number = session.breakpoints.add(new)
    text = session.say("breakpoint {number}: {text}", number=number, text=clean(new.text))
    session.message = text + _times(session, number)


def _times(session: Session, number: int) -> str:
    """The number of events at which a breakpoint stops, in brackets; for a running script, so far."""
    times = len(session.breakpoints.events(number, session.words, session.columns))
    return session.say(
        " ({events} so far)" if session.live else " ({events})", events=session.events_told(times)
    )


def watch(session: Session, argument: str) -> None:
    about = subject(session.words, argument, session.position)
    number = session.breakpoints.add(Breakpoint(f"watch {about}", watched=about))
    text = session.say("breakpoint {number}: where {name} changes", number=number, name=about)
    session.message = text + _times(session, number)


def delete(session: Session, argument: str) -> None:
    if argument == "all":
        for number in list(session.breakpoints.by_number):
            session.breakpoints.delete(number)
        session.message = session.say("all breakpoints deleted")
        return
    session.breakpoints.delete(count(argument))
    session.message = session.say("breakpoint {number} deleted", number=argument)


def _list_breakpoints(session: Session) -> None:
    lines = [
        f"{number:>3}  {clean(known.text)}{_times(session, number)}"
        for number, known in session.breakpoints.by_number.items()
    ]
    session.page = [session.say("Breakpoints"), *lines] if lines else []
    none = "no breakpoints: break nan, break log, break line 12, watch w, ..."
    session.message = "" if lines else session.say(none)


def continue_(session: Session, argument: str, forward: bool = True) -> None:
    nearest = session.breakpoints.nearest(session.position, forward, session.words, session.columns)
    if nearest is not None:
        session.go(nearest[0])
        if session.position != nearest[0]:  # a question of a lesson stopped the session earlier
            return
        reasons = [clean(session.breakpoints.by_number[number].text) for number in nearest[1]]
        numbers = ", ".join(map(str, nearest[1]))
        session.message = session.say("breakpoint {number}: {text}", number=numbers, text="; ".join(reasons))
    elif forward and session.live:
        session.go_on(Resume())
    else:
        wanted = session.last if forward else 0
        session.go(wanted)
        if session.position != wanted:  # as above
            return
        end = "this is the last event" if forward else "this is the first event"
        none = (
            "no breakpoint on the way"
            if session.breakpoints.by_number
            else "there are no breakpoints (break nan)"
        )
        session.message = f"{session.say(none)}: {session.say(end)}"


def until(session: Session, argument: str, forward: bool = True) -> None:
    wanted = breakpoint_of(argument, session.words, session.live).predicate
    assert wanted is not None
    _seek(session, wanted, forward)


def _seek(session: Session, wanted: Predicate, forward: bool) -> None:
    """Go to the nearest event where `wanted` is true. If there is none, report how many there are in the other
    direction."""
    events = np.flatnonzero(wanted.mask(session.columns))
    event = neighbour(events, session.position, forward)
    if event is not None:
        session.go(event)
    elif forward and session.live:
        session.go_on(Resume(predicate=wanted))
    else:
        never = "never after this event: {text}" if forward else "never before this event: {text}"
        session.message = session.say(never, text=clean(wanted.text))
        if not session.has_values and wanted.fields & FIELDS_OF_VALUES:
            session.message = session.say(NO_VALUES)
        others = len(events) - int(contained(session.position, events))
        if others:
            elsewhere = " ({events} before it)" if forward else " ({events} after it)"
            session.message += session.say(elsewhere, events=session.events_told(others))


# --- who changed it


def who(session: Session, argument: str) -> None:
    """Go to the latest change of a tensor before this event. Used again, it goes to the change before that."""
    from gradviz.words.absence import no_grad_told

    about = subject(session.words, argument, session.position)
    events = changes(session.words, about)
    event = neighbour(events, session.position, forward=False)
    here = session.position in events
    if event is not None:
        session.go(event)
        about = _changed_at(session, about, event)
        earlier = int(np.searchsorted(changes(session.words, about), event))
        several = ", {count} earlier change" if earlier == 1 else ", {count} earlier changes"
        before = several if earlier else ", its first change"
        changed = session.say("{name} changed here", name=about)
        session.message = changed + session.say(before, count=earlier)
    elif here:
        about = _changed_at(session, about, session.position)
        session.message = session.say("{name} changed here, for the first time", name=about)
    elif about.part == "grad":
        session.message = no_grad_told(session.stop, about.tensor, about.called)
    else:
        first = _first_change(session, events)
        session.message = session.say("{name} is not there yet: {change}", name=about, change=first)


def _changed_at(session: Session, about: Subject, event: int) -> Subject:
    """A tensor with the part that an event changed, its value or its `.grad`, unless a part was named."""
    if about.part:
        return about
    value = replace(about, part="value")
    return value if event in changes(session.words, value) else replace(about, part="grad")


def _first_change(session: Session, events: np.ndarray) -> str:
    if not len(events):
        return session.say("no event changes it")
    event = int(events[0])
    return f"{session.stop.event_of(event)}, {sentence(session.stop.other(event))}"


# --- search


def search(session: Session, argument: str, forward: bool = True) -> None:
    session.settings.searched = argument or session.settings.searched
    text = session.settings.searched
    if not text:
        raise CommandError("nothing to search for: /log, /w, /8x3, /12 (a line)")
    if '"' in text and "'" in text:
        raise CommandError("a search cannot contain both kinds of quotes")
    _seek(session, _searching(text), forward)


def _searching(text: str) -> Predicate:
    """The predicate of a search: a line, a shape, or part of the name of an op, a node, a tensor or a scope."""
    if re.fullmatch(r"(line\s+|:)?[0-9]+", text):
        return predicate(f"line == {re.sub(r'[^0-9]', '', text)}")
    shape = text.strip("()").replace("×", "x").replace(" ", "").replace(",", "x")
    if re.fullmatch(r"[0-9]+(x[0-9]+)+", shape):
        return predicate(f'shape == "{shape}"')
    quoted = f"'{text}'" if '"' in text else f'"{text}"'
    return predicate(" or ".join(f"{field} ~ {quoted}" for field in ("op", "grad_fn", "name", "scope")))
