"""GradvizError: the base class of errors for the user."""

import os
from collections.abc import Iterable

DEBUG = "GRADVIZ_DEBUG"  # set in the environment, it lets tracebacks through


def tracebacks_are_wanted() -> bool:
    """Whether an unexpected error is shown with its traceback, not in one line."""
    return bool(os.environ.get(DEBUG))


class GradvizError(Exception):
    """Something cannot be done. The message is one line that tells the user what to do: `text`, with its `{parts}`
    filled in. Whoever shows it may have a translation of the text."""

    def __init__(self, text: object = "", /, **parts: object) -> None:
        self.text, self.parts = str(text), parts
        super().__init__(self.text.format(**parts) if parts else text)


def text_of(thing: object) -> str:
    """The text that `str` gives, or a text in its place if `str` fails."""
    try:
        return str(thing)
    except Exception:
        return f"<{type(thing).__name__} without a text>"


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name with the fewest typing errors in `name`, or "" if each has more than one in three letters. A
    letter too many, too few or wrong is an error, and so are two neighbours that changed places. A name that is at
    least half of the other is near, too."""
    found, fewest = "", len(name) // 3 + 1
    contained = ""
    for other in known:
        if abs(len(other) - len(name)) < fewest and (errors := _errors(name, other)) < fewest:
            found, fewest = other, errors
        contained = contained or (other if _is_most_of(name, other) else "")
    return found or contained


def _is_most_of(one: str, other: str) -> bool:
    short, long = sorted((one, other), key=len)
    is_long_enough = len(short) > 2 or len(long) - len(short) == 1
    return short in long and is_long_enough and 2 * len(short) >= len(long)


def _errors(one: str, other: str) -> int:
    """The optimal string alignment distance (Boytsov 2011, "Indexing methods for approximate dictionary searching")."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        last, before, row = before, row, [i]
        for j, match in enumerate(other, 1):
            errors = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != match))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == match:
                errors = min(errors, last[j - 2] + 1)
            row.append(errors)
    return row[-1]
