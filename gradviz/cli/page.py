"""Writes the HTML page of a trace."""

from __future__ import annotations

from pathlib import Path

from gradviz.page import Build, html
from gradviz.pictures.render import write
from gradviz.tracefile import Trace


def write_page(trace: Trace, build: Build, number: int | None, path: Path) -> str:
    """Write the page of a trace. Returns one line for the user. Raises DrawError."""
    write(path, html(trace, build, number).encode())
    return f"wrote {path}"
