"""Writes the HTML page of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gradviz.diagnose import Finding
from gradviz.diagnose.marked import pass_of
from gradviz.diagnose.place import place_of
from gradviz.page import Build, ListedFinding, html
from gradviz.pictures.render import write
from gradviz.query import Query
from gradviz.tracefile import Trace


def write_page(
    trace: Trace,
    build: Build,
    number: int | None,
    path: Path,
    found: Sequence[tuple[int, Finding]] = (),
    query: Query | None = None,
) -> str:
    """Write the page of a trace, with its findings by their numbers; `query` is the query that `build` uses, if any.
    Returns one line for the user. Raises DrawError."""
    listed = [_listed(place, finding, trace) for place, finding in found]
    write(path, html(trace, build, number, findings=listed, query=query).encode())
    return f"wrote {path}"


def _listed(number: int, finding: Finding, trace: Trace) -> ListedFinding:
    event = finding.events[0] if finding.events else None
    ids = [f"n{finding.node}"] if finding.node else []
    ids += [f"op{event}"] if event is not None else []
    return ListedFinding(
        number,
        finding.severity,
        finding.rule,
        place_of(finding),
        finding.message,
        finding.fix,
        pass_of(finding, trace),
        event,
        tuple(ids),
        finding.tensors,
        finding.replayed,
    )
