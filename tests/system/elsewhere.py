"""Commands in processes of their own, and all that two runs of one have alike."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.conftest import terminal_env
from tests.warm import python


class Ended(NamedTuple):
    """How a command ended, and what it wrote."""

    status: int
    out: str
    err: str
    files: dict[str, str]


COMMANDS = {
    "trace": ["trace", "lesson.py", "a", "b"],
    "trace-graph": ["trace", "--graph", "lesson.svg", "lesson.py"],
    "trace-of-an-error": ["trace", "-o", "other.gradviz", "failing.py"],
    "trace-last": ["trace", "--last", "2", "-o", "other.gradviz", "lesson.py"],
    "trace-watch": ["trace", "--watch", "-o", "other.gradviz", "lesson.py"],
    "trace-into-a-trace": ["trace", "-o", "run.gradviz", "lesson.py"],
    "info": ["info", "run.gradviz"],
    "info-newest": ["info", "--json"],
    "check-script": ["check", "lesson.py"],
    "check": ["check", "run.gradviz", "--format", "sarif"],
    "fix-script": ["fix", "-o", "other.gradviz", "failing.py"],
    "fix": ["fix", "run.gradviz"],
    "graph-svg": ["graph", "run.gradviz", "-o", "run.svg"],
    "graph-png": ["graph", "run.gradviz", "-o", "run.png"],
    "graph-pdf": ["graph", "run.gradviz", "-o", "run.pdf"],
    "graph-dot": ["graph", "run.gradviz", "-o", "run.dot"],
    "graph-html": ["graph", "run.gradviz", "-o", "run.html"],
    "graph-json": ["graph", "run.gradviz", "-o", "run.json"],
    "step": ["step", "run.gradviz", "--commands", "next 3; why; break lesson.py:6; continue; last; where"],
    "why": ["why", "run.gradviz", "w"],
    "diff": ["diff", "run.gradviz", "run.gradviz"],
    "report": ["report", "run.gradviz", "-o", "report.html"],
    "doctor": ["doctor"],
    "learn": ["learn"],
    "lesson": ["learn", "leaves", "--commands", "question; show-answer; next"],
    "debug": ["debug", "--break", "log", "--commands", "why; back; continue", "lesson.py"],
    "debug-quit": ["debug", "--commands", "next; quit", "lesson.py"],
    "debug-without-a-terminal": ["debug", "lesson.py"],
    "no-trace": ["info", "lesson.py"],
}
LESSON = """\
import sys
import gradviz.engine as torch
w = torch.tensor([1.0, 2.0], requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.01)
for step in range(3):
    loss = torch.log((w ** 2).sum())
    loss.backward()
    optimizer.step()
print(w.grad, sys.argv[1:], "∂ →")
"""


def run_in(here: Path, env: dict[str, str], *arguments: str, torch: bool = False) -> Ended:
    """Run a command in a directory, without a terminal."""
    return python_in(here, env, "-m", "gradviz", *arguments, torch=torch)


def python_in(here: Path, env: dict[str, str], *arguments: str, torch: bool = False) -> Ended:
    """Run `python ARGUMENTS` in a directory, without a terminal. A program that uses PyTorch says so."""
    temporary = here / "tmp"
    temporary.mkdir(exist_ok=True)
    before = {path: path.read_bytes() for path in here.iterdir() if path.is_file()}
    more = {"COLUMNS": "100", "NO_COLOR": "1", "TMPDIR": str(temporary), "GRADVIZ_DEBUG": "1"}
    command = [python(*sorted(env.items()), torch=torch), *arguments]
    ended = subprocess.run(
        command, cwd=here, env={**terminal_env(), **more, **env}, capture_output=True,
        stdin=subprocess.DEVNULL, timeout=120, start_new_session=True, encoding=env.get("PYTHONIOENCODING", "utf-8"),
    )  # fmt: skip
    files = {
        path.name: comparable(path)
        for path in here.iterdir()
        if path.is_file() and before.get(path) != path.read_bytes()
    }
    left = [path for path in temporary.iterdir() if not path.name.startswith("torchinductor")]
    assert left == [], "temporary files are left"
    return Ended(ended.returncode, *(shown(text, here) for text in (ended.stdout, ended.stderr)), files)


def shown(text: str, here: Path) -> str:
    """Text without what differs between two runs."""
    text = re.sub(r"\d+(\.\d+)? (seconds|s|ms)\b", "… s", text.replace(str(here), "<here>"))
    return re.sub(r"\([\d,]+ bytes\)|[\d,.]+ [km]?B\b|\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?", "…", text)


def comparable(path: Path) -> str:
    """What two runs have alike of a file: of a trace or a PDF, which have the time in them, that it is there."""
    if path.suffix in (".gradviz", ".pdf"):
        return path.read_bytes()[:4].decode()
    content = path.read_bytes()
    return shown(content.decode("utf-8"), path.parent) if path.suffix != ".png" else content.hex()
