"""`gradviz step`: steps through a trace, forwards and backwards."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TextIO

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gradviz.cli.common import all_opened, fail, traces_argument
from gradviz.cli.export_moment import export_moment
from gradviz.query.ranks import label_of
from gradviz.step.plain import commands, script
from gradviz.step.state import Session
from gradviz.tracefile import Trace, for_moments
from gradviz.words.escape import clean


@click.command(
    epilog="""\b
Examples:
  gradviz step lesson.gradviz
  gradviz step lesson.gradviz --at 12
  gradviz step lesson.gradviz --finding 1
  gradviz step lesson.gradviz --commands "next-backward; next 3; back; last"
  gradviz step lesson.gradviz --commands @commands.txt
"""
)
@traces_argument
@click.option("--at", type=int, default=1, metavar="N", help="Begin at event N, counted from 1.")
@click.option(
    "--finding", "number", type=click.IntRange(1), metavar="N", help="Begin at finding N of `gradviz check`."
)
@click.option(
    "--commands", "text", metavar="COMMANDS", help='Run "next; back; goto 5", or @FILE, and print plain text.'
)
def step(traces: tuple[Path, ...], at: int, number: int | None, text: str | None) -> None:
    """Step through TRACE event by event: the source, the gradients, the leaves. Default: the newest *.gradviz here.
    Several traces, and the ranks of a folder or a pattern, are stepped side by side: what is typed moves all of them.

    Keys: n next, b back, B next backward pass, y why, w who changed it, ! first NaN, : command, ? help, q quit.
    """
    if text is None and not (_is_terminal(sys.stdin) and _is_terminal(sys.stdout)):
        fail('step needs a terminal; without one, use --commands: gradviz step --commands "next; next; back"')
    with all_opened(traces) as recorded:
        lines = None if text is None else commands(text)
        if lines is not None and len(recorded) > 1:
            _side_by_side(recorded, at - 1, lines)
            return
        session, *others = (Session(for_moments(trace), at - 1, exporter=export_moment) for trace in recorded)
        if number is not None:
            for one, trace in zip((session, *others), recorded, strict=True):
                _go_to_finding(one, trace, number)
        if lines is not None:
            if session.message:
                click.echo(session.message)
                session.message = ""
            for piece in script(session, lines):
                click.echo(piece)
            return
        from gradviz.step.terminal import interact

        interact(session, others=others)


def _go_to_finding(session: Session, trace: Trace, number: int) -> None:
    """Go to the event that proves a finding, and say what it is."""
    from gradviz.diagnose import check
    from gradviz.diagnose.settings_file import settings_at

    findings = check(trace, settings=settings_at(Path.cwd())).findings
    if number > len(findings):
        fail(f"there is no finding {number}: gradviz check finds {len(findings) or 'nothing'} in this trace")
    finding = findings[number - 1]
    if finding.events:
        session.go(finding.events[0])
    session.message = f"finding {number} of {len(findings)}: {finding.rule}: {clean(finding.message)}"


def _side_by_side(traces: list[Trace], at: int, lines: list[str]) -> None:
    """Run each command on every trace, and print what they say beside one another."""
    sessions = [Session(for_moments(trace), at, exporter=export_moment) for trace in traces]
    console = Console(highlight=False)
    console.print(_columns([Text(clean(label_of(trace)), "bold") for trace in traces]))
    for line in lines or [""]:
        told = ["\n".join(script(session, [line] if line else [])) for session in sessions]
        console.print(_columns([Text(text) for text in told]))


def _columns(texts: list[Text]) -> Table:
    """Texts beside one another, each as wide as the others."""
    table = Table.grid(padding=(0, 2), expand=True)
    for _ in texts:
        table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_row(*texts)
    return table


def _is_terminal(stream: TextIO | None) -> bool:
    """Whether a standard stream exists and is a terminal."""
    return stream is not None and stream.isatty()
