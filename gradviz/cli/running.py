"""The commands that run a script: their options, the script, a note while it is recorded, and the summary at the
end."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, fields
from functools import wraps
from importlib.util import find_spec
from itertools import chain, count, takewhile
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic, time
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group
from rich.text import Text

from gradviz.background import Background
from gradviz.cli.common import all_opened, fail, line_of_error, one_of, say, stderr
from gradviz.cli.findings import hints
from gradviz.diagnose import Finding
from gradviz.diagnose.rule_settings import Settings
from gradviz.events.values import GRADES, INPUTS
from gradviz.query import Query
from gradviz.query.overview import LeafInfo, Overview, overview
from gradviz.sources.child_processes import SETTINGS as SETTINGS_OF_RANKS
from gradviz.sources.child_processes import record_children
from gradviz.sources.pytorch import is_installed
from gradviz.sources.ranks_here import of_rank, of_this_rank, rank_meta
from gradviz.sources.script import Outcome, Running, Target
from gradviz.system.paths import as_argument
from gradviz.tracefile import Budget, Trace, TraceError, if_long, open_trace
from gradviz.tracefile.chosen import BUDGET
from gradviz.tracefile.file import beside, claim_first, first_bytes
from gradviz.tracefile.opening import pattern_of, rank_in
from gradviz.tracefile.sites import is_users
from gradviz.words.escape import clean
from gradviz.words.numbers import duration, listed, of_passes, plural, size

if TYPE_CHECKING:
    from gradviz.cli.watch import Watch


SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False}

_PARAMETERS = (
    click.option("-m", "module", metavar="MODULE", help="Run a module, as `python -m` does."),
    click.option("-o", "output", type=click.Path(path_type=Path), help="The trace [default: here, named after SCRIPT]"),
    one_of(
        ("auto", "numpy", "torch"), "--engine",
        help="What `import torch` gives: PyTorch, gradviz's NumPy engine, or (auto) PyTorch where it is installed.",
    ),
    one_of(
        GRADES, "--values", default="stats",
        help="Which values of tensors to keep; small tensors are kept in full unless `none`. `inputs`: what a pass can "
        "be run again from, for what-if.",
    ),
    click.option(
        "--no-source", is_flag=True, help="Leave the source texts out of the trace; files and lines stay."
    ),
    click.argument("script", required=False),
    click.argument("arguments", nargs=-1, type=click.UNPROCESSED),
)  # fmt: skip


@dataclass(frozen=True)
class Program:
    """A program to run, as options and arguments name it, and how to record it. A command without `-m` or
    `--no-source` leaves the last fields as they are."""

    output: Path | None
    engine: str
    values: str
    script: str | None
    arguments: tuple[str, ...]
    module: str | None = None
    no_source: bool = False

    def for_ranks(self, **options: Any) -> dict[str, Any]:
        """The settings of the ranks that it starts, which record themselves."""
        names = ("values", "engine", "no_source", "output")
        return {**{name: getattr(self, name) for name in names}, **options}


def runs_a_script(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command a Program as its first argument: `-m`, `-o`, `--engine`, `--values`, `--no-source`, SCRIPT and its
    arguments."""

    @wraps(command)
    def with_program(**options: Any) -> Any:
        names = [field.name for field in fields(Program) if field.name in options]
        return command(Program(**{name: options.pop(name) for name in names}), **options)

    decorated: Callable[..., Any] = with_program
    for decorate in reversed(_PARAMETERS):
        decorated = decorate(decorated)
    return decorated


check_functions = click.option(
    "--check-functions",
    is_flag=True,
    help="Compare the backward of custom Functions with finite differences: their forward runs again.",
)


