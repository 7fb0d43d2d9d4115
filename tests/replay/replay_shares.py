"""How many passes of the zoo's programs run again, and give what was recorded.

`python -m tests.replay.replay_shares` runs them all, every fourth on gradviz's engine, too, and writes what it found
into replay_shares.json and the table of docs/what-if.md; with `--new` only those that are not known yet.
tests/replay/test_replay_shares.py runs some of them."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from gradviz.query.query import Query
from gradviz.replay.outcome import Edits, checked
from gradviz.replay.plan import ReplayError, plan_of
from gradviz.sources.script import Target, run
from gradviz.sources.torch_replay import runner_of
from gradviz.tracefile import open_trace
from tests.zoo_programs import ALL

FOUND = Path(__file__).with_suffix(".json")
PAGE = Path(__file__).parents[2] / "docs/what-if.md"
TABLE = re.compile(r"^\| programs \|.*\n(\|.*\n)+", re.MULTILINE)
_MOST_PASSES = 4  # of one program, spread over its run
EQUAL, NOT_EQUAL, NOTHING, REFUSED = "equal", "not equal", "nothing to compare", "refused"
TRAINING = {path.stem: path for path in sorted((Path(__file__).parents[1] / "zoo/training").glob("*.py"))}
SMALL = {f"{program.name}: {program.state}": program.text for program in ALL}
_ON_ENGINE = " on the engine"
ON_ENGINE = {
    f"{program.name}: {program.state}{_ON_ENGINE}": program.text
    for program in [program for program in ALL if not program.needs_torch][::4]
}


def outcomes(name: str, folder: Path) -> dict[str, int]:
    """What becomes of the passes of a program, and of how many: EQUAL, NOT_EQUAL, NOTHING, REFUSED. Those that an
    exception has ended are left out."""
    script, trace = folder / "program.py", folder / "run.gradviz"
    small = {**SMALL, **ON_ENGINE}
    text = small[name] if name in small else TRAINING[name].read_text(encoding="utf-8")
    script.write_text(text, encoding="utf-8")
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        engine = "numpy" if name in ON_ENGINE else "torch"
        run(Target(str(script), False, []), trace, values="inputs", engine=engine)
    with open_trace(trace) as recorded:
        query = Query(recorded)
        done = [one.number for one in recorded.passes if query.passes.is_done(one) and one.is_in_detail]
        numbers = done[:: max(1, len(done) // _MOST_PASSES)][:_MOST_PASSES]
        return dict(Counter(_outcome(query, number) for number in numbers))


def _outcome(query: Query, number: int) -> str:
    try:
        plan = plan_of(query, number)
        check = checked(query, plan, runner_of(query).run(plan, Edits()))
    except ReplayError:
        return REFUSED
    if check.differences:
        return NOT_EQUAL
    return EQUAL if check.roots or check.gradients else NOTHING


def table(found: dict[str, dict[str, dict[str, int]]]) -> str:
    """The table of the page."""
    rows = ["| programs | passes | give what was recorded | differ | are refused |", "|-|-|-|-|-|"]
    for name, told in found.items():
        counts: Counter[str] = sum((Counter(one) for one in told.values()), Counter())
        share = 100 * counts[EQUAL] / counts.total()
        some = [name for name, one in told.items() if one]
        rows.append(
            f"| {len(some)} {name} | {counts.total():,} | {share:.1f} % | {counts[NOT_EQUAL]} | {counts[REFUSED]} |"
        )
    return "\n".join(rows) + "\n"


def known() -> dict[str, dict[str, dict[str, int]]]:
    """What was found of all programs, when they were last run."""
    found: dict[str, Any] = json.loads(FOUND.read_text(encoding="utf-8"))
    return found


if __name__ == "__main__":
    told_before = known() if "--new" in sys.argv else {}
    with tempfile.TemporaryDirectory() as here:
        all_found = {
            kind: {
                name: told_before[kind][name] if name in told_before.get(kind, {}) else outcomes(name, Path(here))
                for name in names
            }
            for kind, names in (
                ("of the zoo", SMALL),
                ("that train", TRAINING),
                ("of the zoo on gradviz's engine", ON_ENGINE),
            )
        }
    FOUND.write_text(json.dumps(all_found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(TABLE.sub(lambda _: table(all_found), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
