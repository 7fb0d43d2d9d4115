"""The trial of a cure: the script runs again with the cured file, and the two runs are compared.

The user's files are not touched. A temporary folder has the cured file and links to all other files beside the script,
so that the script imports and finds the same files as before."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradviz.cures.cure import Cure, cure_of
from gradviz.cures.cured_run import Progress, progress_of
from gradviz.diagnose import Finding, Report
from gradviz.diagnose.rule_settings import Settings
from gradviz.query.query import Query
from gradviz.tracefile import Trace, TraceError, open_trace

_TIMES_LONGER = 10  # the cured run may take so many times as long as the first run
_LEAST_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Tried:
    """The result of trying the cure of a finding. `problem` is the reason why it was not tried, or how the run failed;
    the other fields may be empty then. `gone` is True if the finding is gone. `new` are the errors and warnings that
    were not there before."""

    finding: Finding
    cure: Cure | None = None
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
    file = Path(finding.file)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return Tried(finding, problem="its line is in no file that can be read")
    cure = cure_of(finding, query, text)
    if cure is None:
        return Tried(finding, problem="this cure is advice: it cannot be applied as an edit of one file")
    script = Path(rerun.script).resolve()
    home = script.parent
    if not file.resolve().is_relative_to(home):
        return Tried(
            finding, cure, problem=f"{file} is not beside the script, so that a copy would not be imported"
        )
    with tempfile.TemporaryDirectory(prefix="gradviz-") as folder:
        copy = Path(folder) / "copy"
        _mirror(home, copy, file.resolve().relative_to(home), cure.after)
        trace = Path(folder) / "cured.gradviz"
        if script != file.resolve():  # a link would import the files beside the original
            (copy / script.name).unlink()
            shutil.copyfile(script, copy / script.name)
        problem = _run(copy / script.name, trace, rerun)
        if problem:
            return Tried(finding, cure, problem=problem)
        return _compared(report, query, cure, trace, rerun)


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


def _compared(report: Report, query: Query, cure: Cure, trace: Path, rerun: Rerun) -> Tried:
    finding = report.findings[0]
    try:
        with open_trace(trace) as cured:
            after = rerun.check(cured, rerun.select, rerun.ignore, rerun.settings)
            error = cured.meta.get("error_type", "")
            progress = progress_of(finding, query, Query(cured))
    except TraceError as error_of_trace:
        return Tried(finding, cure, problem=str(error_of_trace))
    known = {(f.rule, cure.line_after(f.line)) for top in report for f in (top, *top.consequences)}
    new = tuple(f for f in after.at_least("warning") if (f.rule, f.line) not in known)
    gone = all((f.rule, f.line) != (finding.rule, cure.line_after(finding.line)) for f in after)
    is_new = error and query.trace.meta.get("error_type") != error
    failed = f"with the cure the script ended with {error}" if is_new else ""
    return Tried(finding, cure, failed, gone, new, progress)
