"""Reads a trace with every command, in a process of its own with little time and memory, and tells what should not have
happened.

The process is a fork of this one, which has read the sound traces before, so that it loads nothing. A traceback is let
through (`GRADVIZ_DEBUG`): what the door would turn into one line is still a fault of ours."""

from __future__ import annotations

import contextlib
import io
import json
import linecache
import os
import re
import resource
import select
import shutil
import signal
import sys
import tempfile
import traceback
import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from gradviz.cli.main import main
from tests.damage import mutations, subjects

SECONDS, BYTES = 10, 1 << 30  # of the processor, and of memory
_ALL = 64 << 20  # bytes of a file that are compared
_LONGEST = 500  # characters of a refusal
_HARMLESS = {"\n", "\t"}
_TENSORS = {
    "lesson": "w",
    "half": "w",
    "ring": "cell.weight_hh",
    "chosen": "cell.weight_hh",
    "killed": "cell.weight_hh",
}
_STEPS = (
    "next 3; next-backward; next 2; why; info; nan; last; back 2; compare; where; over; into; out; first; continue;"
    "until out.rms > 1; search mul; who t1; print t1; again; mark; path t1 t3; info t2; why t2; export now.txt"
)


@dataclass(frozen=True)
class Violation:
    """Something that should not have happened: of which sort, in which command, with particulars."""

    kind: str
    command: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.command}: {self.kind} {self.detail}".strip()


def commands(name: str) -> dict[str, tuple[list[str], set[int]]]:
    """The commands for a subject, in a directory beside that of the trace, with the exit statuses they may have."""
    trace, tensor = f"../received/{name}.gradviz", _TENSORS.get(name, "net.0.weight")
    return {
        "info": (["info", trace], {0, 2}),
        "info --json": (["info", trace, "--json"], {0, 2}),
        "step": (["step", trace, "--commands", _STEPS], {0, 2}),
        "check": (["check", trace], {0, 1, 2}),
        "check --format json": (["check", trace, "--format", "json"], {0, 1, 2}),
        "graph": (["graph", trace, "-o", "o.svg"], {0, 2}),
        "graph --pass": (["graph", trace, "--pass", "1", "-o", "o.svg"], {0, 2}),
        "graph --all": (["graph", trace, "--all", "-o", "o.json"], {0, 2}),
        "page": (["graph", trace, "-o", "o.html"], {0, 2}),
        "why": (["why", trace, tensor], {0, 2}),
        "why --format json": (["why", trace, tensor, "--format", "json"], {0, 2}),
        "diff": (["diff", f"../sound/{name}.gradviz", trace], {0, 2}),
        "diff --format json": (["diff", trace, f"../sound/{name}.gradviz", "--format", "json"], {0, 2}),
        "report": (["report", trace, "-o", "o.report.html"], {0, 2}),
    }


class Laboratory:
    """Sound traces in a folder, and what is needed to try damaged ones. `few`: each mutation is read by that many of
    the commands, by turns (None: by all). `only`: what the names of the ways to damage them begin with."""

    def __init__(self, folder: Path, few: int | None = None, only: str = "") -> None:
        self.folder, self.few, self.only = folder, few, only
        sound = folder / "sound"
        sound.mkdir()
        self.sound = subjects.make_all(sound)
        name = next(iter(self.sound))  # load what reading needs, once: that of one subject is that of all
        _prepare(folder, name)
        with _environment(folder), contextlib.redirect_stdout(io.StringIO()):
            for arguments, _ in commands(name).values():
                with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()):
                    main(arguments, prog_name="gradviz")

    def mutated(self, seed: int, number: int) -> tuple[str, str]:
        """Damage a trace: its subject, and the ways in which it was damaged."""
        rng = Random(f"{seed}/{number}")
        name = rng.choice(list(self.sound))
        _prepare(self.folder, name)
        ways = mutations.mutate(rng, self.folder / "received" / f"{name}.gradviz", number, self.only)
        return name, ways

    def trial(self, seed: int, number: int) -> tuple[str, list[Violation]]:
        """Damage a trace and read it: how it was damaged, and what should not have happened."""
        name, ways = self.mutated(seed, number)
        chosen = commands(name)
        if self.few is not None:
            names = Random(number).sample(list(chosen), self.few)
            chosen = {command: chosen[command] for command in names}
        return f"{name}, {ways}", read(self.folder, chosen)


