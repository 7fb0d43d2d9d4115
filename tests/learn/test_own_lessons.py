"""Lessons that a teacher writes, and the scores that are kept of all lessons."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gradviz.learn.lesson import Score, keep, lesson_of_file, scores
from gradviz.step import CommandError
from gradviz.system.paths import data_folder

Run = Callable[..., subprocess.CompletedProcess[str]]
ROOT = Path(__file__).parents[2]
LESSON = (ROOT / "examples" / "lesson.toml").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def own_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "mine.toml"
    file.write_text(LESSON, encoding="utf-8")
    return file


@pytest.mark.slow
def test_a_lesson_of_one_s_own_is_taken_as_ours_are(gradviz: Run, file: Path) -> None:
    out = gradviz("learn", file, input="4\nno\n").stdout
    assert "c = a * b at a = 3, b = 4. What will a.grad be?" in out
    assert out.count("✓ Right") == 2
    assert "That was the last question: 2 of 2 right." in out


@pytest.mark.slow
def test_the_gradient_of_a_tensor_called_input_is_its_own(gradviz: Run, file: Path) -> None:
    """`input` also stands for the only tensor that a node gives a gradient to: here there are two."""
    lesson = LESSON.replace("a * b", "a * input").replace("b = torch", "input = torch")
    lesson = lesson.replace("kind == 'pass_began'", "kind == 'received' and grad_fn == 'MulBackward0'")
    lesson = lesson.replace("kind == 'accumulated' and name == 'a'", "kind == 'produced'", 1)
    file.write_text(lesson.replace('value = "a.grad"', 'gradient = "input"'), encoding="utf-8")
    assert "✓ Right: 3" in gradviz("learn", file, input="3\nno\n").stdout


@pytest.mark.slow
def test_a_lesson_that_asks_for_the_gradient_of_what_gets_none_is_refused(gradviz: Run, file: Path) -> None:
    lesson = LESSON.replace("kind == 'accumulated' and name == 'a'", "kind == 'produced'", 1)
    file.write_text(lesson.replace('value = "a.grad"', 'gradient = "input"'), encoding="utf-8")
    told = gradviz("learn", file, input="3\nno\n")
    assert "this lesson asks for the gradient of input, and the node gives one to a, b" in told.stderr


@pytest.mark.slow
def test_input_that_ends_early_is_told_how_far_it_came(gradviz: Run, file: Path) -> None:
    out = gradviz("learn", file, input="4\n").stdout
    assert out.splitlines()[-1] == "mine: 1 of 2 questions answered, 1 rightly."


def test_a_text_in_one_language_serves_both(file: Path) -> None:
    lesson = lesson_of_file(file)
    assert lesson.title == {"en": "A product", "ko": "A product"}
    file.write_text(LESSON.replace('title = "A product"', 'title.ko = "곱"'), encoding="utf-8")
    assert lesson_of_file(file).title == {"en": "곱", "ko": "곱"}


def test_the_page_shows_the_example() -> None:
    assert f"```toml\n{LESSON}```" in (ROOT / "docs/lessons/write-your-own.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("title =", "titel =", "unknown key titel: did you mean title"),
        ('title = "A product"', "title = 3", 'it needs title = "..."'),
        ("value = ", "valu = ", "question 1 has an unknown key valu: did you mean value"),
        ('value = "a.grad"', "", "question 1 needs one of value, gradient and expect"),
        ('value = "a.grad"', 'value = "a.grad"\nset = "a"', "set of question 1 is NAME = NUMBER"),
        ('value = "a.grad"', 'value = "a.grad"\nset = "a = 2"', "question 1 has set: it needs value, and no shown"),
        ("kind == 'pass_began'", "kind = ", "stop of question 1: "),
        ('expect = ["no"]', "expect = []", "expect of question 2 is a list of words"),
        ("a * b\n", "a *\n", "its program does not compile: "),
        ("[[questions]]", "[questions", "is no TOML: "),
        ("because = ", "becuse = ", "unknown key becuse"),
    ],
)
def test_a_bad_file_gets_one_line(file: Path, gradviz: Run, old: str, new: str, told: str) -> None:
    file.write_text(LESSON.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(CommandError) as error:
        lesson_of_file(file)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_a_file_that_is_not_there_and_one_without_questions_get_one_line(gradviz: Run, file: Path) -> None:
    missing = gradviz("learn", "nosuch.toml")
    assert missing.stderr.splitlines() == ["gradviz: cannot read nosuch.toml: no such file or directory"]
    file.write_text(LESSON.partition("[[questions]]")[0], encoding="utf-8")
    told = gradviz("learn", file).stderr
    assert told.splitlines() == ["gradviz: mine.toml is no lesson: it has no [[questions]]"]


@pytest.mark.slow
def test_a_question_whose_event_never_comes_gets_one_line(gradviz: Run, file: Path) -> None:
    file.write_text(LESSON.replace("'pass_began'", "'stepped'"), encoding="utf-8")
    told = gradviz("learn", file).stderr.splitlines()
    assert told == ["gradviz: this lesson has no event where kind == 'stepped'"]


@pytest.mark.slow
def test_scores_are_kept_and_listed(gradviz: Run) -> None:
    gradviz("learn", "leaves", input="1\n[1, 2]\nNone\n")
    gradviz("learn", "accumulation", input="0.6\n")
    rows = {line.split()[0]: line.rstrip() for line in gradviz("learn").stdout.splitlines() if line.split()}
    assert rows["leaves"].endswith("3 of 3")
    assert rows["accumulation"].endswith("1 of 4 answered")
    assert rows["detach"].split()[-1].isdecimal()


def test_the_best_score_is_kept() -> None:
    keep("a", Score(4, 3, 4))
    keep("a", Score(4, 1, 4))
    keep("a", Score(2, 2, 4))
    assert scores() == {"a": Score(4, 3, 4)}
    keep("a", Score(4, 4, 4))
    assert scores() == {"a": Score(4, 4, 4)}


@pytest.mark.parametrize("text", ["", "no json", "[]", '{"a": 3}', '{"a": {"answered": 1, "right": 2, "count": 3}}'])
def test_a_damaged_file_of_scores_is_none(text: str) -> None:
    data_folder().mkdir(parents=True)
    (data_folder() / "lessons.json").write_text(text)
    assert scores() == {}
    keep("a", Score(1, 1, 2))
    assert json.loads((data_folder() / "lessons.json").read_text())["a"]["right"] == 1


@pytest.mark.slow
def test_scripted_commands_keep_no_score(gradviz: Run) -> None:
    gradviz("learn", "leaves", "--commands", "question; answer 1")
    assert scores() == {}
