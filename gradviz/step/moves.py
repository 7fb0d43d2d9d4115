"""Verbs that move: by events, lines, scopes and passes, to bookmarks; and that seek a breakpoint, a predicate, a change
of a tensor, a text. Each works forwards and backwards."""

import re
from collections.abc import Callable
from string import ascii_lowercase

import numpy as np

from gradviz.events.kinds import Kind, OpRan
from gradviz.query.predicate import Predicate
from gradviz.query.predicate_columns import FIELDS_OF_VALUES
from gradviz.query.scopes import depths_in
from gradviz.sets import contained
from gradviz.step import NO_VALUES, CommandError
from gradviz.step.breakpoints import Breakpoint, breakpoint_of, neighbour, predicate
from gradviz.step.leaves import View, line_ends
from gradviz.step.state import Resume, Session
from gradviz.words.escape import clean, shortened
from gradviz.words.sentences import sentence
from gradviz.words.stop import Subject, changes, subject

FAR = 18  # digits


def count(text: str) -> int:
    """The repeat count that was typed; 1 without one. Raises CommandError if it is not a number."""
    if not text:
        return 1
    if not text.isascii() or not text.isdigit():
        raise CommandError("not a number: {text}", text=shortened(clean(text), 40))
    return int(text[:FAR])


# --- along the events


def step(session: Session, argument: str, forward: bool = True) -> None:
    session.move(count(argument) if forward else -count(argument))


def goto(session: Session, argument: str) -> None:
    if argument in session.settings.marks:
        session.go(session.settings.marks[argument])
        return
    beyond = count(argument) - 1 - session.last
    if beyond > 0 and session.live:
        session.go_on(Resume(events=beyond))
        return
    session.go(count(argument) - 1)


# --- by line of the program


def line(session: Session, argument: str, forward: bool = True) -> None:
    """Go to the end of this line, or of the next line; the variables are shown in place of the leaves."""
    session.settings.leaves = View(variables=True)
    for _ in range(count(argument)):
        event = neighbour(session.query.of(line_ends), session.position, forward)
        site, _ = session.stop.place
        test = "" if site is None else f"line != {site.place.line}"
        _arrive(session, event, forward, test, "no later line" if forward else "no earlier line")


# --- by scope: a module, a custom Function, a backward pass


def over(session: Session, argument: str, forward: bool = True) -> None:
    otherwise = "no later event of this scope" if forward else "no earlier event of this scope"
    for _ in range(count(argument)):
        depth = _own_depth(session)
        _to_depth(session, depth, forward, f"depth <= {depth}", otherwise)


def out(session: Session, argument: str, forward: bool = True) -> None:
    edges = (Kind.SCOPE_ENTERED, Kind.PASS_BEGAN) if forward else (Kind.SCOPE_LEFT, Kind.PASS_ENDED)
    depth = _own_depth(session)
    if session.stop.event_kind in edges:
        over(session, "", forward)
    elif depth:
        beyond = "this scope does not end in the trace" if forward else "this scope does not begin in the trace"
        _to_depth(session, depth - 1, forward, f"depth < {depth}", beyond)
    else:
        session.message = session.say("this event is in no scope and in no pass")


def into(session: Session, argument: str, forward: bool = True) -> None:
    if forward:
        kinds, otherwise = (Kind.SCOPE_ENTERED, Kind.PASS_BEGAN), "no scope or pass begins after this event"
    else:
        kinds, otherwise = (Kind.SCOPE_LEFT, Kind.PASS_ENDED), "no scope or pass ends before this event"
    _to_kind(session, forward, kinds, 'kind == "scope_entered" or kind == "pass_began"', otherwise)


def again(session: Session, argument: str, forward: bool = True) -> None:
    """Go to the same kind of event at the same site, in another iteration of a loop."""
    k = session.position
    are_alike = session.trace.kinds == session.trace.kinds[k]
    sites, ops = session.columns.sites, session.columns.ops
    are_alike &= (sites == sites[k]) & (ops == ops[k])
    event = neighbour(np.flatnonzero(are_alike), k, forward)
    test = _of_this_line(session) if forward and session.live else ""
    _arrive(
        session, event, forward, test, "no later event at this place" if forward else "no earlier event at this place"
    )


