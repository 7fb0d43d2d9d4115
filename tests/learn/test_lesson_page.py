"""A lesson as a page: each answer is held back until it is asked for, with what would give it away."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from gradviz.cli.learn import _opened
from gradviz.events.kinds import OpRan
from gradviz.learn.lesson import Lesson, lesson_page, lessons
from gradviz.page import SCRIPTS, TRYING
from gradviz.words.languages import LANGUAGES, texts
from tests.conftest import CHROMIUM
from tests.invoked import invoked
from tests.learn.test_learn import ENGLISH, IN_ENGLISH, static_texts
from tests.page.page_views import parsed_views


def asked(lesson: Lesson, language: str) -> dict[str, Any]:
    """The lesson as the data of its page."""
    with _opened(lesson, language) as session:
        text = lesson_page(session.exercise, session)
    found = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])["lesson"]


@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("lesson", lessons().values(), ids=lambda lesson: lesson.name)
def test_each_question_of_a_lesson_is_on_its_page_at_events_that_the_page_has(lesson: Lesson, language: str) -> None:
    data = asked(lesson, language)
    assert [one["ask"] for one in data["questions"]] == [one.ask[language] for one in lesson.questions]
    assert all(one["answer"] and one["because"] for one in data["questions"])
    assert min(place[0] for one in data["questions"] for place in (one["stop"], one["shown"])) >= 0
    assert all(one["at"] < one["until"] or one["set"] for one in data["questions"])


PAGE = files("gradviz.page")
# What the page names as PyTorch does, and what is a name of its own.
NAMES = {
    ".grad", "shape", "dtype", "is_leaf", "requires_grad", "grad_fn", "grad_fns", "id", "next_functions", "tangent",
    "leaf", "gradviz check", "event",
}  # fmt: skip


def test_each_text_of_the_page_itself_is_there_in_korean() -> None:
    scripts = [PAGE.joinpath(f"{name}.js").read_text(encoding="utf-8") for name in (*SCRIPTS, TRYING)]
    asked_for = {text for script in scripts for text in re.findall(r"""\bsaid\("((?:[^"\\]|\\.)+)\"""", script)}
    asked_for |= {text for script in scripts for text in re.findall(r"""\bfact\("([^"]+)\"""", script)}
    listed = [line for script in scripts for line in re.findall(r"""^  \[("[^\n]*")\],$""", script, re.MULTILINE)]
    asked_for |= {json.loads(f"[{line}]")[-1] for line in listed}
    assert len(asked_for) > 100
    asked_for |= static_texts(PAGE.joinpath("page.html").read_text(encoding="utf-8"))
    assert asked_for - texts("ko").keys() - NAMES == set()


def shown(page: str) -> Iterator[str]:
    """The texts that a page shows of a run: those of events, reasons, notes, edges and pictures."""
    for view in parsed_views(page):
        for step in view["steps"]:
            yield from (step["text"], step["phase"], step["why"])
            yield from (text for row in step.get("rows", ()) for text in row)
            yield from step.get("told", ())
        yield from (text for waits in view["waits"].values() for *_, text in waits)
        yield from view["why"].values()
        yield from view["notes"]
        yield from (text for *_, label, cut in view["edges"] for text in (label, cut))
        yield from re.findall(r">([^<>]+)</text>", view["book"])


@pytest.mark.slow
@pytest.mark.parametrize("lesson", lessons().values(), ids=lambda lesson: lesson.name)
def test_no_word_of_a_korean_lesson_page_is_english_but_those_of_the_field(lesson: Lesson) -> None:
    with _opened(lesson, "ko") as session:
        own = set(re.findall(r"\w+", lesson.program)) | {lesson.name}
        own |= {op.op for event in session.trace if isinstance(op := event, OpRan)}
        own |= {word for error in session.trace.errors for word in re.findall(r"\w+", error.message)}
        told = [*shown(lesson_page(session.exercise, session))]
    words = {word for text in told for word in ENGLISH.findall(text) if not re.search("[a-z][A-Z]", word)}
    assert words - own - IN_ENGLISH == set()


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
    [(["--page", "lesson.html"], "--page writes one lesson"), (["leaves", "--page", "lesson.png"], "ends with .html")],
)
def test_what_is_no_lesson_or_no_page_gets_one_line(arguments: list[str], message: str) -> None:
    done = invoked(["learn", *arguments])
    assert done.exit_code == 2
    assert message in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on PATH")
def test_what_a_question_asks_for_cannot_be_seen_before_its_answer_is_shown(browser: Any, tmp_path: Path) -> None:
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


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on PATH")
def test_a_question_its_picture_and_the_field_for_the_answer_are_on_one_screen(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "lesson.html"
    invoked(["learn", "accumulation", "--page", str(file)])
    tab = browser.new_page(viewport={"width": 1280, "height": 800})
    tab.goto(file.as_uri())
    tab.wait_for_selector("body[data-ready]", timeout=30_000)
    leaf = tab.locator("#nodes > g", has_text="leaf").first
    stage = tab.locator("#stage").bounding_box()
    for part in (leaf, tab.locator("#lesson .asked"), tab.locator("#lesson-answer")):
        box = part.bounding_box()
        assert box["y"] >= 0
        assert box["y"] + box["height"] <= 800
    assert leaf.bounding_box()["y"] + leaf.bounding_box()["height"] <= stage["y"] + stage["height"]

    def answered(text: str) -> str:
        tab.keyboard.press("Shift+A")
        tab.keyboard.type(text)
        tab.keyboard.press("Enter")
        tab.wait_for_selector("#lesson .grad")
        return tab.inner_text("#lesson .grad")

    def go_on() -> None:
        tab.keyboard.press(" ")
        tab.wait_for_selector("#lesson-answer")

    assert answered("3/5") == "✓ Right: 0.6"
    go_on()
    assert answered("0.6") == "✗ Not quite: it is 1.2"
    go_on()
    tab.keyboard.press("Shift+Z")
    tab.wait_for_selector("#lesson .grad")
    assert tab.inner_text("#lesson .grad") == "0.6"
    go_on()
    assert answered("False") == "✓ Right: no"
    tab.close()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on PATH")
def test_no_mark_of_an_error_is_seen_before_the_question_of_it_is_answered(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "lesson.html"
    invoked(["learn", "in_place", "--page", str(file)])
    tab = browser.new_page(viewport={"width": 1280, "height": 800})
    tab.goto(file.as_uri())
    tab.wait_for_selector("body[data-ready]", timeout=30_000)
    seen = []
    while tab.locator("#lesson-next").count():
        if tab.inner_text("#lesson-next") == "Show the answer":
            marks = tab.locator("#band .odd, #nodes .error, #notes .odd").count()
            told = "error" in tab.inner_text("#facts") or "Error" in tab.text_content("#nodes")
            seen.append((marks, told, tab.is_visible("#first-error")))
        asked = tab.inner_text("#lesson")
        tab.click("#lesson-next")
        tab.wait_for_function("asked => document.getElementById('lesson').innerText !== asked", arg=asked)
    assert seen[:2] == [(0, False, False), (0, False, False)]  # the second asks whether backward fails
    assert tab.is_visible("#first-error")
    tab.keyboard.press("[")
    tab.wait_for_selector("body:not([data-busy])")
    if tab.is_visible("#book"):
        tab.keyboard.press("k")
    node = tab.locator("#nodes .error")
    assert "RuntimeError" in node.text_content()
    text, box = (node.locator(part).last.bounding_box() for part in ("text", "rect"))
    assert box["x"] - 8 < text["x"]  # the box has room for it
    tab.close()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on PATH")
def test_a_korean_page_shows_no_english_in_the_browser(browser: Any, tmp_path: Path) -> None:
    file, lesson = tmp_path / "lesson.html", lessons()["accumulation"]
    invoked(["learn", lesson.name, "--page", str(file), "--lang", "ko"])
    with _opened(lesson, "ko") as session:
        messages = " ".join(error.message for error in session.trace.errors)  # PyTorch's own words
    tab = browser.new_page(viewport={"width": 1280, "height": 800})
    tab.goto(file.as_uri())
    tab.wait_for_selector("body[data-ready]", timeout=30_000)
    assert tab.get_attribute("html", "lang") == "ko"
    told = []

    def look() -> None:
        told.append(tab.inner_text("body"))

    look()
    while tab.locator("#lesson-next").count():
        asked = tab.inner_text("#lesson")
        tab.click("#lesson-next")
        tab.wait_for_function("asked => document.getElementById('lesson').innerText !== asked", arg=asked)
        look()
    tab.keyboard.press("k")
    for at in range(tab.locator("#graph [data-id]").count()):
        tab.locator("#graph [data-id]").nth(at).dispatch_event("click")
        look()
    for key, box in (("?", "#help-box"), ("m", "#signs-box")):
        tab.keyboard.press(key)
        told.append(tab.inner_text(box))
        tab.keyboard.press("Escape")
    own = set(re.findall(r"\w+", lesson.program)) | {lesson.name, "gradviz", "check", "Esc", "Shift", "Home", "End"}
    own |= {"Space", "Enter", "dtype", "shape", "float", "non", "pow", *re.findall(r"\w+", messages)}
    source = re.compile(r"^[0-9]+\n.*$", re.MULTILINE)
    words = {word for text in told for word in ENGLISH.findall(source.sub("", text))}
    assert {word for word in words if not re.search("[a-z][A-Z]", word)} - own - IN_ENGLISH == set()
    tab.close()


@pytest.mark.slow
def test_other_values_can_be_tried_when_a_question_is_answered_and_those_asked_for_are_set(
    browser: Any, tmp_path: Path
) -> None:
    file = tmp_path / "lesson.html"
    with _opened(lessons()["what_if"], "en") as session:
        file.write_text(lesson_page(session.exercise, session), encoding="utf-8")
    page = browser.new_page(viewport={"width": 1280, "height": 720})
    page.goto(file.as_uri())
    page.wait_for_selector("body[data-ready]")
    typed = page.locator('#tried input[aria-label="x"]').first
    page.keyboard.press("v")
    assert "Answer the question first" in page.inner_text("#note")
    assert not page.is_visible("#tried")
    page.click("#lesson-next")
    typed.fill("4")  # the answer was shown: everything may be tried
    assert ".grad = 8" in page.text_content("#nodes")
    page.click("#lesson-next")
    assert "if x is 3" in page.inner_text("#lesson")
    assert not page.is_visible("#tried")
    assert ".grad = 10" in page.text_content("#nodes")  # as it was recorded
    page.click("#lesson-next")
    assert "the relu gives 0" in page.inner_text("#lesson")
    assert typed.input_value() == "3"
    assert ".grad = 0" in page.text_content("#nodes")
    typed.fill("2")
    page.click("#lesson-next")
    assert typed.input_value() == "5"
    page.close()
