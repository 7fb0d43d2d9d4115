"""The programs of tests/zoo: broken ones with their cured twins, and healthy ones that look suspicious.

A file has several programs, each below a line `=== name: broken`, `: cured` or `: healthy`; ` on torch` after it says
that only PyTorch can run it. In a broken program the comment `# <- rule` marks the guilty line."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import pickle
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gradviz.diagnose import RULES, Report, check
from gradviz.sources.script import Target, run

# The recordings of broken programs, for all workers of pytest.
if "GRADVIZ_TESTS_KEPT" not in os.environ:
    os.environ["GRADVIZ_TESTS_KEPT"] = tempfile.mkdtemp(prefix="gradviz-kept-")
    atexit.register(shutil.rmtree, os.environ["GRADVIZ_TESTS_KEPT"], ignore_errors=True)
KEPT = Path(os.environ["GRADVIZ_TESTS_KEPT"])
OPT_IN = {rule.id for rule in RULES if rule.opt_in}
ZOO = Path(__file__).parent / "zoo"
_HEADING = re.compile(r"^=== (.+): (broken|cured|healthy)( on torch)?\n", re.MULTILINE)
_MARK = re.compile(r"# <- ([\w-]+)")


@dataclass(frozen=True)
class Program:
    """One program, and of a broken one the rule that names its fault and the line."""

    name: str
    state: str
    text: str
    rule: str = ""
    line: int = 0
    needs_torch: bool = False


def programs(file: Path) -> list[Program]:
    """The programs of one file."""
    _, *parts = _HEADING.split(file.read_text())
    found = []
    for name, state, only, text in zip(parts[::4], parts[1::4], parts[2::4], parts[3::4], strict=True):
        text = "import torch\n" + text
        mark = _MARK.search(text)
        line = text[: mark.start()].count("\n") + 1 if mark is not None else 0
        full = f"{file.stem}: {name}"
        found.append(Program(full, state, text, mark[1] if mark is not None else "", line, bool(only)))
    return found


ALL = [program for file in sorted(ZOO.glob("*.txt")) for program in programs(file)]


def checked(program: Program, folder: Path, values: str = "stats", engine: str = "numpy") -> Report:
    """What `check` finds in a program, run on an engine. A sound program must not fail. A broken program, which several
    tests look at, runs once; `folder` gets its source and its trace."""
    if program.state != "broken":
        return _checked(program, folder, values, engine)
    key = hashlib.sha256(f"{program}{values}{engine}".encode()).hexdigest()
    kept = KEPT / key
    if not kept.exists():
        own = Path(tempfile.mkdtemp(dir=KEPT))
        report = _checked(program, own, values, engine)
        (own / "report.pickle").write_bytes(pickle.dumps(report))
        with contextlib.suppress(OSError):  # another worker was first
            own.rename(kept)
    for name in ("program.py", "run.gradviz"):
        shutil.copyfile(kept / name, folder / name)
    return pickle.loads((kept / "report.pickle").read_bytes())


def _checked(program: Program, folder: Path, values: str, engine: str) -> Report:
    source, trace = folder / "program.py", folder / "run.gradviz"
    source.write_text(program.text, encoding="utf-8")
    outcome = run(Target(str(source), False, []), trace, values=values, engine=engine)
    assert outcome.status == 0 or program.state == "broken"
    own = program.name.partition(":")[0]
    return check(trace, select=[own] if own in OPT_IN else ())
