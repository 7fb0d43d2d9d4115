"""`gradviz learn`: lessons that ask before they reveal, and check the answer."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping
from io import StringIO
from pathlib import Path
from xml.sax.saxutils import unescape

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from gradviz import words
from gradviz.cli.learn import _opened
from gradviz.errors import GradvizError
from gradviz.events.kinds import OpRan
from gradviz.learn.lesson import Lesson, _expected, is_right, is_word, lesson_called, lessons
from gradviz.page.page_texts import LITERAL, STATIC
from gradviz.step import CommandError, screen, verbs
from gradviz.step.group import Group
from gradviz.step.showing import describe
from gradviz.step.state import Session
from gradviz.step.terminal import Terminal
from gradviz.step.timeline import legend, timeline
from gradviz.step.verbs import GROUPS, obey
from gradviz.words import Stop
from gradviz.words.languages import LANGUAGES
from gradviz.words.languages import texts as texts_of
from gradviz.words.rows import rows
from gradviz.words.sentences import sentence

Run = Callable[..., subprocess.CompletedProcess[str]]

every = pytest.mark.parametrize("lesson", lessons().values(), ids=lambda lesson: lesson.name)


def static_texts(page: str) -> set[str]:
    """The English texts of the elements of the page."""
    texts = {unescape((one["words"] or one["text"]).strip()) for one in STATIC.finditer(page)}
    return {text for text in texts if re.search("[A-Za-z]{2}", text)}


def right_answer(session: Session) -> str:
    """The answer to the open question, as the program's own trace has it."""
    question = session.exercise.question
    if question.expect:
        return question.expect[0]
    if question.set:
        return session.exercise.solution(session, session.exercise.index)
    here, place = session.position, session.exercise.places[session.exercise.index][1]
    session.position = place
    snapshot = _expected(session, question)
    session.position = here
    return "None" if snapshot is None else str(snapshot.array.tolist())


@every
def test_a_lesson_has_its_texts_in_every_language_and_the_program_of_the_example(lesson: Lesson) -> None:
    texts = [lesson.title, lesson.about]
    texts += [text for question in lesson.questions for text in (question.ask, question.because)]
    for text in texts:
        assert list(text) == list(LANGUAGES)
        assert all(text.values())
        assert any("가" <= character <= "힣" for character in text["ko"]) or text["ko"] == text["en"] == "detach"
    example = Path(__file__).parents[2] / "examples" / f"{lesson.name}.py"
    assert lesson.program == example.read_text(encoding="utf-8")
    for question in lesson.questions:
        assert bool(question.value) + bool(question.gradient) + bool(question.expect) == 1


def test_the_answer_to_a_question_in_the_middle_of_a_network_is_its_gradient() -> None:
    with _opened(lessons()["training_step"], "en") as session:
        answers = [session.exercise.solution(session, at) for at in range(5)]
    assert answers == ["1", "[[6, 0]]", "[[4, 0]]", "[[1.94, 1]]", "yes"]


@pytest.mark.slow
def test_a_question_about_another_value_is_answered_by_the_pass_run_again() -> None:
    with _opened(lessons()["what_if"], "en") as session:
        answers = [session.exercise.solution(session, at) for at in range(3)]
    assert answers == ["10", "0", "-8"]


@pytest.mark.slow
def test_other_values_can_be_tried_but_not_what_the_open_question_asks_for(gradviz_here: Run) -> None:
    asked = "question; answer 10; question"
    for hidden in ("question; set x = 3", f"{asked}; set x=3", f"{asked}; answer 0; set x = -4"):
        done = gradviz_here("learn", "what_if", "--commands", hidden)
        assert "The open question asks for this: answer it first." in done.stderr
        assert "x.grad  10 →" not in done.stdout
    tried = gradviz_here("learn", "what_if", "--commands", f"{asked}; set x = 100; answer 0; set x = 3; unset")
    assert tried.stderr == ""
    lines = [line.strip() for line in tried.stdout.splitlines()]
    assert "x.grad  10 → 200" in lines
    assert "x.grad  10 → 0" in lines
    assert "loss  13 → 0" in lines
    assert "all values are as they were recorded" in lines


