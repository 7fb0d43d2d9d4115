"""What goes wrong with a command."""

from __future__ import annotations


class CommandError(Exception):
    """A command cannot be obeyed; the message is one line for the user."""
