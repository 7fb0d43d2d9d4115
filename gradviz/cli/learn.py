"""`gradviz learn`: lessons in the stepper, with questions before the answers."""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from rich.console import Console
from rich.table import Table

from gradviz.cli.common import PATH, commands_option, fail, language_option, show_all_on_stdout
from gradviz.cli.export_moment import export_moment
from gradviz.learn.lesson import Exercise, Lesson, Score, keep, lesson_called, lessons, scores
from gradviz.replaying import changes_with
from gradviz.step.plain import commands, script, told
from gradviz.step.state import Session
from gradviz.step.verbs import obey
from gradviz.tracefile import open_trace
from gradviz.words.languages import said


@click.command(
    epilog="""\b
Examples:
  gradviz learn                              the lessons
  gradviz learn accumulation
  gradviz learn accumulation --lang ko
  gradviz learn accumulation --page lesson.html
  gradviz learn my_lesson.toml               one that you wrote: docs/lessons/write-your-own.md
  gradviz learn leaves --commands "question; answer no; question; answer [1, 2]"
"""
)
@click.argument("name", required=False, metavar="[LESSON|FILE.toml]")
@language_option("lesson")
@commands_option("question; answer 0.6")
@click.option(
    "--page",
    type=PATH,
    metavar="FILE.html",
    help="Write the lesson as a page to share with a class, with its questions.",
)
def learn(name: str | None, lang: str, text: str | None, page: Path | None) -> None:
    """List the lessons, or take one: a small program in the stepper, which asks what a gradient will be before it shows
    it.

    Keys: A answers, Z shows the answer, Space goes to the next question; the others are those of `gradviz step`. Where
    the input is no terminal, each line of it is an answer."""
    show_all_on_stdout()
    if name is None:
        if page is not None:
            fail("--page writes one lesson: gradviz learn LESSON --page FILE.html")
        _list(lang)
        return
    lesson = lesson_called(name)
    if page is not None:
        _write_page(lesson, lang, page)
        return
    with _opened(lesson, lang) as session:
        if text is not None:
            _print(told(session))
            _print(script(session, commands(text)))
            return
        is_interactive = sys.stdin.isatty() and sys.stdout.isatty()
        if not is_interactive:
            _by_lines(session)
        else:
            from gradviz.step.terminal import interact

            interact(session)
        if session.exercise.score.answered:
            key = str(Path(name).resolve()) if name.endswith(".toml") else name
            keep(key, session.exercise.score)
            if is_interactive or not session.exercise.score.is_done:
                click.echo(f"\n{session.exercise.told()}")


def _write_page(lesson: Lesson, lang: str, path: Path) -> None:
    from gradviz.learn.lesson import lesson_page
    from gradviz.pictures.render import PAGE, check_path, write

    if path.suffix.lower() != PAGE:
        fail(f"--page writes a page: give a file that ends with {PAGE}")
    check_path(path)
    with _opened(lesson, lang) as session:
        write(path, lesson_page(session.exercise, session).encode())
    click.echo(f"wrote {path}: {len(lesson.questions)} questions; the answers are in the file, hidden until asked for")


def _list(lang: str) -> None:
    known = scores()
    titles = [said(lang, title) for title in ("lesson", "", "questions", *["right"] * bool(known))]
    table = Table(*titles, box=None, pad_edge=False, header_style="bold")
    for lesson in lessons().values():
        row = (lesson.name, lesson.title[lang], str(len(lesson.questions)))
        table.add_row(*row, *[_score(known.get(lesson.name), lang)] * bool(known))
    Console(highlight=False).print(table)
    following = next((name for name in lessons() if name not in known), next(iter(lessons())))
    click.echo(f"\ngradviz learn {following}" + (f" --lang {lang}" if lang != "en" else ""))


def _score(score: Score | None, lang: str) -> str:
    """A score in the list of lessons: `3 of 4`, or the number of answered questions."""
    if score is None:
        return ""
    if score.is_done:
        return said(lang, "{right} of {count}", right=score.right, count=score.count)
    return said(lang, "{answered} of {count} answered", answered=score.answered, count=score.count)


@contextmanager
def _opened(lesson: Lesson, lang: str) -> Iterator[Session]:
    """A session on a recording of the lesson's program, whose output is not shown."""
    from gradviz.sources.script import Target, run

    with TemporaryDirectory(prefix="gradviz-") as folder:
        program = Path(folder, f"{lesson.name}.py")
        program.write_text(lesson.without_comments, encoding="utf-8")
        trace = program.with_suffix(".gradviz")
        with redirect_stdout(io.StringIO()):
            values = "inputs" if lesson.sets_values else "full"
            run(Target(str(program), False, ()), trace, values=values, engine="numpy")
        with open_trace(trace) as recorded:
            session = Session(recorded, exporter=partial(export_moment, in_lesson=True))
            Exercise(lesson, lang, session, changes_with if lesson.sets_values else None)
            yield session


def _by_lines(session: Session) -> None:
    """Ask each question and read an answer from each line, until the last question or the end of the input."""
    _print(told(session))
    while session.exercise.question is not None:
        click.echo()
        obey(session, "question")
        _print(told(session))
        line = sys.stdin.readline()
        if not line:
            return
        click.echo()
        obey(session, f"answer {line}" if line.strip() else "show-answer")
        _print(told(session))


def _print(pieces: Iterator[str]) -> None:
    for piece in pieces:
        click.echo(piece)
