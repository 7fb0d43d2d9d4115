"""What goes wrong with a command."""

from __future__ import annotations

from gradviz.errors import GradvizError


class CommandError(GradvizError):
    """A command cannot be obeyed; the message is one line for the user."""
