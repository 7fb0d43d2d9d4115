"""`gradviz debug`: runs a script, with the stepper at its stops."""

import os
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import click

from gradviz.cli.command_process import Job, perform
from gradviz.cli.common import commands_option, fail, say, stderr
from gradviz.cli.export_moment import export_moment
from gradviz.cli.running import SETTINGS, Program, prepared, runs_a_script, target_of, tell, trace_for
from gradviz.diagnose.rule_settings import Settings as CheckSettings
from gradviz.diagnose.settings_file import settings_at
from gradviz.live.debugger import AtTerminal, Commands, Debugger, Reader, ctrl_c_pauses
from gradviz.live.present import BAD
from gradviz.sources.script import Outcome
from gradviz.step.breakpoints import breakpoint_of
from gradviz.step.plain import commands
from gradviz.step.state import Settings
from gradviz.system.console import screen
from gradviz.system.descriptors import write
from gradviz.system.paths import as_argument


@click.command(
    context_settings=SETTINGS,
    epilog="""\b
Examples:
  gradviz debug train.py
  gradviz debug --run train.py --epochs 3
  gradviz debug --break log --break "line 12" --break "grad.rms > 1e3" train.py
  gradviz debug --break nan --commands "why; back; quit" train.py
""",
)
@click.option(
    "-b",
    "--break",
    "breaks",
    multiple=True,
    metavar="WHAT",
    help='Stop at: log, w, "line 12", nan, mutation, "grad.rms > 1e3", ... May be repeated.',
)
@click.option(
    "--start/--run",
    "at_start",
    default=None,
    help="Stop at the first event, or run to the first breakpoint. [default: --run if there is a --break]",
)
@click.option(
    "--nan/--no-nan", "bad", default=True, show_default=True, help="Stop at the first NaN and at the first infinity."
)
@commands_option("continue; why; quit")
@runs_a_script
def debug(program: Program, breaks: tuple[str, ...], at_start: bool | None, bad: bool, text: str | None) -> None:
    """Run SCRIPT like `python` does, and pause it at breakpoints, at errors, and at the first NaN or infinity.

    At a stop, use the commands of `gradviz step`: step back through the events so far, continue the script, or quit,
    which ends it. Ctrl-C pauses it at the next event. The trace is kept."""
    target = target_of("debug", program)
    checks = settings_at(Path.cwd())
    settings = Settings()
    for what in breaks:
        settings.breakpoints.add(breakpoint_of(what, live=True))
    words = ("-m", program.module, program.script) if program.module is not None else (program.script,)
    reader = _reader(text, " ".join(as_argument(word) for word in (*words, *program.arguments) if word))
    starts = not breaks if at_start is None else at_start
    path = trace_for(program.output, f"{target.stem}.debug")
    debugger = Debugger(path, reader, settings, starts, BAD if bad else (), export_moment)
    around = ExitStack()
    running = prepared(program, target, path, companion=debugger)
    around.enter_context(ctrl_c_pauses(lambda: debugger.pauses, lambda line: write(2, line.encode())))

    def after(outcome: Outcome) -> int:
        if not outcome.kept_earlier:
            debugger.ended(f"exit status {outcome.status}")
        return _finish(path, debugger, outcome, checks)

    perform(Job(running, after, around, lambda: not _quits(debugger)))


def _reader(text: str | None, program: str) -> Reader:
    if text is not None:
        return Commands(commands(text), lambda piece: click.echo(piece, file=stderr.file))
    terminal = screen()
    if terminal is None:
        fail(f'debug needs a terminal; without one, use --commands: gradviz debug --commands "continue; why" {program}')
    return AtTerminal(terminal)


def _finish(path: Path, debugger: Debugger, outcome: Outcome, checks: CheckSettings) -> int:
    """Print a summary of the recording, and return the exit status: the script's, if nothing else went wrong."""
    tell(path, outcome, checks)
    if debugger.trouble:
        say(f"gradviz: {debugger.trouble}")
    status = outcome.status or (2 if debugger.trouble else 0)
    if _quits(debugger) and _others_run():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # otherwise the interpreter would wait for the other threads
    return status


def _quits(debugger: Debugger) -> bool:
    return debugger.pauses is not None and debugger.pauses.quitting


def _others_run() -> bool:
    return any(not thread.daemon and thread is not threading.current_thread() for thread in threading.enumerate())