@pytest.mark.slow
def test_what_becomes_of_a_pass_is_told_in_korean() -> None:
    with _opened(lessons()["what_if"], "ko") as session:
        while session.exercise.question is not None:
            obey(session, "show-answer")
        obey(session, "set x = 3")
        assert session.page == ["x=3일 때. unset으로 되돌립니다", "  loss  13 → 0", "  x.grad  10 → 0"]


@pytest.mark.slow
@every
def test_the_sentence_at_a_question_does_not_say_that_the_answer_is_none(lesson: Lesson) -> None:
    with _opened(lesson, "en") as session:
        for at, (stop, _) in enumerate(session.exercise.places):
            if session.exercise.solution(session, at) == "None":
                assert "None" not in sentence(session.stop.other(stop)).partition("(was None)")[0]


def test_the_timeline_shows_no_sign_of_what_an_open_question_asks_for() -> None:
    with _opened(lessons()["in_place"], "en") as session:
        obey(session, "question")
        seen = []
        while session.exercise.question is not None:
            text = timeline(session, 80).plain + legend(session).plain
            seen.append("✗" in text)
            obey(session, "show-answer")
            session.page = []
            if session.exercise.question is not None:
                obey(session, "question")
    assert seen == [False, False, True]  # the second asks whether backward fails


def test_nothing_tells_of_tangents_and_passes_after_an_open_question() -> None:
    with _opened(lessons()["forward_and_reverse"], "en") as session:
        obey(session, "question")
        last = session.position
        for at in range(last + 1):
            session.go(at)
            assert not [row for row in rows(session.stop) if "tangent of" in row.text], at
        while session.exercise.question is not None:
            obey(session, "show-answer")
        assert [row for row in rows(session.stop.other(last)) if "tangent of" in row.text]
    with _opened(lessons()["zero_grad"], "en") as session:
        obey(session, "question")
        [w] = session.stop.tabled
        assert session.words.trend(w) is None
        while session.exercise.question is not None:
            obey(session, "show-answer")
        assert session.words.trend(w) is not None


def test_a_table_of_both_modes_leaves_out_what_a_question_asks_for() -> None:
    with _opened(lessons()["forward_and_reverse"], "en") as session:
        obey(session, "show-answer")
        obey(session, "question")
        asked = session.position
        obey(session, "compare")
        hidden = [*session.page]
        while session.exercise.question is not None:
            obey(session, "show-answer")
        session.go(asked)
        obey(session, "compare")
    [row] = [line for line in hidden if "x * y" in line and "sin" not in line]
    [whole] = [line for line in session.page if "x * y" in line and "sin" not in line]
    assert row.split()[-2:] == ["6", "1"]  # the value and the gradient
    assert whole.split()[-3:] == ["6", "3", "1"]


@pytest.mark.slow
@every
def test_comments_of_the_program_do_not_tell_the_answers(lesson: Lesson) -> None:
    assert "#" not in lesson.without_comments
    assert len(lesson.without_comments.splitlines()) == len(lesson.program.splitlines())
    with _opened(lesson, "en") as session:
        path = next(iter(session.trace.sites.values())).place.file
        assert not [line for line in session.trace.source(path) if "#" in line]


@pytest.mark.slow
@every
@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_lesson_can_be_answered_to_its_end(lesson: Lesson, lang: str) -> None:
    with _opened(lesson, lang) as session:
        for number in range(len(lesson.questions)):
            obey(session, "question")
            asked, shown = session.exercise.places[number]
            assert session.position == asked
            assert asked < shown or lesson.questions[number].set
            assert lesson.questions[number].ask[lang] in session.message
            obey(session, f"answer {right_answer(session)}")
            assert session.position == shown
            assert session.page[0].startswith("✓"), session.page
            assert lesson.questions[number].because[lang] in session.page[1]
        assert session.exercise.right == len(lesson.questions)
        obey(session, "last")
        assert session.position == session.last


