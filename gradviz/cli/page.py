"""Writes the HTML page of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gradviz.diagnose import Finding
from gradviz.notebook import listed
from gradviz.page import Build, html
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
    write(path, html(trace, build, number, findings=listed(found, trace), query=query).encode())
    return f"wrote {path}"
