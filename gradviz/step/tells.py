"""Verbs that show information and do not move (except `nan`), and `export` and `quit`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.cells import set_cell_size

from gradviz.events.kinds import Kind
from gradviz.events.site import Place
from gradviz.query.changes import grad_changes
from gradviz.query.predicate import Predicate
from gradviz.step.command_error import NO_VALUES, CommandError
from gradviz.step.path_text import path as path_between
from gradviz.step.plain_stop import describe
from gradviz.step.state import Resume, Session
from gradviz.words.absence import no_grad_reason, no_grad_told, zero_told
from gradviz.words.chain_rule import why as explained
from gradviz.words.escape import clean
from gradviz.words.forward_mode import compare as modes_compared
from gradviz.words.numbers import shape
from gradviz.words.sentences import fields_told, sentence
from gradviz.words.stop import Stop, Subject, changes, subject

_SHOWN = 12  # events


def why(session: Session, argument: str) -> None:
    if not argument:
        session.page = explained(session.stop)
        return
    session.reach_all()
    about = subject(session.words, argument, session.position)
    born = session.trace.born(about.tensor)
    # the tensor does not exist yet: answer for the end of the trace
    if born is not None and born > session.position:
        until_end = session.stop.other(session.last)
        title = until_end.say(
            "{event} makes {name}; at the end:", event=until_end.event_of(born), name=about.called
        )
        session.page = [title, *_why_grad(until_end, about)]
    else:
        session.page = _why_grad(session.stop, about)


def _why_grad(stop: Stop, about: Subject) -> list[str]:
    """The reason why a `.grad` is None, or the accumulations and other changes that led to it."""
    grad = stop.moment.grad(about.tensor)
    if not grad:
        return [no_grad_told(stop, about.tensor, about.called)]
    name = about.called
    lines = [f"{name}.grad = {stop.value(grad)}"]
    changed = grad_changes(stop.query, about.tensor)
    for event in changed[changed <= stop.k][-_SHOWN:].tolist():
        lines.append(f"  {stop.event_of(event)}: {sentence(stop.other(event))}")
    if zero := zero_told(stop, about.tensor, name):
        lines.append(f"  {zero}")
    return [*lines, stop.say("  (who {name}.grad goes to its last change)", name=name)]


def info(session: Session, argument: str) -> None:
    if not argument:
        session.page = _about_event(session)
        return
    session.reach_all()
    about = subject(session.words, argument, session.position)
    session.page = _about_tensor(session, about.tensor)


def _about_event(session: Session) -> list[str]:
    stop, trace = session.stop, session.trace
    event = stop.event
    kind = Kind(stop.event_kind).name.lower()
    head = stop.say(
        "event {event} of {count}: {kind}, thread {thread}",
        event=stop.k + 1,
        count=trace.count,
        kind=kind,
        thread=event.thread,
    )
    lines = [head, f"  {sentence(stop)}"]
    lines += [f"  {name:<12} {told}" for name, told in fields_told(event)]
    site = trace.sites.get(event.site)
    while site is not None:
        inside = stop.say(" in {function}", function=clean(site.place.function))
        lines.append(stop.say("  at {place}", place=f"{clean(site.place.file)}:{site.place.line}") + inside)
        site = trace.sites.get(site.parent) if site.parent < site.number else None
    return lines


def _about_tensor(session: Session, tensor: int) -> list[str]:
    words, stop = session.words, session.stop
    name = words.called(tensor)
    born = session.trace.born(tensor)
    say = stop.say
    if born is None or born > session.position:
        there = say("no event of the trace makes it")
        if born is not None:
            there = say("{event} makes it", event=stop.event_of(born))
        text, now = "{name} does not exist yet at {event}: {there}", stop.event_of(session.position)
        return [say(text, name=name, event=now, there=there)]
    state = stop.moment.state(tensor)
    made = f"{stop.event_of(born)}: {sentence(stop.other(born))}"
    lines = [say("{name} (tensor {tensor})", name=name, tensor=tensor), _labelled(stop, "made", made)]
    if state.value is not None:
        text = f"{stop.value(tensor)}  {shape(state.value)} {state.value.dtype}"
        lines.append(_labelled(stop, "value", text))
    version = say(", version {version}", version=state.version)
    flags = f"is_leaf={state.is_leaf}, requires_grad={state.requires_grad}{version}"
    lines.append(_labelled(stop, "flags", flags))
    grad_fn = clean(words.query.nodes.name(stop.moment.grad_fn(tensor)))
    lines.append(_labelled(stop, "grad_fn", grad_fn or "None"))
    lines.append(_labelled(stop, ".grad", stop.value(state.grad) if state.grad else "None"))
    if not state.grad:
        lines.append(_labelled(stop, "", no_grad_reason(stop, tensor, name)))
    tangent = stop.moment.tangent(tensor)
    if tangent:
        lines.append(_labelled(stop, "tangent", stop.value(tangent)))
    for label, part in (("changed at", "value"), (".grad at", "grad")):
        events = changes(words, Subject(tensor, name, part))
        if len(events):
            text = say("event {event}", event=", ".join(str(event + 1) for event in events[:_SHOWN].tolist()))
            more = say(", … {count} in all", count=len(events)) if len(events) > _SHOWN else ""
            lines.append(_labelled(stop, label, text + more))
    return lines


def _labelled(stop: Stop, label: str, text: str) -> str:
    return f"  {set_cell_size(stop.say(label) if label else '', 11)} {text}"


def where(session: Session, argument: str) -> None:
    """Show the stack of calls at the place of this event: innermost first, each with its line of source."""
    site, _ = session.stop.place
    if site is None:
        session.page = [session.say("this event has no place in the source")]
        return
    places = [] if site.library is None else [site.library]
    while site is not None:
        places.append(site.place)
        site = session.trace.sites.get(site.parent) if site.parent < site.number else None
    session.page = [line for place in places for line in _call_at(session, place)]


def _call_at(session: Session, place: Place) -> list[str]:
    text = session.trace.source(place.file)[place.line - 1 : place.line]
    inside = session.say(" in {function}", function=clean(place.function))
    return [f"{clean(place.file)}:{place.line}{inside}", *(f"    {clean(line.strip())}" for line in text)]


def path(session: Session, argument: str) -> None:
    session.page = path_between(session.stop, argument)


def compare(session: Session, argument: str) -> None:
    session.page = modes_compared(session.stop)


_BAD = {
    (True, True): "a NaN or an infinity",
    (True, False): "a NaN",
    (False, True): "an infinity",
    (False, False): "",
}


def first_bad(session: Session, argument: str) -> None:
    """Go to the first event with a NaN or an infinity; from there, to the next one. An infinity that the program
    wrote itself, as in a mask, counts only if there is nothing else. If there is neither, go to the first error."""
    bad = session.bad
    what, events = _BAD[bad.nan, bad.inf], bad.events
    if session.live and (not len(events) or session.position == events[-1]):
        session.go_on(Resume(predicate=Predicate("nan or inf")))
        return
    if not len(events):
        session.message = session.say("no NaN or infinity in this run" if session.has_values else NO_VALUES)
        errors = session.errors
        if len(errors):
            session.go(int(errors[0]))
            session.message += session.say(", but an error: here it is (y or why explains it)")
        return
    later = events[events > session.position]
    at_first = session.position == events[0]
    if at_first and not len(later):
        session.message = session.say("the only event with {what}", what=session.say(what))
        return
    session.go(int(later[0] if session.position >= events[0] and len(later) else events[0]))
    number = int(np.searchsorted(events, session.position)) + 1
    first = "the first of {events} with {what}: y (why) explains its origin"
    other = "number {number} of {events} with {what}: y (why) explains its origin"
    count = session.events_told(len(events))
    session.message = session.say(
        first if number == 1 else other, number=number, events=count, what=session.say(what)
    )


def export(session: Session, argument: str) -> None:
    """Write the state at this event into a file: the graph so far, in the format of the ending, or the stop
    as text."""
    file = Path(argument)
    if file.suffix.lower() in (".txt", ""):
        file = file.with_suffix(".txt")
        try:
            file.write_text(describe(session.stop) + "\n", encoding="utf-8")
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise CommandError("cannot write {file}: {reason}", file=file, reason=reason) from None
    elif session.exporter is None:
        raise CommandError("only .txt files can be written here")
    else:
        session.exporter(session.trace, session.position, file)
    text = "wrote {file}: the state after event {event}"
    session.message = session.say(text, file=clean(str(file)), event=session.position + 1)


def quit_(session: Session, argument: str) -> None:
    session.over = True
