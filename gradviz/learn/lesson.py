"""Lessons: a small program, and questions about its gradients. Each lesson is one file in `lessons/`, with its texts
in all languages. An exercise is a lesson under way in a session: it asks each question before the answer is shown."""

import json
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from io import StringIO
from pathlib import Path
from tokenize import COMMENT, generate_tokens
from typing import Any, NamedTuple

import numpy as np

from gradviz.errors import nearest
from gradviz.events.kinds import Produced, Received, TangentPushed
from gradviz.graph.build import build
from gradviz.page import html
from gradviz.page.reasons import Asked, PageLesson
from gradviz.replay.changed_pass import Changed
from gradviz.step import CommandError
from gradviz.step.breakpoints import predicate
from gradviz.step.state import Session
from gradviz.system.paths import data_folder
from gradviz.tracefile import Snapshot
from gradviz.words.escape import clean, shortened
from gradviz.words.languages import LANGUAGES, said
from gradviz.words.numbers import array_text, value
from gradviz.words.stop import subject
from gradviz.words.words import Words

Text = Mapping[str, str]  # by language

_KEYS = ("order", "program", "title", "about", "questions")
_OF_QUESTIONS = ("stop", "shown", "ask", "because", "value", "gradient", "expect", "hint", "set")
_ANSWERS = ("value", "gradient", "expect")
_LONGEST = 1 << 20  # bytes of a file


class Question(NamedTuple):
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


class Lesson(NamedTuple):
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
        name, sign, value = _string(found, "set", where).partition("=")
        if not (name.strip() and sign and value.strip()):
            raise CommandError('set of {where} is NAME = NUMBER: "x = 3"', where=where)
        if "value" not in found or "shown" in found:
            raise CommandError("{where} has set: it needs value, and no shown", where=where)
    for key in ("stop",) if "set" in found else ("stop", "shown"):
        try:
            predicate(_string(found, key, where))
        except CommandError as error:
            reason = str(error)
            raise CommandError("{key} of {where}: {reason}", key=key, where=where, reason=reason) from None
    expect = found.get("expect", [])
    is_list = isinstance(expect, list) and all(isinstance(word, str) and word for word in expect)
    if not is_list or (answers == ["expect"] and not expect):
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
# answers that mean the same
_ALIKE = {"yes", "y", "true", "t", "예", "네", "참"}, {"no", "n", "false", "f", "아니오", "아니요", "거짓"}


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
        float(a) / float(b or 1) if float(b or 1) else np.inf for a, b in _NUMBER.findall(text.replace("−", "-"))
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

    def is_better_than(self, other: "Score | None") -> bool:
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


# What becomes of a pass (None: the last) with other values.
Changes = Callable[[Words, int | None, Sequence[str]], Sequence[Changed]]

_SAID = {
    "begin": "{count} questions. Space (or question) goes to the first; A answers, Z shows the answer.",
    "question": "Question {number} of {count}: {ask} (A answers, Z shows the answer)",
    "right": "✓ Right: {answer}",
    "unread": "{text} cannot be read: it does not count. Type {form}",
    "numbers": "numbers, such as 0.6 or [1, 2], or None",
    "words": "yes or no, True or False",
    "again": "✗ Not yet. {hint} A tries again, Z shows the answer.",
    "hint": "Look at the formulas on the way here (b goes back, y says why).",
    "wrong": "✗ Not quite: it is {answer}",
    "shown": "It is {answer}",
    "try": "Try it: set {sets} shows what becomes of the pass, unset takes it back.",
    "next": "Space (or question): question {number} of {count}.",
    "left": "{name}: {answered} of {count} questions answered, {right} rightly.",
    "finished": "{name}: {right} of {count} right.",
    "first": "The open question asks for this: answer it first.",
    "done": "That was the last question: {right} of {count} right. Go on stepping, or q to leave.",
}


