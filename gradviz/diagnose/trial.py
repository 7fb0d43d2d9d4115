"""The trial of a cure: the script runs again with the cured file, and the two runs are compared.

The user's files are not touched. A temporary folder has the cured file and links to all other files beside the script,
so that the script imports and finds the same files as before."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.text import Text

from gradviz.diagnose.finding import Finding, Report, place_of
from gradviz.diagnose.fix import Patch
from gradviz.diagnose.rule_settings import Settings
from gradviz.events.kinds import Kind
from gradviz.events.values import Stat
from gradviz.query.query import Query
from gradviz.query.training import Training
from gradviz.tracefile import Trace, TraceError, open_trace
from gradviz.words.escape import clean
from gradviz.words.numbers import number, plural

_TIMES_LONGER = 10  # the cured run may take so many times as long as the first run
_LEAST_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Progress:
    """The result of a run. `rms` is the root mean square of the last gradient of the leaf with the name `leaf`; None if
    it got no gradient. `leaf` is empty if the finding is about no leaf. The losses are those of the first and the last
    pass of the line with the most `passes`; NaN if they are not known. `steps` counts the steps of optimizers."""

    leaf: str
    rms: float | None
    first_loss: float
    last_loss: float
    passes: int
    steps: int


@dataclass(frozen=True, slots=True)
class Tried:
    """The result of trying the cure of a finding. `problem` is the reason why it was not tried, or how the run failed;
    the other fields may be empty then. `gone` is True if the finding is gone. `new` are the errors and warnings that
    were not there before."""

    finding: Finding
    problem: str = ""
    gone: bool = False
    new: tuple[Finding, ...] = ()
    progress: Progress | None = None


@dataclass(frozen=True, slots=True)
class Rerun:
    """The run of a script: its path as the user gave it, its arguments, the options of `gradviz trace`, the rules to
    check, the seconds that it took, and the function that checked its trace and checks the cured one."""

    script: str
    arguments: Sequence[str]
    options: Sequence[str]
    select: Sequence[str]
    ignore: Sequence[str]
    settings: Settings
    seconds: float
    check: Callable[[Trace, Collection[str], Collection[str], Settings], Report]


def try_cure(report: Report, query: Query, rerun: Rerun) -> Tried | None:
    """Apply the cure of the first finding to a copy, run it, and compare. None if there are no findings."""
    if not report.findings:
        return None
    finding = report.findings[0]
    file, patch = Path(finding.file), finding.patch
    if not file.is_file():
        return Tried(finding, problem="its line is in no file that can be read")
    if patch is None:
        return Tried(finding, problem="this cure is advice: it cannot be applied as an edit of one file")
    script = Path(rerun.script).resolve()
    home = script.parent
    if not file.resolve().is_relative_to(home):
        return Tried(
            finding, problem=f"{file} is not beside the script, so that a copy would not be imported"
        )
    with tempfile.TemporaryDirectory(prefix="gradviz-") as folder:
        copy = Path(folder) / "copy"
        _mirror(home, copy, file.resolve().relative_to(home), patch.after)
        trace = Path(folder) / "cured.gradviz"
        if script != file.resolve():  # a link would import the files beside the original
            (copy / script.name).unlink()
            shutil.copyfile(script, copy / script.name)
        problem = _run(copy / script.name, trace, rerun)
        return Tried(finding, problem=problem) if problem else _compared(report, query, patch, trace, rerun)


def _mirror(home: Path, copy: Path, changed: Path, text: str) -> None:
    """Fill the new folder `copy` with links to the files of `home`, and with the changed file."""
    copy.mkdir()
    for entry in home.iterdir():
        if entry.name == changed.parts[0] and len(changed.parts) > 1:
            _mirror(entry, copy / entry.name, Path(*changed.parts[1:]), text)
        elif entry.name == changed.parts[0]:
            (copy / entry.name).write_text(text, encoding="utf-8")
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


def _compared(report: Report, query: Query, patch: Patch, trace: Path, rerun: Rerun) -> Tried:
    finding = report.findings[0]
    try:
        with open_trace(trace) as cured:
            after = rerun.check(cured, rerun.select, rerun.ignore, rerun.settings)
            error = cured.meta.get("error_type", "")
            progress = progress_of(finding, query, Query(cured))
    except TraceError as error_of_trace:
        return Tried(finding, problem=str(error_of_trace))
    known = {(f.rule, patch.line_after(f.line)) for top in report for f in (top, *top.consequences)}
    new = tuple(f for f in after.at_least("warning") if (f.rule, f.line) not in known)
    gone = all((f.rule, f.line) != (finding.rule, patch.line_after(finding.line)) for f in after)
    is_new = error and query.trace.meta.get("error_type") != error
    failed = f"with the cure the script ended with {error}" if is_new else ""
    return Tried(finding, failed, gone, new, progress)


# --- the gradient and the losses of the cured run


def progress_of(finding: Finding, before: Query, after: Query) -> Progress:
    """The result of a run with a cure. `before` is the trace with the finding, `after` the trace of the cured run."""
    leaf, rms = _gradient(finding, before, after)
    losses = _losses(after)
    first, last = (losses[0], losses[-1]) if len(losses) else (float("nan"), float("nan"))
    steps = len(after.of(Training).stepped.events)
    return Progress(leaf, rms, first, last, len(losses), steps)


def _gradient(finding: Finding, before: Query, after: Query) -> tuple[str, float | None]:
    """The name of the first leaf of a finding with a gradient in the cured run, and the size of its last gradient; None
    as the size if no leaf of the finding has a gradient."""
    came = after.trace.table(Kind.ACCUMULATED)
    got = {
        name: tensor for tensor in dict.fromkeys(came["tensor"].tolist()) if (name := _name(after, tensor))
    }
    names = [name for tensor in finding.tensors if (name := _leaf_name(before, tensor))]
    for name in names:
        if name in got:
            rows = np.flatnonzero(came["tensor"] == got[name])[-1:]
            states = after.trace.states
            sizes = states.stats[states.rows_of(came["gradient"][rows], came.events[rows]), Stat.RMS]
            return name, float(sizes[0])
    return (names[0], None) if names else ("", None)


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
    one = stats[:, Stat.MIN] == stats[:, Stat.MAX]
    return stats[one, Stat.MEAN]


# --- as text and as data


def tried_text(tried: Tried | None, with_patch: bool) -> Iterator[Text]:
    """The lines about a cure that was tried, below the report."""
    if tried is None:
        yield Text("no finding, so there is no cure to be tried", "dim")
        return
    patch = tried.finding.patch
    if with_patch and patch is not None:
        lines = "\n".join(clean(line) for line in patch.diff.splitlines())
        yield Text(lines, no_wrap=True, overflow="ignore")
    if tried.progress is None:
        yield Text.assemble(
            ("not tried  ", "dim"), f"the cure of {tried.finding.rule}: {clean(tried.problem)}"
        )
        return
    yield Text.assemble(("with the cure: ", "bold"), ", ".join(_facts(tried)))
    for finding in tried.new:
        yield Text.assemble(
            ("   new  ", "dim"),
            f"{finding.severity} {finding.rule}  {place_of(finding)}: {clean(finding.message)}",
        )


def _facts(tried: Tried) -> Iterator[str]:
    progress = tried.progress
    assert progress is not None
    if progress.leaf:
        gradient = "None" if progress.rms is None else f"rms {number(progress.rms, 3)}"
        yield f"{clean(progress.leaf)}.grad {gradient}"
    yield "finding gone" if tried.gone else "the finding is still there"
    if tried.new:
        yield plural(len(tried.new), "new finding")
    if progress.passes and progress.first_loss == progress.first_loss:
        steps = (
            plural(progress.steps, "step") if progress.steps else plural(progress.passes, "pass", "passes")
        )
        yield f"loss {number(progress.first_loss, 3)} → {number(progress.last_loss, 3)} in {steps}"
    if tried.problem:
        yield clean(tried.problem)


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
        "loss": [_finite(progress.first_loss), _finite(progress.last_loss)] if progress is not None else None,
        "steps": progress.steps if progress is not None else None,
    }


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None
