"""What `--passes auto` costs in findings: programs of tests/zoo that train in a loop, with longer loops, recorded with
all passes and with `auto`, and checked.

    python benchmarks/zoo_auto.py [PROGRAMS] [STEPS] [SECONDS] [PASSES]

PROGRAMS is how many programs are taken, evenly among all that have such a loop, STEPS how many steps they make, SECONDS
how long a program may take, PASSES the choice that is compared with all passes: `auto`, or `1-1000,auto`."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from common import machine

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
_ONE = """
import json, sys
from gradviz.diagnose import check
from gradviz.sources.script import Target, run
from gradviz.tracefile import passes_of
found = {}
for passes in ("all", "auto"):
    chosen = passes_of(sys.argv[2]) if passes == "auto" else None
    run(Target(sys.argv[1], False, []), passes + ".gradviz", engine="torch", passes=chosen)
    found[passes] = [[one.rule, one.line] for one in check(passes + ".gradviz").at_least("warning")]
with open("found.json", "w") as file:
    json.dump(found, file)
"""
_USUAL = 40, 1500, 120
_CHOSEN = "auto"
Findings = set[tuple[str, int]]


def lengthened(text: str, steps: int) -> str:
    """A program with so many steps in each outermost loop over a range in which a pass begins; empty if it has none."""
    lines = text.splitlines(keepends=True)
    places = []
    waiting: list[ast.AST] = [ast.parse(text)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.For) and (count := _count(node)) is not None and _trains(node):
            places.append(count)
        else:
            waiting += ast.iter_child_nodes(node)
    for count in sorted(places, key=lambda one: (one.lineno, one.col_offset), reverse=True):
        line = lines[count.lineno - 1]
        lines[count.lineno - 1] = f"{line[: count.col_offset]}{steps}{line[count.end_col_offset :]}"
    return "".join(lines) if places else ""


def _count(loop: ast.For) -> ast.Constant | None:
    """The number in `for ... in range(number)`."""
    call = loop.iter
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id != "range":
        return None
    last = call.args[-1] if len(call.args) in (1, 2) else None
    return last if isinstance(last, ast.Constant) and isinstance(last.value, int) else None


def _trains(loop: ast.For) -> bool:
    """Whether a pass begins in a loop, by what stands in it."""
    return any(isinstance(node, ast.Attribute) and node.attr in ("backward", "step") for node in ast.walk(loop))


def findings(text: str, seconds: float, passes: str) -> tuple[Findings, Findings] | None:
    """What is found with all passes, and with `auto`; None if the program takes too long or cannot be recorded."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "program.py").write_text(text, encoding="utf-8")
        command = [sys.executable, "-c", _ONE, "program.py", passes]
        try:
            subprocess.run(command, cwd=folder, capture_output=True, timeout=seconds, check=False)
            found = json.loads((Path(folder) / "found.json").read_text())
        except (subprocess.TimeoutExpired, FileNotFoundError):
            return None
    of_all, of_auto = ({(rule, line) for rule, line in found[name]} for name in ("all", "auto"))
    return of_all, of_auto


def main() -> None:
    """Print what differs, program by program, and the sums."""
    from tests.zoo_programs import ALL

    given = [int(text) for text in sys.argv[1:4]]
    passes = (sys.argv[4:] or [_CHOSEN])[0]
    count, steps, seconds = (*given, *_USUAL[len(given) :])
    suited = [(one, text) for one in ALL if (text := lengthened(one.text, steps))]
    chosen = suited[:: max(1, len(suited) // count)][:count]
    print(f"{len(chosen)} of {len(suited)} programs of {steps} steps, {passes}; {machine()}", flush=True)
    same = lost = new = late = total = 0
    for one, text in chosen:
        found = findings(text, seconds, passes)
        if found is None:
            late += 1
            print(f"{one.name}: {one.state}: no result in {seconds} s", flush=True)
            continue
        of_all, of_auto = found
        total += len(of_all)
        lost, new, same = (lost + len(of_all - of_auto), new + len(of_auto - of_all), same + (of_all == of_auto))
        told = f"lost {sorted(of_all - of_auto)}, new {sorted(of_auto - of_all)}"
        print(f"{one.name}: {one.state}: {'alike' if of_all == of_auto else told}", flush=True)
    print(f"{same} programs alike; {lost} of {total} findings lost, {new} new; {late} without a result")


if __name__ == "__main__":
    main()