def _prepare(folder: Path, name: str) -> None:
    """Put a sound trace where it will be damaged, beside a file of the user's."""
    for place in ("received", "out", "tmp"):
        shutil.rmtree(folder / place, ignore_errors=True)
        (folder / place).mkdir()
    for file in (folder / "sound").glob(f"{name}.gradviz*"):
        shutil.copy(file, folder / "received")
    (folder / "received" / "thesis.txt").write_text("years of work\n")


def read(folder: Path, chosen: dict[str, tuple[list[str], set[int]]]) -> list[Violation]:
    """Run commands in a process with little time and memory; what should not have happened."""
    before = _state(folder)
    receiving, sending = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(receiving)
            with os.fdopen(sending, "w") as results:
                _run_all(folder, chosen, results)
        finally:
            os._exit(0)
    os.close(sending)
    try:
        return [*_results(receiving), *_differences(before, _state(folder))]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _results(receiving: int) -> Iterator[Violation]:
    """What a child tells: the name of each command that it begins, and each violation."""
    at, ended = "", False
    with os.fdopen(receiving) as told:
        while not ended:
            ready, _, _ = select.select([told], [], [], 6 * SECONDS)  # the machine may do other things
            if not ready:
                yield Violation("over time, and not to be interrupted", at)
                return
            for line in iter(told.readline, ""):
                data = json.loads(line)
                if isinstance(data, str):
                    at, ended = data, data == "end"
                    break
                yield Violation(*data)
            else:
                break
    if not ended:
        yield Violation("the process died", at)


def _state(folder: Path) -> dict[str, tuple[int, bytes]]:
    """The files that reading must not touch, by their length and how they begin: those beside the trace, and temporary
    ones. A mutation may have made one of terabytes, with nothing in it."""
    return {
        f"{path.relative_to(folder)}": (path.stat().st_size, _beginning(path))
        for place in ("received", "tmp", "sound")
        for path in (folder / place).rglob("*")
        if path.is_file()
    }


def _beginning(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_ALL)


def _differences(before: dict[str, tuple[int, bytes]], after: dict[str, tuple[int, bytes]]) -> Iterator[Violation]:
    for path in before.keys() | after.keys():
        if before.get(path) != after.get(path):
            what = "deleted" if path not in after else "left behind" if path not in before else "changed"
            yield Violation(f"a file was {what}", "all", path)


# --- in the child


@contextlib.contextmanager
def _environment(folder: Path) -> Iterator[None]:
    here, kept, columns = Path.cwd(), dict(os.environ), tempfile.tempdir
    os.chdir(folder / "out")
    os.environ.update(NO_COLOR="1", COLUMNS="100", GRADVIZ_LAYOUT="rows", GRADVIZ_DEBUG="1")
    tempfile.tempdir = str(folder / "tmp")
    try:
        with mock.patch("gradviz.tracefile.part.LONG", 0):  # `info`, and pictures of a pass, read parts
            yield
    finally:
        os.chdir(here)
        os.environ.clear()
        os.environ.update(kept)
        tempfile.tempdir = columns


class _TimeUp(BaseException):
    pass


def _time_up(*_: object) -> None:
    raise _TimeUp


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _run_all(folder: Path, chosen: dict[str, tuple[list[str], set[int]]], results: Any) -> None:
    def tell(data: object) -> None:
        results.write(json.dumps(data) + "\n")
        results.flush()

    with contextlib.suppress(OSError):
        _limit_memory()
    signal.signal(signal.SIGPROF, _time_up)
    warnings.resetwarnings()
    with _environment(folder):
        for name, (arguments, statuses) in chosen.items():
            tell(name)
            for violation in _run(arguments, statuses):
                tell((violation[0], name, violation[1]))
        tell("end")


