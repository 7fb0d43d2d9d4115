"""Lessons: a small program, and questions about its gradients. Each lesson is one file in `lessons/`, with its texts
in all languages."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from io import StringIO
from pathlib import Path
from tokenize import COMMENT, generate_tokens
from typing import Any

import numpy as np

from gradviz.errors import nearest
from gradviz.step import CommandError
from gradviz.step.breakpoints import predicate
from gradviz.words.escape import clean, shortened
from gradviz.words.languages import LANGUAGES

Text = Mapping[str, str]  # by language

_KEYS = ("order", "program", "title", "about", "questions")
_OF_QUESTIONS = ("stop", "shown", "ask", "because", "value", "gradient", "expect", "hint", "set")
_ANSWERS = ("value", "gradient", "expect")
_LONGEST = 1 << 20  # bytes of a file


@dataclass(frozen=True, slots=True)
class Question:
    """A question. It is asked at the first event where `stop` is true, and its answer is shown at the first later
    event where `shown` is true. The answer is the `value` of a tensor there (`x.grad`), the `gradient` that a tensor
    receives (in forward mode its tangent), or one of the words `expect`, in the order of LANGUAGES. `hint` is shown
    after a first wrong answer. With `set`, as `x = 3`, the answer is the `value` if the pass had that value: it is
    shown where the question is asked."""

    stop: str
    shown: str
    ask: Text
    because: Text
    value: str = ""
    gradient: str = ""
    expect: tuple[str, ...] = ()
    hint: Text | None = None
    set: str = ""


@dataclass(frozen=True, slots=True)
class Lesson:
    """A lesson: its program and its questions."""

    name: str
    order: int
    title: Text
    about: Text
    program: str
    questions: tuple[Question, ...]

    @property
    def sets_values(self) -> bool:
        """Whether a question is about other values than those of the program."""
        return any(question.set for question in self.questions)

    @property
    def without_comments(self) -> str:
        """The program without its comments, which contain the answers; the line numbers stay the same."""
        lines = self.program.splitlines()
        for token in generate_tokens(StringIO(self.program).readline):
            if token.type == COMMENT:
                row, column = token.start
                lines[row - 1] = lines[row - 1][:column].rstrip()
        return "\n".join(lines) + "\n"


def lesson_of_file(path: Path) -> Lesson:
    """The lesson in a file. Raises CommandError, with one line about what to fix, if the file has none."""
    name = clean(path.name)
    try:
        if path.stat().st_size > _LONGEST:
            raise CommandError("{file} is too large for a lesson", file=name)
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CommandError("cannot read {file}: {reason}", file=name, reason=reason) from None
    except UnicodeDecodeError:
        raise CommandError("{file} is no text in UTF-8", file=name) from None
    try:
        return lesson_of(path.stem, tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise CommandError("{file} is no TOML: {reason}", file=name, reason=clean(str(error))) from None
    except CommandError as error:
        reason = str(error)
        raise CommandError("{file} is no lesson: {reason}", file=name, reason=reason) from None


def lesson_of(name: str, found: Mapping[str, Any]) -> Lesson:
    """The lesson in a decoded file. Raises CommandError if something is missing, misspelled or of another type."""
    _check_keys(found, _KEYS, "it")
    program = _string(found, "program", "it").lstrip("\n")
    try:
        compile(program, f"{name}.py", "exec")
    except (SyntaxError, ValueError) as error:
        raise CommandError("its program does not compile: {reason}", reason=clean(str(error))) from None
    questions = found.get("questions")
    if not isinstance(questions, list) or not questions:
        raise CommandError("it has no [[questions]]")
    order = found.get("order", 0)
    if not isinstance(order, int):
        raise CommandError("order is a whole number")
    return Lesson(
        name,
        order,
        _text(found, "title", "it"),
        _text(found, "about", "it"),
        program,
        tuple(_question(one, f"question {number}") for number, one in enumerate(questions, 1)),
    )


def _question(found: Any, where: str) -> Question:
    if not isinstance(found, Mapping):
        raise CommandError("{where} is no table: write [[questions]]", where=where)
    _check_keys(found, _OF_QUESTIONS, where)
    answers = [key for key in _ANSWERS if key in found]
    if len(answers) != 1:
        raise CommandError("{where} needs one of value, gradient and expect", where=where)
    if "set" in found:
        _check_set(found, where)
    for key in ("stop",) if "set" in found else ("stop", "shown"):
        try:
            predicate(_string(found, key, where))
        except CommandError as error:
            reason = str(error)
            raise CommandError("{key} of {where}: {reason}", key=key, where=where, reason=reason) from None
    expect = found.get("expect", [])
    if not isinstance(expect, list) or not all(isinstance(word, str) and word for word in expect):
        raise CommandError('expect of {where} is a list of words: ["no"]', where=where)
    if answers == ["expect"] and not expect:
        raise CommandError('expect of {where} is a list of words: ["no"]', where=where)
    return Question(
        stop=found["stop"],
        shown=found.get("shown", ""),
        ask=_text(found, "ask", where),
        because=_text(found, "because", where),
        value=_string(found, "value", where) if "value" in found else "",
        gradient=_string(found, "gradient", where) if "gradient" in found else "",
        expect=tuple(expect) if len(expect) >= len(LANGUAGES) else tuple(expect) * len(LANGUAGES),
        hint=_text(found, "hint", where) if "hint" in found else None,
        set=found.get("set", ""),
    )


def _check_set(found: Mapping[str, Any], where: str) -> None:
    """Raise CommandError if a question sets something and is not one about a value, asked and answered in one place."""
    name, sign, value = _string(found, "set", where).partition("=")
    if not (name.strip() and sign and value.strip()):
        raise CommandError('set of {where} is NAME = NUMBER: "x = 3"', where=where)
    if "value" not in found or "shown" in found:
        raise CommandError("{where} has set: it needs value, and no shown", where=where)


def _check_keys(found: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in found:
        if key not in known:
            near = nearest(key, known)
            hint = f"did you mean {near}?" if near else f"it may have {', '.join(known)}"
            key = shortened(clean(key), 40)
            raise CommandError("{where} has an unknown key {key}: {hint}", where=where, key=key, hint=hint)


def _string(found: Mapping[str, Any], key: str, where: str) -> str:
    value = found.get(key)
    if not isinstance(value, str) or not value.strip():
        raise CommandError('{where} needs {key} = "..."', where=where, key=key)
    return value


def _text(found: Mapping[str, Any], key: str, where: str) -> Text:
    """A text in all languages: written once for all languages, or for each (`ask.en`, `ask.ko`)."""
    value = found.get(key)
    if isinstance(value, Mapping):
        texts = {lang: text for lang, text in value.items() if isinstance(text, str) and text.strip()}
        if texts and set(value) <= set(LANGUAGES):
            first = next(iter(texts.values()))
            return {lang: texts.get(lang, first) for lang in LANGUAGES}
    text = _string(found, key, where)
    return dict.fromkeys(LANGUAGES, text)


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