@pytest.mark.parametrize("command", ["continue", "break nan; continue", "next 9999", "goto 9"])
def test_a_question_that_holds_the_session_is_asked_and_no_end_is_claimed(command: str) -> None:
    with _opened(lesson_called("quickstart"), "en") as session:
        for part in command.split("; "):
            obey(session, part)
        session.exercise.remind(session)
        assert session.position == session.exercise.places[0][0] < session.last
        assert session.exercise.question.ask["en"] in session.message


def test_the_stepper_goes_no_further_than_the_open_question() -> None:
    with _opened(lesson_called("accumulation"), "en") as session:
        stop = session.exercise.places[0][0]
        for command in ("last", "goto 30", "next 20", "until kind == 'accumulated'", "nan"):
            obey(session, "first")
            obey(session, command)
            assert session.position == stop, command
        obey(session, "first")
        obey(session, "next 20")
        assert "What will x.grad be after the first backward?" in session.message
        obey(session, "answer 0.7")
        assert session.message.startswith("✗ Not yet. Put x = 5 into 3/x.")
        assert session.position == stop, "the answer is not shown yet"
        obey(session, "answer 0.7")
        assert session.page[0] == "✗ Not quite: it is 0.6"
        assert session.page_keys == {"space": "question"}
        obey(session, "show-answer")
        assert session.page[0] == "It is 1.2"
        assert session.exercise.right == 0
        obey(session, "back 3")
        assert session.position == session.exercise.places[1][1] - 3, "what is behind may be looked at again"


@pytest.mark.parametrize(
    ("text", "expected", "right"),
    [
        ("0.6", 0.6, True), ("3/5", 0.6, True), (".6", 0.6, True), ("0.601", 0.6, True), ("0.7", 0.6, False),
        ("-0.12", -0.12, True), ("−3/25", -0.12, True), ("0.12", -0.12, False), ("6e-1", 0.6, True),
        ("[1, 2]", [1.0, 2.0], True), ("1 2", [1.0, 2.0], True), ("[2, 1]", [1.0, 2.0], False),
        ("1", [1.0, 2.0], False),
        ("None", None, True), ("none", None, True), ("없음", None, True), ("0", None, False), ("none", 0.0, False),
        ("", 0.0, False), ("1/0", 0.6, False),
    ],
)  # fmt: skip
def test_answers_are_numbers_up_to_rounding(text: str, expected: object, right: bool) -> None:
    assert is_right(text, None if expected is None else np.array(expected, np.float32)) == right


def test_words_are_taken_in_either_language() -> None:
    for text in ("no", "No.", "n", "아니요"):
        assert is_word(text, ("no", "아니요"))
    assert not is_word("yes", ("no", "아니요"))


@pytest.mark.parametrize(
    ("text", "expect", "right"),
    [
        ("예", ("yes", "예"), True), ("true", ("yes", "예"), True), ("y", ("yes", "예"), True),
        ("false", ("no", "아니요"), True), ("아니오", ("False", "False"), True), ("yes", ("no", "아니요"), False),
    ],
)  # fmt: skip
def test_yes_and_true_mean_the_same(text: str, expect: tuple[str, ...], right: bool) -> None:
    assert is_word(text, expect) == right


@pytest.mark.parametrize("text", ["abc", "?", ""])
def test_an_answer_that_cannot_be_read_does_not_count(text: str) -> None:
    with _opened(lesson_called("accumulation"), "en") as session:
        obey(session, "question")
        session.exercise.answered(session, text)
        assert "cannot be read: it does not count" in session.message
        session.message = ""
        obey(session, f"answer {right_answer(session)}")
        assert session.exercise.right == 1


def test_a_second_try_counts() -> None:
    with _opened(lesson_called("accumulation"), "en") as session:
        obey(session, "question")
        obey(session, "answer 0.7")
        obey(session, f"answer {right_answer(session)}")
        assert session.page[0].startswith("✓ Right")
        assert session.exercise.right == 1


def test_lessons_are_listed_in_both_languages(gradviz_here: Run) -> None:
    english, korean = gradviz_here("learn").stdout, gradviz_here("learn", "--lang", "ko").stdout
    for lesson in lessons().values():
        assert lesson.name in english
        assert lesson.title["en"] in english
        assert lesson.title["ko"] in korean