def can_watch(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `--watch` and `--stop-on`."""
    command = click.option(
        "--stop-on",
        type=click.Choice(["error", "warning"]),
        help="End the run, with status 3, at the first such finding that is sure.",
    )(command)
    return click.option(
        "--watch", is_flag=True, help="Check while it runs; say a finding the first time that it is sure."
    )(command)


def watched_run(
    path: Path, settings: Settings, watch: bool, stop_on: str | None
) -> AbstractContextManager[Watch | None]:
    """A context that checks the trace at `path` while its block runs; a null context if neither option is given."""
    if not watch and stop_on is None:
        return nullcontext()
    from gradviz.cli.watch import watched

    return watched(path, settings, stop_on)


def passes_in_time(program: Program, share: float = 0.1) -> Budget | None:
    """The passes of a program for whose details there is time; None for all of them, where each rank would choose
    others, or a pass is to run again."""
    needs_all = rank_meta() or launcher(program) or program.values == INPUTS
    return None if needs_all else Budget(share)


def prepared(program: Program, target: Target, path: Path, watcher: Watch | None = None, **options: Any) -> Running:
    """The program, ready to be run and recorded into `path`. Raises ScriptError, OSError as `Running`."""
    return Running(
        target,
        path,
        values=program.values,
        engine=program.engine,
        stopper=watcher.stopper if watcher is not None else None,
        say=say,
        source=not program.no_source,
        **options,
    )


def target_of(verb: str, program: Program) -> Target:
    """The script or module to run. Exits with one line if none is given, or if this version cannot `verb` it."""
    module, script, arguments = program.module, program.script, program.arguments
    warning = options_behind(program)
    if module is not None:
        arguments = arguments if script is None else (script, *arguments)
    elif script is None:
        command = click.get_current_context().info_name
        fail(f"give a SCRIPT to run, or -m MODULE (see gradviz {command} --help)")
    if program.engine == "torch" and not is_installed():
        fail(
            f"cannot {verb} PyTorch, which is not installed: pip install torch, or take --engine numpy, which runs "
            "the script on gradviz's engine"
        )
    warn(warning)
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
    other runs record into it. Each rank has its own file. Exits with one line for the name of a picture. Raises OSError
    if no file can be made."""
    if output is not None:
        if output.suffix not in ("", ".gradviz"):
            from gradviz.pictures.render import ENDINGS

            if output.suffix.lower() in ENDINGS:
                name = as_argument(output)
                fail(f"-o names the trace, not a picture: gradviz trace --graph {name} SCRIPT draws {name}")
        return of_this_rank(output)
    stems = chain([stem], (f"{stem}.{number}" for number in count(2)))
    try:
        return claim_first(of_this_rank(Path(f"{name}.gradviz")) for name in stems)
    except OSError as error:
        raise OSError(f"{error} (-o FILE writes the trace elsewhere)") from error


def warn(message: str) -> None:
    """Print a warning, if there is one."""
    if message:
        stderr.print(Text(clean(f"gradviz: {message}"), "yellow"))


def tell(path: Path, outcome: Outcome, settings: Settings, said: Collection[Finding] = (), quiet: bool = False) -> bool:
    """Print a summary of the recording, and its strongest findings without those in `said`; neither if `quiet`.
    Returns whether there is a trace of this run."""
    if outcome.kept_earlier or (outcome.lost and not path.exists()):  # which has been reported
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


def has_option(option: str, program: Program) -> bool:
    """Whether the source of the script or module has the option in quotes, the sign of an option of its own."""
    return re.search(rf"""["']{re.escape(option)}["'=]""", _source_of(program)) is not None


def options_behind(program: Program) -> str:
    """A message that names the options of the command that stand behind the script, and gives the command line with
    them before it. Empty if there are none, or if the script has options of these names itself, as a module of a
    library that is run by `-m` may have."""
    module, script, arguments = program.module, program.script, program.arguments
    if module is not None and not is_users(str(_file_of(module))):
        return ""
    known = {name: option for option in click.get_current_context().command.params for name in option.opts}
    moved, rest, named = [], [], []
    words = list(takewhile(lambda word: word != "--", arguments))
    while words:
        word = words.pop(0)
        name = word.partition("=")[0]
        option = known.get(name) if word.startswith("-") else None
        if not isinstance(option, click.Option) or has_option(name, program):
            rest.append(word)
            continue
        named.append(name)
        moved.append(word)
        if not option.is_flag and name == word and words:
            moved.append(words.pop(0))
    if not named:
        return ""
    rest += arguments[len(moved) + len(rest) :]
    target = module if module is not None else Path(script or "").name
    message = f"{listed(dict.fromkeys(named))} after {target} {'goes' if len(named) == 1 else 'go'} to {target}"
    return f"{message}; for gradviz: {_command(moved, program, rest)}"


def _command(moved: list[str], program: Program, rest: list[str]) -> str:
    """The command line that was typed, with some words moved to before the script."""
    name = click.get_current_context().info_name or ""
    script_words = [] if program.script is None else [program.script]
    behind = [*script_words, *program.arguments]
    before = sys.argv[2 : len(sys.argv) - len(behind)] if sys.argv[-len(behind) :] == behind else []
    return " ".join(map(as_argument, ["gradviz", name, *moved, *before, *script_words, *rest]))


def _source_of(program: Program) -> str:
    """The source text of the script or module; empty if it cannot be read."""
    path = _file_of(program.module) if program.module is not None else Path(program.script or "")
    try:
        return path.read_text(encoding="utf-8", errors="replace") if path is not None else ""
    except (OSError, ValueError):
        return ""


def _file_of(module: str) -> Path | None:
    """The file that `-m` runs. It is looked up without an import of the packages around it."""
    top, *inner = module.split(".")
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None if spec is None or inner or spec.origin is None else Path(spec.origin)
    place = Path(spec.submodule_search_locations[0], *inner)
    return place / "__main__.py" if place.is_dir() else place.with_suffix(".py")


_NAMED = 6  # the most leaves that are listed by name


def summary(trace: Trace, outcome: Outcome) -> Group:
    """A summary of the recording, and commands to continue with."""
    trace = if_long(trace)
    known = overview(Query(trace))
    lines = [_counts(trace, known), *_leaves(known), *_other_ranks(trace)]
    if outcome.error is not None:
        lines.append(_error(known, trace))
    return Group(*lines, _next(trace, known))


def _other_ranks(trace: Trace) -> list[Text]:
    """A note that the other ranks are not recorded, if this process has started them itself."""
    meta = trace.meta
    are_recorded = SETTINGS_OF_RANKS in os.environ or rank_meta() or rank_in(trace.path) >= 0
    if are_recorded or "rank" not in meta or not trace.passes_begun:
        return []
    note = f"this process is rank {meta['rank']} of {meta.get('world', '?')}, and the others are not recorded"
    return [_line("ranks", f"{note}: gradviz trace --ranks SCRIPT records each", "yellow")]


def _line(label: str, text: str, style: str = "") -> Text:
    return Text.assemble((f"gradviz: {label} ", "dim"), (clean(text), style))


def _counts(trace: Trace, found: Overview) -> Text:
    if not found.ops and not found.passes:
        return _line("recorded", f"no operation on a tensor → {trace.path}", "bold")
    passes = plural(found.passes, "backward pass", "backward passes")
    if found.kept:
        passes += f" of {trace.passes_begun:,} kept ({found.kept})"
    passes += of_passes(found.passes, found.detailed, found.shapes)
    if trace.meta.get("passes", "").endswith(BUDGET):
        passes += " (--passes N records pass N)"
    counts = f"{plural(found.ops, 'operation')}, {passes}, {plural(found.events, 'event')}"
    return _line("recorded", f"{counts} → {trace.path}", "bold")


def _leaves(found: Overview) -> list[Text]:
    wanting = found.wanting
    if not found.ops and not wanting and not found.of_others:
        return []
    if not wanting and found.of_others:
        note = "no leaf requires grad in this process; those that it started are not recorded"
        cure = "gradviz trace --ranks SCRIPT records each; so does torchrun -m gradviz trace SCRIPT"
        return [_line("leaves", note, "yellow"), _line("ranks", cure)]
    if not wanting:
        when = " at the end" if found.passes else ", and no backward pass ran"
        return [_line("leaves", f"no leaf requires grad{when}")]
    lacking = [leaf for leaf in wanting if not (leaf.has_grad or leaf.is_cleared)]
    kinds = (
        ("with a gradient", [leaf for leaf in wanting if leaf.has_grad], "green"),
        ("with a gradient that was cleared", [leaf for leaf in wanting if leaf.is_cleared], "green"),
        ("with a gradient that was returned", [leaf for leaf in lacking if leaf.is_returned], "green"),
        ("without a gradient", [leaf for leaf in lacking if not leaf.is_returned], "yellow"),
    )
    return [_line("leaves", f"{len(own)} {what}: {_names(own)}", style) for what, own, style in kinds if own]


def _names(leaves: list[LeafInfo]) -> str:
    counts = Counter(leaf.name for leaf in leaves)
    named = [f"{name} ×{count}" if count > 1 else name for name, count in counts.items()]
    more = len(named) - _NAMED
    return ", ".join(named[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _error(found: Overview, trace: Trace) -> Text:
    if found.error is None:
        return _line("error", "the script failed", "red")
    line, node_line = line_of_error(found.error, trace), found.error.get("node_line")
    place = f" at {line}" if line else ""
    node = f"; the node at fault was made at line {node_line}" if node_line else ""
    return _line("error", f"{found.error['type']}{place}{node}", "red")


def _next(trace: Trace, found: Overview) -> Text:
    name = as_argument(trace.path)
    if not found.ops:
        return _line("next", f"gradviz info {name}")
    return _line("next", f"gradviz graph {name}  ·  gradviz step {name}  ·  gradviz info {name}")


EVERY = 10.0  # seconds


@contextmanager
def progress_told(path: Path, every: float = EVERY) -> Iterator[None]:
    """A context that prints a line on stderr every few seconds: the time, and the size of the trace at `path`."""
    file, began = path.absolute(), monotonic()
    # No Event: Ctrl-C inside its `set` can leave its lock taken for good.
    over: SimpleQueue[None] = SimpleQueue()

    def run() -> None:
        while True:
            with suppress(Empty):
                return over.get(timeout=every)
            with suppress(OSError):  # the file may be gone
                is_begun = not beside(file).exists()  # otherwise an earlier trace is still at the path
                recorded = size(file.stat().st_size) if is_begun else "nothing"
                say(f"gradviz: {recorded} recorded in {duration(monotonic() - began)}")

    thread = Background(run, lambda: over.put(None))
    thread.start()
    try:
        yield
    finally:
        over.put(None)
        thread.join()


_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
_COMMANDS = ("torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "srun")
# Launchers that start a single process without a rank, if there is only one device.
_ONE, _ONE_MODULE = ("accelerate", "accelerate.exe"), "accelerate.commands.launch"
_SIGNALLED = 128  # a shell adds this to the number of a signal


def launcher(program: Program) -> list[str]:
    """The command line of a launcher, if a launcher is to be run: `-m torch.distributed.run`, or `torchrun` if there
    is no script of that name; otherwise empty."""
    module, script, arguments = program.module, program.script, program.arguments
    if module in _MODULES:
        return [sys.executable, "-m", module, *([] if script is None else [script]), *arguments]
    if module is None and script in _COMMANDS and not Path(script).exists():
        file = shutil.which(script)
        return [file, *arguments] if file is not None else []
    return []


def launch(command: Sequence[str], settings: Mapping[str, Any]) -> tuple[int, list[Path]]:
    """Run a launcher, and record each of its ranks. Returns its exit status, and the traces."""
    import subprocess  # here, since other commands do not need it

    record_children({**settings, "quiet": True}, starts_one=Path(command[0]).name in _ONE or _ONE_MODULE in command)
    began = time()
    status = subprocess.call(command)
    traces = _recorded_since(began, Path())
    if not traces:
        say("gradviz: no rank was recorded here: none ran a script of Python, or they have another folder")
    return (status if status >= 0 else _SIGNALLED - status), traces


def named_by_rank(trace: Path) -> Path:
    """Rename the trace of a process that started the other ranks and is a rank itself, as Lightning's first process,
    by its rank, which is known only from its collectives. Returns the new path."""
    if not trace.exists() or rank_meta() or rank_in(trace) >= 0:
        return trace
    with open_trace(trace) as recorded:
        rank = recorded.meta.get("rank")
    return trace if rank is None else trace.rename(of_rank(trace, rank))


def only_started_ranks(trace: Path, began: float, quiet: bool, kept_earlier: bool) -> bool:
    """Report the ranks that were recorded beside a process, or with it. Returns whether nothing else needs to be
    reported: the process is one of the ranks, or has only started them. In the second case its empty trace is
    removed, if the trace is not an earlier one."""
    ranks = [path for path in _recorded_since(began, trace.parent) if rank_in(path) >= 0]
    is_rank = trace in ranks and not rank_meta()
    if len(ranks) == is_rank:
        return False
    with open_trace(trace) as recorded:
        is_empty = not is_rank and (kept_earlier or not recorded.passes)
    if is_empty and not kept_earlier:
        trace.unlink()
    if not quiet:
        tell_ranks(ranks)
    return is_empty or is_rank


def _recorded_since(began: float, folder: Path) -> list[Path]:
    return [path for path in folder.glob("*.gradviz") if path.stat().st_mtime >= began]


def tell_ranks(traces: Sequence[Path]) -> None:
    """Report the ranks that were recorded, and the next commands."""
    by_pattern: dict[str, list[Path]] = {}
    for path in traces:
        pattern = _pattern_of(traces) if rank_in(path) < 0 and len(traces) > 1 else pattern_of(path.name)
        by_pattern.setdefault(pattern, []).append(path)
    for pattern, paths in by_pattern.items():
        with all_opened(tuple(paths)) as recorded:
            counts = sorted({trace.passes_begun for trace in recorded})
        passes = " to ".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1])))
        is_one = len(paths) == 1 and rank_in(paths[0]) < 0
        ranks = "1 process" if is_one else plural(len(paths), "rank")
        say(f"gradviz: recorded {ranks}, backward passes of each: {passes} → {pattern}")
        say(f'gradviz: next gradviz check "{pattern}"  ·  gradviz info "{pattern}"')


def _pattern_of(traces: Sequence[Path]) -> str:
    """The pattern for traces whose names do not contain ranks."""
    letters = zip(*(path.name for path in traces), strict=False)
    common = takewhile(lambda own: len(set(own)) == 1, letters)
    return "".join(own[0] for own in common) + "*.gradviz"
