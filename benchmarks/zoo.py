"""What `gradviz check` says about the programs of tests/zoo, beside PyTorch's `detect_anomaly` and torchlens's audits.

    python benchmarks/zoo.py [--torchlens PYTHON]

All run the same programs on PyTorch, each in a process of its own. `check` and `detect_anomaly` are given the script.
torchlens takes a module and its inputs: it is given the first module that the program calls, with a copy of its inputs,
and the gradients of the mean square of its output; PYTHON is the interpreter of an environment that has it
(`pip install torchlens pandas`, beside PyTorch).

- *speaks*: the tool says anything about a broken program: a finding, an exception, a warning.
- *names the line*: the first thing that it says names the guilty line.
- *accuses*: it says something about a sound program (cured or healthy).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import machine, table

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
_SECONDS = 20  # for a program
_NOTHING = {"speaks": False, "named": False, "costs": {}}
Says = tuple[bool, bool]  # whether a tool speaks, and whether it names the line


def gradviz(path: Path, line: int) -> tuple[Says, dict[str, float]]:
    """What `check` says, and the seconds of the plain run, of the recorded run and of the check."""
    from gradviz.diagnose import check
    from gradviz.sources.script import Target, run

    trace = path.with_suffix(".gradviz")
    start = time.process_time()
    run(Target(str(path), False, []), trace, engine="torch")
    recorded = time.process_time()
    found = check(trace).at_least("warning")
    costs = {"recorded": recorded - start, "check": time.process_time() - recorded}
    return (bool(found), bool(found) and found[0].line == line), costs


def anomaly(path: Path, line: int) -> tuple[Says, dict[str, float]]:
    """What PyTorch says, with `detect_anomaly`."""
    import torch

    start = time.process_time()
    raised: list[int] = []
    with warnings.catch_warnings(record=True) as told, torch.autograd.detect_anomaly():
        warnings.simplefilter("always")
        try:
            exec(compile(path.read_text(), str(path), "exec"), {"__name__": "__main__"})
        except Exception as error:
            raised = [f.lineno or 0 for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    own = [note for note in told if "Anomaly Detection has been enabled" not in str(note.message)]
    lines = raised[-1:] + [note.lineno for note in own if note.filename == str(path)]
    named = line in lines or any(f'{path.name}", line {line},' in str(note.message) for note in own)
    return (bool(raised or own), named), {"plain": time.process_time() - start}


def torchlens(path: Path, line: int) -> tuple[Says, dict[str, float]]:
    """What torchlens's audit says about the first module that is called."""
    import copy

    import torch
    import torchlens as lens
    from torchlens.options import CaptureOptions

    calls: list[tuple[Any, Any]] = []
    inside = torch.nn.Module.__call__

    def seen(module: Any, *args: Any, **kwargs: Any) -> Any:
        if not calls:
            calls.append((copy.deepcopy(module), copy.deepcopy(args)))
        return inside(module, *args, **kwargs)

    torch.nn.Module.__call__ = seen  # type: ignore[method-assign]
    with contextlib.suppress(Exception):
        exec(compile(path.read_text(), str(path), "exec"), {"__name__": "__main__"})
    torch.nn.Module.__call__ = inside  # type: ignore[method-assign]
    if not calls:
        return (False, False), {}
    module, args = calls[0]
    try:
        trace = lens.trace(module, args, capture=CaptureOptions(backward_ready=True, save_grads=True))
        (trace[trace.output_layers[0]].out.float() ** 2).mean().backward()
    except Exception:
        with contextlib.suppress(Exception):
            trace = lens.trace(module, args)
            return (_audited(lens, trace), False), {}
        return (False, False), {}
    return (_audited(lens, trace), False), {}


def _audited(lens: Any, trace: Any) -> bool:
    """Whether the audit of a trace finds something that is more than an information."""
    return any(finding.severity != "info" for finding in lens.debug.audit_trace(trace).findings)


TOOLS: dict[str, Callable[[Path, int], tuple[Says, dict[str, float]]]] = {
    "gradviz": gradviz, "anomaly": anomaly, "torchlens": torchlens,
}  # fmt: skip


def _one(job: tuple[str, str, str, int]) -> dict[str, Any]:
    """What a tool says about one program, in this process."""
    tool, text, state, line = job
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.py"
        path.write_text(text)
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                (speaks, named), costs = TOOLS[tool](path, line)
        except Exception as error:  # the tool itself failed: that says nothing about the program
            return {**_NOTHING, "state": state, "failed": repr(error)}
    return {"state": state, "speaks": speaks, "named": named, "costs": costs, "failed": ""}


def _in_child(job: tuple[str, str, str, int]) -> dict[str, Any]:
    """What a tool says about one program, in a process of its own. Not by `multiprocessing`: in its children torchlens
    finds nothing."""
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        with open(theirs, "w") as answer:
            json.dump(_one(job), answer)
        os._exit(0)
    os.close(theirs)
    with open(ours) as answer:
        in_time = select.select([answer], [], [], _SECONDS)[0]
        said = answer.read() if in_time else ""
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return json.loads(said) if said else {**_NOTHING, "state": job[2], "failed": "no answer"}


def serve(tool: str) -> None:
    """Run a tool on all programs; one line of JSON for each."""
    import torch
    import torch._dynamo  # which the first optimizer of a process imports

    from tests.zoo_programs import ALL

    torch.set_num_threads(1)
    for program in ALL:
        print(json.dumps(_in_child((tool, program.text, program.state, program.line))), flush=True)


def asked(tool: str, interpreter: str) -> list[dict[str, Any]]:
    """What a tool says about each program; empty if it is not installed."""
    done = subprocess.run([interpreter, __file__, "--serve", tool], capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{tool} cannot be run: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return []
    return [json.loads(line) for line in done.stdout.splitlines()]


def share(found: list[dict[str, Any]], key: str) -> str:
    """How many say so: `12 of 30 (40 %)`."""
    count = sum(said[key] for said in found)
    return f"{count} of {len(found)} ({100 * count / max(len(found), 1):.0f} %)"


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--serve")
    parser.add_argument("--torchlens", default=sys.executable)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    print(machine())
    interpreters = {"gradviz": sys.executable, "anomaly": sys.executable, "torchlens": options.torchlens}
    said = {tool: found for tool, python in interpreters.items() if (found := asked(tool, python))}
    rows = []
    for tool, found in said.items():
        broken = [one for one in found if one["state"] == "broken"]
        sound = [one for one in found if one["state"] != "broken"]
        failed = sum(bool(one["failed"]) for one in found)
        for reason, count in Counter(one["failed"] for one in found if one["failed"]).most_common(3):
            print(f"{tool} failed itself on {count} programs: {reason}", file=sys.stderr)
        rows.append((tool, share(broken, "speaks"), share(broken, "named"), share(sound, "speaks"), str(failed)))
    table("the zoo", rows, ("tool", "speaks", "names the line", "accuses a sound program", "failed itself"))
    costs: dict[str, list[float]] = {}
    for one in [*said.get("anomaly", []), *said.get("gradviz", [])]:
        for what, seconds in one["costs"].items():
            costs.setdefault(what, []).append(seconds)
    middle = {what: sorted(taken)[len(taken) // 2] for what, taken in costs.items()}
    table("CPU seconds, the median of all programs", [(w, f"{s:.3f}") for w, s in middle.items()], ("what", "seconds"))


if __name__ == "__main__":
    main()