def test_a_lesson_is_scripted_by_commands(gradviz_here: Run) -> None:
    done = gradviz_here("learn", "leaves", "--commands", "question; answer 2; answer 2; question; answer [1, 2]")
    assert done.returncode == 0
    assert "✗ Not quite: it is 1" in done.stdout
    assert "✓ Right: [1, 2]" in done.stdout
    assert "data: requires_grad=False" not in done.stdout, "what the program prints is not shown"


def test_lines_of_a_pipe_are_answers(gradviz: Run) -> None:
    done = gradviz("learn", "many_paths", "--lang", "ko", input="1\n1.5\n1.5\n")
    assert done.returncode == 0, done.stderr
    assert "✓ 맞습니다: 1" in done.stdout
    assert "✗ 아닙니다. 답은 1.6입니다" in done.stdout
    assert done.stdout.rstrip().endswith("2개 중 1개를 맞혔습니다. 계속 살펴보거나 q로 나갑니다.")
    ended = gradviz("learn", "many_paths", input="")
    assert ended.returncode == 0


def test_an_unknown_lesson_and_no_lesson_get_one_line(gradviz_here: Run) -> None:
    done = gradviz_here("learn", "detatch")
    assert done.returncode == 2
    assert done.stderr.strip() == "gradviz: there is no lesson 'detatch': did you mean detach?"


def test_answers_need_a_lesson() -> None:
    with _opened(lesson_called("leaves"), "en") as session:
        plain = Session(session.trace)
        with pytest.raises(CommandError, match="there is no lesson here: gradviz learn lists the lessons"):
            obey(plain, "answer 1")


def is_korean(text: str) -> bool:
    return any("가" <= character <= "힣" for character in text)


@pytest.mark.slow
@every
def test_every_event_of_a_korean_lesson_has_a_korean_sentence(lesson: Lesson) -> None:
    with _opened(lesson, "en") as english, _opened(lesson, "ko") as korean:
        for k in range(korean.trace.count):
            told, here = (sentence(Stop(session.words, k)) for session in (korean, english))
            named = told.replace("실행", "").replace("오류", "")
            assert is_korean(told) or "→" in told, told
            assert told != here
            assert not re.search(r"\b(made|ran|gives|receives|begins|ends|now|leads|inside)\b", named), told


def test_numbers_of_a_korean_sentence_are_those_of_the_english_one() -> None:
    with _opened(lesson_called("double_backward"), "en") as english:
        expected = [sentence(Stop(english.words, k)) for k in range(english.trace.count)]
    with _opened(lesson_called("double_backward"), "ko") as korean:
        told = [sentence(Stop(korean.words, k)) for k in range(korean.trace.count)]
    for here, there in zip(expected, told, strict=True):
        assert Counter(re.findall(r"\d+\.\d+", here)) == Counter(re.findall(r"\d+\.\d+", there))
    assert "x의 AccumulateGrad에 도착: x의 기울기 -0.12 = 0.24 + -0.36" in told
    assert "PowBackward0의 결과: x의 기울기 -0.36 (-0.0048 × 75)" in told


def test_the_stepper_s_own_words_have_korean_ones() -> None:
    texts = [*GROUPS, *(verb.help for verbs in GROUPS.values() for verb in verbs)]
    texts += [word for _, word in (*screen._KEYS, screen._QUIT) if word != "NaN"]
    texts += [text for _, text in screen._BEGINNINGS]
    texts += [*verbs._ABOUT_HELP, screen._ANY_KEY]
    for text in texts:
        assert is_korean(texts_of("ko")[text]), text


