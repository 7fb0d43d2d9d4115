"""GradvizError: the base class of errors for the user."""

from __future__ import annotations

import os

DEBUG = "GRADVIZ_DEBUG"  # set in the environment, it lets tracebacks through


def tracebacks_are_wanted() -> bool:
    """Whether errors that nobody foresaw are to be seen, not told in one line."""
    return bool(os.environ.get(DEBUG))


class GradvizError(Exception):
    """Something cannot be done. The message is one line that tells the user what to do: `text`, with its `{parts}`
    filled in. Whoever shows it may have a translation of the text."""

    def __init__(self, text: object = "", /, **parts: object) -> None:
        self.text, self.parts = str(text), parts
        super().__init__(self.text.format(**parts) if parts else text)


def text_of(thing: object) -> str:
    """What `str` gives, of things too whose text cannot be had."""
    try:
        return str(thing)
    except Exception:
        return f"<{type(thing).__name__} without a text>"
