"""`gradviz step`: steps through a trace, forwards and backwards."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gradviz.cli.common import all_opened, commands_option, fail, language_option, traces_argument
from gradviz.cli.export_moment import export_moment
from gradviz.errors import GradvizError
from gradviz.query.ranks import label_of, ranked_traces
from gradviz.replaying import check, fill_in_where_bad, filled_in_at, told_with
from gradviz.step import CommandError
from gradviz.step.group import Group
from gradviz.step.plain import commands, said_by_each, script
from gradviz.step.state import Session
from gradviz.system.paths import as_argument
from gradviz.tracefile import Trace, for_moments
from gradviz.tracefile.opening import are_of_one_run
from gradviz.words.escape import clean
from gradviz.words.languages import said

if TYPE_CHECKING:
    from gradviz.diagnose import Finding


@click.command(
    epilog="""\b
Examples:
  gradviz step lesson.gradviz
  gradviz step lesson.gradviz --at 12
  gradviz step lesson.gradviz --finding 1
  gradviz step lesson.gradviz --commands "next-backward; next 3; back; last"
  gradviz step lesson.gradviz --commands @commands.txt
  gradviz step "train.rank*.gradviz" --commands "collective; rank 1; next 3"
"""
)
@traces_argument
@click.option("--at", type=int, default=1, metavar="N", help="Begin at event N, counted from 1.")
@click.option("--finding", "number", type=click.IntRange(1), metavar="N", help="Begin at finding N of `gradviz check`.")
@commands_option("next; back; goto 5")
@language_option("screen")
def step(traces: tuple[Path, ...], at: int, number: int | None, text: str | None, lang: str) -> None:
    """Step through TRACE event by event: the source, the gradients, the leaves. Default: the newest *.gradviz here.
    Several traces, and the ranks of a folder or a pattern, are stepped side by side: what is typed moves all of them,
    `collective` to the same collective, and `rank 1` looks into one.

    Keys: n next, b back, B next backward pass, y why, w who changed it, ! first NaN, : command, ? help, q quit."""
    with all_opened(traces) as recorded:
        if text is None and not (_is_terminal(sys.stdin) and _is_terminal(sys.stdout)):
            names = "".join(f" {as_argument(trace)}" for trace in traces)
            fail(
                f'step needs a terminal; without one, use --commands: gradviz step{names} --commands "next; next; back"'
            )
        try:
            lines = None if text is None else commands(text)
        except CommandError as error:
            fail(said(lang, error.text, **error.parts))
        group = Group([session_of(trace, at - 1, lang) for trace in recorded])
        if number is not None:
            _go_to_finding(group, recorded, number)
        if lines is None:
            from gradviz.step.terminal import interact

            interact(group.first)
        elif len(recorded) > 1:
            _side_by_side(group, lines)
        else:
            _one_by_one(group.first, lines)


def session_of(trace: Trace, at: int, language: str) -> Session:
    session = Session(
        for_moments(trace),
        at,
        exporter=export_moment,
        fill=filled_in_at,
        fill_in_where_bad=fill_in_where_bad,
        what_if=told_with,
    )
    session.words.speak(language)
    return session


def _go_to_finding(group: Group, traces: list[Trace], number: int) -> None:
    """Go to the event that proves a finding, and show the finding. Other ranks of a run go to the same collective."""
    from gradviz.diagnose.rank_reports import check_ranks
    from gradviz.diagnose.settings_file import settings_at

    settings = settings_at(Path.cwd())
    if not are_of_one_run(traces):
        for session, trace in zip(group.sessions, traces, strict=True):
            _show_finding(session, check(trace, settings=settings).findings, number, "trace")
        return
    for trace in traces:
        fill_in_where_bad(trace)
    findings = check_ranks(ranked_traces(traces), settings=settings).findings
    ranks = findings[number - 1].ranks if number <= len(findings) else ()
    session = group.by_rank[ranks[0]] if ranks else group.first
    _show_finding(session, findings, number, "run")
    group.follow(session)


def _show_finding(session: Session, findings: Sequence[Finding], number: int, what: str) -> None:
    """Go to the event that proves a finding of a trace or a run, and show the finding."""
    if number > len(findings):
        fail(f"there is no finding {number}: gradviz check finds {len(findings) or 'nothing'} in this {what}")
    finding = findings[number - 1]
    if finding.events:
        session.go(finding.events[0])
    session.message = f"finding {number} of {len(findings)}: {finding.rule}: {clean(finding.message)}"


def _one_by_one(session: Session, lines: list[str]) -> None:
    """Run each command on a trace, and print its output."""
    if session.message:
        click.echo(_taken_message(session))
    try:
        for piece in script(session, lines):
            click.echo(piece)
    except GradvizError as error:
        fail(session.say(error.text, **error.parts))


def _side_by_side(group: Group, lines: list[str]) -> None:
    """Run each command on all traces, and print their outputs beside one another."""
    console = Console(highlight=False)
    having = [session for session in group.sessions if session.message]
    for session in having:  # a column would cut the message
        label = f"{clean(label_of(session.trace))}: " if len(having) > 1 else ""
        click.echo(label + _taken_message(session))
    console.print(_columns([Text(clean(label_of(session.trace)), "bold") for session in group.shown]))
    for line in lines or [""]:
        outputs = said_by_each(group, line)
        if len(outputs) < len(group.sessions):
            console.print(Text(clean(label_of(group.first.trace)), "bold"))
        console.print(_columns([Text(text) for text in outputs]))


def _taken_message(session: Session) -> str:
    """The message of a session, which is then cleared."""
    message, session.message = session.message, ""
    return message


def _columns(texts: list[Text]) -> Table:
    """Texts beside one another in columns of equal width."""
    table = Table.grid(padding=(0, 2), expand=True)
    for _ in texts:
        table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_row(*texts)
    return table


def _is_terminal(stream: TextIO | None) -> bool:
    """Whether a standard stream exists and is a terminal."""
    return stream is not None and stream.isatty()
