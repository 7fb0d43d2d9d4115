"""`gradviz check`: finds what went wrong in a run."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any

import click

from gradviz.cli import running
from gradviz.cli.command_process import Job, perform
from gradviz.cli.common import all_opened, fail, format_option, named_traces, stdout_kept, wide_console
from gradviz.cli.running import check_functions
from gradviz.diagnose import Report
from gradviz.diagnose.rank_reports import check_ranks
from gradviz.diagnose.rules import RULES
from gradviz.diagnose.run_rules import rule_called
from gradviz.diagnose.settings_file import settings_at
from gradviz.diagnose.text import as_json, as_lines, as_sarif, page_of, page_text, report_text
from gradviz.diagnose.trial import Rerun, Tried, tried_as_json, tried_text, try_cure
from gradviz.query.query import Query
from gradviz.query.ranks import ranked_traces
from gradviz.replaying import check as check_trace
from gradviz.replaying import fill_in_where_bad
from gradviz.sources.script import Outcome
from gradviz.system.paths import as_argument
from gradviz.tracefile import Trace, newest_trace
from gradviz.tracefile.opening import in_order
from gradviz.words.escape import json_text

COMPARING = "wrong-custom-gradient"  # the rule that uses the comparisons of --check-functions
_SQLITE = b"SQLite format 3\0"


def _rule_ids(context: click.Context, option: click.Parameter, text: str) -> tuple[str, ...]:
    """The ids of rules in an option, which are separated by commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _explain(context: click.Context, option: click.Parameter, name: str | None) -> None:
    """Print the page of a rule, and exit."""
    if name is not None:
        wide_console().print(page_text(page_of(rule_called(name))), crop=False)
        context.exit()


class TraceOrScript(click.Command):
    """A command whose options after a SCRIPT belong to the script, and after a TRACE to gradviz."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        if not any(map(_is_script, args)) and "-m" not in args:
            context.allow_interspersed_args = True
            context.ignore_unknown_options = False
        return super().parse_args(context, args)


def _is_script(argument: str) -> bool:
    """Whether an argument is the path of a file that is not a trace."""
    path = Path(argument)
    return path.exists() and not is_run(path)


def is_run(path: Path) -> bool:
    """Whether a path names a trace, or the traces of a run: a folder of traces that is not a program, or a pattern."""
    if path.is_dir():
        return not (path / "__main__.py").exists() and any(path.glob("*.gradviz"))
    return is_trace(path)


def is_trace(path: Path) -> bool:
    """Whether a path is a trace, by its ending or its content."""
    if path.suffix.lower() == ".gradviz":
        return True
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


@click.command(
    cls=TraceOrScript,
    context_settings=running.SETTINGS,
    epilog="""\b
Examples:
  gradviz check train.py --epochs 3
  gradviz check train.gradviz --format json
  gradviz check "train.rank*.gradviz"
  gradviz check --select stale-gradient,late-clip train.py
  gradviz check --watch --stop-on error train.py
  gradviz check --try-cures --diff train.py
  gradviz check --explain stale-gradient
