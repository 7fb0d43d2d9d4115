"""`gradviz step`: steps through a trace, forwards and backwards."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TextIO

import click

from gradviz.cli.common import fail, opened, trace_argument
from gradviz.cli.moment import export_moment
from gradviz.step.plain import commands, script
from gradviz.step.state import Session


@click.command(
    epilog="""\b
Examples:
  gradviz step lesson.gradviz
  gradviz step lesson.gradviz --at 12
  gradviz step lesson.gradviz --commands "next-backward; next 3; back; last"
  gradviz step lesson.gradviz --commands @commands.txt
"""
)
@trace_argument
@click.option("--at", type=int, default=1, metavar="N", help="Begin at event N, counted from 1.")
@click.option(
    "--commands", "text", metavar="COMMANDS", help='Run "next; back; goto 5", or @FILE, and print plain text.'
)
def step(trace: Path | None, at: int, text: str | None) -> None:
    """Step through TRACE event by event: the source, the gradients, the leaves. Default: the newest *.gradviz here.

    Keys: n next, b back, B next backward pass, y why, w who changed it, ! first NaN, : command, ? help, q quit.
    """
    if text is None and not (_is_terminal(sys.stdin) and _is_terminal(sys.stdout)):
        fail('step needs a terminal; without one, use --commands: gradviz step --commands "next; next; back"')
    with opened(trace) as recorded:
        lines = None if text is None else commands(text)
        session = Session(recorded, at - 1, exporter=export_moment)
        if lines is not None:
            for piece in script(session, lines):
                click.echo(piece)
            return
        from gradviz.step.terminal import interact

        interact(session)


def _is_terminal(stream: TextIO | None) -> bool:
    """Whether a standard stream exists and is a terminal."""
    return stream is not None and stream.isatty()
