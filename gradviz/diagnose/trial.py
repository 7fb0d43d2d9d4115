"""The trial of a cure: the script runs again with the cured file, and the two runs are compared.

The user's files are not touched. A temporary folder has the cured file and links to all other files beside the script,
so that the script imports and finds the same files as before."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gradviz.diagnose.finding import ERROR, Finding, Report, place_of
from gradviz.diagnose.rule_settings import Settings
from gradviz.events.kinds import Kind
from gradviz.events.values import Stat
from gradviz.query.query import Query
from gradviz.query.training import Training
from gradviz.tracefile import Trace, TraceError, open_trace
from gradviz.words.escape import clean, finite_number
from gradviz.words.numbers import number, plural

_TIMES_LONGER = 10  # the cured run may take so many times as long as the first run
_LEAST_SECONDS = 120.0


class Progress(NamedTuple):
    """The result of a run. `rms` is the root mean square of the last gradient of the leaf with the name `leaf`; None if
    it got no gradient. `leaf` is empty if the finding is about no leaf. The losses are those of the first and the last
    pass of the line with the most `passes`; NaN if they are not known. `steps` counts the steps of optimizers."""

    leaf: str
    rms: float | None
    first_loss: float
    last_loss: float
    passes: int
    steps: int


class Tried(NamedTuple):
    """The result of trying the cure of a finding. `problem` is the reason why it was not tried, or how the run failed;
    the other fields may be empty then. `gone` is True if the finding is gone. `new` are the errors and warnings that
    were not there before; the rules in `unchecked` could not be checked before. `progress` is the result of the run
    with the cure, `earlier` that of the run without it. `equal` says how far the two runs are equal."""

    finding: Finding
    problem: str = ""
    gone: bool = False
    new: tuple[Finding, ...] = ()
    unchecked: frozenset[str] = frozenset()
    progress: Progress | None = None
    earlier: Progress | None = None
    equal: str = ""

    @property
    def is_proved(self) -> bool:
        """Whether the run with the cure has shown that the finding is gone and that no error came, of the rules that
        could be checked before."""
        came = (one for one in self.new if one.severity == ERROR and one.rule not in self.unchecked)
        return self.gone and not self.problem and not any(came)


class Rerun(NamedTuple):
    """The run of a script: its path as the user gave it, its arguments, the options of `gradviz trace`, the rules to
    check, the seconds that it took, the function that checked its trace and checks the cured one, and the function
    that says how far the two traces are equal."""

    script: str
    arguments: Sequence[str]
    options: Sequence[str]
    select: Sequence[str]
    ignore: Sequence[str]
    settings: Settings
    seconds: float
    check: Callable[[Trace, Collection[str], Collection[str], Settings], Report]
    equal: Callable[[Trace, Trace], str] = lambda before, after: ""


def try_cure(finding: Finding, report: Report, query: Query, rerun: Rerun) -> Tried:
    """Apply the cure of a finding of a report to a copy, run it, and compare."""
    file, patch = Path(finding.file), finding.patch
    if not file.is_file():
        return Tried(finding, problem="its line is in no file that can be read")
    if patch is None:
        return Tried(finding, problem="this cure is advice: it cannot be applied as an edit of one file")
    if patch.stored is None:
        return Tried(finding, problem=f"{file} no longer has the text that was recorded")
    script = Path(rerun.script).resolve()
    home = script.parent
    if not patch.stored.path.is_relative_to(home):
        return Tried(finding, problem=f"{file} is not beside the script, so that a copy would not be imported")
    with tempfile.TemporaryDirectory(prefix="gradviz-") as folder:
        copy = Path(folder) / "copy"
        _mirror(home, copy, patch.stored.path.relative_to(home), patch.stored.content)
        trace = Path(folder) / "cured.gradviz"
        if script != patch.stored.path:  # a link would import the files beside the original
            (copy / script.name).unlink()
            shutil.copyfile(script, copy / script.name)
        problem = _run(copy / script.name, trace, rerun)
        return Tried(finding, problem=problem) if problem else _compared(finding, report, query, trace, rerun)


def _mirror(home: Path, copy: Path, changed: Path, content: bytes) -> None:
    """Fill the new folder `copy` with links to the files of `home`, and with the changed file."""
    copy.mkdir()
    for entry in home.iterdir():
        if entry.name == changed.parts[0] and len(changed.parts) > 1:
            _mirror(entry, copy / entry.name, Path(*changed.parts[1:]), content)
        elif entry.name == changed.parts[0]:
            (copy / entry.name).write_bytes(content)
        elif entry.name != "__pycache__":
            _link(entry, copy / entry.name)


def _link(entry: Path, link: Path) -> None:
    """Make a link to a file or folder; copy a file if the system makes no links."""
    try:
        link.symlink_to(entry)
    except OSError:
        if entry.is_file():
            shutil.copyfile(entry, link)


def _run(script: Path, trace: Path, rerun: Rerun) -> str:
    """Record the cured script in a new process, without its output. Returns the reason if there is no trace; else an
    empty text."""
    command = [sys.executable, "-m", "gradviz", "trace", "-o", str(trace), *rerun.options, str(script)]
    package = str(Path(__file__).parents[2])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    seconds = max(_LEAST_SECONDS, _TIMES_LONGER * rerun.seconds)
    try:
        subprocess.run(
            [*command, *rerun.arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"with the cure the script did not end within {seconds:.0f} s"
    return "" if trace.exists() else "with the cure the script could not be recorded"


def _compared(finding: Finding, report: Report, query: Query, trace: Path, rerun: Rerun) -> Tried:
    patch = finding.patch
    assert patch is not None
    try:
        with open_trace(trace) as cured:
            after = rerun.check(cured, rerun.select, rerun.ignore, rerun.settings)
            error = cured.meta.get("error_type", "")
            query_after = Query(cured)
            leaf = _leaf_of(finding, query, query_after)
            progress, earlier = _progress(leaf, query_after), _progress(leaf, query)
            equal = rerun.equal(query.trace, cured)
    except TraceError as error_of_trace:
        return Tried(finding, problem=str(error_of_trace))
    known = {(f.rule, patch.line_after(f.line)) for top in report for f in (top, *top.consequences)}
    new = tuple(f for f in after.at_least("warning") if (f.rule, f.line) not in known)
    gone = all((f.rule, f.line) != (finding.rule, patch.line_after(finding.line)) for f in after)
    is_new = error and query.trace.meta.get("error_type") != error
    failed = f"with the cure the script ended with {error}" if is_new else ""
    unchecked = frozenset(rule for rule, _ in report.not_checked)
    return Tried(finding, failed, gone, new, unchecked, progress, earlier, equal)


# --- the gradient and the losses of the cured run


def _progress(leaf: str, query: Query) -> Progress:
    """The result of a run, with the gradient of the leaf of this name."""
    losses = _losses(query)
    first, last = (losses[0], losses[-1]) if len(losses) else (float("nan"), float("nan"))
    steps = len(query.of(Training).stepped.events)
    return Progress(leaf, _rms(query, leaf), first, last, len(losses), steps)


def _leaf_of(finding: Finding, before: Query, after: Query) -> str:
    """The name of the first leaf of a finding that gets a gradient with the cure, else of its first leaf; empty if it
    has none."""
    names = [name for tensor in finding.tensors if (name := _leaf_name(before, tensor))]
    return next((name for name in names if _rms(after, name) is not None), names[0] if names else "")


def _rms(query: Query, leaf: str) -> float | None:
    """The size of the last gradient of the leaf of a name, or of the only leaf whose name ends with it, as that of a
    module that the edit has registered; None if no gradient came to such a leaf."""
    came = query.trace.table(Kind.ACCUMULATED)
    names = {tensor: _name(query, tensor) for tensor in set(came["tensor"].tolist())}
    named = [tensor for tensor, name in names.items() if leaf and name == leaf]
    longer = [tensor for tensor, name in names.items() if leaf and name.endswith(f".{leaf}")]
    rows = np.flatnonzero(np.isin(came["tensor"], named or longer[: len(longer) == 1]))[-1:]
    states = query.trace.states
    sizes = states.stats[states.rows_of(came["gradient"][rows], came.events[rows]), Stat.RMS]
    return float(sizes[0]) if len(sizes) else None


def _name(query: Query, tensor: int) -> str:
    return query.trace.parameters.get(tensor) or query.names.of(tensor) or ""


def _leaf_name(query: Query, tensor: int) -> str:
    """The name of a leaf that gets gradients; empty for any other tensor."""
    states = query.trace.states
    row = states.first(tensor)
    form = states.form(row) if row >= 0 else None
    return _name(query, tensor) if form is not None and tensor in query.nodes.leaves.values() else ""


def _losses(query: Query) -> np.ndarray:
    """The values of the roots of the line with the most passes, in order. Roots with several values are left out."""
    began = query.trace.table(Kind.PASS_BEGAN)
    roots = began.lists("roots")
    if not len(roots.owners):
        return np.empty(0)
    sites = query.places.of_events[began.events[roots.owners]]
    lines, counts = np.unique(sites, return_counts=True)
    of_line = sites == lines[int(np.argmax(counts))]
    states = query.trace.states
    rows = states.rows_of(roots.elements[of_line, 2], began.events[roots.owners[of_line]])
    stats = states.stats[rows[rows >= 0]]
    one = (stats[:, Stat.MIN] == stats[:, Stat.MAX]) | (stats[:, Stat.NAN] > 0)
    return stats[one, Stat.MEAN]


# --- as text and as data


def tried_text(tried: Tried | None) -> Iterator[Text]:
    """The lines about a cure that was tried, below the report."""
    if tried is None:
        yield Text("no finding, so there is no cure to be tried", "dim")
        return
    if tried.progress is None:
        yield Text.assemble(("not tried  ", "dim"), f"the cure of {tried.finding.rule}: {clean(tried.problem)}")
        return
    facts = [_gradient(tried.progress), _gone(tried), _loss(tried.progress), clean(tried.problem)]
    yield Text.assemble(("with the cure: ", "bold"), ", ".join(filter(None, facts)))
    for finding in tried.new:
        yield Text.assemble(("   new  ", "dim"), _in_short(finding))


def proof_text(tried: Tried) -> Iterator[RenderableType]:
    """What the run with a cure has shown, beside the run without it."""
    verdict = ("proved    ", "bold green") if tried.is_proved else ("not proved  ", "bold red")
    facts = [clean(tried.problem)]
    if tried.progress is not None:
        others = "" if tried.new else ", no other came"
        facts.append(f"a copy with the edit ran: {_gone(tried)}{others}")
    yield Text.assemble(verdict, "; ".join(filter(None, facts)))
    for finding in tried.new:
        could_be = " (a rule that could not be checked before)" * (finding.rule in tried.unchecked)
        yield Text.assemble(("new       ", "dim"), _in_short(finding), could_be)
    if tried.progress is None or tried.earlier is None:
        return
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_row("", Text("before", "dim"), Text("with the edit", "dim"))
    runs = tried.earlier, tried.progress
    for label, cells in ("loss    ", map(_loss, runs)), ("gradient", map(_gradient, runs)):
        texts = [text.removeprefix("loss ") for text in cells]
        if any(texts):
            table.add_row(Text(label, "dim"), *(Text(text or "unknown") for text in texts))
    yield table
    yield Text.assemble(("equal     ", "dim"), tried.equal)


def _in_short(finding: Finding) -> str:
    return f"{finding.severity} {finding.rule}  {place_of(finding)}: {clean(finding.message)}"


def _gradient(progress: Progress) -> str:
    """The gradient of the leaf in words; empty if the finding is about no leaf."""
    leaf = clean(progress.leaf)
    if progress.rms is None:
        return f"{leaf} without gradient" if leaf else ""
    return f"{leaf}.grad rms {number(progress.rms, 3)}"


def _gone(tried: Tried) -> str:
    gone = "finding gone" if tried.gone else "the finding is still there"
    return f"{gone}, {plural(len(tried.new), 'new finding')}" if tried.new else gone


def _loss(progress: Progress) -> str:
    """The losses in words; empty if they are not known."""
    steps = plural(progress.steps, "step") if progress.steps else plural(progress.passes, "pass", "passes")
    first, last = number(progress.first_loss, 3), number(progress.last_loss, 3)
    losses = first if progress.passes == 1 else f"{first} → {last}"
    return f"loss {losses} in {steps}" if progress.passes else ""


def tried_as_json(tried: Tried | None) -> dict[str, Any] | None:
    """The result as plain data; None if there was no finding."""
    if tried is None:
        return None
    progress, patch = tried.progress, tried.finding.patch
    return {
        "rule": tried.finding.rule,
        "line": tried.finding.line or None,
        "applied": patch is not None,
        "patch": patch.diff if patch is not None else None,
        "problem": tried.problem or None,
        "gone": tried.gone,
        "new": [{"rule": f.rule, "severity": f.severity, "line": f.line or None} for f in tried.new],
        "loss": progress and [*map(finite_number, (progress.first_loss, progress.last_loss))],
        "steps": progress and progress.steps,
    }
