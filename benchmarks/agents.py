"""Tasks for a coding agent, and their scorer: a program with one fault, what its user sees, and a hidden test. See
benchmarks/agents.md.

    python benchmarks/agents.py make FOLDER [--count 20] [--seed 1]
    python benchmarks/agents.py score FOLDER [--json]

`make` draws programs from the grammar of random_programs.py and keeps those that fail the hidden test, while their
healthy twins pass it. `score` runs the programs in FOLDER/tasks as the agent has left them."""

from __future__ import annotations

import argparse
import difflib
import json
import math
import os
import re
import runpy
import signal
import sys
import tempfile
import traceback
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, NoReturn

from common import table
from random_programs import broken, drawn

NEAR = 0.05  # relative: how far the last number may be from the healthy program's
LEAST = 1e-3  # absolute: numbers below this are alike
SECONDS = 120
SEED = re.compile(r"torch\.manual_seed\((\d+)\)")
OTHER_SEED = 1000  # a second run has its seed so much higher: a number that was typed in does not pass

PROMPT = """The program `program.py` runs, but it does not train as its author meant: it has one fault.
{symptom}
Find the fault and cure it in `program.py`. Change as little as possible, and keep what it prints.
"""


class Ended(NamedTuple):
    """How a program ended: its exit status, the number in its last printed line (NaN if there is none), and the last
    line of its errors."""

    status: int
    number: float
    error: str


class Score(NamedTuple):
    """The result of one task: whether the hidden test passes, how many lines were changed, and how many of these are
    lines that the fault has no part in."""

    task: str
    fault: str
    passed: bool
    changed: int
    innocent: int


def ended(text: str, seed_more: int = 0) -> Ended:
    """Run a program in a folder of its own, with a seed that is so much higher, in a child of this process, which has
    PyTorch already."""
    text = SEED.sub(lambda found: f"torch.manual_seed({int(found[1]) + seed_more})", text)
    with tempfile.TemporaryDirectory() as folder:
        script, out, err = (Path(folder) / name for name in ("program.py", "out", "err"))
        script.write_text(text)
        child = os.fork()
        if not child:
            run_alone(script, out, err)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        printed, errors = out.read_text().split(), err.read_text().strip().splitlines()
    try:
        number = float(printed[-1])
    except (IndexError, ValueError):
        number = math.nan
    return Ended(status, number, errors[-1] if errors and status else "")


def run_alone(script: Path, out: Path, err: Path) -> NoReturn:
    """Run a script as the main program, and end this process as it ends."""
    status = 1
    try:
        for number, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        os.chdir(script.parent)
        signal.alarm(SECONDS)  # which ends it, unless it says otherwise
        runpy.run_path(script.name, run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


ended_once = lru_cache(maxsize=4)(ended)  # of twins


def is_healthy(text: str, twin: str) -> bool:
    """The hidden test: with its own seed and another one, the program ends at the number of its healthy twin."""
    for more in (0, OTHER_SEED):
        program, healthy = ended(text, more), ended_once(twin, more)
        near = max(NEAR * abs(healthy.number), LEAST)
        if program.status or not abs(program.number - healthy.number) <= near:
            return False
    return True


def symptom_of(text: str, twin: str) -> str:
    """What the user of a faulty program sees."""
    seen, healthy = ended(text), ended(twin)
    if seen.status:
        return f"It ends with `{seen.error}`."
    return f"It ends at a loss of {seen.number:.4g}; about {healthy.number:.4g} was to be expected."


def make(folder: Path, count: int, seed: int) -> None:
    """Write so many tasks, and the hidden part of each."""
    number = made = 0
    while made < count:
        number += 1
        program = broken(seed, number)
        if program is None or program.target is None:
            continue
        text, twin = ("\n".join(one.lines) + "\n" for one in (program, drawn(seed, number)))
        if is_healthy(text, twin) or not is_healthy(twin, twin):
            continue  # a fault that the last number does not show
        made += 1
        task, hidden = folder / "tasks" / f"{made:03}", folder / "hidden"
        task.mkdir(parents=True)
        hidden.mkdir(exist_ok=True)
        (task / "program.py").write_text(text)
        (task / "task.md").write_text(PROMPT.format(symptom=symptom_of(text, twin)))
        known = {"fault": program.target[0], "lines": sorted(program.guilty()), "program": text, "twin": twin}
        (hidden / f"{made:03}.json").write_text(json.dumps(known, indent=1))


def scored(folder: Path) -> list[Score]:
    """The results of all tasks in a folder."""
    scores = []
    for hidden in sorted((folder / "hidden").glob("*.json")):
        known = json.loads(hidden.read_text())
        text = (folder / "tasks" / hidden.stem / "program.py").read_text()
        changed = changed_lines(known["program"], text)
        innocent = changed - {line + way for line in known["lines"] for way in (-1, 0, 1)}
        passed = is_healthy(text, known["twin"])
        scores.append(Score(hidden.stem, known["fault"], passed, len(changed), len(innocent)))
    return scores


def changed_lines(before: str, after: str) -> set[int]:
    """The lines of a text, from 1, that were changed or left out, or behind which others were put."""
    matcher = difflib.SequenceMatcher(None, before.splitlines(), after.splitlines(), autojunk=False)
    parts = [part for part in matcher.get_opcodes() if part[0] != "equal"]
    return {line for _, start, end, _, _ in parts for line in range(start + 1, max(end, start + 1) + 1)}


def main() -> None:
    """Make tasks, or print their scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("make", "score"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the scores as JSON")
    options = parser.parse_args()
    import torch
    import torch._dynamo  # which the first optimizer of a process imports

    torch.set_num_threads(1)
    if options.what == "make":
        make(options.folder, options.count, options.seed)
        return
    scores = scored(options.folder)
    if options.json:
        print(json.dumps([score._asdict() for score in scores]))
        return
    rows = [tuple(map(str, score)) for score in scores]
    table("tasks", rows, Score._fields)
    passed = [score for score in scores if score.passed]
    clean = sum(not score.innocent for score in passed)
    print(f"\n{len(passed)} of {len(scores)} passed, {clean} of these without a change to an innocent line")


if __name__ == "__main__":
    main()
