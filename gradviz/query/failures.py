"""The exceptions of a run: those that left a backward pass, and the one that ended the program."""

from __future__ import annotations

from dataclasses import dataclass

from gradviz.events.kinds import ErrorRaised, Kind
from gradviz.query.query import Query
from gradviz.tracefile import Site


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception. `event` is the event that records it, or the last event before it; `site` is where it was raised,
    None if unknown. `node` and `number` (the pass) are 0 if it was raised outside of a pass. `handled` is whether the
    program caught it and continued."""

    message: str
    event: int
    site: Site | None
    node: int = 0
    number: int = 0
    handled: bool = False


def failures(query: Query) -> list[Failure]:
    """The exceptions of a run, in order."""
    table = query.trace.table(Kind.ERROR)
    raised = [_told(query, table.object(event)) for event in table.events.tolist()]
    ended = query.trace.meta.get("error", "")
    if ended and not any(failure.message and failure.message in ended for failure in raised):
        raised.append(Failure(ended, query.trace.count - 1, _last_site(query)))
    return raised


def _told(query: Query, error: ErrorRaised) -> Failure:
    site = query.places.site(error.site)
    handled = error.message not in query.trace.meta.get("error", "")
    return Failure(error.message, error.index, site, error.node, error.in_pass, handled)


def _last_site(query: Query) -> Site | None:
    """The line that raised the exception that ended the program, as far as its source was kept."""
    file, number = query.trace.meta.get("error_file", ""), query.trace.meta.get("error_line", "")
    return query.places.of_line(file, int(number) if number.isdecimal() else 0)
