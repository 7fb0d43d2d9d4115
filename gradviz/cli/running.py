"""Shared by the commands that run a script: their options, the script to run, and the summary at the end."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from gradviz.cli.behind_script import options_behind
from gradviz.cli.common import fail, say, stderr
from gradviz.cli.findings import hints
from gradviz.cli.summary import summary
from gradviz.diagnose import Finding
from gradviz.diagnose.rule_settings import Settings
from gradviz.events.values import GRADES
from gradviz.sources.pytorch import is_installed
from gradviz.sources.ranks_here import of_this_rank
from gradviz.sources.script import Outcome, Target
from gradviz.system.paths import as_argument
from gradviz.tracefile import TraceError, open_trace
from gradviz.tracefile.claim import claim_first
from gradviz.tracefile.file import first_bytes
from gradviz.words.escape import clean

if TYPE_CHECKING:
    from gradviz.cli.watch import Watch

SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False}

_PARAMETERS = (
    click.option("-m", "module", metavar="MODULE", help="Run a module, as `python -m` does."),
    click.option("-o", "output", type=click.Path(path_type=Path), help="The trace [default: here, named after SCRIPT]"),
    click.option(
        "--engine",
        type=click.Choice(["auto", "numpy", "torch"]),
        default="auto",
        show_default=True,
        help="What `import torch` gives: PyTorch, gradviz's NumPy engine, or (auto) PyTorch where it is installed.",
    ),
    click.option(
        "--values",
        type=click.Choice(GRADES),
        default="stats",
        show_default=True,
        help="Which values of tensors to keep; small tensors are kept in full unless `none`. `inputs`: what a pass can "
        "be run again from, for what-if.",
    ),
    click.option(
        "--no-source", is_flag=True, help="Leave the source texts out of the trace; files and lines stay."
    ),
    click.argument("script", required=False),
    click.argument("arguments", nargs=-1, type=click.UNPROCESSED),
)  # fmt: skip


def runs_a_script(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `-m`, `-o`, `--engine`, `--values`, `--no-source`, SCRIPT and its arguments."""
    for decorate in reversed(_PARAMETERS):
        command = decorate(command)
    return command


check_functions = click.option(
    "--check-functions",
    is_flag=True,
    help="Compare the backward of custom Functions with finite differences: their forward runs again.",
)


_WATCH_OPTIONS = (
    click.option(
        "--watch", is_flag=True, help="Check while it runs; say a finding the first time that it is sure."
    ),
    click.option(
        "--stop-on",
        type=click.Choice(["error", "warning"]),
        help="End the run, with status 3, at the first such finding that is sure.",
    ),
)


def can_watch(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `--watch` and `--stop-on`."""
    for decorate in reversed(_WATCH_OPTIONS):
        command = decorate(command)
    return command


def watched_run(
    path: Path, settings: Settings, watch: bool, stop_on: str | None
) -> AbstractContextManager[Watch | None]:
    """A context that checks the trace at `path` while its block runs; a null context if neither option is given."""
    if not watch and stop_on is None:
        return nullcontext()
    from gradviz.cli.watch import watched

    return watched(path, settings, stop_on)


def target_of(
    verb: str, module: str | None, script: str | None, arguments: tuple[str, ...], engine: str
) -> Target:
    """The script or module to run. Exits with one line if none is given, or if this version cannot `verb` it."""
    warning = options_behind(module, script, arguments)
    if module is not None:
        arguments = arguments if script is None else (script, *arguments)
    elif script is None:
        fail(
            f"give a SCRIPT to run, or -m MODULE (see gradviz {click.get_current_context().info_name} --help)"
        )
    if engine == "torch" and not is_installed():
        fail(
            f"cannot {verb} PyTorch, which is not installed: pip install torch, or take --engine numpy, which runs "
            "the script on gradviz's engine"
        )
    warn_of_options(warning)
    if module is None:
        _check_is_program(Path(script or ""))
        _check_is_named_first(script or "", arguments)
    target = Target(module or script or "", module is not None, arguments)
    target.check()
    return target


def _check_is_program(path: Path) -> None:
    """Exit with one line for a file that is no program: a trace, which its own recording would replace, or a
    notebook."""
    if path.suffix == ".gradviz" and path.is_file() and first_bytes(path, 6) == b"SQLite":
        fail(f"{path} is a trace, not a script: gradviz step {as_argument(path)} steps through it")
    if path.suffix == ".ipynb" and path.is_file():
        fail(
            f"{path} is a notebook: jupyter nbconvert --to script {as_argument(path)} makes a script of it; "
            "in the notebook, %load_ext gradviz, and then %%gradviz above a cell, records that cell"
        )


def _check_is_named_first(script: str, arguments: tuple[str, ...]) -> None:
    """Exit with one line where `python` or an option of the script stands in place of the script."""
    command, words = click.get_current_context().info_name, [*script.split(), *arguments]
    if Path(script).exists() or not words:
        return
    if re.fullmatch(r"python[0-9.]*(\.exe)?", Path(words[0]).name):
        rest = " ".join(map(as_argument, words[1:])) or "SCRIPT"
        fail(f"leave {words[0]} out, gradviz runs the script itself: gradviz {command} {rest}")
    if script.startswith("-"):
        fail(f"gradviz {command} has no option {script}; options of the script come after SCRIPT")


def trace_for(output: Path | None, stem: str) -> Path:
    """The file in which a run is recorded: the value of `-o`, otherwise STEM.gradviz, or STEM.2.gradviz and so on if
    other runs record into it. Each rank has its own file. Raises OSError if no file can be made."""
    if output is not None:
        return of_this_rank(output)
    stems = chain([stem], (f"{stem}.{number}" for number in count(2)))
    try:
        return claim_first(of_this_rank(Path(f"{name}.gradviz")) for name in stems)
    except OSError as error:
        raise OSError(f"{error} (-o FILE writes the trace elsewhere)") from error


def warn_of_options(message: str) -> None:
    """Warn that options of gradviz after the script go to the script, if there is such a message."""
    if message:
        stderr.print(Text(clean(f"gradviz: {message}"), "yellow"))


def tell(
    path: Path, outcome: Outcome, settings: Settings, said: Collection[Finding] = (), quiet: bool = False
) -> bool:
    """Print a summary of the recording, and its strongest findings without those in `said`; neither if `quiet`.
    Returns whether there is a trace to be read."""
    if outcome.lost and not path.exists():  # the loss has been reported
        return False
    try:
        with open_trace(path) as recorded:
            if quiet:
                return True
            stderr.print(summary(recorded, outcome))
            for line in hints(recorded, settings, outcome.error is not None, said):
                stderr.print(line)
    except (TraceError, OSError) as error:
        say(f"gradviz: {error}")
        return False
    return True
