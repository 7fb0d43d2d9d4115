"""The known name that somebody may have meant."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name with the fewest typing errors in `name`, or "" if each has more than one in four letters. A letter
    too many, too few or wrong is an error, and so are two neighbours that changed places."""
    found, fewest = "", max(1, len(name) // 4) + 1
    for other in known:
        if abs(len(other) - len(name)) < fewest and (errors := _errors(name, other)) < fewest:
            found, fewest = other, errors
    return found


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
