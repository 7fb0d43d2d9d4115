"""A lesson as a page to share with a class: the questions beside the picture, each answer hidden until it is
requested."""

from __future__ import annotations

from gradviz.graph.build import build
from gradviz.learn.exercise import Exercise
from gradviz.page import html
from gradviz.page.reasons import Asked, PageLesson
from gradviz.step.state import Session
from gradviz.words.languages import said

_SAID = {
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
    texts = {name: said(language, text) for name, text in _SAID.items()}
    page_lesson = PageLesson(language, lesson.title[language], lesson.about[language], questions, texts)
    trace = session.trace
    first = trace.passes[0].number if trace.passes else None
    return html(trace, lambda number: build(session.query, number), first, page_lesson)