""",
)
@running.runs_a_script
@format_option("text", "short", "json", "sarif", what="the findings")
@check_functions
@running.can_watch
@click.option("--select", metavar="RULE,...", default="", callback=_rule_ids, help="Check only these rules.")
@click.option("--ignore", metavar="RULE,...", default="", callback=_rule_ids, help="Leave out these rules.")
@click.option("--not-checked", "names_all", is_flag=True, help="Name each rule that was not checked, and why.")
@click.option(
    "--fail-on",
    type=click.Choice(["error", "warning"]),
    help="Exit with status 1 if there is a finding of this severity or a higher one [default: warning].",
)
@click.option(
    "--explain",
    metavar="RULE",
    is_eager=True,
    expose_value=False,
    callback=_explain,
    help="Say what a rule finds, why it is bad, with an example and the cure, and leave.",
)
@click.option(
    "--try-cures",
    is_flag=True,
    help="Apply the cure of the first finding to a copy of SCRIPT, run it, and say what became of it.",
)
@click.option("--diff", "with_diffs", is_flag=True, help="Print the edit of each cure as a diff below it.")
def check(
    program: running.Program,
    form: str,
    check_functions: bool,
    watch: bool,
    stop_on: str | None,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    names_all: bool,
    fail_on: str | None,
    try_cures: bool,
    with_diffs: bool,
) -> None:
    """Find what went wrong in a run: TRACE is checked; SCRIPT is run and recorded first, like `gradviz trace` does.
    The ranks of one run may be given as traces, a folder or a pattern: what several ranks have is one finding.

    The script's output and exit status do not change, except that findings turn status 0 into 1, and that it
    writes to stderr with --format short, json or sarif, which have stdout for themselves. Default: the newest
    *.gradviz here. Options of gradviz come before SCRIPT, and arguments of the script after it.
    Settings in [tool.gradviz] of pyproject.toml apply.
    """
    settings = settings_at(Path.cwd())
    if try_cures and form in ("short", "sarif"):
        fail("--try-cures goes with --format text or json")
    if try_cures and program.module is not None:
        fail("--try-cures needs a SCRIPT: what -m runs is imported from where it is")
    script, arguments = program.script, program.arguments
    began = perf_counter()

    def tried(report: Report, trace: Trace) -> Tried | None:
        """Try the first cure on a copy of the script."""
        if not report.findings:
            return None
        options = ["--engine", program.engine, "--values", program.values]
        seconds = perf_counter() - began
        rerun = Rerun(script or "", arguments, options, select, ignore, settings, seconds, check_trace)
        return try_cure(report.findings[0], report, Query(trace), rerun)

    def checked(paths: list[Path], status: int = 0) -> int:
        """Print the findings of a trace, or of the traces of all ranks, and return the exit status."""
        with all_opened(tuple(paths)) as traces:
            of: Trace | Mapping[int, Trace] = traces[0]
            if len(traces) == 1:
                report = check_trace(traces[0], select, ignore, settings)
            else:
                of = ranks = ranked_traces(traces)
                filled_in = [fill_in_where_bad(trace) for trace in traces]
                report = check_ranks(ranks, select, ignore, settings, in_processes=not any(filled_in))
            outcome = [tried(report, traces[0])] if try_cures else []
            _print(report, of, form, outcome, with_diffs, names_all)
        return status or int(bool(report.at_least(fail_on or settings.fail_on)))

    if program.module is None and (script is None or is_run(Path(script))):
        named = [Path(name) for name in (*([script] if script else []), *arguments)]
        if not all(map(is_run, named)):
            fail(f"check reads the traces of one run; {arguments[0]} is one argument too many")
        traces = named_traces(named) or [newest_trace()]
        if len(traces) > 1 and in_order(traces) is None:
            fail(f"check reads one TRACE, or the ranks of one run; {traces[1]} is one argument too many")
        if try_cures:
            fail("--try-cures runs the program again, so it needs SCRIPT: a trace is only read")
        if check_functions:
            fail("--check-functions runs custom Functions again, so it needs SCRIPT: a trace is only read")
        if watch or stop_on is not None:
            fail("--watch and --stop-on check while a program runs, so they need SCRIPT: a trace is only read")
        raise SystemExit(checked(traces))
    if command := running.launcher(program):
        with stdout_kept() if form != "text" else nullcontext():
            status, traces = running.launch(command, program.for_ranks(check_functions=check_functions))
        raise SystemExit(checked(traces, status) if traces else status)
    if program.module is None and Path(script or "").suffix.lower() not in ("", ".py", ".pyw", ".ipynb"):
        fail(f"{as_argument(script or '')} is neither a trace nor a Python program, whose name ends in .py")
    target = running.target_of("check", program)
    compares = check_functions or COMPARING in (select or settings.select)
    around = ExitStack()
    path = running.trace_for(program.output, target.stem)
    if form != "text":
        around.enter_context(stdout_kept())
    chosen = replace(settings, select=select or settings.select, ignore=ignore or settings.ignore)
    watcher = around.enter_context(running.watched_run(path, chosen, watch, stop_on))
    passes = running.passes_in_time(program)
    launched = running.prepared(program, target, path, watcher, check_functions=compares, passes=passes)

    def after(outcome: Outcome) -> int:
        if not outcome.kept_earlier:
            return checked([path], outcome.status)
        if form != "text":
            reasons = tuple((rule.id, "nothing was recorded") for rule in RULES)
            _print(Report((), (), reasons), {}, form, [], with_diffs, names_all)
        return outcome.status

    perform(Job(launched, after, around, failure=2))


def _print(
    report: Report,
    trace: Trace | Mapping[int, Trace],
    form: str,
    outcome: Sequence[Tried | None],
    with_diffs: bool,
    names_all: bool,
) -> None:
    """Print a report of a trace or of all ranks, and the result of its first cure if that was tried. With `names_all`
    the text names each rule that was not checked."""
    if form == "text":
        console = wide_console()
        console.print(report_text(report, trace, console, names_all, with_diffs), crop=False)
        for line in chain.from_iterable(map(tried_text, outcome)):
            console.print(line, crop=False, soft_wrap=True)
        return
    if form == "short":
        click.echo("".join(f"{line}\n" for line in as_lines(report)), nl=False)
        return
    data: dict[str, Any] = as_json(report) if form == "json" else as_sarif(report)
    for tried in outcome:
        data["tried"] = tried_as_json(tried)
    click.echo(json_text(data))
