"""The questions of a lesson, as data of a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradviz.page.firsts import places
from gradviz.words.escape import plain

_LONGEST = 600  # characters of a text


@dataclass(frozen=True, slots=True)
class Asked:
    """A question that is asked at the event `stop` and answered by the event `shown`."""

    ask: str
    answer: str
    because: str
    stop: int
    shown: int
    set: str = ""  # another value that the question is about, as `x = 3`


@dataclass(frozen=True, slots=True)
class PageLesson:
    """A lesson: its questions in order, and the page's own texts in its language: `show` and `next` on buttons,
    `later` for hidden parts, `done` at the end."""

    language: str
    title: str
    about: str
    questions: Sequence[Asked]
    say: Mapping[str, str]


def lesson_data(lesson: PageLesson, views: Sequence[Mapping[str, Any]], small: bool) -> dict[str, Any]:
    """A lesson as plain data. An event becomes a view and a step; `small` is whether the lesson ends with a textbook
    picture."""
    events = {f"{what}{at}": k for at, one in enumerate(lesson.questions)
              for what, k in (("stop", one.stop), ("shown", one.shown))}  # fmt: skip
    place_of = places(events, views)
    return {
        "title": plain(lesson.title, _LONGEST),
        "about": plain(lesson.about, _LONGEST),
        "small": small,
        "say": {name: plain(text, _LONGEST) for name, text in lesson.say.items()},
        "questions": [
            {
                "ask": plain(one.ask, _LONGEST),
                "answer": plain(one.answer, _LONGEST),
                "because": plain(one.because, _LONGEST),
                "stop": place_of[f"stop{at}"],
                "shown": place_of[f"shown{at}"],
                "at": one.stop,
                "until": one.shown,
                "set": plain(one.set, 80),
            }
            for at, one in enumerate(lesson.questions)
        ],
    }