class Said(dict[str, str]):
    """Texts in another language, and those that were asked for and are not among them."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        super().__init__(texts)
        self.missing: set[str] = set()

    def get(self, text: str, instead: str) -> str:  # type: ignore[override]
        if text not in self:
            self.missing.add(text)
        return super().get(text, instead)


TERMS = {
    "upstream",
    "local",
    "downstream",
    "root",
    "tangent",
    "grad_fn",
    ".grad",
    "NaN",
}  # Korean courses say them in English


@pytest.mark.slow
@every
def test_all_that_a_korean_lesson_shows_is_korean(lesson: Lesson) -> None:
    with _opened(lesson, "ko") as session:
        texts = session.words.texts = Said(texts_of("ko"))
        session.exercise = None
        for k in range(session.trace.count):
            session.go(k)
            screen.Screen(session).lines(160, 50)
            assert describe(session.stop).startswith(f"이벤트 {k + 1}/{session.trace.count} · ")
            names = [session.words.called(one) for one in session.stop.tabled]
            for command in ("why", "info", *(f"{verb} {name}" for name in names for verb in ("why", "info"))):
                obey(session, command)
                assert is_korean("\n".join(session.page)), session.page
                session.page = []
            for command in (*(f"who {name}" for name in names), "nan"):
                obey(session, command)
                assert is_korean(session.message), session.message
                session.go(k)
        assert texts.missing <= TERMS


COMMANDS = (
    "break", "break nan", "watch x", "break", "continue", "continue", "reverse-continue", "delete 9", "delete 1",
    "delete all", "continue", "until nan", "until line 1", "back-until nan", "break nosuchthing", "break x.grad",
    "search nosuchthing", "search x", "search-back x", "search a\"b'c", "marks", "mark here", "mark", "marks", "mark 7",
    "goto 9999", "path x", "path x x", "path x loss", "leaves", "leaves name", "leaves norm", "leaves size",
    "leaves-down", "print x", "print x.grad", "print x[0:1:0]", "print x[a]", "print x page 7", "why nosuchthing",
    "who nosuchthing", "out", "over", "over-back", "out-back", "again", "again-back", "into", "into-back",
    "next-backward", "back-backward", "next-forward", "back-forward", "where", "nan", "next x", "first 3", "until",
    "nosuchcommand", "nexxt",
    "until op == 'log", "until grad.rms = 1", "until nan; inf", "until nan inf", "until (nan", "until 3", "until op",
    "until line == event", "until 3 < 4", "until 3 < line < event", "until nan == 1", "until line == 'a'",
    "until op < 'a'", "until line ~ 3", "until 'a' ~ op", "until line <", "until and", "until op == log",
    "until zzz > 1", "until grad.rsm < 1", "until grad.what < 1", f"until {'(' * 60}nan",
)  # fmt: skip


@pytest.mark.slow
@every
def test_what_a_command_says_in_a_korean_lesson_is_korean(lesson: Lesson, tmp_path: Path) -> None:
    with _opened(lesson, "ko") as session:
        texts = session.words.texts = Said(texts_of("ko"))
        session.exercise = None
        for command in (*COMMANDS, f"export {tmp_path / 'state.txt'}", f"export {tmp_path / 'no' / 'state.txt'}"):
            for at in (0, session.trace.count // 2, session.last):
                session.go(at)
                try:
                    obey(session, command)
                except GradvizError as error:
                    session.message = session.say(error.text, **error.parts)
                said = [text for text in (session.message, session.page[0] if session.page else "") if text]
                assert not said or command.startswith("print") or any(map(is_korean, said)), (command, said)
        assert texts.missing <= {*TERMS, ".grad norm", " ({events})"}


def test_an_export_in_a_lesson_is_drawn_as_in_a_textbook_and_shows_no_open_answer(tmp_path: Path) -> None:
    picture = tmp_path / "picture.dot"
    with _opened(lessons()["accumulation"], "en") as session:
        obey(session, "last")
        obey(session, f"export {picture}")
        before = picture.read_text(encoding="utf-8")
        assert "∂(x**3)/∂x" in before  # the local derivative, which no box of the other drawing has
        assert "grad_fn" not in before
        assert ".grad" not in before
        for answer in ("0.6", "1.2"):
            obey(session, f"answer {answer}")
        obey(session, f"export {picture}")
        assert "(before)" in picture.read_text(encoding="utf-8")


# What Korean courses say in English: words of the field, and names of PyTorch.
IN_ENGLISH = {
    "leaf", "non-leaf", "upstream", "downstream", "local", "node", "edge", "root", "tangent", "backward", "forward",
    "reverse", "mode", "pass", "sweep", "grad", "dim", "flag", "in-place", "rms", "norm", "inf", "dual", "buffer",
    "VJP", "JVP", "None", "True", "False", "scalar", "Tensor",
}  # fmt: skip
ENGLISH = re.compile(r"(?<![\w.])[A-Za-z][A-Za-z-]{2,}(?![\w(=…])")


def shown_words(session: Session) -> list[str]:
    """The English words of the screen and of `why`, without the source and its names, and names of nodes and ops."""
    lines = [line.plain for line in screen.Screen(session).lines(140, 50)]
    obey(session, "why")
    lines += session.page
    session.page = []
    told = "\n".join(re.sub(r"^.{0,3}\d+  .*?│|^.{0,3}\d+  .*", "", line) for line in lines)
    return [word for word in ENGLISH.findall(told) if not re.search("[a-z][A-Z]", word)]


@pytest.mark.slow
@every
def test_no_word_of_a_korean_screen_is_english_but_those_of_the_field(lesson: Lesson) -> None:
    with _opened(lesson, "ko") as session:
        session.exercise = None
        own = set(re.findall(r"\w+", lesson.program)) | {lesson.name, "question"}
        own |= {op.op for event in session.trace if isinstance(op := event, OpRan)}
        own |= {word for error in session.trace.errors for word in re.findall(r"\w+", error.message)}
        found = set()
        for k in range(session.trace.count):
            session.go(k)
            found.update(shown_words(session))
        assert found - own - IN_ENGLISH == set()


# One word for one thing in all Korean texts: what it is called, and what it is not called beside that.
GLOSSARY = {
    "gradient": ("기울기", ("그래디언트", "변화도", "경사")),
    "forward pass": ("순전파", ("전방 전파", "정방향 전파")),
    "backward pass": ("역전파", ("역방향 전파", "후방 전파", "오차 역전파")),
    "chain rule": ("연쇄 법칙", ("연쇄법칙", "연쇄율", "체인 룰")),
    "leaf tensor": ("리프 텐서", ("잎 텐서", "말단 텐서", "leaf")),
    "in place": ("in-place", ("제자리",)),
    "broadcasting": ("브로드캐스팅", ("broadcast",)),
    "node": ("node", ("노드",)),
    "pass": ("pass", ("패스",)),
    "graph": ("그래프", ("연산 그래프", "연산그래프", "계산그래프")),
}


@pytest.mark.parametrize("term", GLOSSARY)
def test_a_term_of_the_glossary_has_one_korean_word(term: str) -> None:
    word, others = GLOSSARY[term]
    asked = [
        text for q in (q for lesson in lessons().values() for q in lesson.questions) for text in (q.ask, q.because)
    ]
    asked += [text for lesson in lessons().values() for text in (lesson.title, lesson.about)]
    korean = [text["ko"] for text in asked] + [*texts_of("ko").values()]
    assert any(word in text for text in korean)
    assert [text for text in korean if any(other in text for other in others)] == []


def test_no_korean_text_leaves_a_particle_to_the_reader() -> None:
    texts = [*texts_of("ko").values()]
    for lesson in lessons().values():
        asked = [text for q in lesson.questions for text in (q.ask, q.because, q.hint or {"ko": ""})]
        texts += [text["ko"] for text in (lesson.title, lesson.about, *asked)]
    assert [text for text in texts if re.search(r"[은는이가을를와과]\([은는이가을를와과]\)|\(으\)로", text)] == []
    assert [text for text in texts if re.search(r"Backward0[가는를와]", text)] == []  # 0 is read as 영


def test_each_question_has_a_hint_of_its_own() -> None:
    for lesson in lessons().values():
        for question in lesson.questions:
            assert question.hint is not None, (lesson.name, question.ask["en"])
            assert set(question.hint) == set(LANGUAGES)


def test_no_korean_sentence_says_gradient_in_english() -> None:
    of_the_field = re.compile(r"gradient=|{gradient}|autograd")
    said = {english: of_the_field.sub("", korean) for english, korean in texts_of("ko").items()}
    assert [korean for korean in said.values() if "gradient" in korean] == []


def test_no_question_in_korean_says_gradient_in_english() -> None:
    told = [
        text["ko"]
        for lesson in lessons().values()
        for question in lesson.questions
        for text in (question.ask, question.because, *([question.hint] if question.hint else []))
    ]
    assert len(told) > 50
    assert [text for text in told if "gradient" in text.lower()] == []


@pytest.mark.slow
def test_each_korean_text_is_one_that_is_said_and_has_its_parts() -> None:
    gradviz = Path(words.__file__).parent.parent
    files = [file for room in ("words", "step", "learn", "page") for file in (gradviz / room).glob("*.py")]
    files += [
        *(gradviz / "query").glob("predicate*.py"),
        gradviz / "cli" / "learn.py",
        gradviz / "pictures" / "textbook.py",
    ]
    texts = {
        node.value
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    page = gradviz / "page"
    texts |= static_texts((page / "page.html").read_text(encoding="utf-8"))
    texts |= {text for file in page.glob("*.js") for text in LITERAL.findall(file.read_text(encoding="utf-8"))}
    assert set(texts_of("ko")) <= texts
    for english, korean in texts_of("ko").items():
        assert set(re.findall(r"{\w+}", english)) == set(re.findall(r"{\w+}", korean)), english


@pytest.mark.parametrize("size", [(80, 24), (100, 34), (140, 50), (200, 60)], ids=str)
def test_a_korean_lesson_fits_the_screen_and_has_korean_keys_and_help(size: tuple[int, int]) -> None:
    width, height = size
    with _opened(lesson_called("custom_function"), "ko") as session:
        seen = []
        for command in ("help", "first", "next", "question", "answer 아니요", "question", "show-answer", "last"):
            obey(session, command)
            lines = [line.plain for line in screen.Screen(session).lines(width, height)]
            assert len(lines) == height
            assert all(cell_len(line) <= width for line in lines)
            seen.append("\n".join(lines))
        helped, *_, ended = seen
        assert "키와 명령" in helped
        assert "n 다음" in seen[2]
        assert not any("any key" in shown or "n next" in shown for shown in seen[1:])
        obey(session, "help why")
        assert session.page == ["why [TENSOR]: 여기의 연쇄 법칙. why w.grad: 그 값이 나온 과정", "  키: y"]
        assert is_korean(ended)
        obey(session, "help fields")
        plain = [line for line in session.page if not is_korean(line)]
        assert [line.split()[0] for line in plain] == ["grad.rms", "X:"]


def test_an_english_lesson_after_a_korean_one_is_english() -> None:
    with _opened(lesson_called("leaves"), "ko") as session:
        assert is_korean(sentence(session.stop))
    with _opened(lesson_called("leaves"), "en") as session:
        assert not is_korean(sentence(session.stop))
        assert not is_korean("\n".join(line.plain for line in screen.Screen(session).lines(100, 30)))


def test_at_a_question_the_small_letters_of_its_keys_are_these_keys() -> None:
    with _opened(lesson_called("leaves"), "en") as session:
        keys = Terminal(Group([session]), Console(file=StringIO()))
        for key in ("z", "space", "space", "a"):
            keys.press(key)
        assert keys.prompt is not None
        assert keys.prompt.text == "answer "
        for key in ("n", "o", "enter", "z"):
            keys.press(key)
        assert session.page[0] == "It is 1"


def test_a_row_that_is_wider_than_the_screen_is_broken_where_there_is_room() -> None:
    with _opened(lessons()["optimizer_step"], "en") as session:
        while session.exercise.question is not None:
            obey(session, "show-answer")
        session.page = []
        session.go(session.last)
        shown = "\n".join(line.plain.rstrip() for line in screen.Screen(session).lines(80, 24))
    assert re.search(r"step  w − lr · .* = 2\.4 − 0\.1 · \(0\.5 · 6 \+ 4\.8\)\n {13}= 1\.62", shown)