class Exercise:
    """The questions of a lesson on its trace. A session cannot go past the open question."""

    def __init__(self, lesson: Lesson, language: str, session: Session, changes: Changes | None = None) -> None:
        self.lesson, self.language, self.changes = lesson, language, changes
        if changes is not None:
            session.what_if = self.told_with
        self.places = _places(lesson, session)
        self.index = 0  # index of the open question
        self.right = 0
        self.tried = False  # whether the open question was answered once, wrongly
        session.exercise = self
        self._hide(session)
        session.words.speak(language)
        for question, (_, shown) in zip(lesson.questions, self.places, strict=True):
            _check(session, question, shown)
        session.page = [lesson.title[language], f"  {lesson.about[language]}", "", f"  {self.say('begin')}"]
        session.page_keys = {"space": "question"}

    @property
    def question(self) -> Question | None:
        """The open question; None after the last one."""
        return self.lesson.questions[self.index] if self.index < len(self.places) else None

    @property
    def score(self) -> Score:
        """The score so far."""
        return Score(self.index, self.right, len(self.places))

    def _hide(self, session: Session) -> None:
        """Hide the events after the open question from all texts."""
        session.words.last_seen = None if self.question is None else self.places[self.index][0]
        session.words.trend.cache_clear()

    def told_with(self, words: Words, number: int | None, sets: Sequence[str]) -> list[str]:
        """The results of a pass with other values, as lines. Raises CommandError for the values that the open question
        asks about."""
        if self.question is not None and _plain(self.question.set) in ("", *map(_plain, sets)):
            raise CommandError(self.say("first"))
        assert self.changes is not None
        found = self.changes(words, number, sets)
        return [f"  {clean(one.called)}  {array_text(one.before)} → {array_text(one.after)}" for one in found]

    def told(self) -> str:
        """The score in one line."""
        what = "finished" if self.score.is_done else "left"
        return self.say(what, name=self.lesson.name, answered=self.index)

    def held(self, position: int) -> int:
        """The position that a session may go to when it wants `position`."""
        return position if self.question is None else min(position, self.places[self.index][0])

    def remind(self, session: Session) -> None:
        """Ask the open question, if the session is at its place."""
        is_free = not (session.page or session.message)
        if self.question is not None and is_free and self.asks_at(session.position):
            session.message = self.say("question", ask=self.question.ask[self.language])

    def asks_at(self, position: int) -> bool:
        """Whether an event is the place of the open question."""
        return self.question is not None and position == self.places[self.index][0]

    def say(self, what: str, **more: object) -> str:
        """A text in the language of the lesson."""
        known = {"number": self.index + 1, "count": len(self.places), "right": self.right}
        return said(self.language, _SAID[what], **{**known, **more})

    def ask(self, session: Session) -> None:
        """Go to the open question."""
        if self.question is None:
            session.message = self.say("done")
            return
        session.go(session.last)  # as far as the question allows
        self.remind(session)

    def answered(self, session: Session, text: str | None) -> None:
        """Check an answer (None: show the right one), go to the event that shows it, and explain it. An unreadable
        answer does not count; after the first wrong answer there is a hint and a second try."""
        question = self.question
        if question is None:
            raise CommandError(self.say("done"))
        if text is not None and not can_be_read(text, question.expect):
            form = self.say("words" if question.expect else "numbers")
            session.message = self.say("unread", text=repr(shortened(clean(text), 20)), form=form)
            return
        at, shown = session.position, self.places[self.index][1]
        self.index += 1
        session.go(shown)
        array, answer = self._answer(session, question)
        right = text is not None and (is_word(text, question.expect) if question.expect else is_right(text, array))
        if text is not None and not right and not self.tried:
            self.index, self.tried = self.index - 1, True
            session.go(at)
            hint = self.say("hint") if question.hint is None else question.hint[self.language]
            session.message = self.say("again", hint=hint)
            return
        self.right += right
        self._hide(session)
        self.tried = False
        verdict = self.say("right" if right else "shown" if text is None else "wrong", answer=answer)
        more = self.say("done" if self.question is None else "next")
        tried = [self.say("try", sets=question.set)] if question.set else []
        session.page = [verdict, f"  {question.because[self.language]}", "", *(f"  {line}" for line in (*tried, more))]
        session.page_keys = {} if self.question is None else {"space": "question"}

    def solution(self, session: Session, at: int) -> str:
        """The answer to a question, by its index. The state of the lesson does not change."""
        question, open_question, position = self.lesson.questions[at], self.index, session.position
        self.index = len(self.places)
        session.go(self.places[at][1])
        _, answer = self._answer(session, question)
        self.index = open_question
        session.go(position)
        return answer

    def _answer(self, session: Session, question: Question) -> tuple[np.ndarray | None, str]:
        """The right answer at this event: its elements, None if there are none, and as text."""
        if question.expect:
            return None, question.expect[LANGUAGES.index(self.language)]
        if question.set:
            array = self._with_other_values(session, question)
            return array, array_text(array) if array is not None else "None"
        snapshot = _expected(session, question)
        return (None, "None") if snapshot is None else (snapshot.array, value(snapshot))

    def _with_other_values(self, session: Session, question: Question) -> np.ndarray | None:
        """What the value that a question asks for is with what it sets; None if it is None."""
        assert self.changes is not None
        found = session.trace.pass_ending_from(session.position)
        number = None if found is None else found.number
        changes = self.changes(session.words, number, [question.set])
        known = {one.called: one.after for one in changes}
        if question.value not in known:
            raise CommandError("no pass of this lesson gives {name}", name=question.value)
        return known[question.value]


