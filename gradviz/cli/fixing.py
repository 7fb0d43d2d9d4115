"""`gradviz fix`: cures a finding by the smallest edit, and proves it."""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter

import click
from rich.console import Console
from rich.text import Text

from gradviz.cli.check import TraceOrScript, is_run
from gradviz.cli.command_process import Job, perform
from gradviz.cli.common import fail, named_traces, opened, say, stderr, stdout_kept, wide_console
from gradviz.cli.running import SETTINGS, Program, passes_in_time, prepared, runs_a_script, target_of, trace_for
from gradviz.compare.parting import equal_text
from gradviz.diagnose.finding import Report, place_of
from gradviz.diagnose.fix import Patch, stored_text
from gradviz.diagnose.settings_file import settings_at
from gradviz.diagnose.text import diff_text
from gradviz.diagnose.trial import Rerun, proof_text, try_cure
from gradviz.errors import GradvizError
from gradviz.query.query import Query
from gradviz.replaying import check as check_trace
from gradviz.sources.script import Outcome
from gradviz.system.paths import as_argument
from gradviz.tracefile import Trace, newest_trace
from gradviz.words.escape import clean


@click.command(
    cls=TraceOrScript,
    context_settings=SETTINGS,
    epilog="""\b
Examples:
  gradviz fix train.py --epochs 3
  gradviz fix --diff train.py | git apply
  gradviz fix --apply train.py
  gradviz fix --finding 2 train.gradviz
""",
)
@runs_a_script
@click.option(
    "--finding",
    "number",
    type=click.IntRange(1),
    default=1,
    metavar="N",
    help="Cure finding N of `gradviz check` [default: the first].",
)
@click.option("--diff", "only_diff", is_flag=True, help="Print only the diff to stdout, and the rest to stderr.")
@click.option("--apply", "writes", is_flag=True, help="Write the edit into the file if it is proved.")
def fix(program: Program, number: int, only_diff: bool, writes: bool) -> None:
    """Cure a finding: print the smallest edit as a diff, and its proof.

    SCRIPT is run and recorded like `gradviz trace` does. A copy with the edit runs next, in the same folder and without
    its output. The two runs are compared: whether the finding is gone, whether another came, the loss, the gradient,
    and where the values begin to differ. TRACE is only read: its edit is printed, and not proved. Default: the newest
    *.gradviz here.

    --apply alone changes a file of yours: if the edit is proved, and the file is committed where git looks after it.

    The exit status is 0 if the edit is proved (of TRACE: printed), or if there is no finding; 1 if no edit is sure, or
    if it is not proved; 2 if the arguments or the state of the file do not allow it.
    """
    if only_diff and writes:
        fail("--diff prints the edit and --apply writes it: give one of them")
    settings = settings_at(Path.cwd())
    began = perf_counter()

    def cured(path: Path, rerun: Rerun | None) -> int:
        with opened(path) as trace:
            return _cured(check_trace(trace, settings=settings), trace, rerun, number, only_diff, writes)

    if program.script is None or is_run(Path(program.script)):
        traces = named_traces([Path(program.script)]) if program.script is not None else [newest_trace()]
        if program.arguments or len(traces) > 1:
            fail("fix takes one TRACE, or a SCRIPT with its arguments")
        if writes:
            fail("--apply runs the program to prove the edit, so it needs SCRIPT: a trace is only read")
        raise SystemExit(cured(traces[0], None))
    target = target_of("fix", program)
    options = ["--engine", program.engine, "--values", program.values]

    def after(outcome: Outcome) -> int:
        if outcome.kept_earlier:  # nothing was recorded, as has been said
            return 1
        seconds = perf_counter() - began
        rerun = Rerun(target.name, target.arguments, options, (), (), settings, seconds, check_trace, equal_text)
        try:
            return cured(path, rerun)
        except (GradvizError, OSError) as error:
            say(f"gradviz: {error}")
            return 2

    around = ExitStack()
    path = trace_for(program.output, target.stem)
    if only_diff:
        around.enter_context(stdout_kept())
    running = prepared(program, target, path, passes=passes_in_time(program))
    perform(Job(running, after, around, failure=2))


