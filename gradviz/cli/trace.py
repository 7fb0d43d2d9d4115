"""`gradviz trace`: runs a script and records it."""

import re
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from time import time
from typing import Any

import click

from gradviz.cli import running
from gradviz.cli.command_process import Job, perform
from gradviz.cli.common import PATH, fail, say, stderr
from gradviz.diagnose.settings_file import settings_at
from gradviz.errors import GradvizError
from gradviz.events.values import INPUTS
from gradviz.sources.child_processes import record_children
from gradviz.sources.script import Outcome
from gradviz.tracefile import AutoPasses, Budget, Passes, open_trace, passes_of
from gradviz.words.numbers import few_of

_NAMED = 6  # the most scopes that are listed by name


def _share(context: click.Context, option: click.Parameter, text: str) -> float:
    """The share that an option gives in percent."""
    percent = re.fullmatch(r"(\d{1,9}(\.\d{1,9})?)%?", text)
    if percent is None or not float(percent[1]):
        raise click.BadParameter(f"{text!r} is not of the form 10%")
    return float(percent[1]) / 100


def _pass_numbers(context: click.Context, option: click.Parameter, text: str | None) -> Passes | AutoPasses | None:
    """The numbers, ranges and steps in an option: `1-3,100,every:50`, or `auto`, or `1-1000,auto`; None for `all`."""
    if text is None:
        return Budget()
    try:
        return passes_of(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command(
    context_settings=running.SETTINGS,
    epilog="""\b
Examples:
  gradviz trace train.py --epochs 3
  gradviz trace --graph net.svg -o net.gradviz train.py
  gradviz trace --scope Attention --last 100 train.py
  gradviz trace -m package.train
""",
)
@running.runs_a_script
@click.option(
    "--passes",
    metavar="1-3,100,every:50",
    callback=_pass_numbers,
    help="Record only these backward passes in detail; auto: ever fewer, and those behind a NaN, a jump or an error; "
    "all: each pass, however long the run is.",
)
@click.option(
    "--budget",
    metavar="10%",
    default="10%",
    callback=_share,
    help="The share of a long run's time (from 100 passes and 10 s on) that passes in detail may take.",
)
@click.option("--scope", metavar="NAME", help="Record in detail only inside modules and Functions of this name.")
@click.option(
    "--last", type=click.IntRange(1), metavar="N", help="Keep the last N passes, and those around errors and NaN."
)
@click.option("--aten", is_flag=True, help="Also record the aten ops that PyTorch's ops and nodes are made of.")
@click.option(
    "--profile",
    is_flag=True,
    help="Also measure the time, memory and operations of PyTorch's ops, for `info` and `report`.",
)
@click.option(
    "--histograms",
    is_flag=True,
    help="Also record how activations are distributed, and more of parameters and gradients, for `report` (PyTorch).",
)
@click.option(
    "--printed",
    is_flag=True,
    help="Also keep what SCRIPT prints; sys.stdout gets an attribute for that, which SCRIPT could notice.",
)
@running.check_functions
@running.can_watch
@click.option(
    "--ranks", is_flag=True, help="Also record the ranks that SCRIPT starts, each into NAME.rank0.gradviz and so on."
)
@click.option("--graph", "graph_file", type=PATH, help="Also draw the graph.")
@click.option("-q", "--quiet", is_flag=True, help="Print no summary, and no findings.")
@click.option("--progress", is_flag=True, help="Print every ten seconds how much is recorded.")
def trace(
    program: running.Program, ranks: bool, graph_file: Path | None, quiet: bool, progress: bool, **options: Any
) -> None:
    """Run SCRIPT like `python` does, and record its gradients.

    The script's output, exit status and exceptions do not change; a summary follows on stderr. Options of gradviz come
    before SCRIPT, and arguments of the script after it."""
    graph_file, program = _graph_behind(graph_file, program)
    scope, watch, stop_on = options["scope"], options.pop("watch"), options.pop("stop_on")
    if program.values == INPUTS and scope is not None:
        fail("--values inputs keeps whole passes: leave out --scope, or take --values full")
    budget = options.pop("budget")
    if isinstance(options["passes"], Budget):
        needs_all = ranks or scope or options["last"] or options["histograms"]
        options["passes"] = None if needs_all else running.passes_in_time(program, budget)
    is_asked = click.get_current_context().get_parameter_source("budget") is not click.core.ParameterSource.DEFAULT
    if is_asked and not isinstance(options["passes"], Budget):
        running.warn("--budget has no effect here: other options choose the passes")
    of_ranks = program.for_ranks(**options, watch=watch, stop_on=stop_on, quiet=quiet)
    if command := running.launcher(program):
        if graph_file is not None:
            fail('--graph draws one process: draw the ranks with gradviz graph "NAME.rank*.gradviz"')
        status, traces = running.launch(command, of_ranks)
        if not quiet and traces:
            running.tell_ranks(traces)
        raise SystemExit(status)
    warning = running.options_behind(program)
    target = running.target_of("record", program)
    settings = settings_at(Path.cwd())
    if graph_file is not None:
        from gradviz.pictures.render import check_path

        check_path(graph_file)
    around, began = ExitStack(), time()
    path = running.trace_for(program.output, target.stem)
    if ranks:
        record_children(of_ranks, path)
    if progress:
        around.enter_context(running.progress_told(path))
    watcher = around.enter_context(running.watched_run(path, settings, watch, stop_on))
    launched = running.prepared(program, target, path, watcher, **options)

    def after(outcome: Outcome) -> int:
        said = watcher.said if watcher is not None else ()
        kept = outcome.kept_earlier
        renamed = running.named_by_rank(path) if ranks and not kept else path
        if ranks and running.only_started_ranks(renamed, began, quiet, kept):
            return outcome.status
        is_there = running.tell(renamed, outcome, settings, said, quiet)
        if (others := outcome.others) is not None:
            entered = f"; those entered were {few_of(others, _NAMED)}" if others else ", and none of another"
            running.warn(f"no module or Function named {scope} was entered{entered}")
        if graph_file is not None and is_there:
            _draw(renamed, graph_file)
        # once more: what the script printed may have pushed the first from the screen
        running.warn(warning)
        return outcome.status

    perform(Job(launched, after, around))


def _graph_behind(graph_file: Path | None, program: running.Program) -> tuple[Path | None, running.Program]:
    """Take `--graph FILE` from the very end, after the script's arguments, if it is meant for gradviz: FILE is a
    picture, and the script's own source has no option `"--graph"`."""
    arguments = program.arguments
    if graph_file is not None or len(arguments) < 2 or arguments[-2] != "--graph":
        return graph_file, program
    from gradviz.pictures.render import ENDINGS

    if Path(arguments[-1]).suffix.lower() not in ENDINGS or running.has_option("--graph", program):
        return None, program
    return Path(arguments[-1]), replace(program, arguments=arguments[:-2])


def _draw(path: Path, picture: Path) -> None:
    """Draw the trace. A failure is reported in one line, and does not change the exit status."""
    from gradviz.cli.drawing import Choice, draw

    try:
        with open_trace(path) as recorded:
            draw([recorded], picture, Choice())
    except (GradvizError, OSError) as error:
        say(f"gradviz: {error}")
        return
    stderr.print(f"[dim]gradviz:[/] drew {picture}", markup=True)