def _places(lesson: Lesson, session: Session) -> list[tuple[int, int]]:
    """For each question, the event where it is asked, and the event that shows the answer."""
    found, after = [], 0
    for question in lesson.questions:
        stop = _first(session, question.stop, after)
        shown = stop if question.set else _first(session, question.shown, stop + 1)
        found.append((stop, shown))
        after = stop
    return found


def _first(session: Session, text: str, after: int) -> int:
    events = np.flatnonzero(predicate(text).mask(session.columns))
    events = events[events >= after]
    if not len(events):
        raise CommandError(f"this lesson has no event where {text}")
    return int(events[0])


_INPUT = "input"  # stands for the only tensor that a node gives a gradient to, under any name


def _check(session: Session, question: Question, shown: int) -> None:
    """Raise CommandError if the answer is the gradient of a tensor to which the node at the event gives none."""
    event = session.trace.event(shown)
    if not question.gradient or not isinstance(event, Produced):
        return
    if not _asked_for(session, question, event):
        names = [session.words.called(edge.tensor) for edge in session.query.nodes.edges(event.node) if edge.tensor]
        raise CommandError(
            "this lesson asks for the gradient of {name}, and the node gives one to {names}",
            name=question.gradient,
            names=", ".join(names) or "nothing",
        )


def _asked_for(session: Session, question: Question, event: Produced) -> list[int]:
    """The positions, among the gradients that a node gives, of the tensor that a question is about."""
    called = {
        place: session.words.called(edge.tensor)
        for place, edge in enumerate(session.query.nodes.edges(event.node))
        if edge.tensor
    }
    if question.gradient == _INPUT and len(called) == 1:
        return [*called]
    return [place for place, name in called.items() if name == question.gradient]


def _plain(text: str) -> str:
    """The value to set, without spaces."""
    return "".join(text.split())


def _expected(session: Session, question: Question) -> Snapshot | None:
    """The right answer, as the trace has it at this event; None if it is None."""
    stop = session.stop
    if question.value:
        about = subject(session.words, question.value, stop.k)
        tensor = stop.moment.grad(about.tensor) if about.part == "grad" else about.tensor
        return stop.moment.value(tensor) if tensor else None
    event, gradients = stop.event, []
    if isinstance(event, Received):
        gradients = list(event.gradients)
    elif isinstance(event, Produced):
        wanted = _asked_for(session, question, event)
        gradients = [flow.gradient for place, flow in enumerate(event.flows) if place in wanted]
    elif isinstance(event, TangentPushed) and session.words.called(event.tensor) == question.gradient:
        gradients = [event.tangent]
    return stop.moment.value(gradients[0]) if gradients else None


_BUTTONS = {
    "field": "Your answer (A)",
    "right": "✓ Right: {answer}",
    "wrong": "✗ Not quite: it is {answer}",
    "show": "Show the answer",
    "next": "Next question",
    "later": "The open question asks for this: show its answer first.",
    "done": "That was the last question. The whole run can be replayed now.",
}


def lesson_page(exercise: Exercise, session: Session) -> str:
    """The page of a lesson that has not begun."""
    lesson, language = exercise.lesson, exercise.language
    questions = [
        Asked(
            question.ask[language],
            exercise.solution(session, at),
            question.because[language],
            stop,
            shown,
            question.set,
        )
        for at, (question, (stop, shown)) in enumerate(zip(lesson.questions, exercise.places, strict=True))
    ]
    texts = {name: said(language, text) for name, text in _BUTTONS.items()}
    page_lesson = PageLesson(language, lesson.title[language], lesson.about[language], questions, texts)
    trace = session.trace
    first = trace.passes[0].number if trace.passes else None
    return html(trace, lambda number: build(session.query, number), first, page_lesson)