fix.params = [option for option in fix.params if option.name not in ("module", "no_source")]


class NoFix(GradvizError):
    """An edit that cannot be tried or written. The message is one line for the user."""


def _cured(report: Report, trace: Trace, rerun: Rerun | None, number: int, only_diff: bool, writes: bool) -> int:
    """Print the edit of a finding and its proof, if there is a `rerun`, and write it if it is proved and wanted.
    Returns the exit status. Raises NoFix if that is impossible, OSError if the file cannot be written."""
    console = stderr if only_diff else wide_console()

    def tell(text: str) -> None:
        console.print(Text(clean(text)))

    if not report.findings:
        tell("no finding, so there is nothing to cure")
        return 0
    if number > len(report):
        raise NoFix(f"there is no finding {number}: check lists {len(report)}")
    finding = report.findings[number - 1]
    tell(f"{number}. {finding.severity} {finding.rule}  {place_of(finding)}: {finding.message}")
    patch = finding.patch
    if not trace.has_sources:
        raise NoFix("the trace has no source texts, so no edit is known")
    if patch is None:
        tell(f"no sure edit: {finding.fix}")
        if others := [str(k) for k, other in enumerate(report, 1) if other.patch is not None]:
            tell(f"--finding {others[0]} has one")
        return 1
    if not only_diff:
        console.print(diff_text(patch), crop=False, soft_wrap=True)
    if rerun is None:
        if patch.stored is None:
            tell(f"{patch.file} is not here with the text that was recorded")
        script = trace.meta.get("script", "")
        command = as_argument(script) if patch.stored is not None else "SCRIPT"
        tell(f"not proved: gradviz fix {command}, with the arguments of the run, runs it with the edit")
    else:
        if writes:
            _check_may_write(patch)
        tried = try_cure(finding, report, Query(trace), rerun)
        for part in proof_text(tried):
            console.print(part)
        if not tried.is_proved:
            return 1
    if only_diff:
        _print_diff(patch)
    if writes and patch.stored is not None:
        _check_may_write(patch)
        patch.stored.write()
        tell(f"written   {patch.file}")
    return 0


def _print_diff(patch: Patch) -> None:
    """Print the diff to stdout: as it is for a program, and safe for a terminal."""
    if sys.stdout.isatty():
        Console(highlight=False).print(diff_text(patch), crop=False, soft_wrap=True)
    else:
        click.echo(patch.diff.encode(patch.stored.encoding if patch.stored else "utf-8"), nl=False)
    if patch.stored is not None and not patch.stored.path.is_relative_to(Path.cwd()):
        say(f"gradviz: git apply takes this diff in {patch.stored.path.parent}")


def _check_may_write(patch: Patch) -> None:
    """Raise NoFix if the file of a patch is not to be written: it has changed, or git could not bring it back."""
    stored = patch.stored
    if stored is None or stored_text(patch.file) != (stored.encoding, stored.before):
        raise NoFix(f"{patch.file} has changed: nothing was written")
    if not os.access(stored.path, os.W_OK):
        raise NoFix(f"{patch.file} is read-only: nothing was written")
    if not any((folder / ".git").exists() for folder in stored.path.parents):
        return
    command = ["git", "--literal-pathspecs", "status", "--porcelain", "--untracked-files=all", "--"]
    git = subprocess.run(
        [*command, stored.path.name], cwd=stored.path.parent, capture_output=True, text=True, check=False
    )
    if git.returncode:
        raise NoFix(f"git does not say whether {patch.file} is committed: {git.stderr.strip()}")
    if git.stdout:
        raise NoFix(f"{patch.file} has changes that are not committed: commit it, so that git can bring it back")
