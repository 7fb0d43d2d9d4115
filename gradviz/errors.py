"""GradvizError: what every error for the user derives from."""

from __future__ import annotations


class GradvizError(Exception):
    """Something cannot be done; the message is one line for the user, which says what to do."""
