"""A lesson as a page: each answer is held back until it is asked for, with what would give it away."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import CHROMIUM
from invoked import invoked

from gradviz.cli.learn import _opened
from gradviz.learn.lesson import lessons
from gradviz.learn.lesson_file import Lesson
from gradviz.learn.lesson_page import lesson_page
from gradviz.words.languages import LANGUAGES


def asked(lesson: Lesson, language: str) -> dict[str, Any]:
    """The lesson as the data of its page."""
    with _opened(lesson, language) as session:
        text = lesson_page(session.exercise, session)
    found = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])["lesson"]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("lesson", lessons().values(), ids=lambda lesson: lesson.name)
def test_each_question_of_a_lesson_is_on_its_page_at_events_that_the_page_has(
    lesson: Lesson, language: str
) -> None:
    data = asked(lesson, language)
    assert [one["ask"] for one in data["questions"]] == [one.ask[language] for one in lesson.questions]
    assert all(one["answer"] and one["because"] for one in data["questions"])
    assert min(place[0] for one in data["questions"] for place in (one["stop"], one["shown"])) >= 0
    assert all(one["at"] < one["until"] for one in data["questions"])


def test_the_answers_of_a_page_are_those_of_the_lesson() -> None:
    assert [one["answer"] for one in asked(lessons()["accumulation"], "en")["questions"]] == [
        "0.6", "1.2", "0.6", "no"
    ]  # fmt: skip


def test_the_session_is_at_its_first_question_after_a_page_was_made() -> None:
    with _opened(lessons()["accumulation"], "en") as session:
        lesson_page(session.exercise, session)
        assert (session.position, session.exercise.index) == (0, 0)


def test_a_page_is_written_by_a_command(tmp_path: Path) -> None:
    file = tmp_path / "lesson.html"
    done = invoked(["learn", "accumulation", "--page", str(file)])
    assert done.exit_code == 0
    assert "4 questions" in done.stdout
    assert "<!doctype html>" in file.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--page", "lesson.html"], "--page writes one lesson"),
        (["leaves", "--page", "lesson.png"], "ends with .html"),
    ],
)
def test_what_is_no_lesson_or_no_page_gets_one_line(arguments: list[str], message: str) -> None:
    done = invoked(["learn", *arguments])
    assert done.exit_code == 2
    assert message in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on PATH")
def test_what_a_question_asks_for_cannot_be_seen_before_its_answer_is_shown(
    browser: Any, tmp_path: Path
) -> None:
    file = tmp_path / "lesson.html"
    invoked(["learn", "accumulation", "--page", str(file)])
    tab = browser.new_page(viewport={"width": 1280, "height": 800})
    wrong: list[str] = []
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.goto(file.as_uri())
    tab.wait_for_selector("body[data-ready]", timeout=30_000)
    tab.click("#stage")
    assert not tab.is_visible("#note")  # a click is no question for findings
    for key in ("End", "ArrowRight", "]", "k", "c"):
        tab.keyboard.press(key)
    assert "0.6" not in tab.inner_text("body")
    assert tab.locator("#book[hidden]").count() == 1
    assert not tab.is_visible("#chart")
    assert "norm of its gradient" not in tab.inner_text("#facts")
    seen = []
    while tab.locator("#lesson-next").count():
        label = tab.inner_text("#lesson-next")
        tab.click("#lesson-next")
        tab.wait_for_function(
            "label => { const next = document.getElementById('lesson-next');"
            " return !next || next.textContent !== label; }",
            arg=label,
        )
        if label == "Show the answer":
            seen.append(tab.inner_text("#lesson .grad"))
    assert seen == ["0.6", "1.2", "0.6", "no"]
    assert tab.locator("#book:not([hidden])").count() == 1
    assert wrong == []
    tab.close()
