"""GradvizError: the base class of errors for the user."""

from __future__ import annotations


class GradvizError(Exception):
    """Something cannot be done. The message is one line that tells the user what to do."""
