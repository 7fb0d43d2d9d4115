"""Lessons: a small program, and questions about its gradients. Each lesson is one file in `lessons/`, with its texts
in all languages."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np

from gradviz.learn.lesson_file import Lesson, lesson_of, lesson_of_file
from gradviz.nearest import nearest
from gradviz.step.command_error import CommandError
from gradviz.words.escape import clean, shortened

_TOLERANCE = 1e-2  # relative: people round
_NUMBER = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)(?:\s*/\s*(\d+\.?\d*))?", re.IGNORECASE)
_NONE = ("none", "null", "nothing", "없음", "없다")
_ALIKE = (
    {"yes", "y", "true", "t", "예", "네", "참"},
    {"no", "n", "false", "f", "아니오", "아니요", "거짓"},
)  # answers that mean the same


@cache
def lessons() -> dict[str, Lesson]:
    """All lessons by name, in their order."""
    folder = files("gradviz.learn").joinpath("lessons")
    known = [
        lesson_of(file.name.removesuffix(".toml"), tomllib.loads(file.read_text(encoding="utf-8")))
        for file in folder.iterdir()
        if file.name.endswith(".toml")
    ]
    return {lesson.name: lesson for lesson in sorted(known, key=lambda lesson: lesson.order)}


def lesson_called(name: str) -> Lesson:
    """The lesson with a name, or in a file if the name ends with `.toml`. Raises CommandError if there is none."""
    if name.endswith(".toml"):
        return lesson_of_file(Path(name))
    known = lessons()
    if name not in known:
        near = nearest(name, known)
        hint = f"did you mean {near}?" if near else f"the lessons are {', '.join(known)}"
        raise CommandError(f"there is no lesson {shortened(clean(name), 40)!r}: {hint}")
    return known[name]


def is_right(text: str, expected: np.ndarray | None) -> bool:
    """Whether a text has the numbers of an array, in order and up to rounding; for None, whether it means none. A
    number may be a fraction: `3/5`."""
    if expected is None:
        return text.strip().casefold() in _NONE
    numbers = [
        float(a) / float(b or 1) if float(b or 1) else np.inf
        for a, b in _NUMBER.findall(text.replace("−", "-"))
    ]
    wanted = expected.astype(np.float64).ravel()
    return len(numbers) == len(wanted) and bool(np.allclose(numbers, wanted, _TOLERANCE, 1e-9))


def is_word(text: str, words: tuple[str, ...]) -> bool:
    """Whether a text is one of these words, means the same, or is the first letter of the first word."""
    said, known = text.strip().casefold().rstrip(".!"), {word.casefold() for word in words}
    meant = known.union(*(alike for alike in _ALIKE if known & alike))
    return said in meant or said == words[0].casefold()[:1]


def can_be_read(text: str, words: tuple[str, ...]) -> bool:
    """Whether a text is an answer, right or wrong: a number or None, or yes or no for a question that expects one of
    them."""
    said = text.strip().casefold().rstrip(".!")
    if not words:
        return said in _NONE or bool(_NUMBER.search(text))
    asked = [alike for alike in _ALIKE if {word.casefold() for word in words} & alike]
    return any(said in alike for alike in _ALIKE) if asked else bool(said)
