"""Programs of PyTorch, of as many kinds as it has: each does under `gradviz trace` what it does under `python`, and as
many operations and passes are recorded with every version of PyTorch.

    python -m tests.versions.programs          prints what differs
    python -m tests.versions.programs --quick  of those that depend on the version the most
    python -m tests.versions.programs --count  writes the counts of this version
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import gradviz
from gradviz.events.kinds import OpRan

FOLDER = Path(__file__).parent
COUNTS = FOLDER / "counts.json"
QUICK = (
    "a custom Function", "a Function with setup_context and vmap", "checkpoint", "reentrant checkpoint", "compile",
    "checkpoint that stores too little", "compile with a differentiated graph", "optimizers", "hooks", "a small GPT",
    "double backward", "transforms", "NaN under anomaly mode",
)  # fmt: skip
# Programs of which PyTorch itself does more or less in some versions.
OTHERWISE = {
    "checkpoint": ([19, 1], "each checkpoint calls `_NoopSaveInputs`"),
    "checkpoint of a sequence": ([13, 1], "each checkpoint calls `_NoopSaveInputs`"),
    "checkpoint that stores too little": ([10, 1], "each checkpoint calls `_NoopSaveInputs`"),
    "transforms": ([17, 2], "`jacrev` splits what it returns by `cumsum`"),
    "deepcopy and an average of weights": ([29, 1], "`update_parameters` asks of each tensor whether it is the first"),
}
PRELUDE = """
import copy, io, sys, threading
import torch
import torch.autograd.forward_ad as fwAD
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
"""


class Ended(NamedTuple):
    """What a program did: its exit status, and what it printed."""

    status: int
    stdout: str
    stderr: str


def programs() -> dict[str, str]:
    """The programs, by name."""
    parts = (FOLDER / "programs.txt").read_text().split("=== ")[1:]
    named = (part.split("\n", 1) for part in parts)
    return {name: f"{PRELUDE}\n{text}" for name, text in named}


def run(arguments: Sequence[str], folder: Path) -> Ended:
    """What Python itself does with these arguments, without gradviz's own lines."""
    env = {**os.environ, "PYTHONPATH": str(FOLDER.parent.parent)}
    done = subprocess.run([sys.executable, *arguments], cwd=folder, env=env, capture_output=True, text=True)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("gradviz: ")]
    return Ended(done.returncode, done.stdout, "\n".join(lines))


def both(text: str) -> tuple[Ended, Ended, list[int]]:
    """What a program does without a recorder and with one, and how many operations and passes were recorded."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "program.py").write_text(text)
        plain = run(["program.py"], folder)
        traced = run(["-m", "gradviz", "trace", "program.py"], folder)
        with gradviz.open(folder / "program.gradviz") as trace:
            counts = [sum(isinstance(event, OpRan) for event in trace), len(trace.passes)]
    return plain, traced, counts


def differences(name: str, text: str) -> list[str]:
    """What is wrong with the recording of a program; empty if nothing is."""
    plain, traced, counts = both(text)
    found = [
        f"{field}: {before!r} becomes {after!r}"
        for field, before, after in zip(Ended._fields, plain, traced, strict=True)
        if before != after
    ]
    expected = json.loads(COUNTS.read_text())[name]
    if counts == OTHERWISE.get(name, ((), ""))[0]:
        print(f"{name}: {counts[0]} operations, not {expected[0]} as with 2.13: {OTHERWISE[name][1]}")
    elif counts != expected:
        found.append(
            f"{counts[0]} operations and {counts[1]} passes, where {expected[0]} and {expected[1]} are expected"
        )
    return found


def main() -> int:
    """Run all, two at a time; the exit status is 1 if something differs."""
    known = programs()
    if "--quick" in sys.argv:
        known = {name: known[name] for name in QUICK}
    with ThreadPoolExecutor(2) as pool:
        if "--count" in sys.argv:
            counts = dict(zip(known, (counts for *_, counts in pool.map(both, known.values())), strict=True))
            COUNTS.write_text(json.dumps(counts, indent=1) + "\n")
            return 0
        found = dict(zip(known, pool.map(differences, known, known.values()), strict=True))
    for name, wrong in found.items():
        for line in wrong:
            print(f"{name}: {line}")
    print(f"{sum(not wrong for wrong in found.values())} of {len(found)} programs are recorded as they are")
    return int(any(found.values()))


if __name__ == "__main__":
    sys.exit(main())
