"""Writing the HTML page of a trace."""

from __future__ import annotations

from pathlib import Path

from gradviz.draw.page import Build, html
from gradviz.draw.render import DrawError, write
from gradviz.step.replay import Replay
from gradviz.step.state import CommandError
from gradviz.tracefile import Trace


def write_page(trace: Trace, build: Build, number: int | None, path: Path) -> str:
    """Write the page of a trace, and say so in one line. Raises DrawError."""
    try:
        content = html(trace, Replay(trace), build, number)
    except CommandError as error:
        raise DrawError(str(error)) from None
    write(path, content.encode())
    return f"wrote {path}"
