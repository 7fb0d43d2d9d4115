"""Programs that replace what the interpreter and its library offer: they run as without the recorder. Where it cannot
record on, it says so in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

STEP = """
import gradviz.engine as torch
def step():
    x = torch.tensor([2.0, 3.0], requires_grad=True)
    (x * x).sum().backward()
    return x.grad.tolist()
step()
def fail(*args, **kwargs):
    raise RuntimeError("replaced")
"""
PATCHES = {
    "builtins.open": "import builtins\nbuiltins.open = fail\nprint(step())",
    "builtins.len": "import builtins\nreal = len\nbuiltins.len = lambda x: real(x) + 1\nprint(real(step()))",
    "builtins at the end": "import builtins\nfor name in 'isinstance getattr sorted max any zip'.split():\n"
    "    setattr(builtins, name, fail)\nprint('still here')",
    "no builtins": "import builtins\nkept = 'print', '__import__', '__build_class__', '__name__', '__spec__'\n"
    "for name in list(vars(builtins)):\n    if name not in kept: delattr(builtins, name)\nprint('still here')",
    "no builtins for a while": "import builtins, time\nwait = time.sleep\nthere = dict(vars(builtins))\n"
    "kept = 'print', '__import__', '__build_class__', '__name__', '__spec__'\n"
    "for name in [n for n in there if n not in kept and n != 'delattr']: delattr(builtins, name)\n"
    "wait(0.6)\nbuiltins.__dict__.update(there)\nprint('still here')",
    "builtins.Exception for a while": "import builtins, time\n"
    "builtins.Exception = builtins.OSError = ValueError\nprint(step())\ntime.sleep(0.6)\n1 / 0",
    "builtins.Exception": "import builtins\nbuiltins.Exception = builtins.OSError = ValueError\nprint(step())\n1 / 0",
    "builtins.__import__": "import builtins\nbuiltins.__import__ = fail\nprint(step())",
    "os": "import os\nfor name in 'stat fstat open close getcwd chdir getpid unlink write read replace dup'.split():\n"
    "    setattr(os, name, fail)\nprint(step())",
    "time": "import time\ntime.monotonic = time.time = time.sleep = fail\nprint(step())",
    "sqlite3": "import sqlite3\nsqlite3.connect = fail\nprint(step())\nraise SystemExit(4)",
    "json, linecache": "import json, linecache\njson.dumps = linecache.getlines = fail\nprint(step())",
    "numpy at the end": "import numpy\nnumpy.frombuffer = numpy.zeros = numpy.array = fail\nprint('still here')",
    "sys.modules": "import sys\nprint(step())\nsys.meta_path.clear()\nsys.path.clear()\nsys.modules.clear()",
    "an audit hook": "import sys\ndef hook(event, arguments):\n"
    "    if event in ('open', 'sqlite3.connect', 'os.listdir'): raise RuntimeError('no ' + event)\n"
    "sys.addaudithook(hook)\nprint(step())",
    "exec": "import os, sys\nprint(step(), flush=True)\n"
    "os.execv(sys.executable, [sys.executable, '-c', 'print(\"another\"); raise SystemExit(5)'])",
}


@pytest.mark.parametrize("name", PATCHES)
def test_a_program_that_patches_the_interpreter_runs_as_without_the_recorder(name: str, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(STEP + PATCHES[name] + "\n")
    environment = {**os.environ, "GRADVIZ_DEBUG": "", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    plain, traced = (
        subprocess.run(
            [sys.executable, *command, "job.py"], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        for command in ([], ["-m", "gradviz", "trace"])
    )
    assert (traced.returncode, traced.stdout) == (plain.returncode, plain.stdout)
    ours = [line for line in traced.stderr.splitlines() if line.startswith("gradviz: ")]
    assert [line for line in traced.stderr.splitlines() if line not in ours] == plain.stderr.splitlines()
    stopped = [
        line
        for line in ours
        if not line.startswith(tuple(f"gradviz: {label}" for label in ("recorded", "leaves", "error", "next")))
    ]
    assert len(stopped) <= 1
    opened = subprocess.run(
        [sys.executable, "-m", "gradviz", "info", "job.gradviz"], cwd=tmp_path, env=environment, capture_output=True
    )
    assert opened.returncode == 0
