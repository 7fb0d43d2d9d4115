"""How many entries of PyTorch's database of operators run again, and give what was recorded to the last bit.

`python -m tests.replay.operator_replays` runs two samples of every entry, and writes what it found into
operator_replays.json and the table of docs/what-if.md; names behind it are the entries to run anew.
tests/replay/test_operator_replays.py runs some of them."""

from __future__ import annotations

import json
import re
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch

import gradviz
from gradviz.query.query import Query
from gradviz.replay.outcome import Edits, checked
from gradviz.replay.plan import CUT, ReplayError, plan_of
from gradviz.sources.torch_replay import TorchRunner
from gradviz.tracefile import Trace, open_trace
from tests.sources.test_torch_database import entries, run, samples_of
from tests.torch_samples import take_no_stacks

FOUND = Path(__file__).with_suffix(".json")
PAGE = Path(__file__).parents[2] / "docs/what-if.md"
TABLE = re.compile(r"^\| entries \|.*\n(\|.*\n)+", re.MULTILINE)
EQUAL, NOT_EQUAL, HELD, REFUSED = "equal", "other bits", "held", "refused"
_WORST = (REFUSED, NOT_EQUAL, HELD, EQUAL)


def outcome(op: Any, folder: Path) -> str | None:
    """What becomes of the passes through an entry: the worst of its samples. HELD where its result enters the replay as
    it was recorded. None where no sample has a pass, or PyTorch refuses it."""
    torch.manual_seed(0)
    found = [one for sample in samples_of(op) for one in _outcomes(op, sample, folder / "run.gradviz")]
    return min(found, key=_WORST.index) if found else None


def _outcomes(op: Any, sample: Any, path: Path) -> list[str]:
    try:
        run(op, sample)
    except Exception:  # whatever PyTorch says of its own samples
        return []
    with gradviz.record(path, values="inputs"):
        run(op, sample)
    with open_trace(path) as trace:
        return [_outcome(trace, one.number) for one in trace.passes]


def _outcome(trace: Trace, number: int) -> str:
    query = Query(trace)
    try:
        plan = plan_of(query, number)
        check = checked(query, plan, TorchRunner().run(plan, Edits()))
    except ReplayError:
        return REFUSED
    if any(step.how == CUT for step in plan.inputs):
        return HELD
    return EQUAL if check.is_equal and check.roots + check.gradients else NOT_EQUAL


def table(found: dict[str, str]) -> str:
    """The table of the page, and the entries that are not equal."""
    counts = Counter(found.values())
    share = 100 * counts[EQUAL] / len(found)
    rows = [
        "| entries | give the recorded bits | held as recorded | other bits | refused |",
        "|-|-|-|-|-|",
        f"| {len(found)} | {share:.1f} % | {counts[HELD]} | {counts[NOT_EQUAL]} | {counts[REFUSED]} |",
    ]
    return "\n".join(rows) + "\n"


def known() -> dict[str, str]:
    """What was found of all entries, when they were last run."""
    found: dict[str, str] = json.loads(FOUND.read_text(encoding="utf-8")) if FOUND.exists() else {}
    return found


def named() -> dict[str, Any]:
    """The entries by their names."""
    return {op.full_name: op for op in entries()}


if __name__ == "__main__":
    take_no_stacks()
    wanted = sys.argv[1:]
    all_found = known() if wanted else {}
    with tempfile.TemporaryDirectory() as here, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, op in named().items():
            if not wanted or name in wanted:
                result = outcome(op, Path(here))
                all_found.pop(name, None)
                if result is not None:
                    all_found[name] = result
                if result != EQUAL:
                    print(name, result, flush=True)
    FOUND.write_text(json.dumps(dict(sorted(all_found.items())), indent=0) + "\n", encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(TABLE.sub(lambda _: table(all_found), page), encoding="utf-8")
    print(table(all_found))
