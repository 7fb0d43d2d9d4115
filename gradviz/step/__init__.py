"""The error that a command raises, and the message for traces without values."""

from gradviz.errors import GradvizError


class CommandError(GradvizError):
    """A command cannot be carried out. The message is one line for the user."""


NO_VALUES = "unknown: this trace has no values (--values none); record it with --values stats"