def _run(arguments: Sequence[str], statuses: set[int]) -> Iterator[tuple[str, str]]:
    """Run one command; what should not have happened, with particulars."""
    output, errors = _Stream(), _Stream()
    linecache.clearcache()
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    status: object = 0
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            main(list(arguments), prog_name="gradviz")
    except SystemExit as ended:
        status = ended.code or 0
    except BaseException as error:
        signal.setitimer(signal.ITIMER_PROF, 0)
        kind = "over time" if isinstance(error, _TimeUp) else f"traceback: {type(error).__name__}"
        yield kind, f"{_place(error)}: {' '.join(str(error).split())[:200]}"
        return
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    said, complained = output.text(), errors.text()
    if status not in statuses:
        yield "exit status", str(status)
    yield from _about_complaints(status, complained)
    written = {path.name: path.read_bytes().decode("utf-8", "replace") for path in Path().iterdir() if path.is_file()}
    for where, text in {"stdout": said, "stderr": complained, **written}.items():
        bad = sorted({character for character in text if _is_control(character)})
        if bad:
            yield "raw control characters", f"{where}: {bad!r}"
    is_json = "json" in arguments or "--json" in arguments
    if is_json and status != 2:
        yield from _about_json(said)
    for path in Path().iterdir():
        path.unlink()


def _about_complaints(status: object, complained: str) -> Iterator[tuple[str, str]]:
    lines = complained.splitlines()
    if any("Warning" in line for line in lines):
        yield "a warning", next(line for line in lines if "Warning" in line)[-150:]
    if status == 2 and len(lines) != 1:
        yield "a refusal of many lines", " | ".join(lines)[:300]
    if status == 2 and any(len(line) > _LONGEST for line in lines):
        yield "a long refusal", f"{max(map(len, lines))} characters: {lines[0][:200]}"
    if status in (0, 1) and any("not checked:" in line for line in lines):
        yield "a check that broke off", complained[:300]


def _about_json(said: str) -> Iterator[tuple[str, str]]:
    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no JSON")

    try:
        json.loads(said, parse_constant=refuse)
    except ValueError as error:
        yield "no JSON", str(error)[:200]


def _is_control(character: str) -> bool:
    if character in _HARMLESS or "\x20" <= character <= "\x7e":
        return False
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")


class _Stream(io.TextIOWrapper):
    """A standard stream that is kept."""

    def __init__(self) -> None:
        self.kept = io.BytesIO()
        super().__init__(self.kept, encoding="utf-8", errors="backslashreplace", write_through=True)

    def text(self) -> str:
        return self.kept.getvalue().decode("utf-8", "replace")


def _place(error: BaseException) -> str:
    """The innermost line of ours that an exception passed."""
    ours = [frame for frame in traceback.extract_tb(error.__traceback__) if "/gradviz/" in frame.filename]
    if not ours:
        return "?"
    return re.sub(r".*/gradviz/", "", f"{ours[-1].filename}:{ours[-1].lineno}")


def sorted_by_kind(found: Sequence[Violation]) -> list[tuple[str, int]]:
    """How many violations there are of each kind, by the place where they happened."""
    counts: dict[str, int] = {}
    for violation in found:
        place = (
            violation.detail.split(": ")[0] if "traceback" in violation.kind or "over time" in violation.kind else ""
        )
        key = f"{violation.kind} {place}".strip()
        counts[key] = counts.get(key, 0) + 1
    return sorted(counts.items(), key=lambda pair: -pair[1])


if __name__ == "__main__":  # python -m tests.damage.trial SEED NUMBER [ONLY]: one again
    with tempfile.TemporaryDirectory() as place:
        laboratory = Laboratory(Path(place), only="".join(sys.argv[3:]))
        about, violations = laboratory.trial(int(sys.argv[1]), int(sys.argv[2]))
        print(about, *violations, sep="\n")
