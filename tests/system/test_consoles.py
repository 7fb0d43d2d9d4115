"""Consoles that lack characters: of Western Europe (cp1252) and of Korea (cp949), whose Python does not speak UTF-8."""

from __future__ import annotations

import ast
import json
import re
import sys
import unicodedata
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import gradviz
from gradviz.system.signs import encoded, instead
from tests.system.elsewhere import COMMANDS, Ended, run_in

ENCODINGS = ["cp1252", "cp949"]
NUMBER = re.compile(r"\\u[0-9a-f]{4}")
PACKAGE = Path(gradviz.__file__).parent
LESSON = """\
# 손실의 기울기: ∂L/∂w → 0
import gradviz.engine as torch
w = torch.tensor([1.0, 2.0], requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.01)
for step in range(3):
    손실 = torch.log((w ** 2).sum())
    손실.backward()
    optimizer.step()
"""
MORE = {
    "korean-lesson": ["learn", "leaves", "--lang", "ko", "--commands", "question; show-answer; next; help"],
    "help": ["step", "run.gradviz", "--commands", "help; help why"],
    "explained": ["step", "run.gradviz", "--commands", "next-backward; why; path w 손실; lanes; leaves; where"],
    "usage": ["graph", "--no-such-option"],
    "runs": ["runs", "."],
}


def on_console(encoding: str) -> dict[str, str]:
    """The environment of a program whose console, and whose files, have this encoding."""
    # Of the systems here none has a locale of cp949: files are read as ASCII where no encoding is named.
    return {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}


@pytest.fixture(scope="session")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Ended]:
    """How a command ends on a console of an encoding."""
    kept = tmp_path_factory.mktemp("kept")
    (kept / "lesson.py").write_text(LESSON, encoding="utf-8")
    (kept / "failing.py").write_text(LESSON + "손실.backward()\n1 / 0\n", encoding="utf-8")
    run_in(kept, {}, "trace", "-o", "run.gradviz", "lesson.py")

    @cache
    def printed(encoding: str, command: str) -> Ended:
        here = tmp_path_factory.mktemp("here")
        for name in ("lesson.py", "failing.py", "run.gradviz"):
            (here / name).write_bytes((kept / name).read_bytes())
        env = {} if encoding == "utf-8" else on_console(encoding)
        return run_in(here, env, *(COMMANDS | MORE)[command])

    return printed


@pytest.mark.slow
@pytest.mark.parametrize("command", [*COMMANDS, *MORE])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_command_prints_on_any_console(printed: Callable[[str, str], Ended], encoding: str, command: str) -> None:
    here, usual = printed(encoding, command), printed("utf-8", command)
    # It tells a finding as soon as it looks, before the summary or after.
    in_order = sorted if command == "trace-watch" else list
    assert here.status == usual.status
    assert here.files == usual.files
    for text, whole in ((here.out, usual.out), (here.err, usual.err)):
        assert ("Traceback" in text) == ("Traceback" in whole)
        assert text.count("?") == whole.count("?")
        lacking = {character for character in whole if not can_show(character, encoding)}
        numbers = {rf"\u{ord(character):04x}" for character in lacking if instead(character).startswith("\\")}
        assert {*NUMBER.findall(text)} <= numbers | {*NUMBER.findall(whole)}
        assert in_order(without_signs(text).split()) == in_order(without_signs(as_shown(whole, encoding)).split())


def can_show(character: str, encoding: str) -> bool:
    try:
        character.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def as_shown(text: str, encoding: str) -> str:
    """Text as a console of this encoding shows it."""
    return encoded(text, encoding).decode(encoding)


def without_signs(text: str) -> str:
    """The words of a text: boxes are drawn otherwise where there are no lines for them."""
    return " ".join(re.findall(r"[^\W_]+", text))


def test_a_korean_console_keeps_what_it_has() -> None:
    assert as_shown("∂L/∂w → 손실 ━━ ● ×", "cp949") == "∂L/∂w → 손실 ━━ ● ×"


def test_a_western_console_shows_something_like_it() -> None:
    assert as_shown("∂L/∂w → −1 ━━ ✓ │ ┌ x² ≤ ∞ …", "cp1252") == "dL/dw -> -1 -- + | + x² <= inf …"


def test_a_power_stays_a_power_where_there_are_no_small_digits() -> None:
    assert as_shown("3 x² A⁻ᵀ x¹⁰", "ascii") == "3 x^2 A^-T x^10"


def test_what_nothing_is_like_is_shown_as_its_number() -> None:
    assert as_shown("손실 \ud800", "cp1252") == r"\uc190\uc2e4 \ud800"


@pytest.mark.slow
def test_korean_lessons_are_readable_on_a_korean_console(printed: Callable[[str, str], Ended]) -> None:
    assert printed("cp949", "korean-lesson").out.count("다") > 5
    assert "\\u" not in printed("cp949", "korean-lesson").out


HAS_SIGN = re.compile(r"[^\x00-\x7f]|\\[NUux]")  # as it is, or as an escape


@pytest.mark.slow
def test_every_sign_of_gradvizs_has_a_replacement() -> None:
    signs = {
        character
        for path in PACKAGE.rglob("*.py")
        if "engine" not in path.parts and HAS_SIGN.search(text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for character in node.value
    } | {*str(json.loads((PACKAGE / "sources/formulas.json").read_text(encoding="utf-8")))}
    named = {sign for sign in signs if sign.isprintable() and not sign.isascii()}
    korean = {sign for sign in named if "HANGUL" in unicodedata.name(sign, "")}
    assert len(named - korean) > 20
    assert {sign for sign in named - korean if not instead(sign).isascii() or instead(sign)[:1] == "\\"} == set()


@pytest.mark.slow
def test_the_script_finds_its_own_stdout_as_python_makes_it(tmp_path: Path) -> None:
    program = "import sys\nprint(sys.stdout.errors, sys.stderr.errors, sys.stdout.encoding)\n"
    (tmp_path / "streams.py").write_text(program, encoding="utf-8")
    ended = run_in(tmp_path, on_console("cp1252"), "check", "streams.py")
    assert ended.out.startswith("strict backslashreplace cp1252\n")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows' file system takes no such names")
def test_a_file_whose_name_is_no_text_is_named_in_an_error(tmp_path: Path) -> None:
    ended = run_in(tmp_path, {}, "info", "\udcff.gradviz")
    assert ended.status == 2
    assert "no such file" in ended.err
