"""The error that a command raises."""

from __future__ import annotations

from gradviz.errors import GradvizError


class CommandError(GradvizError):
    """A command cannot be carried out. The message is one line for the user."""
