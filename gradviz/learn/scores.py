"""The user's scores in the lessons, kept between runs in a file of the user's data folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from gradviz.system.paths import data_folder

_NAME = "lessons.json"


@dataclass(frozen=True, slots=True)
class Score:
    """The score of a lesson: `answered` of `count` questions were answered, `right` of them rightly."""

    answered: int
    right: int
    count: int

    @property
    def is_done(self) -> bool:
        """Whether all questions were answered."""
        return self.answered >= self.count > 0

    def is_better_than(self, other: Score | None) -> bool:
        """Whether this score replaces an earlier one: a finished lesson counts more than an unfinished lesson, then
        the number of right answers counts."""
        if other is None or other.count != self.count:
            return True
        return (self.is_done, self.right, self.answered) > (other.is_done, other.right, other.answered)


def scores() -> dict[str, Score]:
    """The best score in each lesson, by its name; empty if none was kept or the file cannot be read."""
    try:
        kept = json.loads((data_folder() / _NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError, RuntimeError):  # RuntimeError: there is no home folder
        return {}
    known = kept.items() if isinstance(kept, dict) else ()
    return {name: score for name, one in known if (score := _score(one)) is not None}


def keep(name: str, score: Score) -> None:
    """Keep a score, if it is better than the kept score. A folder that cannot be written to is not an error."""
    known = scores()
    if not score.answered or not score.is_better_than(known.get(name)):
        return
    known[name] = score
    text = json.dumps({name: asdict(one) for name, one in sorted(known.items())}, indent=1)
    try:
        folder = data_folder()
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = folder / f"{_NAME}.{os.getpid()}"
        unfinished.write_text(text + "\n", encoding="utf-8")
        unfinished.replace(folder / _NAME)
    except (OSError, RuntimeError):
        return


def _score(found: object) -> Score | None:
    if not isinstance(found, Mapping):
        return None
    numbers = [found.get(key) for key in ("answered", "right", "count")]
    if not all(type(number) is int and 0 <= number <= 1_000_000 for number in numbers):
        return None
    answered, right, count = (int(str(number)) for number in numbers)
    return Score(answered, right, count) if right <= answered <= count else None
