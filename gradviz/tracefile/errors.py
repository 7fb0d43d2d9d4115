"""What is said of a file that cannot be read as a trace."""

from __future__ import annotations

from pathlib import Path

from gradviz.errors import GradvizError


class TraceError(GradvizError):
    """A file cannot be read as a trace; the message is one line for the user."""


def damaged(path: Path, error: Exception) -> TraceError:
    """The error for a trace that is one, but cannot be read through."""
    cause = " ".join(str(error).split())[:200]  # SQLite quotes statements of several lines
    return TraceError(f"{path} is damaged or truncated ({cause}): record it again")