def _of_this_line(session: Session) -> str:
    """The predicate that a running script stops at next: the same kind of event, the same op, the same line.
    Empty if the line is unknown."""
    trace, k = session.trace, session.position
    site = session.query.places.site(int(session.columns.sites[k]))
    if site is None:
        return ""
    event = trace.event(k)
    name = f' and op == "{event.op}"' if isinstance(event, OpRan) and '"' not in event.op else ""
    return f'kind == "{Kind(int(trace.kinds[k])).name.lower()}" and line == {site.place.line}{name}'


# --- by pass


def next_pass(session: Session, argument: str, forward: bool = True) -> None:
    otherwise = "no backward pass begins after this event" if forward else "no backward pass begins before this event"
    _to_kind(session, forward, (Kind.PASS_BEGAN,), 'kind == "pass_began"', otherwise)


def next_forward(session: Session, argument: str, forward: bool = True) -> None:
    def in_forward(first: int, heads: np.ndarray) -> np.ndarray:
        are_ops = heads & 0xFF == Kind.OP
        are_ops[are_ops] = ~session.query.passes.contains(first + np.flatnonzero(are_ops))
        return are_ops

    otherwise = "no forward op runs after this event" if forward else "no forward op runs before this event"
    _arrive(session, _nearest(session, forward, in_forward), forward, 'kind == "op" and forward', otherwise)


def _to_kind(session: Session, forward: bool, kinds: tuple[Kind, ...], test: str, otherwise: str) -> None:
    event = _nearest(session, forward, lambda _, heads: contained(heads & 0xFF, [int(kind) for kind in kinds]))
    _arrive(session, event, forward, test, otherwise)


def _own_depth(session: Session) -> int:
    """The number of scopes and passes around the present event."""
    first, heads = next(session.trace.stretches(session.position, True))
    return int(depths_in(heads)[session.position - first])


def _to_depth(session: Session, most: int, forward: bool, test: str, otherwise: str) -> None:
    """Go to the nearest event with at most so many scopes and passes around it."""
    event = _nearest(session, forward, lambda _, heads: depths_in(heads) <= most)
    _arrive(session, event, forward, test, otherwise)


def _nearest(session: Session, forward: bool, wanted: Callable[[int, np.ndarray], np.ndarray]) -> int | None:
    """The nearest event before or after the present one for which `wanted` is true; None if there is none. `wanted`
    gets the events of one stretch of the run, as Trace.stretches gives them."""
    for first, heads in session.trace.stretches(session.position, forward):
        event = neighbour(first + np.flatnonzero(wanted(first, heads)), session.position, forward)
        if event is not None:
            return event
    return None


def _arrive(session: Session, event: int | None, forward: bool, test: str, otherwise: str) -> None:
    """Go to the event. If there is none yet, let a running script continue until the predicate `test` is true."""
    if event is not None:
        session.go(event)
    elif forward and session.live and test:
        session.go_on(Resume(predicate=Predicate(test)))
    else:
        session.message = session.say(otherwise)


# --- bookmarks


def mark(session: Session, argument: str) -> None:
    free = (c for c in ascii_lowercase if c not in session.settings.marks)
    name = argument or next(free, "z")
    if name.isdigit():
        raise CommandError("a bookmark is not a number: {name}", name=name)
    session.settings.marks[name] = session.position
    text = "bookmark {name}: event {event} (goto {name})"
    session.message = session.say(text, name=clean(name), event=session.position + 1)


def marks(session: Session, argument: str) -> None:
    known = sorted(session.settings.marks.items(), key=lambda item: item[1])
    if not known:
        session.message = session.say("no bookmarks: mark NAME makes one here")
        return
    session.page = [session.say("Bookmarks")]
    for name, position in known:
        event = session.say("event {event}", event=position + 1)
        session.page.append(f"{clean(name):>8}  {event}: {sentence(session.stop.other(position))}")


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
    return session.say(" ({events} so far)" if session.live else " ({events})", events=session.events_told(times))


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
        none = "no breakpoint on the way" if session.breakpoints.by_number else "there are no breakpoints (break nan)"
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
        if not session.trace.has_values and wanted.fields & FIELDS_OF_VALUES:
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
    value = about._replace(part="value")
    return value if event in changes(session.words, value) else about._replace(part="grad")


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
